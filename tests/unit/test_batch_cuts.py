"""Where a batch ends that holds a bad record, or an event that empties the table, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from tests.memory_target import MemoryTarget
from tests.unit.config_samples import FLAT_AVRO, right
from tidesink.events import TableId
from tidesink.sinks.batch.context import StopFlag
from tidesink.sinks.batch.counts import BadRecord, BatchSummary, TopicPartition, Truncate
from tidesink.sinks.batch.run import Batch, BatchPlan, Hold, Reduction
from tidesink.sinks.batch.source import KafkaRead
from tidesink.sinks.batch.tasks import RangeTooLargeError
from tidesink.sinks.kafka.offsets import OffsetRange, PartitionOffsets, TopicOffsets
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


class _Scripted(Batch):
    """A batch of a topic of which one knows where the truncates and the bad records are."""

    def __init__(self, start: int, end: int, *, truncates: Sequence[int], bad: Sequence[int]) -> None:
        found = TopicOffsets("t", "id", {0: PartitionOffsets(0, end)})
        super().__init__(
            cast("Any", SimpleNamespace(stop=StopFlag(), target=MemoryTarget())),
            Hold(cast("Any", None), 1, Progress(T, "p", 1, 0)),
            cast("Any", _Knows()),
            settings=right(FLAT_AVRO).table_config(T),
            session=cast("Any", None),
            plan=BatchPlan((OffsetRange("t", 0, start, end),), found),
            reader=cast("Any", None),
        )
        self._truncates, self._bad = truncates, bad

    def _reduce_once(self, plan: BatchPlan) -> Reduction:
        (part,) = plan.ranges
        cut, bad = ([n for n in of if part.start <= n < part.end] for of in (self._truncates, self._bad))
        summary = BatchSummary(
            bad=len(bad),
            bad_records=tuple(BadRecord(P, n, "DecodeError", "odd") for n in bad[:1]),
            truncates=tuple(Truncate(P, n) for n in cut[:1]),
        )
        read = KafkaRead(part.records, 0)
        found = SimpleNamespace(summary=summary, read=read, staged=None, release=lambda: None)
        return Reduction(plan, cast("Any", found))

    def cut(self) -> tuple[int, int | None]:
        """Where the batch ends, and the record the table is to pause before."""
        reduction = self._reduced(self._plan)
        return reduction.plan.ranges[0].end, reduction.bad.offset if reduction.bad else None


def test_a_batch_ends_before_its_first_bad_record() -> None:
    assert _Scripted(0, 9, truncates=[], bad=[5, 7]).cut() == (5, 5)
    assert _Scripted(5, 9, truncates=[], bad=[5, 7]).cut() == (5, 5)


def test_a_truncate_is_a_batch_by_itself() -> None:
    assert _Scripted(0, 9, truncates=[4], bad=[]).cut() == (4, None)
    assert _Scripted(4, 9, truncates=[4], bad=[]).cut() == (5, None)
    assert _Scripted(5, 9, truncates=[4], bad=[]).cut() == (9, None)


def test_the_table_pauses_where_it_stands_right_before_the_bad_record() -> None:
    """A truncate ends the batch sooner: then there are rows left to apply before the pause."""
    stops = []
    at: int = 0
    while True:
        at, bad = _Scripted(at, 9, truncates=[2, 5], bad=[7]).cut()
        stops.append(at)
        if bad is not None:
            break
    assert (stops, bad) == ([2, 3, 5, 6, 7], 7)


def test_a_bad_record_right_behind_a_truncate_is_told_of() -> None:
    assert _Scripted(4, 9, truncates=[4], bad=[5]).cut() == (5, 5)


class _Heavy(_Scripted):
    """Three records are more than a task takes."""

    def _reduce_once(self, plan: BatchPlan) -> Reduction:
        if plan.records >= 3:
            raise RangeTooLargeError("too large")
        return super()._reduce_once(plan)


def test_a_batch_that_is_heavier_than_was_estimated_is_halved() -> None:
    assert _Heavy(0, 9, truncates=[], bad=[]).cut() == (2, None)
    assert _Heavy(0, 9, truncates=[], bad=[1]).cut() == (1, 1)


class _Scattered(_Scripted):
    """A truncate at offset 4 of a topic with two partitions: a bad record where the batch's rules say so."""

    def __init__(self) -> None:
        super().__init__(0, 9, truncates=[4], bad=[])
        partitions = {number: PartitionOffsets(0, 9) for number in (0, 1)}
        self._plan = replace(self._plan, found=TopicOffsets("t", "id", partitions))
        self.allowed: list[bool] = []

    def _reduce_once(self, plan: BatchPlan) -> Reduction:
        allowed = self._rules().truncates
        self.allowed.append(allowed)
        self._truncates, self._bad = ([4], []) if allowed else ([], [4])
        return super()._reduce_once(plan)


def test_a_truncate_in_one_of_several_partitions_is_a_bad_record() -> None:
    batch = _Scattered()
    assert batch.cut() == (4, 4)
    assert batch.allowed == [True, False, False]
