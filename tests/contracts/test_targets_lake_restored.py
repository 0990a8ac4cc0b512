"""A lake's folder that others put an older copy of in its place, under a worker that holds the table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.contracts.conftest import BEDS
from tests.contracts.targets_bed import progress, row, shape
from tidesink.errors import StaleProgressError

pytestmark = pytest.mark.spark
SHAPE = shape()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_folder_that_goes_back_gets_no_batch(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    lake, backup = tmp_path / "lake", tmp_path / "backup"
    bed = BEDS[kind](request, lake)
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(bed.batch(SHAPE, [row(1)]), progress(epoch, 1))
    shutil.copytree(lake, backup)
    table.apply(bed.batch(SHAPE, [row(2)]), progress(epoch, 2))
    shutil.rmtree(lake)
    shutil.copytree(backup, lake)
    with pytest.raises(StaleProgressError, match=r"ends at|The last batch in the target is 1, but"):
        table.apply(bed.batch(SHAPE, [row(3)]), progress(epoch, 3))
    again = bed.reopen().open_table(SHAPE, pipeline="shop")
    assert again.claim().progress == progress(epoch + 1, 1)
    again.apply(bed.batch(SHAPE, [row(2)]), progress(epoch + 1, 2))
    assert bed.rows() == [row(1), row(2)]
