"""Tags keep the snapshots that cuts of Iceberg tables name, whoever expires snapshots."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Final

import pytest

from tests.contracts.iceberg_disturbed import SHAPE, expire, loaded, opened, state_of
from tests.contracts.targets_bed import Bed, progress, row, sql
from tidesink.errors import TargetError, TransientTargetError
from tidesink.sinks.targets.cuts import CutTable
from tidesink.sinks.targets.iceberg.jvm import JvmTable, TableState
from tidesink.sinks.targets.iceberg.table import IcebergTable, IcebergTarget
from tidesink.sinks.targets.iceberg.tags import CutTags
from tidesink.sinks.targets.lake.cuts import frame_of

# ruff: noqa: S608
pytestmark = pytest.mark.spark
FIRST, SECOND, THIRD = (seconds * 1000 << 18 for seconds in (10, 20, 30))
WEEK: Final = 7 * 86_400.0


def grow(bed: Bed, table: IcebergTable, number: int) -> None:
    table.apply(bed.batch(SHAPE, [row(number, f"batch {number}")]), progress(1, number))


def cut(table: IcebergTable, commit_ts: int, number: int, *, keep: float = WEEK) -> int:
    """Name what readers see, as a worker does it; the snapshot."""
    found = table.version_of(progress(1, number))
    table.keep_version(found.version, commit_ts, keep=keep)
    return found.version


def tags(bed: Bed, table: IcebergTable) -> dict[str, int]:
    found = sql(bed, f"SELECT name, snapshot_id FROM {table.location}.refs WHERE type = 'TAG'")
    return {one["name"]: one["snapshot_id"] for one in sorted(found, key=lambda one: one["name"])}


def at_tag(bed: Bed, table: IcebergTable, name: str) -> list[Any]:
    found = sql(bed, f"SELECT id FROM {table.location} VERSION AS OF '{name}' ORDER BY id")
    return [one["id"] for one in found]


def _head(bed: Bed, table: IcebergTable) -> int:
    head = state_of(bed, table).head
    assert head is not None
    return int(head)


def test_what_a_cut_names_outlives_the_expiry_of_others(iceberg: Bed) -> None:
    """By its tag and by the table of cuts. A snapshot without a tag does not."""
    table = loaded(iceberg)
    first = cut(table, FIRST, 2)
    assert isinstance(iceberg.target, IcebergTarget)
    log = iceberg.target.cut_log("shop")
    named = [CutTable(SHAPE.source, table.location, first)]
    log.publish(FIRST, named, time=datetime.fromtimestamp(10, timezone.utc), without=(), keep=WEEK)
    grow(iceberg, table, 3)
    unnamed = _head(iceberg, table)
    grow(iceberg, table, 4)
    second = cut(table, SECOND, 4)
    grow(iceberg, table, 5)
    expire(iceberg)
    names = [f"tidesink_cut_shop_{one}" for one in (FIRST, SECOND)]
    assert tags(iceberg, table) == dict(zip(names, (first, second), strict=True))
    assert [at_tag(iceberg, table, name) for name in names] == [[1, 2, 3], [1, 2, 3, 4]]
    (one,) = log.cuts()[0].tables
    assert log.tag_of(one) == names[0]
    assert sorted(row["id"] for row in frame_of(log, one).collect()) == [1, 2, 3]
    assert state_of(iceberg, table).snapshot(unnamed) is None
    manage = state_of(iceberg, table).table.manageSnapshots()
    manage.removeTag(names[0]).commit()
    assert log.tag_of(one) is None
    expire(iceberg)
    with pytest.raises(TargetError, match="can no longer be read"):
        frame_of(log, one)
    # The worker goes on.
    grow(iceberg, table, 6)
    assert [one["id"] for one in iceberg.rows()] == [1, 2, 3, 4, 5, 6]


def test_an_idle_table_costs_no_commit(iceberg: Bed) -> None:
    table = loaded(iceberg)
    snapshot = cut(table, FIRST, 2)
    before = state_of(iceberg, table).metadata.metadataFileLocation()
    assert cut(table, SECOND, 2) == snapshot
    # Nor for a worker that did not write the tag.
    opened(iceberg).keep_version(snapshot, THIRD, keep=WEEK)
    assert state_of(iceberg, table).metadata.metadataFileLocation() == before


def test_a_tag_goes_with_the_last_cut_that_names_it(iceberg: Bed) -> None:
    """However long ago its snapshot was written; and the newest stays, whatever the table says of tags."""
    table = loaded(iceberg)
    cut(table, FIRST, 2)
    sql(iceberg, f"ALTER TABLE {table.location} SET TBLPROPERTIES ('history.expire.max-ref-age-ms' = '1')")
    time.sleep(3)
    expire(iceberg)
    grow(iceberg, table, 3)
    # A reader has an hour more: five seconds are left of it.
    cut(table, SECOND, 3, keep=-3595)
    expire(iceberg)
    assert [*tags(iceberg, table)] == [f"tidesink_cut_shop_{one}" for one in (FIRST, SECOND)]
    time.sleep(6)
    expire(iceberg)
    assert [*tags(iceberg, table)] == [f"tidesink_cut_shop_{SECOND}"]


def test_one_instant_may_have_two_snapshots(iceberg: Bed) -> None:
    """A worker died before it published, and the next one names another: both are kept, and each ends."""
    table = loaded(iceberg)
    first = cut(table, FIRST, 2)
    grow(iceberg, table, 3)
    second = cut(table, FIRST, 3)
    name = f"tidesink_cut_shop_{FIRST}"
    assert tags(iceberg, table) == {name: first, f"{name}.{second}": second}
    expire(iceberg)
    grow(iceberg, table, 4)
    cut(table, SECOND, 4, keep=-3600)
    time.sleep(0.1)
    expire(iceberg)
    # The first was given its end when the second one was tagged.
    assert [*tags(iceberg, table)] == [name, f"tidesink_cut_shop_{SECOND}"]


def test_pipelines_that_share_a_table_have_tags_of_their_own(iceberg: Bed) -> None:
    table = loaded(iceberg)
    first = cut(table, FIRST, 2)
    grow(iceberg, table, 3)
    second = _head(iceberg, table)
    inner = JvmTable(iceberg.session, table.location)
    CutTags(inner, "shop_1", SHAPE.source).keep(second, FIRST, seconds=-3600)
    expire(iceberg)
    names = [f"tidesink_cut_{pipeline}_{FIRST}" for pipeline in ("shop", "shop_1")]
    assert tags(iceberg, table) == dict(zip(names, (first, second), strict=True))


class _Crowded(JvmTable):
    """A table to which another commits first, so many times."""

    def __init__(self, bed: Bed, location: str, times: int) -> None:
        super().__init__(bed.session, location)
        self._bed, self._left = bed, times

    def commit(self, base: TableState, change: Callable[[Any], object]) -> None:
        if self._left:
            self._left -= 1
            properties = f"('others' = '{self._left}')"
            sql(self._bed, f"ALTER TABLE {self.location} SET TBLPROPERTIES {properties}")
        super().commit(base, change)


@pytest.mark.parametrize("times", [4, 5])
def test_a_commit_of_another_is_waited_for(iceberg: Bed, times: int) -> None:
    table = loaded(iceberg)
    crowded = CutTags(_Crowded(iceberg, table.location, times), "shop", SHAPE.source)
    head = _head(iceberg, table)
    if times < 5:
        crowded.keep(head, FIRST, seconds=WEEK)
        assert tags(iceberg, table) == {f"tidesink_cut_shop_{FIRST}": head}
    else:
        with pytest.raises(TransientTargetError, match="Other writers keep committing"):
            crowded.keep(head, FIRST, seconds=WEEK)
