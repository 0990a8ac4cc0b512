"""OPTIMIZE and VACUUM by others while a merge is under way: the batch is whole, or done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.contracts.interrupted import HeldMerge
from tests.contracts.targets_bed import Bed, progress, row, shape
from tests.full import FULL
from tidesink.errors import TransientTargetError
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


def _session(bed: Bed) -> Any:
    assert bed.spark is not None
    session = bed.spark.newSession()
    # VACUUM lists files with ten tasks otherwise, on the one core that is left.
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "1")
    session.conf.set("spark.databricks.delta.snapshotPartitions", "2")
    return session
