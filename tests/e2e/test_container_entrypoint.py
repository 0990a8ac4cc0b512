"""The image's own entry point and health check, run as plain processes with the container's environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.compose_files import COMPOSE, service_environment
from tests.full import FULL
from tidesink.codecs.base import CodecOptions
from tidesink.dev.lake_check import check_table
from tidesink.dev.shop import ExpectedTable, load_expected
from tidesink.dev.stack import StackAddresses, free_ports
from tidesink.dev.workload import WorkloadOptions, write_workload
from tidesink.schema_registry import open_registry

pytestmark = [pytest.mark.servers, pytest.mark.spark]

_SECONDS: Final = 300


@pytest.fixture
def container(tmp_path: Path, kafka_stack: StackAddresses, topic_prefix: str) -> dict[str, str]:
    """The worker's environment in stack.yaml, with this machine's places in the container's stead."""
    config = (COMPOSE / "config" / "stack.yaml").read_text(encoding="utf-8")
    config = config.replace("/var/lib/tidesink", str(tmp_path)).replace(
        "{schema}", f"{topic_prefix}_{{schema}}"
    )
    (tmp_path / "tidesink.yaml").write_text(config, encoding="utf-8")
    (tmp_path / "state").mkdir()
    return {
        **os.environ,
        **service_environment("stack.yaml", "worker"),
        "BROKERS": kafka_stack.brokers,
        "SCHEMA_REGISTRY": kafka_stack.registry_url,
        "SPARK_DRIVER_MEMORY": "1g",
        "TIDESINK_CONFIG": str(tmp_path / "tidesink.yaml"),
        "TIDESINK_METRICS_PORT": str(free_ports(1)[0]),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def _write(container: dict[str, str], tmp_path: Path, prefix: str) -> list[ExpectedTable]:
    options = WorkloadOptions(
        brokers=container["BROKERS"],
        expected=tmp_path / "expected.json",
        topic_rule=f"{prefix}_{{schema}}_{{table}}",
        registry=open_registry(container["SCHEMA_REGISTRY"]),
        codec=CodecOptions(enable_tidb_extension=True),
        events=300,
        partitions=2,
    )
    write_workload(options)
    assert options.registry is not None
    options.registry.close()
    return load_expected(options.expected)


@contextmanager
def _started(container: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [str(COMPOSE / "entrypoint.sh"), *arguments],
        env=container,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _healthy(container: dict[str, str]) -> bool:
    check = subprocess.run(
        [str(COMPOSE / "healthcheck.sh")], env=container, capture_output=True, text=True, check=False
    )
    assert check.returncode in (0, 1), check.stderr
    return check.returncode == 0


def _wait(until: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not until():
        if process.poll() is not None:
            pytest.fail(f"the worker ended:\n{process.communicate()[0][-4_000:]}")
        assert time.monotonic() < deadline
        time.sleep(1)


@FULL
def test_works_is_healthy_and_ends_on_sigterm(
    container: dict[str, str], tmp_path: Path, topic_prefix: str
) -> None:
    expected = _write(container, tmp_path, topic_prefix)

    def drained() -> bool:
        lake = tmp_path / "lake" / "shop"
        return all(check_table(lake / table.table.name, table).right for table in expected)

    assert not _healthy(container)
    with _started(container, "run") as process:
        _wait(drained, process)
        assert _healthy(container)
        process.send_signal(signal.SIGTERM)  # to process 1 alone, as an engine stops a container
        said, _ = process.communicate(timeout=_SECONDS)
        assert process.returncode == 0, said
        assert "shop: stopped after" in said
    assert not _healthy(container)


@FULL
def test_is_unhealthy_once_it_is_killed(container: dict[str, str], tmp_path: Path) -> None:
    with _started(container, "run") as process:
        _wait(lambda: _healthy(container), process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not _healthy(container)


def test_a_wrong_config_ends_it_before_spark_starts(container: dict[str, str]) -> None:
    with _started(container | {"BROKERS": "not a broker"}) as process:
        said, _ = process.communicate(timeout=_SECONDS)
    assert process.returncode == 2
    assert "source.brokers" in said


def test_other_arguments_are_tidesink_commands(container: dict[str, str]) -> None:
    with _started(container, "status", "-o", "json") as process:
        said, _ = process.communicate(timeout=_SECONDS)
    status = json.loads(said)
    assert process.returncode == 0
    assert (status["pipeline"], status["worker"]["alive"], status["tables"]) == ("shop", False, [])
