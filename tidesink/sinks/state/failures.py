"""The current errors of a worker's steps that are tried again, by table, for its status."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tidesink.errors import SourceError, error_text
from tidesink.events import TableId

# The member in a status's details, and in the worker's heartbeat.
FAILURE: Final = "failure"


@dataclass(frozen=True)
class Failure:
    """The error of a step that has not succeeded since. Times are in seconds since 1970.

    Attributes:
        since: Time of the first failure.
        next_try: Time of the next try; None if this worker does not try again.
        is_of_kafka: True if Kafka refuses, or does not answer. Not stored.
    """

    error: str
    since: float
    next_try: float | None = None
    is_of_kafka: bool = False

    def as_details(self) -> dict[str, Any]:
        """Returns the member of a status's details."""
        return {FAILURE: {"error": self.error, "since": self.since, "next_try": self.next_try}}


def failure_in(details: Mapping[str, Any]) -> Failure | None:
    """Restore from ``as_details``; None if there is no failure, as in details of earlier versions."""
    found = details.get(FAILURE)
    return None if found is None else Failure(found["error"], found["since"], found["next_try"])


class Failures:
    """The failures of one worker by table; None means a step of all tables. Shared by its threads.

    ``clock``: returns seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._failures: dict[TableId | None, Failure] = {}
        self._followers: dict[TableId | None, Callable[[], None]] = {}

    def of(self, table: TableId | None) -> Failure | None:
        """Returns the current failure of a table's step, or None."""
        return self._failures.get(table)

    def follow(self, table: TableId | None, changed: Callable[[], None]) -> None:
        """Call ``changed``, in the thread of the step, when a table's failure changes."""
        self._followers[table] = changed

    def failed(self, table: TableId | None, error: BaseException, pause: float | None) -> None:
        """Record an error and notify the follower. ``pause``: see ``note``."""
        self.note(table, error, pause)
        self._tell(table)

    def note(
        self, table: TableId | None, error: BaseException, pause: float | None, *, text: str | None = None
    ) -> None:
        """Record an error. ``pause``: seconds until the next try; None if the worker does not try again.

        ``text``: the text to show; default: the error's class and message.
        """
        said, now = error_text(error) if text is None else text, self.clock()
        with self._lock:
            known = self._failures.get(table)
            since = now if known is None else known.since
            next_try = None if pause is None else now + pause
            self._failures[table] = Failure(said, since, next_try, isinstance(error, SourceError))

    def passed(self, table: TableId | None) -> None:
        """Record that a table's step succeeded."""
        with self._lock:
            known = self._failures.pop(table, None)
        if known is not None:
            self._tell(table)

    def ended(self) -> None:
        """Record that the worker ends, so that it tries nothing again."""
        with self._lock:
            self._failures = {table: replace(one, next_try=None) for table, one in self._failures.items()}

    def _tell(self, table: TableId | None) -> None:
        changed = self._followers.get(table)
        if changed is not None:
            changed()
