"""Topics are looked into for their tables beside the worker's turns, for a while each."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast

import orjson
import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tests.lagging_registry import text_of
from tests.unit.codecs.canal_json.messages import row_bytes
from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right
from tests.unit.sinks.worker.bed import worker_context
from tests.unit.sinks.worker.test_run import _Looks
from tests.worker_contexts import no_fetch
from tidesink.errors import (
    ConfigError,
    RegistryError,
    RegistryUnavailableError,
    SourceUnavailableError,
    TidesinkError,
)
from tidesink.events import Message, TableId
from tidesink.schema_registry import MemorySchemaRegistry, RegisteredSchema
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.offsets import Look, OffsetRange, PartitionOffsets, TopicOffsets
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.runtime.observers import (
    Heartbeat,
    Listeners,
    TableChanged,
    WorkerEvent,
    seconds_since_beat,
)
from tidesink.sinks.runtime.shared_reads import Topics
from tidesink.sinks.state.progress import PartitionProgress, Progress, TableStatus, TopicProgress
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.discovery import TableTasks
from tidesink.sinks.worker.look_ups import FirstRowTables, TopicLookUps
from tidesink.sinks.worker.run import Worker

R = TypeVar("R")
ROWS: Final = TableId("shop", "orders")
HTTP: Final = {"type": "http", "url": "http://127.0.0.1:1/x"}
CANAL_ROW: Final = row_bytes({"id": "1"}, database=ROWS.schema, table=ROWS.name)
DEBEZIUM_ROW: Final = orjson.dumps(
    {
        "before": None,
        "after": {"id": 1},
        "source": {"connector": "mysql", "db": ROWS.schema, "table": ROWS.name},
        "op": "c",
    }
)
# By protocol, a row of the table.
VALUES: Final = {"canal-json": CANAL_ROW, "debezium-json": DEBEZIUM_ROW}


class _Source(KafkaSource):
    """Kafka with a row at one offset, or none; it may be made to fail, or to wait: with one topic or all."""

    def __init__(
        self, row_at: int | None = None, *, slow: str | None = None, value: bytes = CANAL_ROW
    ) -> None:
        super().__init__(no_fetch)
        self.read: list[OffsetRange] = []
        self.threads: set[str] = set()
        self.begun, self.answers = threading.Event(), threading.Event()
        self.answers.set()
        self.fails: Exception | None = None
        self._row_at, self._slow, self._value = row_at, slow, value

    def read_here(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        self.read += [part for part in ranges if part.records]
        self.threads.add(threading.current_thread().name)
        self.begun.set()
        assert self._slow not in (None, ranges[0].topic) or self.answers.wait(60)
        if self.fails is not None:
            raise self.fails
        for part in ranges:
            if self._row_at is not None and part.start <= self._row_at < part.end:
                yield as_records([Message(part.topic, part.partition, self._row_at, None, self._value)])

    def ask(
        self, _session: Any, ranges: Sequence[OffsetRange], question: Callable[[Iterator[pa.RecordBatch]], R]
    ) -> list[R]:
        return [question(self.read_here(ranges))]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStateStore]:
    store = SqlStateStore(str(tmp_path / "state.db"))
    yield store
    store.close()


# Brokers that know of nothing newer.
_NO_NEWS: Final = SimpleNamespace(lookup=lambda _topics: {})


def _around(store: SqlStateStore, source: _Source, **settings: Any) -> WorkerContext:
    around = worker_context(right(changed(CANAL_JSON, target=HTTP, **settings)), store=store)
    topics = Topics(around.config.pipeline, source, store, ask=lambda: cast("Any", _NO_NEWS))
    return replace(around, source=source, topics=topics)


def _found(topic: str = "app", end: int = 9) -> TopicOffsets:
    return TopicOffsets(topic, f"id of {topic}", {0: PartitionOffsets(0, end)})


def _ended(tables: TopicLookUps) -> None:
    assert tables.under_way is not None
    tables.under_way.result(60)
    tables.collect()
    assert tables.under_way is None


@pytest.mark.parametrize("protocol", VALUES)
def test_nobody_waits_for_a_look_up(store: SqlStateStore, protocol: str) -> None:
    source = _Source(row_at=3, value=VALUES[protocol])
    source.answers.clear()
    tables = TopicLookUps.of(_around(store, source, source__protocol=protocol))
    assert tables(_found(), None) == ()
    assert tables.under_way is not None
    tables.collect()
    assert tables.under_way is not None
    source.answers.set()
    _ended(tables)
    assert tables(_found(), None) == (ROWS,)
    assert source.threads == {"tables of topics"}
    # Its table reads on, and meets the others.
    assert tables(_found(end=20), None) == (ROWS,)
    assert tables.under_way is None


def test_a_topic_is_read_from_where_its_tables_wait(store: SqlStateStore) -> None:
    source = _Source()
    around = _around(store, source)
    around.topics.tables("app").add([ROWS])
    tables = TopicLookUps.of(around)
    assert tables(_found(end=900), {0: 700}) == (ROWS,)
    _ended(tables)
    assert source.read == [OffsetRange("app", 0, 700, 900)]
    # What was read is not read again, and what is new not at once.
    assert tables(_found(end=901), {0: 700}) == (ROWS,)
    assert tables.under_way is None


@pytest.mark.parametrize(("topic_id", "start"), [("id of app", 700), ("id of another", 0)])
def test_a_table_that_rests_from_the_beginning_stands_where_an_earlier_run_left_it(
    store: SqlStateStore, topic_id: str, start: int
) -> None:
    source = _Source()
    around = _around(store, source)
    around.topics.tables("app").add([ROWS])
    at = TopicProgress("app", topic_id, {0: PartitionProgress(700, 700)})
    store.record_progress(Progress(ROWS, "shop", 3, 12, topics={"app": at}))
    store.save_status(TableStatus("shop", ROWS, "PAUSED", epoch=3, batch=12))
    tables = TopicLookUps.of(around)
    tables(_found(end=900), {})
    _ended(tables)
    assert source.read == [OffsetRange("app", 0, start, 900)]


def test_topics_are_looked_into_for_a_while_each(store: SqlStateStore) -> None:
    source = _Source()
    source.answers.clear()
    tables = TopicLookUps.of(_around(store, source), seconds=0.0)
    tables(_found("long", end=50_000), None)
    tables(_found("short", end=5), None)
    source.answers.set()
    _ended(tables)
    assert [(part.topic, part.start, part.end) for part in source.read] == [
        ("long", 0, 20_000),
        ("short", 0, 5),
        ("long", 20_000, 40_000),
        ("long", 40_000, 50_000),
    ]


class _OneByOne(_Source):
    """Kafka with a record at every offset, of which that at ``row_at`` alone is a row."""

    def read_here(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        self.read += ranges
        assert self.answers.wait(60)
        for part in ranges:
            for at in range(part.start, part.end):
                value = self._value if at == self._row_at else (b"no JSON", None)[at % 2]
                yield as_records([Message(part.topic, part.partition, at, None, value)])


def test_a_topic_without_rows_is_read_record_by_record_in_the_time_it_has(store: SqlStateStore) -> None:
    source = _OneByOne(row_at=3, value=DEBEZIUM_ROW)
    source.answers.clear()
    tables = TopicLookUps.of(_around(store, source, source__protocol="debezium-json"), seconds=0.0)
    tables(_found("long", end=1_000), None)
    tables(_found("short", end=2), None)
    source.answers.set()
    _ended(tables)
    assert tables(_found("long", end=1_000), None) == (ROWS,)
    assert [(part.topic, part.start) for part in source.read] == [
        ("long", 0),
        ("short", 0),
        ("long", 1),
        ("short", 1),
        ("long", 2),
        ("long", 3),
    ]


def test_what_was_looked_into_is_not_read_again_unless_the_topic_is_another(store: SqlStateStore) -> None:
    source = _OneByOne()
    finder = FirstRowTables(_around(store, source, source__protocol="debezium-json"))
    for found, read in (
        (_found(end=2), [OffsetRange("app", 0, 0, 2)]),
        (_found(end=5), [OffsetRange("app", 0, 2, 5)]),
        (_found(end=5), []),
        (_found(end=5)._replace(topic_id="another"), [OffsetRange("app", 0, 0, 5)]),
    ):
        del source.read[:]
        assert finder.look(found, None, lambda: True)
        assert source.read == read
    assert finder.known("app") == ()


def _stop(around: WorkerContext, _tables: TopicLookUps) -> None:
    around.stop.set()


def _end(_around: WorkerContext, tables: TopicLookUps) -> None:
    tables.end()


@pytest.mark.parametrize("protocol", VALUES)
@pytest.mark.parametrize("end", [_stop, _end])
def test_the_end_of_a_run_ends_look_ups(
    store: SqlStateStore, end: Callable[[WorkerContext, TopicLookUps], None], protocol: str
) -> None:
    source = _Source()
    source.answers.clear()
    around = _around(store, source, source__protocol=protocol)
    tables = TopicLookUps.of(around, seconds=0.0 if end is _end else 60.0)
    tables(_found("long", end=10_000_000), None)
    tables(_found("short"), None)
    assert source.begun.wait(60)
    end(around, tables)
    source.answers.set()
    _ended(tables)
    assert len(source.read) == 1


def test_a_look_up_that_failed_is_shown_until_it_is_made_again(store: SqlStateStore) -> None:
    source = _Source()
    source.fails = SourceUnavailableError("silence")
    tables = TopicLookUps.of(_around(store, source, retry={"for": "1h"}))
    assert tables(_found(), None) == ()
    _ended(tables)
    for _ in range(2):
        with pytest.raises(SourceUnavailableError, match="silence"):
            tables(_found(), None)
    assert tables.under_way is None


@pytest.mark.parametrize("protocol", VALUES)
def test_an_unforeseen_error_in_a_look_up_fails_its_topic_alone(store: SqlStateStore, protocol: str) -> None:
    source = _Source()
    source.fails = ZeroDivisionError("4711 of a row")
    tables = TopicLookUps.of(_around(store, source, source__protocol=protocol))
    tables(_found(), None)
    _ended(tables)
    with pytest.raises(
        TidesinkError, match=r"app: .* ZeroDivisionError at worker/test_table_look_ups"
    ) as failed:
        tables(_found(), None)
    assert "4711" not in str(failed.value)
    source.fails = None
    assert tables(_found("other"), None) == ()
    _ended(tables)
    assert source.read[-1].topic == "other"


@pytest.mark.parametrize(
    ("error", "stuck"), [(SourceUnavailableError("silence"), False), (ConfigError("no such thing"), True)]
)
def test_no_topic_is_looked_into_for_a_failure_that_may_pass(
    store: SqlStateStore, error: Any, *, stuck: bool
) -> None:
    asked: list[bool] = []

    def tables_of(_found: TopicOffsets, read: Any) -> tuple[TableId, ...]:
        asked.append(read is not None)
        return (ROWS,)

    table_tasks = TableTasks(_around(store, _Source()), tables_of)
    table_tasks.follow(Look({"app": _found()}, {}), {})
    (table_task,) = table_tasks
    table_task.fail(error)
    assert table_tasks.newly_stuck() is stuck
    table_tasks.follow(Look({"app": _found()}, {}), {})
    assert asked == [False, stuck]


def test_a_run_to_the_end_waits_for_look_ups(store: SqlStateStore) -> None:
    """Also one of a topic that watermarks alone are in, which leads to no table."""
    source = _Source()
    around = _around(store, source, source__topics=["shop_orders"], batch={"poll-interval": "10ms"})
    report = Worker(around, until="drained", offsets=_Looks(TableId("shop", "orders"))).run()
    assert report.tables == ()
    assert source.read == [OffsetRange("shop_orders", 0, 0, 9)]


def test_a_run_to_the_end_ends_by_look_ups_that_failed(store: SqlStateStore) -> None:
    source = _Source()
    source.fails = SourceUnavailableError("silence")
    settings = {"batch": {"poll-interval": "10ms"}, "retry": {"for": "0s"}}
    around = _around(store, source, source__topics=["shop_orders"], **settings)
    (table,) = Worker(around, until="drained", offsets=_Looks(TableId("shop", "orders"))).run().tables
    assert (table.topic, table.state) == ("shop_orders", "FAILING")
    assert "silence" in str(table.error)


def test_a_topic_whose_first_table_waits_at_once_is_looked_into_at_once(store: SqlStateStore) -> None:
    source = _Source(row_at=3)
    tables = TopicLookUps.of(_around(store, source))
    tables(_found(end=30_000), None)
    _ended(tables)
    assert tables(_found(end=30_000), {0: 3}) == (ROWS,)
    _ended(tables)
    assert source.read == [OffsetRange("app", 0, 0, 20_000), OffsetRange("app", 0, 20_000, 30_000)]


class _OnFailure:
    """Hears that a table failed."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def hear(self, event: WorkerEvent) -> None:
        """Called in the thread of the table's turn."""
        if isinstance(event, TableChanged) and event.status.state == "FAILING":
            self._then()


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [("canal-json", "columns of the table are unknown"), ("debezium-json", "no record with a row")],
)
def test_tables_have_their_turns_beside_a_look_up(store: SqlStateStore, protocol: str, reason: str) -> None:
    """One fails for want of columns while Kafka keeps the look into another topic waiting."""
    source = _Source(slow="shop_slow")
    source.answers.clear()
    topics: dict[str, Any] = {"source__topics": ["shop_ready", "shop_slow"], "source__protocol": protocol}
    if protocol != "canal-json":
        topics["tables"] = [{"name": "shop.ready", "topic": "shop_ready"}]
    around = _around(store, source, **topics)
    around = replace(around, listeners=Listeners((_OnFailure(source.answers.set),)))
    ready = TableId("shop", "ready")
    if protocol == "canal-json":
        around.topics.tables("shop_ready").add([ready])
    report = Worker(around, until="drained", offsets=_Looks(TableId("shop", "slow"), ready)).run()
    assert [(table.table, table.state) for table in report.tables] == [(ready, "FAILING")]
    assert reason in str(report.tables[0].error)
    tags = cast("Any", around.spark.session()).job_tags
    assert tags.keys() == {"tables of topics", str(ready)}  # a stop cancels the jobs of both
    assert len({*tags.values()}) == 1
    assert [part for part in source.read if part.topic == "shop_slow"] == [OffsetRange("shop_slow", 0, 0, 9)]


class _MarkedStore(SqlStateStore):
    """Has Kafka answer once two signs of life were left while it kept a look-up waiting."""

    def __init__(self, url: str, source: _Source) -> None:
        super().__init__(url)
        self._source = source
        self._left = 2

    def save_document(self, kind: str, name: str, document: Any) -> None:
        super().save_document(kind, name, document)
        if kind == "heartbeat" and self._source.begun.is_set() and document["working"]:
            self._left -= 1
            if not self._left:
                self._source.answers.set()


@pytest.mark.parametrize("protocol", VALUES)
def test_signs_of_life_are_left_while_kafka_keeps_a_look_up_waiting(tmp_path: Path, protocol: str) -> None:
    source = _Source()
    source.answers.clear()
    store = _MarkedStore(str(tmp_path / "state.db"), source)
    settings = {"batch": {"poll-interval": "10ms"}, "source__protocol": protocol}
    around = _around(store, source, source__topics=["shop_orders"], **settings)
    around = replace(around, listeners=Listeners((Heartbeat(store, around.config.pipeline, every=0.0),)))
    report = Worker(around, until="drained", offsets=_Looks(TableId("shop", "orders"))).run()
    assert report.tables == ()
    assert source.read == [OffsetRange("shop_orders", 0, 0, 9)]
    assert seconds_since_beat(store, "shop") is None
    store.close()


class _WaitingRegistry(MemorySchemaRegistry):
    """Keeps whoever asks what a topic holds waiting, or fails, and shows nobody a table's schemas."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.asked: list[str] = []
        self.fails: RegistryError | None = None

    def latest(self, subject: str) -> RegisteredSchema:
        self.asked.append(subject)
        assert self.answers.wait(60)
        if self.fails is not None:
            raise self.fails
        return super().latest(subject)

    def versions(self, subject: str) -> list[int]:
        raise RegistryError(f"{subject} is not for you")


# Names that the rule {schema}_{table} leaves open, and one that it does not.
AMBIGUOUS, READY = TableId("shop", "order_items"), TableId("shop", "ready")


def _by_rule(store: SqlStateStore, registry: MemorySchemaRegistry) -> WorkerContext:
    config = right(changed(FLAT_AVRO, target=HTTP, batch={"poll-interval": "10ms"}))
    return worker_context(config, store=store, registry=registry)


def test_tables_have_their_turns_while_the_registry_is_asked_for_one(store: SqlStateStore) -> None:
    registry = _WaitingRegistry()
    registry.register("shop_order_items-value", text_of("id", name=AMBIGUOUS.name))
    around = _by_rule(store, registry)
    around = replace(around, listeners=Listeners((_OnFailure(registry.answers.set),)))
    report = Worker(around, until="drained", offsets=_Looks(AMBIGUOUS, READY)).run()
    assert {table.table: table.state for table in report.tables} == {AMBIGUOUS: "FAILING", READY: "FAILING"}
    assert all("is not for you" in str(table.error) for table in report.tables)
    assert registry.asked == ["shop_order_items-value"]


def test_a_registry_that_gives_no_answer_fails_the_topics_it_was_asked_for(store: SqlStateStore) -> None:
    registry = _WaitingRegistry()
    registry.answers.set()
    registry.fails = RegistryUnavailableError("silence")
    report = Worker(_by_rule(store, registry), until="drained", offsets=_Looks(AMBIGUOUS, READY)).run()
    errors = {table.topic: str(table.error) for table in report.tables}
    assert "silence" in errors["shop_order_items"]
    assert "is not for you" in errors["shop_ready"]
    assert registry.asked == ["shop_order_items-value"]


def test_a_stop_does_not_wait_for_a_registry_that_hangs(store: SqlStateStore) -> None:
    """It accepts connections and never answers; its time-out is far longer than the test waits."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as pool:
        port = silent.getsockname()[1]
        settings = {"urls": f"http://127.0.0.1:{port}", "timeout": "10m"}
        config = right(changed(FLAT_AVRO, target=HTTP, source__schema_registry=settings))
        around = worker_context(config, store=store)
        around = replace(around, registry=config.source.open_registry(around.stop))
        run = pool.submit(Worker(around, offsets=_Looks(AMBIGUOUS)).run)
        connection, _ = silent.accept()
        with connection:
            around.stop.set()
            assert run.result(60).interrupted


def test_a_stop_that_cuts_off_look_ups_alone_abandons_no_batch(store: SqlStateStore) -> None:
    source = _Source()
    source.answers.clear()
    around = _around(store, source, source__topics=["shop_orders"], batch={"poll-interval": "10ms"})
    # Spark's answer to the cancelled job.
    cast("Any", around.spark.session()).sparkContext.cancelJobsWithTag = lambda _tag: source.answers.set()
    with ThreadPoolExecutor() as pool:
        run = pool.submit(Worker(around, offsets=_Looks(TableId("shop", "orders"))).run)
        assert source.begun.wait(60)
        around.stop.set(signal.SIGTERM)
        around.stop.hurry()
        report = run.result(60)
    assert (report.abandoned, report.exit_code) == (False, 0)
