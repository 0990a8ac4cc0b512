"""What an operator and a container platform rely on, with the image and a real engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from tests.certificates import self_signed
from tests.compose_files import COMPOSE
from tests.image.engine import IMAGE, Container, beside_the_stack, docker, is_right, wait

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.timeout(3600)]

_MOST_BYTES: Final = 1_200_000_000
# Seconds: less than retry.for, which is five minutes.
_AT_ONCE: Final = 240
# Kubernetes' way: only /tmp and the volumes can be written.
_STRICT: Final = (
    "--read-only",
    "--tmpfs=/tmp",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--memory=2g",
    "--env=LANG=C",
    "--env=LC_ALL=C",
    "--env=TZ=America/New_York",
)
_DRAIN: Final = ("run", "--until", "drained")


def _inspect(name: str, field: str) -> str:
    return docker("inspect", name, "--format", f"{{{{{field}}}}}").strip()


def test_every_value_is_right_and_the_engine_calls_the_worker_healthy(stack: str) -> None:
    is_right(stack)
    wait(lambda: _inspect(stack, ".State.Health.Status") == "healthy")
    assert _inspect(stack, ".RestartCount") == "0"


def test_the_endpoints_answer_from_outside(stack: str) -> None:
    address = _inspect(stack, "range .NetworkSettings.Networks}}{{.IPAddress}}{{end")
    for path, wanted in (("healthz", "ok"), ("readyz", "ok"), ("metrics", "tidesink_batches_total")):
        with urlopen(f"http://{address}:9464/{path}", timeout=10) as answer:
            assert wanted in answer.read().decode()


def test_spark_starts_from_the_archive_of_its_classes(stack: str) -> None:
    assert Container(stack).runs(
        "sh", "-c", r"grep -q '/opt/tidesink-cache/classes/.*\.jsa' /proc/[0-9]*/maps"
    )


def test_sigterm_ends_it_with_0_and_every_line_of_the_log_is_json(stack: str) -> None:
    docker("stop", "--time", "60", stack)
    assert _inspect(stack, ".State.ExitCode") == "0"
    lines = [json.loads(line) for line in docker("logs", stack).splitlines()]
    assert lines
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)
    docker("start", stack)


@pytest.mark.usefixtures("stack")
def test_nothing_but_tmp_and_the_volumes_is_writable_in_another_locale_and_zone() -> None:
    with beside_the_stack(*_STRICT, command=_DRAIN) as worker:
        assert worker.code() == 0, worker.logs()
        is_right(worker.name)


@pytest.mark.usefixtures("stack")
def test_a_user_without_an_account() -> None:
    with beside_the_stack(*_STRICT, "--user=123456:0", command=_DRAIN) as worker:
        assert worker.code() == 0, worker.logs()
        is_right(worker.name)


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize(
    ("folder", "code", "said"),
    [
        ("state", 1, "The state store /var/lib/tidesink/state/state.db cannot be used"),
        ("lake", 2, "target.path /var/lib/tidesink/lake cannot be used (Permission denied)"),
    ],
)
def test_a_volume_that_cannot_be_written_ends_it_at_once(
    tmp_path: Path, folder: str, code: int, said: str
) -> None:
    tmp_path.chmod(0o755)  # of the user who runs the test, root
    with beside_the_stack(f"--volume={tmp_path}:/var/lib/tidesink/{folder}") as worker:
        assert worker.code(_AT_ONCE) == code
        assert said in worker.logs()
        assert "Traceback" not in worker.logs()


@pytest.mark.usefixtures("stack")
def test_sigterm_while_spark_starts_is_no_error() -> None:
    with beside_the_stack() as worker:
        wait(lambda: worker.kill_java("0"))
        docker("kill", "--signal=TERM", worker.name)
        assert worker.code() in (0, 143)
        assert "Traceback" not in worker.logs()
        assert "KeyboardInterrupt" not in worker.logs()


@pytest.mark.usefixtures("stack")
def test_a_jvm_that_is_killed_while_idle_ends_it_with_the_cause() -> None:
    with beside_the_stack("--memory=1200m") as worker:
        wait(lambda: worker.runs("sh", "-c", "tidesink status | grep -q IDLE"))
        assert worker.kill_java("KILL")
        assert worker.code() == 1
        assert "spark.driver.memory sets Spark's heap to 1.0 GiB" in worker.logs()
        assert "Spark's JVM was killed" in worker.logs()
        assert "Traceback" not in worker.logs()


def test_the_image_says_what_it_is_and_is_small() -> None:
    labels = json.loads(docker("inspect", IMAGE, "--format", "{{json .Config.Labels}}"))
    assert labels["org.opencontainers.image.title"] == "tidesink"
    assert labels["org.opencontainers.image.version"]
    assert int(_inspect(IMAGE, ".Size")) < _MOST_BYTES
    cat = ("run", "--rm", "--pull=never", "--entrypoint=cat")
    sbom = json.loads(docker(*cat, IMAGE, "/opt/tidesink/sbom.cdx.json"))
    assert {"pyspark", "pyarrow", "confluent-kafka"} <= {one["name"] for one in sbom["components"]}


def test_java_trusts_the_authorities_of_the_system() -> None:
    keytool = ("--entrypoint=keytool", IMAGE, "-list", "-cacerts", "-storepass", "changeit")
    said = docker("run", "--rm", "--pull=never", "--network=none", *keytool)
    # So the hook of update-ca-certificates names them; those of the JDK have other names.
    assert said.count("\ndebian:") > 50


def test_clients_of_http_trust_the_authorities_of_the_system() -> None:
    ask = "import requests; print(requests.Session().merge_environment_settings('', {}, None, True, None))"
    said = docker("run", "--rm", "--pull=never", "--network=none", "--entrypoint=python", IMAGE, "-c", ask)
    assert "'verify': '/etc/ssl/certs/ca-certificates.crt'" in said


def test_an_authority_of_your_own_is_trusted(tmp_path: Path) -> None:
    """Builds the first stage, which has what the worker's image trusts."""
    folder = tmp_path / "compose" / "certificates"
    folder.mkdir(parents=True)
    authority = self_signed(tmp_path).read_text("ascii").partition("-----BEGIN PRIVATE")[0]
    (folder / "own.crt").write_text(authority, encoding="ascii")
    name = "tidesink-check:own"
    file = str(COMPOSE / "Dockerfile")
    docker("build", "--target", "base", "-t", name, "-f", file, str(tmp_path))
    try:
        trusted = docker("run", "--rm", "--pull=never", name, "cat", "/etc/ssl/certs/ca-certificates.crt")
        assert authority.strip() in trusted
    finally:
        docker("rmi", name)
