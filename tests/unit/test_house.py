"""The size and the names of what stands in the house."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
MOST_MODULES: Final = 25
MOST_FUNCTION_LINES: Final = 40
MOST_INIT_LINES: Final = 60
MOST_SCRIPT_LINES: Final = 60
# json and http are the standard library's; the rest say nothing.
REFUSED_NAMES: Final = {
    "json",
    "http",
    "utils",
    "util",
    "helpers",
    "helper",
    "common",
    "misc",
    "manager",
}
ROOMS: Final = ("tidesink", "tests", "benchmarks", "scripts")

FILES: Final = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
PACKAGE_FILES: Final = [path for path in FILES if path.is_relative_to(ROOT / "tidesink")]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _long_functions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MOST_FUNCTION_LINES and ast.get_docstring(node) is None:
            yield f"{_name(path)}:{node.lineno} {node.name} has {length} lines and no docstring"


def test_the_house_is_seen() -> None:
    """Guards the tests below: they would also pass if they saw no file."""
    assert {"tidesink/errors.py", "tests/unit/test_house.py"} <= {_name(path) for path in FILES}


def test_packages_only_name_what_they_offer() -> None:
    packages = [path for path in FILES if path.name == "__init__.py"]
    assert {_name(path): n for path in packages if (n := _lines(path)) > MOST_INIT_LINES} == {}


def test_folders_can_be_looked_through() -> None:
    counts = Counter(_name(path.parent) for path in PACKAGE_FILES)
    assert {name: count for name, count in counts.items() if count > MOST_MODULES} == {}


def test_scripts_are_small() -> None:
    scripts = [p for p in sorted((ROOT / "scripts").rglob("*")) if p.suffix in {".py", ".sh"}]
    assert {_name(p): n for p in scripts if (n := _lines(p)) > MOST_SCRIPT_LINES} == {}


def test_long_functions_say_what_they_do() -> None:
    assert [line for path in FILES for line in _long_functions(path)] == []


def test_names_say_something() -> None:
    words = {_name(path): {path.stem, *path.relative_to(ROOT).parts[:-1]} for path in FILES}
    assert {name: found for name, parts in words.items() if (found := parts & REFUSED_NAMES)} == {}


def _says_its_folder(path: Path) -> bool:
    """Whether a file's name begins with its folder's, in the singular too."""
    folder = path.parent.name
    return path.stem == folder or path.stem.startswith((f"{folder}_", f"{folder.removesuffix('s')}_"))


def test_names_do_not_repeat_their_folder() -> None:
    assert [_name(path) for path in PACKAGE_FILES if _says_its_folder(path)] == []


def test_modules_say_what_they_are() -> None:
    undocumented = [
        _name(path)
        for path in PACKAGE_FILES
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert undocumented == []
