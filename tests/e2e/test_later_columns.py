"""A column that came after the first records of a topic without DDL: snapshots and comparisons know it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import sqlalchemy as sa

from tests.e2e.diffing import diff_config, differing, drain, table_of_diff
from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, schema_of
from tests.mysql_values import own_database
from tidesink.config import load_config
from tidesink.dev.lake_check import open_lake_table
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.runtime.control import change_control
from tidesink.sinks.state.sql_store import open_state_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]
REMARK: Final = Column("remark", ColumnType("varchar", length=40, sql="varchar(40)"))


def test_a_snapshot_of_a_quiet_topic_reads_a_column_that_came_later(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    """No record is left that tells of the column, when a new worker reads rows that have it."""
    with own_database(mariadb_url) as (connection, schema):
        table = TableId(schema.replace("`", "_").replace("%", "_"), "orders")
        connection.exec_driver_sql(f"CREATE DATABASE {table.schema}")
        connection.exec_driver_sql(f"USE {table.schema}")
        connection.exec_driver_sql("CREATE TABLE orders (id bigint PRIMARY KEY, name varchar(40))")
        columns = schema_of("orders").columns
        feed = TableWriter(servers, TableSchema(table, columns), protocol="debezium-json")
        source: dict[str, Any] = {"protocol": "debezium-json"}
        config = diff_config(tmp_path, servers, feed.topic, mariadb_url, source=source)

        def write(row: dict[str, Any], *, sent: bool = True) -> None:
            connection.execute(sa.text(f"REPLACE INTO orders VALUES ({', '.join(map(repr, row.values()))})"))  # noqa: S608
            if sent:
                feed.upsert(row)

        write({"id": 1, "name": "a"}, sent=False)
        write({"id": 2, "name": "b"})
        drain(config)
        connection.exec_driver_sql("ALTER TABLE orders ADD COLUMN remark varchar(40)")
        feed.schema = TableSchema(table, (*columns, REMARK))
        write({"id": 3, "name": "c", "remark": "new"})
        drain(config)
        write({"id": 1, "name": "a", "remark": "later"}, sent=False)
        write({"id": 4, "name": "d", "remark": "unsent"}, sent=False)
        with closing(open_state_store(load_config(config).state)) as store:
            started = lambda asked: replace(asked, snapshot=replace(asked.snapshot, started=1))  # noqa: E731
            change_control(store, "shop", table, started)
        drain(config)
        rows = open_lake_table(tmp_path / "lake" / table.schema / "orders").read().to_pylist()
        assert {row["id"]: row["remark"] for row in rows} == {1: "later", 2: None, 3: "new", 4: "unsent"}
        code, found = table_of_diff(config)
        assert (code, found["not_compared"], differing(found)) == (0, [], (0, 0, 0))
        connection.exec_driver_sql("UPDATE orders SET remark = 'other' WHERE id = 3")
        code, found = table_of_diff(config)
        assert (code, differing(found)) == (3, (1, 0, 0))
        connection.exec_driver_sql(f"DROP DATABASE {table.schema}")
