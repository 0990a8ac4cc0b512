"""Tables of another hand, and servers set up in their own way, that would change a value or lose a row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.sql_beds import execute, target_of
from tests.contracts.targets_bed import NAME, TABLE, Bed, progress, shape
from tests.contracts.test_targets_sql_keys import CODE, MAKE_LOOSE
from tidesink.errors import SchemaRefusedError, StaleProgressError, TargetError
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.mysql import MysqlTables
from tidesink.sinks.targets.sql.target import SqlTarget

pytestmark = [pytest.mark.spark, pytest.mark.servers]

AT = Column("at", ColumnType("timestamp"))
THEN = datetime(2020, 1, 1, tzinfo=timezone.utc)


def make(bed: Bed, columns: str) -> None:
    schema = "DATABASE shop" if bed.name == "mysql" else "SCHEMA shop"
    execute(bed, f"CREATE {schema}", f"CREATE TABLE {{}} ({columns})")


def test_a_zero_is_not_the_next_number_of_a_column_that_counts(mysql_sql: Bed) -> None:
    one = shape(ID, NAME)
    make(mysql_sql, "id bigint AUTO_INCREMENT PRIMARY KEY, name longtext")
    table = mysql_sql.target.open_table(one, pipeline="shop")
    table.claim()
    for number, name in enumerate(("a", "b"), 1):
        table.apply(mysql_sql.batch(one, [{"id": 0, "name": name}]), progress(1, number))
    assert mysql_sql.rows() == [{"id": 0, "name": "b"}]


def test_an_index_of_the_keys_beginnings_is_not_one_of_the_key(mysql_sql: Bed) -> None:
    one = shape(CODE, NAME)
    make(mysql_sql, "code varchar(9) COLLATE utf8mb4_nopad_bin NOT NULL, name longtext, UNIQUE (code(2))")
    table = mysql_sql.target.open_table(one, pipeline="shop")
    table.claim()
    rows = [{"code": code, "name": code} for code in ("aaX", "aaY")]
    with pytest.raises(SchemaRefusedError, match="on the key's columns in full length"):
        table.apply(mysql_sql.batch(one, rows), progress(1, 1))
    assert mysql_sql.read(TABLE) == []


@contextmanager
def server_set(bed: Bed, there: str, afterwards: str) -> Iterator[Bed]:
    """A server with other settings for all who connect from now on."""
    execute(bed, f"SET {there}")
    target_of(bed).connections.close()
    yield bed
    execute(bed, f"SET {afterwards}")


@pytest.fixture
def filling(mysql_sql: Bed) -> Iterator[Bed]:
    """A server that puts the time into a TIMESTAMP by itself, as MariaDB before 10.10 does."""
    setting = "GLOBAL explicit_defaults_for_timestamp"
    with server_set(mysql_sql, f"{setting} = OFF", f"{setting} = ON") as bed:
        yield bed


def test_a_server_does_not_put_the_time_into_a_key(filling: Bed) -> None:
    one = shape(replace(AT, nullable=False, handle=True, primary_key=True), NAME)
    table = filling.target.open_table(one, pipeline="shop")
    table.claim()
    for number, name in enumerate(("a", "b"), 1):
        table.apply(filling.batch(one, [{"at": THEN, "name": name}]), progress(1, number))
    assert filling.read(TABLE) == [{"at": THEN.replace(tzinfo=None), "name": "b"}]


@pytest.mark.parametrize("words", ["NULL ON UPDATE CURRENT_TIMESTAMP(6)", "NOT NULL"])
def test_a_column_that_the_server_puts_the_time_into_is_refused(filling: Bed, words: str) -> None:
    one = shape(ID, AT)
    make(filling, f"id bigint PRIMARY KEY, at timestamp(6) {words}")
    with pytest.raises(SchemaRefusedError, match=r"column=at.*writes the current time into") as reported:
        filling.target.open_table(one, pipeline="shop", delete_mode="soft").claim()
    execute(filling, reported.value.message.partition("start again: ")[2])
    table = filling.target.open_table(one, pipeline="shop", delete_mode="soft")
    epoch = table.claim().epoch
    rows: list[dict[str, Any]] = [{"id": 1, "at": THEN}, {"id": 2, "at": None}]
    table.apply(filling.batch(one, rows), progress(epoch, 1))
    table.apply(filling.batch(one, deletes=[{"id": 1}], delete_mode="soft"), progress(epoch, 2))
    assert [row["at"] for row in filling.rows()] == [THEN.replace(tzinfo=None), None]


@pytest.fixture
def silent(mysql_sql: Bed) -> Iterator[Bed]:
    """A server that tells nobody what it changed."""
    settings = "GLOBAL max_error_count = {}, GLOBAL sql_notes = {}"
    with server_set(mysql_sql, settings.format(0, 0), settings.format(64, 1)) as bed:
        yield bed


@pytest.mark.parametrize("name", ["abcd", "abc "])
def test_a_text_is_not_cut_where_the_server_is_silent(silent: Bed, name: str) -> None:
    refuses_a_long_text(silent, name)


def test_spaces_that_are_too_many_are_not_cut(postgres_sql: Bed) -> None:
    refuses_a_long_text(postgres_sql, "abc ")


def refuses_a_long_text(bed: Bed, name: str) -> None:
    """A table of another hand's has less room than the source."""
    one = shape(ID, NAME)
    make(bed, "id bigint PRIMARY KEY, name varchar(3)")
    table = bed.target.open_table(one, pipeline="shop")
    table.claim()
    table.apply(bed.batch(one, [{"id": 1, "name": "ab "}]), progress(1, 1))
    with pytest.raises(TargetError, match="Nothing was written"):
        table.apply(bed.batch(one, [{"id": 1, "name": name}]), progress(1, 2))
    assert bed.rows() == [{"id": 1, "name": "ab "}]


def test_an_index_that_compares_loosely_is_refused(postgres_sql: Bed) -> None:
    one = shape(CODE, NAME)
    make(postgres_sql, "code text NOT NULL PRIMARY KEY, name text")
    execute(postgres_sql, MAKE_LOOSE, "CREATE UNIQUE INDEX ON {} (code COLLATE loose)")
    with pytest.raises(SchemaRefusedError, match=r"column=code.*overwrite.*DROP INDEX") as reported:
        postgres_sql.target.open_table(one, pipeline="shop").claim()
    execute(postgres_sql, reported.value.message.partition("start again: ")[2])
    postgres_sql.target.open_table(one, pipeline="shop").claim()


class FoldingTables(MysqlTables):
    """Of a server as those on Windows are: names of tables that differ in case alone are one."""

    def folds_names(self, cursor: Any) -> bool:  # noqa: ARG002
        return True


def test_tables_whose_names_are_one_to_the_server_are_not_mixed(mysql_sql: Bed) -> None:
    own = target_of(mysql_sql).connections
    assert isinstance(own.dialect.tables, MysqlTables)
    folding = FoldingTables(own.dialect.tables.server)
    connections = Connections(replace(own.dialect, tables=folding), own.endpoint)
    target = SqlTarget(connections)
    one, other = (shape(ID, NAME, table=TableId("shop", name)) for name in ("Orders", "orders"))
    assert target.open_table(one, pipeline="shop").claim().epoch == 1
    with pytest.raises(StaleProgressError, match=r"holds the rows of shop.Orders.*only in case"):
        target.open_table(other, pipeline="shop").claim()
    assert target.open_table(one, pipeline="shop").claim().epoch == 2
    connections.close()
