"""A protocol that TiCDC's design only reserves is refused by its name, with what to use instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.samples import run
from tidesink.codecs import open_codec
from tidesink.config import check_config
from tidesink.errors import ConfigError

CONFIG = """\
pipeline: p
source: {brokers: 'h:1', protocol: Rich-Avro, topics: '{schema}_{table}', schema-registry: 'http://h'}
target: {path: lake}
"""


@pytest.mark.parametrize("name", ["rich-avro", "RICH-AVRO"])
def test_opening_a_codec(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is reserved in TiCDC's design.*Use flat-avro .* or canal-json"):
        open_codec(name)


def test_a_config(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(CONFIG, encoding="utf-8")
    _, problems = check_config(file)
    (problem,) = [one for one in problems if one.field == "source.protocol"]
    assert "rich-avro is reserved in TiCDC's design" in problem.remedy
    assert "Use flat-avro" in problem.remedy


def test_the_command_line() -> None:
    result = run("decode", "--protocol", "rich-avro", "--input", "-", stdin="")
    assert result.exit_code == 2
    assert "rich-avro is reserved in TiCDC's design" in result.stderr
