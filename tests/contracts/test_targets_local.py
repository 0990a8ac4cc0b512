"""Targets get rows of tasks that ran in the worker's process: packed rows, or rows that the tasks staged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.conftest import MARKS, opened_bed
from tests.contracts.targets_bed import Bed, packed_rows, progress, row, shape
from tidesink.errors import ValueNotStoredError
from tidesink.sinks.jobs.local import LocalRows
from tidesink.sinks.spark.attempts import local_attempt
from tidesink.sinks.spark.payloads import unpack
from tidesink.sinks.targets.base import ReducedBatch, ReducedRow, StagedPart, StagingTable

SHAPE = shape()
FIRST = ([row(1, "a", 5), row(2, "b")], [{"id": 3}])


def _packed(upserts: Sequence[dict[str, Any]], deletes: Sequence[dict[str, Any]], *kept: str) -> LocalRows:
    rows = [ReducedRow("upsert", {"id": one["id"]}, one, kept, bool(kept)) for one in upserts]
    rows += [ReducedRow("delete", key, None) for key in deletes]
    return LocalRows(packed_rows(SHAPE, rows).to_batches())


def _batch(
    bed: Bed, upserts: Sequence[dict[str, Any]], deletes: Sequence[dict[str, Any]] = (), *kept: str
) -> ReducedBatch:
    batch = bed.batch(SHAPE, upserts, deletes, kept=kept, after_delete=bool(kept))
    return replace(batch, make_frame=None, payloads=_packed(upserts, deletes, *kept))


_PACKED = ("postgres", "mysql", "kafka", "delta", "iceberg")


@pytest.fixture(params=[pytest.param(name, marks=MARKS[name]) for name in _PACKED])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    """Targets that take packed rows."""
    return opened_bed(request, request.param, tmp_path)


def test_packed_rows_are_applied(local: Bed) -> None:
    table = local.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    assert local.did(table.apply(_batch(local, *FIRST), progress(epoch, 1)), (2, 0, 0, 1))
    second = _batch(local, [row(1, "c")])
    assert local.did(table.apply(second, progress(epoch, 2)), (0, 1, 0, 0))
    assert local.rows() == [row(1, "c"), row(2, "b")]


def test_a_value_that_is_neither_sent_nor_stored_is_named(local: Bed) -> None:
    table = local.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    with pytest.raises(ValueNotStoredError, match="name"):
        table.apply(_batch(local, [row(1, None, 5)], (), "name"), progress(epoch, 1))
    assert local.rows() == []


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in ("postgres", "mysql")])
def test_rows_of_two_tries_are_told_apart(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    bed = opened_bed(request, name, tmp_path)
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    assert isinstance(table, StagingTable)
    sink = table.row_sink(_batch(bed, *FIRST).row_format)
    assert sink is not None
    tries = list[StagedPart]()
    for _ in range(2):
        with local_attempt():
            tries.append(sink([rows for rows in unpack(_packed(*FIRST).batches) if rows.num_rows]))
    assert [(part.rows, part.failure) for part in tries] == [(3, None)] * 2
    assert len({part.attempt for part in tries}) == 2
    # Spark counts its attempts from 0.
    assert all(part.attempt < 0 for part in tries)
    staged = replace(_batch(bed, *FIRST), payloads=None, staged=(tries[1],))
    assert bed.did(table.apply(staged, progress(epoch, 1)), (2, 0, 0, 1))
    assert bed.rows() == [row(1, "a", 5), row(2, "b")]
