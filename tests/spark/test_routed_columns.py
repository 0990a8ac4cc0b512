"""A routed plan puts the shard into keys and rows, and into nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.columns import ID
from tidesink.config.models import Destination
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.batch.projection_frames import RoutedColumns
from tidesink.sinks.batch.records import NO_RULES, EventRules
from tidesink.typemap.target_schema import Shard, TableShape, shape_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SHAPE = shape_of(TableSchema(TableId("shop_1", "t"), (ID, Column("name", ColumnType("varchar")))))
GOAL = TableId("shop", "t")
DECODED = (
    "_kind string, _offset bigint, key struct<id: bigint>, old_key struct<id: bigint>, "
    "after struct<id: bigint, name: string>"
)
EVENTS = [
    ("upsert", 0, (1,), None, (1, "a")),
    ("upsert", 1, (2,), (1,), (2, None)),
    ("delete", 2, (2,), None, None),
    ("bad", 3, None, None, None),
]


@dataclass(frozen=True)
class Decoded:
    """A plan for frames that are decoded already."""

    shape: TableShape
    changes_keys: bool = True
    keeps_values: bool = False
    kept_columns: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()

    def decode(self, raw: DataFrame, _rules: EventRules = NO_RULES) -> DataFrame:
        return raw


def test_keys_and_rows_have_the_shard(spark: SparkSession) -> None:
    goal = Destination(GOAL, Shard("odd `name`.", "it's shop_1.t"))
    plan = RoutedColumns(Decoded(SHAPE), goal)
    assert (plan.changes_keys, plan.keeps_values) == (True, False)
    assert plan.shape.keys == ("id", "odd `name`.")
    frame = plan.decode(spark.createDataFrame(EVENTS, DECODED))
    found = [tuple(row) for row in frame.orderBy("_offset").collect()]
    shard = "it's shop_1.t"
    assert found == [
        ("upsert", 0, (1, shard), None, (1, "a", shard)),
        ("upsert", 1, (2, shard), (1, shard), (2, None, shard)),
        ("delete", 2, (2, shard), None, None),
        ("bad", 3, None, None, None),
    ]
    # As the shape says: targets take the columns by these types and in this order.
    assert frame.schema["after"].dataType.simpleString() == "struct<id:bigint,name:string,odd `name`.:string>"
    assert [column.name for column in plan.shape.columns] == ["id", "name", "odd `name`."]


def test_another_name_alone_changes_no_row(spark: SparkSession) -> None:
    plan = RoutedColumns(Decoded(SHAPE), Destination(GOAL))
    assert (plan.shape.table, plan.shape.source) == (GOAL, TableId("shop_1", "t"))
    raw = spark.createDataFrame(EVENTS, DECODED)
    assert plan.decode(raw) is raw
