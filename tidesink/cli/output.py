"""What commands print: JSON for programs, rich tables for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text


class OutputFormat(str, Enum):
    """How a command prints its result."""

    TEXT = "text"
    JSON = "json"


_FILE_WIDTH = 200

Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="text for people, json for programs.")]


class _Screen(Console):
    """rich's console, but a reader that has had enough is left to ``failures.guarded``."""

    def on_broken_pipe(self) -> None:
        """Called by rich where stdout is closed; rich itself would end the process with 1."""
        raise BrokenPipeError


def console() -> Console:
    """stdout as rich sees it now; plain text, and wide enough for tables, where it is no terminal."""
    terminal = sys.stdout.isatty()
    return _Screen(highlight=False, soft_wrap=not terminal, width=None if terminal else _FILE_WIDTH)


def write_json(value: Any) -> None:
    """One JSON value on one line of stdout."""
    sys.stdout.write(orjson.dumps(value, default=str).decode("utf-8") + "\n")
    sys.stdout.flush()


def warn(text: str) -> None:
    """A warning on stderr, where it cannot mix with output that programs read."""
    sys.stderr.write(f"warning: {text}\n")


def note(text: str) -> None:
    """A line of progress on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A plain table; numbers stand at the right."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    listed = [list(row) for row in rows]
    for index, name in enumerate(columns):
        numeric = bool(listed) and all(isinstance(row[index], int | float) for row in listed)
        made.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        made.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    return made
