"""What only Delta tables can get wrong under ``sequence_by: source``: deletes go in two commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.interrupted import CutOff, Forestalled, ForestalledMarker
from tests.contracts.targets_bed import AMOUNT, Bed, progress, row, shape
from tests.full import FULL
from tidesink.errors import CommitUnknownError, StaleProgressError, TransientTargetError
from tidesink.sinks.targets.base import Collected
from tidesink.sinks.targets.delta import ledger as delta_tombstones
from tidesink.sinks.targets.delta.log import DeltaLog
from tidesink.sinks.targets.delta.table import DeltaTable, DeltaTarget

pytestmark = pytest.mark.spark
SHAPE = shape()


def loaded(bed: Bed, folder: Path, session: Any = None) -> DeltaTable:
    """A claimed table with one row and one delete."""
    table = DeltaTarget(session or bed.session, str(folder / "lake")).open_table(SHAPE, pipeline="shop")
    table.claim()
    table.apply(bed.batch(SHAPE, [row(9)], [{"id": 1}], at=[5, 10]), progress(1, 1))
    return table


def other_of(bed: Bed) -> DeltaTable:
    table = bed.reopen().open_table(SHAPE, pipeline="shop")
    assert isinstance(table, DeltaTable)
    return table


def test_a_claim_in_the_middle_of_a_collection_keeps_the_horizon(delta: Bed, tmp_path: Path) -> None:
    session: Any = ForestalledMarker(delta.spark)
    table, other = loaded(delta, tmp_path, session), other_of(delta)
    session.ahead = other.claim
    with pytest.raises(TransientTargetError, match="Another writer"):
        table.collect(20)
    assert other.horizon() is None
    assert [one["id"] for one in delta.rows()] == [1, 9]


@FULL
def test_a_claim_just_before_the_marks_go_keeps_them(delta: Bed, tmp_path: Path) -> None:
    """The one that claimed then may know either horizon, and has the marks of all that it takes."""
    session: Any = Forestalled(delta.spark, word="DELETE")
    table, other = loaded(delta, tmp_path, session), other_of(delta)
    session.ahead = other.claim
    with pytest.raises(StaleProgressError, match="Another worker claimed"):
        table.collect(20)
    assert [one["id"] for one in delta.rows()] == [1, 9]
    assert other.collect(10) == Collected(20, 1, 0, None)


def test_a_worker_that_lost_the_table_does_not_put_the_horizon_back(delta: Bed, tmp_path: Path) -> None:
    """Who asked whether the table is its own before it slept, and raises the horizon after."""
    table, other = loaded(delta, tmp_path), other_of(delta)
    other.claim()
    assert delta.spark is not None
    before = delta_tombstones.horizon_of(DeltaLog(delta.spark, table.path))
    assert other.collect(30) == Collected(30, 1, 0, None)
    with pytest.raises(StaleProgressError, match="Another worker claimed"):
        delta_tombstones.collect(
            delta.spark.newSession(), DeltaLog(delta.spark, table.path), table.location, horizon=20, epoch=1
        )
    assert (before, other.horizon()) == (None, 30)


@pytest.mark.parametrize("before", [pytest.param(True, marks=FULL), False])
def test_a_collection_that_was_cut_off_is_finished_by_the_next(
    delta: Bed, tmp_path: Path, before: bool
) -> None:
    """The horizon is never below what is gone; it may be above what is there still."""
    session: Any = CutOff(delta.spark, before=before, word="DELETE")
    table = loaded(delta, tmp_path, session)
    session.armed = True
    with pytest.raises(CommitUnknownError):
        table.collect(20)
    assert not session.armed
    assert table.horizon() == 20
    assert [one["id"] for one in delta.rows()] == ([1, 9] if before else [9])
    assert table.collect(15) == Collected(20, int(before), 0, None)
    assert delta.living() == [row(9)]


@FULL
def test_what_cannot_be_emptied_of_a_column_that_is_left_out_stays(delta: Bed, tmp_path: Path) -> None:
    assert delta.spark is not None
    columns = "id BIGINT NOT NULL, name STRING NOT NULL, amount INT"
    delta.spark.sql(f"CREATE TABLE delta.`{tmp_path}/lake/shop/orders` ({columns}) USING delta")
    table, narrow = other_of(delta), shape(ID, AMOUNT)
    table.claim()
    table.apply(delta.batch(SHAPE, [row(1), row(2)], at=[10, 10]), progress(1, 1))
    table.apply(delta.batch(narrow, [], [{"id": 1}], at=[20]), progress(1, 2))
    assert [(one["name"], one["amount"]) for one in delta.rows()] == [("a", None), ("a", 1)]
