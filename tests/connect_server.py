"""Kafka Connect with one of Debezium's connectors, for tests of a live changefeed.

Its jars come by Ivy, as the broker's do; Connect is a daemon like them.
"""

from __future__ import annotations

import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import requests

from tests.absent import without_server
from tests.servers import kill_daemon
from tidesink.dev.stack import DaemonFiles, free_ports, start_daemon, stop_daemons, unpack
from tidesink.errors import DevStackError
from tidesink.sinks.spark.jvm import Archive, Coordinate, JarSet, fetch, find_java

_CONNECT: Final = JarSet(
    "kafka-connect",
    (
        Coordinate("org.apache.kafka", "connect-runtime", "4.3.1"),
        Coordinate("org.apache.kafka", "connect-json", "4.3.1"),
        Coordinate("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
)
_VERSION: Final = "3.5.0.Final"
# What Connect has itself: a second one would be loaded beside it, and is no plugin to look for.
_OWN: Final = ("kafka-clients", "connect-api", "connect-json", "slf4j-api", "lz4", "zstd", "snappy")
_PROPERTIES: Final = """bootstrap.servers={brokers}
group.id={name}
listeners=http://127.0.0.1:{port}
plugin.path={plugins}
plugin.discovery=service_load
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
config.storage.topic={name}.configs
offset.storage.topic={name}.offsets
offset.storage.partitions=1
status.storage.topic={name}.status
status.storage.partitions=1
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.flush.interval.ms=1000
"""
_SECONDS: Final = 240


def _plugins(database: str) -> Path:
    """The folder that has the connector's."""
    debezium = JarSet(
        f"debezium-{database}",
        (Coordinate("io.debezium", f"debezium-connector-{database}", _VERSION),),
        archive=Archive("tar.gz", "plugin"),
    )

    def finish(folder: Path) -> None:
        for archive in folder.glob("*.tar.gz"):
            with tarfile.open(archive) as tar:
                unpack(tar, folder)
            archive.unlink()
        for jar in folder.rglob("*.jar"):
            if jar.name.startswith(_OWN):
                jar.unlink()

    return fetch(debezium, finish=finish)


class Connect:
    """A running Connect; ``url`` is its API's."""

    def __init__(self, files: DaemonFiles, command: Sequence[str], port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._files, self._command, self._port = files, command, port

    def start(self) -> None:
        """Start the process, and wait until it answers. Connectors that it had go on."""
        start_daemon(self._files, self._command, port=self._port)
        _wait_until(self._answers, "Kafka Connect does not answer")

    def kill(self) -> bool:
        """SIGKILL to the process, which is started again."""
        kill_daemon(self._files)
        self.start()
        return True

    def _answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/connectors", timeout=5).ok
        except requests.RequestException:
            return False

    def restart_failed(self, name: str) -> None:
        """As a person does when a connector has given up: those of its tasks that failed start again."""
        path = f"{self.url}/connectors/{name}/restart?includeTasks=true&onlyFailed=true"
        requests.post(path, timeout=60)

    def create(self, name: str, properties: Mapping[str, str]) -> None:
        """Start a connector, and wait until its task runs."""
        answer = requests.post(
            f"{self.url}/connectors", json={"name": name, "config": dict(properties)}, timeout=60
        )
        assert answer.ok, answer.text
        _wait_until(lambda: self._states(name) == ["RUNNING", "RUNNING"], f"{name} does not run")

    def _states(self, name: str) -> list[str]:
        answer = requests.get(f"{self.url}/connectors/{name}/status", timeout=60)
        if not answer.ok:
            return []
        found = answer.json()
        states = [found["connector"]["state"], *(task["state"] for task in found["tasks"])]
        assert "FAILED" not in states, found
        return states

    def delete(self, name: str) -> None:
        """Stop a connector."""
        requests.delete(f"{self.url}/connectors/{name}", timeout=60)


def _wait_until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.2)


@contextmanager
def connect_server(brokers: str, directory: Path, name: str, database: str) -> Iterator[Connect]:
    """Kafka Connect on a free port, with the connector of a ``database``; stopped at the end."""
    try:
        jars, plugins = fetch(_CONNECT), _plugins(database)
    except DevStackError as error:
        without_server(f"Kafka Connect cannot be had here: {error}")
    (port,) = free_ports(1)
    properties = directory / "connect.properties"
    properties.write_text(
        _PROPERTIES.format(brokers=brokers, port=port, plugins=plugins, name=name), encoding="utf-8"
    )
    files = DaemonFiles("connect", directory)
    command = [
        str(find_java().path), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Duser.timezone=UTC",
        "-cp", f"{jars}/*", "org.apache.kafka.connect.cli.ConnectDistributed", str(properties),
    ]  # fmt: skip
    connect = Connect(files, command, port)
    try:
        connect.start()
        yield connect
    finally:
        stop_daemons([files])
