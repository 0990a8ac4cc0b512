"""CREATE TABLE and ALTER TABLE of MySQL and TiDB, as the columns and keys a table has.

Reads the grammar as far as columns and keys go; partitions, options, foreign keys, checks and comments are
skipped. The handle key follows TiCDC (tiflow c7b2588): the primary key, else the unique index of NOT NULL
stored columns with the fewest columns, the oldest among equals.

Column definitions become a Column with the default and the type text that TiDB would show. Rules from TiDB
(2026-06-25), as its own encoders showed them: display widths, ``decimal`` is ``decimal(10,0)``, ``CHARACTER
SET binary`` turns text into binary, a NOT NULL YEAR without default has ``0000``, a column added NOT NULL
without a default has none, and its type's zero in existing rows.

A producer that restarts sends statements again: what an ALTER TABLE already did is left unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from typing import Final, NamedTuple

from tidesink.errors import ConfigError, shown
from tidesink.events import Column, ColumnType, TableId, TableSchema, fold_name
from tidesink.typemap.mysql_types import (
    SqlReader,
    Token,
    default_as,
    default_text,
    parse_sql_type,
    shown_type,
    split_by_comma,
    tokens,
    zero_text,
)
from tidesink.typemap.table import find_row

_ATTRIBUTES = frozenset({"UNSIGNED", "SIGNED", "ZEROFILL"})
_LONGEST_TYPE_NAME = 3  # "national character varying"


@dataclass
class _Options:
    """What a column's definition says behind its type; ``after`` is the column that ``AFTER`` names."""

    nullable: bool | None = None
    default: list[Token] | None = None
    on_update: bool = False
    generated: bool = False
    stored: bool = False
    primary: bool = False
    unique: bool = False
    charset: str | None = None
    first: bool = False
    after: str | None = None


class ColumnDefinition(NamedTuple):
    """A parsed column, with what its definition says about keys and its place."""

    column: Column
    options: _Options


def read_column(sql: SqlReader, *, charset: str | None = None) -> ColumnDefinition:
    """The column definition that stands next; ``charset`` is the table's.

    Raises:
        ConfigError: an unknown type, or text that is no column definition.
    """
    name = sql.name()
    options = _Options(charset=charset)
    word, arguments, attributes = _read_type(sql, options)
    while not sql.done and not sql.sees(","):
        _read_option(sql, options)
    column_type = parse_sql_type(shown_type(word, arguments, attributes, charset=options.charset))
    nullable = options.nullable is not False and not options.primary
    default = _default(options, column_type, nullable)
    virtual = options.generated and not options.stored
    return ColumnDefinition(Column(name, column_type, nullable, default, virtual=virtual), options)


def _with_origin_default(found: ColumnDefinition) -> Column:
    """The column as ADD COLUMN leaves it: NOT NULL without a default gives old rows the type's zero.

    What an expression gave them no statement tells.
    """
    column, options = found
    if column.nullable or options.generated or options.default is not None or column.default is not None:
        return column
    return replace(column, origin_default=zero_text(column.type), redefaulted=True)


def _default(options: _Options, column_type: ColumnType, nullable: bool) -> str | None:
    if options.generated:
        return None
    if options.default is not None:
        return default_text(options.default, column_type)
    if column_type.name == "year" and not nullable:
        return "0000"
    if options.on_update and not nullable:
        return zero_text(column_type)
    return None


def _read_type(sql: SqlReader, options: _Options) -> tuple[str, list[Token], list[str]]:
    word = _type_name(sql)
    if word == "serial":
        # SERIAL is BIGINT UNSIGNED NOT NULL AUTO_INCREMENT UNIQUE.
        options.nullable, options.unique = False, True
        return "bigint", [], ["unsigned"]
    if sql.skip("<"):  # VECTOR<FLOAT>(n)
        sql.take()
        sql.need(">")
    arguments = sql.group() if sql.sees("(") else []
    attributes = []
    while sql.peek().says(*_ATTRIBUTES):
        attributes.append(sql.take().text.lower())
    return word, arguments, attributes


def _type_name(sql: SqlReader) -> str:
    for count in range(_LONGEST_TYPE_NAME, 0, -1):
        words = [sql.peek(n) for n in range(count)]
        if any(token.kind != "word" for token in words):
            continue
        name = " ".join(token.text.lower() for token in words)
        known = name in ("bool", "boolean", "serial") or find_row(name) is not None
        if known and not name.endswith(" unsigned"):  # an attribute, read apart
            for _ in words:
                sql.take()
            return name
    raise ConfigError(f"unknown SQL type {shown(sql.peek().text)}")


# Options that are words alone.
_PLAIN_OPTIONS: Final[Mapping[tuple[str, ...], tuple[str, object]]] = {
    ("NOT", "NULL"): ("nullable", False),
    ("NULL",): ("nullable", True),
    ("PRIMARY", "KEY"): ("primary", True),
    ("PRIMARY",): ("primary", True),
    ("UNIQUE", "KEY"): ("unique", True),
    ("UNIQUE",): ("unique", True),
    ("KEY",): ("primary", True),
    ("BYTE",): ("charset", "binary"),
    ("FIRST",): ("first", True),
}


def _read_option(sql: SqlReader, options: _Options) -> None:
    plain = next((found for words, found in _PLAIN_OPTIONS.items() if sql.skip(*words)), None)
    if plain is not None:
        setattr(options, *plain)
    elif sql.skip("DEFAULT"):
        options.default = _expression(sql)
    elif sql.skip("ON", "UPDATE"):
        options.on_update = True
        _expression(sql)
    elif sql.sees("AS", "(") or sql.sees("GENERATED"):
        _read_generated(sql, options)
    elif sql.skip("CHARACTER", "SET") or sql.skip("CHARSET") or sql.skip("CHAR", "SET"):
        sql.skip("=")
        options.charset = sql.take().text.lower()
    elif sql.skip("AFTER"):
        options.after = sql.name()
    elif sql.skip_any("COMMENT", "COLLATE", "COLUMN_FORMAT", "STORAGE"):
        sql.take()
    elif sql.skip("REFERENCES"):
        _skip_reference(sql)
    else:
        sql.skip_item()


def _skip_reference(sql: SqlReader) -> None:
    # ON UPDATE SET NULL and SET DEFAULT must not be read as options of the column.
    while not sql.done and not sql.sees(","):
        if sql.skip("ON"):
            sql.take()
            sql.take()
            sql.skip_any("NULL", "DEFAULT", "ACTION")
        elif sql.sees("NOT") or sql.sees("NULL") or sql.sees("COMMENT"):
            return
        else:
            sql.skip_item()


def _read_generated(sql: SqlReader, options: _Options) -> None:
    sql.skip("GENERATED", "ALWAYS")
    sql.need("AS")
    sql.group()
    options.generated = True
    options.stored = not sql.skip("VIRTUAL") and sql.skip_any("STORED", "PERSISTENT")


def _expression(sql: SqlReader) -> list[Token]:
    """One default or ON UPDATE value: a literal with its sign, a function call, or a group."""
    if sql.sees("("):
        return [Token("sign", "("), *sql.group(), Token("sign", ")")]
    expression = [sql.take()]
    if expression[0].says("-", "+"):
        expression.append(sql.take())
    if expression[0].kind == "word" and sql.sees("("):
        expression += [Token("sign", "("), *sql.group(), Token("sign", ")")]
    return expression


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
        return tuple(column.name for column in self.columns if fold_name(column.name) in self.dropped)

    @property
    def names(self) -> frozenset[str]:
        """The columns' names, folded."""
        return frozenset(fold_name(column.name) for column in self.columns)

    @property
    def reused(self) -> frozenset[str]:
        """Names, folded, that several columns had: one now, those that were dropped or have another name."""
        times = Counter((*self.names, *self.dropped, *(fold_name(old) for old, _ in self.renamed)))
        return frozenset(name for name, columns in times.items() if columns > 1)

    def schema(self) -> TableSchema:
        """The columns with their keys marked."""
        primary = {fold_name(name) for name in self.primary_key}
        handle = primary or self._unique_handle()
        return TableSchema(
            self.table,
            tuple(
                replace(
                    column,
                    primary_key=fold_name(column.name) in primary,
                    handle=fold_name(column.name) in handle,
                    nullable=column.nullable and fold_name(column.name) not in primary,
                )
                for column in self.columns
            ),
        )

    def _unique_handle(self) -> set[str]:
        fit = {fold_name(c.name) for c in self.columns if not c.nullable and not c.virtual}
        eligible = [u for u in self.uniques if all(fold_name(name) in fit for name in u.columns)]
        best = min(eligible, key=lambda unique: len(unique.columns), default=None)
        return set() if best is None else {fold_name(name) for name in best.columns}

    def has(self, name: str) -> bool:
        """Whether there is such a column; names compare as MySQL's do."""
        return fold_name(name) in self.names

    def place_of(self, name: str) -> int:
        """The column's place; names compare as MySQL's do.

        Raises:
            ConfigError: no such column.
        """
        for place, column in enumerate(self.columns):
            if fold_name(column.name) == fold_name(name):
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
    found = SqlReader(sql.group()).parts()
    charset = _table_charset(sql)
    definition = TableDefinition(table, charset=charset)
    columns = [read_column(part, charset=charset) for part in found if not starts_constraint(part)]
    # TiDB numbers table-level indexes before the columns' own.
    for part in found:
        if starts_constraint(part):
            definition = add_constraint(definition, part)
    for column in columns:
        definition = append_column(definition, column)
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


def statements(sql: Iterable[Token]) -> Iterator[SqlReader]:
    """The statements of SQL, without the semicolons between them."""
    statement: list[Token] = []
    for token in [*sql, Token("sign", ";")]:
        if not token.says(";"):
            statement.append(token)
        elif statement:
            yield SqlReader(_in_usual_words(statement))
            statement = []


def _in_usual_words(statement: Sequence[Token]) -> list[Token]:
    """A statement with ``TABLE`` behind its verb where MySQL and MariaDB have other words for the same."""
    verb, *rest = statement
    if verb.says("ALTER"):
        rest = [*dropwhile(lambda one: one.says("IGNORE", "ONLINE", "OFFLINE"), rest)]
    elif rest and verb.says("DROP", "RENAME") and rest[0].says("TABLES"):
        rest[0] = Token("word", "TABLE")
    return [verb, *rest]


def producer_statements(query: str) -> Iterator[SqlReader]:
    """The statements of a DDL event's text.

    Raises:
        ConfigError: text that is no SQL.
    """
    # TiDB's restorer leaves backslashes as they are (tiflow c7b2588); what a person wrote escapes them.
    try:
        found = tokens(query, backslash_escapes=False)
    except ConfigError:
        found = tokens(query)
    return statements(found)


def read_alter(sql: SqlReader, default_schema: str) -> tuple[TableId, list[SqlReader]] | None:
    """The table of an ALTER TABLE and the parts behind it; None for any other statement."""
    if not sql.skip("ALTER", "TABLE"):
        return None
    sql.skip("IF", "EXISTS")
    table = read_table_name(sql, default_schema)
    _skip_wait(sql)
    return table, sql.parts()


def _skip_wait(sql: SqlReader) -> None:
    """How long MariaDB waits for the table's lock: ``WAIT 5``, or ``NOWAIT``."""
    if not sql.skip("NOWAIT") and sql.skip("WAIT"):
        sql.take()


def read_dropped(sql: SqlReader, default_schema: str) -> list[TableId]:
    """The tables behind DROP TABLE."""
    sql.skip("IF", "EXISTS")
    return [read_table_name(part, default_schema) for part in sql.parts()]


def read_renamed(sql: SqlReader, default_schema: str) -> Iterator[tuple[TableId, TableId]]:
    """The old and the new names behind RENAME TABLE."""
    sql.skip("IF", "EXISTS")
    for pair in sql.parts():
        old = read_table_name(pair, default_schema)
        _skip_wait(pair)
        pair.need("TO")
        yield old, read_table_name(pair, default_schema)


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
    if found.options.primary:
        definition = replace(definition, primary_key=(name,))
    if found.options.unique:
        definition = add_unique(definition, name, (name,))
    return definition


def alter(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    """The table after one part of an ALTER TABLE; parts about neither columns nor keys change nothing.

    Raises:
        ConfigError: a column that is not there, or a part not to be read.
    """
    verb = sql.take()
    if verb.says("RENAME") and not sql.peek().says("COLUMN", "INDEX", "KEY"):
        sql.skip_any("TO", "AS", "=")
        return replace(definition, table=read_table_name(sql, definition.table.schema))
    change = _VERBS.get(verb.text.upper())
    return definition if change is None else change(definition, sql)


def _add(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    if starts_constraint(sql):
        return add_constraint(definition, sql)
    if sql.peek().says("PARTITION"):
        return definition
    sql.skip("COLUMN")
    sql.skip("IF", "NOT", "EXISTS")
    if not sql.sees("("):
        return _add_column(definition, sql)
    inside = SqlReader(sql.group())
    while not inside.done:
        if starts_constraint(inside):
            definition = add_constraint(definition, inside)
        else:
            definition = _add_column(definition, inside)
        inside.skip(",")
    return definition


def _add_column(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    found = read_column(sql, charset=definition.charset)
    if definition.has(found.column.name):
        return definition
    found = found._replace(column=_with_origin_default(found))
    return append_column(definition, found, at=_place(definition, found))


def _place(definition: TableDefinition, found: ColumnDefinition) -> int | None:
    if found.options.first:
        return 0
    after = found.options.after
    return None if after is None else definition.place_of(after) + 1


def _drop(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    if sql.skip("PRIMARY", "KEY"):
        return replace(definition, primary_key=())
    if sql.skip_any("INDEX", "KEY") or sql.skip("CONSTRAINT"):
        sql.skip("IF", "EXISTS")
        return drop_index(definition, sql.name())
    if sql.peek().says("FOREIGN", "CHECK", "PARTITION"):
        return definition
    sql.skip("COLUMN")
    sql.skip("IF", "EXISTS")
    name = sql.name()
    return _without(definition, name) if definition.has(name) else definition


def drop_index(definition: TableDefinition, name: str) -> TableDefinition:
    """The definition without the unique index of this name, if it is one."""
    kept = tuple(unique for unique in definition.uniques if fold_name(unique.name) != fold_name(name))
    return replace(definition, uniques=kept)


def _without(definition: TableDefinition, name: str) -> TableDefinition:
    at = definition.place_of(name)
    columns = definition.columns[:at] + definition.columns[at + 1 :]
    uniques = tuple(u for u in definition.uniques if fold_name(name) not in (fold_name(c) for c in u.columns))
    # A column that is gone is gone under the names it had before, too.
    its = (fold_name(old) for old, new in definition.renamed if fold_name(new) == fold_name(name))
    dropped = tuple(dict.fromkeys((*definition.dropped, fold_name(name), *its)))
    renamed = tuple(pair for pair in definition.renamed if fold_name(pair[1]) != fold_name(name))
    return replace(definition, columns=columns, uniques=uniques, dropped=dropped, renamed=renamed)


def _modify(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    sql.skip("COLUMN")
    sql.skip("IF", "EXISTS")
    found = read_column(sql, charset=definition.charset)
    return _redefine(definition, found.column.name, found)


def _change(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    sql.skip("COLUMN")
    sql.skip("IF", "EXISTS")
    old = sql.name()
    found = read_column(sql, charset=definition.charset)
    return _redefine(definition, old if definition.has(old) else found.column.name, found)


def _redefine(definition: TableDefinition, old: str, found: ColumnDefinition) -> TableDefinition:
    at = definition.place_of(old)
    before, new = definition.columns[at], found.column
    with_defaults = replace(
        before,
        default=default_as(before.default, before.type, new.type),
        origin_default=default_as(before.origin_default, before.type, new.type),
    )
    rest = replace(definition, columns=definition.columns[:at] + definition.columns[at + 1 :])
    place = _place(rest, found)
    columns = list(rest.columns)
    columns.insert(at if place is None else place, with_defaults.redefined_by(new))
    changed = replace(definition, columns=tuple(columns))
    return with_own_keys(_renamed_in_keys(changed, before.name, new.name), found)


def _rename(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    if not sql.skip("COLUMN"):
        return _rename_index(definition, sql)
    old = sql.name()
    sql.need("TO")
    new = sql.name()
    if definition.has(new) and not definition.has(old):
        return definition
    at = definition.place_of(old)
    column = definition.columns[at]
    return _renamed_in_keys(_with_column(definition, at, replace(column, name=new)), column.name, new)


def _rename_index(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    sql.take()
    old = sql.name()
    sql.need("TO")
    new = sql.name()
    uniques = tuple(
        replace(u, name=new) if fold_name(u.name) == fold_name(old) else u for u in definition.uniques
    )
    return replace(definition, uniques=uniques)


def _with_column(definition: TableDefinition, at: int, column: Column) -> TableDefinition:
    columns = (*definition.columns[:at], column, *definition.columns[at + 1 :])
    return replace(definition, columns=columns)


def _renamed_in_keys(definition: TableDefinition, old: str, new: str) -> TableDefinition:
    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new if fold_name(name) == fold_name(old) else name for name in names)

    return replace(
        definition,
        renamed=_renames(definition.renamed, old, new),
        primary_key=renamed(definition.primary_key),
        uniques=tuple(replace(u, columns=renamed(u.columns)) for u in definition.uniques),
    )


def _renames(known: tuple[tuple[str, str], ...], old: str, new: str) -> tuple[tuple[str, str], ...]:
    """The names that were, newest first; a column that was renamed twice has had both."""
    followed = tuple((was, new if fold_name(now) == fold_name(old) else now) for was, now in known)
    if fold_name(old) == fold_name(new):
        return followed
    # One that has its old name again never had another. A name that is taken again keeps its pair.
    return ((old, new), *((was, now) for was, now in followed if fold_name(was) != fold_name(now)))


def _alter_column(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    if sql.peek().says("INDEX", "CHECK", "CONSTRAINT"):
        return definition
    sql.skip("COLUMN")
    at = definition.place_of(sql.name())
    column = definition.columns[at]
    if sql.skip("DROP", "DEFAULT"):
        return _with_column(definition, at, column.redefined_by(replace(column, default=None)))
    sql.need("SET", "DEFAULT")
    changed = replace(column, default=default_text(sql.rest(), column.type))
    return _with_column(definition, at, column.redefined_by(changed))


_VERBS: dict[str, Callable[[TableDefinition, SqlReader], TableDefinition]] = {
    "ADD": _add,
    "DROP": _drop,
    "MODIFY": _modify,
    "CHANGE": _change,
    "RENAME": _rename,
    "ALTER": _alter_column,
}
