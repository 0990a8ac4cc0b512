"""A range of offsets of one topic-partition as Arrow record batches, read with librdkafka.

``fetch`` reads offsets ``[start, end)`` under ``read_committed``. Control records, aborted records and
compaction leave gaps, also at the end of a range, so a range is complete when a record at or past ``end``
arrives, or when the partition's EOF is at or past ``end``. (``Consumer.position()`` does not tell.)

Memory: a fetch holds one batch (``FetchLimits``), one consume call of at most an eighth of a batch's
bytes by the sizes seen so far, and librdkafka's queue (``queued.max.messages.kbytes`` and one fetch
response; see ``consumers.FETCH_SETTINGS``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from tidesink.errors import SourceError, SourceUnavailableError
from tidesink.sinks.kafka.consumers import OpenConsumer, open_consumer

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# As Spark's Kafka source names the columns; timestamp is ms since 1970, null where the record has none.
SCHEMA: Final = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)

# Few at a time: the objects of a consume call then stay in the processor's cache (half the CPU of 20,000).
_CONSUME_RECORDS: Final = 500
_FIRST_CONSUME: Final = 64
# How long one call waits for records, which also bounds how late the end of a range is seen.
_CONSUME_SECONDS: Final = 0.02
_WATERMARK_SECONDS: Final = 5.0
# An error of the client as a whole names no topic: what an earlier read left behind comes sooner than this.
_ABSENT_SECONDS: Final = 1.0
_SECOND: Final = itemgetter(1)


class FetchRange(NamedTuple):
    """Offsets ``[start, end)`` of one partition; ``topic_id``, where known, is checked after the read."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None


@dataclass(frozen=True)
class FetchLimits:
    """Bounds of one record batch and of waiting.

    ``records`` and ``bytes`` (keys, values and headers): a batch ends before it exceeds either; a record
    that is larger alone is a batch of its own. ``silence``: seconds without any answer after which the
    brokers count as unavailable. ``refusal``: seconds after which a refused login, or a partition that
    ends before the range does, is an error.
    """

    records: int = 20_000
    bytes: int = 16 << 20
    silence: float = 60.0
    refusal: float = 10.0


_DEFAULT_LIMITS: Final = FetchLimits()


def fetch(
    wanted: FetchRange, properties: Mapping[str, Any], *, limits: FetchLimits = _DEFAULT_LIMITS
) -> Iterator[pa.RecordBatch]:
    """The records of a range in the order of their offsets; ``SCHEMA`` names the columns.

    ``properties`` are those of ``client_properties``, with ``bootstrap.servers``. An empty range asks no
    broker. ``topic_id`` is checked after the last batch: then all that was read is of that topic.

    Raises:
        ConfigError: the properties are refused.
        SourceError: the offsets expired, the topic was created again, or the brokers refuse.
        SourceUnavailableError: no broker answers within ``limits.silence``.
    """
    if wanted.start >= wanted.end:
        return
    with open_consumer(properties) as opened:
        yield from _RangeReader(opened, wanted, limits).batches()
        _check_topic(opened, wanted)


def _check_topic(opened: OpenConsumer, wanted: FetchRange) -> None:
    if wanted.topic_id is None:
        return
    found = opened.topic_id(wanted.topic)
    if found != wanted.topic_id:
        raise SourceError(
            f"the topic was deleted and created again (its topic id is {found}, {wanted.topic_id} was "
            "planned), so its offsets mean other records now. Plan the batch again to see the way out",
            topic=wanted.topic,
            partition=wanted.partition,
            offset=wanted.start,
        )


class _Piece(NamedTuple):
    """The columns of one consume call; ``headers`` is None where no record has any."""

    offsets: Any
    timestamps: pa.Array
    keys: pa.Array
    values: pa.Array
    headers: pa.Array | None

    @property
    def nbytes(self) -> int:
        headers = self.headers.nbytes if self.headers is not None else 0
        return int(self.keys.nbytes + self.values.nbytes + headers)

    def slice(self, start: int, length: int) -> _Piece:
        return _Piece(
            self.offsets[start : start + length],
            *(column if column is None else column.slice(start, length) for column in self[1:]),
        )


class _RangeReader:
    """Reads one range once."""

    def __init__(self, opened: OpenConsumer, wanted: FetchRange, limits: FetchLimits) -> None:
        self._opened, self._consumer = opened, opened.consumer
        self._wanted, self._limits = wanted, limits
        self._next = wanted.start
        self._complete = False
        self._ask = _FIRST_CONSUME
        self._heard = time.monotonic()
        self._short_end: int | None = None  # where the partition ends, while that is before the range's end
        self._error: KafkaError | None = None  # the last one that librdkafka tries again by itself

    def batches(self) -> Iterator[pa.RecordBatch]:
        wanted, held, records, size = self._wanted, list[_Piece](), 0, 0
        try:
            self._consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.start)])
            while not self._complete:
                for piece in self._fitting(self._consume()):
                    count, weight = len(piece.offsets), piece.nbytes
                    if held and (
                        records + count > self._limits.records or size + weight > self._limits.bytes
                    ):
                        yield _record_batch(wanted, held)
                        held, records, size = [], 0, 0
                    held.append(piece)
                    records, size = records + count, size + weight
        except KafkaException as exc:
            self._heed(exc.args[0])
            raise self._unavailable(exc.args[0]) from exc
        if held:
            yield _record_batch(wanted, held)

    def _consume(self) -> _Piece | None:
        """What one call gives of the range's records."""
        most = min(self._ask, self._wanted.end - self._next)
        messages = self._consumer.consume(most, _CONSUME_SECONDS)
        if messages and any(map(Message.error, messages)):
            messages = self._sound(messages)
        if not messages:
            self._check_silence()
            return None
        messages = self._within(messages)
        if not messages:
            return None
        piece = _piece(messages)
        self._pace(piece)
        return piece

    def _within(self, messages: list[Message]) -> list[Message]:
        """The messages of the range; notes how far the read has come."""
        self._heard, self._error = time.monotonic(), None
        first, last = _offset(messages[0]), _offset(messages[-1])
        if first < self._next or last >= self._wanted.end or not self._is_ours(messages[0]):
            messages = [one for one in messages if self._is_ours(one) and _offset(one) >= self._next]
            last = _offset(messages[-1]) if messages else last
            self._complete = bool(messages) and last >= self._wanted.end
            messages = [one for one in messages if _offset(one) < self._wanted.end]
        if messages:
            self._next = _offset(messages[-1]) + 1
            if self._short_end is not None and self._next > self._short_end:
                self._short_end = None
        self._complete = self._complete or self._next >= self._wanted.end
        return messages

    def _is_ours(self, message: Message) -> bool:
        return message.partition() == self._wanted.partition and message.topic() == self._wanted.topic

    def _pace(self, piece: _Piece) -> None:
        """Ask next for as many records as an eighth of a batch's bytes holds, by the size of these."""
        each = max(1, piece.nbytes // len(piece.offsets))
        most = max(1, self._limits.bytes // 8 // each)
        self._ask = min(2 * self._ask, _CONSUME_RECORDS, self._limits.records, most)

    def _fitting(self, piece: _Piece | None) -> Iterator[_Piece]:
        """A piece cut until each part fits into a batch, or is one record."""
        if piece is None:
            return
        count = len(piece.offsets)
        if count == 1 or (piece.nbytes <= self._limits.bytes and count <= self._limits.records):
            yield piece
            return
        half = count // 2
        yield from self._fitting(piece.slice(0, half))
        yield from self._fitting(piece.slice(half, count - half))

    def _sound(self, messages: list[Message]) -> list[Message]:
        """The messages that are records; notes the partition's end, and raises what is an error."""
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() != KafkaError._PARTITION_EOF:
                self._heed(error)
            elif self._is_ours(message):
                self._see_end(_offset(message))
        return records

    def _see_end(self, end: int) -> None:
        self._heard = time.monotonic()
        if end >= self._wanted.end:
            self._complete = True
        else:
            self._short_end = end

    def _heed(self, error: KafkaError) -> None:
        """Raise an error that librdkafka does not get over by itself; remember the others."""
        code = error.code()
        if code in _OF_THE_GROUP:
            return
        if code == KafkaError._AUTO_OFFSET_RESET:
            raise self._out_of_range()
        if code in _ABSENT:
            raise self._failure(
                SourceUnavailableError,
                f"Kafka knows no such partition ({error.name()}): the topic was deleted, or its brokers are "
                "starting; look at the topic again",
            )
        if code in _REFUSED:
            raise self._failure(SourceError, f"Kafka refuses ({error.name()}): {_REFUSED[code]}")
        if error.fatal() or not (error.retriable() or code in _PASSING):
            raise self._failure(
                SourceError, f"Kafka cannot give the records ({error.name()}): see the broker's log"
            )
        self._error = error

    def _check_silence(self) -> None:
        """Raise where the wait is over its limit."""
        if self._complete:
            return
        waited = time.monotonic() - self._heard
        refused = self._opened.client_error
        if refused is not None and refused.code() in _ABSENT and waited > _ABSENT_SECONDS:
            self._heed(refused)
        if waited > self._limits.refusal:
            if self._short_end is not None:
                raise self._ends_early(self._short_end)
            if refused is not None and refused.code() in _REFUSED:
                raise self._failure(
                    SourceError, f"Kafka refuses ({refused.name()}): {_REFUSED[refused.code()]}"
                )
        if waited > self._limits.silence:
            raise self._unavailable(self._error or refused)

    def _unavailable(self, error: KafkaError | None) -> SourceError:
        name = f" ({error.name()})" if error is not None else ""
        return self._failure(
            SourceUnavailableError,
            f"no answer from Kafka for {self._limits.silence:.0f} seconds{name}: do the brokers run, and is "
            "bootstrap.servers right?",
        )

    def _ends_early(self, end: int) -> SourceError:
        return self._failure(
            SourceError,
            f"the partition ends at {end}, and records up to offset {self._wanted.end} were expected: Kafka "
            "lost records, or the topic was deleted and created again. Compare the topic's id with the "
            "stored progress, and load the table again from a snapshot where they differ",
        )

    def _out_of_range(self) -> SourceError:
        low, high = self._watermarks()
        if low is not None and low > self._next:
            why = f"expired: the partition begins at {low} now, since its retention is shorter than the delay"
        elif high is not None:
            why = (
                f"do not exist: the partition ends at {high}, so Kafka lost records or the topic is a new one"
            )
        else:
            why = "do not exist: they expired, or the topic was deleted and created again"
        return self._failure(
            SourceError,
            f"offsets from {self._next} on {why}. Nothing was skipped: load the table again from a snapshot, "
            "or name the offset to go on from where a gap is acceptable",
        )

    def _watermarks(self) -> tuple[int | None, int | None]:
        place = TopicPartition(self._wanted.topic, self._wanted.partition)
        try:
            found = self._consumer.get_watermark_offsets(place, timeout=_WATERMARK_SECONDS)
        except KafkaException:
            return None, None
        return found if found is not None else (None, None)

    def _failure(self, error: type[SourceError], text: str) -> SourceError:
        wanted = self._wanted
        return error(text, topic=wanted.topic, partition=wanted.partition, offset=self._next)


def _offset(message: Message) -> int:
    found = message.offset()
    return -1 if found is None else int(found)


def _piece(messages: Sequence[Message]) -> _Piece:
    """Columns of messages, each read once with a method of C."""
    count, first = len(messages), _offset(messages[0])
    if _offset(messages[-1]) - first + 1 == count:  # no gap: offsets only grow
        offsets = np.arange(first, first + count, dtype=np.int64)
    else:
        offsets = np.fromiter(map(Message.offset, messages), np.int64, count)
    stamps = np.fromiter(map(_SECOND, map(Message.timestamp, messages)), np.int64, count)
    return _Piece(
        offsets,
        # librdkafka gives -1 for a record without a timestamp.
        pa.array(stamps, mask=stamps < 0 if stamps.min() < 0 else None),
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
        _headers(messages) if any(map(Message.headers, messages)) else None,
    )


def _headers(messages: Sequence[Message]) -> pa.Array:
    found: list[Any] = list(map(Message.headers, messages))
    rows = [[{"key": name, "value": value} for name, value in one] if one else None for one in found]
    return pa.array(rows, HEADERS)


def _record_batch(wanted: FetchRange, pieces: Sequence[_Piece]) -> pa.RecordBatch:
    offsets = np.concatenate([piece.offsets for piece in pieces])
    count = len(offsets)
    columns = [
        pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([wanted.topic], pa.string())),
        pa.array(np.full(count, wanted.partition, np.int32)),
        pa.array(offsets),
        pa.concat_arrays([piece.timestamps for piece in pieces]),
        pa.concat_arrays([piece.keys for piece in pieces]),
        pa.concat_arrays([piece.values for piece in pieces]),
        _joined_headers(pieces, count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _joined_headers(pieces: Sequence[_Piece], count: int) -> pa.Array:
    if all(piece.headers is None for piece in pieces):
        return pa.nulls(count, HEADERS)
    return pa.concat_arrays(
        [
            pa.nulls(len(piece.offsets), HEADERS) if piece.headers is None else piece.headers
            for piece in pieces
        ]
    )


# The group is never joined: that this user may not use it is of no matter.
_OF_THE_GROUP: Final = frozenset(
    {
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._WAIT_COORD,
    }
)
_ABSENT: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
_LOGIN: Final = "check security.protocol, sasl.mechanism, and the user's name and password or token"
_REFUSED: Final[Mapping[int, str]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "this user needs the right to read and describe the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "this user needs rights on the cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user needs rights on the cluster",
    KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: "the listener does not offer this sasl.mechanism",
    KafkaError.ILLEGAL_SASL_STATE: _LOGIN,
    KafkaError._AUTHENTICATION: _LOGIN,
    KafkaError._SSL: "check ssl.ca.location, that the brokers' certificates name their hosts, and, with "
    "mutual TLS, ssl.certificate.location and ssl.key.location",
    KafkaError._BAD_COMPRESSION: "a record batch does not decompress: the data on the broker are damaged",
    KafkaError._BAD_MSG: "a record batch has an invalid checksum or framing: the data are damaged",
}
# What librdkafka tries again by itself without saying that it is retriable.
_PASSING: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)
