"""The whole job into Delta, ours or the hand-written one, each in a process of its own.

``python -m benchmarks.whole_job ours|baseline|load SETTINGS.json`` prints one JSON object:
``{"load", "warm", "batch_seconds": [...], "driver_mb"}``, the first two in events a second. The topic has as
many events twice, over the same keys, and the job reads them in one go: ``load`` is the first of them, by a
JVM that was just started, ``warm`` the others. The steady batches are of 1,000 events each, into the loaded
table. Each job has its own topic.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.baseline import BaselineJob, Lap, plain_session
from benchmarks.events import DDL, STEADY_BATCH, STEADY_BATCHES, write_events
from tidesink.config import load_config
from tidesink.schema_registry import open_registry
from tidesink.sinks.runtime.observers import BatchApplied, BatchStarted, WorkerEvent
from tidesink.sinks.worker.run import run

# The first batches of a table are cold: the JVM compiles, Delta reads the snapshot for the first time.
WARM_UP = 4


@dataclass
class Stopwatch:
    """Hears the worker: how long each batch took, by its steps and from its neighbour's end to its own."""

    before: float | None = None
    laps: list[Lap] = field(default_factory=list)
    steps: list[dict[str, float]] = field(default_factory=list)

    def hear(self, event: WorkerEvent) -> None:
        """Note one event."""
        now = time.perf_counter()
        if isinstance(event, BatchStarted) and self.before is None:
            self.before = now
        if isinstance(event, BatchApplied) and self.before is not None:
            self.laps.append(Lap(event.account.read, now - self.before))
            self.before = now
            self.steps.append(event.seconds)


def load_and_warm(laps: Sequence[Lap], events: int) -> dict[str, float]:
    """The rates, in events a second, of the batches up to so many events and of those after them."""
    read = list(accumulate(lap.events for lap in laps))
    first = 1 + sum(total < events for total in read)
    parts = {"load": laps[:first], "warm": laps[first:]}
    return {
        name: sum(lap.events for lap in part) / sum(lap.seconds for lap in part)
        for name, part in parts.items()
    }


def ours(settings: dict[str, Any]) -> dict[str, Any]:
    """The worker on the benchmark's topic."""
    _write_more(settings)
    load = drained(write_config(settings, load_batch(settings)))
    driver_mb = _driver_mb()
    _write_steady(settings)
    steady = drained(write_config(settings, STEADY_BATCH))
    return {
        **load_and_warm(load.laps, settings["events"]),
        "batch_seconds": [sum(step.values()) for step in steady.steps[WARM_UP:]],
        "steps": steady.steps[-1] if steady.steps else {},
        "driver_mb": driver_mb,
    }


def load(settings: dict[str, Any]) -> dict[str, Any]:
    """The worker on a topic of ``settings["protocol"]``: the first load alone."""
    found = drained(write_config(settings, load_batch(settings)))
    rate = sum(lap.events for lap in found.laps) / sum(lap.seconds for lap in found.laps)
    return {"load": rate, "driver_mb": _driver_mb()}


def drained(config: Path) -> Stopwatch:
    """A worker that reads all there is."""
    watch = Stopwatch()
    report = run(load_config(config), until="drained", listeners=[watch])
    if report.exit_code:
        raise SystemExit(f"the worker failed: {[table.error for table in report.tables]}")
    return watch


def load_batch(settings: dict[str, Any]) -> int:
    """The records a batch while much is there: two batches for the first load, and two once warm."""
    return int(settings["events"]) // 2


def write_config(settings: dict[str, Any], max_records: int) -> Path:
    """The worker's config, with so many records a batch at most."""
    directory = Path(settings["directory"]) / "ours"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "tidesink.yaml"
    protocol = settings.get("protocol", "flat-avro")
    table = {"name": "bench.events"}
    source: dict[str, Any] = {
        "brokers": settings["brokers"],
        "protocol": protocol,
        "topics": [settings["topic"]],
    }
    if protocol.endswith("avro"):
        source["schema-registry"] = settings["registry"]
    if protocol == "canal-json":  # short type words say no precision
        table["definition"] = DDL
    else:  # canal-json's messages name their table
        table["topic"] = settings["topic"]
    config = {
        "pipeline": "bench",
        "source": source,
        "tables": [table],
        # Records are the bound: those of debezium-json are 4 KB each, and their rows no larger than others'.
        "batch": {"max-records": max_records, "max-bytes": 2**32},
        "target": settings.get("target", {"type": "delta", "path": "./lake"}),
        "state": "./state.db",
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def _write_more(settings: dict[str, Any]) -> None:
    """As many events again, others over the same keys."""
    _write(settings, settings["events"], seed=2)


def _write_steady(settings: dict[str, Any]) -> None:
    _write(settings, STEADY_BATCH * STEADY_BATCHES, seed=3)


def _write(settings: dict[str, Any], count: int, *, seed: int) -> None:
    registry = open_registry(settings["registry"])
    write_events(settings["brokers"], registry, settings["topic"], count, seed=seed)


def baseline(
    settings: dict[str, Any],
    *,
    kind: type[BaselineJob] = BaselineJob,
    session: Callable[[], SparkSession] = plain_session,
) -> dict[str, Any]:
    """The hand-written job on the same topic; ``kind`` and ``session`` say into what it writes."""
    registry = open_registry(settings["registry"])
    directory = Path(settings["directory"]) / "baseline"
    spark = session()
    job = kind(
        settings["brokers"],
        settings["topic"],
        directory / "table",
        directory / "checkpoint",
        registry.latest(f"{settings['topic']}-key").schema_text,
        registry.latest(f"{settings['topic']}-value").schema_text,
        load_batch(settings),
    )
    job.create(spark)
    _write_more(settings)
    laps = job.run(spark)
    driver_mb = _driver_mb()
    _write_steady(settings)
    batch_seconds = [lap.seconds for lap in job.steady(spark, STEADY_BATCH)]
    spark.stop()
    return {
        **load_and_warm(laps, settings["events"]),
        "batch_seconds": batch_seconds[WARM_UP:],
        "driver_mb": driver_mb,
    }


def _driver_mb() -> float:
    """Peak memory of the Python driver: rows must never reach it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    print(
        json.dumps({"ours": ours, "baseline": baseline, "load": load}[sys.argv[1]](json.loads(sys.argv[2])))
    )
