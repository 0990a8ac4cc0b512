"""The generated section of docs/cli.md: every command with its options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from tidesink.cli.main import app


def commands() -> str:
    """Returns every command with its options."""
    return "\n\n".join(_command(typer.main.get_command(app), "tidesink"))


def _command(command: Any, name: str) -> Iterator[str]:
    if hasattr(command, "commands"):
        for child in command.commands.values():
            yield from _command(child, f"{name} {child.name}")
        return
    rows = [_option(parameter) for parameter in command.params if parameter.name != "help"]
    text = re.sub(r"\s*\n\s*", " ", (command.help or "").strip())
    table = "| option | default | meaning |\n|---|---|---|\n" + "\n".join(rows)
    yield f"### {name}\n\n{text}\n\n{table}"


def _option(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    default = getattr(parameter.default, "value", parameter.default)
    shown = "" if default in (None, False) else f"`{default}`"
    return f"| {names} | {shown} | {getattr(parameter, 'help', '') or ''} |"
