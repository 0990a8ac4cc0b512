"""Lines that ``decode`` never prints: refused by name, in our own words, with exit code 2."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.samples import run

PLACE = {"topic": "t", "partition": 0, "offset": 1, "index": 0}
ROW: dict[str, Any] = {
    "type": "insert",
    "table": {"schema": "a", "name": "b"},
    "key": {"id": 1},
    "before": None,
    "after": {"id": 1},
    "commit_ts": 5,
    "extension": {"mysqlType": {"id": "int"}, "pkNames": ["id"]},
    "position": PLACE,
}
WATERMARK = {"type": "watermark", "commit_ts": 5, "position": PLACE}
DDL = {**WATERMARK, "type": "ddl", "table": ROW["table"], "query": "DROP TABLE b", "kind": "DROP"}
ERROR = {"type": "error", "key_b64": None, "value_b64": "AQI=", "position": PLACE}


@pytest.mark.parametrize("line", [ROW, WATERMARK, ERROR], ids=lambda line: line["type"])
def test_the_lines_are_right_before_they_are_made_wrong(line: dict[str, Any]) -> None:
    result = run("encode", "--protocol", "canal-json", stdin=json.dumps(line))
    assert result.exit_code == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({**ROW, "commit_ts": "5"}, "commit_ts must be an integer, not '5'"),
        ({**ROW, "commit_ts": True}, "commit_ts must be an integer, not True"),
        ({**ROW, "commit_ts": -1}, "commit_ts must be an unsigned 64-bit integer, not -1"),
        ({**WATERMARK, "commit_ts": "x" * 100}, f"commit_ts must be an integer, not {'x' * 80!r}…"),
        ({**WATERMARK, "commit_ts": None}, "commit_ts must be an integer, not None"),
        ({**DDL, "commit_ts": "x"}, "commit_ts must be an integer"),
        ({**DDL, "query": 5}, "query must be a text, not 5"),
        ({**ROW, "position": {**PLACE, "topic": 5}}, "position.topic must be a text, not 5"),
        ({**ROW, "position": {**PLACE, "partition": "x"}}, "position.partition must be an integer, not 'x'"),
        ({**ROW, "position": {**PLACE, "offset": None}}, "position.offset must be an integer, not None"),
        ({**ROW, "position": {**PLACE, "offset": -1}}, "must not be negative"),
        ({**ROW, "position": [1]}, "position must be an object, not [1]"),
        ({**ERROR, "position": {**PLACE, "topic": None}}, "position.topic must be a text"),
        ({**ERROR, "position": None}, "position is missing. Give an object with topic, partition and offset"),
        ({**ERROR, "value_b64": "A!Q=I="}, "value_b64 is not base64"),
        ({**ERROR, "value_b64": "ä"}, "value_b64 is not base64"),
        ({**ERROR, "key_b64": 7}, "key_b64 is not base64"),
        (
            {**ROW, "table": {**ROW["table"], "zzz": 1}},
            "table.zzz is unknown. Remove it: a table only has schema and name",
        ),
        ({**ROW, "table": None}, "table must be an object, not None"),
        ({**ROW, "table": {"schema": "a"}}, "table.name is missing"),
        ({**ROW, "type": ["insert"]}, "type must be a text"),
        ({**ROW, "after": [1]}, "after must be an object, not [1]"),
        ({**ROW, "schema_id": 7}, "schema_id must be an object, not 7"),
        ({**ROW, "schema_id": {"key": "7"}}, "schema_id.key must be an integer, not '7'"),
        ({**ROW, "extension": {"mysqlType": {"id": 5}}}, "extension.mysqlType.id must be a text, not 5"),
        ({**ROW, "extension": {"pkNames": [None]}}, "extension.pkNames must hold texts, not None"),
        ({**ROW, "extension": {"x": {"base64": "?"}}}, "extension.x is not base64"),
    ],
)
def test_a_wrong_member_is_told_by_name(line: dict[str, Any], message: str) -> None:
    result = run("encode", "--protocol", "canal-json", stdin=json.dumps(ROW) + "\n" + json.dumps(line))
    assert result.exit_code == 2, result.stderr
    assert f"line 2: {message}" in result.stderr or (message in result.stderr and "line 2" in result.stderr)


@pytest.mark.parametrize("options", [("--from", "5"), ("--brokers", "k:9092")])
def test_what_only_a_topic_has_is_refused_with_a_file(options: tuple[str, str]) -> None:
    result = run("decode", "--protocol", "canal-json", "--input", "-", *options, stdin="")
    assert result.exit_code == 2
    assert f"{options[0]} has no effect with --input" in result.stderr


@pytest.mark.parametrize("command", ["decode", "encode"])
def test_an_unknown_time_zone_is_refused(command: str) -> None:
    result = run(command, "--protocol", "canal-json", "--input", "-", "--time-zone", "Mars/X", stdin="")
    assert result.exit_code == 2
    assert "--time-zone 'Mars/X'" in result.stderr
    assert "IANA" in result.stderr


def test_offsets_that_are_gone_are_told_at_once() -> None:
    from tidesink.cli.sources import gone_before, parse_start

    assert gone_before(parse_start("5"), {1: 9, 0: 7}) == (
        "--from 5: the broker no longer holds all records from there on. It holds partition 0 from 7, "
        "partition 1 from 9"
    )


def test_a_start_behind_the_end_is_told() -> None:
    from tidesink.cli.sources import nothing_from, parse_start

    ends = {1: 9, 0: 7}
    assert nothing_from(parse_start("10"), ends) == (
        "--from 10: the topic holds no record from there on (partition 0 at 7, partition 1 at 9). "
        "Begin earlier, or omit --from"
    )
    assert nothing_from(parse_start("@5"), ends).startswith("--from @5: the topic holds no record")
    assert nothing_from(parse_start("earliest"), {0: 0}) == "the topic holds no record (partition 0 at 0)"


def test_a_debezium_line_has_no_types() -> None:
    line = {
        **{"type": "insert", "table": {"schema": "s", "name": "t"}, "key": None, "before": None},
        **{"after": {"a": 1}, "commit_ts": 1, "schema_id": {"key": 1, "value": 2}},
        "position": {"topic": "t", "partition": 0, "offset": 0, "index": 0},
    }
    result = run("encode", "--protocol", "debezium", stdin=json.dumps(line))
    assert result.exit_code == 1
    assert "Debezium lines contain no column types. Give --table-definition FILE" in result.stderr
