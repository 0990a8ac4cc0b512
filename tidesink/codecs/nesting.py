"""How deep JSON from outside may be nested where it is kept as it is, beside a row's columns.

No producer nests its own members deeper than a few levels. What reads or writes such values goes down one
call a level, and Python's and orjson's limits would end it with an error of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from tidesink.errors import SchemaMismatchError

MOST_LEVELS: Final = 64
T = TypeVar("T")


def is_deep(value: object, *, most: int = MOST_LEVELS) -> bool:
    """Whether objects and lists in a value are nested deeper than this many levels."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        level = [inner for one in level for inner in _inside(one) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _inside(value: object) -> Iterator[object]:
    return iter(value.values() if isinstance(value, Mapping) else value)  # type: ignore[call-overload, no-any-return]


def kept(value: T, name: str) -> T:
    """The value of a member that is kept as it is.

    Raises:
        SchemaMismatchError: it is nested deeper than any producer's.
    """
    if is_deep(value):
        raise SchemaMismatchError(f"{name!r} is nested deeper than {MOST_LEVELS} levels")
    return value
