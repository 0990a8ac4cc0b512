"""The law of a history (``mode: history``) in plain Python, which every target is held to.

A key's events are ordered by (commit_ts, a delete before a write). Of several at one commit_ts one counts: a
write before a delete, since TiCDC splits an update into a delete and an insert of one commit_ts, and of equal
ones the first in Kafka, since the others are that one sent again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

from tests.reduction_law import Key, OrderKey, row_events
from tidesink.errors import ProgressError
from tidesink.events import LOGICAL_BITS, ChangeEvent, Op, Row
from tidesink.sinks.targets.modes import FROM_COLUMN, TO_COLUMN, HistoryNames

_EPOCH: Final = datetime(1970, 1, 1)


class Span(NamedTuple):
    """What is stored of one version: its ends. Both equal: the mark of a delete that ended none."""

    from_ts: int
    to_ts: int | None

    @property
    def mark(self) -> bool:
        """Whether it is a delete's mark and no version."""
        return self.from_ts == self.to_ts


class Moment(NamedTuple):
    """One event of a key: its commit_ts, and whether it writes the row."""

    at: int
    writes: bool


@dataclass(frozen=True)
class Difference:
    """What one key's new events make of its stored rows.

    ``begun``: versions to write, where a mark of the same ``from_ts`` may stand. ``ended``: stored versions
    with another end. ``marked``: deletes that end none. ``forgotten``: marks of deletes that now end one.
    ``ends`` counts new deletes that ended a version, ``absent`` those that did not, ``stale`` the events
    that were known.
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


def difference(stored: Iterable[Span], events: Collection[Moment]) -> Difference:
    """What ``events`` of one key, one a commit_ts, change in what is stored of it.

    Of what is stored it is enough to know the spans that have no end, or end at or after the first event.
    """
    spans = {span.from_ts: span for span in stored}
    known = _moments(spans.values())
    new = {at: writes for at, writes in events if at not in known or (writes and not known[at])}
    merged = {**known, **new}
    ordered = sorted(merged)
    next_of = dict(zip(ordered, [*ordered[1:], None], strict=True))
    # Of each delete, whether the key's event before it writes, so that a version ends with it.
    ends = {at: merged[last] for last, at in pairwise(ordered) if not merged[at]}
    deletes = [at for at in ordered if not merged[at]]
    return Difference(
        begun=tuple(Span(at, next_of[at]) for at in ordered if merged[at] and at in new),
        ended=tuple(
            Span(at, next_of[at])
            for at in ordered
            if merged[at] and at not in new and spans[at].to_ts != next_of[at]
        ),
        marked=tuple(at for at in deletes if at not in spans and not ends.get(at)),
        forgotten=tuple(at for at in deletes if at in spans and ends.get(at)),
        ends=sum(at in new and ends.get(at, False) for at in deletes),
        absent=sum(at in new and not ends.get(at, False) for at in deletes),
        stale=len(events) - len(new),
    )


def _moments(spans: Iterable[Span]) -> dict[int, bool]:
    """The events that stored spans tell of."""
    found: dict[int, bool] = {}
    for span in spans:
        found[span.from_ts] = found.get(span.from_ts, False) or not span.mark
        if span.to_ts is not None:
            found.setdefault(span.to_ts, False)
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
    }
