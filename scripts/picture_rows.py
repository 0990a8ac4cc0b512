"""Parses the rows of a picture from its text.

A text is a title (``# …``) and rows from top to bottom: ``box: HEAD :: LINE :: LINE``, ``arrow: LABEL``, or
``group: TITLE`` with the boxes of one row indented below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Final, NamedTuple

WIDTH: Final = 860
MARGIN: Final = 20
# Width of a 13 px character in common fonts, plain and bold, rounded up so that the text fits in any reader's
# font.
NARROW: Final = 6.9
BOLD: Final = 7.6
LONGEST: Final = int((WIDTH / 2 - 2 * MARGIN) / NARROW)


class Row(NamedTuple):
    """An arrow with its label, or boxes side by side, each a head with lines, maybe in a titled group."""

    kind: str
    title: str
    boxes: list[list[str]]


def parsed(text: str) -> list[Row]:
    """Returns the rows of a text.

    Raises:
        ValueError: A line has an unknown kind, or is too long to fit next to an arrow.
    """
    rows: list[Row] = []
    for line in filter(str.strip, text.splitlines()[1:]):
        kind, _, rest = line.strip().partition(": ")
        if kind == "box" and line.startswith(" "):
            rows[-1].boxes.append(rest.split(" :: "))
        elif kind == "box":
            rows.append(Row(kind, "", [rest.split(" :: ")]))
        elif kind in ("arrow", "group") and len(rest) <= LONGEST:
            rows.append(Row(kind, rest, []))
        else:
            raise ValueError(f"Not a line of a picture: {line!r}")
    return rows


def wrapped(box: Sequence[str], width: float) -> Iterator[tuple[str, str]]:
    """Yields the lines of a box of this width, each with its style: the head is bold."""
    yield from ((line, 'font-weight="bold"') for line in wrap(box[0], int(width / BOLD)))
    yield from ((line, "") for words in box[1:] for line in wrap(words, int(width / NARROW)))
