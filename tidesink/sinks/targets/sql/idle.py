"""Idle connections to a database, which are used again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

# The maximum number of idle connections that are kept.
_MOST: Final = 8
# A connection that was idle for less than this time is not asked whether it still answers. If it does not,
# the batch is tried again.
TRUSTED_SECONDS: Final = 1.0


class IdleConnections:
    """The idle connections to one database. It may be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Each connection with the time since which it is idle.
        self._idle: list[tuple[Any, float]] = []

    def take(self, alive: Callable[[Any], bool], *, trusted: float = TRUSTED_SECONDS) -> Any | None:
        """Return the connection that was used last, and remove it; None if no connection answers.

        ``alive``: returns True if a connection still answers. ``trusted``: a connection that was idle for
        less than this number of seconds is not asked.
        """
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, since = self._idle.pop()
            if time.monotonic() - since < trusted or alive(connection):
                return connection
            discard(connection)

    def give_back(self, connection: Any) -> None:
        """Keep a connection for its next use. Close it if enough connections are idle."""
        with self._lock:
            if len(self._idle) < _MOST:
                self._idle.append((connection, time.monotonic()))
                return
        discard(connection)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            discard(connection)


def discard(connection: Any) -> None:
    """Close a connection, which may be lost already. This rolls back its transaction."""
    with suppress(Exception):
        connection.close()
