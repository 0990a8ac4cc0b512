"""Loads a database with many rows into a lake while the rows change.

A worker reads the rows from the database and their changes from Kafka at the same time. Then the demo
compares the database with the lake, alters one row in the lake, and compares again. It succeeds if the first
comparison finds no difference and the second one finds the altered row. All files are in one directory; the
database is removed at the end.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from examples.first_load.mariadb import MariaDb
from examples.first_load.shop import CODEC, CUSTOMERS, ORDERS, TOPICS, UNTOUCHED, LiveShop
from tidesink.config import Config, load_config
from tidesink.dev.demo import SPARK_CONF, Steps, only_demo, undisturbed
from tidesink.dev.stack import Broker, ServiceGroup, free_ports
from tidesink.dev.workload import Say
from tidesink.errors import DevStackError
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.runtime.observers import BatchApplied, BatchStarted, Listener, RunReport, WorkerEvent
from tidesink.sinks.spark.jvm import spark_connector_jars
from tidesink.sinks.state.sql_store import open_state_store
from tidesink.sinks.targets.sharing import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.sinks.diff.comparison import TableDiff


TABLES: Final = (CUSTOMERS, ORDERS)
# Changed rows per second, low enough that the worker has the CPU time it needs.
_RATE: Final = 100.0
_LAG_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.5
_LOAD_SECONDS: Final = 900.0
_DATABASE: Final = ("innodb-buffer-pool-size=64M", "innodb-flush-log-at-trx-commit=2")


@dataclass(frozen=True)
class DemoOptions:
    """Size of the demo, which only uses the folder ``directory / "first-load"``.

    ``rows``: number of orders that exist before the worker starts. ``events``: minimum number of row events
    that are written while the worker runs. ``batch_records``: maximum number of records in one batch, and of
    rows in one key range.
    """

    directory: Path
    rows: int = 40_000
    events: int = 3_000
    seed: int = 1
    batch_records: int = 10_000


@dataclass(frozen=True)
class DemoResult:
    """Results of the demo.

    ``rows``: number of rows in the database at the start. ``events``: number of row events that were sent.
    ``equal``: result of the comparison while both sides changed. ``altered``: result of the comparison after
    a row was altered in the lake. ``seconds``: duration of each step, by its name.
    """

    rows: int
    events: int
    run: RunReport
    equal: tuple[TableDiff, ...]
    altered: tuple[TableDiff, ...]
    seconds: dict[str, float]
    config: Path
    lake: Path

    @property
    def right(self) -> bool:
        """True if the first comparison found no difference, and the second one only the altered row."""
        differing = [(str(diff.table), diff.different) for diff in self.altered if _differs(diff)]
        keys = [dict(shown.key) for diff in self.altered for shown in diff.shown]
        return (
            self.run.exit_code == 0
            and len(self.equal) == len(TABLES)
            and not any(_differs(diff) for diff in self.equal)
            and differing == [(str(ORDERS), 1)]
            and keys == [{"id": str(UNTOUCHED)}]
        )


def _differs(diff: TableDiff) -> bool:
    return bool(diff.refused or diff.differs or diff.unsettled)


def run_demo(options: DemoOptions, say: Say, *, listener: Listener | None = None) -> DemoResult:
    """Runs the demo once. Its services are stopped at the end, even after an error.

    ``listener``: receives the worker's events, except those of batches.

    Raises:
        DevStackError: Java or MariaDB is missing, jars cannot be downloaded, a service does not start,
            another demo runs in this directory, or the rows are not loaded in time.
        TidesinkError: The worker or the workload failed.
        KeyboardInterrupt: The demo was interrupted.
    """
    options.directory.mkdir(parents=True, exist_ok=True)
    with only_demo(options.directory):
        directory = (options.directory / "first-load").resolve()
        kafka, controller, database = free_ports(3)
        broker, server = Broker(directory, kafka, controller), MariaDb(directory, database, _DATABASE)
        group = ServiceGroup(directory, (server, broker))
        group.down()  # leftovers of a killed demo
        shutil.rmtree(directory, ignore_errors=True)
        demo = _Demo(options, directory, broker, server, Steps(say, {}), _without_batches(listener))
        try:
            return demo.run(group)
        finally:
            with undisturbed():
                group.down()
                shutil.rmtree(directory / server.name, ignore_errors=True)


class _Quiet:
    """Passes the worker's events on to ``listener``, except the frequent events of batches."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def hear(self, event: WorkerEvent) -> None:
        if not isinstance(event, BatchStarted | BatchApplied):
            self._listener.hear(event)


def _without_batches(listener: Listener | None) -> tuple[Listener, ...]:
    return () if listener is None else (_Quiet(listener),)


@dataclass(frozen=True)
class _Demo:
    options: DemoOptions
    directory: Path
    broker: Broker
    server: MariaDb
    steps: Steps
    listeners: tuple[Listener, ...]

    def run(self, group: ServiceGroup) -> DemoResult:
        with self.steps.step("jars", "Spark's connectors"):
            spark_connector_jars(progress=self.steps.say)
        with self.steps.step("stack", "starting a broker and a MariaDB on this machine"):
            group.up(self.steps.say)
        with ExitStack() as closing_last:
            with self.steps.step("source", f"{self.options.rows:,} orders and customers, not in Kafka"):
                shop = LiveShop(self.server, self.broker.address, seed=self.options.seed)
                closing_last.callback(shop.close)
                rows = shop.load(self.options.rows)
            path = self._write_config()
            config = load_config(path)
            with self.steps.step("spark", "starting Spark"):
                spark = closing_last.enter_context(_session(config))
            equal = self._copied(config, shop)
            with self.steps.step("drain", "the worker applies the remaining changes and ends"):
                report = _drained(config, self.listeners)
            altered = self._altered(config, spark)
            return DemoResult(
                rows, shop.changes, report, equal, altered, self.steps.seconds, path, self.directory / "lake"
            )

    def _copied(self, config: Config, shop: LiveShop) -> tuple[TableDiff, ...]:
        """Runs the worker while the shop changes its rows, and compares the two sides in the meantime.

        Returns the result of this comparison.
        """
        stop, flag = threading.Event(), StopFlag()
        with ThreadPoolExecutor(2) as threads:
            jobs = [
                threads.submit(shop.change_until, stop, rate=_RATE),
                threads.submit(_work, config, flag, self.listeners),
            ]
            try:
                with self.steps.step("load", "a worker reads the rows and applies the shop's changes"):
                    self._await_load(config, jobs)
                with self.steps.step("stream", "the same worker now only reads from Kafka"):
                    while shop.changes < self.options.events:
                        _pause(jobs)
                    self.steps.say(f"stream: {shop.changes:,} row events were sent so far")
                with self.steps.step("diff", "tidesink diff, while both sides change"):
                    diffs = self._compared(config, lag=_LAG_SECONDS)
            finally:
                stop.set()
                flag.set()
                with undisturbed():
                    wait(jobs)
            for job in jobs:
                job.result()
            return diffs

    def _await_load(self, config: Config, jobs: Sequence[Future[None]]) -> None:
        deadline = time.monotonic() + _LOAD_SECONDS
        quarters = dict.fromkeys(TABLES, 0)
        with closing(open_state_store(config.state)) as store:
            while True:
                statuses = {status.table: status for status in store.statuses(config.pipeline)}
                snapshots = {table: status.details.get("snapshot") for table, status in statuses.items()}
                for table, shown in snapshots.items():
                    if shown and shown["rows"] * 4 // (shown["estimate"] or 1) > quarters[table]:
                        quarters[table] = shown["rows"] * 4 // (shown["estimate"] or 1)
                        self.steps.say(f"load: {table}  {shown['rows']:,} rows, {shown['state']}")
                if all((snapshots.get(table) or {}).get("state") == "done" for table in TABLES):
                    return
                if time.monotonic() > deadline:
                    errors = [
                        f"{table}: {status.error}" for table, status in statuses.items() if status.error
                    ]
                    raise DevStackError(
                        f"The tables were not loaded within {_LOAD_SECONDS:.0f} s. {'; '.join(errors)}"
                    )
                _pause(jobs)

    def _compared(self, config: Config, *, lag: float) -> tuple[TableDiff, ...]:
        from tidesink.sinks.diff.comparison import DiffOptions
        from tidesink.sinks.diff.run import diff

        options = DiffOptions(values=True, lag=lag)
        return tuple(diff(config, TABLES, options, tell=lambda what: self.steps.say(f"diff: {what}")))

    def _altered(self, config: Config, spark: SparkSession) -> tuple[TableDiff, ...]:
        with self.steps.step("alter", f"setting the total of order {UNTOUCHED} to 0 in the lake"):
            path = quote_identifier(str(self.directory / "lake" / ORDERS.schema / ORDERS.name))
            spark.sql(f"UPDATE delta.{path} SET total = 0 WHERE id = {UNTOUCHED}")  # noqa: S608
        with self.steps.step("diff again", "tidesink diff --values"):
            return self._compared(config, lag=0)

    def _write_config(self) -> Path:
        """Writes the demo's config, and returns its path."""
        config = {
            "pipeline": "first-load",
            "source": {
                "brokers": self.broker.address,
                "protocol": "canal-json",
                "topics": TOPICS,
                "enable-tidb-extension": CODEC.enable_tidb_extension,
                "content-compatible": CODEC.content_compatible,
                "database": {"url": self.server.url, "chunk-rows": self.options.batch_records},
            },
            "target": {"type": "delta", "path": "./lake"},
            "defaults": {"snapshot": "initial"},
            "batch": {"max-records": self.options.batch_records},
            "state": "./state.db",
            "spark": {"conf": SPARK_CONF},
        }
        path = self.directory / "tidesink.yaml"
        path.write_text(json.dumps(config, indent=2), encoding="utf-8")
        return path


def _pause(jobs: Sequence[Future[None]]) -> None:
    """Waits a moment. Raises the error of the worker or the shop's writer if one of them has ended.

    Raises:
        DevStackError: The worker has ended without an error.
    """
    for job in wait(jobs, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED).done:
        job.result()
        raise DevStackError("The worker ended before the demo was done.")


@contextmanager
def _session(config: Config) -> Iterator[SparkSession]:
    """Opens one Spark session for the worker and the comparisons."""
    from tidesink.sinks.spark.session import build_session, stop_session

    session = build_session(
        app_name="tidesink first-load",
        master=config.spark.master,
        conf=config.spark.conf_values(),
        targets=[config.target.type],
    )
    try:
        yield session
    except KeyboardInterrupt:
        # Ctrl-C may have aborted a call to the JVM, whose answer would be taken for that of a later call. So
        # Spark is not stopped; the JVM ends with this process.
        raise
    except BaseException:
        stop_session(session)
        raise
    stop_session(session)


def _work(config: Config, stop: StopFlag, listeners: tuple[Listener, ...]) -> None:
    from tidesink.sinks.worker.run import run

    run(config, stop=stop, listeners=listeners)


def _drained(config: Config, listeners: tuple[Listener, ...]) -> RunReport:
    from tidesink.sinks.worker.run import run

    report = run(config, until="drained", listeners=listeners)
    if report.interrupted:
        raise KeyboardInterrupt
    return report
