"""Kafka topics: every row of a batch is a message of one of our codecs, at least once.

A batch's rows are encoded and produced by the executors, in Arrow batches, each task with an idempotent
producer of its own; a delivery that failed fails the batch. After all were acknowledged the ledger in the
state store (``store_ledger``) says so. What was sent before a crash is sent again: every message has the
idempotency key of its batch in a header, which is the same then. All messages of a row stand in one
partition, in order, since a batch is done before the next begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from tidesink.errors import TargetError
from tidesink.events import TableId
from tidesink.sinks.progress import Progress
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets.base import Capabilities, DeleteMode, ReducedBatch
from tidesink.sinks.targets.kafka_delivery import Delivery, Stamp
from tidesink.sinks.targets.kafka_encoding import Encoding, prepare
from tidesink.sinks.targets.kafka_topics import OpenTopic, TargetTopics
from tidesink.sinks.targets.message_batches import batch_frame, check_kept, check_shape
from tidesink.sinks.targets.message_foreseen import NO_TRUNCATE, KafkaForesight, check_topic, reads_of
from tidesink.sinks.targets.message_table import MessageTable
from tidesink.sinks.targets.store_ledger import LedgerEntry, StoreLedger, now_ms
from tidesink.sinks.targets.task_outcomes import Sent, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.config import Config
    from tidesink.config.targets import KafkaSettings
    from tidesink.schema_registry.base import SchemaRegistry
    from tidesink.sinks.state_store import StateStore

CAPABILITIES: Final = Capabilities(
    name="kafka",
    exactly_once=False,
    evolves=True,
    widens=True,
    soft_deletes=False,
    durable=True,
    keeps_rows=False,
)
FORESIGHT: Final = KafkaForesight()


def open_target(config: Config, _spark: SparkSession, store: StateStore) -> KafkaTarget:
    """The topics of a config, with their ledger in the state store."""
    return KafkaTarget(cast("KafkaSettings", config.target), store, reads=reads_of(config))


def place_of(settings: KafkaSettings, table: TableId) -> str:
    """A table's topic."""
    return f"kafka:{settings.rule.topic_for(table)}"


def try_target(settings: KafkaSettings) -> str:
    """What became of asking the brokers, and the registry where there is one; nothing is made.

    Raises:
        TidesinkError: they do not answer, or refuse us.
    """
    found = len(TargetTopics(settings).names())
    answer = f"{settings.bootstrap_servers} answers with {found} topics"
    if settings.schema_registry is None:
        return answer
    registry = settings.schema_registry.open()
    try:
        return f"{answer}, the registry with {len(registry.subjects())} subjects"
    finally:
        registry.close()


@dataclass(frozen=True)
class KafkaTarget:
    """The topics of ``settings``. ``reads``: whether the pipeline reads a topic of these same brokers."""

    settings: KafkaSettings
    store: StateStore
    reads: Callable[[str], bool] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What a topic can do."""
        return CAPABILITIES

    def open_table(self, shape: TableShape, *, pipeline: str, delete_mode: DeleteMode = "hard") -> KafkaTable:
        """The topic of ``shape``'s table, made when missing.

        Raises:
            ConfigError: the pipeline reads this very topic.
            SchemaRefusedError: the table has no key, or is to be soft-deleted from.
            TransientTargetError: no broker answers.
        """
        check_shape(shape, delete_mode)
        name = self.settings.rule.topic_for(shape.table)
        check_topic(name, self.reads, shape.table)
        topics = TargetTopics(self.settings)
        topic = topics.open(name)
        ledger = StoreLedger(
            self.store,
            ("kafka", name, topic.topic_id),
            shape.table,
            source=shape.source,
            pipeline=pipeline,
            keys=shape.keys,
        )
        return KafkaTable(self.settings, topics, topic, shape=shape, ledger=ledger)


class KafkaTable(MessageTable):
    """One table's topic, open for one worker thread."""

    def __init__(
        self,
        settings: KafkaSettings,
        topics: TargetTopics,
        topic: OpenTopic,
        *,
        shape: TableShape,
        ledger: StoreLedger,
    ) -> None:
        super().__init__(shape, ledger=ledger)
        self._settings = settings
        self._topics = topics
        self._topic = topic
        self._registry: SchemaRegistry | None = None
        self._encoding: Encoding | None = None

    def close(self) -> None:
        """Let go of the registry."""
        if self._registry is not None:
            self._registry.close()
            self._registry = None

    def _prepare(self, shape: TableShape) -> None:
        """Register the schemas of a shape."""
        self._encode_as(shape)

    def _send(self, batch: ReducedBatch, progress: Progress, entry: LedgerEntry) -> Sent:
        table = str(batch.shape.table)
        if batch.truncates:
            raise TargetError(NO_TRUNCATE, table=table)
        frame = batch_frame(batch)
        check_kept(frame, batch, self._settings.protocol)
        self._topics.check(self._topic)
        delivery = Delivery(
            self._encode_as(batch.shape),
            self._settings.confluent_properties(),
            self._topic.partitions,
            stamp=Stamp.of(entry, progress),
            sent_ms=now_ms(),
        )
        return run_tasks(frame, delivery.run, table=table)

    def _encode_as(self, shape: TableShape) -> Encoding:
        if self._encoding is None or self._encoding.shape != shape:
            if self._registry is None and self._settings.schema_registry is not None:
                self._registry = self._settings.schema_registry.open()
            self._encoding = prepare(
                shape,
                protocol=self._settings.protocol,
                options=self._settings.codec_options(),
                topic=self._topic.name,
                registry=self._registry,
            )
        return self._encoding
