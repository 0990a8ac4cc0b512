"""The benchmark's change events: 10 columns, 200k keys, 10 % deletes, written through our own encoders."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Final

from confluent_kafka import Producer

from tidesink.codecs import open_codec
from tidesink.codecs.base import CodecOptions
from tidesink.ddl.catalog import parse_create_table
from tidesink.dev.workload import create_topics
from tidesink.events import ChangeEvent, Op, Position, TableId, Value
from tidesink.schema_registry import SchemaRegistry

TABLE = TableId("bench", "events")
DDL = """CREATE TABLE `bench`.`events` (
  `id` BIGINT PRIMARY KEY, `amount` INT, `total` BIGINT, `name` VARCHAR(40), `note` VARCHAR(120),
  `ratio` DOUBLE, `price` DECIMAL(20,4), `at` DATETIME(3), `digest` VARBINARY(16), `flag` TINYINT
)"""
PARTITIONS = 4
KEYS = 200_000
STEADY_BATCH = 1_000
STEADY_BATCHES = 12
SCHEMA = parse_create_table(DDL)
# Every codec as its changefeeds are set up to be read by tidesink.
OPTIONS: Final = {
    "flat-avro": CodecOptions(),
    "canal-json": CodecOptions(enable_tidb_extension=True),
    "debezium-json": CodecOptions(enable_tidb_extension=True),
    "debezium-avro": CodecOptions(enable_tidb_extension=True),
}


def events(count: int, *, seed: int, keys: int = KEYS) -> Iterator[ChangeEvent]:
    """A repeatable stream of upserts and deletes over ``keys`` keys; a delete has its whole old row."""
    random = Random(seed)
    for number in range(count):
        key = random.randrange(keys)
        commit_ts = (1_767_225_600_000 + number) << 18
        row = _row(random, key, number)
        deletes = random.random() < 0.1
        op, before, after = (Op.DELETE, row, None) if deletes else (Op.INSERT, None, row)
        yield ChangeEvent(op, TABLE, {"id": key}, before, after, commit_ts, Position("", 0, 0), SCHEMA)


def _row(random: Random, key: int, number: int) -> dict[str, Value]:
    return {
        "id": key,
        "amount": number % 1_000_000,
        "total": number * 7_919,
        "name": f"name-{key}",
        "note": f"event {number} of key {key}, with a little text to carry",
        "ratio": random.random(),
        "price": Decimal(random.randrange(10**12)).scaleb(-4),
        "at": f"2026-01-01 {number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}"
        f".{number % 1000:03d}",
        "digest": random.randbytes(12),
        "flag": number % 2,
    }


def write_events(
    brokers: str,
    registry: SchemaRegistry,
    topic: str,
    count: int,
    *,
    seed: int = 1,
    keys: int = KEYS,
    protocol: str = "flat-avro",
) -> None:
    """Write ``count`` events to a topic, one partition a key."""
    create_topics(brokers, [topic], PARTITIONS)
    codec = open_codec(protocol, options=OPTIONS[protocol], registry=registry)
    producer = Producer(
        {"bootstrap.servers": brokers, "linger.ms": 50, "queue.buffering.max.messages": 500_000}
    )
    for event in events(count, seed=seed, keys=keys):
        record = codec.encode(event, topic=topic)
        assert record is not None
        assert event.key is not None
        partition = hash(event.key["id"]) % PARTITIONS
        while True:
            try:
                producer.produce(topic, record.value, record.key, partition)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()
