"""Connections of the driver: borrowed for one transaction each, so that idle tables hold none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from tidesink.errors import TidesinkError
from tidesink.sinks.targets.sql_dialect import Dialect
from tidesink.sinks.targets.sql_endpoint import Endpoint

_KEPT: Final = 8


class Connections:
    """The connections of one target, for many threads."""

    def __init__(self, dialect: Dialect, endpoint: Endpoint) -> None:
        self.dialect = dialect
        self.endpoint = endpoint
        self._idle: list[Any] = []
        self._lock = threading.Lock()

    @contextmanager
    def transaction(self, table: str, *, writes: bool = True) -> Iterator[Any]:
        """A cursor in a transaction, committed at the end, undone where an error comes first.

        Without ``writes`` it is undone in any case.

        Raises: the dialect's errors; CommitUnknownError where the commit was sent and not answered.
        """
        with self._translated(table):
            connection = self._borrowed()
        try:
            with self._translated(table), connection.cursor() as cursor:
                yield cursor
            with self._translated(table, committing=writes):
                connection.commit() if writes else connection.rollback()
        except BaseException:
            self._undo(connection)
            raise
        self._put_back(connection)

    @contextmanager
    def kept_awake(self, cursor: Any) -> Iterator[None]:
        """Speak in a cursor's transaction while another connection works, as long as this process does."""
        done = threading.Event()

        def speak() -> None:
            while not done.wait(self.endpoint.silence / 4) and self.dialect.alive(cursor.connection):
                pass

        speaker = threading.Thread(target=speak, daemon=True)
        speaker.start()
        try:
            yield
        finally:
            done.set()
            speaker.join()

    def close(self) -> None:
        """Close what nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._discard(connection)

    def _borrowed(self) -> Any:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.dialect.connect(self.endpoint)
            if self.dialect.alive(connection):
                return connection
            self._discard(connection)

    def _put_back(self, connection: Any) -> None:
        with self._lock:
            if len(self._idle) < _KEPT:
                self._idle.append(connection)
                return
        self._discard(connection)

    def _undo(self, connection: Any) -> None:
        """End the transaction by ending the session: whatever state it is in, nothing of it stays."""
        self._discard(connection)

    def _discard(self, connection: Any) -> None:
        # It may be cut already: then there is nothing to close.
        with suppress(*self.dialect.errors, OSError):
            connection.close()

    @contextmanager
    def _translated(self, table: str, *, committing: bool = False) -> Iterator[None]:
        try:
            yield
        except TidesinkError as exc:
            raise exc.with_context(table=table) from exc.__cause__
        except self.dialect.errors as exc:
            code = self.dialect.code_of(exc)
            if code is None:
                raise
            raise self.dialect.error_of(code, table=table, committing=committing) from None
