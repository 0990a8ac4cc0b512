"""Wire values to Python's: one reader a logical type, both codecs share them.

Two steps, kept apart. ``text_reader`` and ``wire_unsigned`` give the value TiDB held, in the form
``change.py`` states. ``target_reader`` goes on to what a table target stores (dates, timestamps in
UTC), where the zero-date policy applies. Decimals never pass through a float.
"""

from __future__ import annotations

import calendar
import re
import struct
from collections.abc import Callable, Iterable
from datetime import date, datetime, timezone, tzinfo
from decimal import Context, Decimal, InvalidOperation
from functools import partial

from tidesink.change import ColumnType, Value
from tidesink.errors import ValueOutOfRangeError
from tidesink.typemap.render import ZeroDate, spark_type
from tidesink.typemap.table import Reader, TypeRow, row_of

TargetValue = Value | date | datetime

# MySQL's DECIMAL holds at most 65 digits; Python's default context would round at 28.
DECIMAL_CONTEXT = Context(prec=100, Emax=999999, Emin=-999999)

_INTEGER = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,65}(\.[0-9]{1,30})?", re.ASCII)
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})", re.ASCII)
_DATETIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?", re.ASCII
)
_TIME = re.compile(r"-?[0-9]{2,3}:[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?", re.ASCII)
_MAX_HOURS = 838


def _refuse(text: object, column_type: ColumnType) -> ValueOutOfRangeError:
    return ValueOutOfRangeError(f"{text!r:.80} is no {column_type.sql or column_type.name}")


def _integer(text: str, column_type: ColumnType, row: TypeRow) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise _refuse(text, column_type)
    value = int(text)
    if row.minimum is not None and not row.minimum <= value <= (row.maximum or 0):
        raise _refuse(text, column_type)
    return value


def _bit(text: str, column_type: ColumnType, row: TypeRow) -> int:
    value = _integer(text, column_type, row)
    if not 0 <= value < 1 << (column_type.length or 64):
        raise _refuse(text, column_type)
    return value


def _float64(text: str, column_type: ColumnType, _row: TypeRow) -> float:
    if _FLOAT.fullmatch(text) is None:
        raise _refuse(text, column_type)
    return float(text)


def _float32(text: str, column_type: ColumnType, row: TypeRow) -> float:
    try:
        (value,) = struct.unpack("<f", struct.pack("<f", _float64(text, column_type, row)))
    except OverflowError as error:
        raise _refuse(text, column_type) from error
    return float(value)


def _decimal(text: str, column_type: ColumnType, _row: TypeRow) -> Decimal:
    if _DECIMAL.fullmatch(text) is None:
        raise _refuse(text, column_type)
    return fit_decimal(Decimal(text), column_type)


def fit_decimal(value: Decimal, column_type: ColumnType) -> Decimal:
    """The value at the column's scale, unchanged; refused where it does not fit.

    Raises:
        ValueOutOfRangeError: more digits than the column's precision, or a fraction it cannot hold.
    """
    if column_type.scale is None or column_type.precision is None:
        return value
    try:
        fitted = value.quantize(Decimal(1).scaleb(-column_type.scale), context=DECIMAL_CONTEXT)
    except InvalidOperation as error:
        raise _refuse(value, column_type) from error
    if fitted != value or len(fitted.as_tuple().digits) > column_type.precision:
        raise _refuse(value, column_type)
    return fitted


def _binary(text: str, column_type: ColumnType, _row: TypeRow) -> bytes:
    # canal-json writes each byte as U+0000 to U+00FF (TiCDC tiflow c7b2588, ISO-8859-1).
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise _refuse(text, column_type) from error


def _enum(text: str, column_type: ColumnType, row: TypeRow) -> str | int:
    index = _integer(text, column_type, row)
    members = column_type.members
    if members is None:
        return index
    if index == 0:
        return ""  # MySQL's error value: index 0 is the empty string.
    if not 0 < index <= len(members):
        raise _refuse(text, column_type)
    return members[index - 1]


def _set(text: str, column_type: ColumnType, row: TypeRow) -> str | int:
    mask = _integer(text, column_type, row)
    members = column_type.members
    if members is None:
        return mask
    if not 0 <= mask < 1 << len(members):
        raise _refuse(text, column_type)
    return ",".join(member for bit, member in enumerate(members) if mask >> bit & 1)


def _shaped(pattern: re.Pattern[str], text: str, column_type: ColumnType, _row: TypeRow) -> str:
    if pattern.fullmatch(text) is None:
        raise _refuse(text, column_type)
    return text


def _time(text: str, column_type: ColumnType, row: TypeRow) -> str:
    _shaped(_TIME, text, column_type, row)
    if int(text.lstrip("-").split(":", 1)[0]) > _MAX_HOURS:
        raise _refuse(text, column_type)
    return text


def _as_is(text: str, _column_type: ColumnType, _row: TypeRow) -> str:
    return text


_TEXT_READERS: dict[Reader, Callable[[str, ColumnType, TypeRow], Value]] = {
    "integer": _integer,
    "unsigned64": _integer,
    "float32": _float32,
    "float64": _float64,
    "decimal": _decimal,
    "text": _as_is,
    "binary": _binary,
    "bit": _bit,
    "enum": _enum,
    "set": _set,
    "date": partial(_shaped, _DATE),
    "datetime": partial(_shaped, _DATETIME),
    "timestamp": partial(_shaped, _DATETIME),
    "time": _time,
}


def text_reader(column_type: ColumnType) -> Callable[[str], Value]:
    """A reader of canal-json's text for one column.

    The reader raises ValueOutOfRangeError for text that is no value of the type.
    """
    row = row_of(column_type)
    read = _TEXT_READERS[row.reader]
    return lambda text: read(text, column_type, row)


def wire_unsigned(value: int) -> int:
    """An unsigned 64-bit value from the signed long on the wire (TiCDC mode ``long`` wraps above 2^63-1)."""
    return value & 0xFFFF_FFFF_FFFF_FFFF


def shortest_float32(value: float) -> float:
    """The double with the fewest digits that still names this 32-bit float."""
    packed = struct.pack("<f", value)
    for digits in range(6, 10):
        candidate = float(f"{value:.{digits}g}")
        if struct.pack("<f", candidate) == packed:
            return candidate
    return value


def is_calendar_date(text: str) -> bool:
    """Whether the date part of MySQL's text is a day of the calendar (year 1 to 9999)."""
    found = _DATE.match(text)
    if found is None:
        return False
    year, month, day = (int(part) for part in found.groups())
    return year > 0 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]


def _to_date(text: str) -> date:
    return date.fromisoformat(text)


def _to_datetime(text: str) -> datetime:
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(whole).replace(microsecond=int(fraction.ljust(6, "0")) if fraction else 0)


def _to_timestamp(text: str, zone: tzinfo) -> datetime:
    return _to_datetime(text).replace(tzinfo=zone).astimezone(timezone.utc)


def _calendar_reader(
    to_python: Callable[[str], TargetValue], column_type: ColumnType, zero_date: ZeroDate
) -> Callable[[Value], TargetValue]:
    def read(value: Value) -> TargetValue:
        if value is None:
            return None
        text = str(value)
        if is_calendar_date(text):
            return to_python(text)
        if zero_date == "null":
            return None
        raise ValueOutOfRangeError(
            f"{text!r} is no day of the calendar ({column_type.sql or column_type.name}): "
            "set zero-date: null or text for this table"
        )

    return read


def target_reader(
    column_type: ColumnType, *, time_zone: tzinfo, zero_date: ZeroDate
) -> Callable[[Value], TargetValue]:
    """A reader from a ChangeEvent's value to what a table target stores for the column's Spark type.

    DATE gives ``date``, DATETIME a ``datetime`` without zone, TIMESTAMP one in UTC; a decimal that
    Spark cannot hold and a number without labels give text; everything else passes.
    """
    reader = row_of(column_type).reader
    ddl = spark_type(column_type, zero_date=zero_date).ddl
    if ddl == "string":
        return _to_text
    if reader == "date":
        return _calendar_reader(_to_date, column_type, zero_date)
    if reader == "datetime":
        return _calendar_reader(_to_datetime, column_type, zero_date)
    if reader == "timestamp":
        return _calendar_reader(partial(_to_timestamp, zone=time_zone), column_type, zero_date)
    return _unchanged


def _unchanged(value: Value) -> TargetValue:
    return value


def _to_text(value: Value) -> TargetValue:
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value) if isinstance(value, int) else value


def readers(types: Iterable[tuple[str, ColumnType]]) -> dict[str, Callable[[str], Value]]:
    """Text readers by column name."""
    return {name: text_reader(column_type) for name, column_type in types}
