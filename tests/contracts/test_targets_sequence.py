"""What targets that keep each row's position promise under ``sequence_by: source``."""

from __future__ import annotations

import random

import pytest

from tests.columns import ID
from tests.contracts.targets_bed import AMOUNT, NAME, Bed, progress, row, shape
from tests.full import FULL, needs, quick_on
from tidesink.errors import SchemaRefusedError, StaleProgressError
from tidesink.events import Column, ColumnType
from tidesink.sinks.targets.base import (
    SEQUENCE_COLUMN,
    SOFT_DELETE_COLUMN,
    Collected,
    SequencedTable,
    TargetTable,
)

pytestmark = [quick_on("memory", "postgres"), needs("source-order")]

SHAPE = shape()
CARD = Column("card", ColumnType("varchar", length=20))


def held(bed: Bed) -> tuple[TargetTable, int]:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.evolve(SHAPE)
    return table, epoch


@pytest.mark.law("L1")
def test_an_older_change_leaves_the_newer_row_alone(bed: Bed) -> None:
    table, epoch = held(bed)
    table.apply(bed.batch(SHAPE, [row(1, "new"), row(2, "old")], at=[20, 10]), progress(epoch, 1))
    result = table.apply(bed.batch(SHAPE, [row(1, "old"), row(2, "new")], at=[10, 20]), progress(epoch, 2))
    assert (result.applied, result.stale) == (1, 1)
    assert bed.living() == [row(1, "new"), row(2, "new")]


@pytest.mark.law("L3")
def test_a_deleted_row_is_not_brought_back_by_an_older_change(bed: Bed) -> None:
    table, epoch = held(bed)
    table.apply(bed.batch(SHAPE, [row(1)], at=[10]), progress(epoch, 1))
    table.apply(bed.batch(SHAPE, [], [{"id": 1}], at=[30]), progress(epoch, 2))
    result = table.apply(bed.batch(SHAPE, [row(1, "late")], at=[20]), progress(epoch, 3))
    assert (result.applied, result.stale) == (0, 1)
    assert bed.living() == []
    table.apply(bed.batch(SHAPE, [row(1, "again")], at=[40]), progress(epoch, 4))
    assert bed.living() == [row(1, "again")]


@pytest.mark.law("L3")
def test_a_delete_that_comes_before_its_row_keeps_it_out(bed: Bed) -> None:
    table, epoch = held(bed)
    first = table.apply(bed.batch(SHAPE, [], [{"id": 1}], at=[30]), progress(epoch, 1))
    assert first.applied == 1
    table.apply(bed.batch(SHAPE, [row(1, "late"), row(2)], at=[20, 20]), progress(epoch, 2))
    assert bed.living() == [row(2)]


def test_a_delete_and_an_insert_of_one_commit_leave_the_row(bed: Bed) -> None:
    table, epoch = held(bed)
    table.apply(bed.batch(SHAPE, [row(1, "whole")], at=[10]), progress(epoch, 1))
    result = table.apply(bed.batch(SHAPE, [], [{"id": 1}], at=[10]), progress(epoch, 2))
    assert (result.applied, result.stale) == (0, 1)
    assert bed.living() == [row(1, "whole")]


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_a_deleted_row_keeps_its_values_only_where_deletes_are_soft(bed: Bed, mode: str) -> None:
    table, epoch = held(bed)
    soft = mode == "soft"
    table.apply(bed.batch(SHAPE, [row(1, "secret")], at=[10]), progress(epoch, 1))
    gone = bed.batch(SHAPE, [], [{"id": 1}], at=[20], delete_mode="soft" if soft else "hard")
    table.apply(gone, progress(epoch, 2))
    (kept,) = bed.rows()
    assert kept[SOFT_DELETE_COLUMN] is True
    assert kept.get("name") == ("secret" if soft else None)


def test_a_deleted_row_leaves_no_values_of_columns_that_are_left_out_by_then(bed: Bed) -> None:
    table, epoch = held(bed)
    wide = shape(ID, NAME, AMOUNT, CARD)
    table.evolve(wide)
    rows = [{**row(1), "card": "4711"}, {**row(2), "card": "4712"}]
    table.apply(bed.batch(wide, rows, at=[10, 10]), progress(epoch, 1))
    table.apply(bed.batch(SHAPE, [row(2, "b")], [{"id": 1}], at=[20, 20]), progress(epoch, 2))
    gone, kept = bed.rows()
    assert {name for name, value in gone.items() if value is not None} == {
        "id",
        SEQUENCE_COLUMN,
        SOFT_DELETE_COLUMN,
    }
    assert kept["card"] == "4712"
    table.apply(bed.batch(SHAPE, [row(1, "again")], at=[30]), progress(epoch, 3))
    assert bed.living() == [{**row(1, "again"), "card": None}, {**row(2, "b"), "card": "4712"}]


def test_rows_from_before_the_order_are_older_than_every_change(bed: Bed) -> None:
    table, epoch = held(bed)
    table.apply(bed.batch(SHAPE, [row(1, "kafka"), row(2, "kafka")]), progress(epoch, 1))
    table.apply(bed.batch(SHAPE, [row(1, "source")], [{"id": 2}], at=[10, 10]), progress(epoch, 2))
    table.apply(bed.batch(SHAPE, [row(2, "late")], at=[5]), progress(epoch, 3))
    assert [one for one in bed.rows() if one[SEQUENCE_COLUMN] is None] == []
    assert bed.living() == [row(1, "source")]


def test_a_table_does_not_go_back_to_kafkas_order(bed: Bed) -> None:
    table, epoch = held(bed)
    table.apply(bed.batch(SHAPE, [row(1)], at=[10]), progress(epoch, 1))
    with pytest.raises(SchemaRefusedError, match="Set `sequence_by: source` again"):
        table.apply(bed.batch(SHAPE, [row(1, "kafka")]), progress(epoch, 2))
    assert bed.living() == [row(1)]


def test_a_batch_delivered_again_answers_the_same(bed: Bed) -> None:
    table, epoch = held(bed)
    table.apply(bed.batch(SHAPE, [row(1, "new")], at=[20]), progress(epoch, 1))
    batch = bed.batch(SHAPE, [row(1, "old"), row(2)], [{"id": 3}], at=[10, 20, 20])
    first = table.apply(batch, progress(epoch, 2))
    assert table.apply(batch, progress(epoch, 2)) == first
    assert (first.applied, first.stale) == (2, 1)


def test_a_column_that_comes_later_does_not_disturb_the_marks(bed: Bed) -> None:
    table, epoch = held(bed)
    table.apply(bed.batch(SHAPE, [row(1)], [{"id": 2}], at=[10, 10]), progress(epoch, 1))
    wider = shape(ID, NAME, AMOUNT, Column("note", ColumnType("varchar", length=9), default="new"))
    table.evolve(wider)
    later = bed.batch(wider, [{**row(3), "note": "n"}, {**row(2, "late"), "note": "n"}], at=[20, 5])
    assert table.apply(later, progress(epoch, 2)).stale == 1
    assert bed.living() == [{**row(1), "note": "new"}, {**row(3), "note": "n"}]


def test_rows_read_at_a_position_replace_what_is_older_and_nothing_that_is_newer(bed: Bed) -> None:
    """As a part of a snapshot, and as one of a resync: all rows of it stand at one position."""
    table, epoch = held(bed)
    rows = [row(1, "older"), row(2, "newer"), row(3, "same", 9)]
    gone = [{"id": 4}, {"id": 5}]
    table.apply(bed.batch(SHAPE, rows, gone, at=[10, 30, 20, 10, 30]), progress(epoch, 1))
    read = [row(number, "read") for number in (1, 2, 3, 4, 5, 6)]
    result = table.apply(bed.batch(SHAPE, read, at=[20] * 6), progress(epoch, 2))
    # Of equal commit_ts both are the row as it was then.
    assert result.stale in (2, 3)
    assert result.applied + result.stale == 6
    found = {one["id"]: one["name"] for one in bed.living()}
    assert found.pop(3) in ("same", "read")
    assert found == {1: "read", 2: "newer", 4: "read", 6: "read"}
    late = [row(1, "late"), row(6, "late")]
    assert table.apply(bed.batch(SHAPE, late, [{"id": 4}], at=[19, 21, 15]), progress(epoch, 3)).stale == 2
    found = {one["id"]: one["name"] for one in bed.living()}
    assert (found[1], found[4], found[6]) == ("read", "read", "late")
    swept = bed.batch(SHAPE, [], [{"id": number} for number in (1, 2, 6)], at=[25] * 3)
    assert table.apply(swept, progress(epoch, 4)).stale == 1
    found = {one["id"]: one["name"] for one in bed.living()}
    assert (found.get(1), found.get(2), found.get(6)) == (None, "newer", None)


@pytest.mark.law("L1", "L2")
@quick_on("memory", "delta", "iceberg", "postgres", "mysql")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=FULL)])
def test_any_order_and_any_cut_end_in_the_same_rows(bed: Bed, seed: int) -> None:
    chosen = random.Random(seed)
    events = [(ts, chosen.randrange(5), chosen.random() < 0.4) for ts in range(1, 31)]
    last = {key: (ts, delete) for ts, key, delete in events}
    expected = [row(key, f"n{ts}", ts) for key, (ts, delete) in sorted(last.items()) if not delete]
    events += chosen.sample(events, 10)
    chosen.shuffle(events)
    table, epoch = held(bed)
    for number, start in enumerate(range(0, len(events), 8), 1):
        part = {}
        for ts, key, delete in sorted(events[start : start + 8]):
            part[key] = (ts, delete)
        upserts = [row(key, f"n{ts}", ts) for key, (ts, delete) in part.items() if not delete]
        deletes = [{"id": key} for key, (_, delete) in part.items() if delete]
        at = [ts for ts, delete in part.values() if not delete] + [
            ts for ts, delete in part.values() if delete
        ]
        result = table.apply(bed.batch(SHAPE, upserts, deletes, at=at), progress(epoch, number))
        assert result.applied + result.stale == len(part)
    assert bed.living() == expected


@pytest.mark.law("L3")
def test_deletes_are_forgotten_up_to_the_horizon_and_no_further(bed: Bed) -> None:
    table, epoch = held(bed)
    assert isinstance(table, SequencedTable)
    assert table.horizon() is None
    keys = [{"id": number} for number in (1, 2, 3)]
    table.apply(bed.batch(SHAPE, [row(9)], keys, at=[5, 10, 20, 30]), progress(epoch, 1))
    assert table.collect(20) == Collected(20, 2, 1, 30)
    assert [one["id"] for one in bed.rows()] == [3, 9]
    assert table.collect(10) == Collected(20, 0, 1, 30)
    assert bed.living() == [row(9)]
    table.close()
    again = bed.reopen().open_table(SHAPE, pipeline="shop")
    assert isinstance(again, SequencedTable)
    assert again.horizon() == 20


@pytest.mark.law("L10")
def test_a_worker_that_lost_the_table_collects_nothing(bed: Bed) -> None:
    table, epoch = held(bed)
    table.apply(bed.batch(SHAPE, [row(9)], [{"id": 1}], at=[5, 10]), progress(epoch, 1))
    bed.reopen().open_table(SHAPE, pipeline="shop").claim()
    assert isinstance(table, SequencedTable)
    with pytest.raises(StaleProgressError):
        table.collect(20)
    assert [one["id"] for one in bed.rows()] == [1, 9]
