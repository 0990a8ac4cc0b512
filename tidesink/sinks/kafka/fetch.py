"""Reads a range of offsets of one topic-partition as Arrow record batches, with librdkafka.

``fetch`` reads offsets ``[start, end)`` with isolation level ``read_committed``, by the rules of
``kafka.consume``.

Memory: a fetch holds the records of one batch (``FetchLimits.bytes``) twice while it converts them to Arrow
columns. It also holds the records of one consume call, at most an eighth of a batch by the record sizes seen
so far, and librdkafka's queue (``queued.max.messages.kbytes`` and one fetch response). With the defaults this
is 32 + 2 + 33 MB, plus the largest record.

A process opens one consumer for each set of client properties and uses it for many ranges. The consumer never
joins a consumer group: partitions are assigned to it, and it commits nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaException, Message
from confluent_kafka.admin import AdminClient

from tidesink.errors import SourceError, StopRequestedError
from tidesink.kafka_client import SILENT, OpenClient, librdkafka_settings, open_client
from tidesink.sinks.kafka.consume import AssignedConsumer, OffsetBounds, RangeReader, ReadLimits, offset_of
from tidesink.sinks.kafka.offsets import describe_topics, translated_kafka_errors
from tidesink.sinks.state.progress import LastRecord

# A worker reads from one cluster, in several threads if batches run in its own process. Each idle consumer
# has a few threads and connections.
MOST_IDLE: Final = 16

# Fetch settings, unless the user's properties override them. Measured by benchmarks/fetch.py.
FETCH_SETTINGS: Final[Mapping[str, Any]] = {
    # By default librdkafka waits a second once its queue is full.
    "fetch.queue.backoff.ms": 2,
    "queued.min.messages": 50_000,
    "queued.max.messages.kbytes": 32_768,
    # Size of one fetch response. The first record is available only when the whole response is unpacked (4
    # MiB: 50 ms later), and the CPU per record is the same from 64 KiB to 4 MiB. A larger message is still
    # read.
    "fetch.message.max.bytes": 256 << 10,
    # The records of a range exist, so there is nothing to wait for. A request that waits at the end of the
    # consumer's last range also delays its next range. With less, a consumer that has read its range would
    # repeat such requests while the records are decoded.
    "fetch.wait.max.ms": 10,
    # Ranges are planned for existing topics, so waiting half a minute for a topic is useless.
    "topic.metadata.propagation.max.ms": 5_000,
}
# The read is only correct with these settings, so the user's properties cannot change them.
FIXED_SETTINGS: Final[Mapping[str, Any]] = {
    "isolation.level": "read_committed",
    # An offset that Kafka no longer has is an error: starting elsewhere would hide a loss.
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
}
# If a client does not know a topic, librdkafka requests it once a second. It forgets a topic 15 minutes after
# it was listed (``metadata.max.age.ms``).
_LIST_SECONDS: Final = 1.0
_KNOWN_SECONDS: Final = 300.0
# librdkafka requires a group name. The group is never joined, and nothing is committed to it.
_GROUP: Final = "tidesink-fetch"


class OpenConsumer(AssignedConsumer):
    """A Kafka consumer that a process uses for many ranges.

    ``digest`` identifies the client properties. ``open_client`` opens the consumer and the admin client.
    """

    def __init__(
        self, digest: str, properties: Mapping[str, Any], *, open_client: OpenClient = open_client
    ) -> None:
        self.digest = digest
        self._open_client = open_client
        self._admin: AdminClient | None = None
        # The topics that librdkafka knows, with the time until which it does.
        self._known: dict[str, float] = {}
        given = {_ALIASES.get(name, name) for name in librdkafka_settings(properties)}
        own = {name: value for name, value in FETCH_SETTINGS.items() if name not in given}
        own |= {**FIXED_SETTINGS, "group.id": _GROUP}
        super().__init__(properties, own, open_client=open_client)

    def learn(self, topic: str, now: float) -> None:
        """Request the partitions and leaders of all topics, if the client may not know this topic.

        Otherwise librdkafka waits up to a second before it requests a topic that is assigned. It requests the
        first topic of a client at once. ``now``: monotonic seconds.
        """
        if self._known.get(topic, now) > now:
            return
        listed: Mapping[str, Any] = {}
        if self._known:
            with suppress(KafkaException):  # the read itself reports an error that lasts
                listed = self.consumer.list_topics(timeout=_LIST_SECONDS).topics
        self._known |= dict.fromkeys((topic, *listed), now + _KNOWN_SECONDS)

    def topic_id(self, topic: str) -> str:
        """Returns Kafka's id of a topic. A recreated topic has another id.

        confluent-kafka's consumer does not expose topic ids, so an admin client requests it.

        Raises:
            BrokerUnavailableError: No broker answers, or the topic does not exist.
            SourceError: The brokers refuse the request.
        """
        with translated_kafka_errors():
            # A client without waiting events is false, because its length is their number.
            admin = self._renew_admin() if self._admin is None else self._admin
            asked = describe_topics(admin, [topic], self._renew_admin)
            return str(asked[topic].result().topic_id)

    def _renew_admin(self) -> AdminClient:
        own = {"error_cb": self.note_error}
        self._admin = self._open_client(AdminClient, self.settings, own, logger=SILENT)
        return self._admin

    def leak(self) -> None:
        """Never destroy the clients, because they belong to the parent process of this forked process."""
        for client in (self.consumer, self._admin):
            if client is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


# Settings for which librdkafka accepts a second name. The last one set wins, so a default is omitted if the
# user sets either name.
_ALIASES: Final = {"max.partition.fetch.bytes": "fetch.message.max.bytes"}


class _Consumers:
    """The idle consumers of a process, the least recently used first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[OpenConsumer] = []

    def take(self, properties: Mapping[str, Any]) -> OpenConsumer:
        """Returns an idle consumer with these properties, or a new one."""
        digest = _digest(properties)
        with self._lock:
            for position, consumer in enumerate(reversed(self._idle), 1):
                if consumer.digest == digest:
                    return self._idle.pop(-position)
        return OpenConsumer(digest, properties)

    def give_back(self, used: OpenConsumer) -> None:
        """Keep a consumer for its next use. Close the least recently used one if there are too many."""
        # An unassigned consumer fetches nothing ahead, and releases the records that it fetched.
        used.consumer.unassign()
        used.client_error, used.answer_refused = None, False
        with self._lock:
            self._idle.append(used)
            over = self._idle.pop(0) if len(self._idle) > MOST_IDLE else None
        if over is not None:
            over.close()

    def close(self) -> None:
        """Close the idle consumers."""
        with self._lock:
            idle, self._idle = self._idle, []
        for consumer in idle:
            consumer.close()

    def after_fork(self) -> None:
        """Discard the consumers in a forked child process, which does not have librdkafka's threads."""
        for consumer in self._idle:
            consumer.leak()
        self._lock, self._idle = threading.Lock(), []


_CONSUMERS: Final = _Consumers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_CONSUMERS.after_fork)


def _digest(properties: Mapping[str, Any]) -> str:
    text = json.dumps(sorted((name, str(value)) for name, value in properties.items()))
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def open_consumer(properties: Mapping[str, Any]) -> Iterator[OpenConsumer]:
    """Open a consumer for exclusive use within the context, or reuse an idle one with the same properties.

    The consumer becomes idle at the end of the context. It is closed if an error is raised in the context.

    Raises:
        ConfigError: librdkafka refuses the properties.
    """
    used = _CONSUMERS.take(properties)
    try:
        yield used
    except GeneratorExit:  # the caller stops early, but the consumer is sound
        _CONSUMERS.give_back(used)
        raise
    except BaseException:
        used.close()
        raise
    _CONSUMERS.give_back(used)


def close_idle_consumers() -> None:
    """Close the idle consumers of this process, because it will fetch no more. This may take seconds."""
    _CONSUMERS.close()


HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# Column names as in Spark's Kafka source. timestamp is ms since 1970, null for a record without one.
SCHEMA: Final = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        # The epoch of the leader that wrote the record, or null if it is not known.
        ("leader_epoch", pa.int32()),
    ]
)

# Maximum number of records per consume call. With so few, their objects stay in the CPU cache (a third of the
# CPU of 20,000 records).
_CONSUME_RECORDS: Final = 250
# Seconds without a record after which a fetch that nobody waits for ends.
_STOP_SECONDS: Final = 2.0
_BYTES: Final = pa.binary()
_FIRST_CONSUME: Final = 64
_SECOND: Final = itemgetter(1)


class FetchRange(NamedTuple):
    """Offsets ``[start, end)`` of one partition to read.

    Attributes:
        topic_id: Kafka's id of the topic, which is checked after the read. None: no check.
        timestamps: False: the ``timestamp`` column is null. Reading timestamps takes a tenth of the time.
        headers: False: the ``headers`` column is null.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None
    timestamps: bool = True
    headers: bool = True

    @property
    def records(self) -> int:
        """The number of offsets in the range."""
        return self.end - self.start

    @property
    def place(self) -> tuple[str, int]:
        """The topic and the partition."""
        return self.topic, self.partition

    @property
    def numbering(self) -> tuple[str, int]:
        """The topic and the partition, which the range's records have."""
        return self.place

    @property
    def label(self) -> str:
        """The range as errors name it."""
        return f"{self.topic}[{self.partition}] from offset {self.start} to {self.end}"


@dataclass(frozen=True)
class FetchLimits:
    """Limits of one record batch, and of the time to wait.

    Attributes:
        records: Most records of a batch.
        bytes: Most bytes of keys and values in a batch. A larger record is a batch of its own.
        silence: Seconds without any answer after which the brokers count as unavailable.
        refusal: Seconds after which a refused login, or a partition that ends before the range, is an error.
    """

    records: int = 16_384
    bytes: int = 16 << 20
    silence: float = 60.0
    refusal: float = 10.0


_DEFAULT_LIMITS: Final = FetchLimits()


def _goes_on() -> bool:
    return False


def fetch(
    wanted: FetchRange,
    properties: Mapping[str, Any],
    *,
    limits: FetchLimits = _DEFAULT_LIMITS,
    is_stopped: Callable[[], bool] = _goes_on,
) -> Iterator[pa.RecordBatch]:
    """Yields the records of an offset range in the order of their offsets, with the columns of ``SCHEMA``.

    An empty range sends no request. ``wanted.topic_id`` is checked after the last batch, which proves that
    all records are from that topic. ``properties``: client properties of confluent-kafka, with
    ``bootstrap.servers``. ``is_stopped``: True if nobody waits for the records any more. This is asked while
    no record arrives.

    Raises:
        ConfigError: librdkafka refuses the properties.
        SourceError: The offsets expired, the topic was recreated, or the brokers refuse the request.
        BrokerUnavailableError: No broker answers within ``limits.silence`` seconds.
        StopRequestedError: ``is_stopped``, and no broker has answered for some seconds.
    """
    if wanted.start >= wanted.end:
        return
    with open_consumer(properties) as opened:
        opened.learn(wanted.topic, time.monotonic())
        yield from _Batches(opened, wanted, limits, is_stopped).read()
        _check_topic(opened, wanted)


@dataclass(frozen=True)
class KafkaFetch:
    """The function ``fetch`` with fixed client properties, which may have secrets.

    It is pickled for Spark's tasks, without ``is_stopped``: Spark itself ends its tasks.

    ``is_stopped``: True if the worker in this process was stopped.
    """

    properties: Mapping[str, Any] = field(repr=False)
    is_stopped: Callable[[], bool] = field(default=_goes_on, repr=False, compare=False)

    def __call__(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        """Yields the records of an offset range as ``fetch`` does, with the columns of ``SCHEMA``."""
        return fetch(wanted, self.properties, is_stopped=self.is_stopped)

    def __reduce__(self) -> tuple[Any, ...]:
        return KafkaFetch, (self.properties,)


def _check_topic(opened: OpenConsumer, wanted: FetchRange) -> None:
    if wanted.topic_id is None:
        return
    topic_id = opened.topic_id(wanted.topic)
    if topic_id != wanted.topic_id:
        raise SourceError(
            f"The topic was deleted and recreated (its topic id is {topic_id}, {wanted.topic_id} was "
            "expected), so its offsets refer to other records now. The worker reports what to do when it "
            "plans the next batch.",
            topic=wanted.topic,
            partition=wanted.partition,
            offset=wanted.start,
        )


class _Joined(NamedTuple):
    """The keys or values of one consume call, concatenated.

    ``sizes``: bytes of each key or value. ``present``: False where a key or value is null; None if no key or
    value is null.
    """

    data: bytes
    sizes: npt.NDArray[np.int32]
    present: npt.NDArray[np.bool_] | None


def _joined(parts: list[bytes | None]) -> _Joined:
    present, whole = None, parts
    try:
        data = b"".join(parts)  # type: ignore[arg-type]
    except TypeError:
        present = np.fromiter((part is not None for part in parts), np.bool_, len(parts))
        whole = [part or b"" for part in parts]
        data = b"".join(whole)  # type: ignore[arg-type]
    return _Joined(data, np.fromiter(map(len, whole), np.int32, len(parts)), present)  # type: ignore[arg-type]


def _bytes_column(parts: Sequence[_Joined]) -> pa.Array:
    sizes = np.concatenate([part.sizes for part in parts])
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    bitmap = None
    if any(part.present is not None for part in parts):
        masks = [np.ones(len(part.sizes), bool) if part.present is None else part.present for part in parts]
        bitmap = pa.py_buffer(np.packbits(np.concatenate(masks), bitorder="little"))
    data = pa.py_buffer(b"".join([part.data for part in parts]))
    return pa.Array.from_buffers(_BYTES, len(sizes), [bitmap, pa.py_buffer(ends), data])


class _Part:
    """Columns of the messages that one consume call returned.

    They are read while the messages are in the CPU cache, with one C call per message and attribute.
    """

    def __init__(self, messages: Sequence[Message], wanted: FetchRange) -> None:
        self.count = len(messages)
        first, last = offset_of(messages[0]), offset_of(messages[-1])
        if last - first + 1 == self.count:  # no gap: offsets only grow
            self.offsets = np.arange(first, last + 1, dtype=np.int64)
        else:
            self.offsets = np.fromiter(map(Message.offset, messages), np.int64, self.count)
        self.keys = _joined(list(map(Message.key, messages)))
        self.values = _joined(list(map(Message.value, messages)))
        self.bytes = len(self.keys.data) + len(self.values.data)
        self.stamps = _stamps(messages) if wanted.timestamps else None
        has_headers = wanted.headers and any(map(Message.headers, messages))
        self.headers: list[Any] | None = list(map(Message.headers, messages)) if has_headers else None
        self.epochs = _epochs(messages)


def _epochs(messages: Sequence[Message]) -> npt.NDArray[np.int32]:
    """Returns the leader epoch of each message, or -1 for a message without an epoch."""
    first, last = messages[0].leader_epoch(), messages[-1].leader_epoch()
    if first == last:  # epochs never decrease along a log
        return np.full(len(messages), _epoch(first), np.int32)
    return np.fromiter((_epoch(message.leader_epoch()) for message in messages), np.int32, len(messages))


def _epoch(epoch: int | None) -> int:
    return -1 if epoch is None else epoch


def _stamps(messages: Sequence[Message]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(_SECOND, map(Message.timestamp, messages)), np.int64, len(messages))


def _record_batch(parts: Sequence[_Part], wanted: FetchRange) -> pa.RecordBatch:
    count = sum(part.count for part in parts)
    topic = pa.array([wanted.topic], pa.string())
    columns = [
        pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), topic),
        pa.array(np.full(count, wanted.partition, np.int32)),
        pa.array(np.concatenate([part.offsets for part in parts])),
        _timestamp_column([part.stamps for part in parts if part.stamps is not None], count),
        _bytes_column([part.keys for part in parts]),
        _bytes_column([part.values for part in parts]),
        _header_column(parts, count),
        _epoch_column(np.concatenate([part.epochs for part in parts])),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _timestamp_column(parts: Sequence[npt.NDArray[np.int64]], count: int) -> pa.Array:
    if not parts:
        return pa.nulls(count, pa.int64())
    stamps = np.concatenate(parts)
    # librdkafka returns -1 for a record without a timestamp.
    return pa.array(stamps, mask=stamps < 0 if stamps.min() < 0 else None)


def _epoch_column(epochs: npt.NDArray[np.int32]) -> pa.Array:
    return pa.array(epochs, mask=epochs < 0 if epochs.min() < 0 else None)


def last_record(records: pa.RecordBatch) -> LastRecord | None:
    """Returns the offset and leader epoch of the last record of a batch.

    Returns None if the batch is empty or its last record has no leader epoch.
    """
    column = records.schema.get_field_index("leader_epoch")
    epoch = records.column(column)[-1].as_py() if column >= 0 and records.num_rows else None
    return None if epoch is None else LastRecord(records.column("offset")[-1].as_py(), epoch)


def _header_column(parts: Sequence[_Part], count: int) -> pa.Array:
    if all(part.headers is None for part in parts):
        return pa.nulls(count, HEADERS)
    header_lists = (headers for part in parts for headers in part.headers or [None] * part.count)
    rows = [
        [{"key": name, "value": value} for name, value in headers] if headers else None
        for headers in header_lists
    ]
    return pa.array(rows, HEADERS)


class _Batches:
    """Reads one offset range with an open consumer, once."""

    def __init__(
        self, opened: OpenConsumer, wanted: FetchRange, limits: FetchLimits, is_stopped: Callable[[], bool]
    ) -> None:
        self._opened, self._wanted, self._limits = opened, wanted, limits
        self._is_stopped = is_stopped
        self._silent_since: float | None = None
        self._ask = _FIRST_CONSUME

    def read(self) -> Iterator[pa.RecordBatch]:
        wanted, limits, records, size = self._wanted, self._limits, 0, 0
        waits = ReadLimits(limits.silence, limits.refusal, expired=_EXPIRED, short=_SHORT)
        bounds = {wanted.partition: OffsetBounds(wanted.start, wanted.end)}
        reader = RangeReader(self._opened, wanted.topic, bounds, waits)
        parts: list[_Part] = []
        while not reader.is_complete():
            messages = reader.consume(self._ask)
            self._check_stop(bool(messages))
            for part in self._fitting(messages):
                records, size = records + part.count, size + part.bytes
                if parts and (records > limits.records or size > limits.bytes):
                    yield _record_batch(parts, wanted)
                    parts, records, size = [], part.count, part.bytes
                parts.append(part)
        if parts:
            yield _record_batch(parts, wanted)

    def _check_stop(self, answered: bool) -> None:
        """Raise StopRequestedError if nobody waits for the records, and none has arrived for a while."""
        now = time.monotonic()
        if answered:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since >= _STOP_SECONDS and self._is_stopped():
            raise StopRequestedError

    def _fitting(self, messages: list[Message]) -> Iterator[_Part]:
        """Split the messages into parts that each fit into a record batch.

        A single record may exceed the limit of bytes.
        """
        if not messages:
            return
        part, limits = _Part(messages, self._wanted), self._limits
        # The next consume call requests as many records of this size as fit into an eighth of a batch.
        most = max(1, limits.bytes // 8 * part.count // max(1, part.bytes))
        self._ask = min(2 * self._ask, _CONSUME_RECORDS, limits.records, most)
        if part.count == 1 or part.bytes <= limits.bytes:
            yield part
        else:
            yield from self._fitting(messages[: part.count // 2])
            yield from self._fitting(messages[part.count // 2 :])


_EXPIRED: Final = (
    'Load the table again from a snapshot (docs/schema-changes.md, "Load a table again"). If a gap is '
    "acceptable, set start to an offset that Kafka still has when you load it again."
)
_SHORT: Final = (
    "Compare the topic's id with the id in the stored progress. If they differ, load the table again from a "
    "snapshot."
)
