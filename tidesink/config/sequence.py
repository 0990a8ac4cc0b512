"""Where order by the source's own position (``sequence_by: source``) can be had, and where not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidesink.config.fields import Model
from tidesink.config.models import Config, SequenceBy, TableOverride
from tidesink.config.problems import Problem

# Targets that keep each row's position beside it; held to their capabilities by a test.
SEQUENCED_TARGETS: Final = frozenset({"delta", "iceberg", "memory", "postgres", "mysql"})
_KAFKA: Final = (
    "use sequence_by: kafka, which is right where a key stays in one partition (TiCDC dispatchers table and "
    "index-value, and Debezium's default)"
)


def sequence_problems(config: Config) -> Iterator[Problem]:
    """What keeps the tables that ask for it from being ordered by the source."""
    yield from _without_effect(config)
    asked = [("defaults", config.defaults.sequence_by)]
    asked += [
        (f"tables[{number}]", entry.sequence_by or "kafka") for number, entry in enumerate(config.tables)
    ]
    for place, order in asked:
        if order == "source":
            for reason, remedy in _obstacles(config):
                yield Problem(f"{place}.sequence_by", reason, remedy)


def _without_effect(config: Config) -> Iterator[Problem]:
    orders = [config.defaults.sequence_by, *(entry.sequence_by for entry in config.tables)]
    sections: list[tuple[str, Model, bool]] = [("defaults", config.defaults, "source" in orders)]
    sections += [
        (f"tables[{number}]", entry, _order(config, entry) == "source")
        for number, entry in enumerate(config.tables)
    ]
    for place, section, used in sections:
        if "tombstone_retention" in section.model_fields_set and not used:
            yield Problem(
                f"{place}.tombstone-retention",
                "has no effect under sequence_by: kafka, where deleted rows are gone at once",
                "set sequence_by: source, or remove it",
            )


def _order(config: Config, entry: TableOverride) -> SequenceBy:
    """The order of the table that an entry is of, or of those that its pattern fits."""
    if entry.table is not None:
        return config.table_config(entry.table).sequence_by
    return entry.sequence_by or config.defaults.sequence_by


def _obstacles(config: Config) -> Iterator[tuple[str, str]]:
    if config.target.type not in SEQUENCED_TARGETS:
        yield f"a target of type {config.target.type} does not keep the positions of its rows", _KAFKA
    if config.source.protocol.startswith("debezium"):
        # TiCDC's messages have a commit_ts; that others have none is said in plan and by the worker.
        if config.source.debezium.unwrapped:
            yield "rows flattened by ExtractNewRecordState have no position of the source's", _KAFKA
    elif not config.source.enable_tidb_extension:
        yield (
            "events have a position only where the changefeed has enable-tidb-extension=true",
            f"set source.enable-tidb-extension: true if it has, or {_KAFKA}",
        )
