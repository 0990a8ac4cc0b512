"""JSON lines back to events: the inverse of ``event_json``. Column types come from the caller."""

from __future__ import annotations

import struct
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from tidesink.change import (
    ChangeEvent,
    ColumnType,
    DdlEvent,
    Event,
    Op,
    Position,
    Row,
    SchemaIds,
    TableId,
    TableSchema,
    Value,
    WatermarkEvent,
)
from tidesink.errors import ConfigError, EncodeError
from tidesink.typemap.table import row_of

Line = Mapping[str, Any]
SchemaOf = Callable[[Line], TableSchema]

_OPS = {op.value: op for op in Op}


def event_of(line: Line, schema_of: SchemaOf) -> Event:
    """The event of one decoded line.

    Raises:
        ConfigError: the line is none that ``decode -o json`` prints.
        EncodeError: a value that is none of its column's type.
    """
    try:
        return _event(line, schema_of)
    except KeyError as error:
        raise ConfigError(f"{error.args[0]} is missing") from error
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"a member has the wrong form: {error}") from error


def _event(line: Line, schema_of: SchemaOf) -> Event:
    kind, position = line["type"], position_of(line)
    if kind == "watermark":
        return WatermarkEvent(line["commit_ts"], position)
    if kind == "ddl":
        return DdlEvent(
            _table(line), line["query"], line["kind"], line.get("commit_ts"), position, _extension(line)
        )
    if kind not in _OPS:
        raise ConfigError(f"type {kind!r} is unknown: {', '.join(_OPS)}, ddl, watermark and error are known")
    schema = schema_of(line)
    ids = line.get("schema_id")
    return ChangeEvent(
        op=_OPS[kind],
        table=_table(line),
        key=_row(line.get("key"), schema),
        before=_row(line.get("before"), schema),
        after=_row(line.get("after"), schema),
        commit_ts=line.get("commit_ts"),
        position=position,
        schema=schema,
        schema_id=SchemaIds(ids["key"], ids["value"]) if ids else None,
        extension=_extension(line),
    )


def position_of(line: Line) -> Position:
    """A line's position in Kafka. Raises KeyError or TypeError where it has none."""
    place = line["position"]
    return Position(place["topic"], place["partition"], place["offset"], place.get("index", 0))


def _table(line: Line) -> TableId:
    return TableId(line["table"]["schema"], line["table"]["name"])


def _extension(line: Line) -> dict[str, object] | None:
    found = line.get("extension")
    return {name: _plain(value) for name, value in found.items()} if found else None


def _plain(value: Any) -> object:
    if isinstance(value, dict) and set(value) == {"base64"}:
        return b64decode(value["base64"])
    return value


def _row(row: Mapping[str, Any] | None, schema: TableSchema) -> Row | None:
    if row is None:
        return None
    return {name: _typed(name, value, schema) for name, value in row.items()}


def _typed(name: str, value: Any, schema: TableSchema) -> Value:
    column = schema.by_name.get(name)
    if column is None:
        raise EncodeError("the table's schema has no such column", table=str(schema.table), column=name)
    if value is None:
        return None
    read = _READERS.get(row_of(column.type).reader, _as_is)
    try:
        return read(value, column.type)
    except (ValueError, TypeError, InvalidOperation, OverflowError, Base64Error) as error:
        raise EncodeError(
            f"{value!r:.80} is no {column.type.sql or column.type.name}", table=str(schema.table), column=name
        ) from error


def _as_is(value: Any, _type: ColumnType) -> Value:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise TypeError
    return value


def _integer(value: Any, _type: ColumnType) -> Value:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


def _float64(value: Any, _type: ColumnType) -> Value:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError
    return float(value)


def _float32(value: Any, column_type: ColumnType) -> Value:
    (exact,) = struct.unpack("<f", struct.pack("<f", _float64(value, column_type)))
    return float(exact)


def _decimal(value: Any, _type: ColumnType) -> Value:
    if not isinstance(value, str):
        raise TypeError
    return Decimal(value)


def _binary(value: Any, _type: ColumnType) -> Value:
    return b64decode(value["base64"], validate=True)


_READERS: dict[str, Callable[[Any, ColumnType], Value]] = {
    "integer": _integer,
    "unsigned64": _integer,
    "bit": _integer,
    "float32": _float32,
    "float64": _float64,
    "decimal": _decimal,
    "binary": _binary,
}
