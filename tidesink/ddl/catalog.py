"""Keeps table definitions current by applying SQL statements one after the other.

The statements come from the user's configuration (CREATE TABLE) and from the DDL events of a topic.

Definitions in Postgres' SQL are for topics whose messages have no types (JSON without schemas). A column's
type is the type in which Debezium's PostgreSQL connector (3.5) writes its values. A type that is not built
into Postgres (an enum, a domain, a composite) is read as text. If the base type of a domain is not text,
declare the column with the base type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tidesink.ddl.history import Key, StoredHistory, TypeHistory, table_key
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
    UNKNOWN_DEFAULT,
    Column,
    ColumnType,
    TableId,
    TableSchema,
    fold_name,
)
from tidesink.typemap.mysql_types import SqlReader, each_token, tokens

if TYPE_CHECKING:
    from sqlglot import exp


_VERSION = 1


class TableDefinitions:
    """Holds the definitions of tables by table name. Case is ignored, as in TiDB.

    ``declare`` runs the user's statements, and ``apply`` runs the DDL of a topic. CREATE TABLE in the topic
    does not redefine a table that the user declared, but ALTER TABLE in the topic changes it. A table that is
    declared without a schema matches the tables of that name in all schemas.

    ``to_json`` and ``from_json`` save and restore the definitions. ``version``: number that grows with every
    change, so that a caller can check if data that it derived from the definitions is still current.
    ``timed``: True if some column had another type earlier.

    If ``apply`` is called with the commit time of each statement, it also records the ``earlier`` types of
    the columns. It then ignores a statement that the producer sends again after newer statements on the same
    table.
    """

    def __init__(self, schemas: Iterable[TableSchema] = ()) -> None:
        self._tables: dict[Key, TableDefinition] = {}
        self._schemas: dict[Key, TableSchema] = {}
        self._history = TypeHistory()
        self._since: int | None = None
        # Table named by the DDL event whose statement is being applied.
        self._about: TableId | None = None
        # True while a user's statements run: their unqualified names belong to the default schema.
        self._stated = False
        self.timed = False
        self.version = 0
        for schema in schemas:
            self.put(schema)

    def get(self, table: TableId) -> TableSchema | None:
        """Returns the columns and keys of a table, or None if no statement defined the table."""
        key = table_key(table)
        schema = self._schemas.get(key)
        if schema is None:
            definition = self._find(table)
            schema = None if definition is None else definition.schema()
            if schema is not None:
                self._schemas[key] = schema
        return schema

    def _find(self, table: TableId) -> TableDefinition | None:
        definition = self._tables.get(table_key(table))
        if definition is None and table.schema:
            bare = self._tables.get(table_key(TableId("", table.name)))
            return None if bare is None else replace(bare, table=table)
        return definition

    def unique_index(self, table: TableId, name: str) -> tuple[str, ...]:
        """Returns the column names of a table's unique index, or an empty tuple if it has no such index.

        ``name``: name of the index; ``PRIMARY`` is the primary key.
        """
        definition = self._find(table)
        if definition is None:
            return ()
        if name.upper() == "PRIMARY":
            return definition.primary_key
        return next((index.columns for index in definition.uniques if index.name == name), ())

    def put(self, schema: TableSchema) -> None:
        """Declares a table with this schema. Its earlier definition and history are removed."""
        self._history.forget(schema.table)
        self._keep(replace(_definition_of(schema), declared=True))

    def declare(self, sql: str, default_schema: str = "") -> tuple[TableId, ...]:
        """Declares the tables that the user's CREATE TABLE statements create, and returns them.

        In string literals of the SQL, a backslash is an escape character.

        Raises:
            ConfigError: A statement cannot be parsed. That statement changes no table.
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

    def dropped_columns(self, table: TableId) -> tuple[Column, ...]:
        """Returns the former columns of a table, which were dropped or renamed, with their last types."""
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
        """Applies the SQL text of a DDL event and returns the changed tables, under their new names.

        ``default_schema``: database of unqualified names in the text. ``since``: TSO at which the DDL was
        committed; None means that it applies to rows of any time. ``about``: table named by the event. For a
        rename this is the table's new name, and its database is used for an unqualified new name in the text.

        The text may contain several statements. A statement that concerns neither columns nor keys (such as
        views or table options) changes nothing, and neither does an ALTER TABLE of an unknown table. If the
        same text was already applied with the same ``since``, it changes nothing, and the result is empty.

        Raises:
            ConfigError: A statement about a table cannot be parsed. That statement changes no table.
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
        """Returns all columns, of any table, that were dropped and later added again under the same name.

        Each element is a pair of the table and the column name.
        """
        return frozenset((d.table, name) for d in self._tables.values() for name in d.readded)

    def renamed(self, table: TableId) -> dict[str, str]:
        """Returns the current names of a table's renamed columns, by their former names, newest rename first.

        If several columns had the same former name one after the other, the result has only the column that
        was renamed last. ``reused`` returns such former names.
        """
        definition = self._find(table)
        pairs: dict[str, tuple[str, str]] = {}
        for old, new in definition.renamed if definition else ():
            pairs.setdefault(fold_name(old), (old, new))
        now = {fold_name(column.name) for column in definition.columns} if definition else set()
        return {old: new for old, new in pairs.values() if fold_name(new) in now}

    def removals(self, table: TableId) -> dict[str, str]:
        """Returns, by folded column name, an identifier of the last drop or rename of the column.

        The identifier is the commit TSO of the drop or rename as text. If the TSO is unknown, it is ``#``
        followed by the number of drops and renames of this name.
        """
        return {name: parting.moment for name, parting in self._history.removals(table).items()}

    def reused(self, table: TableId) -> frozenset[str]:
        """Returns the folded names that more than one column of a table has had, one after the other."""
        definition = self._find(table)
        return definition.reused if definition else frozenset()

    def renames(self, table: TableId) -> tuple[tuple[str, str], ...]:
        """Returns the column renames of a table as pairs of the old and the new name.

        Renames are included even if the column or the table was dropped later.
        """
        definition = self._find(table)
        return tuple(
            dict.fromkeys((*self._history.renames(table), *(definition.renamed if definition else ())))
        )

    def to_json(self) -> str:
        """Returns all table definitions and their history as JSON text, which ``from_json`` reads."""
        stored = _StoredDefinitions(_VERSION, list(self._tables.values()), self._history.stored)
        return json.dumps(msgspec.to_builtins(stored))

    @classmethod
    def from_json(cls, text: str) -> TableDefinitions:
        """Returns the table definitions in a JSON text that ``to_json`` returned.

        Raises:
            ConfigError: The JSON text is damaged, or has a version that this version of tidesink cannot read.
        """
        document = json.loads(text)
        version = document.get("version")
        if version != _VERSION:
            raise ConfigError(
                f"The stored table definitions have the version {version!r}, but this tidesink "
                f"reads version {_VERSION}. Use the version of tidesink that stored them, or a later one."
            )
        try:
            stored = msgspec.convert(document, _StoredDefinitions)
        except msgspec.ValidationError as exc:
            raise ConfigError(
                f"The stored table definitions are damaged ({exc}). Restore the state store from a backup."
            ) from exc
        definitions = cls()
        for definition in stored.tables:
            definitions._keep(definition)
        definitions._history.restore(stored.history)
        definitions.timed = definitions._history.has_changes
        return definitions

    def _set(self, definition: TableDefinition, parted: Iterable[str] = ()) -> None:
        """Stores a table's new definition, unless a newer statement on the table was already applied.

        ``parted``: folded old names of the columns that the statement dropped or renamed.
        """
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
                # The columns of the new table are unknown, so an earlier definition of it is removed.
                return self._forgotten(new)
            created = replace(like, table=new, declared=False, dropped=(), renamed=())
        previous = self._find(created.table)
        if previous is not None and (previous.declared or (creation.if_absent and self._since is None)):
            # TiCDC sends a statement with its commit time, and only if it had an effect. MySQL's binary log
            # also has a CREATE TABLE IF NOT EXISTS that did nothing.
            return []
        self._set(created)
        return [created.table]

    def _in_session(self, table: TableId, default_schema: str) -> TableId:
        """Adds the default schema to an unqualified table name in a user's statement.

        An unqualified name in the statement of a DDL event is returned unchanged, because the event does not
        report the session's database.
        """
        return TableId(default_schema, table.name) if self._stated and not table.schema else table

    def _forgotten(self, table: TableId) -> list[TableId]:
        definition = self._tables.get(table_key(table))
        return [] if definition is None or definition.declared else self._removed([table])

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
            # The table's new name is in the session's database, which is unknown.
            return [before.table]
        self._set(definition, altered.parted)
        return [definition.table]

    def _convert(self, table: TableDefinition, statement: AlterTable) -> None:
        """Applies MariaDB's CONVERT parts of an ALTER TABLE.

        CONVERT PARTITION turns a partition into a new table, which is added to the definitions. CONVERT TABLE
        turns another table into a partition, so that table is removed.
        """
        for part in (reader.copy() for reader in statement.parts):
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
    column_ids = [column.column_id or 0 for column in schema.columns]
    return TableDefinition(
        schema.table,
        schema.columns,
        primary,
        uniques,
        next_column_id=max([*column_ids, len(column_ids)], default=0) + 1,
    )


class _StoredDefinitions(msgspec.Struct):
    """The table definitions as they are stored."""

    version: int
    tables: list[TableDefinition]
    history: StoredHistory


_STATEMENTS: dict[str, Callable[[TableDefinitions, SqlReader, str], list[TableId]]] = {
    "CREATE": TableDefinitions._create,
    "ALTER": TableDefinitions._alter,
    "DROP": TableDefinitions._drop,
    "RENAME": TableDefinitions._rename,
}


def parse_create_table(sql: str, *, default_schema: str = "") -> TableSchema:
    """Returns the schema of the table that a CREATE TABLE statement in MySQL's or TiDB's SQL creates.

    ``default_schema``: schema of the table if its name is unqualified.

    Raises:
        ConfigError: The text is not a CREATE TABLE statement, or it cannot be parsed.
    """
    reader = SqlReader(tokens(sql))
    if read_creation(reader) is None:
        raise ConfigError(f"expected a CREATE TABLE statement, but the text begins with {sql[:40]!r}")
    return read_create_table(reader, default_schema).schema()


# Postgres' CREATE TABLE

# Fraction digits for milliseconds and microseconds. Debezium's connector (3.5) writes a time in one of these
# two units, depending on the fraction digits of its column (time.precision.mode adaptive).
_MILLISECONDS: Final = 3
_MOST_DIGITS: Final = 6
# Column types by sqlglot's name of the Postgres type.
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
# sqlglot parses only the short name "varbit". pg_dump prints the long name "bit varying".
_VARBIT: Final = "varbit"
_BIT_VARYING: Final = re.compile(r"\bbit\s+varying\b", re.IGNORECASE)


def read_postgres_tables(sql: str, default_schema: str) -> tuple[TableSchema, ...]:
    """Returns the schemas of the tables that CREATE TABLE statements in Postgres' SQL create.

    Other statements in the text are ignored. ``default_schema``: schema of tables with an unqualified name.

    Raises:
        ConfigError: sqlglot is not installed, or the text is not Postgres' SQL.
    """
    try:
        import sqlglot
        from sqlglot.errors import SqlglotError
    except ImportError as exc:
        raise ConfigError(
            "table definitions in Postgres' SQL need the package sqlglot, which is not installed: run pip "
            "install sqlglot"
        ) from exc
    try:
        parsed = sqlglot.parse(_BIT_VARYING.sub(_VARBIT, sql), read="postgres")
    except SqlglotError as exc:
        raise ConfigError(f"the table definition is not Postgres' SQL: {str(exc).splitlines()[0]}") from exc
    return tuple(_tables(parsed, default_schema))


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
            constraints = {type(constraint.kind): constraint.kind for constraint in part.constraints}
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
                origin_default=UNKNOWN_DEFAULT if computes and not key else None,
                redefaulted=computes and not key,
            )


def _computes(kind: exp.DataType | None, constraints: Mapping[Any, Any]) -> bool:
    """Returns True if Postgres computes a column's value for each row.

    Such columns are those of serial types, identity columns and generated columns.
    """
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
    """Returns the text of a constant default in Postgres' SQL, or None if the default is not a constant."""
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
    # sqlglot represents the name of a user-defined type as a string, not as an enum member.
    name = kind.this if isinstance(kind.this, str) else kind.this.name
    numbers = [int(parameter.name) for parameter in kind.expressions if parameter.name.isdigit()]
    if name == "DECIMAL":
        precision, scale = (*numbers, None, None)[:2]
        return ColumnType("decimal", precision=precision, scale=scale or (0 if numbers else None))
    if name == "BIT":
        return ColumnType("bit", length=numbers[0] if numbers else 1)
    if name == "USERDEFINED" and str(kind.args.get("kind")).lower() == _VARBIT:
        return ColumnType("bit", length=numbers[0] if numbers else None)
    column_type = _TYPES.get(name, ColumnType("text"))
    if column_type.fsp is not None and numbers and numbers[0] <= _MILLISECONDS:
        return replace(column_type, fsp=_MILLISECONDS)
    return column_type
