"""Reading Kafka records in Spark tasks and in the driver, and the Spark frames of the reduced records.

Spark stores the payloads in memory and on disk. For each payload, the driver collects one row with the other
columns: counts, hashes of keys, and errors.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.batch import messages
from tidesink.errors import ContextValue
from tidesink.events import Message
from tidesink.sinks.batch.record_frames import (
    ANSWER_DDL,
    Question,
    opened,
    over_ranges,
    split_ranges,
)
from tidesink.sinks.batch.reports import KafkaRead, TaskReports
from tidesink.sinks.batch.tasks import PACKED_DDL, RangeTask, Work
from tidesink.sinks.decode.filtering import CHUNK
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange
from tidesink.sinks.kafka.topic_reader import Records
from tidesink.sinks.laws.counts import BatchSummary, RowFindings, RowWarning, TopicPartition
from tidesink.sinks.spark.errors import Reporting, raised_passing_failures, raised_task_errors
from tidesink.sinks.spark.frames import SparkRows
from tidesink.sinks.spark.payloads import DELETE, ROW_KINDS, UPSERT, unpack
from tidesink.sinks.targets.base import StagedPart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import TableConfig
    from tidesink.sinks.batch.tasks import Fetch
    from tidesink.sinks.spark.engine import SparkEngine
    from tidesink.typemap.target_schema import TargetSchema


R = TypeVar("R")

# The number of records per shuffle task of a batch.
_RECORDS_A_SHUFFLE_TASK: Final = 25_000


class RecordReader(Protocol):
    """Interface: reads the records of inputs in Spark tasks. A reader reads inputs of one kind."""

    def over(self, session: SparkSession, ranges: Sequence[Any], work: Work, ddl: str) -> DataFrame:
        """Returns a lazy frame with the results of ``work`` on each input."""


@runtime_checkable
class LocalReader(Protocol):
    """Interface: reads the records of inputs in this process, without Spark."""

    def can_read_here(self) -> bool:
        """Returns False if the records can only be read in Spark, for example because they are too many."""

    def records_of(self, wanted: Any) -> Iterator[pa.RecordBatch]:
        """Yields the records of an input."""


class KafkaSource:
    """Reads ranges of offsets from Kafka.

    ``fetch``: reads a range in a Spark task. It may contain secrets. ``opens_up_to``: compressed values are
    decompressed, if they then have at most this number of bytes. None: values are not decompressed.
    """

    def __init__(self, fetch: Fetch, *, opens_up_to: int | None = None) -> None:
        self.fetch = fetch
        self.opens_up_to = opens_up_to

    def can_read_here(self) -> bool:
        """Returns True, because Kafka can be read in this process."""
        return True

    def records_of(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        """Yields the records of a range, which this process reads.

        Raises:
            SourceError: Kafka refuses the request, or does not answer.
        """
        return self.fetch(wanted)

    def over(self, session: SparkSession, ranges: Sequence[FetchRange], work: Work, ddl: str) -> DataFrame:
        """Returns a lazy frame with the results of ``work`` on each range.

        A range's task reads its records.
        """
        return over_ranges(session, ranges, self.fetch, work, ddl)

    def ask(
        self, session: SparkSession, ranges: Sequence[OffsetRange], question: Callable[[Records], R]
    ) -> list[R]:
        """Returns the answers to ``question`` on the records of the ranges, in the order of the ranges.

        Spark tasks read the records and call ``question``. A large range is split, and each part has its own
        answer.

        Raises:
            SourceError: Kafka refuses the request, or does not answer.
        """
        parts = split_ranges(ranges, session.sparkContext.defaultParallelism)
        if not parts:
            return []
        answers = over_ranges(session, parts, self.fetch, Question(question, self.opens_up_to), ANSWER_DDL)
        with translated_read_errors(parts[0].topic):
            return [pickle.loads(row["answer"]) for row in answers.collect()]  # noqa: S301  (our own tasks')

    def read_here(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Yields the records of the ranges, which this process reads, one batch at a time.

        Raises:
            SourceError: Kafka refuses the request, or does not answer.
        """
        for part in ranges:
            with raised_passing_failures(topic=part.topic):
                yield from opened(self.fetch(FetchRange(*part)), self.opens_up_to)

    def messages_here(self, ranges: Sequence[OffsetRange]) -> Iterator[Message]:
        """Yields the records of the ranges as messages, without Kafka tombstones. This process reads them."""
        return (one for batch in self.read_here(ranges) for one in messages(batch) if one.value is not None)


# Up to this number of records, this process answers questions itself, because a Spark job costs more time.
_READ_HERE: Final = 10_000


@dataclass(frozen=True)
class WorkerReader:
    """Reads records of topics for a worker.

    Spark tasks answer questions about many records, and this process answers those about few.
    """

    source: KafkaSource
    spark: SparkEngine

    @property
    def tasks(self) -> int:
        return self.spark.tasks

    def ask(self, ranges: Sequence[OffsetRange], question: Callable[[Records], R]) -> list[R]:
        parts = [part for part in ranges if part.records > 0]
        if sum(part.records for part in parts) > _READ_HERE:
            return self.source.ask(self.spark.session(), parts, question)
        return [question(self.read_here([part])) for part in parts]

    def read_here(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        return self.source.read_here(ranges)

    def messages_here(self, ranges: Sequence[OffsetRange]) -> Iterator[Message]:
        return self.source.messages_here(ranges)


def fit_shuffle(session: SparkSession, records: int) -> None:
    """Set the number of tasks that a Spark session uses for a shuffle, for a batch of ``records`` records."""
    tasks = max(1, min(2 * session.sparkContext.defaultParallelism, records // _RECORDS_A_SHUFFLE_TASK))
    session.conf.set("spark.sql.shuffle.partitions", str(tasks))


def translated_read_errors(topic: str) -> AbstractContextManager[None]:
    """Returns a context for Spark jobs that read a topic.

    It raises the task's own error in place of Spark's.
    """
    return raised_task_errors(topic=topic)


# The maximum number of keys in the message about keys that occur in two partitions.
_SHOWN_KEYS: Final = 3
# At one commit_ts a write wins over a delete, and the first of equal events wins, as in ``reduce_tables``.
_FIRST_WRITE: Final = f"struct(_op = '{UPSERT}', -_partition, -_offset)"
_LEVEL: Final = StorageLevel.MEMORY_AND_DISK
# The rows of a change log are not shuffled. Without this, each partition of the topic would be a small file.
_ROWS_A_FILE: Final = 100_000


@dataclass(frozen=True)
class RangeFrame:
    """The results of the tasks of a batch.

    Attributes:
        task: The task that ran on the ranges.
        stored: The frame of the tasks' result rows, which Spark stores.
        reports: The reports of the tasks.
        summary: What the tasks report about the batch's records.
        over_ranges: The reduced rows of all ranges together, if a key was in several ranges. Else None.
        staged: What the tasks report about rows that they wrote to the target for a later commit (staged
            rows). None if the rows are in the frame.
    """

    task: RangeTask
    stored: DataFrame
    reports: TaskReports
    summary: BatchSummary
    over_ranges: DataFrame | None = None
    staged: tuple[StagedPart, ...] | None = None

    @cached_property
    def frame(self) -> DataFrame:
        """The results of all tasks: one row for each row to apply, bad record and truncate."""
        return _unpacked(self.stored, self.task) if self.over_ranges is None else self.over_ranges

    @property
    def payloads(self) -> SparkRows | None:
        """The packed rows of the tasks. None if the rows are staged, or if several ranges were reduced
        together.
        """
        as_packed = self.over_ranges is None and self.staged is None
        return SparkRows(self.stored.select("payload", "error")) if as_packed else None

    def rows_of(self, kind: str, columns: Sequence[str]) -> SparkRows:
        """Returns columns of the rows of ``frame`` with this value of ``_op``."""
        return SparkRows(self.frame.where(F.col("_op") == kind).select(*columns))

    @property
    def read(self) -> KafkaRead:
        """The amounts of data that were read from Kafka."""
        return self.reports.read

    @property
    def row_by_row_records(self) -> int:
        """The number of records that the slower row codec decoded."""
        return self.reports.row_by_row_records

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """The hashes (``reduce.key_hashes``) of the keys of all rows to apply."""
        return self.reports.hashes

    def release(self) -> None:
        """Release the result rows that Spark stores."""
        release_stored(self.stored)


def reduced_ranges(
    session: SparkSession, task: RangeTask, reader: RecordReader, *, checkpoint: bool = False
) -> RangeFrame:
    """Runs a task on its ranges and returns the results.

    If the task's sink could not write the rows of some range to the target (stage them), or if a key is in
    several ranges, the ranges are read again without the sink.

    Args:
        session: The Spark session.
        task: The task.
        reader: Reads the records.
        checkpoint: True to store the results as a local checkpoint, which Spark never recomputes. False to
            store them in Spark's cache.

    Raises:
        TidesinkError: A task failed with this error.
    """
    packed = _packed(session, task, reader)
    # The checkpoint is lazy: the job that collects the heads also stores the payloads, as for a cached frame.
    stored = packed.localCheckpoint(eager=False) if checkpoint else packed.persist(_LEVEL)
    try:
        reports = TaskReports(stored.drop("payload").collect())
        reports.raise_error()
        range_frame = RangeFrame(task, stored, reports, reports.summary)
        if task.sink is None:
            return _reduced_over_ranges(range_frame)
        staged = reports.staged
        if staged is not None:
            return replace(range_frame, staged=staged)
        release_stored(stored)
    except BaseException:
        with suppress(Exception):
            release_stored(stored)
        raise
    return reduced_ranges(session, replace(task, sink=None), reader, checkpoint=checkpoint)


def unpacked_ranges(session: SparkSession, task: RangeTask, reader: RecordReader) -> DataFrame:
    """Returns a lazy frame with the rows that a task returns, in the columns of ``reduced_schema``.

    Spark does not store them. If a task fails, its error is raised when the frame is computed
    (``spark.errors.raised_task_errors``).
    """
    return _unpacked(_packed(session, task, reader), task)


def _packed(session: SparkSession, task: RangeTask, reader: RecordReader) -> DataFrame:
    """Runs a task on its ranges with Spark, and returns its result rows as a lazy frame.

    With a row filter, Spark evaluates the filter between the two halves of the task, in the same stage.
    """
    rule = task.plan.row_filter
    if rule is None:
        return reader.over(session, task.ranges, task.packed, PACKED_DDL)
    verdict = F.expr(rule.expression).alias("verdict")
    chunks = reader.over(session, task.ranges, task.chunks, rule.chunks_ddl)
    return chunks.select(CHUNK, verdict).mapInArrow(Reporting(task.filtered), PACKED_DDL)


def checkpointed(frame: DataFrame, stack: ExitStack, **context: ContextValue) -> DataFrame:
    """Computes a frame and stores its rows as a checkpoint until ``stack`` is closed.

    Spark never recomputes a checkpoint.

    Raises:
        TidesinkError: A task failed with this error.
    """
    with raised_task_errors(**context):
        stored = frame.localCheckpoint(eager=True)
    stack.callback(release_stored, stored)
    return stored


def release_stored(stored: DataFrame) -> None:
    """Free the memory and disk blocks in which Spark stores a frame of ``reduced_ranges``."""
    plan: Any = stored._jdf.queryExecution().analyzed()
    if plan.getClass().getSimpleName() == "LogicalRDD":  # a checkpoint, which ``unpersist`` does not free
        plan.rdd().unpersist(False)
    else:
        stored.unpersist()


def frame_of_payloads(session: SparkSession, payloads: pa.Table, task: RangeTask) -> DataFrame:
    """Returns a frame with the rows of payloads, in the columns of ``reduced_schema``.

    ``payloads``: the columns ``payload`` and ``error`` of the result rows of ``task``.
    """
    return _unpacked(session.createDataFrame(payloads, "payload binary, error binary"), task)


def _unpacked(stored: DataFrame, task: RangeTask) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(task.schema, prefer_timestamp_ntz=True)
    return stored.select("payload", "error").mapInArrow(unpack, schema)


def _reduced_over_ranges(range_frame: RangeFrame) -> RangeFrame:
    """Reduces the rows of all ranges together, if a key is in several ranges.

    Under ``sequence_by: source`` the last row of each key is kept. Under ``mode: history`` one row of each
    key and commit_ts is kept. Under ``sequence_by: kafka`` such keys are an error, and are listed in the
    summary.
    """
    if not range_frame.reports.has_mixed_keys:
        return range_frame
    rules = range_frame.task.plan.rules
    if rules.versions or rules.sequenced:
        by, order = (("key", "_commit_ts"), _FIRST_WRITE) if rules.versions else (("key",), "_seq")
        rows, summary = _last_of_all(range_frame.frame, range_frame.summary, by=by, order=order)
        return replace(range_frame, over_ranges=rows, summary=summary)
    return replace(
        range_frame, summary=replace(range_frame.summary, mixed_keys=_mixed_keys(range_frame.frame))
    )


def _mixed_keys(frame: DataFrame) -> tuple[str, ...]:
    # Called only if hashes are equal. Two different keys may have the same hash, so compare the keys.
    places_of_key = F.countDistinct("_topic", "_partition")
    keys = frame.where(F.col("key").isNotNull()).groupBy("key").agg(places_of_key.alias("places"))
    rows = keys.where("places > 1").select(F.to_json("key").alias("key")).limit(_SHOWN_KEYS).collect()
    return tuple(row["key"] for row in rows)


def _last_of_all(
    frame: DataFrame, summary: BatchSummary, *, by: Sequence[str], order: str
) -> tuple[DataFrame, BatchSummary]:
    """Groups rows by the columns ``by``, and keeps each group's last row in ``order``.

    Returns the kept rows, and ``summary`` with the counts of these rows.
    """
    whole = F.struct(*frame.columns)
    groups = frame.where(F.col("key").isNotNull()).groupBy(*by)
    rows = groups.agg(F.max_by(whole, F.expr(order)).alias("last")).select("last.*")
    counts = rows.agg(
        F.count_if(F.col("_op") == UPSERT).alias("upserts"),
        F.count_if(F.col("_op") == DELETE).alias("deletes"),
        F.count_if("_half").alias("split_halves"),
    ).collect()[0]
    applied = counts["upserts"] + counts["deletes"] - counts["split_halves"]
    superseded = summary.counts.superseded + summary.counts.applied - applied
    counted = replace(
        summary,
        counts=replace(summary.counts, **counts.asDict(), superseded=superseded),
        findings=_findings(rows, summary.findings),
    )
    return rows.unionByName(frame.where(F.col("key").isNull())), counted


def _findings(rows: DataFrame, of_ranges: RowFindings) -> RowFindings:
    """Returns the findings about the kept rows. ``of_ranges``: those about the rows of all ranges."""
    warned, first_warnings = _warnings(rows) if of_ranges.warned else (0, ())
    return RowFindings(
        warned,
        first_warnings,
        _marked(rows, "_zero_dates", of_ranges.zero_dates),
        _marked(rows, "_ambiguous_times", of_ranges.ambiguous_times),
    )


def _warnings(rows: DataFrame) -> tuple[int, tuple[RowWarning, ...]]:
    """Returns the number of rows with a warning, and the first of them in each topic-partition."""
    reason = F.col("_detail").getField("reason")
    warned = rows.where(reason.isNotNull() & ~F.col("_half")).groupBy("_topic", "_partition")
    first = F.min(F.struct(F.col("_offset").alias("offset"), reason.alias("reason"))).alias("first")
    found = warned.agg(F.count("*").alias("count"), first).collect()
    first_warnings = (
        RowWarning(TopicPartition(row["_topic"], row["_partition"]), *row["first"]) for row in found
    )
    return sum(row["count"] for row in found), tuple(first_warnings)


def _marked(rows: DataFrame, mark: str, of_ranges: Mapping[str, int]) -> dict[str, int]:
    if not of_ranges:
        return {}
    counts = rows.select(F.explode(mark).alias("name")).groupBy("name").count().collect()
    return {row["name"]: row["count"] for row in counts if row["name"] in of_ranges}


# The rows that a target gets


def omitting(frame: DataFrame, omitted: Collection[str], given: TargetSchema) -> DataFrame:
    """Returns the rows to apply without the columns ``omitted``. ``given``: the other columns."""
    if not omitted:
        return frame
    after = F.col("after")
    fields = [after.getField(column.name).alias(column.name) for column in given.columns]
    changed = {"after": F.when(after.isNotNull(), F.struct(*fields))}
    if "_kept" in frame.columns:
        names = F.array(*(F.lit(name) for name in omitted))
        changed["_kept"] = F.array_except("_kept", names)
    return frame.withColumns(changed)


def rows_to_write(reduced: DataFrame, rows: int, settings: TableConfig) -> DataFrame:
    """Returns the rows to write, in a number of Spark partitions that avoids small files.

    ``rows``: their number.
    """
    frame = rows_to_apply(reduced)
    return frame.coalesce(1 + rows // _ROWS_A_FILE) if settings.mode == "append" else frame


def rows_to_apply(reduced: DataFrame) -> DataFrame:
    """Returns the upserts and deletes among the rows of a reduced frame (``tasks.reduced_schema``)."""
    return reduced.where(F.col("_op").isin(*ROW_KINDS))
