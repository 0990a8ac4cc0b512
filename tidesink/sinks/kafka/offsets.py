"""Topic offsets from the brokers, the offset ranges of a batch, and partitions that are added to a topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from tidesink.errors import BrokerUnavailableError, ConfigError, SourceError, SourceUnavailableError
from tidesink.kafka_client import OpenClient, open_client
from tidesink.sinks.kafka.compaction import Compaction
from tidesink.sinks.kafka.consume import PASSING
from tidesink.sinks.state.documents import DocumentKind
from tidesink.sinks.state.progress import Progress, StateStore, TopicProgress

_log = structlog.get_logger("tidesink.worker")
TIMEOUT_SECONDS: Final = 15.0
# A topic's id and first offsets are requested again after this time, even if the topic did not change.
_REMEMBERED_SECONDS: Final = 15.0
# If the controller does not answer within this time, the request is repeated with a new client.
_CONTROLLER_SECONDS: Final = 5.0
# A topic's cleanup.policy is requested again after this time.
_POLICY_SECONDS: Final = 600.0
# ``lookup`` repeats its requests for this time while a partition has a new leader.
_LEADER_SECONDS: Final = 5.0
# The timestamps that stand for the first kept offset and the end in Kafka's ListOffsets.
_EARLIEST: Final = -2
_LATEST: Final = -1
# Silences librdkafka's own logs about lost connections, because the answers report them too.
_QUIET: Final[dict[str, Any]] = {"log_level": 0, "error_cb": lambda _error: None}
# librdkafka requires a group name. The group is never joined.
_CONSUMER: Final[dict[str, Any]] = {
    **_QUIET,
    "group.id": "tidesink-fetch",
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
}

# Errors after which a request is repeated later.
_UNAVAILABLE: Final = PASSING | {
    KafkaError._UNKNOWN_PARTITION,  # just added
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # just deleted, or just created: the next request shows which
}


class PartitionOffsets(NamedTuple):
    """The first offset and the end offset of one partition.

    ``earliest``: first offset that Kafka still has. ``latest``: offset that the next record will have.
    """

    earliest: int
    latest: int


# For brokers and services that report no leader epochs (before Kafka 2.1).
NO_EPOCHS: Final[Mapping[int, int]] = {}


class TopicOffsets(NamedTuple):
    """The offsets of one topic, with the topic's id in Kafka.

    A recreated topic has another id, except at brokers without topic ids (``NO_ID``).

    Attributes:
        topic_id: Empty if the topic does not exist yet. Then ``partitions`` is empty too.
        compaction: None if the topic is not compacted, or if this user may not read the topic's settings.
        leader_epochs: Per partition, the epoch of the leader that reported the end offset. A partition whose
            broker sent no epoch is absent.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, PartitionOffsets]
    compaction: Compaction | None = None
    leader_epochs: Mapping[int, int] = NO_EPOCHS


def limited(topic_offsets: TopicOffsets, ends: Mapping[int, int] | None) -> Mapping[int, PartitionOffsets]:
    """Returns a topic's partitions with their end offsets lowered to ``ends``. With None, nothing is lowered.

    A partition that is missing in ``ends`` gets an empty range, so it is not read.
    """
    if ends is None:
        return topic_offsets.partitions
    return {
        number: offsets._replace(latest=min(offsets.latest, ends.get(number, offsets.earliest)))
        for number, offsets in topic_offsets.partitions.items()
    }


# The first offset that a table reads, by partition. A partition that is read from its beginning is absent.
Starts = Mapping[int, int]
NO_STARTS: Final[Starts] = {}


def started_at(topic_offsets: TopicOffsets, starts: Starts) -> TopicOffsets:
    """Returns a topic's offsets as if all records before the table's ``starts`` had expired."""
    if not starts:
        return topic_offsets
    partitions = {
        n: offsets._replace(earliest=min(max(offsets.earliest, starts.get(n, 0)), offsets.latest))
        for n, offsets in topic_offsets.partitions.items()
    }
    return topic_offsets._replace(partitions=partitions)


# The id of every topic at brokers without topic ids: before Kafka 2.8, and some services.
NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"


def is_other_topic(known_id: str, found_id: str) -> bool:
    """Returns True if two ids of a topic show that it was recreated.

    Returns False if one id is ``NO_ID`` or empty (the topic does not exist), because then nothing is known.
    """
    return known_id != found_id and {known_id, found_id}.isdisjoint((NO_ID, ""))


class FirstRecord(NamedTuple):
    """The first record that Kafka still has in a partition. ``timestamp``: Kafka's, in ms since 1970."""

    offset: int
    timestamp: int


class Look(NamedTuple):
    """The brokers' answers about several topics.

    Attributes:
        found: Offsets of the topics that exist, by topic.
        unanswered: Per topic without an answer, the error. Whether the topic exists is not known now.

    A topic that is in neither mapping does not exist.
    """

    found: dict[str, TopicOffsets]
    unanswered: dict[str, SourceError]


# Selects topics from all topic names.
Choose = Callable[[Iterable[str]], Sequence[str]]


class _Offset(NamedTuple):
    """An offset of a partition. ``epoch``: the leader epoch that the broker sent with the offset, or None."""

    offset: int
    epoch: int | None


# By topic and partition.
_Offsets = dict[tuple[str, int], _Offset]


class KafkaOffsets:
    """Requests the offsets of topics from the brokers.

    ``look`` is for one thread. All other methods may be called from several threads.

    Args:
        properties: Client properties of confluent-kafka.
        clock: Returns seconds and never runs backwards. It measures the age of cached facts about topics.
        open_client: Opens the consumer and the admin client, and a new admin client if the controller does
            not answer.

    Raises:
        ConfigError: librdkafka refuses the properties.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
        open_client: OpenClient = open_client,
    ) -> None:
        self._clock = clock
        self._open_admin = partial(open_client, AdminClient, properties, _QUIET)
        self._admin: AdminClient = self._open_admin()
        # A consumer sends the offset requests, because an admin client creates a future for each partition
        # and needs five times the CPU.
        self._consumer = open_client(Consumer, properties, _CONSUMER)
        self._known: dict[str, TopicOffsets] = {}
        self._described = 0.0
        # By topic: its id, the time of the request, and the answer.
        self._policies: dict[str, tuple[str, float, Compaction | None]] = {}

    def first_since(self, topic: str, partitions: Iterable[int], seconds: float) -> dict[int, int]:
        """Returns the offset of each partition's first record at or after a time, in seconds since 1970.

        A partition without such a record is absent.

        Raises:
            SourceUnavailableError: No broker answers.
            SourceError: The brokers refuse the request.
        """
        records = self._records_from(topic, partitions, round(seconds * 1000))
        return {number: first.offset for number, first in records.items()}

    def first_records(self, topic: str, partitions: Iterable[int]) -> dict[int, FirstRecord]:
        """Returns the first record of each partition. An empty partition is absent.

        Raises:
            SourceUnavailableError: No broker answers.
            SourceError: The brokers refuse the request.
        """
        return self._records_from(topic, partitions, 0)

    def _records_from(self, topic: str, partitions: Iterable[int], time_ms: int) -> dict[int, FirstRecord]:
        asked = {TopicPartition(topic, number): OffsetSpec.for_timestamp(time_ms) for number in partitions}
        if not asked:
            return {}
        with translated_kafka_errors():
            answers = self._admin.list_offsets(asked, request_timeout=TIMEOUT_SECONDS)
            results = {
                topic_partition.partition: answer.result() for topic_partition, answer in answers.items()
            }
        return {
            n: FirstRecord(result.offset, result.timestamp)
            for n, result in results.items()
            if result.offset >= 0
        }

    def lookup(self, topics: Sequence[str]) -> dict[str, TopicOffsets]:
        """Returns the offsets, id and compaction of each of these topics that exists, with five requests for
        all topics.

        Raises:
            SourceUnavailableError: No broker answers, or a partition's leader does not answer.
            SourceError: The brokers refuse the request, or refuse access to a topic.
        """
        if not topics:
            return {}
        with translated_kafka_errors():
            deadline = time.monotonic() + _LEADER_SECONDS
            while True:
                # Refreshes the partitions and leaders that the consumer uses.
                only = topics[0] if len(topics) == 1 else ""
                self._consumer.list_topics(only, timeout=TIMEOUT_SECONDS)
                answers = self._describe(topics)
                errors = answers.unanswered.values()
                passes = any(isinstance(error, SourceUnavailableError) for error in errors)
                if not passes or time.monotonic() > deadline:
                    break
                time.sleep(0.1)
        for error in errors:
            raise error
        return answers.found

    def look(
        self,
        choose: Choose,
        unread: Callable[[str], bool] = lambda _topic: True,
    ) -> Look:
        """Returns the current offsets of the topics that ``choose`` selects from all topic names.

        End offsets and partitions are always requested, which takes two requests. A topic's id and first
        offsets are cached for 15 s. They are requested earlier if the topic is new, if its partitions or an
        end offset changed, or if ``unread(topic)`` returns True, which means that a table may read earlier
        records. So a deleted, recreated or expired topic is noticed within 15 s, even if its tables have
        nothing to read. A batch that is planned with an outdated id or first offset fails safely: the tasks
        check the topic's id, and reading expired offsets is an error. A topic without changes is the same
        object as in the previous result.

        A topic without an answer (no leader, no permission) does not affect the other topics.

        Raises:
            SourceUnavailableError: No broker answers.
            SourceError: The brokers refuse the request.
        """
        with translated_kafka_errors():
            self._consumer.poll(0)  # serves the client's errors, which would pile up
            listed = self._consumer.list_topics(timeout=TIMEOUT_SECONDS).topics
            unanswered = dict[str, SourceError]()
            present = {
                name: numbers
                for name in choose(listed)
                if (numbers := _numbers(name, listed[name], unanswered)) is not None
            }
            now = self._clock()
            if now - self._described >= _REMEMBERED_SECONDS:
                self._known, self._described = {}, now
            cached = {
                name: offsets for name, offsets in self._known.items() if name in present and not unread(name)
            }
            ends = self._offsets([(name, n) for name in cached for n in present[name]], _LATEST, unanswered)
            calm = {
                name: offsets for name, offsets in cached.items() if _is_same(offsets, present[name], ends)
            }
            changed = self._describe([n for n in present if n not in calm and n not in unanswered])
        self._known = {**calm, **changed.found}
        return Look(dict(self._known), {**unanswered, **changed.unanswered})

    def _describe(self, topics: Sequence[str]) -> Look:
        """Returns the offsets, id and compaction of topics. All of them are requested from the brokers."""
        unanswered, described = dict[str, SourceError](), dict[str, Any]()
        if not topics:
            return Look({}, {})
        for name, future in describe_topics(self._admin, topics, self._renew).items():
            try:
                described[name] = future.result()
            except KafkaException as exc:
                _note(unanswered, name, exc.args[0])
        places = [
            (name, part.id) for name, description in described.items() for part in description.partitions
        ]
        policies = self._compactions(
            {name: str(description.topic_id) for name, description in described.items()}, unanswered
        )
        earliest = self._offsets(places, _EARLIEST, unanswered)
        latest = self._offsets(places, _LATEST, unanswered)
        offsets = {
            name: _topic_offsets(name, description, earliest, latest)._replace(compaction=policies[name])
            for name, description in described.items()
            if name in policies
            and all(
                (name, part.id) in earliest and (name, part.id) in latest for part in description.partitions
            )
        }
        return Look(offsets, unanswered)

    def _renew(self) -> AdminClient:
        self._admin = self._open_admin()
        return self._admin

    def _compactions(
        self, topics: Mapping[str, str], unanswered: dict[str, SourceError]
    ) -> dict[str, Compaction | None]:
        """Returns each topic's compaction, or None for a topic that is not compacted.

        Topics without an answer are left out and added to ``unanswered``. ``topics``: topic ids by topic
        name.
        """
        now = self._clock()
        policies = {name: self._policies[name] for name in topics if name in self._policies}
        policies = {name: policy for name, policy in policies.items() if policy[0] == topics[name]}
        due = [
            ConfigResource(ResourceType.TOPIC, name)
            for name in topics
            if name not in policies or now - policies[name][1] > _POLICY_SECONDS
        ]
        asked = self._admin.describe_configs(due, request_timeout=TIMEOUT_SECONDS) if due else {}
        for resource, answer in asked.items():
            name = resource.name
            try:
                settings = answer.result()
            except KafkaException as exc:
                error = exc.args[0]
                if error.retriable() or error.code() in _UNAVAILABLE:
                    if name not in policies:
                        _note(unanswered, name, error)
                    continue
                _log.warning(
                    "cleanup.policy not known: a compacted topic is not noticed without the right to "
                    "describe its configs",
                    topic=name,
                    error=error.name(),
                )
                compaction = None
            else:
                compaction = Compaction.of(settings)
            policies[name] = self._policies[name] = topics[name], now, compaction
        return {name: compaction for name, (_, _, compaction) in policies.items()}

    def _offsets(
        self, places: list[tuple[str, int]], which: int, unanswered: dict[str, SourceError]
    ) -> _Offsets:
        """Returns the first (``_EARLIEST``) or the next (``_LATEST``) offset of each partition.

        Partitions without an answer are left out, and their topics are added to ``unanswered``.
        """
        if not places:
            return {}
        asked = [TopicPartition(name, number, which) for name, number in places]
        try:
            answers = self._consumer.offsets_for_times(asked, timeout=TIMEOUT_SECONDS)
        except KafkaException as exc:
            topics = sorted({name for name, _ in places})
            # Errors of librdkafka itself have negative codes. They concern all partitions: no broker answers.
            if exc.args[0].code() < 0:
                raise
            if len(topics) == 1:
                _note(unanswered, topics[0], exc.args[0])
                return {}
            # The broker of one partition refused, or is no longer its leader. That error ends the call for
            # all topics, so each topic is requested on its own.
            parts = [[partition for partition in places if partition[0] == topic] for topic in topics]
            return {
                partition: answer
                for part in parts
                for partition, answer in self._offsets(part, which, unanswered).items()
            }
        offsets = {}
        for topic_partition in answers:
            if topic_partition.error is None:
                offsets[topic_partition.topic, topic_partition.partition] = _Offset(
                    topic_partition.offset, topic_partition.leader_epoch
                )
            else:
                _note(unanswered, topic_partition.topic, topic_partition.error)
        return offsets


def describe_topics(
    admin: AdminClient, topics: Sequence[str], renew: Callable[[], AdminClient]
) -> dict[str, Future[Any]]:
    """Returns the brokers' descriptions of topics.

    A client asks the controller that it is connected to, which in KRaft is any broker of the cluster. If that
    broker is down, the client would wait for minutes until its metadata expire. So the request is repeated
    with a new client, which ``renew`` opens.
    """
    asked, wait = TopicCollection(list(topics)), _CONTROLLER_SECONDS
    answers = admin.describe_topics(asked, request_timeout=wait)
    errors = [future.exception() for future in answers.values()]
    if any(
        isinstance(error, KafkaException) and error.args[0].code() == KafkaError._TIMED_OUT
        for error in errors
    ):
        answers = renew().describe_topics(asked, request_timeout=TIMEOUT_SECONDS)
    return answers


def _numbers(topic: str, listed: Any, unanswered: dict[str, SourceError]) -> frozenset[int] | None:
    """Returns the topic's partition numbers from the cluster's metadata.

    Returns None if the topic or one of its partitions is unavailable, and adds the error to ``unanswered``.
    """
    leaderless = [number for number, part in listed.partitions.items() if part.leader < 0]
    if listed.error is not None:
        _note(unanswered, topic, listed.error)
    elif leaderless:
        # A request for this partition's offsets would wait until the timeout, and would delay all other
        # topics.
        unanswered[topic] = BrokerUnavailableError(
            "The partition has no leader broker. Check that all brokers run.",
            topic=topic,
            partition=leaderless[0],
        )
    else:
        return frozenset(listed.partitions)
    return None


def _note(unanswered: dict[str, SourceError], topic: str, error: KafkaError) -> None:
    # The topic was deleted between two requests. The readers of the topic notice that it is absent.
    if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        unanswered[topic] = translated_error(error, topic)


def _is_same(cached: TopicOffsets, numbers: frozenset[int], ends: _Offsets) -> bool:
    # Leader epochs are not compared, because an election adds nothing to read.
    return cached.partitions.keys() == numbers and all(
        (end := ends.get((cached.topic, number))) is not None and end.offset == offsets.latest
        for number, offsets in cached.partitions.items()
    )


def _topic_offsets(name: str, described: Any, earliest: _Offsets, latest: _Offsets) -> TopicOffsets:
    numbers = sorted(part.id for part in described.partitions)
    partitions = {n: PartitionOffsets(earliest[name, n].offset, latest[name, n].offset) for n in numbers}
    # Kafka answers a request for the end with the epoch of the leader that answers.
    epochs = {n: epoch for n in numbers if (epoch := latest[name, n].epoch) is not None}
    return TopicOffsets(name, str(described.topic_id), partitions, leader_epochs=epochs)


@contextmanager
def translated_kafka_errors() -> Iterator[None]:
    """Convert confluent-kafka's exceptions to SourceError or BrokerUnavailableError, by their code."""
    try:
        yield
    except KafkaException as exc:
        raise translated_error(exc.args[0]) from exc


def translated_error(error: KafkaError, topic: str | None = None) -> SourceError:
    """Returns the BrokerUnavailableError or SourceError for an error of librdkafka, by its code."""
    if error.retriable() or error.code() in _UNAVAILABLE:
        return BrokerUnavailableError(
            f"Kafka does not answer ({error.name()}). Check that source.brokers is right and that the "
            "brokers run.",
            topic=topic,
        )
    return SourceError(
        f"Kafka refuses the request ({error.name()}). Check the settings under source.kafka, and the "
        f"permissions of its user.",
        topic=topic,
    )


# The assumed size of a record before the first batch. So a first batch of 256 MiB ends at 64k records.
FIRST_RECORD_BYTES: Final = 4096.0
# Number of records in each sample, if that many records are waiting.
_SAMPLE_RECORDS: Final = 500


class OffsetRange(NamedTuple):
    """Offsets ``[start, end)`` of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def records(self) -> int:
        """Number of offsets in the range.

        In a compacted or transactional topic some offsets have no record.
        """
        return self.end - self.start


# Returns the number of records in an offset range, and the bytes of their keys and values.
Weigh = Callable[[OffsetRange], tuple[int, int]]


@dataclass
class RecordSize:
    """Estimates the size of the next record in bytes.

    The estimate is the mean size over all batches or the mean size in the last batch, whichever is larger.
    """

    records: int = 0
    bytes: int = 0
    last: float = FIRST_RECORD_BYTES

    def learn(self, records: int, bytes_read: int) -> None:
        """Add one batch's number of records and bytes to the estimate."""
        if records:
            self.records += records
            self.bytes += bytes_read
            self.last = bytes_read / records

    @property
    def estimate(self) -> float:
        """Estimated bytes of the next record."""
        return max(self.last, self.bytes / self.records if self.records else 0.0, 1.0)


@dataclass
class AddedPartitions:
    """Delays reading the partitions that were added to a topic until the earlier ones are read.

    A key may move to an added partition. Its earlier changes are then in an earlier partition, before the end
    offset that this partition had when the others were added. So all earlier partitions are read up to these
    end offsets first.
    """

    barrier: dict[int, int] = field(default_factory=dict)

    def readable(
        self, next_offsets: Mapping[int, int], partitions: Mapping[int, PartitionOffsets]
    ) -> tuple[int, ...]:
        """Returns the partitions that may be read now.

        ``next_offsets``: next offset of each partition that was read before. ``partitions``: current
        partitions of the topic.
        """
        if not next_offsets or next_offsets.keys() == partitions.keys():
            self.barrier = {}
            return tuple(sorted(partitions))
        if not self.barrier:
            self.barrier = {number: partitions[number].latest for number in next_offsets}
        if all(next_offsets[number] >= end for number, end in self.barrier.items()):
            self.barrier = {}
            return tuple(sorted(partitions))
        return tuple(sorted(next_offsets))


def waiting_records(topic_offsets: TopicOffsets, starts: Mapping[int, int]) -> int:
    """Returns the number of a topic's records from ``starts`` on.

    A partition without a start counts from its first record.
    """
    return sum(
        max(0, offsets.latest - starts.get(n, offsets.earliest))
        for n, offsets in topic_offsets.partitions.items()
    )


def topic_progress(progress: Progress, topic: str) -> TopicProgress | None:
    """Returns a table's applied progress in a topic, or None if nothing was applied yet.

    Raises:
        ConfigError: The table's rows are from another topic.
    """
    if progress.topics and topic not in progress.topics:
        raise ConfigError(
            f"{progress.table} has read topic {', '.join(sorted(progress.topics))} until now, but the "
            f"config now names {topic}. Rows from the old topic would stay in the table and become "
            "outdated next to rows from the new topic. Nothing was read or skipped. Configure the old "
            "topic again, or load the new topic into an empty table (another target.path, or remove the "
            "table at the target).",
            table=str(progress.table),
        )
    return progress.topics.get(topic)


def check_continuity(progress: TopicProgress, topic_offsets: TopicOffsets | None) -> None:
    """Check that Kafka still has all records that a table has not applied yet.

    Raises:
        SourceError: The topic was deleted or recreated, a partition is missing, or records after the progress
            expired or were lost.
    """
    name = progress.topic
    if topic_offsets is None or (progress.topic_id and not topic_offsets.topic_id):
        raise topic_deleted(name)
    if is_other_topic(progress.topic_id, topic_offsets.topic_id):
        raise made_again(
            name, f"its topic id is {topic_offsets.topic_id}, the progress has {progress.topic_id}"
        )
    for number, stored in progress.partitions.items():
        end = (
            topic_offsets.partitions[number].latest
            if number in topic_offsets.partitions
            else stored.next_offset
        )
        if topic_offsets.topic_id == NO_ID and end < stored.next_offset:
            raise made_again(
                name,
                f"partition {number} ends at {end}, but was read to {stored.next_offset}; it has no topic id",
            )
        # Rows that wait for a later cut are read again, so their offsets must exist too.
        _check_partition(name, number, stored.low_water_offset, topic_offsets.partitions.get(number))
    # The progress has all partitions that existed before. A partition that is missing there was added later,
    # and is read from offset 0.
    for number in topic_offsets.partitions.keys() - progress.partitions.keys():
        _check_partition(name, number, 0, topic_offsets.partitions[number])


_WAY_OUT: Final = (
    "Nothing was read or skipped. Restart the changefeed or connector with a snapshot into a new topic, "
    "and load the table again (remove the table at the target, or choose another pipeline name)."
)


def made_again(topic: str, sign: str) -> SourceError:
    """Returns the error for a topic that was recreated. ``sign``: text with the fact that shows it."""
    return SourceError(
        f"The topic was deleted and recreated ({sign}), so offsets refer to other records now. {_WAY_OUT}",
        topic=topic,
    )


def topic_deleted(topic: str) -> SourceError:
    """Returns the error for a topic that no longer exists."""
    return SourceError(f"The topic was deleted. {_WAY_OUT}", topic=topic)


def _check_partition(topic: str, number: int, start: int, ends: PartitionOffsets | None) -> None:
    if ends is None:
        raise SourceError(
            f"Kafka no longer has this partition. {_WAY_OUT}", topic=topic, partition=number, offset=start
        )
    if ends.earliest > start:
        raise SourceError(
            f"Offsets {start} to {ends.earliest - 1} expired before they were read: the topic's retention is "
            f"shorter than the time for which this worker was stopped. {_WAY_OUT}",
            topic=topic,
            partition=number,
            offset=start,
        )
    if ends.latest < start:
        raise SourceError(
            f"The partition ends at offset {ends.latest}, before the last applied offset. Kafka lost "
            f"records, or this is another cluster. {_WAY_OUT}",
            topic=topic,
            partition=number,
            offset=start,
        )


def plan_ranges(available: Sequence[OffsetRange], *, max_records: int) -> tuple[OffsetRange, ...]:
    """Shorten ranges so that together they have at most ``max_records`` offsets, in fair shares.

    A range that is shorter than its share leaves the rest of the share to the other ranges. A shortened range
    may be empty.
    """
    budget, shares = max_records, {}
    waiting = sorted(available, key=lambda part: part.records)
    for done, part in enumerate(waiting):
        share = -(-budget // (len(waiting) - done))
        taken = min(part.records, share)
        shares[part.topic, part.partition] = taken
        budget -= taken
    return tuple(part._replace(end=part.start + shares[part.topic, part.partition]) for part in available)


def furthest(places: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Returns the greatest next offset of each partition among several tables.

    ``places``: for each table, its next offset per partition.
    """
    greatest: dict[int, int] = {}
    for offsets in places:
        for number, offset in offsets.items():
            greatest[number] = max(offset, greatest.get(number, 0))
    return greatest


def up_to(available: Sequence[OffsetRange], meeting: Mapping[int, int]) -> tuple[OffsetRange, ...]:
    """Shorten ranges to end at the offsets ``meeting``, which other tables of the topic have reached.

    A lagging table ends its batch there, so that later batches read records once for all of them. If nothing
    would be left to read, the ranges are returned unchanged.
    """
    cut = tuple(
        part._replace(end=min(part.end, max(part.start, meeting.get(part.partition, part.start))))
        for part in available
    )
    return cut if any(part.records for part in cut) else tuple(available)


def growing_parts(available: Sequence[OffsetRange], first: int) -> Iterator[tuple[OffsetRange, ...]]:
    """Yields consecutive parts of the ranges: the first with ``first`` records, each next one with twice as
    many.
    """
    left, size = list(available), first
    while any(part.records for part in left):
        taken = plan_ranges(left, max_records=size)
        yield taken
        left = [part._replace(start=done.end) for part, done in zip(left, taken, strict=True)]
        size *= 2


def budget_of(max_records: int, max_bytes: int, size: RecordSize) -> int:
    """Returns the number of records that a batch may read within ``max_records`` and ``max_bytes``, at least
    one.
    """
    return max(1, min(max_records, int(max_bytes / size.estimate)))


def sample_size(size: RecordSize, available: Sequence[OffsetRange], weigh: Weigh) -> None:
    """Estimate the size of records before the first batch, and record it in ``size``.

    ``weigh`` reads two samples: at the beginning and in the middle of the longest range. The larger mean size
    is used, so that a first batch stays within its limit of bytes.
    """
    part = max(available, key=lambda offset_range: offset_range.records)
    for start in (part.start, part.start + part.records // 2):
        records, weight = weigh(part._replace(start=start, end=min(part.end, start + _SAMPLE_RECORDS)))
        heaviest = size.last if size.records else 0.0
        size.learn(records, weight)
        size.last = max(size.last, heaviest)


def halved(ranges: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Returns the first half of each range. A range of one offset stays whole."""
    return tuple(part._replace(end=part.end - part.records // 2) for part in ranges)


def cut_before(ranges: Sequence[OffsetRange], bad: Mapping[tuple[str, int], int]) -> tuple[OffsetRange, ...]:
    """Shorten each range to end before its partition's bad record, if the partition has one.

    ``bad``: the offset of a record that cannot be decoded, by topic and partition.
    """
    return tuple(
        part._replace(end=min(part.end, bad.get((part.topic, part.partition), part.end))) for part in ranges
    )


# The end offsets, by partition, of the existing partitions at the time when partitions were added.
Ends = Mapping[int, int]


class _Seen(NamedTuple):
    """The known partitions of a topic.

    ``topic_id``: the topic's id in Kafka. ``grown``: for each time partitions were added, the earlier
    partitions' end offsets at that time.
    """

    topic_id: str
    partitions: frozenset[int]
    grown: tuple[Ends, ...]


@dataclass(frozen=True)
class _StoredPartitions:
    """The known partitions of a topic, in the state store.

    The members are those of ``_Seen``. ``grown`` has pairs of a partition and its end offset.
    """

    topic_id: str
    partitions: tuple[int, ...]
    grown: tuple[tuple[tuple[int, int], ...], ...]


_PARTITIONS: Final = DocumentKind("topic-partitions", _StoredPartitions)


class TopicGrowth:
    """Remembers when partitions were added to a topic. One object is shared by all tables of the topic."""

    def __init__(self, topic: str, *, pipeline: str, store: StateStore) -> None:
        self._document = _PARTITIONS.of(store, pipeline, topic)
        self._lock = threading.Lock()
        self._seen: _Seen | None = None

    def see(self, topic_offsets: TopicOffsets) -> tuple[Ends, ...]:
        """Record a topic's current partitions in the state store.

        Returns, for each time partitions were added, the earlier partitions' end offsets at that time, oldest
        first.

        Raises:
            StateStoreError: The state store does not answer.
        """
        with self._lock:
            seen = self._seen if self._seen is not None else self._loaded()
            now = _followed(seen, topic_offsets)
            if now != seen:
                self._save(now)
            self._seen = now
            return now.grown

    def _loaded(self) -> _Seen | None:
        stored = self._document.load()
        if stored is None:
            return None
        grown = tuple(dict(ends) for ends in stored.grown)
        return _Seen(stored.topic_id, frozenset(stored.partitions), grown)

    def _save(self, seen: _Seen) -> None:
        grown = tuple(tuple(sorted(ends.items())) for ends in seen.grown)
        self._document.save(_StoredPartitions(seen.topic_id, tuple(sorted(seen.partitions)), grown))


def _followed(seen: _Seen | None, topic_offsets: TopicOffsets) -> _Seen:
    numbers = frozenset(topic_offsets.partitions)
    if seen is None or is_other_topic(seen.topic_id, topic_offsets.topic_id):
        return _Seen(topic_offsets.topic_id, numbers, ())
    seen = seen._replace(topic_id=topic_offsets.topic_id or seen.topic_id)
    if numbers <= seen.partitions:
        return seen  # all known, or the broker's answer is outdated
    ends = {number: topic_offsets.partitions[number].latest for number in seen.partitions & numbers}
    return _Seen(topic_offsets.topic_id, seen.partitions | numbers, (*seen.grown, ends))


def held_back(
    grown: Sequence[Ends], next_offsets: Mapping[int, int], partitions: Mapping[int, PartitionOffsets]
) -> frozenset[int]:
    """Returns the partitions that must not be read yet.

    Added partitions wait until the earlier ones are read up to their ends at the time of the addition.

    Args:
        grown: End offsets of the earlier partitions, for each time partitions were added.
        next_offsets: Next offset of each partition that was read before.
        partitions: Current partitions of the topic.
    """
    for ends in grown:
        there = {
            number: min(end, partitions[number].latest)
            for number, end in ends.items()
            if number in partitions
        }
        if any(next_offsets.get(number, partitions[number].earliest) < end for number, end in there.items()):
            return frozenset(partitions) - frozenset(ends)
    return frozenset()
