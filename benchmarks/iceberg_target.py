"""The whole job into Iceberg, ours or a careful hand-written one, each in a process of its own.

``python -m benchmarks.iceberg_target ours|baseline SETTINGS.json`` prints one JSON object, as ``whole_job``
does. Both write merge-on-read tables of format 2 in a catalog that is a folder.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks.baseline import COLUMNS_DDL, BaselineJob, plain_session
from benchmarks.events import STEADY_BATCH, STEADY_BATCHES
from benchmarks.table import Rows, rate
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


def iceberg_rows(figures: Mapping[str, Mapping[str, Any]], events: int) -> Rows:
    """The first load and a small batch, each beside the baseline."""
    ours_batch, base_batch = (
        statistics.median(figures[side]["batch_seconds"]) for side in ("ours", "baseline")
    )
    our_rate = events / figures["ours"]["load_seconds"]
    # The baseline comes second and finds our steady batches in the topic too.
    base_rate = (events + STEADY_BATCH * STEADY_BATCHES) / figures["baseline"]["load_seconds"]
    return [
        ("first load into Iceberg, foreachBatch", rate(base_rate), ""),
        ("first load into Iceberg, tidesink", rate(our_rate), f"{our_rate / base_rate:.2f}× the baseline"),
        ("1,000-event batch into Iceberg, foreachBatch", f"{base_batch:.2f} s", ""),
        (
            "1,000-event batch into Iceberg, tidesink",
            f"{ours_batch:.2f} s",
            f"{base_batch / ours_batch:.2f}× the baseline",
        ),
    ]


if __name__ == "__main__":
    print(json.dumps({"ours": _ours, "baseline": _baseline}[sys.argv[1]](json.loads(sys.argv[2]))))
