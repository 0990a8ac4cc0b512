"""decode, validate, plan and dev workload on a real broker and a real registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from confluent_kafka import Producer

from tests.cli.samples import CANAL, lines, run
from tests.servers import create_topics
from tidesink.codecs import open_codec
from tidesink.codecs.base import CodecOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import ChangeEvent, DdlEvent, Event, Op, Position, TableId
from tidesink.schema_registry import open_registry

TABLE = TableId("shop", "order_items")
DDL = (
    "CREATE TABLE `shop`.`order_items` (`id` BIGINT UNSIGNED PRIMARY KEY,`kind` ENUM('a','b'),"
    "`price` DECIMAL(60,2),`made` DATETIME(3),`spent` TIME)"
)
ADD_COLUMN = "ALTER TABLE `shop`.`order_items` ADD COLUMN `note` VARCHAR(20)"
ZERO = "0000-00-00 00:00:00.000"
OPTIONS = CodecOptions(enable_tidb_extension=True)


class Stack(NamedTuple):
    brokers: str
    registry: str
    prefix: str

    @property
    def topic(self) -> str:
        return f"{self.prefix}.shop_order_items"


@pytest.fixture
def stack(brokers: str, registry_url: str, topic_prefix: str) -> Stack:
    return Stack(brokers, registry_url, topic_prefix)


def events(definitions: TableDefinitions) -> list[Event]:
    def row(number: int, **more: Any) -> Event:
        schema = definitions.get(TABLE)
        values = {
            "id": number,
            "kind": "b",
            "price": None,
            "made": "0000-00-00 00:00:00.000",
            "spent": None,
            **more,
        }
        place = Position("", number % 2, 0)
        return ChangeEvent(Op.INSERT, TABLE, {"id": number}, None, values, 9 << 18, place, schema)

    def ddl(query: str, kind: str) -> Event:
        definitions.apply(query, "shop")
        return DdlEvent(TABLE, query, kind, 8 << 18, Position("", 0, 0))

    first = [ddl(DDL, "CREATE"), *(row(number) for number in range(1, 6))]
    return [*first, ddl(ADD_COLUMN, "ALTER"), row(2**64 - 1, note="last")]


def write(stack: Stack, protocol: str) -> int:
    """Write the events to two partitions; the number of records."""
    create_topics(stack.brokers, {stack.topic: 2})
    registry = open_registry(stack.registry)
    codec = open_codec(protocol, options=OPTIONS, registry=registry)
    producer = Producer({"bootstrap.servers": stack.brokers})
    written = 0
    for number, event in enumerate(events(TableDefinitions())):
        record = codec.encode(event, topic=stack.topic)
        if record is not None:
            stamp = 1_700_000_000_000 + number
            producer.produce(stack.topic, record.value, record.key, event.position.partition, timestamp=stamp)
            written += 1
    assert producer.flush(30) == 0
    registry.close()
    return written


def config_file(tmp_path: Path, stack: Stack, protocol: str, **more: Any) -> str:
    source: dict[str, Any] = {
        "brokers": stack.brokers,
        "protocol": protocol,
        "topics": stack.prefix + ".{schema}_{table}",
    }
    source["enable-tidb-extension"] = True
    if protocol == "flat-avro":
        source["schema-registry"] = stack.registry
    file = tmp_path / f"{protocol}.yaml"
    file.write_text(yaml.safe_dump({"pipeline": "t", "source": source, "target": {"path": "lake"}, **more}))
    return str(file)


@pytest.mark.parametrize("protocol", ["flat-avro", "canal-json"])
def test_a_topic_decodes_validates_and_plans(stack: Stack, tmp_path: Path, protocol: str) -> None:
    """One topic through every command that looks at it; the servers are started once for all."""
    written = write(stack, protocol)
    config = config_file(tmp_path, stack, protocol)

    decoded = run("decode", "--config", config, "--topic", stack.topic, "-o", "json")
    assert decoded.exit_code == 0, decoded.stderr
    rows = [line for line in lines(decoded) if line["type"] == "insert"]
    assert len(lines(decoded)) == written
    assert rows[-1]["after"]["id"] == 2**64 - 1
    assert rows[-1]["after"]["kind"] == "b"
    assert rows[-1]["table"] == {"schema": "shop", "name": "order_items"}
    # From both partitions, in the order of their timestamps.
    assert [row["after"]["id"] for row in rows] == [1, 2, 3, 4, 5, 2**64 - 1]

    limited = run("decode", "-c", config, "--topic", stack.topic, "--max", "2", "-o", "json")
    assert lines(limited) == lines(decoded)[:2]
    by_time = run("decode", "-c", config, "--topic", stack.topic, "--from", "@1700000000005", "-o", "json")
    assert [line["after"]["id"] for line in lines(by_time) if "after" in line] == [5, 2**64 - 1]

    valid = run("validate", config, "--connect", "-o", "json")
    assert valid.exit_code == 0, valid.stdout
    assert stack.topic in valid.stdout

    planned = run("plan", config, "-o", "json")
    assert planned.exit_code == 0, planned.stdout + planned.stderr
    (plan,) = json.loads(planned.stdout)["tables"]
    assert plan["table"] == {"schema": "shop", "name": "order_items"}
    assert plan["keys"] == ["id"]
    types = {column["name"]: column["target_type"] for column in plan["columns"]}
    assert types == {
        "id": "decimal(20,0)",
        "kind": "string",
        "price": "string",
        "made": "timestamp_ntz",
        "spent": "string",
        "note": "string",
    }
    reported = {
        "flat-avro": ("avro", "inferred from the Avro"),
        "canal-json": ("ddl", "from the topic's own DDL"),
    }
    assert plan["types_from"] == reported[protocol][0]
    notes = {column["name"]: column["note"] for column in plan["columns"]}
    assert "more than 38 digits" in notes["price"]
    assert "invalid dates: null" in notes["made"]
    text = run("plan", config).stdout
    assert "shop.order_items" in text
    assert "warning: column price" in text
    assert f"source types: {reported[protocol][1]}" in text

    beyond = run("decode", "-c", config, "--topic", stack.topic, "--from", "500", "-o", "json")
    assert (beyond.exit_code, beyond.stdout) == (0, "")
    # flat-avro has no DDL events.
    assert "--from 500: the topic holds no record from there on" in beyond.stderr
    assert f"(partition 0 at {4 if protocol == 'canal-json' else 2}, partition 1 at 4)" in beyond.stderr


def test_a_table_without_a_key_is_a_problem_in_the_plan(stack: Stack, tmp_path: Path) -> None:
    create_topics(stack.brokers, {f"{stack.prefix}.shop_bare": 1})
    value = {**CANAL, "table": "bare", "pkNames": [], "mysqlType": {"a": "decimal"}, "data": [{"a": "1"}]}
    producer = Producer({"bootstrap.servers": stack.brokers})
    producer.produce(f"{stack.prefix}.shop_bare", json.dumps(value))
    assert producer.flush(30) == 0
    result = run("plan", config_file(tmp_path, stack, "canal-json"), "-o", "json")
    assert result.exit_code == 2
    (plan,) = json.loads(result.stdout)["tables"]
    assert "keys: [...]" in plan["problem"]
    assert "mysqlType" in plan["warnings"][0]
    assert "no precision" in plan["columns"][0]["note"]
    assert plan["types_from"] == "rows"
    named = config_file(tmp_path, stack, "canal-json", tables=[{"name": "shop.bare", "keys": ["a"]}])
    assert run("plan", named).exit_code == 0
    sql = "CREATE TABLE bare (a DECIMAL(9,2) PRIMARY KEY)"
    stated = config_file(tmp_path, stack, "canal-json", tables=[{"name": "shop.bare", "definition": sql}])
    (plan,) = json.loads(run("plan", stated, "-o", "json").stdout)["tables"]
    assert (plan["types_from"], plan["columns"][0]["target_type"]) == ("definition", "decimal(9,2)")


def test_a_record_that_becomes_a_dead_letter_hides_no_table_of_the_plan(stack: Stack, tmp_path: Path) -> None:
    write(stack, "canal-json")
    producer = Producer({"bootstrap.servers": stack.brokers})
    producer.produce(stack.topic, b"{broken", partition=0)
    assert producer.flush(30) == 0
    letters = {"errors.deadletterqueue.topic.name": f"{stack.prefix}-letters"}
    letters |= {"errors.deadletterqueue.topic.replication.factor": "1"}
    kept = {"defaults": {"bad-record": "dead-letter"}, "dead-letters": letters}
    result = run("plan", config_file(tmp_path, stack, "canal-json", **kept), "-o", "json")
    assert result.exit_code == 0, result.stdout
    (plan,) = json.loads(result.stdout)["tables"]
    assert (plan["table"], plan["problem"]) == ({"schema": "shop", "name": "order_items"}, None)
    assert any("cannot be decoded" in warning for warning in plan["warnings"])
    result = run("plan", config_file(tmp_path, stack, "canal-json"), "-o", "json")
    (plan,) = json.loads(result.stdout)["tables"]
    assert (result.exit_code, "cannot be decoded" in plan["problem"]) == (2, True)
    assert plan["columns"]


def test_a_plan_says_what_the_target_cannot_do_and_does_not_ask_it(stack: Stack, tmp_path: Path) -> None:
    write(stack, "canal-json")
    nobody = {"type": "postgres", "url": "postgresql://127.0.0.1:1/shop", "user": "t"}
    config = config_file(tmp_path, stack, "canal-json", target=nobody)
    found = json.loads(run("plan", config, "-o", "json").stdout)
    (plan,) = found["tables"]
    types = {column["name"]: column["target_type"] for column in plan["columns"]}
    assert (found["target"], types["id"], types["price"]) == ("postgres", "numeric(20,0)", "numeric(60,2)")
    (limit,) = [limit for limit in plan["limits"] if limit["kind"] == "nul-in-text"]
    assert limit["columns"] == ["note"]
    text = run("plan", config)
    assert (text.exit_code, text.stdout.count(f"postgres: {limit['text']} (every table)")) == (0, 1)

    long = {**nobody, "table": "{schema}." + "t" * 53 + "{table}"}
    refused = run("plan", config_file(tmp_path, stack, "canal-json", target=long))
    assert refused.exit_code == 2
    assert "PROBLEM: The name" in refused.stdout


@pytest.mark.parametrize("protocol", ["flat-avro", "canal-json"])
def test_a_table_in_two_topics_is_one_problem_for_plan_and_validate(
    stack: Stack, tmp_path: Path, protocol: str
) -> None:
    other = stack._replace(prefix=f"{stack.prefix}2")
    for topics in (stack, other):
        write(topics, protocol)
    file = Path(config_file(tmp_path, stack, protocol))
    document = yaml.safe_load(file.read_text())
    document["source"]["topics"] = [f"{topics.prefix}.{{schema}}_{{table}}" for topics in (stack, other)]
    file.write_text(yaml.safe_dump(document))
    planned = run("plan", str(file), "-o", "json")
    assert planned.exit_code == 2
    first, second = (entry["problem"] for entry in json.loads(planned.stdout)["tables"])
    assert first is None
    assert f"appears in two topics, {stack.topic} and {other.topic}" in second
    valid = run("validate", str(file), "--connect", "-o", "json")
    assert valid.exit_code == 1
    (refused,) = (answer for answer in json.loads(valid.stdout)["connections"] if not answer["ok"])
    assert refused["part"] == "tables"
    assert second in refused["detail"]


def test_a_topic_that_is_not_there(stack: Stack) -> None:
    options = ("--protocol", "canal-json", "--brokers", stack.brokers)
    result = run("decode", *options, "--topic", f"{stack.prefix}none")
    assert result.exit_code == 2
    assert "The broker has no topic" in result.stderr


def test_the_workload_is_written_and_its_final_state_saved(stack: Stack, tmp_path: Path) -> None:
    expected = tmp_path / "expected.json"
    result = run(
        "dev", "workload", "--brokers", stack.brokers, "--schema-registry", stack.registry, "--events", "300",
        "--topics", stack.prefix + ".{schema}_{table}", "--expected", str(expected), "--partitions", "2",
        "--enable-tidb-extension", "-o", "json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["events"] >= 300
    assert json.loads(expected.read_text())["tables"]
    topic = next(iter(report["by_topic"]))
    options = ("--protocol", "avro", "--brokers", stack.brokers, "--schema-registry", stack.registry)
    decoded = run("decode", *options, "--topic", topic, "-o", "json")
    assert decoded.exit_code == 0
    assert len(lines(decoded)) == report["by_topic"][topic]
