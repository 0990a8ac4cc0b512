"""Iceberg tables of a REST catalog: batches as files, fencing, and commits whose answers are lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contracts.iceberg_beds import iceberg_bed_in
from tests.contracts.iceberg_disturbed import LOADED, SHAPE, loaded, opened
from tests.contracts.targets_bed import Bed, progress, row
from tests.contracts.test_targets_iceberg import WIDER
from tests.contracts.test_targets_iceberg_files import altered, reason
from tests.full import FULL
from tests.iceberg_rest import RestCatalog, rest_catalog
from tidesink.errors import CommitUnknownError, StaleProgressError, TransientTargetError
from tidesink.sinks.targets.base import ApplyOptions, TableMode
from tidesink.sinks.targets.iceberg.table import IcebergTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[RestCatalog]:
    """A REST catalog of the test's own."""
    with rest_catalog(tmp_path / "catalog") as found:
        yield found


@pytest.fixture
def rest(catalog: RestCatalog, spark: SparkSession) -> Bed:
    """Tables of it."""
    return iceberg_bed_in(spark, {"type": "rest", "uri": catalog.url})


def test_batches_are_files(rest: Bed) -> None:
    table = loaded(rest)
    batch = rest.batch(SHAPE, [row(3, "c"), row(4)], [{"id": 1}, {"id": 9}])
    assert reason(rest, table, batch) is None
    result = table.apply(batch, progress(1, 3))
    assert (result.inserted, result.updated, result.deleted, result.absent) == (1, 1, 1, 1)
    assert rest.rows() == [row(2, "b"), row(3, "c"), row(4)]
    assert opened(rest).committed() == progress(1, 3)


def test_of_two_workers_the_older_one_stops(rest: Bed) -> None:
    older = loaded(rest)
    newer = opened(rest)
    assert newer.claim().epoch == 2
    with pytest.raises(StaleProgressError):
        older.apply(rest.batch(SHAPE, [row(9)]), progress(1, 3))
    newer.apply(rest.batch(SHAPE, [row(4)]), progress(2, 3))
    assert rest.rows() == [*LOADED, row(4)]


@pytest.mark.parametrize("status", [409, pytest.param(500, marks=FULL), 503])
@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_a_commit_whose_answer_is_lost_is_made_once(
    rest: Bed, catalog: RestCatalog, status: int, mode: TableMode
) -> None:
    table = rest.target.open_table(SHAPE, pipeline="shop")
    assert isinstance(table, IcebergTable)
    epoch = table.claim().epoch
    first, second = (replace(rest.batch(SHAPE, [row(at)]), how=ApplyOptions(mode=mode)) for at in (1, 2))
    table.apply(first, progress(epoch, 1))
    assert reason(rest, table, second) is None
    catalog.lost = [status]
    try:
        result = table.apply(second, progress(epoch, 2))
    except (CommitUnknownError, TransientTargetError):  # the worker tries again
        result = table.apply(second, progress(epoch, 2))
    assert (result.inserted, catalog.lost) == (1, [])
    assert table.committed() == opened(rest).committed() == progress(epoch, 2)
    assert rest.rows() == [row(1), row(2)]


@pytest.mark.parametrize("status", [409, 503])
def test_a_merge_whose_answer_is_lost_is_made_once(rest: Bed, catalog: RestCatalog, status: int) -> None:
    table = loaded(rest)
    altered("SET TBLPROPERTIES ('write.merge.mode' = 'copy-on-write')")(rest, table.location)
    batch = rest.batch(SHAPE, [row(2, "c"), row(4)], [{"id": 1}])
    assert reason(rest, table, batch) is not None
    catalog.lost = [status]
    try:
        result = table.apply(batch, progress(1, 3))
    except (CommitUnknownError, TransientTargetError):  # the worker tries again
        result = table.apply(batch, progress(1, 3))
    assert (result.inserted, result.updated, result.deleted, catalog.lost) == (1, 1, 1, [])
    assert table.committed() == opened(rest).committed() == progress(1, 3)
    assert rest.rows() == [row(2, "c"), row(3), row(4)]


@pytest.mark.parametrize("status", [409, 503])
def test_a_column_whose_commit_has_no_answer_is_added_once(
    rest: Bed, catalog: RestCatalog, status: int
) -> None:
    table = loaded(rest)
    catalog.lost = [status]
    try:
        table.evolve(WIDER)
    except (CommitUnknownError, TransientTargetError):
        table.evolve(WIDER)
    assert catalog.lost == []
    assert rest.rows() == [{**one, "state": 7} for one in LOADED]
    table.apply(rest.batch(WIDER, [{**row(4), "state": None}]), progress(1, 3))
    assert rest.rows()[3] == {**row(4), "state": None}
