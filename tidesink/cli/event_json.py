"""Events as JSON: the interface of ``tidesink decode -o json`` and ``tidesink encode``.

Integers are exact (unsigned 64-bit too); FLOAT is the shortest number that names its 32 bits, and what
no JSON number is (Postgres) the text NaN, Infinity or -Infinity; DECIMAL is text at its scale; binary is
``{"base64": …}``; dates, times, JSON and VECTOR are the wire's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tidesink.cli.capture import base64_text
from tidesink.errors import TidesinkError
from tidesink.events import (
    ChangeEvent,
    DdlEvent,
    Event,
    Message,
    MessageEvent,
    Position,
    Row,
    SchemaIds,
    TableId,
    TableSchema,
    Value,
    WatermarkEvent,
)
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
