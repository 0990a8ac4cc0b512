"""Raw frames of Kafka's records on a real broker: what a plain consumer reads, and errors of the tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.full import FULL
from tests.servers import create_topics
from tidesink.codecs.batch import messages
from tidesink.dev.stack import free_ports
from tidesink.errors import SourceError, SourceUnavailableError
from tidesink.events import Message
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.fetch import FetchLimits, FetchRange, KafkaFetch, fetch
from tidesink.sinks.kafka.offsets import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]
_PATIENCE: Final = 60.0
_PARTITIONS: Final = 2


def _fill(brokers: str, topic: str) -> None:
    """Records with gaps between them: aborted ones, markers; headers, null keys and null values."""
    producer = Producer({"bootstrap.servers": brokers, "transactional.id": topic})
    producer.init_transactions(_PATIENCE)
    for number in range(6):
        producer.begin_transaction()
        for part in range(40):
            producer.produce(
                topic,
                value=None if part % 7 == 0 else f"{number} größe {part}".encode() * (part + 1),
                key=None if part % 5 == 0 else f"k{part}".encode(),
                partition=part % _PARTITIONS,
                timestamp=1_700_000_000_000 + 1000 * number + part,
                headers=[("h", b"\x00\xff"), ("none", None)] if part % 11 == 0 else None,
            )
        assert producer.flush(_PATIENCE) == 0
        if number % 2:
            producer.abort_transaction(_PATIENCE)
        else:
            producer.commit_transaction(_PATIENCE)


def _consumed(brokers: str, topic: str, ends: dict[int, int]) -> dict[tuple[int, int], tuple[Any, ...]]:
    """What a plain consumer reads, by partition and offset."""
    settings = {"group.id": topic, "enable.partition.eof": True, "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": brokers, "enable.auto.commit": False, **settings})
    consumer.assign([TopicPartition(topic, number, 0) for number in ends])
    found: dict[tuple[int, int], tuple[Any, ...]] = {}
    left = set(ends)
    while left:
        record = consumer.poll(_PATIENCE)
        assert record is not None
        partition, offset = record.partition(), record.offset()
        assert partition is not None
        error = record.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            left.remove(partition)
            continue
        assert offset is not None
        moment = record.timestamp()[1]
        headers = [tuple(one) for one in record.headers() or ()] or None
        found[partition, offset] = (record.key(), record.value(), moment, headers)
    consumer.close()
    return found


def _messages(records: Iterator[pa.RecordBatch]) -> list[Message]:
    return [one for batch in records for one in messages(batch)]


def _rows(found: Iterable[Message]) -> dict[tuple[int, int], tuple[Any, ...]]:
    rows = list(found)
    by_place = {
        (row.partition, row.offset): (row.key, row.value, row.timestamp, list(row.headers) or None)
        for row in rows
    }
    assert len(by_place) == len(rows)
    return by_place


def test_tasks_and_this_process_read_what_a_consumer_reads(
    spark: SparkSession, brokers: str, topic_prefix: str
) -> None:
    create_topics(brokers, {topic_prefix: _PARTITIONS})
    _fill(brokers, topic_prefix)
    ends = dict.fromkeys(range(_PARTITIONS), 6 * (40 // _PARTITIONS) + 6)
    expected = _consumed(brokers, topic_prefix, ends)
    assert len(expected) == 120
    source = KafkaSource(KafkaFetch({"bootstrap.servers": brokers}))
    ranges = [OffsetRange(topic_prefix, number, 0, end) for number, end in ends.items()]
    asked = source.ask(spark, ranges, _messages)
    assert _rows(one for part in asked for one in part) == expected
    assert _rows(_messages(source.read_here(ranges))) == expected
    valued = {place: row for place, row in expected.items() if row[1] is not None}
    assert _rows(source.messages_here(ranges)) == valued
    inner = [OffsetRange(topic_prefix, 0, 5, 47), OffsetRange(topic_prefix, 1, 9, 9)]
    assert _rows(one for part in source.ask(spark, inner, _messages) for one in part) == {
        at: row for at, row in expected.items() if at[0] == 0 and 5 <= at[1] < 47
    }
    assert source.ask(spark, [], _messages) == []


def test_expired_offsets_are_our_error_on_the_driver(
    spark: SparkSession, brokers: str, topic_prefix: str
) -> None:
    create_topics(brokers, {topic_prefix: 1})
    producer = Producer({"bootstrap.servers": brokers})
    for number in range(10):
        producer.produce(topic_prefix, value=b"%d" % number, partition=0)
    assert producer.flush(_PATIENCE) == 0
    admin = AdminClient({"bootstrap.servers": brokers})
    for future in admin.delete_records([TopicPartition(topic_prefix, 0, 6)]).values():
        future.result(_PATIENCE)
    source = KafkaSource(KafkaFetch({"bootstrap.servers": brokers}))
    ranges = [OffsetRange(topic_prefix, 0, 2, 10)]
    for read in (lambda: source.ask(spark, ranges, _messages), lambda: list(source.read_here(ranges))):
        with pytest.raises(SourceError, match="the partition begins at 6") as caught:
            read()
        assert caught.value.context == {"topic": topic_prefix, "partition": 0, "offset": 2}
        assert type(caught.value) is SourceError


def _impatient(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
    (port,) = free_ports(1)
    limits = FetchLimits(silence=1, refusal=1)
    return fetch(wanted, {"bootstrap.servers": f"127.0.0.1:{port}"}, limits=limits)


@FULL
def test_silence_is_our_error_on_the_driver(spark: SparkSession) -> None:
    with pytest.raises(SourceUnavailableError, match="no answer"):
        KafkaSource(_impatient).ask(spark, [OffsetRange("t", 0, 0, 1)], _messages)
