"""What a run tells a person while it works: a line a batch, and a line where a table's state turns."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidesink.errors import SourceUnavailableError, TidesinkError
from tidesink.events import TableId
from tidesink.sinks.listener import BatchApplied, BatchStarted, StepRetried, TableChanged, WorkerEvent


class ProgressLines:
    """Listens to the worker and writes lines; the worker's threads share it.

    ``brokers``: where Kafka should be, to be named when it does not answer.
    """

    def __init__(self, write: Callable[[str], None], *, brokers: str) -> None:
        self._write = write
        self._brokers = brokers
        self._lock = threading.Lock()
        self._states: dict[TableId, tuple[str, str | None]] = {}

    def hear(self, event: WorkerEvent) -> None:
        """Tell of one event."""
        line = self._line(event)
        if line is not None:
            with self._lock:
                self._write(line)

    def _line(self, event: WorkerEvent) -> str | None:
        if isinstance(event, BatchStarted):
            return f"{event.table}  batch {event.batch}: {event.records} records"
        if isinstance(event, BatchApplied):
            counters = event.account.as_counters().items()
            counts = ", ".join(f"{name} {count}" for name, count in counters if count)
            seconds = sum(event.seconds.values())
            return f"{event.table}  batch {event.batch}: {counts or 'nothing to do'} in {seconds:.1f} s"
        if isinstance(event, StepRetried):
            subject = event.table or "all tables"
            return f"{subject}  {self._said(event.error)}; again in {event.pause:.1f} s"
        return self._turned(event)

    def _said(self, error: TidesinkError) -> str:
        where = f" (brokers {self._brokers})" if isinstance(error, SourceUnavailableError) else ""
        return f"{type(error).__name__}: {error}{where}"

    def _turned(self, event: TableChanged) -> str | None:
        status = event.status
        before = self._states.get(status.table)
        self._states[status.table] = (status.state, status.error)
        if before == (status.state, status.error) or status.state in ("RUNNING", "IDLE"):
            return None
        return f"{status.table}  {status.state}: {status.error}"
