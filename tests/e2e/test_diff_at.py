"""``tidesink diff --at``: the tables of a cut are compared with the source as of its instant."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from tests.e2e.diffing import differing, table_of_diff
from tests.e2e.live_source import dropped
from tests.e2e.places import place_of
from tests.e2e.replay import Servers
from tests.e2e.writing import ID, NAME, TableWriter, shop_config
from tests.full import quick_on
from tests.servers import create_topics
from tests.tidb_front import next_tso
from tidesink.cli.main import app
from tidesink.codecs.base import CodecOptions
from tidesink.config import load_config
from tidesink.events import LOGICAL_BITS, Op, TableId, TableSchema
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]
_ROWS = 40


class _Accounts:
    """A table that the database can show as it was, whose changes go to a topic of one partition."""

    def __init__(self, engine: sa.Engine, servers: Servers) -> None:
        self.name = TableId(f"then{uuid.uuid4().hex[:8]}", "accounts")
        self.topic = f"{servers['prefix']}{self.name.schema}"
        self._engine = engine
        self._rows = sa.table("accounts", sa.column("id"), sa.column("name"), schema=self.name.schema)
        create_topics(servers["brokers"], {self.topic: 1})
        schema, options = TableSchema(self.name, (ID, NAME)), CodecOptions(enable_tidb_extension=True)
        self._feed = TableWriter(servers, schema, protocol="canal-json", topic=self.topic, options=options)
        create = f"CREATE TABLE `{self.name.schema}`.accounts (id BIGINT PRIMARY KEY, name VARCHAR(40))"
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE `{self.name.schema}`")
            connection.exec_driver_sql(f"{create} WITH SYSTEM VERSIONING")
        self._feed.ddl(create)

    def insert(self, number: int, name: str, *, sends: bool = True) -> None:
        """A new row."""
        self._commit(self._rows.insert().values(id=number, name=name))
        self._send(Op.INSERT, {"id": number, "name": name}, sends=sends)

    def update(self, number: int, name: str, *, sends: bool = True) -> None:
        """Another name of a row."""
        self._commit(self._rows.update().where(self._rows.c.id == number).values(name=name))
        self._send(Op.UPDATE, {"id": number, "name": name}, sends=sends)

    def delete(self, number: int, *, sends: bool = True) -> None:
        """A row goes."""
        self._commit(self._rows.delete().where(self._rows.c.id == number))
        self._send(Op.DELETE, {"id": number, "name": "gone"}, sends=sends)

    def pass_a_second(self) -> int:
        """Let a whole second begin, and send a watermark; the commit_ts at which the last second began."""
        goal = int(time.time()) + 1
        while time.time() < goal + 0.01:
            time.sleep(0.01)
        tso = next_tso()
        self._feed.watermark(tso)
        return (tso >> LOGICAL_BITS) // 1000 * 1000 << LOGICAL_BITS

    def _commit(self, statement: Any) -> None:
        with self._engine.begin() as connection:
            connection.execute(statement)

    def _send(self, op: Op, row: dict[str, Any], *, sends: bool) -> None:
        if sends:
            before = row if op is Op.UPDATE else None
            record = self._feed.encoded(op, row, before=before, commit_ts=next_tso())
            self._feed.send(record.key, record.value)


@contextmanager
def _accounts(url: str, servers: Servers) -> Iterator[_Accounts]:
    engine = sa.create_engine(url)
    found = _Accounts(engine, servers)
    with dropped(engine, found.name.schema):
        yield found


def _config(folder: Path, servers: Servers, accounts: _Accounts, url: str, target: dict[str, Any]) -> Path:
    source = {
        "brokers": servers["brokers"],
        "protocol": "canal-json",
        "enable-tidb-extension": True,
        "topics": [accounts.topic],
        "database": {"url": url, "chunk-rows": 15, "connections": 2},
    }
    return shop_config(folder, servers, {"source": source, "target": target, "cuts": {"every": "1s"}})


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@quick_on("delta")
def test_a_cut_is_compared_with_the_source_as_of_its_instant(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    tidb_url: str,
    mariadb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """Each side has other rows by now, some without an event, and the first of two cuts is right."""
    place = place_of(kind, request, tmp_path)
    with _accounts(mariadb_url, servers) as accounts:
        path = _config(tmp_path, servers, accounts, tidb_url, place.target)
        for number in range(_ROWS):
            accounts.insert(number, f"name {number}")
        accounts.delete(7)
        first = accounts.pass_a_second()
        assert run(load_config(path), until="drained").exit_code == 0
        # No event tells of these, which the second cut lacks.
        accounts.update(1, "other", sends=False)
        accounts.delete(2, sends=False)
        accounts.insert(100, "new", sends=False)
        accounts.update(3, "sent")
        second = accounts.pass_a_second()
        assert run(load_config(path), until="drained").exit_code == 0
        # What comes behind a cut is no matter of its, nor is it waited for.
        accounts.update(4, "later")
        accounts.update(1, "later still", sends=False)
        accounts.delete(5, sends=False)

        code, found = table_of_diff(path, "--at", str(second - 1))
        # The second run may have published the seconds between, too.
        assert first <= found["commit_ts"] < second
        assert (code, found["equal"]) == (0, _ROWS - 1)
        code, found = table_of_diff(path, "--at", "2100-01-01", "--values")
        assert (code, found["commit_ts"], found["equal"]) == (3, second, _ROWS - 3)
        assert differing(found) == (1, 1, 1)
        (changed,) = (one for one in found["differences"] if one["kind"] == "different")
        assert (changed["key"], changed["columns"]) == ({"id": "1"}, ["name"])
        assert changed["values"] == {"name": {"source": "other", "target": "name 1"}}

        # MariaDB itself has no such instants.
        path = _config(tmp_path, servers, accounts, mariadb_url, place.target)
        refused = CliRunner().invoke(app, ["diff", "-c", str(path), "--at", str(second), str(accounts.name)])
        assert refused.exit_code == 2
        assert "cannot be read as of an earlier moment" in refused.output + str(refused.exception)
