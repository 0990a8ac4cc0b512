"""Targets get rows of tasks that ran in the worker's process: packed rows, or rows that the tasks staged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.conftest import MARKS, opened_bed
from tests.contracts.sql_beds import sql_bed, target_of
from tests.contracts.targets_bed import TABLE, Bed, packed_rows, progress, row, shape
from tidesink.errors import StaleProgressError, ValueNotStoredError
from tidesink.sinks.jobs.local import LocalRows
from tidesink.sinks.spark.attempts import local_attempt
from tidesink.sinks.spark.payloads import unpack
from tidesink.sinks.targets.base import (
    Claim,
    LoadingTable,
    ReducedBatch,
    ReducedRow,
    StagedPart,
    StagingTable,
)
from tidesink.sinks.targets.sql.dialect import Connections, TemporaryRefusedError, TemporaryStaging

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


class _Watched:
    """Postgres's temporary staging tables. ``loaded`` runs after each load, ahead of the ledger's lock."""

    def __init__(self, temporary: TemporaryStaging, loaded: Callable[[], object]) -> None:
        self.name = temporary.name
        self.is_allowed = temporary.is_allowed
        self._load, self._loaded = temporary.load, loaded

    def load(
        self, cursor: Any, columns: Mapping[str, str], statement: str, lines: Iterable[memoryview]
    ) -> None:
        self._load(cursor, columns, statement, lines)
        self._loaded()


def _watched(on_postgres: Bed, request: pytest.FixtureRequest, loaded: Callable[[], object]) -> Bed:
    server = target_of(on_postgres).connections
    assert server.dialect.temporary is not None
    dialect = replace(server.dialect, temporary=_Watched(server.dialect.temporary, loaded))
    return sql_bed(request, Connections(dialect, server.endpoint))


@pytest.fixture(params=[pytest.param("postgres", marks=MARKS["postgres"])])
def on_postgres(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    return opened_bed(request, request.param, tmp_path)


def test_the_transaction_of_a_commit_loads_the_rows_without_a_staging_table_that_stays(
    on_postgres: Bed, request: pytest.FixtureRequest
) -> None:
    found = list[list[str]]()

    def look() -> None:
        connections = target_of(bed).connections
        with connections.transaction("shop.orders", writes=False) as cursor:
            found.append(connections.dialect.staging.tables(cursor, target_of(bed).place_of(TABLE)))

    bed = _watched(on_postgres, request, look)
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    assert isinstance(table, LoadingTable)
    assert table.loads_here()
    table.apply(_batch(bed, *FIRST), progress(epoch, 1))
    assert found == [[]]


def test_a_batch_of_another_epoch_is_refused(on_postgres: Bed) -> None:
    table = on_postgres.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    epoch = table.claim().epoch
    for other in (epoch - 1, epoch + 1):
        with pytest.raises(StaleProgressError, match=f"epoch {epoch}"):
            table.apply(_batch(on_postgres, *FIRST), progress(other, 1))
    assert on_postgres.rows() == []


@pytest.mark.law("L10")
def test_a_worker_that_freezes_while_it_loads_rows_keeps_no_other_out(
    on_postgres: Bed, request: pytest.FixtureRequest
) -> None:
    other = on_postgres.target.open_table(SHAPE, pipeline="shop")
    claims = list[Claim]()
    bed = _watched(on_postgres, request, lambda: claims.append(other.claim()))
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    with pytest.raises(StaleProgressError):
        table.apply(_batch(bed, *FIRST), progress(epoch, 1))
    assert claims == [Claim(epoch + 1, None)]
    assert on_postgres.rows() == []


def test_a_database_that_refuses_temporary_tables_gets_the_batch_through_a_staging_table(
    on_postgres: Bed, request: pytest.FixtureRequest
) -> None:
    def refuse() -> None:
        raise TemporaryRefusedError("no temporary tables")

    bed = _watched(on_postgres, request, refuse)
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    with pytest.raises(TemporaryRefusedError):
        table.apply(_batch(bed, *FIRST), progress(epoch, 1))
    assert isinstance(table, LoadingTable)
    assert not table.loads_here()
    assert bed.did(table.apply(_batch(bed, *FIRST), progress(epoch, 1)), (2, 0, 0, 1))
    assert bed.rows() == [row(1, "a", 5), row(2, "b")]
