"""Rows that tasks write to a lake's files as they read them, before it is known what becomes of the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.columns import ID
from tests.contracts.conftest import BEDS
from tests.contracts.iceberg_disturbed import compact
from tests.contracts.targets_bed import AMOUNT, NAME, Bed, progress, row, shape, sql
from tests.contracts.test_targets_delta_partitions import made
from tests.full import each, quick_on
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.spark.frames import SparkRows
from tidesink.sinks.spark.payloads import unpack
from tidesink.sinks.targets.base import (
    ApplyHooks,
    ApplyOptions,
    ReducedBatch,
    RowFormat,
    StagedRowsRefusedError,
    StagingTable,
    TargetTable,
)
from tidesink.sinks.targets.delta.table import DeltaTarget
from tidesink.sinks.targets.iceberg.table import IcebergTarget
from tidesink.sinks.targets.lake.batches import FEWEST_STAGED, paths_of
from tidesink.sinks.targets.lake.storage import local_path

pytestmark = [pytest.mark.spark, quick_on("delta")]
SHAPE: Final = shape()
WIDER: Final = shape(ID, NAME, AMOUNT, Column("note", ColumnType("varchar", length=20)))
KINDS: Final = ("delta", "iceberg")
PACK: Final[dict[str, Callable[[Bed, str], object]]] = {
    "delta": lambda bed, location: sql(bed, f"OPTIMIZE {location}"),
    "iceberg": lambda bed, _location: compact(bed),
}


@pytest.fixture(params=KINDS)
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    """Each lake in turn, which writes the smallest ranges where they are read."""
    found = BEDS[request.param](request, tmp_path / "lake")
    return _eager(found)


def _eager(bed: Bed) -> Bed:
    assert isinstance(bed.target, DeltaTarget | IcebergTarget)
    return replace(bed, target=replace(bed.target, fewest_staged=1))


def _staged(table: TargetTable, batch: ReducedBatch) -> ReducedBatch:
    """The batch as a worker has it whose tasks wrote the rows: of two ranges, by one task."""
    assert isinstance(table, StagingTable)
    sink = table.row_sink(replace(batch.row_format, fewest=1))
    assert sink is not None
    parts = tuple(sink([rows]) for rows in _ranges(batch))
    assert [part.failure for part in parts] == [None] * len(parts)
    return replace(batch, make_frame=None, payloads=None, staged=parts)


def _ranges(batch: ReducedBatch) -> list[pa.RecordBatch]:
    assert isinstance(batch.payloads, SparkRows)
    return [rows for rows in unpack(batch.payloads.frame.toArrow().to_batches()) if len(rows)]


def _files(batch: ReducedBatch) -> list[Path]:
    """The files that the rows are in."""
    return [local_path(path) for path in paths_of(batch.staged or ())]


def _opened(bed: Bed, **options: Any) -> tuple[Any, int]:
    table = bed.target.open_table(SHAPE, pipeline="shop", **options)
    return table, table.claim().epoch


@quick_on("delta", "iceberg")
@pytest.mark.parametrize("seed", each(range(4), full=range(1, 4)))
def test_rows_are_what_the_batches_make_of_them(bed: Bed, seed: int) -> None:
    """Whether a batch was staged or not, and whatever of its keys the table had."""
    random, (table, epoch) = Random(seed), _opened(bed)
    expected: dict[int, dict[str, Any]] = {}
    for number in range(1, 6):
        keys = random.sample(range(12), 6)
        upserts = [row(key, f"{number}", number) for key in keys[:4]]
        batch = bed.batch(SHAPE, upserts, [{"id": key} for key in keys[4:]])
        there = {key for key in keys if key in expected}
        result = table.apply(_staged(table, batch) if number != 3 else batch, progress(epoch, number))
        assert (result.inserted, result.updated) == (4 - len(there & {*keys[:4]}), len(there & {*keys[:4]}))
        assert (result.deleted, result.absent) == (len(there & {*keys[4:]}), 2 - len(there & {*keys[4:]}))
        expected |= {one["id"]: one for one in upserts}
        for key in keys[4:]:
            expected.pop(key, None)
        assert bed.rows() == [expected[key] for key in sorted(expected)]


def test_a_log_of_changes_takes_them_as_they_come(bed: Bed) -> None:
    table, epoch = _opened(bed)
    for number in (1, 2):
        rows = [row(number), row(number + 10)]
        batch = replace(bed.batch(SHAPE, rows), how=ApplyOptions(mode="append"))
        result = table.apply(_staged(table, batch), progress(epoch, number))
        assert result.inserted == 2
    assert [one["id"] for one in bed.rows()] == [1, 2, 11, 12]


def test_nothing_is_seen_of_rows_that_are_forgotten(bed: Bed) -> None:
    table, epoch = _opened(bed)
    batch = _staged(table, bed.batch(SHAPE, [row(1), row(2)]))
    assert all(file.exists() for file in _files(batch))
    table.forget_staged(batch.staged)
    assert not any(file.exists() for file in _files(batch))
    table.apply(_staged(table, bed.batch(SHAPE, [row(3)])), progress(epoch, 1))
    assert [one["id"] for one in bed.rows()] == [3]


def test_a_table_that_got_a_column_since_does_not_take_the_files(bed: Bed) -> None:
    """The batch comes another way then; later ones are written where they are read again."""
    table, epoch = _opened(bed)
    plain = bed.batch(SHAPE, [row(1)])
    batch = _staged(table, plain)
    table.evolve(WIDER)
    with pytest.raises(StagedRowsRefusedError, match="cannot be committed as files"):
        table.apply(batch, progress(epoch, 1))
    assert not any(file.exists() for file in _files(batch))
    assert bed.rows() == []
    assert table.row_sink(replace(batch.row_format, fewest=1)) is None
    wider = [{**row(1), "note": "new"}]
    table.apply(bed.batch(WIDER, wider), progress(epoch, 1))
    wider += [{**row(2), "note": None}]
    table.apply(_staged(table, bed.batch(WIDER, wider[1:])), progress(epoch, 2))
    assert bed.rows() == wider


@pytest.mark.parametrize("step", ["on_located", "on_staged"])
def test_another_program_packs_the_table_before_the_commit(bed: Bed, step: str) -> None:
    """The keys are located again; the files of the rows stay."""
    table, epoch = _opened(bed)
    for number, rows in enumerate(([row(1), row(2), row(3)], [row(2, "b"), row(4)]), 1):
        table.apply(bed.batch(SHAPE, rows), progress(epoch, number))
    reached = []

    def pack() -> None:
        reached.append(step)
        if len(reached) == 1:
            PACK[bed.name](bed, table.location)

    batch = _staged(table, bed.batch(SHAPE, [row(1, "c"), row(5)], [{"id": 3}]))
    hook: dict[str, Any] = {step: pack}
    result = table.apply(replace(batch, hooks=ApplyHooks(**hook)), progress(epoch, 3))
    assert len(reached) == 2
    assert (result.inserted, result.updated, result.deleted) == (1, 1, 1)
    assert {one["id"]: one["name"] for one in bed.rows()} == {1: "c", 2: "b", 4: "a", 5: "a"}


def test_a_table_may_have_any_name(bed: Bed) -> None:
    """Also one with the word that stands for a task's attempt in the names of files."""
    named = shape(table=TableId("shop", "LOGIN_ATTEMPTS"))
    table = bed.target.open_table(named, pipeline="shop")
    epoch = table.claim().epoch
    batch = _staged(table, bed.batch(named, [row(1), row(2)]))
    folders = {file.parent for file in _files(batch)}
    assert len(folders) == 1
    assert "LOGIN_ATTEMPTS" in folders.pop().parts
    table.apply(batch, progress(epoch, 1, table=named.table))
    assert [one["id"] for one in bed.rows(named.table)] == [1, 2]


def test_a_disk_that_takes_no_file_leaves_the_range_to_spark(bed: Bed, tmp_path: Path) -> None:
    """Whose tasks say of it what they say of every batch."""
    table, _ = _opened(bed)
    sink = table.row_sink(RowFormat(SHAPE, fewest=1))
    (tmp_path / "file").touch()
    files = replace(sink.rows.files, location=f"{tmp_path}/file/ATTEMPT.parquet")
    broken = replace(sink, rows=replace(sink.rows, files=files))
    part = broken(_ranges(bed.batch(SHAPE, [row(1)])))
    assert (part.rows, part.failure, part.files) == (0, "FileExistsError", ())


def test_rows_that_depend_on_stored_ones_are_not_written_where_they_are_read(bed: Bed) -> None:
    table, _ = _opened(bed)
    rows = RowFormat(SHAPE, fewest=FEWEST_STAGED)
    assert table.row_sink(rows) is not None
    for other in ({"sequenced": True}, {"keeps": True}, {"mode": "history"}, {"fewest": 0}):
        assert table.row_sink(replace(rows, **other)) is None
    soft = bed.target.open_table(shape(table=SHAPE.table), pipeline="shop", delete_mode="soft")
    soft.claim()
    assert isinstance(soft, StagingTable)
    assert soft.row_sink(rows) is None


def test_a_range_that_would_be_too_many_files_is_left_to_spark(request: pytest.FixtureRequest) -> None:
    """The part says so, and the range is read again without a sink."""
    delta = BEDS["delta"](request, request.getfixturevalue("tmp_path") / "lake")
    bed = _eager(delta)
    table = made(bed, SHAPE, "name")
    sink = table.row_sink(RowFormat(SHAPE, fewest=1))
    assert sink is not None
    many = bed.batch(SHAPE, [row(number, f"{number}") for number in range(2_100)])
    part = sink(_ranges(many)[:1])
    assert (part.rows, part.files) == (0, ())
    assert "more than 1,000 partitions" in part.failure
    rows = [row(1, "a b"), row(2, None), row(3, "a b")]
    table.apply(_staged(table, bed.batch(SHAPE, rows)), progress(1, 1))
    assert bed.rows() == rows
