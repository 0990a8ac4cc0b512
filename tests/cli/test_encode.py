"""``tidesink encode``: records from lines."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.cli.samples import CANAL, KEY, VALUE, capture, lines, run
from tidesink.schema_registry import open_registry


def test_encode_gives_the_records_back(schemas: str, tmp_path: Path) -> None:
    stdin = capture(KEY, VALUE) + capture(KEY, None, 18) + capture(None, b"\x00\x00", 19)
    options = ("--protocol", "avro", "--schemas", schemas)
    decoded = run("decode", *options, "--input", "-", "-o", "json", stdin=stdin)
    assert decoded.exit_code == 1
    encoded = run("encode", *options, stdin=decoded.stdout)
    assert encoded.exit_code == 0, encoded.stderr
    wanted = [json.loads(line) for line in stdin.splitlines()]
    for line in wanted:
        del line["extra"]
        line |= {"timestamp": None, "headers": []}
    assert lines(encoded) == wanted


def test_a_value_of_ten_megabytes_decodes_and_comes_back() -> None:
    text = "x" * 10_000_000
    message = {**CANAL, "mysqlType": {"id": "int", "e": "longtext"}, "data": [{"id": "7", "e": text}]}
    stdin = capture(None, json.dumps(message).encode())
    decoded = run("decode", "--protocol", "canal-json", "--input", "-", "-o", "json", stdin=stdin)
    assert lines(decoded)[0]["after"]["e"] == text
    options = ("--protocol", "canal-json")
    encoded = lines(run("encode", *options, stdin=decoded.stdout))
    assert json.loads(base64.b64decode(encoded[0]["value_b64"]))["data"] == message["data"]


def test_a_definition_gives_labels_to_canal_json(tmp_path: Path) -> None:
    ddl = tmp_path / "t.sql"
    ddl.write_text("CREATE TABLE t (id int primary key, e enum('a','b'));")
    stdin = capture(None, json.dumps(CANAL).encode())
    options = ("--protocol", "canal-json", "--table-definition", str(ddl))
    decoded = run("decode", *options, "--input", "-", "-o", "json", stdin=stdin)
    assert lines(decoded)[0]["after"] == {"id": 7, "e": "b"}
    encoded = run("encode", *options, stdin=decoded.stdout)
    value = json.loads(base64.b64decode(lines(encoded)[0]["value_b64"]))
    assert {**value, "ts": 2} == CANAL


@pytest.mark.parametrize("protocol", ["flat-avro", "debezium-avro"])
def test_no_schema_is_registered_for_a_line_that_cannot_be_encoded(tmp_path: Path, protocol: str) -> None:
    ddl = tmp_path / "t.sql"
    ddl.write_text("CREATE TABLE shop.t (id int primary key, n int)")
    event = {
        "type": "insert",
        "table": {"schema": "shop", "name": "t"},
        "key": {"id": 1},
        "before": None,
        "after": {"id": 1, "n": 1 << 40},
        "commit_ts": 5,
        "position": {"topic": "shop_t", "partition": 2, "offset": 5, "index": 0},
    }
    url = f"memory://refused-{protocol}"
    options = ("--protocol", protocol, "--schema-registry", url, "--table-definition", str(ddl))
    refused = run("encode", *options, "--register", stdin=json.dumps(event))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert open_registry(url).subjects() == []
    event["after"] = {"id": 1, "n": 2}
    assert run("encode", *options, "--register", stdin=json.dumps(event)).exit_code == 0
    assert open_registry(url).subjects() == ["shop_t-key", "shop_t-value"]


def test_lines_without_ids_are_registered_on_request(tmp_path: Path) -> None:
    ddl = tmp_path / "t.sql"
    ddl.write_text("CREATE TABLE shop.t (id int primary key, e enum('a','b'))")
    event = {
        "type": "insert",
        "table": {"schema": "shop", "name": "t"},
        "key": {"id": 1},
        "before": None,
        "after": {"id": 1, "e": "b"},
        "commit_ts": None,
        "position": {"topic": "shop_t", "partition": 2, "offset": 5, "index": 0},
    }
    options = ("--protocol", "avro", "--schema-registry", "memory://cli", "--table-definition", str(ddl))
    refused = run("encode", *options, stdin=json.dumps(event))
    assert refused.exit_code == 1
    assert "--register" in refused.stderr
    encoded = run("encode", *options, "--register", stdin=json.dumps(event))
    assert encoded.exit_code == 0, encoded.stderr
    decoded = run("decode", *options, "--input", "-", "-o", "json", stdin=encoded.stdout)
    assert lines(decoded)[0]["after"] == {"id": 1, "e": "b"}
    assert lines(decoded)[0]["position"] == event["position"]


@pytest.mark.parametrize(
    ("stdin", "code", "message"),
    [
        ('{"type":"insert"}', 2, "line 1: position is missing"),
        (
            '{"type":"truncated","position":{"topic":"t","partition":0,"offset":1}}',
            2,
            "'truncated' is unknown",
        ),
        ('{"type":"error","position":{"topic":"t","partition":0,"offset":1}}', 2, "key_b64 and value_b64"),
        (
            '{"type":"insert","table":{"schema":"a","name":"b"},"key":null,"before":null,"after":{"c":1},'
            '"position":{"topic":"t","partition":0,"offset":1}}',
            1,
            "--table-definition",
        ),
    ],
)
def test_a_line_that_cannot_be_encoded(stdin: str, code: int, message: str) -> None:
    result = run("encode", "--protocol", "canal-json", stdin=stdin)
    assert result.exit_code == code
    assert message in result.stderr
    assert result.stdout == ""


ROW = {
    "type": "insert",
    "table": {"schema": "a", "name": "b"},
    "key": {"id": 1},
    "before": None,
    "after": {"id": 1},
    "commit_ts": 5,
    "extension": {"mysqlType": {"id": "int"}, "pkNames": ["id"]},
}


def _at(offset: int, index: int = 0, **members: object) -> str:
    position = {"topic": "t", "partition": 0, "offset": offset, "index": index}
    return json.dumps({**ROW, **members, "position": position}) + "\n"


def test_a_line_that_cannot_be_written_does_not_stop_the_others() -> None:
    stdin = _at(1) + _at(2, after={"id": "x"}) + _at(3)
    result = run("encode", "--protocol", "canal-json", stdin=stdin)
    assert result.exit_code == 1
    assert [one["offset"] for one in lines(result)] == [1, 3]
    assert "'x' is not a valid int" in result.stderr
    assert "line=2" in result.stderr
    assert "1 lines cannot be written as canal-json. All other lines were written" in result.stderr


def test_a_record_is_written_whole_or_not_at_all() -> None:
    stdin = _at(1) + _at(1, 1, after={"id": "x"}) + _at(1, 2) + _at(2)
    result = run("encode", "--protocol", "canal-json", stdin=stdin)
    assert result.exit_code == 1
    assert [one["offset"] for one in lines(result)] == [2]
    assert result.stderr.count("another line of the same Kafka record") == 2
    assert "3 lines cannot be written as canal-json" in result.stderr


def test_a_million_refusals_are_told_in_a_few_words() -> None:
    stdin = "".join(_at(offset, after={"id": "x"}) for offset in range(30))
    result = run("encode", "--protocol", "canal-json", stdin=stdin)
    assert result.exit_code == 1
    assert result.stderr.count("EncodeError") == 20
    assert "30 lines cannot be written as canal-json" in result.stderr
