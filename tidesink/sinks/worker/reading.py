"""How far a table has read its topic, and which records it reads next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tidesink.sinks.batch.source import RecordReader
from tidesink.sinks.batch.tasks import RangeTooLargeError
from tidesink.sinks.jobs.base import BatchOutcome, BatchPlan, without_records
from tidesink.sinks.kafka.compaction import Compaction
from tidesink.sinks.kafka.offsets import (
    AddedPartitions,
    OffsetRange,
    RecordSize,
    TopicOffsets,
    budget_of,
    held_back,
    is_other_topic,
    limited,
    plan_ranges,
    waiting_records,
)
from tidesink.sinks.kafka.watermarks import MOST_WAITING
from tidesink.sinks.laws.bound import NO_MARKS, Marks, least_bound, passed_partitions, settled, starts
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.runtime.shared_reads import Limits, PassedRecords, TableRecords, sample
from tidesink.sinks.snapshots.parts import Snapshot
from tidesink.sinks.state.progress import UNKNOWN_SCHEMA
from tidesink.sinks.worker.continuity import late_start
from tidesink.sinks.worker.open_table import OpenTable
from tidesink.sinks.worker.rewind import again_only


class TopicReading:
    """Reads one table's topic: what is applied and skipped, and what comes next.

    Used by one thread at a time. Only ``seen`` may be set while another thread runs a batch of the table.

    Attributes:
        lag: Number of records in the topic that were not applied when the worker last looked up offsets.
        seen: The topic's offsets when the worker last looked them up; updated even while a batch runs.
        compaction: The topic's compaction when the worker last looked up offsets, or None.
        bound: With cuts, the bound up to which changes are applied; None until it is chosen.
        marks: Newest known watermark per partition after the table's offsets, if only watermarks lie between.
        ends: With cuts of a Debezium connector, an offset per partition: all rows up to the bound have lower
            offsets.
        size: The measured size of a decoded record.
        stalled: True if the only unread records up to the bound are in added partitions, and these must wait
            for records above the bound in the old partitions.
    """

    def __init__(self, context: WorkerContext, opened: OpenTable, snapshot: Snapshot) -> None:
        """Create the object for the table ``opened``.

        The table is registered with the object that reads the topic's records once for several tables.
        """
        self.lag = 0
        self.seen: TopicOffsets | None = None
        self.compaction: Compaction | None = None
        self.bound: int | None = None
        self.marks: Marks = NO_MARKS
        self.ends: Mapping[int, int] | None = None
        self.stalled = False
        self._context = context
        self._opened = opened
        self._snapshot = snapshot
        self._topic = opened.topic
        self._table = opened.table
        self._counters = opened.counters
        self._passed = PassedRecords(context.config.batch.watermark_interval)
        self.size = RecordSize()
        self._added = AddedPartitions()
        self._reads = context.topics.reads(opened.topic)
        if self._table.schema != UNKNOWN_SCHEMA:
            self._reads.expect(self._table)

    def look(self, offsets: TopicOffsets) -> None:
        """Record the topic's current offsets, and compute the table's lag from them.

        Before the table is opened, all records of the topic count as lag.
        """
        self._opened.note_start(offsets)
        if self.owes_commit and not self.unapplied(offsets) and not self.is_short(offsets):
            self._passed.step_back()
        self.lag = self.unapplied(offsets)
        self.compaction = offsets.compaction

    def unapplied(self, offsets: TopicOffsets) -> int:
        """Return the number of the topic's records that are not applied and not skipped yet."""
        return waiting_records(offsets, self.next_offsets())

    def known_lag(self) -> int:
        """Return the table's lag: the number of unapplied records when the offsets were last looked up.

        For a table that is not open, the applied offsets come from the state store.
        """
        return self.lag if self.seen is None else waiting_records(self.seen, self.known_offsets(self.seen))

    def known_offsets(self, seen: TopicOffsets) -> dict[int, int]:
        """Return the next offset per partition, from the state store if the table is not open."""
        stored = self._opened.stored_progress() if self._opened.hold is None else None
        if stored is None or is_other_topic(stored.topic_id, seen.topic_id):
            return self.next_offsets()
        return {number: partition.next_offset for number, partition in stored.partitions.items()}

    @property
    def owes_commit(self) -> bool:
        """Return True if records were skipped so long ago that the table must commit its offsets now."""
        return self._passed.owe_commit

    @property
    def least_bound(self) -> int | None:
        """The bound up to which the table was already read. The next bound must not be lower.

        None if any bound is possible, or if the table is not open.
        """
        progress = self._opened.progress
        return least_bound(progress, outside=self.outside) if progress is not None else None

    @property
    def outside(self) -> bool:
        """Return True if cuts leave the table out: its snapshot is unfinished, or newer than their bound."""
        return self._snapshot.is_outside(self._opened.progress, self.bound)

    @property
    def may_read(self) -> bool:
        """Return True if cuts allow the table to read records now.

        False if the bound is not chosen yet, or if the table was already read up to a later bound.
        """
        fits = self.bound is not None and (self.least_bound or 0) <= self.bound
        return fits or self._context.config.cuts is None

    def unread(self, offsets: TopicOffsets) -> int:
        """Return the number of the topic's unread records. With cuts, counts only records up to the bound."""
        passed, next_offsets = self._passed_partitions, self.next_offsets()
        ends = ((n, partition) for n, partition in limited(offsets, self.ends).items() if n not in passed)
        return sum(
            max(0, partition.latest - next_offsets.get(n, partition.earliest)) for n, partition in ends
        )

    @property
    def _passed_partitions(self) -> Collection[int]:
        """Numbers of the topic's partitions in which all changes up to the cut's bound are applied."""
        progress = self._opened.progress
        if progress is None or self.bound is None:
            return ()
        return passed_partitions(progress, self._topic, self.bound, self.marks)

    def is_short(self, offsets: TopicOffsets) -> bool:
        """Return True if a partition ends below the table's next offset.

        Either the topic was replaced, or a broker has answered with outdated offsets.
        """
        ends = {number: partition.latest for number, partition in offsets.partitions.items()}
        return any(ends.get(n, -1) < offset for n, offset in self.next_offsets().items())

    def read_up_to(self, offsets: TopicOffsets) -> Mapping[int, int]:
        """Return the next offset per partition; empty if the table is not open or the topic was replaced."""
        progress = self._opened.topic_progress
        same = progress is not None and progress.topic_id == offsets.topic_id
        return self.next_offsets() if same else {}

    def nearly_read_up_to(self, offsets: TopicOffsets) -> Mapping[int, int] | None:
        """Return the next offset per partition if the table is up to date, except for a few new records.

        None if more records are unread, or the topic has no watermarks.
        """
        next_offsets, ends = self.read_up_to(offsets), offsets.partitions
        if next_offsets.keys() != ends.keys():
            return None
        fits = self._counters.filtered.watermarks > 0 and all(
            ends[n].earliest <= offset <= ends[n].latest <= offset + MOST_WAITING
            for n, offset in next_offsets.items()
        )
        return next_offsets if fits else None

    def next_offsets(self) -> dict[int, int]:
        """Return the next offset per partition, after applied and skipped records.

        Empty for a table without progress that reads its topic from the beginning (``start: earliest``).
        """
        progress = self._opened.progress
        if progress is None or self._opened.topic_progress is None:
            return self._passed.behind(self._opened.start.offsets)
        return self._passed.behind(starts(progress, self._topic, self.bound))

    def settled_offsets(self) -> dict[int, int]:
        """Return an offset per partition: all records below it are applied or skipped.

        With cuts, it can be lower than the next offset, if a row waits for a later bound.
        """
        return settled(self._opened.topic_progress, self.next_offsets(), self.bound)

    def plan(self, offsets: TopicOffsets) -> tuple[BatchPlan, RecordReader]:
        """Return the offset ranges of the next batch, and the reader of its records.

        The reader reads from Kafka, or returns records that were read once for several tables of the topic.
        """
        batch = self._context.config.batch
        available = self._available(offsets)
        if not self.next_offsets():
            self._counters.warnings += late_start(self._topic, offsets)
        limits = Limits(batch.max_records, batch.max_bytes, self.size)
        source = self._context.source
        self._context.retry(self._table).call(lambda: sample(limits, available, source.fetch))
        again = again_only(available, self._opened.topic_progress)
        if again is not None:
            # After a rewind, reads are not shared, since the other tables have read further.
            self._reads.settle(self._table, None, away=True)
            most = budget_of(batch.max_records, batch.max_bytes, self.size)
            return BatchPlan(plan_ranges(again, max_records=most), offsets), source
        planned = self._reads.plan(self._table, available, offsets, limits=limits)
        plan = BatchPlan(planned.ranges, planned.found)
        if planned.kept is None:
            return plan, source
        session = self._opened.session
        return plan, TableRecords(planned.kept, source, self._table, session, commits=planned.commits)

    def plan_nothing(self, offsets: TopicOffsets) -> BatchPlan:
        """Return a batch's offset ranges without records.

        They begin at the offsets at which the table continues to read its topic.
        """
        return self.after_skipped(without_records(BatchPlan(tuple(self._available(offsets)), offsets)))

    def _available(self, offsets: TopicOffsets) -> list[OffsetRange]:
        """Return the range of records that can be read next in each partition.

        It is empty for a new partition until older partitions are read, and for a partition that has passed
        the bound of the next cut.
        """
        next_offsets, parts = self.next_offsets(), offsets.partitions
        grown = self._context.retry(self._table).call(lambda: self._context.topics.grown(offsets))
        held = {*held_back(grown, next_offsets, parts), *self._passed_partitions}
        starts = {
            n: next_offsets.get(n, parts[n].earliest) for n in self._added.readable(next_offsets, parts)
        }
        # Waiting partitions get empty ranges. So they stay in the progress, and expired records are noticed.
        return [
            OffsetRange(
                self._topic, n, starts[n], starts[n] if n in held else max(starts[n], partition.latest)
            )
            for n, partition in limited(offsets, self.ends).items()
            if n in starts
        ]

    def after_skipped(self, plan: BatchPlan) -> BatchPlan:
        """Return a batch's plan with the last skipped records, and the check that it follows them."""
        return replace(plan, last=self._passed.last, follows=self._opened.continuity.follows)

    def pass_by(self, plan: BatchPlan, reader: RecordReader) -> bool:
        """Skip a batch's records without a commit if they contain nothing for this table.

        Returns True if no batch must run: the records were skipped, or must be read again because Kafka has
        replaced earlier ones.
        """
        progress = self._opened.topic_progress
        if progress is None or not isinstance(reader, TableRecords) or reader.commits:
            return False
        try:
            if self._context.retry(self._table).call(reader.concern):
                return False
        except RangeTooLargeError:
            return False  # the batch splits its ranges
        before = {**progress.last_records, **self._passed.last}
        if self._opened.continuity.follows(plan.found, before, reader.last):
            self._passed.add(plan.ranges, reader.last)
        return True

    def is_continuous(self, offsets: TopicOffsets) -> bool:
        """Check that no record of the topic was lost or replaced (``Continuity.check``).

        Returns False if Kafka has replaced skipped records by other records, which must be read first.
        """
        opened, progress = self._opened, self._opened.progress
        assert progress is not None  # noqa: S101  (opened before)
        holds = opened.continuity.check(
            opened.topic_progress,
            offsets,
            batch=progress.batch,
            caught_up=opened.counters.caught_up,
            pauses=opened.pauses,
            repaired=self._snapshot.repairs(progress),
            passed=self._passed.last,
        )
        if not holds:
            # Other records are now at the offsets of the skipped ones.
            self._passed.clear()
        return holds

    def took(self, outcome: BatchOutcome) -> None:
        """Record that a batch was committed, with the records that it read."""
        self._passed.clear()
        # Rows that waited may be next under another bound, so watermarks after them no longer count.
        self.marks = NO_MARKS
        if outcome.read is not None:
            # The size of decoded records in memory counts, which is many times the size in Kafka.
            self.size.learn(outcome.read.records, outcome.read.decoded)

    def settle(self, *, away: bool) -> None:
        """Report the table's offsets to the object that reads the topic once for several tables.

        It then releases records that no table needs any longer. ``away``: True if the table has stopped.
        """
        if self._table.schema != UNKNOWN_SCHEMA:
            next_offsets = self.next_offsets() if self._opened.hold is not None else {}
            self._reads.settle(self._table, next_offsets or None, away=away or self._opened.awaits_record)

    def forget(self) -> None:
        """Forget skipped records and watermarks, because the table is closed."""
        self.marks = NO_MARKS
        self._passed.clear()
