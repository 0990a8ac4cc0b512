"""The table of types: the only definition of type names in tidesink, with look-ups for each side.

Sources: TiCDC classic (tiflow c7b2588) and TiCDC new architecture (ticdc b813e76), checked against bytes from
their encoders. The type of an Avro field is found by its ``connect.parameters.tidb_type`` and its Avro type,
a type in canal-json by the ``mysqlType`` word.

Debezium and Kafka Connect mark types with semantic names. A Connect schema without a name is read only by its
type; a schema with a known name is read as the type in ``SEMANTIC_TYPES``. An unknown name that begins like
Debezium's, Kafka Connect's or Confluent's names raises an error. Values under any other unknown name are read
by their Connect type, with a warning (``unknown_name``). ``captured`` names were seen in events of real
connectors (MariaDB 10.11, PostgreSQL 15), ``documented`` names come from Debezium's documentation and source.

``docs/types.md`` is generated from this table (``scripts/generate_docs.py``). Iceberg tables are created
through Spark, so Iceberg's types follow from Spark's types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypedDict, get_args

from tidesink.errors import ConfigError, shown
from tidesink.events import ColumnType

CalendarReader = Literal["date", "datetime", "timestamp", "local_date", "local_datetime", "instant"]
NumberReader = Literal["integer", "unsigned64", "float32", "float64", "decimal"]
Reader = Literal[CalendarReader, NumberReader, "text", "binary", "bit", "enum", "set", "time", "boolean"]
CALENDAR_READERS: Final[frozenset[Reader]] = frozenset(get_args(CalendarReader))
# Readers of text whose shape is checked: dates and times.
SHAPED_READERS: Final[frozenset[Reader]] = CALENDAR_READERS | {"time"}
NUMBER_READERS: Final[frozenset[Reader]] = frozenset(get_args(NumberReader))

# The largest precision of Spark, Delta, Iceberg and Arrow's decimal128.
SPARK_MAX_PRECISION = 38


class Named(NamedTuple):
    """The name of a type in each database, spelled as in its catalog; None for the type of ``render_sql``."""

    postgres: str | None = None
    mysql: str | None = None


_AS_RENDERED: Final = Named()


@dataclass(frozen=True)
class TypeRow:
    """One SQL type, and its counterparts in Avro, canal-json, Python, Spark and the target databases.

    ``avro``: the Avro type in the default modes (decimals ``precise``, unsigned bigint ``long``).
    ``avro_string_mode``: the Avro type if this type's mode is ``string``. ``sql_type``: canal-json's
    ``java.sql.Types`` code. ``sql_type_above``: a limit, and the code for values above it. ``spark``: the
    type in Spark and Delta; ``{p}`` and ``{s}`` are precision and scale. ``display_width``: the width that
    TiDB shows if the DDL has no width. ``parameter``: the member of ``connect.parameters`` in addition to
    ``tidb_type``. ``from_avro``: True for the row used for an Avro field of this ``tidb_type``, if several
    rows share it. ``lost``: what the target does not store as the source does, for the documentation.
    ``bounds``: the least and the greatest value of an integer type. ``named``: the type in databases that do
    not use the type that ``render_sql`` has for the Spark type.
    """

    name: str
    tidb_type: str
    avro: str
    sql_type: int
    reader: Reader
    python: str
    spark: str
    spellings: tuple[str, ...] = ()
    avro_string_mode: str | None = None
    sql_type_above: tuple[int, int] | None = None
    display_width: int | None = None
    bounds: tuple[int, int] | None = None
    from_avro: bool = False
    parameter: Literal["length", "allowed"] | None = None
    lost: str = ""
    named: Named = _AS_RENDERED


def _words(words: str) -> tuple[str, ...]:
    return tuple(words.split(", "))


def _integer(name: str, bits: int, avro: str, sql_type: int, spark: str, width: int, **extra: Any) -> TypeRow:
    unsigned = name.endswith(" unsigned")
    big = bits == 64
    return TypeRow(
        name=name,
        tidb_type=("BIGINT" if big else "INT") + (" UNSIGNED" if unsigned else ""),
        avro=avro,
        sql_type=sql_type,
        reader="unsigned64" if big and unsigned else "integer",
        python="int",
        spark=spark,
        display_width=width,
        bounds=(0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
        **extra,
    )


def _text(name: str, sql_type: int, tidb_type: str = "TEXT", **extra: Any) -> TypeRow:
    return TypeRow(name, tidb_type, "string", sql_type, "text", "str", "string", **extra)


def _binary(name: str, **extra: Any) -> TypeRow:
    return TypeRow(name, "BLOB", "bytes", 2004, "binary", "bytes", "binary", **extra)


def _temporal(
    name: str, sql_type: int, reader: Reader, spark: str, lost: str, mysql: str | None = None
) -> TypeRow:
    row = TypeRow(name, name.upper(), "string", sql_type, reader, "str", spark, from_avro=True, lost=lost)
    return replace(row, named=Named(mysql=mysql))


def _labelled(name: str, sql_type: int, reader: Reader) -> TypeRow:
    lost = "canal-json has only a label's number; the label comes from the table definition or from DDL"
    row = TypeRow(name, name.upper(), "string", sql_type, reader, "str", "string", from_avro=True, lost=lost)
    return replace(row, parameter="allowed")


_NO_WIDTH = "Avro records have the type INT for all types from TINYINT to INT, so the column is int"
_WRAPPED = "values above 2^63-1 are negative numbers in records; they are corrected when they are read"
_LONG_DECIMAL = "with more than 38 digits or an unknown precision: stored exactly, as text"
_CALENDAR = "the setting zero-date says what an invalid calendar date becomes"
_ZONED = (
    f"{_CALENDAR}; read in the configured time zone, where ambiguous-time decides about times "
    "that occur twice"
)
_CHAR = _words("character, nchar, national char, national character")
_VARCHAR = _words(
    "character varying, char varying, nvarchar, nchar varying, nchar varchar, national varchar, "
    "national character varying, national char varying, varcharacter"
)
_DECIMAL = _words("numeric, dec, fixed, number")
_DOUBLE = _words("real, double precision, float8")
# Types that are written as text in the modes named ``string``.
_AS_TEXT: Final[dict[str, Any]] = {"avro_string_mode": "string", "from_avro": True}
_BIGINT: Final[dict[str, Any]] = {"sql_type_above": (2**63 - 1, 3), "named": Named(mysql="bigint unsigned")}
_BIT: Final[dict[str, Any]] = {"display_width": 1, "from_avro": True, "parameter": "length"}
# 0000, then 1901 to 2155.
_YEAR: Final[dict[str, Any]] = {"display_width": 4, "bounds": (0, 2155), "from_avro": True}

TYPES: tuple[TypeRow, ...] = (
    _integer("tinyint", 8, "int", -6, "int", 4, spellings=("int1",), lost=_NO_WIDTH),
    _integer("tinyint unsigned", 8, "int", -6, "int", 3, sql_type_above=(127, 5), lost=_NO_WIDTH),
    _integer("smallint", 16, "int", 5, "int", 6, spellings=("int2",), lost=_NO_WIDTH),
    _integer("smallint unsigned", 16, "int", 5, "int", 5, sql_type_above=(32767, 4), lost=_NO_WIDTH),
    _integer("mediumint", 24, "int", 4, "int", 9, spellings=("int3", "middleint"), lost=_NO_WIDTH),
    _integer("mediumint unsigned", 24, "int", 4, "int", 8, from_avro=True, lost=_NO_WIDTH),
    _integer("int", 32, "int", 4, "int", 11, spellings=("integer", "int4"), from_avro=True),
    _integer("int unsigned", 32, "long", 4, "bigint", 10, sql_type_above=(2**31 - 1, -5), from_avro=True),
    _integer("bigint", 64, "long", -5, "bigint", 20, spellings=("int8", "bigserial"), from_avro=True),
    _integer("bigint unsigned", 64, "long", -5, "decimal(20,0)", 20, lost=_WRAPPED, **_AS_TEXT, **_BIGINT),
    TypeRow("float", "FLOAT", "float", 7, "float32", "float", "float", ("float4",), from_avro=True),
    TypeRow("double", "DOUBLE", "double", 8, "float64", "float", "double", _DOUBLE, from_avro=True),
    TypeRow(
        "decimal",
        "DECIMAL",
        "decimal",
        3,
        "decimal",
        "Decimal",
        "decimal({p},{s})",
        _DECIMAL,
        lost=_LONG_DECIMAL,
        **_AS_TEXT,
    ),
    _text("char", 1, spellings=_CHAR),
    _text("varchar", 12, spellings=_VARCHAR),
    _text("tinytext", 2005),
    _text("text", 2005, from_avro=True),
    _text("mediumtext", 2005, spellings=("long", "long varchar", "long char varying")),
    _text("longtext", 2005),
    _binary("binary"),
    _binary("varbinary"),
    _binary("tinyblob"),
    _binary("blob", from_avro=True),
    _binary("mediumblob", spellings=("long varbinary",)),
    _binary("longblob"),
    TypeRow("bit", "BIT", "bytes", -7, "bit", "int", "bigint", lost="BIT(64) is decimal(20,0)", **_BIT),
    _labelled("enum", 4, "enum"),
    _labelled("set", -7, "set"),
    _text("json", 12, tidb_type="JSON", from_avro=True, spellings=("jsonb",), named=Named("json", "json")),
    _temporal("date", 91, "date", "date", _CALENDAR),
    _temporal("datetime", 93, "datetime", "timestamp_ntz", _CALENDAR),
    _temporal("timestamp", 93, "timestamp", "timestamp", _ZONED, "timestamp(6)"),
    _temporal(
        "time",
        92,
        "time",
        "string",
        "stored as text, because values up to ±838:59:59 do not fit into a time type",
        "time(6)",
    ),
    TypeRow("year", "YEAR", "int", 12, "integer", "int", "int", **_YEAR),
    TypeRow("vector", "TiDBVECTORFloat32", "string", 12, "text", "str", "string", from_avro=True),
)


def _other(name: str, sql_type: int, lost: str = "", **extra: Any) -> TypeRow:
    """Returns the table row for a type of a database other than MySQL.

    Its values are stored as text, unless ``extra`` sets other attributes of the row.
    """
    return replace(_text(name, sql_type), lost=lost, **extra)


_BYTES: Final[dict[str, Any]] = {
    "tidb_type": "BLOB",
    "avro": "bytes",
    "reader": "binary",
    "python": "bytes",
    "spark": "binary",
}
_SHAPES = _words(
    "point, linestring, polygon, multipoint, multilinestring, multipolygon, geometrycollection, "
    "geomcollection"
)
_TEXTS = _words(
    "citext, name, inet, inet4, inet6, cidr, macaddr, macaddr8, varchar2, nvarchar2, clob, nclob, ntext, "
    "int4range, int8range, numrange, daterange, tsrange, tstzrange"
)
_INSTANTS = ("timestamptz", "datetimeoffset")
_WIDE = "infinity, BC and years above 9999: text in Python; in Delta, what the setting zero-date says"
_NANOS = "with 7 to 9 digits of a second: stored as text in Delta"

# Types that TiDB does not have: types of other databases, as Debezium names them (``SEMANTIC_TYPES``).
OTHER_TYPES: tuple[TypeRow, ...] = (
    _other("boolean", 16, tidb_type="INT", avro="int", reader="boolean", python="bool", spark="boolean"),
    _other("local date", 91, _WIDE, reader="local_date", spark="date"),
    _other("local datetime", 93, f"{_WIDE}; {_NANOS}", reader="local_datetime", spark="timestamp_ntz"),
    _other("instant", 2014, f"{_WIDE}; {_NANOS}", reader="instant", spark="timestamp", spellings=_INSTANTS),
    _other(
        "local time", 92, "stored as text, because 24:00:00 and negative times do not fit into a time type"
    ),
    _other("zoned time", 2013, "stored as text with its offset", spellings=("timetz",)),
    _integer("microseconds", 64, "long", -5, "bigint", 20),
    _integer("nanoseconds", 64, "long", -5, "bigint", 20),
    _other("interval", 12, "ISO 8601 text: P1Y2M3DT4H5M6.789S"),
    _other("other text", 12, spellings=_TEXTS),
    _other("other binary", 2004, "", **_BYTES, spellings=("bytea", "raw", "image", "rowversion")),
    _other("uuid", 12, spellings=("uniqueidentifier",)),
    _other("xml", 2009),
    _other("ltree", 12),
    _other("tsvector", 12),
    _other("array", 2003, "JSON text, decimals with all their digits"),
    _other("map", 12, "JSON text, keys sorted", spellings=("hstore",)),
    _other("struct", 2002, "JSON text, keys sorted"),
    _other("sparse vector", 12, "JSON text, keys sorted"),
    _other("geometry", 2004, "EWKB: WKB with the SRID in it", **_BYTES, spellings=_SHAPES),
    _other("geography", 2004, "EWKB: WKB with the SRID in it", **_BYTES),
)


@dataclass(frozen=True)
class ExtensionField:
    """A field of a flat-avro value record that is not a column.

    ``option``: the option that adds the field. ``meaning``: what its values are, for the documentation.
    """

    name: str
    avro: str
    default: object
    option: str
    meaning: str


_EXTENSION = "enable-tidb-extension"
_CHECKSUM = "integrity-check-level: correctness"

# In the order in which they follow the columns. With avro-include-before-value only the first is sent.
EXTENSION_FIELDS: tuple[ExtensionField, ...] = (
    ExtensionField("_tidb_op", "string", "", _EXTENSION, "c insert, u update, d delete (with before-values)"),
    ExtensionField("_tidb_commit_ts", "long", 0, _EXTENSION, "commit TSO"),
    ExtensionField(
        "_tidb_commit_physical_time", "long", 0, _EXTENSION, "wall-clock time of the commit, ms since 1970"
    ),
    ExtensionField(
        "_tidb_row_level_checksum",
        "string",
        "",
        _CHECKSUM,
        "CRC32 as decimal text; empty or 0 without a checksum",
    ),
    ExtensionField(
        "_tidb_corrupted", "boolean", False, _CHECKSUM, "true if the producer found the row damaged"
    ),
    ExtensionField("_tidb_checksum_version", "int", 0, _CHECKSUM, "version of TiDB's checksum algorithm"),
)


def _index(pairs: Iterator[tuple[object, TypeRow]]) -> dict[object, TypeRow]:
    rows: dict[object, TypeRow] = {}
    for key, row in pairs:
        assert rows.setdefault(key, row) is row, f"{key!r} names two types"  # noqa: S101
    return rows


def _avro_keys() -> Iterator[tuple[object, TypeRow]]:
    for row in TYPES:
        if row.from_avro:
            yield (row.tidb_type, "bytes" if row.avro == "decimal" else row.avro), row
            if row.avro_string_mode:
                yield (row.tidb_type, row.avro_string_mode), row


_BY_NAME = _index(
    (spelling, row) for row in (*TYPES, *OTHER_TYPES) for spelling in (row.name, *row.spellings)
)
_BY_AVRO = _index(_avro_keys())


def row_of(column_type: ColumnType) -> TypeRow:
    """Returns the row of the type table for a column's type."""
    return row_named(column_type.name)


def row_named(name: str) -> TypeRow:
    """Returns the row of the type table with this SQL name, in lower case.

    Raises:
        ConfigError: The type table has no such name.
    """
    row = _BY_NAME.get(name)
    if row is None:
        names = ", ".join(type_row.name for type_row in (*TYPES, *OTHER_TYPES))
        raise ConfigError(f"the SQL type {shown(name)} is not known; the known types are {names}")
    return row


def find_row(name: str) -> TypeRow | None:
    """Returns the row of the type table with this SQL name, or None."""
    return _BY_NAME.get(name)


def row_of_avro(tidb_type: str, avro: str) -> TypeRow | None:
    """Returns the row of the type table for an Avro field with this ``tidb_type`` and Avro type, or None.

    If several types share both, returns the widest of them.
    """
    return _BY_AVRO.get((tidb_type, avro))


TimeForm = Literal["days", "time_ms", "time_us", "time_ns", "timestamp_ms", "timestamp_us", "timestamp_ns"]
TextForm = Literal["iso_date", "iso_time", "iso_timestamp", "zoned_timestamp"]
StructForm = Literal["variable_scale", "geometry", "structure", "structured_time", "structured_duration"]
Form = Literal["plain", TimeForm, TextForm, StructForm, "unscaled", "bits"]


@dataclass(frozen=True)
class SemanticType:
    """A semantic type of Debezium or Kafka Connect.

    ``name``: name of the Connect schema. ``wire``: Connect types that schemas with this name can have.
    ``type``: name of the logical type in ``TYPES`` or ``OTHER_TYPES``. ``form``: how a value is written in a
    record. ``fsp``: number of fraction digits of a second in this form. ``seen``: source of these facts.
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


_INFINITE = "numbers with which PostgreSQL's connector represents infinity are read as infinity"
_VECTOR = "JSON text of numbers"
_STRUCTURED = "time.precision.mode: structured; exact, also MySQL's zero dates and PostgreSQL's infinities"
_SHAPE = "JSON text, because WKB has no such geometry"
_NANO_RANGE = (
    "years 1678 to 2261, because other years overflow at the connector; the ends of int64 "
    "are infinity and -infinity"
)

SEMANTIC_TYPES: Final[tuple[SemanticType, ...]] = (
    SemanticType(_TIME + "Date", _INT, "local date", "days", note=_INFINITE),
    SemanticType(_TIME + "Time", _INT, "local time", "time_ms"),
    SemanticType(_TIME + "MicroTime", _LONG, "local time", "time_us"),
    SemanticType(_TIME + "NanoTime", _LONG, "local time", "time_ns", seen="documented"),
    SemanticType(_TIME + "Timestamp", _LONG, "local datetime", "timestamp_ms", note=_INFINITE),
    SemanticType(_TIME + "MicroTimestamp", _LONG, "local datetime", "timestamp_us", note=_INFINITE),
    SemanticType(
        _TIME + "NanoTimestamp",
        _LONG,
        "local datetime",
        "timestamp_ns",
        9,
        seen="documented",
        note=_NANO_RANGE,
    ),
    SemanticType(_TIME + "ZonedTime", _STRING, "zoned time"),
    SemanticType(_TIME + "ZonedTimestamp", _STRING, "instant", "zoned_timestamp"),
    SemanticType(_TIME + "IsoDate", _STRING, "local date", "iso_date"),
    SemanticType(_TIME + "IsoTime", _STRING, "local time", "iso_time"),
    SemanticType(_TIME + "IsoTimestamp", _STRING, "local datetime", "iso_timestamp"),
    SemanticType(_TIME + "Year", _INT, "year"),
    SemanticType(_TIME + "Interval", _STRING, "interval", note="interval.handling.mode: string"),
    SemanticType(_TIME + "MicroDuration", _LONG, "microseconds", note="a month counts 30.4375 days"),
    _documented(_TIME + "MicroDuration", ("float64",), "double", note="Oracle's INTERVAL, as a double"),
    _documented(_TIME + "NanoDuration", _LONG, "nanoseconds"),
    _documented(_TIME + "StructuredDate", _STRUCT, "local date", "structured_time", _STRUCTURED),
    _documented(_TIME + "StructuredTimestamp", _STRUCT, "local datetime", "structured_time", _STRUCTURED),
    _documented(_TIME + "StructuredZonedTimestamp", _STRUCT, "instant", "structured_time", _STRUCTURED),
    _documented(_TIME + "StructuredTime", _STRUCT, "local time", "structured_time", _STRUCTURED),
    _documented(_TIME + "StructuredZonedTime", _STRUCT, "zoned time", "structured_time", _STRUCTURED),
    _documented(
        _TIME + "StructuredDuration",
        _STRUCT,
        "interval",
        "structured_duration",
        "time.precision.mode: structured; ISO 8601 text, but a duration of the kind elapsed-time "
        "is a local time",
    ),
    SemanticType(_CONNECT + "Decimal", ("bytes",), "decimal", "unscaled"),
    SemanticType(_CONNECT + "Date", _INT, "local date", "days", note="time.precision.mode: connect"),
    SemanticType(_CONNECT + "Time", _INT, "local time", "time_ms", 3, note="time.precision.mode: connect"),
    SemanticType(
        _CONNECT + "Timestamp",
        _LONG,
        "local datetime",
        "timestamp_ms",
        3,
        note="time.precision.mode: connect",
    ),
    SemanticType(
        _DATA + "VariableScaleDecimal", _STRUCT, "decimal", "variable_scale", note="kept as text in Delta"
    ),
    SemanticType(
        _DATA + "Bits",
        ("bytes",),
        "bit",
        "bits",
        note="stored as bytes if longer than 64 bits, the lowest byte first",
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
    _documented(_DATA + "SparseDoubleVector", _STRUCT, "sparse vector", "structure"),
    SemanticType(_DATA + "TiDBVectorFloat32", _STRING, "vector", note="TiCDC (ticdc b813e76)"),
    SemanticType(_DATA + "geometry.Point", _STRUCT, "geometry", "geometry"),
    _documented(_DATA + "geometry.Geometry", _STRUCT, "geometry", "geometry"),
    _documented(_DATA + "geometry.Geography", _STRUCT, "geography", "geometry"),
    _documented(_DATA + "geometry.Circle", _STRUCT, "struct", "structure", _SHAPE),
    _documented(_DATA + "geometry.Line", _STRUCT, "struct", "structure", _SHAPE),
    _documented(
        "io.debezium.mongodb.regex", _STRUCT, "struct", "structure", "written by ExtractNewDocumentState"
    ),
)

# The type under which a Connect schema without a semantic name is read.
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

_BY_SEMANTIC_NAME: Final = {
    (semantic.name, wire): semantic for semantic in SEMANTIC_TYPES for wire in semantic.wire
}
# Debezium appends the precision, and in Avro the column's name in hex, so that schemas with equal names are
# equal (``StructuredTemporal``, main branch).
_STRUCTURED_NAME: Final = re.compile(
    rf"({re.escape(_TIME)}Structured[A-Za-z]+?)(?:Precision[0-9]{{1,2}})?(?:SourceColumn[0-9a-f]*)?", re.ASCII
)
# Names of these owners define how a value is read. ``io.debezium.data.Foo`` is never read just by its bare
# type.
_OWNERS: Final = ("io.debezium.", "org.apache.kafka.connect.", "io.confluent.")


def semantic_type(name: str | None, wire: str) -> SemanticType | None:
    """Returns the semantic type of a Connect schema.

    ``name`` is the schema's name, and ``wire`` its Connect type. Returns None if the schema has no name, or a
    name that is unknown for this Connect type.
    """
    if name is None:
        return None
    structured = _STRUCTURED_NAME.fullmatch(name)
    return _BY_SEMANTIC_NAME.get((structured[1] if structured else name, wire))


def unknown_name(name: str | None, wire: str) -> Literal["refused", "bare"] | None:
    """Returns how to handle values of a Connect schema with an unknown name; None if the name is known.

    ``refused``: the name is Debezium's, Kafka Connect's or Confluent's, so it determines how values are read,
    and reading them must raise an error. ``bare``: the name is someone else's (a custom converter's or a
    transform's), and values are read by the schema's Connect type.
    """
    if not name or semantic_type(name, wire) is not None:
        return None
    return "refused" if name.startswith(_OWNERS) else "bare"


DecimalMode = Literal["precise", "string"]
UnsignedMode = Literal["long", "string"]
ZeroDate = Literal["null", "error", "text"]
# Chooses between the two readings of a local time that occurs twice, when clocks are set back.
AmbiguousTime = Literal["first", "second", "error"]


class TimePolicies(TypedDict):
    """The policies for a column: for zero dates, and for local times that occur twice (clocks set back)."""

    zero_date: ZeroDate
    ambiguous_time: AmbiguousTime


# For key columns: a null or a guess would identify no row.
KEY_POLICIES: Final = TimePolicies(zero_date="error", ambiguous_time="error")

# Spark's timestamps end at microseconds.
_SPARK_FSP = 6


@dataclass(frozen=True)
class SparkType:
    """A Spark and Delta type as DDL text.

    ``reason``: why a type other than the nearest one to the source's type was chosen, or None.
    """

    ddl: str
    reason: str | None = None


def spark_type(column_type: ColumnType, *, zero_date: ZeroDate = "null") -> SparkType:
    """Returns the Spark and Delta type that holds every value of a column exactly."""
    row = row_of(column_type)
    if row.reader == "decimal":
        return _spark_decimal(column_type)
    if row.reader == "bit" and column_type.length is None:
        return SparkType("decimal(20,0)", "the topic reports no length for this bit column")
    if row.reader == "bit" and (column_type.length or 0) > 63:
        return SparkType("decimal(20,0)")
    if row.reader in ("enum", "set") and column_type.members is None:
        return SparkType(
            row.spark,
            f"the members of this {row.name} are unknown: if the topic has their numbers, as canal-json "
            "does, the numbers are stored as text; configure a table definition to get the labels",
        )
    if row.reader in CALENDAR_READERS and zero_date == "text":
        return SparkType("string", "zero-date: text stores invalid calendar dates")
    if row.reader in ("local_datetime", "instant") and (column_type.fsp or 0) > _SPARK_FSP:
        return SparkType("string", "Spark's timestamps have no nanoseconds: stored exactly, as text")
    return SparkType(row.spark)


def _spark_decimal(column_type: ColumnType) -> SparkType:
    precision, scale = column_type.precision, column_type.scale
    if precision is None or scale is None:
        return SparkType(
            "string",
            "the topic reports no precision for this decimal: stored exactly, as text; "
            "configure a table definition to get a decimal",
        )
    if precision > SPARK_MAX_PRECISION:
        return SparkType(
            "string",
            f"decimal({precision},{scale}) has more than {SPARK_MAX_PRECISION} digits: "
            "stored exactly, as text",
        )
    return SparkType(f"decimal({precision},{scale})")


def avro_type(
    column_type: ColumnType, *, decimal_mode: DecimalMode = "precise", unsigned_mode: UnsignedMode = "long"
) -> dict[str, object]:
    """Returns the Avro type object that TiCDC writes for a column, including ``connect.parameters``.

    The keys have the same order as in TiCDC (tiflow c7b2588: type, connect.parameters, logicalType,
    precision, scale).
    """
    row = row_of(column_type)
    parameters: dict[str, str] = {"tidb_type": row.tidb_type}
    if row.parameter == "length":
        parameters["length"] = str(column_type.length or 1)
    if row.parameter == "allowed":
        parameters["allowed"] = escape_allowed(column_type.members or ())
    avro = row.avro
    string_mode = decimal_mode if row.reader == "decimal" else unsigned_mode
    if row.avro_string_mode and string_mode == "string":
        avro = row.avro_string_mode
    if avro != "decimal":
        return {"type": avro, "connect.parameters": parameters}
    return {
        "type": "bytes",
        "connect.parameters": parameters,
        "logicalType": "decimal",
        "precision": column_type.precision if column_type.precision is not None else 10,
        "scale": column_type.scale or 0,
    }


def escape_allowed(members: tuple[str, ...]) -> str:
    r"""Joins ENUM or SET members to the text of ``connect.parameters.allowed``.

    The members are separated by ``,``; a ``,`` in a member becomes ``\,``.
    """
    return ",".join(member.replace(",", "\\,").replace("\\'", "'").replace("''", "'") for member in members)


def split_allowed(allowed: str) -> tuple[str, ...]:
    """Splits the text of ``connect.parameters.allowed`` into ENUM or SET members.

    TiCDC does not escape backslashes. So a member that ends in a backslash is returned as one member with the
    member that follows it.
    """
    members, current, index = [], "", 0
    while index < len(allowed):
        if allowed.startswith("\\,", index):
            current, index = current + ",", index + 2
            continue
        if allowed[index] == ",":
            members.append(current)
            current = ""
        else:
            current += allowed[index]
        index += 1
    return (*members, current)


def type_words(column_type: ColumnType) -> str:
    """Returns the text of a column's type as its DDL has it.

    If the DDL is not known, returns the type's name with the sizes or members that are known.
    """
    if column_type.sql:
        return column_type.sql
    if column_type.members is not None:
        return f"{column_type.name}({','.join(map(repr, column_type.members))})"
    sizes = (column_type.precision, column_type.scale, column_type.length, column_type.fsp)
    arguments = ",".join(str(size) for size in sizes if size is not None)
    return f"{column_type.name}({arguments})" if arguments else column_type.name


def mysql_type_word(column_type: ColumnType) -> str:
    """Returns the short ``mysqlType`` of canal-json: the type's name without precision, length or fsp."""
    row = row_of(column_type)
    spelt = (column_type.sql or row.name).lower()
    if find_row(spelt.partition("(")[0].strip()) is None and row.reader == "text" and "(" not in spelt:
        return spelt  # an unknown type keeps the producer's spelling
    word = row.name
    attributes = spelt.rpartition(")")[2].split()
    for attribute in ("unsigned", "zerofill"):
        if attribute in attributes and attribute not in word.split():
            word += f" {attribute}"
    return word


def mysql_type_text(column_type: ColumnType) -> str | None:
    """Returns the full ``mysqlType`` of canal-json's content-compatible mode, such as ``varchar(32)``.

    Returns None if a size or the members of the type are not known.
    """
    row = row_of(column_type)
    sql = column_type.sql
    if sql is not None and ("(" in sql or _needs_no_arguments(row)):
        return sql
    if row.name == "decimal":
        return f"decimal({column_type.precision},{column_type.scale or 0})" if column_type.precision else None
    if row.parameter == "allowed":
        return None if column_type.members is None else f"{row.name}({render_members(column_type.members)})"
    if row.reader in _FRACTIONAL:
        return f"{row.name}({column_type.fsp})" if column_type.fsp else row.name
    width = column_type.length or row.display_width
    if width is None:
        return row.name if _needs_no_arguments(row) else None
    base, _, unsigned = row.name.partition(" ")
    return f"{base}({width}) {unsigned}".strip()


_FRACTIONAL = frozenset({"datetime", "timestamp", "time"})
_SIZED = frozenset({"char", "varchar", "binary", "varbinary"})


def _needs_no_arguments(row: TypeRow) -> bool:
    return row.display_width is None and row.parameter is None and row.name not in (*_SIZED, "decimal")


def render_members(members: Sequence[str]) -> str:
    """Returns ENUM or SET members as SQL arguments: quoted, and separated by commas."""
    return ",".join("'" + member.replace("'", "''") + "'" for member in members)


def sql_type_code(column_type: ColumnType, value: object) -> int:
    """Returns the ``sqlType`` code (of ``java.sql.Types``) that canal-json has for a column's value.

    An unsigned integer above the range of the signed type has the code of the next wider type.
    """
    row = row_of(column_type)
    if row.sql_type_above and isinstance(value, int) and value > row.sql_type_above[0]:
        return row.sql_type_above[1]
    return row.sql_type


# Spark type -> Iceberg's; the others have the same name. A contract test compares it with Iceberg's own
# library.
_ICEBERG: Final = {"bigint": "long", "timestamp_ntz": "timestamp", "timestamp": "timestamptz"}


def iceberg_type(spark: str) -> str:
    """Returns the Iceberg type for a Spark type in DDL text."""
    return _ICEBERG.get(spark, spark)
