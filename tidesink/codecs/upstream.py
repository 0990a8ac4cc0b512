"""Rows of the upstream TiDB as they were at a commit_ts, as texts that canal-json would have carried.

TiCDC's own consumer (tiflow c7b2588) sets ``tidb_snapshot`` and selects by the handle key; so does this
one, with identifiers quoted by SQLAlchemy and values as parameters. What each column is, is asked at the
same moment, so that a later DDL changes nothing. The session's zone is UTC, and TIMESTAMP texts are put into
the changefeed's zone here: the upstream need not know its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone, tzinfo
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from tidesink.errors import ConfigError, RowUnavailableError, SourceUnavailableError
from tidesink.events import ColumnType, TableId, Value
from tidesink.typemap.mysql_types import parse_sql_type
from tidesink.typemap.table import row_of
from tidesink.typemap.values import text_reader, text_writer

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

AsOf = Callable[["Connection", int], None]
Texts = Mapping[str, str | None]

_OPTION: Final = "upstream-url"
_EXTRA: Final = "pip install 'tidesink[large-messages]'"
# Codes of MySQL and TiDB: the snapshot is older than what garbage collection keeps.
_TOO_OLD: Final = (8055, 9006)
_NO_TABLE: Final = (1109, 1146)
# Access denied, in one of its forms, or no such database.
_REFUSED: Final = (1044, 1045, 1049, 1142, 1143, 1227, 1698)
_UNKNOWN_VARIABLE: Final = 1193
# Seconds; a driver without these names takes its own from the URL.
_PYMYSQL_LIMITS: Final = {"connect_timeout": 10, "read_timeout": 60, "write_timeout": 60}


class UpstreamRow(NamedTuple):
    """A row's texts in table order, and its columns' types."""

    texts: dict[str, str | None]
    types: dict[str, ColumnType]


def tidb_as_of(connection: Connection, commit_ts: int) -> None:
    """Let a TiDB session read as of a commit_ts."""
    from sqlalchemy import text

    connection.execute(text("SET @@tidb_snapshot = :ts"), {"ts": commit_ts})


class Upstream:
    """Reads single rows by their keys. ``as_of`` moves a session to a moment."""

    def __init__(self, engine: Engine, *, time_zone: str = "UTC", as_of: AsOf = tidb_as_of) -> None:
        self._engine = engine
        self._zone = ZoneInfo(time_zone)
        self._as_of = as_of

    def row(self, table: TableId, key: Texts, *, commit_ts: int) -> UpstreamRow:
        """The row that a key names, as it was at ``commit_ts``; ``key`` holds canal-json texts.

        Raises:
            RowUnavailableError: there was no such row, or it was too long ago.
            SourceUnavailableError: the upstream does not answer.
            ConfigError: it refuses the session, or is no TiDB.
        """
        with _translated(table, commit_ts), self._engine.connect() as connection:
            if connection.dialect.name in ("mysql", "mariadb"):
                connection.exec_driver_sql("SET time_zone = '+00:00'")
            self._as_of(connection, commit_ts)
            types = _stored_columns(connection, table)
            found = self._select(connection, table, types, key)
        if len(found) != 1:
            raise RowUnavailableError(
                f"the upstream has {len(found) or 'no'} rows with the key at commit_ts {commit_ts}: is "
                f"{_OPTION} the changefeed's own cluster?",
                table=str(table),
            )
        texts = {
            name: None if value is None else self._text(value, types[name])
            for name, value in zip(types, found[0], strict=True)
        }
        return UpstreamRow(texts, types)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _select(
        self, connection: Connection, table: TableId, types: Mapping[str, ColumnType], key: Texts
    ) -> list[Any]:
        import sqlalchemy as sa

        if not key or not types.keys() >= key.keys():
            raise RowUnavailableError(
                "the message's handle key names columns that the upstream's table has not", table=str(table)
            )
        source = sa.table(_quoted(table.name), schema=_quoted(table.schema))
        wanted = [_selected(sa.column(_quoted(name)), kind) for name, kind in types.items()]
        query = sa.select(*wanted).select_from(source)
        for name, text in key.items():
            column_type = types[name]
            column: Any = sa.column(_quoted(name))
            value = None if text is None else self._value(text, column_type)
            # A FLOAT compares with a parameter as the double that it is.
            single = row_of(column_type).reader == "float32"
            query = query.where((column + sa.literal_column("0e0") if single else column) == value)
        # Two would mean that the key is none.
        return list(connection.execute(query.limit(2)))

    def _value(self, text: str, column_type: ColumnType) -> Value:
        """A key's text as a parameter."""
        if column_type.name == "timestamp":
            return _moved(text, self._zone, timezone.utc)
        return text_reader(column_type)(text)

    def _text(self, value: Any, column_type: ColumnType) -> str:
        """What canal-json carries for a selected value."""
        reader = row_of(column_type).reader
        text = value.decode() if isinstance(value, bytes) else str(value)
        if column_type.name == "timestamp":
            return _moved(text, timezone.utc, self._zone)
        if reader in _NUMBERED:
            return str(int(text))
        if reader == "binary":
            return bytes.fromhex(text).decode("latin-1")
        read = _TYPED.get(reader)
        return text if read is None else text_writer(column_type)(read(text))


# Types that are selected, and carried, as numbers.
_NUMBERED: Final = ("integer", "unsigned64", "bit", "enum", "set")
_TYPED: Final[Mapping[str, Callable[[str], Value]]] = {"decimal": Decimal, "float32": float, "float64": float}


def open_upstream(url: str, *, time_zone: str = "UTC", as_of: AsOf = tidb_as_of) -> Upstream:
    """An upstream by its SQLAlchemy URL, such as ``mysql+pymysql://reader:…@tidb:4000``; not connected yet.

    Raises:
        ConfigError: no URL, or no driver for it; the URL itself is never shown.
    """
    try:
        import sqlalchemy as sa
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ImportError as error:
        raise ConfigError(f"{_OPTION} needs the large-messages extra: {_EXTRA}", key=_OPTION) from error
    try:
        parsed = make_url(url)
        limits = _PYMYSQL_LIMITS if parsed.drivername.endswith("+pymysql") else {}
        engine = sa.create_engine(
            parsed,
            isolation_level="AUTOCOMMIT",  # a snapshot is set between transactions
            connect_args=limits,
            hide_parameters=True,
            pool_pre_ping=True,
            pool_size=1,
        )
    except (NoSuchModuleError, ImportError) as error:
        raise ConfigError(
            f"{_OPTION}: there is no driver for {url.partition('://')[0]}: install one, such as pymysql, "
            "and give mysql+pymysql://…",
            key=_OPTION,
        ) from error
    except (ArgumentError, ValueError):
        raise ConfigError(
            f"{_OPTION} is no SQLAlchemy URL: give mysql+pymysql://user:password@host:4000", key=_OPTION
        ) from None
    return Upstream(engine, time_zone=time_zone, as_of=as_of)


def _quoted(name: str) -> Any:
    """An identifier that the dialect quotes, whatever it holds. Every one passes here."""
    from sqlalchemy.sql.elements import quoted_name

    return quoted_name(name, quote=True)


def _stored_columns(connection: Connection, table: TableId) -> dict[str, ColumnType]:
    """The types of the table's columns in order, without virtual ones, which no message carries."""
    import sqlalchemy as sa

    names = ("column_name", "column_type", "extra", "table_schema", "table_name", "ordinal_position")
    columns = sa.table("columns", *map(sa.column, names), schema="information_schema")
    at = columns.c
    query = sa.select(at.column_name, at.column_type, at.extra).order_by(at.ordinal_position)
    found = connection.execute(
        query.where(at.table_schema == table.schema).where(at.table_name == table.name)
    ).all()
    if not found:
        raise RowUnavailableError("the upstream had no such table then", table=str(table))
    return {
        _plain(name): _type(_plain(sql))
        for name, sql, extra in found
        if "VIRTUAL" not in _plain(extra).upper()
    }


def _plain(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _type(sql: str) -> ColumnType:
    try:
        return parse_sql_type(sql)
    except ConfigError:
        return ColumnType("text", sql=sql)  # a type this version does not know is kept as text


def _selected(column: Any, column_type: ColumnType) -> Any:
    """What is selected of a column: a text that no driver makes something else of."""
    import sqlalchemy as sa
    from sqlalchemy.dialects.mysql import INTEGER

    reader = row_of(column_type).reader
    if reader in ("bit", "enum", "set") or column_type.name == "year":
        return sa.cast(sa.cast(column, INTEGER(unsigned=True)), sa.CHAR)
    if reader in ("float32", "float64"):
        # Some servers print a FLOAT with six digits, and no DOUBLE so.
        return column + sa.literal_column("0e0")
    if reader == "binary":
        return sa.func.hex(column)
    if reader == "text" and column_type.name not in ("json", "vector"):
        return column
    return sa.cast(column, sa.CHAR)


def _moved(text: str, source: tzinfo, target: tzinfo) -> str:
    """A TIMESTAMP's text in another zone; zero is zero in any."""
    if text.startswith("0000-00-00"):
        return text
    whole, dot, fraction = text.partition(".")
    moment = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=source)
    return f"{moment.astimezone(target):%Y-%m-%d %H:%M:%S}{dot}{fraction}"


@contextmanager
def _translated(table: TableId, commit_ts: int) -> Iterator[None]:
    """The database's errors as ours, by their codes. Their own texts may hold values, and are left out."""
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    try:
        yield
    except DBAPIError as error:
        raise _error(error.orig, commit_ts).with_context(table=str(table)) from error
    except SQLAlchemyError as error:
        raise SourceUnavailableError(
            f"the upstream cannot be asked: {type(error).__name__}", table=str(table)
        ) from error


def _error(
    cause: BaseException | None, commit_ts: int
) -> RowUnavailableError | ConfigError | SourceUnavailableError:
    code = cause.args[0] if cause is not None and cause.args else None
    if code in _TOO_OLD:
        return RowUnavailableError(
            f"the upstream has collected what was there at commit_ts {commit_ts}: raise tidb_gc_life_time, "
            "so that it is longer than a reader may stay behind"
        )
    if code in _NO_TABLE:
        return RowUnavailableError(f"the upstream had no such table at commit_ts {commit_ts}")
    if code in _REFUSED:
        return ConfigError(f"{_OPTION}: the upstream refuses the user (code {code})", key=_OPTION)
    if code == _UNKNOWN_VARIABLE:
        return ConfigError(
            f"{_OPTION}: the upstream is no TiDB, and cannot be read as of a commit_ts", key=_OPTION
        )
    return SourceUnavailableError(
        f"the upstream does not answer (code {code if isinstance(code, int) else None})"
    )
