"""Encodes rows, DDL and watermarks in TiCDC's ``debezium`` and ``debezium-avro`` protocols.

Written from TiCDC's new architecture (b813e76), and compared with its own schemas and bytes, including the
names and the registration of Avro records. In Avro, TiCDC sends DDL and watermarks only if both
``enable-tidb-extension`` and ``avro-enable-watermark`` are set. It registers their schemas under the records'
own names, because it does not know their topic.
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar, Final
from zoneinfo import ZoneInfo

import fastavro

from tidesink.codecs.base import ByIdentity, EncodedRecord, header
from tidesink.codecs.compression import compressed
from tidesink.codecs.debezium.encode_values import (
    DDL_KEY,
    Members,
    avro_source_schema,
    column_schema,
    ddl_payload,
    ddl_value_schema,
    dumped,
    envelope_schema,
    key_schema,
    schema_field,
    source_block,
    source_schema,
    watermark_name,
    watermark_payload,
    wire_value,
)
from tidesink.codecs.debezium.formats import bare_schema
from tidesink.codecs.flat_avro.payloads import to_wire
from tidesink.codecs.flat_avro.schema import check_unique_names
from tidesink.codecs.options import DebeziumOptions
from tidesink.errors import EncodeError
from tidesink.events import (
    ChangeEvent,
    Column,
    ColumnType,
    DdlEvent,
    Op,
    Row,
    TableId,
    TableSchema,
    Value,
    WatermarkEvent,
)
from tidesink.schema_registry.base import SchemaRegistry
from tidesink.schema_registry.naming import sanitize_name
from tidesink.typemap.table import mysql_type_word, row_of

_OPS: Final = {Op.INSERT: "c", Op.UPSERT: "c", Op.UPDATE: "u", Op.DELETE: "d"}
_PRIMITIVES: Final = {"int16": "int", "int32": "int", "int64": "long"}
_INT64_END: Final = 1 << 63
_FLOAT32: Final = struct.Struct("<f")
_MOST_TABLES: Final = 256
# The payload of a control message's key or value, and its Connect schema.
Half = tuple[Members, Members]


class TicdcWriter(ABC):
    """Base class of the writers of TiCDC's two protocols, JSON and Avro.

    ``clock`` returns the milliseconds since 1970 that are written as ``ts_ms``.
    """

    protocol: ClassVar[str]

    def __init__(self, options: DebeziumOptions, clock: Callable[[], int]) -> None:
        self._options = options
        self._clock = clock
        self._zone = ZoneInfo(options.time_zone)

    def row(self, event: ChangeEvent, topic: str) -> EncodedRecord:
        """Returns the record of a row change.

        Raises:
            EncodeError: the event has no schema or no commit_ts, or a value does not fit its column.
            RegistryError: the record's schemas cannot be registered.
        """
        schema = event.schema
        if event.op not in _OPS:
            raise EncodeError(f"TiCDC's {self.protocol} protocol has no message for a {event.op.value}.")
        if schema is None or event.commit_ts is None:
            missing = "column types" if schema is None else "commit_ts"
            raise EncodeError(f"The event has no {missing}, but TiCDC's {self.protocol} protocol needs it.")
        return self._row(event, schema, event.commit_ts, topic)

    def ddl(self, event: DdlEvent) -> EncodedRecord | None:
        """Returns the record of a DDL event; None if the options switch DDL events off.

        The event must have been decoded from one of TiCDC's debezium protocols.

        Raises:
            EncodeError: the event has no ``tableChanges`` or no commit_ts, or comes from a Debezium
                connector.
            RegistryError: the record's schemas cannot be registered.
        """
        if not self._sends_ddl:
            return None
        payload = ddl_payload(event, self._options, self._clock())
        schema = ddl_value_schema(self._control_source(event.table.schema))
        return self._control(({"databaseName": event.table.schema}, DDL_KEY), (payload, schema))

    def watermark(self, event: WatermarkEvent) -> EncodedRecord | None:
        """Returns the record of a watermark; None if the options switch watermarks off.

        Raises:
            RegistryError: the record's schemas cannot be registered.
        """
        if not self._sends_watermarks:
            return None
        name = watermark_name(self._options)
        payload = watermark_payload(event, self._options, self._clock())
        schema = envelope_schema(name, self._control_source("watermark"), [])
        return self._control(({}, key_schema(name, [])), (payload, schema))

    @property
    @abstractmethod
    def _sends_ddl(self) -> bool: ...

    @property
    @abstractmethod
    def _sends_watermarks(self) -> bool: ...

    @abstractmethod
    def _row(self, event: ChangeEvent, schema: TableSchema, commit_ts: int, topic: str) -> EncodedRecord: ...

    @abstractmethod
    def _control_source(self, origin: str) -> Members:
        """Returns the Connect schema of the ``source`` of a DDL or watermark record.

        ``origin`` is the database of the DDL, or ``watermark``.
        """

    @abstractmethod
    def _control(self, key: Half, value: Half) -> EncodedRecord: ...


class AvroWriter(TicdcWriter):
    """Writes records of TiCDC's ``debezium-avro``, and registers their schemas under the topic's subjects."""

    protocol = "debezium-avro"

    def __init__(self, registry: SchemaRegistry, options: DebeziumOptions, clock: Callable[[], int]) -> None:
        super().__init__(options, clock)
        self._registry = registry
        self._parts = ByIdentity(self._new_schemas, _MOST_TABLES)
        self._control_parts: dict[str, tuple[AvroPart, AvroPart]] = {}

    @property
    def _sends_ddl(self) -> bool:
        return self._options.enable_tidb_extension and self._options.avro_enable_watermark

    _sends_watermarks = _sends_ddl

    def _row(self, event: ChangeEvent, schema: TableSchema, commit_ts: int, topic: str) -> EncodedRecord:
        key, value = self._schemas(schema, event.table, topic)
        row = event.after or event.before or {}
        keys = {sanitize_name(column.name): self._value(column, row) for column in schema.handle_columns}
        return EncodedRecord(key.written(keys), value.written(self._envelope(event, schema, commit_ts)))

    def _envelope(self, event: ChangeEvent, schema: TableSchema, commit_ts: int) -> Members:
        old = event.op is Op.DELETE or (event.op is Op.UPDATE and self._options.debezium_output_old_value)
        return {
            "before": self._image(event.before, schema) if old else None,
            "after": None if event.op is Op.DELETE else self._image(event.after, schema),
            "source": self._source(event.table, commit_ts),
            "op": _OPS[event.op],
            "ts_ms": self._clock(),
        }

    def _source(self, table: TableId, commit_ts: int) -> Members:
        return {**source_block(self._options, table, commit_ts), "snapshot": None, "thread": None}

    def _image(self, row: Row | None, schema: TableSchema) -> Members | None:
        if row is None:
            return None
        return {sanitize_name(column.name): self._value(column, row) for column in schema.columns}

    def _value(self, column: Column, row: Row) -> Any:
        if column.name not in row:
            raise EncodeError(
                "The event's row has no value for this column, but the Avro record needs a value for every "
                "column. Add the column to the event's row.",
                column=column.name,
            )
        return avro_value(column, row[column.name], self._options, self._zone)

    def _schemas(self, schema: TableSchema, table: TableId, topic: str) -> tuple[AvroPart, AvroPart]:
        return self._parts.get(schema, table, topic)

    def _new_schemas(self, schema: TableSchema, table: TableId, topic: str) -> tuple[AvroPart, AvroPart]:
        if any(column.virtual for column in schema.columns):
            raise EncodeError(
                "TiCDC's debezium-avro protocol cannot write tables with virtual columns. Use another "
                "protocol for this table, such as debezium-json."
            )
        records = _Records(table, schema, self._options)
        key, value = records.key(), records.envelope()  # before anything is registered
        # Dots are kept here, unlike in flat-avro's subjects.
        written = registered(self._registry, f"{topic}-key", key)
        return written, registered(self._registry, f"{topic}-value", value)

    def _control_source(self, origin: str) -> Members:
        return avro_source_schema(f"{sanitize_name(self._options.cluster_id)}.{sanitize_name(origin)}")

    def _control(self, key: Half, value: Half) -> EncodedRecord:
        parts = self._control_schemas(key[1], value[1])
        source = value[0]["source"]
        # Reproduces a fault of the producer: a number too large for a long becomes the smallest long.
        commit_ts = source["commit_ts"] if source["commit_ts"] < _INT64_END else -_INT64_END
        held = {**value[0], "source": {**source, "commit_ts": commit_ts}}
        return EncodedRecord(parts[0].written(key[0]), parts[1].written(held))

    def _control_schemas(self, *schemas: Members) -> tuple[AvroPart, AvroPart]:
        name = schemas[1]["fields"][0]["name"]  # the source's name, which contains the database
        parts = self._control_parts.get(name)
        if parts is None:
            records = map(avro_of_connect, schemas)
            key, value = (registered(self._registry, record["connect.name"], record) for record in records)
            # A cache of one entry is enough: DDL is rare.
            self._control_parts = {name: (key, value)}
            parts = key, value
        return parts


@dataclass(frozen=True)
class _Records:
    """Creates the Avro schemas of one table's records, for the key and for the value.

    Both methods raise EncodeError if two columns would have the same Avro field name.
    """

    table: TableId
    schema: TableSchema
    options: DebeziumOptions

    def key(self) -> Members:
        return self._record("Key", self._columns(self.schema.handle_columns))

    def envelope(self) -> Members:
        row = self._record("", self._columns(self.schema.columns))
        fields = [
            optional_avro("before", row),
            optional_avro("after", f"{self._namespace}.{sanitize_name(self.table.name)}"),
            avro_field(avro_source_schema(self._namespace)),
            plain_avro("op", "string"),
            plain_avro("ts_ms", "long"),
        ]
        return self._record("Envelope", fields, version=1)

    @property
    def _namespace(self) -> str:
        return f"{sanitize_name(self.options.cluster_id)}.{sanitize_name(self.table.schema)}"

    def _record(self, suffix: str, fields: list[Members], *, version: int | None = None) -> Members:
        name = sanitize_name(self.table.name) + suffix
        return named_record(self._namespace, name, fields, version=version)

    def _columns(self, columns: Sequence[Column]) -> list[Members]:
        fields = [self._column(column) for column in columns]
        check_unique_names(fields, columns)
        return fields

    def _column(self, column: Column) -> Members:
        field = optional_avro(column.name, avro_type(column, self.options))
        if self.options.enable_tidb_extension:
            field["tidb_type"] = mysql_type_word(column.type)
        return field


def avro_type(column: Column, options: DebeziumOptions) -> Any:
    """Returns the Avro type of a column's values other than null; the caller adds the union with null."""
    row = row_of(column.type)
    if row.reader == "decimal":
        return _decimal_type(column.type) if options.avro_decimal_handling_mode == "precise" else "string"
    if row.reader == "binary":
        return "bytes"
    if row.reader == "unsigned64":
        return options.avro_bigint_unsigned_handling_mode
    return avro_of_connect(column_schema(column))


def _decimal_type(column_type: ColumnType) -> Members:
    precision, scale = column_type.precision or 10, column_type.scale or 0
    return {
        "connect.name": "org.apache.kafka.connect.data.Decimal",
        "connect.parameters": {"precision": str(precision), "scale": str(scale)},
        "logicalType": "decimal",
        "precision": precision,
        "scale": scale,
        "type": "bytes",
    }


def avro_value(column: Column, value: Value, options: DebeziumOptions, zone: ZoneInfo) -> Any:
    """Converts a column's value to the Python value that fastavro writes.

    Raises:
        EncodeError: the value does not fit its column's type; context has the column.
    """
    reader = row_of(column.type).reader
    if value is None or (reader == "binary" and isinstance(value, bytes)):
        return value
    if reader == "bit" and isinstance(value, int) and (column.type.length or 1) > 1:
        wire_value(column, value, zone)  # refuses a value that is wider than the column
        return value.to_bytes(((column.type.length or 1) + 7) // 8, "little")
    if reader in ("float32", "float64"):
        # A whole number may be passed as an int.
        number = value if isinstance(value, float) else float(wire_value(column, value, zone).text)
        return _single(column, number) if reader == "float32" else number
    if reader == "decimal" or (
        reader == "unsigned64" and options.avro_bigint_unsigned_handling_mode == "string"
    ):
        return _by_mode(column, value, options)
    if reader == "unsigned64" and isinstance(value, int) and value >= _INT64_END:
        raise EncodeError(
            f"{value} does not fit into an Avro long. Set avro-bigint-unsigned-handling-mode to string.",
            column=column.name,
        )
    return wire_value(column, value, zone)


def _single(column: Column, value: float) -> float:
    """Rounds the value to the nearest 32-bit float.

    Like TiCDC, it does so even if the Avro field is a double.

    Raises:
        EncodeError: the value is too large for a 32-bit float.
    """
    try:
        return float(_FLOAT32.unpack(_FLOAT32.pack(value))[0])
    except OverflowError as error:
        raise EncodeError(f"{value} is not a valid {column.type.name}.", column=column.name) from error


def _by_mode(column: Column, value: Value, options: DebeziumOptions) -> Any:
    precise = options.avro_decimal_handling_mode == "precise"
    kind = "bytes" if row_of(column.type).reader == "decimal" and precise else "string"
    write = to_wire(column.type, kind)
    try:
        return value if write is None else write(value)
    except EncodeError as error:
        raise error.with_context(column=column.name) from error


_NO_RECORD: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


@dataclass(frozen=True)
class AvroPart:
    """A registered Avro schema, with which records are encoded.

    ``head`` is the Confluent header with the schema's id, with which each encoded record begins. ``bare`` is
    the schema in fastavro's parsed form.
    """

    head: bytes
    bare: Any

    def written(self, record: Members) -> bytes:
        """Encodes a record in Avro and returns its bytes, with the header first.

        Raises:
            EncodeError: the record does not match the schema.
        """
        stream = BytesIO()
        try:
            fastavro.schemaless_writer(stream, self.bare, record)
        except _NO_RECORD as error:
            raise EncodeError(
                f"The event's values do not match the Avro schema of its table: {error!s:.200}."
            ) from error
        return self.head + stream.getvalue()


def registered(registry: SchemaRegistry, subject: str, record: Members) -> AvroPart:
    """Registers the Avro schema ``record`` under a subject, and returns an encoder of its records.

    Raises:
        RegistryError: the schema cannot be registered.
    """
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return AvroPart(header(registry.register(subject, text)), bare_schema(record))


def plain_avro(name: str, kind: Any) -> Members:
    """Returns an Avro field that is never null."""
    return {"connect.field": name, "name": sanitize_name(name), "type": kind}


def optional_avro(name: str, kind: Any) -> Members:
    """Returns an Avro field that may be null."""
    return {"connect.field": name, "default": None, "name": sanitize_name(name), "type": ["null", kind]}


def named_record(namespace: str, name: str, fields: list[Members], *, version: int | None = None) -> Members:
    """Returns the Avro schema of a record; ``version`` is Connect's version of the schema, or None."""
    kind: Members = {"name": name, "namespace": namespace, "type": "record"}
    if version is not None:
        kind["connect.version"] = version
    return {"connect.name": f"{namespace}.{name}", "fields": fields, **kind}


def avro_of_connect(schema: Members) -> Any:
    """Converts a Connect schema to an Avro schema that does not allow null.

    ``avro_field`` adds the union with null for an optional field. Fields inside a struct may be optional.
    """
    return _SHAPES.get(schema["type"], _primitive)(schema)


def _primitive(schema: Members) -> Any:
    kind = schema["type"]
    extra: Members = {"connect.type": kind} if kind == "int16" else {}
    named = ("name", "version", "parameters")
    extra |= {f"connect.{member}": schema[member] for member in named if member in schema}
    avro = _PRIMITIVES.get(kind, kind)
    return {**extra, "type": avro} if extra else avro


def _array(schema: Members) -> Any:
    return {"items": avro_of_connect(schema["items"]), "type": "array"}


def _struct(schema: Members) -> Any:
    namespace, _, name = schema["name"].rpartition(".")
    fields = [avro_field(field) for field in schema["fields"]]
    return named_record(namespace, name, fields, version=schema.get("version"))


_SHAPES: Final[Mapping[str, Callable[[Members], Any]]] = {"array": _array, "struct": _struct}


def avro_field(field: Members) -> Members:
    """Converts a field of a Connect struct to an Avro field."""
    made = optional_avro if field["optional"] else plain_avro
    return made(field["field"], avro_of_connect(field))


class JsonWriter(TicdcWriter):
    """Writes records of TiCDC's ``debezium`` protocol.

    Keys and values are compressed if the option ``large_message_handle_compression`` is set.
    """

    protocol = "debezium"
    _sends_ddl = True

    def __init__(self, options: DebeziumOptions, clock: Callable[[], int]) -> None:
        super().__init__(options, clock)
        self._schemas = ByIdentity(self._new_schema_texts, _MOST_TABLES)

    @property
    def _sends_watermarks(self) -> bool:
        return self._options.enable_tidb_extension

    def _row(self, event: ChangeEvent, schema: TableSchema, commit_ts: int, topic: str) -> EncodedRecord:  # noqa: ARG002
        payload = {
            "source": self._source(event, commit_ts),
            "ts_ms": self._clock(),
            "transaction": None,
            "op": _OPS[event.op],
            **self._images(event, schema),
        }
        row = event.after or event.before or {}
        key = {column.name: self._value(column, row) for column in schema.handle_columns}
        key_text, value_text = self._schema_texts(schema)
        return self._record(_wrapped(key, key_text), _wrapped(payload, value_text))

    def _control_source(self, origin: str) -> Members:  # noqa: ARG002
        return source_schema(extension=self._options.enable_tidb_extension)

    def _control(self, key: Half, value: Half) -> EncodedRecord:
        bare = self._options.debezium_disable_schema
        texts = (_wrapped(payload, "" if bare else dumped(schema)) for payload, schema in (key, value))
        return self._record(*texts)

    def _record(self, key: bytes, value: bytes) -> EncodedRecord:
        kind = self._options.large_message_handle_compression
        return EncodedRecord(compressed(key, kind), compressed(value, kind))

    def _source(self, event: ChangeEvent, commit_ts: int) -> Members:
        extra = {"start_ts": _start_ts(event)} if self._options.debezium_include_start_ts else {}
        return source_block(self._options, event.table, commit_ts, **extra)

    def _images(self, event: ChangeEvent, schema: TableSchema) -> Members:
        before, after = self._image(event.before, schema), self._image(event.after, schema)
        if event.op is Op.DELETE:
            return {"after": None, "before": before}
        if event.op is Op.UPDATE and not self._options.debezium_output_old_value:
            return {"after": after}
        return {"before": before if event.op is Op.UPDATE else None, "after": after}

    def _image(self, row: Row | None, schema: TableSchema) -> Members | None:
        if row is None:
            return None
        return {c.name: self._value(c, row) for c in schema.columns if not c.virtual and c.name in row}

    def _value(self, column: Column, row: Row) -> Any:
        if column.name not in row:
            raise EncodeError(
                "The event's row has no value for this key column, but the record's key needs one. Add the "
                "column to the event's row.",
                column=column.name,
            )
        return wire_value(column, row[column.name], self._zone)

    def _schema_texts(self, schema: TableSchema) -> tuple[str, str]:
        if self._options.debezium_disable_schema:
            return "", ""
        return self._schemas.get(schema)

    def _new_schema_texts(self, schema: TableSchema) -> tuple[str, str]:
        extension = self._options.enable_tidb_extension
        parts = (self._options.cluster_id, *schema.table)
        name = ".".join(map(sanitize_name, parts))
        # TiCDC lists the virtual columns once more at the end.
        columns = [*schema.columns, *(column for column in schema.columns if column.virtual)]
        fields = [schema_field(column, extension=extension) for column in columns]
        keys = [schema_field(column, extension=extension) for column in schema.handle_columns]
        images = [_image_schema(name, part, fields) for part in ("before", "after")]
        source = source_schema(extension=extension, start_ts=self._options.debezium_include_start_ts)
        return dumped(key_schema(name, keys)), dumped(envelope_schema(name, source, images))


def _start_ts(event: ChangeEvent) -> int:
    source = (event.extension or {}).get("source")
    start_ts = source.get("start_ts") if isinstance(source, dict) else None
    if not isinstance(start_ts, int):
        raise EncodeError(
            "The setting debezium-include-start-ts needs extension.source.start_ts in each event, "
            "but this event does not have it. Switch the setting off, or add start_ts to the event."
        )
    return start_ts


def _image_schema(name: str, part: str, fields: list[Members]) -> Members:
    return {"type": "struct", "optional": True, "name": f"{name}.Value", "field": part, "fields": fields}


def _wrapped(payload: Members, schema: str) -> bytes:
    tail = f',"schema":{schema}' if schema else ""
    return f'{{"payload":{dumped(payload)}{tail}}}'.encode()
