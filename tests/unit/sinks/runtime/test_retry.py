"""What is tried again, for how long, and how a wish to stop ends it."""

from __future__ import annotations

import threading
import time

import pytest

from tidesink.errors import (
    ConfigError,
    RegistryUnavailableError,
    SourceUnavailableError,
    StateStoreError,
    StopRequestedError,
    TidesinkError,
    TransientTargetError,
)
from tidesink.sinks.runtime.context import Cooldown, RetryPolicy, StopFlag


class _Flaky:
    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.left, self.calls = error, times, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error
        return "done"


@pytest.mark.parametrize(
    "error", [SourceUnavailableError, RegistryUnavailableError, TransientTargetError, StateStoreError]
)
def test_what_may_pass_is_tried_again(error: type[TidesinkError]) -> None:
    heard: list[tuple[TidesinkError, float]] = []
    policy = RetryPolicy(10, on_retry=lambda *reported: heard.append(reported), first_pause=0.001)
    step = _Flaky(error("down"), 3)
    assert policy.call(step) == "done"
    assert step.calls == 4
    assert [type(reported) for reported, _ in heard] == [error] * 3
    assert all(pause > 0 for _, pause in heard)


@pytest.mark.parametrize("error", [ConfigError("wrong"), ValueError("a fault of ours")])
def test_what_will_not_pass_is_not(error: Exception) -> None:
    step = _Flaky(error, 1)
    with pytest.raises(type(error)):
        RetryPolicy(10, first_pause=0.001).call(step)
    assert step.calls == 1


def test_time_begins_with_the_first_failure() -> None:
    """A try that takes longer than all retries may is tried again."""
    flaky = _Flaky(SourceUnavailableError("down"), 1)

    def slow() -> str:
        time.sleep(0.2)
        return flaky()

    assert RetryPolicy(0.1, first_pause=0.001).call(slow) == "done"
    assert flaky.calls == 2


def test_the_last_error_comes_out_when_time_is_up() -> None:
    started = time.monotonic()
    with pytest.raises(SourceUnavailableError, match="down"):
        RetryPolicy(0.3, first_pause=0.05).call(_Flaky(SourceUnavailableError("down"), 10_000))
    assert time.monotonic() - started > 0.2


def test_a_stop_ends_the_wait() -> None:
    stop = StopFlag()
    threading.Timer(0.1, stop.set).start()
    step = _Flaky(StateStoreError("down"), 10_000)
    with pytest.raises(StopRequestedError):
        RetryPolicy(60, stop=stop, first_pause=30).call(step)
    # A wait that went on to its end would be followed by a second call.
    assert step.calls == 1


def test_a_failing_table_is_looked_at_again_later() -> None:
    now = [0.0]
    cooldown = Cooldown(60, clock=lambda: now[0])
    assert not cooldown.over
    cooldown.start()
    now[0] = 59.0
    assert not cooldown.over
    now[0] = 60.0
    assert cooldown.over
