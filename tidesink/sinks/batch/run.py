"""One batch of one table, from the choice of offsets to the commit in the target.

The steps:

1. planned: the offsets of the batch are fixed.
2. read, 3. decoded, 4. reduced: Spark tasks fetch, decode and reduce the records (``batch.tasks``). They
   return counts and packed rows, or send the rows to a target that can stage them (``StagingTable``). If the
   plan does not have a schema or a column, it is looked up, and the batch is read again. Under ``bad-record:
   pause`` a batch with a bad record is read again up to this record.
5. recorded: the state store has the progress that the batch will have. If a schema change or DDL waits for a
   person, the batch ends before this step.
6. evolved: the target has the columns of the batch.
7. rejected: the dead letters are written.
8. committed: the target has the rows and the progress.
9. accounted: the counts of the batch add up (``batch.counts``).

All steps up to 7 can be repeated without applying a change twice. After step 8, no step of the batch is
repeated. If DDL empties the table, this is a batch of its own without records, which starts at step 5.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import structlog

from tidesink.errors import (
    AccountingError,
    CommitUnknownError,
    MixedPartitionsError,
    SchemaMismatchError,
    SchemaRefusedError,
    TransientTargetError,
)
from tidesink.events import TableId
from tidesink.sinks.batch.context import WorkerContext
from tidesink.sinks.batch.counts import (
    Account,
    BadRecord,
    BatchSummary,
    Filtered,
    RowWarning,
    TopicPartition,
    account_of,
    filtered_of,
    greatest,
)
from tidesink.sinks.batch.cuts import topic_after
from tidesink.sinks.batch.letters import keep_ddl, write_bad_records
from tidesink.sinks.batch.observers import BatchApplied
from tidesink.sinks.batch.records import EventRules
from tidesink.sinks.batch.reduce import mixed_message
from tidesink.sinks.batch.row_ddl import RowDecision, TableEmptiesError, decide_rows, up_to
from tidesink.sinks.batch.schema_changes import (
    Accepted,
    ChangesWaitError,
    Chosen,
    KnownColumns,
    Pending,
    Policies,
    SchemaDecision,
    SettledNames,
    decide_changes,
    settle_names,
    source_columns_of,
)
from tidesink.sinks.batch.schema_source import Decoding, Missed
from tidesink.sinks.batch.shared_reads import TableRecords
from tidesink.sinks.batch.source import (
    KafkaRead,
    RangeFrame,
    RecordReader,
    omitting,
    reduced_ranges,
    rows_to_write,
    translated_read_errors,
)
from tidesink.sinks.batch.tasks import RangeTask, RangeTooLargeError
from tidesink.sinks.kafka.dead_letters import LetterStamp
from tidesink.sinks.kafka.leader_epochs import follows
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets, cut_before, halved
from tidesink.sinks.state.progress import LastRecord, Progress, SnapshotProgress, TopicProgress
from tidesink.sinks.targets.base import (
    ApplyHooks,
    ApplyOptions,
    ApplyResult,
    EvolveResult,
    ReducedBatch,
    RowFormat,
    RowSink,
    StagedPart,
    StagedRowsRefusedError,
    StagingTable,
    TargetTable,
)
from tidesink.sinks.targets.modes import kept_shape, names_of
from tidesink.typemap.target_schema import TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import TableConfig
    from tidesink.ddl.row_changes import RowDdl
    from tidesink.sinks.batch.decoders import DecodePlan


# Each new plan has more schemas than the previous one. A batch that still needs more after this number of
# plans is a bug.
MOST_PLANS: Final = 8


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
        bound: The commit_ts up to which rows are applied (``batch.cuts``), or None. Later rows wait.
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


_log = structlog.get_logger("tidesink.worker")


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
        zero_dates: By column, the number of impossible dates that were set to null.
        ambiguous_times: By column, the number of local times that occur twice, because clocks were set back.
        warned: The number of rows that were applied with a warning.
        first_warnings: The first row with a warning in each partition.
        warnings: Warnings about changed columns.
        seconds: The duration of each step in seconds.
        pending: Schema changes and DDL that wait for a person.
        filtered: The number of events that change no row, by kind.
        left: For a lake table: what Spark did, and why the batch was not written directly as files. Empty if
            it was. None if the batch had no rows.
    """

    progress: Progress
    account: Account | None = None
    read: KafkaRead | None = None
    bad: BadRecord | None = None
    version: str = ""
    zero_dates: Mapping[str, int] = field(default_factory=dict)
    ambiguous_times: Mapping[str, int] = field(default_factory=dict)
    warned: int = 0
    first_warnings: tuple[RowWarning, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    pending: tuple[Pending, ...] = ()
    filtered: Filtered = field(default_factory=Filtered)
    left: str | None = None


@dataclass(frozen=True)
class Reduction:
    """A batch after the tasks have decoded it and reduced its changes to one row per key.

    ``plan``: the offsets of the batch. ``found``: the results of the tasks. ``bad``: the bad record before
    which the batch ends, or None.
    """

    plan: BatchPlan
    found: RangeFrame
    bad: BadRecord | None = None

    @property
    def frame(self) -> DataFrame:
        """The reduced rows as a Spark frame."""
        return self.found.frame

    @property
    def summary(self) -> BatchSummary:
        """The counts of the batch that the tasks returned."""
        return self.found.summary

    @property
    def read(self) -> KafkaRead:
        """The numbers of records and bytes of the batch that Kafka returned."""
        return self.found.read

    def release(self) -> None:
        """Release the rows that Spark stores for the batch."""
        self.found.release()

    @property
    def truncates(self) -> bool:
        """True if the batch contains a truncate."""
        return bool(self.summary.truncates)


class Batch:
    """Runs the steps of one batch. Every try needs a new object."""

    def __init__(
        self,
        context: WorkerContext,
        hold: Hold,
        decoding: Decoding,
        *,
        settings: TableConfig,
        session: SparkSession,
        plan: BatchPlan,
        reader: RecordReader,
    ) -> None:
        self._context = context
        self._hold = hold
        self._decoding = decoding
        self._settings = settings
        self._session = session
        self._plan = plan
        self._reader = reader
        self._seconds: dict[str, float] = {}
        self._refuses_truncates = False
        self._stages = True
        self._staged_shape: TargetSchema | None = None
        self._staged: tuple[StagedPart, ...] = ()
        # True once a commit may have been sent, so that staged rows may be part of the table.
        self._committing = False
        self._history = names_of(settings)
        self._sequenced = settings.sequence_by == "source" and self._history is None
        self._policies = Policies.of(settings, hold.accepted, context.target.capabilities)
        self._row_ddl: tuple[RowDdl, ...] | None = None
        self._row_decision = RowDecision(decided=hold.progress.decided)
        self._settled_names = SettledNames()

    def run(self) -> BatchOutcome:
        """Reads, reduces and applies the batch.

        Raises:
            TidesinkError: A step failed. The error's ``remedy`` determines whether the batch is tried again
                or the table stops.
            StopRequestedError: A stop was requested before the commit.
        """
        with translated_read_errors(self._plan.found.topic):
            try:
                outcome = self._outcome()
            except StagedRowsRefusedError:
                # The target does not accept the staged rows of these tasks. Read the batch again without
                # staging.
                self._stages, self._staged = False, ()
                outcome = self._outcome()
            except Exception:
                self._forget_unless_committing()
                raise
        if outcome.account is None:
            self._forget_staged()
        return outcome

    def _forget_unless_committing(self) -> None:
        """Removes the rows that a failed batch has staged in the target, unless its commit has begun and may
        contain them.
        """
        if self._committing or not self._staged:
            return
        try:
            self._forget_staged()
        except Exception as exc:  # noqa: BLE001  (the batch's own error is the one to report)
            _log.warning("staged rows not removed", table=str(self._settings.table), error=type(exc).__name__)

    def _commit_begins(self) -> None:
        self._committing = True
        self._context.failpoints.reach("staged")

    def _forget_staged(self) -> None:
        table, staged, self._staged = self._hold.table, self._staged, ()
        if isinstance(table, StagingTable):
            table.forget_staged(staged)

    def _outcome(self) -> BatchOutcome:
        self._context.failpoints.reach("planned")
        self._decoding.catch_up(self._plan.ranges, self._plan.found)
        try:
            reduction = self._reduced(self._plan)
        except ChangesWaitError as exc:
            return BatchOutcome(self._hold.progress, pending=exc.pending)
        except TableEmptiesError as exc:
            return self._emptied(exc.decision)
        try:
            if reduction.plan.records == 0:
                return BatchOutcome(self._hold.progress, bad=reduction.bad)
            return self._applied(reduction)
        finally:
            reduction.release()

    # 2 to 4

    def _reduced(self, plan: BatchPlan, bad: BadRecord | None = None) -> Reduction:
        for _ in range(MOST_PLANS):
            self._context.stop.check()
            self._settle()
            try:
                reduction = replace(self._reduce_once(plan), bad=bad)
            except RangeTooLargeError:
                if all(part.records <= 1 for part in plan.ranges):
                    raise
                # The number of records was chosen by the size of earlier records. These ones are larger.
                return self._reduced(replace(plan, ranges=halved(plan.ranges)), bad)
            with released_on_error(reduction.release):
                again = self._must_plan_again(reduction)
                if not again:
                    self._check_partitions(reduction.summary)
            if again:
                reduction.release()
                continue
            if reduction.summary.bad and self._settings.bad_record != "dead-letter":
                return self._cut_short(reduction)
            return self._cut_at_truncate(reduction) if reduction.truncates else reduction
        raise SchemaMismatchError(
            f"Records of the batch have unknown schemas or columns, although tidesink looked them up "
            f"{MOST_PLANS} times. Report this with the log.",
            table=str(self._settings.table),
        )

    def _settle(self) -> None:
        """Decide on DDL that renames columns, and on DDL that changes existing rows.

        Raises:
            ChangesWaitError: A statement waits for a person.
            TableEmptiesError: A statement requires that the table is emptied before the batch.
        """
        # Renames come first, because a table that is emptied gets the columns of the rows after the DDL.
        self._settled_names = settle_names(self._hold.table, self._decoding, self._policies)
        if self._settled_names.renamed:
            self._context.choices.keep(self._settled_names.chosen, self._hold.progress)
        self._row_ddl = self._decoding.row_ddl()
        topic, statements = self._plan.found.topic, up_to(self._row_ddl, self._hold.bound)
        self._row_decision = decide_rows(statements, self._policies, self._hold.progress, topic)
        if self._row_decision.pending:
            raise ChangesWaitError(self._row_decision.pending)
        if self._row_decision.empties is not None:
            raise TableEmptiesError(self._row_decision)

    def _reduce_once(self, plan: BatchPlan) -> Reduction:
        if self._staged:  # rows that were staged with the previous plan
            self._forget_staged()
        task = self._range_task(plan)
        with self._step("read"):
            range_frame = reduced_ranges(self._session, task, self._reader, checkpoint=self._checkpoints)
        for done in ("decoded", "reduced"):  # the same tasks have done these steps
            self._context.failpoints.reach(done)
        with released_on_error(range_frame.release):
            self._check_counted(range_frame)
        self._staged = range_frame.staged or ()
        return Reduction(plan, range_frame)

    def _range_task(self, plan: BatchPlan) -> RangeTask:
        """Returns the task that decodes and reduces the ranges of the batch."""
        number, marks = self._hold.progress.batch + 1, self._settings.deletes == "soft"
        decode_plan = self._decoding.columns().for_batch(number, self._rules(), marks_deletes=marks)
        sink = self._row_sink(plan, decode_plan)
        return RangeTask.of(plan.ranges, plan.found.topic_id, decode_plan, sink)

    def _row_sink(self, plan: BatchPlan, decode_plan: DecodePlan) -> RowSink | None:
        """Returns the sink with which tasks stage rows: they write the rows to the target, ahead of the
        commit. Returns None if the rows cannot be staged.

        Rows are staged if the target can stage them, and its columns need no change.
        """
        table = self._hold.table
        # In these orders a key may be in several ranges, whose rows are then reduced once more.
        again = len(plan.ranges) > 1 and (self._sequenced or self._history is not None)
        if again or not (self._stages and isinstance(table, StagingTable)):
            return None
        try:
            decision = self._schema_decision(decode_plan.packed_shape)
            gap = table.gap(kept_shape(decision.given, self._settings))
        except SchemaRefusedError:  # raised again after the batch is read, unless the read changes the plan
            return None
        if decision.pending or decision.drops or gap.added or gap.widened:
            return None
        self._staged_shape = decision.given
        keeps = decode_plan.keeps_values and not decode_plan.logs
        # The size of a range that several tables read together does not show how many rows this table has.
        lone = () if isinstance(self._reader, TableRecords) else plan.ranges
        fewest = min((part.records for part in lone if part.records), default=0)
        return table.row_sink(RowFormat(decision.given, self._settings.mode, self._sequenced, keeps, fewest))

    @property
    def _checkpoints(self) -> bool:
        """True if the reduced rows are stored as a checkpoint, because the target reads them more than once.

        Spark never recomputes a checkpoint, so each read returns the same rows.
        """
        return self._context.target.capabilities.rereads

    def _check_counted(self, range_frame: RangeFrame) -> None:
        if range_frame.summary.messages != range_frame.read.records:
            raise AccountingError(
                f"{range_frame.read.records} records were read, but the tasks counted "
                f"{range_frame.summary.messages}. Nothing was written. Report this with the log.",
                table=str(self._settings.table),
            )

    def _rules(self) -> EventRules:
        horizon, void = self._hold.horizon, self._hold.progress.emptied
        if self._reads_again and horizon is not None:
            # The target has already applied these changes. Or it has applied a later delete of the row, whose
            # tombstone is removed.
            void, horizon = max(horizon, void or 0), None
        return EventRules(
            sequenced=self._sequenced,
            versions=self._history is not None,
            horizon=horizon,
            truncates=not self._refuses_truncates,
            emptied=void,
            bound=self._hold.bound,
        )

    @property
    def _reads_again(self) -> bool:
        """True if the batch contains only changes that the table had applied before it was rewound.

        The batch may contain a change of a row that a later change deleted. Values that such a change omits
        are NULL until the delete is applied again.
        """
        topic = self._hold.progress.topics.get(self._plan.found.topic)
        again = topic.read_again if topic is not None else {}
        parts = [part for part in self._plan.ranges if part.records]
        return bool(parts) and all(n.partition in again and n.end <= again[n.partition].end for n in parts)

    def _must_plan_again(self, reduction: Reduction) -> bool:
        missed = Missed(reduction.summary, reduction.plan.ranges, reduction.plan.found)
        if reduction.read.unlisted:
            self._decoding.meet_others(missed)
            return True
        if reduction.truncates and len(reduction.plan.found.partitions) > 1:
            self._refuses_truncates = True
            return True
        # DDL of other tables is included: it may exchange a partition or a name with this table.
        if reduction.read.ddl and self._decoding.take_ddl(missed):
            return True
        if reduction.summary.is_to_learn and self._learnt(missed):
            return True
        # If DDL of rows was read after the batch started, rows of the batch may be later than this DDL.
        return self._decoding.row_ddl() != self._row_ddl or self._must_stage_again(reduction)

    def _must_stage_again(self, reduction: Reduction) -> bool:
        """Returns True if the rows were staged with other columns than the target will have after the
        decision on schema changes. The batch is then read again without staging.
        """
        if reduction.found.staged is None:
            return False
        decision = self._schema_decision(self._shape())
        if decision.pending or decision.given == self._staged_shape:
            return False
        self._stages = False
        return True

    def _learnt(self, missed: Missed) -> bool:
        if self._decoding.learn(missed):
            return True
        if missed.summary.unplanned:
            raise SchemaMismatchError(
                "The schemas of some records, or columns of their rows, cannot be found: "
                f"ids {missed.summary.unplanned_value_ids}, columns {missed.summary.unplanned_columns}. "
                "Check that the schema registry has these ids, or add a definition of the table under "
                "tables.",
                table=str(self._settings.table),
            )
        return False

    def _check_partitions(self, summary: BatchSummary) -> None:
        if summary.mixed_keys and not self._sequenced and self._history is None:
            raise MixedPartitionsError(mixed_message(summary.mixed_keys), table=str(self._settings.table))

    def _cut_short(self, reduction: Reduction) -> Reduction:
        """Reads the batch's ranges again, in each partition only up to its first bad record."""
        first = {(bad.place.topic, bad.place.partition): bad.offset for bad in reduction.summary.bad_records}
        plan = replace(reduction.plan, ranges=cut_before(reduction.plan.ranges, first))
        bad = reduction.summary.bad_records[0]
        if plan.records == 0:
            return replace(reduction, plan=plan, bad=bad)
        reduction.release()
        return self._reduced(plan, bad)

    def _cut_at_truncate(self, reduction: Reduction) -> Reduction:
        """Reads the batch's ranges again, but only up to the batch's truncate.

        If the truncate is the first record, reads only this record.
        """
        (part,), (truncate,) = reduction.plan.ranges, reduction.summary.truncates
        if part.records == 1:
            return reduction
        end = truncate.offset if truncate.offset > part.start else part.start + 1
        reduction.release()
        # A bad record after the truncate is found again in a later batch. The table must not pause at it
        # while rows before it are not applied.
        return self._reduced(replace(reduction.plan, ranges=(part._replace(end=end),)))

    # 5 to 9

    def _emptied(self, row_decision: RowDecision) -> BatchOutcome:
        """Empties the target table because of DDL such as TRUNCATE, in a batch without records.

        The next batch reads the records.
        """
        if self._staged:
            self._forget_staged()
        decision = self._schema_decision(self._shape())
        if decision.pending:
            return BatchOutcome(self._hold.progress, pending=decision.pending)
        nothing = replace(
            self._plan, ranges=tuple(part._replace(end=part.start) for part in self._plan.ranges)
        )
        progress = replace(
            self._following_progress(nothing, BatchSummary()),
            emptied=max(self._hold.progress.emptied or 0, row_decision.empties or 0),
            decided=row_decision.decided,
        )
        return self._without_records(progress, decision, truncates=True)

    def _without_records(
        self, progress: Progress, decision: SchemaDecision, *, truncates: bool
    ) -> BatchOutcome:
        """Commits progress without reading records. Also empties the table if ``truncates`` is True."""
        context = self._context
        evolved = self._prepared(progress, decision)
        context.failpoints.reach("committing")
        batch = ReducedBatch(
            decision.given,
            0,
            0,
            sequenced=self._sequenced,
            truncates=truncates,
            how=self._apply_options(),
            hooks=ApplyHooks(on_staged=self._commit_begins),
        )
        with self._step("committed"):
            result = self._commit(batch, progress)
        context.failpoints.reach("accounted")
        return BatchOutcome(
            progress,
            account=Account(),
            read=KafkaRead(0, 0),
            version=result.version,
            warnings=(*evolved.warnings, *decision.warnings),
            seconds=self._seconds,
        )

    def _prepared(self, progress: Progress, decision: SchemaDecision) -> EvolveResult:
        """Stores the batch's progress, and changes the target's columns (the steps recorded and evolved)."""
        self._context.stop.check()
        with self._step("recorded"):
            self._context.store.record_progress(progress)
            self._context.choices.keep(self._policy_choices(decision), progress)
        with self._step("evolved"):
            return self._evolved(decision)

    def _policy_choices(self, decision: SchemaDecision) -> Chosen:
        """Returns the decisions that policies in the config made for the batch: on renames, on DDL that
        changes rows, and on the columns (``decision``).
        """
        return {**self._settled_names.chosen, **self._row_decision.chosen, **decision.chosen}

    def _applied(self, reduction: Reduction) -> BatchOutcome:
        """Applies a batch after its changes were reduced: decides on schema changes, writes dead letters,
        commits the rows, and checks the counts.
        """
        context, summary = self._context, reduction.summary
        progress = self._next_progress(reduction)
        if not self._follows(progress):
            _log.info("batch read again after an election", table=str(self._settings.table))
            return BatchOutcome(self._hold.progress)
        schema_decision = self._schema_decision(self._shape())
        if schema_decision.pending:
            return BatchOutcome(self._hold.progress, pending=schema_decision.pending)
        if reduction.found.staged is not None and schema_decision.given != self._staged_shape:
            # Staged columns are matched by position. Another table's task may have read DDL that changes this
            # table's columns while this batch was read.
            self._forget_staged()
            raise TransientTargetError(
                "The table's columns changed while the batch was read. Nothing was committed, and the batch "
                "is tried again.",
                table=str(self._settings.table),
            )
        evolved = self._prepared(progress, schema_decision)
        with self._step("rejected"):
            rejected = self._reject(reduction, progress)
            topic_id = reduction.plan.found.topic_id
            last_ddl = keep_ddl(context, reduction.frame, topic_id, progress) if summary.ddl else None
        context.failpoints.reach("committing")
        left = list[str]()
        batch = self._reduced_batch(reduction, schema_decision)
        batch = replace(batch, hooks=replace(batch.hooks, on_left=left.append))
        with self._step("committed"):
            result = self._commit(batch, progress)
        account = self._checked_account(reduction, result, rejected)
        context.failpoints.reach("accounted")
        return BatchOutcome(
            progress,
            account=account,
            read=reduction.read,
            bad=reduction.bad,
            version=result.version,
            zero_dates=summary.zero_dates,
            ambiguous_times=summary.ambiguous_times,
            warned=summary.warned,
            first_warnings=summary.first_warnings,
            warnings=(*evolved.warnings, *schema_decision.warnings),
            seconds=self._seconds,
            filtered=filtered_of(summary, last_ddl),
            left="".join(left[-1:]) if summary.upserts or summary.deletes else None,
        )

    def _next_progress(self, reduction: Reduction) -> Progress:
        """Returns the table's progress after the batch."""
        progress = self._following_progress(reduction.plan, reduction.summary)
        return replace(progress, decided=self._row_decision.decided)

    def _following_progress(self, plan: BatchPlan, summary: BatchSummary) -> Progress:
        before = self._hold.progress
        return replace(
            before,
            epoch=self._hold.epoch,
            batch=before.batch + 1,
            topics={**before.topics, plan.found.topic: self._topic_progress(plan, summary)},
            commit_ts=greatest([before.commit_ts, summary.max_commit_ts]),
            snapshot=before.snapshot or (SnapshotProgress(()) if self._hold.loads else None),
            bound=self._hold.bound,
        )

    def _topic_progress(self, plan: BatchPlan, summary: BatchSummary) -> TopicProgress:
        read = {
            part.partition: (part.end, summary.places.get(TopicPartition(part.topic, part.partition)))
            for part in plan.ranges
        }
        topic_offsets = plan.found
        before, bound = self._hold.progress, self._hold.bound
        # In a read that several tables share, the last record of a partition may belong to another table.
        shared = self._reader.last if isinstance(self._reader, TableRecords) else {}
        return topic_after(
            before, topic_offsets.topic, topic_offsets.topic_id, read, bound, plan.last, shared
        )

    def _follows(self, progress: Progress) -> bool:
        """Returns True if Kafka's logs still contain the records that earlier batches read.

        Raises:
            SourceError: The logs were cut and can never contain them (``CheckedLogs.follows``).
        """
        topic_offsets, before = self._plan.found, self._hold.progress.topics.get(self._plan.found.topic)
        last_records = {**(before.last_records if before is not None else {}), **self._plan.last}
        return self._plan.follows(
            topic_offsets, last_records, progress.topics[topic_offsets.topic].last_records
        )

    def _checked_account(self, reduction: Reduction, result: ApplyResult, rejected: int) -> Account:
        """Returns the counts of the batch.

        Raises:
            AccountingError: The counts do not add up.
        """
        account = account_of(
            reduction.summary,
            kafka_records=reduction.read.records,
            # Emptying a table is one event, no matter how many rows it had.
            applied_rows=1 if reduction.truncates else result.applied,
            rejected=rejected,
            stale_rows=result.stale,
            row_by_row=reduction.found.row_by_row_records,
        )
        account.check(table=str(self._settings.table))
        return account

    def _schema_decision(self, shape: TargetSchema) -> SchemaDecision:
        """Returns the decision on schema changes: on the differences between the target's columns and
        ``shape``, the columns of the batch's rows.
        """
        reported = source_columns_of(self._decoding, self._policies)
        gap = self._hold.table.gap(kept_shape(shape, self._settings))
        schema_decision, known_columns = (
            decide_changes(gap, shape, self._policies, reported),
            self._hold.known,
        )
        if known_columns is None:
            return schema_decision
        fold = self._decoding.columns().rows.shape.fold
        return known_columns.schema_decision(schema_decision, gap.added, fold)

    def _evolved(self, schema_decision: SchemaDecision) -> EvolveResult:
        if schema_decision.drops:
            self._hold.table.drop_columns(schema_decision.drops)
        return self._hold.table.evolve(kept_shape(schema_decision.given, self._settings))

    def _reduced_batch(self, reduction: Reduction, schema_decision: SchemaDecision) -> ReducedBatch:
        shape, summary, range_frame = schema_decision.given, reduction.summary, reduction.found
        first, capabilities = shape.key_columns[0].name, self._context.target.capabilities
        packed = range_frame.staged is not None or (range_frame.payloads is not None and capabilities.packed)
        return ReducedBatch(
            shape,
            upserts=summary.upserts,
            deletes=summary.deletes,
            frame=None if packed else self._frame(reduction, schema_decision),
            checkpointed=self._checkpoints,
            payloads=range_frame.payloads,
            staged=range_frame.staged,
            key_range={first: summary.key_range} if summary.key_range else {},
            keeps=summary.omitted > 0,
            sequenced=self._sequenced,
            since=summary.min_commit_ts,
            truncates=reduction.truncates,
            how=replace(
                self._apply_options(),
                on_delete=self._on_delete(shape),
                lenient=self._settings.ignore_null_updates or self._hold.loads or self._reads_again,
            ),
            hooks=ApplyHooks(
                on_staged=self._commit_begins,
                on_written=self._context.failpoints.if_armed("written"),
                on_located=lambda: self._context.failpoints.reach("located"),
            ),
        )

    def _apply_options(self) -> ApplyOptions:
        """Returns the options that do not depend on the batch's rows."""
        return ApplyOptions(
            mode=self._settings.mode,
            delete_mode=self._settings.deletes,
            history=self._history,
            outside=self._hold.outside,
        )

    def _on_delete(self, shape: TargetSchema) -> tuple[str, ...]:
        names = self._settings.metadata_columns.values() if self._settings.deletes == "soft" else ()
        return tuple(name for name in names if shape.find(name) is not None)

    def _frame(self, reduction: Reduction, schema_decision: SchemaDecision) -> DataFrame:
        """Returns a frame of the rows to write, without the columns that the schema decision excludes."""
        rows = rows_to_write(reduction.frame, reduction.summary.rows, self._settings)
        return omitting(rows, schema_decision)

    def _shape(self) -> TargetSchema:
        return self._decoding.columns().packed_shape

    def _reject(self, reduction: Reduction, progress: Progress) -> int:
        """Writes the batch's bad records to the dead-letter topic.

        Returns the number of bad events whose letters Kafka acknowledged.

        If the batch is tried again, the letters are written again. Readers of the dead-letter topic skip such
        duplicates.
        """
        if not reduction.summary.bad:
            return 0
        letters, plan = self._context.dead_letters(), reduction.plan
        letters.prepare()
        source, codec = self._context.source, self._context.config.source.protocol
        stamp = LetterStamp.of(progress, topic_id=plan.found.topic_id, codec=codec)
        written = write_bad_records(reduction.frame, source.fetch, letters.topic, stamp)
        return reduction.summary.bad - (written.records - written.acknowledged)

    def _commit(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        table = self._hold.table
        try:
            return table.apply(batch, progress)
        except CommitUnknownError as exc:
            held = self._context.retry(self._settings.table).call(table.committed)
            if held is None or held.txn_version < progress.txn_version:
                raise TransientTargetError(
                    "The commit was interrupted and did not happen. The batch is tried again.",
                    table=str(self._settings.table),
                ) from exc
            # The commit did happen. When the target gets the batch again, it returns that commit's numbers.
            return table.apply(batch, progress)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - started
        self._context.failpoints.reach(name)


def applied_event(table: TableId, outcome: BatchOutcome) -> BatchApplied:
    """Returns the event that reports a committed batch to the worker's listeners."""
    assert outcome.account is not None and outcome.read is not None  # noqa: S101, PT018  (an applied batch)
    return BatchApplied(
        table,
        outcome.progress.batch,
        outcome.account,
        outcome.version,
        outcome.progress.commit_ts,
        bytes_read=outcome.read.bytes,
        seconds=dict(outcome.seconds),
        warned=outcome.warned,
        first_warnings=outcome.first_warnings,
    )


@contextmanager
def released_on_error(release: Callable[[], object]) -> Iterator[None]:
    """Call ``release`` if the block raises an exception."""
    try:
        yield
    except BaseException:
        release()
        raise
