"""Changes of a table's columns by DDL: what waits is shown, others go on, and what is accepted is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from typer.testing import CliRunner

from tests.contracts.sql_beds import postgres_database
from tests.e2e.places import place_of
from tests.e2e.replay import Servers
from tests.e2e.writing import ID, TableWriter, lake_rows, schema_of, shop_config
from tests.full import FULL
from tests.servers import create_topics
from tidesink.cli.main import app
from tidesink.cli.status import read_statuses
from tidesink.config import load_config
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.runtime.observers import TableReport
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LABEL = Column("label", ColumnType("varchar", length=10, sql="varchar(10)"), default="basic")


class Shop:
    """A topic of two tables, ``told`` and ``other``, and the pipeline that reads it into a lake."""

    def __init__(self, folder: Path, servers: Servers, **policies: str) -> None:
        self.folder, self.servers = folder, servers
        self.topic = f"{servers['prefix']}cdc"
        create_topics(servers["brokers"], {self.topic: 2})
        self.reported, self.other = self.writer("told"), self.writer("other")
        self.configure({"defaults": {"schema-changes": policies}})
        for name in ("told", "other"):
            self.reported.ddl(f"CREATE TABLE shop.{name} (id BIGINT PRIMARY KEY, name VARCHAR(40))")

    def configure(self, more: dict[str, Any], folder: Path | None = None) -> None:
        """Another pipeline over the same topic, where a folder is given."""
        self.folder = folder or self.folder
        self.folder.mkdir(exist_ok=True)
        source = {"brokers": self.servers["brokers"], "protocol": "canal-json", "topics": [self.topic]}
        self.path = shop_config(self.folder, self.servers, {"source": source, **more})
        self.config = load_config(self.path)

    def writer(self, name: str, *columns: Column) -> TableWriter:
        return TableWriter(self.servers, schema_of(name, *columns), protocol="canal-json", topic=self.topic)

    def drain(self) -> dict[str, TableReport]:
        return {table.table.name: table for table in run(self.config, until="drained").tables}

    def states(self) -> dict[str, str]:
        return {name: table.state for name, table in self.drain().items()}

    def status(self, name: str = "told") -> TableStatus:
        return next(one for one in read_statuses(self.config) if one.table.name == name)

    def tidesink(self, *words: str) -> str:
        found = CliRunner().invoke(app, [*words, "-c", str(self.path)])
        assert found.exit_code == 0, found.output
        return found.output

    def values(self, column: str, name: str = "told") -> dict[int, Any]:
        return {key: row.get(column, "no column") for key, row in lake_rows(self.folder, name).items()}

    @contextmanager
    def working(self) -> Iterator[None]:
        """A worker at work meanwhile."""
        stop = StopFlag()
        worker = threading.Thread(target=run, args=(self.config,), kwargs={"stop": stop})
        worker.start()
        try:
            yield
        finally:
            stop.set()
            worker.join()


def _wait(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.2)


# Another type waits below; what is accepted: tests/contracts/test_changes_that_wait.py.
@FULL
def test_an_added_column_waits_until_it_is_accepted(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    shop = Shop(tmp_path, servers, add="pause")
    shop.reported.upsert({"id": 1, "name": "one"})
    shop.other.upsert({"id": 1, "name": "eins"})
    assert shop.states() == {"told": "IDLE", "other": "IDLE"}
    shop.reported.ddl("ALTER TABLE shop.told ADD COLUMN label VARCHAR(10) DEFAULT 'basic'")
    shop.writer("told", LABEL).upsert({"id": 2, "name": "two", "label": "gold"})
    shop.other.upsert({"id": 2, "name": "zwei"})
    assert shop.states() == {"told": "PAUSED", "other": "IDLE"}
    assert set(lake_rows(tmp_path, "other")) == {1, 2}
    assert shop.values("label") == {1: "no column"}
    (pending,) = shop.status().details["pending"]
    assert (pending["kind"], pending["column"], pending["to"]) == ("add", "label", "varchar(10)")
    # Looked at again without being accepted, it waits again.
    shop.tidesink("resume", "shop.told")
    assert shop.states()["told"] == "PAUSED"
    assert "tidesink ddl approve shop.told" in (shop.status().error or "")
    shop.tidesink("ddl", "approve", "shop.told")
    assert shop.states()["told"] == "IDLE"
    assert shop.values("label") == {1: "basic", 2: "gold"}


@FULL
def test_an_added_column_can_be_left_out(spark: SparkSession, tmp_path: Path, servers: Servers) -> None:
    shop = Shop(tmp_path, servers, add="ignore")
    shop.reported.upsert({"id": 1, "name": "one"})
    shop.drain()
    shop.reported.ddl("ALTER TABLE shop.told ADD COLUMN label VARCHAR(10) DEFAULT 'basic'")
    shop.writer("told", LABEL).upsert({"id": 2, "name": "two", "label": "gold"})
    (warning,) = shop.drain()["told"].warnings
    assert "column label" in warning
    assert lake_rows(tmp_path, "told") == {1: {"id": 1, "name": "one"}, 2: {"id": 2, "name": "two"}}


def test_another_type_waits_and_the_worker_goes_on(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    """With a worker at work all the time: the pause, the other table, the rest, and going on."""
    shop = Shop(tmp_path, servers)
    shop.reported.upsert({"id": 1, "name": "one"})
    shop.other.upsert({"id": 1, "name": "eins"})
    shop.drain()
    with shop.working():
        shop.reported.ddl("ALTER TABLE shop.told MODIFY COLUMN name BIGINT")
        number = Column("name", ColumnType("bigint", sql="bigint"))
        shop.reported.schema = TableSchema(TableId("shop", "told"), (ID, number))
        shop.reported.upsert({"id": 2, "name": 7})
        _wait(lambda: shop.status().state == "PAUSED")
        (pending,) = shop.status().details["pending"]
        assert (pending["kind"], pending["from"], pending["to"]) == ("type", "string", "bigint")
        assert pending["accepts"] == []
        shop.tidesink("pause", "shop.other")
        _wait(lambda: shop.status("other").state == "PAUSED")
        shop.other.upsert({"id": 2, "name": "zwei"})
        time.sleep(2)
        assert set(lake_rows(tmp_path, "other")) == {1}
        shop.tidesink("resume", "shop.other")
        _wait(lambda: set(lake_rows(tmp_path, "other")) == {1, 2})
    # Nobody resumed it: a worker that starts finds it resting as before.
    shop.tidesink("pause", "shop.other")
    assert shop.states() == {"told": "PAUSED", "other": "PAUSED"}


SIZE = Column("size", ColumnType("bigint", sql="bigint"))
TITLE = Column("title", ColumnType("varchar", length=40, sql="varchar(40)"))
APPLIED = {"drop": "apply", "rename": "apply"}
ENDED: Final[dict[int, dict[str, Any]]] = {
    1: {"id": 1, "title": "one"},
    2: {"id": 2, "title": "two"},
    3: {"id": 3, "title": "three"},
    4: {"id": 4, "title": None},
}


def _write_old_rows(shop: Shop) -> None:
    shop.reported.ddl("ALTER TABLE shop.told ADD COLUMN size BIGINT", commit_ts=2)
    shop.reported.schema = schema_of("told", SIZE)
    shop.reported.upsert({"id": 1, "name": "one", "size": 1}, partition=1)


def _rename_and_drop(shop: Shop) -> None:
    """DDL on one partition; on the other rows of after it, and rows of before it that come late."""
    shop.reported.ddl("ALTER TABLE shop.told RENAME COLUMN name TO title, DROP COLUMN size", commit_ts=3)
    renamed = shop.writer("told")
    renamed.schema = TableSchema(TableId("shop", "told"), (ID, TITLE))
    renamed.upsert({"id": 3, "title": "three"}, partition=1)
    shop.reported.upsert({"id": 2, "name": "two", "size": 2}, partition=1)
    shop.reported.upsert({"id": 4, "name": None, "size": 4}, partition=1)


def test_columns_are_renamed_and_dropped_however_the_topic_is_cut(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    shop = Shop(tmp_path, servers, **APPLIED)
    _write_old_rows(shop)
    assert shop.states() == {"told": "IDLE"}
    assert shop.values("size") == {1: 1}
    _rename_and_drop(shop)
    assert shop.states() == {"told": "IDLE"}
    assert lake_rows(shop.folder, "told") == ENDED
    # All of it at once, and record by record: rows of before the DDL that are read when it is known already.
    for size in (500, 2):
        more = {"defaults": {"schema-changes": APPLIED}, "batch": {"max-records": size}}
        shop.configure(more, tmp_path / f"by-{size}")
        assert shop.states() == {"told": "IDLE"}
        assert lake_rows(shop.folder, "told") == ENDED


@FULL
def test_a_database_follows_renames_and_drops(
    spark: SparkSession, tmp_path: Path, servers: Servers, request: pytest.FixtureRequest
) -> None:
    import psycopg

    place = postgres_database(request)
    shop = Shop(tmp_path, servers)
    url = f"postgresql://{place.host}:{place.port}/{place.database}"
    target = {"type": "postgres", "url": url, "user": place.user, "password": place.password}
    shop.configure({"defaults": {"schema-changes": APPLIED}, "target": target})
    _write_old_rows(shop)
    assert shop.states() == {"told": "IDLE"}
    _rename_and_drop(shop)
    assert shop.states() == {"told": "IDLE"}
    with psycopg.connect(
        host=place.host, port=place.port, dbname=place.database, user=place.user, password=place.password
    ) as connection:
        rows = connection.execute("SELECT * FROM shop.told ORDER BY id").fetchall()
    assert rows == [tuple(row.values()) for row in ENDED.values()]


@FULL
def test_a_rename_waits_where_nothing_is_said(spark: SparkSession, tmp_path: Path, servers: Servers) -> None:
    shop = Shop(tmp_path, servers)
    _write_old_rows(shop)
    shop.other.upsert({"id": 1, "name": "eins"})
    assert shop.states() == {"told": "IDLE", "other": "IDLE"}
    _rename_and_drop(shop)
    shop.other.upsert({"id": 2, "name": "zwei"})
    assert shop.states() == {"told": "PAUSED", "other": "IDLE"}
    assert set(lake_rows(tmp_path, "other")) == {1, 2}
    assert lake_rows(tmp_path, "told") == {1: {"id": 1, "name": "one", "size": 1}}
    (pending,) = shop.status().details["pending"]
    assert (pending["kind"], pending["from"], pending["to"]) == ("rename", "name", "title")
    shop.tidesink("ddl", "approve", "shop.told")
    assert shop.states()["told"] == "IDLE"
    # The column that was dropped stays, as nothing else was said: NULL in rows that have it no more.
    sizes = {1: 1, 2: 2, 3: None, 4: 4}
    assert lake_rows(tmp_path, "told") == {key: {**row, "size": sizes[key]} for key, row in ENDED.items()}


@FULL
def test_a_narrower_type_waits_where_it_is_asked_for_and_can_be_ignored(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    shop = Shop(tmp_path, servers, narrow="pause")
    _write_old_rows(shop)
    shop.drain()
    shop.reported.ddl("ALTER TABLE shop.told MODIFY COLUMN size INT", commit_ts=3)
    shop.reported.schema = schema_of("told", Column("size", ColumnType("int", sql="int")))
    shop.reported.upsert({"id": 2, "name": "two", "size": 2})
    assert shop.states() == {"told": "PAUSED"}
    (pending,) = shop.status().details["pending"]
    assert (pending["kind"], pending["from"], pending["to"]) == ("narrow", "bigint", "int")
    shop.tidesink("ddl", "reject", "shop.told")
    assert shop.states() == {"told": "IDLE"}
    assert shop.values("size") == {1: 1, 2: 2}


@FULL
@pytest.mark.parametrize("kind", ["iceberg", "postgres", "mysql"])
def test_other_targets_wait_and_go_on_where_it_is_accepted(
    spark: SparkSession, tmp_path: Path, servers: Servers, kind: str, request: pytest.FixtureRequest
) -> None:
    place = place_of(kind, request, tmp_path)
    shop = Shop(tmp_path, servers)
    shop.configure({"defaults": {"schema-changes": {"rename": "pause"}}, "target": place.target})

    def rows() -> list[dict[str, Any]]:
        return sorted(place.rows(shop.reported.schema.table) or (), key=lambda row: row["id"])

    shop.reported.upsert({"id": 1, "name": "one"})
    assert shop.states() == {"told": "IDLE"}
    shop.reported.ddl(
        "ALTER TABLE shop.told RENAME COLUMN name TO title, ADD COLUMN size BIGINT", commit_ts=2
    )
    renamed = shop.writer("told")
    renamed.schema = TableSchema(TableId("shop", "told"), (ID, TITLE, SIZE))
    renamed.upsert({"id": 2, "title": "two", "size": 2})
    assert shop.states() == {"told": "PAUSED"}
    assert {one["kind"] for one in shop.status().details["pending"]} == {"rename"}
    assert rows() == [{"id": 1, "name": "one"}]
    shop.tidesink("ddl", "approve", "shop.told")
    assert shop.states() == {"told": "IDLE"}
    assert rows() == [{"id": 1, "title": "one", "size": None}, {"id": 2, "title": "two", "size": 2}]
