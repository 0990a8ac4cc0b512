"""Where topics end, which ranges of offsets a batch takes, and partitions that were added."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # not in its stubs

from tidesink.errors import ConfigError, SourceError, SourceUnavailableError
from tidesink.kafka_client import open_client
from tidesink.sinks.state.progress import Progress, StateStore, TopicProgress

TIMEOUT_SECONDS: Final = 15.0
_EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
# librdkafka's own notes about lost connections; the answers below already say so.
_QUIET: Final[dict[str, Any]] = {"log_level": 0, "error_cb": lambda _error: None}

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
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # just deleted, or just made: the next look says which
    }
)


class PartitionOffsets(NamedTuple):
    """The first offset kept, and the one the next record will get."""

    earliest: int
    latest: int


class TopicOffsets(NamedTuple):
    """One topic under Kafka's own id, which a topic made again does not share."""

    topic: str
    topic_id: str
    partitions: Mapping[int, PartitionOffsets]


class KafkaOffsets:
    """Asks the brokers; may be used from several threads. ``properties``: ``client_properties``.

    Raises:
        ConfigError: the properties are refused.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._admin = open_client(AdminClient, properties, _QUIET)

    def topics(self) -> tuple[str, ...]:
        """The names of all topics.

        Raises:
            SourceUnavailableError: no broker answers.
            SourceError: the brokers refuse us.
        """
        with translated_kafka_errors():
            return tuple(self._admin.list_topics(timeout=TIMEOUT_SECONDS).topics)

    def lookup(self, topics: Sequence[str]) -> dict[str, TopicOffsets]:
        """Begin, end and id of every topic that is there; three calls, however many topics.

        Raises: as ``topics``.
        """
        if not topics:
            return {}
        with translated_kafka_errors():
            described = self._describe(topics)
            places = [
                TopicPartition(name, partition.id)
                for name, found in described.items()
                for partition in found.partitions
            ]
            earliest = self._offsets(places, _EARLIEST)
            latest = self._offsets(places, _LATEST)
        return {name: _topic_offsets(name, found, earliest, latest) for name, found in described.items()}

    def _describe(self, topics: Sequence[str]) -> dict[str, Any]:
        futures = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=TIMEOUT_SECONDS)
        return dict(_present(futures.items()))

    def _offsets(self, places: list[TopicPartition], spec: Any) -> dict[tuple[str, int], int]:
        futures = self._admin.list_offsets(
            dict.fromkeys(places, spec),
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=TIMEOUT_SECONDS,
        )
        return {(place.topic, place.partition): future.result().offset for place, future in futures.items()}


def _present(futures: Iterable[tuple[str, Future[Any]]]) -> Iterator[tuple[str, Any]]:
    for name, future in futures:
        try:
            yield name, future.result()
        except KafkaException as exc:
            # Gone between two looks: whoever reads the topic learns it by its absence.
            if exc.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise


def _topic_offsets(
    name: str, described: Any, earliest: Mapping[tuple[str, int], int], latest: Mapping[tuple[str, int], int]
) -> TopicOffsets:
    numbers = sorted(partition.id for partition in described.partitions)
    partitions = {n: PartitionOffsets(earliest[name, n], latest[name, n]) for n in numbers}
    return TopicOffsets(name, str(described.topic_id), partitions)


@contextmanager
def translated_kafka_errors() -> Iterator[None]:
    """Raise confluent-kafka's exceptions as ours, by their code."""
    try:
        yield
    except KafkaException as exc:
        error: KafkaError = exc.args[0]
        if error.retriable() or error.code() in _UNAVAILABLE:
            raise SourceUnavailableError(
                f"Kafka does not answer ({error.name()}): are source.brokers right, and do they run?"
            ) from exc
        raise SourceError(
            f"Kafka refuses ({error.name()}): check source.kafka, and what this user may read"
        ) from exc


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
    if found is None:
        raise topic_gone(name)
    if found.topic_id != progress.topic_id:
        raise SourceError(
            f"the topic was deleted and made again (its topic id is {found.topic_id}, progress has "
            f"{progress.topic_id}), so offsets mean other records now. {_WAY_OUT}",
            topic=name,
        )
    for number, at in progress.partitions.items():
        _check_partition(name, number, at.next_offset, found.partitions.get(number))
    # Every partition there was is in the progress: another one was added since, and begins at 0.
    for number in found.partitions.keys() - progress.partitions.keys():
        _check_partition(name, number, 0, found.partitions[number])


_WAY_OUT: Final = (
    "Nothing was read or skipped: start the changefeed again from a snapshot into a new topic, and the table "
    "again (remove it at the target, or choose another pipeline name)"
)


def topic_gone(topic: str) -> SourceError:
    """What to say of a topic that was there and is no more."""
    return SourceError(f"the topic was deleted. {_WAY_OUT}", topic=topic)


def late_start(topic: str, found: TopicOffsets) -> tuple[str, ...]:
    """What to say of a topic whose beginning had expired before it was first read."""
    late = [f"{n} at {at.earliest}" for n, at in found.partitions.items() if at.earliest > 0]
    if not late:
        return ()
    return (
        f"topic {topic} was first read when its beginning had expired (partition {', '.join(late)}): rows "
        "that did not change since are missing, unless a snapshot was loaded before",
    )


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
    if seen is None or seen.topic_id != found.topic_id:
        return _Seen(found.topic_id, numbers, ())
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
