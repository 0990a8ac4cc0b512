"""Dead letters between Spark's frames and their topic: tasks write and read them, the driver has no bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own name for it)

from tidesink.errors import SourceError, SourceUnavailableError
from tidesink.sinks.batch.records import BAD
from tidesink.sinks.kafka.dead_letters import (
    LETTER_SCHEMA,
    Letter,
    LetterStamp,
    LetterTopic,
    read_records,
    write_letters,
)
from tidesink.sinks.ranges import OffsetRange
from tidesink.sinks.source import translated_read_errors
from tidesink.sinks.spark.record_frames import RECORD_DDL
from tidesink.sinks.spark.task_errors import Reporting
from tidesink.sinks.targets.spark_errors import SPARK_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACE: Final = ("topic", "partition", "offset")
_OUTCOME_DDL: Final = "written bigint, error string"
_RAISED: Final = {one.__name__: one for one in (SourceError, SourceUnavailableError)}


@dataclass(frozen=True)
class BadRecords:
    """The bad records of a reduced batch. ``ranges`` are the smallest that hold them."""

    frame: DataFrame
    count: int
    ranges: tuple[OffsetRange, ...]


def bad_records(reduced: DataFrame, ranges: Sequence[OffsetRange]) -> BadRecords:
    """Where the bad records of a reduced frame are, and what is wrong with each; one job.

    A record of which several events are bad is one, with what is wrong with one of them.
    """
    places = (F.col(f"_{name}").alias(name) for name in _PLACE)
    names = ("error", "reason", "key_id", "value_id")
    found = F.min(F.struct(*(F.col("_detail").getField(name).alias(name) for name in names))).alias("found")
    bad = reduced.where(F.col("_op") == BAD).groupBy(*places).agg(found)
    bad = bad.select(
        *_PLACE,
        F.col("found.key_id").cast("int").alias("key_schema_id"),
        F.col("found.value_id").cast("int").alias("value_schema_id"),
        "found.error",
        "found.reason",
    )
    bounds = bad.groupBy("partition").agg(
        F.count("*").alias("count"), F.min("offset").alias("first"), F.max("offset").alias("last")
    )
    within = {int(row["partition"]): row for row in bounds.collect()}
    narrowed = tuple(
        part._replace(start=int(within[part.partition]["first"]), end=int(within[part.partition]["last"]) + 1)
        for part in ranges
        if part.partition in within
    )
    return BadRecords(bad, sum(int(row["count"]) for row in within.values()), narrowed)


def write_bad_records(bad: BadRecords, raw: DataFrame, topic: LetterTopic, stamp: LetterStamp) -> int:
    """Write bad records as letters from the tasks; how many Kafka acknowledged.

    ``raw``: the records in the ranges of ``bad`` as Kafka has them, with their headers. They are read once
    more where there are bad ones, so that good batches carry no bytes.

    Raises:
        SourceError: the first error of a task, of its own class.
    """
    found = raw.withColumn("timestamp", F.unix_millis("timestamp")).join(F.broadcast(bad.frame), list(_PLACE))
    rows = found.select(*LETTER_SCHEMA.names).mapInArrow(_writer(topic, stamp), _OUTCOME_DDL)
    try:
        with translated_read_errors(stamp.table):
            outcomes = rows.collect()
    except PythonException as exc:
        raise SourceError(
            "a task that writes dead letters failed; report this with the log", topic=topic.name
        ) from exc
    except SPARK_ERRORS as exc:
        raise SourceUnavailableError(
            f"the tasks that write dead letters were cut off ({type(exc).__name__})", topic=topic.name
        ) from exc
    for row in outcomes:
        if row["error"] is not None:
            kind, message, context = json.loads(row["error"])
            raise _RAISED[kind](message, **context)
    return sum(int(row["written"]) for row in outcomes)


def _writer(
    topic: LetterTopic, stamp: LetterStamp
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        written, error = 0, None
        try:
            written = write_letters(topic, stamp, batches, task=task)
        except SourceError as exc:
            # As data, so that it is the same class on the driver.
            error = json.dumps([type(exc).__name__, exc.message, exc.context])
        schema = pa.schema([("written", pa.int64()), ("error", pa.string())])
        yield pa.RecordBatch.from_pydict({"written": [written], "error": [error]}, schema)

    return run


def letters_frame(session: SparkSession, topic: LetterTopic, letters: Sequence[Letter]) -> DataFrame:
    """Letters as Spark reads Kafka's records: topic, partition, offset, timestamp, key and value.

    Lazy, and read by one task: they are few beside a table's rows.
    """
    offsets = frozenset(letter.at for letter in letters)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:  # Spark waits for its batches to be taken
            pass
        yield from read_records(topic, offsets)

    return session.range(1, numPartitions=1).mapInArrow(Reporting(run), RECORD_DDL)


def letter_places(session: SparkSession, letters: Sequence[Letter]) -> DataFrame:
    """Where in Kafka the records of letters are: topic, partition, offset."""
    rows: list[Any] = [(letter.topic, letter.partition, letter.offset) for letter in letters]
    return session.createDataFrame(rows, "topic string, partition int, offset bigint")
