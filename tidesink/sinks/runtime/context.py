"""Shared parts of a running worker: its context, retries, stop requests, and failpoints for tests."""

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
from tidesink.errors import ConfigError, StopRequestedError, TidesinkError
from tidesink.events import TableId
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.offsets import KafkaOffsets, TopicOffsets, topic_deleted
from tidesink.sinks.letters.topic import DeadLetters
from tidesink.sinks.runtime.observers import Heartbeat, Listeners
from tidesink.sinks.runtime.shared_reads import Topics
from tidesink.sinks.runtime.status_queue import StatusQueue
from tidesink.sinks.schema_changes.decisions import PolicyChoices
from tidesink.sinks.state.failures import Failures
from tidesink.sinks.state.progress import StateStore
from tidesink.sinks.targets import target_module
from tidesink.sinks.targets.base import Target

if TYPE_CHECKING:
    from tidesink.schema_registry import SchemaRegistry
    from tidesink.sinks.spark.engine import SparkEngine


T = TypeVar("T")
OnRetry = Callable[[TidesinkError, float], None]
OnSuccess = Callable[[], None]

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 15.0


def may_pass(error: BaseException) -> bool:
    """Returns True if a step that failed with ``error`` may succeed when it is tried again.

    This includes a commit whose outcome is unknown. Every step that commits asks the target for its progress
    first, so a second try finds out whether the first one was committed.
    """
    return isinstance(error, TidesinkError) and error.remedy in ("retry", "re-read progress")


class RetryPolicy:
    """Tries a step again, with growing, jittered pauses, for ``seconds`` after its first failure.

    A stop request ends a pause at once.

    Args:
        seconds: The time after the first failure, in seconds, during which the step is tried again.
        stop: The flag that a stop request sets.
        on_retry: Called after each failure that is followed by another try, with the error and the length of
            the pause in seconds.
        on_success: Called when a step succeeds after at least one failure.
        first_pause: The length of the first pause in seconds.
        passes: Returns True for errors after which the step is tried again.
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
        """Calls ``step``, again after each failure that may pass, and returns its result.

        Raises:
            StopRequestedError: A stop was requested during a pause.
            TidesinkError: The error of the last try, if the time is over or this error will not pass.
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
    """Returns a tenacity stop condition: True once ``seconds`` have passed since the first failure.

    The time does not count from the start of the first try, because one try of a large batch may last longer
    than ``seconds``.
    """
    first: list[float] = []

    def is_over(state: RetryCallState) -> bool:
        now = state.outcome_timestamp or 0.0
        first.append(now)
        return now - first[0] >= seconds

    return is_over


class Cooldown:
    """The pause of a failing table in a run that has no end.

    A failing step is tried again for the time that the setting ``retry.for`` allows. Then the worker leaves
    the step's table alone for another ``retry.for`` (at least 15 seconds), and tries the step once more.
    """

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = max(seconds, LONGEST_PAUSE)
        self._clock = clock
        self._until: float | None = None

    @property
    def seconds(self) -> float:
        """The length of a failing table's pause in seconds."""
        return self._seconds

    def start(self) -> None:
        """Start a pause of the failing table."""
        self._until = self._clock() + self._seconds

    @property
    def started(self) -> bool:
        """True once a pause was started, even after its end."""
        return self._until is not None

    @property
    def running(self) -> bool:
        """True while a pause lasts."""
        return self._until is not None and not self.over

    @property
    def over(self) -> bool:
        """True if a pause was started and has ended."""
        return self._until is not None and self._clock() >= self._until


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StopFlag:
    """A flag for a stop request. Once it is set, all calls of ``wait`` return at once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.hurried = False
        # The signal that requested the stop, or None.
        self.signal: int | None = None

    def hurry(self) -> None:
        """Record a second stop request: the worker then ends without waiting for running batches.

        This only sets a flag. A signal can arrive while the main thread is in a call into the JVM, and the
        JVM must not be called a second time at that moment.
        """
        self.hurried = True

    def set(self, number: int | None = None) -> None:
        """Record a stop request. ``number``: the signal that requests it, or None."""
        if not self:
            self.signal = number
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for at most ``seconds``. Returns True if a stop was requested."""
        return self._event.wait(seconds)

    def check(self) -> None:
        """Raise StopRequestedError if a stop was requested."""
        if self._event.is_set():
            raise StopRequestedError


@contextmanager
def signals_kept() -> Iterator[None]:
    """Restore the current signal handlers on exit, because PySpark's handlers fail after Spark is stopped."""
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
    """Make SIGINT raise KeyboardInterrupt and nothing else, for commands without ``stop_on_signals``.

    Call it in the main thread within ``signals_kept``, after Spark has started. PySpark's own SIGINT handler
    cancels every job first. It uses the connection on which the main thread may be waiting for an answer.
    Then an error of that connection would be raised in place of KeyboardInterrupt.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def stop_on_signals(stop: StopFlag) -> None:
    """Turn the first SIGINT or SIGTERM into a stop request, and the second into a request to hurry.

    Only the main thread may set handlers; in other threads this does nothing. Call it within
    ``signals_kept``, after Spark has started: PySpark sets its own handler, which cancels every job.
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

    Attributes:
        config: The pipeline's config.
        spark: Spark, which starts when something needs it.
        source: Reads records from Kafka.
        target: The pipeline's target.
        store: The state store.
        dead_letters: Returns the pipeline's dead letters. They are opened when the first one is written.
        registry: The schema registry, or None if the config names none.
        topics: State that the tables of a topic share, for example their reads.
        failpoints: Steps at which a test can kill or suspend the worker.
        listeners: The observers of the worker.
        stop: The flag that a stop request sets.
        failures: Current failures of tables and of shared steps.
        statuses: Saves the statuses of all tables together. None: each table saves its own at once.
        heartbeat: The listener that stores the heartbeat, or None if the worker does not report its end.
        ends: True if the run ends on its own, for example at the end of the topics. Then a table that has
            failed for the time ``retry.for`` is not tried again.
        clock: Returns seconds since 1970.
    """

    config: Config
    spark: SparkEngine
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
    statuses: StatusQueue | None = None
    heartbeat: Heartbeat | None = None
    ends: bool = False
    clock: Callable[[], float] = time.time

    @cached_property
    def choices(self) -> PolicyChoices:
        """Stores decisions on schema changes that were made automatically, by the policies in the config."""
        return PolicyChoices(self.store)

    @property
    def brokers(self) -> KafkaOffsets:
        """The client that looks up Kafka topics and their offsets (``Topics.brokers``)."""
        return self.topics.brokers

    def offsets_of(self, topic: str, table: TableId, *, may_come: bool = False) -> TopicOffsets:
        """Returns the current first and last offsets of a table's topic, with retries.

        ``may_come``: True if the topic may not exist yet. Then the result has no id and no partitions.

        Raises:
            SourceError: The topic no longer exists, or the brokers refuse the request.
        """
        topic_offsets = self.retry(table).call(lambda: self.brokers.lookup([topic])).get(topic)
        if topic_offsets is None and not may_come:
            raise topic_deleted(topic)
        return topic_offsets if topic_offsets is not None else TopicOffsets(topic, "", {})

    def place_of(self, table: TableId) -> str:
        """Returns the location of a table in the target, as a text for messages."""
        return target_module(self.config.target).place_of(
            self.config.target, self.config.destination(table).table
        )

    def noted(self, table: TableId, step: Callable[[], T], *, unless: str) -> T | None:
        """Runs a step that uses the state store, with retries, and returns the step's result.

        If the store does not answer, this logs the warning ``unless`` and returns None. The table continues,
        because its rows are already in the target. The failure that is recorded for the table does not
        change, because the step may be the one that saves this failure.
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
        """Returns a policy that tries a failed step again.

        The policy records each failure for ``table``, and reports each retry to the listeners.

        ``table``: None for a step that all tables share. ``seconds``: how long a failed step is tried again;
        by default the config's ``retry.for``.
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
TRACE_VARIABLE: Final = "TIDESINK_FAILPOINT_TRACE"

# After SIGCONT, a suspended worker stays at its failpoint for this time.
GRACE_SECONDS: Final = 1.0

# The steps of a batch in order. A failpoint is reached when its step is done.
FAILPOINTS: Final = (
    "planned",  # the offsets of the batch are fixed
    "read",  # Spark's frame over those offsets is set up
    "decoded",  # the columns of the batch are planned
    "reduced",  # one row per key, persisted
    "recorded",  # the history in the state store has the progress of this batch
    "evolved",  # the target's columns fit
    "rejected",  # dead letters are written
    "committing",  # the last instruction before the batch is passed to the target
    "staged",  # everything before the target's commit is done: rows are staged, messages acknowledged
    "committed",  # the target has the batch and its progress
    "accounted",  # read = applied + superseded + without-row + dead-lettered holds
    "reported",  # status is saved
)
# For a batch that is written to a lake as files, between ``committing`` and ``staged``. Rows that depend on
# stored rows are written last.
LAKE_FAILPOINTS: Final = (
    "written",  # files have the rows
    "located",  # the stored rows that they replace are marked
)
# For a cut.
CUT_FAILPOINTS: Final = (
    "kept",  # one more table's version is protected from cleanup for the cut
    "cutting",  # every table is at the cut, and its version is protected
    "cut",  # the cut is committed, and no table has read beyond it
)
# For a replay of dead letters.
REPLAY_FAILPOINTS: Final = (
    "replayed",  # the rows are applied, and the dead letters still exist
)


_ARMED: Final = re.compile(r"(?P<name>[a-z]+)(:(?P<hit>[1-9][0-9]*)(?P<stop>:stop)?)?")


class Armed(NamedTuple):
    """The failpoint that a test chose.

    ``name``: its name. ``hit``: the number of the hit at which it acts. ``signal``: the signal that it sends.
    """

    name: str
    hit: int
    signal: signal.Signals = signal.SIGKILL


def parse_failpoint(text: str) -> Armed:
    """Parses ``name``, ``name:N`` or ``name:N:stop``: kill, or with ``stop`` suspend, the process at hit N.

    Raises:
        ConfigError: There is no failpoint with this name, or N is not a positive number.
    """
    names = (*FAILPOINTS, *LAKE_FAILPOINTS, *CUT_FAILPOINTS, *REPLAY_FAILPOINTS)
    match = _ARMED.fullmatch(text)
    if match is None or match["name"] not in names:
        raise ConfigError(
            f"{VARIABLE}={text!r} is not a failpoint. Use NAME, NAME:N or NAME:N:stop, where NAME is one of "
            f"{', '.join(names)}."
        )
    return Armed(match["name"], int(match["hit"] or 1), signal.SIGSTOP if match["stop"] else signal.SIGKILL)


class Failpoints:
    """Counts the hits of the armed failpoint, and kills or suspends the process at the chosen hit.

    The object is shared by all threads of the worker.

    Args:
        armed: The failpoint that acts, or None.
        log: File that gets a line when the armed failpoint acts.
        trace: File that gets a line for each step that is reached: the thread's name, which is the table's
            in a batch, a tab, and the step. A step that is reached only if armed (``if_armed``) is missing.
    """

    def __init__(self, armed: Armed | None, log: Path | None = None, trace: Path | None = None) -> None:
        self._armed = armed
        self._log = log
        self._trace = trace
        self._hits = 0
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls) -> Failpoints:
        """Returns the failpoint that is armed by the environment variable TIDESINK_FAILPOINT; usually none.

        Raises:
            ConfigError: The variable does not name a failpoint.
        """
        text, log, trace = (os.environ.get(name) for name in (VARIABLE, LOG_VARIABLE, TRACE_VARIABLE))
        return cls(
            parse_failpoint(text) if text else None,
            Path(log) if log else None,
            Path(trace) if trace else None,
        )

    def reach(self, name: str) -> None:
        """Record that the step ``name`` is done. If this is the armed hit, kill or suspend the process."""
        if self._trace is not None:
            with self._lock, self._trace.open("a", encoding="utf-8") as file:
                file.write(f"{threading.current_thread().name}\t{name}\n")
        armed = self._armed
        if armed is None or armed.name != name:
            return
        with self._lock:
            self._hits += 1
            if self._hits == armed.hit:
                self._end(armed)

    def if_armed(self, name: str) -> Callable[[], None] | None:
        """Returns a function that calls ``reach(name)`` if the failpoint ``name`` is armed, else None."""
        armed = self._armed is not None and self._armed.name == name
        return partial(self.reach, name) if armed else None

    def _end(self, armed: Armed) -> None:
        line = f"{armed.name}:{self._hits} pid={os.getpid()}\n"
        sys.stderr.write(f"failpoint {line}")
        sys.stderr.flush()
        if self._log is not None:
            # The line must survive the kill: it is the test's proof that this step was reached.
            with self._log.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        os.killpg(os.getpgid(0), armed.signal)
        # After a suspension this thread waits, so that a test can let other threads run and release a lock.
        time.sleep(GRACE_SECONDS)
