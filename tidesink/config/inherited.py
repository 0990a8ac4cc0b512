"""Which settings a table inherits that its own mode, or its own order, has no use for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from tidesink.config.fields import Model

# A word of a table, and the settings that are then as if nothing were said of them.
_NO_USE: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = MappingProxyType(
    {
        ("mode", "append"): {"sequence_by": "kafka", "deletes": "hard", "ignore_null_updates": False},
        ("mode", "history"): {"deletes": "hard", "ignore_null_updates": False},
        ("sequence_by", "source"): {"ignore_null_updates": False},
    }
)


def without_use(sections: Sequence[Model], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What falls away of a table's merged settings: what a section says that comes after the word.

    ``sections``: what covers the table, the nearest first. What is said beside the word, or nearer to the
    table, is a contradiction and stays: ``merged_problems`` tells of it.
    """
    found: dict[str, Any] = {}
    for (word, value), nothing in _NO_USE.items():
        if settings[word] == value:
            at = _place(sections, word)
            found |= {name: as_if for name, as_if in nothing.items() if _place(sections, name) > at}
    return found


def _place(sections: Sequence[Model], name: str) -> int:
    """The first section that says something; the last, the defaults, always does."""
    return next(at for at, section in enumerate(sections) if getattr(section, name) is not None)
