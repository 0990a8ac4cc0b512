"""Decoding a flat-avro table: its writer schemas, by the registry's ids.

Every version of the topic's two subjects is asked for first, so that a column's history is known; an id
that a batch meets beyond them is asked for by itself. TiCDC's subjects follow TopicNameStrategy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from tidesink.change import TableId
from tidesink.codecs.columns_flat_avro import FlatAvroColumns, flat_avro_columns
from tidesink.errors import ConfigError
from tidesink.schema_registry import SubjectPart
from tidesink.sinks.decoding import Missed
from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.ranges import OffsetRange, plan_ranges
from tidesink.sinks.records_spark import schema_heads
from tidesink.sinks.source import translated_read_errors
from tidesink.sinks.surroundings import Surroundings
from tidesink.sinks.writer_schemas import LAG_SECONDS, PARTS, Ids, WriterSchemas, may_lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Where the registry has no subject for the topic, so many records are looked at for their schema ids.
_PEEKED_RECORDS: Final = 10_000
_NO_SUMS: Final = (
    "source.checksum is set, and no schema of this table has a checksum: no row is checked. Set "
    'integrity-check-level = "correctness" in the changefeed (with enable-tidb-extension=true and both '
    "handling modes string), and tidb_enable_row_level_checksum in TiDB"
)


class FlatAvroDecoding:
    """One table's writer schemas, and the plan they make."""

    def __init__(
        self,
        around: Surroundings,
        topic: str,
        table: TableId,
        *,
        schemas: WriterSchemas,
        session: SparkSession,
    ) -> None:
        self._around = around
        self._topic = topic
        self._settings = around.config.table_config(table)
        self._session = session
        self._schemas = schemas
        self._plan: FlatAvroColumns | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Columns whose type at the target is not the nearest one, with the reason; checksums not there."""
        if self._plan is None:
            return ()
        columns = self._plan.shape.columns
        told = tuple(f"column {column.name}: {column.reason}" for column in columns if column.reason)
        return (*told, _NO_SUMS) if self._plan.lacks_checksums else told

    def prepare(self, found: TopicOffsets) -> None:
        """Read the topic's subjects; where there are none, the ids in its first records."""
        self._schemas.read_subjects()
        if not any(self._schemas.texts.values()):
            self._schemas.look_up(peeked_ids(self._around, self._session, found))
        self._make()

    def catch_up(self, _ranges: Sequence[OffsetRange], _found: TopicOffsets) -> None:
        """Nothing: each record names its schemas."""

    def columns(self) -> FlatAvroColumns:
        """The plan over every schema known."""
        if self._plan is None:
            raise ConfigError("prepare the table first", table=str(self._settings.table))
        return self._plan

    def apart(self) -> None:
        """A flat-avro topic holds one table."""

    def meet_others(self, _missed: Missed) -> None:
        """Never: there are no others."""

    def learn(self, missed: Missed) -> bool:
        """Look up the ids that the batch's plan did not know, or ask again for those called bad."""
        summary = missed.summary
        ids: Ids = {"key": summary.unplanned_key_ids, "value": summary.unplanned_value_ids}
        if self._schemas.lacks(ids):
            self._schemas.look_up(ids)
        elif not (summary.bad and self._schemas.look_again()):
            return False
        self._make()
        return True

    def take_ddl(self, _reduced: DataFrame, _missed: Missed) -> bool:
        """Nothing: types come with the writer schemas."""
        return False

    def _make(self) -> None:
        settings = self._settings
        self._plan = flat_avro_columns(
            settings.table,
            key_schemas=self._schemas.texts["key"],
            value_schemas=self._schemas.texts["value"],
            unknown_ids=self._schemas.unknown,
            base=self._plan.shape if self._plan else None,
            keys=settings.keys,
            zero_date=settings.zero_date,
            time_zone=settings.time_zone,
            checksum=self._around.config.source.checksum,
        )


def peeked_ids(
    around: Surroundings, session: SparkSession, found: TopicOffsets
) -> dict[SubjectPart, tuple[int, ...]]:
    """Schema ids in a topic's first records (Confluent framing: 00, then 4 bytes, big-endian)."""
    everything = [OffsetRange(found.topic, n, *at) for n, at in found.partitions.items()]
    ranges = plan_ranges(everything, max_records=_PEEKED_RECORDS)
    if not any(part.records for part in ranges):
        return {}
    raw = around.source.frame(session, ranges)
    with translated_read_errors(found.topic):
        rows = schema_heads(raw)
    return {part: _ids(row[part] for row in rows) for part in PARTS}


def _ids(heads: Iterable[str | None]) -> tuple[int, ...]:
    found = {head for head in heads if head and len(head) == 10 and head.startswith("00")}
    return tuple(sorted(int(head[2:], 16) for head in found))


def open_decoding(
    around: Surroundings, topic: str, table: TableId, *, session: SparkSession
) -> FlatAvroDecoding:
    """The decoding of one topic's table.

    Raises:
        ConfigError: the config names no schema registry.
    """
    if around.registry is None:
        raise ConfigError("flat-avro needs source.schema-registry: the schemas are there")
    lag = around.retry(table, seconds=LAG_SECONDS, passes=may_lag)
    schemas = WriterSchemas(around.registry, topic, lag=lag)
    return FlatAvroDecoding(around, topic, table, schemas=schemas, session=session)
