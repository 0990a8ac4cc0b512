"""A table definition in the config: SQL in place, or the name of a file that holds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationInfo

from tidesink.config.fields import Model


class Definition(Model):
    """``CREATE TABLE`` text; ``file`` says where it was read from."""

    sql: str
    file: str | None = None


class DefinitionFile(Model):
    """SQL kept in a file of its own."""

    file: str
    """Read from beside the config."""


def read_definition(value: Any, info: ValidationInfo) -> Any:
    """Text is the SQL itself; ``{file: path}`` is read from beside the config."""
    if isinstance(value, str):
        return {"sql": value}
    if not isinstance(value, dict) or set(value) != {"file"}:
        return value
    path = ((info.context or {}).get("base") or Path()) / str(value["file"])
    try:
        return {"sql": path.read_text(encoding="utf-8"), "file": str(path)}
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"give a readable file of SQL: {path} cannot be read") from error
