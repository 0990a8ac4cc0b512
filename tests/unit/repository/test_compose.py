"""The container files, held to the Compose specification's schema and to what a worker needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import typer.main
from typer.core import TyperGroup

from tests.compose_files import COMPOSE, compose_file, env_example, service_environment, variables
from tidesink.cli.main import app
from tidesink.config import load_config
from tidesink.config.targets import DeltaSettings
from tidesink.dev.stack import KAFKA
from tidesink.sinks.spark.jvm import cache_directory

FILES: Final = ("stack.yaml", "worker.yaml")
OURS: Final = [("stack.yaml", "worker"), ("stack.yaml", "workload"), ("worker.yaml", "worker")]
_WHEEL: Final = "docker-compose==1.29.2"
_SCHEMA: Final = "compose/config/compose_spec.json"
# The specification got the project's name after this schema was published.
_LATER: Final = {"name": re.compile(r"[a-z0-9][a-z0-9_-]*")}


@pytest.fixture(scope="module")
def compose_schema() -> dict[str, Any]:
    """The Compose specification's JSON Schema, from the wheel of Compose's last Python version."""
    folder = cache_directory() / "wheels"
    wheels = sorted(folder.glob("docker_compose-1.29.2-*.whl"))
    if not wheels:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(folder),
            _WHEEL,
        ]
        subprocess.run(command, check=True)
        wheels = sorted(folder.glob("docker_compose-1.29.2-*.whl"))
    with zipfile.ZipFile(wheels[0]) as wheel:
        schema: dict[str, Any] = json.loads(wheel.read(_SCHEMA))
    return schema


@pytest.mark.servers
@pytest.mark.parametrize("name", FILES)
def test_follows_the_compose_specification(compose_schema: dict[str, Any], name: str) -> None:
    document = compose_file(name)
    for member, form in _LATER.items():
        assert form.fullmatch(document.pop(member))
    validator = jsonschema.Draft201909Validator(compose_schema)
    assert [f"{list(e.path)}: {e.message}" for e in validator.iter_errors(document)] == []


@pytest.mark.servers
def test_the_schema_sees_a_mistake(compose_schema: dict[str, Any]) -> None:
    """Guards the test above: a schema that allows all would pass it."""
    validator = jsonschema.Draft201909Validator(compose_schema)
    for broken in ({"services": {"a": {"imagge": "x"}}}, {"services": {"a": {"ports": "9092"}}}):
        assert not validator.is_valid(broken)


def test_env_example_has_every_variable_and_no_other() -> None:
    used = set().union(*(variables(name) for name in FILES))
    assert used == env_example().keys()


@pytest.mark.parametrize("name", FILES)
def test_ports_are_open_on_loopback_alone(name: str) -> None:
    ports = [port for service in compose_file(name)["services"].values() for port in service.get("ports", ())]
    assert [port for port in ports if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)] == []
    assert name != "stack.yaml" or len(ports) == 2


@pytest.mark.parametrize(("file", "name"), OURS)
def test_our_containers_can_do_little(file: str, name: str) -> None:
    service = compose_file(file)["services"][name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert int(service["stop_grace_period"].removesuffix("s")) >= 30
    assert not service.get("privileged")
    assert not service.get("network_mode")


@pytest.mark.parametrize(("file", "name"), OURS)
def test_lake_and_state_are_volumes(file: str, name: str) -> None:
    document = compose_file(file)
    mounts = [mount.split(":") for mount in document["services"][name]["volumes"]]
    named = {target: source for source, target, *_ in mounts}
    assert named["/var/lib/tidesink/lake"] == "lake"
    assert named["/var/lib/tidesink/state"] == "state"
    assert {"lake", "state"} <= document["volumes"].keys()
    config = COMPOSE / named["/etc/tidesink/tidesink.yaml"]
    assert config.is_file()
    assert ["ro"] in [mount[2:] for mount in mounts]


def test_every_service_waits_for_what_it_needs() -> None:
    services = compose_file("stack.yaml")["services"]
    for name in ("worker", "workload"):
        needs = services[name]["depends_on"]
        assert {needed: how["condition"] for needed, how in needs.items()} == {
            "broker": "service_healthy",
            "registry": "service_healthy",
        }
        assert all(services[needed]["healthcheck"]["test"] for needed in needs)


def test_the_servers_images_are_pinned() -> None:
    images = [service["image"] for service in compose_file("stack.yaml")["services"].values()]
    others = [image for image in images if not image.startswith("tidesink:")]
    assert len(others) == 2
    assert all(re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+", image) for image in others)


def test_the_workload_is_a_command_that_exists() -> None:
    command = compose_file("stack.yaml")["services"]["workload"]["command"]
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    dev = group.commands["dev"]
    assert isinstance(dev, TyperGroup)
    assert command[0] == "dev"
    context = dev.commands[command[1]].make_context("workload", list(command[2:]))
    assert context.params["brokers"] == "broker:19092"
    assert context.params["events"] == 20_000


def test_secrets_are_files() -> None:
    document = compose_file("worker.yaml")
    assert document["services"]["worker"]["secrets"] == list(document["secrets"])
    for name, secret in document["secrets"].items():
        assert secret == {"file": f"./secrets/{name}"}
    ignored = (COMPOSE / "secrets" / ".gitignore").read_text(encoding="utf-8").split()
    assert ignored == ["*", "!.gitignore"]
    names = [*env_example(), *service_environment("worker.yaml", "worker")]
    assert [name for name in names if re.search("PASSWORD|SECRET|TOKEN", name)] == []


_AVRO_ONLY: Final = (
    "SCHEMA_REGISTRY",
    "AVRO_DECIMAL_HANDLING_MODE",
    "AVRO_BIGINT_UNSIGNED_HANDLING_MODE",
)


def _config(tmp_path: Path, name: str) -> Path:
    """A config of the image with its secrets in a folder of the test's own."""
    text = (COMPOSE / "config" / name).read_text(encoding="utf-8")
    path = tmp_path / name
    path.write_text(text.replace("/run/secrets", str(tmp_path)), encoding="utf-8")
    return path


def _set(monkeypatch: pytest.MonkeyPatch, file: str, environment: dict[str, str]) -> None:
    for name, value in service_environment(file, "worker", environment).items():
        monkeypatch.setenv(name, value)


def test_the_stacks_config_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch, "stack.yaml", env_example())
    config = load_config(_config(tmp_path, "stack.yaml"))
    assert config.source.brokers == ("broker:19092",)
    assert config.spark.conf_values()["spark.driver.memory"] == "2g"
    assert isinstance(config.target, DeltaSettings)
    assert config.target.path == "/var/lib/tidesink/lake"


def test_the_workers_config_loads_with_logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kafka_password").write_text("k-secret\n", encoding="utf-8")
    (tmp_path / "registry_password").write_text("r-secret\n", encoding="utf-8")
    _set(monkeypatch, "worker.yaml", env_example())
    config = load_config(_config(tmp_path, "worker.yaml"))
    properties = config.source.confluent_properties()
    assert properties["sasl.password"] == "k-secret"
    assert properties["sasl.mechanism"] == "SCRAM-SHA-256"
    assert "secret" not in repr(config)
    assert config.source.codec_options().enable_tidb_extension


@pytest.mark.parametrize("protocol", ["flat-avro", "canal-json"])
def test_the_same_config_loads_without_logins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    for name in ("kafka_password", "registry_password"):
        (tmp_path / name).touch()
    empty = dict.fromkeys(("KAFKA_SASL_MECHANISM", "KAFKA_USERNAME", "REGISTRY_USERNAME"), "")
    chosen = {"PROTOCOL": protocol, "KAFKA_SECURITY_PROTOCOL": "PLAINTEXT", **empty}
    if protocol == "canal-json":
        chosen |= dict.fromkeys(_AVRO_ONLY, "")
    _set(monkeypatch, "worker.yaml", {**env_example(), **chosen})
    config = load_config(_config(tmp_path, "worker.yaml"))
    assert "sasl.password" not in config.source.confluent_properties()
    assert (config.source.schema_registry is None) == (protocol == "canal-json")


@pytest.mark.parametrize("name", ["BROKERS", "TOPICS"])
def test_what_has_no_default_is_asked_for(name: str) -> None:
    with pytest.raises(KeyError, match=f"set {name} in .env"):
        compose_file("worker.yaml", {**env_example(), name: ""})


def _dockerfile() -> dict[str, list[str]]:
    """The instructions of the last stage and of the one it is made from, by name."""
    text = (COMPOSE / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    assert text[text.rindex("\nFROM") :].startswith("\nFROM base\n")
    base = text.partition(" AS base\n")[2].partition("\nFROM")[0]
    found: dict[str, list[str]] = {}
    for line in (base + text[text.rindex("\nFROM") :]).splitlines():
        instruction, _, rest = line.partition(" ")
        if instruction.isupper():
            found.setdefault(instruction, []).append(rest.strip())
    return found


def test_the_image_runs_as_nobody_special() -> None:
    image = _dockerfile()
    assert image["USER"] == ["10001"]
    installed = " ".join(image["RUN"])
    assert "useradd --uid 10001 --gid 0" in installed
    assert "-g root -m 0775 /var/lib/tidesink/lake /var/lib/tidesink/state" in installed


def test_the_image_has_java_tini_and_the_jars() -> None:
    image = _dockerfile()
    copied = " ".join(image["COPY"])
    for folder in ("/opt/java", "/opt/tidesink", "/opt/tidesink-cache"):
        assert f"--from=dependencies {folder} {folder}" in copied
    assert "tini" in " ".join(image["RUN"])
    assert json.loads(image["ENTRYPOINT"][0]) == ["tini", "--", "entrypoint.sh"]
    assert json.loads(image["CMD"][0]) == ["run"]
    assert image["STOPSIGNAL"] == ["SIGTERM"]


def test_the_image_has_the_drivers_of_every_target() -> None:
    text = (COMPOSE / "Dockerfile").read_text(encoding="utf-8")
    (extras,) = re.findall(r'"/src\[([\w,-]+)\]"', text)
    assert set(extras.split(",")) == {"spark", "postgres", "mysql", "large-messages"}


def test_a_change_of_the_sources_leaves_the_layers_of_the_dependencies() -> None:
    """The stages before the last two copy no more of the sources than what starts Spark."""
    text = (COMPOSE / "Dockerfile").read_text(encoding="utf-8")
    dependencies = text.partition("AS dependencies")[2].partition("\nFROM")[0]
    copied = [line.split()[1] for line in dependencies.splitlines() if line.startswith("COPY ")]
    assert copied == [
        "compose/certificates/",
        "pyproject.toml",
        "tidesink/__init__.py",
        "tidesink/errors.py",
        "tidesink/sinks/__init__.py",
        "tidesink/sinks/spark",
    ]


def test_compose_and_the_local_stack_have_one_broker() -> None:
    image = compose_file("stack.yaml")["services"]["broker"]["image"]
    (broker,) = (one for one in KAFKA.modules if one.name == "kafka_2.13")
    assert image == f"apache/kafka:{broker.version}"


def test_the_image_is_asked_for_its_health() -> None:
    image = _dockerfile()
    (health,) = image["HEALTHCHECK"]
    assert health.endswith('CMD ["healthcheck.sh"]')
    assert image["EXPOSE"] == ["9464"]
    options = dict(re.findall(r"--([\w-]+)=(\d+)s", health))
    assert int(options["start-period"]) >= 60, "Spark needs its time to start"


def test_scripts_of_the_image_are_there_and_may_run() -> None:
    (scripts,) = [line for line in _dockerfile()["COPY"] if line.endswith("/usr/local/bin/")]
    for name in scripts.split()[:-1]:
        path = COMPOSE.parent / name
        assert os.access(path, os.X_OK), name
        assert path.read_text(encoding="utf-8").startswith("#!/bin/sh\n")


def test_the_build_context_leaves_secrets_out() -> None:
    ignored = (COMPOSE.parent / ".dockerignore").read_text(encoding="utf-8").split()
    assert {"compose/secrets", "compose/.env", ".git", ".venv", ".tidesink"} <= set(ignored)
    kept_out = (COMPOSE.parent / ".gitignore").read_text(encoding="utf-8").split()
    assert {"compose/.env", "compose/certificates/*.crt"} <= set(kept_out)


def test_the_docs_name_every_command_of_the_image() -> None:
    text = (COMPOSE.parent / "docs" / "containers.md").read_text(encoding="utf-8")
    for name in FILES:
        assert f"docker compose -f compose/{name}" in text
