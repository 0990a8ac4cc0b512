"""Topics, subjects and Avro names as TiCDC writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.schema_registry import (
    TopicRule,
    sanitize_name,
    sanitize_namespace,
    subject,
)

# From TiCDC's own router (tiflow c7b2588).
ROUTES = [
    ("default-topic", "test.r1", "default-topic"),
    ("pre.{schema}-{table}_x", "test.r1", "pre.test-r1_x"),
    ("p_{schema}", "Rt-Db.tbl.中", "p_Rt-Db"),
    ("{schema}_{table}", "Rt-Db.tbl.中", "Rt-Db_tbl._"),
    ("{table}", "test.r1", "r1"),
    ("{schema}{table}", "test.r1", "testr1"),
]
AVRO_NAMES = [
    ("orders", "orders"),
    ("Orders", "Orders"),
    ("1col", "_1col"),
    ("9", "_9"),
    ("a-b", "a_b"),
    ("a.b", "a_b"),
    ("-a", "_a"),
    ("表 一", "___"),
    ("𝒳", "_"),
    ("٣", "_"),
    ("_x1", "_x1"),
]


def table(text: str) -> TableId:
    schema, _, name = text.partition(".")
    return TableId(schema, name)


@pytest.mark.parametrize(("rule", "source", "topic"), ROUTES)
def test_a_table_goes_to_the_topic_ticdc_picks(rule: str, source: str, topic: str) -> None:
    assert TopicRule.parse(rule).topic_for(table(source)) == topic


def test_a_topic_is_cut_at_249_and_reserved_names_are_replaced() -> None:
    long = TopicRule.parse("p.{schema}_{table}.s").topic_for(TableId("d" * 64, "t" * 300))
    assert long == f"p.{'d' * 64}_{'t' * 182}"
    assert len(long) == 249
    assert TopicRule.parse("{schema}").topic_for(TableId(".", "t")) == "_"
    assert TopicRule.parse("{schema}{table}").topic_for(TableId(".", ".")) == "__"
    assert TopicRule.parse("{schema}{table}").topic_for(TableId(".", "..")) == "..."


@pytest.mark.parametrize(
    "text", ["", "{table}_{schema}", "{schema}{schema}", "a b", "{tabel}", "x{schema", "é"]
)
def test_a_rule_ticdc_would_refuse_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("[prefix]{schema}[middle]{table}[suffix]")):
        TopicRule.parse(text)


@pytest.mark.parametrize("text", [".", "..", "x" * 250])
def test_a_fixed_topic_kafka_refuses_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Kafka does not accept a topic named"):
        TopicRule.parse(text)


def test_the_only_split_of_a_topic_is_its_table() -> None:
    assert TopicRule.parse("cdc.{schema}-{table}.v1").table_of("cdc.shop-order_items.v1") == TableId(
        "shop", "order_items"
    )
    assert TopicRule.parse("{schema}_{table}").table_of("shop_orders") == TableId("shop", "orders")
    assert TopicRule.parse("{schema}{table}").table_of("ab") == TableId("a", "b")


def test_a_topic_with_two_readings_needs_its_table_listed() -> None:
    rule = TopicRule.parse("{schema}_{table}")
    with pytest.raises(
        ConfigError,
        match=re.escape(
            "By the topic rule '{schema}_{table}', topic 'shop_order_items' could belong to any of 2 tables "
            "(shop.order_items, shop_order.items). List the table in `tables:`."
        ),
    ):
        rule.table_of("shop_order_items")
    listed = [TableId("shop", "orders"), TableId("shop_order", "items")]
    assert rule.table_of("shop_order_items", listed) == TableId("shop_order", "items")


def test_a_listed_table_keeps_the_name_that_its_topic_lost() -> None:
    rule = TopicRule.parse("{schema}.{table}")
    assert rule.table_of("shop.a_b") == TableId("shop", "a_b")
    assert rule.table_of("shop.a_b", [TableId("shop", "a$b")]) == TableId("shop", "a$b")


def test_two_listed_tables_on_one_topic_are_refused() -> None:
    tables = [TableId("shop", "a$b"), TableId("shop", "a#b")]
    with pytest.raises(ConfigError, match=r"shop\.a\$b and shop\.a#b the same topic 'shop_a_b'"):
        TopicRule.parse("{schema}_{table}").table_of("shop_a_b", tables)
    with pytest.raises(ConfigError, match=r"The fixed topic 'one' can only have one table"):
        TopicRule.parse("one").table_of("one", tables)
    assert TopicRule.parse("one").table_of("one", tables[:1] * 2) == tables[0]


@pytest.mark.parametrize(
    ("rule", "topic", "reason"),
    [
        ("{schema}.{table}", "other", "does not match the topic rule"),
        ("{schema}_{table}", "_orders", "does not match the topic rule"),
        ("one", "two", "does not match the topic rule"),
        ("one", "one", "does not determine the table"),
        ("p_{schema}", "p_shop", "does not determine the table"),
        ("{table}", "orders", "does not determine the table"),
        ("{schema}.{table}", "shop." + "t" * 244, "was cut at 249 characters"),
    ],
)
def test_a_topic_that_names_no_table_says_why(rule: str, topic: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"{reason}.*\. List the table in `tables:`"):
        TopicRule.parse(rule).table_of(topic)


def test_a_cut_topic_is_found_by_its_listed_table() -> None:
    rule = TopicRule.parse("{schema}.{table}.tail")
    long = TableId("shop", "t" * 300)
    assert rule.matches(rule.topic_for(long))
    assert rule.table_of(rule.topic_for(long), [long]) == long


@given(
    st.sampled_from(["{schema}_{table}", "{schema}{table}", "a.{schema}.{table}", "{schema}-x-{table}_s"]),
    st.text("ab_.-", min_size=1, max_size=8),
    st.text("ab_.-", min_size=1, max_size=8),
)
def test_the_true_table_is_always_among_the_candidates(text: str, schema: str, name: str) -> None:
    rule = TopicRule.parse(text)
    topic = rule.topic_for(TableId(schema, name))
    if topic in {"_", "__"}:
        return  # a reserved name that was replaced: nothing leads back
    assert rule.matches(topic)
    candidates = rule.candidates(topic)
    assert TableId(schema, name) in candidates
    assert {rule.topic_for(found) for found in candidates} == {topic}


@pytest.mark.parametrize(("name", "sanitized"), AVRO_NAMES)
def test_avro_names_lose_what_avro_forbids(name: str, sanitized: str) -> None:
    assert sanitize_name(name) == sanitized


def test_each_part_of_a_namespace_is_sanitised() -> None:
    assert sanitize_namespace("default", "库-1") == "default.__1"
    assert sanitize_namespace("my.feed", "1db") == "my_feed._1db"


def test_subjects_stand_on_the_sanitised_topic() -> None:
    assert subject("a.b-c", "key") == "a_b-c-key"
    assert subject("a.b-c", "value") == "a_b-c-value"


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        pytest.skip(f"{path.parent.name} vectors are not here")
    yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def test_every_route_of_the_vectors(vectors: Path) -> None:
    compared = 0
    for line in _lines(vectors / "ticdc" / "route.jsonl"):
        rules = re.findall(r"topic='([^']+)'", line["changefeed_toml"])
        topics = {TopicRule.parse(rule).topic_for(table(line["table"])) for rule in rules}
        assert line["topic"] in topics | {line["default_topic"]}, line["case"]
        compared += len(rules) == 1
    assert compared


@pytest.mark.parametrize(("folder", "namespace"), [("ticdc", "namespace"), ("ticdc-new", "keyspace")])
def test_every_record_and_subject_of_the_vectors(vectors: Path, folder: str, namespace: str) -> None:
    schemas = {line["id"]: line["schema"] for line in _lines(vectors / folder / "schemas.jsonl")}
    events = {line["event"]: line for line in _lines(vectors / folder / "events.jsonl")}
    compared = 0
    for row in _lines(vectors / folder / "avro.rows.jsonl"):
        event = events[row["event"]]
        database, _, name = (event.get("target_table") or event["table"]).partition(".")
        names = {sanitize_name(c["name"]) for c in event.get("columns") or event["pre_columns"]}
        for part in ("key", "value"):
            if not row.get(f"{part}_schema_id"):
                continue
            schema = schemas[row[f"{part}_schema_id"]]
            assert row[f"{part}_subject"] == subject(row["topic"], part), row["case"]
            assert schema["name"] == sanitize_name(name), row["case"]
            assert schema["namespace"] == sanitize_namespace(row["config"][namespace], database), row["case"]
            fields = {field["name"] for field in schema["fields"]}
            assert {f for f in fields if not f.startswith(("_tidb_", "_ticdc_"))} <= names, row["case"]
            compared += 1
    assert compared
