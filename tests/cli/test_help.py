"""What ``--help`` lists of each command is a whole sentence, on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from tidesink.cli.main import app

# Of a line: the indent, two blanks behind the longest name, and click's margin (HelpFormatter).
_WIDTH = 78 - 6


def _lines(group: Any, path: str) -> Iterator[tuple[str, str]]:
    commands = getattr(group, "commands", {})
    room = _WIDTH - max(map(len, commands), default=0)
    for name, command in commands.items():
        yield f"{path} {name}", command.get_short_help_str(room)
        yield from _lines(command, f"{path} {name}")


def test_no_description_of_a_command_is_cut() -> None:
    listed = dict(_lines(typer.main.get_command(app), "tidesink"))
    assert len(listed) > 40
    assert {name: line for name, line in listed.items() if not line or line.endswith("...")} == {}
