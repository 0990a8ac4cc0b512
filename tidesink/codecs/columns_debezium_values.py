"""Debezium's values as column expressions, where Spark has them: what the codec's readers do, in the JVM.

A reading gives null for a value that is none of the column's, so that the caller can tell. Every form that
is not listed here is read by the Python codec's own reader, in an Arrow function for that column alone
(``columns_debezium_python``). What counts units since 1970 is compared with the years 1 to 9999 before it
is cast: beyond them it follows the policy for dates no calendar has.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.base import BinaryHandling
from tidesink.codecs.columns_debezium_schema import is_spark_decimal
from tidesink.codecs.columns_types import Reading, read_as_is, read_text, try_cast
from tidesink.codecs.debezium.connect_schema import ConnectSchema
from tidesink.codecs.debezium.scalars import INFINITE_TIMESTAMPS, whole_parameter
from tidesink.codecs.debezium.values import wire_type
from tidesink.events import Column as SourceColumn
from tidesink.events import ColumnType
from tidesink.typemap.debezium_types import Form, semantic_type
from tidesink.typemap.table import row_of
from tidesink.typemap.target_schema import ShapeColumn, TableShape

_EPOCH: Final = date(1970, 1, 1).toordinal()
_FIRST_DAY: Final = 1 - _EPOCH
_LAST_DAY: Final = date.max.toordinal() - _EPOCH
_DAY_SECONDS: Final = 86_400
_INTEGER_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TWENTY_DIGITS: Final = "decimal(20,0)"
_UNSIGNED_END: Final = str(2**64)
_SIGNED_START: Final = str(-(2**63))
_BASE64: Final = r"\A(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?+\z"
_USUAL_DAY: Final = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}\z"
_USUAL_MOMENT: Final = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z\z"
_ISO_DAY: Final = r"[+-]?[0-9]{4,9}-[0-9]{2}-[0-9]{2}"
_ISO_CLOCK: Final = r"T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
_ISO_OFFSET: Final = r"(Z|[+-][0-9]{2}(:[0-9]{2}(:[0-9]{2})?)?)"
_ISO_TIME: Final = r"\A[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-]00:00)?\z"

# What a Z at the end of the text becomes.
_SUFFIXES: Final[dict[Form, str]] = {"iso_date": "", "iso_timestamp": "", "zoned_timestamp": "+00:00"}

Native = Callable[[Column, ConnectSchema, ColumnType, ShapeColumn, TableShape], Reading]


def native_reading(
    wire: Column,
    schema: ConnectSchema,
    source: SourceColumn,
    target: ShapeColumn,
    shape: TableShape,
    *,
    binary: BinaryHandling,
) -> Reading | None:
    """The reading of one column by Spark's own expressions; None where it takes the Python reader.

    ``wire`` is the ``prepared_text`` where the schema has one. ``binary`` is how binary is written as text.
    """
    column_type = source.type
    own = wire_type(schema)
    if target.spark == "string" and row_of(column_type).spark != "string":
        return None  # dates as text, nanoseconds, decimals without a precision
    if own.name == column_type.name and own.length == column_type.length:
        native = _natively(schema)
        if _is_decimal(schema) and (own.precision, own.scale) != (column_type.precision, column_type.scale):
            return None
    elif (_plainly(schema), row_of(column_type).reader) == ("string", "binary"):
        native = _base64 if binary in ("bytes", "base64") else None
    else:
        native = _FITTED.get((_plainly(schema), row_of(column_type).reader))
    return None if native is None else native(wire, schema, column_type, target, shape)


def _natively(schema: ConnectSchema) -> Native | None:
    semantic = semantic_type(schema.name, schema.type)
    form: Form = semantic.form if semantic is not None else "plain"
    if form == "plain":
        return _PLAIN.get(schema.type)
    if form == "unscaled" and not is_spark_decimal(schema):
        return None
    if form == "bits" and not 0 < (whole_parameter(schema, "length") or 64) <= 64:
        return None
    return _FORMS.get(form)


def _is_decimal(schema: ConnectSchema) -> bool:
    semantic = semantic_type(schema.name, schema.type)
    return semantic is not None and semantic.form == "unscaled"


def _plainly(schema: ConnectSchema) -> str:
    """A plain value's Connect type, ``decimal`` for a decimal of Spark's, else nothing of note."""
    semantic = semantic_type(schema.name, schema.type)
    if semantic is None or semantic.form == "plain":
        return schema.type
    return "decimal" if is_spark_decimal(schema) and schema.parameters.get("scale") == "0" else "other"


def _integer(
    wire: Column, schema: ConnectSchema, _type: ColumnType, target: ShapeColumn, _shape: TableShape
) -> Reading:
    bits = _INTEGER_BITS[schema.type]
    if bits in (32, 64):
        return Reading(_as(wire, target.spark), failable=target.spark == "int" and bits == 64)
    limit = 1 << (bits - 1)
    return Reading(_as(F.when(wire.between(-limit, limit - 1), wire), target.spark))


def _as(value: Column, ddl: str) -> Column:
    return try_cast(value, ddl)


def _fitted_integer(
    wire: Column, _schema: ConnectSchema, column_type: ColumnType, target: ShapeColumn, _shape: TableShape
) -> Reading:
    """An integer of the source's own type, unsigned ones and BIGINT UNSIGNED as a decimal included."""
    row = row_of(column_type)
    exact = try_cast(wire, _TWENTY_DIGITS)
    if row.reader == "unsigned64":
        # bigint.unsigned.handling.mode long wraps around above 2^63-1.
        wrapped = (exact < 0) & (exact >= F.lit(_SIGNED_START).cast(_TWENTY_DIGITS))
        turned = (exact + F.lit(_UNSIGNED_END).cast(_TWENTY_DIGITS)).cast(_TWENTY_DIGITS)
        exact = F.when(wrapped, turned).otherwise(exact)
    low = row.minimum or 0
    high = row.maximum if row.maximum is not None else 2**64 - 1
    limits = [F.lit(str(limit)).cast(_TWENTY_DIGITS) for limit in (low, high)]
    return Reading(_as(F.when(exact.between(*limits), exact), target.spark))


def _number(
    wire: Column, _schema: ConnectSchema, _type: ColumnType, target: ShapeColumn, _shape: TableShape
) -> Reading:
    return Reading(_as(wire, target.spark))


def _text(
    wire: Column, _schema: ConnectSchema, _type: ColumnType, _target: ShapeColumn, _shape: TableShape
) -> Reading:
    return read_as_is(wire)


def _bytes(
    wire: Column, _schema: ConnectSchema, _type: ColumnType, _target: ShapeColumn, _shape: TableShape
) -> Reading:
    return Reading(wire, failable=False)


def _base64(
    wire: Column, _schema: ConnectSchema, _type: ColumnType, _target: ShapeColumn, _shape: TableShape
) -> Reading:
    """Binary as text: TiCDC's debezium (b813e76), and Debezium under binary.handling.mode base64."""
    return Reading(F.when(wire.rlike(_BASE64), F.unbase64(wire)))


def _days(
    wire: Column, _schema: ConnectSchema, _type: ColumnType, target: ShapeColumn, shape: TableShape
) -> Reading:
    inside = wire.between(_FIRST_DAY, _LAST_DAY)
    return _calendar(F.when(inside, F.date_from_unix_date(wire)), wire.isNotNull() & ~inside, target, shape)


def _timestamp(micros: int) -> Native:
    """A reading of units since 1970 of so many microseconds each."""
    a_second = 1_000_000 // micros
    first, end = (day * _DAY_SECONDS * a_second for day in (_FIRST_DAY, _LAST_DAY + 1))

    def read(
        wire: Column, _schema: ConnectSchema, _type: ColumnType, target: ShapeColumn, shape: TableShape
    ) -> Reading:
        inside = wire.between(first, end - 1) & ~wire.isin(*INFINITE_TIMESTAMPS)
        # The session's zone is UTC, so this cast changes nothing but the type.
        moment = F.timestamp_micros(F.when(inside, wire) * micros).cast("timestamp_ntz")
        return _calendar(moment, wire.isNotNull() & ~inside, target, shape)

    return read


def _calendar(value: Column, beyond: Column, target: ShapeColumn, shape: TableShape) -> Reading:
    nulled = shape.zero_date == "null" and not target.key
    return Reading(value, zero=beyond if nulled else None)


def _time(a_second: int) -> Native:
    """A reading of a time of day in units, of which a second has so many, as text."""
    digits = len(str(a_second)) - 1

    def read(
        wire: Column, _schema: ConnectSchema, _type: ColumnType, _target: ShapeColumn, _shape: TableShape
    ) -> Reading:
        units = wire.cast(_TWENTY_DIGITS)  # the least of the 64-bit numbers has no absolute value there
        size = F.when(units < 0, -units).otherwise(units)
        seconds = F.floor(size / a_second).cast("bigint")
        fraction = (size % a_second).cast("bigint").cast("string")
        clock = [
            F.floor(seconds / 3600).cast("bigint"),
            F.floor(seconds / 60).cast("bigint") % 60,
            seconds % 60,
        ]
        text = F.concat_ws(":", *(_two_digits(part) for part in clock))
        tail = F.rtrim(F.lpad(fraction, digits, "0"), F.lit("0"))
        whole = F.concat(
            F.when(units < 0, "-").otherwise(""),
            text,
            F.when(tail == "", "").otherwise(F.concat(F.lit("."), tail)),
        )
        return Reading(F.when(wire.isNotNull(), whole), failable=False)

    return read


def _two_digits(number: Column) -> Column:
    text = number.cast("string")
    return F.when(number < 10, F.concat(F.lit("0"), text)).otherwise(text)


def _bits(
    wire: Column, schema: ConnectSchema, _type: ColumnType, target: ShapeColumn, _shape: TableShape
) -> Reading:
    """Lowest byte first, and as many bytes as the value needs or the column has."""
    length = whole_parameter(schema, "length") or 64
    first = F.concat(*(F.substring(wire, place, 1) for place in range(8, 0, -1)))
    number = F.conv(F.concat(F.lit("0"), F.hex(first)), 16, 10).cast(_TWENTY_DIGITS)
    most = F.lit(str((1 << length) - 1)).cast(_TWENTY_DIGITS)
    # Bytes beyond the eighth can only be zeros.
    rest = F.ltrim(F.hex(F.substring(wire, 9, 1 << 20)), F.lit("0")) == ""
    return Reading(_as(F.when(rest & (number <= most), number), target.spark))


def prepared_text(wire: Column, schema: ConnectSchema) -> Column | None:
    """ISO 8601 text in our own form, null for what is none; None for what is no such text.

    A column of the frame by itself, since it is long and asked for several times.
    """
    semantic = semantic_type(schema.name, schema.type)
    suffix = _SUFFIXES.get(semantic.form) if semantic is not None else None
    if semantic is None or suffix is None:
        return None
    timed = semantic.form != "iso_date"
    clock, offset = _ISO_CLOCK if timed else "", _ISO_OFFSET if suffix else f"({_ISO_OFFSET})?"
    whole = rf"\A({_ISO_DAY}{clock}{offset}(\[[^\]]{{1,64}}\])?|-?infinity)\z"
    seldom = F.when(wire.rlike(whole), _plain_iso(wire, suffix))
    if not timed:
        return F.when(wire.rlike(_USUAL_DAY), wire).otherwise(seldom)
    rest = F.substring(wire, F.lit(12), F.length(wire) - 12)
    quick = F.concat(F.substring(wire, 1, 10), F.lit(" "), rest, F.lit(suffix))
    return F.when(wire.rlike(_USUAL_MOMENT), quick).otherwise(seldom)


def _iso(
    text: Column, _schema: ConnectSchema, column_type: ColumnType, target: ShapeColumn, shape: TableShape
) -> Reading:
    reading = read_text(text, column_type, target, shape)
    # What is no such text at all was prepared as null.
    zero = None if reading.zero is None else F.coalesce(reading.zero, F.lit(False))
    return reading._replace(zero=zero)


def _plain_iso(wire: Column, suffix: str) -> Column:
    """ISO 8601 text of any form in ours; the year of one before 1 is not put right: it is none we keep."""
    text = wire
    for pattern, instead in (
        (r"\[[^\]]*\]\z", ""),
        (r"\A\+", ""),
        (r"\A(-?)0+(?=[0-9]{4,}-)", "$1"),
        (r"(T[0-9]{2}:[0-9]{2})(?=Z|[+-]|\z)", "$1:00"),
        (r"(?<=[0-9])Z\z", "+00:00"),
        ("T", " "),
        *(() if suffix else ((r"(?<=\A.{10,60})[+-][0-9]{2}(:[0-9]{2}){0,2}\z", ""),)),
    ):
        text = F.regexp_replace(text, pattern, instead)
    early = text.rlike(r"\A-[0-9]")
    return F.when(early, F.concat(F.substring(text, 2, 100), F.lit(" BC"))).otherwise(text)


def _iso_time(
    wire: Column, _schema: ConnectSchema, _type: ColumnType, _target: ShapeColumn, _shape: TableShape
) -> Reading:
    plain = F.regexp_replace(wire, r"(Z|[+-]00:00)\z", "")
    whole = F.when(F.length(plain) == 5, F.concat(plain, F.lit(":00"))).otherwise(plain)
    trimmed = F.regexp_replace(whole, r"(\.[0-9]*?)0+\z", "$1")
    return Reading(F.when(wire.rlike(_ISO_TIME), F.rtrim(trimmed, F.lit("."))))


_PLAIN: Final[dict[str, Native]] = {
    **dict.fromkeys(_INTEGER_BITS, _integer),
    "float32": _number,
    "float64": _number,
    "boolean": _number,
    "string": _text,
    "bytes": _bytes,
}

_FORMS: Final[dict[Form, Native]] = {
    "days": _days,
    "time_ms": _time(1_000),
    "time_us": _time(1_000_000),
    "timestamp_ms": _timestamp(1_000),
    "timestamp_us": _timestamp(1),
    "unscaled": _number,
    "iso_date": _iso,
    "iso_time": _iso_time,
    "iso_timestamp": _iso,
    "zoned_timestamp": _iso,
    "bits": _bits,
}

# A plain value in a column that the source, or a definition, says is of another type.
_FITTED: Final[dict[tuple[str, str], Native]] = {
    **{
        (wire, reader): _fitted_integer
        for wire in (*_INTEGER_BITS, "decimal")
        for reader in ("integer", "unsigned64")
    },
    ("bytes", "binary"): _bytes,
    **{("string", reader): _text for reader in ("text", "enum", "set")},
}
