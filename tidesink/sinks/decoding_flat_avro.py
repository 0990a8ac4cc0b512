"""Decoding a flat-avro table (``decoding_registered``). TiCDC's subjects follow TopicNameStrategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidesink.codecs.columns_avro_faults import Parts
from tidesink.codecs.columns_flat_avro import FlatAvroColumns, flat_avro_columns
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.schema_registry import SubjectPart
from tidesink.sinks.decoding_registered import RegisteredDecoding
from tidesink.sinks.ranges import OffsetRange
from tidesink.sinks.surroundings import Surroundings
from tidesink.sinks.writer_schemas import LAG_SECONDS, WriterSchemas, may_lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.sinks.batch.decoders import SideSchemas
    from tidesink.sinks.batch.tasks import Fetch, RangeTask

_NO_SUMS: Final = (
    "source.checksum is set, and no schema of this table has a checksum: no row is checked. Set "
    'integrity-check-level = "correctness" in the changefeed (with enable-tidb-extension=true and both '
    "handling modes string), and tidb_enable_row_level_checksum in TiDB"
)


class FlatAvroDecoding(RegisteredDecoding[FlatAvroColumns]):
    """One table's writer schemas, and the plan they make."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Columns whose type at the target is not the nearest one, with the reason; checksums not there."""
        lacking = self._plan is not None and self._plan.lacks_checksums
        return (*super().warnings, _NO_SUMS) if lacking else super().warnings

    def range_task(self, ranges: Sequence[OffsetRange], fetch: Fetch) -> RangeTask | None:
        """Tasks for the ranges; None where checksums are asked for, or ``keys`` override the records'."""
        plan = self.columns()
        if plan.checksum != "off" or plan.logs or not plan.shape.keys or self._settings.keys is not None:
            return None
        from tidesink.sinks.batch.decoders import FlatAvroDecoder
        from tidesink.sinks.batch.target_rows import TargetRows
        from tidesink.sinks.batch.tasks import RangeTask
        from tidesink.sinks.kafka.fetch import FetchRange

        shape = plan.shape
        decoder = FlatAvroDecoder(
            self._table,
            self._side("key", plan.keys),
            self._side("value", plan.values),
            time_zone=shape.time_zone,
            zero_date=shape.zero_date,
        )
        wanted = tuple(FetchRange(*part) for part in ranges if part.records)
        return RangeTask(wanted, fetch, decoder, TargetRows(shape, plan.values.dropped))

    def _side(self, part: SubjectPart, parts: Parts) -> SideSchemas:
        from tidesink.sinks.batch.decoders import SideSchemas

        texts = self._schemas.texts[part]
        usable = {number: text for number, text in texts.items() if number not in parts.refused}
        return SideSchemas(usable, parts.refused, parts.unknown)

    def _found_subjects(self) -> bool:
        return any(self._schemas.texts.values())

    def _planned(self) -> FlatAvroColumns:
        settings = self._settings
        return flat_avro_columns(
            settings.table,
            key_schemas=self._schemas.texts["key"],
            value_schemas=self._schemas.texts["value"],
            unknown_ids=self._schemas.unknown,
            base=self._plan.shape if self._plan else None,
            keys=settings.keys,
            zero_date=settings.zero_date,
            time_zone=settings.time_zone,
            checksum=self._around.config.source.checksum,
            logs=settings.mode == "append",
        )


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
