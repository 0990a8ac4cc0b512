"""The queue of statuses: what it saves, when, and what it keeps."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tidesink.errors import StateStoreError
from tidesink.events import TableId
from tidesink.sinks.runtime.status_queue import PAUSE_SECONDS, StatusQueue
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.state.sql_store import SqlStateStore

FIRST = TableStatus("shop", TableId("shop", "first"), "RUNNING", epoch=1, batch=1)
SECOND = TableStatus("shop", TableId("shop", "second"), "IDLE", epoch=1)


class _Store(SqlStateStore):
    """Counts its transactions for statuses. ``is_silent``: does not answer them."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.path = url
        self.saves = list[Sequence[TableStatus]]()
        self.is_silent = False

    def save_statuses(self, statuses: Sequence[TableStatus]) -> tuple[TableStatus, ...]:
        if self.is_silent:
            raise StateStoreError("no answer")
        self.saves.append(statuses)
        return super().save_statuses(statuses)

    def states(self) -> list[tuple[str, str]]:
        return [(status.table.name, status.state) for status in self.statuses("shop")]


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[_Store]:
    opened = _Store(str(tmp_path / "state.db"))
    yield opened
    opened.close()


def test_statuses_are_saved_together_and_only_the_newest_of_a_table(store: _Store) -> None:
    queue = StatusQueue(store)
    for status in (FIRST, SECOND, replace(FIRST, state="IDLE")):
        queue.put(status)
    assert store.states() == []
    assert queue.save() == ()
    assert store.states() == [("first", "IDLE"), ("second", "IDLE")]
    assert queue.save(all_now=True) == ()
    assert len(store.saves) == 1


def test_saves_are_a_pause_apart_unless_all_are_wanted(store: _Store) -> None:
    clock = _Clock()
    queue = StatusQueue(store, clock)
    queue.put(FIRST)
    queue.save()
    queue.put(SECOND)
    queue.save()
    assert store.states() == [("first", "RUNNING")]
    clock.now += PAUSE_SECONDS
    queue.save()
    assert store.states() == [("first", "RUNNING"), ("second", "IDLE")]
    queue.put(replace(FIRST, state="IDLE"))
    queue.save(all_now=True)
    assert store.states() == [("first", "IDLE"), ("second", "IDLE")]


def test_a_status_that_is_saved_at_once_replaces_the_waiting_one(store: _Store) -> None:
    queue = StatusQueue(store)
    queue.put(FIRST)
    queue.put(SECOND)
    with queue.instead(FIRST.table):
        store.save_status(replace(FIRST, state="FAILING"))
    queue.save()
    assert store.states() == [("first", "FAILING"), ("second", "IDLE")]


def test_statuses_wait_on_while_the_state_store_is_silent(store: _Store) -> None:
    queue = StatusQueue(store)
    queue.put(FIRST)
    queue.put(SECOND)
    store.is_silent = True
    with pytest.raises(StateStoreError, match="no answer"):
        queue.save()
    assert queue.has_waiting
    with pytest.raises(StateStoreError, match="no answer"), queue.instead(SECOND.table):
        store.save_statuses((SECOND,))
    queue.put(replace(FIRST, state="IDLE"))
    store.is_silent = False
    queue.save(all_now=True)
    assert store.states() == [("first", "IDLE"), ("second", "IDLE")]


def test_a_status_of_a_table_that_another_worker_has_taken_is_returned(store: _Store) -> None:
    store.save_status(replace(FIRST, epoch=2, batch=0))
    queue = StatusQueue(store)
    queue.put(FIRST)
    queue.put(SECOND)
    assert queue.save() == (FIRST,)
    assert [status.rank for status in store.statuses("shop")] == [(0, 2, 0), (0, 1, 0)]
    assert queue.save(all_now=True) == ()


def test_a_damaged_status_does_not_hold_back_those_of_other_tables(store: _Store) -> None:
    store.save_status(FIRST)
    store.save_status(SECOND)
    damage = "UPDATE table_status SET status = '{' WHERE table_name = '[\"shop\", \"first\"]'"
    with closing(sqlite3.connect(store.path)) as connection, connection:
        assert connection.execute(damage).rowcount == 1
    queue = StatusQueue(store)
    queue.put(FIRST)
    queue.put(replace(SECOND, state="RUNNING"))
    assert queue.save() == ()
    stored = store.status_of("shop", SECOND.table)
    assert stored is not None
    assert stored.state == "RUNNING"
    assert not queue.has_waiting
