"""The current errors of a worker's tables, which the worker retries and shows in the tables' status."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tidesink.errors import SourceError, error_text
from tidesink.events import TableId

# The key of a failure in a status's details, and in the worker's heartbeat.
FAILURE: Final = "failure"


@dataclass(frozen=True)
class Failure:
    """The last error of a table's step that has not succeeded since. Times are in seconds since 1970.

    Attributes:
        error: Class and message of the error.
        since: Time of the first failure.
        next_try: Time of the next attempt. None if this worker does not try again.
        is_of_kafka: True if Kafka refuses a request, or does not answer. Failures that an earlier version
            stored have False.
    """

    error: str
    since: float
    next_try: float | None = None
    is_of_kafka: bool = False

    def as_details(self) -> dict[str, Any]:
        """Returns the failure as a member of a status's details."""
        return {
            FAILURE: {
                "error": self.error,
                "since": self.since,
                "next_try": self.next_try,
                "of_kafka": self.is_of_kafka,
            }
        }


def failure_in(details: Mapping[str, Any]) -> Failure | None:
    """Restore a failure from a status's details.

    Returns None if the details have no failure. Details of earlier versions never have one.
    """
    stored = details.get(FAILURE)
    if stored is None:
        return None
    return Failure(stored["error"], stored["since"], stored["next_try"], stored.get("of_kafka", False))


class Failures:
    """The current failures of one worker, by table. The key None stands for a step that concerns all tables.

    Shared by the worker's threads. ``clock`` returns seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._failures: dict[TableId | None, Failure] = {}
        self._followers: dict[TableId | None, Callable[[], None]] = {}

    def of(self, table: TableId | None) -> Failure | None:
        """Returns the table's current failure, or None."""
        return self._failures.get(table)

    def follow(self, table: TableId | None, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever the table's failure changes.

        The call is made in the thread that reports the failure.
        """
        self._followers[table] = changed

    def failed(self, table: TableId | None, error: BaseException, pause: float | None) -> None:
        """Record a table's error and notify the follower.

        ``pause``: seconds until the next attempt; None if the worker does not try again.
        """
        self.note(table, error, pause)
        self._tell(table)

    def note(
        self, table: TableId | None, error: BaseException, pause: float | None, *, text: str | None = None
    ) -> None:
        """Record a table's error without notifying the follower.

        ``pause``: seconds until the next attempt; None if the worker does not try again. ``text``: the text
        to show; None: the error's class and message.
        """
        message, now = error_text(error) if text is None else text, self.clock()
        with self._lock:
            previous = self._failures.get(table)
            since = now if previous is None else previous.since
            next_try = None if pause is None else now + pause
            self._failures[table] = Failure(message, since, next_try, isinstance(error, SourceError))

    def passed(self, table: TableId | None) -> None:
        """Record that a table's step succeeded, so that its failure ends."""
        with self._lock:
            failure = self._failures.pop(table, None)
        if failure is not None:
            self._tell(table)

    def ended(self) -> None:
        """Record that the worker ends, so that no failure has a next attempt."""
        with self._lock:
            self._failures = {
                table: replace(failure, next_try=None) for table, failure in self._failures.items()
            }

    def _tell(self, table: TableId | None) -> None:
        changed = self._followers.get(table)
        if changed is not None:
            changed()
