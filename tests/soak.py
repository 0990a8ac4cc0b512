"""The marks of tests that take too long for every change: ``make soak`` runs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import pytest

SOAK: Final = (
    pytest.mark.soak,
    pytest.mark.skipif(not os.environ.get("TIDESINK_SOAK"), reason="long: make soak"),
)


def each(kinds: Iterable[str], *, soaked: str) -> list[Any]:
    """Parameters of a fixture or a test with every kind in turn, one of them in ``make soak`` alone."""
    return [pytest.param(kind, marks=SOAK if kind == soaked else ()) for kind in kinds]


_Test = TypeVar("_Test", bound=Callable[..., None])


def soaked(test: _Test) -> _Test:
    """A test with the marks."""
    for mark in SOAK:
        test = mark(test)
    return test
