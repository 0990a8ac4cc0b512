"""``tidesink diff`` of a database with cuts: what is applied counts, whether readers see it yet or not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.e2e.books import Books, books, books_config
from tests.e2e.diffing import drain, table_of_diff
from tests.e2e.places import place_of
from tests.e2e.replay import Servers
from tests.full import FULL
from tidesink.cli.main import app
from tidesink.config import load_config
from tidesink.events import TableId
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["books"]
pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]


# What is applied is read before a cut as behind it: test_targets_sql_cuts.py, into each database.
@FULL
@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_database_with_cuts_is_compared_as_it_is_applied(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    tidb_url: str,
    books: Books,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    place = place_of(kind, request, tmp_path)
    # The source is a database of the same server.
    target = {**place.target, "table": "copy_{schema}.{table}"}
    config = books_config(tmp_path, servers, tidb_url, target)
    for _ in range(70):
        books.work()
    drain(config)
    debit = TableId(books.schema, "debit")
    # It holds back the next cut, and what the others apply is gathered.
    assert CliRunner().invoke(app, ["pause", "-c", str(config), f"{books.schema}.other"]).exit_code == 0
    for _ in range(20):
        books.work()
    books.pass_a_second()
    run(load_config(config), until="drained")
    applied = books.rows_at(books.history[-1][0])
    rows = place.rows(TableId(f"copy_{books.schema}", "debit"))
    assert rows is not None
    assert {row["id"]: row["amount"] for row in rows} != applied
    # A watermark may be left, which is not waited for without a worker.
    code, found = table_of_diff(config, str(debit), "--no-wait")
    assert (code, found["equal"], found["at_target"]) == (0, len(applied), len(applied))
    books.tamper("debit", 100)
    code, found = table_of_diff(config, str(debit), "--no-wait")
    assert (code, found["equal"], found["unsettled"]) == (3, len(applied), 1)
