"""Wire values to a shape's Spark values, as column expressions: what ``typemap.parse`` does, in the JVM.

Every expression gives null for a wire value that is no value of the column's type, so that the caller
can tell: wire value there, result not there. Nothing here can fail a query although ANSI mode is on.
Text is checked in full before it is cast, since Spark's casts read more than MySQL writes
(`` 2020-1-1T00Z``), and rounds decimals without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.columns_decimal import wide_decimal_text
from tidesink.events import ColumnType
from tidesink.typemap.parse import INSTANT, LOCAL_DATE, LOCAL_DATETIME
from tidesink.typemap.table import Reader, row_of
from tidesink.typemap.target_schema import ShapeColumn, TableShape

_SPAN: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_DATE: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_DAY_SHAPE: Final = rf"\A{_DATE}\z"
_CLOCK_SHAPE: Final = rf"\A{_DATE} {_SPAN}\z"
_INTEGER: Final = r"\A-?[0-9]{1,20}\z"
_FLOAT: Final = r"\A-?[0-9]{1,400}(\.[0-9]{1,1100})?([eE][+-]?[0-9]{1,4})?\z"
_INDEX: Final = r"\A(0|[1-9][0-9]{0,19})\z"
_DECIMAL: Final = r"-?[0-9]{1,65}(\.[0-9]{1,30})?"
_TIME: Final = r"\A-?([0-7]?[0-9]{2}|8[0-2][0-9]|83[0-8]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?\z"
_NANOSECONDS: Final = r"\.[0-9]{6}[0-9]*[1-9]"
_SPARK_YEARS: Final = r"\A(?!0000)[0-9]{4}-"
_FIRST: Final = "0001-01-01 00:00:00Z"
_LAST: Final = "9999-12-31 23:59:59.999999Z"
_LATIN1: Final = r"\A[\x00-\xff]*\z"
_TWO_64: Final = 1 << 64
_TWENTY_DIGITS: Final = "decimal(20,0)"
_INFINITY: Final = float("inf")


class Reading(NamedTuple):
    """How one column is read.

    ``value`` is null where the wire value is null or no value of the type. ``failable`` is False where
    every wire value is one. ``zero`` is true for a date no calendar has, where policy makes it null;
    it may be asked only of values that were read as null.
    """

    value: Column
    failable: bool = True
    zero: Column | None = None


def lit_binary(data: bytes) -> Column:
    """Bytes as a literal."""
    return F.lit(bytearray(data))


def try_cast(value: Column, ddl: str) -> Column:
    """A cast that gives null where the value does not fit."""
    return value.try_cast(ddl)


def matching(value: Column, pattern: str, then: Column) -> Column:
    """``then`` where the whole text has the pattern, else null."""
    return F.when(value.rlike(pattern), then)


def read_text(wire: Column, column_type: ColumnType, target: ShapeColumn, shape: TableShape) -> Reading:
    """A reading of MySQL's text of a value, as canal-json has it."""
    return _TEXT_READINGS[row_of(column_type).reader](wire, column_type, target, shape)


def read_as_is(wire: Column) -> Reading:
    """A reading of text that may be anything but invalid UTF-8."""
    return Reading(F.when(F.is_valid_utf8(wire), wire))


def read_integer(wire: Column, target: ShapeColumn, *, unsigned64: bool = False) -> Reading:
    """A reading of an Avro ``int`` or ``long``.

    An unsigned 64-bit value above 2^63-1 is negative on the wire (TiCDC, mode ``long``).
    """
    if not unsigned64:
        return Reading(_widened(wire, target.spark), failable=target.spark not in {"int", "bigint"})
    exact = wire.cast(_TWENTY_DIGITS)
    repaired = F.when(wire < 0, (exact + _whole(_TWO_64)).cast(_TWENTY_DIGITS))
    return Reading(_widened(repaired.otherwise(exact), target.spark, present=_TWENTY_DIGITS), failable=False)


def read_number(wire: Column, target: ShapeColumn) -> Reading:
    """A reading of an Avro ``float``, ``double`` or decimal of at most 38 digits."""
    if target.spark == "string":
        return Reading(wire.cast("string"))
    return Reading(try_cast(wire, target.spark))


def read_wide_decimal(wire: Column, column_type: ColumnType, target: ShapeColumn) -> Reading:
    """A reading of the unscaled bytes of a decimal of more than 38 digits."""
    text = wide_decimal_text(wire, precision=column_type.precision or 65, scale=column_type.scale or 0)
    return Reading(_widened(text, target.spark, present="string"))


def read_bytes(wire: Column) -> Reading:
    """A reading of raw bytes."""
    return Reading(wire, failable=False)


def read_bit(wire: Column, column_type: ColumnType, target: ShapeColumn) -> Reading:
    """A reading of BIT as big-endian bytes: shortest form (tiflow c7b2588) or full width (ticdc b813e76)."""
    digits = F.ltrim(F.hex(wire), F.lit("0"))
    # 16 hexadecimal digits are 64 bits, and all that conv can hold.
    number = F.when(F.length(digits) <= 16, F.conv(F.concat(F.lit("0"), digits), 16, 10).cast(_TWENTY_DIGITS))
    return _bounded(number, (1 << (column_type.length or 64)) - 1, target)


def default_value(column: ShapeColumn, shape: TableShape) -> Column:
    """What a row has in a column that its writer did not know yet: the column's default, or null.

    ``CURRENT_TIMESTAMP`` gives null: what TiDB filled in at that moment is not on the wire.
    """
    text, reader = column.default, row_of(column.type).reader
    if text is None or text.upper().startswith("CURRENT_TIMESTAMP"):
        return F.lit(None).cast(column.spark)
    if reader in ("bit", "binary"):
        data = text.encode("latin-1", "replace")
        value = lit_binary(data) if reader == "binary" else _whole(int.from_bytes(data, "big"))
        return value.cast(column.spark)
    if reader in ("enum", "set"):
        return F.lit(text)
    return read_text(F.lit(text), column.type, column, shape).value.cast(column.spark)


def _widened(value: Column, ddl: str, *, present: str | None = None) -> Column:
    return value if ddl == present else try_cast(value, ddl)


def _bounded(number: Column, maximum: int, target: ShapeColumn, *, minimum: int = 0) -> Reading:
    low, high = (_whole(limit) for limit in (minimum, maximum))
    inside = F.when((number >= low) & (number <= high), number)
    return Reading(_widened(inside, target.spark, present=_TWENTY_DIGITS))


def _text_integer(wire: Column, column_type: ColumnType, target: ShapeColumn, _shape: TableShape) -> Reading:
    row = row_of(column_type)
    maximum = row.maximum if row.maximum is not None else _TWO_64 - 1
    return _bounded(_number(wire), maximum, target, minimum=row.minimum or 0)


def _whole(number: int) -> Column:
    """A whole number of up to twenty digits; Spark's own literals end at 2^63-1."""
    return F.lit(str(number)).cast(_TWENTY_DIGITS)


def _number(wire: Column) -> Column:
    return matching(wire, _INTEGER, try_cast(wire, _TWENTY_DIGITS))


def _text_bit(wire: Column, column_type: ColumnType, target: ShapeColumn, _shape: TableShape) -> Reading:
    return _bounded(_number(wire), (1 << (column_type.length or 64)) - 1, target)


def _text_float64(wire: Column, _type: ColumnType, target: ShapeColumn, _shape: TableShape) -> Reading:
    double = try_cast(wire, "double")
    return Reading(matching(wire, _FLOAT, F.when(F.abs(double) < _INFINITY, try_cast(double, target.spark))))


def _text_float32(wire: Column, _type: ColumnType, target: ShapeColumn, _shape: TableShape) -> Reading:
    double = try_cast(wire, "double")
    single = double.cast("float")
    # Beyond its range a 32-bit float is infinite.
    return Reading(matching(wire, _FLOAT, F.when(F.abs(single) < _INFINITY, single.cast(target.spark))))


def _text_decimal(wire: Column, column_type: ColumnType, target: ShapeColumn, _shape: TableShape) -> Reading:
    precision, scale = column_type.precision, column_type.scale
    pattern = rf"\A{_DECIMAL}\z"
    if precision is not None and scale is not None:
        pattern = _fitting(precision, scale)
    if target.spark != "string":
        whole, fraction = _decimal_digits(target.spark)
        fits = _fitting(whole + fraction, fraction)
        exact = F.when(wire.rlike(fits), try_cast(wire, target.spark))
        return Reading(exact if pattern == fits else matching(wire, pattern, exact))
    text = F.regexp_replace(wire, r"\A(-?)0+(?=[0-9])", "$1")
    return Reading(matching(wire, pattern, text if scale is None else _padded(text, scale)))


def _fitting(precision: int, scale: int) -> str:
    """A decimal text whose value fits: only zeros beyond the scale, so that no cast rounds."""
    return rf"\A(?={_DECIMAL}\z)-?0*[0-9]{{0,{precision - scale}}}(\.[0-9]{{0,{scale}}}0*)?\z"


def _decimal_digits(ddl: str) -> tuple[int, int]:
    precision, scale = (int(part) for part in ddl.removeprefix("decimal(").rstrip(")").split(","))
    return precision - scale, scale


def _padded(text: Column, scale: int) -> Column:
    whole = F.substring_index(text, ".", 1)
    if scale == 0:
        return whole
    fraction = F.when(F.instr(text, ".") > 0, F.substring_index(text, ".", -1)).otherwise(F.lit(""))
    return F.concat(whole, F.lit("."), F.rpad(fraction, scale, "0"))


def _text_as_is(wire: Column, _type: ColumnType, _target: ShapeColumn, _shape: TableShape) -> Reading:
    return Reading(wire, failable=False)


def _text_binary(wire: Column, _type: ColumnType, _target: ShapeColumn, _shape: TableShape) -> Reading:
    return Reading(matching(wire, _LATIN1, F.encode(wire, "ISO-8859-1")))


def _text_enum(wire: Column, column_type: ColumnType, target: ShapeColumn, _shape: TableShape) -> Reading:
    members = column_type.members
    if members is None:
        return _bounded(_number(wire), _TWO_64 - 1, target)
    index = matching(wire, _INDEX, try_cast(wire, "int"))
    # Index 0 is MySQL's error value, the empty string; array positions count from 0.
    return Reading(F.get(F.array(*(F.lit(member) for member in ("", *members))), index))


def _text_set(wire: Column, column_type: ColumnType, target: ShapeColumn, _shape: TableShape) -> Reading:
    members = column_type.members
    if members is None:
        return _bounded(_number(wire), _TWO_64 - 1, target)
    number = _number(wire)
    limit = _whole((1 << len(members)) - 1)
    mask = _as_signed(F.when((number >= 0) & (number <= limit), number))
    labels = F.concat_ws(
        ",", *(F.when(F.bit_get(mask, F.lit(bit)) == 1, F.lit(m)) for bit, m in enumerate(members))
    )
    return Reading(F.when(mask.isNotNull(), labels))


def _as_signed(number: Column) -> Column:
    """The 64 bits of an unsigned number as a signed bigint."""
    beyond = number > _whole((1 << 63) - 1)
    return try_cast(F.when(beyond, number - _whole(_TWO_64)).otherwise(number), "bigint")


def read_calendar(wire: Column, column_type: ColumnType, target: ShapeColumn, shape: TableShape) -> Reading:
    """A reading of the text of a DATE, DATETIME or TIMESTAMP, which is the same in both codecs."""
    is_day = row_of(column_type).reader == "date"
    pattern = _DAY_SHAPE if is_day else _CLOCK_SHAPE
    if target.spark == "string":
        return Reading(F.when(wire.rlike(pattern), wire))
    # Spark's calendar has a year 0, MySQL's and Python's have not.
    there = pattern.replace(r"\A", r"\A(?!0000)")
    value = matching(wire, there, try_cast(wire, "date" if is_day else "timestamp_ntz"))
    if target.spark == "timestamp":
        value = _at_zone(value, shape.time_zone)
    nulled = shape.zero_date == "null" and not target.key
    return Reading(value, zero=wire.rlike(pattern) if nulled else None)


def _at_zone(local: Column, time_zone: str) -> Column:
    # The session's zone is UTC, so this cast only names the instant; of an hour that comes twice when
    # clocks are set back, both java.time and zoneinfo (fold=0) take the first.
    instant = local.cast("timestamp")
    return instant if time_zone == "UTC" else F.to_utc_timestamp(instant, time_zone)


def _text_time(wire: Column, _type: ColumnType, _target: ShapeColumn, _shape: TableShape) -> Reading:
    return Reading(matching(wire, _TIME, wire))


def _text_boolean(wire: Column, _type: ColumnType, _target: ShapeColumn, _shape: TableShape) -> Reading:
    word = F.lower(wire)
    return Reading(F.when(word.isin("true", "1", "t"), F.lit(True)).when(word.isin("false", "0", "f"), False))


def _local(pattern: str, ddl: str) -> TextReading:
    """A reading of a date or time of another database, whose calendar may have more than Spark's."""

    def read(wire: Column, _type: ColumnType, target: ShapeColumn, shape: TableShape) -> Reading:
        if target.spark == "string":
            return Reading(F.when(wire.rlike(pattern), wire))
        shaped = wire.rlike(pattern)
        # A day of Spark's and Python's calendar; any other follows the policy for zero dates.
        day = F.coalesce(try_cast(F.substring(wire, 1, 10), "date").isNotNull(), F.lit(False))
        calendar = shaped & wire.rlike(_SPARK_YEARS) & ~wire.endswith(" BC") & day
        value = F.when(calendar & ~wire.rlike(_NANOSECONDS), try_cast(wire, ddl))
        if ddl == "timestamp":
            # An offset may carry a day of the last year beyond it.
            value = F.when(value.between(F.lit(_FIRST).cast(ddl), F.lit(_LAST).cast(ddl)), value)
        nulled = shape.zero_date == "null" and not target.key
        return Reading(value, zero=shaped & ~calendar if nulled else None)

    return read


TextReading = Callable[[Column, ColumnType, ShapeColumn, TableShape], Reading]

_TEXT_READINGS: Final[dict[Reader, TextReading]] = {
    "integer": _text_integer,
    "unsigned64": _text_integer,
    "float32": _text_float32,
    "float64": _text_float64,
    "decimal": _text_decimal,
    "text": _text_as_is,
    "binary": _text_binary,
    "bit": _text_bit,
    "enum": _text_enum,
    "set": _text_set,
    "date": read_calendar,
    "datetime": read_calendar,
    "timestamp": read_calendar,
    "time": _text_time,
    "boolean": _text_boolean,
    "local_date": _local(rf"\A({LOCAL_DATE.pattern})\z", "date"),
    "local_datetime": _local(rf"\A({LOCAL_DATETIME.pattern})\z", "timestamp_ntz"),
    "instant": _local(rf"\A({INSTANT.pattern})\z", "timestamp"),
}
