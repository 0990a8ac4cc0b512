"""What ``tidesink status`` shows while something does not answer, and after the worker was stopped."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
import yaml
from sqlalchemy import event
from sqlalchemy.pool import Pool
from typer.testing import CliRunner, Result

from tests.unit.config.samples import FLAT_AVRO, changed
from tests.unit.sinks.worker.bed import worker_context
from tidesink.cli.main import app
from tidesink.cli.status import lag_of
from tidesink.config import load_config
from tidesink.errors import (
    BrokerUnavailableError,
    RegistryError,
    RegistryUnavailableError,
    SourceError,
    SourceUnavailableError,
    TidesinkError,
    TransientTargetError,
)
from tidesink.events import LOGICAL_BITS, TableId
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import Choose, KafkaOffsets, Look, PartitionOffsets, TopicOffsets
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.runtime.control import RewindControl, change_control
from tidesink.sinks.runtime.observers import Heartbeat, Listeners
from tidesink.sinks.state.failures import Failure, Failures, failure_in
from tidesink.sinks.state.progress import PartitionProgress, Progress, TableStatus, TopicProgress
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.run import Worker
from tidesink.sinks.worker.status import AGAIN_SECONDS, LAG_SECONDS, SAVE_SECONDS, OldestRecords, SavedStatus
from tidesink.sinks.worker.table_task import TableTask

ORDERS: Final = TableId("shop", "orders")
DOWN: Final = TransientTargetError("Postgres at 127.0.0.1:1/copy does not answer")
START: Final = 1_800_000_000.0
# Kafka's time of each record, in ms: 30 s before the outage begins.
KAFKA_MS: Final = int(START - 30) * 1000


class _Clock:
    """Seconds since 1970, set by hand."""

    now = START

    def __call__(self) -> float:
        return self.now


class _Shop:
    """A pipeline with one table, whose worker meets ``step`` when it opens the table, and ``look`` before.

    Both are called with how often they were called before; each call comes 10 s after the one before.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.file = folder / "shop.yaml"
        target = {"type": "http", "url": "http://127.0.0.1:1/x"}
        config = changed(FLAT_AVRO, target=target, **settings, state=str(folder / "state.db"))
        self.file.write_text(yaml.safe_dump(config), encoding="utf-8")
        self.config = load_config(self.file)
        self.store = SqlStateStore(self.config.state)
        self.clock, self.stop = _Clock(), StopFlag()
        self.step: Callable[[int], object] = lambda _call: None
        self.look: Callable[[int], None] = lambda _call: None

    def worker(
        self,
        *,
        ends: bool = True,
        looks: KafkaOffsets | None = None,
        fetch: Callable[[FetchRange], Iterator[pa.RecordBatch]] | None = None,
    ) -> Worker:
        failures = Failures(self.clock)
        heartbeat = Heartbeat(self.store, "shop", self.clock, failures)
        around = worker_context(self.config, store=self.store, registry=_Registry(self))
        around = replace(
            around,
            source=KafkaSource(fetch or _fetch),
            failures=failures,
            heartbeat=heartbeat,
            listeners=Listeners((heartbeat,)),
            stop=self.stop,
        )
        return Worker(around, until="drained" if ends else None, offsets=looks or _Looks(self))

    def asked(self, *options: str) -> Result:
        return CliRunner().invoke(app, ["status", str(self.file), *options])

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.asked("-o", "json").stdout)
        return found


class _Registry(MemorySchemaRegistry):
    def __init__(self, shop: _Shop) -> None:
        super().__init__()
        self._shop, self._calls = shop, 0

    def versions(self, subject: str) -> list[int]:
        self._calls += 1
        self._shop.clock.now += 10
        self._shop.step(self._calls - 1)
        raise RegistryError(f"{subject} is not for you")


class _Looks(KafkaOffsets):
    def __init__(self, shop: _Shop) -> None:
        self._shop, self._calls = shop, 0

    def look(self, choose: Choose, *_unread: Any) -> Look:
        self._calls += 1
        self._shop.clock.now += 10
        self._shop.look(self._calls - 1)
        topics = choose(["shop_orders"])
        return Look({one: TopicOffsets(one, "id", {0: PartitionOffsets(3, 9)}) for one in topics}, {})


def _fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
    assert wanted.start == 3
    yield pa.RecordBatch.from_pydict({"timestamp": pa.array([KAFKA_MS, KAFKA_MS + 1])})


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[_Shop]:
    shop = _Shop(tmp_path)
    yield shop
    shop.store.close()


@pytest.mark.parametrize("error", [DOWN, RegistryUnavailableError("the registry does not answer")])
def test_a_step_that_is_tried_again_shows_in_the_status(shop: _Shop, error: TidesinkError) -> None:
    shown: list[Result] = []
    found: list[dict[str, Any]] = []
    began: list[float] = []

    def step(call: int) -> None:
        began.append(shop.clock.now)
        if call == 2:
            shown.append(shop.asked())
            found.append(shop.json())
        if call < 3:
            raise error

    shop.step = step
    shop.worker().run()
    assert shown[0].exit_code == 3
    lines = shown[0].stdout
    assert f"shop.orders: error: {type(error).__name__}: {error}" in lines
    assert "shop.orders: since: 2027-01-15 08:00:" in lines
    assert "shop.orders: next: the worker tries again by itself, " in lines
    assert "shop.orders: lag: 6 records are not applied, " in lines
    assert "since the Kafka timestamp of the oldest of them" in lines
    (table,) = found[0]["tables"]
    assert (table["state"], table["lag"]["records"], table["lag"]["of"]) == ("IDLE", 6, "kafka")
    assert table["failure"]["error"] == table["error"] == f"{type(error).__name__}: {error}"
    since = datetime.fromisoformat(table["failure"]["since"])
    # Topics are looked at in between, as often as the time allows.
    assert began[0] <= since.timestamp() < began[1]
    assert table["failure"]["next_try"] > table["failure"]["since"]
    assert found[0]["worker"]["failure"] is None


def test_a_failure_that_passed_is_shown_no_more(shop: _Shop) -> None:
    context = shop.worker()._context
    task = TableTask(context, "shop_orders", ORDERS)
    codes: list[int] = []

    def step() -> None:
        shop.clock.now += 10
        codes.append(shop.asked().exit_code)
        if len(codes) < 3:
            raise DOWN

    context.retry(ORDERS).call(step)
    assert codes == [0, 0, 3]
    assert (shop.asked().exit_code, task.status.is_failing) == (0, False)


@pytest.mark.parametrize("ends", [True, False])
def test_a_failing_table_says_what_comes_next(tmp_path: Path, *, ends: bool) -> None:
    """A worker without an end tries again after the time of retries; a run that ended does not."""
    shop = _Shop(tmp_path, retry={"for": "0s"})
    reached = threading.Event()

    def look(call: int) -> None:
        if not ends and call >= 2:
            reached.set()
            shop.stop.wait(60)

    def step(_call: int) -> None:
        raise DOWN

    shop.step, shop.look = step, look
    running = threading.Thread(target=shop.worker(ends=ends).run)
    running.start()
    if ends:
        running.join(60)
    else:
        assert reached.wait(60)
    shown, found = shop.asked(), shop.json()
    shop.stop.set()
    running.join(60)
    assert shown.exit_code == 3
    (table,) = found["tables"]
    assert table["state"] == "FAILING"
    again = "shop.orders: next: the worker tries again by itself, "
    run = f"Fix the cause, then run `tidesink run --config {shop.file}`"
    assert ((again in shown.stdout), (run in shown.stdout)) == (not ends, ends)
    assert (table["failure"]["next_try"] is None) is ends
    assert "Nothing is lost" in shown.stdout
    # Once it is stopped, nothing is tried again.
    assert shop.json()["tables"][0]["failure"]["next_try"] is None
    assert run in shop.asked().stdout


def test_an_error_that_does_not_pass_says_how_the_table_goes_on(shop: _Shop) -> None:
    Heartbeat(shop.store, "shop").beat()
    error = "TargetError: no rights"
    details = {"lag": 4, **Failure(error, time.time()).as_details()}
    shop.store.save_status(TableStatus("shop", ORDERS, "FAILING", error=error, details=details))
    shown = shop.asked()
    assert f"then run `tidesink resume --config {shop.file} shop.orders`" in shown.stdout
    assert ", or restart the worker if you changed the config, which a worker reads only when" in shown.stdout
    assert (shown.exit_code, shop.json()["tables"][0]["failure"]["next_try"]) == (3, None)


@pytest.mark.parametrize(
    ("rests", "works", "line"),
    [
        (False, True, "next: decide or fix the cause, then run {}. If you changed the config, "),
        (False, True, "restart the worker instead: it then tries the table again"),
        (False, False, "next: no worker runs. Decide or fix the cause, then run `tidesink run"),
        (True, True, "next: {} continues the table. A restart of the worker does not. If you changed"),
        (True, True, "restart the worker first"),
        (True, False, "No worker runs: also run `tidesink run"),
    ],
)
def test_a_paused_table_says_how_it_goes_on(shop: _Shop, *, rests: bool, works: bool, line: str) -> None:
    """Also after a change of the config, which a worker reads only when it starts."""
    if works:
        Heartbeat(shop.store, "shop").beat()
    details = {"lag": 4, **({"rests": True} if rests else {})}
    shop.store.save_status(TableStatus("shop", ORDERS, "PAUSED", error="it waits", details=details))
    resume = f"`tidesink resume --config {shop.file} shop.orders`"
    assert line.format(resume) in shop.asked().stdout


def test_a_worker_that_was_stopped_in_an_outage_is_not_alive_and_its_tables_are_not_well(shop: _Shop) -> None:
    def step(call: int) -> None:
        if call == 2:
            shop.stop.set()
        raise DOWN

    shop.step = step
    report = shop.worker(ends=False).run()
    assert (report.interrupted, [table.state for table in report.tables]) == (True, ["IDLE"])
    shown, found = shop.asked(), shop.json()
    assert (found["worker"]["alive"], shown.exit_code) == (False, 3)
    assert "worker: no worker runs" in shown.stdout
    assert f"shop.orders: error: TransientTargetError: {DOWN}" in shown.stdout
    assert found["tables"][0]["failure"]["next_try"] is None
    assert found["tables"][0]["lag"]["records"] == 6


def _applied(shop: _Shop, topic_id: str) -> None:
    """An earlier worker applied the topic up to offset 8, and its last word was of offset 5."""
    at = TopicProgress("shop_orders", topic_id, {0: PartitionProgress(8, 8, None, None)})
    shop.store.record_progress(Progress(ORDERS, "shop", 1, 4, {"shop_orders": at}))
    shop.store.save_status(TableStatus("shop", ORDERS, "IDLE", batch=4, epoch=1, details={"lag": 3}))


@pytest.mark.parametrize(("topic_id", "lag"), [("id", 1), ("another", 6)])
def test_a_worker_that_is_stopped_before_a_table_opens_knows_how_far_it_was(
    shop: _Shop, topic_id: str, lag: int
) -> None:
    _applied(shop, topic_id)
    starts: list[int] = []

    def fetched(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        starts.append(wanted.start)
        yield pa.RecordBatch.from_pydict({"timestamp": pa.array([KAFKA_MS])})

    def step(_call: int) -> None:
        shop.stop.set()
        raise DOWN

    shop.step = step
    report = shop.worker(ends=False, fetch=fetched).run()
    assert [table.lag for table in report.tables] == [lag]
    assert [table["lag"]["records"] for table in shop.json()["tables"]] == [lag]
    assert starts == [9 - lag]


def test_the_lag_of_tables_without_a_worker_is_as_of_then(shop: _Shop) -> None:
    shop.store.save_status(TableStatus("shop", ORDERS, "IDLE", details={"lag": 3}))
    way = f"`tidesink offsets show --config {shop.file}` shows the present lag"
    assert f"\nlag: these numbers are from each table's last update. {way}\n" in shop.asked().stdout
    Heartbeat(shop.store, "shop", failures=Failures()).beat()
    assert "these numbers are from each table" not in shop.asked().stdout


def test_the_state_store_is_opened_once_for_a_status(shop: _Shop) -> None:
    shop.store.save_status(TableStatus("shop", ORDERS, "IDLE"))
    opened: list[Any] = []

    def note(connection: Any, _record: Any) -> None:
        opened.append(connection)

    event.listen(Pool, "connect", note)
    try:
        for options in ((), ("-o", "json")):
            opened.clear()
            assert shop.asked(*options).exit_code == 0
            assert len(opened) == 1
    finally:
        event.remove(Pool, "connect", note)


def test_a_rewind_that_no_worker_has_done_is_shown(shop: _Shop) -> None:
    shop.store.save_status(TableStatus("shop", ORDERS, "IDLE"))
    assert shop.json()["asked_to_rewind"] == []
    asked = RewindControl(7, "shop_orders", "id", ((0, 5), (1, 20)))
    change_control(shop.store, "shop", ORDERS, lambda control: control.rewound(asked))
    line = "shop.orders: rewind of shop_orders requested: partition 0 from 5, partition 1 from 20. "
    assert line in shop.asked().stdout
    partitions = [{"partition": 0, "offset": 5}, {"partition": 1, "offset": 20}]
    rewind = {"topic": "shop_orders", "partitions": partitions}
    assert shop.json()["asked_to_rewind"] == [{"table": ORDERS._asdict(), **rewind}]
    change_control(shop.store, "shop", ORDERS, lambda control: control.answered(7))
    assert line not in shop.asked().stdout


@pytest.mark.parametrize("ends", [True, False])
def test_what_is_saved_behind_the_last_turn_is_no_sign_of_life(shop: _Shop, *, ends: bool) -> None:
    def look(call: int) -> None:
        if call == 1:
            shop.stop.set()

    shop.look = look
    shop.worker(ends=ends).run()
    assert shop.json()["worker"]["alive"] is False
    assert CliRunner().invoke(app, ["status", str(shop.file), "--alive-within", "60"]).exit_code == 1


def test_kafkas_silence_shows_for_all_tables(shop: _Shop) -> None:
    shop.store.save_status(TableStatus("shop", ORDERS, "IDLE", details={"lag": 0}))
    shown: list[Result] = []
    found: list[dict[str, Any]] = []

    def look(call: int) -> None:
        if call == 3:
            shown.append(shop.asked())
            found.append(shop.json())
        if call < 4:
            raise BrokerUnavailableError("Kafka does not answer")

    shop.look = look
    shop.worker().run()
    assert shown[0].exit_code == 3
    assert "all tables: error: BrokerUnavailableError: Kafka does not answer" in shown[0].stdout
    assert "all tables: next: the worker tries again by itself" in shown[0].stdout
    # Tables have the state and the lag of before.
    assert found[0]["tables"][0]["state"] == "IDLE"
    assert "\nlag: Kafka does not answer, so these numbers are from its last answer\n" in shown[0].stdout
    assert found[0]["worker"]["failure"]["error"] == "BrokerUnavailableError: Kafka does not answer"
    # It answers: nothing of it is left.
    assert shop.json()["worker"]["failure"] is None
    assert "lag: Kafka does not answer" not in shop.asked().stdout


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            BrokerUnavailableError("no answer"),
            "lag: Kafka does not answer, so these numbers are from its last answer",
        ),
        (DOWN, "lag: all tables wait for the step that failed, so these numbers are older"),
    ],
)
def test_the_lag_is_as_old_as_what_all_tables_wait_for(shop: _Shop, error: TidesinkError, line: str) -> None:
    """Besides Kafka, all tables wait for the target's list of published cuts."""
    shop.store.save_status(TableStatus("shop", ORDERS, "IDLE", details={"lag": 0}))
    failures = Failures()
    failures.failed(None, error, 10)
    Heartbeat(shop.store, "shop", failures=failures).beat()
    lag = [shown for shown in shop.asked().stdout.splitlines() if shown.startswith("lag: ")]
    assert [shown.startswith(line) for shown in lag] == [True], lag


class _SilentTopic(_Looks):
    def look(self, choose: Choose, *unread: Any) -> Look:
        found, _ = super().look(choose, *unread)
        silent = self._calls > 1
        if self._calls == 5:
            self._shop.stop.set()
        return Look({}, {"shop_orders": SourceUnavailableError("no leader")}) if silent else Look(found, {})


def test_a_topic_without_an_answer_shows_for_its_tables(shop: _Shop) -> None:
    shop.step = lambda _call: shop.stop.wait(0)
    shop.worker(ends=False, looks=_SilentTopic(shop)).run()
    (table,) = shop.json()["tables"]
    assert table["failure"] is not None


def test_not_every_try_is_saved() -> None:
    clock = _Clock()
    failures, saved = Failures(clock), SavedStatus(clock)
    told = []
    for _ in range(100):
        failures.note(ORDERS, DOWN, 0.1)
        clock.now += 0.1
        failure = failures.of(ORDERS)
        if saved.lacks(failure):
            assert failure is not None
            told.append(clock.now)
            saved.saved(TableStatus("shop", ORDERS, "RUNNING", details=failure.as_details()))
    assert len(told) == 2
    assert told[0] - START >= SAVE_SECONDS - 0.2
    assert told[1] - told[0] >= AGAIN_SECONDS - 0.2
    # A long pause is saved at once: nothing else says when the next try is.
    failures.note(ORDERS, DOWN, AGAIN_SECONDS)
    assert saved.lacks(failures.of(ORDERS))
    failures.passed(ORDERS)
    assert saved.lacks(failures.of(ORDERS))
    saved.saved(TableStatus("shop", ORDERS, "RUNNING"))
    assert not saved.lacks(failures.of(ORDERS))


def test_the_lag_of_a_table_that_waits_is_saved_now_and_then() -> None:
    clock = _Clock()
    saved = SavedStatus(clock)
    saved.saved(TableStatus("shop", ORDERS, "PAUSED", details={"lag": 1}))
    assert not saved.lacks_lag(5)
    clock.now += LAG_SECONDS
    assert (saved.lacks_lag(1), saved.lacks_lag(5)) == (False, True)


def test_the_oldest_record_is_asked_for_once() -> None:
    asked: list[FetchRange] = []

    def fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        asked.append(wanted)
        if wanted.partition == 1:
            raise SourceError("expired")
        yield pa.RecordBatch.from_pydict({"timestamp": pa.array([], pa.int64())})
        yield pa.RecordBatch.from_pydict({"timestamp": pa.array([wanted.start * 1000], pa.int64())})

    oldest = OldestRecords("t", fetch)
    ends = {n: PartitionOffsets(2, 9) for n in range(4)}
    starts = {0: 5, 1: 4, 2: 9}
    for _ in range(3):
        # Partition 2 has nothing to read, and partition 3 was never read.
        assert oldest.time(starts, ends) == 2000
    assert sorted(one.partition for one in asked) == [0, 1, 3]
    assert oldest.time({0: 6, 1: 4, 2: 9, 3: 9}, ends) == 6000


@pytest.mark.parametrize(
    ("details", "commit_ts", "lag"),
    [
        ({}, None, (None, None, None)),
        ({"lag": 0}, None, (0, 0.0, None)),
        ({"lag": 7}, None, (7, None, None)),
        ({"lag": 7}, int(START - 50) * 1000 << LOGICAL_BITS, (7, 50.0, "source")),
        (
            {"lag": 7, "watermark": int(START - 20) * 1000 << LOGICAL_BITS},
            int(START - 50) * 1000 << LOGICAL_BITS,
            (7, 20.0, "source"),
        ),
        ({"lag": 7, "oldest_unapplied": KAFKA_MS}, 1, (7, 30.0, "kafka")),
    ],
)
def test_a_lag_says_by_which_time_it_is(
    details: dict[str, Any], commit_ts: int | None, lag: tuple[Any, ...]
) -> None:
    status = TableStatus("shop", ORDERS, "RUNNING", commit_ts=commit_ts, details=details)
    assert tuple(lag_of(status, START)) == lag


def test_a_status_without_details_and_a_heartbeat_without_a_failure_are_shown(shop: _Shop) -> None:
    shop.store.save_status(TableStatus("shop", ORDERS, "IDLE"))
    shop.store.save_document("heartbeat", "shop", {"time": 0.0, "working": True})
    assert failure_in({}) is None
    shown, (table,) = shop.asked(), shop.json()["tables"]
    assert shown.exit_code == 0
    assert (table["failure"], table["lag"]) == (None, {"records": None, "seconds": None, "of": None})
