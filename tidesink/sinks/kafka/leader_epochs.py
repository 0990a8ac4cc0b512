"""Checks that a partition's log still has the records that were read: a log can be cut and grow again.

After an unclean leader election, or with a lost disk, a partition has fewer records than before, and
producers write others at the same offsets. Neither the topic's id nor its offsets show this. Kafka gives each
record the *epoch* of the leader that wrote it (KIP-101, KIP-320): two records that were written at one offset
always have two epochs.

The law, for each partition of a topic:

1. A reader keeps the last record that it read (``LastRecord``): its offset and its epoch, as of the fetch.
2. Before it continues, it gets the leader's epoch, which Kafka reports with the end of a partition
   (ListOffsets from version 4 on, Kafka 2.1). If that epoch is greater than the record's, and greater than at
   the last check, the record is looked up (``CheckedLogs``). Otherwise no request is sent: a log loses a
   record that it had only by an election, and each election gives the partition a greater epoch. A leader's
   epoch below the record's is an outdated answer, or Kafka's own law does not hold. Then the record is looked
   up too.
3. The records that are read next are used if the epoch of their last record is at least the known record's,
   and at most the leader's at the check, or the known record's if that is greater (``follows``). If not, a
   leader was elected meanwhile, whose log may have been cut before the known record. Then the records are
   dropped, and read again after the next check. Too many drops under the same leaders are an error: epochs
   decrease, for example after metadata were restored, and further checks will not differ.

If the offset no longer has a record, as in a compacted topic, librdkafka asks the leader where the epoch
ended (``OffsetForLeaderEpoch``). librdkafka 2.16 does so only for the first assignment of a client: a
partition that is assigned again is not validated. So a client is opened for this request.

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
from tidesink.sinks.kafka.fetch import ABSENT, FIXED_SETTINGS, REFUSED
from tidesink.sinks.kafka.offsets import TopicOffsets, translated_error
from tidesink.sinks.state.progress import LastRecord

# Only a few records are read, so nothing is fetched ahead.
_FEW: Final[Mapping[str, str]] = {
    "queued.min.messages": "1",
    "fetch.message.max.bytes": "1",
    "fetch.wait.max.ms": "10",
    "fetch.queue.backoff.ms": "2",
    "topic.metadata.propagation.max.ms": "2000",
}
_ALIASES: Final = {"max.partition.fetch.bytes"}
# So many offsets before an end are read, because the last ones may be a transaction's markers.
_BEHIND: Final = 16
_SECONDS: Final = 60.0
# A refused login is an error after so long.
_REFUSAL_SECONDS: Final = 10.0
# A request is repeated after so long.
_ASK_SECONDS: Final = 1.0
_CONSUME_SECONDS: Final = 0.02
_CONSUME_RECORDS: Final = 100
# Records may be dropped so many times under the same leaders. One outdated answer may cost a few drops.
MOST_DROPS: Final = 20
# So many found records are remembered, for tables that check the same record.
_MOST_KNOWN: Final = 10_000


class LeaderEpochs:
    """Looks up records in one cluster. Used by several threads.

    Args:
        properties: See ``client_properties``.
        is_stopped: Returns True if a stop was requested, which ends a look-up with SourceUnavailableError.
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
        # The greatest epoch of a leader that has the record, by topic, topic id, partition and record.
        self._there: dict[tuple[str, str, int, LastRecord], int] = {}

    def last(self, found: TopicOffsets, ends: Mapping[int, int]) -> dict[int, LastRecord]:
        """Return a record at or shortly before each end, or the first record after it.

        A partition whose records have no epoch is absent.

        Raises:
            SourceError: The brokers refuse the request, or the topic was deleted.
            SourceUnavailableError: Not all partitions answer.
        """
        parts = found.partitions
        starts = {n: max(parts[n].earliest, end - _BEHIND) for n, end in ends.items() if n in parts}
        starts = {n: at for n, at in starts.items() if at < ends[n] <= parts[n].latest}
        if not starts:
            return {}
        with self._look(found.topic) as look:
            read = look.records(starts, {n: ends[n] - 1 for n in starts})
        return {n: record for n, record in read.items() if record is not None}

    def cuts(self, found: TopicOffsets, known: Mapping[int, LastRecord]) -> dict[int, int]:
        """Return the partitions whose logs lack the known record, with the offsets of the cuts.

        From such an offset on there are other records now. Other checks report expired records, and records
        that are missing at the end of a partition.

        Raises:
            SourceError, SourceUnavailableError: For the same reasons as ``last``.
        """
        parts, epochs = found.partitions, found.leader_epochs
        there = {
            n: record
            for n, record in known.items()
            if n in parts
            and parts[n].earliest <= record.offset < parts[n].latest
            and not self._is_known(found, n, record)
        }
        if not there:
            return {}
        with self._look(found.topic) as look:
            read = look.records({n: record.offset for n, record in there.items()}, {})
            # Two records at one offset differ in their epochs. If the offset has no record, the leader is
            # asked.
            gone = {n for n, now in read.items() if now is None or now.offset != there[n].offset}
            cut = {n for n in there.keys() - gone if read[n] != there[n]}
            cut |= look.ended({n: there[n] for n in gone})
            starts = {n: look.earliest(n) for n in cut}
            # Records that expired meanwhile look as if they were cut.
            cut = {n for n in cut if starts[n] <= there[n].offset}
            found_cuts = {n: look.first_of_later_epochs(n, there[n], starts[n]) for n in cut}
        with self._lock:
            for n in there.keys() - cut:
                self._there[found.topic, found.topic_id, n, there[n]] = epochs.get(n, -1)
            while len(self._there) > _MOST_KNOWN:
                del self._there[next(iter(self._there))]
        return found_cuts

    def _is_known(self, found: TopicOffsets, number: int, record: LastRecord) -> bool:
        epoch = found.leader_epochs.get(number)
        with self._lock:
            seen = self._there.get((found.topic, found.topic_id, number, record))
        return epoch is not None and seen is not None and seen >= epoch

    @contextmanager
    def _look(self, topic: str) -> Iterator[_Look]:
        look = _Look(self._properties, topic, self._is_stopped, self._seconds)
        try:
            yield look
        finally:
            look.close()


class CheckedLogs:
    """The leader epochs up to which a reader's partitions of one topic were checked. For one thread.

    The known record of a partition must be newer than at the check before, or the same again.
    """

    def __init__(self, log: LeaderEpochs | None) -> None:
        self._log = log
        self._topic_id, self._epochs = "", dict[int, int]()
        # The number of drops under these leader epochs.
        self._drops, self._dropped_under = 0, ("", dict[int, int]())

    def cuts(self, found: TopicOffsets, known: Mapping[int, LastRecord]) -> dict[int, int]:
        """Like ``LeaderEpochs.cuts``, but sends no request while no partition has a new leader.

        A partition without a leader epoch is not checked.
        """
        if self._log is None:
            return {}
        if found.topic_id != self._topic_id:
            self._topic_id, self._epochs = found.topic_id, {}
        epochs = found.leader_epochs
        due = self._due(found, known)
        cut = self._log.cuts(found, due) if due else {}
        # A log that ends before the record lost it, or is that of a lagging follower: it is checked later.
        short = {n for n, at in found.partitions.items() if n in due and due[n].offset >= at.latest}
        for number in epochs.keys() - cut.keys() - short:
            self._epochs[number] = max(epochs[number], self._epochs.get(number, -1))
        return cut

    def is_due(self, found: TopicOffsets, known: Mapping[int, LastRecord]) -> bool:
        """Returns True if ``cuts`` has something to look up. For any thread."""
        return self._log is not None and bool(self._due(found, known))

    def _due(self, found: TopicOffsets, known: Mapping[int, LastRecord]) -> dict[int, LastRecord]:
        epochs = found.leader_epochs
        return {
            n: record for n, record in known.items() if n in epochs and self._is_due(n, record, epochs[n])
        }

    def _is_due(self, number: int, record: LastRecord, epoch: int) -> bool:
        return epoch < record.epoch or epoch > max(record.epoch, self._epochs.get(number, -1))

    def follows(
        self, found: TopicOffsets, known: Mapping[int, LastRecord], read: Mapping[int, LastRecord]
    ) -> bool:
        """Like the function ``follows``, but raises an error after too many drops under the same leaders.

        Raises:
            SourceError: The records do not follow the known ones, and further checks will not differ.
        """
        if follows(found, known, read):
            self._drops = 0
            return True
        under = found.topic_id, dict(found.leader_epochs)
        self._drops = self._drops + 1 if under == self._dropped_under else 1
        self._dropped_under = under
        if self._drops >= MOST_DROPS:
            raise _unsettled_error(found, known, read, self._drops)
        return False


def follows(found: TopicOffsets, known: Mapping[int, LastRecord], read: Mapping[int, LastRecord]) -> bool:
    """Returns True if records that were read after a check are from logs that have the known records.

    ``found``: the topic at the check. ``known`` and ``read``: the last record of each partition.
    """
    return all(
        _follows(known[number], record, found.leader_epochs[number])
        for number, record in read.items()
        if number in known and number in found.leader_epochs
    )


def _follows(known: LastRecord, read: LastRecord, epoch: int) -> bool:
    if read == known:
        return True  # nothing was read
    # Rows that waited for a later bound are read again, from before the known record.
    grows = read.epoch >= known.epoch or read.offset < known.offset
    # A leader that was elected after the check has a greater epoch than a record that the check found.
    return grows and read.epoch <= max(epoch, known.epoch)


def _unsettled_error(
    found: TopicOffsets, known: Mapping[int, LastRecord], read: Mapping[int, LastRecord], drops: int
) -> SourceError:
    """Return the error for a partition whose records never follow the known ones."""
    epochs = found.leader_epochs
    number = min(
        n for n, record in read.items()
        if n in known and n in epochs and not _follows(known[n], record, epochs[n])
    )  # fmt: skip
    text = _UNSETTLED.format(known[number], read[number], epochs[number], drops, number)
    return SourceError(text, topic=found.topic, partition=number, offset=known[number].offset)


def cut_error(topic: str, number: int, record: LastRecord, offset: int) -> SourceError:
    """Return the error for a partition whose log was cut at an offset, and lacks the record."""
    return SourceError(
        _CUT.format(record, offset, number), topic=topic, partition=number, offset=record.offset
    )


class _Look:
    """One look-up of some partitions of a topic, with a deadline."""

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
        """Return each partition's first record at or after an offset, or its last one up to ``until``.

        If there is no such record, the first later one is returned. None: it has no epoch, or there is no
        record.
        """
        found: dict[int, LastRecord | None] = dict.fromkeys(starts)
        met = set[int]()
        places = [TopicPartition(self._topic, n, at) for n, at in sorted(starts.items())]
        for message in self._messages(self._consumer, places):
            number, offset = message.partition(), message.offset()
            if message.error() is not None:
                self._done(self._consumer, number)
            elif offset >= starts[number]:
                last = until.get(number, -1)
                if number not in met or offset <= last:
                    epoch = message.leader_epoch()
                    found[number] = None if epoch is None else LastRecord(offset, epoch)
                    met.add(number)
                if offset >= last:
                    self._done(self._consumer, number)
        return found

    def ended(self, known: Mapping[int, LastRecord]) -> set[int]:
        """Return the partitions in which the leader's log of a record's epoch ends before the record."""
        if not known:
            return set()
        cut = set[int]()
        consumer = self._open()
        try:
            places = [
                TopicPartition(self._topic, n, record.offset + 1, leader_epoch=record.epoch)
                for n, record in sorted(known.items())
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
        """Return the first offset that a partition has now."""
        self._open_partitions = {number}
        while True:
            self._check_time()
            try:
                place = TopicPartition(self._topic, number)
                return int(self._consumer.get_watermark_offsets(place, timeout=_ASK_SECONDS)[0])
            except KafkaException as exc:
                self._raise_refused(exc.args[0], number)

    def first_of_later_epochs(self, number: int, known: LastRecord, earliest: int) -> int:
        """Return the offset at which the log was cut: all earlier records are unchanged.

        The known record is missing, so this is at most its own offset.
        """
        low, high = earliest, known.offset
        while low < high:
            middle = (low + high) // 2
            record = self.records({number: middle}, {})[number]
            if record is not None and record.offset <= known.offset and record.epoch <= known.epoch:
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
        """Stop reading a partition, so that its records do not hide that another one is silent."""
        if number in self._open_partitions:
            self._open_partitions.discard(number)
            consumer.incremental_unassign([TopicPartition(self._topic, number)])

    def _messages(self, consumer: Consumer, places: list[TopicPartition]) -> Iterator[Any]:
        """Yield the messages of partitions until each is ``_done``: records, ends, and missing offsets.

        Raises:
            SourceError, SourceUnavailableError: For the same reasons as ``LeaderEpochs.last``.
        """
        self._open_partitions = {place.partition for place in places}
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
            raise BrokerUnavailableError("A stop was requested while the log was checked.", topic=self._topic)
        waited = time.monotonic() - self._begun
        error = self._client_error
        if error is not None and (error.code() in ABSENT or waited > _REFUSAL_SECONDS):
            self._raise_refused(error, None)
        if waited > self._seconds:
            number = min(self._open_partitions)
            raise BrokerUnavailableError(
                f"No answer from the partition's leader for {self._seconds:.0f} seconds. Check that all "
                "brokers run.",
                topic=self._topic,
                partition=number,
            )

    def _raise_refused(self, error: KafkaError, number: int | None) -> None:
        """Raise an error that librdkafka cannot overcome by itself."""
        if error.code() in ABSENT:
            raise BrokerUnavailableError(
                f"Kafka does not have this partition ({error.name()}): the topic was deleted, or its brokers "
                "are starting. Look up the topic again.",
                topic=self._topic,
                partition=number,
            )
        if error.fatal() or error.code() in REFUSED:
            raise translated_error(error, self._topic)


# Answers to a look-up. With the policy ``error``, a cut log is an _AUTO_OFFSET_RESET or a
# _LOG_TRUNCATION.
_ANSWERS: Final = frozenset(
    {KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION}
)
_CUT: Final = (
    "The partition's log was cut and has grown again, as after an unclean leader election or the loss of a "
    "disk. The record at offset {0.offset}, which was read under leader epoch {0.epoch}, no longer exists. "
    "From offset {1} on there are other records now, and the topic lacks the earlier ones. Nothing was read "
    "or skipped. Read the new records with `tidesink offsets rewind TABLE --to-offset {2}={1}`. Then repair "
    "what the topic lost with `tidesink resync TABLE`, or load the table again from a new topic."
)
_UNSETTLED: Final = (
    "The next records were read {3} times, and were dropped each time. The record at offset "
    "{0.offset} was read under leader epoch {0.epoch}, the record at offset {1.offset} has leader epoch "
    "{1.epoch}, and the partition's leader reports epoch {2}. Epochs decrease if cluster metadata were "
    "restored from an older state, if the topic was recreated, or if a service counts them in another way. "
    "None of these records was applied. If a broker was "
    "replaced just now, read them again with `tidesink resume TABLE`. If the topic is still the same, "
    "`tidesink offsets rewind TABLE --to-offset {4}={0.offset}` and `tidesink resume TABLE` continue from "
    "that record, whatever its epoch, and `tidesink resync TABLE` repairs what the topic lost. If the topic "
    "was recreated, load the table again."
)
