"""What ``validate --connect`` prints of the servers, without any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.samples import run
from tests.scripted_registry import Reply, Serve, scripted_registries
from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right
from tidesink.cli.plan import _tables, distinct_targets, topics_read
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


serve = pytest.fixture(scripted_registries)
_TOPICS = ("shop_order_items", "shop_customers", "shop_order_lines")


def _answer(schema: Any, kind: str = "AVRO") -> Reply:
    body = {"id": 1, "version": 1, "subject": "any", "schema": json.dumps(schema), "schemaType": kind}
    return Reply(body=body)


def test_a_schema_that_is_not_avro_is_a_problem_of_its_topic(serve: Serve) -> None:
    """No other check reads it, and the other topics are checked all the same."""
    record = {"type": "record", "name": "lines", "namespace": "ticdc.shop_order", "fields": []}
    latest = "GET /subjects/{}-value/versions/latest"
    server = serve(
        by_path={
            latest.format("shop_order_items"): _answer({}, "PROTOBUF"),
            latest.format("shop_order_lines"): _answer(record),
        }
    )
    routes = [{"match": r"shop\.customers", "to": "shop_order.lines"}]
    config = right(changed(FLAT_AVRO, source__schema_registry=server.url, routes=routes))
    unreadable, refused = _tables(config, _TOPICS, frozenset())
    assert (unreadable.part, unreadable.ok) == ("tables", False)
    assert unreadable.detail.startswith("UnusableSchemaError: The schema has type PROTOBUF")
    assert "shop_order_items" in unreadable.detail
    assert "goes to shop_order.lines already" in refused.detail


@pytest.mark.parametrize("failed", [frozenset[str](), frozenset({"registry"}), frozenset({"kafka"})])
def test_tables_that_cannot_be_checked_are_said_once(serve: Serve, failed: frozenset[str]) -> None:
    """By the check of the server that does not answer, or else by this one."""
    server = serve(Reply(401, {"message": "who are you"}))
    config = right(changed(FLAT_AVRO, source__schema_registry=server.url))
    answers = [*_tables(config, _TOPICS, failed)]
    if failed:
        assert answers == []
    else:
        assert [(answer.part, answer.ok) for answer in answers] == [("tables", False)]
        assert answers[0].detail.startswith("RegistryError: ")


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
