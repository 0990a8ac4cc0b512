"""Events as JSON and back: the interface of ``tidesink decode -o json`` and ``tidesink encode``.

Integers are exact (unsigned 64-bit too); FLOAT is the shortest number that identifies its 32 bits; values
that are no JSON number (Postgres) are the text NaN, Infinity or -Infinity; DECIMAL is text at its scale;
binary is ``{"base64": …}``; dates, times, JSON and VECTOR are the wire's text.

Reading checks each member of a line: what ``decode -o json`` never writes is refused by name. Column types
come from the caller.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from tidesink.cli.capture import base64_text, bytes_of
from tidesink.errors import ConfigError, EncodeError, TidesinkError, shown
from tidesink.events import (
    ChangeEvent,
    ColumnType,
    DdlEvent,
    Event,
    Message,
    MessageEvent,
    Op,
    Position,
    Row,
    SchemaIds,
    TableId,
    TableSchema,
    Value,
    WatermarkEvent,
)
from tidesink.typemap.table import row_of
from tidesink.typemap.wire_text import json_value

_INT64_LEAST, _UINT64_MOST = -(2**63), 2**64 - 1


def event_json(event: Event) -> dict[str, Any]:
    """One event as a JSON object."""
    if isinstance(event, ChangeEvent):
        return _change(event)
    if isinstance(event, DdlEvent):
        return _with_extension(
            {
                "type": "ddl",
                "table": _table(event.table),
                "query": event.query,
                "kind": event.kind,
                "commit_ts": event.commit_ts,
            },
            event.extension,
            event.position,
        )
    return _message(event) if isinstance(event, MessageEvent) else _watermark(event)


def _message(event: MessageEvent) -> dict[str, Any]:
    line: dict[str, Any] = {"type": "message", "kind": event.kind}
    if event.prefix is not None or event.content is not None:
        line |= {"prefix": event.prefix, "content": _plain(event.content)}
    return _with_extension(line, event.extension, event.position)


def _watermark(event: WatermarkEvent) -> dict[str, Any]:
    return {"type": "watermark", "commit_ts": event.commit_ts, "position": _position(event.position)}


def _change(event: ChangeEvent) -> dict[str, Any]:
    return _with_extension(
        {
            "type": event.op.value,
            "table": _table(event.table),
            "key": _row(event.key, event.schema),
            "before": _row(event.before, event.schema),
            "after": _row(event.after, event.schema),
            "commit_ts": event.commit_ts,
            "schema_id": _schema_id(event.schema_id),
        },
        event.extension,
        event.position,
    )


def _with_extension(
    line: dict[str, Any], extension: Mapping[str, object] | None, position: Position
) -> dict[str, Any]:
    if extension:
        line["extension"] = {name: _plain(value) for name, value in extension.items()}
    line["position"] = _position(position)
    return line


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return {"base64": base64_text(value)}
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, int) and not _INT64_LEAST <= value <= _UINT64_MOST:
        return str(value)  # as a DECIMAL: many readers of JSON would round it
    return format(value, "f") if isinstance(value, Decimal) else value


def _table(table: TableId) -> dict[str, str]:
    return {"schema": table.schema, "name": table.name}


def _schema_id(ids: SchemaIds | None) -> dict[str, int | None] | None:
    return None if ids is None else {"key": ids.key, "value": ids.value}


def _position(position: Position) -> dict[str, Any]:
    topic, partition, offset, index = position[:4]
    return {"topic": topic, "partition": partition, "offset": offset, "index": index}


def _row(row: Row | None, schema: TableSchema | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {name: _value(name, value, schema) for name, value in row.items()}


def _value(name: str, value: Value, schema: TableSchema | None) -> Any:
    column = schema.by_name.get(name) if schema and isinstance(value, float) else None
    return json_value(value, column.type if column else None)


_IN_POSITION = frozenset({"topic", "partition", "offset"})


def _reason(error: TidesinkError) -> str:
    """The message, with what the position does not say (column, schema id) in front."""
    rest = [f"{name} {value}" for name, value in error.context.items() if name not in _IN_POSITION]
    return f"{', '.join(rest)}: {error.message}" if rest else error.message


def error_json(error: TidesinkError, message: Message) -> dict[str, Any]:
    """The line of a record that cannot be decoded: why, what to do, and its bytes."""
    return {
        "type": "error",
        "error": type(error).__name__,
        "reason": _reason(error),
        "remedy": error.remedy,
        "position": _position(Position(message.topic, message.partition, message.offset)),
        "key_b64": base64_text(message.key),
        "value_b64": base64_text(message.value),
    }


Line = Mapping[str, Any]

_KINDS: Final[dict[type, str]] = {str: "a text", int: "an integer", dict: "an object", list: "a list"}
_UINT64_END: Final = 2**64


def member(line: Line, name: str, kind: type, *, inside: str = "") -> Any:
    """A member that must be there and of a kind (``str``, ``int``, ``dict`` or ``list``).

    Raises:
        ConfigError: it is missing or of another kind.
    """
    if name not in line:
        raise ConfigError(f"{inside}{name} is missing")
    value = line[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"{inside}{name} must be {_KINDS[kind]}, not {shown(value)}")
    return value


def optional(line: Line, name: str, kind: type, *, inside: str = "") -> Any:
    """The same of a member that may be null or absent: then None."""
    return None if line.get(name) is None else member(line, name, kind, inside=inside)


def position_of(line: Line) -> Position:
    """A line's position in Kafka.

    Raises:
        ConfigError: it has none, or a part of it is of the wrong kind.
    """
    if line.get("position") is None:
        raise ConfigError("position is missing: topic, partition and offset")
    place = member(line, "position", dict)
    index = optional(place, "index", int, inside="position.")
    topic = member(place, "topic", str, inside="position.")
    partition, offset = (member(place, name, int, inside="position.") for name in ("partition", "offset"))
    if min(partition, offset, index or 0) < 0:
        raise ConfigError("position: partition, offset and index are never negative")
    return Position(topic, partition, offset, index or 0)


def table_of(line: Line) -> TableId:
    """The table a line names. Raises ConfigError where it names none."""
    table = member(line, "table", dict)
    unknown = sorted(set(table) - {"schema", "name"})
    if unknown:
        raise ConfigError(f"table.{unknown[0]} is unknown: a table has schema and name")
    return TableId(member(table, "schema", str, inside="table."), member(table, "name", str, inside="table."))


def commit_ts_of(line: Line) -> int | None:
    """The commit timestamp of a row or DDL event, an unsigned 64-bit number; raises ConfigError."""
    commit_ts: int | None = optional(line, "commit_ts", int)
    if commit_ts is not None and not 0 <= commit_ts < _UINT64_END:
        raise ConfigError(f"commit_ts must be an unsigned 64-bit integer, not {commit_ts}")
    return commit_ts


def watermark_ts_of(line: Line) -> int:
    """The same of a watermark, which is nothing without it."""
    member(line, "commit_ts", int)
    return commit_ts_of(line) or 0


def schema_ids_of(line: Line) -> SchemaIds | None:
    """The registry ids a line was read with; raises ConfigError for a wrong form."""
    ids = optional(line, "schema_id", dict)
    if not ids:
        return None
    key, value = (optional(ids, name, int, inside="schema_id.") for name in ("key", "value"))
    return SchemaIds(key, value)


def row_of_line(line: Line, name: str) -> Mapping[str, Any] | None:
    """``key``, ``before`` or ``after``; raises ConfigError for what is no object."""
    row: Mapping[str, Any] | None = optional(line, name, dict)
    return row


def extension_of(line: Line) -> dict[str, Any] | None:
    """The extension's members, bytes as bytes; raises ConfigError for a wrong form."""
    found = optional(line, "extension", dict)
    if not found:
        return None
    for name, type_name in (optional(found, "mysqlType", dict, inside="extension.") or {}).items():
        if not isinstance(type_name, str):
            raise ConfigError(f"extension.mysqlType.{name} must be a text, not {shown(type_name)}")
    for name in optional(found, "pkNames", list, inside="extension.") or ():
        if not isinstance(name, str):
            raise ConfigError(f"extension.pkNames must hold texts, not {shown(name)}")
    return {name: _member_value(f"extension.{name}", value) for name, value in found.items()}


def _member_value(name: str, value: Any) -> object:
    if isinstance(value, dict) and set(value) == {"base64"}:
        return line_bytes(name, value["base64"])
    return value


def line_bytes(name: str, text: Any) -> bytes | None:
    """Base64 text as bytes, null as None; raises ConfigError for what is neither."""
    try:
        return bytes_of(name, text)
    except ValueError as error:
        raise ConfigError(str(error)) from error


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
    return _parsed_change(line, schema_of)


def _parsed_change(line: Line, schema_of: SchemaOf) -> ChangeEvent:
    # All members are looked at before the schema is asked for: it is found by some of them.
    table, ids, extension = table_of(line), schema_ids_of(line), extension_of(line)
    rows = {name: row_of_line(line, name) for name in ("key", "before", "after")}
    commit_ts, schema = commit_ts_of(line), schema_of(line)
    return ChangeEvent(
        op=_OPS[line["type"]],
        table=table,
        key=_parsed_row(rows["key"], schema),
        before=_parsed_row(rows["before"], schema),
        after=_parsed_row(rows["after"], schema),
        commit_ts=commit_ts,
        position=position_of(line),
        schema=schema,
        schema_id=ids,
        extension=extension,
    )


def _parsed_row(row: Mapping[str, Any] | None, schema: TableSchema) -> Row | None:
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
