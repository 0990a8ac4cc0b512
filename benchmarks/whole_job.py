"""The whole job into Delta, ours or the hand-written one, each in a process of its own.

``python -m benchmarks.whole_job ours|baseline SETTINGS.json`` prints one JSON object:
``{"load_seconds", "warm_seconds", "batch_seconds": [...], "driver_mb"}``. ``load`` is the first load of every
event that is there, by a JVM that was just started; ``warm`` as many events again over the same keys, by the
same JVM; the steady batches are of 1,000 events each, into the loaded table. Each job has its own topic.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.baseline import BaselineJob, plain_session
from benchmarks.events import STEADY_BATCH, STEADY_BATCHES, write_events
from tidesink.config import load_config
from tidesink.schema_registry import open_registry
from tidesink.sinks.listener import BatchApplied, BatchStarted, WorkerEvent
from tidesink.sinks.worker import run

LOAD_BATCH = 500_000
# The first batches of a table are cold: the JVM compiles, Delta reads the snapshot for the first time.
WARM_UP = 4


@dataclass
class Stopwatch:
    """Hears the worker: when the first batch began, and how long each one took."""

    began: float = 0.0
    ended: float = 0.0
    seconds: list[float] = field(default_factory=list)
    steps: list[dict[str, float]] = field(default_factory=list)

    def hear(self, event: WorkerEvent) -> None:
        """Note one event."""
        if isinstance(event, BatchStarted):
            self.began = self.began or time.perf_counter()
        if isinstance(event, BatchApplied):
            self.ended = time.perf_counter()
            self.seconds.append(sum(event.seconds.values()))
            self.steps.append(event.seconds)


def ours(settings: dict[str, Any]) -> dict[str, Any]:
    """The worker on the benchmark's topic."""
    load = Stopwatch()
    run(load_config(_config(settings, LOAD_BATCH)), until="drained", listeners=[load])
    driver_mb = _driver_mb()
    _write_more(settings)
    warm = Stopwatch()
    run(load_config(_config(settings, LOAD_BATCH)), until="drained", listeners=[warm])
    _write_steady(settings)
    steady = Stopwatch()
    run(load_config(_config(settings, STEADY_BATCH)), until="drained", listeners=[steady])
    return {
        "load_seconds": load.ended - load.began,
        "warm_seconds": warm.ended - warm.began,
        "batch_seconds": steady.seconds[WARM_UP:],
        "steps": steady.steps[-1] if steady.steps else {},
        "driver_mb": driver_mb,
    }


def _config(settings: dict[str, Any], max_records: int) -> Path:
    directory = Path(settings["directory"]) / "ours"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "tidesink.yaml"
    config = {
        "pipeline": "bench",
        "source": {
            "brokers": settings["brokers"],
            "protocol": "flat-avro",
            "topics": settings["topic"],
            "schema-registry": settings["registry"],
        },
        "tables": [{"name": "bench.events", "topic": settings["topic"]}],
        "batch": {"max-records": max_records, "max-bytes": 2**30},
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
        LOAD_BATCH,
    )
    job.create(spark)
    load_seconds = job.run(spark)
    driver_mb = _driver_mb()
    _write_more(settings)
    warm_seconds = job.run(spark)
    _write_steady(settings)
    batch_seconds = job.steady(spark, STEADY_BATCH)
    spark.stop()
    return {
        "load_seconds": load_seconds,
        "warm_seconds": warm_seconds,
        "batch_seconds": batch_seconds[WARM_UP:],
        "driver_mb": driver_mb,
    }


def _driver_mb() -> float:
    """Peak memory of the Python driver: rows must never reach it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    print(json.dumps({"ours": ours, "baseline": baseline}[sys.argv[1]](json.loads(sys.argv[2]))))
