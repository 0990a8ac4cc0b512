"""Several tables are worked on at once, never more than ``batch.max-tables``; idle ones cost no Spark job."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, lake_rows, schema_of, shop_config
from tidesink.config import load_config
from tidesink.events import TableId
from tidesink.sinks.runtime.observers import BatchApplied, BatchStarted, WorkerEvent
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES: Final = ("first", "second", "third")
AT_ONCE: Final = 2
# Some ten turns of the worker, which looks every tenth of a second while a batch is held up.
HELD_SECONDS: Final = 1.0


class Observer:
    """Holds batches up where it hears that they start, and notes what goes on meanwhile."""

    def __init__(self, spark: SparkSession, again: TableWriter) -> None:
        self.together = False
        self.most = 0
        # Spark jobs so far: when all tables are drained, before and after one is held up, and at its end.
        self.jobs: list[int] = []
        self._scheduler: Any = spark.sparkContext._jsc.sc().dagScheduler()
        self._again = again
        self._lock = threading.Lock()
        self._running: set[TableId] = set()
        self._started = 0
        self._applied = 0
        self._meeting = threading.Barrier(AT_ONCE)
        self._one_more = threading.Event()

    def hear(self, event: WorkerEvent) -> None:
        """Called in the thread of the batch's table."""
        if isinstance(event, BatchStarted):
            self._start(event.table)
        elif isinstance(event, BatchApplied):
            self._end(event.table)

    def _start(self, table: TableId) -> None:
        with self._lock:
            self._started += 1
            number = self._started
            self._running.add(table)
            self.most = max(self.most, len(self._running))
        if number <= AT_ONCE:
            self._meet()
        elif number <= len(TABLES):
            self._one_more.set()
        else:
            self._count_jobs()
            time.sleep(HELD_SECONDS)
            self._count_jobs()

    def _meet(self) -> None:
        """Wait for the other table's batch, then give a third one time to begin too."""
        self._meeting.wait(240)
        self.together = True
        self._one_more.wait(HELD_SECONDS)

    def _end(self, table: TableId) -> None:
        with self._lock:
            self._running.discard(table)
            self._applied += 1
            number = self._applied
        if number >= len(TABLES):
            self._count_jobs()
        if number == len(TABLES):
            # The worker looks again after every batch: this record is there by then.
            self._again.upsert({"id": 2, "name": "two"})

    def _count_jobs(self) -> None:
        self.jobs.append(self._scheduler.numTotalJobs())


def test_tables_are_worked_on_at_once_and_idle_ones_cost_no_job(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    writers = {name: TableWriter(servers, schema_of(name)) for name in TABLES}
    for writer in writers.values():
        writer.upsert({"id": 1, "name": "one"})
    observer = Observer(spark, again=writers["first"])
    # Small batches in the worker's own process would cost no job either.
    more = {"batch": {"executor": "spark", "max-tables": AT_ONCE, "poll-interval": "100ms"}}
    report = run(load_config(shop_config(tmp_path, servers, more)), until="drained", listeners=[observer])
    assert report.exit_code == 0, [(table.table, table.error) for table in report.tables]
    assert observer.together
    assert observer.most == AT_ONCE
    drained, held, held_on, applied = observer.jobs
    # The first table's batch waited, so that any job in between was one of the other two's or the worker's.
    assert drained == held == held_on < applied
    assert applied == spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()
    assert {name: set(lake_rows(tmp_path, name)) for name in TABLES} == {
        "first": {1, 2},
        "second": {1},
        "third": {1},
    }
