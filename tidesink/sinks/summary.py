"""What one batch held: a few numbers on the driver, however many events there were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

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
    "left_out",
    "unmatched",
)


class Place(NamedTuple):
    """One topic-partition."""

    topic: str
    partition: int


@dataclass(frozen=True)
class PlaceSummary:
    """One topic-partition's share of a batch. Offsets are of events, the largest one met."""

    messages: int
    max_offset: int
    max_commit_ts: int | None = None
    watermark: int | None = None


class BadRecord(NamedTuple):
    """The first undecodable record of a topic-partition: where, and why."""

    place: Place
    offset: int
    error: str
    reason: str

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
    ``zero_dates``: values made null, by column, among the rows to apply. ``key_range`` holds the
    smallest and largest value of the first key column among the rows to apply. ``doubted`` counts those
    among them whose checksum does not match, where that is asked and they are applied all the same;
    ``left_out`` those that leave out values which the target is to keep. ``unmatched`` counts row events, to
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
    left_out: int = 0
    unmatched: int = 0
    max_commit_ts: int | None = None
    min_commit_ts: int | None = None
    key_range: tuple[object, object] | None = None
    places: Mapping[Place, PlaceSummary] = field(default_factory=dict)
    zero_dates: Mapping[str, int] = field(default_factory=dict)
    bad_records: tuple[BadRecord, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    truncates: tuple[Truncate, ...] = ()
    unplanned_key_ids: tuple[int, ...] = ()
    unplanned_value_ids: tuple[int, ...] = ()
    unplanned_columns: tuple[str, ...] = ()
    mixed_keys: tuple[str, ...] = ()

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


def least(moments: Iterable[int | None]) -> int | None:
    """The least commit_ts; None where there is none."""
    return min((one for one in moments if one is not None), default=None)
