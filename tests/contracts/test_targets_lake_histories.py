"""Histories in lakes are only written as files. A history that needs MERGE is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.columns import ID
from tests.contracts import test_targets_delta_files as of_delta
from tests.contracts import test_targets_iceberg_files as of_iceberg
from tests.contracts.lake_writers import with_writers
from tests.contracts.targets_bed import AMOUNT, NAME, TABLE, Bed, progress, shape, sql
from tests.contracts.test_targets_delta_partitions import made as delta_made
from tests.contracts.test_targets_history import NAMES, SHAPE, Event, batch_of, did, held, versions
from tests.contracts.test_targets_iceberg_partitions import made as iceberg_made
from tests.full import FULL
from tidesink.errors import ConfigError, SchemaRefusedError, TargetError
from tidesink.events import Column, ColumnType
from tidesink.sinks.laws.modes import FROM_COLUMN, TO_COLUMN, history_shape
from tidesink.sinks.targets.delta.table import DeltaTarget
from tidesink.sinks.targets.iceberg.table import IcebergTarget
from tidesink.sinks.targets.lake.batches import FileLimits
from tidesink.sinks.targets.lake.storage import StorageError

# ruff: noqa: S608
pytestmark = pytest.mark.spark

Change = Callable[[Bed, str], object]


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest) -> Bed:
    """Both lakes in turn."""
    found: Bed = request.getfixturevalue(request.param)
    return found


def location(lake: Bed) -> str:
    if isinstance(lake.target, IcebergTarget):
        return lake.target.location_of(TABLE)
    assert isinstance(lake.target, DeltaTarget)
    return f"delta.`{lake.target.path_of(TABLE)}`"


def copied(lake: Bed, where: str, *, begin: int) -> None:
    """Write the versions again, as another program does, with another beginning and no end."""
    names = [field.name for field in lake.session.table(where).schema.fields]
    values = {FROM_COLUMN: f"{begin}L", TO_COLUMN: "NULL"}
    chosen = ", ".join(values.get(name, f"`{name}`") for name in names)
    sql(lake, f"INSERT INTO {where} SELECT {chosen} FROM {where}")


def as_orc(lake: Bed, where: str) -> None:
    sql(lake, f"ALTER TABLE {where} SET TBLPROPERTIES ('write.format.default' = 'orc')")
    copied(lake, where, begin=1)
    sql(lake, f"ALTER TABLE {where} UNSET TBLPROPERTIES ('write.format.default')")


def case(lake: str, what: str, change: Change, says: str, *, quick: bool = False) -> Any:
    return pytest.param(lake, change, says, id=f"{lake}, {what}", marks=() if quick else FULL)


def cases(lake: str, found: dict[str, tuple[Change, str]], quick: str, left_out: set[str]) -> list[Any]:
    return [case(lake, what, *found[what], quick=what == quick) for what in found if what not in left_out]


# Reasons that the worker finds when it opens the table. Another column is allowed, see below.
OPENED: Final = [
    *cases("delta", of_delta.UNFIT, "vectors", {"another column"}),
    *cases(
        "iceberg",
        of_iceberg.UNFIT,
        "copy-on-write",
        {"another column", "place of a file", "format of files"},
    ),
]


@pytest.mark.parametrize(("lake", "change", "says"), OPENED, indirect=["lake"])
def test_a_history_that_files_cannot_hold_is_refused(lake: Bed, change: Change, says: str) -> None:
    """A worker refuses its next batch, and a new worker refuses to open the table."""
    table, epoch = held(lake)
    table.apply(batch_of(lake, [Event(10, 1, "a")]), progress(epoch, 1))
    change(lake, location(lake))
    # A later attempt may look up the settings.
    kind = StorageError if "looked up" in says else TargetError
    for use in (
        lambda: table.apply(batch_of(lake, [Event(20, 1, "b")]), progress(epoch, 2)),
        lambda: lake.reopen().open_table(history_shape(SHAPE, NAMES), pipeline="shop"),
    ):
        with pytest.raises(kind, match=says) as caught:
            use()
        assert kind is StorageError or "another `mode` or target" in caught.value.message
    assert table.committed() == progress(epoch, 1)


FILES: Final = [
    case("iceberg", "format of files", as_orc, "in format orc", quick=True),
    case("iceberg", "place of a file", of_iceberg.elsewhere, "s3://bucket/old.parquet"),
    case(
        "delta",
        "overlapping versions",
        lambda lake, where: copied(lake, where, begin=15 * (1000 << 18)),
        "versions of one key that overlap",
        quick=True,
    ),
]


@pytest.mark.parametrize(("lake", "change", "says"), FILES, indirect=["lake"])
def test_a_batch_that_meets_what_files_cannot_replace_is_refused(
    lake: Bed, change: Change, says: str
) -> None:
    table, epoch = held(lake)
    table.apply(batch_of(lake, [Event(10, 1, "a")]), progress(epoch, 1))
    change(lake, location(lake))
    with pytest.raises(TargetError, match=says):
        table.apply(batch_of(lake, [Event(20, 1, "b")]), progress(epoch, 2))
    assert table.committed() == progress(epoch, 1)


def test_a_batch_that_is_too_large_names_the_setting(lake: Bed) -> None:
    table, epoch = held(lake)
    batch = replace(batch_of(lake, [Event(10, 1, "a")]), upserts=2_000_001)
    with pytest.raises(TargetError, match=r"more than 2,000,000 keys.*smaller batch\.max-records"):
        table.apply(batch, progress(epoch, 1))


@FULL
def test_rows_of_very_many_partitions_are_refused(lake: Bed) -> None:
    make = delta_made if isinstance(lake.target, DeltaTarget) else iceberg_made
    make(lake, history_shape(SHAPE, NAMES), "id")
    table, epoch = held(lake)
    with pytest.raises(TargetError, match="more than 1,000 partitions"):
        table.apply(batch_of(lake, [Event(10, at, "a") for at in range(1_001)]), progress(epoch, 1))


def test_a_batch_of_python_rows_is_refused(lake: Bed) -> None:
    table, epoch = held(lake)
    batch = replace(batch_of(lake, [Event(10, 1, "a")]), make_frame=None, payloads=None)
    with pytest.raises(TargetError, match="no payloads"):
        table.apply(batch, progress(epoch, 1))


UNFIT_PROPERTIES: Final = {"delta": "delta.enableDeletionVectors", "iceberg": "format-version"}


def test_a_new_history_with_unfit_properties_is_not_created(lake: Bed) -> None:
    name, value = UNFIT_PROPERTIES[lake.name], "1" if lake.name == "iceberg" else "false"
    if isinstance(lake.target, DeltaTarget):
        target: Any = replace(lake.target, properties={name: value})
    else:
        assert isinstance(lake.target, IcebergTarget)
        target = replace(lake.target, table_properties={name: value})
    with pytest.raises(ConfigError, match=name):
        target.open_table(history_shape(SHAPE, NAMES), pipeline="shop")
    table, epoch = held(lake)
    table.apply(batch_of(lake, [Event(10, 1, "a")]), progress(epoch, 1))
    # An existing table is judged by its own properties.
    target.open_table(history_shape(SHAPE, NAMES), pipeline="shop").claim()


def test_a_history_with_a_float_in_its_key_is_not_created(lake: Bed) -> None:
    by_float = shape(Column("at", ColumnType("double"), nullable=False, handle=True, primary_key=True), NAME)
    with pytest.raises(SchemaRefusedError, match="the key column at is double"):
        lake.target.open_table(history_shape(by_float, NAMES), pipeline="shop")


@pytest.mark.parametrize("small_batch", [10_000, -1])
def test_a_column_that_only_the_table_has_stays_in_its_versions(lake: Bed, small_batch: int) -> None:
    """The source dropped it: stored versions keep its values, and new versions have NULL."""
    lake = with_writers(lake, lambda writer: replace(writer, limits=FileLimits(small_batch=small_batch)))
    table, epoch = held(lake)
    wide = shape(ID, NAME, AMOUNT, Column("note", ColumnType("varchar", length=9)))
    table.evolve(history_shape(wide, NAMES))
    table.apply(batch_of(lake, [Event(10, 1, "a"), Event(10, 2, "x")], wide, note="kept"), progress(epoch, 1))
    table.apply(batch_of(lake, [Event(20, 1, "b"), Event(20, 2)]), progress(epoch, 2))
    assert versions(lake) == [(1, 10, 20, "a"), (1, 20, None, "b"), (2, 10, 20, "x")]
    assert {(row["name"], row["note"]) for row in lake.rows()} == {("a", "kept"), ("x", "kept"), ("b", None)}


def test_a_small_batch_with_many_stored_values_is_split(lake: Bed) -> None:
    limits = FileLimits(most_stored=3)
    lake = with_writers(lake, lambda writer: replace(writer, limits=limits))
    table, epoch = held(lake)
    table.apply(batch_of(lake, [Event(10, 1, "a"), Event(10, 2, "x")]), progress(epoch, 1))
    result = table.apply(batch_of(lake, [Event(20, 1, "b"), Event(20, 2)]), progress(epoch, 2))
    assert did(result) == (1, 1, 0, 0)
    assert versions(lake) == [(1, 10, 20, "a"), (1, 20, None, "b"), (2, 10, 20, "x")]


def test_more_times_of_stored_versions_than_pass_the_driver_are_refused(lake: Bed) -> None:
    limits = FileLimits(small_batch=-1, most_spans=3)
    lake = with_writers(lake, lambda writer: replace(writer, limits=limits))
    table, epoch = held(lake)
    table.apply(batch_of(lake, [Event(10, 1, "a")]), progress(epoch, 1))
    with pytest.raises(TargetError, match="MiB of stored values"):
        table.apply(batch_of(lake, [Event(20, 1, "b")]), progress(epoch, 2))


def test_integers_are_written_to_a_decimal_column_of_a_history(lake: Bed) -> None:
    """The source's column was a decimal before."""
    decimal = Column("amount", ColumnType("decimal", precision=22, scale=2))
    before = shape(ID, NAME, decimal)
    lake.target.open_table(history_shape(before, NAMES), pipeline="shop").claim()
    table, epoch = held(lake)
    table.apply(batch_of(lake, [Event(10, 1, "a")]), progress(epoch, 1))
    assert [(row["name"], row["amount"]) for row in lake.rows()] == [("a", 10)]
