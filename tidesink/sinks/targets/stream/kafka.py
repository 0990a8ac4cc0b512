"""The Kafka target: creates and checks topics, and produces a batch's rows as messages in Spark tasks."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidesink.codecs.open import CODECS
from tidesink.config.targets import KafkaSettings
from tidesink.errors import EncodeError, StaleProgressError, TargetError, TransientTargetError
from tidesink.events import TableId
from tidesink.kafka_client import ConnectionErrors, OpenClient, open_client, why_silent
from tidesink.sinks.kafka.offsets import describe_topics
from tidesink.sinks.targets.base import Capabilities, DeleteMode, ReducedBatch, Target
from tidesink.sinks.targets.stream.encoding import (
    NO_TRUNCATE,
    Encoding,
    KafkaPreflight,
    check_topic,
    prepare,
    reads_of,
)
from tidesink.sinks.targets.stream.table import (
    MessageRow,
    MessageTable,
    Sent,
    Stamp,
    StoreLedger,
    check_sendable,
    check_shape,
    now_ms,
    send_rows,
)
from tidesink.typemap.target_schema import TargetSchema
from tidesink.typemap.values import json_value

if TYPE_CHECKING:
    from tidesink.codecs.base import EncodedRecord
    from tidesink.config import Config
    from tidesink.events import Row
    from tidesink.schema_registry.base import SchemaRegistry
    from tidesink.sinks.spark.engine import SparkEngine
    from tidesink.sinks.state.progress import StateStore


CAPABILITIES: Final = Capabilities(
    name="kafka",
    exactly_once=False,
    features=KafkaSettings.features,
    packed=True,
)
PREFLIGHT: Final = KafkaPreflight()


def open_target(config: Config, _spark: SparkEngine, store: StateStore) -> KafkaTarget:
    """Return the Kafka target that a config describes. Its progress is recorded in the state store."""
    return KafkaTarget(cast("KafkaSettings", config.target), store, reads=reads_of(config))


def place_of(settings: KafkaSettings, table: TableId) -> str:
    """Return the name of a table's topic, for display."""
    return f"kafka:{settings.rule.topic_for(table)}"


def try_target(settings: KafkaSettings) -> str:
    """Connect to the brokers, and to the schema registry if configured, and return a text about them.

    Creates nothing there.

    Raises:
        TidesinkError: the brokers or the registry do not answer, or refuse access.
    """
    count = len(TargetTopics(settings).names())
    answer = f"{settings.bootstrap_servers} answers with {count} topics"
    if settings.schema_registry is None:
        return answer
    registry = settings.schema_registry.open()
    try:
        return f"{answer}, the registry with {len(registry.subjects())} subjects"
    finally:
        registry.close()


@dataclass(frozen=True)
class KafkaTarget(Target):
    """The Kafka brokers and topic rule to which a pipeline writes.

    ``reads``: returns True if the pipeline itself reads a topic; None if it reads from other brokers.
    """

    settings: KafkaSettings
    store: StateStore
    reads: Callable[[str], bool] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of a Kafka target."""
        return CAPABILITIES

    def open_table(
        self, shape: TargetSchema, *, pipeline: str, delete_mode: DeleteMode = "hard"
    ) -> KafkaTable:
        """Open the topic of a table, and create it if missing.

        Raises:
            ConfigError: the pipeline reads this topic.
            SchemaRefusedError: the table has no key, or uses soft deletes.
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
    """A table whose rows are sent to its own topic. It is used by one worker thread."""

    def __init__(
        self,
        settings: KafkaSettings,
        topics: TargetTopics,
        topic: OpenTopic,
        *,
        shape: TargetSchema,
        ledger: StoreLedger,
    ) -> None:
        super().__init__(shape, ledger=ledger)
        self._settings = settings
        self._topics = topics
        self._topic = topic
        self._registry: SchemaRegistry | None = None
        self._encoding: Encoding | None = None

    def close(self) -> None:
        """Close the client of the schema registry."""
        if self._registry is not None:
            self._registry.close()
            self._registry = None

    def _prepare(self, shape: TargetSchema) -> None:
        """Register the message schemas for the columns and key of ``shape`` at the schema registry, if
        configured.
        """
        self._encode_as(shape)

    def _send(self, batch: ReducedBatch, stamp: Stamp) -> Sent:
        table = str(batch.shape.table)
        if batch.truncates:
            raise TargetError(NO_TRUNCATE, table=table)
        protocol = self._settings.protocol
        check_sendable(batch, protocol, tells=CODECS[protocol].leaves_out)
        self._topics.check(self._topic)
        delivery = Delivery(
            self._encode_as(batch.shape),
            self._settings.confluent_properties(),
            self._topic.partitions,
            stamp=stamp,
            sent_ms=now_ms(),
        )
        return send_rows(batch, delivery.run)

    def _encode_as(self, shape: TargetSchema) -> Encoding:
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


IDEMPOTENCY_HEADER: Final = "tidesink-idempotency-key"
EPOCH_HEADER: Final = "tidesink-epoch"
BATCH_HEADER: Final = "tidesink-batch"
SOURCE_HEADER: Final = "tidesink-source"
Place = tuple[str, int, int]
Headers = list[tuple[str, str | bytes | None]]
# Milliseconds after which a message that no broker has accepted fails. Its batch is then tried again.
_DELIVERY_MS: Final = 60_000
_POLL_SECONDS: Final = 0.2
_QUIET: Final[Mapping[str, Any]] = {"log_level": 0, "error_cb": lambda _error: None}

# Errors that occur again if the same batch is sent again, with the remedy. All other errors are temporary.
_PERMANENT: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE: "The topic's max.message.bytes must be at least target.max-message-bytes, "
    "because messages are sent together up to that size. Raise max.message.bytes, or lower "
    "target.max-message-bytes.",
    KafkaError.RECORD_LIST_TOO_LARGE: "Raise the topic's max.message.bytes.",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Allow target.kafka's user to write to the topic.",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Allow target.kafka's user to write with idempotence "
    "(IDEMPOTENT_WRITE on the cluster).",
    KafkaError.SASL_AUTHENTICATION_FAILED: "Check sasl.username and sasl.password under target.kafka.",
    KafkaError._AUTHENTICATION: "Check security.protocol and the sasl settings under target.kafka.",
    KafkaError.TOPIC_EXCEPTION: "Kafka does not allow a topic of this name. Change target.topic.",
    KafkaError.INVALID_RECORD: "A topic with cleanup.policy compact accepts only messages with keys, and "
    "canal-json messages have no key. Set the topic's cleanup.policy to delete, or change target.protocol.",
    KafkaError.POLICY_VIOLATION: "A policy of the broker refuses the message. See the broker's log for the "
    "policy.",
    KafkaError._INVALID_ARG: "Check target.kafka.",
}
# Errors of the Kafka client, before the message is sent. For size, its own limit applies instead of the
# topic's.
_UNSENT: Final = {
    **_PERMANENT,
    KafkaError.MSG_SIZE_TOO_LARGE: "With its headers it exceeds target.max-message-bytes. "
    "Raise target.max-message-bytes, and the topic's max.message.bytes to at least the same value.",
}


def delivery_error(
    error: KafkaError, topic: str, which: str = "a message", *, sent: bool = True
) -> TargetError:
    """Return the error to raise for a message that was not delivered.

    ``which``: the message, as the error describes it.
    ``sent``: False if the client rejected the message before sending it.
    """
    remedy = (_PERMANENT if sent else _UNSENT).get(error.code())
    if remedy is not None:
        return TargetError(f"Kafka did not accept {which} ({error.name()}). {remedy}", topic=topic)
    return TransientTargetError(
        f"Kafka did not accept {which} ({error.name()}). The batch is sent again.", topic=topic
    )


class Parcel(NamedTuple):
    """A message that was sent and is not acknowledged yet.

    ``size``: length of key and value in bytes.
    ``place``: topic, partition and offset of the record from which the row was read; None if unknown.
    """

    op: str
    size: int
    place: Place | None

    @classmethod
    def of(cls, row: MessageRow, record: EncodedRecord) -> Parcel:
        """Create the parcel of a message. ``row``: the row that was encoded. ``record``: the message."""
        return cls(row.op, len(record.key or b"") + len(record.value or b""), row.place)

    @property
    def shown(self) -> str:
        """The message's size and origin, for errors."""
        return f"the message of {self.size} bytes{_origin(self.place)}"


def shown_place(place: Place) -> str:
    """Return topic, partition and offset of a source record as one text, joined by slashes."""
    return "/".join(map(str, place))


def _origin(place: Place | None) -> str:
    return f" (row from {shown_place(place)})" if place else ""


def partition_of(key: Row, names: Sequence[str], partitions: int) -> int:
    """Return the target partition of a row, from a hash of its key's values.

    The hash does not depend on the key's schema, so a schema change leaves every key in its partition.

    ``key``: the row's key.
    ``names``: the key columns, in order.
    ``partitions``: number of partitions of the topic.
    """
    text = json.dumps([json_value(key.get(name)) for name in names], ensure_ascii=False)
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % partitions


def message_headers(stamp: Stamp, row: MessageRow) -> Headers:
    """Return the Kafka headers of the message that a row is encoded to."""
    headers: dict[str, object] = {
        IDEMPOTENCY_HEADER: f"{stamp.pipeline}/{stamp.table}/{stamp.batch}/{stamp.cut}",
        EPOCH_HEADER: stamp.epoch,
        BATCH_HEADER: stamp.batch,
    }
    if row.place is not None:
        headers[SOURCE_HEADER] = shown_place(row.place)
    return [(name, str(value).encode()) for name, value in headers.items()]


@dataclass(frozen=True)
class Delivery:
    """The work of a Spark task: encodes its rows and produces them. It is pickled and sent to the executors.

    ``properties``: settings of confluent-kafka. They may contain secrets.
    ``partitions``: number of partitions of the target topic.
    ``stamp``: identifies the batch in message headers.
    ``sent_ms``: time when the batch is sent, in milliseconds since 1970.
    """

    encoding: Encoding
    properties: Mapping[str, str] = field(repr=False)
    partitions: int
    stamp: Stamp
    sent_ms: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Sent]:
        """Send the rows of a task, and yield the numbers of acknowledged rows when all are acknowledged.

        Raises:
            TargetError: a row cannot be encoded, or Kafka does not accept its message and never will.
            TransientTargetError: Kafka did not accept a message, but may accept it later.
        """
        sending = _Sending(self)
        for batch in batches:
            sending.send(batch)
        yield sending.finish()


class _Sending:
    def __init__(self, delivery: Delivery) -> None:
        encoding = delivery.encoding
        self._delivery = delivery
        self._topic = encoding.topic
        self._keys = encoding.shape.keys
        self._rows = encoding.reader()
        self._encoder = encoding.encoder(delivery.sent_ms)
        self._producer = open_client(Producer, delivery.properties, producer_settings(delivery))
        self._acknowledged = {"upsert": 0, "delete": 0}
        self._failed: tuple[KafkaError, Parcel] | None = None

    def send(self, batch: pa.RecordBatch) -> None:
        for row in self._rows.read(batch):
            try:
                self._produce(row)
            except EncodeError as error:
                reported = EncodeError(f"{error.message}{_origin(row.place)}", **error.context)
                raise reported.with_context(topic=self._topic) from error
        self._check()

    def finish(self) -> Sent:
        self._producer.flush()
        self._check()
        return Sent(self._acknowledged["upsert"], self._acknowledged["delete"])

    def _produce(self, row: MessageRow) -> None:
        record = self._encoder.encode(row)
        parcel = Parcel.of(row, record)
        while True:
            self._check()
            try:
                self._producer.produce(
                    self._topic,
                    key=record.key,
                    value=record.value,
                    partition=partition_of(row.key, self._keys, self._delivery.partitions),
                    headers=message_headers(self._delivery.stamp, row),
                    on_delivery=self._delivered(parcel),
                )
            except BufferError:  # the send queue is full
                self._producer.poll(_POLL_SECONDS)
                continue
            except KafkaException as exc:
                raise delivery_error(exc.args[0], self._topic, parcel.shown, sent=False) from exc
            self._producer.poll(0)
            return

    def _delivered(self, parcel: Parcel) -> Any:
        def note(error: KafkaError | None, _message: Any) -> None:
            if error is None:
                self._acknowledged[parcel.op] += 1
            elif self._failed is None or self._failed[0].code() == error.code():
                # A broker may refuse many messages at once. The largest one is reported.
                refused = [parcel] if self._failed is None else [self._failed[1], parcel]
                self._failed = error, max(refused, key=lambda candidate: candidate.size)

        return note

    def _check(self) -> None:
        if self._failed is not None:
            self._producer.purge()
            error, parcel = self._failed
            raise delivery_error(error, self._topic, parcel.shown)


def producer_settings(delivery: Delivery) -> dict[str, Any]:
    """Return the producer settings that override the user's properties, such as ``enable.idempotence``."""
    return {
        **_QUIET,
        "linger.ms": 20,
        "enable.idempotence": True,
        "message.max.bytes": max(1000, min(delivery.encoding.options.max_message_bytes, 1_000_000_000)),
        "message.timeout.ms": _DELIVERY_MS,
    }


_TIMEOUT: Final = 15.0
_PAUSE: Final = 0.2
# Errors of requests about a topic that occur again if the request is repeated, with the remedy.
_REFUSED: Final[Mapping[int, str]] = MappingProxyType(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED: "Allow target.kafka's user to describe and write the topic, "
        "and to create it if it does not exist.",
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Allow target.kafka's user to create topics and to write "
        "with idempotence (IDEMPOTENT_WRITE), or create the topic yourself.",
        KafkaError.SASL_AUTHENTICATION_FAILED: "Check sasl.username and sasl.password under target.kafka.",
        KafkaError._AUTHENTICATION: "Check sasl.username, sasl.password and "
        "sasl.mechanism under target.kafka.",
        KafkaError.TOPIC_EXCEPTION: "Kafka does not allow a topic of this name. Change target.topic.",
        KafkaError.INVALID_REPLICATION_FACTOR: "Lower target.replication-factor to the number of brokers.",
        KafkaError.INVALID_PARTITIONS: "Change target.partition-num.",
        KafkaError.POLICY_VIOLATION: (
            "A policy of the brokers does not allow tidesink to create the topic. Create it yourself."
        ),
        KafkaError._INVALID_ARG: "Check target.kafka.",
    }
)


class OpenTopic(NamedTuple):
    """An existing topic.

    ``topic_id``: Kafka's id of the topic. A topic that is deleted and created again gets another id.
    ``partitions``: number of partitions.
    """

    name: str
    topic_id: str
    partitions: int


class TargetTopics:
    """Finds and creates topics at the target's brokers. It is used by one thread at a time.

    ``open_client``: opens the admin client, and a new one if the controller does not answer.
    """

    def __init__(self, settings: KafkaSettings, *, open_client: OpenClient = open_client) -> None:
        self._settings = settings
        self._open_client = open_client
        self._errors = ConnectionErrors()
        self._admin = self._renewed()

    def open(self, topic: str) -> OpenTopic:
        """Return a topic, and create it if missing.

        Raises:
            TargetError: the topic is missing and ``auto-create-topic`` is false, or Kafka refuses access.
            TransientTargetError: no broker answers.
        """
        try:
            existing = self._find(topic)
            return self._made(topic) if existing is None else existing
        except KafkaException as exc:
            raise self._error(exc, topic) from exc

    def check(self, opened: OpenTopic) -> None:
        """Check that a topic was not deleted, or deleted and created again, since ``open`` returned it.

        Raises:
            StaleProgressError: the topic was deleted or created again.
            TargetError: Kafka refuses access.
            TransientTargetError: no broker answers.
        """
        try:
            current = self._find(opened.name)
        except KafkaException as exc:
            raise self._error(exc, opened.name) from exc
        if current is None or current.topic_id != opened.topic_id:
            raise StaleProgressError(
                "The topic was deleted or created again after the table was opened, so the sent messages "
                "are lost. Start the worker again. It then sends the table again from the start of its "
                "source topic.",
                topic=opened.name,
            )

    def names(self) -> tuple[str, ...]:
        """Return the names of all topics of the brokers.

        Raises:
            TargetError: Kafka refuses access.
            TransientTargetError: no broker answers.
        """
        try:
            return tuple(self._admin.list_topics(timeout=_TIMEOUT).topics)
        except KafkaException as exc:
            raise self._error(exc, None) from exc

    def _find(self, topic: str) -> OpenTopic | None:
        future = describe_topics(self._admin, [topic], self._renewed)[topic]
        try:
            described = future.result()
            return OpenTopic(topic, str(described.topic_id), len(described.partitions))
        except KafkaException as exc:
            if exc.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise

    def _renewed(self) -> AdminClient:
        own = {**_QUIET, "error_cb": self._errors}
        self._admin = self._open_client(AdminClient, self._settings.confluent_properties(), own)
        return self._admin

    def _error(self, exc: KafkaException, topic: str | None) -> TargetError:
        """Return the error to raise for a failed request to the brokers.

        If no broker answered because TLS or the login failed, the error reports this instead of a timeout.
        """
        self._admin.poll(0)
        newest = self._errors.taken()
        if newest is not None and exc.args[0].code() in _UNANSWERED and newest.code() in _LET_IN:
            exc = KafkaException(newest)
        return admin_error(exc, topic, self._settings.bootstrap_servers)

    def _made(self, topic: str) -> OpenTopic:
        settings = self._settings
        if not settings.auto_create_topic:
            raise TargetError(
                "The topic does not exist, and target.auto-create-topic is false. Create the topic, or set "
                "target.auto-create-topic to true.",
                topic=topic,
            )
        new = NewTopic(topic, settings.partition_num, settings.replication_factor)
        try:
            self._admin.create_topics([new], operation_timeout=_TIMEOUT)[topic].result()
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            created = self._find(topic)
            if created is not None:
                return created
            time.sleep(_PAUSE)  # not every broker lists a new topic at once
        raise TransientTargetError(
            "The topic was created, but Kafka does not list it yet. The worker tries again.", topic=topic
        )


# Error codes of requests that no broker answered, and of connections that failed at TLS or at the login.
_UNANSWERED: Final = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
_LET_IN: Final = (KafkaError._AUTHENTICATION, KafkaError._SSL)


def admin_error(exc: KafkaException, topic: str | None, brokers: str = "") -> TargetError:
    """Return the error to raise for a failed request to the brokers about a topic.

    ``brokers``: the brokers' addresses.
    """
    error: KafkaError = exc.args[0]
    if error.code() == KafkaError._SSL:
        # A certificate may be renewed at the broker.
        return TransientTargetError(
            "The TLS connection to the target's Kafka failed (_SSL). Check security.protocol and "
            "ssl.ca.location "
            "under target.kafka, and that the brokers' certificates contain their host names. With mutual "
            "TLS, also check ssl.certificate.location and ssl.key.location.",
            topic=topic,
        )
    remedy = _REFUSED.get(error.code())
    if remedy is not None:
        return TargetError(f"The target's Kafka refuses the request ({error.name()}). {remedy}", topic=topic)
    why = f" {why_silent(brokers, 'target')}" if brokers else " check target.brokers"
    return TransientTargetError(f"The target's Kafka does not answer ({error.name()}):{why}", topic=topic)
