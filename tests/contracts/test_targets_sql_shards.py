"""A SQL table that Several source tables share, changed by others at the worst moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.sql_beds import execute, target_of
from tests.contracts.targets_bed import AMOUNT, NAME, TABLE, Bed, progress, shape
from tests.full import quick_on
from tidesink.config.models import Destination
from tidesink.errors import SchemaRefusedError
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.laws.modes import routed_shape
from tidesink.sinks.targets.sql.dialect import Connections, Dialect
from tidesink.sinks.targets.sql.location import Place
from tidesink.sinks.targets.sql.mysql import MysqlTables
from tidesink.sinks.targets.sql.postgres import PostgresTables
from tidesink.sinks.targets.sql.target import SqlTarget
from tidesink.typemap.target_schema import Shard, TargetSchema

pytestmark = [pytest.mark.spark, pytest.mark.servers, quick_on("mysql")]
MINE = TableId("shop_1", "orders")
LATE = Column("late", ColumnType("varchar", length=9), default="mine")


def shard_shape(*columns: Column) -> TargetSchema:
    return routed_shape(shape(*columns, table=MINE), Destination(TABLE, Shard("shard", str(MINE))))


class _Watched:
    """Calls back once after the next look at the shared table's columns."""

    after_a_look: Callable[[], None] | None = None

    def present(self, cursor: Any, place: Place) -> dict[str, str]:
        found: dict[str, str] = super().present(cursor, place)  # type: ignore[misc]  # of the database's tables
        act = self.after_a_look if place.name == TABLE.name else None
        if act is not None:
            self.after_a_look = None
            act()
        return found


class _WatchedPostgres(_Watched, PostgresTables):
    pass


class _WatchedMysql(_Watched, MysqlTables):
    pass


def watched(dialect: Dialect) -> _WatchedPostgres | _WatchedMysql:
    if isinstance(dialect.tables, PostgresTables):
        return _WatchedPostgres(dialect.tables.values)
    assert isinstance(dialect.tables, MysqlTables)
    return _WatchedMysql(dialect.tables.server)


def test_a_column_that_another_shard_adds_after_the_look_is_taken_as_it_is(
    sql: Bed, request: pytest.FixtureRequest
) -> None:
    connections = target_of(sql).connections
    tables = watched(connections.dialect)
    target = SqlTarget(Connections(replace(connections.dialect, tables=tables), connections.endpoint))
    request.addfinalizer(target.connections.close)
    plain, wider = shard_shape(ID, NAME, AMOUNT), shard_shape(ID, NAME, AMOUNT, LATE)
    table = target.open_table(plain, pipeline="shop")
    table.claim()
    table.evolve(plain)
    first = {"id": 1, "name": "a", "amount": 1, "shard": str(MINE)}
    table.apply(sql.batch(plain, [first]), progress(1, 1, table=MINE))
    tables.after_a_look = lambda: execute(sql, "ALTER TABLE {} ADD COLUMN late varchar(9)")
    grown = table.evolve(wider)
    assert tables.after_a_look is None
    assert (grown.added, grown.backfilled) == ((), ("late",))
    table.apply(sql.batch(wider, [{**first, "id": 2, "late": "x"}]), progress(1, 2, table=MINE))
    found = {row["id"]: row["late"] for row in sql.read(TABLE)}
    assert found == {1: "mine", 2: "x"}


def test_a_column_of_others_is_neither_dropped_nor_renamed_by_a_shard(sql: Bed) -> None:
    plain = shard_shape(ID, NAME, AMOUNT)
    table = sql.target.open_table(plain, pipeline="shop")
    table.claim()
    table.apply(
        sql.batch(plain, [{"id": 1, "name": "a", "amount": 1, "shard": str(MINE)}]),
        progress(1, 1, table=MINE),
    )
    with pytest.raises(SchemaRefusedError, match=r"Several source tables share shop\.orders"):
        table.drop_columns(["amount"])
    with pytest.raises(SchemaRefusedError, match=r"Several source tables share shop\.orders"):
        table.rename_column("amount", "total")
    table.drop_columns(["gone"])
    assert [found["amount"] for found in sql.read(TABLE)] == [1]
