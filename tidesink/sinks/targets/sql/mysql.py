"""The MySQL and MariaDB target.

Executors load rows with LOAD DATA LOCAL; one transaction merges them and records the progress.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.events import TableId, fold_name
from tidesink.sinks.targets.sharing import quote_mysql, text_mysql
from tidesink.sinks.targets.sql.columns import KEY_COLLATIONS, MYSQL_LIMITS
from tidesink.sinks.targets.sql.dialect import Counts, Dialect, ForView, Merge, no_table
from tidesink.sinks.targets.sql.load import ROW, ROWS_AT_ONCE, kept_connection
from tidesink.sinks.targets.sql.location import (
    CONNECT_SECONDS,
    LOCK_SECONDS,
    Endpoint,
    Place,
    endpoint_of,
    not_connected,
)
from tidesink.sinks.targets.sql.mysql_merge import (
    LEDGER_COLUMNS,
    RIGHTS,
    SHARDS_COLUMNS,
    LoadRefusedError,
    check_kept,
    check_keys,
    code_of,
    create_ledger,
    default_of_key,
    error_of,
    fault_of,
    is_computed,
    merged,
    only_unique,
)
from tidesink.sinks.targets.sql.rights import mysql_grants
from tidesink.sinks.targets.sql.target import (
    SqlPreflight,
    SqlTarget,
    capabilities_of,
    open_sql,
    shown_place,
    try_connection,
)
from tidesink.source_database.connection_faults import mysql_fault
from tidesink.typemap.native_sql import native_text
from tidesink.typemap.render_sql import KEY_LENGTH, FoundType

if TYPE_CHECKING:
    from tidesink.config import Config
    from tidesink.config.targets import MysqlSettings
    from tidesink.sinks.spark.engine import SparkEngine
    from tidesink.sinks.state.progress import StateStore


# Storage engines for staging tables, fastest first. Without transactions (Aria), staging and reading rows
# costs half. MyISAM is not used, because servers with GTIDs do not allow it in transactions.
_STAGING_ENGINES: Final = MappingProxyType({"ARIA": "Aria TRANSACTIONAL=0", "INNODB": "InnoDB"})
# Additional primary key of a staging table, by engine. A server may require a primary key
# (sql_require_primary_key, innodb_force_primary_key).
_KEY_OF: Final = {"InnoDB": f"{ROW} bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY, "}
_WIDTH: Final = re.compile(r"((?:small|medium|big)?int)\([0-9]+\)")
_BYTES: Final = frozenset({"longblob", "varbinary", "mediumblob", "blob"})
# Objects that are not tables, although SHOW COLUMNS works on them.
_NO_TABLES: Final = frozenset({"VIEW", "SYSTEM VIEW", "SEQUENCE"})
_NO_TABLE: Final = frozenset({"1146", "1049"})
_LONGEST_COMMENT: Final = 1000
_NO_RENAME: Final = (
    "Renaming columns needs MySQL 8.0 or MariaDB 10.5.2. An older server refuses the statement (error 1064). "
    "For such a server, set `rename` under `schema-changes` to `pause` or `ignore`."
)
# Comment of a new column, followed by its type, until its default is removed. The MODIFY that removes the
# default also removes the comment. A column that still has the comment is therefore from an interrupted
# change.
_FILLING: Final = "tidesink fills rows from before this column of type "
_TYPE: Final = re.compile(r"[a-z]+( [a-z]+)*(\([0-9, ]+\))?( [a-z]+)*")


# Whatever the server's defaults are: a value that does not fit is an error instead of being changed, 0 in an
# AUTO_INCREMENT column stays 0, LOAD DATA reports changed values as warnings, and instants are written in
# UTC.
_SESSION: Final = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO', sql_notes = 1, max_error_count = 64, "
    f"time_zone = '+00:00', innodb_lock_wait_timeout = {LOCK_SECONDS}, lock_wait_timeout = {LOCK_SECONDS}"
)
# Longest duration of a statement in seconds. TCP detects a lost server earlier.
_READ_SECONDS: Final = 3600
# Oldest PyMySQL that enforces tls.mode. Older versions send everything in plain text under the mode prefer,
# and under stricter modes if the server, or an attacker in its place, reports that it has no TLS.
_OLDEST: Final = (1, 2)


def pymysql() -> Any:
    """Import and return the driver PyMySQL.

    Raises:
        ConfigError: the driver is not installed, or too old to enforce ``tls.mode``.
    """
    try:
        import pymysql as driver
    except ImportError as error:
        raise ConfigError(
            "A mysql target needs PyMySQL. Run: pip install 'tidesink[mysql]', on the executors too."
        ) from error
    if driver.VERSION[:2] < _OLDEST:
        raise ConfigError(
            f"PyMySQL {driver.VERSION_STRING} may send data unencrypted whatever target.tls.mode is. "
            "Run: pip install 'pymysql>=1.2', on the executors too."
        )
    return driver


def connect(endpoint: Endpoint, *, loads: bool = False) -> Any:
    """Open a connection with tidesink's session settings, and with autocommit off.

    ``loads``: allow LOAD DATA LOCAL.

    Raises:
        TransientTargetError: the server cannot be reached or accepts no connection for now.
        TargetError: the connection cannot be made as configured.
    """
    from pymysql.constants import CLIENT

    driver = pymysql()
    try:
        connection = driver.connect(
            host=endpoint.host,
            port=endpoint.port,
            database=endpoint.database or None,
            user=endpoint.user,
            password=endpoint.password,
            charset="utf8mb4",
            connect_timeout=CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            write_timeout=_READ_SECONDS,
            client_flag=CLIENT.FOUND_ROWS,  # an UPDATE counts the rows it finds, changed or not
            local_infile=loads,
            **_tls(endpoint),
        )
    except (driver.err.MySQLError, OSError) as exc:
        raise not_connected(mysql_fault(exc), "MySQL", endpoint) from None
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute(_SESSION + _limit(endpoint.silence))
    return connection


def _limit(silence: int) -> str:
    """Return the part of a SET statement that limits how long a transaction or a session may be idle.

    MariaDB limits idle transactions, MySQL only idle sessions. ``silence``: the limit in seconds.
    """
    mariadb, mysql = f", idle_transaction_timeout = {silence}", f", wait_timeout = {silence}"
    return f" /*M!100300 {mariadb} */ /*!80000 {mysql} */"


def _tls(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.tls == "disable":
        return {"ssl_disabled": True}
    if endpoint.tls == "prefer":
        return {}
    context = ssl.create_default_context(cafile=endpoint.ca)
    context.check_hostname = endpoint.tls == "verify-full"
    if endpoint.tls == "require":
        context.verify_mode = ssl.CERT_NONE
    if endpoint.certificate:
        context.load_cert_chain(endpoint.certificate, endpoint.key)
    return {"ssl": context}


def load(endpoint: Endpoint, statement: str, chunks: Iterator[memoryview]) -> int:
    """Load CSV lines with the LOAD DATA LOCAL ``statement``, and commit. Returns the number of loaded rows.

    The driver can only load a named file, so the lines are first written to a temporary file. It has no
    directory entry and is opened by its descriptor, so a killed task leaves no rows on the disk. The
    connection is opened when the file is complete, because MySQL would close an idle connection while Spark
    computes the lines.

    Raises:
        LoadRefusedError: the server changed a value. LOAD DATA LOCAL reports this as a warning in every SQL
            mode.
    """
    with TemporaryFile() as file:
        for chunk in chunks:
            file.write(chunk)
        file.seek(0)  # flushes; needed where opening /dev/fd shares the file position (macOS)
        with kept_connection(endpoint, partial(connect, loads=True), alive) as connection:
            rows = _loaded(connection, statement, f"/dev/fd/{file.fileno()}")
            connection.commit()
    return rows


def read(endpoint: Endpoint, query: str) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Run a query, and yield its rows in chunks as the server sends them. They are never all in memory."""
    from pymysql.cursors import SSCursor

    with kept_connection(endpoint, connect, alive) as connection, connection.cursor(SSCursor) as cursor:
        cursor.execute(query)
        while some := cursor.fetchmany(ROWS_AT_ONCE):
            yield some
        connection.rollback()


def alive(connection: Any) -> bool:
    """Return True if the server still answers on a connection."""
    try:
        connection.ping(reconnect=False)
    except (pymysql().err.MySQLError, OSError):
        return False
    return True


def _loaded(connection: Any, statement: str, name: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement, (name,))
        rows = int(cursor.rowcount)
        cursor.execute("SHOW WARNINGS LIMIT 1")
        warning = cursor.fetchone()
    if warning is not None:
        raise LoadRefusedError(int(warning[1]))
    return rows


class MysqlDriver:
    """The driver PyMySQL."""

    load = staticmethod(load)
    read = staticmethod(read)
    fault_of = staticmethod(fault_of)
    connect = staticmethod(connect)
    alive = staticmethod(alive)
    error_of = staticmethod(error_of)
    missing_grants = staticmethod(mysql_grants)

    @cached_property
    def errors(self) -> tuple[type[BaseException], ...]:
        """The exception classes of PyMySQL and of the socket that it uses."""
        return (pymysql().err.MySQLError, OSError)

    def is_of_rights(self, code: str) -> bool:
        """Return True for an error number of a missing privilege. There is one for each kind of object."""
        return code in RIGHTS


class MysqlValues:
    """Values in MySQL's SQL."""

    nul_refused = False
    hex_prefix = ""

    def literal(self, text: str, found: str) -> str:
        """Return an SQL literal for a value of a column with the type ``found``."""
        binary = found.partition("(")[0] in _BYTES
        return f"x'{text}'" if binary else text_mysql(text)

    def text_of(self, column: str, found: str) -> str:
        """Return SQL that converts a column to text. Bytes become hex digits.

        A FLOAT is converted to a double first, because the text of a FLOAT has only six digits. All texts get
        the same collation, because a UNION of different collations is an error.
        """
        kind = found.partition("(")[0]
        if kind in _BYTES or kind in ("binary", "tinyblob"):
            return f"HEX({column})"
        if kind in ("float", "double"):
            return f"{column} + 0e0"
        if kind in ("longtext", "mediumtext", "text", "varchar"):
            return f"CONVERT({column} USING utf8mb4)"
        return native_text(column, found, "mysql") or f"CAST({column} AS CHAR)"

    def hex_of(self, expression: str) -> str:
        """Return an SQL expression that converts ``expression``, which is bytes, to hex digits."""
        return f"HEX({expression})"


class MysqlServer:
    """Abilities of a server that its tables depend on. They are queried once.

    ``collation``: the collation of key columns; empty before ``look``.
    ``engine``: the storage engine of staging tables; empty before ``look``.
    """

    def __init__(self, engines: Mapping[str, str]) -> None:
        """Create the cache. ``engines``: storage engines for staging tables, fastest first."""
        self.collation = ""
        self.engine = ""
        self._engines = engines

    def look(self, cursor: Any) -> None:
        """Query the server for the collation and the engine, and cache both.

        Raises:
            SchemaRefusedError: the server has no collation that compares texts byte by byte.
        """
        if self.engine:
            return
        cursor.execute(
            "SELECT COLLATION_NAME FROM information_schema.COLLATIONS WHERE COLLATION_NAME IN (%s, %s)",
            KEY_COLLATIONS,
        )
        collations = cursor.fetchone()
        if collations is None:
            raise SchemaRefusedError(
                "The server has no collation that compares texts byte by byte. Use MySQL 8.0.17 or MariaDB "
                "10.2, or a newer version."
            )
        cursor.execute("SELECT ENGINE FROM information_schema.ENGINES WHERE SUPPORT IN ('YES', 'DEFAULT')")
        engines = {row[0].upper() for row in cursor.fetchall()}
        self.collation = collations[0]
        self.engine = next(word for name, word in self._engines.items() if name in engines)


@dataclass(frozen=True)
class MysqlTables:
    """The tables of MySQL and MariaDB. DDL commits the transaction."""

    server: MysqlServer
    ddl_commits: ClassVar[bool] = True

    check_kept = staticmethod(check_kept)

    def prepare_schema(self, cursor: Any, place: Place) -> None:
        """Create the table's database and its ledger if missing.

        The CREATE privilege is only needed for what is missing.
        """
        self.server.look(cursor)
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", (place.schema,)
        )
        if not cursor.fetchone()[0]:
            database = quote_mysql(place.schema)
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {database} DEFAULT CHARACTER SET utf8mb4")
        ledgers = [(place.ledger, LEDGER_COLUMNS)]
        if place.shard:
            ledgers.append((place.shards, SHARDS_COLUMNS))
        for location, columns in ledgers:
            if not self._names(cursor, location):
                create_ledger(cursor, location, columns, self.server.collation)

    def present(self, cursor: Any, place: Place) -> dict[str, str]:
        """Return the table's column types by name, without display widths; empty if the table does not exist.

        Raises:
            SchemaRefusedError: the name belongs to a view or another object that is not a table.
        """
        columns = self._columns(cursor, place.location)
        if columns and self._is_view(cursor, place):
            raise no_table(place)
        return {
            name: FoundType(
                column_type if column_type == "tinyint(1)" else _WIDTH.sub(r"\1", column_type),
                charset=_narrow(collation),
            )
            for name, column_type, collation in columns
        }

    def required(self, cursor: Any, place: Place) -> dict[str, str]:
        """Return the NOT NULL columns: type by name."""
        cursor.execute(f"SHOW COLUMNS FROM {place.location}")
        return {name: column_type for name, column_type, null, *_ in cursor.fetchall() if null != "YES"}

    def nullable(self, cursor: Any, place: Place) -> list[str]:
        """Return the names of the nullable columns that the server does not compute."""
        cursor.execute(f"SHOW COLUMNS FROM {place.location}")
        columns = [(row[0], row[2], row[-1]) for row in cursor.fetchall()]
        return [name for name, null, extra in columns if null == "YES" and not is_computed(extra)]

    def folds_names(self, cursor: Any) -> bool:
        """Return True if the server variable ``lower_case_table_names`` is not 0."""
        cursor.execute("SELECT @@lower_case_table_names")
        return bool(int(cursor.fetchone()[0]))

    def identity(self, cursor: Any, place: Place) -> str | None:  # noqa: ARG002
        """Return None. InnoDB's table ids and creation times cannot be used, because an ALTER can change
        them.
        """
        return None

    def check_keys(self, cursor: Any, place: Place, keys: Collection[str]) -> None:
        """Check that the types and collations of the key columns treat different keys as different."""
        self.server.look(cursor)
        check_keys(cursor, place, keys, self.server.collation)

    def create(self, cursor: Any, place: Place, columns: Sequence[tuple[str, str, bool, str]]) -> None:
        """Create the table if missing, with its primary key and column comments."""
        spelt = [
            f"{self._column(name, column_type, key=key)} COMMENT {text_mysql(comment[:_LONGEST_COMMENT])}"
            for name, column_type, key, comment in columns
        ]
        keys = ", ".join(quote_mysql(name) for name, _, key, _ in columns if key)
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {place.location} ({', '.join(spelt)}, PRIMARY KEY ({keys})) "
            "ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4"
        )

    def alter(
        self,
        location: str,
        added: Mapping[str, tuple[str, str | None]],
        widened: Mapping[str, str],
        keys: frozenset[str],
    ) -> list[str]:
        """Return an ALTER that adds and changes all columns, and an ALTER that drops the new columns'
        defaults.

        The defaults fill existing rows.
        """
        changes = [
            f"MODIFY COLUMN {self._column(name, column_type, key=fold_name(name) in keys)}"
            for name, column_type in widened.items()
        ]
        changes += [
            f"ADD COLUMN {self._column(name, column_type)}"
            + (f" DEFAULT ({default}) COMMENT {text_mysql(_FILLING + column_type)}" if default else "")
            for name, (column_type, default) in added.items()
        ]
        plain = [
            f"MODIFY COLUMN {self._column(name, column_type)}"
            for name, (column_type, default) in added.items()
            if default
        ]
        return [f"ALTER TABLE {location} {', '.join(part)}" for part in (changes, plain) if part]

    def left_undone(self, cursor: Any, place: Place) -> list[str]:
        """Return the ALTER that removes the defaults of new columns, if a worker was killed before it ran."""
        cursor.execute(
            "SELECT COLUMN_NAME, COLUMN_COMMENT FROM information_schema.COLUMNS "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND COLUMN_COMMENT LIKE %s",
            (place.schema, place.name, f"{_FILLING}%"),
        )
        reported = [(name, comment.removeprefix(_FILLING)) for name, comment in cursor.fetchall()]
        changes = [
            f"MODIFY COLUMN {self._column(name, column_type)}"
            for name, column_type in reported
            if _TYPE.fullmatch(column_type)
        ]
        return [f"ALTER TABLE {place.location} {', '.join(changes)}"] if changes else []

    def retyped(
        self,
        location: str,
        name: str,
        found: str,  # noqa: ARG002  (MODIFY converts from any type)
        wanted: str,
        keys: frozenset[str],
    ) -> list[str]:
        """Return one ALTER that changes a column's type, for the user to run."""
        return self.alter(location, {}, {name: wanted}, keys)

    def optional(self, place: Place, columns: Mapping[str, str]) -> str:
        """Return one ALTER that makes all the columns nullable. MODIFY needs the types too."""
        changes = ", ".join(
            f"MODIFY {quote_mysql(name)} {column_type} NULL" for name, column_type in columns.items()
        )
        return f"ALTER TABLE {place.location} {changes}"

    def _is_view(self, cursor: Any, place: Place) -> bool:
        cursor.execute(
            "SELECT TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (place.schema, place.name),
        )
        row = cursor.fetchone()
        return row is not None and row[0] in _NO_TABLES

    def _column(self, name: str, column_type: str, *, key: bool = False) -> str:
        words = f"{quote_mysql(name)} {column_type}"
        if key and column_type.startswith("varchar"):
            words += f" CHARACTER SET utf8mb4 COLLATE {self.server.collation}"
        return words + (f" NOT NULL{default_of_key(column_type)}" if key else " NULL")

    def _columns(self, cursor: Any, location: str) -> list[tuple[str, str, str | None]]:
        try:
            cursor.execute(f"SHOW FULL COLUMNS FROM {location}")
        except pymysql().err.MySQLError as exc:
            if code_of(exc) in _NO_TABLE:
                return []
            raise
        return [(row[0], row[1], row[2]) for row in cursor.fetchall()]

    def _names(self, cursor: Any, location: str) -> dict[str, str]:
        return {name: column_type for name, column_type, _ in self._columns(cursor, location)}


class MysqlViews:
    """The views of MySQL and MariaDB."""

    def text(self, cursor: Any, place: Place, name: str) -> str | None:
        """Return the definition of the view ``name``; None if the name is free, empty if it is not a view."""
        cursor.execute(
            "SELECT v.VIEW_DEFINITION FROM information_schema.TABLES t "
            "LEFT JOIN information_schema.VIEWS v USING (TABLE_SCHEMA, TABLE_NAME) "
            "WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME = %s",
            (place.schema, name),
        )
        row = cursor.fetchone()
        return None if row is None else str(row[0] or "")

    def statements(self, view: str, query: str) -> list[str]:
        """Return the statement that creates a view or replaces it.

        The view runs with its creator's privileges, so its readers need no privilege on the table.
        """
        return [f"CREATE OR REPLACE VIEW {view} AS {query}"]

    def in_the_way(
        self,
        cursor: Any,  # noqa: ARG002
        view: str,  # noqa: ARG002
    ) -> tuple[list[str], list[ForView]]:
        """Return no statements, because MySQL allows type changes of columns that a view reads."""
        return [], []


@dataclass(frozen=True)
class MysqlStaging:
    """Staging tables of MySQL and MariaDB, which are loaded with LOAD DATA LOCAL."""

    server: MysqlServer

    def tables(self, cursor: Any, place: Place) -> list[str]:
        """Return the names of existing staging tables, found by their prefix."""
        like = place.staging_prefix.replace("_", "\\_") + "%"
        cursor.execute(f"SHOW TABLES FROM {quote_mysql(place.schema).replace('%', '%%')} LIKE %s", (like,))
        return [name for (name,) in cursor.fetchall()]

    def create(self, cursor: Any, stage: str, columns: Mapping[str, str]) -> None:
        """Create a staging table in the fastest available engine, with the collation of key columns."""
        self.server.look(cursor)
        engine = self.server.engine
        spelt = ", ".join(f"{name} {column_type} NULL" for name, column_type in columns.items())
        cursor.execute(
            f"CREATE TABLE {stage} ({_KEY_OF.get(engine, '')}{spelt}) ENGINE={engine} "
            f"DEFAULT CHARACTER SET utf8mb4 COLLATE {self.server.collation}"
        )

    def load_statement(self, stage: str, columns: Sequence[tuple[str, bool]]) -> str:
        """Return the LOAD DATA statement.

        It converts hex digits to bytes. Its parameter is the file's name.
        """
        names = ", ".join(f"@{name}" if hexed else name for name, hexed in columns)
        sets = ", ".join(f"{name} = UNHEX(@{name})" for name, hexed in columns if hexed)
        return (
            f"LOAD DATA LOCAL INFILE %s INTO TABLE {stage.replace('%', '%%')} CHARACTER SET utf8mb4 "
            f"FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' LINES TERMINATED BY '\\n' "
            f"({names})" + (f" SET {sets}" if sets else "")
        )


@dataclass(frozen=True)
class MysqlRows:
    """Statements of MySQL and MariaDB that write and delete rows."""

    tables: MysqlTables
    insert_missing: ClassVar[str] = "INSERT IGNORE INTO {}"

    def merge(self, cursor: Any, merge: Merge) -> Counts:
        """Merge a staged batch into its target table, and return the row counts (``mysql_merge.merged``)."""
        return merged(cursor, merge, only_key=self._looked_at(cursor, merge))

    def _looked_at(self, cursor: Any, merge: Merge) -> bool:
        """Check the target's key columns, and return True if the key is the table's only unique index.

        The result stays valid until the commit, because reading the table locks its definition.
        """
        # A DELETE with aliases and a temporary table need a current database, even with qualified names.
        cursor.execute(f"USE {quote_mysql(merge.place.schema)}")
        # Reading the table locks its definition until the commit.
        cursor.execute(f"SELECT 1 FROM {merge.target} LIMIT 1")  # noqa: S608
        cursor.fetchall()
        keys = {fold_name(column.target) for column in merge.keys}
        self.tables.check_keys(cursor, merge.place, keys)
        return only_unique(cursor, merge.place, keys)

    def delete_some(
        self,
        cursor: Any,
        location: str,
        keys: Sequence[str],  # noqa: ARG002  (DELETE has a LIMIT of its own)
        where: str,
        *,
        most: int,
    ) -> int:
        """Delete at most ``most`` rows that match ``where`` with DELETE … LIMIT, and return their number."""
        return int(cursor.execute(f"DELETE FROM {location} WHERE {where} LIMIT {most}"))  # noqa: S608

    def truncate(self, cursor: Any, location: str, mark: str | None, *, only: str = "true") -> int:
        """Delete all rows that match ``only``, or mark them as deleted, and return their number.

        Unlike TRUNCATE, a DELETE counts the rows and is part of the transaction.
        """
        if mark is None:
            cursor.execute(f"DELETE FROM {location} WHERE {only}")  # noqa: S608
        else:
            cursor.execute(f"UPDATE {location} SET {mark} = 1 WHERE NOT ({mark} <=> 1) AND {only}")  # noqa: S608
        return int(cursor.rowcount)


def _narrow(collation: str | None) -> str | None:
    """Return a collation's character set if it cannot store all of Unicode; None otherwise."""
    charset = (collation or "").partition("_")[0]
    return None if charset in ("", "utf8mb4", "binary") else charset


def mysql_dialect(key_length: int = KEY_LENGTH, *, engines: Mapping[str, str] = _STAGING_ENGINES) -> Dialect:
    """Return MySQL and MariaDB as the SQL targets use them.

    ``key_length``: length of a new key column, in characters (text) or bytes, if the source's length is
        unknown.
    ``engines``: storage engines for staging tables, fastest first: the SQL for each name of a server's list.
    """
    server = MysqlServer(engines)
    tables = MysqlTables(server)
    return Dialect(
        "mysql",
        MYSQL_LIMITS,
        caveats={"rename": _NO_RENAME},
        key_length=key_length,
        quote=quote_mysql,
        driver=MysqlDriver(),
        values=MysqlValues(),
        tables=tables,
        views=MysqlViews(),
        staging=MysqlStaging(server),
        rows=MysqlRows(tables),
    )


def _dialect_of(settings: MysqlSettings) -> Dialect:
    return mysql_dialect(settings.key_length)


CAPABILITIES: Final = capabilities_of(mysql_dialect())
PREFLIGHT: Final = SqlPreflight(_dialect_of)
_QUESTION: Final = "SELECT CONCAT(VERSION(), IF(@@GLOBAL.local_infile, '', ' without local_infile'))"
_WITHOUT: Final = "without local_infile"


def open_target(config: Config, _spark: SparkEngine, _store: StateStore) -> SqlTarget:
    """Open the MySQL or MariaDB target that a config describes."""
    return open_sql(_dialect_of(cast("MysqlSettings", config.target)), config)


def place_of(settings: MysqlSettings, table: TableId) -> str:
    """Return the server, database and name of a source table's target table, for display."""
    return shown_place(mysql_dialect(), settings, table)


def try_target(settings: MysqlSettings) -> str:
    """Connect, and return a text with the server's version.

    Raises:
        ConfigError: the server cannot be used, or does not allow LOAD DATA LOCAL.
    """
    endpoint = endpoint_of(settings)
    answer = try_connection(mysql_dialect(), endpoint, _QUESTION)
    if answer.endswith(_WITHOUT):
        raise ConfigError(
            f"The server at target.url ({endpoint.shown}) does not allow LOAD DATA LOCAL. Set the server's "
            "variable local_infile to 1."
        )
    return f"{answer}, allows LOAD DATA LOCAL"
