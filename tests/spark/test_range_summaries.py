"""What the tasks count and keep is what the law says event by event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.history_law import versions_of
from tests.reduction_law import reduce
from tests.spark.decoded import reduced_in_spark
from tests.spark.test_flat_avro_columns import Topic, table
from tests.unit.codecs.flat_avro.cases import change
from tidesink.errors import DecodeError, SchemaNotFoundError
from tidesink.events import ChangeEvent, Message, Op
from tidesink.sinks.batch.source import release_stored, rows_to_apply
from tidesink.sinks.decode.records import EventRules

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
def test_the_tasks_count_and_keep_what_the_law_does(spark: SparkSession, rules: EventRules) -> None:
    """Keys come in both partitions: what ranges have of them is put together by the driver."""
    topic = _topic(mixed=rules != _KAFKA)
    found = reduced_in_spark(spark, topic.plan(), topic.messages, rules)
    events = [event for message in topic.messages for event in _events(topic, message)]
    assert found.read.records == len(topic.messages)
    counts, law = found.summary.counts, _law(events, rules)
    assert (counts.read, counts.messages, counts.unplanned) == (*[len(topic.messages)] * 2, 1)
    assert (counts.bad, counts.watermarks, counts.filtered) == (1, 1, 1)
    assert (counts.superseded, counts.split_halves) == (law.superseded, law.halves)
    rows = rows_to_apply(found.frame).collect()
    assert {(row["key"]["id"], row["_commit_ts"], row["_op"] == "delete") for row in rows} == law.rows
    assert len(rows) == len(law.rows)
    assert found.summary.findings.zero_dates == {"day": sum(bool(row["_zero_dates"]) for row in rows)}
    assert (counts.upserts, counts.deletes) == tuple(
        sum(row["_op"] == op for row in rows) for op in ("upsert", "delete")
    )
    release_stored(found.stored)


def test_a_key_in_two_partitions_is_shown(spark: SparkSession) -> None:
    topic = Topic()
    for partition in (0, 1):
        topic.send(change(after={"id": 5, "v": partition}, schema=table("v int")), partition=partition)
        topic.send(change(after={"id": 6 + partition, "v": 0}, schema=table("v int")), partition=partition)
    found = reduced_in_spark(spark, topic.plan(), topic.messages)
    assert found.summary.mixed_keys == ('{"id":5}',)
    release_stored(found.stored)


class Law(NamedTuple):
    """The key and the commit_ts of each row, and whether it is a delete; and the counts."""

    rows: set[tuple[object, int | None, bool]]
    superseded: int
    halves: int


def _law(events: list[ChangeEvent], rules: EventRules) -> Law:
    rows: set[tuple[object, int | None, bool]]
    if rules.versions:
        versions = versions_of(events, ("id",))
        rows = {(key, at, row is None) for (key,), kept in versions.rows.items() for at, row in kept.items()}
        return Law(rows, versions.superseded, versions.halves)
    reduced = reduce(events, ("id",), "source" if rules.sequenced else "kafka")
    rows = {(key, one.commit_ts, one.row is None) for (key,), one in reduced.rows.items()}
    return Law(rows, reduced.superseded, reduced.split_halves)


def _events(topic: Topic, message: Message) -> Iterator[ChangeEvent]:
    """The row events of a message that the row codec reads."""
    try:
        found = topic.codec.decode(message)
    except (DecodeError, SchemaNotFoundError):
        return
    yield from (event for event in found if isinstance(event, ChangeEvent))
