"""``tidesink status`` while the database that a worker writes to is stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.e2e.replay import Servers
from tests.e2e.sql_beside import connected, target_of
from tests.e2e.writing import TableWriter, schema_of, shop_config
from tests.postgres import stoppable_server
from tidesink.cli.main import app
from tidesink.config import load_config
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.spark.engine import SparkEngine
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_an_outage_of_the_target_shows_until_it_is_over(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    """A worker's Postgres is stopped with a record to come, and started again."""

    def asked() -> dict[str, Any]:
        done = CliRunner().invoke(app, ["status", str(path), "-o", "json"])
        found: dict[str, Any] = json.loads(done.stdout)
        return {**found, "code": done.exit_code, "table": next(iter(found["tables"]), {})}

    def rows() -> int:
        with connected(server) as connections, connections.transaction("test", writes=False) as cursor:
            cursor.execute("SELECT count(*) FROM shop.orders")
            return int(cursor.fetchone()[0])

    writer = TableWriter(servers, schema_of("orders"))
    writer.upsert({"id": 1, "name": "one"})
    stop = StopFlag()
    with stoppable_server() as database:
        server = "postgres", database.endpoint
        path = shop_config(tmp_path, servers, {"target": target_of(server)})
        working = SparkEngine.of(spark).thread(lambda: run(load_config(path), stop=stop), name="worker")
        try:
            _wait(lambda: asked()["table"].get("state") == "IDLE" and asked()["table"]["batch"] == 1)
            assert (asked()["code"], rows()) == (0, 1)
            database.stop()
            try:
                writer.upsert({"id": 2, "name": "two"})
                _wait(lambda: asked()["table"]["failure"] is not None)
                found = asked()
                shown = CliRunner().invoke(app, ["status", str(path)])
            finally:
                database.start()
            _wait(lambda: asked()["code"] == 0 and asked()["table"]["batch"] == 2)
            assert (asked()["table"]["failure"], rows()) == (None, 2)
        finally:
            stop.set()
            working.result(240)
    assert (found["code"], shown.exit_code) == (3, 3)
    assert found["worker"]["alive"]
    table = found["table"]
    assert "Postgres" in table["error"]
    assert table["failure"]["since"] <= table["failure"]["next_try"]
    assert (table["lag"]["records"], table["lag"]["of"]) == (1, "kafka")
    assert 0 <= table["lag"]["seconds"] < 240
    for words in (
        "shop.orders: error: ",
        "shop.orders: since: ",
        "the worker tries again by itself",
        "lag: 1",
    ):
        assert words in shown.stdout
    assert not asked()["worker"]["alive"]
