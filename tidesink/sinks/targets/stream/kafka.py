"""Kafka topics as targets: their topics, and rows produced by the tasks."""

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
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its stubs

from tidesink.codecs.open import CODECS
from tidesink.config.targets import KafkaSettings
from tidesink.errors import EncodeError, StaleProgressError, TargetError, TransientTargetError
from tidesink.events import TableId
from tidesink.kafka_client import ConnectionErrors, open_client, why_silent
from tidesink.sinks.kafka.offsets import describe_topics
from tidesink.sinks.targets.base import Capabilities, DeleteMode, ReducedBatch
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
    batch_frame,
    check_kept,
    check_shape,
    now_ms,
    send_rows,
)
from tidesink.typemap.target_schema import TableShape
from tidesink.typemap.values import json_value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.codecs.base import EncodedRecord
    from tidesink.config import Config
    from tidesink.events import Row
    from tidesink.schema_registry.base import SchemaRegistry
    from tidesink.sinks.state.progress import StateStore


CAPABILITIES: Final = Capabilities(
    name="kafka",
    exactly_once=False,
    features=KafkaSettings.features,
)
PREFLIGHT: Final = KafkaPreflight()


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

    def _send(self, batch: ReducedBatch, stamp: Stamp) -> Sent:
        table = str(batch.shape.table)
        if batch.truncates:
            raise TargetError(NO_TRUNCATE, table=table)
        protocol = self._settings.protocol
        check_kept(batch_frame(batch), batch, protocol, tells=CODECS[protocol].leaves_out)
        self._topics.check(self._topic)
        delivery = Delivery(
            self._encode_as(batch.shape),
            self._settings.confluent_properties(),
            self._topic.partitions,
            stamp=stamp,
            sent_ms=now_ms(),
        )
        return send_rows(batch, delivery.run)

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


IDEMPOTENCY_HEADER: Final = "tidesink-idempotency-key"
EPOCH_HEADER: Final = "tidesink-epoch"
BATCH_HEADER: Final = "tidesink-batch"
SOURCE_HEADER: Final = "tidesink-source"
Place = tuple[str, int, int]
Headers = list[tuple[str, str | bytes | None]]
# A message that no broker took for so long fails, and its batch is tried again.
_DELIVERY_MS: Final = 60_000
_POLL_SECONDS: Final = 0.2
_QUIET: Final[Mapping[str, Any]] = {"log_level": 0, "error_cb": lambda _error: None}

# What the same batch would meet again; anything else may pass.
_PERMANENT: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE: "the topic's max.message.bytes must be target.max-message-bytes or more, "
    "since messages are sent together up to that size: raise the one, or lower the other",
    KafkaError.RECORD_LIST_TOO_LARGE: "raise the topic's max.message.bytes",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "let target.kafka's user write to the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "let target.kafka's user write idempotently to the cluster",
    KafkaError.SASL_AUTHENTICATION_FAILED: "check sasl.username and sasl.password under target.kafka",
    KafkaError._AUTHENTICATION: "check security.protocol and sasl settings under target.kafka",
    KafkaError.TOPIC_EXCEPTION: "Kafka takes no topic of this name: change target.topic",
    KafkaError.INVALID_RECORD: "the broker refuses the record: has the topic cleanup.policy compact and the "
    "message no key, as canal-json has none?",
    KafkaError.POLICY_VIOLATION: "a policy of the broker refuses it",
    KafkaError._INVALID_ARG: "check target.kafka",
}
# What the client itself refuses, before a broker is asked: here the topic's limit is not what was met.
_UNSENT: Final = {
    **_PERMANENT,
    KafkaError.MSG_SIZE_TOO_LARGE: "with its headers it is above target.max-message-bytes: "
    "raise target.max-message-bytes, and the topic's max.message.bytes with it",
}


def delivery_error(
    error: KafkaError, topic: str, which: str = "a message", *, sent: bool = True
) -> TargetError:
    """A failed delivery as an error of ours, by its code; not ``sent``: no broker was asked."""
    remedy = (_PERMANENT if sent else _UNSENT).get(error.code())
    if remedy is not None:
        return TargetError(f"Kafka did not take {which} ({error.name()}): {remedy}", topic=topic)
    return TransientTargetError(
        f"Kafka did not take {which} ({error.name()}); the batch is sent again", topic=topic
    )


class Parcel(NamedTuple):
    """What is known of a message while it is under way, without its bytes: its size, and its row's place."""

    op: str
    size: int
    place: Place | None

    @classmethod
    def of(cls, row: MessageRow, record: EncodedRecord) -> Parcel:
        """What is known of a row's message."""
        return cls(row.op, len(record.key or b"") + len(record.value or b""), row.place)

    @property
    def shown(self) -> str:
        """The message, for a person who looks for its row."""
        return f"the message of {self.size} bytes{_origin(self.place)}"


def shown_place(place: Place) -> str:
    """A place in the source as one text."""
    return "/".join(map(str, place))


def _origin(place: Place | None) -> str:
    return f", whose row is from {shown_place(place)}" if place else ""


def partition_of(key: Row, names: Sequence[str], partitions: int) -> int:
    """The partition of a row: by its key's values, so that a new schema of the key moves nothing."""
    text = json.dumps([json_value(key.get(name)) for name in names], ensure_ascii=False)
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % partitions


def message_headers(stamp: Stamp, row: MessageRow) -> Headers:
    """The headers of a row's message."""
    said: dict[str, object] = {
        IDEMPOTENCY_HEADER: f"{stamp.pipeline}/{stamp.table}/{stamp.batch}/{stamp.cut}",
        EPOCH_HEADER: stamp.epoch,
        BATCH_HEADER: stamp.batch,
    }
    if row.place is not None:
        said[SOURCE_HEADER] = shown_place(row.place)
    return [(name, str(value).encode()) for name, value in said.items()]


@dataclass(frozen=True)
class Delivery:
    """What a task does; goes to the executors as it is.

    ``properties`` are confluent-kafka's and may hold secrets. ``sent_ms`` is the batch's wall clock.
    """

    encoding: Encoding
    properties: Mapping[str, str] = field(repr=False)
    partitions: int
    stamp: Stamp
    sent_ms: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Sent]:
        """Send the rows of a task, and say once how many were acknowledged.

        Raises:
            TargetError: a row cannot be written, or Kafka refuses it for good.
            TransientTargetError: Kafka did not take a message now.
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
            except BufferError:  # as much as fits is under way
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
                # A broker refuses messages by the dozen: the largest is the one to look at.
                refused = [parcel] if self._failed is None else [self._failed[1], parcel]
                self._failed = error, max(refused, key=lambda one: one.size)

        return note

    def _check(self) -> None:
        if self._failed is not None:
            self._producer.purge()
            error, parcel = self._failed
            raise delivery_error(error, self._topic, parcel.shown)


def producer_settings(delivery: Delivery) -> dict[str, Any]:
    """What an idempotent producer has beside the user's properties."""
    return {
        **_QUIET,
        "linger.ms": 20,
        "enable.idempotence": True,
        "message.max.bytes": max(1000, min(delivery.encoding.options.max_message_bytes, 1_000_000_000)),
        "message.timeout.ms": _DELIVERY_MS,
    }


_TIMEOUT: Final = 15.0
_PAUSE: Final = 0.2
# What Kafka answers about a topic for good, and what to do.
_REFUSED: Final[Mapping[int, str]] = MappingProxyType(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED: "let the user of target.kafka describe and write the topic, "
        "and create it if it is not there",
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: "let the user of target.kafka create topics and write with "
        "idempotence (IDEMPOTENT_WRITE), or create the topic",
        KafkaError.SASL_AUTHENTICATION_FAILED: "check sasl.username and sasl.password under target.kafka",
        KafkaError._AUTHENTICATION: "check sasl.username, sasl.password and sasl.mechanism under "
        "target.kafka",
        KafkaError.TOPIC_EXCEPTION: "Kafka takes no topic of this name: change target.topic",
        KafkaError.INVALID_REPLICATION_FACTOR: "there are fewer brokers: lower target.replication-factor",
        KafkaError.INVALID_PARTITIONS: "change target.partition-num",
        KafkaError.POLICY_VIOLATION: "a policy of the brokers refuses it: create the topic yourself",
        KafkaError._INVALID_ARG: "check target.kafka",
    }
)


class OpenTopic(NamedTuple):
    """A topic that is there, under Kafka's own id, which a topic made again does not share."""

    name: str
    topic_id: str
    partitions: int


class TargetTopics:
    """Asks the target's brokers; used by one thread at a time."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._errors = ConnectionErrors()
        self._admin = self._renewed()

    def open(self, topic: str) -> OpenTopic:
        """A topic, made where it is not there.

        Raises:
            TargetError: it is not there and may not be made, or Kafka refuses us.
            TransientTargetError: no broker answers.
        """
        try:
            found = self._find(topic)
            return self._made(topic) if found is None else found
        except KafkaException as exc:
            raise self._error(exc, topic) from exc

    def check(self, opened: OpenTopic) -> None:
        """Refuse a topic that is not the one that was opened; raises as ``open``, and StaleProgressError."""
        try:
            found = self._find(opened.name)
        except KafkaException as exc:
            raise self._error(exc, opened.name) from exc
        if found is None or found.topic_id != opened.topic_id:
            raise StaleProgressError(
                "the topic was deleted or made again since the table was opened, and what was sent is gone: "
                "start the worker again, and the table is sent again from the start of its source's topic",
                topic=opened.name,
            )

    def names(self) -> tuple[str, ...]:
        """Every topic; raises as ``open``."""
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
        self._admin = open_client(AdminClient, self._settings.confluent_properties(), own)
        return self._admin

    def _error(self, exc: KafkaException, topic: str | None) -> TargetError:
        """The error for an answer; of a request without one, for what the connections came to."""
        self._admin.poll(0)
        newest = self._errors.taken()
        if newest is not None and exc.args[0].code() in _UNANSWERED and newest.code() in _LET_IN:
            exc = KafkaException(newest)
        return admin_error(exc, topic, self._settings.bootstrap_servers)

    def _made(self, topic: str) -> OpenTopic:
        settings = self._settings
        if not settings.auto_create_topic:
            raise TargetError(
                "the topic is not there, and target.auto-create-topic is false: make it", topic=topic
            )
        new = NewTopic(topic, settings.partition_num, settings.replication_factor)
        try:
            self._admin.create_topics([new], operation_timeout=_TIMEOUT)[topic].result()
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            found = self._find(topic)
            if found is not None:
                return found
            time.sleep(_PAUSE)  # not every broker knows at once
        raise TransientTargetError("the topic was made, and Kafka does not show it yet", topic=topic)


# Requests that no broker answered, and why a connection is not made although something listens.
_UNANSWERED: Final = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
_LET_IN: Final = (KafkaError._AUTHENTICATION, KafkaError._SSL)


def admin_error(exc: KafkaException, topic: str | None, brokers: str = "") -> TargetError:
    """What Kafka answers about a topic as an error of ours, by its code; ``brokers``: who was asked."""
    error: KafkaError = exc.args[0]
    if error.code() == KafkaError._SSL:
        # A certificate may be renewed at the broker.
        return TransientTargetError(
            "no TLS connection to the target's Kafka (_SSL): check security.protocol and ssl.ca.location "
            "under target.kafka, that the brokers' certificates name their hosts, and, with mutual TLS, "
            "ssl.certificate.location and ssl.key.location",
            topic=topic,
        )
    remedy = _REFUSED.get(error.code())
    if remedy is not None:
        return TargetError(f"the target's Kafka refuses ({error.name()}): {remedy}", topic=topic)
    why = f" {why_silent(brokers, 'target')}" if brokers else " check target.brokers"
    return TransientTargetError(f"the target's Kafka does not answer ({error.name()}):{why}", topic=topic)
