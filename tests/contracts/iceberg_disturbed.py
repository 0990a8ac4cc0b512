"""What tests of the Iceberg target alone begin with: a loaded table, and what others do to it."""

from __future__ import annotations

from typing import Final

from tests.contracts.targets_bed import Bed, progress, row, shape, sql
from tidesink.sinks.targets.iceberg.jvm import JvmTable, TableState
from tidesink.sinks.targets.iceberg.table import IcebergTable, IcebergTarget

SHAPE: Final = shape()
NAMED: Final = "'shop.orders'"


LOADED: Final = [row(1), row(2, "b"), row(3)]


def loaded(bed: Bed, target: IcebergTarget | None = None) -> IcebergTable:
    """A claimed table with batches 1 and 2 applied."""
    table = (target or bed.target).open_table(SHAPE, pipeline="shop")
    assert isinstance(table, IcebergTable)
    epoch = table.claim().epoch
    table.apply(bed.batch(SHAPE, [row(1), row(2)]), progress(epoch, 1))
    table.apply(bed.batch(SHAPE, [row(2, "b"), row(3)]), progress(epoch, 2))
    return table


def opened(bed: Bed) -> IcebergTable:
    """The table as another worker opens it."""
    table = bed.reopen().open_table(SHAPE, pipeline="shop")
    assert isinstance(table, IcebergTable)
    return table


def state_of(bed: Bed, table: IcebergTable) -> TableState:
    """The table's metadata now."""
    assert bed.spark is not None
    return JvmTable(bed.spark, table.location).state()


def compact(bed: Bed) -> None:
    """Another program packs every file."""
    options = "options => map('rewrite-all', 'true')"
    assert sql(bed, f"CALL lake.system.rewrite_data_files(table => {NAMED}, {options})")


def expire(bed: Bed) -> None:
    """As a nightly job does it, only at once."""
    later = "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1"
    sql(bed, f"CALL lake.system.expire_snapshots(table => {NAMED}, {later})")
