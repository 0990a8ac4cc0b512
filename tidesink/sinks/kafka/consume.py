"""Reads offset ranges of a topic's partitions with librdkafka: one consume loop for all readers of ranges.

A ``RangeReader`` assigns the partitions to a consumer, each from a start offset to an end offset, or without
an end. Each call of ``RangeReader.consume`` returns the records of one consume call. The rules:

1. *End.* Control records, aborted records and compaction leave gaps in the offsets, also at the end of a
   range. So a range is complete when a record at or past its end arrives, or when the end of the partition is
   at or past its end. (``Consumer.position()`` does not show that.) A range without an end is never complete.
2. *Silence.* A partition is silent while its reader waits in consume calls and gets neither a record nor the
   partition's end. Time between the calls does not count, and neither does the time in which a partition is
   paused. After ``ReadLimits.silence`` seconds, the brokers count as unavailable. A range without an end may
   be silent at the partition's end. If the client reported an error there, the reader asks the brokers for
   the end before it raises an error, and an answer restarts the wait.
3. *Errors that may pass.* librdkafka repeats its requests after an error that Kafka lists as retriable. The
   reader only remembers such an error, and names it if the partition stays silent. The partition's next
   record or end clears it. Errors of the consumer group are ignored, because the group is never joined.
4. *Refusals.* Any other error of a partition is raised at once. An error of the client, which names no
   partition, may be left over from an earlier read, so it is raised after ``ReadLimits.refusal`` seconds of
   silence.
5. *Deleted topics.* A partition that does not exist is a ``BrokerUnavailableError``: its brokers may be
   starting, so the caller may try again.
6. *Expired offsets.* With ``auto.offset.reset: error``, an offset that Kafka no longer has is an error, and
   the error names the partition's first offset. With ``earliest``, the range continues at the first offset.
7. *Lost records.* If the partition ends before the range, and stays so for ``ReadLimits.refusal`` seconds,
   Kafka lost records or the topic was recreated.

Every error names topic, partition and the next offset.

Three loops read no ranges, so they are separate: a consumer group (``tidesink.consumer``), a look at new
records in which silence and errors are no faults (``kafka.watermarks``), and look-ups in which a partition's
end or a missing offset is the answer (``kafka.leader_epochs``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidesink.errors import BrokerUnavailableError, SourceError
from tidesink.kafka_client import SILENT, OpenClient, librdkafka_settings, open_client

# One consume call waits this long for records. This also limits how late the end of a range is noticed.
CONSUME_SECONDS: Final = 0.02
_WATERMARK_SECONDS: Final = 5.0
# A client error that names no topic may be left over from an earlier read. Such an error arrives within this
# time.
_ABSENT_SECONDS: Final = 1.0
_LARGEST: Final = "receive.message.max.bytes"
# librdkafka's default.
_LARGEST_BYTES: Final = 100_000_000
# A reader of ranges needs these settings.
_FIXED: Final[Mapping[str, Any]] = {
    "enable.partition.eof": True,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
}


class AssignedConsumer:
    """A Kafka consumer to which partitions are assigned, with the last error that concerns its whole client,
    such as no broker or a refused login.

    It joins no consumer group and commits nothing.

    Attributes:
        client_error: The client's last error that names no topic.
        answer_refused: True if librdkafka closed a connection because of a response that it does not accept,
            for example a response larger than ``largest_answer`` bytes. librdkafka repeats the request, but
            the response stays the same.

    Args:
        properties: Client properties of confluent-kafka.
        own: More settings, which override the user's: ``group.id`` (librdkafka requires a name),
            ``auto.offset.reset``, ``isolation.level``.
        open_client: Opens the consumer.

    Raises:
        ConfigError: librdkafka refuses the properties.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        own: Mapping[str, Any],
        *,
        open_client: OpenClient = open_client,
    ) -> None:
        self.client_error: KafkaError | None = None
        self.answer_refused = False
        self.settings = librdkafka_settings(properties)
        own = {**own, **_FIXED, "error_cb": self.note_error}
        self.consumer: Consumer = open_client(Consumer, self.settings, own, logger=SILENT)

    @property
    def largest_answer(self) -> int:
        """The client's ``receive.message.max.bytes``: the largest response that librdkafka accepts."""
        return int(self.settings.get(_LARGEST, _LARGEST_BYTES))

    def note_error(self, error: KafkaError) -> None:
        """Remember an error of the client. librdkafka calls this function."""
        self.client_error = error
        self.answer_refused |= error.code() == KafkaError._BAD_MSG

    def close(self) -> None:
        """Close the connections, which may take a second."""
        self.consumer.close()


class OffsetBounds(NamedTuple):
    """The offsets ``[start, end)`` of one partition to read. ``end`` is None for a range without an end."""

    start: int
    end: int | None = None


@dataclass(frozen=True)
class ReadLimits:
    """How long a reader waits, and what its errors recommend.

    Attributes:
        silence: Seconds of silence after which the brokers count as unavailable.
        refusal: Seconds of silence after which a refused login, or a partition that ends before the range,
            is an error.
        expired: What to do if Kafka no longer has the next offset.
        short: What to do if the partition ends before the range.
    """

    silence: float = 60.0
    refusal: float = 10.0
    expired: str = "Run the command again."
    short: str = "Run the command again."


_DEFAULT_LIMITS: Final = ReadLimits()


class _Position:
    """How far the range of one partition was read.

    Attributes:
        next: The next offset.
        silent: Seconds of silence.
        short_end: The partition's end, while it is before the range's end.
        at_end: True if the partition's end was reached, and no record arrived since.
        error: The last error after which librdkafka tries again by itself.
    """

    __slots__ = ("at_end", "end", "error", "is_paused", "next", "short_end", "silent")

    def __init__(self, bounds: OffsetBounds) -> None:
        self.next, self.end = bounds
        self.silent = 0.0
        self.short_end: int | None = None
        self.at_end = self.is_paused = False
        self.error: KafkaError | None = None

    def move(self, next_offset: int) -> None:
        """Note that all records before this offset were read."""
        self.next, self.silent, self.error, self.at_end = next_offset, 0.0, None, False
        if self.short_end is not None and next_offset > self.short_end:
            self.short_end = None


class _RangeErrors:
    """The errors of a reader's ranges: which one an answer of Kafka or a silence becomes.

    ``open_ranges``: the positions of the ranges that are not complete, which the reader changes.
    """

    def __init__(
        self, opened: AssignedConsumer, topic: str, open_ranges: Mapping[int, _Position], limits: ReadLimits
    ) -> None:
        self._opened, self._topic, self._limits = opened, topic, limits
        self._open = open_ranges

    def of_silence(self, number: int, position: _Position) -> SourceError | None:
        refused, limits = self._opened.client_error, self._limits
        if refused is not None and refused.code() in ABSENT and position.silent > _ABSENT_SECONDS:
            return self.lasting(refused, number)
        if position.silent > limits.refusal:
            if self._opened.answer_refused:
                return self._too_large(number)
            if position.short_end is not None:
                return self._ends_early(number, position.short_end)
            if refused is not None and refused.code() in REFUSED:
                return self._refused(refused, number)
        if position.silent > limits.silence:
            return self._unavailable(number, position.error or refused)
        return None

    def lasting(self, error: KafkaError, number: int | None) -> SourceError | None:
        """Returns the error to raise, or None if librdkafka tries again by itself."""
        code = error.code()
        if code in _OF_THE_GROUP:
            return None
        if code == KafkaError._AUTO_OFFSET_RESET:
            return self._out_of_range(number)
        if code in ABSENT:
            return self._failure(BrokerUnavailableError, absent_text(error), number)
        if code in REFUSED:
            return self._refused(error, number)
        if error.fatal() or not (error.retriable() or code in PASSING):
            text = f"Kafka cannot return the records ({error.name()}). See the broker's log."
            return self._failure(SourceError, text, number)
        return None

    def broken(self, exc: KafkaException) -> SourceError:
        """Returns the error for a request that the client itself refuses."""
        error = exc.args[0]
        return self.lasting(error, None) or self._unavailable(None, error)

    def _refused(self, error: KafkaError, number: int | None) -> SourceError:
        # librdkafka reports a response that is too large as an error of the client, or of the requested
        # partition.
        if error.code() == KafkaError._BAD_MSG:
            return self._too_large(number)
        return self._failure(
            SourceError, f"Kafka refuses the request ({error.name()}): {REFUSED[error.code()]}.", number
        )

    def _too_large(self, number: int | None) -> SourceError:
        return self._failure(
            SourceError,
            f"A response of Kafka is larger than {_LARGEST} ({self._opened.largest_answer}), or a record "
            f"batch has an invalid checksum or framing. Set source.kafka.{_LARGEST} above the size of the "
            "topic's largest record batch. If the error remains, the topic's data on the broker are damaged.",
            number,
        )

    def _unavailable(self, number: int | None, error: KafkaError | None) -> SourceError:
        name = f" ({error.name()})" if error is not None else ""
        return self._failure(
            BrokerUnavailableError,
            f"Kafka did not answer for {self._limits.silence:.0f} seconds{name}. Check that the brokers run "
            "and that bootstrap.servers is right.",
            number,
        )

    def _ends_early(self, number: int, end: int) -> SourceError:
        return self._failure(
            SourceError,
            f"The partition ends at offset {end}, but records up to offset {self._open[number].end} were "
            f"expected. Kafka lost records, or the topic was deleted and recreated. {self._limits.short}",
            number,
        )

    def _out_of_range(self, number: int | None) -> SourceError:
        number = self._named(number)
        position, watermarks = self._open[number], self.watermarks(number)
        if watermarks is None:
            why = "do not exist: they expired, or the topic was deleted and recreated"
        elif watermarks[0] > position.next:
            why = f"expired: the partition begins at {watermarks[0]} now, because retention deleted the "
            why += "earlier records"
        else:
            why = f"do not exist: the partition ends at {watermarks[1]}, so Kafka lost records or the topic "
            why += "was recreated"
        return self._failure(
            SourceError,
            f"Offsets from {position.next} on {why}. Nothing was skipped. {self._limits.expired}",
            number,
        )

    def watermarks(self, number: int) -> tuple[int, int] | None:
        topic_partition = TopicPartition(self._topic, number)
        try:
            return self._opened.consumer.get_watermark_offsets(topic_partition, timeout=_WATERMARK_SECONDS)
        except KafkaException:
            return None

    def _failure(self, error: type[SourceError], text: str, number: int | None) -> SourceError:
        number = self._named(number)
        return error(text, topic=self._topic, partition=number, offset=self._open[number].next)

    def _named(self, number: int | None) -> int:
        """Returns the partition that an error names, or an open one if it names none."""
        return number if number is not None and number in self._open else min(self._open)


class RangeReader:
    """Reads one range of each partition of a topic, once. The module's docstring has the rules.

    After an error of ``consume`` the reader cannot be used again: the records of that call are lost.

    Args:
        opened: The consumer. Partitions that it had before are no longer assigned.
        topic: The topic.
        ranges: The bounds of each partition's range.
        limits: How long the reader waits.
        clock: Returns monotonic seconds.

    Raises:
        SourceError: The brokers refuse the request.
        BrokerUnavailableError: The partitions cannot be assigned now.
    """

    def __init__(
        self,
        opened: AssignedConsumer,
        topic: str,
        ranges: Mapping[int, OffsetBounds],
        limits: ReadLimits = _DEFAULT_LIMITS,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._opened, self._consumer, self._topic = opened, opened.consumer, topic
        self._clock = clock
        self._open = {
            number: _Position(bounds)
            for number, bounds in ranges.items()
            if bounds.end is None or bounds.start < bounds.end
        }
        self._errors = _RangeErrors(opened, topic, self._open, limits)
        # The range, if there is only one: its records need no look-up of their partition.
        self._lone = next(iter(self._open.items())) if len(self._open) == 1 else None
        self._unreached, self._complete_ranges = set(self._open), set[int]()
        if not self._open:
            return
        places = [TopicPartition(topic, number, position.next) for number, position in self._open.items()]
        try:
            self._consumer.assign(places)
        except KafkaException as exc:
            raise self._errors.broken(exc) from exc

    @property
    def open_partitions(self) -> Set[int]:
        """The partitions whose range is not complete: a view of the current ones."""
        return self._open.keys()

    @property
    def unreached(self) -> frozenset[int]:
        """The partitions of which neither the end nor the end of the range was reached since the start."""
        return frozenset(self._unreached)

    def is_complete(self) -> bool:
        """Returns True if all ranges were read."""
        return not self._open

    def consume(self, most: int, timeout: float = CONSUME_SECONDS) -> list[Message]:
        """Returns the records of the ranges from one consume call, at most ``most``, each partition's in the
        order of their offsets.

        Waits ``timeout`` seconds for ``most`` records. The result is empty if no record arrived in time, or
        if all ranges are complete.

        Raises:
            SourceError: Offsets expired, records were lost, or the brokers refuse the request.
            BrokerUnavailableError: A partition does not exist, or its leader does not answer.
        """
        if not self._open:
            return []
        if self._lone is not None and (end := self._lone[1].end) is not None:
            most = min(most, end - self._lone[1].next)
        begun = self._clock()
        try:
            messages = self._consumer.consume(most, timeout)
        except KafkaException as exc:
            raise self._errors.broken(exc) from exc
        if messages and not any(map(Message.error, messages)) and self._is_lone_run(messages):
            return messages
        heard = set[int]()
        records = [message for message in messages if self._is_wanted(message, heard)]
        self._check_silence(heard, self._clock() - begun)
        return records

    def take_error(self) -> KafkaError | None:
        """Returns an error of a partition after which librdkafka tries again, and forgets it.

        Returns None if the partitions have no such error, or if their records or ends have arrived since.
        """
        for position in self._open.values():
            if position.error is not None:
                error, position.error = position.error, None
                return error
        return None

    def pause(self, number: int) -> None:
        """Read no records of a partition until ``resume``."""
        if number in self._open and not self._open[number].is_paused:
            self._open[number].is_paused = True
            self._consumer.pause([TopicPartition(self._topic, number)])

    def resume(self, number: int) -> None:
        """Read a paused partition again."""
        if number in self._open and self._open[number].is_paused:
            self._open[number].is_paused = False
            self._consumer.resume([TopicPartition(self._topic, number)])

    def _is_lone_run(self, messages: list[Message]) -> bool:
        """Returns True for records of the only range that are all before its end, and moves past them.

        This is the usual case of a large read, so it looks at the first and the last record only.
        """
        if self._lone is None:
            return False
        number, position = self._lone
        first, last = offset_of(messages[0]), offset_of(messages[-1])
        if first < position.next or (position.end is not None and last >= position.end):
            return False
        if messages[0].partition() != number or messages[0].topic() != self._topic:
            return False
        position.move(last + 1)
        if position.next == position.end:
            self._complete(number)
        return True

    def _is_wanted(self, message: Message, heard: set[int]) -> bool:
        """Returns True for a record of an open range, and moves past it.

        Processes partition ends and errors. Adds the partition to ``heard`` if its leader answered.
        """
        number, error = message.partition(), message.error()
        is_ours = number in self._open and message.topic() == self._topic
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if self._open and number not in self._complete_ranges:
                self._note_error(error, number)
        elif is_ours and number is not None:
            heard.add(number)
            position, offset = self._open[number], offset_of(message)
            if error is not None:
                self._see_end(number, position, offset)
            elif offset >= position.next:
                position.move(offset + 1)
                if position.end is None or offset < position.end - 1:
                    return True
                self._complete(number)
                return offset < position.end
        return False

    def _see_end(self, number: int, position: _Position, end: int) -> None:
        position.at_end, position.error = True, None
        self._unreached.discard(number)
        if position.end is not None and end >= position.end:
            self._complete(number)
        elif position.end is not None:
            position.short_end = end

    def _complete(self, number: int) -> None:
        del self._open[number]
        self._complete_ranges.add(number)
        self._unreached.discard(number)
        if self._open:  # otherwise the consumer would read the rest of this partition as well
            self._consumer.incremental_unassign([TopicPartition(self._topic, number)])

    def _check_silence(self, heard: set[int], waited: float) -> None:
        """Raise an error if a partition has been silent for longer than a limit allows."""
        for number, position in self._open.items():
            may_rest = position.end is None and position.at_end and self._opened.client_error is None
            if number in heard or position.is_paused or may_rest:
                position.silent = 0.0
            else:
                position.silent += waited
                self._check_silent(number, position)

    def _check_silent(self, number: int, position: _Position) -> None:
        error = self._errors.of_silence(number, position)
        if error is None:
            return
        if position.end is not None or not position.at_end or self._errors.watermarks(number) is None:
            raise error
        self._opened.client_error, position.silent = None, 0.0

    def _note_error(self, error: KafkaError, number: int | None) -> None:
        """Raise an error that librdkafka cannot overcome by itself.

        Any other error is remembered, so that it can be named if the brokers stay silent.
        """
        lasting = self._errors.lasting(error, number)
        if lasting is not None:
            raise lasting
        if error.code() not in _OF_THE_GROUP and number is not None and number in self._open:
            self._open[number].error = error


def offset_of(message: Message) -> int:
    """Returns the offset of a message, or -1 if it has none."""
    offset = message.offset()
    return -1 if offset is None else int(offset)


# Errors that pass by themselves: no broker answers, or a partition's leader changes. librdkafka says so
# (``KafkaError.retriable``) only of its transactions' errors. Kafka's protocol guide lists them as retriable.
PASSING: Final = frozenset(
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
# The consumer group is never joined, so errors of the group do not matter.
_OF_THE_GROUP: Final = frozenset(
    {
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._WAIT_COORD,
    }
)
ABSENT: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
_LOGIN: Final = "check security.protocol, sasl.mechanism, and the user's name and password or token"
# Errors with which Kafka refuses this user or returns unusable bytes. Retries do not help.
REFUSED: Final[Mapping[int, str]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "this user needs permission to read and describe the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "this user needs permissions on the cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user needs permissions on the cluster",
    KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: "the listener does not offer this sasl.mechanism. Set one that it "
    "offers",
    KafkaError.ILLEGAL_SASL_STATE: _LOGIN,
    KafkaError._AUTHENTICATION: _LOGIN,
    KafkaError._SSL: "check ssl.ca.location, that the brokers' certificates name their hosts, and, with "
    "mutual TLS, ssl.certificate.location and ssl.key.location",
    KafkaError._BAD_COMPRESSION: "a record batch cannot be decompressed, so the data on the broker are "
    "damaged. See the broker's log",
    KafkaError._BAD_MSG: "a record batch has an invalid checksum or framing, so the data on the broker are "
    "damaged. See the broker's log",
}


def absent_text(error: KafkaError) -> str:
    """Returns the message for an error in ``ABSENT``."""
    return (
        f"Kafka does not have this partition ({error.name()}). The topic was deleted, or its brokers are "
        "starting. Check that the topic exists."
    )
