"""The worker's sign of life, and the command that asks for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidesink.cli.main import app
from tidesink.errors import StateStoreError
from tidesink.events import TableId
from tidesink.sinks.runtime.observers import (
    EVERY_SECONDS,
    Heartbeat,
    StepRetried,
    TableChanged,
    seconds_since_beat,
)
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.state.sql_store import SqlStateStore, open_state_store


class Clock:
    """Seconds since 1970, set by hand."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class CountingStore(SqlStateStore):
    """A real store that counts the marks, and refuses them on request."""

    saved = 0
    refuses = False

    def save_document(self, kind: str, name: str, document: Any) -> None:
        if self.refuses:
            raise StateStoreError("the disk is full")
        self.saved += 1
        super().save_document(kind, name, document)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    store = CountingStore(str(tmp_path / "state.db"))
    yield store
    store.close()


def test_nobody_works_before_the_first_mark(store: CountingStore) -> None:
    assert seconds_since_beat(store, "p") is None


def test_a_mark_ages_until_the_next(store: CountingStore) -> None:
    clock = Clock()
    heartbeat = Heartbeat(store, "p", clock)
    heartbeat.beat()
    assert seconds_since_beat(store, "p", now=clock.now + 7) == 7
    clock.now += 7
    heartbeat.beat()
    assert seconds_since_beat(store, "p", now=clock.now) == 0
    assert seconds_since_beat(store, "other", now=clock.now) is None


def test_turns_in_quick_succession_write_once(store: CountingStore) -> None:
    clock = Clock()
    heartbeat = Heartbeat(store, "p", clock)
    for _ in range(100):
        heartbeat.beat()
        clock.now += EVERY_SECONDS / 50
    assert store.saved == 2


def test_a_clock_set_back_silences_nobody(store: CountingStore) -> None:
    clock = Clock()
    heartbeat = Heartbeat(store, "p", clock)
    heartbeat.beat()
    clock.now -= 500
    heartbeat.beat()
    assert store.saved == 2
    assert seconds_since_beat(store, "p", now=clock.now - 100) == 0


def test_an_ended_worker_is_not_alive(store: CountingStore) -> None:
    heartbeat = Heartbeat(store, "p", Clock())
    heartbeat.beat()
    heartbeat.end()
    assert seconds_since_beat(store, "p") is None


def test_every_step_of_the_worker_is_a_sign_of_life(store: CountingStore) -> None:
    clock = Clock()
    heartbeat = Heartbeat(store, "p", clock)
    heartbeat.hear(StepRetried(None, StateStoreError("x"), 1.0))
    clock.now += EVERY_SECONDS
    heartbeat.hear(TableChanged(TableStatus("p", TableId("a", "b"), "IDLE")))
    assert store.saved == 2


def test_a_store_that_does_not_answer_stops_nobody(store: CountingStore) -> None:
    heartbeat = Heartbeat(store, "p", Clock())
    store.refuses = True
    heartbeat.beat()
    heartbeat.end()
    assert store.saved == 0


def _config(tmp_path: Path) -> Path:
    path = tmp_path / "tidesink.yaml"
    path.write_text(
        "pipeline: p\n"
        "source: {brokers: 'b:1', protocol: flat-avro, topics: '{schema}_{table}',"
        " schema-registry: 'http://r:1'}\n"
        "target: {type: delta, path: ./lake}\n"
        "state: ./state.db\n",
        encoding="utf-8",
    )
    return path


def _asked(tmp_path: Path, *more: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["status", str(_config(tmp_path)), "--alive-within", "30", *more])
    return result.exit_code, result.stdout


def test_status_says_whether_the_worker_is_alive(tmp_path: Path) -> None:
    assert _asked(tmp_path) == (
        1,
        "not alive: no worker of this pipeline has run, or the last one has ended\n",
    )
    assert not (tmp_path / "state.db").exists()
    store = open_state_store(tmp_path / "state.db")
    heartbeat = Heartbeat(store, "p")
    heartbeat.beat()
    code, said = _asked(tmp_path)
    assert (code, said[:6]) == (0, "alive:")
    heartbeat.end()
    assert _asked(tmp_path)[0] == 1
    store.close()


def test_status_calls_an_old_mark_dead(tmp_path: Path) -> None:
    store = open_state_store(tmp_path / "state.db")
    Heartbeat(store, "p", Clock()).beat()
    store.close()
    code, said = _asked(tmp_path, "-o", "json")
    answer = json.loads(said)
    assert (code, answer["alive"]) == (1, False)
    assert answer["seconds_since_turn"] > 1e9


def test_a_paused_table_does_not_make_the_worker_unhealthy(tmp_path: Path) -> None:
    store = open_state_store(tmp_path / "state.db")
    store.save_status(TableStatus("p", TableId("a", "b"), "PAUSED", error="DecodeError: x"))
    Heartbeat(store, "p").beat()
    store.close()
    assert _asked(tmp_path)[0] == 0
    assert CliRunner().invoke(app, ["status", str(_config(tmp_path))]).exit_code == 3
