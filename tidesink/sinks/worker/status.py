"""The state of a table, and its status in the state store: what it holds, and when it is saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, Final

import structlog

from tidesink.errors import (
    AccountingError,
    SchemaRefusedError,
    SourceError,
    SourceUnavailableError,
    StaleProgressError,
    StateStoreError,
    TidesinkError,
    error_text,
    with_table,
)
from tidesink.sinks.batch.tasks import Fetch
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import PartitionOffsets, waiting_records
from tidesink.sinks.laws.counts import passed
from tidesink.sinks.runtime.context import Cooldown, WorkerContext
from tidesink.sinks.runtime.control import PLACE
from tidesink.sinks.runtime.observers import TableChanged
from tidesink.sinks.schema_changes.decisions import Pending, Policies, pending_of
from tidesink.sinks.schema_changes.row_ddl import unfollowed
from tidesink.sinks.snapshots.parts import Snapshot
from tidesink.sinks.spark.errors import fault_of
from tidesink.sinks.state.failures import Failure, failure_in
from tidesink.sinks.state.progress import UNKNOWN_SCHEMA, TableState, TableStatus
from tidesink.sinks.worker.open_table import OpenTable
from tidesink.sinks.worker.preflight import shown_target
from tidesink.sinks.worker.reading import TopicReading
from tidesink.sinks.worker.rewind import rewind_details
from tidesink.sinks.worker.source_ddl import SourceDdl

_log = structlog.get_logger("tidesink.worker")
_TAKEN: Final = (
    "Another worker has taken over this table, as its status shows. Run only one worker for each table."
)
# Key in a status's details: Kafka's timestamp of the oldest unapplied record, in ms since 1970.
OLDEST: Final = "oldest_unapplied"
LAG: Final = "lag"
# Details by which commands decide if a request contradicts what the worker does.
_DECISIVE: Final = ("snapshot", "read_again", PLACE)
# A failure that lasts less than this many seconds is not saved.
SAVE_SECONDS: Final = 1.0
# If retries follow each other in less than this many seconds, the status is saved once per interval.
AGAIN_SECONDS: Final = 5.0
# Seconds after which the changed lag of a paused or failing table is saved.
LAG_SECONDS: Final = 15.0
# Number of offsets that are read to find a record. An offset may have no record: it is the end of a
# transaction, or compaction removed the record.
_LOOKED_AT: Final = 100


class SavedStatus:
    """Decides if a table's status must be saved again, by comparison with the status that was saved last.

    ``clock``: returns seconds since 1970. ``has_failure``: True if the saved status shows a failure.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._at = float("-inf")
        self._lag: int | None = None
        self._decisive: tuple[object, ...] | None = None
        self.has_failure = False

    def saved(self, status: TableStatus) -> None:
        """Record that ``status`` was saved at this time."""
        self._at, self._lag = self._clock(), status.details.get(LAG)
        self._decisive = _decisive(status)
        self.has_failure = failure_in(status.details) is not None

    def lacks_only_progress(self, status: TableStatus) -> bool:
        """Return True if ``status`` differs from the saved one only by what nobody decides by."""
        return self._decisive == _decisive(status)

    def lacks(self, failure: Failure | None) -> bool:
        """Return True if the table's status must be saved again because a failure began, continues or ended.

        Short failures are not saved. Of retries in quick succession, only one per ``AGAIN_SECONDS`` is saved.
        ``failure``: the table's current failure, or None.
        """
        if failure is None:
            return self.has_failure
        now = self._clock()
        pause = 0.0 if failure.next_try is None else failure.next_try - now
        if self.has_failure:
            return pause >= AGAIN_SECONDS or not 0 <= now - self._at < AGAIN_SECONDS
        return pause >= SAVE_SECONDS or now - failure.since >= SAVE_SECONDS

    def lacks_lag(self, lag: int) -> bool:
        """Return True if the status of a paused or failing table must be saved because its lag changed."""
        return lag != self._lag and not 0 <= self._clock() - self._at < LAG_SECONDS


def _decisive(status: TableStatus) -> tuple[object, ...]:
    """Return the parts of a status by which commands and later workers decide, or which nobody else has.

    These are: the claim, with which a later claim compares its own; snapshots and rewinds, which commands
    must not contradict; dead letters and warnings, which a killed worker must not lose.
    """
    details = {name: status.details.get(name) for name in _DECISIVE}
    letters = status.counters.get("dead_lettered", 0)
    return status.rank[:2], details, letters, status.warnings


class OldestRecords:
    """Looks up the timestamp of the oldest record that a table has not applied.

    The timestamp is remembered per partition until the table applies further records. ``fetch``: reads
    records from Kafka.
    """

    def __init__(self, topic: str, fetch: Fetch) -> None:
        self._topic = topic
        self._fetch = fetch
        self._known: dict[int, tuple[int, int | None]] = {}

    def time(self, starts: Mapping[int, int], ends: Mapping[int, PartitionOffsets]) -> int | None:
        """Return Kafka's timestamp of the oldest unapplied record, in ms since 1970, or None if unknown.

        ``starts``: the next offset to apply per partition. ``ends``: the first and end offset per partition.
        """
        times = []
        for number, partition in ends.items():
            start = max(starts.get(number, partition.earliest), partition.earliest)
            if start >= partition.latest:
                continue
            if self._known.get(number, (None,))[0] != start:
                self._known[number] = start, self._time_of(number, start, partition.latest)
            times.append(self._known[number][1])
        return min((timestamp for timestamp in times if timestamp is not None), default=None)

    def _time_of(self, number: int, start: int, end: int) -> int | None:
        wanted = FetchRange(self._topic, number, start, min(end, start + _LOOKED_AT), headers=False)
        try:
            for records in self._fetch(wanted):
                if records.num_rows:
                    timestamp: int | None = records.column("timestamp")[0].as_py()
                    return timestamp
        except Exception as exc:  # noqa: BLE001  (a status without the timestamp is better than no status)
            _log.debug("age of the oldest record not known", topic=self._topic, error=type(exc).__name__)
        return None


class StatusDocuments:
    """Makes the status documents of one table from the parts of its task. Used by one thread at a time."""

    def __init__(
        self,
        context: WorkerContext,
        opened: OpenTable,
        reading: TopicReading,
        *,
        snapshot: Snapshot,
        ddl: SourceDdl,
    ) -> None:
        self._context = context
        self._opened = opened
        self._reading = reading
        self._snapshot = snapshot
        self._ddl = ddl
        self._oldest = OldestRecords(opened.topic, context.source.fetch)
        # Warnings about DDL in the topic that changed rows at the source and was not applied to the target.
        self._unfollowed: tuple[str, ...] = ()

    def status(self, state: TableState, error: str | None) -> TableStatus:
        """Return the table's status, with its present state and error."""
        opened, counters, config = self._opened, self._opened.counters, self._context.config
        progress, topic = opened.progress, opened.topic
        return TableStatus(
            config.pipeline,
            opened.table,
            state,
            error=error,
            counters=counters.total.as_counters(),
            zero_dates=dict(counters.zero_dates),
            ambiguous_times=dict(counters.ambiguous_times),
            warnings=self.warnings(),
            batch=progress.batch if progress else counters.batch,
            commit_ts=progress.commit_ts if progress else counters.commit_ts,
            life=counters.life,
            epoch=counters.epoch,
            details={
                **self._context.topics.details(topic),
                PLACE: counters.place,
                **self._failure_details(),
                **passed(progress, topic, counters.filtered),
                **shown_target(config, opened.table),
                **counters.left(),
                **counters.executed(),
                **counters.forgotten(opened.tombstones),
                **(counters.caught_up.as_detail() if self._reading.compaction else {}),
                **self._snapshot.details(progress),
                **rewind_details(progress, topic),
                **opened.pauses.details(),
            },
        )

    def _failure_details(self) -> dict[str, Any]:
        """Return lag, failure and the time of the oldest unapplied record, as details of the status."""
        reading, failures = self._reading, self._context.failures
        seen = reading.seen
        next_offsets = reading.known_offsets(seen) if seen else {}
        lag = waiting_records(seen, next_offsets) if seen else reading.lag
        failure = failures.of(self._opened.table)
        if failure is None:
            return {LAG: lag}
        answers = not failure.is_of_kafka and failures.of(None) is None
        oldest = self._oldest.time(next_offsets, seen.partitions) if seen and answers else None
        return {LAG: lag, OLDEST: oldest, **failure.as_details()}

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings about the table, each once."""
        opened, decoding = self._opened, self._opened.decoding
        own = decoding.warnings if decoding else ()
        if decoding is not None and opened.progress is not None:
            policies = Policies.of(opened.settings, {}, self._context.target.capabilities)
            self._unfollowed = tuple(unfollowed(decoding.row_ddl(), policies, opened.progress, opened.topic))
        ddl = self._ddl.warnings(opened.hold)
        began = opened.start.warnings()
        warnings = (*began, *own, *self._unfollowed, *ddl, *opened.counters.warnings)
        return tuple(dict.fromkeys(with_table(warning, opened.table) for warning in warnings))


class Takeover:
    """Remembers the claim of a table that another worker has superseded, as the state store has shown."""

    def __init__(self, opened: OpenTable) -> None:
        """Create it for a table that nobody has taken over."""
        self._opened = opened
        # Life and epoch of the superseded claim.
        self._claim: tuple[int, int] | None = None

    def note(self, status: TableStatus) -> bool:
        """Record that the state store refused a status of the table. Returns ``is_noted``."""
        self._claim = status.rank[:2]
        return self.is_noted

    @property
    def is_noted(self) -> bool:
        """True if the table is open under a superseded claim, so that it must not go on."""
        return self._opened.hold is not None and self._claim == self._opened.counters.rank[:2]

    def error(self) -> StaleProgressError:
        """Returns the error of a table that another worker has taken over."""
        return StaleProgressError(_TAKEN, table=str(self._opened.table))


class ReportedState:
    """The state of one table. Each change is saved in the table's status and reported to the listeners.

    Attributes:
        state: The table's state, as in its status: IDLE, RUNNING, PAUSED or FAILING.
        error: Why the table is paused or failing, or None.
        cooldown: The wait before the retry, after a failure that may pass.
        takeover: Knows if another worker has taken over the table.
    """

    def __init__(self, context: WorkerContext, opened: OpenTable, documents: StatusDocuments) -> None:
        """Create the state of a table that is IDLE. Its failures are saved from now on."""
        self.state: TableState = "IDLE"
        self.error: str | None = None
        self.cooldown = Cooldown(context.config.retry.for_)
        self._context = context
        self._opened = opened
        self._documents = documents
        self._table = opened.table
        self._pauses = opened.pauses
        self._counters = opened.counters
        self._refusal: TidesinkError | None = None
        self._owes_law = False
        self.takeover = Takeover(opened)
        self._saved = SavedStatus(context.failures.clock)
        context.failures.follow(opened.table, self._failure_changed)

    @property
    def is_stopped(self) -> bool:
        """Return True if the table is paused or failing."""
        return self.state in ("PAUSED", "FAILING")

    @property
    def obstacle(self) -> str:
        """The state and the error of a paused or failing table; empty for other tables.

        Such a table cannot reach the bound of a cut.
        """
        return f"{self.state}: {self.error}" if self.is_stopped else ""

    @property
    def is_failing(self) -> bool:
        """Return True if the table's last step failed, also while the step is being retried."""
        return self._context.failures.of(self._table) is not None

    @property
    def cools_down(self) -> bool:
        """Return True if the table failed with an error that may pass, and waits before the retry."""
        return self.state == "FAILING" and self.cooldown.running

    @property
    def is_stuck(self) -> bool:
        """Return True if the table continues only after a user's intervention.

        False for a failure that may pass, which is retried.
        """
        return self.state == "PAUSED" or (self.state == "FAILING" and not self.cooldown.started)

    @property
    def retries_now(self) -> bool:
        """Return True if the table is failing, and the wait before the retry is over."""
        return self.state == "FAILING" and self.cooldown.over

    @property
    def awaits_topic(self) -> bool:
        """Return True if the table needs its topic now, so that a missing topic is an error.

        This is the case if the table is not stopped, or if the retry after a failure is due.
        """
        return not self.is_stopped or self.cooldown.over

    def change(self, state: TableState, error: str | None = None) -> None:
        """Set the state, report it to the listeners, and save the status.

        A table that another worker has taken over becomes FAILING.
        """
        self.state, self.error = state, error
        self._pauses.state_is(state)
        if self._table.schema == UNKNOWN_SCHEMA:
            self._context.listeners.hear(TableChanged(self._status()))
            return
        if self.takeover.is_noted and state != "FAILING":
            self.fail(self.takeover.error(), passes=False)
            return
        # Earlier runs' counters must be loaded before the first save, which would overwrite them with 0.
        resumed = self._context.noted(
            self._table,
            lambda: self._counters.resume(self._context, self._table),
            unless="counters of earlier runs not read",
        )
        status = self._status()
        self._context.listeners.hear(TableChanged(status))
        if resumed and self._may_wait(status):
            return
        saved = resumed and self._context.noted(
            self._table, lambda: self._save(status), unless="status not saved"
        )
        self._owes_law = saved is None and self._pauses.is_law_broken
        if saved is False and self.takeover.note(status) and state != "FAILING":
            self.fail(self.takeover.error(), passes=False)

    def _may_wait(self, status: TableStatus) -> bool:
        """Put a status that shows only progress into the worker's queue, if it has one.

        Returns False if the status must be saved at once.
        """
        queue, hold = self._context.statuses, self._opened.hold
        if queue is None or status.state not in ("IDLE", "RUNNING") or failure_in(status.details) is not None:
            return False
        is_kept = hold is None or hold.known is None or hold.known.is_kept
        if not (is_kept and self._saved.lacks_only_progress(status) and not self._saved.has_failure):
            return False
        queue.put(status)
        return True

    def fail(self, error: Exception, *, passes: bool) -> None:
        """Set the state to FAILING. ``passes``: True if the error may pass, so that the table is retried."""
        if isinstance(error, SourceError) and type(error) is not SourceUnavailableError:
            error.with_context(brokers=self._context.config.source.bootstrap_servers)
        self.cooldown = Cooldown(self._context.config.retry.for_)
        if passes:
            self.cooldown.start()
        text = error_text(error) if isinstance(error, TidesinkError) else str(fault_of(error))
        text = with_table(text, self._table)
        if isinstance(error, AccountingError):
            text = f"{text} {self._pauses.break_law(error, self._counters.rank)}"
        again = passes and not self._context.ends
        self._context.failures.note(self._table, error, self.cooldown.seconds if again else None, text=text)
        self.change("FAILING", text)

    def refuse(self, error: TidesinkError) -> None:
        """Keep the table FAILING with this error for the whole run, also after a resume request."""
        self._refusal = error

    def begin_again(self) -> None:
        """Set the state to IDLE, so that the table is opened again; to FAILING if the table is refused."""
        if self._refusal is None:
            self.change("IDLE")
        else:
            self.fail(self._refusal, passes=False)

    def refuse_schema(self, error: SchemaRefusedError) -> None:
        """Set the state to PAUSED if the refusal is about a schema change, and to FAILING otherwise."""
        pending = pending_of(error, self._opened.settings.projection)
        if pending is None:
            self.fail(error, passes=False)
            return
        self.pause((pending,))

    def pause(self, pending: tuple[Pending, ...] = ()) -> None:
        """Set the state to PAUSED, because a user requested it or must decide about ``pending`` changes."""
        if pending:
            self._pauses.wait_for(pending)
        self.change("PAUSED", self._pauses.reason)

    def rest(self) -> bool:
        """Set a RUNNING table to IDLE, because it has no records to read. Return True if it was RUNNING."""
        self.save_law()
        if self.state != "RUNNING":
            return False
        self.change("IDLE")
        return True

    def await_topic(self, error: TidesinkError, pause: float) -> None:
        """Record that no broker answers for the topic, and that the retry is in ``pause`` seconds."""
        if not self.is_stopped:
            self._context.failures.failed(self._table, error, pause)

    def recover(self) -> None:
        """Record that the table's current failure is over, because a step succeeded."""
        if self.state != "FAILING":
            self._context.failures.passed(self._table)

    def save_failure(self) -> None:
        """Save the table's current failure, if any, in the status when the worker ends."""
        if self.is_failing:
            self._save_quietly()

    def save_lag(self, lag: int) -> None:
        """Save the status of a paused or failing table if its lag has changed."""
        if self.is_stopped and self._saved.lacks_lag(lag):
            self._save_quietly()

    def save_law(self) -> None:
        """Save the status again if event counts did not add up and that could not be saved.

        The next worker must know this fault, to keep the table stopped.
        """
        if self._owes_law:
            with suppress(StateStoreError):
                self._counters.resume(self._context, self._table)
                self._save(self._status())
                self._owes_law = False

    def _failure_changed(self) -> None:
        """Save the status when a failure begins, is retried or ends. Of quick retries, saves only some."""
        failure = self._context.failures.of(self._table)
        if self._saved.lacks(failure):
            self._save_quietly()

    def _save_quietly(self) -> None:
        """Save the status. If that fails, log the error and let the current step continue."""
        if self._table.schema == UNKNOWN_SCHEMA:
            return
        try:
            # Earlier runs' counters must be loaded before the first save, which would overwrite them with 0.
            self._counters.resume(self._context, self._table)
            self._save(self._status())
        except StateStoreError as exc:
            _log.debug("status not saved", table=str(self._table), error=str(exc))
        except Exception as exc:  # noqa: BLE001  (the current step must continue in any case)
            _log.warning("status not saved", table=str(self._table), error=type(exc).__name__)

    def _save(self, status: TableStatus) -> bool:
        """Save a status of the table; return False if another worker has taken over the table."""
        self._saved.saved(status)
        queue = self._context.statuses
        with nullcontext() if queue is None else queue.instead(self._table):
            saved = self._context.store.save_status(status)
        if saved and self._opened.hold is not None and self._opened.hold.known is not None:
            self._opened.hold.known.keep()
        return saved

    def _status(self) -> TableStatus:
        return self._documents.status(self.state, self.error)
