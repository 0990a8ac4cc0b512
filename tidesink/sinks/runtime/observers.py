"""Observers of a worker: log, metrics, run report and heartbeat. A failing observer never fails a batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeGuard, get_args

import msgspec
import structlog

from tidesink.errors import StateStoreError, TidesinkError
from tidesink.events import TableId
from tidesink.sinks.laws.counts import Account, RowWarning
from tidesink.sinks.state.documents import DocumentKind
from tidesink.sinks.state.failures import Failure, Failures
from tidesink.sinks.state.progress import StateStore, TableState, TableStatus

_log = structlog.get_logger("tidesink.worker")


@dataclass(frozen=True)
class Waiting:
    """Event: the worker is starting. ``what``: what it waits for, such as jars, Spark or Kafka."""

    what: str


@dataclass(frozen=True)
class Turned:
    """Event: the worker begins the next turn of its loop, in which it looks up the topics' offsets."""


@dataclass(frozen=True)
class StillAtWork:
    """Event: a slow step is still running. Sent every second, so that observers can see that the worker is
    alive.
    """


@dataclass(frozen=True)
class BatchStarted:
    """Event: the offsets of a batch are fixed, and the batch begins.

    ``records``: the number of offsets in the batch. ``left``: the number of records that the topic has after
    the batch, counted up to the end offsets of the topic's last look-up.
    """

    table: TableId
    batch: int
    records: int
    left: int = 0


@dataclass(frozen=True)
class BatchApplied:
    """Event: a batch and its progress are committed in the target.

    ``seconds``: the duration of each step in seconds, in the order of the steps. ``warned``: the number of
    rows that were applied with a warning. ``first_warnings``: for each partition, its first such row.
    """

    table: TableId
    batch: int
    account: Account
    version: str
    commit_ts: int | None
    bytes_read: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    warned: int = 0
    first_warnings: tuple[RowWarning, ...] = ()


@dataclass(frozen=True)
class StepRetried:
    """Event: a step failed and will be tried again after ``pause`` seconds.

    ``table``: None for a step that all tables share.
    """

    table: TableId | None
    error: TidesinkError
    pause: float


@dataclass(frozen=True)
class TableChanged:
    """Event: the status of a table changed."""

    status: TableStatus


WorkerEvent = Waiting | Turned | StillAtWork | BatchStarted | BatchApplied | StepRetried | TableChanged


class Listener(Protocol):
    """Receives the events of a worker, from several threads.

    Exceptions of a listener are logged and ignored.
    """

    def hear(self, event: WorkerEvent) -> None:
        """Handle an event of the worker."""


class Listeners:
    """Passes each event to all listeners of a worker."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._listeners = tuple(listeners)

    def retried(self, table: TableId | None, error: TidesinkError, pause: float) -> None:
        """Report to all listeners that a step will be tried again."""
        self.hear(StepRetried(table, error, pause))

    def hear(self, event: WorkerEvent) -> None:
        """Report an event of the worker to all listeners."""
        for listener in self._listeners:
            try:
                listener.hear(event)
            except Exception as exc:  # noqa: BLE001  (an observer's fault must not stop a table)
                _log.warning("observer failed", observer=type(listener).__name__, error=type(exc).__name__)


class LogListener:
    """Writes events to the log, one structured line each."""

    def hear(self, event: WorkerEvent) -> None:
        """Log an event.

        ``Turned`` and ``StillAtWork`` are not logged, because they occur up to several times a second.
        """
        if not isinstance(event, Turned | StillAtWork):
            _LINES[type(event)](_log, event)


def _waiting(log: Any, event: Waiting) -> None:
    log.info(event.what)


def _started(log: Any, event: BatchStarted) -> None:
    log.debug("batch started", table=str(event.table), batch=event.batch, records=event.records)


def _applied(log: Any, event: BatchApplied) -> None:
    log.info(
        "batch applied",
        table=str(event.table),
        batch=event.batch,
        version=event.version,
        commit_ts=event.commit_ts,
        seconds=round(sum(event.seconds.values()), 3),
        **event.account.as_counters(),
    )
    if event.first_warnings:
        first = event.first_warnings[0]
        log.warning(
            "rows applied with a warning",
            table=str(event.table),
            batch=event.batch,
            rows=event.warned,
            first=f"{first.place.topic}[{first.place.partition}]@{first.offset}",
            reason=first.reason,
        )


def _retried(log: Any, event: StepRetried) -> None:
    table = str(event.table) if event.table else None
    log.warning("tried again", table=table, error=str(event.error), pause=round(event.pause, 2))


def _changed(log: Any, event: TableChanged) -> None:
    status = event.status
    write = log.warning if status.error else log.debug
    write("table", table=str(status.table), state=status.state, error=status.error)


_LINES: dict[type, Callable[[Any, Any], None]] = {
    Waiting: _waiting,
    BatchStarted: _started,
    BatchApplied: _applied,
    StepRetried: _retried,
    TableChanged: _changed,
}


class MetricsListener:
    """Counts events as Prometheus metrics. ``registry`` is the Prometheus registry of these metrics."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        registry = self.registry = CollectorRegistry()

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"tidesink_{name}", words, ("table", *labels), registry=registry)

        self._events = counter("events", "Row events by outcome", "fate")
        self._filtered_out = counter("filtered_out", "Row events whose row does not match the filter")
        self._row_by_row = counter("row_by_row_records", "Records decoded by the slower row codec")
        self._batches = counter("batches", "Batches applied")
        self._bytes = counter("read_bytes", "Bytes read from Kafka")
        self._warned = counter("doubted_rows", "Rows applied with a warning about their checksum or key")
        self._retries = counter("retries", "Retries of failed steps, such as reads and commits")
        table_label = ("table",)
        self._seconds = Histogram(
            "tidesink_batch_seconds", "Seconds per batch", table_label, registry=registry
        )
        self._commit_ts = Gauge(
            "tidesink_commit_ts", "Greatest commit_ts applied", table_label, registry=registry
        )
        about = ("table", "state")
        turned = "tidesink_last_turn_timestamp_seconds"
        self._turned = Gauge(turned, "Time of the last look-up of the topics' offsets", registry=registry)
        self._state = Gauge(
            "tidesink_table_state", "1 for the table's current state, else 0", about, registry=registry
        )

    def hear(self, event: WorkerEvent) -> None:
        """Update the Prometheus metrics by an event of the worker."""
        if isinstance(event, Turned):
            self._turned.set_to_current_time()
        elif isinstance(event, BatchApplied):
            self._applied(event)
        elif isinstance(event, StepRetried):
            self._retries.labels(str(event.table or "")).inc()
        elif isinstance(event, TableChanged):
            for state in get_args(TableState):
                self._state.labels(str(event.status.table), state).set(state == event.status.state)

    def _applied(self, event: BatchApplied) -> None:
        table = str(event.table)
        counters = event.account.as_counters()
        # These two are also counted under another fate, so they are separate metrics.
        self._filtered_out.labels(table).inc(max(counters.pop("filtered_out"), 0))
        self._row_by_row.labels(table).inc(counters.pop("row_by_row"))
        for fate, count in counters.items():
            # Prometheus counters raise for negative numbers, and the numbers after it would not be counted.
            self._events.labels(table, fate).inc(max(count, 0))
        self._batches.labels(table).inc()
        self._bytes.labels(table).inc(event.bytes_read)
        self._warned.labels(table).inc(event.warned)
        self._seconds.labels(table).observe(sum(event.seconds.values()))
        if event.commit_ts is not None:
            self._commit_ts.labels(table).set(event.commit_ts)


# Exit codes.
DONE: Final = 0
UNWELL: Final = 3  # finished, but some table is paused or failing
INTERRUPTED: Final = 130  # by Ctrl-C
TERMINATED: Final = 143  # by SIGTERM


@dataclass(frozen=True)
class TableReport:
    """A table's numbers at the end of a run.

    Attributes:
        table: The table.
        topic: Its topic.
        state: Its state at the end.
        batch: The number of its last batch, counted over all runs.
        batches: The number of batches in this run.
        commit_ts: The greatest commit_ts that was ever applied, or None.
        lag: The number of records in Kafka that were not applied when the topic was last looked up.
        counters: The counts of this run (``Account.as_counters``).
        zero_dates: By column, the number of impossible dates that this run set to null.
        ambiguous_times: By column, the number of local times in this run that occur twice, because clocks
            were set back.
        warnings: The table's warnings.
        error: The table's error, or None.
    """

    table: TableId
    topic: str
    state: TableState
    batch: int = 0
    batches: int = 0
    commit_ts: int | None = None
    lag: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    zero_dates: Mapping[str, int] = field(default_factory=dict)
    ambiguous_times: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class RunReport:
    """The result of a run.

    Attributes:
        pipeline: The pipeline's name.
        tables: The numbers of each table.
        interrupted: True if a stop was requested.
        terminated: True if the stop was requested by SIGTERM.
        abandoned: True if the worker ended while a batch was still running.
        seconds: The duration of the run in seconds.
        error: The error of the run as a whole, or None.
    """

    pipeline: str
    tables: tuple[TableReport, ...]
    interrupted: bool = False
    terminated: bool = False
    abandoned: bool = False
    seconds: float = 0.0
    error: str | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of the process.

        - 0: the run is done, or was stopped by SIGTERM without abandoning a batch.
        - 3: the run has an error, or a table is paused or failing.
        - 130: the run was interrupted by Ctrl-C.
        - 143: the run was stopped by SIGTERM and abandoned a batch.

        SIGTERM is the normal way to stop a container or a service, so it is not a failure if no batch is
        abandoned. If the run as a whole has an error, the code after SIGTERM is 3.
        """
        if self.interrupted and self.terminated:
            stopped = TERMINATED if self.abandoned else DONE
            return UNWELL if self.error else stopped
        if self.interrupted:
            return INTERRUPTED
        unwell = self.error or any(table.state in ("PAUSED", "FAILING") for table in self.tables)
        return UNWELL if unwell else DONE


# The worker beats several times a second. The state store is written at most this often.
EVERY_SECONDS: Final = 5.0
# When a failure begins or ends, the state store may be written sooner.
EVERY_FAILURE_SECONDS: Final = 1.0


class _Beat(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored heartbeat.

    ``time``: seconds since 1970. ``working``: False if the worker ended on its own. ``failure``: the failure
    of a step that all tables share, or None.
    """

    time: float
    working: bool
    failure: Failure | None = None


_HEARTBEAT: Final = DocumentKind("heartbeat", _Beat)


class Heartbeat:
    """Stores the heartbeat of a pipeline's worker in the state store.

    Each event of the worker counts as a sign of life. So a worker that keeps retrying, for example because
    Kafka does not answer, does not count as dead. The heartbeat also contains the current failure of a step
    that all tables share. ``clock`` returns seconds since 1970. ``every``: minimum seconds between two writes
    to the state store.
    """

    def __init__(
        self,
        store: StateStore,
        pipeline: str,
        clock: Callable[[], float] = time.time,
        failures: Failures | None = None,
        *,
        every: float = EVERY_SECONDS,
    ) -> None:
        self._document = _HEARTBEAT.of(store, pipeline)
        self._clock = clock
        self._every = every
        self._failures = failures if failures is not None else Failures()
        self._last = float("-inf")
        self._left: Failure | None = None
        self._has_ended = False

    def beat(self) -> None:
        """Store a heartbeat, unless the last one is recent. An error of the state store is only logged."""
        now, failure = self._clock(), self._failures.of(None)
        every = self._every if failure == self._left else EVERY_FAILURE_SECONDS
        # If the clock was set back, the difference is negative, and the heartbeat is stored.
        if self._has_ended or 0 <= now - self._last < every:
            return
        self._last, self._left = now, failure
        self._save(now, working=True)

    def hear(self, _event: WorkerEvent) -> None:
        """Store a heartbeat, because every event is a sign of life."""
        self.beat()

    def end(self) -> None:
        """Record that the worker ended on its own. Later events store no heartbeat.

        Without this record, ``tidesink status`` would show the worker as alive for another minute.
        """
        self._has_ended = True
        self._save(self._clock(), working=False)

    def _save(self, now: float, *, working: bool) -> None:
        try:
            self._document.save(_Beat(now, working, self._failures.of(None)))
        except StateStoreError as exc:
            _log.warning("no sign of life could be left", error=type(exc).__name__)


# A worker stores a heartbeat every 5 seconds, or later if the state store is slow. If the last heartbeat is
# older than this, the worker counts as dead.
ALIVE_SECONDS: Final = 60.0


def is_alive(seconds: float | None) -> TypeGuard[float]:
    """Returns True if the last heartbeat is recent enough for a running worker.

    ``seconds``: the time since the last heartbeat (``seconds_since_beat``), or None.
    """
    return seconds is not None and seconds <= ALIVE_SECONDS


def seconds_since_beat(store: StateStore, pipeline: str, *, now: float | None = None) -> float | None:
    """Returns the seconds since the last heartbeat, or None without one or if the worker ended on its own.

    Raises:
        StateStoreError: The state store does not answer.
    """
    return read_mark(store, pipeline, now=now).seconds


class Mark(NamedTuple):
    """The last heartbeat of a pipeline's worker.

    ``seconds``: the age of the heartbeat, or None without a heartbeat or if the worker ended on its own.
    ``failure``: the failure of a step that all tables share, at the time of the heartbeat, or None.
    """

    seconds: float | None = None
    failure: Failure | None = None


def read_mark(store: StateStore, pipeline: str, *, now: float | None = None) -> Mark:
    """Returns the last heartbeat of a pipeline's worker.

    ``now``: the current time in seconds since 1970, or None to use the clock.

    Raises:
        StateStoreError: The state store does not answer.
    """
    beat = _HEARTBEAT.of(store, pipeline).load()
    if beat is None:
        return Mark()
    if not beat.working:
        return Mark(None, beat.failure)
    # If the clock was set back after the heartbeat, the age would be negative.
    return Mark(max(0.0, (time.time() if now is None else now) - beat.time), beat.failure)
