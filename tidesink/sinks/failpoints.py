"""Named places in a batch where a test can kill the worker as a power cut would, or suspend it.

``TIDESINK_FAILPOINT=name`` or ``name:N`` (the N-th time it is reached) appends one line to the file in
``TIDESINK_FAILPOINT_LOG`` and then sends SIGKILL to the whole process group, Python and JVM alike.
``name:N:stop`` sends SIGSTOP: until SIGCONT the worker is one that its machine has suspended.
Without the variable a failpoint costs one look-up. Start the worker in a session of its own.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

from tidesink.errors import ConfigError

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
