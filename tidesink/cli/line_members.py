"""The members of a decoded line, checked: what is none of ``decode -o json``'s form is told by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidesink.cli.capture import bytes_of
from tidesink.errors import ConfigError, shown
from tidesink.events import Position, SchemaIds, TableId

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
    return {name: _plain(f"extension.{name}", value) for name, value in found.items()}


def _plain(name: str, value: Any) -> object:
    if isinstance(value, dict) and set(value) == {"base64"}:
        return line_bytes(name, value["base64"])
    return value


def line_bytes(name: str, text: Any) -> bytes | None:
    """Base64 text as bytes, null as None; raises ConfigError for what is neither."""
    try:
        return bytes_of(name, text)
    except ValueError as error:
        raise ConfigError(str(error)) from error
