"""What ``validate --connect`` prints of the servers, without any."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.samples import run
from tests.unit.config_samples import CANAL_JSON, changed, right
from tidesink.cli.plan import topics_read
from tidesink.cli.terminal import error_block
from tidesink.errors import SourceError, TargetError

TOPICS = ("shop_a", "shop_b", "letters", "__consumer_offsets", "other", "x1", "x2", "x3", "x4", "x5")


def test_topics_that_are_not_read_are_named_with_the_reason() -> None:
    letters = {"errors.deadletterqueue.topic.name": "letters"}
    config = right(
        changed(
            CANAL_JSON,
            source__topics=["shop_a", "shop_b"],
            dead_letters=letters,
            defaults={"bad-record": "dead-letter"},
        )
    )
    assert topics_read(config, TOPICS) == (
        "2 of 10 topics are read: shop_a, shop_b; not read (internal to Kafka): __consumer_offsets; "
        "not read (dead letter topic): letters; "
        "not read (no rule of source.topics matches): other, x1, x2, x3, x4, …"
    )


@pytest.mark.slow
def test_failures_stand_in_order_on_stdout(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    document = changed(CANAL_JSON, source__brokers="127.0.0.1:1", target={"path": str(tmp_path / "lake")})
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    result = run("validate", str(file), "--connect")
    assert (result.exit_code, result.stderr) == (1, "")
    lines = result.stdout.splitlines()
    assert lines[0] == f"{file}: all settings are correct. Asking the servers:"
    assert lines[1].startswith("kafka: FAILED, ")
    assert lines[-1] == "FAILED: kafka"


def test_only_an_error_of_a_table_stops_a_table() -> None:
    assert "This table stops here" in error_block(TargetError("no", table="shop.a"))
    assert "Correct this and run the command again" in error_block(SourceError("no", topic="letters"))
