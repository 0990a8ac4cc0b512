"""Files that several commands read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.samples import KEY_SCHEMA, VALUE_SCHEMA


@pytest.fixture
def schemas(tmp_path: Path) -> str:
    """A schemas file: one schema as an object, one as text."""
    file = tmp_path / "schemas.jsonl"
    rows = [{"id": 257, "schema": KEY_SCHEMA, "more": 1}, {"id": 258, "schema": json.dumps(VALUE_SCHEMA)}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)
