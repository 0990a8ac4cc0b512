"""Reduction of a range's changes, as Arrow tables, to one row per key: the last event of each key wins.

The last event is the one with the greatest position. An update that changes the primary key counts as a
delete of the old key and a write of the new key. A value that the winning row omits is filled in from the
latest earlier row of its key that has the value, but not from before the key's last delete.
``tests/reduction_law.py`` states the same law event by event.

Under ``sequence_by: kafka`` all events of a key are in one partition, so each range is reduced on its own.
The driver compares the hashes of the ranges' keys (``key_hashes``) to detect a key in two partitions. Keys
are compared as exact values, and text byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import MARKS, NAMES_TYPE, OPS, SOURCE_TYPE, ChangeTable
from tidesink.errors import SchemaMismatchError
from tidesink.events import Op, fold_name
from tidesink.typemap.arrow import canonical_floats

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Order = Literal["kafka", "source", "commit_ts"]
# Converts values of the key column with this name into the column's type in the target.
ConvertKey = Callable[[str, pa.Array], pa.Array]

_DELETE: Final = OPS.index(Op.DELETE.value)
_TRUNCATE: Final = OPS.index(Op.TRUNCATE.value)
# The images of a change in which the value of a key column is searched, in this order. A write has it in the
# new row or in the record's key. A delete has no new row, and its old row may not contain the key.
_WRITTEN_KEY: Final = ("after", "key")
_DELETED_KEY: Final = ("key", "before")
# Less than every number in a source position.
_BEFORE_ALL: Final = -1
# The columns of ``ChangeTable.rows`` that ``ReducedTable.rows`` has too.
_SAME: Final = ("record", "index", "op", "topic", "partition", "offset", "commit_ts", "source")
# Additional columns of ``ChangeTable.rows``: a warning about a row that is applied nevertheless (string), and
# a flag for rows that do not match the table's filter (bool). Such a row is a delete of its key.
WARNING: Final = "warning"
UNMATCHED: Final = "unmatched"
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class ReducedTable:
    """The rows to apply that were written with the same writer schema.

    A reduction (``Reduction``) has one such table for each writer schema. Together they have at most one row
    per key.

    ``rows`` has the columns of ``ChangeTable.rows``, without ``before`` and ``UNMATCHED``, and these:

    - ``key``: the key columns of the table as a struct, never null;
    - ``row``: the row to write, in place of ``after``; null for a delete;
    - ``deleted``: True if the row deletes its key;
    - ``half``: True if the row deletes the old key of a key change. The event is counted with the row of the
      new key;
    - ``unavailable``: the columns that the row omits, so that the target keeps its stored values;
    - ``after_delete``: True if the range deletes the key before it writes this row. Then the target's stored
      values belong to the deleted row and must not be kept.
    """

    source: ChangeTable
    rows: pa.Table


@dataclass(frozen=True)
class Reduction:
    """The changes of one table in one range, reduced to one row per key.

    Attributes:
        tables: The rows to apply, one table per writer schema.
        events: The number of row events: ``upserts + deletes - halves + superseded``.
        upserts: The number of rows to write.
        deletes: The number of rows to delete.
        halves: The number of deletes of old keys. A key change is one event, but two rows.
        unnamed: The indices of the records with an event that lacks a value in a key column. These events are
            not counted in ``events``.
        truncates: The offsets of truncates. They are not counted in ``events`` either.
    """

    tables: tuple[ReducedTable, ...]
    events: int
    upserts: int
    deletes: int
    halves: int
    unnamed: tuple[int, ...] = ()
    truncates: tuple[int, ...] = ()

    @property
    def superseded(self) -> int:
        """The number of row events that a later event of the same key replaces."""
        return self.events - (self.upserts + self.deletes - self.halves)


def reduce_tables(
    tables: Sequence[ChangeTable],
    keys: Sequence[str],
    *,
    order: Order = "kafka",
    versions: bool = False,
    old_keys: bool = True,
    convert: ConvertKey | None = None,
) -> Reduction:
    """Reduces the changes of one table, which may have several writer schemas, to one row per key.

    Args:
        tables: The changes, one table per writer schema.
        keys: The table's key columns.
        order: The position by which events are ordered. ``kafka``: partition and offset. ``source``: all
            numbers of the source position. ``commit_ts``: only the commit_ts, which is the complete position
            in TiDB.
        versions: True to keep one row per key and commit_ts, for ``mode: history``. At one commit_ts a write
            wins over a delete, and the first of equal events wins.
        old_keys: True if an update's old row contains the old key. False if the protocol sends a key change
            as two records.
        convert: Converts the values of a key column into its type in the target, so that keys with different
            writer schemas can be compared. None: Arrow's widest type is used.

    Raises:
        SchemaMismatchError: A key column has types in two writer schemas that cannot be compared. Or a row
            omits a value, and the earlier value does not fit into the column's type in the row.
        ValueError: An event has no commit_ts or no source position, and ``order`` or ``versions`` needs it.
    """
    rows = _all_rows(tables, keys, convert or _as_written, old_keys=old_keys)
    if versions:
        winners = _last(_pairs(rows.codes, _codes(pa.array(_moments(rows.commit_ts)))), _version_order(rows))
    else:
        winners = _last(rows.codes, _order(rows, order))
    values = None
    if rows.unavailable.null_count < len(rows.unavailable) and not versions:
        values = _StoredValues(tables, rows, _order(rows, order))
    reduced = tuple(
        _reduced_table(table, rows, winners[rows.table[winners] == number], values)
        for number, table in enumerate(tables)
        if (rows.table[winners] == number).any()
    )
    deletes, halves = rows.deletes[winners], rows.half[winners]
    return Reduction(
        reduced,
        events=int((~rows.half).sum()),
        upserts=int((~deletes).sum()),
        deletes=int(deletes.sum()),
        halves=int(halves.sum()),
        unnamed=rows.unnamed,
        truncates=rows.truncates,
    )


def last_by_source(key: pa.StructArray, sequence: pa.StructArray) -> Longs:
    """Returns the index of each key's last row in the source's order. The indices are sorted.

    ``sequence``: the rows' positions, with the columns of ``targets.base.SEQUENCE_DDL``.
    """
    members = {name: pc.struct_field(sequence, [name]) for name in ("index", "offset", "partition", "writes")}
    least_first = [column.to_numpy(zero_copy_only=False) for column in members.values()]
    numbers = _source_numbers(pc.struct_field(sequence, ["source"]))
    return _last(key_codes(key), _sorted((*least_first, *reversed(numbers))))


def last_versions(
    key: pa.StructArray, commit_ts: Longs, writes: Flags, partitions: Longs, offsets: Longs
) -> Longs:
    """Returns the index of the row to keep of each key and commit_ts (``_version_order``), sorted.

    ``writes``: False for a delete.
    """
    codes = _pairs(key_codes(key), _codes(pa.array(commit_ts)))
    return _last(codes, _sorted((-offsets, -partitions, writes)))


def key_codes(key: pa.StructArray) -> Longs:
    """Returns a number for each key. Equal keys have equal numbers."""
    return _key_codes(key.flatten())


def named_rows(changes: ChangeTable, keys: Sequence[str]) -> Flags:
    """Returns a mask of the changes that have a value in each key column, and of the truncates."""
    images = {name: changes.rows[name].combine_chunks() for name in ("key", "before", "after")}
    ops = _op_codes(changes)
    mask = _none_null(
        [_new_key(images, name, ops == _DELETE, _as_written) for name in keys], len(changes.rows)
    )
    mask |= ops == _TRUNCATE
    return mask


def key_hashes(tables: Sequence[ReducedTable]) -> npt.NDArray[np.uint64]:
    """Returns a 64-bit hash of each row's key. The same key has the same hash in all processes and schemas.

    Two different keys have the same hash with a probability of 1 in 2^64.
    """
    hashes = [_hashes(table.rows["key"].combine_chunks()) for table in tables]
    return np.concatenate(hashes) if hashes else np.empty(0, np.uint64)


def changes_of_keys(
    changes: ChangeTable,
    hashes: npt.NDArray[np.uint64],
    keys: Sequence[str],
    *,
    convert: ConvertKey,
    old_keys: bool = True,
) -> Flags:
    """Returns a mask of the changes whose key or old key has one of the hashes, and of the truncates.

    Each change must have a value in each key column.

    Args:
        changes: The changes.
        hashes: Hashes that ``key_hashes`` returned.
        keys: The table's key columns.
        convert: Converts the values of a key column into its type in the target.
        old_keys: True if an update's old row contains the old key.
    """
    mask: Flags = _op_codes(changes) == _TRUNCATE
    rows = np.flatnonzero(~mask)
    new, old, moved = row_keys(changes, keys, convert, old_keys=old_keys)
    wanted = pa.array(rows)
    mask[rows] = np.isin(_hashes(_struct_of([column.take(wanted) for column in new], keys)), hashes)
    halves = np.flatnonzero(moved & ~mask)
    before = _struct_of([column.take(pa.array(halves)) for column in old], keys)
    mask[halves] = np.isin(_hashes(before), hashes)
    return mask


def keys_of_events(
    changes: ChangeTable, keys: Sequence[str], *, convert: ConvertKey, old_keys: bool = True
) -> tuple[Longs, pa.StructArray]:
    """Returns the keys in the changes, and for each key the index of its change.

    An update that changes its key has two keys: the new and the old one. ``convert``: converts the values of
    a key column into its type in the target. ``old_keys``: True if an update's old row contains the old key.
    """
    rows = _rows_of(changes, keys, convert, old_keys=old_keys)
    return rows.row, rows.key


def rows_of_keys(reduction: Reduction, hashes: npt.NDArray[np.uint64]) -> Reduction:
    """Returns the reduction with only those rows whose key has one of the hashes (``key_hashes``).

    ``events`` does not change, so the events of omitted rows count as superseded.
    """
    parts = [_rows_where(table, np.isin(key_hashes([table]), hashes)) for table in reduction.tables]
    tables = tuple(table for table in parts if table.rows.num_rows)
    counts = {
        name: sum(int(pc.sum(table.rows[name]).as_py()) for table in tables) for name in ("deleted", "half")
    }
    deletes, rows = counts["deleted"], sum(table.rows.num_rows for table in tables)
    return replace(reduction, tables=tables, upserts=rows - deletes, deletes=deletes, halves=counts["half"])


def _rows_where(table: ReducedTable, flags: Flags) -> ReducedTable:
    return replace(table, rows=table.rows.filter(pa.array(flags)))


def _struct_of(columns: Sequence[pa.Array], keys: Sequence[str]) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(columns), list(keys))


# All rows, before the reduction


@dataclass(frozen=True)
class _Rows:
    """All writes and deletes of a reduction, from all its tables, including deletes of old keys.

    Each array has one element per row.

    ``table``: the index of the row's table. ``row``: the row's index in its table. ``codes``: a number for
    each distinct key.
    """

    table: Longs
    row: Longs
    half: Flags
    deletes: Flags
    key: pa.StructArray
    codes: Longs
    partition: Longs
    offset: Longs
    index: Longs
    commit_ts: pa.Array
    source: pa.Array
    unavailable: pa.Array
    unnamed: tuple[int, ...]
    truncates: tuple[int, ...]


def _all_rows(
    tables: Sequence[ChangeTable], keys: Sequence[str], convert: ConvertKey, *, old_keys: bool
) -> _Rows:
    parts = [_rows_of(table, keys, convert, old_keys=old_keys) for table in tables]
    columns = [_joined([part.key.field(name) for part in parts], name) for name in keys]
    return _Rows(
        table=_concatenated([np.full(len(part.row), number) for number, part in enumerate(parts)], np.int64),
        row=_concatenated([part.row for part in parts], np.int64),
        half=_concatenated([part.half for part in parts], np.bool_),
        deletes=_concatenated([part.deletes for part in parts], np.bool_),
        key=pa.StructArray.from_arrays(columns, list(keys)),
        codes=_key_codes(columns),
        partition=_taken_longs(tables, parts, "partition"),
        offset=_taken_longs(tables, parts, "offset"),
        index=_taken_longs(tables, parts, "index"),
        commit_ts=_taken(tables, parts, "commit_ts", pa.int64()),
        source=_taken(tables, parts, "source", SOURCE_TYPE),
        unavailable=_taken(tables, parts, "unavailable", NAMES_TYPE),
        unnamed=tuple(record for part in parts for record in part.unnamed),
        truncates=tuple(offset for part in parts for offset in part.truncates),
    )


@dataclass(frozen=True)
class _TableRows:
    """The writes and deletes from one table of a reduction, including deletes of old keys.

    Each array has one element per row.

    ``row``: the index of the row's change in the table.
    """

    row: Longs
    half: Flags
    deletes: Flags
    key: pa.StructArray
    unnamed: tuple[int, ...]
    truncates: tuple[int, ...]


def row_keys(
    changes: ChangeTable, keys: Sequence[str], convert: ConvertKey, *, old_keys: bool = True
) -> tuple[list[pa.Array], list[pa.Array], Flags]:
    """Returns the key columns of the changes, the same columns of their old keys, and a mask of the changes
    whose old key is different from the key.

    ``old_keys``: True if an update's old row contains the old key. Otherwise all old keys equal the keys.
    """
    images = {name: changes.rows[name].combine_chunks() for name in ("key", "before", "after")}
    deleted = _op_codes(changes) == _DELETE
    new = [canonical_floats(convert(name, _new_key(images, name, deleted, convert))) for name in keys]
    if not old_keys:
        return new, new, np.zeros(len(deleted), np.bool_)
    # A partial old row contains only changed values. A key column that it omits did not change.
    before = (_first_value(images, name, ("before", "after"), convert) for name in keys)
    old = [canonical_floats(convert(name, column)) for name, column in zip(keys, before, strict=True)]
    return new, old, ~deleted & _there(images["before"]) & _differ(old, new)


def _rows_of(changes: ChangeTable, keys: Sequence[str], convert: ConvertKey, *, old_keys: bool) -> _TableRows:
    ops = _op_codes(changes)
    deleted, truncated = ops == _DELETE, ops == _TRUNCATE
    new, old, moved = row_keys(changes, keys, convert, old_keys=old_keys)
    named = ~truncated & _none_null(new, len(ops))
    moved &= named
    whole, halves = np.nonzero(named)[0], np.nonzero(moved)[0]
    columns = [
        pa.concat_arrays([column.take(pa.array(whole)), other.take(pa.array(halves))])
        for column, other in zip(new, old, strict=True)
    ]
    record, offset = (changes.rows[name].to_numpy() for name in ("record", "offset"))
    return _TableRows(
        np.concatenate([whole, halves]),
        np.repeat([False, True], [len(whole), len(halves)]),
        np.concatenate([(deleted | unmatched_rows(changes))[whole], np.ones(len(halves), np.bool_)]),
        pa.StructArray.from_arrays(columns, list(keys)),
        tuple(record[~named & ~truncated].tolist()),
        tuple(offset[truncated].tolist()),
    )


def unmatched_rows(changes: ChangeTable) -> Flags:
    """Returns a mask of the row changes that do not match the table's filter."""
    if UNMATCHED not in changes.rows.column_names:
        return np.zeros(len(changes.rows), np.bool_)
    flags: Flags = changes.rows[UNMATCHED].to_numpy()
    return flags


def _op_codes(changes: ChangeTable) -> npt.NDArray[np.int8]:
    codes: npt.NDArray[np.int8] = changes.rows["op"].combine_chunks().indices.to_numpy(zero_copy_only=False)
    return codes


def _as_written(_name: str, values: pa.Array) -> pa.Array:
    return values


def _new_key(
    images: Mapping[str, pa.StructArray], name: str, deleted: Flags, convert: ConvertKey
) -> pa.Array:
    """Returns a key column's values after each change; for a delete, its values in the deleted row.

    A write's old row is not used, because its key may be another one.
    """
    written, removed = (_first_value(images, name, order, convert) for order in (_WRITTEN_KEY, _DELETED_KEY))
    if not deleted.any():
        return written
    if deleted.all() or pa.types.is_null(written.type):
        return pc.if_else(pa.array(deleted), removed, pa.scalar(None, removed.type))
    return pc.if_else(pa.array(deleted), removed.cast(written.type), written)


def _first_value(
    images: Mapping[str, pa.StructArray], name: str, order: Sequence[str], convert: ConvertKey
) -> pa.Array:
    """Returns a column's value for each change: the first value that is not null, in the order ``order``.

    ``images``: the keys, old rows and new rows of the changes. ``order``: the names of the images to search.
    ``convert``: converts the values of the column.
    """
    columns = [
        convert(name, column) for image in order if (column := _member(images[image], name)) is not None
    ]
    count = len(images["after"])
    return pc.coalesce(*columns) if columns else pa.nulls(count)


def _member(image: pa.StructArray, name: str) -> pa.Array | None:
    """Returns the column ``name`` of an image (the keys, old rows or new rows of changes), or None if the
    image does not have it. Names ignore case, as in MySQL.
    """
    names = [member.name for member in image.type]
    exact = (
        name
        if name in names
        else next((candidate for candidate in names if fold_name(candidate) == fold_name(name)), None)
    )
    return None if exact is None else pc.struct_field(image, [exact])


def _there(array: pa.Array) -> Flags:
    flags: Flags = pc.is_valid(array).to_numpy(zero_copy_only=False)
    return flags


def _none_null(columns: Sequence[pa.Array], count: int) -> Flags:
    mask = np.full(count, bool(columns))
    for column in columns:
        mask &= _there(column)
    return mask


def _differ(old: Sequence[pa.Array], new: Sequence[pa.Array]) -> Flags:
    mask = np.zeros(len(new[0]) if new else 0, np.bool_)
    for column, other in zip(old, new, strict=True):
        differs = pc.fill_null(pc.not_equal(column, other), False)
        if pa.types.is_floating(column.type) and pa.types.is_floating(other.type):
            # For Arrow, NaN is not equal to NaN.
            both = pc.fill_null(pc.and_(pc.is_nan(column), pc.is_nan(other)), False)
            differs = pc.and_not(differs, both)
        mask |= differs.to_numpy(zero_copy_only=False)
    return mask


def _joined(columns: Sequence[pa.Array], name: str) -> pa.Array:
    """Returns a key column of all tables as one array, in the widest of the tables' types."""
    kinds = {column.type for column in columns if len(column)}
    if not kinds:
        return pa.nulls(0)
    try:
        schemas = [pa.schema([(name, kind)]) for kind in kinds]
        kind = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
        return pa.concat_arrays([column.cast(kind) for column in columns if len(column)])
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        types = ", ".join(sorted(map(str, kinds)))
        raise SchemaMismatchError(
            f"Key column {name} has types in several schemas that cannot be compared: {types}. Load the "
            "table again, and set its start to a time after the change of the type.",
            column=name,
        ) from error


def _taken(
    tables: Sequence[ChangeTable], parts: Sequence[_TableRows], name: str, kind: pa.DataType
) -> pa.Array:
    arrays = [
        table.rows[name].combine_chunks().take(pa.array(part.row))
        for table, part in zip(tables, parts, strict=True)
    ]
    return pa.concat_arrays(arrays) if arrays else pa.array([], kind)


def _taken_longs(tables: Sequence[ChangeTable], parts: Sequence[_TableRows], name: str) -> Longs:
    arrays = [table.rows[name].to_numpy()[part.row] for table, part in zip(tables, parts, strict=True)]
    return _concatenated(arrays, np.int64)


def _concatenated(arrays: Sequence[npt.NDArray[Any]], kind: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate(arrays).astype(kind, copy=False) if arrays else np.empty(0, kind)


# Keys and order


def _key_codes(columns: Sequence[pa.Array]) -> Longs:
    """Returns a number for each key. Equal keys have equal numbers."""
    codes = [_codes(column) for column in columns]
    whole = codes[0] if codes else np.empty(0, np.int64)
    for column in codes[1:]:
        whole = _pairs(whole, column)
    return whole


def _codes(column: pa.Array) -> Longs:
    codes: Longs = column.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _moments(commit_ts: pa.Array) -> Longs:
    if commit_ts.null_count:
        raise ValueError("a row event has no commit_ts")
    moments: Longs = commit_ts.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return moments


def _pairs(first: Longs, second: Longs) -> Longs:
    """Combines two arrays of numbers into one. Equal pairs of numbers get equal results.

    The results are consecutive numbers from 0, so that combining them with the numbers of more key columns
    cannot overflow.
    """
    if not len(first):
        return first
    return _codes(pa.array(first * (int(second.max()) + 1) + second))


def _order(rows: _Rows, order: Order) -> Longs:
    """Returns the indices of the rows, sorted in ascending ``order``."""
    if order == "kafka" and _in_order(rows):
        return np.arange(len(rows.row))
    kafka = (~rows.half, rows.index, rows.offset, rows.partition)
    if order == "kafka":
        return _sorted(kafka)
    if order == "commit_ts":
        return _sorted((*kafka, ~rows.deletes, _moments(rows.commit_ts)))
    if rows.source.null_count:
        raise ValueError("a row event has no source position")
    return _sorted((*kafka, ~rows.deletes, *reversed(_source_numbers(rows.source))))


def _in_order(rows: _Rows) -> bool:
    """Returns True if the rows are sorted in Kafka's order already, and no record has several rows."""
    steps = np.diff(rows.offset) > 0
    return bool(steps.all()) and not np.diff(rows.partition).any()


def _version_order(rows: _Rows) -> Longs:
    """Returns the indices of the rows, sorted so that the row to keep comes last.

    Among the rows of one key and commit_ts, a write is kept rather than a delete. Among several writes, the
    first one in Kafka is kept.
    """
    return _sorted((-rows.index, -rows.offset, -rows.partition, ~rows.deletes))


def _sorted(least_first: Sequence[npt.NDArray[Any]]) -> Longs:
    """Returns the indices that sort the rows by several columns, of which the last one is the most
    significant.
    """
    order: Longs = np.lexsort(least_first)
    return order


def _source_numbers(source: pa.ListArray) -> list[Longs]:
    """Returns integer columns by which rows are sorted in the order of their source positions.

    A source position is a list of numbers. The n-th column has the rank of each position's n-th number. A
    position that is a prefix of another one is less.
    """
    lengths = pc.list_value_length(source).to_numpy()
    starts = source.offsets.to_numpy()[:-1]
    # Ranks in place of the numbers, which have up to 38 digits.
    values = pc.rank(source.values, tiebreaker="dense").to_numpy().astype(np.int64)
    columns = []
    for index in range(int(lengths.max(initial=0))):
        column = np.full(len(source), _BEFORE_ALL, np.int64)
        column[lengths > index] = values[starts[lengths > index] + index]
        columns.append(column)
    return columns


def _last(codes: Longs, order: Longs) -> Longs:
    """Returns the index of each key's last row in ``order``. The indices are sorted.

    ``codes``: for each row, the number of its key.
    """
    last = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    last[codes[order]] = order
    return np.sort(last)


# The result


def _reduced_table(
    changes: ChangeTable, rows: _Rows, winners: Longs, values: _StoredValues | None
) -> ReducedTable:
    stay = rows.row[winners]
    # If all rows win, as in a first load, nothing is copied.
    every = np.array_equal(stay, np.arange(changes.rows.num_rows))
    taken = (changes.rows if every else changes.rows.take(pa.array(stay))).combine_chunks()
    deletes = rows.deletes[winners]
    members = _members(taken["after"].combine_chunks())
    unavailable = taken["unavailable"].combine_chunks()
    after_delete = np.zeros(len(winners), np.bool_)
    if values is not None:
        members, unavailable, after_delete = values.completed(members, winners)
    columns = {
        **{name: taken[name] for name in (*_SAME, WARNING) if name in taken.column_names},
        "deleted": pa.array(deletes),
        "half": pa.array(rows.half[winners]),
        "key": rows.key.take(pa.array(winners)),
        "row": _struct(members, deletes),
        "unavailable": _null_where(deletes, unavailable),
        "after_delete": pa.array(after_delete),
        **{name: taken[name] for name in MARKS},
    }
    return ReducedTable(changes, pa.table(columns))


def _members(image: pa.StructArray) -> dict[str, pa.Array]:
    return {member.name: pc.struct_field(image, [member.name]) for member in image.type}


def _struct(members: Mapping[str, pa.Array], null: Flags) -> pa.StructArray:
    if not members:
        return pa.array([None if is_null else {} for is_null in null.tolist()], pa.struct([]))
    fields = [pa.field(name, array.type) for name, array in members.items()]
    return pa.StructArray.from_arrays(list(members.values()), fields=fields, mask=pa.array(null))


def _null_where(mask: Flags, array: pa.Array) -> pa.Array:
    return pc.if_else(pa.array(mask), pa.scalar(None, array.type), array) if mask.any() else array


class _StoredValues:
    """Fills in values that winning rows omit, from earlier rows of their keys in the range.

    Only rows after the last delete of the key are used.
    """

    def __init__(self, tables: Sequence[ChangeTable], rows: _Rows, order: Longs) -> None:
        self._tables, self._rows, self._order = tables, rows, order
        self._rank = np.empty(len(order), np.int64)
        self._rank[order] = np.arange(len(order))
        self._last_delete = self._greatest(rows.deletes)
        self._names = pc.unique(rows.unavailable.flatten()).to_pylist()

    def completed(
        self, members: dict[str, pa.Array], winners: Longs
    ) -> tuple[dict[str, pa.Array], pa.Array, Flags]:
        """Fills in the values that the winning rows omit, from earlier rows of their keys.

        Returns three values:

        - the columns of the winning rows, with the values that were found;
        - for each winning row, the list of columns that it still omits;
        - for each winning row, True if it still omits columns and its key was deleted earlier in the range.
        """
        left = []
        for name in self._names:
            lacks = self._lacks(name)
            wanted = np.nonzero(lacks[winners] & ~self._rows.deletes[winners])[0]
            source = self._sources(name, lacks, winners[wanted])
            has_source = source >= 0
            if has_source.any():
                members = {
                    **members,
                    name: self._filled(members[name], name, wanted[has_source], source[has_source]),
                }
            still = np.zeros(len(winners), np.bool_)
            still[wanted[~has_source]] = True
            left.append(still)
        flags = np.array(left).T
        after_delete = flags.any(axis=1) & (self._last_delete[self._rows.codes[winners]] >= 0)
        return members, name_lists(flags, self._names), after_delete

    def _lacks(self, name: str) -> Flags:
        """Returns a mask of the rows that have no value in the column because the source did not send it."""
        lists = self._rows.unavailable
        parents = pc.list_parent_indices(lists).to_numpy()
        mask = np.zeros(len(lists), np.bool_)
        mask[parents[pc.equal(lists.flatten(), name).to_numpy(zero_copy_only=False)]] = True
        return mask

    def _sources(self, name: str, lacks: Flags, rows: Longs) -> Longs:
        """Returns for each row the latest row of its key that has a value in the column, or -1.

        Only rows after the last delete of the key are used. If that row's writer schema does not have the
        column, the result is -1: the column was dropped in between.
        """
        has = [table.rows.schema.field("after").type.get_field_index(name) >= 0 for table in self._tables]
        codes = self._rows.codes[rows]
        rank = self._greatest(~self._rows.deletes & ~lacks)[codes]
        source = self._order[rank]
        usable = (rank > self._last_delete[codes]) & np.array(has)[self._rows.table[source]]
        return np.where(usable, source, -1)

    def _filled(self, column: pa.Array, name: str, positions: Longs, source: Longs) -> pa.Array:
        """Returns ``column`` with the value at each of ``positions`` replaced by the column's value in
        another row, whose index is in ``source``.
        """
        values = pa.nulls(len(column), column.type)
        table = self._rows.table[source]
        for number in np.unique(table).tolist():
            mine = table == number
            other = _members(self._tables[number].rows["after"].combine_chunks())[name]
            mask = np.zeros(len(column), np.bool_)
            mask[positions[mine]] = True
            # The mask needs its values in the order of the rows.
            ordered = source[mine][np.argsort(positions[mine], kind="stable")]
            replacements = _cast(other.take(pa.array(self._rows.row[ordered])), column.type, name)
            values = pc.replace_with_mask(values, pa.array(mask), replacements)
        mask = np.zeros(len(column), np.bool_)
        mask[positions] = True
        return pc.if_else(pa.array(mask), values, column)

    def _greatest(self, wanted: Flags) -> Longs:
        """Returns, for each key, the rank of its last row that ``wanted`` selects, or -1 if no row is
        selected.
        """
        ranks = np.full(int(self._rows.codes.max(initial=-1)) + 1, -1, np.int64)
        np.maximum.at(ranks, self._rows.codes[wanted], self._rank[wanted])
        return ranks


def _cast(values: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(
            f"A row omits its value in column {name}. The value in an earlier row has type {values.type}, "
            f"which does not fit into {kind}. Have the producer send whole rows (Postgres: REPLICA IDENTITY "
            "FULL).",
            column=name,
        ) from error


def name_lists(flags: npt.NDArray[np.bool_], names: Sequence[str]) -> pa.Array:
    """Returns, for each row, the list of the names whose flags are set, or null if no flag is set."""
    counts = flags.sum(axis=1)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    values = pa.array(names, pa.string()).take(pa.array(np.nonzero(flags)[1]))
    return pa.ListArray.from_arrays(offsets, values, mask=pa.array(counts == 0))


# Keys that occur in several partitions


def mixed_message(keys: Sequence[str]) -> str:
    """Returns the error message for keys that occurred in two partitions.

    ``keys``: the first such keys as JSON.
    """
    return (
        f"The same key came in two partitions of one batch ({', '.join(keys)}), so Kafka's order does not "
        "show which change is newer. The changefeed must send all changes of a key to one partition: set its "
        "dispatcher to 'index-value' or 'table', or to 'columns' with columns of the key, and not to 'ts'. "
        "Then have it write to a new topic, and load the table again from there. Or set sequence_by: source."
    )


def _hashes(keys: pa.StructArray) -> npt.NDArray[np.uint64]:
    import pandas as pd

    whole = np.zeros(len(keys), np.uint64)
    for member in keys.type:
        # As text, so that int and bigint of two writer schemas have equal hashes.
        encoded = pc.struct_field(keys, [member.name]).dictionary_encode()
        texts = encoded.dictionary
        if not pa.types.is_binary(member.type):
            texts = texts.cast(pa.string())
        hashes = pd.util.hash_array(np.array(texts.to_pylist(), dtype=object), categorize=False)
        whole = whole * _ODD + hashes[encoded.indices.to_numpy()]
    return whole
