"""The end of Spark's JVM is noticed, and a heap that does not fit into the container is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidesink.errors import SparkEndedError
from tidesink.sinks.spark.session import check_jvm, memory_limit, memory_remark

GIB = 2**30


def _session(process: subprocess.Popen[bytes] | None) -> Any:
    return cast("Any", SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process))))


def test_a_jvm_that_runs_and_one_of_another_process_are_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        check_jvm(_session(process))
        check_jvm(_session(None))


def test_a_process_that_was_forked_does_not_take_its_parents_jvm_for_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        child = os.fork()
        if not child:
            try:
                check_jvm(_session(process))
                os._exit(0)
            except SparkEndedError:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, "was killed, usually because memory ran out"),
        (signal.SIGTERM, "ended with exit code -15"),
    ],
)
def test_a_jvm_that_has_ended_is_said_with_the_remedy(number: int, said: str) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.send_signal(number)
        with pytest.raises(SparkEndedError, match=f"{said}.*lower spark.driver.memory"):
            check_jvm(_session(process), 60.0)


def test_the_limit_is_that_of_the_first_kind_of_cgroup_that_is_there(tmp_path: Path) -> None:
    second, first = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    assert memory_limit([second, first]) is None
    first.write_text(f"{2**63 - 4096}\n", encoding="ascii")
    assert memory_limit([second, first]) is None
    first.write_text(f"{3 * GIB}\n", encoding="ascii")
    assert memory_limit([second, first]) == 3 * GIB
    second.write_text("max\n", encoding="ascii")
    assert memory_limit([second, first]) is None
    second.write_text(f"{2 * GIB}\n", encoding="ascii")
    assert memory_limit([second, first]) == 2 * GIB


@pytest.mark.parametrize(
    ("heap", "limit", "fits"),
    [("2g", 4 * GIB, True), ("2g", 2 * GIB, False), ("1024", 2 * GIB, True), ("1536m", 2 * GIB, False)],
)
def test_a_heap_needs_room_beside_it(heap: str, limit: int, fits: bool) -> None:
    remark = memory_remark(heap, limit)
    assert (remark is None) == fits
    if remark is not None:
        assert "The memory limit of this container is 2.0 GiB" in remark


def test_without_a_limit_there_is_nothing_to_say() -> None:
    assert memory_remark("200g", None) is None
    assert memory_remark("half", GIB) is None
