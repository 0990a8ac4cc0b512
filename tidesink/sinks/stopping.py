"""The worker's wish to stop, shared by its threads, and what SIGINT and SIGTERM make of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StopRequestedError(Exception):
    """The worker was asked to stop while a step waited; the batch is abandoned, nothing is lost."""


class StopFlag:
    """Set once; waits end at once when it is set."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.hurried = False

    def hurry(self) -> None:
        """Ask for the stop a second time: batches under way are not waited for.

        It only says so: a signal can come while the JVM is being called, which must not be called then.
        """
        self.hurried = True

    def set(self) -> None:
        """Ask the worker to stop."""
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait, at most so long; True where a stop was asked for."""
        return self._event.wait(seconds)

    def check(self) -> None:
        """Raise StopRequestedError where a stop was asked for."""
        if self._event.is_set():
            raise StopRequestedError


@contextmanager
def signals_kept() -> Iterator[None]:
    """Put back the handlers of before: PySpark leaves one that fails once Spark is stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_on_signals(stop: StopFlag) -> None:
    """Turn the first SIGINT or SIGTERM into a wish to stop, and the second into a wish to hurry.

    Only the main thread may set handlers; elsewhere this does nothing. To be called within
    ``signals_kept``, once Spark is started: PySpark sets a handler of its own, which cancels every job.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        if stop:
            stop.hurry()
        stop.set()

    for number in _SIGNALS:
        signal.signal(number, handle)
