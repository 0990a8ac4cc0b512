"""A value as an error message shows it: never longer than fits on a line, and marked where it was cut."""

from __future__ import annotations


def shown(value: object, most: int = 80) -> str:
    """The value as Python writes it, of long text or bytes the first ``most`` characters and ``…``."""
    if isinstance(value, str | bytes):
        return repr(value) if len(value) <= most else f"{value[:most]!r}…"
    try:
        text = repr(value)
    except RecursionError:
        # orjson reads deeper nested values than Python writes.
        text = f"{type(value).__name__} nested too deep to be shown"
    return text if len(text) <= most else f"{text[:most]}…"
