"""The modules whose tests run on both executors."""

from __future__ import annotations

from pathlib import Path

from tests.executors import ON_BOTH

TESTS = Path(__file__).parents[2]


def test_each_of_them_is_there() -> None:
    files = {TESTS / folder / f"test_{name}.py" for folder, names in ON_BOTH.items() for name in names}
    assert {file for file in files if not file.is_file()} == set()
