"""A worker over many small tables, in a process of its own. It imports only what a worker needs.

``python -m benchmarks.small_tables drained|active SETTINGS.json`` prints one JSON object. ``drained`` applies
all records there are: ``{"first", "drained"}`` are the times of its first commit, if any, and of its end, in
seconds since 1970. ``active`` measures a warm worker, which has loaded all tables:

- ``rate``: tables a second. The worker is held before it looks at the topics, until ``KEYS`` updates wait in
  each table. The time is from that look to the last commit. The median of at most three rounds.
- ``cpu``: CPU seconds of its processes per 1,000 tables in these rounds, and ``server_cpu`` those of the
  database, whose process is ``settings["server"]``.
- ``memory_mb``: the largest PSS of all its processes together in these rounds. Pages that processes share
  count once, in contrast to RSS.
- ``freshness``: seconds from Kafka's timestamp of a record until it is visible at the target, of one change a
  second in each table for ``settings["seconds"]`` seconds: the median and the 99th percentile.

A commit's time is when a listener hears ``BatchApplied``, which the worker sends right after the commit.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.processes import CpuTime, pss_mb
from benchmarks.small_changes import KEYS
from tidesink.config import load_config
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.runtime.observers import BatchApplied, TableChanged, Turned, WorkerEvent
from tidesink.sinks.worker.run import run

_ROUNDS: Final = 3
# No further round begins after so many seconds of measuring.
_ENOUGH: Final = 60.0
# After a round, until all tables are idle.
_SETTLE: Final = 5.0
_LOOK: Final = 0.5
_PATIENCE: Final = 3_600.0


class Commit(NamedTuple):
    """A batch: when it was committed, in seconds since 1970, of which table, how many records."""

    at: float
    table: str
    records: int


class Round(NamedTuple):
    """Cost of a round: seconds, CPU seconds of the worker and of the server, and largest memory in MB."""

    seconds: float
    cpu: float
    server_cpu: float
    memory_mb: float


@dataclass
class Heard:
    """Hears the worker: its commits, and the first error of a table. Can hold it before its next look."""

    stop: StopFlag
    commits: list[Commit] = field(default_factory=list)
    error: str | None = None
    _held: threading.Event = field(default_factory=threading.Event)
    _may_look: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._may_look.set()

    def hear(self, event: WorkerEvent) -> None:
        """Note one event."""
        if isinstance(event, BatchApplied):
            self.commits.append(Commit(time.time(), str(event.table), event.account.read))
        elif isinstance(event, TableChanged) and event.status.error:
            self.error = f"{event.status.table}: {event.status.error}"
        elif isinstance(event, Turned) and not self._may_look.is_set():
            self._held.set()
            self._may_look.wait()

    def hold(self) -> None:
        """Wait until the worker is about to look at its topics, and hold it there."""
        self._held.clear()
        self._may_look.clear()
        while not self._held.wait(_LOOK):
            self.stop.check()

    def release(self) -> None:
        """Let the worker look."""
        self._may_look.set()

    def applied(self, records: int, after: int, look: Callable[[], None] = lambda: None) -> Sequence[Commit]:
        """Wait until so many records are applied by the commits after the first ``after``; return those."""
        deadline = time.monotonic() + _PATIENCE
        while sum(commit.records for commit in self.commits[after:]) < records:
            look()
            if self.error or time.monotonic() > deadline or self.stop.wait(_LOOK):
                raise SystemExit(f"after {len(self.commits)} batches: {self.error}")
        look()
        return self.commits[after:]


def drained(settings: dict[str, Any]) -> dict[str, float | None]:
    """Apply all records there are."""
    heard = Heard(StopFlag())
    report = run(load_config(_config(settings)), until="drained", listeners=[heard])
    if report.exit_code:
        raise SystemExit(f"the worker failed: {heard.error}")
    return {"first": heard.commits[0].at if heard.commits else None, "drained": time.time()}


def active(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure the warm worker."""
    heard = Heard(StopFlag())
    with ThreadPoolExecutor(1) as pool:
        measured = pool.submit(_measured, settings, heard)
        try:
            run(load_config(_config(settings)), listeners=[heard], stop=heard.stop)
        finally:
            heard.stop.set()
    return measured.result()


def _measured(settings: dict[str, Any], heard: Heard) -> dict[str, Any]:
    """The worker's figures, while it runs in another thread. Ends the worker."""
    tables, rounds = settings["tables"], list[Round]()
    try:
        heard.applied(tables * KEYS, 0)
        while len(rounds) < _ROUNDS and sum(one.seconds for one in rounds) < _ENOUGH:
            rounds.append(_round(settings, heard, (len(rounds) + 1) * KEYS))
        freshness = _freshness(settings, heard, (len(rounds) + 1) * KEYS) if settings["seconds"] else None
    finally:
        heard.stop.set()
        heard.release()
    seconds, cpu, server_cpu, memory_mb = zip(*rounds, strict=True)
    return {
        "rate": tables / statistics.median(seconds),
        "cpu": statistics.median(cpu) / tables * 1_000,
        "server_cpu": statistics.median(server_cpu) / tables * 1_000,
        "memory_mb": max(memory_mb),
        "freshness": freshness,
    }


def _round(settings: dict[str, Any], heard: Heard, start: int) -> Round:
    heard.stop.wait(_SETTLE)
    heard.hold()
    _write(settings, start, KEYS)
    root, before, memory = os.getpid(), len(heard.commits), [0.0]
    cpu, server = CpuTime(root), CpuTime(settings["server"])

    def look() -> None:
        cpu.see()
        server.see()
        memory.append(pss_mb(root))

    began = time.time()
    heard.release()
    commits = heard.applied(settings["tables"] * KEYS, before, look)
    return Round(max(commit.at for commit in commits) - began, cpu.seconds, server.seconds, max(memory))


def _freshness(settings: dict[str, Any], heard: Heard, start: int) -> dict[str, float]:
    heard.stop.wait(_SETTLE)
    before = len(heard.commits)
    times = _write(settings, start, settings["seconds"], pace=1)
    commits = heard.applied(settings["tables"] * settings["seconds"], before)
    percentiles = statistics.quantiles(latencies(commits, times), n=100)
    return {"p50": percentiles[49], "p99": percentiles[98]}


def latencies(commits: Sequence[Commit], times: Mapping[str, Sequence[int]]) -> list[float]:
    """Seconds from each record's timestamp to its commit. ``times``: timestamps by table, in ms."""
    done, found = Counter[str](), list[float]()
    for at, table, records in commits:
        found += (at - ms / 1000 for ms in times[table][done[table] : done[table] + records])
        done[table] += records
    return found


def _write(settings: dict[str, Any], start: int, count: int, pace: float = 0) -> dict[str, list[int]]:
    """Write changes in a process of its own, so that this one has only the worker's memory."""
    given = json.dumps({**settings, "start": start, "count": count, "pace": pace})
    command = [sys.executable, "-m", "benchmarks.small_changes", given]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    times: dict[str, list[int]] = json.loads(done.stdout)
    return times


def _config(settings: dict[str, Any]) -> Path:
    config = {
        "pipeline": "small",
        "source": {
            "brokers": settings["brokers"],
            "protocol": "canal-json",
            "enable-tidb-extension": True,
            "content-compatible": True,
            "topics": settings["topics"],
        },
        "target": settings["target"],
        "state": "./state.db",
    }
    path = Path(settings["directory"]) / "tidesink.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


if __name__ == "__main__":
    measure = {"drained": drained, "active": active}[sys.argv[1]]
    print(json.dumps(measure(json.loads(sys.argv[2]))))
