"""What a batch stores beside its rows: dead letters in their topic, and DDL events for people to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec
from tidesink.errors import DecodeError, SchemaNotFoundError, SourceError, SourceUnavailableError
from tidesink.events import DdlEvent, Message
from tidesink.sinks.batch.records import BAD, DDL
from tidesink.sinks.batch.source import RecordReader, translated_read_errors
from tidesink.sinks.kafka.dead_letters import (
    LETTER_SCHEMA,
    Letter,
    LetterStamp,
    LetterTopic,
    read_records,
    write_letters,
)
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets
from tidesink.sinks.spark.errors import SPARK_ERRORS, Reporting
from tidesink.sinks.spark.record_frames import RECORD_DDL
from tidesink.sinks.state.ddl_events import StoredDdl, store_ddl
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.worker.context import WorkerContext

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


# A statement as status shows it.
_SHOWN: Final = 200

Read = Callable[[Sequence[OffsetRange]], "DataFrame"]


class ReducedRanges(Protocol):
    """A reduced batch, as far as its DDL events are concerned."""

    @property
    def frame(self) -> DataFrame:
        """The reduced frame."""

    @property
    def plan(self) -> PlannedRanges:
        """What was read."""


class PlannedRanges(Protocol):
    """The offsets of a batch."""

    @property
    def ranges(self) -> Sequence[OffsetRange]:
        """One a partition."""

    @property
    def found(self) -> TopicOffsets:
        """The topic that was read."""


def keep_ddl(
    around: WorkerContext, reduction: ReducedRanges, reader: RecordReader, progress: Progress
) -> dict[str, Any] | None:
    """Store the DDL events of a reduced batch; the newest one's commit_ts, kind and query.

    They are few, each by itself in the frame, and are decoded here. Their bytes and Kafka's time come from
    Kafka, read once more.

    Raises:
        StateStoreError: the state store does not answer.
    """
    codec = _codec(around)
    session = reduction.frame.sparkSession
    found = _messages(reduction, partial(reader.frame, session))
    topic_id = reduction.plan.found.topic_id
    rows = [_row(message, topic_id, _event(codec, message)) for message in found]
    store_ddl(around.store, progress, sorted(rows, key=lambda row: (row.partition, row.offset)))
    last = max(rows, key=lambda row: (row.commit_ts or 0, row.offset), default=None)
    if last is None:
        return None
    return {"commit_ts": last.commit_ts, "kind": last.kind, "query": last.query[:_SHOWN]}


def _codec(around: WorkerContext) -> Codec:
    source = around.config.source
    # Values are opened where they are read.
    options = replace(source.codec_options(), large_message_handle_compression="none")
    return open_codec(source.protocol, options=options, registry=around.registry)


def _messages(reduction: ReducedRanges, read: Read) -> list[Message]:
    found = reduction.frame.where(F.col("_op") == DDL).select("_partition", "_offset").collect()
    places = {(int(row["_partition"]), int(row["_offset"])) for row in found}
    narrowed = list(_narrowed(reduction.plan.ranges, places))
    here = F.concat_ws("@", "partition", "offset").isin(*(f"{n}@{offset}" for n, offset in places))
    raw = read(narrowed).where(here).withColumn("ms", F.unix_millis("timestamp"))
    names = ("topic", "partition", "offset", "key", "value", "ms")
    return [_message(row) for row in raw.select(*names).collect()]


def _narrowed(ranges: Sequence[OffsetRange], places: Iterable[tuple[int, int]]) -> Iterable[OffsetRange]:
    for part in ranges:
        offsets = [offset for partition, offset in places if partition == part.partition]
        if offsets:
            yield part._replace(start=min(offsets), end=max(offsets) + 1)


def _message(row: Any) -> Message:
    key, value = (None if row[name] is None else bytes(row[name]) for name in ("key", "value"))
    return Message(row["topic"], row["partition"], row["offset"], key, value, row["ms"])


def _event(codec: Codec, message: Message) -> DdlEvent | None:
    """The event of a record; None where the Python codec reads none: its bytes are kept all the same."""
    try:
        found = (event for event in codec.decode(message) if isinstance(event, DdlEvent))
        return next(found, None)
    except (DecodeError, SchemaNotFoundError):
        return None


def _row(message: Message, topic_id: str, event: DdlEvent | None) -> StoredDdl:
    said = (event.commit_ts, event.kind, event.query) if event else (None, "", "")
    return StoredDdl(message.topic, topic_id, message.partition, message.offset, *said, message.timestamp)
