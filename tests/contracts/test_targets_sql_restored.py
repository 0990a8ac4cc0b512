"""A table that others drop, make again or move about behind the ledger: what is known of it, and no more."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.contracts.targets_bed import TABLE, Bed, progress, shape
from tests.full import quick_on
from tidesink.errors import StaleProgressError, TransientTargetError
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch, TargetTable
from tidesink.sinks.targets.sql.target import SqlTarget

pytestmark = [pytest.mark.spark, pytest.mark.servers, quick_on("postgres")]
SHAPE: Final = shape()
ROW: Final = {"id": 1, "name": "a", "amount": 1}
AGAIN: Final = (
    "CREATE TABLE {0}.again (LIKE {0}.{1} INCLUDING ALL)",
    "INSERT INTO {0}.again SELECT * FROM {0}.{1}",
    "DROP TABLE {0}.{1}",
    "ALTER TABLE {0}.again RENAME TO {1}",
)
# What people and their jobs do to a table that stays the same one.
UPKEEP: Final = {
    "postgres": (
        "ANALYZE shop.orders",
        "VACUUM FULL shop.orders",
        "CREATE INDEX amounts ON shop.orders (amount)",
        "CLUSTER shop.orders USING amounts",
        "REINDEX TABLE shop.orders",
        "ALTER TABLE shop.orders ALTER amount TYPE bigint",
        "ALTER TABLE shop.orders SET (fillfactor = 70)",
        "VACUUM FULL shop._tidesink_ledger",
    ),
    "mysql": (
        "ANALYZE TABLE shop.orders",
        "OPTIMIZE TABLE shop.orders",
        "CREATE INDEX amounts ON shop.orders (amount)",
        "ALTER TABLE shop.orders MODIFY amount bigint",
        "ALTER TABLE shop.orders ENGINE = InnoDB",
        "ALTER TABLE shop._tidesink_ledger ENGINE = InnoDB",
    ),
}


# What rewrites the whole table under a lock that lets nobody in.
HEAVY: Final = {
    "postgres": ("VACUUM FULL shop.orders", "ANALYZE shop.orders"),
    "mysql": ("ALTER TABLE shop.orders FORCE", "OPTIMIZE TABLE shop.orders"),
}


def as_others(bed: Bed, *statements: str) -> None:
    """Statements of another program, each by itself."""
    assert isinstance(bed.target, SqlTarget)
    connections = bed.target.connections
    connection = connections.dialect.driver.connect(connections.endpoint)
    try:
        _commit_each(connection, bed.name)
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
    finally:
        connection.close()


def _commit_each(connection: Any, database: str) -> None:
    if database == "postgres":
        connection.autocommit = True  # VACUUM runs in no transaction
    else:
        connection.autocommit(True)


def loaded(bed: Bed) -> TargetTable:
    """The table with a batch applied."""
    table = bed.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    table.apply(bed.batch(SHAPE, [ROW]), progress(1, 1))
    return table


def made_again(name: str) -> list[str]:
    """The statements that bring a table back from a dump of its own."""
    return [statement.format("shop", name) for statement in AGAIN]


def test_a_table_brought_back_alone_is_noticed(postgres_sql: Bed) -> None:
    bed = postgres_sql
    table = loaded(bed)
    as_others(bed, *made_again("orders"))
    with pytest.raises(StaleProgressError, match="created again, but the ledger"):
        table.apply(bed.batch(SHAPE, [{**ROW, "name": "new"}]), progress(1, 2))
    other = bed.reopen().open_table(SHAPE, pipeline="shop")
    with pytest.raises(StaleProgressError, match="created again, but the ledger") as raised:
        other.claim()
    assert bed.rows() == [ROW]
    # The way out, as it is told.
    way = str(raised.value).partition("confirm it with ")[2].partition(". Or drop")[0]
    as_others(bed, way)
    claim = other.claim()
    assert claim.progress == progress(claim.epoch, 1)
    other.apply(bed.batch(SHAPE, [{**ROW, "name": "new"}]), progress(claim.epoch, 2))
    assert bed.rows() == [{**ROW, "name": "new"}]


def test_a_table_brought_back_with_its_ledger_is_whole(sql: Bed) -> None:
    loaded(sql)
    tables = ("orders", "_tidesink_ledger")
    if sql.name == "postgres":
        as_others(sql, *(statement for name in tables for statement in made_again(name)))
    else:
        like = [(f"again_{name}", name) for name in tables]
        as_others(sql, *(f"CREATE TABLE shop.{new} LIKE shop.{old}" for new, old in like))
        as_others(sql, *(f"INSERT INTO shop.{new} SELECT * FROM shop.{old}" for new, old in like))  # noqa: S608
        as_others(sql, *(f"DROP TABLE shop.{old}" for _, old in like))
        as_others(sql, *(f"RENAME TABLE shop.{new} TO shop.{old}" for new, old in like))
    again = sql.reopen().open_table(SHAPE, pipeline="shop")
    assert again.claim().progress == progress(2, 1)
    again.apply(sql.batch(SHAPE, [{**ROW, "id": 2}]), progress(2, 2))
    assert sql.rows() == [ROW, {**ROW, "id": 2}]


def test_a_server_that_goes_back_under_its_worker_gets_no_batch(sql: Bed) -> None:
    """A standby that takes over, one batch behind."""
    table = loaded(sql)
    tables = ("orders", "_tidesink_ledger")
    as_others(sql, *(f"CREATE TABLE shop.old_{name} AS SELECT * FROM shop.{name}" for name in tables))  # noqa: S608
    table.apply(sql.batch(SHAPE, [{**ROW, "id": 2}]), progress(1, 2))
    as_others(sql, *(f"DELETE FROM shop.{name}" for name in tables))  # noqa: S608
    as_others(sql, *(f"INSERT INTO shop.{name} SELECT * FROM shop.old_{name}" for name in tables))  # noqa: S608
    with pytest.raises(StaleProgressError, match="target is 1, but the next batch to apply is 3"):
        table.apply(sql.batch(SHAPE, [{**ROW, "id": 3}]), progress(1, 3))
    assert sql.rows() == [ROW]
    assert table.committed() == progress(1, 1)


def test_upkeep_at_the_same_moment_disturbs_no_batch(sql: Bed) -> None:
    table, ended = loaded(sql), threading.Event()
    rounds = 0

    def keep_up() -> None:
        nonlocal rounds
        while not ended.is_set():
            as_others(sql, *HEAVY[sql.name])
            rounds += 1

    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(keep_up)
        try:
            number = 1
            # Where the others come to nothing, the batches go on until they do.
            while number < 9 or (rounds < 2 and number < 200):
                number += 1
                done = apply_at_last(table, sql.batch(SHAPE, [ROW, {**ROW, "id": number}]), number)
                assert (done.inserted, done.updated) == (1, 1)
        finally:
            ended.set()
        others.result()
    assert rounds > 1
    assert [row["id"] for row in sql.rows()] == list(range(1, number + 1))


def apply_at_last(table: TargetTable, batch: ReducedBatch, number: int) -> ApplyResult:
    """As a worker does: what others' locks undid is done again."""
    for _ in range(10):
        try:
            return table.apply(batch, progress(1, number))
        except TransientTargetError:
            time.sleep(0.1)
    raise AssertionError("others' maintenance keeps the batch out")


def test_upkeep_is_no_going_back(sql: Bed) -> None:
    table = loaded(sql)
    for number, statement in enumerate(UPKEEP[sql.name], 2):
        as_others(sql, statement)
        table.apply(sql.batch(SHAPE, [{**ROW, "id": number}]), progress(1, number))
    assert sql.reopen().open_table(SHAPE, pipeline="shop").claim().epoch == 2
    assert len(sql.rows(TABLE)) == len(UPKEEP[sql.name]) + 1
