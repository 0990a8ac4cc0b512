"""Observers of a worker: log, metrics, run report and heartbeat. None of them can fail a batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeGuard, get_args

import structlog

from tidesink.errors import StateStoreError, TidesinkError
from tidesink.events import TableId
from tidesink.sinks.batch.counts import Account, Doubt
from tidesink.sinks.state.failures import Failure, Failures, failure_in
from tidesink.sinks.state.progress import StateStore, TableState, TableStatus

_log = structlog.get_logger("tidesink.worker")


@dataclass(frozen=True)
class Waiting:
    """The worker is starting and waits for ``what``: jars, Spark, or Kafka's first answer."""

    what: str


@dataclass(frozen=True)
class Turned:
    """The worker starts another look at the topics."""


@dataclass(frozen=True)
class StillAtWork:
    """A slow step is still running. Sent each second as a sign of life."""


@dataclass(frozen=True)
class BatchStarted:
    """The offsets of a batch are fixed.

    ``records``: the number of records between the offsets. ``left``: the number of later records in the
    topic, as of the last look.
    """

    table: TableId
    batch: int
    records: int
    left: int = 0


@dataclass(frozen=True)
class BatchApplied:
    """A batch and its progress are in the target.

    ``seconds``: the duration of each step, in the order of the batch. ``doubted``: the number of rows that
    were applied with a warning. ``doubts``: the first such row of each partition.
    """

    table: TableId
    batch: int
    account: Account
    version: str
    commit_ts: int | None
    bytes_read: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    doubted: int = 0
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True)
class StepRetried:
    """A step failed and is tried again after ``pause`` seconds. ``table``: None for a step of all tables."""

    table: TableId | None
    error: TidesinkError
    pause: float


@dataclass(frozen=True)
class TableChanged:
    """A table's status changed."""

    status: TableStatus


WorkerEvent = Waiting | Turned | StillAtWork | BatchStarted | BatchApplied | StepRetried | TableChanged


class Listener(Protocol):
    """Receives the events of a worker. Called from several threads; its exceptions are logged and ignored."""

    def hear(self, event: WorkerEvent) -> None:
        """Handle one event."""


class Listeners:
    """All observers of a worker as one."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._listeners = tuple(listeners)

    def retried(self, table: TableId | None, error: TidesinkError, pause: float) -> None:
        """Send every observer the event that a step is tried again."""
        self.hear(StepRetried(table, error, pause))

    def hear(self, event: WorkerEvent) -> None:
        """Send an event to every observer."""
        for listener in self._listeners:
            try:
                listener.hear(event)
            except Exception as exc:  # noqa: BLE001  (an observer's fault must not stop a table)
                _log.warning("observer failed", observer=type(listener).__name__, error=type(exc).__name__)


class LogListener:
    """Writes each event as one structured log line."""

    def hear(self, event: WorkerEvent) -> None:
        """Log one event, but not signs of life: looks at the topics happen several times a second."""
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
    if event.doubts:
        first = event.doubts[0]
        log.warning(
            "rows applied with a warning",
            table=str(event.table),
            batch=event.batch,
            rows=event.doubted,
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
    """Counts events in its own Prometheus registry, ``registry``."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        place = self.registry = CollectorRegistry()

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"tidesink_{name}", words, ("table", *labels), registry=place)

        self._events = counter("events", "Row events by outcome", "fate")
        self._filtered_out = counter("filtered_out", "Events whose row a filter removed")
        self._row_by_row = counter("row_by_row_records", "Records decoded one by one")
        self._batches = counter("batches", "Batches applied")
        self._bytes = counter("read_bytes", "Bytes read from Kafka")
        self._doubted = counter("doubted_rows", "Rows applied with a warning about their checksum or key")
        self._retries = counter("retries", "Steps that failed and were tried again")
        one = ("table",)
        self._seconds = Histogram("tidesink_batch_seconds", "Seconds per batch", one, registry=place)
        self._commit_ts = Gauge("tidesink_commit_ts", "Greatest commit_ts applied", one, registry=place)
        about = ("table", "state")
        turned = "tidesink_last_turn_timestamp_seconds"
        self._turned = Gauge(turned, "When the worker last started a look at the topics", registry=place)
        self._state = Gauge("tidesink_table_state", "1 for a table's current state", about, registry=place)

    def hear(self, event: WorkerEvent) -> None:
        """Count one event."""
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
        # These are part of other fates, and would be counted twice among them.
        self._filtered_out.labels(table).inc(max(counters.pop("filtered_out"), 0))
        self._row_by_row.labels(table).inc(counters.pop("row_by_row"))
        for fate, count in counters.items():
            # A counter cannot decrease. A negative number would raise, and the other numbers would be lost.
            self._events.labels(table, fate).inc(max(count, 0))
        self._batches.labels(table).inc()
        self._bytes.labels(table).inc(event.bytes_read)
        self._doubted.labels(table).inc(event.doubted)
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
    """One table at the end of a run.

    ``batches`` and ``counters`` cover only this run. ``batch`` and ``commit_ts`` cover the table's whole
    life. ``lag``: messages in Kafka that were not applied at the last look. ``zero_dates``: impossible dates
    that were set to null in this run, by column. ``ambiguous_times``: local times of this run that occur
    twice, by column.
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
    """All tables at the end of a run.

    ``interrupted``: a stop was requested. ``terminated``: SIGTERM requested it. ``abandoned``: a running
    batch was not waited for. ``error``: the error of the run as a whole, or None.
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

        - 0: done, or stopped by SIGTERM.
        - 3: done, but the run has an error, or a table is paused or failing.
        - 130: interrupted by Ctrl-C.
        - 143: stopped by SIGTERM, and a batch was abandoned.

        SIGTERM is how containers and services end, so a stop by SIGTERM that loses no work is not a failure.
        It does not hide an error of the run as a whole: then the code is 3.
        """
        if self.interrupted and self.terminated:
            stopped = TERMINATED if self.abandoned else DONE
            return UNWELL if self.error else stopped
        if self.interrupted:
            return INTERRUPTED
        unwell = self.error or any(table.state in ("PAUSED", "FAILING") for table in self.tables)
        return UNWELL if unwell else DONE


_KIND: Final = "heartbeat"
# Looks at the topics happen several times a second; the store need not be written that often.
EVERY_SECONDS: Final = 5.0
# A failure, or its end, is reported sooner.
EVERY_FAILURE_SECONDS: Final = 1.0


class Heartbeat:
    """Stores the heartbeat of one pipeline's worker. It is also a listener.

    As a listener it treats a retry as a sign of life: a worker that waits for Kafka is not hung. The
    heartbeat contains the failure of a step of all tables, for example that Kafka does not answer.
    ``clock`` returns seconds since 1970.
    """

    def __init__(
        self,
        store: StateStore,
        pipeline: str,
        clock: Callable[[], float] = time.time,
        failures: Failures | None = None,
    ) -> None:
        self._store = store
        self._pipeline = pipeline
        self._clock = clock
        self._failures = failures if failures is not None else Failures()
        self._last = float("-inf")
        self._left: Failure | None = None
        self._has_ended = False

    def beat(self) -> None:
        """Store a heartbeat, unless the last one is recent. Failures of the state store are only logged."""
        now, failure = self._clock(), self._failures.of(None)
        every = EVERY_SECONDS if failure == self._left else EVERY_FAILURE_SECONDS
        # A clock that was set back must not silence the worker.
        if self._has_ended or 0 <= now - self._last < every:
            return
        self._last, self._left = now, failure
        self._save({"time": now, "working": True})

    def hear(self, _event: WorkerEvent) -> None:
        """Store a heartbeat: any step of the worker is a sign of life."""
        self.beat()

    def end(self) -> None:
        """Record that the worker ended on its own, so that it is not considered alive until the timeout.

        Later events do not store a heartbeat.
        """
        self._has_ended = True
        self._save({"time": self._clock(), "working": False})

    def _save(self, document: dict[str, Any]) -> None:
        failure = self._failures.of(None)
        if failure is not None:
            document |= failure.as_details()
        try:
            self._store.save_document(_KIND, self._pipeline, document)
        except StateStoreError as exc:
            _log.warning("no sign of life could be left", error=type(exc).__name__)


# A worker stores a heartbeat every 5 seconds, sometimes late because of a slow state store. Without one for
# so long, the worker counts as dead.
ALIVE_SECONDS: Final = 60.0


def is_alive(seconds: float | None) -> TypeGuard[float]:
    """Returns True if a worker is running, by the result of ``seconds_since_beat``."""
    return seconds is not None and seconds <= ALIVE_SECONDS


def seconds_since_beat(store: StateStore, pipeline: str, *, now: float | None = None) -> float | None:
    """Returns the age of the last heartbeat of the pipeline's worker, or None if no worker is running.

    Raises:
        StateStoreError: The state store does not answer.
    """
    return read_mark(store, pipeline, now=now).seconds


class Mark(NamedTuple):
    """The last heartbeat of a pipeline's worker.

    ``seconds``: its age, or None if no worker is running. ``failure``: the current failure of a step of all
    tables, or the failure when the worker ended.
    """

    seconds: float | None = None
    failure: Failure | None = None


def read_mark(store: StateStore, pipeline: str, *, now: float | None = None) -> Mark:
    """Reads the last heartbeat of a pipeline's worker.

    Raises:
        StateStoreError: The state store does not answer.
    """
    document = store.load_document(_KIND, pipeline)
    if document is None:
        return Mark()
    failure = failure_in(document)
    if not document["working"]:
        return Mark(None, failure)
    # If the clock was set back since, the age must not be negative.
    return Mark(max(0.0, (time.time() if now is None else now) - float(document["time"])), failure)
