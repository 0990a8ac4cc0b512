"""What cuts cost: the changes of some tables into Delta with a cut every second, beside the same without.

``python -m benchmarks.cuts with|without SETTINGS.json`` has a worker follow tables whose changes come a
second of the source's time at once, with a watermark behind them; the next second comes when that one is
applied. So every second is a cut, as in a pipeline that is at its limit. It prints ``{"rate": …}``, row
events a second of the median second, without the first ones, in which the JVM is cold.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from benchmarks.events import OPTIONS, events
from benchmarks.first_commit import Measure
from benchmarks.rows import Row, paired
from tidesink.codecs import open_codec
from tidesink.config import load_config
from tidesink.dev.workload import create_topics
from tidesink.events import LOGICAL_BITS, Position, TableId, WatermarkEvent
from tidesink.sinks.cuts.publishing import cut_status
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.runtime.observers import BatchApplied, WorkerEvent
from tidesink.sinks.state.sql_store import open_state_store
from tidesink.sinks.worker.run import run

TABLES: Final = 5
# Of one table in a second of the source.
EVENTS: Final = 5_000
SECONDS: Final = 12
_WARM_UP: Final = 4
_PATIENCE: Final = 300.0
_PROTOCOL: Final = "canal-json"
_FIRST_MS: Final = 1_767_225_600_000
Record = tuple[str, bytes | None, bytes | None]


def cut_row(measure: Measure, settings: dict[str, Any]) -> Row:
    """The row of ``cut.every-second``."""
    rates = []
    for side in ("with", "without"):
        with tempfile.TemporaryDirectory(prefix="tidesink-bench-cuts-") as directory:
            given = {**settings, "directory": directory, "schema": f"cuts{side}"}
            rates.append(measure("benchmarks.cuts", side, json.dumps(given))["rate"])
    return paired("cut.every-second", *rates)


def seconds_of(schema: str) -> Iterator[list[Record]]:
    """The records of each second: those of all tables in turn, and then the watermarks."""
    codec = open_codec(_PROTOCOL, options=OPTIONS[_PROTOCOL])
    tables = [TableId(schema, f"t{number}") for number in range(TABLES)]
    made = events(EVENTS * SECONDS, seed=1)
    for second in range(SECONDS):
        records = list[Record]()
        for number in range(EVENTS):
            event = next(made)
            assert event.schema is not None
            commit_ts = (_FIRST_MS + second * 1000 + number * 1000 // EVENTS) << LOGICAL_BITS
            for table in tables:
                named = event._replace(
                    table=table, schema=replace(event.schema, table=table), commit_ts=commit_ts
                )
                record = codec.encode(named, topic=_topic(table))
                assert record is not None
                records.append((_topic(table), record.key, record.value))
        mark = (_FIRST_MS + (second + 1) * 1000) << LOGICAL_BITS
        for table in tables:
            record = codec.encode(WatermarkEvent(mark, Position("", 0, 0)), topic=_topic(table))
            assert record is not None
            records.append((_topic(table), record.key, record.value))
        yield records


def _topic(table: TableId) -> str:
    return f"{table.schema}.{table.schema}_{table.name}"


@dataclass
class Applied:
    """Hears the worker: how far each table is."""

    commit_ts: dict[TableId, int] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def hear(self, event: WorkerEvent) -> None:
        """Note a batch."""
        if isinstance(event, BatchApplied) and event.commit_ts is not None:
            with self.changed:
                self.commit_ts[event.table] = event.commit_ts
                self.changed.notify_all()

    def wait(self, ms: int) -> None:
        """Until all tables have the rows of that millisecond."""
        with self.changed:
            done = self.changed.wait_for(
                lambda: sum(at >> LOGICAL_BITS >= ms for at in self.commit_ts.values()) == TABLES, _PATIENCE
            )
        if not done:
            raise SystemExit(f"the tables stand at {self.commit_ts}")


def rate(settings: dict[str, Any], *, cuts: bool) -> float:
    """Row events a second."""
    path = _config(settings, cuts=cuts)
    chunks = list(seconds_of(settings["schema"]))
    create_topics(settings["brokers"], sorted({topic for topic, _, _ in chunks[0]}), 1)
    applied, stop, taken = Applied(), StopFlag(), list[float]()

    def feed() -> None:
        producer = Producer(
            {"bootstrap.servers": settings["brokers"], "queue.buffering.max.messages": 500_000}
        )
        try:
            for second, records in enumerate(chunks):
                began = time.perf_counter()
                for topic, key, value in records:
                    producer.produce(topic, value, key)
                producer.flush()
                applied.wait(_FIRST_MS + second * 1000 + (EVENTS - 1) * 1000 // EVENTS)
                taken.append(time.perf_counter() - began)
        finally:
            stop.set()

    feeder = threading.Thread(target=feed)
    feeder.start()
    config = load_config(path)
    run(config, listeners=[applied], stop=stop)
    feeder.join()
    if len(taken) < SECONDS:
        raise SystemExit(f"{len(taken)} seconds of {SECONDS} were applied")
    if cuts:
        with closing(open_state_store(config.state)) as store:
            found = cut_status(store, config.pipeline) or {}
        # The last one may be on its way.
        if (found.get("last") or 0) >> LOGICAL_BITS < _FIRST_MS + (SECONDS - 1) * 1000:
            raise SystemExit(f"the last cut is {found}")
    return TABLES * EVENTS / statistics.median(taken[_WARM_UP:])


def _config(settings: dict[str, Any], *, cuts: bool) -> Path:
    schema, path = settings["schema"], Path(settings["directory"]) / "tidesink.yaml"
    config = {
        "pipeline": "bench",
        "source": {
            "brokers": settings["brokers"],
            "protocol": _PROTOCOL,
            "enable-tidb-extension": True,
            "topics": f"{schema}.{{schema}}_{{table}}",
        },
        "batch": {"poll-interval": "100ms"},
        "target": settings.get("target", {"type": "delta", "path": "./lake"}),
        "state": "./state.db",
    }
    path.write_text(json.dumps(config | ({"cuts": {"every": "1s"}} if cuts else {})), encoding="utf-8")
    return path


if __name__ == "__main__":
    print(json.dumps({"rate": rate(json.loads(sys.argv[2]), cuts=sys.argv[1] == "with")}))
