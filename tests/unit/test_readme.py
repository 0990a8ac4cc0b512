"""The README's configs are right, each by itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tidesink.config import load_config

_README: Final = Path(__file__).parents[2] / "README.md"
_CONFIGS: Final = re.findall(r"```yaml\n(.*?)```", _README.read_text(encoding="utf-8"), re.DOTALL)


def test_there_are_some() -> None:
    assert len(_CONFIGS) >= 2


@pytest.mark.parametrize("number", range(len(_CONFIGS)))
def test_a_config_is_taken_as_it_stands(tmp_path: Path, number: int) -> None:
    path = tmp_path / "tidesink.yaml"
    path.write_text(_CONFIGS[number], encoding="utf-8")
    assert load_config(path).pipeline
