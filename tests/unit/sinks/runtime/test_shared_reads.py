"""Tables of one topic: who reads together, who for itself, and when what was read is let go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from tidesink.events import TableId
from tidesink.sinks.kafka.offsets import (
    OffsetRange,
    PartitionOffsets,
    RecordSize,
    TopicOffsets,
    furthest,
    up_to,
)
from tidesink.sinks.runtime.shared_reads import MOST_KEPT, Limits, PassedRecords, PlannedRead, TopicReads

Offsets = Mapping[int, int]


class _Records:
    """Ranges that were read once, until they are let go."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        self.ranges = ranges
        self.released = False

    def release(self) -> None:
        assert not self.released
        self.released = True


class _Topic:
    """A topic of which tables read, and every range that was read together."""

    def __init__(self, *tables: str, most: int = 1000, interval: float = 0.0) -> None:
        self.now = 0.0
        self.kept: list[_Records] = []
        self.reads: TopicReads[_Records] = TopicReads(self._keep, interval=interval, clock=lambda: self.now)
        self._limits = Limits(most, 2**40, RecordSize())
        for table in tables:
            self.reads.expect(_table(table))

    def _keep(self, ranges: tuple[OffsetRange, ...], _found: TopicOffsets, _size: RecordSize) -> _Records:
        self.kept.append(_Records(ranges))
        return self.kept[-1]

    def plan(
        self, table: str, at: Offsets, ends: Offsets, *, topic_id: str = "id", epoch: int = 0
    ) -> PlannedRead[_Records]:
        parts = {n: PartitionOffsets(0, end) for n, end in ends.items()}
        found = TopicOffsets("t", topic_id, parts, leader_epochs=dict.fromkeys(ends, epoch))
        available = [OffsetRange("t", n, at[n], ends[n]) for n in at]
        return self.reads.plan(_table(table), available, found, limits=self._limits)

    def settle(self, table: str, at: Offsets | None, *, away: bool = False) -> None:
        self.reads.settle(_table(table), at, away=away)

    @property
    def open(self) -> list[_Records]:
        return [one for one in self.kept if not one.released]


def _table(name: str) -> TableId:
    return TableId("shop", name)


def _ends(plan: PlannedRead[_Records]) -> dict[int, int]:
    return {part.partition: part.end for part in plan.ranges}


def test_tables_at_the_same_offsets_read_once() -> None:
    topic = _Topic("a", "b", "c")
    first = topic.plan("a", {0: 0}, {0: 10})
    # The topic has grown meanwhile: the ranges stay those of the first, and so does what it knew of the ends.
    others = [topic.plan(name, {0: 0}, {0: 15}) for name in ("b", "c")]
    assert [plan.kept for plan in others] == [first.kept] * 2
    assert [plan.ranges for plan in others] == [first.ranges] * 2
    assert others[0].found == first.found
    for name in ("a", "b"):
        topic.settle(name, {0: 10})
        assert topic.open == topic.kept
    topic.settle("c", {0: 10})
    assert topic.open == []


def test_a_table_that_has_yet_to_begin_is_waited_for() -> None:
    topic = _Topic("a", "b")
    assert topic.plan("a", {0: 0}, {0: 10}).kept
    topic.settle("a", {0: 10})
    assert topic.open
    # It turns out to stand elsewhere: nobody else comes for what is kept.
    assert topic.plan("b", {0: 3}, {0: 10}).kept is None
    assert not topic.open


def test_a_table_by_itself_keeps_nothing() -> None:
    topic = _Topic("a")
    assert topic.plan("a", {0: 0, 1: 0}, {0: 10, 1: 0}).kept is None
    topic.settle("a", {0: 10, 1: 0})
    assert _ends(topic.plan("a", {0: 10, 1: 0}, {0: 30, 1: 5})) == {0: 30, 1: 5}
    assert topic.kept == []


def test_a_table_that_stops_is_not_waited_for() -> None:
    topic = _Topic("a", "b", "c")
    for name in ("a", "b"):
        assert topic.plan(name, {0: 0}, {0: 10}).kept
    topic.settle("c", None, away=True)
    topic.settle("b", {0: 0}, away=True)
    assert topic.open
    topic.settle("a", {0: 10})
    assert not topic.open
    # The others are away: what comes next is read without keeping it.
    assert topic.plan("a", {0: 10}, {0: 20}).kept is None


def test_a_table_that_lags_reads_for_itself_up_to_the_others() -> None:
    topic = _Topic("a", "b", "late")
    topic.settle("late", {0: 0}, away=True)
    for name in ("a", "b"):
        topic.plan(name, {0: 50}, {0: 60})
    # Back again, it ends where the others will be, although there is more by now ...
    lagging = topic.plan("late", {0: 0}, {0: 90})
    assert (lagging.kept, _ends(lagging)) == (None, {0: 60})
    for name in ("a", "b"):
        topic.settle(name, {0: 60})
    # ... and while it is on its way there, the next read is kept for it.
    for name in ("a", "b"):
        shared = topic.plan(name, {0: 60}, {0: 90})
        topic.settle(name, {0: 90})
    assert topic.open == [shared.kept]
    topic.settle("late", {0: 60})
    assert topic.plan("late", {0: 60}, {0: 99}).kept is shared.kept
    topic.settle("late", {0: 90})
    assert not topic.open


def test_tables_that_lag_alike_read_together() -> None:
    topic = _Topic("a", "b", "c")
    topic.settle("c", {0: 70})
    plans = [topic.plan(name, {0: 20}, {0: 100}) for name in ("a", "b")]
    assert plans[0].kept is plans[1].kept is not None
    assert [_ends(plan) for plan in plans] == [{0: 70}] * 2


def test_nobody_waits_for_a_slow_table() -> None:
    topic = _Topic("slow", "a", "b")
    at = 0
    slow = topic.plan("slow", {0: 0}, {0: 10})
    for _ in range(5):
        for name in ("a", "b"):
            assert topic.plan(name, {0: at}, {0: at + 10}).kept
            topic.settle(name, {0: at + 10})
        at += 10
        # Its own read stays as long as it is at work; of what comes later, only so much waits for it.
        assert slow.kept in topic.open
        assert len(topic.open) <= MOST_KEPT + 1
    topic.settle("slow", {0: 10})
    assert slow.kept not in topic.open
    # What it was on its way to is there; from then on it lags.
    assert _ends(topic.plan("slow", {0: 10}, {0: 60})) == {0: 20}
    topic.settle("slow", {0: 20})
    assert topic.open == []
    lagging = topic.plan("slow", {0: 20}, {0: 60})
    assert (lagging.kept, _ends(lagging)) == (None, {0: 50})


def test_so_many_reads_wait_and_no_more() -> None:
    names = [f"t{number}" for number in range(2 * (MOST_KEPT + 1))]
    topic = _Topic(*names)
    for number, name in enumerate(names):
        topic.settle(name, {0: number // 2})
    # Pairs stand at as many offsets; one of each pair has read what the other one is to read yet.
    plans = []
    for number, name in enumerate(names[::2]):
        plans.append(topic.plan(name, {0: number}, {0: 100}))
        topic.settle(name, {0: 100})
    assert topic.open == [plan.kept for plan in plans[-MOST_KEPT:]]
    assert topic.plan(names[1], {0: 0}, {0: 100}).kept is None


def test_a_topic_made_again_is_another_one() -> None:
    topic = _Topic("a", "b")
    old = topic.plan("a", {0: 0}, {0: 10})
    assert topic.plan("b", {0: 0}, {0: 10}, topic_id="another").kept is not old.kept


def test_what_was_read_under_another_leader_is_read_again() -> None:
    """The partition's log may have been cut since."""
    topic = _Topic("a", "b", "c")
    old = topic.plan("a", {0: 0}, {0: 10})
    new = topic.plan("b", {0: 0}, {0: 10}, epoch=1)
    assert new.kept is not old.kept
    assert topic.plan("c", {0: 0}, {0: 10}, epoch=1).kept is new.kept


def test_the_end_of_the_worker_lets_everything_go() -> None:
    topic = _Topic("a", "b")
    topic.plan("a", {0: 0}, {0: 10})
    topic.reads.release()
    assert not topic.open
    topic.settle("a", {0: 10})


_PLACES = st.dictionaries(st.integers(0, 2), st.integers(0, 20), min_size=3, max_size=3)


@given(_PLACES, st.lists(_PLACES, max_size=3), _PLACES)
def test_where_others_are_never_stops_a_table(at: Offsets, others: Iterable[Offsets], more: Offsets) -> None:
    available = [OffsetRange("t", n, at[n], at[n] + more[n]) for n in at]
    cut = up_to(available, furthest(others))
    assert any(part.records for part in cut) == any(part.records for part in available)
    assert all(0 <= new.records <= old.records for new, old in zip(cut, available, strict=True))


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.integers(0, 3)), max_size=60),
    st.integers(1, 8),
)
def test_every_table_reads_every_offset_once(turns: list[tuple[str, bool, int]], most: int) -> None:
    """Whatever the order of turns, failures and growth: no table misses or repeats an offset it applied."""
    topic = _Topic(*"abcd", most=most)
    at: dict[str, dict[int, int]] = {name: {0: 0, 1: 0} for name in "abcd"}
    working: dict[str, PlannedRead[_Records]] = {}
    end = {0: 5, 1: 3}
    for name, fails, grown in turns:
        end = {0: end[0] + grown, 1: end[1]}
        plan = working.pop(name, None)
        if plan is None:
            working[name] = plan = topic.plan(name, at[name], end)
            assert {part.partition: part.start for part in plan.ranges} == at[name]
            assert sum(part.records for part in plan.ranges) <= most
            assert any(part.records for part in plan.ranges) == (at[name] != end)
            assert plan.kept is None or plan.kept in topic.open
            continue
        if not fails:
            at[name] = _ends(plan)
        topic.settle(name, at[name], away=fails)
    assert len(topic.open) <= MOST_KEPT + len(working)


def test_one_read_each_interval_is_committed_by_all_its_tables() -> None:
    topic, tables, starts = _Topic("a", "b", interval=60.0), ("a", "b"), (0, 5, 9, 12)
    found = []
    for start, end, now in zip(starts, (*starts[1:], 20), (1000.0, 1059.0, 1061.0, 1100.0), strict=True):
        topic.now = now
        found.append([topic.plan(table, {0: start}, {0: end}).commits for table in tables])
        for table in tables:
            topic.settle(table, {0: end})
    assert found == [[True, True], [False, False], [True, True], [False, False]]


def test_a_table_that_reads_for_itself_commits() -> None:
    topic = _Topic("a", interval=60.0)
    topic.plan("a", {0: 0}, {0: 5})
    topic.settle("a", {0: 5})
    found = topic.plan("a", {0: 5}, {0: 9})
    assert (found.kept, found.commits) == (None, True)


def test_records_that_went_by_are_committed_in_the_end() -> None:
    now = [5.0]
    passed = PassedRecords(60.0, clock=lambda: now[0])
    committed = {0: 10, 1: 20}
    passed.add([OffsetRange("t", 0, 10, 12), OffsetRange("t", 1, 20, 20)])
    assert passed.behind(committed) == {0: 12, 1: 20}
    now[0] = 60.0
    passed.add([OffsetRange("t", 0, 12, 15), OffsetRange("t", 1, 20, 21)])
    assert not passed.owe_commit
    assert passed.behind({0: 10}) == {0: 15, 1: 21}
    now[0] = 65.0
    assert passed.owe_commit
    passed.step_back()
    assert passed.behind(committed) == {0: 14, 1: 21}
    passed.clear()
    assert not passed.owe_commit
    assert passed.behind(committed) == committed
