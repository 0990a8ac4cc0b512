"""Everything that a topic holds now, read by a plain consumer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tidesink.events import Message

_PATIENCE = 60.0
_NO_LEADER_YET = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
    }
)


def topic_messages(brokers: str, topic: str) -> list[Message]:
    """The records of a topic, partition by partition in their order; none where it is not there."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "test", "enable.auto.commit": False})
    try:
        found = consumer.list_topics(topic, timeout=_PATIENCE).topics[topic]
        return [
            message
            for number in sorted(found.partitions)
            for message in _partition(consumer, TopicPartition(topic, number, 0))
        ]
    finally:
        consumer.close()


def _end(consumer: Consumer, place: TopicPartition) -> int:
    """Where a partition ends; one that was made a moment ago may have no leader yet."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return consumer.get_watermark_offsets(place, timeout=_PATIENCE)[1]
        except KafkaException as exc:
            if exc.args[0].code() not in _NO_LEADER_YET or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _partition(consumer: Consumer, place: TopicPartition) -> Iterator[Message]:
    end = _end(consumer, place)
    if not end:
        return
    consumer.assign([place])
    while True:
        record = consumer.poll(_PATIENCE)
        assert record is not None
        assert record.error() is None, record.error()
        offset = record.offset()
        assert offset is not None
        headers: Any = record.headers() or []  # pairs, though the library's type has more forms
        yield Message(
            place.topic,
            place.partition,
            offset,
            record.key(),
            record.value(),
            headers=tuple(headers),
        )
        if offset + 1 >= end:
            return
