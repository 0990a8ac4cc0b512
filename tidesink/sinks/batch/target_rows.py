"""A writer's rows as the rows of the target: the columns of its shape, in their types.

A column that the writer lacks has its default where only later schemas know it, and is null where an
earlier one had it: it was dropped. What a writer has beyond the shape is looked up before the rows come here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import ChangeTable
from tidesink.errors import SchemaMismatchError, ValueOutOfRangeError
from tidesink.typemap.arrow import arrow_of_spark
from tidesink.typemap.parse import TargetValue, target_reader, text_reader
from tidesink.typemap.table import row_of
from tidesink.typemap.target_schema import ShapeColumn, TableShape


@dataclass(frozen=True)
class TargetRows:
    """Puts the rows of every writer into one shape.

    ``dropped``: by the registry id of a writer's value schema the columns, in lower case, that it lacks since
    they were dropped before it.
    """

    shape: TableShape
    dropped: Mapping[int, frozenset[str]] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """The table's key columns."""
        return tuple(column.name for column in self.shape.key_columns)

    def key_values(self, name: str, values: pa.Array) -> pa.Array:
        """The values of a key column in the shape's type.

        Raises:
            SchemaMismatchError: they do not fit.
        """
        return _as_type(values, self.shape.by_name[name.lower()])

    def unfit(self, changes: ChangeTable) -> dict[int, SchemaMismatchError]:
        """By row, why a value does not fit into the shape; empty where all do."""
        after = changes.rows["after"].combine_chunks()
        names = {member.name.lower(): member.name for member in after.type}
        found: dict[int, SchemaMismatchError] = {}
        for column in self.shape.columns:
            source = names.get(column.name.lower())
            if source is None:
                continue
            values = pc.struct_field(after, [source])
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
        found = {column.name: keys.field(column.name) for column in columns}
        arrays = [_as_type(found[column.name], column) for column in columns]
        return pa.StructArray.from_arrays(arrays, fields=_fields(columns))

    def row(self, changes: ChangeTable, rows: pa.StructArray) -> pa.StructArray:
        """Rows of one writer's schema in the shape's columns; null where the row is.

        Raises:
            SchemaMismatchError: a column's type does not fit into the shape's.
        """
        names = {member.name.lower(): member.name for member in rows.type}
        written = changes.schema_id.value if changes.schema_id is not None else None
        dropped = self.dropped.get(written, frozenset()) if written is not None else frozenset()
        arrays = []
        for column in self.shape.columns:
            source = names.get(column.name.lower())
            if source is not None:
                arrays.append(_as_type(pc.struct_field(rows, [source]), column))
            else:
                arrays.append(self._missing(column, len(rows), dropped))
        return pa.StructArray.from_arrays(arrays, fields=_fields(self.shape.columns), mask=rows.is_null())

    def _missing(self, column: ShapeColumn, count: int, dropped: frozenset[str]) -> pa.Array:
        kind = arrow_of_spark(column.spark)
        value = None if column.name.lower() in dropped else self._defaults[column.name]
        return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)

    @cached_property
    def _defaults(self) -> dict[str, TargetValue]:
        return {column.name: default_value(column, self.shape) for column in self.shape.columns}


def default_value(column: ShapeColumn, shape: TableShape) -> TargetValue:
    """What a row has in a column that its writer did not know yet: the column's default, or None.

    ``CURRENT_TIMESTAMP`` gives None: what TiDB filled in at that moment is not on the wire.
    """
    text, reader = column.default, row_of(column.type).reader
    if text is None or text.upper().startswith("CURRENT_TIMESTAMP"):
        return None
    if reader in ("bit", "binary"):
        data = text.encode("latin-1", "replace")
        return data if reader == "binary" else int.from_bytes(data, "big")
    if reader in ("enum", "set"):
        return text
    zero_date = "error" if column.key else shape.zero_date
    read = target_reader(column.type, time_zone=ZoneInfo(shape.time_zone), zero_date=zero_date)
    try:
        return read(text_reader(column.type)(text))
    except ValueOutOfRangeError:
        return None


def _fields(columns: tuple[ShapeColumn, ...]) -> list[pa.Field]:
    return [pa.field(column.name, arrow_of_spark(column.spark)) for column in columns]


def _as_type(values: pa.Array, column: ShapeColumn) -> pa.Array:
    kind = arrow_of_spark(column.spark)
    if values.type == kind:
        return values
    if pa.types.is_string(kind) and pa.types.is_decimal(values.type):
        return pa.array([None if one is None else format(one, "f") for one in values.to_pylist()], kind)
    try:
        return values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _unfit(values.type, column) from error


def _unfit_values(values: pa.Array, column: ShapeColumn) -> Iterator[tuple[int, SchemaMismatchError]]:
    for at in range(len(values)):
        try:
            _as_type(values.slice(at, 1), column)
        except SchemaMismatchError as error:
            yield at, error


def _unfit(kind: Any, column: ShapeColumn) -> SchemaMismatchError:
    return SchemaMismatchError(f"{kind} does not fit into {column.spark}", column=column.name)
