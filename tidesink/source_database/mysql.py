"""Tables of TiDB, MySQL and MariaDB: their columns and keys, and what is selected of a column.

What is selected are the texts that canal-json carries of the same values, so that one reader
(``typemap.arrow.from_text``) serves both. A session's zone is UTC, and its ``sql_mode`` is empty, so that
zero dates compare and CHAR is not padded. Identifiers are quoted by SQLAlchemy; values are parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import ConfigError
from tidesink.events import LOGICAL_BITS, Column, ColumnType, TableId, Value
from tidesink.source_database.base import (
    NO_AS_OF,
    NO_POSITION,
    KeyTexts,
    StoredTable,
    ValueReader,
    code_of,
    column_of,
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

RANGE_OPTIONS: Final[Mapping[str, Any]] = {}
# Access denied, in one of its forms, or no such database.
REFUSED: Final = (1044, 1045, 1049, 1142, 1143, 1227, 1698)
NO_TABLE: Final = (1109, 1146)
NO_COLUMN: Final = (1054,)
NO_VARIABLE: Final = 1193
# TiDB: a moment that is older than what garbage collection keeps.
TOO_OLD: Final = (8055, 9006)
_PRIMARY: Final = "PRIMARY"
# A text that its column's character set, or its type, does not have.
OF_VALUE: Final = (1267, 1292, 1300, 1366, 1525, 3854, 3988)
# Types that are selected, and carried, as numbers.
_NUMBERED: Final = ("integer", "unsigned64", "bit", "enum", "set")
_TYPED: Final[Mapping[str, Callable[[str], Value]]] = {"decimal": Decimal, "float32": float, "float64": float}


def begin_session(connection: Connection) -> None:
    """Make the session's texts those of canal-json."""
    if connection.dialect.name in ("mysql", "mariadb"):
        connection.exec_driver_sql("SET time_zone = '+00:00', sql_mode = ''")


def begin_at_position(connection: Connection) -> int:
    """As ``SourceDialect``: the TSO at which a transaction of TiDB starts, and as of which it reads.

    That is so under REPEATABLE READ, TiDB's default; under READ COMMITTED each statement reads as of a later
    one (TiDB's documentation, "TiDB Transaction Isolation Levels").

    Raises:
        ConfigError: it is not TiDB.
    """
    from sqlalchemy.exc import DBAPIError

    connection.exec_driver_sql("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    connection.exec_driver_sql("START TRANSACTION")
    try:
        return int(plain(connection.exec_driver_sql("SELECT @@tidb_current_ts").scalar_one()))
    except DBAPIError as error:
        if code_of(error) != NO_VARIABLE:
            raise
        raise ConfigError(NO_POSITION) from error


def tidb_as_of(connection: Connection, commit_ts: int) -> None:
    """Let a TiDB session read as of a commit_ts."""
    from sqlalchemy import text

    connection.execute(text("SET @@tidb_snapshot = :ts"), {"ts": commit_ts})


def read_as_of(connection: Connection, commit_ts: int) -> None:
    """As ``SourceDialect``: TiDB's snapshot, also of columns and tables.

    Raises:
        ConfigError: it is not TiDB.
    """
    from sqlalchemy.exc import DBAPIError

    try:
        tidb_as_of(connection, commit_ts)
    except DBAPIError as error:
        if code_of(error) != NO_VARIABLE:
            raise
        raise ConfigError(NO_AS_OF) from error


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
            plain(name),
            _type(plain(sql)),
            nullable=plain(nullable).upper() == "YES",
            virtual="VIRTUAL" in plain(extra).upper(),
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
    keys = _keys(connection, table)
    constants = {} if _PRIMARY in keys else row_key_constants(connection, table)
    row_key = {one.name: one.type for one in ROW_KEY_COLUMNS} if constants else {}
    key = keys.get(_PRIMARY) or next(iter(keys.values()), (ROW_ID,) if constants else ())
    return StoredTable(
        types,
        key,
        *_size(connection, table),
        virtual,
        required | row_key.keys(),
        row_key=row_key,
        constants=constants,
    )


def create_statement(connection: Connection, table: TableId) -> tuple[str, int] | None:
    """A table's CREATE TABLE as the server shows it, and a commit_ts from which on it holds.

    None where there is no such table, or it is a view. The commit_ts was taken before: what changed since may
    be in the statement. It is TiDB's, or of the server's clock, and the first one of its millisecond: a DDL
    event without a commit_ts is taken to be that early, though it came later.
    """
    from sqlalchemy.exc import DBAPIError

    try:
        since = begin_at_position(connection) >> LOGICAL_BITS << LOGICAL_BITS
    except ConfigError:
        now = connection.exec_driver_sql("SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS CHAR)").scalar_one()
        since = int(float(plain(now))) << LOGICAL_BITS
    name = connection.dialect.identifier_preparer.format_table(table_of(table))
    try:
        found = connection.exec_driver_sql(f"SHOW CREATE TABLE {name}").one()
    except DBAPIError as error:
        if code_of(error) in NO_TABLE:
            return None
        raise
    return (plain(found[1]), since) if found._fields[0].lower() == "table" else None


def row_key_constants(connection: Connection, table: TableId) -> Mapping[str, str]:
    """As ``SourceDialect``: TiDB's id of the table; of a partitioned one each partition has its own.

    TiDB's documentation of ``INFORMATION_SCHEMA.TABLES`` has the columns. Rows that are not clustered by a
    primary key have ``_tidb_rowid``, which no list of columns has.
    """
    import sqlalchemy as sa
    from sqlalchemy.exc import DBAPIError

    asked = ("tidb_table_id", "tidb_pk_type", "create_options")
    names = (*asked, "table_schema", "table_name")
    at = sa.table("tables", *map(sa.column, names), schema="information_schema").c
    query = sa.select(*(at[name] for name in asked))
    query = query.where(at.table_schema == table.schema).where(at.table_name == table.name)
    try:
        found = connection.execute(query).one_or_none()
    except DBAPIError as error:
        if code_of(error) not in NO_COLUMN:
            raise
        return {}  # it is not TiDB
    if found is None or plain(found[1]) != "NONCLUSTERED" or "partitioned" in plain(found[2]).lower():
        return {}
    return {TABLE_ID: str(int(found[0]))}


def _keys(connection: Connection, table: TableId) -> dict[str, tuple[str, ...]]:
    """The columns of the unique keys that are never NULL, by the names of their indexes."""
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
        name = plain(index)
        keys.setdefault(name, []).append(plain(column))
        # Rows may be equal in the beginning of a text, and in NULL.
        if int(non_unique) or plain(nullable).upper() == "YES" or part is not None or column is None:
            unusable.add(name)
    return {name: tuple(columns) for name, columns in keys.items() if name not in unusable}


def _size(connection: Connection, table: TableId) -> tuple[int, int]:
    import sqlalchemy as sa

    names = ("table_rows", "data_length", "table_schema", "table_name")
    at = sa.table("tables", *map(sa.column, names), schema="information_schema").c
    query = sa.select(at.table_rows, at.data_length)
    query = query.where(at.table_schema == table.schema).where(at.table_name == table.name)
    rows, size = connection.execute(query).one()
    return int(rows or 0), int(size or 0)


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


def key_text(text: str, column_type: ColumnType) -> str:  # noqa: ARG001  (as SourceDialect has it)
    """Canal-json's texts are ours."""
    return text


def column_batches(
    connection: Connection, query: Select[Any], types: Sequence[ColumnType], rows: int
) -> Iterator[list[pa.Array]]:
    """From the bytes that the server sends, where PyMySQL is the driver; else from the driver's rows."""
    from tidesink.source_database.arrow_rows import batches_of_packets, batches_of_rows

    if connection.dialect.driver == "pymysql":
        return batches_of_packets(connection, query, types, value_reader)
    return batches_of_rows(connection, query, types, rows, value_reader)


def value_reader(column_type: ColumnType) -> ValueReader | None:
    """Bytes come in hex, and numbers with zeros to their width; other columns as they are read."""
    reader = row_of(column_type).reader
    if reader == "binary":
        return bytes.fromhex
    padded = "zerofill" in (column_type.sql or "") and reader not in ("float32", "float64")
    return partial(text_of, column_type=column_type) if padded else None


def _type(sql: str) -> ColumnType:
    try:
        return parse_sql_type(sql)
    except ConfigError:
        return ColumnType("text", sql=sql)  # a type this version does not know is kept as text


def bounded(
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
    rest = bounded(others, types, bound[1:], above=above)
    if above:
        return sa.and_(column >= value, sa.or_(column > value, rest))
    return sa.and_(column <= value, sa.or_(column < value, rest))
