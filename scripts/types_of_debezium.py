"""The sections of docs/types.md about Debezium: other databases' types and semantic types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tidesink.typemap.debezium_types import PLAIN_TYPES, SEMANTIC_TYPES, semantic_type
from tidesink.typemap.table import OTHER_TYPES

Table = Callable[[str, Iterable[Sequence[object]]], str]

OTHER = """
## Types TiDB has not

Columns of other databases, as Debezium tells them, have these types besides those above. Text of dates and
times has no zeros at the end of a fraction; an instant has its offset (`2024-02-29 10:34:56.5+00:00`).
"""
SEMANTIC = """
## Debezium's semantic types

What a Connect schema's name makes of a field, in Avro and in JSON with schemas. `captured` was seen in events
of real connectors, `documented` is from Debezium's documentation and source. A schema without one of these
names is read by its Connect type alone.
"""
SOURCES = """
## From a database to Debezium

The schemas in which Debezium 3.5 sends a column's values, in its default modes. What no schema tells is in
[debezium-values.md](debezium-values.md).
"""


_TIME: Final = "io.debezium.time."
_DATA: Final = "io.debezium.data."


@dataclass(frozen=True)
class SourceType:
    """Types of one database that arrive in one form: as ``wire``, named ``name`` where they have a name."""

    database: str
    types: str
    wire: str
    name: str | None = None
    seen: Literal["captured", "documented"] = "captured"
    note: str = ""


_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_MARIADB: Final = "MySQL, MariaDB"
_POSTGRES: Final = "PostgreSQL"
_ORACLE: Final = "Oracle"
_SQL_SERVER: Final = "SQL Server"


def _documented_source(
    database: str, types: str, wire: str, name: str | None = None, note: str = ""
) -> SourceType:
    return SourceType(database, types, wire, name, "documented", note)


SOURCE_TYPES: Final[tuple[SourceType, ...]] = (
    SourceType(_MARIADB, "TINYINT, SMALLINT, TINYINT UNSIGNED, BOOLEAN", "int16"),
    SourceType(_MARIADB, "MEDIUMINT, INT, SMALLINT UNSIGNED, MEDIUMINT UNSIGNED", "int32"),
    SourceType(_MARIADB, "BIGINT, INT UNSIGNED", "int64"),
    SourceType(_MARIADB, "BIGINT UNSIGNED", "int64", note="mode long: negative above 2^63-1, see below"),
    SourceType(_MARIADB, "DECIMAL", "bytes", _DECIMAL),
    SourceType(_MARIADB, "FLOAT", "float32"),
    SourceType(_MARIADB, "DOUBLE", "float64"),
    SourceType(_MARIADB, "BIT(1)", "boolean"),
    SourceType(_MARIADB, "BIT(2) to BIT(64)", "bytes", _DATA + "Bits"),
    SourceType(_MARIADB, "CHAR, VARCHAR, TEXT", "string"),
    SourceType(_MARIADB, "BINARY, VARBINARY, BLOB", "bytes"),
    SourceType(_MARIADB, "JSON", "string", _DATA + "Json"),
    SourceType(
        _MARIADB, "UUID (MariaDB)", "string", _DATA + "Uuid", note="3.5.0 mixes up its parts in streaming"
    ),
    SourceType(_MARIADB, "ENUM", "string", _DATA + "Enum"),
    SourceType(_MARIADB, "SET", "string", _DATA + "EnumSet"),
    SourceType(_MARIADB, "YEAR", "int32", _TIME + "Year"),
    SourceType(_MARIADB, "DATE", "int32", _TIME + "Date", note="a zero date is null, in NOT NULL 1970-01-01"),
    SourceType(
        _MARIADB, "TIME", "int64", _TIME + "MicroTime", note="connect, isostring: null outside one day"
    ),
    SourceType(
        _MARIADB, "DATETIME(0) to (3)", "int64", _TIME + "Timestamp", note="years 1 to 69 are 2001 to 2069"
    ),
    SourceType(_MARIADB, "DATETIME(4) to (6)", "int64", _TIME + "MicroTimestamp"),
    SourceType(_MARIADB, "TIMESTAMP", "string", _TIME + "ZonedTimestamp"),
    SourceType(_MARIADB, "POINT", "struct", _DATA + "geometry.Point"),
    _documented_source(_MARIADB, "GEOMETRY and its other kinds", "struct", _DATA + "geometry.Geometry"),
    _documented_source(_MARIADB, "VECTOR", "array", _DATA + "FloatVector"),
    SourceType(_POSTGRES, "smallint", "int16"),
    SourceType(_POSTGRES, "integer, serial", "int32"),
    SourceType(_POSTGRES, "bigint, bigserial", "int64"),
    SourceType(_POSTGRES, "real", "float32"),
    SourceType(_POSTGRES, "double precision", "float64"),
    SourceType(_POSTGRES, "boolean, bit(1)", "boolean"),
    SourceType(
        _POSTGRES, "bit(n), bit varying(n)", "bytes", _DATA + "Bits", note="a bit varying's length is lost"
    ),
    SourceType(_POSTGRES, "numeric(p,s)", "bytes", _DECIMAL),
    SourceType(_POSTGRES, "numeric", "struct", _DATA + "VariableScaleDecimal"),
    SourceType(_POSTGRES, "money", "bytes", _DECIMAL, note="no precision; snapshots round large amounts"),
    SourceType(_POSTGRES, "char, varchar, text, citext, name", "string"),
    SourceType(_POSTGRES, "inet, cidr, macaddr, ranges", "string"),
    SourceType(_POSTGRES, "bytea", "bytes"),
    SourceType(_POSTGRES, "json, jsonb, hstore (mode json)", "string", _DATA + "Json"),
    SourceType(_POSTGRES, "hstore (mode map)", "map"),
    SourceType(_POSTGRES, "uuid", "string", _DATA + "Uuid"),
    SourceType(_POSTGRES, "xml", "string", _DATA + "Xml"),
    SourceType(_POSTGRES, "ltree", "string", _DATA + "Ltree"),
    SourceType(_POSTGRES, "tsvector", "string", _DATA + "Tsvector"),
    SourceType(_POSTGRES, "enumerations", "string", _DATA + "Enum"),
    SourceType(_POSTGRES, "date", "int32", _TIME + "Date"),
    SourceType(_POSTGRES, "time(0) to (3)", "int32", _TIME + "Time"),
    SourceType(_POSTGRES, "time", "int64", _TIME + "MicroTime"),
    SourceType(_POSTGRES, "timetz", "string", _TIME + "ZonedTime", note="moved to UTC; 24:00:00 is 00:00:00"),
    SourceType(_POSTGRES, "timestamp(0) to (3)", "int64", _TIME + "Timestamp"),
    SourceType(_POSTGRES, "timestamp", "int64", _TIME + "MicroTimestamp"),
    SourceType(_POSTGRES, "timestamptz", "string", _TIME + "ZonedTimestamp"),
    SourceType(_POSTGRES, "interval", "int64", _TIME + "MicroDuration"),
    SourceType(_POSTGRES, "arrays", "array", note="of two dimensions: the rows are null"),
    SourceType(_POSTGRES, "point", "struct", _DATA + "geometry.Point"),
    _documented_source(_POSTGRES, "geometry (PostGIS)", "struct", _DATA + "geometry.Geometry"),
    _documented_source(_POSTGRES, "geography (PostGIS)", "struct", _DATA + "geometry.Geography"),
    _documented_source(_POSTGRES, "vector (pgvector)", "array", _DATA + "DoubleVector"),
    _documented_source(_POSTGRES, "halfvec (pgvector)", "array", _DATA + "FloatVector"),
    _documented_source(_POSTGRES, "sparsevec (pgvector)", "struct", _DATA + "SparseVector"),
    _documented_source(_ORACLE, "CHAR, VARCHAR2, NCHAR, NVARCHAR2, CLOB, NCLOB, ROWID", "string"),
    _documented_source(_ORACLE, "RAW, BLOB", "bytes"),
    _documented_source(
        _ORACLE, "NUMBER, FLOAT, REAL, DOUBLE PRECISION", "struct", _DATA + "VariableScaleDecimal"
    ),
    _documented_source(_ORACLE, "NUMBER(p,s), s > 0; INTEGER, SMALLINT", "bytes", _DECIMAL),
    _documented_source(_ORACLE, "NUMBER(p,s), s <= 0, p - s < 3", "int8"),
    _documented_source(_ORACLE, "NUMBER(p,s), s <= 0, p - s < 5", "int16"),
    _documented_source(_ORACLE, "NUMBER(p,s), s <= 0, p - s < 10", "int32"),
    _documented_source(_ORACLE, "NUMBER(p,s), s <= 0, p - s < 19", "int64"),
    _documented_source(_ORACLE, "BINARY_FLOAT", "float32"),
    _documented_source(_ORACLE, "BINARY_DOUBLE", "float64"),
    _documented_source(_ORACLE, "DATE, TIMESTAMP(0) to (3)", "int64", _TIME + "Timestamp"),
    _documented_source(_ORACLE, "TIMESTAMP(4) to (6)", "int64", _TIME + "MicroTimestamp"),
    _documented_source(_ORACLE, "TIMESTAMP(7) to (9)", "int64", _TIME + "NanoTimestamp"),
    _documented_source(_ORACLE, "TIMESTAMP WITH (LOCAL) TIME ZONE", "string", _TIME + "ZonedTimestamp"),
    _documented_source(
        _ORACLE, "INTERVAL", "int64", _TIME + "MicroDuration", "a double where its schema says so"
    ),
    _documented_source(_ORACLE, "XMLTYPE", "string", _DATA + "Xml"),
    _documented_source(_SQL_SERVER, "BIT", "boolean"),
    _documented_source(_SQL_SERVER, "TINYINT, SMALLINT", "int16"),
    _documented_source(_SQL_SERVER, "INT", "int32"),
    _documented_source(_SQL_SERVER, "BIGINT", "int64"),
    _documented_source(_SQL_SERVER, "REAL", "float32"),
    _documented_source(_SQL_SERVER, "FLOAT", "float64"),
    _documented_source(_SQL_SERVER, "DECIMAL, NUMERIC, MONEY, SMALLMONEY", "bytes", _DECIMAL),
    _documented_source(_SQL_SERVER, "CHAR, VARCHAR, TEXT, NCHAR, NVARCHAR, NTEXT", "string"),
    _documented_source(_SQL_SERVER, "BINARY, VARBINARY", "bytes"),
    _documented_source(_SQL_SERVER, "XML", "string", _DATA + "Xml"),
    _documented_source(_SQL_SERVER, "DATE", "int32", _TIME + "Date"),
    _documented_source(_SQL_SERVER, "TIME(0) to (3)", "int32", _TIME + "Time"),
    _documented_source(_SQL_SERVER, "TIME(4) to (6)", "int64", _TIME + "MicroTime"),
    _documented_source(_SQL_SERVER, "TIME(7)", "int64", _TIME + "NanoTime"),
    _documented_source(
        _SQL_SERVER, "DATETIME, SMALLDATETIME, DATETIME2(0) to (3)", "int64", _TIME + "Timestamp"
    ),
    _documented_source(_SQL_SERVER, "DATETIME2(4) to (6)", "int64", _TIME + "MicroTimestamp"),
    _documented_source(_SQL_SERVER, "DATETIME2(7)", "int64", _TIME + "NanoTimestamp"),
    _documented_source(_SQL_SERVER, "DATETIMEOFFSET", "string", _TIME + "ZonedTimestamp"),
)
# The readers know every schema that the table names.
assert all(s.name is None or semantic_type(s.name, s.wire) for s in SOURCE_TYPES)


def section(table: Table) -> str:
    """The sections, tables by ``table``."""
    other = [(r.name, ", ".join(r.spellings), r.python, r.spark, r.lost) for r in OTHER_TYPES]
    named = [
        (f"`{s.name}`", ", ".join(s.wire), s.type, s.seen, s.note)
        for s in sorted(SEMANTIC_TYPES, key=lambda one: one.name)
    ]
    plain = [(f"none: {wire}", wire, kind, "captured", "") for wire, kind in PLAIN_TYPES.items()]
    sources = [
        (s.database, s.types, s.wire, f"`{s.name}`" if s.name else "", s.seen, s.note) for s in SOURCE_TYPES
    ]
    return (
        OTHER
        + table("type|also spelt|Python|Delta, Iceberg|what is lost or changed", other)
        + SEMANTIC
        + table("name|Connect type|type|seen|note", [*named, *plain])
        + SOURCES
        + table("database|types|Connect type|name|seen|note", sources)
    )
