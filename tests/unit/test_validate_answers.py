"""What ``validate --connect`` prints of the servers, without any."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.samples import run
from tests.unit.config_samples import CANAL_JSON, FLAT_AVRO, changed, right
from tidesink.cli.plan import distinct_targets, topics_read
from tidesink.cli.table_plans import TablePlan
from tidesink.cli.terminal import error_block
from tidesink.cli.topic_tables import doubtful_topics, refusals
from tidesink.errors import ConfigError, SourceError, TargetError
from tidesink.events import TableId

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


SALES, ROUTED = TableId("sales", "orders"), TableId("legacy", "orders")


def test_a_table_in_two_topics_is_the_same_problem_for_validate_and_plan_and_a_worker() -> None:
    config = right(changed(CANAL_JSON, source__topics=["app", "again"]))
    said = "sales.orders appears in two topics, again and app, and the order of their records is unknown. "
    (refused,) = refusals(config, ["again", "app"], lambda _: [SALES])
    assert refused.message == said + "Limit source.topics to one of the two topics."
    plans = distinct_targets(config, [TablePlan(SALES, "again"), TablePlan(SALES, "app")])
    assert [plan.problem for plan in plans] == [None, refused.message]


def test_two_tables_of_one_target_are_the_same_problem_for_validate_and_plan() -> None:
    config = right(changed(CANAL_JSON, routes=[{"match": r"legacy\.orders", "to": "sales.orders"}]))
    (refused,) = refusals(config, ["app"], lambda _: [SALES, ROUTED])
    assert "sales.orders goes to sales.orders already" in refused.message
    plans = distinct_targets(config, [TablePlan(SALES, "app"), TablePlan(ROUTED, "app")])
    assert [plan.problem for plan in plans] == [None, refused.message]


def test_a_topic_whose_table_the_config_does_not_show_hides_no_other() -> None:
    def tables_of(topic: str) -> list[TableId]:
        if topic == "app":
            raise ConfigError("Several tables fit the topic's name.")
        return [SALES]

    config = right(changed(CANAL_JSON, source__topics=["again", "app", "more"]))
    found = [error.message for error in refusals(config, ["again", "app", "more"], tables_of)]
    assert found[0] == "Several tables fit the topic's name."
    assert "appears in two topics, again and more" in found[1]


def test_topics_that_may_share_a_table_are_looked_at_first() -> None:
    config = right(changed(FLAT_AVRO, source__topics=["a.{schema}.{table}", "b.{schema}.{table}"]))
    topics = ["a.shop.t", "a.shop.u", "a.shop.v", "b.shop.v"]
    assert doubtful_topics(config, topics, 3) == ["a.shop.t", "a.shop.v", "b.shop.v"]


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
