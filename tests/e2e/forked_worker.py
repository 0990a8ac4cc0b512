"""A worker in a process of its own that starts at once: a fork of the test's, with Spark's JVM left warm.

SIGKILL takes the process that drives the batch: no line of Python runs after it, connections to databases,
Kafka and the state store end as the kernel ends them. What it asked of the JVM goes on there, as the last
statement of a zombie, unless the test cancels it. Kills of the JVM as well are those of ``killing``; they
cost ten seconds more each.
"""

from __future__ import annotations

import faulthandler
import gc
import math
import os
import random
import signal
import sqlite3
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.left_objects import let_go_since, objects_held
from tidesink.config import load_config
from tidesink.sinks.runtime.context import GRACE_SECONDS
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE_SECONDS = 240.0
# For how long a suspended worker is let go on, once and again, while it stands at its failpoint.
_MOMENT_SECONDS = 0.05


class ForkedWorker:
    """``tidesink run --until drained`` beside the test; its output goes to ``log``.

    As a context it is killed at the end, suspended or not, if it has not ended.
    """

    def __init__(self, spark: SparkSession, config: Path, log: Path, failpoint: str | None = None) -> None:
        self.code: int | None = None
        self._log = log
        self._spark, self._held_before = spark, objects_held(spark)  # its JVM is what the fork shares
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads; what the child uses of Spark, it connects to again.
            warnings.simplefilter("ignore", DeprecationWarning)
            # What the parent leaves for its garbage collector has threads that a fork has not (librdkafka's):
            # to collect it in the child would end the child.
            gc.freeze()
            self.pid = os.fork()
        if self.pid == 0:
            _be_worker(config, log, failpoint)
        gc.unfreeze()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                let_go_since(self._spark, self._held_before)
        return self.code is None

    def wait_suspended(self, state: Path) -> None:
        """Wait until it has stopped itself, at a failpoint ``name:N:stop``, with its state store left free.

        One that is stopped while another of its threads writes its sign of life holds SQLite's lock for good.
        """
        self._wait_stopped()
        # From when it is let go on its failpoint's own time runs, suspended or not.
        began = time.monotonic()
        while _is_locked(state):
            os.kill(self.pid, signal.SIGCONT)
            time.sleep(_MOMENT_SECONDS)
            os.kill(self.pid, signal.SIGSTOP)
            self._wait_stopped()
            if time.monotonic() - began > GRACE_SECONDS:
                raise TimeoutError("the suspended worker holds its state store")

    def _wait_stopped(self) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                return
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                raise AssertionError(self._log.read_text(encoding="utf-8"))
            assert time.monotonic() < deadline, "the worker does not reach its failpoint"
            time.sleep(0.02)

    def wake(self) -> int:
        """Let a suspended worker go on as if nothing had been; its exit code."""
        os.kill(self.pid, signal.SIGCONT)
        return self.wait()

    def kill(self) -> bool:
        """End it at once; whether it was still at work."""
        if not self.running:
            return False
        os.kill(self.pid, signal.SIGKILL)
        return self.wait() == -signal.SIGKILL

    def __enter__(self) -> ForkedWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _tell_where(self) -> None:
        """Have it write to its log where each of its threads is."""
        os.kill(self.pid, signal.SIGUSR1)
        time.sleep(2)

    def wait(self) -> int:
        """Its exit code, or the negative number of the signal that ended it."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self.running:
            if time.monotonic() > deadline:
                self._tell_where()
                self.kill()
                raise TimeoutError(f"the worker does not end: {self._log.read_text(encoding='utf-8')}")
            time.sleep(0.02)
        assert self.code is not None
        return self.code


def _is_locked(state: Path) -> bool:
    """Whether somebody is within a write to a SQLite database."""
    with closing(sqlite3.connect(state, timeout=0)) as store:
        try:
            store.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
    return False


class RandomKills:
    """Kills workers at some moment of their lives, however long those are on this machine now.

    The first worker lives to its end, so that tables are there and a life's length is known.
    """

    def __init__(self, rng: random.Random) -> None:
        self.kills = 0
        self._rng = rng
        self._lifetime = math.inf

    def end(self, worker: ForkedWorker, look: Callable[[], None] = lambda: None) -> None:
        """Look on for a while and kill it, unless it ends before."""
        began = time.monotonic()
        end = began + self._rng.uniform(0.05, 1.0) * self._lifetime
        while worker.running and time.monotonic() < end:
            look()
            time.sleep(0.05)
        if worker.kill():
            self.kills += 1
        else:
            self._lifetime = min(self._lifetime, time.monotonic() - began)


def die_at(step: str, spark: SparkSession, config: Path, log: Path) -> None:
    """A forked worker that dies at a failpoint."""
    code = ForkedWorker(spark, config, log, step).wait()
    assert code == -signal.SIGKILL, (step, code, log.read_text(encoding="utf-8"))


def drain(spark: SparkSession, config: Path, log: Path) -> None:
    """A forked worker that works off all there is."""
    code = ForkedWorker(spark, config, log).wait()
    assert code == 0, log.read_text(encoding="utf-8")


def _be_worker(config: Path, log: Path, failpoint: str | None) -> None:
    """The child's whole life; never returns."""
    os.setsid()  # a failpoint kills the process group
    output = log.open("w", encoding="utf-8")
    sys.stdout = sys.stderr = output
    faulthandler.register(signal.SIGUSR1, file=output)
    os.environ.pop("TIDESINK_FAILPOINT", None)
    os.environ["TIDESINK_FAILPOINT_LOG"] = str(config.with_name("failpoints"))
    if failpoint is not None:
        os.environ["TIDESINK_FAILPOINT"] = failpoint
    codes = [70]

    def work() -> None:
        try:
            report = run(load_config(config), until="drained")
            codes[0] = report.exit_code
            output.write("".join(f"{one.table} {one.state} {one.error}\n" for one in report.tables))
        except BaseException:  # noqa: BLE001  (the test shows it)
            traceback.print_exc(file=output)

    # A thread of its own has a connection of its own to the JVM: the parent's must not be used by two.
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    output.flush()
    os._exit(codes[0])
