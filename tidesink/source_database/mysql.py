"""TiDB, MySQL and MariaDB as the source database: columns, keys, and the expressions that queries select.

A value's selected text is the same as in canal-json, so one reader (``typemap.arrow.from_text``) can read
both. A session's time zone is UTC, and its ``sql_mode`` is empty, so that zero dates can be compared and CHAR
is not padded. All other session variables that can change values or omit rows are set as well (``_PINS``).
SQLAlchemy quotes identifiers, and values are parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from tidesink.errors import ConfigError
from tidesink.events import LOGICAL_BITS, Column, ColumnType, TableId, Value
from tidesink.source_database.base import (
    IS_REPLICA,
    NO_AS_OF,
    NO_POSITION,
    REPLICA,
    KeyTexts,
    StoredTable,
    ValueReader,
    code_of,
    column_of,
    order_digest,
    plain,
    table_of,
)
from tidesink.typemap.mysql_types import parse_sql_type
from tidesink.typemap.table import row_of
from tidesink.typemap.target_schema import ROW_ID, ROW_KEY_COLUMNS, TABLE_ID
from tidesink.typemap.values import text_reader, text_writer

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import ColumnElement, Connection, Select

_log = structlog.get_logger("tidesink.worker")

RANGE_OPTIONS: Final[Mapping[str, Any]] = {}
# Error numbers for denied access, and for a missing database.
REFUSED: Final = (1044, 1045, 1049, 1142, 1143, 1227, 1698)
# Error numbers for a missing table, and for a missing database.
NO_TABLE: Final = (1049, 1109, 1146)
NO_COLUMN: Final = (1054,)
NO_VARIABLE: Final = 1193
# TiDB's error numbers for a timestamp that is older than the history that garbage collection keeps.
TOO_OLD: Final = (8055, 9006)
_PRIMARY: Final = "PRIMARY"
# Error numbers for a text that is invalid in the column's character set or type.
OF_VALUE: Final = (1267, 1292, 1300, 1366, 1525, 3854, 3988)
# Types that are selected as numbers.
_NUMBERED: Final = ("integer", "unsigned64", "bit", "enum", "set")
_TYPED: Final[Mapping[str, Callable[[str], Value]]] = {"decimal": Decimal, "float32": float, "float64": float}


class _Pin(NamedTuple):
    """The required value of a session variable.

    ``right``: acceptable values as in SHOW VARIABLES. ``sql``: the value to set otherwise.
    """

    right: tuple[str, ...]
    sql: str


# Session variables with which a server can omit rows, or return rows other than the current ones. A server's
# defaults for new sessions (SET GLOBAL, init_connect) may have any value. Sources: "Server System Variables"
# of MySQL 8.4 and of MariaDB 11, "System Variables" of TiDB 8.5. Variables that a server does not have are
# skipped, and variables that already have an acceptable value are not set. Not listed, because no statement
# of this package depends on them: limits that raise an error when they are exceeded (max_join_size), formats
# of dates and messages, and variables of the optimizer and of writes.
_PINS: Final[Mapping[str, _Pin]] = {
    "sql_big_selects": _Pin(("ON",), "ON"),
    "sql_auto_is_null": _Pin(("OFF",), "OFF"),
    "sql_quote_show_create": _Pin(("ON",), "ON"),
    # MySQL: a time limit in milliseconds, the secondary engine of HeatWave, and primary keys that MySQL adds
    # to tables.
    "max_execution_time": _Pin(("0",), "0"),
    "use_secondary_engine": _Pin(("OFF",), "OFF"),
    "show_gipk_in_create_table_and_information_schema": _Pin(("ON",), "ON"),
    "show_old_temporals": _Pin(("OFF",), "OFF"),
    # MySQL's group replication: a read waits until the transactions that the group certified are applied on
    # this server.
    "group_replication_consistency": _Pin(("BEFORE", "BEFORE_AND_AFTER"), "BEFORE"),
    # MariaDB: a time limit in seconds, and reads of system-versioned tables as of now.
    "max_statement_time": _Pin(("0", "0.000000"), "0"),
    "system_versioning_asof": _Pin(("DEFAULT",), "DEFAULT"),
    # TiDB: reads of old data, and reads that ignore locks.
    "tidb_snapshot": _Pin(("",), "''"),
    "tidb_read_staleness": _Pin(("", "0"), "0"),
    "tidb_enable_external_ts_read": _Pin(("OFF", "0"), "OFF"),
    "tidb_low_resolution_tso": _Pin(("OFF", "0"), "OFF"),
    "tidb_read_consistency": _Pin(("STRICT",), "'strict'"),
}
# Galera, if wsrep_on is ON: a SELECT waits for certified transactions, as with group_replication_consistency.
# Each odd value has this effect.
_GALERA: Final[Mapping[str, _Pin]] = {
    "wsrep_sync_wait": _Pin(tuple(str(odd) for odd in range(1, 16, 2)), "1"),
    "wsrep_dirty_reads": _Pin(("OFF",), "OFF"),
}
_ISOLATION: Final = ("transaction_isolation", "tx_isolation")
_CHARACTER_SETS: Final = ("character_set_client", "character_set_connection", "character_set_results")
_READ_ONLY: Final = ("read_only", "super_read_only", "innodb_read_only")
_SHOWN: Final = (*_PINS, *_GALERA, *_ISOLATION, *_CHARACTER_SETS, *_READ_ONLY, "wsrep_on")
_VARIABLES: Final = "tidesink.variables"
_OTHER_CHARACTERS: Final = (
    "source.database: the session's character set is {}, which loses characters. Add ?charset=utf8mb4 to the "
    "URL."
)
# "You have an error in your SQL syntax", "This version of MySQL doesn't yet support".
_UNKNOWN_STATEMENT: Final = (1064, 1235)
# Error numbers for a denied statement. 1401 (XAER_RMERR) is MySQL's answer to XA RECOVER without
# XA_RECOVER_ADMIN.
_NOT_ALLOWED: Final = (1142, 1227, 1401)
_HIDDEN_XA: Final = (
    "Applications use XA transactions in the source database, and the user of source.database is not "
    "allowed to list open XA transactions (XA RECOVER). Their changes are in Kafka before queries return "
    "them, so a row could be lost. Grant the user XA_RECOVER_ADMIN."
)
# Counters of XA statements since the server's start. A transaction that was prepared before the start is
# counted by its COMMIT or ROLLBACK.
_XA_COUNTERS: Final = tuple(f"Com_xa_{word}" for word in ("start", "end", "prepare", "commit", "rollback"))
# Uptime in seconds after which open XA transactions from before the server's start are unlikely.
_YOUNG: Final = 24 * 3600
_IS_YOUNG: Final = (
    "The source database's server started less than a day ago, and the user of source.database is not "
    "allowed to list XA transactions (XA RECOVER). An open transaction that was prepared before the "
    "server's start would not be noticed"
)
_IS_REPLICA: Final = (
    "The source database's server is a replica, which does not count the XA transactions that it applies. "
    "The user of source.database is not allowed to list open XA transactions (XA RECOVER)"
)
_GRANT: Final = "If applications use XA, grant the user XA_RECOVER_ADMIN"
_STOPPED_CHANNELS: Final = (
    "The source database's server accepts writes and has replication channels, all of which are stopped. "
    "It is treated as the primary server. If it is a replica whose replication was stopped, stop the "
    "worker and set source.database to the address of the primary server. Otherwise remove the channels "
    "(RESET REPLICA ALL)."
)


def begin_session(connection: Connection) -> None:
    """Set session variables so that queries return canal-json's texts, and read all rows in their current
    state.

    Raises:
        ConfigError: The session's character set is not utf8mb4.
    """
    if connection.dialect.name not in ("mysql", "mariadb"):
        return
    # SQLAlchemy quotes identifiers according to the server's sql_mode, which it reads on its first
    # connection.
    quotes = "ANSI_QUOTES" if connection.dialect.identifier_preparer.initial_quote == '"' else ""
    # This must be the first statement, because the limit of rows also applies to SHOW.
    connection.exec_driver_sql(
        f"SET time_zone = '+00:00', sql_mode = '{quotes}', sql_select_limit = 18446744073709551615"
    )
    names = ", ".join(f"'{name}'" for name in _SHOWN)
    shown = connection.exec_driver_sql(f"SHOW VARIABLES WHERE Variable_name IN ({names})")
    variables = {plain(name).lower(): plain(value).upper() for name, value in shown}
    connection.info[_VARIABLES] = variables
    pins = {**_PINS, **(_GALERA if variables.get("wsrep_on") == "ON" else {})}
    assigned = [
        f"SESSION {name} = {pin.sql}"
        for name, pin in pins.items()
        if name in variables and variables[name] not in pin.right
    ]
    if assigned:
        connection.exec_driver_sql(f"SET {', '.join(assigned)}")
    if any(variables.get(name, "REPEATABLE-READ") != "REPEATABLE-READ" for name in _ISOLATION):
        connection.exec_driver_sql("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    for name in _CHARACTER_SETS:
        if variables.get(name, "UTF8MB4") != "UTF8MB4":
            raise ConfigError(_OTHER_CHARACTERS.format(variables[name].lower()), key="source.database")


def check_current(connection: Connection) -> None:
    """Check that the server is not a replica, which may lack changes that are already in Kafka.

    A server is treated as a replica if it is read-only, or if one of its channels replicates from another
    server. Channels are visible with REPLICATION CLIENT (MariaDB: SLAVE MONITOR); in MariaDB a counter shows
    them without it. A server that accepts writes and has only stopped channels was usually promoted, so a
    warning is logged. Members of a replication group have channels of the group, which are ignored. TiDB has
    no replicas.

    Raises:
        ConfigError: The server is a replica.
    """
    variables = connection.info[_VARIABLES]
    if _is_tidb(connection):
        return
    if any(variables.get(name, "OFF") not in ("OFF", "0") for name in _READ_ONLY) or _replicates(connection):
        raise ConfigError(REPLICA, key="source.database")


def _is_tidb(connection: Connection) -> bool:
    return "tidb_snapshot" in connection.info[_VARIABLES]


def _replicates(connection: Connection) -> bool:
    from sqlalchemy.exc import DBAPIError

    is_mariadb = getattr(connection.dialect, "is_mariadb", False)
    words = ("SHOW ALL SLAVES STATUS",) if is_mariadb else ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
    for statement in words:
        try:
            rows = connection.exec_driver_sql(statement).mappings().all()
        except DBAPIError as error:
            if code_of(error) not in (*_UNKNOWN_STATEMENT, *_NOT_ALLOWED):
                raise
        else:
            statuses = [{name.lower(): plain(value) for name, value in row.items()} for row in rows]
            channels = [
                row for row in statuses if not row.get("channel_name", "").startswith("group_replication_")
            ]
            if any(map(_runs, channels)):
                return True
            if channels:
                _warn(connection, _STOPPED_CHANNELS)
            return False
    return _counted(connection, "Slaves_running") > 0


def _runs(channel: Mapping[str, str]) -> bool:
    """Returns True if a thread of a replication channel runs or tries to connect.

    Unknown states count as running.
    """
    threads = (f"{word}_{thread}_running" for word in ("replica", "slave") for thread in ("io", "sql"))
    return any(channel.get(thread, "No").lower() not in ("no", "") for thread in threads)


def _warn(connection: Connection, text: str) -> None:
    url = connection.engine.url
    _warned(f"{url.host}:{url.port}", text)


@cache
def _warned(server: str, text: str) -> None:
    """Log a warning about a server, once per process."""
    _log.warning("source database", server=server, reason=text)


def _counted(connection: Connection, *names: str) -> int:
    """Returns the sum of counters of the server (SHOW GLOBAL STATUS).

    Missing counters are 0. It needs no privilege.
    """
    listed = ", ".join(f"'{name}'" for name in names)
    counters = connection.exec_driver_sql(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({listed})")
    return sum(int(plain(row[1])) for row in counters.all())


def open_transactions(connection: Connection) -> frozenset[str]:
    """Returns the XA transactions that are prepared, but neither committed nor rolled back.

    Their rows are written to the binary log at PREPARE (MySQL 5.7.7, MariaDB 10.5), and so are in Kafka.
    Queries do not return these rows before XA COMMIT. TiDB has no XA. If the user may not list XA
    transactions and the server's counters are not reliable, a warning is logged.

    Raises:
        ConfigError: The user may not list XA transactions, but sessions used XA since the server's start.
    """
    prepared = _prepared(connection)
    if prepared is None and _counted(connection, *_XA_COUNTERS):
        raise ConfigError(_HIDDEN_XA, key="source.database")
    if prepared is None and (reason := _uncounted(connection)):
        _warn(connection, f"{reason}. {_GRANT}")
    return prepared or frozenset()


def _prepared(connection: Connection) -> frozenset[str] | None:
    """Returns the prepared XA transactions, or None if the user may not list them."""
    from sqlalchemy.exc import DBAPIError

    if _is_tidb(connection):
        return frozenset()
    form = "FORMAT='SQL'" if getattr(connection.dialect, "is_mariadb", False) else "CONVERT XID"
    try:
        rows = connection.exec_driver_sql(f"XA RECOVER {form}").all()
    except DBAPIError as error:
        if code_of(error) in _NOT_ALLOWED:
            return None
        if code_of(error) not in _UNKNOWN_STATEMENT:
            raise
        return frozenset()
    return frozenset(" ".join(map(plain, row)) for row in rows)


def _uncounted(connection: Connection) -> str:
    """Returns the reason why XA transactions may be open although their counters are 0.

    Returns an empty text if open XA transactions are unlikely.
    """
    if connection.info.get(IS_REPLICA):
        return _IS_REPLICA
    return _IS_YOUNG if _counted(connection, "Uptime") < _YOUNG else ""


def begin_at_position(connection: Connection) -> int:
    """Begin a transaction of TiDB. Returns the TSO as of which it reads.

    This relies on REPEATABLE READ, TiDB's default isolation level. With READ COMMITTED each statement reads
    as of a later TSO (TiDB's documentation, "TiDB Transaction Isolation Levels").

    Raises:
        ConfigError: The database is not TiDB.
    """
    from sqlalchemy.exc import DBAPIError

    begin_snapshot(connection)
    try:
        return int(plain(connection.exec_driver_sql("SELECT @@tidb_current_ts").scalar_one()))
    except DBAPIError as error:
        if code_of(error) != NO_VARIABLE:
            raise
        raise ConfigError(NO_POSITION) from error


def begin_snapshot(connection: Connection) -> None:
    """Begin a transaction whose statements all read the same state of the database."""
    connection.exec_driver_sql("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    connection.exec_driver_sql("START TRANSACTION")


# Storage engines in which all statements of a transaction read the same state. TiDB reports InnoDB for its
# tables.
_TRANSACTIONAL: Final = ("innodb", "rocksdb")


def counted_rows(connection: Connection, table: TableId, query: Select[Any]) -> int | None:
    """Returns the number of rows that a query finds.

    Returns None if the table's storage engine has no transactions.
    """
    import sqlalchemy as sa

    columns = sa.table(
        "tables", *map(sa.column, ("engine", "table_schema", "table_name")), schema="information_schema"
    ).c
    engine = (
        sa.select(columns.engine)
        .where(columns.table_schema == table.schema)
        .where(columns.table_name == table.name)
    )
    if plain(connection.execute(engine).scalar()).lower() not in _TRANSACTIONAL:
        return None
    count = query.with_only_columns(sa.func.count(), maintain_column_froms=True)
    return int(connection.execute(count).scalar_one())


def tidb_as_of(connection: Connection, commit_ts: int) -> None:
    """Make a TiDB session read as of a commit_ts."""
    from sqlalchemy import text

    connection.execute(text("SET @@tidb_snapshot = :ts"), {"ts": commit_ts})


def read_as_of(connection: Connection, commit_ts: int) -> None:
    """Make a TiDB session read as of a commit_ts, including the tables and columns of that time.

    Raises:
        ConfigError: The database is not TiDB.
    """
    from sqlalchemy.exc import DBAPIError

    try:
        tidb_as_of(connection, commit_ts)
    except DBAPIError as error:
        if code_of(error) != NO_VARIABLE:
            raise
        raise ConfigError(NO_AS_OF) from error


def stored_columns(connection: Connection, table: TableId) -> dict[str, ColumnType]:
    """Returns the types of a table's columns in order, without virtual columns, which TiCDC does not send.

    Returns an empty mapping if the table does not exist.
    """
    return {column.name: column.type for column in _columns(connection, table) if not column.virtual}


def _columns(connection: Connection, table: TableId) -> list[Column]:
    import sqlalchemy as sa

    asked = ("column_name", "column_type", "extra", "is_nullable")
    places = ("table_schema", "table_name", "ordinal_position")
    columns = sa.table("columns", *map(sa.column, (*asked, *places)), schema="information_schema").c
    query = sa.select(*(columns[name] for name in asked)).order_by(columns.ordinal_position)
    query = query.where(columns.table_schema == table.schema).where(columns.table_name == table.name)
    return [
        Column(
            plain(name),
            _type(plain(sql)),
            nullable=plain(nullable).upper() == "YES",
            virtual="VIRTUAL" in plain(extra).upper(),
        )
        for name, sql, extra, nullable in connection.execute(query)
    ]


def stored_table(connection: Connection, table: TableId) -> StoredTable | None:
    """Returns a table of the database, or None if there is no table with this name."""
    columns = _columns(connection, table)
    if not columns:
        return None
    types, virtual = (
        {column.name: column.type for column in columns if column.virtual is kind} for kind in (False, True)
    )
    required = frozenset(column.name for column in columns if not column.nullable)
    keys = _keys(connection, table)
    constants = {} if _PRIMARY in keys else row_key_constants(connection, table)
    row_key = {column.name: column.type for column in ROW_KEY_COLUMNS} if constants else {}
    key = keys.get(_PRIMARY) or next(iter(keys.values()), (ROW_ID,) if constants else ())
    return StoredTable(
        types,
        key,
        *_size(connection, table),
        virtual,
        required | row_key.keys(),
        row_key=row_key,
        constants=constants,
        order=_order(connection, table, key),
    )


def uses_xa(connection: Connection) -> bool:
    """Returns True if applications have used XA transactions, or if an XA transaction is open.

    The server's counters show the use of XA since its start, to every user.

    Raises:
        ConfigError: The user may not list XA transactions, and the counters are not reliable.
    """
    if _is_tidb(connection):
        return False
    if _counted(connection, *_XA_COUNTERS):
        return True
    prepared = _prepared(connection)
    if prepared is None and (reason := _uncounted(connection)):
        raise ConfigError(
            f"{reason}. A cut could contain only a part of such a transaction. {_GRANT}, which allows cuts "
            "again if no XA transaction is open. Otherwise remove cuts from the config.",
            key="source.database",
        )
    return bool(prepared)


def _order(connection: Connection, table: TableId, key: Sequence[str]) -> str:
    """Returns a digest of what determines the sort order of the key. An ENUM's type contains its members."""
    import sqlalchemy as sa

    names = ("column_name", "column_type", "collation_name")
    columns = sa.table(
        "columns", *map(sa.column, (*names, "table_schema", "table_name")), schema="information_schema"
    ).c
    query = sa.select(*(columns[name] for name in names))
    query = query.where(columns.table_schema == table.schema).where(columns.table_name == table.name)
    definitions = {
        plain(name): (plain(sql), plain(collation)) for name, sql, collation in connection.execute(query)
    }
    return order_digest([(name, *definitions.get(name, ())) for name in key])


def create_statement(connection: Connection, table: TableId) -> tuple[str, int] | None:
    """Returns a table's CREATE TABLE statement, and a commit_ts up to which it contains all changes.

    Returns None if the table does not exist or is a view. The statement may contain later changes too,
    because the commit_ts is read first. The commit_ts comes from TiDB or from the server's clock, and is the
    first one of its millisecond. A DDL event without a commit_ts also gets the first commit_ts of its
    millisecond. So a later DDL event of the same millisecond does not count as older than the statement.
    """
    from sqlalchemy.exc import DBAPIError

    try:
        since = begin_at_position(connection) >> LOGICAL_BITS << LOGICAL_BITS
    except ConfigError:
        now = connection.exec_driver_sql("SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS CHAR)").scalar_one()
        since = int(float(plain(now))) << LOGICAL_BITS
    name = connection.dialect.identifier_preparer.format_table(table_of(table))
    try:
        row = connection.exec_driver_sql(f"SHOW CREATE TABLE {name}").one()
    except DBAPIError as error:
        if code_of(error) in NO_TABLE:
            return None
        raise
    return (plain(row[1]), since) if row._fields[0].lower() == "table" else None


def row_key_constants(connection: Connection, table: TableId) -> Mapping[str, str]:
    """Returns the table's id in TiDB, the column of its row key that is the same in all rows.

    Returns an empty mapping if the table has no such row key, or is partitioned: then each partition has its
    own id.

    TiDB's documentation of ``INFORMATION_SCHEMA.TABLES`` describes the columns that are read. Rows that are
    not clustered by a primary key have a column ``_tidb_rowid``, which the catalog does not list.
    """
    import sqlalchemy as sa
    from sqlalchemy.exc import DBAPIError

    asked = ("tidb_table_id", "tidb_pk_type", "create_options")
    names = (*asked, "table_schema", "table_name")
    columns = sa.table("tables", *map(sa.column, names), schema="information_schema").c
    query = sa.select(*(columns[name] for name in asked))
    query = query.where(columns.table_schema == table.schema).where(columns.table_name == table.name)
    try:
        row = connection.execute(query).one_or_none()
    except DBAPIError as error:
        if code_of(error) not in NO_COLUMN:
            raise
        return {}  # not TiDB
    if row is None or plain(row[1]) != "NONCLUSTERED" or "partitioned" in plain(row[2]).lower():
        return {}
    return {TABLE_ID: str(int(row[0]))}


def _keys(connection: Connection, table: TableId) -> dict[str, tuple[str, ...]]:
    """Returns the columns of each unique key whose columns are NOT NULL, by the name of its index."""
    import sqlalchemy as sa

    names = ("index_name", "non_unique", "column_name", "nullable", "seq_in_index", "sub_part")
    places = ("table_schema", "table_name")
    indexes = sa.table("statistics", *map(sa.column, (*names, *places)), schema="information_schema")
    catalog = indexes.c
    query = sa.select(*(catalog[name] for name in names)).order_by(catalog.index_name, catalog.seq_in_index)
    query = query.where(catalog.table_schema == table.schema).where(catalog.table_name == table.name)
    keys: dict[str, list[str]] = {}
    unusable = set()
    for index, non_unique, column, nullable, _, part in connection.execute(query):
        name = plain(index)
        keys.setdefault(name, []).append(plain(column))
        # Several rows may have the same prefix of a text, or NULL.
        if int(non_unique) or plain(nullable).upper() == "YES" or part is not None or column is None:
            unusable.add(name)
    return {name: tuple(columns) for name, columns in keys.items() if name not in unusable}


def _size(connection: Connection, table: TableId) -> tuple[int, int]:
    import sqlalchemy as sa

    names = ("table_rows", "data_length", "table_schema", "table_name")
    columns = sa.table("tables", *map(sa.column, names), schema="information_schema").c
    query = sa.select(columns.table_rows, columns.data_length)
    query = query.where(columns.table_schema == table.schema).where(columns.table_name == table.name)
    rows, size = connection.execute(query).one()
    return int(rows or 0), int(size or 0)


def selected(name: str, column_type: ColumnType) -> ColumnElement[Any]:
    """Returns the expression that a query selects for a column: a text that no driver converts.

    A binary column is selected as hex digits, and a floating-point number as a double.
    """
    import sqlalchemy as sa
    from sqlalchemy.dialects.mysql import INTEGER

    column, reader = column_of(name), row_of(column_type).reader
    if reader in ("bit", "enum", "set") or column_type.name == "year":
        return sa.cast(sa.cast(column, INTEGER(unsigned=True)), sa.CHAR)
    if reader in ("float32", "float64"):
        # Some servers print a FLOAT with only six digits, but a DOUBLE always with all digits.
        return column + sa.literal_column("0e0")
    if reader == "binary":
        return sa.func.hex(column)
    if reader == "text" and column_type.name not in ("json", "vector"):
        return column
    return sa.cast(column, sa.CHAR)


def compared(name: str, column_type: ColumnType) -> ColumnElement[Any]:
    """Returns the expression of a column for comparisons. A FLOAT is compared as a double."""
    import sqlalchemy as sa

    column = column_of(name)
    return column + sa.literal_column("0e0") if row_of(column_type).reader == "float32" else column


def parameter_of(text: str | None, column_type: ColumnType) -> Value:
    """Convert a canal-json text to a query parameter. A TIMESTAMP's text is in UTC."""
    if text is None or column_type.name == "timestamp":
        return text
    if row_of(column_type).reader in ("enum", "set"):
        return int(text)  # ENUM and SET are sorted by number, but would be compared with a label as text
    return text_reader(column_type)(text)


def text_of(value: Any, column_type: ColumnType) -> str:
    """Convert a ``selected`` value to its canal-json text. A TIMESTAMP's text is in UTC."""
    reader = row_of(column_type).reader
    text = value.decode() if isinstance(value, bytes) else str(value)
    if reader in _NUMBERED:
        return str(int(text))
    if reader == "binary":
        return bytes.fromhex(text).decode("latin-1")
    read = _TYPED.get(reader)
    return text if read is None else text_writer(column_type)(read(text))


def key_text(text: str, column_type: ColumnType) -> str:  # noqa: ARG001  (as SourceDialect has it)
    """Returns the text unchanged, because keys use canal-json's texts."""
    return text


def column_batches(
    connection: Connection, query: Select[Any], types: Sequence[ColumnType], rows: int
) -> Iterator[list[pa.Array]]:
    """Yields the rows of a query as Arrow arrays, one per column.

    With PyMySQL it reads the protocol's bytes.
    """
    from tidesink.source_database.arrow_rows import batches_of_packets, batches_of_rows

    if connection.dialect.driver == "pymysql":
        return batches_of_packets(connection, query, types, value_reader)
    return batches_of_rows(connection, query, types, rows, value_reader)


def value_reader(column_type: ColumnType) -> ValueReader | None:
    """Returns the function that converts hex digits to bytes, or removes zero padding of numbers.

    Returns None for other types, whose values need no conversion.
    """
    reader = row_of(column_type).reader
    if reader == "binary":
        return bytes.fromhex
    padded = "zerofill" in (column_type.sql or "") and reader not in ("float32", "float64")
    return partial(text_of, column_type=column_type) if padded else None


def _type(sql: str) -> ColumnType:
    try:
        return parse_sql_type(sql)
    except ConfigError:
        return ColumnType("text", sql=sql)  # a type that this version does not support is read as text


def bounded(
    key: Sequence[str], types: Mapping[str, ColumnType], bound: KeyTexts, *, above: bool
) -> ColumnElement[bool]:
    """Returns the SQL condition that the key is greater than ``bound``, or with ``above=False``, at most
    ``bound``.

    MySQL uses no index for ``(a, b) > (1, 2)``. So the condition has the form ``a >= 1 AND (a > 1 OR b >
    2)``.
    """
    import sqlalchemy as sa

    name, *others = key
    column, value = compared(name, types[name]), parameter_of(bound[0], types[name])
    if not others:
        return column > value if above else column <= value
    rest = bounded(others, types, bound[1:], above=above)
    if above:
        return sa.and_(column >= value, sa.or_(column > value, rest))
    return sa.and_(column <= value, sa.or_(column < value, rest))
