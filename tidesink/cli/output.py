"""What commands print: JSON for programs, rich tables for people."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Annotated, Any

import orjson
import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.table import Table
from rich.text import Text


class OutputFormat(str, Enum):
    """How a command prints its result."""

    TEXT = "text"
    JSON = "json"


_FILE_WIDTH = 200
_FOLDED_WIDTH = 16
_GAP = 2  # rich pads each side of a cell by one
_PADDING = re.compile(r"(?: |\x1b\[[0-9;]*m)+$", re.MULTILINE)

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


def show_table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, folded: Sequence[str] = ()
) -> None:
    """A plain table on stdout; numbers stand at the right.

    A cell is never broken, so that names and numbers can be read and copied on any terminal. Only the
    ``folded`` columns' are: they hold sentences. A newline in a column's name is one in the heading.
    """
    listed = [["" if cell is None else cell for cell in row] for row in rows]
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    widths = []
    for index, name in enumerate(columns):
        cells = [row[index] for row in listed]
        whole = name not in folded
        widths.append(_width([name, *cells]) if whole else max(_width([name]), _FOLDED_WIDTH))
        made.add_column(
            name,
            justify="right" if cells and all(isinstance(cell, int | float) for cell in cells) else "left",
            vertical="bottom",
            overflow="fold",
            no_wrap=whole,
            min_width=widths[-1],
        )
    for row in listed:
        made.add_row(*(Text(str(cell)) for cell in row))
    screen = console()
    # rich would break cells to keep to a narrow terminal; the terminal itself only breaks the line.
    # Height too: of a terminal it knows little of, rich heeds no width alone.
    wide = max(screen.width, sum(widths) + _GAP * (len(widths) - 1))
    screen.size = ConsoleDimensions(wide, screen.height)
    with screen.capture() as shown:
        screen.print(made)
    screen.file.write(_PADDING.sub(_without_spaces, shown.get()))


def _without_spaces(padding: re.Match[str]) -> str:
    """A line's end without the blanks that fill its last cells: a narrow terminal would break the line for
    them."""
    return padding.group().replace(" ", "")


def _width(cells: Iterable[Any]) -> int:
    return max(cell_len(line) for cell in cells for line in str(cell).split("\n"))
