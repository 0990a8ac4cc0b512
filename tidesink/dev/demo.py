"""``tidesink dev demo``: copies a workload from Kafka to Delta on this machine, and checks every value.

The demo starts a broker and a registry, writes a seeded workload with tidesink's own encoders (including
records that TiCDC sends again after a restart), runs the worker, and compares the lake with the expected
final state. All files are in one directory, which is created anew for each run, so that two runs print the
same. Downloaded jars stay in a cache.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidesink.codecs.base import CodecOptions
from tidesink.config import Config, load_config
from tidesink.dev.lake_check import TableCheck, check_table
from tidesink.dev.shop import load_expected
from tidesink.dev.stack import DevStack, StackAddresses, free_ports
from tidesink.dev.workload import Say, WorkloadOptions, WorkloadReport, write_workload
from tidesink.errors import DevStackError
from tidesink.schema_registry import open_registry
from tidesink.sinks.spark.jvm import spark_connector_jars

if TYPE_CHECKING:
    from tidesink.sinks.runtime.observers import Listener, RunReport


_STOPPING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


# The demo lasts a minute and its tables are small, so the JVM's optimising compiler would not pay off.
SPARK_CONF: Final = {
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
    ),
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True)
class DemoOptions:
    """Size and codec of the demo, which only uses the folder ``directory / "demo"``.

    ``batch_records``: maximum number of records in one batch; small, so that a table needs several batches.
    """

    directory: Path
    protocol: str = "flat-avro"
    events: int = 20_000
    seed: int = 1
    batch_records: int = 4_000
    tidb_extension: bool = True


@dataclass(frozen=True)
class DemoResult:
    """Results of the demo. ``seconds``: duration of each step, by its name."""

    workload: WorkloadReport
    run: RunReport
    checks: tuple[TableCheck, ...]
    seconds: dict[str, float]
    config: Path
    lake: Path

    @property
    def right(self) -> bool:
        """True if all tables are healthy and every value is as expected."""
        return all(check.right for check in self.checks) and self.run.exit_code == 0


@dataclass
class Steps:
    """Prints a line when a step of the demo begins, and measures how long the step takes."""

    say: Say
    seconds: dict[str, float]

    @contextmanager
    def step(self, name: str, text: str) -> Iterator[None]:
        self.say(f"{name}: {text}")
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 1)


def run_demo(options: DemoOptions, say: Say, *, listener: Listener | None = None) -> DemoResult:
    """Runs the demo once. Its services are stopped at the end, even after an error.

    ``listener``: receives the worker's events.

    Raises:
        DevStackError: Java is missing, jars cannot be downloaded, a service does not start, or another demo
            runs in this directory.
        TidesinkError: The worker or the workload failed.
        KeyboardInterrupt: The demo was interrupted.
    """
    options.directory.mkdir(parents=True, exist_ok=True)
    with only_demo(options.directory):
        directory = (options.directory / "demo").resolve()
        kafka, controller, registry = free_ports(3)
        stack = DevStack(directory, kafka_port=kafka, controller_port=controller, registry_port=registry)
        stack.down()  # leftovers of a killed demo
        shutil.rmtree(directory, ignore_errors=True)
        try:
            steps = Steps(say, {})
            return _run(options, stack, steps, () if listener is None else (listener,))
        finally:
            with undisturbed():
                stack.down()


@contextmanager
def only_demo(directory: Path) -> Iterator[None]:
    with (directory / "demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DevStackError(
                f"Another demo runs in {directory}. Wait until it ends, or choose another --dir."
            ) from None
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignores Ctrl-C and SIGTERM in this context, so that the code in it can stop all services.

    Has no effect outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in _STOPPING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _run(options: DemoOptions, stack: DevStack, steps: Steps, listeners: tuple[Listener, ...]) -> DemoResult:
    directory = stack.directory
    with steps.step("jars", "Spark's connectors"):
        spark_connector_jars(progress=steps.say)
    with steps.step("stack", "starting a broker and a registry on this machine"):
        addresses = stack.up(steps.say)
    with steps.step("workload", f"writing {options.events:,} row events of a shop, as {options.protocol}"):
        workload = _write(options, directory, addresses, steps.say)
        records = sum(workload.by_topic.values())
        again = f"{workload.resent:,} of them sent twice, as after a restart of the changefeed"
        steps.say(f"workload: {records:,} records in {len(workload.by_topic)} topics, {again}")
    config = _config(options, directory, addresses)
    with steps.step("worker", "starting Spark, and reading the topics until they are drained"):
        run = _work(load_config(config), listeners)
    with steps.step("check", "comparing all values, with a reader that shares no code with the worker"):
        checks = _check(directory)
    return DemoResult(workload, run, checks, steps.seconds, config, directory / "lake")


def _write(options: DemoOptions, directory: Path, addresses: StackAddresses, say: Say) -> WorkloadReport:
    registry = open_registry(addresses.registry_url) if options.protocol != "canal-json" else None
    try:
        return write_workload(
            WorkloadOptions(
                brokers=addresses.brokers,
                expected=directory / "expected.json",
                protocol=options.protocol,
                registry=registry,
                codec=CodecOptions(enable_tidb_extension=options.tidb_extension),
                events=options.events,
                seed=options.seed,
            ),
            say,
        )
    finally:
        if registry is not None:
            registry.close()


def _config(options: DemoOptions, directory: Path, addresses: StackAddresses) -> Path:
    """Writes the demo's config and returns its path. It has no column types: they come from the topics."""
    source: dict[str, object] = {
        "brokers": addresses.brokers,
        "protocol": options.protocol,
        "topics": "{schema}_{table}",
        "enable-tidb-extension": options.tidb_extension,
    }
    if options.protocol != "canal-json":
        source["schema-registry"] = addresses.registry_url
    config = {
        "pipeline": "demo",
        "source": source,
        "target": {"type": "delta", "path": "./lake"},
        "batch": {"max-records": options.batch_records},
        "state": "./state.db",
        "spark": {"conf": SPARK_CONF},
    }
    # JSON is valid YAML, so every tidesink command can use the file after the demo.
    path = directory / "tidesink.yaml"
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")
    return path


def _work(config: Config, listeners: tuple[Listener, ...]) -> RunReport:
    from tidesink.sinks.worker.run import run

    report = run(config, until="drained", listeners=listeners)
    if report.interrupted:
        raise KeyboardInterrupt
    return report


def _check(directory: Path) -> tuple[TableCheck, ...]:
    expected = load_expected(directory / "expected.json")
    return tuple(
        check_table(directory / "lake" / table.table.schema / table.table.name, table) for table in expected
    )
