"""What a column's type was when a row was committed, by the DDL a topic told of."""

from __future__ import annotations

import pytest

from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import NEVER, ddl_moment, reads_same, row_moment
from tidesink.errors import ConfigError
from tidesink.events import Column, ColumnType, EarlierType, TableId
from tidesink.typemap.mysql_types import parse_sql_type

T = TableId("s", "t")
CREATE = "create table t (id int primary key, e enum('a','b'))"


def _definitions(*statements: tuple[str, int | None]) -> TableDefinitions:
    definitions = TableDefinitions()
    for sql, since in statements:
        definitions.apply(sql, "s", since=since)
    return definitions


def _column(definitions: TableDefinitions, name: str = "e", table: TableId = T) -> Column:
    found = definitions.get(table)
    assert found is not None
    return found.by_name[name]


def _labels(column: Column, *moments: int) -> list[tuple[str, ...] | None]:
    return [column.type_at(at).members for at in moments]


def test_members_numbered_anew_hold_from_the_ddl_on() -> None:
    definitions = _definitions((CREATE, 10), ("alter table t modify e enum('b','a')", 20))
    column = _column(definitions)
    assert column.earlier == (EarlierType(parse_sql_type("enum('a','b')"), until=20),)
    assert _labels(column, 0, 19, 20, NEVER) == [("a", "b"), ("a", "b"), ("b", "a"), ("b", "a")]
    assert definitions.timed


def test_members_added_behind_the_others_take_their_place() -> None:
    definitions = _definitions((CREATE, 10), ("alter table t modify e enum('a','b','c')", 20))
    assert _column(definitions).earlier == ()
    assert not definitions.timed


@pytest.mark.parametrize(
    ("alter", "reads"),
    [
        ("modify e enum('z','a','b')", "enum"),
        ("modify e enum('b')", "enum"),
        ("modify e set('a','b')", "enum"),
        ("modify e varchar(9)", "enum"),
        ("change e e varbinary(9)", "enum"),
        ("drop column e, add column e enum('b','a')", "enum"),
    ],
)
def test_what_else_reads_rows_from_before_otherwise(alter: str, reads: str) -> None:
    column = _column(_definitions((CREATE, 10), (f"alter table t {alter}", 20)))
    assert [(was.type.name, was.until) for was in column.earlier] == [(reads, 20)]
    assert not reads_same(column.type, column.earlier[0].type)


@pytest.mark.parametrize(
    ("was", "now", "alike"),
    [
        ("enum('a')", "enum('a','b')", True),
        ("enum('a','b')", "enum('a')", False),
        ("set('a','b')", "set('b','a')", False),
        ("enum('a')", "int", True),
        ("varchar(9)", "varbinary(9)", False),
        ("varbinary(9)", "blob", True),
        ("blob", "text", False),
        ("int", "varchar(9)", True),
        ("date", "datetime", False),
        ("datetime(6)", "datetime", True),
        ("datetime", "timestamp", True),
        ("decimal(10,4)", "decimal(10,2)", True),
        ("bit(4)", "int", True),
        ("varchar(9)", "varchar(3)", True),
    ],
)
def test_types_whose_texts_mean_the_same(was: str, now: str, alike: bool) -> None:
    assert reads_same(parse_sql_type(now), parse_sql_type(was)) is alike


def test_numbers_that_became_narrower_are_remembered_for_their_width() -> None:
    definitions = _definitions(
        ("create table t (id int primary key, d decimal(10,4), w bigint)", 10),
        ("alter table t modify d decimal(12,4), modify w bigint unsigned", 20),
        ("alter table t modify d decimal(10,2), modify w int", 30),
    )
    assert [was.type.sql for was in _column(definitions, "d").earlier] == ["decimal(12,4)"]
    assert [was.type.name for was in _column(definitions, "w").earlier] == ["bigint unsigned"]


def test_a_type_between_two_others_is_not_forgotten() -> None:
    definitions = _definitions(
        (CREATE, 10), ("alter table t modify e int", 20), ("alter table t modify e enum('b','a')", 30)
    )
    assert _labels(_column(definitions), 15, 35) == [("a", "b"), ("b", "a")]


def test_a_statement_sent_again_behind_newer_ones_changes_nothing() -> None:
    newest = ("alter table t modify e enum('b','a')", 30)
    definitions = _definitions((CREATE, 10), ("alter table t add c int", 20), newest)
    before = definitions.get(T)
    for sql, since in ((CREATE, 10), ("alter table t add c int", 20), ("drop table t", 5)):
        definitions.apply(sql, "s", since=since)
        assert definitions.get(T) == before
    definitions.apply(*newest[:1], "s", since=30)
    assert definitions.get(T) == before
    assert definitions.apply("drop table t", "s", since=40) == (T,)


def _made_by_another(name: str) -> tuple[str, str]:
    """A table made beside ``t``, and the statement in which it takes its place."""
    create = f"create table {name} (id int primary key, e enum('b','a'))"
    return create, f"rename table t to _t_del, {name} to t"


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("create", "rename"),
    [
        _made_by_another("_t_gho"),
        (_made_by_another("u")[0], "rename table t to x, u to t, x to u"),
    ],
)
def test_a_rename_sent_again_does_not_move_tables_twice(create: str, rename: str, restarts: bool) -> None:
    definitions = _definitions((CREATE, 10), (create, 20), (rename, 30))
    before = definitions.get(T)
    if restarts:
        definitions = TableDefinitions.from_json(definitions.to_json())
    assert definitions.apply(rename, "s", since=30) == ()
    assert definitions.get(T) == before
    assert _labels(_column(definitions), 29, 30) == [("a", "b"), ("b", "a")]
    assert definitions.apply("drop table t", "s", since=30) == (T,)


def test_a_statement_that_could_not_be_read_is_not_taken_for_done() -> None:
    definitions = _definitions((CREATE, 10))
    for _ in range(2):
        with pytest.raises(ConfigError):
            definitions.apply("alter table t modify nothing int", "s", since=20)


def test_a_table_dropped_and_made_again_keeps_what_it_was() -> None:
    definitions = _definitions(
        (CREATE, 10), ("drop table t", 20), ("create table t (id int primary key, e enum('b','a'))", 30)
    )
    assert _labels(_column(definitions), 15, 35) == [("a", "b"), ("b", "a")]


def test_columns_and_tables_that_are_gone_are_known_by_name() -> None:
    definitions = _definitions((CREATE, 10), ("alter table t rename column e to f", 20))
    assert [(c.name, c.type.members) for c in definitions.dropped_columns(T)] == [("e", ("a", "b"))]
    definitions.apply("rename table t to u", "s", since=30)
    assert [c.name for c in definitions.dropped_columns(T)] == ["id", "e", "f"]
    assert _column(definitions, "f", TableId("s", "u")).earlier == ()


def test_without_a_time_a_definition_holds_for_all_rows() -> None:
    column = _column(_definitions((CREATE, None), ("alter table t modify e enum('b','a')", None)))
    assert column.earlier == ()


def test_the_config_comes_first_and_ddl_follows_it() -> None:
    definitions = TableDefinitions()
    definitions.declare("create table t (id int primary key, e enum('x','y'))", "s")
    definitions.apply(CREATE, "s", since=10)
    assert _column(definitions).type.members == ("x", "y")
    definitions.apply("alter table t modify e enum('y','x')", "s", since=20)
    assert _labels(_column(definitions), 15, 25) == [("x", "y"), ("y", "x")]


def test_a_table_of_any_schema_follows_ddl_in_time() -> None:
    definitions = TableDefinitions()
    definitions.declare("create table t (id int primary key, e enum('x','y'))")
    definitions.apply("alter table t modify e enum('y','x')", "s", since=20)
    assert _labels(_column(definitions), 15, 25) == [("x", "y"), ("y", "x")]


def test_a_restart_keeps_it_all() -> None:
    definitions = _definitions(
        (CREATE, 10), ("alter table t modify e enum('b','a')", 20), ("alter table t drop column e", 30)
    )
    again = TableDefinitions.from_json(definitions.to_json())
    assert (again.get(T), again.dropped_columns(T)) == (definitions.get(T), definitions.dropped_columns(T))
    assert again.timed
    assert [_labels(column, 15, 25) for column in again.dropped_columns(T)] == [[("a", "b"), ("b", "a")]]
    again.apply("alter table t add e enum('q')", "s", since=40)
    assert _labels(_column(again), 15, 25, 45) == [("a", "b"), ("b", "a"), ("q",)]
    again.apply(CREATE, "s", since=10)
    assert _column(again).type.members == ("q",)


def test_times_without_a_commit_ts_are_milliseconds() -> None:
    ddl = ddl_moment(None, 5)
    assert ddl is not None
    assert row_moment(None, 4) < ddl <= row_moment(None, 5)
    assert row_moment(ddl - 1, 5) < ddl == row_moment(ddl, 5)
    assert (ddl_moment(7, 5), ddl_moment(None, None), ddl_moment(None, "5")) == (7, None, None)
    assert (row_moment(None, None), row_moment(None, True)) == (NEVER, NEVER)
    last = (1 << 45) - 1
    assert ddl_moment(None, last) == last << 18
    assert [ddl_moment(None, at) for at in (last + 1, 1 << 60, -1, 0, True, 5.0)] == [None] * 6
    assert (ddl_moment((1 << 63) - 1, 5), ddl_moment(1 << 63, 5)) == ((1 << 63) - 1, None)
    assert (row_moment(None, last), row_moment(None, last + 1)) == ((last << 18) + (1 << 18) - 1, NEVER)


def test_an_old_type_is_that_of_a_column() -> None:
    column = Column("e", ColumnType("int"), earlier=(EarlierType(ColumnType("text"), 5),))
    assert (column.type_at(4).name, column.type_at(5).name) == ("text", "int")
