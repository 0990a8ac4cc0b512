"""Converts Debezium's envelopes to tables of row changes, many envelopes at a time.

This is the part of columnar decoding that ``debezium-json`` and ``debezium-avro`` share. They pass
``Envelopes``: all envelopes with the same schemas, with their old and new rows as columns. This module reads
the table and the positions from the source block; ``value_columns`` reads the values. The result is equal to
that of the row codec (``envelope``), which decodes one record at a time. Some records are left to the row
codec: rare ops (truncate, messages), MongoDB's documents, envelopes that lack the row that their op requires,
and values that no Arrow column can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import (
    MARKS,
    SOURCE_TYPE,
    ChangeTable,
    ColumnarResult,
    Indices,
    Records,
    RowTypes,
    ValueOptions,
    name_lists,
    op_array,
    op_code,
    source_lists,
)
from tidesink.codecs.debezium.commit_positions import commit_positions
from tidesink.codecs.debezium.connect_schema import ConnectSchema
from tidesink.codecs.debezium.envelope import (
    MONGODB,
    OPS,
    POSTGRES,
    STREAMED,
    TICDC,
    ZEROS,
    Rows,
    Shape,
    binlog_file_number,
    is_blank,
    is_unsent_shape,
    position_members,
    position_of_source,
    required_shapes,
    table_members,
    table_of_source,
)
from tidesink.codecs.debezium.unwrapped import OP_HEADER
from tidesink.codecs.debezium.value_columns import ColumnStep, Mask, TypedColumn
from tidesink.errors import DecodeError
from tidesink.events import Column, Op, SchemaIds, TableId, TableSchema

IsFlattened = Callable[[str], bool]
# A column of the wire: an array, or Python values if Arrow has no type for all of them.
Wire: TypeAlias = "pa.Array | list[Any]"
Member = Callable[[str], Wire]

_MOST_PLANS: Final = 1024
_LEFT: Final = -1
_DELETE: Final = op_code(Op.DELETE)
_OP_CODES: Final = {name: op_code(op) for name, op in OPS.items() if op is not Op.TRUNCATE}
_INT64_END: Final = 1 << 63
_MOST_SOURCE: Final = 10**38 - 1
_BINLOG: Final = ("mysql", "mariadb")


class Columns(Protocol):
    """Protocol of the decoders that decode many records of a codec at once, column by column."""

    def read(self, records: Records, options: ValueOptions) -> ColumnarResult:
        """Decodes many records at once, with the same result as the row codec.

        The records that it cannot decode this way are listed in the result by their indices; the row codec
        decodes them one by one.
        """


@dataclass(frozen=True)
class Image:
    """The old rows, the new rows or the keys of many records, as columns.

    ``present`` is a mask of the records that have such a row. ``member`` is a function that returns a column
    by its name. The column has one value per present row. If ``whole`` is True, it has one value per record
    instead, null for a record without a row.
    """

    present: Mask
    member: Member
    whole: bool = False

    def take(self, places: Indices) -> Image:
        """Returns the rows of the records at these indices."""
        if self.whole:
            return Image(self.present[places], _taken(self.member, places), whole=True)
        present = self.present[places]
        rows = (np.cumsum(self.present) - 1)[places][present]
        return Image(present, _taken(self.member, rows))

    @property
    def rows(self) -> Indices | slice:
        """For each value in a column of ``member``, the index of its record."""
        return slice(None) if self.whole else np.flatnonzero(self.present)

    def spread(self, mask: Mask) -> Mask:
        """Converts a mask of the values in a column of ``member`` to a mask of all records."""
        flags = np.zeros(len(self.present), np.bool_)
        flags[self.rows] = mask
        return flags


@dataclass(frozen=True)
class Envelopes:
    """Envelopes of one connector that have the same value schema and the same key schema.

    ``where`` holds the index of each envelope's record in the batch. ``key`` is None if the records have no
    key. ``source`` is a function that returns a member of the source blocks as a column, by its name;
    ``source_names`` lists the names of the available members.
    """

    where: Indices
    connector: str
    schema: ConnectSchema
    key_schema: ConnectSchema | None
    ids: SchemaIds | None
    ops: Wire
    source: Member
    source_names: frozenset[str]
    before: Image
    after: Image
    key: Image | None

    def take(self, places: Indices) -> Envelopes:
        """Returns the envelopes at these indices."""
        return replace(
            self,
            where=self.where[places],
            ops=_some(self.ops, places),
            source=_taken(self.source, places),
            before=self.before.take(places),
            after=self.after.take(places),
            key=self.key and self.key.take(places),
        )


def _taken(member: Member, places: Indices) -> Member:
    def take(name: str) -> Wire:
        return _some(member(name), places)

    return take


def _some(column: Wire, places: Indices) -> Wire:
    return (
        [column[index] for index in places.tolist()]
        if isinstance(column, list)
        else column.take(pa.array(places))
    )


@dataclass
class Changes:
    """Collects the result of decoding in columns.

    ``tables`` holds tables of decoded row changes. ``left`` holds the indices of the records that could not
    be decoded here; the row codec decodes these records one by one.
    """

    tables: list[ChangeTable] = field(default_factory=list)
    left: list[Indices] = field(default_factory=list)

    def result(self, records: Records, unknown: Indices, is_flattened: IsFlattened) -> ColumnarResult:
        """Returns the decoded tables, and the indices of the records that the row codec must decode.

        The latter are the records in ``left``, those in ``unknown`` (indices of records that are not proven
        to be envelopes), and some records with a null value. A record in ``unknown`` may be a flattened row,
        and in a topic with flattened rows a record with a null value is a delete. So the records with a null
        value are included if their topic may have flattened rows, or if their header marks a delete. All
        other records with a null value are not events.
        """
        left = np.concatenate([*self.left, unknown])
        null = np.flatnonzero(records.value.is_null().to_numpy(zero_copy_only=False))
        if len(null):
            topics = records.topic.indices.to_numpy()
            unsure = set(np.unique(topics[unknown]).tolist())
            unsure |= {
                code for code, name in enumerate(records.topic.dictionary.to_pylist()) if is_flattened(name)
            }
            marked = _marked_deletes(records, null)
            more = [index for index in null.tolist() if topics[index] in unsure or index in marked]
            left = np.concatenate([left, np.array(more, np.int64)])
        return ColumnarResult(len(records), self.tables, (), np.sort(left))


class _Field(NamedTuple):
    wire: str
    name: str
    step: ColumnStep


class _Plan(NamedTuple):
    """Everything needed to convert envelopes with the same schemas to row changes of one table."""

    table: TableId
    schema: TableSchema
    types: RowTypes
    connector: str
    # True if changes have commit positions.
    numbered: bool
    before: tuple[_Field, ...]
    after: tuple[_Field, ...]
    key: tuple[_Field, ...]
    # The name on the wire and the default there of each column outside of the key.
    others: tuple[tuple[str, object], ...]
    # The name on the wire and the default there of each key column.
    keys: tuple[tuple[str, object], ...]
    # The names on the wire of columns that may contain the stand-in for a geometry that was not sent.
    shapes: tuple[str, ...]
    # The schemas, held so that their ids are not reused.
    held: tuple[object, ...]


class EnvelopeTables:
    """Converts envelopes to tables of row changes; caches the conversion steps for each schema and table.

    ``rows`` describes rows of Debezium's connectors (columns and readers), ``ticdc_rows`` those of TiCDC.
    """

    def __init__(self, rows: Rows, ticdc_rows: Rows) -> None:
        self._rows, self._ticdc_rows = rows, ticdc_rows
        self._plans: dict[tuple[Any, ...], _Plan | None] = {}

    def read(self, records: Records, envelopes: Envelopes, options: ValueOptions, changes: Changes) -> None:
        """Converts envelopes to row changes and adds them to ``changes``.

        The indices of envelopes that cannot be converted are added to ``changes.left``; the row codec decodes
        these records one by one.
        """
        for table, some in _by_table(envelopes):
            plan = self._plan(table, some, options)
            if plan is None:
                changes.left.append(some.where)
            else:
                _add_changes(records, some, plan, changes)

    def _plan(self, table: TableId, some: Envelopes, options: ValueOptions) -> _Plan | None:
        key = (id(some.schema), id(some.key_schema), some.key is None, table, some.connector, options)
        if key in self._plans:
            return self._plans[key]
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        try:
            plan = self._new_plan(table, some, options)
        except DecodeError:
            return None
        if plan is not None:
            self._plans[key] = plan
        return plan

    def _new_plan(self, table: TableId, some: Envelopes, options: ValueOptions) -> _Plan | None:
        before, after = some.schema.field("before"), some.schema.field("after")
        if some.connector == MONGODB or not table.name or before is None or after is None:
            return None
        if before.type != "struct" or after.type != "struct":
            return None
        rows = self._ticdc_rows if some.connector == TICDC else self._rows
        old, new = rows.shape(before, table), rows.shape(after, table)
        key = None if some.key_schema is None or some.key is None else rows.shape(some.key_schema, table)
        if not new.columns or old.columns != new.columns:
            return None
        keys = () if key is None else tuple(name for _, name, _ in key.fields)
        schema = rows.table_schema(table, new.columns, keys)
        if not set(keys) <= schema.by_name.keys():
            return None
        types = RowTypes(schema, keys or None, options)
        fields = _Fields(rows, schema, types, options)
        wires = {wire for wire, _, _ in key.fields} if key is not None else set()
        defaults = {field.wire: field.schema.default for field in before.fields}
        return _Plan(
            table=table,
            schema=schema,
            types=types,
            connector=some.connector,
            numbered=rows.modes.commit_positions,
            before=fields.of(old),
            after=fields.of(new),
            key=fields.of(key) if key is not None else (),
            others=tuple((wire, default) for wire, default in defaults.items() if wire not in wires),
            keys=tuple((wire, default) for wire, default in defaults.items() if wire in wires),
            shapes=required_shapes(after) if some.connector == POSTGRES else (),
            held=(some.schema, some.key_schema),
        )


class _Fields(NamedTuple):
    rows: Rows
    schema: TableSchema
    types: RowTypes
    options: ValueOptions

    def of(self, shape: Shape) -> tuple[_Field, ...]:
        """Returns, for each column of a row, its names and its conversion step, in the schema's order."""
        own = {field.name: field.schema for field in shape.schema.fields}
        columns: dict[str, Column] = {column.name: column for column in shape.columns}
        return tuple(
            _Field(wire, name, self._step(own[name], columns[name])) for wire, name, _ in shape.fields
        )

    def _step(self, schema: ConnectSchema, column: Column) -> ColumnStep:
        target = self.schema.by_name[column.name]
        policies = self.types.policies_of(target)
        return ColumnStep(schema, column, target, self.rows.modes, self.options, policies)


def _by_table(envelopes: Envelopes) -> Iterator[tuple[TableId, Envelopes]]:
    """Splits envelopes by table: yields each table that a source block names, with its envelopes."""
    names = [name for name in table_members(envelopes.connector) if name in envelopes.source_names]
    columns = [envelopes.source(name) for name in names]
    distinct = [_distinct(column) for column in columns]
    if all(len(unique) == 1 for unique in distinct):
        yield _table(envelopes, names, [unique[0] for unique in distinct]), envelopes
        return
    places: dict[tuple[Any, ...], list[int]] = {}
    for index, values in enumerate(zip(*map(_listed, columns), strict=True)):
        places.setdefault(values, []).append(index)
    for values, some in places.items():
        yield _table(envelopes, names, values), envelopes.take(np.array(some, np.int64))


def _table(envelopes: Envelopes, names: Sequence[str], values: Sequence[Any]) -> TableId:
    return table_of_source({"connector": envelopes.connector, **dict(zip(names, values, strict=True))})


def _listed(column: Wire) -> list[Any]:
    return column if isinstance(column, list) else column.to_pylist()


def _distinct(column: Wire) -> list[Any]:
    if isinstance(column, list):
        return list(dict.fromkeys(column))
    values: list[Any] = column.unique().to_pylist()
    return values


def _add_changes(records: Records, some: Envelopes, plan: _Plan, changes: Changes) -> None:
    """Converts the envelopes ``some`` of one table to row changes, and adds them to ``changes``.

    The indices of records whose result could differ from the row codec's are added to ``changes.left``; the
    row codec decodes these records one by one.
    """
    codes = _op_codes(some.ops)
    deleted = codes == _DELETE
    left = (codes == _LEFT) | (deleted == some.after.present) | (deleted & ~some.before.present)
    after = _read_image(plan.after, some.after, left)
    before = _read_image(plan.before, some.before, left)
    # The row codec refuses these records, or proves that their geometries are empty.
    for wire in plan.shapes if some.after.present.any() else ():
        unsent = [is_unsent_shape(value) for value in _listed(some.after.member(wire))]
        left |= some.after.spread(np.array(unsent, np.bool_))
    left |= deleted & _blank_key(plan, some)
    key = _read_key(plan, some, left)
    cut = _key_alone(plan, some, left)
    source, commit_ts = _positions(plan.connector, some, left)
    if plan.numbered:
        commit_ts = commit_positions(plan.connector, some.source, some.source_names, count=len(codes))
    count = len(deleted)
    columns = {
        **records.places(some.where),
        "op": op_array(np.where(left, np.int8(0), codes)),
        "commit_ts": commit_ts,
        "source": source,
        "key": key,
        "before": _struct(before, some.before, plan.types.row, cut),
        "after": _struct(after, some.after, plan.types.row, None),
        "unavailable": name_lists(_unsent(after, None), count),
        "unavailable_before": name_lists(_unsent(before, cut), count),
        **{name: name_lists(_marked(name, before, after, deleted, cut), count) for name in MARKS},
    }
    ordered = [columns[name] for name in plan.types.table.names]
    table = pa.Table.from_arrays(ordered, schema=plan.types.table)
    if left.any():
        table = table.filter(pa.array(~left))
        changes.left.append(some.where[left])
    changes.tables.append(ChangeTable(plan.table, plan.schema, some.ids, table))


def _op_codes(ops: Wire) -> npt.NDArray[np.int8]:
    coded = _coded(ops)
    codes = np.array([_OP_CODES.get(op, _LEFT) for op in coded.dictionary.to_pylist()], np.int8)
    op_codes: npt.NDArray[np.int8] = codes[coded.indices.to_numpy()]
    return op_codes


def _read_image(fields: Sequence[_Field], image: Image, left: Mask) -> dict[str, TypedColumn] | None:
    """Converts the old rows, new rows or keys of records to typed columns, by column name.

    Returns None if no record has such a row. Records with a value that cannot be converted here are marked in
    the mask ``left``.
    """
    if not image.present.any():
        return None
    columns = {}
    for wire, name, step in fields:
        column = step.read(image.member(wire))
        unproven, *marks = (None if mask is None else image.spread(mask) for mask in column[1:])
        if unproven is not None:
            left |= unproven
        columns[name] = TypedColumn(column.values, None, *marks)
    return columns


def _read_key(plan: _Plan, some: Envelopes, left: Mask) -> pa.Array:
    count = len(some.where)
    if some.key is None or not plan.key:
        return pa.nulls(count, plan.types.key)
    left |= ~some.key.present
    columns = _read_image(plan.key, some.key, left) or {}
    for column in columns.values():
        if column.unavailable is not None:
            left |= column.unavailable
    return _struct(columns, some.key, plan.types.key, None)


def _struct(
    columns: Mapping[str, TypedColumn] | None, image: Image, kind: pa.StructType, cut: _Cut | None
) -> pa.Array:
    """Returns the rows as an Arrow struct array with one item per record, null for records without a row.

    ``cut`` shows which old rows contain only their key; their other columns become null.
    """
    present = image.present
    if not columns:
        return pa.nulls(len(present), kind)
    arrays = [columns[member.name].values for member in kind]
    if cut is not None:
        alone = pa.array(cut.rows[image.rows])
        for index, member in enumerate(kind):
            if member.name in cut.names:
                arrays[index] = pc.if_else(alone, pa.scalar(None, member.type), arrays[index])
    mask = pa.array(~present) if image.whole and not present.all() else None
    rows = pa.StructArray.from_arrays(arrays, fields=list(kind), mask=mask)
    if image.whole or present.all():
        return rows
    return rows.take(pa.array(np.cumsum(present) - 1, mask=~present))


class _Cut(NamedTuple):
    """Old rows of which the source sent only the key.

    ``rows``: mask of the records with such an old row. ``names``: names of the columns outside of the key.
    """

    rows: Mask
    names: frozenset[str]


def _cut_rows(cut: _Cut | None, name: str) -> Mask | None:
    return cut.rows if cut is not None and name in cut.names else None


def _unsent(columns: Mapping[str, TypedColumn] | None, cut: _Cut | None) -> dict[str, Mask]:
    """Returns, for each column that has such rows, a mask of the rows in which the source left its value out.

    In an old row that contains only its key (``cut``), every other column counts as left out.
    """
    unsent = {}
    for name, column in (columns or {}).items():
        masks = [mask for mask in (column.unavailable, _cut_rows(cut, name)) if mask is not None]
        if masks:
            unsent[name] = np.logical_or.reduce(masks)
    return unsent


def _marked(
    marks: str,
    before: Mapping[str, TypedColumn] | None,
    after: Mapping[str, TypedColumn] | None,
    deleted: Mask,
    cut: _Cut | None,
) -> dict[str, Mask]:
    """Returns, by column name, masks of the changes with an invalid date or an ambiguous time in the column.

    ``marks`` chooses one of the two (an item of ``MARKS``). A table policy decided such a value. For a delete
    the value in the old row counts, for any other change the value in the new row.
    """
    masks: dict[str, Mask] = {
        name: mask for name, column in (after or {}).items() if (mask := getattr(column, marks)) is not None
    }
    for name, column in (before or {}).items():
        marked: Mask | None = getattr(column, marks)
        if marked is None:
            continue
        mask, alone = marked & deleted, _cut_rows(cut, name)
        mask = mask if alone is None else mask & ~alone
        masks[name] = masks[name] | mask if name in masks else mask
    return {name: masks[name] for name in after or before or {} if name in masks}


# Postgres' old rows that contain only their key (``envelope``, REPLICA IDENTITY DEFAULT)


def _key_alone(plan: _Plan, some: Envelopes, left: Mask) -> _Cut | None:
    """Finds the old rows from Postgres that contain only their key; returns None if there are none.

    Records whose old row may contain only its key are marked in the mask ``left``.
    """
    image = some.before
    if plan.connector != POSTGRES or not plan.key or not image.present.any():
        return None
    alone = image.present[image.rows]
    for wire, default in plan.others:
        blank, unsure = _blank(image.member(wire), default)
        if unsure is not None:
            # As a double the value is the default; the row codec compares all of its digits.
            left |= image.spread(unsure & alone)
        alone = alone & blank
        if not alone.any():
            return None
    keys = {name for _, name, _ in plan.key}
    names = frozenset(column.name for column in plan.schema.columns if column.name not in keys)
    return _Cut(image.spread(alone), names)


def _blank_key(plan: _Plan, some: Envelopes) -> Mask:
    """Returns a mask of the old rows from Postgres in which a key column may not have been sent.

    In such an old row, the key column is null, its type's zero, or its default. For all connectors other than
    Postgres, the mask is False everywhere.
    """
    blank = np.zeros(len(some.where), np.bool_)
    if plan.connector != POSTGRES or not some.before.present.any():
        return blank
    for wire, default in plan.keys:
        for mask in _blank(some.before.member(wire), default):
            if mask is not None:
                blank |= some.before.spread(mask)
    return blank


def _blank(wire: Wire, default: object) -> tuple[Mask, Mask | None]:
    """Returns a mask of the values that are null, zero or the default, and a mask of the undecided values.

    An undecided value is a double that may be the default. The second mask is None if no value is undecided.
    """
    if isinstance(wire, list) or pa.types.is_nested(wire.type):
        return _blank_each(_listed(wire), default)
    if pa.types.is_floating(wire.type):
        return _blank_floats(wire, default)
    zeros: list[Any] = [0]
    if wire.type in (pa.string(), pa.binary()):
        wanted = str if wire.type == pa.string() else bytes
        zeros = [zero for zero in (*ZEROS, default) if isinstance(zero, wanted)]
    elif (
        isinstance(default, int | Decimal) and -_INT64_END <= default < _INT64_END and default == int(default)
    ):
        zeros.append(int(default))
    wire = wire.cast(pa.int64()) if not isinstance(zeros[0], str | bytes) else wire
    blank = pc.is_null(wire)
    for zero in zeros:
        blank = pc.or_(blank, pc.fill_null(pc.equal(wire, pa.scalar(zero, wire.type)), False))
    mask: Mask = blank.to_numpy(zero_copy_only=False)
    return mask, None


def _blank_floats(wire: pa.Array, default: object) -> tuple[Mask, Mask | None]:
    values = wire.fill_null(0.0).to_numpy()
    zero: Mask = values == 0
    if isinstance(default, float):
        return zero | (values == default), None
    if isinstance(default, int | Decimal) and default:
        return zero, values == float(default)
    return zero, None


def _blank_each(values: Sequence[Any], default: object) -> tuple[Mask, Mask | None]:
    blank = np.array([is_blank(value) or value == default for value in values], np.bool_)
    if not isinstance(default, int | Decimal):
        return blank, None
    unsure = [isinstance(value, float) and value == float(default) for value in values]
    return blank, np.array(unsure, np.bool_)


# Positions at the source, equal to those of ``envelope``


def _positions(connector: str, some: Envelopes, left: Mask) -> tuple[pa.Array, pa.Array]:
    """Returns two arrays with an item per record: positions in the source database, and commit timestamps.

    An item is null if the record has no such value. Records whose position does not fit into the array's type
    are marked in the mask ``left``.
    """
    count = len(some.where)
    unknown = pa.nulls(count, pa.int64())
    if connector == TICDC:
        commit_ts = _ticdc(some, left)
        if commit_ts is not None:
            return _lists([commit_ts], commit_ts.is_valid()), commit_ts
    numbers = _binlog(some) if connector in _BINLOG else _lsn(some) if connector == POSTGRES else None
    if numbers is not None:
        return _lists(*numbers), unknown
    return _each_position(some, left), unknown


def _whole(some: Envelopes, name: str) -> pa.Array | None:
    """Returns the integers that the records' source blocks have in the member ``name``, one per record.

    An integer is null if the member is negative or missing. Returns None if the member is not an integer in
    all records.
    """
    if name not in some.source_names:
        return pa.nulls(len(some.where), pa.int64())
    column = some.source(name)
    if isinstance(column, list) or not pa.types.is_integer(column.type):
        return None
    column = column.cast(pa.int64())
    return pc.if_else(pc.less(column, 0), pa.scalar(None, pa.int64()), column)


def _ticdc(some: Envelopes, left: Mask) -> pa.Array | None:
    if "commit_ts" not in some.source_names:
        return None
    column = some.source("commit_ts")
    if isinstance(column, list) or not pa.types.is_integer(column.type):
        left |= True
        return pa.nulls(len(some.where), pa.int64())
    # TiDB's timestamps are unsigned.
    left |= pc.less(column, 0).fill_null(False).to_numpy(zero_copy_only=False)
    return column.cast(pa.int64())


def _binlog(some: Envelopes) -> tuple[list[pa.Array], pa.Array] | None:
    pos, row = _whole(some, "pos"), _whole(some, "row")
    if pos is None or row is None or "file" not in some.source_names:
        return None
    coded = _coded(some.source("file"))
    numbers = pa.array([binlog_file_number(name) for name in coded.dictionary.to_pylist()], pa.int64())
    number = numbers.take(coded.indices)
    return [number, pos, row.fill_null(0)], pc.and_(number.is_valid(), pos.is_valid())


def _lsn(some: Envelopes) -> tuple[list[pa.Array], pa.Array] | None:
    lsn = _whole(some, "lsn")
    if lsn is None:
        return None
    valid = lsn.is_valid()
    if "snapshot" in some.source_names:
        coded = _coded(some.source("snapshot"))
        streamed = pa.array([snapshot in STREAMED for snapshot in coded.dictionary.to_pylist()], pa.bool_())
        # A null is not a snapshot.
        valid = pc.and_(valid, pc.fill_null(streamed.take(coded.indices), True))
    return [lsn], valid


def _coded(column: Wire) -> pa.DictionaryArray:
    array = pa.array(column) if isinstance(column, list) else column
    return array.dictionary_encode()


def _lists(numbers: Sequence[pa.Array], valid: pa.Array) -> pa.Array:
    """Combines columns of numbers to an array of lists, one per row; null for rows that are not ``valid``."""
    columns = [column.fill_null(0).to_numpy() for column in numbers]
    return source_lists(columns, valid.to_numpy(zero_copy_only=False))


def _each_position(some: Envelopes, left: npt.NDArray[np.bool_]) -> pa.Array:
    names = [name for name in position_members(some.connector) if name in some.source_names]
    members = [_listed(some.source(name)) for name in names]
    if not names:
        return pa.nulls(len(some.where), SOURCE_TYPE)
    positions: list[tuple[int, ...] | None] = []
    for index, values in enumerate(zip(*members, strict=True)):
        position = position_of_source({"connector": some.connector, **dict(zip(names, values, strict=True))})
        if position is not None and max(position) > _MOST_SOURCE:
            left[index] = True
            position = None
        positions.append(position)
    return pa.array(positions, SOURCE_TYPE)


# Null values of flattened topics


def _marked_deletes(records: Records, null: Indices) -> set[int]:
    """Returns the indices in ``null`` of the records that have the header of a flattened row's delete.

    ``null``: indices of the records whose value is null.
    """
    if records.headers is None:
        return set()
    header_lists = records.headers.take(pa.array(null)).to_pylist()
    pairs = zip(null.tolist(), header_lists, strict=True)
    return {index for index, headers in pairs if any(header["key"] == OP_HEADER for header in headers or ())}
