"""The Postgres target.

Executors load rows with COPY; one transaction merges them and records the progress.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.events import TableId, fold_name
from tidesink.sinks.targets.sharing import quote_postgres, text_postgres
from tidesink.sinks.targets.sql.columns import POSTGRES_LIMITS
from tidesink.sinks.targets.sql.dialect import Dialect, ForView, no_table
from tidesink.sinks.targets.sql.load import ROWS_AT_ONCE, kept_connection
from tidesink.sinks.targets.sql.location import (
    CONNECT_SECONDS,
    LEDGER,
    LOCK_SECONDS,
    SHARDS,
    Endpoint,
    Place,
    endpoint_of,
    not_connected,
)
from tidesink.sinks.targets.sql.postgres_merge import (
    NO_WRITES,
    NO_WRITES_WAY,
    RIGHTS,
    check_kept,
    error_of,
    fault_of,
    merged,
)
from tidesink.sinks.targets.sql.rights import postgres_grants
from tidesink.sinks.targets.sql.target import (
    SqlPreflight,
    SqlTarget,
    capabilities_of,
    open_sql,
    shown_place,
    try_connection,
)
from tidesink.source_database.connection_faults import postgres_fault
from tidesink.typemap.native_sql import native_text
from tidesink.typemap.render_sql import FoundType, plain_type

if TYPE_CHECKING:
    from tidesink.config import Config
    from tidesink.config.targets import PostgresSettings
    from tidesink.sinks.spark.engine import SparkEngine
    from tidesink.sinks.state.progress import StateStore


# Sent as statements, because connection poolers pass connection options on to other sessions.
_SESSION: Final = (
    "SET TIME ZONE 'UTC'; SET datestyle TO 'ISO, YMD'; SET standard_conforming_strings TO on; "
    f"SET extra_float_digits TO 1; SET lock_timeout TO '{LOCK_SECONDS}s'"
)
_LEDGER: Final = (
    "CREATE TABLE IF NOT EXISTS {} (table_name text PRIMARY KEY, source_table text NOT NULL, "
    "pipeline text NOT NULL, epoch bigint NOT NULL, txn_version bigint NOT NULL, "
    "key_columns text NOT NULL, commits bigint NOT NULL, "
    "progress text, result text, horizon bigint, table_identity text, "
    "updated_at timestamp with time zone NOT NULL DEFAULT CURRENT_TIMESTAMP)"
)
_SHARDS: Final = _LEDGER.replace(
    "table_name text PRIMARY KEY",
    "table_name text NOT NULL, shard text NOT NULL, known_columns text, PRIMARY KEY (table_name, shard)",
)
# True if a schema is missing, and the names of the tables that are there, of some that are asked for.
_PREPARED: Final = """
SELECT to_regnamespace(%s) IS NULL, ARRAY(SELECT c.relname::text FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = ANY(%s) AND c.relkind IN ('r', 'p'))
"""
# For each column: its type, the base type if the type is a domain, and whether it is an enum or an array of
# enums.
_COLUMNS: Final = """
SELECT c.relkind IN ('r', 'p'), a.attname,
replace(format_type(a.atttypid, a.atttypmod), '(6) ', ' '),
CASE t.typtype WHEN 'd' THEN replace(format_type(b.oid, t.typtypmod), '(6) ', ' ') END,
coalesce(e.typtype, b.typtype, t.typtype) = 'e'
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = nullif(t.typbasetype, 0)
LEFT JOIN pg_type e ON e.oid = nullif(coalesce(b.typelem, t.typelem), 0)
WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# Prefixes of types whose values an ALTER can cast to a number, time or JSON type.
_CAST: Final = ("smallint", "integer", "bigint", "numeric", "real", "double", "money", "bit(", "time", "json")
_LENGTH: Final = re.compile(r"character varying\(([0-9]+)\)")
# This lock is taken before an object is created. Without it, IF NOT EXISTS fails in Postgres if two sessions
# create the same object at the same moment.
_ONE_MAKER: Final = f"SELECT pg_advisory_xact_lock({int.from_bytes(b'tidesink', 'big')})"


def psycopg() -> Any:
    """Import and return the driver psycopg.

    Raises:
        ConfigError: the driver is not installed.
    """
    try:
        import psycopg as driver
    except ImportError as error:
        raise ConfigError(
            "A postgres target needs psycopg. Run: pip install 'tidesink[postgres]', on the executors too."
        ) from error
    return driver


def connect(endpoint: Endpoint) -> Any:
    """Open a connection with tidesink's session settings, and with autocommit off.

    Raises:
        TransientTargetError: the server cannot be reached or accepts no connection for now.
        TargetError: the connection cannot be made as configured.
    """
    driver = psycopg()
    try:
        connection = driver.connect(**_parameters(endpoint))
    except driver.OperationalError as exc:
        raise not_connected(postgres_fault(exc), "Postgres", endpoint) from None
    connection.execute(f"{_SESSION}; SET idle_in_transaction_session_timeout TO '{endpoint.silence}s'")
    connection.commit()
    return connection


def _parameters(endpoint: Endpoint) -> dict[str, Any]:
    """Return libpq's connection parameters. The keepalives detect a lost server within a minute."""
    files = {"sslrootcert": endpoint.ca, "sslcert": endpoint.certificate, "sslkey": endpoint.key}
    return {
        "host": endpoint.host,
        "port": endpoint.port,
        "dbname": endpoint.database,
        "user": endpoint.user,
        "password": endpoint.password or None,
        "sslmode": endpoint.tls,
        "connect_timeout": CONNECT_SECONDS,
        "application_name": "tidesink",
        "client_encoding": "utf8",
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "prepare_threshold": None,
        **{name: value for name, value in files.items() if value},
    }


def load(endpoint: Endpoint, statement: str, chunks: Iterator[memoryview]) -> int:
    """Load CSV lines with the COPY ``statement``, and commit. Returns the number of loaded rows."""
    with kept_connection(endpoint, connect, alive) as connection, connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for chunk in chunks:
                copy.write(chunk)
        rows = int(cursor.rowcount)
        connection.commit()
    return rows


def read(endpoint: Endpoint, query: str) -> Iterator[list[tuple[Any, ...]]]:
    """Run a query with COPY, and yield its rows in chunks. Neither side keeps all rows in memory."""
    with kept_connection(endpoint, connect, alive) as connection, connection.cursor() as cursor:
        with cursor.copy(f"COPY ({query}) TO STDOUT") as copy:
            rows = copy.rows()
            while some := [*islice(rows, ROWS_AT_ONCE)]:
                yield some
        connection.rollback()


def alive(connection: Any) -> bool:
    """Return True if the server still answers on a connection."""
    try:
        connection.execute("SELECT 1")
        connection.rollback()
    except psycopg().Error:
        return False
    return True


# Finds key and index columns with a nondeterministic collation. Reads collisdeterministic by to_jsonb,
# because Postgres 11 has neither this column nor such collations.
_LOOSE: Final = (
    "WITH compared AS (SELECT attrelid, attnum, attcollation AS how, NULL AS of FROM pg_attribute UNION ALL "
    "SELECT i.indrelid, k.attnum, k.how, c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid, "
    "unnest(i.indkey::int2[], i.indcollation::oid[]) AS k (attnum, how) WHERE i.indisunique) "
    "SELECT a.attname, o.collname, c.of FROM compared c JOIN pg_attribute a USING (attrelid, attnum) "
    "JOIN pg_collation o ON o.oid = c.how WHERE attrelid = to_regclass(%s) "
    "AND to_jsonb(o) ->> 'collisdeterministic' = 'false' ORDER BY c.of NULLS FIRST"
)


def check_keys(cursor: Any, place: Place, keys: Collection[str]) -> None:
    """Check the collations of the key columns in the table and in its unique indexes.

    ``keys``: the key columns' names, quoted and in lower case.

    Raises:
        SchemaRefusedError: a collation treats different values as equal.
    """
    cursor.execute(_LOOSE, (place.location,))
    for name, compared, index in cursor.fetchall():
        column = quote_postgres(name)
        if fold_name(column) not in keys:
            continue
        where = f"in the index {index}" if index else "in the table"
        way = f'ALTER TABLE {place.location} ALTER {column} TYPE text COLLATE "C"'
        raise SchemaRefusedError(
            f"The key column {name} of {place.shown} has {where} the collation {compared}, which is not "
            "deterministic: different keys would be the same row there, and overwrite each other. Change "
            f"it, and start again: {f'DROP INDEX {place.beside(index)}' if index else way}",
            table=str(place.source),
            column=name,
        )


def view_text(cursor: Any, place: Place, name: str) -> str | None:
    """Return the definition of the view ``name``; None if the name is free, empty if it is not a view."""
    cursor.execute(
        "SELECT CASE relkind WHEN 'v' THEN pg_get_viewdef(oid) ELSE '' END FROM pg_class "
        "WHERE oid = to_regclass(%s)",
        (place.beside(name),),
    )
    row = cursor.fetchone()
    return None if row is None else str(row[0])


# Statements that restore the grants and the comment of a dropped view, each with the column it is for or
# NULL.
_RIGHTS: Final = """
SELECT NULL, format('GRANT %%s ON %%s TO %%s%%s', a.privilege_type, c.oid::regclass, {grantee}, {option})
FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = to_regclass(%(view)s) AND a.grantee <> c.relowner
UNION ALL
SELECT n.attname, format('GRANT %%s (%%I) ON %%s TO %%s%%s', a.privilege_type, n.attname, c.oid::regclass,
{grantee}, {option})
FROM pg_class c JOIN pg_attribute n ON n.attrelid = c.oid, aclexplode(n.attacl) a
WHERE c.oid = to_regclass(%(view)s) AND a.grantee <> c.relowner AND NOT n.attisdropped
UNION ALL
SELECT NULL, format('COMMENT ON VIEW %%s IS %%L', oid::regclass, obj_description(oid, 'pg_class'))
FROM pg_class WHERE oid = to_regclass(%(view)s) AND obj_description(oid, 'pg_class') IS NOT NULL
""".format(
    grantee="CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END",
    option="CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END",
)


def view_in_the_way(cursor: Any, view: str) -> tuple[list[str], list[ForView]]:
    """Return the statement that drops a view, and the statements that later restore its grants and comment.

    Postgres cannot change the type of a column that a view uses.
    """
    cursor.execute(_RIGHTS, {"view": view})
    return [f"DROP VIEW IF EXISTS {view}"], [ForView(*row) for row in cursor.fetchall()]


class PostgresDriver:
    """The driver psycopg."""

    load = staticmethod(load)
    read = staticmethod(read)
    fault_of = staticmethod(fault_of)
    connect = staticmethod(connect)
    alive = staticmethod(alive)
    error_of = staticmethod(error_of)
    missing_grants = staticmethod(postgres_grants)

    @cached_property
    def errors(self) -> tuple[type[BaseException], ...]:
        """The exception class that psycopg raises for errors of the database."""
        return (psycopg().Error,)

    def is_of_rights(self, code: str) -> bool:
        """Return True if ``code`` is the SQLSTATE of a missing privilege."""
        return code == RIGHTS


class PostgresValues:
    """Values in Postgres's SQL."""

    nul_refused = True
    hex_prefix = "\\x"

    def literal(self, text: str, found: str) -> str:
        """Return an SQL literal for a value, cast to the column type ``found``."""
        shown = f"\\x{text}" if found == "bytea" else text
        return f"{text_postgres(shown)}::{found}"

    def text_of(self, column: str, found: str) -> str:
        """Return SQL that converts a column to text.

        Bytes become hex digits, and instants become UTC times.
        """
        plain = plain_type(found)
        if plain == "bytea":
            return f"encode({column}, 'hex')"
        if plain.startswith("timestamp") and plain.endswith("with time zone"):
            return f"({column} AT TIME ZONE 'UTC')::text"
        return native_text(column, found, "postgres") or f"{column}::text"

    def hex_of(self, expression: str) -> str:
        """Return SQL that converts bytes to hex digits, in a collation that sorts digits before letters."""
        return f"encode({expression}, 'hex') COLLATE \"C\""


@dataclass(frozen=True)
class PostgresTables:
    """Postgres's tables. DDL is part of the transaction."""

    values: PostgresValues
    ddl_commits: ClassVar[bool] = False

    check_keys = staticmethod(check_keys)
    check_kept = staticmethod(check_kept)

    def prepare_schema(self, cursor: Any, place: Place) -> None:
        """Create the table's schema and its ledger if missing.

        The CREATE privilege is only needed for what is missing.
        """
        ledgers = {LEDGER: _LEDGER, SHARDS: _SHARDS} if place.shard else {LEDGER: _LEDGER}
        cursor.execute(_PREPARED, (place.quote(place.schema), place.schema, [*ledgers]))
        no_schema, tables = cursor.fetchone()
        if no_schema:
            cursor.execute(_ONE_MAKER)
            cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {place.quote(place.schema)}")
        for name, create in ledgers.items():
            ledger = replace(place, name=name)
            if name not in tables and not self.present(cursor, ledger):
                cursor.execute(_ONE_MAKER)
                cursor.execute(create.format(ledger.location))

    def present(self, cursor: Any, place: Place) -> dict[str, str]:
        """Return the table's column types by name; empty if the table does not exist.

        Raises:
            SchemaRefusedError: the name belongs to a view or another object that is not a table.
        """
        cursor.execute(_COLUMNS, (place.schema, place.name))
        rows = cursor.fetchall()
        if rows and not rows[0][0]:
            raise no_table(place)
        return {name: FoundType(spelt, base, is_enum=is_enum) for _, name, spelt, base, is_enum in rows}

    def required(self, cursor: Any, place: Place) -> dict[str, str]:
        """Return the NOT NULL columns: type by name."""
        cursor.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attnotnull",
            (place.location,),
        )
        return dict(cursor.fetchall())

    def nullable(self, cursor: Any, place: Place) -> list[str]:
        """Return the names of columns that can be set to NULL. A domain may also forbid NULL."""
        cursor.execute(
            "SELECT attname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND NOT attnotnull "
            "AND NOT typnotnull AND attgenerated = ''",
            (place.location,),
        )
        return [name for (name,) in cursor.fetchall()]

    def folds_names(self, cursor: Any) -> bool:  # noqa: ARG002
        """Return False, because quoted names are case-sensitive in Postgres."""
        return False

    def identity(self, cursor: Any, place: Place) -> str | None:
        """Return the OIDs of the ledger and the table as ``ledger:table``; None if one does not exist.

        VACUUM FULL, CLUSTER, TRUNCATE and ALTER keep a table's OID. A table that is created again has a new
        OID.
        """
        query = "SELECT to_regclass(%s)::oid::text || ':' || to_regclass(%s)::oid::text"
        cursor.execute(query, (place.own_ledger, place.location))
        (oids,) = cursor.fetchone()
        return None if oids is None else str(oids)

    def create(self, cursor: Any, place: Place, columns: Sequence[tuple[str, str, bool, str]]) -> None:
        """Create the table if missing, with its primary key and column comments."""
        spelt = [
            f"{quote_postgres(name)} {column_type}{' NOT NULL' * key}"
            for name, column_type, key, _ in columns
        ]
        keys = ", ".join(quote_postgres(name) for name, _, key, _ in columns if key)
        cursor.execute(_ONE_MAKER)
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {place.location} ({', '.join(spelt)}, PRIMARY KEY ({keys}))"
        )
        comments = [
            f"COMMENT ON COLUMN {place.location}.{quote_postgres(name)} IS {text_postgres(comment)}"
            for name, _, _, comment in columns
        ]
        cursor.execute("; ".join(comments))

    def alter(
        self,
        location: str,
        added: Mapping[str, tuple[str, str | None]],
        widened: Mapping[str, str],
        keys: frozenset[str],  # noqa: ARG002  (key columns stay NOT NULL)
    ) -> list[str]:
        """Return an ALTER that adds and changes all columns, and an ALTER that drops the new columns'
        defaults.

        A constant default fills existing rows without rewriting them.
        """
        changes = [
            f"ALTER COLUMN {quote_postgres(name)} TYPE {new_type} USING {quote_postgres(name)}::{new_type}"
            for name, new_type in widened.items()
        ]
        changes += [
            f"ADD COLUMN {quote_postgres(name)} {column_type}" + (f" DEFAULT {default}" if default else "")
            for name, (column_type, default) in added.items()
        ]
        dropped = [
            f"ALTER COLUMN {quote_postgres(name)} DROP DEFAULT"
            for name, (_, default) in added.items()
            if default
        ]
        return [f"ALTER TABLE {location} {', '.join(part)}" for part in (changes, dropped) if part]

    def left_undone(self, cursor: Any, place: Place) -> list[str]:  # noqa: ARG002
        """Return no statements, because an interrupted transaction rolls back its DDL."""
        return []

    def retyped(self, location: str, name: str, found: str, wanted: str, keys: frozenset[str]) -> list[str]:
        """Return one ALTER that changes a column's type, for the user to run.

        A column whose values cannot be cast is dropped and added again. Its values are then lost.
        """
        quoted = quote_postgres(name)
        if wanted == "text":  # as the source writes it, which a cast does not always do (inet, arrays)
            text = self.values.text_of(quoted, found)
            return [f"ALTER TABLE {location} ALTER COLUMN {quoted} TYPE text USING {text}"]
        if fold_name(name) in keys or plain_type(found).startswith(_CAST):
            return self.alter(location, {}, {name: wanted}, keys)
        return [f"ALTER TABLE {location} DROP COLUMN {quoted}, ADD COLUMN {quoted} {wanted}"]

    def optional(self, place: Place, columns: Mapping[str, str]) -> str:
        """Return one ALTER that removes NOT NULL from all the columns."""
        changes = ", ".join(f"ALTER COLUMN {quote_postgres(name)} DROP NOT NULL" for name in columns)
        return f"ALTER TABLE {place.location} {changes}"


class PostgresViews:
    """Postgres's views."""

    text = staticmethod(view_text)
    in_the_way = staticmethod(view_in_the_way)

    def statements(self, view: str, query: str) -> list[str]:
        """Return the statements that create a view or replace it.

        The first statement takes a lock, because creation fails if another session creates the view at the
        same time.
        """
        return [_ONE_MAKER, f"CREATE OR REPLACE VIEW {view} AS {query}"]


class PostgresStaging:
    """Postgres's staging tables, which are loaded with COPY."""

    def tables(self, cursor: Any, place: Place) -> list[str]:
        """Return the names of existing staging tables, found by their prefix."""
        cursor.execute(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND starts_with(c.relname, %s) AND c.relkind = 'r'",
            (place.schema, place.staging_prefix),
        )
        return [name for (name,) in cursor.fetchall()]

    def create(self, cursor: Any, stage: str, columns: Mapping[str, str]) -> None:
        """Create a staging table. It is UNLOGGED and without autovacuum, because only one batch uses it."""
        cursor.execute(f"CREATE UNLOGGED TABLE {stage} ({_spelt(columns)}) WITH (autovacuum_enabled = off)")

    def load_statement(self, stage: str, columns: Sequence[tuple[str, bool]]) -> str:
        """Return the COPY statement that loads CSV. COPY itself converts prefixed hex digits to bytes."""
        names = ", ".join(name for name, _ in columns)
        return f"COPY {stage} ({names}) FROM STDIN (FORMAT csv, NULL 'NULL')"


class PostgresTemporary:
    """Temporary staging tables of Postgres."""

    name = "pg_temp.tidesink_rows"

    def is_allowed(self, cursor: Any) -> bool:
        """Return True if the user may create temporary tables in the database."""
        cursor.execute("SELECT has_database_privilege(current_database(), 'TEMPORARY')")
        return bool(cursor.fetchone()[0])

    def load(
        self, cursor: Any, columns: Mapping[str, str], statement: str, lines: Iterable[memoryview]
    ) -> None:
        """Create the table, which the transaction drops at its end, and load CSV lines into it with COPY."""
        cursor.execute(f"CREATE TEMPORARY TABLE {self.name} ({_spelt(columns)}) ON COMMIT DROP")
        with cursor.copy(statement) as copy:
            for line in lines:
                copy.write(line)


class PostgresRows:
    """Postgres's statements that write and delete rows."""

    insert_missing = "INSERT INTO {} ON CONFLICT DO NOTHING"
    merge = staticmethod(merged)

    def delete_some(self, cursor: Any, location: str, keys: Sequence[str], where: str, *, most: int) -> int:
        """Delete at most ``most`` rows that match ``where``, and return their number.

        The rows are chosen by key, because rows in different partitions can have the same ctid.
        """
        names = ", ".join(keys)
        chosen = f"SELECT {names} FROM {location} WHERE {where} LIMIT {most}"
        cursor.execute(f"DELETE FROM {location} WHERE ({names}) IN ({chosen})")
        return int(cursor.rowcount)

    def truncate(self, cursor: Any, location: str, mark: str | None, *, only: str = "true") -> int:
        """Delete all rows that match ``only``, or mark them as deleted, and return their number.

        A TRUNCATE statement would not count the rows.
        """
        if mark is None:
            cursor.execute(f"DELETE FROM {location} WHERE {only}")
        else:
            where = f"{mark} IS DISTINCT FROM true AND {only}"
            cursor.execute(f"UPDATE {location} SET {mark} = true WHERE {where}")
        return int(cursor.rowcount)


def _spelt(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {_held(name, column_type)}" for name, column_type in columns.items())


def _held(name: str, column_type: str) -> str:
    """Return the type of the staging column for a target column's type.

    It is the same type, except that a ``varchar`` becomes a ``text`` with a check of its length. COPY into a
    ``varchar`` would silently cut trailing spaces beyond its length.
    """
    length = _LENGTH.fullmatch(column_type)
    return f"text CHECK (char_length({name}) <= {length[1]})" if length else column_type


def postgres_dialect() -> Dialect:
    """Return Postgres as the SQL targets use it."""
    values = PostgresValues()
    return Dialect(
        "postgres",
        POSTGRES_LIMITS,
        caveats={},
        key_length=None,
        quote=quote_postgres,
        driver=PostgresDriver(),
        values=values,
        tables=PostgresTables(values),
        views=PostgresViews(),
        staging=PostgresStaging(),
        rows=PostgresRows(),
        temporary=PostgresTemporary(),
    )


CAPABILITIES: Final = capabilities_of(postgres_dialect())
PREFLIGHT: Final = SqlPreflight(lambda _: postgres_dialect())
_QUESTION: Final = (
    "SELECT format('Postgres %s: %s%s', current_setting('server_version'), CASE "
    "WHEN has_database_privilege(current_database(), 'CREATE') THEN 'the user may create schemas' "
    "ELSE 'the user may not create schemas' END, "
    "CASE WHEN current_setting('transaction_read_only')::bool THEN ' (read-only)' END)"
)
_READ_ONLY: Final = "(read-only)"


def open_target(config: Config, _spark: SparkEngine, _store: StateStore) -> SqlTarget:
    """Open the Postgres target that a config describes."""
    return open_sql(postgres_dialect(), config)


def place_of(settings: PostgresSettings, table: TableId) -> str:
    """Return the server, schema and name of a source table's target table, for display."""
    return shown_place(postgres_dialect(), settings, table)


def try_target(settings: PostgresSettings) -> str:
    """Connect, and return a text with the server's version and whether the user may create schemas.

    Raises:
        ConfigError: the server cannot be used, or accepts no writes. The message names the reason.
    """
    answer = try_connection(postgres_dialect(), endpoint_of(settings), _QUESTION)
    if answer.endswith(_READ_ONLY):
        raise ConfigError(f"{NO_WRITES}. {NO_WRITES_WAY}")
    return answer
