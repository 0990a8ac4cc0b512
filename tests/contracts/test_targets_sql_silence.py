"""A database lets go of a worker that says nothing in a transaction, and of no other, on real servers."""

# ruff: noqa: S608  names of the test's own
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.columns import ID
from tests.contracts.sql_beds import sql_bed, target_of
from tests.contracts.targets_bed import AMOUNT, NAME, TABLE, Bed, progress, row, shape
from tests.full import quick_on
from tidesink.errors import CommitUnknownError, StaleProgressError
from tidesink.events import Column, ColumnType
from tidesink.sinks.targets.base import ApplyHooks, Claim
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.idle import TRUSTED_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.servers, quick_on("postgres")]
SHAPE = shape()
# Seconds: longer than a busy machine keeps the worker waiting between two of its statements.
_SILENCE: Final = 4


class Freezing(Connections):
    """Of a worker that freezes where its next transaction would be committed, while ``frozen`` runs."""

    frozen: Callable[[], object] | None = None

    @contextmanager
    def transaction(self, table: str, *, writes: bool = True) -> Iterator[Any]:
        with super().transaction(table, writes=writes) as cursor:
            yield cursor
            if writes and self.frozen is not None:
                frozen, self.frozen = self.frozen, None
                frozen()


@pytest.mark.law("L10")
def test_who_freezes_in_a_transaction_loses_the_table(sql: Bed, request: pytest.FixtureRequest) -> None:
    """Its lock on the ledger's row goes with its transaction, and nothing of that is written."""
    server = target_of(sql).connections
    freezing = Freezing(server.dialect, replace(server.endpoint, silence=_SILENCE))
    bed = sql_bed(request, freezing)
    table = bed.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    table.apply(bed.batch(SHAPE, [row(1)]), progress(1, 1))
    other = sql.target.open_table(SHAPE, pipeline="shop")
    claims: list[Claim] = []

    def freeze() -> None:
        freezing.frozen = lambda: claims.append(other.claim())

    batch = replace(bed.batch(SHAPE, [row(1, "late"), row(2)]), hooks=ApplyHooks(on_staged=freeze))
    with pytest.raises(CommitUnknownError):
        table.apply(batch, progress(1, 2))
    assert claims == [Claim(2, progress(2, 1))]
    with pytest.raises(StaleProgressError):
        table.apply(batch, progress(1, 2))
    other.apply(sql.batch(SHAPE, [row(3)]), progress(2, 2))
    assert sql.rows() == [row(1), row(3)]


def test_a_long_change_of_columns_keeps_the_table(mysql_sql: Bed, request: pytest.FixtureRequest) -> None:
    """It is another connection's, and the one with the ledger's row has nothing to say meanwhile."""
    server = target_of(mysql_sql).connections
    bed = sql_bed(request, Connections(server.dialect, replace(server.endpoint, silence=_SILENCE)))
    table = bed.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    table.apply(bed.batch(SHAPE, [row(1)]), progress(1, 1))
    reader = server.dialect.driver.connect(server.endpoint)
    with reader.cursor() as cursor:
        # An ALTER waits until whoever reads the table has done.
        cursor.execute(f"SELECT * FROM {target_of(bed).place_of(TABLE).location}")
    threading.Timer(1.75 * _SILENCE, reader.close).start()
    wider = shape(ID, NAME, AMOUNT, Column("more", ColumnType("int"), default="7"))
    assert table.evolve(wider).added == ("more",)
    table.apply(bed.batch(wider, [{**row(2), "more": 8}]), progress(1, 2))
    assert [found["more"] for found in bed.rows()] == [7, 8]


OTHERS: Final = {
    "postgres": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mysql": "SELECT CONCAT('KILL ', id) FROM information_schema.PROCESSLIST "
    "WHERE DB = 'shop' AND id <> CONNECTION_ID()",
}


def end_others(bed: Bed) -> None:
    """End the connections to the test's database, as MySQL ends those that were silent for long."""
    with target_of(bed).connections.transaction("test") as cursor:
        cursor.execute(OTHERS[bed.name])
        for (statement,) in cursor.fetchall() if bed.name == "mysql" else ():
            cursor.execute(statement)


def test_a_table_that_was_quiet_for_long_goes_on(sql: Bed, request: pytest.FixtureRequest) -> None:
    server = target_of(sql).connections
    bed = sql_bed(request, Connections(server.dialect, server.endpoint))
    table = bed.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    table.apply(bed.batch(SHAPE, [row(1)]), progress(1, 1))
    end_others(sql)
    time.sleep(TRUSTED_SECONDS)  # until then nobody asks whether an idle connection answers
    table.apply(bed.batch(SHAPE, [row(2)]), progress(1, 2))
    assert sql.rows() == [row(1), row(2)]
