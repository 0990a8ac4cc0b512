"""Reading Kafka records for tasks and look-ups, and the frames of a batch that tasks decoded and reduced.

Spark stores the payloads in memory and on disk. The driver collects the other columns: counts, hashes of keys
and errors, with one row for each payload.
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

# The number of records per task in the shuffle of a batch.
_RECORDS_A_SHUFFLE_TASK: Final = 25_000


class KafkaRead(NamedTuple):
    """The amounts that were read from Kafka.

    Attributes:
        records: The number of records.
        bytes: The bytes of their keys and values.
        strangers: The number of rows of unknown tables.
        decoded: The bytes in the tasks' memory after decoding.
        ddl: The number of DDL events of any table.
    """

    records: int
    bytes: int
    strangers: int = 0
    decoded: int = 0
    ddl: int = 0


class RecordReader(Protocol):
    """Provides the records of ranges to tasks."""

    def over(self, session: SparkSession, ranges: Sequence[FetchRange], work: Work, ddl: str) -> DataFrame:
        """Returns a lazy frame with the results of ``work`` on each range."""


class KafkaSource:
    """Reads ranges of offsets.

    ``fetch``: reads a range in a Spark task; it may contain secrets. ``opens_up_to``: values may be
    compressed and are decompressed first, up to so many bytes each. None: values are left as they are.
    """

    def __init__(self, fetch: Fetch, *, opens_up_to: int | None = None) -> None:
        self.fetch = fetch
        self.opens_up_to = opens_up_to

    def over(self, session: SparkSession, ranges: Sequence[FetchRange], work: Work, ddl: str) -> DataFrame:
        """Returns a lazy frame with the results of ``work`` on each range, whose task fetches the records."""
        return over_ranges(session, ranges, self.fetch, work, ddl)

    def ask(
        self, session: SparkSession, ranges: Sequence[OffsetRange], question: Callable[[Records], R]
    ) -> list[R]:
        """Returns the answers of tasks, in the order of the ranges. A task reads a range or a part of it.

        Raises:
            SourceError: Kafka refuses the request, or does not answer.
        """
        parts = split_ranges(ranges, session.sparkContext.defaultParallelism)
        if not parts:
            return []
        found = over_ranges(session, parts, self.fetch, Question(question, self.opens_up_to), ANSWER_DDL)
        with translated_read_errors(parts[0].topic):
            return [pickle.loads(row["answer"]) for row in found.collect()]  # noqa: S301  (our own tasks')

    def read_here(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Yields the records of the ranges, read lazily by this process.

        Raises:
            SourceError: Kafka refuses the request, or does not answer.
        """
        for part in ranges:
            with raised_passing_failures(topic=part.topic):
                yield from opened(self.fetch(FetchRange(*part)), self.opens_up_to)

    def messages_here(self, ranges: Sequence[OffsetRange]) -> Iterator[Message]:
        """Yields the messages of the ranges that have a value, read by this process."""
        return (one for batch in self.read_here(ranges) for one in messages(batch) if one.value is not None)


def fit_shuffle(session: SparkSession, records: int) -> None:
    """Set the session's number of shuffle tasks for so many records."""
    tasks = max(1, min(2 * session.sparkContext.defaultParallelism, records // _RECORDS_A_SHUFFLE_TASK))
    session.conf.set("spark.sql.shuffle.partitions", str(tasks))


def translated_read_errors(topic: str) -> AbstractContextManager[None]:
    """Returns a context for jobs that read a topic, which translates errors (``raised_task_errors``)."""
    return raised_task_errors(topic=topic)


# The number of keys in an error about keys that came in two partitions.
_SHOWN_KEYS: Final = 3
# At one commit_ts a write wins, and of equal events the first, as in ``reduce_tables`` with versions.
_FIRST_WRITE: Final = f"struct(_op = '{UPSERT}', -_partition, -_offset)"
_LEVEL: Final = StorageLevel.MEMORY_AND_DISK
# A log's rows are not shuffled: as many files as the topic has partitions would be many small ones.
_ROWS_A_FILE: Final = 100_000


@dataclass(frozen=True)
class RangeFrame:
    """The results of tasks on their ranges.

    Attributes:
        task: The task.
        stored: The frame of the payloads, which Spark stores.
        heads: The other columns of the payloads' rows.
        read: The amounts that were read from Kafka.
        summary: The counts of the tasks.
        over_ranges: The rows after rows of one key from several ranges were reduced once more, or None.
        staged: The staged parts if the rows to apply are staged in the target and not in the frame, or None.
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
        """The packed rows of the frame; None if the rows are staged or were reduced once more."""
        as_packed = self.over_ranges is None and self.staged is None
        return self.stored.select("payload", "error") if as_packed else None

    @property
    def row_by_row_records(self) -> int:
        """The number of records that were decoded one at a time."""
        return _counted(self.heads, "row_by_row_records")

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """The hashes of the keys (``reduce.key_hashes``)."""
        return np.frombuffer(b"".join(found for _, found in _key_places(self.heads)), np.uint64)

    def release(self) -> None:
        """Release the payloads that Spark stores."""
        release_stored(self.stored)


def reduced_ranges(
    session: SparkSession, task: RangeTask, reader: RecordReader, *, checkpoint: bool = False
) -> RangeFrame:
    """Run a task on its ranges, with the records from the reader.

    If the task's sink could not accept the rows, or they must be reduced once more, the ranges are read again
    without the sink. ``checkpoint``: True to store the payloads as blocks that Spark never recomputes,
    instead of in its cache.

    Raises:
        TidesinkError: The error of a task, with its class.
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
    """Returns a lazy frame with the results of a task, in the columns of ``reduced_schema``.

    Nothing is stored. An error of a task is raised when the frame is computed
    (``spark.errors.raised_task_errors``).
    """
    return _unpacked(_packed(session, task, reader), task)


def _counted(heads: Sequence[Any], name: str) -> int:
    return sum(head[name] or 0 for head in heads)


def _staged(heads: Sequence[Any]) -> tuple[StagedPart, ...] | None:
    """Returns the parts that tasks staged; None if a part failed, or a key came in two ranges."""
    parts = tuple(pickle.loads(head["staged"]) for head in heads if head["staged"])  # noqa: S301
    failed = any(part.failure is not None for part in parts)
    return None if failed or len(mixed_hashes(_key_places(heads))) else parts


def _key_places(heads: Sequence[Any]) -> list[tuple[tuple[str, int], bytes]]:
    """Returns the hashes of keys by topic-partition."""
    return [((head["topic"], head["partition"]), bytes(head["hashes"])) for head in heads if head["hashes"]]


def _packed(session: SparkSession, task: RangeTask, reader: RecordReader) -> DataFrame:
    """Returns the payloads of a task. Spark applies a filter between its two parts, in one stage."""
    rule = task.plan.row_filter
    if rule is None:
        return reader.over(session, task.ranges, task.packed, PACKED_DDL)
    verdict = F.expr(rule.expression).alias("verdict")
    chunks = reader.over(session, task.ranges, task.chunks, rule.chunks_ddl)
    return chunks.select(CHUNK, verdict).mapInArrow(Reporting(task.filtered), PACKED_DDL)


def checkpointed(frame: DataFrame, kept: ExitStack, **context: ContextValue) -> DataFrame:
    """Computes a frame's rows and stores them until ``kept`` is closed, so that Spark never recomputes them.

    Raises:
        TidesinkError: The error of a task, translated by ``raised_task_errors``.
    """
    with raised_task_errors(**context):
        found = frame.localCheckpoint(eager=True)
    kept.callback(release_stored, found)
    return found


def release_stored(stored: DataFrame) -> None:
    """Free the blocks of a frame that ``reduced_ranges`` stored."""
    plan: Any = stored._jdf.queryExecution().analyzed()
    if plan.getClass().getSimpleName() == "LogicalRDD":  # a checkpoint: the frame's own unpersist leaves it
        plan.rdd().unpersist(False)
    else:
        stored.unpersist()


def raise_first(heads: Sequence[Any]) -> None:
    """Raise the first error of a task, if any."""
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
    """Reduces rows of one key from several ranges.

    The source's order keeps the last row of each key. A history keeps one row of each key and commit_ts.
    Such keys are an error in Kafka's order.
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
    # Called only if hashes are equal. The keys may still differ.
    places_of_key = F.countDistinct("_topic", "_partition")
    keys = frame.where(F.col("key").isNotNull()).groupBy("key").agg(places_of_key.alias("places"))
    found = keys.where("places > 1").select(F.to_json("key").alias("key")).limit(_SHOWN_KEYS).collect()
    return tuple(row["key"] for row in found)


def _last_of_all(
    frame: DataFrame, summary: BatchSummary, *, by: Sequence[str], order: str
) -> tuple[DataFrame, BatchSummary]:
    """Returns the row of each group that is the greatest in ``order``, and the summary of these rows."""
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


# The rows of a frame that a target gets


def omitting(frame: DataFrame, schema_decision: SchemaDecision) -> DataFrame:
    """Returns the rows of a reduced frame with the columns that the target gets."""
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
    """Returns the rows of a reduced frame to write, in so few partitions that each is worth a file."""
    found = rows_to_apply(reduced)
    return found.coalesce(1 + rows // _ROWS_A_FILE) if settings.mode == "append" else found


def rows_to_apply(reduced: DataFrame) -> DataFrame:
    """Returns the rows of a reduced frame that a merge applies: upserts and deletes."""
    return reduced.where(F.col("_op").isin(*ROW_KINDS))
