"""A replay of dead letters undoes nothing that a resync repaired from the source's database."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from tests.e2e.live_source import dropped
from tests.e2e.replay import Servers
from tests.e2e.writing import ID, NAME, TableWriter, shop_config
from tests.full import FULL
from tidesink.cli.main import app
from tidesink.config import load_config
from tidesink.dev.lake_check import open_lake_table
from tidesink.events import Column, ColumnType, Op, TableId, TableSchema
from tidesink.sinks.runtime.control import SnapshotControl, change_control
from tidesink.sinks.state.sql_store import open_state_store
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]

DAY = Column("day", ColumnType("date", sql="date"))
# No calendar has it: a bad record under one policy, NULL under another.
NEVER = "0000-00-00"


class Books:
    """A table in MariaDB, a topic of its changes, and a copy in a lake."""

    def __init__(self, folder: Path, servers: Servers, url: str, engine: sa.Engine) -> None:
        self._folder, self._servers, self._url, self._engine = folder, servers, url, engine
        self.table = TableId(f"books{uuid.uuid4().hex[:8]}", "orders")
        self._writer = TableWriter(servers, TableSchema(self.table, (ID, NAME, DAY)), protocol="canal-json")
        columns = (sa.Column("id", sa.BigInteger), sa.Column("name", sa.String), sa.Column("day", sa.String))
        self._rows = sa.Table("orders", sa.MetaData(), *columns, schema=self.table.schema)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE `{self.table.schema}`")
            definition = "id bigint PRIMARY KEY, name varchar(40), day date"
            connection.exec_driver_sql(f"CREATE TABLE `{self.table.schema}`.orders ({definition})")
        self.config = self.with_zero_date("error")

    def with_zero_date(self, policy: str) -> Path:
        source = {
            "brokers": self._servers["brokers"],
            "protocol": "canal-json",
            "topics": [self._writer.topic],
            "database": {"url": self._url},
        }
        defaults = {"bad-record": "dead-letter", "zero-date": policy}
        return shop_config(self._folder, self._servers, {"source": source, "defaults": defaults})

    def commit(self, number: int, name: str | None) -> None:
        """A row at the source; None: it is deleted."""
        with self._engine.begin() as connection:
            connection.execute(self._rows.delete().where(self._rows.c.id == number))
            if name is not None:
                connection.execute(self._rows.insert().values(id=number, name=name, day="2026-01-01"))

    def send(self, number: int, name: str, day: str = "2026-01-01") -> None:
        """A change in the topic."""
        self._writer.upsert({"id": number, "name": name, "day": day})

    def send_damaged(self, number: int) -> None:
        """A change that can never be decoded."""
        found = self._writer.encoded(Op.INSERT, {"id": number, "name": "?", "day": "2026-01-01"})
        assert found.value is not None
        self._writer.send(found.key, found.value[:-1])

    def drain(self) -> None:
        report = run(load_config(self.config), until="drained")
        assert report.exit_code == 0, [table.error for table in report.tables]

    def resync(self, *words: str) -> None:
        """As a person asks for it, and a worker does it."""
        self._invoke("resync", str(self.table), *words)
        self.drain()

    def snapshot(self) -> None:
        config = load_config(self.config)
        with closing(open_state_store(config.state)) as store:
            asks = lambda asked: replace(asked, snapshot=_started(asked.snapshot))  # noqa: E731
            change_control(store, config.pipeline, self.table, asks)
        self.drain()

    def replay(self, *words: str, code: int = 0) -> dict[str, int]:
        """The counts of letters, and of events that were applied, without those that are 0."""
        shown = self._invoke("dlq", "replay", str(self.table), *words, "-o", "json", code=code)
        names = ("applied", "still_bad", "waiting", "expired", "settled", "unsure")
        found: Mapping[str, Any] = json.loads(shown)
        return {name: found[name] for name in names if found[name]}

    def names(self) -> dict[int, str]:
        rows = open_lake_table(self._folder / "lake" / self.table.schema / "orders").read().to_pylist()
        return {row["id"]: row["name"] for row in rows}

    def at_source(self) -> dict[int, str]:
        with self._engine.connect() as connection:
            return {row.id: row.name for row in connection.execute(sa.select(self._rows))}

    def _invoke(self, *words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*words, "--config", str(self.config)])
        assert done.exit_code == code, (done.output, done.exception)
        return done.stdout


def _started(asked: SnapshotControl) -> SnapshotControl:
    return asked.start(time.time())


@pytest.fixture
def books(tmp_path: Path, servers: Servers, mariadb_url: str) -> Iterator[Books]:
    engine = sa.create_engine(f"{mariadb_url}?charset=utf8mb4")
    found = Books(tmp_path, servers, mariadb_url, engine)
    with dropped(engine, found.table.schema):
        yield found


@pytest.mark.law("L3")
def test_letters_undo_nothing_that_a_resync_repaired(books: Books, spark: SparkSession) -> None:
    for number, name in ((1, "uno"), (2, "dos"), (3, "three")):
        books.commit(number, name)
        books.send(number, f"former {name}")
    books.send(1, "older", NEVER)  # 3
    books.send_damaged(1)  # 4: the change that made the source's row
    books.send(2, "older", NEVER)  # 5: what came after it is lost
    books.send(7, "truncated away", NEVER)  # 6
    books.send(3, "three")  # 7
    books.drain()
    books.resync("--key", "id=1")
    books.with_zero_date("null")
    # The damaged letter of the key stays: nothing tells what it is of.
    assert books.replay("0@3") == {"settled": 1}
    assert books.names() == {1: "uno", 2: "former dos", 3: "three"}
    # Of other keys the resync says nothing.
    assert books.replay("0@5") == {"applied": 1}
    assert books.names() == {1: "uno", 2: "older", 3: "three"}
    books.with_zero_date("error")
    books.send(2, "older still", NEVER)  # 8
    books.drain()
    books.resync()
    books.send(3, "drei", NEVER)  # 9: later than the resync
    books.commit(3, "drei")
    books.drain()
    assert books.names() == {1: "uno", 2: "dos", 3: "three"}
    books.with_zero_date("null")
    assert books.replay() == {"applied": 1, "settled": 3}
    assert books.names() == books.at_source() == {1: "uno", 2: "dos", 3: "drei"}
    assert books.replay() == {}


@FULL
def test_letters_behind_a_snapshot_or_within_a_range_are_told_by_their_keys(
    books: Books, spark: SparkSession
) -> None:
    for number in (1, 5):
        books.commit(number, "now")
        books.send(number, "former")
        books.send(number, "older", NEVER)  # 1, 3
    books.drain()
    books.resync("--where", "id >= 3")
    books.with_zero_date("null")
    assert books.replay("0@3") == {"settled": 1}
    books.with_zero_date("error")
    books.snapshot()
    books.with_zero_date("null")
    # A snapshot deletes nothing: the letter might be a delete.
    assert books.replay(code=3) == {"unsure": 1}
    assert books.names() == {1: "now", 5: "now"}
    books.resync("--key", "id=1")
    assert books.replay() == {"settled": 1}
    assert books.names() == {1: "now", 5: "now"}
