"""The task of one table in a worker: takes the table's turns, runs its batches, and obeys users' requests.

The parts of a task are in modules of their own. Each owns its state:

- ``OpenTable``: the table at the target, its progress, and the decoding of its topic.
- ``TopicReading``: how far the topic was read, and what comes next.
- ``ReportedState``: the table's state, error and status.
- ``TableTurns``: does the steps of a turn, which ``next_step`` chooses. ``BatchRunner``: runs the batches.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog

from tidesink.errors import (
    ConfigError,
    SchemaRefusedError,
    StopRequestedError,
    TidesinkError,
    ValueOutOfRangeError,
    type_change_way,
)
from tidesink.events import TableId
from tidesink.sinks.jobs.base import BatchOutcome, Hold, Job, ReadingJob, Services
from tidesink.sinks.jobs.changes import Changes
from tidesink.sinks.jobs.executor import SparkExecutor, TaskResults
from tidesink.sinks.jobs.local import LocalExecutor, LocalResults
from tidesink.sinks.jobs.run import applied_event, run_batch
from tidesink.sinks.kafka.offsets import (
    TopicOffsets,
    is_other_topic,
    topic_deleted,
)
from tidesink.sinks.laws.executors import HAS_FILTER, BatchSize, Choice, choose
from tidesink.sinks.runtime.context import RetryPolicy, WorkerContext, may_pass
from tidesink.sinks.runtime.control import Pauses, TableControl
from tidesink.sinks.runtime.observers import BatchStarted, TableReport
from tidesink.sinks.snapshots.parts import (
    KeyOrderError,
    PartJob,
    Snapshot,
    SnapshotRefusedError,
    StoredRows,
)
from tidesink.sinks.snapshots.sweep import AbsentKeys
from tidesink.sinks.spark.errors import fault_of
from tidesink.sinks.state.progress import UNKNOWN_SCHEMA, TableState
from tidesink.sinks.worker.counters import TableCounters
from tidesink.sinks.worker.open_table import OpenTable
from tidesink.sinks.worker.reading import TopicReading
from tidesink.sinks.worker.rewind import Rewind, Rewinds, refused
from tidesink.sinks.worker.source_ddl import DdlJob, SourceDdl
from tidesink.sinks.worker.status import ReportedState, StatusDocuments
from tidesink.sinks.worker.turns import Findings, Step, TableFacts, next_step

_log = structlog.get_logger("tidesink.worker")
_RESTART: Final = "restart the worker (`tidesink run`)"


@dataclass
class BatchRunner:
    """Runs the batches of one table, with retries, and takes their outcomes.

    ``batches``: number of batches in this run. ``chosen``: the executor that was chosen for the last batch.
    """

    context: WorkerContext
    opened: OpenTable
    reading: TopicReading
    status: ReportedState
    snapshot: Snapshot
    batches: int = 0
    chosen: Choice | None = None

    def begin(self, records: int, *, left: int) -> bool:
        """Set the state to RUNNING and announce the next batch to the listeners.

        Returns False if another worker has taken over the table, as far as its status shows.

        ``records``: number of records in the batch. ``left``: number of records in the topic after the batch.
        """
        self.status.change("RUNNING")
        if self.status.state != "RUNNING":
            return False
        batch = self.opened.committed.batch + 1
        self.context.listeners.hear(BatchStarted(self.opened.table, batch, records, left))
        return True

    def run(self, job: Job | ReadingJob) -> BatchOutcome:
        """Run the batch that a job describes, with retries."""
        retry = self.context.retry(self.opened.table)
        return retry.call(lambda: run_batch(job, self.hold, self.services(job)))

    @property
    def hold(self) -> Hold:
        """The open table, with the decisions of people and the state of its snapshot as of now."""
        hold, reading = self.opened.hold, self.reading
        assert hold is not None  # noqa: S101  (opened before)
        accepted, loads = self.opened.pauses.accepted, self.snapshot.is_under_way(hold.progress)
        return replace(hold, accepted=accepted, loads=loads, bound=reading.bound, outside=reading.outside)

    def services(self, job: Job | ReadingJob) -> Services:
        """Return the parts of the worker that a batch uses."""
        opened = self.opened
        assert opened.decoding is not None  # noqa: S101  (opened before)
        spark, choice = SparkExecutor(opened.session), self.choice(job.plan.records, job)
        _log.debug("executor", table=str(opened.table), executor=choice.executor, reason=choice.reason)
        self.chosen = choice
        executor = LocalExecutor(lambda: spark) if choice.executor == "local" else spark
        return Services(self.context, opened.decoding, opened.settings, executor)

    def choice(self, records: int, job: Job | ReadingJob | None = None) -> Choice:
        """Return the executor of a batch. ``job``: None for changes that are not planned yet."""
        needs_spark = None
        if job is not None and not isinstance(job, Changes):
            needs_spark = "Spark tasks read the source database"
        elif self.opened.settings.filter is not None:
            needs_spark = HAS_FILTER
        size = BatchSize(records, self.reading.size.estimate)
        return choose(self.context.config.batch, size, needs_spark=needs_spark)

    def take(self, outcome: BatchOutcome) -> None:
        """Update the table's progress, counters and state from the outcome of a batch.

        The table becomes PAUSED if the batch stopped at a bad record, or at a schema change that waits for a
        user's decision.
        """
        opened = self.opened
        if outcome.account is not None and outcome.read is not None and opened.hold is not None:
            self.batches += 1
            opened.take(outcome)
            self.reading.took(outcome)
            opened.counters.add(outcome)
            if outcome.results is not None:
                opened.counters.ran = self._ran(outcome.results)
            self.context.listeners.hear(applied_event(opened.table, outcome))
        if outcome.pending:
            self.status.pause(outcome.pending)
        elif outcome.bad is not None:
            way = type_change_way(outcome.bad.error, outcome.bad.reason, _RESTART)
            self.status.change("PAUSED", f"{outcome.bad} {way}".rstrip())
        else:
            self.status.change("RUNNING")
        self.context.failpoints.reach("reported")

    def _ran(self, results: TaskResults) -> Choice | None:
        """Return the executor that ran a batch's tasks, and why."""
        is_local = isinstance(results, LocalResults)
        if self.chosen is not None and self.chosen.executor == "local" and not is_local:
            return Choice("spark", "only Spark could read the batch, which was larger than expected")
        return self.chosen


@dataclass(frozen=True)
class TableTurns:
    """Takes the turns of one table: does step after step until one ends the turn."""

    context: WorkerContext
    opened: OpenTable
    reading: TopicReading
    status: ReportedState
    snapshot: Snapshot
    rewinds: Rewinds
    ddl: SourceDdl
    runner: BatchRunner

    def take_turn(self, offsets: TopicOffsets | None, *, passes: bool) -> None:
        """Take one turn.

        ``offsets``: the topic's current offsets, or None if it does not exist. ``passes``: True if records
        that contain nothing for the table may be skipped without a commit.

        Raises:
            TidesinkError: a step failed, or the topic does not exist.
            StopRequestedError: a stop was requested before the commit.
        """
        self.reading.stalled = False
        if offsets is None:
            raise topic_deleted(self.opened.topic)
        self.opened.continuity.refuse_mode(offsets)
        findings: Findings | None = Findings()
        while findings is not None:
            facts = self.facts(offsets)
            step = next_step(findings, facts)
            if facts.has_part and step in (Step.SNAPSHOT_PART, Step.CHANGES):
                self.snapshot.read_part_last = step is Step.SNAPSHOT_PART
            findings = self._do(step, findings, offsets, passes=passes)

    def facts(self, offsets: TopicOffsets) -> TableFacts:
        """Return the facts by which the next step is chosen. Makes no request to Kafka or the target."""
        progress, opened, reading = self.opened.progress, self.opened, self.reading
        if progress is None:
            return TableFacts()
        return TableFacts(
            is_open=True,
            is_replaced=opened.is_replaced(offsets),
            is_short=self.status.awaits_topic and reading.is_short(offsets),
            may_read=reading.may_read,
            rewind_asked=self.rewinds.asked is not None,
            rewind_due=self.rewinds.is_due(progress),
            is_outrun=self.snapshot.is_outrun(progress),
            has_ddl=self.has_ddl,
            has_part=self.snapshot.goes_on(progress, offsets, reading.settled_offsets()),
            read_part_last=self.snapshot.read_part_last,
            has_changes=reading.unread(offsets) > 0,
        )

    @property
    def has_ddl(self) -> bool:
        """Return True if a statement in the connector's DDL topic must be decided about now."""
        return self.opened.progress is not None and self.ddl.is_due(self.opened.progress)

    def _do(self, step: Step, findings: Findings, offsets: TopicOffsets, *, passes: bool) -> Findings | None:
        """Do one step. Return what the turn has found out so far, or None if the step ends the turn."""
        match step:
            case Step.OPEN:
                return replace(findings, opened=True, awaits_record=not self._open(offsets))
            case Step.REOPEN:
                self.opened.forget_columns()
                self.opened.close()
                self.reading.forget()
                return replace(findings, reopened=True, awaits_record=not self._open(offsets))
            case Step.CHECK:
                return replace(findings, continuous=self.reading.is_continuous(offsets))
            case Step.FORGET_REWIND:
                self.rewinds.settle()
                return findings
            case Step.SOURCE_DDL:
                return None if self._settle_ddl(offsets) else replace(findings, ddl_waits=True)
            case Step.REWIND:
                self._rewind(offsets)
            case Step.OUTRUN:
                self._refuse_outrun()
            case Step.SNAPSHOT_PART:
                self._read_part(offsets)
            case Step.CHANGES:
                self._read_changes(offsets, passes=passes)
            case Step.REST:
                pass
        return None

    def _open(self, offsets: TopicOffsets) -> bool:
        """Open the table. Return False if it cannot be opened without a first record."""
        if not self.opened.try_open(offsets):
            self.status.change("IDLE")
            return False
        if self.opened.start.offsets and self.opened.topic_progress is None:
            self.status.change("IDLE")  # saves the warning about records before the start
        self.opened.check_topic_name()
        return True

    def _refuse_outrun(self) -> None:
        self.opened.counters.warnings += (self.snapshot.tell_outrun(self.opened.committed),)
        self.status.change("RUNNING")

    def _read_changes(self, offsets: TopicOffsets, *, passes: bool) -> None:
        """Run a batch that reads and applies the topic's next records."""
        plan, reader = self.reading.plan(offsets)
        self.reading.stalled = plan.records == 0
        if self.reading.stalled:
            self.status.rest()
            return
        # With cuts, watermarks must be part of the committed progress, so they are not skipped.
        passes &= self.context.config.cuts is None
        if passes and self.reading.pass_by(plan, reader):
            return
        left = max(0, self.reading.unapplied(plan.found) - plan.records)
        if self.runner.begin(plan.records, left=left):
            self.runner.take(self.runner.run(Changes(self.reading.after_skipped(plan), reader)))

    def _rewind(self, offsets: TopicOffsets) -> None:
        """Set the table's offsets back as a user requested, or refuse the request with a warning.

        A rewind is refused if rows would be lost or duplicated.
        """
        progress, asked, retry = self.opened.committed, self.rewinds.asked, self._retry
        try:
            loads = self.snapshot.is_under_way(progress)
            plan = retry.call(lambda: self.rewinds.plan(progress, offsets, loads=loads))
        except ConfigError as exc:
            self.opened.counters.warnings += (refused(exc),)
            self.status.change("RUNNING")
            return
        if plan is not None and asked is not None:
            if not self.runner.begin(0, left=self.reading.lag):
                return
            retry.call(partial(self.rewinds.rewind_ddl, plan))
            outcome = self.runner.run(Rewind(self.reading.after_skipped(plan), asked.number))
            self.runner.take(outcome)
            if outcome.pending:
                return
        self.rewinds.settle()

    @property
    def _retry(self) -> RetryPolicy:
        return self.context.retry(self.opened.table)

    def _settle_ddl(self, offsets: TopicOffsets) -> bool:
        """Decide about statements in the connector's DDL topic, and commit the decision.

        Returns False if rows of the table's topic must be applied first.
        """
        hold, accepted = self.opened.hold, self.opened.pauses.accepted
        assert hold is not None  # noqa: S101  (opened before)
        decision = self._retry.call(
            lambda: self.ddl.decide(hold, accepted, offsets, self.reading.next_offsets())
        )
        if decision is None:
            return False
        if decision.pending:
            self.runner.take(BatchOutcome(hold.progress, pending=decision.pending))
        elif self.runner.begin(0, left=self.reading.lag):
            snapshot = self._retry.call(lambda: self.ddl.snapshot_after(decision, hold.progress))
            self.runner.take(self.runner.run(DdlJob(self.reading.plan_nothing(offsets), decision, snapshot)))
        return True

    def _read_part(self, offsets: TopicOffsets) -> None:
        """Apply the next part of the table's snapshot.

        The batch reads no records from Kafka. Its offset ranges are empty, and begin at the offsets at which
        the table continues to read its topic.
        """
        ranges = self.reading.plan_nothing(offsets)
        self.status.change("RUNNING")
        if self.status.state != "RUNNING":
            return  # another worker has the table
        progress = self.opened.committed
        plan, applied = self.opened.columns(offsets), self.reading.settled_offsets()
        # Each retry plans the part anew: the recorded progress must describe what the batch really read.
        try:
            part = self._retry.call(lambda: self.snapshot.next_part(progress, plan, applied))
        except SnapshotRefusedError as exc:
            part = None
            self.opened.counters.warnings += (self.snapshot.refuse(exc, progress),)
        if part is None:
            self.status.change("RUNNING")
            return
        started = BatchStarted(self.opened.table, progress.batch + 1, 0, self.reading.lag)
        self.context.listeners.hear(started)
        job = PartJob(ranges, part, AbsentKeys() if part.sweeps else StoredRows())
        try:
            outcome = self.runner.run(job)
        except KeyOrderError:
            # The next part is planned in the new order of the key.
            self.status.change("RUNNING")
            return
        except ValueOutOfRangeError as exc:
            # The DDL that widens the column may arrive later, so the part is retried later.
            self.status.fail(exc, passes=True)
            return
        if outcome.account is not None:
            self.snapshot.took(part, sum(outcome.seconds.values()))
            self.snapshot.forget_keys(progress, outcome.progress)
        elif not outcome.pending:
            self.snapshot.row_does_not_fit(part, applied)
        self.runner.take(outcome)


class TableTask:
    """The work of one table in a worker.

    Each batch runs ``work`` in a thread of its own. The worker's main thread calls the other methods while no
    batch of the table runs, except where a docstring allows more.

    Attributes:
        topic: The topic of the table's changes.
        table: The table.
        status: The table's state, and its status in the state store.
        turn: Number of the table's last batch, counted over the batches of all tables in this run; 0 before
            the first one.
        opened: The table at the target, with its progress and the decoding of its topic.
        reading: How far the table has read its topic, and what comes next.
        runner: Runs the table's batches, and counts them.
    """

    def __init__(self, context: WorkerContext, topic: str, table: TableId) -> None:
        """Create the task. The table is not opened yet."""
        self.topic = topic
        self.table = table
        self.turn = 0
        self._context = context
        self._counters = TableCounters()
        self._pauses = Pauses(table)
        self.opened = OpenTable(context, topic, table, self._counters, self._pauses)
        settings = self.opened.settings
        self._snapshot = Snapshot(context, settings)
        self.reading = TopicReading(context, self.opened, self._snapshot)
        self._rewinds = Rewinds(context, settings)
        self._ddl = SourceDdl(context, settings)
        self._documents = StatusDocuments(
            context, self.opened, self.reading, snapshot=self._snapshot, ddl=self._ddl
        )
        self.status = ReportedState(context, self.opened, self._documents)
        parts = context, self.opened, self.reading, self.status, self._snapshot
        self.runner = BatchRunner(*parts)
        self._turns = TableTurns(*parts, self._rewinds, self._ddl, self.runner)
        self._ended = time.monotonic()

    @property
    def batches(self) -> int:
        """Number of batches in this run."""
        return self.runner.batches

    @property
    def state(self) -> TableState:
        """The table's state, as in its status: IDLE, RUNNING, PAUSED or FAILING."""
        return self.status.state

    def look(self, offsets: TopicOffsets | None) -> None:
        """Record the topic's current offsets, and compute the table's lag from them.

        If the table is paused or failing, its status is saved with the new lag. Before the table is opened,
        all records of the topic count as lag.
        """
        if offsets is None:
            return
        self.reading.look(offsets)
        self.status.save_lag(self.reading.lag)
        if offsets.compaction is not None and self.opened.hold is not None:
            batch, caught_up = self.opened.hold.progress.batch, self._counters.caught_up
            ends = {n: partition.latest for n, partition in offsets.partitions.items()}
            caught_up.see(ends, self.reading.next_offsets(), batch=batch, now=self._context.clock())
            if self.state == "IDLE" and caught_up.is_due(offsets.compaction):
                self.status.change("IDLE")

    def has_work(self, offsets: TopicOffsets | None) -> bool:
        """Return True if ``work`` has something to do: records, a part of a snapshot, or an error to report.

        ``offsets``: the topic's current offsets, or None if the topic does not exist. Makes no request to
        Kafka or the target.
        """
        if self.status.is_stopped:
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
        progress, facts = self.opened.topic_progress, self._turns.facts(offsets)
        if progress is not None and is_other_topic(progress.topic_id, offsets.topic_id):
            return True
        if facts.rewind_due or facts.is_short or facts.has_part or facts.is_outrun:
            return True
        if self._context.config.cuts is None:
            return facts.has_ddl or self.reading.lag > 0
        return facts.may_read and (facts.has_ddl or facts.has_changes)

    @property
    def is_large(self) -> bool:
        """True if the table's next batch is too large for the worker's own process, or reads a snapshot."""
        progress = self.opened.progress
        if progress is None:  # all records of its topic count as lag until the table is open
            records, loads = 0, self.opened.settings.snapshot == "initial" and not self._counters.batch
        else:
            records, loads = self.reading.lag, self._snapshot.is_under_way(progress)
        return loads or self.runner.choice(records).executor == "spark"

    @property
    def has_ddl(self) -> bool:
        """Return True if a statement in the connector's DDL topic must be decided about now."""
        return self._turns.has_ddl

    @property
    def is_opening(self) -> bool:
        """Return True if the table was not opened yet and has not failed. May be called during a batch."""
        return not self.opened.was_opened and not self.status.is_failing

    @property
    def applied(self) -> int:
        """Number of row events that all runs together have applied to the table."""
        return self._counters.total.applied

    @property
    def looks_again(self) -> bool:
        """Return True if the snapshot waits for open transactions and it is time to check them again."""
        return self._snapshot.looks_again

    def follows_from(self, offsets: TopicOffsets | None) -> Mapping[int, int] | None:
        """Return the next offset per partition if the table is up to date, except for a few new records.

        The worker then checks if these records are only watermarks, which need no batch yet. Returns None if
        this check is not needed: a batch is needed in any case, the table is stopped or not open, or its
        topic has no watermarks.
        """
        if offsets is None or self.status.is_stopped or self.opened.hold is None:
            return None
        progress, topic_progress = self.opened.committed, self.opened.topic_progress
        if topic_progress is not None and topic_progress.read_again:
            return None
        if self._snapshot.goes_on(progress, offsets, self.reading.settled_offsets()):
            return None
        if self.has_ddl or self._rewinds.is_due(progress):
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
            self._turns.take_turn(offsets, passes=passes)
            self.status.recover()
        except StopRequestedError:
            _log.debug("batch abandoned", table=str(self.table))
        except SchemaRefusedError as exc:
            self.status.refuse_schema(exc)
        except TidesinkError as exc:
            # After a stop, errors that may pass are not reported. Counts that do not add up are, even then.
            if not self._context.stop or not may_pass(exc):
                self.status.fail(exc, passes=may_pass(exc))
        except Exception as exc:  # noqa: BLE001
            # An unexpected error of one table must not stop the others. A stop cancels Spark jobs: no error.
            if not self._context.stop:
                _log.error("table failed", table=str(self.table), trace=fault_of(exc).trace)
                self.status.fail(exc, passes=False)
        finally:
            self._ended = time.monotonic()
            self._settle()

    def fail(self, error: TidesinkError) -> None:
        """Set the state to FAILING for an error outside the task, unless the table is already stopped."""
        if not self.status.is_stopped:
            self.status.fail(error, passes=may_pass(error))
            self._settle()

    def refuse(self, error: TidesinkError) -> None:
        """Set the table's state to FAILING with this error for the whole run, also after a resume request."""
        self.status.refuse(error)
        self.fail(error)

    def apply_control(self, asked: TableControl) -> None:
        """Pause or resume the table if a user requested it since the last call. Not called during a batch."""
        self.status.save_law()
        self._snapshot.asked, self._rewinds.asked = asked.snapshot, asked.rewind
        turn = self._pauses.apply_control(asked, waits=self.status.is_stopped)
        if turn == "rest":
            self.close()
            self.status.pause()
            self._settle()
        elif turn == "go on":
            self.opened.forget_columns()  # what failed before may succeed now
            self.close()
            self.status.begin_again()

    def leave(self) -> None:
        """Stop reading the table's topic in this run, so that no records are kept for the table."""
        self._settle(away=True)

    def wake(self) -> None:
        """Set a failing table to IDLE when the wait before the retry is over, so that it is opened again."""
        if self.table.schema == UNKNOWN_SCHEMA:
            return  # no table to open: the next look-up of the topic's tables is the retry
        if self.status.retries_now:
            self.close()
            self.status.begin_again()

    def rest(self) -> None:
        """Set a RUNNING table to IDLE, because it has no records to read."""
        if self.status.rest():
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
            warnings=self._documents.warnings(),
            error=self.status.error,
        )

    def _settle(self, *, away: bool = False) -> None:
        """Report the table's offsets to the object that reads the topic once for several tables.

        ``away``: True if the table stops reading in this run.
        """
        self.reading.settle(away=away or self.status.is_stopped)
