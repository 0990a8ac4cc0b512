"""The bounds of one batch: per partition ``[start, end)``, no more than so many records and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidesink.errors import ConfigError, SourceError
from tidesink.sinks.offsets import PartitionOffsets, TopicOffsets
from tidesink.sinks.progress import Progress, TopicProgress

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
            "anew (another target.path, or remove the table at the target)",
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
    "anew (remove it at the target, or choose another pipeline name)"
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


def cut_before(ranges: Sequence[OffsetRange], bad: Mapping[tuple[str, int], int]) -> tuple[OffsetRange, ...]:
    """The ranges, each ending before the first bad offset of its partition."""
    return tuple(
        part._replace(end=min(part.end, bad.get((part.topic, part.partition), part.end))) for part in ranges
    )
