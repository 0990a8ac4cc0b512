"""Bad records of a reduced frame, joined to what Kafka has of them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tidesink.sinks.records_spark import rejected_count, rejected_records

pytestmark = pytest.mark.spark

REDUCED = (
    "_op string, _topic string, _partition int, _offset bigint, "
    "_detail struct<error: string, reason: string, value_id: int>"
)
RAW = "topic string, partition int, offset bigint, key binary, value binary, timestamp timestamp"


def test_a_record_of_which_several_events_are_bad_is_one(spark: SparkSession) -> None:
    reduced = spark.createDataFrame(
        [
            ("bad", "t", 0, 4, ("FilterError", "b", None)),
            ("bad", "t", 0, 4, ("FilterError", "a", 7)),
            ("bad", "t", 1, 4, ("FramingError", "c", None)),
            ("upsert", "t", 0, 5, None),
        ],
        REDUCED,
    )
    raw = spark.createDataFrame(
        [("t", partition, offset, b"k", b"v", None) for partition in (0, 1) for offset in (4, 5)], RAW
    )
    found = rejected_records(reduced, raw, "id of t").orderBy("partition").collect()
    names = ("partition", "offset", "key", "value", "schema_id", "error", "reason", "time", "topic_id")
    assert [tuple(row[name] for name in names) for row in found] == [
        (0, 4, b"k", b"v", 7, "FilterError", "a", None, "id of t"),
        (1, 4, b"k", b"v", None, "FramingError", "c", None, "id of t"),
    ]
    assert rejected_count(reduced) == 2
