"""Statements of MySQL, MariaDB and TiDB in definitions: whose names they use, and when they do nothing."""

from __future__ import annotations

import json
from typing import Final

import pytest

from tidesink.codecs import open_codec
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.topic_statements import DdlStatement, learn
from tidesink.events import ChangeEvent, Message, TableId

A, B = TableId("other", "a"), TableId("other", "b")
_B: Final = "CREATE TABLE b (id BIGINT PRIMARY KEY, e ENUM('p','q'))"


def _columns(definitions: TableDefinitions, table: TableId) -> list[str] | None:
    found = definitions.get(table)
    return None if found is None else [column.name for column in found.columns]


def _canal(sql: str, database: str, ts: int) -> Message:
    value = {
        "id": 0,
        "database": database,
        "table": "t",
        "isDdl": True,
        "type": "CREATE",
        "es": ts,
        "sql": sql,
    }
    return Message("cdc", 0, ts, None, json.dumps({**value, "_tidb": {"commitTs": ts << 18}}).encode())


def test_like_reads_an_unqualified_name_in_the_session_which_no_event_tells() -> None:
    """The row has its member's number, and no label of the other table; a worker refuses it without one."""
    codec = open_codec("canal-json")
    codec.decode(_canal("CREATE TABLE b (id BIGINT PRIMARY KEY, e ENUM('x','y'))", "app", 1_700_000_000_000))
    codec.decode(_canal(_B, "other", 1_700_000_000_001))
    codec.decode(_canal("CREATE TABLE other.a LIKE b", "other", 1_700_000_000_002))
    row = {
        "id": 0,
        "database": "other",
        "table": "a",
        "pkNames": ["id"],
        "isDdl": False,
        "type": "INSERT",
        "es": 1_700_000_000_003,
        "sqlType": {"id": -5, "e": 4},
        "mysqlType": {"id": "bigint", "e": "enum"},
        "data": [{"id": "1", "e": "1"}],
        "old": None,
        "_tidb": {"commitTs": 1_700_000_000_003 << 18},
    }
    (event,) = codec.decode(Message("cdc", 0, 9, None, json.dumps(row).encode()))
    assert isinstance(event, ChangeEvent)
    assert event.schema is not None
    assert (event.after, event.schema.by_name["e"].type.members) == ({"id": 1, "e": 1}, None)


@pytest.mark.parametrize(
    ("sql", "known"),
    [
        ("CREATE TABLE a LIKE b", True),
        ("CREATE TABLE a (LIKE b)", True),
        ("CREATE TABLE other.a LIKE other.b", True),
        ("CREATE TABLE a LIKE other.b", True),
        ("CREATE TABLE other.a LIKE b", False),
        ("CREATE TABLE `other`.`a` (LIKE `b`)", False),
    ],
)
def test_a_table_made_like_another(sql: str, known: bool) -> None:
    definitions = TableDefinitions()
    definitions.apply(_B, "other")
    warnings = learn(definitions, [DdlStatement("other", sql, table="a")], "cdc").warnings
    assert _columns(definitions, A) == (["id", "e"] if known else None)
    assert [(one.table, "Add a definition" in one.text) for one in warnings] == ([] if known else [(A, True)])


def test_a_table_that_is_made_again_like_an_unknown_one_is_unknown() -> None:
    definitions = TableDefinitions()
    definitions.apply(_B, "other")
    definitions.apply("CREATE TABLE a (x INT)", "other")
    definitions.apply("CREATE OR REPLACE TABLE other.a LIKE b", "other")
    assert _columns(definitions, A) is None


def test_a_person_writes_statements_of_one_session() -> None:
    definitions = TableDefinitions()
    definitions.declare(f"{_B}; CREATE TABLE app.a LIKE b; RENAME TABLE app.a TO a", "other")
    assert (_columns(definitions, A), _columns(definitions, B)) == (["id", "e"], ["id", "e"])


@pytest.mark.parametrize("since", [None, 5])
def test_if_not_exists_does_nothing_where_the_table_is_known(since: int | None) -> None:
    """MySQL logs the statement all the same. TiCDC, whose events have a time, sends only what was done."""
    definitions = TableDefinitions()
    definitions.apply(_B, "other", since=None if since is None else 1)
    definitions.apply("CREATE TABLE IF NOT EXISTS b (id BIGINT PRIMARY KEY, n INT)", "other", since=since)
    assert _columns(definitions, B) == (["id", "e"] if since is None else ["id", "n"])


def test_a_table_that_is_replaced_has_its_new_columns_alone() -> None:
    definitions = TableDefinitions()
    definitions.apply(_B, "other")
    definitions.apply("CREATE OR REPLACE TABLE b (n INT)", "other")
    assert _columns(definitions, B) == ["n"]
    definitions.apply("CREATE TEMPORARY TABLE b (tmp INT); DROP TEMPORARY TABLE b", "other")
    assert _columns(definitions, B) == ["n"]
    definitions.apply("CREATE OR REPLACE DATABASE other", "other")
    assert _columns(definitions, B) is None


def test_partitions_become_tables_and_tables_partitions() -> None:
    definitions = TableDefinitions()
    definitions.apply(_B, "other")
    definitions.apply("ALTER TABLE b CONVERT PARTITION p0 TO TABLE a", "other")
    assert _columns(definitions, A) == ["id", "e"]
    definitions.apply("ALTER TABLE b CONVERT TABLE a TO PARTITION p0 VALUES LESS THAN (9)", "other")
    assert (_columns(definitions, A), _columns(definitions, B)) == (None, ["id", "e"])


def test_tables_swap_their_names() -> None:
    definitions = TableDefinitions()
    definitions.apply("CREATE TABLE a (n INT)", "other", since=1)
    definitions.apply(_B, "other", since=1)
    definitions.apply("RENAME TABLE a TO tmp, b TO a, tmp TO b", "other", since=2)
    assert (_columns(definitions, A), _columns(definitions, B)) == (["id", "e"], ["n"])
    assert len(definitions) == 2


@pytest.mark.parametrize(
    ("sql", "known"),
    [
        ("ALTER TABLE b RENAME TO a", True),
        ("ALTER TABLE other.b RENAME TO other.a", True),
        ("ALTER TABLE other.b RENAME TO a", False),
        ("RENAME TABLE other.b TO a", False),
    ],
)
def test_a_table_gets_a_name_in_the_database_of_the_session(sql: str, known: bool) -> None:
    definitions = TableDefinitions()
    definitions.apply(_B, "other")
    definitions.apply(sql, "other")
    assert (_columns(definitions, A), _columns(definitions, B)) == (["id", "e"] if known else None, None)


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO a", ["id int(11)", "b varchar(20)", "a int(11)"]),
        ("CHANGE a b VARCHAR(20), CHANGE b a INT", ["id int(11)", "b varchar(20)", "a int(11)"]),
        ("CHANGE a b TEXT FIRST, RENAME COLUMN b TO a", ["b text", "id int(11)", "a int(11)"]),
        ("RENAME COLUMN a TO b, DROP COLUMN b", ["id int(11)", "b varchar(20)"]),
        ("RENAME COLUMN a TO c, ADD a DATE AFTER b", ["id int(11)", "c varchar(20)", "b int(11)", "a date"]),
        (
            "RENAME COLUMN id TO a, RENAME COLUMN a TO b, RENAME COLUMN b TO id",
            ["a int(11)", "b varchar(20)", "id int(11)"],
        ),
        ("MODIFY a CHAR(3), ADD c INT AFTER a", ["id int(11)", "a char(3)", "c int(11)", "b int(11)"]),
    ],
)
def test_columns_swap_their_names(sql: str, names: list[str]) -> None:
    table = TableId("s", "t")
    definitions = TableDefinitions()
    definitions.apply("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20), b INT, UNIQUE u (b))", "s", since=1)
    definitions.apply(f"ALTER TABLE t {sql}", "s", since=2)
    found = definitions.get(table)
    assert found is not None
    assert [f"{column.name} {column.type.sql}" for column in found.columns] == names
    if sql.startswith("RENAME COLUMN id"):
        assert [column.name for column in found.primary_key] == ["a"]
        assert definitions.unique_index(table, "u") == ("id",)


def test_texts_become_bytes() -> None:
    definitions = TableDefinitions()
    definitions.apply("CREATE TABLE t (c CHAR(3), v VARCHAR(5), x TEXT, n INT, j JSON)", "s")
    definitions.apply("ALTER TABLE t CONVERT TO CHARACTER SET binary", "s")
    found = definitions.get(TableId("s", "t"))
    assert found is not None
    types = [column.type.sql for column in found.columns]
    assert types == ["binary(3)", "varbinary(5)", "blob", "int(11)", "json"]
