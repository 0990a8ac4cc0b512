"""A worker's turns: who is given one, and by which look a run ends."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from tests.recorder import Recorder
from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right
from tests.unit.sinks.worker.bed import worker_context
from tidesink.errors import RegistryError, SourceError, SourceUnavailableError
from tidesink.events import TableId
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.sinks.kafka.offsets import Choose, KafkaOffsets, Look, PartitionOffsets, TopicOffsets
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.runtime.control import TableControl, change_control
from tidesink.sinks.runtime.observers import (
    Listeners,
    LogListener,
    RunReport,
    TableChanged,
    Turned,
    Waiting,
    WorkerEvent,
)
from tidesink.sinks.state.progress import UNKNOWN_SCHEMA
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.run import Pace, Worker, opening_line
from tidesink.sinks.worker.slots import Slots
from tidesink.sinks.worker.table_task import TableTask

FIRST, SECOND, THIRD = (TableId("shop", name) for name in ("first", "second", "third"))
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
    around = worker_context(config, store=store, registry=_Refusing(looks))
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


class _RefusingAtOnce(MemorySchemaRegistry):
    def versions(self, subject: str) -> list[int]:
        raise RegistryError(f"{subject} is not for you")


class _Slow(_Looks):
    """Topics whose look-up takes a while."""

    def look(self, choose: Choose, *unread: Any) -> Look:
        time.sleep(0.1)
        return super().look(choose, *unread)


def test_tables_that_wait_for_a_place_need_no_look_each(store: SqlStateStore) -> None:
    tables = [TableId("shop", f"t{number}") for number in range(12)]
    looks = _Slow(*tables)
    config = right(changed(FLAT_AVRO, target=HTTP, batch={"max-tables": 1, "poll-interval": "10s"}))
    context = worker_context(config, store=store, registry=_RefusingAtOnce())
    report = Worker(context, until="drained", offsets=looks).run()
    assert {table.table for table in report.tables if table.error} == {*tables}
    assert len(looks.at_work) < len(tables)


class _Passes:
    """Hears the worker: the number of its passes, and the tables that failed in each."""

    def __init__(self) -> None:
        self.failed = list[list[str]]()

    def hear(self, event: WorkerEvent) -> None:
        if isinstance(event, Turned):
            self.failed.append([])
        elif isinstance(event, TableChanged) and event.status.state == "FAILING":
            self.failed[-1].append(event.status.table.name)


def test_one_pass_gives_a_turn_to_each_table_that_has_records(store: SqlStateStore) -> None:
    """With one slot, and whatever the number of tables: a pass looks at all of them."""
    tables = [TableId("shop", f"t{number:02}") for number in range(12)]
    passes, looks = _Passes(), _Looks(*tables)
    config = right(changed(FLAT_AVRO, target=HTTP, batch={"max-tables": 1, "poll-interval": "60s"}))
    context = worker_context(config, store=store, registry=_RefusingAtOnce())
    Worker(replace(context, listeners=Listeners([passes])), until="drained", offsets=looks).run()
    assert passes.failed[0] == [table.name for table in tables]
    assert not any(passes.failed[1:])


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


class _Silence(_Looks):
    """Topics of which one gives no answer in some looks, counted from 1; after the last a run is to end."""

    def __init__(self, error: SourceError, *, since: int, until: int, last: int | None = None) -> None:
        super().__init__(FIRST, SECOND, THIRD)
        self.stop = StopFlag()
        self._error, self._silent_looks, self._last = error, range(since, until), last

    def look(self, choose: Choose, *unread: Any) -> Look:
        found, _ = super().look(choose, *unread)
        if len(self.at_work) == self._last:
            self.stop.set()
        if len(self.at_work) not in self._silent_looks:
            return Look(found, {})
        return Look(
            {topic: found[topic] for topic in ("shop_first", "shop_third")}, {"shop_second": self._error}
        )

    def had_turns(self) -> set[str]:
        """The tables that were at work."""
        return {name for names in self.at_work for name in names}


# Of a broker whose partitions have no leader, and of one that refuses.
SILENT, REFUSED = SourceUnavailableError("no leader"), SourceError("no rights")
EVER: Final = 1_000_000


def _around_silence(store: SqlStateStore, looks: _Silence, patience: str) -> RunReport:
    config = right(changed(FLAT_AVRO, target=HTTP, batch=ONE_AT_ONCE, retry={"for": patience}))
    around = worker_context(config, store=store, registry=_Refusing(looks))
    return Worker(replace(around, stop=looks.stop), until="drained", offsets=looks).run()


def _errors(report: RunReport) -> dict[str, str | None]:
    return {table.topic: table.error for table in report.tables}


@pytest.mark.law("L7")
@pytest.mark.parametrize(("since", "known"), [(1, False), (2, True)])
def test_the_tables_of_a_topic_without_an_answer_wait_and_no_others(
    store: SqlStateStore, since: int, *, known: bool
) -> None:
    """Until the time of retries is over: whether its tables were known before or not."""
    looks = _Silence(SILENT, since=since, until=EVER, last=9)
    report = _around_silence(store, looks, "1h")
    errors = _errors(report)
    assert errors.pop("shop_second", None) is None
    assert {table.table for table in report.tables} == {FIRST, THIRD, *([SECOND] if known else [])}
    assert all("is not for you" in str(error) for error in errors.values())
    assert looks.had_turns() == {"shop.first", "shop.third"}
    assert report.interrupted  # a run to the end does not end before the topic answered or failed


@pytest.mark.parametrize(("error", "patience"), [(SILENT, "0s"), (SILENT, "50ms"), (REFUSED, "1h")])
@pytest.mark.parametrize(("since", "table"), [(1, TableId(UNKNOWN_SCHEMA, "shop_second")), (2, SECOND)])
def test_a_topic_without_an_answer_fails_after_the_time_of_retries_and_one_that_is_refused_at_once(
    store: SqlStateStore, error: SourceError, patience: str, since: int, table: TableId
) -> None:
    looks = _Silence(error, since=since, until=EVER)
    report = _around_silence(store, looks, patience)
    assert {one.table: one.state for one in report.tables} == dict.fromkeys((FIRST, table, THIRD), "FAILING")
    errors = _errors(report)
    assert error.message in str(errors.pop("shop_second"))
    assert all("is not for you" in str(one) for one in errors.values())
    assert looks.had_turns() == {"shop.first", "shop.third"}


def test_a_topic_that_answers_again_goes_on(store: SqlStateStore) -> None:
    looks = _Silence(SILENT, since=2, until=5)
    assert all("is not for you" in str(one) for one in _errors(_around_silence(store, looks, "1h")).values())
    assert looks.had_turns() == {"shop.first", "shop.second", "shop.third"}


VALUE: Final = "4711-of-a-row"


class _Faulty(MemorySchemaRegistry):
    """Fails as nobody foresaw, with a value in the text of the error and of its cause."""

    def versions(self, subject: str) -> list[int]:
        try:
            return dict[str, list[int]]()[f"{subject} {VALUE}"]
        except KeyError as exc:
            raise ValueError(f"invalid literal for int() with base 10: {VALUE!r}") from exc


def test_an_unforeseen_error_is_told_by_class_and_place_and_no_value(
    store: SqlStateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = Recorder()
    around = worker_context(right(changed(FLAT_AVRO, target=HTTP)), store=store, registry=_Faulty())
    around = replace(around, listeners=Listeners((LogListener(), heard)))
    report = Worker(around, until="drained", offsets=_Looks(FIRST)).run()
    (table,), (status,) = report.tables, store.statuses("shop")
    assert (table.state, status.state) == ("FAILING", "FAILING")
    assert status.error == table.error
    assert re.match(r"ValueError at worker/test_run\.py:\d+\. Report this", str(table.error))
    output = capsys.readouterr()
    log = output.out + output.err
    assert re.search(r"ValueError \(worker/test_run\.py:\d+ < .* < worker/table_task\.py:\d+", log)
    assert re.search(r" from KeyError \(worker/test_run\.py:\d+\)", log)
    for text in (log, repr(report), repr(store.statuses("shop")), repr(heard.events)):
        assert "4711" not in text


def _task(turn: int, rested: float, *, lag: int = 1) -> TableTask:
    """A table whose last turn was this one, and which has rested for so long."""
    return cast("TableTask", SimpleNamespace(turn=turn, rested=rested, reading=SimpleNamespace(lag=lag)))


def test_a_table_waits_for_one_turn_of_each_other(store: SqlStateStore) -> None:
    """Also where the others are new, and have long topics to read."""
    slots = Slots(worker_context(right(changed(CANAL_JSON, target=HTTP)), store=store))
    old = _task(7, 0)
    tables = [old, *(_task(0, 0, lag=10**6 + at) for at in range(3))]
    order = []
    for turn in range(8, 16):
        first = slots.in_order(tables, [])[0]
        first.turn = turn
        order.append(tables.index(first))
    assert order == [3, 2, 1, 0] * 2


def test_watermarks_alone_wait_for_their_interval_and_behind_rows(store: SqlStateStore) -> None:
    config = right(changed(CANAL_JSON, target=HTTP, batch={"watermark-interval": "1m"}))
    slots = Slots(worker_context(config, store=store))
    busy, new, early, due, long_due = (_task(9, 0), _task(1, 0), _task(1, 59), _task(1, 60), _task(2, 61))
    assert [slots.is_due(one) for one in (early, due)] == [False, True]
    assert slots.in_order([busy, new], [due, long_due]) == [new, busy, long_due, due]
    # However busy others are, what is overdue has every second turn.
    overdue = _task(1, 600)
    assert slots.in_order([busy], [due, overdue]) == [overdue, busy, due]
    slots.gave_overdue = True
    assert slots.in_order([busy], [due, overdue]) == [busy, overdue, due]
    # Also within one pass, which gives a turn to each.
    later = _task(1, 601)
    assert slots.in_order([busy, new], [overdue, later]) == [new, later, busy, overdue]


def test_a_run_to_the_end_leaves_watermarks_that_came_meanwhile(store: SqlStateStore) -> None:
    context = worker_context(right(changed(CANAL_JSON, target=HTTP)), store=store)
    assert not Slots(replace(context, ends=True)).is_due(_task(1, 1e9))


def test_progress_lines_become_rarer() -> None:
    now = [0.0]
    pace, told = Pace(lambda: now[0]), []
    while now[0] < 110:
        if pace.is_due(3.0):
            told.append(now[0])
            pace.told()
        now[0] += 1
    assert told == [3, 9, 21, 45, 75, 105]
    pace.begin()
    assert not pace.is_due(3.0)
    now[0] += 3
    assert pace.is_due(3.0)


def test_tables_that_open_are_named_now_and_then(store: SqlStateStore) -> None:
    heard = Recorder()
    looks = _Looks(FIRST, SECOND)
    config = right(changed(FLAT_AVRO, target=HTTP, batch=ONE_AT_ONCE))
    around = worker_context(config, store=store, registry=_Refusing(looks))
    worker = Worker(replace(around, listeners=Listeners((heard,))), until="drained", offsets=looks)
    worker.opening_seconds = 0
    worker.run()
    lines = [event.what for event in heard.events if isinstance(event, Waiting)]
    assert [line for line in lines if line.startswith("opening")] == [
        "opening 1 of 2 tables: shop.first",
        "opening 1 of 2 tables: shop.second",
    ]
    tables = [TableId("shop", f"t{number}") for number in range(7)]
    assert opening_line(tables, 30, 100) == (
        "opening 37 of 100 tables: shop.t0, shop.t1, shop.t2, shop.t3, shop.t4, …"
    )
