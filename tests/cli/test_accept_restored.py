"""``tidesink accept-restored``: which table is meant, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.config.samples import CANAL_JSON, changed
from tidesink.cli.main import app
from tidesink.config import Config
from tidesink.errors import StaleProgressError
from tidesink.events import TableId
from tidesink.sinks.runtime.control import PLACE, check_not_restored
from tidesink.sinks.state.progress import Progress, TableStatus
from tidesink.sinks.state.sql_store import open_state_store

DOTTED = TableId("a.b", "Orders")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tidesink.yaml"
    path.write_text(json.dumps(changed(CANAL_JSON, state=str(tmp_path / "state.db"))))
    return path


def _run(config: Path, table: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["accept-restored", table, "-c", str(config), "-o", "json"])
    return done.exit_code, done.output


def _found_brought_back(config: Path, table: TableId) -> None:
    settings = Config.model_validate(json.loads(config.read_text()))
    store = open_state_store(settings.state)
    store.save_status(TableStatus(settings.pipeline, table, "IDLE", batch=4, details={PLACE: "here"}))
    with pytest.raises(StaleProgressError):
        check_not_restored(store, Progress(table, settings.pipeline, 2, 3), "here")
    store.close()


def test_a_name_is_looked_up_among_the_tables_that_were_worked_on(config: Path) -> None:
    _found_brought_back(config, DOTTED)
    code, said = _run(config, "a.b.orders")
    assert code == 0, said
    assert json.loads(said)["accepted_below_batch"] == 4
    assert json.loads(said)["table"] == {"schema": "a.b", "name": "Orders"}


def test_an_unknown_name_is_refused_with_the_nearest(config: Path) -> None:
    _found_brought_back(config, DOTTED)
    code, said = _run(config, "a.b.order")
    assert code == 2
    assert "a.b.Orders" in said or "a.b.orders" in said


def test_where_no_worker_ran_no_store_is_made(config: Path, tmp_path: Path) -> None:
    code, said = _run(config, "a.b")
    assert code == 2
    assert "No worker has run yet" in said
    assert not (tmp_path / "state.db").exists()
