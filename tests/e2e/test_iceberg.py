"""A changefeed of the real producer into Iceberg: every row as TiDB held it, in two kinds of catalog."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contracts.iceberg_beds import jdbc_catalog
from tests.e2e.iceberg_beside import newest_metadata
from tests.e2e.killing import failpoints_hit, finish, start_worker
from tests.e2e.replay import Servers, final_state, replay, replay_config, wrong_values
from tests.full import FULL
from tests.sessions import sqlite_driver
from tidesink.config import load_config
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
TABLES = ("account", "movement", "pair", "wide")


def iceberg_config(
    path: Path, catalog: Mapping[str, str], *, conf: Mapping[str, str] | None = None, more: Any = None
) -> Path:
    """A replay's config with an Iceberg target in place of its own."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["target"] = {"type": "iceberg", "catalog": "lake", "catalog-properties": dict(catalog)}
    config["spark"]["conf"].update(conf or {})
    config.update(more or {})
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def as_delta(spark: SparkSession, metadata: Mapping[str, str], lake: Path) -> None:
    """Copies of Iceberg tables, by the places of their metadata, where the checks of the lake find them."""
    for table, place in metadata.items():
        rows = spark.read.format("iceberg").load(place)
        rows.write.format("delta").save(str(lake / "bank" / table))


def hadoop_metadata(warehouse: Path) -> dict[str, str]:
    """The newest metadata file of each table of a catalog that is a folder."""
    return {table: newest_metadata(warehouse / "bank" / table) for table in TABLES}


# A worker into Iceberg: test_bank.py, with kills. Types: test_targets_codecs.py and test_targets_types.py.
@FULL
@pytest.mark.parametrize(("configuration", "size"), [("avro_long", 900), ("canal_ext_partial", None)])
def test_iceberg_ends_as_tidb_held_it(
    spark: SparkSession,
    tmp_path: Path,
    workload: Path,
    configuration: str,
    size: int | None,
    servers: Servers,
) -> None:
    replay(workload, configuration, servers=servers)
    path = replay_config(tmp_path, configuration, servers=servers, max_records=size)
    config = load_config(iceberg_config(path, {"type": "hadoop", "warehouse": "./warehouse"}))
    report = run(config, until="drained")
    assert report.exit_code == 0, [(table.table, table.error) for table in report.tables]
    as_delta(spark, hadoop_metadata(tmp_path / "warehouse"), tmp_path / "lake")
    assert wrong_values(tmp_path / "lake", final_state(workload)) == []


# Around what asks the catalog. At each step: tests/e2e/test_kill.py.
@FULL
@pytest.mark.parametrize("kills", [(), ("committing", "staged", "committed")])
def test_a_catalog_in_a_database_and_workers_that_are_killed(
    spark: SparkSession, tmp_path: Path, workload: Path, servers: Servers, kills: tuple[str, ...]
) -> None:
    """Workers of their own, with a catalog behind JDBC; the last one drains what the killed ones left.

    One table: of several clients of one SQLite file, Iceberg's keep each other from writing.
    """
    replay(workload, "avro_long", servers=servers, only={"bank_account"})
    path = replay_config(tmp_path, "avro_long", servers=servers, max_records=450)
    config = iceberg_config(
        path, jdbc_catalog(tmp_path), conf={"spark.driver.extraClassPath": str(sqlite_driver())}
    )
    for step in kills:
        finish(start_worker(config, tmp_path / "log", f"{step}:2"), tmp_path / "log")
    assert failpoints_hit(config) == [f"{step}:2" for step in kills]
    ending = finish(start_worker(config, tmp_path / "log"), tmp_path / "log")
    assert ending.code == 0, ending.output
    with sqlite3.connect(tmp_path / "catalog.db") as database:
        found = dict(database.execute("SELECT table_name, metadata_location FROM iceberg_tables"))
    as_delta(spark, found, tmp_path / "lake")
    expected = [table for table in final_state(workload) if table.table.name == "account"]
    assert wrong_values(tmp_path / "lake", expected) == []
