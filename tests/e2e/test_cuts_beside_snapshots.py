"""Cuts go on while a table is loaded and another repaired; both come into the cuts by themselves.

Two tables of a TiDB are written by the same transactions. What a cut has of both is equal.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.books import NAMES, Books, books, books_config
from tests.e2e.live_source import changing
from tests.e2e.places import place_of
from tests.e2e.replay import Servers
from tests.full import FULL
from tidesink import cuts
from tidesink.config import Config, load_config
from tidesink.events import TableId
from tidesink.sinks.state.sql_store import open_state_store
from tidesink.sinks.worker.control import change_control
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["books"]
pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]


def _config(kind: str, request: pytest.FixtureRequest, folder: Path, servers: Servers, url: str) -> Config:
    target = place_of(kind, request, folder).target
    return load_config(books_config(folder, servers, url, target, snapshot="initial"))


def _run(config: Config, **how: Any) -> None:
    report = run(config, **how)
    assert report.exit_code == 0, [one.error for one in report.tables]


def _resync(config: Config, table: TableId) -> None:
    with closing(open_state_store(config.state)) as store:
        change_control(
            store,
            config.pipeline,
            table,
            lambda asked: replace(asked, snapshot=asked.snapshot.start(time.time(), deletes=True)),
        )


def _checked(spark: SparkSession, config: Config, books: Books) -> list[set[str]]:
    """The names of the tables of each cut, oldest first; each has what the source had."""
    found = []
    for cut in reversed(cuts.cut_log(spark, config).cuts()):
        frames = cuts.open(spark, config, at=cut.commit_ts)
        wanted = books.rows_at(cut.commit_ts)
        for name, frame in frames.items():
            rows = {row["id"]: row["amount"] for row in frame.collect()}
            assert rows == wanted, f"{name} at {cut.commit_ts}"
        found.append({name.split(".")[1] for name in frames})
    return found


@FULL
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_cuts_go_on_while_a_table_is_loaded_and_another_repaired(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    servers: Servers,
    tidb_url: str,
    books: Books,
    kind: str,
) -> None:
    config = _config(kind, request, tmp_path, servers, tidb_url)
    for _ in range(70):
        books.work()
    with changing(books.work, pause=0.1):
        _run(config, batches=5)
    # A change that is read behind the repair, and whose successor is lost, would take its row back.
    _run(config, until="drained")
    before = len(_checked(spark, config, books))
    _resync(config, TableId(books.schema, "debit"))
    for _ in range(10):
        books.work(lost="debit")
    with changing(books.work, pause=0.1):
        _run(config, batches=5)
    seen = list[set[str]]()
    # The next instant of the schedule comes by itself.
    while not seen or seen[-1] != {*NAMES}:
        books.work()
        _run(config, until="drained")
        seen = _checked(spark, config, books)
    assert [one for one in seen[before:] if "debit" not in one and "credit" in one]
