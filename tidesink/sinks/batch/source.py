"""Kafka's records for tasks and look-ups, and the frames of a batch that tasks decoded and reduced.

Payloads are stored by Spark, in memory and on disk. The driver collects what stands beside them: counts,
hashes of keys and errors, a row for each payload.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.batch import messages
from tidesink.errors import ContextValue
from tidesink.events import Message
from tidesink.sinks.batch.counts import BatchSummary, Doubt, Place
from tidesink.sinks.batch.filtering import CHUNK
from tidesink.sinks.batch.record_frames import (
    ANSWER_DDL,
    Question,
    opened,
    over_ranges,
    split_ranges,
)
from tidesink.sinks.batch.summaries import joined_summaries
from tidesink.sinks.batch.tasks import PACKED_DDL, RangeTask, Work, mixed_hashes
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange
from tidesink.sinks.spark.errors import Reporting, raised_passing_failures, raised_task_errors
from tidesink.sinks.spark.payloads import DELETE, ROW_KINDS, UPSERT, unpack
from tidesink.sinks.targets.base import StagedPart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import TableConfig
    from tidesink.sinks.batch.schema_changes import SchemaDecision
    from tidesink.sinks.batch.tasks import Fetch


R = TypeVar("R")
Records = Iterator[pa.RecordBatch]

# Spark spreads the shuffle of a batch over so many records a task.
_RECORDS_A_SHUFFLE_TASK: Final = 25_000


class KafkaRead(NamedTuple):
    """Records and bytes of keys and values that Kafka gave; ``strangers`` are of tables nobody knows.

    ``decoded``: the bytes that they took in the tasks' memory once they were decoded. ``ddl``: how many were
    DDL events, of whatever table.
    """

    records: int
    bytes: int
    strangers: int = 0
    decoded: int = 0
    ddl: int = 0


class RecordReader(Protocol):
    """Gives the records of ranges to tasks."""

    def over(self, session: SparkSession, ranges: Sequence[FetchRange], work: Work, ddl: str) -> DataFrame:
        """What ``work`` makes of each range and its records; lazy."""


class KafkaSource:
    """Reads ranges of offsets. ``fetch`` is how Spark's tasks read one, and may hold secrets.

    ``opens_up_to``: values may be compressed, and are opened before anything looks at them, up to so many
    bytes each. None: they are not looked at.
    """

    def __init__(self, fetch: Fetch, *, opens_up_to: int | None = None) -> None:
        self.fetch = fetch
        self.opens_up_to = opens_up_to

    def over(self, session: SparkSession, ranges: Sequence[FetchRange], work: Work, ddl: str) -> DataFrame:
        """What ``work`` makes of each range and its records, which its task fetches; lazy."""
        return over_ranges(session, ranges, self.fetch, work, ddl)

    def ask(
        self, session: SparkSession, ranges: Sequence[OffsetRange], question: Callable[[Records], R]
    ) -> list[R]:
        """The answers of tasks, in the order of the ranges; each reads one, or a part of a large one.

        Raises:
            SourceError: Kafka refuses, or does not answer.
        """
        parts = split_ranges(ranges, session.sparkContext.defaultParallelism)
        if not parts:
            return []
        found = over_ranges(session, parts, self.fetch, Question(question, self.opens_up_to), ANSWER_DDL)
        with translated_read_errors(parts[0].topic):
            return [pickle.loads(row["answer"]) for row in found.collect()]  # noqa: S301  (our own tasks')

    def read_here(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """The first records in the ranges, read by this process, as far as they are asked for.

        Raises:
            SourceError: Kafka refuses, or does not answer.
        """
        for part in ranges:
            with raised_passing_failures(topic=part.topic):
                yield from opened(self.fetch(FetchRange(*part)), self.opens_up_to)

    def messages_here(self, ranges: Sequence[OffsetRange]) -> Iterator[Message]:
        """The same, as messages; those without a value are left out."""
        return (one for batch in self.read_here(ranges) for one in messages(batch) if one.value is not None)


def fit_shuffle(session: SparkSession, records: int) -> None:
    """Have the session spread the shuffle of so many records over tasks that are worth their start."""
    tasks = max(1, min(2 * session.sparkContext.defaultParallelism, records // _RECORDS_A_SHUFFLE_TASK))
    session.conf.set("spark.sql.shuffle.partitions", str(tasks))


def translated_read_errors(topic: str) -> AbstractContextManager[None]:
    """Around jobs that read a topic: raises as ``raised_task_errors``."""
    return raised_task_errors(topic=topic)


# Keys shown in an error about keys that came in two partitions.
_SHOWN_KEYS: Final = 3
# Of events of one commit_ts a write stays, and of equal ones the first: as ``reduce_tables`` with versions.
_FIRST_WRITE: Final = f"struct(_op = '{UPSERT}', -_partition, -_offset)"
_LEVEL: Final = StorageLevel.MEMORY_AND_DISK
# A log's rows are not shuffled: as many files as the topic has partitions would be many small ones.
_ROWS_A_FILE: Final = 100_000


@dataclass(frozen=True)
class RangeFrame:
    """What tasks made of their ranges. ``stored`` is the frame of their payloads, which Spark keeps.

    ``heads``: what stands beside the payloads. ``summary``: what the tasks counted. ``over_ranges``: the rows
    where what several ranges have of one key was reduced once more. ``staged``: the rows to apply are at the
    target, and not in the frame.
    """

    task: RangeTask
    stored: DataFrame
    heads: Sequence[Any]
    read: KafkaRead
    summary: BatchSummary
    over_ranges: DataFrame | None = None
    staged: tuple[StagedPart, ...] | None = None

    @cached_property
    def frame(self) -> DataFrame:
        """The reduced frame."""
        return _unpacked(self.stored, self.task) if self.over_ranges is None else self.over_ranges

    @property
    def payloads(self) -> DataFrame | None:
        """The frame's rows as the tasks packed them; None where they are staged, or not the frame's."""
        as_packed = self.over_ranges is None and self.staged is None
        return self.stored.select("payload", "error") if as_packed else None

    @property
    def row_by_row_records(self) -> int:
        """Records that were decoded one by one."""
        return _counted(self.heads, "row_by_row_records")

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """Of the keys (``reduce.key_hashes``)."""
        return np.frombuffer(b"".join(found for _, found in _key_places(self.heads)), np.uint64)

    def release(self) -> None:
        """Let go of what Spark keeps."""
        release_stored(self.stored)


def reduced_ranges(
    session: SparkSession, task: RangeTask, reader: RecordReader, *, checkpoint: bool = False
) -> RangeFrame:
    """Run a task over its ranges, whose records the reader gives.

    ``checkpoint``: the payloads are stored as blocks that Spark never makes again, not in its cache.
    Rows that the task's sink could not take, or that are to be reduced once more, are read again without it.

    Raises:
        TidesinkError: what a task raised, with its class.
    """
    packed = _packed(session, task, reader)
    # A lazy checkpoint: the job that collects the heads stores the payloads, as with a cached frame.
    stored = packed.localCheckpoint(eager=False) if checkpoint else packed.persist(_LEVEL)
    try:
        heads = stored.drop("payload").collect()
        raise_first(heads)
        read = KafkaRead(*(_counted(heads, name) for name in KafkaRead._fields))
        found = RangeFrame(task, stored, heads, read, _summary(heads))
        if task.sink is None:
            return _reduced_over_ranges(found)
        staged = _staged(heads)
        if staged is not None:
            return replace(found, staged=staged)
        release_stored(stored)
    except BaseException:
        with suppress(Exception):
            release_stored(stored)
        raise
    return reduced_ranges(session, replace(task, sink=None), reader, checkpoint=checkpoint)


def unpacked_ranges(session: SparkSession, task: RangeTask, reader: RecordReader) -> DataFrame:
    """What a task makes of its ranges, in the columns of ``reduced_schema``: lazy, and nothing is stored.

    An error of a task is raised where the frame is asked for (``spark.errors.raised_task_errors``).
    """
    return _unpacked(_packed(session, task, reader), task)


def _counted(heads: Sequence[Any], name: str) -> int:
    return sum(head[name] or 0 for head in heads)


def _staged(heads: Sequence[Any]) -> tuple[StagedPart, ...] | None:
    """What the tasks brought to the target; None where some is missing, or a key came in two ranges."""
    parts = tuple(pickle.loads(head["staged"]) for head in heads if head["staged"])  # noqa: S301
    failed = any(part.failure is not None for part in parts)
    return None if failed or len(mixed_hashes(_key_places(heads))) else parts


def _key_places(heads: Sequence[Any]) -> list[tuple[tuple[str, int], bytes]]:
    """The hashes of keys by topic-partition."""
    return [((head["topic"], head["partition"]), bytes(head["hashes"])) for head in heads if head["hashes"]]


def _packed(session: SparkSession, task: RangeTask, reader: RecordReader) -> DataFrame:
    """The payloads of a task, whose filter Spark applies between two parts of it, in one stage."""
    rule = task.plan.row_filter
    if rule is None:
        return reader.over(session, task.ranges, task.packed, PACKED_DDL)
    verdict = F.expr(rule.expression).alias("verdict")
    chunks = reader.over(session, task.ranges, task.chunks, rule.chunks_ddl)
    return chunks.select(CHUNK, verdict).mapInArrow(Reporting(task.filtered), PACKED_DDL)


def checkpointed(frame: DataFrame, kept: ExitStack, **context: ContextValue) -> DataFrame:
    """A frame's rows as they are read now, which Spark never reads again, until ``kept`` is closed.

    Raises: as ``raised_task_errors``.
    """
    with raised_task_errors(**context):
        found = frame.localCheckpoint(eager=True)
    kept.callback(release_stored, found)
    return found


def release_stored(stored: DataFrame) -> None:
    """Free the blocks of what ``reduced_ranges`` stored."""
    plan: Any = stored._jdf.queryExecution().analyzed()
    if plan.getClass().getSimpleName() == "LogicalRDD":  # a checkpoint: the frame's own unpersist leaves it
        plan.rdd().unpersist(False)
    else:
        stored.unpersist()


def raise_first(heads: Sequence[Any]) -> None:
    """Raise the first error that a task had."""
    for head in heads:
        if head["error"] is not None:
            raise pickle.loads(head["error"])  # noqa: S301  (our own task wrote it)


def _unpacked(stored: DataFrame, task: RangeTask) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(task.schema, prefer_timestamp_ntz=True)
    return stored.select("payload", "error").mapInArrow(unpack, schema)


def _summary(heads: Sequence[Any]) -> BatchSummary:
    return joined_summaries([pickle.loads(head["summary"]) for head in heads if head["summary"]])  # noqa: S301


def _reduced_over_ranges(found: RangeFrame) -> RangeFrame:
    """What several ranges have of one key.

    In the source's order its last row, of a history its last row of each commit_ts; in Kafka's an error.
    """
    if not len(mixed_hashes(_key_places(found.heads))):
        return found
    rules = found.task.plan.rules
    if rules.versions or rules.sequenced:
        by, order = (("key", "_commit_ts"), _FIRST_WRITE) if rules.versions else (("key",), "_seq")
        rows, summary = _last_of_all(found.frame, found.summary, by=by, order=order)
        return replace(found, over_ranges=rows, summary=summary)
    return replace(found, summary=replace(found.summary, mixed_keys=_mixed_keys(found.frame)))


def _mixed_keys(frame: DataFrame) -> tuple[str, ...]:
    # Asked for only where hashes met: of equal hashes the keys may still differ.
    places_of_key = F.countDistinct("_topic", "_partition")
    keys = frame.where(F.col("key").isNotNull()).groupBy("key").agg(places_of_key.alias("places"))
    found = keys.where("places > 1").select(F.to_json("key").alias("key")).limit(_SHOWN_KEYS).collect()
    return tuple(row["key"] for row in found)


def _last_of_all(
    frame: DataFrame, summary: BatchSummary, *, by: Sequence[str], order: str
) -> tuple[DataFrame, BatchSummary]:
    """Of each group the row that is the greatest in order, and the summary of these rows."""
    whole = F.struct(*frame.columns)
    groups = frame.where(F.col("key").isNotNull()).groupBy(*by)
    rows = groups.agg(F.max_by(whole, F.expr(order)).alias("last")).select("last.*")
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
        zero_dates=_marked(rows, "_zero_dates", summary.zero_dates),
        ambiguous_times=_marked(rows, "_ambiguous_times", summary.ambiguous_times),
        **_doubts(rows, summary),
    )
    return rows.unionByName(frame.where(F.col("key").isNull())), counted


def _doubts(rows: DataFrame, of_ranges: BatchSummary) -> dict[str, Any]:
    if not of_ranges.doubted:
        return {}
    reason = F.col("_detail").getField("reason")
    doubted = rows.where(reason.isNotNull() & ~F.col("_half")).groupBy("_topic", "_partition")
    first = F.min(F.struct(F.col("_offset").alias("offset"), reason.alias("reason"))).alias("first")
    found = doubted.agg(F.count("*").alias("count"), first).collect()
    doubts = (Doubt(Place(row["_topic"], row["_partition"]), *row["first"]) for row in found)
    return {"doubted": sum(row["count"] for row in found), "doubts": tuple(doubts)}


def _marked(rows: DataFrame, mark: str, of_ranges: Mapping[str, int]) -> dict[str, int]:
    if not of_ranges:
        return {}
    found = rows.select(F.explode(mark).alias("name")).groupBy("name").count().collect()
    return {row["name"]: row["count"] for row in found if row["name"] in of_ranges}


# What a target gets of a frame


def omitting(frame: DataFrame, schema_decision: SchemaDecision) -> DataFrame:
    """The rows of a reduced frame with the columns that the target gets."""
    if not schema_decision.omitted:
        return frame
    after = F.col("after")
    given = [after.getField(column.name).alias(column.name) for column in schema_decision.given.columns]
    changed = {"after": F.when(after.isNotNull(), F.struct(*given))}
    if "_kept" in frame.columns:
        omitted = F.array(*(F.lit(name) for name in schema_decision.omitted))
        changed["_kept"] = F.array_except("_kept", omitted)
    return frame.withColumns(changed)


def rows_to_write(reduced: DataFrame, rows: int, settings: TableConfig) -> DataFrame:
    """The rows of a reduced frame that the target takes, in as few parts as are worth a file each."""
    found = rows_to_apply(reduced)
    return found.coalesce(1 + rows // _ROWS_A_FILE) if settings.mode == "append" else found


def rows_to_apply(reduced: DataFrame) -> DataFrame:
    """The rows of a reduced frame that a merge takes: upserts and deletes."""
    return reduced.where(F.col("_op").isin(*ROW_KINDS))
