"""docs/types.md is what the table of types says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tidesink.typemap.table import EXTENSION_FIELDS, TYPES

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_generated() -> None:
    command = [sys.executable, "scripts/generate_docs.py", "--check"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_the_page_names_every_type_and_field() -> None:
    page = (ROOT / "docs" / "types.md").read_text(encoding="utf-8")
    assert all(f"| {row.name} |" in page for row in TYPES)
    assert all(f"`{field.name}`" in page for field in EXTENSION_FIELDS)
