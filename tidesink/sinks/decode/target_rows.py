"""Conversion of rows of a writer schema into rows of the target, with the target's columns, names and types.

If the writer schema does not have a column, the value depends on when the row was written: before the column
was added, it is the column's default; after the column was dropped, it is null (``DroppedByWriter``). Columns
that only the writer schema has are looked up before this conversion.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import ChangeTable
from tidesink.errors import SchemaMismatchError, ValueOutOfRangeError
from tidesink.events import SOURCE_SEPARATOR, NameFold, Op, TableId, fold_name, folding
from tidesink.sinks.laws.schema_rows import FirstRows, first_rows_of
from tidesink.typemap.arrow import arrow_of_spark, canonical_floats
from tidesink.typemap.target_schema import MetadataKind, TargetColumn, TargetSchema, default_value
from tidesink.typemap.values import TargetValue

_WRITTEN_OPS: Final = pa.array([Op.INSERT.value, Op.UPDATE.value])


# All rows were written after the column was dropped, and none before it was added.
_NO_OFFSETS: Final = pa.array([], pa.int64())

W = TypeVar("W", bound=Hashable)


class Dropped(Protocol):
    """Finds out which rows lack a column because it was dropped. Pickled and sent to Spark tasks."""

    def __call__(self, changes: ChangeTable, /) -> Mapping[str, pa.Int64Array]:
        """Returns the columns, by folded name, that some of these rows lack because the column was dropped.

        For each column, the value is the offsets of the other rows, which lack it because it was not added
        yet when they were written.
        """

    def in_range(self, tables: Sequence[ChangeTable], /) -> Dropped:
        """Returns a copy of this object for the rows of one range of a partition.

        ``tables``: all rows of the range, which show when columns were added and dropped.
        """


@dataclass(frozen=True)
class DroppedByWriter(ABC, Generic[W]):
    """Finds the columns that rows lack because they were dropped, from the order of the writer schemas.

    For a row whose writer schema does not have a column:

    1. If the schema in use has the column, the row was written before the last ADD of the column. It has the
       default, because the source wrote the default into every existing row. The same holds if the column had
       been dropped before and was added again.
    2. Otherwise the column was dropped. The row has NULL if it was written after the DROP, and the default if
       it was written before the ADD.

    A table may return to an earlier schema: after ``ADD COLUMN c; DROP COLUMN c`` it has the first schema
    again, and a registry returns the first id again. Rows with this schema may be from before the ADD or from
    after the DROP. A row is from after the DROP if it is later than the first row that has the column.

    Attributes:
        columns: By writer schema, the columns that it lacks and an earlier schema had.
        later: By writer schema, the columns that it lacks and only later schemas have.
        again: For a writer schema that came into use again: the columns in ``later`` that another schema had
            before it did. If a row cannot be compared with the first row that has such a column, the row
            counts as written after the DROP.
        first_rows: By column, the first known rows that have it.
        fold: The function that folds column names, so that they can be compared.
        in_use: The columns of the schema in use, folded.
    """

    columns: Mapping[W, frozenset[str]]
    again: Mapping[W, frozenset[str]] = field(default_factory=dict)
    later: Mapping[W, frozenset[str]] = field(default_factory=dict)
    first_rows: Mapping[str, FirstRows] = field(default_factory=dict)
    fold: NameFold = fold_name
    in_use: frozenset[str] = frozenset()

    @property
    def can_return(self) -> bool:
        """True if some writer schema lacks a column that another one has.

        Only then can the table have returned to an earlier schema. So only then the schema in use must be
        known.
        """
        return any(self.later.values()) or any(self.columns.values())

    @abstractmethod
    def _writer(self, changes: ChangeTable) -> W | None:
        """Identifies the writer schema of these rows by its key in ``columns``. Returns None if it is not
        known.
        """

    def __call__(self, changes: ChangeTable) -> Mapping[str, pa.Int64Array]:
        writer = self._writer(changes)
        if writer is None:
            return {}
        offsets: dict[str, pa.Int64Array] = dict.fromkeys(
            self.columns.get(writer, frozenset()) - self.in_use, _NO_OFFSETS
        )
        again = self.again.get(writer, frozenset())
        for name in (self.later.get(writer, frozenset()) & (again | self.first_rows.keys())) - self.in_use:
            are_before = self.first_rows.get(name, FirstRows()).are_before(changes.rows)
            not_yet = changes.rows["offset"].filter(pc.fill_null(are_before, name not in again))
            offsets[name] = not_yet.combine_chunks()
        return offsets

    def in_range(self, tables: Sequence[ChangeTable]) -> DroppedByWriter[W]:
        names = frozenset[str]().union(*self.later.values()) - self.in_use
        first_rows = dict(self.first_rows)
        for table in tables if names else ():
            there = names & {self.fold(column.name) for column in table.schema.columns}
            if there and table.rows.num_rows:
                first = first_rows_of(table.rows)
                first_rows |= {name: first.joined(first_rows.get(name, first)) for name in there}
        return replace(self, first_rows=first_rows)


@dataclass(frozen=True)
class DroppedById(DroppedByWriter[int]):
    """Finds dropped columns for protocols that identify a writer's value schema by a registry id."""

    @classmethod
    def of(
        cls,
        columns: Mapping[int, Iterable[str]],
        history: Sequence[int],
        fold: NameFold = fold_name,
        first_rows: Mapping[int, FirstRows] = MappingProxyType({}),
    ) -> DroppedById:
        """Creates the object from the columns of each writer schema.

        ``columns``: the columns of each schema, by registry id. ``history``: the ids in the order in which
        the schemas were in use. An id is repeated if its schema came into use again. ``first_rows``: the
        first known rows of each schema.
        """
        in_use = frozenset(fold(name) for schema_id in history[-1:] for name in columns[schema_id])
        first_of = first_rows_by_column(columns, first_rows, fold)
        return cls(*dropped_in_order(columns, history, fold), first_of, fold, in_use)

    def _writer(self, changes: ChangeTable) -> int | None:
        return changes.schema_id.value if changes.schema_id is not None else None


def first_rows_by_column(
    columns: Mapping[W, Iterable[str]], first_rows: Mapping[W, FirstRows], fold: NameFold
) -> dict[str, FirstRows]:
    """Returns, for each folded column name, the first known rows that have the column.

    ``columns``: the columns of each schema. ``first_rows``: the first known rows of each schema.
    """
    by_column: dict[str, FirstRows] = {}
    for writer, first in first_rows.items():
        for name in {fold(column) for column in columns.get(writer, ())}:
            by_column[name] = first.joined(by_column.get(name, first))
    return by_column


def dropped_in_order(
    columns: Mapping[W, Iterable[str]], history: Sequence[W], fold: NameFold = fold_name
) -> tuple[dict[W, frozenset[str]], dict[W, frozenset[str]], dict[W, frozenset[str]]]:
    """Returns for each schema the columns that it lacks and another schema has, folded.

    Args:
        columns: The columns of each schema.
        history: The schemas in the order in which they were in use. A schema is repeated if it came into use
            again.
        fold: The function that folds column names, so that they can be compared.

    Returns:
        Three mappings from a schema to columns that it lacks: columns dropped before it was first in use,
            columns dropped before it was in use again, and columns that only later schemas have.
    """
    first: dict[W, frozenset[str]] = {}
    again: dict[W, frozenset[str]] = {}
    had = frozenset[str]()
    for writer in history:
        there = frozenset(fold(name) for name in columns[writer])
        if writer in first:
            again[writer] = had - there - first[writer]
        else:
            first[writer] = had - there
        had |= there
    later = {
        writer: had - {fold(name) for name in columns[writer]} - dropped for writer, dropped in first.items()
    }
    return first, {writer: names for writer, names in again.items() if names}, later


@dataclass(frozen=True)
class DroppedNow:
    """The columns that the source no longer has.

    Every row that lacks one of them was written after the DROP.
    """

    columns: frozenset[str] = frozenset()

    def __call__(self, _changes: ChangeTable) -> Mapping[str, pa.Int64Array]:
        return dict.fromkeys(self.columns, _NO_OFFSETS)

    def in_range(self, _tables: Sequence[ChangeTable]) -> DroppedNow:
        return self


@dataclass(frozen=True)
class Metadata:
    """The metadata columns of a table, which describe the last change of a row.

    Attributes:
        names: The names of the columns in the target, by kind.
        source: The table at the source.
        batch: The number of the batch.
        marks_deletes: True if a deleted row stays in the target and is marked. Then a delete writes the
            metadata columns too.
    """

    names: Mapping[MetadataKind, str]
    source: TableId
    batch: int = 0
    marks_deletes: bool = False

    def columns(self, events: pa.Table, ops: pa.Array) -> dict[str, pa.Array]:
        """Returns the metadata columns by name, with one value per event.

        ``events``: the columns of ``ChangeTable.rows`` that describe where an event is from. ``ops``: the
        operation of each event as a word.
        """
        fixed = {"database": self.source.schema, "table": self.source.name, "batch": self.batch}
        arrays = {}
        for kind, name in self.names.items():
            if kind in fixed:
                arrays[name] = pa.repeat(pa.scalar(fixed[kind]), events.num_rows)
            elif kind == "op":
                arrays[name] = ops
            elif kind == "position":
                arrays[name] = source_texts(events["source"].combine_chunks())
            else:
                arrays[name] = events[kind].combine_chunks()
        return arrays


@dataclass(frozen=True)
class TargetRows:
    """Converts rows of all writer schemas into the columns of the target.

    Attributes:
        shape: The table's own columns, with the source's names. Keys are compared, and filters are evaluated,
            in these columns.
        dropped: Finds out which columns a row lacks because they were dropped.
        renamed: New names of renamed columns by old names, newest first. If a row has several names of a
            column, its current name is used, or else the newest of the old names.
        target: The columns in the target, or None if they are the same as the table's own.
        sources: The table's own names of columns by the target's names, or None if the names are the same.
            Target columns that are missing here are the shard column and metadata columns.
        metadata: The metadata columns, or None.
        unread: Columns of ``shape`` whose values are not needed, so their values are not checked.
    """

    shape: TargetSchema
    dropped: Dropped = DroppedNow()
    renamed: Mapping[str, str] = field(default_factory=dict)
    target: TargetSchema | None = None
    sources: Mapping[str, str] | None = None
    metadata: Metadata | None = None
    unread: frozenset[str] = frozenset()

    @property
    def target_shape(self) -> TargetSchema:
        """The table's columns in the target."""
        return self.shape if self.target is None else self.target

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the key columns in ``shape``."""
        return tuple(column.name for column in self.shape.key_columns)

    @property
    def value_sources(self) -> dict[str, str]:
        """Maps the target's names of non-key columns to their names in ``shape``."""
        others = (column.name for column in self.target_shape.columns if not column.key)
        return {name: own for name in others if (own := self._own_name(name)) is not None}

    def new_columns(self, names: Iterable[str]) -> list[str]:
        """Returns the columns of a row (``names``) that ``shape`` does not have under any of their names."""
        there = [*names]
        read = self.written(there).values()
        return [name for name in there if name not in read]

    def key_values(self, name: str, values: pa.Array) -> pa.Array:
        """Returns the values of a key column, converted into the column's type in ``shape``.

        Raises:
            SchemaMismatchError: A value does not fit the type.
        """
        return _as_type(values, self.shape.by_name[self.shape.fold(name)])

    def unfit(self, changes: ChangeTable, *, before: bool = False) -> dict[int, SchemaMismatchError]:
        """Returns the errors of changes that have a value which does not fit its column's type, by the
        change's index.

        ``before``: True to check the old rows too.
        """
        errors: dict[int, SchemaMismatchError] = {}
        for image in ("after", "before") if before else ("after",):
            rows = changes.rows[image].combine_chunks()
            written = self.written([member.name for member in rows.type])
            for column in self.shape.columns:
                if column.name in written and column.name not in self.unread:
                    values = pc.struct_field(rows, [written[column.name]])
                    try:
                        _as_type(values, column)
                    except SchemaMismatchError:
                        errors = {**dict(_unfit_values(values, column)), **errors}
        return errors

    def key(self, keys: pa.StructArray) -> pa.StructArray:
        """Converts keys in the columns of ``shape`` into the target's names and types.

        Raises:
            SchemaMismatchError: A value does not fit the type of its key column.
        """
        columns = self.target_shape.key_columns
        arrays = [
            self._target_values(column, len(keys), lambda own: _as_type(keys.field(own.name), own), {})
            for column in columns
        ]
        return pa.StructArray.from_arrays(arrays, fields=_fields(columns), mask=keys.is_null())

    def in_range(self, tables: Sequence[ChangeTable]) -> TargetRows:
        """Returns the conversion for the rows of one range of a partition.

        ``tables``: all rows of the range, which show when columns were added and dropped.
        """
        return replace(self, dropped=self.dropped.in_range(tables))

    def row(
        self,
        changes: ChangeTable,
        rows: pa.StructArray,
        metadata: Mapping[str, pa.Array] | None = None,
        *,
        offsets: pa.ChunkedArray | None = None,
    ) -> pa.StructArray:
        """Converts rows of one writer schema into the target's columns.

        A null row stays null. If deleted rows are marked in the target, a null row gets only its metadata
        columns.

        Args:
            changes: The changes that the rows belong to.
            rows: The rows, in the writer's columns.
            metadata: The result of ``metadata_columns``, or None.
            offsets: The offset of each row's record, or None if there is exactly one row per change.

        Raises:
            SchemaMismatchError: A value does not fit the type of its column.
        """
        columns, read = self.target_shape.columns, self._read(changes, rows, offsets)
        arrays = [self._target_values(column, len(rows), read, metadata or {}) for column in columns]
        marked = bool(metadata) and self.metadata is not None and self.metadata.marks_deletes
        return pa.StructArray.from_arrays(
            arrays, fields=_fields(columns), mask=None if marked else rows.is_null()
        )

    def source_row(
        self, changes: ChangeTable, rows: pa.StructArray, names: Container[str] | None = None
    ) -> pa.StructArray:
        """Converts rows of a writer schema into the columns of ``shape``.

        ``names``: the columns to convert, or None for all columns whose values are needed.
        """
        own = (column for column in self.shape.columns if column.name not in self.unread)
        columns = tuple(column for column in own if names is None or column.name in names)
        arrays = [*map(self._read(changes, rows), columns)]
        return pa.StructArray.from_arrays(arrays, fields=_fields(columns), mask=rows.is_null())

    def source_names(self, lists: pa.ListArray) -> pa.ListArray:
        """Converts lists of column names from a writer's names into the names in ``shape``.

        Columns that ``shape`` does not have are removed.
        """
        return self._listed(lists, {column.name: column.name for column in self.shape.columns})

    def names(self, lists: pa.ListArray) -> pa.ListArray:
        """Converts lists of column names from a writer's names into the target's names.

        Columns that the target does not have are removed.
        """
        held = ((self._own_name(column.name), column.name) for column in self.target_shape.columns)
        return self._listed(lists, {own: name for own, name in held if own is not None})

    def metadata_columns(self, events: pa.Table, ops: pa.Array) -> dict[str, pa.Array]:
        """Returns the metadata columns by name, with one value per event; empty without such columns.

        ``events``: the columns of ``ChangeTable.rows`` that describe where an event is from. ``ops``: the
        operation of each event as a word.
        """
        if self.metadata is None:
            return {}
        types = {column.name: arrow_of_spark(column.spark) for column in self.target_shape.columns}
        return {name: values.cast(types[name]) for name, values in self.metadata.columns(events, ops).items()}

    def _own_name(self, name: str) -> str | None:
        """Returns the name in ``shape`` of a target column. Returns None for a column that the source table
        does not have, such as a metadata column.
        """
        if self.sources is not None:
            return self.sources.get(name)
        return name if self.shape.find(name) is not None else None

    def _target_values(
        self,
        column: TargetColumn,
        count: int,
        read: Callable[[TargetColumn], pa.Array],
        metadata: Mapping[str, pa.Array],
    ) -> pa.Array:
        """Returns the values of a target column.

        ``read``: returns the values of a column of ``shape``. ``metadata``: the values of metadata columns.
        """
        own, shard = self._own_name(column.name), self.target_shape.shard
        if own is not None:
            return read(self.shape.by_name[self.shape.fold(own)])
        if shard is not None and column.name == shard.column:
            return pa.repeat(pa.scalar(shard.value), count)
        values = metadata.get(column.name)
        return pa.nulls(count, arrow_of_spark(column.spark)) if values is None else values

    def _read(
        self, changes: ChangeTable, rows: pa.StructArray, offsets: pa.ChunkedArray | None = None
    ) -> Callable[[TargetColumn], pa.Array]:
        """Returns a function that takes a column of ``shape`` and returns its values in the rows."""
        written = self.written([member.name for member in rows.type])
        dropped = self.dropped(changes)

        def values(column: TargetColumn) -> pa.Array:
            if column.name in written:
                return _as_type(pc.struct_field(rows, [written[column.name]]), column)
            kind, before = arrow_of_spark(column.spark), dropped.get(self.shape.fold(column.name))
            value = None if before is not None and not len(before) else self._defaults[column.name]
            if value is None:
                return pa.nulls(len(rows), kind)
            there = rows.is_valid()
            if before is not None:
                row_offsets = changes.rows["offset"] if offsets is None else offsets
                there = pc.and_(there, pc.is_in(row_offsets.combine_chunks(), before))
            return pc.if_else(there, pa.scalar(value, kind), pa.scalar(None, kind))

        return values

    def _listed(self, lists: pa.ListArray, names: Mapping[str, str]) -> pa.ListArray:
        if lists.null_count == len(lists):
            return lists
        read = (self.written(written_names or ()) for written_names in lists.to_pylist())
        renamed_lists = [[names[own] for own in own_names if own in names] or None for own_names in read]
        return pa.array(renamed_lists, lists.type)

    def written(self, names: Iterable[str]) -> dict[str, str]:
        """Maps the names of ``shape``'s columns to their names in a row of a writer schema, in the order of
        ``shape``.
        """
        listed = tuple(names)
        fold = folding(listed, (column.name for column in self.shape.columns))
        there = {fold(name): name for name in listed}
        written_names = {}
        for column in self.shape.columns:
            called = [column.name, *(old for old, new in self.renamed.items() if new == column.name)]
            name = next((there[fold(candidate)] for candidate in called if fold(candidate) in there), None)
            if name is not None:
                written_names[column.name] = name
        return written_names

    @cached_property
    def _defaults(self) -> dict[str, TargetValue]:
        return {column.name: _default(column, self.shape) for column in self.shape.columns}


def event_words(ops: pa.Array, deleted: pa.Array) -> pa.Array:
    """Returns the last operation on each row as a word.

    The word is ``delete`` for a deleted row. For other rows it is ``insert`` or ``update`` if the record
    distinguishes them, else ``upsert``.
    """
    written = pc.if_else(pc.is_in(ops, _WRITTEN_OPS), ops, pa.scalar(Op.UPSERT.value))
    return pc.if_else(deleted, pa.scalar(Op.DELETE.value), written)


def source_texts(source: pa.Array) -> pa.Array:
    """Returns source positions as text, in the form of ``Position.source_text``."""
    return pc.binary_join(source.cast(pa.list_(pa.string())), SOURCE_SEPARATOR)


def _default(column: TargetColumn, shape: TargetSchema) -> TargetValue:
    """Returns the value of a column in rows from before it was added; None (NULL) if this value is
    not known.
    """
    try:
        return default_value(column, shape)
    except ValueOutOfRangeError:
        return None


def key_type(shape: TargetSchema) -> pa.StructType:
    """Returns the Arrow struct type for the key of ``shape``."""
    return pa.struct(_fields(shape.key_columns))


def row_type(shape: TargetSchema) -> pa.StructType:
    """Returns the Arrow struct type for a row with the columns of ``shape``."""
    return pa.struct(_fields(shape.columns))


def _fields(columns: tuple[TargetColumn, ...]) -> list[pa.Field]:
    return [pa.field(column.name, arrow_of_spark(column.spark)) for column in columns]


def _as_type(values: pa.Array, column: TargetColumn) -> pa.Array:
    converted = _cast_to(values, column)
    return canonical_floats(converted) if column.key else converted


def _cast_to(values: pa.Array, column: TargetColumn) -> pa.Array:
    kind = arrow_of_spark(column.spark)
    if values.type == kind:
        return values
    if pa.types.is_string(kind) != pa.types.is_string(values.type) and _is_moment(kind, values.type):
        raise _unfit(values.type, column)
    if pa.types.is_string(kind) and pa.types.is_decimal(values.type):
        return pa.array([None if value is None else format(value, "f") for value in values.to_pylist()], kind)
    try:
        return values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _unfit(values.type, column) from error


def _is_moment(*kinds: pa.DataType) -> bool:
    """Returns True if one of the types is a date or a time. These are never converted from or to text."""
    return any(pa.types.is_temporal(kind) for kind in kinds)


def _unfit_values(values: pa.Array, column: TargetColumn) -> Iterator[tuple[int, SchemaMismatchError]]:
    for index in range(len(values)):
        try:
            _as_type(values.slice(index, 1), column)
        except SchemaMismatchError as error:
            yield index, error


def _unfit(kind: Any, column: TargetColumn) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"A value of type {kind} does not fit into the column's type {column.spark}.", column=column.name
    )
