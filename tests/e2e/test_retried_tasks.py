"""Tasks that Spark tries again, or runs twice at once, count once. On a cluster: local Spark does neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

import pytest

from tests.contracts.sql_beds import DATABASES
from tests.e2e.retried_tasks import ROWS
from tests.e2e.sql_beside import Server, connected
from tests.soak import SOAK

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]
ROOT: Final = Path(__file__).resolve().parents[2]


# One of them is enough for every change: what they share is what is tested.
@pytest.mark.parametrize("kind", ["postgres", pytest.param("mysql", marks=SOAK)])
def test_a_row_is_counted_once_however_often_its_task_ran(kind: str, request: pytest.FixtureRequest) -> None:
    server: Server = kind, DATABASES[kind](request)
    command = [sys.executable, "-m", "tests.e2e.retried_tasks", kind, json.dumps(asdict(server[1]))]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    failed, doubled = (json.loads(line) for line in done.stdout.splitlines())
    assert (failed["inserted"], failed["updated"]) == (ROWS, 0)
    assert (doubled["inserted"], doubled["updated"]) == (0, ROWS)
    # Rows of the attempts that did not count were there.
    assert failed["staged"] > ROWS
    assert doubled["staged"] > ROWS
    with connected(server) as connections, connections.transaction("test") as cursor:
        cursor.execute("SELECT COUNT(*), COUNT(DISTINCT id), SUM(id) FROM shop.orders")
        assert [int(found) for found in cursor.fetchone()] == [ROWS, ROWS, ROWS * (ROWS - 1) // 2]
