"""Which tables of one topic stand at the same offsets, and what they read together.

Every table has progress of its own in its target, and reads on from there. Tables that stand at the same
offsets get the same ranges: the first to come decides them, the records are read from Kafka once and kept
until the last of these tables is done with them. A table that lags reads for itself, as far as the others
have come, so that it stands with them then; nobody waits for it.

Nothing here is remembered: after a kill the tables stand where their targets say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from tidesink.events import TableId
from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.ranges import OffsetRange, RecordSize, budget_of, furthest, plan_ranges, up_to

# So many kept reads of one topic wait for tables that have yet to come; of more, the oldest lets go.
MOST_KEPT: Final = 2

Offsets = Mapping[int, int]


class Kept(Protocol):
    """What several tables read together."""

    def release(self) -> None:
        """Let go of the records. Never fails."""


K = TypeVar("K", bound=Kept)


class Limits(NamedTuple):
    """The bounds of a batch, and what a record of the table that asks weighs."""

    max_records: int
    max_bytes: int
    size: RecordSize


class PlannedRead(NamedTuple, Generic[K]):
    """The offsets of one batch, and what is kept of them: None where the table reads for itself."""

    ranges: tuple[OffsetRange, ...]
    found: TopicOffsets
    kept: K | None


@dataclass
class _Place:
    """Where a table stands by its next offsets (None: not known yet), and will stand after its batch.

    ``away``: it is paused, has failed or is done, and comes for nothing.
    """

    at: Offsets | None = None
    heading: Offsets | None = None
    away: bool = False

    def may_come(self, starts: Offsets) -> bool:
        """Whether the table is to read from these offsets, as far as one can tell."""
        stands = self.heading or self.at
        return not self.away and (stands is None or stands == starts)


@dataclass
class _Open(Generic[K]):
    """A read that tables share: who is at it, and whether others may still join."""

    ranges: tuple[OffsetRange, ...]
    found: TopicOffsets
    starts: Offsets
    kept: K
    users: set[TableId] = field(default_factory=set)
    closed: bool = False


class TopicReads(Generic[K]):
    """The reads of one topic. Used by the lanes of all its tables, from several threads.

    ``keep`` makes what is kept of ranges; nothing is read before somebody asks it for records.
    """

    def __init__(self, keep: Callable[[tuple[OffsetRange, ...], RecordSize], K]) -> None:
        self._keep = keep
        self._size = RecordSize()
        self._lock = threading.Lock()
        self._places: dict[TableId, _Place] = {}
        self._open: list[_Open[K]] = []

    def expect(self, table: TableId) -> None:
        """Know of a table that is going to read; where it stands is not known yet."""
        with self._lock:
            self._places.setdefault(table, _Place())

    def plan(
        self, table: TableId, available: Sequence[OffsetRange], found: TopicOffsets, *, limits: Limits
    ) -> PlannedRead[K]:
        """What a table reads next of what is ``available`` to it; it is at work until it has ``settled``."""
        starts = {part.partition: part.start for part in available}
        with self._lock:
            place = self._places.setdefault(table, _Place())
            place.at, place.heading, place.away = starts, None, False
            joined = self._joined(starts, found)
            if joined is None:
                others = any(other.may_come(starts) for name, other in self._places.items() if name != table)
                ranges = self._ranges(available, limits._replace(size=self._size) if others else limits)
                if not others or not any(part.records for part in ranges):
                    place.heading = _ends(ranges)
                    self._let_go()
                    return PlannedRead(ranges, found, None)
                joined = self._opened(ranges, found, starts)
            joined.users.add(table)
            place.heading = _ends(joined.ranges)
            self._let_go()
            return PlannedRead(joined.ranges, joined.found, joined.kept)

    def settle(self, table: TableId, at: Offsets | None, *, away: bool) -> None:
        """A table is done with its batch, or failed, and stands where it says; None: where it stood."""
        with self._lock:
            place = self._places.setdefault(table, _Place())
            place.at, place.heading, place.away = at or place.at, None, away
            for read in self._open:
                read.users.discard(table)
            self._let_go()

    def release(self) -> None:
        """Let go of everything: the worker ends."""
        with self._lock:
            for read in self._open:
                read.kept.release()
            self._open = []

    def _joined(self, starts: Offsets, found: TopicOffsets) -> _Open[K] | None:
        for read in self._open:
            if not read.closed and read.starts == starts and read.found.topic_id == found.topic_id:
                return read
        return None

    def _ranges(self, available: Sequence[OffsetRange], limits: Limits) -> tuple[OffsetRange, ...]:
        stands = [place.heading or place.at for place in self._places.values()]
        meeting = furthest(offsets for offsets in stands if offsets is not None)
        most = budget_of(limits.max_records, limits.max_bytes, limits.size)
        return plan_ranges(up_to(available, meeting), max_records=most)

    def _opened(self, ranges: tuple[OffsetRange, ...], found: TopicOffsets, starts: Offsets) -> _Open[K]:
        read = _Open(ranges, found, starts, self._keep(ranges, self._size))
        self._open.append(read)
        joinable = [one for one in self._open if not one.closed]
        for old in joinable[:-MOST_KEPT]:
            # Its last tables are so slow that the others are two batches ahead: they lag, and read alone.
            old.closed = True
        return read

    def _let_go(self) -> None:
        """Release what nobody is at and nobody is going to come for."""
        for read in list(self._open):
            coming = not read.closed and any(one.may_come(read.starts) for one in self._places.values())
            if not read.users and not coming:
                self._open.remove(read)
                read.kept.release()


def _ends(ranges: Sequence[OffsetRange]) -> dict[int, int]:
    return {part.partition: part.end for part in ranges}
