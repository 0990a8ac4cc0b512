"""The whole job into Iceberg, ours or a careful hand-written one, each in a process of its own.

``python -m benchmarks.iceberg_target ours|baseline SETTINGS.json`` prints one JSON object, as ``whole_job``
does. Both write merge-on-read tables of format 2 in a catalog that is a folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks.baseline import COLUMNS_DDL, BaselineJob, plain_session
from benchmarks.whole_job import baseline, ours

_MODES: Final = "'write.merge.mode'='merge-on-read','write.delete.mode'='merge-on-read','format-version'='2'"


class IcebergBaseline(BaselineJob):
    """The hand-written job into Iceberg; a MERGE that is done again changes nothing."""

    @property
    def location(self) -> str:
        """The target table in SQL."""
        return "lake.bench.events"

    def create(self, spark: SparkSession) -> None:
        """Make the empty target table."""
        spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.location} ({COLUMNS_DDL}) "
            f"USING iceberg TBLPROPERTIES ({_MODES})"
        )


def _ours(settings: dict[str, Any]) -> dict[str, Any]:
    warehouse = str(Path(settings["directory"]) / "ours-iceberg")
    catalog = {"type": "hadoop", "warehouse": warehouse}
    target = {"type": "iceberg", "catalog": "lake", "catalog-properties": catalog}
    place = str(Path(settings["directory"]) / "iceberg")
    return ours({**settings, "target": target, "directory": place})


def _baseline(settings: dict[str, Any]) -> dict[str, Any]:
    catalog = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(Path(settings["directory"]) / "baseline-iceberg"),
    }
    place = str(Path(settings["directory"]) / "iceberg")
    return baseline(
        {**settings, "directory": place},
        kind=IcebergBaseline,
        session=lambda: plain_session(catalog, target="iceberg"),
    )


if __name__ == "__main__":
    print(json.dumps({"ours": _ours, "baseline": _baseline}[sys.argv[1]](json.loads(sys.argv[2]))))
