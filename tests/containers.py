"""The broker and the registry as containers, where a Docker engine answers."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Final

from tidesink.dev.stack import StackAddresses

_KAFKA: Final = "confluentinc/cp-kafka:7.9.0"
_APICURIO: Final = "apicurio/apicurio-registry:3.0.9"
_ENGINE_SECONDS: Final = 10


def engine_answers() -> bool:
    """True when a Docker engine can be reached, not only its client program."""
    if shutil.which("docker") is None:
        return False
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        subprocess.run(command, capture_output=True, timeout=_ENGINE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


@contextlib.contextmanager
def container_stack() -> Iterator[StackAddresses]:
    """A broker and a registry with the same limits as the local stack, gone afterwards."""
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import HttpWaitStrategy

    try:
        from testcontainers.community.kafka import KafkaContainer
    except ModuleNotFoundError:  # before 4.15
        from testcontainers.kafka import KafkaContainer

    kafka = KafkaContainer(_KAFKA).with_kraft()
    for name, value in {"AUTO_CREATE_TOPICS_ENABLE": "false", "MESSAGE_MAX_BYTES": "16777216"}.items():
        kafka = kafka.with_env(f"KAFKA_{name}", value)
    path = "/apis/ccompat/v7"
    registry = DockerContainer(_APICURIO).with_exposed_ports(8080)
    registry = registry.waiting_for(HttpWaitStrategy(8080, f"{path}/subjects"))
    with kafka, registry:
        host, port = registry.get_container_host_ip(), registry.get_exposed_port(8080)
        yield StackAddresses(kafka.get_bootstrap_server(), f"http://{host}:{port}{path}")
