"""Trying again for a set time: what may pass by itself, and nothing else.

Whether a thing may pass is said by the error's ``remedy``, never by its text. Kafka, the registry, the
target and the state store are all tried again in this one way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay
from tenacity.wait import wait_exponential, wait_random

from tidesink.errors import TidesinkError
from tidesink.sinks.stopping import StopFlag, StopRequestedError

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
