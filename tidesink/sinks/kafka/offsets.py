"""Where topics end, which ranges of offsets a batch takes, and partitions that were added."""

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
# A topic in which nothing changes is asked for its id and first offsets again after so long.
_REMEMBERED_SECONDS: Final = 15.0
# How long a client waits for its controller before another client asks.
_CONTROLLER_SECONDS: Final = 5.0
# A topic is asked for its clean-up policy again after so long.
_POLICY_SECONDS: Final = 600.0
# How long ``lookup`` asks again where a partition has a new leader.
_LEADER_SECONDS: Final = 5.0
# The timestamps by which Kafka's ListOffsets means the first offset kept, and the end.
_EARLIEST: Final = -2
_LATEST: Final = -1
# librdkafka's own notes about lost connections; the answers below already say so.
_QUIET: Final[dict[str, Any]] = {"log_level": 0, "error_cb": lambda _error: None}
# librdkafka requires a group's name. It is never joined.
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
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # just deleted, or just made: the next look says which
    }
)


class PartitionOffsets(NamedTuple):
    """The first offset kept, and the one the next record will get."""

    earliest: int
    latest: int


# Of brokers and services that report no leader epochs (before Kafka 2.1).
NO_EPOCHS: Final[Mapping[int, int]] = {}


class TopicOffsets(NamedTuple):
    """One topic under Kafka's own id, which a topic made again does not share (but see ``NO_ID``).

    ``topic_id``: empty where the topic is not there yet, and without partitions. ``compaction``: None also
    where this user may not ask for the topic's settings. ``leader_epochs``: by partition, the epoch of the
    leader that answered with its end; a partition without one is absent.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, PartitionOffsets]
    compaction: Compaction | None = None
    leader_epochs: Mapping[int, int] = NO_EPOCHS


def limited(found: TopicOffsets, ends: Mapping[int, int] | None) -> Mapping[int, PartitionOffsets]:
    """The partitions of a topic as far as they are to be read; of one that has no end nothing is."""
    if ends is None:
        return found.partitions
    return {
        number: at._replace(latest=min(at.latest, ends.get(number, at.earliest)))
        for number, at in found.partitions.items()
    }


# By partition, the first offset that a table reads; none of a partition that it reads from its beginning.
Starts = Mapping[int, int]
NO_STARTS: Final[Starts] = {}


def started_at(found: TopicOffsets, starts: Starts) -> TopicOffsets:
    """The topic as it looks to a table that begins to read there, as if all before had expired."""
    if not starts:
        return found
    partitions = {
        n: at._replace(earliest=min(max(at.earliest, starts.get(n, 0)), at.latest))
        for n, at in found.partitions.items()
    }
    return found._replace(partitions=partitions)


# The id of every topic of a broker that gives none: before Kafka 2.8, and some services.
NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"


def is_other_topic(known_id: str, found_id: str) -> bool:
    """Whether ids say that a topic was made again; ``NO_ID``, and none of a topic that is absent, do not."""
    return known_id != found_id and {known_id, found_id}.isdisjoint((NO_ID, ""))


class FirstRecord(NamedTuple):
    """The first record that a partition holds; ``timestamp`` in ms since 1970."""

    offset: int
    timestamp: int


class Look(NamedTuple):
    """What the brokers say of topics. A topic that is in neither is not there.

    ``unanswered``: why nothing is known of a topic now, though it may be there.
    """

    found: dict[str, TopicOffsets]
    unanswered: dict[str, SourceError]


# Of all topics' names, those that are asked for.
Choose = Callable[[Iterable[str]], Sequence[str]]


class _Offset(NamedTuple):
    """An offset of a partition; ``epoch``: the leader epoch that came with it, or None."""

    offset: int
    epoch: int | None


# By topic and partition.
_Offsets = dict[tuple[str, int], _Offset]


class KafkaOffsets:
    """Asks the brokers. ``properties``: ``client_properties``.

    ``look`` is for one thread, the rest for several. ``clock`` gives seconds and never runs backwards: it
    says how old is what a topic was known by.

    Raises:
        ConfigError: the properties are refused.
    """

    def __init__(self, properties: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open_admin = partial(open_client, AdminClient, properties, _QUIET)
        self._admin = self._open_admin()
        # An admin client makes a future for each partition, which takes five times the CPU.
        self._consumer = open_client(Consumer, properties, _CONSUMER)
        self._known: dict[str, TopicOffsets] = {}
        self._described = 0.0
        # By topic: its id, when it was asked, and the answer.
        self._policies: dict[str, tuple[str, float, Compaction | None]] = {}

    def first_since(self, topic: str, partitions: Iterable[int], seconds: float) -> dict[int, int]:
        """The offset of the first record of each partition from a time on, in seconds since 1970.

        A partition without such a record is absent.

        Raises:
            SourceUnavailableError: no broker answers.
            SourceError: the brokers refuse us.
        """
        found = self._records_from(topic, partitions, round(seconds * 1000))
        return {number: first.offset for number, first in found.items()}

    def first_records(self, topic: str, partitions: Iterable[int]) -> dict[int, FirstRecord]:
        """The first record of each partition that holds any. Raises: as ``first_since``."""
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
        """Begin, end, id and compaction of every topic that is there; five calls, however many topics.

        Raises:
            SourceUnavailableError: no broker answers, or none does for a partition.
            SourceError: the brokers refuse us, or one of the topics to us.
        """
        if not topics:
            return {}
        with translated_kafka_errors():
            deadline = time.monotonic() + _LEADER_SECONDS
            while True:
                # The consumer asks by the partitions and leaders that it knows.
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
        """Where the topics that ``choose`` takes of all names end now; two calls while nothing changes.

        The ends and the partitions are those of this moment. A topic's id and first offsets are asked for
        where it is new, its partitions or an end changed, or ``unread`` says that a table may read what was
        there before; of every topic each 15 s. So a topic that was deleted, made again or expired under
        tables with nothing to read is noticed within that time. A table that wakes right after a look may
        plan by an id or a first offset of before it: the tasks check the id, and a range whose beginning
        has expired is an error of the fetch. A topic of which nothing new is known is the same object as
        before.

        One topic that gives no answer (no leader, no rights) hides no other.

        Raises:
            SourceUnavailableError: no broker answers.
            SourceError: the brokers refuse us.
        """
        with translated_kafka_errors():
            self._consumer.poll(0)  # serves the client's errors, which would heap up
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
        """All that is known of topics."""
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
        """How topics, given with their ids, are compacted, but for those without an answer."""
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
        """The first or the next offset of partitions, but for those without an answer."""
        if not places:
            return {}
        asked = [TopicPartition(name, number, which) for name, number in places]
        try:
            answers = self._consumer.offsets_for_times(asked, timeout=TIMEOUT_SECONDS)
        except KafkaException as exc:
            topics = sorted({name for name, _ in places})
            # librdkafka's own errors, all negative, are of no single partition: nobody answers.
            if exc.args[0].code() < 0:
                raise
            if len(topics) == 1:
                _note(unanswered, topics[0], exc.args[0])
                return {}
            # Some partition's broker refused or has just lost its lead, which ends the call for all.
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
    """The brokers' descriptions of topics.

    A client asks the controller that it knows, which in KRaft is any broker of the cluster. Where that one is
    down, it waits for it for minutes, until its metadata are old: another client, by ``renew``, does not.
    """
    asked, wait = TopicCollection(list(topics)), _CONTROLLER_SECONDS
    answers = admin.describe_topics(asked, request_timeout=wait)
    errors = [future.exception() for future in answers.values()]
    if any(isinstance(one, KafkaException) and one.args[0].code() == KafkaError._TIMED_OUT for one in errors):
        answers = renew().describe_topics(asked, request_timeout=TIMEOUT_SECONDS)
    return answers


def _numbers(topic: str, listed: Any, unanswered: dict[str, SourceError]) -> frozenset[int] | None:
    """The partitions of a topic as the cluster's metadata have it; None where one cannot be asked."""
    leaderless = [number for number, part in listed.partitions.items() if part.leader < 0]
    if listed.error is not None:
        _note(unanswered, topic, listed.error)
    elif leaderless:
        # To ask for its offsets takes until the timeout, and hides those of every other.
        unanswered[topic] = BrokerUnavailableError(
            "the partition has no leader: do all brokers run?", topic=topic, partition=leaderless[0]
        )
    else:
        return frozenset(listed.partitions)
    return None


def _note(unanswered: dict[str, SourceError], topic: str, error: KafkaError) -> None:
    # Gone between two questions: whoever reads the topic learns it by its absence.
    if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        unanswered[topic] = translated_error(error, topic)


def _is_same(known: TopicOffsets, numbers: frozenset[int], ends: _Offsets) -> bool:
    # An election alone gives tables nothing to read: leader epochs are not compared.
    return known.partitions.keys() == numbers and all(
        (end := ends.get((known.topic, number))) is not None and end.offset == at.latest
        for number, at in known.partitions.items()
    )


def _topic_offsets(name: str, described: Any, earliest: _Offsets, latest: _Offsets) -> TopicOffsets:
    numbers = sorted(part.id for part in described.partitions)
    partitions = {n: PartitionOffsets(earliest[name, n].offset, latest[name, n].offset) for n in numbers}
    # Kafka answers a question for the end with the epoch of the leader that answers.
    epochs = {n: epoch for n in numbers if (epoch := latest[name, n].epoch) is not None}
    return TopicOffsets(name, str(described.topic_id), partitions, leader_epochs=epochs)


@contextmanager
def translated_kafka_errors() -> Iterator[None]:
    """Raise confluent-kafka's exceptions as ours, by their code."""
    try:
        yield
    except KafkaException as exc:
        raise translated_error(exc.args[0]) from exc


def translated_error(error: KafkaError, topic: str | None = None) -> SourceError:
    """An error of librdkafka as ours, by its code."""
    if error.retriable() or error.code() in _UNAVAILABLE:
        return BrokerUnavailableError(
            f"Kafka does not answer ({error.name()}): are source.brokers right, and do they run?", topic=topic
        )
    return SourceError(
        f"Kafka refuses ({error.name()}): check source.kafka, and what this user may read", topic=topic
    )


# What a record is taken to weigh before one was seen: a first batch of 256 MiB then ends at 64k records.
FIRST_RECORD_BYTES: Final = 4096.0
# Records of each sample that is taken where more are waiting than that.
_SAMPLE_RECORDS: Final = 500


class OffsetRange(NamedTuple):
    """Offsets ``[start, end)`` of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def records(self) -> int:
        """Offsets in the range; a compacted or transactional topic has fewer records."""
        return self.end - self.start


# The records of a range and their bytes, keys and values.
Weigh = Callable[[OffsetRange], tuple[int, int]]


@dataclass
class RecordSize:
    """How much a record weighs, learnt from the batches read; the heavier of mean and last batch."""

    records: int = 0
    bytes: int = 0
    last: float = FIRST_RECORD_BYTES

    def learn(self, records: int, bytes_read: int) -> None:
        """Take note of one batch."""
        if records:
            self.records += records
            self.bytes += bytes_read
            self.last = bytes_read / records

    @property
    def estimate(self) -> float:
        """Bytes of the next record."""
        return max(self.last, self.bytes / self.records if self.records else 0.0, 1.0)


@dataclass
class AddedPartitions:
    """Holds new partitions back until the old ones are read to where they ended when it was noticed.

    A key that moves to a new partition has its earlier changes in an old one, all of them below that end.
    """

    barrier: dict[int, int] = field(default_factory=dict)

    def readable(self, known: Mapping[int, int], found: Mapping[int, PartitionOffsets]) -> tuple[int, ...]:
        """The partitions that may be read now. ``known``: next offset of each partition read before."""
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
    """What of a table's topic is applied; None for a table that nothing was applied of.

    Raises:
        ConfigError: the table was fed from another topic.
    """
    if progress.topics and topic not in progress.topics:
        raise ConfigError(
            f"{progress.table} was fed from topic {', '.join(sorted(progress.topics))} until now, and the "
            f"config says {topic}: rows of the one would stay and go stale beside those of the other. "
            "Nothing was read or skipped: name the topic of before again, or load the new one into a table "
            "again (another target.path, or remove the table at the target)",
            table=str(progress.table),
        )
    return progress.topics.get(topic)


def check_continuity(progress: TopicProgress, found: TopicOffsets | None) -> None:
    """Raise SourceError where Kafka no longer holds what comes after ``progress``."""
    name = progress.topic
    if found is None or (progress.topic_id and not found.topic_id):
        raise topic_gone(name)
    if is_other_topic(progress.topic_id, found.topic_id):
        raise made_again(name, f"its topic id is {found.topic_id}, progress has {progress.topic_id}")
    for number, at in progress.partitions.items():
        end = found.partitions[number].latest if number in found.partitions else at.next_offset
        if found.topic_id == NO_ID and end < at.next_offset:
            raise made_again(
                name,
                f"partition {number} ends at {end}, and was read to {at.next_offset}; it has no topic id",
            )
        # Rows that wait for a later cut are read again.
        _check_partition(name, number, at.low_water_offset, found.partitions.get(number))
    # Every partition there was is in the progress: another one was added since, and begins at 0.
    for number in found.partitions.keys() - progress.partitions.keys():
        _check_partition(name, number, 0, found.partitions[number])


_WAY_OUT: Final = (
    "Nothing was read or skipped: start the changefeed again from a snapshot into a new topic, and the table "
    "again (remove it at the target, or choose another pipeline name)"
)


def made_again(topic: str, sign: str) -> SourceError:
    """What to say of a topic that is not the one that was read; ``sign``: what shows it."""
    return SourceError(
        f"the topic was deleted and made again ({sign}), so offsets mean other records now. {_WAY_OUT}",
        topic=topic,
    )


def topic_gone(topic: str) -> SourceError:
    """What to say of a topic that was there and is no more."""
    return SourceError(f"the topic was deleted. {_WAY_OUT}", topic=topic)


def _check_partition(topic: str, number: int, at: int, found: PartitionOffsets | None) -> None:
    if found is None:
        raise SourceError(f"the partition is gone. {_WAY_OUT}", topic=topic, partition=number, offset=at)
    if found.earliest > at:
        raise SourceError(
            f"offsets {at} to {found.earliest - 1} expired before they were read: the topic's retention is "
            f"shorter than this worker stood still. {_WAY_OUT}",
            topic=topic,
            partition=number,
            offset=at,
        )
    if found.latest < at:
        raise SourceError(
            f"the partition ends at {found.latest}, before what was already applied: Kafka lost records, or "
            f"this is another cluster. {_WAY_OUT}",
            topic=topic,
            partition=number,
            offset=at,
        )


def plan_ranges(available: Sequence[OffsetRange], *, max_records: int) -> tuple[OffsetRange, ...]:
    """``available`` cut so that all together hold at most ``max_records``, each its fair share.

    Partitions with little give what they leave of their share to those with more. A range may come out
    empty, save where one record at all fits.
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
    """The greatest next offset of each partition among several tables'."""
    found: dict[int, int] = {}
    for place in places:
        for number, offset in place.items():
            found[number] = max(offset, found.get(number, 0))
    return found


def up_to(available: Sequence[OffsetRange], meeting: Mapping[int, int]) -> tuple[OffsetRange, ...]:
    """``available`` no further than ``meeting``; as it is where that has nothing to read.

    A table that is behind others ends its batch where they are, and goes on with them.
    """
    cut = tuple(
        part._replace(end=min(part.end, max(part.start, meeting.get(part.partition, part.start))))
        for part in available
    )
    return cut if any(part.records for part in cut) else tuple(available)


def growing_parts(available: Sequence[OffsetRange], first: int) -> Iterator[tuple[OffsetRange, ...]]:
    """``available`` in parts, of ``first`` records and then always twice as many, until all is named."""
    left, size = list(available), first
    while any(part.records for part in left):
        taken = plan_ranges(left, max_records=size)
        yield taken
        left = [part._replace(start=done.end) for part, done in zip(left, taken, strict=True)]
        size *= 2


def budget_of(max_records: int, max_bytes: int, size: RecordSize) -> int:
    """How many records a batch may have; always one at least."""
    return max(1, min(max_records, int(max_bytes / size.estimate)))


def sample_size(size: RecordSize, available: Sequence[OffsetRange], weigh: Weigh) -> None:
    """Learn what records weigh from samples at the beginning and in the middle of the longest range.

    The heavier of both counts until a batch was read: a first batch is then as large as its bounds allow.
    """
    part = max(available, key=lambda one: one.records)
    for start in (part.start, part.start + part.records // 2):
        records, weight = weigh(part._replace(start=start, end=min(part.end, start + _SAMPLE_RECORDS)))
        heaviest = size.last if size.records else 0.0
        size.learn(records, weight)
        size.last = max(size.last, heaviest)


def halved(ranges: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """The first half of each range; of one offset the whole."""
    return tuple(part._replace(end=part.end - part.records // 2) for part in ranges)


def cut_before(ranges: Sequence[OffsetRange], bad: Mapping[tuple[str, int], int]) -> tuple[OffsetRange, ...]:
    """The ranges, each ending before the first bad offset of its partition."""
    return tuple(
        part._replace(end=min(part.end, bad.get((part.topic, part.partition), part.end))) for part in ranges
    )


_KIND: Final = "topic-partitions"

# By partition, where those ended that were there before others were added.
Ends = Mapping[int, int]


class _Seen(NamedTuple):
    """The partitions of a topic under Kafka's id, and each time that there were more."""

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
        """Take note of a topic as it is now; each time it grew, the oldest first.

        Raises:
            StateStoreError: the store does not answer.
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
        return seen  # all known; or a broker answers from before
    ends = {number: found.partitions[number].latest for number in seen.partitions & numbers}
    return _Seen(found.topic_id, seen.partitions | numbers, (*seen.grown, ends))


def held_back(
    grown: Sequence[Ends], known: Mapping[int, int], found: Mapping[int, PartitionOffsets]
) -> frozenset[int]:
    """The partitions not to be read yet; ``known``: the next offset of each one that was read before.

    Those that were added wait until the ones before them are read to where they ended then.
    """
    for ends in grown:
        there = {number: min(end, found[number].latest) for number, end in ends.items() if number in found}
        if any(known.get(number, found[number].earliest) < end for number, end in there.items()):
            return frozenset(found) - frozenset(ends)
    return frozenset()
