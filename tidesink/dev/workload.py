"""Writes the changes of the sample shop to Kafka as TiCDC would, and the expected final state to a file.

The changes are generated from a seed and encoded by tidesink's own encoders. As after a restart of a
changefeed, some records are sent again. Schemas are registered in the schema registry.
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec, CodecOptions
from tidesink.dev import shop
from tidesink.dev.shop import Change, ShopChanges, save_expected
from tidesink.errors import SourceUnavailableError
from tidesink.events import DdlEvent
from tidesink.schema_registry import SchemaRegistry
from tidesink.schema_registry.naming import TopicRule

Say = Callable[[str], None]

_TIMEOUT_S: Final = 60
_ERRORS_ONLY: Final = 3  # syslog level, so that retries while a broker starts are not logged


class OutgoingRecord(NamedTuple):
    """A Kafka record to send, with its topic and partition."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


@dataclass
class WorkloadReport:
    """Numbers of written row events, DDL events and records that were sent again, and records by topic."""

    expected: Path
    events: int = 0
    ddl: int = 0
    resent: int = 0
    by_topic: dict[str, int] = field(default_factory=dict)


class RecordEncoder:
    """Encodes changes as Kafka records for the topics that a topic rule names.

    All changes of a key have the same partition, as with TiCDC's dispatcher ``index-value``.
    """

    def __init__(self, codec: Codec, rule: TopicRule, partitions: int) -> None:
        self._codec = codec
        self._rule = rule
        self._partitions = partitions

    def encode(self, change: Change) -> OutgoingRecord | None:
        """Returns the Kafka record of a change, or None if the protocol sends no record for it."""
        topic = self._rule.topic_for(change.table)
        record = self._codec.encode(change, topic=topic)
        if record is None:
            return None
        return OutgoingRecord(topic, self._partition(change), record.key, record.value)

    def _partition(self, change: Change) -> int:
        if isinstance(change, DdlEvent):
            return 0
        key = repr(tuple((change.key or {}).values())).encode()
        return zlib.crc32(key) % self._partitions


def resend_suffixes(
    records: Iterable[OutgoingRecord], random: Random, every: int
) -> Iterator[tuple[OutgoingRecord, bool]]:
    """Yields all records, and some of them a second time, as after restarts of a changefeed.

    Each record comes with True if it is yielded for the second time, and otherwise with False. A restarted
    changefeed begins at its checkpoint and sends all later records again, in the same order.
    ``every``: mean number of records between two restarts.
    """
    recent: deque[OutgoingRecord] = deque(maxlen=max(1, every // 4))
    until_restart = random.randint(1, 2 * every)
    for record in records:
        yield record, False
        recent.append(record)
        until_restart -= 1
        if until_restart <= 0:
            suffix = list(recent)[-random.randint(1, len(recent)) :]
            yield from ((again, True) for again in suffix)
            until_restart = random.randint(1, 2 * every)


def create_topics(brokers: str, topics: Iterable[str], partitions: int) -> None:
    """Creates those of the topics that do not exist yet, with ``partitions`` partitions each.

    Raises:
        SourceUnavailableError: The broker does not answer, or cannot create a topic.
    """
    admin = AdminClient(
        {"bootstrap.servers": brokers, "socket.timeout.ms": 10_000, "log_level": _ERRORS_ONLY}
    )
    new = [NewTopic(topic, num_partitions=partitions, replication_factor=1) for topic in topics]
    for topic, future in admin.create_topics(new, request_timeout=_TIMEOUT_S).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise SourceUnavailableError(
                    f"The topic cannot be created: {error.args[0].str()}", topic=topic
                ) from error


def shop_topics(rule: TopicRule) -> list[str]:
    """Returns the topics of the shop's tables by a topic rule. A topic that tables share is listed once."""
    return list(dict.fromkeys(rule.topic_for(table) for table in shop.CREATE))


class RecordSender:
    """Sends records to Kafka with an idempotent producer, in order and at a chosen rate."""

    def __init__(self, brokers: str, *, rate: float | None, by_topic: dict[str, int]) -> None:
        """``rate``: records per second, or None for no limit. ``by_topic``: counts of sent records."""
        self._producer = Producer(
            {
                "bootstrap.servers": brokers,
                "log_level": _ERRORS_ONLY,
                "enable.idempotence": True,
                "linger.ms": 20,
                "compression.type": "lz4",
            }
        )
        self._rate = rate
        self._by_topic = by_topic
        self._started = time.monotonic()
        self._failed: list[str] = []

    def send(self, record: OutgoingRecord) -> None:
        """Queues a record for sending. Waits if the rate is reached or the queue is full."""
        self._pace()
        while True:
            try:
                self._producer.produce(
                    record.topic, record.value, record.key, record.partition, on_delivery=self._delivered
                )
                break
            except BufferError:
                self._producer.poll(0.2)
        self._producer.poll(0)
        self._by_topic[record.topic] = self._by_topic.get(record.topic, 0) + 1

    def close(self) -> None:
        """Waits until all queued records have arrived in Kafka.

        Raises:
            SourceUnavailableError: A record could not be sent.
        """
        left = self._producer.flush(_TIMEOUT_S)
        if left or self._failed:
            raise SourceUnavailableError(
                f"{left + len(self._failed)} records did not reach the broker: {self._failed[:1]}"
            )

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._failed.append(error.str())

    def _pace(self) -> None:
        if self._rate:
            ahead = sum(self._by_topic.values()) / self._rate - (time.monotonic() - self._started)
            if ahead > 0:
                time.sleep(ahead)


@dataclass(frozen=True)
class WorkloadOptions:
    """Options of the workload.

    ``rate``: records per second, or None for no limit. ``restart_every``: mean number of records between two
    simulated restarts of the changefeed, after which records are sent again.
    """

    brokers: str
    expected: Path
    protocol: str = "flat-avro"
    topic_rule: str = "{schema}_{table}"
    registry: SchemaRegistry | None = None
    codec: CodecOptions = field(default_factory=CodecOptions)
    events: int = 20_000
    partitions: int = 4
    seed: int = 1
    rate: float | None = None
    restart_every: int = 4_000


def write_workload(options: WorkloadOptions, say: Callable[[str], None] = lambda _: None) -> WorkloadReport:
    """Writes the shop's changes to Kafka, and the expected final state to ``options.expected``.

    ``say``: function that prints a progress line, called after each quarter of the row events.

    Raises:
        SourceUnavailableError: The broker does not answer.
        RegistryError: A schema cannot be registered.
    """
    rule = TopicRule.parse(options.topic_rule)
    create_topics(options.brokers, shop_topics(rule), options.partitions)
    codec = open_codec(options.protocol, options=options.codec, registry=options.registry)
    encoder = RecordEncoder(codec, rule, options.partitions)
    sent = WorkloadReport(options.expected)
    changes = ShopChanges(options.seed, options.events)
    sender = RecordSender(options.brokers, rate=options.rate, by_topic=sent.by_topic)
    random = Random(options.seed)  # noqa: S311 - repeatable on purpose
    for record, again in resend_suffixes(
        _records(changes, encoder, sent, _quarters(options.events, say)), random, options.restart_every
    ):
        sender.send(record)
        sent.resent += again
    sender.close()
    save_expected(options.expected, changes.tables)
    return sent


def _records(
    changes: ShopChanges, encoder: RecordEncoder, sent: WorkloadReport, progress: Callable[[int], None]
) -> Iterator[OutgoingRecord]:
    for transaction in changes.transactions():
        for change in transaction:
            if isinstance(change, DdlEvent):
                sent.ddl += 1
            else:
                sent.events += 1
            record = encoder.encode(change)
            if record is not None:
                yield record
        progress(sent.events)


def _quarters(events: int, say: Say) -> Callable[[int], None]:
    shown = 0

    def progress(sent: int) -> None:
        nonlocal shown
        if sent * 4 // events > shown:
            shown = sent * 4 // events
            say(f"workload: {sent:,} row events sent")

    return progress
