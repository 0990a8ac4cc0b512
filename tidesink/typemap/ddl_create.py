"""CREATE TABLE and ALTER TABLE to the columns and keys a table has.

Reads MySQL's and TiDB's grammar as far as columns and keys go; partitions, options, foreign keys,
checks and comments are passed over. The handle key follows TiCDC (tiflow c7b2588): the primary key,
else the unique index of NOT NULL stored columns with the fewest columns, the oldest among equals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tidesink.errors import ConfigError
from tidesink.events import Column, TableId, TableSchema
from tidesink.typemap.sql_column import ColumnDefinition, read_column
from tidesink.typemap.sql_lexer import Token
from tidesink.typemap.sql_reader import SqlReader, split_by_comma


@dataclass(frozen=True)
class Index:
    """A unique index; ``columns`` are names, an expression stands as an empty name."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class TableDefinition:
    """A table as DDL knows it: more than the wire ever says.

    ``declared``: a person stated it. ``dropped`` are the names of columns that were dropped, folded;
    ``renamed`` the names that columns had before, each with the one they have now, newest first.
    """

    table: TableId
    columns: tuple[Column, ...] = ()
    primary_key: tuple[str, ...] = ()
    uniques: tuple[Index, ...] = ()
    next_column_id: int = 1
    charset: str | None = None
    declared: bool = False
    dropped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def readded(self) -> tuple[str, ...]:
        """The columns that were added under the name of one dropped before."""
        return tuple(column.name for column in self.columns if column.name.casefold() in self.dropped)

    @property
    def names(self) -> frozenset[str]:
        """The columns' names, folded."""
        return frozenset(column.name.casefold() for column in self.columns)

    @property
    def reused(self) -> frozenset[str]:
        """Names, folded, that several columns had: one now, those that were dropped or have another name."""
        times = Counter((*self.names, *self.dropped, *(old.casefold() for old, _ in self.renamed)))
        return frozenset(name for name, columns in times.items() if columns > 1)

    def schema(self) -> TableSchema:
        """The columns with their keys marked."""
        primary = {name.casefold() for name in self.primary_key}
        handle = primary or self._unique_handle()
        return TableSchema(
            self.table,
            tuple(
                replace(
                    column,
                    primary_key=column.name.casefold() in primary,
                    handle=column.name.casefold() in handle,
                    nullable=column.nullable and column.name.casefold() not in primary,
                )
                for column in self.columns
            ),
        )

    def _unique_handle(self) -> set[str]:
        fit = {c.name.casefold() for c in self.columns if not c.nullable and not c.virtual}
        eligible = [u for u in self.uniques if all(name.casefold() in fit for name in u.columns)]
        best = min(eligible, key=lambda unique: len(unique.columns), default=None)
        return set() if best is None else {name.casefold() for name in best.columns}

    def place_of(self, name: str) -> int:
        """The column's place; names compare as MySQL's do.

        Raises:
            ConfigError: no such column.
        """
        for place, column in enumerate(self.columns):
            if column.name.casefold() == name.casefold():
                return place
        raise ConfigError(f"table {self.table} has no column {name!r}")


def skip_create_table(sql: SqlReader) -> bool:
    """Takes CREATE [TEMPORARY] TABLE [IF NOT EXISTS]."""
    if not (sql.skip("CREATE", "TABLE") or sql.skip("CREATE", "TEMPORARY", "TABLE")):
        return False
    sql.skip("IF", "NOT", "EXISTS")
    return True


def read_create_table(sql: SqlReader, default_schema: str) -> TableDefinition:
    """The definition after CREATE TABLE.

    Raises:
        ConfigError: not to be read.
    """
    table = read_table_name(sql, default_schema)
    parts = split_by_comma(sql.group())
    charset = _table_charset(sql)
    definition = TableDefinition(table, charset=charset)
    found = [SqlReader(part) for part in parts if part]
    columns = [read_column(part, charset=charset) for part in found if not starts_constraint(part)]
    # TiDB numbers table-level indexes before the columns' own.
    for part in found:
        if starts_constraint(part):
            definition = add_constraint(definition, part)
    for column in columns:
        definition = append_column(definition, column)
    return _checked(definition)


def _checked(definition: TableDefinition) -> TableDefinition:
    for name in definition.primary_key:
        definition.place_of(name)
    if not definition.columns:
        raise ConfigError(f"CREATE TABLE {definition.table} has no columns")
    return definition


def _table_charset(sql: SqlReader) -> str | None:
    charset = None
    while not sql.done:
        if sql.skip("CHARSET") or sql.skip("CHARACTER", "SET"):
            sql.skip("=")
            charset = sql.take().text.lower()
        else:
            sql.take()
    return charset


def read_table_name(sql: SqlReader, default_schema: str) -> TableId:
    """A table's name, with the default schema where it has none."""
    first = sql.name()
    return TableId(first, sql.name()) if sql.skip(".") else TableId(default_schema, first)


_CONSTRAINTS = ("CONSTRAINT", "PRIMARY", "UNIQUE", "KEY", "INDEX", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK")


def starts_constraint(sql: SqlReader) -> bool:
    """Whether a key or a check stands next, and no column."""
    if sql.sees("VECTOR", "INDEX") or sql.sees("COLUMNAR", "INDEX"):
        return True
    return sql.peek().says(*_CONSTRAINTS)


def add_constraint(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    """The definition with a key added; other constraints change nothing here."""
    name = ""
    if sql.skip("CONSTRAINT") and not sql.peek().says("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
        name = sql.name()
    if sql.skip("PRIMARY", "KEY"):
        return replace(definition, primary_key=tuple(_index_columns(sql)))
    if not sql.skip("UNIQUE"):
        return definition
    sql.skip_any("KEY", "INDEX")
    sql.skip("IF", "NOT", "EXISTS")
    if not sql.sees("(") and not sql.sees("USING"):
        name = sql.name()
    return add_unique(definition, name, _index_columns(sql))


def add_unique(definition: TableDefinition, name: str, columns: Iterable[str]) -> TableDefinition:
    """The definition with a unique index; one without a name takes its first column's, as in MySQL."""
    names = tuple(columns)
    return replace(definition, uniques=(*definition.uniques, Index(name or names[0], names)))


def _index_columns(sql: SqlReader) -> list[str]:
    while not sql.sees("("):
        sql.take()  # USING BTREE
    return read_index_columns(sql.group())


def read_index_columns(inside: list[Token]) -> list[str]:
    """The columns of an index; an expression gives an empty name, which fits no column."""
    return ["" if part[0].says("(") else part[0].text for part in split_by_comma(inside) if part]


def append_column(
    definition: TableDefinition, found: ColumnDefinition, *, at: int | None = None
) -> TableDefinition:
    """The definition with a column at a place (default: the end), its own keys included."""
    column = replace(found.column, column_id=definition.next_column_id)
    place = len(definition.columns) if at is None else at
    columns = (*definition.columns[:place], column, *definition.columns[place:])
    changed = replace(definition, columns=columns, next_column_id=definition.next_column_id + 1)
    return with_own_keys(changed, found)


def with_own_keys(definition: TableDefinition, found: ColumnDefinition) -> TableDefinition:
    """The definition with the keys a column definition carries itself."""
    name = found.column.name
    if found.primary:
        definition = replace(definition, primary_key=(name,))
    if found.unique:
        definition = add_unique(definition, name, (name,))
    return definition
