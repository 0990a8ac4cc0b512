"""A stop does not wait for a server that gives no answer: the request is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, Protocol, TypeVar

R = TypeVar("R")

# How long a request that is under way, or that comes later, is waited for once a stop is asked for.
LAST_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.2


class Stop(Protocol):
    """A wish to stop, as of ``threading.Event``; once there, it stays."""

    def wait(self, seconds: float, /) -> bool:
        """Wait for it, at most so long: whether it is there."""


class LeftBehindError(OSError):
    """A request had no answer when a stop was asked for, nor ``LAST_SECONDS`` later."""


def waited_for(ask: Callable[[], R], stop: Stop | None) -> R:
    """What ``ask`` gives or raises; without a ``stop``, that alone.

    Nothing ends a thread that waits for a server. So another thread does, which the process does not wait
    for at its end.

    Raises:
        LeftBehindError: a stop came first.
    """
    if stop is None:
        return ask()
    answered: Future[R] = Future()

    def run() -> None:
        try:
            answered.set_result(ask())
        except BaseException as exc:  # noqa: BLE001  (whoever waits for the future raises it)
            answered.set_exception(exc)

    threading.Thread(target=run, name="schema registry", daemon=True).start()
    while not wait([answered], timeout=_LOOK_SECONDS).done and not stop.wait(0):
        pass
    if not wait([answered], timeout=LAST_SECONDS).done:
        raise LeftBehindError
    return answered.result()
