"""Whether a log has the record that was read, by a broker in this process, whose log has leader epoch 0.

``tests/e2e/test_cut_logs.py`` has two real brokers and an unclean election.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition

from tests.memory_target import MemoryTarget
from tests.unit.config.samples import CANAL_JSON, right
from tests.unit.sinks.worker.bed import worker_context
from tests.worker_contexts import no_fetch
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import BrokerUnavailableError, SourceError, StopRequestedError
from tidesink.events import TableId
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.jobs.base import BatchOutcome, BatchPlan, Hold, Reduction, Settled, next_progress
from tidesink.sinks.jobs.changes import Changes
from tidesink.sinks.jobs.run import BatchRun
from tidesink.sinks.kafka.fetch import FetchRange, fetch, last_record
from tidesink.sinks.kafka.leader_epochs import MOST_DROPS, CheckedLogs, LeaderEpochs, _Look, follows
from tidesink.sinks.kafka.offsets import OffsetRange, PartitionOffsets, TopicOffsets
from tidesink.sinks.kafka.rewind import rewound_offsets
from tidesink.sinks.laws import counts as batch_counts
from tidesink.sinks.laws.bound import topic_after
from tidesink.sinks.laws.counts import BatchSummary, PartitionSummary
from tidesink.sinks.letters.topic import Chosen
from tidesink.sinks.runtime.context import may_pass
from tidesink.sinks.runtime.control import NOTHING_ASKED, Pauses, RewindControl
from tidesink.sinks.runtime.shared_reads import TableRecords, Topics
from tidesink.sinks.schema_changes.decisions import SettledNames
from tidesink.sinks.schema_changes.row_ddl import RowDecision
from tidesink.sinks.state.progress import (
    LastRecord,
    PartitionProgress,
    Progress,
    TopicProgress,
    from_json,
    to_json,
)
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.continuity import Continuity
from tidesink.sinks.worker.counters import TableCounters
from tidesink.sinks.worker.open_table import OpenTable
from tidesink.sinks.worker.replay import ReplayTask
from tidesink.sinks.worker.table_task import TableTask

TABLE: Final = TableId("shop", "orders")
COUNT: Final = 40
# No broker: a question to it is an error at once.
NOWHERE: Final = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """librdkafka's own broker, with a topic of one partition."""
    producer = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    for number in range(COUNT):
        producer.produce("t", value=str(number), partition=0)
    assert producer.flush(60) == 0
    (broker,) = producer.list_topics(timeout=60).brokers.values()
    yield f"{broker.host}:{broker.port}"
    producer.flush(60)  # the broker is there as long as the producer


@pytest.fixture
def log(brokers: str) -> LeaderEpochs:
    return LeaderEpochs({"bootstrap.servers": brokers})


@pytest.fixture
def nobody() -> LeaderEpochs:
    """Fails whoever asks it."""
    return LeaderEpochs(NOWHERE, is_stopped=lambda: True)


def found(*epochs: int, earliest: int = 0, end: int = COUNT) -> TopicOffsets:
    """The topic, whose partitions have leaders of these epochs; none: they report no epoch."""
    parts = {number: PartitionOffsets(earliest, end) for number in range(max(1, len(epochs)))}
    return TopicOffsets("t", "id", parts, leader_epochs=dict(enumerate(epochs)))


def test_the_record_at_an_end_is_found_again(log: LeaderEpochs) -> None:
    last = log.last(found(), {0: 10})
    assert last == {0: LastRecord(9, 0)}
    assert log.cuts(found(1), last) == {}
    assert log.last(found(), {0: COUNT}) == {0: LastRecord(COUNT - 1, 0)}
    assert log.last(found(), {0: 1}) == {0: LastRecord(0, 0)}
    # Nothing to read, a partition that is not there, an end that a broker does not know of.
    assert log.last(found(), {0: 0, 7: 5}) == {}
    assert log.last(found(), {0: COUNT + 1}) == {}


def test_a_fetch_has_the_leader_epoch_of_each_record(brokers: str) -> None:
    batches = [*fetch(FetchRange("t", 0, 5, COUNT), {"bootstrap.servers": brokers})]
    assert {epoch for one in batches for epoch in one.column("leader_epoch").to_pylist()} == {0}
    assert last_record(batches[-1]) == LastRecord(COUNT - 1, 0)
    # Records from before Kafka 0.11, and columns without epochs.
    names = pa.schema([("offset", pa.int64()), ("leader_epoch", pa.int32())])
    assert last_record(pa.RecordBatch.from_pylist([{"offset": 3}], names)) is None
    assert last_record(pa.record_batch({"offset": [3]})) is None
    assert last_record(pa.RecordBatch.from_pylist([], names)) is None


def test_what_other_checks_report_is_left_to_them(nobody: LeaderEpochs) -> None:
    for record in (LastRecord(COUNT, 4), LastRecord(COUNT + 9, 4)):
        assert nobody.cuts(found(9), {0: record}) == {}
    assert nobody.cuts(found(9, earliest=20), {0: LastRecord(19, 4), 3: LastRecord(1, 4)}) == {}


def test_another_record_at_the_offset_is_a_cut(log: LeaderEpochs) -> None:
    """The log was written by an earlier leader than the one that is known: no order of events gives that."""
    # All records are of epochs up to the known one, so that nothing before the record is in doubt.
    assert log.cuts(found(9), {0: LastRecord(30, 4)}) == {0: 30}


def test_without_a_record_at_the_offset_the_leader_is_asked(brokers: str) -> None:
    look = _Look({"bootstrap.servers": brokers}, "t", lambda: False, 60.0)
    assert look.ended({0: LastRecord(30, 0)}) == set()
    look.close()


def test_nobody_is_asked_before_a_partition_has_a_new_leader(nobody: LeaderEpochs) -> None:
    logs, known = CheckedLogs(nobody), {0: LastRecord(9, 3), 1: LastRecord(5, 2)}
    assert logs.cuts(found(3, 2), known) == {}
    # A service without leader epochs, and a partition of which nothing is known.
    for epochs in ((), (3, 2, 8)):
        assert logs.cuts(found(*epochs), known) == {}
    # An answer from before, or epochs that decrease.
    with pytest.raises(BrokerUnavailableError):
        logs.cuts(found(2, 2), known)
    with pytest.raises(BrokerUnavailableError):
        logs.cuts(found(3, 3), known)
    # What was not answered is asked again.
    with pytest.raises(BrokerUnavailableError):
        logs.cuts(found(3, 3), known)
    assert CheckedLogs(None).cuts(found(9), known) == {}


def test_a_record_is_looked_up_once_for_each_leader(brokers: str) -> None:
    stopped = list[int]()
    log = LeaderEpochs({"bootstrap.servers": brokers}, is_stopped=lambda: bool(stopped))
    logs, known = CheckedLogs(log), {0: LastRecord(9, 0)}
    assert logs.cuts(found(1), known) == {}
    stopped.append(1)
    # Neither for this table, nor for another that has the same record.
    assert logs.cuts(found(1), known) == {}
    assert logs.cuts(found(1), {0: LastRecord(20, 0)}) == {}
    assert CheckedLogs(log).cuts(found(1), known) == {}
    for again, record in ((CheckedLogs(log), LastRecord(20, 0)), (logs, known[0])):
        with pytest.raises(BrokerUnavailableError, match="A stop was requested"):
            again.cuts(found(2), {0: record})
    # Nor does what was seen of a topic hold for one that was created again under its name.
    with pytest.raises(BrokerUnavailableError, match="A stop was requested"):
        logs.cuts(found(1)._replace(topic_id="another"), known)


def test_a_log_that_ends_before_the_record_is_checked_once_it_has_grown(nobody: LeaderEpochs) -> None:
    """It was cut, and nobody has written since, or a leader that lags has answered."""
    logs, known = CheckedLogs(nobody), {0: LastRecord(9, 3)}
    for end in (5, 9):
        assert logs.cuts(found(4, end=end), known) == {}
    with pytest.raises(BrokerUnavailableError):
        logs.cuts(found(4), known)


@pytest.mark.parametrize(
    ("epochs", "known", "read", "counts"),
    [
        ((2,), LastRecord(99, 1), LastRecord(149, 1), True),
        ((2,), LastRecord(99, 1), LastRecord(149, 2), True),
        # A leader that was elected after the check.
        ((2,), LastRecord(99, 1), LastRecord(149, 3), False),
        # A service that reports other epochs of leaders than of records: the known record was looked up.
        ((2,), LastRecord(99, 7), LastRecord(149, 7), True),
        ((2,), LastRecord(99, 7), LastRecord(149, 8), False),
        # The metadata is of an older state.
        ((2,), LastRecord(99, 7), LastRecord(149, 2), False),
        # Epochs never decrease along a log.
        ((2,), LastRecord(99, 1), LastRecord(149, 0), False),
        # Rows that waited for a later bound are read again.
        ((2,), LastRecord(99, 2), LastRecord(60, 1), True),
        # Nothing was read, nothing is known, and nothing is reported of the leader.
        ((2,), LastRecord(99, 5), LastRecord(99, 5), True),
        ((2,), None, LastRecord(149, 3), True),
        ((), LastRecord(99, 1), LastRecord(149, 3), True),
    ],
)
def test_records_of_a_leader_elected_after_the_check_do_not_count(
    epochs: Sequence[int], known: LastRecord | None, read: LastRecord, *, counts: bool
) -> None:
    """The log may have been cut before the known record, between the check and the read."""
    assert follows(found(*epochs), {} if known is None else {0: known}, {0: read}) == counts
    assert follows(found(*epochs), {} if known is None else {0: known}, {})


@pytest.mark.parametrize("read", [LastRecord(149, 2), LastRecord(149, 8)])
def test_records_that_never_follow_are_an_error_that_says_what_to_do(read: LastRecord) -> None:
    logs, known = CheckedLogs(None), {0: LastRecord(99, 7)}
    for epoch in range(3):  # as long as leaders change, the next check may differ
        assert [logs.follows(found(epoch), known, {0: read}) for _ in range(MOST_DROPS - 1)] == [False] * 19
    assert logs.follows(found(2), known, known)
    assert [logs.follows(found(2), known, {0: read}) for _ in range(MOST_DROPS - 1)] == [False] * 19
    for _ in range(2):
        with pytest.raises(SourceError) as caught:
            logs.follows(found(2), known, {0: read})
        text = str(caught.value)
        assert f"offset 149 has leader epoch {read.epoch}, and the partition's leader reports epoch 2" in text
        assert "tidesink offsets rewind TABLE --to-offset 0=99" in text
        assert not may_pass(caught.value)


class _Records:
    """A consumer that gives a record of partition 0 whenever it is asked, and none of partition 1."""

    def __init__(self) -> None:
        self.assigned = [0, 1]

    def assign(self, _places: Sequence[TopicPartition]) -> None:
        self.assigned = [0, 1]

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        self.assigned = [number for number in self.assigned if number not in {p.partition for p in places}]

    def consume(self, _most: int, _seconds: float) -> list[Any]:
        message = SimpleNamespace(topic=lambda: "t", partition=lambda: 0, error=lambda: None)
        return [message] * (0 in self.assigned)


@pytest.mark.parametrize("answers", [True, False])
def test_a_partition_without_an_answer_ends_the_look_whatever_others_give(*, answers: bool) -> None:
    look = _Look(NOWHERE, "t", lambda: False, 0.3)
    consumer = cast("Any", _Records())
    met = list[int]()

    def read() -> None:
        for message in look._messages(consumer, [TopicPartition("t", number, 0) for number in (0, 1)]):
            met.append(message.partition())
            if answers:
                look._done(consumer, 0)

    with pytest.raises(BrokerUnavailableError, match="The partition's leader did not answer") as caught:
        read()
    assert caught.value.context["partition"] == (1 if answers else 0)
    assert len(met) == 1 or not answers
    look.close()


def test_a_broker_that_is_down_is_an_error_in_time() -> None:
    with pytest.raises(BrokerUnavailableError, match="The partition's leader did not answer"):
        LeaderEpochs(NOWHERE, seconds=0.2).cuts(found(9), {0: LastRecord(9, 1)})


def test_a_topic_that_was_deleted_is_named(brokers: str) -> None:
    log = LeaderEpochs({"bootstrap.servers": brokers})
    gone = found(0, 0, 0, 0, 0, 0, 0, 0, 0)
    with pytest.raises(BrokerUnavailableError, match="The topic was deleted") as caught:
        log.last(gone, {8: 5})
    assert caught.value.context["topic"] == "t"


# What is kept


def _progress(at: PartitionProgress) -> Progress:
    return Progress(TABLE, "shop", 1, 1, {"t": TopicProgress("t", "id", {0: at})})


def test_progress_keeps_the_record_and_leaves_out_what_is_none() -> None:
    for again in (None, 9):
        for last in (None, LastRecord(4, 7)):
            progress = _progress(PartitionProgress(5, 5, 3, None, again, last))
            assert from_json(to_json(progress)) == progress
    plain = to_json(_progress(PartitionProgress(5, 5)))
    assert "[5,5,null,null]" in plain
    assert "[5,5,null,null,9]" in to_json(_progress(PartitionProgress(5, 5, again_to=9)))


def _after(
    before: Progress, end: int, *read: Mapping[int, LastRecord], summary: PartitionSummary | None = None
) -> PartitionProgress:
    return topic_after(before, "t", "id", {0: (end, summary)}, None, *read).partitions[0]


def test_a_batch_brings_a_newer_record_and_a_rewind_forgets_it() -> None:
    before = _progress(PartitionProgress(100, 100, last=LastRecord(99, 1)))

    def after(end: int, *read: Mapping[int, LastRecord]) -> LastRecord | None:
        return _after(before, end, *read).last

    assert after(150, {0: LastRecord(149, 2)}) == LastRecord(149, 2)
    assert after(150, {0: LastRecord(120, 2)}, {0: LastRecord(149, 2)}, {}) == LastRecord(149, 2)
    assert after(150, {}) == LastRecord(99, 1)
    assert after(100, {}) == LastRecord(99, 1)
    assert after(90, {}) is None
    assert after(20, {}) is None
    summary = PartitionSummary(1, 140, last=LastRecord(140, 1))
    assert _after(before, 150, summary=summary).last == LastRecord(140, 1)


@pytest.mark.parametrize("passed", [None, 49])
def test_a_batch_that_ends_early_keeps_no_record_behind_its_end(passed: int | None) -> None:
    """It ends before a bad record, a truncate, at half of its range, or at a watermark that is the bound."""
    before = Progress(TABLE, "shop", 1, 1, {})
    end = 50 if passed is None else 100
    read = LastRecord(40, 5) if passed is None else LastRecord(49, 5)
    summary = PartitionSummary(1, 49, passed=passed, last=read)
    at = _after(before, end, {0: LastRecord(99, 5)}, summary=summary)
    assert (at.next_offset, at.last) == (50, read)
    assert _after(before, end, {0: LastRecord(99, 5)}).last == (None if passed is None else LastRecord(99, 5))


# Whom it stops


def _context(log: LeaderEpochs, folder: Path) -> Any:
    store = SqlStateStore(str(folder / "state.db"))
    config = right(CANAL_JSON)
    topics = Topics(config.pipeline, KafkaSource(no_fetch), store, ask=lambda: cast("Any", None), log=log)
    return replace(worker_context(config, store=store), topics=topics)


def _checks(log: LeaderEpochs, folder: Path) -> Continuity:
    context = _context(log, folder)
    return Continuity(context, "t", context.config.table_config(TABLE))


def _at(next_offset: int, last: LastRecord | None) -> TopicProgress:
    return TopicProgress("t", "id", {0: PartitionProgress(next_offset, next_offset, last=last)})


def test_a_cut_is_an_error_whose_advice_a_rewind_takes(log: LeaderEpochs, tmp_path: Path) -> None:
    checks, progress = _checks(log, tmp_path), _at(35, LastRecord(30, 4))
    with pytest.raises(SourceError, match="was cut and has grown again") as caught:
        checks.check_topic(progress, found(9))
    text = str(caught.value)
    assert "offset 30, which was read under leader epoch 4" in text
    for words in (
        "tidesink offsets rewind TABLE --to-offset 0=30",
        "tidesink resume TABLE",
        "tidesink resync TABLE",
    ):
        assert words in text
    settings = right(CANAL_JSON).table_config(TABLE)
    assert rewound_offsets(progress, found(9), {0: 30}, settings) == {0: 30}


def test_a_cut_behind_what_is_applied_is_no_loss(
    log: LeaderEpochs, nobody: LeaderEpochs, tmp_path: Path
) -> None:
    # A bound of cuts has moved the offset back, before the record that was read last.
    assert _checks(nobody, tmp_path).check_topic(_at(20, LastRecord(30, 4)), found(9))
    # Records that went by without a commit are read again.
    checks, progress = _checks(log, tmp_path), _at(20, LastRecord(15, 0))
    assert not checks.check_topic(progress, found(9), passed={0: LastRecord(30, 4)})
    assert checks.check_topic(progress, found(9))


class _Shared(TableRecords):
    """A shared read that ends with another table's record."""

    def __init__(self, last: LastRecord) -> None:
        self.commits = False
        self._kept = cast("Any", SimpleNamespace(last={0: last}))

    def concern(self) -> bool:
        return False


def _task(log: LeaderEpochs, folder: Path, at: TopicProgress) -> TableTask:
    task = TableTask(replace(_context(log, folder), target=MemoryTarget()), "t", TABLE)
    task.opened.hold = Hold(cast("Any", None), 1, Progress(TABLE, "shop", 1, 1, {"t": at}))
    task.opened.decoding = cast("Any", SimpleNamespace(row_ddl=lambda: ()))
    return task


def test_records_that_go_by_are_known_to_the_batch_behind_them(log: LeaderEpochs, tmp_path: Path) -> None:
    """Also to one that reads nothing, as a part of a snapshot: it commits that they went by."""
    at = _at(10, LastRecord(9, 0))
    task = _task(log, tmp_path, at)
    plan = BatchPlan((OffsetRange("t", 0, 10, 20),), found(1))
    # They are of a leader that was elected after the check.
    assert task.reading.pass_by(plan, _Shared(LastRecord(19, 2)))
    assert task.reading.next_offsets() == {0: 10}
    assert task.reading.pass_by(plan, _Shared(LastRecord(19, 1)))
    assert task.reading.next_offsets() == {0: 20}
    batch_plan = task.reading.after_skipped(BatchPlan((OffsetRange("t", 0, 20, 20),), found(1)))
    after = next_progress(task.runner.hold, batch_plan).topics["t"].partitions[0]
    assert (after.next_offset, after.last) == (20, LastRecord(19, 1))


@pytest.mark.parametrize(("epoch", "counts"), [(0, True), (1, True), (2, False)])
def test_a_batch_that_was_read_under_a_new_leader_is_not_applied(
    log: LeaderEpochs, tmp_path: Path, epoch: int, *, counts: bool
) -> None:
    task = _task(log, tmp_path, _at(10, LastRecord(9, 0)))
    job, reduction = _read(task, BatchPlan((OffsetRange("t", 0, 10, 20),), found(1)), LastRecord(19, epoch))
    services = task.runner.services(job)
    run = BatchRun(job, task.runner.hold, services)
    assert run.follows(job.progress(reduction, task.runner.hold, services)) == counts
    if not counts:
        outcome = run.applied(job, reduction)
        assert (outcome.progress, outcome.account) == (task.runner.hold.progress, None)


def _read(task: TableTask, plan: BatchPlan, last: LastRecord) -> tuple[Changes, Reduction]:
    """A batch of changes that was read, and whose last record is known."""
    job = Changes(task.reading.after_skipped(plan), KafkaSource(no_fetch))
    read = PartitionSummary(plan.ranges[0].start, last.offset, last=last)
    summary = BatchSummary(places={batch_counts.TopicPartition("t", 0): read})
    results = cast("Any", SimpleNamespace(summary=summary))
    return job, Reduction(job.plan, Settled(SettledNames(), RowDecision()), results)


def test_batches_that_never_follow_stop_the_table_and_a_rewind_has_it_go_on(
    log: LeaderEpochs, tmp_path: Path
) -> None:
    """The metadata of the cluster is of an older state: the leader's epoch is less than the record's."""
    at = _at(100, LastRecord(99, 7))
    task = _task(log, tmp_path, at)
    plan = BatchPlan((OffsetRange("t", 0, 100, 150),), found(2, end=150))

    def applied() -> BatchOutcome:
        job, reduction = _read(task, plan, LastRecord(149, 2))
        return BatchRun(job, task.runner.hold, task.runner.services(job)).applied(job, reduction)

    for _ in range(MOST_DROPS - 2):
        assert applied().account is None
    assert task.reading.pass_by(plan, _Shared(LastRecord(149, 2)))
    assert task.reading.next_offsets() == {0: 100}
    with pytest.raises(SourceError, match="were dropped each time"):
        applied()
    with pytest.raises(SourceError, match="were dropped each time"):
        task.reading.pass_by(plan, _Shared(LastRecord(149, 2)))
    settings = right(CANAL_JSON).table_config(TABLE)
    (back,) = rewound_offsets(at, found(2, end=150), {0: 99}, settings).items()
    before = _progress(at.partitions[0])
    rewound = topic_after(before, "t", "id", {back[0]: (back[1], None)}, None)
    assert follows(found(2), rewound.last_records, {0: LastRecord(149, 2)})


def test_a_rewind_has_ddl_read_again_before_its_commit(log: LeaderEpochs, tmp_path: Path) -> None:
    """Also that which was read ahead of the table; a worker may be killed before the commit."""
    task = _task(log, tmp_path, _at(40, LastRecord(39, 0)))

    def columns() -> object:
        raise StopRequestedError

    task.opened.decoding = cast("Any", SimpleNamespace(row_ddl=lambda: (), warnings=(), columns=columns))
    store = SqlStateStore(str(tmp_path / "state.db"))
    ddl = {"topic_id": "id", "timed": True, "definitions": TableDefinitions().to_json(), "next_offset": 38}
    ddl |= {"warnings": [], "rows": [], "last": [37, 0], "newest": -1}
    store.save_document("topic-ddl", "shop/t", ddl)
    task.apply_control(NOTHING_ASKED.rewound(RewindControl(1, "t", "id", ((0, 30),))))
    task.work(found(1))
    kept: Any = store.load_document("topic-ddl", "shop/t")
    assert (kept["next_offset"], kept["last"]) == (30, None)


def test_a_cut_at_the_last_record_that_was_applied_is_an_error(log: LeaderEpochs, tmp_path: Path) -> None:
    """The record at its offset is another one now, of an epoch that is not greater."""
    with pytest.raises(SourceError, match="was cut and has grown again"):
        _checks(log, tmp_path).check_topic(_at(31, LastRecord(30, 4)), found(2))


class _Letters:
    """No letter: a replay looks at the topic first."""

    def letters(self, _chosen: object) -> list[object]:
        return []


def test_a_replay_is_refused_where_the_log_was_cut(log: LeaderEpochs, tmp_path: Path) -> None:
    context = _context(log, tmp_path)
    at = _at(35, LastRecord(30, 4))

    brokers = SimpleNamespace(lookup=lambda _topics: {"t": found(9)})
    topics = Topics("shop", KafkaSource(no_fetch), context.store, ask=lambda: cast("Any", brokers), log=log)
    around = replace(context, topics=topics, target=MemoryTarget())
    opened = OpenTable(around, "t", TABLE, TableCounters(), Pauses(TABLE))
    opened.hold = Hold(cast("Any", None), 1, Progress(TABLE, "shop", 1, 1, {"t": at}))
    with pytest.raises(SourceError, match="was cut and has grown again"):
        ReplayTask(around, opened).replay(cast("Any", _Letters()), Chosen("shop", str(TABLE), "t"))
