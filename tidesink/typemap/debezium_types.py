"""The types of Debezium and Kafka Connect, by their semantic names.

A Connect schema without a name is read by its type alone; one with a name is read as a row of the type
table (``SEMANTIC_TYPES``).

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
