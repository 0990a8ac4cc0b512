"""Checks that a partition's log still has the records that were read, as a log can be cut and grow again.

After an unclean leader election, or with a lost disk, a partition has fewer records than before, and
producers write other records at the same offsets. Neither the topic's id nor its offsets show this. Kafka
stores with each record the *epoch* of the leader that wrote it (KIP-101, KIP-320). Two different records that
were written at the same offset always have different epochs.

The law, for each partition of a topic:

1. A reader keeps the last record that it read (``LastRecord``): the record's offset and its epoch.
2. Before the reader continues, it gets the leader's epoch, which Kafka reports with the end of a partition
   (ListOffsets from version 4 on, Kafka 2.1). If that epoch is greater than the record's, and greater than at
   the reader's last check, the record is looked up in Kafka (``CheckedLogs``). Otherwise no request is
   needed: a log only loses records by an election, and each election increases the partition's epoch. If the
   leader's epoch is less than the record's, the record is looked up too. The answer is then outdated, or
   Kafka's epochs decreased.
3. The records that are read next are used if the epoch of the last of them is at least the known record's
   epoch, and at most the leader's epoch at the check (or the known record's epoch, if that is greater); see
   ``follows``. Otherwise a leader was elected since the check, and its log may have been cut before the known
   record. Then the new records are dropped, and are read again after the next check. Too many drops under the
   same leaders are an error: the epochs decrease, for example after metadata were restored, and checking
   again does not help.

If the offset no longer has a record, as in a compacted topic, librdkafka asks the leader for the offset at
which the epoch ended (``OffsetForLeaderEpoch``). librdkafka 2.16 does so only for the first assignment of a
client: a partition that is assigned again is not validated. So a new client is opened for this request.

Records from before Kafka 0.11 have no epoch, and some services report none. Then nothing is kept or checked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tidesink.errors import BrokerUnavailableError, SourceError
from tidesink.kafka_client import SILENT, librdkafka_settings, open_client
from tidesink.sinks.kafka.consume import ABSENT, REFUSED, absent_text
from tidesink.sinks.kafka.fetch import FIXED_SETTINGS
from tidesink.sinks.kafka.offsets import TopicOffsets, translated_error
from tidesink.sinks.state.progress import LastRecord

# A look-up reads only a few records, so nothing is fetched ahead.
_FEW: Final[Mapping[str, str]] = {
    "queued.min.messages": "1",
    "fetch.message.max.bytes": "1",
    "fetch.wait.max.ms": "10",
    "fetch.queue.backoff.ms": "2",
    "topic.metadata.propagation.max.ms": "2000",
}
_ALIASES: Final = {"max.partition.fetch.bytes"}
# Number of offsets before an end that are read, because the last offsets may be a transaction's markers.
_BEHIND: Final = 16
_SECONDS: Final = 60.0
# Seconds after which a refused login is an error.
_REFUSAL_SECONDS: Final = 10.0
# Seconds after which a request is repeated.
_ASK_SECONDS: Final = 1.0
_CONSUME_SECONDS: Final = 0.02
_CONSUME_RECORDS: Final = 100
# Maximum number of times that records are dropped under the same leaders. One outdated answer may cause a few
# drops.
MOST_DROPS: Final = 20
# Maximum number of remembered look-ups, for tables that check the same record.
_MOST_KNOWN: Final = 10_000


class LeaderEpochs:
    """Looks up records by offset and leader epoch in one Kafka cluster. May be used from several threads.

    Args:
        properties: Client properties of confluent-kafka.
        is_stopped: Returns True if a stop was requested. A look-up then raises SourceUnavailableError.
        seconds: Time limit of one look-up.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        *,
        is_stopped: Callable[[], bool] = lambda: False,
        seconds: float = _SECONDS,
    ) -> None:
        given = {n: v for n, v in properties.items() if n not in _ALIASES}
        self._properties: dict[str, Any] = {**given, **_FEW}
        self._is_stopped, self._seconds = is_stopped, seconds
        self._lock = threading.Lock()
        # By topic, topic id, partition and record: the greatest epoch of a leader whose log was found to have
        # the record.
        self._there: dict[tuple[str, str, int, LastRecord], int] = {}

    def last(self, topic_offsets: TopicOffsets, ends: Mapping[int, int]) -> dict[int, LastRecord]:
        """Returns the last record before each partition's offset in ``ends``. Looks back at most 16 offsets.

        If these offsets have no record, the first later record is returned. A partition is absent if it has
        no such record, or if the record has no epoch. ``topic_offsets``: the topic's current offsets.

        Raises:
            SourceError: The brokers refuse the request, or the topic was deleted.
            SourceUnavailableError: Not all partitions answer.
        """
        parts = topic_offsets.partitions
        starts = {n: max(parts[n].earliest, end - _BEHIND) for n, end in ends.items() if n in parts}
        starts = {n: start for n, start in starts.items() if start < ends[n] <= parts[n].latest}
        if not starts:
            return {}
        with self._look(topic_offsets.topic) as look:
            read = look.records(starts, {n: ends[n] - 1 for n in starts})
        return {n: record for n, record in read.items() if record is not None}

    def cuts(self, topic_offsets: TopicOffsets, known_records: Mapping[int, LastRecord]) -> dict[int, int]:
        """Returns the partitions that lost their known record, each with the offset at which its log was cut.

        The known record of a partition is the last record that was read. From the offset of the cut on, the
        records in Kafka differ from those that were read. Partitions whose known record expired, or is after
        the end, are not checked here.

        Raises:
            SourceError: The brokers refuse the request, or the topic was deleted.
            SourceUnavailableError: Not all partitions answer.
        """
        parts, epochs = topic_offsets.partitions, topic_offsets.leader_epochs
        there = {
            n: record
            for n, record in known_records.items()
            if n in parts
            and parts[n].earliest <= record.offset < parts[n].latest
            and not self._is_known(topic_offsets, n, record)
        }
        if not there:
            return {}
        with self._look(topic_offsets.topic) as look:
            read = look.records({n: record.offset for n, record in there.items()}, {})
            # Two different records at one offset have different epochs. If the offset has no record, the
            # leader is asked where the epoch ended.
            missing = {n for n, now in read.items() if now is None or now.offset != there[n].offset}
            cut = {n for n in there.keys() - missing if read[n] != there[n]}
            cut |= look.ended({n: there[n] for n in missing})
            starts = {n: look.earliest(n) for n in cut}
            # Records that expired since the first request look as if they were cut.
            cut = {n for n in cut if starts[n] <= there[n].offset}
            found_cuts = {n: look.first_of_later_epochs(n, there[n], starts[n]) for n in cut}
        with self._lock:
            for n in there.keys() - cut:
                self._there[topic_offsets.topic, topic_offsets.topic_id, n, there[n]] = epochs.get(n, -1)
            while len(self._there) > _MOST_KNOWN:
                del self._there[next(iter(self._there))]
        return found_cuts

    def _is_known(self, topic_offsets: TopicOffsets, number: int, record: LastRecord) -> bool:
        epoch = topic_offsets.leader_epochs.get(number)
        with self._lock:
            seen = self._there.get((topic_offsets.topic, topic_offsets.topic_id, number, record))
        return epoch is not None and seen is not None and seen >= epoch

    @contextmanager
    def _look(self, topic: str) -> Iterator[_Look]:
        look = _Look(self._properties, topic, self._is_stopped, self._seconds)
        try:
            yield look
        finally:
            look.close()


class CheckedLogs:
    """Remembers up to which leader epoch the partitions of one topic were checked. For one reader and one
    thread.

    The known record that is passed for a partition (the last record that was read) must never be older than
    at the partition's last check.
    """

    def __init__(self, log: LeaderEpochs | None) -> None:
        self._log = log
        self._topic_id, self._epochs = "", dict[int, int]()
        # Number of times that records were dropped under these leader epochs.
        self._drops, self._dropped_under = 0, ("", dict[int, int]())

    def cuts(self, topic_offsets: TopicOffsets, known_records: Mapping[int, LastRecord]) -> dict[int, int]:
        """Returns the partitions that lost their known record, each with the offset at which its log was cut.

        The known record of a partition is the last record that was read. Unlike ``LeaderEpochs.cuts``, this
        method sends no request while no partition has a new leader. A partition whose broker reports no
        leader epoch is not checked.

        Raises:
            SourceError: The brokers refuse the request, or the topic was deleted.
            SourceUnavailableError: Not all partitions answer.
        """
        if self._log is None:
            return {}
        if topic_offsets.topic_id != self._topic_id:
            self._topic_id, self._epochs = topic_offsets.topic_id, {}
        epochs = topic_offsets.leader_epochs
        due = self._due(topic_offsets, known_records)
        cut = self._log.cuts(topic_offsets, due) if due else {}
        # A log that ends before the known record lost the record, or is the log of a lagging follower. It is
        # checked again later.
        short = {
            n
            for n, offsets in topic_offsets.partitions.items()
            if n in due and due[n].offset >= offsets.latest
        }
        for number in epochs.keys() - cut.keys() - short:
            self._epochs[number] = max(epochs[number], self._epochs.get(number, -1))
        return cut

    def is_due(self, topic_offsets: TopicOffsets, known_records: Mapping[int, LastRecord]) -> bool:
        """Returns True if ``cuts`` would look up a record in Kafka. May be called from any thread."""
        return self._log is not None and bool(self._due(topic_offsets, known_records))

    def _due(
        self, topic_offsets: TopicOffsets, known_records: Mapping[int, LastRecord]
    ) -> dict[int, LastRecord]:
        epochs = topic_offsets.leader_epochs
        return {
            n: record
            for n, record in known_records.items()
            if n in epochs and self._is_due(n, record, epochs[n])
        }

    def _is_due(self, number: int, record: LastRecord, epoch: int) -> bool:
        return epoch < record.epoch or epoch > max(record.epoch, self._epochs.get(number, -1))

    def follows(
        self,
        topic_offsets: TopicOffsets,
        known_records: Mapping[int, LastRecord],
        read: Mapping[int, LastRecord],
    ) -> bool:
        """Returns True if records that were read after a check may be applied (see the function ``follows``).

        ``topic_offsets``: the topic's offsets at the check. ``known_records`` and ``read``: for each
        partition, the last record that had been read at the check, and the last record that was read since.

        Raises:
            SourceError: Records were dropped too many times under the same leaders, and further checks will
                not help.
        """
        if follows(topic_offsets, known_records, read):
            self._drops = 0
            return True
        under = topic_offsets.topic_id, dict(topic_offsets.leader_epochs)
        self._drops = self._drops + 1 if under == self._dropped_under else 1
        self._dropped_under = under
        if self._drops >= MOST_DROPS:
            raise _unsettled_error(topic_offsets, known_records, read, self._drops)
        return False


def follows(
    topic_offsets: TopicOffsets, known_records: Mapping[int, LastRecord], read: Mapping[int, LastRecord]
) -> bool:
    """Returns True if the records that were read after a check show that the logs still have the known
    records.

    ``topic_offsets``: the topic's offsets at the check. ``known_records`` and ``read``: for each partition,
    the last record that had been read at the check, and the last record that was read since.
    """
    return all(
        _follows(known_records[number], record, topic_offsets.leader_epochs[number])
        for number, record in read.items()
        if number in known_records and number in topic_offsets.leader_epochs
    )


def _follows(known_record: LastRecord, read: LastRecord, epoch: int) -> bool:
    if read == known_record:
        return True  # nothing was read
    # Rows that wait for a later cut are read again, from an offset before the known record.
    grows = read.epoch >= known_record.epoch or read.offset < known_record.offset
    # A leader that was elected after the check writes records with a greater epoch than the leader's at the
    # check.
    return grows and read.epoch <= max(epoch, known_record.epoch)


def _unsettled_error(
    topic_offsets: TopicOffsets,
    known_records: Mapping[int, LastRecord],
    read: Mapping[int, LastRecord],
    drops: int,
) -> SourceError:
    """Returns the error for a partition whose new records were dropped too often.

    Each time that they were read, they did not follow the known record (see ``follows``).
    """
    epochs = topic_offsets.leader_epochs
    number = min(
        n for n, record in read.items()
        if n in known_records and n in epochs and not _follows(known_records[n], record, epochs[n])
    )  # fmt: skip
    text = _UNSETTLED.format(known_records[number], read[number], epochs[number], drops, number)
    return SourceError(text, topic=topic_offsets.topic, partition=number, offset=known_records[number].offset)


def cut_error(topic: str, number: int, record: LastRecord, offset: int) -> SourceError:
    """Returns the error for a partition whose log was cut at ``offset`` and no longer has ``record``."""
    return SourceError(
        _CUT.format(record, offset, number), topic=topic, partition=number, offset=record.offset
    )


class _Look:
    """One look-up of records in some partitions of a topic, with a time limit."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        topic: str,
        is_stopped: Callable[[], bool],
        seconds: float,
    ) -> None:
        self._settings = librdkafka_settings(properties)
        self._topic, self._is_stopped, self._seconds = topic, is_stopped, seconds
        self._begun = time.monotonic()
        self._client_error: KafkaError | None = None
        self._consumer = self._open()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def records(self, starts: Mapping[int, int], until: Mapping[int, int]) -> dict[int, LastRecord | None]:
        """Returns a record of each partition, as offset and leader epoch.

        For a partition in ``until``, this is the last record from its offset in ``starts`` up to its offset
        in ``until``, or the first later record if there is none. For other partitions, it is the first record
        at or after its offset in ``starts``. The value is None if the partition has no such record, or the
        record has no epoch.
        """
        read_records: dict[int, LastRecord | None] = dict.fromkeys(starts)
        met = set[int]()
        places = [TopicPartition(self._topic, n, start) for n, start in sorted(starts.items())]
        for message in self._messages(self._consumer, places):
            number, offset = message.partition(), message.offset()
            if message.error() is not None:
                self._done(self._consumer, number)
            elif offset >= starts[number]:
                last = until.get(number, -1)
                if number not in met or offset <= last:
                    epoch = message.leader_epoch()
                    read_records[number] = None if epoch is None else LastRecord(offset, epoch)
                    met.add(number)
                if offset >= last:
                    self._done(self._consumer, number)
        return read_records

    def ended(self, known_records: Mapping[int, LastRecord]) -> set[int]:
        """Returns the partitions whose leader no longer has the known record.

        In the leader's log, the epoch of the known record ends before the record's offset.
        """
        if not known_records:
            return set()
        cut = set[int]()
        consumer = self._open()
        try:
            places = [
                TopicPartition(self._topic, n, record.offset + 1, leader_epoch=record.epoch)
                for n, record in sorted(known_records.items())
            ]
            for message in self._messages(consumer, places):
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    cut.add(message.partition())
                self._done(consumer, message.partition())
        finally:
            consumer.close()
        return cut

    def earliest(self, number: int) -> int:
        """Returns the first offset that Kafka still has of a partition."""
        self._open_partitions = {number}
        while True:
            self._check_time()
            try:
                topic_partition = TopicPartition(self._topic, number)
                return int(self._consumer.get_watermark_offsets(topic_partition, timeout=_ASK_SECONDS)[0])
            except KafkaException as exc:
                self._raise_refused(exc.args[0], number)

    def first_of_later_epochs(self, number: int, known_record: LastRecord, earliest: int) -> int:
        """Returns the offset at which the log was cut. Records before this offset are unchanged.

        The log no longer has the known record, so the offset is at most that record's. ``earliest``: the
        partition's first offset.
        """
        low, high = earliest, known_record.offset
        while low < high:
            middle = (low + high) // 2
            record = self.records({number: middle}, {})[number]
            if (
                record is not None
                and record.offset <= known_record.offset
                and record.epoch <= known_record.epoch
            ):
                low = record.offset + 1
            else:
                high = middle
        return low

    def _open(self) -> Consumer:
        own = {**FIXED_SETTINGS, "group.id": "tidesink-fetch", "error_cb": self._note}
        return open_client(Consumer, self._settings, own, logger=SILENT)

    def _note(self, error: KafkaError) -> None:
        self._client_error = error

    def _done(self, consumer: Consumer, number: int) -> None:
        """Stop reading a partition.

        Otherwise its records would hide that another partition does not answer.
        """
        if number in self._open_partitions:
            self._open_partitions.discard(number)
            consumer.incremental_unassign([TopicPartition(self._topic, number)])

    def _messages(self, consumer: Consumer, places: list[TopicPartition]) -> Iterator[Any]:
        """Yields records, ends of partitions and missing offsets until ``_done`` was called for each
        partition.

        Raises:
            SourceError: The brokers refuse the request.
            SourceUnavailableError: A partition does not answer in time, the topic was deleted, or a stop was
                requested.
        """
        self._open_partitions = {topic_partition.partition for topic_partition in places}
        consumer.assign(places)
        while self._open_partitions:
            self._check_time()
            for message in consumer.consume(_CONSUME_RECORDS, _CONSUME_SECONDS):
                error = message.error()
                if error is not None and error.code() not in _ANSWERS:
                    self._raise_refused(error, message.partition())
                elif message.topic() == self._topic and message.partition() in self._open_partitions:
                    yield message
        consumer.unassign()

    def _check_time(self) -> None:
        if self._is_stopped():
            raise BrokerUnavailableError(
                "A stop was requested while the partitions' logs were checked. The next start checks them "
                "again.",
                topic=self._topic,
            )
        waited = time.monotonic() - self._begun
        error = self._client_error
        if error is not None and (error.code() in ABSENT or waited > _REFUSAL_SECONDS):
            self._raise_refused(error, None)
        if waited > self._seconds:
            number = min(self._open_partitions)
            raise BrokerUnavailableError(
                f"The partition's leader did not answer for {self._seconds:.0f} seconds. Check that all "
                "brokers run.",
                topic=self._topic,
                partition=number,
            )

    def _raise_refused(self, error: KafkaError, number: int | None) -> None:
        """Raise an error that librdkafka cannot overcome by itself.

        Other errors are ignored, because it retries.
        """
        if error.code() in ABSENT:
            raise BrokerUnavailableError(absent_text(error), topic=self._topic, partition=number)
        if error.fatal() or error.code() in REFUSED:
            raise translated_error(error, self._topic)


# Errors that answer a look-up. With ``auto.offset.reset: error``, librdkafka reports a cut log as
# _AUTO_OFFSET_RESET or _LOG_TRUNCATION.
_ANSWERS: Final = frozenset(
    {KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION}
)
_CUT: Final = (
    "The partition's log was cut and has grown again, as after an unclean leader election or the loss of a "
    "disk. The record at offset {0.offset}, which was read under leader epoch {0.epoch}, no longer exists. "
    "From offset {1} on the partition has other records now, and the former records are lost. Nothing was "
    "read or skipped. Read the new records with `tidesink offsets rewind TABLE --to-offset {2}={1}` and "
    "`tidesink resume TABLE`. Once `tidesink status` no longer shows the rewind as requested, repair what "
    "the topic lost with `tidesink resync TABLE`, or load the table again from a new topic."
)
_UNSETTLED: Final = (
    "The partition's next records were read {3} times, and were dropped each time. The record at offset "
    "{0.offset} was read under leader epoch {0.epoch}, the record at offset {1.offset} has leader epoch "
    "{1.epoch}, and the partition's leader reports epoch {2}. Epochs decrease if cluster metadata were "
    "restored from an older state, if the topic was recreated, or if a service counts them in another way. "
    "None of these records was applied. If a broker was replaced just now, read them again with `tidesink "
    "resume TABLE`. If the topic is still the same, `tidesink offsets rewind TABLE --to-offset "
    "{4}={0.offset}` and `tidesink resume TABLE` continue from that record, whatever its epoch, and "
    "`tidesink resync TABLE` repairs what the topic lost. If the topic was recreated, load the table again."
)
