"""What a Delta table refuses rather than lose, mix up or double rows; and errors it gets over."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.interrupted import CutOff
from tests.contracts.targets_bed import AMOUNT, NAME, TABLE, Bed, progress, row, shape
from tests.full import FULL
from tidesink.errors import SchemaRefusedError, StaleProgressError, TargetError, TidesinkError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.targets.delta.table import DeltaTable, DeltaTarget
from tidesink.typemap.target_schema import TargetSchema, shape_of

pytestmark = pytest.mark.spark
SHAPE = shape()
DECIMAL = ColumnType("decimal", precision=20, scale=0)
LONG_DECIMAL = ColumnType("decimal", precision=60, scale=0)


def opened(bed: Bed, asked: TargetSchema = SHAPE) -> DeltaTable:
    table = bed.reopen().open_table(asked, pipeline="shop")
    assert isinstance(table, DeltaTable)
    return table


def claimed(bed: Bed, asked: TargetSchema = SHAPE) -> DeltaTable:
    """A table at version 1, held at epoch 1."""
    table = opened(bed, asked)
    assert table.claim().epoch == 1
    return table


def keyed_by(column_type: ColumnType) -> TargetSchema:
    return shape(replace(ID, type=column_type), NAME, AMOUNT)


def forget_before(bed: Bed, table: DeltaTable, version: int) -> None:
    """Log clean-up: a checkpoint stays, and the commits from ``version`` on."""
    spark: Any = bed.spark
    logs = spark._jvm.org.apache.spark.sql.delta.DeltaLog
    logs.forTable(spark._jsparkSession, table.path).checkpoint()
    for gone in range(version):
        Path(table.path, "_delta_log", f"{gone:020d}.json").unlink()
    logs.clearCache()


@FULL
def test_a_restore_is_refused_also_after_the_commits_behind_it_are_cleaned_away(
    delta: Bed, tmp_path: Path
) -> None:
    assert delta.spark is not None
    store = SqlStateStore(str(tmp_path / "state.db"))
    target = DeltaTarget(delta.spark, str(tmp_path / "lake"), history=store)
    table = target.open_table(SHAPE, pipeline="shop")
    table.claim()
    for batch in (1, 2):
        store.record_progress(progress(1, batch))  # as the worker does
        table.apply(delta.batch(SHAPE, [row(batch)]), progress(1, batch))
    delta.spark.sql(f"RESTORE TABLE {table.location} TO VERSION AS OF 2")
    forget_before(delta, table, 4)
    with pytest.raises(StaleProgressError, match="RESTORE at version 4") as refused:
        target.open_table(SHAPE, pipeline="shop").claim()
    assert table.path in str(refused.value)
    store.close()


@FULL
def test_two_tables_on_one_path_do_not_share_their_progress(delta: Bed) -> None:
    assert isinstance(delta.target, DeltaTarget)
    target = replace(delta.target, template="{schema}_{table}")
    ours, theirs = TableId("shop", "eu_orders"), TableId("shop_eu", "orders")
    assert target.path_of(ours) == target.path_of(theirs)
    asked = shape(table=ours)
    table = target.open_table(asked, pipeline="shop")
    table.claim()
    table.apply(delta.batch(asked, [row(1)]), progress(1, 1, table=ours))
    other = target.open_table(shape(table=theirs), pipeline="shop")
    with pytest.raises(
        StaleProgressError, match=r"rows of shop\.eu_orders.*this table is shop_eu\.orders"
    ) as refused:
        other.claim()
    assert target.path_of(ours) in str(refused.value)
    assert "target.table" in str(refused.value)
    assert table.committed() == progress(1, 1, table=ours)


def test_a_decimal_key_kept_as_text_is_compared_as_text(delta: Bed) -> None:
    text, number = keyed_by(LONG_DECIMAL), keyed_by(DECIMAL)
    table = claimed(delta, text)
    table.apply(delta.batch(text, [row("9007199254740992"), row("9007199254740993")]), progress(1, 1))
    assert table.evolve(number).widened == ()
    done = table.apply(delta.batch(number, [row(Decimal(9007199254740993), "b")]), progress(1, 2))
    assert (done.inserted, done.updated) == (0, 1)
    assert delta.rows() == [row("9007199254740992"), row("9007199254740993", "b")]


@pytest.mark.parametrize("before", [pytest.param(True, marks=FULL), False])
def test_an_evolution_that_was_cut_off_is_finished(delta: Bed, tmp_path: Path, before: bool) -> None:
    # Behind the UPDATE is before the commit which says that the default is given: no statement, as this is.
    session: Any = CutOff(delta.spark, before=before, word="UPDATE")
    table = DeltaTarget(session, str(tmp_path / "lake")).open_table(SHAPE, pipeline="shop")
    table.claim()
    table.apply(delta.batch(SHAPE, [row(1)]), progress(1, 1))
    wider = shape(ID, NAME, AMOUNT, Column("state", ColumnType("int"), default="7"))
    session.armed = True
    with pytest.raises(TidesinkError):
        table.evolve(wider)
    assert not session.armed
    assert table.evolve(wider).backfilled == ("state",)
    assert not table.evolve(wider).changed
    table.apply(delta.batch(wider, [{**row(2), "state": 8}]), progress(1, 2))
    assert [r["state"] for r in delta.rows()] == [7, 8]


@pytest.mark.parametrize("name", ["_metadata", "_ROW_dropped_", "_source_row_present_"])
def test_a_column_named_as_deltas_own_is_refused(delta: Bed, name: str) -> None:
    with pytest.raises(SchemaRefusedError, match=f"reserves the column name {name}"):
        opened(delta, shape(ID, Column(name, ColumnType("int"))))
    assert isinstance(delta.target, DeltaTarget)
    assert not Path(delta.target.path_of(TABLE)).exists()


@FULL
def test_another_batch_under_the_number_of_a_committed_one_is_refused(delta: Bed) -> None:
    table = claimed(delta)
    table.apply(delta.batch(SHAPE, [row(1)]), progress(1, 1))
    other = replace(progress(1, 1), commit_ts=999)
    with pytest.raises(StaleProgressError, match="Epoch 1 batch 1 is committed at version 2 with other"):
        table.apply(delta.batch(SHAPE, [row(2)]), other)
    assert delta.rows() == [row(1)]


@FULL
def test_rows_written_under_another_key_are_refused(delta: Bed) -> None:
    by_name = shape_of(TableSchema(TABLE, (ID, NAME, AMOUNT)), keys=("name",))
    table = claimed(delta)
    assert opened(delta, by_name).claim().progress is None, "no row was written yet"
    table = opened(delta)
    assert table.claim().epoch == 3
    table.apply(delta.batch(SHAPE, [row(1)]), progress(3, 1))
    with pytest.raises(SchemaRefusedError, match=r"under the key \(id\).* now \(name\)") as refused:
        opened(delta, by_name).claim()
    assert "Set `keys` in the config" in str(refused.value)
    assert opened(delta, shape(replace(ID, name="ID"), NAME, AMOUNT)).claim().epoch == 4


def test_a_text_that_delta_would_change_in_a_table_of_another_hand_is_refused(delta: Bed) -> None:
    assert delta.spark is not None
    assert isinstance(delta.target, DeltaTarget)
    columns = "id BIGINT, name STRING, amount INT, code CHAR(5)"
    place = f"delta.`{delta.target.path_of(TABLE)}`"
    delta.spark.sql(f"CREATE TABLE {place} ({columns}) USING delta PARTITIONED BY (name)")
    table = opened(delta)
    with pytest.raises(SchemaRefusedError, match=r"column=code.*char\(5\)"):
        table.gap(shape(ID, NAME, Column("code", ColumnType("varchar", length=5))))
    epoch = table.claim().epoch
    table.apply(delta.batch(SHAPE, [row(1)]), progress(epoch, 1))
    with pytest.raises(TargetError, match=r"column=name.*empty text"):
        table.apply(delta.batch(SHAPE, [row(2, ""), row(3)]), progress(epoch, 2))
    assert delta.rows() == [{**row(1), "code": None}]
