"""The statements of records that are kept in a database, without one."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from tidesink.sinks.rejects import DDL_EVENTS, DEAD_LETTERS, Chosen
from tidesink.sinks.targets.sql_endpoint import Endpoint
from tidesink.sinks.targets.sql_place import place_in
from tidesink.sinks.targets.sql_record_tasks import (
    Database,
    RecordSettler,
    RecordWriter,
    _batches_of,
    _calls,
    dialect_of,
    record_key,
    utc,
)
from tidesink.sinks.targets.sql_records import SqlRecords

HERE = Endpoint("db.example", 5432, "shop", "me", "secret-word")
NOON = datetime(2026, 11, 21, 12, tzinfo=timezone(timedelta(hours=2)))


def records(database: Database) -> SqlRecords:
    dialect = dialect_of(database)
    return SqlRecords(
        dialect, HERE, lambda table: place_in("{schema}.{table}", table, dialect.quote), DEAD_LETTERS
    )


def test_everything_that_is_chosen_is_a_parameter() -> None:
    chosen = Chosen("p", "shop.it's", "t", "i", partition=0, offset=0, below=9, before=NOON, kind="E")
    text, values = records("postgres").condition(chosen)
    assert text == (
        '"pipeline" = %s AND "table" = %s AND "topic" = %s AND "topic_id" = %s AND "partition" = %s '
        'AND "offset" = %s AND "offset" < %s AND "error" = %s AND "time" < %s'
    )
    assert values == ["p", "shop.it's", "t", "i", 0, 0, 9, "E", NOON]
    # MySQL's columns know no zone: they hold UTC.
    (_, (_, naive)) = records("mysql").condition(Chosen("p", before=NOON))
    assert naive == datetime(2026, 11, 21, 10)


def test_a_record_has_one_key_and_other_records_others() -> None:
    keys = {
        record_key(pipeline, table, place)
        for pipeline, table in (("p", "a.b"), ("p", "a.c"), ("q", "a.b"))
        for place in (("i", "t", 0, 1), ("i", "t", 1, 0), ("i", "t", 0, 11), ("j", "t", 0, 1))
    }
    assert len(keys) == 12
    assert record_key("p", "a.b", ("i", "t", 0, 1)) in keys
    assert all(len(key) == 64 for key in keys)


@pytest.mark.parametrize("database", ["postgres", "mysql"])
def test_a_record_is_written_whole(database: Database) -> None:
    given = {"pipeline": "p", "table": "shop.t", "batch": 4}
    names = DDL_EVENTS.names
    writer = RecordWriter(database, HERE, "INSERT …", "SELECT …", given, names)
    place = {"topic": "t", "topic_id": "i", "partition": 0, "offset": 7}
    told = {"commit_ts": None, "kind": "ALTER", "query": "a\0b", "key": None, "value": b"\0", "time": NOON}
    statement, (key, *values) = writer.statement({**place, **told})
    assert (statement, key) == ("INSERT …", record_key("p", "shop.t", ("i", "t", 0, 7)))
    written = dict(zip(names, values, strict=True))
    assert {name: written[name] for name in ("pipeline", "batch", "value")} == {
        "pipeline": "p",
        "batch": 4,
        "value": b"\0",
    }
    assert written["query"] == "a\ufffdb"
    assert utc(written["time"]) == NOON
    assert (written["time"].tzinfo is None) == (database == "mysql")


def test_a_letter_is_forgotten_or_says_its_new_reason() -> None:
    settler = RecordSettler("postgres", HERE, "DELETE …", "UPDATE …", "p", "shop.t")
    place = {"topic": "t", "topic_id": "i", "partition": 0, "offset": 7}
    key = record_key("p", "shop.t", ("i", "t", 0, 7))
    assert settler.statement({**place, "error": None, "reason": None}) == ("DELETE …", [key])
    assert settler.statement({**place, "error": "E", "reason": "why"}) == ("UPDATE …", ["E", "why", key])


def test_names_with_percent_signs_are_no_parameters() -> None:
    location = dialect_of("postgres").quote("100%") + '."t"'
    assert records("postgres")._insert_statement(location).startswith('INSERT INTO "100%%"."t" ("record", ')
    assert "secret-word" not in repr(RecordWriter("mysql", HERE, "", "", {}, ()))


@pytest.mark.parametrize(
    ("database", "ending"),
    [
        ("postgres", 'ON CONFLICT ("record") DO NOTHING'),
        ("mysql", "ON DUPLICATE KEY UPDATE `record` = `record`"),
    ],
)
def test_a_record_that_is_there_is_left_alone_and_nothing_else_is_forgiven(
    database: Database, ending: str
) -> None:
    statement = records(database)._insert_statement("t")
    assert statement.endswith(f") {ending}")
    assert "IGNORE" not in statement


def test_letters_come_in_batches_that_are_bounded_by_their_bytes() -> None:
    rows = [("t", 0, offset, NOON, None, bytes(3_000_000)) for offset in range(7)]
    batches = list(_batches_of(iter(rows)))
    assert [batch.num_rows for batch in batches] == [3, 3, 1]
    assert [row["offset"] for batch in batches for row in batch.to_pylist()] == list(range(7))
    small = [("t", 0, offset, None, b"", b"") for offset in range(2500)]
    assert [batch.num_rows for batch in _batches_of(iter(small))] == [1000, 1000, 500]


def test_statements_that_follow_each_other_are_sent_together_in_their_order() -> None:
    given = [("a", [1])] * 150 + [("b", [2]), ("a", [3])]
    assert [(text, len(values)) for text, values in _calls(iter(given))] == [
        ("a", 100),
        ("a", 50),
        ("b", 1),
        ("a", 1),
    ]


class _Room:
    """A cursor of a MySQL server that takes packets of so many bytes."""

    max_stmt_length = 0

    def __init__(self, most: int) -> None:
        self._most = most

    def execute(self, _text: str) -> None:
        """Ask for the server's setting, which is all that is asked here."""

    def fetchone(self) -> tuple[int]:
        return (self._most,)


@pytest.mark.parametrize(
    "value",
    [b"\0" * 40_000, "é'" * 20_000, "\\" * 40_000],
    ids=["bytes are hexadecimal digits", "quotes are two", "so are backslashes"],
)
def test_a_statement_is_measured_as_it_is_spelt(value: bytes | str) -> None:
    pymysql = pytest.importorskip("pymysql")
    connection = pymysql.connect(host="db.example", defer_connect=True)
    connection.server_status = 0  # as a server without NO_BACKSLASH_ESCAPES greets
    settler = RecordSettler("mysql", HERE, "DELETE …", "UPDATE …", "p", "shop.t")
    rows = [[value, None, 7], ["short", None, 7]]
    settler._check_room(connection, _Room(120_000), rows)
    with pytest.raises(pymysql.err.OperationalError, match="longer than max_allowed_packet"):
        settler._check_room(connection, _Room(70_000), rows)
    settler._check_room(connection, _Room(70_000), rows[1:])
