"""Iceberg tables as other engines read them, which have no Java."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import polars
import pytest
from pyiceberg.table import StaticTable

from tests.contracts.iceberg_disturbed import state_of
from tests.contracts.targets_bed import Bed, progress, row, shape, sql
from tests.contracts.test_targets_iceberg_partitions import made
from tests.duckdb_readers import by_duckdb
from tests.full import FULL
from tidesink.sinks.targets.iceberg.table import IcebergTable

# ruff: noqa: S608
# Polars would plan a scan faster with another package.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:Iceberg scan planning")]
SHAPE: Final = shape()


def metadata_of(bed: Bed, table: IcebergTable) -> StaticTable:
    """The table as its newest metadata file has it, without a catalog."""
    return StaticTable.from_metadata(str(state_of(bed, table).metadata.metadataFileLocation()))


def by_pyiceberg(bed: Bed, table: IcebergTable) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = metadata_of(bed, table).scan().to_arrow().sort_by("id").to_pylist()
    return found


def by_polars(bed: Bed, table: IcebergTable) -> list[dict[str, Any]]:
    frame = polars.scan_iceberg(metadata_of(bed, table)).collect()
    assert isinstance(frame, polars.DataFrame)
    return frame.sort("id").to_dicts()


@pytest.mark.parametrize(
    ("batches", "by"),
    [(5, ""), pytest.param(200, "", marks=FULL), pytest.param(60, "amount, bucket(3, id)", marks=FULL)],
)
def test_all_engines_read_the_same_after_many_batches(iceberg: Bed, batches: int, by: str) -> None:
    """And their packing, where they are many."""
    if by:
        table = made(iceberg, SHAPE, by)
    else:
        opened = iceberg.target.open_table(SHAPE, pipeline="shop")
        assert isinstance(opened, IcebergTable)
        table = opened
        table.claim()
    random, kept = Random(1), dict[int, dict[str, Any]]()
    for number in range(1, batches + 1):
        keys = random.sample(range(500 if batches > 50 else 30), 12)
        new = {key: row(key, f"{number}-{key}", random.randrange(4)) for key in keys[:9]}
        kept = {key: one for key, one in (kept | new).items() if key not in keys[9:]}
        table.apply(
            iceberg.batch(SHAPE, [*new.values()], [{"id": key} for key in keys[9:]]), progress(1, number)
        )
    operations = {
        one["operation"] for one in sql(iceberg, f"SELECT operation FROM {table.location}.snapshots")
    }
    assert "overwrite" in operations
    assert ("replace" in operations) == (batches > 50)
    expected = [kept[key] for key in sorted(kept)]
    assert iceberg.rows() == by_pyiceberg(iceberg, table) == by_polars(iceberg, table) == expected
    assert by_duckdb("iceberg", metadata_of(iceberg, table).metadata_location) == expected
