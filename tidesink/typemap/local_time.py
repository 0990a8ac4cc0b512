"""Local times of a time zone to UTC, for whole arrays, as ``datetime`` and ``zoneinfo`` have them.

Of an hour that comes twice the first is meant, and a time that the clocks skip has the offset from before
(PEP 495, ``fold=0``). An offset is asked of the zone once a day of each year that occurs, never once a
value: between two days with different offsets the moment of the change is found by bisection. In the
time zone database two changes are at least three days apart.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)
_EPOCH: Final = datetime(1970, 1, 1)
_LAST: Final = datetime.max.replace(microsecond=0)
# Fewer years than this are taken as a range, without a look at which of them occur.
_FEW_YEARS: Final = 100

Micros = NDArray[np.int64]
Offset = Callable[[datetime], int]


def has_known_offsets(zone: tzinfo) -> bool:
    """Whether ``utc_micros`` holds for this zone: one of ``zoneinfo``, or a fixed offset."""
    return isinstance(zone, ZoneInfo | timezone)


def utc_micros(local: Micros, zone: tzinfo) -> Micros:
    """Microseconds since 1970 in UTC from those of local times of the years 1 to 9999.

    The result may lie outside these years.
    """
    if not len(local) or zone is timezone.utc:
        return local
    if isinstance(zone, timezone):
        return local - zone.utcoffset(None) // _MICROSECOND
    starts, offsets = _periods(_years(local), zone)
    first, last = np.searchsorted(starts, (local.min(), local.max()), side="right") - 1
    if first == last:
        return _less(local, offsets[first])
    return _less(local, offsets[np.searchsorted(starts, local, side="right") - 1])


def _less(local: Micros, offset: Micros | np.int64) -> Micros:
    return local if not np.any(offset) else np.subtract(local, offset)


def _years(local: Micros) -> tuple[int, ...]:
    """The years in which a local time lies, ascending, and where these are few also those between."""
    first, last = _year(local.min()), _year(local.max())
    if last - first < _FEW_YEARS:
        return tuple(range(first, last + 1))
    years = local.view("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
    return tuple(np.unique(years).tolist())


@lru_cache(maxsize=256)
def _periods(years: tuple[int, ...], zone: tzinfo) -> tuple[Micros, Micros]:
    """Where offsets begin to hold, and the offsets, in microseconds, for these years."""
    table = np.array([period for year in years for period in _year_periods(zone, year)], np.int64)
    changes = np.append(True, np.diff(table[:, 1]) != 0)
    return table[changes, 0], table[changes, 1]


def _year(micros: Any) -> int:
    return (_EPOCH + int(micros) * _MICROSECOND).year


@lru_cache(maxsize=4096)
def _year_periods(zone: tzinfo, year: int) -> tuple[tuple[int, int], ...]:
    """Where an offset begins to hold, in local microseconds since 1970, and the offset, for one year."""

    def offset(moment: datetime) -> int:
        return (zone.utcoffset(moment) or timedelta()) // _MICROSECOND

    day = datetime(year, 1, 1)
    held = offset(day)
    periods = [((day - _EPOCH) // _MICROSECOND, held)]
    while day < _LAST and day.year == year:
        following = day + timedelta(days=1) if _LAST - day > timedelta(days=1) else _LAST
        if (now := offset(following)) != held:
            change = _change(day, following, held, offset)
            periods.append(((change - _EPOCH) // _MICROSECOND, now))
        day, held = following, now
    return tuple(periods)


def _change(before: datetime, after: datetime, held: int, offset: Offset) -> datetime:
    """The first whole second after ``before`` with another offset."""
    while after - before > _SECOND:
        middle = before + (after - before) // _SECOND // 2 * _SECOND
        if offset(middle) == held:
            before = middle
        else:
            after = middle
    return after
