"""What all tables of a worker share, and the failpoints of its batches.

``TIDESINK_FAILPOINT=name`` or ``name:N`` (the N-th time it is reached) appends one line to the file in
``TIDESINK_FAILPOINT_LOG`` and then sends SIGKILL to the whole process group, both Python and the JVM.
``name:N:stop`` sends SIGSTOP: until SIGCONT the worker is one that its machine has suspended. Without the
variable a failpoint costs one look-up. Start the worker in a session of its own.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import structlog

from tidesink.config import Config
from tidesink.errors import ConfigError, TidesinkError
from tidesink.events import TableId
from tidesink.sinks.batch.shared_reads import Topics
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.letter_store import DeadLetters
from tidesink.sinks.state.store import StateStore
from tidesink.sinks.targets import target_module
from tidesink.sinks.targets.base import Target
from tidesink.sinks.worker.observers import Listeners, StepRetried
from tidesink.sinks.worker.retry import RetryPolicy, StopFlag, StopRequestedError, may_pass

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.schema_registry import SchemaRegistry


T = TypeVar("T")
_log = structlog.get_logger("tidesink.worker")


@dataclass(frozen=True)
class WorkerContext:
    """The parts of a running worker. All of them may be used from several threads.

    ``registry`` is None where the config names none, ``dead_letters`` gives those of the pipeline when
    the first is to be written.
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

    def place_of(self, table: TableId) -> str:
        """Where the target keeps a table, for people to read."""
        return target_module(self.config.target).place_of(
            self.config.target, self.config.destination(table).table
        )

    def noted(self, table: TableId, step: Callable[[], T], *, unless: str) -> T | None:
        """What a step of the state store's gives, tried again; None where the store stays silent.

        That is said, in the words of ``unless``, and the task goes on: what is applied is in the target.
        """
        try:
            return self.retry(table).call(step)
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
        """A retry policy, the config's own unless one is given, which tells the listeners what it does."""

        def tell(error: TidesinkError, pause: float) -> None:
            self.listeners.hear(StepRetried(table, error, pause))

        time = self.config.retry.for_ if seconds is None else seconds
        return RetryPolicy(time, stop=self.stop, on_retry=tell, passes=passes)


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
    "accounted",  # read = applied + superseded + filtered + dead-lettered holds
    "reported",  # status is saved
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
    known = (*FAILPOINTS, *REPLAY_FAILPOINTS)
    found = _ARMED.fullmatch(text)
    if found is None or found["name"] not in known:
        raise ConfigError(
            f"{VARIABLE}={text!r} is no failpoint: use NAME, NAME:N or NAME:N:stop of {', '.join(known)}"
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
