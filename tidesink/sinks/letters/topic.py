"""Dead letters: undecodable records in a Kafka topic in the form of Kafka Connect's dead letter queue.

The tasks of a batch write letters (``write_letters``), and a replay reads their original records again
(``read_records``). People count, show, drop and settle letters (``DeadLetters``). A reader reads the topic up
to the end that the topic has when the reader starts.

A letter has the key, the value and the headers of the record that could not be decoded, unchanged. After the
record's own headers come Kafka Connect's context headers (``DeadLetterQueueReporter``: UTF-8 texts, numbers
as digits) and then tidesink's headers, which identify the record.
=========================================  ==================================================================
header                                     value
=========================================  ==================================================================
``__connect.errors.topic``                 topic of the record, then its ``.partition`` and its ``.offset``
``__connect.errors.connector.name``        the pipeline
``__connect.errors.task.id``               number of the Spark task that wrote the letter
``__connect.errors.stage``                 ``VALUE_CONVERTER``
``__connect.errors.class.name``            the codec
``__connect.errors.exception.class.name``  the error's class; then ``.message`` and ``.stacktrace``
``__tidesink.errors.kind``                 ``letter``, ``dealt-with`` or ``still-bad``
``__tidesink.errors.table``                source table, ``schema.name``
``__tidesink.errors.topic.id``             Kafka's id of the record's topic
``__tidesink.errors.timestamp``            Kafka's timestamp of the record, in ms since 1970
``__tidesink.errors.key.schema.id``        registry id; ``value.schema.id`` likewise
``__tidesink.errors.batch``                batch that read the record; ``epoch`` likewise
=========================================  ==================================================================

A header without a value is empty. If several headers have the same name, the last one is tidesink's, because
the record may have had a header of that name. Later changes of a letter are written as *marks*: records
without key and value whose headers name the letter. A ``dealt-with`` mark ends the letter, because the record
was applied or a person dropped it. A ``still-bad`` mark has the letter's newest error. Letters and marks are
all written to partition 0, so that Kafka keeps their order. A retried batch writes its letters again, so
readers use one letter of each identity: pipeline, table, topic id, topic, partition, offset.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tidesink.config import Config
from tidesink.errors import ConfigError, SourceError, SourceUnavailableError
from tidesink.events import TableId
from tidesink.kafka_client import OpenClient, open_client
from tidesink.sinks.kafka.consume import AssignedConsumer, OffsetBounds, RangeReader, ReadLimits
from tidesink.sinks.kafka.offsets import describe_topics
from tidesink.sinks.state.progress import Progress

CONNECT: Final = "__connect.errors."
OURS: Final = "__tidesink.errors."
LETTER: Final = "letter"
DEALT_WITH: Final = "dealt-with"
STILL_BAD: Final = "still-bad"
# The only partition of the dead letter topic that is written and read.
PARTITION: Final = 0
# Input of ``write_letters``. The headers are the record's own. The schema ids are the registry's, or null.
LETTER_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("key_schema_id", pa.int32()),
        ("value_schema_id", pa.int32()),
        ("error", pa.string()),
        ("reason", pa.string()),
    ]
)
# Output of ``read_records``: the original records, as they are in the source topic.
RECORD_SCHEMA: Final = pa.schema(list(LETTER_SCHEMA)[:7])
_FIRST_HEADER: Final = f"{CONNECT}topic"
# The form in which tidesink writes partitions and offsets. Python's own parser would accept '1_0' and ' 1'
# too.
_DIGITS: Final = re.compile(r"\d{1,19}", re.ASCII)
_MOST_INT: Final = 2**31 - 1
_MOST_LONG: Final = 2**63 - 1
_MODULE: Final = "tidesink.errors."
# A value may have many MB, so only this many records are Python objects at the same time.
_ROWS_A_SLICE: Final = 20
_ROWS_A_BATCH: Final = 1000
_BYTES_A_BATCH: Final = 8_000_000
_SILENCE: Final = 30.0
_POLL: Final = 0.1
_AT_ONCE: Final = 500
_DELIVERY_MS: Final = 60_000
_QUIET: Final[Mapping[str, Any]] = {"log_level": 0, "error_cb": lambda _error: None}
_READS: Final[Mapping[str, Any]] = {
    "group.id": "tidesink-dead-letters",
    "auto.offset.reset": "earliest",
    # Letters are not written in transactions. An open transaction of another program must not delay reading
    # them.
    "isolation.level": "read_uncommitted",
}
# A partition that ends early counts as one that does not answer: the next attempt requests its end again.
_LIMITS: Final = ReadLimits(silence=_SILENCE, refusal=math.inf)
Headers = Sequence[tuple[str, bytes | None]]
# pipeline, table, topic id, topic, partition, offset
Identity = tuple[str, str, str, str, int, int]

_MISSING: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
# Errors that retries cannot overcome. All other errors may pass.
_PERMANENT: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Allow the user of source.kafka to describe, read and write the "
    "topic, and to create it if it does not exist.",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Allow the user of source.kafka to create the topic, or create "
    "it yourself.",
    KafkaError.SASL_AUTHENTICATION_FAILED: "Check sasl.username and sasl.password under source.kafka.",
    KafkaError._AUTHENTICATION: "Check security.protocol and the sasl settings under source.kafka.",
    KafkaError.MSG_SIZE_TOO_LARGE: "A dead letter is the record plus 2 KB of headers or more. Set the "
    "topic's max.message.bytes higher than that of the source topics.",
    KafkaError.RECORD_LIST_TOO_LARGE: "Raise the topic's max.message.bytes.",
    KafkaError.TOPIC_EXCEPTION: "Kafka does not accept this topic name. Change "
    "errors.deadletterqueue.topic.name.",
    KafkaError.INVALID_REPLICATION_FACTOR: "The cluster has fewer brokers than the requested replicas. Set "
    "errors.deadletterqueue.topic.replication.factor to at most the number of brokers.",
    KafkaError.INVALID_RECORD: "The broker refuses the record. The topic must have cleanup.policy=delete.",
    KafkaError.POLICY_VIOLATION: "A policy of the broker does not allow this topic. Create the topic "
    "yourself.",
    KafkaError._INVALID_ARG: "Check the client settings under source.kafka.",
}


@dataclass(frozen=True)
class LetterTopic:
    """The topic of a pipeline's dead letters.

    Attributes:
        properties: Client properties of confluent-kafka. They may have secrets.
        replication_factor: Number of replicas if the topic must be created. -1: the brokers' default. None:
            the number of brokers, at most 3.
    """

    name: str
    properties: Mapping[str, str] = field(repr=False)
    replication_factor: int | None = None

    @property
    def place(self) -> str:
        """Returns the topic and its brokers as text for messages."""
        return f"topic {self.name} of {self.properties.get('bootstrap.servers', '')}"


@dataclass(frozen=True)
class LetterStamp:
    """Facts that all letters of one batch share.

    ``codec``: Python module of the codec that could not decode them.
    """

    pipeline: str
    table: str
    topic_id: str
    epoch: int
    batch: int
    codec: str

    @classmethod
    def of(cls, progress: Progress, *, topic_id: str, codec: str) -> LetterStamp:
        """Build the stamp for the letters of the batch that has this progress."""
        batch = progress.epoch, progress.batch
        return cls(progress.pipeline, str(progress.table), topic_id, *batch, f"tidesink.codecs.{codec}")


class Letter(NamedTuple):
    """A dead letter without the record's key and value.

    ``topic``, ``partition`` and ``offset`` locate the original record. ``time``: the original record's Kafka
    timestamp, in ms since 1970. ``at``: the letter's own offset in the dead letter topic.
    """

    pipeline: str
    table: str
    topic_id: str
    topic: str
    partition: int
    offset: int
    error: str
    reason: str
    time: int | None = None
    schema_id: int | None = None
    key_schema_id: int | None = None
    batch: int = 0
    epoch: int = 0
    at: int = 0

    @property
    def identity(self) -> Identity:
        """Identifies the letter by its record. A letter that is written again has the same identity."""
        return self[:6]


def letter_headers(row: Mapping[str, Any], stamp: LetterStamp, *, task: int = 0) -> Headers:
    """Returns a letter's headers: the record's own, Kafka Connect's and tidesink's.

    Args:
        row: The record, with the columns of ``LETTER_SCHEMA``.
        stamp: Facts about the batch that read the record.
        task: Number of the Spark task that writes the letter.
    """
    connect = {
        **{name: row[name] for name in ("topic", "partition", "offset")},
        "connector.name": stamp.pipeline,
        "task.id": task,
        "stage": "VALUE_CONVERTER",
        "class.name": stamp.codec,
        **_exception(row["error"] or "DecodeError", row["reason"] or ""),
    }
    ours = {
        "kind": LETTER,
        "table": stamp.table,
        "topic.id": stamp.topic_id,
        "timestamp": row["timestamp"],
        "key.schema.id": row["key_schema_id"],
        "value.schema.id": row["value_schema_id"],
        "batch": stamp.batch,
        "epoch": stamp.epoch,
    }
    own = [(header["key"], header["value"]) for header in row["headers"] or ()]
    return [*own, *_spelt(CONNECT, connect), *_spelt(OURS, ours)]


def mark_headers(letter: Letter, error: str | None = None, reason: str | None = None) -> Headers:
    """Returns the headers of a mark, which is a record that changes a letter's state.

    The mark is ``still-bad`` if an error is passed, otherwise ``dealt-with``.
    """
    location = {name: getattr(letter, name) for name in ("topic", "partition", "offset")}
    fault = {} if error is None else _exception(error, reason or "")
    connect = {**location, "connector.name": letter.pipeline, **fault}
    kind = DEALT_WITH if error is None else STILL_BAD
    ours = {"kind": kind, "table": letter.table, "topic.id": letter.topic_id}
    return [*_spelt(CONNECT, connect), *_spelt(OURS, ours)]


def read_headers(headers: Headers, at: int = 0) -> tuple[str, Letter] | None:
    """Returns the kind (letter or mark) and the letter that a record's headers describe.

    Returns None for a record that tidesink did not write. Kafka Connect and other programs may write to the
    same topic, and may even copy letters and add headers. ``at``: the record's offset in the dead letter
    topic.
    """
    indexes = {name: index for index, (name, _) in enumerate(headers)}
    if indexes.get(f"{OURS}kind", -1) < indexes.get(_FIRST_HEADER, 0):
        return None  # Connect's headers come last, so this is a copy of a letter that Connect could not read
    texts = {name: (value or b"").decode("utf-8", "replace") for name, value in headers}

    def text(name: str) -> str:
        return texts.get(f"{CONNECT}{name}", "")

    def number(name: str, most: int) -> int | None:
        return _number(texts.get(f"{OURS}{name}", ""), most)

    kind, table = texts[f"{OURS}kind"], texts.get(f"{OURS}table", "")
    partition, offset = _number(text("partition"), _MOST_INT), _number(text("offset"), _MOST_LONG)
    if kind not in (LETTER, DEALT_WITH, STILL_BAD) or partition is None or offset is None:
        return None
    if not (text("connector.name") and table and text("topic")):
        return None
    owner = text("connector.name"), table, texts.get(f"{OURS}topic.id", "")
    location = text("topic"), partition, offset
    error = text("exception.class.name").removeprefix(_MODULE), text("exception.message")
    ids = number("value.schema.id", _MOST_INT), number("key.schema.id", _MOST_INT)
    batch = number("batch", _MOST_LONG) or 0, number("epoch", _MOST_LONG) or 0
    letter = Letter(*owner, *location, *error, number("timestamp", _MOST_LONG), *ids, *batch, at)
    return kind, letter


def _number(text: str, most: int) -> int | None:
    """Parse the number in a header.

    Returns None if the text does not have the form in which tidesink writes numbers, or if the number exceeds
    ``most``.
    """
    number = int(text) if _DIGITS.fullmatch(text) else None
    return number if number is not None and number <= most else None


def original_headers(headers: Headers) -> Headers:
    """Returns the headers that the record had in its source topic."""
    starts = [index for index, (name, _) in enumerate(headers) if name == _FIRST_HEADER]
    return headers[: starts[-1]] if starts else headers


def _exception(error: str, reason: str) -> dict[str, str]:
    name = f"{_MODULE}{error}"
    return {
        "exception.class.name": name,
        "exception.message": reason,
        "exception.stacktrace": f"{name}: {reason}",
    }


def _spelt(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    for name, value in values.items():
        yield f"{prefix}{name}", b"" if value is None else str(value).encode("utf-8", "replace")


def write_letters(
    topic: LetterTopic, stamp: LetterStamp, batches: Iterable[pa.RecordBatch], *, task: int = 0
) -> int:
    """Write records to the dead letter topic. Returns the number of letters that the brokers acknowledged.

    Waits until all letters are acknowledged. ``batches`` have the columns of ``LETTER_SCHEMA``, in any order.

    Raises:
        SourceError: Kafka refuses a letter, and a retry would not help.
        SourceUnavailableError: Kafka does not accept a letter now.
    """
    with LetterWriter(topic) as writer:
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS_A_SLICE):
                for row in batch.slice(start, _ROWS_A_SLICE).to_pylist():
                    writer.send(row["key"], row["value"], letter_headers(row, stamp, task=task))
    return writer.acknowledged


class LetterWriter:
    """Sends records to the dead letter topic.

    The end of its context waits until the brokers have acknowledged all records.

    Raises:
        SourceError: Kafka refuses a record, and a retry would not help.
        SourceUnavailableError: Kafka does not accept a record now.
    """

    def __init__(self, topic: LetterTopic) -> None:
        self.acknowledged = 0
        self._topic = topic
        self._producer: Producer | None = None
        self._failed: KafkaError | None = None

    def __enter__(self) -> LetterWriter:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if self._producer is None:
            return
        if error is None:
            self._producer.flush()
            self._check()
        else:
            self._producer.purge()

    def send(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Send one record. Waits while the producer's queue is full."""
        # A producer without waiting messages is false, because its length is their number.
        producer = self._producer = self._opened() if self._producer is None else self._producer
        while True:
            self._check()
            try:
                producer.produce(
                    self._topic.name,
                    key=key,
                    value=value,
                    partition=PARTITION,
                    headers=list(headers),
                    on_delivery=self._delivered,
                )
            except BufferError:
                producer.poll(_POLL)
                continue
            except KafkaException as exc:
                raise letter_error(exc.args[0], self._topic) from exc
            producer.poll(0)
            return

    def _opened(self) -> Producer:
        # Source topics store compressed batches. Without compression a letter could be larger than the stored
        # record.
        own = {
            **_QUIET,
            "linger.ms": 20,
            "compression.type": "lz4",
            "acks": "all",
            "message.max.bytes": 1_000_000_000,
            "message.timeout.ms": _DELIVERY_MS,
        }
        return open_client(Producer, self._topic.properties, own)

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self._failed = self._failed or error

    def _check(self) -> None:
        if self._failed is not None:
            raise letter_error(self._failed, self._topic)


def letter_error(error: KafkaError, topic: LetterTopic) -> SourceError:
    """Convert a Kafka error about the dead letter topic to SourceError or SourceUnavailableError."""
    remedy = _PERMANENT.get(error.code())
    if remedy is not None:
        return SourceError(
            f"Kafka refuses a request for the dead letter topic ({error.name()}). {remedy}", topic=topic.name
        )
    trouble = (
        f"does not exist ({error.name()}). The next attempt creates it."
        if error.code() in _MISSING
        else f"does not answer ({error.name()}). Check that source.brokers is right and that the brokers run."
    )
    return SourceUnavailableError(f"The dead letter topic {trouble}", topic=topic.name)


@contextmanager
def _translated(topic: LetterTopic) -> Iterator[None]:
    """Convert confluent-kafka's exceptions to SourceError or SourceUnavailableError."""
    try:
        yield
    except KafkaException as exc:
        raise letter_error(exc.args[0], topic) from exc


def scan(topic: LetterTopic, *, start: int = 0, end: int | None = None) -> Iterator[Any]:
    """Yields the records of the dead letter topic from offset ``start`` on.

    The scan ends at the topic's end when the scan starts, or before offset ``end``. The topic must exist. The
    scan joins no consumer group and commits no offsets.

    Raises:
        SourceError: Kafka refuses the request.
        SourceUnavailableError: Kafka does not answer.
    """
    opened = AssignedConsumer(topic.properties, _READS)
    with _translated(topic), closing(opened):
        partition = TopicPartition(topic.name, PARTITION)
        low, high = opened.consumer.get_watermark_offsets(partition, timeout=_SILENCE)
        bounds = OffsetBounds(max(low, start), high if end is None else min(high, end))
        reader = RangeReader(opened, topic.name, {PARTITION: bounds}, _LIMITS)
        while not reader.is_complete():
            yield from reader.consume(_AT_ONCE, _POLL)


def live_letters(records: Iterable[tuple[str, Letter]]) -> list[Letter]:
    """Returns the letters that were neither applied nor dropped, in the order in which they were first
    written.

    A letter that was written several times is returned once, with the error of its newest mark. ``records``:
    kinds and letters of all records of the topic, in Kafka's order.
    """
    letters: dict[Identity, Letter] = {}
    for kind, letter in records:
        first = letters.get(letter.identity)
        if kind == LETTER:
            letters.setdefault(letter.identity, letter)
        elif kind == DEALT_WITH:
            letters.pop(letter.identity, None)
        elif first is not None:
            letters[letter.identity] = first._replace(error=letter.error, reason=letter.reason)
    return list(letters.values())


def records_at(topic: LetterTopic, offsets: Collection[int]) -> Iterator[Any]:
    """Yields the records of the dead letter topic at these offsets.

    Raises:
        SourceError: Kafka refuses the request.
        SourceUnavailableError: Kafka does not answer.
    """
    if not offsets:
        return
    wanted = frozenset(offsets)
    for record in scan(topic, start=min(wanted), end=max(wanted) + 1):
        if record.offset() in wanted:
            yield record


def read_records(topic: LetterTopic, offsets: Collection[int]) -> Iterator[pa.RecordBatch]:
    """Yields the original records of the letters at these offsets of the dead letter topic.

    The batches have the columns of ``RECORD_SCHEMA`` and at most about 8 MB of keys and values each.

    Raises:
        SourceError: Kafka refuses the request.
        SourceUnavailableError: Kafka does not answer.
    """
    rows: list[dict[str, Any]] = []
    held = 0
    for record in records_at(topic, offsets):
        parsed = read_headers(record.headers() or (), record.offset())
        if parsed is None:
            continue  # the dead letter topic was recreated during the read, so the letter no longer exists
        _, letter = parsed
        own = [{"key": name, "value": value} for name, value in original_headers(record.headers() or ())]
        location = letter.topic, letter.partition, letter.offset, letter.time
        values = (*location, record.key(), record.value(), own or None)
        rows.append(dict(zip(RECORD_SCHEMA.names, values, strict=True)))
        held += len(record.key() or b"") + len(record.value() or b"")
        if len(rows) >= _ROWS_A_BATCH or held >= _BYTES_A_BATCH:
            yield pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA)
            rows, held = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA)


_TIMEOUT: Final = 15.0
_PAUSE: Final = 0.2
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Letters have unlimited retention: they stay until a person or a replay deals with them.
_TOPIC_CONFIG: Final = {"cleanup.policy": "delete", "retention.ms": "-1"}


@dataclass(frozen=True)
class Chosen:
    """A filter for a pipeline's stored records (dead letters or DDL events).

    A record is selected if it matches every field that is not None.

    Attributes:
        topic_id: Kafka's id of the topic.
        before: Selects records with an older Kafka timestamp.
        below: Selects records with a smaller offset.
        kind: The class of a letter's error, or the effect of a DDL event.
    """

    pipeline: str
    table: str | None = None
    topic: str | None = None
    topic_id: str | None = None
    partition: int | None = None
    offset: int | None = None
    below: int | None = None
    before: datetime | None = None
    kind: str | None = None

    def fits(self, record: Any, *, kind: str) -> bool:
        """Returns True if the filter selects ``record``.

        The record has the attributes ``table``, ``topic``, ``topic_id``, ``partition``, ``offset`` and
        ``time`` (ms since 1970).
        """
        for name in ("table", "topic", "topic_id", "partition", "offset"):
            if getattr(self, name) not in (None, getattr(record, name)):
                return False
        if self.kind not in (None, kind) or (self.below is not None and record.offset >= self.below):
            return False
        before = self.before and (self.before - _EPOCH) / timedelta(milliseconds=1)
        return before is None or (record.time is not None and record.time < before)


@dataclass(frozen=True)
class RecordGroup:
    """Number, offsets and times of the letters that have the same table, partition and error."""

    table: str
    topic: str
    partition: int
    kind: str
    count: int
    first_offset: int
    last_offset: int
    first_time: datetime | None
    last_time: datetime | None
    topic_id: str | None = None


class Outcome(NamedTuple):
    """The result of replaying one letter. Without an error, the letter's record was applied."""

    topic_id: str
    topic: str
    partition: int
    offset: int
    error: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class DeadLetters:
    """The dead letters of one pipeline. May be used from several threads.

    Every method that sends requests raises SourceError if Kafka refuses a request, and SourceUnavailableError
    if Kafka does not answer.
    """

    pipeline: str
    topic: LetterTopic

    @property
    def place(self) -> str:
        """Returns the topic and its brokers as text for messages."""
        return self.topic.place

    def prepare(self) -> None:
        """Create the dead letter topic if it does not exist, with one partition and unlimited retention.

        Raises:
            SourceError: Kafka refuses a request, or the existing topic is compacted and would lose letters.
            SourceUnavailableError: Kafka does not answer, or does not list the new topic yet.
        """
        admin = _Admin(self.topic)
        if admin.is_there():
            admin.check_policy()
            return
        admin.create()
        deadline = time.monotonic() + _TIMEOUT
        while not admin.is_there():
            if time.monotonic() > deadline:
                raise SourceUnavailableError(
                    "The dead letter topic was created, but Kafka does not list it yet. Try again.",
                    topic=self.topic.name,
                )
            time.sleep(_PAUSE)

    def letters(self, chosen: Chosen) -> list[Letter]:
        """Returns the selected letters, in the order in which they were written."""
        if not _Admin(self.topic).is_there():
            return []
        records = (read_headers(record.headers() or (), record.offset()) for record in scan(self.topic))
        live = live_letters(
            parsed
            for parsed in records
            if parsed and parsed[1].pipeline == chosen.pipeline and chosen.table in (None, parsed[1].table)
        )
        return [letter for letter in live if chosen.fits(letter, kind=letter.error)]

    def groups(self, chosen: Chosen) -> tuple[RecordGroup, ...]:
        """Returns the selected letters grouped by table, topic, topic id, partition and error."""
        parts: dict[tuple[str, str, str, int, str], list[Letter]] = {}
        for letter in self.letters(chosen):
            key = letter.table, letter.topic, letter.topic_id, letter.partition, letter.error
            parts.setdefault(key, []).append(letter)
        return tuple(_group(part) for _, part in sorted(parts.items()))

    def rows(self, chosen: Chosen, *, limit: int) -> tuple[dict[str, Any], ...]:
        """Returns the first ``limit`` selected letters, sorted by table, topic, partition and offset.

        Each letter is a dict that also has the original record's key, value and headers.
        """
        letters = sorted(
            self.letters(chosen), key=lambda live_letter: (live_letter.table, *live_letter.identity[3:])
        )[:limit]
        records = {
            record.offset(): record for record in records_at(self.topic, {letter.at for letter in letters})
        }
        return tuple(_row(letter, records[letter.at]) for letter in letters if letter.at in records)

    def remove(self, chosen: Chosen) -> int:
        """Drop the selected letters by marking them as dealt with. Returns the number of dropped letters."""
        with LetterWriter(self.topic) as writer:
            for letter in self.letters(chosen):
                writer.send(None, None, mark_headers(letter))
        return writer.acknowledged

    def settle(self, outcomes: Iterable[Outcome], *, table: TableId) -> int:
        """Record the results of a replay. Returns the number of letters that the results belong to.

        A letter whose record was applied is marked as dealt with. A letter whose record failed again gets a
        mark with the new error, if it differs from the letter's current error. Results of records without a
        letter are ignored.
        """
        letters = {
            live_letter.identity: live_letter
            for live_letter in self.letters(Chosen(self.pipeline, str(table)))
        }
        settled = 0
        with LetterWriter(self.topic) as writer:
            for topic_id, topic, partition, offset, error, reason in outcomes:
                letter = letters.get((self.pipeline, str(table), topic_id, topic, partition, offset))
                if letter is None:
                    continue
                settled += 1
                if (error, reason) != (letter.error, letter.reason):
                    writer.send(None, None, mark_headers(letter, error, reason))
        return settled


def dead_letters_of(config: Config) -> DeadLetters:
    """Returns access to the dead letters of the config's pipeline. Sends no request to Kafka.

    Raises:
        ConfigError: ``errors.deadletterqueue.topic.name`` is not set.
    """
    settings = config.dead_letters
    if settings.topic is None:
        raise ConfigError(
            "The dead-letters section of the config names no topic. Set errors.deadletterqueue.topic.name "
            f"in this section, for example to {config.pipeline}-dead-letters. Only tables with bad-record: "
            "dead-letter store records there."
        )
    properties = config.source.confluent_properties()
    return DeadLetters(config.pipeline, LetterTopic(settings.topic, properties, settings.replication_factor))


def moment(ms: int | None) -> datetime | None:
    """Convert a Kafka timestamp in ms to a time in UTC.

    Returns None if Python's datetime cannot represent it.
    """
    try:
        return None if ms is None else _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def _group(part: Sequence[Letter]) -> RecordGroup:
    first, offsets = part[0], [letter.offset for letter in part]
    times = [time for time in (moment(letter.time) for letter in part) if time is not None]
    ends = min(offsets), max(offsets), min(times, default=None), max(times, default=None)
    return RecordGroup(
        first.table, first.topic, first.partition, first.error, len(part), *ends, first.topic_id
    )


def _row(letter: Letter, record: Any) -> dict[str, Any]:
    own = original_headers(record.headers() or ())
    shown = [[name, None if value is None else value.decode("utf-8", "replace")] for name, value in own]
    fields = {name: value for name, value in letter._asdict().items() if name != "at"}
    bytes_ = {"key": record.key(), "value": record.value()}
    return {**fields, **bytes_, "time": moment(letter.time), "headers": shown}


class TopicState(NamedTuple):
    """State of the dead letter topic. ``replicas``: its number of replicas if it must be created."""

    is_there: bool
    replicas: int = 0

    @property
    def shown(self) -> str:
        """The state as text for ``tidesink plan``."""
        if self.is_there:
            return "exists"
        count = "1 replica" if self.replicas == 1 else f"{self.replicas} replicas"
        replicas = "the brokers' default number of replicas" if self.replicas < 0 else count
        return f"is created with the first letter, with {replicas}"


def check_topic(topic: LetterTopic, *, open_client: OpenClient = open_client) -> TopicState:
    """Check that the dead letter topic exists or could be created. Changes nothing at the brokers.

    ``open_client``: opens the admin client.

    Raises:
        SourceError: Kafka refuses a request, or the existing topic is compacted and would lose letters.
        SourceUnavailableError: Kafka does not answer.
    """
    admin = _Admin(topic, open_client)
    if admin.is_there():
        admin.check_policy()
        return TopicState(is_there=True)
    return TopicState(is_there=False, replicas=admin.create(validate_only=True))


_MOST_REPLICAS: Final = 3


class _Admin:
    """Sends admin requests about the dead letter topic.

    Opens a new client if the controller does not answer.
    """

    def __init__(self, topic: LetterTopic, open_client: OpenClient = open_client) -> None:
        self._topic = topic
        self._open_client = open_client
        self._client = self._renew()

    def _renew(self) -> AdminClient:
        self._client = self._open_client(AdminClient, self._topic.properties, _QUIET)
        return self._client

    def is_there(self) -> bool:
        """Returns True if the topic exists. The request never creates the topic."""
        name = self._topic.name
        with _translated(self._topic):
            try:
                describe_topics(self._client, [name], self._renew)[name].result()
            except KafkaException as exc:
                if exc.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return False
                raise
            return True

    def create(self, *, validate_only: bool = False) -> int:
        """Create the topic if it does not exist. ``validate_only``: only check that the brokers would create
        it.

        Returns the number of replicas.
        """
        topic, replicas = self._topic, self._replicas()
        new = NewTopic(topic.name, 1, replicas, config=_TOPIC_CONFIG)
        options = {"operation_timeout": _TIMEOUT, "validate_only": validate_only}
        with _translated(topic):
            try:
                self._client.create_topics([new], **options)[topic.name].result()
            except KafkaException as exc:
                if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        return replicas

    def _replicas(self) -> int:
        """Returns the configured number of replicas, or the number of brokers that answer, at most three."""
        if self._topic.replication_factor is not None:
            return self._topic.replication_factor
        with _translated(self._topic):
            brokers = self._client.list_topics(timeout=_TIMEOUT).brokers
        return max(1, min(_MOST_REPLICAS, len(brokers)))

    def check_policy(self) -> None:
        """Raise SourceError if the topic is compacted.

        Compaction would keep only one of the letters that have the same key.

        The check is skipped if this user may not read the topic's settings.
        """
        resource = ConfigResource(ResourceType.TOPIC, self._topic.name)
        try:
            settings = self._client.describe_configs([resource], request_timeout=_TIMEOUT)[resource].result()
        except KafkaException as exc:
            if exc.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return
            with _translated(self._topic):
                raise
        policy = settings["cleanup.policy"].value if "cleanup.policy" in settings else "delete"
        if "compact" in policy:
            raise SourceError(
                f"The dead letter topic has cleanup.policy={policy}, which loses letters that have the same "
                "key. Set cleanup.policy=delete at the topic, or set errors.deadletterqueue.topic.name to "
                "another topic.",
                topic=self._topic.name,
            )
