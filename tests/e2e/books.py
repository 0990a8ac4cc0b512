"""Tables of a TiDB that are written by the same transactions, with their changefeed, and a pipeline of cuts.

What a cut has of two of them is equal.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, shop_config
from tests.properties.test_cuts import watermark
from tests.tidb_front import next_tso
from tidesink.codecs.base import CodecOptions
from tidesink.events import Column, ColumnType, Op, Row, TableId, TableSchema

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

    def pass_a_second(self) -> None:
        """Let an instant of the cuts go by that is behind all rows, and send the watermark of it."""
        time.sleep(1.1)
        for feed in self._feeds.values():
            feed.send(None, watermark(next_tso()))

    def tamper(self, name: str, key: int) -> None:
        """A row that no event tells of."""
        with self._engine.begin() as connection:
            connection.exec_driver_sql(f"INSERT INTO `{self.schema}`.{name} VALUES ({key}, 0)")  # noqa: S608

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


def books_config(
    folder: Path, servers: Servers, url: str, target: Mapping[str, Any], *, snapshot: str = "never"
) -> Path:
    """A pipeline of all tables with a cut a second; ``snapshot``: of ``other``."""
    source = {
        "brokers": servers["brokers"],
        "protocol": "canal-json",
        "enable-tidb-extension": True,
        "topics": f"{servers['prefix']}{{schema}}_{{table}}",
        "database": {"url": url, "chunk-rows": 10, "connections": 1},
    }
    tables = [{"match": "*.other", "snapshot": snapshot}]
    more = {"source": source, "tables": tables, "cuts": {"every": "1s"}, "batch": {"max-records": 40}}
    return shop_config(folder, servers, {**more, "target": target})
