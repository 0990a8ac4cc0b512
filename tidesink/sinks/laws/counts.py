"""The counts of a batch, and the law of counts: read = applied + superseded + without-row + dead-lettered.

All counts are in events. A batch whose counts break this equation stops its table. The three sources of the
numbers share no code, so a fault in one of them breaks the equation:

- ``read`` is counted while the records are fetched.
- ``applied`` is computed from the numbers that the target reports for its commit.
- The reduction to one row per key counts ``superseded``, ``without-row`` and ``dead-lettered``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidesink.errors import AccountingError
from tidesink.sinks.state.progress import LastRecord, Progress

if TYPE_CHECKING:
    # This import loads Arrow, and the command line starts without it.
    from tidesink.sinks.laws.schema_rows import RowSpan


class TopicPartition(NamedTuple):
    """One topic-partition."""

    topic: str
    partition: int


@dataclass(frozen=True)
class PartitionSummary:
    """Counts and positions of the records that a batch read from one topic-partition.

    The bound of a batch is the commit_ts up to which it applies rows, if the pipeline makes cuts
    (``laws.bound``).

    Attributes:
        messages: The number of Kafka records.
        max_offset: The largest offset of an event.
        max_commit_ts: The greatest commit_ts of a row event.
        watermark: The greatest watermark.
        waits: The first offset with a row above the bound. The row is applied under a later, higher bound.
            None if there is no such row.
        passed: The offset of the first watermark at or above the bound, or None. No later record was used.
        writers: By registry id of a value schema: the first and the last row written with this schema.
        last: Offset and leader epoch of the last record that was read, of any table. None if the records
            have no epoch.
    """

    messages: int
    max_offset: int
    max_commit_ts: int | None = None
    watermark: int | None = None
    waits: int | None = None
    passed: int | None = None
    writers: Mapping[int, RowSpan] = field(default_factory=dict)
    last: LastRecord | None = None


class UnplannedRecord(NamedTuple):
    """The first record of a topic-partition that cannot be decoded yet, because the batch's decode plan
    (``DecodePlan``) does not contain its schema id.
    """

    place: TopicPartition
    offset: int


class BadRecord(NamedTuple):
    """The first record of a topic-partition that cannot be decoded or applied: its location and the reason.

    ``schema_id``: the registry id in the Confluent header of the value, or of the key if the record has no
    value. None if the key or the value has no such header.
    """

    place: TopicPartition
    offset: int
    error: str
    reason: str
    schema_id: int | None = None

    def __str__(self) -> str:
        return f"{self.error}: {self.place.topic}[{self.place.partition}]@{self.offset}: {self.reason}"


class BadRow(NamedTuple):
    """The first row of an input from the source database that cannot be applied. No Kafka record has it."""

    error: str
    reason: str


class RowWarning(NamedTuple):
    """The first row of a topic-partition that is applied with a warning: its location and the warning."""

    place: TopicPartition
    offset: int
    reason: str


class Truncate(NamedTuple):
    """The first record of a topic-partition that truncates the table."""

    place: TopicPartition
    offset: int


class DdlStatement(NamedTuple):
    """The statement of a DDL event.

    Attributes:
        commit_ts: TiDB's TSO, or None.
        kind: TiCDC's name of the change in canal-json, or TiDB's number of it in flat-avro.
        query: The statement, at most its first ``MOST_QUERY`` characters.
        time: Kafka's timestamp in ms since 1970. None if the task did not fetch timestamps.
    """

    commit_ts: int | None
    kind: str
    query: str
    time: int | None


class DdlRecord(NamedTuple):
    """A record of a topic-partition with a DDL event."""

    place: TopicPartition
    offset: int
    statement: DdlStatement


@dataclass(frozen=True)
class EventCounts:
    """The counts of one batch after its changes were reduced to one row per key.

    Counts are in events unless stated otherwise. Two equations hold: ``read = row_events + filtered + bad +
    unplanned`` and ``row_events = upserts + deletes - split_halves + superseded``. A change of a primary key
    is one event, but two rows to apply: a delete of the old key and an upsert of the new key.

    Attributes:
        messages: Kafka records, to be compared with the number of fetched records.
        read: All events.
        upserts: Rows to write.
        deletes: Rows to delete.
        split_halves: Deletes of old keys. Their events are counted with the upserts of the new keys.
        superseded: Row events that were replaced by a newer event of their key.
        filtered: Events that change no row, among them ``ddl`` and ``watermarks``.
        ddl: DDL events.
        watermarks: Watermarks.
        bad: Events that cannot be decoded or applied.
        unplanned: Events with a schema or a column that the decode plan does not contain.
        unmatched: Row events, applied or superseded, whose row does not match the table's filter.
    """

    messages: int = 0
    read: int = 0
    upserts: int = 0
    deletes: int = 0
    split_halves: int = 0
    superseded: int = 0
    filtered: int = 0
    ddl: int = 0
    watermarks: int = 0
    bad: int = 0
    unplanned: int = 0
    unmatched: int = 0

    @property
    def rows(self) -> int:
        """The number of rows to apply: one per key."""
        return self.upserts + self.deletes

    @property
    def applied(self) -> int:
        """The number of row events whose change is part of the rows to apply."""
        return self.rows - self.split_halves

    @classmethod
    def sum_of(cls, several: Sequence[EventCounts]) -> EventCounts:
        """Returns the sums of several counts."""
        return cls(**{name: sum(getattr(one, name) for one in several) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class RowFindings:
    """Warnings and odd values in the rows to apply, for the status and the log.

    Attributes:
        warned: The number of rows with a warning: their checksum does not match, or a key column of a delete
            may not have been sent.
        first_warnings: The first such row in each topic-partition.
        zero_dates: By column, the number of impossible dates that were set to null.
        ambiguous_times: By column, the number of local times that occur twice, because clocks were set back.
            The table's policy chose one of the two.
    """

    warned: int = 0
    first_warnings: tuple[RowWarning, ...] = ()
    zero_dates: Mapping[str, int] = field(default_factory=dict)
    ambiguous_times: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RowFacts:
    """Facts about the rows to apply that the target uses.

    Attributes:
        omitted: The number of rows without some values, so that the target keeps its stored values.
        min_commit_ts: The smallest commit_ts of the rows, or None.
        key_range: The smallest and the greatest value of the first key column, or None.
    """

    omitted: int = 0
    min_commit_ts: int | None = None
    key_range: tuple[object, object] | None = None


@dataclass(frozen=True)
class UnplannedSchemas:
    """The schemas and columns of the batch's records that the decode plan does not contain.

    Attributes:
        key_ids: Registry ids of the keys' schemas.
        value_ids: Registry ids of the values' schemas.
        columns: Descriptions of columns.
        records: The first record with such a schema in each topic-partition.
    """

    key_ids: tuple[int, ...] = ()
    value_ids: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    records: tuple[UnplannedRecord, ...] = ()


@dataclass(frozen=True)
class BatchSummary:
    """The tasks' report to the driver about the records of one batch, or of one of its inputs.

    Tasks send it to the driver by pickle. It is not stored.

    Attributes:
        counts: The counts of the events.
        findings: Warnings and odd values in the rows to apply, for the status and the log.
        row_facts: Facts about the rows to apply that the target uses.
        unplanned: The schemas and columns that the decode plan does not contain.
        places: The counts and positions in each topic-partition. Empty for rows of the source database.
        max_commit_ts: The greatest commit_ts of all row events, or None.
        bad_records: The first bad record of each topic-partition.
        bad_rows: The first bad row of each input from the source database.
        truncates: The first truncate of each topic-partition.
        ddl: The newest ``MOST_EVENTS`` DDL events of each topic-partition, in the order of their offsets.
        mixed_keys: Some keys that are in several topic-partitions, as JSON. Empty if this is allowed.
    """

    counts: EventCounts = field(default_factory=EventCounts)
    findings: RowFindings = field(default_factory=RowFindings)
    row_facts: RowFacts = field(default_factory=RowFacts)
    unplanned: UnplannedSchemas = field(default_factory=UnplannedSchemas)
    places: Mapping[TopicPartition, PartitionSummary] = field(default_factory=dict)
    max_commit_ts: int | None = None
    bad_records: tuple[BadRecord, ...] = ()
    bad_rows: tuple[BadRow, ...] = ()
    truncates: tuple[Truncate, ...] = ()
    ddl: tuple[DdlRecord, ...] = ()
    mixed_keys: tuple[str, ...] = ()

    @property
    def is_to_learn(self) -> bool:
        """True if the driver must check, after the batch, whether the decode plan fits the batch's records.

        It must do so if some records are bad, if some have a schema or a column that the plan does not
        contain, or if the summary lists the writer schemas of the rows.
        """
        unfit = self.counts.unplanned or self.counts.bad
        return bool(unfit) or any(summary.writers for summary in self.places.values())


def distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the distinct values of a sequence in ascending order, without None."""
    return tuple(sorted({value for value in values if value is not None}))


def greatest(moments: Iterable[int | None]) -> int | None:
    """Returns the greatest of several commit_ts, of which some may be None; None if all are None."""
    return max((moment for moment in moments if moment is not None), default=None)


def latest(*records: LastRecord | None) -> LastRecord | None:
    """Returns the record with the greatest offset, or None if no record is given."""
    return max((record for record in records if record is not None), default=None)


def least(moments: Iterable[int | None]) -> int | None:
    """Returns the least of several commit_ts, of which some may be None; None if all are None."""
    return min((moment for moment in moments if moment is not None), default=None)


@dataclass(frozen=True)
class Account:
    """The counts of one batch in events, or the sums of several batches.

    A change of a primary key is one event. The delete of a row that the target does not have counts as
    applied.

    Attributes:
        read: Events that were read from Kafka.
        applied: Row events whose row was written or deleted.
        superseded: Row events that were replaced by a newer event of their key.
        without_row: DDL, watermarks and messages that change no row.
        dead_lettered: Bad events that were written as dead letters.
        filtered_out: Row events, applied or superseded, whose row does not match the table's filter. They are
            already part of ``applied`` or ``superseded``.
        row_by_row: Records that the slower row codec decoded one at a time, because the columnar decoder
            could not decode them with certainty. Their events are already part of the other counts.
    """

    read: int = 0
    applied: int = 0
    superseded: int = 0
    without_row: int = 0
    dead_lettered: int = 0
    filtered_out: int = 0
    row_by_row: int = 0

    def __add__(self, other: Account) -> Account:
        mine, theirs = self.as_counters(), other.as_counters()
        return Account(**{name: count + theirs[name] for name, count in mine.items()})

    def values(self) -> tuple[int, int, int, int, int]:
        """The five counts of the equation that ``check`` verifies: ``read``, ``applied``, ``superseded``,
        ``without_row`` and ``dead_lettered``.
        """
        return self.read, self.applied, self.superseded, self.without_row, self.dead_lettered

    def as_counters(self) -> dict[str, int]:
        """Returns the counts as a mapping from counter names to numbers."""
        return asdict(self)

    @classmethod
    def from_counters(cls, counters: Mapping[str, int]) -> Account:
        """Returns the account of a mapping from counter names to counts. Missing counts are 0."""
        return cls(**{name: counters.get(name, 0) for name in cls.__dataclass_fields__})

    def check(self, *, table: str) -> None:
        """Check that ``read`` equals the sum of the other counts.

        Raises:
            AccountingError: The counts do not add up to ``read``, or ``filtered_out`` is not between 0 and
                the applied and superseded events.
        """
        accounted = self.read - sum(self.values()[1:])
        numbers = ", ".join(f"{name} {count}" for name, count in self.as_counters().items())
        if accounted == 0:
            self._check_filtered_out(numbers, table)
            return
        raise AccountingError(
            "The counts of the batch do not add up: "
            f"{abs(accounted)} events are {'missing' if accounted > 0 else 'too many'} ({numbers}). "
            "The table is stopped, so that no later batch builds on wrong rows. Compare the table with its "
            "source, and report this with the log.",
            table=table,
        )

    def _check_filtered_out(self, numbers: str, table: str) -> None:
        """Raises AccountingError if the count ``filtered_out`` is impossible.

        A row that does not match the table's filter is a delete, so it must be applied or superseded.
        """
        if 0 <= self.filtered_out <= self.applied + self.superseded:
            return
        raise AccountingError(
            "The count of rows that the filter removed does not match the applied and superseded events: "
            f"{numbers}. The table is stopped, so that no later batch builds on wrong rows. Compare the "
            "table with its source, and report this with the log.",
            table=table,
        )


def account_of(
    counts: EventCounts,
    *,
    kafka_records: int,
    applied_rows: int,
    rejected: int,
    stale_rows: int = 0,
    row_by_row: int = 0,
) -> Account:
    """Returns the account of one batch.

    Args:
        counts: The counts of the tasks.
        kafka_records: The number of records that Kafka returned. A record may hold several events. Its events
            after the first are added from ``counts``.
        applied_rows: The number of rows that the target reports as written or deleted. A change of a primary
            key is two rows and one event.
        rejected: The number of bad events whose dead letters Kafka acknowledged.
        stale_rows: The number of rows that were not applied because the target had newer ones.
        row_by_row: The number of records that were decoded one at a time.
    """
    applied = applied_rows - counts.split_halves
    # If the target had newer rows for both keys of a key change, two rows are stale, but they are one event.
    stale = stale_rows + min(applied, 0)
    return Account(
        read=kafka_records + counts.read - counts.messages,
        applied=max(applied, 0),
        superseded=counts.superseded + stale,
        without_row=counts.filtered,
        dead_lettered=rejected,
        filtered_out=counts.unmatched,
        row_by_row=row_by_row,
    )


# Key in a status's details: the number of events without a row, by kind.
WITHOUT_ROW: Final = "without_row"


@dataclass(frozen=True)
class Filtered:
    """The number of events that change no row, by kind, in one batch or in several batches.

    ``last_ddl``: ``commit_ts``, ``kind`` and ``query`` of the newest stored DDL event, or None.
    """

    ddl: int = 0
    watermarks: int = 0
    messages: int = 0
    last_ddl: Mapping[str, Any] | None = None

    def __add__(self, other: Filtered) -> Filtered:
        ddl, watermarks, messages = (a + b for a, b in zip(self._counts(), other._counts(), strict=True))
        return Filtered(ddl, watermarks, messages, other.last_ddl or self.last_ddl)

    def _counts(self) -> tuple[int, int, int]:
        return self.ddl, self.watermarks, self.messages

    def as_details(self) -> dict[str, Any]:
        """Returns the counts and the last DDL event as a JSON document for the state store."""
        counts = dict(zip(("ddl", "watermarks", "messages"), self._counts(), strict=True))
        return {WITHOUT_ROW: counts, "last_ddl": None if self.last_ddl is None else dict(self.last_ddl)}

    @classmethod
    def from_details(cls, details: Mapping[str, Any]) -> Filtered:
        """Returns the counts in a JSON document that ``as_details`` created. Missing counts are 0."""
        counts = details.get(WITHOUT_ROW) or {}
        return cls(**counts, last_ddl=details.get("last_ddl"))


def filtered_of(counts: EventCounts, last_ddl: Mapping[str, Any] | None = None) -> Filtered:
    """Returns how many events of one batch change no row: DDL events, watermarks and other messages."""
    others = counts.filtered - counts.ddl - counts.watermarks
    return Filtered(counts.ddl, counts.watermarks, others, last_ddl)


def passed(progress: Progress | None, topic: str, filtered: Filtered) -> dict[str, Any]:
    """Returns a table's watermark and the counts in ``filtered``, as details for ``tidesink status``.

    ``watermark`` is the commit_ts that every partition has passed. After a rewind it is None, until each
    partition is applied again up to its offset from before the rewind.
    """
    topic_progress = progress.topics.get(topic) if progress else None
    watermark = (
        least_watermark(progress, topic)
        if progress and topic_progress and not topic_progress.read_again
        else None
    )
    return {"watermark": watermark, **filtered.as_details()}


def least_watermark(progress: Progress, topic: str) -> int | None:
    """Returns the commit_ts (TiDB TSO) up to which all changes of a topic were read.

    This is the smallest of the partitions' watermarks. A DDL event with a commit_ts up to it may be applied,
    and a cut (the state of all tables as of one commit_ts) may be made at it. The result is None until each
    partition has a watermark.
    """
    topic_progress = progress.topics.get(topic)
    marks = [part.watermark for part in topic_progress.partitions.values()] if topic_progress else []
    watermarks = [mark for mark in marks if mark is not None]
    return min(watermarks) if watermarks and len(watermarks) == len(marks) else None
