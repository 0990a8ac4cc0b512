"""How many dead letters are open, as far as the state store knows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.unit.config.samples import CANAL_JSON, changed
from tidesink.cli.main import app
from tidesink.cli.open_letters import note_open, noted, open_letters
from tidesink.errors import StateStoreError
from tidesink.events import TableId
from tidesink.sinks.letters.topic import RecordGroup
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.state.sql_store import SqlStateStore

ORDERS, LINES = TableId("shop", "orders"), TableId("shop", "lines")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStateStore]:
    store = SqlStateStore(str(tmp_path / "state.db"))
    yield store
    store.close()


def _counted(store: SqlStateStore, table: TableId, letters: int) -> TableStatus:
    status = TableStatus("shop", table, "IDLE", counters={"dead_lettered": letters})
    store.save_status(status)
    return status


def _group(table: TableId, count: int) -> RecordGroup:
    return RecordGroup(str(table), "t", 0, "FramingError", count, 5, 9, None, None)


def test_letters_are_open_until_a_command_counts_them(store: SqlStateStore) -> None:
    orders, lines = _counted(store, ORDERS, 3), _counted(store, LINES, 2)
    assert [open_letters(one, noted(store, "shop")) for one in (orders, lines)] == [3, 2]
    note_open(store, "shop", None, lambda: [_group(ORDERS, 1), _group(ORDERS, 1)])
    assert [open_letters(one, noted(store, "shop")) for one in (orders, lines)] == [2, 0]
    note_open(store, "shop", str(ORDERS), tuple)
    assert [open_letters(one, noted(store, "shop")) for one in (orders, lines)] == [0, 0]
    # What the worker counts since is open.
    assert open_letters(_counted(store, ORDERS, 5), noted(store, "shop")) == 2
    assert open_letters(_counted(store, LINES, 2), noted(store, "shop")) == 0
    assert open_letters(_counted(store, ORDERS, 1), noted(store, "shop")) == 1


def test_a_store_that_does_not_answer_keeps_what_it_had(store: SqlStateStore) -> None:
    def refuses() -> list[RecordGroup]:
        raise StateStoreError("down")

    note_open(store, "shop", None, refuses)
    assert noted(store, "shop") == {}


def test_status_shows_them_beside_those_ever_written(store: SqlStateStore, tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    config = changed(CANAL_JSON, state=str(tmp_path / "state.db"))
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    _counted(store, ORDERS, 2)
    _counted(store, LINES, 0)

    def shown(*options: str) -> str:
        return CliRunner().invoke(app, ["status", str(file), *options]).stdout

    way = f": `tidesink dlq show --config {file} shop.orders`"
    assert f"shop.orders: dead letters: 2 open of 2 written so far{way}\n" in shown()
    note_open(store, "shop", None, tuple)
    assert "shop.orders: dead letters: 0 open of 2 written so far\n" in shown()
    assert "shop.lines: dead letters" not in shown()
    assert [one["open_dead_letters"] for one in json.loads(shown("-o", "json"))["tables"]] == [0, 0]
