"""``tidesink registry`` on a real broker and a real registry: a config's tables, and an export."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.samples import run, said
from tests.cli.test_topics import DDL, Stack, config_file, stack, write
from tidesink.schema_registry import CompatibilityLevel, open_registry

__all__ = ["stack"]


@pytest.mark.parametrize("level", ["BACKWARD", "NONE"])
def test_the_tables_that_a_config_defines(stack: Stack, tmp_path: Path, level: CompatibilityLevel) -> None:
    write(stack, "flat-avro")
    broken = DDL.replace("`kind` ENUM('a','b')", "`kind` INT")
    tables = [
        {"name": "shop.order_items", "definition": broken},
        {"name": "shop.others"},
    ]
    config = config_file(tmp_path, stack, "flat-avro", tables=tables)
    value = f"{stack.prefix}_shop_order_items-value"
    with closing(open_registry(stack.registry)) as registry:
        registry.set_compatibility_level(level, subject=value)
    found = said("check", "--config", config, code=int(level == "BACKWARD"))
    (verdict,) = [item for item in found["subjects"] if item["subject"] == value]
    assert (verdict["offline"], verdict["live"]) == ((level == "NONE"),) * 2
    assert "the config has no definition of this table" in found["skipped"]["shop.others"]


def test_an_export_of_a_real_registry_decodes_its_topic(stack: Stack, tmp_path: Path) -> None:
    write(stack, "flat-avro")
    exported = run("registry", "export", f"{stack.prefix}*", "--schema-registry", stack.registry)
    assert len(exported.stdout.splitlines()) == 3
    file = tmp_path / "all.jsonl"
    file.write_text(exported.stdout, encoding="utf-8")
    decoded = run(
        "decode", "--protocol", "avro", "--brokers", stack.brokers, "--topic", stack.topic,
        "--schemas", str(file), "-o", "json",
    )  # fmt: skip
    assert decoded.exit_code == 0, decoded.output
    assert json.loads(decoded.stdout.splitlines()[-1])["after"]["note"] == "last"
