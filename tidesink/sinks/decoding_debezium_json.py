"""Decoding a debezium-json table: its types are in its records, or in a definition, or nowhere.

Where records carry their schemas, a batch is asked once for those it holds, and the plan reads them in the
JVM. Rows without a schema, and flattened ones, are read by the Python codec; types that no definition and
no schema tells are text, with a warning.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidesink.codecs.columns_debezium_json import IRREGULAR, DebeziumJsonColumns
from tidesink.codecs.columns_debezium_json_heads import Heads, heads_in
from tidesink.codecs.columns_debezium_json_plan import debezium_json_columns, plans_rows
from tidesink.codecs.debezium.inference import UNTYPED, Told, first_row, told_column
from tidesink.events import TableId
from tidesink.sinks.decoding import Missed, declared_table
from tidesink.sinks.decoding_planned import LoneDecoding
from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.ranges import OffsetRange, growing_parts
from tidesink.sinks.records_spark import with_values
from tidesink.sinks.shape import TableShape
from tidesink.sinks.source import translated_read_errors
from tidesink.sinks.surroundings import Surroundings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# So many records of a topic are looked at first for what tells its columns.
_PEEKED_RECORDS: Final = 1_000


class DebeziumJsonDecoding(LoneDecoding[DebeziumJsonColumns]):
    """One table's schemas, and the plan they make."""

    def __init__(self, around: Surroundings, topic: str, table: TableId, *, session: SparkSession) -> None:
        super().__init__(around, topic, table, session=session)
        self._declared = declared_table(self._settings.definition, table)
        self._options = around.config.source.codec_options()
        self._heads = Heads()
        self._told: dict[str, Told] = {}
        self._told_keys: tuple[str, ...] = ()
        self._told_later: set[str] = set()
        self._judges = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """Columns whose type at the target is not the nearest one, with the reason; those nothing tells."""
        texts = [f"column {told.column.name}: {UNTYPED}" for told in self._told.values() if told.guessed]
        return (*super().warnings, *texts)

    def prepare(self, found: TopicOffsets) -> None:
        """Look at the topic's first records until one tells the table's columns."""
        everything = [OffsetRange(self._topic, n, *at) for n, at in found.partitions.items()]
        for part in growing_parts(everything, _PEEKED_RECORDS):
            if self._tells(part):
                break
        self._make()

    def learn(self, missed: Missed) -> bool:
        """Take the schemas that the batch has and the plan lacks; else have irregular records judged.

        What judged records have and the plan lacks comes with them.
        """
        lacking = missed.summary.unplanned_columns
        if not lacking:
            return False
        told = {one.column.name: one for one in map(told_column, filter(None, lacking))}
        heads = self._heads.with_new(self._heads_of(missed.ranges))
        if heads == self._heads and told.items() <= self._told.items():
            if IRREGULAR not in lacking or self._judges:
                return False
            self._judges = True
        self._heads = heads
        self._told_later |= {name.lower() for name in told.keys() - self._told.keys()}
        self._told |= told
        self._make()
        return True

    def _tells(self, ranges: Sequence[OffsetRange]) -> bool:
        """Look at some records; whether one of them told the table's columns."""
        self._heads = self._heads.with_new(self._heads_of(ranges))
        if plans_rows(self._heads.value):
            return True
        with translated_read_errors(self._topic):
            rows = with_values(self._around.source.frame(self._session, ranges))
            found = first_row(rows, self._options, self._declared)
        if found is None:
            return False
        self._told = {one.column.name: one for one in found.columns}
        self._told_keys = found.keys
        self._options = replace(
            self._options, debezium_unwrapped=self._options.debezium_unwrapped or found.flattened
        )
        return True

    def _heads_of(self, ranges: Sequence[OffsetRange]) -> Heads:
        if not any(part.records for part in ranges):
            return Heads()
        with translated_read_errors(self._topic):
            return heads_in(self._around.source.frame(self._session, ranges))

    def _make(self) -> None:
        settings = self._settings
        plan = debezium_json_columns(
            settings.table,
            key_heads=self._heads.key,
            value_heads=self._heads.value,
            told=tuple(one.column for one in self._told.values()),
            told_keys=self._told_keys,
            base=self._plan.shape if self._plan else None,
            definition=self._declared,
            keys=settings.keys,
            zero_date=settings.zero_date,
            time_zone=settings.time_zone,
            options=self._options,
            judges=self._judges,
            logs=settings.mode == "append",
            positions="position" in settings.metadata_columns,
        )
        self._plan = replace(plan, shape=_doubted(plan.shape, self._told_later))


def _doubted(shape: TableShape, later: Container[str]) -> TableShape:
    """The shape; a column that came later, in a row without a schema, may have come instead of any other."""
    columns = (
        replace(c, instead_of=frozenset(shape.by_name) - {c.name.lower()}) if c.name.lower() in later else c
        for c in shape.columns
    )
    return replace(shape, columns=tuple(columns))


def open_decoding(
    around: Surroundings, topic: str, table: TableId, *, session: SparkSession
) -> DebeziumJsonDecoding:
    """The decoding of one topic's table.

    Raises:
        ConfigError: its definition is not of this table.
    """
    return DebeziumJsonDecoding(around, topic, table, session=session)
