"""An observer of a worker that keeps what it hears."""

from __future__ import annotations

import threading

from tidesink.sinks.runtime.observers import BatchApplied, WorkerEvent


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
