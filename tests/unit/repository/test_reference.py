"""The reference pages are what the code says, and the published schema fits the configs it describes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import tidesink.errors
from tests.unit.config.refusals import CASES
from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed
from tidesink.cli.main import app
from tidesink.kafka_client import NAMES

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
# What only `tidesink validate` can see is not the schema's to refuse.
SEEN_BY_SHAPE = {
    "unknown key",
    "unknown section",
    "decimal mode",
    "unsigned mode",
    "boolean",
    "missing",
    "size",
}
SHAPES = [case for case in CASES if case[0] in SEEN_BY_SHAPE]


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "config.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def test_the_pages_are_generated() -> None:
    command = [sys.executable, "scripts/generate_reference.py", "--check"]
    # Of the code beside it, which need not be what is installed.
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_each_law_has_tests() -> None:
    page = (DOCS / "proof.md").read_text(encoding="utf-8").partition("<!-- end -->")[0]
    laws = [part.partition(" ")[::2] for part in page.split("| **L")[1:]]
    assert [number for number, _ in laws] == [str(number) for number in range(1, 11)]
    assert min(rows.count("| | `test_") for _, rows in laws) >= 3


def test_every_command_setting_and_error_is_documented() -> None:
    cli = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert all(f"### tidesink {command.name}\n" in cli for command in app.registered_commands)
    configuration = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in configuration for name in NAMES)
    errors = (DOCS / "errors.md").read_text(encoding="utf-8")
    named = [name for name in vars(tidesink.errors) if name.endswith("Error")]
    assert len(named) > 20
    assert all(f"`{name}`" in errors for name in named)


@pytest.mark.parametrize(
    "config",
    [
        FLAT_AVRO,
        CANAL_JSON,
        changed(FLAT_AVRO, source__schema_registry={"url": "http://r", "auth": {"token": "${file:t}"}}),
        changed(
            FLAT_AVRO, source__enable_tidb_extension="${env:X}", batch__max_bytes="64MiB", retry__for="1h"
        ),
        changed(CANAL_JSON, tables=[{"name": "a.b", "keys": "id", "definition": {"file": "t.sql"}}]),
        {**CANAL_JSON, "defaults": {"zero-date": None}},
    ],
)
def test_right_configs_fit_the_schema(schema: dict[str, Any], config: dict[str, Any]) -> None:
    jsonschema.validate(config, schema)


@pytest.mark.parametrize("case", SHAPES, ids=lambda case: case[0])
def test_wrong_shapes_do_not(schema: dict[str, Any], case: tuple[str, dict[str, Any], str, str, str]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(case[1], schema)


def test_the_example_of_the_page_is_right(schema: dict[str, Any]) -> None:
    text = (DOCS / "configuration.md").read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    jsonschema.validate(yaml.safe_load(text), schema)
