"""One batch of one table, from the choice of offsets to the commit in the target.

The steps:

1. planned: the offsets of the batch are fixed.
2. read, 3. decoded, 4. reduced: tasks fetch, decode and reduce the records (``batch.tasks``). They return
   counts and packed rows, or send the rows to a target that can stage them (``StagingTable``). If the plan
   does not have a schema or a column, it is looked up, and the batch is read again. Under ``bad-record:
   pause`` a batch with a bad record is read again up to this record (``jobs.reading``).
5. recorded: the state store has the progress that the batch will have. If a schema change or DDL waits for a
   person, the batch ends before this step.
6. evolved: the target has the columns of the batch.
7. rejected: the dead letters are written.
8. committed: the target has the rows and the progress.
9. accounted: the counts of the batch add up (``laws.counts``).

All steps up to 7 can be repeated without applying a change twice. After step 8, no step of the batch is
repeated. A job without records has the steps 1, 5, 6, 8 and 9. If DDL empties the table, such a job
(``Empty``) replaces the job that reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from tidesink.errors import CommitUnknownError, TransientTargetError
from tidesink.events import TableId
from tidesink.sinks.batch.reports import KafkaRead
from tidesink.sinks.batch.source import omitting, rows_to_write, translated_read_errors
from tidesink.sinks.decode.records import BAD
from tidesink.sinks.jobs.base import (
    BatchOutcome,
    EmptyFirst,
    Hold,
    Job,
    ReadingJob,
    Reduction,
    Services,
    Settled,
    Staged,
    Waits,
)
from tidesink.sinks.jobs.reading import BatchSchema, Reading, Staging, Steps, reads_again
from tidesink.sinks.laws.counts import Account, filtered_of
from tidesink.sinks.laws.modes import kept_shape
from tidesink.sinks.letters.tasks import FAULT_COLUMNS, write_bad_records
from tidesink.sinks.letters.topic import LetterStamp
from tidesink.sinks.runtime.observers import BatchApplied
from tidesink.sinks.runtime.stored_ddl import keep_ddl
from tidesink.sinks.schema_changes.decisions import SchemaDecision, SettledNames
from tidesink.sinks.schema_changes.row_ddl import RowDecision
from tidesink.sinks.targets.base import (
    ApplyHooks,
    ApplyOptions,
    ApplyResult,
    EvolveResult,
    ReducedBatch,
    StagedRowsRefusedError,
    nothing,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidesink.sinks.state.progress import Progress
    from tidesink.typemap.target_schema import TargetSchema

_log = structlog.get_logger("tidesink.worker")


def run_batch(job: Job | ReadingJob, hold: Hold, services: Services) -> BatchOutcome:
    """Run the steps of one batch.

    Args:
        job: Describes what the batch reads and changes.
        hold: The open table with its progress.
        services: The parts of the worker.

    Raises:
        TidesinkError: A step failed. The error's ``remedy`` determines whether the batch is tried again or
            the table stops.
        StopRequestedError: A stop was requested before the commit.
    """
    batch = BatchRun(job, hold, services)
    with translated_read_errors(job.plan.found.topic):
        try:
            outcome = batch.outcome()
        except StagedRowsRefusedError:
            # The target does not accept the staged rows of these tasks. Read the batch again without staging.
            batch.staging.refused()
            outcome = batch.outcome()
        except Exception:
            batch.staging.abandon()
            raise
    if outcome.account is None:
        batch.staging.forget()
    return outcome


class BatchRun:
    """The steps of one batch. Every try needs a new object.

    ``staging``: the rows that are staged in the target.
    """

    def __init__(self, job: Job | ReadingJob, hold: Hold, services: Services) -> None:
        self._job = job
        self._hold = hold
        self._services = services
        self._context = services.context
        self._schema = BatchSchema(hold, services)
        self._steps = Steps(services.context.failpoints, job.failpoints)
        self.staging = Staging(hold)

    def outcome(self) -> BatchOutcome:
        """Run the steps, and return the outcome."""
        self._steps.reach("planned")
        settled = Settled(SettledNames(), RowDecision(decided=self._hold.progress.decided))
        if isinstance(self._job, ReadingJob):
            return self._read(self._job, settled)
        return self._changed(self._job, settled)

    def _read(self, job: ReadingJob, settled: Settled) -> BatchOutcome:
        """Read the batch, and apply it: the steps 2 to 9 of a job that reads."""
        job.catch_up(self._services.decoding)
        reading = Reading(job, self._hold, self._services, self._steps, self._schema, self.staging, settled)
        with ExitStack() as opened:
            reduction = reading.reduced(job.plan, opened)
            if isinstance(reduction, Waits):
                return BatchOutcome(self._hold.progress, pending=reduction.pending)
            if isinstance(reduction, EmptyFirst):
                self.staging.forget_rows()
                return self._changed(job.emptied(reduction.rows, self._hold), reading.settled)
            opened.callback(reduction.results.release)
            if reduction.bad is not None and not reduction.plan.records:
                return BatchOutcome(self._hold.progress, bad=reduction.bad)
            return self.applied(job, reduction)

    # 5 to 9

    def _changed(self, job: Job, settled: Settled) -> BatchOutcome:
        """Commit a job without records."""
        decision = job.decided(self._schema.decision(self._shape()))
        if decision.pending:
            return BatchOutcome(self._hold.progress, pending=decision.pending)
        progress = job.progress(self._hold, settled)
        evolved = self._prepared(progress, decision, settled)
        self._steps.reach("committing")
        batch = ReducedBatch(
            decision.given,
            0,
            0,
            sequenced=self._services.sequenced,
            truncates=job.empties,
            how=self._apply_options(),
            hooks=ApplyHooks(on_staged=self._commit_begins),
        )
        result = self._committed(batch, progress)
        self._steps.reach("accounted")
        return BatchOutcome(
            progress,
            account=Account(),
            read=KafkaRead(0, 0),
            version=result.version,
            warnings=(*evolved.warnings, *decision.warnings),
            seconds=self._steps.seconds,
        )

    def applied(self, job: ReadingJob, reduction: Reduction) -> BatchOutcome:
        """Commit the rows of a job that reads."""
        summary = reduction.summary
        if not job.applies(summary):
            return self._counted(job, reduction, BatchOutcome(self._hold.progress), None, 0)
        progress = job.progress(reduction, self._hold, self._services)
        if not self.follows(progress):
            _log.info("batch read again after an election", table=str(self._services.settings.table))
            return BatchOutcome(self._hold.progress)
        decision = job.decided(self._schema.decision(self._shape()))
        if decision.pending:
            return BatchOutcome(self._hold.progress, pending=decision.pending)
        self._check_staged(reduction, decision)
        evolved = self._prepared(progress, decision, reduction.settled)
        with self._steps.step("rejected"):
            rejected = self._rejected(job, reduction, progress)
            last_ddl = self._kept_ddl(job, reduction, progress)
        self._steps.reach("committing")
        left = list[str]()
        result = self._committed(job.adjusted(self.reduced_batch(reduction, decision, left.append)), progress)
        outcome = BatchOutcome(
            progress,
            bad=reduction.bad,
            version=result.version,
            warnings=(*evolved.warnings, *decision.warnings),
            filtered=filtered_of(summary.counts, last_ddl),
            left="".join(left[-1:]) if summary.counts.rows else None,
        )
        return self._counted(job, reduction, outcome, result, rejected)

    def _check_staged(self, reduction: Reduction, decision: SchemaDecision) -> None:
        """Check that rows are staged with the columns that the target will have.

        Another table's task may have read DDL that changes this table's columns since the job accepted the
        batch.

        Raises:
            TransientTargetError: The columns have changed.
        """
        rows = reduction.rows
        if isinstance(rows, Staged) and not rows.has_columns_of(decision):
            raise TransientTargetError(
                "The table's columns changed while the batch was read. Nothing was committed, and the batch "
                "is tried again.",
                table=str(self._services.settings.table),
            )

    def _prepared(self, progress: Progress, decision: SchemaDecision, settled: Settled) -> EvolveResult:
        """Stores the batch's progress, and changes the target's columns (the steps recorded and evolved)."""
        self._context.stop.check()
        with self._steps.step("recorded"):
            self._context.store.record_progress(progress)
            # The decisions that policies in the config made for the batch.
            chosen = {**settled.names.chosen, **settled.rows.chosen, **decision.chosen}
            self._context.choices.keep(chosen, progress)
        with self._steps.step("evolved"):
            if decision.drops:
                self._hold.table.drop_columns(decision.drops)
            return self._hold.table.evolve(kept_shape(decision.given, self._services.settings))

    def _rejected(self, job: ReadingJob, reduction: Reduction, progress: Progress) -> int:
        """Writes the batch's bad records to the dead-letter topic.

        Returns the number of bad events whose letters Kafka acknowledged.

        If the batch is tried again, the letters are written again. Readers of the dead-letter topic skip such
        duplicates.
        """
        if not (job.writes_letters and reduction.summary.counts.bad):
            return 0
        letters, plan = self._context.dead_letters(), reduction.plan
        letters.prepare()
        source, codec = self._context.source, self._context.config.source.protocol
        stamp = LetterStamp.of(progress, topic_id=plan.found.topic_id, codec=codec)
        bad = reduction.results.rows_of(BAD, FAULT_COLUMNS)
        written = write_bad_records(bad, source.fetch, letters.topic, stamp)
        return reduction.summary.counts.bad - (written.records - written.acknowledged)

    def _kept_ddl(
        self, job: ReadingJob, reduction: Reduction, progress: Progress
    ) -> Mapping[str, Any] | None:
        """Stores the batch's DDL events. Returns the newest one, or None."""
        if not (job.writes_letters and reduction.summary.counts.ddl):
            return None
        context, topic_id = self._context, reduction.plan.found.topic_id
        return keep_ddl(context.store, context.source, reduction.summary.ddl, topic_id, progress)

    def _committed(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        with self._steps.step("committed"):
            return self._commit(batch, progress)

    def _commit(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        table, name = self._hold.table, self._services.settings.table
        try:
            return table.apply(batch, progress)
        except CommitUnknownError as exc:
            held = self._context.retry(name).call(table.committed)
            if held is None or held.txn_version < progress.txn_version:
                raise TransientTargetError(
                    "The commit was interrupted and did not happen. The batch is tried again.",
                    table=str(name),
                ) from exc
            # The commit did happen. When the target gets the batch again, it returns that commit's numbers.
            return table.apply(batch, progress)

    def _counted(
        self,
        job: ReadingJob,
        reduction: Reduction,
        outcome: BatchOutcome,
        result: ApplyResult | None,
        rejected: int,
    ) -> BatchOutcome:
        """Returns the outcome with the counts of the batch.

        Raises:
            AccountingError: The counts do not add up.
        """
        account = job.account(reduction, result, rejected, self._services)
        account.check(table=str(self._services.settings.table))
        self._steps.reach("accounted")
        return replace(
            outcome,
            account=account,
            read=reduction.results.read,
            findings=reduction.summary.findings,
            seconds=self._steps.seconds,
            results=reduction.results,
        )

    # The parts of the steps

    def _shape(self) -> TargetSchema:
        return self._services.decoding.columns().packed_shape

    def _commit_begins(self) -> None:
        self.staging.commit_begins()
        self._steps.reach("staged")

    def follows(self, progress: Progress) -> bool:
        """Returns True if Kafka's logs still contain the records that earlier batches read.

        Raises:
            SourceError: The logs were cut and can never contain them (``CheckedLogs.follows``).
        """
        plan = self._job.plan
        before = self._hold.progress.topics.get(plan.found.topic)
        last_records = {**(before.last_records if before is not None else {}), **plan.last}
        return plan.follows(plan.found, last_records, progress.topics[plan.found.topic].last_records)

    def reduced_batch(
        self, reduction: Reduction, decision: SchemaDecision, on_left: Callable[[str], None] = nothing
    ) -> ReducedBatch:
        """Returns the batch for the target."""
        shape, results = decision.given, reduction.results
        counts, row_facts = reduction.summary.counts, reduction.summary.row_facts
        first, settings = shape.key_columns[0].name, self._services.settings
        staged = reduction.rows.parts if isinstance(reduction.rows, Staged) else None
        packs = results.payloads is not None and self._context.target.capabilities.packed
        return ReducedBatch(
            shape,
            upserts=counts.upserts,
            deletes=counts.deletes,
            make_frame=None if packs or staged is not None else partial(self._frame, reduction, decision),
            checkpointed=reduction.checkpointed,
            payloads=results.payloads,
            staged=staged,
            key_range={first: row_facts.key_range} if row_facts.key_range else {},
            keeps=row_facts.omitted > 0,
            sequenced=self._services.sequenced,
            since=row_facts.min_commit_ts,
            truncates=reduction.truncates,
            how=replace(
                self._apply_options(),
                on_delete=self._on_delete(shape),
                lenient=settings.ignore_null_updates
                or self._hold.loads
                or reads_again(self._hold, self._job.plan),
            ),
            hooks=ApplyHooks(
                on_staged=self._commit_begins,
                on_written=self._context.failpoints.if_armed("written"),
                on_located=lambda: self._context.failpoints.reach("located"),
                on_left=on_left,
            ),
        )

    def _apply_options(self) -> ApplyOptions:
        """Returns the options that do not depend on the batch's rows."""
        settings = self._services.settings
        return ApplyOptions(
            mode=settings.mode,
            delete_mode=settings.deletes,
            history=self._services.history,
            outside=self._hold.outside,
        )

    def _on_delete(self, shape: TargetSchema) -> tuple[str, ...]:
        settings = self._services.settings
        names = settings.metadata_columns.values() if settings.deletes == "soft" else ()
        return tuple(name for name in names if shape.find(name) is not None)

    def _frame(self, reduction: Reduction, decision: SchemaDecision) -> DataFrame:
        """Returns a frame of the rows to write, without the columns that the schema decision excludes."""
        settings = self._services.settings
        rows = rows_to_write(reduction.results.frame, reduction.summary.counts.rows, settings)
        return omitting(rows, decision.omitted, decision.given)


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
        warned=outcome.findings.warned,
        first_warnings=outcome.findings.first_warnings,
    )
