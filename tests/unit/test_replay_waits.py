"""A replay of dead letters of a table that waits for a rename says so, as the worker does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.columns import ID
from tests.memory_target import CAPABILITIES, MemoryTarget
from tests.unit.config_samples import CANAL_JSON, right
from tidesink.errors import SchemaRefusedError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.batch.context import StopFlag
from tidesink.sinks.batch.run import BatchPlan, Hold
from tidesink.sinks.batch.schema_source import Renamed, SourceColumns
from tidesink.sinks.kafka.offsets import TopicOffsets
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.worker.replay import ReplayBatch
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


def test_a_rename_that_waits_is_told_with_the_way_on() -> None:
    table = MemoryTarget().open_table(SHAPE, pipeline="shop")
    claim = table.claim()
    found: Any = TopicOffsets("app", "id", {})
    batch = ReplayBatch(
        cast("Any", SimpleNamespace(target=SimpleNamespace(capabilities=CAPABILITIES), stop=StopFlag())),
        Hold(table, claim.epoch, Progress(TABLE, "shop", claim.epoch, 0)),
        cast("Any", _Renamed()),
        settings=right(CANAL_JSON).table_config(TABLE),
        session=cast("Any", None),
        plan=BatchPlan((), found),
        reader=cast("Any", None),
    )
    with pytest.raises(SchemaRefusedError, match=r"rename.*tidesink resume --accept") as caught:
        batch.replay()
    assert caught.value.context["table"] == "shop.orders"
