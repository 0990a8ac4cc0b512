"""Iceberg tables of format 3, whose rows are marked by deletion vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.columns import ID
from tests.contracts.iceberg_disturbed import SHAPE, compact, loaded, state_of
from tests.contracts.partitioned_rows import moves
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
from tests.contracts.test_targets_iceberg_files import OTHER, PLACE, reason
from tests.contracts.test_targets_iceberg_partitions import made
from tests.full import FULL
from tidesink.sinks.targets.base import ApplyHooks
from tidesink.sinks.targets.iceberg.files import FilePlan, FileWriter
from tidesink.sinks.targets.iceberg.jvm import JvmTable
from tidesink.sinks.targets.iceberg.schema import pack_files
from tidesink.sinks.targets.iceberg.table import IcebergTable, IcebergTarget

# ruff: noqa: S608
pytestmark = pytest.mark.spark


def upgrade(bed: Bed, table: IcebergTable, version: int = 3) -> None:
    """Give a table another format version."""
    sql(bed, f"ALTER TABLE {table.location} SET TBLPROPERTIES ('format-version' = '{version}')")


def loaded_in(bed: Bed, version: int) -> IcebergTable:
    """A table of a format version with two batches."""
    assert isinstance(bed.target, IcebergTarget)
    return loaded(bed, replace(bed.target, table_properties={"format-version": str(version)}))


def deletes(bed: Bed, table: IcebergTable) -> list[tuple[str, str]]:
    """The format of each file or vector of deletes that readers see, and the data file that it is of."""
    found = sql(bed, f"SELECT file_format, referenced_data_file FROM {table.location}.delete_files")
    return [(one["file_format"], one["referenced_data_file"]) for one in found]


def once(action: Callable[[], object]) -> Callable[[], None]:
    """The action at the first call, nothing at later ones."""
    left = [action]

    def act() -> None:
        if left:
            left.pop()()

    return act


@pytest.mark.parametrize("upgraded", [1, 4])
@pytest.mark.parametrize("by", ["", pytest.param("name, bucket(2, id)", marks=FULL)])
def test_any_stream_leaves_what_merge_leaves(iceberg: Bed, by: str, upgraded: int) -> None:
    """From the first batch on, and with what the table has from format 2; then packed files."""
    shapes = [shape(ID, PLACE, NAME, AMOUNT, table=name) for name in (TABLE, OTHER)]
    ours, theirs = tables = [made(iceberg, one, by) for one in shapes]
    for number, (rows, gone, wanted) in enumerate(moves(7), 1):
        if number == upgraded:
            for table in tables:
                upgrade(iceberg, table)
        if number == 6:
            compact(iceberg)
        batches = [iceberg.batch(one, rows, gone) for one in shapes]
        assert reason(iceberg, ours, batches[0]) is None
        applied_alike(tables, (batches[0], merged(batches[1])), number)
        for name in (TABLE, OTHER):
            assert sorted(iceberg.read(name), key=lambda r: (r["id"], r["place"])) == wanted
        if number >= upgraded:
            of = [file for form, file in deletes(iceberg, ours) if form == "PUFFIN"]
            assert len({*of}) == len(of) > 0 or number in (1, 6)
            ids = f"SELECT count(DISTINCT _row_id) FROM {ours.location}"
            assert sql(iceberg, ids)[0][0] == len(wanted) or upgraded > 1
    assert state_of(iceberg, theirs).version == state_of(iceberg, ours).version == 3
    assert iceberg.spark is not None
    pack_files(iceberg.spark, JvmTable(iceberg.spark, ours.location))
    assert sorted(iceberg.read(TABLE), key=lambda r: (r["id"], r["place"])) == wanted


def test_what_spark_deletes_is_known(iceberg: Bed) -> None:
    table = loaded_in(iceberg, 3)
    sql(iceberg, f"DELETE FROM {table.location} WHERE id = 3")
    batch = iceberg.batch(SHAPE, [row(2, "c"), row(3, "c")], [{"id": 1}])
    assert reason(iceberg, table, batch) is None
    result = table.apply(batch, progress(1, 3))
    assert (result.inserted, result.updated, result.deleted) == (1, 1, 1)
    sql(iceberg, f"UPDATE {table.location} SET amount = 7 WHERE id = 2")
    assert iceberg.rows() == [row(2, "c", 7), row(3, "c")]


def test_a_delete_in_between_is_seen(iceberg: Bed) -> None:
    """One gives a file of ours a vector, before the snapshot is made and after it."""
    table = loaded_in(iceberg, 3)
    assert iceberg.spark is not None
    jvm = JvmTable(iceberg.spark, table.location)
    writer, batch = FileWriter(iceberg.spark, jvm, TABLE), iceberg.batch(SHAPE, [row(3, "c")], [{"id": 1}])
    plan = writer.plan(batch, progress(1, 3), jvm.state())
    assert isinstance(plan, FilePlan)
    sql(iceberg, f"DELETE FROM {table.location} WHERE id = 2")
    assert writer.stage(batch, plan) is None
    delete = once(lambda: sql(iceberg, f"DELETE FROM {table.location} WHERE id = 3"))
    result = table.apply(replace(batch, hooks=ApplyHooks(on_staged=delete)), progress(1, 3))
    assert (result.inserted, result.updated, result.deleted) == (1, 0, 1)
    assert iceberg.rows() == [row(3, "c")]


def test_an_upgrade_in_between_is_seen(iceberg: Bed) -> None:
    """No files of positions come into a table of format 3."""
    table = loaded_in(iceberg, 2)
    batch = iceberg.batch(SHAPE, [row(3, "c")], [{"id": 1}])
    upgrading = ApplyHooks(on_staged=once(lambda: upgrade(iceberg, table)))
    result = table.apply(replace(batch, hooks=upgrading), progress(1, 3))
    assert (result.updated, result.deleted) == (1, 1)
    assert [form for form, _ in deletes(iceberg, table)].count("PUFFIN") == 2
    assert iceberg.rows() == [row(2, "b"), row(3, "c")]


def test_what_an_upgrade_leaves_hidden_is_counted_once(iceberg: Bed) -> None:
    """A MERGE takes positions over into vectors; a file that has those of several data files stays."""
    table = loaded_in(iceberg, 2)
    table.apply(iceberg.batch(SHAPE, [row(4), row(5), row(6)]), progress(1, 3))
    table.apply(iceberg.batch(SHAPE, [row(3, "c"), row(5, "c")]), progress(1, 4))
    upgrade(iceberg, table)
    only_upserts = table.apply(merged(iceberg.batch(SHAPE, [row(4, "d"), row(7)])), progress(1, 5))
    assert (only_upserts.inserted, only_upserts.updated) == (1, 1)
    mixed = table.apply(merged(iceberg.batch(SHAPE, [row(6, "d"), row(8)], [{"id": 2}])), progress(1, 6))
    assert (mixed.inserted, mixed.updated, mixed.deleted) == (1, 1, 1)
    assert {form for form, _ in deletes(iceberg, table)} == {"PARQUET", "PUFFIN"}
    ordered = iceberg.batch(SHAPE, [row(1, "e"), row(9)], [{"id": 5}], at=[5, 6, 7])
    found = table.apply(merged(ordered), progress(1, 7))
    assert (found.inserted, found.updated, found.stale) == (1, 2, 0)
    names = {1: "e", 3: "c", 4: "d", 6: "d", 7: "a", 8: "a", 9: "a"}
    assert iceberg.living() == [row(number, name) for number, name in names.items()]


def test_formats_that_are_merged(iceberg: Bed) -> None:
    """Format 1 has no deletes; a default of format 3 is in no file."""
    assert isinstance(iceberg.target, IcebergTarget)
    target = replace(iceberg.target, table_properties={"format-version": "1"})
    table = target.open_table(SHAPE, pipeline="shop")
    assert isinstance(table, IcebergTable)
    table.claim()
    batch = iceberg.batch(SHAPE, [row(3, "c")])
    assert reason(iceberg, table, batch) == "the table has format version 1"
    upgrade(iceberg, table)
    assert reason(iceberg, table, batch) is None
    assert iceberg.spark is not None
    java, state = JvmTable(iceberg.spark, table.location).java, state_of(iceberg, table)
    state.table.updateSchema().deleteColumn("name").commit()
    text, default = java.types.Types.StringType.get(), java.expressions.Expressions.lit("x")
    state.table.updateSchema().addColumn("name", text, default).commit()
    assert reason(iceberg, table, batch) == "the column name has a default in old files"
