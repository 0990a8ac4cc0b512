"""A one-node Apache Kafka (KRaft) on loopback."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tidesink.dev.ivy import broker_jars
from tidesink.dev.java import find_java
from tidesink.dev.ports import LOOPBACK
from tidesink.dev.processes import (
    READY_SECONDS,
    DaemonFiles,
    RunningDaemon,
    accepts,
    require_free_port,
    start_daemon,
)
from tidesink.errors import DevStackError
from tidesink.sinks.ivy import Progress

NAME: Final = "kafka"
_FORMATTING: Final = "formatting-"
# Kafka's word that a folder is formatted, and of which cluster.
_FORMATTED: Final = "meta.properties"
_CLUSTER: Final = "__cluster_metadata-0"
_PARTITION: Final = re.compile(r".+-\d+")
_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")

# Retention is off: a demo that is looked at again next week must not find its topics expired.
# 16 MiB messages: TiCDC's users raise max-message-bytes, and oversize values are tried here.
_PROPERTIES: Final = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
delete.topic.enable=true
log.retention.ms=-1
message.max.bytes=16777216
replica.fetch.max.bytes=16777216
log.cleaner.dedupe.buffer.size=16777216
num.network.threads=2
num.io.threads=4
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@dataclass(frozen=True)
class Broker:
    """The broker of one stack directory: its data stands in ``kafka/``, its pid and log in ``run/``."""

    directory: Path
    port: int
    controller_port: int

    @property
    def files(self) -> DaemonFiles:
        return DaemonFiles(NAME, self.directory / "run")

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def prepare(self, progress: Progress) -> None:
        """Fetch the jars, check the ports, and format the data folder when it is new.

        Raises DevStackError when one of these cannot be done.
        """
        jars = broker_jars(progress=progress)
        require_free_port(self.port, name="broker", option="--kafka-port")
        require_free_port(self.controller_port, name="broker's controller", option="--controller-port")
        self._data.mkdir(parents=True, exist_ok=True)
        self._write_properties(self._properties, self._data)
        if not (self._data / _FORMATTED).is_file():
            _require_no_topics(self._data.resolve())
            progress("kafka: formatting its storage")
            self._format(jars)

    def start(self, progress: Progress) -> RunningDaemon:
        """Start the process; it answers some seconds later."""
        progress(f"kafka: starting on {self.address}")
        return start_daemon(self.files, _java(broker_jars(), "kafka.Kafka", self._properties), port=self.port)

    def answers(self) -> bool:
        """True when the broker serves metadata, not only when its port is open."""
        return accepts(self.port) and _serves_metadata(self.address)

    @property
    def _data(self) -> Path:
        return self.directory / "kafka" / "data"

    @property
    def _properties(self) -> Path:
        return self.directory / "kafka" / "server.properties"

    def _write_properties(self, path: Path, data: Path) -> None:
        text = _PROPERTIES.format(
            host=LOOPBACK, port=self.port, controller_port=self.controller_port, data=data.resolve()
        )
        path.write_text(text, encoding="utf-8")

    def _format(self, jars: Path) -> None:
        """Make the storage apart and put it into the data folder.

        Kafka's tool outlives a killed ``up``: in a folder of its own it cannot meet the next one's.
        """
        for left in self._data.parent.glob(f"{_FORMATTING}*"):
            shutil.rmtree(left, ignore_errors=True)
        with TemporaryDirectory(
            prefix=_FORMATTING, dir=self._data.parent, ignore_cleanup_errors=True
        ) as folder:
            properties, data = Path(folder, "server.properties"), Path(folder, "data")
            self._write_properties(properties, data)
            _run_format(jars, properties)
            _put_in_place(data, self._data.resolve())


def _require_no_topics(data: Path) -> None:
    """A broker has been at work there where a partition is; formatting leaves one, without segments."""
    partitions = [child for child in data.iterdir() if _PARTITION.fullmatch(child.name) and child.is_dir()]
    if any(child.name != _CLUSTER or any(child.glob("*.log")) for child in partitions):
        raise DevStackError(
            f"{data} holds topics without the {_FORMATTED} they were written under: put that file back, or "
            "move what is there away to begin with an empty broker. Nothing was changed"
        )


def _put_in_place(formatted: Path, data: Path) -> None:
    """What says that the storage is whole comes last: without it the next ``up`` does all of this again."""
    try:
        for child in sorted(formatted.iterdir(), key=lambda child: child.name == _FORMATTED):
            _move(child, data / child.name)
    except OSError as exc:
        raise DevStackError(f"Kafka's new storage cannot be put into {data}: {exc}") from exc


def _move(child: Path, place: Path) -> None:
    """Whole or not at all, to another disk too; what an interrupted ``up`` left there goes."""
    part = place.with_name(f"{place.name}.part")
    for left in (part, place):
        if left.is_dir():
            shutil.rmtree(left)
    shutil.move(child, part)
    part.replace(place)


def _java(jars: Path, main: str, *arguments: str | Path) -> list[str]:
    return [str(find_java().path), "-Xmx512m", *_JVM, "-cp", f"{jars}/*", main, *map(str, arguments)]


def _run_format(jars: Path, properties: Path, seconds: float = READY_SECONDS) -> None:
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    command = _java(jars, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", properties)
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as exc:
        raise DevStackError(
            f"Kafka has not formatted its storage ({properties}) within {seconds:.0f} s; is the machine "
            "busy, or its disk full? Run the command again"
        ) from exc
    if answer.returncode:
        said = (answer.stderr + answer.stdout).strip()[-2000:]
        raise DevStackError(f"Kafka cannot format its storage ({properties}):\n{said}")


def _serves_metadata(address: str) -> bool:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    # Refused connections are what waiting looks like: no log lines for them.
    client = AdminClient({"bootstrap.servers": address, "log_level": 0, "socket.timeout.ms": 3000})
    try:
        return bool(client.list_topics(timeout=3).brokers)
    except KafkaException:
        return False
