"""What the tasks count is what the summary of the same records' reduced frame has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.decoded_batches import as_records
from tests.sessions import raw_frame
from tests.spark.test_flat_avro_columns import Topic, table
from tests.unit.flat_avro_cases import change
from tidesink.events import Op
from tidesink.sinks.batch.frame_reduction import reduce_frame, rows_to_apply, summarise
from tidesink.sinks.batch.records import EventRules
from tidesink.sinks.batch.source import KafkaSource, reduced_ranges, release_stored
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.kafka.fetch import FetchRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = table("v int, day date")


def _topic(*, mixed: bool) -> Topic:
    """Two partitions with rows, deletes, dates no calendar has, a watermark, bad and unplanned records.

    ``mixed``: keys come in both.
    """
    topic = Topic(enable_tidb_extension=True, producer="new", avro_include_before_value=True)
    for at in range(12):
        row = {"id": at % 5, "v": at, "day": "0000-00-00" if at % 3 else "2026-01-01"}
        topic.send(change(after=row, schema=SCHEMA), partition=at % 5 % 2)
    for at in range(3 if mixed else 0):
        topic.send(change(after={"id": at, "v": 20 + at, "day": None}, schema=SCHEMA), partition=(at + 1) % 2)
    gone = {"id": 3, "v": 8, "day": None}
    topic.send(change(Op.DELETE, None, before=gone, schema=SCHEMA), partition=1)
    moved = {"id": 10, "v": 1, "day": None}
    topic.send(change(Op.UPDATE, moved, before=gone | {"id": 4}, schema=SCHEMA))
    topic.put(None, b"\x02" + (95).to_bytes(8, "big"))
    topic.put(b"?", b"?")
    topic.put(topic.messages[0].key, b"\0\0\0\0\x63rest")
    return topic


_KAFKA, _SOURCE, _VERSIONS = EventRules(), EventRules(sequenced=True), EventRules(versions=True)


@pytest.mark.parametrize("rules", [_KAFKA, _SOURCE, _VERSIONS], ids=["kafka", "source", "versions"])
def test_the_tasks_count_and_keep_what_the_frame_has(spark: SparkSession, rules: EventRules) -> None:
    """Keys come in both partitions: what ranges have of them is put together by the driver."""
    topic = _topic(mixed=rules != _KAFKA)
    plan = topic.plan()
    raw, order = raw_frame(spark, topic.messages), "source" if rules.sequenced else "kafka"
    reduced = reduce_frame(plan.decode(raw, rules), plan.shape, order, versions=rules.versions)  # type: ignore[arg-type]
    expected = summarise(reduced, plan.shape)
    name = topic.messages[0].topic
    parts = [[one for one in topic.messages if one.partition == number] for number in (0, 1)]
    records = [as_records(part) for part in parts]

    def fetch(wanted: FetchRange):  # type: ignore[no-untyped-def]
        yield records[wanted.partition]

    ranges = tuple(FetchRange(name, number, 0, 100) for number in (0, 1))
    found = reduced_ranges(spark, RangeTask(ranges, plan.with_rules(rules)), KafkaSource(fetch))
    # A frame counts all messages of a key where its last row came from.
    same = {"mixed_keys": found.summary.mixed_keys, "places": found.summary.places}
    assert found.summary == replace(expected, **same)
    assert sum(one.messages for one in found.summary.places.values()) == expected.messages
    assert found.read.records == len(topic.messages)
    if rules != _KAFKA:  # there keys in two partitions stop the table
        columns = [name for name in found.frame.columns if name in reduced.columns and name != "_detail"]
        rows, wanted = (rows_to_apply(one).select(columns).collect() for one in (found.frame, reduced))
        assert sorted(rows, key=str) == sorted(wanted, key=str)
        assert rows
    release_stored(found.stored)
