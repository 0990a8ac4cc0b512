"""Which of several lists of columns holds for a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tidesink.config.fields import Model

_LISTS: Final = ("columns", "except_column_list")


def selection(sections: Sequence[Model]) -> dict[str, Any]:
    """The lists of the first section that has one: of two lists from two places neither would hold."""
    own = ({name: getattr(section, name) for name in _LISTS} for section in sections)
    return next((found for found in own if any(value is not None for value in found.values())), {})
