"""The JSON Schema of the config file, for editors and other programs."""

from __future__ import annotations

from typing import Any

from tidesink.config.fields import shown_seconds
from tidesink.config.models import Config

# A reference may stand for any value; it is replaced before the value is checked.
_REFERENCE = {"type": "string", "pattern": r"\$\{(env|file):[^}]+\}"}
_NO_TEXT = frozenset({"boolean", "integer", "number"})


def config_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) that every right config fulfils; ``tidesink validate`` checks more."""
    schema = _plain(Config.model_json_schema())
    registry = schema["$defs"]["RegistrySettings"]
    registry["properties"]["url"] = registry["properties"]["urls"]
    registry["oneOf"] = [{"required": ["urls"]}, {"required": ["url"]}]
    del registry["required"]
    target = schema["properties"]["target"]
    target["anyOf"] = target.pop("oneOf")  # a reference as type fits all of them
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "tidesink pipeline",
    }


def _plain(part: Any) -> Any:
    """Without pydantic's titles and Python's markup; patterns anchored; references let through."""
    if isinstance(part, list):
        return [_plain(item) for item in part]
    if not isinstance(part, dict):
        return part
    kept = {name: _member(name, value) for name, value in part.items() if name != "title"}
    if isinstance(kept.get("default"), float):
        kept["default"] = shown_seconds(kept["default"])  # durations alone are such numbers
    if isinstance(kept.get("description"), str):
        kept["description"] = kept["description"].replace("``", "`").replace("\n", " ")
    if isinstance(kept.get("pattern"), str) and not kept["pattern"].startswith(("^", r"\$")):
        kept["pattern"] = f"^{kept['pattern']}$"
    return _referable(kept)


def _member(name: str, value: Any) -> Any:
    # Below these, names are the settings' own: one may be called type or title.
    if name in ("properties", "$defs"):
        return {own: _plain(schema) for own, schema in value.items()}
    return _plain(value)


def _referable(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") not in _NO_TEXT and not part.keys() & {"const", "enum", "pattern"}:
        return part
    outside: dict[str, Any] = {name: part.pop(name) for name in ("description", "default") if name in part}
    return {**outside, "anyOf": [part, _REFERENCE]}
