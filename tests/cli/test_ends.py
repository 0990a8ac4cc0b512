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
from tidesink.cli.terminal import guarded


def tidesink(*args: str) -> subprocess.Popen[bytes]:
    # Unbuffered, so that a line can be waited for.
    command = [sys.executable, "-u", "-c", "from tidesink.cli.main import run; run()", *args]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_with_130(number: signal.Signals) -> None:
    with tidesink("decode", "--protocol", "canal-json", "--input", "-", "-o", "json") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(capture(None, json.dumps(CANAL).encode()).encode())
        process.stdin.flush()
        assert b'"insert"' in process.stdout.readline()
        os.kill(process.pid, number)
        process.wait(120)
        assert process.returncode == 130
        assert b"Traceback" not in process.stderr.read()


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
