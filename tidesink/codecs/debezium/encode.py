"""Events to TiCDC's ``debezium-avro`` protocol (new architecture, b813e76): rows, DDL and watermarks.

Compared with TiCDC's own schemas and bytes, also for how it names and registers records. TiCDC sends DDL
and watermarks where both ``enable-tidb-extension`` and ``avro-enable-watermark`` are set, and registers
their schemas under the records' own names: at that point it knows no topic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final
from zoneinfo import ZoneInfo

import fastavro

from tidesink.codecs.base import CodecOptions, EncodedRecord, header
from tidesink.codecs.debezium.encode_values import (
    DDL_KEY,
    DDL_REST,
    TRANSACTION,
    Members,
    connect_parameters,
    connect_type_of,
    ddl_payload,
    ddl_value_schema,
    dumped,
    envelope_schema,
    key_schema,
    plain_field,
    schema_field,
    source_block,
    source_schema,
    watermark_name,
    watermark_payload,
    wire_value,
)
from tidesink.codecs.debezium.formats import bare_schema
from tidesink.codecs.flat_avro.record import to_wire
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
    physical_ms,
)
from tidesink.schema_registry.base import SchemaRegistry
from tidesink.schema_registry.naming import sanitize_name
from tidesink.typemap.render import mysql_type_word
from tidesink.typemap.table import row_of

_OPS: Final = {Op.INSERT: "c", Op.UPSERT: "c", Op.UPDATE: "u", Op.DELETE: "d"}
_AVRO: Final = {"int16": "int", "int32": "int", "int64": "long", "float": "float", "double": "double"}
_INT64_END: Final = 1 << 63
_MOST_TABLES: Final = 256


class AvroRowWriter:
    """Writes TiCDC's ``debezium-avro`` rows, and registers their schemas under the topic's subjects."""

    def __init__(self, registry: SchemaRegistry, options: CodecOptions, clock: Callable[[], int]) -> None:
        self._registry = registry
        self._options = options
        self._clock = clock
        self._zone = ZoneInfo(options.time_zone)
        self._parts: dict[tuple[str, TableId, int], tuple[TableSchema, AvroPart, AvroPart]] = {}

    def row(self, event: ChangeEvent, topic: str) -> EncodedRecord:
        """The record of a row change.

        Raises:
            EncodeError: the event has no schema or no commit_ts, or a value that its column cannot hold.
            RegistryError: its schemas cannot be registered.
        """
        schema = event.schema
        if event.op not in _OPS:
            raise EncodeError(f"TiCDC's debezium-avro protocol has no message for a {event.op.value}")
        if schema is None or event.commit_ts is None:
            missing = "column types" if schema is None else "commit_ts"
            raise EncodeError(f"the event has no {missing}, which TiCDC's debezium-avro protocol writes")
        key, value = self._schemas(schema, event.table, topic)
        row = event.after or event.before or {}
        keys = {sanitize_name(column.name): self._value(column, row) for column in schema.handle_columns}
        return EncodedRecord(key.written(keys), value.written(self._envelope(event, schema)))

    def _envelope(self, event: ChangeEvent, schema: TableSchema) -> Members:
        old = event.op is Op.DELETE or (event.op is Op.UPDATE and self._options.debezium_output_old_value)
        return {
            "before": self._image(event.before, schema) if old else None,
            "after": None if event.op is Op.DELETE else self._image(event.after, schema),
            "source": self._source(event),
            "op": _OPS[event.op],
            "ts_ms": self._clock(),
        }

    def _source(self, event: ChangeEvent) -> Members:
        commit_ts = event.commit_ts or 0
        numbers = {"server_id": 0, "pos": 0, "row": 0, "ts_ms": physical_ms(commit_ts)}
        cluster = self._options.cluster_id
        return {
            **{"version": "2.4.0.Final", "connector": "TiCDC", "name": cluster, "cluster_id": cluster},
            **{"db": event.table.schema, "table": event.table.name, "file": "", "commit_ts": commit_ts},
            **numbers,
            **dict.fromkeys(("snapshot", "gtid", "thread", "query")),
        }

    def _image(self, row: Row | None, schema: TableSchema) -> Members | None:
        if row is None:
            return None
        return {sanitize_name(column.name): self._value(column, row) for column in schema.columns}

    def _value(self, column: Column, row: Row) -> Any:
        if column.name not in row:
            raise EncodeError("the event has no value for this column", column=column.name)
        return avro_value(column, row[column.name], self._options, self._zone)

    def _schemas(self, schema: TableSchema, table: TableId, topic: str) -> tuple[AvroPart, AvroPart]:
        place = (topic, table, id(schema))
        known = self._parts.get(place)
        if known is None or known[0] is not schema:
            if any(column.virtual for column in schema.columns):
                raise EncodeError("TiCDC's debezium-avro protocol cannot write tables with virtual columns")
            if len(self._parts) >= _MOST_TABLES:
                self._parts.clear()
            record = _Records(table, schema, self._options)
            parts = (record.key(), record.envelope())
            names = (f"{topic}-key", f"{topic}-value")  # dots stay here, unlike in flat-avro's subjects
            key, value = (registered(self._registry, *one) for one in zip(names, parts, strict=True))
            known = self._parts[place] = (schema, key, value)
        return known[1], known[2]


@dataclass(frozen=True)
class _Records:
    """The Avro records of one table."""

    table: TableId
    schema: TableSchema
    options: CodecOptions

    def key(self) -> Members:
        return self._record("Key", [self._column(column) for column in self.schema.handle_columns])

    def envelope(self) -> Members:
        row = self._record("", [self._column(column) for column in self.schema.columns])
        fields = [
            optional_avro("before", row),
            optional_avro("after", f"{self._namespace}.{sanitize_name(self.table.name)}"),
            plain_avro("source", source_record(self._namespace)),
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

    def _column(self, column: Column) -> Members:
        field = optional_avro(column.name, avro_type(column, self.options))
        if self.options.enable_tidb_extension:
            field["tidb_type"] = mysql_type_word(column.type)
        return field


def avro_type(column: Column, options: CodecOptions) -> Any:
    """The Avro type of a column, without its union with null."""
    row = row_of(column.type)
    if row.reader == "decimal":
        return _decimal_type(column.type) if options.avro_decimal_handling_mode == "precise" else "string"
    if row.reader == "binary":
        return "bytes"
    if row.reader == "unsigned64":
        return options.avro_bigint_unsigned_handling_mode
    kind, name = connect_type_of(column)
    avro = _AVRO.get(kind, kind)
    extra: Members = {"connect.type": kind} if kind == "int16" else {}
    if name is not None:
        extra["connect.name"] = name
        extra |= {} if row.name == "vector" else {"connect.version": 1}
    parameters = connect_parameters(column)
    if parameters:
        extra["connect.parameters"] = parameters
    return {**extra, "type": avro} if extra else avro


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


def avro_value(column: Column, value: Value, options: CodecOptions, zone: ZoneInfo) -> Any:
    """A value as fastavro writes it.

    Raises:
        EncodeError: it is none of its column's type; context has the column.
    """
    reader = row_of(column.type).reader
    if value is None or (reader == "binary" and isinstance(value, bytes)):
        return value
    if reader == "bit" and isinstance(value, int) and (column.type.length or 1) > 1:
        wire_value(column, value, zone)  # refuses what is wider than the column
        return value.to_bytes(((column.type.length or 1) + 7) // 8, "little")
    if reader in ("float32", "float64") and isinstance(value, float):
        return value
    if reader == "decimal" or (
        reader == "unsigned64" and options.avro_bigint_unsigned_handling_mode == "string"
    ):
        return _by_mode(column, value, options)
    if reader == "unsigned64" and isinstance(value, int) and value >= _INT64_END:
        raise EncodeError(
            f"{value} is more than an Avro long holds: set avro-bigint-unsigned-handling-mode to string",
            column=column.name,
        )
    return wire_value(column, value, zone)


def _by_mode(column: Column, value: Value, options: CodecOptions) -> Any:
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
    """A registered schema, and what fastavro writes with it."""

    head: bytes
    bare: Any

    def written(self, record: Members) -> bytes:
        """A record's bytes behind its header.

        Raises:
            EncodeError: it is no record of the schema.
        """
        stream = BytesIO()
        try:
            fastavro.schemaless_writer(stream, self.bare, record)
        except _NO_RECORD as error:
            raise EncodeError(f"this is no record of its schema: {error!s:.200}") from error
        return self.head + stream.getvalue()


def registered(registry: SchemaRegistry, subject: str, record: Members) -> AvroPart:
    """A record's schema, registered; raises RegistryError where that cannot be done."""
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return AvroPart(header(registry.register(subject, text)), bare_schema(record))


def plain_avro(name: str, kind: Any) -> Members:
    """A field that is never null."""
    return {"connect.field": name, "name": sanitize_name(name), "type": kind}


def optional_avro(name: str, kind: Any) -> Members:
    """A field that may be null."""
    return {"connect.field": name, "default": None, "name": sanitize_name(name), "type": ["null", kind]}


def named_record(namespace: str, name: str, fields: list[Members], *, version: int | None = None) -> Members:
    """A record's schema; ``version`` is Connect's, where it has one."""
    kind: Members = {"name": name, "namespace": namespace, "type": "record"}
    if version is not None:
        kind["connect.version"] = version
    return {"connect.name": f"{namespace}.{name}", "fields": fields, **kind}


def source_record(namespace: str) -> Members:
    """The schema of ``source``."""
    long, text = "long", "string"
    fields = [
        *(plain_avro(name, text) for name in ("version", "connector", "name")),
        plain_avro("ts_ms", long),
        optional_avro("snapshot", text),
        *(plain_avro(name, text) for name in ("db", "table")),
        plain_avro("server_id", long),
        optional_avro("gtid", text),
        plain_avro("file", text),
        plain_avro("pos", long),
        plain_avro("row", "int"),
        optional_avro("thread", long),
        optional_avro("query", text),
        plain_avro("commit_ts", long),
        plain_avro("cluster_id", text),
    ]
    return named_record(namespace, "Source", fields)


_PRIMITIVES: Final = {"int32": "int", "int64": "long"}


def avro_of_connect(schema: Members) -> Any:
    """A Connect schema in Avro, without its own union with null."""
    return _SHAPES.get(schema["type"], _primitive)(schema)


def _primitive(schema: Members) -> Any:
    return _PRIMITIVES.get(schema["type"], schema["type"])


def _array(schema: Members) -> Any:
    return {"items": avro_of_connect(schema["items"]), "type": "array"}


def _struct(schema: Members) -> Any:
    namespace, _, name = schema["name"].rpartition(".")
    fields = [avro_field(field) for field in schema["fields"]]
    return named_record(namespace, name, fields, version=schema.get("version"))


_SHAPES: Final[Mapping[str, Callable[[Members], Any]]] = {"array": _array, "struct": _struct}


def avro_field(field: Members) -> Members:
    """A Connect field in Avro."""
    made = optional_avro if field["optional"] else plain_avro
    return made(field["field"], avro_of_connect(field))


_DDL_PLACE: Final = "io.debezium.connector.mysql"


class AvroControlWriter:
    """Writes TiCDC's ``debezium-avro`` control messages; ``clock`` gives ms since 1970 for ``ts_ms``."""

    def __init__(self, registry: SchemaRegistry, options: CodecOptions, clock: Callable[[], int]) -> None:
        self._registry = registry
        self._options = options
        self._clock = clock
        self._parts: dict[str, tuple[AvroPart, AvroPart]] = {}

    @property
    def _sends(self) -> bool:
        return self._options.enable_tidb_extension and self._options.avro_enable_watermark

    def ddl(self, event: DdlEvent) -> EncodedRecord | None:
        """The record of a DDL that was decoded from one of TiCDC's debezium protocols; None where not sent.

        Raises:
            EncodeError: the event has no ``tableChanges`` or no commit_ts, or is a connector's.
            RegistryError: its schemas cannot be registered.
        """
        if not self._sends:
            return None
        payload = ddl_payload(event, self._options, self._clock())
        namespace = f"{sanitize_name(self._options.cluster_id)}.{sanitize_name(event.table.schema)}"
        fields = [plain_avro("source", source_record(namespace)), *map(avro_field, DDL_REST)]
        value = named_record(_DDL_PLACE, "SchemaChangeValue", fields, version=1)
        parts = self._registered(namespace, avro_of_connect(DDL_KEY), value)
        return _record(parts, {"databaseName": event.table.schema}, payload)

    def watermark(self, event: WatermarkEvent) -> EncodedRecord | None:
        """The record of a watermark; None where not sent. Raises RegistryError."""
        if not self._sends:
            return None
        namespace = watermark_name(self._options)
        rest = [plain_field("string", "op"), plain_field("int64", "ts_ms", optional=True), TRANSACTION]
        fields = [plain_avro("source", source_record(namespace)), *map(avro_field, rest)]
        value = named_record(namespace, "Envelope", fields, version=1)
        parts = self._registered(namespace, named_record(namespace, "Key", []), value)
        return _record(parts, {}, watermark_payload(event, self._options, self._clock()))

    def _registered(self, place: str, *records: Members) -> tuple[AvroPart, AvroPart]:
        known = self._parts.get(place)
        if known is None:
            key, value = (registered(self._registry, record["connect.name"], record) for record in records)
            # One place is enough: databases come and go, and DDL is rare.
            self._parts = {place: (key, value)}
            known = key, value
        return known


def _record(parts: tuple[AvroPart, AvroPart], key: Members, payload: Members) -> EncodedRecord:
    source = payload["source"]
    # A fault of the producer: what a long cannot hold is its smallest value.
    held = {**source, "commit_ts": min(source["commit_ts"], _INT64_END)}
    if held["commit_ts"] == _INT64_END:
        held["commit_ts"] = -_INT64_END
    return EncodedRecord(parts[0].written(key), parts[1].written({**payload, "source": held}))


class TicdcWriter:
    """Writes TiCDC's ``debezium`` messages; ``clock`` gives ms since 1970 for ``ts_ms``."""

    def __init__(self, options: CodecOptions, clock: Callable[[], int]) -> None:
        self._options = options
        self._clock = clock
        self._zone = ZoneInfo(options.time_zone)
        # By identity: decoders share one schema among the rows of a table.
        self._schemas: dict[int, tuple[TableSchema, str, str]] = {}

    def row(self, event: ChangeEvent) -> EncodedRecord:
        """The record of a row change.

        Raises:
            EncodeError: the event has no schema or no commit_ts, or a value that its column cannot hold.
        """
        schema = event.schema
        if event.op not in _OPS:
            raise EncodeError(f"TiCDC's debezium protocol has no message for a {event.op.value}")
        if schema is None or event.commit_ts is None:
            missing = "column types" if schema is None else "commit_ts"
            raise EncodeError(f"the event has no {missing}, which TiCDC's debezium protocol writes")
        payload = {
            "source": self._source(event, event.commit_ts),
            "ts_ms": self._clock(),
            "transaction": None,
            "op": _OPS[event.op],
            **self._images(event, schema),
        }
        row = event.after or event.before or {}
        key = {column.name: self._value(column, row) for column in schema.handle_columns}
        key_text, value_text = self._schema_texts(schema)
        return EncodedRecord(_wrapped(key, key_text), _wrapped(payload, value_text))

    def ddl(self, event: DdlEvent) -> EncodedRecord:
        """The record of a DDL that was decoded from one of TiCDC's debezium protocols.

        Raises:
            EncodeError: the event has no ``tableChanges`` or no commit_ts, or is a connector's.
        """
        payload = ddl_payload(event, self._options, self._clock())
        key = value = ""
        if not self._options.debezium_disable_schema:
            key, value = dumped(DDL_KEY), dumped(ddl_value_schema(self._control_source()))
        return EncodedRecord(_wrapped({"databaseName": event.table.schema}, key), _wrapped(payload, value))

    def watermark(self, event: WatermarkEvent) -> EncodedRecord | None:
        """The record of a watermark, which TiCDC sends with the TiDB extension alone; else None."""
        if not self._options.enable_tidb_extension:
            return None
        payload = watermark_payload(event, self._options, self._clock())
        key = value = ""
        if not self._options.debezium_disable_schema:
            name = watermark_name(self._options)
            key = dumped(key_schema(name, []))
            value = dumped(envelope_schema(name, self._control_source(), []))
        return EncodedRecord(_wrapped({}, key), _wrapped(payload, value))

    def _control_source(self) -> Members:
        return source_schema(extension=self._options.enable_tidb_extension)

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
            raise EncodeError("the event has no value for a key column", column=column.name)
        return wire_value(column, row[column.name], self._zone)

    def _schema_texts(self, schema: TableSchema) -> tuple[str, str]:
        if self._options.debezium_disable_schema:
            return "", ""
        known = self._schemas.get(id(schema))
        if known is None or known[0] is not schema:
            if len(self._schemas) >= _MOST_TABLES:
                self._schemas.clear()
            known = self._schemas[id(schema)] = (schema, *self._new_schema_texts(schema))
        return known[1], known[2]

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
    found = source.get("start_ts") if isinstance(source, dict) else None
    if not isinstance(found, int):
        raise EncodeError("debezium-include-start-ts needs extension.source.start_ts, and the event has none")
    return found


def _image_schema(name: str, part: str, fields: list[Members]) -> Members:
    return {"type": "struct", "optional": True, "name": f"{name}.Value", "field": part, "fields": fields}


def _wrapped(payload: Members, schema: str) -> bytes:
    tail = f',"schema":{schema}' if schema else ""
    return f'{{"payload":{dumped(payload)}{tail}}}'.encode()
