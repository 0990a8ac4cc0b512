"""Containers of the worker's image beside the stack, and what a test asks them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.compose_files import COMPOSE

IMAGE: Final = "tidesink:latest"
WORKER: Final = "tidesink-stack-worker-1"
# Long enough for a machine that is busy otherwise: what a test waits for comes much sooner as a rule.
SECONDS: Final = 900
_BETWEEN_SECONDS: Final = 5
# Runs in the image, with the volumes of a worker and of the workload.
_CHECK: Final = """
import sys
from pathlib import Path
from tidesink.dev.lake_check import check_table
from tidesink.dev.shop import load_expected
tables = load_expected(Path("/expected/expected.json"))
wrong = [one.table.name for one in tables
         if not check_table(Path("/var/lib/tidesink/lake/shop") / one.table.name, one).right]
sys.exit(f"wrong or missing: {wrong}" if wrong or not tables else 0)
"""


def docker(*arguments: str, seconds: float = SECONDS) -> str:
    """What a command of Docker prints.

    Raises:
        AssertionError: it failed; the message has what it said.
    """
    done = _run("docker", *arguments, seconds=seconds)
    assert done.returncode == 0, f"docker {' '.join(arguments)}:\n{done.stdout[-8000:]}"
    return done.stdout


def compose(file: Path, env: Path, *arguments: str) -> None:
    """Run a command of Docker Compose with a file and the file of its variables.

    Raises:
        AssertionError: it failed; the message has what it said, and what its containers logged last.
    """
    command = ("docker", "compose", "-f", str(file), "--env-file", str(env))
    done = _run(*command, *arguments, seconds=SECONDS)
    if done.returncode != 0:
        logged = _run(*command, "logs", "--tail", "40", seconds=60).stdout
        raise AssertionError(f"docker compose {' '.join(arguments)}:\n{done.stdout}\n{logged}")


def _run(*command: str, seconds: float) -> subprocess.CompletedProcess[str]:
    # What a container logs to stderr is wanted in its order.
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False
    )


def wait(until: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Wait until something is so; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, f"not so after {seconds:.0f} s"
        time.sleep(0.5)


def is_right(name: str, seconds: float = 0.0) -> None:
    """Hold every value in a worker's lake to what the workload wrote; wait so long until it is.

    Raises:
        AssertionError: a table differs; the message names it.
    """
    volumes = ("--volumes-from", name, "-v", "tidesink-stack_state:/expected:ro")
    command = ("run", "--rm", "--pull", "never", "--network", "none", *volumes, "--entrypoint", "python")
    deadline = time.monotonic() + seconds
    while True:
        done = _run("docker", *command, IMAGE, "-c", _CHECK, seconds=SECONDS)
        if done.returncode == 0:
            return
        assert time.monotonic() < deadline, f"{done.stdout}\n{docker('logs', '--tail', '40', name)}"
        time.sleep(_BETWEEN_SECONDS)


@dataclass(frozen=True)
class Container:
    """A container that runs, or has ended."""

    name: str

    def logs(self) -> str:
        """All that it logged."""
        return docker("logs", self.name)

    def runs(self, *command: str) -> bool:
        """Whether a command ends well in it."""
        done = _run("docker", "exec", self.name, *command, seconds=60)
        assert "is not running" not in done.stdout, self.logs()
        return done.returncode == 0

    def kill_java(self, signal: str) -> bool:
        """Send Spark's JVM a signal; False if there is none yet."""
        # The brackets keep the shell's own command line from being found.
        pids = "grep -l 'Spark[S]ubmit' /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3"
        return self.runs("sh", "-c", f'pids=$({pids}); [ -n "$pids" ] && kill -{signal} $pids')

    def code(self, seconds: float = SECONDS) -> int:
        """The exit code, which it must have within ``seconds``."""
        try:
            return int(docker("wait", self.name, seconds=seconds))
        except subprocess.TimeoutExpired:
            pytest.fail(f"runs after {seconds:.0f} s:\n{self.logs()[-8000:]}")


@contextmanager
def beside_the_stack(*options: str, command: tuple[str, ...] = ()) -> Iterator[Container]:
    """A worker with volumes of its own in the stack's network; ``options`` are those of docker run."""
    network = ("--pull", "never", "--network", "tidesink-stack_default")
    variables = {
        "BROKERS": "broker:19092",
        "SCHEMA_REGISTRY": "http://registry:8080/apis/ccompat/v7",
        "SPARK_DRIVER_MEMORY": "1g",
    }
    given = [f"--env={name}={value}" for name, value in variables.items()]
    config = f"{COMPOSE}/config/stack.yaml:/etc/tidesink/tidesink.yaml:ro"
    name = docker("run", "-d", *network, *given, "-v", config, *options, IMAGE, *command).split()[-1]
    try:
        yield Container(name)
    finally:
        docker("rm", "-fv", name)
