"""Daemons by pid file: started apart from us, found again, stopped, and never mixed up with another."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidesink.dev.stack import (
    LOOPBACK,
    DaemonFiles,
    RunningDaemon,
    accepts,
    find_running,
    free_ports,
    interrupts_wait,
    read_pid_file,
    require_free_port,
    start_daemon,
    start_of,
    stop_daemons,
    wait_ready,
)
from tidesink.errors import DevStackError

# What a process may take to start or end on a busy machine.
_SECONDS = 120
SLEEP = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "from signal import *; signal(SIGTERM, SIG_IGN); print('deaf', flush=True); pause()",
]
SERVER = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    while True:
        server.accept()[0].close()
"""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[DaemonFiles]:
    files = DaemonFiles("thing", tmp_path / "run")
    yield files
    stop_daemons([files], grace=0)


def _wait_log(files: DaemonFiles, word: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while word not in files.log_file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_daemon_has_its_own_session_log_and_pid_file(files: DaemonFiles) -> None:
    daemon = start_daemon(files, SLEEP, port=1)
    assert find_running(files) == daemon
    assert os.getsid(daemon.pid) == daemon.pid != os.getsid(0)
    _wait_log(files, "here")


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, whatever Spark in this process would do."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_waits_until_the_process_is_known(files: DaemonFiles) -> None:
    started = []

    def interrupted() -> None:
        with interrupts_wait():
            signal.raise_signal(signal.SIGINT)
            started.append(start_daemon(files, SLEEP, port=1))

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [find_running(files)] == started
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_stop_ends_it_and_removes_the_pid_file(files: DaemonFiles) -> None:
    daemon = start_daemon(files, SLEEP, port=1)
    assert stop_daemons([files]) == ["thing"]
    assert start_of(daemon.pid) is None
    assert not files.pid_file.exists()
    assert stop_daemons([files]) == []


def test_what_ignores_sigterm_is_killed(files: DaemonFiles) -> None:
    daemon = start_daemon(files, STUBBORN, port=1)
    _wait_log(files, "deaf")
    assert stop_daemons([files], grace=0.3) == ["thing"]
    assert start_of(daemon.pid) is None


def test_a_daemon_that_died_is_not_running(files: DaemonFiles) -> None:
    daemon = start_daemon(files, SLEEP, port=1)
    os.kill(daemon.pid, signal.SIGKILL)
    deadline = time.monotonic() + _SECONDS
    while find_running(files) is not None:
        assert time.monotonic() < deadline
    assert read_pid_file(files) == daemon


def test_a_pid_that_is_somebody_elses_by_now_is_not_touched(files: DaemonFiles) -> None:
    files.directory.mkdir()
    with subprocess.Popen(SLEEP, start_new_session=True, stdout=subprocess.DEVNULL) as stranger:
        try:
            files.pid_file.write_text(json.dumps({"pid": stranger.pid, "started": "long ago", "port": 1}))
            assert find_running(files) is None
            assert stop_daemons([files]) == []
            assert stranger.poll() is None
            assert not files.pid_file.exists()
        finally:
            stranger.kill()


@pytest.mark.parametrize("text", ["", "123", "{}", '{"pid": "x", "started": "", "port": 1}', "\x00"])
def test_a_spoilt_pid_file_is_no_daemon(files: DaemonFiles, text: str) -> None:
    files.directory.mkdir()
    files.pid_file.write_text(text)
    assert find_running(files) is None


def test_the_log_of_the_run_before_is_kept(files: DaemonFiles) -> None:
    start_daemon(files, SLEEP, port=1)
    _wait_log(files, "here")
    stop_daemons([files])
    start_daemon(files, SLEEP, port=1)
    assert files.log_file.with_suffix(".log.1").read_text() == "here\n"


def test_a_program_that_is_not_there(files: DaemonFiles, tmp_path: Path) -> None:
    with pytest.raises(DevStackError, match=r"thing cannot start: .*/no: No such file"):
        start_daemon(files, [str(tmp_path / "no")], port=1)


def test_ready_when_it_answers(files: DaemonFiles) -> None:
    [port] = free_ports(1)
    daemon = start_daemon(files, [sys.executable, "-c", SERVER, str(port)], port=port)
    wait_ready(files, daemon, lambda: accepts(port), deadline=time.monotonic() + _SECONDS)
    assert accepts(port)


def test_a_daemon_that_ends_while_starting_shows_its_log(files: DaemonFiles) -> None:
    program = [
        sys.executable,
        "-c",
        # Not before it is known: what ends sooner has ended at once.
        "import pathlib, sys, time\n"
        "while not pathlib.Path(sys.argv[1]).exists():\n"
        "    time.sleep(0.02)\n"
        "print('no such topic'); raise SystemExit(3)",
        str(files.pid_file),
    ]
    daemon = start_daemon(files, program, port=1)
    with pytest.raises(DevStackError, match=r"thing ended while it was starting\.(.|\n)*no such topic"):
        wait_ready(files, daemon, lambda: False, deadline=time.monotonic() + _SECONDS)


def test_another_program_that_answers_is_not_taken_for_ours(files: DaemonFiles) -> None:
    gone = RunningDaemon(os.getpid(), "never", 1)
    with pytest.raises(DevStackError, match="ended while it was starting"):
        wait_ready(files, gone, lambda: True, deadline=time.monotonic() + _SECONDS)


def test_a_daemon_that_never_answers(files: DaemonFiles) -> None:
    daemon = start_daemon(files, SLEEP, port=77)
    with pytest.raises(DevStackError, match="does not answer on port 77"):
        wait_ready(files, daemon, lambda: False, deadline=time.monotonic())


def test_a_busy_port_is_named_with_the_way_out() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(DevStackError) as caught:
            require_free_port(port, name="broker", option="--kafka-port")
    said = str(caught.value)
    assert f"Port {port} for the broker is in use" in said
    assert "another port with --kafka-port" in said


def test_a_free_port_passes() -> None:
    found = free_ports(3)
    assert len(set(found)) == 3
    for port in found:
        require_free_port(port, name="broker", option="--kafka-port")


def test_free_ports_are_none_that_the_system_gives_to_connections() -> None:
    given_out = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not given_out.exists():
        pytest.skip("this system does not say which ports it gives to connections")
    lowest = int(given_out.read_text().split()[0])
    if lowest <= 11_000:
        pytest.skip("this system gives nearly all ports to connections")
    # Nor NodePorts of Kubernetes.
    assert max(free_ports(50)) < min(lowest, 30_000)


def test_no_ports_are_none() -> None:
    assert free_ports(0) == []


def test_an_address_that_is_not_this_machines_has_no_ports() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        free_ports(1, "192.0.2.1")  # of documentation, and no machine's


def test_a_port_that_is_not_one_is_refused() -> None:
    with pytest.raises(DevStackError, match=r"Port 70000.*--kafka-port"):
        require_free_port(70000, name="broker", option="--kafka-port")
