"""Tasks that write a batch's bad records to the dead-letter topic, and that read letters for a replay.

A dead letter is a record that could not be decoded or applied, in the dead-letter topic. A replay applies
dead letters later. It reads them together with the later Kafka records of the same rows.
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
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.errors import SourceError
from tidesink.sinks.batch.source import KafkaSource, translated_read_errors
from tidesink.sinks.decode.records import BAD, UNPLANNED, DecodedRecords, decoded_records
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.laws.reduce import Reduction, changes_of_keys, keys_of_events, rows_of_keys
from tidesink.sinks.letters.topic import (
    LETTER_SCHEMA,
    Letter,
    LetterStamp,
    LetterTopic,
    read_records,
    write_letters,
)
from tidesink.sinks.spark.attempts import task_attempt
from tidesink.sinks.spark.payloads import ROW_KINDS
from tidesink.sinks.state.source_reads import SourceRead, standing_of
from tidesink.typemap.target_schema import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.codecs.batch import ChangeTable
    from tidesink.sinks.batch.tasks import Fetch, Work
    from tidesink.sinks.decode.plans import DecodePlan
    from tidesink.sinks.targets.base import TaskRows
    from tidesink.typemap.target_schema import TargetColumn

Offsets = npt.NDArray[np.int64]
# The columns of a bad record (``batch.tasks.reduced_schema``) from which its letter is written.
FAULT_COLUMNS: Final = ("_topic", "_partition", "_offset", "_detail")
_OUTCOME_DDL: Final = "found bigint, written bigint"


class WrittenLetters(NamedTuple):
    """The number of bad records in a batch, and the number of their letters that Kafka acknowledged."""

    records: int
    acknowledged: int


def write_bad_records(bad: TaskRows, fetch: Fetch, topic: LetterTopic, stamp: LetterStamp) -> WrittenLetters:
    """Write the bad records of a batch to the dead-letter topic, from tasks.

    ``bad``: the rows of the bad records, in the columns ``FAULT_COLUMNS``.

    The tasks read the bad records from Kafka a second time, with headers, because batches do not carry the
    records' bytes. A record with several bad events becomes one letter, with the error of one of these
    events.

    Raises:
        SourceError: Kafka refuses a task's request, or does not answer. The first task's error is raised with
            its own class.
    """
    with translated_read_errors(stamp.table):
        outcomes = bad.run(LetterTask(fetch, topic, stamp), _OUTCOME_DDL)
    return WrittenLetters(sum(found for found, _ in outcomes), sum(written for _, written in outcomes))


@dataclass(frozen=True)
class LetterTask:
    """Writes dead letters. Its input is rows of bad records, in the columns ``FAULT_COLUMNS``."""

    fetch: Fetch
    topic: LetterTopic
    stamp: LetterStamp

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes the letters.

        Yields one row: the number of bad records, and the number of written letters.
        """
        bad = faults_by_place(batches)
        written = write_letters(self.topic, self.stamp, self.letters(bad), task=task_attempt().number)
        yield pa.record_batch({"found": [len(bad)], "written": [written]})

    def letters(self, bad: Mapping[tuple[str, int, int], Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
        """Yields the bad records in the columns of ``LETTER_SCHEMA``: the Kafka record and its error."""
        for (topic, partition), places in groupby(sorted(bad), lambda location: location[:2]):
            offsets = np.array([offset for _, _, offset in places], np.int64)
            wanted = FetchRange(topic, partition, int(offsets[0]), int(offsets[-1]) + 1, self.stamp.topic_id)
            for batch in self.fetch(wanted):
                records = _at_offsets(batch, offsets)
                if records.num_rows:
                    yield _as_letters(
                        records,
                        [bad[topic, partition, record_offset] for record_offset in _offsets_of(records)],
                    )


def faults_by_place(batches: Iterable[pa.RecordBatch]) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Returns the errors of bad records (``_detail``), by the record's topic, partition and offset.

    If a record has several errors, the last one is returned.
    """
    rows = (row for batch in batches for row in batch.to_pylist())
    return {(row["_topic"], row["_partition"], row["_offset"]): row["_detail"] for row in rows}


def _offsets_of(records: pa.RecordBatch) -> list[int]:
    offsets: list[int] = records.column("offset").to_pylist()
    return offsets


def _at_offsets(records: pa.RecordBatch, offsets: Offsets, *, other: bool = False) -> pa.RecordBatch:
    """Returns the records whose offset is one of ``offsets``; with ``other=True`` all other records."""
    return records.filter(pa.array(np.isin(records.column("offset").to_numpy(), offsets, invert=other)))


def _as_letters(records: pa.RecordBatch, faults: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    named = {"key_schema_id": "key_id", "value_schema_id": "value_id", "error": "error", "reason": "reason"}
    columns = [
        pa.array([fault[named[field.name]] for fault in faults], field.type)
        if field.name in named
        else records.column(field.name).cast(field.type)
        for field in LETTER_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LETTER_SCHEMA)


# Dead letters for a replay


class Bounds(NamedTuple):
    """The offsets of a partition at which dead letters can be replayed.

    ``since``: the first offset from which Kafka still has all later records. ``below``: the offset up to
    which the partition was applied.
    """

    since: int
    below: int


class SortedLetters(NamedTuple):
    """The dead letters of a topic, grouped by whether they can be replayed.

    Attributes:
        ready: Letters that can be replayed now.
        waiting: The number of letters at offsets that are not applied yet. The worker still reads
            these records itself.
        expired: The number of letters that cannot be replayed, because Kafka no longer has all later records.
        settled: Letters whose rows a later resync (a new read of the rows from the source) repaired. They
            need no replay.
        unsure: The number of letters that cannot be replayed, because a snapshot may have read their rows
            either before or after the letter's change.
    """

    ready: tuple[Letter, ...]
    waiting: int
    expired: int
    settled: tuple[Letter, ...] = ()
    unsure: int = 0

    @property
    def first(self) -> dict[int, int]:
        """Returns, for each partition, the offset of the first letter that can be replayed."""
        newest_first = sorted(self.ready, key=lambda letter: -letter.offset)
        return {letter.partition: letter.offset for letter in newest_first}


def sorted_letters(
    letters: Iterable[Letter], bounds: Mapping[int, Bounds], reads: Sequence[SourceRead] = ()
) -> SortedLetters:
    """Groups the letters of one topic by whether they can be replayed.

    Args:
        letters: The letters.
        bounds: The offsets at which letters can be replayed, by partition. In a partition without bounds
            nothing was applied yet.
        reads: The snapshots and resyncs of the table. If a resync of selected rows may have read a letter's
            row, the letter still counts as ready. Whether the resync read the row is decided later, by the
            keys in the letter (``EventKeys``).
    """
    ready, settled = list[Letter](), list[Letter]()
    waiting = expired = unsure = 0
    for letter in letters:
        partition_bounds = bounds.get(letter.partition)
        standing = standing_of(reads, letter.topic, letter.partition, letter.offset, lambda _read: None)
        if partition_bounds is None or letter.offset >= partition_bounds.below:
            waiting += 1
        elif standing == "settled":
            settled.append(letter)
        elif letter.offset < partition_bounds.since:
            expired += 1
        elif standing == "unsure" and not limited_reads(letter, reads):
            unsure += 1
        else:
            ready.append(letter)
    return SortedLetters(tuple(ready), waiting, expired, tuple(settled), unsure)


def limited_reads(letter: Letter, reads: Iterable[SourceRead]) -> list[SourceRead]:
    """Returns the resyncs of selected rows that may have read a letter's row after the letter's change."""
    return [
        read
        for read in reads
        if read.limited and letter.offset < read.span(letter.topic, letter.partition).last
    ]


@dataclass(frozen=True)
class EventKeys:
    """Spark task that returns the keys of the rows that dead letters change, in the target's columns.

    Each key has the location of its event. An update that changes the primary key has two keys. Records that
    cannot be decoded or change no row are skipped. ``plan``: the decode plan with which letters are decoded.
    """

    plan: DecodePlan

    @property
    def columns(self) -> tuple[TargetColumn, ...]:
        """The key columns, which are the first columns of the rows that this task returns."""
        return self.plan.shape.key_columns

    @property
    def ddl(self) -> str:
        """The columns of the rows that this task returns, as Spark DDL."""
        keys = (f"{quoted(f'c{number}')} {column.spark}" for number, column in enumerate(self.columns))
        return ", ".join([*keys, "partition int", "offset bigint", "commit_ts bigint"])

    def __call__(self, _wanted: FetchRange, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields one row per key: the key columns, then partition, offset and commit_ts of the event."""
        plan = replace(self.plan, rules=replace(self.plan.rules, bound=None))
        for batch in records:
            decoded = decoded_records(batch, plan.decoder, plan.rows, rules=plan.rules)
            for changes in decoded.tables:
                yield from self._of(changes)

    def _of(self, changes: ChangeTable) -> Iterator[pa.RecordBatch]:
        rows, old_keys = self.plan.rows, self.plan.decoder.old_keys
        indexes, own = keys_of_events(changes, rows.keys, convert=rows.key_values, old_keys=old_keys)
        if not len(indexes):
            return
        places = {
            name: changes.rows[name].combine_chunks().take(pa.array(indexes))
            for name in ("partition", "offset", "commit_ts")
        }
        keys = {f"c{number}": column for number, column in enumerate(rows.key(own).flatten())}
        yield pa.record_batch({**keys, **places})


@dataclass(frozen=True)
class LetterFetch:
    """Reads the records of dead letters in Spark tasks.

    ``topic``: the dead-letter topic. ``places``: by partition of the source topic, the offsets of its letters
    in the dead-letter topic.
    """

    topic: LetterTopic
    places: Mapping[int, frozenset[int]]

    @classmethod
    def of(cls, topic: LetterTopic, letters: Iterable[Letter]) -> LetterFetch:
        """Returns an object that reads the records of ``letters``, which are all in the dead-letter topic
        ``topic``.
        """
        places: dict[int, set[int]] = {}
        for letter in letters:
            places.setdefault(letter.partition, set()).add(letter.at)
        return cls(topic, {partition: frozenset(offsets) for partition, offsets in places.items()})

    def __call__(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        """Yields the original records of a partition's letters.

        Raises:
            SourceError: A letter no longer exists, or Kafka refuses the request.
            SourceUnavailableError: Kafka does not answer.
        """
        places, count = self.places.get(wanted.partition, frozenset()), 0
        for batch in read_records(self.topic, places):
            count += batch.num_rows
            yield batch
        if count != len(places):
            raise SourceError(
                f"{len(places) - count} dead letters of {wanted.topic}[{wanted.partition}] no longer exist. "
                "List the current letters with tidesink dlq list.",
                topic=self.topic.name,
            )


@dataclass(frozen=True)
class FollowedFetch:
    """Reads the records of dead letters, and then later Kafka records, in Spark tasks.

    Attributes:
        letters: Reads the letters.
        fetch: Reads Kafka records.
        following: The range of later Kafka records in each partition.
        skipped: By partition, the offsets of all dead letters of the table, whether they are part of the
            replay or not. They are omitted from the later records, because they were never applied.
    """

    letters: LetterFetch
    fetch: Fetch
    following: Mapping[int, FetchRange]
    skipped: Mapping[int, Offsets]

    def __call__(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        """Yields the records of a partition's letters, then the later Kafka records."""
        yield from self.letters(wanted)
        following = self.following.get(wanted.partition)
        if following is not None:
            others = self.skipped.get(wanted.partition, np.empty(0, np.int64))
            for batch in self.fetch(following):
                yield _at_offsets(batch, others, other=True)


@dataclass(frozen=True)
class LetterRows:
    """Restricts a replay to its dead letters, and to later changes of the rows that the letters change.

    Also kept are truncates, and records with a schema or a column that the decode plan lacks, because the
    driver must handle these first. ``hashes``: hashes of the keys of the rows that the letters change
    (``reduce.key_hashes``). ``own``: the letters' offsets by partition.
    """

    hashes: npt.NDArray[np.uint64]
    own: Mapping[int, Offsets]

    def of(self, decoded: DecodedRecords, plan: DecodePlan) -> DecodedRecords:
        """Removes events of rows that no letter changes from the decoded records, and returns the records.

        The counts of records do not change.
        """
        rows, old_keys = plan.rows, plan.decoder.old_keys
        masks = (
            changes_of_keys(table, self.hashes, rows.keys, convert=rows.key_values, old_keys=old_keys)
            for table in decoded.tables
        )
        tables = [
            replace(table, rows=table.rows.filter(pa.array(mask)))
            for table, mask in zip(decoded.tables, masks, strict=True)
            if mask.any()
        ]
        others = [
            record
            for record in decoded.others
            if record.kind == UNPLANNED or (record.partition, record.offset) in self._places
        ]
        silent = [
            _at_offsets(batch, self.own.get(batch.column("partition")[0].as_py(), np.empty(0, np.int64)))
            for batch in decoded.silent
        ]
        silent = [batch for batch in silent if batch.num_rows]
        return replace(decoded, tables=tables, others=others, silent=silent)

    def rows(self, reduction: Reduction) -> Reduction:
        """Removes the rows that no letter changes from a reduction, and returns it.

        A change of a primary key changes two rows. If a letter changes only one of them, the other row is
        omitted: the target may have a newer version of it, and this replay did not read its later changes.
        """
        return rows_of_keys(reduction, self.hashes)

    @cached_property
    def _places(self) -> frozenset[tuple[int, int]]:
        return frozenset((number, offset) for number, own in self.own.items() for offset in own.tolist())


def offsets_by_partition(letters: Iterable[Letter]) -> dict[int, Offsets]:
    """Returns the letters' offsets in the source topic, sorted, by partition."""
    by_partition: dict[int, list[int]] = {}
    for letter in letters:
        by_partition.setdefault(letter.partition, []).append(letter.offset)
    return {partition: np.array(sorted(offsets), np.int64) for partition, offsets in by_partition.items()}


def faults_in(reduced: DataFrame) -> dict[tuple[int, int], tuple[str, str]]:
    """Returns the error class and the reason for each bad record, by partition and offset.

    If a record has several bad events, those of its first one are returned.
    """
    rows = reduced.where(F.col("_op") == BAD)
    faults = dict[tuple[int, int], tuple[str, str]]()
    for row in rows.select("_partition", "_offset", "_detail.error", "_detail.reason").collect():
        faults.setdefault((row[0], row[1]), (row[2], row[3]))
    return faults


def event_places(reduced: DataFrame) -> list[tuple[int, int]]:
    """Returns the partition and offset of each event whose row is to be applied.

    An event that changes a key has two rows to apply, but is returned once.
    """
    rows = reduced.where(F.col("_op").isin(*ROW_KINDS) & ~F.col("_half"))
    return [(row[0], row[1]) for row in rows.select("_partition", "_offset").collect()]


@dataclass(frozen=True)
class LetterReader:
    """Reads the dead letters of a replay, and the later Kafka records, for Spark tasks.

    Attributes:
        chosen: The letters of the replay.
        letters: Reads only the letters.
        whole: Reads the letters and then the ranges ``following``.
        following: The ranges of later Kafka records. Empty if they need not be read, because the target
            compares the positions of rows and keeps the newer ones.
    """

    chosen: tuple[Letter, ...]
    letters: KafkaSource
    whole: KafkaSource
    following: tuple[FetchRange, ...]

    def over(self, session: SparkSession, ranges: Sequence[FetchRange], work: Work, ddl: str) -> DataFrame:
        """Returns a lazy frame with the results of ``work`` on the letters and the later Kafka records."""
        return self.whole.over(session, ranges, work, ddl)

    def of_some(self, topic: LetterTopic, chosen: tuple[Letter, ...]) -> LetterReader:
        """Returns a reader of only the letters ``chosen``, and of the same later Kafka records.

        If no letters are chosen, the reader reads no later records either.
        """
        fetch, letters = self.whole.fetch, LetterFetch.of(topic, chosen)
        assert isinstance(fetch, FollowedFetch)  # noqa: S101  (``of`` makes it)
        following = self.following if chosen else ()
        whole = replace(fetch, letters=letters, following={part.partition: part for part in following})
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
        """Returns a reader of the letters of a replay, and of later Kafka records with changes of the same
        rows.

        Args:
            source: Reads Kafka records.
            topic: The dead-letter topic.
            chosen: The letters of the replay.
            every: All letters of the table in this topic. They are omitted from the later records.
            following: The ranges of later Kafka records.
        """
        letters = LetterFetch.of(topic, chosen)
        behind = {part.partition: part for part in following if part.start < part.end}
        whole = FollowedFetch(letters, source.fetch, behind, offsets_by_partition(every))
        return cls(chosen, KafkaSource(letters), KafkaSource(whole), tuple(behind.values()))
