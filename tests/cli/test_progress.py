"""Progress on a terminal: a bar a table for a run, a status that refreshes in place; lines elsewhere."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from tests.cli.samples import run
from tests.unit.config.samples import FLAT_AVRO, right
from tidesink.cli.main import Until, _listening
from tidesink.cli.terminal import LogFormat, ProgressBars, ProgressLines
from tidesink.config import load_config
from tidesink.errors import BrokerUnavailableError, SourceUnavailableError
from tidesink.events import TableId
from tidesink.sinks.laws.counts import Account
from tidesink.sinks.runtime.observers import BatchApplied, BatchStarted, StepRetried, Waiting
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.state.sql_store import open_state_store

ORDERS: Final = TableId("shop", "order[s]")
_PATIENCE_SECONDS: Final = 60
_CODES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _screen(clock: Clock) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=80, get_time=clock, legacy_windows=False)


def _bar(screen: Console, bars: ProgressBars) -> str:
    """The one bar, as it stands now."""
    screen.file.truncate(screen.file.seek(0))
    bars._bars.refresh()
    return _text(screen).strip()


def _text(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return _CODES.sub("", screen.file.getvalue())


def test_a_bar_has_records_rate_and_the_time_that_is_left() -> None:
    clock = Clock()
    screen = _screen(clock)
    with ProgressBars(screen, brokers="b:1") as bars:
        bars.hear(BatchStarted(ORDERS, 1, 4_000, left=16_000))
        begun = _bar(screen, bars)
        clock.now += 4
        bars.hear(BatchApplied(ORDERS, 1, Account(4_000, 4_000), "v", None))
        applied = _bar(screen, bars)
        bars.hear(BatchStarted(ORDERS, 2, 16_000, left=0))
        clock.now += 6
        bars.hear(BatchApplied(ORDERS, 2, Account(16_000, 16_000), "v", None))
        done = _bar(screen, bars)
    assert begun.startswith("shop.order[s]")
    assert begun.endswith("-:--:--")
    assert applied.split()[-3:] == ["4,000/20,000", "1,000/s", "0:00:16"]
    assert done.split()[-3:] == ["20,000/20,000", "2,000/s", "0:00:00"]


def test_records_that_come_meanwhile_are_to_be_done_too() -> None:
    clock = Clock()
    screen = _screen(clock)
    with ProgressBars(screen, brokers="b:1") as bars:
        for number, left in ((1, 10), (2, 30)):
            bars.hear(BatchStarted(ORDERS, number, 10, left))
            clock.now += 1
            bars.hear(BatchApplied(ORDERS, number, Account(10, 10), "v", None))
        assert _bar(screen, bars).split()[-3:] == ["20/50", "10/s", "0:00:03"]


def test_on_a_narrow_terminal_a_long_name_gives_way() -> None:
    clock = Clock()
    screen = _screen(clock)
    with ProgressBars(screen, brokers="b:1") as bars:
        bars.hear(BatchStarted(ORDERS._replace(name="n" * 60), 1, 10_000_000, 70_000_000))
        clock.now += 100
        bars.hear(BatchApplied(ORDERS._replace(name="n" * 60), 1, Account(), "v", None))
        shown = _bar(screen, bars).split()
    assert (shown[0][:12], shown[-3:]) == ("shop.nnnnnnn", ["10,000,000/80,000,000", "100,000/s", "0:11:40"])


def test_what_is_no_progress_is_a_line_above_the_bars() -> None:
    screen = _screen(Clock())
    with ProgressBars(screen, brokers="b:1") as bars:
        bars.hear(Waiting("starting Spark"))
        bars.hear(BatchStarted(ORDERS, 1, 10))
        bars.hear(StepRetried(None, BrokerUnavailableError("no answer [x]"), 2.0))
        bars.hear(StepRetried(ORDERS, SourceUnavailableError("the database does not answer"), 2.0))
        sys.stderr.write("warning: from the log\n")
        shown = _text(screen)
    lines = [line.strip() for line in shown.splitlines()]
    assert "starting Spark" in lines
    assert "all tables  BrokerUnavailableError: no answer [x] (brokers b:1); again in 2.0 s" in lines
    # The address of a server that has nothing to do with it would be looked at in vain.
    database = "SourceUnavailableError: the database does not answer; again in 2.0 s"
    assert f"{ORDERS}  {database}" in lines
    assert "warning: from the log" in lines


def _is_terminal(monkeypatch: pytest.MonkeyPatch, *, term: str) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)


def test_bars_are_for_a_run_to_the_end_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    config = right(FLAT_AVRO)

    def listener(until: Until | None, log: LogFormat = LogFormat.TEXT) -> type:
        found = _listening(log, until, config)
        return type(found) if isinstance(found, ProgressBars) else type(found.__enter__())

    assert listener(Until.DRAINED) is ProgressLines
    _is_terminal(monkeypatch, term="dumb")
    assert listener(Until.DRAINED) is ProgressLines
    _is_terminal(monkeypatch, term="xterm")
    assert listener(Until.DRAINED) is ProgressBars
    assert listener(None) is ProgressLines
    assert listener(Until.DRAINED, LogFormat.JSON) not in (ProgressBars, ProgressLines)


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Path]:
    """The config of a pipeline with a table that was worked on."""
    file = tmp_path / "t.yaml"
    run("init", str(file))
    store = open_state_store(load_config(file).state)
    store.save_status(TableStatus("shop", TableId("shop", "a"), "IDLE", counters={"read": 5, "applied": 5}))
    yield file
    store.close()


def _command(*words: str) -> list[str]:
    return [sys.executable, "-c", "from tidesink.cli.main import run; run()", *words]


def test_a_watched_status_is_a_line_of_json_each_time(pipeline: Path) -> None:
    command = _command("status", str(pipeline), "--watch", "-o", "json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_PATIENCE_SECONDS)
    assert process.returncode == 130
    assert [[table["table"]["name"] for table in one["tables"]] for one in shown] == [["a"], ["a"]]


def test_a_watched_status_refreshes_in_place_on_a_terminal(pipeline: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30"}
    process = subprocess.Popen(
        _command("status", str(pipeline), "--watch"), stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    read, deadline = b"", time.monotonic() + _PATIENCE_SECONDS
    try:
        while read.count(b"worker: no worker runs") < 2:
            assert time.monotonic() < deadline, read
            if select.select([ours], [], [], 1)[0]:
                read += os.read(ours, 65_536)
        process.send_signal(signal.SIGINT)
        assert process.wait(_PATIENCE_SECONDS) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    # The second time stands where the first stood: its lines were gone back over.
    first, _, rest = read.partition(b"worker: no worker runs")
    assert b"\x1b[1A" not in first
    assert rest.count(b"\x1b[1A") >= first.count(b"\n")
    assert b"shop.a" in rest


def test_a_status_is_watched_or_asked_for_life() -> None:
    refused = run("status", "--watch", "--alive-within", "5", "-c", "/no/such")
    assert refused.exit_code == 2
