"""A value as its Connect schema tells it, to the type a table definition gives its column.

A definition knows what the wire does not: that a BIGINT is unsigned, that text is base64 of binary, that
a text is a DECIMAL. A value the defined type cannot hold is refused, never bent.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable
from datetime import datetime, timezone
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo

from tidesink.codecs.debezium_values_modes import BinaryHandling, DebeziumModes
from tidesink.codecs.debezium_values_scalars import WORDS
from tidesink.errors import SchemaMismatchError, ValueOutOfRangeError, shown
from tidesink.events import ColumnType, Value
from tidesink.typemap.parse import fit_decimal, integer_bounds, text_reader, wire_unsigned
from tidesink.typemap.table import Reader, row_of

Fit = Callable[[Value], Value]

_FLOAT32: Final = struct.Struct("<f")
# BigDecimal.toString writes an exponent where a scale is negative or wide.
_NUMBER: Final = re.compile(r"-?[0-9]{1,131072}(?:\.[0-9]{1,16383})?(?:[eE][+-]?[0-9]{1,5})?", re.ASCII)
# A double names every decimal of 15 digits, whole ones and those of the scale, and not every one of 16.
_SURE_DIGITS: Final = 15
_URL_SAFE: Final = str.maketrans("-_", "+/")


def fitting(column_type: ColumnType, modes: DebeziumModes) -> Fit:
    """What makes a value of the column's type out of a value of the wire.

    The function raises ValueOutOfRangeError for a value the type cannot hold and SchemaMismatchError for
    one of another kind.
    """
    return _FITS[row_of(column_type).reader](column_type, modes)


def _refuse(value: object, column_type: ColumnType, why: str = "") -> ValueOutOfRangeError:
    return ValueOutOfRangeError(f"{shown(value)} is no {column_type.sql or column_type.name}{why}")


def _mismatch(value: object, column_type: ColumnType) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"{type(value).__name__} {shown(value)} is no {column_type.sql or column_type.name}: "
        "the table definition and the topic differ"
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


def _bit(column_type: ColumnType, modes: DebeziumModes) -> Fit:
    number = _integer(column_type, modes)
    return lambda value: number(int.from_bytes(value, "little") if isinstance(value, bytes) else value)


def _boolean(column_type: ColumnType, _modes: DebeziumModes) -> Fit:
    def fit(value: Value) -> Value:
        if not isinstance(value, int):
            raise _mismatch(value, column_type)
        if value not in (0, 1):
            raise _refuse(value, column_type)
        return bool(value)

    return fit


def _decimal(column_type: ColumnType, _modes: DebeziumModes) -> Fit:
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
    """The decimal a double was made of, where its scale leaves no other: fifteen digits at most."""
    scale = column_type.scale
    if scale is None or not abs(value) < 10.0 ** (_SURE_DIGITS - scale):
        raise _refuse(
            value,
            column_type,
            " that a double names for sure: set decimal.handling.mode to precise or string, "
            "or define the column as DOUBLE",
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
            found = float(value)
            if single:
                _FLOAT32.pack(found)
        except OverflowError as error:
            raise _refuse(value, column_type) from error
        if math.isinf(found) and not isinstance(value, float):
            raise _refuse(value, column_type)
        return found

    return fit


def _text(column_type: ColumnType, _modes: DebeziumModes) -> Fit:
    def fit(value: Value) -> Value:
        if not isinstance(value, str):
            raise _mismatch(value, column_type)
        return value

    return fit


def _binary(column_type: ColumnType, modes: DebeziumModes) -> Fit:
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
    """MySQL's text of a time: as many digits of a second as the column has.

    Raises:
        ValueOutOfRangeError: the time has more that are not zero.
    """
    whole, _, fraction = text.partition(".")
    digits = column_type.fsp
    if digits is None or (not fraction.isdigit() and fraction):
        return text
    if len(fraction) > digits:
        raise _refuse(text, column_type, f": it has more than {digits} digits of a second")
    return f"{whole}.{fraction.ljust(digits, '0')}" if digits else whole


def _timestamp(column_type: ColumnType, modes: DebeziumModes) -> Fit:
    zone = ZoneInfo(modes.time_zone)
    in_column = _fractional(column_type, modes)

    def fit(value: Value) -> Value:
        if not isinstance(value, str):
            raise _mismatch(value, column_type)
        return in_column(_local(value, zone, column_type) if value[-6:-5] in ("+", "-") else value)

    return fit


def _local(text: str, zone: ZoneInfo, column_type: ColumnType) -> str:
    whole, _, fraction = text[:-6].partition(".")
    try:
        local = datetime.fromisoformat(whole + text[-6:]).astimezone(timezone.utc).astimezone(zone)
    except (ValueError, OverflowError) as error:
        raise _refuse(text, column_type) from error
    if local.fold:
        raise _refuse(text, column_type, f": in {zone} its hour comes twice; give UTC as the time zone")
    shown_local = local.replace(tzinfo=None).isoformat(" ")
    return f"{shown_local}.{fraction}" if fraction else shown_local


_FITS: Final[dict[Reader, Callable[[ColumnType, DebeziumModes], Fit]]] = {
    "integer": _integer,
    "unsigned64": _integer,
    "float32": _float,
    "float64": _float,
    "decimal": _decimal,
    "text": _text,
    "binary": _binary,
    "bit": _bit,
    "enum": _text,
    "set": _text,
    "date": _fractional,
    "datetime": _fractional,
    "timestamp": _timestamp,
    "time": _fractional,
    "boolean": _boolean,
    "local_date": _text,
    "local_datetime": _text,
    "instant": _text,
}
