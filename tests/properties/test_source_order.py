"""Order by the source: the greatest position stays, wherever and in whatever order changes arrive."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.columns import ID
from tests.memory_target import MemoryTarget
from tests.reduction_law import Key, order_key, reduce
from tidesink.events import ChangeEvent, Column, ColumnType, Op, Position, Row, TableId, TableSchema
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import ReducedBatch, ReducedRow, RowSequence
from tidesink.typemap.target_schema import shape_of

if TYPE_CHECKING:
    pass

TABLE = TableId("shop", "t")
SCHEMA = TableSchema(TABLE, (ID, Column("v", ColumnType("bigint"))))
SHAPE = shape_of(SCHEMA)


def _change(ts: int, key: int, old: int | None, *, delete: bool, place: tuple[int, int]) -> ChangeEvent:
    position = Position("t", place[0], place[1], 0, (ts,))
    if delete:
        return ChangeEvent(Op.DELETE, TABLE, {"id": key}, {"id": key}, None, ts, position)
    before: Row | None = None if old is None else {"id": old}
    return ChangeEvent(Op.UPDATE, TABLE, {"id": key}, before, {"id": key, "v": ts}, ts, position)


@st.composite
def histories(draw: st.DrawFn) -> list[ChangeEvent]:
    """Changes in the source's order, one commit each, scattered over three partitions."""
    events = []
    for ts in range(1, draw(st.integers(1, 25))):
        key, old = draw(st.integers(0, 4)), draw(st.none() | st.integers(0, 4))
        place = (draw(st.integers(0, 2)), draw(st.integers(0, 1000)) * 100 + ts)
        events.append(_change(ts, key, old, delete=draw(st.booleans()), place=place))
    return events


def held(events: list[ChangeEvent]) -> dict[Key, Row]:
    """What the source holds at its end."""
    state: dict[Key, Row] = {}
    for event in events:
        state.pop(((event.before or event.key or {})["id"],), None)
        if event.after is not None:
            state[(event.after["id"],)] = event.after
    return state


def living(target: MemoryTarget) -> dict[Key, Row]:
    rows = [row for row in target.rows(TABLE) if not row["_tidesink_deleted"]]
    return {(row["id"],): {"id": row["id"], "v": row["v"]} for row in rows}


def _batch(events: list[ChangeEvent]) -> ReducedBatch:
    reduced = reduce(events, ("id",), "source")
    rows = []
    for (key,), kept in reduced.rows.items():
        op = Op.DELETE if kept.row is None else Op.UPSERT
        order = order_key(kept.position, op, "source", half=kept.half)
        source, writes, *_ = order
        assert isinstance(source, tuple)
        partition, offset, index = kept.position.partition, kept.position.offset, kept.position.index
        at = RowSequence(source, bool(writes), partition, offset, index)
        rows.append(
            ReducedRow("delete" if kept.row is None else "upsert", {"id": key}, kept.row, sequence=at)
        )
    upserts = len(reduced.upserts)
    return ReducedBatch(SHAPE, upserts, len(rows) - upserts, rows=rows, sequenced=True)


@pytest.mark.law("L1", "L2")
@given(histories(), st.randoms(), st.lists(st.integers(0, 40), max_size=4), st.integers(0, 15))
def test_any_order_any_cut_and_any_part_again_end_in_what_the_source_holds(
    events: list[ChangeEvent], random: Any, cuts: list[int], again: int
) -> None:
    arriving = [*events, *random.choices(events, k=again)] if events else []
    random.shuffle(arriving)
    edges = sorted({0, len(arriving), *(min(cut, len(arriving)) for cut in cuts)})
    target = MemoryTarget()
    table = target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(_batch([]), Progress(TABLE, "shop", epoch, 1))
    for number, (start, end) in enumerate(pairwise(edges), 2):
        table.apply(_batch(arriving[start:end]), Progress(TABLE, "shop", epoch, number))
    assert living(target) == held(events)
