"""The rows of a picture, from its text.

A text is a title (``# …``) and rows from top to bottom: ``box: HEAD :: LINE :: LINE``, ``arrow: LABEL``, or
``group: TITLE`` with the boxes of one row indented below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Final, NamedTuple

WIDTH: Final = 860
MARGIN: Final = 20
# A character of 13 px in common fonts, and a bold one: rounded up, so that no reader's font breaks a box.
NARROW: Final = 6.9
BOLD: Final = 7.6
LONGEST: Final = int((WIDTH / 2 - 2 * MARGIN) / NARROW)


class Row(NamedTuple):
    """An arrow with its label, or boxes side by side, each a head with lines, maybe in a titled group."""

    kind: str
    title: str
    boxes: list[list[str]]


def parsed(text: str) -> list[Row]:
    """The rows of a text.

    Raises:
        ValueError: a line is none of the three kinds, or too long to stand beside an arrow.
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
            raise ValueError(f"no line of a picture: {line!r}")
    return rows


def wrapped(box: Sequence[str], width: float) -> Iterator[tuple[str, str]]:
    """The lines of a box of this width, each with its style: the head is bold."""
    yield from ((line, 'font-weight="bold"') for line in wrap(box[0], int(width / BOLD)))
    yield from ((line, "") for words in box[1:] for line in wrap(words, int(width / NARROW)))
