"""Reads single values of Connect schemas: numbers, text, bytes, decimals, bits, dates and times.

Integers, floats, booleans, text and bytes are read from Avro's and from JSON's form. Decimals and bits are
numbers that are stored as bytes.

Dates and times are converted to exact text in MySQL's form, or in PostgreSQL's if MySQL has no such value.
Debezium counts days, milli-, micro- or nanoseconds from 1970-01-01 without a zone, or writes ISO 8601. The
text has no zeros at the end of a fraction (``2024-02-29 12:34:56.5``). A year before 1 is written as
``0044-03-15 BC``, a year after 9999 with more digits, and PostgreSQL's infinities as ``infinity`` and
``-infinity``. No value is converted to a float or a Python date, whose years end at 9999.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from typing import Final

from tidesink.codecs.debezium.connect_schema import PRECISION, ConnectSchema
from tidesink.errors import SchemaMismatchError, ValueOutOfRangeError, shown
from tidesink.typemap.values import DECIMAL_CONTEXT

_FLOAT32: Final = struct.Struct("<f")
INTEGER_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
# Kafka Connect's JsonConverter writes these as text.
WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def mismatch(raw: object, schema: ConnectSchema) -> SchemaMismatchError:
    """Returns the error for a value that does not have its schema's type."""

    return SchemaMismatchError(
        f"{type(raw).__name__} {shown(raw)} is not a valid {schema.name or schema.type}."
    )


def integer(schema: ConnectSchema) -> Callable[[object], int]:
    """Returns a function that reads integers of 8 to 64 bits.

    The function raises SchemaMismatchError for any other value, including booleans, and ValueOutOfRangeError
    for an integer with more bits.
    """

    limit = 1 << (INTEGER_BITS[schema.type] - 1)

    def read(raw: object) -> int:
        if type(raw) is not int:
            raise mismatch(raw, schema)
        if not -limit <= raw < limit:
            raise ValueOutOfRangeError(f"{shown(raw)} is not a valid {schema.name or schema.type}.")
        return raw

    return read


def floating(schema: ConnectSchema) -> Callable[[object], float]:
    """Returns a function that reads floats: numbers, and the words ``NaN``, ``Infinity`` and ``-Infinity``.

    The function raises SchemaMismatchError for any other value, and ValueOutOfRangeError for a number that is
    too large.
    """

    single = schema.type == "float32"

    def read(raw: object) -> float:
        if isinstance(raw, str) and raw in WORDS:
            return WORDS[raw]
        if isinstance(raw, bool) or not isinstance(raw, float | int | Decimal):
            raise mismatch(raw, schema)
        try:
            value = float(raw)
            value = float(_FLOAT32.unpack(_FLOAT32.pack(value))[0]) if single else value
        except (OverflowError, ValueError) as error:
            raise ValueOutOfRangeError(f"{shown(raw)} is not a valid {schema.type}.") from error
        if math.isinf(value) and not isinstance(raw, float):
            raise ValueOutOfRangeError(f"{shown(raw)} is not a valid {schema.type}.")
        return value

    return read


def boolean(schema: ConnectSchema) -> Callable[[object], bool]:
    """Returns a function that reads true and false, and raises SchemaMismatchError for any other value."""

    def read(raw: object) -> bool:
        if not isinstance(raw, bool):
            raise mismatch(raw, schema)
        return raw

    return read


def checked_text(schema: ConnectSchema) -> Callable[[object], str]:
    """Returns a function that reads text, and raises SchemaMismatchError for any other value."""

    def read(raw: object) -> str:
        if not isinstance(raw, str):
            raise mismatch(raw, schema)
        return raw

    return read


def bytes_reader(schema: ConnectSchema) -> Callable[[object], bytes]:
    """Returns a function that reads bytes: Avro's, or base64 text from JSON.

    The function raises SchemaMismatchError for any other value, and ValueOutOfRangeError for text that is not
    base64.
    """

    def read(raw: object) -> bytes:
        if isinstance(raw, bytes):
            return raw
        if not isinstance(raw, str):
            raise mismatch(raw, schema)
        try:
            return base64.b64decode(raw, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueOutOfRangeError(
                f"{shown(raw)} is not valid base64 for {schema.name or 'bytes'}."
            ) from error

    return read


# PostgreSQL's numeric has at most 131072 digits before the point and 16383 after it.
_MOST_SCALE: Final = 20_000
_MOST_BYTES: Final = 65_536
_MOST_BITS: Final = 64
# Numbers with more digits than DECIMAL_CONTEXT keeps are scaled by hand: 41 bytes may have 99 digits.
_EXACT_BYTES: Final = 41
_MOST_PRECISION: Final = 80


def unscaled(schema: ConnectSchema) -> Callable[[object], Decimal]:
    """Returns a function that reads decimals with the scale of the schema.

    The decimal is stored as the bytes of its unscaled number, or in JSON as a number (``decimal.format:
    numeric``). The function raises ValueOutOfRangeError if the decimal has more digits than the schema
    allows.
    """
    scale, precision = scale_of(schema), whole_parameter(schema, PRECISION)
    read = bytes_reader(schema)
    limit = 10**precision if precision is not None and 0 < precision <= _MOST_PRECISION else None

    def decimal(raw: object) -> Decimal:
        # JsonConverter's decimal.format NUMERIC: a number, which a parser may shorten to an integer.
        if isinstance(raw, Decimal | int) and not isinstance(raw, bool):
            value = at_scale(Decimal(raw), scale, schema)
        else:
            value = scaled(read(raw), scale or 0, schema)
        if limit is not None and not -limit < value.scaleb(scale or 0, DECIMAL_CONTEXT) < limit:
            raise ValueOutOfRangeError(f"{shown(value)} has more than {precision} digits.")
        return value

    return decimal


def scale_of(schema: ConnectSchema) -> int | None:
    """Returns a decimal's digits after the point according to its schema; None if the schema has no scale.

    Raises:
        SchemaMismatchError: the scale is not a number, or larger than any database supports.
    """
    scale = whole_parameter(schema, "scale")
    if scale is not None and abs(scale) > _MOST_SCALE:
        raise SchemaMismatchError(
            f"The scale of {schema.name or schema.type} in the record's schema is {scale}, which no "
            "database supports."
        )
    return scale


def at_scale(value: Decimal, scale: int | None, schema: ConnectSchema) -> Decimal:
    """Returns the number with exactly ``scale`` digits after the point, or unchanged if ``scale`` is None.

    Raises:
        ValueOutOfRangeError: digits other than zero would be lost, or the value is not a finite number.
    """
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or abs(exponent) > _MOST_SCALE:
        raise ValueOutOfRangeError(f"{shown(value)} is not a valid {schema.name or 'decimal'}.")
    if scale is None:
        return value
    missing = scale + exponent
    if missing < 0:
        if any(digits[missing:]):
            raise ValueOutOfRangeError(f"{shown(value)} has more than {scale} digits after the point.")
        return Decimal((sign, digits[:missing] or (0,), -scale))
    return Decimal((sign, digits + (0,) * missing, -scale))


def scaled(data: bytes, scale: int, schema: ConnectSchema) -> Decimal:
    """Returns the decimal whose unscaled number is stored in ``data`` (big-endian two's complement).

    Raises:
        ValueOutOfRangeError: the decimal has more digits or a larger scale than any database supports.
    """
    if len(data) > _MOST_BYTES or abs(scale) > _MOST_SCALE:
        raise ValueOutOfRangeError(
            f"{len(data)} bytes at scale {scale} are not a valid {schema.name or 'decimal'}."
        )
    unscaled_value = Decimal(int.from_bytes(data, "big", signed=True))
    if len(data) <= _EXACT_BYTES:
        return unscaled_value.scaleb(-scale, DECIMAL_CONTEXT)
    sign, digits, _ = unscaled_value.as_tuple()
    return Decimal((sign, digits, -scale))


def variable_scale(schema: ConnectSchema) -> Callable[[object], Decimal]:
    """Returns a function that reads decimals from a struct of ``scale`` and ``value``."""
    read = bytes_reader(schema)

    def decimal(raw: object) -> Decimal:
        if not isinstance(raw, Mapping) or not isinstance(raw.get("scale"), int):
            raise mismatch(raw, schema)
        return scaled(read(raw.get("value")), raw["scale"], schema)

    return decimal


def bits(schema: ConnectSchema) -> Callable[[object], int | bytes]:
    """Returns a function that reads bit strings: up to 64 bits as an int, longer ones as bytes."""
    length = whole_parameter(schema, "length") or _MOST_BITS
    read = bytes_reader(schema)
    if not 0 < length <= _MOST_BITS:
        return read

    def number(raw: object) -> int:
        # Debezium writes the lowest byte first, and only the bytes that the value needs (PostgreSQL) or all
        # (MySQL).
        value = int.from_bytes(read(raw), "little")
        if value >> length:
            raise ValueOutOfRangeError(f"{shown(raw)} has more than {length} bits.")
        return value

    return number


def whole_parameter(schema: ConnectSchema, name: str) -> int | None:
    """Returns a parameter of the schema as an int; None if the schema does not have this parameter.

    Raises:
        SchemaMismatchError: the parameter is not a whole number.
    """
    text = schema.parameters.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise SchemaMismatchError(
            f"The parameter {name} of {schema.name or schema.type} in the record's schema is "
            f"{shown(text)}, but a whole number was expected."
        ) from error


_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_LAST_ORDINAL: Final = date.max.toordinal()
_DAY_SECONDS: Final = 86_400
# 400 years of the Gregorian calendar, and the days from 0000-03-01 to 1970-01-01.
_ERA_DAYS: Final = 146_097
_EPOCH_FROM_MARCH_0: Final = 719_468

_INFINITY: Final = "infinity"
# The PostgreSQL driver's infinities in ms since 1970 (PGStatement.DATE_POSITIVE_INFINITY and _NEGATIVE_), as
# Debezium 3.5 sends them in ms and in us. A date's infinities are INT_MAX and INT_MIN days from 2000-01-01,
# which wrap around in 32 bits when counted from 1970; after 3.5 infinity is +5877611-06-21.
_INFINITE_DAYS: Final = {
    -2_147_472_692: _INFINITY,
    2_146_033_979: _INFINITY,
    -2_147_472_691: f"-{_INFINITY}",
}
INFINITE_TIMESTAMPS: Final = {
    9_223_372_036_825_200: _INFINITY,
    -9_223_372_036_832_400: f"-{_INFINITY}",
    9_223_372_036_825_200_000: _INFINITY,
    -9_223_372_036_832_400_000: f"-{_INFINITY}",
}
# A count of nanoseconds cannot reach the driver's infinities: 3.5 lets them wrap around, its main branch
# writes the ends of 64 bits (dbz#1833, dbz#2075).
_INFINITE_NANOSECONDS: Final = {(1 << 63) - 1: _INFINITY, -(1 << 63): f"-{_INFINITY}"}

_ISO: Final = re.compile(
    r"(?P<year>[+-]?[0-9]{4,9})-(?P<day>[0-9]{2}-[0-9]{2})"
    r"(?:T(?P<time>[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?))?"
    r"(?P<offset>Z|[+-][0-9]{2}(?::[0-9]{2}(?::[0-9]{2})?)?)?(?:\[[^\]]{1,64}\])?",
    re.ASCII,
)
_UTC: Final = (None, "Z", "+00:00")
_ISO_TIME: Final = re.compile(
    r"(?P<time>[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?)(?:Z|[+-]00:00)?", re.ASCII
)


def date_text(days: int) -> str:
    """Formats days since 1970-01-01 as a date."""
    return _INFINITE_DAYS.get(days) or _day_text(days)


def _day_text(days: int) -> str:
    return " ".join(part for part in _civil(days) if part)


def timestamp_text(units: int, per_second: int) -> str:
    """Formats a count of time units since 1970-01-01 as a date and time.

    ``per_second`` is the number of units in a second.
    """
    infinite = INFINITE_TIMESTAMPS if per_second < 10**9 else _INFINITE_NANOSECONDS
    return infinite.get(units) or _moment_text(units, per_second)


def _moment_text(units: int, per_second: int) -> str:
    seconds, fraction = divmod(units, per_second)
    days, second = divmod(seconds, _DAY_SECONDS)
    day, era = _civil(days)
    text = f"{day} {_clock(second)}{_fraction(fraction, per_second)}"
    return f"{text} {era}" if era else text


def time_text(units: int, per_second: int) -> str:
    """Formats a count of time units as a time of day, or as a MySQL TIME between -838:59:59 and 838:59:59.

    ``per_second`` is the number of units in a second.
    """
    seconds, fraction = divmod(abs(units), per_second)
    return f"{'-' if units < 0 else ''}{_clock(seconds)}{_fraction(fraction, per_second)}"


def _clock(seconds: int) -> str:
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}"


def _fraction(units: int, per_second: int) -> str:
    if not units:
        return ""
    return "." + str(per_second + units)[1:].rstrip("0")


def _civil(days: int) -> tuple[str, str]:
    """Converts a number of days since 1970-01-01 to a date: the text of year, month and day, and the era.

    The era is ``BC`` for a year before 1, as PostgreSQL writes it, and otherwise an empty text.
    """
    ordinal = days + _EPOCH_ORDINAL
    if 1 <= ordinal <= _LAST_ORDINAL:
        return date.fromordinal(ordinal).isoformat(), ""
    # Years that start in March, so that a leap day is the last day of its year.
    era, day_of_era = divmod(days + _EPOCH_FROM_MARCH_0, _ERA_DAYS)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    return dated(year_of_era + era * 400 + (month <= 2), f"{month:02d}-{day:02d}")


def dated(year: int, day: str) -> tuple[str, str]:
    """Combines a year, and month and day as text, to the text of a date, and returns it with its era.

    The era is ``BC`` for a year before 1, and otherwise an empty text.
    """
    # ISO 8601 has a year 0, which is 1 BC.
    return (f"{year:04d}-{day}", "") if year > 0 else (f"{1 - year:04d}-{day}", "BC")


# In mode isostring, the infinities are written as the days and moments of their numbers, here in the form of
# ``_iso_text`` without a zone.
_INFINITE_TEXTS: Final = {
    **{_day_text(days): word for days, word in _INFINITE_DAYS.items()},
    **{_moment_text(units, 1000): word for units, word in INFINITE_TIMESTAMPS.items()},
}


def iso_reader(kind: str, *, zoned: bool, timed: bool) -> Callable[[object], str]:
    """Returns a function that converts ISO 8601 text to this module's form of dates and times.

    ``timed``: the text has a time of day. ``zoned``: it also has an offset. ``kind`` names the value in
    errors. A ``Z`` at the end of a date without a zone is meaningless (``time.precision.mode: isostring``)
    and is dropped. Representations of PostgreSQL's infinities become ``infinity`` or ``-infinity``. The
    function raises ValueOutOfRangeError for any other text.
    """

    def read(raw: object) -> str:
        text = str(raw)
        if text.lstrip("-") == _INFINITY:
            return text
        match = _ISO.fullmatch(text)
        if match is None or (match["time"] is not None) != timed or (zoned and match["offset"] is None):
            raise ValueOutOfRangeError(f"{shown(raw)} is not a valid {kind}.")
        infinite = _INFINITE_TEXTS.get(_iso_text(match, zoned=False)) if match["offset"] in _UTC else None
        return infinite or _iso_text(match, zoned=zoned)

    return read


def _iso_text(match: re.Match[str], *, zoned: bool) -> str:
    day, era = dated(int(match["year"]), match["day"])
    time = f" {_trimmed(match['time'])}" if match["time"] is not None else ""
    offset = (match["offset"].replace("Z", "+00:00")) if zoned else ""
    return f"{day}{time}{offset}{' ' + era if era else ''}"


def iso_time_text(raw: object) -> str:
    """Converts a time of day in ISO 8601 to this module's form, without the meaningless ``Z``.

    Raises:
        ValueOutOfRangeError: the text is not a time of day.
    """
    match = _ISO_TIME.fullmatch(str(raw))
    if match is None:
        raise ValueOutOfRangeError(f"{shown(raw)} is not a valid time of day.")
    return _trimmed(match["time"])


def _trimmed(time: str) -> str:
    # Java omits seconds that are zero.
    whole = time if time.count(":") == 2 else f"{time}:00"
    return whole.rstrip("0").rstrip(".") if "." in whole else whole
