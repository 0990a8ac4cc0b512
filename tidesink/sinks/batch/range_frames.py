"""Ranges of offsets as a reduced Spark frame, by way of Arrow: tasks fetch, decode and reduce (``tasks``).

The payloads are stored by Spark, in memory and on disk: in its cache, or as blocks of a local checkpoint for
targets that read a batch several times and refuse a cached one. What the cache loses is made again by its
task; a block that a checkpoint loses fails the job, and the batch is tried again as a whole. The driver
collects what stands beside the payloads: counts, hashes of keys and errors, a row for each payload. Whoever
asks the frame for rows has tasks unpack them.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own name for it)

from tidesink.sinks.batch.records import DELETE, UPSERT
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
        frame, summary = _over_ranges(frame, _summary(heads), heads, task)
    except BaseException:
        with suppress(Exception):
            release_stored(stored)
        raise
    records, size, left, strangers = (
        sum(head[name] or 0 for head in heads)
        for name in ("records", "bytes", "row_codec_records", "strangers")
    )
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


def _summary(heads: Sequence[Any]) -> BatchSummary:
    return joined_summaries([pickle.loads(head["summary"]) for head in heads if head["summary"]])  # noqa: S301


def _over_ranges(
    frame: DataFrame, summary: BatchSummary, heads: Sequence[Any], task: RangeTask
) -> tuple[DataFrame, BatchSummary]:
    """What several ranges have of one key: in the source's order its last row; in Kafka's an error."""
    places = [((head["topic"], head["partition"]), bytes(head["hashes"])) for head in heads if head["hashes"]]
    if not len(mixed_hashes(places)):
        return frame, summary
    if task.plan.rules.sequenced:
        return _last_of_all(frame, summary)
    return frame, replace(summary, mixed_keys=_mixed_keys(frame))


def _mixed_keys(frame: DataFrame) -> tuple[str, ...]:
    # Asked for only where hashes met: of equal hashes the keys may still differ.
    places_of_key = F.countDistinct("_topic", "_partition")
    keys = frame.where(F.col("key").isNotNull()).groupBy("key").agg(places_of_key.alias("places"))
    found = keys.where("places > 1").select(F.to_json("key").alias("key")).limit(_SHOWN_KEYS).collect()
    return tuple(row["key"] for row in found)


def _last_of_all(frame: DataFrame, summary: BatchSummary) -> tuple[DataFrame, BatchSummary]:
    """Of each key the row with the greatest position, and the summary of these rows."""
    whole = F.struct(*frame.columns)
    groups = frame.where(F.col("key").isNotNull()).groupBy("key")
    rows = groups.agg(F.max_by(whole, "_seq").alias("last")).select("last.*")
    counts = rows.agg(
        F.count_if(F.col("_op") == UPSERT).alias("upserts"),
        F.count_if(F.col("_op") == DELETE).alias("deletes"),
        F.count_if("_half").alias("split_halves"),
    ).collect()[0]
    applied = counts["upserts"] + counts["deletes"] - counts["split_halves"]
    counted = replace(
        summary,
        **counts.asDict(),
        superseded=summary.superseded + summary.applied - applied,
        zero_dates=_zero_dates(rows, summary.zero_dates),
    )
    return rows.unionByName(frame.where(F.col("key").isNull())), counted


def _zero_dates(rows: DataFrame, of_ranges: Mapping[str, int]) -> dict[str, int]:
    if not of_ranges:
        return {}
    found = rows.select(F.explode("_zero_dates").alias("name")).groupBy("name").count().collect()
    return {row["name"]: row["count"] for row in found if row["name"] in of_ranges}
