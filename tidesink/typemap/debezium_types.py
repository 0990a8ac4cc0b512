"""The types of Debezium and Kafka Connect: semantic names, and the types of databases behind them.

A Connect schema without a name is read by its type alone; one with a name is read as a row of the type
table (``SEMANTIC_TYPES``). ``SOURCE_TYPES`` lists the types of other databases and the Connect schemas in
which Debezium 3.5 sends them in its default modes: the schema of a column always counts, this table says
what to expect.

``captured`` rows were seen in events of real connectors (MariaDB 10.11, PostgreSQL 15). ``documented`` rows
are from Debezium's documentation and source: the connectors for Oracle and SQL Server, of which no capture
was available, and types that the captured tables did not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Form = Literal[
    "plain",
    "days",
    "time_ms",
    "time_us",
    "time_ns",
    "timestamp_ms",
    "timestamp_us",
    "timestamp_ns",
    "iso_date",
    "iso_time",
    "iso_timestamp",
    "zoned_timestamp",
    "unscaled",
    "variable_scale",
    "bits",
    "geometry",
    "structure",
]


@dataclass(frozen=True)
class SemanticType:
    """One semantic type.

    ``name`` is the Connect schema's name, ``wire`` the Connect types it comes in, ``type`` the logical
    type of ``typemap.table``, ``form`` how a value is written. ``fsp`` are the digits of a second the
    form can hold. ``seen`` says what the row rests on.
    """

    name: str
    wire: tuple[str, ...]
    type: str
    form: Form = "plain"
    fsp: int | None = None
    seen: Literal["captured", "documented"] = "captured"
    note: str = ""


_TIME: Final = "io.debezium.time."
_DATA: Final = "io.debezium.data."
_CONNECT: Final = "org.apache.kafka.connect.data."
_INT: Final = ("int32",)
_LONG: Final = ("int64",)
_STRING: Final = ("string",)
_STRUCT: Final = ("struct",)


def _documented(
    name: str, wire: tuple[str, ...], kind: str, form: Form = "plain", note: str = ""
) -> SemanticType:
    return SemanticType(name, wire, kind, form, seen="documented", note=note)


_INFINITE = (
    "days, ms or us that stand for infinity are given back as infinity, as PostgreSQL's connector sends them"
)
_VECTOR = "JSON text of numbers"

SEMANTIC_TYPES: Final[tuple[SemanticType, ...]] = (
    SemanticType(_TIME + "Date", _INT, "local date", "days", note=_INFINITE),
    SemanticType(_TIME + "Time", _INT, "local time", "time_ms"),
    SemanticType(_TIME + "MicroTime", _LONG, "local time", "time_us"),
    SemanticType(_TIME + "NanoTime", _LONG, "local time", "time_ns", seen="documented"),
    SemanticType(_TIME + "Timestamp", _LONG, "local datetime", "timestamp_ms", note=_INFINITE),
    SemanticType(_TIME + "MicroTimestamp", _LONG, "local datetime", "timestamp_us", note=_INFINITE),
    SemanticType(_TIME + "NanoTimestamp", _LONG, "local datetime", "timestamp_ns", 9, seen="documented"),
    SemanticType(_TIME + "ZonedTime", _STRING, "zoned time"),
    SemanticType(_TIME + "ZonedTimestamp", _STRING, "instant", "zoned_timestamp"),
    SemanticType(_TIME + "IsoDate", _STRING, "local date", "iso_date"),
    SemanticType(_TIME + "IsoTime", _STRING, "local time", "iso_time"),
    SemanticType(_TIME + "IsoTimestamp", _STRING, "local datetime", "iso_timestamp"),
    SemanticType(_TIME + "Year", _INT, "year"),
    SemanticType(_TIME + "Interval", _STRING, "interval", note="interval.handling.mode: string"),
    SemanticType(_TIME + "MicroDuration", _LONG, "microseconds", note="a month counts 30.4375 days"),
    _documented(_TIME + "NanoDuration", _LONG, "nanoseconds"),
    SemanticType(_CONNECT + "Decimal", ("bytes",), "decimal", "unscaled"),
    SemanticType(_CONNECT + "Date", _INT, "local date", "days", note="time.precision.mode: connect"),
    SemanticType(_CONNECT + "Time", _INT, "local time", "time_ms", note="time.precision.mode: connect"),
    SemanticType(
        _CONNECT + "Timestamp", _LONG, "local datetime", "timestamp_ms", note="time.precision.mode: connect"
    ),
    SemanticType(
        _DATA + "VariableScaleDecimal", _STRUCT, "decimal", "variable_scale", note="kept as text in Delta"
    ),
    SemanticType(
        _DATA + "Bits", ("bytes",), "bit", "bits", note="longer than 64: its bytes, the lowest first"
    ),
    SemanticType(_DATA + "Enum", _STRING, "enum"),
    SemanticType(_DATA + "EnumSet", _STRING, "set"),
    SemanticType(_DATA + "Json", _STRING, "json"),
    SemanticType(_DATA + "Uuid", _STRING, "uuid"),
    SemanticType(_DATA + "Xml", _STRING, "xml"),
    SemanticType(_DATA + "Ltree", _STRING, "ltree"),
    SemanticType(_DATA + "Tsvector", _STRING, "tsvector"),
    _documented(_DATA + "DoubleVector", ("array",), "vector", "structure", _VECTOR),
    _documented(_DATA + "FloatVector", ("array",), "vector", "structure", _VECTOR),
    _documented(_DATA + "SparseVector", _STRUCT, "sparse vector", "structure"),
    SemanticType(_DATA + "TiDBVectorFloat32", _STRING, "vector", note="TiCDC (ticdc b813e76)"),
    SemanticType(_DATA + "geometry.Point", _STRUCT, "geometry", "geometry"),
    _documented(_DATA + "geometry.Geometry", _STRUCT, "geometry", "geometry"),
    _documented(_DATA + "geometry.Geography", _STRUCT, "geography", "geometry"),
)

# What a Connect schema without a semantic name is read as.
PLAIN_TYPES: Final[dict[str, str]] = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "boolean": "boolean",
    "string": "text",
    "bytes": "blob",
    "array": "array",
    "map": "map",
    "struct": "struct",
}

_BY_NAME: Final = {semantic.name: semantic for semantic in SEMANTIC_TYPES}


def semantic_type(name: str | None, wire: str) -> SemanticType | None:
    """The semantic type a schema names; None where it names none that is known in this Connect type."""
    found = _BY_NAME.get(name or "")
    return found if found is not None and wire in found.wire else None


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
