"""Events as people read them: one head line, then a line a column, changes marked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.markup import escape

from tidesink.cli.status import commit_time
from tidesink.events import Message

_COLOURS = {
    "insert": "green",
    "upsert": "green",
    "update": "yellow",
    "delete": "red",
    "truncate": "red",
    "error": "bold red",
    "ddl": "cyan",
    "watermark": "dim",
    "message": "dim",
}
_LONGEST = 200


def human_lines(line: dict[str, Any]) -> Iterator[str]:
    """One decoded line, in rich's markup."""
    yield _head(line)
    if line["type"] == "error":
        yield f"  {escape(line['error'])}: {escape(line['reason'])}"
        yield f"  key {_size(line['key_b64'])}, value {_size(line['value_b64'])} (bytes: -o json)"
    elif line["type"] == "ddl":
        yield f"  {escape(line['query'])}"
    elif line["type"] == "message":
        yield f"  {escape(line['kind'])}" + (f" {_shown(line['prefix'])}" if line.get("prefix") else "")
        if line.get("content") is not None:
            yield f"  {_shown(line['content'])}"
    else:
        yield from _columns(line)
    for name, value in (line.get("extension") or {}).items():
        yield f"  [dim]{escape(name)} = {_shown(value)}[/dim]"


def _head(line: dict[str, Any]) -> str:
    kind, position = line["type"], line["position"]
    table = line.get("table")
    name = " " + ".".join(part for part in table.values() if part) if table else ""
    place = f"{position['topic']}[{position['partition']}]@{position['offset']}"
    moment = commit_time(line.get("commit_ts"))
    when = f"  {moment} UTC (commit_ts {line['commit_ts']})" if moment else ""
    colour = _COLOURS.get(kind, "default")
    return f"[{colour}]{kind}[/{colour}]{escape(name)}  [dim]{escape(place)}{when}[/dim]"


def _columns(line: dict[str, Any]) -> Iterator[str]:
    before, after, key = (line.get(part) or {} for part in ("before", "after", "key"))
    names = [*after, *(name for name in before if name not in after)]
    width = max((len(name) for name in names), default=0)
    for name in names:
        label = escape(name.ljust(width))
        label = f"[bold]{label}[/bold]" if name in key else label
        yield f"  {label}  {_change(name, before, after)}"


def _change(name: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    if name not in after:
        return _shown(before[name])
    if name in before and before[name] != after[name]:
        return f"{_shown(before[name])} -> {_shown(after[name])}"
    return _shown(after[name])


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    text = f"base64 {value['base64']}" if isinstance(value, dict) and "base64" in value else str(value)
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
    return escape("".join(char if char.isprintable() else repr(char)[1:-1] for char in text))


def _size(text: str | None) -> str:
    return "null" if text is None else f"{len(text) * 3 // 4 - text[-2:].count('=')} bytes"


def record_line(message: Message) -> str:
    """A record in one plain line: where it goes, and its bytes in hex."""
    parts = [f"{message.topic}[{message.partition}]@{message.offset}"]
    for name, data in (("key", message.key), ("value", message.value)):
        parts.append(f"{name} {'null' if data is None else data.hex()}")
    return "  ".join(parts)
