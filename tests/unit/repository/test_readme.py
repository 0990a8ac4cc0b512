"""The README's configs are right, each by itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tidesink.config import load_config
from tidesink.events import TableId

_README: Final = Path(__file__).parents[3] / "README.md"
_CONFIGS: Final = re.findall(r"```yaml\n(.*?)```", _README.read_text(encoding="utf-8"), re.DOTALL)


def test_there_are_some() -> None:
    assert len(_CONFIGS) >= 2


def test_no_config_reads_the_topics_of_another(tmp_path: Path) -> None:
    """A reader runs both on one broker: what the later step writes must not meet the earlier pipeline."""
    configs = []
    for number, text in enumerate(_CONFIGS):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text, encoding="utf-8")
        configs.append(load_config(path))
    table = TableId("shop", "orders")
    topics = [rule.topic_for(table) for config in configs for rule in config.source.rules]
    assert [len(config.topics_among(topics)) for config in configs] == [1] * len(configs)


@pytest.mark.parametrize("number", range(len(_CONFIGS)))
def test_a_config_is_taken_as_it_stands(tmp_path: Path, number: int) -> None:
    path = tmp_path / "tidesink.yaml"
    path.write_text(_CONFIGS[number], encoding="utf-8")
    assert load_config(path).pipeline
