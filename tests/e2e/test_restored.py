"""A target brought back from a backup, ledger and rows alike: refused, until a person says to go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.contracts.sql_beds import DATABASES
from tests.e2e.iceberg_beside import newest_metadata
from tests.e2e.replay import Servers
from tests.e2e.sql_beside import backup_of, connected, target_of
from tests.e2e.writing import TableWriter, schema_of, shop_config
from tests.full import quick_on
from tidesink.cli.main import app
from tidesink.config import load_config
from tidesink.sinks.runtime.observers import TableReport
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]
NAME = "restored"
Place = tuple[dict[str, Any], Callable[[], Callable[[], None]], Callable[[], set[int]]]


@pytest.fixture(params=["delta", "iceberg", *DATABASES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A target, how to make a backup of it, which gives how to bring it back, and the ids in it."""
    if request.param in DATABASES:
        server = request.param, DATABASES[request.param](request)
        return target_of(server), lambda: backup_of(server, "shop", NAME), lambda: _in_database(server)
    folder = tmp_path / "lake"
    targets: dict[str, dict[str, Any]] = {
        "delta": {"type": "delta", "path": "./lake"},
        "iceberg": {
            "type": "iceberg",
            "catalog": "lake",
            "catalog-properties": {"type": "hadoop", "warehouse": "./lake"},
        },
    }
    spark = request.getfixturevalue("spark")
    table = folder / "shop" / NAME
    return targets[request.param], lambda: _copied(folder), lambda: _in_lake(spark, request.param, table)


def _copied(folder: Path) -> Callable[[], None]:
    kept = folder.with_name("backup")
    shutil.copytree(folder, kept)

    def bring_back() -> None:
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)

    return bring_back


def _in_lake(spark: SparkSession, kind: str, table: Path) -> set[int]:
    place = newest_metadata(table) if kind == "iceberg" else str(table)
    return {row.id for row in spark.read.format(kind).load(place).select("id").collect()}


def _in_database(server: Any) -> set[int]:
    with connected(server) as connections, connections.transaction("test") as cursor:
        cursor.execute(f"SELECT id FROM shop.{NAME}")  # noqa: S608
        return {number for (number,) in cursor.fetchall()}


@quick_on("delta")
def test_a_target_from_an_old_backup_waits_for_a_word(
    spark: SparkSession, tmp_path: Path, servers: Servers, place: Place
) -> None:
    target, backup, ids = place
    writer = TableWriter(servers, schema_of(NAME))
    config = shop_config(tmp_path, servers, {"target": target})
    writer.upsert({"id": 1, "name": "one"})
    assert _drained(config).state == "IDLE"
    bring_back = backup()
    writer.upsert({"id": 2, "name": "two"})
    assert _drained(config).batch == 2
    bring_back()
    for _ in range(2):  # to be refused is not to be forgotten
        refused = _drained(config)
        assert refused.state == "FAILING"
        assert "StaleProgressError" in str(refused.error)
        assert f"tidesink accept-restored shop.{NAME}" in str(refused.error)
        assert ids() == {1}
    done = CliRunner().invoke(app, ["accept-restored", f"shop.{NAME}", "-c", str(config), "-o", "json"])
    assert json.loads(done.stdout)["accepted_below_batch"] == 2, done.output
    writer.upsert({"id": 3, "name": "three"})
    assert _drained(config).state == "IDLE"
    assert ids() == {1, 2, 3}


def _drained(config: Path) -> TableReport:
    (table,) = run(load_config(config), until="drained").tables
    return table
