"""What the Iceberg target refuses: rows moved behind its progress, and what it cannot keep."""

from __future__ import annotations

import json

import pytest

from tests.columns import ID
from tests.contracts.iceberg_disturbed import LOADED, NAMED, SHAPE, expire, loaded, opened, state_of
from tests.contracts.targets_bed import AMOUNT, Bed, progress, row, shape, sql
from tests.full import FULL
from tidesink.errors import ConfigError, ProgressError, SchemaRefusedError, StaleProgressError
from tidesink.events import Column, ColumnType
from tidesink.sinks.targets.iceberg.ledger import ACCEPTED, LEDGER
from tidesink.sinks.targets.iceberg.schema import open_session
from tidesink.sinks.targets.iceberg.table import IcebergTable
from tidesink.sinks.targets.sharing import quote_text

# ruff: noqa: S608
pytestmark = pytest.mark.spark


def rolled_back(bed: Bed, table: IcebergTable) -> tuple[int, int]:
    """The table at its first batch again; the snapshots of its second and of its first."""
    state = state_of(bed, table)
    newest, first, *_ = (int(snapshot.snapshotId()) for snapshot in state.lineage())
    sql(bed, f"CALL lake.system.rollback_to_snapshot({NAMED}, {first})")
    return newest, first


def test_a_table_rolled_back_is_refused_until_it_is_brought_forward(iceberg: Bed) -> None:
    table = loaded(iceberg)
    newest, _ = rolled_back(iceberg, table)
    with pytest.raises(StaleProgressError, match="rolled back") as refused:
        opened(iceberg).claim()
    assert f"set_current_snapshot('`shop`.`orders`', {newest})" in str(refused.value)
    with pytest.raises(StaleProgressError, match="rolled back"):
        table.apply(iceberg.batch(SHAPE, [row(9)]), progress(1, 3))
    with pytest.raises(StaleProgressError):
        opened(iceberg).committed()
    expire(iceberg)  # our branch keeps the newest snapshot from being expired
    sql(iceberg, f"CALL lake.system.set_current_snapshot('`shop`.`orders`', {newest})")
    again = opened(iceberg)
    assert again.claim().progress == progress(2, 2)
    again.apply(iceberg.batch(SHAPE, [row(4)]), progress(2, 3))
    assert iceberg.rows() == [*LOADED, row(4)]


@FULL
def test_a_person_may_say_that_the_rows_are_right(iceberg: Bed) -> None:
    table = loaded(iceberg)
    _, first = rolled_back(iceberg, table)
    sql(iceberg, f"ALTER TABLE {table.location} SET TBLPROPERTIES ('{ACCEPTED}' = '{first}')")
    again = opened(iceberg)
    assert again.claim().progress == progress(2, 2)
    again.apply(iceberg.batch(SHAPE, [row(4)]), progress(2, 3))
    assert iceberg.rows() == [row(1), row(2), row(4)]
    assert state_of(iceberg, table).property(ACCEPTED) is None


@FULL
def test_rows_written_over_are_noticed(iceberg: Bed) -> None:
    table = loaded(iceberg)
    sql(iceberg, f"INSERT OVERWRITE {table.location} VALUES (9L, 'x', 1)")
    with pytest.raises(StaleProgressError, match="replaced all rows"):
        opened(iceberg).committed()
    with pytest.raises(StaleProgressError, match="replaced all rows"):
        table.apply(iceberg.batch(SHAPE, [row(1)]), progress(1, 3))


def test_a_replaced_table_is_refused(iceberg: Bed) -> None:
    table = loaded(iceberg)
    columns = "9L AS id, 'x' AS name, 1 AS amount"
    sql(iceberg, f"CREATE OR REPLACE TABLE {table.location} USING iceberg AS SELECT {columns}")
    with pytest.raises(StaleProgressError, match="replaced"):
        table.apply(iceberg.batch(SHAPE, [row(1)]), progress(1, 3))
    with pytest.raises(StaleProgressError, match="replaced"):
        opened(iceberg).claim()


def test_a_table_dropped_and_made_again_is_noticed(iceberg: Bed) -> None:
    table = loaded(iceberg)
    sql(iceberg, f"DROP TABLE {table.location}")
    with pytest.raises(StaleProgressError, match="was dropped while this worker held it"):
        table.apply(iceberg.batch(SHAPE, [row(4)]), progress(1, 3))
    again = opened(iceberg)
    with pytest.raises(StaleProgressError, match="was dropped and created again"):
        table.apply(iceberg.batch(SHAPE, [row(4)]), progress(1, 3))
    assert again.claim().progress is None
    assert iceberg.rows() == []


@FULL
def test_snapshots_that_nobody_knows_any_more_are_not_guessed_at(iceberg: Bed) -> None:
    table = loaded(iceberg)
    for _ in range(2):
        sql(iceberg, f"UPDATE {table.location} SET amount = amount")
    expire(iceberg)
    with pytest.raises(StaleProgressError, match="expired") as refused:
        opened(iceberg).claim()
    head = state_of(iceberg, table).head
    assert f"'{ACCEPTED}' = '{head}'" in str(refused.value)


def test_what_iceberg_cannot_widen_is_refused_by_name(iceberg: Bed) -> None:
    price = Column("price", ColumnType("decimal", precision=5, scale=2))
    table = iceberg.target.open_table(shape(ID, AMOUNT, price), pipeline="shop")
    table.claim()
    finer = Column("price", ColumnType("decimal", precision=12, scale=4))
    with pytest.raises(SchemaRefusedError, match=r"column=price.*decimal\(5,2\).*decimal\(12,4\)"):
        table.evolve(shape(ID, AMOUNT, finer))
    with pytest.raises(SchemaRefusedError, match=r"column=amount.*decimal"):
        table.evolve(shape(ID, Column("amount", ColumnType("decimal", precision=30, scale=0)), price))


@FULL
def test_the_ledger_of_another_tidesink_is_not_read(iceberg: Bed) -> None:
    table = loaded(iceberg)
    newer = quote_text('{"tidesink":2}')
    sql(iceberg, f"ALTER TABLE {table.location} SET TBLPROPERTIES ('{LEDGER}' = {newer})")
    with pytest.raises(ProgressError, match="format version 2"):
        opened(iceberg).claim()


def test_a_column_of_icebergs_own_name_is_refused(iceberg: Bed) -> None:
    with pytest.raises(SchemaRefusedError, match="_Pos"):
        iceberg.target.open_table(shape(ID, Column("_Pos", ColumnType("int"))), pipeline="shop")


def test_a_catalog_that_nobody_described_is_refused(iceberg: Bed) -> None:
    assert iceberg.spark is not None
    with pytest.raises(ConfigError, match=r"catalog-properties.*spark\.sql\.catalog\.nowhere"):
        open_session(iceberg.spark, "nowhere", {})


def test_an_epoch_that_comes_twice_is_told_apart(iceberg: Bed) -> None:
    """As after a catalog was brought back from a backup, and another worker claimed the table again."""
    table = loaded(iceberg)
    ledger = json.loads(state_of(iceberg, table).property(LEDGER) or "")
    again = quote_text(json.dumps({**ledger, "claimed_by": "another worker"}))
    sql(iceberg, f"ALTER TABLE {table.location} SET TBLPROPERTIES ('{LEDGER}' = {again})")
    with pytest.raises(StaleProgressError, match="Another worker holds this table"):
        table.apply(iceberg.batch(SHAPE, [row(4)]), progress(1, 3))
