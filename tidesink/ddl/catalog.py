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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tidesink.ddl.history import StoredHistory
from tidesink.ddl.known_tables import KnownTables
from tidesink.ddl.statement_run import StatementRun
from tidesink.ddl.statements import (
    DdlText,
    Index,
    TableDefinition,
    read_create_table,
    read_creation,
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

    ``to_json`` and ``from_json`` save and restore the definitions.

    If ``apply`` is called with the commit time of each statement, it also records the ``earlier`` types of
    the columns. It then ignores a statement that the producer sends again after newer statements on the same
    table.
    """

    def __init__(self, schemas: Iterable[TableSchema] = ()) -> None:
        self._known = KnownTables()
        for schema in schemas:
            self.put(schema)

    def get(self, table: TableId) -> TableSchema | None:
        """Returns the columns and keys of a table, or None if no statement defined the table."""
        return self._known.schema(table)

    @property
    def version(self) -> int:
        """Number that grows with every change.

        With it, a caller can check if data that it derived from the definitions is still current.
        """
        return self._known.version

    @property
    def timed(self) -> bool:
        """True if some column had another type earlier."""
        return self._known.timed

    def unique_index(self, table: TableId, name: str) -> tuple[str, ...]:
        """Returns the column names of a table's unique index, or an empty tuple if it has no such index.

        ``name``: name of the index; ``PRIMARY`` is the primary key.
        """
        definition = self._known.find(table)
        if definition is None:
            return ()
        if name.upper() == "PRIMARY":
            return definition.primary_key
        return next((index.columns for index in definition.uniques if index.name == name), ())

    def put(self, schema: TableSchema) -> None:
        """Declares a table with this schema. Its earlier definition and history are removed."""
        self._known.history.forget(schema.table)
        self._known.keep(replace(_definition_of(schema), declared=True))

    def declare(self, sql: str, default_schema: str = "") -> tuple[TableId, ...]:
        """Declares the tables that the user's CREATE TABLE statements create, and returns them.

        In string literals of the SQL, a backslash is an escape character.

        Raises:
            ConfigError: A statement cannot be parsed. That statement changes no table.
        """
        run = StatementRun(self._known, default_schema, stated=True)
        tables = run.apply(statements(each_token(sql)))
        for table in tables:
            declared = self._known.named(table)
            if declared is not None:
                self._known.keep(replace(declared, declared=True))
        return tables

    def __iter__(self) -> Iterator[TableId]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, table: object) -> bool:
        return isinstance(table, TableId) and self._known.find(table) is not None

    def dropped_columns(self, table: TableId) -> tuple[Column, ...]:
        """Returns the former columns of a table, which were dropped or renamed, with their last types."""
        definition = self._known.find(table)
        now = {fold_name(column.name) for column in definition.columns} if definition else set()
        return tuple(c for c in self._known.history.columns(table) if fold_name(c.name) not in now)

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
        return self.apply_text(DdlText(query, default_schema, about=about), since=since)

    def apply_text(self, text: DdlText, *, since: int | None = None) -> tuple[TableId, ...]:
        """Applies the text of a DDL event as ``apply`` does, without splitting it into statements again.

        Raises:
            ConfigError: A statement about a table cannot be parsed. That statement changes no table.
        """
        history = self._known.history
        if history.has_heard(since, text.default_schema, text.query):
            return ()
        run = StatementRun(self._known, text.default_schema, since=since, about=text.about)
        changed = run.apply(text.statements())
        history.hear(since, text.default_schema, text.query)
        return changed

    def readded(self) -> frozenset[tuple[TableId, str]]:
        """Returns all columns, of any table, that were dropped and later added again under the same name.

        Each element is a pair of the table and the column name.
        """
        return frozenset((d.table, name) for d in self._known.definitions for name in d.readded)

    def renamed(self, table: TableId) -> dict[str, str]:
        """Returns the current names of a table's renamed columns, by their former names, newest rename first.

        If several columns had the same former name one after the other, the result has only the column that
        was renamed last. ``reused`` returns such former names.
        """
        definition = self._known.find(table)
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
        return {name: parting.moment for name, parting in self._known.history.removals(table).items()}

    def reused(self, table: TableId) -> frozenset[str]:
        """Returns the folded names that more than one column of a table has had, one after the other."""
        definition = self._known.find(table)
        return definition.reused if definition else frozenset()

    def renames(self, table: TableId) -> tuple[tuple[str, str], ...]:
        """Returns the column renames of a table as pairs of the old and the new name.

        Renames are included even if the column or the table was dropped later.
        """
        definition = self._known.find(table)
        return tuple(
            dict.fromkeys((*self._known.history.renames(table), *(definition.renamed if definition else ())))
        )

    def to_json(self) -> str:
        """Returns all table definitions and their history as JSON text, which ``from_json`` reads."""
        stored = _StoredDefinitions(_VERSION, self._known.definitions, self._known.history.stored)
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
        definitions._known.restore(stored.tables, stored.history)
        return definitions


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
