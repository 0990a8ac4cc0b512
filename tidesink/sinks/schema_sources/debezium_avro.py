"""Decoding a debezium-avro table (``schema_sources.registered``).

Subjects follow TopicNameStrategy, as Confluent's and Apicurio's converters name them by default, and TiCDC
(b813e76).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.schema_registry import SubjectPart
from tidesink.sinks.batch.decoded_frame import DecodePlan
from tidesink.sinks.plans.debezium_avro import debezium_avro_plan, names_no_row
from tidesink.sinks.schema_sources.base import declared_table
from tidesink.sinks.schema_sources.registered import LAG_SECONDS, RegisteredDecoding, WriterSchemas, may_lag
from tidesink.sinks.worker.context import WorkerContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_NO_REGISTRY: Final = "debezium-avro needs source.schema-registry: the schemas are there"


class DebeziumAvroDecoding(RegisteredDecoding):
    """One table's writer schemas, and the plan they make."""

    def __init__(
        self,
        around: WorkerContext,
        topic: str,
        table: TableId,
        *,
        schemas: WriterSchemas,
        session: SparkSession,
    ) -> None:
        super().__init__(around, topic, table, schemas=schemas, session=session)
        self._definition = declared_table(self._settings.definition, table)

    def _found_subjects(self) -> bool:
        return bool(self._schemas.texts["value"])

    def _planned(self) -> DecodePlan:
        settings = self._settings
        return debezium_avro_plan(
            settings.table,
            key_schemas=self._schemas.texts["key"],
            value_schemas=self._schemas.texts["value"],
            unknown_ids=self._schemas.unknown,
            base=self._plan.shape if self._plan else None,
            definition=self._definition,
            keys=settings.keys,
            zero_date=settings.zero_date,
            time_zone=settings.time_zone,
            modes=self._around.config.source.codec_options().debezium,
            logs=settings.mode == "append",
            positions="position" in settings.metadata_columns,
        )


def subject_of(topic: str, part: SubjectPart) -> str:
    """The subject of a topic's key or value under TopicNameStrategy, the topic's name as it is."""
    return f"{topic}-{part}"


def open_decoding(
    around: WorkerContext, topic: str, table: TableId, *, session: SparkSession
) -> DebeziumAvroDecoding:
    """The decoding of one topic's table.

    Raises:
        ConfigError: the config names no schema registry, or its definition is not of this table.
    """
    if around.registry is None:
        raise ConfigError(_NO_REGISTRY)
    lag = around.retry(table, seconds=LAG_SECONDS, passes=may_lag)
    schemas = WriterSchemas(around.registry, topic, lag=lag, subject_of=subject_of, of_no_table=names_no_row)
    return DebeziumAvroDecoding(around, topic, table, schemas=schemas, session=session)
