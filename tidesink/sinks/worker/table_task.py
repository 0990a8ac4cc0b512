"""The task of one table: opens it, runs its batches, counts them, and says how it stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
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
)
from tidesink.events import TableId
from tidesink.sinks.batch.context import Cooldown, StopRequestedError, WorkerContext, may_pass
from tidesink.sinks.batch.counts import passed
from tidesink.sinks.batch.cuts import NO_MARKS, Marks, least_bound, passed_partitions, settled, starts
from tidesink.sinks.batch.observers import BatchStarted, TableChanged, TableReport
from tidesink.sinks.batch.row_ddl import unfollowed
from tidesink.sinks.batch.run import Batch, BatchOutcome, BatchPlan, Hold, applied_event
from tidesink.sinks.batch.schema_changes import Policies, pending_of
from tidesink.sinks.batch.schema_source import Decoding
from tidesink.sinks.batch.shared_reads import Limits, PassedRecords, TableRecords, sample
from tidesink.sinks.batch.source import RecordReader, fit_shuffle
from tidesink.sinks.batch.tasks import RangeTooLargeError
from tidesink.sinks.batch.topic_ddl import DDL_PARTITION
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
    topic_gone,
    topic_progress,
    waiting_records,
)
from tidesink.sinks.schema_sources.open import open_decoding
from tidesink.sinks.spark.errors import fault_of
from tidesink.sinks.state.progress import UNKNOWN_SCHEMA, Progress, TableState, TableStatus, TopicProgress
from tidesink.sinks.worker.continuity import Continuity, late_start, opened
from tidesink.sinks.worker.control import PLACE, Pauses, TableControl
from tidesink.sinks.worker.outages import LAG, OLDEST, OldestRecords, SavedStatus
from tidesink.sinks.worker.preflight import shown_goal
from tidesink.sinks.worker.rewind import RewindBatch, Rewinds, again_only, refused, rewind_details
from tidesink.sinks.worker.snapshot import KeyOrderError, Snapshot, SnapshotBatch, SnapshotRefusedError
from tidesink.sinks.worker.source_ddl import SourceDdl
from tidesink.sinks.worker.starts import Start
from tidesink.sinks.worker.sweep import SweepBatch
from tidesink.sinks.worker.tally import Tally, Tombstones
from tidesink.sinks.worker.watermarks import MOST_WAITING

_log = structlog.get_logger("tidesink.worker")
_TAKEN: Final = "another worker took this table, as its status says, and goes on with it"


class TableTask:
    """The work of one table. ``lag``: how many offsets of its topic it had to read by the last look.

    ``turn``: the number of its last turn among all tables' turns; 0: it had none. ``bound``: what the next
    batch is read under, where there are cuts. ``marks``: by partition the greatest watermark known to stand
    behind what was read, with nothing but watermarks before it. ``ends``: by partition where it is read to
    under the bound, if no watermarks tell it. ``stalled``: what is left waits for what is above the bound.
    ``seen``: the topic by the worker's last look; set also while a batch is under way. ``was_open``: the
    table was opened in this run.
    """

    def __init__(self, context: WorkerContext, topic: str, table: TableId) -> None:
        """Nothing is asked or opened yet, but what the table shares of its topic is told to expect it."""
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
        self._tally = Tally()
        self._tombstones: Tombstones | None = None
        self._error: str | None = None
        self._refusal: TidesinkError | None = None
        # What DDL did to rows at the source and not at the target, as far as the table was open.
        self._unfollowed: tuple[str, ...] = ()
        self._owes_law = False
        self._pauses = Pauses(table)
        self._continuity = Continuity(context, topic, self._settings)
        self._compaction: Compaction | None = None
        self._snapshot = Snapshot(context, self._settings)
        self._rewinds = Rewinds(context, self._settings)
        self._start = Start.of(context, topic, self._settings)
        # The table's columns are told by no record behind its start yet.
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

    def look(self, found: TopicOffsets | None) -> None:
        """Take note of how much is not known to be applied: of a table not opened yet, all of its topic."""
        if found is not None:
            self._note_start(found)
            if self.owes_commit and not self._unapplied(found) and not self.is_short(found):
                self._passed.step_back()
            self.lag = self._unapplied(found)
            if self.state in ("PAUSED", "FAILING") and self._saved.lacks_lag(self.lag):
                self._save_quietly()
            self._compaction = found.compaction
            if found.compaction is not None and self._hold is not None:
                batch, caught_up = self._hold.progress.batch, self._tally.caught_up
                ends = {n: at.latest for n, at in found.partitions.items()}
                caught_up.see(ends, self._next_offsets(), batch=batch, now=time.time())
                if self.state == "IDLE" and caught_up.is_due(found.compaction):
                    self._change("IDLE", None)

    def _note_start(self, found: TopicOffsets) -> None:
        """Resolve a start that depends on the moment, before more records come."""
        if self._hold is not None or not self._start.moves_with_time or self._start.is_settled(found):
            return
        with suppress(StateStoreError):  # it is resolved when the table is opened
            self._start.settle(found)

    @property
    def starts(self) -> Mapping[int, int]:
        """The first offset of each partition that the table reads; empty: all from the beginning."""
        return self._start.offsets

    def _unapplied(self, found: TopicOffsets) -> int:
        """How many records of the topic are not known to be applied."""
        return waiting_records(found, self._next_offsets())

    def _known_lag(self) -> int:
        """How many records are not known to be applied, by the last look."""
        return self.lag if self.seen is None else waiting_records(self.seen, self._known_offsets(self.seen))

    def _known_offsets(self, seen: TopicOffsets) -> dict[int, int]:
        """``_next_offsets``, but of a table that is not open those that the state store has."""
        stored = self._stored_progress() if self._hold is None else None
        if stored is None or is_other_topic(stored.topic_id, seen.topic_id):
            return self._next_offsets()
        return {number: at.next_offset for number, at in stored.partitions.items()}

    def _stored_progress(self) -> TopicProgress | None:
        """What the state store has of the last batch; None if it has nothing, or does not answer."""
        context = self._context
        try:
            self._tally.resume(context, self.table)
            found = context.store.progress_of_batch(context.config.pipeline, self.table, self._tally.batch)
        except StateStoreError:
            return None
        return found.topics.get(self.topic) if found is not None else None

    @property
    def owes_commit(self) -> bool:
        """Whether records went by without a commit for as long as they may."""
        return self._passed.owe_commit

    def has_work(self, found: TopicOffsets | None) -> bool:
        """Whether there is something to read, or to say; costs nothing."""
        if self.state in ("PAUSED", "FAILING"):
            return False
        if self._hold is None or found is None:
            if found is not None and self._awaits_record:
                return self._start.has_records(found)
            unmet = self.table in self._context.topics.tables(self.topic).unmet
            return found is None or unmet or any(at.latest > 0 for at in found.partitions.values())
        applied, progress = self._hold.progress, self._topic_progress()
        if progress is not None and is_other_topic(progress.topic_id, found.topic_id):
            return True
        if self._rewinds.is_due(applied) or self.is_short(found) or self._reads_part(applied, found):
            return True
        if self._snapshot.is_outrun(applied):
            return True
        if self._context.config.cuts is None:
            return self.has_ddl or self.lag > 0
        return self._may_read and (self.has_ddl or self.unread(found) > 0)

    @property
    def has_ddl(self) -> bool:
        """Whether DDL of the source is to be decided."""
        return self._hold is not None and self._ddl.is_due(self._hold.progress)

    @property
    def _may_read(self) -> bool:
        """Whether the table may be read under the bound, if it must have one."""
        fits = self.bound is not None and (self.least_bound or 0) <= self.bound
        return fits or self._context.config.cuts is None

    def unread(self, found: TopicOffsets) -> int:
        """How many records there are that may be read under the bound."""
        passed, known = self._passed_partitions, self._next_offsets()
        ends = ((n, at) for n, at in limited(found, self.ends).items() if n not in passed)
        return sum(max(0, at.latest - known.get(n, at.earliest)) for n, at in ends)

    @property
    def _passed_partitions(self) -> Collection[int]:
        """The partitions that are not read further under the bound."""
        if self._hold is None or self.bound is None:
            return ()
        return passed_partitions(self._hold.progress, self.topic, self.bound, self.marks)

    @property
    def least_bound(self) -> int | None:
        """The least bound that the table can be read under; None: any, or it is not open."""
        return least_bound(self._hold.progress, outside=self.outside) if self._hold else None

    @property
    def outside(self) -> bool:
        """Whether cuts leave the table out: its snapshot is not over, or later than the bound."""
        return self._snapshot.is_outside(self._hold.progress if self._hold else None, self.bound)

    @property
    def held(self) -> Hold | None:
        """The open table, and what is applied."""
        return self._hold

    @property
    def is_opening(self) -> bool:
        """Whether the table was not open yet, and nothing failed: to be asked while the task is at work."""
        return not self.was_open and not self.is_failing

    @property
    def applied(self) -> int:
        """How many row events were applied, by whichever worker."""
        return self._tally.total.applied

    @property
    def looks_again(self) -> bool:
        """Whether a snapshot that waits for transactions of its source is to look at them again."""
        return self._snapshot.looks_again

    @property
    def obstacle(self) -> str:
        """Why the table does not come to a cut by itself; empty where it does."""
        return f"{self.state}: {self._error}" if self.state in ("PAUSED", "FAILING") else ""

    def follows_from(self, found: TopicOffsets | None) -> Mapping[int, int] | None:
        """The next offset of each partition, where watermarks alone that wait there need no batch yet.

        None where the topic has no watermarks, the table is not open, or must read on whatever waits.
        """
        if found is None or self.state in ("PAUSED", "FAILING") or self._hold is None:
            return None
        progress = self._topic_progress()
        again = (progress is not None and progress.read_again) or self._reads_part(self._hold.progress, found)
        if again or self.has_ddl or self._rewinds.is_due(self._hold.progress):
            return None
        known, ends = self.read_up_to(found), found.partitions
        if known.keys() != ends.keys():
            return None
        fits = self._tally.filtered.watermarks > 0 and all(
            ends[n].earliest <= at <= ends[n].latest <= at + MOST_WAITING for n, at in known.items()
        )
        return known if fits else None

    def read_up_to(self, found: TopicOffsets) -> Mapping[int, int]:
        """The next offset of each partition; none where the table is not open, or its topic is another."""
        progress = self._topic_progress()
        same = progress is not None and progress.topic_id == found.topic_id
        return self._next_offsets() if same else {}

    @property
    def rested(self) -> float:
        """Seconds since the last batch ended."""
        return time.monotonic() - self._ended

    def work(self, found: TopicOffsets | None, *, passes: bool = False) -> None:
        """Apply one batch, or become PAUSED or FAILING. Raises nothing a table can cause.

        ``passes``: records that hold nothing for the table may go by without a commit.
        """
        try:
            self._work(found, passes=passes)
            self.recover()
        except StopRequestedError:
            _log.debug("batch abandoned", table=str(self.table))
        except SchemaRefusedError as exc:
            self._refused(exc)
        except TidesinkError as exc:
            # What a stop cut off may pass by itself; a law that does not hold is said all the same.
            if not self._context.stop or not may_pass(exc):
                self._fail(exc, passes=may_pass(exc))
        except Exception as exc:  # noqa: BLE001
            # A table's unforeseen error must not stop the others; a job cancelled by a stop is none.
            if not self._context.stop:
                _log.error("table failed", table=str(self.table), trace=fault_of(exc).trace)
                self._fail(exc, passes=False)
        finally:
            self._ended = time.monotonic()
            self._settle()

    def fail(self, error: TidesinkError) -> None:
        """Become FAILING for a reason outside the task, unless it has one of its own."""
        if self.state not in ("PAUSED", "FAILING"):
            self._fail(error, passes=may_pass(error))
            self._settle()

    @property
    def is_failing(self) -> bool:
        """Whether a step of the task failed last."""
        return self._context.failures.of(self.table) is not None

    def await_topic(self, error: TidesinkError, pause: float) -> None:
        """Note that nobody answers for the topic, which is asked again after ``pause`` seconds."""
        if self.state not in ("PAUSED", "FAILING"):
            self._context.failures.failed(self.table, error, pause)

    def recover(self) -> None:
        """Note that nothing fails: what was to be done was done."""
        if self.state != "FAILING":
            self._context.failures.passed(self.table)

    def tell_failure(self) -> None:
        """Have the state store know what the task fails with now, if it failed; once the worker ends."""
        if self.is_failing:
            self._save_quietly()

    def _failure_changed(self) -> None:
        """Have the state store know of a failure, or that it passed: not of each try where many come."""
        failure = self._context.failures.of(self.table)
        if self._saved.lacks(failure):
            self._save_quietly()

    def _save_quietly(self) -> None:
        """Save the status for a step that is not held up by it, whatever the state store answers."""
        if self.table.schema == UNKNOWN_SCHEMA:
            return
        try:
            # Before the first save: it would put zeros over what earlier runs counted.
            self._tally.resume(self._context, self.table)
            self._save(self._status())
        except StateStoreError as exc:
            _log.debug("status not saved", table=str(self.table), error=str(exc))
        except Exception as exc:  # noqa: BLE001  (the step is tried again whatever keeps its failure untold)
            _log.warning("status not saved", table=str(self.table), error=type(exc).__name__)

    def refuse(self, error: TidesinkError) -> None:
        """Fail for what no other try changes: said again whenever the table is to go on."""
        self._refusal = error
        self.fail(error)

    def apply_control(self, asked: TableControl) -> None:
        """Rest, or go on, as people asked since the last look; not called while a batch is under way."""
        self._save_law()
        self._snapshot.asked, self._rewinds.asked = asked.snapshot, asked.rewind
        turn = self._pauses.apply_control(asked, waits=self.state in ("PAUSED", "FAILING"))
        if turn == "rest":
            self.close()
            self._change("PAUSED", self._pauses.reason)
            self._settle()
        elif turn == "go on":
            self._decoding = None  # what it could not take may be another thing now
            self._begin_again()

    def leave(self) -> None:
        """Nothing more is to be read in this run: nobody waits for the table."""
        self._settle(away=True)

    @property
    def cools_down(self) -> bool:
        """Whether the task failed for something that may pass, and its pause is not over."""
        return self.state == "FAILING" and self.cooldown.running

    @property
    def is_stuck(self) -> bool:
        """Whether nothing but a person has the task go on: a failure that may pass is waited for."""
        return self.state == "PAUSED" or (self.state == "FAILING" and not self.cooldown.started)

    @property
    def awaits_topic(self) -> bool:
        """Whether the task would stop if its topic were gone now."""
        return self.state not in ("PAUSED", "FAILING") or self.cooldown.over

    def is_short(self, found: TopicOffsets) -> bool:
        """Whether the topic holds less now than was read of it: a broker can answer from before."""
        ends = {number: at.latest for number, at in found.partitions.items()}
        return self.awaits_topic and any(ends.get(n, -1) < at for n, at in self._next_offsets().items())

    def wake(self) -> None:
        """Look at a failing table again from the beginning, when its pause is over."""
        if self.table.schema == UNKNOWN_SCHEMA:
            return  # nothing to open: its topic is looked at again instead
        if self.state == "FAILING" and self.cooldown.over:
            self._begin_again()

    def rest(self) -> None:
        """Nothing is left to read for now."""
        self._save_law()
        if self.state == "RUNNING":
            self._change("IDLE", None)
            self._settle()  # it may be lost to another worker, as the state store says

    def close(self) -> None:
        """Let go of the table."""
        if self._hold is not None:
            self._hold.table.close()
            self._hold = None
        self.marks = NO_MARKS
        self._passed.clear()

    def report(self) -> TableReport:
        """How the table stands."""
        progress = self._hold.progress if self._hold else None
        return TableReport(
            table=self.table,
            topic=self.topic,
            state=self.state,
            batch=progress.batch if progress else 0,
            batches=self.batches,
            commit_ts=progress.commit_ts if progress else None,
            lag=self._known_lag(),
            counters=self._tally.run.as_counters(),
            zero_dates=dict(self._tally.run_zero_dates),
            ambiguous_times=dict(self._tally.run_ambiguous_times),
            warnings=self._warnings(),
            error=self._error,
        )

    def _begin_again(self) -> None:
        self.close()
        if self._refusal is None:
            self._change("IDLE", None)
        else:
            self._fail(self._refusal, passes=False)

    def _work(self, found: TopicOffsets | None, *, passes: bool) -> None:
        """As ``work``; raises what it meets."""
        context = self._context
        retry = context.retry(self.table)
        opens, self.stalled = self._hold is None, False
        if found is not None:
            self._continuity.refuse_mode(found)
        if not self._is_open(found):
            return
        assert self._hold is not None  # noqa: S101  (it is open)
        progress = topic_progress(self._hold.progress, self.topic)
        if opens and found is not None and self.is_short(found):
            return  # now that it shows, it is looked at again before it is believed
        if found is None:
            raise topic_gone(self.topic)
        if self._rewinds.is_due(self._hold.progress) and self._may_read:
            # It may lead past what expired while the table was read again.
            self._rewind(found)
            return
        if self._snapshot.is_outrun(self._hold.progress):
            self._tally.warnings += (self._snapshot.tell_outrun(self._hold.progress),)
            self._change("RUNNING", None)
            return
        if not self._goes_on(progress, found) or not self._may_read:
            return  # the bound is raised first
        if self._takes_other_turn(self._hold.progress, found):
            return
        plan, reader = self._plan(found)
        self.stalled = plan.records == 0
        if self.stalled:
            self.rest()
            return
        # Watermarks count where cuts are published: they are in the progress.
        passes &= context.config.cuts is None
        if passes and self._pass_by(plan, reader, progress):
            return
        if self._begins(plan.records, left=max(0, self._unapplied(plan.found) - plan.records)):
            self._take(retry.call(lambda: self._batch(plan, reader).run()))

    def _goes_on(self, progress: TopicProgress | None, found: TopicOffsets) -> bool:
        """Check that the topic goes on from what was read; False where the table steps back by itself."""
        assert self._hold is not None  # noqa: S101  (opened before)
        holds = self._continuity.check(
            progress,
            found,
            batch=self._hold.progress.batch,
            caught_up=self._tally.caught_up,
            pauses=self._pauses,
            repaired=self._snapshot.repairs(self._hold.progress),
            passed=self._passed.last,
        )
        if not holds:
            # Where records without anything for the table went by, there are others now.
            self._passed.clear()
        return holds

    def _begins(self, records: int, *, left: int) -> bool:
        """Tell of the next batch; False where the table is another worker's."""
        assert self._hold is not None  # noqa: S101  (opened before)
        self._change("RUNNING", None)
        if self.state != "RUNNING":
            return False
        self._context.listeners.hear(BatchStarted(self.table, self._hold.progress.batch + 1, records, left))
        return True

    def _takes_other_turn(self, progress: Progress, found: TopicOffsets) -> bool:
        """Do what comes before changes of the topic: DDL of the source, or the next part of a snapshot."""
        if self._rewinds.asked is not None:
            self._rewinds.settle()  # done, by a worker that was killed behind it
        if self.has_ddl and self._settle_ddl(found):
            return True
        waits = self.unread(found) > 0
        if self._reads_part(progress, found) and self._snapshot.comes_next(progress, waiting=waits):
            self._read_part(found)
            return True
        return False

    def _rewind(self, found: TopicOffsets) -> None:
        """Go back to the offsets that a person asked for, unless that would lose or double something."""
        assert self._hold is not None  # noqa: S101  (opened before)
        context, progress, asked = self._context, self._hold.progress, self._rewinds.asked
        try:
            loads = self._snapshot.is_under_way(progress)
            plan = context.retry(self.table).call(lambda: self._rewinds.plan(progress, found, loads=loads))
        except ConfigError as exc:
            self._tally.warnings += (refused(exc),)
            self._change("RUNNING", None)
            return
        if plan is not None and asked is not None:
            if not self._begins(0, left=self.lag):
                return
            self._rewind_ddl(plan)
            make = partial(RewindBatch, number=asked.number)
            outcome = context.retry(self.table).call(lambda: self._batch(plan, context.source, make).run())
            self._take(outcome)
            if outcome.pending:
                return
        self._rewinds.settle()

    def _rewind_ddl(self, plan: BatchPlan) -> None:
        """Have the topic's DDL read again too: before the commit, since what is read twice is known once."""
        ddl, retry = self._context.topics.ddl(self.topic), self._context.retry(self.table)
        for part in plan.ranges:
            if part.partition == DDL_PARTITION:
                retry.call(partial(ddl.rewind, plan.found, part.start))

    def _settle_ddl(self, found: TopicOffsets) -> bool:
        """Decide what becomes of DDL of the source; False where rows go first."""
        assert self._hold is not None  # noqa: S101  (opened before)
        hold, pauses, retry = self._hold, self._pauses, self._context.retry(self.table)
        decision = retry.call(lambda: self._ddl.decide(hold, pauses.accepted, found, self._next_offsets()))
        if decision is None:
            return False
        if decision.pending:
            self._take(BatchOutcome(hold.progress, pending=decision.pending))
        elif self._begins(0, left=self.lag):
            make = retry.call(lambda: self._ddl.batch(decision, hold.progress))
            plan = BatchPlan(tuple(part._replace(end=part.start) for part in self._available(found)), found)
            self._take(retry.call(lambda: self._batch(plan, self._context.source, make).run()))
        return True

    def _reads_part(self, progress: Progress, found: TopicOffsets) -> bool:
        """Whether the table's snapshot is to go on before changes that are waited for."""
        return self._snapshot.goes_on(progress, found, self._settled_offsets())

    def _read_part(self, found: TopicOffsets) -> None:
        """Apply the next part of the table's snapshot, behind what was applied of its topic."""
        assert self._hold is not None and self._decoding is not None  # noqa: S101, PT018  (opened before)
        starts = [part._replace(end=part.start) for part in self._available(found)]
        self._change("RUNNING", None)
        if self.state != "RUNNING":
            return  # the table is another worker's
        progress, retry = self._hold.progress, self._context.retry(self.table)
        self._decoding.catch_up(None, found)
        plan, applied = self._decoding.columns(), self._settled_offsets()
        # The bounds are those of each try: what is recorded of the batch must be what it did.
        try:
            part = retry.call(lambda: self._snapshot.next_part(progress, plan, applied))
        except SnapshotRefusedError as exc:
            part = None
            self._tally.warnings += (self._snapshot.refuse(exc, progress),)
        if part is None:
            self._change("RUNNING", None)
            return
        self._context.listeners.hear(BatchStarted(self.table, progress.batch + 1, 0, self.lag))
        kind = SweepBatch if part.sweeps else SnapshotBatch
        make, ranges = partial(kind, part=part), BatchPlan(tuple(starts), found)
        try:
            outcome = retry.call(lambda: self._batch(ranges, self._context.source, make).run())
        except KeyOrderError:
            # The next part begins where the new order says.
            self._change("RUNNING", None)
            return
        except ValueOutOfRangeError as exc:
            # The DDL that makes room for the row may be late: it is looked at again after a while.
            self._fail(exc, passes=True)
            return
        if outcome.account is not None:
            self._snapshot.took(part, sum(outcome.seconds.values()))
            self._snapshot.forget_keys(progress, outcome.progress)
        elif not outcome.pending:
            self._snapshot.row_does_not_fit(part, applied)
        self._take(outcome)

    def _is_open(self, found: TopicOffsets | None) -> bool:
        """Open the table where it is not; False where it waits for a record behind its start."""
        again = found is not None and self._start.is_other_topic(found)
        if again and self._hold is not None and self._topic_progress() is None:
            # The start is of the topic that was there before, and nothing of it was applied.
            self._decoding = None
            self.close()
        if self._hold is not None:
            return True
        if found is None:
            raise topic_gone(self.topic)
        try:
            self._hold = self._context.retry(self.table).call(lambda: self._open(found))
        except ConfigError as exc:
            if not self._start.offsets or self._start.has_records(found):
                raise
            # Nothing tells its columns before the first record.
            _log.info("table waits for a record behind its start", table=str(self.table), reason=exc.message)
            self._awaits_record = True
            self._change("IDLE", None)
            return False
        self._awaits_record = False
        self.was_open = True
        self._continuity = Continuity(self._context, self.topic, self._settings)
        if self._start.offsets and self._topic_progress() is None:
            self._change("IDLE", None)  # what is said of earlier records
        return True

    def _open(self, found: TopicOffsets) -> Hold:
        """Know the shape and open the table, which is let go again where it cannot be held."""
        self._start.settle(found)
        hold = self._open_at_start(found)
        if not hold.progress.topics and self._start.is_stale():
            # It is loaded again: the start that is known is of the table that was there.
            hold.table.close()
            self._decoding = None
            self._start.begin(found)
            return self._open_at_start(found)
        progress = hold.progress.topics.get(self.topic)
        known = progress.partitions if progress is not None else {}
        if progress is not None and self._start.lower({n: at.low_water_offset for n, at in known.items()}):
            hold.table.close()
            self._decoding = None
            return self._open_at_start(found)
        return hold

    def _open_at_start(self, found: TopicOffsets) -> Hold:
        context = self._context
        if self._decoding is None:
            self._decoding = open_decoding(context, self.topic, self.table, session=self._session)
        self._decoding.prepare(found, self._start.offsets)
        hold, self._tombstones = opened(context, self._decoding, self._settings, self._tally, self._pauses)
        return hold

    def _plan(self, found: TopicOffsets) -> tuple[BatchPlan, RecordReader]:
        """The next batch, and who gives its records: Kafka, or what tables at the same offsets share."""
        batch = self._context.config.batch
        available = self._available(found)
        if not self._next_offsets():
            self._tally.warnings += late_start(self.topic, found)
        limits = Limits(batch.max_records, batch.max_bytes, self._size)
        source = self._context.source
        self._context.retry(self.table).call(lambda: sample(limits, available, source.fetch))
        again = again_only(available, self._topic_progress())
        if again is not None:
            # Read alone: what others read goes further.
            self._reads.settle(self.table, None, away=True)
            most = budget_of(batch.max_records, batch.max_bytes, self._size)
            return BatchPlan(plan_ranges(again, max_records=most), found), source
        planned = self._reads.plan(self.table, available, found, limits=limits)
        plan = BatchPlan(planned.ranges, planned.found)
        if planned.kept is None:
            return plan, source
        return plan, TableRecords(planned.kept, source, self.table, commits=planned.commits)

    def _available(self, found: TopicOffsets) -> list[OffsetRange]:
        """What of each partition is to be read next."""
        known, parts = self._next_offsets(), found.partitions
        grown = self._context.retry(self.table).call(lambda: self._context.topics.grown(found))
        held = {*held_back(grown, known, parts), *self._passed_partitions}
        starts = {n: known.get(n, parts[n].earliest) for n in self._added.readable(known, parts)}
        # One that waits is in the progress all the same: what it holds must not expire unseen.
        return [
            OffsetRange(self.topic, n, starts[n], starts[n] if n in held else max(starts[n], at.latest))
            for n, at in limited(found, self.ends).items()
            if n in starts
        ]

    def _pass_by(self, plan: BatchPlan, reader: RecordReader, progress: TopicProgress | None) -> bool:
        """Let records go by that tables share, if they hold nothing but watermarks for this one."""
        if progress is None or not isinstance(reader, TableRecords) or reader.commits:
            return False
        try:
            if self._context.retry(self.table).call(lambda: reader.concern(self._session)):
                return False
        except RangeTooLargeError:
            return False  # the batch cuts its ranges
        if self._continuity.follows(plan.found, {**progress.last_records, **self._passed.last}, reader.last):
            self._passed.add(plan.ranges, reader.last)
        return True

    def _settle(self, *, away: bool = False) -> None:
        """Say where the table stands now, so that what is kept for it alone is let go."""
        stopped = away or self._awaits_record or self.state in ("PAUSED", "FAILING")
        if self.table.schema != UNKNOWN_SCHEMA:
            known = self._next_offsets() if self._hold is not None else {}
            self._reads.settle(self.table, known or None, away=stopped)

    def _next_offsets(self) -> dict[int, int]:
        """Where to read next, by partition; empty for a table that begins at its topic's beginning."""
        progress = self._topic_progress()
        if self._hold is None or progress is None:
            return self._passed.behind(self._start.offsets)
        return self._passed.behind(starts(self._hold.progress, self.topic, self.bound))

    def _settled_offsets(self) -> dict[int, int]:
        """As ``_next_offsets``, but where the first row stands that waits for another bound."""
        return settled(self._topic_progress(), self._next_offsets(), self.bound)

    def _topic_progress(self) -> TopicProgress | None:
        return self._hold.progress.topics.get(self.topic) if self._hold else None

    def _batch(self, plan: BatchPlan, reader: RecordReader, make: Callable[..., Batch] = Batch) -> Batch:
        assert self._hold is not None and self._decoding is not None  # noqa: S101, PT018  (opened before)
        fit_shuffle(self._session, plan.records)
        accepted, loads = self._pauses.accepted, self._snapshot.is_under_way(self._hold.progress)
        hold = replace(self._hold, accepted=accepted, loads=loads, bound=self.bound, outside=self.outside)
        return make(
            self._context,
            hold,
            self._decoding,
            settings=self._settings,
            session=self._session,
            plan=replace(plan, last=self._passed.last, follows=self._continuity.follows),
            reader=reader,
        )

    def _take(self, outcome: BatchOutcome) -> None:
        """Count a batch, tell of it, and pause where it says so."""
        if outcome.account is not None and outcome.read is not None and self._hold is not None:
            self.batches += 1
            self._hold = replace(self._hold, progress=outcome.progress)
            self._passed.clear()
            # Under another bound rows that waited come first, and what was behind them was not read.
            self.marks = NO_MARKS
            if self._hold.known is not None and self._decoding is not None:
                self._hold.known.applied(self._decoding, outcome.progress)
            if self._tombstones is not None:
                self._tombstones.collect_if_due(outcome.progress, self.topic)
                self._hold = replace(self._hold, horizon=self._tombstones.horizon)
            # What stays in memory: a record with its schema is many times its row.
            self._size.learn(outcome.read.records, outcome.read.decoded)
            self._tally.add(outcome)
            self._context.listeners.hear(applied_event(self.table, outcome))
        if outcome.pending:
            self._pauses.wait_for(outcome.pending)
            self._change("PAUSED", self._pauses.reason)
        elif outcome.bad is not None:
            self._change("PAUSED", str(outcome.bad))
        else:
            self._change("RUNNING", None)
        self._context.failpoints.reach("reported")

    def _refused(self, exc: SchemaRefusedError) -> None:
        """Wait before a change of the columns that nothing can hold; fail for what is no such change."""
        pending = pending_of(exc, self._settings.layout)
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
        if isinstance(exc, AccountingError):
            text = f"{text}; {self._pauses.break_law(exc, self._tally.rank)}"
        again = passes and not self._context.ends
        self._context.failures.note(self.table, exc, self.cooldown.seconds if again else None, text=text)
        self._change("FAILING", text)

    def _change(self, state: TableState, error: str | None) -> None:
        self.state, self._error = state, error
        self._pauses.state_is(state)
        if self.table.schema == UNKNOWN_SCHEMA:
            self._context.listeners.hear(TableChanged(self._status()))
            return
        # Before the first save: it would put zeros over what earlier runs counted.
        resumed = self._context.noted(
            self.table,
            lambda: self._tally.resume(self._context, self.table),
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
        """Save a broken law that the state store did not take: the next worker must know."""
        if self._owes_law:
            with suppress(StateStoreError):
                self._tally.resume(self._context, self.table)
                self._save(self._status())
                self._owes_law = False

    def _save(self, status: TableStatus) -> bool:
        """Have the state store know; False where another worker has the table by now."""
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
            counters=self._tally.total.as_counters(),
            zero_dates=dict(self._tally.zero_dates),
            ambiguous_times=dict(self._tally.ambiguous_times),
            warnings=self._warnings(),
            batch=progress.batch if progress else self._tally.batch,
            commit_ts=progress.commit_ts if progress else self._tally.commit_ts,
            life=self._tally.life,
            epoch=self._tally.epoch,
            details={
                **self._context.topics.details(self.topic),
                PLACE: self._tally.place,
                **self._failure_details(),
                **passed(progress, self.topic, self._tally.filtered),
                **shown_goal(self._context.config, self.table),
                **self._tally.left(),
                **self._tally.forgotten(self._tombstones),
                **(self._tally.caught_up.as_detail() if self._compaction else {}),
                **self._snapshot.details(progress),
                **rewind_details(progress, self.topic),
                **self._pauses.details(),
            },
        )

    def _failure_details(self) -> dict[str, Any]:
        """How much is not applied, and what keeps it from being."""
        seen, failures = self.seen, self._context.failures
        known = self._known_offsets(seen) if seen else {}
        lag = waiting_records(seen, known) if seen else self.lag
        failure = failures.of(self.table)
        if failure is None:
            return {LAG: lag}
        answers = not failure.is_of_kafka and failures.of(None) is None
        oldest = self._oldest.time(known, seen.partitions) if seen and answers else None
        return {LAG: lag, OLDEST: oldest, **failure.as_details()}

    def _warnings(self) -> tuple[str, ...]:
        own = self._decoding.warnings if self._decoding else ()
        if self._decoding is not None and self._hold is not None:
            policies = Policies.of(self._settings, {}, self._context.target.capabilities)
            rows, progress = self._decoding.row_ddl(), self._hold.progress
            self._unfollowed = tuple(unfollowed(rows, policies, progress, self.topic))
        ddl = self._ddl.warnings(self._hold)
        began = self._start.warnings()
        return tuple(dict.fromkeys((*began, *own, *self._unfollowed, *ddl, *self._tally.warnings)))
