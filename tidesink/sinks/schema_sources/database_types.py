"""Types of columns as the source's database has them, for columns whose type nothing in the topic gives.

A word such as ``decimal`` leaves out what decides how values are kept: a DECIMAL's digits, a BIT's length. Of
a column that no DDL names the database is asked once, before the table's first batch, or when rows have the
column first. What it said is kept in the state store, so that a restart plans the same. A table that has
batches and for which nothing is kept has the types of its words: its target has them by now.

The database shows the present, and a record may be older or newer. So it only adds to a word that it agrees
with, never gives the members of an ENUM or SET, and is asked again when a record does not fit: the type then
becomes one that holds the values of both.

Records without schemas (debezium-json) have not even words. Their columns are those that the table has in the
database, as a definition would give them (``DatabaseColumns``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidesink.codecs.canal_json.schema import agrees
from tidesink.codecs.debezium.envelope import POSTGRES
from tidesink.ddl.catalog import TableDefinitions, read_postgres_tables
from tidesink.errors import ConfigError, SourceError
from tidesink.events import Column, ColumnType, TableId, TableSchema, fold_name
from tidesink.sinks.state.progress import StateStore
from tidesink.typemap.mysql_types import parse_sql_type
from tidesink.typemap.table import row_of

if TYPE_CHECKING:
    from tidesink.config.source import DatabaseSettings
    from tidesink.sinks.batch.topic_ddl import DdlStatement
    from tidesink.source_database.base import ReplicaIdentity

# The types of a table's columns now, by name, folded; empty where there is no such table.
Look = Callable[[TableId], Mapping[str, ColumnType]]
# A table as the database defines it now; None if it has no such table.
LookUpTable = Callable[[TableId], TableSchema | None]
_KIND: Final = "looked-up-types"
_COLUMNS: Final = "looked-up-columns"
_MISFIT: Final = (
    "a record does not fit its column. The types of {columns} are those that the database has now, and were "
    "others if the table was altered after the record was written: give a definition under tables that holds "
    "both"
)


class DatabaseTypes:
    """What the database said of one table's columns. Used by one thread at a time.

    ``look`` asks it; None: there is none to ask. ``store`` keeps what was found; None: nothing was kept, and
    nothing is.
    """

    def __init__(self, pipeline: str, table: TableId, store: StateStore | None, look: Look | None) -> None:
        self._pipeline = pipeline
        self._table = table
        self._store = store
        self._look = look
        self._name = json.dumps([pipeline, *table], ensure_ascii=False)
        # By name, folded, the SQL type; None: the word stays. None as a whole: nothing was decided yet.
        self._known: dict[str, str | None] | None = None
        self._read = False
        self._misfit = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to do about a record that does not fit."""
        found = [f"{name} ({sql})" for name, sql in (self._known or {}).items() if sql is not None]
        return (_MISFIT.format(columns=", ".join(found)),) if self._misfit else ()

    def decide(self, columns: Iterable[Column]) -> None:
        """Know the types of columns by their words in rows; asks the database for those that are new.

        Raises:
            ConfigError: the database refuses the user.
            SourceUnavailableError: it does not answer.
            StateStoreError: the store does not answer.
        """
        kept = self._recalled()
        known = kept or {}
        new = [one for one in columns if lacks_digits(one.type) and fold_name(one.name) not in known]
        if self._look is None or (kept is not None and not new):
            return
        looks = bool(new) and not (kept is None and _has_batches(self._store, self._pipeline, self._table))
        found = self._look(self._table) if looks else {}
        self._keep({**known, **{fold_name(one.name): _sql_of(one, found) for one in new}})

    def refined(self, column: Column) -> Column:
        """A column of rows, by its word, with the type that is known of it."""
        sql = (self._recalled() or {}).get(fold_name(column.name))
        if sql is None or not lacks_digits(column.type):
            return column
        found = parse_sql_type(sql)
        return replace(column, type=found) if _agrees(found, column.type) else column

    def look_again(self, columns: Iterable[Column], *, misfit: bool) -> bool:
        """Ask once more, since a record is bad; whether a type is wider now.

        ``columns``: as rows have them. ``misfit``: the record has a value that does not fit its column.

        Raises: as ``decide``.
        """
        known = self._recalled() or {}
        looked_up = [one for one in columns if known.get(fold_name(one.name)) is not None]
        if self._look is None or not looked_up:
            return False
        found, wider = self._look(self._table), dict(known)
        for one in looked_up:
            name = fold_name(one.name)
            before, now = known[name], _sql_of(one, found)
            if before is not None and now is not None:
                wider[name] = _holding_both(before, now)
        self._misfit = misfit and wider == known
        if wider == known:
            return False
        self._keep(wider)
        return True

    def _recalled(self) -> Mapping[str, str | None] | None:
        if not self._read and self._store is not None:
            self._known = self._store.load_document(_KIND, self._name)
        self._read = True
        return self._known

    def _keep(self, known: dict[str, str | None]) -> None:
        if self._store is not None:
            self._store.save_document(_KIND, self._name, known)
        self._known = known


def _has_batches(store: StateStore | None, pipeline: str, table: TableId) -> bool:
    status = store.status_of(pipeline, table) if store else None
    return status is not None and status.batch > 0


class DatabaseColumns:
    """The columns of one table as the source's database defines them. Used by one thread at a time.

    It is asked when rows have a column of which nothing else gives the type. What it said is kept for all
    later plans. ``look`` asks it; None: there is none to ask. ``store`` keeps what was found; None: nothing
    was kept, and nothing is. ``keeps``: False to read the store only. ``was_text``: the table's columns
    without a type were text before there was a database to ask, if it has batches: they stay text.
    """

    def __init__(
        self,
        pipeline: str,
        table: TableId,
        store: StateStore | None,
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
        self._name = json.dumps([pipeline, *table], ensure_ascii=False)
        # By name; None: rows have it, and the table did not. None as a whole: nothing was found yet.
        self._known: dict[str, Column | None] | None = None
        self._read = False

    @property
    def can_ask(self) -> bool:
        """Whether there is a database to ask."""
        return self._look is not None

    @property
    def schema(self) -> TableSchema | None:
        """The columns that were found; None if none was."""
        found = tuple(column for column in (self._recalled() or {}).values() if column is not None)
        return TableSchema(self._table, found) if found else None

    def covers(self, name: str) -> bool:
        """Whether the database was asked for a column and had the table, with the column or without it."""
        return name in (self._recalled() or {})

    def decide(self, names: Iterable[str], typed: Collection[str] = ()) -> None:
        """Know the columns of these names; asks the database for those that it was not asked for.

        ``typed``: columns that records with a schema type, which the database does not type.

        Raises:
            ConfigError: the database refuses the user.
            SourceUnavailableError: it does not answer.
            StateStoreError: the store does not answer.
        """
        kept = self._recalled()
        known = kept or {}
        new = [name for name in names if name not in known]
        if self._look is None or not new:
            return
        if kept is None and self._was_text and _has_batches(self._store, self._pipeline, self._table):
            self._keep(dict.fromkeys(new))
            return
        found = self._look(self._table)
        if found is not None:
            columns = {one.name: one for one in found.columns if one.name not in typed}
            self._keep({**dict.fromkeys(new), **columns, **known})

    def _recalled(self) -> Mapping[str, Column | None] | None:
        if not self._read and self._store is not None:
            stored = self._store.load_document(_COLUMNS, self._name)
            if stored is not None:
                self._known = {name: one and _column_of(one) for name, one in stored.items()}
        self._read = True
        return self._known

    def _keep(self, known: dict[str, Column | None]) -> None:
        if self._store is not None and self._keeps:
            document = {name: one and asdict(replace(one, earlier=())) for name, one in known.items()}
            self._store.save_document(_COLUMNS, self._name, document)
        self._known = known


def _column_of(stored: Mapping[str, Any]) -> Column:
    """A column out of its document."""
    members = stored["type"]["members"]
    kind = ColumnType(**{**stored["type"], "members": None if members is None else tuple(members)})
    return Column(**{**stored, "type": kind, "earlier": ()})


def look_up_in(settings: DatabaseSettings | None) -> LookUpTable | None:
    """What asks a config's source database for a table; None if it has none. Raises as ``look_into``."""
    return None if settings is None else partial(_defined_table, settings)


def _defined_table(settings: DatabaseSettings, table: TableId) -> TableSchema | None:
    if not table.schema:
        return None  # of a flattened row that does not name its database
    from tidesink.sinks.batch.source_rows import OPTION, connected
    from tidesink.source_database import mysql, postgres
    from tidesink.source_database.database import translated

    # Also of a replica: no row is read from it.
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
    """What asks the source's database of a config; None where it has none.

    It raises ConfigError where the database refuses the user, and SourceUnavailableError where it does not
    answer.
    """
    return None if settings is None else partial(_stored_types, settings)


def _stored_types(settings: DatabaseSettings, table: TableId) -> Mapping[str, ColumnType]:
    # Here, since it takes what Spark's tasks do, which takes a second to load.
    from tidesink.sinks.batch.source_rows import OPTION, connected
    from tidesink.source_database.database import stored_table, translated

    # Also of a replica: no row is read from it.
    url = settings.url.get_secret_value()
    with connected(url, replica=True) as connection, translated(OPTION):
        found = stored_table(connection, table)
    return {fold_name(name): kind for name, kind in found.types.items()} if found else {}


def database_connector(settings: DatabaseSettings | None) -> str:
    """The connector of Debezium that reads a database; empty if there is none, or its URL fits several."""
    return POSTGRES if settings is not None and _is_postgres(settings) else ""


def _is_postgres(settings: DatabaseSettings) -> bool:
    return settings.url.get_secret_value().startswith("postgres")


def replica_identity(settings: DatabaseSettings | None, table: TableId) -> ReplicaIdentity | None:
    """The columns that Postgres sends of a table's deleted row; None if the database does not tell.

    It does not tell for another kind of database, a table that it does not have, and a partitioned table,
    whose partitions have identities of their own.

    Raises: as ``look_into`` says.
    """
    if settings is None or not _is_postgres(settings):
        return None
    from tidesink.sinks.batch.source_rows import OPTION, connected
    from tidesink.source_database.database import stored_table, translated

    url, replica = settings.url.get_secret_value(), settings.replica
    with connected(url, replica=replica) as connection, translated(OPTION):
        found = stored_table(connection, table)
    return None if found is None else found.replica_identity


class AskedIdentity:
    """A table's replica identity, which the database is asked for until it answers.

    ``ask``: as ``replica_identity`` with its arguments. An answer that tells nothing is an answer, and so is
    a refusal, which only another config or another user's rights would change. Without an identity records
    are read by what they show themselves.
    """

    def __init__(self, ask: Callable[[], ReplicaIdentity | None]) -> None:
        self._ask = ask
        self._answer: ReplicaIdentity | None = None
        self._is_answered = False

    def get(self) -> ReplicaIdentity | None:
        """The identity; None if the database does not tell it, or does not answer."""
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
    """A table's definition in TiDB, MySQL or MariaDB now, as DDL of the topic; None where there is none.

    Raises: as ``look_into`` says.
    """
    from tidesink.sinks.batch.source_rows import OPTION, connected
    from tidesink.sinks.batch.topic_ddl import DdlStatement
    from tidesink.source_database.database import translated
    from tidesink.source_database.mysql import create_statement

    # Also of a replica: no row is read from it.
    url = settings.url.get_secret_value()
    with connected(url, replica=True) as connection, translated(OPTION):
        found = create_statement(connection, table)
    return None if found is None else DdlStatement(table.schema, found[0], found[1], table=table.name)


def lacks_digits(column_type: ColumnType) -> bool:
    """Whether a type is a word alone that leaves out what decides how its values are kept."""
    return (row_of(column_type).reader == "decimal" and column_type.precision is None) or (
        row_of(column_type).reader == "bit" and column_type.length is None
    )


def _sql_of(column: Column, found: Mapping[str, ColumnType]) -> str | None:
    """What the database has of a column; None where it has none, or another than rows have."""
    kind = found.get(fold_name(column.name))
    return kind.sql if kind is not None and _agrees(kind, column.type) else None


def _agrees(found: ColumnType, word: ColumnType) -> bool:
    return agrees(found, word) and not lacks_digits(found) and _is_unsigned(found) == _is_unsigned(word)


def _is_unsigned(column_type: ColumnType) -> bool:
    return not {"unsigned", "zerofill"}.isdisjoint((column_type.sql or "").lower().split())


def _holding_both(before: str, now: str) -> str:
    """A type that holds the values of two, of one name; the first one where that holds them."""
    old, new = parse_sql_type(before), parse_sql_type(now)
    rest = " unsigned" if _is_unsigned(new) else ""
    if old.precision is not None and new.precision is not None:
        scale = max(old.scale or 0, new.scale or 0)
        whole = max(old.precision - (old.scale or 0), new.precision - (new.scale or 0))
        sizes: Any = (whole + scale, scale)
        held = sizes == (old.precision, old.scale)
        return before if held else f"decimal({whole + scale},{scale}){rest}"
    return now if (new.length or 0) > (old.length or 0) else before
