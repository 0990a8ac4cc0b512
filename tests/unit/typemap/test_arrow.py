"""Columns of texts and values to Arrow: equal to the scalar readers, value by value."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from tests.arrow_columns import COLUMN_TYPES, POLICIES, assert_reads_as_scalar, flagged
from tidesink.errors import ValueOutOfRangeError
from tidesink.events import ColumnType
from tidesink.typemap.arrow import arrow_type, from_python, from_text, from_value
from tidesink.typemap.table import ZeroDate
from tidesink.typemap.values import keeps_text

UTC = timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")
SHANGHAI = ZoneInfo("Asia/Shanghai")


def _words(text: str) -> list[str]:
    return text.split()


NUMBERS = _words(
    """
    0 1 -1 -0 00 007 127 128 255 -128 -129 2147483647 2147483648 4294967295 4294967296
    9223372036854775807 -9223372036854775808 9223372036854775808 18446744073709551615
    18446744073709551616 00000000000000000001 000000000000000000001 1.5 1.50 1.500 1.501 -0.00
    0.00 0.0001 .5 5. -.5 1e5 1E-7 1e400 nan inf -Infinity 0x1F +1 1_0 ١ １ - -- --1 1-2 1.2.3
    123456.78 99999999.99 100000000.00 0.9999 0.12345 007.50 -5.00 12345 3.4028235e38
    3.4028236e38 340282346638528859811704183484516925440 16777217 0.1
    12345678901234567890123456789012345678 1234567890123456789012345678.0123456789 1901 2155
    2156
    """
)
LONG_NUMBERS = [
    "1" * 310,
    "0." + "0" * 330 + "5",
    "1.5" + "0" * 40,
    "0" * 70 + "1.50",
    "9" * 35 + "." + "9" * 30,
]
DATES = _words(
    """
    2024-02-29 2023-02-29 0000-00-00 0000-01-01 0001-01-01 9999-12-31 2024-00-10 2024-01-00
    2024-04-31 2024-2-01 2024-13-01 2024-01-32 12024-01-01 1900-02-29 2000-02-29 1970-01-01
    infinity -infinity -024-01-01 20240101 2024-02-29T00:00:00 2024-02-29Z
    """
)
CLOCKS = _words(
    """
    00:00:00 23:59:59 23:59:59.9 12:34:56.000000 12:34:56.123456 12:34:56.1234567
    12:34:56.123456000 24:00:00 12:60:00 12:30:60 12:30 12:30+02 12:3:00 12:30:00Z 12:30:00.
    123000 1:00:00 838:59:59 -838:59:59.000000 839:00:00 -00:00:01 99:59:59 100:00:00 -1:00:00
    12.30.00 12:30:00,5
    """
)
MOMENTS = [
    *[f"{day} {clock}" for day in DATES for clock in CLOCKS[:14]][::5],
    *(f"2024-02-29 {clock}" for clock in CLOCKS[:14]),
    *(f"{day} 12:30:00" for day in DATES),
    "2024-03-31 01:59:59.999999",
    "2024-03-31 02:30:00",
    "2024-03-31 03:00:00",
    "2024-10-27 01:59:59",
    "2024-10-27 02:30:00.5",
    "2024-10-27 03:00:00",
    "1900-01-01 00:00:00",
    "2100-07-01 00:00:00",
    "1893-04-01 00:03:00",
    "2024-02-29  12:30:00",
    "2024-02-29 12:30:00 BC",
]
OFFSETS = ["+00:00", "-00:00", "+05:30", "-23:59", "+24:00", "+05:60", "+00:00:30", "+0530", "Z", "+00:00 BC"]
INSTANTS = [
    *(f"{moment}{offset}" for moment in MOMENTS[::15] for offset in OFFSETS),
    "0000-12-31 23:00:00-02:00",
    "0001-01-01 00:00:00+00:30",
    "0001-01-01 00:00:00-00:30",
    "9999-12-31 23:59:59.999999+00:00",
    "9999-12-31 23:59:59-00:01",
    "2024-02-29 12:34:56.123456000+02:00",
    "2024-02-29 12:34:56.1234+02:00",
]
WORDS = [
    "",
    " ",
    "x",
    "true",
    "TRUE",
    "False",
    "t",
    "F",
    "é",
    "ÿ",
    "Ā",
    "\0",
    "a,b",
    "x\n",
    "1\n",
    " 1",
    "1 ",
    "{}",
    "日本",
]
TEXTS = [*NUMBERS, *LONG_NUMBERS, *DATES, "0044-03-15 BC", *CLOCKS, *MOMENTS, *INSTANTS, *WORDS]


def _accepted(column_type: ColumnType) -> list[str]:
    found = from_text(pa.array(TEXTS), column_type, zero_date="null", time_zone=UTC)
    return [text for text, no in zip(TEXTS, flagged(found.unproven, len(TEXTS)), strict=True) if not no]


@pytest.mark.parametrize("column_type", COLUMN_TYPES, ids=str)
def test_texts_are_read_as_the_scalar_readers_read_them(column_type: ColumnType) -> None:
    # Usual texts alone take the way without patterns.
    for texts in (TEXTS, _accepted(column_type)):
        for zero_date in POLICIES:
            assert_reads_as_scalar(texts, column_type, zero_date=zero_date, time_zone=UTC)
    assert_reads_as_scalar(TEXTS[::-2], column_type, zero_date="error", time_zone=UTC)
    assert_reads_as_scalar([], column_type, zero_date="null", time_zone=UTC)


@pytest.mark.parametrize("zone", [BERLIN, SHANGHAI, timezone(timedelta(hours=-7))], ids=str)
def test_timestamps_are_read_in_their_zone(zone: tzinfo) -> None:
    column_type = ColumnType("timestamp")
    for texts in (TEXTS, _accepted(column_type)):
        for zero_date in POLICIES:
            assert_reads_as_scalar(texts, column_type, zero_date=zero_date, time_zone=zone)


@pytest.mark.parametrize("column_type", COLUMN_TYPES, ids=str)
def test_one_text_alone_is_read_as_among_others(column_type: ColumnType) -> None:
    accepted = [] if keeps_text(column_type) else _accepted(column_type)
    for text in (*accepted[::2], *NUMBERS[::7], *WORDS[::3], *DATES[::4], *CLOCKS[::7]):
        assert_reads_as_scalar([text], column_type, zero_date="null", time_zone=BERLIN)


USUAL: dict[str, tuple[ColumnType, list[str], list[Any]]] = {
    "int": (ColumnType("int"), ["1", "-2147483648"], [1, -(2**31)]),
    "bigint unsigned": (ColumnType("bigint unsigned"), ["18446744073709551615"], [Decimal(2**64 - 1)]),
    "decimal": (
        ColumnType("decimal", 10, 2),
        ["-0.01", "12345678.90"],
        [Decimal("-0.01"), Decimal("12345678.90")],
    ),
    "wide decimal": (ColumnType("decimal", 40, 2), ["-0.01", "9" * 38 + ".00"], ["-0.01", "9" * 38 + ".00"]),
    "float": (ColumnType("float"), ["0.1", "-0"], [0.10000000149011612, -0.0]),
    "enum": (ColumnType("enum", members=("a", "b")), ["1", "2", "0"], ["a", "b", ""]),
    "set": (ColumnType("set", members=("a", "b")), ["3", "0"], ["a,b", ""]),
    "bit": (ColumnType("bit", length=64), [str(2**64 - 1)], [Decimal(2**64 - 1)]),
    "blob": (ColumnType("blob"), ["\0ÿa", "é"], [b"\0\xffa", b"\xe9"]),
    "date": (ColumnType("date"), ["2024-02-29", "0001-01-01"], [date(2024, 2, 29), date(1, 1, 1)]),
    "datetime": (
        ColumnType("datetime"),
        ["9999-12-31 23:59:59.999999"],
        [datetime(9999, 12, 31, 23, 59, 59, 999999)],
    ),
    "timestamp": (
        ColumnType("timestamp"),
        ["2024-10-27 02:30:00", "2024-03-31 02:30:00.5", "2024-07-01 00:00:00"],
        # An hour that comes twice is the first one; one that is skipped has the offset from before.
        [
            datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
            datetime(2024, 3, 31, 1, 30, 0, 500000, tzinfo=UTC),
            datetime(2024, 6, 30, 22, 0, tzinfo=UTC),
        ],
    ),
    "time": (ColumnType("time"), ["-838:59:59", "00:00:00"], ["-838:59:59", "00:00:00"]),
    "boolean": (ColumnType("boolean"), ["true", "0"], [True, False]),
}


@pytest.mark.parametrize("name", USUAL)
def test_usual_texts(name: str) -> None:
    column_type, texts, values = USUAL[name]
    found = from_text(pa.array(texts), column_type, zero_date="null", time_zone=BERLIN)
    assert (found.values.to_pylist(), found.unproven, found.zero_dates) == (values, None, None)
    assert str(found.values.to_pylist()) == str(pa.array(values, found.values.type).to_pylist())


@pytest.mark.law("L6")
@pytest.mark.parametrize(
    ("zero_date", "values", "unproven", "zero_dates"),
    [
        ("null", [date(2024, 1, 1), None, None], None, [False, True, False]),
        ("error", [date(2024, 1, 1), None, None], [False, True, False], None),
        ("text", ["2024-01-01", "0000-00-00", None], None, None),
    ],
)
def test_zero_dates_follow_the_policy(
    zero_date: ZeroDate,
    values: list[Any],
    unproven: list[bool] | None,
    zero_dates: list[bool] | None,
) -> None:
    texts = pa.array(["2024-01-01", "0000-00-00", None])
    for convert in (from_text, from_value):
        found = convert(texts, ColumnType("date"), zero_date=zero_date, time_zone=UTC)
        assert found.values.to_pylist() == values
        assert (found.unproven is None) == (unproven is None)
        assert flagged(found.unproven, 3) == (unproven or [False] * 3)
        assert flagged(found.zero_dates, 3) == (zero_dates or [False] * 3)


_WIDE = Decimal("-" + "9" * 35 + ".5")
_FLOATS = [1.5, -0.0, None, float("nan"), float("inf"), 0.1]
VALUES: list[pa.Array] = [
    pa.array([0, 1, -1, None, 2**31 - 1], pa.int32()),
    pa.array([0, -5, None, 2**31, 2**63 - 1, -(2**63)], pa.int64()),
    pa.array([0, 2**63, 2**64 - 1, None], pa.uint64()),
    pa.array([1, None], pa.int8()),
    pa.array(_FLOATS, pa.float32()),
    pa.array([*_FLOATS, 1e300], pa.float64()),
    pa.array([1.5, 0.1, None], pa.float64()),
    pa.array([True, None, False]),
    pa.array([b"", b"\xff", None, b"abc"]),
    pa.array([b"", b"\xff", None], pa.large_binary()),
    pa.array(["", "é", None, "2024-01-01", "2024-01-01 00:00:00", "5", "-838:59:59", "0000-00-00", "a,b"]),
    pa.array(["", "é", None, "x"], pa.large_string()),
    pa.array(["2024-03-31 02:30:00.25", None, "0000-00-00 00:00:00"]),
    pa.array(["2024-10-27 02:30:00.25", None, "2024-10-27 01:59:59"]),
    pa.array(["2024-01-01 00:00:00.5+02:00", None]),
    pa.array([Decimal("1.50"), None, Decimal("-0.01"), Decimal("0.00")], pa.decimal128(10, 2)),
    pa.array([Decimal("123456789012.50"), None], pa.decimal128(20, 2)),
    pa.array([Decimal("0.0000001"), Decimal(0), Decimal("-1.5"), None], pa.decimal128(38, 30)),
    pa.array([Decimal("0." + "0" * 29 + "1"), Decimal(0), _WIDE, None], pa.decimal256(65, 30)),
    pa.array([Decimal("-" + "9" * 65), None, Decimal(7)], pa.decimal256(65, 0)),
    pa.array([Decimal(2**64 - 1), None], pa.decimal128(20, 0)),
    pa.array([Decimal("1.500"), Decimal("1.501")], pa.decimal128(10, 3)),
    pa.nulls(3),
    pa.nulls(3, pa.string()),
    pa.array([], pa.int64()),
]


@pytest.mark.parametrize("column_type", COLUMN_TYPES, ids=str)
@pytest.mark.parametrize("zero_date", POLICIES)
def test_values_are_read_as_the_scalar_reader_reads_them(
    column_type: ColumnType, zero_date: ZeroDate
) -> None:
    for whole in VALUES:
        for values in (whole, whole.slice(1), whole.slice(1, 1)):
            found = from_value(values, column_type, zero_date=zero_date, time_zone=BERLIN)
            one_by_one = from_python(values.to_pylist(), column_type, zero_date=zero_date, time_zone=BERLIN)
            found.values.validate(full=True)
            assert found.values.type == one_by_one.values.type == arrow_type(column_type, zero_date=zero_date)
            assert str(found.values.to_pylist()) == str(one_by_one.values.to_pylist())
            assert list(np.flatnonzero(flagged(found.unproven, len(values)))) == sorted(one_by_one.errors)
            assert flagged(found.zero_dates, len(values)) == flagged(one_by_one.zero_dates, len(values))
            twice = (one.ambiguous_times for one in (found, one_by_one))
            assert len({tuple(flagged(one, len(values))) for one in twice}) == 1


@pytest.mark.parametrize(
    ("column_type", "values", "refused"),
    [
        (ColumnType("int"), [1, 2**31, True, "1", None], [1, 2, 3]),
        (ColumnType("float"), [1e300, float("inf"), 0.1], [0]),
        (ColumnType("double"), [1, 1.0], [0]),
        (ColumnType("varchar"), ["\ud800", b"x", "x"], [0, 1]),
        (ColumnType("blob"), ["x", b"x"], [0]),
        (
            ColumnType("decimal", 5, 2),
            [Decimal("1.501"), Decimal("1.500"), Decimal("1000"), 7, 1.5],
            [0, 2, 4],
        ),
        (ColumnType("date"), ["2024-01-01", "0000-00-00", "soon"], [2]),
    ],
)
def test_values_that_do_not_fit_are_named(
    column_type: ColumnType, values: Sequence[Any], refused: list[int]
) -> None:
    found = from_python(values, column_type, zero_date="null", time_zone=UTC)
    assert sorted(found.errors) == refused
    assert all(isinstance(error, ValueOutOfRangeError) for error in found.errors.values())
    assert all(found.values[index].as_py() is None for index in refused)
    assert found.values.null_count >= len(refused)


@pytest.mark.parametrize("whole", ["0", "00", "-0", "-00", "1", "123", "0123", "-0123"])
@pytest.mark.parametrize(("precision", "scale"), [(38, 38), (38, 35), (38, 30)])
def test_zeros_in_front_are_read_as_the_scalar_reader_reads_them(
    whole: str, precision: int, scale: int
) -> None:
    """It takes them where MySQL has such decimals, of 30 digits behind the point."""
    text, column_type = f"{whole}.{'0' * scale}", ColumnType("decimal", precision, scale)
    assert_reads_as_scalar([text], column_type, zero_date="null", time_zone=timezone.utc)


def test_a_value_without_decimal_places_keeps_its_digits() -> None:
    column_type = ColumnType("decimal")
    found = from_text(
        pa.array(["007.50", "-0.00", "0.0000001"]), column_type, zero_date="null", time_zone=UTC
    )
    assert found.values.to_pylist() == ["7.50", "-0.00", "0.0000001"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_bytes_under_a_null_are_not_looked_at(kind: pa.DataType) -> None:
    texts = pa.array(["1", "garbage", "2"], kind)
    width = np.int32 if kind == pa.string() else np.int64
    validity = pa.py_buffer(b"\x05")
    offsets = pa.py_buffer(np.frombuffer(texts.buffers()[1], width)[:4].tobytes())
    hidden = pa.Array.from_buffers(kind, 3, [validity, offsets, texts.buffers()[2]])
    found = from_text(hidden, ColumnType("int"), zero_date="null", time_zone=UTC)
    assert (found.values.to_pylist(), found.unproven) == ([1, None, 2], None)
