"""Large messages from the command line: read, written, and completed, with secrets kept."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.samples import CANAL, capture, lines, run
from tidesink.codecs.compression import compressed, compression_of, decompressed

TS: Final = 470608475564539905
ROW: Final = {"id": "7", "e": base64.b64encode(bytes(range(256)) * 3).decode()}
MESSAGE: Final = {
    **CANAL, "mysqlType": {"id": "int", "e": "text"}, "sqlType": {"id": 4, "e": 2005}, "es": TS >> 18,
    "data": [ROW], "_tidb": {"commitTs": TS},
}  # fmt: skip
OPTIONS: Final = ("--protocol", "canal-json")


def _decoded(value: bytes, *options: str, code: int = 0) -> dict[str, Any]:
    found = run("decode", *OPTIONS, *options, "--input", "-", "-o", "json", stdin=capture(None, value))
    assert found.exit_code == code, found.output
    (line,) = lines(found)
    assert isinstance(line, dict)
    return line


def _encoded(line: dict[str, Any], *options: str) -> bytes:
    found = run("encode", *OPTIONS, *options, stdin=json.dumps(line))
    assert found.exit_code == 0, found.output
    return base64.b64decode(lines(found)[0]["value_b64"])


@pytest.mark.parametrize("kind", ["lz4", "snappy"])
def test_compressed_records_decode_without_being_told_and_are_written_when_told(kind: Any) -> None:
    line = _decoded(compressed(json.dumps(MESSAGE).encode(), kind))
    assert line["after"] == {"id": 7, "e": ROW["e"]}
    assert line["extension"]["compression"] == kind
    reported = {**line, "extension": {n: v for n, v in line["extension"].items() if n != "compression"}}
    for value in (_encoded(line), _encoded(reported, "--large-message-handle-compression", kind)):
        assert compression_of(value) == kind
    assert compression_of(_encoded(line, "--large-message-handle-compression", "none")) == "none"
    assert json.loads(decompressed(value) or b"") == {
        **MESSAGE,
        "ts": json.loads(decompressed(value) or b"")["ts"],
    }


def test_a_claim_check_round_trip(tmp_path: Path) -> None:
    line = _decoded(json.dumps(MESSAGE).encode())
    options = (
        "--large-message-handle-option", "claim-check", "--claim-check-storage-uri", f"file://{tmp_path}",
        "--max-message-bytes", "600",
    )  # fmt: skip
    value = _encoded(line, *options)
    assert json.loads(value)["data"] == [{"id": "7"}]
    assert _decoded(value, *options)["after"] == line["after"]
    lost = _decoded(value, code=1)
    assert (lost["error"], lost["type"]) == ("RowUnavailableError", "error")
    assert "Set claim-check-storage-uri" in lost["reason"]


def test_a_row_cut_down_says_what_to_give_and_a_delete_needs_nothing() -> None:
    line = _decoded(json.dumps(MESSAGE).encode())
    options = ("--large-message-handle-option", "handle-key-only", "--max-message-bytes", "600")
    lost = _decoded(_encoded(line, *options), code=1)
    assert (lost["error"], lost["remedy"]) == ("RowUnavailableError", "reject")
    assert "Set upstream-url" in lost["reason"]
    deleted = _encoded({**line, "type": "delete", "before": line["after"], "after": None}, *options)
    assert json.loads(deleted)["_tidb"] == {"commitTs": TS, "onlyHandleKey": True}
    again = _decoded(deleted)
    assert (again["type"], again["before"]) == ("delete", {"id": 7})
    assert json.loads(_encoded(again))["_tidb"] == {"commitTs": TS, "onlyHandleKey": True}


def test_secrets_come_from_the_environment_or_a_file_and_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = {**MESSAGE, "data": [{"id": "7"}], "_tidb": {"commitTs": TS, "onlyHandleKey": True}}
    secret = tmp_path / "password"
    secret.write_text("SECRET\n")
    stdin = capture(None, json.dumps(cut).encode())
    given = ("decode", *OPTIONS, "--input", "-", "-o", "json")
    found = run(*given, "--upstream-url", f"nothing://u:${{file:{secret}}}@h", stdin=stdin)
    assert found.exit_code == 2
    assert "no driver for nothing" in found.stderr
    monkeypatch.setenv("TIDESINK_UPSTREAM_URL", "nobody://u:SECRET@h")
    other = run(*given, stdin=stdin)
    assert "no driver for nobody" in other.stderr
    assert "SECRET" not in found.output + other.output
    missing = run(*given, "--upstream-url", "nothing://u:${env:NOT_THERE}@h", stdin=stdin)
    assert missing.exit_code == 2
    assert "the environment variable NOT_THERE is not set" in missing.stderr


DEBEZIUM: Final = ("--protocol", "debezium", "--time-zone", "UTC")


@pytest.mark.parametrize("kind", ["lz4", "snappy"])
def test_debezium_records_are_compressed_again(tmp_path: Path, kind: Any) -> None:
    """Row, DDL and watermark: decode says how each was compressed, and encode writes it so again."""
    table = tmp_path / "t.sql"
    table.write_text("CREATE TABLE shop.t (id int PRIMARY KEY, e varchar(2000));")
    options = (*DEBEZIUM, "--table-definition", str(table))
    place = {"topic": "t", "partition": 0, "offset": 0}
    row = {"type": "insert", "table": {"schema": "shop", "name": "t"}, "key": {"id": 7}, "before": None,
           "after": {"id": 7, "e": ROW["e"]}, "commit_ts": TS}  # fmt: skip
    ddl: dict[str, Any] = {
        "type": "ddl", "table": row["table"], "query": "DROP TABLE t", "kind": "DROP", "commit_ts": TS,
        "extension": {"tableChanges": []},
    }  # fmt: skip
    given = "".join(
        json.dumps({**one, "position": place}) + "\n"
        for one in (row, ddl, {"type": "watermark", "commit_ts": TS})
    )
    written = ("encode", *options, "--large-message-handle-compression", kind)
    records = run(*written, stdin=given)
    assert records.exit_code == 0, records.output
    _compressed_halves(records, kind)
    decoded = run("decode", *options, "--input", "-", "-o", "json", stdin=records.stdout)
    assert decoded.exit_code == 0, decoded.output
    assert [line["extension"]["compression"] for line in lines(decoded)] == [kind] * 3
    assert lines(decoded)[0]["after"] == row["after"]
    again = run("encode", *options, stdin=decoded.stdout)
    _compressed_halves(again, kind)
    plain = run("encode", *options, "--large-message-handle-compression", "none", stdin=decoded.stdout)
    _compressed_halves(plain, "none")


def _compressed_halves(found: Any, kind: str) -> None:
    assert found.exit_code == 0, found.output
    halves = [base64.b64decode(line[half]) for line in lines(found) for half in ("key_b64", "value_b64")]
    assert [compression_of(half) for half in halves] == [kind] * 6
