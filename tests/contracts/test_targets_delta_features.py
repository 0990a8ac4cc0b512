"""The features that a Delta table asks of its readers: few at first, others when a change needs them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable as RustTable
from deltalake import QueryBuilder
from deltalake.exceptions import DeltaProtocolError

from tests.contracts.targets_bed import AMOUNT, ID, NAME, Bed, progress, row, shape, sql
from tidesink.events import Column, ColumnType
from tidesink.sinks.targets.delta.table import DeltaTable, DeltaTarget
from tidesink.typemap.target_schema import TableShape

pytestmark = pytest.mark.spark
SHAPE = shape()
ODD = Column("a b", ColumnType("int"))
MOMENT = Column("at", ColumnType("datetime", fsp=6))


def loaded(bed: Bed, of: TableShape = SHAPE, target: DeltaTarget | None = None) -> DeltaTable:
    """A claimed table of two batches, the second of which replaces a row and deletes one."""
    table = (target or bed.target).open_table(of, pipeline="shop")
    assert isinstance(table, DeltaTable)
    table.claim()
    table.apply(bed.batch(of, [row(1), row(2), row(3)]), progress(1, 1))
    table.apply(bed.batch(of, [row(2, "b")], deletes=[{"id": 3}]), progress(1, 2))
    return table


def features(bed: Bed, table: DeltaTable) -> set[str]:
    """Those that readers must know."""
    found = sql(bed, f"DESCRIBE DETAIL {table.location}")[0]["tableFeatures"]
    return set(found) & {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening"}


def by_polars(table: DeltaTable) -> list[dict[str, Any]]:
    return polars.read_delta(table.path).sort("id").to_dicts()


def test_other_engines_read_a_table_with_its_deleted_rows(delta: Bed) -> None:
    table = loaded(delta)
    assert features(delta, table) == {"deletionVectors"}
    assert by_polars(table) == delta.rows() == [row(1), row(2, "b")]
    found = QueryBuilder().register("t", RustTable(table.path)).execute("SELECT * FROM t ORDER BY id")
    assert pa.table(found.read_all()).to_pylist() == delta.rows()


def test_a_wider_type_a_new_name_and_an_odd_name_bring_their_features(delta: Bed) -> None:
    table = loaded(delta)
    table.evolve(shape(ID, NAME, AMOUNT, MOMENT))
    assert features(delta, table) == {"deletionVectors", "timestampNtz"}
    assert [one["at"] for one in by_polars(table)] == [None, None]
    table.rename_column("name", "title")
    assert features(delta, table) == {"deletionVectors", "timestampNtz", "columnMapping"}
    with pytest.raises(DeltaProtocolError, match="columnMapping"):
        by_polars(table)
    table.evolve(shape(ID, Column("title", NAME.type), replace(AMOUNT, type=ColumnType("bigint")), ODD))
    assert "typeWidening" in features(delta, table)
    assert table.gap(shape(ID, ODD)).added == ()


def test_an_odd_name_is_there_from_the_start(delta: Bed) -> None:
    table = delta.target.open_table(shape(ID, ODD), pipeline="shop")
    assert isinstance(table, DeltaTable)
    assert features(delta, table) == {"columnMapping", "deletionVectors"}


def test_an_odd_name_that_comes_later(delta: Bed) -> None:
    table = loaded(delta)
    table.evolve(shape(ID, NAME, AMOUNT, ODD))
    assert features(delta, table) == {"columnMapping", "deletionVectors"}


def test_a_users_properties_replace_those_of_new_tables(delta: Bed) -> None:
    assert isinstance(delta.target, DeltaTarget)
    given = {"delta.enableDeletionVectors": "false", "delta.logRetentionDuration": "interval 7 days"}
    table = loaded(delta, target=replace(delta.target, properties=given))
    assert features(delta, table) == set()
    kept = sql(delta, f"DESCRIBE DETAIL {table.location}")[0]["properties"]
    assert kept["delta.logRetentionDuration"] == "interval 7 days"
    assert delta.rows() == [row(1), row(2, "b")]
