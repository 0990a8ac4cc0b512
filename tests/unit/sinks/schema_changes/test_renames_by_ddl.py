"""What DDL tells of names that change, and what becomes of them at the target."""

from __future__ import annotations

import pytest

from tests.unit.sinks.schema_changes.ddl_bed import Bed, T, said
from tidesink.config.fields import ChangePolicy
from tidesink.errors import SchemaRefusedError
from tidesink.sinks.schema_changes.decisions import pending_of, settle_names
from tidesink.typemap.projection import Projection

AB = "id INT PRIMARY KEY, a INT, b INT"


@pytest.mark.parametrize("policy", ["pause", "apply"])
@pytest.mark.parametrize(
    "statements",
    [
        ("RENAME COLUMN a TO old, RENAME COLUMN b TO a",),
        ("RENAME COLUMN a TO tmp", "RENAME COLUMN b TO a", "RENAME COLUMN tmp TO b"),
        ("DROP COLUMN b", "RENAME COLUMN a TO b"),
        ("RENAME COLUMN a TO c", "ADD COLUMN a INT"),
    ],
    ids=["shifted", "swapped", "onto a dropped one", "taken again"],
)
def test_a_rename_about_a_name_the_target_has_already_is_never_passed_over(
    statements: tuple[str, ...], policy: ChangePolicy
) -> None:
    bed = Bed(AB, rename=policy)
    waits = bed.alter(*statements)
    assert {(kind, accepts) for kind, _, accepts in said(waits)} == {("rename", ("ignore",))}
    assert bed.columns() == ("id", "a", "b")
    assert bed.accept(waits, "ignore") == ()
    # It was accepted: it waits no more, in this worker and in the next.
    assert bed.batch() == ()
    bed.start()
    assert bed.batch() == ()
    assert {"a", "b"} < set(bed.columns())


def test_renames_that_are_done_and_ignored_ones_stay_silent() -> None:
    bed = Bed(AB, rename="apply")
    assert bed.alter("RENAME COLUMN a TO c") == ()
    assert bed.columns() == ("id", "c", "b")
    bed.start()
    assert bed.batch() == ()
    bed = Bed(AB, rename="ignore")
    assert bed.alter("RENAME COLUMN a TO c") == ()
    bed.policies = Bed(AB).policies
    # What a target has both names of was ignored, whatever the policy is now.
    assert bed.batch() == ()


def test_what_is_told_is_of_one_moment() -> None:
    bed = Bed(AB)
    bed.ddl.later = ["ALTER TABLE t RENAME COLUMN a TO c", "ALTER TABLE t DROP COLUMN b"]
    reported = [bed.decoding.reported() for _ in range(3)]
    assert [list(one.renamed) for one in reported] == [[], ["a"], ["a"]]
    assert [[c.name for c in one.current.columns] for one in reported] == [
        ["id", "a", "b"],
        ["id", "c", "b"],
        ["id", "c"],
    ]


TOTALS = "id INT PRIMARY KEY, total INT, total_v2 INT"
V2 = Projection(None, ("total",), {"total_v2": "total"})


@pytest.mark.parametrize("policy", ["pause", "apply"])
def test_what_the_target_does_not_hold_is_not_dropped_there(policy: ChangePolicy) -> None:
    bed = Bed(TOTALS, V2, drop=policy, rename=policy)
    assert bed.columns() == ("id", "total")
    assert bed.alter("DROP COLUMN total") == ()
    assert bed.columns()[:2] == ("id", "total")
    assert bed.alter("ADD COLUMN total INT") == ()
    assert bed.columns()[:2] == ("id", "total")


def test_a_dropped_column_is_dropped_under_the_name_the_target_has() -> None:
    bed = Bed(AB, drop="apply")
    bed.projection = Projection(rename={"b": "beta"})
    bed.start()
    bed.table.evolve(bed.decoding.columns().shape)
    bed.ddl.alter("ALTER TABLE t DROP COLUMN b")
    (dropped_columns,) = bed.decoding.reported().dropped_columns
    assert dropped_columns.name == "beta"
    bed.ddl.alter("ALTER TABLE t ADD COLUMN b INT")
    assert bed.decoding.reported().readded == {"beta"}


def test_a_rename_is_one_from_the_name_the_target_has_to_the_one_it_gets() -> None:
    bed = Bed(AB, rename="apply")
    bed.projection = Projection(rename={"b": "beta"})
    bed.start()
    bed.ddl.alter("ALTER TABLE t RENAME COLUMN b TO c")
    assert bed.decoding.reported().renamed["b"][2:4] == ("c", "beta")


def test_a_list_of_columns_that_has_the_new_name_alone_still_tells_of_the_rename() -> None:
    bed = Bed(AB, rename="apply")
    bed.ddl.alter("ALTER TABLE t RENAME COLUMN b TO c")
    bed.projection = Projection(("id", "a", "c"))
    bed.start()
    assert list(bed.decoding.reported().renamed) == ["b"]
    # The target's b is another column of the source's by now.
    bed.projection = Projection(("id", "a", "c"), rename={"a": "b"})
    bed.start()
    assert bed.decoding.reported().renamed == {}


def test_an_accepted_drop_is_not_the_next_one() -> None:
    bed = Bed("id INT PRIMARY KEY, x INT", drop="pause")
    waits = bed.alter("DROP COLUMN x")
    assert said(waits) == [("drop", "int(11)", ("ignore", "apply"))]
    assert bed.accept(waits, "apply") == ()
    assert bed.columns() == ("id",)
    bed.alter("ADD COLUMN x BIGINT")
    bed.start()
    waits = bed.batch()
    # Rows of before may bring the old column's values, of which somebody said that they go.
    assert said(waits) == [("drop", "dropped added again", ("ignore",))]
    assert bed.accept(waits, "ignore") == ()
    waits = bed.alter("DROP COLUMN x")
    assert said(waits) == [("drop", "bigint(20)", ("ignore", "apply"))]
    assert bed.columns() == ("id", "x")
    # A new worker, and one that got the definitions from the store, wait for the very same change.
    bed.start()
    bed.ddl.definitions = type(bed.ddl.definitions).from_json(bed.ddl.definitions.to_json())
    assert [one.change.digest for one in bed.batch()] == [one.change.digest for one in waits]


def test_an_accepted_rename_is_not_the_next_one() -> None:
    bed = Bed("id INT PRIMARY KEY, a INT")
    assert bed.accept(bed.alter("RENAME COLUMN a TO b"), "apply") == ()
    back = bed.alter("RENAME COLUMN b TO a")
    assert bed.accept(back, "apply") == ()
    again = bed.alter("RENAME COLUMN a TO b")
    assert said(again) == [("rename", "a b", ("apply", "ignore"))]
    assert bed.columns() == ("id", "a")


def test_drops_without_a_moment_are_told_apart_by_their_number() -> None:
    bed = Bed("id INT PRIMARY KEY, x INT")
    moments = []
    for statement in ("DROP COLUMN x", "DROP COLUMN x", "ADD COLUMN x INT", "DROP COLUMN x"):
        bed.ddl.definitions.apply(f"ALTER TABLE t {statement}", "s")
        moments.append(bed.ddl.definitions.removals(T)["x"])
    assert moments == ["#1", "#1", "#1", "#2"]


def test_a_table_that_is_made_again_has_other_drops() -> None:
    bed = Bed("id INT PRIMARY KEY, x INT")
    bed.ddl.alter("ALTER TABLE t DROP COLUMN x")
    bed.ddl.alter("DROP TABLE t")
    bed.ddl.alter("CREATE TABLE t (id INT PRIMARY KEY, x INT)")
    bed.ddl.alter("ALTER TABLE t DROP COLUMN x")
    assert bed.ddl.definitions.removals(T) == {"id": "30", "x": "50"}


def test_a_column_that_has_the_name_again_that_an_ignored_rename_left_waits() -> None:
    bed = Bed("id INT PRIMARY KEY, a INT")
    assert bed.accept(bed.alter("RENAME COLUMN a TO b"), "ignore") == ()
    assert bed.columns() == ("id", "a", "b")
    assert said(bed.alter("RENAME COLUMN b TO a")) == [("rename", "b a", ("ignore",))]


@pytest.mark.parametrize("policy", ["pause", "apply", "ignore"])
def test_a_key_column_is_never_renamed(policy: ChangePolicy) -> None:
    bed = Bed("id INT PRIMARY KEY, a INT", rename=policy)
    bed.ddl.alter("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN id TO uid")
    # Another task read the DDL: this one's plan is that of before.
    names = settle_names(bed.table, bed.decoding, bed.validation)
    assert ("key", "id uid", ()) in said(names.pending)
    assert bed.columns() == ("id", "a")
    # A new worker's plan is that of after it, which the target itself refuses.
    bed.start()
    with pytest.raises(SchemaRefusedError) as refused:
        settle_names(bed.table, bed.decoding, bed.validation)
    pending = pending_of(refused.value)
    assert pending is not None
    assert (pending.change.kind, pending.accepts) == ("key", ())


def test_of_two_names_that_a_column_had_the_newest_is_renamed() -> None:
    bed = Bed("id INT PRIMARY KEY, a INT")
    assert bed.accept(bed.alter("RENAME COLUMN a TO b"), "ignore") == ()
    waits = bed.alter("RENAME COLUMN b TO c")
    assert said(waits) == [("rename", "b c", ("apply", "ignore"))]
    assert bed.accept(waits, "apply") == ()
    assert bed.columns() == ("id", "a", "c")
    assert bed.batch() == ()
    bed.start()
    assert bed.batch() == ()
    # Where the first was not ignored, its name is the one to rename.
    bed = Bed("id INT PRIMARY KEY, a INT", rename="apply")
    assert bed.alter("RENAME COLUMN a TO b", "RENAME COLUMN b TO c") == ()
    assert bed.columns() == ("id", "c")


class _TextDates(Bed):
    zero_date = "text"


@pytest.mark.parametrize("bed", [Bed, _TextDates])
@pytest.mark.parametrize(
    "kind", ["INT", "BIGINT UNSIGNED", "DATE", "DATETIME(3)", "TIMESTAMP", "ENUM('x','y')"]
)
def test_a_column_that_went_is_planned_by_the_next_worker_whatever_its_type(
    bed: type[Bed], kind: str
) -> None:
    table = bed(f"id INT PRIMARY KEY, a {kind}")
    assert table.alter("DROP COLUMN a") == ()
    table.start()
    assert table.batch() == ()
    assert [column.name for column in table.decoding.columns().shape.columns] == ["id", "a"]
