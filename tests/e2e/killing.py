"""A worker in a process group of its own, killed as a whole, Python and JVM, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.full import TEST_ALL
from tidesink.sinks.runtime.context import FAILPOINTS, LAKE_FAILPOINTS

_TIMEOUT_SECONDS = 300
_LAKES = ("delta", "iceberg")


class Ending(NamedTuple):
    """How a worker's process ended, and what it printed."""

    code: int
    output: str


def start_worker(
    config: Path, log: Path, failpoint: str | None = None, *, drains: bool = True
) -> subprocess.Popen[bytes]:
    """``tidesink run`` in a session of its own, which ends once all is applied unless ``drains`` is False.

    Its output goes to ``log``.
    """
    environment = {**os.environ, "TIDESINK_FAILPOINT_LOG": str(config.with_name("failpoints"))}
    environment.pop("TIDESINK_FAILPOINT", None)
    if failpoint is not None:
        environment["TIDESINK_FAILPOINT"] = failpoint
    until = ["--until", "drained"] if drains else []
    command = [str(Path(sys.executable).with_name("tidesink")), "run", *until, str(config)]
    with log.open("wb") as output:
        return subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


def finish(worker: subprocess.Popen[bytes], log: Path) -> Ending:
    """Wait for the worker's own end."""
    try:
        code = worker.wait(_TIMEOUT_SECONDS)
    finally:
        kill_group(worker)
    return Ending(code, log.read_text(encoding="utf-8", errors="replace"))


def kill_group(worker: subprocess.Popen[bytes]) -> None:
    """SIGKILL to every process of the worker's group that is left."""
    try:
        os.killpg(worker.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    worker.wait(240)


def alive_in_group(group: int) -> list[str]:
    """The commands of a process group that still run; a process that only waits to be reaped does not."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            command, _, rest = stat.read_text(encoding="utf-8").partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, _, pgrp = rest.split()[:3]
        if int(pgrp) == group and state != "Z":
            found.append(command)
    return found


def wait_for(log: Path, text: str, worker: subprocess.Popen[bytes]) -> bool:
    """Wait until the worker has printed a text; False where it ended before."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if text in log.read_text(encoding="utf-8", errors="replace"):
            return True
        if worker.poll() is not None:
            return False
        time.sleep(0.05)
    raise TimeoutError(f"the worker did not print {text!r}")


def steps_of(kind: str) -> tuple[str, ...]:
    """The failpoints of a batch into a target of this type, in their order."""
    if kind not in _LAKES:
        return FAILPOINTS
    at = FAILPOINTS.index("staged")
    return (*FAILPOINTS[:at], *LAKE_FAILPOINTS, *FAILPOINTS[at:])


def steps_of_a_part(kind: str) -> tuple[str, ...]:
    """The failpoints at which a batch of a snapshot is killed.

    It goes through the steps of any batch, and ``make test`` kills a worker at each of those in test_kill.py:
    here it kills at the steps where the progress of a snapshot may be written twice, or not at all.
    """
    return steps_of(kind) if TEST_ALL else ("committing", "staged", "committed")


def failpoints_hit(config: Path) -> list[str]:
    """The failpoints that workers of this config died at, in order."""
    log = config.with_name("failpoints")
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [line.split()[0] for line in lines]
