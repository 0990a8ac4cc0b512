"""Dead letters: records of one Kafka topic, in the form of Kafka Connect's dead letter queue.

The tasks of a batch write them (``write_letters``), a replay reads them again (``read_records``), and people
count, show, drop and settle them (``DeadLetters``); whoever looks reads the topic to where it ends now.

A letter has the key, the value and the headers of the record that could not be decoded, unchanged. Behind
them come Kafka Connect's context headers (``DeadLetterQueueReporter``: UTF-8 texts, a text of digits for
each number) and ours, which say which record it is.

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
``__tidesink.errors.batch``                batch that met the record; ``epoch`` likewise
=========================================  ==================================================================

A header without a value is empty. The last header of a name is ours: the record may have had one of the name.
What becomes of a letter later is a *mark*: a record without key and value that names the letter.
``dealt-with`` ends it (applied, or dropped by a person), ``still-bad`` gives it today's error. Letters and
marks go to partition 0, so that their order is Kafka's. A batch that is tried again writes its letters
again; readers take one of each identity: pipeline, table, topic id, topic, partition, offset.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its stubs
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tidesink.config import Config
from tidesink.errors import ConfigError, SourceError, SourceUnavailableError
from tidesink.events import TableId
from tidesink.kafka_client import open_client
from tidesink.sinks.kafka.offsets import describe_topics
from tidesink.sinks.state.progress import Progress

CONNECT: Final = "__connect.errors."
OURS: Final = "__tidesink.errors."
LETTER: Final = "letter"
DEALT_WITH: Final = "dealt-with"
STILL_BAD: Final = "still-bad"
# The one partition that is used.
PARTITION: Final = 0
# What ``write_letters`` takes. Headers are the record's own; ids are of the registry, or null.
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
# What ``read_records`` gives: the records as they stood in their topic.
RECORD_SCHEMA: Final = pa.schema(list(LETTER_SCHEMA)[:7])
_FIRST_HEADER: Final = f"{CONNECT}topic"
# As Kafka has partitions and offsets. Python's own reader of numbers would take '1_0' and ' 1', too.
_DIGITS: Final = re.compile(r"\d{1,19}", re.ASCII)
_MOST_INT: Final = 2**31 - 1
_MOST_LONG: Final = 2**63 - 1
_MODULE: Final = "tidesink.errors."
# Values may have many MB each: few are Python objects at a time.
_ROWS_A_SLICE: Final = 20
_ROWS_A_BATCH: Final = 1000
_BYTES_A_BATCH: Final = 8_000_000
_SILENCE: Final = 30.0
_POLL: Final = 0.1
_AT_ONCE: Final = 500
_DELIVERY_MS: Final = 60_000
_QUIET: Final[Mapping[str, Any]] = {"log_level": 0, "error_cb": lambda _error: None}
Headers = Sequence[tuple[str, bytes | None]]
# pipeline, table, topic id, topic, partition, offset
Identity = tuple[str, str, str, str, int, int]

_MISSING: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
# What is met again however often it is tried; anything else may pass.
_PERMANENT: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "let the user of source.kafka describe, read and write the topic, "
    "and create it if it is not there",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "let the user of source.kafka create the topic, or create it",
    KafkaError.SASL_AUTHENTICATION_FAILED: "check sasl.username and sasl.password under source.kafka",
    KafkaError._AUTHENTICATION: "check security.protocol and the sasl settings under source.kafka",
    KafkaError.MSG_SIZE_TOO_LARGE: "a letter is the record and 2 KB of headers or more: raise the topic's "
    "max.message.bytes above that of the source topics",
    KafkaError.RECORD_LIST_TOO_LARGE: "raise the topic's max.message.bytes",
    KafkaError.TOPIC_EXCEPTION: "Kafka takes no topic of this name: change errors.deadletterqueue.topic.name",
    KafkaError.INVALID_REPLICATION_FACTOR: "there are fewer brokers: set "
    "errors.deadletterqueue.topic.replication.factor to their number at most",
    KafkaError.INVALID_RECORD: "the broker refuses the record: the topic must have cleanup.policy=delete",
    KafkaError.POLICY_VIOLATION: "a policy of the broker refuses it: create the topic yourself",
    KafkaError._INVALID_ARG: "check source.kafka",
}


@dataclass(frozen=True)
class LetterTopic:
    """The topic of a pipeline's dead letters. ``properties`` are confluent-kafka's and may hold secrets.

    ``replication_factor``: of the topic if it is made; -1: the brokers' default, None: as many as there are
    brokers, up to 3.
    """

    name: str
    properties: Mapping[str, str] = field(repr=False)
    replication_factor: int | None = None

    @property
    def place(self) -> str:
        """Where it is, for people to read."""
        return f"topic {self.name} of {self.properties.get('bootstrap.servers', '')}"


@dataclass(frozen=True)
class LetterStamp:
    """What all letters of a batch have in common. ``codec`` names what could not decode them."""

    pipeline: str
    table: str
    topic_id: str
    epoch: int
    batch: int
    codec: str

    @classmethod
    def of(cls, progress: Progress, *, topic_id: str, codec: str) -> LetterStamp:
        """The stamp of the batch that will have this progress."""
        batch = progress.epoch, progress.batch
        return cls(progress.pipeline, str(progress.table), topic_id, *batch, f"tidesink.codecs.{codec}")


class Letter(NamedTuple):
    """A letter without its bytes. ``time``: ms since 1970. ``at``: its offset in the topic of letters."""

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
        """What makes it one letter, however often it was written."""
        return self[:6]


def letter_headers(row: Mapping[str, Any], stamp: LetterStamp, *, task: int = 0) -> Headers:
    """All headers of a letter. ``row`` has the columns of ``LETTER_SCHEMA``."""
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
    """The headers of a letter's mark: dealt with, or still bad for the error that is given."""
    place = {name: getattr(letter, name) for name in ("topic", "partition", "offset")}
    fault = {} if error is None else _exception(error, reason or "")
    connect = {**place, "connector.name": letter.pipeline, **fault}
    kind = DEALT_WITH if error is None else STILL_BAD
    ours = {"kind": kind, "table": letter.table, "topic.id": letter.topic_id}
    return [*_spelt(CONNECT, connect), *_spelt(OURS, ours)]


def read_headers(headers: Headers, at: int = 0) -> tuple[str, Letter] | None:
    """The kind of a record and its letter; None for a record that tidesink did not write.

    Kafka Connect and other programs may write to the same topic, also copies of letters with headers of their
    own behind them. A record without the place of a record in Kafka is none of ours, whatever else it says.
    """
    found = {name: index for index, (name, _) in enumerate(headers)}
    if found.get(f"{OURS}kind", -1) < found.get(_FIRST_HEADER, 0):
        return None  # Connect's headers behind ours: a copy of a letter, which Connect could not read
    said = {name: (value or b"").decode("utf-8", "replace") for name, value in headers}

    def text(name: str) -> str:
        return said.get(f"{CONNECT}{name}", "")

    def number(name: str, most: int) -> int | None:
        return _number(said.get(f"{OURS}{name}", ""), most)

    kind, table = said[f"{OURS}kind"], said.get(f"{OURS}table", "")
    partition, offset = _number(text("partition"), _MOST_INT), _number(text("offset"), _MOST_LONG)
    if kind not in (LETTER, DEALT_WITH, STILL_BAD) or partition is None or offset is None:
        return None
    if not (text("connector.name") and table and text("topic")):
        return None
    owner = text("connector.name"), table, said.get(f"{OURS}topic.id", "")
    place = text("topic"), partition, offset
    error = text("exception.class.name").removeprefix(_MODULE), text("exception.message")
    ids = number("value.schema.id", _MOST_INT), number("key.schema.id", _MOST_INT)
    batch = number("batch", _MOST_LONG) or 0, number("epoch", _MOST_LONG) or 0
    letter = Letter(*owner, *place, *error, number("timestamp", _MOST_LONG), *ids, *batch, at)
    return kind, letter


def _number(text: str, most: int) -> int | None:
    """The number that a header says; None where it is none that tidesink writes."""
    found = int(text) if _DIGITS.fullmatch(text) else None
    return found if found is not None and found <= most else None


def original_headers(headers: Headers) -> Headers:
    """The headers that the record had in its own topic."""
    starts = [index for index, (name, _) in enumerate(headers) if name == _FIRST_HEADER]
    return headers[: starts[-1]] if starts else headers


def _exception(error: str, reason: str) -> dict[str, str]:
    name = f"{_MODULE}{error}"
    return {
        "exception.class.name": name,
        "exception.message": reason,
        "exception.stacktrace": f"{name}: {reason}",
    }


def _spelt(prefix: str, said: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    for name, value in said.items():
        yield f"{prefix}{name}", b"" if value is None else str(value).encode("utf-8", "replace")


def write_letters(
    topic: LetterTopic, stamp: LetterStamp, batches: Iterable[pa.RecordBatch], *, task: int = 0
) -> int:
    """Write records as letters; how many, once brokers have acknowledged all of them.

    ``batches`` have the columns of ``LETTER_SCHEMA``, in any order.

    Raises:
        SourceError: Kafka refuses a letter for good. SourceUnavailableError: it does not take one now.
    """
    with LetterWriter(topic) as writer:
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS_A_SLICE):
                for row in batch.slice(start, _ROWS_A_SLICE).to_pylist():
                    writer.send(row["key"], row["value"], letter_headers(row, stamp, task=task))
    return writer.acknowledged


class LetterWriter:
    """Sends records to the topic of letters. At the end of its context all are acknowledged.

    Raises: as ``write_letters``.
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
        """Hand over one record; waits while as much as fits is under way."""
        producer = self._producer = self._producer or self._opened()
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
        # A source's batch is compressed as a whole, so that a letter would be larger than its record was.
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
    """What Kafka says of the topic of letters as an error of ours, by its code."""
    remedy = _PERMANENT.get(error.code())
    if remedy is not None:
        return SourceError(
            f"Kafka refuses the dead letter topic ({error.name()}): {remedy}", topic=topic.name
        )
    trouble = (
        f"is not there ({error.name()}): the next try makes it"
        if error.code() in _MISSING
        else f"does not answer ({error.name()}): are source.brokers right, and do they run?"
    )
    return SourceUnavailableError(f"the dead letter topic {trouble}", topic=topic.name)


@contextmanager
def _translated(topic: LetterTopic) -> Iterator[None]:
    """Raise confluent-kafka's exceptions as ours."""
    try:
        yield
    except KafkaException as exc:
        raise letter_error(exc.args[0], topic) from exc


def scan(topic: LetterTopic, *, start: int = 0, end: int | None = None) -> Iterator[Any]:
    """The records of the topic from ``start`` up to where it ended when this began, or before ``end``.

    The topic must be there. No consumer group is joined, and nothing is committed.

    Raises:
        SourceError: Kafka refuses. SourceUnavailableError: it does not answer.
    """
    own = {
        **_QUIET,
        "group.id": "tidesink-dead-letters",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        # Letters are in no transaction, and somebody else's open one is not to be waited for.
        "isolation.level": "read_uncommitted",
    }
    with _translated(topic), closing(open_client(Consumer, topic.properties, own)) as consumer:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic.name, PARTITION), timeout=_SILENCE)
        last = high if end is None else min(high, end)
        if max(low, start) >= last:
            return
        consumer.assign([TopicPartition(topic.name, PARTITION, max(low, start))])
        deadline = time.monotonic() + _SILENCE
        while time.monotonic() < deadline:
            for record in consumer.consume(_AT_ONCE, timeout=_POLL):
                deadline = time.monotonic() + _SILENCE
                error, offset = record.error(), record.offset() or 0
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if error is None and offset < last:
                    yield record
                # The last offsets may hold no record: those of another's transaction.
                if offset + (error is None) >= last:
                    return
    raise SourceUnavailableError("the dead letter topic does not answer", topic=topic.name)


def live_letters(records: Iterable[tuple[str, Letter]]) -> list[Letter]:
    """The letters that are not dealt with, each once, of letters and marks in Kafka's order."""
    found: dict[Identity, Letter] = {}
    for kind, letter in records:
        first = found.get(letter.identity)
        if kind == LETTER:
            found.setdefault(letter.identity, letter)
        elif kind == DEALT_WITH:
            found.pop(letter.identity, None)
        elif first is not None:
            found[letter.identity] = first._replace(error=letter.error, reason=letter.reason)
    return list(found.values())


def records_at(topic: LetterTopic, offsets: Collection[int]) -> Iterator[Any]:
    """The records of the topic at these offsets; raises as ``scan``."""
    if not offsets:
        return
    wanted = frozenset(offsets)
    for record in scan(topic, start=min(wanted), end=max(wanted) + 1):
        if record.offset() in wanted:
            yield record


def read_records(topic: LetterTopic, offsets: Collection[int]) -> Iterator[pa.RecordBatch]:
    """The letters at these offsets as the records they are of, in ``RECORD_SCHEMA``, some MB at a time.

    Raises: as ``scan``.
    """
    rows: list[dict[str, Any]] = []
    held = 0
    for record in records_at(topic, offsets):
        known = read_headers(record.headers() or (), record.offset())
        if known is None:
            continue  # the topic was made again meanwhile: the letter that was here is gone
        _, letter = known
        own = [{"key": name, "value": value} for name, value in original_headers(record.headers() or ())]
        place = letter.topic, letter.partition, letter.offset, letter.time
        values = (*place, record.key(), record.value(), own or None)
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
# Letters stay until somebody deals with them.
_TOPIC_CONFIG: Final = {"cleanup.policy": "delete", "retention.ms": "-1"}


@dataclass(frozen=True)
class Chosen:
    """Which stored records of a pipeline: all that fit everything that is not None.

    ``topic_id`` is Kafka's. ``before``: those whose Kafka timestamp is older. ``below``: offsets under this
    one. ``kind``: the class of a letter's error, or what a DDL event did.
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
        """Whether a record of the pipeline is chosen; it has the attributes of the same names, and a time."""
        for name in ("table", "topic", "topic_id", "partition", "offset"):
            if getattr(self, name) not in (None, getattr(record, name)):
                return False
        if self.kind not in (None, kind) or (self.below is not None and record.offset >= self.below):
            return False
        before = self.before and (self.before - _EPOCH) / timedelta(milliseconds=1)
        return before is None or (record.time is not None and record.time < before)


@dataclass(frozen=True)
class RecordGroup:
    """Letters of one table, partition and error: how many, and from where to where."""

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
    """What became of a letter in a replay; no error: it is dealt with."""

    topic_id: str
    topic: str
    partition: int
    offset: int
    error: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class DeadLetters:
    """The dead letters of one pipeline. May be used from several threads.

    Every method raises SourceError where Kafka refuses, SourceUnavailableError where it does not answer.
    """

    pipeline: str
    topic: LetterTopic

    @property
    def place(self) -> str:
        """Where they are, for people to read."""
        return self.topic.place

    def prepare(self) -> None:
        """Make the topic where it is not there, with one partition, and without an end of its records' time.

        Raises: SourceError also for a topic whose clean-up policy would lose letters.
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
                    "the dead letter topic was made, and Kafka does not show it yet", topic=self.topic.name
                )
            time.sleep(_PAUSE)

    def letters(self, chosen: Chosen) -> list[Letter]:
        """The chosen letters, without their bytes, in the order they were written; none without a topic."""
        if not _Admin(self.topic).is_there():
            return []
        records = (read_headers(record.headers() or (), record.offset()) for record in scan(self.topic))
        found = live_letters(
            known
            for known in records
            if known and known[1].pipeline == chosen.pipeline and chosen.table in (None, known[1].table)
        )
        return [letter for letter in found if chosen.fits(letter, kind=letter.error)]

    def groups(self, chosen: Chosen) -> tuple[RecordGroup, ...]:
        """The chosen letters counted by table, topic, partition and error, in that order."""
        parts: dict[tuple[str, str, str, int, str], list[Letter]] = {}
        for one in self.letters(chosen):
            place = one.table, one.topic, one.topic_id, one.partition, one.error
            parts.setdefault(place, []).append(one)
        return tuple(_group(part) for _, part in sorted(parts.items()))

    def rows(self, chosen: Chosen, *, limit: int) -> tuple[dict[str, Any], ...]:
        """The first ``limit`` of the chosen letters by table, topic, partition and offset, whole."""
        found = sorted(self.letters(chosen), key=lambda one: (one.table, *one.identity[3:]))[:limit]
        records = {one.offset(): one for one in records_at(self.topic, {letter.at for letter in found})}
        return tuple(_row(letter, records[letter.at]) for letter in found if letter.at in records)

    def remove(self, chosen: Chosen) -> int:
        """Drop the chosen letters; how many they were."""
        with LetterWriter(self.topic) as writer:
            for letter in self.letters(chosen):
                writer.send(None, None, mark_headers(letter))
        return writer.acknowledged

    def settle(self, outcomes: Iterable[Outcome], *, table: TableId) -> int:
        """Mark letters as dealt with, and give the others today's error; how many they were.

        Doing it again changes nothing, and an outcome of what is no letter is passed over.
        """
        letters = {one.identity: one for one in self.letters(Chosen(self.pipeline, str(table)))}
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
    """The dead letters of a pipeline; nothing is asked of Kafka yet.

    Raises:
        ConfigError: the config names no topic for them.
    """
    settings = config.dead_letters
    if settings.topic is None:
        raise ConfigError(
            "dead-letters names no topic: set errors.deadletterqueue.topic.name, such as "
            f"{config.pipeline}-dead-letters"
        )
    properties = config.source.confluent_properties()
    return DeadLetters(config.pipeline, LetterTopic(settings.topic, properties, settings.replication_factor))


def moment(ms: int | None) -> datetime | None:
    """A Kafka timestamp as a time in UTC; None for one that Python's calendar does not have."""
    try:
        return None if ms is None else _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def _group(part: Sequence[Letter]) -> RecordGroup:
    one, offsets = part[0], [letter.offset for letter in part]
    times = [time for time in (moment(letter.time) for letter in part) if time is not None]
    ends = min(offsets), max(offsets), min(times, default=None), max(times, default=None)
    return RecordGroup(one.table, one.topic, one.partition, one.error, len(part), *ends, one.topic_id)


def _row(letter: Letter, record: Any) -> dict[str, Any]:
    own = original_headers(record.headers() or ())
    shown = [[name, None if value is None else value.decode("utf-8", "replace")] for name, value in own]
    known = {name: value for name, value in letter._asdict().items() if name != "at"}
    bytes_ = {"key": record.key(), "value": record.value()}
    return {**known, **bytes_, "time": moment(letter.time), "headers": shown}


class TopicState(NamedTuple):
    """Whether the topic of letters is there; ``replicas``: those that it is made with if not."""

    is_there: bool
    replicas: int = 0

    @property
    def shown(self) -> str:
        """For people to read."""
        if self.is_there:
            return "is there"
        count = "1 replica" if self.replicas == 1 else f"{self.replicas} replicas"
        replicas = "the brokers' default of replicas" if self.replicas < 0 else count
        return f"is made when the first letter comes, with {replicas}"


def check_topic(topic: LetterTopic) -> TopicState:
    """Whether the topic is there; where it is not, that it may be made. Nothing is changed.

    Raises: as ``DeadLetters.prepare``.
    """
    admin = _Admin(topic)
    if admin.is_there():
        admin.check_policy()
        return TopicState(is_there=True)
    return TopicState(is_there=False, replicas=admin.create(validate_only=True))


_MOST_REPLICAS: Final = 3


class _Admin:
    """What is asked of the brokers about the topic; by another client from when a controller is down."""

    def __init__(self, topic: LetterTopic) -> None:
        self._topic = topic
        self._client = self._renew()

    def _renew(self) -> AdminClient:
        self._client = open_client(AdminClient, self._topic.properties, _QUIET)
        return self._client

    def is_there(self) -> bool:
        """Whether the topic is there; asking does not make it."""
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
        """Make the topic, unless it is there; with how many replicas."""
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
        """As configured, or as many as the brokers that answer, up to three."""
        if self._topic.replication_factor is not None:
            return self._topic.replication_factor
        with _translated(self._topic):
            brokers = self._client.list_topics(timeout=_TIMEOUT).brokers
        return max(1, min(_MOST_REPLICAS, len(brokers)))

    def check_policy(self) -> None:
        """Refuse compaction: of letters with one key it would leave one. Who may not ask is not refused."""
        resource = ConfigResource(ResourceType.TOPIC, self._topic.name)
        try:
            found = self._client.describe_configs([resource], request_timeout=_TIMEOUT)[resource].result()
        except KafkaException as exc:
            if exc.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return
            with _translated(self._topic):
                raise
        policy = found["cleanup.policy"].value if "cleanup.policy" in found else "delete"
        if "compact" in policy:
            raise SourceError(
                f"the dead letter topic has cleanup.policy={policy}, which loses letters that have one key: "
                "set cleanup.policy=delete, or name another topic",
                topic=self._topic.name,
            )
