"""Batches that Iceberg takes as files: the same as by MERGE, and MERGE where it must be."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.columns import ID
from tests.contracts.iceberg_disturbed import LOADED, SHAPE, compact, loaded, opened, state_of
from tests.contracts.targets_bed import (
    AMOUNT,
    NAME,
    TABLE,
    Bed,
    applied_alike,
    frame_of,
    merged,
    payloads_of,
    progress,
    row,
    shape,
    sql,
)
from tests.contracts.test_targets_types import cases
from tests.full import FULL
from tests.spark.decoded import GivenEvents, messages_of, reduced_in_spark
from tidesink.errors import AccountingError, TargetError
from tidesink.events import ChangeEvent, Column, ColumnType, Op, Position, Row, TableId, TableSchema
from tidesink.sinks.decode.plans import DecodePlan
from tidesink.sinks.decode.target_rows import Metadata, TargetRows
from tidesink.sinks.targets.base import ReducedBatch, ReducedRow
from tidesink.sinks.targets.iceberg.files import FilePlan, FileWriter
from tidesink.sinks.targets.iceberg.jvm import JvmTable, TableState
from tidesink.sinks.targets.iceberg.ledger import Holder, IcebergLedger
from tidesink.sinks.targets.iceberg.table import IcebergTable
from tidesink.sinks.targets.lake.storage import local_path
from tidesink.typemap.projection import Projection, project
from tidesink.typemap.target_schema import MetadataKind, shape_of, without

# ruff: noqa: S608
pytestmark = pytest.mark.spark

OTHER: Final = TableId("shop", "merged")
PLACE: Final = Column("place", ColumnType("varchar", length=20), handle=True)


def reason(bed: Bed, table: IcebergTable, batch: ReducedBatch) -> str | None:
    """Why the table merges a batch; None where it takes it as files."""
    assert bed.spark is not None
    jvm = JvmTable(bed.spark, table.location)
    plan = FileWriter(bed.spark, jvm, TABLE).plan(batch, progress(1, 99), jvm.state())
    return None if isinstance(plan, FilePlan) else plan


def data_files(bed: Bed, table: IcebergTable) -> list[Path]:
    """The data files of what readers see."""
    files = sql(bed, f"SELECT file_path FROM {table.location}.files WHERE content = 0")
    return [local_path(one["file_path"]) for one in files]


def test_any_stream_leaves_what_merge_leaves(iceberg: Bed) -> None:
    """A key of two columns, upserts, deletes, of keys that are there or not, in batches of any size.

    One table takes files and merges in turn: positions of either are known to the other.
    """
    shapes = [shape(ID, PLACE, NAME, AMOUNT, table=name) for name in (TABLE, OTHER)]
    tables = [iceberg.target.open_table(one, pipeline="shop") for one in shapes]
    epochs = [table.claim().epoch for table in tables]
    dice, stored = random.Random(7), dict[tuple[int, str], dict[str, Any]]()
    for number in range(1, 6):
        keys = dice.sample([(at, place) for at in range(6) for place in ("", "größe")], dice.randint(3, 9))
        gone = {key for key in keys if dice.random() < 0.4}
        rows: list[dict[str, Any]] = [
            {"id": at, "place": place, "name": dice.choice([None, "x", "y"]), "amount": number}
            for at, place in keys
            if (at, place) not in gone
        ]
        deletes = [{"id": at, "place": place} for at, place in gone]
        batches = [iceberg.batch(one, rows, deletes) for one in shapes]
        files = batches[0] if number != 3 else merged(batches[0])
        result = applied_alike(tables, (files, merged(batches[1])), number, epochs=epochs)
        stored = {key: value for key, value in stored.items() if key not in gone}
        stored |= {(one["id"], one["place"]): one for one in rows}
        wanted = [stored[key] for key in sorted(stored)]
        for name in (TABLE, OTHER):
            assert sorted(iceberg.read(name), key=lambda r: (r["id"], r["place"])) == wanted
    again = tables[0].apply(files, progress(epochs[0], 5))
    assert again == result


def test_files_have_the_types_that_spark_writes(iceberg: Bed) -> None:
    columns = [ID, *(column for column, _ in cases())]
    rows = [{"id": at + 1, **{column.name: values[at] for column, values in cases()}} for at in (0, 1)] + [
        {"id": 3, **{column.name: None for column, _ in cases()}}
    ]
    schemas = []
    for name in (TABLE, OTHER):
        wide = shape(*columns, table=name)
        table = iceberg.target.open_table(wide, pipeline="shop")
        assert isinstance(table, IcebergTable)
        epoch = table.claim().epoch
        batch = iceberg.batch(wide, rows)
        assert name == OTHER or reason(iceberg, table, batch) is None
        table.apply(batch if name == TABLE else merged(batch), progress(epoch, 1, table=name))
        file = data_files(iceberg, table)[0]
        found = pq.ParquetFile(file).schema
        schemas.append(
            [
                (one.path, one.physical_type, str(one.logical_type), one.length, one.max_definition_level)
                for one in (found.column(at) for at in range(len(columns)))
            ]
        )
        ids = [field.metadata[b"PARQUET:field_id"] for field in pq.read_schema(file)]
        assert ids == [str(at + 1).encode() for at in range(len(columns))]
    assert schemas[0] == schemas[1]
    assert iceberg.rows() == iceberg.rows(OTHER)


def test_rows_of_wider_columns_and_of_packed_files_are_found(iceberg: Bed) -> None:
    table = loaded(iceberg)
    compact(iceberg)
    wider = shape(
        Column("id", ColumnType("bigint"), handle=True), NAME, Column("amount", ColumnType("bigint"))
    )
    assert table.evolve(wider).widened
    batch = iceberg.batch(wider, [row(2, "c", 2**40)], [{"id": 1}])
    assert reason(iceberg, table, batch) is None
    result = table.apply(batch, progress(1, 3))
    assert (result.updated, result.deleted) == (1, 1)
    assert iceberg.rows() == [row(2, "c", 2**40), row(3)]


def test_what_another_program_deleted_is_not_found(iceberg: Bed) -> None:
    table = loaded(iceberg)
    sql(iceberg, f"DELETE FROM {table.location} WHERE id = 3")
    result = table.apply(iceberg.batch(SHAPE, [row(2, "c")], [{"id": 3}]), progress(1, 3))
    assert (result.updated, result.absent) == (1, 1)
    assert iceberg.rows() == [row(1), row(2, "c")]


def test_a_batch_that_changes_nothing_makes_no_snapshot(iceberg: Bed) -> None:
    table = loaded(iceberg)
    before = state_of(iceberg, table).head
    assert table.apply(iceberg.batch(SHAPE, [], [{"id": 9}]), progress(1, 3)).absent == 1
    assert state_of(iceberg, table).head == before
    assert opened(iceberg).committed() == progress(1, 3)


def test_several_rows_of_one_key_stop_the_table(iceberg: Bed) -> None:
    table = loaded(iceberg)
    sql(iceberg, f"INSERT INTO {table.location} VALUES (1, 'theirs', 9)")
    with pytest.raises(AccountingError, match="another program wrote rows"):
        table.apply(iceberg.batch(SHAPE, [row(1, "c")]), progress(1, 3))
    assert len(iceberg.rows()) == 4
    assert table.committed() == progress(1, 2)


def test_a_row_without_a_key_stops_the_table(iceberg: Bed) -> None:
    table = loaded(iceberg)
    assert iceberg.spark is not None
    rows = [ReducedRow("upsert", {"id": None}, {**row(6), "id": None})]
    batch = ReducedBatch(
        SHAPE,
        1,
        0,
        make_frame=partial(frame_of, iceberg.spark, SHAPE, rows),
        payloads=payloads_of(iceberg.spark, SHAPE, rows),
    )
    with pytest.raises(TargetError, match="no value in the column id"):
        table.apply(batch, progress(1, 3))
    assert iceberg.rows() == LOADED


def test_counts_that_do_not_fit_make_nothing_visible(iceberg: Bed) -> None:
    table = loaded(iceberg)
    batch = iceberg.batch(SHAPE, [row(1, "c"), row(5)], [{"id": 2}])
    for wrong in (replace(batch, upserts=3), replace(batch, deletes=0)):
        with pytest.raises(AccountingError):
            table.apply(wrong, progress(1, 3))
    assert iceberg.rows() == LOADED
    assert table.apply(batch, progress(1, 3)).applied == 3


Change = Callable[[Bed, str], object]


def altered(text: str) -> Change:
    return lambda bed, location: sql(bed, f"ALTER TABLE {location} {text}")


def rewritten_as_orc(bed: Bed, location: str) -> None:
    sql(bed, f"ALTER TABLE {location} SET TBLPROPERTIES ('write.format.default' = 'orc')")
    sql(bed, f"INSERT INTO {location} VALUES (9, 'theirs', 9)")
    sql(bed, f"ALTER TABLE {location} UNSET TBLPROPERTIES ('write.format.default')")


def sorted_by_id(bed: Bed, location: str) -> None:
    assert bed.spark is not None
    table = JvmTable(bed.spark, location)
    first, by = table.java.NullOrder.NULLS_FIRST, table.java.expressions.Expressions.ref("id")
    table.state().table.replaceSortOrder().asc(by, first).commit()


def uuid_column(bed: Bed, location: str) -> None:
    """As other programs have it: Spark says string."""
    assert bed.spark is not None
    table = JvmTable(bed.spark, location)
    update = table.state().table.updateSchema().deleteColumn("name")
    update.commit()
    table.state().table.updateSchema().addColumn("name", table.java.types.Types.UUIDType.get()).commit()


def elsewhere(bed: Bed, location: str) -> None:
    """A file of another store, which the table may have from before it was moved."""
    assert bed.spark is not None
    table = JvmTable(bed.spark, location)
    state = table.state()
    file = table.java.DataFiles.builder(state.table.spec()).withPath("s3://bucket/old.parquet")
    file = file.withFormat("PARQUET").withFileSizeInBytes(99).withRecordCount(1).build()
    state.table.newFastAppend().appendFile(file).commit()


UNFIT: Final[dict[str, tuple[Change, str]]] = {
    "another column": (altered("ADD COLUMNS (note string)"), "other columns than the batch: note"),
    "copy-on-write": (altered("SET TBLPROPERTIES ('write.merge.mode' = 'copy-on-write')"), "copy-on-write"),
    "compression": (altered("SET TBLPROPERTIES ('write.parquet.compression-codec' = 'lzo')"), "by lzo"),
    "place": (altered("SET TBLPROPERTIES ('write.data.path' = 's3://bucket/x')"), "cannot be looked up"),
    "sort order": (sorted_by_id, "the table has a sort order"),
    "uuid": (uuid_column, "the column name is uuid"),
    "place of a file": (elsewhere, "s3://bucket/old.parquet"),
    "format of files": (rewritten_as_orc, "in format orc"),
}


@pytest.mark.parametrize(
    "what", [pytest.param(one, marks=() if one == "sort order" else FULL) for one in UNFIT]
)
def test_a_table_that_is_not_written_as_files_is_merged_into(iceberg: Bed, what: str) -> None:
    table = loaded(iceberg)
    batch = iceberg.batch(SHAPE, [row(2, "c"), row(12)], [{"id": 1}])
    assert reason(iceberg, table, batch) is None
    change, says = UNFIT[what]
    change(iceberg, table.location)
    assert says in str(reason(iceberg, table, batch))
    # Spark cannot write these here, or not these values.
    if what in ("compression", "place", "uuid", "place of a file"):
        return
    result = table.apply(batch, progress(1, 3))
    assert (result.inserted, result.updated, result.deleted) == (1, 1, 1)
    rows = [one for one in iceberg.rows() if one["id"] != 9]
    assert [(one["id"], one["name"]) for one in rows] == [(2, "c"), (3, "a"), (12, "a")]


def test_rows_with_metadata_are_files_and_columns_that_are_left_out_stay_out(iceberg: Bed) -> None:
    """As the tasks stamp and pack them; the target is not given the column that is left out."""
    assert iceberg.spark is not None
    schema = TableSchema(TABLE, (ID, NAME, AMOUNT))
    names: dict[MetadataKind, str] = {"op": "_op", "offset": "_offset", "batch": "_batch"}
    laid = project(Projection(metadata=names), shape_of(schema), own=())
    metadata = Metadata(names, TABLE)
    rows = TargetRows(shape_of(schema), target=laid.shape, sources=laid.sources, metadata=metadata)
    given = without(laid.shape, ["amount"])
    table = iceberg.target.open_table(given, pipeline="shop")
    assert isinstance(table, IcebergTable)
    epoch = table.claim().epoch
    for number, value in ((1, "a"), (2, "b")):
        at = Position("t", 0, number)
        values: Row = {"id": 1, "name": value, "amount": 5}
        event = ChangeEvent(Op.UPDATE, TABLE, {"id": 1}, None, values, None, at)
        plan = DecodePlan(rows, GivenEvents([event], schema))
        plan = plan.for_batch(number, plan.rules, marks_deletes=False)
        found = reduced_in_spark(iceberg.spark, plan, messages_of([event]))
        batch = ReducedBatch(given, 1, 0, payloads=found.payloads)
        assert reason(iceberg, table, batch) is None
        table.apply(batch, progress(epoch, number))
        found.release()
        assert iceberg.rows() == [
            {"id": 1, "name": value, "_op": "update", "_offset": number, "_batch": number}
        ]


def test_batches_that_are_merged(iceberg: Bed) -> None:
    table = loaded(iceberg)
    batch = iceberg.batch(SHAPE, [row(2)])
    said = [
        reason(iceberg, table, replace(batch, **other))
        for other in (
            {"payloads": None},
            {"keeps": True, "sequenced": True},
            {"sequenced": True},
            {"upserts": 3_000_000},
        )
    ]
    assert None not in said
    assert len({*said}) == len(said)


def test_files_that_only_spark_can_read_are_merged_into(iceberg: Bed) -> None:
    """Files without field ids, as ``add_files`` takes them into a table."""
    table = loaded(iceberg)
    folder = data_files(iceberg, table)[0].parent.parent / "theirs"
    folder.mkdir()
    theirs = pa.table({"id": [21], "name": ["theirs"], "amount": [9]})
    types = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.int32())])
    pq.write_table(theirs.cast(types), folder / "theirs.parquet")
    files = f"source_table => '`parquet`.`{folder}`'"
    sql(iceberg, f"CALL lake.system.add_files(table => 'shop.orders', {files})")
    batch = iceberg.batch(SHAPE, [row(21, "c")], [{"id": 1}])
    assert reason(iceberg, table, batch) is None
    result = table.apply(batch, progress(1, 3))
    assert (result.updated, result.deleted) == (1, 1)
    data = folder.parent / "data"
    tried = [*data.glob("*rows*")]
    assert table.apply(iceberg.batch(SHAPE, [row(21, "d")]), progress(1, 4)).updated == 1
    assert [*data.glob("*rows*")] == tried  # it is known now: no rows are written for nothing
    compact(iceberg)
    last = iceberg.batch(SHAPE, [row(21, "e")])
    assert table.apply(last, progress(1, 5)).updated == 1
    assert len([*data.glob("*rows*")]) == len(tried) + 1


def test_a_place_without_a_file_system_is_where_hadoop_says(iceberg: Bed) -> None:
    table = loaded(iceberg)
    spark = iceberg.spark
    assert spark is not None
    sql(iceberg, f"ALTER TABLE {table.location} SET TBLPROPERTIES ('write.data.path' = '/lake/x')")
    state = state_of(iceberg, table)
    batch = iceberg.batch(SHAPE, [row(2)])
    assert reason(iceberg, table, batch) is None
    settings = state.table.io().getConf()
    settings.set("fs.defaultFS", "hdfs://names/")
    try:
        writer = FileWriter(spark, JvmTable(spark, table.location), TABLE)
        assert "only Spark, not Python, can open hdfs URLs: /lake/x" in str(
            writer.plan(batch, progress(1, 1), state)
        )
    finally:
        settings.unset("fs.defaultFS")


def test_a_key_that_was_renamed_is_found(iceberg: Bed) -> None:
    """The snapshot that readers see has the old name."""
    table = loaded(iceberg)
    table.rename_column("id", "number")
    renamed = shape(Column("number", ColumnType("bigint"), handle=True), NAME, AMOUNT)
    rows = [{"number": 2, "name": "c", "amount": 1}]
    batch = replace(iceberg.batch(renamed, rows), key_range={"number": (2, 2)})
    assert reason(iceberg, table, batch) is None
    assert table.apply(batch, progress(1, 3)).updated == 1


class SentTwice(JvmTable):
    """A client that loses the answers to its commits, and sends each again: a conflict with itself."""

    loses = False

    def commit(self, base: TableState, change: Callable[[Any], object]) -> None:
        super().commit(base, change)
        if self.loses:
            super().commit(base, change)


def test_a_commit_that_conflicts_with_itself_is_there(iceberg: Bed) -> None:
    """Its files are the table's: nothing of them may be removed."""
    first = loaded(iceberg)
    assert iceberg.spark is not None
    table = SentTwice(iceberg.spark, first.location)
    ledger = IcebergLedger(TABLE, "shop", first.location, SHAPE.keys)
    holder, writer = Holder(table, ledger, TABLE), FileWriter(iceberg.spark, table, TABLE)
    epoch = holder.claim().epoch
    batch, now = iceberg.batch(SHAPE, [row(2, "c"), row(5)]), progress(epoch, 3)
    plan = writer.plan(batch, progress(1, 1), holder.current())
    assert isinstance(plan, FilePlan)
    staged = writer.stage(batch, plan)
    assert staged is not None
    number = int(staged.snapshot.snapshotId())
    entry = ledger.batch(holder.held, now, staged.result, snapshot=number, shape=SHAPE)
    table.loses = True
    assert holder.publish(entry, on=plan.state.head, at=plan.state, adding=staged.snapshot)
    assert (holder.held, first.committed()) == (entry, now)
    assert iceberg.rows() == [row(1), row(2, "c"), row(3), row(5)]
