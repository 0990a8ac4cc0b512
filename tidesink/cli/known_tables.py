"""Tables that people name in a command, found among those that a pipeline knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tidesink.cli.status import read_statuses
from tidesink.config import Config
from tidesink.config.fields import nearest
from tidesink.errors import ConfigError
from tidesink.events import TableId

if TYPE_CHECKING:
    from tidesink.sinks.state_store import StateStore


@contextmanager
def worked_with(config: Config) -> Iterator[StateStore]:
    """The state store of a pipeline that was worked on.

    Raises:
        ConfigError: no worker ever made it.
        StateStoreError: it does not answer.
    """
    from tidesink.sinks.state_store import open_state_store

    if "://" not in config.state and not Path(config.state).exists():
        raise ConfigError("no worker ever ran: tidesink run makes the state store", state=config.state)
    store = open_state_store(config.state)
    try:
        yield store
    finally:
        store.close()


def tables_worked_on(config: Config) -> list[TableId]:
    """The tables that a pipeline's state store knows; none before its first run."""
    return [entry.table for entry in read_statuses(config)]


def named_table(name: str, known: Iterable[TableId]) -> TableId:
    """The table of a name as records keep it, ``schema.table``; either of its parts may hold a dot."""
    found = {str(table): table for table in known}
    schema, dot, rest = name.partition(".")
    return found.get(name) or (TableId(schema, rest) if dot else TableId("", name))


def known_table(name: str, config: Config, found: Iterable[TableId]) -> TableId:
    """The table of a name, as the worker or the config spells it; either of its parts may hold a dot.

    It may be given in any case, where no table that was worked on is spelt just so.

    Raises:
        ConfigError: neither knows it.
    """
    found = tuple(found)
    spelt = {str(table): table for table in found}
    if name in spelt:
        return spelt[name]
    named = [entry.table for entry in config.tables if entry.table is not None]
    known = {str(table).lower(): table for table in (*named, *found)}
    if name.lower() not in known:
        raise ConfigError(
            f"no table {name} is known to pipeline {config.pipeline}{nearest(name, known)}; tidesink status "
            "lists those that were worked on"
        )
    return known[name.lower()]
