"""The generated sections of the reference: settings, Kafka properties, errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tidesink import kafka_client
from tidesink.config.load import config_schema
from tidesink.errors import TidesinkError


def settings() -> str:
    """Returns every setting of the config, section by section."""
    return "\n\n".join(_section(schema := config_schema(), schema, "(top level)", []))


def _section(schema: Any, part: Any, name: str, seen: list[str]) -> Iterator[str]:
    rows, below = [], []
    for key, setting in part["properties"].items():
        references = re.findall(r"#/\$defs/(\w+)", str(setting)) if key != "definition" else []
        place = key if name.startswith("(") else f"{name}.{key}"
        for known in (one for one in references if one not in seen):
            below += list(_section(schema, schema["$defs"][known], place, [*seen, known]))
        default = "" if references or setting.get("default") in (None, {}, []) else _shown(setting)
        rows.append(f"| `{key}` | {default} | {setting.get('description', '')} |")
    kind = re.search(r"'const': '(\w+)'", str(part["properties"].get("type")))
    head = f"### {name}{f' (type: {kind[1]})' if kind else ''}"
    yield f"{head}\n\n| setting | default | meaning |\n|---|---|---|\n" + "\n".join(rows)
    yield from below


def _shown(setting: Any) -> str:
    if isinstance(default := setting["default"], bool):
        return f"`{str(default).lower()}`"
    return f"`{default:g}s`" if isinstance(default, float) else f"`{default}`"


def kafka_properties() -> str:
    """Returns the allowed client properties."""
    return "\n".join(f"- `{name}`" for name in kafka_client.NAMES)


def errors() -> str:
    """Returns the tree of errors, each with its meaning and remedy."""
    kinds = _tree(TidesinkError, 0)
    rows = [f"| {'· ' * depth}`{kind.__name__}` | {kind.remedy} | {_says(kind)} |" for kind, depth in kinds]
    return "| error | remedy | meaning |\n|---|---|---|\n" + "\n".join(rows)


def _tree(kind: type[TidesinkError], depth: int) -> Iterator[tuple[type[TidesinkError], int]]:
    yield kind, depth
    for child in kind.__subclasses__():
        if child.__module__ == TidesinkError.__module__:
            yield from _tree(child, depth + 1)


def _says(kind: type[TidesinkError]) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]
