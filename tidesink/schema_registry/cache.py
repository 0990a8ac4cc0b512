"""Remembered answers, safe to share between threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """Values by key, forgotten ``ttl_seconds`` after they were put; None keeps them for ever.

    ``clock`` gives seconds and never runs backwards.
    """

    def __init__(self, ttl_seconds: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl = ttl_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[K, tuple[float, V]] = {}

    def get(self, key: K) -> V | None:
        """The value, or None when there is none or it is too old."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            put_at, value = entry
            if self._ttl is None or self._clock() - put_at < self._ttl:
                return value
            del self._entries[key]
            return None

    def put(self, key: K, value: V) -> V:
        """Remember a value and give it back."""
        with self._lock:
            self._entries[key] = (self._clock(), value)
        return value

    def forget(self, key: K) -> None:
        """Drop one value, if it is there."""
        with self._lock:
            self._entries.pop(key, None)
