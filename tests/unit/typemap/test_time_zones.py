"""TIMESTAMP texts in a zone with summer time: columns name the instants that zoneinfo does."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from tidesink.events import ColumnType
from tidesink.typemap.arrow import from_text
from tidesink.typemap.values import comes_twice, target_reader

STAMP = ColumnType("timestamp", fsp=6)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
STEADY = ("UTC", "Asia/Kolkata", "Asia/Kathmandu")
ZONES = [
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "America/Sao_Paulo",
]


def changes_of_offset(zone: ZoneInfo) -> list[datetime]:
    """Local times around every change of the zone's offset in some years TIMESTAMP can hold."""
    found = []
    for year in (1971, 1987, 2007, 2026, 2037):
        hour = datetime(year, 1, 1, tzinfo=timezone.utc)
        while hour.year == year:
            later = hour + timedelta(hours=6)
            if hour.astimezone(zone).utcoffset() != later.astimezone(zone).utcoffset():
                # Every half hour of the night: those which come twice, and those which never come.
                start = hour.astimezone(zone).replace(tzinfo=None) - timedelta(hours=3)
                found += [start + timedelta(minutes=30 * step, microseconds=step) for step in range(36)]
            hour = later
    return found


@pytest.mark.parametrize("name", ZONES)
def test_every_local_time_is_the_instant_python_says(name: str) -> None:
    zone = ZoneInfo(name)
    plain = [datetime(1970, 1, 2), datetime(1999, 12, 31, 23, 59, 59, 999999), datetime(2038, 1, 18)]
    # No TIMESTAMP is older, but a proleptic calendar or a rebased one would show here.
    old = [datetime(1582, 10, 10), datetime(1901, 12, 14, 12), datetime(1, 1, 2), datetime(9999, 12, 30)]
    moments = [*plain, *(old if name == "UTC" else []), *changes_of_offset(zone)]
    texts = [moment.strftime("%m-%d %H:%M:%S.%f") for moment in moments]
    texts = [f"{moment.year:04}-{text}" for moment, text in zip(moments, texts, strict=True)]
    column = from_text(pa.array(texts), STAMP, zero_date="null", time_zone=zone)
    assert column.unproven is None
    found = column.values.cast(pa.int64()).to_pylist()
    read = target_reader(STAMP, time_zone=zone, zero_date="null")
    instants = [read(text) for text in texts]
    expected = [
        (instant - EPOCH) // timedelta(microseconds=1)
        for instant in instants
        if isinstance(instant, datetime)
    ]
    assert list(zip(texts, found, strict=True)) == list(zip(texts, expected, strict=True))


@pytest.mark.parametrize("name", [*ZONES, "America/Juneau", "Asia/Kathmandu", "Antarctica/Troll"])
def test_which_local_times_come_twice(name: str) -> None:
    zone = ZoneInfo(name)
    repeated = 0
    for moment in changes_of_offset(zone):
        local = moment.replace(tzinfo=zone)
        first, second = (local.replace(fold=fold).astimezone(timezone.utc) for fold in (0, 1))
        assert comes_twice(f"{moment:%Y-%m-%d %H:%M:%S.%f}", zone) == (second > first)
        repeated += second > first
    assert bool(repeated) == (name not in STEADY)
