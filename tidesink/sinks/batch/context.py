"""What is tried again, for how long, and what ends a wait."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception
from tenacity.wait import wait_exponential, wait_random

from tidesink.config import Config
from tidesink.errors import ConfigError, TidesinkError
from tidesink.events import TableId
from tidesink.sinks.batch.observers import Heartbeat, Listeners
from tidesink.sinks.batch.schema_changes import PolicyChoices
from tidesink.sinks.batch.shared_reads import Topics
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.dead_letters import DeadLetters
from tidesink.sinks.kafka.offsets import KafkaOffsets, TopicOffsets, topic_gone
from tidesink.sinks.state.failures import Failures
from tidesink.sinks.state.progress import StateStore
from tidesink.sinks.targets import target_module
from tidesink.sinks.targets.base import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.schema_registry import SchemaRegistry


T = TypeVar("T")
OnRetry = Callable[[TidesinkError, float], None]
OnSuccess = Callable[[], None]

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 15.0


def may_pass(error: BaseException) -> bool:
    """Whether the same step may succeed a little later.

    A commit whose outcome is unknown is among them: every step that commits asks the target first what is
    there, so that doing it again is how progress is read again.
    """
    return isinstance(error, TidesinkError) and error.remedy in ("retry", "re-read progress")


class RetryPolicy:
    """Retries with growing, jittered pauses until ``seconds`` have passed since the first failure.

    ``on_retry`` hears each error and the pause that follows, ``on_success`` that a step which failed
    succeeded at last. A wish to stop ends a pause at once.
    ``passes`` says which errors may pass by themselves.
    """

    def __init__(
        self,
        seconds: float,
        *,
        stop: StopFlag | None = None,
        on_retry: OnRetry | None = None,
        on_success: OnSuccess | None = None,
        first_pause: float = FIRST_PAUSE,
        passes: Callable[[BaseException], bool] = may_pass,
    ) -> None:
        self._seconds = seconds
        self._stop = stop if stop is not None else StopFlag()
        self._on_retry = on_retry
        self._on_success = on_success
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
            stop=_after_the_first_failure(self._seconds),
            wait=wait_exponential(multiplier=self._first_pause, max=LONGEST_PAUSE)
            + wait_random(0, self._first_pause),
            sleep=self._sleep,
            before_sleep=self._tell,
            reraise=True,
        )
        result = retrying(step)
        if self._on_success is not None and retrying.statistics["attempt_number"] > 1:
            self._on_success()
        return result

    def _sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise StopRequestedError

    def _tell(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        pause = state.next_action.sleep if state.next_action else 0.0
        if self._on_retry is not None and isinstance(error, TidesinkError):
            self._on_retry(error, pause)


def _after_the_first_failure(seconds: float) -> Callable[[RetryCallState], bool]:
    """Stops a call so long after it failed first: a try of a large batch may itself take longer."""
    first: list[float] = []

    def is_over(state: RetryCallState) -> bool:
        now = state.outcome_timestamp or 0.0
        first.append(now)
        return now - first[0] >= seconds

    return is_over


class Cooldown:
    """When a failing table is looked at again: after the retry time once more, in a run without an end."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = max(seconds, LONGEST_PAUSE)
        self._clock = clock
        self._until: float | None = None

    @property
    def seconds(self) -> float:
        """How long a wait is."""
        return self._seconds

    def start(self) -> None:
        """Begin to wait."""
        self._until = self._clock() + self._seconds

    @property
    def started(self) -> bool:
        """Whether a wait was begun, over or not."""
        return self._until is not None

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
        # The signal that asked for the stop, if one did.
        self.signal: int | None = None

    def hurry(self) -> None:
        """Ask for the stop a second time: batches under way are not waited for.

        It only says so: a signal can come while the JVM is being called, which must not be called then.
        """
        self.hurried = True

    def set(self, number: int | None = None) -> None:
        """Ask the worker to stop; ``number``: the signal that asks for it."""
        if not self:
            self.signal = number
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


def raise_on_interrupt() -> None:
    """Make an interrupt a KeyboardInterrupt and nothing else. To be called as ``stop_on_signals``.

    PySpark's handler cancels every job first, on the connection on which the main thread may wait for an
    answer: what is raised is then an error of that connection.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def stop_on_signals(stop: StopFlag) -> None:
    """Turn the first SIGINT or SIGTERM into a wish to stop, and the second into a wish to hurry.

    Only the main thread may set handlers; elsewhere this does nothing. To be called within
    ``signals_kept``, once Spark is started: PySpark sets a handler of its own, which cancels every job.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop:
            stop.hurry()
        stop.set(number)

    for number in _SIGNALS:
        signal.signal(number, handle)


_log = structlog.get_logger("tidesink.worker")


@dataclass(frozen=True)
class WorkerContext:
    """The parts of a running worker. All of them may be used from several threads.

    ``registry`` is None where the config names none, ``dead_letters`` gives those of the pipeline when
    the first is to be written. ``heartbeat``: the one among the listeners, if the worker tells that it
    ends. ``ends``: the run ends by itself, so that nothing is tried again once ``retry.for`` is over.
    """

    config: Config
    spark: SparkSession
    source: KafkaSource
    target: Target
    store: StateStore
    dead_letters: Callable[[], DeadLetters]
    registry: SchemaRegistry | None
    topics: Topics
    failpoints: Failpoints
    listeners: Listeners
    stop: StopFlag
    failures: Failures = field(default_factory=Failures)
    heartbeat: Heartbeat | None = None
    ends: bool = False

    @cached_property
    def choices(self) -> PolicyChoices:
        """What the policies of tables made of changes by themselves."""
        return PolicyChoices(self.store)

    @property
    def brokers(self) -> KafkaOffsets:
        """What answers questions on topics (``Topics.brokers``)."""
        return self.topics.brokers

    def offsets_of(self, topic: str, table: TableId, *, may_come: bool = False) -> TopicOffsets:
        """Where a table's topic begins and ends now; asked again under ``retry``.

        ``may_come``: it may not be there yet, and then has neither an id nor partitions.

        Raises:
            SourceError: there is no such topic any more, or the brokers refuse.
        """
        found = self.retry(table).call(lambda: self.brokers.lookup([topic])).get(topic)
        if found is None and not may_come:
            raise topic_gone(topic)
        return found if found is not None else TopicOffsets(topic, "", {})

    def place_of(self, table: TableId) -> str:
        """Where the target keeps a table, for people to read."""
        return target_module(self.config.target).place_of(
            self.config.target, self.config.destination(table).table
        )

    def noted(self, table: TableId, step: Callable[[], T], *, unless: str) -> T | None:
        """What a step of the state store's gives, tried again; None where the store stays silent.

        That is said, in the words of ``unless``, and the task goes on: what is applied is in the target.
        The table's own failure stays as it is: it is what such a step may be about to save.
        """
        retries = RetryPolicy(
            self.config.retry.for_, stop=self.stop, on_retry=partial(self.listeners.retried, table)
        )
        try:
            return retries.call(step)
        except (TidesinkError, StopRequestedError) as exc:
            _log.warning(unless, table=str(table), error=str(exc))
            return None

    def retry(
        self,
        table: TableId | None = None,
        *,
        seconds: float | None = None,
        passes: Callable[[BaseException], bool] = may_pass,
    ) -> RetryPolicy:
        """A retry policy, the config's own unless one is given.

        It tells the listeners, and those who follow the table's failures.
        """

        def tell(error: TidesinkError, pause: float) -> None:
            self.failures.failed(table, error, pause)
            self.listeners.retried(table, error, pause)

        return RetryPolicy(
            self.config.retry.for_ if seconds is None else seconds,
            stop=self.stop,
            on_retry=tell,
            on_success=partial(self.failures.passed, table),
            passes=passes,
        )


VARIABLE: Final = "TIDESINK_FAILPOINT"
LOG_VARIABLE: Final = "TIDESINK_FAILPOINT_LOG"

# How long a worker that was suspended, once it is woken up, still stands at its failpoint.
GRACE_SECONDS: Final = 1.0

# In the order of a batch; each name says what has just been done.
FAILPOINTS: Final = (
    "planned",  # the offsets of the batch are fixed
    "read",  # Spark's frame over those offsets is set up
    "decoded",  # the columns of the batch are planned
    "reduced",  # one row a key, persisted
    "recorded",  # the history in the state store says what the batch will have applied
    "evolved",  # the target's columns fit
    "rejected",  # dead letters are kept
    "committing",  # the last instruction before the target is given the batch
    "staged",  # all that comes before the target's commit is done: rows are staged, messages acknowledged
    "committed",  # the target has the batch and its progress
    "accounted",  # read = applied + superseded + without-row + dead-lettered holds
    "reported",  # status is saved
)
# Of a batch that a lake takes as files, between ``committing`` and ``staged``. Rows that depend on stored
# ones are written last.
LAKE_FAILPOINTS: Final = (
    "written",  # files have the rows
    "located",  # the stored rows that they replace are marked
)
# Of a cut.
CUT_FAILPOINTS: Final = (
    "kept",  # the version of one more table is kept for the cut
    "cutting",  # every table stands at the cut, and its version is kept
    "cut",  # the cut is committed, and no table has read on
)
# Of a replay of dead letters.
REPLAY_FAILPOINTS: Final = (
    "replayed",  # the rows are applied, and the letters are still there
)


_ARMED: Final = re.compile(r"(?P<name>[a-z]+)(:(?P<hit>[1-9][0-9]*)(?P<stop>:stop)?)?")


class Armed(NamedTuple):
    """One failpoint to die at, or to be suspended at: its name and on which hit."""

    name: str
    hit: int
    signal: signal.Signals = signal.SIGKILL


def parse_failpoint(text: str) -> Armed:
    """The failpoint in ``name``, ``name:N`` or ``name:N:stop``.

    Raises:
        ConfigError: no such failpoint, or N is not a number above zero.
    """
    known = (*FAILPOINTS, *LAKE_FAILPOINTS, *CUT_FAILPOINTS, *REPLAY_FAILPOINTS)
    found = _ARMED.fullmatch(text)
    if found is None or found["name"] not in known:
        raise ConfigError(
            f"{VARIABLE}={text!r} is not a failpoint. Use NAME, NAME:N or NAME:N:stop, where NAME is one of "
            f"{', '.join(known)}."
        )
    return Armed(found["name"], int(found["hit"] or 1), signal.SIGSTOP if found["stop"] else signal.SIGKILL)


class Failpoints:
    """Counts hits and dies, or is suspended, at the armed one. Shared by the worker's threads."""

    def __init__(self, armed: Armed | None, log: Path | None = None) -> None:
        self._armed = armed
        self._log = log
        self._hits = 0
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls) -> Failpoints:
        """What the environment arms; usually nothing.

        Raises:
            ConfigError: the variable names no failpoint.
        """
        text, log = os.environ.get(VARIABLE), os.environ.get(LOG_VARIABLE)
        return cls(parse_failpoint(text) if text else None, Path(log) if log else None)

    def reach(self, name: str) -> None:
        """Say that a step is done; does not return where this is the hit to die at."""
        armed = self._armed
        if armed is None or armed.name != name:
            return
        with self._lock:
            self._hits += 1
            if self._hits == armed.hit:
                self._end(armed)

    def if_armed(self, name: str) -> Callable[[], None] | None:
        """What says that a step is done; None where nothing is armed there, and nobody needs to know."""
        armed = self._armed is not None and self._armed.name == name
        return partial(self.reach, name) if armed else None

    def _end(self, armed: Armed) -> None:
        line = f"{armed.name}:{self._hits} pid={os.getpid()}\n"
        sys.stderr.write(f"failpoint {line}")
        sys.stderr.flush()
        if self._log is not None:
            # The line must outlive the kill: it is the test's proof that this step was reached.
            with self._log.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        os.killpg(os.getpgid(0), armed.signal)
        # Suspended: whoever wants to may have the other threads go on a moment, to let go of a lock.
        time.sleep(GRACE_SECONDS)
