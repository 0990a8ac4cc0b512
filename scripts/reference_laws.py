"""The generated section of docs/proof.md: the tests of each law, by their marks ``law``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1] / "tests"
LAWS = {
    "L1": ("Order", "The changes of a key are applied in the order of their positions."),
    "L2": ("Cut anywhere", "Neither the cuts into batches nor repeated records change the result."),
    "L3": ("No resurrection", "An older change never brings back a deleted or repaired row."),
    "L4": ("Key change", "An update of a key removes the row under the old key."),
    "L5": ("No key", "Copies of a row without a key are counted, or the table is refused."),
    "L6": ("Values", "A value arrives as the type table says, or is refused by name."),
    "L7": ("Isolation", "Each row is read with its own schema, and a table never stops another one."),
    "L8": ("Exactly once in effect", "A kill at any step neither loses a change nor applies it twice."),
    "L9": ("Cuts", "At a cut every table has exactly the changes up to one instant."),
    "L10": ("One owner", "Only the ledger decides which worker may commit."),
}


class Marked(NamedTuple):
    """A test with a mark ``law``. ``full``: True if only ``make test-all`` runs it."""

    law: str
    module: str
    test: str
    full: bool


def marked(folder: Path = TESTS) -> Iterator[Marked]:
    """Yields the marked tests of a folder, once for each of their laws, sorted by module."""
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                marks = [ast.unparse(decorator) for decorator in node.decorator_list]
                module = path.relative_to(folder).with_suffix("").as_posix()
                for law in (law for mark in marks for law in _laws(mark)):
                    yield Marked(law, module, node.name, "FULL" in marks)


def _laws(mark: str) -> list[str]:
    name, _, arguments = mark.partition("(")
    return [text.strip(" ')") for text in arguments.split(",")] if name == "pytest.mark.law" else []


def laws() -> str:
    """Returns the table of laws and their tests.

    Raises:
        KeyError: a mark names an unknown law.
    """
    rows = {law: [f"| **{law} {name}** | {promise} | |"] for law, (name, promise) in LAWS.items()}
    for item in marked():
        rows[item.law].append(f"| | `{item.test}`{' (all)' * item.full} | `{item.module}` |")
    return "\n".join(["| law | test | in |", "|---|---|---|", *chain(*rows.values())])
