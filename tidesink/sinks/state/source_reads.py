"""The database rows that a table received, and the consequences for its dead letters.

A snapshot or resync reads rows in parts. Before a part is read, the offsets are fixed up to which the table's
changes are applied (ADR 32). Each earlier change was committed before the rows were read, so the rows show
this change or a later one. This also holds for a dead letter, which is a change that could not be decoded. If
it were applied later, it would undo the part's rows.

So each snapshot and resync stores two offsets of each partition in the table's progress: the offsets of its
first part and of its last. With ``L`` the offset of a letter about a row that was read:

- ``L < first``: each part was read after the letter's change. A finished resync *settles* the letter: it
  wrote a later version of the row, or deleted it. A snapshot deletes nothing. So the letter may be a delete
  that must still be applied, or one whose row came back: this is not known.
- ``first <= L < last``: it is not known if the row's part was read before or after the letter's change.
- ``last <= L``: the letter's change is applied after all parts, like any change.

A snapshot that is limited to some keys, or to a range of the key, has no consequence for other rows. Under
``sequence_by: source`` none of this is needed, because rows that are read have positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

# So many limited reads are remembered. Rows of older ones count as reads of any row.
MOST_LIMITED: Final = 8
# Offsets by topic and partition.
TopicOffsets = Mapping[str, Mapping[int, int]]
# ``open``: to be applied, according to this law. ``unsure``: not known.
Standing = Literal["open", "settled", "unsure"]


class Span(NamedTuple):
    """The offsets in a partition at which changes continued after the first part, and after the last."""

    first: int
    last: int


NOTHING: Final = Span(0, 0)
# Number of the reads of a version that did not record them; snapshots have numbers from 0 on.
_EARLIER: Final = -1


@dataclass(frozen=True)
class SourceRead:
    """A snapshot or resync with at least one applied part.

    Attributes:
        number: See ``SnapshotProgress``, also for ``keys`` and ``where``.
        spans: By topic and partition. A missing partition has the span (0, 0).
        settles: True if it is a finished resync.
    """

    number: int
    spans: Mapping[str, Mapping[int, Span]]
    settles: bool = False
    keys: str | None = None
    where: tuple[tuple[str, str, str], ...] = ()

    @property
    def limited(self) -> bool:
        """True if it is limited to some rows."""
        return self.keys is not None or bool(self.where)

    def span(self, topic: str, partition: int) -> Span:
        """Returns the offsets of a partition."""
        return self.spans.get(topic, {}).get(partition, NOTHING)


def standing_of(
    reads: Sequence[SourceRead],
    topic: str,
    partition: int,
    offset: int,
    has_read: Callable[[SourceRead], bool | None],
) -> Standing:
    """Returns the standing of a letter about a row.

    ``has_read``: returns True if a limited read includes the row; None if it is not known.
    """
    found: Standing = "open"
    for read in reads:
        span, known = read.span(topic, partition), not read.limited or has_read(read)
        if offset >= span.last or known is False:
            continue
        if read.settles and known and offset < span.first:
            return "settled"
        found = "unsure"
    return found


def earlier_reads(offsets: TopicOffsets) -> tuple[SourceRead, ...]:
    """Return the reads of a table whose snapshots were applied by a version that did not record them.

    Such a version recorded only the last of several snapshots. So all of them count as one read of all rows
    whose first part has unknown offsets. ``offsets``: those up to which changes are applied.
    """
    spans = {
        topic: {number: Span(0, offset) for number, offset in parts.items()}
        for topic, parts in offsets.items()
    }
    return (SourceRead(_EARLIER, spans),)


def with_part(
    reads: Sequence[SourceRead], read: SourceRead, offsets: TopicOffsets, *, begins: bool
) -> tuple[SourceRead, ...]:
    """Returns the reads after another applied part, after which changes continue at ``offsets``.

    ``read``: the read, without its spans. ``begins``: True if the part is its first one.
    """
    before = next((one for one in reads if one.number == read.number), None)

    def span(topic: str, partition: int, offset: int) -> Span:
        if before is None:
            # The offsets of the first part are not known if an earlier version applied it.
            return Span(offset if begins else 0, offset)
        known = before.span(topic, partition)
        return Span(known.first, max(known.last, offset))

    old = before.spans if before is not None else {}
    spans: dict[str, Mapping[int, Span]] = {**old}
    for topic, parts in offsets.items():
        new = {number: span(topic, number, offset) for number, offset in parts.items()}
        spans[topic] = {**old.get(topic, {}), **new}
    others = [one for one in reads if one.number != read.number]
    return _few([*others, replace(read, spans=spans)])


def rewound(reads: Sequence[SourceRead], topic: str, offsets: Mapping[int, int]) -> tuple[SourceRead, ...]:
    """Returns the reads after partitions of a topic are read again from some offsets.

    Changes that are applied again may be older than the rows of a part. So the standing of letters after
    these offsets is no longer known.
    """
    found = []
    for read in reads:
        parts = {
            number: Span(min(span.first, offsets[number]), span.last) if number in offsets else span
            for number, span in read.spans.get(topic, {}).items()
        }
        found.append(replace(read, spans={**read.spans, topic: parts}) if parts else read)
    return _few(found)


def _few(reads: Sequence[SourceRead]) -> tuple[SourceRead, ...]:
    """Returns the reads that still have a consequence, newest last."""
    found = _without_replaced(reads)
    limited = [one for one in found if one.limited]
    for old in limited[: max(0, len(limited) - MOST_LIMITED)]:
        found[found.index(old)] = SourceRead(old.number, old.spans)
    return tuple(_without_replaced(found))


def _without_replaced(reads: Sequence[SourceRead]) -> list[SourceRead]:
    return [
        one for at, one in enumerate(reads) if not any(_replaces(later, one) for later in reads[at + 1 :])
    ]


def _replaces(later: SourceRead, read: SourceRead) -> bool:
    """Returns True if a later read implies all consequences of an earlier one."""
    if later.limited and (later.keys, later.where) != (read.keys, read.where):
        return False
    if read.settles and not later.settles:
        return False
    pairs = [(later.span(topic, n), span) for topic, parts in read.spans.items() for n, span in parts.items()]
    return all(new.last >= old.last and (new.first >= old.first or not read.settles) for new, old in pairs)


def as_documents(reads: Sequence[SourceRead]) -> list[dict[str, Any]]:
    """Returns JSON-able mappings. A span with two equal offsets is one number."""
    return [
        {
            "number": one.number,
            "spans": {topic: _written(parts) for topic, parts in sorted(one.spans.items())},
            **({"settles": True} if one.settles else {}),
            **({} if one.keys is None else {"keys": one.keys}),
            **({"where": [[*bound] for bound in one.where]} if one.where else {}),
        }
        for one in reads
    ]


def _written(parts: Mapping[int, Span]) -> dict[str, Any]:
    return {str(n): [*one] if one.first < one.last else one.last for n, one in sorted(parts.items())}


def from_documents(documents: Sequence[Mapping[str, Any]]) -> tuple[SourceRead, ...]:
    """Restore reads from ``as_documents``. Raises KeyError, TypeError or ValueError for other input."""
    return tuple(
        SourceRead(
            int(one["number"]),
            {topic: _read(parts) for topic, parts in one["spans"].items()},
            bool(one.get("settles", False)),
            one.get("keys"),
            tuple((column, kind, text) for column, kind, text in one.get("where", ())),
        )
        for one in documents
    )


def _read(parts: Mapping[str, Any]) -> dict[int, Span]:
    return {
        int(number): Span(*map(int, found)) if isinstance(found, list) else Span(int(found), int(found))
        for number, found in parts.items()
    }
