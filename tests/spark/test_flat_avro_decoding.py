"""What a flat-avro task does with schema ids that its registry does not know yet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.lagging_registry import TOPIC, Clock, Follower, text_of
from tests.unit.config.samples import FLAT_AVRO, right
from tests.worker_contexts import worker_context
from tidesink.events import TableId
from tidesink.schema_registry import subject
from tidesink.sinks.decode.open import open_decoding
from tidesink.sinks.decode.schema_source import Missed
from tidesink.sinks.decode.writer_schemas import (
    ASK_AGAIN_SECONDS,
    FlatAvroDecoding,
    WriterSchemas,
    may_lag,
)
from tidesink.sinks.kafka.offsets import TopicOffsets
from tidesink.sinks.laws.counts import BatchSummary, EventCounts, UnplannedSchemas
from tidesink.sinks.runtime.context import RetryPolicy
from tidesink.sinks.runtime.observers import StepRetried, WorkerEvent
from tidesink.sinks.worker.open_table import decoding_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = TableId("shop", "orders")
FOUND = TopicOffsets(TOPIC, "an id", {})


class Heard:
    """Keeps what a worker tells."""

    def __init__(self) -> None:
        self.events: list[WorkerEvent] = []

    def hear(self, event: WorkerEvent) -> None:
        self.events.append(event)


def _missed(counts: EventCounts | None = None, unplanned: UnplannedSchemas | None = None) -> Missed:
    summary = BatchSummary(counts or EventCounts(), unplanned=unplanned or UnplannedSchemas())
    return Missed(summary, (), FOUND)


def test_an_id_the_registry_learns_a_little_later_is_planned(spark: SparkSession, tmp_path: Path) -> None:
    registry, heard = Follower(lag=0), Heard()
    one = registry.register(subject(TOPIC, "key"), text_of("id"))
    around = worker_context(right(FLAT_AVRO), spark, tmp_path, registry=registry, listeners=(heard,))
    decoding = open_decoding(decoding_parts(around), TOPIC, TABLE)
    decoding.prepare(FOUND)
    assert [column.name for column in decoding.columns().shape.columns] == ["id"]
    two = registry.register(subject(TOPIC, "value"), text_of("id", "name"))
    registry.lag = len(registry.asked) + 1
    assert decoding.learn(_missed(EventCounts(unplanned=1), UnplannedSchemas(value_ids=(two,))))
    assert [column.name for column in decoding.columns().shape.columns] == ["id", "name"]
    assert [type(event) for event in heard.events] == [StepRetried]
    assert not decoding.learn(_missed(EventCounts(bad=1), UnplannedSchemas(key_ids=(one,))))


def test_records_called_bad_heal_in_a_later_batch(spark: SparkSession, tmp_path: Path) -> None:
    registry, clock = Follower(lag=0), Clock()
    registry.register(subject(TOPIC, "key"), text_of("id"))
    schemas = WriterSchemas(registry, TOPIC, lag=RetryPolicy(0, passes=may_lag), clock=clock)
    around = worker_context(right(FLAT_AVRO), spark, tmp_path, registry=registry)
    decoding = FlatAvroDecoding(decoding_parts(around), TOPIC, TABLE, schemas=schemas)
    decoding.prepare(FOUND)
    two = registry.register(subject(TOPIC, "value"), text_of("id", "name"))
    registry.lag = 10_000
    assert decoding.learn(_missed(EventCounts(unplanned=1), UnplannedSchemas(value_ids=(two,))))
    assert not decoding.learn(_missed(EventCounts(bad=1)))
    registry.lag, clock.now = 0, ASK_AGAIN_SECONDS
    assert not decoding.learn(_missed())
    assert decoding.learn(_missed(EventCounts(bad=1)))
    assert [column.name for column in decoding.columns().shape.columns] == ["id", "name"]
