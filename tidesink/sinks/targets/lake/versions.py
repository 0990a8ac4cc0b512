"""Computes which rows a batch writes to the files of a history table, from its events and the stored
versions.

A history table has a row for each version of a source row, and a delete marker for each delete that ended no
version. The rules are those of ``laws.modes``. A stored version ends at the first event of its key after
its beginning. A version that begins with a snapshot's read is
removed by any earlier event. Nothing else changes a stored version, so the tasks that find a version can
decide this themselves (``Events``). Which rows the events, the reads and the stored delete markers become
depends on all stored versions before and after them, so the driver computes this (``changes``).
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
from tidesink.sinks.laws.modes import FROM_COLUMN, READ_COLUMN, TO_COLUMN, HistoryNames
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
from tidesink.typemap.arrow import canonical_floats

COMMIT_TS: Final = "_commit_ts"
# Column of a table of events or reads: the kind. If a key has several at one commit_ts, the greatest kind
# counts.
_KIND: Final = "_tidesink_kind"
_READ, _DELETE, _WRITE = range(3)
# Column of a table of stored versions: True if the version begins with a snapshot's read.
_BEGAN_READ: Final = "_tidesink_began_read"
# Column of a table of stored versions: commit_ts of the event that may change the version, or null.
CHANGED_BY: Final = "_tidesink_changed_by"


class Counts(NamedTuple):
    """Numbers of rows that a batch changes in a history table, and of its events by outcome.

    ``begun``: versions that begin.
    ``marked``: delete markers to insert.
    ``replaced``: rows of ``begun`` and ``marked`` that replace a stored row.
    ``ended``: stored versions that get an end or another end.
    ``forgotten``: stored rows to remove.
    ``ends``: deletes in the batch that end a version.
    ``absent``: deletes in the batch that end no version.
    ``stale``: events that an earlier batch has already applied, and snapshot reads that do not count.
    ``kept``: stored delete markers that are written to new files unchanged.
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
        """The numbers of rows that the batch inserts, updates and deletes in the table."""
        return self.begun - self.replaced + self.marked, self.ended + self.replaced, self.forgotten

    @property
    def in_files(self) -> tuple[int, int]:
        """The numbers of rows in the batch's new files, and of rows in existing files that it marks as
        deleted.
        """
        again = self.ended + self.kept
        return self.begun + self.marked + again, self.replaced + self.forgotten + again

    def result(self, version: str) -> ApplyResult:
        """Return the batch's row counts as an ``ApplyResult``; ``version``: the name of the commit."""
        return ApplyResult(self.begun, 0, self.ends, self.absent, version, self.stale)


@dataclass(frozen=True)
class VersionRules:
    """The rules by which a batch's events become versions in a history table. Has the interface of
    ``RowRules``.

    ``names``: names of the columns that show when a version was valid.
    ``sent``: names of the batch's columns. The table's other columns are NULL in new versions.
    ``reads``: True if the batch's rows were read by a snapshot.
    """

    names: HistoryNames
    sent: frozenset[str]
    reads: bool = False
    keeps: ClassVar = False
    appends: ClassVar = False
    fields: ClassVar = ["_op", "key", "after", COMMIT_TS]

    def compares(self, _files: Collection[object]) -> bool:
        """Return True: the end of a version depends on all events of its key, and other tasks may have some
        of these events.
        """
        return True

    def stored_columns(self, columns: Sequence[FileColumn], _kept: Collection[str]) -> tuple[FileColumn, ...]:
        """Return the columns whose stored values are copied when a version is written again with its end."""
        own = {*self.names.own} - {READ_COLUMN}
        return tuple(column for column in columns if not column.key and column.source not in own)

    def omitted(self, _rows: pa.Table) -> list[str]:
        """Return an empty list, because the events of a history omit no values."""
        return []

    def keys(self, rows: pa.Table, columns: Sequence[FileColumn]) -> tuple[pa.Table, pa.Table]:
        """Return the batch's events (keys, commit_ts and kind) for ``changes``, and an empty table for keys
        to delete.

        Raises:
            TargetError: a key column has no value.
        """
        writes = np.asarray(pc.equal(rows["_op"], UPSERT))
        kinds = np.where(writes, _READ if self.reads else _WRITE, _DELETE)
        events = _events_of(rows, columns).append_column(_KIND, pa.array(kinds))
        return events, events.slice(0, 0)

    def written(
        self, rows: pa.Table, columns: Sequence[FileColumn], stored: tuple[pa.Table, pa.Table] | None
    ) -> pa.Table:
        """Return the rows that a task writes to files: new versions, delete markers, and changed stored
        versions.

        ``rows``: the task's part of the batch's rows.
        ``stored``: the tables ``written`` and ``again`` of ``Changes``.

        Raises:
            TargetError: a row has no value in a NOT NULL column.
        """
        assert stored is not None  # noqa: S101  (``compares``)
        written, again = stored
        events = _events_of(rows, columns)
        indexes = matched(events, written.select(events.column_names))
        makes = pa.array(indexes >= 0)
        new, ends = rows.filter(makes), written[TO_COLUMN].take(pa.array(indexes[indexes >= 0]))

        def sent(column: FileColumn) -> pa.Array:
            if column.source == READ_COLUMN:
                return pa.repeat(self.reads, len(new))
            if column.source not in self.sent:
                return pa.nulls(len(new), column.type)
            return column.cast(pc.struct_field(new["key" if column.key else "after"], [column.source]))

        versions = self._versions(columns, new[COMMIT_TS], ends, sent)
        by = again.select([*events.column_names[:-1], CHANGED_BY]).rename_columns(events.column_names)
        mine = again.filter(pa.array(matched(by, events) >= 0))
        return pa.concat_tables([versions, self.changed(columns, mine)])

    def changed(self, columns: Sequence[FileColumn], stored: pa.Table) -> pa.Table:
        """Return the rows to write to files for stored versions that change.

        ``stored``: the values of the stored versions, with their new ends.
        """
        names = stored.column_names

        def kept(column: FileColumn) -> pa.Array:
            values = stored[column.name] if column.name in names else pa.nulls(len(stored), column.type)
            # A delete marker that takes the place of a version's end has no stored row of its own.
            is_known = column.source == READ_COLUMN and _BEGAN_READ in names
            return pc.coalesce(values, stored[_BEGAN_READ]) if is_known else values

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
        arrays = [
            field.cast(own[field.source]) if field.source in own else values(field) for field in columns
        ]
        for column, array in zip(columns, arrays, strict=True):
            check_values(column, array)
        return pa.table(arrays, schema=pa.schema([column.field for column in columns]))


def rules_of(batch: ReducedBatch) -> RowRules | VersionRules:
    """Return the rules that determine which rows a batch writes, by the batch's mode."""
    how = batch.how
    if how.history is None:
        return RowRules.of(batch)
    return VersionRules(how.history, frozenset(column.name for column in batch.shape.columns), how.reads)


def _events_of(rows: pa.Table, columns: Sequence[FileColumn]) -> pa.Table:
    """Return a table of the key columns of the rows, with the rows' commit_ts as the last column."""
    return keys_of(rows, columns).append_column(COMMIT_TS, rows[COMMIT_TS])


def _microseconds(moments: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert commit timestamps (TSO) to microseconds since 1970. Their precision is a millisecond."""
    return pc.multiply(pc.shift_right(moments, LOGICAL_BITS), 1000)


# Stands for a missing commit_ts in numpy arrays.
NO_MOMENT: Final = -1


class Spans(NamedTuple):
    """From when to when stored rows of a history table are valid. Each array has one value per stored row.

    ``begin``, ``end``: commit_ts at which the version begins and ends; -1 for a version that has no end. A
        delete marker ends when it begins.
    ``read``: True if the version begins with a snapshot's read.
    """

    begin: Places
    end: Places
    read: Mask

    @classmethod
    def of(cls, rows: pa.Table, begin: str, end: str, read: str) -> Spans:
        """Return the time spans of a table's rows; ``begin``, ``end``, ``read``: the names of their
        columns.
        """
        flags = pc.fill_null(rows[read], False)
        return cls(numbers_of(rows[begin]), numbers_of(rows[end]), np.asarray(flags, bool))

    @property
    def mark(self) -> Mask:
        """A mask of the stored rows that are delete markers, which end when they begin."""
        mask: Mask = self.begin == self.end
        return mask

    @property
    def kinds(self) -> Places:
        """The kind of the event that each span begins with: a read, a delete or a write."""
        kind: Places = np.where(self.mark, _DELETE, np.where(self.read, _READ, _WRITE))
        return kind

    def filtered(self, wanted: Mask) -> Spans:
        """Return the spans that the mask ``wanted`` selects."""
        return Spans(self.begin[wanted], self.end[wanted], self.read[wanted])


class Near(NamedTuple):
    """Changes that a batch's events make to stored rows of a history table. Each array has one value per
    stored row.

    ``near``: True if the function ``changes`` needs the row.
    ``by``: commit_ts of the event or read that changes the row; -1 if none does.
    ``goes``: True if the row is removed.
    """

    near: Mask
    by: Places
    goes: Mask


class Events:
    """A batch's events or snapshot reads, prepared to be compared with the stored versions of a history
    table.

    ``events``: a table of keys, commit_ts and kinds.
    ``names``: the key columns.
    ``keys``: the batch's distinct keys.
    """

    def __init__(self, events: pa.Table, names: Sequence[str]) -> None:
        number = numbered([canonical_floats(events[name]) for name in names], events.num_rows)
        firsts = np.unique(number, return_index=True)[1]
        self.keys = events.select(names).take(pa.array(firsts))
        commit_ts, kinds = events[COMMIT_TS].to_numpy(), events[_KIND].to_numpy()
        order = np.lexsort((commit_ts, number))
        # One more entry that belongs to no key, for searches that find no event.
        self._key = np.append(number[order], NO_MOMENT)
        self._at = np.append(commit_ts[order], NO_MOMENT)
        self._writes = np.append(kinds[order] == _WRITE, False)
        self._are_reads = bool((kinds == _READ).any())
        self._moments = np.unique(commit_ts)
        self._places = self._place(number[order], commit_ts[order], "left")

    def changing(self, keys: Places, spans: Spans) -> Near:
        """Return for each stored row of a history table whether an event changes or removes it, and which.

        For a delete marker, the event only may change it. The function ``changes`` decides, because it also
        knows the stored row before the marker.

        ``keys``: index in ``self.keys`` for each stored row.
        ``spans``: from when to when each stored row is valid.
        """
        first = self._at[np.searchsorted(self._key[:-1], keys)]
        if self._are_reads:
            # Only a key's first stored row matters, because a read never ends a version that begins with an
            # event.
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

    def _place(self, keys: Places, commit_ts: Places, side: Literal["left", "right"]) -> Places:
        """Convert pairs of key and commit_ts to numbers that sort in the same order as the pairs.

        ``side``: ``right`` for numbers that sort after all events at their commit_ts; ``left`` for numbers
            that do not.
        """
        numbers: Places = keys * (len(self._moments) + 1) + np.searchsorted(self._moments, commit_ts, side)
        return numbers

    def _of(self, keys: Places, events: Places) -> Places:
        """Return the indexes ``events``, with -1 for an event whose key differs from the one in ``keys``."""
        indexes: Places = np.where(self._key[events] == keys, events, -1)
        return indexes


class Changes(NamedTuple):
    """The rows that a batch writes to a history table, as the function ``changes`` returns them.

    ``written``: the events that become a row: key, commit_ts and the row's end.
    ``again``: stored versions and delete markers in their new form, and delete markers for deletes that no
        longer end a version. Each is written by the task that has the event at ``CHANGED_BY``.
    """

    written: pa.Table
    again: pa.Table
    counts: Counts


def changes(events: pa.Table, parts: Iterable[pa.Table], names: Sequence[str], *, ended: bool) -> Changes:
    """Compute which rows of a history table a batch's events become, and how stored versions change.

    ``events``: a table of keys, commit_ts and kinds.
    ``parts``: the stored versions that the tasks returned.
    ``names``: the key columns.
    ``ended``: True if the tasks that found the stored versions also write the versions that end.

    Raises:
        AccountingError: the table has several rows of one version.
        NotAsFilesError: versions of one key overlap.
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
            f"The history table has {rows} rows for {len(np.unique(of_begin))} versions of the batch's keys: "
            "another program wrote rows of versions that existed already. Nothing was committed. Remove the "
            "duplicate rows."
        )
    sent = moments.greatest(of_event, events[_KIND].to_numpy())
    held = moments.greatest(of_begin, spans.kinds)
    recorded = np.maximum(held, moments.greatest(of_end, np.full(len(of_end), _DELETE)))
    kind = np.maximum(sent, recorded)
    counts = (kind != _READ) | moments.first
    following, last = moments.beside(counts)
    version, deletes = counts & (kind != _DELETE), kind == _DELETE
    before = version[last] & (last != NO_MOMENT)
    begins, ends = version & (recorded != kind), version & (recorded == kind)
    ends &= moments.greatest(of_begin, end) != following
    marks, forgets = deletes & ~before & (held != _DELETE), (held != NO_MOMENT) & (deletes & before | ~counts)
    removed = (begins | marks | forgets)[of_begin]
    kept_marks = mark & ~removed & (by != NO_MOMENT)
    ended_by = np.where(ends, following, NO_MOMENT)[of_begin]
    if (ended_by != by)[~mark & ~removed].any() or (by == NO_MOMENT)[removed].any():
        raise NotAsFilesError("the table has versions of one key that overlap")
    to = np.where(begins, following, moments.at)[of_event]
    written = events.select([*names, COMMIT_TS]).append_column(TO_COLUMN, _optional(to))
    bare = marks[of_end] & (sent[of_end] == NO_MOMENT)
    changed = kept_marks | (~mark & ~removed & (by != NO_MOMENT) & (not ended))
    final = spans._replace(end=np.where(mark, end, by))
    ends_of = Spans(end[closed], end[closed], np.zeros(closed.sum(), bool))
    again = [
        spans_of(stored, final, by, changed),
        spans_of(stored.select(names).filter(pa.array(closed)), ends_of, by[closed], bare),
    ]
    deleted, stale = (
        (sent == _DELETE) & (recorded < sent),
        (sent != NO_MOMENT) & ((recorded >= sent) | ~counts),
    )
    replaced = (begins | marks) & (held != NO_MOMENT)
    sums = (begins, replaced, ends, marks, forgets, deleted & before, deleted & ~before, stale, kept_marks)
    return Changes(
        written.filter(pa.array((begins | marks)[of_event])),
        pa.concat_tables(again, promote_options="default"),
        Counts(*(int(mask.sum()) for mask in sums)),
    )


class _Moments:
    """The distinct moments (pairs of key and commit_ts) of input rows, in order.

    ``numbers``: index of the moment of each input row.
    ``at``: commit_ts of each moment.
    ``first``: True for the first moment of a key.
    """

    def __init__(self, keys: Places, commit_ts: Places) -> None:
        order = np.lexsort((commit_ts, keys))
        keys, commit_ts = keys[order], commit_ts[order]
        distinct = np.append(True, (keys[1:] != keys[:-1]) | (commit_ts[1:] != commit_ts[:-1]))
        self.numbers = np.empty(len(order), np.int64)
        self.numbers[order] = np.cumsum(distinct) - 1
        self._keys, self.at = keys[distinct], commit_ts[distinct]
        self.first = np.append(True, self._keys[1:] != self._keys[:-1])[: len(self.at)]

    def beside(self, counted: Mask) -> tuple[Places, Places]:
        """Return, for each moment, its neighbours among the moments of its key that ``counted`` selects.

        The first array has the commit_ts of the next selected moment. The second has the index of the
        previous selected moment. Both have -1 if there is none.
        """
        counts = len(self.at)
        numbers = np.arange(counts)
        following = np.append(np.where(counted, numbers, counts), [counts])
        following = np.minimum.accumulate(following[::-1])[::-1][1:]
        last = np.maximum.accumulate(np.append([NO_MOMENT], np.where(counted, numbers, NO_MOMENT)))[:-1]
        keys, commit_ts = np.append(self._keys, NO_MOMENT), np.append(self.at, NO_MOMENT)
        return (
            np.where(keys[following] == self._keys, commit_ts[following], NO_MOMENT),
            np.where(keys[last] == self._keys, last, NO_MOMENT),
        )

    def greatest(self, moments: Places, values: npt.NDArray[Any]) -> Places:
        """Return for each moment the greatest of the values of its rows; -1 if it has no rows.

        ``moments``: index of the moment of each value.
        """
        maxima = np.full(len(self.at), -1)
        np.maximum.at(maxima, moments, values.astype(np.int64))
        return maxima


def spans_of(rows: pa.Table, spans: Spans, by: Places, wanted: Mask) -> pa.Table:
    """Return the rows that ``wanted`` selects, with columns for their time spans and for the event that
    changes them.

    ``by``: commit_ts of the event that changes each row; -1 if none does.
    """
    columns = {
        FROM_COLUMN: _optional(spans.begin),
        TO_COLUMN: _optional(spans.end),
        _BEGAN_READ: pa.array(spans.read),
        CHANGED_BY: _optional(by),
    }
    table = rows.drop_columns([name for name in columns if name in rows.column_names])
    for name, values in columns.items():
        table = table.append_column(name, values)
    return table.filter(pa.array(wanted))


def numbers_of(moments: pa.ChunkedArray) -> Places:
    """Convert an Arrow column of commit timestamps to numpy numbers, with -1 for null."""
    numbers: Places = pc.fill_null(moments, NO_MOMENT).to_numpy()
    return numbers


def _optional(moments: Places) -> pa.Array:
    """Convert numpy commit timestamps to an Arrow column, with null for -1."""
    return pa.array(moments, pa.int64(), mask=moments == NO_MOMENT)
