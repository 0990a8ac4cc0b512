"""Dates and times as text, MySQL's and other databases', and the Python values of those a calendar has."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from datetime import date, datetime, timezone

from tidesink.errors import ValueOutOfRangeError

DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})", re.ASCII)
# Other databases' calendars have more: years of any length, years before 1, infinity, nanoseconds.
_WIDE_DAY = r"[0-9]{4,9}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_WIDE_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
_WIDE_OFFSET = r"[+-][0-9]{2}:[0-9]{2}(?::[0-9]{2})?"
LOCAL_DATE = re.compile(rf"{_WIDE_DAY}(?: BC)?|-?infinity", re.ASCII)
LOCAL_DATETIME = re.compile(rf"{_WIDE_DAY} {_WIDE_CLOCK}(?: BC)?|-?infinity", re.ASCII)
INSTANT = re.compile(rf"{_WIDE_DAY} {_WIDE_CLOCK}{_WIDE_OFFSET}(?: BC)?|-?infinity", re.ASCII)


_BEFORE_CHRIST = " BC"


def is_calendar_date(text: str) -> bool:
    """Whether the date part of MySQL's text is a day of the calendar (year 1 to 9999)."""
    found = DATE.match(text)
    if found is None or text.endswith(_BEFORE_CHRIST):
        return False
    year, month, day = (int(part) for part in found.groups())
    return year > 0 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]


def to_date(text: str) -> date:
    """The day of a text that ``is_calendar_date``."""
    return date.fromisoformat(text)


def to_datetime(text: str) -> datetime:
    """The date and time, without a zone, of a text that ``is_calendar_date``."""
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(whole).replace(microsecond=int(fraction.ljust(6, "0")) if fraction else 0)


def to_instant(text: str) -> datetime:
    """The instant, in UTC, of a text with an offset that ``is_calendar_date``.

    Raises:
        ValueOutOfRangeError: in UTC it is no date of the years 1 to 9999.
    """
    clock, offset = _OFFSET.split(text, maxsplit=1)
    try:
        zone = datetime.strptime(offset, "%z").tzinfo
        return to_datetime(clock).replace(tzinfo=zone).astimezone(timezone.utc)
    except (ValueError, OverflowError) as error:
        raise ValueOutOfRangeError(f"{text!r} is no timestamp of the years 1 to 9999") from error


def in_microseconds(to_python: Callable[[str], datetime]) -> Callable[[str], datetime]:
    """A reader of text that may have nanoseconds, if they are zero: Python and Spark have none."""

    def read(text: str) -> datetime:
        beyond = _NANOSECONDS.search(text)
        if beyond is None:
            return to_python(text)
        if beyond.group(1).strip("0"):
            raise ValueOutOfRangeError(
                f"{text!r} has nanoseconds, which the target's timestamps have not: "
                "define the column with 7 to 9 digits of a second to keep it as text"
            )
        return to_python(text[: beyond.start(1)] + text[beyond.end(1) :])

    return read


_OFFSET = re.compile(rf"(?={_WIDE_OFFSET}\Z)", re.ASCII)
# What stands behind a fraction's sixth digit.
_NANOSECONDS = re.compile(r"\.[0-9]{6}([0-9]{1,3})", re.ASCII)
