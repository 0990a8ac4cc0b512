"""Another program packs a lake's table while a batch is written as files: the batch is located again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.contracts.conftest import BEDS
from tests.contracts.iceberg_disturbed import compact
from tests.contracts.targets_bed import Bed, progress, row, shape, sql
from tests.full import FULL
from tidesink.sinks.targets.base import ApplyHooks
from tidesink.sinks.targets.delta.table import DeltaTable
from tidesink.sinks.targets.iceberg.table import IcebergTable

pytestmark = pytest.mark.spark
SHAPE: Final = shape()
PACK: Final[dict[str, Callable[[Bed, str], object]]] = {
    "delta": lambda bed, location: sql(bed, f"OPTIMIZE {location}"),
    "iceberg": lambda bed, _location: compact(bed),
}


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize(
    "step",
    [pytest.param("on_written", marks=FULL), "on_located", pytest.param("on_staged", marks=FULL)],
)
@pytest.mark.parametrize(
    "mode", [{}, pytest.param({"delete_mode": "soft"}, marks=FULL)], ids=["hard", "soft"]
)
def test_packed_between_a_step_and_the_commit(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, step: str, mode: dict[str, Any]
) -> None:
    """Under soft deletes the rows are written last, with stored values of the files that are gone."""
    bed = BEDS[kind](request, tmp_path / "lake")
    table = bed.target.open_table(SHAPE, pipeline="shop", **mode)
    assert isinstance(table, DeltaTable | IcebergTable)
    epoch = table.claim().epoch
    for number, rows in enumerate(([row(1), row(2), row(3)], [row(2, "b"), row(4)]), 1):
        table.apply(bed.batch(SHAPE, rows, **mode), progress(epoch, number))
    reached = []

    def pack() -> None:
        reached.append(step)
        if len(reached) == 1:
            PACK[kind](bed, table.location)

    batch = bed.batch(SHAPE, [row(1, "c"), row(5)], [{"id": 3}], **mode)
    hook: dict[str, Any] = {step: pack}
    result = table.apply(replace(batch, hooks=ApplyHooks(**hook)), progress(epoch, 3))
    assert len(reached) == 2
    assert (result.inserted, result.updated, result.deleted) == (1, 1, 1)
    found = {one["id"]: one["name"] for one in bed.rows() if not one.get("_tidesink_deleted")}
    assert found == {1: "c", 2: "b", 4: row(4)["name"], 5: row(5)["name"]}
    assert len(bed.rows()) == 4 + bool(mode)
