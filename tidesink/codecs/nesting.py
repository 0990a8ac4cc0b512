"""How deep JSON from outside may be nested where it is kept as it is, beside a row's columns.

No producer nests its own members deeper than a few levels. What reads or writes such values goes down one
call a level, and Python's and orjson's limits would end it with an error of their own.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from tidesink.errors import SchemaMismatchError

MOST_LEVELS: Final = 64
_NESTING: Final = frozenset({dict, list})
T = TypeVar("T")


def is_deep(value: object, *, most: int = MOST_LEVELS) -> bool:
    """Whether objects and lists in a value are nested deeper than this many levels.

    They are what JSON and Avro are read as: no classes derived from these.
    """
    level: list[Any] = [value] if type(value) in _NESTING else []
    for _ in range(most):
        members = (one.values() if type(one) is dict else one for one in level)
        level = [inner for inside in members for inner in inside if type(inner) in _NESTING]
        if not level:
            return False
    return True


def kept(value: T, name: str) -> T:
    """The value of a member that is kept as it is.

    Raises:
        SchemaMismatchError: it is nested deeper than any producer's.
    """
    if is_deep(value):
        raise SchemaMismatchError(f"{name!r} is nested deeper than {MOST_LEVELS} levels")
    return value
