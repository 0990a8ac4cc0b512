"""A lock that tells how many have come to it: who waits for it can be waited for."""

from __future__ import annotations

import threading
from types import TracebackType


class WatchedLock:
    """Stands where a ``threading.Lock`` stood."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._came = threading.Semaphore(0)

    def wait_for(self, others: int) -> None:
        """Until so many more have come; whether they have the lock or wait for it."""
        for _ in range(others):
            assert self._came.acquire(timeout=60)

    def __enter__(self) -> None:
        self._came.release()
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
