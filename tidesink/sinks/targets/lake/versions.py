"""What a batch of a history becomes in a lake's files, by the versions that the table has of its keys.

The law is that of ``targets.modes``, which ``lake.merge`` has on frames. A stored version ends with the first
event of its key after its begin, and one that begins with a read goes with any event before. Nothing else
decides it: the tasks that locate it know it (``Events``). What becomes of events, of reads and of the marks
of deletes depends on all that is stored next to them (``changes``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.errors import AccountingError
from tidesink.events import LOGICAL_BITS
from tidesink.sinks.spark.payloads import UPSERT
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch
from tidesink.sinks.targets.lake.rows import (
    FileColumn,
    Mask,
    NotAsFilesError,
    Places,
    RowRules,
    check_values,
    keys_of,
    matched,
    numbered,
)
from tidesink.sinks.targets.modes import FROM_COLUMN, READ_COLUMN, TO_COLUMN, HistoryNames
from tidesink.typemap.arrow import canonical_floats

COMMIT_TS: Final = "_commit_ts"
# In a table of events or reads: what each is. Of several at one commit_ts the greatest counts.
_KIND: Final = "_tidesink_kind"
_READ, _DELETE, _WRITE = range(3)
# In a table of stored versions: whether each begins with a read.
_BEGAN_READ: Final = "_tidesink_began_read"
# In a table of stored versions: the commit_ts of the event that may change each, null where none does.
CHANGED_BY: Final = "_tidesink_changed_by"


class Counts(NamedTuple):
    """What a batch changes in a history, in rows, and what became of its events.

    ``begun`` and ``marked``, of which ``replaced`` stand in a stored row's place, ``ended`` and ``forgotten``
    are rows to write or remove. Of the events ``ends`` are new deletes that ended a version, ``absent`` those
    that did not, ``stale`` what was known, and reads that do not count. ``kept``: marks that were located,
    and are written to files as they were.
    """

    begun: int = 0
    replaced: int = 0
    ended: int = 0
    marked: int = 0
    forgotten: int = 0
    ends: int = 0
    absent: int = 0
    stale: int = 0
    kept: int = 0

    @property
    def rows(self) -> tuple[int, int, int]:
        """Rows that the target inserts, updates and deletes."""
        return self.begun - self.replaced + self.marked, self.ended + self.replaced, self.forgotten

    @property
    def in_files(self) -> tuple[int, int]:
        """Rows that files get, and rows of files that are marked as deleted."""
        again = self.ended + self.kept
        return self.begun + self.marked + again, self.replaced + self.forgotten + again

    def result(self, version: str) -> ApplyResult:
        """What the batch did."""
        return ApplyResult(self.begun, 0, self.ends, self.absent, version, self.stale)


@dataclass(frozen=True)
class VersionRules:
    """How a batch's events become versions, as ``RowRules`` has it of rows. ``reads``: they are reads."""

    names: HistoryNames
    reads: bool = False
    keeps: ClassVar = False
    appends: ClassVar = False
    fields: ClassVar = ["_op", "key", "after", COMMIT_TS]

    def compares(self, _files: Collection[object]) -> bool:
        """Always: events of one batch end each other's versions, and may be in several tasks."""
        return True

    def stored_columns(self, columns: Sequence[FileColumn], _kept: Collection[str]) -> tuple[FileColumn, ...]:
        """The columns whose stored values a version keeps when it ends."""
        own = {*self.names.own} - {READ_COLUMN}
        return tuple(one for one in columns if not one.key and one.source not in own)

    def omitted(self, _rows: pa.Table) -> list[str]:
        """None."""
        return []

    def keys(self, rows: pa.Table, columns: Sequence[FileColumn]) -> tuple[pa.Table, pa.Table]:
        """The events, as ``changes`` takes them, and no others.

        Raises:
            TargetError: a key has no value.
        """
        writes = np.asarray(pc.equal(rows["_op"], UPSERT))
        kinds = np.where(writes, _READ if self.reads else _WRITE, _DELETE)
        found = _events_of(rows, columns).append_column(_KIND, pa.array(kinds))
        return found, found.slice(0, 0)

    def written(
        self, rows: pa.Table, columns: Sequence[FileColumn], stored: tuple[pa.Table, pa.Table] | None
    ) -> pa.Table:
        """What is written to files for a batch's rows: versions and marks, and stored ones that they change.

        ``stored``: ``written`` and ``again`` of ``Changes``.

        Raises:
            TargetError: a row has no value in a column that takes no NULL.
        """
        assert stored is not None  # noqa: S101  (``compares``)
        written, again = stored
        events = _events_of(rows, columns)
        at = matched(events, written.select(events.column_names))
        makes = pa.array(at >= 0)
        new, ends = rows.filter(makes), written[TO_COLUMN].take(pa.array(at[at >= 0]))

        def sent(column: FileColumn) -> pa.Array:
            if column.source == READ_COLUMN:
                return pa.repeat(self.reads, len(new))
            return column.cast(pc.struct_field(new["key" if column.key else "after"], [column.source]))

        found = self._versions(columns, new[COMMIT_TS], ends, sent)
        by = again.select([*events.column_names[:-1], CHANGED_BY]).rename_columns(events.column_names)
        mine = again.filter(pa.array(matched(by, events) >= 0))
        return pa.concat_tables([found, self.changed(columns, mine)])

    def changed(self, columns: Sequence[FileColumn], stored: pa.Table) -> pa.Table:
        """Stored versions as they are written to files, with the ends that they have in ``stored``."""
        names = stored.column_names

        def kept(column: FileColumn) -> pa.Array:
            found = stored[column.name] if column.name in names else pa.nulls(len(stored), column.type)
            # A mark that is made of a version's end has no stored row of its own.
            is_known = column.source == READ_COLUMN and _BEGAN_READ in names
            return pc.coalesce(found, stored[_BEGAN_READ]) if is_known else found

        return self._versions(columns, stored[FROM_COLUMN], stored[TO_COLUMN], kept)

    def _versions(
        self,
        columns: Sequence[FileColumn],
        begin: pa.ChunkedArray,
        end: pa.ChunkedArray,
        values: Callable[[FileColumn], pa.Array],
    ) -> pa.Table:
        own = {
            FROM_COLUMN: begin,
            TO_COLUMN: end,
            self.names.valid_from: _microseconds(begin),
            self.names.valid_to: _microseconds(end),
            self.names.current: pc.is_null(end),
        }
        arrays = [one.cast(own[one.source]) if one.source in own else values(one) for one in columns]
        for column, found in zip(columns, arrays, strict=True):
            check_values(column, found)
        return pa.table(arrays, schema=pa.schema([column.field for column in columns]))


def rules_of(batch: ReducedBatch) -> RowRules | VersionRules:
    """The rules of a batch."""
    return RowRules.of(batch) if batch.history is None else VersionRules(batch.history, batch.reads)


def _events_of(rows: pa.Table, columns: Sequence[FileColumn]) -> pa.Table:
    """The keys of events, and their commit_ts behind these."""
    return keys_of(rows, columns).append_column(COMMIT_TS, rows[COMMIT_TS])


def _microseconds(moments: pa.ChunkedArray) -> pa.ChunkedArray:
    """The instants of commit timestamps, to the millisecond."""
    return pc.multiply(pc.shift_right(moments, LOGICAL_BITS), 1000)


# A number that is no commit_ts: there is none, or none yet.
NO_MOMENT: Final = -1


class Spans(NamedTuple):
    """Ends of stored versions, and which of them begin with a read. Both ends equal: a delete's mark."""

    begin: Places
    end: Places
    read: Mask

    @classmethod
    def of(cls, rows: pa.Table, begin: str, end: str, read: str) -> Spans:
        """Those of rows, in columns of these names."""
        flags = pc.fill_null(rows[read], False)
        return cls(numbers_of(rows[begin]), numbers_of(rows[end]), np.asarray(flags, bool))

    @property
    def mark(self) -> Mask:
        """Which are marks."""
        found: Mask = self.begin == self.end
        return found

    @property
    def kinds(self) -> Places:
        """What each begins with."""
        found: Places = np.where(self.mark, _DELETE, np.where(self.read, _READ, _WRITE))
        return found

    def filtered(self, wanted: Mask) -> Spans:
        """Some of them."""
        return Spans(self.begin[wanted], self.end[wanted], self.read[wanted])


class Near(NamedTuple):
    """Of stored versions: which ``changes`` must know, the event or read that each changes by, which go.

    ``by`` is its commit_ts, -1 for none.
    """

    near: Mask
    by: Places
    goes: Mask


class Events:
    """A batch's events or reads, to be asked about stored versions one by one; ``keys`` has each key once."""

    def __init__(self, events: pa.Table, names: Sequence[str]) -> None:
        number = numbered([canonical_floats(events[name]) for name in names], events.num_rows)
        firsts = np.unique(number, return_index=True)[1]
        self.keys = events.select(names).take(pa.array(firsts))
        at, kinds = events[COMMIT_TS].to_numpy(), events[_KIND].to_numpy()
        order = np.lexsort((at, number))
        # Behind the last event one of no key, for what finds none.
        self._key = np.append(number[order], NO_MOMENT)
        self._at = np.append(at[order], NO_MOMENT)
        self._writes = np.append(kinds[order] == _WRITE, False)
        self._are_reads = bool((kinds == _READ).any())
        self._moments = np.unique(at)
        self._places = self._place(number[order], at[order], "left")

    def changing(self, keys: Places, spans: Spans) -> Near:
        """What the events say of stored versions. A mark may stay, where something stored is between the two.

        ``keys`` are numbers of ``self.keys``.
        """
        first = self._at[np.searchsorted(self._key[:-1], keys)]
        if self._are_reads:
            # Only the first that is stored of a key matters: no version of an event ends with a read.
            least = np.full(self.keys.num_rows, np.iinfo(np.int64).max)
            np.minimum.at(least, keys, spans.begin)
            near = spans.begin == least[keys]
            goes = near & (spans.read | spans.mark) & (first < spans.begin)
            return Near(near, np.where(goes, first, NO_MOMENT), goes & spans.read)
        near = (spans.end == NO_MOMENT) | (spans.end >= first)
        goes = spans.read & (first <= spans.begin)
        here = np.searchsorted(self._places, self._place(keys, spans.begin, "left"))
        after = np.searchsorted(self._places, self._place(keys, spans.begin, "right"))
        following = self._at[self._of(keys, after)]
        ended = (following != NO_MOMENT) & ((spans.end == NO_MOMENT) | (following < spans.end))
        version = np.where(goes, first, np.where(ended, following, NO_MOMENT))
        replaced = self._writes[self._of(keys, here)] & (after > here)
        before = self._of(keys, here - 1)
        mark = np.where(replaced, spans.begin, np.where(self._writes[before], self._at[before], NO_MOMENT))
        return Near(near, np.where(spans.mark, mark, version), goes)

    def _place(self, keys: Places, at: Places, side: Literal["left", "right"]) -> Places:
        """Numbers that are in the order of key and moment."""
        found: Places = keys * (len(self._moments) + 1) + np.searchsorted(self._moments, at, side)
        return found

    def _of(self, keys: Places, events: Places) -> Places:
        """The numbers of events, -1 for those of another key."""
        found: Places = np.where(self._key[events] == keys, events, -1)
        return found


class Changes(NamedTuple):
    """What a batch changes.

    ``written``: the events that make a row, by key and commit_ts, with its end. ``again``: rows of what is
    stored: versions and marks as they will be, and marks of deletes that end no version any more.
    Each is written with the event ``CHANGED_BY``.
    """

    written: pa.Table
    again: pa.Table
    counts: Counts


def changes(events: pa.Table, parts: Iterable[pa.Table], names: Sequence[str], *, ended: bool) -> Changes:
    """What a batch's events make of what is stored next to them, in ``parts``.

    ``names`` are the key's columns. ``ended``: versions that end are written by whoever located them.

    Raises:
        AccountingError: the table has several rows of one version.
        NotAsFilesError: versions of a key overlap.
    """
    none = np.empty(0, np.int64)
    empty = spans_of(events.select(names).slice(0, 0), Spans(none, none, none > 0), none, none > 0)
    stored = pa.concat_tables([empty, *parts], promote_options="default")
    count, rows = events.num_rows, stored.num_rows
    joined = (pa.chunked_array([*events[name].chunks, *stored[name].chunks]) for name in names)
    keys = map(canonical_floats, joined)
    key = numbered(keys, count + rows)
    spans, by = Spans.of(stored, FROM_COLUMN, TO_COLUMN, _BEGAN_READ), numbers_of(stored[CHANGED_BY])
    begin, end, mark = spans.begin, spans.end, spans.mark
    closed = (end != NO_MOMENT) & ~mark
    moments = _Moments(
        np.concatenate([key, key[count:][closed]]),
        np.concatenate([numbers_of(events[COMMIT_TS]), begin, end[closed]]),
    )
    of_event, of_begin, of_end = np.split(moments.numbers, (count, count + rows))
    if len(np.unique(of_begin)) != rows:
        raise AccountingError(
            f"the table has {rows} rows of {len(np.unique(of_begin))} versions next to the batch's events: "
            "another program wrote rows of versions that were there already. Remove the rows that are too "
            "many; nothing was written"
        )
    sent = moments.greatest(of_event, events[_KIND].to_numpy())
    held = moments.greatest(of_begin, spans.kinds)
    known = np.maximum(held, moments.greatest(of_end, np.full(len(of_end), _DELETE)))
    kind = np.maximum(sent, known)
    counts = (kind != _READ) | moments.first
    following, last = moments.beside(counts)
    version, deletes = counts & (kind != _DELETE), kind == _DELETE
    before = version[last] & (last != NO_MOMENT)
    begins, ends = version & (known != kind), version & (known == kind)
    ends &= moments.greatest(of_begin, end) != following
    marks, forgets = deletes & ~before & (held != _DELETE), (held != NO_MOMENT) & (deletes & before | ~counts)
    gone = (begins | marks | forgets)[of_begin]
    kept = mark & ~gone & (by != NO_MOMENT)
    ended_by = np.where(ends, following, NO_MOMENT)[of_begin]
    if (ended_by != by)[~mark & ~gone].any() or (by == NO_MOMENT)[gone].any():
        raise NotAsFilesError("the table has versions of one key that overlap")
    to = np.where(begins, following, moments.at)[of_event]
    written = events.select([*names, COMMIT_TS]).append_column(TO_COLUMN, _optional(to))
    bare = marks[of_end] & (sent[of_end] == NO_MOMENT)
    changed = kept | (~mark & ~gone & (by != NO_MOMENT) & (not ended))
    final = spans._replace(end=np.where(mark, end, by))
    ends_of = Spans(end[closed], end[closed], np.zeros(closed.sum(), bool))
    again = [
        spans_of(stored, final, by, changed),
        spans_of(stored.select(names).filter(pa.array(closed)), ends_of, by[closed], bare),
    ]
    deleted, stale = (sent == _DELETE) & (known < sent), (sent != NO_MOMENT) & ((known >= sent) | ~counts)
    replaced = (begins | marks) & (held != NO_MOMENT)
    sums = (begins, replaced, ends, marks, forgets, deleted & before, deleted & ~before, stale, kept)
    return Changes(
        written.filter(pa.array((begins | marks)[of_event])),
        pa.concat_tables(again, promote_options="default"),
        Counts(*(int(one.sum()) for one in sums)),
    )


class _Moments:
    """The distinct moments of keys, in their order; ``numbers``: that of each one that was given.

    ``at``: their commit_ts. ``first``: the moment is the first of its key.
    """

    def __init__(self, keys: Places, at: Places) -> None:
        order = np.lexsort((at, keys))
        keys, at = keys[order], at[order]
        distinct = np.append(True, (keys[1:] != keys[:-1]) | (at[1:] != at[:-1]))
        self.numbers = np.empty(len(order), np.int64)
        self.numbers[order] = np.cumsum(distinct) - 1
        self._keys, self.at = keys[distinct], at[distinct]
        self.first = np.append(True, self._keys[1:] != self._keys[:-1])[: len(self.at)]

    def beside(self, counted: Mask) -> tuple[Places, Places]:
        """Of each moment the commit_ts of its key's next that is counted, and the number of the last one.

        -1 where there is none.
        """
        counts = len(self.at)
        numbers = np.arange(counts)
        following = np.append(np.where(counted, numbers, counts), [counts])
        following = np.minimum.accumulate(following[::-1])[::-1][1:]
        last = np.maximum.accumulate(np.append([NO_MOMENT], np.where(counted, numbers, NO_MOMENT)))[:-1]
        keys, at = np.append(self._keys, NO_MOMENT), np.append(self.at, NO_MOMENT)
        return (
            np.where(keys[following] == self._keys, at[following], NO_MOMENT),
            np.where(keys[last] == self._keys, last, NO_MOMENT),
        )

    def greatest(self, moments: Places, values: npt.NDArray[Any]) -> Places:
        """The greatest of the values that are given for each moment, -1 where there is none."""
        found = np.full(len(self.at), -1)
        np.maximum.at(found, moments, values.astype(np.int64))
        return found


def spans_of(rows: pa.Table, spans: Spans, by: Places, wanted: Mask) -> pa.Table:
    """Rows of a table that has the key columns, with the ends and the event of each version."""
    columns = {
        FROM_COLUMN: _optional(spans.begin),
        TO_COLUMN: _optional(spans.end),
        _BEGAN_READ: pa.array(spans.read),
        CHANGED_BY: _optional(by),
    }
    found = rows.drop_columns([name for name in columns if name in rows.column_names])
    for name, values in columns.items():
        found = found.append_column(name, values)
    return found.filter(pa.array(wanted))


def numbers_of(moments: pa.ChunkedArray) -> Places:
    """Commit timestamps, -1 for null."""
    found: Places = pc.fill_null(moments, NO_MOMENT).to_numpy()
    return found


def _optional(moments: Places) -> pa.Array:
    """Commit timestamps as a column, null for none."""
    return pa.array(moments, pa.int64(), mask=moments == NO_MOMENT)
