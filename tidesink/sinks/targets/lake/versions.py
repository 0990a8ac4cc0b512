"""What a batch of a history becomes in a lake's files, by the versions that the table has of its keys.

The law is that of ``targets.modes``, which ``lake.merge`` has on frames. A stored version ends with the first
event of its key after its begin, which nothing else decides: the tasks that locate it know it (``Events``).
What becomes of events and of the marks of deletes depends on all that is stored next to them (``changes``).
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
from tidesink.sinks.targets.modes import FROM_COLUMN, TO_COLUMN, HistoryNames

COMMIT_TS: Final = "_commit_ts"
# In a table of events: whether it writes the row.
_WRITES: Final = "_tidesink_writes"
# In a table of stored versions: the commit_ts of the event that may change each, null where none does.
CHANGED_BY: Final = "_tidesink_changed_by"


class Counts(NamedTuple):
    """What a batch changes in a history, in rows, and what became of its events.

    ``begun`` of which ``replaced`` stand in a mark's place, ``ended``, ``marked`` and ``forgotten`` are rows
    to write or remove. Of the events ``ends`` are new deletes that ended a version, ``absent`` those that did
    not, ``stale`` what was known. ``kept``: marks that were located, and are written to files as they were.
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
    """How a batch's events become versions, as ``RowRules`` has it of rows."""

    names: HistoryNames
    keeps: ClassVar = False
    appends: ClassVar = False
    fields: ClassVar = ["_op", "key", "after", COMMIT_TS]

    def compares(self, _files: Collection[object]) -> bool:
        """Always: events of one batch end each other's versions, and may be in several tasks."""
        return True

    def stored_columns(self, columns: Sequence[FileColumn], _kept: Collection[str]) -> tuple[FileColumn, ...]:
        """The columns whose stored values a version keeps when it ends."""
        return tuple(one for one in columns if not one.key and one.source not in self.names.own)

    def omitted(self, _rows: pa.Table) -> list[str]:
        """None."""
        return []

    def keys(self, rows: pa.Table, columns: Sequence[FileColumn]) -> tuple[pa.Table, pa.Table]:
        """The events, as ``changes`` takes them, and no others.

        Raises:
            TargetError: a key has no value.
        """
        found = _events_of(rows, columns).append_column(_WRITES, pc.equal(rows["_op"], UPSERT))
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
            return column.cast(pc.struct_field(new["key" if column.key else "after"], [column.source]))

        found = self._versions(columns, new[COMMIT_TS], ends, sent)
        by = again.select([*events.column_names[:-1], CHANGED_BY]).rename_columns(events.column_names)
        mine = again.filter(pa.array(matched(by, events) >= 0))
        return pa.concat_tables([found, self.changed(columns, mine)])

    def changed(self, columns: Sequence[FileColumn], stored: pa.Table) -> pa.Table:
        """Stored versions as they are written to files, with the ends that they have in ``stored``."""
        names = stored.column_names

        def kept(column: FileColumn) -> pa.Array:
            return stored[column.name] if column.name in names else pa.nulls(len(stored), column.type)

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
    return RowRules.of(batch) if batch.history is None else VersionRules(batch.history)


def _events_of(rows: pa.Table, columns: Sequence[FileColumn]) -> pa.Table:
    """The keys of events, and their commit_ts behind these."""
    return keys_of(rows, columns).append_column(COMMIT_TS, rows[COMMIT_TS])


def _microseconds(moments: pa.ChunkedArray) -> pa.ChunkedArray:
    """The instants of commit timestamps, to the millisecond."""
    return pc.multiply(pc.shift_right(moments, LOGICAL_BITS), 1000)


# A number that is no commit_ts: there is none, or none yet.
_NONE: Final = -1


class Events:
    """A batch's events, to be asked about stored versions one by one; ``keys`` has each key once."""

    def __init__(self, events: pa.Table, names: Sequence[str]) -> None:
        number = numbered([events[name] for name in names], events.num_rows)
        firsts = np.unique(number, return_index=True)[1]
        self.keys = events.select(names).take(pa.array(firsts))
        at = events[COMMIT_TS].to_numpy()
        order = np.lexsort((at, number))
        # Behind the last event one of no key, for what finds none.
        self._key = np.append(number[order], _NONE)
        self._at = np.append(at[order], _NONE)
        self._writes = np.append(events[_WRITES].to_numpy()[order], False)
        self._moments = np.unique(at)
        self._places = self._place(number[order], at[order], "left")

    def changing(self, keys: Places, begin: Places, end: Places) -> tuple[Mask, Places]:
        """Which stored versions are next to an event, and the commit_ts of what each changes by, else -1.

        ``keys`` are numbers of ``self.keys``. A mark may stay, where something stored stands between the two.
        """
        first = self._at[np.searchsorted(self._key[:-1], keys)]
        near = (end == _NONE) | (end >= first)
        here = np.searchsorted(self._places, self._place(keys, begin, "left"))
        after = np.searchsorted(self._places, self._place(keys, begin, "right"))
        following = self._at[self._of(keys, after)]
        ended = (following != _NONE) & ((end == _NONE) | (following < end))
        version = np.where(ended, following, _NONE)
        replaced = self._writes[self._of(keys, here)] & (after > here)
        before = self._of(keys, here - 1)
        mark = np.where(replaced, begin, np.where(self._writes[before], self._at[before], _NONE))
        return near, np.where(begin == end, mark, version)

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
    empty = spans_of(events.select(names).slice(0, 0), none, none, none, none > 0)
    stored = pa.concat_tables([empty, *parts], promote_options="default")
    count, rows = events.num_rows, stored.num_rows
    keys = (pa.chunked_array([*events[name].chunks, *stored[name].chunks]) for name in names)
    key = numbered(keys, count + rows)
    begin, end, by = (numbers_of(stored[name]) for name in (FROM_COLUMN, TO_COLUMN, CHANGED_BY))
    mark = begin == end
    closed = (end != _NONE) & ~mark
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
    # 1 is a write, 0 a delete, -1 nothing.
    sent = moments.greatest(of_event, events[_WRITES].to_numpy())
    known = np.maximum(moments.greatest(of_begin, ~mark), moments.greatest(of_end, np.zeros(len(of_end))))
    marked = moments.greatest(of_begin, mark) == 1
    writes = np.maximum(sent, known) == 1
    following, before = moments.next, np.roll(moments.followed & writes, 1)
    begins, ends = writes & (known != 1), writes & (known == 1)
    ends &= moments.greatest(of_begin, end) != following
    marks, forgets = ~writes & ~marked & ~before, ~writes & marked & before
    gone = mark & (begins | forgets)[of_begin]
    kept = mark & ~gone & (by != _NONE)
    if (np.where(ends, following, _NONE)[of_begin] != by)[~mark].any() or (by == _NONE)[gone].any():
        raise NotAsFilesError("the table has versions of one key that overlap")
    to = np.where(begins, following, moments.at)[of_event]
    written = events.select([*names, COMMIT_TS]).append_column(TO_COLUMN, _optional(to))
    bare = marks[of_end] & (sent[of_end] == -1)
    again = [
        spans_of(stored, begin, np.where(mark, end, by), by, kept | (~mark & (by != _NONE) & (not ended))),
        spans_of(stored.select(names).filter(pa.array(closed)), end[closed], end[closed], by[closed], bare),
    ]
    deleted = (sent == 0) & (known == -1)
    stale = (sent != -1) & (known >= sent)
    counts = (begins, begins & marked, ends, marks, forgets, deleted & before, deleted & ~before, stale, kept)
    return Changes(
        written.filter(pa.array((begins | marks)[of_event])),
        pa.concat_tables(again, promote_options="default"),
        Counts(*(int(one.sum()) for one in counts)),
    )


class _Moments:
    """The distinct moments of keys, in their order; ``numbers``: that of each one that was given.

    ``at``: their commit_ts. ``followed``: the next moment is of the same key; its commit_ts is ``next``.
    """

    def __init__(self, keys: Places, at: Places) -> None:
        order = np.lexsort((at, keys))
        keys, at = keys[order], at[order]
        first = np.append(True, (keys[1:] != keys[:-1]) | (at[1:] != at[:-1]))
        self.numbers = np.empty(len(order), np.int64)
        self.numbers[order] = np.cumsum(first) - 1
        keys, self.at = keys[first], at[first]
        self.followed = np.append(keys[1:] == keys[:-1], False)
        self.next = np.where(self.followed, np.roll(self.at, -1), _NONE)

    def greatest(self, moments: Places, values: npt.NDArray[Any]) -> Places:
        """The greatest of the values that are given for each moment, -1 where there is none."""
        found = np.full(len(self.at), -1)
        np.maximum.at(found, moments, values.astype(np.int64))
        return found


def spans_of(rows: pa.Table, begin: Places, end: Places, by: Places, wanted: Mask) -> pa.Table:
    """Rows of a table that has the key columns, with the begin, the end and the event of each version."""
    columns = {FROM_COLUMN: _optional(begin), TO_COLUMN: _optional(end), CHANGED_BY: _optional(by)}
    found = rows.drop_columns([name for name in columns if name in rows.column_names])
    for name, values in columns.items():
        found = found.append_column(name, values)
    return found.filter(pa.array(wanted))


def numbers_of(moments: pa.ChunkedArray) -> Places:
    """Commit timestamps, -1 for null."""
    found: Places = pc.fill_null(moments, _NONE).to_numpy()
    return found


def _optional(moments: Places) -> pa.Array:
    """Commit timestamps as a column, null for none."""
    return pa.array(moments, pa.int64(), mask=moments == _NONE)
