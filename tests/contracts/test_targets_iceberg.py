"""What is Iceberg's own: commits of others between and during batches, crashes, claims that meet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.iceberg_disturbed import LOADED, SHAPE, compact, expire, loaded, opened, state_of
from tests.contracts.interrupted import CutOff, HeldMerge
from tests.contracts.targets_bed import AMOUNT, NAME, TABLE, Bed, frame_of, progress, row, shape, sql
from tests.full import FULL, quick_on
from tidesink.errors import CommitUnknownError, StaleProgressError, TargetError, TransientTargetError
from tidesink.events import Column, ColumnType
from tidesink.sinks.targets.base import ReducedBatch, ReducedRow
from tidesink.sinks.targets.iceberg import schema as iceberg_schema
from tidesink.sinks.targets.iceberg.jvm import JvmTable, TableState
from tidesink.sinks.targets.iceberg.ledger import Holder, IcebergLedger
from tidesink.sinks.targets.iceberg.table import IcebergTable, IcebergTarget
from tidesink.sinks.targets.sharing import quote_text

# ruff: noqa: S608
pytestmark = pytest.mark.spark


def test_progress_survives_compaction_expiry_and_others_properties(iceberg: Bed) -> None:
    table = loaded(iceberg)
    compact(iceberg)
    expire(iceberg)
    sql(iceberg, f"ALTER TABLE {table.location} SET TBLPROPERTIES ('origin' = 'somebody')")
    assert opened(iceberg).committed() == progress(1, 2)
    again = table.apply(iceberg.batch(SHAPE, [row(2, "b"), row(3)]), progress(1, 2))
    assert (again.inserted, again.updated) == (1, 1)
    table.apply(iceberg.batch(SHAPE, [row(4)], [{"id": 1}]), progress(1, 3))
    assert iceberg.rows() == [*LOADED[1:], row(4)]
    assert opened(iceberg).claim().progress == progress(2, 3)


def test_a_users_properties_replace_those_of_new_tables(iceberg: Bed) -> None:
    assert isinstance(iceberg.target, IcebergTarget)
    given = {"write.metadata.previous-versions-max": "7", "write.parquet.compression-codec": "snappy"}
    target = replace(iceberg.target, table_properties=given)
    table = target.open_table(SHAPE, pipeline="shop")
    assert isinstance(table, IcebergTable)
    kept = {r["key"]: r["value"] for r in sql(iceberg, f"SHOW TBLPROPERTIES {table.location}")}
    assert given.items() <= kept.items()
    assert kept["write.merge.mode"] == "merge-on-read"


@FULL
def test_what_another_program_writes_stays(iceberg: Bed) -> None:
    table = loaded(iceberg)
    sql(iceberg, f"UPDATE {table.location} SET amount = 5 WHERE id = 1")
    sql(iceberg, f"INSERT INTO {table.location} VALUES (9, 'theirs', 9)")
    sql(iceberg, f"DELETE FROM {table.location} WHERE id = 3")
    result = table.apply(iceberg.batch(SHAPE, [row(2, "c")], [{"id": 3}]), progress(1, 3))
    assert (result.updated, result.absent) == (1, 1)
    assert iceberg.rows() == [row(1, amount=5), row(2, "c"), row(9, "theirs", 9)]


@pytest.mark.parametrize(
    "disturb",
    [pytest.param(compact, id="compaction"), pytest.param(expire, id="expiry", marks=FULL)],
)
def test_upkeep_by_others_in_the_middle_of_a_merge(iceberg: Bed, tmp_path: Path, disturb: Any) -> None:
    table = loaded(iceberg)
    # One row, so that one task waits: the other core is the disturber's.
    with HeldMerge(table, iceberg.batch(SHAPE, [row(1, "c")]), progress(1, 3), gate=tmp_path) as merge:
        disturb(iceberg)
    assert merge.raised == []
    assert table.committed() == progress(1, 3)
    assert iceberg.rows() == [row(1, "c"), *LOADED[1:]]


@FULL
def test_a_stranger_in_the_middle_of_a_merge_means_once_more(iceberg: Bed, tmp_path: Path) -> None:
    table = loaded(iceberg)
    with HeldMerge(table, iceberg.batch(SHAPE, [row(1, "c")]), progress(1, 3), gate=tmp_path) as merge:
        sql(iceberg, f"UPDATE {table.location} SET amount = 5")
    assert merge.raised == []
    assert iceberg.rows() == [row(1, "c"), row(2, "b", 5), row(3, amount=5)]


# The catalog decides: a folder renames a file into its place, a database compares and sets.
@quick_on("iceberg")
@pytest.mark.parametrize("bed", ["iceberg", "iceberg_jdbc"], indirect=True)
def test_a_claim_in_the_middle_of_a_merge_wins(bed: Bed, tmp_path: Path) -> None:
    table = loaded(bed)
    with HeldMerge(table, bed.batch(SHAPE, [row(1, "zombie")]), progress(1, 3), gate=tmp_path) as zombie:
        other = opened(bed)
        assert other.claim().progress == progress(2, 2)
    assert [type(exc) for exc in zombie.raised] == [StaleProgressError]
    assert other.committed() == progress(2, 2)
    assert bed.rows() == LOADED


@pytest.mark.parametrize("before", [pytest.param(True, marks=FULL), False])
def test_a_merge_that_was_cut_off_wrote_nothing(iceberg: Bed, before: bool) -> None:
    assert isinstance(iceberg.target, IcebergTarget)
    session: Any = CutOff(iceberg.spark, before=before)
    target = IcebergTarget(session, "lake", properties=iceberg.target.properties)
    table = loaded(iceberg, target)
    session.armed = True
    batch = replace(iceberg.batch(SHAPE, [row(1, "c")], [{"id": 2}]), payloads=None)
    with pytest.raises(TransientTargetError):
        table.apply(batch, progress(1, 3))
    assert iceberg.rows() == LOADED
    assert table.committed() == progress(1, 2)
    result = table.apply(batch, progress(1, 3))
    assert (result.updated, result.deleted) == (1, 1)
    assert iceberg.rows() == [row(1, "c"), row(3)]


class CutCommits(JvmTable):
    """A table whose next commit of metadata raises as a lost connection does, before it or after."""

    cut: str | None = None

    def commit(self, base: TableState, change: Any) -> None:
        from py4j.protocol import Py4JNetworkError

        cut, self.cut = self.cut, None
        if cut != "before":
            super().commit(base, change)
        if cut:
            raise Py4JNetworkError("cut off")


def test_a_commit_that_was_cut_off_is_looked_for(iceberg: Bed) -> None:
    table = loaded(iceberg)
    assert iceberg.spark is not None
    jvm_table = CutCommits(iceberg.spark, table.location)
    ledger = IcebergLedger(TABLE, "shop", table.location, ("id",))
    holder = Holder(jvm_table, ledger, TABLE)
    claimed = holder.claim()
    state = holder.staging()
    done = table_result()
    jvm_table.cut = "after"
    entry = ledger.batch(claimed, progress(2, 3), done, snapshot=claimed.snapshot, shape=shape())
    assert holder.publish(entry, on=state.head)
    assert table.committed() == progress(2, 3)
    jvm_table.cut = "before"
    later = ledger.batch(claimed, progress(2, 4), done, snapshot=claimed.snapshot, shape=shape())
    with pytest.raises(CommitUnknownError):
        holder.publish(later, on=state.head)
    assert table.committed() == progress(2, 3)


def table_result() -> Any:
    from tidesink.sinks.targets.base import ApplyResult

    return ApplyResult(0, 0, 0, 0, "1")


WIDER = shape(ID, NAME, AMOUNT, Column("state", ColumnType("int"), default="7"))


def cut_evolution(bed: Bed, table: IcebergTable) -> None:
    """The column is there, and the worker died before old rows got the default."""
    assert bed.spark is not None
    pending = quote_text('{"state":"7"}')
    sql(bed, f"ALTER TABLE {table.location} ADD COLUMNS (state int)")
    sql(bed, f"ALTER TABLE {table.location} SET TBLPROPERTIES ('{iceberg_schema.BACKFILL}' = {pending})")


def test_a_crash_between_column_and_default_heals(iceberg: Bed) -> None:
    table = loaded(iceberg)
    cut_evolution(iceberg, table)
    assert {r["state"] for r in iceberg.rows()} == {None}
    again = iceberg.reopen().open_table(WIDER, pipeline="shop")
    epoch = again.claim().epoch
    assert {r["state"] for r in iceberg.rows()} == {7}
    assert state_of(iceberg, table).property(iceberg_schema.BACKFILL) is None
    again.apply(iceberg.batch(WIDER, [{**row(1), "state": None}]), progress(epoch, 3))
    assert [r["state"] for r in iceberg.rows()] == [None, 7, 7]


@FULL
def test_a_default_cut_off_while_it_is_given_heals(iceberg: Bed) -> None:
    assert isinstance(iceberg.target, IcebergTarget)
    session: Any = CutOff(iceberg.spark, before=False, word="UPDATE")
    table = loaded(iceberg, IcebergTarget(session, "lake", properties=iceberg.target.properties))
    session.armed = True
    with pytest.raises(TransientTargetError):
        table.evolve(WIDER)
    assert {r["state"] for r in iceberg.rows()} == {None}
    assert table.evolve(WIDER).backfilled == ("state",)
    assert {r["state"] for r in iceberg.rows()} == {7}


def test_a_row_without_a_key_never_gets_in(iceberg: Bed) -> None:
    table = loaded(iceberg)
    assert iceberg.spark is not None
    frame = frame_of(iceberg.spark, SHAPE, [ReducedRow("upsert", {"id": None}, {**row(6), "id": None})])
    with pytest.raises(TargetError, match="nothing was written"):
        table.apply(ReducedBatch(SHAPE, 1, 0, make_frame=lambda: frame), progress(1, 3))
    table.apply(iceberg.batch(SHAPE, [row(5)]), progress(1, 3))
    assert [r["id"] for r in iceberg.rows()] == [1, 2, 3, 5]


@FULL
def test_rows_rewritten_whole_are_counted_too(iceberg: Bed) -> None:
    """A table whose user set copy-on-write."""
    table = loaded(iceberg)
    sql(iceberg, f"ALTER TABLE {table.location} SET TBLPROPERTIES ('write.merge.mode' = 'copy-on-write')")
    result = table.apply(iceberg.batch(SHAPE, [row(2, "c"), row(4)], [{"id": 1}, {"id": 8}]), progress(1, 3))
    assert (result.inserted, result.updated, result.deleted, result.absent) == (1, 1, 1, 1)
    only = table.apply(iceberg.batch(SHAPE, [], [{"id": 4}, {"id": 9}]), progress(1, 4))
    assert (only.deleted, only.absent) == (1, 1)
    assert iceberg.rows() == [row(2, "c"), row(3)]


def test_small_files_are_packed_and_progress_stays(iceberg: Bed) -> None:
    table = loaded(iceberg)
    sql(
        iceberg,
        f"INSERT INTO {table.location} SELECT /*+ REPARTITION(60) */ id, 'x', 1 FROM range(100, 200)",
    )
    assert table.apply(iceberg.batch(SHAPE, [row(4)]), progress(1, 3)).inserted == 1
    totals = state_of(iceberg, table).totals
    assert totals["total-data-files"] + totals["total-delete-files"] < 10
    assert opened(iceberg).committed() == progress(1, 3)
    table.apply(iceberg.batch(SHAPE, [row(5)], [{"id": 150}]), progress(1, 4))
    assert len(iceberg.rows()) == 5 + 99


def test_positions_in_large_files_are_packed(iceberg: Bed) -> None:
    """Files that are large enough are not rewritten, and positions in them do not gather."""
    table = iceberg.target.open_table(SHAPE, pipeline="shop")
    assert isinstance(table, IcebergTable)
    epoch = table.claim().epoch
    table.apply(iceberg.batch(SHAPE, [row(at) for at in range(100)]), progress(epoch, 1))
    (size,) = sql(iceberg, f"SELECT file_size_in_bytes FROM {table.location}.files")[0]
    target = f"'write.target-file-size-bytes' = '{size}'"
    sql(iceberg, f"ALTER TABLE {table.location} SET TBLPROPERTIES ({target})")
    many = iceberg_schema.DELETE_FILES_LEFT + 2
    for at in range(many):
        table.apply(iceberg.batch(SHAPE, [], [{"id": at}]), progress(epoch, at + 2))
    assert state_of(iceberg, table).totals["total-delete-files"] == many
    assert iceberg.spark is not None
    iceberg_schema.pack_files(iceberg.spark, JvmTable(iceberg.spark, table.location))
    assert state_of(iceberg, table).totals["total-delete-files"] <= 1
    assert [one["id"] for one in iceberg.rows()] == [*range(many, 100)]
    again = table.apply(iceberg.batch(SHAPE, [row(many, "z")], [{"id": 0}]), progress(epoch, many + 2))
    assert (again.updated, again.absent) == (1, 1)


@FULL
def test_old_snapshots_and_metadata_are_let_go(iceberg: Bed) -> None:
    table = loaded(iceberg)
    location = f"{table.location}"
    sql(iceberg, f"ALTER TABLE {location} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms' = '1')")
    handle = state_of(iceberg, table).table
    many = handle.newTransaction()
    for _ in range(300):
        many.newFastAppend().commit()
    many.commitTransaction()
    table.apply(iceberg.batch(SHAPE, [row(4)]), progress(1, 3))
    assert state_of(iceberg, table).snapshot_count() <= 102
    assert table.apply(iceberg.batch(SHAPE, [row(5)]), progress(1, 4)).inserted == 1
    assert opened(iceberg).claim().progress == progress(2, 4)
    kept = list(Path(str(handle.location()).removeprefix("file:"), "metadata").glob("*.metadata.json"))
    assert len(kept) < 60


@FULL
def test_deltas_catalog_stands_beside(iceberg: Bed, tmp_path: Path) -> None:
    """A session may have tables of both."""
    assert iceberg.spark is not None
    loaded(iceberg)
    sql(iceberg, f"CREATE TABLE delta.`{tmp_path}/beside` (id bigint) USING delta")
    sql(iceberg, f"INSERT INTO delta.`{tmp_path}/beside` SELECT id FROM lake.shop.orders")
    assert len(sql(iceberg, f"SELECT * FROM delta.`{tmp_path}/beside`")) == 3
