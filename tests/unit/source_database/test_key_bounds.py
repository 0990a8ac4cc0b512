"""A range of the key: what is read of a condition, and which types it is of."""

from __future__ import annotations

from decimal import Decimal

import pytest
import sqlalchemy as sa

from tidesink.errors import ConfigError
from tidesink.events import ColumnType
from tidesink.source_database import mysql, postgres
from tidesink.source_database.base import StoredTable
from tidesink.source_database.key_bounds import Bound, checked_bounds, parse_bounds, seconds_of, within
from tidesink.typemap.mysql_types import parse_sql_type

TYPES = {
    "Id": "bigint unsigned",
    "price": "decimal(10,2)",
    "day": "date",
    "at": "datetime(6)",
    "stamp": "timestamp",
    "clock": "time(3)",
    "word": "varchar(20)",
    "y": "year",
    "f": "double",
}
STORED = StoredTable(
    {name: parse_sql_type(sql) for name, sql in {**TYPES, "x": "int"}.items()}, tuple(TYPES), 0, 0
)


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("id >= 100 and id < 200", [("id", ">=", "100"), ("id", "<", "200")]),
        ("(`id` > -5) AND 7 >= id", [("id", ">", "-5"), ("id", "<=", "7")]),
        ("id = 7", [("id", "=", "7")]),
        (
            "day between '2026-01-01' and '2026-01-31'",
            [("day", ">=", "2026-01-01"), ("day", "<=", "2026-01-31")],
        ),
        ("price < 1.5", [("price", "<", "1.5")]),
    ],
)
def test_comparisons(text: str, bounds: list[tuple[str, str, str]]) -> None:
    assert [*map(tuple, parse_bounds(text))] == bounds


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "id",
        "id >",
        "id > 1 or id < 0",
        "not id > 1",
        "id <> 1",
        "id in (1, 2)",
        "id > 1; drop table x",
        "id > (select 1)",
        "id > now()",
        "id + 1 > 2",
        "t.id > 1",
        "id > other",
        "1 > 2",
        "id > null",
        "id between 1 and now()",
        "id > 1 -- and x\n or true",
        "id like 'a%'",
        "sleep(9) > 1",
        "id > cast('1' as int)",
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match="Use comparisons of the source table's key columns"):
        parse_bounds(text)


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        (Bound("iD", "=", "007"), "7"),
        (Bound("price", "<", "-1.50"), "-1.50"),
        (Bound("day", "=", "2026-01-31"), "2026-01-31"),
        (Bound("at", "=", "2026-01-31 10:00:00.000001"), "2026-01-31 10:00:00.000001"),
        (Bound("at", "=", "2026-01-31T10:00"), "2026-01-31 10:00:00"),
        (Bound("stamp", "=", "2026-01-31"), "2026-01-31 00:00:00"),
        (Bound("clock", "=", "-838:59:59"), "-838:59:59"),
    ],
)
def test_literals_are_of_the_types_of_their_columns(bound: Bound, text: str) -> None:
    ((column, _, found),) = checked_bounds([bound], STORED)
    assert (column.lower(), found) == (bound.column.lower(), text)


@pytest.mark.parametrize(
    ("column", "text", "said"),
    [
        ("x", "1", "not a column of the source table's key"),
        ("word", "a", "has the type varchar"),
        ("y", "2026", "has the type year"),
        ("f", "1", "has the type double"),
        ("id", "1.5", "cannot be compared"),
        ("id", "1e3", "cannot be compared"),
        ("id", "' or 1=1", "cannot be compared"),
        ("id", "9" * 21, "cannot be compared"),
        ("id", "\u0661", "cannot be compared"),
        ("price", "1.555", "cannot be compared"),
        ("day", "2026-02-30", "cannot be compared"),
        ("day", "0000-00-00", "cannot be compared"),
        ("at", "2026-01-31 10:00:00.0000001", "cannot be compared"),
        ("at", "2026-01-31 10:00:00+01:00", "cannot be compared"),
        ("stamp", "0001-01-01 00:00:00", "cannot be compared"),
        ("clock", "10:61:00", "cannot be compared"),
        # What the column cannot have the database refuses, or no parameter is made of.
        ("id", "18446744073709551616", "cannot be compared"),
        ("id", "-1", "cannot be compared"),
        ("price", "100000000", "cannot be compared"),
    ],
)
def test_what_is_not_compared_alike_is_refused(column: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        checked_bounds([Bound(column, ">=", text)], STORED)


@pytest.mark.parametrize(
    ("kind", "last", "beyond"),
    [
        (ColumnType("int", sql="integer"), "2147483647", "2147483648"),
        (ColumnType("smallint", sql="smallint"), "-32768", "-32769"),
        (ColumnType("bigint", sql="oid"), "4294967295", "4294967296"),
        (ColumnType("other text", sql="numeric(5,2)"), "-999.99", "1000"),
    ],
)
def test_numbers_that_postgres_cannot_cast_are_refused(kind: ColumnType, last: str, beyond: str) -> None:
    stored = StoredTable({"n": kind}, ("n",), 0, 0)
    assert [*checked_bounds([Bound("n", "<", last)], stored)] == [Bound("n", "<", last)]
    with pytest.raises(ConfigError, match="cannot be compared"):
        checked_bounds([Bound("n", "<", beyond)], stored)


def test_a_row_id_of_tidb_has_ranges() -> None:
    """It is no column of the table's list."""
    integer = parse_sql_type("bigint")
    stored = StoredTable({"note": integer}, ("_tidb_rowid",), 0, 0, row_key={"_tidb_rowid": integer})
    bounds = parse_bounds("_tidb_rowid >= 5")
    assert checked_bounds(bounds, stored) == bounds


def test_literals_are_parameters() -> None:
    bounds = checked_bounds(parse_bounds("id >= 5 and day < '2026-01-31'"), STORED)
    for dialect, url in ((mysql, "mysql://"), (postgres, "postgresql://")):
        found = (
            sa.select(sa.literal_column("1"))
            .where(within(bounds, STORED.types, dialect))
            .compile(dialect=sa.make_url(url).get_dialect()())
        )
        assert {str(value) for value in found.params.values()} == {"5", "2026-01-31"}
        assert "2026" not in str(found)


def test_seconds_of_times() -> None:
    assert seconds_of("-838:59:59.5") == Decimal("-3020399.5")
    assert seconds_of("01:00:01") == 3601
