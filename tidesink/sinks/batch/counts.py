"""The counts of a batch, and the law over them: read = applied + superseded + without-row + dead-lettered.

All counts are in events. ``read`` is counted when the records are fetched. ``applied`` comes from the
numbers that the target reports for its commit. The reduction counts the rest. The three counts share no
code, so that a fault in one of them breaks the law.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidesink.errors import AccountingError
from tidesink.sinks.state.progress import LastRecord, Progress

if TYPE_CHECKING:
    # This import loads Arrow, and the command line starts without it.
    from tidesink.sinks.batch.schema_rows import RowSpan

# The members of a ``BatchSummary`` that are sums over its topic-partitions.
SUMS: Final = (
    "messages",
    "read",
    "upserts",
    "deletes",
    "split_halves",
    "superseded",
    "filtered",
    "ddl",
    "watermarks",
    "bad",
    "unplanned",
    "doubted",
    "omitted",
    "unmatched",
)


class Place(NamedTuple):
    """One topic-partition."""

    topic: str
    partition: int


@dataclass(frozen=True)
class PlaceSummary:
    """One topic-partition's share of a batch.

    Attributes:
        messages: The number of Kafka records.
        max_offset: The largest offset of an event.
        max_commit_ts: The greatest commit_ts of a row event.
        watermark: The greatest watermark.
        waits: The first offset with a row above the bound.
        passed: The offset of the first watermark at or above the bound. Nothing after it was read
            (``batch.cuts``).
        writers: The span of the rows that were written with each value schema, by registry id.
        last: The last record that was read, of any table, with its leader epoch. None if the records have
            no epoch.
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
    """The first record of a topic-partition with a schema id that the plan lacks."""

    place: Place
    offset: int


class BadRecord(NamedTuple):
    """The first undecodable record of a topic-partition: its location and the reason.

    ``schema_id``: the id in the bytes of the value, or of the key if there is no value. None if the key or
    the value has no id.
    """

    place: Place
    offset: int
    error: str
    reason: str
    schema_id: int | None = None

    def __str__(self) -> str:
        return f"{self.error}: {self.place.topic}[{self.place.partition}]@{self.offset}: {self.reason}"


class Doubt(NamedTuple):
    """The first row of a topic-partition that is applied with a warning: its location and the warning."""

    place: Place
    offset: int
    reason: str


class Truncate(NamedTuple):
    """The first record of a topic-partition that empties the table."""

    place: Place
    offset: int


@dataclass(frozen=True)
class BatchSummary:
    """The counts of one reduced batch, in events unless stated otherwise.

    ``read = row_events + filtered + bad + unplanned`` and
    ``row_events = upserts + deletes - split_halves + superseded``. A key change is one event with two rows.
    So ``upserts`` and ``deletes`` count rows to apply. ``split_halves`` counts the deletes that are one half
    of a key change, because their event is counted with the other half.

    ``messages`` counts Kafka records, to be compared with the records that were fetched. ``ddl`` and
    ``watermarks`` are part of ``filtered``. ``unmatched`` counts row events, applied or superseded, whose
    row the table's filter removed.

    These are about the rows to apply:

    - ``doubted`` counts rows with a warning: their checksum does not match, or a column of a delete's key
      may not have been sent.
    - ``omitted`` counts rows that omit values which the target keeps.
    - ``min_commit_ts`` is their least commit_ts. ``max_commit_ts`` is the greatest of every row event.
    - ``key_range`` is the smallest and the largest value of the first key column.
    - ``zero_dates`` counts values that were set to null, by column.
    - ``ambiguous_times`` counts local times that occur twice, of which the policy chose one, by column.
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
    doubted: int = 0
    omitted: int = 0
    unmatched: int = 0
    max_commit_ts: int | None = None
    min_commit_ts: int | None = None
    key_range: tuple[object, object] | None = None
    places: Mapping[Place, PlaceSummary] = field(default_factory=dict)
    zero_dates: Mapping[str, int] = field(default_factory=dict)
    ambiguous_times: Mapping[str, int] = field(default_factory=dict)
    bad_records: tuple[BadRecord, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    truncates: tuple[Truncate, ...] = ()
    unplanned_key_ids: tuple[int, ...] = ()
    unplanned_value_ids: tuple[int, ...] = ()
    unplanned_columns: tuple[str, ...] = ()
    unplanned_records: tuple[UnplannedRecord, ...] = ()
    mixed_keys: tuple[str, ...] = ()

    @property
    def is_to_learn(self) -> bool:
        """True if the batch shows something new: what the plan lacks, or which schemas its rows have."""
        return bool(self.unplanned or self.bad) or any(one.writers for one in self.places.values())

    @property
    def rows(self) -> int:
        """The number of rows that a merge applies: one per key."""
        return self.upserts + self.deletes

    @property
    def applied(self) -> int:
        """The number of row events that the rows to apply represent."""
        return self.rows - self.split_halves


def distinct(found: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the distinct values in order, without None."""
    return tuple(sorted({one for one in found if one is not None}))


def greatest(moments: Iterable[int | None]) -> int | None:
    """Returns the greatest commit_ts, or None if all are None."""
    return max((one for one in moments if one is not None), default=None)


def latest(*records: LastRecord | None) -> LastRecord | None:
    """Returns the record with the greatest offset, or None if all are None."""
    return max((one for one in records if one is not None), default=None)


def least(moments: Iterable[int | None]) -> int | None:
    """Returns the least commit_ts, or None if all are None."""
    return min((one for one in moments if one is not None), default=None)


# Names of the counters in documents of earlier versions.
_FORMER: Final = {"without_row": "filtered", "filtered_out": "unmatched", "row_by_row": "row_codec"}


@dataclass(frozen=True)
class Account:
    """The numbers of one batch, or the sums of many batches, in events.

    A key change is one event, and the delete of an absent row counts as applied. ``without_row``: DDL,
    watermarks and messages that change no row.

    Two numbers are not part of the law's sum. ``filtered_out``: applied and superseded changes whose row the
    table's filter removed. ``row_by_row``: records that were decoded one at a time, which is slower, because
    no columnar step could prove their values.
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
        """The numbers in the order of the law."""
        return self.read, self.applied, self.superseded, self.without_row, self.dead_lettered

    def as_counters(self) -> dict[str, int]:
        """The numbers by name."""
        return asdict(self)

    @classmethod
    def from_counters(cls, counters: Mapping[str, int]) -> Account:
        """Reads the numbers from a mapping by their current or earlier names; missing ones are 0."""
        names = cls.__dataclass_fields__
        return cls(**{name: counters.get(name, counters.get(_FORMER.get(name, name), 0)) for name in names})

    def check(self, *, table: str) -> None:
        """Raise AccountingError if the law does not hold."""
        accounted = self.read - sum(self.values()[1:])
        numbers = ", ".join(f"{name} {count}" for name, count in self.as_counters().items())
        if accounted == 0:
            self._check_filtered_out(numbers, table)
            return
        raise AccountingError(
            f"{abs(accounted)} events are {'missing' if accounted > 0 else 'too many'}: {numbers}. The table "
            "is stopped, so that no later batch builds on wrong rows. Compare the table with its source, and "
            "report this with the log.",
            table=table,
        )

    def _check_filtered_out(self, numbers: str, table: str) -> None:
        """A row that the filter removed is a delete, so it was applied or superseded."""
        if 0 <= self.filtered_out <= self.applied + self.superseded:
            return
        raise AccountingError(
            "The count of rows that the filter removed does not match the applied and superseded events: "
            f"{numbers}. The table is stopped, so that no later batch builds on wrong rows. Compare the "
            "table with its source, and report this with the log.",
            table=table,
        )


def account_of(
    summary: BatchSummary,
    *,
    kafka_records: int,
    applied_rows: int,
    rejected: int,
    stale_rows: int = 0,
    row_by_row: int = 0,
) -> Account:
    """Returns the account of one batch.

    Args:
        summary: The counts of the tasks.
        kafka_records: Records that Kafka returned. A record may hold several events, so the summary's
            additional events are added.
        applied_rows: Rows by the target's own numbers. A key change is two rows and one event.
        rejected: Bad events whose dead letters were acknowledged.
        stale_rows: Rows that were not applied because the target had newer ones.
        row_by_row: Records that were decoded one at a time.
    """
    applied = applied_rows - summary.split_halves
    # If the target had newer rows of a key change, both halves are stale, but it is one event.
    stale = stale_rows + min(applied, 0)
    return Account(
        read=kafka_records + summary.read - summary.messages,
        applied=max(applied, 0),
        superseded=summary.superseded + stale,
        without_row=summary.filtered,
        dead_lettered=rejected,
        filtered_out=summary.unmatched,
        row_by_row=row_by_row,
    )


# Key in a status's details: the number of events without a row, by kind.
WITHOUT_ROW: Final = "without_row"


@dataclass(frozen=True)
class Filtered:
    """Events that the law counts as without a row, by kind, of one batch or of many batches.

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
        """Returns the document that the state store keeps."""
        counts = dict(zip(("ddl", "watermarks", "messages"), self._counts(), strict=True))
        return {WITHOUT_ROW: counts, "last_ddl": None if self.last_ddl is None else dict(self.last_ddl)}

    @classmethod
    def from_details(cls, details: Mapping[str, Any]) -> Filtered:
        """Reads a document of ``as_details``, of this or an earlier version. Missing counts are 0."""
        counts = details.get(WITHOUT_ROW) or details.get("filtered") or {}
        return cls(**counts, last_ddl=details.get("last_ddl"))


def filtered_of(summary: BatchSummary, last_ddl: Mapping[str, Any] | None = None) -> Filtered:
    """Returns the counts of one batch's events without a row."""
    others = summary.filtered - summary.ddl - summary.watermarks
    return Filtered(summary.ddl, summary.watermarks, others, last_ddl)


def passed(progress: Progress | None, topic: str, filtered: Filtered) -> dict[str, Any]:
    """Returns the events without a row, and the watermark that every partition has passed, for ``status``.

    The watermark is None while earlier changes are read again.
    """
    at = progress.topics.get(topic) if progress else None
    watermark = least_watermark(progress, topic) if progress and at and not at.read_again else None
    return {"watermark": watermark, **filtered.as_details()}


def least_watermark(progress: Progress, topic: str) -> int | None:
    """Returns the commit_ts (TiDB TSO) that every partition of a topic has passed.

    All changes up to it were read. So a DDL event committed at or before it may be applied, and a cut may be
    made at it. None if some partition has not sent a watermark yet.
    """
    at = progress.topics.get(topic)
    marks = [part.watermark for part in at.partitions.values()] if at else []
    known = [mark for mark in marks if mark is not None]
    return min(known) if known and len(known) == len(marks) else None
