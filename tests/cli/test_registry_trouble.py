"""A registry in trouble: what decode and encode say, and with which exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.samples import KEY, VALUE, capture, run
from tests.scripted_registry import Reply, Serve, scripted_registries

serve = pytest.fixture(scripted_registries, name="serve")

TROUBLE = [
    ("401", Reply(401, {"error_code": 401, "message": "Unauthorized"}), "RegistryError", "401"),
    ("garbage", Reply(200, b"<html>welcome</html>"), "RegistryError", "registry"),
    ("500", Reply(500, {"error_code": 50001, "message": "broken"}), "RegistryUnavailableError", "500"),
]


def decode(url: str, **more: str) -> tuple[int, str, str]:
    result = run(
        "decode", "--protocol", "avro", "--schema-registry", url, "--input", "-", "-o", "json",
        stdin=capture(KEY, VALUE),
    )  # fmt: skip
    return result.exit_code, result.stdout, re.sub(r"\s+", " ", result.stderr)


@pytest.mark.parametrize(
    ("reply", "error", "word"), [case[1:] for case in TROUBLE], ids=[c[0] for c in TROUBLE]
)
def test_no_record_can_be_judged_so_the_command_ends(
    serve: Serve, reply: Reply, error: str, word: str
) -> None:
    code, output, errors = decode(serve(reply).url)
    assert (code, output) == (1, "")
    assert error in errors
    assert word in errors
    assert "Traceback" not in errors


def test_a_registry_that_is_down() -> None:
    code, _, errors = decode("http://127.0.0.1:1")
    assert code == 1
    assert "RegistryUnavailableError" in errors
    assert "Check that it runs, and that its URL is right." in errors


def test_credentials_in_a_url_are_not_shown(serve: Serve) -> None:
    url = serve(Reply(401, {"error_code": 401, "message": "no"})).url.replace("//", "//me:s3cr3t@")
    code, _, errors = decode(url)
    assert code == 1
    assert "s3cr3t" not in errors


def test_an_unknown_id_is_the_records_own_fault(serve: Serve) -> None:
    code, output, _ = decode(serve(Reply(404, {"error_code": 40403, "message": "Schema not found"})).url)
    assert code == 1
    assert json.loads(output)["error"] == "SchemaNotFoundError"
    assert "schema_id 257" in json.loads(output)["reason"]


def test_a_refused_schema_reaches_the_user(serve: Serve, tmp_path: Path) -> None:
    ddl = tmp_path / "t.sql"
    ddl.write_text("CREATE TABLE shop.t (id int primary key)")
    refusal = {
        "error_code": 409,
        "message": "Schema being registered is incompatible: reader field 'id' differs",
    }
    line = {
        "type": "insert",
        "table": {"schema": "shop", "name": "t"},
        "key": {"id": 1},
        "before": None,
        "after": {"id": 1},
        "commit_ts": None,
        "position": {"topic": "shop_t", "partition": 0, "offset": 0},
    }
    result = run(
        "encode", "--protocol", "avro", "--register", "--schema-registry", serve(Reply(409, refusal)).url,
        "--table-definition", str(ddl), stdin=json.dumps(line),
    )  # fmt: skip
    assert result.exit_code == 1
    assert "IncompatibleSchemaError" in result.stderr
    assert "id" in result.stderr
