"""Dates and times of Debezium as exact text: MySQL's form, and PostgreSQL's for what MySQL has not.

Debezium counts days, milli-, micro- or nanoseconds from 1970-01-01 without a zone, or writes ISO 8601.
The text here has no zeros at the end of a fraction (``2024-02-29 12:34:56.5``); a year before 1 is
``0044-03-15 BC``, one above 9999 has more digits, and PostgreSQL's infinities are ``infinity`` and
``-infinity``. Nothing passes through a float or a Python date, whose years end at 9999.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import Final

from tidesink.errors import ValueOutOfRangeError, shown

_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_LAST_ORDINAL: Final = date.max.toordinal()
_DAY_SECONDS: Final = 86_400
# 400 years of the Gregorian calendar, and the days from 0000-03-01 to 1970-01-01.
_ERA_DAYS: Final = 146_097
_EPOCH_FROM_MARCH_0: Final = 719_468

_INFINITY: Final = "infinity"
# The PostgreSQL driver's infinities in ms since 1970 (PGStatement.DATE_POSITIVE_INFINITY and _NEGATIVE_),
# as Debezium 3.5 sends them in ms and in us. A date's are INT_MAX and INT_MIN days from 2000-01-01,
# which wrap around in 32 bits when they are counted from 1970.
_INFINITE_DAYS: Final = {-2_147_472_692: _INFINITY, -2_147_472_691: f"-{_INFINITY}"}
INFINITE_TIMESTAMPS: Final = {
    9_223_372_036_825_200: _INFINITY,
    -9_223_372_036_832_400: f"-{_INFINITY}",
    9_223_372_036_825_200_000: _INFINITY,
    -9_223_372_036_832_400_000: f"-{_INFINITY}",
}

_ISO: Final = re.compile(
    r"(?P<year>[+-]?[0-9]{4,9})-(?P<day>[0-9]{2}-[0-9]{2})"
    r"(?:T(?P<time>[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?))?"
    r"(?P<offset>Z|[+-][0-9]{2}(?::[0-9]{2}(?::[0-9]{2})?)?)?(?:\[[^\]]{1,64}\])?",
    re.ASCII,
)
_ISO_TIME: Final = re.compile(
    r"(?P<time>[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?)(?:Z|[+-]00:00)?", re.ASCII
)


def date_text(days: int) -> str:
    """A date from its days since 1970-01-01."""
    found = _INFINITE_DAYS.get(days)
    return found if found is not None else " ".join(part for part in _civil(days) if part)


def timestamp_text(units: int, per_second: int) -> str:
    """A date and time from its units since 1970-01-01, of which there are ``per_second``."""
    found = INFINITE_TIMESTAMPS.get(units) if per_second < 10**9 else None
    if found is not None:
        return found
    seconds, fraction = divmod(units, per_second)
    days, second = divmod(seconds, _DAY_SECONDS)
    day, era = _civil(days)
    text = f"{day} {_clock(second)}{_fraction(fraction, per_second)}"
    return f"{text} {era}" if era else text


def time_text(units: int, per_second: int) -> str:
    """A time of day, or a MySQL TIME of up to 838:59:59 on both sides of zero."""
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
    """The day as text, and ``BC`` for a year before 1, as PostgreSQL writes it."""
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
    return _dated(year_of_era + era * 400 + (month <= 2), f"{month:02d}-{day:02d}")


def _dated(year: int, day: str) -> tuple[str, str]:
    # ISO 8601 has a year 0, which is 1 BC.
    return (f"{year:04d}-{day}", "") if year > 0 else (f"{1 - year:04d}-{day}", "BC")


def iso_reader(kind: str, *, zoned: bool, timed: bool) -> Callable[[object], str]:
    """A reader of ISO 8601 text: of a date, of a date and time, or of one with its offset.

    The reader raises ValueOutOfRangeError for text that is none. A ``Z`` at the end of a date without
    zone says nothing (``time.precision.mode: isostring``) and is left out.
    """

    def read(raw: object) -> str:
        text = str(raw)
        if text.lstrip("-") == _INFINITY:
            return text
        found = _ISO.fullmatch(text)
        if found is None or (found["time"] is not None) != timed or (zoned and found["offset"] is None):
            raise ValueOutOfRangeError(f"{shown(raw)} is no {kind}")
        return _iso_text(found, zoned=zoned)

    return read


def _iso_text(found: re.Match[str], *, zoned: bool) -> str:
    day, era = _dated(int(found["year"]), found["day"])
    time = f" {_trimmed(found['time'])}" if found["time"] is not None else ""
    offset = (found["offset"].replace("Z", "+00:00")) if zoned else ""
    return f"{day}{time}{offset}{' ' + era if era else ''}"


def iso_time_text(raw: object) -> str:
    """A time of day from ISO 8601 text, without the ``Z`` that says nothing.

    Raises:
        ValueOutOfRangeError: the text is no time of day.
    """
    found = _ISO_TIME.fullmatch(str(raw))
    if found is None:
        raise ValueOutOfRangeError(f"{shown(raw)} is no time of day")
    return _trimmed(found["time"])


def _trimmed(time: str) -> str:
    # Java leaves out seconds that are zero.
    whole = time if time.count(":") == 2 else f"{time}:00"
    return whole.rstrip("0").rstrip(".") if "." in whole else whole
