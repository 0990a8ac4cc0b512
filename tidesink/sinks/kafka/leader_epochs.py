"""Whether a partition's log still has the records that were read: a log can be cut and grow again.

After an unclean leader election, or with a lost disk, a partition has fewer records than before, and
producers write others at the same offsets. Neither the topic's id nor its offsets show this. Kafka gives each
record the *epoch* of the leader that wrote it (KIP-101, KIP-320): two records that were written at one offset
always have two epochs.

So a worker keeps the offset and the epoch of a record at the end of each batch (``LastRecord``). Before the
next batch it looks whether that record is still there. If the offset has no record by now, as in a compacted
topic or at the end of a transaction, librdkafka asks the leader where the epoch ended
(``OffsetForLeaderEpoch``). librdkafka 2.16 does so for the first assignment of a client only: a partition
that is assigned again is not validated. So a new client is opened for each of these questions.

Records from before Kafka 0.11 have no epoch, and some services give none: then nothing is kept or checked.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tidesink.errors import BrokerUnavailableError, SourceError
from tidesink.kafka_client import SILENT, librdkafka_settings, open_client
from tidesink.sinks.kafka.fetch import FIXED_SETTINGS, REFUSED, open_consumer
from tidesink.sinks.kafka.offsets import PartitionOffsets, translated_error
from tidesink.sinks.state.progress import LastRecord

# A few records are read: nothing is fetched ahead of them.
_FEW: Final[Mapping[str, str]] = {
    "queued.min.messages": "1",
    "fetch.message.max.bytes": "1",
    "fetch.wait.max.ms": "10",
    "fetch.queue.backoff.ms": "2",
}
_ALIASES: Final = {"max.partition.fetch.bytes"}
# So many offsets before an end are looked at: the last ones may be a transaction's markers.
_BEHIND: Final = 16
_SECONDS: Final = 60.0
_CONSUME_SECONDS: Final = 0.02
_CONSUME_RECORDS: Final = 100
# Answers of one topic that are kept, for tables that ask the same at about the same time.
_KEPT: Final = 4


class _Log(NamedTuple):
    """What was asked of a topic: what is known by partition, and the ends of the next ranges."""

    topic_id: str
    known: tuple[tuple[int, LastRecord], ...]
    ends: tuple[tuple[int, int], ...]


class LeaderEpochs:
    """Asks one cluster. ``properties``: ``client_properties``. Used by several threads."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        given = {n: v for n, v in properties.items() if n not in _ALIASES}
        self._properties: dict[str, Any] = {**given, **_FEW}
        self._lock = threading.Lock()
        self._answers: dict[str, deque[tuple[_Log, dict[int, LastRecord]]]] = {}

    def checked(
        self,
        topic: str,
        topic_id: str,
        known: Mapping[int, LastRecord],
        ends: Mapping[int, int],
        found: Mapping[int, PartitionOffsets],
    ) -> dict[int, LastRecord]:
        """The last records before ``ends``, once the log is known to have those that are ``known``.

        ``found``: where the partitions begin and end now. The last records are looked at first: whatever is
        cut off after that shows in them the next time. A partition whose records have no epoch is absent.

        Raises:
            SourceError: a log was cut.
            SourceUnavailableError: no broker answers.
        """
        asked = _Log(topic_id, tuple(sorted(known.items())), tuple(sorted(ends.items())))
        with self._lock:
            answers = self._answers.setdefault(topic, deque(maxlen=_KEPT))
            for before, answer in answers:
                if before == asked:
                    return answer
        last = self.last(topic, ends, found)
        self.check(topic, known, found)
        with self._lock:
            answers.append((asked, last))
        return last

    def last(
        self, topic: str, ends: Mapping[int, int], found: Mapping[int, PartitionOffsets]
    ) -> dict[int, LastRecord]:
        """A record at or shortly before each end, or the first one behind it.

        Raises:
            SourceError: the brokers refuse us.
            SourceUnavailableError: no broker answers.
        """
        starts = {n: max(found[n].earliest, end - _BEHIND) for n, end in ends.items() if n in found}
        starts = {n: at for n, at in starts.items() if at < ends[n] <= found[n].latest}
        read = self._read(topic, starts, {n: ends[n] - 1 for n in starts})
        return {n: record for n, record in read.items() if record is not None}

    def check(
        self, topic: str, known: Mapping[int, LastRecord], found: Mapping[int, PartitionOffsets]
    ) -> None:
        """Raise SourceError where a record is not the one that was read. Raises: as ``checked``."""
        for number, offset in sorted(self.cuts(topic, known, found).items()):
            record = known[number]
            raise SourceError(
                _CUT.format(record, offset, number), topic=topic, partition=number, offset=record.offset
            )

    def cuts(
        self, topic: str, known: Mapping[int, LastRecord], found: Mapping[int, PartitionOffsets]
    ) -> dict[int, int]:
        """The partitions whose logs were cut and have grown again, each with the offset of the cut.

        Raises: as ``last``.
        """
        # What expired, or is missing at the end, other checks report.
        there = {
            n: record
            for n, record in known.items()
            if n in found and found[n].earliest <= record.offset < found[n].latest
        }
        read = self._read(topic, {n: record.offset for n, record in there.items()}, {})
        cut = {}
        for number, record in there.items():
            now = read.get(number)
            # Of two records at one offset the epochs tell; without one, the leader.
            same = now == record if now is not None and now.offset == record.offset else None
            if same is False or (same is None and self._is_cut(topic, number, record)):
                cut[number] = self._first_of_later_epochs(topic, number, record, found[number])
        return cut

    def _first_of_later_epochs(
        self, topic: str, number: int, known: LastRecord, found: PartitionOffsets
    ) -> int:
        """The offset at which the log was cut: all records before it are as they were."""
        low, high = found.earliest, known.offset + 1
        while low < high:
            middle = (low + high) // 2
            record = self._read(topic, {number: middle}, {}).get(number)
            if record is not None and record.offset <= known.offset and record.epoch <= known.epoch:
                low = record.offset + 1
            else:
                high = middle
        return low

    def _is_cut(self, topic: str, number: int, known: LastRecord) -> bool:
        """Whether the leader's log of the record's epoch ends before the record."""
        settings = librdkafka_settings(self._properties)
        own = {**FIXED_SETTINGS, "group.id": "tidesink-fetch", "error_cb": lambda _error: None}
        consumer = open_client(Consumer, settings, own, logger=SILENT)
        try:
            consumer.assign([TopicPartition(topic, number, known.offset + 1, leader_epoch=known.epoch)])
            for message in _messages(consumer, topic):
                error = message.error()
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    return False
                # Where the policy is ``error`` this is the code for a cut log, too.
                if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION):
                    return True
                _raise_refused(error, topic)
        finally:
            consumer.close()
        return False

    def _read(
        self, topic: str, starts: Mapping[int, int], until: Mapping[int, int]
    ) -> dict[int, LastRecord | None]:
        """Of each partition the first record from an offset on, or the last one up to an offset of ``until``.

        If there is no such record, the first one behind; None: of one without an epoch, or of none.
        """
        found: dict[int, LastRecord | None] = {}
        if not starts:
            return found
        open_, here = {*starts}, {*starts}
        with open_consumer(self._properties) as opened:
            opened.consumer.assign([TopicPartition(topic, n, at) for n, at in sorted(starts.items())])
            for message in _messages(opened.consumer, topic):
                number, error = message.partition(), message.error()
                if message.topic() != topic or number not in here:
                    if error is not None:
                        _raise_refused(error, topic)
                    continue
                if error is not None and error.code() not in _NO_RECORD:
                    _raise_refused(error, topic)
                elif error is not None:
                    open_.discard(number)
                elif number in open_ and message.offset() >= starts[number]:
                    epoch = message.leader_epoch()
                    if number not in found or message.offset() <= until.get(number, -1):
                        found[number] = None if epoch is None else LastRecord(message.offset(), epoch)
                    if message.offset() >= until.get(number, -1):
                        open_.discard(number)
                if not open_:
                    break
        return found


_NO_RECORD: Final = frozenset({KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET})


def _messages(consumer: Consumer, topic: str) -> Iterator[Any]:
    """The messages of a consumer, for as long as somebody wants them.

    Raises:
        BrokerUnavailableError: for a minute there was none.
    """
    heard = time.monotonic()
    while time.monotonic() - heard < _SECONDS:
        for message in consumer.consume(_CONSUME_RECORDS, _CONSUME_SECONDS):
            heard = time.monotonic()
            yield message
    raise BrokerUnavailableError(
        f"no answer from Kafka for {_SECONDS:.0f} seconds: do the brokers run?", topic=topic
    )


def _raise_refused(error: KafkaError, topic: str) -> None:
    """Raise an error that librdkafka does not get over by itself."""
    if error.fatal() or error.code() in REFUSED:
        raise translated_error(error, topic)


_CUT: Final = (
    "The partition's log was cut and has grown again, as after an unclean leader election or with a lost "
    "disk. The record at offset {0.offset}, which was read under leader epoch {0.epoch}, is not there. From "
    "offset {1} on there are other records now, and the topic lacks what was there before. Nothing was read "
    "or skipped. Read the new records with `tidesink offsets rewind TABLE --to-offset {2}={1}`. Then repair "
    "what the topic lost with `tidesink resync TABLE`, or load the table again from a new topic"
)
