"""When deletes are forgotten, counted in the source's time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.targets_bed import NAME, TABLE, shape
from tests.memory_target import MemoryTable, MemoryTarget
from tidesink.errors import TargetError
from tidesink.sinks.state.progress import PartitionProgress, Progress, TableStatus, TopicProgress
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.targets.base import Collected, ReducedBatch, ReducedRow, RowSequence
from tidesink.sinks.worker.counters import TableCounters, Tombstones, next_horizon

SECOND = 1000 << 18
SHAPE = shape(ID, NAME)


def applied(*moments: tuple[int | None, int | None]) -> Progress:
    """Progress of partitions with the second of their last change and of their watermark."""

    def ts(second: int | None) -> int | None:
        return None if second is None else second * SECOND

    at = {
        number: PartitionProgress(1, 1, ts(change), ts(watermark))
        for number, (change, watermark) in enumerate(moments)
    }
    return Progress(TABLE, "shop", 1, 1, {"t": TopicProgress("t", "id", at)})


@pytest.mark.parametrize(
    ("moments", "second"),
    [
        ([(100, None)], 90),
        ([(100, None), (50, None)], 40),
        ([(100, None), (50, 99)], 89),
        ([(100, None), (None, None)], None),
        ([(5, None)], None),
        ([], None),
    ],
)
def test_the_slowest_partition_says_how_far(
    moments: list[tuple[int | None, int | None]], second: int | None
) -> None:
    assert next_horizon(applied(*moments), "t", 10) == (None if second is None else second * SECOND)


def marked_table() -> tuple[MemoryTarget, MemoryTable]:
    target = MemoryTarget()
    table = target.open_table(SHAPE, pipeline="shop")
    rows = [
        ReducedRow("delete", {"id": second}, None, sequence=RowSequence((second * SECOND,), False, 0, 0, 0))
        for second in (50, 95)
    ]
    epoch = table.claim().epoch
    table.apply(ReducedBatch(SHAPE, 0, 2, rows=rows, sequenced=True), Progress(TABLE, "shop", epoch, 1))
    return target, table


def test_they_are_forgotten_once_in_a_while() -> None:
    target, table = marked_table()
    tombstones = Tombstones(table, 40)
    tombstones.collect_if_due(applied((100, None)), "t")
    assert tombstones.last == Collected(60 * SECOND, 1, 1, 95 * SECOND)
    assert [row["id"] for row in target.rows(TABLE)] == [95]
    tombstones.collect_if_due(applied((109, None)), "t")
    assert tombstones.horizon == 60 * SECOND
    tombstones.collect_if_due(applied((135, None)), "t")
    assert (tombstones.horizon, target.rows(TABLE)) == (95 * SECOND, [])


def test_kept_for_ever_they_are_not_forgotten_and_an_old_horizon_holds() -> None:
    target, table = marked_table()
    table.collect(60 * SECOND)
    tombstones = Tombstones(table, None)
    tombstones.collect_if_due(applied((1000, None)), "t")
    assert (tombstones.horizon, tombstones.last) == (60 * SECOND, None)
    assert [row["id"] for row in target.rows(TABLE)] == [95]


class _Refusing(MemoryTable):
    def collect(self, horizon: int) -> Collected:
        raise TargetError(f"no collection at {horizon}", table=str(TABLE))


class _Silent(_Refusing):
    answers = True

    def horizon(self) -> int | None:
        if not self.answers:
            raise TargetError("no answer", table=str(TABLE))
        return super().horizon()


def test_where_the_table_does_not_answer_either_what_was_asked_for_holds() -> None:
    target = MemoryTarget()
    target.open_table(SHAPE, pipeline="shop")
    table = _Silent(target._tables[TABLE], SHAPE, pipeline="shop", created=False)
    tombstones = Tombstones(table, 40)
    table.answers = False
    tombstones.collect_if_due(applied((100, None)), "t")
    assert (tombstones.last, tombstones.horizon) == (None, 60 * SECOND)


def test_a_collection_that_fails_stops_nothing() -> None:
    target = MemoryTarget()
    target.open_table(SHAPE, pipeline="shop")
    table = _Refusing(target._tables[TABLE], SHAPE, pipeline="shop", created=False)
    tombstones = Tombstones(table, 40)
    tombstones.collect_if_due(applied((100, None)), "t")
    assert (tombstones.last, tombstones.horizon) == (None, None)


def test_the_next_worker_tells_of_them_as_well_unless_the_table_was_made_anew(tmp_path: Path) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))
    around: Any = SimpleNamespace(store=store, config=SimpleNamespace(pipeline="shop"))
    _, table = marked_table()
    tombstones = Tombstones(table, 40)
    tombstones.collect_if_due(applied((100, None)), "t")
    reported = TableCounters().forgotten(tombstones)
    assert reported["tombstones"]["kept"] == 1
    store.save_status(TableStatus("shop", TABLE, "IDLE", details=reported))
    counters = TableCounters()
    counters.resume(around, TABLE)
    assert counters.forgotten(None) == counters.forgotten(Tombstones(table, 40)) == reported
    _, again = marked_table()
    assert counters.forgotten(Tombstones(again, 40)) == {}
    store.close()
