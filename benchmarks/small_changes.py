"""Changes of small tables as canal-json, with the TiDB extension and full types. A topic has one table.

``python -m benchmarks.small_changes SETTINGS.json`` writes ``settings["count"]`` changes to each of
``settings["tables"]`` tables, from number ``settings["start"]`` on. A table gets one every
``settings["pace"]`` seconds, or all as fast as possible if that is 0. The first ``KEYS`` changes of a table
are inserts, all others are updates. The process prints ``{table: [timestamp, …]}``: Kafka's timestamp of each
record, in ms since 1970.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer

from tidesink.codecs import open_codec
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import parse_create_table
from tidesink.events import LOGICAL_BITS, ChangeEvent, Op, Position, TableId, TableSchema, Value

KEYS: Final = 50
_DDL: Final = """CREATE TABLE `small`.`t` (
  `id` BIGINT PRIMARY KEY, `amount` INT, `name` VARCHAR(40), `note` VARCHAR(120), `price` DECIMAL(12,2),
  `at` TIMESTAMP(3)
)"""
_FIRST_MS: Final = 1_767_225_600_000


def topics_of(settings: dict[str, Any]) -> Iterator[tuple[str, TableSchema]]:
    """Each topic, with its table."""
    definition, schema = parse_create_table(_DDL), settings["schema"]
    for number in range(settings["tables"]):
        table = TableId(schema, f"t{number}")
        yield f"{schema}.{schema}_{table.name}", replace(definition, table=table)


def write(settings: dict[str, Any], start: int, count: int, pace: float = 0.0) -> dict[str, list[int]]:
    """Write the changes, the tables in turns, and return Kafka's timestamps of them by table, in ms."""
    codec = open_codec(
        "canal-json", options=CanalJsonOptions(enable_tidb_extension=True, content_compatible=True)
    )
    producer = Producer(
        {"bootstrap.servers": settings["brokers"], "queue.buffering.max.messages": 500_000, "linger.ms": 5}
    )
    topics, times = [*topics_of(settings)], defaultdict[str, list[int]](list)
    names = {topic: str(schema.table) for topic, schema in topics}

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        times[names[message.topic()]].append(message.timestamp()[1])

    began = time.monotonic()
    for turn in range(count * len(topics)):
        number, table = divmod(turn, len(topics))
        topic, schema = topics[table]
        record = codec.encode(_change(schema, start + number), topic=topic)
        assert record is not None
        # The changes of a second are spread over all of it.
        time.sleep(max(0.0, began + turn * pace / len(topics) - time.monotonic()) if pace else 0.0)
        producer.produce(topic, record.value, record.key, on_delivery=delivered)
        producer.poll(0)
    producer.flush()
    return times


def _change(schema: TableSchema, number: int) -> ChangeEvent:
    row, commit_ts = _row(number), (_FIRST_MS + number) << LOGICAL_BITS
    op, before = (Op.INSERT, None) if number < KEYS else (Op.UPDATE, _row(number - KEYS))
    return ChangeEvent(
        op, schema.table, {"id": row["id"]}, before, row, commit_ts, Position("", 0, 0), schema
    )


def _row(number: int) -> dict[str, Value]:
    key = number % KEYS
    return {
        "id": key,
        "amount": number,
        "name": f"name-{key}",
        "note": f"change {number} of key {key}, with a little text to carry",
        "price": Decimal(number * 7_919 % 10**9).scaleb(-2),
        "at": f"2026-01-01 {number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}.000",
    }


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(write(given, given["start"], given["count"], given["pace"])))
