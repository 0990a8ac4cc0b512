"""Workers that are suspended in the middle of a batch, and wake up when others have changed the table."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.changing import PARTITIONS, TABLE, ChangingTable
from tests.e2e.changing_places import PLACES, Place, changing_config
from tests.e2e.forked_worker import ForkedWorker, drain
from tests.e2e.killing import failpoints_hit
from tests.e2e.replay import Servers
from tests.executors import other_executor
from tests.full import FULL
from tidesink.sinks.runtime.context import LAKE_FAILPOINTS
from tidesink.sinks.runtime.observers import UNWELL
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.state.sql_store import SqlStateStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(900)]
# Records of a batch, the same number of each partition.
BATCH = 40
# Of the second batch: before its dead letters are kept, between what is staged and the commit, and between
# the commit and the word on it.
STEPS = ("evolved:2", "staged:1", "committed:1")


@pytest.fixture(params=[pytest.param(kind, marks=() if kind == "postgres" else FULL) for kind in PLACES])
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Place:
    """Every target whose tables outlive the worker."""
    return PLACES[request.param](request, tmp_path, servers)


@pytest.mark.law("L10")
@FULL
def test_a_suspended_worker_that_wakes_up_has_lost_the_table(
    spark: SparkSession, tmp_path: Path, servers: Servers, place: Place
) -> None:
    config = changing_config(tmp_path, servers, place, BATCH)
    table = ChangingTable(servers)
    table.write(2 * BATCH // PARTITIONS)
    with ExitStack() as suspended:
        zombies = [(step, suspended.enter_context(_suspended(spark, config, step))) for step in STEPS]
        table.add_columns()
        table.write(BATCH // PARTITIONS)
        # The worker that takes over runs its batches elsewhere than those did.
        _use_executor(config, other_executor())
        drain(spark, config, tmp_path / "worker.log")
        _check(place, table)
        status = _status(config)
        assert status is not None
        assert (status.state, status.batch) == ("IDLE", 3)
        # The youngest first: what the JVM came to keep since a worker began goes when that worker has ended.
        for step, zombie in reversed(zombies):
            code, reported = zombie.wake(), _log(config, step).read_text(encoding="utf-8")
            assert (code, "shop.changing FAILING StaleProgressError: " in reported) == (UNWELL, True), (
                reported
            )
            _check(place, table)
            assert _status(config) == status
    assert failpoints_hit(config) == list(STEPS)
    if place.sent is not None:
        # Of the second batch the oldest had sent nothing; the other two, all.
        sent = sorted({(one.batch, one.epoch) for one in place.sent()}, key=lambda pair: pair[1])
        assert [batch for batch, _ in sent] == [1, 2, 2, 3]
        assert len({epoch for _, epoch in sent}) == len(sent)


@FULL
@pytest.mark.parametrize("place", ["delta", "iceberg"], indirect=True)
def test_a_worker_that_wakes_up_behind_a_compaction_locates_its_batch_again(
    spark: SparkSession, tmp_path: Path, servers: Servers, place: Place
) -> None:
    """A commit with the old positions would hide other rows, or bring packed ones back."""
    config, table = changing_config(tmp_path, servers, place, BATCH), ChangingTable(servers)
    assert place.pack is not None
    table.write(2 * BATCH // PARTITIONS)
    drain(spark, config, tmp_path / "worker.log")
    steps = [f"{step}:1" for step in (*LAKE_FAILPOINTS, "staged")]
    for step in steps:
        table.write(BATCH // PARTITIONS)
        with _suspended(spark, config, step) as worker:
            assert place.pack()
            assert worker.wake() == 0, _log(config, step).read_text(encoding="utf-8")
        _check(place, table)
    assert failpoints_hit(config) == steps


def _suspended(spark: SparkSession, config: Path, step: str) -> ForkedWorker:
    worker = ForkedWorker(spark, config, _log(config, step), f"{step}:stop")
    try:
        worker.wait_suspended(config.with_name("state.db"))
    except BaseException:
        worker.kill()
        raise
    return worker


def _use_executor(config: Path, executor: str) -> None:
    """For the workers that start from now on."""
    settings = json.loads(config.read_text(encoding="utf-8"))
    settings["batch"]["executor"] = executor
    config.write_text(json.dumps(settings), encoding="utf-8")


def _log(config: Path, step: str) -> Path:
    return config.with_name(f"{step}.log")


def _status(config: Path) -> TableStatus | None:
    """What ``tidesink status`` shows: the word of the worker that has the table."""
    store = SqlStateStore(str(config.with_name("state.db")))
    try:
        return store.status_of("shop", TABLE)
    finally:
        store.close()


def _check(place: Place, table: ChangingTable) -> None:
    """Every row is right, and no dead letter is there twice."""
    assert place.rows() == table.rows
    assert sorted(place.letters()) == sorted(table.bad.items())
