"""``tidesink init``: the config that it writes for each protocol and target, from what it is given."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.samples import run
from tests.unit.config.samples import CANAL_JSON, changed, wrong
from tidesink.cli.new_config import TargetType, topics_of
from tidesink.codecs import CODECS
from tidesink.config import load_config
from tidesink.config.targets import IcebergSettings, SqlSettings
from tidesink.dev.stack import Broker, Registry, start_of
from tidesink.schema_registry.naming import TopicRule

TYPES = [one.value for one in TargetType]


def _init(tmp_path: Path, *words: str) -> Path:
    """The file that init writes; no server is asked, for nothing listens on the port."""
    file = tmp_path / "t.yaml"
    result = run("init", str(file), "--force", "--brokers", "127.0.0.1:1", *words)
    assert result.exit_code == 0, result.stderr
    return file


@pytest.mark.parametrize("protocol", CODECS)
@pytest.mark.parametrize("kind", TYPES)
def test_each_target_has_a_section_that_is_right(tmp_path: Path, protocol: str, kind: str) -> None:
    file = _init(tmp_path, "--protocol", protocol, "--target-type", kind)
    assert load_config(file).target.type == kind
    assert "@" not in file.read_text().replace("@example", "")
    assert run("validate", str(file)).exit_code == 0


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("./lake", "delta"),
        ("s3a://bucket/lake", "delta"),
        ("postgresql://db:5433/shop", "postgres"),
        ("postgres://db/shop", "postgres"),
        ("mysql://db:3307", "mysql"),
        ("mariadb://db:3307", "mysql"),
        ("kafka://k1:9092,k2:9092", "kafka"),
        ("https://api.example.com/{schema}/{table}", "http"),
    ],
)
def test_the_scheme_of_a_url_chooses_the_type(tmp_path: Path, target: str, kind: str) -> None:
    assert load_config(_init(tmp_path, "--target", target)).target.type == kind


def test_a_type_and_a_url_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    words = ("--target", "postgresql://u:hunter2@db/shop", "--target-type", "delta")
    result = run("init", str(tmp_path / "t.yaml"), *words)
    assert result.exit_code == 2
    assert "--target-type postgres" in result.stderr
    assert "hunter2" not in result.stderr
    result = run("init", str(tmp_path / "t.yaml"), "--target", "./lake", "--target-type", "mysql")
    assert "such as mysql://" in result.stderr


def test_a_password_in_the_url_becomes_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://si%40nk:hunter2@db/shop?sslmode=require"
    file = tmp_path / "t.yaml"
    result = run("init", str(file), "--brokers", "127.0.0.1:1", "--target", url)
    assert result.exit_code == 0, result.stderr
    assert "set TARGET_PASSWORD" in result.stderr
    assert "target.tls" in result.stderr
    assert "hunter2" not in file.read_text() + result.stderr + result.stdout
    monkeypatch.setenv("TARGET_PASSWORD", "hunter2")
    settings = load_config(file).target
    assert isinstance(settings, SqlSettings)
    assert (settings.url, settings.user) == ("postgresql://db/shop", "si@nk")


def test_iceberg_is_a_folder_or_a_catalog(tmp_path: Path) -> None:
    def properties(*words: str) -> dict[str, str]:
        settings = load_config(_init(tmp_path, "--target-type", "iceberg", *words)).target
        assert isinstance(settings, IcebergSettings)
        return settings.catalog_values()

    assert properties() == {"type": "hadoop", "warehouse": str(tmp_path / "ice")}
    assert properties("--target", "https://c.example.com") == {
        "type": "rest",
        "uri": "https://c.example.com",
    }
    assert properties("--target", "s3://b/w")["warehouse"] == "s3://b/w"


@pytest.mark.parametrize("protocol", ["debezium-json", "debezium-avro"])
def test_debezium_has_its_own_words(tmp_path: Path, protocol: str) -> None:
    text = _init(tmp_path, "--protocol", protocol).read_text()
    assert "the topics of a Debezium connector" in text
    assert "<topic.prefix>.<database or schema>.<table>" in text
    assert "TiCDC" not in text
    assert "hangefeed" not in text


def test_a_list_of_topics_is_offered_where_it_is_taken(tmp_path: Path) -> None:
    for protocol in CODECS:
        text = _init(tmp_path, "--protocol", protocol).read_text()
        assert ("a list" in text.partition("\n  topics:")[0]) == (protocol != "flat-avro"), protocol
    assert "{name: shop.orders, topic: NAME}" in _init(tmp_path, "--protocol", "avro").read_text()


@pytest.mark.parametrize(
    ("names", "rules"),
    [
        (["inv.shop.orders", "inv.shop.customers", "__consumer_offsets"], ("inv.{schema}.{table}",)),
        (["a.b.shop.orders", "c.shop.customers"], ("a.b.{schema}.{table}", "c.{schema}.{table}")),
        (["inv", "schema-changes.inventory"], ("server1.{schema}.{table}",)),
    ],
)
def test_the_rule_follows_from_the_topics_that_are_there(names: list[str], rules: tuple[str, ...]) -> None:
    found = topics_of(names, "debezium-json")
    assert found is not None
    assert found.rules == rules
    assert "__consumer_offsets" not in found.comment
    assert names[0] in found.comment


@pytest.mark.parametrize(
    ("names", "rules", "shared"),
    [
        (
            ["a.shop.t", "b.shop.t", "b.shop.u", "c.x.y"],
            ("b.{schema}.{table}", "c.{schema}.{table}"),
            "a.shop.t",
        ),
        (["a.shop.t", "a.b.shop.t"], ("a.shop.t",), "a.b.shop.t"),
        (["a.shop.t", "a.shop.u", "a.b.shop.t"], ("a.shop.t", "a.shop.u"), "a.b.shop.t"),
    ],
)
def test_no_new_config_reads_a_table_twice(names: list[str], rules: tuple[str, ...], shared: str) -> None:
    found = topics_of(names, "debezium-json")
    assert found is not None
    assert found.rules == rules
    assert shared not in {name for rule in rules for name in names if TopicRule.parse(rule).matches(name)}
    assert f"and {shared} are topics of the same table" in found.notes[0]
    assert f"and {shared} are topics of the same table" in found.comment
    assert yaml.safe_load(f"{found.comment}  topics: {[*rules]}") == {"topics": [*rules]}


def test_no_topics_give_no_rule() -> None:
    assert topics_of(["__consumer_offsets"], "debezium-json") is None
    ticdc = topics_of(["shop_orders"], "canal-json")
    assert ticdc is not None
    assert ticdc.rules == ("{schema}_{table}",)


def _runs(directory: Path, broker: int, registry: int) -> None:
    """Pid files as ``dev up --dir`` leaves them; this process stands in for the services."""
    for files, port in ((Broker(directory, 0, 0).files, broker), (Registry(directory, 0).files, registry)):
        document = {"pid": os.getpid(), "started": start_of(os.getpid()), "port": port}
        files.directory.mkdir(parents=True, exist_ok=True)
        files.pid_file.write_text(json.dumps(document))


@pytest.mark.parametrize("words", [(), ("--dir", "stack")])
def test_the_servers_of_another_folder_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    _runs(tmp_path / "stack", 1, 2)
    result = run("init", *words)
    assert "runs in stack: 127.0.0.1:1, http://127.0.0.1:2" in result.stderr
    assert load_config(Path("tidesink.yaml")).source.brokers == ("127.0.0.1:1",)


def test_where_nothing_runs_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("init", "--dir", "nowhere")
    assert result.exit_code == 2
    assert "tidesink dev up --dir nowhere" in result.stderr
    result = run("init")
    assert result.exit_code == 0
    assert "the config names 127.0.0.1:9092" in result.stderr


@pytest.mark.parametrize(
    ("target", "field", "says"),
    [
        ({"path": "postgresql://u:hunter2@db/x"}, "target.path", "type: postgres"),
        ({"type": "delta", "path": "mysql://db"}, "target.path", "type: mysql"),
        ({"path": "kafka://k:1"}, "target.path", "target.brokers"),
        ({"path": "https://api/x"}, "target.path", "type: http"),
        (
            {"type": "iceberg", "catalog-properties": {"type": "hadoop", "warehouse": "postgresql://db/x"}},
            "target.catalog-properties",
            "type: postgres",
        ),
        ({"type": "mysql", "url": "postgresql://db/x", "user": "u"}, "target.url", "type: postgres"),
    ],
)
def test_a_url_as_a_path_is_refused_with_the_type_to_use(
    target: dict[str, Any], field: str, says: str
) -> None:
    problem = wrong(changed(CANAL_JSON, target=target))[field]
    assert says in str(problem)
    assert "hunter2" not in str(problem)
