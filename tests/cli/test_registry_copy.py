"""Export and import: the same bytes each time, ids kept where the registry can, a second run does nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.samples import KEY, KEY_SCHEMA, VALUE, VALUE_SCHEMA, capture, run, said
from tests.confluent_registry import Server, Start, confluent_servers
from tidesink.schema_registry import RegisteredSchema

start = pytest.fixture(confluent_servers, name="start")


def record(*fields: str) -> str:
    members = [{"name": name, "type": "int"} for name in fields]
    return json.dumps({"type": "record", "name": "t", "namespace": "default.shop", "fields": members})


@pytest.fixture
def source(start: Start) -> Server:
    """Ids far apart, versions with a hole, a history that its own level would refuse, one id twice."""
    server = start()
    memory = server.registry.memory
    for subject, version, schema_id, text in (
        ("a-value", 1, 40, record("a")),
        ("a-value", 3, 300, record("a", "b")),
        ("b-key", 1, 17, record("id")),
        ("b-value", 1, 300, record("a", "b")),
    ):
        memory.put(RegisteredSchema(schema_id, text, subject, version))
    memory.set_compatibility_level("BACKWARD", subject="a-value")
    return server


@pytest.fixture
def file(source: Server, tmp_path: Path) -> str:
    path = tmp_path / "all.jsonl"
    said("export", str(path), "--schema-registry", source.url)
    return str(path)


def test_an_export_has_all_and_is_the_same_each_time(source: Server, file: str, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
    assert [(e["subject"], e["version"], e["id"], e["level"]) for e in lines] == [
        ("a-value", 1, 40, "BACKWARD"),
        ("a-value", 3, 300, "BACKWARD"),
        ("b-key", 1, 17, "NONE"),
        ("b-value", 1, 300, "NONE"),
    ]
    assert lines[0]["schema"] == record("a")
    again = run("registry", "export", "--schema-registry", source.url)
    assert again.stdout.encode() == Path(file).read_bytes()
    some = run("registry", "export", "--subject", "a-*", "--schema-registry", source.url)
    assert [json.loads(line)["version"] for line in some.stdout.splitlines()] == [1, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["all.jsonl"], "no draft is left behind"


def test_a_folder_has_a_file_per_version(source: Server, tmp_path: Path) -> None:
    folder = f"{tmp_path}/out/"
    assert said("export", folder, "--schema-registry", source.url)["schemas"] == 4
    names = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*.avsc"))
    assert names == ["a-value/0001.avsc", "a-value/0003.avsc", "b-key/0001.avsc", "b-value/0001.avsc"]
    assert json.loads((Path(folder) / "b-key/0001.avsc").read_text()) == json.loads(record("id"))
    assert len((Path(folder) / "schemas.jsonl").read_text().splitlines()) == 4


def test_a_subject_cannot_leave_the_folder(start: Start, tmp_path: Path) -> None:
    server = start()
    server.registry.memory.put(RegisteredSchema(1, record("a"), "../../up", 1))
    said("export", f"{tmp_path}/out/", "--schema-registry", server.url)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(list((tmp_path / "out").rglob("*.avsc"))) == 1


def test_import_keeps_ids_and_numbers_where_the_registry_takes_them(start: Start, file: str) -> None:
    target = start()
    planned = said("import", file, "--dry-run", "--schema-registry", target.url)
    assert (planned["registered"], planned["levels_set"], planned["dry_run"]) == (4, 1, True)
    assert target.registry.memory.subjects() == []
    done = said("import", file, "--schema-registry", target.url)
    assert (done["registered"], done["kept"], done["ids_differ"]) == (4, 0, 0)
    memory = target.registry.memory
    assert memory.versions("a-value") == [1, 3]
    assert memory.schema_by_version("a-value", 3).id == memory.latest("b-value").id == 300
    assert memory.compatibility_level("a-value") == "BACKWARD"
    assert target.registry.importing == set(), "every subject is back in its mode"
    copied = run("registry", "export", "--schema-registry", target.url)
    assert copied.stdout.encode() == Path(file).read_bytes()


def test_a_second_import_does_nothing(start: Start, file: str) -> None:
    target = start()
    said("import", file, "--schema-registry", target.url)
    target.registry.log.clear()
    done = said("import", file, "--schema-registry", target.url)
    assert (done["registered"], done["kept"], done["levels_set"]) == (0, 4, 0)
    assert not [
        line for line in target.registry.log if "PUT" in line or ("/versions" in line and "POST" in line)
    ]


def test_without_import_mode_the_order_stays_and_the_ids_are_compared(start: Start, file: str) -> None:
    target = start(modes=False)
    result = run("registry", "import", file, "--schema-registry", target.url, "-o", "json")
    assert result.exit_code == 0
    assert "4 schemas have other ids than in all.jsonl" in result.stderr
    done = json.loads(result.stdout)
    assert done["ids_differ"] == 4
    memory = target.registry.memory
    assert memory.latest("b-key").id == 1, "the smallest id comes first"
    assert memory.schema_by_version("a-value", 1).id == 2
    assert [memory.schema_by_version("a-value", n).schema_text for n in (1, 2)] == [
        record("a"), record("a", "b"),
    ]  # fmt: skip
    assert memory.compatibility_level("a-value") == "BACKWARD", "after the history, which it would refuse"
    again = said("import", file, "--schema-registry", target.url)
    assert (again["registered"], again["kept"], again["ids_differ"]) == (0, 4, 4)


def test_a_history_that_the_targets_level_refuses_comes_in_whole(start: Start, file: str) -> None:
    target = start(modes=False)
    target.registry.memory.set_compatibility_level("FULL")
    assert said("import", file, "--schema-registry", target.url)["registered"] == 4
    assert target.registry.memory.compatibility_level("b-key") == "NONE", "as in the file"
    assert target.registry.memory.compatibility_level("a-value") == "BACKWARD"


def test_an_id_that_is_taken_is_told_with_the_way_out(start: Start, file: str) -> None:
    target = start()
    target.registry.memory.put(RegisteredSchema(300, record("other"), "z-value", 1))
    result = run("registry", "import", file, "--schema-registry", target.url)
    assert result.exit_code == 1
    assert "does not take id 300" in result.stderr
    assert "import with new ids, or into an empty registry" in " ".join(result.stderr.split())
    assert target.registry.importing == set(), "also after a failure"
    done = said("import", file, "--new-ids", "--schema-registry", target.url)
    assert done["ids_differ"] > 0
    assert target.registry.memory.versions("a-value")[-1] >= 2


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "holds no subjects"),
        ('{"id": 1, "schema": "x"}', "holds no subjects"),
        ('{"id": 1, "schema": "\\"int\\"", "subject": "s"}', "line 1 is none of an export"),
        ('{"id": 1, "schema": "\\"int\\"", "subject": "s", "version": 0}', "line 1 is none of an export"),
        (
            '{"id": 1, "schema": "\\"int\\"", "subject": "s", "version": 1}\n'
            '{"id": 2, "schema": "\\"int\\"", "subject": "s", "version": 1}',
            "line 2 contradicts an earlier one",
        ),
        ('{"id": 1, "schema": "\\"int\\"", "subject": "s", "version": 1, "level": "SOME"}', "'SOME' is not"),
        ("no json", "line 1 is no JSON"),
    ],
)
def test_a_file_that_is_none_is_wrong_use(tmp_path: Path, lines: str, words: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(lines, encoding="utf-8")
    result = run("registry", "import", str(file), "--schema-registry", "http://127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in " ".join(result.stderr.split())


def test_an_export_stands_in_for_a_registry(file: str, tmp_path: Path) -> None:
    assert [e["subject"] for e in said("list", "--schemas", file)["subjects"]] == [
        "a-value", "b-key", "b-value",
    ]  # fmt: skip
    shown = said("show", "a-value", "3", "--schemas", file)
    assert (shown["id"], shown["level"]) == (300, "BACKWARD")
    assert said("diff", "a-value", "--schemas", file)["compatible"]["BACKWARD"] is False
    ddl = tmp_path / "a.sql"
    ddl.write_text("CREATE TABLE shop.t (a INT PRIMARY KEY, c INT NOT NULL)")
    found = said(
        "check", "--table-definition", str(ddl), "--topic-rule", "a", "--schemas", file, code=1
    )["subjects"][1]  # fmt: skip
    assert (found["level"], found["latest"], found["live"]) == ("BACKWARD", {"id": 300, "version": 3}, None)


def test_decode_takes_an_export_as_its_schemas(start: Start, tmp_path: Path) -> None:
    server = start()
    memory = server.registry.memory
    memory.put(RegisteredSchema(257, json.dumps(KEY_SCHEMA), "shop_t-key", 1))
    memory.put(RegisteredSchema(258, json.dumps(VALUE_SCHEMA), "shop_t-value", 1))
    file = tmp_path / "all.jsonl"
    said("export", str(file), "--schema-registry", server.url)
    result = run(
        "decode", "--protocol", "avro", "--schemas", str(file), "--input", "-", "-o", "json",
        stdin=capture(KEY, VALUE),
    )  # fmt: skip
    assert json.loads(result.stdout)["after"]["id"] == 7


def test_an_export_that_may_be_cut_is_refused(start: Start, tmp_path: Path) -> None:
    server = start()
    for number in range(1000):
        server.registry.memory.put(RegisteredSchema(1, '"int"', f"s{number:04d}", 1))
    result = run("registry", "export", str(tmp_path / "x"), "--schema-registry", server.url)
    assert result.exit_code == 1
    assert "the export would be incomplete" in " ".join(result.stderr.split())
    assert not (tmp_path / "x").exists()
    named = said("export", str(tmp_path / "x"), "--subject", "s0007", "--schema-registry", server.url)
    assert named["schemas"] == 1
