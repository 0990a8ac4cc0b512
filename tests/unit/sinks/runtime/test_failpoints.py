"""Failpoints: what they take, and that they kill the whole process group with proof."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tidesink.errors import ConfigError
from tidesink.sinks.runtime.context import FAILPOINTS, LAKE_FAILPOINTS, Armed, Failpoints, parse_failpoint

_CHILD = """
import subprocess, sys
from tidesink.sinks.runtime.context import Failpoints
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
points = Failpoints.from_environment()
for turn in range(5):
    points.reach("planned")
    points.reach("committed")
    print(turn, flush=True)
"""


def test_names_and_hits() -> None:
    assert parse_failpoint("committed") == Armed("committed", 1)
    assert parse_failpoint("read:3") == Armed("read", 3)
    assert parse_failpoint("read:3:stop") == Armed("read", 3, signal.SIGSTOP)


@pytest.mark.parametrize("text", ["nowhere", "read:0", "read:x", "read:-1", "", "read:1:kill", "read:stop"])
def test_others_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a failpoint"):
        parse_failpoint(text)


def test_nothing_armed_does_nothing() -> None:
    points = Failpoints(None)
    for name in (*FAILPOINTS, *LAKE_FAILPOINTS):
        points.reach(name)
        assert points.if_armed(name) is None


def test_a_step_that_costs_time_is_told_where_it_is_armed_alone() -> None:
    points = Failpoints(Armed("written", 2))
    assert points.if_armed("located") is None
    reached = points.if_armed("written")
    assert reached is not None
    reached()  # the first of two


def test_a_trace_has_each_step_with_the_thread_that_reached_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDESINK_FAILPOINT", raising=False)
    monkeypatch.setenv("TIDESINK_FAILPOINT_TRACE", str(tmp_path / "trace"))
    points = Failpoints.from_environment()
    points.reach("planned")
    table = threading.Thread(target=points.reach, args=("read",), name="shop.orders")
    table.start()
    table.join()
    assert points.if_armed("written") is None
    lines = (tmp_path / "trace").read_text(encoding="utf-8").splitlines()
    assert lines == [f"{threading.current_thread().name}\tplanned", "shop.orders\tread"]


def test_the_armed_hit_kills_the_group_and_leaves_its_line(tmp_path: Path) -> None:
    log = tmp_path / "hits"
    environment = {**os.environ, "TIDESINK_FAILPOINT": "committed:3", "TIDESINK_FAILPOINT_LOG": str(log)}
    run = subprocess.run(
        [sys.executable, "-c", _CHILD],
        env=environment,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    child, *turns = run.stdout.split()
    assert run.returncode == -signal.SIGKILL
    assert turns == ["0", "1"]
    assert log.read_text(encoding="utf-8").startswith("committed:3 pid=")
    deadline = time.monotonic() + 120
    while _runs(int(child)):
        assert time.monotonic() < deadline, "the worker's child outlived it"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between the open and the read
        return False
    return state != "Z"
