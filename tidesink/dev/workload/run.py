"""Writes the workload: topics, schemas, records, and the state the tables must end in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tidesink.codecs.base import CodecOptions
from tidesink.dev.workload.changes import ShopChanges
from tidesink.dev.workload.expected import save_expected
from tidesink.dev.workload.produce import (
    OutgoingRecord,
    RecordEncoder,
    RecordSender,
    Sent,
    count,
    create_topics,
    open_encoder,
    resend_suffixes,
    shop_topics,
)
from tidesink.schema_registry import SchemaRegistry
from tidesink.schema_registry.naming import TopicRule


@dataclass(frozen=True)
class WorkloadOptions:
    """What to write. ``rate`` is records a second (None: as fast as possible).

    ``restart_every`` is the mean number of records between two re-sent suffixes.
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


@dataclass(frozen=True)
class WorkloadReport:
    """What was written: row events, DDL events, re-sent records, and records by topic."""

    events: int
    ddl: int
    resent: int
    by_topic: dict[str, int]
    expected: Path


def write_workload(
    options: WorkloadOptions, progress: Callable[[int], None] = lambda _: None
) -> WorkloadReport:
    """Write the shop's changes to Kafka and its final state to ``options.expected``.

    ``progress`` is called with the number of row events sent so far.

    Raises:
        SourceUnavailableError: the broker does not answer.
        RegistryError: a schema cannot be registered.
    """
    rule = TopicRule.parse(options.topic_rule)
    create_topics(options.brokers, shop_topics(rule), options.partitions)
    encoder = open_encoder(
        options.protocol, options.codec, options.registry, rule=rule, partitions=options.partitions
    )
    sent = Sent()
    changes = ShopChanges(options.seed, options.events)
    sender = RecordSender(options.brokers, rate=options.rate, sent=sent)
    random = Random(options.seed)  # noqa: S311 - repeatable on purpose
    for record, again in resend_suffixes(
        _records(changes, encoder, sent, progress), random, options.restart_every
    ):
        sender.send(record)
        sent.resent += again
    sender.close()
    save_expected(options.expected, changes.tables)
    return WorkloadReport(sent.events, sent.ddl, sent.resent, dict(sent.by_topic), options.expected)


def _records(
    changes: ShopChanges, encoder: RecordEncoder, sent: Sent, progress: Callable[[int], None]
) -> Iterator[OutgoingRecord]:
    for transaction in changes.transactions():
        for change in transaction:
            count(change, sent)
            record = encoder.encode(change)
            if record is not None:
                yield record
        progress(sent.events)
