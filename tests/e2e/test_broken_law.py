"""A table whose counts do not add up: it stays as it is, after a restart too, until a person accepts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, schema_of, shop_config
from tidesink.cli.main import app
from tidesink.config import load_config
from tidesink.sinks.runtime.observers import TableReport
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]
NAME = "doubled"


def test_a_count_that_does_not_add_up_waits_for_a_person(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    writer = TableWriter(servers, schema_of(NAME))
    config = shop_config(tmp_path, servers, {"target": {"type": "delta", "path": "./lake"}})
    writer.upsert({"id": 1, "name": "one"})
    assert _drained(config).state == "IDLE"
    location = f"delta.`{tmp_path}/lake/shop/{NAME}`"
    spark.sql(f"INSERT INTO {location} SELECT * FROM {location}")  # noqa: S608
    writer.upsert({"id": 1, "name": "two"})
    _refuses(_drained(config))
    spark.sql(f"DELETE FROM {location} WHERE name = 'one'")  # noqa: S608
    _refuses(_drained(config))  # nobody has said that the table is right
    assert "not accepted" in _resumed(config)
    _refuses(_drained(config))
    said = _resumed(config, "--accept")
    assert "accepted: The table has 2 rows for 1 keys" in said
    found = _drained(config)
    assert (found.state, found.counters["read"]) == ("IDLE", 1)
    rows = spark.read.format("delta").load(f"{tmp_path}/lake/shop/{NAME}").collect()
    assert [(row.id, row.name) for row in rows] == [(1, "two")]
    done = CliRunner().invoke(app, ["resume", f"shop.{NAME}", "-c", str(config), "--accept"])
    assert done.exit_code == 2, done.output  # nothing waits any longer
    assert _drained(config).state == "IDLE"


def _refuses(found: TableReport) -> None:
    assert found.state == "FAILING"
    assert "AccountingError" in str(found.error)
    assert "2 rows for 1 keys" in str(found.error)
    assert f"tidesink resume shop.{NAME} --accept" in str(found.error)


def _resumed(config: Path, *more: str) -> str:
    done = CliRunner().invoke(app, ["resume", f"shop.{NAME}", "-c", str(config), *more])
    assert done.exit_code == 0, done.output
    listed = CliRunner().invoke(app, ["resume", f"shop.{NAME}", "-c", str(config), *more, "-o", "json"])
    assert "2 rows for 1 keys" in json.loads(listed.stdout)["tables"][0]["broken_law"]
    return done.output


def _drained(config: Path) -> TableReport:
    (table,) = run(load_config(config), until="drained").tables
    return table
