"""The observers that ship: the log, the metrics, and a recorder to look at afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import structlog

from tidesink.sinks.listener import BatchApplied, BatchStarted, StepRetried, TableChanged, WorkerEvent

STATES = ("RUNNING", "IDLE", "PAUSED", "FAILING")


class LogListener:
    """Writes each event as one structured log line."""

    def __init__(self) -> None:
        self._log = structlog.get_logger("tidesink.worker")

    def hear(self, event: WorkerEvent) -> None:
        """Log one event."""
        _LINES[type(event)](self._log, event)


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
            "rows applied whose checksum does not match",
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
    BatchStarted: _started,
    BatchApplied: _applied,
    StepRetried: _retried,
    TableChanged: _changed,
}


class MetricsListener:
    """Counts into a Prometheus registry of its own, ``registry``."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        place, one = self.registry, ("table",)
        self._events = Counter(
            "tidesink_events", "Row events by what became of them", ("table", "fate"), registry=place
        )
        self._unmatched = Counter(
            "tidesink_unmatched",
            "Events applied or superseded whose row a filter took out",
            one,
            registry=place,
        )
        self._row_codec = Counter(
            "tidesink_row_codec_records", "Records decoded one by one", one, registry=place
        )
        self._batches = Counter("tidesink_batches", "Batches applied", one, registry=place)
        self._bytes = Counter("tidesink_read_bytes", "Bytes read from Kafka", one, registry=place)
        self._doubted = Counter(
            "tidesink_checksum_mismatches", "Rows applied whose checksum does not match", one, registry=place
        )
        self._retries = Counter("tidesink_retries", "Steps tried again", one, registry=place)
        self._seconds = Histogram("tidesink_batch_seconds", "Seconds a batch took", one, registry=place)
        self._commit_ts = Gauge("tidesink_commit_ts", "Greatest commit_ts applied", one, registry=place)
        self._state = Gauge(
            "tidesink_table_state", "1 for the state a table is in", ("table", "state"), registry=place
        )

    def hear(self, event: WorkerEvent) -> None:
        """Count one event."""
        if isinstance(event, BatchApplied):
            self._applied(event)
        elif isinstance(event, StepRetried):
            self._retries.labels(str(event.table or "")).inc()
        elif isinstance(event, TableChanged):
            for state in STATES:
                self._state.labels(str(event.status.table), state).set(state == event.status.state)

    def _applied(self, event: BatchApplied) -> None:
        table = str(event.table)
        counters = event.account.as_counters()
        # Part of other fates: among them it would be counted twice.
        self._unmatched.labels(table).inc(max(counters.pop("unmatched"), 0))
        self._row_codec.labels(table).inc(counters.pop("row_codec"))
        for fate, count in counters.items():
            # A counter takes nothing back: a number below 0 would cost the batch its other numbers.
            self._events.labels(table, fate).inc(max(count, 0))
        self._batches.labels(table).inc()
        self._bytes.labels(table).inc(event.bytes_read)
        self._doubted.labels(table).inc(event.doubted)
        self._seconds.labels(table).observe(sum(event.seconds.values()))
        if event.commit_ts is not None:
            self._commit_ts.labels(table).set(event.commit_ts)


class Recorder:
    """Keeps every event it hears, in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[WorkerEvent] = []

    def hear(self, event: WorkerEvent) -> None:
        """Keep one event."""
        with self._lock:
            self._events.append(event)

    @property
    def events(self) -> tuple[WorkerEvent, ...]:
        """What was heard so far."""
        with self._lock:
            return tuple(self._events)

    @property
    def batches(self) -> tuple[BatchApplied, ...]:
        """The batches applied so far."""
        return tuple(event for event in self.events if isinstance(event, BatchApplied))
