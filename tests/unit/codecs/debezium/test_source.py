"""Positions and tables out of the ``source`` blocks of every connector."""

from __future__ import annotations

from typing import Any

import pytest

from tidesink.codecs.debezium.envelope import (
    commit_ts_of_source,
    is_snapshot,
    position_of_source,
    table_of_source,
)
from tidesink.events import Position, TableId


def block(connector: str, **members: Any) -> dict[str, Any]:
    """A source block."""
    return {"connector": connector, "snapshot": "false", "ts_ms": 1_700_000_000_123, **members}


SQL_SERVER = {
    "commit_lsn": "00000027:00000ac0:0002",
    "change_lsn": "00000027:00000ac0:0001",
    "event_serial_no": 2,
}


POSITIONS: list[tuple[dict[str, Any], tuple[int, ...] | None]] = [
    (block("mariadb", file="maria-bin.000012", pos=345, row=2), (12, 345, 2)),
    (block("mysql", file="mysql-bin.1000000", pos=4, row=0, gtid="a:1-9"), (1_000_000, 4, 0)),
    (block("mysql", file="", pos=0, row=0), None),
    (block("mysql", file="binlog", pos=0, row=0), None),
    (block("mysql", snapshot="true", file="mysql-bin.000003", pos=154, row=0), (3, 154, 0)),
    (block("postgresql", lsn=27776760, txId=772), (27776760,)),
    (block("postgresql", snapshot="incremental", lsn=27776760), None),
    (block("postgresql", lsn=None), None),
    (block("oracle", scn="2122185", commit_scn="2122190"), (2122185, 2122190)),
    (block("oracle", scn="2122185", commit_scn=None), (2122185, 0)),
    (block("oracle", snapshot="true", scn="2122185"), None),
    (
        block("sqlserver", **SQL_SERVER),
        (0x27_00000AC0_0002, 0x27_00000AC0_0001, 2),
    ),
    (
        block("sqlserver", snapshot="true", commit_lsn=SQL_SERVER["commit_lsn"], change_lsn=None),
        (0x27_00000AC0_0002, 0, 0),
    ),
    (block("sqlserver", commit_lsn="NULL"), None),
    (block("db2", commit_lsn="00000000:0000c3b1", change_lsn="00000000:0000c3b0"), (0xC3B1, 0xC3B0, 0)),
    (block("mongodb", ord=7), (1_700_000_000, 7)),
    (block("TiCDC", commit_ts=470609150731354115), (470609150731354115,)),
    (block("TiCDC", commit_ts=-1), (2**64 - 1,)),
    (block("vitess", vgtid="[]"), None),
    (block("made-up", lsn=1, scn=2, pos=3), None),
    ({}, None),
]
WRONG_NUMBERS = [True, -1, 1.5, "0x10", "１２", [1], {}, "9" * 60, 10**38]


@pytest.mark.parametrize(("source", "position"), POSITIONS)
def test_positions(source: dict[str, Any], position: tuple[int, ...] | None) -> None:
    assert position_of_source(source) == position


@pytest.mark.parametrize("wrong", WRONG_NUMBERS)
def test_what_is_no_number_is_no_position(wrong: Any) -> None:
    assert position_of_source(block("postgresql", lsn=wrong)) is None
    assert position_of_source(block("oracle", scn=wrong)) is None
    assert position_of_source(block("mysql", file="b.000001", pos=wrong, row=0)) is None


def test_a_position_has_a_text() -> None:
    assert Position("t", 0, 1, 0, (12, 345, 2)).source_text == "12:345:2"
    assert Position("t", 0, 1, 0, (470609150731354115,)).source_text == "470609150731354115"
    assert Position("t", 0, 1).source_text is None


def test_binlog_files_compare_as_numbers() -> None:
    """After 999999 a file's number has seven digits, which as text comes before."""
    before = position_of_source(block("mysql", file="b.999999", pos=9, row=0))
    after = position_of_source(block("mysql", file="b.1000000", pos=1, row=0))
    assert before is not None
    assert after is not None
    assert before < after


def test_sql_server_lsns_compare_as_numbers() -> None:
    older = position_of_source(block("sqlserver", **{**SQL_SERVER, "event_serial_no": 1}))
    newer = position_of_source(block("sqlserver", **SQL_SERVER))
    assert older is not None
    assert newer is not None
    assert older < newer


@pytest.mark.parametrize(
    ("source", "table"),
    [
        (block("mysql", db="shop", table="orders"), TableId("shop", "orders")),
        (block("postgresql", db="app", schema="public", table="a.b"), TableId("public", "a.b")),
        (block("sqlserver", db="app", schema="dbo", table="t"), TableId("dbo", "t")),
        (block("oracle", db="ORCL", schema="INVENTORY", table="T"), TableId("INVENTORY", "T")),
        (block("mongodb", db="inventory", collection="customers"), TableId("inventory", "customers")),
        (block("made-up", schema="s", table="t"), TableId("s", "t")),
        (block("mysql", db=5, table=None), TableId("", "")),
    ],
)
def test_tables(source: dict[str, Any], table: TableId) -> None:
    assert table_of_source(source) == table


@pytest.mark.parametrize("word", ["true", "first", "last_in_data_collection", "incremental"])
def test_snapshot_words(word: str) -> None:
    assert is_snapshot({"snapshot": word})


@pytest.mark.parametrize("word", ["false", None, ""])
def test_streamed_words(word: str | None) -> None:
    assert not is_snapshot({"snapshot": word})


def test_only_ticdc_has_commit_ts() -> None:
    assert commit_ts_of_source({"connector": "TiCDC", "commit_ts": 7}) == 7
    assert commit_ts_of_source({"connector": "mysql", "commit_ts": 7}) is None
