"""Where a batch ends that holds a bad record, or an event that empties the table, or both."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

from tests.memory_target import MemoryTarget
from tests.unit.config.samples import FLAT_AVRO, right
from tidesink.events import TableId
from tidesink.sinks.batch.reports import KafkaRead
from tidesink.sinks.batch.tasks import RangeTask, RangeTooLargeError
from tidesink.sinks.decode.records import EventRules
from tidesink.sinks.jobs.base import BatchPlan, Hold, Reduction, Services, Settled
from tidesink.sinks.jobs.changes import Changes
from tidesink.sinks.jobs.reading import BatchSchema, Reading, Staging, Steps
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange, PartitionOffsets, TopicOffsets
from tidesink.sinks.laws.counts import BadRecord, BatchSummary, EventCounts, TopicPartition, Truncate
from tidesink.sinks.runtime.context import Failpoints, StopFlag
from tidesink.sinks.schema_changes.decisions import SettledNames
from tidesink.sinks.schema_changes.row_ddl import RowDecision
from tidesink.sinks.state.progress import Progress

T, P = TableId("s", "t"), TopicPartition("t", 0)


class _Knows:
    """A decoding that has nothing to learn, and no DDL to tell of."""

    def reported(self) -> None:
        return None

    def row_ddl(self) -> None:
        return None

    def learn(self, _missed: object) -> bool:
        return False

    def columns(self) -> Any:
        return self

    def for_batch(self, _number: int, rules: EventRules, **_marks: bool) -> Any:
        return SimpleNamespace(
            rules=rules, decoder=SimpleNamespace(uses_timestamps=False, uses_headers=False)
        )


class _Scripted:
    """Runs the tasks of a topic of which one knows where the truncates and the bad records are."""

    is_local = False

    def __init__(self, *, truncates: Sequence[int], bad: Sequence[int]) -> None:
        self._truncates, self._bad = truncates, bad

    def run(self, task: RangeTask, reader: object, *, checkpoint: bool) -> Any:  # noqa: ARG002
        (part,) = task.ranges
        assert isinstance(part, FetchRange)
        cut, bad = ([n for n in of if part.start <= n < part.end] for of in (self._truncates, self._bad))
        summary = BatchSummary(
            EventCounts(messages=part.records, bad=len(bad)),
            bad_records=tuple(BadRecord(P, n, "DecodeError", "odd") for n in bad[:1]),
            truncates=tuple(Truncate(P, n) for n in cut[:1]),
        )
        read = KafkaRead(part.records, 0)
        return SimpleNamespace(summary=summary, read=read, staged=None, release=lambda: None)


def _cut_by(executor: _Scripted, start: int, end: int, *, partitions: int = 1) -> tuple[int, int | None]:
    """Where the batch ends, and the record the table is to pause before."""
    found = TopicOffsets("t", "id", {number: PartitionOffsets(0, end) for number in range(partitions)})
    hold = Hold(cast("Any", None), 1, Progress(T, "p", 1, 0))
    services = Services(
        cast("Any", SimpleNamespace(stop=StopFlag(), target=MemoryTarget(), failpoints=Failpoints(None))),
        cast("Any", _Knows()),
        right(FLAT_AVRO).table_config(T),
        executor,
    )
    job = Changes(BatchPlan((OffsetRange("t", 0, start, end),), found), cast("Any", None))
    reading = Reading(
        job,
        hold,
        services,
        Steps(services.context.failpoints, job.failpoints),
        BatchSchema(hold, services),
        Staging(hold),
        Settled(SettledNames(), RowDecision()),
    )
    reduction = reading.reduced(job.plan, ExitStack())
    assert isinstance(reduction, Reduction)
    return reduction.plan.ranges[0].end, reduction.bad.offset if reduction.bad else None


def _cut(start: int, end: int, *, truncates: Sequence[int], bad: Sequence[int]) -> tuple[int, int | None]:
    return _cut_by(_Scripted(truncates=truncates, bad=bad), start, end)


def test_a_batch_ends_before_its_first_bad_record() -> None:
    assert _cut(0, 9, truncates=[], bad=[5, 7]) == (5, 5)
    assert _cut(5, 9, truncates=[], bad=[5, 7]) == (5, 5)


def test_a_truncate_is_a_batch_by_itself() -> None:
    assert _cut(0, 9, truncates=[4], bad=[]) == (4, None)
    assert _cut(4, 9, truncates=[4], bad=[]) == (5, None)
    assert _cut(5, 9, truncates=[4], bad=[]) == (9, None)


def test_the_table_pauses_where_it_stands_right_before_the_bad_record() -> None:
    """A truncate ends the batch sooner: then there are rows left to apply before the pause."""
    stops = []
    at: int = 0
    while True:
        at, bad = _cut(at, 9, truncates=[2, 5], bad=[7])
        stops.append(at)
        if bad is not None:
            break
    assert (stops, bad) == ([2, 3, 5, 6, 7], 7)


def test_a_bad_record_right_behind_a_truncate_is_told_of() -> None:
    assert _cut(4, 9, truncates=[4], bad=[5]) == (5, 5)


class _Heavy(_Scripted):
    """Three records are more than a task takes."""

    def run(self, task: RangeTask, reader: object, *, checkpoint: bool) -> Any:
        if sum(part.records for part in task.ranges) >= 3:
            raise RangeTooLargeError("too large")
        return super().run(task, reader, checkpoint=checkpoint)


def test_a_batch_that_is_heavier_than_was_estimated_is_halved() -> None:
    assert _cut_by(_Heavy(truncates=[], bad=[]), 0, 9) == (2, None)
    assert _cut_by(_Heavy(truncates=[], bad=[1]), 0, 9) == (1, 1)


class _Scattered(_Scripted):
    """A truncate at offset 4 of a topic with two partitions: a bad record where the batch's rules say so."""

    def __init__(self) -> None:
        super().__init__(truncates=[4], bad=[])
        self.allowed: list[bool] = []

    def run(self, task: RangeTask, reader: object, *, checkpoint: bool) -> Any:
        allowed = task.plan.rules.truncates
        self.allowed.append(allowed)
        self._truncates, self._bad = ([4], []) if allowed else ([], [4])
        return super().run(task, reader, checkpoint=checkpoint)


def test_a_truncate_in_one_of_several_partitions_is_a_bad_record() -> None:
    executor = _Scattered()
    assert _cut_by(executor, 0, 9, partitions=2) == (4, 4)
    assert executor.allowed == [True, False, False]
