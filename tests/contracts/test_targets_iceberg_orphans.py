"""Files of Iceberg tables that no snapshot names, and who removes them."""

from __future__ import annotations

import pytest

from tests.contracts.iceberg_disturbed import SHAPE
from tests.contracts.targets_bed import TABLE, Bed, progress, row
from tests.contracts.test_targets_iceberg_format3 import loaded_in
from tidesink.sinks.targets.iceberg.files import FilePlan, FileWriter
from tidesink.sinks.targets.iceberg.jvm import JvmTable
from tidesink.sinks.targets.lake.storage import local_path

pytestmark = pytest.mark.spark

FORMATS = pytest.mark.parametrize("version", [2, 3])


@FORMATS
def test_what_a_dead_worker_left_is_removed_as_orphans(iceberg: Bed, version: int) -> None:
    """And nothing else: the table's rows, and what is deleted of them, stay."""
    table = loaded_in(iceberg, version)
    assert iceberg.spark is not None
    jvm, batch = JvmTable(iceberg.spark, table.location), iceberg.batch(SHAPE, [row(3, "c")], [{"id": 1}])
    plan = FileWriter(iceberg.spark, jvm, TABLE).plan(batch, progress(1, 3), jvm.state())
    assert isinstance(plan, FilePlan)
    staged = FileWriter(iceberg.spark, jvm, TABLE).stage(batch, plan)
    assert staged is not None
    left = [local_path(path) for path in staged.paths]
    assert len(left) == 2
    assert all(path.exists() for path in left)
    # The procedure takes no files of the last day.
    actions = jvm.java.spark.actions.SparkActions.get(iceberg.spark._jsparkSession)
    actions.deleteOrphanFiles(jvm.state().table).olderThan(4_000_000_000_000).execute()
    assert not any(path.exists() for path in left)
    assert iceberg.rows() == [row(1), row(2, "b"), row(3)]
    result = table.apply(batch, progress(1, 3))
    assert (result.updated, result.deleted) == (1, 1)
    assert iceberg.rows() == [row(2, "b"), row(3, "c")]
