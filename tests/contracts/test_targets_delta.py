"""What is Delta's own: the log others write to, crashes between commits, and what columns become."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.delta_beds import delta_bed
from tests.contracts.interrupted import CutOff, Forestalled, ForestalledMarker, HeldMerge
from tests.contracts.targets_bed import (
    AMOUNT,
    NAME,
    TABLE,
    Bed,
    frame_of,
    merged,
    progress,
    row,
    shape,
    sql,
)
from tests.full import FULL
from tidesink.errors import (
    CommitUnknownError,
    ConfigError,
    ProgressError,
    SchemaRefusedError,
    StaleProgressError,
    TargetError,
    TransientTargetError,
)
from tidesink.events import Column, ColumnType
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.targets.base import ReducedBatch, ReducedRow
from tidesink.sinks.targets.column_changes import plan_evolution
from tidesink.sinks.targets.delta import schema as delta_schema
from tidesink.sinks.targets.delta.log import DeltaLog
from tidesink.sinks.targets.delta.table import DeltaTable, DeltaTarget
from tidesink.sinks.targets.lake.merge import range_literal
from tidesink.sinks.targets.sharing import quote_text

# ruff: noqa: S608
pytestmark = pytest.mark.spark
SHAPE = shape()


def loaded(
    bed: Bed,
    target: DeltaTarget | None = None,
    given: Callable[[ReducedBatch], ReducedBatch] = lambda batch: batch,
) -> DeltaTable:
    """A claimed table with batches 1 and 2 applied, as they are ``given``, at versions 2 and 3."""
    table = (target or bed.target).open_table(SHAPE, pipeline="shop")
    assert isinstance(table, DeltaTable)
    epoch = table.claim().epoch
    table.apply(given(bed.batch(SHAPE, [row(1), row(2)])), progress(epoch, 1))
    table.apply(given(bed.batch(SHAPE, [row(2, "b"), row(3)])), progress(epoch, 2))
    return table


@pytest.fixture(scope="module")
def applied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with a loaded table, to be copied: its commits are the dearest part of a test."""
    folder = tmp_path_factory.mktemp("applied") / "lake"
    loaded(delta_bed(request, folder))
    return folder


@pytest.fixture
def earlier(delta: Bed, applied: Path) -> DeltaTable:
    """What a worker that is gone left: a table as ``loaded`` has it, and nobody holds it."""
    assert isinstance(delta.target, DeltaTarget)
    shutil.copytree(applied, delta.target.root)
    return opened(delta)


def opened(bed: Bed) -> DeltaTable:
    table = bed.reopen().open_table(SHAPE, pipeline="shop")
    assert isinstance(table, DeltaTable)
    return table


@FULL
def test_progress_is_found_behind_the_commits_of_others(delta: Bed) -> None:
    table = loaded(delta)
    sql(delta, f"OPTIMIZE {table.location}")
    assert delta.spark is not None
    delta.spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "1")
    sql(delta, f"VACUUM {table.location}")
    delta.spark.conf.unset("spark.sql.sources.parallelPartitionDiscovery.parallelism")
    sql(delta, f"ALTER TABLE {table.location} SET TBLPROPERTIES ('origin' = 'somebody')")
    assert opened(delta).committed() == progress(1, 2)
    table.apply(delta.batch(SHAPE, [row(4)]), progress(1, 3))
    assert delta.rows() == [row(1), row(2, "b"), row(3), row(4)]


def test_a_restored_table_is_refused_until_it_is_brought_forward(delta: Bed) -> None:
    table = loaded(delta)
    sql(delta, f"RESTORE TABLE {table.location} TO VERSION AS OF 2")
    with pytest.raises(StaleProgressError, match="RESTORE at version 4") as refused:
        opened(delta).claim()
    assert "TO VERSION AS OF 3" in str(refused.value)
    with pytest.raises(StaleProgressError, match="RESTORE"):
        table.apply(delta.batch(SHAPE, [row(9)]), progress(1, 3))
    sql(delta, f"RESTORE TABLE {table.location} TO VERSION AS OF 3")
    again = opened(delta)
    assert again.claim().progress == progress(2, 2)
    again.apply(delta.batch(SHAPE, [row(4)]), progress(2, 3))
    assert delta.rows() == [row(1), row(2, "b"), row(3), row(4)]


def test_a_restore_between_the_last_look_and_the_commit_is_a_gap_for_good(delta: Bed, tmp_path: Path) -> None:
    session: Any = Forestalled(delta.spark)
    table = loaded(delta, DeltaTarget(session, str(tmp_path / "lake")))
    session.ahead = lambda: sql(delta, f"RESTORE TABLE {table.location} TO VERSION AS OF 2")
    with pytest.raises(StaleProgressError, match="RESTORE at version 4"):
        table.apply(merged(delta.batch(SHAPE, [row(4)])), progress(1, 3))
    with pytest.raises(StaleProgressError, match="while a worker wrote version 5"):
        opened(delta).claim()
    sql(delta, f"RESTORE TABLE {table.location} TO VERSION AS OF 5")
    with pytest.raises(StaleProgressError, match="changes are missing from that version and all later ones"):
        opened(delta).claim()


@FULL
def test_a_restore_while_the_table_is_claimed_is_a_gap_for_good(delta: Bed, tmp_path: Path) -> None:
    table = loaded(delta, DeltaTarget(delta.session, str(tmp_path / "lake")))
    session: Any = ForestalledMarker(delta.spark)
    other = DeltaTarget(session, str(tmp_path / "lake")).open_table(SHAPE, pipeline="shop")
    session.ahead = lambda: sql(delta, f"RESTORE TABLE {table.location} TO VERSION AS OF 2")
    for worker in (other, opened(delta)):
        with pytest.raises(
            StaleProgressError, match=r"RESTORE at version 4 .* while a worker wrote version 5"
        ):
            worker.claim()


def test_a_replaced_table_is_refused(delta: Bed, earlier: DeltaTable) -> None:
    sql(delta, f"INSERT OVERWRITE {earlier.location} VALUES (9L, 'x', 1)")
    with pytest.raises(StaleProgressError, match="WRITE at version 4"):
        opened(delta).committed()


def clean_log(bed: Bed, table: DeltaTable) -> None:
    """What Delta does to commits after 30 days: a checkpoint stays, the commits before it go."""
    spark: Any = bed.spark
    logs = spark._jvm.org.apache.spark.sql.delta.DeltaLog
    log = logs.forTable(spark._jsparkSession, table.path)
    sql(bed, f"ALTER TABLE {table.location} SET TBLPROPERTIES ('touched' = 'later')")
    log.checkpoint()
    for commit in sorted(Path(table.path, "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    logs.clearCache()


def test_after_log_clean_up_the_state_store_knows(delta: Bed, tmp_path: Path) -> None:
    assert delta.spark is not None
    store = SqlStateStore(str(tmp_path / "state.db"))
    target = DeltaTarget(delta.spark, str(tmp_path / "lake"), history=store)
    table = loaded(delta, target)
    store.record_progress(progress(1, 2))  # as the worker does before each batch
    clean_log(delta, table)
    again = target.open_table(SHAPE, pipeline="shop")
    assert again.committed() == progress(1, 2)
    claim = again.claim()
    assert claim.progress == progress(2, 2)
    again.apply(delta.batch(SHAPE, [row(4)]), progress(2, 3))
    assert delta.rows() == [row(1), row(2, "b"), row(3), row(4)]
    store.close()


@pytest.mark.law("L8")
@FULL
def test_after_log_clean_up_and_loss_of_the_store_nothing_is_guessed(delta: Bed, earlier: DeltaTable) -> None:
    clean_log(delta, earlier)
    with pytest.raises(ProgressError, match="Epoch 1 batch 2 is applied") as refused:
        opened(delta).claim()
    assert earlier.path in str(refused.value)
    with pytest.raises(ProgressError):
        opened(delta).committed()


@FULL
def test_a_cleaned_table_of_somebody_else_has_no_progress(delta: Bed) -> None:
    table = delta.target.open_table(SHAPE, pipeline="shop")
    assert isinstance(table, DeltaTable)
    sql(delta, f"INSERT INTO {table.location} VALUES (1, 'a', 1)")
    clean_log(delta, table)
    assert opened(delta).committed() is None


@pytest.mark.parametrize("before", [pytest.param(True, marks=FULL), False])
def test_a_commit_that_was_cut_off_is_looked_for(delta: Bed, tmp_path: Path, before: bool) -> None:
    session: Any = CutOff(delta.spark, before=before)
    table = loaded(delta, DeltaTarget(session, str(tmp_path / "lake")))
    session.armed = True
    batch = merged(delta.batch(SHAPE, [row(1, "c")], [{"id": 2}]))
    if before:
        with pytest.raises(CommitUnknownError):
            table.apply(batch, progress(1, 3))
        assert table.committed() == progress(1, 2)
    result = table.apply(batch, progress(1, 3))
    assert (result.updated, result.deleted) == (1, 1)
    assert table.committed() == progress(1, 3)
    assert delta.rows() == [row(1, "c"), row(3)]


def slow_batch(bed: Bed) -> ReducedBatch:
    return bed.batch(SHAPE, [row(1, "zombie")])


def test_a_claim_in_the_middle_of_a_merge_wins(delta: Bed, tmp_path: Path) -> None:
    table = loaded(delta)
    with HeldMerge(table, slow_batch(delta), progress(1, 3), gate=tmp_path) as zombie:
        other = opened(delta)
        assert other.claim().progress == progress(2, 2)
    assert [type(exc) for exc in zombie.raised] == [StaleProgressError]
    assert other.committed() == progress(2, 2)
    assert delta.rows()[0] == row(1)


@FULL
def test_a_stranger_in_the_middle_of_a_merge_means_once_more(delta: Bed, tmp_path: Path) -> None:
    table = loaded(delta)
    with HeldMerge(table, merged(slow_batch(delta)), progress(1, 3), gate=tmp_path) as merge:
        sql(delta, f"UPDATE {table.location} SET amount = 5 WHERE id = 1")
    assert [type(exc) for exc in merge.raised] == [TransientTargetError]
    assert table.committed() == progress(1, 2)
    table.apply(delta.batch(SHAPE, [row(1, "c")]), progress(1, 3))
    assert delta.rows()[0] == row(1, "c")


WIDER = shape(ID, NAME, AMOUNT, Column("state", ColumnType("int"), default="7"))


def cut_evolution(bed: Bed, table: DeltaTable) -> DeltaLog:
    """The column is there, and the worker died before old rows got the default."""
    assert bed.spark is not None
    log = DeltaLog(bed.spark, table.path)
    plan = plan_evolution(delta_schema.present_columns(log), WIDER)
    delta_schema.evolve_table(bed.spark, log, table.location, shape=WIDER, plan=plan, epoch=1)
    assert delta_schema.pending_defaults(log) == {"state": "7"}
    return log


def test_a_crash_between_column_and_default_heals(delta: Bed, earlier: DeltaTable) -> None:
    log = cut_evolution(delta, earlier)
    assert {r["state"] for r in delta.rows()} == {None}
    table = delta.reopen().open_table(WIDER, pipeline="shop")
    epoch = table.claim().epoch
    assert {r["state"] for r in delta.rows()} == {7}
    assert delta_schema.pending_defaults(log) == {}
    table.apply(delta.batch(WIDER, [{**row(1), "state": None}]), progress(epoch, 3))
    assert [r["state"] for r in delta.rows()] == [None, 7, 7]


@FULL
def test_a_crash_before_the_column_heals(delta: Bed, earlier: DeltaTable) -> None:
    assert delta.spark is not None
    pending = quote_text(json.dumps({"state": "7"}))
    sql(delta, f"ALTER TABLE {earlier.location} SET TBLPROPERTIES ('tidesink.backfill' = {pending})")
    again = delta.reopen().open_table(WIDER, pipeline="shop")
    again.claim()
    assert again.evolve(WIDER).backfilled == ("state",)
    assert {r["state"] for r in delta.rows()} == {7}


@FULL
def test_a_lost_worker_does_not_fill_over_newer_rows(delta: Bed, earlier: DeltaTable) -> None:
    log = cut_evolution(delta, earlier)
    assert delta.spark is not None
    table = delta.reopen().open_table(WIDER, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(delta.batch(WIDER, [{**row(1), "state": None}]), progress(epoch, 3))
    location = f"delta.`{log.path}`"
    pending = quote_text(json.dumps({"state": "7"}))
    sql(delta, f"ALTER TABLE {location} SET TBLPROPERTIES ('tidesink.backfill' = {pending})")
    with pytest.raises(StaleProgressError, match="Another worker claimed"):
        delta_schema.fill_pending(delta.spark.newSession(), log, location, epoch=1)
    assert [r["state"] for r in delta.rows()] == [None, 7, 7]


@FULL
def test_a_lost_worker_leaves_no_default_for_others_to_fill(delta: Bed, tmp_path: Path) -> None:
    """It looked whether the table is its own before it slept; the next claim would fill over newer rows."""
    session: Any = ForestalledMarker(delta.spark)
    table, other = loaded(delta, DeltaTarget(session, str(tmp_path / "lake"))), opened(delta)

    def overtake() -> None:
        epoch = other.claim().epoch
        assert other.evolve(WIDER).backfilled == ("state",)
        other.apply(delta.batch(WIDER, [{**row(1), "state": None}]), progress(epoch, 3))

    session.ahead = overtake
    with pytest.raises(TransientTargetError):
        table.evolve(WIDER)
    opened(delta).claim()
    assert [r["state"] for r in delta.rows()] == [None, 7, 7]


@FULL
def test_columns_carry_their_types_and_comments(delta: Bed) -> None:
    table = delta.target.open_table(
        shape(ID, Column("price", ColumnType("decimal", precision=60, scale=2, sql="decimal(60,2)"))),
        pipeline="shop",
    )
    assert isinstance(table, DeltaTable)
    described = {
        r["col_name"]: (r["data_type"], r["comment"]) for r in sql(delta, f"DESCRIBE {table.location}")
    }
    assert described["id"] == ("bigint", "bigint")
    assert described["price"][0] == "string"
    assert "60" in described["price"][1]


@FULL
def test_a_row_without_a_key_never_gets_in(delta: Bed) -> None:
    table = loaded(delta)
    nameless = delta.batch(SHAPE, [row(5), {**row(6), "id": None}][:1])
    assert delta.spark is not None
    frame = frame_of(delta.spark, SHAPE, [ReducedRow("upsert", {"id": None}, {**row(6), "id": None})])
    with pytest.raises(TargetError, match="nothing was written"):
        table.apply(ReducedBatch(SHAPE, 1, 0, make_frame=lambda: frame), progress(1, 3))
    table.apply(nameless, progress(1, 3))
    assert [r["id"] for r in delta.rows()] == [1, 2, 3, 5]


SKIPPING: list[tuple[str, Any]] = [
    ("int", 100),
    ("bigint", 100),
    ("decimal(20,0)", Decimal(100)),
    ("decimal(10,2)", Decimal("25.10")),
    ("string", "k'100"),
    ("date", date(2020, 4, 10)),
    ("timestamp_ntz", datetime(2020, 4, 10)),
]


def test_the_key_range_keeps_other_files_out(delta: Bed, tmp_path: Path) -> None:
    """Delta passes over a file only for literals of just the column's type."""
    assert delta.spark is not None
    ddl = ", ".join(f"c{n} {name}" for n, (name, _) in enumerate(SKIPPING))
    place = str(tmp_path / "skipping")
    wanted = [value for _, value in SKIPPING]
    for values in (wanted, [None] * len(wanted)):
        frame = delta.spark.createDataFrame([values], ddl).coalesce(1)
        frame.write.format("delta").mode("append").save(place)
    for number, (name, value) in enumerate(SKIPPING):
        literal = range_literal(value, name)
        query = f"SELECT * FROM delta.`{place}` WHERE c{number} >= {literal} AND c{number} <= {literal}"
        found: Any = delta.spark.sql(query)
        assert len(found.collect()) == 1, name
        plan = found._jdf.queryExecution().executedPlan()
        while plan.children().size():
            plan = plan.children().apply(0)
        assert plan.metrics().apply("numFiles").value() == 1, name


def test_a_range_without_a_literal_prunes_nothing() -> None:
    assert range_literal(b"x", "binary") is None
    assert range_literal(1.5, "double") is None
    # Python would name an instant in the machine's zone, and Spark read it in UTC: rows would be passed over.
    assert range_literal(datetime(2020, 4, 10), "timestamp") is None
    assert range_literal(None, "bigint") is None


@FULL
@pytest.mark.usefixtures("earlier")
def test_soft_deletes_can_be_switched_on_and_off(delta: Bed) -> None:
    soft = delta.reopen().open_table(SHAPE, pipeline="shop", delete_mode="soft")
    epoch = soft.claim().epoch
    soft.apply(delta.batch(SHAPE, [], [{"id": 1}], delete_mode="soft"), progress(epoch, 3))
    assert [r["_tidesink_deleted"] for r in delta.rows()] == [True, None, None]
    hard = opened(delta)
    epoch = hard.claim().epoch
    hard.apply(delta.batch(SHAPE, [row(1, "back")]), progress(epoch, 4))
    assert [r["_tidesink_deleted"] for r in delta.rows()] == [False, None, None]


def test_a_source_column_of_our_name_is_refused(delta: Bed) -> None:
    with pytest.raises(SchemaRefusedError, match="_tidesink_deleted"):
        delta.target.open_table(shape(ID, Column("_Tidesink_Deleted", ColumnType("int"))), pipeline="shop")


def test_a_template_must_tell_tables_apart(delta: Bed) -> None:
    assert delta.spark is not None
    with pytest.raises(ConfigError, match="table"):
        DeltaTarget(delta.spark, "/lake", template="all").path_of(TABLE)


@FULL
def test_small_files_are_packed_and_progress_stays(delta: Bed) -> None:
    table = loaded(delta)
    location = table.location
    sql(delta, f"INSERT INTO {location} SELECT /*+ REPARTITION(60) */ id, 'x', 1 FROM range(100, 200)")
    assert table.apply(delta.batch(SHAPE, [row(4)]), progress(1, 3)).inserted == 1
    assert sql(delta, f"DESCRIBE HISTORY {location} LIMIT 1")[0]["operation"] == "OPTIMIZE"
    assert sql(delta, f"DESCRIBE DETAIL {location}")[0]["numFiles"] < 10
    assert opened(delta).committed() == progress(1, 3)
    table.apply(delta.batch(SHAPE, [row(5)], [{"id": 150}]), progress(1, 4))
    assert len(delta.rows()) == 5 + 99


@FULL
def test_a_compaction_that_signs_as_a_batch_is_none(delta: Bed, tmp_path: Path) -> None:
    assert delta.spark is not None
    automatic = {"spark.databricks.delta.autoCompact.enabled": "true"}
    table = loaded(delta, DeltaTarget(delta.spark, str(tmp_path / "lake"), settings=automatic), merged)
    operations = {r["version"]: r for r in sql(delta, f"DESCRIBE HISTORY {table.location}")}
    signed = [r for r in operations.values() if r["operation"] == "OPTIMIZE" and r["userMetadata"]]
    assert signed
    assert table.apply(delta.batch(SHAPE, [row(2, "b"), row(3)]), progress(1, 2)).inserted == 1
    assert opened(delta).committed() == progress(1, 2)
