"""Every canal-json message of the vectors fits the published schema; what does not is told where."""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonschema
import pytest

from tests.cli.samples import CANAL, run
from tests.golden.vectors import Record
from tidesink.codecs import open_codec
from tidesink.codecs.canal_json.envelope import CanalJsonSchema, canal_json_schema
from tidesink.errors import FramingError, SchemaMismatchError
from tidesink.events import Message

SCHEMA = CanalJsonSchema()
# As Alibaba's Canal writes it: several rows, only changed columns in `old`, a gtid.
ALIBABA = CANAL | {
    "type": "UPDATE",
    "id": 12,
    "gtid": "",
    "data": [{"id": "7", "e": "2"}, {"id": "8", "e": None}],
    "old": [{"e": "1"}, {"e": "2"}],
}
DDL = CANAL | {
    "type": "CINDEX",
    "isDdl": True,
    "sql": "CREATE INDEX i ON t (e)",
    "pkNames": None,
    "sqlType": None,
    "mysqlType": None,
    "data": None,
}
WATERMARK = DDL | {"type": "TIDB_WATERMARK", "isDdl": False, "sql": "", "database": "", "table": ""}
WATERMARK["_tidb"] = {"watermarkTs": 2**64 - 1}


def message(value: bytes | None) -> Message:
    return Message("t", 3, 9, None, value)


def checked(value: dict[str, Any]) -> None:
    SCHEMA.check(message(json.dumps(value).encode()))


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(canal_json_schema())


@pytest.mark.golden("canal-json", "rows")
def test_every_row_of_the_vectors_fits(record: Record) -> None:
    if record.message.value is not None:
        SCHEMA.check(record.message)


@pytest.mark.golden("canal-json", "control")
def test_every_control_message_of_the_vectors_fits(record: Record) -> None:
    if record.message.value is not None:
        SCHEMA.check(record.message)


@pytest.mark.parametrize("value", [CANAL, ALIBABA, DDL, WATERMARK], ids=["row", "canal", "ddl", "watermark"])
def test_right_messages_fit(value: dict[str, Any]) -> None:
    checked(value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (CANAL | {"data": [{"id": 7}]}, "$.data[0].id: 7 is not of type string or null"),
        (CANAL | {"data": []}, "$.data: the array is empty"),
        (CANAL | {"data": None}, "$.data: null is not of type array"),
        (CANAL | {"type": "UPSERT"}, "$.type: 'UPSERT' is not one of INSERT or UPDATE"),
        (CANAL | {"isDdl": "no"}, "$.isDdl: 'no' is not of type boolean"),
        (CANAL | {"isDdl": True}, "$."),
        (CANAL | {"old": [{"id": "6"}]}, "$.old: the array is not of type null"),
        (CANAL | {"database": ""}, "$.database: '' is empty"),
        (CANAL | {"es": -1}, "$.es: -1 is below 0"),
        (CANAL | {"es": 1.5}, "$.es: 1.5 is not of type integer"),
        (CANAL | {"pkNames": ["id", "id"]}, "$.pkNames: the array contains a column twice"),
        (CANAL | {"mysqlType": {"id": 4}}, "$.mysqlType.id: 4 is not of type string"),
        (CANAL | {"sqlType": {"id": "4"}}, "$.sqlType.id: '4' is not of type integer"),
        (CANAL | {"_tidb": {"commitTS": 1}}, "$._tidb: 'commitTS' is not a known member"),
        (CANAL | {"_tidb": {"commitTs": 2**64}}, "$._tidb.commitTs"),
        (CANAL | {"_tidb": {"onlyHandleKey": "true"}}, "$._tidb.onlyHandleKey: 'true' is not of type"),
        ({name: CANAL[name] for name in CANAL if name != "es"}, "$: 'es' is missing"),
        (DDL | {"sql": ""}, "$.sql: '' is empty"),
        (DDL | {"data": [{}]}, "$.data"),
        (WATERMARK | {"_tidb": {"commitTs": 1}}, "$._tidb: 'watermarkTs' is missing"),
        ({name: WATERMARK[name] for name in WATERMARK if name != "_tidb"}, "$: '_tidb' is missing"),
    ],
)
def test_a_wrong_shape_is_told_with_its_path(value: dict[str, Any], says: str) -> None:
    with pytest.raises(SchemaMismatchError) as wrong:
        checked(value)
    assert wrong.value.message.startswith(says)
    assert wrong.value.context["offset"] == 9


def test_a_reason_never_holds_a_whole_row() -> None:
    with pytest.raises(SchemaMismatchError) as wrong:
        checked(CANAL | {"data": [{"id": "x" * 5000, "e": 1}], "old": [{"id": "y" * 5000}]})
    assert len(wrong.value.message) < 300


def test_what_is_no_json_is_a_framing_error() -> None:
    with pytest.raises(FramingError):
        SCHEMA.check(message(b"\x00\x00\x00\x00\x01"))


def test_the_second_row_of_a_message_is_checked_too() -> None:
    with pytest.raises(SchemaMismatchError, match=r"\$\.data\[1\]\.id"):
        checked(ALIBABA | {"data": [{"id": "7"}, {"id": 8}]})


def capture(*values: dict[str, Any]) -> str:
    lines = []
    for offset, value in enumerate(values):
        encoded = base64.b64encode(json.dumps(value).encode()).decode()
        lines.append(
            json.dumps(
                {"topic": "t", "partition": 0, "offset": offset, "key_b64": None, "value_b64": encoded}
            )
        )
    return "\n".join(lines)


def test_decode_strict_gives_error_lines() -> None:
    lenient = CANAL | {"sqlType": {"id": "4"}}
    args = ("decode", "--protocol", "canal-json", "--input", "-", "-o", "json")
    assert run(*args, stdin=capture(CANAL, lenient)).exit_code == 0
    result = run(*args, "--strict", stdin=capture(CANAL, lenient))
    assert result.exit_code == 1
    first, second = map(json.loads, result.stdout.splitlines())
    assert (first["type"], second["type"], second["error"]) == ("insert", "error", "SchemaMismatchError")
    assert second["reason"].startswith("$.sqlType.id: '4' is not of type integer")
    assert second["position"]["offset"] == 1


def test_strict_is_for_canal_json() -> None:
    result = run(
        "decode", "--protocol", "avro", "--schemas", "/dev/null", "--input", "-", "--strict", stdin=""
    )
    assert (result.exit_code, "--strict only applies to canal-json" in result.stderr) == (2, True)


def test_decoding_takes_all_that_fits() -> None:
    codec = open_codec("canal-json")
    for value in (CANAL, ALIBABA, DDL, WATERMARK):
        assert codec.decode(message(json.dumps(value).encode()))
