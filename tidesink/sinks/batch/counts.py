"""The counts of a batch, and the law over them: read = applied + superseded + without-row + dead-lettered.

The unit is the event. ``read`` is counted where the records are fetched; ``applied`` comes from the
target's own numbers of its commit; the rest is counted by the reduction. The three counts share no code, so
that the law can fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidesink.errors import AccountingError
from tidesink.sinks.state.progress import LastRecord, Progress

if TYPE_CHECKING:
    # Loads Arrow, which the command line starts without.
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
    """One topic-partition's share of a batch. Offsets are of events, the largest one met.

    ``waits``: the first offset with a row above the bound. ``passed``: that of the first watermark at or
    above it, behind which nothing was read (``batch.cuts``). ``writers``: by the registry id of a value
    schema, the span of the rows that were written with it. ``last``: the last record that was read, of
    whatever table, and its leader epoch; None if the records have no epoch.
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
    """The first undecodable record of a topic-partition: where, and why.

    ``schema_id``: the one in its value's bytes (its key's, where it has no value); None where one of the two
    has none.
    """

    place: Place
    offset: int
    error: str
    reason: str
    schema_id: int | None = None

    def __str__(self) -> str:
        return f"{self.error}: {self.place.topic}[{self.place.partition}]@{self.offset}: {self.reason}"


class Doubt(NamedTuple):
    """The first row of a topic-partition that is applied with a warning: where, and the warning."""

    place: Place
    offset: int
    reason: str


class Truncate(NamedTuple):
    """The first record of a topic-partition that empties the table."""

    place: Place
    offset: int


@dataclass(frozen=True)
class BatchSummary:
    """The counts of one reduced batch, in events unless said otherwise.

    ``read = row_events + filtered + bad + unplanned`` and
    ``row_events = upserts + deletes - split_halves + superseded``: a key change is one event with two
    rows, so ``upserts`` and ``deletes`` count rows to apply, and ``split_halves`` those among them
    which are the delete half of a key change whose event is counted with its other half.
    ``messages`` counts Kafka records, to be held against what was read from Kafka. ``ddl`` and
    ``watermarks`` are among ``filtered``.

    ``max_commit_ts`` is of every row event, ``min_commit_ts`` of the rows to apply.
    ``zero_dates``: values made null, by column, among the rows to apply; ``ambiguous_times``: local times
    that come twice, of which the policy chose one. ``key_range`` holds the smallest and largest value of the
    first key column among the rows to apply. ``doubted`` counts those among them with a
    warning: their checksum does not match, or a column of a delete's key may not have been sent;
    ``omitted`` those that leave out values which the target is to keep. ``unmatched`` counts row events, to
    apply or superseded, whose row the table's filter took out.
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
        """Whether something may be learnt of it: what the plan lacks, or which schemas its rows have."""
        return bool(self.unplanned or self.bad) or any(one.writers for one in self.places.values())

    @property
    def rows(self) -> int:
        """Rows a merge has to apply: one a key."""
        return self.upserts + self.deletes

    @property
    def applied(self) -> int:
        """Row events that the rows to apply stand for."""
        return self.rows - self.split_halves


def distinct(found: Iterable[Any]) -> tuple[Any, ...]:
    """The values in order, each once, without None."""
    return tuple(sorted({one for one in found if one is not None}))


def greatest(moments: Iterable[int | None]) -> int | None:
    """The greatest commit_ts; None where there is none."""
    return max((one for one in moments if one is not None), default=None)


def latest(*records: LastRecord | None) -> LastRecord | None:
    """Return the record with the greatest offset, or None if there is none."""
    return max((one for one in records if one is not None), default=None)


def least(moments: Iterable[int | None]) -> int | None:
    """The least commit_ts; None where there is none."""
    return min((one for one in moments if one is not None), default=None)


# The counters' names in what earlier versions stored.
_FORMER: Final = {"without_row": "filtered", "filtered_out": "unmatched", "row_by_row": "row_codec"}


@dataclass(frozen=True)
class Account:
    """The numbers of one batch, or of many added up, in events.

    A key change is one event, and the delete of an absent row is applied. ``without_row``: DDL,
    watermarks and messages that change no row. ``filtered_out`` is no part of the law's sum: so many of the
    applied and superseded ones are changes whose row the table's filter took out. Nor is ``row_by_row``: the
    records that were decoded one by one, which is slower, since no columnar step could prove them.
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
        """The numbers in a mapping by name, or by the name of earlier versions; missing ones are 0."""
        names = cls.__dataclass_fields__
        return cls(**{name: counters.get(name, counters.get(_FORMER.get(name, name), 0)) for name in names})

    def check(self, *, table: str) -> None:
        """Raise AccountingError where the law does not hold."""
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
        """A row that the filter took out is a delete: applied, or superseded."""
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
    """The account of one batch.

    ``kafka_records``: records Kafka gave. A record may hold several events, so what the summary counts
    above one a record is added. ``applied_rows``: rows by the target's own numbers; a key change is two
    rows and one event. ``rejected``: dead letters kept. ``stale_rows``: rows the target had newer ones of.
    """
    applied = applied_rows - summary.split_halves
    # Of a key change that the target had newer rows of, both halves are stale, and it is one event.
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


# In a status's details: how many events without a row there were of each kind.
WITHOUT_ROW: Final = "without_row"


@dataclass(frozen=True)
class Filtered:
    """The events that the law counts as without a row, by kind, of one batch or of many added up.

    ``last_ddl``: ``commit_ts``, ``kind`` and ``query`` of the newest DDL event that is kept, None where none
    is.
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
        """As the state store keeps it."""
        counts = dict(zip(("ddl", "watermarks", "messages"), self._counts(), strict=True))
        return {WITHOUT_ROW: counts, "last_ddl": None if self.last_ddl is None else dict(self.last_ddl)}

    @classmethod
    def from_details(cls, details: Mapping[str, Any]) -> Filtered:
        """What ``as_details`` made, in this version or an earlier one; nothing where there is nothing."""
        counts = details.get(WITHOUT_ROW) or details.get("filtered") or {}
        return cls(**counts, last_ddl=details.get("last_ddl"))


def filtered_of(summary: BatchSummary, last_ddl: Mapping[str, Any] | None = None) -> Filtered:
    """What one batch read that is no row."""
    others = summary.filtered - summary.ddl - summary.watermarks
    return Filtered(summary.ddl, summary.watermarks, others, last_ddl)


def passed(progress: Progress | None, topic: str, filtered: Filtered) -> dict[str, Any]:
    """What was read and is no row, and the watermark that every partition has passed, for ``status``.

    None while changes from before it are read again.
    """
    at = progress.topics.get(topic) if progress else None
    watermark = least_watermark(progress, topic) if progress and at and not at.read_again else None
    return {"watermark": watermark, **filtered.as_details()}


def least_watermark(progress: Progress, topic: str) -> int | None:
    """The commit_ts (TiDB TSO) that every partition of a topic has passed: all changes up to it were read.

    None where some partition brought no watermark yet. A DDL event committed at or before it stands behind
    no change that is still to come: that is when it may be applied, and where a cut may be made.
    """
    at = progress.topics.get(topic)
    marks = [part.watermark for part in at.partitions.values()] if at else []
    known = [mark for mark in marks if mark is not None]
    return min(known) if known and len(known) == len(marks) else None
