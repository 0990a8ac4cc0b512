"""The interface of a job, which describes one batch of a table, and the values that a batch works with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from tidesink.sinks.jobs.executor import Executor, TaskResults, check_counted, released_on_error
from tidesink.sinks.kafka.leader_epochs import follows
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets
from tidesink.sinks.laws.bound import topic_after
from tidesink.sinks.laws.counts import (
    Account,
    BadRecord,
    Filtered,
    RowFindings,
    TopicPartition,
    account_of,
    greatest,
)
from tidesink.sinks.laws.modes import names_of
from tidesink.sinks.runtime.context import FAILPOINTS
from tidesink.sinks.schema_changes.decisions import Accepted, KnownColumns, Pending, Policies, SettledNames
from tidesink.sinks.schema_changes.row_ddl import RowDecision
from tidesink.sinks.state.progress import LastRecord, Progress, SnapshotProgress, TopicProgress
from tidesink.sinks.targets.base import StagedPart, TargetTable

if TYPE_CHECKING:
    from tidesink.config import TableConfig
    from tidesink.ddl.row_changes import RowDdl
    from tidesink.sinks.batch.reports import KafkaRead
    from tidesink.sinks.batch.source import RecordReader
    from tidesink.sinks.batch.tasks import RangeTask
    from tidesink.sinks.decode.plans import DecodePlan
    from tidesink.sinks.decode.records import EventRules, Input
    from tidesink.sinks.decode.schema_source import Decoding
    from tidesink.sinks.laws.counts import BatchSummary, PartitionSummary
    from tidesink.sinks.laws.modes import HistoryNames
    from tidesink.sinks.runtime.context import WorkerContext
    from tidesink.sinks.schema_changes.decisions import SchemaDecision
    from tidesink.sinks.targets.base import ApplyResult, ReducedBatch


@dataclass(frozen=True)
class Hold:
    """An open target table that this worker owns, with its progress.

    Attributes:
        table: The table in the target.
        epoch: The number that this worker got when it became the table's owner. With a lower number, a
            previous owner can no longer commit.
        progress: The progress of the last committed batch.
        horizon: The commit_ts up to which the target may have removed its tombstones of deletes.
        accepted: Decisions of people on schema changes.
        known: The source's columns as of the last batch, or None.
        loads: True while the table's snapshot is not complete, even before its first part is read. Then a
            change may be applied before the snapshot reads its row. Values that the change omits are NULL
            until the snapshot reads them.
        bound: The commit_ts up to which rows are applied (``laws.bound``), or None. Later rows wait.
        outside: True if cuts (the state of all tables as of one commit_ts) omit the table.
    """

    table: TargetTable
    epoch: int
    progress: Progress
    horizon: int | None = None
    accepted: Accepted = field(default_factory=dict)
    known: KnownColumns | None = None
    loads: bool = False
    bound: int | None = None
    outside: bool = False


@dataclass(frozen=True)
class BatchPlan:
    """The offsets of one batch.

    Attributes:
        ranges: The range of offsets in each partition.
        found: The offsets, leader epochs and id of the topic when the ranges were chosen.
        last: For partitions in which records were skipped without a commit: the last skipped record.
        follows: Returns True if the records that were read may be used, because the log still contains the
            records read before (``kafka.leader_epochs``).
    """

    ranges: tuple[OffsetRange, ...]
    found: TopicOffsets
    last: Mapping[int, LastRecord] = field(default_factory=dict)
    follows: Callable[[TopicOffsets, Mapping[int, LastRecord], Mapping[int, LastRecord]], bool] = follows

    @property
    def records(self) -> int:
        """The number of offsets in the batch."""
        return sum(part.records for part in self.ranges)


@dataclass(frozen=True)
class BatchOutcome:
    """The result of one batch.

    Attributes:
        progress: The table's progress after the batch.
        account: The counts of the batch. None if nothing was applied: a bad record is the first record,
            changes wait for a person, or the batch must be read again.
        read: The numbers of records and bytes that Kafka returned, or None if nothing was applied.
        bad: The bad record before which the table pauses, or None.
        version: The target's version after the commit.
        findings: Warnings, impossible dates and ambiguous times in the applied rows.
        warnings: Warnings about changed columns.
        seconds: The duration of each step in seconds.
        pending: Schema changes and DDL that wait for a person.
        filtered: The number of events that change no row, by kind.
        left: For a lake table: what Spark did, and why the batch was not written directly as files. Empty if
            it was. None if the batch had no rows.
        results: The results of the tasks, whose stored rows are released. None if nothing was applied, or if
            the batch read nothing.
    """

    progress: Progress
    account: Account | None = None
    read: KafkaRead | None = None
    bad: BadRecord | None = None
    version: str = ""
    findings: RowFindings = field(default_factory=RowFindings)
    warnings: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    pending: tuple[Pending, ...] = ()
    filtered: Filtered = field(default_factory=Filtered)
    left: str | None = None
    results: TaskResults | None = None


@dataclass(frozen=True)
class Services:
    """The parts of a worker that the batches of one table use.

    Attributes:
        context: The parts that all tables share.
        decoding: Decodes the table's records.
        settings: The table's settings.
        executor: Runs the tasks that read, decode and reduce records.
    """

    context: WorkerContext
    decoding: Decoding
    settings: TableConfig
    executor: Executor

    @property
    def history(self) -> HistoryNames | None:
        """Names of the validity columns with ``mode: history``, else None."""
        return names_of(self.settings)

    @property
    def sequenced(self) -> bool:
        """True if the target's rows store their positions in the source's order."""
        return self.settings.sequence_by == "source" and self.history is None

    def policies(self, accepted: Accepted) -> Policies:
        """Returns the policies for schema changes. ``accepted``: the decisions of people."""
        return Policies.of(self.settings, accepted, self.context.target.capabilities)


@dataclass(frozen=True)
class Packed:
    """The rows of a batch are in the results of its tasks."""


@dataclass(frozen=True)
class Staged:
    """The rows of a batch are in the target already, and its commit makes them a part of the table.

    ``parts``: the reports of the tasks. ``decision``: the decision on the target's columns with which the
    rows were written.
    """

    parts: tuple[StagedPart, ...]
    decision: SchemaDecision

    def has_columns_of(self, decision: SchemaDecision) -> bool:
        """Returns True if the rows have the columns that the target has after a decision.

        Staged columns are matched by position, so other rows cannot be applied.
        """
        return self.decision.given == decision.given


class Settled(NamedTuple):
    """The decisions on DDL that are made before a batch is read.

    ``names``: on renames. ``rows``: on DDL that changes existing rows. ``statements``: the DDL that ``rows``
    decides on, or None if the protocol has no DDL.
    """

    names: SettledNames
    rows: RowDecision
    statements: tuple[RowDdl, ...] | None = None

    @property
    def obstacle(self) -> Waits | EmptyFirst | None:
        """What must happen before the batch is applied, or None."""
        pending = self.names.pending or self.rows.pending
        if pending:
            return Waits(pending)
        return None if self.rows.empties is None else EmptyFirst(self.rows)


class SinkWish(NamedTuple):
    """The properties of a batch's inputs that decide whether tasks stage the rows.

    ``several``: True if the batch has several inputs. In the source's order and in a history, a key may be in
    more than one of them, and its rows are then reduced once more. ``fewest``: number of records of the
    smallest input, or 0 if it is unknown.
    """

    several: bool
    fewest: int

    @classmethod
    def of(cls, ranges: Collection[OffsetRange | Input], *, fewest: bool = True) -> SinkWish:
        """Returns the wish for these inputs. ``fewest``: False if the inputs have records of other tables."""
        sizes = (part.records for part in ranges if part.records) if fewest else ()
        return cls(len(ranges) > 1, min(sizes, default=0))


@dataclass(frozen=True)
class Inputs:
    """The inputs that the tasks of a batch read, and the reader of their records.

    Attributes:
        task: The inputs and how they are decoded. It has no sink.
        reader: Reads the records of the inputs.
        wish: The tasks stage the rows in the target if possible. None: they must not stage them.
        volatile: True if a second read may return other records.
    """

    task: RangeTask
    reader: RecordReader
    wish: SinkWish | None
    volatile: bool = False


class Attempt(NamedTuple):
    """One attempt to read a batch.

    Attributes:
        plan: The offsets: those of the job, or fewer after a cut.
        decode_plan: The table's decode plan, with the rules of the batch.
        hold: The open table.
        services: The parts of the worker.
        opened: Closed at the end of the batch. It can hold what the inputs need until then.
    """

    plan: BatchPlan
    decode_plan: DecodePlan
    hold: Hold
    services: Services
    opened: ExitStack


class TaskRun(NamedTuple):
    """The tasks of a batch, ready to run.

    ``checkpoint``: as in ``Executor.run``.
    """

    executor: Executor
    task: RangeTask
    reader: RecordReader
    checkpoint: bool

    def results(self) -> TaskResults:
        """Run the tasks and return their results."""
        return self.executor.run(self.task, self.reader, checkpoint=self.checkpoint)


@dataclass(frozen=True)
class Reduction:
    """A batch after its tasks have decoded the records and reduced the changes to one row per key.

    Attributes:
        plan: The offsets of the batch.
        settled: The decisions on DDL that were made before.
        results: The results of the tasks.
        rows: The place of the rows to apply: the target or the results.
        bad: The bad record before which the batch ends, or None.
        reads: The number of times that the batch was read with this plan.
        checkpointed: True if each read of the results returns the same rows.
    """

    plan: BatchPlan
    settled: Settled
    results: TaskResults
    rows: Staged | Packed = field(default_factory=Packed)
    bad: BadRecord | None = None
    reads: int = 1
    checkpointed: bool = False

    @property
    def summary(self) -> BatchSummary:
        """The summary of the batch that the tasks returned."""
        return self.results.summary

    @property
    def truncates(self) -> bool:
        """True if the batch contains a truncate."""
        return bool(self.summary.truncates)


@dataclass(frozen=True)
class Again:
    """The batch must be read again.

    ``truncates``: False if truncates must count as bad records from now on.
    """

    truncates: bool = True


@dataclass(frozen=True)
class Cut:
    """The batch ends earlier, and must be read again up to there, unless no records are left.

    ``plan``: the offsets of the shorter batch. ``bad``: the bad record before which it ends, or None.
    """

    plan: BatchPlan
    bad: BadRecord | None = None


@dataclass(frozen=True)
class Go:
    """The batch can be applied as it was read."""


@dataclass(frozen=True)
class Waits:
    """The batch is not applied, because changes must be decided or applied first.

    ``pending``: the changes that wait for a person's decision.
    """

    pending: tuple[Pending, ...] = ()


@dataclass(frozen=True)
class EmptyFirst:
    """DDL empties the table before the batch is applied. ``rows``: the decision on the DDL."""

    rows: RowDecision


Verdict = Again | Cut | Go | Waits


class Job(Protocol):
    """A batch without records: it changes the table's progress, and may empty the table.

    A job is a frozen value. A retry runs the same job again.

    Attributes:
        plan: The offsets at which the batch begins and ends. Without records each range is empty.
    """

    plan: BatchPlan

    @property
    def failpoints(self) -> Collection[str]:
        """The names of the steps that a test can interrupt."""
        return FAILPOINTS

    @property
    def empties(self) -> bool:
        """True if the batch removes all rows of the table."""
        return False

    def progress(self, hold: Hold, settled: Settled) -> Progress:
        """Returns the table's progress after the batch."""

    def decided(self, decision: SchemaDecision) -> SchemaDecision:
        """Returns the decision on schema changes as the batch follows it."""
        return decision


@runtime_checkable
class ReadingJob(Protocol):
    """A batch that reads records or rows, and applies them.

    A job is a frozen value. A retry runs the same job again. A job derives from this class, which has the
    defaults.

    Attributes:
        plan: The offsets at which the batch begins and ends. They are empty ranges if it reads nothing from
            Kafka.
    """

    plan: BatchPlan

    @property
    def failpoints(self) -> Collection[str]:
        """The names of the steps that a test can interrupt."""
        return FAILPOINTS

    def catch_up(self, decoding: Decoding) -> None:
        """Read schemas and DDL that must be known before the batch is read (``Decoding.catch_up``)."""

    def rules(self, rules: EventRules) -> EventRules:
        """Returns the rules for the batch's events. ``rules``: those of the table."""
        return rules

    def inputs(self, attempt: Attempt) -> Inputs:
        """Returns what the tasks read."""

    def read(self, run: TaskRun, hold: Hold, services: Services) -> TaskResults:  # noqa: ARG002
        """Run the tasks, and return their results.

        Raises:
            RangeTooLargeError: A range is larger than a task may hold in memory.
            TidesinkError: A task failed with this error.
        """
        results = run.results()
        with released_on_error(results.release):
            check_counted(results, services.settings.table)
        return results

    def accept(self, reduction: Reduction, hold: Hold, services: Services) -> Verdict:
        """Decide if the batch can be applied as it was read.

        Raises:
            TidesinkError: The batch can never be applied.
        """

    def emptied(self, rows: RowDecision, hold: Hold) -> Job:  # noqa: ARG002
        """Returns the job that runs in place of this one, because DDL empties the table (``rows``)."""
        return Empty(without_records(self.plan), rows)

    def applies(self, summary: BatchSummary) -> bool:  # noqa: ARG002
        """Returns False if the batch changes neither the target nor the table's progress."""
        return True

    @property
    def writes_letters(self) -> bool:
        """True if bad records become dead letters, and DDL events are stored."""
        return True

    def progress(self, reduction: Reduction, hold: Hold, services: Services) -> Progress:
        """Returns the table's progress after the batch."""

    def decided(self, decision: SchemaDecision) -> SchemaDecision:
        """Returns the decision on schema changes as the batch follows it."""
        return decision

    def adjusted(self, batch: ReducedBatch) -> ReducedBatch:
        """Returns the batch for the target, with what only this kind of job sets."""
        return batch

    def account(
        self,
        reduction: Reduction,
        result: ApplyResult | None,
        rejected: int,
        services: Services,  # noqa: ARG002
    ) -> Account:
        """Returns the counts of the batch.

        ``result``: the target's counts, or None if nothing was applied (``applies``). ``rejected``: number of
        events that became dead letters.
        """
        # Emptying a table is one event, no matter how many rows it had.
        applied = result.applied if result is not None else 0
        return account_of(
            reduction.summary.counts,
            kafka_records=reduction.results.read.records,
            applied_rows=1 if reduction.truncates else applied,
            rejected=rejected,
            stale_rows=result.stale if result is not None else 0,
            row_by_row=reduction.results.row_by_row_records,
        )


def without_records(plan: BatchPlan) -> BatchPlan:
    """Returns a plan whose ranges begin where those of ``plan`` begin, and are empty."""
    return replace(plan, ranges=tuple(part._replace(end=part.start) for part in plan.ranges))


def next_batch(hold: Hold, commit_ts: int | None = None) -> Progress:
    """Returns the table's progress after a batch that reads nothing from its topic.

    ``commit_ts``: the greatest commit_ts that the batch applies, or None.
    """
    before = hold.progress
    return replace(
        before,
        epoch=hold.epoch,
        batch=before.batch + 1,
        commit_ts=greatest([before.commit_ts, commit_ts]),
        snapshot=before.snapshot or (SnapshotProgress(()) if hold.loads else None),
    )


def next_progress(
    hold: Hold,
    plan: BatchPlan,
    *,
    commit_ts: int | None = None,
    places: Mapping[TopicPartition, PartitionSummary] | None = None,
    shared: Mapping[int, LastRecord] | None = None,
) -> Progress:
    """Returns the table's progress after a batch.

    Args:
        hold: The open table.
        plan: The offsets of the batch.
        commit_ts: The greatest commit_ts that the batch applies, or None.
        places: The counts of each partition.
        shared: The last record of each partition in a read that several tables share. It may belong to
            another table.
    """
    topic = _topic_after(hold, plan, places or {}, shared or {})
    after = next_batch(hold, commit_ts)
    return replace(after, topics={**after.topics, topic.topic: topic}, bound=hold.bound)


def _topic_after(
    hold: Hold,
    plan: BatchPlan,
    places: Mapping[TopicPartition, PartitionSummary],
    shared: Mapping[int, LastRecord],
) -> TopicProgress:
    read = {
        part.partition: (part.end, places.get(TopicPartition(part.topic, part.partition)))
        for part in plan.ranges
    }
    return topic_after(
        hold.progress, plan.found.topic, plan.found.topic_id, read, hold.bound, plan.last, shared
    )


@dataclass(frozen=True)
class Empty(Job):
    """Empties the target table because of DDL such as TRUNCATE. The next batch reads the records.

    ``rows``: the decision on the DDL. ``shared``: as in ``next_progress``.
    """

    plan: BatchPlan
    rows: RowDecision
    shared: Mapping[int, LastRecord] = field(default_factory=dict)

    @property
    def empties(self) -> bool:
        """True, because the batch removes all rows."""
        return True

    def progress(self, hold: Hold, settled: Settled) -> Progress:  # noqa: ARG002
        """Returns the table's progress, which records up to which commit time rows are void."""
        emptied = max(hold.progress.emptied or 0, self.rows.empties or 0)
        after = next_progress(hold, self.plan, shared=self.shared)
        return replace(after, emptied=emptied, decided=self.rows.decided)
