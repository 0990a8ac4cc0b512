"""Daemons and their ports: a process in a session of its own, a pid file, a log file, and a port.

A pid file names the process by pid and by when it started, so that a pid which the system has given to
another process is never taken for ours and never killed. Ports are on loopback.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tidesink.errors import DevStackError

# A JVM beside others on a small machine takes a minute; one that ends is seen at once.
READY_SECONDS: Final = 240.0
STOP_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.1
_LOG_LINES: Final = 15


@dataclass(frozen=True)
class RunningDaemon:
    """A process as its pid file describes it. ``started`` is opaque: equal only for the same process."""

    pid: int
    started: str
    port: int


@dataclass(frozen=True)
class DaemonFiles:
    """Where a daemon keeps its pid and its log."""

    name: str
    directory: Path

    @property
    def pid_file(self) -> Path:
        return self.directory / f"{self.name}.pid"

    @property
    def log_file(self) -> Path:
        return self.directory / f"{self.name}.log"


def start_daemon(files: DaemonFiles, command: Sequence[str], *, port: int) -> RunningDaemon:
    """Start the command in its own session, its output in the log file, and write its pid file.

    The log of the last run stays beside it with ``.1``. Raises DevStackError when it cannot start.
    """
    files.directory.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        files.log_file.replace(files.log_file.with_suffix(".log.1"))
    with interrupts_wait():
        process = _start(files, command)
        # The daemon outlives this object on purpose; without a code its collection would warn of that.
        process.returncode = 0
        try:
            return _record(files, process.pid, port)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # without a pid file nobody could ever stop it
            raise


def _start(files: DaemonFiles, command: Sequence[str]) -> subprocess.Popen[bytes]:
    with files.log_file.open("wb") as log:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as exc:
            raise DevStackError(f"{files.name} cannot start: {command[0]}: {exc.strerror}") from exc


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """Ctrl-C takes effect behind the block: between a fork and its pid file it would leave an orphan.

    Without effect in other threads than the main one, which alone receives Ctrl-C.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for number in waiting[:1]:
            signal.raise_signal(number)


def find_running(files: DaemonFiles) -> RunningDaemon | None:
    """The live process of the pid file; None if there is none, or its pid belongs to another one by now."""
    daemon = read_pid_file(files)
    if daemon is not None and start_of(daemon.pid) == daemon.started:
        return daemon
    return None


def read_pid_file(files: DaemonFiles) -> RunningDaemon | None:
    """The process of the pid file, alive or not; None when the file is missing or unreadable."""
    try:
        found = json.loads(files.pid_file.read_text(encoding="utf-8"))
        return RunningDaemon(int(found["pid"]), str(found["started"]), int(found["port"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def stop_daemons(all_files: Sequence[DaemonFiles], *, grace: float = STOP_SECONDS) -> list[str]:
    """End the processes together: SIGTERM, after ``grace`` seconds SIGKILL. The names of those that ran."""
    running = {files.name: daemon for files in all_files if (daemon := find_running(files))}
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, STOP_SECONDS)):
        deadline = time.monotonic() + seconds
        for daemon in running.values():
            _signal(daemon, number)
        if all(_wait_gone(daemon, deadline) for daemon in running.values()):
            break
    for files in all_files:
        files.pid_file.unlink(missing_ok=True)
    return list(running)


def wait_ready(
    files: DaemonFiles,
    daemon: RunningDaemon,
    answers: Callable[[], bool],
    *,
    deadline: float,
) -> None:
    """Wait until ``answers()``; ``deadline`` is a ``time.monotonic()`` value.

    Raises DevStackError with the end of the log when the process ends first or the time is up.
    """
    while True:
        # Ours must be alive: another program on its port could answer in its place.
        if start_of(daemon.pid) != daemon.started:
            raise DevStackError(f"{files.name} ended while starting.{_log_tail(files)}")
        if answers():
            return
        if time.monotonic() > deadline:
            raise DevStackError(f"{files.name} does not answer on port {daemon.port}.{_log_tail(files)}")
        time.sleep(_POLL_SECONDS)


def require_free_port(port: int, *, name: str, option: str) -> None:
    """Raise DevStackError when something listens on the loopback port."""
    if not 0 < port < 65536:
        raise DevStackError(
            f"port {port} for the {name} is not between 1 and 65535; choose another with {option}"
        )
    refused = _bind_error(port)
    if refused == errno.EADDRINUSE:
        raise DevStackError(
            f"port {port} for the {name} is in use; stop that, or choose another with {option}"
        )
    if refused is not None:
        raise DevStackError(f"the {name} cannot use port {port}: {os.strerror(refused)}; choose {option}")


def _bind_error(port: int) -> int | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as exc:
            return exc.errno or errno.EINVAL
    return None


def accepts(port: int) -> bool:
    """True when something accepts connections on the loopback port."""
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False


def start_of(pid: int) -> str | None:
    """When the process started, as text equal only for the same process; None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _start_by_ps(pid)
    fields = stat.rpartition(")")[2].split()  # the name before it may hold blanks and brackets
    # A killed JVM's first thread is a zombie while others still close its ports: that is not gone yet.
    ended = fields[0] in "ZX" and int(fields[17]) <= 1
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return None if ended else f"{boot}/{fields[19]}"


def _start_by_ps(pid: int) -> str | None:
    answer = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or None


def _record(files: DaemonFiles, pid: int, port: int) -> RunningDaemon:
    started = start_of(pid)
    if started is None:
        raise DevStackError(f"{files.name} ended at once.{_log_tail(files)}")
    daemon = RunningDaemon(pid, started, port)
    part = files.pid_file.with_suffix(".pid.part")
    part.write_text(json.dumps(asdict(daemon)), encoding="utf-8")
    part.replace(files.pid_file)
    return daemon


def _signal(daemon: RunningDaemon, number: signal.Signals) -> None:
    if start_of(daemon.pid) == daemon.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.pid, number)


def _wait_gone(daemon: RunningDaemon, deadline: float) -> bool:
    while start_of(daemon.pid) == daemon.started:
        if time.monotonic() > deadline:
            return False
        _reap(daemon.pid)
        time.sleep(_POLL_SECONDS / 2)
    _reap(daemon.pid)
    return True


def _reap(pid: int) -> None:
    """Collect the process if it is our own child, so that no zombie stays while we live."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _log_tail(files: DaemonFiles) -> str:
    try:
        lines = files.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f" No log at {files.log_file}."
    return "\n".join([f" The end of {files.log_file}:", *lines[-_LOG_LINES:]])


LOOPBACK: Final = "127.0.0.1"
# Below lie the ports of well-known services, above Kubernetes' NodePorts and those that systems give to
# connections.
_LOWEST: Final = 10_000
_HIGHEST: Final = 29_999
_GIVEN_OUT: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ANY: Final = 0
_TRIES: Final = 100


def free_ports(count: int) -> list[int]:
    """Different ports that nothing listens on at this moment.

    The system assigns none of them by itself: a service takes seconds to start, and would find its port in
    use. Raises OSError if there is none.
    """
    found: list[int] = []
    candidates = _candidates()
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            found += _bound(stack.enter_context(socket.socket()), next(candidates))
    return found


def _bound(one: socket.socket, port: int) -> list[int]:
    """The port that the socket is now bound to; none if it is in use."""
    try:
        one.bind((LOOPBACK, port))
    except OSError:
        if port == _ANY:
            raise  # the system has none: another try would fail too
        return []
    return [one.getsockname()[1]]


def _candidates() -> Iterator[int]:
    """Ports to try in random order, so that two callers find different ones; then any port of the system."""
    highest = _HIGHEST
    with contextlib.suppress(OSError, ValueError):
        highest = min(highest, int(_GIVEN_OUT.read_text(encoding="ascii").split()[0]) - 1)
    ports = range(_LOWEST, highest + 1)
    yield from random.SystemRandom().sample(ports, min(len(ports), _TRIES))
    while True:
        yield _ANY
