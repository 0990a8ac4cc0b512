"""Reads Debezium's structured times (``time.precision.mode: structured``): structs of year, month, day etc.

Source: Debezium's main branch (``io.debezium.time.StructuredTemporal`` and its siblings, aad5519). The
fraction of a second is ``picoseconds``; in an earlier commit it is ``nanos``, and the schemas have no
parameters. The connector does not convert the members by a calendar, so MySQL's zero dates and PostgreSQL's
infinities (``specialValue``) are valid values. A ``zoneId`` is redundant, since the struct also has the
offset.

The values become text in the form of ``scalars``: ``2024-02-29 12:34:56.5``, ``0044-03-15 BC``, ``infinity``.
A duration is ISO 8601 with all its parts, as ``interval.handling.mode: string`` writes it
(``P1Y2M3DT4H5M6.789S``). MySQL's TIME is a duration of the kind ``elapsed-time`` and becomes a time between
-838:59:59 and 838:59:59.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from tidesink.codecs.debezium.connect_schema import MOST_LEVELS, ConnectSchema
from tidesink.codecs.debezium.scalars import dated, mismatch, whole_parameter
from tidesink.errors import ValueOutOfRangeError, shown

DURATION: Final = "io.debezium.time.StructuredDuration"
PRECISION: Final = "io.debezium.time.precision"
KIND: Final = "io.debezium.time.duration.kind"
ELAPSED: Final = "elapsed-time"
_SPECIAL: Final = {"POSITIVE_INFINITY": "infinity", "NEGATIVE_INFINITY": "-infinity"}
_DAY: Final = ("year", "month", "day")
_CLOCK: Final = ("hour", "minute", "second")
_FRACTION: Final = frozenset({"picoseconds", "nanos"})
_PER_SECOND: Final = 10**12
# The resolution of Arrow's and Spark's timestamps.
_MICROSECOND_DIGITS: Final = 6
_PICOSECOND_DIGITS: Final = 12
_MOST_OFFSET: Final = 18 * 3600
_DURATION: Final = ("years", "months", "days", "hours", "minutes", "seconds")
_INT64: Final = 1 << 63


def fine_digits(schema: ConnectSchema) -> int | None:
    """Returns the number of fraction digits that a structured time can have, if it can be more than six.

    The number is 12 (picoseconds) if the schema declares more than six digits; otherwise returns None.
    """
    digits = whole_parameter(schema, PRECISION)
    return _PICOSECOND_DIGITS if digits is not None and digits > _MICROSECOND_DIGITS else None


def is_elapsed(schema: ConnectSchema) -> bool:
    """Returns True if a structured duration is MySQL's TIME."""
    return schema.parameters.get(KIND) == ELAPSED


def as_elapsed(schema: ConnectSchema) -> ConnectSchema:
    """Marks the schema of a structured duration as MySQL's TIME; returns any other schema unchanged."""
    if not (schema.name or "").startswith(DURATION):
        return schema
    return replace(schema, parameters={**schema.parameters, KIND: ELAPSED})


def name_of(raw: object, level: int = 0) -> str | None:
    """Recognises a structured time in JSON without a schema, by its members; returns the name of its type.

    Returns None for any value that is not a structured time. JsonConverter writes all members of a struct,
    including nulls. But a transform may have dropped the nulls, and some versions have no ``precision``. So a
    value is recognised if it has two parts (such as year and month, or hour and minute), or one part and
    another member of a structured time (such as a fraction or an offset), or an infinite ``specialValue``,
    and if it has no members that a structured time cannot have. The parts are integers; this distinguishes
    them from the values of an hstore, which are text. An array has the type of the item with the most
    members.
    """
    if isinstance(raw, list):
        inside = (item for item in raw if isinstance(item, Mapping | list)) if level < MOST_LEVELS else ()
        named = ((len(item), name) for item in inside if (name := name_of(item, level + 1)) is not None)
        return max(named, default=(0, None))[1]
    if not isinstance(raw, Mapping) or not all(_is_member(name, value) for name, value in raw.items()):
        return None
    names = set(raw)
    parts = names & _PARTS
    if len(parts) + bool(names & _MARKS) < 2 and raw.get("specialValue") not in _SPECIAL:
        return None
    if parts & set(_DURATION):
        others = names - {*_DURATION, *_FRACTION, "precision", "specialValue"}
        return None if others else "StructuredDuration"
    return _NAMES[_has_day(names), _has_clock(names), bool(names & _ZONE)]


def _is_member(name: object, value: object) -> bool:
    if name in _TEXTS:
        return value is None or isinstance(value, str)
    return name in _WHOLE and (value is None or type(value) is int)


def _has_day(names: set[str]) -> bool:
    # A single special value counts as that of a date or a moment; the text is the same.
    return bool(names & set(_DAY)) or not names & {*_CLOCK, *_FRACTION}


def _has_clock(names: set[str]) -> bool:
    return bool(names & {*_CLOCK, *_FRACTION, "precision"})


_ZONE: Final = frozenset({"offsetSeconds", "zoneId"})
_PARTS: Final = frozenset({*_DAY, *_CLOCK, *_DURATION})
_MARKS: Final = frozenset({*_FRACTION, *_ZONE, "specialValue", "precision"})
_TEXTS: Final = frozenset({"specialValue", "zoneId"})
_WHOLE: Final = (_PARTS | _MARKS) - _TEXTS
# Keys: whether a struct has a day, a clock and a zone.
_NAMES: Final[dict[tuple[bool, bool, bool], str]] = {
    (True, False, False): "StructuredDate",
    (True, True, False): "StructuredTimestamp",
    (True, False, True): "StructuredZonedTimestamp",
    (True, True, True): "StructuredZonedTimestamp",
    (False, True, False): "StructuredTime",
    (False, True, True): "StructuredZonedTime",
}


def time_reader(schema: ConnectSchema) -> Callable[[object], str]:
    """Returns the function that reads structured dates, times and timestamps, with or without an offset.

    The function raises SchemaMismatchError for any other value, and ValueOutOfRangeError for members that are
    not a valid date or time.
    """
    kind = (schema.name or "").partition("Structured")[2]
    has_day, is_zoned = "Date" in kind or "Timestamp" in kind, kind.startswith("Zoned")
    has_clock = not kind.startswith("Date")

    def read(raw: object) -> str:
        if not isinstance(raw, Mapping):
            raise mismatch(raw, schema)
        special = raw.get("specialValue")
        if special is not None:
            return _special(special, schema)
        day, era = _day(raw, schema) if has_day else ("", "")
        clock = _clock(raw, schema, most_hours=23 if has_day else 24) if has_clock else ""
        offset = _offset(raw, schema, utc="+00:00" if has_day else "Z") if is_zoned else ""
        text = " ".join(part for part in (day, clock) if part) + offset
        return f"{text} {era}" if era else text

    return read


def _special(special: object, schema: ConnectSchema) -> str:
    text = _SPECIAL.get(special) if isinstance(special, str) else None
    if text is None:
        raise ValueOutOfRangeError(f"The specialValue {shown(special, 40)} is not valid for {schema.name}.")
    return text


def _special_duration(special: object, schema: ConnectSchema, *, elapsed: bool) -> str:
    text = _special(special, schema)
    if elapsed:
        raise ValueOutOfRangeError(f"The specialValue {shown(special, 40)} is not valid for MySQL's TIME.")
    return text


def _whole(raw: Mapping[str, Any], name: str, schema: ConnectSchema, low: int, high: int) -> int:
    value = raw.get(name)
    if type(value) is not int:
        raise mismatch(raw, schema)
    if not low <= value <= high:
        raise ValueOutOfRangeError(
            f"The member {name} is {shown(value)}, which is not valid for {schema.name}."
        )
    return value


def _day(raw: Mapping[str, Any], schema: ConnectSchema) -> tuple[str, str]:
    year = _whole(raw, "year", schema, -999_999_998, 999_999_999)
    month, day = _whole(raw, "month", schema, 0, 12), _whole(raw, "day", schema, 0, 31)
    text = f"{month:02d}-{day:02d}"
    # MySQL's zero dates, whose year 0 is not 1 BC.
    return (f"{year:04d}-{text}", "") if year == 0 and 0 in (month, day) else dated(year, text)


def _picoseconds(raw: Mapping[str, Any], schema: ConnectSchema, low: int) -> int:
    if "picoseconds" in raw:
        return _whole(raw, "picoseconds", schema, low * (_PER_SECOND - 1), _PER_SECOND - 1)
    return 1000 * _whole(raw, "nanos", schema, low * (10**9 - 1), 10**9 - 1)


def _fraction(picoseconds: int) -> str:
    return f".{picoseconds:012d}".rstrip("0") if picoseconds else ""


def _clock(raw: Mapping[str, Any], schema: ConnectSchema, most_hours: int) -> str:
    hour, minute, second = (
        _whole(raw, name, schema, 0, most) for name, most in zip(_CLOCK, (most_hours, 59, 59), strict=True)
    )
    picoseconds = _picoseconds(raw, schema, 0)
    if hour == 24 and (minute or second or picoseconds):
        raise ValueOutOfRangeError(
            f"A value of {schema.name} is later than 24:00:00, which is not a time of day."
        )
    return f"{hour:02d}:{minute:02d}:{second:02d}{_fraction(picoseconds)}"


def _offset(raw: Mapping[str, Any], schema: ConnectSchema, utc: str) -> str:
    seconds = _whole(raw, "offsetSeconds", schema, -_MOST_OFFSET, _MOST_OFFSET)
    if not seconds:
        return utc
    minutes, second = divmod(abs(seconds), 60)
    text = f"{'-' if seconds < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{text}:{second:02d}" if second else text


def duration_reader(schema: ConnectSchema) -> Callable[[object], str]:
    """Returns the function that reads structured durations.

    PostgreSQL's infinities (``specialValue``) are read as ``infinity`` and ``-infinity``. The function raises
    SchemaMismatchError for any other value. It raises ValueOutOfRangeError for a member of more than 64 bits,
    and for a MySQL TIME that has months or is infinite.
    """
    elapsed = is_elapsed(schema)

    def read(raw: object) -> str:
        if not isinstance(raw, Mapping):
            raise mismatch(raw, schema)
        special = raw.get("specialValue")
        if special is not None:
            return _special_duration(special, schema, elapsed=elapsed)
        years, months, days, hours, minutes, seconds = (
            _whole(raw, name, schema, -_INT64, _INT64 - 1) for name in _DURATION
        )
        picoseconds = seconds * _PER_SECOND + _picoseconds(raw, schema, -1)
        if not elapsed:
            return f"P{years}Y{months}M{days}DT{hours}H{minutes}M{_seconds(picoseconds)}S"
        if years or months:
            raise ValueOutOfRangeError(
                f"A structured duration has {years} years and {months} months, which is not valid for "
                "MySQL's TIME."
            )
        return _elapsed(picoseconds + (((days * 24 + hours) * 60 + minutes) * 60) * _PER_SECOND)

    return read


def _seconds(picoseconds: int) -> str:
    seconds, fraction = divmod(abs(picoseconds), _PER_SECOND)
    return f"{'-' if picoseconds < 0 else ''}{seconds}{_fraction(fraction)}"


def _elapsed(picoseconds: int) -> str:
    seconds, fraction = divmod(abs(picoseconds), _PER_SECOND)
    minutes, second = divmod(seconds, 60)
    sign = "-" if picoseconds < 0 else ""
    return f"{sign}{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}{_fraction(fraction)}"
