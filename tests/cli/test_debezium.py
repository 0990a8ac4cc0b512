"""``tidesink decode`` of Debezium's records."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import run
from tests.vectors import SUBSET

FOLDER = SUBSET / "debezium"


def _decoded(*args: str) -> list[dict[str, Any]]:
    result = run("decode", *args, "-o", "json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def _schemas(folder: Path) -> str:
    answers = json.loads((FOLDER / "avro_schemas.json").read_text(encoding="utf-8"))
    lines = [json.dumps({"id": int(one), "schema": answer["schema"]}) for one, answer in answers.items()]
    path = folder / "schemas.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def test_json_with_the_connectors_modes() -> None:
    lines = _decoded(
        *("--protocol", "debezium-json", "--input", str(FOLDER / "mdb_precise.jsonl")),
        *("--decimal-handling-mode", "precise", "--binary-handling-mode", "base64-url-safe"),
        *("--bigint-unsigned-handling-mode", "precise"),
    )
    orders = [line for line in lines if line.get("table", {}).get("name") == "orders"]
    snapshot = next(line for line in orders if line["type"] == "upsert")
    assert snapshot["after"]["amount"] == "1.0000"
    assert snapshot["extension"]["source"]["file"] == "maria-bin.000001"
    assert {line["type"] for line in lines} == {"ddl", "message", "upsert", "insert", "update", "delete"}
    unsigned = [line["key"]["id"] for line in lines if line.get("key") and line["table"]["name"] == "t_num"]
    assert 2**63 in unsigned


def test_avro_with_its_schemas(tmp_path: Path) -> None:
    lines = _decoded(
        *("--protocol", "debezium-avro", "--input", str(FOLDER / "mdb_avro.jsonl")),
        *("--schemas", _schemas(tmp_path)),
    )
    assert len(lines) == 244
    row = next(line for line in lines if line["type"] == "insert" and line["table"]["name"] == "orders")
    assert row["schema_id"]["key"] is not None
    assert row["before"] is None
    assert row["commit_ts"] is None
    assert [line["type"] for line in lines].count("truncate") == 2


def test_avro_without_schemas_says_what_is_missing() -> None:
    result = run("decode", "--protocol", "debezium-avro", "--input", str(FOLDER / "mdb_avro.jsonl"))
    assert result.exit_code == 2
    assert "debezium-avro needs its schemas" in result.stderr


def test_a_mode_debezium_does_not_have() -> None:
    options = ("--decimal-handling-mode", "exact", "--input", "-")
    result = run("decode", "--protocol", "debezium", *options, stdin="")
    assert result.exit_code == 2
    assert "precise or string or double" in result.stderr


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b'{"id":0,"isDdl":false,"mysqlType":{},"data":[],"type":"INSERT"}', "canal-json"),
        (b"\0\0\0\0\x01\xff", "debezium-avro"),
    ],
)
def test_another_protocols_records_are_error_lines(value: bytes, words: str) -> None:
    record = {"topic": "t", "partition": 0, "offset": 0, "key_b64": None}
    line = json.dumps({**record, "value_b64": base64.b64encode(value).decode()})
    result = run("decode", "--protocol", "debezium", "--input", "-", "-o", "json", stdin=line)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["type"] == "error"
    assert words in found["reason"]


def test_people_see_messages_too() -> None:
    result = run("decode", "--protocol", "debezium-json", "--input", str(FOLDER / "mdb_precise.jsonl"))
    assert result.exit_code == 0
    assert "  transaction\n" in result.stdout
    assert "status = BEGIN" in result.stdout


def test_numbers_beyond_64_bits_are_text() -> None:
    payload = {
        "before": None,
        "after": {"b": 18446744073709552000},
        "op": "c",
        "source": {"connector": "TiCDC", "db": "s", "table": "t", "pos": 2**70},
    }
    record = {"topic": "t", "partition": 0, "offset": 0, "key_b64": None}
    value = base64.b64encode(json.dumps({"payload": payload}).encode()).decode()
    line = json.dumps({**record, "value_b64": value})
    result = run("decode", "--protocol", "debezium", "--input", "-", "-o", "json", stdin=line)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["after"] == {"b": "18446744073709552000"}
    assert found["extension"]["source"]["pos"] == str(2**70)


def test_floats_that_json_has_no_number_for_are_text() -> None:
    source = {"connector": "postgresql", "schema": "s", "table": "t", "lsn": 1}
    schema = {
        "type": "struct",
        "optional": True,
        "fields": [{"type": "double", "optional": True, "field": "d"}],
    }
    images = [{**schema, "field": "after"}, {**schema, "field": "before"}]
    envelope = {"type": "struct", "optional": False, "fields": images}
    payload = {"before": None, "after": {"d": "-Infinity"}, "op": "c", "source": source}
    value = json.dumps({"schema": envelope, "payload": payload}).encode()
    record = {"topic": "t", "partition": 0, "offset": 0, "key_b64": None}
    line = json.dumps({**record, "value_b64": base64.b64encode(value).decode()})
    result = run("decode", "--protocol", "debezium", "--input", "-", "-o", "json", stdin=line)
    assert json.loads(result.stdout)["after"] == {"d": "-Infinity"}


TICDC = {
    "connector": "TiCDC",
    "db": "shop",
    "table": "t",
    "commit_ts": 470609150731354115,
    "snapshot": "false",
}


def test_lines_are_written_as_ticdc_writes_them(tmp_path: Path) -> None:
    definition = tmp_path / "t.sql"
    definition.write_text("CREATE TABLE shop.t (id INT PRIMARY KEY, u BIGINT UNSIGNED, d DATE)")
    payload = {"source": TICDC, "op": "c", "before": None, "after": {"id": 1, "u": -1, "d": 19782}}
    record = {"topic": "t", "partition": 0, "offset": 0, "timestamp": None, "headers": []}
    key, value = (base64.b64encode(json.dumps({"payload": one}).encode()) for one in ({"id": 1}, payload))
    line = json.dumps({**record, "key_b64": key.decode(), "value_b64": value.decode()})
    options = ("--protocol", "debezium", "--table-definition", str(definition))
    decoded = run("decode", *options, "--input", "-", "-o", "json", stdin=line)
    assert json.loads(decoded.stdout)["after"] == {"id": 1, "u": 2**64 - 1, "d": "2024-02-29"}
    encoded = run("encode", *options, "--debezium-disable-schema", stdin=decoded.stdout)
    assert encoded.exit_code == 0, encoded.output
    written = json.loads(base64.b64decode(json.loads(encoded.stdout)["value_b64"]))["payload"]
    assert written["after"] == payload["after"]
    assert written["source"]["commit_ts"] == TICDC["commit_ts"]


@pytest.mark.parametrize(
    ("protocol", "line", "words"),
    [
        ("debezium-avro", {}, "Give --register"),
        ("debezium-json", {"type": "message", "kind": "transaction"}, "cannot be written"),
        ("debezium-json", {"type": "insert", "table": {"schema": "s", "name": "t"}}, "column types"),
    ],
)
def test_lines_that_cannot_be_written(protocol: str, line: dict[str, Any], words: str) -> None:
    position = {"topic": "t", "partition": 0, "offset": 0, "index": 0}
    options = ("--protocol", protocol, "--schemas", "/dev/null")
    result = run("encode", *options, stdin=json.dumps({**line, "position": position}))
    assert result.exit_code in (1, 2)
    assert words in result.stderr


def _record(offset: int, key: object, value: object) -> str:
    key_b64, value_b64 = (base64.b64encode(json.dumps({"payload": one}).encode()) for one in (key, value))
    record = {"topic": "t", "partition": 0, "offset": offset, "timestamp": None, "headers": []}
    return json.dumps({**record, "key_b64": key_b64.decode(), "value_b64": value_b64.decode()}) + "\n"


def test_a_connectors_ddl_does_not_stop_the_rows(tmp_path: Path) -> None:
    definition = tmp_path / "t.sql"
    definition.write_text("CREATE TABLE shop.t (id INT PRIMARY KEY)")
    mysql = {"connector": "mysql", "db": "shop", "table": "t", "file": "b.000001", "pos": 4, "row": 0}
    ddl = {"source": mysql, "databaseName": "shop", "ddl": "DROP TABLE x", "tableChanges": []}
    row = {"source": TICDC, "op": "c", "before": None, "after": {"id": 1}}
    watermark = {"source": {**TICDC, "db": "", "table": ""}, "op": "m"}
    stdin = _record(0, {}, ddl) + _record(1, {"id": 1}, row) + _record(2, {}, watermark)
    options = ("--protocol", "debezium", "--table-definition", str(definition))
    decoded = run("decode", *options, "--input", "-", "-o", "json", stdin=stdin)
    assert decoded.exit_code == 0, decoded.output
    encoded = run("encode", *options, "--debezium-disable-schema", stdin=decoded.stdout)
    assert encoded.exit_code == 1
    assert [json.loads(line)["offset"] for line in encoded.stdout.splitlines()] == [1, 2]
    assert "a Debezium connector, but only DDL events of TiCDC can be written" in encoded.stderr
    assert "line=1" in encoded.stderr


@pytest.mark.parametrize("protocol", ["debezium", "debezium-avro"])
def test_ticdcs_ddl_and_watermarks_come_back(protocol: str) -> None:
    ddl = {"ddl": "DROP TABLE t", "databaseName": "shop", "schemaName": None, "ts_ms": 5}
    changes = [{"type": "DROP", "id": '"shop"."t"', "table": None}]
    source = {**TICDC, "name": "default", "cluster_id": "default"}
    watermark = {"source": {**source, "db": "", "table": ""}, "op": "m"}
    stdin = _record(0, {}, {"source": source, **ddl, "tableChanges": changes}) + _record(1, {}, watermark)
    decoded = run("decode", "--protocol", "debezium", "--input", "-", "-o", "json", stdin=stdin)
    options = ("--protocol", protocol, "--schema-registry", f"memory://{protocol}", "--register")
    given = options if protocol == "debezium-avro" else options[:2]
    encoded = run("encode", *given, stdin=decoded.stdout)
    assert encoded.exit_code == 0, encoded.output
    again = run("decode", *given[:4], "--input", "-", "-o", "json", stdin=encoded.stdout)
    first, second = (json.loads(line) for line in again.stdout.splitlines())
    assert (first["query"], first["extension"]["tableChanges"]) == ("DROP TABLE t", changes)
    assert (second["type"], second["commit_ts"]) == ("watermark", TICDC["commit_ts"])
