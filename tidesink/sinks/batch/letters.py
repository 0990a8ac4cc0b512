"""What a batch stores beside its rows: dead letters in their topic, and DDL events for people to read.

Also dead letters read again: their records for the tasks of a replay, and what follows them in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec
from tidesink.errors import DecodeError, SchemaNotFoundError, SourceError
from tidesink.events import DdlEvent, Message
from tidesink.sinks.batch.context import WorkerContext
from tidesink.sinks.batch.records import BAD, DDL, UNPLANNED, DecodedRecords, decoded_records
from tidesink.sinks.batch.reduce import Reduction, changes_of_keys, keys_of_events, rows_of_keys
from tidesink.sinks.batch.source import KafkaSource, translated_read_errors
from tidesink.sinks.kafka.dead_letters import (
    LETTER_SCHEMA,
    Letter,
    LetterStamp,
    LetterTopic,
    read_records,
    write_letters,
)
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange
from tidesink.sinks.spark.errors import Reporting
from tidesink.sinks.spark.payloads import ROW_KINDS, task_number
from tidesink.sinks.state.progress import Progress, StoredDdl, store_ddl
from tidesink.sinks.state.source_reads import SourceRead, standing_of
from tidesink.typemap.target_schema import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tidesink.codecs.batch import ChangeTable
    from tidesink.sinks.batch.decoders import DecodePlan
    from tidesink.sinks.batch.tasks import Fetch, Work
    from tidesink.typemap.target_schema import ShapeColumn

Offsets = npt.NDArray[np.int64]
_PLACE: Final = ("topic", "partition", "offset")
_FAULT: Final = ("error", "reason", "key_id", "value_id")
_OUTCOME_DDL: Final = "found bigint, written bigint"


class WrittenLetters(NamedTuple):
    """How many records of a batch are bad, and of how many Kafka acknowledged the letter."""

    records: int
    acknowledged: int


def write_bad_records(
    reduced: DataFrame, fetch: Fetch, topic: LetterTopic, stamp: LetterStamp
) -> WrittenLetters:
    """Write the bad records of a reduced frame as letters, from the tasks.

    They are read once more, with their headers: good batches carry no bytes. A record of which several
    events are bad is one, with what is wrong with one of them.

    Raises:
        SourceError: the first error of a task, of its own class.
    """
    place = (F.col(f"_{name}").alias(name) for name in _PLACE)
    fault = (F.col("_detail").getField(name).alias(name) for name in _FAULT)
    bad = reduced.where(F.col("_op") == BAD).select(*place, *fault)
    with translated_read_errors(stamp.table):
        outcomes = bad.mapInArrow(Reporting(LetterTask(fetch, topic, stamp)), _OUTCOME_DDL).collect()
    return WrittenLetters(*(sum(int(row[name]) for row in outcomes) for name in ("found", "written")))


@dataclass(frozen=True)
class LetterTask:
    """Writes letters of rows with a place and a fault."""

    fetch: Fetch
    topic: LetterTopic
    stamp: LetterStamp

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """How many records were found bad, and written."""
        bad = faults_by_place(batches)
        written = write_letters(self.topic, self.stamp, self.letters(bad), task=task_number())
        yield pa.record_batch({"found": [len(bad)], "written": [written]})

    def letters(self, bad: Mapping[tuple[str, int, int], Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
        """The records at places, with their faults, in the columns of ``LETTER_SCHEMA``."""
        for (topic, partition), places in groupby(sorted(bad), lambda place: place[:2]):
            offsets = np.array([offset for _, _, offset in places], np.int64)
            wanted = FetchRange(topic, partition, int(offsets[0]), int(offsets[-1]) + 1, self.stamp.topic_id)
            for batch in self.fetch(wanted):
                records = _at_offsets(batch, offsets)
                if records.num_rows:
                    yield _as_letters(records, [bad[topic, partition, one] for one in _offsets_of(records)])


def faults_by_place(batches: Iterable[pa.RecordBatch]) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Rows by topic, partition and offset: one of each."""
    rows = (row for batch in batches for row in batch.to_pylist())
    return {(row["topic"], row["partition"], row["offset"]): row for row in rows}


def _offsets_of(records: pa.RecordBatch) -> list[int]:
    found: list[int] = records.column("offset").to_pylist()
    return found


def _at_offsets(records: pa.RecordBatch, offsets: Offsets, *, other: bool = False) -> pa.RecordBatch:
    """The records at these offsets; ``other``: all but these."""
    return records.filter(pa.array(np.isin(records.column("offset").to_numpy(), offsets, invert=other)))


def _as_letters(records: pa.RecordBatch, faults: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    named = {"key_schema_id": "key_id", "value_schema_id": "value_id", "error": "error", "reason": "reason"}
    columns = [
        pa.array([one[named[field.name]] for one in faults], field.type)
        if field.name in named
        else records.column(field.name).cast(field.type)
        for field in LETTER_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LETTER_SCHEMA)


# A statement as status shows it.
_SHOWN: Final = 200
# The DDL of one page is collected to this process. Besides its bytes an event takes so many in memory.
_PAGE_BYTES: Final = 64 << 20
_EVENT_BYTES: Final = 1 << 10


def keep_ddl(
    context: WorkerContext, reduced: DataFrame, topic_id: str, progress: Progress
) -> dict[str, Any] | None:
    """Store the DDL events of a reduced frame; the newest one's commit_ts, kind and query.

    Each is by itself in the frame with its bytes, and is decoded here, a page at a time.

    Raises:
        StateStoreError: the state store does not answer.
        SourceError: Kafka does not.
    """
    source = context.config.source
    codec = open_codec(source.protocol, options=source.codec_options(), registry=context.registry)
    last: StoredDdl | None = None
    for page in _pages(reduced.where(F.col("_op") == DDL)):
        place = (f"_{name}" for name in _PLACE)
        found = page.select(*place, "_detail.key", "_detail.value", "_detail.time")
        # Of a record with several events each has its bytes.
        messages = {row[:3]: _message(row) for row in found.collect()}
        timed = [with_time(message, context.source) for message in messages.values()]
        rows = [_stored(message, topic_id, _event(codec, message)) for message in timed]
        store_ddl(context.store, progress, sorted(rows, key=lambda row: (row.partition, row.offset)))
        last = max(filter(None, [last, *rows]), key=lambda row: (row.commit_ts or 0, row.offset))
    if last is None:
        return None
    return {"commit_ts": last.commit_ts, "kind": last.kind, "query": last.query[:_SHOWN]}


def _pages(ddl: DataFrame) -> Iterator[DataFrame]:
    """The events in Kafka's order of each partition: a page's bytes at a time, or a larger one."""
    place = F.struct("_partition", "_offset")
    sizes = (F.coalesce(F.octet_length(f"_detail.{name}"), F.lit(0)) for name in ("key", "value"))
    weighed = ddl.select(place.alias("place"), (F.lit(_EVENT_BYTES) + sum(sizes)).alias("weight"))
    weight_up_to = F.sum("weight").over(Window.orderBy("place"))
    page = F.floor(weight_up_to / _PAGE_BYTES).alias("page")
    bounds = F.min("place").alias("first"), F.max("place").alias("last")
    for found in sorted(weighed.select("place", page).groupBy("page").agg(*bounds).collect()):
        yield ddl.where(place.between(_place(*found["first"]), _place(*found["last"])))


def _place(partition: int, offset: int) -> Column:
    return F.struct(
        F.lit(partition).cast("int").alias("_partition"), F.lit(offset).cast("bigint").alias("_offset")
    )


def _message(row: Any) -> Message:
    key, value = (None if row[name] is None else bytes(row[name]) for name in ("key", "value"))
    return Message(row["_topic"], row["_partition"], row["_offset"], key, value, row["time"])


def with_time(message: Message, source: KafkaSource) -> Message:
    """The record with Kafka's time, which tasks read only where their decoder uses it.

    Raises:
        SourceError: Kafka refuses, or does not answer.
    """
    if message.timestamp is not None:
        return message
    place = OffsetRange(message.topic, message.partition, message.offset, message.offset + 1)
    times = [one for batch in source.read_here([place]) for one in batch.column("timestamp").to_pylist()]
    return replace(message, timestamp=times[0] if times else None)


def _event(codec: Codec, message: Message) -> DdlEvent | None:
    """The event of a record; None where the Python codec reads none: its place is kept all the same."""
    try:
        found = (event for event in codec.decode(message) if isinstance(event, DdlEvent))
        return next(found, None)
    except (DecodeError, SchemaNotFoundError):
        return None


def _stored(message: Message, topic_id: str, event: DdlEvent | None) -> StoredDdl:
    said = (event.commit_ts, event.kind, event.query) if event else (None, "", "")
    return StoredDdl(message.topic, topic_id, message.partition, message.offset, *said, message.timestamp)


# Letters read again


class Bounds(NamedTuple):
    """Letters of a partition that can be replayed: offsets ``[since, below)``."""

    since: int
    below: int


class SortedLetters(NamedTuple):
    """The letters of a topic that can be replayed now, and the others.

    ``waiting``: behind what is applied, so that the worker reads them by itself. ``expired``: Kafka no
    longer holds all that follows them. ``settled``: a resync repaired their rows later. ``unsure``: rows of
    the source were read, and nothing tells whether theirs were read before or after them.
    """

    ready: tuple[Letter, ...]
    waiting: int
    expired: int
    settled: tuple[Letter, ...] = ()
    unsure: int = 0

    @property
    def first(self) -> dict[int, int]:
        """The first ready one's offset in each partition."""
        newest_first = sorted(self.ready, key=lambda letter: -letter.offset)
        return {letter.partition: letter.offset for letter in newest_first}


def sorted_letters(
    letters: Iterable[Letter], bounds: Mapping[int, Bounds], reads: Sequence[SourceRead] = ()
) -> SortedLetters:
    """Letters of one topic by their bounds; of a partition without any nothing was applied.

    ``reads``: the snapshots and resyncs of the table. Letters whose row a limited one may have read are among
    those that are ready: their keys tell (``EventKeys``).
    """
    ready, settled = list[Letter](), list[Letter]()
    waiting = expired = unsure = 0
    for letter in letters:
        found = bounds.get(letter.partition)
        standing = standing_of(reads, letter.topic, letter.partition, letter.offset, lambda _read: None)
        if found is None or letter.offset >= found.below:
            waiting += 1
        elif standing == "settled":
            settled.append(letter)
        elif letter.offset < found.since:
            expired += 1
        elif standing == "unsure" and not limited_reads(letter, reads):
            unsure += 1
        else:
            ready.append(letter)
    return SortedLetters(tuple(ready), waiting, expired, tuple(settled), unsure)


def limited_reads(letter: Letter, reads: Iterable[SourceRead]) -> list[SourceRead]:
    """The reads of some rows alone that may have read a letter's row behind it."""
    return [
        one for one in reads if one.limited and letter.offset < one.span(letter.topic, letter.partition).last
    ]


@dataclass(frozen=True)
class EventKeys:
    """What a task says of the row events of letters: the key, in the target's columns, and its place.

    An update that changes its key has both keys. ``plan``: of the letters' batch. What cannot be decoded, and
    what is no row event, is left out.
    """

    plan: DecodePlan

    @property
    def columns(self) -> tuple[ShapeColumn, ...]:
        """The key's columns, which come first."""
        return self.plan.shape.key_columns

    @property
    def ddl(self) -> str:
        """The columns."""
        keys = (f"{quoted(f'c{at}')} {one.spark}" for at, one in enumerate(self.columns))
        return ", ".join([*keys, "partition int", "offset bigint", "commit_ts bigint"])

    def __call__(self, _wanted: FetchRange, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A row for each key of each event."""
        plan = replace(self.plan, rules=replace(self.plan.rules, bound=None))
        for batch in records:
            found = decoded_records(batch, plan.decoder, plan.rows, rules=plan.rules)
            for one in found.tables:
                yield from self._of(one)

    def _of(self, changes: ChangeTable) -> Iterator[pa.RecordBatch]:
        rows, old_keys = self.plan.rows, self.plan.decoder.old_keys
        at, own = keys_of_events(changes, rows.keys, convert=rows.key_values, old_keys=old_keys)
        if not len(at):
            return
        places = {
            name: changes.rows[name].combine_chunks().take(pa.array(at))
            for name in ("partition", "offset", "commit_ts")
        }
        keys = {f"c{number}": one for number, one in enumerate(rows.key(own).flatten())}
        yield pa.record_batch({**keys, **places})


@dataclass(frozen=True)
class LetterFetch:
    """Gives tasks the records of letters, by partition. ``places``: the letters' offsets in their topic."""

    topic: LetterTopic
    places: Mapping[int, frozenset[int]]

    @classmethod
    def of(cls, topic: LetterTopic, letters: Iterable[Letter]) -> LetterFetch:
        """For letters of one topic."""
        places: dict[int, set[int]] = {}
        for letter in letters:
            places.setdefault(letter.partition, set()).add(letter.at)
        return cls(topic, {partition: frozenset(found) for partition, found in places.items()})

    def __call__(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        """The records of a partition's letters.

        Raises:
            SourceError: a letter is gone, or Kafka refuses. SourceUnavailableError: it does not answer.
        """
        places, found = self.places.get(wanted.partition, frozenset()), 0
        for batch in read_records(self.topic, places):
            found += batch.num_rows
            yield batch
        if found != len(places):
            raise SourceError(
                f"{len(places) - found} dead letters of {wanted.topic}[{wanted.partition}] no longer exist. "
                "List the current ones with tidesink dlq list.",
                topic=self.topic.name,
            )


@dataclass(frozen=True)
class FollowedFetch:
    """Gives tasks letters, and what Kafka has behind them.

    ``following``: by partition, what of Kafka is read besides. ``skipped``: offsets of records that are
    dead letters, chosen ones or others, and were never applied.
    """

    letters: LetterFetch
    fetch: Fetch
    following: Mapping[int, FetchRange]
    skipped: Mapping[int, Offsets]

    def __call__(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        """The records of a partition's letters, then those that follow."""
        yield from self.letters(wanted)
        following = self.following.get(wanted.partition)
        if following is not None:
            others = self.skipped.get(wanted.partition, np.empty(0, np.int64))
            for batch in self.fetch(following):
                yield _at_offsets(batch, others, other=True)


@dataclass(frozen=True)
class LetterRows:
    """What a replay keeps of the records that it reads: changes of the rows that letters name, and letters.

    ``hashes``: of the rows' keys (``reduce.key_hashes``). ``own``: the letters' offsets by partition. What
    the plan does not know and what empties the table stays too: both must be dealt with first.
    """

    hashes: npt.NDArray[np.uint64]
    own: Mapping[int, Offsets]

    def of(self, found: DecodedRecords, plan: DecodePlan) -> DecodedRecords:
        """What is kept of some records; the counts of records stay."""
        rows, old_keys = plan.rows, plan.decoder.old_keys
        masks = (
            changes_of_keys(one, self.hashes, rows.keys, convert=rows.key_values, old_keys=old_keys)
            for one in found.tables
        )
        tables = [
            replace(one, rows=one.rows.filter(pa.array(mask)))
            for one, mask in zip(found.tables, masks, strict=True)
            if mask.any()
        ]
        others = [
            one
            for one in found.others
            if one.kind == UNPLANNED or (one.partition, one.offset) in self._places
        ]
        silent = [
            _at_offsets(one, self.own.get(one.column("partition")[0].as_py(), np.empty(0, np.int64)))
            for one in found.silent
        ]
        silent = [one for one in silent if one.num_rows]
        return replace(found, tables=tables, others=others, silent=silent)

    def rows(self, reduction: Reduction) -> Reduction:
        """The rows that letters name.

        A change of a key into or out of one of them makes another row too: what the target holds there may
        be newer, and what follows of that row was not kept.
        """
        return rows_of_keys(reduction, self.hashes)

    @cached_property
    def _places(self) -> frozenset[tuple[int, int]]:
        return frozenset((number, offset) for number, own in self.own.items() for offset in own.tolist())


def offsets_by_partition(letters: Iterable[Letter]) -> dict[int, Offsets]:
    """Where in Kafka the records of letters of one topic are."""
    found: dict[int, list[int]] = {}
    for letter in letters:
        found.setdefault(letter.partition, []).append(letter.offset)
    return {partition: np.array(sorted(offsets), np.int64) for partition, offsets in found.items()}


def faults_in(reduced: DataFrame) -> dict[tuple[int, int], tuple[str, str]]:
    """Class and reason of each bad record, of which the first event counts, by partition and offset."""
    rows = reduced.where(F.col("_op") == BAD)
    found = dict[tuple[int, int], tuple[str, str]]()
    for row in rows.select("_partition", "_offset", "_detail.error", "_detail.reason").collect():
        found.setdefault((row[0], row[1]), (row[2], row[3]))
    return found


def event_places(reduced: DataFrame) -> list[tuple[int, int]]:
    """Partition and offset of the event that each row to apply is of, halves of key changes left out."""
    rows = reduced.where(F.col("_op").isin(*ROW_KINDS) & ~F.col("_half"))
    return [(row[0], row[1]) for row in rows.select("_partition", "_offset").collect()]


@dataclass(frozen=True)
class LetterReader:
    """The letters of a replay and what follows them, for tasks.

    ``letters`` gives the letters alone, ``whole`` with the ranges ``following``: none where the target
    itself knows what is newer.
    """

    chosen: tuple[Letter, ...]
    letters: KafkaSource
    whole: KafkaSource
    following: tuple[FetchRange, ...]

    def over(self, session: SparkSession, ranges: Sequence[FetchRange], work: Work, ddl: str) -> DataFrame:
        """As ``KafkaSource.over``, of both."""
        return self.whole.over(session, ranges, work, ddl)

    def of_some(self, topic: LetterTopic, chosen: tuple[Letter, ...]) -> LetterReader:
        """The same of some of the letters, and of what follows these."""
        found, letters = self.whole.fetch, LetterFetch.of(topic, chosen)
        assert isinstance(found, FollowedFetch)  # noqa: S101  (``of`` makes it)
        following = self.following if chosen else ()
        whole = replace(found, letters=letters, following={one.partition: one for one in following})
        return LetterReader(chosen, KafkaSource(letters), KafkaSource(whole), following)

    @classmethod
    def of(
        cls,
        source: KafkaSource,
        topic: LetterTopic,
        chosen: tuple[Letter, ...],
        every: Iterable[Letter],
        following: Sequence[FetchRange],
    ) -> LetterReader:
        """``every``: all letters of the table in this topic, which are left out of what follows."""
        letters = LetterFetch.of(topic, chosen)
        behind = {one.partition: one for one in following if one.start < one.end}
        whole = FollowedFetch(letters, source.fetch, behind, offsets_by_partition(every))
        return cls(chosen, KafkaSource(letters), KafkaSource(whole), tuple(behind.values()))
