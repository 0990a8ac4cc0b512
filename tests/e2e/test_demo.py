"""``tidesink dev demo`` and the example of a first load, from end to end, and what Ctrl-C leaves of them.

Nothing may still run, and nothing may be broken.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import pytest

from tests.full import FULL
from tidesink.dev.lake_check import check_table
from tidesink.dev.shop import load_expected
from tidesink.events import TableId

# Some of these are three demos one after the other.
pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.timeout(2400)]

_ROOT: Final = Path(__file__).parents[2]
_TIDESINK: Final = (sys.executable, "-c", "from tidesink.cli.main import run; run()")
_DEMO: Final = (*_TIDESINK, "dev", "demo")
_FIRST_LOAD: Final = (sys.executable, "-m", "examples.first_load")
_TABLES: Final = {"customers": 10, "products": 8, "orders": 7, "order_items": 5, "every_type": 42}
_SECONDS: Final = 600
_STOP_SECONDS: Final = 300
# The kernel takes its time over the last threads of a process whose output has ended.
_GONE_SECONDS: Final = 10


@contextmanager
def _demo(directory: Path, *more: str, program: tuple[str, ...] = _DEMO) -> Iterator[subprocess.Popen[bytes]]:
    """A demo in a session of its own, as a terminal gives one; killed at the end if it is still there."""
    command = [*program, "--dir", str(directory), *more]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, cwd=_ROOT
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _wait_for_line(stream: IO[bytes], words: str) -> str:
    """Read lines up to one with these words; all that was read."""
    read = b""
    deadline = time.monotonic() + _SECONDS
    while words.encode() not in read:
        assert time.monotonic() < deadline, read.decode()
        ready, _, _ = select.select([stream], [], [], 1)
        if ready:
            part = os.read(stream.fileno(), 65_536)
            assert part, f"the demo ended before {words!r}:\n{read.decode()}"
            read += part
    return read.decode()


def _left_running(session: int, directory: Path) -> dict[int, str]:
    """Processes of a session, and those whose command names the directory, by pid."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        ended = fields[0] in "ZX"
        if not ended and (int(fields[3]) == session or str(directory) in command):
            found[int(entry.name)] = command[:200]
    return found


def _assert_nothing_left(session: int, directory: Path) -> None:
    deadline = time.monotonic() + _GONE_SECONDS
    while (left := _left_running(session, directory)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == {}


def _run_demo(directory: Path, *more: str, program: tuple[str, ...] = _DEMO) -> dict[str, Any]:
    with _demo(directory, "-o", "json", *more, program=program) as process:
        output, errors = process.communicate(timeout=_SECONDS)
        assert process.returncode == 0, errors.decode()[-4_000:] + output.decode()
        # Every line is ours: nothing of Spark's.
        lines = errors.decode().splitlines()
        assert [one for one in lines if not re.match(r" *\d+\.\d s  ", one)] == []
        for wait in ("starting Spark", "asking Kafka for the topics' end offsets"):
            assert [one for one in lines if one.endswith(wait)]
        _assert_nothing_left(process.pid, directory)
    answer: dict[str, Any] = json.loads(output)
    return answer


def _assert_right(answer: dict[str, Any]) -> None:
    assert answer["right"] is True
    assert {str(TableId(**table["table"])): table["columns"] for table in answer["tables"]} == {
        f"shop.{name}": columns for name, columns in _TABLES.items()
    }
    for table in answer["tables"]:
        counters = table["counters"]
        parts = [counters[name] for name in ("applied", "superseded", "without_row", "dead_lettered")]
        assert counters["read"] == sum(parts) > 0
        assert (table["lag"], table["differences"], table["error"]) == (0, [], None)
        assert table["rows"] > 0
        assert table["commit_ts"] > 1 << 58
    records = sum(answer["workload"]["by_topic"].values())
    assert sum(table["counters"]["read"] for table in answer["tables"]) == records


def _check_every_value(directory: Path, protocol: str) -> None:
    answer = _run_demo(directory, "--events", "600", "--batch-records", "150", "--protocol", protocol)
    _assert_right(answer)
    assert max(table["batches"] for table in answer["tables"]) > 1
    status = subprocess.run(
        [*_TIDESINK, "status", answer["config"]], capture_output=True, text=True, check=True
    )
    assert "shop.every_type" in status.stdout
    _assert_a_wrong_value_is_seen(directory / "demo")


def test_every_value_of_canal_json_is_right(tmp_path: Path) -> None:
    _check_every_value(tmp_path, "canal-json")


@FULL
def test_a_first_load_from_a_database_is_equal_and_an_altered_row_is_found(tmp_path: Path) -> None:
    wanted = ("--rows", "2000", "--events", "300", "--batch-records", "500")
    answer = _run_demo(tmp_path, *wanted, program=_FIRST_LOAD)
    assert answer["right"] is True
    assert answer["rows"] > 2000
    assert answer["events"] >= 300
    for found in answer["equal"]:
        assert found["equal"] > 0
        assert found["differences"] == []
    # The worker's lake is what it was before somebody altered it, but for that row.
    (only,) = (one for found in answer["altered"] for one in found["differences"])
    assert (only["kind"], only["key"], only["columns"]) == ("different", {"id": "17"}, ["total"])
    assert not (tmp_path / "first-load" / "mariadb").exists()


def _assert_a_wrong_value_is_seen(directory: Path) -> None:
    """The check reads the lake, and not what the worker says of it."""
    expected = load_expected(directory / "expected.json")[0]
    expected.rows[0][1] = "nobody@example.com"
    check = check_table(directory / "lake" / "shop" / expected.table.name, expected)
    assert "expected 'nobody@example.com'" in check.differences[0]


# In the middle of its work Ctrl-C comes below, and more than once.
@FULL
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("stack: a broker", signal.SIGINT),
        ("workload: ", signal.SIGINT),
        ("worker: Spark starts", signal.SIGINT),
        ("batch 1: read", signal.SIGTERM),
    ],
)
def test_stopped_at_any_moment_it_leaves_nothing_running(
    tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    with _demo(tmp_path, "--events", "4000", "--batch-records", "100") as process:
        assert process.stderr is not None
        _wait_for_line(process.stderr, moment)
        # A terminal sends its signal to every process in the foreground, the JVM too.
        os.killpg(process.pid, number)
        output, errors = process.communicate(timeout=_STOP_SECONDS)
        assert process.returncode == 130, errors.decode()
        assert "Traceback" not in errors.decode()
        assert output == b""
        _assert_nothing_left(process.pid, tmp_path)


@FULL
def test_killed_and_stopped_twice_and_run_again_every_value_is_right(tmp_path: Path) -> None:
    with _demo(tmp_path, "--events", "200") as process:
        assert process.stderr is not None
        _wait_for_line(process.stderr, "worker: Spark starts")
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert _left_running(process.pid, tmp_path), "SIGKILL cannot take the broker along"
    # What it left does not stand in the way.
    with _demo(tmp_path, "--events", "4000", "--batch-records", "100") as process:
        assert process.stderr is not None
        _wait_for_line(process.stderr, "batch 1: read")
        for _ in range(3):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.3)
        process.communicate(timeout=_STOP_SECONDS)
        assert process.returncode == 130
        _assert_nothing_left(process.pid, tmp_path)
    _check_every_value(tmp_path, "flat-avro")


@FULL
def test_two_demos_in_one_place_are_told_apart(tmp_path: Path) -> None:
    with _demo(tmp_path, "--events", "200") as process:
        assert process.stderr is not None
        _wait_for_line(process.stderr, "jars: ")
        second = subprocess.run([*_DEMO, "--dir", str(tmp_path)], capture_output=True, text=True, check=False)
        assert second.returncode == 1
        assert "Another demo runs in" in second.stderr
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=_STOP_SECONDS)
