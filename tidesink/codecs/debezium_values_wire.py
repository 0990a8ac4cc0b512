"""One value between its Connect form and ours, by schema alone: a reader for each form.

A reader takes what fastavro gives with logical types left out (or with them), or what a JSON parser
gives that reads numbers with a fraction as Decimal. Bytes are base64 in JSON.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Final

from tidesink.change import Value
from tidesink.codecs import debezium_values_time as times
from tidesink.codecs.connect_schema import ConnectSchema
from tidesink.codecs.debezium_values_structure import ewkb, json_text
from tidesink.errors import SchemaMismatchError, ValueOutOfRangeError
from tidesink.typemap.semantic import Form, semantic_type
from tidesink.typemap.shown import shown

WireReader = Callable[[object], Value]
# A value inside an array, a map or a struct may be one itself.
Nested = Callable[[object], object]

_MS: Final = 1_000
_US: Final = 1_000_000
_NS: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND: Final = timedelta(microseconds=1)
_FLOAT32: Final = struct.Struct("<f")
_INTEGER_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# PostgreSQL's numeric has at most 131072 digits before the point and 16383 after it.
_MOST_SCALE: Final = 20_000
_MOST_BYTES: Final = 65_536


def wire_reader(schema: ConnectSchema) -> WireReader:
    """A reader of one schema's values, null excepted.

    The reader raises DecodeError: SchemaMismatchError where a value is not of the schema's type,
    ValueOutOfRangeError where it is none of the semantic type's values.
    """
    semantic = semantic_type(schema.name, schema.type)
    if semantic is None or semantic.form == "plain":
        return _PLAIN[schema.type](schema)
    return _FORMS[semantic.form](schema)


def _mismatch(raw: object, schema: ConnectSchema) -> SchemaMismatchError:
    return SchemaMismatchError(f"{type(raw).__name__} {shown(raw)} is no {schema.name or schema.type}")


def _integer(schema: ConnectSchema) -> Callable[[object], int]:
    limit = 1 << (_INTEGER_BITS[schema.type] - 1)

    def read(raw: object) -> int:
        if type(raw) is not int:
            raise _mismatch(raw, schema)
        if not -limit <= raw < limit:
            raise ValueOutOfRangeError(f"{shown(raw)} is no {schema.name or schema.type}")
        return raw

    return read


def _float(schema: ConnectSchema) -> Callable[[object], float]:
    single = schema.type == "float32"

    def read(raw: object) -> float:
        if isinstance(raw, str) and raw in _WORDS:
            return _WORDS[raw]
        if isinstance(raw, bool) or not isinstance(raw, float | int | Decimal):
            raise _mismatch(raw, schema)
        try:
            value = float(raw)
            return float(_FLOAT32.unpack(_FLOAT32.pack(value))[0]) if single else value
        except OverflowError as error:
            raise ValueOutOfRangeError(f"{shown(raw)} is no {schema.type}") from error

    return read


def _boolean(schema: ConnectSchema) -> Callable[[object], bool]:
    def read(raw: object) -> bool:
        if not isinstance(raw, bool):
            raise _mismatch(raw, schema)
        return raw

    return read


def _text(schema: ConnectSchema) -> Callable[[object], str]:
    def read(raw: object) -> str:
        if not isinstance(raw, str):
            raise _mismatch(raw, schema)
        return raw

    return read


def bytes_reader(schema: ConnectSchema) -> Callable[[object], bytes]:
    """A reader of bytes: Avro's, or JSON's base64."""

    def read(raw: object) -> bytes:
        if isinstance(raw, bytes):
            return raw
        if not isinstance(raw, str):
            raise _mismatch(raw, schema)
        try:
            return base64.b64decode(raw, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueOutOfRangeError(f"{shown(raw)} is no base64 of {schema.name or 'bytes'}") from error

    return read


def _structure(schema: ConnectSchema) -> WireReader:
    nested = nested_reader(schema)
    return lambda raw: json_text(nested(raw))


def nested_reader(schema: ConnectSchema) -> Nested:
    """A reader that keeps arrays, maps and structs as lists and mappings, for what is inside another."""
    semantic = semantic_type(schema.name, schema.type)
    if semantic is not None and semantic.form != "structure":
        return wire_reader(schema)
    kind = _NESTED.get(schema.type)
    return wire_reader(schema) if kind is None else kind(schema)


def _optional(schema: ConnectSchema | None) -> Nested:
    # Debezium sends null inside of what it says is required: a two-dimensional array's rows.
    read = nested_reader(schema) if schema is not None else _as_is
    return lambda raw: None if raw is None else read(raw)


def _as_is(raw: object) -> object:
    return raw


def _array(schema: ConnectSchema) -> Nested:
    read = _optional(schema.items)

    def items(raw: object) -> object:
        if not isinstance(raw, list):
            raise _mismatch(raw, schema)
        return [read(one) for one in raw]

    return items


def _map(schema: ConnectSchema) -> Nested:
    read_key, read = _optional(schema.keys), _optional(schema.values)

    def entries(raw: object) -> object:
        return {str(read_key(key)): read(one) for key, one in _entries(raw, schema)}

    return entries


def _entries(raw: object, schema: ConnectSchema) -> list[tuple[object, object]]:
    """A map's entries: an object, or an array of entries where its keys are not text.

    Avro's are records of key and value (AvroData), JSON's arrays of two (JsonConverter).
    """
    if isinstance(raw, Mapping):
        return list(raw.items())
    if not isinstance(raw, list):
        raise _mismatch(raw, schema)
    found: list[tuple[object, object]] = []
    for one in raw:
        if isinstance(one, Mapping) and set(one) == {"key", "value"}:
            found.append((one["key"], one["value"]))
        elif isinstance(one, list) and len(one) == 2:
            found.append((one[0], one[1]))
        else:
            raise _mismatch(raw, schema)
    return found


def _struct(schema: ConnectSchema) -> Nested:
    readers = [(field.name, field.wire, _optional(field.schema)) for field in schema.fields]

    def members(raw: object) -> object:
        if not isinstance(raw, Mapping):
            raise _mismatch(raw, schema)
        return {name: read(raw.get(wire)) for name, wire, read in readers}

    return members


_NESTED: Final[dict[str, Callable[[ConnectSchema], Nested]]] = {
    "array": _array,
    "map": _map,
    "struct": _struct,
}


def _counted(schema: ConnectSchema, text: Callable[[int], str]) -> WireReader:
    read = _integer(schema)
    return lambda raw: text(read(raw if type(raw) is int else _units(raw, schema)))


def _units(raw: object, schema: ConnectSchema) -> object:
    """The number behind a Python date or time, which fastavro gives for a logical type."""
    if isinstance(raw, datetime):
        return (raw - _EPOCH) // _MICROSECOND // _MS
    if isinstance(raw, date):
        return (raw - _EPOCH.date()).days
    if isinstance(raw, time):
        return (datetime.combine(_EPOCH, raw, timezone.utc) - _EPOCH) // _MICROSECOND // _MS
    raise _mismatch(raw, schema)


def _days(schema: ConnectSchema) -> WireReader:
    return _counted(schema, times.date_text)


def _time(per_second: int, schema: ConnectSchema) -> WireReader:
    return _counted(schema, lambda units: times.time_text(units, per_second))


def _timestamp(per_second: int, schema: ConnectSchema) -> WireReader:
    return _counted(schema, lambda units: times.timestamp_text(units, per_second))


def _iso(kind: str, schema: ConnectSchema, *, zoned: bool = False, timed: bool = True) -> WireReader:
    read, text = times.iso_reader(kind, zoned=zoned, timed=timed), _text(schema)
    return lambda raw: read(text(raw))


def _iso_time(schema: ConnectSchema) -> WireReader:
    text = _text(schema)
    return lambda raw: times.iso_time_text(text(raw))


def _unscaled(schema: ConnectSchema) -> WireReader:
    scale = whole_parameter(schema, "scale") or 0
    read = bytes_reader(schema)

    def decimal(raw: object) -> Decimal:
        # JsonConverter's decimal.format NUMERIC: a number, which a parser may shorten to an integer.
        if isinstance(raw, Decimal | int) and not isinstance(raw, bool):
            return at_scale(Decimal(raw), scale, schema)
        return scaled(read(raw), scale, schema)

    return decimal


def at_scale(value: Decimal, scale: int, schema: ConnectSchema) -> Decimal:
    """The value with as many digits after the point as its schema says.

    Raises:
        ValueOutOfRangeError: it has more that are not zero, or is no number.
    """
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or abs(exponent) > _MOST_SCALE:
        raise ValueOutOfRangeError(f"{shown(value)} is no {schema.name or 'decimal'}")
    missing = scale + exponent
    if missing < 0:
        if any(digits[missing:]):
            raise ValueOutOfRangeError(f"{shown(value)} has more than {scale} digits after the point")
        return Decimal((sign, digits[:missing] or (0,), -scale))
    return Decimal((sign, digits + (0,) * missing, -scale))


def scaled(data: bytes, scale: int, schema: ConnectSchema) -> Decimal:
    """The decimal of an unscaled number's bytes (big-endian two's complement), with all its digits.

    Raises:
        ValueOutOfRangeError: more digits or a wider scale than a database has.
    """
    if len(data) > _MOST_BYTES or abs(scale) > _MOST_SCALE:
        raise ValueOutOfRangeError(f"{len(data)} bytes at scale {scale} are no {schema.name or 'decimal'}")
    sign, digits, _ = Decimal(int.from_bytes(data, "big", signed=True)).as_tuple()
    return Decimal((sign, digits, -scale))


def whole_parameter(schema: ConnectSchema, name: str) -> int | None:
    """A parameter that is a whole number, or None where the schema has none.

    Raises:
        SchemaMismatchError: it is something else.
    """
    text = schema.parameters.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise SchemaMismatchError(f"{name} of {schema.name or schema.type} is {shown(text)}") from error


def _variable_scale(schema: ConnectSchema) -> WireReader:
    read = bytes_reader(schema)

    def decimal(raw: object) -> Decimal:
        if not isinstance(raw, Mapping) or not isinstance(raw.get("scale"), int):
            raise _mismatch(raw, schema)
        return scaled(read(raw.get("value")), raw["scale"], schema)

    return decimal


def _bits(schema: ConnectSchema) -> WireReader:
    length = whole_parameter(schema, "length") or 64
    read = bytes_reader(schema)
    if length > 64:
        return read

    def number(raw: object) -> int:
        # Debezium writes the lowest byte first, and as many as the value needs (PostgreSQL) or has (MySQL).
        value = int.from_bytes(read(raw), "little")
        if value >> length:
            raise ValueOutOfRangeError(f"{shown(raw)} has more than {length} bits")
        return value

    return number


def _geometry(schema: ConnectSchema) -> WireReader:
    read = bytes_reader(replace(schema, name="geometry"))

    def geometry(raw: object) -> bytes:
        if not isinstance(raw, Mapping):
            raise _mismatch(raw, schema)
        return ewkb(raw, read)

    return geometry


_PLAIN: Final[dict[str, Callable[[ConnectSchema], WireReader]]] = {
    **dict.fromkeys(_INTEGER_BITS, _integer),
    "float32": _float,
    "float64": _float,
    "boolean": _boolean,
    "string": _text,
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
    "unscaled": _unscaled,
    "variable_scale": _variable_scale,
    "bits": _bits,
    "geometry": _geometry,
    "structure": _structure,
}
