"""A replay of dead letters of a table that waits, or is to be emptied first, says so as the worker does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.columns import ID
from tests.memory_target import CAPABILITIES, MemoryTarget
from tests.unit.config.samples import CANAL_JSON, changed, right
from tests.unit.sinks.worker.bed import worker_context
from tidesink.ddl.row_changes import RowChange, RowDdl
from tidesink.errors import SchemaRefusedError, SourceError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.decode.schema_source import Renamed, SourceColumns
from tidesink.sinks.jobs.base import BatchPlan, Hold, Services
from tidesink.sinks.kafka.offsets import TopicOffsets
from tidesink.sinks.runtime.context import Failpoints, StopFlag
from tidesink.sinks.runtime.control import Pauses, SnapshotControl, change_control
from tidesink.sinks.state.progress import Progress, SnapshotProgress
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.counters import TableCounters
from tidesink.sinks.worker.open_table import OpenTable
from tidesink.sinks.worker.replay import LettersJob, ReplayTask, replay_letters
from tidesink.typemap.target_schema import shape_of

TABLE = TableId("shop", "orders")
SHAPE = shape_of(TableSchema(TABLE, (ID, Column("old", ColumnType("int")))))


class _Renamed:
    """A decoding whose DDL renamed a column that the target still has by its old name."""

    def catch_up(self, _ranges: Any, _found: Any) -> None:
        """Nothing is to be learned."""

    def reported(self) -> SourceColumns:
        return SourceColumns(TableSchema(TABLE, (ID,)), renamed={"old": Renamed("new", readable=True)})

    def columns(self) -> Any:
        return SimpleNamespace(shape=SHAPE)

    def row_ddl(self) -> tuple[RowDdl, ...]:
        return ()


class _Truncated(_Renamed):
    """A decoding whose DDL truncated the table, and left its columns as they were."""

    def reported(self) -> SourceColumns:
        return SourceColumns(TableSchema(TABLE, (ID,)))

    def read_as(self, _names: Any, _types: Any) -> None:
        """The columns have their own names."""

    def row_ddl(self) -> tuple[RowDdl, ...]:
        return (RowDdl.of(RowChange(TABLE, "truncate", ""), "TRUNCATE t", moment=5, offset=5),)


def _replay(decoding: _Renamed, **policies: str) -> None:
    table = MemoryTarget().open_table(SHAPE, pipeline="shop")
    claim = table.claim()
    found: Any = TopicOffsets("app", "id", {})
    target = SimpleNamespace(capabilities=CAPABILITIES)
    context = SimpleNamespace(target=target, stop=StopFlag(), failpoints=Failpoints(None))
    replay_letters(
        LettersJob(BatchPlan((), found), cast("Any", None), cast("Any", None)),
        Hold(table, claim.epoch, Progress(TABLE, "shop", claim.epoch, 0)),
        Services(
            cast("Any", context),
            cast("Any", decoding),
            right(changed(CANAL_JSON, **{"defaults__schema_changes": policies})).table_config(TABLE),
            cast("Any", None),
        ),
    )


@pytest.mark.parametrize(
    ("snapshot", "asked", "lenient"),
    [
        (None, SnapshotControl(), False),
        (SnapshotProgress(("id",)), SnapshotControl(), True),
        (SnapshotProgress(("id",)), SnapshotControl(rests=True), True),
        (SnapshotProgress(("id",)), SnapshotControl(cancelled=0), False),
        (SnapshotProgress(("id",), done=True), SnapshotControl(), False),
        (SnapshotProgress(("id",), done=True), SnapshotControl(5), True),
    ],
)
def test_a_replay_is_as_lenient_as_the_worker_while_a_snapshot_is_under_way(
    tmp_path: Path, snapshot: SnapshotProgress | None, asked: SnapshotControl, lenient: bool
) -> None:
    """A letter may leave out values of a row that no part has brought yet. So is the bound the worker's."""
    config, store = right(CANAL_JSON), SqlStateStore(str(tmp_path / "state.db"))
    change_control(store, config.pipeline, TABLE, lambda control: replace(control, snapshot=asked))
    target = MemoryTarget()
    table = target.open_table(SHAPE, pipeline=config.pipeline)
    context = replace(worker_context(config, store=store), target=target)
    opened = OpenTable(context, "app", TABLE, TableCounters(), Pauses(TABLE))
    opened.hold = Hold(table, 1, Progress(TABLE, config.pipeline, 1, 3, snapshot=snapshot, bound=7))
    hold = ReplayTask(context, opened)._replay_hold()
    assert (hold.loads, hold.bound) == (lenient, 7)


@pytest.mark.parametrize(("decoding", "kind"), [(_Renamed(), "rename"), (_Truncated(), "truncate")])
def test_a_change_that_waits_is_told_with_the_way_on(decoding: _Renamed, kind: str) -> None:
    with pytest.raises(
        SchemaRefusedError, match=rf"{kind}.*tidesink ddl approve TABLE` or `tidesink ddl reject TABLE`"
    ) as caught:
        _replay(decoding)
    assert caught.value.context["table"] == "shop.orders"


def test_a_table_that_is_to_be_emptied_is_left_to_the_worker() -> None:
    with pytest.raises(SourceError, match="Let the worker apply it first") as caught:
        _replay(_Truncated(), truncate="apply")
    assert caught.value.context["table"] == "shop.orders"
