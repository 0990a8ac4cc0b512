"""Converts single values: from a record's text, to a record's text, to a target's value, and to JSON.

``text_reader`` and ``wire_unsigned`` return the value that TiDB stored, in the form that ``tidesink.events``
defines. ``target_reader`` converts this value to the form that a target table stores (dates, timestamps in
UTC), and applies the policies for zero dates and for local times that occur twice. Decimals are never
converted to floats. Dates and times keep the text of MySQL and of other databases; valid calendar dates
become Python values.

``text_writer`` is the inverse of ``text_reader``. Its format is TiCDC's (tiflow c7b2588): decimals padded to
their scale, floats with the fewest digits that identify them and never an exponent, ENUM as its index, SET
and BIT as numbers, bytes as U+0000 to U+00FF.

JSON values have the form of ``tidesink decode -o json``, which is used for all rows that are shown or sent as
JSON. Integers are exact (unsigned 64-bit too). A FLOAT is the shortest number that identifies its 32 bits.
Postgres' values for which JSON has no number are the texts NaN, Infinity or -Infinity. DECIMAL is text at its
scale, and binary is ``{"base64": …}``. Dates, times, JSON and VECTOR are the source's text.
"""

from __future__ import annotations

import calendar
import math
import re
import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache, partial
from typing import Any, Final

from tidesink.errors import EncodeError, ValueOutOfRangeError, shown
from tidesink.events import ColumnType, Value
from tidesink.typemap.table import SHAPED_READERS, AmbiguousTime, Reader, ZeroDate, row_of, spark_type

DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})", re.ASCII)
# Other databases' calendars have more: years of any length, years before 1, infinity, picoseconds. MySQL's
# zero dates are included if Debezium sends a date's parts (``time.precision.mode: structured``).
_WIDE_DAY = r"[0-9]{4,9}-(?:0[0-9]|1[0-2])-(?:0[0-9]|[12][0-9]|3[01])"
_WIDE_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,12})?"
_WIDE_OFFSET = r"[+-][0-9]{2}:[0-9]{2}(?::[0-9]{2})?"
LOCAL_DATE = re.compile(rf"{_WIDE_DAY}(?: BC)?|-?infinity", re.ASCII)
LOCAL_DATETIME = re.compile(rf"{_WIDE_DAY} {_WIDE_CLOCK}(?: BC)?|-?infinity", re.ASCII)
INSTANT = re.compile(rf"{_WIDE_DAY} {_WIDE_CLOCK}{_WIDE_OFFSET}(?: BC)?|-?infinity", re.ASCII)


_BEFORE_CHRIST = " BC"


def is_calendar_date(text: str) -> bool:
    """Returns True if a text begins with a valid calendar date of the years 1 to 9999 in MySQL's form."""
    match = DATE.match(text)
    if match is None or text.endswith(_BEFORE_CHRIST):
        return False
    year, month, day = (int(part) for part in match.groups())
    return year > 0 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]


def to_date(text: str) -> date:
    """Parses a date; the text must pass ``is_calendar_date``."""
    return date.fromisoformat(text)


def to_datetime(text: str) -> datetime:
    """Parses a date and time without a zone; the text must pass ``is_calendar_date``."""
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(whole).replace(microsecond=int(fraction.ljust(6, "0")) if fraction else 0)


def to_instant(text: str) -> datetime:
    """Parses a date and time with an offset, and converts it to UTC; the text must pass ``is_calendar_date``.

    Raises:
        ValueOutOfRangeError: In UTC the date is not in the years 1 to 9999.
    """
    clock, offset = _OFFSET.split(text, maxsplit=1)
    try:
        zone = datetime.strptime(offset, "%z").tzinfo
        return to_datetime(clock).replace(tzinfo=zone).astimezone(timezone.utc)
    except (ValueError, OverflowError) as error:
        raise ValueOutOfRangeError(f"{text!r} is not a timestamp of the years 1 to 9999.") from error


def in_microseconds(to_python: Callable[[str], datetime]) -> Callable[[str], datetime]:
    """Returns a function that parses times by ``to_python``, but also accepts more than six fraction digits.

    The function raises ValueOutOfRangeError if a digit after the sixth is not zero, because Python and Spark
    cannot store nanoseconds.
    """

    def read(text: str) -> datetime:
        beyond = _NANOSECONDS.search(text)
        if beyond is None:
            return to_python(text)
        if beyond.group(1).strip("0"):
            raise ValueOutOfRangeError(
                f"{text!r} has nanoseconds, which the target's timestamps cannot store. Define the column "
                "with 7 to 9 fraction digits, so that it is stored as text."
            )
        return to_python(text[: beyond.start(1)] + text[beyond.end(1) :])

    return read


_OFFSET = re.compile(rf"(?={_WIDE_OFFSET}\Z)", re.ASCII)
# The digits after a fraction's sixth digit.
_NANOSECONDS = re.compile(r"\.[0-9]{6}([0-9]{1,6})", re.ASCII)


TargetValue = Value | date | datetime
Convert = Callable[[Value], Value]

# MySQL's DECIMAL has at most 65 digits, 30 of them after the point.
MYSQL_MAX_PRECISION: Final = 65
MYSQL_MAX_SCALE: Final = 30
# Python's default context rounds to 28 digits.
DECIMAL_CONTEXT = Context(prec=100, Emax=999999, Emin=-999999)

# A signed 64-bit number has 19 digits, an unsigned one, BIT and SET at most 20.
_UNSIGNED = (0, 2**64 - 1)
_INTEGER = re.compile(r"-?[0-9]{1,20}", re.ASCII)
DECIMAL = re.compile(rf"-?[0-9]{{1,{MYSQL_MAX_PRECISION}}}(\.[0-9]{{1,{MYSQL_MAX_SCALE}}})?", re.ASCII)
# DOUBLE is written without an exponent, in up to 309 digits before the point or some 340 after it.
_FLOAT = re.compile(r"-?[0-9]{1,400}(?:\.[0-9]{1,1100})?(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
DATETIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2} (?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?", re.ASCII
)
# TIME ranges to 838:59:59 and a fraction on both sides of zero; its hours have two or three digits.
TIME = re.compile(
    r"-?(?:[0-9]{2}|[0-7][0-9]{2}|8[0-2][0-9]|83[0-8]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?", re.ASCII
)
_FLOAT32 = struct.Struct("<f")

TextReader = Callable[[str], Value]


def _refused(text: object, column_type: ColumnType) -> ValueOutOfRangeError:
    return ValueOutOfRangeError(f"{shown(text)} is not a valid {column_type.sql or column_type.name}.")


def _read_integer(column_type: ColumnType, bounds: tuple[int, int] | None = None) -> Callable[[str], int]:
    low, high = bounds or integer_bounds(column_type) or _UNSIGNED

    def read(text: str) -> int:
        # isdigit by itself would accept digits of other scripts; int by itself would accept spaces and
        # underscores.
        if not (text.isdigit() and text.isascii()) and _INTEGER.fullmatch(text) is None:
            raise _refused(text, column_type)
        if len(text) > 20 or not low <= (value := int(text)) <= high:
            raise _refused(text, column_type)
        return value

    return read


def integer_bounds(column_type: ColumnType) -> tuple[int, int] | None:
    """Returns the least and the greatest value of an integer type or BIT; None for any other type.

    A caller may convert text of only ASCII digits itself if the number is within these bounds; the result is
    the same as that of ``text_reader``.
    """
    row = row_of(column_type)
    if row.reader == "bit":
        return 0, (1 << (column_type.length or 64)) - 1
    if row.reader not in ("integer", "unsigned64"):
        return None
    return row.bounds or (0, _UNSIGNED[1])


def _float64(column_type: ColumnType) -> Callable[[str], float]:
    def read(text: str) -> float:
        if _FLOAT.fullmatch(text) is None or math.isinf(value := float(text)):
            raise _refused(text, column_type)
        return value

    return read


def _float32(column_type: ColumnType) -> Callable[[str], float]:
    read_double = _float64(column_type)
    pack, unpack = _FLOAT32.pack, _FLOAT32.unpack

    def read(text: str) -> float:
        try:
            return float(unpack(pack(read_double(text)))[0])
        except OverflowError as error:
            raise _refused(text, column_type) from error

    return read


def _read_decimal(column_type: ColumnType) -> Callable[[str], Decimal]:
    padded = padded_decimal(column_type)

    def read(text: str) -> Decimal:
        # The producer pads to the scale: such text is the value, digit for digit.
        if padded is not None and padded.fullmatch(text) is not None:
            return Decimal(text)
        if DECIMAL.fullmatch(text) is None:
            raise _refused(text, column_type)
        return fit_decimal(Decimal(text), column_type)

    return read


def padded_decimal(column_type: ColumnType) -> re.Pattern[str] | None:
    """Returns the pattern of the texts that TiCDC writes for values of a decimal type.

    The texts are padded to the type's scale. Returns None if the type's precision or scale is not known.
    """
    precision, scale = column_type.precision, column_type.scale
    if precision is None or scale is None:
        return None
    whole = rf"[0-9]{{1,{precision - scale}}}" if precision > scale else "0"
    return re.compile(rf"-?{whole}" + (rf"\.[0-9]{{{scale}}}" if scale else ""), re.ASCII)


def fit_decimal(value: Decimal, column_type: ColumnType) -> Decimal:
    """Returns an equal decimal with exactly as many digits after the point as the column type's scale.

    Raises:
        ValueOutOfRangeError: The value has more digits than the column's precision or scale allows.
    """
    if column_type.scale is None or column_type.precision is None:
        return value
    try:
        fitted = value.quantize(Decimal(1).scaleb(-column_type.scale), context=DECIMAL_CONTEXT)
    except InvalidOperation as error:
        raise _refused(value, column_type) from error
    if fitted != value or len(fitted.as_tuple().digits) > column_type.precision:
        raise _refused(value, column_type)
    return fitted


def _read_binary(column_type: ColumnType) -> Callable[[str], bytes]:
    def read(text: str) -> bytes:
        # canal-json writes each byte as U+0000 to U+00FF (TiCDC, tiflow c7b2588: ISO-8859-1).
        try:
            return text.encode("latin-1")
        except UnicodeEncodeError as error:
            raise _refused(text, column_type) from error

    return read


def _read_enum(column_type: ColumnType) -> TextReader:
    members = column_type.members
    if members is None:
        return _read_integer(column_type)
    # Index 0 is MySQL's error value, the empty string.
    labels = {str(index): label for index, label in enumerate(("", *members))}

    def read(text: str) -> str:
        label = labels.get(text)
        if label is None:
            raise _refused(text, column_type)
        return label

    return read


def _read_set(column_type: ColumnType) -> TextReader:
    members = column_type.members
    if members is None:
        return _read_integer(column_type)
    read_mask = _read_integer(column_type, (0, (1 << len(members)) - 1))

    def read(text: str) -> str:
        mask = read_mask(text)
        return ",".join(member for bit, member in enumerate(members) if mask >> bit & 1)

    return read


def _shaped(pattern: re.Pattern[str], column_type: ColumnType) -> Callable[[str], str]:
    fullmatch = pattern.fullmatch

    def read(text: str) -> str:
        if fullmatch(text) is None:
            raise _refused(text, column_type)
        return text

    return read


_BOOLEANS = {"true": True, "false": False, "1": True, "0": False, "t": True, "f": False}


def _read_boolean(column_type: ColumnType) -> Callable[[str], bool]:
    def read(text: str) -> bool:
        value = _BOOLEANS.get(text.lower())
        if value is None:
            raise _refused(text, column_type)
        return value

    return read


_TEXT_READERS: dict[Reader, Callable[[ColumnType], TextReader]] = {
    **dict.fromkeys(("integer", "unsigned64", "bit"), _read_integer),
    "float32": _float32,
    "float64": _float64,
    "decimal": _read_decimal,
    "text": lambda _type: lambda text: text,
    "binary": _read_binary,
    "enum": _read_enum,
    "set": _read_set,
    **dict.fromkeys(("datetime", "timestamp"), partial(_shaped, DATETIME)),
    "date": partial(_shaped, DATE),
    "time": partial(_shaped, TIME),
    "boolean": _read_boolean,
    "local_date": partial(_shaped, LOCAL_DATE),
    "local_datetime": partial(_shaped, LOCAL_DATETIME),
    "instant": partial(_shaped, INSTANT),
}


def text_reader(column_type: ColumnType) -> TextReader:
    """Returns a function that reads canal-json's text of one column's values.

    The function raises ValueOutOfRangeError for text that is not a value of the type.
    """
    return _TEXT_READERS[row_of(column_type).reader](column_type)


def keeps_text(column_type: ColumnType) -> bool:
    """Returns True if every text is a valid value of the type and is stored unchanged."""
    return row_of(column_type).reader == "text"


def wire_unsigned(value: int) -> int:
    """Converts a signed 64-bit number to the unsigned number with the same bits.

    In mode ``long``, TiCDC writes unsigned numbers above 2^63-1 as negative numbers.
    """
    return value & 0xFFFF_FFFF_FFFF_FFFF


# A smaller 32-bit float has fewer than six exact digits, so fewer may identify it.
_SMALLEST_NORMAL32 = 2.0**-126


def shortest_float32(value: float) -> float:
    """Returns the decimal with the fewest digits that identifies this 32-bit float, as a Python float.

    Raises:
        OverflowError: The value is outside the range of 32-bit floats.
    """
    packed = _FLOAT32.pack(value)
    (exact,) = _FLOAT32.unpack(packed)
    for digits in range(6 if abs(exact) >= _SMALLEST_NORMAL32 else 1, 10):
        candidate = float(f"{exact:.{digits}g}")
        if _FLOAT32.pack(candidate) == packed:
            return candidate
    return float(exact)


class FoldedTime(str):
    """The text of a local TIMESTAMP for which it is known which of two equal local times is meant.

    Local times occur twice when clocks are set back. ``fold``: 0 for the first time and 1 for the second, as
    in ``datetime``; comparisons of texts ignore it.
    """

    __slots__ = ("fold",)
    fold: int

    def __new__(cls, text: str, fold: int = 0) -> FoldedTime:
        folded = super().__new__(cls, text)
        folded.fold = fold
        return folded


def comes_twice(text: str, zone: tzinfo) -> bool:
    """Returns True if a local time occurs twice in a time zone, because clocks are set back."""
    if _keeps_offset(text[:10], zone):
        return False
    local = to_datetime(text)
    return _offset(local.replace(fold=1), zone) < _offset(local, zone)


@lru_cache(maxsize=4096)
def _keeps_offset(day: str, zone: tzinfo) -> bool:
    begin = datetime.fromisoformat(day)
    return _offset(begin, zone) == _offset(begin.replace(hour=23, minute=59, second=59, fold=1), zone)


def _offset(local: datetime, zone: tzinfo) -> timedelta:
    return zone.utcoffset(local) or timedelta()


def is_ambiguous(value: Value, zone: tzinfo) -> bool:
    """Returns True if a TIMESTAMP's local time occurs twice in a zone, and it is unknown which one is meant.

    The time's text must be a valid calendar date and time.
    """
    return type(value) is str and comes_twice(value, zone)


def _to_timestamp(text: str, zone: tzinfo, ambiguous_time: AmbiguousTime) -> datetime:
    local = to_datetime(text)
    if comes_twice(text, zone):
        fold = text.fold if isinstance(text, FoldedTime) else None
        if fold is None and ambiguous_time == "error":
            raise ValueOutOfRangeError(
                f"{text!r} occurs twice in {zone}, where clocks are set back, and it is unknown which time "
                "is meant. Set ambiguous-time: first or second for this table (in a key it is always an "
                "error), or have the changefeed write its times in UTC."
            )
        local = local.replace(fold=ambiguous_time == "second" if fold is None else fold)
    try:
        return local.replace(tzinfo=zone).astimezone(timezone.utc)
    except OverflowError as error:
        raise ValueOutOfRangeError(f"{text!r} is not a valid timestamp in {zone}.") from error


def _calendar_reader(
    to_python: Callable[[str], TargetValue], column_type: ColumnType, zero_date: ZeroDate
) -> Callable[[Value], TargetValue]:
    # flat-avro carries these as any text: a text that is not a date must not count as a zero date.
    check = text_reader(column_type)

    def read(value: Value) -> TargetValue:
        if value is None:
            return None
        text = value if isinstance(value, str) else str(value)
        check(text)
        if is_calendar_date(text):
            return to_python(text)
        if zero_date == "null":
            return None
        raise ValueOutOfRangeError(
            f"{text!r} is not a valid calendar date ({column_type.sql or column_type.name}). "
            "Set zero-date: null or text for this table."
        )

    return read


def target_reader(
    column_type: ColumnType,
    *,
    time_zone: tzinfo,
    zero_date: ZeroDate,
    ambiguous_time: AmbiguousTime = "first",
) -> Callable[[Value], TargetValue]:
    """Returns the function that converts a ChangeEvent's value to the value that a target stores.

    The function returns a ``date`` for DATE, a ``datetime`` without zone for DATETIME, and a ``datetime`` in
    UTC for TIMESTAMP. Decimals that Spark cannot hold, and ENUM or SET numbers whose labels are not known,
    become text. All other values are returned unchanged. The function raises ValueOutOfRangeError for a value
    that the policies do not allow.
    """
    reader = row_of(column_type).reader
    ddl = spark_type(column_type, zero_date=zero_date).ddl
    if ddl == "string":
        return partial(_checked_text, text_reader(column_type)) if reader in SHAPED_READERS else _to_text
    if reader in _CALENDAR:
        return _calendar_reader(_CALENDAR[reader], column_type, zero_date)
    if reader == "timestamp":
        to_instant = partial(_to_timestamp, zone=time_zone, ambiguous_time=ambiguous_time)
        return _calendar_reader(to_instant, column_type, zero_date)
    return unchanged


_CALENDAR: dict[Reader, Callable[[str], TargetValue]] = {
    "date": to_date,
    "datetime": to_datetime,
    "local_date": to_date,
    "local_datetime": in_microseconds(to_datetime),
    "instant": in_microseconds(to_instant),
}


def _checked_text(check: TextReader, value: Value) -> TargetValue:
    return None if value is None else check(str(value))


def unchanged(value: Value) -> Value:
    """Returns the value unchanged; used where a conversion function is needed but nothing changes."""
    return value


def _to_text(value: Value) -> TargetValue:
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value) if isinstance(value, int) else value


# Writing

TextWriter = Callable[[Value], str]


def text_writer(column_type: ColumnType) -> TextWriter:
    """Returns a function that writes canal-json's text of one column's values; it does not accept NULL.

    The function raises EncodeError for a value that is not of the type. Decimals may be passed as text.
    """
    return _WRITERS.get(row_of(column_type).reader, _write_text)(column_type)


def _unwritable(value: object, column_type: ColumnType) -> EncodeError:
    return EncodeError(
        f"{type(value).__name__} {shown(value)} is not a valid {column_type.sql or column_type.name}."
    )


def _typed(
    kind: type, to_text: Callable[[Any], str], column_type: ColumnType, *, checked: bool = False
) -> TextWriter:
    """Returns a function that converts values of the Python type ``kind`` to text by ``to_text``.

    The function raises EncodeError for a value of another type. If ``checked`` is True, it also raises
    EncodeError if ``text_reader`` does not accept the text for this column type.
    """
    read = text_reader(column_type) if checked else None

    def write(value: Value) -> str:
        if not isinstance(value, kind):
            raise _unwritable(value, column_type)
        text = to_text(value)
        try:
            if read is not None:
                read(text)
        except ValueOutOfRangeError as error:
            raise _unwritable(value, column_type) from error
        return text

    return write


_write_integer = partial(_typed, int, lambda value: str(int(value)), checked=True)
_write_text = partial(_typed, str, lambda value: value, checked=True)
_write_binary = partial(_typed, bytes, lambda value: value.decode("latin-1"))
_write_boolean = partial(_typed, bool, lambda value: "1" if value else "0")


def plain_float(value: float) -> str:
    """Formats a float with the fewest digits, without an exponent, and without a fraction if it is whole."""
    text = repr(value)
    if "e" in text:
        text = format(Decimal(text), "f")
    return text.removesuffix(".0")


def _write_float(column_type: ColumnType) -> TextWriter:
    single = column_type.name == "float"

    def write(value: Value) -> str:
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise _unwritable(value, column_type)
        try:
            return plain_float(shortest_float32(value) if single else float(value))
        except OverflowError as error:
            raise _unwritable(value, column_type) from error

    return write


def _write_decimal(column_type: ColumnType) -> TextWriter:
    def write(value: Value) -> str:
        if isinstance(value, str) and DECIMAL.fullmatch(value):
            value = Decimal(value)
        if not isinstance(value, Decimal | int) or not Decimal(value).is_finite():
            raise _unwritable(value, column_type)
        try:
            return format(fit_decimal(Decimal(value), column_type), "f")
        except ValueOutOfRangeError as error:
            raise _unwritable(value, column_type) from error

    return write


def _write_enum(column_type: ColumnType) -> TextWriter:
    members, number = column_type.members, _write_integer(column_type)
    # An empty text that is not a member is MySQL's error value, index 0; the first of equal members counts.
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
            f"{shown(value)} cannot be written: canal-json has numbers for {column_type.name} labels, "
            "and only a table definition maps labels to numbers. Add the table's definition to the "
            "config."
        )
    return _unwritable(value, column_type)


def _write_set(column_type: ColumnType) -> TextWriter:
    members, number = column_type.members, _write_integer(column_type)
    bits = {member: 1 << bit for bit, member in enumerate(members or ())}

    def write(value: Value) -> str:
        if isinstance(value, int):
            return str(value) if members is None else number(value)
        chosen = value.split(",") if isinstance(value, str) and value else []
        if not isinstance(value, str) or members is None or not bits.keys() >= {*chosen}:
            raise _no_label(value, column_type)
        mask = 0
        for label in chosen:
            mask |= bits[label]
        return str(mask)

    return write


_WRITERS: dict[Reader, Callable[[ColumnType], TextWriter]] = {
    **dict.fromkeys(("integer", "unsigned64", "bit"), _write_integer),
    **dict.fromkeys(("float32", "float64"), _write_float),
    "decimal": _write_decimal,
    "binary": _write_binary,
    "enum": _write_enum,
    "set": _write_set,
    "boolean": _write_boolean,
}


# A value's reader -> its JSON type; all others are strings.
_TYPES: Final[Mapping[Reader, str]] = {
    **dict.fromkeys(("integer", "unsigned64", "bit", "float32", "float64"), "number"),
    "boolean": "boolean",
    "binary": '{"base64": string}',
}


def json_type(column_type: ColumnType) -> str:
    """Returns the JSON type of a column's values, for display.

    An ENUM or SET without known members has labels or numbers.
    """
    row = row_of(column_type)
    if row.parameter == "allowed" and column_type.members is None:
        return "string or number"
    return _TYPES.get(row.reader, "string")


def json_value(value: Value, column_type: ColumnType | None = None) -> Any:
    """Converts a value to a value that JSON encoders accept.

    ``column_type`` is needed to distinguish a FLOAT from a DOUBLE.
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode("ascii")}
    if isinstance(value, Decimal):
        return format(value, "f")
    if not math.isfinite(value):
        # Postgres stores these values. JSON has no such numbers; these are the texts that Kafka Connect
        # writes.
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return shortest_float32(value) if column_type is not None and column_type.name == "float" else value
