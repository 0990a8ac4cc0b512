"""A Debezium connector's progress, read from the topic in which Kafka Connect stores its offsets (ADR 36).

A distributed Connect commits a connector's offset once the brokers have acknowledged every record up to that
offset. A *checkpoint* is the commit position in such an offset. All rows up to it are in Kafka. If the end
offsets of partitions are requested after the checkpoint was read, these rows are before the end offsets. A
connector that restarts sends rows again from its checkpoint on.

Source: Kafka Connect 4.3 (``SubmittedRecords``, ``KafkaOffsetBackingStore``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tidesink.errors import SourceError
from tidesink.kafka_client import OpenClient, open_client
from tidesink.sinks.kafka.consume import AssignedConsumer, OffsetBounds, RangeReader, ReadLimits
from tidesink.sinks.kafka.offsets import TIMEOUT_SECONDS, translated_kafka_errors

# librdkafka requires a group name. The group is never joined.
_GROUP: Final = "tidesink-checkpoints"
_READS: Final = {
    "group.id": _GROUP,
    # With exactly.once.source.support, an offset is valid once its transaction is committed.
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
}
# A look does not wait for a partition that does not answer. ``reason`` names the partition.
_LIMITS: Final = ReadLimits(silence=math.inf)
# Partition ends are read with read_uncommitted, so that they include records of open transactions.
_ENDS: Final[dict[str, Any]] = {
    "log_level": 0,
    "error_cb": lambda _error: None,
    "group.id": _GROUP,
    "enable.auto.commit": False,
    "isolation.level": "read_uncommitted",
}
_RECORDS: Final = 1000
_LATEST: Final = -1


class Checkpoint(NamedTuple):
    """A commit position up to which the connector has sent all rows.

    ``time``: the source database's time of that position, in seconds since 1970.
    """

    position: int
    time: float


class ConnectorCheckpoints:
    """Reads the checkpoints of one Debezium connector, and the end offsets of topics. For one thread.

    ``read``: converts a stored offset to a checkpoint, or returns the reason why it is none, as text.
    ``open_client``: opens the consumers.

    Attributes:
        newest: The last checkpoint; None if no checkpoint is known yet.
        reason: The reason why ``newest`` is None, as text; empty if it is not None.
    """

    def __init__(
        self,
        properties: Callable[[], Mapping[str, str]],
        topic: str,
        connector: str,
        read: Callable[[Mapping[str, Any]], Checkpoint | str],
        *,
        open_client: OpenClient = open_client,
    ) -> None:
        self.newest: Checkpoint | None = None
        self.reason = ""
        self._properties, self._open_client = properties, open_client
        self._topic, self._connector, self._read_offset = topic, connector, read
        self._opened: AssignedConsumer | None = None
        self._reader: RangeReader | None = None
        self._asks: Any = None
        # By the record's key, which names the source: the last checkpoint, or the reason why the offset is
        # none.
        self._found: dict[bytes, Checkpoint | str] = {}
        self._absent = (
            f"Topic {topic} has no offset of connector {connector} yet. Check that "
            "source.debezium.connector-name is its name in Kafka Connect."
        )

    def look(self) -> None:
        """Read the new records of Kafka Connect's offsets topic, and update ``newest`` and ``reason``.

        Raises:
            SourceError: The topic does not exist, cannot be read, or has offsets of several sources.
        """
        # A checkpoint is not used while later records are unread, because the connector may have been set
        # back to an older one.
        self.newest = None
        with translated_kafka_errors():
            unread = self._read()
        if unread:
            numbers = ", ".join(map(str, sorted(unread)))
            self.reason = f"Topic {self._topic} is not read to its end yet (partition {numbers})."
            return
        if len(self._found) > 1:
            raise SourceError(
                f"Connector {self._connector} has offsets of several sources in topic {self._topic}, which "
                "have no common order. Cuts need a connector for one MySQL, MariaDB or Postgres. If its "
                "topic.prefix was changed, remove the offset of the old prefix (write a record with its key "
                "and without a value).",
                topic=self._topic,
            )
        result = next(iter(self._found.values()), self._absent)
        self.newest, self.reason = (None, result) if isinstance(result, str) else (result, "")

    def ends(self, partitions: Mapping[str, Iterable[int]]) -> dict[str, dict[int, int]]:
        """Returns the current end offset of each partition, by topic. Records of open transactions are
        included.

        Raises:
            SourceError: The end of a partition cannot be read.
        """
        asked = [TopicPartition(name, n, _LATEST) for name, numbers in partitions.items() for n in numbers]
        offsets: dict[str, dict[int, int]] = {name: {} for name in partitions}
        if not asked:
            return offsets
        with translated_kafka_errors():
            if self._asks is None:
                self._asks = self._open_client(Consumer, self._properties(), _ENDS)
            # Refreshes the partitions and leaders that the consumer uses.
            self._asks.list_topics(timeout=TIMEOUT_SECONDS)
            for answer in self._asks.offsets_for_times(asked, timeout=TIMEOUT_SECONDS):
                if answer.error is not None:
                    raise KafkaException(answer.error)
                offsets[answer.topic][answer.partition] = answer.offset
        return offsets

    def close(self) -> None:
        """Close the clients."""
        for client in (self._opened, self._asks):
            if client is not None:
                client.close()
        self._opened = self._reader = self._asks = None

    def _begin(self) -> RangeReader:
        """Open the consumer if necessary, and begin to read the topic from its first record on."""
        if self._opened is None:
            self._opened = AssignedConsumer(self._properties(), _READS, open_client=self._open_client)
        numbers = self._partitions(self._opened.consumer)
        return RangeReader(self._opened, self._topic, dict.fromkeys(numbers, OffsetBounds(0)), _LIMITS)

    def _read(self) -> frozenset[int]:
        """Read the new records. Returns the partitions whose end was not reached yet.

        Raises:
            SourceError: Kafka refuses a request, or a partition does not exist.
            KafkaException: A partition has no leader, or its leader does not answer now.
        """
        reader = self._reader = self._reader or self._begin()
        unread, is_new = reader.unreached, True
        while is_new:
            before = unread
            try:
                messages = reader.consume(_RECORDS, timeout=1.0 if unread else 0.0)
            except SourceError:
                # The records of this call are lost, so the next look reads the topic from its start.
                self._reader, self._found = None, {}
                raise
            for message in messages:
                self._take(message)
            unread = reader.unreached
            is_new = bool(messages) or unread != before
        error = reader.take_error()
        if error is not None:
            raise KafkaException(error)
        return unread

    def _partitions(self, consumer: Any) -> set[int]:
        listed = consumer.list_topics(self._topic, timeout=TIMEOUT_SECONDS).topics[self._topic]
        if listed.error is not None or not listed.partitions:
            raise SourceError(
                f"The brokers do not have topic {self._topic}, which source.debezium.offsets-topic names. "
                "Set it to the offset.storage.topic of a distributed Kafka Connect, or the "
                "offsets.storage.topic of the connector. Cuts are not possible with a standalone Connect, "
                "which keeps its offsets in a file.",
                topic=self._topic,
            )
        return set(listed.partitions)

    def _take(self, message: Any) -> None:
        """Process one record of the offsets topic."""
        key = message.key()
        if not self._is_own(key):
            return
        offset = _offset(message.value())
        if offset is None:
            self._found.pop(key, None)
            self._absent = "The connector's offset was removed."
            return
        checkpoint = self._read_offset(offset)
        if isinstance(checkpoint, Checkpoint) and not checkpoint.time:
            # A connector's offset from before its first event has no time of the source database.
            checkpoint = checkpoint._replace(time=message.timestamp()[1] / 1000)
        self._found[key] = checkpoint

    def _is_own(self, key: bytes | None) -> bool:
        try:
            parsed = json.loads(key or b"null")
        except ValueError:
            return False
        return isinstance(parsed, list) and len(parsed) == 2 and parsed[0] == self._connector


def _offset(value: bytes | None) -> Mapping[str, Any] | None:
    try:
        offset = json.loads(value or b"null")
    except ValueError:
        return None
    return offset if isinstance(offset, dict) else None
