"""A column that is left out, under DDL that takes names away, gives them again and swaps them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.told_bed import Bed, T, said
from tidesink.config.fields import ChangePolicy
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import ColumnNames, followed
from tidesink.sinks.schema_sources.topic_ddl import reported_by
from tidesink.typemap.projection import Layout

CREATE = "id INT PRIMARY KEY, name INT, phone INT"
NO_PHONE = Layout(except_columns=("Phone",))


def _bed(columns: str, *later: str, layout: Layout | None = None, **policies: ChangePolicy) -> Bed:
    """A bed whose target holds all of its columns after some DDL, and whose layout comes then."""
    bed = Bed(columns, rename="apply")
    for statement in later:
        assert bed.alter(statement) == ()
    bed.policies = Bed(columns, **policies).policies
    bed.layout = layout
    bed.start()
    return bed


def _planned(bed: Bed) -> list[str]:
    return [column.name for column in bed.decoding.columns().shape.columns]


@pytest.mark.parametrize("drop", ["pause", "ignore", "apply"])
@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE t DROP COLUMN mobile",),
        ("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY, name INT)"),
        ("DROP TABLE t", f"CREATE TABLE t ({CREATE.replace('phone', 'mobile')})"),
        ("ALTER TABLE t DROP COLUMN mobile", "ALTER TABLE t ADD COLUMN mobile INT"),
        ("ALTER TABLE t RENAME COLUMN mobile TO cell", "ALTER TABLE t DROP COLUMN cell"),
    ],
    ids=["dropped", "made again", "made again with it", "added again", "renamed and dropped"],
)
def test_an_excluded_column_that_was_renamed_stays_left_out_when_it_goes(
    statements: tuple[str, ...], drop: ChangePolicy
) -> None:
    bed = Bed(CREATE, NO_PHONE, drop=drop)
    assert bed.alter("RENAME COLUMN phone TO mobile") == ()
    # The DDL is read ahead of rows that bring the column as mobile.
    for statement in statements:
        bed.ddl.alter(statement)
    assert bed.batch() == ()
    assert bed.columns == ("id", "name")
    # A new worker knows it from the state that was written down.
    bed.ddl.definitions = TableDefinitions.from_json(bed.ddl.definitions.to_json())
    bed.start()
    assert bed.batch() == ()
    assert (bed.columns, _planned(bed)) == (("id", "name"), ["id", "name"])


def test_state_from_before_keeps_the_renames_that_it_has() -> None:
    bed = Bed(CREATE, NO_PHONE, drop="ignore")
    bed.alter("RENAME COLUMN phone TO mobile")
    text = bed.ddl.definitions.to_json()
    older = text.replace('"names":', '"unread":')
    assert older != text
    bed.ddl.definitions = TableDefinitions.from_json(older)
    bed.start()
    assert bed.alter("DROP COLUMN mobile") == ()
    assert bed.columns == ("id", "name")


NOTES = ("RENAME COLUMN note TO remark", "ADD COLUMN note INT")
NO_NOTE = Layout(except_columns=("note",))


@pytest.mark.parametrize("later", [(), ("DROP COLUMN note",)], ids=["there", "gone again"])
def test_a_listed_name_that_is_another_columns_now_leaves_the_first_one_in(later: tuple[str, ...]) -> None:
    bed = _bed("id INT PRIMARY KEY, note INT", *NOTES, layout=NO_NOTE)
    assert bed.alter(*later) == ()
    assert _planned(bed) == ["id", "remark"]
    assert (bed.decoding.warnings, bed.batch()) == ((), ())


def test_the_first_one_waits_where_the_target_lacks_it() -> None:
    bed = Bed("id INT PRIMARY KEY, note INT", NO_NOTE)
    waits = bed.alter(*NOTES)
    assert said(waits) == [("add", "note int(11)", ("apply", "ignore"))]
    assert "remark" in str(waits[0].change)
    assert "it had the name note, which except_column_list names" in waits[0].reason
    assert bed.columns == ("id",)
    assert bed.accept(waits, "apply") == ()
    assert bed.columns == ("id", "remark")
    # What was decided is whose values it may have: a wider type asks nothing again.
    assert bed.alter("MODIFY COLUMN remark BIGINT") == ()


def test_the_list_never_follows_onto_a_key_column() -> None:
    columns = "uid INT PRIMARY KEY, a INT"
    bed = Bed(columns)
    bed.ddl.alter("ALTER TABLE t RENAME COLUMN uid TO id, ADD COLUMN uid INT")
    bed.layout = Layout(except_columns=("uid",))
    bed.start()
    assert _planned(bed) == ["id", "a"]
    bed = Bed(columns)
    bed.ddl.alter("ALTER TABLE t RENAME COLUMN uid TO id")
    bed.layout = Layout(except_columns=("uid",))
    bed.start()
    assert _planned(bed) == ["id", "a"]


CARDS = "id INT PRIMARY KEY, card INT, card_new INT"
NO_CARD = Layout(except_columns=("card",))


@pytest.mark.parametrize("rename", ["pause", "apply"])
@pytest.mark.parametrize(
    "first", ["RENAME COLUMN card TO card_old", "DROP COLUMN card"], ids=["renamed", "dropped"]
)
def test_a_wanted_column_that_gets_a_listed_name_makes_the_table_wait(
    first: str, rename: ChangePolicy
) -> None:
    bed = Bed(CARDS, NO_CARD, rename=rename)
    waits = bed.alter(first, "RENAME COLUMN card_new TO card")
    assert said(waits) == [("rename", "card_new card", ("ignore",))]
    assert "card now, which except_column_list names" in waits[0].reason
    assert bed.columns == ("id", "card_new")
    waits = bed.accept(waits, "ignore")
    # What was card is doubted by itself.
    assert said(waits) == ([("add", "card int(11)", ("apply", "ignore"))] if "card_old" in first else [])
    assert bed.accept(waits, "ignore") == ()
    assert bed.columns == ("id", "card_new")


def test_an_excluded_column_that_swaps_names_with_a_wanted_one_waits_twice() -> None:
    bed = Bed("id INT PRIMARY KEY, a INT, b INT", Layout(except_columns=("a",)))
    swap = ("RENAME COLUMN a TO tmp", "RENAME COLUMN b TO a", "RENAME COLUMN tmp TO b")
    waits = bed.alter(*swap)
    assert ("rename", "b a", ("ignore",)) in said(waits)
    waits = bed.accept(waits, "ignore")
    # The target has a b; that of the source has a's values.
    assert [(one.change.kind, one.change.column) for one in waits] == [("add", "b")]
    assert bed.columns == ("id", "b")


def test_a_column_that_has_its_listed_name_again_is_left_out_in_rows_from_between() -> None:
    bed = Bed(CREATE, NO_PHONE)
    assert bed.alter("RENAME COLUMN phone TO mobile", "RENAME COLUMN mobile TO phone") == ()
    assert (bed.columns, _planned(bed)) == (("id", "name"), ["id", "name"])


def test_a_name_that_was_another_columns_in_an_earlier_table_is_no_proof() -> None:
    bed = Bed("id INT PRIMARY KEY, name INT", drop="ignore", rename="ignore")
    bed.ddl.alter("DROP TABLE t")
    bed.ddl.alter("CREATE TABLE t (id INT PRIMARY KEY, phone INT, city INT)")
    bed.ddl.alter("ALTER TABLE t RENAME COLUMN phone TO name")
    bed.ddl.alter("ALTER TABLE t ADD COLUMN phone INT")
    bed.layout = NO_PHONE
    bed.start()
    # The target's name is what the first table had.
    assert [(one.change.kind, one.change.column) for one in bed.batch()] == [("add", "name")]


def test_names_that_change_hands_lay_the_same_columns_out_again() -> None:
    bed = Bed(CREATE, NO_PHONE, drop="ignore", rename="ignore")
    assert _planned(bed) == ["id", "name"]
    assert bed.alter("DROP COLUMN name") == ()
    assert _planned(bed) == ["id", "name"]
    bed.ddl.alter("ALTER TABLE t RENAME COLUMN phone TO name")
    bed.ddl.alter("ALTER TABLE t RENAME COLUMN name TO phone")
    inner = bed.inner.columns()
    bed.batch()
    # Rows of between have the column to leave out as name.
    assert (bed.inner.columns() is inner, _planned(bed)) == (True, ["id"])


def test_ddl_that_another_lane_reads_in_between_is_no_error_of_the_config() -> None:
    bed = Bed(CREATE, NO_PHONE)
    bed.ddl.alter("ALTER TABLE t RENAME COLUMN phone TO mobile")
    # This task's plan is that of before, and is laid out again.
    bed.decoding._plans = None
    assert _planned(bed) == ["id", "name"]


def _names(*statements: str) -> ColumnNames:
    definitions = TableDefinitions()
    for number, statement in enumerate((f"CREATE TABLE t ({CREATE})", *statements), start=1):
        definitions.apply(statement, "s", since=number)
    reported: Any = reported_by(definitions, T)
    found: ColumnNames = reported.names
    return found


def test_names_are_those_of_the_table_alone() -> None:
    rename = "ALTER TABLE t RENAME COLUMN phone TO mobile"
    assert followed(NO_PHONE, _names(rename), ["id"]).names == ("mobile",)
    definitions = TableDefinitions()
    for statement in (f"CREATE TABLE t ({CREATE})", rename, "RENAME TABLE t TO u"):
        definitions.apply(statement, "s")
    assert definitions.names(T._replace(name="u")).pairs == ()
    assert definitions.names(T).pairs == (("phone", "mobile"),)
