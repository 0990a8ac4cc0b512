"""Which rows of the source's database a table was given, and when: what that means for its dead letters.

A snapshot or resync reads rows in parts. Before a part is read, the offsets are fixed up to which the table's
changes are applied (ADR 32). Each change before them was committed before the rows were read, so the rows
show it, or what came after it. That holds for a change that could not be decoded, too: a dead letter. Applied
later, it would undo what the part wrote.

So each snapshot and resync leaves two offsets of each partition in the table's progress: those of its first
part and those of its last. With ``L`` the offset of a letter of a row that was read:

- ``L < first``: each part was read after the letter's change. A resync that is over *settles* the letter: it
  wrote the row as it was later, or deleted it. A snapshot deletes nothing, so that the letter may be a delete
  that is still to be applied, or one whose row came back: nothing tells.
- ``first <= L < last``: nothing tells whether the row's part was read before the letter's change or after it.
- ``last <= L``: the letter's change is applied after all parts, as any change is.

One of some keys, or of a range of the key, says nothing of other rows. Under ``sequence_by: source`` none of
this is needed, since rows that are read have positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

# Of limited ones so many are remembered. What an older one read counts as read of any row.
MOST_LIMITED: Final = 8
# Offsets by topic and partition.
TopicOffsets = Mapping[str, Mapping[int, int]]
# ``open``: to be applied, as far as this law is concerned. ``unsure``: nothing tells.
Standing = Literal["open", "settled", "unsure"]


class Span(NamedTuple):
    """The offsets of a partition at which changes went on behind the first part, and behind the last."""

    first: int
    last: int


NOTHING: Final = Span(0, 0)
# Number of what a version without source reads had read; snapshots have numbers from 0 on.
_EARLIER: Final = -1


@dataclass(frozen=True)
class SourceRead:
    """A snapshot or resync, of which at least a part was applied.

    ``number``: as of ``SnapshotProgress``, as are ``keys`` and ``where``. ``spans``: by topic and partition;
    of a partition that is not in it the span is (0, 0). ``settles``: it is a resync, and over.
    """

    number: int
    spans: Mapping[str, Mapping[int, Span]]
    settles: bool = False
    keys: str | None = None
    where: tuple[tuple[str, str, str], ...] = ()

    @property
    def limited(self) -> bool:
        """Whether it is of some rows alone."""
        return self.keys is not None or bool(self.where)

    def span(self, topic: str, partition: int) -> Span:
        """The offsets of a partition."""
        return self.spans.get(topic, {}).get(partition, NOTHING)


def standing_of(
    reads: Sequence[SourceRead],
    topic: str,
    partition: int,
    offset: int,
    has_read: Callable[[SourceRead], bool | None],
) -> Standing:
    """How a letter of a row stands.

    ``has_read``: whether the row is one of those that a limited read is of; None: unknown.
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

    Of several snapshots that version recorded only the last one, so all of them count as one of all rows
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
    """The reads once another part of one is applied, behind which changes go on at ``offsets``.

    ``read`` is without its spans. ``begins``: the part is its first one.
    """
    before = next((one for one in reads if one.number == read.number), None)

    def span(topic: str, partition: int, offset: int) -> Span:
        if before is None:
            # The offsets of the first part are not known where an earlier version applied it.
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
    """The reads once partitions of a topic are read again from some offsets.

    Changes that are applied again may be older than what a part wrote: of letters behind these offsets
    nothing tells any more.
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
    """Those that still say something, the newest last."""
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
    """Whether all that one read says of letters follows from a later one."""
    if later.limited and (later.keys, later.where) != (read.keys, read.where):
        return False
    if read.settles and not later.settles:
        return False
    pairs = [(later.span(topic, n), span) for topic, parts in read.spans.items() for n, span in parts.items()]
    return all(new.last >= old.last and (new.first >= old.first or not read.settles) for new, old in pairs)


def as_documents(reads: Sequence[SourceRead]) -> list[dict[str, Any]]:
    """JSON-able mappings; a span whose offsets are the same is one number."""
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
    """The reads that ``as_documents`` wrote. Raises KeyError, TypeError or ValueError for others."""
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
