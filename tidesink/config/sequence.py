"""Where order by the source's own position (``sequence_by: source``) can be had, and where not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidesink.config.models import Config
from tidesink.config.problems import Problem

# Targets that keep each row's position beside it; held to their capabilities by a test.
SEQUENCED_TARGETS: Final = frozenset({"delta", "memory"})
_KAFKA: Final = (
    "use sequence_by: kafka, which is right where a key stays in one partition (TiCDC dispatchers table and "
    "index-value, and Debezium's default)"
)


def sequence_problems(config: Config) -> Iterator[Problem]:
    """What keeps the tables that ask for it from being ordered by the source."""
    asked = [("defaults", config.defaults.sequence_by)]
    asked += [
        (f"tables[{number}]", entry.sequence_by or "kafka") for number, entry in enumerate(config.tables)
    ]
    for place, order in asked:
        if order == "source":
            for reason, remedy in _obstacles(config):
                yield Problem(f"{place}.sequence_by", reason, remedy)


def _obstacles(config: Config) -> Iterator[tuple[str, str]]:
    if config.target.type not in SEQUENCED_TARGETS:
        yield f"a {config.target.type} target does not keep the positions of its rows", _KAFKA
    if config.source.protocol.startswith("debezium"):
        yield "positions of Debezium's sources are not compared in this version", _KAFKA
    elif not config.source.enable_tidb_extension:
        yield (
            "events have a position only where the changefeed has enable-tidb-extension=true",
            f"set source.enable-tidb-extension: true if it has, or {_KAFKA}",
        )
