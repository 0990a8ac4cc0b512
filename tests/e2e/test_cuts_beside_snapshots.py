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

from tests.contracts.sql_beds import DATABASES
from tests.e2e.books import NAMES, Books, books, books_config
from tests.e2e.live_source import changing
from tests.e2e.places import place_of
from tests.e2e.replay import Servers
from tests.e2e.sql_beside import connected, one_snapshot, target_of
from tests.full import FULL, quick_on
from tidesink import cuts
from tidesink.config import Config, load_config
from tidesink.events import TableId
from tidesink.sinks.runtime.control import change_control
from tidesink.sinks.state.sql_store import open_state_store
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.target import SqlTarget
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


class _Readers:
    """Who reads a database beside its worker: all tables in one snapshot, again and again."""

    def __init__(self, books: Books, config: Config, connections: Connections) -> None:
        self._books, self._connections = books, connections
        self._target = SqlTarget(connections, config.target.model_dump()["table"])
        self.seen = list[tuple[int, set[str]]]()

    def look(self) -> None:
        """See the last cut, and the tables that it has, which are as the source was."""
        place = self._target.cut_log("shop").place
        cut, found = None, dict[str, dict[int, int]]()
        with one_snapshot(self._connections) as cursor:
            if not self._connections.dialect.tables.present(cursor, place):
                return
            cursor.execute(f"SELECT commit_ts FROM {place.location}")  # noqa: S608
            cut = cursor.fetchone()
            cursor.execute(f"SELECT source_table FROM {place.beside('_tidesink_excluded')}")  # noqa: S608
            excluded = {name for (name,) in cursor.fetchall()}
            for name in {*NAMES} - excluded if cut else ():
                location = self._target.place_of(TableId(self._books.schema, name)).location
                cursor.execute(f"SELECT id, amount FROM {location}")  # noqa: S608
                found[name] = dict(cursor.fetchall())
        if cut is None:
            return
        for name, rows in found.items():
            assert rows == self._books.rows_at(cut[0]), f"{name} at {cut[0]}"
        if not self.seen or self.seen[-1] != (cut[0], {*found}):
            self.seen.append((cut[0], {*found}))


@quick_on("postgres")
@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_nor_do_readers_of_a_database_see_more_than_the_cut_of_other_tables(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    servers: Servers,
    tidb_url: str,
    books: Books,
    kind: str,
) -> None:
    server = kind, DATABASES[kind](request)
    # The source is a database of the same server.
    target = {**target_of(server), "table": "copy_{schema}.{table}"}
    config = load_config(books_config(tmp_path, servers, tidb_url, target, snapshot="initial"))
    for _ in range(70):
        books.work()
    with connected(server) as connections:
        readers = _Readers(books, config, connections)

        def turn() -> None:
            """The next instant of the schedule comes by itself."""
            books.pass_a_second()
            with changing(readers.look, pause=0.05):
                _run(config, until="drained")
            readers.look()

        while not readers.seen or readers.seen[-1][1] != {*NAMES}:
            turn()
        _resync(config, TableId(books.schema, "debit"))
        for _ in range(10):
            books.work(lost="debit")
        before = len(readers.seen)
        turn()
        while readers.seen[-1][1] != {*NAMES}:
            turn()
    # It was left out, seen to be, and is repaired.
    assert [one for _, one in readers.seen[before:] if "debit" not in one and "credit" in one]
    assert books.rows_at(readers.seen[-1][0]) == books.rows_at(books.history[-1][0])
