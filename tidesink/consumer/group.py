"""A Kafka consumer group that commits only what it is asked to, and passes over nothing unseen."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from tidesink.config.client_properties import open_client
from tidesink.errors import SourceError, SourceUnavailableError
from tidesink.events import Message

Place = tuple[str, int]
Start = Literal["earliest", "latest"]

_TIMEOUT: Final = 15.0
_POLL: Final = 0.5
# How long the group waits for a member that was killed before others get its partitions.
_SESSION_MS: Final = 15_000
# How long the brokers may be silent before the caller hears of it.
_PATIENCE: Final = 60.0
# librdkafka writes to stderr by itself otherwise; what matters comes back as an error.
_LOG: Final = logging.getLogger("tidesink.consumer")
_LOG.addHandler(logging.NullHandler())
# Another member has the partitions now: it reads the records again.
_MOVED: Final = frozenset(
    (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._STATE,
    )
)
# No broker answers, or not in time.
_SILENT: Final = frozenset((KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT))
# A topic that is being made or deleted: the next look at the topics says which.
_PASSING: Final = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC))


def message_of(record: Any) -> Message:
    """A record of confluent-kafka as the codecs take it."""
    kind, milliseconds = record.timestamp()
    return Message(
        topic=record.topic(),
        partition=record.partition(),
        offset=record.offset(),
        key=record.key(),
        value=record.value(),
        timestamp=milliseconds if kind else None,
        headers=tuple(record.headers() or ()),
    )


class ConsumerGroup:
    """Fetches the records of the topics that ``wanted`` picks, looking for new ones now and then.

    ``refresh``: how often, in seconds. Partitions without a committed offset begin at ``start``. Used by one
    thread at a time.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        wanted: Callable[[Iterable[str]], tuple[str, ...]],
        *,
        group: str,
        start: Start = "earliest",
        refresh: float = 10.0,
    ) -> None:
        self._brokers = properties["bootstrap.servers"]
        self._wanted = wanted
        self._refresh = refresh
        self._start = start
        self._first: frozenset[Place] | None = None  # the partitions there were when we came
        # An offset that Kafka no longer holds is an error: starting over, or at the end, would hide a loss.
        own = {
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "session.timeout.ms": _SESSION_MS,
        }
        self._consumer = open_client(Consumer, properties, own, logger=_LOG)
        self._topics: tuple[str, ...] = ()
        self._looked = self._heard = 0.0
        self._untaken: list[TopicPartition] | None = None  # ours, and not read yet
        self._joined: float | None = None  # when the group last said which partitions are ours

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read now."""
        return self._topics

    def waits_since(self) -> float:
        """When the wait for records alone began (``time.monotonic()``); now, while partitions are shared."""
        if not self._topics:
            return 0.0
        return time.monotonic() if self._joined is None else self._joined

    def open(self) -> None:
        """Take part in the group.

        Raises:
            SourceUnavailableError: the brokers do not answer.
        """
        try:
            self._look()
        except KafkaException as error:
            raise self._unavailable(error) from error

    def fetch(self, most: int) -> list[Message]:
        """Up to ``most`` records, waiting up to half a second for the first; in each partition's order.

        Raises:
            SourceUnavailableError: the brokers have not answered for a minute, or not said where to begin.
            SourceError: Kafka refuses, or no longer holds the records that come next.
        """
        self._look_again()
        if not self._topics:
            time.sleep(min(_POLL, self._refresh))
            return []
        try:
            if self._untaken is not None:
                self._take(self._untaken)
            records = self._consumer.consume(most, timeout=_POLL)
        except KafkaException as error:
            raise self._failure(error.args[0]) from error
        return [message_of(record) for record in records if self._sound(record)]

    def _sound(self, record: Any) -> bool:
        error = record.error()
        if error is None:
            self._heard = time.monotonic()
            return True
        if error.code() in _PASSING or (error.retriable() and not error.fatal()):
            self._looked = 0.0
            return False
        raise self._failure(error, topic=record.topic(), partition=record.partition())

    def commit(self, offsets: Mapping[Place, int]) -> None:
        """Say that all before these offsets is done.

        Where another member has a partition by now, nothing is committed: it reads those records again.

        Raises:
            SourceUnavailableError: the brokers do not answer.
        """
        places = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        if not places:
            return
        failed: list[KafkaException] = []
        try:
            done = self._consumer.commit(offsets=places, asynchronous=False)
            failed += [KafkaException(place.error) for place in done or () if place.error is not None]
        except KafkaException as error:
            failed.append(error)
        for one in failed:
            if one.args[0].code() not in _MOVED:
                raise self._unavailable(one) from one
            _LOG.warning("the partitions went to another member of the group: it reads these records again")

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _look_again(self) -> None:
        now = time.monotonic()
        if now - self._looked < self._refresh:
            return
        try:
            self._look()
        except KafkaException as error:
            self._looked = now
            if now - self._heard > _PATIENCE:
                raise self._unavailable(error) from error

    def _look(self) -> None:
        """Ask which topics there are, and read those that are wanted."""
        there = self._consumer.list_topics(timeout=_TIMEOUT).topics
        found = self._wanted(there)
        self._looked = self._heard = time.monotonic()
        if self._first is None:
            self._first = frozenset((name, number) for name in found for number in there[name].partitions)
        if found != self._topics:
            self._topics = found
            if found:
                self._consumer.subscribe(list(found), on_assign=self._assigned, on_revoke=self._revoked)
            else:
                self._consumer.unsubscribe()

    def _assigned(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        # They stay ours where this fails, and nobody reads them: the next fetch takes them then.
        self._untaken = places
        self._take(places)

    def _take(self, places: list[TopicPartition]) -> None:
        """Read the partitions that are ours from where the group is, or begins."""
        begins = self._consumer.committed(places, timeout=_TIMEOUT)
        for place in begins:
            if place.error is not None:  # else it would count as one that nothing was committed of
                raise KafkaException(place.error)
        new = [place for place in begins if place.offset < 0]
        for place in new:
            place.offset = self._beginning(place)
        self._consumer.assign(begins)
        self._untaken, self._joined = None, time.monotonic()
        ends = [place for place in new if place.offset >= 0]
        if ends:
            # Else what comes until the first commit would be passed over by whoever is assigned it next.
            self._consumer.commit(offsets=ends, asynchronous=False)

    def _revoked(self, _consumer: Consumer, _places: list[TopicPartition]) -> None:
        """The group shares the partitions out again."""
        self._untaken = self._joined = None

    def _beginning(self, place: TopicPartition) -> int:
        """Where a partition begins that the group has committed nothing of; a new one at its first record."""
        if self._start == "earliest" or (place.topic, place.partition) not in (self._first or ()):
            return int(OFFSET_BEGINNING)
        _, end = self._consumer.get_watermark_offsets(place, timeout=_TIMEOUT)
        return int(end)

    def _failure(self, error: KafkaError, **where: Any) -> SourceError:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            return SourceError(
                "Kafka no longer holds the records that come next, so some were not read: set the group's "
                "offsets where to go on (kafka-consumer-groups --reset-offsets), or take a new group",
                **where,
            )
        if error.retriable() or error.code() in _SILENT:
            return SourceUnavailableError(f"no answer from {self._brokers}: {error.str()}", **where)
        return SourceError(f"{error.str()}; does the group have the rights it needs?", **where)

    def _unavailable(self, error: KafkaException) -> SourceUnavailableError:
        reason = error.args[0].str() if isinstance(error.args[0], KafkaError) else str(error)
        return SourceUnavailableError(
            f"no answer from {self._brokers}: {reason}; does the broker run there, and do "
            "security.protocol and sasl settings fit?"
        )
