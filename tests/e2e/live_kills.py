"""A worker that runs for as long as a test, and what is killed around it at random moments.

``tidesink run`` has a process group of its own, with Spark's JVM: a kill of the worker takes all of it, as a
power cut does. The other kills leave it alive, and it has to go on by itself: of a process that runs its
tasks, of the broker, of its connections to the source, of the connector and its connections.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.e2e.killing import kill_group, start_worker, wait_for
from tests.servers import kill_daemon
from tidesink.config import load_config
from tidesink.dev.stack import DaemonFiles, DevStack
from tidesink.sinks.state.sql_store import open_state_store

# Parts of the command lines of the processes that run a worker's tasks.
_TASKS: Final = (b"tidesink.sinks.spark.daemon", b"pyspark.daemon", b"CoarseGrainedExecutorBackend")
_SECONDS: Final = 600.0
# How long a worker is let work on between two kills, at most.
_LONGEST: Final = 6.0


def seed_of_run() -> int:
    """TIDESINK_SEED, or one at random; it is printed."""
    seed = int(os.environ.get("TIDESINK_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
    sys.stderr.write(f"TIDESINK_SEED={seed}\n")
    return seed


class LiveWorker:
    """``tidesink run``, started again by who killed it; each has a log of its own in the config's folder."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self._number = 0
        self.start()

    def start(self) -> None:
        """The next worker."""
        self._number += 1
        self._log = self.config.with_name(f"worker{self._number}.log")
        self._process = start_worker(self.config, self._log, drains=False)

    def kill(self) -> None:
        """SIGKILL to the worker and its JVM."""
        self.check()
        kill_group(self._process)

    def end(self) -> None:
        """It is needed no more."""
        kill_group(self._process)

    def wait_for_a_batch(self) -> None:
        """Wait until the worker that runs has begun one."""
        assert wait_for(self._log, "batch ", self._process), self.log()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait while it works."""
        deadline = time.monotonic() + _SECONDS
        while not holds():
            self.check()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.2)

    def check(self) -> None:
        """It never ends by itself."""
        assert self._process.poll() is None, self.log()

    def kill_a_task(self, rng: random.Random) -> bool:
        """SIGKILL to one of the processes that run its tasks; False where there is none."""
        found = [pid for pid in _below(self._process.pid) if any(word in _command(pid) for word in _TASKS)]
        if not found:
            return False
        os.kill(rng.choice(found), signal.SIGKILL)
        return True

    def log(self) -> str:
        """What it printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")


def _below(pid: int) -> list[int]:
    """The processes that a process started, and that those did."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, last = list[int](), [pid]
    while last:
        last = [child for child, parent in parents.items() if parent in last]
        found += last
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def kill_broker(stack: DevStack, rng: random.Random) -> bool:
    """SIGKILL to the broker; after a moment it is there again, on the same port and data."""
    kill_daemon(DaemonFiles("kafka", stack.directory / "run"))
    time.sleep(rng.uniform(0, 3))
    stack.up()
    return True


class Kills:
    """Kills at random; ``made`` are those that met something, by what was killed.

    ``others`` are the kills that leave the worker alive, by name: each says whether it met something.
    """

    def __init__(
        self, worker: LiveWorker, others: Mapping[str, Callable[[], bool]], rng: random.Random
    ) -> None:
        self.made: Counter[str] = Counter()
        self.while_loading = 0
        self._worker, self._others, self._rng = worker, dict(others), rng

    def make(self, count: int, halfway: Callable[[], None] = lambda: None) -> None:
        """So many kills, each of its kind at least once."""
        names = ["worker", *self._others]
        order = [
            *names,
            *self._rng.choices(names, [4, *[1.5] * len(self._others)], k=max(0, count - len(names))),
        ]
        self._rng.shuffle(order)
        for number, name in enumerate(order[:count]):
            if number == count // 2:
                halfway()
            self._make(name)

    def _make(self, name: str) -> None:
        rng = self._rng
        if rng.random() < 0.8:
            self._worker.wait_for_a_batch()
        time.sleep(rng.uniform(0, _LONGEST))
        loading = is_loading(self._worker.config)
        if name == "worker":
            self._worker.kill()
            self._worker.start()
        elif not self._meet(name):
            return
        self.made[name] += 1
        self.while_loading += loading
        sys.stderr.write(f"{time.strftime('%T')} {name}{' while rows are loaded' if loading else ''}\n")

    def _meet(self, name: str) -> bool:
        """Whether the kill met something; a worker that has loaded all has no connection to the source."""
        deadline = time.monotonic() + _SECONDS
        while not self._others[name]():
            if not is_loading(self._worker.config):
                return False
            self._worker.check()
            assert time.monotonic() < deadline, f"there is never a {name} to kill\n{self._worker.log()}"
            time.sleep(0.005)
        self._worker.check()
        return True

    def __str__(self) -> str:
        made = ", ".join(f"{name} {count}" for name, count in self.made.items())
        return f"{self.made.total()} kills ({made}), {self.while_loading} of them while rows were loaded"


def snapshots(config: Path) -> Sequence[str]:
    """How far the snapshot of each table is, in a word."""
    loaded = load_config(config)
    with closing(open_state_store(loaded.state)) as store:
        found = store.statuses(loaded.pipeline)
    return [str(dict(one.details.get("snapshot") or {}).get("state")) for one in found]


def is_loading(config: Path) -> bool:
    """Whether some table's first rows are still to be read."""
    return {*snapshots(config)} != {"done"}
