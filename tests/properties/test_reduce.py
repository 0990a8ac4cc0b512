"""The law of reduction: the greatest position of a key stays, however the stream is cut or sent again."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reduction_law import Key, order_key, reduce
from tidesink.errors import MixedPartitionsError, ProgressError, UnnamedRowError
from tidesink.events import ChangeEvent, Op, Position, Row, SequenceBy, TableId

TABLE = TableId("shop", "t")
State = dict[Key, Row]


def change(
    op: Op, key: int, *, at: int, old: int | None = None, partition: int = 0, ts: int | None = None
) -> ChangeEvent:
    row = {"id": key, "v": at}
    before = {"id": old} if old is not None else None
    position = Position("t", partition, at, 0, None if ts is None else (ts,))
    if op is Op.DELETE:
        return ChangeEvent(op, TABLE, {"id": key}, {"id": key}, None, ts, position)
    return ChangeEvent(op, TABLE, {"id": key}, before, row, ts, position)


@st.composite
def streams(draw: st.DrawFn) -> list[ChangeEvent]:
    """One partition's events: writes, deletes, and updates that change the key."""
    events = []
    for at in range(draw(st.integers(0, 30))):
        op = draw(st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE]))
        old = draw(st.none() | st.integers(0, 5)) if op is Op.UPDATE else None
        events.append(change(op, draw(st.integers(0, 5)), at=at, old=old))
    return events


def one_by_one(events: list[ChangeEvent], state: State | None = None) -> State:
    """What a database would hold: no law, only order."""
    state = dict(state or {})
    for event in events:
        if event.before is not None and event.op is not Op.DELETE:
            state.pop((event.before["id"],), None)
        key = ((event.after or event.key or {})["id"],)
        if event.op is Op.DELETE:
            state.pop(key, None)
        else:
            state[key] = event.after or {}
    return state


def applied(events: list[ChangeEvent], state: State | None = None) -> State:
    """The target after one reduced batch."""
    reduced = reduce(events, ("id",))
    kept = {key: row for key, row in (state or {}).items() if key not in reduced.deletes}
    return {**kept, **reduced.upserts}


@pytest.mark.law("L1")
@given(streams())
def test_a_batch_does_what_its_events_do_one_by_one(events: list[ChangeEvent]) -> None:
    assert applied(events) == one_by_one(events)


@pytest.mark.law("L2")
@given(streams(), st.lists(st.integers(0, 30), max_size=4))
def test_the_stream_may_be_cut_anywhere(events: list[ChangeEvent], cuts: list[int]) -> None:
    edges = sorted({0, len(events), *(min(cut, len(events)) for cut in cuts)})
    state: State = {}
    for start, end in pairwise(edges):
        state = applied(events[start:end], state)
    assert state == one_by_one(events)


@pytest.mark.law("L2")
@given(streams(), st.integers(0, 30))
def test_a_batch_read_again_changes_nothing(events: list[ChangeEvent], cut: int) -> None:
    state = applied(events[cut:], applied(events[:cut]))
    assert applied(events[cut:], state) == state


@pytest.mark.law("L2")
@given(streams(), st.integers(0, 30), st.integers(1, 7))
def test_a_suffix_sent_again_converges_once_it_is_complete(
    events: list[ChangeEvent], start: int, size: int
) -> None:
    # New offsets, the same changes: what TiCDC does after a restart, cut into batches of any size.
    again = [
        event._replace(position=event.position._replace(offset=len(events) + at))
        for at, event in enumerate(events[start:])
    ]
    state = applied(events)
    for at in range(0, len(again), size):
        state = applied(again[at : at + size], state)
    assert state == one_by_one(events)


@given(streams(), st.randoms())
def test_the_order_events_are_given_in_says_nothing(events: list[ChangeEvent], random: Random) -> None:
    shuffled = list(events)
    random.shuffle(shuffled)
    assert reduce(shuffled, ("id",)) == reduce(events, ("id",))


@given(streams())
def test_each_event_is_counted_once(events: list[ChangeEvent]) -> None:
    reduced = reduce(events, ("id",))
    assert len(events) == len(reduced.rows) - reduced.split_halves + reduced.superseded


@pytest.mark.law("L1")
def test_a_key_in_two_partitions_is_refused_with_the_way_out() -> None:
    events = [change(Op.INSERT, 1, at=5, partition=0), change(Op.DELETE, 1, at=1, partition=1)]
    with pytest.raises(MixedPartitionsError, match="index-value") as caught:
        reduce(events, ("id",))
    assert "sequence_by: source" in str(caught.value)


@pytest.mark.law("L1")
@pytest.mark.parametrize(("ts", "stays"), [((1, 2), None), ((2, 1), 1), ((1, 1), 1)])
def test_by_source_the_commit_ts_decides_and_a_delete_comes_before_its_insert(
    ts: tuple[int, int], stays: int | None
) -> None:
    sequence_by: SequenceBy = "source"
    insert = change(Op.INSERT, 1, at=1, partition=0, ts=ts[0])
    delete = change(Op.DELETE, 1, at=9, partition=1, ts=ts[1])
    kept = reduce([insert, delete], ("id",), sequence_by).upserts
    assert [row["v"] for row in kept.values()] == ([] if stays is None else [stays])


@pytest.mark.law("L1")
def test_by_source_an_event_without_position_is_refused() -> None:
    with pytest.raises(ProgressError, match="TiDB extension"):
        order_key(Position("t", 0, 1), Op.INSERT, "source")


def test_an_event_without_a_key_value_is_refused() -> None:
    with pytest.raises(UnnamedRowError, match="id"):
        reduce([change(Op.INSERT, 1, at=1)._replace(after={"v": 1}, key=None)], ("id",))
