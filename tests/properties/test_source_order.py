"""Order by the source: the greatest position stays, wherever and in whatever order changes arrive."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.columns import ID
from tests.full import TEST_ALL
from tests.memory_target import MemoryTarget
from tidesink.events import ChangeEvent, Column, ColumnType, Op, Position, Row, TableId, TableSchema
from tidesink.reduce import Key, order_key, reduce
from tidesink.sinks.batch.frame_reduction import reduce_frame
from tidesink.sinks.batch.records import DELETE, UPSERT
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import ReducedBatch, ReducedRow, RowSequence
from tidesink.typemap.target_schema import shape_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = TableId("shop", "t")
SHAPE = shape_of(TableSchema(TABLE, (ID, Column("v", ColumnType("bigint")))))


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
        source, writes, partition, offset, index, _ = order
        at = RowSequence(source, bool(writes), partition, offset, index)  # type: ignore[arg-type]
        rows.append(
            ReducedRow("delete" if kept.row is None else "upsert", {"id": key}, kept.row, sequence=at)
        )
    upserts = len(reduced.upserts)
    return ReducedBatch(SHAPE, upserts, len(rows) - upserts, rows=rows, sequenced=True)


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


def _frame(spark: SparkSession, events: list[ChangeEvent]) -> Any:
    def row(event: ChangeEvent) -> tuple[Any, ...]:
        at, after, before = event.position, event.after, event.before
        old = (before["id"],) if before and after and before["id"] != after["id"] else None
        key = ((after or event.key or {})["id"],)
        return (
            "t", at.partition, at.offset, at.index, DELETE if after is None else UPSERT, event.commit_ts,
            key, old, None if after is None else (after["id"], after["v"]),
        )  # fmt: skip

    ddl = (
        "_topic string, _partition int, _offset bigint, _index int, _kind string, _commit_ts bigint, "
        f"key struct<{SHAPE.key_ddl}>, old_key struct<{SHAPE.key_ddl}>, after struct<{SHAPE.ddl}>"
    )
    nothing = {
        "_error": "string", "_reason": "string", "_zero_dates": "array<string>", "_schema_key_id": "int",
        "_schema_value_id": "int", "_fields": "array<string>", "_key": "binary", "_value": "binary",
    }  # fmt: skip
    empty = [f"cast(null as {kind}) as {name}" for name, kind in nothing.items()]
    return spark.createDataFrame([row(event) for event in events], ddl).selectExpr("*", *empty)


@pytest.mark.spark
@settings(
    max_examples=12 if TEST_ALL else 4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(histories())
def test_spark_reduces_alike(spark: SparkSession, events: list[ChangeEvent]) -> None:
    law = reduce(events, ("id",), "source")
    found = {
        (row["key"]["id"],): row for row in reduce_frame(_frame(spark, events), SHAPE, "source").collect()
    }
    assert found.keys() == law.rows.keys()
    for key, kept in law.rows.items():
        row, op = found[key], Op.DELETE if kept.row is None else Op.UPSERT
        assert (row["after"].asDict() if row["after"] else None) == kept.row
        order = order_key(kept.position, op, "source", half=kept.half)
        assert (tuple(row["_seq"]["source"]), *row["_seq"][1:]) == order[:-1]
    superseded = sum(row["_superseded"] for row in found.values())
    assert superseded == law.superseded
