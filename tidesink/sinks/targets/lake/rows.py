"""Computes which rows a batch writes to a lake's files, from its own rows and the table's stored rows.

Some batches depend on the stored rows with the same keys:

- in the source's order (`sequence_by: source`), on their positions in the source's log, because a row that is
  not newer than the stored row is skipped;
- if the source omitted values, on the stored values;
- under ``deletes: soft``, on the whole rows, which are written again with the deletion mark.

The results are the same as those of the MERGE statements of ``lake.merge``. ``Split`` divides rows into
partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.errors import AccountingError, TargetError, ValueNotStoredError
from tidesink.events import fold_name
from tidesink.sinks.spark.errors import NOT_STORED
from tidesink.sinks.spark.payloads import DELETE, UPSERT
from tidesink.sinks.targets.base import (
    OWN_COLUMNS,
    PLACE_COLUMNS,
    SEQUENCE_COLUMN,
    SOFT_DELETE_COLUMN,
    ReducedBatch,
)
from tidesink.sinks.targets.lake.tables import LONGEST_FOLDER
from tidesink.typemap.arrow import canonical_floats

# Metadata key of an Arrow field: its field id in a Parquet file.
FIELD_ID: Final = b"PARQUET:field_id"
Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
# Column of a table of keys: True if the row with this key needs values of the stored row.
NEEDS_STORED: Final = "_tidesink_needs_stored"
# If a task would write to more partitions than this, the batch is not written as files.
MOST_PARTITIONS: Final = 1_000
# When integers are searched for in a few, most are skipped by a hash of at least 16 bits. The table of hashes
# must fit in the processor's cache.
_FEWEST_BITS: Final = 16
_MOST_HASHES: Final = 1 << 21
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


def field_of(name: str, kind: pa.DataType, number: int | None, *, nullable: bool = True) -> pa.Field:
    """Create an Arrow field for a column.

    ``number``: its field id in Parquet files; None for no id.
    """
    return pa.field(name, kind, nullable, None if number is None else {FIELD_ID: str(number).encode()})


def sequence_type(members: Sequence[tuple[str, int | None]], element: int | None = None) -> pa.DataType:
    """Return the Arrow type of ``SEQUENCE_COLUMN`` in files.

    ``members``: name and field id of each member of the struct.
    ``element``: field id of the elements of its list.
    """
    types = (
        pa.list_(field_of("element", pa.int64(), element)),
        pa.bool_(),
        pa.int32(),
        pa.int64(),
        pa.int32(),
    )
    return pa.struct(
        [field_of(name, kind, field_id) for (name, field_id), kind in zip(members, types, strict=True)]
    )


class FileColumn(NamedTuple):
    """A column of a table's Parquet files.

    ``name``: its name in the files.
    ``source``: its name in the batch.
    ``field_id``: its field id in the files; None if the table has no field ids.
    ``required``: True if the column is NOT NULL.
    ``key``: True if the column is part of the key.
    """

    name: str
    source: str
    type: pa.DataType
    field_id: int | None
    required: bool
    key: bool

    @property
    def field(self) -> pa.Field:
        """The column as an Arrow field."""
        return field_of(self.name, self.type, self.field_id, nullable=not self.required)

    def cast(self, values: pa.Array) -> pa.Array:
        """Convert values to the column's type, from a narrower type, a struct with other member names, or
        from decimals to text.
        """
        if pa.types.is_string(self.type) and pa.types.is_decimal(values.type):
            # Arrow's cast would write small decimals with an exponent.
            texts = (None if number is None else f"{number:f}" for number in values.to_pylist())
            return pa.array(texts, self.type)
        if not pa.types.is_struct(self.type):
            return values.cast(self.type)
        whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        members = [member.cast(field.type) for member, field in zip(whole.flatten(), self.type, strict=True)]
        return pa.StructArray.from_arrays(members, fields=[*self.type], mask=whole.is_null())


class NotAsFilesError(TargetError):
    """A batch cannot be written as files, but Spark's MERGE may be able to write it, except in a history. The
    message is the reason.
    """


class TooManyStoredError(NotAsFilesError):
    """The batch needs more values of stored rows than may be returned from tasks to the driver."""


class StoredRows(NamedTuple):
    """The stored rows on which a batch depends, as two Arrow tables with the key columns.

    ``stale``: keys whose stored row is at least as new as the batch's row.
    ``rows``: keys with the stored values that the batch needs.
    """

    stale: pa.Table
    rows: pa.Table


@dataclass(frozen=True)
class RowRules:
    """The settings of a batch (``ReducedBatch``) that determine which rows it writes.

    ``soft``: True if the batch has soft deletes.
    ``on_delete``: lower-case names of the columns that a soft delete updates in addition to the deletion
        mark.
    ``appends``: True if all rows have new keys, so that no stored row is searched for.
    """

    sequenced: bool = False
    soft: bool = False
    keeps: bool = False
    lenient: bool = False
    on_delete: frozenset[str] = frozenset()
    appends: bool = False

    @classmethod
    def of(cls, batch: ReducedBatch) -> RowRules:
        """Return the rules of a batch. ``soft`` is False if the batch has no deletes."""
        how = batch.how
        return cls(
            batch.sequenced,
            how.delete_mode == "soft" and batch.deletes > 0,
            batch.keeps,
            how.lenient,
            frozenset(fold_name(name) for name in how.on_delete),
            how.mode == "append",
        )

    def compares(self, files: Collection[object]) -> bool:
        """Return True if the rows to write depend on stored rows.

        ``files``: the table's existing data files. If there are none, there are no stored rows.
        """
        return bool(files) and (self.sequenced or self.soft or self.keeps)

    @property
    def fields(self) -> list[str]:
        """The columns that tasks read of a payload, which is an Arrow IPC stream of a batch's rows."""
        extra = ("_kept", "_after_delete", *PLACE_COLUMNS) if self.keeps else ()
        return ["_op", "key", "after", *(("_seq",) if self.sequenced else ()), *extra]

    def stored_columns(self, columns: Sequence[FileColumn], kept: Collection[str]) -> tuple[FileColumn, ...]:
        """Return the columns whose stored values the batch needs.

        ``kept``: names of the columns whose value at least one of the batch's rows omits.
        """
        return tuple(
            column
            for column in columns
            if not column.key
            and (
                (column.source == SOFT_DELETE_COLUMN and self.keeps)
                or column.source in kept
                or (self.soft and fold_name(column.source) not in {*OWN_COLUMNS, *self.on_delete})
            )
        )

    def omitted(self, rows: pa.Table) -> list[str]:
        """Return the names of the columns whose value at least one of the rows omits."""
        names: list[str] = pc.unique(pc.list_flatten(rows["_kept"])).to_pylist() if self.keeps else []
        return names

    def keys(self, rows: pa.Table, columns: Sequence[FileColumn]) -> tuple[pa.Table, pa.Table]:
        """Return the keys to upsert and the keys to delete, for the tasks that search for stored rows.

        If the rules need them, the tables also have the row's position in the source's log, and a flag that
        is True if the row needs stored values.

        Raises:
            TargetError: a key column has no value.
        """
        table = keys_of(rows, columns)
        if self.sequenced:
            table = table.append_column(SEQUENCE_COLUMN, rows["_seq"])
        if self.soft or self.keeps:
            needs = pc.equal(rows["_op"], DELETE) if self.soft else pa.array(np.zeros(len(rows), bool))
            if self.keeps:
                lengths = pc.fill_null(pc.list_value_length(rows["_kept"]), 0)
                needs = pc.or_(needs, pc.greater(lengths, 0))
            table = table.append_column(NEEDS_STORED, needs)
        upserts, deletes = (table.filter(pc.equal(rows["_op"], kind)) for kind in (UPSERT, DELETE))
        return upserts, deletes

    def written(
        self, rows: pa.Table, columns: Sequence[FileColumn], stored: tuple[pa.Table, pa.Table] | None = None
    ) -> pa.Table:
        """Return the rows that the batch writes to files.

        ``stored``: the members of a ``StoredRows``; None if the batch does not depend on stored rows.

        Raises:
            ValueNotStoredError: a row omits a value that the table does not have.
            TargetError: a row has no value in a NOT NULL column.
        """
        indexes, stored_rows = np.full(rows.num_rows, -1), None if stored is None else StoredRows(*stored)
        if stored_rows is not None:
            keys = keys_of(rows, columns)
            fresh = pa.array(matched(keys, stored_rows.stale) < 0)
            rows, keys = rows.filter(fresh), keys.filter(fresh)
            indexes = matched(keys, stored_rows.rows.select(keys.column_names))
        deletes = _mask(pc.equal(rows["_op"], DELETE))
        if not self.sequenced:
            wanted = ~deletes | (self.soft & (indexes >= 0))
            if not wanted.all():
                rows, indexes, deletes = rows.filter(pa.array(wanted)), indexes[wanted], deletes[wanted]
        found_rows = self._found(
            rows, indexes, deletes, columns, None if stored_rows is None else stored_rows.rows
        )
        arrays = [found_rows.values(column) for column in columns]
        for column, values in zip(columns, arrays, strict=True):
            check_values(column, values)
        return pa.table(arrays, schema=pa.schema([column.field for column in columns]))

    def _found(
        self,
        rows: pa.Table,
        indexes: Places,
        deletes: Mask,
        columns: Sequence[FileColumn],
        stored: pa.Table | None,
    ) -> _Found:
        has_stored = indexes >= 0
        if self.keeps:
            has_stored &= ~_mask(rows["_after_delete"])
            marked = next((column.name for column in columns if column.source == SOFT_DELETE_COLUMN), None)
            if stored is not None and marked in stored.column_names:  # missing if no stored row was found
                has_stored &= ~_mask(_taken(stored[marked], indexes))
        return _Found(rows, indexes, deletes, has_stored, stored, self)


class _Found(NamedTuple):
    """Rows to write, each with the index of its stored row.

    ``at``: index of the stored row in ``stored``; -1 if there is no stored row.
    ``deletes``: True for rows that are deletes.
    ``kept``: True if stored values can be kept: the stored row exists and was not deleted before this row.
    """

    rows: pa.Table
    at: Places
    deletes: Mask
    kept: Mask
    stored: pa.Table | None
    rules: RowRules

    def values(self, column: FileColumn) -> pa.Array:
        """Return the values that the rows have in a column.

        Raises:
            ValueNotStoredError: a row omits a value that the table does not have.
        """
        if column.source == SOFT_DELETE_COLUMN:
            return pa.array(self.deletes)
        if column.source == SEQUENCE_COLUMN:
            return column.cast(self.rows["_seq"])
        part = self.rows["key" if column.key else "after"]
        sent = column.cast(pc.struct_field(part, [column.source]))
        if column.key:
            return sent
        omitted = self._omitted(column.source)
        absent = omitted & ~self.kept
        if absent.any() and not self.rules.lenient:
            raise self._not_stored(int(np.argmax(absent)))
        stays = omitted & self.kept
        if self.rules.soft and fold_name(column.source) not in self.rules.on_delete:
            stays |= self.deletes & (self.at >= 0)
        if self.stored is not None and stays.any():
            sent = pc.if_else(pa.array(stays), _taken(self.stored[column.name], self.at), sent)
        return sent

    def _omitted(self, name: str) -> Mask:
        """Return a mask of the rows that omit the value of a column."""
        mask = np.zeros(self.rows.num_rows, bool)
        if self.rules.keeps:
            names = self.rows["_kept"].combine_chunks()
            here = _mask(pc.equal(pc.list_flatten(names), name))
            mask[pc.list_parent_indices(names).to_numpy()[here]] = True
        return mask

    def _not_stored(self, row: int) -> ValueNotStoredError:
        """Return the error for a row that omits a value which no stored row has."""
        names = ", ".join(self.rows["_kept"][row].as_py())
        context = {name.removeprefix("_"): self.rows[name][row].as_py() for name in PLACE_COLUMNS}
        return ValueNotStoredError(NOT_STORED.format(columns=names), **context)


def newer(ours: pa.StructArray, stored: pa.StructArray) -> Mask:
    """Return a mask that is True where the batch's row is newer than the stored row, or the stored row has no
    position.

    ``ours``, ``stored``: source positions of the batch's rows and of their stored rows, as arrays of the type
        ``base.SEQUENCE_DDL`` with the same length.
    """
    longest = max(_longest(ours), _longest(stored))
    order = np.zeros(len(ours), np.int8)
    for one, other in zip(_numbers(ours, longest), _numbers(stored, longest), strict=True):
        order = np.where(order == 0, (one > other).astype(np.int8) - (one < other), order)
    mask: Mask = (order > 0) | ~_mask(stored.is_valid())
    return mask


def _longest(positions: pa.StructArray) -> int:
    return pc.max(pc.list_value_length(positions.flatten()[0])).as_py() or 0


def _numbers(positions: pa.StructArray, longest: int) -> Iterator[npt.NDArray[Any]]:
    """Yield the columns of numbers by which source positions are compared, the most significant column first.

    A list of source numbers is greater than any shorter list that is its beginning.

    ``longest``: number of source numbers of the longest list.
    """
    source, *others = positions.flatten()
    starts, counts = source.offsets.to_numpy()[:-1], _integers(pc.list_value_length(source))
    values = _integers(source.values)
    for index in range(longest):
        there = index < counts
        number = np.full(len(there), -1)
        number[there] = values[(starts + index)[there]]
        yield from (there, number)
    yield from map(_integers, others)


def _integers(numbers: pa.Array) -> Places:
    """Convert an Arrow array of non-negative integers to numpy numbers, with -1 for null."""
    values: Places = pc.fill_null(numbers.cast(pa.int64()), -1).to_numpy()
    return values


def keys_of(rows: pa.Table, columns: Sequence[FileColumn]) -> pa.Table:
    """Return an Arrow table of the key columns of a batch's rows.

    Raises:
        TargetError: a key column has no value. A row with a null key would never be found again.
    """
    keys = [column._replace(required=True) for column in columns if column.key]
    arrays = [column.cast(pc.struct_field(rows["key"], [column.source])) for column in keys]
    for column, values in zip(keys, arrays, strict=True):
        check_values(column, values)
    return pa.table(arrays, schema=pa.schema([column.field for column in keys]))


def check_values(column: FileColumn, values: pa.Array) -> None:
    if column.required and values.null_count:
        raise TargetError(
            f"A row has no value in the column {column.source}, which is NOT NULL. Nothing was committed. "
            "Correct the row at the source."
        )


def _taken(values: pa.ChunkedArray, at: Places) -> pa.ChunkedArray:
    """Return the values at the indexes ``at``, with null for the index -1."""
    return values.take(pa.array(at, mask=at < 0))


def _mask(flags: pa.Array) -> Mask:
    """Convert an Arrow array of booleans to a numpy mask, with False for null."""
    mask: Mask = np.asarray(pc.fill_null(flags, False), bool)
    return mask


def matched(rows: pa.Table, keys: pa.Table) -> Places:
    """Return the index of each row's key in ``keys``; -1 if it is not there. Both tables have only the key
    columns.

    Raises:
        AccountingError: ``keys`` has a key twice.
    """
    row_codes, of = np.zeros(rows.num_rows, np.int64), np.zeros(keys.num_rows, np.int64)
    distinct = of[:1]
    for name in keys.column_names:
        # Files of other writers may contain -0.0, or another NaN.
        stored, wanted = canonical_floats(rows[name]), canonical_floats(keys[name])
        values = pc.unique(wanted)
        theirs, own = codes(stored, values), codes(wanted, values)
        if keys.num_columns == 1 and len(values) == keys.num_rows:
            return theirs
        distinct, of = np.unique(of * len(values) + own, return_inverse=True)
        both = np.where((row_codes >= 0) & (theirs >= 0), row_codes * len(values) + theirs, -1)
        positions = np.minimum(np.searchsorted(distinct, both), max(0, len(distinct) - 1))
        row_codes = (
            np.where(distinct[positions] == both, positions, -1)
            if len(distinct)
            else np.full(rows.num_rows, -1)
        )
    if len(distinct) != keys.num_rows:
        raise AccountingError("A batch has one key twice. Nothing was committed. Report this with the log.")
    number = np.empty(len(distinct), np.int64)
    number[of] = np.arange(len(distinct))
    return np.where(row_codes >= 0, number[row_codes], -1) if len(distinct) else row_codes


def numbered(columns: Iterable[pa.ChunkedArray], rows: int) -> Places:
    """Number rows by their content: rows that are equal in all columns, including NULLs, get the same
    number.
    """
    numbers = np.zeros(rows, np.int64)
    for values in columns:
        encoded = pc.dictionary_encode(pa.chunked_array(values).combine_chunks(), null_encoding="encode")
        both = numbers * len(encoded.dictionary) + encoded.indices.to_numpy()
        numbers = np.unique(both, return_inverse=True)[1]
    return numbers


def codes(values: pa.ChunkedArray, distinct: pa.Array) -> Places:
    """Return, for each value, its index in ``distinct``, or -1 if it is not there."""
    if not _is_sparse(values, distinct):
        return _looked_up(values, distinct)
    indexes = np.full(len(values), -1, np.int64)
    likely = np.flatnonzero(_may_be_among(values, distinct))
    indexes[likely] = _looked_up(values.take(pa.array(likely)), distinct)
    return indexes


def _looked_up(values: pa.ChunkedArray, distinct: pa.Array) -> Places:
    indexes: Places = pc.fill_null(pc.index_in(values, value_set=distinct), -1).to_numpy()
    return indexes.astype(np.int64)


def _is_sparse(values: pa.ChunkedArray, distinct: pa.Array) -> bool:
    """Return True if hashes can rule out most values: they are many integers, and ``distinct`` has few
    values.

    This is the case when the keys of a small batch are searched for in a large table. Looking up a value
    takes several times as long as computing its hash.
    """
    fits = pa.types.is_signed_integer(values.type) or pa.types.is_timestamp(values.type)
    few = 0 < 64 * len(distinct) <= min(len(values), _MOST_HASHES)
    return bool(fits and few and not values.null_count and not distinct.null_count)


def _may_be_among(values: pa.ChunkedArray, distinct: pa.Array) -> Mask:
    """Return a mask of the values whose hash is also the hash of a value in ``distinct``."""
    bits = max(_FEWEST_BITS, int(64 * len(distinct)).bit_length())
    taken = np.zeros(1 << bits, bool)
    taken[_hashes(distinct, bits)] = True
    parts: list[Mask] = [taken[_hashes(chunk, bits)] for chunk in values.chunks]
    return np.concatenate(parts)


def _hashes(values: pa.Array, bits: int) -> npt.NDArray[np.uint64]:
    """Return a hash of each value: the upper ``bits`` bits of its product with 2^64 divided by the golden
    ratio.
    """
    numbers = values.cast(pa.int64()).to_numpy().view(np.uint64)
    hashes: npt.NDArray[np.uint64] = (numbers * _GOLDEN) >> np.uint64(64 - bits)
    return hashes


# Partitions. A new file belongs to one of them.


class Partition(NamedTuple):
    """A partition of a table.

    ``folder``: the folder of its files, relative to the table's data folder.
    ``values``: its partition values, as text in the form that a commit to Delta or Iceberg needs.
    """

    folder: str = ""
    values: str = ""


# A function that splits rows by partition. It drops partition columns that the format does not store in
# files.
Split = Callable[[pa.Table], Iterator[tuple[Partition, pa.Table]]]


class TooManyPartitionsError(ValueError):
    """The rows belong to more than ``MOST_PARTITIONS`` partitions."""


def unpartitioned(rows: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
    """Yield all rows in one partition: the ``Split`` of a table without partitions."""
    yield Partition(), rows


def grouped(rows: pa.Table, by: Sequence[pa.ChunkedArray]) -> Iterator[tuple[int, pa.Table]]:
    """Yield groups of rows that are equal in all columns of ``by``, each with the index of its first row.

    NULLs are equal to each other.

    Raises:
        TooManyPartitionsError: there are more than ``MOST_PARTITIONS`` groups. It is raised before the first
            group.
    """
    codes = numbered(by, rows.num_rows)
    _, firsts, counts = np.unique(codes, return_index=True, return_counts=True)
    if len(firsts) > MOST_PARTITIONS:
        raise TooManyPartitionsError
    if len(firsts) > 1:
        rows = rows.take(np.argsort(codes, kind="stable"))
    start = 0
    for first, count in zip(firsts, counts, strict=True):
        yield int(first), rows.slice(start, count)
        start += count


def folder_of(names: Iterable[str]) -> str:
    """Join folder names to a path. Each name is cut to ``LONGEST_FOLDER`` bytes, because readers ignore the
    names.
    """
    return "/".join(name.encode()[:LONGEST_FOLDER].decode(errors="ignore") for name in names)


def iso_text(value: pa.Scalar) -> str:
    """Format a date or timestamp as ISO 8601, with six fraction digits, and for any year."""
    is_date = pa.types.is_date(value.type)
    number = value.cast(pa.int32() if is_date else pa.int64()).as_py()
    text = str(np.datetime64(number, "D" if is_date else "us"))
    sign, digits = ("-", text[1:]) if text[0] == "-" else ("", text)
    year, _, rest = digits.partition("-")
    return f"{sign or '+' * (len(year) > 4)}{year:0>4}-{rest}"
