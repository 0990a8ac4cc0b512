"""Kafka for the command line: which topics there are, and the records of one topic.

No consumer group is joined and nothing is committed: looking leaves no trace on the broker.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tidesink.cli.terminal import warn
from tidesink.config.client_properties import open_client
from tidesink.consumer.group import message_of
from tidesink.errors import ConfigError, SourceUnavailableError
from tidesink.events import Message

_SECONDS = 6.0
_POLL_SECONDS = 0.5
_AT_ONCE = 500
_HELD = 20_000  # records waiting in one partition before it is paused
# librdkafka writes to stderr by itself otherwise; what matters comes back as an error.
_SILENT = logging.getLogger("tidesink.librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


class Start(NamedTuple):
    """Where reading begins: ``earliest``, ``latest``, an offset, or a time in ms since 1970."""

    kind: str
    value: int = 0


def parse_start(text: str) -> Start:
    """``earliest``, ``latest``, ``OFFSET``, or ``@MILLISECONDS`` since 1970.

    Raises:
        ConfigError: it is none of these.
    """
    if text in ("earliest", "latest"):
        return Start(text)
    kind, digits = ("time", text[1:]) if text.startswith("@") else ("offset", text)
    if not digits.isascii() or not digits.isdigit():
        raise ConfigError(f"--from {text!r}: give earliest, latest, an offset, or @ms since 1970")
    return Start(kind, int(digits))


def topic_names(properties: Mapping[str, str]) -> dict[str, int]:
    """Every topic of a broker with its number of partitions.

    Raises:
        SourceUnavailableError: the broker does not answer.
    """
    admin = open_client(AdminClient, properties, logger=_SILENT)
    try:
        topics = admin.list_topics(timeout=_SECONDS).topics
    except KafkaException as error:
        raise _unavailable(properties, error) from error
    return {name: len(topic.partitions) for name, topic in topics.items()}


def _unavailable(properties: Mapping[str, str], error: KafkaException) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"no answer from {properties['bootstrap.servers']}: {_text(error)}; does the broker run there, "
        "and do security.protocol and sasl settings fit?"
    )


def _text(error: KafkaException) -> str:
    return error.args[0].str() if isinstance(error.args[0], KafkaError) else str(error)


def read_topic(
    properties: Mapping[str, str], topic: str, *, start: Start, limit: int | None = None
) -> Iterator[Message]:
    """The records of a topic from ``start`` to where it ends now, at most ``limit`` of them.

    Partitions are merged by the records' timestamps, so that a DDL event (which TiCDC writes to
    partition 0) comes before the rows that need it. From ``latest``, records are given as they come
    in, until ``limit`` or for ever.

    Raises:
        ConfigError: there is no such topic.
        SourceUnavailableError: the broker does not answer.
    """
    own = {"group.id": "tidesink-cli", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = open_client(Consumer, properties, own, logger=_SILENT)
    with closing(consumer):
        try:
            ends = _assign(consumer, topic, start)
            found = (
                _following(consumer) if start.kind == "latest" else _Merge(consumer, topic, ends).records()
            )
            yield from islice(found, limit)
        except KafkaException as error:
            raise _unavailable(properties, error) from error


def _assign(consumer: Consumer, topic: str, start: Start) -> dict[int, int]:
    """Begin at ``start``; per partition that has something to read, the offset where it ends now."""
    found = consumer.list_topics(topic, timeout=_SECONDS).topics[topic]
    if found.error is not None:
        raise ConfigError(f"the broker has no topic {topic!r}: {found.error.str()}", topic=topic)
    ends: dict[int, int] = {}
    assigned = []
    gone: dict[int, int] = {}
    lasts: dict[int, int] = {}
    for number in sorted(found.partitions):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_SECONDS)
        lasts[number] = high
        if start.kind == "offset" and start.value < low:
            gone[number] = low
        begin = _begin(consumer, TopicPartition(topic, number), start, (low, high))
        if start.kind == "latest" or begin < high:
            ends[number] = high
            assigned.append(TopicPartition(topic, number, begin))
    consumer.assign(assigned)
    if gone:
        warn(gone_before(start, gone))
    if not ends:
        warn(nothing_from(start, lasts))
    return ends


def gone_before(start: Start, firsts: Mapping[int, int]) -> str:
    """The warning that partitions keep less than was asked for; ``firsts``: the first offset of each."""
    kept = ", ".join(f"partition {number} from {first}" for number, first in sorted(firsts.items()))
    return f"--from {start.value}: records before were removed by the broker, which keeps {kept}"


def nothing_from(start: Start, ends: Mapping[int, int]) -> str:
    """The warning that a topic holds nothing from there on; ``ends``: the offset each partition ends at."""
    at = ", ".join(f"partition {number} at {end}" for number, end in sorted(ends.items()))
    if start.kind == "earliest":
        return f"the topic holds no record ({at})"
    shown = f"@{start.value}" if start.kind == "time" else start.value
    return f"--from {shown}: nothing between it and the topic's end ({at}); begin earlier, or leave it out"


def _begin(consumer: Consumer, part: TopicPartition, start: Start, held: tuple[int, int]) -> int:
    low, high = held
    if start.kind == "latest":
        return high
    if start.kind == "time":
        part.offset = start.value
        (found,) = consumer.offsets_for_times([part], timeout=_SECONDS)
        return high if found.offset < 0 else int(found.offset)
    return max(low, start.value)


def _following(consumer: Consumer) -> Iterator[Message]:
    while True:
        for record in consumer.consume(_AT_ONCE, timeout=_POLL_SECONDS):
            yield message_of(_sound(record))


class _Merge:
    """The records of several partitions by timestamp, each partition in its own order."""

    def __init__(self, consumer: Consumer, topic: str, ends: dict[int, int]) -> None:
        self._consumer = consumer
        self._topic = topic
        self._ends = ends
        self._waiting: dict[int, deque[Message]] = {number: deque() for number in ends}
        self._paused: set[int] = set()

    def records(self) -> Iterator[Message]:
        """All records up to the ends."""
        while self._waiting:
            while any(not queue and number in self._ends for number, queue in self._waiting.items()):
                self._fetch()
            self._waiting = {number: queue for number, queue in self._waiting.items() if queue}
            if self._waiting:
                number = min(self._waiting, key=lambda n: (self._waiting[n][0].timestamp or 0, n))
                yield self._waiting[number].popleft()
                self._let_flow(number)

    def _fetch(self) -> None:
        records = self._consumer.consume(_AT_ONCE, timeout=_POLL_SECONDS)
        for record in records:
            self._take(message_of(_sound(record)))
        if not records:
            self._drop_ended()

    def _take(self, message: Message) -> None:
        number = message.partition
        end = self._ends.get(number)
        if end is None:
            return
        if message.offset < end:
            self._waiting[number].append(message)
        if message.offset + 1 >= end:
            del self._ends[number]
        elif len(self._waiting[number]) >= _HELD and number not in self._paused:
            # One partition far ahead of the others must not fill the memory.
            self._consumer.pause([TopicPartition(self._topic, number)])
            self._paused.add(number)

    def _let_flow(self, number: int) -> None:
        if number in self._paused and not self._waiting[number]:
            self._consumer.resume([TopicPartition(self._topic, number)])
            self._paused.discard(number)

    def _drop_ended(self) -> None:
        """Partitions whose last offsets hold no record (compacted, transaction marks) end by position."""
        for part in self._consumer.position(self._consumer.assignment()):
            if part.offset >= self._ends.get(part.partition, part.offset + 1):
                del self._ends[part.partition]


def _sound(record: Any) -> Any:
    if record.error() is not None:
        raise KafkaException(record.error())
    return record
