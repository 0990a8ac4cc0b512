"""A writer's rows as the rows of the target: its columns, under its names, in its types.

A column that the writer lacks has its default if the row was written before the column was added, and is
null if it was written after the column was dropped (``DroppedByWriter``). What a writer has beyond the shape
is looked up before the rows come here.
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
from tidesink.sinks.batch.schema_rows import FirstRows, first_rows_of
from tidesink.typemap.arrow import arrow_of_spark, canonical_floats
from tidesink.typemap.target_schema import MetadataKind, ShapeColumn, TableShape, default_value
from tidesink.typemap.values import TargetValue

_TOLD_OPS: Final = pa.array([Op.INSERT.value, Op.UPDATE.value])


# No row was written before the column was added: all lack it since it was dropped.
_NO_OFFSETS: Final = pa.array([], pa.int64())

W = TypeVar("W", bound=Hashable)


class Dropped(Protocol):
    """Says what a writer lacks since it was dropped; travels to the tasks by pickle."""

    def __call__(self, changes: ChangeTable, /) -> Mapping[str, pa.Int64Array]:
        """Columns of the shape, folded, that some of these rows lack because they were dropped.

        Each has the offsets of the rows that lack it because it was not added yet.
        """

    def in_range(self, tables: Sequence[ChangeTable], /) -> Dropped:
        """The same for one range of a partition, all of whose rows are in these tables."""


@dataclass(frozen=True)
class DroppedByWriter(ABC, Generic[W]):
    """What each writer's schema lacks because it was dropped, by the order in which schemas were in use.

    The rule, for a row whose writer's schema lacks a column:

    1. If the schema in use has the column, the row is from before the newest ADD, and has the default: the
       source wrote it into every row that was there. So it is after a DROP that was taken back.
    2. Else the column was dropped. The row has NULL if it is from after the DROP, and the default if it is
       from before the ADD.

    A table may get an earlier schema again: ``ADD COLUMN c; DROP COLUMN c`` leads back to the first one,
    and a registry then gives the first id again. Rows of such a schema may be from before the ADD or from
    after the DROP. A row is from after the DROP if it is later than the first row that has the column.

    Attributes:
        columns: By writer, the columns that an earlier schema had.
        later: By writer, the columns that only later schemas have.
        again: Of these, by writer, the columns that were there before this schema was in use again. Rows that
            nothing compares with the first row that has the column are taken to be from after the DROP.
        first_rows: By column, the first rows known that have it.
        fold: The function under which the shape's column names are compared.
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
        """Whether rows of some schema lack a column, so that it counts which schema is in use."""
        return any(self.later.values()) or any(self.columns.values())

    @abstractmethod
    def _writer(self, changes: ChangeTable) -> W | None:
        """What tells the schema of these rows from others."""

    def __call__(self, changes: ChangeTable) -> Mapping[str, pa.Int64Array]:
        writer = self._writer(changes)
        if writer is None:
            return {}
        found: dict[str, pa.Int64Array] = dict.fromkeys(
            self.columns.get(writer, frozenset()) - self.in_use, _NO_OFFSETS
        )
        again = self.again.get(writer, frozenset())
        for name in (self.later.get(writer, frozenset()) & (again | self.first_rows.keys())) - self.in_use:
            are_before = self.first_rows.get(name, FirstRows()).are_before(changes.rows)
            not_yet = changes.rows["offset"].filter(pc.fill_null(are_before, name not in again))
            found[name] = not_yet.combine_chunks()
        return found

    def in_range(self, tables: Sequence[ChangeTable]) -> DroppedByWriter[W]:
        names = frozenset[str]().union(*self.later.values()) - self.in_use
        found = dict(self.first_rows)
        for one in tables if names else ():
            there = names & {self.fold(column.name) for column in one.schema.columns}
            if there and one.rows.num_rows:
                first = first_rows_of(one.rows)
                found |= {name: first.joined(found.get(name, first)) for name in there}
        return replace(self, first_rows=found)


@dataclass(frozen=True)
class DroppedById(DroppedByWriter[int]):
    """By the registry id of a writer's value schema."""

    @classmethod
    def of(
        cls,
        columns: Mapping[int, Iterable[str]],
        history: Sequence[int],
        fold: NameFold = fold_name,
        first_rows: Mapping[int, FirstRows] = MappingProxyType({}),
    ) -> DroppedById:
        """Make it of each schema's own columns.

        ``history``: the ids in their order, with repetitions. ``first_rows``: by id, the first rows known.
        """
        in_use = frozenset(fold(name) for one in history[-1:] for name in columns[one])
        first_of = first_rows_by_column(columns, first_rows, fold)
        return cls(*dropped_in_order(columns, history, fold), first_of, fold, in_use)

    def _writer(self, changes: ChangeTable) -> int | None:
        return changes.schema_id.value if changes.schema_id is not None else None


def first_rows_by_column(
    columns: Mapping[W, Iterable[str]], first_rows: Mapping[W, FirstRows], fold: NameFold
) -> dict[str, FirstRows]:
    """By column, folded, the first rows known of the schemas that have it."""
    found: dict[str, FirstRows] = {}
    for writer, first in first_rows.items():
        for name in {fold(one) for one in columns.get(writer, ())}:
            found[name] = first.joined(found.get(name, first))
    return found


def dropped_in_order(
    columns: Mapping[W, Iterable[str]], history: Sequence[W], fold: NameFold = fold_name
) -> tuple[dict[W, frozenset[str]], dict[W, frozenset[str]], dict[W, frozenset[str]]]:
    """Which columns of other schemas each schema lacks, folded.

    Args:
        columns: By schema, its columns.
        history: The schemas in the order in which they were in use; one that came back is there again.
        fold: The function under which column names are compared.

    Returns:
        The columns dropped before the schema was first in use, those dropped before it came back, and those
        that only later schemas have.
    """
    first: dict[W, frozenset[str]] = {}
    again: dict[W, frozenset[str]] = {}
    had = frozenset[str]()
    for one in history:
        there = frozenset(fold(name) for name in columns[one])
        if one in first:
            again[one] = had - there - first[one]
        else:
            first[one] = had - there
        had |= there
    later = {one: had - {fold(name) for name in columns[one]} - dropped for one, dropped in first.items()}
    return first, {one: names for one, names in again.items() if names}, later


@dataclass(frozen=True)
class DroppedNow:
    """Columns that the source no longer has: a row that lacks one was written after it was dropped."""

    columns: frozenset[str] = frozenset()

    def __call__(self, _changes: ChangeTable) -> Mapping[str, pa.Int64Array]:
        return dict.fromkeys(self.columns, _NO_OFFSETS)

    def in_range(self, _tables: Sequence[ChangeTable]) -> DroppedNow:
        return self


@dataclass(frozen=True)
class Metadata:
    """The columns that say where a row's last change came from; ``names``: by kind.

    ``source`` is the table at the source, ``batch`` the number of the batch. ``marks_deletes``: rows stay
    when they are deleted, and their delete writes these columns.
    """

    names: Mapping[MetadataKind, str]
    source: TableId
    batch: int = 0
    marks_deletes: bool = False

    def columns(self, events: pa.Table, ops: pa.Array) -> dict[str, pa.Array]:
        """The columns by name, one value for each event; see ``TargetRows.metadata_columns``."""
        fixed = {"database": self.source.schema, "table": self.source.name, "batch": self.batch}
        found = {}
        for kind, name in self.names.items():
            if kind in fixed:
                found[name] = pa.repeat(pa.scalar(fixed[kind]), events.num_rows)
            elif kind == "op":
                found[name] = ops
            elif kind == "position":
                found[name] = source_texts(events["source"].combine_chunks())
            else:
                found[name] = events[kind].combine_chunks()
        return found


@dataclass(frozen=True)
class TargetRows:
    """Puts the rows of every writer into the columns of the target.

    ``shape`` has the table's own columns, in which keys are compared and filters evaluated. ``renamed``: rows
    that have a column under one of these names have it under that one; of several names that a row has, the
    column's own counts, then the newest: they stand in that order.
    ``target``: the table as its config lays it out; None: as it is. ``sources``: by the target's names those
    of the table's own columns; None: each has its name. Other columns of the target are the shard's, or
    metadata. ``unread``: names of columns of the shape whose values nobody needs, so that any value fits.
    """

    shape: TableShape
    dropped: Dropped = DroppedNow()
    renamed: Mapping[str, str] = field(default_factory=dict)
    target: TableShape | None = None
    sources: Mapping[str, str] | None = None
    metadata: Metadata | None = None
    unread: frozenset[str] = frozenset()

    @property
    def target_shape(self) -> TableShape:
        """The table as the target has it."""
        return self.shape if self.target is None else self.target

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns, by the table's own names."""
        return tuple(column.name for column in self.shape.key_columns)

    @property
    def value_sources(self) -> dict[str, str]:
        """The target's columns with values of the table's own, the key's left out: by name the own name."""
        others = (column.name for column in self.target_shape.columns if not column.key)
        return {name: own for name in others if (own := self._own_name(name)) is not None}

    def new_columns(self, names: Iterable[str]) -> list[str]:
        """Names of columns of a row that the shape does not have."""
        there = [*names]
        read = self.written(there).values()
        return [name for name in there if name not in read]

    def key_values(self, name: str, values: pa.Array) -> pa.Array:
        """The values of a key column in the shape's type.

        Raises:
            SchemaMismatchError: they do not fit.
        """
        return _as_type(values, self.shape.by_name[self.shape.fold(name)])

    def unfit(self, changes: ChangeTable, *, before: bool = False) -> dict[int, SchemaMismatchError]:
        """By row, why a value does not fit into the shape; empty where all do.

        ``before``: the rows before the changes are looked at too.
        """
        found: dict[int, SchemaMismatchError] = {}
        for image in ("after", "before") if before else ("after",):
            rows = changes.rows[image].combine_chunks()
            written = self.written([member.name for member in rows.type])
            for column in self.shape.columns:
                if column.name in written and column.name not in self.unread:
                    values = pc.struct_field(rows, [written[column.name]])
                    try:
                        _as_type(values, column)
                    except SchemaMismatchError:
                        found = {**dict(_unfit_values(values, column)), **found}
        return found

    def key(self, keys: pa.StructArray) -> pa.StructArray:
        """Keys, under the table's own names, in the target's columns.

        Raises:
            SchemaMismatchError: a key's type does not fit into the shape's.
        """
        columns = self.target_shape.key_columns
        arrays = [
            self._target_values(one, len(keys), lambda own: _as_type(keys.field(own.name), own), {})
            for one in columns
        ]
        return pa.StructArray.from_arrays(arrays, fields=_fields(columns), mask=keys.is_null())

    def in_range(self, tables: Sequence[ChangeTable]) -> TargetRows:
        """The same for one range of a partition, all of whose rows are in these tables."""
        return replace(self, dropped=self.dropped.in_range(tables))

    def row(
        self,
        changes: ChangeTable,
        rows: pa.StructArray,
        metadata: Mapping[str, pa.Array] | None = None,
        *,
        offsets: pa.ChunkedArray | None = None,
    ) -> pa.StructArray:
        """Rows of one writer's schema in the target's columns; ``metadata``: those of ``metadata_columns``.

        Null where the row is, unless deletes are marked: then such a row has its metadata alone. ``offsets``:
        of the rows' records; None: the rows are one for each of the changes.

        Raises:
            SchemaMismatchError: a column's type does not fit into the shape's.
        """
        columns, read = self.target_shape.columns, self._read(changes, rows, offsets)
        arrays = [self._target_values(one, len(rows), read, metadata or {}) for one in columns]
        marked = bool(metadata) and self.metadata is not None and self.metadata.marks_deletes
        return pa.StructArray.from_arrays(
            arrays, fields=_fields(columns), mask=None if marked else rows.is_null()
        )

    def source_row(
        self, changes: ChangeTable, rows: pa.StructArray, names: Container[str] | None = None
    ) -> pa.StructArray:
        """As ``row``, in the table's own columns that somebody needs, or in ``names`` of them."""
        own = (one for one in self.shape.columns if one.name not in self.unread)
        columns = tuple(one for one in own if names is None or one.name in names)
        arrays = [*map(self._read(changes, rows), columns)]
        return pa.StructArray.from_arrays(arrays, fields=_fields(columns), mask=rows.is_null())

    def source_names(self, lists: pa.ListArray) -> pa.ListArray:
        """Lists of names of a writer's columns by the table's own names, without those that it lacks."""
        return self._listed(lists, {column.name: column.name for column in self.shape.columns})

    def names(self, lists: pa.ListArray) -> pa.ListArray:
        """Lists of names of a writer's columns by the target's names, without those that it does not hold."""
        held = ((self._own_name(column.name), column.name) for column in self.target_shape.columns)
        return self._listed(lists, {own: name for own, name in held if own is not None})

    def metadata_columns(self, events: pa.Table, ops: pa.Array) -> dict[str, pa.Array]:
        """The metadata columns by name, one value for each event; empty where the table has none.

        ``events`` has the columns of ``ChangeTable.rows`` that say where an event comes from; ``ops`` are
        the words for what it was.
        """
        if self.metadata is None:
            return {}
        types = {column.name: arrow_of_spark(column.spark) for column in self.target_shape.columns}
        return {name: one.cast(types[name]) for name, one in self.metadata.columns(events, ops).items()}

    def _own_name(self, name: str) -> str | None:
        """The table's own name of a column of the target's; None for a column that the table has not."""
        if self.sources is not None:
            return self.sources.get(name)
        return name if self.shape.find(name) is not None else None

    def _target_values(
        self,
        column: ShapeColumn,
        count: int,
        read: Callable[[ShapeColumn], pa.Array],
        metadata: Mapping[str, pa.Array],
    ) -> pa.Array:
        """A column of the target's; ``read`` gives one of the table's own."""
        own, shard = self._own_name(column.name), self.target_shape.shard
        if own is not None:
            return read(self.shape.by_name[self.shape.fold(own)])
        if shard is not None and column.name == shard.column:
            return pa.repeat(pa.scalar(shard.value), count)
        found = metadata.get(column.name)
        return pa.nulls(count, arrow_of_spark(column.spark)) if found is None else found

    def _read(
        self, changes: ChangeTable, rows: pa.StructArray, offsets: pa.ChunkedArray | None = None
    ) -> Callable[[ShapeColumn], pa.Array]:
        """What gives a column of the shape as rows of one writer's schema have it."""
        written = self.written([member.name for member in rows.type])
        dropped = self.dropped(changes)

        def values(column: ShapeColumn) -> pa.Array:
            if column.name in written:
                return _as_type(pc.struct_field(rows, [written[column.name]]), column)
            kind, before = arrow_of_spark(column.spark), dropped.get(self.shape.fold(column.name))
            value = None if before is not None and not len(before) else self._defaults[column.name]
            if value is None:
                return pa.nulls(len(rows), kind)
            there = rows.is_valid()
            if before is not None:
                at = changes.rows["offset"] if offsets is None else offsets
                there = pc.and_(there, pc.is_in(at.combine_chunks(), before))
            return pc.if_else(there, pa.scalar(value, kind), pa.scalar(None, kind))

        return values

    def _listed(self, lists: pa.ListArray, names: Mapping[str, str]) -> pa.ListArray:
        if lists.null_count == len(lists):
            return lists
        read = (self.written(one or ()) for one in lists.to_pylist())
        found = [[names[own] for own in one if own in names] or None for one in read]
        return pa.array(found, lists.type)

    def written(self, names: Iterable[str]) -> dict[str, str]:
        """By the shape's names, in its order, the names of a row's columns (see ``events.folding``)."""
        listed = tuple(names)
        fold = folding(listed, (column.name for column in self.shape.columns))
        there = {fold(name): name for name in listed}
        found = {}
        for column in self.shape.columns:
            called = [column.name, *(old for old, new in self.renamed.items() if new == column.name)]
            name = next((there[fold(one)] for one in called if fold(one) in there), None)
            if name is not None:
                found[column.name] = name
        return found

    @cached_property
    def _defaults(self) -> dict[str, TargetValue]:
        return {column.name: _default(column, self.shape) for column in self.shape.columns}


def event_words(ops: pa.Array, deleted: pa.Array) -> pa.Array:
    """What a row's last event was: ``insert`` or ``update`` where the wire tells, else ``upsert``."""
    written = pc.if_else(pc.is_in(ops, _TOLD_OPS), ops, pa.scalar(Op.UPSERT.value))
    return pc.if_else(deleted, pa.scalar(Op.DELETE.value), written)


def source_texts(source: pa.Array) -> pa.Array:
    """Positions at the source as text, as ``Position.source_text``."""
    return pc.binary_join(source.cast(pa.list_(pa.string())), SOURCE_SEPARATOR)


def _default(column: ShapeColumn, shape: TableShape) -> TargetValue:
    """The value of a row whose writer did not know the column yet; NULL where nothing tells it."""
    try:
        return default_value(column, shape)
    except ValueOutOfRangeError:
        return None


def key_type(shape: TableShape) -> pa.StructType:
    """The Arrow type of a shape's key."""
    return pa.struct(_fields(shape.key_columns))


def row_type(shape: TableShape) -> pa.StructType:
    """The Arrow type of a shape's rows."""
    return pa.struct(_fields(shape.columns))


def _fields(columns: tuple[ShapeColumn, ...]) -> list[pa.Field]:
    return [pa.field(column.name, arrow_of_spark(column.spark)) for column in columns]


def _as_type(values: pa.Array, column: ShapeColumn) -> pa.Array:
    found = _cast_to(values, column)
    return canonical_floats(found) if column.key else found


def _cast_to(values: pa.Array, column: ShapeColumn) -> pa.Array:
    kind = arrow_of_spark(column.spark)
    if values.type == kind:
        return values
    if pa.types.is_string(kind) != pa.types.is_string(values.type) and _is_moment(kind, values.type):
        raise _unfit(values.type, column)
    if pa.types.is_string(kind) and pa.types.is_decimal(values.type):
        return pa.array([None if one is None else format(one, "f") for one in values.to_pylist()], kind)
    try:
        return values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _unfit(values.type, column) from error


def _is_moment(*kinds: pa.DataType) -> bool:
    """Whether one of the types is of dates or times, of which no text is another form."""
    return any(pa.types.is_temporal(kind) for kind in kinds)


def _unfit_values(values: pa.Array, column: ShapeColumn) -> Iterator[tuple[int, SchemaMismatchError]]:
    for at in range(len(values)):
        try:
            _as_type(values.slice(at, 1), column)
        except SchemaMismatchError as error:
            yield at, error


def _unfit(kind: Any, column: ShapeColumn) -> SchemaMismatchError:
    return SchemaMismatchError(f"Type {kind} does not fit into {column.spark}.", column=column.name)
