"""Builds decode plans of debezium-avro tables from the schemas in the registry.

The records are Debezium's (3.5.0.Final, with Confluent's or Apicurio's converters) or TiCDC's (b813e76). Key
and value each consist of a Confluent header and an Avro record. Two kinds of records are bad records here:
rows that the transform ExtractNewRecordState has flattened, and documents of MongoDB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import DecodedBatch
from tidesink.codecs.debezium.codec import DebeziumAvroCodec
from tidesink.codecs.debezium.connect_schema import ConnectSchema, connect_schema_of_avro
from tidesink.codecs.debezium.envelope import TICDC, has_exact_names
from tidesink.codecs.debezium.remarks import column_remarks
from tidesink.codecs.options import DebeziumModes, DebeziumOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError, DecodeError, SchemaMismatchError
from tidesink.events import Column, TableId, TableSchema
from tidesink.sinks.decode.debezium_changes import (
    NO_DATABASE,
    DatabaseFacts,
    DebeziumDecoder,
    KeyFacts,
    needs_old_keys,
    without_headers,
)
from tidesink.sinks.decode.plans import (
    DEFAULT_SETTINGS,
    DecodePlan,
    KnownSchemas,
    PlanSettings,
    RegisteredSchemas,
    SubjectSchemas,
    folded_keys,
    in_order,
    named_faults,
    named_unplanned,
    schema_id_of,
    schema_ids,
)
from tidesink.sinks.decode.records import Flags, Unplanned
from tidesink.sinks.decode.target_rows import DroppedById, TargetRows
from tidesink.typemap.target_schema import (
    IDENTITIES,
    check_spelling,
    merged_in_order,
    needed_definition,
    shape_of,
    unread_columns,
)

Kind = Literal["envelope", "watermark", "message", "ddl"]

_DEFAULT_MODES: Final = DebeziumModes()
_SOURCE: Final = "source"
_COMMIT_TS: Final = "commit_ts"
_SOURCE_NAME: Final = re.compile(r"io\.debezium\.connector\.([a-z0-9]+)\.Source", re.ASCII)
_FLATTENED: Final = (
    "The transform ExtractNewRecordState flattened these records, and a worker cannot read flattened "
    "records. Remove the transform from the connector, or decode the topic with tidesink's Python codec."
)
_DOCUMENTS: Final = (
    "The records are MongoDB documents, which a worker cannot read. Use tidesink's Python codec."
)


@dataclass(frozen=True)
class DebeziumAvroDecoder(DebeziumDecoder):
    """Decodes the debezium-avro records of one table.

    Attributes:
        uses_headers: True if record headers are needed: some records have their schema ids in headers, or the
            header that marks a changed key is needed.
        schemas: The key and value schemas, by registry id.
        control: Registry ids of value schemas whose records change no row, such as watermarks. The keys of
            such records are not read.
        added: Names of columns that exist only in the records' keys.
    """

    schemas: RegisteredSchemas = field(kw_only=True)
    control: frozenset[int] = frozenset()
    added: frozenset[str] = frozenset()

    def key_only(self, key: Collection[str], _schema: TableSchema) -> frozenset[str]:
        return self.added & {*key}

    def unplanned(self, records: pa.RecordBatch) -> Sequence[Unplanned]:
        """Returns the records that cannot be decoded, because their schema id is new or cannot be used.

        The schema ids of null values, and of the keys of records that change no row, are not checked.
        """
        asked = (schema_ids(records.column("value")) >= 0) & ~self._is_control(records)
        candidates = self.schemas.unplanned(records, first="value")
        return tuple(
            named_unplanned(records, (candidate for candidate in candidates if asked[candidate.record]))
        )

    def schema_id(self, part: bytes | None) -> int | None:
        """Returns the schema id in the Confluent header of a key or a value."""
        return schema_id_of(part)

    def decode_batch(self, records: pa.RecordBatch) -> DecodedBatch:
        """Returns the events of the records, and the records that cannot be decoded."""
        batch = super().decode_batch(self._usable(records))
        return replace(batch, faults=tuple(named_faults(records, batch.faults, self._codec.name)))

    def decode_new_rows(self, records: pa.RecordBatch, keys: Sequence[str]) -> DecodedBatch:
        return super().decode_new_rows(self._usable(records), keys)

    def _is_control(self, records: pa.RecordBatch) -> Flags:
        return np.isin(schema_ids(records.column("value")), list(self.control))

    def _usable(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the records without unneeded headers. Records that change no row get null as their key."""
        records, control = without_headers(records), self._is_control(records)
        if not control.any():
            return records
        key = records.column("key")
        nulled = pc.if_else(pa.array(control), pa.scalar(None, key.type), key)
        return records.set_column(records.schema.get_field_index("key"), "key", nulled)

    @cached_property
    def _codec(self) -> DebeziumAvroCodec:
        definitions = TableDefinitions([self.definition] if self.definition else [])
        registry = KnownSchemas(self.schemas.texts)
        return DebeziumAvroCodec(registry=registry, options=self.options, definitions=definitions)


# Schemas


class ValueSchema(NamedTuple):
    """The facts that the schema of a topic's values contains.

    Attributes:
        kind: The kind of the records with this schema. An envelope is a change of a row.
        row: Schema of the row in an envelope, before and after the change; None for other kinds.
        is_ticdc: True if TiCDC wrote the records.
        connector: Name of the connector, from the source block's name
            (``io.debezium.connector.postgresql.Source``); empty if not known.
    """

    kind: Kind
    row: ConnectSchema | None = None
    is_ticdc: bool = False
    connector: str = ""


def read_value_schema(text: str) -> ValueSchema:
    """Parse the schema of a topic's values: changes of rows (envelopes), or records that change no row.

    Raises:
        SchemaMismatchError: A worker cannot read records with this schema. The message has the reason.
    """
    schema = _parsed(text)
    names = {member.name for member in schema.fields}
    if names >= {"ddl", _SOURCE}:
        return ValueSchema("ddl")
    if not names >= {"op", _SOURCE}:
        if names <= {"ts_ms"} or {"status", "id"} <= names or {"id", "aggregate_type", "type"} <= names:
            return ValueSchema("message")
        raise SchemaMismatchError(_FLATTENED)
    after, source = schema.field("after"), schema.field(_SOURCE)
    # Only TiCDC's source block has a commit_ts.
    is_ticdc = source is not None and any(member.wire == _COMMIT_TS for member in source.fields)
    if "after" not in names:
        return ValueSchema("watermark" if is_ticdc else "message", is_ticdc=is_ticdc)
    if after is None or source is None:
        raise SchemaMismatchError(
            "The envelope's schema has no after field or no source field. Check that "
            "Debezium writes this topic."
        )
    if after.type != "struct":
        raise SchemaMismatchError(_DOCUMENTS)
    named = _SOURCE_NAME.fullmatch(source.name or "")
    return ValueSchema("envelope", after, is_ticdc, TICDC if is_ticdc else named[1] if named else "")


def names_no_row(text: str) -> bool:
    """Returns True if records with this schema change no row.

    Such records are messages, watermarks and DDL. Their keys have a schema without fields.
    """
    try:
        if not json.loads(text).get("fields"):
            return True
        return read_value_schema(text).kind != "envelope"
    except (ValueError, AttributeError, SchemaMismatchError):
        return False


def _parsed(text: str) -> ConnectSchema:
    try:
        avro: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaMismatchError(
            "The writer's schema is not Avro. Check that Debezium writes this topic. The error: "
            f"{error!s:.200}"
        ) from error
    schema = connect_schema_of_avro(avro)
    if schema.type != "struct":
        raise SchemaMismatchError(
            "The writer's schema is not an Avro record. Check that Debezium writes this topic."
        )
    return schema


# Plans


def debezium_avro_plan(
    table: TableId,
    schemas: SubjectSchemas,
    settings: PlanSettings = DEFAULT_SETTINGS,
    *,
    definition: TableSchema | None = None,
    modes: DebeziumModes = _DEFAULT_MODES,
    database: DatabaseFacts = NO_DATABASE,
) -> DecodePlan:
    """Build the decode plan of a table from its writer schemas (the schemas with which records were written).

    Pass every known schema of the topic's subjects. If rows were written with a schema that lacks a column,
    the column gets its default if only later schemas have it. It gets null if an earlier schema had it.

    Args:
        table: The table.
        schemas: The known schemas of the topic's subjects.
        settings: The settings of the plan.
        definition: Column types from the config, which replace the types in the schemas.
        modes: The connector's modes for values, such as ``decimal.handling.mode``.
        database: What the source database shows about the table. Its columns are not used.

    Raises:
        ConfigError: The table has no key, or ``settings.keys`` has a column that the table does not have.
        SchemaRefusedError: A column has two types in two schemas, and no type holds the values of both.
    """
    zero_date, time_zone = settings.zero_date, settings.time_zone
    options = DebeziumOptions(debezium=modes, time_zone=time_zone)
    needed = needed_definition(definition, settings.left_out)
    read = _Schemas.of(table, schemas, options=options, definition=needed)
    named = _key_names(table, settings, read.keys)
    used = in_order(schemas.history, read.rows)
    column_lists = [read.rows[schema_id] for schema_id in dict.fromkeys(used)] or [*read.keys.values()]
    connector = TICDC if read.is_ticdc else read.connector or database.connector
    is_exact = bool(used) and has_exact_names(connector)
    shapes = [
        replace(
            shape_of(TableSchema(table, columns), keys=named, zero_date=zero_date, time_zone=time_zone),
            exact_names=is_exact,
        )
        for columns in column_lists
    ]
    if not shapes:
        raise ConfigError(
            f"{table} has no schema of a row in the registry yet, so it cannot be read. Check "
            f"that the connector has sent a row.",
            table=str(table),
        )
    shape = merged_in_order(shapes, settings.base, left_out=settings.left_out)
    shape = replace(shape, exact_names=is_exact)
    for name in settings.keys or ():
        check_spelling("keys", name, shape)
    key_facts = KeyFacts.of(settings.keys, definition, database.identity)
    decoder = DebeziumAvroDecoder(
        table,
        options,
        zero_date,
        needed,
        tells_old_keys=settings.keys is not None or not read.keys or read.is_ticdc,
        schemas=RegisteredSchemas.of(schemas, read.key_refused, read.value_refused),
        control=read.control,
        row_keys=folded_keys(shape),
        is_ticdc=read.is_ticdc,
        key_facts=key_facts,
        added=read.key_only,
        uses_headers=needs_old_keys(read.rows.values(), read.connector),
    )
    names = {number: [column.name for column in columns] for number, columns in read.rows.items()}
    newest = names[used[-1]] if used else shape.by_name
    dropped = frozenset(shape.by_name) - {shape.fold(name) for name in newest}
    remarks = column_remarks(
        read.rows[used[-1]] if used else (),
        connector=read.connector,
        keys=shape.keys,
        is_confirmed=key_facts.confirm({*shape.keys} - read.key_only),
        gone=[
            shape_column.name for shape_column in shape.columns if shape.fold(shape_column.name) in dropped
        ],
    )
    return DecodePlan(
        TargetRows(
            shape,
            DroppedById.of(names, used, shape.fold, schemas.first_rows),
            unread=unread_columns(shape, settings.left_out),
        ),
        decoder,
        keeps_values=True,
        gone=dropped,
        logs=settings.logs,
        warnings=tuple(remarks),
    )


@dataclass(frozen=True)
class _Schemas:
    """The facts from all key and value schemas of a topic.

    Attributes:
        keys: Columns of each key schema, by registry id.
        rows: Columns of each value schema whose records are rows, by registry id.
        key_refused: Reason for each key schema that cannot be used, by registry id.
        value_refused: Reason for each value schema that cannot be used, by registry id.
        control: Registry ids of value schemas whose records change no row.
        is_ticdc: True if TiCDC wrote the records.
        connector: Name of the connector; empty if not known.
        key_only: Names of columns that exist only in the records' keys.
    """

    keys: dict[int, tuple[Column, ...]]
    rows: dict[int, tuple[Column, ...]]
    key_refused: dict[int, str]
    value_refused: dict[int, str]
    control: frozenset[int]
    is_ticdc: bool
    connector: str
    key_only: frozenset[str]

    @classmethod
    def of(
        cls,
        table: TableId,
        schemas: SubjectSchemas,
        *,
        options: DebeziumOptions,
        definition: TableSchema | None,
    ) -> _Schemas:
        definitions = TableDefinitions([definition] if definition else [])
        codec = DebeziumAvroCodec(registry=KnownSchemas({}), options=options, definitions=definitions)
        values, keys, rows = {}, {}, {}
        key_refused: dict[int, str] = {}
        value_refused: dict[int, str] = {}
        for schema_id, text in sorted(schemas.values.items()):
            try:
                value_schema = values[schema_id] = read_value_schema(text)
                if value_schema.row is not None:
                    rows[schema_id] = codec.columns_of(
                        value_schema.row, table, is_ticdc=value_schema.is_ticdc
                    )
            except DecodeError as error:
                value_refused[schema_id] = error.message
        # A key's schema does not show who wrote it.
        is_ticdc = any(values[schema_id].is_ticdc for schema_id in rows)
        for schema_id, text in sorted(schemas.keys.items()):
            try:
                keys[schema_id] = codec.columns_of(_parsed(text), table, is_ticdc=is_ticdc)
            except DecodeError as error:
                key_refused[schema_id] = error.message
        added = _key_only(keys, rows)
        rows = {schema_id: (*columns, *added) for schema_id, columns in rows.items()}
        control = frozenset(
            schema_id for schema_id, value_schema in values.items() if value_schema.row is None
        )
        connector = values[max(rows)].connector if rows else ""
        names = frozenset(column.name for column in added)
        return cls(keys, rows, key_refused, value_refused, control, is_ticdc, connector, names)


def _key_only(
    keys: Mapping[int, Sequence[Column]], rows: Mapping[int, Sequence[Column]]
) -> tuple[Column, ...]:
    """Returns the columns that exist only in the records' keys. The codec adds them to the rows.

    The transform ``ByLogicalTableRouter`` adds such columns to the keys.
    """
    there = {column.name for columns in rows.values() for column in columns}
    key_columns = {one.name: one for _, key in sorted(keys.items()) for one in key if one.name not in there}
    return tuple(key_columns.values())


def _key_names(
    table: TableId, settings: PlanSettings, key_schemas: Mapping[int, Sequence[Column]]
) -> tuple[str, ...]:
    names = settings.known_keys
    for _, columns in sorted(key_schemas.items()):
        names = names or tuple(column.name for column in columns)
    if not (names or settings.logs):
        raise ConfigError(
            f"The records of {table} have no key, so it is unknown which row a change belongs to. "
            "Name its key columns under tables: keys, set message.key.columns at the connector, or set "
            f"mode: append to keep its changes; {IDENTITIES['debezium-avro']}",
            table=str(table),
        )
    return names
