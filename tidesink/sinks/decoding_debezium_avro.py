"""Decoding a debezium-avro table: its writer schemas, by the registry's ids.

Every version of the topic's two subjects is asked for first, so that a column's history is known; an id
that a batch meets beyond them is asked for by itself. Subjects follow TopicNameStrategy, as Confluent's and
Apicurio's converters name them by default, and TiCDC (b813e76).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidesink.change import TableId, TableSchema
from tidesink.codecs.columns_debezium_avro import DebeziumAvroColumns, debezium_avro_columns
from tidesink.codecs.columns_debezium_schema import names_no_row
from tidesink.errors import ConfigError
from tidesink.schema_registry import SubjectPart
from tidesink.sinks.decoding import Missed
from tidesink.sinks.decoding_flat_avro import peeked_ids
from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.ranges import OffsetRange
from tidesink.sinks.surroundings import Surroundings
from tidesink.sinks.writer_schemas import LAG_SECONDS, Ids, WriterSchemas, may_lag
from tidesink.typemap.ddl import TableDefinitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NO_REGISTRY: Final = "debezium-avro needs source.schema-registry: the schemas are there"


class DebeziumAvroDecoding:
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
        self._definition = _declared(self._settings.definition, table)
        self._plan: DebeziumAvroColumns | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Columns whose type at the target is not the nearest one, with the reason."""
        columns = self._plan.shape.columns if self._plan else ()
        return tuple(f"column {column.name}: {column.reason}" for column in columns if column.reason)

    def prepare(self, found: TopicOffsets) -> None:
        """Read the topic's subjects; where they are not there, the ids in its first records."""
        self._schemas.read_subjects()
        if not self._schemas.texts["value"]:
            self._schemas.look_up(peeked_ids(self._around, self._session, found))
        self._make()

    def catch_up(self, _ranges: Sequence[OffsetRange], _found: TopicOffsets) -> None:
        """Nothing: each record names its schemas."""

    def columns(self) -> DebeziumAvroColumns:
        """The plan over every schema known."""
        if self._plan is None:
            raise ConfigError("prepare the table first", table=str(self._settings.table))
        return self._plan

    def apart(self) -> None:
        """A Debezium topic holds one table."""

    def meet_others(self, _missed: Missed) -> None:
        """Never: a row of another table is a bad record."""

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
        self._plan = debezium_avro_columns(
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
        )


def _declared(sql: str | None, table: TableId) -> TableSchema | None:
    """The table as the config defines it.

    Raises:
        ConfigError: the definition cannot be read, or is another table's.
    """
    if sql is None:
        return None
    definitions = TableDefinitions()
    definitions.declare(sql, table.schema)
    found = definitions.get(table)
    if found is None:
        raise ConfigError("the definition under tables is not this table's", table=str(table))
    return found


def subject_of(topic: str, part: SubjectPart) -> str:
    """The subject of a topic's key or value under TopicNameStrategy, the topic's name as it is."""
    return f"{topic}-{part}"


def open_decoding(
    around: Surroundings, topic: str, table: TableId, *, session: SparkSession
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
