"""Batches that partitioned Delta tables take as files."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from tests.columns import ID
from tests.contracts.partitioned_rows import SHAPE as ODD
from tests.contracts.partitioned_rows import TEXT, TYPED, moves, odd_rows
from tests.contracts.targets_bed import (
    AMOUNT,
    NAME,
    TABLE,
    Bed,
    applied_alike,
    merged,
    progress,
    row,
    shape,
    sql,
)
from tests.contracts.test_targets_delta_files import OTHER, PLACE, reason
from tests.full import FULL
from tidesink.dev.lake_check import open_lake_table
from tidesink.errors import TargetError
from tidesink.events import Column, ColumnType
from tidesink.sinks.targets.delta.table import DeltaTable, DeltaTarget
from tidesink.typemap.target_schema import TargetSchema

# ruff: noqa: S608
pytestmark = pytest.mark.spark

UTC_VALUES: Final = "spark.databricks.delta.write.utcTimestampPartitionValues"
PROPERTIES: Final = "'delta.enableDeletionVectors' = 'true'"
MAPPED: Final = f"{PROPERTIES}, 'delta.columnMapping.mode' = 'name'"


def made(bed: Bed, given: TargetSchema, by: str, properties: str = PROPERTIES) -> DeltaTable:
    """A table that was made by hand, and claimed."""
    assert isinstance(bed.target, DeltaTarget)
    columns = ", ".join(
        f"`{column.name}` {column.spark}{' NOT NULL' if column.key else ''}" for column in given.columns
    )
    place = f"delta.`{bed.target.path_of(given.source)}`"
    sql(
        bed,
        f"CREATE TABLE {place} ({columns}) USING delta PARTITIONED BY ({by}) TBLPROPERTIES ({properties})",
    )
    table = bed.target.open_table(given, pipeline="shop")
    assert isinstance(table, DeltaTable)
    table.claim()
    return table


def added(path: str) -> list[dict[str, Any]]:
    """The files that a table's log ever added."""
    found = [
        json.loads(line)
        for commit in sorted(Path(path, "_delta_log").glob("*.json"))
        for line in commit.read_text("utf-8").split("\n")
        if line
    ]
    return [one["add"] for one in found if "add" in one]


def test_partitions_are_as_spark_writes_them(delta: Bed) -> None:
    """Spark's own INSERT of the rows makes another table."""
    rows, parts = odd_rows(), ", ".join(column.name for column in TYPED)
    ours, theirs = (made(delta, replace(ODD, table=name), parts) for name in (TABLE, OTHER))
    batch = delta.batch(ODD, rows)
    assert reason(ours, batch) is None
    ours.apply(batch, progress(1, 1))
    assert delta.rows() == rows
    sql(delta, f"INSERT INTO {theirs.location} SELECT * FROM {ours.location}")
    files = [{one["stats"]: one for one in added(table.path)} for table in (ours, theirs)]
    assert len(files[0]) == len(rows)
    for statistics, one in files[0].items():
        other = files[1][statistics]
        assert one["partitionValues"] == other["partitionValues"]
        folders = zip(one["path"].split("/")[:-1], other["path"].split("/")[:-1], strict=True)
        # Spark's folders have instants in the session's way.
        assert [a for a, b in folders if a != b and not a.startswith("at=")] == []
    for column in TYPED:
        same = f"(SELECT {column.name} FROM {theirs.location} WHERE id = 3)"
        found = sql(delta, f"SELECT id FROM {ours.location} WHERE {column.name} = {same}")
        value = rows[3][column.name]
        assert {one["id"] for one in found} == {one["id"] for one in rows if one[column.name] == value}
    quoted = rows[0]["text"]
    assert (
        len(sql(delta, f"SELECT id FROM {ours.location} WHERE text = '{quoted}' AND day = '2024-02-29'")) == 1
    )


@pytest.mark.parametrize("properties", [PROPERTIES, pytest.param(MAPPED, marks=FULL)])
def test_any_stream_leaves_what_merge_leaves(delta: Bed, properties: str) -> None:
    """Partitions by a column of the key, and by one that changes."""
    shapes = [shape(ID, PLACE, NAME, AMOUNT, table=name) for name in (TABLE, OTHER)]
    tables = [made(delta, one, "name, place", properties) for one in shapes]
    for number, (rows, gone, wanted) in enumerate(moves(4), 1):
        if number == 3:
            sql(delta, f"OPTIMIZE {tables[0].location}")
        batches = [delta.batch(one, rows, gone) for one in shapes]
        assert reason(tables[0], batches[0]) is None
        applied_alike(tables, (batches[0], merged(batches[1])), number)
        check = open_lake_table(Path(tables[0].path)).read().to_pylist()
        for found in (delta.read(TABLE), delta.read(OTHER), check):
            assert sorted(found, key=lambda r: (r["id"], r["place"])) == wanted
    for name in (None, "x/y", "z"):
        found = sql(
            delta,
            f"SELECT * FROM {tables[0].location} WHERE name <=> {'NULL' if name is None else repr(name)}",
        )
        assert len(found) == sum(one["name"] == name for one in wanted)


@FULL
def test_a_key_that_is_a_partition_is_found(delta: Bed) -> None:
    """Files do not have it: the log says it, in Spark's words as well."""
    keyed = shape(ID, TEXT, *(replace(one, handle=True, nullable=False) for one in TYPED if one != TEXT))
    rows = odd_rows()[:-1]
    table = made(delta, keyed, ", ".join(keyed.keys[1:]))
    table.apply(delta.batch(keyed, rows[:5]), progress(1, 1))
    sql(delta, f"INSERT INTO {table.location} SELECT * FROM {table.location} WHERE id = 4")
    sql(delta, f"DELETE FROM {table.location} WHERE id = 4")
    key = {name: rows[0][name] for name in keyed.keys}
    changed = [{**one, "text": "new"} for one in rows[1:]]
    batch = delta.batch(keyed, changed, [key])
    assert reason(table, batch) is None
    result = table.apply(batch, progress(1, 2))
    assert (result.updated, result.inserted, result.deleted) == (3, 6, 1)
    assert delta.rows() == changed


def test_texts_that_delta_takes_for_null_are_refused(delta: Bed) -> None:
    given = shape()
    table = made(delta, given, "name")
    for text in ("", "__HIVE_DEFAULT_PARTITION__"):
        for kind in (lambda batch: batch, merged):
            with pytest.raises(
                TargetError,
                match=r"column=name.*would read it back as NULL|would read it back as NULL.*column=name",
            ):
                table.apply(kind(delta.batch(given, [row(1, text), row(2)])), progress(1, 1))
    table.apply(delta.batch(given, [row(2)]), progress(1, 1))
    assert delta.rows() == [row(2)]


@FULL
def test_rows_of_very_many_partitions_are_merged(delta: Bed) -> None:
    given = shape()
    table = made(delta, given, "id")
    table.apply(delta.batch(given, [row(at) for at in range(1_001)]), progress(1, 1))
    assert "more than 1,000 partitions" in str(table._files_or_merge.reason)
    table.apply(delta.batch(given, [row(3, "b")]), progress(1, 2))
    assert [one["name"] for one in delta.rows() if one["name"] != "a"] == ["b"]


@FULL
def test_partitions_whose_texts_are_not_the_values_are_merged(delta: Bed) -> None:
    given = shape(ID, Column("share", ColumnType("double")))
    table = made(delta, given, "share")
    batch = delta.batch(given, [{"id": 1, "share": 0.5}])
    assert reason(table, batch) == "the partition column share is double"
    table.apply(batch, progress(1, 1))
    assert delta.rows() == [{"id": 1, "share": 0.5}]


@FULL
def test_a_key_in_a_partition_of_instants_without_a_zone_is_merged(delta: Bed) -> None:
    """As Delta wrote them before it wrote UTC."""
    given = shape(ID, Column("at", ColumnType("timestamp"), handle=True, nullable=False))
    table = made(delta, given, "at")
    delta.session.conf.set(UTC_VALUES, "false")
    sql(delta, f"INSERT INTO {table.location} VALUES (1, timestamp'2024-02-29 01:02:03')")
    delta.session.conf.unset(UTC_VALUES)
    batch = delta.batch(given, [{"id": 1, "at": datetime(2024, 2, 29, 1, 2, 3)}])
    assert "timestamp without a time zone" in str(reason(table, batch))
    assert table.apply(batch, progress(1, 1)).updated == 1
