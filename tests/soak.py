"""The marks of tests that take too long for every change: ``make soak`` runs them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, TypeVar

import pytest

SOAK: Final = (
    pytest.mark.soak,
    pytest.mark.skipif(not os.environ.get("TIDESINK_SOAK"), reason="long: make soak"),
)

_Test = TypeVar("_Test", bound=Callable[..., None])


def soaked(test: _Test) -> _Test:
    """A test with the marks."""
    for mark in SOAK:
        test = mark(test)
    return test
