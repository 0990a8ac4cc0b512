"""Snapshots and resyncs of a table, and their consequences for the table's older dead letters.

A snapshot or resync reads a table's rows from the source database in parts. Before a part is read, the worker
notes the offset of each partition up to which the table's changes are applied (ADR 32). Each change before
that offset was committed before the part was read, so the part's rows show this change or a later one. The
same holds for a dead letter, whose change could not be decoded. If the change of such a letter were applied
later, it would replace a newer row.

So each snapshot and resync stores two offsets of each partition in the table's progress: the offset before
its first part (``first``) and the offset before its last part (``last``). For a dead letter at offset ``L``,
about a row that was read:

- ``L < first``: every part was read after the letter's change. A finished resync *settles* the letter,
  because it wrote a later version of the row or deleted it. A snapshot deletes no rows. So it is not known
  whether the letter is a delete that must still be applied, or whether the row was inserted again.
- ``first <= L < last``: it is not known whether the row's part was read before or after the letter's change.
- ``last <= L``: the letter's change is applied after all parts, like any other change.

A snapshot of some keys, or of a range of the key, has no consequence for other rows. With ``sequence_by:
source`` none of this is needed, because rows from the source database have positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

import msgspec

# Number of remembered reads that are limited to some rows. An older one is treated as a read of all rows.
MOST_LIMITED: Final = 8
# Offsets by topic and partition.
TopicOffsets = Mapping[str, Mapping[int, int]]
# ``open``: the letter must still be applied. ``settled``: a resync made it obsolete. ``unsure``: not known.
Standing = Literal["open", "settled", "unsure"]


class Span(NamedTuple):
    """Two offsets of a partition, stored for a snapshot or resync.

    Changes were applied up to ``first`` when its first part was read, and up to ``last`` when its last part
    was read.
    """

    first: int
    last: int


NOTHING: Final = Span(0, 0)


@dataclass(frozen=True)
class SourceRead:
    """A snapshot or resync of which at least one part is applied.

    Attributes:
        number: Number of the snapshot (``SnapshotProgress``).
        spans: By topic and partition, the offsets up to which changes were applied at its first and last
            part. A missing partition has (0, 0).
        settles: True if it is a finished resync.
        keys: Name of the document with the keys that it is limited to, or None.
        where: Bounds of the key that it is limited to, or empty.
    """

    number: int
    spans: Mapping[str, Mapping[int, Span]]
    settles: bool = False
    keys: str | None = None
    where: tuple[tuple[str, str, str], ...] = ()

    @property
    def limited(self) -> bool:
        """True if only some of the table's rows were read."""
        return self.keys is not None or bool(self.where)

    def span(self, topic: str, partition: int) -> Span:
        """Returns a partition's offsets at the first and last part; (0, 0) if none are recorded."""
        return self.spans.get(topic, {}).get(partition, NOTHING)


def standing_of(
    reads: Sequence[SourceRead],
    topic: str,
    partition: int,
    offset: int,
    has_read: Callable[[SourceRead], bool | None],
) -> Standing:
    """Returns whether a dead letter must still be applied: ``open``, ``settled`` or ``unsure``.

    ``reads``: the table's snapshots and resyncs. ``topic``, ``partition`` and ``offset`` locate the letter's
    record. ``has_read``: returns whether a limited snapshot read the letter's row; None if that is not known.
    """
    standing: Standing = "open"
    for read in reads:
        span, was_read = read.span(topic, partition), not read.limited or has_read(read)
        if offset >= span.last or was_read is False:
            continue
        if read.settles and was_read and offset < span.first:
            return "settled"
        standing = "unsure"
    return standing


def with_part(
    reads: Sequence[SourceRead], read: SourceRead, offsets: TopicOffsets, *, begins: bool
) -> tuple[SourceRead, ...]:
    """Returns the recorded reads after one more part of a snapshot or resync is applied.

    ``read``: the snapshot or resync, without spans. ``offsets``: where changes continue after the part, by
    topic and partition. ``begins``: True if it is the first part.
    """
    before = next((recorded for recorded in reads if recorded.number == read.number), None)

    def span(topic: str, partition: int, offset: int) -> Span:
        if before is None:
            # If the first part is not recorded, its offsets are not known.
            return Span(offset if begins else 0, offset)
        previous = before.span(topic, partition)
        return Span(previous.first, max(previous.last, offset))

    old = before.spans if before is not None else {}
    spans: dict[str, Mapping[int, Span]] = {**old}
    for topic, parts in offsets.items():
        new = {number: span(topic, number, offset) for number, offset in parts.items()}
        spans[topic] = {**old.get(topic, {}), **new}
    others = [recorded for recorded in reads if recorded.number != read.number]
    return _few([*others, replace(read, spans=spans)])


def rewound(reads: Sequence[SourceRead], topic: str, offsets: Mapping[int, int]) -> tuple[SourceRead, ...]:
    """Returns the recorded reads after a rewind of partitions to earlier offsets.

    Changes that are applied again may be older than the rows of a snapshot. So it is no longer known whether
    dead letters after these offsets must still be applied.
    """
    rewound_reads = []
    for read in reads:
        parts = {
            number: Span(min(span.first, offsets[number]), span.last) if number in offsets else span
            for number, span in read.spans.get(topic, {}).items()
        }
        rewound_reads.append(replace(read, spans={**read.spans, topic: parts}) if parts else read)
    return _few(rewound_reads)


def _few(reads: Sequence[SourceRead]) -> tuple[SourceRead, ...]:
    """Returns the reads that still matter for dead letters, newest last. Reads of some rows are limited in
    number: the oldest ones above the limit are treated as reads of all rows.
    """
    remaining = _without_replaced(reads)
    limited = [read for read in remaining if read.limited]
    for old in limited[: max(0, len(limited) - MOST_LIMITED)]:
        remaining[remaining.index(old)] = SourceRead(old.number, old.spans)
    return tuple(_without_replaced(remaining))


def _without_replaced(reads: Sequence[SourceRead]) -> list[SourceRead]:
    return [
        read
        for index, read in enumerate(reads)
        if not any(_replaces(later, read) for later in reads[index + 1 :])
    ]


def _replaces(later: SourceRead, read: SourceRead) -> bool:
    """Returns True if a later read has all consequences of an earlier read, which is then not needed."""
    if later.limited and (later.keys, later.where) != (read.keys, read.where):
        return False
    if read.settles and not later.settles:
        return False
    pairs = [(later.span(topic, n), span) for topic, parts in read.spans.items() for n, span in parts.items()]
    return all(new.last >= old.last and (new.first >= old.first or not read.settles) for new, old in pairs)


class StoredRead(msgspec.Struct, omit_defaults=True):
    """A ``SourceRead`` as it is stored. A span with two equal offsets is one number."""

    number: int
    spans: Mapping[str, Mapping[int, int | Span]]
    settles: bool = False
    keys: str | None = None
    where: tuple[tuple[str, str, str], ...] = ()

    @classmethod
    def of(cls, read: SourceRead) -> StoredRead:
        """Returns the stored form of a read."""
        spans = {
            topic: {n: span if span.first < span.last else span.last for n, span in sorted(parts.items())}
            for topic, parts in sorted(read.spans.items())
        }
        return cls(read.number, spans, read.settles, read.keys, read.where)

    @property
    def source_read(self) -> SourceRead:
        """The read whose stored form this is."""
        spans = {
            topic: {n: Span(span, span) if isinstance(span, int) else span for n, span in parts.items()}
            for topic, parts in self.spans.items()
        }
        return SourceRead(self.number, spans, self.settles, self.keys, self.where)
