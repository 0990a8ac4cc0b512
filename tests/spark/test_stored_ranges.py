"""Where the payloads of a reduced batch are stored, and that nothing of them is left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tests.decoded_batches import as_records
from tests.spark.test_flat_avro_columns import Topic, table
from tests.unit.codecs.flat_avro.cases import change
from tidesink.sinks.batch.record_frames import over_ranges
from tidesink.sinks.batch.source import KafkaSource, RangeFrame, reduced_ranges, release_stored
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.kafka.fetch import FetchRange

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = table("v int")


def _reduced(spark: SparkSession, calls: Path, *, checkpoint: bool) -> RangeFrame:
    """Rows of two partitions; a file for each time that a range is fetched."""
    topic = Topic()
    for at in range(20):
        topic.send(change(after={"id": at, "v": at}, schema=SCHEMA), partition=at % 2)
    name = topic.messages[0].topic
    records = [as_records([one for one in topic.messages if one.partition == part]) for part in (0, 1)]
    folder = str(calls)

    def fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        import tempfile

        tempfile.mkstemp(dir=folder)
        yield records[wanted.partition]

    ranges = tuple(FetchRange(name, number, 0, 100) for number in (0, 1))
    return reduced_ranges(spark, RangeTask(ranges, topic.plan()), KafkaSource(fetch), checkpoint=checkpoint)


def _stored_blocks(spark: SparkSession) -> set[int]:
    context: Any = spark.sparkContext._jsc
    return set(context.getPersistentRDDs().keySet())


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_is_stored_is_fetched_once_and_released(
    spark: SparkSession, tmp_path: Path, *, checkpoint: bool
) -> None:
    before = _stored_blocks(spark)
    found = _reduced(spark, tmp_path, checkpoint=checkpoint)
    assert len(_stored_blocks(spark) - before) == 1
    for _ in range(2):
        assert sorted(row["id"] for row in found.frame.select("key.id").collect()) == list(range(20))
    assert len(list(tmp_path.iterdir())) == 2
    release_stored(found.stored)
    assert _stored_blocks(spark) == before


def test_a_checkpoint_whose_blocks_are_gone_fails_and_is_not_made_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = _reduced(spark, tmp_path, checkpoint=True)
    release_stored(found.stored)
    with pytest.raises(Exception, match=r"[Cc]heckpoint"):
        found.frame.collect()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("records", "tasks"), [(2_500, 1), (2_501, 4)])
def test_ranges_with_few_records_are_one_task(spark: SparkSession, records: int, tasks: int) -> None:
    def work(wanted: FetchRange, _records: object) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"partition": pa.array([wanted.partition], pa.int32())})

    def fetch(_wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        yield from ()

    ranges = [FetchRange("t", number, 7, 7 + records) for number in range(4)]
    frame = over_ranges(spark, ranges, fetch, work, "partition int")
    found = frame.select("partition", F.spark_partition_id().alias("task")).collect()
    assert sorted(row["partition"] for row in found) == [0, 1, 2, 3]
    assert len({row["task"] for row in found}) == tasks
