"""A delete that Kafka's own cleaner removed before it was read stops its table."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.servers import clean_at_once
from tests.unit.config_samples import CANAL_JSON, changed, right
from tests.unit.worker_bed import surroundings
from tidesink.errors import SourceError
from tidesink.events import TableId
from tidesink.sinks.kafka.compaction import CaughtUp
from tidesink.sinks.kafka.fetch import FetchRange, KafkaFetch
from tidesink.sinks.kafka.offsets import KafkaOffsets, TopicOffsets
from tidesink.sinks.state.progress import PartitionProgress, TopicProgress
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.continuity import Continuity
from tidesink.sinks.worker.control import Pauses

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
    context = surroundings(config, store=SqlStateStore(str(folder / "state.db")))
    return Continuity(context, "t", config.table_config(_ORDERS))


def _wait_until_removed(brokers: str, topic: str, produce: Any) -> TopicOffsets:
    """Until the delete at offset 1 is gone."""
    asked, fetch = KafkaOffsets({"bootstrap.servers": brokers}), KafkaFetch({"bootstrap.servers": brokers})
    deadline = time.monotonic() + _PATIENCE
    while True:
        found = asked.lookup([topic])[topic]
        end = found.partitions[0].latest
        offsets = [one for part in fetch(FetchRange(topic, 0, 0, end)) for one in part["offset"].to_pylist()]
        if end > 1 and 1 not in offsets:
            return found
        assert time.monotonic() < deadline, "the delete was not removed"
        time.sleep(0.3)
        produce(str(time.time()).encode(), b"rolls the segment")


def test_a_delete_that_was_removed_unread_stops_its_table(
    brokers: str, topic_prefix: str, tmp_path: Path
) -> None:
    topic, admin = topic_prefix, AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(topic, 1, 1, config=_QUICK)])[topic].result(_PATIENCE)
    clean_at_once(brokers)
    producer = Producer({"bootstrap.servers": brokers})

    def produce(key: bytes, value: bytes | None) -> None:
        producer.produce(topic, key, value, partition=0)
        assert producer.flush(_PATIENCE) == 0

    checks, caught_up, pauses = _checks(brokers, tmp_path), CaughtUp(), Pauses(_ORDERS)
    produce(b"row", b"is in the table")
    found = KafkaOffsets({"bootstrap.servers": brokers}).lookup([topic])[topic]
    # The table is loaded from its beginning, and the worker stops.
    checks.check(None, found, batch=0, caught_up=caught_up, pauses=pauses)
    progress = TopicProgress(topic, found.topic_id, {0: PartitionProgress(1, 1)})
    checks.check(progress, found, batch=1, caught_up=caught_up, pauses=pauses)
    produce(b"row", None)
    found = _wait_until_removed(brokers, topic, produce)
    for known in (caught_up, CaughtUp()):
        with pytest.raises(SourceError, match=r"deletes may be missing: .* delete\.retention\.ms=500"):
            checks.check(progress, found, batch=1, caught_up=known, pauses=pauses)
    # A table that had read to the end before the newest record lacks nothing.
    produce(b"new", b"one")
    end = found.partitions[0].latest
    read = TopicProgress(topic, found.topic_id, {0: PartitionProgress(end, end)})
    found = KafkaOffsets({"bootstrap.servers": brokers}).lookup([topic])[topic]
    longer = found.compaction._replace(delete_retention=3_600.0) if found.compaction else None
    checks.check(read, found._replace(compaction=longer), batch=9, caught_up=CaughtUp(), pauses=pauses)
