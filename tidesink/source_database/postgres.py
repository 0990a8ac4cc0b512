"""Postgres as the source database: columns, keys, and the expressions that queries select.

Selected texts come from the types' output functions, as in logical decoding. The session's settings make
these texts exact. Keys are compared only in the database: a bound is sent as text, and cast to the column's
type. SQLAlchemy quotes identifiers, and values are parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidesink.errors import ConfigError
from tidesink.events import ColumnType, TableId
from tidesink.source_database.base import (
    NO_AS_OF,
    NO_POSITION,
    REPLICA,
    KeyTexts,
    Selected,
    StoredTable,
    ValueReader,
    column_of,
    order_digest,
    plain,
    table_of,
)
from tidesink.typemap.table import row_of

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import ColumnElement, Connection, Select

# A key range is read in one transaction, because a server-side cursor exists only within one.
RANGE_OPTIONS: Final = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
# SQLSTATEs for a role that may not log in or may not read, and for a missing database.
REFUSED: Final = ("28000", "28P01", "3D000", "42501")
NO_COLUMN: Final = ("42703",)
# Row security must not filter rows unnoticed, and waiting for locks must have a limit.
_SETTINGS: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "row_security": "off",
    "lock_timeout": "60s",
}
# The session only looks up comparison operators of extensions' types in these schemas. Only a superuser can
# create an operator class.
_OPERATORS: Final = """coalesce((
    SELECT pg_catalog.string_agg(DISTINCT pg_catalog.quote_ident(n.nspname), ', ')
    FROM pg_catalog.pg_opclass o
    JOIN pg_catalog.pg_am m ON m.oid = o.opcmethod AND m.amname = 'btree'
    JOIN pg_catalog.pg_namespace n ON n.oid = o.opcnamespace
    WHERE o.opcdefault AND n.nspname <> 'pg_catalog'), '')"""
_CHILDREN: Final = (
    "Other Postgres tables inherit from the table, so its key does not identify all rows. Set snapshot: "
    "never for it, and load its existing rows with another tool."
)


def begin_at_position(connection: Connection) -> int:  # noqa: ARG001  (as SourceDialect has it)
    """Raises ConfigError, because Postgres has no timestamps that can be compared with a commit_ts."""
    raise ConfigError(NO_POSITION)


def read_as_of(connection: Connection, commit_ts: int) -> None:  # noqa: ARG001  (as SourceDialect has it)
    """Raises ConfigError, because Postgres cannot be read as of an earlier commit_ts."""
    raise ConfigError(NO_AS_OF)


def begin_session(connection: Connection) -> None:
    """Set the session's settings so that values are returned as exact texts."""
    import sqlalchemy as sa

    settings = ", ".join(f"pg_catalog.set_config('{name}', :{name}, false)" for name in _SETTINGS)
    query = f"SELECT {settings}, pg_catalog.set_config('search_path', {_OPERATORS}, false)"
    connection.execute(sa.text(query), _SETTINGS)


def check_current(connection: Connection) -> None:
    """Raise ConfigError if the server is a standby."""
    if _is_true(connection.exec_driver_sql("SELECT pg_catalog.pg_is_in_recovery()").scalar_one()):
        raise ConfigError(REPLICA, key="source.database")


def uses_xa(connection: Connection) -> bool:  # noqa: ARG001  (as SourceDialect has it)
    """Returns False, because Postgres sends no change before its commit."""
    return False


def begin_snapshot(connection: Connection) -> None:
    """Does nothing, because a connection that reads a key range is already in a transaction
    (``RANGE_OPTIONS``).
    """


def counted_rows(connection: Connection, table: TableId, query: Select[Any]) -> int | None:  # noqa: ARG001
    """Returns None, because a Postgres session has no setting that limits the number of returned rows."""
    return None


def open_transactions(connection: Connection) -> frozenset[str]:  # noqa: ARG001  (as SourceDialect has it)
    """Returns an empty set, because logical decoding sends a prepared transaction only at COMMIT PREPARED."""
    return frozenset()


class _Column(NamedTuple):
    name: str
    type: ColumnType
    required: bool
    generated: bool


# A domain is replaced by its base type.
_COLUMNS: Final = """
WITH RECURSIVE found AS (
    SELECT a.attnum, a.attname, a.attnotnull, a.attgenerated, a.atttypid AS type, a.atttypmod AS mod
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = CAST(:oid AS oid) AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT f.attnum, f.attname, f.attnotnull OR t.typnotnull, f.attgenerated, t.typbasetype, t.typtypmod
    FROM found f JOIN pg_catalog.pg_type t ON t.oid = f.type WHERE t.typtype = 'd'
)
SELECT f.attname, f.attnotnull, f.attgenerated <> '', pg_catalog.format_type(f.type, f.mod), t.typname,
    t.typtype, t.typcategory
FROM found f JOIN pg_catalog.pg_type t ON t.oid = f.type WHERE t.typtype <> 'd' ORDER BY f.attnum"""
# Usable keys: columns that are never NULL, no index prefixes, and operators that ORDER BY and comparisons
# both find.
_KEYS: Final = """
SELECT pg_catalog.array_to_json(k.names) FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
CROSS JOIN LATERAL (
    SELECT pg_catalog.array_agg(a.attname ORDER BY p.at) AS names,
        pg_catalog.bool_and(a.attnotnull AND i.indcollation[p.at] = a.attcollation
            AND o.opcdefault AND pg_catalog.pg_opclass_is_visible(o.oid)) AS usable
    FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) AS p(at)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[p.at]
    JOIN pg_catalog.pg_opclass o ON o.oid = i.indclass[p.at]
) k
WHERE i.indrelid = CAST(:oid AS oid) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
    AND i.indexprs IS NULL AND k.usable
ORDER BY i.indisprimary DESC, i.indisreplident DESC, c.relname LIMIT 1"""
# The columns of the index that is the replica identity. Without such an index, no old row is sent at all.
_IDENTITY: Final = """
SELECT pg_catalog.array_to_json(coalesce((
    SELECT pg_catalog.array_agg(a.attname) FROM pg_catalog.pg_index i
    CROSS JOIN LATERAL pg_catalog.generate_series(0, i.indnkeyatts - 1) AS p(at)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[p.at]
    WHERE i.indrelid = c.oid
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
), CAST(ARRAY[] AS pg_catalog.name[])))
FROM pg_catalog.pg_class c WHERE c.oid = CAST(:oid AS oid) AND c.relkind = 'r' AND c.relreplident <> 'f'"""
_PRIMARY: Final = """
SELECT a.attname FROM pg_catalog.pg_index i
CROSS JOIN LATERAL pg_catalog.generate_series(0, i.indnkeyatts - 1) AS p(at)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[p.at]
WHERE i.indrelid = CAST(:oid AS oid) AND i.indisprimary ORDER BY p.at"""
_TABLE: Final = """
SELECT c.oid, c.relkind, EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhparent = c.oid),
    c.relkind = 'r' AND c.relreplident = 'f'
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = :schema AND c.relname = :name AND c.relkind IN ('r', 'p')"""
# The type's OID stands for the order of an ENUM's members, because members are only added and never
# reordered. Collation 100 is the database's default collation. Postgres 15 and newer report its version. In
# older versions the libc collation with the same locale reports it, under the system's name (en_US.utf8 for
# en_US.UTF-8). If there is no such collation, the versions of other collations of the same libraries are
# used. The database's row is read as JSON, because its locale columns differ between versions (pg_database in
# the manuals of Postgres 14, 15 and 17).
_ORDER: Final = """
SELECT a.attname, pg_catalog.concat_ws(' ', a.atttypid, a.attcollation,
    (SELECT pg_catalog.pg_collation_actual_version(c.oid) FROM pg_catalog.pg_collation c
     WHERE c.oid = a.attcollation AND c.oid <> 100),
    CASE WHEN a.attcollation = 100 THEN (
        SELECT pg_catalog.concat_ws(' ', d.datcollate, d.datctype, j.named ->> 'datlocprovider',
            j.named ->> 'daticulocale', j.named ->> 'datlocale', j.named ->> 'daticurules',
            coalesce({database_version}, (
                SELECT pg_catalog.max(pg_catalog.pg_collation_actual_version(o.oid))
                FROM pg_catalog.pg_collation o
                WHERE o.collprovider = 'c' AND o.collencoding IN (-1, d.encoding)
                    AND pg_catalog.lower(pg_catalog.replace(o.collcollate, '-', ''))
                        = pg_catalog.lower(pg_catalog.replace(d.datcollate, '-', ''))
            ), (
                SELECT pg_catalog.string_agg(DISTINCT pg_catalog.pg_collation_actual_version(o.oid), ' ')
                FROM pg_catalog.pg_collation o
                WHERE o.collname IN ('en_US.utf8', 'C.utf8', 'und-x-icu'))))
        FROM pg_catalog.pg_database d CROSS JOIN LATERAL (SELECT pg_catalog.to_jsonb(d) AS named) j
        WHERE d.datname = pg_catalog.current_database()) END)
FROM pg_catalog.pg_attribute a WHERE a.attrelid = CAST(:oid AS oid) AND a.attnum > 0"""
_DATABASE_VERSION: Final = "pg_catalog.pg_database_collation_actual_version(d.oid)"
# The size includes all partitions, because a partitioned table has no rows of its own.
_BYTES: Final = """
SELECT coalesce(sum(pg_catalog.pg_table_size(t.relid)), 0)
FROM (SELECT relid FROM pg_catalog.pg_partition_tree(CAST(:oid AS oid))
    UNION SELECT CAST(:oid AS oid)) t"""


def stored_table(connection: Connection, table: TableId) -> StoredTable | None:
    """Returns a table of the database, or None if there is no table with this name.

    Raises:
        ConfigError: Other tables inherit from the table.
    """
    import sqlalchemy as sa

    named = {"schema": table.schema, "name": table.name}
    table_row = connection.execute(sa.text(_TABLE), named).first()
    if table_row is None:
        return None
    oid, sort, has_children, sends_rows = table_row
    if plain(sort) == "r" and _is_true(has_children):
        raise ConfigError(_CHILDREN, table=str(table))
    parameters = {"oid": plain(oid)}
    columns = [_column(row) for row in connection.execute(sa.text(_COLUMNS), parameters)]
    types, generated = (
        {column.name: column.type for column in columns if column.generated is kind} for kind in (False, True)
    )
    required = frozenset(column.name for column in columns if column.required)
    key = _key(connection, parameters)
    order = key_orders(connection, plain(oid))
    return StoredTable(
        types,
        key,
        _rows(connection, table),
        int(plain(connection.execute(sa.text(_BYTES), parameters).scalar_one())),
        required=required,
        generated=generated,
        order=order_digest([(name, order[name]) for name in key]),
        identity=_identity(connection, parameters),
        sends_rows=_is_true(sends_rows),
        primary=frozenset(plain(name) for (name,) in connection.execute(sa.text(_PRIMARY), parameters)),
    )


# Like ``_COLUMNS``, and with each column's default.
_DEFINED: Final = """
WITH RECURSIVE found AS (
    SELECT a.attnum, a.attname, a.attnotnull, a.atttypid AS type, a.atttypmod AS mod,
        CASE WHEN a.attgenerated <> '' OR a.attidentity <> '' THEN 'now()'
            ELSE pg_catalog.pg_get_expr(d.adbin, d.adrelid) END AS value
    FROM pg_catalog.pg_attribute a
    LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = CAST(:oid AS oid) AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT f.attnum, f.attname, f.attnotnull OR t.typnotnull, t.typbasetype, t.typtypmod, f.value
    FROM found f JOIN pg_catalog.pg_type t ON t.oid = f.type WHERE t.typtype = 'd'
)
SELECT f.attname, f.attnotnull, pg_catalog.format_type(f.type, f.mod), t.typname, t.typtype, t.typcategory,
    f.value
FROM found f JOIN pg_catalog.pg_type t ON t.oid = f.type WHERE t.typtype <> 'd' ORDER BY f.attnum"""
# Names of types in a SQL statement, by their names in the catalog. The types in ``_WORDS`` have the same name
# in both.
_NAMES: Final[Mapping[str, str]] = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "timestamptz": "timestamp with time zone",
    "timetz": "time with time zone",
}
# Types whose size determines how their values are sent.
_SIZED: Final = ("bit", "varbit", "numeric", "time", "timestamp")
_WORDS: Final = frozenset(
    (
        *("oid", "date", "interval", "hstore", "bytea"),
        *("json", "jsonb", "uuid", "xml", "money", "point", "geometry", "geography"),
    )
)
# A constant default as ``pg_get_expr`` writes it, optionally followed by a cast to its type.
_CONSTANT: Final = re.compile(r"('(?:[^']|'')*'|-?\d+(?:\.\d+)?|true|false)(?:::[^|+*/-]+)?", re.ASCII)
_NULL: Final = re.compile(r"NULL(?:::.*)?", re.DOTALL)


def create_statement(connection: Connection, table: TableId) -> str | None:
    """Returns a CREATE TABLE statement for a table in its current form, or None if the table does not exist.

    The columns have the types that Debezium's records have. A domain is replaced by its base type, an enum by
    text, and a type that the connector does not support by bytea, because the connector sends the bytes of
    its text.
    """
    import sqlalchemy as sa

    table_row = connection.execute(sa.text(_TABLE), {"schema": table.schema, "name": table.name}).first()
    if table_row is None:
        return None
    parameters = {"oid": plain(table_row[0])}
    columns = [
        f"{_quoted_name(plain(row[0]))} {_defined_type(*map(plain, row[2:6]))}{_constraints(row)}"
        for row in connection.execute(sa.text(_DEFINED), parameters)
    ]
    key = [_quoted_name(plain(name)) for (name,) in connection.execute(sa.text(_PRIMARY), parameters)]
    parts = [*columns, f"PRIMARY KEY ({', '.join(key)})"] if key else columns
    return f"CREATE TABLE {_quoted_name(table.schema)}.{_quoted_name(table.name)} ({', '.join(parts)})"


def _quoted_name(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _defined_type(sql: str, word: str, kind: str, category: str) -> str:
    """Returns the type of a column for a CREATE TABLE statement."""
    column_type = _type(sql, word, is_enum=kind == "e", is_array=category == "A")
    if column_type.name == "array":
        return "text[]"
    if word in _SIZED and column_type.name != "other binary":
        return sql
    if word in _NAMES or word in _WORDS:
        return _NAMES.get(word, word)
    return "text" if column_type.name == "other text" else "bytea"


def _constraints(row: Sequence[Any]) -> str:
    """Returns a column's NOT NULL and DEFAULT. A default that is computed for each row becomes ``now()``."""
    required = " NOT NULL" if _is_true(row[1]) else ""
    value = plain(row[6])
    if not value or _NULL.fullmatch(value):
        return required
    constant = _CONSTANT.fullmatch(value)
    return f"{required} DEFAULT {constant[1] if constant else 'now()'}"


def key_orders(connection: Connection, oid: str) -> dict[str, str]:
    """Returns, by column name, a text that describes what determines the sort order of the column's values.

    ``oid``: the table's OID.
    """
    import sqlalchemy as sa

    has_version = (connection.dialect.server_version_info or (0,)) >= (15,)
    query = _ORDER.format(database_version=_DATABASE_VERSION if has_version else "NULL")
    return {plain(name): plain(text) for name, text in connection.execute(sa.text(query), {"oid": oid})}


def row_key_constants(connection: Connection, table: TableId) -> Mapping[str, str]:  # noqa: ARG001
    """Returns an empty mapping, because Postgres has no row id that stays the same when a row is updated."""
    return {}


def _column(row: Sequence[Any]) -> _Column:
    name, required, generated, sql, word, kind, category = row
    column_type = _type(plain(sql), plain(word), is_enum=plain(kind) == "e", is_array=plain(category) == "A")
    return _Column(plain(name), column_type, _is_true(required), _is_true(generated))


def _key(connection: Connection, parameters: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the columns of the primary key, or else of the first unique index whose columns are
    NOT NULL.
    """
    import json

    import sqlalchemy as sa

    names = connection.execute(sa.text(_KEYS), parameters).scalar()
    return tuple(json.loads(plain(names))) if names is not None else ()


def _identity(connection: Connection, parameters: Mapping[str, str]) -> frozenset[str] | None:
    """Returns the columns of the table's replica identity, which Postgres sends for a deleted row.

    Returns None if whole rows are sent, or if partitions have replica identities of their own.
    """
    import json

    import sqlalchemy as sa

    names = connection.execute(sa.text(_IDENTITY), parameters).scalar()
    return frozenset(json.loads(plain(names))) if names is not None else None


def _rows(connection: Connection, table: TableId) -> int:
    """Returns the planner's estimate of the number of rows, which exists even without statistics."""
    import json

    import sqlalchemy as sa

    query: Select[Any] = sa.select(sa.literal_column("1")).select_from(table_of(table))
    text = str(query.compile(dialect=connection.dialect))
    (plan,) = json.loads(plain(connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {text}").scalar_one()))
    return int(plan["Plan"]["Plan Rows"])


# Column types by the catalog's type names. They determine how texts are read. All other types are text or
# binary.
_TYPES: Final[Mapping[str, str]] = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "oid": "bigint",
    "float4": "float",
    "float8": "double",
    "date": "local date",
    "timestamp": "local datetime",
    "timestamptz": "instant",
    "time": "local time",
    "timetz": "zoned time",
    "interval": "interval",
    "hstore": "map",
    "bytea": "other binary",
}
# Types that Debezium's connector sends as text, or converts from their text.
_TEXTS: Final = frozenset(
    (
        *("bpchar", "varchar", "text", "name", "char", "citext", "isbn", "json", "jsonb", "uuid", "xml"),
        *("ltree", "tsvector", "inet", "cidr", "macaddr", "macaddr8", "numeric", "money", "point"),
        *("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"),
    )
)
_MOST_BITS: Final = 64
# Types of PostGIS, whose texts are EWKB in hex.
_SHAPES: Final = re.compile(r"(?:.*\.)?geo(?:metry|graphy)\b", re.ASCII)
_SIZE: Final = re.compile(r"\((\d+)\)")


def _type(sql: str, word: str, *, is_enum: bool, is_array: bool) -> ColumnType:
    """Returns the type of a column from the catalog's names for it.

    ``sql``: the full type name, which becomes the result's ``sql``. ``word``: the short type name. A type
    that the connector does not support is binary, because the connector sends the bytes of its text or
    nothing.
    """
    if is_array:
        return ColumnType("array", sql=sql)
    if word in ("bit", "varbit"):
        size = _SIZE.search(sql)
        length = int(size[1]) if size else 1 if word == "bit" else None
        if length is None or length > _MOST_BITS:
            return ColumnType("other binary", length=length, sql=sql)
        return ColumnType("bit", length=length, sql=sql)
    if is_enum or word in _TEXTS:
        return ColumnType("other text", sql=sql)
    return ColumnType(_TYPES.get(word, "other binary"), sql=sql)


def _is_money(column_type: ColumnType) -> bool:
    return column_type.sql == "money"


def selected(name: str, column_type: ColumnType) -> ColumnElement[Any]:
    """Returns the expression that a query selects for a column.

    Money is selected as a number, because its text depends on the server's locale.
    """
    import sqlalchemy as sa

    column = column_of(name)
    return sa.cast(column, sa.Numeric) if _is_money(column_type) else column


def column_batches(
    connection: Connection, query: Select[Any], types: Sequence[ColumnType], rows: int
) -> Iterator[list[pa.Array]]:
    """Yields the rows of a query as Arrow arrays, one per column, with a server-side cursor."""
    from tidesink.source_database.arrow_rows import batches_of_rows

    return batches_of_rows(connection, query, types, rows, value_reader)


def value_reader(column_type: ColumnType) -> ValueReader | None:
    """Returns the function that converts the texts of doubles, bits, instants and bytes.

    Returns None for other types, whose values need no conversion.
    """
    readers: Mapping[str, Callable[[str], Selected]] = {
        "float32": float,
        "float64": float,
        "bit": _bits,
        "instant": _instant,
        "binary": partial(_binary, column_type.sql or ""),
    }
    return readers.get(row_of(column_type).reader)


def _bits(text: str) -> str:
    """Convert a text of binary digits to a decimal number."""
    return str(int(text or "0", 2))


def _instant(text: str) -> str:
    """Convert the time zone of an instant's text to ISO 8601's form. It is always UTC, as in the session."""
    return text.replace("+00", "+00:00")


def _binary(sql: str, text: str) -> bytes:
    if sql.startswith("bit"):
        number = int(text or "0", 2)
        return number.to_bytes((number.bit_length() + 7) // 8, "little")
    if sql == "bytea":
        return bytes.fromhex(text.removeprefix("\\x"))
    return bytes.fromhex(text) if _SHAPES.match(sql) else text.encode()


def text_of(value: Any, _column_type: ColumnType) -> str:
    """Returns the selected text."""
    return plain(value)


def key_text(text: str, column_type: ColumnType) -> str:
    """Convert a value's text in canal-json to Postgres' text of the value. Binary values are in latin-1."""
    reader = row_of(column_type).reader
    if reader == "bit":
        return format(int(text), f"0{column_type.length or 1}b")
    if reader != "binary":
        return text
    data = text.encode("latin-1")
    return f"\\x{data.hex()}" if column_type.sql == "bytea" else data.decode(errors="replace")


def compared(name: str, _column_type: ColumnType) -> ColumnElement[Any]:
    """Returns the column itself, because it can be compared without a conversion."""
    return column_of(name)


def parameter_of(text: str | None, column_type: ColumnType) -> Any:
    """Returns an expression that the database casts from text to the column's type."""
    import sqlalchemy as sa
    from sqlalchemy.types import UserDefinedType

    class Named(UserDefinedType[Any]):
        cache_ok = False

        def get_col_spec(self, **_: Any) -> str:
            return (column_type.sql or "text").replace("%", "%%")  # escaped for the driver

    value: ColumnElement[Any] = sa.literal(text, sa.Text)
    return sa.cast(sa.cast(value, sa.Numeric) if _is_money(column_type) else value, Named())


def bounded(
    key: Sequence[str], types: Mapping[str, ColumnType], bound: KeyTexts, *, above: bool
) -> ColumnElement[bool]:
    """Returns the SQL condition that the key is greater than ``bound``, or with ``above=False``, at most
    ``bound``.

    Row comparisons can use an index.
    """
    import sqlalchemy as sa

    columns = [column_of(name) for name in key]
    values = [parameter_of(text, types[name]) for name, text in zip(key, bound, strict=True)]
    left, right = (columns[0], values[0]) if len(key) == 1 else (sa.tuple_(*columns), sa.tuple_(*values))
    condition: ColumnElement[bool] = left > right if above else left <= right
    return condition


def _is_true(value: Any) -> bool:
    return plain(value).lower() in ("t", "true")


def keep_texts(connection: Any) -> None:
    """Configure a psycopg connection to return each value as the text that the server sends."""
    import psycopg
    from psycopg.types.string import TextLoader

    for info in psycopg.adapters.types:
        for oid in (info.oid, info.array_oid):
            if oid:
                connection.adapters.register_loader(oid, TextLoader)


# A quotation: from the first opening quotation mark to the last closing one, because a name may contain a
# mark.
_QUOTED: Final = re.compile(r"""(?<!\w)["'«„“‘].*["'»“”’]""")


def without_quotes(words: str) -> str:
    """Returns a server's message without its quoted parts, which may be row values."""
    return _QUOTED.sub('"…"', words)
