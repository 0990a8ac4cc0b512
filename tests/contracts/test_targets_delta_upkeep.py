"""OPTIMIZE and VACUUM by others while a merge is under way: the batch is whole, or done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.contracts.interrupted import HeldMerge
from tests.contracts.targets_bed import Bed, progress, row, shape
from tests.full import FULL
from tidesink.errors import TransientTargetError
from tidesink.sinks.targets.delta.files import FilePlan
from tidesink.sinks.targets.delta.table import DeltaTable

pytestmark = pytest.mark.spark
SHAPE: Final = shape()


def opened(bed: Bed) -> DeltaTable:
    """The table as another worker opens it."""
    table = bed.reopen().open_table(SHAPE, pipeline="shop")
    assert isinstance(table, DeltaTable)
    return table


def loaded(bed: Bed) -> DeltaTable:
    """A claimed table with two batches applied, in two files."""
    table = opened(bed)
    epoch = table.claim().epoch
    for number in (1, 2):
        table.apply(bed.batch(SHAPE, [row(number)]), progress(epoch, number))
    return table


@pytest.mark.parametrize("upkeep", ["OPTIMIZE {}", pytest.param("VACUUM {}", marks=FULL)])
def test_upkeep_by_others_in_the_middle_of_a_merge(delta: Bed, tmp_path: Path, upkeep: str) -> None:
    table, session = loaded(delta), _session(delta)
    # One row, so that one task waits: the other core is the disturber's.
    batch = delta.batch(SHAPE, [row(1, "new")])
    with HeldMerge(table, batch, progress(1, 3), gate=tmp_path) as merge:
        session.sql(upkeep.format(table.location)).collect()
    # What rewrites the files that a merge has read makes it begin again: nothing of it was written.
    assert [type(exc) for exc in merge.raised] in ([], [TransientTargetError])
    if merge.raised:
        assert delta.rows() == [row(1), row(2)]
        assert table.committed() == progress(1, 2)
    done = table.apply(batch, progress(1, 3))
    assert (done.inserted, done.updated) == (0, 1)
    assert delta.rows() == [row(1, "new"), row(2)]


def test_what_a_dead_worker_left_is_removed_by_vacuum(delta: Bed) -> None:
    """And nothing else: the table's rows, and what vectors hide of them, stay."""
    table = loaded(delta)
    table.apply(delta.batch(SHAPE, [row(3), row(4), row(5)]), progress(1, 3))
    table.apply(delta.batch(SHAPE, [row(3, "b")], [{"id": 4}]), progress(1, 4))
    before, batch = _files(table), delta.batch(SHAPE, [row(1, "new")], [{"id": 5}])
    plan = table.format.files.plan(batch, progress(1, 5))
    assert isinstance(plan, FilePlan)
    table.format.files.stage(batch, plan)
    left = _files(table) - before
    assert sorted(name.split("-")[0].split("_")[0] for name in left) == ["deletion", "part"]
    session = _session(delta)
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    session.sql(f"VACUUM {table.location} RETAIN 0 HOURS").collect()
    assert not left & _files(table)
    assert delta.rows() == [row(1), row(2), row(3, "b"), row(5)]
    result = table.apply(batch, progress(1, 5))
    assert (result.updated, result.deleted) == (1, 1)
    assert delta.rows() == [row(1, "new"), row(2), row(3, "b")]


def _files(table: DeltaTable) -> set[str]:
    return {one.name for one in Path(table.path).iterdir() if one.suffix in (".parquet", ".bin")}


def _session(bed: Bed) -> Any:
    assert bed.spark is not None
    session = bed.spark.newSession()
    # VACUUM lists files with ten tasks otherwise, on the one core that is left.
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "1")
    session.conf.set("spark.databricks.delta.snapshotPartitions", "2")
    return session
