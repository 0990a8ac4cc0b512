"""Beds for the Iceberg target: a catalog in a folder, and one in a SQLite database behind JDBC."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contracts.targets_bed import Bed, spark_rows
from tidesink.events import TableId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "lake"


def hadoop_catalog(folder: Path) -> dict[str, str]:
    """A catalog that is a folder of the test's own."""
    return {"type": "hadoop", "warehouse": str(folder)}


def jdbc_catalog(folder: Path) -> dict[str, str]:
    """A catalog in a SQLite database of the test's own."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{folder}/catalog.db",
        "warehouse": str(folder / "tables"),
        "jdbc.schema-version": "V1",
    }


def iceberg_jdbc_bed(request: pytest.FixtureRequest, folder: Path) -> Bed:
    """Iceberg tables whose commits are a database's compare-and-set."""
    return iceberg_jdbc_bed_in(request.getfixturevalue("spark"), jdbc_catalog(folder))


def iceberg_jdbc_bed_in(session: SparkSession, catalog: dict[str, str]) -> Bed:
    """The same by a session and with a catalog at hand."""
    from tidesink.sinks.targets.iceberg.schema import open_session

    open_session(session, CATALOG, catalog)
    # It looks for tables that are there without closing what it reads, which keeps all others from writing.
    return iceberg_bed_in(session, {**catalog, "jdbc.init-catalog-tables": "false"})


def iceberg_bed(request: pytest.FixtureRequest, folder: Path) -> Bed:
    """Iceberg tables, read back by name in a session of the test's own."""
    return iceberg_bed_in(request.getfixturevalue("spark"), hadoop_catalog(folder))


def iceberg_bed_in(session: SparkSession, catalog: dict[str, str]) -> Bed:
    """The same by a session at hand."""
    from tidesink.sinks.targets.iceberg.schema import open_session
    from tidesink.sinks.targets.iceberg.table import IcebergTarget

    spark = open_session(session, CATALOG, catalog)
    target = IcebergTarget(spark, CATALOG, properties=catalog)

    def read(table: TableId) -> list[dict[str, Any]]:
        return spark_rows(spark.table(target.location_of(table)))

    return Bed(
        "iceberg", target, read, lambda: IcebergTarget(spark, CATALOG, properties=catalog), spark, True
    )
