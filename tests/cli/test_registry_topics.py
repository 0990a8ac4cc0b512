"""``tidesink registry`` on a real broker and a real registry: topics, and a config's tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.samples import run, said
from tests.cli.test_topics import DDL, Stack, config_file, stack, write

__all__ = ["stack"]


def test_a_flat_avro_topic_is_judged_with_the_schemas_it_names(stack: Stack, tmp_path: Path) -> None:
    write(stack, "flat-avro")
    config = config_file(tmp_path, stack, "flat-avro")
    value = f"{stack.prefix}_shop_order_items-value"
    found = said("check", "--config", config, "--topic", stack.topic)
    assert {item["subject"]: item["status"] for item in found["subjects"]} == {
        value.replace("-value", "-key"): "registered", value: "registered",
    }  # fmt: skip
    compared = said("diff", value, "--config", config)
    assert {row["field"] for row in compared["fields"] if row["change"] == "added"} == {"note"}
    elsewhere = said(
        "check", "--config", config, "--topic", stack.topic, "--schema-registry", "memory://empty"
    )
    assert {item["status"] for item in elsewhere["subjects"]} == {"new subject"}, "another registry"
    words = run(
        "registry", "check", "-c", config, "--topic", stack.topic, "--avro-decimal-handling-mode", "string"
    )
    assert words.exit_code == 2
    assert "name their schemas" in words.stderr


def test_a_canal_json_topic_is_judged_as_flat_avro_would_be(stack: Stack, tmp_path: Path) -> None:
    """What a changefeed that is switched to avro would register: columns come from the topic's own DDL."""
    write(stack, "canal-json")
    config = config_file(tmp_path, stack, "canal-json")
    at = ("--schema-registry", stack.registry)
    found = said("check", "--config", config, "--topic", stack.topic, *at)
    fields = {row["field"]: row["new"] for row in found["subjects"][1]["fields"]}
    assert found["subjects"][1]["subject"] == f"{stack.prefix}_shop_order_items-value"
    assert fields["kind"] == "null | string (ENUM(a,b)) default null"
    assert fields["note"] == "null | string (TEXT) default null"
    assert "_tidb_op" in fields, "the config has the extension on"


@pytest.mark.parametrize("level", ["BACKWARD", "NONE"])
def test_the_tables_that_a_config_defines(stack: Stack, tmp_path: Path, level: str) -> None:
    write(stack, "flat-avro")
    broken = DDL.replace("`kind` ENUM('a','b')", "`kind` INT")
    tables = [
        {"name": "shop.order_items", "definition": broken},
        {"name": "shop.others"},
    ]
    config = config_file(tmp_path, stack, "flat-avro", tables=tables)
    value = f"{stack.prefix}_shop_order_items-value"
    said("level", value, "--set", level, "--config", config)
    found = said("check", "--config", config, code=int(level == "BACKWARD"))
    (verdict,) = [item for item in found["subjects"] if item["subject"] == value]
    assert (verdict["offline"], verdict["live"]) == ((level == "NONE"),) * 2
    assert "the config has no definition of it" in found["skipped"]["shop.others"]


def test_a_whole_export_of_a_real_registry_comes_back(stack: Stack, tmp_path: Path) -> None:
    write(stack, "flat-avro")
    file = tmp_path / "all.jsonl"
    at = ("--schema-registry", stack.registry)
    count = said("export", str(file), "--subject", f"{stack.prefix}*", *at)
    assert count == {"file": str(file), "subjects": 2, "schemas": 3}
    done = said("import", str(file), *at)
    assert (done["kept"], done["registered"], done["ids_differ"]) == (3, 0, 0)
    decoded = run(
        "decode", "--protocol", "avro", "--brokers", stack.brokers, "--topic", stack.topic,
        "--schemas", str(file), "-o", "json",
    )  # fmt: skip
    assert decoded.exit_code == 0, decoded.output
    assert json.loads(decoded.stdout.splitlines()[-1])["after"]["note"] == "last"
