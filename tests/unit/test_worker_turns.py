"""A worker's turns: who is given one, and by which look a run ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from tests.unit.config_samples import CANAL_JSON, FLAT_AVRO, changed, right
from tests.unit.worker_bed import surroundings
from tidesink.errors import RegistryError, SourceUnavailableError
from tidesink.events import TableId
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.sinks.batch.observers import RunReport
from tidesink.sinks.kafka.offsets import Choose, KafkaOffsets, Look, PartitionOffsets, TopicOffsets
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.control import TableControl, change_control
from tidesink.sinks.worker.run import Worker
from tidesink.sinks.worker.table_task import TableTask

FIRST, SECOND = TableId("shop", "first"), TableId("shop", "second")
HTTP: Final = {"type": "http", "url": "http://127.0.0.1:1/x"}
ONE_AT_ONCE: Final = {"max-tables": 1, "poll-interval": "10ms"}


class _Looks(KafkaOffsets):
    """Topics that hold something; each look takes until the tables at work have ended, which it notes.

    ``silent``: the look, counted from 1, that nobody answers.
    """

    def __init__(self, *tables: TableId, silent: int | None = None) -> None:
        self.at_work: list[list[str]] = []
        self.looking = threading.Event()
        self._topics = {f"{table.schema}_{table.name}": str(table) for table in tables}
        self._silent = silent

    def look(self, choose: Choose, *_unread: Any) -> Look:
        working = [thread for thread in threading.enumerate() if thread.name in self._topics.values()]
        self.at_work.append([thread.name for thread in working])
        self.looking.set()
        for thread in working:
            thread.join(240)
        self.looking.clear()
        if len(self.at_work) == self._silent:
            raise SourceUnavailableError("no answer")
        found = {
            topic: TopicOffsets(topic, f"id of {topic}", {0: PartitionOffsets(0, 9)})
            for topic in choose(self._topics)
        }
        return Look(found, {})


class _Refusing(MemorySchemaRegistry):
    """Keeps whoever asks for a table's schemas until the worker looks, and then says no."""

    def __init__(self, looks: _Looks) -> None:
        super().__init__()
        self._looks = looks

    def versions(self, subject: str) -> list[int]:
        self._looks.looking.wait(240)
        raise RegistryError(f"{subject} is not for you")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStateStore]:
    store = SqlStateStore(str(tmp_path / "state.db"))
    yield store
    store.close()


def _drain(store: SqlStateStore, looks: _Looks, **settings: Any) -> RunReport:
    config = right(changed(FLAT_AVRO, target=HTTP, batch=ONE_AT_ONCE, **settings))
    around = surroundings(config, store=store, registry=_Refusing(looks))
    return Worker(around, until="drained", offsets=looks).run()


def test_the_place_of_a_batch_that_ends_during_a_look_is_given_out_by_that_look(store: SqlStateStore) -> None:
    looks = _Looks(FIRST, SECOND)
    report = _drain(store, looks)
    assert [(table.table, table.state) for table in report.tables] == [
        (FIRST, "FAILING"),
        (SECOND, "FAILING"),
    ]
    # The last look is for what the last batch found out.
    assert looks.at_work == [[], ["shop.first"], ["shop.second"], []]


def test_a_run_does_not_end_by_a_look_before_a_topics_only_table_rested(store: SqlStateStore) -> None:
    change_control(store, "shop", FIRST, TableControl.pause)
    looks = _Looks(FIRST)
    assert [table.state for table in _drain(store, looks).tables] == ["PAUSED"]
    assert looks.at_work == [[], []]


def test_what_kafkas_silence_stopped_is_not_looked_for_again(store: SqlStateStore) -> None:
    looks = _Looks(FIRST, SECOND, silent=2)
    first, second = _drain(store, looks, retry={"for": "0s"}).tables
    assert "is not for you" in str(first.error)
    assert "no answer" in str(second.error)
    assert looks.at_work == [[], ["shop.first"]]


def _task(turn: int, rested: float, *, lag: int = 1) -> TableTask:
    """A table whose last turn was this one, and which has rested for so long."""
    return cast("TableTask", SimpleNamespace(turn=turn, rested=rested, lag=lag))


def test_a_table_waits_for_one_turn_of_each_other(store: SqlStateStore) -> None:
    """Also where the others are new, and have long topics to read."""
    worker = Worker(surroundings(right(changed(CANAL_JSON, target=HTTP)), store=store), offsets=_Looks())
    old = _task(7, 0)
    tables = [old, *(_task(0, 0, lag=10**6 + at) for at in range(3))]
    order = []
    for turn in range(8, 16):
        first = worker._fair(tables, [])[0]
        first.turn = turn
        order.append(tables.index(first))
    assert order == [3, 2, 1, 0] * 2


def test_watermarks_alone_wait_for_their_interval_and_behind_rows(store: SqlStateStore) -> None:
    config = right(changed(CANAL_JSON, target=HTTP, batch={"watermark-interval": "1m"}))
    worker = Worker(surroundings(config, store=store), offsets=_Looks())
    busy, new, early, due, long_due = (_task(9, 0), _task(1, 0), _task(1, 59), _task(1, 60), _task(2, 61))
    assert [worker._is_due(one) for one in (early, due)] == [False, True]
    assert worker._fair([busy, new], [due, long_due]) == [new, busy, long_due, due]
    # However busy others are, what is overdue has every second turn.
    overdue = _task(1, 600)
    assert worker._fair([busy], [due, overdue]) == [overdue, busy, due]
    worker._gave_overdue = True
    assert worker._fair([busy], [due, overdue]) == [busy, overdue, due]


def test_a_run_to_the_end_leaves_watermarks_that_came_meanwhile(store: SqlStateStore) -> None:
    around = surroundings(right(changed(CANAL_JSON, target=HTTP)), store=store)
    assert not Worker(around, until="drained", offsets=_Looks())._is_due(_task(1, 1e9))
