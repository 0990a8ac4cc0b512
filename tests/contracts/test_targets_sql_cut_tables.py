"""Cuts in a database: the tables that are gathered in, and what is said of them, without a row of Spark's."""

# ruff: noqa: S608  every name is quoted by the dialect

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any, Final, cast

import pytest

from tests.columns import ID
from tests.contracts.sql_beds import postgres_database
from tests.contracts.targets_bed import NAME, TABLE, progress, shape
from tidesink.events import TableId
from tidesink.sinks.targets.base import ReducedBatch, TargetTable
from tidesink.sinks.targets.cuts import CutTable
from tidesink.sinks.targets.sql.cuts import Gathered
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.postgres import postgres_dialect
from tidesink.sinks.targets.sql.table import SqlTable
from tidesink.sinks.targets.sql.target import SqlTarget

pytestmark = pytest.mark.servers
SHAPE: Final = shape(ID, NAME)


@pytest.fixture
def connections(request: pytest.FixtureRequest) -> Iterator[Connections]:
    found = Connections(postgres_dialect(), postgres_database(request))
    yield found
    found.close()


def _asked(connections: Connections, query: str) -> list[tuple[Any, ...]]:
    with connections.transaction("test") as cursor:
        cursor.execute(query)
        return list(cursor.fetchall()) if cursor.description else []


def _open(connections: Connections, *, cuts: bool) -> tuple[SqlTarget, SqlTable, int]:
    target = SqlTarget(connections, cuts=cuts)
    table = target.open_table(SHAPE, pipeline="shop")
    return target, table, table.claim().epoch


def _cut(target: SqlTarget, table: SqlTable, epoch: int, batch: int, *, commit_ts: int) -> None:
    version = table.version_of(progress(epoch, batch))
    tables = {CutTable(TABLE, *version): cast("TargetTable", table)}
    log = target.cut_log("shop")
    log.publish(commit_ts, tables, time=datetime.now(timezone.utc), without=(), keep=1)


def test_a_key_that_the_target_spells_otherwise_is_gathered(connections: Connections) -> None:
    """Names match in any case; Postgres' own do not."""
    place = SqlTarget(connections).place_of(TABLE)
    made = f'CREATE TABLE {place.location} ("ID" bigint PRIMARY KEY, "Name" text)'
    _asked(connections, f"CREATE SCHEMA {place.quote(place.schema)}")
    _asked(connections, made)
    _asked(connections, f"INSERT INTO {place.location} VALUES (1, 'a'), (2, 'b')")
    target, table, epoch = _open(connections, cuts=True)
    result = table.apply(ReducedBatch(SHAPE, 0, 0, truncates=True), progress(epoch, 1))
    assert result.deleted == 2
    living = f"SELECT count(*) FROM {place.location} t"
    assert _asked(connections, living) == [(2,)]
    gathered = Gathered(connections.dialect, place)
    with connections.transaction("test") as cursor:
        assert gathered.look(cursor)
    assert _asked(connections, f"{living} WHERE {gathered.lacks_row(SHAPE.keys)}") == [(0,)]
    _cut(target, table, epoch, 1, commit_ts=7)
    assert _asked(connections, living) == [(0,)]


def test_a_table_that_was_made_while_there_were_no_cuts_is_not_as_of_the_last_one(
    connections: Connections,
) -> None:
    """``cuts`` was taken out of the config, and is there again: the last cut is older than the table."""
    other = TableId("shop", "customers")
    target = SqlTarget(connections, cuts=True)
    first = target.open_table(shape(ID, NAME, table=other), pipeline="shop")
    epoch = first.claim().epoch
    first.apply(ReducedBatch(shape(ID, NAME, table=other), 0, 0), progress(epoch, 1, table=other))
    version = first.version_of(progress(epoch, 1, table=other))
    tables = {CutTable(other, *version): cast("TargetTable", first)}
    log = target.cut_log("shop")
    log.publish(7, tables, time=datetime.now(timezone.utc), without=(), keep=1)
    _, table, epoch = _open(connections, cuts=False)
    table.apply(ReducedBatch(SHAPE, 0, 0), progress(epoch, 1))
    excluded = f"SELECT source_table FROM {log.place.beside('_tidesink_excluded')}"
    assert _asked(connections, excluded) == []
    target, table, epoch = _open(connections, cuts=True)
    assert _asked(connections, excluded) == [("orders",)]
    # It is so once: a worker that begins again changes nothing.
    _cut(target, table, epoch, 1, commit_ts=8)
    assert _asked(connections, excluded) == []
    _open(connections, cuts=True)
    assert _asked(connections, excluded) == []
