"""DDL that gives rows of a table without a key other row keys, which no event says."""

from __future__ import annotations

import pytest

from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.row_changes import DdlEffects, named_by
from tidesink.ddl.topic_statements import DdlStatement, DdlWarning, learn
from tidesink.errors import ConfigError
from tidesink.events import TableId

T, U = TableId("s", "t"), TableId("s", "u")
KEYLESS = "create table t (a int)"
KEYED = "create table t (a int primary key)"


def _warnings(*statements: str) -> list[DdlWarning]:
    given = [DdlStatement("s", sql) for sql in statements]
    return learn(TableDefinitions(), given, "cdc").warnings


def _rekeyed(*statements: str) -> set[TableId | None]:
    return {one.table for one in _warnings(*statements) if "have new row keys" in one.text}


@pytest.mark.parametrize(
    ("part", "moves"),
    [
        ("PARTITION BY HASH (a) PARTITIONS 4", True),
        ("REMOVE PARTITIONING", True),
        ("REORGANIZE PARTITION p0, p1 INTO (PARTITION p VALUES LESS THAN (5))", True),
        ("COALESCE PARTITION 2", True),
        ("COALESCE PARTITION NO_WRITE_TO_BINLOG 2", True),
        ("ADD PARTITION PARTITIONS 3", True),
        ("ADD PARTITION IF NOT EXISTS PARTITIONS 2", True),
        ("ADD PARTITION LOCAL PARTITIONS 2", True),
        ("ADD PARTITION IF NOT EXISTS NO_WRITE_TO_BINLOG PARTITIONS 2", True),
        ("ADD PARTITION (PARTITION p3 VALUES LESS THAN (9))", False),
        ("ADD PARTITION IF NOT EXISTS (PARTITION partitions VALUES LESS THAN (9))", False),
        ("TRUNCATE PARTITION p0", False),
        ("ADD COLUMN partitions INT, REMOVE TTL", False),
    ],
)
def test_rows_that_move_to_other_partitions_have_other_row_keys(part: str, moves: bool) -> None:
    sql = f"ALTER TABLE t {part}"
    assert DdlEffects(sql, "s").moved_tables() == ((T,) if moves else ())
    assert _rekeyed(KEYLESS, sql) == ({T} if moves else set())
    assert _rekeyed(KEYED, sql) == set()


@pytest.mark.parametrize("name", ["u", "`s`.`u`"])
@pytest.mark.parametrize("ending", ["", " WITHOUT VALIDATION"])
def test_an_exchange_is_told_at_both_tables(name: str, ending: str) -> None:
    sql = f"ALTER TABLE s.t EXCHANGE PARTITION `p0` WITH TABLE {name}{ending}"
    # An event names the database of its table, and an unqualified name is of the session's: it may be any.
    other = U if "." in name else TableId("", "u")
    assert named_by(other, U)
    assert DdlEffects(sql, "other").moved_tables() == (T, other)
    assert [
        (one.table, str(other if one.table == T else T) in one.effect)
        for one in DdlEffects(sql).row_changes()
    ] == [
        (T, True),
        (other, True),
    ]
    assert DdlEffects(
        f"ALTER TABLE t EXCHANGE PARTITION `p0` WITH TABLE {name}{ending}", "s"
    ).moved_tables() == (T, U)
    assert _rekeyed(KEYLESS, "create table u (a int)", sql) == {T, other}
    keyed = "create table u (a int primary key)"
    assert _rekeyed(KEYED, keyed, sql) == set()
    assert all("stay in the target" in one.effect for one in DdlEffects(sql).row_changes())


def test_an_exchange_that_names_no_table_is_refused() -> None:
    effects = DdlEffects("ALTER TABLE t EXCHANGE PARTITION p0", "s")
    for read in (effects.moved_tables, effects.row_changes):
        with pytest.raises(ConfigError, match="the SQL must have WITH TABLE"):
            read()
