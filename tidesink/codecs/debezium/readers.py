"""Readers of Debezium's column values, created from a Connect schema or from a table definition.

Written from Debezium 3.5 (real events of MariaDB and PostgreSQL), its documentation for cases without
captures (Oracle, SQL Server), and TiCDC's ``debezium`` and ``debezium-avro`` (b813e76).

With a schema, call ``column_of`` for a field, then ``reader_of`` once for the column, and the returned
function for each value. A table definition in the config adds facts that records do not contain: that a
BIGINT is unsigned, that text is base64 of binary, that a text is a DECIMAL. A value that does not fit the
defined type raises an error; it is never changed to fit.

Without a schema (``schemas.enable: false``) a record has only JSON's own types: a number of days, milli- or
microseconds is a number, and bytes are text. Then only a table definition and the connector's modes show what
a value means (``definition_reader``). Without a definition, a column's type is inferred from its value:
boolean, whole number, number, or text (``infer_column``, ``inferred_value``).
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from functools import partial
from typing import Final
from zoneinfo import ZoneInfo

from tidesink.codecs.base import UNAVAILABLE_PLACEHOLDER, Unavailable
from tidesink.codecs.debezium import structured
from tidesink.codecs.debezium.connect_schema import NO_PARAMETERS, ConnectSchema, ConnectType
from tidesink.codecs.debezium.scalars import WORDS, scale_of
from tidesink.codecs.debezium.values import placeholders, wire_reader, wire_type
from tidesink.codecs.options import BinaryHandling, DebeziumModes, TimePrecision
from tidesink.errors import DecodeError, SchemaMismatchError, ValueOutOfRangeError, shown
from tidesink.events import Column, ColumnType, Value
from tidesink.typemap.table import Reader, row_of
from tidesink.typemap.values import FoldedTime, fit_decimal, integer_bounds, text_reader, wire_unsigned

ValueReader = Callable[[object], "Value | Unavailable"]


def reader_of(schema: ConnectSchema, *, column: Column, modes: DebeziumModes) -> ValueReader:
    """Returns the function that reads the values of one column from records.

    ``column`` comes from ``column_of`` or from a table definition. The function accepts the values of
    fastavro or of a JSON parser that reads numbers with a fraction as Decimal. For a value that the connector
    did not have it returns ``UNAVAILABLE_PLACEHOLDER``; the target then keeps its stored value.

    The function raises ValueOutOfRangeError for a value that the column cannot hold and SchemaMismatchError
    for a value of another kind; both name the column.
    """
    absent = placeholders(schema, modes)
    if row_of(column.type).reader == "time":
        schema = structured.as_elapsed(schema)
    read = wire_reader(schema)
    fit = None if has_own_type(schema, column) else fitting(column.type, modes)

    def value(raw: object) -> Value | Unavailable:
        if raw is None:
            return None
        if raw in absent:
            return UNAVAILABLE_PLACEHOLDER
        try:
            decoded = read(raw)
            return decoded if fit is None else fit(decoded)
        except DecodeError as error:
            raise error.with_context(column=column.name) from None

    return value


def has_own_type(schema: ConnectSchema, column: Column) -> bool:
    """Returns True if a column has the very type that its Connect schema describes.

    The values that are read by the schema are then already values of the column.
    """
    own, defined = wire_type(schema), column.type
    if own.name != defined.name:
        return False
    if row_of(own).reader == "bit":
        return own.length == defined.length
    if row_of(own).reader != "decimal":
        return True
    # Decimals in another format, or with a negative scale, are not read with the column's scale.
    same = (own.precision, own.scale) == (defined.precision, defined.scale)
    return same and schema.type == "bytes" and _scale_is_kept(schema)


def _scale_is_kept(schema: ConnectSchema) -> bool:
    return (scale_of(schema) or 0) >= 0


_TIME: Final = "io.debezium.time."
_DATA: Final = "io.debezium.data."
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
# The fraction digits of types without a number: 0 for MySQL's DATETIME, 6 for PostgreSQL's types.
_OWN_FSP: Final = {"datetime": 0}
_MOST_FSP: Final = 6
_INT64_END: Final = 1 << 63

Implied = Callable[[ColumnType, object, DebeziumModes], ConnectSchema]


def definition_reader(column: Column, *, modes: DebeziumModes) -> ValueReader:
    """Returns the function that reads a column's values from JSON without a schema.

    ``column`` comes from a table definition. The function raises ValueOutOfRangeError for a value that the
    column cannot hold and SchemaMismatchError for a value of another kind; both name the column.
    """
    readers: dict[tuple[type, str | None], ValueReader] = {}

    def read(raw: object) -> Value | Unavailable:
        # Objects of one column differ in their members, for example if a transform dropped a structured
        # time's nulls.
        form = type(raw), structured.name_of(raw) if isinstance(raw, Mapping | list) else None
        reader = readers.get(form)
        if reader is None:
            try:
                schema = implied_schema(column, raw, modes)
            except SchemaMismatchError as error:
                raise error.with_context(column=column.name) from None
            reader = readers[form] = reader_of(schema, column=column, modes=modes)
        return reader(raw)

    return read


def implied_schema(column: Column, raw: object, modes: DebeziumModes) -> ConnectSchema:
    """Returns the Connect schema with which the connector must have written this JSON value into this column.

    Raises:
        SchemaMismatchError: the connector does not write such a value into a column of this type.
    """
    if isinstance(raw, list | Mapping):
        return _nested(column.type, raw)
    return _IMPLIED[row_of(column.type).reader](column.type, raw, modes)


def _schema(kind: ConnectType, name: str | None = None, **parameters: str) -> ConnectSchema:
    return ConnectSchema(kind, name, parameters or NO_PARAMETERS, optional=True)


# Types whose values are arrays, maps and structs. An object is not a value of any other column.
_STRUCTURES: Final = frozenset({"json", "array", "map", "struct", "vector", "sparse vector", "other text"})
# Types whose objects are read unchanged, even with the members of a structured time.
_OBJECTS: Final = frozenset({"json", "map", "struct"})


def _nested(column_type: ColumnType, raw: object) -> ConnectSchema:
    row = row_of(column_type)
    name = None if column_type.name in _OBJECTS else structured.name_of(raw)
    if name is not None and isinstance(raw, Mapping):
        return _schema("struct", _TIME + name)
    if name is not None and column_type.name in _STRUCTURES:
        return replace(_schema("array"), items=_items(raw, _schema("struct", _TIME + name)))
    if row.reader == "decimal":
        return _schema("struct", _DATA + "VariableScaleDecimal")
    if row.reader == "binary":
        return _schema("struct", _DATA + "geometry.Geometry")
    if row.reader != "text" or column_type.name not in _STRUCTURES:
        kind = "an object" if isinstance(raw, Mapping) else "an array"
        raise SchemaMismatchError(
            f"The value is {kind} in JSON, but the table definition declares "
            f"{column_type.sql or column_type.name}. Declare the source's column type in the "
            "definition, or change the connector's setting for that type (for example "
            "hstore.handling.mode)."
        )
    return _schema("array") if isinstance(raw, list) else _schema("map")


def _items(raw: object, inner: ConnectSchema) -> ConnectSchema:
    """Returns a Connect schema for the items of the JSON array ``raw``.

    ``inner`` is the schema of the innermost items. If the items are arrays themselves, the result is an array
    schema that is nested as deeply as they are.
    """
    inside = next((item for item in raw if isinstance(item, list)), None) if isinstance(raw, list) else None
    return inner if inside is None else replace(_schema("array"), items=_items(inside, inner))


def _number(kind: ConnectType, _type: ColumnType, raw: object, _modes: DebeziumModes) -> ConnectSchema:
    if isinstance(raw, bool):
        return _schema("boolean")
    return _schema("string" if isinstance(raw, str) and kind != "float64" else kind)


def _unsigned(_type: ColumnType, raw: object, modes: DebeziumModes) -> ConnectSchema:
    if isinstance(raw, str) and modes.bigint_unsigned_handling_mode != "precise":
        return _schema("string")
    return _schema("bytes", _DECIMAL, scale="0")


def _decimal_schema(column_type: ColumnType, raw: object, modes: DebeziumModes) -> ConnectSchema:
    scale = column_type.scale
    if isinstance(raw, str):
        if modes.decimal_handling_mode != "precise" or scale is None:
            return _schema("string")
    elif modes.decimal_handling_mode != "precise" or modes.decimal_format != "numeric":
        # None of these modes writes a number: TiCDC (b813e76) writes decimals as doubles.
        return _schema("float64")
    return _schema("bytes", _DECIMAL, **({} if scale is None else {"scale": str(scale)}))


def _text_schema(column_type: ColumnType, raw: object, modes: DebeziumModes) -> ConnectSchema:
    if column_type.name == "local time":
        return _time(column_type, raw, modes)
    if column_type.name == "interval" and isinstance(raw, int):
        return _schema("int64", _TIME + "MicroDuration")
    return _schema("string")


def _binary_schema(_type: ColumnType, _raw: object, modes: DebeziumModes) -> ConnectSchema:
    return _schema("bytes" if modes.binary_handling_mode == "bytes" else "string")


def _bit_schema(column_type: ColumnType, raw: object, _modes: DebeziumModes) -> ConnectSchema:
    if isinstance(raw, bool):
        return _schema("boolean")
    return _schema("bytes", _DATA + "Bits", length=str(column_type.length or 1))


def _boolean_schema(_type: ColumnType, raw: object, _modes: DebeziumModes) -> ConnectSchema:
    return _schema("boolean" if isinstance(raw, bool) else "int16")


def _date(_type: ColumnType, raw: object, _modes: DebeziumModes) -> ConnectSchema:
    return _schema("string", _TIME + "IsoDate") if isinstance(raw, str) else _schema("int32", _TIME + "Date")


def _datetime(column_type: ColumnType, raw: object, modes: DebeziumModes) -> ConnectSchema:
    if isinstance(raw, str):
        return _schema("string", _TIME + "IsoTimestamp")
    return _schema("int64", _TIME + _UNITS[_unit(column_type, modes)] + "Timestamp")


def _timestamp_schema(column_type: ColumnType, raw: object, modes: DebeziumModes) -> ConnectSchema:
    # MySQL's TIMESTAMP is text in every mode; PostgreSQL's type of that name is a date and time without a
    # zone.
    if isinstance(raw, str) and modes.time_precision_mode != "isostring":
        return _schema("string", _TIME + "ZonedTimestamp")
    if isinstance(raw, str) and raw.endswith("Z"):
        return _schema("string", _TIME + "ZonedTimestamp")
    return _datetime(column_type, raw, modes)


def _time(column_type: ColumnType, raw: object, modes: DebeziumModes) -> ConnectSchema:
    if isinstance(raw, str):
        return _schema("string", _TIME + "IsoTime")
    unit = _unit(column_type, modes)
    if modes.time_precision_mode == "adaptive_time_microseconds":
        unit = max(unit, 6)
    return _schema("int32" if unit == 3 else "int64", _TIME + _UNITS[unit] + "Time")


_UNITS: Final = {3: "", 6: "Micro", 9: "Nano"}
_FIXED_UNIT: Final[dict[TimePrecision, int]] = {"connect": 3, "microseconds": 6, "nanoseconds": 9}


def _unit(column_type: ColumnType, modes: DebeziumModes) -> int:
    """Returns the unit in which times are counted, as digits of a second: 3 (ms), 6 (µs) or 9 (ns)."""
    fixed = _FIXED_UNIT.get(modes.time_precision_mode)
    if fixed is not None:
        return fixed
    fsp = column_type.fsp if column_type.fsp is not None else _OWN_FSP.get(column_type.name, _MOST_FSP)
    return 3 if fsp <= 3 else 6 if fsp <= _MOST_FSP else 9


_IMPLIED: Final[dict[Reader, Implied]] = {
    "integer": partial(_number, "int64"),
    "unsigned64": _unsigned,
    "float32": partial(_number, "float64"),
    "float64": partial(_number, "float64"),
    "decimal": _decimal_schema,
    "text": _text_schema,
    "binary": _binary_schema,
    "bit": _bit_schema,
    "enum": _text_schema,
    "set": _text_schema,
    "date": _date,
    "datetime": _datetime,
    "timestamp": _timestamp_schema,
    "time": _time,
    "boolean": _boolean_schema,
    "local_date": _date,
    "local_datetime": _datetime,
    "instant": _timestamp_schema,
}


def infer_column(name: str, raw: object) -> Column:
    """Returns a column whose type is inferred from a JSON value, for a column without a definition.

    The type is boolean, bigint, decimal, json or text. A decimal has no precision, since JSON does not
    distinguish a DECIMAL from a DOUBLE; Delta stores it as text with all its digits. The type of null is
    text.
    """
    return Column(name, ColumnType(_inferred(raw)))


def _inferred(raw: object) -> str:
    if isinstance(raw, bool):
        return "boolean"
    if isinstance(raw, int):
        return "bigint" if -_INT64_END <= raw < _INT64_END else "decimal"
    if isinstance(raw, Decimal | float):
        return "decimal"
    return "json" if isinstance(raw, list | Mapping) else "text"


def inferred_value(raw: object, *, modes: DebeziumModes) -> Value | Unavailable:
    """Returns a JSON value of a column that was inferred with ``infer_column``.

    Arrays and objects are returned as JSON text, an integer larger than a bigint as a Decimal, a placeholder
    of the connector as ``UNAVAILABLE_PLACEHOLDER``, and all other values unchanged.

    Raises:
        SchemaMismatchError: the value is not a JSON value.
    """
    column = infer_column("", raw)
    kind = _schema("array" if isinstance(raw, list) else "string")
    if isinstance(raw, str | list):
        return reader_of(kind, column=column, modes=modes)(raw)
    if isinstance(raw, Mapping):
        return reader_of(_schema("map"), column=column, modes=modes)(raw)
    if isinstance(raw, int) and column.type.name == "decimal":
        # The type that infer_column chooses; JSON's readers and Arrow cannot hold integers of more than 64
        # bits.
        return Decimal(raw)
    if raw is None or isinstance(raw, int | Decimal):
        return raw
    raise SchemaMismatchError(f"{shown(raw)} is not a JSON value. Parse the JSON with parse_float=Decimal.")


Fit = Callable[[Value], Value]

_FLOAT32: Final = struct.Struct("<f")
# BigDecimal.toString writes an exponent where a scale is negative or wide.
_NUMBER: Final = re.compile(r"-?[0-9]{1,131072}(?:\.[0-9]{1,16383})?(?:[eE][+-]?[0-9]{1,5})?", re.ASCII)
# A double identifies every decimal of 15 digits, before and after the point, but not every decimal of 16.
_SURE_DIGITS: Final = 15
_URL_SAFE: Final = str.maketrans("-_", "+/")


def fitting(column_type: ColumnType, modes: DebeziumModes) -> Fit:
    """Returns a function that converts a value, as it was read from a record, to the column's type.

    The function raises ValueOutOfRangeError for a value that the type cannot hold and SchemaMismatchError for
    a value of another kind.
    """
    return _FITS[row_of(column_type).reader](column_type, modes)


def _refuse(value: object, column_type: ColumnType, why: str = "") -> ValueOutOfRangeError:
    return ValueOutOfRangeError(f"{shown(value)} is not a valid {column_type.sql or column_type.name}{why}.")


def _mismatch(value: object, column_type: ColumnType) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"{type(value).__name__} {shown(value)} is not a valid "
        f"{column_type.sql or column_type.name}, so the table definition does not match the "
        "topic. Correct the column's type in the definition."
    )


def _integer(column_type: ColumnType, _modes: DebeziumModes) -> Fit:
    low, high = integer_bounds(column_type) or (0, (1 << (column_type.length or 64)) - 1)
    unsigned64 = row_of(column_type).reader == "unsigned64"
    read_text = text_reader(column_type)

    def fit(value: Value) -> Value:
        if isinstance(value, str):
            return read_text(value)
        if isinstance(value, bytes) or (number := _whole(value)) is None:
            raise _mismatch(value, column_type)
        # bigint.unsigned.handling.mode long wraps around above 2^63-1.
        if unsigned64 and -(1 << 63) <= number < 0:
            number = wire_unsigned(number)
        if not low <= number <= high:
            raise _refuse(value, column_type)
        return number

    return fit


def _whole(value: Value) -> int | None:
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    return int(value) if isinstance(value, int) else None


def _fit_bit(column_type: ColumnType, modes: DebeziumModes) -> Fit:
    number = _integer(column_type, modes)
    return lambda value: number(int.from_bytes(value, "little") if isinstance(value, bytes) else value)


def _fit_boolean(column_type: ColumnType, _modes: DebeziumModes) -> Fit:
    def fit(value: Value) -> Value:
        if not isinstance(value, int):
            raise _mismatch(value, column_type)
        if value not in (0, 1):
            raise _refuse(value, column_type)
        return bool(value)

    return fit


def _fit_decimal(column_type: ColumnType, _modes: DebeziumModes) -> Fit:
    def fit(value: Value) -> Value:
        if isinstance(value, str):
            if _NUMBER.fullmatch(value) is None:
                raise _refuse(value, column_type)
            value = Decimal(value)
        if isinstance(value, float):
            value = _sure(value, column_type)
        if not isinstance(value, Decimal | int):
            raise _mismatch(value, column_type)
        return fit_decimal(Decimal(value), column_type)

    return fit


def _sure(value: float, column_type: ColumnType) -> Decimal:
    """Returns the DECIMAL value that the source converted to this double.

    Raises:
        ValueOutOfRangeError: at the column's scale, the number has more than fifteen digits, so that several
            decimals are converted to the same double; or the column has no scale.
    """
    scale = column_type.scale
    if scale is None or not abs(value) < 10.0 ** (_SURE_DIGITS - scale):
        raise _refuse(
            value,
            column_type,
            ", because the record has it as a double, which does not determine all of its digits. "
            "Set decimal.handling.mode to precise or string at the connector, or define the column "
            "as DOUBLE",
        )
    return fit_decimal(Decimal(repr(value)), column_type)


def _float(column_type: ColumnType, _modes: DebeziumModes) -> Fit:
    single = row_of(column_type).reader == "float32"

    def fit(value: Value) -> Value:
        if isinstance(value, str) and value in WORDS:
            return WORDS[value]
        if isinstance(value, bool) or not isinstance(value, float | int | Decimal):
            raise _mismatch(value, column_type)
        try:
            number = float(value)
            if single:
                _FLOAT32.pack(number)
        except OverflowError as error:
            raise _refuse(value, column_type) from error
        if math.isinf(number) and not isinstance(value, float):
            raise _refuse(value, column_type)
        return number

    return fit


def _fit_text(column_type: ColumnType, _modes: DebeziumModes) -> Fit:
    is_interval = column_type.name == "interval"

    def fit(value: Value) -> Value:
        if is_interval and isinstance(value, int) and not isinstance(value, bool):
            return _duration(value)
        if not isinstance(value, str):
            raise _mismatch(value, column_type)
        return value

    return fit


def _duration(microseconds: int) -> str:
    """Formats microseconds as an ISO 8601 duration in seconds, such as ``PT90.5S``.

    Months and days are not written, because a number of microseconds does not contain them.
    """
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    text = f"{seconds}.{fraction:06d}".rstrip("0").rstrip(".")
    return f"PT{'-' if microseconds < 0 else ''}{text}S"


def _fit_binary(column_type: ColumnType, modes: DebeziumModes) -> Fit:
    decode = _BINARY[modes.binary_handling_mode]

    def fit(value: Value) -> Value:
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str):
            raise _mismatch(value, column_type)
        try:
            return decode(value)
        except (binascii.Error, ValueError) as error:
            raise _refuse(
                value, column_type, f" in binary.handling.mode {modes.binary_handling_mode}"
            ) from error

    return fit


_BINARY: Final[dict[BinaryHandling, Callable[[str], bytes]]] = {
    # JsonConverter writes bytes as base64 too.
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "base64": lambda text: base64.b64decode(text, validate=True),
    "base64-url-safe": lambda text: base64.b64decode(
        text.translate(_URL_SAFE) + "=" * (-len(text) % 4), validate=True
    ),
    "hex": bytes.fromhex,
}


def _fractional(column_type: ColumnType, _modes: DebeziumModes) -> Fit:
    read = text_reader(column_type)

    def fit(value: Value) -> Value:
        if not isinstance(value, str):
            raise _mismatch(value, column_type)
        return read(padded(value, column_type))

    return fit


def padded(text: str, column_type: ColumnType) -> str:
    """Returns MySQL's text of a time, padded with zeros to the fraction digits of the column.

    Raises:
        ValueOutOfRangeError: the text has more fraction digits than the column.
    """
    whole, _, fraction = text.partition(".")
    digits = column_type.fsp
    if digits is None or (not fraction.isdigit() and fraction):
        return text
    if len(fraction) > digits:
        raise _refuse(text, column_type, f", because it has more than {digits} fractional digits")
    return f"{whole}.{fraction.ljust(digits, '0')}" if digits else whole


def _fit_timestamp(column_type: ColumnType, modes: DebeziumModes) -> Fit:
    zone = ZoneInfo(modes.time_zone)
    in_column = _fractional(column_type, modes)

    def fit(value: Value) -> Value:
        if not isinstance(value, str):
            raise _mismatch(value, column_type)
        if value[-6:-5] not in ("+", "-"):
            return in_column(value)
        # A second time is refused, so this is the first if there are two.
        return FoldedTime(str(in_column(_local(value, zone, column_type))))

    return fit


def _local(text: str, zone: ZoneInfo, column_type: ColumnType) -> str:
    whole, _, fraction = text[:-6].partition(".")
    try:
        local = datetime.fromisoformat(whole + text[-6:]).astimezone(timezone.utc).astimezone(zone)
    except (ValueError, OverflowError) as error:
        raise _refuse(text, column_type) from error
    if local.fold:
        raise _refuse(
            text,
            column_type,
            f", because its hour occurs twice in the time zone {zone}. Set UTC as the time zone",
        )
    shown_local = local.replace(tzinfo=None).isoformat(" ")
    return f"{shown_local}.{fraction}" if fraction else shown_local


_FITS: Final[dict[Reader, Callable[[ColumnType, DebeziumModes], Fit]]] = {
    "integer": _integer,
    "unsigned64": _integer,
    "float32": _float,
    "float64": _float,
    "decimal": _fit_decimal,
    "text": _fit_text,
    "binary": _fit_binary,
    "bit": _fit_bit,
    "enum": _fit_text,
    "set": _fit_text,
    "date": _fractional,
    "datetime": _fractional,
    "timestamp": _fit_timestamp,
    "time": _fractional,
    "boolean": _fit_boolean,
    "local_date": _fit_text,
    "local_datetime": _fit_text,
    "instant": _fit_text,
}
