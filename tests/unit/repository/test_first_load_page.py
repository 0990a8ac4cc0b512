"""The snippets of docs/first-load.md are what their languages and tidesink's config take."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from tidesink.config import load_config

PAGE: Final = Path(__file__).parents[3] / "docs" / "first-load.md"


def snippets(language: str) -> list[str]:
    """The page's code blocks in one language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(3))
def test_a_config_is_taken_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setenv("READER_PASSWORD", "secret")
    found = yaml.safe_load(snippets("yaml")[number])
    rest = {"pipeline": "shop", "target": {"type": "delta", "path": "./lake"}}
    path = tmp_path / "tidesink.yaml"
    path.write_text(json.dumps({**rest, "defaults": {"snapshot": "initial"}, **found}), encoding="utf-8")
    config = load_config(path)
    assert config.source.database is not None
    assert config.defaults.snapshot == "initial"


def test_connectors_send_no_rows_of_their_own() -> None:
    mysql, postgres = map(json.loads, snippets("json"))
    assert (mysql["snapshot.mode"], postgres["snapshot.mode"]) == ("no_data", "no_data")
    assert {mysql["topic.prefix"], postgres["topic.prefix"]} == {"app"}
