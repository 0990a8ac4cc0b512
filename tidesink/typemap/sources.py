"""Other databases' types and the Connect schemas in which Debezium 3.5 sends them, in its default modes.

``captured`` rows were seen in events of real connectors (MariaDB 10.11, PostgreSQL 15). ``documented`` rows
are from Debezium's documentation: of its connectors for Oracle and SQL Server, which no capture could be had
from, and of types the captured tables did not have. What a column's schema says always counts; this table
says what to expect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class SourceType:
    """Types of one database that arrive alike: as ``wire``, named ``name`` where they have a name."""

    database: str
    types: str
    wire: str
    name: str | None = None
    seen: Literal["captured", "documented"] = "captured"
    note: str = ""


_TIME: Final = "io.debezium.time."
_DATA: Final = "io.debezium.data."
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_MARIADB: Final = "MySQL, MariaDB"
_POSTGRES: Final = "PostgreSQL"
_ORACLE: Final = "Oracle"
_SQL_SERVER: Final = "SQL Server"


def _documented(database: str, types: str, wire: str, name: str | None = None, note: str = "") -> SourceType:
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
    _documented(_MARIADB, "GEOMETRY and its other kinds", "struct", _DATA + "geometry.Geometry"),
    _documented(_MARIADB, "VECTOR", "array", _DATA + "FloatVector"),
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
    _documented(_POSTGRES, "geometry (PostGIS)", "struct", _DATA + "geometry.Geometry"),
    _documented(_POSTGRES, "geography (PostGIS)", "struct", _DATA + "geometry.Geography"),
    _documented(_POSTGRES, "vector (pgvector)", "array", _DATA + "DoubleVector"),
    _documented(_POSTGRES, "halfvec (pgvector)", "array", _DATA + "FloatVector"),
    _documented(_POSTGRES, "sparsevec (pgvector)", "struct", _DATA + "SparseVector"),
    _documented(_ORACLE, "CHAR, VARCHAR2, NCHAR, NVARCHAR2, CLOB, NCLOB, ROWID", "string"),
    _documented(_ORACLE, "RAW, BLOB", "bytes"),
    _documented(_ORACLE, "NUMBER, FLOAT, REAL, DOUBLE PRECISION", "struct", _DATA + "VariableScaleDecimal"),
    _documented(_ORACLE, "NUMBER(p,s), s > 0; INTEGER, SMALLINT", "bytes", _DECIMAL),
    _documented(_ORACLE, "NUMBER(p,s), s <= 0, p - s < 3", "int8"),
    _documented(_ORACLE, "NUMBER(p,s), s <= 0, p - s < 5", "int16"),
    _documented(_ORACLE, "NUMBER(p,s), s <= 0, p - s < 10", "int32"),
    _documented(_ORACLE, "NUMBER(p,s), s <= 0, p - s < 19", "int64"),
    _documented(_ORACLE, "BINARY_FLOAT", "float32"),
    _documented(_ORACLE, "BINARY_DOUBLE", "float64"),
    _documented(_ORACLE, "DATE, TIMESTAMP(0) to (3)", "int64", _TIME + "Timestamp"),
    _documented(_ORACLE, "TIMESTAMP(4) to (6)", "int64", _TIME + "MicroTimestamp"),
    _documented(_ORACLE, "TIMESTAMP(7) to (9)", "int64", _TIME + "NanoTimestamp"),
    _documented(_ORACLE, "TIMESTAMP WITH (LOCAL) TIME ZONE", "string", _TIME + "ZonedTimestamp"),
    _documented(_ORACLE, "INTERVAL", "int64", _TIME + "MicroDuration", "a double where its schema says so"),
    _documented(_ORACLE, "XMLTYPE", "string", _DATA + "Xml"),
    _documented(_SQL_SERVER, "BIT", "boolean"),
    _documented(_SQL_SERVER, "TINYINT, SMALLINT", "int16"),
    _documented(_SQL_SERVER, "INT", "int32"),
    _documented(_SQL_SERVER, "BIGINT", "int64"),
    _documented(_SQL_SERVER, "REAL", "float32"),
    _documented(_SQL_SERVER, "FLOAT", "float64"),
    _documented(_SQL_SERVER, "DECIMAL, NUMERIC, MONEY, SMALLMONEY", "bytes", _DECIMAL),
    _documented(_SQL_SERVER, "CHAR, VARCHAR, TEXT, NCHAR, NVARCHAR, NTEXT", "string"),
    _documented(_SQL_SERVER, "BINARY, VARBINARY", "bytes"),
    _documented(_SQL_SERVER, "XML", "string", _DATA + "Xml"),
    _documented(_SQL_SERVER, "DATE", "int32", _TIME + "Date"),
    _documented(_SQL_SERVER, "TIME(0) to (3)", "int32", _TIME + "Time"),
    _documented(_SQL_SERVER, "TIME(4) to (6)", "int64", _TIME + "MicroTime"),
    _documented(_SQL_SERVER, "TIME(7)", "int64", _TIME + "NanoTime"),
    _documented(_SQL_SERVER, "DATETIME, SMALLDATETIME, DATETIME2(0) to (3)", "int64", _TIME + "Timestamp"),
    _documented(_SQL_SERVER, "DATETIME2(4) to (6)", "int64", _TIME + "MicroTimestamp"),
    _documented(_SQL_SERVER, "DATETIME2(7)", "int64", _TIME + "NanoTimestamp"),
    _documented(_SQL_SERVER, "DATETIMEOFFSET", "string", _TIME + "ZonedTimestamp"),
)
