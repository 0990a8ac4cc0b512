"""What the rows of one shape have in common: their columns' types, readers and key.

A shape is the column names of a row with their ``mysqlType`` words. Where those words are short
(TiCDC's default) they say no precision, length or member, so each column's type is looked for, in
this order: the table definitions (of the configuration, or built from the topic's own DDL), a full
``mysqlType`` (content-compatible), the short word, text. A definition that contradicts the message's
own word is older or newer than the row and is passed over for that column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidesink.change import Column, ColumnType, TableId, TableSchema, Value
from tidesink.errors import ConfigError, SchemaMismatchError, UnnamedRowError, ValueOutOfRangeError
from tidesink.typemap.definitions import TableDefinitions
from tidesink.typemap.parse import keeps_text, text_reader
from tidesink.typemap.sql_type import parse_sql_type

RawRow = dict[str, object]
Keys = Mapping[TableId, Sequence[str]]

_TEXT_OR_NULL = frozenset({str, type(None)})
# Shapes kept per table: the producer writes one at a time; a handle-key-only delete is another.
_KEPT_SHAPES = 8


@dataclass(frozen=True)
class RowShape:
    """One shape of rows of a table.

    ``wire_types`` is ``mysqlType`` as the message has it where no table definition knows every
    column; an encoder needs it then. ``key`` names the columns that name the row, from the
    configuration or from ``pkNames``.
    """

    table: TableId
    names: tuple[str, ...]
    mysql_type: Mapping[str, object]
    pk_names: Sequence[str] | None
    schema: TableSchema
    readers: tuple[tuple[str, Callable[[str], Value]], ...]
    key: tuple[str, ...]
    wire_types: Mapping[str, object] | None = None

    def read(self, row: RawRow) -> dict[str, Value]:
        """The row's values, in its own order; the row is used up.

        Raises:
            ValueOutOfRangeError: a text that is no value of its column's type.
            SchemaMismatchError: a value that is neither text nor null.
        """
        if not {*map(type, row.values())} <= _TEXT_OR_NULL:
            raise _not_text(row)
        name = ""
        try:
            for name, read in self.readers:
                text = row.get(name)
                if text is not None:
                    row[name] = read(text)  # type: ignore[arg-type]  # the check above holds it
        except ValueOutOfRangeError as error:
            error.with_context(column=name)
            raise
        return row  # type: ignore[return-value]

    def key_of(self, row: Mapping[str, Value]) -> dict[str, Value] | None:
        """The key's values, or None where nothing names the row.

        Raises:
            UnnamedRowError: a key column is NULL, or not in the row.
        """
        if not self.key:
            return None
        key = {name: row.get(name) for name in self.key}
        if None in key.values():
            nulls = ", ".join(name for name, value in key.items() if value is None)
            raise UnnamedRowError(
                f"key column {nulls} is NULL or not in the row, so the change names no row: "
                "give keys that no row lacks",
                table=str(self.table),
            )
        return key


def _not_text(row: RawRow) -> SchemaMismatchError:
    name, value = next((n, v) for n, v in row.items() if type(v) not in _TEXT_OR_NULL)
    return SchemaMismatchError(
        f"canal-json values are text or null, this one is {type(value).__name__}", column=name
    )


class RowShapes:
    """The shapes met so far, found again without building anything."""

    def __init__(self, definitions: TableDefinitions, keys: Keys | None) -> None:
        self._definitions = definitions
        self._keys = {_folded(table): tuple(names) for table, names in (keys or {}).items()}
        self._shapes: dict[tuple[str, str], list[RowShape]] = {}
        self._version = definitions.version

    def find(
        self,
        database: str,
        name: str,
        *,
        row: RawRow,
        mysql_type: Mapping[str, object],
        pk_names: Sequence[str] | None,
    ) -> RowShape:
        """The shape of a row.

        Raises:
            SchemaMismatchError: ``mysqlType`` holds something that is no text.
        """
        if self._version != self._definitions.version:
            self._shapes.clear()
            self._version = self._definitions.version
        known = self._shapes.setdefault((database, name), [])
        names = tuple(row)
        for shape in known:
            # The order inside mysqlType is random at the producer: dicts compare without it.
            if shape.names == names and shape.mysql_type == mysql_type and shape.pk_names == pk_names:
                return shape
        shape = self._build(TableId(database, name), names, mysql_type, pk_names)
        known.insert(0, shape)
        del known[_KEPT_SHAPES:]
        return shape

    def _build(
        self,
        table: TableId,
        names: tuple[str, ...],
        mysql_type: Mapping[str, object],
        pk_names: Sequence[str] | None,
    ) -> RowShape:
        definition = self._definitions.get(table)
        known = {} if definition is None else {c.name.casefold(): c for c in definition.columns}
        primary = frozenset(pk_names or ())
        columns = tuple(
            _column(name, mysql_type.get(name), known.get(name.casefold()), primary=name in primary)
            for name in names
        )
        complete = all(name.casefold() in known for name in names)
        return RowShape(
            table=table,
            names=names,
            mysql_type=mysql_type,
            pk_names=pk_names,
            schema=TableSchema(table, columns),
            readers=tuple((c.name, text_reader(c.type)) for c in columns if not keeps_text(c.type)),
            key=self._key(table, names, pk_names),
            wire_types=None if complete else mysql_type,
        )

    def _key(self, table: TableId, names: tuple[str, ...], pk_names: Sequence[str] | None) -> tuple[str, ...]:
        wanted = self._keys.get(_folded(table))
        if wanted is None:
            return tuple(pk_names or ())
        spelt = {name.casefold(): name for name in names}
        return tuple(spelt.get(name.casefold(), name) for name in wanted)


def _folded(table: TableId) -> tuple[str, str]:
    return table.schema.casefold(), table.name.casefold()


def _column(name: str, word: object, defined: Column | None, *, primary: bool) -> Column:
    if word is not None and not isinstance(word, str):
        raise SchemaMismatchError("mysqlType holds something that is no text", column=name)
    wire = _wire_type(word)
    if defined is None:
        column_type = wire or ColumnType("text", sql=word)
        return Column(name, column_type, nullable=not primary, handle=primary, primary_key=primary)
    column_type = defined.type if wire is None or agrees(defined.type, wire) else wire
    return Column(
        name=name,
        type=column_type,
        nullable=defined.nullable and not primary,
        default=defined.default,
        handle=defined.handle or primary,
        primary_key=primary,
        column_id=defined.column_id,
    )


def _wire_type(word: str | None) -> ColumnType | None:
    if not word:
        return None
    try:
        return parse_sql_type(word)
    except ConfigError:
        return None  # A type this version does not know is kept as text.


_ARGUMENTS = ("precision", "scale", "fsp", "members")


def agrees(defined: ColumnType, wire: ColumnType) -> bool:
    """Whether a definition's type can be the one the wire names, as far as the wire names it."""
    if defined.name != wire.name:
        return False
    return all(
        getattr(wire, name) is None or getattr(wire, name) == getattr(defined, name) for name in _ARGUMENTS
    )
