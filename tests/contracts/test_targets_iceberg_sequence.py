"""What only Iceberg tables can get wrong under ``sequence_by: source``."""

from __future__ import annotations

import pytest

from tests.contracts.targets_bed import Bed, progress, row, shape
from tidesink.sinks.targets.base import Collected, SequencedTable
from tidesink.sinks.targets.iceberg.table import IcebergTarget

pytestmark = pytest.mark.spark
SHAPE = shape()


def test_a_table_that_rewrites_its_files_counts_and_forgets_as_any_other(iceberg: Bed) -> None:
    table = iceberg.target.open_table(SHAPE, pipeline="shop")
    assert isinstance(iceberg.target, IcebergTarget)
    assert isinstance(table, SequencedTable)
    assert iceberg.spark is not None
    modes = ", ".join(f"'write.{name}.mode' = 'copy-on-write'" for name in ("merge", "update", "delete"))
    location = iceberg.target.location_of(SHAPE.table)
    iceberg.spark.sql(f"ALTER TABLE {location} SET TBLPROPERTIES ({modes})")
    table.claim()
    table.apply(iceberg.batch(SHAPE, [row(1), row(2), row(3)], at=[10, 10, 30]), progress(1, 1))
    batch = iceberg.batch(SHAPE, [row(2, "b"), row(3, "late"), row(4)], [{"id": 1}], at=[20, 20, 20, 20])
    result = table.apply(batch, progress(1, 2))
    assert (result.inserted, result.updated, result.stale) == (1, 2, 1)
    assert iceberg.living() == [row(2, "b"), row(3), row(4)]
    assert table.collect(20) == Collected(20, 1, 0, None)
    assert iceberg.living() == [row(2, "b"), row(3), row(4)]


def test_a_forgotten_delete_and_the_horizon_are_one_commit(iceberg: Bed) -> None:
    """Readers never see the rows gone while the table still says that it remembers them."""
    table = iceberg.target.open_table(SHAPE, pipeline="shop")
    assert isinstance(iceberg.target, IcebergTarget)
    assert isinstance(table, SequencedTable)
    assert iceberg.spark is not None
    table.claim()
    table.apply(iceberg.batch(SHAPE, [row(9)], [{"id": 1}], at=[5, 10]), progress(1, 1))
    location = iceberg.target.location_of(SHAPE.table)
    log = f"SELECT file FROM {location}.metadata_log_entries ORDER BY timestamp, file"  # noqa: S608
    before = iceberg.spark.sql(log).count()
    table.collect(10)
    assert (
        iceberg.spark.sql(log).count() == before + 2
    )  # what is staged on the branch, and the one that counts
    assert table.horizon() == 10
    assert table.committed() == progress(1, 1)
    assert [one["id"] for one in iceberg.rows()] == [9]
