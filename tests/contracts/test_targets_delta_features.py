"""The features that a Delta table asks of its readers: few at first, others when a change needs them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from random import Random
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable as RustTable
from deltalake import QueryBuilder
from deltalake.exceptions import DeltaProtocolError

from tests.columns import ID
from tests.contracts.targets_bed import AMOUNT, NAME, Bed, progress, row, shape, sql
from tests.contracts.test_targets_delta_partitions import made
from tests.contracts.test_targets_history import Event, batch_of
from tests.duckdb_readers import by_duckdb
from tests.full import FULL
from tidesink.events import Column, ColumnType
from tidesink.sinks.laws.modes import FROM_COLUMN, HistoryNames, history_shape
from tidesink.sinks.targets.delta.table import DeltaTable, DeltaTarget
from tidesink.typemap.target_schema import TargetSchema

pytestmark = pytest.mark.spark
SHAPE = shape()
ODD = Column("a b", ColumnType("int"))
MOMENT = Column("at", ColumnType("datetime", fsp=6))


def loaded(bed: Bed, of: TargetSchema = SHAPE, target: DeltaTarget | None = None) -> DeltaTable:
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


def by_data_fusion(table: DeltaTable) -> list[dict[str, Any]]:
    """As delta-rs reads it."""
    found = QueryBuilder().register("t", RustTable(table.path)).execute("SELECT * FROM t ORDER BY id")
    rows: list[dict[str, Any]] = pa.table(found.read_all()).to_pylist()
    return rows


def test_other_engines_read_a_table_with_its_deleted_rows(delta: Bed) -> None:
    table = loaded(delta)
    assert features(delta, table) == {"deletionVectors"}
    assert by_polars(table) == delta.rows() == [row(1), row(2, "b")]
    assert by_data_fusion(table) == by_duckdb("delta", f"file://{table.path}") == delta.rows()


@FULL
def test_all_engines_read_the_same_after_200_batches_and_their_packing(delta: Bed) -> None:
    table = delta.target.open_table(SHAPE, pipeline="shop")
    assert isinstance(table, DeltaTable)
    table.claim()
    random, kept = Random(1), dict[int, dict[str, Any]]()
    for number in range(1, 201):
        keys = random.sample(range(500), 12)
        new = {key: row(key, f"{number}-{key}", random.randrange(9)) for key in keys[:9]}
        kept = {key: one for key, one in (kept | new).items() if key not in keys[9:]}
        table.apply(
            delta.batch(SHAPE, [*new.values()], [{"id": key} for key in keys[9:]]), progress(1, number)
        )
    assert {"OPTIMIZE", "MERGE"} <= {
        one["operation"] for one in sql(delta, f"DESCRIBE HISTORY {table.location}")
    }
    expected = [kept[key] for key in sorted(kept)]
    assert delta.rows() == by_polars(table) == by_data_fusion(table) == expected
    assert by_duckdb("delta", f"file://{table.path}") == expected


@FULL
def test_all_engines_read_the_same_history_in_partitions(delta: Bed) -> None:
    """A version that ends goes into another partition; the log says the time of all of a file's rows."""
    names = HistoryNames()
    given = history_shape(SHAPE, names)
    table = made(delta, given, f"{names.current}, name")
    random, kept = Random(2), dict[int, str]()
    for number in range(1, 61):
        events = [
            Event(10 * number + at, random.randrange(20), random.choice(["x", "a b", "größe", None]))
            for at in range(9)
        ]
        for event in events:
            kept.pop(event.key, None)
            if event.name is not None:
                kept[event.key] = event.name
        table.apply(batch_of(delta, events), progress(1, number))
    found = [
        sorted(
            ({name: _in_utc(value) for name, value in one.items()} for one in rows),
            key=lambda one: (one["id"], one[FROM_COLUMN]),
        )
        # Polars 2.1 misses deletion vectors of files whose folder's name is encoded, as "a b" is.
        for rows in (delta.rows(), by_duckdb("delta", f"file://{table.path}"), by_data_fusion(table))
    ]
    assert found[0] == found[1] == found[2]
    assert {one["id"]: one["name"] for one in found[0] if one[names.current] and one["name"]} == kept
    assert len(found[0]) > 2 * len(kept)


def _in_utc(value: object) -> object:
    """An instant as Spark gives it here; any other value as it is."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(timezone.utc).replace(tzinfo=None)
    return value


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
