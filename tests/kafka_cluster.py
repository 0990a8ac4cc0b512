"""Two Kafka brokers and their controller: one broker can be stopped while the other leads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from tests.servers import kill_daemon
from tidesink.dev.stack import (
    Broker,
    DaemonFiles,
    _format,
    _java,
    broker_jars,
    find_running,
    free_ports,
    stop_daemons,
)

_CONTROLLER: Final = 3
_HOST: Final = "127.0.0.1"
# One copy of a partition is enough to take records, and a copy that lacks some may lead.
_PROPERTIES: Final = """process.roles={role}
node.id={node}
controller.quorum.voters={controller}@{host}:{controller_port}
controller.listener.names=CONTROLLER
listeners={listener}://{host}:{port}
advertised.listeners={listener}://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
{more}
log.dirs={data}
auto.create.topics.enable=false
min.insync.replicas=1
unclean.leader.election.enable=true
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
replica.lag.time.max.ms=3000
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
"""


@dataclass(frozen=True)
class _Node(Broker):
    """A process of the cluster: the controller, or a broker."""

    node: int = 0

    def prepare(self, progress: Callable[[str], None]) -> None:
        """As ``Service``."""
        jars = broker_jars(progress=progress)
        self._data.mkdir(parents=True, exist_ok=True)
        leads = self.node == _CONTROLLER
        self._properties.write_text(
            _PROPERTIES.format(
                role="controller" if leads else "broker",
                node=self.node,
                controller=_CONTROLLER,
                host=_HOST,
                controller_port=self.controller_port,
                listener="CONTROLLER" if leads else "PLAINTEXT",
                port=self.controller_port if leads else self.port,
                more="" if leads else "inter.broker.listener.name=PLAINTEXT",
                data=self._data.resolve(),
            ),
            encoding="utf-8",
        )
        _format(jars, self._properties)

    def command(self) -> list[str]:
        """As ``Service``."""
        return _java(broker_jars(), "kafka.Kafka", self._properties)


class TwoBrokers:
    """Brokers 1 and 2. Used as the test wants: each is started and killed by its number."""

    def __init__(self, folder: Path) -> None:
        first, second, controller = free_ports(3)
        ports = {1: first, 2: second, _CONTROLLER: controller}
        self._nodes = {
            number: _Node(folder / str(number), port, controller, node=number)
            for number, port in ports.items()
        }
        self.brokers = f"{_HOST}:{first},{_HOST}:{second}"

    def start(self, *numbers: int) -> None:
        """Start brokers that do not run, and wait until they answer."""
        for number in numbers:
            self._nodes[number].start(lambda _text: None)
        for number in numbers:
            until(self._nodes[number].answers, f"broker {number} does not answer")

    def kill(self, number: int) -> None:
        """End a broker at once, as a crash does."""
        kill_daemon(self._nodes[number].files)

    def make_topic(self, name: str, *, replicas: Sequence[Sequence[int]] = ((1, 2),)) -> None:
        """A topic with the given brokers for each partition; the first one leads as long as it runs."""
        admin = AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})
        assigned = [[*numbers] for numbers in replicas]
        topic = NewTopic(name, num_partitions=len(assigned), replica_assignment=assigned)
        admin.create_topics([topic])[name].result()
        self.await_leader(name, assigned[0][0])

    def await_leader(self, topic: str, number: int, *, followers: int | None = None) -> None:
        """Wait until a broker leads the topic's partition; ``followers``: as many copies are in sync."""

        def holds() -> bool:
            admin = AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})
            found = admin.list_topics(topic, timeout=60).topics[topic].partitions.get(0)
            return (
                found is not None
                and found.leader == number
                and (followers is None or len(found.isrs) == followers)
            )

        until(holds, f"broker {number} does not lead {topic}")

    def files(self) -> list[DaemonFiles]:
        """Of all processes."""
        return [node.files for node in self._nodes.values()]

    def up(self) -> None:
        """Start all of it."""
        for node in self._nodes.values():
            node.prepare(lambda _text: None)
        self._nodes[_CONTROLLER].start(lambda _text: None)
        self.start(1, 2)

    def down(self) -> None:
        """End what runs."""
        stop_daemons([files for files in self.files() if find_running(files) is not None])


@contextmanager
def two_brokers(folder: Path) -> Iterator[TwoBrokers]:
    """A cluster that is down afterwards, whatever happens."""
    cluster = TwoBrokers(folder)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


def until(holds: Callable[[], bool], otherwise: str) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)
