"""The law of a replay behind snapshots and resyncs, in a model: it undoes nothing that they repaired.

The model is that of ``test_snapshot_law``, with changes that cannot be decoded when they are read, and become
dead letters. Some can never be decoded, and the producer loses some. A resync of all rows repairs all of
that. Then more happens: changes, letters, replays, snapshots, resyncs of all rows and of some keys, cancelled
ones, and rewinds. In the end each row is as at the source that has no letter left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.test_snapshot_law import KEYS, PARTITIONS, Event, World
from tidesink.sinks.state.progress import SnapshotProgress, Sweep
from tidesink.sinks.state.source_reads import (
    MOST_LIMITED,
    SourceRead,
    StoredRead,
    rewound,
    standing_of,
    with_part,
)

TOPIC: Final = "t"


@dataclass
class Lettered(World):
    """A world with dead letters. ``undoes``: the law is broken, a replay asks nothing of what was read.

    ``bad`` and ``damaged`` are the events that are letters when they are read, and those that stay so. By
    partition and offset ``letters`` has those that were not dealt with.
    """

    undoes: bool = False
    bad: list[Event] = field(default_factory=list)
    damaged: list[Event] = field(default_factory=list)
    letters: dict[tuple[int, int], Event] = field(default_factory=dict)
    reads: tuple[SourceRead, ...] = ()
    again: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    floor: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    settled: int = 0
    number: int = 0

    def change(self, key: int, deletes: bool, fault: str) -> None:
        """A write, whose event is good, bad, damaged for good, or lost."""
        self.write(key, deletes)
        events = self.sent[key % PARTITIONS]
        if fault == "lost":
            events.pop()
        elif fault in ("bad", "damaged"):
            getattr(self, fault).append(events[-1])

    def event(self, key: int, deletes: bool, fault: str) -> None:
        """A write, whose event is delivered and read at once."""
        self.change(key, deletes, fault)
        self.deliver(key % PARTITIONS)
        self.apply_events(9)

    def take_part(self, rows: int) -> None:
        """A part, at once."""
        self.begin_part(rows)
        self.commit_part()

    def apply_events(self, most: int) -> None:
        """A batch of the topic, which leaves out letters."""
        if self.part is not None:
            return
        for number, events in enumerate(self.topic):
            end = min(len(events), self.offsets[number] + most)
            if self.offsets[number] < self.again[number]:
                end = min(end, self.again[number])
            for at in range(self.offsets[number], end):
                if self._is_bad(events[at], damaged_alone=False):
                    self.letters[number, at] = events[at]
                else:
                    self._apply(events[at])
            self.offsets[number] = end

    def rewind(self, partition: int, back: int) -> None:
        """The topic is read again, from nowhere before the resync that repaired everything."""
        if self.part is not None or (self.snapshot.number and not self.snapshot.done):
            return
        self.again[partition] = max(self.again[partition], self.offsets[partition])
        self.offsets[partition] = max(self.floor[partition], self.offsets[partition] - back)
        self.reads = rewound(self.reads, TOPIC, {partition: self.offsets[partition]})

    def ask(self, keys: frozenset[int] | None, deletes: bool) -> None:
        """Ask for a snapshot or resync, in place of what is under way."""
        if self.part is not None:
            return
        self.number += 1
        name = None if keys is None else ",".join(map(str, sorted(keys)))
        sweep = Sweep() if deletes else None
        self.snapshot = SnapshotProgress(("id",), number=self.number, sweep=sweep, keys=name)

    def cancel(self) -> None:
        """What is under way ends where it is."""
        if self.part is None:
            self.snapshot = SnapshotProgress((), done=True, number=self.number)

    def begin_part(self, rows: int) -> None:
        """Parts wait for changes that are read again."""
        if all(offset >= again for offset, again in zip(self.offsets, self.again, strict=True)):
            super().begin_part(rows)

    def _look_up(self) -> list[int]:
        return [key for key in super()._look_up() if self._is_of(self.snapshot.keys, key)]

    def _read(self) -> dict[int, int]:
        return {key: row for key, row in super()._read().items() if self._is_of(self.snapshot.keys, key)}

    def commit_part(self) -> None:
        """What was read is known with the rows."""
        part = self.part
        super().commit_part()
        if part is None:
            return
        found = self.snapshot
        settles = found.done and found.sweep is not None
        begins = part.before.after is None and not part.sweeps
        read = SourceRead(found.number, {}, settles, found.keys)
        self.reads = with_part(self.reads, read, {TOPIC: dict(enumerate(self.offsets))}, begins=begins)
        assert tuple(StoredRead.of(read).source_read for read in self.reads) == self.reads

    def replay(self, least: int, most: int) -> None:
        """Replay the letters at some offsets, as far as the law lets them."""
        if self.part is not None or any(a > b for a, b in zip(self.again, self.offsets, strict=True)):
            return
        chosen = list[tuple[int, int]]()
        for place, (key, _) in [*self.letters.items()]:
            if not least <= place[1] < most or place[1] >= self.offsets[place[0]]:
                continue
            standing = self._standing(place, key)
            if standing == "settled":
                self.settled += 1
                del self.letters[place]
            elif standing == "open" and not self._is_bad(self.letters[place], damaged_alone=True):
                chosen.append(place)
        for key in {self.letters[place][0] for place in chosen}:
            self._apply(self._last(key, chosen))
        for place in chosen:
            del self.letters[place]

    def _standing(self, place: tuple[int, int], key: int) -> str:
        if self.undoes:
            return "open"
        return standing_of(self.reads, TOPIC, *place, lambda read: self._is_of(read.keys, key))

    def _last(self, key: int, chosen: Sequence[tuple[int, int]]) -> Event:
        """Of a key's letters, and of what follows the first in its partition, the last."""
        number = key % PARTITIONS
        first = min(at for partition, at in chosen if partition == number)
        for at in range(self.offsets[number] - 1, first - 1, -1):
            event, is_chosen = self.topic[number][at], (number, at) in chosen
            follows = (number, at) not in self.letters and at > first
            if event[0] == key and (is_chosen or (follows and not self._is_bad(event, damaged_alone=True))):
                return event
        raise AssertionError("a chosen letter of the key is there")

    def _is_bad(self, event: Event, *, damaged_alone: bool) -> bool:
        known = self.damaged if damaged_alone else [*self.bad, *self.damaged]
        return any(one is event for one in known)

    def _apply(self, event: Event) -> None:
        key, value = event
        if value is None:
            self.target.pop(key, None)
        else:
            self.target[key] = value

    def _is_of(self, keys: str | None, key: int) -> bool:
        return keys is None or str(key) in keys.split(",")

    def repair(self) -> None:
        """A resync of all rows, once everything is delivered and applied."""
        self.kill()
        self.finish()
        self.ask(None, True)
        self.finish()
        self.floor = [*self.offsets]

    def finish(self) -> None:
        """All is delivered and applied, and what is under way is over."""
        self.kill()
        self.apply_events(10**6)
        self.apply_events(10**6)
        super().finish()


FAULTS: Final = st.sampled_from(("good", "good", "bad"))
_ANY_FAULT: Final = st.sampled_from(("good", "bad", "damaged", "lost"))
_SOME_KEYS: Final = st.one_of(st.none(), st.frozensets(st.sampled_from(KEYS), min_size=1, max_size=3))


def _steps(faults: st.SearchStrategy[str], *, rewinds: bool) -> st.SearchStrategy[tuple[object, ...]]:
    kinds: list[st.SearchStrategy[tuple[object, ...]]] = [
        st.tuples(st.just("change"), st.sampled_from(KEYS), st.booleans(), faults),
        st.tuples(st.just("event"), st.sampled_from(KEYS), st.booleans(), faults),
        st.tuples(st.just("take_part"), st.integers(1, 4)),
        st.tuples(st.just("deliver"), st.integers(0, PARTITIONS - 1)),
        st.tuples(st.just("apply_events"), st.integers(1, 9)),
        st.tuples(st.just("begin_part"), st.integers(1, 4)),
        st.tuples(st.just("read_part")),
        st.tuples(st.just("commit_part")),
        st.tuples(st.just("kill")),
        st.tuples(st.just("ask"), _SOME_KEYS, st.booleans()),
        st.tuples(st.just("cancel")),
        st.tuples(st.just("replay"), st.integers(0, 5), st.integers(1, 20)),
    ]
    if rewinds:
        kinds.append(st.tuples(st.just("rewind"), st.integers(0, PARTITIONS - 1), st.integers(1, 4)))
    return st.one_of(kinds)


_BEFORE: Final = st.lists(_steps(_ANY_FAULT, rewinds=False), max_size=25)
_BEHIND: Final = st.lists(_steps(FAULTS, rewinds=True), max_size=40)


def _lived(
    world: Lettered, before: Iterable[tuple[object, ...]], behind: Iterable[tuple[object, ...]]
) -> None:
    """The steps, with a resync of all rows between them; then nothing is left to be replayed."""
    for steps in (before, behind):
        for name, *given_ in steps:
            getattr(world, str(name))(*given_)
        if steps is before:
            world.repair()
    world.finish()
    world.replay(0, 10**6)


def _wrong(world: Lettered) -> set[int]:
    """The keys without a letter whose rows are not those of the source."""
    lettered = {key for key, _ in world.letters.values()}
    keys = {*world.source, *world.target} - lettered
    return {key for key in keys if world.source.get(key) != world.target.get(key)}


@pytest.mark.law("L3")
@settings(max_examples=200)
@given(_BEFORE, _BEHIND)
def test_a_replay_undoes_nothing_that_was_repaired(
    before: list[tuple[object, ...]], behind: list[tuple[object, ...]]
) -> None:
    world = Lettered()
    _lived(world, before, behind)
    assert _wrong(world) == set()


@pytest.mark.law("L3")
@settings(max_examples=100)
@given(_BEFORE)
def test_a_resync_of_all_rows_settles_all_letters(before: list[tuple[object, ...]]) -> None:
    world = Lettered()
    _lived(world, before, [])
    assert world.letters == {}
    assert world.target == world.source


_OLD: Final = [("change", 0, False, "bad"), ("deliver", 0), ("apply_events", 9)]
_LOST: Final = [("change", 0, False, "lost")]
_PART: Final = [("begin_part", 9), ("commit_part",)]
_ROW: Final = [("begin_part", 1), ("commit_part",)]


@pytest.mark.parametrize("keys", [None, frozenset({0}), frozenset({2})])
def test_a_replay_that_asks_nothing_undoes_a_resync(keys: frozenset[int] | None) -> None:
    """Guards the tests above: the model can fail. Of a resync of other keys nothing is asked in vain."""
    parts = [
        ("ask", keys, True),
        ("begin_part", 9),
        ("commit_part",),
        *[("begin_part", 9), ("commit_part",)] * 2,
    ]
    for undoes in (True, False):
        world = Lettered(undoes=undoes)
        for name, *given_ in [*_OLD, *_LOST, *parts, ("replay", 0, 9)]:
            getattr(world, str(name))(*given_)
        assert world.snapshot.done
        is_repaired = keys is None or 0 in keys
        assert (world.target.get(0) == world.source[0]) == (is_repaired and not undoes)
        assert (world.settled, world.letters) == (int(is_repaired and not undoes), {})


@pytest.mark.parametrize("ends", ["done", "cancelled"])
def test_nothing_tells_of_a_letter_that_came_while_rows_were_read(ends: str) -> None:
    """Its row may have been read before it, or behind it."""
    world = Lettered()
    world.ask(None, True)
    for name, *given_ in [
        ("begin_part", 1),
        ("commit_part",),
        *_OLD,
        *_LOST,
        ("begin_part", 1),
        ("commit_part",),
    ]:
        getattr(world, str(name))(*given_)
    if ends == "done":
        world.finish()
    else:
        world.cancel()
    world.replay(0, 9)
    assert [*world.letters] == [(0, 0)]
    world.ask(frozenset({0}), True)
    world.finish()
    world.replay(0, 9)
    assert (world.letters, world.settled) == ({}, 1)


def test_a_partition_that_came_later_has_nothing_that_is_settled() -> None:
    reads = with_part((), SourceRead(1, {}, False), {TOPIC: {0: 5}}, begins=True)
    reads = with_part(reads, SourceRead(1, {}, True), {TOPIC: {0: 7, 1: 3}}, begins=False)

    def standing(partition: int, offset: int, topic: str = TOPIC) -> str:
        return standing_of(reads, topic, partition, offset, lambda _read: None)

    assert [standing(0, at) for at in (4, 5, 6, 7)] == ["settled", "unsure", "unsure", "open"]
    assert [standing(1, at) for at in (0, 2, 3)] == ["unsure", "unsure", "open"]
    assert (standing(2, 0), standing(0, 0, "another")) == ("open", "open")


def test_of_many_resyncs_of_keys_the_oldest_count_as_of_any_row() -> None:
    reads: tuple[SourceRead, ...] = ()
    for number in range(1, MOST_LIMITED + 4):
        read = SourceRead(number, {}, True, keys=str(number))
        reads = with_part(reads, read, {TOPIC: {0: 10 * number}}, begins=True)
    # Those that are of any row are one, and of the same keys the last is left.
    assert len(reads) == MOST_LIMITED + 1
    assert standing_of(reads, TOPIC, 0, 29, lambda _read: False) == "unsure"
    assert standing_of(reads, TOPIC, 0, 30, lambda _read: False) == "open"
    assert standing_of(reads, TOPIC, 0, 29, lambda read: read.keys == "5") == "settled"
    again = with_part(reads, SourceRead(99, {}, True, keys="5"), {TOPIC: {0: 500}}, begins=True)
    assert [one.number for one in again if one.keys == "5"] == [99]
    # A resync of all rows says all that the others do.
    whole = with_part(again, SourceRead(100, {}, True), {TOPIC: {0: 600}}, begins=True)
    assert [one.number for one in whole] == [100]
