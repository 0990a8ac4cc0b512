"""Kafka consumers of this process, opened once for each set of client properties and used again.

A consumer belongs to no group in effect: partitions are assigned to it, and it commits nothing.
Memory: librdkafka holds at most ``queued.max.messages.kbytes`` and one fetch response a consumer in use.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicCollection
from confluent_kafka.admin import AdminClient

from tidesink.config.client_properties import librdkafka_settings, open_client
from tidesink.sinks.kafka.offsets import TIMEOUT_SECONDS, translated_kafka_errors

# A worker reads from one cluster; each idle consumer has a few threads and connections.
MOST_IDLE: Final = 4

# How records are fetched, unless the user's properties say otherwise. Measured by benchmarks/fetch.py.
FETCH_SETTINGS: Final[Mapping[str, Any]] = {
    # librdkafka waits a second, unless set otherwise, once its queue is full.
    "fetch.queue.backoff.ms": 2,
    "queued.min.messages": 50_000,
    "queued.max.messages.kbytes": 32_768,
    # One answer of a broker: the first record is seen once all of it is unpacked (4 MiB: 50 ms later), and
    # the CPU a record is the same from 64 KiB to 4 MiB. A larger message is still read.
    "fetch.message.max.bytes": 256 << 10,
    # The records of a range exist, so there is nothing to wait for.
    "fetch.wait.max.ms": 10,
    # The ranges were planned of topics that exist: to wait half a minute for one is of no use.
    "topic.metadata.propagation.max.ms": 5_000,
}
# What a correct read of a range depends on. Properties of the user cannot change these.
FIXED_SETTINGS: Final[Mapping[str, Any]] = {
    "isolation.level": "read_committed",
    # An offset that Kafka no longer holds is an error: to begin elsewhere would hide a loss.
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
}
# librdkafka requires a group's name. It is never joined, and nothing is committed to it.
_GROUP: Final = "tidesink-fetch"
# librdkafka writes to stderr by itself otherwise; what matters comes back as an error.
_SILENT: Final = logging.getLogger("tidesink.librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


class OpenConsumer:
    """A consumer and the last error of its client as a whole (no broker, no login)."""

    def __init__(self, digest: str, properties: Mapping[str, Any]) -> None:
        self.digest = digest
        self.client_error: KafkaError | None = None
        self._settings = librdkafka_settings(properties)
        self._admin: AdminClient | None = None
        given = {_ALIASES.get(name, name) for name in self._settings}
        own = {name: value for name, value in FETCH_SETTINGS.items() if name not in given}
        own |= {**FIXED_SETTINGS, "group.id": _GROUP, "error_cb": self._note}
        self.consumer = open_client(Consumer, self._settings, own, logger=_SILENT)

    def _note(self, error: KafkaError) -> None:
        self.client_error = error

    def topic_id(self, topic: str) -> str:
        """Kafka's id of a topic, which a topic that was deleted and created again does not share.

        confluent-kafka's consumer does not expose it, so an admin client asks for it: one request.

        Raises:
            SourceUnavailableError: no broker answers, or the topic does not exist.
            SourceError: the brokers refuse.
        """
        with translated_kafka_errors():
            if self._admin is None:
                own = {"error_cb": self._note}
                self._admin = open_client(AdminClient, self._settings, own, logger=_SILENT)
            asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_SECONDS)
            return str(asked[topic].result().topic_id)

    def close(self) -> None:
        """Close the connections; takes up to a second."""
        self.consumer.close()

    def leak(self) -> None:
        """Never destroy the clients: they are those of the process that this one was forked from."""
        for client in (self.consumer, self._admin):
            if client is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


# Names that librdkafka has twice: the last one given wins, so a default is left out where either is given.
_ALIASES: Final = {"max.partition.fetch.bytes": "fetch.message.max.bytes"}


class _Consumers:
    """Idle consumers, the least recently used first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[OpenConsumer] = []

    def take(self, properties: Mapping[str, Any]) -> OpenConsumer:
        """An idle consumer with these properties, else a new one."""
        digest = _digest(properties)
        with self._lock:
            for place, found in enumerate(reversed(self._idle), 1):
                if found.digest == digest:
                    return self._idle.pop(-place)
        return OpenConsumer(digest, properties)

    def give_back(self, used: OpenConsumer) -> None:
        """Keep a consumer for its next use, and close the one that waits longest where there are many."""
        # Unassigned, so that it neither fetches ahead nor holds what it fetched.
        used.consumer.unassign()
        used.client_error = None
        with self._lock:
            self._idle.append(used)
            over = self._idle.pop(0) if len(self._idle) > MOST_IDLE else None
        if over is not None:
            over.close()

    def after_fork(self) -> None:
        """In the child process: librdkafka's threads are gone, and its handles are of no use here."""
        for one in self._idle:
            one.leak()
        self._lock, self._idle = threading.Lock(), []


_CONSUMERS: Final = _Consumers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_CONSUMERS.after_fork)


def _digest(properties: Mapping[str, Any]) -> str:
    text = json.dumps(sorted((name, str(value)) for name, value in properties.items()))
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def open_consumer(properties: Mapping[str, Any]) -> Iterator[OpenConsumer]:
    """A consumer for this caller alone until the context ends; it is then used again.

    A consumer whose use raised is closed.

    Raises:
        ConfigError: the properties are refused.
    """
    used = _CONSUMERS.take(properties)
    try:
        yield used
    except GeneratorExit:  # the caller has enough: nothing is wrong with the consumer
        _CONSUMERS.give_back(used)
        raise
    except BaseException:
        used.close()
        raise
    _CONSUMERS.give_back(used)
