"""What both executors promise: the same results of the same tasks, wherever these run."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tests.unit.sinks.batch.test_range_tasks import OLD, Topic, shape
from tidesink.errors import SourceError, SourceUnavailableError, TidesinkError, TransientTargetError
from tidesink.events import Op, TableId
from tidesink.sinks.batch.reports import KafkaRead
from tidesink.sinks.batch.source import KafkaSource, translated_read_errors
from tidesink.sinks.batch.tasks import RangeTask, RangeTooLargeError
from tidesink.sinks.decode.records import BAD, EventRules
from tidesink.sinks.decode.target_rows import TargetRows
from tidesink.sinks.jobs.executor import Executor, SparkExecutor, check_counted
from tidesink.sinks.jobs.local import LocalExecutor
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.laws.counts import TopicPartition
from tidesink.sinks.letters.tasks import FAULT_COLUMNS
from tidesink.sinks.spark.attempts import task_attempt
from tidesink.sinks.spark.payloads import unpack
from tidesink.sinks.targets.base import StagedPart, TaskRows

if TYPE_CHECKING:
    pass

TABLE: Final = TableId("shop", "orders")
Fetched = Callable[[FetchRange], Iterator[pa.RecordBatch]]


def _no_spark() -> SparkExecutor:
    raise AssertionError("the batch needs no Spark")


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def executor(request: pytest.FixtureRequest) -> Executor:
    """Each executor. The local one has no session to fall back to."""
    if request.param == "local":
        return LocalExecutor(_no_spark)
    spark = request.getfixturevalue("spark")
    return SparkExecutor(lambda: spark)


def _topic() -> Topic:
    """Rows of which one is written twice and one is deleted, a watermark, DDL, and a bad record."""
    topic = Topic()
    for key, name in ((1, "a"), (2, "b"), (1, "c")):
        topic.write(OLD, {"id": key, "name": name})
    topic.write(OLD, {"id": 2, "name": "b"}, Op.DELETE)
    topic.send(None, b"\x02" + (90).to_bytes(8, "big"))
    topic.ddl("ALTER TABLE orders ADD c INT", 7)
    topic.send(b"\0\0\0\0", b"?")
    return topic


def _reader(topic: Topic) -> KafkaSource:
    """Reads a topic's records, and those of partition 1: the same ones, with this number."""
    batches = {0: topic.batches(3), 1: [as_records([replace(one, partition=1) for one in topic.messages])]}

    def fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        yield from batches[wanted.partition]

    return KafkaSource(fetch)


def _failing(error: Exception) -> KafkaSource:
    def fetch(_wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        raise error
        yield

    return KafkaSource(fetch)


def _task(topic: Topic, *, partitions: int = 1) -> RangeTask:
    task = topic.task(TargetRows(shape(OLD)))
    return replace(task, ranges=tuple(FetchRange("t", number, 0, 100) for number in range(partitions)))


def _rows(rows: TaskRows | None, *columns: str) -> list[tuple[Any, ...]]:
    """Columns of the rows in payloads, read by a task."""
    names = list(columns)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in unpack(batches):
            yield batch.select(names)

    assert rows is not None
    ddl = {"_op": "string", "_offset": "bigint", "_partition": "int", "_commit_ts": "bigint"}
    return sorted(rows.run(read, ", ".join(f"{name} {ddl[name]}" for name in names)), key=str)


def test_rows_are_reduced_and_all_events_are_counted(executor: Executor) -> None:
    topic = _topic()
    results = executor.run(_task(topic), _reader(topic), checkpoint=True)
    check_counted(results, TABLE)
    counts = results.summary.counts
    assert (counts.read, counts.upserts, counts.deletes, counts.superseded) == (7, 1, 1, 2)
    assert (counts.watermarks, counts.ddl, counts.bad) == (1, 1, 1)
    size = sum(len(message.key or b"") + len(message.value or b"") for message in topic.messages)
    assert results.read._replace(decoded=0) == KafkaRead(7, size)
    assert (results.staged, len(results.hashes), results.row_by_row_records) == (None, 2, 1)
    assert _rows(results.payloads, "_op", "_offset") == [("bad", 6), ("delete", 3), ("upsert", 2)]
    (ddl,) = results.summary.ddl
    assert (ddl.place, ddl.offset, ddl.statement.query) == (
        TopicPartition("t", 0),
        5,
        "ALTER TABLE orders ADD c INT",
    )
    results.release()


def test_a_task_runs_on_the_bad_records_alone(executor: Executor) -> None:
    topic = _topic()
    results = executor.run(_task(topic), _reader(topic), checkpoint=False)

    def faults(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            errors = batch.column("_detail").field("error")
            yield pa.record_batch({"offset": batch.column("_offset"), "error": errors})

    bad = results.rows_of(BAD, FAULT_COLUMNS)
    assert bad.run(faults, "offset bigint, error string") == [(6, "FramingError")]
    results.release()


def test_each_range_is_reduced_on_its_own_if_its_keys_are_apart(executor: Executor) -> None:
    topic, other = _topic(), Topic()
    other.write(OLD, {"id": 9, "name": "z"})
    batches = [topic.batches(100), [as_records([replace(one, partition=1) for one in other.messages])]]

    def fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        yield from batches[wanted.partition]

    task = replace(_task(topic, partitions=2), plan=_shared_plan(topic, other))
    results = executor.run(task, KafkaSource(fetch), checkpoint=False)
    assert _rows(results.payloads, "_partition", "_op") == [
        (0, "bad"),
        (0, "delete"),
        (0, "upsert"),
        (1, "upsert"),
    ]
    assert results.summary.places.keys() == {TopicPartition("t", 0), TopicPartition("t", 1)}
    results.release()


def _shared_plan(topic: Topic, other: Topic) -> Any:
    """The plan of a topic that also knows the schemas of another: they are the same ones."""
    assert topic.schemas("value") == other.schemas("value")
    return _task(topic).plan


def _sink(refuses: str | None = None) -> Any:
    """A sink that is pickled by value, because Spark's Python does not have this module."""

    def stage(rows: Iterator[pa.RecordBatch]) -> StagedPart:
        count = sum(batch.num_rows for batch in rows)
        return StagedPart(task_attempt().attempt, 0 if refuses else count, refuses)

    return stage


def test_rows_that_a_task_stages_are_not_packed(executor: Executor) -> None:
    topic = _topic()
    results = executor.run(replace(_task(topic), sink=_sink()), _reader(topic), checkpoint=False)
    assert results.staged is not None
    assert [part.rows for part in results.staged] == [2]
    assert results.payloads is None
    assert (results.summary.counts.rows, results.summary.counts.bad) == (2, 1)
    bad = results.rows_of(BAD, ["_offset"])
    assert bad.run(_same, "_offset bigint") == [(6,)]
    results.release()


def _same(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return batches


def test_a_range_whose_rows_cannot_be_staged_is_read_again_without_the_sink(executor: Executor) -> None:
    topic = _topic()
    results = executor.run(replace(_task(topic), sink=_sink("full")), _reader(topic), checkpoint=False)
    assert results.staged is None
    assert _rows(results.payloads, "_op") == [("bad",), ("delete",), ("upsert",)]
    results.release()


@pytest.mark.parametrize("executor", [pytest.param("spark", marks=pytest.mark.spark)], indirect=True)
def test_a_range_that_is_too_large_is_named(executor: Executor) -> None:
    topic = _topic()
    with pytest.raises(RangeTooLargeError, match=r"^t\[0\].* of one partition"):
        executor.run(replace(_task(topic), most_bytes=10), _reader(topic), checkpoint=False)


_FAILURES: Final[dict[str, tuple[Exception, type[TidesinkError], str]]] = {
    "tidesink's": (SourceError("expired", topic="t", partition=0), SourceError, r"^t\[0\].*expired"),
    "a disk is full": (
        OSError(errno.ENOSPC, "s3cr3t"),
        SourceUnavailableError,
        r"host ran out of resources \(OSError: No space left on device\)",
    ),
    "a fault": (ValueError("s3cr3t"), SourceError, r"of the batch failed \(.*Report this error"),
}


@pytest.mark.parametrize(("error", "kind", "text"), _FAILURES.values(), ids=_FAILURES.keys())
def test_a_task_that_fails_raises_an_error_of_tidesink(
    executor: Executor, error: Exception, kind: type[TidesinkError], text: str
) -> None:
    topic = _topic()
    with pytest.raises(kind, match=text) as raised, translated_read_errors("t"):
        executor.run(_task(topic), _failing(error), checkpoint=False)
    assert type(raised.value) is kind
    assert "s3cr3t" not in str(raised.value)


def test_a_task_on_the_rows_that_fails_raises_its_error(executor: Executor) -> None:
    topic = _topic()
    results = executor.run(_task(topic), _reader(topic), checkpoint=False)

    def fails(_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise TransientTargetError("busy", table="a.b")
        yield

    assert results.payloads is not None
    with pytest.raises(TransientTargetError, match="busy"), translated_read_errors("t"):
        results.payloads.run(fails, "a bigint")
    results.release()


def _keys_in_two_partitions(rules: EventRules) -> tuple[RangeTask, KafkaSource]:
    """Rows of the same keys in two partitions: key 1 is newest in the first, key 2 in the second.

    Key 3 is in one partition. At commit_ts 40 both partitions have a row of key 4, one of them deleted.
    """
    topics = Topic(), Topic()
    for number, key, name, moment in (
        (0, 1, "a", 10),
        (1, 1, "b", 5),
        (0, 2, "c", 10),
        (1, 2, "d", 20),
        (0, 3, "e", 30),
        (1, 3, "f", 31),
        (0, 4, "g", 40),
    ):
        topics[number].write(OLD, {"id": key, "name": name}, at=moment)
    topics[1].write(OLD, {"id": 4, "name": "g"}, Op.DELETE, at=40)
    topics[1].send(b"bad", b"worse")
    records = [
        as_records([replace(one, partition=number) for one in topic.messages])
        for number, topic in enumerate(topics)
    ]

    def fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        yield records[wanted.partition]

    task = _task(topics[0], partitions=2)
    return replace(task, plan=replace(task.plan, rules=rules)), KafkaSource(fetch)


def _applied(results: Any) -> list[tuple[Any, ...]]:
    frame = results.frame if results.payloads is None else None
    columns = ("_op", "_commit_ts", "_partition")
    if frame is not None:
        return [tuple(row) for row in frame.select(*columns).collect()]
    return _rows(results.payloads, *columns)


_BY_RULES: Final = {
    "in the source's order": (
        EventRules(sequenced=True),
        [("bad", None, 1), ("upsert", 10, 0), ("upsert", 20, 1), ("upsert", 31, 1), ("upsert", 40, 0)],
        (4, 0, 4),
    ),
    "as versions": (
        EventRules(versions=True),
        [
            ("bad", None, 1),
            ("upsert", 5, 1),
            ("upsert", 10, 0),
            ("upsert", 10, 0),
            ("upsert", 20, 1),
            ("upsert", 30, 0),
            ("upsert", 31, 1),
            ("upsert", 40, 0),
        ],
        (7, 0, 1),
    ),
}


@pytest.mark.parametrize(("rules", "expected", "counted"), _BY_RULES.values(), ids=_BY_RULES.keys())
def test_ranges_with_the_same_keys_are_reduced_together(
    executor: Executor,
    rules: EventRules,
    expected: list[tuple[Any, ...]],
    counted: tuple[int, int, int],
) -> None:
    task, reader = _keys_in_two_partitions(rules)
    results = executor.run(task, reader, checkpoint=True)
    found = sorted(_applied(results), key=str)
    assert found == sorted(expected, key=str)
    counts = results.summary.counts
    assert (counts.upserts, counts.deletes, counts.superseded) == counted
    assert (counts.read, counts.bad, results.summary.mixed_keys) == (9, 1, ())
    results.release()


def test_keys_in_two_partitions_are_named_in_kafkas_order(executor: Executor) -> None:
    results = executor.run(*_keys_in_two_partitions(EventRules()), checkpoint=False)
    assert set(results.summary.mixed_keys) <= {f'{{"id":{number}}}' for number in (1, 2, 3, 4)}
    assert len(results.summary.mixed_keys) == 3
    results.release()


def test_a_batch_whose_reader_has_no_local_form_runs_in_spark() -> None:
    class InSpark:
        """Results of a session that the test does not have."""

    asked = list[tuple[object, bool]]()

    class Spark:
        def run(self, _task: RangeTask, reader: object, *, checkpoint: bool) -> Any:
            asked.append((reader, checkpoint))
            return InSpark()

    local = LocalExecutor(lambda: cast("Any", Spark()))
    reader = cast("Any", object())
    assert isinstance(local.run(_task(_topic()), reader, checkpoint=True), InSpark)
    assert asked == [(reader, True)]


def test_each_try_in_this_process_has_an_attempt_of_its_own() -> None:
    attempts = list[int]()

    def sink(rows: Iterable[pa.RecordBatch]) -> StagedPart:
        attempts.append(task_attempt().attempt)
        return StagedPart(attempts[-1], sum(batch.num_rows for batch in rows))

    topic, executor = _topic(), LocalExecutor(_no_spark)
    for _ in range(2):
        executor.run(replace(_task(topic), sink=sink), _reader(topic), checkpoint=False)
    # Spark's ids are not negative. Outside of a task there is no attempt.
    assert len(set(attempts)) == len(attempts) == 2
    assert max(attempts) < 0
    assert task_attempt() == (0, 0)


class _Recorder:
    """Takes the batches that are too large for this process, in place of Spark."""

    def __init__(self) -> None:
        self.tasks = list[RangeTask]()

    def run(self, task: RangeTask, reader: object, *, checkpoint: bool) -> Any:  # noqa: ARG002
        self.tasks.append(task)


def test_a_batch_that_is_too_large_for_this_process_goes_to_spark() -> None:
    topic, spark = _topic(), _Recorder()
    task = replace(_task(topic), most_bytes=1)
    LocalExecutor(lambda: cast("Any", spark)).run(task, _reader(topic), checkpoint=False)
    assert spark.tasks == [task]


def test_the_first_range_that_fails_ends_the_reading() -> None:
    """With a broker that does not answer, each range waits for a minute."""
    read = list[int]()

    def fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        read.append(wanted.partition)
        raise SourceUnavailableError("no broker answers")
        yield

    with pytest.raises(SourceUnavailableError):
        LocalExecutor(_no_spark).run(_task(_topic(), partitions=3), KafkaSource(fetch), checkpoint=False)
    assert read == [0]


def test_the_table_s_own_decoder_fills_no_caches() -> None:
    """It lives as long as the table's plan, and a worker has hundreds of tables."""
    topic = _topic()
    task = _task(topic)
    before = {*task.plan.decoder.__dict__}
    LocalExecutor(_no_spark).run(task, _reader(topic), checkpoint=False).release()
    assert {*task.plan.decoder.__dict__} == before
