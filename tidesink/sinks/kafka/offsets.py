"""Topic ends, the offset ranges of a batch, and added partitions."""

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
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its stubs
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from tidesink.errors import BrokerUnavailableError, ConfigError, SourceError, SourceUnavailableError
from tidesink.kafka_client import open_client
from tidesink.sinks.kafka.compaction import Compaction
from tidesink.sinks.state.progress import Progress, StateStore, TopicProgress

_log = structlog.get_logger("tidesink.worker")
TIMEOUT_SECONDS: Final = 15.0
# The id and first offsets of a topic without changes are looked up again after so long.
_REMEMBERED_SECONDS: Final = 15.0
# A client waits for its controller for so long before another client is used.
_CONTROLLER_SECONDS: Final = 5.0
# A topic's clean-up policy is looked up again after so long.
_POLICY_SECONDS: Final = 600.0
# ``lookup`` repeats its requests for so long if a partition has a new leader.
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

_UNAVAILABLE: Final = frozenset(
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
        KafkaError._UNKNOWN_PARTITION,  # just added
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # just deleted, or just created: the next request shows which
    }
)


class PartitionOffsets(NamedTuple):
    """The first kept offset, and the offset of the next record."""

    earliest: int
    latest: int


# For brokers and services that report no leader epochs (before Kafka 2.1).
NO_EPOCHS: Final[Mapping[int, int]] = {}


class TopicOffsets(NamedTuple):
    """The offsets of one topic, with Kafka's id of it. A recreated topic has another id (but see ``NO_ID``).

    Attributes:
        topic_id: Empty if the topic does not exist yet. Then it has no partitions either.
        compaction: None also if this user may not read the topic's settings.
        leader_epochs: Per partition, the epoch of the leader that answered with its end; absent if it sent
            none.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, PartitionOffsets]
    compaction: Compaction | None = None
    leader_epochs: Mapping[int, int] = NO_EPOCHS


def limited(found: TopicOffsets, ends: Mapping[int, int] | None) -> Mapping[int, PartitionOffsets]:
    """Returns the partitions of a topic up to ``ends``. A partition without an end is not read."""
    if ends is None:
        return found.partitions
    return {
        number: at._replace(latest=min(at.latest, ends.get(number, at.earliest)))
        for number, at in found.partitions.items()
    }


# The first offset that a table reads, by partition; a partition that is read from its beginning is absent.
Starts = Mapping[int, int]
NO_STARTS: Final[Starts] = {}


def started_at(found: TopicOffsets, starts: Starts) -> TopicOffsets:
    """Returns the topic for a table that starts at these offsets, as if all earlier records had expired."""
    if not starts:
        return found
    partitions = {
        n: at._replace(earliest=min(max(at.earliest, starts.get(n, 0)), at.latest))
        for n, at in found.partitions.items()
    }
    return found._replace(partitions=partitions)


# The id of every topic at brokers without topic ids: before Kafka 2.8, and some services.
NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"


def is_other_topic(known_id: str, found_id: str) -> bool:
    """Returns True if ids show that a topic was recreated. ``NO_ID`` and an absent topic's id do not."""
    return known_id != found_id and {known_id, found_id}.isdisjoint((NO_ID, ""))


class FirstRecord(NamedTuple):
    """The first record that a partition has; ``timestamp`` in ms since 1970."""

    offset: int
    timestamp: int


class Look(NamedTuple):
    """The brokers' answers about topics. A topic without an entry in either mapping does not exist.

    ``unanswered``: the reasons why the state of topics is not known now, though they may exist.
    """

    found: dict[str, TopicOffsets]
    unanswered: dict[str, SourceError]


# Selects topics from all topic names.
Choose = Callable[[Iterable[str]], Sequence[str]]


class _Offset(NamedTuple):
    """An offset of a partition. ``epoch``: the leader epoch that came with it, or None."""

    offset: int
    epoch: int | None


# By topic and partition.
_Offsets = dict[tuple[str, int], _Offset]


class KafkaOffsets:
    """Sends requests to the brokers. ``properties``: see ``client_properties``.

    ``look`` is for one thread, the rest for several. ``clock`` returns seconds and never runs backwards. It
    measures the age of known facts about topics.

    Raises:
        ConfigError: The properties are refused.
    """

    def __init__(self, properties: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open_admin = partial(open_client, AdminClient, properties, _QUIET)
        self._admin = self._open_admin()
        # An admin client creates a future for each partition, which takes five times the CPU.
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
        found = self._records_from(topic, partitions, round(seconds * 1000))
        return {number: first.offset for number, first in found.items()}

    def first_records(self, topic: str, partitions: Iterable[int]) -> dict[int, FirstRecord]:
        """Returns the first record of each partition that has any.

        Raises:
            SourceError, SourceUnavailableError: For the same reasons as ``first_since``.
        """
        return self._records_from(topic, partitions, 0)

    def _records_from(self, topic: str, partitions: Iterable[int], time_ms: int) -> dict[int, FirstRecord]:
        asked = {TopicPartition(topic, number): OffsetSpec.for_timestamp(time_ms) for number in partitions}
        if not asked:
            return {}
        with translated_kafka_errors():
            answers = self._admin.list_offsets(asked, request_timeout=TIMEOUT_SECONDS)
            found = {at.partition: answer.result() for at, answer in answers.items()}
        return {n: FirstRecord(one.offset, one.timestamp) for n, one in found.items() if one.offset >= 0}

    def lookup(self, topics: Sequence[str]) -> dict[str, TopicOffsets]:
        """Returns the offsets, id and compaction of every topic that exists, with five calls for all topics.

        Raises:
            SourceUnavailableError: No broker answers, or no broker answers for a partition.
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
        """Returns the current ends of the topics that ``choose`` selects from all names.

        Two calls suffice while nothing changes. Ends and partitions are always current. A topic's id and
        first offsets are requested if the topic is new, if its partitions or an end changed, or if ``unread``
        reports that a table may read earlier records; and for every topic each 15 s. So a topic that was
        deleted, recreated or expired is noticed within that time, even if its tables have nothing to read. A
        table that continues right after a look may plan with an outdated id or first offset: the tasks check
        the id, and a range whose beginning has expired is an error of the fetch. A topic without news is the
        same object as before.

        A topic without an answer (no leader, no permission) does not affect the others.

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
            known = {name: one for name, one in self._known.items() if name in present and not unread(name)}
            ends = self._offsets([(name, n) for name in known for n in present[name]], _LATEST, unanswered)
            calm = {name: one for name, one in known.items() if _is_same(one, present[name], ends)}
            changed = self._describe([n for n in present if n not in calm and n not in unanswered])
        self._known = {**calm, **changed.found}
        return Look(dict(self._known), {**unanswered, **changed.unanswered})

    def _describe(self, topics: Sequence[str]) -> Look:
        """Returns all facts about topics."""
        unanswered, described = dict[str, SourceError](), dict[str, Any]()
        if not topics:
            return Look({}, {})
        for name, future in describe_topics(self._admin, topics, self._renew).items():
            try:
                described[name] = future.result()
            except KafkaException as exc:
                _note(unanswered, name, exc.args[0])
        places = [(name, part.id) for name, one in described.items() for part in one.partitions]
        policies = self._compactions({name: str(one.topic_id) for name, one in described.items()}, unanswered)
        earliest = self._offsets(places, _EARLIEST, unanswered)
        latest = self._offsets(places, _LATEST, unanswered)
        found = {
            name: _topic_offsets(name, one, earliest, latest)._replace(compaction=policies[name])
            for name, one in described.items()
            if name in policies
            and all((name, part.id) in earliest and (name, part.id) in latest for part in one.partitions)
        }
        return Look(found, unanswered)

    def _renew(self) -> AdminClient:
        self._admin = self._open_admin()
        return self._admin

    def _compactions(
        self, topics: Mapping[str, str], unanswered: dict[str, SourceError]
    ) -> dict[str, Compaction | None]:
        """Returns the compaction of topics, given with their ids. Topics without an answer are left out."""
        now = self._clock()
        known = {name: self._policies[name] for name in topics if name in self._policies}
        known = {name: one for name, one in known.items() if one[0] == topics[name]}
        due = [
            ConfigResource(ResourceType.TOPIC, name)
            for name in topics
            if name not in known or now - known[name][1] > _POLICY_SECONDS
        ]
        asked = self._admin.describe_configs(due, request_timeout=TIMEOUT_SECONDS) if due else {}
        for resource, answer in asked.items():
            name = resource.name
            try:
                settings = answer.result()
            except KafkaException as exc:
                error = exc.args[0]
                if error.retriable() or error.code() in _UNAVAILABLE:
                    if name not in known:
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
            known[name] = self._policies[name] = topics[name], now, compaction
        return {name: compaction for name, (_, _, compaction) in known.items()}

    def _offsets(
        self, places: list[tuple[str, int]], which: int, unanswered: dict[str, SourceError]
    ) -> _Offsets:
        """Returns the first or the next offset of partitions. Partitions without an answer are left out."""
        if not places:
            return {}
        asked = [TopicPartition(name, number, which) for name, number in places]
        try:
            answers = self._consumer.offsets_for_times(asked, timeout=TIMEOUT_SECONDS)
        except KafkaException as exc:
            topics = sorted({name for name, _ in places})
            # librdkafka's own errors, all negative, concern all partitions: no broker answers.
            if exc.args[0].code() < 0:
                raise
            if len(topics) == 1:
                _note(unanswered, topics[0], exc.args[0])
                return {}
            # One partition's broker refused, or was replaced as leader, which ends the call for all.
            parts = [[place for place in places if place[0] == topic] for topic in topics]
            return {
                place: answer
                for part in parts
                for place, answer in self._offsets(part, which, unanswered).items()
            }
        found = {}
        for at in answers:
            if at.error is None:
                found[at.topic, at.partition] = _Offset(at.offset, at.leader_epoch)
            else:
                _note(unanswered, at.topic, at.error)
        return found


def describe_topics(
    admin: AdminClient, topics: Sequence[str], renew: Callable[[], AdminClient]
) -> dict[str, Future[Any]]:
    """Returns the brokers' descriptions of topics.

    A client asks the controller that it is connected to, which in KRaft is any broker of the cluster. If that
    broker is down, the client waits for minutes, until its metadata expire. A new client, from ``renew``,
    does not wait.
    """
    asked, wait = TopicCollection(list(topics)), _CONTROLLER_SECONDS
    answers = admin.describe_topics(asked, request_timeout=wait)
    errors = [future.exception() for future in answers.values()]
    if any(isinstance(one, KafkaException) and one.args[0].code() == KafkaError._TIMED_OUT for one in errors):
        answers = renew().describe_topics(asked, request_timeout=TIMEOUT_SECONDS)
    return answers


def _numbers(topic: str, listed: Any, unanswered: dict[str, SourceError]) -> frozenset[int] | None:
    """Returns the partitions in the cluster's metadata; None if the topic or a partition is unavailable."""
    leaderless = [number for number, part in listed.partitions.items() if part.leader < 0]
    if listed.error is not None:
        _note(unanswered, topic, listed.error)
    elif leaderless:
        # A request for its offsets would take until the timeout, and would delay all other topics.
        unanswered[topic] = BrokerUnavailableError(
            "The partition has no leader. Check that all brokers run.", topic=topic, partition=leaderless[0]
        )
    else:
        return frozenset(listed.partitions)
    return None


def _note(unanswered: dict[str, SourceError], topic: str, error: KafkaError) -> None:
    # Deleted between two requests: the readers of the topic notice that it is absent.
    if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        unanswered[topic] = translated_error(error, topic)


def _is_same(known: TopicOffsets, numbers: frozenset[int], ends: _Offsets) -> bool:
    # Leader epochs are not compared, because an election adds nothing to read.
    return known.partitions.keys() == numbers and all(
        (end := ends.get((known.topic, number))) is not None and end.offset == at.latest
        for number, at in known.partitions.items()
    )


def _topic_offsets(name: str, described: Any, earliest: _Offsets, latest: _Offsets) -> TopicOffsets:
    numbers = sorted(part.id for part in described.partitions)
    partitions = {n: PartitionOffsets(earliest[name, n].offset, latest[name, n].offset) for n in numbers}
    # Kafka answers a request for the end with the epoch of the leader that answers.
    epochs = {n: epoch for n in numbers if (epoch := latest[name, n].epoch) is not None}
    return TopicOffsets(name, str(described.topic_id), partitions, leader_epochs=epochs)


@contextmanager
def translated_kafka_errors() -> Iterator[None]:
    """Convert exceptions of confluent-kafka to our errors, by their code."""
    try:
        yield
    except KafkaException as exc:
        raise translated_error(exc.args[0]) from exc


def translated_error(error: KafkaError, topic: str | None = None) -> SourceError:
    """Convert an error of librdkafka to our error, by its code."""
    if error.retriable() or error.code() in _UNAVAILABLE:
        return BrokerUnavailableError(
            f"Kafka does not answer ({error.name()}). Check that source.brokers is right and that the "
            "brokers run.",
            topic=topic,
        )
    return SourceError(
        f"Kafka refuses the request ({error.name()}). Check source.kafka, and the permissions of this user.",
        topic=topic,
    )


# The assumed size of a record before any was read: a first batch of 256 MiB then ends at 64k records.
FIRST_RECORD_BYTES: Final = 4096.0
# Records per sample, if more are waiting.
_SAMPLE_RECORDS: Final = 500


class OffsetRange(NamedTuple):
    """Offsets ``[start, end)`` of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def records(self) -> int:
        """The number of offsets in the range. A compacted or transactional topic has fewer records."""
        return self.end - self.start


# Returns the records of a range and their bytes, of keys and values.
Weigh = Callable[[OffsetRange], tuple[int, int]]


@dataclass
class RecordSize:
    """The estimated size of a record: the larger of the mean and the last batch's mean."""

    records: int = 0
    bytes: int = 0
    last: float = FIRST_RECORD_BYTES

    def learn(self, records: int, bytes_read: int) -> None:
        """Record the size of one batch."""
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
    """Holds new partitions back until the old ones are read up to their ends at the time of the growth.

    A key that moves to a new partition has its earlier changes in an old one, all of them below that end.
    """

    barrier: dict[int, int] = field(default_factory=dict)

    def readable(self, known: Mapping[int, int], found: Mapping[int, PartitionOffsets]) -> tuple[int, ...]:
        """Returns the partitions that may be read now.

        ``known``: next offset of each partition read before.
        """
        if not known or known.keys() == found.keys():
            self.barrier = {}
            return tuple(sorted(found))
        if not self.barrier:
            self.barrier = {number: found[number].latest for number in known}
        if all(known[number] >= end for number, end in self.barrier.items()):
            self.barrier = {}
            return tuple(sorted(found))
        return tuple(sorted(known))


def waiting_records(found: TopicOffsets, starts: Mapping[int, int]) -> int:
    """How many records of a topic there are from ``starts`` on, by partition; of others all."""
    return sum(max(0, at.latest - starts.get(n, at.earliest)) for n, at in found.partitions.items())


def topic_progress(progress: Progress, topic: str) -> TopicProgress | None:
    """Returns the applied progress of a table's topic, or None if nothing was applied.

    Raises:
        ConfigError: The table was fed from another topic.
    """
    if progress.topics and topic not in progress.topics:
        raise ConfigError(
            f"{progress.table} was fed from topic {', '.join(sorted(progress.topics))} until now, but the "
            f"config has {topic}. Rows of the old topic would stay and become outdated next to those of the "
            "new one. Nothing was read or skipped. Configure the old topic again, or load the new one into a "
            "table again (another target.path, or remove the table at the target).",
            table=str(progress.table),
        )
    return progress.topics.get(topic)


def check_continuity(progress: TopicProgress, found: TopicOffsets | None) -> None:
    """Raise SourceError if Kafka no longer has the records after ``progress``."""
    name = progress.topic
    if found is None or (progress.topic_id and not found.topic_id):
        raise topic_gone(name)
    if is_other_topic(progress.topic_id, found.topic_id):
        raise made_again(name, f"its topic id is {found.topic_id}, the progress has {progress.topic_id}")
    for number, at in progress.partitions.items():
        end = found.partitions[number].latest if number in found.partitions else at.next_offset
        if found.topic_id == NO_ID and end < at.next_offset:
            raise made_again(
                name,
                f"partition {number} ends at {end}, but was read to {at.next_offset}; it has no topic id",
            )
        # Rows that wait for a later cut are read again.
        _check_partition(name, number, at.low_water_offset, found.partitions.get(number))
    # All earlier partitions are in the progress. A missing one was added later, and begins at 0.
    for number in found.partitions.keys() - progress.partitions.keys():
        _check_partition(name, number, 0, found.partitions[number])


_WAY_OUT: Final = (
    "Nothing was read or skipped. Start the changefeed again from a snapshot into a new topic, and load the "
    "table again (remove it at the target, or choose another pipeline name)."
)


def made_again(topic: str, sign: str) -> SourceError:
    """Returns the error for a topic that was recreated. ``sign``: the fact that shows it."""
    return SourceError(
        f"The topic was deleted and recreated ({sign}), so offsets refer to other records now. {_WAY_OUT}",
        topic=topic,
    )


def topic_gone(topic: str) -> SourceError:
    """Returns the error for a topic that no longer exists."""
    return SourceError(f"The topic was deleted. {_WAY_OUT}", topic=topic)


def _check_partition(topic: str, number: int, at: int, found: PartitionOffsets | None) -> None:
    if found is None:
        raise SourceError(
            f"The partition no longer exists. {_WAY_OUT}", topic=topic, partition=number, offset=at
        )
    if found.earliest > at:
        raise SourceError(
            f"Offsets {at} to {found.earliest - 1} expired before they were read: the topic's retention is "
            f"shorter than the time for which this worker was stopped. {_WAY_OUT}",
            topic=topic,
            partition=number,
            offset=at,
        )
    if found.latest < at:
        raise SourceError(
            f"The partition ends at {found.latest}, before the offset that was already applied. Kafka lost "
            f"records, or this is another cluster. {_WAY_OUT}",
            topic=topic,
            partition=number,
            offset=at,
        )


def plan_ranges(available: Sequence[OffsetRange], *, max_records: int) -> tuple[OffsetRange, ...]:
    """Cut ranges so that together they have at most ``max_records``, in fair shares.

    Partitions with few records pass the rest of their share to the others. A range may be empty, unless only
    one record fits at all.
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
    """Returns the greatest next offset of each partition among several tables."""
    found: dict[int, int] = {}
    for place in places:
        for number, offset in place.items():
            found[number] = max(offset, found.get(number, 0))
    return found


def up_to(available: Sequence[OffsetRange], meeting: Mapping[int, int]) -> tuple[OffsetRange, ...]:
    """Cut ranges at the offsets ``meeting``; unchanged if nothing would be left to read.

    A lagging table ends its batch at the offsets of other tables, and then continues with them.
    """
    cut = tuple(
        part._replace(end=min(part.end, max(part.start, meeting.get(part.partition, part.start))))
        for part in available
    )
    return cut if any(part.records for part in cut) else tuple(available)


def growing_parts(available: Sequence[OffsetRange], first: int) -> Iterator[tuple[OffsetRange, ...]]:
    """Yields parts of the ranges, first with ``first`` records, then always with twice as many."""
    left, size = list(available), first
    while any(part.records for part in left):
        taken = plan_ranges(left, max_records=size)
        yield taken
        left = [part._replace(start=done.end) for part, done in zip(left, taken, strict=True)]
        size *= 2


def budget_of(max_records: int, max_bytes: int, size: RecordSize) -> int:
    """Returns the number of records that a batch may have, at least one."""
    return max(1, min(max_records, int(max_bytes / size.estimate)))


def sample_size(size: RecordSize, available: Sequence[OffsetRange], weigh: Weigh) -> None:
    """Estimate the size of records from samples at the beginning and in the middle of the longest range.

    The larger of both counts until a batch was read. So a first batch is as large as its limits allow.
    """
    part = max(available, key=lambda one: one.records)
    for start in (part.start, part.start + part.records // 2):
        records, weight = weigh(part._replace(start=start, end=min(part.end, start + _SAMPLE_RECORDS)))
        heaviest = size.last if size.records else 0.0
        size.learn(records, weight)
        size.last = max(size.last, heaviest)


def halved(ranges: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Returns the first half of each range. A range of one offset stays whole."""
    return tuple(part._replace(end=part.end - part.records // 2) for part in ranges)


def cut_before(ranges: Sequence[OffsetRange], bad: Mapping[tuple[str, int], int]) -> tuple[OffsetRange, ...]:
    """Cut each range before the first bad offset of its partition."""
    return tuple(
        part._replace(end=min(part.end, bad.get((part.topic, part.partition), part.end))) for part in ranges
    )


_KIND: Final = "topic-partitions"

# The ends of the earlier partitions at the time when others were added, by partition.
Ends = Mapping[int, int]


class _Seen(NamedTuple):
    """The partitions of a topic with Kafka's id of it, and the ends at each growth."""

    topic_id: str
    partitions: frozenset[int]
    grown: tuple[Ends, ...]


class TopicGrowth:
    """The growth of one topic. Shared by the tasks of its tables."""

    def __init__(self, topic: str, *, pipeline: str, store: StateStore) -> None:
        self._name = f"{pipeline}/{topic}"
        self._store = store
        self._lock = threading.Lock()
        self._seen: _Seen | None = None

    def see(self, found: TopicOffsets) -> tuple[Ends, ...]:
        """Record the topic's current partitions. Returns the ends at each growth, oldest first.

        Raises:
            StateStoreError: The store does not answer.
        """
        with self._lock:
            seen = self._seen if self._seen is not None else self._loaded()
            now = _followed(seen, found)
            if now != seen:
                self._save(now)
            self._seen = now
            return now.grown

    def _loaded(self) -> _Seen | None:
        kept: Any = self._store.load_document(_KIND, self._name)
        if kept is None:
            return None
        grown = tuple(dict(ends) for ends in kept["grown"])
        return _Seen(kept["topic_id"], frozenset(kept["partitions"]), grown)

    def _save(self, seen: _Seen) -> None:
        document = {
            "topic_id": seen.topic_id,
            "partitions": sorted(seen.partitions),
            "grown": [sorted(ends.items()) for ends in seen.grown],
        }
        self._store.save_document(_KIND, self._name, document)


def _followed(seen: _Seen | None, found: TopicOffsets) -> _Seen:
    numbers = frozenset(found.partitions)
    if seen is None or is_other_topic(seen.topic_id, found.topic_id):
        return _Seen(found.topic_id, numbers, ())
    seen = seen._replace(topic_id=found.topic_id or seen.topic_id)
    if numbers <= seen.partitions:
        return seen  # all known, or the broker's answer is outdated
    ends = {number: found.partitions[number].latest for number in seen.partitions & numbers}
    return _Seen(found.topic_id, seen.partitions | numbers, (*seen.grown, ends))


def held_back(
    grown: Sequence[Ends], known: Mapping[int, int], found: Mapping[int, PartitionOffsets]
) -> frozenset[int]:
    """Returns the partitions that must not be read yet. ``known``: next offsets of partitions read before.

    Added partitions wait until the earlier ones are read up to their ends at the time of the growth.
    """
    for ends in grown:
        there = {number: min(end, found[number].latest) for number, end in ends.items() if number in found}
        if any(known.get(number, found[number].earliest) < end for number, end in there.items()):
            return frozenset(found) - frozenset(ends)
    return frozenset()
