"""A bank's totals after kills at random moments, and at each named step, on every target that keeps rows.

Money moves between accounts in three tables while worker after worker is killed; readers look on, and another
program packs the files of a lake. At the end every row is what the source has. Seeds are printed:
TIDESINK_SEED runs one again.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.bank import SCHEMAS, Bank, Feed
from tests.e2e.bank_places import WAYS, Watch, bank_config, check_end
from tests.e2e.forked_worker import ForkedWorker, RandomKills
from tests.e2e.killing import failpoints_hit, steps_of
from tests.e2e.places import Place, place_of
from tests.e2e.replay import Servers
from tests.full import FULL, TEST_ALL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(7200)]
CHAOS = int(os.environ.get("TIDESINK_CHAOS", "0"))
RANDOM_KILLS = 10 if TEST_ALL else 5
# Transactions before each kill, and for each batch up to it: some batches of each table.
WORK = 5
# Each kill leaves persisted frames in the JVM that the workers share: after so many they are let go of.
KILLS_A_REST = 25
# Of the looks at a lake's tables those after which another program packs one.
PACKS = 0.1
# Records of a batch: small while workers are killed, then all that is left.
SMALL, LARGE = 8, 5_000


class Run:
    """One bank, its changefeed, and the workers that are killed over one target."""

    def __init__(self, spark: SparkSession, folder: Path, servers: Servers, kind: str, place: Place) -> None:
        self.seed = int(os.environ.get("TIDESINK_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
        sys.stderr.write(f"TIDESINK_SEED={self.seed}\n")
        self.rng = random.Random(self.seed)
        self.steps = steps_of(kind)
        self._configure = partial(bank_config, folder, servers, place, WAYS[kind])
        self.config = self._configure(batch=SMALL)
        self.watch = Watch(place)
        self._bank, self._feed = Bank(self.seed), Feed(servers, WAYS[kind].protocol, WAYS[kind].options)
        self._spark, self._place, self._log = spark, place, folder / "worker.log"
        self._random, self._at_steps = RandomKills(self.rng), 0

    @property
    def kills(self) -> int:
        """Workers that were killed."""
        return self._at_steps + self._random.kills

    def kill_at(self, failpoint: str) -> None:
        """A worker that dies at a step."""
        began = time.monotonic()
        # The worker before may have left nothing: one that is to die in its fifth batch must find so many.
        worker = self._worker(failpoint, batches=int(failpoint.rpartition(":")[2]))
        code = worker.wait()
        self._at_steps += 1
        sys.stderr.write(f"{failpoint}: {time.monotonic() - began:.1f} s\n")
        assert code == -9, (failpoint, code, self._log.read_text(encoding="utf-8"))
        self._after()

    def kill_at_random(self) -> None:
        """A worker that dies at some moment of its life, and readers that look on; not if it ends before."""
        worker = self._worker(None)
        self._random.end(worker, self._look)
        assert worker.code in (0, -signal.SIGKILL), self._log.read_text(encoding="utf-8")
        self._after()

    def rest(self) -> None:
        """All is applied, and right; then the frames of the dead go, since nothing fills one any more."""
        self.finish()
        self._configure(batch=SMALL)
        self._spark.sparkContext.cancelAllJobs()
        self._spark.catalog.clearCache()

    def finish(self) -> None:
        """Nobody is killed any more: all is applied, and right."""
        self._configure(batch=LARGE)
        worker = self._worker(None)
        assert worker.wait() == 0, self._log.read_text(encoding="utf-8")
        self.watch.look()
        check_end(self._place, self._bank)

    def _worker(self, failpoint: str | None, *, batches: int = 1) -> ForkedWorker:
        self._bank.work(WORK * batches)
        self._feed.send(self._bank.changes)
        self._bank.changes.clear()
        return ForkedWorker(self._spark, self.config, self._log, failpoint)

    def _look(self) -> None:
        """Look on, and pack a lake's table now and then, whatever the worker does to it."""
        self.watch.look()
        if self._place.pack is not None and self.rng.random() < PACKS:
            self._place.pack(self.rng.choice(SCHEMAS).table)

    def _after(self) -> None:
        self._look()
        # What the dead worker asked of Spark goes on beside the next one, or ends as with its JVM. Its frames
        # stay: clearCache and a job that fills one lock each other out for good (Spark 4.0).
        if self.rng.random() < 0.5:
            self._spark.sparkContext.cancelAllJobs()


@pytest.fixture(params=list(WAYS))
def bank_run(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, servers: Servers) -> Run:
    """The bank over each target in turn."""
    place = place_of(request.param, request, tmp_path)
    return Run(spark, tmp_path, servers, request.param, place)


@pytest.mark.law("L8")
@FULL
@pytest.mark.timeout(1200)
def test_a_kill_at_each_step(bank_run: Run) -> None:
    # One table, whose batches all have something to do at each: tests/e2e/test_kill.py.
    steps = [f"{step}:1" for step in bank_run.steps]
    bank_run.rng.shuffle(steps)
    for step in steps:
        bank_run.kill_at(step)
    assert failpoints_hit(bank_run.config) == steps
    bank_run.finish()


@pytest.mark.law("L8")
@FULL
@pytest.mark.timeout(1200)
def test_kills_at_random_moments(bank_run: Run) -> None:
    for _ in range(4 * RANDOM_KILLS):
        bank_run.kill_at_random()
        if bank_run.kills == RANDOM_KILLS:
            break
    bank_run.finish()
    assert bank_run.kills == RANDOM_KILLS, "the workers end before they are killed"
    assert bank_run.watch.looks > RANDOM_KILLS, "nobody looked on"


@FULL
@pytest.mark.skipif(CHAOS == 0, reason="long: make chaos N=500")
def test_chaos_over_the_bank(bank_run: Run) -> None:
    # The others are kills of the JVM as well: tests/e2e/test_kill.py.
    kills = CHAOS * 9 // 10 // len(WAYS)
    while bank_run.kills < kills:
        if bank_run.kills % KILLS_A_REST == 0:
            bank_run.rest()
        if bank_run.rng.random() < 0.5:
            bank_run.kill_at(f"{bank_run.rng.choice(bank_run.steps)}:{bank_run.rng.randrange(1, 6)}")
        else:
            bank_run.kill_at_random()
    bank_run.finish()
