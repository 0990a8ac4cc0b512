"""Tables of TiDB, MySQL and MariaDB: their columns and keys, and what is selected of a column.

What is selected are the texts that canal-json carries of the same values, so that one reader
(``typemap.arrow.from_text``) serves both. A session's zone is UTC, and its ``sql_mode`` is empty, so that
zero dates compare and CHAR is not padded. Identifiers are quoted by SQLAlchemy; values are parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidesink.errors import ConfigError, SourceUnavailableError
from tidesink.events import Column, ColumnType, TableId, Value
from tidesink.typemap.mysql_types import parse_sql_type
from tidesink.typemap.table import row_of
from tidesink.typemap.values import text_reader, text_writer

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Engine, Select, TableClause

# Access denied, in one of its forms, or no such database.
REFUSED: Final = (1044, 1045, 1049, 1142, 1143, 1227, 1698)
NO_TABLE: Final = (1109, 1146)
NO_COLUMN: Final = (1054,)
# Seconds; a driver without these names takes its own from the URL.
_PYMYSQL_LIMITS: Final = {"connect_timeout": 10, "read_timeout": 60, "write_timeout": 60}
# Types that are selected, and carried, as numbers.
_NUMBERED: Final = ("integer", "unsigned64", "bit", "enum", "set")
_TYPED: Final[Mapping[str, Callable[[str], Value]]] = {"decimal": Decimal, "float32": float, "float64": float}


class StoredTable(NamedTuple):
    """A table as the database has it: types by column, in order, without virtual columns.

    ``key``: the columns of the primary key, or of the first unique key without NULLs; empty: there is none.
    ``rows``, ``bytes``: the database's own estimate. ``virtual``: virtual columns. ``required``: columns that
    are never NULL.
    """

    types: dict[str, ColumnType]
    key: tuple[str, ...]
    rows: int
    bytes: int
    virtual: Mapping[str, ColumnType] = MappingProxyType({})
    required: frozenset[str] = frozenset()


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
        return sa.create_engine(
            parsed,
            isolation_level="AUTOCOMMIT",  # a snapshot is set between transactions
            connect_args=_PYMYSQL_LIMITS if parsed.drivername.endswith("+pymysql") else {},
            hide_parameters=True,
            pool_pre_ping=True,
            pool_size=1,
        )
    except (NoSuchModuleError, ImportError) as error:
        raise ConfigError(
            f"{option}: there is no driver for {url.partition('://')[0]}: install one, such as pymysql, "
            "and give mysql+pymysql://…",
            key=option,
        ) from error
    except (ArgumentError, ValueError):
        raise ConfigError(
            f"{option} is no SQLAlchemy URL: give mysql+pymysql://user:password@host:4000", key=option
        ) from None


def begin_session(connection: Connection) -> None:
    """Make the session's texts those of canal-json."""
    if connection.dialect.name in ("mysql", "mariadb"):
        connection.exec_driver_sql("SET time_zone = '+00:00', sql_mode = ''")


def stored_columns(connection: Connection, table: TableId) -> dict[str, ColumnType]:
    """The types of a table's columns in order, without virtual ones, which TiCDC does not carry.

    Empty where there is no such table.
    """
    return {one.name: one.type for one in _columns(connection, table) if not one.virtual}


def _columns(connection: Connection, table: TableId) -> list[Column]:
    import sqlalchemy as sa

    asked = ("column_name", "column_type", "extra", "is_nullable")
    places = ("table_schema", "table_name", "ordinal_position")
    at = sa.table("columns", *map(sa.column, (*asked, *places)), schema="information_schema").c
    query = sa.select(*(at[name] for name in asked)).order_by(at.ordinal_position)
    query = query.where(at.table_schema == table.schema).where(at.table_name == table.name)
    return [
        Column(
            _plain(name),
            _type(_plain(sql)),
            nullable=_plain(nullable).upper() == "YES",
            virtual="VIRTUAL" in _plain(extra).upper(),
        )
        for name, sql, extra, nullable in connection.execute(query)
    ]


def stored_table(connection: Connection, table: TableId) -> StoredTable | None:
    """A table as the database has it; None where it has none of this name."""
    columns = _columns(connection, table)
    if not columns:
        return None
    types, virtual = (
        {one.name: one.type for one in columns if one.virtual is kind} for kind in (False, True)
    )
    required = frozenset(one.name for one in columns if not one.nullable)
    return StoredTable(types, _key(connection, table), *_size(connection, table), virtual, required)


def _key(connection: Connection, table: TableId) -> tuple[str, ...]:
    """The columns of the primary key; else of the first unique key whose columns are never NULL."""
    import sqlalchemy as sa

    names = ("index_name", "non_unique", "column_name", "nullable", "seq_in_index", "sub_part")
    places = ("table_schema", "table_name")
    indexes = sa.table("statistics", *map(sa.column, (*names, *places)), schema="information_schema")
    at = indexes.c
    query = sa.select(*(at[name] for name in names)).order_by(at.index_name, at.seq_in_index)
    query = query.where(at.table_schema == table.schema).where(at.table_name == table.name)
    keys: dict[str, list[str]] = {}
    unusable = set()
    for index, non_unique, column, nullable, _, part in connection.execute(query):
        name = _plain(index)
        keys.setdefault(name, []).append(_plain(column))
        # Rows may be equal in the beginning of a text, and in NULL.
        if int(non_unique) or _plain(nullable).upper() == "YES" or part is not None or column is None:
            unusable.add(name)
    usable = {name: tuple(columns) for name, columns in keys.items() if name not in unusable}
    return usable.get("PRIMARY") or next(iter(usable.values()), ())


def _size(connection: Connection, table: TableId) -> tuple[int, int]:
    import sqlalchemy as sa

    names = ("table_rows", "data_length", "table_schema", "table_name")
    at = sa.table("tables", *map(sa.column, names), schema="information_schema").c
    query = sa.select(at.table_rows, at.data_length)
    query = query.where(at.table_schema == table.schema).where(at.table_name == table.name)
    rows, size = connection.execute(query).one()
    return int(rows or 0), int(size or 0)


def table_of(table: TableId) -> TableClause:
    """A table to select from."""
    import sqlalchemy as sa

    return sa.table(_quoted(table.name), schema=_quoted(table.schema))


def column_of(name: str) -> ColumnElement[Any]:
    """A column by its name."""
    import sqlalchemy as sa

    return sa.column(_quoted(name))


def _quoted(name: str) -> Any:
    """An identifier that the dialect quotes, whatever it holds. Every one passes here."""
    from sqlalchemy.sql.elements import quoted_name

    return quoted_name(name, quote=True)


def selected(name: str, column_type: ColumnType) -> ColumnElement[Any]:
    """What is selected of a column: a text that no driver makes something else of.

    Of a binary column its bytes in hex, of a floating-point number the double that it is.
    """
    import sqlalchemy as sa
    from sqlalchemy.dialects.mysql import INTEGER

    column, reader = column_of(name), row_of(column_type).reader
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


def compared(name: str, column_type: ColumnType) -> ColumnElement[Any]:
    """A column as it is compared with a parameter: a FLOAT as the double that it is."""
    import sqlalchemy as sa

    column = column_of(name)
    return column + sa.literal_column("0e0") if row_of(column_type).reader == "float32" else column


def parameter_of(text: str | None, column_type: ColumnType) -> Value:
    """A canal-json text, of a TIMESTAMP in UTC, as a parameter."""
    if text is None or column_type.name == "timestamp":
        return text
    if row_of(column_type).reader in ("enum", "set"):
        return int(text)  # they are sorted by number, and compared with a label as texts
    return text_reader(column_type)(text)


def text_of(value: Any, column_type: ColumnType) -> str:
    """What canal-json carries for a value that was selected by ``selected``; of a TIMESTAMP in UTC."""
    reader = row_of(column_type).reader
    text = value.decode() if isinstance(value, bytes) else str(value)
    if reader in _NUMBERED:
        return str(int(text))
    if reader == "binary":
        return bytes.fromhex(text).decode("latin-1")
    read = _TYPED.get(reader)
    return text if read is None else text_writer(column_type)(read(text))


def _plain(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _type(sql: str) -> ColumnType:
    try:
        return parse_sql_type(sql)
    except ConfigError:
        return ColumnType("text", sql=sql)  # a type this version does not know is kept as text


KeyTexts = tuple[str, ...]


def rows_between(
    query: Select[Any],
    key: Sequence[str],
    types: Mapping[str, ColumnType],
    *,
    after: KeyTexts | None = None,
    up_to: KeyTexts | None = None,
) -> Select[Any]:
    """The rows of a query whose keys are above ``after`` and not above ``up_to``; None: no bound.

    The bounds are canal-json's texts of the key's columns; keys compare as the database compares them.
    """
    if after is not None:
        query = query.where(_bounded(key, types, after, above=True))
    return query if up_to is None else query.where(_bounded(key, types, up_to, above=False))


def _bounded(
    key: Sequence[str], types: Mapping[str, ColumnType], bound: KeyTexts, *, above: bool
) -> ColumnElement[bool]:
    """Whether a key is above a bound, or not above it, spelt so that an index of the key serves it.

    MySQL uses no index for ``(a, b) > (1, 2)``: it is ``a >= 1 AND (a > 1 OR b > 2)``.
    """
    import sqlalchemy as sa

    name, *others = key
    column, value = compared(name, types[name]), parameter_of(bound[0], types[name])
    if not others:
        return column > value if above else column <= value
    rest = _bounded(others, types, bound[1:], above=above)
    if above:
        return sa.and_(column >= value, sa.or_(column > value, rest))
    return sa.and_(column <= value, sa.or_(column < value, rest))


@contextmanager
def translated(option: str) -> Iterator[None]:
    """The database's errors as ours, by their codes. Their own texts may hold values, and are left out."""
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    try:
        yield
    except DBAPIError as error:
        code = code_of(error)
        if code in REFUSED:
            raise ConfigError(f"{option}: the database refuses the user (code {code})", key=option) from error
        if code in NO_COLUMN:
            raise SourceUnavailableError(f"{option}: a column went while its rows were read") from error
        raise SourceUnavailableError(f"{option}: the database does not answer (code {code})") from error
    except SQLAlchemyError as error:
        raise SourceUnavailableError(
            f"{option}: the database cannot be asked: {type(error).__name__}"
        ) from error


def code_of(error: BaseException) -> int | None:
    """The server's or the driver's number of an error; None where it has none."""
    cause = getattr(error, "orig", None)
    code = cause.args[0] if cause is not None and cause.args else None
    return code if isinstance(code, int) else None
