"""MySQL and MariaDB tables: LOAD DATA LOCAL from the executors, one transaction for rows and progress."""

from __future__ import annotations

import re
import ssl
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from tidesink.config.fields import ChangeKind
from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.events import TableId, fold_name
from tidesink.sinks.targets.sharing import quote_mysql, text_mysql
from tidesink.sinks.targets.sql.columns import KEY_COLLATIONS, MYSQL_LIMITS
from tidesink.sinks.targets.sql.dialect import Counts, ForView, Merge, no_table
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
    default_of_key,
    error_of,
    fault_of,
    is_computed,
    merged,
    only_unique,
    prepare_ledger,
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
from tidesink.typemap.render_sql import KEY_LENGTH, Database, FoundType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.config import Config
    from tidesink.config.targets import MysqlSettings
    from tidesink.sinks.state.progress import StateStore


# For rows that are staged once and read once a table without transactions costs half; the first there is.
# Never MyISAM: servers with GTIDs, as MySQL's are wherever they are replicated, refuse it in transactions.
_STAGING_ENGINES: Final = MappingProxyType({"ARIA": "Aria TRANSACTIONAL=0", "INNODB": "InnoDB"})
# A server may refuse tables without a primary key (sql_require_primary_key, innodb_force_primary_key).
_KEY_OF: Final = {"InnoDB": f"{ROW} bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY, "}
_WIDTH: Final = re.compile(r"((?:small|medium|big)?int)\([0-9]+\)")
_BYTES: Final = frozenset({"longblob", "varbinary", "mediumblob", "blob"})
# What SHOW COLUMNS knows as well.
_NO_TABLES: Final = frozenset({"VIEW", "SYSTEM VIEW", "SEQUENCE"})
_NO_TABLE: Final = frozenset({"1146", "1049"})
_LONGEST_COMMENT: Final = 1000
_NO_RENAME: Final = (
    "columns are renamed by MySQL 8.0 and MariaDB 10.5.2 and newer: an older server refuses the statement "
    "(error 1064), and schema-changes: rename must be pause or ignore there"
)
# What an added column says, with its type, until its default is taken away again: that or any other MODIFY
# takes the words away as well.
_FILLING: Final = "tidesink fills rows from before this column of type "
_TYPE: Final = re.compile(r"[a-z]+( [a-z]+)*(\([0-9, ]+\))?( [a-z]+)*")


# A value that does not fit is an error and never changed, nor is a 0 the next number of an AUTO_INCREMENT;
# what LOAD DATA changed is shown, whatever the server tells others; instants are written in UTC.
_SESSION: Final = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO', sql_notes = 1, max_error_count = 64, "
    f"time_zone = '+00:00', innodb_lock_wait_timeout = {LOCK_SECONDS}, lock_wait_timeout = {LOCK_SECONDS}"
)
# The longest that a statement of ours may take (s); a server that is gone is noticed by the socket before.
_READ_SECONDS: Final = 3600
# Older ones send everything in plain text under tls.mode prefer, and under the stricter modes where a server,
# or whoever stands before it, says that it has no TLS.
_OLDEST: Final = (1, 2)


def pymysql() -> Any:
    """The driver.

    Raises:
        ConfigError: it is not installed, or it is too old to keep to ``tls.mode``.
    """
    try:
        import pymysql as driver
    except ImportError as error:
        raise ConfigError(
            "a mysql target needs PyMySQL: pip install 'tidesink[mysql]', on the executors too"
        ) from error
    if driver.VERSION[:2] < _OLDEST:
        raise ConfigError(
            f"PyMySQL {driver.VERSION_STRING} falls back to plain text whatever target.tls.mode says: "
            "pip install 'pymysql>=1.2', on the executors too"
        )
    return driver


def connect(endpoint: Endpoint, *, loads: bool = False) -> Any:
    """A connection; statements are in transactions. ``loads``: it may send a file of ours.

    Raises:
        TransientTargetError: it cannot be made now; says why.
        TargetError: it cannot be made as configured.
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
    """MariaDB's is of transactions; MySQL has that of every silence alone. Each server reads its comment."""
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
    """LOAD DATA LOCAL of CSV into a staging table; how many rows the server took.

    The driver reads a file by its name: the lines stand in one of the task's own until they are loaded. Only
    then is there a connection, which MySQL would close while Spark takes its time for the lines. The file
    is in no directory, so that a killed task leaves no rows behind: its name is that of our descriptor.

    Raises:
        LoadRefusedError: the server changed a value, of which LOCAL makes a warning in any mode.
    """
    with TemporaryFile() as file:
        for chunk in chunks:
            file.write(chunk)
        file.seek(0)  # flushes; where /dev/fd gives the same open file (macOS), it is read from here
        with kept_connection(endpoint, partial(connect, loads=True), alive) as connection:
            rows = _loaded(connection, statement, f"/dev/fd/{file.fileno()}")
            connection.commit()
    return rows


def read(endpoint: Endpoint, query: str) -> Iterator[Sequence[tuple[Any, ...]]]:
    """The rows of a query, as the server sends them: they are never all here."""
    from pymysql.cursors import SSCursor

    with kept_connection(endpoint, connect, alive) as connection, connection.cursor(SSCursor) as cursor:
        cursor.execute(query)
        while some := cursor.fetchmany(ROWS_AT_ONCE):
            yield some
        connection.rollback()


def alive(connection: Any) -> bool:
    """Whether a connection answers."""
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


class MysqlDialect:
    """The side of MySQL and MariaDB of the SQL targets; remembers what the server is."""

    database: Database = "mysql"
    limits = MYSQL_LIMITS
    caveats: Mapping[ChangeKind, str] = MappingProxyType({"rename": _NO_RENAME})
    staging_engines: Mapping[str, str] = _STAGING_ENGINES
    ddl_commits = True
    insert_missing = "INSERT IGNORE INTO {}"
    hex_prefix = ""
    nul_refused = False

    load = staticmethod(load)
    read = staticmethod(read)
    code_of = staticmethod(code_of)
    fault_of = staticmethod(fault_of)
    missing_grants = staticmethod(mysql_grants)
    quote = staticmethod(quote_mysql)
    connect = staticmethod(connect)
    alive = staticmethod(alive)
    error_of = staticmethod(error_of)
    check_kept = staticmethod(check_kept)

    def __init__(self, key_length: int = KEY_LENGTH) -> None:
        """``key_length``: of a new key's texts (in characters) and bytes whose length nothing tells."""
        self.key_length = key_length
        self._collation = ""
        self._engine = ""

    @cached_property
    def errors(self) -> tuple[type[BaseException], ...]:
        """PyMySQL's, and those of its socket."""
        return (pymysql().err.MySQLError, OSError)

    def is_of_rights(self, code: str) -> bool:
        """The server has a number for each kind of object."""
        return code in RIGHTS

    def literal(self, text: str, found: str) -> str:
        """A value as a literal, which the column's type reads."""
        binary = found.partition("(")[0] in _BYTES
        return f"x'{text}'" if binary else text_mysql(text)

    def text_of(self, column: str, found: str) -> str:
        """Of a floating-point number the double that it is: as a text a FLOAT has six digits.

        A text is one of the same collation, whatever the column's is: a UNION refuses two.
        """
        kind = found.partition("(")[0]
        if kind in _BYTES or kind in ("binary", "tinyblob"):
            return f"HEX({column})"
        if kind in ("float", "double"):
            return f"{column} + 0e0"
        if kind in ("longtext", "mediumtext", "text", "varchar"):
            return f"CONVERT({column} USING utf8mb4)"
        return native_text(column, found, "mysql") or f"CAST({column} AS CHAR)"

    def prepare_schema(self, cursor: Any, place: Place) -> None:
        """The database and its ledger; what is there is not touched, and needs no right to make it."""
        self._look(cursor)
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
            prepare_ledger(cursor, location, self._names(cursor, location), columns, self._collation)

    def present(self, cursor: Any, place: Place) -> dict[str, str]:
        """The columns of the table, without the display widths of integers; a view is refused."""
        columns = self._columns(cursor, place.location)
        if columns and self._is_view(cursor, place):
            raise no_table(place)
        return {
            name: FoundType(
                found if found == "tinyint(1)" else _WIDTH.sub(r"\1", found), charset=_narrow(collation)
            )
            for name, found, collation in columns
        }

    def _is_view(self, cursor: Any, place: Place) -> bool:
        cursor.execute(
            "SELECT TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (place.schema, place.name),
        )
        found = cursor.fetchone()
        return found is not None and found[0] in _NO_TABLES

    def folds_names(self, cursor: Any) -> bool:
        """As ``lower_case_table_names`` says, by the server's file system or its owner's choice."""
        cursor.execute("SELECT @@lower_case_table_names")
        return bool(int(cursor.fetchone()[0]))

    def identity(self, cursor: Any, place: Place) -> str | None:  # noqa: ARG002
        """None: InnoDB's ids and the time of creation change with an ALTER that copies the table."""
        return None

    def check_keys(self, cursor: Any, place: Place, keys: Collection[str]) -> None:
        """See ``sql.mysql_merge``."""
        self._look(cursor)
        check_keys(cursor, place, keys, self._collation)

    def create(self, cursor: Any, place: Place, columns: Sequence[tuple[str, str, bool, str]]) -> None:
        """The table, its primary key and what its columns are at the source."""
        spelt = [
            f"{self._column(name, found, key=key)} COMMENT {text_mysql(comment[:_LONGEST_COMMENT])}"
            for name, found, key, comment in columns
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
        """One ALTER with the defaults for old rows, and one that takes the defaults away again."""
        changes = [
            f"MODIFY COLUMN {self._column(name, found, key=fold_name(name) in keys)}"
            for name, found in widened.items()
        ]
        changes += [
            f"ADD COLUMN {self._column(name, found)}"
            + (f" DEFAULT ({default}) COMMENT {text_mysql(_FILLING + found)}" if default else "")
            for name, (found, default) in added.items()
        ]
        plain = [
            f"MODIFY COLUMN {self._column(name, found)}"
            for name, (found, default) in added.items()
            if default
        ]
        return [f"ALTER TABLE {location} {', '.join(part)}" for part in (changes, plain) if part]

    def retyped(
        self,
        location: str,
        name: str,
        found: str,  # noqa: ARG002  (MODIFY converts from any type)
        wanted: str,
        keys: frozenset[str],
    ) -> list[str]:
        """One ALTER."""
        return self.alter(location, {}, {name: wanted}, keys)

    def left_undone(self, cursor: Any, place: Place) -> list[str]:
        """The second ALTER, for columns whose worker was killed, or cut off, after the first."""
        cursor.execute(
            "SELECT COLUMN_NAME, COLUMN_COMMENT FROM information_schema.COLUMNS "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND COLUMN_COMMENT LIKE %s",
            (place.schema, place.name, f"{_FILLING}%"),
        )
        reported = [(name, comment.removeprefix(_FILLING)) for name, comment in cursor.fetchall()]
        changes = [
            f"MODIFY COLUMN {self._column(name, found)}" for name, found in reported if _TYPE.fullmatch(found)
        ]
        return [f"ALTER TABLE {place.location} {', '.join(changes)}"] if changes else []

    def staging_tables(self, cursor: Any, place: Place) -> list[str]:
        """By their prefix."""
        like = place.staging_prefix.replace("_", "\\_") + "%"
        cursor.execute(f"SHOW TABLES FROM {quote_mysql(place.schema).replace('%', '%%')} LIKE %s", (like,))
        return [name for (name,) in cursor.fetchall()]

    def create_staging(self, cursor: Any, stage: str, columns: Mapping[str, str]) -> None:
        """In the fastest engine there is, its texts compared as keys are."""
        self._look(cursor)
        spelt = ", ".join(f"{name} {found} NULL" for name, found in columns.items())
        cursor.execute(
            f"CREATE TABLE {stage} ({_KEY_OF.get(self._engine, '')}{spelt}) ENGINE={self._engine} "
            f"DEFAULT CHARACTER SET utf8mb4 COLLATE {self._collation}"
        )

    def load_statement(self, stage: str, columns: Sequence[tuple[str, bool]]) -> str:
        """Hex digits become bytes on the way in; the file's name is the statement's one parameter."""
        names = ", ".join(f"@{name}" if hexed else name for name, hexed in columns)
        sets = ", ".join(f"{name} = UNHEX(@{name})" for name, hexed in columns if hexed)
        return (
            f"LOAD DATA LOCAL INFILE %s INTO TABLE {stage.replace('%', '%%')} CHARACTER SET utf8mb4 "
            f"FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' LINES TERMINATED BY '\\n' "
            f"({names})" + (f" SET {sets}" if sets else "")
        )

    def merge(self, cursor: Any, merge: Merge) -> Counts:
        """See ``mysql_merge``."""
        return merged(cursor, merge, only_key=self._looked_at(cursor, merge))

    def _looked_at(self, cursor: Any, merge: Merge) -> bool:
        """Whether the key is the one unique index, until the commit."""
        # A DELETE with aliases and a temporary table want a database chosen, although all names are whole.
        cursor.execute(f"USE {quote_mysql(merge.place.schema)}")
        # This look keeps the table's schema as it is until the commit.
        cursor.execute(f"SELECT 1 FROM {merge.target} LIMIT 1")  # noqa: S608
        cursor.fetchall()
        keys = {fold_name(column.target) for column in merge.keys}
        self.check_keys(cursor, merge.place, keys)
        return only_unique(cursor, merge.place, keys)

    def required(self, cursor: Any, place: Place) -> dict[str, str]:
        """From SHOW COLUMNS."""
        cursor.execute(f"SHOW COLUMNS FROM {place.location}")
        return {name: found for name, found, null, *_ in cursor.fetchall() if null != "YES"}

    def nullable(self, cursor: Any, place: Place) -> list[str]:
        """From SHOW COLUMNS, too."""
        cursor.execute(f"SHOW COLUMNS FROM {place.location}")
        found = [(row[0], row[2], row[-1]) for row in cursor.fetchall()]
        return [name for name, null, extra in found if null == "YES" and not is_computed(extra)]

    def optional(self, place: Place, columns: Mapping[str, str]) -> str:
        """A column is spelt as a whole."""
        changes = ", ".join(f"MODIFY {quote_mysql(name)} {found} NULL" for name, found in columns.items())
        return f"ALTER TABLE {place.location} {changes}"

    def view_text(self, cursor: Any, place: Place, name: str) -> str | None:
        """As information_schema has it."""
        cursor.execute(
            "SELECT v.VIEW_DEFINITION FROM information_schema.TABLES t "
            "LEFT JOIN information_schema.VIEWS v USING (TABLE_SCHEMA, TABLE_NAME) "
            "WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME = %s",
            (place.schema, name),
        )
        found = cursor.fetchone()
        return None if found is None else str(found[0] or "")

    def view_statements(self, view: str, query: str) -> list[str]:
        """With the rights of whoever made it: readers need none on the table."""
        return [f"CREATE OR REPLACE VIEW {view} AS {query}"]

    def view_in_the_way(
        self,
        cursor: Any,  # noqa: ARG002
        view: str,  # noqa: ARG002
    ) -> tuple[list[str], list[ForView]]:
        """Nothing: MySQL looks at a view's columns when it is read."""
        return [], []

    def delete_some(
        self,
        cursor: Any,
        location: str,
        keys: Sequence[str],  # noqa: ARG002  (DELETE has a LIMIT of its own)
        where: str,
        *,
        most: int,
    ) -> int:
        """DELETE … LIMIT."""
        return int(cursor.execute(f"DELETE FROM {location} WHERE {where} LIMIT {most}"))  # noqa: S608

    def hex_of(self, expression: str) -> str:
        """HEX."""
        return f"HEX({expression})"

    def truncate(self, cursor: Any, location: str, mark: str | None, *, only: str = "true") -> int:
        """DELETE counts, and is part of the transaction, as TRUNCATE is not."""
        if mark is None:
            cursor.execute(f"DELETE FROM {location} WHERE {only}")  # noqa: S608
        else:
            cursor.execute(f"UPDATE {location} SET {mark} = 1 WHERE NOT ({mark} <=> 1) AND {only}")  # noqa: S608
        return int(cursor.rowcount)

    def _column(self, name: str, found: str, *, key: bool = False) -> str:
        words = f"{quote_mysql(name)} {found}"
        if key and found.startswith("varchar"):
            words += f" CHARACTER SET utf8mb4 COLLATE {self._collation}"
        return words + (f" NOT NULL{default_of_key(found)}" if key else " NULL")

    def _columns(self, cursor: Any, location: str) -> list[tuple[str, str, str | None]]:
        try:
            cursor.execute(f"SHOW FULL COLUMNS FROM {location}")
        except pymysql().err.MySQLError as exc:
            if code_of(exc) in _NO_TABLE:
                return []
            raise
        return [(row[0], row[1], row[2]) for row in cursor.fetchall()]

    def _names(self, cursor: Any, location: str) -> dict[str, str]:
        return {name: found for name, found, _ in self._columns(cursor, location)}

    def _look(self, cursor: Any) -> None:
        """What this server has of collations and engines."""
        if self._engine:
            return
        cursor.execute(
            "SELECT COLLATION_NAME FROM information_schema.COLLATIONS WHERE COLLATION_NAME IN (%s, %s)",
            KEY_COLLATIONS,
        )
        found = cursor.fetchone()
        if found is None:
            raise SchemaRefusedError(
                "the server has no collation that tells texts apart by every byte: MySQL 8.0.17 and MariaDB "
                "10.2 have one"
            )
        cursor.execute("SELECT ENGINE FROM information_schema.ENGINES WHERE SUPPORT IN ('YES', 'DEFAULT')")
        engines = {row[0].upper() for row in cursor.fetchall()}
        self._collation = found[0]
        self._engine = next(word for name, word in self.staging_engines.items() if name in engines)


def _narrow(collation: str | None) -> str | None:
    """The character set of a collation that does not have every character; None for the others."""
    charset = (collation or "").partition("_")[0]
    return None if charset in ("", "utf8mb4", "binary") else charset


def _dialect_of(settings: MysqlSettings) -> MysqlDialect:
    return MysqlDialect(settings.key_length)


CAPABILITIES: Final = capabilities_of(MysqlDialect())
PREFLIGHT: Final = SqlPreflight(_dialect_of)
_QUESTION: Final = "SELECT CONCAT(VERSION(), IF(@@GLOBAL.local_infile, '', ' without local_infile'))"
_WITHOUT: Final = "without local_infile"


def open_target(config: Config, _spark: SparkSession, _store: StateStore) -> SqlTarget:
    """The MySQL tables of a config."""
    return open_sql(_dialect_of(cast("MysqlSettings", config.target)), config)


def place_of(settings: MysqlSettings, table: TableId) -> str:
    """A table's server, database and name."""
    return shown_place(MysqlDialect(), settings, table)


def try_target(settings: MysqlSettings) -> str:
    """The server's version; raises ConfigError where it cannot be used."""
    endpoint = endpoint_of(settings)
    answer = try_connection(MysqlDialect(), endpoint, _QUESTION)
    if answer.endswith(_WITHOUT):
        raise ConfigError(
            f"target.url {endpoint.shown} takes no LOAD DATA LOCAL: set its variable local_infile to 1"
        )
    return f"{answer}, takes LOAD DATA LOCAL"
