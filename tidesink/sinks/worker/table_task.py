"""The task of one table in a worker: opens it, runs its batches, counts its events, and saves its status."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
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
from tidesink.sinks.batch.cuts import NO_MARKS, Marks, least_bound, passed_partitions, settled, starts
from tidesink.sinks.batch.observers import BatchStarted, TableChanged, TableReport
from tidesink.sinks.batch.row_ddl import unfollowed
from tidesink.sinks.batch.schema_changes import Policies, pending_of
from tidesink.sinks.batch.schema_source import Decoding
from tidesink.sinks.batch.shared_reads import Limits, PassedRecords, TableRecords, sample
from tidesink.sinks.batch.source import RecordReader, fit_shuffle
from tidesink.sinks.batch.tasks import RangeTooLargeError
from tidesink.sinks.batch.topic_ddl import DDL_PARTITION
from tidesink.sinks.jobs.base import (
    BatchOutcome,
    BatchPlan,
    Hold,
    Job,
    ReadingJob,
    Services,
    without_records,
)
from tidesink.sinks.jobs.changes import Changes
from tidesink.sinks.jobs.executor import SparkExecutor
from tidesink.sinks.jobs.run import applied_event, run_batch
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
    topic_deleted,
    topic_progress,
    waiting_records,
)
from tidesink.sinks.schema_sources.open import open_decoding
from tidesink.sinks.spark.errors import fault_of
from tidesink.sinks.state.progress import UNKNOWN_SCHEMA, Progress, TableState, TableStatus, TopicProgress
from tidesink.sinks.worker.continuity import Continuity, late_start, opened
from tidesink.sinks.worker.control import PLACE, Pauses, TableControl
from tidesink.sinks.worker.counters import TableCounters, Tombstones
from tidesink.sinks.worker.outages import LAG, OLDEST, OldestRecords, SavedStatus
from tidesink.sinks.worker.preflight import shown_target
from tidesink.sinks.worker.rewind import Rewind, Rewinds, again_only, refused, rewind_details
from tidesink.sinks.worker.snapshot import (
    KeyOrderError,
    PartJob,
    Snapshot,
    SnapshotRefusedError,
    StoredRows,
)
from tidesink.sinks.worker.source_ddl import DdlJob, SourceDdl
from tidesink.sinks.worker.starts import Start
from tidesink.sinks.worker.sweep import AbsentKeys
from tidesink.sinks.worker.watermarks import MOST_WAITING

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
        lag: Number of records in the topic that were not applied when the worker last looked up offsets.
        turn: Number of the table's last batch, counted over the batches of all tables in this run; 0 before
            the first one.
        was_open: True if the table was opened in this run.
        bound: With cuts, the bound up to which changes are applied; None until it is chosen.
        marks: Newest known watermark per partition after the table's offsets, if only watermarks lie between.
        ends: With cuts of a Debezium connector, an offset per partition: all rows up to the bound have lower
            offsets.
        stalled: True if the only unread records up to the bound are in added partitions, and these must wait
            for records above the bound in the old partitions.
        cooldown: The wait before the retry, after a failure that may pass.
        seen: The topic's offsets when the worker last looked them up; updated even while a batch runs.
    """

    def __init__(self, context: WorkerContext, topic: str, table: TableId) -> None:
        """Create the task. The table is not opened yet.

        The table is registered with the object that reads the topic's records once for several tables.
        """
        self.topic = topic
        self.table = table
        self.state: TableState = "IDLE"
        self.batches = self.turn = self.lag = 0
        self.was_open = False
        self.bound: int | None = None
        self.marks: Marks = NO_MARKS
        self.ends: Mapping[int, int] | None = None
        self.stalled = False
        self.cooldown = Cooldown(context.config.retry.for_)
        self._context = context
        self._settings = context.config.table_config(table)
        self._session = context.spark.newSession()
        self._decoding: Decoding | None = None
        self._hold: Hold | None = None
        self._passed = PassedRecords(context.config.batch.watermark_interval)
        self._size = RecordSize()
        self._added = AddedPartitions()
        self._counters = TableCounters()
        self._tombstones: Tombstones | None = None
        self._error: str | None = None
        self._refusal: TidesinkError | None = None
        # Warnings about DDL in the topic that changed rows at the source and was not applied to the target.
        self._unfollowed: tuple[str, ...] = ()
        self._owes_law = False
        self._pauses = Pauses(table)
        self._continuity = Continuity(context, topic, self._settings)
        self._compaction: Compaction | None = None
        self._snapshot = Snapshot(context, self._settings)
        self._rewinds = Rewinds(context, self._settings)
        self._start = Start.of(context, topic, self._settings)
        # True while the table's columns are unknown, since the topic has no record after the start.
        self._awaits_record = False
        self._ddl = SourceDdl(context, self._settings)
        self.seen: TopicOffsets | None = None
        self._oldest = OldestRecords(topic, context.source.fetch)
        self._saved = SavedStatus(context.failures.clock)
        context.failures.follow(table, self._failure_changed)
        self._ended = time.monotonic()
        self._reads = context.topics.reads(topic)
        if table.schema != UNKNOWN_SCHEMA:
            self._reads.expect(table)

    def look(self, offsets: TopicOffsets | None) -> None:
        """Record the topic's current offsets, and compute the table's lag from them.

        If the table is paused or failing, its status is saved with the new lag. Before the table is opened,
        all records of the topic count as lag.
        """
        if offsets is not None:
            self._note_start(offsets)
            if self.owes_commit and not self._unapplied(offsets) and not self.is_short(offsets):
                self._passed.step_back()
            self.lag = self._unapplied(offsets)
            if self.state in ("PAUSED", "FAILING") and self._saved.lacks_lag(self.lag):
                self._save_quietly()
            self._compaction = offsets.compaction
            if offsets.compaction is not None and self._hold is not None:
                batch, caught_up = self._hold.progress.batch, self._counters.caught_up
                ends = {n: partition.latest for n, partition in offsets.partitions.items()}
                caught_up.see(ends, self._next_offsets(), batch=batch, now=self._context.clock())
                if self.state == "IDLE" and caught_up.is_due(offsets.compaction):
                    self._change("IDLE", None)

    def _note_start(self, offsets: TopicOffsets) -> None:
        """Resolve and store the setting ``start: latest`` at once, before more records arrive."""
        if self._hold is not None or not self._start.moves_with_time or self._start.is_stored(offsets):
            return
        with suppress(StateStoreError):  # the next look tries again
            self._start.settle(offsets)

    @property
    def starts(self) -> Mapping[int, int]:
        """First offset to read per partition by the setting ``start``; empty to read from the beginning."""
        return self._start.offsets

    def _unapplied(self, offsets: TopicOffsets) -> int:
        """Return the number of the topic's records that are not applied and not skipped yet."""
        return waiting_records(offsets, self._next_offsets())

    def _known_lag(self) -> int:
        """Return the table's lag: the number of unapplied records when the offsets were last looked up.

        For a table that is not open, the applied offsets come from the state store.
        """
        return self.lag if self.seen is None else waiting_records(self.seen, self._known_offsets(self.seen))

    def _known_offsets(self, seen: TopicOffsets) -> dict[int, int]:
        """Return the next offset per partition, from the state store if the table is not open."""
        stored = self._stored_progress() if self._hold is None else None
        if stored is None or is_other_topic(stored.topic_id, seen.topic_id):
            return self._next_offsets()
        return {number: partition.next_offset for number, partition in stored.partitions.items()}

    def _stored_progress(self) -> TopicProgress | None:
        """Load the table's progress in the topic after its last batch from the state store.

        None if the state store does not have it or does not answer.
        """
        context = self._context
        try:
            self._counters.resume(context, self.table)
            progress = context.store.progress_of_batch(
                context.config.pipeline, self.table, self._counters.batch
            )
        except StateStoreError:
            return None
        return progress.topics.get(self.topic) if progress is not None else None

    @property
    def owes_commit(self) -> bool:
        """Return True if records were skipped so long ago that the table must commit its offsets now."""
        return self._passed.owe_commit

    def has_work(self, offsets: TopicOffsets | None) -> bool:
        """Return True if ``work`` has something to do: records, a part of a snapshot, or an error to report.

        ``offsets``: the topic's current offsets, or None if the topic does not exist. Makes no request to
        Kafka or the target.
        """
        if self.state in ("PAUSED", "FAILING"):
            return False
        if self._hold is None or offsets is None:
            if offsets is not None and self._awaits_record:
                return self._start.has_records(offsets)
            unmet = self.table in self._context.topics.tables(self.topic).unmet
            return (
                offsets is None
                or unmet
                or any(partition.latest > 0 for partition in offsets.partitions.values())
            )
        applied, progress = self._hold.progress, self._topic_progress()
        if progress is not None and is_other_topic(progress.topic_id, offsets.topic_id):
            return True
        if self._rewinds.is_due(applied) or self.is_short(offsets) or self._reads_part(applied, offsets):
            return True
        if self._snapshot.is_outrun(applied):
            return True
        if self._context.config.cuts is None:
            return self.has_ddl or self.lag > 0
        return self._may_read and (self.has_ddl or self.unread(offsets) > 0)

    @property
    def has_ddl(self) -> bool:
        """Return True if a statement in the connector's DDL topic must be decided about now."""
        return self._hold is not None and self._ddl.is_due(self._hold.progress)

    @property
    def _may_read(self) -> bool:
        """Return True if cuts allow the table to read records now.

        False if the bound is not chosen yet, or if the table was already read up to a later bound.
        """
        fits = self.bound is not None and (self.least_bound or 0) <= self.bound
        return fits or self._context.config.cuts is None

    def unread(self, offsets: TopicOffsets) -> int:
        """Return the number of the topic's unread records. With cuts, counts only records up to the bound."""
        passed, next_offsets = self._passed_partitions, self._next_offsets()
        ends = ((n, partition) for n, partition in limited(offsets, self.ends).items() if n not in passed)
        return sum(
            max(0, partition.latest - next_offsets.get(n, partition.earliest)) for n, partition in ends
        )

    @property
    def _passed_partitions(self) -> Collection[int]:
        """Numbers of the topic's partitions in which all changes up to the cut's bound are applied."""
        if self._hold is None or self.bound is None:
            return ()
        return passed_partitions(self._hold.progress, self.topic, self.bound, self.marks)

    @property
    def least_bound(self) -> int | None:
        """The bound up to which the table was already read. The next bound must not be lower.

        None if any bound is possible, or if the table is not open.
        """
        return least_bound(self._hold.progress, outside=self.outside) if self._hold else None

    @property
    def outside(self) -> bool:
        """Return True if cuts leave the table out: its snapshot is unfinished, or newer than their bound."""
        return self._snapshot.is_outside(self._hold.progress if self._hold else None, self.bound)

    @property
    def held(self) -> Hold | None:
        """The open table with its progress, or None if it is not open."""
        return self._hold

    @property
    def is_opening(self) -> bool:
        """Return True if the table was not opened yet and has not failed. May be called during a batch."""
        return not self.was_open and not self.is_failing

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
        if offsets is None or self.state in ("PAUSED", "FAILING") or self._hold is None:
            return None
        progress = self._topic_progress()
        again = (progress is not None and progress.read_again) or self._reads_part(
            self._hold.progress, offsets
        )
        if again or self.has_ddl or self._rewinds.is_due(self._hold.progress):
            return None
        next_offsets, ends = self.read_up_to(offsets), offsets.partitions
        if next_offsets.keys() != ends.keys():
            return None
        fits = self._counters.filtered.watermarks > 0 and all(
            ends[n].earliest <= offset <= ends[n].latest <= offset + MOST_WAITING
            for n, offset in next_offsets.items()
        )
        return next_offsets if fits else None

    def read_up_to(self, offsets: TopicOffsets) -> Mapping[int, int]:
        """Return the next offset per partition; empty if the table is not open or the topic was replaced."""
        progress = self._topic_progress()
        same = progress is not None and progress.topic_id == offsets.topic_id
        return self._next_offsets() if same else {}

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
            self._decoding = None  # what failed before may succeed now
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
        ends = {number: partition.latest for number, partition in offsets.partitions.items()}
        return self.awaits_topic and any(
            ends.get(n, -1) < offset for n, offset in self._next_offsets().items()
        )

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
        if self._hold is not None:
            self._hold.table.close()
            self._hold = None
        self.marks = NO_MARKS
        self._passed.clear()

    def report(self) -> TableReport:
        """Return the table's state and the counters of this run."""
        progress = self._hold.progress if self._hold else None
        return TableReport(
            table=self.table,
            topic=self.topic,
            state=self.state,
            batch=progress.batch if progress else 0,
            batches=self.batches,
            commit_ts=progress.commit_ts if progress else None,
            lag=self._known_lag(),
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
        """Run one batch of the table. Unlike ``work``, raises the batch's errors."""
        context = self._context
        retry = context.retry(self.table)
        opens, self.stalled = self._hold is None, False
        if offsets is not None:
            self._continuity.refuse_mode(offsets)
        if not self._is_open(offsets):
            return
        assert self._hold is not None  # noqa: S101  (it is open)
        progress = topic_progress(self._hold.progress, self.topic)
        if opens and offsets is not None and self.is_short(offsets):
            return  # another look-up of the offsets must confirm this first
        if offsets is None:
            raise topic_deleted(self.topic)
        if self._rewinds.is_due(self._hold.progress) and self._may_read:
            # Before the continuity check: a new rewind may skip records that expired during the last one.
            self._rewind(offsets)
            return
        if self._snapshot.is_outrun(self._hold.progress):
            self._counters.warnings += (self._snapshot.tell_outrun(self._hold.progress),)
            self._change("RUNNING", None)
            return
        if not self._goes_on(progress, offsets) or not self._may_read:
            return  # the bound must be raised first
        if self._takes_other_turn(self._hold.progress, offsets):
            return
        plan, reader = self._plan(offsets)
        self.stalled = plan.records == 0
        if self.stalled:
            self.rest()
            return
        # With cuts, watermarks must be part of the committed progress, so they are not skipped.
        passes &= context.config.cuts is None
        if passes and self._pass_by(plan, reader, progress):
            return
        if self._begins(plan.records, left=max(0, self._unapplied(plan.found) - plan.records)):
            job = Changes(self._planned(plan), reader)
            self._take(retry.call(lambda: self._run(job)))

    def _goes_on(self, progress: TopicProgress | None, offsets: TopicOffsets) -> bool:
        """Check that no record of the topic was lost or replaced (``Continuity.check``).

        Returns False if Kafka has replaced skipped records by other records, which must be read first.
        """
        assert self._hold is not None  # noqa: S101  (opened before)
        holds = self._continuity.check(
            progress,
            offsets,
            batch=self._hold.progress.batch,
            caught_up=self._counters.caught_up,
            pauses=self._pauses,
            repaired=self._snapshot.repairs(self._hold.progress),
            passed=self._passed.last,
        )
        if not holds:
            # Other records are now at the offsets of the skipped ones.
            self._passed.clear()
        return holds

    def _begins(self, records: int, *, left: int) -> bool:
        """Set the state to RUNNING and announce the next batch to the listeners.

        Returns False if another worker has taken over the table. ``records``: number of records in the batch.
        ``left``: number of records in the topic after the batch.
        """
        assert self._hold is not None  # noqa: S101  (opened before)
        self._change("RUNNING", None)
        if self.state != "RUNNING":
            return False
        self._context.listeners.hear(BatchStarted(self.table, self._hold.progress.batch + 1, records, left))
        return True

    def _takes_other_turn(self, progress: Progress, offsets: TopicOffsets) -> bool:
        """Run a batch that does not read the table's topic, if such a batch is due. Return True then.

        It applies DDL from the connector's DDL topic, or the next part of the table's snapshot.
        """
        if self._rewinds.asked is not None:
            self._rewinds.settle()  # a worker did the rewind, and was killed before it removed the request
        if self.has_ddl and self._settle_ddl(offsets):
            return True
        waits = self.unread(offsets) > 0
        if self._reads_part(progress, offsets) and self._snapshot.comes_next(progress, waiting=waits):
            self._read_part(offsets)
            return True
        return False

    def _rewind(self, offsets: TopicOffsets) -> None:
        """Set the table's offsets back as a user requested, or refuse the request with a warning.

        A rewind is refused if rows would be lost or duplicated.
        """
        assert self._hold is not None  # noqa: S101  (opened before)
        context, progress, asked = self._context, self._hold.progress, self._rewinds.asked
        try:
            loads = self._snapshot.is_under_way(progress)
            plan = context.retry(self.table).call(lambda: self._rewinds.plan(progress, offsets, loads=loads))
        except ConfigError as exc:
            self._counters.warnings += (refused(exc),)
            self._change("RUNNING", None)
            return
        if plan is not None and asked is not None:
            if not self._begins(0, left=self.lag):
                return
            self._rewind_ddl(plan)
            job = Rewind(self._planned(plan), asked.number)
            outcome = context.retry(self.table).call(lambda: self._run(job))
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
        assert self._hold is not None  # noqa: S101  (opened before)
        hold, pauses, retry = self._hold, self._pauses, self._context.retry(self.table)
        decision = retry.call(lambda: self._ddl.decide(hold, pauses.accepted, offsets, self._next_offsets()))
        if decision is None:
            return False
        if decision.pending:
            self._take(BatchOutcome(hold.progress, pending=decision.pending))
        elif self._begins(0, left=self.lag):
            snapshot = retry.call(lambda: self._ddl.snapshot_after(decision, hold.progress))
            plan = self._planned(without_records(BatchPlan(tuple(self._available(offsets)), offsets)))
            job = DdlJob(plan, decision, snapshot)
            self._take(retry.call(lambda: self._run(job)))
        return True

    def _reads_part(self, progress: Progress, offsets: TopicOffsets) -> bool:
        """Return True if the next part of the table's snapshot can be read now."""
        return self._snapshot.goes_on(progress, offsets, self._settled_offsets())

    def _read_part(self, offsets: TopicOffsets) -> None:
        """Apply the next part of the table's snapshot.

        The batch reads no records from Kafka. Its offset ranges are empty, and begin at the offsets at which
        the table continues to read its topic.
        """
        assert self._hold is not None and self._decoding is not None  # noqa: S101, PT018  (opened before)
        batch_plan = self._planned(without_records(BatchPlan(tuple(self._available(offsets)), offsets)))
        self._change("RUNNING", None)
        if self.state != "RUNNING":
            return  # another worker has the table
        progress, retry = self._hold.progress, self._context.retry(self.table)
        self._decoding.catch_up(None, offsets)
        plan, applied = self._decoding.columns(), self._settled_offsets()
        # Each retry plans the part anew: the recorded progress must describe what the batch really read.
        try:
            part = retry.call(lambda: self._snapshot.next_part(progress, plan, applied))
        except SnapshotRefusedError as exc:
            part = None
            self._counters.warnings += (self._snapshot.refuse(exc, progress),)
        if part is None:
            self._change("RUNNING", None)
            return
        self._context.listeners.hear(BatchStarted(self.table, progress.batch + 1, 0, self.lag))
        job = PartJob(batch_plan, part, AbsentKeys() if part.sweeps else StoredRows())
        try:
            outcome = retry.call(lambda: self._run(job))
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

    def _is_open(self, offsets: TopicOffsets | None) -> bool:
        """Open the table if it is not open. Return False if it cannot be opened without a first record.

        The topic may have no record after the table's start, so that its columns are unknown.
        """
        again = offsets is not None and self._start.is_other_topic(offsets)
        if again and self._hold is not None and self._topic_progress() is None:
            # The topic was replaced before anything of it was applied. The start must be resolved again.
            self._decoding = None
            self.close()
        if self._hold is not None:
            return True
        if offsets is None:
            raise topic_deleted(self.topic)
        try:
            self._hold = self._context.retry(self.table).call(lambda: self._open(offsets))
        except ConfigError as exc:
            if not self._start.offsets or self._start.has_records(offsets):
                raise
            # The columns are unknown until a record arrives.
            _log.info("table waits for a record behind its start", table=str(self.table), reason=exc.message)
            self._awaits_record = True
            self._change("IDLE", None)
            return False
        self._awaits_record = False
        self.was_open = True
        self._continuity = Continuity(self._context, self.topic, self._settings)
        if self._start.offsets and self._topic_progress() is None:
            self._change("IDLE", None)  # saves the warning about records before the start
        return True

    def _open(self, offsets: TopicOffsets) -> Hold:
        """Resolve the setting ``start``, learn the table's columns, and open the table at the target.

        If the table's progress then shows that the start is wrong, the start is corrected and the table is
        opened again.
        """
        self._start.settle(offsets)
        hold = self._open_at_start(offsets)
        if not hold.progress.topics and self._start.is_stale():
            # The table was removed and is loaded again. The stored start is that of the previous table.
            hold.table.close()
            self._decoding = None
            self._start.begin(offsets)
            return self._open_at_start(offsets)
        progress = hold.progress.topics.get(self.topic)
        partitions = progress.partitions if progress is not None else {}
        if progress is not None and self._start.lower(
            {n: partition.low_water_offset for n, partition in partitions.items()}
        ):
            hold.table.close()
            self._decoding = None
            return self._open_at_start(offsets)
        return hold

    def _open_at_start(self, offsets: TopicOffsets) -> Hold:
        context = self._context
        if self._decoding is None:
            self._decoding = open_decoding(context, self.topic, self.table, session=self._session)
        self._decoding.prepare(offsets, self._start.offsets)
        hold, self._tombstones = opened(context, self._decoding, self._settings, self._counters, self._pauses)
        return hold

    def _plan(self, offsets: TopicOffsets) -> tuple[BatchPlan, RecordReader]:
        """Return the offset ranges of the next batch, and the reader of its records.

        The reader reads from Kafka, or returns records that were read once for several tables of the topic.
        """
        batch = self._context.config.batch
        available = self._available(offsets)
        if not self._next_offsets():
            self._counters.warnings += late_start(self.topic, offsets)
        limits = Limits(batch.max_records, batch.max_bytes, self._size)
        source = self._context.source
        self._context.retry(self.table).call(lambda: sample(limits, available, source.fetch))
        again = again_only(available, self._topic_progress())
        if again is not None:
            # After a rewind, reads are not shared, since the other tables have read further.
            self._reads.settle(self.table, None, away=True)
            most = budget_of(batch.max_records, batch.max_bytes, self._size)
            return BatchPlan(plan_ranges(again, max_records=most), offsets), source
        planned = self._reads.plan(self.table, available, offsets, limits=limits)
        plan = BatchPlan(planned.ranges, planned.found)
        if planned.kept is None:
            return plan, source
        return plan, TableRecords(planned.kept, source, self.table, commits=planned.commits)

    def _available(self, offsets: TopicOffsets) -> list[OffsetRange]:
        """Return the range of records that can be read next in each partition.

        It is empty for a new partition until older partitions are read, and for a partition that has passed
        the bound of the next cut.
        """
        next_offsets, parts = self._next_offsets(), offsets.partitions
        grown = self._context.retry(self.table).call(lambda: self._context.topics.grown(offsets))
        held = {*held_back(grown, next_offsets, parts), *self._passed_partitions}
        starts = {
            n: next_offsets.get(n, parts[n].earliest) for n in self._added.readable(next_offsets, parts)
        }
        # Waiting partitions get empty ranges. So they stay in the progress, and expired records are noticed.
        return [
            OffsetRange(
                self.topic, n, starts[n], starts[n] if n in held else max(starts[n], partition.latest)
            )
            for n, partition in limited(offsets, self.ends).items()
            if n in starts
        ]

    def _pass_by(self, plan: BatchPlan, reader: RecordReader, progress: TopicProgress | None) -> bool:
        """Skip the batch's records without a commit if they contain nothing for this table.

        Returns True if no batch must run: the records were skipped, or must be read again because Kafka has
        replaced earlier ones.
        """
        if progress is None or not isinstance(reader, TableRecords) or reader.commits:
            return False
        try:
            if self._context.retry(self.table).call(lambda: reader.concern(self._session)):
                return False
        except RangeTooLargeError:
            return False  # the batch splits its ranges
        if self._continuity.follows(plan.found, {**progress.last_records, **self._passed.last}, reader.last):
            self._passed.add(plan.ranges, reader.last)
        return True

    def _settle(self, *, away: bool = False) -> None:
        """Report the table's offsets to the object that reads the topic once for several tables.

        It then releases records that no table needs any longer.

        ``away``: True if the table stops reading in this run.
        """
        stopped = away or self._awaits_record or self.state in ("PAUSED", "FAILING")
        if self.table.schema != UNKNOWN_SCHEMA:
            next_offsets = self._next_offsets() if self._hold is not None else {}
            self._reads.settle(self.table, next_offsets or None, away=stopped)

    def _next_offsets(self) -> dict[int, int]:
        """Return the next offset per partition, after applied and skipped records.

        Empty for a table without progress that reads its topic from the beginning (``start: earliest``).
        """
        progress = self._topic_progress()
        if self._hold is None or progress is None:
            return self._passed.behind(self._start.offsets)
        return self._passed.behind(starts(self._hold.progress, self.topic, self.bound))

    def _settled_offsets(self) -> dict[int, int]:
        """Return an offset per partition: all records below it are applied or skipped.

        With cuts, it can be lower than the next offset, if a row waits for a later bound.
        """
        return settled(self._topic_progress(), self._next_offsets(), self.bound)

    def _topic_progress(self) -> TopicProgress | None:
        return self._hold.progress.topics.get(self.topic) if self._hold else None

    def _planned(self, plan: BatchPlan) -> BatchPlan:
        """Return the plan of a batch, with what is known of records that were skipped before it."""
        return replace(plan, last=self._passed.last, follows=self._continuity.follows)

    def _run(self, job: Job | ReadingJob) -> BatchOutcome:
        fit_shuffle(self._session, job.plan.records)
        return run_batch(job, self._present_hold, self._services)

    @property
    def _present_hold(self) -> Hold:
        """The open table, with the decisions of people and the state of its snapshot as of now."""
        assert self._hold is not None  # noqa: S101  (opened before)
        accepted, loads = self._pauses.accepted, self._snapshot.is_under_way(self._hold.progress)
        return replace(self._hold, accepted=accepted, loads=loads, bound=self.bound, outside=self.outside)

    @property
    def _services(self) -> Services:
        assert self._decoding is not None  # noqa: S101  (opened before)
        return Services(self._context, self._decoding, self._settings, SparkExecutor(self._session))

    def _take(self, outcome: BatchOutcome) -> None:
        """Update the table's progress, counters and state from the outcome of a batch.

        The table becomes PAUSED if the batch stopped at a bad record, or at a schema change that waits for a
        user's decision.
        """
        if outcome.account is not None and outcome.read is not None and self._hold is not None:
            self.batches += 1
            self._hold = replace(self._hold, progress=outcome.progress)
            self._passed.clear()
            # Rows that waited may be next under another bound, so watermarks after them no longer count.
            self.marks = NO_MARKS
            if self._hold.known is not None and self._decoding is not None:
                self._hold.known.applied(self._decoding, outcome.progress)
            if self._tombstones is not None:
                self._tombstones.collect_if_due(outcome.progress, self.topic)
                self._hold = replace(self._hold, horizon=self._tombstones.horizon)
            # The size of decoded records in memory counts, which is many times the size in Kafka.
            self._size.learn(outcome.read.records, outcome.read.decoded)
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
        pending = pending_of(exc, self._settings.projection)
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
        if saved is False and self._hold is not None and state != "FAILING":
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
        if saved and self._hold is not None and self._hold.known is not None:
            self._hold.known.keep()
        return saved

    def _status(self) -> TableStatus:
        progress = self._hold.progress if self._hold else None
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
                **self._counters.forgotten(self._tombstones),
                **(self._counters.caught_up.as_detail() if self._compaction else {}),
                **self._snapshot.details(progress),
                **rewind_details(progress, self.topic),
                **self._pauses.details(),
            },
        )

    def _failure_details(self) -> dict[str, Any]:
        """Return lag, failure and the time of the oldest unapplied record, as details of the status."""
        seen, failures = self.seen, self._context.failures
        next_offsets = self._known_offsets(seen) if seen else {}
        lag = waiting_records(seen, next_offsets) if seen else self.lag
        failure = failures.of(self.table)
        if failure is None:
            return {LAG: lag}
        answers = not failure.is_of_kafka and failures.of(None) is None
        oldest = self._oldest.time(next_offsets, seen.partitions) if seen and answers else None
        return {LAG: lag, OLDEST: oldest, **failure.as_details()}

    def _warnings(self) -> tuple[str, ...]:
        own = self._decoding.warnings if self._decoding else ()
        if self._decoding is not None and self._hold is not None:
            policies = Policies.of(self._settings, {}, self._context.target.capabilities)
            rows, progress = self._decoding.row_ddl(), self._hold.progress
            self._unfollowed = tuple(unfollowed(rows, policies, progress, self.topic))
        ddl = self._ddl.warnings(self._hold)
        began = self._start.warnings()
        warnings = (*began, *own, *self._unfollowed, *ddl, *self._counters.warnings)
        return tuple(dict.fromkeys(with_table(warning, self.table) for warning in warnings))
