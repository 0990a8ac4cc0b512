"""Where the contract of targets runs on Delta."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contracts.targets_bed import Bed, spark_rows
from tidesink.events import TableId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def delta_bed(request: pytest.FixtureRequest, folder: Path) -> Bed:
    """Delta tables in a folder of the test's own, read back by path."""
    return delta_bed_in(request.getfixturevalue("spark"), folder)


def delta_bed_in(session: SparkSession, folder: Path | str) -> Bed:
    """The same by a session at hand."""
    from tidesink.sinks.targets.delta.table import DeltaTarget
    from tidesink.sinks.targets.lake.tables import open_session

    # What others do to a table (RESTORE, OPTIMIZE, ALTER) computes snapshots as well: 50 partitions of an
    # untuned session make most of a test's time.
    spark = open_session(session)
    target = DeltaTarget(spark, str(folder))

    def read(table: TableId) -> list[dict[str, Any]]:
        return spark_rows(spark.read.format("delta").load(target.path_of(table)))

    return Bed("delta", target, read, lambda: DeltaTarget(spark, str(folder)), spark, packs=True)
