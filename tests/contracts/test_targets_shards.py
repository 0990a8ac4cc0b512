"""Several source tables in one table of the target: each has its rows, its progress and its epoch there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.columns import ID
from tests.contracts.targets_bed import AMOUNT, NAME, Bed, progress, shape
from tests.full import needs, quick_on
from tidesink.config.models import Destination
from tidesink.errors import SchemaRefusedError, StaleProgressError
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.laws.modes import routed_shape
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN, Claim, DeleteMode, TargetTable
from tidesink.typemap.target_schema import Shard, TargetSchema

pytestmark = [quick_on("memory", "postgres"), needs("shards")]

A, B = TableId("shop_1", "orders"), TableId("shop_2", "orders")
GOAL = TableId("shop", "orders")
LATE = Column("late", ColumnType("varchar", length=9), default="A's")


def shard_shape(source: TableId, *columns: Column, name: str | None = None) -> TargetSchema:
    """The shape of a source table in the shared one; ``name``: its shard."""
    goal = Destination(GOAL, Shard("shard", name or str(source)))
    return routed_shape(shape(*columns, table=source), goal)


def opened(bed: Bed, source: TableId, *columns: Column) -> tuple[TargetTable, TargetSchema]:
    """A shard of the table, by another worker's target."""
    found = shard_shape(source, *columns)
    return bed.reopen().open_table(found, pipeline="shop"), found


def row(source: TableId, number: int, name: str | None = "a", **more: object) -> dict[str, object]:
    return {"id": number, "name": name, "amount": 1, **more, "shard": str(source)}


def key(source: TableId, number: int) -> dict[str, object]:
    return {"id": number, "shard": str(source)}


def rows(bed: Bed) -> list[dict[str, object]]:
    return sorted(bed.read(GOAL), key=lambda found: (str(found["shard"]), found["id"]))


@quick_on("memory", "delta", "iceberg", "postgres", "mysql")
def test_the_same_keys_of_two_tables_never_meet(bed: Bed) -> None:
    (a, shape_a), (b, shape_b) = opened(bed, A), opened(bed, B)
    assert a.claim() == Claim(1, None)
    assert b.claim() == Claim(1, None)
    a.evolve(shape_a), b.evolve(shape_b)
    first = a.apply(bed.batch(shape_a, [row(A, 1), row(A, 2)]), progress(1, 1, table=A))
    assert (first.inserted, first.updated) == (2, 0)
    second = b.apply(bed.batch(shape_b, [row(B, 1, "b"), row(B, 3)]), progress(1, 1, table=B))
    assert (second.inserted, second.updated) == (2, 0)
    third = a.apply(bed.batch(shape_a, [row(A, 1, "c")], [key(A, 2), key(A, 3)]), progress(1, 2, table=A))
    assert (third.inserted, third.updated, third.deleted, third.absent) == (0, 1, 1, 1)
    assert rows(bed) == [row(A, 1, "c"), row(B, 1, "b"), row(B, 3)]
    assert (a.committed(), b.committed()) == (progress(1, 2, table=A), progress(1, 1, table=B))


def test_a_batch_delivered_again_after_anothers(bed: Bed) -> None:
    (a, shape_a), (b, shape_b) = opened(bed, A), opened(bed, B)
    a.claim(), b.claim()
    batch = bed.batch(shape_a, [row(A, 1), row(A, 2)], [key(A, 3)])
    first = a.apply(batch, progress(1, 1, table=A))
    b.apply(bed.batch(shape_b, [row(B, 1)]), progress(1, 1, table=B))
    assert a.apply(batch, progress(1, 1, table=A)) == first
    b.apply(bed.batch(shape_b, [row(B, 2)]), progress(1, 2, table=B))
    a.apply(bed.batch(shape_a, [row(A, 1, "late")]), progress(1, 2, table=A))
    with pytest.raises(StaleProgressError, match="later"):
        a.apply(batch, progress(1, 1, table=A))
    assert rows(bed) == [row(A, 1, "late"), row(A, 2), row(B, 1), row(B, 2)]


def test_one_starts_again_while_the_other_goes_on(bed: Bed) -> None:
    (zombie, shape_a), (b, shape_b) = opened(bed, A), opened(bed, B)
    zombie.claim(), b.claim()
    zombie.apply(bed.batch(shape_a, [row(A, 1)]), progress(1, 1, table=A))
    b.apply(bed.batch(shape_b, [row(B, 1)]), progress(1, 1, table=B))
    again, _ = opened(bed, A)
    assert again.claim() == Claim(2, progress(2, 1, table=A))
    b.apply(bed.batch(shape_b, [row(B, 2)]), progress(1, 2, table=B))
    with pytest.raises(StaleProgressError, match=r"[Aa]nother worker holds this table"):
        zombie.apply(bed.batch(shape_a, [row(A, 1, "zombie")]), progress(1, 2, table=A))
    with pytest.raises(StaleProgressError):
        zombie.evolve(shard_shape(A, ID, NAME, AMOUNT, LATE))
    again.apply(bed.batch(shape_a, [row(A, 2)]), progress(2, 2, table=A))
    third, _ = opened(bed, B)
    assert third.claim() == Claim(2, progress(2, 2, table=B))
    assert again.committed() == progress(2, 2, table=A)
    assert rows(bed) == [row(A, 1), row(A, 2), row(B, 1), row(B, 2)]


def test_the_table_has_the_columns_of_all(bed: Bed) -> None:
    only_b = Column("only_b", ColumnType("int"), default="7")
    (a, shape_a), (b, shape_b) = opened(bed, A), opened(bed, B, ID, NAME, AMOUNT, only_b)
    a.claim(), b.claim()
    a.evolve(shape_a)
    a.apply(bed.batch(shape_a, [row(A, 1)]), progress(1, 1, table=A))
    assert b.evolve(shape_b).added == ("only_b",)
    b.apply(bed.batch(shape_b, [row(B, 1, only_b=5)]), progress(1, 1, table=B))
    wider = shard_shape(A, ID, NAME, AMOUNT, LATE)
    grown = a.evolve(wider)
    assert (grown.added, grown.backfilled) == (("late",), ("late",))
    assert not a.evolve(wider).backfilled
    a.apply(bed.batch(wider, [row(A, 2, late="x")]), progress(1, 2, table=A))
    # Rows of others do not get what one table's new column says.
    assert rows(bed) == [
        row(A, 1, only_b=None, late="A's"),
        row(A, 2, only_b=None, late="x"),
        row(B, 1, only_b=5, late=None),
    ]
    # The column is there already when the other table gets it, with a default of its own.
    again, _ = opened(bed, B, ID, NAME, AMOUNT, only_b)
    assert again.claim().epoch == 2
    theirs = shard_shape(B, ID, NAME, AMOUNT, only_b, replace(LATE, default="B's"))
    evolved = again.evolve(theirs)
    assert (evolved.added, evolved.backfilled) == ((), ("late",))
    again.apply(bed.batch(theirs, [row(B, 2, only_b=6, late="y")]), progress(2, 2, table=B))
    third, _ = opened(bed, B, ID, NAME, AMOUNT, only_b)
    third.claim()
    assert not third.evolve(theirs).backfilled
    assert [found["late"] for found in rows(bed)] == ["A's", "x", "B's", "y"]
    assert rows(bed)[0]["only_b"] is None


def test_columns_are_looked_up_where_they_seem_to_lack_something(bed: Bed) -> None:
    if bed.name == "memory":
        pytest.skip("memory is looked at for nothing")
    (a, shape_a), (b, _) = opened(bed, A), opened(bed, B)
    a.claim(), b.claim()
    assert b.evolve(shard_shape(B, ID, NAME, AMOUNT, LATE)).added == ("late",)
    # A batch that brings no new column costs no look, in its two questions about them.
    assert not a.evolve(shape_a).added
    assert "late" not in a.gap(shape_a).columns
    wider = shard_shape(A, ID, NAME, AMOUNT, LATE)
    found = a.gap(wider)
    assert (found.added, "late" in found.columns) == ((), True)
    assert not a.evolve(wider).added
    more, much = Column("more", ColumnType("int")), Column("more", ColumnType("bigint"))
    assert b.evolve(shard_shape(B, ID, NAME, AMOUNT, LATE, more)).added == ("more",)
    assert list(a.gap(shard_shape(A, ID, NAME, AMOUNT, LATE, much)).widened) == ["more"]


def test_one_widens_what_the_other_goes_on_writing(bed: Bed) -> None:
    (a, shape_a), (b, _) = opened(bed, A), opened(bed, B)
    a.claim(), b.claim()
    a.evolve(shape_a)
    a.apply(bed.batch(shape_a, [row(A, 1)]), progress(1, 1, table=A))
    wide = shard_shape(B, ID, NAME, Column("amount", ColumnType("bigint")))
    assert b.evolve(wide).widened == ("amount",)
    b.apply(bed.batch(wide, [row(B, 1, amount=2**40)]), progress(1, 1, table=B))
    a.apply(bed.batch(shape_a, [row(A, 2)]), progress(1, 2, table=A))
    more = shard_shape(A, ID, NAME, AMOUNT, LATE)
    a.evolve(more)
    a.apply(bed.batch(more, [row(A, 1, late=None)]), progress(1, 3, table=A))
    assert [found["amount"] for found in rows(bed)] == [1, 1, 2**40]


def test_types_that_cannot_be_one_are_refused_with_both_names(bed: Bed) -> None:
    (a, shape_a), (b, _) = opened(bed, A), opened(bed, B)
    a.claim(), b.claim()
    a.apply(bed.batch(shape_a, [row(A, 1)]), progress(1, 1, table=A))
    with pytest.raises(SchemaRefusedError, match=r"shop_1\.orders") as refused:
        b.evolve(shard_shape(B, ID, NAME, Column("amount", ColumnType("varchar", length=5))))
    reported = refused.value.context
    assert (reported["table"], reported["column"], reported["change"]) == ("shop_2.orders", "amount", "type")
    with pytest.raises(SchemaRefusedError, match=r"shop_1\.orders"):
        b.gap(shard_shape(B, ID, NAME, Column("amount", ColumnType("varchar", length=5))))


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_a_truncate_empties_its_own_rows_alone(bed: Bed, soft: bool) -> None:
    mode: DeleteMode = "soft" if soft else "hard"
    shape_a, shape_b = shard_shape(A), shard_shape(B)
    a = bed.reopen().open_table(shape_a, pipeline="shop", delete_mode=mode)
    b = bed.reopen().open_table(shape_b, pipeline="shop", delete_mode=mode)
    a.claim(), b.claim()
    a.apply(bed.batch(shape_a, [row(A, 1), row(A, 2)], delete_mode=mode), progress(1, 1, table=A))
    b.apply(bed.batch(shape_b, [row(B, 1)], delete_mode=mode), progress(1, 1, table=B))
    empties = replace(bed.batch(shape_a, delete_mode=mode), truncates=True, make_frame=None, rows=())
    assert a.apply(empties, progress(1, 2, table=A)).deleted == 2
    assert a.apply(empties, progress(1, 2, table=A)).deleted == 2
    assert a.apply(empties, progress(1, 3, table=A)).deleted == 0
    living = [found for found in rows(bed) if not found.get(SOFT_DELETE_COLUMN)]
    assert [(found["shard"], found["id"]) for found in living] == [(str(B), 1)]
    assert b.committed() == progress(1, 1, table=B)


def test_a_shard_is_one_source_tables_of_one_pipeline(bed: Bed) -> None:
    a, shape_a = opened(bed, A)
    a.claim()
    a.apply(bed.batch(shape_a, [row(A, 1)]), progress(1, 1, table=A))
    imposter = bed.reopen().open_table(shard_shape(B, name=str(A)), pipeline="shop")
    with pytest.raises(StaleProgressError, match=r"belongs to shop_1\.orders"):
        imposter.claim()
    other = bed.reopen().open_table(shape_a, pipeline="other")
    with pytest.raises(StaleProgressError, match="pipeline 'shop'"):
        other.claim()
    # Another pipeline may have a shard of its own.
    theirs = bed.reopen().open_table(shard_shape(B), pipeline="other")
    theirs.claim()
    theirs.apply(bed.batch(shard_shape(B), [row(B, 1)]), progress(1, 1, table=B, pipeline="other"))
    assert rows(bed) == [row(A, 1), row(B, 1)]


def test_a_table_loaded_without_shards_takes_none_and_one_with_shards_no_other(bed: Bed) -> None:
    plain = bed.target.open_table(shape(table=GOAL), pipeline="shop")
    plain.apply(
        bed.batch(shape(table=GOAL), [{"id": 1, "name": "a", "amount": 1}]),
        progress(plain.claim().epoch, 1, table=GOAL),
    )
    with pytest.raises((StaleProgressError, SchemaRefusedError), match="shard"):
        opened(bed, A)[0].claim()
    elsewhere = TableId("shop", "shared")
    goal = Destination(elsewhere, Shard("shard", str(A)))
    shared = routed_shape(shape(table=A), goal)
    a = bed.reopen().open_table(shared, pipeline="shop")
    a.claim()
    a.apply(bed.batch(shared, [row(A, 1)]), progress(1, 1, table=A))
    with pytest.raises((StaleProgressError, SchemaRefusedError), match="shard"):
        bed.reopen().open_table(shape(table=elsewhere), pipeline="shop").claim()
