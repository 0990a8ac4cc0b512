"""The task of one table in a worker: opens it, runs its batches, counts its events, and saves its status."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog

from tidesink.errors import (
    AccountingError,
    ConfigError,
    SchemaRefusedError,
    SourceError,
    SourceUnavailableError,
    StaleProgressError,
    StateStoreError,
    TidesinkError,
    ValueOutOfRangeError,
    error_text,
    type_change_way,
    with_table,
)
from tidesink.events import TableId
from tidesink.sinks.batch.context import Cooldown, StopRequestedError, WorkerContext, may_pass
from tidesink.sinks.batch.counts import passed
from tidesink.sinks.batch.observers import BatchStarted, TableChanged, TableReport
from tidesink.sinks.batch.row_ddl import unfollowed
from tidesink.sinks.batch.run import Batch, BatchOutcome, BatchPlan, applied_event
from tidesink.sinks.batch.schema_changes import Policies, pending_of
from tidesink.sinks.batch.source import RecordReader, fit_shuffle
from tidesink.sinks.batch.topic_ddl import DDL_PARTITION
from tidesink.sinks.kafka.offsets import (
    TopicOffsets,
    is_other_topic,
    topic_deleted,
    waiting_records,
)
from tidesink.sinks.spark.errors import fault_of
from tidesink.sinks.state.progress import UNKNOWN_SCHEMA, Progress, TableState, TableStatus
from tidesink.sinks.worker.control import PLACE, Pauses, TableControl
from tidesink.sinks.worker.counters import TableCounters
from tidesink.sinks.worker.open_table import OpenTable
from tidesink.sinks.worker.outages import LAG, OLDEST, OldestRecords, SavedStatus
from tidesink.sinks.worker.preflight import shown_target
from tidesink.sinks.worker.reading import Reading
from tidesink.sinks.worker.rewind import RewindBatch, Rewinds, refused, rewind_details
from tidesink.sinks.worker.snapshot import KeyOrderError, Snapshot, SnapshotBatch, SnapshotRefusedError
from tidesink.sinks.worker.source_ddl import SourceDdl
from tidesink.sinks.worker.sweep import SweepBatch
from tidesink.sinks.worker.turns import Job, Look, Steps, next_job

_log = structlog.get_logger("tidesink.worker")
_RESTART: Final = "restart the worker (`tidesink run`)"
_TAKEN: Final = (
    "Another worker has taken over this table, as its status shows. Run only one worker for each table."
)


class TableTask:
    """The work of one table in a worker.

    Each batch runs ``work`` in a thread of its own. The worker's main thread calls the other methods while no
    batch of the table runs, except where a docstring allows more.

    Attributes:
        topic: The topic of the table's changes.
        table: The table.
        state: The table's state, as in its status: IDLE, RUNNING, PAUSED or FAILING.
        batches: Number of batches in this run.
        turn: Number of the table's last batch, counted over the batches of all tables in this run; 0 before
            the first one.
        opened: The table at the target, with its progress and the decoding of its topic.
        reading: How far the table has read its topic, and what comes next.
        cooldown: The wait before the retry, after a failure that may pass.
    """

    def __init__(self, context: WorkerContext, topic: str, table: TableId) -> None:
        """Create the task. The table is not opened yet."""
        self.topic = topic
        self.table = table
        self.state: TableState = "IDLE"
        self.batches = self.turn = 0
        self.cooldown = Cooldown(context.config.retry.for_)
        self._context = context
        self._counters = TableCounters()
        self._error: str | None = None
        self._refusal: TidesinkError | None = None
        # Warnings about DDL in the topic that changed rows at the source and was not applied to the target.
        self._unfollowed: tuple[str, ...] = ()
        self._owes_law = False
        self._pauses = Pauses(table)
        self.opened = OpenTable(context, topic, table, self._counters, self._pauses)
        settings = self.opened.settings
        self._snapshot = Snapshot(context, settings)
        self.reading = Reading(context, self.opened, self._snapshot)
        self._rewinds = Rewinds(context, settings)
        self._ddl = SourceDdl(context, settings)
        self._oldest = OldestRecords(topic, context.source.fetch)
        self._saved = SavedStatus(context.failures.clock)
        context.failures.follow(table, self._failure_changed)
        self._ended = time.monotonic()

    def look(self, offsets: TopicOffsets | None) -> None:
        """Record the topic's current offsets, and compute the table's lag from them.

        If the table is paused or failing, its status is saved with the new lag. Before the table is opened,
        all records of the topic count as lag.
        """
        if offsets is None:
            return
        self.reading.look(offsets)
        if self.state in ("PAUSED", "FAILING") and self._saved.lacks_lag(self.reading.lag):
            self._save_quietly()
        if offsets.compaction is not None and self.opened.hold is not None:
            batch, caught_up = self.opened.hold.progress.batch, self._counters.caught_up
            ends = {n: partition.latest for n, partition in offsets.partitions.items()}
            caught_up.see(ends, self.reading.next_offsets(), batch=batch, now=self._context.clock())
            if self.state == "IDLE" and caught_up.is_due(offsets.compaction):
                self._change("IDLE", None)

    def has_work(self, offsets: TopicOffsets | None) -> bool:
        """Return True if ``work`` has something to do: records, a part of a snapshot, or an error to report.

        ``offsets``: the topic's current offsets, or None if the topic does not exist. Makes no request to
        Kafka or the target.
        """
        if self.state in ("PAUSED", "FAILING"):
            return False
        if self.opened.hold is None or offsets is None:
            if offsets is not None and self.opened.awaits_record:
                return self.opened.start.has_records(offsets)
            unmet = self.table in self._context.topics.tables(self.topic).unmet
            return (
                offsets is None
                or unmet
                or any(partition.latest > 0 for partition in offsets.partitions.values())
            )
        applied, progress = self.opened.hold.progress, self.opened.topic_progress
        if progress is not None and is_other_topic(progress.topic_id, offsets.topic_id):
            return True
        if self._rewinds.is_due(applied) or self.is_short(offsets) or self._reads_part(applied, offsets):
            return True
        if self._snapshot.is_outrun(applied):
            return True
        if self._context.config.cuts is None:
            return self.has_ddl or self.reading.lag > 0
        return self.reading.may_read and (self.has_ddl or self.reading.unread(offsets) > 0)

    @property
    def has_ddl(self) -> bool:
        """Return True if a statement in the connector's DDL topic must be decided about now."""
        return self.opened.hold is not None and self._ddl.is_due(self.opened.hold.progress)

    @property
    def is_opening(self) -> bool:
        """Return True if the table was not opened yet and has not failed. May be called during a batch."""
        return not self.opened.was_opened and not self.is_failing

    @property
    def applied(self) -> int:
        """Number of row events that all runs together have applied to the table."""
        return self._counters.total.applied

    @property
    def looks_again(self) -> bool:
        """Return True if the snapshot waits for open transactions and it is time to check them again."""
        return self._snapshot.looks_again

    @property
    def obstacle(self) -> str:
        """The state and the error of a paused or failing table; empty for other tables.

        Such a table cannot reach the bound of a cut.
        """
        return f"{self.state}: {self._error}" if self.state in ("PAUSED", "FAILING") else ""

    def follows_from(self, offsets: TopicOffsets | None) -> Mapping[int, int] | None:
        """Return the next offset per partition if the table is up to date, except for a few new records.

        The worker then checks if these records are only watermarks, which need no batch yet. Returns None if
        this check is not needed: a batch is needed in any case, the table is stopped or not open, or its
        topic has no watermarks.
        """
        if offsets is None or self.state in ("PAUSED", "FAILING") or self.opened.hold is None:
            return None
        progress = self.opened.topic_progress
        again = (progress is not None and progress.read_again) or self._reads_part(
            self.opened.hold.progress, offsets
        )
        if again or self.has_ddl or self._rewinds.is_due(self.opened.hold.progress):
            return None
        return self.reading.nearly_read_up_to(offsets)

    @property
    def rested(self) -> float:
        """Seconds since the table's last batch ended."""
        return time.monotonic() - self._ended

    def work(self, offsets: TopicOffsets | None, *, passes: bool = False) -> None:
        """Run one batch. On an error, set the state to PAUSED or FAILING and raise nothing.

        ``offsets``: the topic's current offsets, or None if it does not exist. ``passes``: True if records
        that contain nothing for the table may be skipped without a commit.
        """
        try:
            self._work(offsets, passes=passes)
            self.recover()
        except StopRequestedError:
            _log.debug("batch abandoned", table=str(self.table))
        except SchemaRefusedError as exc:
            self._refused(exc)
        except TidesinkError as exc:
            # After a stop, errors that may pass are not reported. Counts that do not add up are, even then.
            if not self._context.stop or not may_pass(exc):
                self._fail(exc, passes=may_pass(exc))
        except Exception as exc:  # noqa: BLE001
            # An unexpected error of one table must not stop the others. A stop cancels Spark jobs: no error.
            if not self._context.stop:
                _log.error("table failed", table=str(self.table), trace=fault_of(exc).trace)
                self._fail(exc, passes=False)
        finally:
            self._ended = time.monotonic()
            self._settle()

    def fail(self, error: TidesinkError) -> None:
        """Set the state to FAILING for an error outside the task, unless the table is already stopped."""
        if self.state not in ("PAUSED", "FAILING"):
            self._fail(error, passes=may_pass(error))
            self._settle()

    @property
    def is_failing(self) -> bool:
        """Return True if the task's last step failed, also while the step is being retried."""
        return self._context.failures.of(self.table) is not None

    def await_topic(self, error: TidesinkError, pause: float) -> None:
        """Record that no broker answers for the topic, and that the retry is in ``pause`` seconds."""
        if self.state not in ("PAUSED", "FAILING"):
            self._context.failures.failed(self.table, error, pause)

    def recover(self) -> None:
        """Record that the table's current failure is over, because a step succeeded."""
        if self.state != "FAILING":
            self._context.failures.passed(self.table)

    def tell_failure(self) -> None:
        """Save the task's current failure, if any, in the status when the worker ends."""
        if self.is_failing:
            self._save_quietly()

    def _failure_changed(self) -> None:
        """Save the status when a failure begins, is retried or ends. Of quick retries, saves only some."""
        failure = self._context.failures.of(self.table)
        if self._saved.lacks(failure):
            self._save_quietly()

    def _save_quietly(self) -> None:
        """Save the status. If that fails, log the error and let the current step continue."""
        if self.table.schema == UNKNOWN_SCHEMA:
            return
        try:
            # Earlier runs' counters must be loaded before the first save, which would overwrite them with 0.
            self._counters.resume(self._context, self.table)
            self._save(self._status())
        except StateStoreError as exc:
            _log.debug("status not saved", table=str(self.table), error=str(exc))
        except Exception as exc:  # noqa: BLE001  (the current step must continue in any case)
            _log.warning("status not saved", table=str(self.table), error=type(exc).__name__)

    def refuse(self, error: TidesinkError) -> None:
        """Set the table's state to FAILING with this error for the whole run, also after a resume request."""
        self._refusal = error
        self.fail(error)

    def apply_control(self, asked: TableControl) -> None:
        """Pause or resume the table if a user requested it since the last call. Not called during a batch."""
        self._save_law()
        self._snapshot.asked, self._rewinds.asked = asked.snapshot, asked.rewind
        turn = self._pauses.apply_control(asked, waits=self.state in ("PAUSED", "FAILING"))
        if turn == "rest":
            self.close()
            self._change("PAUSED", self._pauses.reason)
            self._settle()
        elif turn == "go on":
            self.opened.forget_columns()  # what failed before may succeed now
            self._begin_again()

    def leave(self) -> None:
        """Stop reading the table's topic in this run, so that no records are kept for the table."""
        self._settle(away=True)

    @property
    def cools_down(self) -> bool:
        """Return True if the task failed with an error that may pass, and waits before the retry."""
        return self.state == "FAILING" and self.cooldown.running

    @property
    def is_stuck(self) -> bool:
        """Return True if the table continues only after a user's intervention.

        False for a failure that may pass, which is retried.
        """
        return self.state == "PAUSED" or (self.state == "FAILING" and not self.cooldown.started)

    @property
    def awaits_topic(self) -> bool:
        """Return True if the task needs its topic now, so that a missing topic is an error.

        This is the case if the task is not stopped, or if the retry after a failure is due.
        """
        return self.state not in ("PAUSED", "FAILING") or self.cooldown.over

    def is_short(self, offsets: TopicOffsets) -> bool:
        """Return True if a partition ends below the table's next offset, and the task needs its topic now.

        Either the topic was replaced, or a broker has answered with outdated offsets.
        """
        return self.awaits_topic and self.reading.is_short(offsets)

    def wake(self) -> None:
        """Set a failing table to IDLE when the wait before the retry is over, so that it is opened again."""
        if self.table.schema == UNKNOWN_SCHEMA:
            return  # no table to open: the next look-up of the topic's tables is the retry
        if self.state == "FAILING" and self.cooldown.over:
            self._begin_again()

    def rest(self) -> None:
        """Set a RUNNING table to IDLE, because it has no records to read."""
        self._save_law()
        if self.state == "RUNNING":
            self._change("IDLE", None)
            self._settle()  # saving the status may have shown that another worker has the table

    def close(self) -> None:
        """Close the table at the target, if it is open."""
        self.opened.close()
        self.reading.forget()

    def report(self) -> TableReport:
        """Return the table's state and the counters of this run."""
        progress = self.opened.progress
        return TableReport(
            table=self.table,
            topic=self.topic,
            state=self.state,
            batch=progress.batch if progress else 0,
            batches=self.batches,
            commit_ts=progress.commit_ts if progress else None,
            lag=self.reading.known_lag(),
            counters=self._counters.run.as_counters(),
            zero_dates=dict(self._counters.run_zero_dates),
            ambiguous_times=dict(self._counters.run_ambiguous_times),
            warnings=self._warnings(),
            error=self._error,
        )

    def _begin_again(self) -> None:
        self.close()
        if self._refusal is None:
            self._change("IDLE", None)
        else:
            self._fail(self._refusal, passes=False)

    def _work(self, offsets: TopicOffsets | None, *, passes: bool) -> None:
        """Do the table's next jobs until one ends the turn. Unlike ``work``, raises the jobs' errors."""
        self.reading.stalled = False
        if offsets is None:
            raise topic_deleted(self.topic)
        self.opened.continuity.refuse_mode(offsets)
        steps: Steps | None = Steps()
        while steps is not None:
            look = self._look_now(offsets)
            job = next_job(steps, look)
            if look.has_part and job in (Job.SNAPSHOT_PART, Job.CHANGES):
                self._snapshot.read_part_last = job is Job.SNAPSHOT_PART
            steps = self._do(job, steps, offsets, passes=passes)

    def _look_now(self, offsets: TopicOffsets) -> Look:
        """Return the facts by which the next job is chosen. Makes no request to Kafka or the target."""
        if self.opened.hold is None:
            return Look()
        progress = self.opened.hold.progress
        return Look(
            is_open=True,
            is_replaced=self.opened.is_replaced(offsets),
            is_short=self.is_short(offsets),
            may_read=self.reading.may_read,
            rewind_asked=self._rewinds.asked is not None,
            rewind_due=self._rewinds.is_due(progress),
            is_outrun=self._snapshot.is_outrun(progress),
            has_ddl=self.has_ddl,
            has_part=self._reads_part(progress, offsets),
            read_part_last=self._snapshot.read_part_last,
            has_changes=self.reading.unread(offsets) > 0,
        )

    def _do(self, job: Job, steps: Steps, offsets: TopicOffsets, *, passes: bool) -> Steps | None:
        """Do one job. Return the facts that the turn has found out so far, or None if the job ends the turn.

        ``passes``: True if records that contain nothing for the table may be skipped without a commit.
        """
        match job:
            case Job.OPEN:
                return replace(steps, opened=True, awaits_record=not self._opens(offsets))
            case Job.REOPEN:
                self.opened.forget_columns()
                self.close()
                return replace(steps, reopened=True, awaits_record=not self._opens(offsets))
            case Job.CHECK:
                return replace(steps, continuous=self.reading.is_continuous(offsets))
            case Job.FORGET_REWIND:
                self._rewinds.settle()
                return steps
            case Job.SOURCE_DDL:
                return None if self._settle_ddl(offsets) else replace(steps, ddl_waits=True)
            case Job.REWIND:
                self._rewind(offsets)
            case Job.OUTRUN:
                self._refuse_outrun()
            case Job.SNAPSHOT_PART:
                self._read_part(offsets)
            case Job.CHANGES:
                self._read_changes(offsets, passes=passes)
            case Job.REST:
                pass
        return None

    def _refuse_outrun(self) -> None:
        assert self.opened.hold is not None  # noqa: S101  (opened before)
        self._counters.warnings += (self._snapshot.tell_outrun(self.opened.hold.progress),)
        self._change("RUNNING", None)

    def _read_changes(self, offsets: TopicOffsets, *, passes: bool) -> None:
        """Run a batch that reads and applies the topic's next records."""
        plan, reader = self.reading.plan(offsets)
        self.reading.stalled = plan.records == 0
        if self.reading.stalled:
            self.rest()
            return
        # With cuts, watermarks must be part of the committed progress, so they are not skipped.
        passes &= self._context.config.cuts is None
        if passes and self.reading.pass_by(plan, reader):
            return
        left = max(0, self.reading.unapplied(plan.found) - plan.records)
        if self._begins(plan.records, left=left):
            retry = self._context.retry(self.table)
            self._take(retry.call(lambda: self._batch(plan, reader).run()))

    def _begins(self, records: int, *, left: int) -> bool:
        """Set the state to RUNNING and announce the next batch to the listeners.

        Returns False if another worker has taken over the table. ``records``: number of records in the batch.
        ``left``: number of records in the topic after the batch.
        """
        assert self.opened.hold is not None  # noqa: S101  (opened before)
        self._change("RUNNING", None)
        if self.state != "RUNNING":
            return False
        batch = self.opened.hold.progress.batch + 1
        self._context.listeners.hear(BatchStarted(self.table, batch, records, left))
        return True

    def _rewind(self, offsets: TopicOffsets) -> None:
        """Set the table's offsets back as a user requested, or refuse the request with a warning.

        A rewind is refused if rows would be lost or duplicated.
        """
        assert self.opened.hold is not None  # noqa: S101  (opened before)
        context, progress, asked = self._context, self.opened.hold.progress, self._rewinds.asked
        try:
            loads = self._snapshot.is_under_way(progress)
            plan = context.retry(self.table).call(lambda: self._rewinds.plan(progress, offsets, loads=loads))
        except ConfigError as exc:
            self._counters.warnings += (refused(exc),)
            self._change("RUNNING", None)
            return
        if plan is not None and asked is not None:
            if not self._begins(0, left=self.reading.lag):
                return
            self._rewind_ddl(plan)
            make = partial(RewindBatch, number=asked.number)
            outcome = context.retry(self.table).call(lambda: self._batch(plan, context.source, make).run())
            self._take(outcome)
            if outcome.pending:
                return
        self._rewinds.settle()

    def _rewind_ddl(self, plan: BatchPlan) -> None:
        """Also set back the reader of the topic's DDL, if the partition that contains the DDL is rewound.

        This is done before the rewind is committed, because reading DDL twice does no harm.
        """
        ddl, retry = self._context.topics.ddl(self.topic), self._context.retry(self.table)
        for part in plan.ranges:
            if part.partition == DDL_PARTITION:
                retry.call(partial(ddl.rewind, plan.found, part.start))

    def _settle_ddl(self, offsets: TopicOffsets) -> bool:
        """Decide about statements in the connector's DDL topic, and commit the decision.

        Returns False if rows of the table's topic must be applied first.
        """
        assert self.opened.hold is not None  # noqa: S101  (opened before)
        hold, pauses, retry = self.opened.hold, self._pauses, self._context.retry(self.table)
        decision = retry.call(
            lambda: self._ddl.decide(hold, pauses.accepted, offsets, self.reading.next_offsets())
        )
        if decision is None:
            return False
        if decision.pending:
            self._take(BatchOutcome(hold.progress, pending=decision.pending))
        elif self._begins(0, left=self.reading.lag):
            make = retry.call(lambda: self._ddl.batch(decision, hold.progress))
            plan = self.reading.plan_nothing(offsets)
            self._take(retry.call(lambda: self._batch(plan, self._context.source, make).run()))
        return True

    def _reads_part(self, progress: Progress, offsets: TopicOffsets) -> bool:
        """Return True if the next part of the table's snapshot can be read now."""
        return self._snapshot.goes_on(progress, offsets, self.reading.settled_offsets())

    def _read_part(self, offsets: TopicOffsets) -> None:
        """Apply the next part of the table's snapshot.

        The batch reads no records from Kafka. Its offset ranges are empty, and begin at the offsets at which
        the table continues to read its topic.
        """
        assert self.opened.hold is not None and self.opened.decoding is not None  # noqa: S101, PT018  (opened before)
        ranges = self.reading.plan_nothing(offsets)
        self._change("RUNNING", None)
        if self.state != "RUNNING":
            return  # another worker has the table
        progress, retry = self.opened.hold.progress, self._context.retry(self.table)
        self.opened.decoding.catch_up(None, offsets)
        plan, applied = self.opened.decoding.columns(), self.reading.settled_offsets()
        # Each retry plans the part anew: the recorded progress must describe what the batch really read.
        try:
            part = retry.call(lambda: self._snapshot.next_part(progress, plan, applied))
        except SnapshotRefusedError as exc:
            part = None
            self._counters.warnings += (self._snapshot.refuse(exc, progress),)
        if part is None:
            self._change("RUNNING", None)
            return
        self._context.listeners.hear(BatchStarted(self.table, progress.batch + 1, 0, self.reading.lag))
        kind = SweepBatch if part.sweeps else SnapshotBatch
        make = partial(kind, part=part)
        try:
            outcome = retry.call(lambda: self._batch(ranges, self._context.source, make).run())
        except KeyOrderError:
            # The next part is planned in the new order of the key.
            self._change("RUNNING", None)
            return
        except ValueOutOfRangeError as exc:
            # The DDL that widens the column may arrive later, so the part is retried later.
            self._fail(exc, passes=True)
            return
        if outcome.account is not None:
            self._snapshot.took(part, sum(outcome.seconds.values()))
            self._snapshot.forget_keys(progress, outcome.progress)
        elif not outcome.pending:
            self._snapshot.row_does_not_fit(part, applied)
        self._take(outcome)

    def _opens(self, offsets: TopicOffsets) -> bool:
        """Open the table. Return False if it cannot be opened without a first record."""
        if not self.opened.try_open(offsets):
            self._change("IDLE", None)
            return False
        if self.opened.start.offsets and self.opened.topic_progress is None:
            self._change("IDLE", None)  # saves the warning about records before the start
        self.opened.check_topic_name()
        return True

    def _settle(self, *, away: bool = False) -> None:
        """Report the table's offsets to the object that reads the topic once for several tables.

        ``away``: True if the table stops reading in this run.
        """
        self.reading.settle(away=away or self.state in ("PAUSED", "FAILING"))

    def _batch(self, plan: BatchPlan, reader: RecordReader, make: Callable[..., Batch] = Batch) -> Batch:
        assert self.opened.hold is not None and self.opened.decoding is not None  # noqa: S101, PT018  (opened before)
        fit_shuffle(self.opened.session, plan.records)
        hold, accepted = self.opened.hold, self._pauses.accepted
        loads = self._snapshot.is_under_way(hold.progress)
        hold = replace(
            hold, accepted=accepted, loads=loads, bound=self.reading.bound, outside=self.reading.outside
        )
        return make(
            self._context,
            hold,
            self.opened.decoding,
            settings=self.opened.settings,
            session=self.opened.session,
            plan=self.reading.after_skipped(plan),
            reader=reader,
        )

    def _take(self, outcome: BatchOutcome) -> None:
        """Update the table's progress, counters and state from the outcome of a batch.

        The table becomes PAUSED if the batch stopped at a bad record, or at a schema change that waits for a
        user's decision.
        """
        if outcome.account is not None and outcome.read is not None and self.opened.hold is not None:
            self.batches += 1
            self.opened.take(outcome)
            self.reading.took(outcome)
            self._counters.add(outcome)
            self._context.listeners.hear(applied_event(self.table, outcome))
        if outcome.pending:
            self._pauses.wait_for(outcome.pending)
            self._change("PAUSED", self._pauses.reason)
        elif outcome.bad is not None:
            way = type_change_way(outcome.bad.error, outcome.bad.reason, _RESTART)
            self._change("PAUSED", f"{outcome.bad} {way}".rstrip())
        else:
            self._change("RUNNING", None)
        self._context.failpoints.reach("reported")

    def _refused(self, exc: SchemaRefusedError) -> None:
        """Set the state to PAUSED if the refusal is about a schema change, and to FAILING otherwise."""
        pending = pending_of(exc, self.opened.settings.projection)
        if pending is None:
            self._fail(exc, passes=False)
            return
        self._pauses.wait_for((pending,))
        self._change("PAUSED", self._pauses.reason)

    def _fail(self, exc: Exception, *, passes: bool) -> None:
        if isinstance(exc, SourceError) and type(exc) is not SourceUnavailableError:
            exc.with_context(brokers=self._context.config.source.bootstrap_servers)
        self.cooldown = Cooldown(self._context.config.retry.for_)
        if passes:
            self.cooldown.start()
        text = error_text(exc) if isinstance(exc, TidesinkError) else str(fault_of(exc))
        text = with_table(text, self.table)
        if isinstance(exc, AccountingError):
            text = f"{text} {self._pauses.break_law(exc, self._counters.rank)}"
        again = passes and not self._context.ends
        self._context.failures.note(self.table, exc, self.cooldown.seconds if again else None, text=text)
        self._change("FAILING", text)

    def _change(self, state: TableState, error: str | None) -> None:
        self.state, self._error = state, error
        self._pauses.state_is(state)
        if self.table.schema == UNKNOWN_SCHEMA:
            self._context.listeners.hear(TableChanged(self._status()))
            return
        # Earlier runs' counters must be loaded before the first save, which would overwrite them with 0.
        resumed = self._context.noted(
            self.table,
            lambda: self._counters.resume(self._context, self.table),
            unless="counters of earlier runs not read",
        )
        status = self._status()
        self._context.listeners.hear(TableChanged(status))
        saved = resumed and self._context.noted(
            self.table, lambda: self._save(status), unless="status not saved"
        )
        self._owes_law = saved is None and self._pauses.is_law_broken
        if saved is False and self.opened.hold is not None and state != "FAILING":
            self._fail(StaleProgressError(_TAKEN, table=str(self.table)), passes=False)

    def _save_law(self) -> None:
        """Save the status again if event counts did not add up and that could not be saved.

        The next worker must know this fault, to keep the table stopped.
        """
        if self._owes_law:
            with suppress(StateStoreError):
                self._counters.resume(self._context, self.table)
                self._save(self._status())
                self._owes_law = False

    def _save(self, status: TableStatus) -> bool:
        """Save a status of the table; return False if another worker has taken over the table."""
        self._saved.saved(status)
        saved = self._context.store.save_status(status)
        if saved and self.opened.hold is not None and self.opened.hold.known is not None:
            self.opened.hold.known.keep()
        return saved

    def _status(self) -> TableStatus:
        progress = self.opened.progress
        return TableStatus(
            self._context.config.pipeline,
            self.table,
            self.state,
            error=self._error,
            counters=self._counters.total.as_counters(),
            zero_dates=dict(self._counters.zero_dates),
            ambiguous_times=dict(self._counters.ambiguous_times),
            warnings=self._warnings(),
            batch=progress.batch if progress else self._counters.batch,
            commit_ts=progress.commit_ts if progress else self._counters.commit_ts,
            life=self._counters.life,
            epoch=self._counters.epoch,
            details={
                **self._context.topics.details(self.topic),
                PLACE: self._counters.place,
                **self._failure_details(),
                **passed(progress, self.topic, self._counters.filtered),
                **shown_target(self._context.config, self.table),
                **self._counters.left(),
                **self._counters.forgotten(self.opened.tombstones),
                **(self._counters.caught_up.as_detail() if self.reading.compaction else {}),
                **self._snapshot.details(progress),
                **rewind_details(progress, self.topic),
                **self._pauses.details(),
            },
        )

    def _failure_details(self) -> dict[str, Any]:
        """Return lag, failure and the time of the oldest unapplied record, as details of the status."""
        seen, failures = self.reading.seen, self._context.failures
        next_offsets = self.reading.known_offsets(seen) if seen else {}
        lag = waiting_records(seen, next_offsets) if seen else self.reading.lag
        failure = failures.of(self.table)
        if failure is None:
            return {LAG: lag}
        answers = not failure.is_of_kafka and failures.of(None) is None
        oldest = self._oldest.time(next_offsets, seen.partitions) if seen and answers else None
        return {LAG: lag, OLDEST: oldest, **failure.as_details()}

    def _warnings(self) -> tuple[str, ...]:
        own = self.opened.decoding.warnings if self.opened.decoding else ()
        if self.opened.decoding is not None and self.opened.hold is not None:
            policies = Policies.of(self.opened.settings, {}, self._context.target.capabilities)
            rows, progress = self.opened.decoding.row_ddl(), self.opened.hold.progress
            self._unfollowed = tuple(unfollowed(rows, policies, progress, self.topic))
        ddl = self._ddl.warnings(self.opened.hold)
        began = self.opened.start.warnings()
        warnings = (*began, *own, *self._unfollowed, *ddl, *self._counters.warnings)
        return tuple(dict.fromkeys(with_table(warning, self.table) for warning in warnings))
