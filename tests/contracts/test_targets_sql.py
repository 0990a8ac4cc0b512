"""What only the SQL targets can get wrong, on real servers: staging, unique columns, cut commits, names."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.sql_beds import execute, sql_bed, target_of
from tests.contracts.targets_bed import NAME, TABLE, Bed, progress, row, shape
from tests.full import quick_on
from tests.tcp_proxy import Cut, commit_proxy
from tidesink.errors import (
    AccountingError,
    CommitUnknownError,
    StaleProgressError,
    TargetError,
    TransientTargetError,
)
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.targets.sql.dialect import Connections, Counts, Merge, MergeColumn
from tidesink.sinks.targets.sql.target import SqlTarget

pytestmark = [pytest.mark.spark, pytest.mark.servers, quick_on("postgres")]
SHAPE = shape()
EMAIL = Column("email", ColumnType("varchar", length=40))


def by_email(bed: Bed, *unique: str) -> Any:
    """A table of two rows with their e-mails, and what makes these unique."""
    one = shape(ID, EMAIL)
    table = bed.target.open_table(one, pipeline="shop")
    table.claim()
    table.apply(bed.batch(one, [{"id": 1, "email": "x"}, {"id": 2, "email": "y"}]), progress(1, 1))
    execute(bed, *unique)
    return table, one


UNIQUE = {
    "postgres": "ALTER TABLE {} ADD UNIQUE (email)",
    "mysql": "ALTER TABLE {} MODIFY email varchar(40), ADD UNIQUE (email)",
}


@quick_on("postgres", "mysql")
def test_a_unique_column_never_costs_another_row(sql: Bed) -> None:
    table, one = by_email(sql, UNIQUE[sql.name])
    # ON DUPLICATE KEY UPDATE would make row 2 of this, and row 3 would be gone without a word.
    with pytest.raises(TargetError, match="unique index that is not the key") as refused:
        table.apply(sql.batch(one, [{"id": 3, "email": "y"}]), progress(1, 2))
    assert refused.value.context["table"] == "shop.orders"
    with pytest.raises(TargetError, match="unique index that is not the key"):
        table.apply(sql.batch(one, [{"id": 1, "email": "y"}]), progress(1, 2))
    assert sql.rows() == [{"id": 1, "email": "x"}, {"id": 2, "email": "y"}]
    assert table.committed() == progress(1, 1)
    moved = table.apply(sql.batch(one, [{"id": 3, "email": "y"}], [{"id": 2}]), progress(1, 2))
    assert (moved.inserted, moved.updated, moved.deleted) == (1, 0, 1)
    assert sql.rows() == [{"id": 1, "email": "x"}, {"id": 3, "email": "y"}]


@quick_on("postgres", "mysql")
def test_two_rows_swap_their_unique_values(sql: Bed) -> None:
    deferrable = UNIQUE[sql.name] + (" DEFERRABLE" if sql.name == "postgres" else "")
    table, one = by_email(sql, deferrable)
    result = table.apply(
        sql.batch(one, [{"id": 1, "email": "y"}, {"id": 2, "email": "x"}, {"id": 3, "email": "z"}]),
        progress(1, 2),
    )
    assert (result.inserted, result.updated) == (1, 2)
    assert [r["email"] for r in sql.rows()] == ["y", "x", "z"]


def test_postgres_says_what_a_swap_needs(sql: Bed) -> None:
    if sql.name != "postgres":
        pytest.skip("MySQL needs nothing")
    table, one = by_email(sql, UNIQUE["postgres"])
    with pytest.raises(TargetError, match="DEFERRABLE"):
        table.apply(sql.batch(one, [{"id": 1, "email": "y"}, {"id": 2, "email": "x"}]), progress(1, 2))
    assert [r["email"] for r in sql.rows()] == ["x", "y"]


STAGED = {"t_attempt": "bigint", "t_delete": "int", "c0": "bigint", "c1": "varchar(9)", "c2": "int"}


def by_hand(target: SqlTarget, attempts: tuple[int, ...], *, upserts: int, deletes: int) -> Merge:
    """A merge from a staging table with the columns ``STAGED``."""
    place = target.place_of(TABLE)
    columns = tuple(
        MergeColumn(target.connections.dialect.quote(name), f"c{at}", name == "id")
        for at, name in enumerate(("id", "name", "amount"))
    )
    return Merge(place.location, place.staging(1), columns, attempts, upserts, deletes, False, None, place)


@quick_on("postgres", "mysql")
def test_rows_of_other_attempts_are_never_merged(sql: Bed) -> None:
    """A task that Spark ran twice, or a late one of an earlier batch, leaves rows in the staging table."""
    table = sql.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    table.apply(sql.batch(SHAPE, [row(1), row(2)]), progress(1, 1))
    target = target_of(sql)
    dialect, place = target.connections.dialect, target.place_of(TABLE)
    merge = by_hand(target, (7, 9), upserts=2, deletes=1)
    with target.connections.transaction("test") as cursor:
        dialect.staging.create(cursor, place.staging(1), STAGED)
        rows = (
            "(7, 0, 1, 'new', 2), (8, 0, 1, 'twice', 3), (8, 0, 5, 'twice', 3), (9, 0, 3, 'new', 4), "
            "(8, 1, 1, NULL, NULL), (9, 1, 2, NULL, NULL)"
        )
        cursor.execute(f"INSERT INTO {place.staging(1)} VALUES {rows}")  # noqa: S608
        assert dialect.rows.merge(cursor, merge) == Counts(inserted=1, updated=1, deleted=1)
    assert sql.rows() == [row(1, "new", 2), row(3, "new", 4)]
    # The next claim clears away what a worker left behind.
    sql.reopen().open_table(SHAPE, pipeline="shop").claim()
    with target.connections.transaction("test") as cursor:
        assert dialect.staging.tables(cursor, place) == []


def test_mysql_counts_fewer_rows_than_it_was_given(mysql_sql: Bed) -> None:
    """They were lost between the look at what was staged and the merge."""
    table = mysql_sql.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    table.apply(mysql_sql.batch(SHAPE, [row(1)]), progress(1, 1))
    target = target_of(mysql_sql)
    dialect, place = target.connections.dialect, target.place_of(TABLE)
    merge = by_hand(target, (7,), upserts=4, deletes=0)
    with target.connections.transaction("test", writes=False) as cursor:
        dialect.staging.create(cursor, place.staging(1), STAGED)
        cursor.execute(f"INSERT INTO {place.staging(1)} VALUES (7, 0, 1, 'new', 2), (7, 0, 2, 'new', 3)")  # noqa: S608
        with pytest.raises(
            AccountingError, match="reports 3 affected rows for 4 upserts, of which 1 updated"
        ):
            dialect.rows.merge(cursor, merge)


def test_a_table_that_keeps_its_versions_counts_more_and_is_merged(mysql_sql: Bed) -> None:
    table = mysql_sql.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    table.apply(mysql_sql.batch(SHAPE, [row(1), row(2)]), progress(1, 1))
    execute(mysql_sql, "ALTER TABLE {} ADD SYSTEM VERSIONING")
    done = table.apply(mysql_sql.batch(SHAPE, [row(1, "new"), row(2), row(3)]), progress(1, 2))
    assert (done.inserted, done.updated) == (1, 2)
    assert mysql_sql.rows() == [row(1, "new"), row(2), row(3)]


class Losing(Connections):
    """A database whose staging tables have lost the rows for which ``lost`` is true.

    A server that restarts between two tasks of a batch does so: Postgres empties UNLOGGED tables.
    """

    lost = ""

    @contextmanager
    def transaction(self, table: str, *, writes: bool = True) -> Iterator[Any]:
        with super().transaction(table, writes=writes) as cursor:
            place = SqlTarget(self).place_of(TABLE)
            for name in self.dialect.staging.tables(cursor, place) if self.lost else ():
                cursor.execute(f"DELETE FROM {place.beside(name)} WHERE {self.lost}")  # noqa: S608
            yield cursor


@pytest.mark.parametrize("lost", ["t_delete = 1", "t_delete = 0 AND c0 = 3", "t_delete >= 0"])
def test_rows_that_the_database_lost_are_staged_again(
    sql: Bed, request: pytest.FixtureRequest, lost: str
) -> None:
    server = target_of(sql).connections
    losing = Losing(server.dialect, server.endpoint)
    bed = sql_bed(request, losing)
    table = bed.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    table.apply(bed.batch(SHAPE, [row(1), row(2)]), progress(1, 1))
    losing.lost = lost
    batch = bed.batch(SHAPE, [row(1, "new"), row(3)], [{"id": 2}])
    with pytest.raises(TransientTargetError, match="lost rows after they were staged"):
        table.apply(batch, progress(1, 2))
    losing.lost = ""
    assert (bed.rows(), table.committed()) == ([row(1), row(2)], progress(1, 1))
    done = table.apply(batch, progress(1, 2))
    assert (done.inserted, done.updated, done.deleted, done.absent) == (1, 1, 1, 0)
    assert bed.rows() == [row(1, "new"), row(3)]


def test_rows_of_another_kind_than_the_batch_says_are_refused(sql: Bed) -> None:
    table = sql.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    batch = replace(sql.batch(SHAPE, [row(1), row(2)], [{"id": 3}]), upserts=1, deletes=2)
    with pytest.raises(AccountingError, match="staging table has 2 upserts and 1 deletes"):
        table.apply(batch, progress(1, 1))
    assert sql.rows() == []


@quick_on("postgres", "mysql")
@pytest.mark.parametrize("how", ["unsent", "unanswered"])
def test_a_connection_cut_in_the_commit(sql: Bed, request: pytest.FixtureRequest, how: Cut) -> None:
    server = target_of(sql).connections
    with commit_proxy(server.endpoint.host, server.endpoint.port) as proxy:
        endpoint = replace(server.endpoint, host="127.0.0.1", port=proxy.port, tls="disable")
        bed = sql_bed(request, Connections(server.dialect, endpoint))
        table = bed.target.open_table(SHAPE, pipeline="shop")
        table.claim()
        table.apply(bed.batch(SHAPE, [row(1)]), progress(1, 1))
        proxy.cut = how
        batch = bed.batch(SHAPE, [row(1, "new"), row(2)])
        with pytest.raises(CommitUnknownError):
            table.apply(batch, progress(1, 2))
        assert proxy.cuts == 1
        done = table.committed() == progress(1, 2)
        assert done == (how == "unanswered")
        assert len(bed.rows()) == (2 if done else 1)
        again = table.apply(batch, progress(1, 2))
        assert (again.inserted, again.updated) == (1, 1)
        assert bed.rows() == [row(1, "new"), row(2)]


def test_a_server_that_is_gone_is_waited_for(sql: Bed) -> None:
    endpoint = replace(target_of(sql).connections.endpoint, port=1)
    gone = SqlTarget(Connections(target_of(sql).connections.dialect, endpoint))
    with pytest.raises(TransientTargetError, match="does not answer"):
        gone.open_table(SHAPE, pipeline="shop")


def test_a_table_dropped_behind_its_progress_is_refused(sql: Bed) -> None:
    table = sql.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    table.apply(sql.batch(SHAPE, [row(1)]), progress(1, 1))
    execute(sql, "DROP TABLE {}")
    again = sql.reopen().open_table(SHAPE, pipeline="shop")
    with pytest.raises(StaleProgressError, match="was dropped, but the ledger still has its progress"):
        again.claim()
    with pytest.raises(StaleProgressError, match="was dropped, but the ledger still has its progress"):
        again.committed()


@quick_on("postgres", "mysql")
def test_a_value_that_does_not_fit_is_refused_and_nothing_written(sql: Bed) -> None:
    table = sql.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    table.apply(sql.batch(SHAPE, [row(1)]), progress(1, 1))
    narrow = {
        "postgres": "ALTER TABLE {} ALTER name TYPE varchar(3)",
        "mysql": "ALTER TABLE {} MODIFY name varchar(3)",
    }
    execute(sql, narrow[sql.name])
    again = sql.reopen().open_table(SHAPE, pipeline="shop")
    again.claim()
    with pytest.raises(TargetError, match="does not fit its column") as refused:
        again.apply(sql.batch(SHAPE, [row(2), row(1, "secret text")]), progress(2, 2))
    assert "secret" not in str(refused.value)
    assert sql.rows() == [row(1)]


@quick_on("postgres", "mysql")
def test_a_text_with_nul_is_kept_or_refused_by_name(sql: Bed) -> None:
    table = sql.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    batch = sql.batch(SHAPE, [row(1, "a\0b")])
    if sql.target.capabilities.nul_in_text:
        table.apply(batch, progress(1, 1))
        assert sql.rows() == [row(1, "a\0b")]
        return
    with pytest.raises(TargetError, match=r"column=name.*U[+]0000"):
        table.apply(batch, progress(1, 1))
    assert sql.rows() == []


def test_many_tables_of_a_new_schema_are_made_at_the_same_time(sql: Bed) -> None:
    """A worker opens its tables in threads: none may trip over what another is making."""
    tables = [TableId("new", f"t{number}") for number in range(12)]
    with ThreadPoolExecutor(12) as pool:
        opened = list(pool.map(lambda one: sql.target.open_table(shape(table=one), pipeline="shop"), tables))
        epochs = list(pool.map(lambda table: table.claim().epoch, opened))
    assert epochs == [1] * 12
    for table in opened:
        table.close()


def test_an_evolution_starts_from_what_is_there_by_then(sql: Bed) -> None:
    """Also where one was cut off: in MySQL each ALTER stays done, whatever comes after it."""
    table = sql.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    table.apply(sql.batch(SHAPE, [row(1)]), progress(1, 1))
    wider = shape(
        ID,
        NAME,
        Column("amount", ColumnType("bigint")),
        Column("state", ColumnType("varchar", length=9), default="new"),
        Column("more", ColumnType("int"), default="7"),
    )
    # Since the last look another program has added a column.
    state = {"postgres": "text", "mysql": "longtext"}[sql.name]
    execute(sql, f"ALTER TABLE {{}} ADD COLUMN state {state}")
    assert table.evolve(wider).added == ("more",)
    assert not table.evolve(wider).changed
    table.apply(sql.batch(wider, [{**row(2), "amount": 2**40, "state": "x", "more": None}]), progress(1, 2))
    assert sql.rows() == [
        {**row(1), "state": None, "more": 7},
        {**row(2), "amount": 2**40, "state": "x", "more": None},
    ]


def test_a_worker_killed_while_it_added_a_column_leaves_no_default(mysql_sql: Bed) -> None:
    """Each of the two ALTERs stays done by itself."""
    table = mysql_sql.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    table.apply(mysql_sql.batch(SHAPE, [row(1)]), progress(1, 1))
    target = target_of(mysql_sql)
    dialect, place = target.connections.dialect, target.place_of(TABLE)
    added = {"more": ("int", "7"), "price": ("decimal(9,2)", "1.50"), "doc": ("json", "'{}'")}
    execute(mysql_sql, dialect.tables.alter(place.location, added, {}, frozenset())[0])
    again = mysql_sql.reopen().open_table(SHAPE, pipeline="shop")
    again.claim()
    again.apply(mysql_sql.batch(SHAPE, [row(2)]), progress(2, 2))
    assert [found["more"] for found in mysql_sql.rows()] == [7, None]
    with target.connections.transaction("test") as cursor:
        assert dialect.tables.left_undone(cursor, place) == []
        cursor.execute(f"SHOW CREATE TABLE {place.location}")
        assert "json_valid(`doc`)" in cursor.fetchone()[1]
