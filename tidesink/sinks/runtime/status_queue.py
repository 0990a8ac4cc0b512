"""Saves the statuses of many tables together, so that a small batch does not wait for the state store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import structlog

from tidesink.errors import UnusableStateStoreError
from tidesink.events import TableId
from tidesink.sinks.state.progress import StateStore, TableStatus

_log = structlog.get_logger("tidesink.worker")
# Seconds between two saves, unless all are wanted.
PAUSE_SECONDS: Final = 1.0


class StatusQueue:
    """Statuses that show nothing but progress, until they are saved together.

    Only the newest status of a table is kept. A worker that is killed loses at most the statuses of the last
    moment: progress is in the target, not here. Tables put their statuses from several threads. One thread
    saves them.

    ``clock``: returns seconds.
    """

    def __init__(self, store: StateStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._waiting: dict[TableId, TableStatus] = {}
        self._lock = threading.Lock()
        # Held while statuses are written, so that an older one never replaces a newer one.
        self._writes = threading.Lock()
        self._last = float("-inf")

    def put(self, status: TableStatus) -> None:
        """Add a status, in place of an earlier one of its table."""
        with self._lock:
            self._waiting[status.table] = status

    @property
    def has_waiting(self) -> bool:
        """True if a status waits to be saved."""
        return bool(self._waiting)

    @contextmanager
    def instead(self, table: TableId) -> Iterator[None]:
        """Drop the waiting status of a table, because the caller saves a newer one in the meantime.

        If that fails, the status waits on.
        """
        with self._writes:
            with self._lock:
                waiting = self._waiting.pop(table, None)
            try:
                yield
            except BaseException:
                if waiting is not None:
                    self._keep({table: waiting})
                raise

    def save(self, *, all_now: bool = False) -> tuple[TableStatus, ...]:
        """Save the waiting statuses in one transaction, if the last save was ``PAUSE_SECONDS`` ago.

        ``all_now``: True to save them in any case.

        Returns the statuses that were not saved, because another worker has taken over their tables.

        Raises:
            StateStoreError: The state store does not answer. The statuses wait on.
        """
        if not self._waiting or not (all_now or self._clock() - self._last >= PAUSE_SECONDS):
            return ()
        # A table that saves a status at once may wait for a silent state store. Then the others wait here.
        if not self._writes.acquire(timeout=PAUSE_SECONDS):
            return ()
        try:
            with self._lock:
                statuses, self._waiting = self._waiting, {}
            try:
                return self._saved(statuses)
            except BaseException:
                self._keep(statuses)
                raise
            finally:
                self._last = self._clock()
        finally:
            self._writes.release()

    def _saved(self, statuses: Mapping[TableId, TableStatus]) -> tuple[TableStatus, ...]:
        try:
            return self._store.save_statuses(tuple(statuses.values()))
        except UnusableStateStoreError:
            # The stored status of one table may be damaged. The others must not wait for its repair.
            refused: list[TableStatus] = []
            for table, status in statuses.items():
                try:
                    refused += self._store.save_statuses((status,))
                except UnusableStateStoreError as exc:
                    _log.warning("status not saved", table=str(table), error=str(exc))
            return tuple(refused)

    def _keep(self, statuses: Mapping[TableId, TableStatus]) -> None:
        """Let statuses wait on, except those of tables that have newer ones."""
        with self._lock:
            self._waiting = {**statuses, **self._waiting}
