"""Runs a test once for each capture of a real Debezium connector."""

from __future__ import annotations

from collections.abc import Callable, Container

import pytest

from tests.full import FULL
from tests.golden.debezium_captures import Capture, find_captures
from tests.vectors import vectors_dir


def each_capture(
    metafunc: pytest.Metafunc,
    *,
    name: str = "capture",
    kind: Callable[[Capture], bool] = lambda _: True,
    always: Container[str] | None = None,
) -> None:
    """For ``pytest_generate_tests``: a test that asks for ``name`` gets the captures of a kind, one by one.

    ``always``: those that every change is tested with; make test-all has the others.
    """
    if name not in metafunc.fixturenames:
        return
    captures = filter(kind, find_captures(vectors_dir(metafunc.config)))
    metafunc.parametrize(
        name,
        [
            pytest.param(one, id=one.name, marks=() if always is None or one.name in always else FULL)
            for one in captures
        ],
    )
