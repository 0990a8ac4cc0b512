"""What many idle tables cost a worker beside one: CPU seconds a minute of its processes together.

``python -m benchmarks.idle_tables SETTINGS.json`` runs a worker over ``settings["tables"]`` tables of one
event each into Postgres, waits until all are applied, and prints ``{"cpu": …}``, of the minute after that.
The minute begins when the worker has been idle for a while: the JVM's compiler has nothing left to do.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from benchmarks.events import OPTIONS, events
from benchmarks.first_commit import Measure
from benchmarks.processes import CpuTime
from benchmarks.rows import Row
from benchmarks.sql_servers import postgres
from benchmarks.sql_targets import target_settings
from tidesink.codecs import open_codec
from tidesink.config import load_config
from tidesink.dev.workload import create_topics
from tidesink.events import TableId
from tidesink.schema_registry import open_registry
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.runtime.observers import BatchApplied, WorkerEvent
from tidesink.sinks.worker.run import run

TABLES: Final = 500
_MINUTE: Final = 60.0
_SETTLE: Final = 30.0
_PATIENCE: Final = 1_800.0


def idle_row(measure: Measure, settings: dict[str, Any], tables: int = TABLES) -> Row:
    """The row of ``tables.500-idle``."""
    found = []
    for count in (tables, 1):
        with tempfile.TemporaryDirectory(prefix="tidesink-bench-idle-") as place:
            write_tables(settings, f"idle{count}", count)
            with postgres(Path(place) / "server") as endpoint:
                target = target_settings("postgres", endpoint)
                given = {**settings, "directory": place, "schema": f"idle{count}", "tables": count}
                found.append(
                    measure("benchmarks.idle_tables", json.dumps({**given, "target": target}))["cpu"]
                )
    many, one = found
    return Row(f"tables.{tables}-idle", many, "s/min", one, many / one)


def write_tables(settings: dict[str, Any], schema: str, count: int) -> None:
    """A topic of one event for each table."""
    codec = open_codec(
        "flat-avro", options=OPTIONS["flat-avro"], registry=open_registry(settings["registry"])
    )
    topics = [f"{schema}.{schema}_t{number}" for number in range(count)]
    create_topics(settings["brokers"], topics, 1)
    producer = Producer({"bootstrap.servers": settings["brokers"]})
    (event,) = events(1, seed=1)
    for number, topic in enumerate(topics):
        table = TableId(schema, f"t{number}")
        assert event.schema is not None
        definition = replace(event.schema, table=table)
        record = codec.encode(event._replace(table=table, schema=definition), topic=topic)
        assert record is not None
        producer.produce(topic, record.value, record.key)
    producer.flush()


@dataclass
class Applied:
    """Hears the worker: when all tables have their batch."""

    left: int
    all: threading.Event

    def hear(self, event: WorkerEvent) -> None:
        """Count batches."""
        if isinstance(event, BatchApplied):
            self.left -= 1
            if not self.left:
                self.all.set()


def idle_cpu(settings: dict[str, Any]) -> float:
    """CPU seconds of a minute in which no table has anything to do."""
    count, schema = settings["tables"], settings["schema"]
    config = {
        "pipeline": "idle",
        "source": {
            "brokers": settings["brokers"],
            "protocol": "flat-avro",
            # A worker reads every topic that fits: those of other parts and counts must not.
            "topics": f"{schema}.{{schema}}_{{table}}",
            "schema-registry": settings["registry"],
        },
        "tables": [{"name": f"{schema}.t{number}"} for number in range(count)],
        "target": settings["target"],
        "state": "./state.db",
    }
    path = Path(settings["directory"]) / "tidesink.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    applied, stop, cpu = Applied(count, threading.Event()), StopFlag(), [0.0]

    def measure() -> None:
        try:
            if applied.all.wait(_PATIENCE):
                time.sleep(_SETTLE)
                taken, end = CpuTime(os.getpid()), time.monotonic() + _MINUTE
                while time.monotonic() < end:
                    time.sleep(1)
                    taken.see()
                cpu[0] = taken.seconds
        finally:
            stop.set()

    thread = threading.Thread(target=measure)
    thread.start()
    run(load_config(path), listeners=[applied], stop=stop)
    thread.join()
    if not cpu[0]:
        raise SystemExit(f"{applied.left} of {count} tables were not applied in {_PATIENCE:.0f} s")
    return cpu[0]


if __name__ == "__main__":
    print(json.dumps({"cpu": idle_cpu(json.loads(sys.argv[1]))}))
