"""``tidesink.consume`` on a real broker and registry: typed events, at least once, nothing lost."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

import tidesink
from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, schema_of, shop_config
from tests.full import FULL
from tidesink import ChangeEvent, Op, load_config, open_codec
from tidesink.config.models import topic_tables
from tidesink.consumer import BadRecord, ConsumerGroup, EventConsumer
from tidesink.errors import (
    ConfigError,
    FramingError,
    RegistryUnavailableError,
    SourceError,
    SourceUnavailableError,
)
from tidesink.events import Event
from tidesink.kafka_client import open_client

IDLE = 4.0
# How long what is sure to come may take.
PATIENCE = 120.0


def consumer(
    directory: Path, servers: Servers, more: dict[str, Any] | None = None, **given: Any
) -> EventConsumer:
    """A consumer of the shop's topics in a group that no other test has."""
    settings = {"group": servers["prefix"], "stop_after_idle": IDLE, "refresh": 1.0, **given}
    return tidesink.consume(shop_config(directory, servers, more), **settings)


def committed(servers: Servers, topic: str, partitions: int = 1) -> list[int]:
    """What the group has committed of a topic."""
    asking = Consumer({"bootstrap.servers": servers["brokers"], "group.id": servers["prefix"]})
    try:
        places = asking.committed([TopicPartition(topic, n) for n in range(partitions)], timeout=120)
        return [max(place.offset, 0) for place in places]
    finally:
        asking.close()


def ids(events: Iterable[Event]) -> list[int]:
    """The ids of the rows in events."""
    return [_id_in(event) for event in events]


def _id_in(event: Event) -> int:
    assert isinstance(event, ChangeEvent)
    row = event.after or event.before
    assert row is not None
    number = row["id"]
    assert isinstance(number, int)
    return number


@pytest.fixture
def orders(servers: Servers) -> TableWriter:
    """A table with ten rows and a delete."""
    writer = TableWriter(servers, schema_of("orders"))
    for number in range(10):
        writer.upsert({"id": number, "name": f"n{number}"})
    writer.delete({"id": 3, "name": "n3"})
    return writer


def test_events_are_typed_and_have_positions_and_schemas(
    tmp_path: Path, servers: Servers, orders: TableWriter
) -> None:
    with consumer(tmp_path, servers) as events:
        found = list(events)
    assert ids(iter(found[:10])) == list(range(10))
    first, last = found[0], found[-1]
    assert isinstance(first, ChangeEvent)
    assert (str(first.table), first.key, first.after) == ("shop.orders", {"id": 0}, {"id": 0, "name": "n0"})
    assert (first.position.topic, first.position.offset, last.position.offset) == (orders.topic, 0, 10)
    assert first.schema is not None
    assert first.schema.by_name["id"].type.name == "bigint"
    assert isinstance(last, ChangeEvent)
    assert last.op is Op.DELETE
    assert committed(servers, orders.topic) == [11]


def test_what_was_done_is_not_given_again(tmp_path: Path, servers: Servers, orders: TableWriter) -> None:
    with consumer(tmp_path, servers) as events:
        list(events)
    orders.upsert({"id": 77, "name": None})
    with consumer(tmp_path, servers) as events:
        assert ids(events) == [77]


def test_an_exception_in_the_loop_commits_nothing_of_the_batch(
    tmp_path: Path, servers: Servers, orders: TableWriter
) -> None:
    with pytest.raises(ZeroDivisionError), consumer(tmp_path, servers, batch_records=4) as events:
        _ = [1 / (event.position.offset - 6) for event in events]
    done = committed(servers, orders.topic)[0]
    assert done <= 6
    with consumer(tmp_path, servers) as events:
        assert [event.position.offset for event in events] == list(range(done, 11))


def test_break_in_a_with_block_is_a_clean_end(tmp_path: Path, servers: Servers, orders: TableWriter) -> None:
    with consumer(tmp_path, servers) as events:
        for event in events:
            if event.position.offset == 4:
                break
    assert committed(servers, orders.topic) == [5]


def test_a_second_loop_begins_with_what_the_first_did_not_finish(
    tmp_path: Path, servers: Servers, orders: TableWriter
) -> None:
    with consumer(tmp_path, servers) as events:
        assert ids(itertools.islice(events, 3)) == [0, 1, 2]
        assert [event.position.offset for event in events] == list(range(2, 11))


def test_batches_are_committed_when_the_next_one_is_asked_for(
    tmp_path: Path, servers: Servers, orders: TableWriter
) -> None:
    with consumer(tmp_path, servers, batch_records=4) as events:
        batches = events.batches()
        first = next(batches)
        assert first.events[0].position.offset == 0
        assert committed(servers, orders.topic) == [0]
        end = first.offsets[orders.topic, 0]
        second = next(batches)
        assert second.events[0].position.offset == end
        assert committed(servers, orders.topic) == [end]
        assert [len(first.events) <= 4, len(second.events) <= 4] == [True, True]
        rest = [event.position.offset for batch in batches for event in batch.events]
        assert rest[-1] == 10
    assert committed(servers, orders.topic) == [11]


def test_a_batch_that_failed_is_given_again(tmp_path: Path, servers: Servers, orders: TableWriter) -> None:
    with consumer(tmp_path, servers, batch_records=100) as events:
        given = next(events.batches()).events
        again = next(events.batches()).events
        # As many as Kafka had at hand each time: either may be the shorter one.
        both = min(len(given), len(again))
        assert both > 0
        assert again[:both] == given[:both]


def test_a_bad_record_pauses_before_it(tmp_path: Path, servers: Servers, orders: TableWriter) -> None:
    orders.send(b"k", b"{not avro}")
    orders.upsert({"id": 50, "name": "after"})
    found: list[int] = []
    events = consumer(tmp_path, servers)
    try:
        for _ in range(2):  # and comes to it again
            with pytest.raises(FramingError) as bad:
                found.extend(event.position.offset for event in events)
            assert (bad.value.context["topic"], bad.value.context["offset"]) == (orders.topic, 11)
    finally:
        events.close()
    assert found == list(range(11))
    assert committed(servers, orders.topic) == [11]


def test_bad_records_go_to_the_callback(tmp_path: Path, servers: Servers, orders: TableWriter) -> None:
    orders.send(b"k", b"{not avro}")
    orders.upsert({"id": 50, "name": "after"})
    bad: list[BadRecord] = []
    policy = {"defaults": {"bad-record": "dead-letter"}}
    with consumer(tmp_path, servers, policy, on_bad_record=bad.append) as events:
        assert ids(events)[-1] == 50
    assert [(one.message.offset, one.message.value) for one in bad] == [(11, b"{not avro}")]
    assert isinstance(bad[0].error, FramingError)
    assert committed(servers, orders.topic) == [13]


def test_a_callback_that_fails_loses_nothing(tmp_path: Path, servers: Servers, orders: TableWriter) -> None:
    orders.send(b"k", b"bad")
    orders.upsert({"id": 50, "name": "after"})
    full = {"yes": True}

    def put(_: BadRecord) -> None:
        if full.pop("yes", False):
            raise OSError("the disk is full")

    events = consumer(tmp_path, servers, {"defaults": {"bad-record": "dead-letter"}}, on_bad_record=put)
    with events, pytest.raises(OSError, match="full"):
        list(events)
    with consumer(tmp_path, servers, {"defaults": {"bad-record": "dead-letter"}}, on_bad_record=put) as again:
        assert 50 in ids(again)


def test_new_topics_that_fit_the_rule_are_picked_up(
    tmp_path: Path, servers: Servers, orders: TableWriter
) -> None:
    with consumer(tmp_path, servers, start="latest", stop_after_idle=PATIENCE) as events:
        threading.Timer(3, _later, (servers,)).start()
        found = _idle_behind(events, 2)
        assert len(events.topics) == 2
    # The old topic from its end, as asked; the new one from its beginning.
    assert [(event.table.name, event.after["id"]) for event in found] == [("items", 1), ("items", 2)]


def _idle_behind(events: EventConsumer, count: int) -> list[Any]:
    """So many events, however long they take to come, and what comes in some seconds behind them."""
    found: list[Any] = []
    for event in events:
        found.append(event)
        if len(found) == count:
            threading.Timer(IDLE, events.stop).start()
    return found


def _later(servers: Servers) -> None:
    items = TableWriter(servers, schema_of("items"))
    items.upsert({"id": 1, "name": "x"})
    items.upsert({"id": 2, "name": "y"})


def test_stop_ends_the_loop_and_commits(tmp_path: Path, servers: Servers, orders: TableWriter) -> None:
    with consumer(tmp_path, servers, stop_after_idle=None) as events:
        assert len(_idle_behind(events, 11)) == 11
    assert committed(servers, orders.topic) == [11]


def test_stop_between_two_events_commits_what_was_done(
    tmp_path: Path, servers: Servers, orders: TableWriter
) -> None:
    with consumer(tmp_path, servers) as events:
        for event in events:
            if event.position.offset == 5:
                events.stop()
    assert event.position.offset == 5
    assert committed(servers, orders.topic) == [6]


@FULL
def test_a_killed_consumer_loses_nothing(tmp_path: Path, servers: Servers) -> None:
    writer = TableWriter(servers, schema_of("orders"), partitions=3)
    for number in range(300):
        writer.upsert({"id": number, "name": "n"}, partition=number % 3)
    config, notes = shop_config(tmp_path, servers), tmp_path / "notes"
    for pause, kill_at in ((0.01, 40), (0.01, 130), (0.0, None)):
        process = _start(config, servers["prefix"], notes, pause)
        _wait(process, notes, kill_at)
    seen = [int(line.split()[0]) for line in notes.read_text(encoding="utf-8").splitlines() if " " in line]
    assert set(seen) == set(range(300))
    assert 300 <= len(seen) <= 300 + 2 * 20
    assert committed(servers, writer.topic, 3) == [100, 100, 100]


def _start(config: Path, group: str, notes: Path, pause: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.e2e.consuming", str(config), group, str(notes), str(pause)]
    return subprocess.Popen(command)


def _wait(process: subprocess.Popen[bytes], notes: Path, kill_at: int | None) -> None:
    """Kill the process once so many lines are noted; else wait for its own end."""
    try:
        if kill_at is None:
            assert process.wait(2 * PATIENCE) == 0
            return
        deadline = time.monotonic() + 2 * PATIENCE
        while time.monotonic() < deadline:
            if notes.exists() and len(notes.read_text(encoding="utf-8").splitlines()) >= kill_at:
                return
            assert process.poll() is None
            time.sleep(0.025)
        pytest.fail("the consumer noted nothing")
    finally:
        process.kill()
        process.wait(120)


def test_a_registry_that_is_down_is_said_and_nothing_is_lost(
    tmp_path: Path, servers: Servers, orders: TableWriter
) -> None:
    source = {
        "brokers": servers["brokers"],
        "protocol": "flat-avro",
        "topics": f"{servers['prefix']}{{schema}}_{{table}}",
        "schema-registry": "http://127.0.0.1:1",
    }
    table = [{"name": "shop.orders", "topic": orders.topic}]
    events = consumer(tmp_path, servers, {"source": source, "tables": table})
    with pytest.raises(RegistryUnavailableError):
        next(events)
    with pytest.raises(RegistryUnavailableError):
        next(events)
    events.close()
    assert committed(servers, orders.topic) == [0]
    with consumer(tmp_path, servers) as found:
        assert len(list(found)) == 11


def test_records_that_kafka_no_longer_holds_are_said(
    tmp_path: Path, servers: Servers, orders: TableWriter
) -> None:
    with consumer(tmp_path, servers) as events:
        next(events)
    admin = AdminClient({"bootstrap.servers": servers["brokers"]})
    gone = TopicPartition(orders.topic, 0, 8)
    for future in admin.delete_records([gone]).values():
        future.result()
    events = consumer(tmp_path, servers)
    with pytest.raises(SourceError, match="Kafka no longer has the next records"):
        list(events)
    events.close()
    assert committed(servers, orders.topic) == [1]


class OnceUnanswered(Consumer):
    """A consumer whose first question of where its group is has no answer."""

    asked = False

    def committed(self, *places: Any, **more: Any) -> list[TopicPartition]:
        if not self.asked:
            self.asked = True
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return super().committed(*places, **more)


def test_a_round_that_fails_is_said_and_the_next_call_goes_on(
    tmp_path: Path, servers: Servers, orders: TableWriter
) -> None:
    with consumer(tmp_path, servers) as events:
        next(events)
    config = load_config(shop_config(tmp_path, servers))
    registry = config.source.open_registry()
    members = ConsumerGroup(
        config.source.confluent_properties(),
        config.topics_among,
        group=servers["prefix"],
        refresh=1.0,
        open_client=lambda _kind, *given, **more: open_client(OnceUnanswered, *given, **more),
    )
    members.open()
    codec = open_codec("flat-avro", registry=registry, table_of_topic=topic_tables(config, registry))
    with EventConsumer(
        config, codec=codec, group=members, stop_after_idle=IDLE, on_close=registry.close
    ) as events:
        with pytest.raises(SourceUnavailableError, match="Timed out"):
            next(events)
        late = threading.Timer(PATIENCE, events.stop)
        late.start()
        assert [event.position.offset for event in events] == list(range(1, 11))
        assert late.is_alive()  # idle, and not stopped
        late.cancel()


@FULL
def test_a_broker_that_does_not_answer_is_said(tmp_path: Path, servers: Servers) -> None:
    nowhere = Servers(brokers="127.0.0.1:1", registry_url=servers["registry_url"], prefix="p-")
    with pytest.raises(SourceUnavailableError, match=r"No answer from 127\.0\.0\.1:1"):
        consumer(tmp_path, nowhere)


def test_dead_letters_need_somewhere_to_go(tmp_path: Path, servers: Servers) -> None:
    with pytest.raises(ConfigError, match="on_bad_record"):
        consumer(tmp_path, servers, {"defaults": {"bad-record": "dead-letter"}})


def test_no_topic_yet_is_waited_for(tmp_path: Path, servers: Servers) -> None:
    with consumer(tmp_path, servers, stop_after_idle=PATIENCE) as events:
        threading.Timer(2, _later, (servers,)).start()
        assert [event.after["id"] for event in _idle_behind(events, 2)] == [1, 2]


def test_two_members_share_the_partitions_and_lose_nothing(tmp_path: Path, servers: Servers) -> None:
    writer = TableWriter(servers, schema_of("orders"), partitions=2)
    for number in range(100):
        writer.upsert({"id": number, "name": "n"}, partition=number % 2)
    found: list[int] = []
    members = [consumer(tmp_path, servers, batch_records=10) for _ in range(2)]
    threads = [threading.Thread(target=lambda one=one: found.extend(ids(one))) for one in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert set(found) == set(range(100))
    assert committed(servers, writer.topic, 2) == [50, 50]
