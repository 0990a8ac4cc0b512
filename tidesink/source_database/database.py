"""The source's database by its URL, of whichever kind it is."""

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

_DIALECTS: Final[Mapping[str, SourceDialect]] = {"mysql": mysql, "mariadb": mysql, "postgresql": postgres}
# A driver's names of its limits, and of the encoding of all texts; another driver takes its own from the URL.
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
# Texts, and no dictionaries.
_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {"postgresql+psycopg": {"use_native_hstore": False}}


def open_engine(url: str, *, option: str, extra: str) -> Engine:
    """An engine of a SQLAlchemy URL, such as ``mysql+pymysql://reader:…@tidb:4000``; not connected yet.

    ``option`` is the setting that has the URL, ``extra`` the one of tidesink's that brings a driver.

    Raises:
        ConfigError: no URL, or no driver for it; the URL itself is never shown.
    """
    try:
        import sqlalchemy as sa
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ImportError as error:
        raise ConfigError(f"{option} needs {extra}", key=option) from error
    try:
        parsed = make_url(url)
        engine = sa.create_engine(
            parsed,
            isolation_level="AUTOCOMMIT",  # a snapshot is set between transactions
            connect_args=dict(_CONNECT.get(parsed.drivername.partition("+")[2], {})),
            **_OPTIONS.get(parsed.drivername, {}),
            hide_parameters=True,
            pool_pre_ping=True,
            pool_size=1,
        )
    except (NoSuchModuleError, ImportError) as error:
        raise ConfigError(
            f"{option}: there is no driver for {url.partition('://')[0]}: install one, such as pymysql or "
            "psycopg, and give mysql+pymysql://… or postgresql+psycopg://…",
            key=option,
        ) from error
    except (ArgumentError, ValueError):
        raise ConfigError(
            f"{option} is no SQLAlchemy URL: give mysql+pymysql://user:password@host:4000 or "
            "postgresql+psycopg://user:password@host:5432/database",
            key=option,
        ) from None
    if engine.dialect.name == "postgresql":
        if engine.dialect.driver != "psycopg":
            raise ConfigError(
                f"{option}: Postgres is read by psycopg: give postgresql+psycopg://…", key=option
            )
        sa.event.listen(engine, "connect", lambda connection, _record: postgres.keep_texts(connection))
    return engine


def dialect_of(connection: Connection) -> SourceDialect:
    """What the kind of a connection's database does in its own way."""
    return _DIALECTS.get(connection.dialect.name, mysql)


def begin_session(connection: Connection, *, as_of: int | None = None, replica: bool = False) -> None:
    """Make the texts of a session those that the others here read.

    ``as_of``: it reads all as it was at this commit_ts; None: as it is. ``replica``: a replica may be read.

    Raises:
        ConfigError: the database is a replica, or cannot read as of a moment.
    """
    dialect = dialect_of(connection)
    dialect.begin_session(connection)
    connection.info[IS_REPLICA] = replica
    if not replica:
        dialect.check_current(connection)
    if as_of is not None:
        dialect.read_as_of(connection, as_of)


def begin_at_position(connection: Connection, *, since: int) -> int:
    """As ``SourceDialect.begin_at_position``.

    Raises:
        ConfigError: the database has no positions that compare with a commit_ts.
        SourceUnavailableError: it reads as of a moment before ``since``.
    """
    found = dialect_of(connection).begin_at_position(connection)
    if found < since:
        raise SourceUnavailableError(
            f"the source's database reads as of commit_ts {found}, and {since} or later is needed: read from "
            "the cluster whose changefeed writes the topic"
        )
    return found


def open_transactions(connection: Connection) -> frozenset[str]:
    """Transactions whose changes may be in Kafka, while no query shows them yet.

    Raises:
        ConfigError: the user may not see whether there are any.
    """
    return dialect_of(connection).open_transactions(connection)


def uses_xa(connection: Connection) -> bool:
    """As ``SourceDialect.uses_xa``."""
    return dialect_of(connection).uses_xa(connection)


def stored_table(connection: Connection, table: TableId) -> StoredTable | None:
    """A table as the database has it; None where it has none of this name."""
    return dialect_of(connection).stored_table(connection, table)


def stored_tables(connection: Connection) -> tuple[TableId, ...]:
    """All tables that the user may read, without views and the server's own."""
    import sqlalchemy as sa

    names = ("table_schema", "table_name", "table_type")
    at = sa.table("tables", *map(sa.column, names), schema="information_schema").c
    query = sa.select(at.table_schema, at.table_name).where(at.table_type == "BASE TABLE")
    found = (tuple(map(plain, row)) for row in connection.execute(query))
    return tuple(TableId(*row) for row in found if row[0].lower() not in _OWN_SCHEMAS)


def is_of_value(error: BaseException | None) -> bool:
    """Whether the driver or the server refused a parameter for its value, whenever it is asked."""
    from sqlalchemy.exc import DataError, DBAPIError

    return isinstance(error, DataError) or (
        isinstance(error, DBAPIError) and code_of(error) in mysql.OF_VALUE
    )


def _not_connected(
    cause: BaseException | None, option: str, code: ErrorCode | None
) -> ConfigError | SourceUnavailableError:
    """The error of a connection that was not made or was cut, by what its driver kept of the reason.

    What servers quote is left out: it may be a part of a password that was taken for a name.
    """
    fault = _fault_of(cause)
    if fault is None:
        return SourceUnavailableError(f"{option}: the database does not answer (code {code})")
    names = dict.fromkeys(("url", "login", "tls", "ca"), option)
    quiet = fault._replace(words=postgres.without_quotes(fault.words))
    text = f"{option}: {quiet.text({**names, 'server': 'the database', 'user': ''})}"
    return SourceUnavailableError(text) if fault.passes else ConfigError(text, key=option)


def _refusal(cause: BaseException | None, code: ErrorCode | None) -> str:
    """A code with the server's words, which name objects for these codes; what they quote is left out."""
    diag = getattr(cause, "diag", None)
    args = cause.args if cause is not None else ()
    words = getattr(diag, "message_primary", None) or (args[1] if len(args) > 1 else "")
    return ": ".join(part for part in (f"code {code}", postgres.without_quotes(str(words))) if part)


def _fault_of(cause: BaseException | None) -> ConnectionFault | None:
    driver = type(cause).__module__.partition(".")[0]
    if cause is not None and driver == "psycopg" and getattr(cause, "sqlstate", None) is None:
        return postgres_fault(cause)
    if cause is not None and driver == "pymysql":
        found = mysql_fault(cause)
        return found if found.is_known and found.code != "closed" else None
    return None


@contextmanager
def translated(option: str) -> Iterator[None]:
    """The database's errors as ours, by their codes. Their own texts may hold values, and are left out."""
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    try:
        yield
    except DBAPIError as error:
        code = code_of(error)
        if is_of_connecting(str(code)):
            raise _not_connected(error.orig, option, code) from error
        if code in (*mysql.REFUSED, *postgres.REFUSED):
            raise ConfigError(
                f"{option}: the database refuses the user ({_refusal(error.orig, code)}). Grant it "
                "SELECT on the tables, and what the server names",
                key=option,
            ) from error
        if code in mysql.TOO_OLD:
            raise ConfigError(
                f"{option}: the database has collected what was there at that moment (code {code}): choose a "
                "newer cut, and let tidb_gc_life_time be longer than that is ago",
                key=option,
            ) from error
        if code in (*mysql.NO_COLUMN, *postgres.NO_COLUMN):
            raise SourceUnavailableError(f"{option}: a column went while its rows were read") from error
        raise _not_connected(error.orig, option, code) from error
    except SQLAlchemyError as error:
        raise SourceUnavailableError(
            f"{option}: the database cannot be asked: {type(error).__name__}"
        ) from error
