"""Topics that Kafka's own cleaner cleaned: no delete is missed unsaid, and Debezium's tombstones count."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.e2e.replay import Servers
from tests.e2e.test_replay_letters import NEVER, Shop, counted
from tests.e2e.writing import lake_rows, shop_config
from tests.full import FULL
from tests.lagging_registry import Clock
from tests.servers import clean_at_once, create_topics, delete_topic
from tests.unit.config.samples import CANAL_JSON, changed, right
from tests.unit.sinks.worker.bed import worker_context
from tidesink.codecs.flat_avro.codec import encode_delete_marker
from tidesink.config import load_config
from tidesink.errors import SourceError
from tidesink.events import Op, TableId
from tidesink.sinks.kafka.compaction import CaughtUp
from tidesink.sinks.kafka.fetch import FetchRange, KafkaFetch
from tidesink.sinks.kafka.offsets import KafkaOffsets, TopicOffsets
from tidesink.sinks.runtime.control import Pauses
from tidesink.sinks.state.progress import PartitionProgress, TopicProgress
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN
from tidesink.sinks.worker.continuity import Continuity
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.servers
_PATIENCE: Final = 120.0
_ORDERS: Final = TableId("shop", "orders")
_QUICK: Final = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "500",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "100",
    "min.compaction.lag.ms": "0",
}


def _checks(brokers: str, folder: Path) -> Continuity:
    source = {"brokers": brokers, "protocol": "flat-avro", "topics": "{schema}_{table}"}
    config = right(changed(CANAL_JSON, source={**source, "schema-registry": "http://127.0.0.1:1"}))
    context = worker_context(config, store=SqlStateStore(str(folder / "state.db")))
    return Continuity(context, "t", config.table_config(_ORDERS))


def _send(producer: Producer, topic: str, key: bytes, value: bytes | None) -> None:
    """Write a record, which the broker has then taken."""
    refused: list[object] = []
    producer.produce(topic, value, key, partition=0, on_delivery=lambda error, _record: refused.append(error))
    assert producer.flush(_PATIENCE) == 0
    assert refused == [None]


def _wait_until_removed(brokers: str, topic: str, roll: Callable[[], None], *, offset: int) -> TopicOffsets:
    """Until a record is gone; ``roll`` writes another, behind which a segment may be cleaned."""
    asked, fetch = KafkaOffsets({"bootstrap.servers": brokers}), KafkaFetch({"bootstrap.servers": brokers})
    deadline = time.monotonic() + _PATIENCE
    while True:
        found = asked.lookup([topic])[topic]
        end = found.partitions[0].latest
        offsets = [one for part in fetch(FetchRange(topic, 0, 0, end)) for one in part["offset"].to_pylist()]
        if end > offset and offset not in offsets:
            return found
        assert time.monotonic() < deadline, "the record was not removed"
        time.sleep(0.3)
        roll()


def test_a_delete_that_was_removed_unread_stops_its_table(
    brokers: str, topic_prefix: str, tmp_path: Path
) -> None:
    topic, admin = topic_prefix, AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(topic, 1, 1, config=_QUICK)])[topic].result(_PATIENCE)
    clean_at_once(brokers)
    producer = Producer({"bootstrap.servers": brokers})

    def produce(key: bytes, value: bytes | None) -> None:
        _send(producer, topic, key, value)

    checks, caught_up, pauses = _checks(brokers, tmp_path), CaughtUp(), Pauses(_ORDERS)
    produce(b"row", b"is in the table")
    found = KafkaOffsets({"bootstrap.servers": brokers}).lookup([topic])[topic]
    # The table is loaded from its beginning, and the worker stops.
    checks.check(None, found, batch=0, caught_up=caught_up, pauses=pauses)
    progress = TopicProgress(topic, found.topic_id, {0: PartitionProgress(1, 1)})
    checks.check(progress, found, batch=1, caught_up=caught_up, pauses=pauses)
    produce(b"row", None)
    found = _wait_until_removed(
        brokers, topic, lambda: produce(str(time.time()).encode(), b"rolls the segment"), offset=1
    )
    for known in (caught_up, CaughtUp()):
        with pytest.raises(SourceError, match=r"Deletes may be missing: .* delete\.retention\.ms=500"):
            checks.check(progress, found, batch=1, caught_up=known, pauses=pauses)
    # A table that had read to the end before the newest record lacks nothing.
    produce(b"new", b"one")
    end = found.partitions[0].latest
    read = TopicProgress(topic, found.topic_id, {0: PartitionProgress(end, end)})
    found = KafkaOffsets({"bootstrap.servers": brokers}).lookup([topic])[topic]
    longer = found.compaction._replace(delete_retention=3_600.0) if found.compaction else None
    checks.check(read, found._replace(compaction=longer), batch=9, caught_up=CaughtUp(), pauses=pauses)


def test_a_policy_is_asked_for_once_a_topic_and_again_after_ten_minutes(
    brokers: str, topic_prefix: str
) -> None:
    """What the brokers know is changed: whether the change is seen says whether they were asked."""
    topic, admin, clock = topic_prefix, AdminClient({"bootstrap.servers": brokers}), Clock()
    asked = KafkaOffsets({"bootstrap.servers": brokers}, clock=clock)

    def compacted() -> bool:
        return asked.lookup([topic])[topic].compaction is not None

    create_topics(brokers, {topic: 1})
    assert not compacted()
    _set_policy(admin, topic, "compact")
    for clock.now in (1.0, 600.0):
        assert not compacted()
    clock.now = 600.1
    assert compacted()
    # The answer is of that moment.
    _set_policy(admin, topic, "delete")
    clock.now = 1200.0
    assert compacted()
    # A topic that was made again is another one, of which nothing is known yet.
    delete_topic(brokers, topic)
    create_topics(brokers, {topic: 1})
    assert not compacted()


def _set_policy(admin: AdminClient, topic: str, policy: str, **more: str) -> None:
    """Change a topic's policy, and more of its config, and wait until the broker goes by it."""
    name = "cleanup.policy"
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in {**more, name: policy}.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(_PATIENCE)
    found, deadline = ConfigResource(ConfigResource.Type.TOPIC, topic), time.monotonic() + _PATIENCE
    while admin.describe_configs([found])[found].result(_PATIENCE)[name].value != policy:
        assert time.monotonic() < deadline, f"{topic} has another {name}"
        time.sleep(0.05)


_ID: Final = {"type": "int32", "optional": False, "field": "id"}
_NAME: Final = {"type": "string", "optional": True, "field": "name"}
_SOURCE: Final = [
    {"type": "string", "optional": True, "field": name} for name in ("connector", "db", "table", "file")
]
_KEY: Final = {"type": "struct", "fields": [_ID], "optional": False, "name": "app.shop.orders.Key"}
_ENVELOPE: Final = {
    "type": "struct",
    "name": "app.shop.orders.Envelope",
    "fields": [
        *(
            {"type": "struct", "fields": [_ID, _NAME], "optional": True, "field": field}
            for field in ("before", "after")
        ),
        {"type": "struct", "fields": _SOURCE, "optional": False, "field": "source"},
        {"type": "string", "optional": False, "field": "op"},
    ],
}


class _Connector:
    """Writes changes of a table as Debezium's connector for MySQL does: behind a ``d`` a tombstone."""

    def __init__(self, brokers: str, topic: str) -> None:
        self._topic, self._producer = topic, Producer({"bootstrap.servers": brokers})

    def put(self, number: int, name: str, *, op: str = "c") -> None:
        self._send(number, {"op": op, "after": {"id": number, "name": name}})

    def delete(self, number: int) -> None:
        self._send(number, {"op": "d", "before": {"id": number, "name": "gone"}})
        self._send(number, None)

    def _send(self, number: int, change: dict[str, Any] | None) -> None:
        source = {"connector": "mysql", "db": "shop", "table": "orders", "file": "bin.000001"}
        payload = None if change is None else {"before": None, "after": None, "source": source, **change}
        key = json.dumps({"schema": _KEY, "payload": {"id": number}})
        value = None if payload is None else json.dumps({"schema": _ENVELOPE, "payload": payload})
        _send(self._producer, self._topic, key.encode(), None if value is None else value.encode())


@pytest.mark.spark
def test_debezium_s_envelopes_are_followed_by_their_tombstones(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    """After the cleaner a tombstone is all that is left of a delete: it counts, or the topic is refused."""
    brokers, topic = servers["brokers"], f"{servers['prefix']}app.shop.orders"
    settings = {**_QUICK, "delete.retention.ms": "86400000"}
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(_PATIENCE)
    clean_at_once(brokers)
    connector = _Connector(brokers, topic)
    for number in (1, 2, 3):
        connector.put(number, "first")

    def work(folder: str, **debezium: bool) -> str | None:
        source = {"brokers": brokers, "protocol": "debezium-json", "debezium": debezium}
        source["topics"] = f"{servers['prefix']}app.{{schema}}.{{table}}"
        (tmp_path / folder).mkdir(exist_ok=True)
        config = load_config(shop_config(tmp_path / folder, servers, {"source": source}))
        (table,) = run(config, until="drained").tables
        return table.error

    assert work("followed", unwrapped=True) is None
    # Offsets 3 to 8; the cleaner leaves the update, one tombstone and the row that came again.
    connector.put(2, "second", op="u")
    connector.delete(1)
    connector.delete(3)
    connector.put(3, "again")
    roll = partial(connector.put, 9, "rolls the segment", op="u")
    roll()
    _wait_until_removed(brokers, topic, roll, offset=4)
    rows = {number: {"id": number, "name": name} for number, name in ((2, "second"), (3, "again"))}
    rows[9] = {"id": 9, "name": "rolls the segment"}
    for folder in ("followed", "loaded later"):
        assert work(folder, unwrapped=True) is None
        assert lake_rows(tmp_path / folder, "orders") == rows
    refused = work("refused")
    assert refused is not None
    assert "a tombstone does not count as a delete. Remedy: set source.debezium.unwrapped: true" in refused


@FULL
@pytest.mark.spark
def test_a_replay_by_the_source_s_order_needs_nothing_that_compaction_removed(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    """The target has the position of each row, and of each delete: a letter that is older changes nothing."""
    source = {
        "protocol": "flat-avro",
        "enable-tidb-extension": True,
        "schema-registry": servers["registry_url"],
        "topics": f"{servers['prefix']}{{schema}}_{{table}}",
    }
    shop = Shop(servers, tmp_path, "cleaned", source=source, defaults={"sequence_by": "source"})
    shop.put(1, "late", NEVER, ts=5 << 18)
    shop.put(1, "newest", ts=9 << 18)
    shop.put(2, "lost", NEVER, ts=7 << 18)
    shop.put(3, "deleted since", NEVER, ts=6 << 18)
    deleted = shop.writer.encoded(Op.INSERT, {"id": 3, "name": "", "day": "2026-01-01"})
    shop.writer.send(deleted.key, encode_delete_marker(8 << 18))
    shop.drain()
    assert (_present(tmp_path), shop.letters()) == ({1: "newest"}, [0, 2, 3])

    topic, numbers = shop.writer.topic, count(100)
    quick = {name: value for name, value in _QUICK.items() if not name.endswith(("policy", "retention.ms"))}
    _set_policy(AdminClient({"bootstrap.servers": servers["brokers"]}), topic, "compact", **quick)
    clean_at_once(servers["brokers"])
    rolled = partial(shop.put, name="rolls the segment", ts=20 << 18)
    found = _wait_until_removed(servers["brokers"], topic, lambda: rolled(next(numbers)), offset=3)
    assert found.compaction is not None
    shop.with_zero_date("null")
    assert counted(shop.replay()) == (3, 1, 2, 0, 0, 0, 0)
    expected = {1: "newest", 2: "lost"}
    assert (_present(tmp_path), shop.letters()) == (expected, [])
    # The worker goes on, and nothing comes back.
    shop.drain()
    assert {number: name for number, name in _present(tmp_path).items() if number < 100} == expected


def _present(folder: Path) -> dict[int, str]:
    """The rows that are not marked as deleted."""
    rows = lake_rows(folder, "cleaned").items()
    return {number: row["name"] for number, row in rows if not row[SOFT_DELETE_COLUMN]}
