"""What a worker's steps fail with while they are tried again: kept by table, for its status."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tidesink.errors import SourceError, error_text
from tidesink.events import TableId

# In a status's details, and in the worker's sign of life.
FAILURE: Final = "failure"


@dataclass(frozen=True)
class Failure:
    """The error of a step that did not succeed since. Times are in seconds since 1970.

    ``since``: when the step failed first. ``next_try``: when it is tried again; None: not by this worker.
    ``is_of_kafka``: Kafka refuses, or does not answer; not stored.
    """

    error: str
    since: float
    next_try: float | None = None
    is_of_kafka: bool = False

    def as_details(self) -> dict[str, Any]:
        """The member of a status's details."""
        return {FAILURE: {"error": self.error, "since": self.since, "next_try": self.next_try}}


def failure_in(details: Mapping[str, Any]) -> Failure | None:
    """What ``as_details`` made; None if there is none, as in what earlier versions stored."""
    found = details.get(FAILURE)
    return None if found is None else Failure(found["error"], found["since"], found["next_try"])


class Failures:
    """The failures of one worker by table; None stands for a step of all tables. Shared by its threads.

    ``clock`` gives seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._failures: dict[TableId | None, Failure] = {}
        self._followers: dict[TableId | None, Callable[[], None]] = {}

    def of(self, table: TableId | None) -> Failure | None:
        """What a table's step fails with now; None if nothing."""
        return self._failures.get(table)

    def follow(self, table: TableId | None, changed: Callable[[], None]) -> None:
        """Have ``changed`` called, by the thread of the step, when a table's failure is another."""
        self._followers[table] = changed

    def failed(self, table: TableId | None, error: BaseException, pause: float | None) -> None:
        """Note an error and tell who follows; ``pause`` as in ``note``."""
        self.note(table, error, pause)
        self._tell(table)

    def note(
        self, table: TableId | None, error: BaseException, pause: float | None, *, text: str | None = None
    ) -> None:
        """Note an error. ``pause``: seconds until the next try; None if the worker does not try again.

        ``text``: what is said of it, its class and message unless given.
        """
        said, now = error_text(error) if text is None else text, self.clock()
        with self._lock:
            known = self._failures.get(table)
            since = now if known is None else known.since
            next_try = None if pause is None else now + pause
            self._failures[table] = Failure(said, since, next_try, isinstance(error, SourceError))

    def passed(self, table: TableId | None) -> None:
        """Note that a table's step succeeded."""
        with self._lock:
            known = self._failures.pop(table, None)
        if known is not None:
            self._tell(table)

    def ended(self) -> None:
        """Note that the worker ends: it tries nothing again."""
        with self._lock:
            self._failures = {table: replace(one, next_try=None) for table, one in self._failures.items()}

    def _tell(self, table: TableId | None) -> None:
        changed = self._followers.get(table)
        if changed is not None:
            changed()
