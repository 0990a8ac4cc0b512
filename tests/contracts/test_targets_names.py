"""Names on each target: of the greatest length that it takes, of one character more, and those of routes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import pytest

from tests.columns import ID
from tests.contracts.targets_bed import AMOUNT, Bed, progress, row, shape
from tests.full import quick_on
from tidesink.config.models import Destination
from tidesink.errors import SchemaRefusedError, StaleProgressError
from tidesink.events import Column, ColumnType, TableId
from tidesink.schema_registry.naming import MAX_TOPIC_LENGTH
from tidesink.sinks.laws.modes import routed_shape
from tidesink.sinks.targets.base import Claim
from tidesink.sinks.targets.stream.kafka import KafkaTarget

pytestmark = quick_on("memory", "postgres", "mysql")


class Longest(NamedTuple):
    """A column's and a table's name that no character may be added to, but for those that ``grow``."""

    column: str
    table: str
    grow: tuple[str, ...] = ()


# No source has names as long as these.
FREE: Final = "ä" * 300
# What a file system takes for a folder's name, in bytes.
FOLDER: Final = "ü" * 127 + "x"
# Of targets that do not take every name.
LONGEST: Final = {
    "delta": Longest(FREE, FOLDER, ("column",)),
    "iceberg": Longest(FREE, FOLDER, ("column",)),
    "postgres": Longest("ä" * 31 + "x", "ü" * 31 + "x"),
    "mysql": Longest("ä" * 64, "ü" * 64),
}


def longest_of(bed: Bed) -> Longest:
    """What the bed's target takes; a topic of its longest name, which is cut where a table's is longer."""
    found = LONGEST.get(bed.name, Longest(FREE, FREE, ("column", "table")))
    if not isinstance(bed.target, KafkaTarget):
        return found
    room = MAX_TOPIC_LENGTH - len(bed.target.settings.rule.topic_for(TableId("shop", "")))
    return found._replace(table="t" * room)


def table_of(bed: Bed, name: str) -> TableId:
    """A table of this name, in a schema of the same one where they are not joined to one name."""
    return TableId("shop" if bed.name == "kafka" else name, name)


def number(name: str) -> Column:
    return Column(name, ColumnType("int"), default="3")


def test_names_of_the_greatest_length_may_stand(bed: Bed) -> None:
    """Also beside others that differ in their last character alone."""
    longest = longest_of(bed)
    name, other = longest.column, longest.column[:-1] + "y"
    key = replace(number(longest.column[:-1] + "k"), default=None, handle=True, primary_key=True)
    tables = [table_of(bed, longest.table), table_of(bed, longest.table[:-1] + "y")]
    default = 3 if bed.keeps_rows else None
    for at, table_id in enumerate(tables):
        first = shape(key, number(name), table=table_id)
        table = bed.target.open_table(first, pipeline="shop")
        epoch = table.claim().epoch
        table.apply(bed.batch(first, [{key.name: 1, name: 1}]), progress(epoch, 1, table=table_id))
        wider = shape(key, number(name), number(other), table=table_id)
        assert table.evolve(wider).added == (other,)
        later = bed.batch(wider, [{key.name: 2, name: at, other: 2}], [{key.name: 9}])
        table.apply(later, progress(epoch, 2, table=table_id))
        assert table.committed() == progress(epoch, 2, table=table_id)
    for at, table_id in enumerate(tables):
        assert bed.rows(table_id, by=key.name) == [
            {key.name: 1, name: 1, other: default},
            {key.name: 2, name: at, other: 2},
        ]


def test_a_column_whose_name_is_longer_is_kept_or_refused_by_name(bed: Bed) -> None:
    longest = longest_of(bed)
    longer = longest.column + "x"
    table = bed.target.open_table(shape(ID, AMOUNT), pipeline="shop")
    epoch = table.claim().epoch
    table.apply(bed.batch(shape(ID, AMOUNT), [{"id": 1, "amount": 1}]), progress(epoch, 1))
    wider = shape(ID, AMOUNT, number(longer))
    if "column" not in longest.grow:
        with pytest.raises(SchemaRefusedError, match=longer):
            table.evolve(wider)
        with pytest.raises(SchemaRefusedError, match=longer):
            bed.target.open_table(shape(ID, number(longer), table=TableId("shop", "new")), pipeline="shop")
        table.apply(bed.batch(shape(ID, AMOUNT), [{"id": 1, "amount": 2}]), progress(epoch, 2))
        assert bed.rows() == [{"id": 1, "amount": 2}]
        return
    assert table.evolve(wider).added == (longer,)
    table.apply(bed.batch(wider, [{"id": 1, "amount": 2, longer: 5}]), progress(epoch, 2))
    assert bed.rows() == [{"id": 1, "amount": 2, longer: 5}]


@quick_on("delta", "mysql")
def test_columns_that_the_source_tells_apart_are_two_or_refused_by_name(bed: Bed) -> None:
    """To TiDB the first is ασ and so another; to Spark and Java both are ας."""
    first, second = "ΑΣ", "ας"
    one, both = shape(ID, number(first)), shape(ID, number(first), number(second))
    table = bed.target.open_table(one, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(bed.batch(one, [{"id": 1, first: 1}]), progress(epoch, 1))
    if bed.name in ("delta", "iceberg"):
        with pytest.raises(
            SchemaRefusedError, match=f"columns {first} and {second} have the same upper case"
        ):
            table.evolve(both)
        with pytest.raises(
            SchemaRefusedError, match=f"columns {first} and {second} have the same upper case"
        ):
            bed.target.open_table(replace(both, table=TableId("shop", "new")), pipeline="shop")
        renamed = shape(ID, number("ασ"))
        assert not table.evolve(renamed).added
        table.apply(bed.batch(renamed, [{"id": 1, "ασ": 2}]), progress(epoch, 2))
        assert bed.rows() == [{"id": 1, first: 2}]
        return
    assert table.evolve(both).added == (second,)
    table.apply(bed.batch(both, [{"id": 1, first: 2, second: 3}]), progress(epoch, 2))
    assert bed.rows() == [{"id": 1, first: 2, second: 3}]


# A column that a target takes into no table.
UNTAKEN: Final = {
    "delta": "_metadata",
    "iceberg": "_file",
    **{name: LONGEST[name].column + "x" for name in ("postgres", "mysql")},
}


def test_a_column_that_is_left_out_is_no_matter_when_the_table_is_opened_again(bed: Bed) -> None:
    """As ``schema-changes: add: ignore`` has it: a worker that starts knows the source's columns alone."""
    kept, name = shape(ID, AMOUNT), UNTAKEN.get(bed.name, "more")
    theirs = shape(ID, AMOUNT, number(name))
    table = bed.target.open_table(kept, pipeline="shop")
    table.apply(bed.batch(kept, [{"id": 1, "amount": 1}]), progress(table.claim().epoch, 1))
    again = bed.reopen().open_table(theirs, pipeline="shop")
    epoch = again.claim().epoch
    assert again.gap(theirs).added == (name,)
    assert not again.evolve(kept).added
    again.apply(bed.batch(kept, [{"id": 1, "amount": 2}]), progress(epoch, 2))
    assert bed.rows() == [{"id": 1, "amount": 2}]
    if bed.name in UNTAKEN:
        with pytest.raises(SchemaRefusedError, match=name):
            again.evolve(theirs)


def test_a_table_with_another_name_is_its_sources(bed: Bed) -> None:
    """Topics, URLs and messages have the target's name: a bed reads what stands under it alone."""
    first, second, goal = (TableId(schema, "orders") for schema in ("shop_1", "shop_2", "shop"))
    renamed = routed_shape(shape(table=first), Destination(goal))
    table = bed.target.open_table(renamed, pipeline="shop")
    table.apply(bed.batch(renamed, [row(1)]), progress(table.claim().epoch, 1, table=first))
    again = bed.reopen().open_table(renamed, pipeline="shop")
    assert again.claim() == Claim(2, progress(2, 1, table=first))
    assert bed.rows(goal) == [row(1)]
    other = bed.reopen().open_table(routed_shape(shape(table=second), Destination(goal)), pipeline="shop")
    if bed.name != "memory":
        with pytest.raises(StaleProgressError, match=r"rows of shop_1\.orders"):
            other.claim()


def test_a_table_whose_name_is_longer_is_kept_or_refused_by_name(bed: Bed) -> None:
    longest = longest_of(bed)
    names = [longest.table + "x", longest.table + "y"]
    if "table" not in longest.grow:
        with pytest.raises(SchemaRefusedError, match=names[0]):
            bed.target.open_table(shape(table=TableId("shop", names[0])), pipeline="shop")
        with pytest.raises(SchemaRefusedError, match=names[0]):
            bed.target.open_table(shape(table=TableId(names[0], "orders")), pipeline="shop")
        return
    for amount, name in enumerate(names):
        one = shape(table=table_of(bed, name))
        table = bed.target.open_table(one, pipeline="shop")
        epoch = table.claim().epoch
        table.apply(bed.batch(one, [row(1, amount=amount)]), progress(epoch, 1, table=one.table))
    for amount, name in enumerate(names):
        assert bed.rows(table_of(bed, name)) == [row(1, amount=amount)]
