"""What only SQL tables can get wrong under ``sequence_by: source``."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.sql_beds import execute, target_of
from tests.contracts.targets_bed import TABLE, Bed, frame_of, progress, row, shape
from tests.full import quick_on
from tidesink.errors import AccountingError, SchemaRefusedError, TidesinkError
from tidesink.events import Column, ColumnType
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, Collected, ReducedRow, RowSequence, SequencedTable
from tidesink.sinks.targets.sql.ledger import SqlLedger, SqlTombstones
from tidesink.sinks.targets.sql.location import commit_ts_in, hex_above, packed_positions

pytestmark = [pytest.mark.spark, pytest.mark.servers, quick_on("mysql")]
SHAPE = shape()
EMAIL = Column("email", ColumnType("varchar", length=40))


def held(bed: Bed, one: Any = SHAPE) -> Any:
    table = bed.target.open_table(one, pipeline="shop")
    table.claim()
    return table


def test_a_column_that_takes_no_null_has_no_room_for_a_delete(sql: Bed) -> None:
    table = held(sql)
    table.apply(sql.batch(SHAPE, [row(1)]), progress(1, 1))
    refuses = {"postgres": "ALTER name SET NOT NULL", "mysql": "MODIFY name varchar(20) NOT NULL"}
    execute(sql, f"ALTER TABLE {{}} {refuses[sql.name]}")
    batch = sql.batch(SHAPE, [], [{"id": 1}], at=[10])
    with pytest.raises(SchemaRefusedError, match="are NOT NULL") as refused:
        table.apply(batch, progress(1, 2))
    assert sql.rows() == [row(1)]
    execute(sql, refused.value.message.partition("start again: ")[2])
    table.apply(batch, progress(1, 2))
    assert sql.living() == []


NOT_EMPTIED = {
    "postgres": (
        "ALTER name SET DEFAULT 'x', ALTER name SET NOT NULL",
        "ADD twice integer GENERATED ALWAYS AS (amount * 2) STORED",
    ),
    "mysql": ("MODIFY name varchar(20) NOT NULL DEFAULT 'x'", "ADD twice int AS (amount * 2) STORED"),
}


def test_what_cannot_be_emptied_of_a_column_that_is_left_out_stays(sql: Bed) -> None:
    table, narrow = held(sql), shape(ID)
    table.apply(sql.batch(SHAPE, [row(1), row(2)], at=[10, 10]), progress(1, 1))
    execute(sql, f"ALTER TABLE {{}} {', '.join(NOT_EMPTIED[sql.name])}")
    table.apply(sql.batch(narrow, [], [{"id": 1}], at=[20]), progress(1, 2))
    assert [(one["name"], one["amount"], one["twice"]) for one in sql.rows()] == [
        ("a", None, None),
        ("a", 1, 2),
    ]


UNIQUE = {
    "postgres": "ALTER TABLE {} ADD UNIQUE (email) DEFERRABLE",
    "mysql": "ALTER TABLE {} MODIFY email varchar(40), ADD UNIQUE (email)",
}


def test_a_unique_column_besides_the_key(sql: Bed) -> None:
    one = shape(ID, EMAIL)
    table = held(sql, one)
    rows = [{"id": number, "email": email} for number, email in enumerate("xyz", 1)]
    table.apply(sql.batch(one, rows, at=[10, 10, 30]), progress(1, 1))
    execute(sql, UNIQUE[sql.name])
    moved = [{"id": 1, "email": "y"}, {"id": 2, "email": "x"}, {"id": 3, "email": "old"}]
    late = sql.batch(one, [*moved, {"id": 4, "email": "w"}], [{"id": 5}], at=[20, 20, 20, 20, 20])
    result = table.apply(late, progress(1, 2))
    assert (result.inserted, result.updated, result.stale) == (2, 2, 1)
    assert [(one["id"], one["email"]) for one in sql.living()] == [(1, "y"), (2, "x"), (3, "z"), (4, "w")]
    freed = sql.batch(one, [{"id": 6, "email": "y"}], [{"id": 1}], at=[40, 40])
    table.apply(freed, progress(1, 3))
    assert [one["id"] for one in sql.living()] == [2, 3, 4, 6]


def test_a_partitioned_table_counts_as_any_other(postgres_sql: Bed) -> None:
    bed = postgres_sql
    execute(
        bed,
        "CREATE SCHEMA shop",
        "CREATE TABLE {} (id bigint PRIMARY KEY, name text, amount integer) PARTITION BY RANGE (id)",
        "CREATE TABLE shop.low PARTITION OF {} FOR VALUES FROM (0) TO (3)",
        "CREATE TABLE shop.high PARTITION OF {} FOR VALUES FROM (3) TO (99)",
    )
    table = held(bed)
    table.apply(bed.batch(SHAPE, [row(1), row(2), row(3)], at=[10, 10, 30]), progress(1, 1))
    batch = bed.batch(SHAPE, [row(2, "b"), row(3, "late"), row(4)], [{"id": 1}], at=[20, 20, 20, 20])
    result = table.apply(batch, progress(1, 2))
    assert (result.inserted, result.updated, result.stale) == (1, 2, 1)
    assert bed.living() == [row(2, "b"), row(3), row(4)]
    assert table.collect(20) == Collected(20, 1, 0, None)


def test_a_row_that_is_neither_written_nor_older_stops_the_table(postgres_sql: Bed) -> None:
    bed = postgres_sql
    table = held(bed)
    table.apply(bed.batch(SHAPE, [row(1)], at=[10]), progress(1, 1))
    execute(
        bed,
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER swallows BEFORE INSERT ON {} FOR EACH ROW WHEN (NEW.id = 2) "
        "EXECUTE FUNCTION swallow()",
    )
    with pytest.raises(AccountingError, match="skipped 1 rows, but 0 were not newer"):
        table.apply(bed.batch(SHAPE, [row(2), row(3)], at=[20, 20]), progress(1, 2))
    assert bed.living() == [row(1)]


SPELT: dict[str, str] = {
    "postgres": """CREATE TABLE {} ("ID" bigint PRIMARY KEY, name text, amount integer)""",
    "mysql": "CREATE TABLE {} (`ID` bigint PRIMARY KEY, name varchar(64), amount int)",
}


def test_deletes_are_forgotten_where_the_table_spells_its_key_otherwise(sql: Bed) -> None:
    execute(sql, "CREATE SCHEMA shop", SPELT[sql.name])
    table = held(sql)
    table.apply(sql.batch(SHAPE, [row(9)], [{"id": 1}], at=[5, 10]), progress(1, 1))
    assert table.collect(10) == Collected(10, 1, 0, None)


def in_pieces(bed: Bed, looked: Callable[[Any], None]) -> SqlTombstones:
    """The collector of a table with one row and five deletes; each of its pieces looks at the ledger."""
    keys = [{"id": number} for number in range(1, 6)]
    held(bed).apply(bed.batch(SHAPE, [row(9)], keys, at=[5, 10, 10, 10, 10, 30]), progress(1, 1))
    connections, place = target_of(bed).connections, target_of(bed).place_of(TABLE)
    ledger = SqlLedger(connections.dialect, place, "shop", ("id",))

    def held_row(cursor: Any) -> Any:
        entry = ledger.read(cursor, lock=True)
        looked(cursor)
        return entry

    return SqlTombstones(
        connections.dialect, place, ledger, lambda: connections.transaction("test"), held_row
    )


def test_many_deletes_are_forgotten_in_pieces(sql: Bed) -> None:
    looks: list[Any] = []
    tombstones = in_pieces(sql, looks.append)
    assert tombstones.collect(20, ["id"], piece=2) == Collected(20, 4, 1, 30)
    assert len(looks) == 3
    assert [one["id"] for one in sql.rows()] == [5, 9]


def test_pieces_that_were_cut_off_are_finished_by_the_next_worker(sql: Bed) -> None:
    looks: list[Any] = []

    def cut_the_second(cursor: Any) -> None:
        looks.append(cursor)
        if len(looks) == 2:
            cursor.connection.close()

    with pytest.raises(TidesinkError):
        in_pieces(sql, cut_the_second).collect(20, ["id"], piece=2)
    assert len(sql.rows()) == 4, "two of six are gone"
    again = sql.reopen().open_table(SHAPE, pipeline="shop")
    assert isinstance(again, SequencedTable)
    again.claim()
    assert again.horizon() == 20
    assert again.collect(15) == Collected(20, 2, 1, 30)
    assert [one["id"] for one in sql.rows()] == [5, 9]


def test_packed_positions_compare_as_the_positions_do(sql: Bed) -> None:
    """In Arrow's bytes and in the database's comparison alike."""
    chosen = random.Random(5)
    numbers = [0, 1, 255, 256, 2**31 - 1, 2**63 - 1]
    several = shape(ID)
    positions = [
        RowSequence(
            tuple(chosen.choices(numbers, k=chosen.randrange(1, 4))),
            chosen.random() < 0.5,
            chosen.choice(numbers[:5]),
            chosen.choice(numbers),
            chosen.choice(numbers[:5]),
        )
        for _ in range(200)
    ]
    positions = sorted({*positions, *(at._replace(source=(*at.source, 0)) for at in positions)})
    rows = [
        ReducedRow("upsert", {"id": number}, {"id": number}, sequence=at)
        for number, at in enumerate(positions)
    ]
    assert sql.spark is not None
    frame = frame_of(sql.spark, several, rows)
    sequences = frame.orderBy("key.id").select("_seq").toArrow().column(0).combine_chunks()
    found = packed_positions(sequences).to_pylist()
    assert all(one < other for one, other in pairwise(found))
    packed = [one.hex() for one in found]
    assert [commit_ts_in(one) for one in packed] == [at.source[0] for at in positions]
    assert all(
        (one.lower() < hex_above(255)) == (at.source[0] <= 255)
        for one, at in zip(packed, positions, strict=True)
    )
    table = held(sql, several)
    batch = sql.batch(several, [{"id": number} for number in range(len(positions))], at=[1] * len(positions))
    table.apply(replace(batch, make_frame=lambda: frame), progress(1, 1))
    with target_of(sql).connections.transaction("test") as cursor:
        place = target_of(sql).place_of(TABLE)
        column = place.quote(SEQUENCE_COLUMN)
        cursor.execute(f"SELECT id FROM {place.location} ORDER BY {column}")  # noqa: S608
        assert [number for (number,) in cursor.fetchall()] == list(range(len(positions)))
