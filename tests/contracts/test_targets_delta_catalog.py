"""Delta tables that Spark's catalog names as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.columns import ID
from tests.contracts.targets_bed import AMOUNT, NAME, TABLE, Bed, progress, row, shape
from tests.full import FULL
from tidesink.errors import ConfigError
from tidesink.events import Column, ColumnType
from tidesink.sinks.targets.delta.table import DeltaTable, DeltaTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SHAPE = shape()
WIDER = shape(ID, NAME, AMOUNT, Column("state", ColumnType("int"), default="7"))
NAMES = "tidesink_{schema}.{table}"


@pytest.fixture
def registered(delta: Bed, spark: SparkSession) -> Iterator[DeltaTarget]:
    """The lake of ``delta``, its tables named in the session's catalog."""
    assert isinstance(delta.target, DeltaTarget)
    yield DeltaTarget(spark, delta.target.root, catalog_table=NAMES)
    spark.sql("DROP SCHEMA IF EXISTS tidesink_shop CASCADE")


def _named(spark: SparkSession) -> list[tuple[object, ...]]:
    return sorted(tuple(found) for found in spark.table("tidesink_shop.orders").collect())


def test_rows_and_new_columns_are_read_by_name(
    delta: Bed, spark: SparkSession, registered: DeltaTarget
) -> None:
    table = registered.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(delta.batch(SHAPE, [row(1), row(2)]), progress(epoch, 1))
    assert _named(spark) == [(1, "a", 1), (2, "a", 1)]
    assert table.evolve(WIDER).added == ("state",)
    table.apply(delta.batch(WIDER, [{**row(3), "state": 8}]), progress(epoch, 2))
    assert _named(spark) == [(1, "a", 1, 7), (2, "a", 1, 7), (3, "a", 1, 8)]


@FULL
def test_a_table_that_is_there_gets_its_name_and_keeps_it(
    delta: Bed, spark: SparkSession, registered: DeltaTarget
) -> None:
    table = delta.target.open_table(SHAPE, pipeline="shop")
    table.apply(delta.batch(SHAPE, [row(1)]), progress(table.claim().epoch, 1))
    for _ in range(2):
        again = registered.open_table(SHAPE, pipeline="shop")
        assert isinstance(again, DeltaTable)
        assert again.claim().progress is not None
        assert _named(spark) == [(1, "a", 1)]
    assert Path(again.path) == Path(registered.path_of(TABLE))


def test_the_name_of_another_table_is_refused(
    spark: SparkSession, registered: DeltaTarget, tmp_path: Path
) -> None:
    spark.sql("CREATE SCHEMA tidesink_shop")
    spark.sql(f"CREATE TABLE tidesink_shop.orders (id BIGINT) USING delta LOCATION '{tmp_path / 'other'}'")
    with pytest.raises(ConfigError, match=r"tidesink_shop.orders in the catalog is the table at .*other"):
        registered.open_table(SHAPE, pipeline="shop")


@FULL
def test_the_name_of_a_view_is_refused(spark: SparkSession, registered: DeltaTarget) -> None:
    spark.sql("CREATE SCHEMA tidesink_shop")
    spark.sql("CREATE VIEW tidesink_shop.orders AS SELECT 1 AS id")
    with pytest.raises(ConfigError, match=r"in the catalog is a view or a table with no folder of its own, "):
        registered.open_table(SHAPE, pipeline="shop")
