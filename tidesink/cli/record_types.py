"""Column types of debezium-json records without schemas, for ``plan`` and ``validate``.

The types are found in the same way as by a worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from tidesink.cli.sources import peek
from tidesink.cli.status import store_if_there
from tidesink.codecs.debezium.inference import (
    InferredColumn,
    LoneCodec,
    facts_of,
    first_row,
    inferred_columns,
)
from tidesink.codecs.options import DebeziumOptions
from tidesink.events import ChangeEvent, Column, TableId, TableSchema
from tidesink.sinks.plans.debezium_json import JsonWriter, Writers, first_writer
from tidesink.sinks.schema_sources.record_types import RecordTypes, newest_typed

if TYPE_CHECKING:
    from tidesink.config import Config

# Origin of a table's column types: a definition in the config, the topic's own DDL, the Avro schemas, the
# type names in rows, the schemas in debezium-json records, or the source database (for a table without
# records or schemas). ``nothing``: the config makes all columns text.
TypesFrom = Literal["definition", "ddl", "avro", "rows", "records", "database", "nothing"]
# Number of records to read at each partition's end, the same as in a worker.
_LAST_RECORDS: Final = 100
# Number of records to read at each partition's beginning to find a row.
_FIRST_RECORDS: Final = 20


class TypedRows(NamedTuple):
    """The columns of a topic's newest row, and the origin of their types. ``untyped`` columns become text."""

    columns: tuple[Column, ...]
    types_from: TypesFrom
    untyped: tuple[str, ...] = ()


class MetRecords:
    """Collects the column types of the rows of one topic. ``codec`` decodes the rows."""

    def __init__(self, options: DebeziumOptions) -> None:
        self.codec = LoneCodec(options, None)
        self._newest: tuple[InferredColumn, ...] = ()
        # By the identity of an event's schema object, which does not change.
        self._writers: dict[int, tuple[TableSchema, JsonWriter]] = {}

    def take(self, event: ChangeEvent, schema: TableSchema) -> None:
        """Add the types of a row that ``codec`` has decoded. ``schema``: the event's schema."""
        self._newest = inferred_columns(schema)
        if id(schema) not in self._writers:
            is_ticdc = event.commit_ts is not None
            bare = facts_of(schema).bare
            writer = JsonWriter(self._newest, tuple(event.key or ()), bare, is_ticdc=is_ticdc)
            self._writers[id(schema)] = schema, writer

    def typed(self, config: Config, topic: str, table: TableId) -> TypedRows:
        """Return the columns of the newest row, with the types that a worker would use.

        Raises:
            ConfigError: the type of a column is unknown, so that the table would wait in a worker; or the
                source database rejects the user.
            SourceUnavailableError: the source database or the broker does not answer.
            StateStoreError: the state store does not answer.
        """
        writers = Writers().with_new(writer for _, writer in self._writers.values())
        types, writers = settled_types(config, topic, table, writers)
        defined = types.schema.by_name if types.schema is not None else {}
        written = {
            inferred.column.name: inferred.column
            for writer in writers.with_schema
            for inferred in writer.columns
        }
        columns = (
            defined.get(inferred.column.name)
            or (written.get(inferred.column.name, inferred.column) if inferred.guessed else inferred.column)
            for inferred in self._newest
        )
        untyped = types.untyped(writers)
        types_from: TypesFrom = "records" if types.stored is None else "database"
        if untyped and not (writers.with_schema or types.schema):
            types_from = "nothing"
        return TypedRows(tuple(columns), types_from, untyped)


def settled_types(
    config: Config, topic: str, table: TableId, writers: Writers
) -> tuple[RecordTypes, Writers]:
    """Return the types of a table's columns, and the writer schemas that the types came from.

    Raises:
        ConfigError: the type of a column is unknown, so that the table would wait in a worker; or the
            source database rejects the user.
        SourceUnavailableError: the source database or the broker does not answer.
        StateStoreError: the state store does not answer.
    """
    with store_if_there(config) as store:
        declared = config.definitions().get(table)
        types = RecordTypes.of(config, topic, table, declared, store, keeps=False)
        return types, types.settled(writers, lambda: _typed_at_ends(config, topic))


def _typed_at_ends(config: Config, topic: str) -> Iterator[JsonWriter]:
    properties, options = config.source.confluent_properties(), config.source.options_of(DebeziumOptions)
    messages = [*peek(properties, topic, most=_LAST_RECORDS, ends=True)]
    for number in sorted({message.partition for message in messages}):
        writer = newest_typed([record for record in messages if record.partition == number], options)
        if writer is not None:
            yield writer


def check_first_row(config: Config, topic: str) -> None:
    """Check that the column types of a topic's first row are known.

    Does nothing if the first records of the topic contain no row.

    Raises:
        ConfigError: the type of a column is unknown, so that the table would wait in a worker; or the
            source database rejects the user.
        SourceUnavailableError: the source database or the broker does not answer.
        StateStoreError: the state store does not answer.
    """
    properties, options = config.source.confluent_properties(), config.source.options_of(DebeziumOptions)
    row = first_row(peek(properties, topic, most=_FIRST_RECORDS), options)
    if row is not None:
        settled_types(config, topic, row.table, Writers().with_new([first_writer(row)]))
