"""Columns that are renamed and dropped at a target: what stays, who may, and what a restart finds."""

from __future__ import annotations

import pytest

from tests.columns import ID
from tests.contracts.targets_bed import AMOUNT, NAME, Bed, progress, shape
from tests.full import needs, quick_on
from tidesink.errors import SchemaRefusedError, StaleProgressError
from tidesink.events import Column, ColumnType

pytestmark = quick_on("memory", "delta", "postgres")

SHAPE = shape()
ODD = 'the "new" `name` of 100%'
RENAMED = shape(ID, Column(ODD, NAME.type), AMOUNT)


def test_the_gap_is_what_evolve_would_do(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    table.evolve(SHAPE)
    wider = shape(ID, NAME, Column("amount", ColumnType("bigint")), Column("more", ColumnType("int")))
    gap = table.gap(wider)
    assert gap.columns == ("id", "name", "amount")
    assert (gap.added, set(gap.widened)) == (("more",), {"amount"})
    with pytest.raises(SchemaRefusedError) as refused:
        table.gap(shape(ID, Column("name", ColumnType("int")), AMOUNT))
    assert refused.value.context["change"] == "type"
    assert table.evolve(SHAPE).added == ()
    assert table.evolve(wider).added == ("more",)
    grown = table.gap(wider)
    assert (grown.added, grown.widened) == ((), {})
    assert {name: grown.held[name] for name in ("amount", "more")} == {"amount": "bigint", "more": "int"}


def test_a_column_is_renamed_with_its_values(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    if "rename" not in bed.target.capabilities.features:
        with pytest.raises(SchemaRefusedError):
            table.rename_column("name", ODD)
        return
    table.apply(bed.batch(SHAPE, [{"id": 1, "name": "a", "amount": 1}]), progress(epoch, 1))
    table.rename_column("name", ODD)
    # Killed before it was known that this was done, it is asked for again.
    if bed.name != "memory":
        table.rename_column("name", ODD)
    assert table.evolve(RENAMED).added == ()
    table.apply(bed.batch(RENAMED, [{"id": 2, ODD: "b", "amount": 2}]), progress(epoch, 2))
    assert bed.rows() == [{"id": 1, ODD: "a", "amount": 1}, {"id": 2, ODD: "b", "amount": 2}]
    again = bed.reopen().open_table(RENAMED, pipeline="shop")
    assert again.claim().progress is not None
    assert set(again.gap(RENAMED).columns) == {"id", ODD, "amount"}


def test_columns_are_dropped_and_the_rest_stays(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    if "drop" not in bed.target.capabilities.features:
        with pytest.raises(SchemaRefusedError):
            table.drop_columns(["name"])
        return
    table.apply(bed.batch(SHAPE, [{"id": 1, "name": "a", "amount": 1}]), progress(epoch, 1))
    for _ in range(2):
        table.drop_columns(["name"])
    left = shape(ID, AMOUNT)
    assert table.evolve(left).added == ()
    table.apply(bed.batch(left, [{"id": 2, "amount": 2}]), progress(epoch, 2))
    assert bed.rows() == [{"id": 1, "amount": 1}, {"id": 2, "amount": 2}]
    # One that comes again is a new one: nothing of the old is in it.
    assert table.evolve(SHAPE).added == ("name",)
    assert bed.rows()[0]["name"] is None


@needs("drop")
def test_who_lost_the_table_changes_no_column(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    bed.reopen().open_table(SHAPE, pipeline="shop").claim()
    with pytest.raises(StaleProgressError):
        table.drop_columns(["name"])
    with pytest.raises(StaleProgressError):
        table.rename_column("name", "other")
