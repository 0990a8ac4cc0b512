"""JSON lines back to events: the inverse of ``event_json``. Column types come from the caller."""

from __future__ import annotations

import struct
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from tidesink.cli.line_members import (
    Line,
    commit_ts_of,
    extension_of,
    line_bytes,
    member,
    optional,
    position_of,
    row_of_line,
    schema_ids_of,
    table_of,
    watermark_ts_of,
)
from tidesink.errors import ConfigError, EncodeError, shown
from tidesink.events import (
    ChangeEvent,
    ColumnType,
    DdlEvent,
    Event,
    MessageEvent,
    Op,
    Row,
    TableSchema,
    Value,
    WatermarkEvent,
)
from tidesink.typemap.table import row_of

SchemaOf = Callable[[Line], TableSchema]

_OPS = {op.value: op for op in Op}


def event_of(line: Line, schema_of: SchemaOf) -> Event:
    """The event of one decoded line.

    Raises:
        ConfigError: the line is none that ``decode -o json`` prints.
        EncodeError: a value that is none of its column's type.
    """
    kind = member(line, "type", str)
    position = position_of(line)
    if kind == "watermark":
        return WatermarkEvent(watermark_ts_of(line), position)
    if kind == "ddl":
        query, word = member(line, "query", str), member(line, "kind", str)
        return DdlEvent(table_of(line), query, word, commit_ts_of(line), position, extension_of(line))
    if kind == "message":
        prefix, content = optional(line, "prefix", str), optional(line, "content", dict)
        data = None if content is None else line_bytes("content", content.get("base64"))
        return MessageEvent(member(line, "kind", str), prefix, data, position, extension_of(line))
    if kind not in _OPS:
        raise ConfigError(
            f"type {shown(kind)} is unknown: {', '.join(_OPS)}, ddl, watermark, message and error are known"
        )
    return _change(line, schema_of)


def _change(line: Line, schema_of: SchemaOf) -> ChangeEvent:
    # All members are looked at before the schema is asked for: it is found by some of them.
    table, ids, extension = table_of(line), schema_ids_of(line), extension_of(line)
    rows = {name: row_of_line(line, name) for name in ("key", "before", "after")}
    commit_ts, schema = commit_ts_of(line), schema_of(line)
    return ChangeEvent(
        op=_OPS[line["type"]],
        table=table,
        key=_row(rows["key"], schema),
        before=_row(rows["before"], schema),
        after=_row(rows["after"], schema),
        commit_ts=commit_ts,
        position=position_of(line),
        schema=schema,
        schema_id=ids,
        extension=extension,
    )


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
            f"{shown(value)} is no {column.type.sql or column.type.name}",
            table=str(schema.table),
            column=name,
        ) from error


def _as_is(value: Any, _type: ColumnType) -> Value:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise TypeError
    return value


def _integer(value: Any, _type: ColumnType) -> Value:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


_NO_JSON_NUMBERS = frozenset({"NaN", "Infinity", "-Infinity"})


def _float64(value: Any, _type: ColumnType) -> Value:
    if isinstance(value, str) and value in _NO_JSON_NUMBERS:
        return float(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError
    return float(value)


def _float32(value: Any, column_type: ColumnType) -> Value:
    (exact,) = struct.unpack("<f", struct.pack("<f", _float64(value, column_type)))
    return float(exact)


def _boolean(value: Any, _type: ColumnType) -> Value:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _decimal(value: Any, _type: ColumnType) -> Value:
    if not isinstance(value, str):
        raise TypeError
    return Decimal(value)


def _binary(value: Any, _type: ColumnType) -> Value:
    if not isinstance(value, dict) or set(value) != {"base64"}:
        raise TypeError
    return b64decode(value["base64"], validate=True)


_READERS: dict[str, Callable[[Any, ColumnType], Value]] = {
    "integer": _integer,
    "unsigned64": _integer,
    "bit": _integer,
    "float32": _float32,
    "float64": _float64,
    "decimal": _decimal,
    "binary": _binary,
    "boolean": _boolean,
}
