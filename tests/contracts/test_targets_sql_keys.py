"""What the SQL targets need of a table that another hand made, or of a server set up strictly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.sql_beds import execute, target_of
from tests.contracts.targets_bed import NAME, TABLE, Bed, progress, shape
from tidesink.errors import SchemaRefusedError, TargetError
from tidesink.events import Column, ColumnType
from tidesink.sinks.targets.sql.mysql import MysqlTables

pytestmark = [pytest.mark.spark, pytest.mark.servers]


def test_keys_are_told_apart_by_every_byte(sql: Bed) -> None:
    key = Column("code", ColumnType("varchar", length=9), nullable=False, handle=True, primary_key=True)
    one = shape(key, NAME)
    table = sql.target.open_table(one, pipeline="shop")
    table.claim()
    codes = ["a", "A", "a ", "ä", "ss", "ß", ""]
    table.apply(sql.batch(one, [{"code": code, "name": code} for code in codes]), progress(1, 1))
    table.apply(sql.batch(one, [{"code": "a ", "name": "new"}], [{"code": "A"}]), progress(1, 2))
    expected = {code: code for code in codes if code != "A"} | {"a ": "new"}
    assert {r["code"]: r["name"] for r in sql.read(TABLE)} == expected


CODE = Column("code", ColumnType("varchar"), nullable=False, handle=True, primary_key=True)
# Collations and types by which 'a' is 'A', or 'a' is 'a '; what is right; a server that lacks one refuses it.
LOOSE = {
    "mysql": ["varchar(9)", "varchar(9) COLLATE utf8mb4_bin", "char(9) COLLATE utf8mb4_nopad_bin"],
    "postgres": ["text COLLATE loose"],
}
STRICT = {"mysql": "varchar(9) COLLATE utf8mb4_nopad_bin", "postgres": 'text COLLATE "C"'}
MAKE_LOOSE = "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"


def test_a_table_whose_keys_are_told_apart_loosely_is_refused(sql: Bed) -> None:
    one, place = shape(CODE, NAME), target_of(sql).place_of(TABLE)
    schema = "DATABASE shop DEFAULT CHARACTER SET utf8mb4" if sql.name == "mysql" else "SCHEMA shop"
    execute(sql, f"CREATE {schema}", *([MAKE_LOOSE] if sql.name == "postgres" else []))
    for found in LOOSE[sql.name]:
        execute(sql, f"CREATE TABLE {place.location} (code {found} PRIMARY KEY, name text)")
        with pytest.raises(SchemaRefusedError, match=r"column=code.*overwrite.*ALTER") as reported:
            sql.target.open_table(one, pipeline="shop").claim()
        # What it says is what is to be done.
        execute(sql, reported.value.message.partition("start again: ")[2])
        sql.target.open_table(one, pipeline="shop").claim()
        execute(sql, "DROP TABLE {}")
    execute(sql, f"CREATE TABLE {place.location} (code {STRICT[sql.name]} PRIMARY KEY, name text)")
    table = sql.target.open_table(one, pipeline="shop")
    epoch = table.claim().epoch
    table.evolve(one)
    codes = ["a", "A", "b", "b "]
    done = table.apply(sql.batch(one, [{"code": code, "name": code} for code in codes]), progress(epoch, 1))
    assert done.inserted == len(sql.read(TABLE)) == 4


def test_a_collation_that_was_changed_under_the_worker_is_refused(mysql_sql: Bed) -> None:
    one = shape(replace(CODE, type=ColumnType("varchar", length=9)), NAME)
    table = mysql_sql.target.open_table(one, pipeline="shop")
    table.claim()
    execute(mysql_sql, "ALTER TABLE {} MODIFY code varchar(9) COLLATE utf8mb4_general_ci NOT NULL")
    with pytest.raises(SchemaRefusedError, match="utf8mb4_general_ci"):
        table.apply(mysql_sql.batch(one, [{"code": "a", "name": "x"}]), progress(1, 1))
    assert mysql_sql.read(TABLE) == []


@pytest.fixture
def strict(mysql_sql: Bed) -> Iterator[Bed]:
    """A server as MySQL's may be: no engine but InnoDB, and no table without a primary key."""
    tables = target_of(mysql_sql).connections.dialect.tables
    assert isinstance(tables, MysqlTables)
    tables.server.engine, tables.server.collation = "InnoDB", "utf8mb4_nopad_bin"
    execute(mysql_sql, "SET GLOBAL innodb_force_primary_key = ON")
    yield mysql_sql
    execute(mysql_sql, "SET GLOBAL innodb_force_primary_key = OFF")


def test_a_server_with_innodb_alone_that_wants_primary_keys(strict: Bed) -> None:
    one = shape(ID, Column("email", ColumnType("varchar", length=40)))
    table = strict.target.open_table(one, pipeline="shop")
    table.claim()
    rows = [{"id": 1, "email": "x"}, {"id": 2, "email": "y"}]
    table.apply(strict.batch(one, rows), progress(1, 1))
    execute(strict, "ALTER TABLE {} MODIFY email varchar(40), ADD UNIQUE (email)")
    swapped: list[dict[str, Any]] = [
        {"id": 1, "email": "y"},
        {"id": 2, "email": "x"},
        {"id": 3, "email": "z"},
    ]
    result = table.apply(strict.batch(one, swapped), progress(1, 2))
    assert (result.inserted, result.updated) == (1, 2)
    assert strict.rows() == swapped


def test_keys_whose_length_nothing_tells(mysql_sql: Bed) -> None:
    """As flat-avro's are: told apart by every byte, and a longer one is refused as a whole."""
    keys = [replace(CODE, name=name) for name in ("code", "more", "last")]
    one = shape(*keys, replace(CODE, name="n", type=ColumnType("bigint")), NAME)
    table = mysql_sql.target.open_table(one, pipeline="shop")
    epoch = table.claim().epoch

    def row(code: str, name: str) -> dict[str, Any]:
        return {"code": code, "more": "😀" * 255, "last": "b", "n": 2**63 - 1, "name": name}

    codes = ["a", "A", "a ", "ä", "ss", "ß", "", "😀" * 255, "😀" * 254 + " "]
    table.apply(mysql_sql.batch(one, [row(code, code[:9]) for code in codes]), progress(epoch, 1))
    expected = {code: code[:9] for code in codes}
    for long in ("x" * 256, "x" * 255 + " ", "x" * 255 + "  "):
        with pytest.raises(TargetError, match=r"key's text is longer than its varchar.*target.key-length"):
            table.apply(mysql_sql.batch(one, [row(long, "new"), row("a", "new")]), progress(epoch, 2))
        assert {r["code"]: r["name"] for r in mysql_sql.read(TABLE)} == expected
    # What the error says is what is to be done.
    collation = "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL"
    execute(mysql_sql, f"ALTER TABLE {{}} MODIFY code varchar(256) {collation}")
    table = mysql_sql.target.open_table(one, pipeline="shop")
    epoch = table.claim().epoch
    assert not table.evolve(one).widened
    table.apply(mysql_sql.batch(one, [row("x" * 255 + " ", "new")]), progress(epoch, 2))
    assert {r["code"]: r["name"] for r in mysql_sql.read(TABLE)} == expected | {"x" * 255 + " ": "new"}
