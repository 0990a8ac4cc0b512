"""SIGKILL at each named step of a batch and at random times: nothing is lost and nothing doubled.

One table of the captured changefeed is worked on by worker after worker, each killed with its JVM and
its whole process group; the last one drains the topic. The lake is compared once, at the end.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.killing import (
    Ending,
    alive_in_group,
    failpoints_hit,
    finish,
    kill_group,
    start_worker,
    wait_for,
)
from tests.e2e.replay import Servers, final_state, replay, replay_config, wrong_values
from tidesink.sinks.failpoints import FAILPOINTS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

CHAOS = int(os.environ.get("TIDESINK_CHAOS", "0"))
RANDOM_KILLS = 10
STEPS = FAILPOINTS
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


def test_a_kill_at_every_step_of_a_batch(tmp_path: Path, workload: Path, servers: Servers) -> None:
    config = _prepared(workload, tmp_path, servers, len(STEPS))
    log = tmp_path / "worker.log"
    for step in STEPS:
        ending = finish(start_worker(config, log, step), log)
        assert ending.code == -signal.SIGKILL, (step, ending.output)
    assert failpoints_hit(config) == [f"{step}:1" for step in STEPS]
    _drain(config, log)
    _expect(workload, tmp_path)


def _random_kills(folder: Path, workload: Path, servers: Servers, kills: int) -> None:
    config = _prepared(workload, folder, servers, kills)
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
    _drain(config, log)
    _expect(workload, folder)
    assert killed > kills // 2


def test_ten_kills_at_random_times(tmp_path: Path, workload: Path, servers: Servers) -> None:
    _random_kills(tmp_path, workload, servers, RANDOM_KILLS)


def test_sigterm_ends_a_worker_cleanly(tmp_path: Path, workload: Path, servers: Servers) -> None:
    config = _prepared(workload, tmp_path, servers, 4)
    log = tmp_path / "worker.log"
    worker = start_worker(config, log)
    try:
        assert wait_for(log, "batch 1", worker)
        os.kill(worker.pid, signal.SIGTERM)
        assert worker.wait(120) == 130, log.read_text(encoding="utf-8")
        # The JVM ends with it, a moment later: nobody is left in the group.
        deadline = time.monotonic() + 60
        while alive_in_group(worker.pid):
            assert time.monotonic() < deadline, alive_in_group(worker.pid)
            time.sleep(0.1)
    finally:
        kill_group(worker)
    _drain(config, log)
    _expect(workload, tmp_path)


@pytest.mark.soak
@pytest.mark.skipif(CHAOS == 0, reason="long: make chaos N=500")
def test_chaos(tmp_path: Path, workload: Path, servers: Servers) -> None:
    _random_kills(tmp_path, workload, servers, CHAOS)
