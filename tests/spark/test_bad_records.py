"""Where the bad records of a reduced frame are, and how small a part of Kafka holds them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tidesink.sinks.batch.letters import bad_records
from tidesink.sinks.kafka.offsets import OffsetRange

pytestmark = pytest.mark.spark

REDUCED = (
    "_op string, _topic string, _partition int, _offset bigint, "
    "_detail struct<error: string, reason: string, key_id: int, value_id: int>"
)


def test_a_record_of_which_several_events_are_bad_is_one(spark: SparkSession) -> None:
    reduced = spark.createDataFrame(
        [
            ("bad", "t", 0, 4, ("FilterError", "b", None, None)),
            ("bad", "t", 0, 4, ("FilterError", "a", 6, 7)),
            ("bad", "t", 0, 9, ("FramingError", "d", None, None)),
            ("bad", "t", 1, 4, ("FramingError", "c", None, None)),
            ("upsert", "t", 0, 5, None),
            ("upsert", "t", 2, 5, None),
        ],
        REDUCED,
    )
    found = bad_records(reduced, [OffsetRange("t", partition, 0, 100) for partition in range(3)])
    names = ("partition", "offset", "key_schema_id", "value_schema_id", "error", "reason")
    rows = found.frame.orderBy("partition", "offset").collect()
    assert [tuple(row[name] for name in names) for row in rows] == [
        (0, 4, 6, 7, "FilterError", "a"),
        (0, 9, None, None, "FramingError", "d"),
        (1, 4, None, None, "FramingError", "c"),
    ]
    assert (found.count, found.ranges) == (3, (OffsetRange("t", 0, 4, 10), OffsetRange("t", 1, 4, 5)))
