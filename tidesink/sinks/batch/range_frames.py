"""Ranges of offsets as a reduced Spark frame, by way of Arrow: tasks fetch, decode and reduce (``tasks``).

The payloads are stored by Spark, in memory and on disk: in its cache, or as blocks of a local checkpoint for
targets that read a batch several times and refuse a cached one. What the cache loses is made again by its
task; a block that a checkpoint loses fails the job, and the batch is tried again as a whole. The driver
collects what stands beside the payloads: counts, hashes of keys and errors, a row for each payload. Whoever
asks the frame for rows has tasks unpack them.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own name for it)

from tidesink.sinks.batch.summaries import joined_summaries
from tidesink.sinks.batch.tasks import PACKED_DDL, RangeTask, mixed_hashes, unpack
from tidesink.sinks.source import KafkaRead
from tidesink.sinks.summary import BatchSummary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Keys shown in an error about keys that came in two partitions.
_SHOWN_KEYS: Final = 3
_LEVEL: Final = StorageLevel.MEMORY_AND_DISK


class RangeFrame(NamedTuple):
    """A reduced frame. ``stored`` is the frame that Spark keeps, for ``release_stored``.

    ``summary``: what the tasks counted.
    """

    frame: DataFrame
    stored: DataFrame
    read: KafkaRead
    summary: BatchSummary
    row_codec_records: int


def reduced_ranges(session: SparkSession, task: RangeTask, *, checkpoint: bool = False) -> RangeFrame:
    """Run a task over its ranges.

    ``checkpoint``: the payloads are stored as blocks that Spark never makes again, not in its cache.

    Raises:
        TidesinkError: what a task raised, with its class.
    """
    count = len(task.ranges)
    numbers = session.range(0, count, 1, count)
    packed = numbers.mapInArrow(task, PACKED_DDL)
    # A lazy checkpoint: the job that collects the heads stores the payloads, as with a cached frame.
    stored = packed.localCheckpoint(eager=False) if checkpoint else packed.persist(_LEVEL)
    try:
        heads = stored.drop("payload").collect()
        _raise_first(heads)
        frame = _unpacked(stored, task)
        mixed = _mixed_keys(frame, heads)
    except BaseException:
        with suppress(Exception):
            release_stored(stored)
        raise
    records, size, left, strangers = (
        sum(head[name] or 0 for head in heads)
        for name in ("records", "bytes", "row_codec_records", "strangers")
    )
    summaries = [pickle.loads(head["summary"]) for head in heads if head["summary"]]  # noqa: S301
    summary = replace(joined_summaries(summaries), mixed_keys=mixed)
    return RangeFrame(frame, stored, KafkaRead(records, size, strangers), summary, left)


def release_stored(stored: DataFrame) -> None:
    """Free the blocks of what ``reduced_ranges`` stored."""
    plan: Any = stored._jdf.queryExecution().analyzed()
    if plan.getClass().getSimpleName() == "LogicalRDD":  # a checkpoint: the frame's own unpersist leaves it
        plan.rdd().unpersist(False)
    else:
        stored.unpersist()


def _raise_first(heads: Sequence[Any]) -> None:
    """Raise the first error that a task had."""
    for head in heads:
        if head["error"] is not None:
            raise pickle.loads(head["error"])  # noqa: S301  (our own task wrote it)


def _unpacked(stored: DataFrame, task: RangeTask) -> DataFrame:
    return stored.select("payload", "error").mapInArrow(unpack, task.columns.ddl)


def _mixed_keys(frame: DataFrame, heads: Sequence[Any]) -> tuple[str, ...]:
    places = [((head["topic"], head["partition"]), bytes(head["hashes"])) for head in heads if head["hashes"]]
    if not len(mixed_hashes(places)):
        return ()
    # The keys themselves, asked for only where hashes met: of equal hashes the keys may still differ.
    places_of_key = F.countDistinct("_topic", "_partition")
    keys = frame.where(F.col("key").isNotNull()).groupBy("key").agg(places_of_key.alias("places"))
    found = keys.where("places > 1").select(F.to_json("key").alias("key")).limit(_SHOWN_KEYS).collect()
    return tuple(row["key"] for row in found)
