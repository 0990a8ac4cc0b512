"""XA transactions: a change is in Kafka since XA PREPARE, and visible in the database since XA COMMIT."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from tests.e2e.live_source import LiveTable, ask_snapshot, in_order, live_config, live_table, shown_snapshot
from tests.e2e.replay import Servers
from tidesink.cli.main import app
from tidesink.config import Config, load_config
from tidesink.dev.lake_check import open_lake_table
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]


@contextmanager
def _prepared(url: str, table: LiveTable) -> Iterator[None]:
    """A row is inserted and another deleted by a transaction that is prepared here, and committed at the end.

    The changes are sent when it is prepared, as Debezium's connectors do.
    """
    rows = table.rows()
    new, old = {**rows[0], "id": 5 * 10**7}, rows[-1]
    engine = sa.create_engine(f"{url}?charset=utf8mb4", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        name = f"'{table.name.schema}'"
        connection.exec_driver_sql(f"XA START {name}")
        table.write_in(connection, None, new)
        table.write_in(connection, old, None)
        connection.exec_driver_sql(f"XA END {name}")
        connection.exec_driver_sql(f"XA PREPARE {name}")
        yield
        connection.exec_driver_sql(f"XA COMMIT {name}")
    engine.dispose()


def _run(config: Config, **how: Any) -> None:
    report = run(config, **how)
    assert report.exit_code == 0, [one.error for one in report.tables]


def test_a_resync_waits_for_prepared_transactions(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    """It would delete the row that is inserted, and write the one again that is deleted, both for good."""
    with live_table(mariadb_url, servers) as table:
        table.load(300)
        table.change()
        path = live_config(tmp_path, servers, table, mariadb_url)
        config = load_config(path)
        _run(config, until="drained")
        with _prepared(mariadb_url, table):
            ask_snapshot(config, table, lambda asked: asked.start(time.time(), deletes=True))
            _run(config, until="drained")
            shown = shown_snapshot(config)
            assert shown["state"] == "waiting"
            assert "XA RECOVER" in shown["reason"]
            refused = CliRunner().invoke(app, ["diff", "-c", str(path), "--lag", "0"])
            assert refused.exit_code == 2, refused.output
            assert "XA RECOVER" in refused.output
        _run(config, until="drained")
        assert shown_snapshot(config)["state"] == "done"
        lake = tmp_path / "lake" / table.name.schema / table.name.name
        assert in_order(open_lake_table(lake).read().to_pylist()) == in_order(table.rows())


def test_a_key_that_is_ordered_otherwise_is_read_from_its_beginning(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    """Behind "a" in one collation come keys that stand before it in the other."""
    with live_table(mariadb_url, servers) as table:
        table.load(600)
        table.change()
        config = load_config(live_config(tmp_path, servers, table, mariadb_url, rows=40))
        _run(config, batches=5)
        assert 0 < shown_snapshot(config)["rows"] < 500
        engine = sa.create_engine(mariadb_url)
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"ALTER TABLE `{table.name.schema}`.orders MODIFY region VARCHAR(20) "
                "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL"
            )
        engine.dispose()
        _run(config, until="drained")
        assert shown_snapshot(config)["state"] == "done"
        lake = tmp_path / "lake" / table.name.schema / table.name.name
        assert in_order(open_lake_table(lake).read().to_pylist()) == in_order(table.rows())
