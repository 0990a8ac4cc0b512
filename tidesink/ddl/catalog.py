"""Table definitions from SQL, kept up to date statement by statement.

Statements come from the configuration and from DDL events: a single CREATE TABLE, or a stream of statements.

Postgres' CREATE TABLE serves topics without types (JSON without schemas). Its types are the types in which
Debezium's PostgreSQL connector (3.5) writes them. A type that is not in Postgres' own catalog (an enum, a
domain, a composite) is read as text. If its base type is not text, declare the column with the base type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from tidesink.ddl.history import Key, TypeHistory, read_type, table_key
from tidesink.ddl.statements import (
    AlterTable,
    Index,
    TableDefinition,
    add_unique,
    alter,
    drop_index,
    producer_statements,
    read_alter,
    read_converted_partition,
    read_create_table,
    read_creation,
    read_dropped,
    read_index_columns,
    read_like,
    read_renamed,
    read_table_name,
    skip_definer,
    statements,
)
from tidesink.errors import ConfigError
from tidesink.events import (
    UNTOLD_DEFAULT,
    Column,
    ColumnType,
    EarlierType,
    TableId,
    TableSchema,
    fold_name,
)
from tidesink.typemap.mysql_types import SqlReader, each_token, tokens

if TYPE_CHECKING:
    from sqlglot import exp


_VERSION = 1


class TableDefinitions:
    """Table definitions by name; names compare without case, as in TiDB.

    ``declare`` runs the user's statements, and ``apply`` runs a topic's DDL. A declared table is not
    redefined by the topic's own CREATE, but it follows the topic's ALTERs. ``to_json`` and ``from_json``
    carry the state over a restart. ``version`` grows with every change, so that a reader can check if its
    derived data is current. A table declared without a schema matches that table in any schema.

    If ``apply`` receives the commit time of each statement, the columns' ``earlier`` types are known. A
    statement that is sent again after newer statements of its table then changes nothing.
    """

    def __init__(self, schemas: Iterable[TableSchema] = ()) -> None:
        self._tables: dict[Key, TableDefinition] = {}
        self._schemas: dict[Key, TableSchema] = {}
        self._history = TypeHistory()
        self._since: int | None = None
        # The table named by the event whose statement is being applied.
        self._about: TableId | None = None
        # True while a user's statements run: their unqualified names belong to the default schema.
        self._stated = False
        self.timed = False
        self.version = 0
        for schema in schemas:
            self.put(schema)

    def get(self, table: TableId) -> TableSchema | None:
        """Returns the table's columns and keys, or None if no statement named it."""
        key = table_key(table)
        schema = self._schemas.get(key)
        if schema is None:
            definition = self._find(table)
            schema = None if definition is None else definition.schema()
            if schema is not None:
                self._schemas[key] = schema
        return schema

    def _find(self, table: TableId) -> TableDefinition | None:
        found = self._tables.get(table_key(table))
        if found is None and table.schema:
            bare = self._tables.get(table_key(TableId("", table.name)))
            return None if bare is None else replace(bare, table=table)
        return found

    def unique_index(self, table: TableId, name: str) -> tuple[str, ...]:
        """Returns the columns of a unique index (``PRIMARY``: the primary key), or an empty tuple."""
        definition = self._find(table)
        if definition is None:
            return ()
        if name.upper() == "PRIMARY":
            return definition.primary_key
        return next((index.columns for index in definition.uniques if index.name == name), ())

    def put(self, schema: TableSchema) -> None:
        """Declares a table and replaces any earlier definition of it."""
        self._history.forget(schema.table)
        self._keep(replace(_definition_of(schema), declared=True))

    def declare(self, sql: str, default_schema: str = "") -> tuple[TableId, ...]:
        """Declares the tables of hand-written SQL (backslashes in its strings are escapes).

        Raises:
            ConfigError: A statement cannot be read; it changes no table.
        """
        self._stated = True
        try:
            tables = self._run(statements(each_token(sql)), default_schema)
        finally:
            self._stated = False
        for table in tables:
            declared = self._tables.get(table_key(table))
            if declared is not None:
                self._keep(replace(declared, declared=True))
        return tables

    def __iter__(self) -> Iterator[TableId]:
        return iter([definition.table for definition in self._tables.values()])

    def __len__(self) -> int:
        return len(self._tables)

    def __contains__(self, table: object) -> bool:
        return isinstance(table, TableId) and self._find(table) is not None

    def former(self, table: TableId) -> tuple[Column, ...]:
        """Returns the columns that a table of this name once had and no longer has, with their types."""
        definition = self._find(table)
        now = {fold_name(column.name) for column in definition.columns} if definition else set()
        return tuple(c for c in self._history.columns(table) if fold_name(c.name) not in now)

    def apply(
        self,
        query: str,
        default_schema: str = "",
        *,
        since: int | None = None,
        about: TableId | None = None,
    ) -> tuple[TableId, ...]:
        """Applies DDL text to the tables and returns the changed tables, under their new names.

        ``since``: TSO at which the statement was committed; None means that it applies to rows of any time.
        ``about``: the table named by the event; for a rename this is the new name, from which its database is
        known.

        A statement that concerns neither columns nor keys (views, databases, options), or an ALTER of an
        unknown table, changes nothing and returns ``()``. A statement sent twice changes nothing the second
        time. One text may contain several statements.

        Raises:
            ConfigError: A statement about a table cannot be read; it changes no table.
        """
        if self._history.has_heard(since, default_schema, query):
            return ()
        self._since, self._about = since, about
        try:
            changed = self._run(producer_statements(query), default_schema)
        finally:
            self._since = self._about = None
        self._history.hear(since, default_schema, query)
        return changed

    def _run(self, sql: Iterable[SqlReader], default_schema: str) -> tuple[TableId, ...]:
        changed: list[TableId] = []
        for statement in sql:
            read = _STATEMENTS.get(statement.peek().text.upper())
            if read is not None:
                changed += read(self, statement, default_schema)
        return tuple(dict.fromkeys(changed))

    def readded(self) -> frozenset[tuple[TableId, str]]:
        """Returns the columns, by table, that were added under the name of a column dropped earlier."""
        return frozenset((d.table, name) for d in self._tables.values() for name in d.readded)

    def renamed(self, table: TableId) -> dict[str, str]:
        """Returns the earlier names of a table's columns, each with its current name, newest first.

        A name that several columns had in turn appears once, with the last of these columns; see ``reused``.
        """
        definition = self._find(table)
        known: dict[str, tuple[str, str]] = {}
        for old, new in definition.renamed if definition else ():
            known.setdefault(fold_name(old), (old, new))
        now = {fold_name(column.name) for column in definition.columns} if definition else set()
        return {old: new for old, new in known.values() if fold_name(new) in now}

    def partings(self, table: TableId) -> dict[str, str]:
        """Returns when columns of a table were last dropped or renamed, by folded name."""
        return {name: parting.moment for name, parting in self._history.partings(table).items()}

    def reused(self, table: TableId) -> frozenset[str]:
        """Returns the folded names that several columns of a table had, one after the other."""
        definition = self._find(table)
        return definition.reused if definition else frozenset()

    def renames(self, table: TableId) -> tuple[tuple[str, str], ...]:
        """Returns earlier column names, each with a later one; dropped columns and tables are included."""
        definition = self._find(table)
        return tuple(
            dict.fromkeys((*self._history.renames(table), *(definition.renamed if definition else ())))
        )

    def to_json(self) -> str:
        """Returns all definitions as JSON text."""
        tables = [asdict(definition) for definition in self._tables.values()]
        return json.dumps({"version": _VERSION, "tables": tables, "history": self._history.as_json()})

    @classmethod
    def from_json(cls, text: str) -> TableDefinitions:
        """Restores the definitions written by ``to_json``.

        Raises:
            ConfigError: The text has another version.
        """
        found = json.loads(text)
        if found.get("version") != _VERSION:
            raise ConfigError(f"table definitions of version {found.get('version')!r}: expected {_VERSION}")
        definitions = cls()
        for table in found["tables"]:
            definitions._keep(_restored(table))
        if "history" in found:
            definitions._history.read(found["history"])
            definitions.timed = definitions._history.has_changes
        return definitions

    def _set(self, definition: TableDefinition, parted: Iterable[str] = ()) -> None:
        """Stores the definition that a statement made, unless a newer statement changed the table."""
        table, since = definition.table, self._since
        if self._history.note(table, parted, since):
            self._keep(self._history.timed(definition, self._find(table), since))

    def _keep(self, definition: TableDefinition) -> None:
        self._tables[table_key(definition.table)] = definition
        self._schemas.clear()
        self.timed = self.timed or any(column.earlier for column in definition.columns)
        self.version += 1

    def _remove(self, table: TableId) -> TableDefinition | None:
        removed = self._tables.get(table_key(table))
        if not self._history.note(table, removed.names if removed else (), self._since):
            return None
        self._schemas.clear()
        self.version += 1
        return self._tables.pop(table_key(table), None)

    def _create(self, sql: SqlReader, default_schema: str) -> list[TableId]:
        creation = read_creation(sql)
        if creation is None:
            return self._create_other(sql, default_schema)
        if creation.temporary and not self._stated:
            return []
        source = read_like(sql, default_schema)
        if source is None:
            created = read_create_table(sql, default_schema)
        else:
            old, new = source
            like = self._find(self._in_session(old, default_schema))
            if like is None:
                # A recreated table has other columns than before.
                return self._forgotten(new)
            created = replace(like, table=new, declared=False, dropped=(), renamed=())
        known = self._find(created.table)
        if known is not None and (known.declared or (creation.if_absent and self._since is None)):
            # TiCDC sends a statement with its time, and only if it had an effect; MySQL logs every statement.
            return []
        self._set(created)
        return [created.table]

    def _in_session(self, table: TableId, default_schema: str) -> TableId:
        """Returns a table with the session's database if its name is unqualified.

        The session of an event is unknown, so its unqualified names stay as they are.
        """
        return TableId(default_schema, table.name) if self._stated and not table.schema else table

    def _forgotten(self, table: TableId) -> list[TableId]:
        known = self._tables.get(table_key(table))
        return [] if known is None or known.declared else self._removed([table])

    def _create_other(self, sql: SqlReader, default_schema: str) -> list[TableId]:
        if sql.skip("CREATE", "OR", "REPLACE", "DATABASE") or sql.skip("CREATE", "OR", "REPLACE", "SCHEMA"):
            return self._drop_database(sql)
        return self._create_index(sql, default_schema)

    def _drop_database(self, sql: SqlReader) -> list[TableId]:
        sql.skip("IF", "EXISTS")
        name = fold_name(sql.name())
        return self._removed(table for table in self if fold_name(table.schema) == name)

    def _create_index(self, sql: SqlReader, default_schema: str) -> list[TableId]:
        skip_definer(sql)
        if not (sql.skip("CREATE", "UNIQUE", "INDEX") or sql.skip("CREATE", "UNIQUE", "KEY")):
            return []
        sql.skip("IF", "NOT", "EXISTS")
        name = sql.name()
        while not sql.skip("ON"):
            sql.take()
        table = read_table_name(sql, default_schema)
        columns = read_index_columns(sql.group())
        return self._change(table, lambda definition: add_unique(definition, name, columns))

    def _change(self, table: TableId, change: Callable[[TableDefinition], TableDefinition]) -> list[TableId]:
        definition = self._find(table)
        if definition is None:
            return []
        self._set(change(definition))
        return [definition.table]

    def _alter(self, sql: SqlReader, default_schema: str) -> list[TableId]:
        read = read_alter(sql, default_schema, self._about)
        before = None if read is None else self._find(read.table)
        if read is None or before is None:
            return []
        self._convert(before, read)
        altered = alter(before, read)
        definition = altered.definition
        table = self._in_session(definition.table, default_schema)
        if table != before.table:
            self._remove(before.table)
            definition = replace(definition, table=table, dropped=(), renamed=())
        if not table.schema and before.table.schema:
            # Its new name is in the session's database, which is unknown.
            return [before.table]
        self._set(definition, altered.parted)
        return [definition.table]

    def _convert(self, table: TableDefinition, statement: AlterTable) -> None:
        """Adds the tables made from partitions and removes the tables that become partitions (MariaDB)."""
        for part in (one.copy() for one in statement.parts):
            if part.sees("CONVERT", "PARTITION"):
                made = read_converted_partition(statement, part)
                if made.schema:
                    self._set(replace(table, table=made, declared=False, dropped=(), renamed=()))
            elif part.skip("CONVERT", "TABLE"):
                self._remove(read_table_name(part, statement.session_schema))

    def _drop(self, sql: SqlReader, default_schema: str) -> list[TableId]:
        sql.take()
        if sql.skip_any("DATABASE", "SCHEMA"):
            return self._drop_database(sql)
        if sql.skip("INDEX"):
            sql.skip("IF", "EXISTS")
            name = sql.name()
            sql.need("ON")
            return self._change(read_table_name(sql, default_schema), lambda d: drop_index(d, name))
        if (sql.skip("TEMPORARY") and not self._stated) or not sql.skip("TABLE"):
            return []
        dropped = read_dropped(sql, default_schema)
        return self._removed(self._in_session(table, default_schema) for table in dropped)

    def _removed(self, tables: Iterable[TableId]) -> list[TableId]:
        return [table for table in [*tables] if self._remove(table) is not None]

    def _rename(self, sql: SqlReader, default_schema: str) -> list[TableId]:
        if not sql.skip("RENAME", "TABLE"):
            return []
        changed = []
        for old, new in read_renamed(sql, default_schema, self._about):
            moved = self._remove(self._in_session(old, default_schema))
            table = self._in_session(new, default_schema)
            if moved is not None and (table.schema or not moved.table.schema):
                self._set(replace(moved, table=table, dropped=(), renamed=()))
            if moved is not None:
                changed.append(table)
        return changed


def _definition_of(schema: TableSchema) -> TableDefinition:
    handle = tuple(column.name for column in schema.handle_columns)
    primary = tuple(column.name for column in schema.primary_key)
    # A handle that is not a primary key can only be a unique key.
    uniques = (Index(handle[0], handle),) if handle and not primary else ()
    known = [column.column_id or 0 for column in schema.columns]
    return TableDefinition(
        schema.table,
        schema.columns,
        primary,
        uniques,
        next_column_id=max([*known, len(known)], default=0) + 1,
    )


def _restored(found: Mapping[str, Any]) -> TableDefinition:
    return TableDefinition(
        table=TableId(*found["table"]),
        columns=tuple(map(_restored_column, found["columns"])),
        primary_key=tuple(found["primary_key"]),
        uniques=tuple(Index(one["name"], tuple(one["columns"])) for one in found["uniques"]),
        next_column_id=found["next_column_id"],
        charset=found["charset"],
        declared=found["declared"],
        dropped=tuple(found.get("dropped", ())),
        renamed=tuple((old, new) for old, new in found.get("renamed", ())),
    )


def _restored_column(found: Mapping[str, Any]) -> Column:
    earlier = tuple(EarlierType(read_type(was), until) for was, until in found.get("earlier", ()))
    return Column(**{**found, "type": read_type(found["type"]), "earlier": earlier})


_STATEMENTS: dict[str, Callable[[TableDefinitions, SqlReader, str], list[TableId]]] = {
    "CREATE": TableDefinitions._create,
    "ALTER": TableDefinitions._alter,
    "DROP": TableDefinitions._drop,
    "RENAME": TableDefinitions._rename,
}


def parse_create_table(sql: str, *, default_schema: str = "") -> TableSchema:
    """Returns the table that a CREATE TABLE statement makes.

    Raises:
        ConfigError: The text is not a CREATE TABLE statement, or cannot be read.
    """
    reader = SqlReader(tokens(sql))
    if read_creation(reader) is None:
        raise ConfigError(f"expected a CREATE TABLE statement, not {sql[:40]!r}")
    return read_create_table(reader, default_schema).schema()


# Postgres' CREATE TABLE

# Fraction digits for milliseconds and microseconds. Debezium's connector (3.5) writes a time in one unit or
# the other, depending on the digits of its column (time.precision.mode adaptive).
_MILLISECONDS: Final = 3
_MOST_DIGITS: Final = 6
# By the type's name in sqlglot.
_TYPES: Final[Mapping[str, ColumnType]] = {
    **dict.fromkeys(("SMALLINT", "SMALLSERIAL"), ColumnType("smallint")),
    **dict.fromkeys(("INT", "SERIAL"), ColumnType("int")),
    **dict.fromkeys(("BIGINT", "BIGSERIAL", "OID"), ColumnType("bigint")),
    "MONEY": ColumnType("decimal", precision=19, scale=2),
    "FLOAT": ColumnType("float"),
    "DOUBLE": ColumnType("double"),
    "BOOLEAN": ColumnType("boolean"),
    "VARBINARY": ColumnType("blob"),
    "DATE": ColumnType("local date"),
    "TIME": ColumnType("time", fsp=_MOST_DIGITS),
    "TIMETZ": ColumnType("zoned time"),
    "TIMESTAMP": ColumnType("local datetime", fsp=_MOST_DIGITS),
    "TIMESTAMPTZ": ColumnType("instant"),
    "INTERVAL": ColumnType("interval"),
    "HSTORE": ColumnType("map"),
    "ARRAY": ColumnType("array"),
    **dict.fromkeys(("JSON", "JSONB"), ColumnType("json")),
    "UUID": ColumnType("uuid"),
    "XML": ColumnType("xml"),
    "POINT": ColumnType("point"),
    "GEOMETRY": ColumnType("geometry"),
    "GEOGRAPHY": ColumnType("geography"),
}
# sqlglot reads only the short name; pg_dump prints the long one.
_VARBIT: Final = "varbit"
_BIT_VARYING: Final = re.compile(r"\bbit\s+varying\b", re.IGNORECASE)


def read_postgres_tables(sql: str, default_schema: str) -> tuple[TableSchema, ...]:
    """Returns the tables that Postgres' statements create; other statements are ignored.

    Raises:
        ConfigError: sqlglot is not installed, or the text is not Postgres' SQL.
    """
    try:
        import sqlglot
        from sqlglot.errors import SqlglotError
    except ImportError as exc:
        raise ConfigError(
            "reading Postgres' table definitions needs sqlglot, which is not installed: pip install sqlglot"
        ) from exc
    try:
        found = sqlglot.parse(_BIT_VARYING.sub(_VARBIT, sql), read="postgres")
    except SqlglotError as exc:
        raise ConfigError(f"the table definition is not Postgres' SQL: {str(exc).splitlines()[0]}") from exc
    return tuple(_tables(found, default_schema))


def _tables(statements: list[Any], default_schema: str) -> Iterator[TableSchema]:
    from sqlglot import exp

    for statement in statements:
        if isinstance(statement, exp.Create) and isinstance(statement.this, exp.Schema):
            table = statement.this.this
            columns = _columns(statement.this.expressions)
            yield TableSchema(TableId(table.db or default_schema, table.name), tuple(columns))


def _columns(parts: list[Any]) -> Iterator[Column]:
    from sqlglot import exp

    keys = {
        name.name
        for part in parts
        for key in ([part] if isinstance(part, exp.PrimaryKey) else part.find_all(exp.PrimaryKey))
        for name in key.find_all(exp.Identifier)
    }
    for part in parts:
        if isinstance(part, exp.ColumnDef):
            constraints = {type(one.kind): one.kind for one in part.constraints}
            key = part.name in keys or exp.PrimaryKeyColumnConstraint in constraints
            default = constraints.get(exp.DefaultColumnConstraint)
            text = _literal(default.this) if default is not None else None
            computes = text is None and (_computes(part.kind, constraints) or not _is_null(constraints))
            yield Column(
                part.name,
                _type_of(part.kind),
                nullable=not key and exp.NotNullColumnConstraint not in constraints,
                default=text,
                handle=key,
                primary_key=key,
                origin_default=UNTOLD_DEFAULT if computes and not key else None,
                redefaulted=computes and not key,
            )


def _computes(kind: exp.DataType | None, constraints: Mapping[Any, Any]) -> bool:
    """Returns True if Postgres computes each row's value: serial types, identities, generated columns."""
    from sqlglot import exp

    name = kind.this if kind is not None else ""
    serial = not isinstance(name, str) and name.name.endswith("SERIAL")
    made = (exp.GeneratedAsIdentityColumnConstraint, exp.ComputedColumnConstraint)
    return serial or not constraints.keys().isdisjoint(made)


def _is_null(constraints: Mapping[Any, Any]) -> bool:
    """Returns True if a column has no default, or its default is NULL."""
    from sqlglot import exp

    default = constraints.get(exp.DefaultColumnConstraint)
    return default is None or isinstance(default.this, exp.Null)


def _literal(value: exp.Expression) -> str | None:
    """Returns a default's text, or None if Postgres computes the default."""
    from sqlglot import exp

    inner = value.this if isinstance(value, exp.Cast) else value
    if isinstance(inner, exp.Boolean):
        return "true" if inner.this else "false"
    if isinstance(inner, exp.Neg) and isinstance(inner.this, exp.Literal):
        return f"-{inner.this.this}"
    return str(inner.this) if isinstance(inner, exp.Literal) else None


def _type_of(kind: exp.DataType | None) -> ColumnType:
    if kind is None:
        return ColumnType("text")
    # The name of a user-defined type is a string.
    name = kind.this if isinstance(kind.this, str) else kind.this.name
    numbers = [int(one.name) for one in kind.expressions if one.name.isdigit()]
    if name == "DECIMAL":
        precision, scale = (*numbers, None, None)[:2]
        return ColumnType("decimal", precision=precision, scale=scale or (0 if numbers else None))
    if name == "BIT":
        return ColumnType("bit", length=numbers[0] if numbers else 1)
    if name == "USERDEFINED" and str(kind.args.get("kind")).lower() == _VARBIT:
        return ColumnType("bit", length=numbers[0] if numbers else None)
    found = _TYPES.get(name, ColumnType("text"))
    if found.fsp is not None and numbers and numbers[0] <= _MILLISECONDS:
        return replace(found, fsp=_MILLISECONDS)
    return found
