"""A writer's rows as the rows of the target: the columns of its shape, in their types.

A column that the writer lacks has its default where only later schemas know it, and is null where an
earlier one had it: it was dropped. What a writer has beyond the shape is looked up before the rows come here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import ChangeTable
from tidesink.errors import SchemaMismatchError, ValueOutOfRangeError
from tidesink.events import SOURCE_SEPARATOR, Op, TableId
from tidesink.typemap.arrow import arrow_of_spark
from tidesink.typemap.parse import TargetValue
from tidesink.typemap.target_schema import MetadataKind, ShapeColumn, TableShape, default_value

_TOLD_OPS: Final = pa.array([Op.INSERT.value, Op.UPDATE.value])


class Dropped(Protocol):
    """Says what a writer lacks since it was dropped; travels to the tasks by pickle."""

    def __call__(self, changes: ChangeTable, /) -> frozenset[str]:
        """The columns of the shape, in lower case, that were dropped before these rows were written."""


@dataclass(frozen=True)
class DroppedById:
    """By the registry id of a writer's value schema the columns that were dropped before it."""

    columns: Mapping[int, frozenset[str]]

    @classmethod
    def of(cls, columns: Mapping[int, Iterable[str]]) -> DroppedById:
        """By each schema's own columns: those that an earlier one had were dropped, and ids grow."""
        dropped, had = {}, frozenset[str]()
        for schema_id, names in sorted(columns.items()):
            there = frozenset(name.lower() for name in names)
            dropped[schema_id] = had - there
            had |= there
        return cls(dropped)

    def __call__(self, changes: ChangeTable) -> frozenset[str]:
        """As ``Dropped``."""
        written = changes.schema_id.value if changes.schema_id is not None else None
        return self.columns.get(written, frozenset()) if written is not None else frozenset()


@dataclass(frozen=True)
class DroppedNow:
    """Columns that the source has no more: a row that lacks one was written after it went."""

    columns: frozenset[str] = frozenset()

    def __call__(self, _changes: ChangeTable) -> frozenset[str]:
        """As ``Dropped``."""
        return self.columns


@dataclass(frozen=True)
class TargetRows:
    """Puts the rows of every writer into one shape.

    ``renamed``: rows that have a column under one of these names have it under that one; of several names
    that a row has, the column's own counts, then the newest: they stand in that order.
    """

    shape: TableShape
    dropped: Dropped = DroppedNow()
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns."""
        return tuple(column.name for column in self.shape.key_columns)

    @cached_property
    def key_type(self) -> pa.StructType:
        """Of the key columns."""
        return key_type(self.shape)

    @cached_property
    def row_type(self) -> pa.StructType:
        """Of all columns."""
        return row_type(self.shape)

    def new_columns(self, names: Iterable[str]) -> list[str]:
        """Names of columns of a row that the shape does not have."""
        there = [*names]
        read = self._sources(there).values()
        return [name for name in there if name not in read]

    def key_values(self, name: str, values: pa.Array) -> pa.Array:
        """The values of a key column in the shape's type.

        Raises:
            SchemaMismatchError: they do not fit.
        """
        return _as_type(values, self.shape.by_name[name.lower()])

    def unfit(self, changes: ChangeTable, *, before: bool = False) -> dict[int, SchemaMismatchError]:
        """By row, why a value does not fit into the shape; empty where all do.

        ``before``: the rows before the changes are looked at too.
        """
        found: dict[int, SchemaMismatchError] = {}
        for image in ("after", "before") if before else ("after",):
            rows = changes.rows[image].combine_chunks()
            sources = self._sources([member.name for member in rows.type])
            for column in self.shape.columns:
                if column.name in sources:
                    values = pc.struct_field(rows, [sources[column.name]])
                    try:
                        _as_type(values, column)
                    except SchemaMismatchError:
                        found = {**dict(_unfit_values(values, column)), **found}
        return found

    def key(self, keys: pa.StructArray) -> pa.StructArray:
        """Keys in the shape's types.

        Raises:
            SchemaMismatchError: a key's type does not fit into the shape's.
        """
        columns = self.shape.key_columns
        arrays = [_as_type(keys.field(column.name), column) for column in columns]
        return pa.StructArray.from_arrays(arrays, fields=_fields(columns))

    def row(
        self, changes: ChangeTable, rows: pa.StructArray, names: Container[str] | None = None
    ) -> pa.StructArray:
        """Rows of one writer's schema in the shape's columns, or in ``names`` of them; null where the row is.

        Raises:
            SchemaMismatchError: a column's type does not fit into the shape's.
        """
        sources = self._sources([member.name for member in rows.type])
        dropped = self.dropped(changes)
        columns = tuple(one for one in self.shape.columns if names is None or one.name in names)
        arrays = []
        for column in columns:
            if column.name in sources:
                arrays.append(_as_type(pc.struct_field(rows, [sources[column.name]]), column))
            else:
                arrays.append(self._missing(column, len(rows), dropped))
        return pa.StructArray.from_arrays(arrays, fields=_fields(columns), mask=rows.is_null())

    def spelt(self, lists: pa.ListArray) -> pa.ListArray:
        """Lists of names of a writer's columns by the shape's names; those that it lacks are left out."""
        if lists.null_count == len(lists):
            return lists
        found: list[list[str] | None] = []
        for names in lists.to_pylist():
            found.append([*self._sources(names)] or None if names else None)
        return pa.array(found, lists.type)

    def _sources(self, names: Iterable[str]) -> dict[str, str]:
        """By the shape's names, in its order, the names of a row's columns. MySQL tells no case apart."""
        there = {name.lower(): name for name in names}
        found = {}
        for column in self.shape.columns:
            called = [column.name, *(old for old, new in self.renamed.items() if new == column.name)]
            name = next((there[one.lower()] for one in called if one.lower() in there), None)
            if name is not None:
                found[column.name] = name
        return found

    def _missing(self, column: ShapeColumn, count: int, dropped: frozenset[str]) -> pa.Array:
        kind = arrow_of_spark(column.spark)
        value = None if column.name.lower() in dropped else self._defaults[column.name]
        return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)

    @cached_property
    def _defaults(self) -> dict[str, TargetValue]:
        return {column.name: _default(column, self.shape) for column in self.shape.columns}


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
        """The columns by name, one value for each event; ``ops`` are the words for what they were.

        ``events`` has the columns of ``ChangeTable.rows`` that say where an event comes from.
        """
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


def event_words(ops: pa.Array, deleted: pa.Array) -> pa.Array:
    """What a row's last event was: ``insert`` or ``update`` where the wire tells, else ``upsert``."""
    written = pc.if_else(pc.is_in(ops, _TOLD_OPS), ops, pa.scalar(Op.UPSERT.value))
    return pc.if_else(deleted, pa.scalar(Op.DELETE.value), written)


def source_texts(source: pa.Array) -> pa.Array:
    """Positions at the source as text, as ``Position.source_text``."""
    return pc.binary_join(source.cast(pa.list_(pa.string())), SOURCE_SEPARATOR)


@dataclass(frozen=True)
class OutputRows:
    """Puts a table's rows into the columns that its config asks for, under the target's names.

    ``sources``: by the target's names those of the table's own columns; None: each has its name. Other
    columns are the shard's, or metadata.
    """

    shape: TableShape
    sources: Mapping[str, str] | None = None
    metadata: Metadata | None = None

    @property
    def value_names(self) -> tuple[str, ...]:
        """The target's columns that hold values of the source's, beside the key's."""
        others = (column.name for column in self.shape.columns if not column.key)
        return tuple(name for name in others if self.sources is None or name in self.sources)

    def key(self, keys: pa.StructArray) -> pa.StructArray:
        """Keys in the target's columns."""
        if self._plain:
            return keys
        return self._projected(keys, self.shape.key_columns, {})

    def row(self, rows: pa.StructArray, metadata: Mapping[str, pa.Array]) -> pa.StructArray:
        """Rows in the target's columns; ``metadata`` has those of ``metadata_columns``.

        Null where the row is, unless deletes are marked: then such a row has its metadata alone.
        """
        if self._plain:
            return rows
        marked = self.metadata is not None and self.metadata.marks_deletes
        return self._projected(rows, self.shape.columns, metadata, all_there=marked)

    def metadata_columns(self, events: pa.Table, ops: pa.Array) -> dict[str, pa.Array]:
        """As ``Metadata.columns``, in the shape's types; empty where the table has none."""
        if self.metadata is None:
            return {}
        types = {column.name: arrow_of_spark(column.spark) for column in self.shape.columns}
        return {name: one.cast(types[name]) for name, one in self.metadata.columns(events, ops).items()}

    @property
    def _plain(self) -> bool:
        return self.sources is None and self.shape.shard is None

    def names(self, lists: pa.ListArray) -> pa.ListArray:
        """Lists of names of columns by the target's names, without those that it does not hold."""
        if self.sources is None or lists.null_count == len(lists):
            return lists
        target = {old: new for new, old in self.sources.items()}
        found = [[target[name] for name in names or () if name in target] for names in lists.to_pylist()]
        return pa.array([names or None for names in found], lists.type)

    def _projected(
        self,
        rows: pa.StructArray,
        columns: tuple[ShapeColumn, ...],
        metadata: Mapping[str, pa.Array],
        *,
        all_there: bool = False,
    ) -> pa.StructArray:
        arrays = [self._column(rows, column, metadata) for column in columns]
        mask = None if all_there else rows.is_null()
        return pa.StructArray.from_arrays(arrays, fields=_fields(columns), mask=mask)

    def _column(
        self, rows: pa.StructArray, column: ShapeColumn, metadata: Mapping[str, pa.Array]
    ) -> pa.Array:
        if self.shape.shard is not None and column.name == self.shape.shard.column:
            return pa.repeat(pa.scalar(self.shape.shard.value), len(rows))
        if column.name in metadata:
            return metadata[column.name]
        return pc.struct_field(rows, [column.name if self.sources is None else self.sources[column.name]])


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
    return SchemaMismatchError(f"{kind} does not fit into {column.spark}", column=column.name)
