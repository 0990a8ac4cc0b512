"""The config of docs/many-tables.md is what tidesink takes, with the defaults that the page names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tidesink.config import load_config

PAGE: Final = Path(__file__).parents[3] / "docs" / "many-tables.md"


def test_the_config_is_taken_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "secret")
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "tidesink.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(path)
    assert (config.batch.executor, config.batch.max_tables) == ("auto", None)
