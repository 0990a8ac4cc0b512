"""A real broker and a real registry for the tests, once a session.

``TIDESINK_TEST_BROKERS`` and ``TIDESINK_TEST_REGISTRY`` name running ones to use instead; else containers
where a Docker engine answers, else the local stack on free ports.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.containers import container_stack, engine_answers
from tidesink.dev.ports import free_ports
from tidesink.dev.stack import DevStack, StackAddresses


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


def create_topics(brokers: str, partitions: Mapping[str, int]) -> None:
    """Create topics and wait until the broker has them: the controller answers before it has heard."""
    admin = AdminClient({"bootstrap.servers": brokers})
    topics = [
        NewTopic(name, num_partitions=count, replication_factor=1) for name, count in partitions.items()
    ]
    for future in admin.create_topics(topics, operation_timeout=30).values():
        future.result()
    deadline = time.monotonic() + 60
    for name, count in partitions.items():
        while not _served(admin, name, count):
            assert time.monotonic() < deadline, f"{name} is not there"
            time.sleep(0.02)


def _served(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Whether the broker shows each partition of a topic with a leader."""
    found = admin.list_topics(topic, timeout=30).topics[topic]
    leaders = [partition.leader for partition in found.partitions.values()]
    return found.error is None and len(leaders) == partitions and min(leaders) >= 0


def delete_topic(brokers: str, topic: str) -> None:
    """Delete a topic and wait until the broker shows it no more."""
    admin = AdminClient({"bootstrap.servers": brokers})
    for future in admin.delete_topics([topic], operation_timeout=30).values():
        future.result()
    deadline = time.monotonic() + 60
    while topic in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline, f"{topic} is still there"
        time.sleep(0.05)
