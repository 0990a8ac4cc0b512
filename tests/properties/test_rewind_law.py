"""The law of rewinds, in a model: whatever a table applies, and however often it goes back.

A producer keeps a key in one partition, until there are more partitions: then it may move, once all is
applied. A worker applies batches, as far as rewinds let it. Whenever nothing is left to be read again, the
target is what the topic makes of its records up to there, as if there had been no rewind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.config.samples import FLAT_AVRO, right
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.kafka.offsets import OffsetRange, PartitionOffsets, TopicOffsets
from tidesink.sinks.kafka.rewind import rewound_offsets
from tidesink.sinks.laws.bound import topic_after
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.worker.rewind import again_only

KEYS: Final = range(6)
ORDERS: Final = TableId("shop", "orders")
SETTINGS: Final = right(FLAT_AVRO).table_config(ORDERS)
# Partition, offset, key, value: in the order in which they were written.
Event = tuple[int, int, int, int | None]


@dataclass
class World:
    """A topic, and what a worker made of it. ``lawless``: it goes back wherever it is asked to."""

    lawless: bool = False
    partitions: int = 2
    events: list[Event] = field(default_factory=list)
    expired: dict[int, int] = field(default_factory=dict)
    grown: tuple[dict[int, int], ...] = ()
    target: dict[int, int] = field(default_factory=dict)
    progress: Progress = Progress(ORDERS, "shop", 1, 0)  # noqa: RUF009  (it is frozen)

    @property
    def found(self) -> TopicOffsets:
        ends = {n: sum(event[0] == n for event in self.events) for n in range(self.partitions)}
        known = {n: PartitionOffsets(self.expired.get(n, 0), end) for n, end in ends.items()}
        return TopicOffsets("t", "id", known)

    def applied(self, number: int) -> int:
        return self.progress.next_offset("t", number) or 0

    def write(self, key: int, value: int | None) -> None:
        number = key % self.partitions
        self.events.append((number, self.found.partitions[number].latest, key, value))

    def grow(self) -> None:
        """As the documentation says: once the worker has applied all there is."""
        self.drain()
        self.grown = (*self.grown, {n: at.latest for n, at in self.found.partitions.items()})
        self.partitions += 1

    def expire(self, most: int) -> None:
        """Records that are applied, and not to be read again, are removed."""
        for number in range(self.partitions):
            self.expired[number] = max(self.expired.get(number, 0), min(most, self.applied(number)))

    def rewind(self, number: int, offset: int) -> None:
        wanted = {number: offset}
        if not self.lawless:
            topic = self.progress.topics.get("t")
            try:
                wanted = rewound_offsets(topic, self.found, wanted, SETTINGS, grown=self.grown)
            except ConfigError:
                return
        self._commit([OffsetRange("t", n, at, at) for n, at in wanted.items()])

    def batch(self, most: int) -> None:
        available = [
            OffsetRange("t", n, self.applied(n), at.latest) for n, at in self.found.partitions.items()
        ]
        only = again_only(available, self.progress.topics.get("t"))
        chosen = available if only is None else only
        ranges = [part._replace(end=min(part.end, part.start + most)) for part in chosen]
        limits = {part.partition: part for part in ranges}
        for number, offset, key, value in self.events:
            if limits[number].start <= offset < limits[number].end:
                assert offset >= self.found.partitions[number].earliest
                _apply(self.target, key, value)
        self._commit(ranges)

    def _commit(self, ranges: list[OffsetRange]) -> None:
        read = {part.partition: (part.end, None) for part in ranges}
        topic = topic_after(self.progress, "t", self.found.topic_id, read, None)
        self.progress = Progress(ORDERS, "shop", 1, self.progress.batch + 1, {"t": topic})

    def drain(self) -> None:
        while any(self.applied(n) < at.latest for n, at in self.found.partitions.items()):
            self.batch(10**6)

    def check(self) -> None:
        """Nothing of before a rewind is to be read again: the target is what it would be without it."""
        topic = self.progress.topics.get("t")
        if topic is not None and topic.read_again:
            return
        meant = dict[int, int]()
        for number, offset, key, value in self.events:
            if offset < self.applied(number):
                _apply(meant, key, value)
        assert self.target == meant


def _apply(rows: dict[int, int], key: int, value: int | None) -> None:
    if value is None:
        rows.pop(key, None)
    else:
        rows[key] = value


_STEPS: Final = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(KEYS), st.none() | st.integers(0, 99)),
    st.tuples(st.just("write"), st.sampled_from(KEYS), st.integers(0, 99)),
    st.tuples(st.just("batch"), st.integers(1, 3)),
    st.tuples(st.just("rewind"), st.integers(0, 3), st.integers(0, 6)),
    st.tuples(st.just("expire"), st.integers(1, 3)),
    st.tuples(st.just("grow")),
)


@pytest.mark.law("L3")
@settings(max_examples=200)
@given(st.lists(_STEPS, max_size=40))
def test_the_target_ends_as_without_rewinds(steps: list[tuple[object, ...]]) -> None:
    world = World()
    for name, *given_ in steps:
        getattr(world, str(name))(*given_)
        world.check()
    world.drain()
    world.check()
    assert not any(topic.read_again for topic in world.progress.topics.values())


@pytest.mark.parametrize("lawless", [True, False])
def test_the_model_can_fail(lawless: bool) -> None:
    """Guards the test above: of what the law refuses, one loses a row and one keeps an older one."""
    scripts: tuple[list[tuple[object, ...]], ...] = (
        [("write", 2, 1), ("grow",), ("write", 2, 2), ("drain",), ("rewind", 0, 0)],
        [("write", 0, 1), ("write", 0, 2), ("batch", 1), ("rewind", 0, 2), ("write", 1, 3)],
    )
    for steps in scripts:
        world = World(lawless)
        for name, *given_ in steps:
            getattr(world, str(name))(*given_)
        world.drain()
        if lawless:
            with pytest.raises(AssertionError):
                world.check()
        else:
            world.check()
