"""``tidesink diff``: what is refused before Spark starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.unit.config.samples import FLAT_AVRO, changed
from tidesink.cli.main import app
from tidesink.events import TableId
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.state.sql_store import SqlStateStore

ORDERS = TableId("shop", "orders")
DATABASE = "mysql+pymysql://reader:SECRET@127.0.0.1:1"


def diff_config(folder: Path, database: str | None = DATABASE, *, name: str = "shop", **more: Any) -> Path:
    path = folder / f"{name}.yaml"
    settings = changed(FLAT_AVRO, pipeline=name, state=str(folder / "state.db"), **more)
    if database is not None:
        settings["source"] = {**settings["source"], "database": database}
    path.write_text(yaml.safe_dump(settings))
    return path


def run_diff(path: Path, *words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["diff", "-c", str(path), *words])
    assert "SECRET" not in found.output
    return found.exit_code, found.output


def test_rows_are_compared_with_the_database(tmp_path: Path) -> None:
    code, output = run_diff(diff_config(tmp_path, None))
    assert code == 2
    assert "source.database, which is not set" in output


def test_a_pipeline_that_never_ran_has_nothing_to_compare(tmp_path: Path) -> None:
    code, output = run_diff(diff_config(tmp_path))
    assert code == 2
    assert "No worker has run yet" in output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"defaults": {"mode": "append"}}, "mode: append"),
        ({"tables": [{"name": "shop.orders", "ignore_null_updates": True}]}, "ignore_null_updates"),
        ({"target": {"type": "http", "url": "http://127.0.0.1:1"}}, "http"),
    ],
)
def test_what_cannot_be_compared_is_told(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    path = diff_config(tmp_path, **more)
    SqlStateStore(str(tmp_path / "state.db")).save_status(TableStatus("shop", ORDERS, "IDLE"))
    code, output = run_diff(path, "shop.orders")
    assert code == 2
    assert said in output
    # Among all tables it is one that is passed over.
    code, output = run_diff(path)
    assert code == 0
    assert "shop.orders: not compared: " in output
    assert said in output
    code, output = run_diff(path, "-o", "json")
    (table,) = json.loads(output.splitlines()[-1])["tables"]
    assert said in table["refused"]


def test_a_table_whose_topic_is_not_read_any_more_is_not_compared(tmp_path: Path) -> None:
    """Nobody would apply what the topic holds."""
    path = diff_config(tmp_path)
    status = TableStatus("shop", ORDERS, "IDLE", details={"topic": "elsewhere"})
    SqlStateStore(str(tmp_path / "state.db")).save_status(status)
    code, output = run_diff(path, "shop.orders")
    assert code == 2
    assert "from the topic elsewhere, which is no longer part of source.topics" in output
    code, output = run_diff(path)
    assert code == 0
    assert "shop.orders: not compared: Its changes came from the topic" in output


def test_a_table_that_nobody_knows_is_named(tmp_path: Path) -> None:
    path = diff_config(tmp_path)
    SqlStateStore(str(tmp_path / "state.db")).save_status(TableStatus("shop", ORDERS, "IDLE"))
    code, output = run_diff(path, "shop.order")
    assert code == 2
    assert "Pipeline shop has no table shop.order (did you mean shop.orders?)" in output


def test_another_pipeline_is_compared_with_in_place_of_the_source(tmp_path: Path) -> None:
    """Without a database; what it cannot be compared in is told under its name."""
    store = SqlStateStore(str(tmp_path / "state.db"))
    store.save_status(TableStatus("shop", ORDERS, "IDLE"))
    path = diff_config(tmp_path, None)
    other = diff_config(tmp_path, name="other", defaults={"mode": "append"})
    against = ("--against", str(other))
    assert run_diff(path, "--against", str(tmp_path / "none.yaml"))[0] == 2
    code, output = run_diff(path, *against)
    assert (code, "No worker of other has read a table of shop" in output) == (2, True), output
    store.save_status(TableStatus("other", TableId("shop", "others"), "IDLE"))
    code, output = run_diff(path, *against, "shop.orders")
    assert (code, "other: that pipeline has no such table" in output) == (2, True), output
    store.save_status(TableStatus("other", ORDERS, "IDLE"))
    code, output = run_diff(path, *against, "shop.orders")
    assert (code, "other: mode: append keeps rows that the source has deleted" in output) == (2, True), output
    code, output = run_diff(path, *against, "-o", "json")
    assert code == 0
    found = json.loads(output.splitlines()[-1])
    assert found["against"] == "other"
    assert "other: mode: append" in found["tables"][0]["refused"]


def test_a_cut_is_one_of_a_lake_and_of_no_other_pipeline(tmp_path: Path) -> None:
    SqlStateStore(str(tmp_path / "state.db")).save_status(TableStatus("shop", ORDERS, "IDLE"))
    path = diff_config(tmp_path)
    code, output = run_diff(path, "--at", "yesterday")
    assert (code, "'yesterday' is not a time" in output) == (2, True)
    code, output = run_diff(path, "--at", "2026-11-26", "--against", str(diff_config(tmp_path, name="other")))
    assert (code, "Give either --at or --against" in output) == (2, True)
    target = {"type": "postgres", "url": "postgresql://127.0.0.1:1/d", "user": "u"}
    code, output = run_diff(diff_config(tmp_path, target=target), "--at", "2026-11-26")
    assert (code, "stores no versions of tables" in output) == (2, True)
