"""Decoding a flat-avro table (``schema_sources.registered``). TiCDC's subjects follow TopicNameStrategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.batch.decoded_frame import DecodePlan
from tidesink.sinks.plans.flat_avro import flat_avro_plan, lacks_checksums
from tidesink.sinks.schema_sources.registered import LAG_SECONDS, RegisteredDecoding, WriterSchemas, may_lag
from tidesink.sinks.worker.context import WorkerContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_NO_SUMS: Final = (
    "source.checksum is set, and no schema of this table has a checksum: no row is checked. Set "
    'integrity-check-level = "correctness" in the changefeed (with enable-tidb-extension=true and both '
    "handling modes string), and tidb_enable_row_level_checksum in TiDB"
)


class FlatAvroDecoding(RegisteredDecoding):
    """One table's writer schemas, and the plan they make."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Columns whose type at the target is not the nearest one, with the reason; checksums not there."""
        asked = self._around.config.source.checksum != "off"
        lacking = asked and lacks_checksums(self._schemas.texts["value"].values())
        return (*super().warnings, _NO_SUMS) if lacking else super().warnings

    def _found_subjects(self) -> bool:
        return any(self._schemas.texts.values())

    def _planned(self) -> DecodePlan:
        settings = self._settings
        return flat_avro_plan(
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
    around: WorkerContext, topic: str, table: TableId, *, session: SparkSession
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
