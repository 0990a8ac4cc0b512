"""Export: all subjects, the same bytes each time, and a file that ``decode --schemas`` reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.samples import KEY, KEY_SCHEMA, VALUE, VALUE_SCHEMA, capture, run
from tests.confluent_registry import Server, Start, confluent_servers
from tidesink.schema_registry import MemorySchemaRegistry

start = pytest.fixture(confluent_servers, name="start")


def record(*fields: str) -> str:
    members = [{"name": name, "type": "int"} for name in fields]
    return json.dumps({"type": "record", "name": "t", "namespace": "default.shop", "fields": members})


@pytest.fixture
def source(start: Start) -> Server:
    """Ids far apart, a history that its own level would refuse, and one id twice."""
    memory = MemorySchemaRegistry({40: record("a"), 300: record("a", "b"), 17: record("id")})
    for subject, *fields in (("a-value", "a"), ("a-value", "a", "b"), ("b-key", "id"), ("b-value", "a", "b")):
        memory.register(subject, record(*fields))
    memory.set_compatibility_level("BACKWARD", subject="a-value")
    return start(memory=memory)


def exported(source: Server, *subjects: str) -> bytes:
    result = run("registry", "export", *subjects, "--schema-registry", source.url)
    assert result.exit_code == 0, result.output
    return result.stdout.encode()


def test_an_export_has_all_and_is_the_same_each_time(source: Server) -> None:
    lines = [json.loads(line) for line in exported(source).splitlines()]
    assert [(e["subject"], e["version"], e["id"], e["level"]) for e in lines] == [
        ("a-value", 1, 40, "BACKWARD"),
        ("a-value", 2, 300, "BACKWARD"),
        ("b-key", 1, 17, "NONE"),
        ("b-value", 1, 300, "NONE"),
    ]
    assert lines[0]["schema"] == record("a")
    assert exported(source) == exported(source)
    assert [json.loads(line)["version"] for line in exported(source, "a-*").splitlines()] == [1, 2]
    assert len(exported(source, "a-*", "b-key").splitlines()) == 3


def test_decode_takes_an_export_as_its_schemas(start: Start, tmp_path: Path) -> None:
    memory = MemorySchemaRegistry({257: json.dumps(KEY_SCHEMA), 258: json.dumps(VALUE_SCHEMA)})
    memory.register("shop_t-key", json.dumps(KEY_SCHEMA))
    memory.register("shop_t-value", json.dumps(VALUE_SCHEMA))
    file = tmp_path / "all.jsonl"
    file.write_bytes(exported(start(memory=memory)))
    result = run(
        "decode", "--protocol", "avro", "--schemas", str(file), "--input", "-", "-o", "json",
        stdin=capture(KEY, VALUE),
    )  # fmt: skip
    assert json.loads(result.stdout)["after"]["id"] == 7


def test_an_export_that_may_be_cut_is_refused(start: Start) -> None:
    server = start()
    for number in range(1000):
        server.registry.memory.register(f"s{number:04d}", '"int"')
    result = run("registry", "export", "--schema-registry", server.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "The export would be incomplete" in " ".join(result.stderr.split())
    assert len(exported(server, "s0007").splitlines()) == 1
