"""A real broker and a real registry for the tests, once a session.

``TIDESINK_TEST_BROKERS`` and ``TIDESINK_TEST_REGISTRY`` name running ones to use instead; else containers
where a Docker engine answers, else the local stack on free ports.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tests.containers import container_stack, engine_answers
from tidesink.dev.stack import (
    DaemonFiles,
    DevStack,
    StackAddresses,
    find_running,
    free_ports,
    stop_daemons,
)


@pytest.fixture(scope="session")
def kafka_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackAddresses]:
    """Addresses of a broker and a registry that answer."""
    brokers, registry = (os.environ.get(f"TIDESINK_TEST_{name}") for name in ("BROKERS", "REGISTRY"))
    if brokers and registry:
        yield StackAddresses(brokers, registry)
    elif engine_answers():
        with container_stack() as addresses:
            yield addresses
    else:
        with local_stack(tmp_path_factory.mktemp("stack")) as stack:
            yield stack.addresses


@pytest.fixture(scope="session")
def brokers(kafka_stack: StackAddresses) -> str:
    """``bootstrap.servers`` of the session's broker."""
    return kafka_stack.brokers


@pytest.fixture(scope="session")
def registry_url(kafka_stack: StackAddresses) -> str:
    """Base URL of the session's schema registry."""
    return kafka_stack.registry_url


@pytest.fixture
def topic_prefix() -> str:
    """A prefix for topic and subject names that no other test has."""
    return f"t{uuid.uuid4().hex[:10]}"


@contextmanager
def local_stack(directory: Path) -> Iterator[DevStack]:
    """The local stack on free ports, down afterwards whatever happens."""
    kafka_port, controller_port, registry_port = free_ports(3)
    stack = DevStack(
        directory, kafka_port=kafka_port, controller_port=controller_port, registry_port=registry_port
    )
    try:
        stack.up()
        yield stack
    finally:
        stack.down()


def kill_daemon(files: DaemonFiles) -> None:
    """SIGKILL to a daemon, and wait until it is gone."""
    running = find_running(files)
    assert running is not None, f"{files.name} does not run"
    os.killpg(running.pid, signal.SIGKILL)
    stop_daemons([files])


def create_topics(brokers: str, partitions: Mapping[str, int]) -> None:
    """Create topics and wait until the broker has them."""
    admin = AdminClient({"bootstrap.servers": brokers})
    topics = [
        NewTopic(name, num_partitions=count, replication_factor=1) for name, count in partitions.items()
    ]
    for future in admin.create_topics(topics, operation_timeout=120).values():
        future.result()
    # The controller answers before the broker has heard.
    _wait_until(lambda: _led(admin, partitions), f"not all of {', '.join(partitions)} came")


def add_partitions(brokers: str, topic: str, count: int) -> None:
    """Give a topic more partitions, ``count`` in all, and wait until the broker has them."""
    admin = AdminClient({"bootstrap.servers": brokers})
    for future in admin.create_partitions([NewPartitions(topic, count)]).values():
        future.result(120)
    _wait_until(lambda: _led(admin, {topic: count}), f"{topic} has not {count} partitions")


def _led(admin: AdminClient, partitions: Mapping[str, int]) -> bool:
    """Whether the broker shows topics with all their partitions, each with a leader."""
    found = admin.list_topics(timeout=60).topics
    return all(
        name in found
        and len(found[name].partitions) == count
        and all(one.leader >= 0 for one in found[name].partitions.values())
        for name, count in partitions.items()
    )


def delete_topic(brokers: str, topic: str) -> None:
    """Delete a topic and wait until the broker shows it no more."""
    admin = AdminClient({"bootstrap.servers": brokers})
    for future in admin.delete_topics([topic], operation_timeout=120).values():
        future.result()
    _wait_until(lambda: topic not in admin.list_topics(timeout=60).topics, f"{topic} is still there")


def limit_messages(brokers: str, topic: str, most: int) -> None:
    """Set a topic's ``max.message.bytes`` and wait until the broker goes by it."""
    admin, name = AdminClient({"bootstrap.servers": brokers}), "max.message.bytes"
    entry = ConfigEntry(name, str(most), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    _wait_until(
        lambda: admin.describe_configs([asked])[asked].result()[name].value == str(most),
        f"{topic} has another {name}",
    )


def _wait_until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 240
    while not _answered(holds):
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def _answered(holds: Callable[[], bool]) -> bool:
    """Whether it holds. A broker that a busy machine keeps from answering is asked again."""
    try:
        return holds()
    except KafkaException as exc:
        if exc.args[0].code() not in {KafkaError._TRANSPORT, KafkaError._TIMED_OUT}:
            raise
        return False


def clean_at_once(brokers: str) -> None:
    """Have the broker look for logs to compact ten times a second, and not every 15 seconds."""
    admin = AdminClient({"bootstrap.servers": brokers})
    often = ConfigEntry("log.cleaner.backoff.ms", "100", incremental_operation=AlterConfigOpType.SET)
    for number in admin.list_topics(timeout=60).brokers:
        broker = ConfigResource(ConfigResource.Type.BROKER, str(number), incremental_configs=[often])
        admin.incremental_alter_configs([broker])[broker].result(60)
