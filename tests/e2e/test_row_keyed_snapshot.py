"""Rows without a key from the database, by TiDB's row ids, beside changes that have their row keys."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest
import sqlalchemy as sa

from tests.e2e.diffing import table_of_diff
from tests.e2e.live_source import changing, dropped
from tests.e2e.places import KINDS, place_of
from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, shop_config
from tests.full import FULL, quick_on
from tests.multisets import CREATE, OPTIONS, SCHEMA, change
from tests.servers import create_topics
from tests.tidb_front import TABLE_ID
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.config import Config, load_config
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import Row, TableId
from tidesink.sinks.runtime.control import change_control
from tidesink.sinks.state.sql_store import open_state_store
from tidesink.sinks.worker.run import run
from tidesink.typemap.target_schema import RowKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]

_ROWS: Final = 700
_VALUES: Final[tuple[Row, ...]] = tuple({"name": n, "amount": a} for n in ("a", "b") for a in (None, 1))


class _Visits:
    """A table without a key; its rows have an invisible number each, as in TiDB."""

    def __init__(self, engine: sa.Engine, servers: Servers) -> None:
        self.table = TableId(f"visits{uuid.uuid4().hex[:8]}", "visits")
        self.topic = f"{servers['prefix']}{self.table.schema}"
        self._engine, self._random, self._sent = engine, Random(5), 0
        self.schema = replace(SCHEMA, table=self.table)
        self._codec = CanalJsonCodec(options=OPTIONS, definitions=TableDefinitions([self.schema]))
        create_topics(servers["brokers"], {self.topic: 1})
        self._feed = TableWriter(
            servers, self.schema, protocol="canal-json", topic=self.topic, options=OPTIONS
        )
        place = f"`{self.table.schema}`.visits"
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE `{self.table.schema}`")
            connection.exec_driver_sql(
                f"CREATE TABLE {place} (name VARCHAR(20), amount INT, "
                "_tidb_rowid BIGINT NOT NULL AUTO_INCREMENT INVISIBLE, KEY (_tidb_rowid))"
            )
        self._feed.ddl(CREATE.replace("shop.visits", place))
        self._rows = sa.table("visits", *map(sa.column, ("name", "amount", "_tidb_rowid")))
        self._rows.schema = self.table.schema

    @property
    def table_id(self) -> int:
        query = sa.text(
            f"SELECT {TABLE_ID} FROM information_schema.tables WHERE table_schema = :name"  # noqa: S608
        )
        with self._engine.connect() as connection:
            return int(connection.execute(query, {"name": self.table.schema}).scalar_one())

    def load(self, count: int) -> None:
        """Rows from before the topic."""
        with self._engine.begin() as connection:
            rows = [dict(self._random.choice(_VALUES)) for _ in range(count)]
            connection.execute(self._rows.insert(), rows)

    def change(self, *, sends: bool = True) -> None:
        """A copy of a row comes, goes or becomes another; its event follows."""
        rows, number = self._rows, self._rows.c["_tidb_rowid"]
        after: Row | None = dict(self._random.choice(_VALUES))
        with self._engine.begin() as connection:
            least = self._random.randrange(_ROWS) if self._random.random() < 0.7 else 1 << 62
            query = sa.select(rows).where(number >= least).order_by(number).limit(1)
            found = connection.execute(query).mappings().one_or_none()
            before: Row | None = None
            if found is None:
                done: Any = connection.execute(rows.insert().values(**dict(after or {})))
                row_id = int(done.lastrowid)
            else:
                row_id, before = int(found["_tidb_rowid"]), {n: found[n] for n in ("name", "amount")}
                if self._random.random() < 0.5:
                    after = None
                    connection.execute(rows.delete().where(number == row_id))
                else:
                    connection.execute(rows.update().where(number == row_id).values(**dict(after or {})))
        if not sends:
            return
        event = change(RowKey(row_id, self.table_id), before, after, at=self._sent)
        self._sent += 1
        record = self._codec.encode(event._replace(table=self.table, schema=self.schema), topic=self.topic)
        assert record is not None
        self._feed.send(record.key, record.value)

    def numbered(self) -> dict[int, tuple[Any, ...]]:
        """All rows now, by their numbers."""
        with self._engine.connect() as connection:
            found = connection.execute(sa.select(self._rows)).mappings()
            return {row["_tidb_rowid"]: (row["name"], row["amount"]) for row in found}


@contextmanager
def _visits(url: str, servers: Servers) -> Iterator[_Visits]:
    engine = sa.create_engine(url)
    visits = _Visits(engine, servers)
    with dropped(engine, visits.table.schema):
        yield visits


def _config(folder: Path, servers: Servers, visits: _Visits, url: str, **more: Any) -> Path:
    source = {
        "brokers": servers["brokers"],
        "protocol": "canal-json",
        "enable-tidb-extension": True,
        "output-row-key": True,
        "topics": [visits.topic],
        "database": {"url": url, "chunk-rows": 250, "connections": 2},
    }
    usual = {"source": source, "defaults": {"snapshot": "initial"}, "batch": {"max-records": 500}}
    return shop_config(folder, servers, {**usual, **more})


def _run(config: Config, **how: Any) -> None:
    report = run(config, **how)
    assert report.exit_code == 0, [one.error for one in report.tables]


@pytest.mark.parametrize("kind", KINDS)
@quick_on("postgres")
def test_equal_rows_are_loaded_changed_and_repaired(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    tidb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """A snapshot while rows change, then a copy that lacks changes is compared and repaired."""
    place = place_of(kind, request, tmp_path)
    with _visits(tidb_url, servers) as visits:
        copy = TableId(f"copy_of_{visits.table.schema}", "visits")
        routes = [{"match": r"(\w+)\.(\w+)", "to": "copy_of_$1.$2"}]
        path = _config(tmp_path, servers, visits, tidb_url, target=place.target, routes=routes)

        config = load_config(path)

        def numbered() -> dict[int, tuple[Any, ...]]:
            rows = place.rows(copy) or []
            assert {row["_tidb_table_id"] for row in rows} == {visits.table_id}
            assert len({row["_tidb_rowid"] for row in rows}) == len(rows)
            return {row["_tidb_rowid"]: (row["name"], row["amount"]) for row in rows}

        visits.load(_ROWS)
        visits.change()
        with changing(visits.change):
            _run(config, batches=2)
        _run(config, until="drained")
        assert numbered() == visits.numbered()
        for _ in range(60):
            visits.change(sends=False)
        code, found = table_of_diff(path)
        assert code == 3
        assert min(found["only_at_source"], found["only_at_target"]) > 0
        with closing(open_state_store(config.state)) as store:
            asks = lambda asked: replace(  # noqa: E731
                asked, snapshot=asked.snapshot.start(time.time(), deletes=True)
            )
            change_control(store, config.pipeline, visits.table, asks)
        with changing(visits.change):
            _run(config, batches=4)
        _run(config, until="drained")
        assert numbered() == visits.numbered()


@FULL
def test_two_copies_of_equal_rows_are_compared(
    spark: SparkSession, tmp_path: Path, servers: Servers, tidb_url: str
) -> None:
    """A row of one copy is the one of the other that has its number, as TiDB gave it."""
    with _visits(tidb_url, servers) as visits:
        paths = []
        for name in ("here", "there"):
            (tmp_path / name).mkdir()
            paths.append(_config(tmp_path / name, servers, visits, tidb_url, pipeline=name))
        visits.load(40)
        visits.change()
        for path in paths:
            _run(load_config(path), until="drained")
        here, there = map(str, paths)
        code, found = table_of_diff(paths[0], "--against", there, "--where", "_tidb_rowid >= 20")
        assert (code, 0 < found["equal"] < 25) == (0, True)
        for _ in range(30):
            visits.change(sends=False)
        with closing(open_state_store(load_config(paths[1]).state)) as store:
            asks = lambda asked: replace(asked, snapshot=asked.snapshot.start(time.time(), deletes=True))  # noqa: E731
            change_control(store, "there", visits.table, asks)
        _run(load_config(paths[1]), batches=4)
        _, there_found = table_of_diff(paths[0], "--against", there)
        _, here_found = table_of_diff(paths[1], "--against", here)
        assert there_found["different"] == here_found["different"] > 0
        assert there_found["only_at_target"] == here_found["only_at_other"] > 0
