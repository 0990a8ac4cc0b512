"""One task's rows into a topic: encoded, produced idempotently, and counted as they are acknowledged."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from tidesink.config.client_properties import open_client
from tidesink.errors import EncodeError, TargetError, TransientTargetError
from tidesink.sinks.progress import Progress
from tidesink.sinks.targets.kafka_encoding import Encoding
from tidesink.sinks.targets.message_rows import MessageRow
from tidesink.sinks.targets.task_outcomes import Sent
from tidesink.typemap.wire_text import json_value

if TYPE_CHECKING:
    from tidesink.codecs.base import EncodedRecord
    from tidesink.events import Row
    from tidesink.sinks.targets.store_ledger import LedgerEntry

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


@dataclass(frozen=True)
class Stamp:
    """What tells one batch from all others; the epoch is no part of its idempotency key.

    A batch that is sent again after a restart is of another epoch, and its messages have the same key. One
    that was cut at other offsets has another key, since its rows may be newer, and so has one whose number
    comes again since the store was lost (``LedgerEntry.follows``): what came between may be older.
    """

    key: str
    epoch: int
    batch: int

    @classmethod
    def of(cls, entry: LedgerEntry, progress: Progress) -> Stamp:
        """The stamp of a batch that is sent on what the ledger's entry says."""
        key = f"{entry.pipeline}/{progress.table}/{progress.batch}/{entry.cut(progress)}"
        return cls(key, entry.told_epoch, progress.batch)

    def headers(self, row: MessageRow) -> Headers:
        """The headers of a row's message."""
        told: dict[str, object] = {
            IDEMPOTENCY_HEADER: self.key,
            EPOCH_HEADER: self.epoch,
            BATCH_HEADER: self.batch,
        }
        if row.place is not None:
            told[SOURCE_HEADER] = shown_place(row.place)
        return [(name, str(value).encode()) for name, value in told.items()]


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
                told = EncodeError(f"{error.message}{_origin(row.place)}", **error.context)
                raise told.with_context(topic=self._topic) from error
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
                    headers=self._delivery.stamp.headers(row),
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
