"""What DDL statements do: to definitions, to existing rows, and what the target does not follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.row_changes import DdlEffects, RowDdl
from tidesink.ddl.topic_statements import DdlStatement, learn, with_rows
from tidesink.events import TableId

CREATE: Final = "create table t (id int primary key, a int, b varchar(5))"
T: Final = TableId("s", "t")


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("ADD COLUMN c INT DEFAULT 5", True),
        ("COMMENT = 'x', MODIFY c BIGINT", True),
        ("ADD PRIMARY KEY (a)", True),
        ("RENAME COLUMN a TO b", True),
        ("ALTER a DROP DEFAULT", True),
        ("ADD INDEX i (a)", False),
        ("DROP PARTITION p0", False),
        ("RENAME TO u", False),
        ("AUTO_INCREMENT = 5", False),
    ],
)
def test_alters_that_change_columns_or_keys(part: str, changes: bool) -> None:
    assert DdlEffects(f"ALTER TABLE t {part}", "s").altered_tables() == ((T,) if changes else ())


@pytest.mark.parametrize(
    ("part", "had", "has"),
    [
        ("ADD COLUMN c int", "a int", "a int, c int"),
        ("ADD COLUMN c int FIRST", "a int", "c int, a int"),
        ("ADD COLUMN (c int, d int)", "a int", "a int, c int, d int"),
        ("ADD COLUMN c int, DROP COLUMN a", "a int, b int", "b int, c int"),
        ("DROP COLUMN a", "a int, b int", "b int"),
        ("RENAME COLUMN a TO c", "a int", "c int"),
        ("CHANGE COLUMN a c bigint", "a int", "c bigint"),
        ("MODIFY COLUMN a enum('x','y')", "a enum('x')", "a enum('x','y')"),
        ("MODIFY COLUMN a int AFTER b", "a int, b int", "b int, a int"),
        ("ALTER a SET DEFAULT 5", "a int", "a int DEFAULT 5"),
        ("ADD UNIQUE KEY u (a)", "a int not null", "a int not null, unique key u (a)"),
        ("DROP INDEX u", "a int not null, unique key u (a)", "a int not null"),
    ],
)
def test_an_alter_that_the_definition_has_already_changes_nothing(part: str, had: str, has: str) -> None:
    """A definition of the database may be newer than the moment at which it was asked for."""
    create, alter = "create table t ({})", f"ALTER TABLE t {part}"
    told, looked_up = TableDefinitions(), TableDefinitions()
    assert not learn(told, [DdlStatement("s", create.format(had), 10)], "cdc").warnings
    before = told.get(T)
    warnings = learn(told, [DdlStatement("s", alter, 20)], "cdc").warnings
    assert told.get(T) != before
    shown = [DdlStatement("s", create.format(has), 15), DdlStatement("s", alter, 20)]
    assert learn(looked_up, shown, "cdc").warnings == warnings
    assert _columns(looked_up) == _columns(told)
    assert not looked_up.readded()


def _columns(definitions: TableDefinitions) -> list[Any]:
    """As the last definition has them: what they were before is not in what the database shows."""
    found = definitions.get(T)
    assert found is not None
    columns = [
        replace(column, earlier=(), origin_default=None, redefaulted=False, column_id=None)
        for column in found.columns
    ]
    return [columns, [column.name for column in found.handle_columns]]


def _said(*statements: str) -> list[str]:
    definitions = TableDefinitions()
    learned = learn(definitions, [DdlStatement("s", sql) for sql in statements], "cdc")
    return [warning.text for warning in learned.warnings]


def test_the_event_of_a_rename_tells_the_database_of_the_new_name() -> None:
    definitions = TableDefinitions()
    created, renamed = (
        DdlStatement("other", sql, table=table)
        for sql, table in ((CREATE, "t"), ("ALTER TABLE `other`.`t` RENAME TO `u`", "u"))
    )
    assert learn(definitions, [created, renamed], "cdc").warnings == []
    assert [*definitions] == [TableId("other", "u")]


def test_an_alter_of_a_table_nothing_told_of_is_said() -> None:
    (said,) = _said("ALTER TABLE t ADD COLUMN c INT DEFAULT 5")
    assert "s.t, whose definition is not known" in said
    assert "Add a definition under tables" in said
    assert said.endswith("Statement: ALTER TABLE t ADD COLUMN c INT DEFAULT 5")
    assert _said(CREATE, "ALTER TABLE t ADD COLUMN c INT DEFAULT 5") == []
    assert _said(f"{CREATE}; ALTER TABLE t ADD COLUMN c INT DEFAULT 5") == []
    assert _said("ALTER TABLE t ADD INDEX i (a)") == []


def test_a_column_added_under_the_name_of_a_dropped_one_is_said() -> None:
    assert _said(CREATE, "ALTER TABLE t DROP COLUMN a") == []
    (said,) = _said(CREATE, "ALTER TABLE t DROP COLUMN a", "ALTER TABLE t ADD COLUMN a INT")
    assert "column a was dropped and added again" in said


def test_a_statement_that_cannot_be_read_says_so_beside_what_it_does() -> None:
    said = _said(CREATE, "ALTER TABLE t RENAME COLUMN a TO c, MODIFY nothing INT")
    assert ["column a was renamed to c" in said[0], "cannot be read" in said[1]] == [True, True]


def test_long_statements_are_cut() -> None:
    said, _ = _said(f"ALTER TABLE t RENAME COLUMN a TO b /* {'x' * 999} */")
    assert len(said.partition("Statement: ")[2]) < 220


def _with_rows(previous: Sequence[RowDdl], statements: Iterable[DdlStatement]) -> tuple[RowDdl, ...]:
    """What is known of rows once the statements are read, of tables that nothing defines."""
    return with_rows(previous, learn(TableDefinitions(), statements, "cdc").rows)


def test_of_one_name_the_newest_statements_are_kept() -> None:
    every = [DdlStatement("s", "TRUNCATE t", at) for at in range(1, 200)]
    found = _with_rows((), [*every, DdlStatement("s", "TRUNCATE u", 300)])
    assert [one.moment for one in found] == [*range(150, 200), 300]


def test_statements_of_one_kind_do_not_push_out_those_of_another() -> None:
    partitions = [DdlStatement("s", f"ALTER TABLE t DROP PARTITION p{at}", at) for at in range(2, 200)]
    found = _with_rows((), [DdlStatement("s", "TRUNCATE t", 1), *partitions])
    assert [one.moment for one in found if one.kind == "truncate"] == [1]
    assert [one.moment for one in found if one.kind == "partition"] == [*range(150, 200)]


def test_tables_that_come_and_go_for_years_do_not_fill_the_state_store() -> None:
    found: tuple[RowDdl, ...] = ()
    for start in range(0, 20_000, 1_000):
        dropped = (DdlStatement("s", f"DROP TABLE t{at}", at) for at in range(start + 1, start + 1_001))
        found = _with_rows(found, dropped)
    assert [one.moment for one in found] == [*range(15_001, 20_001)]


def test_a_statement_that_is_not_understood_is_about_the_table_of_its_event() -> None:
    odd = [DdlStatement("s", sql, 1, table="t") for sql in ("REORDER t BY MOOD", "TRUNCATE (", "'")]
    assert [(one.table, one.kind) for one in _with_rows((), odd)] == [(T, "unknown")] * 3
    for schema in ("s", ""):
        unnamed = [one._replace(database=schema, table="") for one in odd]
        found = _with_rows((), unnamed)
        assert [(one.kind, one.concerns(T)) for one in found] == [("unknown", True)] * 3
