"""Which targets can hold a table in which mode, and what has no effect in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from tidesink.config.history import history_problems
from tidesink.config.merged import without_keys, words_of
from tidesink.config.mode_words import TableMode
from tidesink.config.models import Config, TableDefaults, TableOverride
from tidesink.config.problems import Problem

# The targets of each mode beside ``upsert``, which all of them have; held to their capabilities by a test.
MODE_TARGETS: Final[Mapping[TableMode, frozenset[str]]] = MappingProxyType(
    {
        "append": frozenset({"delta", "iceberg", "memory", "mysql", "postgres"}),
        "history": frozenset({"delta", "iceberg", "memory", "mysql", "postgres"}),
    }
)
# What says how rows of one key follow each other, and has no effect where each change is a row of its own:
# the field, its name in the file, and the value that is as if nothing were said.
_OF_KEYS: Final = (
    ("sequence_by", "sequence_by", "kafka"),
    ("deletes", "deletes", "hard"),
    ("tombstone_retention", "tombstone-retention", None),
)


def mode_problems(config: Config) -> Iterator[Problem]:
    """The tables whose mode the target does not have, and what a mode does not go with."""
    yield from history_problems(config)
    places: list[tuple[str, TableDefaults | TableOverride]] = [("defaults", config.defaults)]
    places += [(f"tables[{number}]", entry) for number, entry in enumerate(config.tables)]
    for place, section in places:
        mode = section.mode
        if mode is not None and mode != "upsert" and config.target.type not in MODE_TARGETS[mode]:
            yield Problem(
                f"{place}.mode",
                f"a target of type {config.target.type} holds no table in mode {mode}",
                "use mode: upsert, or another target",
            )
        yield from _without_effect(config, place, section)


def _without_effect(config: Config, place: str, section: TableDefaults | TableOverride) -> Iterator[Problem]:
    said = [
        name
        for field, name, nothing in _OF_KEYS
        if field in section.model_fields_set and getattr(section, field) not in (nothing, None)
    ]
    if said and words_of(config, section).mode == "append":
        yield from (Problem(f"{place}.{name}", *without_keys(name)) for name in said)
