"""A history is a function of the set of its events and reads: in any order, cut anywhere, come again."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.full import TEST_ALL
from tests.history_law import instant_of, versions_of
from tests.memory_target import MemoryTarget
from tests.properties.test_source_order import SCHEMA, SHAPE, TABLE
from tests.spark.decoded import GivenEvents, messages_of, reduced_in_spark
from tidesink.events import ChangeEvent, Op, Position, Row
from tidesink.sinks.decode.plans import DecodePlan
from tidesink.sinks.decode.records import EventRules
from tidesink.sinks.decode.target_rows import TargetRows
from tidesink.sinks.laws.modes import (
    FROM_COLUMN,
    READ_COLUMN,
    TO_COLUMN,
    HistoryNames,
    history_shape,
)
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import ApplyOptions, ApplyResult, ReducedBatch, ReducedRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = HistoryNames()
# By key and begin the end, the value, and whether it begins with a read.
Stored = dict[tuple[Any, ...], tuple[Any, ...]]


class Read(NamedTuple):
    """A row as a snapshot read it at a commit_ts."""

    at: int
    key: int

    @property
    def value(self) -> int:
        """One key has one value at one moment, which no event has."""
        return -self.at * 10 - self.key


def change(ts: int, key: int, old: int | None, *, delete: bool, place: tuple[int, int]) -> ChangeEvent:
    position = Position("t", place[0], place[1], 0, (ts,))
    if delete:
        return ChangeEvent(Op.DELETE, TABLE, {"id": key}, {"id": key}, None, ts, position)
    before: Row | None = None if old is None else {"id": old}
    # One key has one value at one commit_ts, however often it is sent.
    return ChangeEvent(Op.UPDATE, TABLE, {"id": key}, before, {"id": key, "v": ts * 10 + key}, ts, position)


@st.composite
def streams(draw: st.DrawFn) -> list[ChangeEvent]:
    """Changes of few keys in few commits: splits, key changes, deletes of what is not there."""
    events = []
    for at in range(draw(st.integers(1, 30))):
        ts, key = draw(st.integers(1, 20)) << 18, draw(st.integers(0, 3))
        old = draw(st.none() | st.integers(0, 3))
        place = (draw(st.integers(0, 2)), at)
        events.append(change(ts, key, old, delete=draw(st.booleans()), place=place))
    return events


READS = st.lists(st.builds(Read, st.integers(1, 20).map(lambda at: at << 18), st.integers(0, 3)), max_size=12)


def _id_in(row: Row | None) -> int:
    assert row is not None
    number = row["id"]
    assert isinstance(number, int)
    return number


def reported(events: Iterable[ChangeEvent], reads: Iterable[Read] = ()) -> Stored:
    """The history, one event at a time and by no other law than the words of the docs."""
    moments: dict[int, dict[int, Row | None]] = {}
    for event in events:
        halves = [(_id_in(event.after or event.key), event.after)]
        if event.before is not None and event.after is not None and event.before["id"] != event.after["id"]:
            halves.append((_id_in(event.before), None))
        for key, row in halves:
            assert event.commit_ts is not None
            at = moments.setdefault(key, {})
            at[event.commit_ts] = at.get(event.commit_ts) or row
    first: dict[int, int] = {}
    for read in sorted(reads, key=lambda one: one.at, reverse=True):
        if not any(ts <= read.at for ts in moments.get(read.key, ())):
            first[read.key] = read.at
    for key, ts in first.items():
        moments.setdefault(key, {})[ts] = {"v": Read(ts, key).value}
    found: Stored = {}
    for key, at in moments.items():
        last: Row | None = None
        for ts, end in zip(sorted(at), [*sorted(at)[1:], None], strict=True):
            row = at[ts]
            if row is not None:
                found[(key, ts)] = (end, row["v"], first.get(key) == ts)
            elif last is None:
                found[(key, ts)] = (ts, None, False)
            last = row
    return found


def batch_of(events: list[ChangeEvent]) -> ReducedBatch:
    versions = versions_of(events, ("id",))
    rows = [
        ReducedRow("delete" if row is None else "upsert", {"id": key}, row, commit_ts=ts)
        for (key,), at in versions.rows.items()
        for ts, row in at.items()
    ]
    upserts = sum(row.op == "upsert" for row in rows)
    return ReducedBatch(
        SHAPE,
        upserts,
        len(rows) - upserts,
        rows=rows,
        since=min((row.commit_ts or 0 for row in rows), default=None),
        how=ApplyOptions(mode="history", history=NAMES),
    )


def part_of(reads: Iterable[Read]) -> ReducedBatch:
    """A part of a snapshot: a row for each key and moment."""
    rows = [
        ReducedRow("upsert", {"id": one.key}, {"id": one.key, "v": one.value}, commit_ts=one.at)
        for one in dict.fromkeys(reads)
    ]
    how = ApplyOptions(mode="history", history=NAMES, reads=True)
    return ReducedBatch(SHAPE, len(rows), 0, rows=rows, how=how)


def batches_of(arrived: Iterable[ChangeEvent | Read]) -> list[ReducedBatch]:
    """What came at once, as a batch of its events and one of its reads."""
    whole = [*arrived]
    return [
        batch_of([one for one in whole if isinstance(one, ChangeEvent)]),
        part_of(one for one in whole if isinstance(one, Read)),
    ]


def applied(batches: Iterable[list[ChangeEvent]]) -> tuple[Stored, list[ApplyResult]]:
    return stored_after(map(batch_of, batches))


def stored_after(batches: Iterable[ReducedBatch]) -> tuple[Stored, list[ApplyResult]]:
    target = MemoryTarget()
    table = target.open_table(history_shape(SHAPE, NAMES), pipeline="shop")
    epoch = table.claim().epoch
    results = [
        table.apply(batch, Progress(TABLE, "shop", epoch, number)) for number, batch in enumerate(batches, 1)
    ]
    rows = {(row["id"], row[FROM_COLUMN]): row for row in target.rows(TABLE)}
    for row in rows.values():
        assert row["current"] is (row[TO_COLUMN] is None)
        assert row["valid_from"] == instant_of(row[FROM_COLUMN])
    return {key: (row[TO_COLUMN], row["v"], row[READ_COLUMN]) for key, row in rows.items()}, results


def cut(events: list[Any], at: list[int]) -> list[list[Any]]:
    edges = sorted({0, len(events), *(min(one, len(events)) for one in at)})
    return [events[start:end] for start, end in pairwise(edges)]


@pytest.mark.law("L2")
@given(streams(), st.randoms(), st.lists(st.integers(0, 45), max_size=5), st.integers(0, 15))
def test_any_order_any_cut_and_any_part_again_give_one_history(
    events: list[ChangeEvent], random: Any, cuts: list[int], again: int
) -> None:
    arriving = [*events, *random.choices(events, k=again)]
    random.shuffle(arriving)
    assert applied(cut(arriving, cuts))[0] == reported(events)


@given(streams(), READS, st.randoms(), st.lists(st.integers(0, 60), max_size=8), st.integers(0, 15))
def test_reads_and_events_in_any_order_give_one_history(
    events: list[ChangeEvent], reads: list[Read], random: Any, cuts: list[int], again: int
) -> None:
    both = [*events, *reads]
    arriving = [*both, *random.choices(both, k=again)]
    random.shuffle(arriving)
    batches = [batch for piece in cut(arriving, cuts) for batch in random.sample(batches_of(piece), 2)]
    stored, results = stored_after(batches)
    assert stored == reported(events, reads)
    for batch, result in zip(batches, results, strict=True):
        assert result.applied + result.stale == batch.upserts + batch.deletes


@given(streams(), READS, READS)
def test_a_part_again_and_a_later_snapshot_of_known_keys_change_nothing(
    events: list[ChangeEvent], reads: list[Read], later: list[Read]
) -> None:
    known = {one.key for one in reads} | {one.key for one in later}
    first = [*(Read(0, key) for key in known), *reads]
    stored, results = stored_after([part_of(first), *batches_of([*events, *later]), part_of(first)])
    assert stored == reported(events, first)
    assert [results[at].inserted for at in (2, 3)] == [0, 0]


@pytest.mark.parametrize("late", [False, True])
def test_a_read_is_the_version_before_the_first_event(late: bool) -> None:
    read, write = Read(2 << 18, 1), change(3 << 18, 1, None, delete=False, place=(0, 0))
    parts = [part_of([read]), batch_of([write])]
    stored = stored_after(reversed(parts) if late else parts)[0]
    value = (3 << 18) * 10 + 1
    assert stored == {(1, 2 << 18): (3 << 18, read.value, True), (1, 3 << 18): (None, value, False)}


def test_a_late_event_takes_the_place_of_a_read_and_the_delete_after_it_keeps_its_mark() -> None:
    read, gone = Read(4 << 18, 1), change(5 << 18, 1, None, delete=True, place=(0, 1))
    before = stored_after([part_of([read]), batch_of([gone])])[0]
    assert before == {(1, 4 << 18): (5 << 18, read.value, True)}
    for at in (3, 4):
        for delete in (False, True):
            late = change(at << 18, 1, None, delete=delete, place=(0, 0))
            stored = stored_after([part_of([read]), batch_of([gone]), batch_of([late])])[0]
            start = (1, at << 18)
            marks: Stored = {start: (at << 18, None, False), (1, 5 << 18): (5 << 18, None, False)}
            version: Stored = {start: (5 << 18, (at << 18) * 10 + 1, False)}
            assert stored == (marks if delete else version)


@given(streams(), st.integers(0, 30), st.integers(1, 7))
def test_a_suffix_sent_again_changes_nothing_and_is_superseded(
    events: list[ChangeEvent], start: int, size: int
) -> None:
    again = events[start:]
    pieces = [again[at : at + size] for at in range(0, len(again), size)]
    stored, results = applied([events, *pieces])
    assert stored == reported(events)
    assert [result.applied for result in results[1:]] == [0] * len(pieces)


@given(streams(), st.lists(st.integers(0, 30), max_size=4))
def test_each_event_is_counted_once(events: list[ChangeEvent], cuts: list[int]) -> None:
    pieces = cut(events, cuts)
    for piece, result in zip(pieces, applied(pieces)[1], strict=True):
        versions = versions_of(piece, ("id",))
        assert result.applied + result.stale - versions.halves + versions.superseded == len(piece)


@pytest.mark.law("L4")
def test_a_split_update_is_one_version_whether_it_is_cut_or_not() -> None:
    first = change(1 << 18, 1, None, delete=False, place=(0, 0))
    gone = change(2 << 18, 1, None, delete=True, place=(0, 1))
    once_more = change(2 << 18, 1, None, delete=False, place=(0, 2))
    expected = {
        (1, 1 << 18): (2 << 18, (1 << 18) * 10 + 1, False),
        (1, 2 << 18): (None, (2 << 18) * 10 + 1, False),
    }
    for batches in ([[first, gone, once_more]], [[first, gone], [once_more]], [[first], [once_more, gone]]):
        assert applied(batches)[0] == expected


@pytest.mark.spark
@settings(
    max_examples=8 if TEST_ALL else 3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(streams(), st.randoms(), st.integers(0, 30))
def test_spark_reduces_the_events_that_the_law_keeps(
    spark: SparkSession, events: list[ChangeEvent], random: Any, at: int
) -> None:
    random.shuffle(events)
    sent = events[at:]
    plan = DecodePlan(TargetRows(SHAPE), GivenEvents(sent, SCHEMA))
    found = reduced_in_spark(spark, plan, messages_of(sent), EventRules(versions=True))
    law = versions_of(sent, ("id",))
    assert {(r["key"]["id"], r["_commit_ts"]) for r in found.frame.collect()} == {
        (key, ts) for (key,), rows in law.rows.items() for ts in rows
    }
    counts = found.summary.counts
    assert (counts.superseded, counts.split_halves) == (law.superseded, law.halves)
