"""Idle tables whose topics get a watermark a second: no batch of theirs, and no row waits for them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Producer

from tests.e2e.replay import Servers
from tests.e2e.writing import schema_of, shop_config
from tests.full import FULL
from tests.http_receiver import http_receiver
from tests.servers import create_topics
from tidesink.codecs import open_codec
from tidesink.codecs.base import CodecOptions
from tidesink.config import Config, load_config
from tidesink.events import ChangeEvent, Event, Op, Position, Value, WatermarkEvent
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.runtime.observers import BatchApplied, RunReport, WorkerEvent
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS: Final = CodecOptions(enable_tidb_extension=True)
PARTITIONS: Final = 2
TURNS: Final = 3
# Several watermarks come to each partition meanwhile.
WATCHED_SECONDS: Final = 3.0
PATIENCE: Final = 600.0


def _busy_since(before: Counter[str], turn: int) -> Callable[[Counter[str]], bool]:
    """Whether the busy table has had so many batches more."""
    return lambda of: of["busy"] >= before["busy"] + turn


class _Batches:
    """Counts the batches of each table."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()
        self._more = threading.Condition()

    def hear(self, event: WorkerEvent) -> None:
        """Called in the threads of the tables."""
        if isinstance(event, BatchApplied):
            with self._more:
                self.of[event.table.name] += 1
                self._more.notify_all()

    def wait_for(self, enough: Callable[[Counter[str]], bool]) -> None:
        """Until the counts are as wanted."""
        with self._more:
            assert self._more.wait_for(lambda: enough(self.of), PATIENCE), self.of


class _Shop:
    """Canal-json tables with a first row and a first watermark, in topics of their own or all in one."""

    def __init__(self, folder: Path, servers: Servers, names: list[str], *, shares: bool = False) -> None:
        self._folder, self._servers = folder, servers
        self._topics = {name: f"{servers['prefix']}shop_{'all' if shares else name}" for name in names}
        create_topics(servers["brokers"], dict.fromkeys(self._topics.values(), PARTITIONS))
        self._producer = Producer({"bootstrap.servers": servers["brokers"]})
        self._codec = open_codec("canal-json", options=OPTIONS)
        self._time = 449_000_000_000_000_000
        for name in names:
            self.row(name)
        self.watermarks()

    def row(self, name: str) -> None:
        """Write one row."""
        schema, topic = schema_of(name), self._topics[name]
        row: dict[str, Value] = {"id": 1, "name": "one"}
        at = Position(topic, 0, 0)
        self._write(
            ChangeEvent(Op.INSERT, schema.table, {"id": 1}, None, row, self._time, at, schema), topic, 0
        )
        assert self._producer.flush(120) == 0

    def watermarks(self) -> None:
        """Write one into each partition, as TiCDC does each second."""
        self._time += 1000 << 18
        for topic in {*self._topics.values()}:
            for partition in range(PARTITIONS):
                self._write(WatermarkEvent(self._time, Position(topic, 0, 0)), topic, partition)
        assert self._producer.flush(120) == 0

    def _write(self, event: Event, topic: str, partition: int) -> None:
        record = self._codec.encode(event, topic=topic)
        assert record is not None
        self._producer.produce(topic, record.value, record.key, partition=partition)

    @contextmanager
    def watermarks_every(self, seconds: float) -> Iterator[None]:
        """Go on writing them until the context ends."""
        ended = threading.Event()

        def go_on() -> None:
            while not ended.wait(seconds):
                self.watermarks()

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def config(self, url: str, **batch: Any) -> Config:
        """A pipeline of all of them."""
        source = {
            "brokers": self._servers["brokers"],
            "protocol": "canal-json",
            "topics": [*dict.fromkeys(self._topics.values())],
            "enable-tidb-extension": True,
        }
        target = {"type": "http", "url": f"{url}/{{schema}}/{{table}}"}
        settings = {"source": source, "target": target, "batch": {"poll-interval": "200ms", **batch}}
        return load_config(shop_config(self._folder, self._servers, settings))


def _run_beside(config: Config, batches: _Batches, steps: Callable[[], None]) -> RunReport:
    """A worker without an end, while the steps are taken."""
    stop, failed = StopFlag(), list[BaseException]()

    def take() -> None:
        try:
            steps()
        except BaseException as exc:  # noqa: BLE001  (raised below)
            failed.append(exc)
        finally:
            stop.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    report = run(config, listeners=(batches,), stop=stop)
    thread.join()
    if failed:
        raise failed[0]
    return report


@pytest.mark.parametrize("count", [8, pytest.param(300, marks=FULL)])
def test_idle_tables_cost_no_batches_and_leave_a_busy_one_its_turns(
    spark: SparkSession, tmp_path: Path, servers: Servers, count: int
) -> None:
    idle = [f"idle{number}" for number in range(count)]
    shop, batches = _Shop(tmp_path, servers, [*idle, "busy"]), _Batches()
    scheduler: Any = spark.sparkContext._jsc.sc().dagScheduler()
    meanwhile, jobs = Counter[str](), list[int]()

    def steps() -> None:
        batches.wait_for(lambda of: len(of) == count + 1)
        before = batches.of.copy()
        jobs.append(int(scheduler.nextJobId()))
        for turn in range(1, TURNS + 1):
            shop.row("busy")
            batches.wait_for(_busy_since(before, turn))
        time.sleep(WATCHED_SECONDS)
        jobs.append(int(scheduler.nextJobId()))
        meanwhile.update(batches.of - before)
        shop.row(idle[0])
        batches.wait_for(lambda of: of[idle[0]] == before[idle[0]] + 1)

    with http_receiver() as receiver, shop.watermarks_every(1.0):
        # The first tables' watermarks are not to be due before the last one has its first batch.
        config = shop.config(receiver.url, **{"watermark-interval": "1h"})
        report = _run_beside(config, batches, steps)
    assert {table.state for table in report.tables} <= {"IDLE", "RUNNING"}
    assert meanwhile.keys() == {"busy"}
    # Five jobs a batch at most; a batch may be under way when they are counted.
    assert jobs[1] - jobs[0] <= 5 * (meanwhile["busy"] + 2)


def test_watermarks_alone_are_read_in_the_end(spark: SparkSession, tmp_path: Path, servers: Servers) -> None:
    """Each interval; a run to the end ends while they go on, and leaves none behind that were there."""
    shop, batches = _Shop(tmp_path, servers, ["first", "second"]), _Batches()
    with http_receiver() as receiver:
        config = shop.config(receiver.url, **{"watermark-interval": "2s"})

        def read_on() -> None:
            batches.wait_for(lambda of: len(of) == 2)
            started, before = time.monotonic(), batches.of.copy()
            batches.wait_for(lambda of: all(of[name] >= at + 2 for name, at in before.items()))
            assert time.monotonic() - started >= 2.0

        with shop.watermarks_every(0.1):
            _run_beside(config, batches, read_on)
            drained = run(config, until="drained")
        assert drained.exit_code == 0
        left = run(config, until="drained")
        assert [(table.state, table.lag) for table in left.tables] == [("IDLE", 0)] * 2
        shop.row("first")
        again = run(config, until="drained")
    assert [(table.counters["applied"], table.lag) for table in again.tables] == [(1, 0), (0, 0)]


@pytest.mark.parametrize("count", [12, pytest.param(300, marks=FULL)])
def test_rows_of_one_table_cost_the_others_of_its_topic_no_batches(
    spark: SparkSession, tmp_path: Path, servers: Servers, count: int
) -> None:
    idle = [f"idle{number}" for number in range(count)]
    shop, batches = _Shop(tmp_path, servers, [*idle, "busy"], shares=True), _Batches()
    meanwhile = Counter[str]()

    def steps() -> None:
        batches.wait_for(lambda of: len(of) == count + 1)
        before = batches.of.copy()
        for turn in range(1, TURNS + 1):
            shop.row("busy")
            batches.wait_for(_busy_since(before, turn))
        shop.row(idle[0])  # behind what it has let go by
        batches.wait_for(lambda of: of[idle[0]] == before[idle[0]] + 1)
        meanwhile.update(batches.of - before)

    with http_receiver() as receiver:
        config = shop.config(receiver.url, **{"watermark-interval": "1h"})
        with shop.watermarks_every(1.0):
            report = _run_beside(config, batches, steps)
        assert {table.state for table in report.tables} <= {"IDLE", "RUNNING"}
        # One that was ahead of the others may have read for itself.
        assert meanwhile["busy"] >= TURNS
        assert sum(meanwhile.values()) < TURNS + count
        # What went by is read again, and holds nothing for the others then either.
        left = run(config, until="drained")
    assert [(table.counters["applied"], table.lag) for table in left.tables] == [(0, 0)] * (count + 1)


def test_tables_commit_in_the_end_how_far_they_have_come(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    """Records expire one day, of whichever table they were."""
    shop, batches = _Shop(tmp_path, servers, ["busy", "first", "second"], shares=True), _Batches()

    def steps() -> None:
        batches.wait_for(lambda of: len(of) == 3)
        before = batches.of.copy()
        shop.row("busy")
        batches.wait_for(lambda of: all(of[name] > before[name] for name in ("first", "second")))

    with http_receiver() as receiver:
        _run_beside(shop.config(receiver.url, **{"watermark-interval": "3s"}), batches, steps)
