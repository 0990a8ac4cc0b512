"""A worker's Delta tables by their names in Spark's catalog."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, schema_of, shop_config
from tests.full import FULL
from tidesink.config import load_config
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET = {"type": "delta", "path": "./lake", "catalog-table": "named_{schema}.{table}"}


@FULL
def test_readers_find_tables_by_name(spark: SparkSession, tmp_path: Path, servers: Servers) -> None:
    writer = TableWriter(servers, schema_of("customers"))
    writer.upsert({"id": 1, "name": "one"})
    writer.upsert({"id": 2, "name": "two"})
    config = shop_config(tmp_path, servers, {"target": TARGET})
    try:
        assert run(load_config(config), until="drained").exit_code == 0
        writer.delete({"id": 1, "name": "one"})
        assert run(load_config(config), until="drained").exit_code == 0
        rows = spark.table("named_shop.customers").select("id", "name").collect()
        assert [tuple(row) for row in rows] == [(2, "two")]
    finally:
        spark.sql("DROP SCHEMA IF EXISTS named_shop CASCADE")
