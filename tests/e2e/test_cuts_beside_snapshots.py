"""Cuts go on while a table is loaded and another repaired; both come into the cuts by themselves.

Two tables of a TiDB are written by the same transactions. What a cut has of both is equal.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import sqlalchemy as sa

from tests.e2e.live_source import changing
from tests.e2e.places import place_of
from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, shop_config
from tests.full import FULL
from tests.properties.test_cuts import watermark
from tests.tidb_front import next_tso
from tidesink import cuts
from tidesink.codecs.base import CodecOptions
from tidesink.config import Config, load_config
from tidesink.events import Column, ColumnType, Op, Row, TableId, TableSchema
from tidesink.sinks.state.sql_store import open_state_store
from tidesink.sinks.worker.control import change_control
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]
NAMES: Final = ("debit", "credit", "other")
_COLUMNS: Final = (
    Column("id", ColumnType("bigint", sql="bigint"), False, handle=True, primary_key=True),
    Column("amount", ColumnType("bigint", sql="bigint")),
)
_OPTIONS: Final = CodecOptions(enable_tidb_extension=True)


class Books:
    """Tables with the same rows at each commit, and their changefeed."""

    def __init__(self, url: str, servers: Servers, schema: str) -> None:
        self.schema, self._next = schema, 0
        self.history: list[tuple[int, int, int]] = []
        self._engine = sa.create_engine(url)
        self._feeds = dict[str, TableWriter]()
        with self._engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE `{schema}`")
            for name in NAMES:
                connection.exec_driver_sql(
                    f"CREATE TABLE `{schema}`.{name} (id BIGINT PRIMARY KEY, amount BIGINT)"
                )
        for name in NAMES:
            table = TableSchema(TableId(schema, name), _COLUMNS)
            self._feeds[name] = TableWriter(servers, table, protocol="canal-json", options=_OPTIONS)

    def work(self, lost: str = "") -> None:
        """A commit of one row in each table, and then its events with watermarks; one table's may be lost."""
        self._next += 1
        row: Row = {"id": self._next % 60, "amount": self._next}
        with self._engine.begin() as connection:
            # Before it is seen, as in TiDB: whoever sees it and asks then is told a later one.
            at = next_tso()
            for name in NAMES:
                place = f"`{self.schema}`.{name}"
                connection.execute(sa.text(f"REPLACE INTO {place} VALUES (:id, :amount)"), row)  # noqa: S608
        self.history.append((at, self._next % 60, self._next))
        for name, feed in self._feeds.items():
            record = feed.encoded(Op.INSERT, row, commit_ts=at)
            if name != lost:
                feed.send(record.key, record.value)
            feed.send(None, watermark(at))

    def rows_at(self, commit_ts: int) -> dict[int, int]:
        """What each of the tables had at an instant."""
        return {key: amount for at, key, amount in self.history if at <= commit_ts}

    def close(self) -> None:
        """Drop the tables."""
        with self._engine.begin() as connection:
            connection.exec_driver_sql(f"DROP DATABASE `{self.schema}`")
        self._engine.dispose()


@pytest.fixture
def books(tidb_url: str, servers: Servers) -> Iterator[Books]:
    found = Books(tidb_url, servers, f"books{uuid.uuid4().hex[:8]}")
    yield found
    found.close()


def _config(kind: str, request: pytest.FixtureRequest, folder: Path, servers: Servers, url: str) -> Config:
    source = {
        "brokers": servers["brokers"],
        "protocol": "canal-json",
        "enable-tidb-extension": True,
        "topics": f"{servers['prefix']}{{schema}}_{{table}}",
        "database": {"url": url, "chunk-rows": 10, "connections": 1},
    }
    tables = [{"match": "*.other", "snapshot": "initial"}]
    more = {"source": source, "tables": tables, "cuts": {"every": "1s"}, "batch": {"max-records": 40}}
    return load_config(
        shop_config(folder, servers, {**more, "target": place_of(kind, request, folder).target})
    )


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
