"""A column got a type that none holds with its old one: each way out that the message names works."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.e2e.diffing import diff_config, differing, drain, table_of_diff
from tests.e2e.replay import Servers
from tests.e2e.writing import ID, TableWriter
from tests.mysql_values import own_database
from tidesink.config import load_config
from tidesink.dev.lake_check import open_lake_table
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.state.sql_store import open_state_store
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]
DATED: Final = Column("born", ColumnType("date", sql="date"))
FLAGGED: Final = Column("born", ColumnType("tinyint", sql="tinyint"))


def _error(config: Path, table: TableId) -> str:
    settings = load_config(config)
    with closing(open_state_store(settings.state)) as store:
        status = store.status_of(settings.pipeline, table)
    assert status is not None
    return status.error or ""


def _rows(folder: Path, table: TableId) -> dict[int, dict[str, Any]]:
    rows = open_lake_table(folder / "lake" / table.schema / table.name).read().to_pylist()
    return {row["id"]: row for row in rows}


def test_the_ways_out_of_a_type_change_work(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    """The column is left out; or the table is loaded again beside, from behind the change."""
    with own_database(mariadb_url) as (connection, schema):
        table = TableId(schema.replace("`", "_").replace("%", "_"), "people")
        connection.exec_driver_sql(f"CREATE DATABASE {table.schema}")
        connection.exec_driver_sql(f"USE {table.schema}")
        connection.exec_driver_sql("CREATE TABLE people (id bigint PRIMARY KEY, born date)")
        feed = TableWriter(servers, TableSchema(table, (ID, DATED)), protocol="debezium-json")
        source: dict[str, Any] = {"protocol": "debezium-json"}
        config = diff_config(tmp_path, servers, feed.topic, mariadb_url, source=source)

        def write(row: dict[str, Any], *, sent: bool = True) -> None:
            values = ", ".join(map(repr, row.values()))
            connection.exec_driver_sql(f"REPLACE INTO people VALUES ({values})")  # noqa: S608
            if sent:
                feed.upsert(row)

        write({"id": 1, "born": "2020-01-01"}, sent=False)
        write({"id": 2, "born": "2020-01-02"})
        drain(config)
        connection.exec_driver_sql("UPDATE people SET born = NULL")
        connection.exec_driver_sql("ALTER TABLE people MODIFY born tinyint")
        feed.schema = TableSchema(table, (ID, FLAGGED))
        for row in ({"id": 1, "born": 1}, {"id": 2, "born": 0}):
            write(row, sent=False)
        write({"id": 3, "born": 1})
        assert run(load_config(config), until="drained").exit_code == 3
        error = _error(config, table)
        assert "add born to except_column_list" in error
        assert "with a start: after the change" in error

        # Loaded again beside: the old records are in the topic still. It waits for a record of its own.
        (tmp_path / "again").mkdir()
        settings = {**json.loads(config.read_text()), "pipeline": "again"}
        settings["defaults"] = {"snapshot": "initial", "start": "latest"}
        again = tmp_path / "again" / "again.yaml"
        again.write_text(json.dumps(settings))
        drain(again)
        write({"id": 4, "born": 1})
        drain(again)
        expected = {1: 1, 2: 0, 3: 1, 4: 1}
        assert {key: row["born"] for key, row in _rows(again.parent, table).items()} == expected
        # A new worker plans by the records from the start on, too.
        write({"id": 2, "born": 7})
        drain(again)
        assert _rows(again.parent, table)[2]["born"] == 7
        code, found = table_of_diff(again)
        assert (code, found["not_compared"], differing(found)) == (0, [], (0, 0, 0))

        # Without the column the table goes on where it waits.
        settings = json.loads(config.read_text())
        settings["defaults"]["except_column_list"] = ["born"]
        config.write_text(json.dumps(settings))
        drain(config)
        assert _rows(tmp_path, table).keys() == {1, 2, 3, 4}
        connection.exec_driver_sql(f"DROP DATABASE {table.schema}")
