"""The law of a history (``mode: history``) in plain Python, which every target is held to.

A key's events are ordered by (commit_ts, a delete before a write). Of several at one commit_ts one counts: a
write before a delete, since TiCDC splits an update into a delete and an insert of one commit_ts, and of equal
ones the first in Kafka, since the others are that one sent again. What a snapshot read of a key at a
commit_ts ranks before both. It begins a version where it is the first of the key; else nothing is left of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple

from tests.reduction_law import Key, OrderKey, row_events
from tidesink.errors import ProgressError
from tidesink.events import LOGICAL_BITS, ChangeEvent, Op, Row
from tidesink.sinks.laws.modes import FROM_COLUMN, READ_COLUMN, TO_COLUMN, HistoryNames

_EPOCH: Final = datetime(1970, 1, 1)


class Kind(IntEnum):
    """What a moment of a key is: of several at one commit_ts the greatest counts."""

    READ = 0
    DELETE = 1
    WRITE = 2


class Span(NamedTuple):
    """What is stored of one version: its ends, and whether it begins with a read.

    Both ends equal: the mark of a delete that ended none.
    """

    from_ts: int
    to_ts: int | None
    read: bool = False

    @property
    def kind(self) -> Kind:
        """What it begins with."""
        return Kind.DELETE if self.from_ts == self.to_ts else Kind.READ if self.read else Kind.WRITE


class Moment(NamedTuple):
    """One event or read of a key, with its commit_ts."""

    at: int
    kind: Kind


@dataclass(frozen=True)
class Difference:
    """What one key's new events or reads make of its stored rows.

    ``begun``: versions to write, where a mark or a read's version of the same ``from_ts`` may stand.
    ``ended``: stored versions with another end. ``marked``: deletes that end none, where a read's version of
    the same ``from_ts`` may stand. ``forgotten``: rows that go: marks of deletes that now end a version, and
    versions of reads that do not count any more.
    ``ends`` counts new deletes that ended a version, ``absent`` those that did not, ``stale`` the events
    that were known, and reads that do not count.
    """

    begun: tuple[Span, ...] = ()
    ended: tuple[Span, ...] = ()
    marked: tuple[int, ...] = ()
    forgotten: tuple[int, ...] = ()
    ends: int = 0
    absent: int = 0
    stale: int = 0


@dataclass(frozen=True)
class Versions:
    """A batch with one row for each key and commit_ts, and the count of row events that gave way to those.

    A row of None is a delete. ``halves`` counts among the rows the delete halves of key changes, whose
    event is counted with the half that writes.
    """

    rows: Mapping[Key, Mapping[int, Row | None]]
    superseded: int
    halves: int


def difference(stored: Iterable[Span], sent: Collection[Moment]) -> Difference:
    """What events, or reads, of one key, one a commit_ts, change in what is stored of it.

    Of what is stored it is enough to know, for events, the spans that have no end, or end at or after the
    first event; for reads the first span.
    """
    spans = {span.from_ts: span for span in stored}
    known = _moments(spans.values())
    all_new = {at: kind for at, kind in sent if at not in known or kind > known[at]}
    every = {**known, **all_new}
    # Only the first of a key can be a read that counts.
    ordered = [at for number, at in enumerate(sorted(every)) if every[at] is not Kind.READ or not number]
    kinds = {at: every[at] for at in ordered}
    new = {at: kind for at, kind in all_new.items() if at in kinds}
    next_of = dict(zip(ordered, [*ordered[1:], None], strict=True))
    begins = [at for at in ordered if kinds[at] is not Kind.DELETE]
    deletes = [at for at in ordered if kinds[at] is Kind.DELETE]
    # Of each delete, whether a version ends with it.
    ends = {at: kinds[last] is not Kind.DELETE for last, at in pairwise(ordered) if kinds[at] is Kind.DELETE}
    marks = [at for at in deletes if not ends.get(at)]
    return Difference(
        begun=tuple(Span(at, next_of[at], kinds[at] is Kind.READ) for at in begins if at in new),
        ended=tuple(
            spans[at]._replace(to_ts=next_of[at])
            for at in begins
            if at not in new and spans[at].to_ts != next_of[at]
        ),
        marked=tuple(at for at in marks if at not in spans or spans[at].kind is not Kind.DELETE),
        forgotten=tuple(at for at in spans if at not in begins and at not in marks),
        ends=sum(at in new and ends.get(at, False) for at in deletes),
        absent=sum(at in new and not ends.get(at, False) for at in deletes),
        stale=len(sent) - len(new),
    )


def _moments(spans: Iterable[Span]) -> dict[int, Kind]:
    """The events and the read that stored spans tell of."""
    found: dict[int, Kind] = {}
    for span in spans:
        found[span.from_ts] = max(found.get(span.from_ts, Kind.READ), span.kind)
        if span.to_ts is not None:
            found.setdefault(span.to_ts, Kind.DELETE)
    return found


def versions_of(events: Iterable[ChangeEvent], keys: tuple[str, ...]) -> Versions:
    """The events of one table as one row for each key and commit_ts.

    Raises:
        ProgressError: an event has no commit_ts.
        UnnamedRowError: an event lacks a key column.
    """
    found: dict[Key, dict[int, tuple[OrderKey, Row | None, bool]]] = {}
    read = 0
    for event in events:
        read += 1
        if event.commit_ts is None:
            raise ProgressError("mode: history needs a commit_ts in every event, and this one has none")
        for key, op, row in row_events(event, keys):
            writes = not row.half and op is not Op.DELETE
            place = row.position
            order = (int(writes), -place.partition, -place.offset, -place.index)
            kept = found.setdefault(key, {}).get(event.commit_ts)
            if kept is None or order > kept[0]:
                found[key][event.commit_ts] = (order, row.row, row.half)
    halves = sum(half for rows in found.values() for _, _, half in rows.values())
    counted = sum(map(len, found.values())) - halves
    rows = {key: {at: row for at, (_, row, _) in found[key].items()} for key in found}
    return Versions(rows, superseded=read - counted, halves=halves)


def instant_of(commit_ts: int) -> datetime:
    """The UTC time of a TSO, to the millisecond, without a zone."""
    return _EPOCH + timedelta(milliseconds=commit_ts >> LOGICAL_BITS)


def span_values(span: Span, names: HistoryNames) -> dict[str, object]:
    """What the columns of a history hold for one row."""
    return {
        FROM_COLUMN: span.from_ts,
        TO_COLUMN: span.to_ts,
        names.valid_from: instant_of(span.from_ts),
        names.valid_to: None if span.to_ts is None else instant_of(span.to_ts),
        names.current: span.to_ts is None,
        READ_COLUMN: span.read,
    }
