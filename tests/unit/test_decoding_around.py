"""A plan around another one is made once for each plan inside: a batch asks for it more than once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.unit.told_bed import Bed
from tidesink.config.models import Destination
from tidesink.events import TableId
from tidesink.sinks.batch.projection import LaidOutDecoding, routed
from tidesink.sinks.batch.schema_source import Decoding
from tidesink.typemap.projection import Layout

GOAL = TableId("all", "t")


def _routed(inner: Decoding) -> Decoding:
    return routed(inner, TableId("s", "t"), Destination(GOAL))


def _laid_out(inner: Decoding) -> Decoding:
    return LaidOutDecoding(inner, Layout(rename={"name": "label"}), cast("Any", None))


@pytest.mark.parametrize(
    ("around", "table", "name"), [(_routed, GOAL, "name"), (_laid_out, TableId("s", "t"), "label")]
)
def test_the_plan_is_the_same_until_the_one_inside_is_another(
    around: Callable[[Decoding], Decoding], table: TableId, name: str
) -> None:
    bed = Bed("id BIGINT PRIMARY KEY, name VARCHAR(9)")
    decoding = around(bed.inner)
    first = decoding.columns()
    assert decoding.columns() is first
    assert decoding.columns().shape is first.shape
    bed.alter("ADD COLUMN more INT")
    second = decoding.columns()
    assert second is not first
    assert second.shape.table == table
    assert [column.name for column in second.shape.columns] == ["id", name, "more"]
