"""A column that the config leaves out for a while, through a worker's task: what rows from then have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contracts.coded_changes import Changefeed, placed
from tests.contracts.coded_table import config_of, open_table
from tests.contracts.targets_bed import Bed
from tests.memory_target import MemoryTarget
from tidesink.events import TableId, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
TABLE = TableId("shop", "orders")
CREATE = "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, status VARCHAR(9) DEFAULT 'new')"
ALTER = "ALTER TABLE shop.orders ADD COLUMN late VARCHAR(9) DEFAULT 'no'"


def test_its_default_is_not_taken_for_the_values_that_were_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Changefeed("flat-avro", TableSchema(TABLE, ()))
    feed.define(CREATE)
    feed.put(1, "paid")
    feed.put(2, "void")
    feed.add_columns(ALTER, {"late": "no"})
    feed.put(2, "void", "yes")
    target = MemoryTarget()
    bed = Bed("memory", target, target.rows, lambda: target)
    config = config_of(feed)
    table = open_table(bed, spark, tmp_path, feed=feed, messages=placed(feed.records), config=config)
    without = config_of(feed, except_column_list=["status"])
    for upto, reported in enumerate((without, without, config), 1):
        with replace(table, around=replace(table.around, config=reported)).table_task() as table_task:
            table.take(table_task, upto)
    assert target.rows(TABLE) == [
        {"id": 1, "status": None, "late": "no"},
        {"id": 2, "status": "void", "late": "yes"},
    ]
    assert any("status is not new" in text for text in table_task.report().warnings)
