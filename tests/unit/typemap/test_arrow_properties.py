"""Random columns of usual texts, whole or damaged, sliced, with nulls: equal to the scalar readers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.arrow_columns import COLUMN_TYPES, POLICIES, assert_reads_as_scalar, flagged
from tidesink.events import ColumnType
from tidesink.typemap.arrow import from_python, from_value
from tidesink.typemap.arrow_text import utc_micros
from tidesink.typemap.table import AmbiguousTime, Reader, ZeroDate, row_of
from tidesink.typemap.values import integer_bounds


def _kind(column_type: ColumnType) -> tuple[object, ...]:
    row = row_of(column_type)
    return (row.reader, row.bounds, replace(column_type, name=""))


ZONES: Final = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "Asia/Shanghai",
    "Australia/Lord_Howe",  # clocks are set by half an hour
    "Pacific/Apia",  # 2011-12-30 never was
    "Africa/Monrovia",  # offsets with seconds until 1972
    "Africa/Freetown",
    "Europe/Dublin",
)
EPOCH: Final = datetime(1970, 1, 1)
# Of the types that differ in their name alone one will do.
KINDS: Final = list({_kind(column_type): column_type for column_type in COLUMN_TYPES}.values())
Texts = Callable[[ColumnType], st.SearchStrategy[str]]


def _integers(column_type: ColumnType) -> st.SearchStrategy[str]:
    low, high = integer_bounds(column_type) or (0, 2 ** (column_type.length or 64) - 1)
    return st.integers(low - 1, high + 1).map(str)


def _decimals(column_type: ColumnType) -> st.SearchStrategy[str]:
    precision, scale = column_type.precision or 30, column_type.scale or 0
    digits = st.integers(-(10**precision), 10**precision)
    return digits.map(lambda number: format(Decimal(f"{number}E-{scale}"), "f"))


def _floats(_type: ColumnType) -> st.SearchStrategy[str]:
    finite = st.floats(allow_nan=False, allow_infinity=False)
    return finite.map(lambda number: format(Decimal(number), "f")[:330]) | finite.map(repr)


def _labels(column_type: ColumnType) -> st.SearchStrategy[str]:
    members = len(column_type.members or ()) or 64
    return st.integers(0, (1 << members) if column_type.name == "set" else members + 1).map(str)


_CLOCK = st.times().map(lambda time: time.isoformat())


def _days(_type: ColumnType) -> st.SearchStrategy[str]:
    return st.dates().map(str) | st.sampled_from(["0000-00-00", "2024-02-30", "2024-00-01", "2024-02-29"])


def _moments(column_type: ColumnType) -> st.SearchStrategy[str]:
    clock = _CLOCK | st.times().map(lambda time: time.isoformat("milliseconds"))
    twice = st.sampled_from(["2024-10-27 02:30:00", "2024-10-27 02:59:59.999999", "2023-11-05 01:00:00"])
    return st.tuples(_days(column_type), clock).map(" ".join) | twice


def _instants(column_type: ColumnType) -> st.SearchStrategy[str]:
    offsets = st.just("+00:00") | st.from_regex(r"[+-](0[0-9]|1[0-4]):[03]0", fullmatch=True)
    return st.tuples(_moments(column_type), offsets).map("".join)


def _times(_type: ColumnType) -> st.SearchStrategy[str]:
    return _CLOCK | st.from_regex(r"-?[0-9]{2,3}:[0-5][0-9]:[0-5][0-9](\.[0-9]{6})?", fullmatch=True)


TEXTS: Final[dict[Reader, Texts]] = {
    "integer": _integers,
    "unsigned64": _integers,
    "bit": _integers,
    "float32": _floats,
    "float64": _floats,
    "decimal": _decimals,
    "text": lambda _: st.text(max_size=5),
    "binary": lambda _: st.binary(max_size=5).map(lambda data: data.decode("latin-1")),
    "enum": _labels,
    "set": _labels,
    "boolean": lambda _: st.sampled_from(["true", "false", "0", "1", "T"]),
    "date": _days,
    "local_date": _days,
    "datetime": _moments,
    "local_datetime": _moments,
    "timestamp": _moments,
    "instant": _instants,
    "time": _times,
}


@st.composite
def _columns(draw: st.DrawFn, column_type: ColumnType) -> list[str | None]:
    texts: list[str | None] = list(draw(st.lists(TEXTS[row_of(column_type).reader](column_type), max_size=6)))
    for _ in range(draw(st.integers(0, 2))):
        if texts:
            at = draw(st.integers(0, len(texts) - 1))
            texts[at] = _damaged(texts[at], draw)
    return texts


def _damaged(text: str | None, draw: st.DrawFn) -> str | None:
    if text is None or draw(st.booleans()):
        return None
    place = draw(st.integers(0, len(text)))
    inserted: str = draw(st.sampled_from([*"0123456789-+.:eETZ _\0é", "", "٣", "日", "\n"]))
    return text[:place] + inserted + text[place + draw(st.integers(0, 2)) :]


@pytest.mark.parametrize("column_type", KINDS, ids=str)
@settings(max_examples=int(os.environ.get("ARROW_EXAMPLES", "30")))
@given(data=st.data())
def test_columns_of_texts(column_type: ColumnType, data: st.DataObject) -> None:
    texts = data.draw(_columns(column_type))
    zone = ZoneInfo(data.draw(st.sampled_from(ZONES[:3])))
    policy: ZeroDate = data.draw(st.sampled_from(POLICIES))
    kind = data.draw(st.sampled_from([pa.string(), pa.large_string()]))
    twice: AmbiguousTime = data.draw(st.sampled_from(["first", "second", "error"]))
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(texts))] * 2)))
    array = pa.array(texts, kind)[start:end]
    assert_reads_as_scalar(
        texts[start:end],
        column_type,
        zero_date=policy,
        time_zone=zone,
        ambiguous_time=twice,
        array=array,
    )


@given(
    numbers=st.lists(st.none() | st.integers(-(10**65) + 1, 10**65 - 1), max_size=5),
    scale=st.integers(0, 30),
    target=st.sampled_from(
        [ColumnType("decimal"), ColumnType("decimal", 65, 30), ColumnType("decimal", 38, 9)]
    ),
)
def test_decimals_of_any_width(numbers: list[int | None], scale: int, target: ColumnType) -> None:
    values = pa.array(
        [None if number is None else Decimal(f"{number}E-{scale}") for number in numbers],
        pa.decimal256(66, scale),
    )
    found = from_value(values, target, zero_date="null", time_zone=timezone.utc)
    one_by_one = from_python(values.to_pylist(), target, zero_date="null", time_zone=timezone.utc)
    assert found.values.equals(one_by_one.values)
    assert np.flatnonzero(flagged(found.unproven, len(values))).tolist() == sorted(one_by_one.errors)


def _micros(moment: datetime) -> int:
    return (moment.replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1)


def assert_utc(local: npt.NDArray[np.int64], zone: tzinfo, moments: list[datetime]) -> None:
    """``utc_micros`` gives the first instants of local times, and says which of these have a second one."""
    found, twice = utc_micros(local, zone)
    first, second = ([_utc(one.replace(fold=fold), zone) for one in moments] for fold in (0, 1))
    assert found.tolist() == first
    later = [one < other for one, other in zip(first, second, strict=True)]
    assert flagged(twice, len(moments)) == later
    assert twice is None or any(later)


def _utc(local: datetime, zone: tzinfo) -> int:
    # Without astimezone, whose result must be a date of the years 1 to 9999.
    return _micros(local) - (local.replace(tzinfo=zone).utcoffset() or timedelta()) // timedelta(
        microseconds=1
    )


@given(
    zone=st.sampled_from([*map(ZoneInfo, ZONES), timezone.utc, timezone(timedelta(hours=5, minutes=30))]),
    moments=st.lists(st.datetimes(), min_size=1, max_size=4)
    | st.lists(st.datetimes(datetime(1880, 1, 1), datetime(2060, 1, 1)), min_size=1, max_size=20),
)
@example(ZoneInfo("Pacific/Apia"), [datetime(2011, 12, 30, 12), datetime(2011, 12, 31)])
@example(
    ZoneInfo("Africa/Monrovia"), [datetime(1972, 1, 7, 0, 44, 29, 999999), datetime(1972, 1, 7, 0, 44, 30)]
)
@example(ZoneInfo("Europe/Berlin"), [datetime.min, datetime.max, datetime(9999, 12, 31)])
def test_local_times_are_those_of_zoneinfo(zone: tzinfo, moments: list[datetime]) -> None:
    local = np.array([_micros(moment) for moment in moments], np.int64)
    assert_utc(local, zone, moments)


@pytest.mark.parametrize("name", ZONES)
def test_local_times_around_each_change_of_the_clocks(name: str) -> None:
    zone = ZoneInfo(name)
    hours = [datetime(1970, 1, 1) + timedelta(hours=hour) for hour in range(0, 60 * 8766, 7)]
    offsets = [hour.replace(tzinfo=zone).utcoffset() for hour in hours]
    changes = [hours[at] for at in range(1, len(hours)) if offsets[at] != offsets[at - 1]]
    moments = [change + timedelta(minutes=10 * step) for change in changes for step in range(-60, 20)]
    local = np.array([_micros(moment) for moment in moments], np.int64)
    assert_utc(local, zone, moments)
