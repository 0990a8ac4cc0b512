"""Connections to the source database, whose URL decides the dialect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import ConfigError, SourceUnavailableError
from tidesink.events import TableId
from tidesink.source_database import mysql, postgres
from tidesink.source_database.base import (
    IS_REPLICA,
    ErrorCode,
    SourceDialect,
    StoredTable,
    code_of,
    plain,
)
from tidesink.source_database.connection_faults import (
    ConnectionFault,
    is_of_connecting,
    mysql_fault,
    postgres_fault,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

# The setting with the URL of the source database.
OPTION: Final = "source.database"
_EXTRA: Final = "a driver: pip install 'tidesink[mysql]' or 'tidesink[postgres]'"
_DIALECTS: Final[Mapping[str, SourceDialect]] = {"mysql": mysql, "mariadb": mysql, "postgresql": postgres}
# Timeouts and text encoding for the supported drivers. Other drivers take them from the URL.
_CONNECT: Final[Mapping[str, Mapping[str, Any]]] = {
    "pymysql": {"connect_timeout": 10, "read_timeout": 60, "write_timeout": 60, "charset": "utf8mb4"},
    "psycopg": {
        "connect_timeout": 10,
        "tcp_user_timeout": 60_000,
        "keepalives_idle": 15,
        "client_encoding": "utf8",
    },
}
_OWN_SCHEMAS: Final = (
    "mysql",
    "sys",
    "performance_schema",
    "information_schema",
    "metrics_schema",
    "pg_catalog",
)
# The driver must return hstore as text, not as a dictionary.
_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {"postgresql+psycopg": {"use_native_hstore": False}}


def open_engine(url: str, *, option: str, extra: str) -> Engine:
    """Returns a SQLAlchemy engine for a URL such as ``mysql+pymysql://reader:…@tidb:4000``, without
    connecting.

    ``option``: name of the setting with the URL. ``extra``: name of tidesink's extra that installs a driver.

    Raises:
        ConfigError: The URL is invalid, or its driver is not installed. The message never contains the URL.
    """
    try:
        import sqlalchemy as sa
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ImportError as error:
        raise ConfigError(f"{option} needs {extra}.", key=option) from error
    try:
        parsed = make_url(url)
        engine = sa.create_engine(
            parsed,
            isolation_level="AUTOCOMMIT",  # snapshots are set between transactions
            connect_args=dict(_CONNECT.get(parsed.drivername.partition("+")[2], {})),
            **_OPTIONS.get(parsed.drivername, {}),
            hide_parameters=True,
            pool_pre_ping=True,
            pool_size=1,
        )
    except (NoSuchModuleError, ImportError) as error:
        raise ConfigError(
            f"{option}: no driver for {url.partition('://')[0]} is installed. Install a driver, such as "
            "pymysql or psycopg, and use mysql+pymysql://… or postgresql+psycopg://….",
            key=option,
        ) from error
    except (ArgumentError, ValueError):
        raise ConfigError(
            f"{option} is not a SQLAlchemy URL. Use mysql+pymysql://user:password@host:4000 or "
            "postgresql+psycopg://user:password@host:5432/database.",
            key=option,
        ) from None
    if engine.dialect.name == "postgresql":
        if engine.dialect.driver != "psycopg":
            raise ConfigError(
                f"{option}: Postgres can only be read with psycopg. Use postgresql+psycopg://….", key=option
            )
        sa.event.listen(engine, "connect", lambda connection, _record: postgres.keep_texts(connection))
    return engine


def dialect_of(connection: Connection) -> SourceDialect:
    """Returns the dialect of a connection's database."""
    return _DIALECTS.get(connection.dialect.name, mysql)


def begin_session(connection: Connection, *, as_of: int | None = None, replica: bool = False) -> None:
    """Set up a session, and check that the database may be read.

    The session's variables are set so that queries return values in the text form that this package reads.
    ``as_of``: the commit_ts as of which the session reads; None: the current state. ``replica``: True if a
    replica may be read.

    Raises:
        ConfigError: The database is a replica, or cannot be read as of a commit_ts.
    """
    dialect = dialect_of(connection)
    dialect.begin_session(connection)
    connection.info[IS_REPLICA] = replica
    if not replica:
        dialect.check_current(connection)
    if as_of is not None:
        dialect.read_as_of(connection, as_of)


def open_database(url: str) -> Engine:
    """Returns the SQLAlchemy engine of the source database. It is not connected yet.

    Raises:
        ConfigError: The config has no URL, or the URL's driver is not installed.
    """
    return open_engine(url, option=OPTION, extra=_EXTRA)


@contextmanager
def connected(url: str, *, as_of: int | None = None, replica: bool = False) -> Iterator[Connection]:
    """Opens a session of the source database, which reads the current state or the state at a commit_ts.

    The caller must translate the errors of its queries.

    Args:
        url: The URL of the database.
        as_of: The commit_ts of the state to read, or None to read the current state.
        replica: True if the database may be a replica.

    Raises:
        ConfigError: The config has no URL, or the URL's driver is not installed. Or the database rejects the
            user, or cannot read the state at a commit_ts.
        SourceUnavailableError: The database does not answer.
    """
    engine = open_database(url)
    try:
        with translated(OPTION):
            connection = engine.connect()
        with connection:
            with translated(OPTION):
                begin_session(connection, as_of=as_of, replica=replica)
            yield connection
    finally:
        engine.dispose()


def begin_at_position(connection: Connection, *, since: int) -> int:
    """Begin a transaction that reads the database as of one commit_ts, and return this commit_ts.

    Raises:
        ConfigError: The database has no timestamps that can be compared with a commit_ts.
        SourceUnavailableError: The transaction's commit_ts is before ``since``.
    """
    read_ts = dialect_of(connection).begin_at_position(connection)
    if read_ts < since:
        raise SourceUnavailableError(
            f"The source database reads as of commit_ts {read_ts}, but {since} or later is needed. Set "
            "source.database to the URL of the cluster whose changefeed writes the topic."
        )
    return read_ts


def open_transactions(connection: Connection) -> frozenset[str]:
    """Returns the open transactions whose changes may be in Kafka before queries return them.

    Raises:
        ConfigError: The user lacks the permission to list such transactions.
    """
    return dialect_of(connection).open_transactions(connection)


def uses_xa(connection: Connection) -> bool:
    """Returns True if applications have used XA transactions, whose changes reach Kafka before they are
    committed.

    Raises:
        ConfigError: The user lacks the permission to list such transactions.
    """
    return dialect_of(connection).uses_xa(connection)


def stored_table(connection: Connection, table: TableId) -> StoredTable | None:
    """Returns a table of the database, or None if there is no table with this name."""
    return dialect_of(connection).stored_table(connection, table)


def stored_tables(connection: Connection) -> tuple[TableId, ...]:
    """Returns all tables that the user may read, without views and without the server's system tables."""
    import sqlalchemy as sa

    names = ("table_schema", "table_name", "table_type")
    columns = sa.table("tables", *map(sa.column, names), schema="information_schema").c
    query = sa.select(columns.table_schema, columns.table_name).where(columns.table_type == "BASE TABLE")
    rows = (tuple(map(plain, row)) for row in connection.execute(query))
    return tuple(TableId(*row) for row in rows if row[0].lower() not in _OWN_SCHEMAS)


def is_of_value(error: BaseException | None) -> bool:
    """Returns True if the driver or the server refused a query because of the value of a parameter."""
    from sqlalchemy.exc import DataError, DBAPIError

    return isinstance(error, DataError) or (
        isinstance(error, DBAPIError) and code_of(error) in mysql.OF_VALUE
    )


def _not_connected(
    cause: BaseException | None, option: str, code: ErrorCode | None
) -> ConfigError | SourceUnavailableError:
    """Returns the error for a failed or lost connection, with the reason that the driver reports.

    Quoted parts of server messages are left out, because a part of a password may have been parsed as a name.
    """
    fault = _fault_of(cause)
    if fault is None:
        return SourceUnavailableError(
            f"{option}: the source database does not answer (code {code}). Check "
            f"that it runs and can be reached."
        )
    names = dict.fromkeys(("url", "login", "tls", "ca"), option)
    quiet = fault._replace(words=postgres.without_quotes(fault.words))
    text = f"{option}: {quiet.text({**names, 'server': 'the source database', 'user': ''})}"
    return SourceUnavailableError(text) if fault.passes else ConfigError(text, key=option)


def _refusal(cause: BaseException | None, code: ErrorCode | None) -> str:
    """Returns an error's code and the server's message, without quoted parts.

    For use with codes whose messages contain names, but no row values.
    """
    diag = getattr(cause, "diag", None)
    args = cause.args if cause is not None else ()
    words = getattr(diag, "message_primary", None) or (args[1] if len(args) > 1 else "")
    return ": ".join(part for part in (f"code {code}", postgres.without_quotes(str(words))) if part)


def _fault_of(cause: BaseException | None) -> ConnectionFault | None:
    driver = type(cause).__module__.partition(".")[0]
    if cause is not None and driver == "psycopg" and getattr(cause, "sqlstate", None) is None:
        return postgres_fault(cause)
    if cause is not None and driver == "pymysql":
        fault = mysql_fault(cause)
        return fault if fault.is_known and fault.code != "closed" else None
    return None


@contextmanager
def translated(option: str) -> Iterator[None]:
    """Convert SQLAlchemy's errors to ConfigError or SourceUnavailableError, by the database's error codes.

    The database's messages are mostly left out, because they may contain row values.
    """
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    try:
        yield
    except DBAPIError as error:
        code = code_of(error)
        if is_of_connecting(str(code)):
            raise _not_connected(error.orig, option, code) from error
        if code in (*mysql.REFUSED, *postgres.REFUSED):
            raise ConfigError(
                f"{option}: the source database refuses the user ({_refusal(error.orig, code)}). Grant it "
                "SELECT on the tables, and the privileges that the server names.",
                key=option,
            ) from error
        if code in mysql.TOO_OLD:
            raise ConfigError(
                f"{option}: the source database no longer has the state as of the cut (code {code}). Choose "
                "a newer cut. To keep states longer from now on, increase tidb_gc_life_time in TiDB.",
                key=option,
            ) from error
        if code in (*mysql.NO_COLUMN, *postgres.NO_COLUMN):
            raise SourceUnavailableError(
                f"{option}: a column was dropped in the source database while the table was read. A worker "
                "reads the table again by itself. If you ran a command, run it again."
            ) from error
        raise _not_connected(error.orig, option, code) from error
    except SQLAlchemyError as error:
        raise SourceUnavailableError(
            f"{option}: the source database cannot be queried ({type(error).__name__}). Check this setting "
            f"and the database's log."
        ) from error
