"""Derives a column from a Kafka Connect field's schema, and reads the field's values.

A reader accepts fastavro's values, with or without logical types, or the values of a JSON parser that reads
numbers with a fraction as Decimal. Bytes are base64 in JSON.

A column has its logical type, its default, and its nullability. A record contains the source's own column
type only if this was configured: Debezium's ``column.propagate.source.type``
(``__debezium.source.column.type``) and TiCDC's extension (``tidb_type``). Only the source's own type
distinguishes an unsigned BIGINT from a signed one, and binary from text.

Arrays, maps and structs are converted to JSON text, geometries to EWKB. JSON text has one canonical form, so
that equal values are equal text: keys sorted, no spaces, decimals with all their digits, binary as base64,
NaN and the infinities as text, as in Debezium.

The connector writes ``unavailable.value.placeholder`` for a value that it did not have: PostgreSQL sends a
value stored out of line (TOAST) only if it changed, Oracle a LOB only if a statement set it. Debezium writes
the placeholder in the column's own type (3.5 and its main branch, ``UnchangedToastedPlaceholder``):

- a text column has the placeholder unchanged, a bytes column its UTF-8;
- an hstore has a map from the placeholder to itself;
- an array of text or bytes has the placeholder as its only item, an array of UUIDs the UUID of its bytes, any
  other array its bytes as numbers;
- a geometry has an impossible point.

With binary.handling.mode base64 the connector writes null, which cannot be distinguished from a real null.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Final

from tidesink.codecs.debezium import scalars, structured
from tidesink.codecs.debezium.connect_schema import (
    PRECISION,
    SOURCE_LENGTH,
    SOURCE_SCALE,
    SOURCE_TYPE,
    TIDB_TYPE,
    ConnectField,
    ConnectSchema,
)
from tidesink.codecs.debezium.scalars import (
    INTEGER_BITS,
    bits,
    boolean,
    bytes_reader,
    checked_text,
    floating,
    integer,
    mismatch,
    scale_of,
    unscaled,
    variable_scale,
    whole_parameter,
)
from tidesink.codecs.options import DebeziumModes
from tidesink.errors import DecodeError, SchemaMismatchError, ValueOutOfRangeError, shown
from tidesink.events import UNKNOWN_DEFAULT, Column, ColumnType, Value
from tidesink.typemap.table import (
    PLAIN_TYPES,
    Form,
    TypeRow,
    find_row,
    row_named,
    semantic_type,
    split_allowed,
    unknown_name,
)

# Debezium's stand-ins for a default that only the database computes. The current time is far more likely than
# the first second of 1970.
_EPOCH_DEFAULTS: Final = frozenset({"1970-01-01 00:00:00+00:00", "1970-01-01 00:00:00", "1970-01-01"})
NOW: Final = "CURRENT_TIMESTAMP"
_MOST_BITS: Final = 64
_EMPTY_JSON: Final = "{}"
_EMPTY_HSTORE: Final[dict[str, str]] = {}


def column_of(field: ConnectField, *, zero_defaults: bool = False) -> Column:
    """Creates a column from the schema of a row's field.

    The caller uses the column from the config instead, if the config defines it. The column is never marked
    as a key column, because the key has a schema of its own.

    If a NOT NULL column is added to a table, the rows that already exist need a value for it. This value is
    marked as unknown if the schema has no default. With ``zero_defaults`` it is also unknown if the default
    is the type's zero (``ConnectSchema.zero_defaults``).

    Raises:
        SchemaMismatchError: the field is a struct of the members value and set, or its schema has a semantic
            type of Debezium, Kafka Connect or Confluent that is not supported.
    """
    schema = field.schema
    check_cell(field)
    _check_schema(field.name, schema, 0)
    column = Column(
        name=field.name,
        type=column_type(schema),
        nullable=schema.optional,
        default=default_text(schema),
    )
    if schema.optional or column.default == NOW:
        return column
    # The empty text is not a UUID.
    zero_defaults = zero_defaults or column.type.name == "uuid"
    if column.default is None or (zero_defaults and _is_zero(schema)):
        return replace(column, origin_default=UNKNOWN_DEFAULT, redefaulted=True)
    return column


def _is_zero(schema: ConnectSchema) -> bool:
    """Returns True if the default is the zero that Debezium writes if it does not know the real default.

    Source: ``JdbcValueConverters`` of Debezium 3.5.
    """
    if not schema.default or schema.default in (_EMPTY_JSON, _EMPTY_HSTORE):
        return True
    value = wire_reader(schema)(schema.default)
    return isinstance(value, int | float | Decimal | bytes) and not value


_UNKNOWN: Final = (
    "Column {!r} has the semantic type {} ({}), which this version of tidesink does not "
    "support. Reading its values as plain {} could change their meaning. Set another "
    "handling mode or converter at the connector, exclude the column there "
    "(column.exclude.list), or define the table under tables, so that values are read with "
    "the defined type."
)
CELLS: Final = (
    "Column {!r} contains objects of the members value and set instead of plain values, as "
    "connectors of YugabyteDB and Cassandra write them. Set the connector's transform that "
    "writes plain values (YBExtractNewRecordState, or PGCompatible, both of YugabyteDB) and "
    "a record type that sends whole rows (FULL, or REPLICA IDENTITY FULL)."
)
# A cell's members: in YugabyteDB's gRPC connector, and in Cassandra's (``CellData``).
_CELL: Final = frozenset({"value", "set"})
_CELL_MEMBERS: Final = _CELL | {"deletion_ts"}


def is_cell(raw: object) -> bool:
    """Returns True if a JSON value is an object of the members value and set instead of a plain value.

    YugabyteDB's and Cassandra's connectors write such objects. The value comes from JSON without a schema.
    """
    return isinstance(raw, Mapping) and _CELL <= set(raw) <= _CELL_MEMBERS and isinstance(raw["set"], bool)


def check_cell(field: ConnectField) -> None:
    """Raises if a field is a struct of the members value and set instead of a plain value.

    YugabyteDB's and Cassandra's connectors write such structs. The error is raised whatever type the config
    defines for the column.

    Raises:
        SchemaMismatchError: the field is such a struct; context has the column.
    """
    kinds = {member.wire: member.schema.type for member in field.schema.fields}
    if _CELL <= set(kinds) <= _CELL_MEMBERS and kinds["set"] == "boolean":
        raise SchemaMismatchError(CELLS.format(field.name)).with_context(column=field.name)


def _check_schema(column: str, schema: ConnectSchema, level: int) -> None:
    """Raises SchemaMismatchError if a column's schema, or a nested one, has an unsupported semantic type.

    The plain Connect type of such a schema does not show how its values must be read.
    """
    if unknown_name(schema.name, schema.type) == "refused":
        kind = schema.type
        raise SchemaMismatchError(_UNKNOWN.format(column, schema.name, kind, kind)).with_context(
            column=column
        )
    if semantic_type(schema.name, schema.type) is None and level < MOST_LEVELS:
        for inner in _inside(schema):
            _check_schema(column, inner, level + 1)


def _inside(schema: ConnectSchema) -> Iterator[ConnectSchema]:
    yield from (inner for inner in (schema.items, schema.keys, schema.values) if inner is not None)
    yield from (field.schema for field in schema.fields)


def foreign_name(schema: ConnectSchema) -> str | None:
    """Returns the first name of a foreign semantic type in a schema or its nested schemas.

    A foreign name is not known here, and does not begin like the names of Debezium, Kafka Connect and
    Confluent: a custom converter or a transform wrote it. Returns None if there is no such name.
    """
    if unknown_name(schema.name, schema.type) == "bare":
        return schema.name
    if semantic_type(schema.name, schema.type) is not None:
        return None
    return next((name for inner in _inside(schema) if (name := foreign_name(inner)) is not None), None)


def column_type(schema: ConnectSchema) -> ColumnType:
    """Returns the logical type of a field's values.

    This is the source's own column type if the schema contains it and the values can be read as that type,
    otherwise the type that the schema describes.
    """
    own = wire_type(schema)
    source = _source_row(schema)
    if source is None or source.name == own.name:
        return own
    return _of_source(schema, source) or own


def wire_type(schema: ConnectSchema) -> ColumnType:
    """Returns the logical type that a field's schema describes, ignoring the source's own column type."""
    semantic = semantic_type(schema.name, schema.type)
    if semantic is None:
        return ColumnType(PLAIN_TYPES[schema.type], named=foreign_name(schema))
    if semantic.form == "structured_duration" and structured.is_elapsed(schema):
        return ColumnType("local time")
    if semantic.form == "structured_time":
        return ColumnType(semantic.type, fsp=structured.fine_digits(schema))
    if semantic.form == "unscaled":
        return _decimal(whole_parameter(schema, PRECISION), scale_of(schema))
    if semantic.form == "bits":
        length = whole_parameter(schema, "length")
        fits = length is None or 0 < length <= _MOST_BITS
        return ColumnType("bit" if fits else "varbinary", length=length)
    if semantic.type in ("enum", "set"):
        allowed = schema.parameters.get("allowed")
        return ColumnType(semantic.type, members=split_allowed(allowed) if allowed is not None else None)
    return ColumnType(semantic.type, fsp=semantic.fsp)


def _decimal(precision: int | None, scale: int | None) -> ColumnType:
    # Oracle's NUMBER(5,-2) has seven digits, the last two of which are zeros.
    if precision is not None and scale is not None and scale < 0:
        return ColumnType("decimal", precision=precision - scale, scale=0)
    return ColumnType("decimal", precision=precision, scale=scale)


def _source_row(schema: ConnectSchema) -> TypeRow | None:
    word = schema.parameters.get(TIDB_TYPE, schema.parameters.get(SOURCE_TYPE))
    return find_row(word.lower().strip()) if word is not None else None


def _of_source(schema: ConnectSchema, source: TypeRow) -> ColumnType | None:
    """Returns the source's own column type, or None if reading the values as that type could lose data."""
    if schema.type not in _CARRIED.get(source.reader, ()):
        return None
    if source.reader == "decimal":
        precision, scale = whole_parameter(schema, SOURCE_LENGTH), whole_parameter(schema, SOURCE_SCALE)
        return _decimal(precision, scale) if schema.name is None else None
    return ColumnType(source.name, length=whole_parameter(schema, SOURCE_LENGTH))


# The Connect types that carry a reader's values without loss.
_CARRIED: Final[dict[str, tuple[str, ...]]] = {
    "integer": ("int8", "int16", "int32", "int64"),
    "unsigned64": ("int64", "bytes", "string"),
    "binary": ("bytes", "string"),
    "text": ("string",),
    "decimal": ("string",),
}


def default_text(schema: ConnectSchema) -> str | None:
    """Returns a column's default as text; None if the schema has no default that can be read."""
    if schema.default is None:
        return None
    try:
        value = wire_reader(schema)(schema.default)
    except DecodeError:
        # A default only fills rows that are older than the column, so it is not a reason to refuse other
        # rows.
        return None
    return NOW if value in _EPOCH_DEFAULTS else _as_text(value, row_named(wire_type(schema).name))


def _as_text(value: Value, row: TypeRow) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, int) and row.reader == "bit":
        return value.to_bytes((value.bit_length() + 7) // 8 or 1, "big").decode("latin-1")
    return value if value is None else str(value)


WireReader = Callable[[object], Value]
# A value inside an array, a map or a struct may be nested itself.
Nested = Callable[[object], object]

_MS: Final = 1_000
_US: Final = 1_000_000
_NS: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND: Final = timedelta(microseconds=1)


def wire_reader(schema: ConnectSchema) -> WireReader:
    """Returns the function that reads the values of one schema. It must not be called with null.

    The function raises SchemaMismatchError for a value that does not have the schema's type, and
    ValueOutOfRangeError for a value that is not valid for the semantic type. Both are DecodeErrors.
    """
    semantic = semantic_type(schema.name, schema.type)
    if semantic is None or semantic.form == "plain":
        return _PLAIN[schema.type](schema)
    return _FORMS[semantic.form](schema)


def _structure(schema: ConnectSchema) -> WireReader:
    nested = nested_reader(schema)
    return lambda raw: json_text(nested(raw))


def nested_reader(schema: ConnectSchema) -> Nested:
    """Returns the function that reads a nested value; arrays, maps and structs become lists and dicts."""
    semantic = semantic_type(schema.name, schema.type)
    if semantic is not None and semantic.form != "structure":
        return wire_reader(schema)
    kind = _NESTED.get(schema.type)
    return wire_reader(schema) if kind is None else kind(schema)


def _optional(schema: ConnectSchema | None) -> Nested:
    # Debezium sends null inside values that it declares as required, for example as rows of a two-dimensional
    # array.
    read = nested_reader(schema) if schema is not None else _as_is
    return lambda raw: None if raw is None else read(raw)


def _as_is(raw: object) -> object:
    return raw


def _array(schema: ConnectSchema) -> Nested:
    read = _optional(schema.items)

    def items(raw: object) -> object:
        if not isinstance(raw, list):
            raise mismatch(raw, schema)
        return [read(item) for item in raw]

    return items


def _map(schema: ConnectSchema) -> Nested:
    read_key, read = _optional(schema.keys), _optional(schema.values)

    def entries(raw: object) -> object:
        return {str(read_key(key)): read(value) for key, value in _entries(raw, schema)}

    return entries


def _entries(raw: object, schema: ConnectSchema) -> list[tuple[object, object]]:
    """Returns the key and value of each entry of a map.

    A map whose keys are text is an object. Other maps are an array of entries: records of key and value in
    Avro (AvroData), arrays of two items in JSON (JsonConverter).
    """
    if isinstance(raw, Mapping):
        return list(raw.items())
    if not isinstance(raw, list):
        raise mismatch(raw, schema)
    entries: list[tuple[object, object]] = []
    for entry in raw:
        if isinstance(entry, Mapping) and set(entry) == {"key", "value"}:
            entries.append((entry["key"], entry["value"]))
        elif isinstance(entry, list) and len(entry) == 2:
            entries.append((entry[0], entry[1]))
        else:
            raise mismatch(raw, schema)
    return entries


def _struct(schema: ConnectSchema) -> Nested:
    readers = [(field.name, field.wire, _optional(field.schema)) for field in schema.fields]

    def members(raw: object) -> object:
        if not isinstance(raw, Mapping):
            raise mismatch(raw, schema)
        return {name: read(raw.get(wire)) for name, wire, read in readers}

    return members


_NESTED: Final[dict[str, Callable[[ConnectSchema], Nested]]] = {
    "array": _array,
    "map": _map,
    "struct": _struct,
}


def _counted(schema: ConnectSchema, text: Callable[[int], str]) -> WireReader:
    read = integer(schema)
    return lambda raw: text(read(raw if type(raw) is int else _units(raw, schema)))


def _units(raw: object, schema: ConnectSchema) -> object:
    """Converts the Python date or time that fastavro returns to the number that Avro stores.

    The number counts days for a date, and milliseconds for a time or a timestamp.
    """
    if isinstance(raw, datetime):
        return (raw - _EPOCH) // _MICROSECOND // _MS
    if isinstance(raw, date):
        return (raw - _EPOCH.date()).days
    if isinstance(raw, time):
        return (datetime.combine(_EPOCH, raw, timezone.utc) - _EPOCH) // _MICROSECOND // _MS
    raise mismatch(raw, schema)


def _days(schema: ConnectSchema) -> WireReader:
    return _counted(schema, scalars.date_text)


def _time(per_second: int, schema: ConnectSchema) -> WireReader:
    return _counted(schema, lambda units: scalars.time_text(units, per_second))


def _timestamp(per_second: int, schema: ConnectSchema) -> WireReader:
    return _counted(schema, lambda units: scalars.timestamp_text(units, per_second))


def _iso(kind: str, schema: ConnectSchema, *, zoned: bool = False, timed: bool = True) -> WireReader:
    read, checked = scalars.iso_reader(kind, zoned=zoned, timed=timed), checked_text(schema)
    return lambda raw: read(checked(raw))


def _iso_time(schema: ConnectSchema) -> WireReader:
    checked = checked_text(schema)
    return lambda raw: scalars.iso_time_text(checked(raw))


def _geometry(schema: ConnectSchema) -> WireReader:
    read = bytes_reader(replace(schema, name="geometry"))

    def geometry(raw: object) -> bytes:
        if not isinstance(raw, Mapping):
            raise mismatch(raw, schema)
        return ewkb(raw, read)

    return geometry


_PLAIN: Final[dict[str, Callable[[ConnectSchema], WireReader]]] = {
    **dict.fromkeys(INTEGER_BITS, integer),
    "float32": floating,
    "float64": floating,
    "boolean": boolean,
    "string": checked_text,
    "bytes": bytes_reader,
    "array": _structure,
    "map": _structure,
    "struct": _structure,
}

_FORMS: Final[dict[Form, Callable[[ConnectSchema], WireReader]]] = {
    "days": _days,
    "time_ms": partial(_time, _MS),
    "time_us": partial(_time, _US),
    "time_ns": partial(_time, _NS),
    "timestamp_ms": partial(_timestamp, _MS),
    "timestamp_us": partial(_timestamp, _US),
    "timestamp_ns": partial(_timestamp, _NS),
    "iso_date": partial(_iso, "date", timed=False),
    "iso_time": _iso_time,
    "iso_timestamp": partial(_iso, "date and time"),
    "zoned_timestamp": partial(_iso, "date and time with an offset", zoned=True),
    "unscaled": unscaled,
    "variable_scale": variable_scale,
    "bits": bits,
    "geometry": _geometry,
    "structure": _structure,
    "structured_time": structured.time_reader,
    "structured_duration": structured.duration_reader,
}


Structure = object

_NON_FINITE: Final = {math.inf: '"Infinity"', -math.inf: '"-Infinity"'}
_WKB_LITTLE: Final = 1
_WKB_POINT: Final = 1
# PostGIS sets this bit of the geometry's type if an SRID follows it (EWKB).
_HAS_SRID: Final = 0x2000_0000
_WKB_HEADER: Final = 5
MOST_LEVELS: Final = 32


def json_text(value: Structure) -> str:
    """Returns the JSON text of nested lists, mappings and values.

    Raises:
        ValueOutOfRangeError: the value is nested deeper than 32 levels.
    """
    return _json(value, 0)


def _json(value: Structure, level: int) -> str:
    if level > MOST_LEVELS:
        raise ValueOutOfRangeError(
            f"An array, map or struct is nested deeper than {MOST_LEVELS} levels, which is the limit."
        )
    if isinstance(value, Mapping):
        members = sorted((str(key), member) for key, member in value.items())
        return "{" + ",".join(f"{_quoted(key)}:{_json(member, level + 1)}" for key, member in members) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_json(item, level + 1) for item in value) + "]"
    return _scalar(value)


def _scalar(value: object) -> str:
    if value is None or isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bytes):
        return _quoted(base64.b64encode(value).decode("ascii"))
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else _quoted(str(value))
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, int):
        return str(value)
    raise SchemaMismatchError(
        f"{shown(value)} is not a value that an array, map or struct of Kafka Connect can contain."
    )


def _float(value: float) -> str:
    if math.isnan(value):
        return '"NaN"'
    return _NON_FINITE.get(value) or repr(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def ewkb(raw: Mapping[str, object], read_bytes: Callable[[object], bytes]) -> bytes:
    """Returns a geometry as WKB with its SRID (EWKB), or as plain WKB if it has no SRID.

    ``raw`` is Debezium's struct with ``wkb`` and ``srid``; a point additionally has ``x`` and ``y``. WKB that
    already contains an SRID, as PostGIS writes it, is returned unchanged.

    Raises:
        DecodeError: the struct does not contain a geometry.
    """
    wkb, srid = raw.get("wkb"), raw.get("srid")
    data = _point(raw) if wkb is None else read_bytes(wkb)
    if srid is None:
        return data
    if not isinstance(srid, int) or not -(1 << 31) <= srid < 1 << 31:
        raise SchemaMismatchError(f"The SRID {shown(srid)} of a geometry is not a 32-bit integer.")
    if len(data) < _WKB_HEADER or data[0] not in (0, 1):
        raise ValueOutOfRangeError(f"{shown(data)} is not a geometry in WKB.")
    order = "<" if data[0] == _WKB_LITTLE else ">"
    (kind,) = struct.unpack_from(f"{order}I", data, 1)
    if kind & _HAS_SRID:
        return data
    return data[:1] + struct.pack(f"{order}Ii", kind | _HAS_SRID, srid) + data[_WKB_HEADER:]


def _point(raw: Mapping[str, object]) -> bytes:
    x, y = raw.get("x"), raw.get("y")
    if not isinstance(x, float | int | Decimal) or not isinstance(y, float | int | Decimal):
        raise SchemaMismatchError(
            f"{shown(dict(raw))} is not a geometry, because it has neither wkb nor x and y."
        )
    return struct.pack("<BIdd", _WKB_LITTLE, _WKB_POINT, x, y)


_GEOMETRY: Final = bytes.fromhex("0101000020E6100000000000FC83D797C1000000FC83D797C1")
_GEOGRAPHY: Final = bytes.fromhex("0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640")
_NOWHERE: Final = -99_999_999.0
_POINT: Final = struct.pack("<BIdd", 1, 1, _NOWHERE, _NOWHERE)
_SRID: Final = 4326


def placeholders(schema: ConnectSchema, modes: DebeziumModes) -> tuple[object, ...]:
    """Returns the placeholders that a connector writes into a field for a value that it did not have.

    ``schema`` is the field's schema. The result contains the placeholders of Avro records and those of JSON
    records.
    """
    text = modes.placeholder
    if text is None:
        return ()
    if schema.type == "string":
        return (text, *_encoded(text, modes))
    if schema.type == "bytes":
        return _bytes(text.encode())
    if schema.type == "array":
        return _arrays(schema.items, text)
    if schema.type == "map":
        return {text: text}, [[text, text]], [{"key": text, "value": text}]
    return _geometries() if schema.type == "struct" else ()


def _bytes(data: bytes) -> tuple[object, object]:
    """Returns the two forms that a bytes value has in records: bytes in Avro, base64 text in JSON."""
    return data, base64.b64encode(data).decode("ascii")


def _encoded(text: str, modes: DebeziumModes) -> tuple[str, ...]:
    data = text.encode()
    if modes.binary_handling_mode == "hex":
        return (data.hex(),)
    if modes.binary_handling_mode in ("base64", "base64-url-safe"):
        return base64.b64encode(data).decode("ascii"), base64.urlsafe_b64encode(data).decode("ascii")
    return ()


def _arrays(items: ConnectSchema | None, text: str) -> tuple[object, ...]:
    """Returns the arrays that a connector writes for a value that it did not have.

    ``items`` is the schema of the array's items. If it is None (JSON without a schema), the result has the
    placeholders of all types of arrays. ``text`` is the connector's ``unavailable.value.placeholder``.
    """
    kind, data = None if items is None else items.type, text.encode()
    arrays: list[object] = []
    if kind in (None, "string"):
        arrays += [[text], [str(_uuid(data))]]
    if kind in (None, "bytes"):
        arrays += [[item] for item in _bytes(data)]
        arrays += [list(forms) for forms in zip(*(_bytes(bytes([byte])) for byte in data), strict=True)]
        scale = (scale_of(items) or 0) if items is not None else 0
        arrays.append([Decimal(byte).scaleb(-scale) for byte in data])
    if kind in (None, "int16", "int32", "int64", "float32", "float64"):
        arrays.append(list(data))
    if kind == "boolean":
        arrays.append([True] * len(data))
    if kind in (None, "struct"):
        forms = zip(*(_bytes(bytes([byte])) for byte in data), strict=True)
        arrays += [[{"scale": 0, "value": value} for value in form] for form in forms]
    return tuple(arrays)


def _uuid(data: bytes) -> uuid.UUID:
    """Returns what Java's ``UUID.nameUUIDFromBytes`` returns: a UUID of version 3, without a namespace."""
    return uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3)


def _geometries() -> tuple[object, ...]:
    areas = [{"wkb": wkb, "srid": _SRID} for data in (_GEOMETRY, _GEOGRAPHY) for wkb in _bytes(data)]
    points = [{"x": _NOWHERE, "y": _NOWHERE, "wkb": wkb, "srid": None} for wkb in _bytes(_POINT)]
    return (*areas, *points)
