"""Draws a picture's rows as SVG."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape

from picture_rows import MARGIN, WIDTH, Row, parsed, wrapped

GAP: Final = 14
PAD: Final = 12
LINE: Final = 17
ARROW: Final = 40


def drawn(text: str) -> str:
    """Returns the picture of a text, as SVG."""
    title, rows = text.splitlines()[0].removeprefix("# "), parsed(text)
    parts, top = [_text(WIDTH / 2, 32, title, 'font-weight="bold" font-size="16"')], 52.0
    for row in rows:
        found, height = _arrow(row, top) if row.kind == "arrow" else _boxes(row, top)
        parts += found
        top += height
    size = f'width="{WIDTH}" height="{top + GAP:g}" viewBox="0 0 {WIDTH} {top + GAP:g}"'
    font = 'role="img" font-family="Helvetica, Arial, sans-serif" font-size="13"'
    lines = [f"<title>{escape(title)}</title>", '<rect width="100%" height="100%" fill="#ffffff"/>', *parts]
    return "\n  ".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>', *lines]) + "\n</svg>\n"


def _boxes(row: Row, top: float) -> tuple[list[str], float]:
    pad, head = (PAD, LINE + 4) if row.kind == "group" else (0, 0)
    width = (WIDTH - 2 * MARGIN - 2 * pad - GAP * (len(row.boxes) - 1)) / len(row.boxes)
    texts = [[*wrapped(box, width - 2 * PAD)] for box in row.boxes]
    height = max(map(len, texts)) * LINE + 2 * PAD - 4
    parts = []
    if row.kind == "group":
        parts.append(_rectangle(MARGIN, top, WIDTH - 2 * MARGIN, height + head + 2 * pad, "#f1f5f9"))
        parts.append(_text(WIDTH / 2, top + LINE + 2, row.title, 'font-style="italic"'))
    for number, lines in enumerate(texts):
        x, y = MARGIN + pad + number * (width + GAP), top + head + pad
        parts.append(_rectangle(x, y, width, height, "#ffffff"))
        parts += [_text(x + width / 2, y + PAD + 11 + at * LINE, *line) for at, line in enumerate(lines)]
    return parts, height + head + 2 * pad + 8


def _rectangle(x: float, y: float, width: float, height: float, fill: str) -> str:
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {place} rx="6" fill="{fill}" stroke="#475569"/>'


def _text(x: float, y: float, words: str, style: str, anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" {style}>{escape(words)}</text>'


def _arrow(row: Row, top: float) -> tuple[list[str], float]:
    x, end = WIDTH / 2, top + ARROW - 10
    line = f'<path d="M{x:g} {top - 4:g} V{end:g}" stroke="#475569" stroke-width="1.5"/>'
    point = f'<path d="M{x - 5:g} {end - 2:g} h10 l-5 8 z" fill="#475569"/>'
    return [line, point, _text(x + 14, top + 18, row.title, 'font-style="italic"', "start")], ARROW
