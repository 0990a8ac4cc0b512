"""The sign of life of a worker: each turn of its loop leaves a mark in the state store.

A health check reads the mark. A table that is paused does not stop the loop, and a restart would not
mend it: that is what ``tidesink status`` shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog

from tidesink.errors import StateStoreError
from tidesink.sinks.listener import WorkerEvent
from tidesink.sinks.state_store import StateStore

_KIND: Final = "heartbeat"
# Turns come several times a second; the store need not be written that often.
EVERY_SECONDS: Final = 5.0

_log = structlog.get_logger("tidesink.worker")


class Heartbeat:
    """Leaves the marks of one pipeline's worker; it is a listener too.

    As a listener it counts a retry as life: a worker that waits for Kafka to come back is not hung.
    ``clock`` gives seconds since 1970.
    """

    def __init__(self, store: StateStore, pipeline: str, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._pipeline = pipeline
        self._clock = clock
        self._last = float("-inf")

    def beat(self) -> None:
        """Leave a mark, unless there is a fresh one. A store that does not answer is no reason to stop."""
        now = self._clock()
        # A clock that was set back must not silence the worker.
        if 0 <= now - self._last < EVERY_SECONDS:
            return
        self._last = now
        self._save({"time": now, "working": True})

    def hear(self, _event: WorkerEvent) -> None:
        """Any step of the worker is a sign of life."""
        self.beat()

    def end(self) -> None:
        """Say that the worker ended by itself, so that nobody waits for the mark to grow old."""
        self._save({"time": self._clock(), "working": False})

    def _save(self, document: dict[str, float | bool]) -> None:
        try:
            self._store.save_document(_KIND, self._pipeline, document)
        except StateStoreError as exc:
            _log.warning("no sign of life could be left", error=type(exc).__name__)


def seconds_since_beat(store: StateStore, pipeline: str, *, now: float | None = None) -> float | None:
    """How long ago the pipeline's worker left its last mark; None where none works.

    Raises:
        StateStoreError: the store does not answer.
    """
    document = store.load_document(_KIND, pipeline)
    if document is None or not document["working"]:
        return None
    # A clock that was set back since gives no negative age.
    return max(0.0, (time.time() if now is None else now) - float(document["time"]))
