"""What is tried again, for how long, and what ends a wait."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay
from tenacity.wait import wait_exponential, wait_random

from tidesink.errors import TidesinkError

T = TypeVar("T")
OnRetry = Callable[[TidesinkError, float], None]

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 15.0


def may_pass(error: BaseException) -> bool:
    """Whether the same step may succeed a little later.

    A commit whose outcome is unknown is among them: every step that commits asks the target first what is
    there, so that doing it again is how progress is read again.
    """
    return isinstance(error, TidesinkError) and error.remedy in ("retry", "re-read progress")


class RetryPolicy:
    """Retries with growing, jittered pauses until ``seconds`` have passed since the first try.

    ``on_retry`` hears each error and the pause that follows. A wish to stop ends a pause at once.
    ``passes`` says which errors may pass by themselves.
    """

    def __init__(
        self,
        seconds: float,
        *,
        stop: StopFlag | None = None,
        on_retry: OnRetry | None = None,
        first_pause: float = FIRST_PAUSE,
        passes: Callable[[BaseException], bool] = may_pass,
    ) -> None:
        self._seconds = seconds
        self._stop = stop if stop is not None else StopFlag()
        self._on_retry = on_retry
        self._first_pause = first_pause
        self._passes = passes

    def call(self, step: Callable[[], T]) -> T:
        """What ``step`` gives, once it gives it.

        Raises:
            StopRequestedError: a stop was asked for while waiting.
            TidesinkError: the last error, when time is up or when it will not pass by itself.
        """
        retrying = Retrying(
            retry=retry_if_exception(self._passes),
            stop=stop_after_delay(self._seconds),
            wait=wait_exponential(multiplier=self._first_pause, max=LONGEST_PAUSE)
            + wait_random(0, self._first_pause),
            sleep=self._sleep,
            before_sleep=self._tell,
            reraise=True,
        )
        return retrying(step)

    def _sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise StopRequestedError

    def _tell(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        pause = state.next_action.sleep if state.next_action else 0.0
        if self._on_retry is not None and isinstance(error, TidesinkError):
            self._on_retry(error, pause)


class Cooldown:
    """When a failing table is looked at again: after the retry time once more, in a run without an end."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = max(seconds, LONGEST_PAUSE)
        self._clock = clock
        self._until: float | None = None

    def start(self) -> None:
        """Begin to wait."""
        self._until = self._clock() + self._seconds

    @property
    def running(self) -> bool:
        """Whether a wait was begun and has not passed."""
        return self._until is not None and not self.over

    @property
    def over(self) -> bool:
        """Whether a wait was begun and has passed."""
        return self._until is not None and self._clock() >= self._until


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
