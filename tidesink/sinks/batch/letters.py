"""What a batch stores beside its rows: dead letters in their topic, and DDL events for people to read.

Also dead letters and what follows them as frames: what a replay reads, keeps of it, and says of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec
from tidesink.errors import DecodeError, SchemaNotFoundError, SourceError, SourceUnavailableError
from tidesink.events import DdlEvent, Message
from tidesink.sinks.batch.records import BAD, DDL, ROW_KINDS, TRUNCATE, UNPLANNED
from tidesink.sinks.batch.source import (
    RECORD_COLUMNS,
    KafkaRead,
    KafkaSource,
    ReadFrame,
    RecordReader,
    translated_read_errors,
)
from tidesink.sinks.kafka.dead_letters import (
    LETTER_SCHEMA,
    Letter,
    LetterStamp,
    LetterTopic,
    read_records,
    write_letters,
)
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets
from tidesink.sinks.spark.errors import SPARK_ERRORS, Reporting
from tidesink.sinks.spark.record_frames import RECORD_DDL
from tidesink.sinks.spark.session import in_session
from tidesink.sinks.state.progress import Progress, StoredDdl, store_ddl
from tidesink.sinks.worker.context import WorkerContext

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tidesink.sinks.batch.tasks import Work
    from tidesink.sinks.schema_sources.base import Apart


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
    context: WorkerContext, reduction: ReducedRanges, reader: RecordReader, progress: Progress
) -> dict[str, Any] | None:
    """Store the DDL events of a reduced batch; the newest one's commit_ts, kind and query.

    They are few, each by itself in the frame, and are decoded here. Their bytes and Kafka's time come from
    Kafka, read once more.

    Raises:
        StateStoreError: the state store does not answer.
    """
    codec = _codec(context)
    session = reduction.frame.sparkSession
    found = _messages(reduction, partial(reader.frame, session))
    topic_id = reduction.plan.found.topic_id
    rows = [_row(message, topic_id, _event(codec, message)) for message in found]
    store_ddl(context.store, progress, sorted(rows, key=lambda row: (row.partition, row.offset)))
    last = max(rows, key=lambda row: (row.commit_ts or 0, row.offset), default=None)
    if last is None:
        return None
    return {"commit_ts": last.commit_ts, "kind": last.kind, "query": last.query[:_SHOWN]}


def _codec(context: WorkerContext) -> Codec:
    source = context.config.source
    # Values are opened where they are read.
    options = replace(source.codec_options(), large_message_handle_compression="none")
    return open_codec(source.protocol, options=options, registry=context.registry)


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


PLACE: Final = ("topic", "partition", "offset")
_EVENT_PLACE: Final = tuple(f"_{name}" for name in PLACE)


class Bounds(NamedTuple):
    """Letters of a partition that can be replayed: offsets ``[since, below)``."""

    since: int
    below: int


class LetterCounts(NamedTuple):
    """Of the letters of a topic: how many can be replayed, and why the others cannot.

    ``first``: the first one's offset in each partition. ``waiting``: behind what is applied, so that the
    worker reads them by itself. ``expired``: Kafka no longer holds all that follows them.
    """

    ready: int
    waiting: int
    expired: int
    first: Mapping[int, int]


class LetterEvents(NamedTuple):
    """The events that letters are today: records, and events by what they are."""

    messages: int
    events: int
    rows: int
    bad: int


def letter_counts(letters: DataFrame, bounds: Mapping[int, Bounds]) -> LetterCounts:
    """Count letters by their bounds: one job."""
    since, below = (_bound(bounds, name) for name in ("since", "below"))
    behind = F.coalesce(F.col("offset") >= below, F.lit(True))
    lost = ~behind & (F.col("offset") < since)
    ready = ~behind & ~lost
    rows = (
        letters.groupBy("partition")
        .agg(
            F.count_if(ready).alias("ready"),
            F.count_if(behind).alias("waiting"),
            F.count_if(lost).alias("expired"),
            F.min(F.when(ready, F.col("offset"))).alias("first"),
        )
        .collect()
    )
    first = {int(row["partition"]): int(row["first"]) for row in rows if row["first"] is not None}
    count, waiting, expired = (sum(row[name] for row in rows) for name in ("ready", "waiting", "expired"))
    return LetterCounts(count, waiting, expired, first)


def ready_letters(letters: DataFrame, bounds: Mapping[int, Bounds]) -> DataFrame:
    """The letters within their bounds."""
    since, below = (_bound(bounds, name) for name in ("since", "below"))
    return letters.where((F.col("offset") >= since) & (F.col("offset") < below))


def _bound(bounds: Mapping[int, Bounds], name: str) -> Column:
    """A bound of the row's partition; null where nothing of the partition was applied."""
    by_partition: list[Column] = []
    for partition, found in bounds.items():
        by_partition += [F.lit(partition), F.lit(getattr(found, name)).cast("bigint")]
    if not by_partition:
        return F.lit(None).cast("bigint")
    return F.create_map(*by_partition)[F.col("partition")]


class LetterReader:
    """Gives a batch its letters, with their own bytes, and what Kafka has behind them.

    ``following``: ranges of Kafka to read besides. ``places`` are left out of them: those records
    are dead letters, chosen ones or others, and were never applied.
    """

    def __init__(
        self,
        source: KafkaSource,
        letters: DataFrame,
        places: DataFrame,
        following: Sequence[OffsetRange],
    ) -> None:
        self._source = source
        self._letters = letters
        self._places = places
        self._following = [part for part in following if part.records > 0]

    @property
    def fetch(self) -> None:
        """None: the letters are in a frame."""
        return None

    def frame(self, session: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
        """The records in ranges, as Kafka has them."""
        return self._source.frame(session, ranges)

    def over(self, session: SparkSession, ranges: Sequence[FetchRange], work: Work, ddl: str) -> DataFrame:
        """As ``KafkaSource.over``."""
        return self._source.over(session, ranges, work, ddl)

    def letters(self, session: SparkSession, apart: Apart | None) -> DataFrame:
        """The letters alone, without those that name another table."""
        return _mine(self._source.opened(in_session(self._letters, session)), apart)

    def read(
        self, session: SparkSession, _ranges: Sequence[OffsetRange], *, apart: Apart | None = None
    ) -> ReadFrame:
        """The letters, and what follows them."""
        found, nothing = self.letters(session, apart), KafkaRead(0, 0)
        if self._following:
            places = in_session(self._places, session)
            raw = self._source.frame(session, self._following).join(places, list(PLACE), "left_anti")
            found = found.unionByName(_mine(raw.select(*RECORD_COLUMNS), apart))
        # What a replay has read is the letters, which are counted in their topic.
        return ReadFrame(found, lambda: nothing, lambda: nothing)


def _mine(frame: DataFrame, apart: Apart | None) -> DataFrame:
    return frame if apart is None else frame.where(~apart.foreign)


def concerning(whole: DataFrame, letters: DataFrame, grouped: DataFrame) -> DataFrame:
    """Of a reduced frame the rows of keys that letters name, and letters that are no rows.

    ``grouped`` is the reduced frame of the letters alone. What the plan does not know and what empties the
    table stays too: both must be dealt with first.
    """
    is_row = F.col("_op").isin(*ROW_KINDS)
    keys = grouped.where(is_row).select(F.col("key").alias("_its_key"), F.lit(True).alias("_wanted"))
    marked = whole.join(keys, F.col("key") == F.col("_its_key"), "left")
    places = letters.select(
        *(F.col(name).alias(f"_its_{name}") for name in PLACE), F.lit(True).alias("_here")
    )
    same = [F.col(name) == F.col(f"_its{name}") for name in _EVENT_PLACE]
    marked = marked.join(places, same, "left")
    other = F.col("_here").isNotNull() | F.col("_op").isin(UNPLANNED, TRUNCATE)
    wanted = (is_row & F.col("_wanted").isNotNull()) | (~is_row & other)
    return marked.where(wanted).select(*whole.columns)


def letter_events(decoded: DataFrame) -> LetterEvents:
    """What the letters are today: one job over the decoded letters."""
    kind = F.col("_kind")
    row = decoded.agg(
        F.count_if(F.col("_index") == 0).alias("messages"),
        F.count("*").alias("events"),
        F.count_if(kind.isin(*ROW_KINDS)).alias("rows"),
        F.count_if(kind == BAD).alias("bad"),
    ).collect()[0]
    return LetterEvents(row["messages"], row["events"], row["rows"], row["bad"])


def events_that_stay(reduced: DataFrame, letters: DataFrame) -> int:
    """How many of a reduced frame's rows are of the letters' own events: each is one event."""
    own = reduced.where(F.col("_op").isin(*ROW_KINDS) & ~F.col("_half"))
    places = letters.select(*(F.col(name).alias(f"_{name}") for name in PLACE))
    return own.join(places, list(_EVENT_PLACE), "left_semi").count()


def outcomes(letters: DataFrame, decoded: DataFrame, topic_id: str) -> DataFrame:
    """What became of each letter, all of one topic, for ``DeadLetters.settle``; no error: dealt with."""
    first = F.min_by(F.struct(F.col("_error").alias("error"), F.col("_reason").alias("reason")), "_index")
    bad = decoded.where(F.col("_kind") == BAD).groupBy(*_EVENT_PLACE).agg(first.alias("fault"))
    bad = bad.select(*(F.col(f"_{name}").alias(name) for name in PLACE), "fault.error", "fault.reason")
    reported = letters.select(*PLACE).join(bad, list(PLACE), "left")
    return reported.withColumn("topic_id", F.lit(topic_id))
