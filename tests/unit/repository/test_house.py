"""The size and the names of what stands in the house."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
MOST_MODULES: Final = 25
MOST_FUNCTION_LINES: Final = 40
MOST_INIT_LINES: Final = 60
MOST_SCRIPT_LINES: Final = 60
MOST_METHODS: Final = 25
MOST_FIELDS: Final = 16
MOST_PARAMETERS: Final = 8
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
ROOMS: Final = ("tidesink", "tests", "benchmarks", "examples", "scripts")

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


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _methods(definition: ast.AST) -> set[str]:
    """The names of a class's own methods and properties."""
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    return {node.name for node in body if isinstance(node, Function)}


def _fields(definition: ast.AST) -> set[str]:
    """The names of a dataclass's own fields."""
    if not isinstance(definition, ast.ClassDef):
        return set()
    if not any("dataclass" in ast.unparse(decorator) for decorator in definition.decorator_list):
        return set()
    annotated = [node for node in definition.body if isinstance(node, ast.AnnAssign)]
    return {ast.unparse(node.target) for node in annotated if "ClassVar" not in ast.unparse(node.annotation)}


def _parameters(definition: ast.AST) -> set[str]:
    """The names of a function's parameters. Those of a command are its options, and do not count."""
    if not isinstance(definition, Function):
        return set()
    arguments = definition.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    if any(one.annotation is not None and "typer." in ast.unparse(one.annotation) for one in parameters):
        return set()
    return {one.arg for one in parameters} - {"self", "cls"}


LIMITS: Final = ((_methods, MOST_METHODS), (_fields, MOST_FIELDS), (_parameters, MOST_PARAMETERS))


def _over_limits(text: str) -> Iterator[str]:
    """The classes with too many methods, the dataclasses with too many fields, and the functions with too
    many parameters.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | Function) and any(
            len(members(node)) > most for members, most in LIMITS
        ):
            yield node.name


def test_the_house_is_seen() -> None:
    """Guards the tests below: they would also pass if they saw no file."""
    assert {"tidesink/errors.py", "tests/unit/repository/test_house.py"} <= {_name(path) for path in FILES}


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


def test_classes_and_functions_are_small() -> None:
    over = {_name(path): [*_over_limits(path.read_text(encoding="utf-8"))] for path in FILES}
    assert {name: definitions for name, definitions in over.items() if definitions} == {}


def _class(count: int, member: str, decorator: str = "") -> str:
    """A class with so many members."""
    return "\n    ".join([f"{decorator}class A:", *(member.format(number) for number in range(count))])


@pytest.mark.parametrize(
    ("most", "definition"),
    [
        (MOST_METHODS, lambda count: _class(count, "def m{}(self): pass")),
        (MOST_FIELDS, lambda count: _class(count, "f{}: int", "@dataclass(frozen=True)\n")),
        (MOST_PARAMETERS, lambda count: f"def A({', '.join(f'p{n}' for n in range(count))}): pass"),
        (
            MOST_PARAMETERS,
            lambda count: f"async def A(self, *, {', '.join(f'p{n}' for n in range(count))}): pass",
        ),
    ],
)
def test_members_are_counted(most: int, definition: Callable[[int], str]) -> None:
    """Guards the test above: nothing has more than it allows."""
    assert [*_over_limits(definition(most))] == []
    assert [*_over_limits(definition(most + 1))] == ["A"]


def test_options_of_a_command_are_not_counted() -> None:
    options = ", ".join(f"p{number}: typer.Option" for number in range(MOST_PARAMETERS + 1))
    assert [*_over_limits(f"def command({options}): pass")] == []


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


# Fixtures of pytest whose attributes a test may replace.
OTHERS_FIXTURES: Final = {"pytestconfig"}


def _imported(tree: ast.Module, *, ours: bool) -> set[str]:
    """The names that a file imports from our code, or from that of others."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names |= {alias.asname or first} if (first in ROOMS) is ours else set()
        elif isinstance(node, ast.ImportFrom):
            is_ours = bool(node.level) or (node.module or "").partition(".")[0] in ROOMS
            names |= {alias.asname or alias.name for alias in node.names} if is_ours is ours else set()
    return names


def _first_name(node: ast.expr) -> str:
    """``a`` for ``a.b``, ``a().b`` and ``a[0].b``, and for the text "a.b"."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.partition(".")[0]
    return node.id if isinstance(node, ast.Name) else ""


def _patches(text: str) -> Iterator[int]:
    """The lines in which a test replaces an attribute of our code, or imports what does so.

    An attribute may be replaced if its module belongs to others and is imported, or named by a text as in
    ``monkeypatch.setattr("sys.argv", …)``. Any other value may be an object of ours.
    """
    tree = ast.parse(text)
    ours = _imported(tree, ours=True)
    others = _imported(tree, ours=False) - ours | OTHERS_FIXTURES
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            found = "mock" in ".".join((module, *(alias.name for alias in node.names))).split(".")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            found = _replaces(node.func.attr, node.args[0], ours, others)
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            found = _first_name(node) in ours
        else:
            continue
        if found:
            yield node.lineno


def _replaces(method: str, target: ast.expr, ours: set[str], others: set[str]) -> bool:
    """Whether a call of a method with this first argument replaces a part of what is, or may be, ours."""
    first = _first_name(target)
    if method in ("setattr", "delattr"):
        return first in ROOMS if isinstance(target, ast.Constant) else first not in others
    if method in ("setitem", "delitem"):
        return first in ours
    return method == "__setattr__" and first != "self"


def test_no_test_replaces_what_is_ours() -> None:
    """A test passes its own sizes, clocks and clients: what a class depends on is an argument."""
    tests = [path for path in FILES if path.is_relative_to(ROOT / "tests")]
    found = {_name(path): [*_patches(path.read_text(encoding="utf-8"))] for path in tests}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ('monkeypatch.setattr("sys.argv", [])', False),
        ("import tarfile\nmonkeypatch.delattr(tarfile, 'data_filter')", False),
        ("import os, sys\nmonkeypatch.setattr(os.path, 'exists', print)", False),
        ("monkeypatch.setattr(pytestconfig.option, 'vectors', None)", False),
        ('monkeypatch.setattr("tidesink.consumer.Consumer", None)', True),
        ('monkeypatch.setattr("tests.vectors.WHOLE", None)', True),
        ("import tidesink.dev.stack\nmonkeypatch.setattr(tidesink.dev.stack, 'X', 1)", True),
        ("from tidesink.dev import stack as ports\nmonkeypatch.setattr(ports, 'LOOPBACK', 1)", True),
        ("from tidesink.dev import stack as ports\nports.LOOPBACK = 1", True),
        ("from tidesink.dev import stack as ports\nmonkeypatch.setitem(ports.__dict__, 'LOOPBACK', 1)", True),
        ("patched.setattr(asked, '_consumer', None)", True),
        ("patched.setattr(type(table._files), 'stage', None)", True),
        ("object.__setattr__(around, 'config', None)", True),
        ("from unittest import mock", True),
        ("import unittest.mock", True),
        ("from unittest.mock import patch", True),
    ],
)
def test_replaced_attributes_are_found(lines: str, *, found: bool) -> None:
    """Guards the test above."""
    assert bool([*_patches(lines)]) is found
