"""A history is a function of the set of its events: in any order, cut anywhere, sent again."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.full import TEST_ALL
from tests.history_law import instant_of, versions_of
from tests.memory_target import MemoryTarget
from tests.properties.test_source_order import SCHEMA, SHAPE, TABLE
from tests.spark.decoded import GivenEvents, messages_of, reduced_in_spark
from tidesink.events import ChangeEvent, Op, Position, Row
from tidesink.sinks.batch.decoders import DecodePlan
from tidesink.sinks.batch.records import EventRules
from tidesink.sinks.batch.target_rows import TargetRows
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch, ReducedRow
from tidesink.sinks.targets.modes import (
    FROM_COLUMN,
    TO_COLUMN,
    HistoryNames,
    history_shape,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = HistoryNames()
Stored = dict[tuple[Any, ...], tuple[Any, ...]]


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


def reported(events: Iterable[ChangeEvent]) -> Stored:
    """The history, one event at a time and by no other law than the words of the docs."""
    moments: dict[int, dict[int, Row | None]] = {}
    for event in events:
        halves: list[tuple[int, Row | None]] = [((event.after or event.key or {})["id"], event.after)]
        if event.before is not None and event.after is not None and event.before["id"] != event.after["id"]:
            halves.append((event.before["id"], None))
        for key, row in halves:
            assert event.commit_ts is not None
            at = moments.setdefault(key, {})
            at[event.commit_ts] = at.get(event.commit_ts) or row
    found: Stored = {}
    for key, at in moments.items():
        last: Row | None = None
        for ts, end in zip(sorted(at), [*sorted(at)[1:], None], strict=True):
            row = at[ts]
            if row is not None:
                found[(key, ts)] = (end, row["v"])
            elif last is None:
                found[(key, ts)] = (ts, None)
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
        mode="history",
        history=NAMES,
        since=min((row.commit_ts or 0 for row in rows), default=None),
    )


def applied(batches: Iterable[list[ChangeEvent]]) -> tuple[Stored, list[ApplyResult]]:
    target = MemoryTarget()
    table = target.open_table(history_shape(SHAPE, NAMES), pipeline="shop")
    epoch = table.claim().epoch
    results = [
        table.apply(batch_of(events), Progress(TABLE, "shop", epoch, number))
        for number, events in enumerate(batches, 1)
    ]
    rows = {(row["id"], row[FROM_COLUMN]): row for row in target.rows(TABLE)}
    for row in rows.values():
        assert row["current"] is (row[TO_COLUMN] is None)
        assert row["valid_from"] == instant_of(row[FROM_COLUMN])
    return {key: (row[TO_COLUMN], row["v"]) for key, row in rows.items()}, results


def cut(events: list[ChangeEvent], at: list[int]) -> list[list[ChangeEvent]]:
    edges = sorted({0, len(events), *(min(one, len(events)) for one in at)})
    return [events[start:end] for start, end in pairwise(edges)]


@given(streams(), st.randoms(), st.lists(st.integers(0, 45), max_size=5), st.integers(0, 15))
def test_any_order_any_cut_and_any_part_again_give_one_history(
    events: list[ChangeEvent], random: Any, cuts: list[int], again: int
) -> None:
    arriving = [*events, *random.choices(events, k=again)]
    random.shuffle(arriving)
    assert applied(cut(arriving, cuts))[0] == reported(events)


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


def test_a_split_update_is_one_version_whether_it_is_cut_or_not() -> None:
    first = change(1 << 18, 1, None, delete=False, place=(0, 0))
    gone = change(2 << 18, 1, None, delete=True, place=(0, 1))
    once_more = change(2 << 18, 1, None, delete=False, place=(0, 2))
    expected = {(1, 1 << 18): (2 << 18, (1 << 18) * 10 + 1), (1, 2 << 18): (None, (2 << 18) * 10 + 1)}
    for batches in ([[first, gone, once_more]], [[first, gone], [once_more]], [[first], [once_more, gone]]):
        assert applied(batches)[0] == expected


@pytest.mark.spark
@settings(
    max_examples=8 if TEST_ALL else 3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(streams(), st.randoms(), st.integers(0, 30))
def test_spark_gives_the_same_history(
    spark: SparkSession, events: list[ChangeEvent], random: Any, at: int
) -> None:
    from tidesink.sinks.batch.source import rows_to_apply
    from tidesink.sinks.targets.lake.merge import count, difference_frame

    random.shuffle(events)
    first, second = events[:at], events[at:]
    before, (known, *results) = reported(first), applied([first, second])[1]
    plan = DecodePlan(TargetRows(SHAPE), GivenEvents(second, SCHEMA))
    found = reduced_in_spark(spark, plan, messages_of(second), EventRules(versions=True))
    law = versions_of(second, ("id",))
    assert {(r["key"]["id"], r["_commit_ts"]) for r in found.frame.collect()} == {
        (key, ts) for (key,), rows in law.rows.items() for ts in rows
    }
    assert (found.summary.superseded, found.summary.split_halves) == (law.superseded, law.halves)
    spans = [(key, ts, value[0]) for (key, ts), value in before.items()]
    stored = spark.createDataFrame(spans, f"{SHAPE.key_ddl}, {FROM_COLUMN} bigint, {TO_COLUMN} bigint")
    changes = difference_frame(rows_to_apply(found.frame), SHAPE, stored=stored).persist()
    after = dict(before)
    for row in changes.where("_op is not null").collect():
        key = (row["key"]["id"], row["key"][FROM_COLUMN])
        if row["_op"] == "forget":
            del after[key]
        elif row["_op"] == "end":
            after[key] = (row["_to"], before[key][1])
        else:
            after[key] = (row["_to"], row["after"]["v"] if row["after"] else None)
    assert after == reported(events)
    counts = count(changes)
    (expected,) = results or [known]
    assert (counts.begun, counts.ends, counts.absent, counts.stale) == (
        expected.inserted,
        expected.deleted,
        expected.absent,
        expected.stale,
    )
