"""How far a Debezium connector has come, by the topic in which Kafka Connect keeps its offsets (ADR 36).

A distributed Connect commits a connector's offset when the brokers have acknowledged every record that it
was given up to there. So all rows below a *checkpoint* stand before the ends that partitions have once it
was read. A session that starts again sends from its checkpoint on.

Sources: Kafka Connect 4.3 (``SubmittedRecords``, ``KafkaOffsetBackingStore``); the offsets of Debezium
3.5.0.Final for MariaDB and Postgres, captured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tidesink.codecs.debezium.commit_positions import binlog_position, log_position
from tidesink.errors import SourceError
from tidesink.kafka_client import open_client
from tidesink.sinks.kafka.offsets import TIMEOUT_SECONDS, translated_kafka_errors

_QUIET: Final[dict[str, Any]] = {"log_level": 0, "error_cb": lambda _error: None}
# librdkafka requires a group's name. It is never joined.
_CONSUMER: Final[dict[str, Any]] = {**_QUIET, "group.id": "tidesink-checkpoints", "enable.auto.commit": False}
_READS: Final = {
    **_CONSUMER,
    # With exactly.once.source.support an offset counts once its transaction is committed.
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "enable.partition.eof": True,
}
# The end of a partition is behind records whose transaction is still open, too.
_ENDS: Final = {**_CONSUMER, "isolation.level": "read_uncommitted"}
_RECORDS: Final = 1000
_LATEST: Final = -1
_OPEN: Final = "incremental_snapshot_"
_LOADS: Final = "the connector's snapshot is not over"
_NO_POSITION: Final = (
    "its offset has no position that rows can be compared with: it has one with a connector for MySQL, "
    "MariaDB or Postgres, once it has sent a transaction or a heartbeat"
)


class Checkpoint(NamedTuple):
    """A commit position up to which all rows are sent. ``time``: the source's, in seconds since 1970."""

    position: int
    time: float


def read_checkpoint(offset: Mapping[str, Any]) -> Checkpoint | str:
    """What a connector's offset says; a text where it is no checkpoint."""
    if offset.get("snapshot") not in (None, False, "false"):
        return _LOADS
    if any(value is not None for name, value in offset.items() if name.startswith(_OPEN)):
        return _LOADS
    if "file" in offset:
        position, time = binlog_position(offset["file"], offset.get("pos")), offset.get("ts_sec")
        return _NO_POSITION if position is None else Checkpoint(position, _seconds(time, 1))
    position, time = log_position(offset.get("lsn_commit")), offset.get("ts_usec")
    return _NO_POSITION if position is None else Checkpoint(position, _seconds(time, 1_000_000))


def _seconds(value: object, unit: int) -> float:
    return value / unit if isinstance(value, int) and not isinstance(value, bool) else 0.0


class ConnectorCheckpoints:
    """Reads the checkpoints of one connector, and where topics end. For one thread.

    ``newest`` is the last one, None where there is none; ``reason`` says why then.
    """

    def __init__(self, properties: Callable[[], Mapping[str, str]], topic: str, connector: str) -> None:
        self.newest: Checkpoint | None = None
        self.reason = ""
        self._properties = properties
        self._topic, self._connector = topic, connector
        self._consumer: Any = None
        self._asks: Any = None
        self._unread: set[int] = set()
        # By its key, which names the source, what the last offset says.
        self._found: dict[bytes, Checkpoint | str] = {}
        self._absent = f"topic {topic} has no offset of connector {connector} yet"

    def look(self) -> None:
        """Read what came to the topic since the last look.

        Raises:
            SourceError: the topic is not there, cannot be read, or has offsets of several sources.
        """
        # A checkpoint behind which the topic may hold another is none: the connector may have been set back.
        self.newest = None
        with translated_kafka_errors():
            if self._consumer is None:
                self._begin()
            while found := self._consumer.consume(_RECORDS, timeout=1.0 if self._unread else 0.0):
                errors = [error for one in found if (error := self._take(one)) is not None]
                if errors:
                    raise KafkaException(errors[0])
        if self._unread:
            numbers = ", ".join(map(str, sorted(self._unread)))
            self.reason = f"topic {self._topic} is not read to its end yet (partition {numbers})"
            return
        if len(self._found) > 1:
            raise SourceError(
                f"connector {self._connector} has offsets of several sources in topic {self._topic}, which "
                "have no common order: cuts are of a connector for one MySQL, MariaDB or Postgres. Of one "
                "whose topic.prefix was another, remove the former offset (a record without a value)",
                topic=self._topic,
            )
        said = next(iter(self._found.values()), self._absent)
        self.newest, self.reason = (None, said) if isinstance(said, str) else (said, "")

    def ends(self, partitions: Mapping[str, Iterable[int]]) -> dict[str, dict[int, int]]:
        """Where partitions end now, by topic: behind all that was written to them, committed or not.

        Raises:
            SourceError: a partition gives no answer.
        """
        asked = [TopicPartition(name, n, _LATEST) for name, numbers in partitions.items() for n in numbers]
        found: dict[str, dict[int, int]] = {name: {} for name in partitions}
        if not asked:
            return found
        with translated_kafka_errors():
            if self._asks is None:
                self._asks = open_client(Consumer, self._properties(), _ENDS)
            # The consumer asks by the partitions and leaders that it knows.
            self._asks.list_topics(timeout=TIMEOUT_SECONDS)
            for at in self._asks.offsets_for_times(asked, timeout=TIMEOUT_SECONDS):
                if at.error is not None:
                    raise KafkaException(at.error)
                found[at.topic][at.partition] = at.offset
        return found

    def close(self) -> None:
        """Let go of the clients."""
        for one in (self._consumer, self._asks):
            if one is not None:
                one.close()
        self._consumer = self._asks = None

    def _begin(self) -> None:
        consumer = open_client(Consumer, self._properties(), _READS)
        try:
            numbers = self._partitions(consumer)
            consumer.assign([TopicPartition(self._topic, number, 0) for number in numbers])
        except BaseException:
            consumer.close()
            raise
        self._consumer, self._unread = consumer, numbers

    def _partitions(self, consumer: Any) -> set[int]:
        listed = consumer.list_topics(self._topic, timeout=TIMEOUT_SECONDS).topics[self._topic]
        if listed.error is not None or not listed.partitions:
            raise SourceError(
                f"the brokers have no topic {self._topic}, which source.debezium.offsets-topic names: give "
                "the offset.storage.topic of a distributed Kafka Connect, or the offsets.storage.topic of "
                "the connector. A standalone Connect keeps its offsets in a file, by which there are no cuts",
                topic=self._topic,
            )
        return set(listed.partitions)

    def _take(self, message: Any) -> KafkaError | None:
        """Take note of a record; the error that came in its place."""
        error: KafkaError | None = message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                return error
            self._unread.discard(message.partition())
            return None
        key = message.key()
        if not self._is_own(key):
            return None
        found = _offset(message.value())
        if found is None:
            self._found.pop(key, None)
            self._absent = "the connector's offset was removed"
            return None
        said = read_checkpoint(found)
        if isinstance(said, Checkpoint) and not said.time:
            # An offset from before the first event has none of the source's.
            said = said._replace(time=message.timestamp()[1] / 1000)
        self._found[key] = said
        return None

    def _is_own(self, key: bytes | None) -> bool:
        try:
            found = json.loads(key or b"null")
        except ValueError:
            return False
        return isinstance(found, list) and len(found) == 2 and found[0] == self._connector


def _offset(value: bytes | None) -> Mapping[str, Any] | None:
    try:
        found = json.loads(value or b"null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
