"""Patterns of a config that fit none of the tables there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tidesink.config.models import Config
from tidesink.events import TableId

_IDLE: Final = (
    "{place}: {pattern!r} fits none of the tables that were found ({names}), so that nothing under it has an "
    "effect: is it spelt as the changefeed has them?"
)
_SHOWN: Final = 5


def idle_patterns(config: Config, tables: Iterable[TableId]) -> Iterator[str]:
    """A warning for each ``match`` of ``tables`` and ``routes`` that fits none of some tables."""
    known = sorted(set(tables))
    if not known:
        return
    names = ", ".join(map(str, known[:_SHOWN])) + (", …" if known[_SHOWN:] else "")
    for number, entry in enumerate(config.tables):
        if entry.match is not None and not any(entry.covers(table) for table in known):
            yield _IDLE.format(place=f"tables[{number}].match", pattern=entry.match, names=names)
    for number, route in enumerate(config.routes):
        if not any(route.fits(table) for table in known):
            yield _IDLE.format(place=f"routes[{number}].match", pattern=route.match, names=names)
