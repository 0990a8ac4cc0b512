"""Column types from the source database, for columns whose types the topic does not contain.

A type name in a record, such as ``decimal``, lacks the digits of a DECIMAL or the length of a BIT. If no DDL
defines such a column, the database is queried once: before the table's first batch, or when rows first have
the column. The answer is stored in the state store, so that a restarted worker builds the same decode plan.
If a table already has batches but no stored answer, its columns keep the types that follow from the names
alone, because the target has these types already.

The database reports the current types, but a record may be older or newer. So the database's type is only
used if it agrees with the type name in the records, and it never supplies the members of an ENUM or SET.
If a value does not fit its column, the database is queried again, and the column gets a type that holds the
values of the earlier and the current type.

Records without schemas (debezium-json) do not even have type names. Their columns are the table's columns in
the database, as if they were in a definition (``DatabaseColumns``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidesink.codecs.canal_json.schema import agrees
from tidesink.codecs.debezium.envelope import POSTGRES
from tidesink.ddl.catalog import TableDefinitions, read_postgres_tables
from tidesink.ddl.topic_statements import DdlStatement
from tidesink.errors import ConfigError, SourceError
from tidesink.events import Column, ColumnType, TableId, TableSchema, fold_name
from tidesink.sinks.state.documents import DocumentKind, list_key
from tidesink.sinks.state.progress import StatusStore
from tidesink.source_database import mysql, postgres
from tidesink.source_database.database import OPTION, connected, stored_table, translated
from tidesink.typemap.mysql_types import parse_sql_type
from tidesink.typemap.table import row_of

if TYPE_CHECKING:
    from tidesink.config.source import DatabaseSettings
    from tidesink.source_database.base import ReplicaIdentity

# Returns the current types of a table's columns, by lower-case name. Empty if there is no such table.
Look = Callable[[TableId], Mapping[str, ColumnType]]
# Returns the current definition of a table in the database, or None if there is no such table.
LookUpTable = Callable[[TableId], TableSchema | None]
# SQL types by lower-case column name. A column with None keeps the type of its name.
_SqlTypes = dict[str, str | None]
# Columns by name. None: the table does not have the column.
_Columns = dict[str, Column | None]
_TYPES: Final = DocumentKind("looked-up-types", _SqlTypes, list_key)
_COLUMNS: Final = DocumentKind("looked-up-columns", _Columns, list_key)
_MISFIT: Final = (
    "A record has a value that does not fit its column. The types of {columns} are the current types in "
    "the source database. They differ from the record's if the table was altered after the record was "
    "written. Add a definition of the table under tables, with types that hold the old and the new values."
)


class DatabaseTypes:
    """Types from the source database for columns of one table whose records have only type names.

    Used by one thread at a time. ``look``: queries the database; None if no database is configured.
    ``store``: stores the database's answers; None to store nothing.
    """

    def __init__(self, pipeline: str, table: TableId, store: StatusStore | None, look: Look | None) -> None:
        self._pipeline = pipeline
        self._table = table
        self._store = store
        self._look = look
        self._document = _TYPES.of(store, pipeline, *table) if store is not None else None
        # None: nothing was decided yet.
        self._known: _SqlTypes | None = None
        self._read = False
        self._misfit = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """A warning if a record's value did not fit its column, with the remedy; otherwise empty."""
        columns = [f"{name} ({sql})" for name, sql in (self._known or {}).items() if sql is not None]
        return (_MISFIT.format(columns=", ".join(columns)),) if self._misfit else ()

    def decide(self, columns: Iterable[Column]) -> None:
        """Decide the types of columns for which rows have only type names.

        Queries the database if one of the columns is new.

        Raises:
            ConfigError: The database refuses the user.
            SourceUnavailableError: The database does not answer.
            StateStoreError: The state store does not answer.
        """
        recalled = self._recalled()
        sql_types = recalled or {}
        new = [
            column
            for column in columns
            if lacks_digits(column.type) and fold_name(column.name) not in sql_types
        ]
        if self._look is None or (recalled is not None and not new):
            return
        looks = bool(new) and not (
            recalled is None and _has_batches(self._store, self._pipeline, self._table)
        )
        database_types = self._look(self._table) if looks else {}
        self._keep(
            {**sql_types, **{fold_name(column.name): _sql_of(column, database_types) for column in new}}
        )

    def refined(self, column: Column) -> Column:
        """Returns the column with its type from the database, or unchanged.

        The database's type is used if it is known and agrees with the type name in the rows.
        """
        sql = (self._recalled() or {}).get(fold_name(column.name))
        if sql is None or not lacks_digits(column.type):
            return column
        column_type = parse_sql_type(sql)
        return replace(column, type=column_type) if _agrees(column_type, column.type) else column

    def look_again(self, columns: Iterable[Column], *, misfit: bool) -> bool:
        """Query the database again after a bad record. Returns True if a column's type is wider now.

        ``columns``: the columns with their types in the rows, which have only type names. ``misfit``: True if
        a value of the record did not fit its column.

        Raises:
            ConfigError: The database refuses the user.
            SourceUnavailableError: The database does not answer.
            StateStoreError: The state store does not answer.
        """
        sql_types = self._recalled() or {}
        looked_up = [column for column in columns if sql_types.get(fold_name(column.name)) is not None]
        if self._look is None or not looked_up:
            return False
        database_types, wider = self._look(self._table), dict(sql_types)
        for column in looked_up:
            name = fold_name(column.name)
            before, now = sql_types[name], _sql_of(column, database_types)
            if before is not None and now is not None:
                wider[name] = _holding_both(before, now)
        self._misfit = misfit and wider == sql_types
        if wider == sql_types:
            return False
        self._keep(wider)
        return True

    def _recalled(self) -> _SqlTypes | None:
        if not self._read and self._document is not None:
            self._known = self._document.load()
        self._read = True
        return self._known

    def _keep(self, sql_types: _SqlTypes) -> None:
        if self._document is not None:
            self._document.save(sql_types)
        self._known = sql_types


def _has_batches(store: StatusStore | None, pipeline: str, table: TableId) -> bool:
    status = store.status_of(pipeline, table) if store else None
    return status is not None and status.batch > 0


class DatabaseColumns:
    """The columns of one table as the source database defines them. Used by one thread at a time.

    The database is queried when rows have a column whose type has no other source. The answer is used for all
    later plans.

    Args:
        pipeline: Name of the pipeline.
        table: The table.
        store: Stores the database's answers; None to store nothing.
        look: Queries the database; None if no database is configured.
        keeps: True to store new answers. If False, stored answers are used, but new ones are not stored.
        was_text: True if columns without a type were stored as text before a database was configured. If the
            table has batches from that time, such columns stay text.
    """

    def __init__(
        self,
        pipeline: str,
        table: TableId,
        store: StatusStore | None,
        look: LookUpTable | None,
        *,
        keeps: bool = True,
        was_text: bool = False,
    ) -> None:
        self._pipeline = pipeline
        self._table = table
        self._store = store
        self._look = look
        self._keeps = keeps
        self._was_text = was_text
        self._document = _COLUMNS.of(store, pipeline, *table) if store is not None else None
        # None: nothing is known yet.
        self._known: _Columns | None = None
        self._read = False

    @property
    def can_ask(self) -> bool:
        """True if a source database is configured."""
        return self._look is not None

    @property
    def schema(self) -> TableSchema | None:
        """The columns that were found in the source database, or None."""
        columns = tuple(column for column in (self._recalled() or {}).values() if column is not None)
        return TableSchema(self._table, columns) if columns else None

    def covers(self, name: str) -> bool:
        """Returns True if the type of the column ``name`` was decided, by the database or as text."""
        return name in (self._recalled() or {})

    def decide(self, names: Iterable[str], typed: Collection[str] = ()) -> None:
        """Decide the types of the columns ``names``. Queries the database if one of them is new.

        ``typed``: names of columns whose types are known from records with a schema. The database's types are
        not used for them.

        Raises:
            ConfigError: The database refuses the user.
            SourceUnavailableError: The database does not answer.
            StateStoreError: The state store does not answer.
        """
        recalled = self._recalled()
        stored_columns = recalled or {}
        new = [name for name in names if name not in stored_columns]
        if self._look is None or not new:
            return
        if recalled is None and self._was_text and _has_batches(self._store, self._pipeline, self._table):
            self._keep(dict.fromkeys(new))
            return
        schema = self._look(self._table)
        if schema is not None:
            columns = {column.name: column for column in schema.columns if column.name not in typed}
            self._keep({**dict.fromkeys(new), **columns, **stored_columns})

    def _recalled(self) -> _Columns | None:
        if not self._read and self._document is not None:
            self._known = self._document.load()
        self._read = True
        return self._known

    def _keep(self, columns: _Columns) -> None:
        if self._document is not None and self._keeps:
            self._document.save(
                {name: column and replace(column, earlier=()) for name, column in columns.items()}
            )
        self._known = columns


def look_up_in(settings: DatabaseSettings | None) -> LookUpTable | None:
    """Returns a function that reads a table's definition from the config's source database.

    Returns None if no database is configured. The function raises ConfigError if the database refuses the
    user, and SourceUnavailableError if it does not answer.
    """
    return None if settings is None else partial(_defined_table, settings)


def _defined_table(settings: DatabaseSettings, table: TableId) -> TableSchema | None:
    if not table.schema:
        return None  # a flattened row does not name its database, so the table cannot be found
    # A replica is allowed, because only definitions are read.
    url = settings.url.get_secret_value()
    with connected(url, replica=True) as connection, translated(OPTION):
        if connection.dialect.name == "postgresql":
            text = postgres.create_statement(connection, table)
            return None if text is None else read_postgres_tables(text, table.schema)[0]
        created = mysql.create_statement(connection, table)
    if created is None:
        return None
    definitions = TableDefinitions()
    definitions.apply(created[0], table.schema)
    return definitions.get(table)


def look_into(settings: DatabaseSettings | None) -> Look | None:
    """Returns a function that reads a table's column types from the config's source database.

    Returns None if no database is configured. The function raises ConfigError if the database refuses the
    user, and SourceUnavailableError if it does not answer.
    """
    return None if settings is None else partial(_stored_types, settings)


def _stored_types(settings: DatabaseSettings, table: TableId) -> Mapping[str, ColumnType]:
    # A replica is allowed, because only definitions are read.
    url = settings.url.get_secret_value()
    with connected(url, replica=True) as connection, translated(OPTION):
        stored = stored_table(connection, table)
    return {fold_name(name): kind for name, kind in stored.types.items()} if stored else {}


def database_connector(settings: DatabaseSettings | None) -> str:
    """Returns the name of the Debezium connector that fits the source database.

    Empty if several connectors fit, or if no database is configured.
    """
    return POSTGRES if settings is not None and _is_postgres(settings) else ""


def _is_postgres(settings: DatabaseSettings) -> bool:
    return settings.url.get_secret_value().startswith("postgres")


def replica_identity(settings: DatabaseSettings | None, table: TableId) -> ReplicaIdentity | None:
    """Returns a table's replica identity: the columns that Postgres sends for deleted rows.

    Returns None if it is not known: for other databases, for a missing table, and for a partitioned table,
    whose partitions have their own replica identities.

    Raises:
        ConfigError: The database refuses the user.
        SourceUnavailableError: The database does not answer.
    """
    if settings is None or not _is_postgres(settings):
        return None
    url, replica = settings.url.get_secret_value(), settings.replica
    with connected(url, replica=replica) as connection, translated(OPTION):
        stored = stored_table(connection, table)
    return None if stored is None else stored.replica_identity


class AskedIdentity:
    """A table's replica identity. The source database is queried for it until it answers once.

    ``ask``: calls ``replica_identity`` for the table. Its result None is an answer too. If the database
    refuses the user, this also counts as an answer, because only another config or other privileges would
    change it. If the replica identity is not known, only the records show which columns Postgres sent.
    """

    def __init__(self, ask: Callable[[], ReplicaIdentity | None]) -> None:
        self._ask = ask
        self._answer: ReplicaIdentity | None = None
        self._is_answered = False

    def get(self) -> ReplicaIdentity | None:
        """Returns the replica identity, or None if it is not known or the database does not answer now."""
        if not self._is_answered:
            try:
                self._answer = self._ask()
            except SourceError:
                return None
            except ConfigError:
                pass
            self._is_answered = True
        return self._answer


def created_by(settings: DatabaseSettings, table: TableId) -> DdlStatement | None:
    """Returns a table's current CREATE TABLE in TiDB, MySQL or MariaDB, or None if there is no such table.

    Raises:
        ConfigError: The database refuses the user.
        SourceUnavailableError: The database does not answer.
    """
    # A replica is allowed, because only definitions are read.
    url = settings.url.get_secret_value()
    with connected(url, replica=True) as connection, translated(OPTION):
        statement = mysql.create_statement(connection, table)
    return (
        None
        if statement is None
        else DdlStatement(table.schema, statement[0], statement[1], table=table.name)
    )


def lacks_digits(column_type: ColumnType) -> bool:
    """Returns True if a type is only a name, without the digits of a DECIMAL or the length of a BIT."""
    return (row_of(column_type).reader == "decimal" and column_type.precision is None) or (
        row_of(column_type).reader == "bit" and column_type.length is None
    )


def _sql_of(column: Column, database_types: Mapping[str, ColumnType]) -> str | None:
    """Returns a column's SQL type in the database.

    Returns None if the database does not have the column, or if its type does not agree with the type name in
    the rows.
    """
    kind = database_types.get(fold_name(column.name))
    return kind.sql if kind is not None and _agrees(kind, column.type) else None


def _agrees(database_type: ColumnType, word: ColumnType) -> bool:
    return (
        agrees(database_type, word)
        and not lacks_digits(database_type)
        and _is_unsigned(database_type) == _is_unsigned(word)
    )


def _is_unsigned(column_type: ColumnType) -> bool:
    return not {"unsigned", "zerofill"}.isdisjoint((column_type.sql or "").lower().split())


def _holding_both(before: str, now: str) -> str:
    """Returns a SQL type that holds the values of two types with the same name, such as two DECIMALs.

    Returns ``before`` if it holds the values of both types.
    """
    old, new = parse_sql_type(before), parse_sql_type(now)
    rest = " unsigned" if _is_unsigned(new) else ""
    if old.precision is not None and new.precision is not None:
        scale = max(old.scale or 0, new.scale or 0)
        whole = max(old.precision - (old.scale or 0), new.precision - (new.scale or 0))
        sizes: Any = (whole + scale, scale)
        held = sizes == (old.precision, old.scale)
        return before if held else f"decimal({whole + scale},{scale}){rest}"
    return now if (new.length or 0) > (old.length or 0) else before
