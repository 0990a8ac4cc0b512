"""Raw frames of Kafka's records on a real broker: what a plain consumer reads, and errors of the tasks."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.full import FULL
from tests.servers import create_topics
from tidesink.dev.processes import free_ports
from tidesink.errors import SourceError, SourceUnavailableError
from tidesink.sinks.batch.source import KafkaSource, translated_read_errors
from tidesink.sinks.kafka.fetch import FetchLimits, FetchRange, KafkaFetch, fetch
from tidesink.sinks.kafka.offsets import OffsetRange
from tidesink.sinks.spark.record_frames import RECORD_DDL

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]
_PATIENCE: Final = 60.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
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
    found, left = {}, set(ends)
    while left:
        record = consumer.poll(_PATIENCE)
        assert record is not None
        error = record.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            left.remove(record.partition())
            continue
        moment = _EPOCH + timedelta(milliseconds=record.timestamp()[1])
        headers = [tuple(one) for one in record.headers() or ()] or None
        found[record.partition(), record.offset()] = (record.key(), record.value(), moment, headers)
    consumer.close()
    return found


def _rows(frame: DataFrame, *, headers: bool) -> dict[tuple[int, int], tuple[Any, ...]]:
    rows = frame.collect()
    found = {
        (row["partition"], row["offset"]): (
            row["key"] and bytes(row["key"]),
            row["value"] and bytes(row["value"]),
            row["timestamp"].astimezone(timezone.utc),
            _headers(row["headers"]) if headers else None,
        )
        for row in rows
    }
    assert len(found) == len(rows)
    return found


def _headers(found: Any) -> list[tuple[str, bytes | None]] | None:
    return found and [(one["key"], one["value"] and bytes(one["value"])) for one in found]


def test_a_frame_has_the_records_that_a_consumer_reads(
    spark: SparkSession, brokers: str, topic_prefix: str
) -> None:
    create_topics(brokers, {topic_prefix: _PARTITIONS})
    _fill(brokers, topic_prefix)
    ends = dict.fromkeys(range(_PARTITIONS), 6 * (40 // _PARTITIONS) + 6)
    expected = _consumed(brokers, topic_prefix, ends)
    assert len(expected) == 120
    source = KafkaSource(KafkaFetch({"bootstrap.servers": brokers}))
    ranges = [OffsetRange(topic_prefix, number, 0, end) for number, end in ends.items()]
    frame = source.records(spark, ranges)
    assert _rows(frame, headers=True) == expected
    plain = source.frame(spark, ranges)
    assert plain.schema == spark.createDataFrame([], RECORD_DDL).schema
    assert _rows(plain, headers=False) == {at: (*row[:3], None) for at, row in expected.items()}
    inner = [OffsetRange(topic_prefix, 0, 5, 47), OffsetRange(topic_prefix, 1, 9, 9)]
    assert _rows(source.records(spark, inner), headers=True) == {
        at: row for at, row in expected.items() if at[0] == 0 and 5 <= at[1] < 47
    }
    read = source.read(spark, ranges)
    assert read.frame.count() == 120
    size = sum(len(key or b"") + len(value or b"") for key, value, *_ in expected.values())
    assert tuple(read.observed()) == tuple(read.counted()) == (120, size, 0)
    assert source.frame(spark, []).collect() == []


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
    frame = KafkaSource(KafkaFetch({"bootstrap.servers": brokers})).frame(
        spark, [OffsetRange(topic_prefix, 0, 2, 10)]
    )
    for job in (frame.collect, frame.count, frame.write.format("noop").mode("overwrite").save):
        with (
            pytest.raises(SourceError, match="the partition begins at 6") as caught,
            translated_read_errors("another"),
        ):
            job()
        assert caught.value.context == {"topic": topic_prefix, "partition": 0, "offset": 2}
        assert type(caught.value) is SourceError


def _impatient(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
    (port,) = free_ports(1)
    limits = FetchLimits(silence=1, refusal=1)
    return fetch(wanted, {"bootstrap.servers": f"127.0.0.1:{port}"}, limits=limits)


@FULL
def test_silence_is_our_error_on_the_driver(spark: SparkSession) -> None:
    frame = KafkaSource(_impatient).frame(spark, [OffsetRange("t", 0, 0, 1)])
    with pytest.raises(SourceUnavailableError, match="no answer"), translated_read_errors("t"):
        frame.collect()
