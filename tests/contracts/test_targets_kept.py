"""Rows that leave out values which the target is to keep: kept where they are, refused where they are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.targets_bed import AMOUNT, Bed, lenient, progress, row, shape
from tests.full import needs, quick_on
from tidesink.errors import ValueNotStoredError
from tidesink.sinks.targets.base import (
    SOFT_DELETE_COLUMN,
    ApplyOptions,
    DeleteMode,
    ReducedBatch,
    TargetTable,
)

# Of targets that pass changes on: test_targets_messages.py.
pytestmark = [quick_on("memory", "mysql"), needs("rows")]

SHAPE = shape()


@pytest.fixture
def table(bed: Bed) -> Iterator[TargetTable]:
    """A table with two rows, claimed in epoch 1, batch 1 applied."""
    opened = bed.target.open_table(SHAPE, pipeline="shop")
    assert opened.claim().epoch == 1
    opened.apply(bed.batch(SHAPE, [row(1, "long", 1), row(2, None, 2)]), progress(1, 1))
    yield opened
    opened.close()


@pytest.mark.law("L6")
@quick_on("memory", "delta", "iceberg", "postgres", "mysql")
def test_what_is_left_out_stays_as_stored(bed: Bed, table: TargetTable) -> None:
    batch = bed.batch(SHAPE, [row(1, None, 10), row(2, None, 20)], kept=("name",))
    result = table.apply(batch, progress(1, 2))
    assert (result.inserted, result.updated) == (0, 2)
    assert bed.rows() == [row(1, "long", 10), row(2, None, 20)]


@quick_on("memory", "delta", "iceberg", "postgres", "mysql")
def test_a_column_that_is_left_out_later_keeps_its_earlier_values(bed: Bed, table: TargetTable) -> None:
    """As docs/schema-changes.md has it of ``except_column_list``."""
    narrow = shape(ID, AMOUNT)
    table.apply(bed.batch(narrow, [{"id": 1, "amount": 10}, {"id": 3, "amount": 30}]), progress(1, 2))
    assert bed.rows() == [row(1, "long", 10), row(2, None, 2), row(3, None, 30)]


def test_one_row_may_leave_out_what_another_has(bed: Bed, table: TargetTable) -> None:
    batch = bed.batch(SHAPE, [row(1, None, None)], [{"id": 2}], kept=("name", "amount"))
    table.apply(batch, progress(1, 2))
    assert bed.rows() == [row(1, "long", 1)]


@pytest.mark.parametrize(("number", "after_delete"), [(3, False), (1, True)], ids=["no row", "a deleted row"])
def test_a_value_that_nobody_has_is_refused_and_nothing_written(
    bed: Bed, table: TargetTable, number: int, after_delete: bool
) -> None:
    batch = bed.batch(SHAPE, [row(number, None, 10)], kept=("name",), after_delete=after_delete)
    with pytest.raises(
        ValueNotStoredError, match=r"value of name.*filter removed it.*REPLICA IDENTITY FULL"
    ) as caught:
        table.apply(batch, progress(1, 2))
    assert caught.value.context["table"] == "shop.orders"
    assert bed.rows() == [row(1, "long", 1), row(2, None, 2)]
    committed = table.committed()
    assert committed is not None
    assert committed.batch == 1


def test_into_an_empty_table_nothing_can_be_kept(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    with pytest.raises(ValueNotStoredError):
        table.apply(bed.batch(SHAPE, [row(1, None, 1)], kept=("name",)), progress(epoch, 1))
    assert bed.rows() == []
    table.apply(bed.batch(SHAPE, [row(1, "sent", 1)]), progress(epoch, 1))
    assert bed.rows() == [row(1, "sent", 1)]


@needs("soft-deletes")
def test_a_row_marked_deleted_has_nothing_to_keep(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop", delete_mode="soft")
    epoch = table.claim().epoch
    soft: dict[str, Any] = {"delete_mode": "soft"}
    table.apply(bed.batch(SHAPE, [row(1, "old", 1), row(2, "two", 2)], **soft), progress(epoch, 1))
    table.apply(bed.batch(SHAPE, [], [{"id": 1}], **soft), progress(epoch, 2))
    table.apply(bed.batch(SHAPE, [row(2, None, 3)], kept=("name",), **soft), progress(epoch, 3))
    with pytest.raises(ValueNotStoredError):
        table.apply(bed.batch(SHAPE, [row(1, None, 3)], kept=("name",), **soft), progress(epoch, 4))
    assert {r["id"]: (r["name"], r["amount"]) for r in bed.rows()} == {1: ("old", 1), 2: ("two", 3)}


@quick_on("memory", "delta", "iceberg", "postgres", "mysql")
@pytest.mark.parametrize("mode", ["hard", pytest.param("soft", marks=needs("soft-deletes"))])
def test_a_truncate_empties_the_table_once(bed: Bed, mode: DeleteMode) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop", delete_mode=mode)
    epoch = table.claim().epoch
    table.apply(bed.batch(SHAPE, [row(1, "a", 1), row(2, "b", 2)], delete_mode=mode), progress(epoch, 1))
    empty = ReducedBatch(SHAPE, 0, 0, truncates=True, how=ApplyOptions(delete_mode=mode))
    for number in (2, 2, 3):  # delivered again, and once more when nothing is left
        table.apply(empty, progress(epoch, number))
        assert [r["id"] for r in bed.rows() if not r.get(SOFT_DELETE_COLUMN)] == []
    committed = table.committed()
    assert committed is not None
    assert committed.batch == 3
    table.apply(bed.batch(SHAPE, [row(2, "c", 3)], delete_mode=mode), progress(epoch, 4))
    assert [r["name"] for r in bed.rows() if not r.get(SOFT_DELETE_COLUMN)] == ["c"]


def test_a_truncate_of_an_empty_table_is_progress(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    result = table.apply(ReducedBatch(SHAPE, 0, 0, truncates=True), progress(epoch, 1))
    assert (result.deleted, bed.rows()) == (0, [])
    committed = table.committed()
    assert committed is not None
    assert committed.batch == 1


def test_a_lenient_batch_writes_null_where_nothing_is_stored(bed: Bed, table: TargetTable) -> None:
    rows = [row(1, None, 10), row(3, None, 30)]
    result = table.apply(lenient(bed.batch(SHAPE, rows, kept=("name",))), progress(1, 2))
    assert (result.inserted, result.updated) == (1, 1)
    assert bed.rows() == [row(1, "long", 10), row(2, None, 2), row(3, None, 30)]
    batch = bed.batch(SHAPE, [row(1, None, 11)], kept=("name",), after_delete=True)
    table.apply(lenient(batch), progress(1, 3))
    assert bed.rows() == [row(1, None, 11), row(2, None, 2), row(3, None, 30)]


@needs("soft-deletes")
def test_a_lenient_batch_keeps_nothing_of_a_row_marked_deleted(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop", delete_mode="soft")
    epoch = table.claim().epoch
    soft: dict[str, Any] = {"delete_mode": "soft"}
    table.apply(bed.batch(SHAPE, [row(1, "old", 1), row(2, "two", 2)], **soft), progress(epoch, 1))
    table.apply(bed.batch(SHAPE, [], [{"id": 1}], **soft), progress(epoch, 2))
    both = [row(1, None, 3), row(2, None, 3)]
    table.apply(lenient(bed.batch(SHAPE, both, kept=("name",), **soft)), progress(epoch, 3))
    assert {r["id"]: (r["name"], r["amount"]) for r in bed.rows()} == {1: (None, 3), 2: ("two", 3)}


def test_a_lenient_batch_goes_into_an_empty_table(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(lenient(bed.batch(SHAPE, [row(1, None, 1)], kept=("name",))), progress(epoch, 1))
    assert bed.rows() == [row(1, None, 1)]


@needs("soft-deletes")
def test_a_soft_delete_writes_the_columns_it_is_told(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop", delete_mode="soft")
    epoch = table.claim().epoch
    soft: dict[str, Any] = {"delete_mode": "soft"}
    table.apply(bed.batch(SHAPE, [row(1, "a", 1), row(2, "b", 2)], **soft), progress(epoch, 1))
    batch = bed.batch(SHAPE, [row(2, "c", 3)], [{"id": 1}, {"id": 9}], on_delete={"amount": 7}, **soft)
    result = table.apply(batch, progress(epoch, 2))
    assert (result.updated, result.deleted, result.absent) == (1, 1, 1)
    found = {r["id"]: (r["name"], r["amount"], bool(r[SOFT_DELETE_COLUMN])) for r in bed.rows()}
    assert found == {1: ("a", 7, True), 2: ("c", 3, False)}
