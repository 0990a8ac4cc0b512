"""A table's projection is made once for each plan: a batch asks for it more than once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.unit.sinks.schema_changes.ddl_bed import Bed
from tidesink.config.models import Destination
from tidesink.events import TableId
from tidesink.sinks.decode.schema_source import projected
from tidesink.typemap.projection import Projection

GOAL = TableId("all", "t")


SOURCE = TableId("s", "t")


@pytest.mark.parametrize(
    ("projection", "table", "name"),
    [
        (Projection(), GOAL, "name"),
        (Projection(rename={"name": "label"}), SOURCE, "label"),
        (Projection(rename={"name": "label"}), GOAL, "label"),
    ],
)
def test_the_plan_is_the_same_until_the_one_inside_is_another(
    projection: Projection, table: TableId, name: str
) -> None:
    bed = Bed("id BIGINT PRIMARY KEY, name VARCHAR(9)")
    decoding = projected(bed.inner, SOURCE, projection, Destination(table), cast("Any", None))
    first = decoding.columns()
    assert decoding.columns() is first
    assert decoding.columns().shape is first.shape
    bed.alter("ADD COLUMN more INT")
    second = decoding.columns()
    assert second is not first
    assert second.shape.table == table
    assert [column.name for column in second.shape.columns] == ["id", name, "more"]
