"""Rows of Debezium records: each value as ``tidesink.events`` states it, and the columns they have.

Types come from a table definition that somebody declared; else from the record's own schema; else, where
it carries none, from the DDL that passed; else from what the JSON value looks like (``debezium_values``).
DDL stands on a topic of its own, so what it told may be older or newer than a row: it is never held
against a row that has a schema, and where a value does not fit it, it is not used.
"""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import Any, Final, NamedTuple

from tidesink.codecs.connect_schema import ConnectField, ConnectSchema
from tidesink.codecs.debezium_values import (
    UNAVAILABLE,
    DebeziumModes,
    Unavailable,
    ValueReader,
    column_of,
    reader_of,
)
from tidesink.codecs.debezium_values_plain import definition_reader, infer_column, inferred_value
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import DecodeError, SchemaMismatchError, shown
from tidesink.events import Column, TableId, TableSchema, Value

_MOST_SHAPES: Final = 4096
_Typed = tuple[Column, "Value | Unavailable"]


class RowRead(NamedTuple):
    """A row's values, the columns it has, and the names of those whose value the source did not send.

    ``unavailable`` columns are in ``columns`` and not in ``values``: what is stored is to be kept.
    """

    values: dict[str, Value]
    columns: tuple[Column, ...]
    unavailable: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shape:
    """A struct's columns, each with its name on the wire, its own name, and its reader."""

    schema: ConnectSchema
    fields: tuple[tuple[str, str, ValueReader], ...]
    columns: tuple[Column, ...]


def _no_column(_name: str) -> bool:
    return False


@dataclass(frozen=True)
class Rows:
    """Reads rows, and keeps what it knows of each schema.

    ``definitions`` are declared, ``learned`` came by DDL events.
    """

    modes: DebeziumModes
    definitions: TableDefinitions
    learned: TableDefinitions = field(default_factory=TableDefinitions)
    _shapes: dict[tuple[int, TableId], Shape] = field(default_factory=dict)
    _readers: dict[int, tuple[Column, ValueReader]] = field(default_factory=dict)
    _inferred: dict[tuple[str, str], Column] = field(default_factory=dict)
    _tuples: dict[tuple[int, ...], tuple[Column, ...]] = field(default_factory=dict)
    _schemas: dict[tuple[int, TableId, tuple[str, ...]], tuple[object, TableSchema]] = field(
        default_factory=dict
    )

    def read(
        self,
        raw: object,
        schema: ConnectSchema | None,
        table: TableId,
        *,
        skipped: Callable[[str], bool] = _no_column,
    ) -> RowRead:
        """One row: a key's, or one of the two images of a change. ``skipped`` fields are no columns.

        Raises:
            SchemaMismatchError: it is no row, or lacks what its schema promises.
            ValueOutOfRangeError: a value its column cannot hold; context has the column.
        """
        if not isinstance(raw, Mapping):
            raise SchemaMismatchError(f"{shown(raw)} is no row: a JSON object was expected")
        if schema is None or schema.type != "struct":
            return self._without_schema(raw, table)
        return _with_schema(raw, self.shape(schema, table, skipped))

    def table_schema(self, table: TableId, columns: tuple[Column, ...], keys: tuple[str, ...]) -> TableSchema:
        """The columns as a table's; ``keys`` names those of its key."""
        place = (id(columns), table, keys)
        known = self._schemas.get(place)
        if known is not None and known[0] is columns:
            return known[1]
        marked = tuple(
            replace(column, handle=column.name in keys, primary_key=column.name in keys) for column in columns
        )
        if len(self._schemas) >= _MOST_SHAPES:
            self._schemas.clear()
        schema = TableSchema(table, marked)
        self._schemas[place] = (columns, schema)
        return schema

    def shape(
        self, schema: ConnectSchema, table: TableId, skipped: Callable[[str], bool] = _no_column
    ) -> Shape:
        """The columns of a table's rows that have this struct's schema."""
        # By identity: parsers give one object for all rows of a schema, and hashing one is slow.
        place = (id(schema), table)
        known = self._shapes.get(place)
        if known is None or known.schema is not schema:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            known = self._shapes[place] = self._new_shape(schema, table, skipped)
        return known

    def _new_shape(self, schema: ConnectSchema, table: TableId, skipped: Callable[[str], bool]) -> Shape:
        definition = self.definitions.get(table)
        # TiCDC (b813e76) lists a virtual column twice; a payload has each name once.
        named = {one.name: one for one in schema.fields if not skipped(one.wire)}
        columns = {
            name: (definition and definition.by_name.get(name)) or column_of(one, modes=self.modes)
            for name, one in named.items()
        }
        fields = tuple((one.wire, name, self._reader(one, columns[name])) for name, one in named.items())
        return Shape(schema, fields, tuple(columns.values()))

    def _reader(self, one: ConnectField, column: Column) -> ValueReader:
        return reader_of(one.schema, column=column, modes=self.modes)

    def _without_schema(self, raw: Mapping[str, Any], table: TableId) -> RowRead:
        values: dict[str, Value] = {}
        unavailable: list[str] = []
        columns: list[Column] = []
        declared, learned = self.definitions.get(table), self.learned.get(table)
        for name, one in raw.items():
            known = declared.by_name.get(name) if declared else None
            guess = learned.by_name.get(name) if learned else None
            column, value = self._declared(known, one) if known else self._guessed(name, one, guess)
            columns.append(column)
            if value is UNAVAILABLE:
                unavailable.append(name)
            else:
                values[name] = value
        return RowRead(values, self._same(columns), tuple(unavailable))

    def _same(self, columns: list[Column]) -> tuple[Column, ...]:
        """The columns as the one tuple that stands for them, so that their table's schema is made once."""
        place = tuple(map(id, columns))
        known = self._tuples.get(place)
        if known is None:
            if len(self._tuples) >= _MOST_SHAPES:
                self._tuples.clear()
            known = self._tuples[place] = tuple(columns)
        return known

    def _declared(self, column: Column, raw: object) -> _Typed:
        known = self._readers.get(id(column))
        if known is None or known[0] is not column:
            if len(self._readers) >= _MOST_SHAPES:
                self._readers.clear()
            known = self._readers[id(column)] = (column, definition_reader(column, modes=self.modes))
        return column, known[1](raw)

    @cached_property
    def _encoded_placeholders(self) -> frozenset[str]:
        """The placeholder as bytes columns have it in JSON, whose type nothing tells there."""
        if self.modes.placeholder is None:
            return frozenset()
        data = self.modes.placeholder.encode()
        return frozenset((b64encode(data).decode(), urlsafe_b64encode(data).decode(), data.hex()))

    def _guessed(self, name: str, raw: object, learned: Column | None) -> _Typed:
        if isinstance(raw, str) and raw in self._encoded_placeholders:
            return learned or self._looking_like(name, raw), UNAVAILABLE
        if learned is not None:
            try:
                return self._declared(learned, raw)
            except DecodeError:
                pass  # the column was, or will be, of another type
        return self._looking_like(name, raw), self._plain(name, raw)

    def _looking_like(self, name: str, raw: object) -> Column:
        column = infer_column(name, raw)
        if len(self._inferred) >= _MOST_SHAPES:
            self._inferred.clear()
        return self._inferred.setdefault((name, column.type.name), column)

    def _plain(self, name: str, raw: object) -> Value | Unavailable:
        if raw is None or isinstance(raw, Decimal) or (isinstance(raw, int) and raw.bit_length() < 64):
            return raw
        if isinstance(raw, str):
            return UNAVAILABLE if raw == self.modes.placeholder else raw
        try:
            return inferred_value(raw, modes=self.modes)
        except DecodeError as error:
            raise error.with_context(column=name) from error


def _with_schema(raw: Mapping[str, Any], shape: Shape) -> RowRead:
    values: dict[str, Value] = {}
    unavailable: list[str] = []
    for wire, name, read in shape.fields:
        if wire not in raw:
            continue  # a column the producer leaves out: TiCDC's virtual ones
        value = read(raw[wire])
        if value is UNAVAILABLE:
            unavailable.append(name)
        else:
            values[name] = value
    return RowRead(values, shape.columns, tuple(unavailable))
