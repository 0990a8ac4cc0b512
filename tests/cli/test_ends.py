"""How a command ends: interrupted, or left by its reader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
import typer

from tests.cli.samples import CANAL, capture
from tidesink.cli.terminal import Terminated, guarded, stops_cleanly


def tidesink(*args: str) -> subprocess.Popen[bytes]:
    # Unbuffered, so that a line can be waited for.
    command = [sys.executable, "-u", "-c", "from tidesink.cli.main import run; run()", *args]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_with_a_code_of_its_own(number: signal.Signals, code: int) -> None:
    with tidesink("decode", "--protocol", "canal-json", "--input", "-", "-o", "json") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(capture(None, json.dumps(CANAL).encode()).encode())
        process.stdin.flush()
        assert b'"insert"' in process.stdout.readline()
        os.kill(process.pid, number)
        process.wait(120)
        assert process.returncode == code
        assert b"Traceback" not in process.stderr.read()


def test_sigterm_before_the_first_batch_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    @guarded
    def starting(error: BaseException) -> None:
        with stops_cleanly():
            try:
                raise error
            finally:
                raise RuntimeError("Spark did not start")

    for error, code, said in (
        (Terminated(), 0, "stopped before the first batch\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ):
        with pytest.raises(typer.Exit) as ended:
            starting(error)
        assert (ended.value.exit_code, capsys.readouterr().err) == (code, said)


def test_a_reader_that_has_had_enough_is_no_error() -> None:
    with tidesink("decode", "--protocol", "canal-json", "--input", "-", "-o", "json") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        text = "".join(capture(None, json.dumps(CANAL).encode(), offset) for offset in range(500))
        with suppress(BrokenPipeError):  # it may have left before all was written
            process.stdin.write(text.encode())
            process.stdin.close()
        process.wait(120)
        assert process.stderr.read() == b""
        assert process.returncode == 0


def test_what_fails_because_an_interrupt_cut_it_off_is_the_interrupt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @guarded
    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("the answer of the JVM is of another call")

    @guarded
    def failing() -> None:
        raise RuntimeError("it failed")

    with pytest.raises(typer.Exit) as ended:
        interrupted()
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "interrupted\n"
    with pytest.raises(RuntimeError, match="it failed"):
        failing()
