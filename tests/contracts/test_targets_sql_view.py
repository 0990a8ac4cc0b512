"""The view of a SQL table's living rows: there from the start, and in step with its table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.sql_beds import target_of
from tests.contracts.targets_bed import AMOUNT, NAME, TABLE, Bed, progress, row, shape
from tests.contracts.test_targets_history import Event, batch_of, part_of
from tests.contracts.test_targets_history import held as history_held
from tests.full import quick_on
from tidesink.errors import SchemaRefusedError
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.targets.base import DeleteMode

pytestmark = [pytest.mark.spark, pytest.mark.servers, quick_on("postgres")]
SHAPE = shape()
WIDER = shape(ID, NAME, Column("amount", ColumnType("bigint")), Column('no`te"%', ColumnType("int")))


def with_views(bed: Bed) -> Bed:
    return replace(bed, target=replace(target_of(bed), view="{table}_live"))


@pytest.fixture
def sql(sql: Bed) -> Bed:
    """Each SQL target in turn, with views."""
    return with_views(sql)


def answers(bed: Bed, *statements: str) -> list[Any]:
    """The rows of the last statement; ``{}`` is the table and ``[]`` its view."""
    place = target_of(bed).place_of(TABLE)
    with target_of(bed).connections.transaction("test") as cursor:
        for statement in statements:
            cursor.execute(statement.replace("[]", place.beside("orders_live")).replace("{}", place.location))
        return list(cursor.fetchall()) if cursor.description else []


def held(bed: Bed, *, delete_mode: DeleteMode = "hard") -> Any:
    table = bed.target.open_table(SHAPE, pipeline="shop", delete_mode=delete_mode)
    table.claim()
    return table


SHOWN = "SELECT * FROM [] ORDER BY id"


def test_a_view_goes_with_its_table_into_the_sources_order_and_over_new_columns(sql: Bed) -> None:
    table = held(sql)
    table.apply(sql.batch(SHAPE, [row(1), row(2)]), progress(1, 1))
    assert answers(sql, SHOWN) == [(1, "a", 1), (2, "a", 1)]
    table.apply(sql.batch(SHAPE, [row(3)], [{"id": 2}, {"id": 4}], at=[10, 10, 10]), progress(1, 2))
    assert len(sql.rows()) == 4
    assert answers(sql, SHOWN) == [(1, "a", 1), (3, "a", 1)]
    table.evolve(WIDER)
    more = {**row(5, "b", 2**40), 'no`te"%': 7}
    table.apply(sql.batch(WIDER, [more], at=[20]), progress(1, 3))
    assert answers(sql, SHOWN) == [(1, "a", 1, None), (3, "a", 1, None), (5, "b", 2**40, 7)]


def test_soft_deletes_are_not_shown(sql: Bed) -> None:
    table = held(sql, delete_mode="soft")
    table.apply(sql.batch(SHAPE, [row(1), row(2)], delete_mode="soft"), progress(1, 1))
    table.apply(sql.batch(SHAPE, [], [{"id": 2}], delete_mode="soft"), progress(1, 2))
    assert answers(sql, SHOWN) == [(1, "a", 1)]


def test_a_view_of_another_table_by_its_name_is_refused(sql: Bed) -> None:
    other = shape(ID, AMOUNT, table=TableId("shop", "orders_live"))
    sql.target.open_table(other, pipeline="shop")
    with pytest.raises(SchemaRefusedError, match="orders_live is a table"):
        held(sql)


def test_of_a_history_the_current_versions_are_shown(sql: Bed) -> None:
    table, epoch = history_held(sql)
    events = [Event(10, 1, "a"), Event(20, 1, "b"), Event(10, 2, "c"), Event(20, 2), Event(30, 3)]
    table.apply(batch_of(sql, events), progress(epoch, 1))
    assert len(sql.rows()) == 4
    reads = part_of(sql, [Event(15, 4, "r")])
    table.apply(reads, progress(epoch, 2))
    shown = [(row[0], *row[3:]) for row in answers(sql, SHOWN)]
    assert shown == [(1, True, "b", 20), (4, True, "r", 15)]


@pytest.mark.parametrize("made", ["SELECT id, name, amount FROM {}", "SELECT 1 AS one"])
def test_a_view_of_others_is_neither_replaced_nor_taken_for_ours(sql: Bed, made: str) -> None:
    """One over soft deletes that has all columns would show the deleted rows."""
    plain = target_of(sql)
    table = replace(plain, view=None).open_table(SHAPE, pipeline="shop", delete_mode="soft")
    table.claim()
    answers(sql, f"CREATE VIEW [] AS {made}")
    before = answers(sql, "SELECT * FROM []")
    with pytest.raises(SchemaRefusedError, match="a view that tidesink did not create"):
        held(sql, delete_mode="soft")
    assert answers(sql, "SELECT * FROM []") == before
    answers(sql, "DROP VIEW []")
    held(sql, delete_mode="soft").apply(
        sql.batch(SHAPE, [row(1)], [{"id": 2}], delete_mode="soft"), progress(2, 1)
    )
    assert answers(sql, SHOWN) == [(1, "a", 1)]
    answers(sql, "DROP VIEW []", f"CREATE VIEW [] AS {made}")
    with pytest.raises(SchemaRefusedError, match="a view that tidesink did not create"):
        held(sql, delete_mode="soft")


def test_a_table_by_the_name_of_a_view_is_refused_and_its_rows_are_safe(sql: Bed) -> None:
    held(sql).apply(sql.batch(SHAPE, [row(1)]), progress(1, 1))
    named = shape(ID, NAME, AMOUNT, table=TableId("shop", "orders_live"))
    with pytest.raises(SchemaRefusedError, match=r"shop\.orders_live is not a table but a view"):
        sql.target.open_table(named, pipeline="shop")
    assert answers(sql, SHOWN) == [(1, "a", 1)]


GIVEN = (
    'GRANT SELECT ON [] TO pg_monitor, "pg_read_all_stats"',
    "GRANT SELECT ON [] TO pg_stat_scan_tables WITH GRANT OPTION",
    "GRANT SELECT (name) ON [] TO pg_signal_backend",
    "COMMENT ON VIEW [] IS 'o''%s'",
)
HAS = (
    "SELECT has_table_privilege('pg_read_all_stats', '[]', 'SELECT'), "
    "has_table_privilege('pg_read_all_stats', '[]', 'SELECT WITH GRANT OPTION'), "
    "has_table_privilege('pg_signal_backend', '[]', 'SELECT'), "
    "has_column_privilege('pg_signal_backend', '[]', 'name', 'SELECT'), "
    "has_table_privilege('pg_stat_scan_tables', '[]', 'SELECT WITH GRANT OPTION'), "
    "obj_description('[]'::regclass, 'pg_class')"
)


def test_a_view_in_step_is_left_alone_and_keeps_its_rights(postgres_sql: Bed) -> None:
    bed = with_views(postgres_sql)
    table = held(bed)
    made = "SELECT oid, xmin::text FROM pg_class WHERE oid = 'shop.orders_live'::regclass"
    answers(bed, *GIVEN)
    before = answers(bed, made)
    held(bed)
    assert answers(bed, made) == before
    table = held(bed)
    table.evolve(WIDER)
    assert answers(bed, made) != before
    assert answers(bed, HAS) == [(True, False, False, True, True, "o'%s")]
    # The right to a column goes with the column, and holds nothing up.
    table.drop_columns(["name"])
    assert answers(bed, "SELECT has_any_column_privilege('pg_signal_backend', '[]', 'SELECT')") == [(False,)]
    assert answers(bed, "SELECT has_table_privilege('pg_monitor', '[]', 'SELECT')") == [(True,)]


def test_a_view_that_was_dropped_is_made_again(sql: Bed) -> None:
    held(sql).apply(sql.batch(SHAPE, [row(1)]), progress(1, 1))
    answers(sql, "DROP VIEW []")
    held(sql)
    assert answers(sql, SHOWN) == [(1, "a", 1)]
