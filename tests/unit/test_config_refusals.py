"""Everything wrong in a config is told at once: field, reason, remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.config_refusals import CASES
from tests.unit.config_samples import FLAT_AVRO, changed, wrong
from tidesink.config import check_config, load_config
from tidesink.errors import ConfigError


def test_everything_wrong_is_told_at_once() -> None:
    found = wrong(
        changed(
            FLAT_AVRO,
            pipeline="sh op",
            source__brokers="nowhere",
            source__avro_decimal_handling_mode="float",
            source__protocl="avro",
            source__topics="{schema}_x",
            source__content_compatible=True,
            batch__max_records=0,
            target__type="deltalake",
            retry__for="soon",
        )
    )
    assert set(found) == {
        "pipeline",
        "source.brokers[0]",
        "source.avro-decimal-handling-mode",
        "source.protocl",
        "source.topics",
        "source.content-compatible",
        "batch.max-records",
        "target.type",
        "retry.for",
    }
    assert all(problem.reason and problem.remedy for problem in found.values())


@pytest.mark.parametrize(
    ("data", "field", "reason", "remedy"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_each_refusal_names_field_reason_and_remedy(
    data: dict[str, Any], field: str, reason: str, remedy: str
) -> None:
    problem = wrong(data)[field]
    assert reason in problem.reason
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pipeline: [", "is no YAML in line 1"),
        ("pipeline: a\npipeline: b", "pipeline is given twice"),
        ("", "is no mapping of settings"),
        ("- a", "is no mapping of settings"),
    ],
)
def test_a_file_that_is_no_config(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory; tidesink init writes one"):
        check_config(tmp_path / "none.yaml")


def test_the_message_lists_every_problem(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump(changed(FLAT_AVRO, pipeline="", batch__max_records="x")))
    with pytest.raises(ConfigError) as raised:
        load_config(file)
    assert "2 settings are wrong in t.yaml" in raised.value.message
    assert "batch.max-records: 'x' is no number" in raised.value.message
