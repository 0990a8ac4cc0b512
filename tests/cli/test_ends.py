"""How a command ends: interrupted, or left by its reader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.cli.samples import CANAL, capture


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
