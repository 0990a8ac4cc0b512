"""The broker, the registry and the databases as containers, where a Docker engine answers."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from tidesink.dev.stack import StackAddresses
from tidesink.sinks.targets.sql.location import Endpoint

_KAFKA: Final = "confluentinc/cp-kafka:7.9.0"
_APICURIO: Final = "apicurio/apicurio-registry:3.0.9"
_POSTGRES: Final = "postgres:16"
_MARIADB: Final = "mariadb:10.11"
_ENGINE_SECONDS: Final = 10
_START_SECONDS: Final = 120


@cache
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
    wait = HttpWaitStrategy(8080, f"{path}/subjects").with_startup_timeout(_START_SECONDS)
    registry = registry.waiting_for(wait)
    with contextlib.ExitStack() as started:
        # KafkaContainer has a limit of 30 s, which is little where other tests run.
        started.callback(kafka.stop)
        kafka.start(timeout=_START_SECONDS)
        started.enter_context(registry)
        host, port = registry.get_container_host_ip(), registry.get_exposed_port(8080)
        yield StackAddresses(kafka.get_bootstrap_server(), f"http://{host}:{port}{path}")


@contextlib.contextmanager
def container_postgres() -> Iterator[Endpoint]:
    """A Postgres server, gone afterwards."""
    environment = {"POSTGRES_HOST_AUTH_METHOD": "trust"}
    # The server that the image sets up with says so on stdout, the one that stays on stderr.
    ready, options = "ready to accept connections", ["-c", "wal_level=logical"]
    with _database(_POSTGRES, 5432, environment, ready, both=True, options=options) as (host, port):
        yield Endpoint(host, port, "postgres", "postgres", "")


@contextlib.contextmanager
def container_mariadb() -> Iterator[tuple[str, int]]:
    """The host and port of a MariaDB server, gone afterwards; root has no password."""
    environment = {"MARIADB_ALLOW_EMPTY_ROOT_PASSWORD": "1", "MARIADB_ROOT_HOST": "%"}
    options = ["--character-set-server=utf8mb4", "--local-infile=1", "--skip-log-bin"]
    # The server that the image sets up with has no port.
    with _database(_MARIADB, 3306, environment, r"port: 3306\b", options=options) as place:
        yield place


@contextlib.contextmanager
def _database(
    image: str,
    port: int,
    environment: Mapping[str, str],
    ready: str,
    *,
    both: bool = False,
    options: Sequence[str] = (),
) -> Iterator[tuple[str, int]]:
    """The host and port of a server that has logged ``ready``, on stdout and stderr if ``both``."""
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    server = DockerContainer(image).with_exposed_ports(port).with_envs(**environment)
    server = server.with_command([*options]) if options else server
    # Its argument ``times`` is without effect (testcontainers 4.15).
    wait = LogMessageWaitStrategy(ready, predicate_streams_and=both)
    with server.waiting_for(wait.with_startup_timeout(_START_SECONDS)):
        yield server.get_container_host_ip(), int(server.get_exposed_port(port))
