"""``tidesink registry``: what a team does with it, against a server that answers as Confluent's does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import run, said
from tests.confluent_registry import Server, Start, confluent_servers
from tests.scripted_registry import Reply, Serve, scripted_registries

start = pytest.fixture(confluent_servers, name="start")
serve = pytest.fixture(scripted_registries, name="serve")

ORDERS = "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, qty INT NOT NULL, price DECIMAL(10,2))"
WIDER = ORDERS.replace("price", "note VARCHAR(9), price")
BROKEN = ORDERS.replace("qty INT", "qty VARCHAR(9)").replace("10,2", "10,4")
VALUE = "shop_orders-value"


@pytest.fixture
def server(start: Start) -> Server:
    return start()


@pytest.fixture
def ddl(tmp_path: Path) -> Any:
    def write(sql: str, name: str = "t.sql") -> str:
        (tmp_path / name).write_text(sql, encoding="utf-8")
        return str(tmp_path / name)

    return write


def reported(*args: str, code: int = 0, stdin: str | None = None) -> str:
    """What it prints for people, on one line."""
    result = run("registry", *args, stdin=stdin)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def at(server: Server) -> tuple[str, str]:
    return "--schema-registry", server.url


def registered(server: Server, file: str) -> None:
    said("register", "--table-definition", file, "--yes", *at(server))


def test_an_empty_registry_is_said_to_be(server: Server) -> None:
    shown = reported("list", *at(server))
    assert shown == "the registry holds no subjects; its compatibility level is NONE"
    assert said("list", *at(server))["subjects"] == []


def test_register_list_show(server: Server, ddl: Any) -> None:
    done = said("register", "--table-definition", ddl(ORDERS), "--yes", *at(server))
    assert done["registered"] == [
        {"subject": "shop_orders-key", "id": 1, "version": 1, "new": True},
        {"subject": VALUE, "id": 2, "version": 1, "new": True},
    ]
    again = said("register", "--table-definition", ddl(ORDERS), "--yes", *at(server))
    assert [item["new"] for item in again["registered"]] == [False, False]
    listed = said("list", *at(server))
    assert listed["subjects"][1] == {
        "subject": VALUE, "level": "NONE", "versions": [{"version": 1, "id": 2}], "problem": None
    }  # fmt: skip
    assert "shop_orders-value 1 2 NONE" in reported("list", *at(server))
    assert [e["subject"] for e in said("list", "*-key", *at(server))["subjects"]] == ["shop_orders-key"]
    shown = said("show", VALUE, *at(server))
    assert (shown["version"], shown["id"], shown["level"]) == (1, 2, "NONE")
    assert shown["schema"]["namespace"] == "default.shop"
    assert shown["fields"][2] == {
        "field": "price", "type": "null | decimal(10,2)", "sql": "DECIMAL", "default": {"value": None}
    }  # fmt: skip
    assert shown["fields"][1]["default"] is None
    by_id = said("show", "id:2", *at(server))
    assert by_id["places"] == [{"subject": VALUE, "version": 1}]
    assert by_id["schema"] == shown["schema"]
    assert "held by shop_orders-value version 1" in reported("show", "id:2", *at(server))
    assert by_id["schema_text"] == server.registry.memory.latest(VALUE).schema_text


def test_what_is_not_there_is_said(server: Server) -> None:
    assert "does not have this subject" in reported("show", "none-value", *at(server), code=1)
    assert "No subject matches 'x*'" in reported("list", "x*", *at(server), code=1)
    assert "give a number, or latest" in reported("show", "none-value", "first", *at(server), code=2)
    assert "Give a schema id as a number" in reported("show", "id:x", *at(server), code=2)
    assert "does not have this schema id" in reported("show", "id:9", *at(server), code=1)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["list"], "The command needs a registry. Give --schema-registry URL"),
        (["list", "--schema-registry", "http://h", "--registry-file", "f"], "exclude each other"),
        (["check", "--schema-registry", "memory://nowhere"], "The command needs tables"),
        (
            ["check", "--level", "SOME", "--schema-registry", "http://h"],
            "'SOME' is not a compatibility level",
        ),
        (
            ["register", "-o", "json", "--schema-registry", "http://h"],
            "With -o json the command cannot ask for confirmation. Give --yes",
        ),
    ],
)
def test_wrong_use(args: list[str], words: str) -> None:
    assert words in reported(*args, code=2)


def test_check_says_per_subject_and_field_what_is_refused(server: Server, ddl: Any) -> None:
    registered(server, ddl(ORDERS))
    server.registry.memory.set_compatibility_level("FULL")
    assert said("check", "--table-definition", ddl(WIDER), *at(server))["ok"] is True
    found = said("check", "--table-definition", ddl(BROKEN), *at(server), code=1)
    key, value = found["subjects"]
    assert (key["status"], key["held"]) == ("registered", {"id": 1, "version": 1})
    assert (value["status"], value["offline"], value["live"]) == ("incompatible", False, False)
    assert value["levels_that_take_it"] == ["NONE"]
    rows = {row["field"]: row for row in value["fields"]}
    assert rows["qty"]["problem"] == "changed from int to string"
    assert (rows["qty"]["old"], rows["qty"]["new"]) == ("int (INT)", "string (TEXT)")
    assert rows["id"] == {
        "field": "id", "change": "same", "old": "long (BIGINT)", "new": "long (BIGINT)", "problem": None,
        "note": None,
    }  # fmt: skip
    assert "wrong numbers" in rows["price"]["note"]
    text = reported("check", "--table-definition", ddl(BROKEN), *at(server), code=1)
    assert f"{VALUE}: REFUSED under FULL, against version 1" in text
    assert "offline rules: refuses, registry: refuses; levels that accept it: NONE" in text
    assert "1 other field stays the same" in text


def test_check_asks_the_registry_only_where_it_may(server: Server, ddl: Any) -> None:
    registered(server, ddl(ORDERS))
    server.registry.log.clear()
    found = said("check", "--table-definition", ddl(BROKEN), "--no-live", *at(server))
    assert [item["live"] for item in found["subjects"]] == [None, None]
    assert not any("/compatibility/" in line for line in server.registry.log)
    found = said("check", "--table-definition", ddl(BROKEN), "--level", "backward", *at(server), code=1)
    assert (found["subjects"][1]["level"], found["subjects"][1]["live"]) == ("BACKWARD", None)


def test_check_between_two_definitions_needs_no_registry(ddl: Any) -> None:
    old, new = ddl(ORDERS, "old.sql"), ddl(WIDER, "new.sql")
    assert said("check", "--table-definition", new, "--previous", old)["subjects"][1]["level"] == "BACKWARD"
    dropped = ddl(ORDERS.replace("qty INT NOT NULL, ", ""), "dropped.sql")
    forward = ("--previous", old, "--level", "FORWARD")
    found = said("check", "--table-definition", dropped, *forward, code=1)
    problems = [row["problem"] for row in found["subjects"][1]["fields"] if row["problem"]]
    assert problems == ["was removed and had no default"]
    assert said("check", "--table-definition", dropped, "--previous", old)["ok"] is True


def test_an_alter_is_judged_over_the_table_of_before(ddl: Any, tmp_path: Path) -> None:
    """A column that is added NOT NULL has no default, however the new table is given."""
    old = ddl(ORDERS, "old.sql")
    alter = ddl("ALTER TABLE shop.orders ADD COLUMN extra INT NOT NULL", "alter.sql")
    fields = said("check", "--table-definition", alter, "--previous", old, code=1)["subjects"][1]["fields"]
    assert [row["new"] for row in fields if row["change"] == "added"] == ["int (INT)"]
    whole = ddl(ORDERS[:-1] + ", extra INT NOT NULL)", "whole.sql")
    assert said("check", "--table-definition", whole, "--previous", old, code=1)["ok"] is False
    config = tmp_path / "t.yaml"
    source = "{brokers: 'h:1', protocol: avro, topics: 'p_{schema}_{table}', schema-registry: 'memory://m'}"
    config.write_text(
        f"pipeline: p\nsource: {source}\ntarget: {{path: lake}}\n"
        f"tables: [{{name: shop.orders, definition: '{ORDERS}'}}]\n"
    )
    found = said("check", "--table-definition", alter, "--config", str(config))
    assert [item["subject"] for item in found["subjects"]] == ["p_shop_orders-key", "p_shop_orders-value"]
    words = reported(
        "check", "--table-definition", alter, "--previous", ddl("CREATE TABLE b.c (a INT)"), code=2
    )
    assert "neither creates a table nor alters a known one" in words


def test_producer_options_are_judged_as_well(ddl: Any) -> None:
    file = ddl(ORDERS)
    modes = ("--avro-decimal-handling-mode", "string", "--enable-tidb-extension")
    found = said("check", "--table-definition", file, *modes, "--previous", file)
    assert found["subjects"][1]["status"] == "registered", "both were built with the same options"


def test_a_topic_rule_and_a_database_make_the_subject(ddl: Any) -> None:
    file = ddl("CREATE TABLE t (id INT PRIMARY KEY)")
    words = reported("check", "--table-definition", file, "--previous", file, code=2)
    assert "does not name the database of t" in words
    rule = ("--database", "shop", "--topic-rule", "cdc.{schema}.{table}")
    found = said("check", "--table-definition", file, "--previous", file, *rule)
    assert [item["subject"] for item in found["subjects"]] == ["cdc_shop_t-key", "cdc_shop_t-value"]


def test_tables_that_ticdc_stops_at_or_leaves_out(ddl: Any) -> None:
    keyless, same = (
        "CREATE TABLE shop.n (a INT);",
        "CREATE TABLE shop.s (id INT PRIMARY KEY, `a-b` INT, `a+b` INT)",
    )
    file = ddl(ORDERS + ";" + keyless + same)
    before = ddl(ORDERS, "before.sql")
    found = said("check", "--table-definition", file, "--previous", before, code=1)
    assert found["ok"] is False
    assert "neither a primary key" in found["skipped"]["shop.n"]
    assert "both map to the Avro field 'a_b'" in found["failed"]["shop.s"]
    text = reported("check", "--table-definition", file, "--previous", before, code=1)
    assert "shop.s: TiCDC's encoder would stop" in text
    assert "warning: shop.n is not checked" in text


@pytest.mark.parametrize(
    ("column", "warned"),
    [
        ("col VARCHAR(255) DEFAULT 'null'", True),
        ("col ENUM('a', 'null') DEFAULT 'null'", True),
        ("`some-col` CHAR(4) DEFAULT 'null'", True),
        ("col VARCHAR(255) NOT NULL DEFAULT 'null'", False),
        ("col VARCHAR(255) DEFAULT 'NULL'", False),
        ("col VARCHAR(255) DEFAULT NULL", False),
        ("col INT DEFAULT 0", False),
    ],
)
def test_a_default_that_ticdcs_avro_library_takes_for_null_is_warned_of(
    ddl: Any, column: str, warned: bool
) -> None:
    """The registry takes the schema; a changefeed without the fix stops at the table."""
    file = ddl(f"CREATE TABLE shop.t31 (id INT PRIMARY KEY, {column})")
    found = said("check", "--table-definition", file, "--previous", file)
    assert found["ok"] is True
    assert [*found["warnings"]] == (["shop.t31"] if warned else [])
    text = reported("check", "--table-definition", file, "--previous", file)
    assert ("the text 'null', which TiCDC's Avro library reads as NULL" in text) is warned


def test_register_refuses_what_the_registry_would(server: Server, ddl: Any) -> None:
    registered(server, ddl(ORDERS))
    server.registry.memory.set_compatibility_level("BACKWARD")
    done = said("register", "--table-definition", ddl(BROKEN), "--yes", *at(server), code=1)
    assert done["registered"] == []
    assert done["check"]["ok"] is False
    assert server.registry.memory.versions(VALUE) == [1]


def test_register_asks_first(server: Server, ddl: Any) -> None:
    asked = ("register", "--table-definition", ddl(ORDERS), *at(server))
    assert "nothing was registered" in reported(*asked, code=1, stdin="n\n")
    assert server.registry.memory.subjects() == []
    assert "register 2 schemas?" in reported(*asked, stdin="y\n")
    assert server.registry.memory.subjects() == ["shop_orders-key", VALUE]
    assert "register 1 schema?" in reported(
        "register", "--table-definition", ddl(WIDER), *at(server), stdin="y\n"
    )


def test_register_a_schema_file(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "s.avsc"
    file.write_text('{"type": "record", "name": "t", "fields": []}\n', encoding="utf-8")
    done = said("register", "any-value", "--schema", str(file), "--yes", *at(server))
    assert done["registered"][0]["id"] == 1
    assert "--schema needs a subject" in reported("register", "--schema", str(file), *at(server), code=2)
    file.write_text("no schema", encoding="utf-8")
    assert "not an Avro schema" in reported("register", "b-value", "--schema", str(file), *at(server), code=1)


def test_a_registry_that_judges_otherwise_is_followed_and_told(serve: Serve, ddl: Any) -> None:
    """A registry may run rules of its own; its word is the one that counts."""
    schema = {"subject": VALUE, "version": 1, "id": 7, "schema": '"int"'}
    level = {"compatibilityLevel": "NONE"}
    answers = {
        f"GET /subjects/{VALUE}/versions": Reply(body=[1]),
        f"GET /subjects/{VALUE}/versions/1": Reply(body=schema),
        "GET /subjects/shop_orders-key/versions": Reply(404, {"error_code": 40401, "message": "none"}),
        f"GET /config/{VALUE}?defaultToGlobal=true": Reply(body=level),
        "GET /config/shop_orders-key?defaultToGlobal=true": Reply(body=level),
        f"POST /subjects/{VALUE}": Reply(404, {"error_code": 40403, "message": "none"}),
        f"POST /compatibility/subjects/{VALUE}/versions/latest?verbose=true": Reply(
            body={"is_compatible": False, "messages": ["rule PII: no field may be called qty"]}
        ),
    }
    url = serve(by_path=answers).url
    found = said("check", "--table-definition", ddl(ORDERS), "--schema-registry", url, code=1)
    value = found["subjects"][1]
    assert (value["offline"], value["live"], value["taken"]) == (True, False, False)
    assert value["registry_says"] == ["rule PII: no field may be called qty"]
    text = reported("check", "--table-definition", ddl(ORDERS), "--schema-registry", url, code=1)
    assert "the registry and Avro's rules disagree" in text
    assert "the registry's message: rule PII" in text


def test_subjects_that_are_none_of_avro_are_listed_with_the_reason(serve: Serve) -> None:
    answers = {
        "GET /subjects": Reply(body=["p-value"]),
        "GET /config": Reply(body={"compatibilityLevel": "FULL"}),
        "GET /config/p-value?defaultToGlobal=true": Reply(body={"compatibilityLevel": "FULL"}),
        "GET /subjects/p-value/versions": Reply(body=[1]),
        "GET /subjects/p-value/versions/1": Reply(
            body={"subject": "p-value", "version": 1, "id": 1, "schema": "x", "schemaType": "PROTOBUF"}
        ),
    }
    url = serve(by_path=answers).url
    result = run("registry", "list", "--schema-registry", url)
    assert result.exit_code == 0
    assert "warning: p-value: The schema has type PROTOBUF" in result.stderr
    exported = run("registry", "export", "--schema-registry", url)
    assert (exported.exit_code, exported.stdout) == (1, "")
    assert "warning: p-value" in exported.stderr
