"""A table that gets an earlier schema again, whose id the registry gives again: ADD COLUMN; DROP COLUMN."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.e2e.diffing import diff_config, drain
from tests.e2e.replay import Servers
from tests.e2e.writing import ID, NAME, TableWriter
from tests.full import FULL
from tests.mysql_values import own_database
from tidesink.config import load_config
from tidesink.dev.lake_check import open_lake_table
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.runtime.control import change_control
from tidesink.sinks.state.sql_store import open_state_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]
ADDED: Final = Column("c", ColumnType("int", sql="int"), default="7")
UNTOLD: Final = Column("d", ColumnType("int", sql="int"), default="9")


def _rows(folder: Path, table: TableId, name: str) -> dict[int, int | None]:
    rows = open_lake_table(folder / "lake" / table.schema / table.name).read().to_pylist()
    return {row["id"]: row[name] for row in rows}


@pytest.mark.parametrize("protocol", ["flat-avro", pytest.param("debezium-avro", marks=FULL)])
def test_rows_after_the_drop_are_null_and_a_resync_ends(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str, protocol: str
) -> None:
    """Also where no row tells that a column was dropped."""
    with own_database(mariadb_url) as (connection, schema):
        table = TableId(schema.replace("`", "_").replace("%", "_"), "orders")
        for statement in (
            f"CREATE DATABASE {table.schema}",
            f"USE {table.schema}",
            "CREATE TABLE orders (id bigint PRIMARY KEY, name varchar(40))",
        ):
            connection.exec_driver_sql(statement)
        feed = TableWriter(servers, TableSchema(table, (ID, NAME)), protocol=protocol)
        source: dict[str, Any] = {"protocol": protocol, "schema-registry": servers["registry_url"]}

        def config(folder: str) -> Path:
            (tmp_path / folder).mkdir()
            tables = [{"name": str(table), "topic": feed.topic}]
            more = {"source": source, "defaults": {"snapshot": "never"}, "tables": tables}
            return diff_config(tmp_path / folder, servers, feed.topic, mariadb_url, **more)

        def alter(change: str, *columns: Column) -> None:
            connection.exec_driver_sql(f"ALTER TABLE orders {change}")
            feed.schema = TableSchema(table, (ID, NAME, *columns))

        def write(**row: Any) -> None:
            names = ", ".join(row)
            values = ", ".join(map(repr, row.values()))
            connection.exec_driver_sql(f"INSERT INTO orders ({names}) VALUES ({values})")  # noqa: S608
            feed.upsert(row)

        live = config("live")
        write(id=1, name="before")
        drain(live)
        alter("ADD COLUMN c int DEFAULT 7", ADDED)
        write(id=2, name="with", c=5)
        drain(live)
        alter("DROP COLUMN c")
        write(id=3, name="after")
        drain(live)
        write(id=4, name="later")
        drain(live)
        expected = {1: 7, 2: 5, 3: None, 4: None}
        assert _rows(tmp_path / "live", table, "c") == expected
        drain(config("late"))
        assert _rows(tmp_path / "late", table, "c") == expected
        alter("ADD COLUMN d int DEFAULT 9", UNTOLD)
        write(id=5, name="told", d=1)
        drain(live)
        alter("DROP COLUMN d")
        connection.exec_driver_sql("UPDATE orders SET name = 'unsent'")
        with closing(open_state_store(load_config(live).state)) as store:
            now = time.time()
            change_control(store, "shop", table, lambda one: replace(one, snapshot=one.snapshot.start(now)))
        drain(live)
        names = ("name", "c", "d")
        found = [_rows(tmp_path / "live", table, name) for name in names]
        assert found == [dict.fromkeys(range(1, 6), value) for value in ("unsent", None, None)]
        connection.exec_driver_sql(f"DROP DATABASE {table.schema}")
