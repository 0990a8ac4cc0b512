"""SIGKILL at each named step of a batch and at random times: nothing is lost and nothing doubled.

One table is worked on by worker after worker; the last one drains the topic. The kills at each step, on every
target, meet a table with bad records in every batch and with columns added, so that no step is reached for
nothing. Random kills, of the JVM and the whole process group, meet a table of the captured changefeed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.changing import BAD_EVERY, DEFAULTS, PARTITIONS, ChangingTable
from tests.e2e.changing_places import PLACES, Place, Rows, changing_config
from tests.e2e.forked_worker import ForkedWorker, RandomKills, die_at, drain
from tests.e2e.killing import (
    Ending,
    alive_in_group,
    failpoints_hit,
    finish,
    kill_group,
    start_worker,
    steps_of,
    wait_for,
)
from tests.e2e.passed_on import sent_again
from tests.e2e.places import KINDS
from tests.e2e.replay import Servers, final_state, replay, replay_config, wrong_values
from tests.full import FULL, quick_on
from tidesink.sinks.runtime.context import FAILPOINTS
from tidesink.sinks.targets import TARGETS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

CHAOS = int(os.environ.get("TIDESINK_CHAOS", "0"))
# Ten on each target that leave the JVM alone come with every change: tests/e2e/test_bank.py where rows stay.
RANDOM_KILLS = 3
KILLS_WHERE_SENT = 10
# Records of a batch, the same number of each partition.
BATCH = 40
# The kills after a commit, which leave a batch applied each.
AFTER = FAILPOINTS[FAILPOINTS.index("committed") :]
# Fewer records a batch than the topic has for each kill, so that every worker finds one to begin.
RECORDS = 1744


def _expect(workload: Path, folder: Path) -> None:
    expected = [found for found in final_state(workload) if found.table.name == "account"]
    assert wrong_values(folder / "lake", expected) == []


def _prepared(workload: Path, folder: Path, servers: Servers, kills: int) -> Path:
    replay(workload, "avro_long", servers=servers, only={"bank_account"})
    size = max(1, RECORDS // (kills + 2))
    return replay_config(folder, "avro_long", servers=servers, max_records=size)


def _drain(config: Path, log: Path) -> Ending:
    ending = finish(start_worker(config, log), log)
    assert ending.code == 0, ending.output
    return ending


@pytest.fixture(params=PLACES)
def kind(request: pytest.FixtureRequest) -> str:
    """Every target whose tables outlive the worker."""
    assert PLACES.keys() == TARGETS.keys()
    return str(request.param)


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Place:
    """Where it has its tables."""
    return PLACES[kind](request, tmp_path, servers)


@pytest.mark.law("L8")
@quick_on("delta", "postgres")
@pytest.mark.parametrize("executor", ["local", pytest.param("spark", marks=FULL)], indirect=True)
@pytest.mark.parametrize(
    "jvm", [pytest.param(True, id="JVM and all", marks=FULL), pytest.param(False, id="fork")]
)
def test_a_kill_at_every_step_of_a_batch(
    spark: SparkSession, tmp_path: Path, servers: Servers, kind: str, place: Place, jvm: bool
) -> None:
    die = _die_with_the_jvm if jvm else partial(_die_forked, spark)
    # The first kills come after a commit; all the others meet the batch after those.
    before = tuple(step for step in steps_of(kind) if step not in AFTER)
    table = ChangingTable(servers)
    config = changing_config(tmp_path, servers, place, BATCH)
    for batches, step in enumerate(AFTER, 1):
        table.write(BATCH // PARTITIONS)
        die(step, config)
        _check(place, table.rows, step, batches=batches)
    if place.sent is None:
        # Progress is in the target: a worker without its state store goes on from there.
        config.with_name("state.db").unlink()
    left, fourth = dict(table.rows), _fourth_batch(table)
    table.write(BATCH)
    for number, step in enumerate(before, 1):
        die(step, config)
        _check_left(place, before[:number], left, fourth)
    assert failpoints_hit(config) == [f"{step}:1" for step in (*AFTER, *before)]
    if place.sent is not None:
        assert sent_again(place.sent()) == set()
    drain(spark, config, tmp_path / "worker.log")
    assert place.rows() == table.rows
    assert sorted(place.letters()) == sorted(table.bad.items())
    if place.sent is not None:
        assert sent_again(place.sent()) == {4}


def _die_with_the_jvm(step: str, config: Path) -> None:
    log = config.with_name("worker.log")
    ending = finish(start_worker(config, log, step), log)
    assert ending.code == -signal.SIGKILL, (step, ending.output)


def _die_forked(spark: SparkSession, step: str, config: Path) -> None:
    die_at(step, spark, config, config.with_name("worker.log"))


def _fourth_batch(table: ChangingTable) -> Rows:
    """Write a batch in whose middle the columns come, so that it has both schemas; the rows after it."""
    table.write(BATCH // PARTITIONS // 2)
    table.add_columns()
    table.write(BATCH // PARTITIONS // 2)
    return dict(table.rows)


def _check_left(place: Place, done: tuple[str, ...], left: Rows, fourth: Rows) -> None:
    """What a kill in the fourth batch leaves: no row of it, but the columns and dead letters kept before.

    Where changes are sent, those that were acknowledged before the commit are there already.
    """
    added = DEFAULTS if "evolved" in done else {}
    rows: Rows = {key: {**row, **added} for key, row in left.items()}
    arrived = place.sent is not None and "staged" in done
    _check(place, fourth if arrived else rows, done[-1], batches=4 if "rejected" in done else 3)


def _check(place: Place, rows: Rows, step: str, *, batches: int) -> None:
    """The target's rows, and the dead letters of so many batches."""
    assert place.rows() == {key: {**place.reported, **row} for key, row in rows.items()}, step
    assert len(place.letters()) == batches * BATCH // BAD_EVERY, step


@FULL
@pytest.mark.parametrize("kind", [kind for kind in PLACES if kind not in KINDS])
def test_kills_at_random_moments_where_changes_are_sent(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, servers: Servers, kind: str
) -> None:
    place, table, random_kills = (
        PLACES[kind](request, tmp_path, servers),
        ChangingTable(servers),
        RandomKills(random.Random()),
    )
    config, log = changing_config(tmp_path, servers, place, BATCH), tmp_path / "worker.log"
    for _ in range(4 * KILLS_WHERE_SENT):
        table.write(BATCH // PARTITIONS)
        random_kills.end(ForkedWorker(spark, config, log))
        if random_kills.kills == KILLS_WHERE_SENT:
            break
    drain(spark, config, log)
    assert random_kills.kills == KILLS_WHERE_SENT, "the workers end before they are killed"
    assert place.sent is not None
    sent_again(place.sent())  # what came again was the same, under the same keys
    assert place.rows() == {key: {**place.reported, **row} for key, row in table.rows.items()}
    assert sorted(place.letters()) == sorted(table.bad.items())


def _random_kills(folder: Path, workload: Path, servers: Servers, kills: int) -> None:
    # So many batches that no worker comes to the end before it is killed.
    config = _prepared(workload, folder, servers, 20 * kills)
    log = folder / "worker.log"
    rng = random.Random(20260820)
    killed = 0
    for _ in range(kills):
        worker = start_worker(config, log)
        try:
            if wait_for(log, "batch ", worker):
                time.sleep(rng.uniform(0, 8))
        finally:
            killed += worker.poll() is None
            kill_group(worker)
    replay_config(folder, "avro_long", servers=servers)  # what is left is no matter of small batches
    _drain(config, log)
    _expect(workload, folder)
    assert killed > kills // 2


@FULL
def test_kills_at_random_times(tmp_path: Path, workload: Path, servers: Servers) -> None:
    _random_kills(tmp_path, workload, servers, RANDOM_KILLS)


def test_sigterm_ends_a_worker_cleanly(
    spark: SparkSession, tmp_path: Path, workload: Path, servers: Servers
) -> None:
    config = _prepared(workload, tmp_path, servers, 4)
    log = tmp_path / "worker.log"
    worker = start_worker(config, log)
    try:
        assert wait_for(log, "batch 1", worker)
        os.kill(worker.pid, signal.SIGTERM)
        assert worker.wait(240) == 0, log.read_text(encoding="utf-8")
        # The JVM ends with it, a moment later: nobody is left in the group.
        deadline = time.monotonic() + 120
        while alive_in_group(worker.pid):
            assert time.monotonic() < deadline, alive_in_group(worker.pid)
            time.sleep(0.1)
    finally:
        kill_group(worker)
    drain(spark, config, log)
    _expect(workload, tmp_path)


@FULL
@pytest.mark.parametrize("moment", ["batch 1", "nothing is left"])
def test_a_worker_whose_jvm_is_killed_ends_and_says_so(
    moment: str, spark: SparkSession, tmp_path: Path, workload: Path, servers: Servers
) -> None:
    config = _prepared(workload, tmp_path, servers, 4)
    log = tmp_path / "worker.log"
    worker = start_worker(config, log, drains=False)
    try:
        assert wait_for(log, "batch 1", worker)
        if moment != "batch 1":
            _wait_for_rows(workload, tmp_path)
        children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text(encoding="ascii")
        (jvm,) = (int(one) for one in children.split() if _runs_java(int(one)))
        os.kill(jvm, signal.SIGKILL)
        assert worker.wait(240) == 1, log.read_text(encoding="utf-8")
    finally:
        kill_group(worker)
    said = log.read_text(encoding="utf-8")
    assert "SparkEndedError: Spark's JVM was killed" in said
    assert "Traceback" not in said
    drain(spark, config, log)
    _expect(workload, tmp_path)


def _runs_java(pid: int) -> bool:
    return b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0", 1)[0]


def _wait_for_rows(workload: Path, folder: Path) -> None:
    """Until every row is right, after which the worker is idle."""
    deadline = time.monotonic() + 240
    while True:
        try:
            return _expect(workload, folder)
        except (AssertionError, FileNotFoundError, KeyError):
            assert time.monotonic() < deadline
            time.sleep(1)


@FULL
@pytest.mark.skipif(CHAOS == 0, reason="long: make chaos N=500")
def test_chaos(tmp_path: Path, workload: Path, servers: Servers) -> None:
    # The others leave the JVM warm, and are ten times as quick: tests/e2e/test_bank.py.
    _random_kills(tmp_path, workload, servers, max(1, CHAOS // 10))
