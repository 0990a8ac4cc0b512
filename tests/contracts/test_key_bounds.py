"""The databases find the rows within a range of a key that Spark finds among the values that they give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest
import sqlalchemy as sa

from tests.mysql_values import own_database
from tests.postgres_database import own_postgres, plain_session, source_connection
from tidesink.events import TableId
from tidesink.sinks.batch.source_rows import key_ranges
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.source_database.base import column_of, table_of
from tidesink.source_database.database import begin_session, dialect_of, stored_table
from tidesink.source_database.key_bounds import checked_bounds, parse_bounds, within

pytestmark = pytest.mark.servers

Columns = Mapping[str, tuple[str, tuple[str, ...]]]
# Of each column its values in their order, of which the second and the last are bounds.
_MYSQL: Final[Columns] = {
    "u": ("bigint unsigned", ("0", "9", "10", "18446744073709551615")),
    "n": ("decimal(20,2)", ("-10.50", "-9.99", "0.00", "100000000000000000.01")),
    "d": ("date", ("1000-01-01", "2026-01-09", "2026-01-10", "9999-12-31")),
    "m": (
        "datetime(6)",
        (
            "2026-01-09 23:59:59.999999",
            "2026-01-10 00:00:00",
            "2026-01-10 00:00:00.000001",
            "9999-12-31 00:00:00",
        ),
    ),
    "z": (
        "timestamp(6)",
        ("1970-01-02 00:00:00", "2026-03-29 00:59:59.999999", "2026-03-29 01:00:00", "2038-01-19 03:14:07"),
    ),
    "t": ("time(3)", ("-838:59:59.000", "-01:00:00.000", "09:59:59.500", "100:00:00.000")),
}
_POSTGRES: Final[Columns] = {
    "u": ("bigint", ("-9223372036854775808", "9", "10", "9223372036854775807")),
    "n": ("numeric(20,2)", ("-10.50", "-9.99", "0.00", "100000000000000000.01")),
    "d": ("date", ("0001-01-01", "2026-01-09", "2026-01-10", "9999-12-31")),
    "m": (
        "timestamp",
        (
            "2026-01-09 23:59:59.999999",
            "2026-01-10 00:00:00",
            "2026-01-10 00:00:00.000001",
            "9999-12-31 00:00:00",
        ),
    ),
    "z": (
        "timestamptz",
        ("0001-01-02 00:00:00", "2026-03-29 00:59:59.999999", "2026-03-29 01:00:00", "9999-12-30 00:00:00"),
    ),
}


def _check(connection: sa.Connection, table: TableId, columns: Columns) -> None:
    stored, dialect = stored_table(connection, table), dialect_of(connection)
    assert stored is not None

    def found(condition: str) -> list[int]:
        bounds = checked_bounds(parse_bounds(condition), stored)
        query = sa.select(column_of("i")).select_from(table_of(table))
        query = query.where(within(bounds, stored.types, dialect)).order_by(column_of("i"))
        rows = [int(value) for (value,) in connection.execute(query)]
        # The walk of the key counts the same rows.
        for size in (len(rows) - 1, len(rows)):
            if size > 0:
                first, *_ = key_ranges(connection, table, stored, after=None, rows=size, most=2, where=bounds)
                assert (first.up_to is None) == (size == len(rows))
        return rows

    for name, (_, values) in columns.items():
        second, last = (value if name in "un" else f"'{value}'" for value in (values[1], values[-1]))
        assert found(f"{name} >= {second}") == [1, 2, 3], name
        assert found(f"{name} > {second} and {last} > {name}") == [2], name
        assert found(f"{name} <= {second}") == [0, 1], name
        assert found(f"{name} = {last}") == [3], name
        assert found(f"i >= 1 and {name} between {second} and {last}") == [1, 2, 3], name
        assert found(f"{name} < {second} and {name} > {last}") == [], name


def _statements(columns: Columns) -> list[str]:
    words = ", ".join(f"{name} {sql} NOT NULL" for name, (sql, _) in columns.items())
    rows = ", ".join(
        f"({at}, {', '.join(repr(values[at]) for _, values in columns.values())})" for at in range(4)
    )
    return [
        f"CREATE TABLE bounds (i int, {words}, PRIMARY KEY (i, {', '.join(columns)}))",
        f"INSERT INTO bounds VALUES {rows}",  # noqa: S608  (constants)
    ]


def test_bounds_in_mariadb(mariadb_url: str) -> None:
    with own_database(mariadb_url) as (connection, schema):
        begin_session(connection)
        for statement in _statements(_MYSQL):
            connection.exec_driver_sql(statement)
        _check(connection, TableId(schema, "bounds"), _MYSQL)


def test_bounds_in_postgres(postgres: Endpoint) -> None:
    with own_postgres(postgres) as url:
        with plain_session(url) as session:
            session.execute("SET TIME ZONE 'UTC'")
            for statement in _statements(_POSTGRES):
                session.execute(statement)
        with source_connection(url) as connection:
            _check(connection, TableId("public", "bounds"), _POSTGRES)


def test_the_order_of_a_key_in_postgres(postgres: Endpoint) -> None:
    """Another collation, type or domain of the key, and no change of other columns."""
    table = TableId("public", "coded")
    with own_postgres(postgres) as url, plain_session(url) as session, source_connection(url) as connection:

        def order() -> str:
            found = stored_table(connection, table)
            assert found is not None
            assert found.key == ("k", "n", "e")
            return found.order

        session.execute("CREATE TYPE mood AS ENUM ('a', 'b')")
        session.execute("CREATE TYPE other AS ENUM ('b', 'a')")
        session.execute("CREATE TABLE coded (k text, n int, e mood, v text, PRIMARY KEY (k, n, e))")
        orders = [order()]
        session.execute('ALTER TABLE coded ALTER v TYPE text COLLATE "C", ADD w int')
        session.execute("ALTER TYPE mood ADD VALUE 'c'")
        assert order() == orders[0]
        for change in ('k TYPE text COLLATE "C"', "n TYPE text", "e TYPE other USING e::text::other"):
            session.execute(f"ALTER TABLE coded ALTER {change}")
            orders.append(order())
    assert len({*orders}) == len(orders)
