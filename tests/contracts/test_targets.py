"""What every target of TARGETS promises, asserted on each."""

from __future__ import annotations

import random
from dataclasses import replace
from decimal import Decimal

import pytest

from tests.columns import ID
from tests.contracts.targets_bed import AMOUNT, NAME, TABLE, Bed, progress, row, shape
from tests.full import FULL, needs, quick_on
from tidesink.errors import SchemaRefusedError, StaleProgressError
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN, ApplyHooks, Claim

pytestmark = quick_on("memory", "delta", "iceberg", "postgres")

SHAPE = shape()


@quick_on("memory", "delta", "postgres")
def test_an_unknown_table_is_made_and_holds_no_progress(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    assert table.committed() is None
    assert table.claim() == Claim(1, None)
    assert table.evolve(SHAPE).created
    assert not table.evolve(SHAPE).changed
    assert bed.rows() == []


# Messages have no counts of rows: what was applied there, test_targets_codecs.py shows by its result.
@quick_on("memory", "delta", "iceberg", "postgres", "mysql")
def test_upserts_and_deletes_are_counted_by_what_they_did(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    first = table.apply(bed.batch(SHAPE, [row(1), row(2), row(3)], [{"id": 9}]), progress(epoch, 1))
    assert bed.did(first, (3, 0, 0, 1))
    second = table.apply(bed.batch(SHAPE, [row(2, "b"), row(4)], [{"id": 1}, {"id": 8}]), progress(epoch, 2))
    assert bed.did(second, (1, 1, 1, 1))
    assert second.applied == 4
    assert bed.rows() == [row(2, "b"), row(3), row(4)]


@quick_on("memory", "delta", "postgres")
def test_a_delete_alone_and_an_upsert_alone(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    none = table.apply(bed.batch(SHAPE, [], [{"id": 1}]), progress(epoch, 1))
    assert bed.did(none, (0, 0, 0, 1))
    table.apply(bed.batch(SHAPE, [row(1), row(2)]), progress(epoch, 2))
    gone = table.apply(bed.batch(SHAPE, [], [{"id": 1}, {"id": 3}]), progress(epoch, 3))
    assert bed.did(gone, (0, 0, 1, 1))
    assert bed.rows() == [row(2)]


@quick_on("memory", "iceberg", "postgres")
def test_an_empty_batch_moves_progress_on(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(bed.batch(SHAPE, [row(1)]), progress(epoch, 1))
    assert table.apply(bed.batch(SHAPE), progress(epoch, 2)).applied == 0
    assert table.committed() == progress(epoch, 2)
    assert bed.rows() == [row(1)]


# On Delta: tests/e2e/test_kill.py, whose workers die behind a commit.
@pytest.mark.law("L8")
@quick_on("memory", "iceberg", "postgres")
def test_a_batch_delivered_again_changes_nothing(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    batch = bed.batch(SHAPE, [row(1), row(2)], [{"id": 3}])
    first = table.apply(batch, progress(epoch, 1))
    assert table.apply(batch, progress(epoch, 1)) == first
    later = table.apply(bed.batch(SHAPE, [row(1, "later")]), progress(epoch, 2))
    assert table.apply(bed.batch(SHAPE, [row(1, "later")]), progress(epoch, 2)) == later
    assert bed.rows() == [row(1, "later"), row(2)]


# On Delta: tests/e2e/test_kill.py, whose workers die between the two.
@pytest.mark.law("L8")
@quick_on("memory", "iceberg", "postgres", "mysql", "kafka", "http")
def test_what_is_staged_is_not_applied_yet(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(bed.batch(SHAPE, [row(1)]), progress(epoch, 1))
    seen: list[object] = []

    def crash() -> None:
        seen.extend([table.committed(), bed.rows() if bed.keeps_rows else None])
        raise InterruptedError

    batch = bed.batch(SHAPE, [row(1, "b"), row(2)], [{"id": 3}])
    with pytest.raises(InterruptedError):
        table.apply(replace(batch, hooks=ApplyHooks(on_staged=crash)), progress(epoch, 2))
    assert seen == [progress(epoch, 1), [row(1)] if bed.keeps_rows else None]
    assert bed.rows() == ([row(1)] if bed.keeps_rows else [row(1, "b"), row(2)])
    again = bed.reopen().open_table(SHAPE, pipeline="shop")
    epoch = again.claim().epoch
    again.apply(batch, progress(epoch, 2))
    assert bed.rows() == [row(1, "b"), row(2)]
    assert again.committed() == progress(epoch, 2)


@quick_on("memory", "postgres")
def test_an_older_batch_is_refused(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(bed.batch(SHAPE, [row(1)]), progress(epoch, 1))
    table.apply(bed.batch(SHAPE, [row(1, "later")]), progress(epoch, 2))
    with pytest.raises(StaleProgressError, match="later"):
        table.apply(bed.batch(SHAPE, [row(1)]), progress(epoch, 1))
    assert bed.rows() == [row(1, "later")]


@quick_on("memory", "iceberg", "postgres")
def test_a_batch_is_applied_on_the_one_before_it_alone(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(bed.batch(SHAPE, [row(1)]), progress(epoch, 1))
    # As where the target went back while its worker went on.
    with pytest.raises(StaleProgressError, match="target is 1, but the next batch to apply is 3"):
        table.apply(bed.batch(SHAPE, [row(1, "later")]), progress(epoch, 3))
    assert table.committed() == progress(epoch, 1)
    table.apply(bed.batch(SHAPE, [row(1, "next")]), progress(epoch, 2))
    assert bed.rows() == [row(1, "next")]


# On each target: test_targets_codecs.py, by a stream that is cut and sent again.
@pytest.mark.law("L2")
@quick_on("memory", "postgres", "mysql")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=FULL)])
def test_the_result_does_not_depend_on_the_cuts(bed: Bed, seed: int) -> None:
    chosen = random.Random(seed)
    events = [(chosen.randrange(6), chosen.random() < 0.3, number) for number in range(30)]
    expected: dict[int, dict[str, object]] = {}
    for key, delete, number in events:
        if delete:
            expected.pop(key, None)
        else:
            expected[key] = row(key, f"n{number}", number)
    cuts = sorted(chosen.sample(range(1, 30), 3))
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    for batch, (start, end) in enumerate(zip([0, *cuts], [*cuts, 30], strict=True), 1):
        last = {key: (delete, number) for key, delete, number in events[start:end]}
        upserts = [row(key, f"n{number}", number) for key, (delete, number) in last.items() if not delete]
        deletes = [{"id": key} for key, (delete, _) in last.items() if delete]
        result = table.apply(bed.batch(SHAPE, upserts, deletes), progress(epoch, batch))
        assert result.applied == len(last)
    assert bed.rows() == [expected[key] for key in sorted(expected)]


@pytest.mark.law("L8")
@quick_on("memory", "delta", "iceberg", "postgres", "mysql", "kafka", "http")
def test_progress_survives_a_restart_and_a_claim(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(bed.batch(SHAPE, [row(1)]), progress(epoch, 1))
    table.close()
    again = bed.reopen().open_table(SHAPE, pipeline="shop")
    assert again.committed() == progress(epoch, 1)
    claim = again.claim()
    assert claim == Claim(epoch + 1, progress(epoch + 1, 1))
    assert again.committed() == progress(epoch + 1, 1)
    again.apply(bed.batch(SHAPE, [row(2)]), progress(claim.epoch, 2))
    third = bed.reopen().open_table(SHAPE, pipeline="shop")
    assert third.claim() == Claim(epoch + 2, progress(epoch + 2, 2))
    assert bed.rows() == [row(1), row(2)]


@pytest.mark.law("L10")
@quick_on("memory", "delta", "iceberg", "postgres", "mysql", "kafka", "http")
def test_a_worker_that_lost_the_table_writes_nothing(bed: Bed) -> None:
    zombie = bed.target.open_table(SHAPE, pipeline="shop")
    old = zombie.claim().epoch
    zombie.apply(bed.batch(SHAPE, [row(1)]), progress(old, 1))
    table = bed.reopen().open_table(SHAPE, pipeline="shop")
    new = table.claim().epoch
    with pytest.raises(StaleProgressError, match=r"[Aa]nother worker holds this table"):
        zombie.apply(bed.batch(SHAPE, [row(1, "zombie")]), progress(old, 2))
    with pytest.raises(StaleProgressError):
        zombie.evolve(shape(ID, NAME, AMOUNT, Column("late", ColumnType("int"))))
    with pytest.raises(StaleProgressError):
        zombie.apply(bed.batch(SHAPE), progress(old, 3))
    table.apply(bed.batch(SHAPE, [row(1, "new")]), progress(new, 2))
    assert bed.rows() == [row(1, "new")]
    assert table.committed() == progress(new, 2)


@pytest.mark.law("L10")
@quick_on("memory", "postgres")
def test_writing_needs_a_claim_and_its_epoch(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    with pytest.raises(StaleProgressError, match="must be claimed"):
        table.apply(bed.batch(SHAPE, [row(1)]), progress(1, 1))
    epoch = table.claim().epoch
    with pytest.raises(StaleProgressError, match=f"holds epoch {epoch}"):
        table.apply(bed.batch(SHAPE, [row(1)]), progress(epoch + 1, 1))
    assert bed.rows() == []


@quick_on("memory", "iceberg", "postgres")
def test_a_table_of_another_pipeline_is_refused(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    table.apply(bed.batch(SHAPE, [row(1)]), progress(table.claim().epoch, 1))
    other = bed.reopen().open_table(SHAPE, pipeline="other")
    with pytest.raises(StaleProgressError, match="belongs to pipeline 'shop'"):
        other.claim()


@needs("soft-deletes")
def test_soft_deletes_keep_the_row(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop", delete_mode="soft")
    epoch = table.claim().epoch
    table.apply(bed.batch(SHAPE, [row(1), row(2), row(3)], delete_mode="soft"), progress(epoch, 1))
    result = table.apply(
        bed.batch(SHAPE, [row(2, "b"), row(4)], [{"id": 1}, {"id": 9}], delete_mode="soft"),
        progress(epoch, 2),
    )
    assert (result.inserted, result.updated, result.deleted, result.absent) == (1, 1, 1, 1)
    marks = {r["id"]: (r["name"], r[SOFT_DELETE_COLUMN]) for r in bed.rows()}
    assert marks == {1: ("a", True), 2: ("b", False), 3: ("a", False), 4: ("a", False)}
    back = table.apply(bed.batch(SHAPE, [row(1, "back")], delete_mode="soft"), progress(epoch, 3))
    assert back.upserted == 1
    assert {r["id"]: r[SOFT_DELETE_COLUMN] for r in bed.rows()} == {1: False, 2: False, 3: False, 4: False}


# On Delta: test_targets_delta_defaults.py, and test_targets_codecs.py, whose stream adds such columns.
@quick_on("memory", "iceberg", "postgres")
@needs("rows")
def test_a_new_column_gives_its_default_to_rows_already_there(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(bed.batch(SHAPE, [row(1), row(2)]), progress(epoch, 1))
    wider = shape(
        ID,
        NAME,
        AMOUNT,
        Column("state", ColumnType("varchar", length=9), default="it's `new`"),
        Column("plain", ColumnType("int")),
        Column("since", ColumnType("datetime"), default="CURRENT_TIMESTAMP"),
    )
    evolved = table.evolve(wider)
    assert evolved.added == ("state", "plain", "since")
    assert evolved.backfilled == ("state",)
    assert len(evolved.warnings) == 1
    assert "'since'" in evolved.warnings[0]
    assert not table.evolve(wider).changed
    new = {"state": None, "plain": 5, "since": None}
    table.apply(bed.batch(wider, [{**row(2), **new}, {**row(3), **new}]), progress(epoch, 2))
    old = {"state": "it's `new`", "plain": None, "since": None}
    assert bed.rows() == [{**row(1), **old}, {**row(2), **new}, {**row(3), **new}]
    # A restart finds the default given already, and gives it to nobody twice.
    again = bed.reopen().open_table(wider, pipeline="shop")
    again.claim()
    assert not again.evolve(wider).changed
    assert bed.rows()[1]["state"] is None


@quick_on("memory", "iceberg", "postgres")
def test_a_shape_with_fewer_columns_leaves_the_rest(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(bed.batch(SHAPE, [row(1)]), progress(epoch, 1))
    fewer = shape(ID, NAME)
    assert table.evolve(fewer).added == ()
    table.apply(bed.batch(fewer, [{"id": 1, "name": "b"}, {"id": 2, "name": "c"}]), progress(epoch, 2))
    # A message has what its row had, and nothing of an older one.
    assert bed.rows() == [row(1, "b", 1 if bed.keeps_rows else None), row(2, "c", None)]


def test_numbers_get_wider_and_columns_nullable(bed: Bed) -> None:
    price = Column("price", ColumnType("decimal", precision=5, scale=2), nullable=False)
    narrow = shape(ID, replace(NAME, nullable=False), AMOUNT, price)
    table = bed.target.open_table(narrow, pipeline="shop")
    epoch = table.claim().epoch
    first = [{**row(1, amount=7), "price": Decimal("1.25")}, {**row(3), "price": Decimal("3.25")}]
    table.apply(bed.batch(narrow, first), progress(epoch, 1))
    finer = bed.target.capabilities.rescales
    wide = shape(
        ID,
        NAME,
        Column("amount", ColumnType("bigint")),
        Column("price", ColumnType("decimal", precision=12, scale=4 if finer else 2)),
    )
    assert set(table.evolve(wide).widened) == {"amount", "price"}
    big = {**row(2, None, 2**40), "price": Decimal("12345678.1234" if finer else "1234567890.12")}
    none = {**row(3, None), "price": None}
    table.apply(bed.batch(wide, [big, none]), progress(epoch, 2))
    assert bed.rows() == [first[0], big, none]
    # A writer which still has the narrow types is taken as it is.
    assert not table.evolve(narrow).changed
    again = {**row(1, amount=8), "price": Decimal("2.50")}
    table.apply(bed.batch(narrow, [again]), progress(epoch, 3))
    assert bed.rows() == [again, big, none]


@pytest.mark.law("L7")
@quick_on("memory", "delta", "postgres")
def test_a_change_that_loses_values_is_refused_by_name(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    with pytest.raises(SchemaRefusedError, match="column=amount") as refused:
        table.evolve(shape(ID, NAME, Column("amount", ColumnType("varchar", length=5))))
    assert "int" in str(refused.value)
    assert "string" in str(refused.value)
    second = Column("second", ColumnType("int"), nullable=False, handle=True, primary_key=True)
    with pytest.raises(SchemaRefusedError, match="second"):
        table.evolve(shape(ID, second, NAME))


@quick_on("memory", "iceberg", "postgres")
def test_rows_written_under_another_key_are_refused(bed: Bed) -> None:
    table = bed.target.open_table(SHAPE, pipeline="shop")
    table.claim()
    table.apply(bed.batch(SHAPE, [row(1)]), progress(1, 1))
    by_name = shape(replace(ID, handle=False), replace(NAME, handle=True, nullable=False), AMOUNT)
    with pytest.raises(SchemaRefusedError, match=r"under the key \(id\).*\(name\)") as refused:
        bed.reopen().open_table(by_name, pipeline="shop").claim()
    change = [refused.value.context[word] for word in ("change", "before", "after")]
    assert change == ["key", "id", "name"]
    assert bed.reopen().open_table(SHAPE, pipeline="shop").claim().progress == progress(2, 1)


@pytest.mark.law("L5")
def test_a_table_without_a_key_is_refused(bed: Bed) -> None:
    with pytest.raises(SchemaRefusedError, match="no key"):
        bed.target.open_table(shape(NAME, AMOUNT), pipeline="shop")


WEIRD = (
    "a`b",
    "a.b",
    "with space",
    "1st",
    "größe",
    "数量",
    "semi;colon",
    "quo'te\"s",
    "select",
    "a,b{c}(d)=e",
    "tab\tand\nline",
    "per%cent~",
    "_op",
    "key",
    "after",
)


@quick_on("memory", "delta", "iceberg", "postgres", "mysql", "kafka", "http")
def test_any_name_may_stand(bed: Bed) -> None:
    table_id = TableId("we`ird.schema", "ta/ble; ..\\名'")
    key = Column("the `key`.", ColumnType("varchar", length=9), nullable=False, handle=True, primary_key=True)
    columns = (key, *(Column(name, ColumnType("int"), default="3") for name in WEIRD[:8]))
    first = shape(*columns, table=table_id)
    wide = shape(
        *columns, *(Column(name, ColumnType("int"), default="3") for name in WEIRD[8:]), table=table_id
    )
    table = bed.target.open_table(first, pipeline="shop")
    epoch = table.claim().epoch
    base = {"the `key`.": "x'; --", **dict.fromkeys(WEIRD[:8], 1)}
    table.apply(bed.batch(first, [base]), progress(epoch, 1, table=table_id))
    assert table.evolve(wide).added == WEIRD[8:]
    more = {"the `key`.": "y`", **dict.fromkeys(WEIRD, 2)}
    table.apply(bed.batch(wide, [more]), progress(epoch, 2, table=table_id))
    gone = bed.batch(wide, [{**more, "the `key`.": "z"}], [{"the `key`.": "y`"}])
    table.apply(gone, progress(epoch, 3, table=table_id))
    default = 3 if bed.keeps_rows else None
    expected = [{**base, **dict.fromkeys(WEIRD[8:], default)}, {**more, "the `key`.": "z"}]
    assert bed.rows(table_id, by="the `key`.") == expected
    assert table.committed() == progress(epoch, 3, table=table_id)


@quick_on("memory", "iceberg", "postgres")
def test_two_tables_of_one_target_keep_apart(bed: Bed) -> None:
    tables = [TableId("shop", "a"), TableId("shop", "b"), TableId("Shop", "a.b"), TableId("shop", "_a")]
    for number, name in enumerate(tables, 1):
        one = shape(table=name)
        table = bed.target.open_table(one, pipeline="shop")
        epoch = table.claim().epoch
        table.apply(bed.batch(one, [row(number)]), progress(epoch, 1, table=name))
    assert [bed.rows(name) for name in tables] == [[row(1)], [row(2)], [row(3)], [row(4)]]
    assert bed.reopen().open_table(shape(table=TABLE), pipeline="shop").committed() is None


# Lakes write what is wide or big by Spark, which has no limits of a database.
@quick_on("memory", "postgres")
def test_a_wide_table_and_big_values(bed: Bed) -> None:
    columns = [Column(f"column number {at}", ColumnType("int")) for at in range(997)]
    one = shape(ID, *columns, Column("text", ColumnType("longtext")), Column("blob", ColumnType("longblob")))
    table = bed.target.open_table(one, pipeline="shop")
    epoch = table.claim().epoch
    full = {column.name: at for at, column in enumerate(columns)}
    big = {"text": "ä" * 2**20, "blob": b"\0\xff" * 2**19}
    empty = {**dict.fromkeys(full), "text": None, "blob": None}
    table.apply(bed.batch(one, [{"id": 1, **full, **big}, {"id": 2, **empty}]), progress(epoch, 1))
    table.apply(
        bed.batch(one, [{"id": 2, **full, **big}, {"id": 3, **empty}], [{"id": 4}]), progress(epoch, 2)
    )
    assert bed.rows() == [{"id": 1, **full, **big}, {"id": 2, **full, **big}, {"id": 3, **empty}]
