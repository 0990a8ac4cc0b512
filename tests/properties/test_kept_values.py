"""Values a source leaves out since they did not change: the law of reduction, and Spark equal to it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reduction_law import Key, Reduced, reduce
from tidesink.events import UNAVAILABLE, ChangeEvent, Column, ColumnType, Op, Position, TableId, TableSchema
from tidesink.typemap.target_schema import TargetSchema, shape_of

if TYPE_CHECKING:
    pass

TABLE = TableId("public", "t")
COLUMNS = ("a", "b c")
SENT = "always sent"
SHAPE: TargetSchema = shape_of(
    TableSchema(
        TABLE,
        (
            Column("id", ColumnType("bigint"), nullable=False, handle=True, primary_key=True),
            *(Column(name, ColumnType("text")) for name in COLUMNS),
            Column(SENT, ColumnType("bigint")),
        ),
    )
)
State = dict[Key, dict[str, Any]]


@st.composite
def streams(draw: st.DrawFn, *, lossless: bool) -> list[ChangeEvent]:
    """One partition's events. ``lossless``: a value is left out only where the row is there."""
    events: list[ChangeEvent] = []
    living: set[int] = set()
    for at in range(draw(st.integers(1, 14))):
        key = draw(st.integers(0, 2))
        delete = draw(st.booleans()) and draw(st.booleans())
        may_leave = key in living or not lossless
        left = draw(st.lists(st.sampled_from(COLUMNS), unique=True)) if may_leave and not delete else []
        (living.discard if delete else living.add)(key)
        events.append(_event(at, key, delete=delete, left=tuple(left)))
    return events


def _event(at: int, key: int, *, delete: bool, left: tuple[str, ...]) -> ChangeEvent:
    position = Position("t", 0, at)
    if delete:
        return ChangeEvent(Op.DELETE, TABLE, {"id": key}, {"id": key}, None, None, position)
    value = None if at % 3 == 0 else f"{at}"
    row = {"id": key, **{name: value for name in COLUMNS if name not in left}, SENT: at}
    extension = {UNAVAILABLE: left} if left else None
    return ChangeEvent(Op.UPDATE, TABLE, {"id": key}, None, row, None, position, extension=extension)


def one_by_one(events: list[ChangeEvent]) -> State:
    """What the source holds."""
    state: State = {}
    for event in events:
        key = ((event.after or event.key or {})["id"],)
        if event.after is None:
            state.pop(key, None)
        else:
            state[key] = {**state.get(key, {}), **event.after}
    return state


def applied(reduced: Reduced, state: State) -> State:
    """What the target holds after a batch."""
    after = {key: row for key, row in state.items() if key not in reduced.deletes}
    for key, kept in reduced.rows.items():
        if kept.row is not None:
            assert not kept.after_delete
            after[key] = {**{name: state[key][name] for name in kept.kept}, **kept.row}
    return after


@pytest.mark.law("L2")
@given(streams(lossless=True), st.lists(st.integers(0, 14), max_size=4))
def test_the_stream_may_be_cut_anywhere(events: list[ChangeEvent], cuts: list[int]) -> None:
    edges = sorted({0, len(events), *(min(cut, len(events)) for cut in cuts)})
    state: State = {}
    for start, end in pairwise(edges):
        state = applied(reduce(events[start:end], ("id",)), state)
    assert state == one_by_one(events)


def test_a_row_written_after_its_delete_has_nothing_to_keep() -> None:
    events = [
        _event(1, 0, delete=False, left=()),
        _event(2, 0, delete=True, left=()),
        _event(3, 0, delete=False, left=("a",)),
        _event(4, 0, delete=False, left=("a", "b c")),
    ]
    (row,) = reduce(events, ("id",)).rows.values()
    assert (row.kept, row.after_delete) == (("a",), True)
    assert row.row == {"id": 0, "b c": None, SENT: 4}
    (unknown,) = reduce(events[3:], ("id",)).rows.values()
    assert (unknown.kept, unknown.after_delete) == (("a", "b c"), False)
