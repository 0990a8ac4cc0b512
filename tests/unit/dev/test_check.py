"""The check of every value: it sees each kind of difference, and takes no spelling for one."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tests.hand_made_lake import HandMadeTable
from tidesink.dev.lake_check import TableCheck, check_table
from tidesink.dev.shop import ExpectedTable
from tidesink.events import TableId

ORDERS = TableId("shop", "orders")
# Delta type, what the lake holds, and the text of the same value at the source.
SAME = [
    ("long", pa.array([-(2**63)]), "-9223372036854775808"),
    ("integer", pa.array([7], pa.int32()), "7"),
    ("decimal(20,0)", pa.array([Decimal(2**64 - 1)], pa.decimal128(20, 0)), "18446744073709551615"),
    ("decimal(12,4)", pa.array([Decimal("1.5000")], pa.decimal128(12, 4)), "1.50"),
    ("float", pa.array([0.1], pa.float32()), "0.10000000149011612"),
    ("double", pa.array([1.7976931348623157e308]), "1.7976931348623157e+308"),
    ("string", pa.array(["中文 😀"]), "中文 😀"),
    ("string", pa.array(["838:59:59.0000"]), "838:59:59.0000"),
    ("binary", pa.array([b"\x00\xff"]), "00ff"),
    ("date", pa.array([date(1000, 1, 1)]), "1000-01-01"),
    ("date", pa.array([None], pa.date32()), "2020-02-30"),
    ("timestamp_ntz", pa.array([datetime(2024, 1, 2, 3, 4, 5, 60_000)]), "2024-01-02 03:04:05.06"),
    ("timestamp_ntz", pa.array([None], pa.timestamp("us")), "0000-00-00 00:00:00.000000"),
    ("timestamp", pa.array([datetime(2024, 7, 1, 12, tzinfo=timezone.utc)]), "2024-07-01 14:00:00.000"),
    ("long", pa.array([None], pa.int64()), None),
]
OTHER = [
    ("long", pa.array([1]), "2"),
    ("long", pa.array([None], pa.int64()), "2"),
    ("string", pa.array([""]), None),
    ("string", pa.array(["a "]), "a"),
    ("decimal(12,4)", pa.array([Decimal("1.5001")], pa.decimal128(12, 4)), "1.50"),
    ("float", pa.array([0.1], pa.float32()), "0.2"),
    ("binary", pa.array([b""]), "00"),
    ("date", pa.array([None], pa.date32()), "2020-02-28"),
    ("timestamp_ntz", pa.array([datetime(2024, 1, 2, 3, 4, 5)]), "2024-01-02 03:04:05.000001"),
    ("timestamp", pa.array([datetime(2024, 7, 1, 14, tzinfo=timezone.utc)]), "2024-07-01 14:00:00.000"),
]


def _check_one(tmp_path: Path, delta_type: str, held: pa.Array, text: str | None) -> TableCheck:
    table = HandMadeTable(tmp_path / "t", {"id": "long", "v": delta_type})
    table.commit(table.schema(), table.add("a.parquet", id=pa.array([1]), v=held))
    expected = ExpectedTable(ORDERS, {"id": "bigint", "v": "?"}, ("id",), [["1", text]])
    return check_table(table.path, expected, time_zone="Europe/Berlin")


@pytest.mark.parametrize(("delta_type", "held", "text"), SAME)
def test_equal_values_are_equal(tmp_path: Path, delta_type: str, held: pa.Array, text: str | None) -> None:
    check = _check_one(tmp_path, delta_type, held, text)
    assert (check.differences, check.right, check.rows, check.columns) == ((), True, 1, 2)


@pytest.mark.parametrize(("delta_type", "held", "text"), OTHER)
def test_other_values_are_told(tmp_path: Path, delta_type: str, held: pa.Array, text: str | None) -> None:
    check = _check_one(tmp_path, delta_type, held, text)
    assert not check.right
    assert "row (1,) column v: " in check.differences[0]
    assert ", expected " in check.differences[0]


def _rows(tmp_path: Path, ids: list[int], expected: list[int]) -> tuple[str, ...]:
    table = HandMadeTable(tmp_path / "t", {"id": "long"})
    table.commit(table.schema(), table.add("a.parquet", id=pa.array(ids, pa.int64())))
    rows: list[list[str | None]] = [[str(number)] for number in expected]
    return check_table(table.path, ExpectedTable(ORDERS, {"id": "bigint"}, ("id",), rows)).differences


@pytest.mark.parametrize(
    ("ids", "expected", "differences"),
    [
        ([1, 2], [2, 1], ()),
        ([1], [1, 2], ("row (2,) is missing",)),
        ([1, 2], [1], ("row (2,) is unexpected",)),
        ([1, 1], [1], ("1 rows appear more than once",)),
        ([], [1, 2, 3, 4, 5], (*(f"row ({number},) is missing" for number in (1, 2, 3)), "and 2 more")),
    ],
)
def test_rows_are_counted_by_key(
    tmp_path: Path, ids: list[int], expected: list[int], differences: tuple[str, ...]
) -> None:
    assert _rows(tmp_path, ids, expected) == differences


def test_a_missing_column_and_a_missing_table_are_told(tmp_path: Path) -> None:
    table = HandMadeTable(tmp_path / "t", {"id": "long"})
    table.commit(table.schema(), table.add("a.parquet", id=pa.array([1])))
    expected = ExpectedTable(ORDERS, {"id": "bigint", "note": "text"}, ("id",), [["1", "x"]])
    assert check_table(table.path, expected).differences == ("column note is missing",)
    assert check_table(tmp_path / "orders", expected).differences == ("there is no Delta table at orders",)


def test_a_table_without_rows_need_not_be_there(tmp_path: Path) -> None:
    assert check_table(tmp_path / "none", ExpectedTable(ORDERS, {"id": "bigint"}, ("id",), [])).right


def test_zero_dates_kept_as_text_are_compared_as_text(tmp_path: Path) -> None:
    table = HandMadeTable(tmp_path / "t", {"id": "long", "v": "string"})
    table.commit(table.schema(), table.add("a.parquet", id=pa.array([1]), v=pa.array(["0000-00-00"])))
    expected = ExpectedTable(ORDERS, {"id": "bigint", "v": "date"}, ("id",), [["1", "0000-00-00"]])
    assert check_table(table.path, expected, zero_date="text").right
