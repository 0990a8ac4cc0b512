"""Which targets can hold a table in which mode, and where a mode cannot be had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from tidesink.config.history import history_problems
from tidesink.config.mode_words import TableMode
from tidesink.config.models import Config
from tidesink.config.problems import Problem

# The targets of each mode beside ``upsert``, which all of them have; held to their capabilities by a test.
MODE_TARGETS: Final[Mapping[TableMode, frozenset[str]]] = MappingProxyType(
    {"append": frozenset(), "history": frozenset({"delta", "memory"})}
)


def mode_problems(config: Config) -> Iterator[Problem]:
    """The tables whose mode the target does not have, and what a mode does not go with."""
    yield from history_problems(config)
    asked: list[tuple[str, TableMode | None]] = [("defaults", config.defaults.mode)]
    asked += [(f"tables[{number}]", entry.mode) for number, entry in enumerate(config.tables)]
    for place, mode in asked:
        if mode is None or mode == "upsert":
            continue
        if config.target.type not in MODE_TARGETS[mode]:
            yield Problem(
                f"{place}.mode",
                f"a target of type {config.target.type} holds no table in mode {mode}",
                "use mode: upsert, or another target",
            )
