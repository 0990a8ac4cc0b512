"""Tasks that Spark tries again, or runs twice at once, count once. On a cluster: local Spark does neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pytest

from tests.contracts.sql_beds import DATABASES
from tests.e2e import lost_executors
from tests.e2e.retried_tasks import READ_ROWS, ROWS
from tests.e2e.sql_beside import Server, connected
from tests.full import FULL

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]
ROOT: Final = Path(__file__).resolve().parents[2]


def run_beside(program: str, *arguments: str) -> list[dict[str, Any]]:
    """What a program, which starts a cluster of its own, prints."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.e2e.{program}", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # The log's lines are among them.
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


# One of them is enough for every change: what they share is what is tested.
@FULL
@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_row_is_counted_once_however_often_its_task_ran(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: Server = kind, DATABASES[kind](request)
    arguments = (kind, json.dumps(asdict(server[1])), str(tmp_path))
    failed, doubled, *read, end = run_beside("retried_tasks", *arguments)
    assert (failed["inserted"], failed["updated"]) == (ROWS, 0)
    assert (doubled["inserted"], doubled["updated"]) == (0, ROWS)
    # Rows of the attempts that did not count were there.
    assert failed["staged"] > ROWS
    assert doubled["staged"] > ROWS
    with connected(server) as connections, connections.transaction("test") as cursor:
        cursor.execute("SELECT COUNT(*), COUNT(DISTINCT id), SUM(id) FROM shop.orders")
        assert [int(found) for found in cursor.fetchone()] == [ROWS, ROWS, ROWS * (ROWS - 1) // 2]
    # Likewise where the tasks that failed or ran twice had read the rows themselves.
    assert [one["brought"] for one in read] == [READ_ROWS, READ_ROWS]
    assert all(one["staged"] > READ_ROWS for one in read)
    assert end == {"right": True, "rows": READ_ROWS}


@FULL
@pytest.mark.parametrize("kind", list(lost_executors.BEDS))
def test_a_batch_whose_payloads_are_lost_is_read_again_and_written_once(kind: str, tmp_path: Path) -> None:
    """The executor that fetches is killed, and all of them before the commit: no payload is left."""
    loaded, merged, end = run_beside("lost_executors", kind, str(tmp_path))
    sent = 2 * lost_executors.ROWS + 1  # the DDL
    assert (loaded["read"], merged["read"]) == (lost_executors.ROWS + 1, sent)
    assert (loaded["lost"], merged["lost"]) == (1, 2)
    assert end == {"right": True, "rows": lost_executors.ROWS * 9 // 10}


@FULL
def test_a_batch_whose_executor_is_lost_with_its_rows_staged_has_them_once(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Killed are the executor that fetches, the next once it has staged all, and both before the commit."""
    endpoint = json.dumps(asdict(DATABASES["postgres"](request)))
    loaded, merged, end = run_beside("lost_executors", "postgres", str(tmp_path), endpoint)
    rows = lost_executors.ROWS
    assert (loaded["read"], merged["read"]) == (rows + 1, 2 * rows + 1)
    assert [one["lost"] for one in (loaded, merged)] == [1, 2]
    assert [one["brought"] for one in (loaded, merged)] == [rows, rows]
    assert [one["staged"] for one in (loaded, merged)] == [2 * rows, 2 * rows]
    assert end == {"right": True, "rows": rows * 9 // 10}
