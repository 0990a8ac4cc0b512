"""Python values to text: canal-json's wire text, and JSON.

``text_writer`` is the inverse of ``parse.text_reader``. TiCDC (tiflow c7b2588): decimals padded to their
scale, floats with the fewest digits that identify them and never an exponent, ENUM as its index, SET and
BIT as numbers, bytes as U+0000 to U+00FF.

JSON is the form of ``tidesink decode -o json``, used wherever rows are shown or sent as JSON. Integers are
exact (unsigned 64-bit too); FLOAT is the shortest number that identifies its 32 bits; values that are no
JSON number (Postgres) are the text NaN, Infinity or -Infinity; DECIMAL is text at its scale; binary is
``{"base64": …}``; dates, times, JSON and VECTOR are the source's text.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from tidesink.errors import EncodeError, ValueOutOfRangeError, shown
from tidesink.events import ColumnType, Value
from tidesink.typemap.parse import DECIMAL, TextReader, fit_decimal, shortest_float32, text_reader
from tidesink.typemap.table import Reader, row_of

TextWriter = Callable[[Value], str]


def text_writer(column_type: ColumnType) -> TextWriter:
    """A writer of one column's values, NULL excepted.

    The writer raises EncodeError for what is no value of the type. Decimals may be given as text.
    """
    return _WRITERS[row_of(column_type).reader](column_type)


def _refuse(value: object, column_type: ColumnType) -> EncodeError:
    return EncodeError(f"{type(value).__name__} {shown(value)} is no {column_type.sql or column_type.name}")


def _checked(read: TextReader, column_type: ColumnType, text: str, value: object) -> str:
    try:
        read(text)
    except ValueOutOfRangeError as error:
        raise _refuse(value, column_type) from error
    return text


def _integer(column_type: ColumnType) -> TextWriter:
    read = text_reader(column_type)

    def write(value: Value) -> str:
        if not isinstance(value, int):
            raise _refuse(value, column_type)
        return _checked(read, column_type, str(int(value)), value)

    return write


def plain_float(value: float) -> str:
    """A float's shortest digits without an exponent, and without a fraction where it has none."""
    text = repr(value)
    if "e" in text:
        text = format(Decimal(text), "f")
    return text.removesuffix(".0")


def _float(column_type: ColumnType) -> TextWriter:
    single = column_type.name == "float"

    def write(value: Value) -> str:
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise _refuse(value, column_type)
        try:
            return plain_float(shortest_float32(value) if single else float(value))
        except OverflowError as error:
            raise _refuse(value, column_type) from error

    return write


def _decimal(column_type: ColumnType) -> TextWriter:
    def write(value: Value) -> str:
        if isinstance(value, str) and DECIMAL.fullmatch(value):
            value = Decimal(value)
        if not isinstance(value, Decimal | int) or not Decimal(value).is_finite():
            raise _refuse(value, column_type)
        try:
            return format(fit_decimal(Decimal(value), column_type), "f")
        except ValueOutOfRangeError as error:
            raise _refuse(value, column_type) from error

    return write


def _binary(column_type: ColumnType) -> TextWriter:
    def write(value: Value) -> str:
        if not isinstance(value, bytes):
            raise _refuse(value, column_type)
        return value.decode("latin-1")

    return write


def _enum(column_type: ColumnType) -> TextWriter:
    members, number = column_type.members, _integer(column_type)
    # An empty text that is no member is MySQL's error value, index 0; of equal members the first counts.
    numbers = {"": "0"} | {m: str(n) for n, m in reversed(list(enumerate(members or (), 1)))}

    def write(value: Value) -> str:
        if isinstance(value, int):
            return str(value) if members is None else number(value)
        if members is None or not isinstance(value, str) or value not in numbers:
            raise _no_label(value, column_type)
        return numbers[value]

    return write


def _no_label(value: object, column_type: ColumnType) -> EncodeError:
    if column_type.members is None:
        return EncodeError(
            f"{shown(value)}: canal-json carries numbers for {column_type.name} labels, "
            "and only a table definition tells them: give one"
        )
    return _refuse(value, column_type)


def _set(column_type: ColumnType) -> TextWriter:
    members, number = column_type.members, _integer(column_type)
    bits = {member: 1 << bit for bit, member in enumerate(members or ())}

    def write(value: Value) -> str:
        if isinstance(value, int):
            return str(value) if members is None else number(value)
        if not isinstance(value, str) or members is None:
            raise _no_label(value, column_type)
        chosen = value.split(",") if value else []
        if any(label not in bits for label in chosen):
            raise _no_label(value, column_type)
        mask = 0
        for label in chosen:
            mask |= bits[label]
        return str(mask)

    return write


def _text(column_type: ColumnType) -> TextWriter:
    read = text_reader(column_type)

    def write(value: Value) -> str:
        if not isinstance(value, str):
            raise _refuse(value, column_type)
        return _checked(read, column_type, value, value)

    return write


def _boolean(column_type: ColumnType) -> TextWriter:
    def write(value: Value) -> str:
        if not isinstance(value, bool):
            raise _refuse(value, column_type)
        return "1" if value else "0"

    return write


_WRITERS: dict[Reader, Callable[[ColumnType], TextWriter]] = {
    "integer": _integer,
    "unsigned64": _integer,
    "float32": _float,
    "float64": _float,
    "decimal": _decimal,
    "text": _text,
    "binary": _binary,
    "bit": _integer,
    "enum": _enum,
    "set": _set,
    "date": _text,
    "datetime": _text,
    "timestamp": _text,
    "time": _text,
    "boolean": _boolean,
    "local_date": _text,
    "local_datetime": _text,
    "instant": _text,
}


# How a value is read -> what it is in JSON; the others are texts.
_TYPES: Final[Mapping[Reader, str]] = MappingProxyType(
    {
        "integer": "number",
        "unsigned64": "number",
        "bit": "number",
        "float32": "number",
        "float64": "number",
        "boolean": "boolean",
        "binary": '{"base64": string}',
    }
)


def json_type(column_type: ColumnType) -> str:
    """What ``json_value`` makes of a type's values; of an ENUM or SET without members labels or numbers."""
    row = row_of(column_type)
    if row.parameter == "allowed" and column_type.members is None:
        return "string or number"
    return _TYPES.get(row.reader, "string")


def json_value(value: Value, column_type: ColumnType | None = None) -> Any:
    """A value as orjson and json write it; ``column_type`` tells a FLOAT from a DOUBLE."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode("ascii")}
    if isinstance(value, Decimal):
        return format(value, "f")
    if not math.isfinite(value):
        # Postgres stores them. JSON has no such numbers; these are the texts that Kafka Connect writes.
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return shortest_float32(value) if column_type is not None and column_type.name == "float" else value
