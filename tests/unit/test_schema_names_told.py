"""What DDL tells of names that change, and what becomes of them at the target."""

from __future__ import annotations

import pytest

from tests.unit.told_bed import Bed, said
from tidesink.config.schema_changes import ChangePolicy

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
    assert bed.columns == ("id", "a", "b")
    assert bed.accept(waits, "ignore") == ()
    # It was accepted: it waits no more, in this worker and in the next.
    assert bed.batch() == ()
    bed.start()
    assert bed.batch() == ()
    assert {"a", "b"} < set(bed.columns)


def test_renames_that_are_done_and_ignored_ones_stay_silent() -> None:
    bed = Bed(AB, rename="apply")
    assert bed.alter("RENAME COLUMN a TO c") == ()
    assert bed.columns == ("id", "c", "b")
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
    told = [bed.decoding.told() for _ in range(3)]
    assert [list(one.renamed) for one in told] == [[], ["a"], ["a"]]
    assert [[c.name for c in one.current.columns] for one in told] == [
        ["id", "a", "b"],
        ["id", "c", "b"],
        ["id", "c"],
    ]
