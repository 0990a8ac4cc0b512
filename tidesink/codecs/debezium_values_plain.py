"""Values of JSON without a schema: read by a table definition, or by what JSON itself tells.

``schemas.enable: false`` leaves JSON's own types. A number of days, milli- or microseconds is a number,
bytes are text, and only a table definition and the connector's modes tell them apart. Without a
definition a column is what its value looks like: true or false, a whole number, a number, or text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Final

from tidesink.codecs.connect_schema import NO_PARAMETERS, ConnectSchema, ConnectType
from tidesink.codecs.debezium_values_modes import DebeziumModes, TimePrecision, Unavailable
from tidesink.codecs.debezium_values_reading import ValueReader, reader_of
from tidesink.errors import SchemaMismatchError, shown
from tidesink.events import Column, ColumnType, Value
from tidesink.typemap.table import Reader, row_of

_TIME: Final = "io.debezium.time."
_DATA: Final = "io.debezium.data."
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
# A DATETIME without digits has none at MySQL; what else has none has six at PostgreSQL.
_OWN_FSP: Final = {"datetime": 0}
_MOST_FSP: Final = 6
_INT64_END: Final = 1 << 63

Implied = Callable[[ColumnType, object, DebeziumModes], ConnectSchema]


def value_of_definition(column: Column, raw: object, *, modes: DebeziumModes) -> Value | Unavailable:
    """One value of plain JSON, numbers with a fraction read as Decimal. See ``definition_reader``."""
    return definition_reader(column, modes=modes)(raw)


def definition_reader(column: Column, *, modes: DebeziumModes) -> ValueReader:
    """A reader of plain JSON's values of a column that a table definition states.

    The reader raises what ``reader_of`` raises.
    """
    readers: dict[type, ValueReader] = {}

    def read(raw: object) -> Value | Unavailable:
        reader = readers.get(type(raw))
        if reader is None:
            try:
                schema = implied_schema(column, raw, modes)
            except SchemaMismatchError as error:
                raise error.with_context(column=column.name) from None
            reader = readers[type(raw)] = reader_of(schema, column=column, modes=modes)
        return reader(raw)

    return read


def implied_schema(column: Column, raw: object, modes: DebeziumModes) -> ConnectSchema:
    """The schema with which the connector wrote a JSON value of this type into this column.

    Raises:
        SchemaMismatchError: it writes nothing of the kind.
    """
    if isinstance(raw, list | Mapping):
        return _nested(column.type, raw)
    return _IMPLIED[row_of(column.type).reader](column.type, raw, modes)


def _schema(kind: ConnectType, name: str | None = None, **parameters: str) -> ConnectSchema:
    return ConnectSchema(kind, name, None, parameters or NO_PARAMETERS, optional=True, default=None)


def _nested(column_type: ColumnType, raw: object) -> ConnectSchema:
    row = row_of(column_type)
    if row.reader == "decimal":
        return _schema("struct", _DATA + "VariableScaleDecimal")
    if row.reader == "binary":
        return _schema("struct", _DATA + "geometry.Geometry")
    if row.reader != "text":
        raise SchemaMismatchError(f"{shown(raw)} is no {column_type.sql or column_type.name}")
    return _schema("array") if isinstance(raw, list) else _schema("map")


def _number(kind: ConnectType, _type: ColumnType, raw: object, _modes: DebeziumModes) -> ConnectSchema:
    if isinstance(raw, bool):
        return _schema("boolean")
    return _schema("string" if isinstance(raw, str) and kind != "float64" else kind)


def _unsigned(_type: ColumnType, raw: object, modes: DebeziumModes) -> ConnectSchema:
    if isinstance(raw, str) and modes.bigint_unsigned_handling_mode != "precise":
        return _schema("string")
    return _schema("bytes", _DECIMAL, scale="0")


def _decimal(column_type: ColumnType, raw: object, modes: DebeziumModes) -> ConnectSchema:
    scale = column_type.scale
    if isinstance(raw, str):
        if modes.decimal_handling_mode != "precise" or scale is None:
            return _schema("string")
    elif modes.decimal_handling_mode != "precise" or modes.decimal_format != "numeric":
        # A number where none of these modes writes one: TiCDC (b813e76) writes decimals as doubles.
        return _schema("float64")
    return _schema("bytes", _DECIMAL, **({} if scale is None else {"scale": str(scale)}))


def _text(column_type: ColumnType, raw: object, modes: DebeziumModes) -> ConnectSchema:
    return _time(column_type, raw, modes) if column_type.name == "local time" else _schema("string")


def _binary(_type: ColumnType, _raw: object, modes: DebeziumModes) -> ConnectSchema:
    return _schema("bytes" if modes.binary_handling_mode == "bytes" else "string")


def _bit(column_type: ColumnType, raw: object, _modes: DebeziumModes) -> ConnectSchema:
    if isinstance(raw, bool):
        return _schema("boolean")
    return _schema("bytes", _DATA + "Bits", length=str(column_type.length or 1))


def _boolean(_type: ColumnType, raw: object, _modes: DebeziumModes) -> ConnectSchema:
    return _schema("boolean" if isinstance(raw, bool) else "int16")


def _date(_type: ColumnType, raw: object, _modes: DebeziumModes) -> ConnectSchema:
    return _schema("string", _TIME + "IsoDate") if isinstance(raw, str) else _schema("int32", _TIME + "Date")


def _datetime(column_type: ColumnType, raw: object, modes: DebeziumModes) -> ConnectSchema:
    if isinstance(raw, str):
        return _schema("string", _TIME + "IsoTimestamp")
    return _schema("int64", _TIME + _UNITS[_unit(column_type, modes)] + "Timestamp")


def _timestamp(column_type: ColumnType, raw: object, modes: DebeziumModes) -> ConnectSchema:
    # MySQL's TIMESTAMP is text in every mode; PostgreSQL's of that name is a date and time without a zone.
    if isinstance(raw, str) and modes.time_precision_mode != "isostring":
        return _schema("string", _TIME + "ZonedTimestamp")
    if isinstance(raw, str) and raw.endswith("Z"):
        return _schema("string", _TIME + "ZonedTimestamp")
    return _datetime(column_type, raw, modes)


def _time(column_type: ColumnType, raw: object, modes: DebeziumModes) -> ConnectSchema:
    if isinstance(raw, str):
        return _schema("string", _TIME + "IsoTime")
    unit = _unit(column_type, modes)
    if modes.time_precision_mode == "adaptive_time_microseconds":
        unit = max(unit, 6)
    return _schema("int32" if unit == 3 else "int64", _TIME + _UNITS[unit] + "Time")


_UNITS: Final = {3: "", 6: "Micro", 9: "Nano"}
_FIXED_UNIT: Final[dict[TimePrecision, int]] = {"connect": 3, "microseconds": 6, "nanoseconds": 9}


def _unit(column_type: ColumnType, modes: DebeziumModes) -> int:
    """The digits of a second that a number counts: 3, 6 or 9."""
    fixed = _FIXED_UNIT.get(modes.time_precision_mode)
    if fixed is not None:
        return fixed
    fsp = column_type.fsp if column_type.fsp is not None else _OWN_FSP.get(column_type.name, _MOST_FSP)
    return 3 if fsp <= 3 else 6 if fsp <= _MOST_FSP else 9


_IMPLIED: Final[dict[Reader, Implied]] = {
    "integer": partial(_number, "int64"),
    "unsigned64": _unsigned,
    "float32": partial(_number, "float64"),
    "float64": partial(_number, "float64"),
    "decimal": _decimal,
    "text": _text,
    "binary": _binary,
    "bit": _bit,
    "enum": _text,
    "set": _text,
    "date": _date,
    "datetime": _datetime,
    "timestamp": _timestamp,
    "time": _time,
    "boolean": _boolean,
    "local_date": _date,
    "local_datetime": _datetime,
    "instant": _timestamp,
}


def infer_column(name: str, raw: object) -> Column:
    """The column a JSON value looks like where nothing defines it: boolean, bigint, decimal, json or text.

    Numbers with a fraction have no precision (Delta: text, with all their digits), since JSON does not
    tell a DECIMAL from a DOUBLE. null looks like text.
    """
    return Column(name, ColumnType(_inferred(raw)))


def _inferred(raw: object) -> str:
    if isinstance(raw, bool):
        return "boolean"
    if isinstance(raw, int):
        return "bigint" if -_INT64_END <= raw < _INT64_END else "decimal"
    if isinstance(raw, Decimal | float):
        return "decimal"
    return "json" if isinstance(raw, list | Mapping) else "text"


def inferred_value(raw: object, *, modes: DebeziumModes) -> Value | Unavailable:
    """A JSON value as it is; arrays and objects as JSON text, an integer beyond a bigint as a Decimal.

    Raises:
        SchemaMismatchError: the value is none of JSON's.
    """
    column = infer_column("", raw)
    kind = _schema("array" if isinstance(raw, list) else "string")
    if isinstance(raw, str | list):
        return reader_of(kind, column=column, modes=modes)(raw)
    if isinstance(raw, Mapping):
        return reader_of(_schema("map"), column=column, modes=modes)(raw)
    if isinstance(raw, int) and column.type.name == "decimal":
        # The type that infer_column gives it; JSON's readers and Arrow hold no integer of more than 64 bits.
        return Decimal(raw)
    if raw is None or isinstance(raw, int | Decimal):
        return raw
    raise SchemaMismatchError(f"{shown(raw)} is no value of JSON: read its numbers as Decimal")
