"""Every option that a changefeed of the vectors was run with is accepted, as TiCDC spells it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import run
from tests.golden.vectors import find_folders, find_workloads


def configs(vectors: Path, codec: str) -> list[dict[str, Any]]:
    """The different configurations of one codec's records."""
    records = [record.config for folder in find_folders(vectors) for record in folder.rows(codec)]
    feeds = [workload.config for workload in find_workloads(vectors, codec)]
    return [json.loads(text) for text in sorted({json.dumps(config) for config in [*records, *feeds]})]


@pytest.mark.parametrize("codec", ["avro", "canal-json", "debezium", "debezium-avro"])
def test_the_producers_options_are_accepted(vectors: Path, schemas: str, codec: str) -> None:
    found = configs(vectors, codec)
    assert len(found) > 1
    for config in found:
        options = [f"--{name}={json.dumps(v) if isinstance(v, bool) else v}" for name, v in config.items()]
        result = run("decode", *options, "--schemas", schemas, "--input", "-", "-o", "json", stdin="")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", ""), config


@pytest.mark.parametrize("command", [("decode",), ("encode",), ("dev", "workload"), ("registry", "check")])
def test_help_shows_each_protocols_options_by_themselves(command: tuple[str, ...]) -> None:
    sections: dict[str, list[str]] = {}
    heading = ""
    for line in run(*command, "--help").stdout.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            heading = line[:-1]
        if line.startswith("  -"):
            words = [word for word in line.split() if word.startswith("--")]
            sections.setdefault(heading, []).append(words[0])
    assert "--help" in sections["Options"]
    shared = {"--enable-tidb-extension", "--time-zone", "--max-decompressed-bytes"}
    assert shared <= set(sections["Options of the changefeed"])
    assert "--avro-decimal-handling-mode" in sections["Options of flat-avro"]
    assert "--claim-check-raw-value" in sections["Options of canal-json"]
    assert "--time-precision-mode" in sections["Options of debezium"]
    named = [option for options in sections.values() for option in options]
    assert sorted(set(named)) == sorted(named), "an option stands in one place"
    assert len(sections["Options"]) < 20


@pytest.mark.parametrize(
    ("command", "protocol", "option", "users"),
    [
        ("decode", "canal-json", "--checksum=warn", "Only flat-avro uses it."),
        ("encode", "canal-json", "--keyspace=a", "Only flat-avro uses it."),
        ("decode", "debezium-json", "--content-compatible", "Only canal-json uses it."),
        ("encode", "canal-json", "--cluster-id=a", "Only debezium-json and debezium-avro use it."),
    ],
)
def test_an_option_without_effect_is_an_error_that_names_its_protocols(
    command: str, protocol: str, option: str, users: str
) -> None:
    result = run(command, "--protocol", protocol, option, "--input", "-", stdin="")
    name = option.partition("=")[0]
    assert result.exit_code == 2
    assert f"{name} has no effect with protocol {protocol}. {users} Remove {name}." in " ".join(
        result.stderr.split()
    )


def test_a_secret_from_the_environment_may_belong_to_another_protocol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDESINK_UPSTREAM_URL", "mysql+pymysql://reader@host/shop")
    result = run("decode", "--protocol", "debezium-json", "--input", "-", "-o", "json", stdin="")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
