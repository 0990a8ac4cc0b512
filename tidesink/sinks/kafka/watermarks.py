"""Detection, without a Spark job, of topics whose new records are only watermarks.

TiCDC writes a watermark into every partition each second, so even an idle table has new records all the time.
A batch for each watermark would be expensive. Therefore one Kafka consumer in the worker reads the new
records of all tables that are up to date. It stops at a topic's first record that is not a watermark, and
then the table gets a batch. Nothing is applied or stored here: the tables' progress does not change, and
their next batch reads the same records again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec
from tidesink.config.source import SourceSettings
from tidesink.errors import TidesinkError
from tidesink.events import Message, WatermarkEvent
from tidesink.kafka_client import OpenClient, open_client
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.sinks.kafka.fetch import FIXED_SETTINGS
from tidesink.sinks.kafka.offsets import TopicOffsets

if TYPE_CHECKING:
    from tidesink.schema_registry import SchemaRegistry


_log = structlog.get_logger("tidesink.worker")
# If a partition has more unread records than this, a batch reads them, even if all are watermarks.
MOST_WAITING: Final = 1000
# If the consumer has not received new records after this many seconds, a batch of the table reads them.
UNSEEN_SECONDS: Final = 2.0
# Seconds that ``look`` waits for records that have just arrived.
_LOOK_SECONDS: Final = 0.1
_CONSUME_RECORDS: Final = 1000
_CONSUME_SECONDS: Final = 0.02
_SETTINGS: Final[Mapping[str, Any]] = {
    **FIXED_SETTINGS,
    "enable.partition.eof": False,
    # librdkafka requires a group name, but never joins the group.
    "group.id": "tidesink-watermarks",
    "log_level": 0,
    "error_cb": lambda _error: None,
    # Many partitions get a record per second: one response should contain the records of all of them.
    "fetch.wait.max.ms": 100,
    "fetch.min.bytes": 1 << 20,
    "fetch.message.max.bytes": 64 << 10,
    "queued.max.messages.kbytes": 4096,
}


def codec_of(source: SourceSettings, registry: SchemaRegistry | None) -> Codec:
    """Return the protocol's codec, to read watermarks and DDL from records.

    It cannot read rows that were too large for Kafka and are stored outside of it (claim check).
    """
    # The row itself is not needed to see that a record is a row.
    options = source.codec_options().updated({"claim_check_storage_uri": "", "upstream_url": ""})
    return open_codec(source.protocol, options=options, registry=registry)


def watermark_reader(
    source: SourceSettings, registry: SchemaRegistry | None
) -> Callable[[Message], int | None]:
    """Return a function that returns the newest watermark in a record, as a commit_ts.

    The function returns None if the record contains anything else, or cannot be decoded.
    """
    # The registry, which may be slow, is not needed: watermarks of flat-avro have no schema.
    codec = codec_of(source, MemorySchemaRegistry() if source.protocol == "flat-avro" else registry)

    def watermark_of(message: Message) -> int | None:
        try:
            events = codec.decode(message)
        except TidesinkError:
            return None
        marks = [event.commit_ts for event in events if isinstance(event, WatermarkEvent)]
        return max(marks) if marks and len(marks) == len(events) else None

    return watermark_of


class Standing(NamedTuple):
    """The position in a topic of its tables that are up to date.

    ``found``: the topic's current offsets. ``starts``: the next offset per partition; if the tables have
    different ones, the lowest.
    """

    found: TopicOffsets
    starts: Mapping[int, int]

    def joined(self, other: Standing) -> Standing:
        """Combine the positions of two groups of the topic's tables: the lower offset per partition."""
        return self._replace(starts={n: min(offset, other.starts[n]) for n, offset in self.starts.items()})


@dataclass
class _Followed:
    """A topic that the consumer follows, and what the consumer has read of it.

    Attributes:
        topic_id: Kafka's id of the topic.
        leader_epochs: Leader epoch per partition when the consumer began to follow the topic. A new leader
            may have a shorter log (``kafka.leader_epochs``), so after a change the topic is followed anew.
        starts: First offset per partition that the consumer read.
        seen: Offset per partition up to which the consumer has read. All records from ``starts`` up to it are
            watermarks.
        marks: Newest watermark per partition.
        other: Partition and offset of the first record that is not a watermark, or None. The consumer reads
            nothing after this record.
        awaited: End offsets up to which records exist but were not received yet, and the time since when they
            are awaited. None if everything was received.
    """

    topic_id: str
    leader_epochs: Mapping[int, int]
    starts: dict[int, int]
    seen: dict[int, int]
    marks: dict[int, int] = field(default_factory=dict)
    other: tuple[int, int] | None = None
    awaited: tuple[Mapping[int, int], float] | None = None

    def holds_for(self, standing: Standing | None) -> bool:
        """Return True if this object is still valid for the topic's tables at the position ``standing``.

        False if the topic was replaced, a partition has a new leader, a table is at a lower offset than
        ``starts``, or all tables have read past the record ``other``.
        """
        if (
            standing is None
            or self.topic_id != standing.found.topic_id
            or self.leader_epochs != standing.found.leader_epochs
            or self.starts.keys() != standing.starts.keys()
        ):
            return False
        if self.other is not None and standing.starts[self.other[0]] > self.other[1]:
            return False
        return all(self.starts[number] <= offset for number, offset in standing.starts.items())

    def is_seen(self, standing: Standing) -> bool:
        """Return True if the consumer need not read further in the topic.

        This is the case if it has received all records, or a record that is not a watermark.
        """
        return self._is_seen_to(self._ends(standing), standing)

    def note(self, standing: Standing, now: float) -> None:
        """Update ``awaited`` after the consumer has read: the records that exist but were not received yet.

        Newer records do not restart the wait for older ones.
        """
        if self.awaited is not None and self._is_seen_to(self.awaited[0], standing):
            self.awaited = None
        if self.awaited is None and not self.is_seen(standing):
            self.awaited = self._ends(standing), now

    def _is_seen_to(self, ends: Mapping[int, int], standing: Standing) -> bool:
        starts = standing.starts
        return self.other is not None or all(max(self.seen[n], starts[n]) >= end for n, end in ends.items())

    @staticmethod
    def _ends(standing: Standing) -> dict[int, int]:
        return {number: standing.found.partitions[number].latest for number in standing.starts}


class WatermarkFollower:
    """Reads topics ahead of their tables' batches, to find new records that are not watermarks.

    Used by one thread at a time. Opens its Kafka consumer on first use.

    Args:
        properties: Returns the properties for confluent-kafka's consumer.
        watermark_of: Returns the newest watermark in a record, or None if the record contains anything else.
        ends: True if the run ends once all records are read. Then a topic whose records were not received in
            time counts at once as a topic with records to read.
        clock: Returns monotonic seconds.
        open_client: Opens the Kafka consumer.
    """

    def __init__(
        self,
        properties: Callable[[], Mapping[str, str]],
        watermark_of: Callable[[Message], int | None],
        *,
        ends: bool,
        clock: Callable[[], float] = time.monotonic,
        open_client: OpenClient = open_client,
    ) -> None:
        self._properties = properties
        self._open_client = open_client
        self._watermark_of = watermark_of
        self._wait, self._patience = (UNSEEN_SECONDS, 0.0) if ends else (_LOOK_SECONDS, UNSEEN_SECONDS)
        self._clock = clock
        self._topics: dict[str, _Followed] = {}
        self._consumer: Any = None

    def look(self, topics: Mapping[str, Standing]) -> frozenset[str]:
        """Read new records, and return the topics whose new records are all watermarks.

        A topic whose records were not received in time is not returned. ``topics``: the position of the
        tables, by topic to follow. Other topics are no longer followed.
        """
        try:
            self._assign(topics)
            self._read(topics)
        except KafkaException as exc:
            # The tables get batches instead, which fail with the same error and report it.
            _log.debug("watermarks not followed", error=exc.args[0].name())
            self.close()
        return frozenset(topic for topic, followed in self._topics.items() if self._is_alone(followed))

    def marks(self, topic: str) -> Mapping[int, int]:
        """Return the newest watermark per partition, read before the topic's first record of another kind."""
        followed = self._topics.get(topic)
        return dict(followed.marks) if followed is not None else {}

    def close(self) -> None:
        """Close the consumer, and forget the followed topics."""
        self._topics = {}
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _assign(self, topics: Mapping[str, Standing]) -> None:
        """Assign the topics to the consumer, new ones at their tables' next offsets. Unassign all others."""
        dropped = [
            name for name, followed in self._topics.items() if not followed.holds_for(topics.get(name))
        ]
        self._unassign(name for name in dropped if self._topics[name].other is None)
        for name in dropped:
            del self._topics[name]
        begun = {name: standing for name, standing in topics.items() if name not in self._topics}
        if not begun:
            return
        if self._consumer is None:
            self._consumer = self._open_client(Consumer, self._properties(), _SETTINGS)
        self._consumer.incremental_assign(
            [
                TopicPartition(name, n, offset)
                for name, position in begun.items()
                for n, offset in position.starts.items()
            ]
        )
        for name, (offsets, starts) in begun.items():
            self._topics[name] = _Followed(
                offsets.topic_id, offsets.leader_epochs, dict(starts), dict(starts)
            )

    def _unassign(self, names: Iterable[str]) -> None:
        places = [TopicPartition(name, number) for name in names for number in self._topics[name].starts]
        if places:
            self._consumer.incremental_unassign(places)

    def _read(self, topics: Mapping[str, Standing]) -> None:
        """Read new records of the followed topics, until all were received or the time is over."""
        deadline, unseen = self._clock() + self._wait, self._consumer is not None
        while unseen:
            unseen = any(not followed.is_seen(topics[name]) for name, followed in self._topics.items())
            # Called even if no record is awaited, because the client renews its logins in this call.
            messages = self._consumer.consume(_CONSUME_RECORDS, timeout=_CONSUME_SECONDS if unseen else 0.0)
            self._unassign(self._take(messages))
            unseen &= self._clock() < deadline
        for name, followed in self._topics.items():
            followed.note(topics[name], self._clock())

    def _take(self, messages: Iterable[Any]) -> list[str]:
        """Record the watermarks in received messages. Return the topics with a message of another kind."""
        others = []
        for message in messages:
            followed = self._topics.get(message.topic())
            if followed is None or followed.other is not None:
                continue
            number, failed = message.partition(), message.error() is not None
            mark = None if failed else self._watermark_of(_plain(message))
            if mark is not None:
                followed.seen[number] = message.offset() + 1
                followed.marks[number] = max(mark, followed.marks.get(number, 0))
            elif number in followed.seen:
                followed.other = number, followed.seen[number] if failed else message.offset()
                others.append(message.topic())
        return others

    def _is_alone(self, followed: _Followed) -> bool:
        late = followed.awaited is not None and self._clock() - followed.awaited[1] >= self._patience
        return followed.other is None and not late


def _plain(message: Any) -> Message:
    headers = tuple(message.headers() or ())
    return Message(
        message.topic(), message.partition(), message.offset(), message.key(), message.value(), None, headers
    )
