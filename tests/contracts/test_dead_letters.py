"""Dead letters in Delta and in databases: kept whole, kept once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.contracts.conftest import BEDS, MARKS
from tests.contracts.targets_bed import TABLE, Bed, progress
from tests.full import FULL, quick_on
from tidesink.change import TableId
from tidesink.errors import SchemaRefusedError, TargetError
from tidesink.sinks.progress import Progress
from tidesink.sinks.rejects import DDL_EVENTS, Chosen, DeadLetters, RecordGroup, RecordStore
from tidesink.sinks.retry import RetryPolicy
from tidesink.sinks.targets.delta_dead_letters import DeltaDeadLetters
from tidesink.sinks.targets.delta_records import DeltaRecords
from tidesink.sinks.targets.sql_dead_letters import SqlDeadLetters
from tidesink.sinks.targets.sql_records import SqlRecords
from tidesink.sinks.targets.sql_target import SqlTarget

# ruff: noqa: S608
pytestmark = [pytest.mark.spark, quick_on("postgres")]


LETTER = (
    "topic string, topic_id string, partition int, offset bigint, key binary, value binary, schema_id int, "
    "error string, reason string, time timestamp"
)
OUTCOME = "topic string, topic_id string, partition int, offset bigint, error string, reason string"


def dead_letters(bed: Bed | Kept, offsets: list[int], *, topic_id: str = "i") -> Any:
    assert bed.spark is not None
    return bed.spark.createDataFrame(
        [("t", topic_id, 0, o, b"k", b"\xff", 7, "FramingError", "no magic byte", None) for o in offsets],
        LETTER,
    )


def test_dead_letters_are_kept_once(delta: Bed, tmp_path: Path) -> None:
    assert delta.spark is not None
    letters = DeltaDeadLetters(delta.spark, str(tmp_path / "lake"))
    assert letters.count(TABLE) == 0
    assert letters.append(dead_letters(delta, [1, 2]), progress(1, 1)) == 2
    # The same records again: by the same worker, then by the next one, with one more.
    assert letters.append(dead_letters(delta, [1, 2]), progress(1, 1)) == 2
    later = DeltaDeadLetters(delta.spark, str(tmp_path / "lake"))
    assert later.append(dead_letters(delta, [1, 2, 3]), progress(2, 1)) == 3
    other = TableId("shop", "it's")
    mine: Progress = progress(1, 1, table=other)
    assert later.append(dead_letters(delta, [1]), mine) == 1
    assert (later.count(TABLE), later.count(other)) == (3, 1)
    kept = delta.spark.sql(f"SELECT * FROM {letters.location} WHERE offset = 3").collect()[0]
    assert kept["value"] == b"\xff"
    assert (kept["table"], kept["pipeline"], kept["batch"], kept["schema_id"]) == (
        "shop.orders",
        "shop",
        1,
        7,
    )


@FULL
def test_tables_that_keep_theirs_at_once_keep_each_its_own(delta: Bed, tmp_path: Path) -> None:
    """A thread has an object of its own; where two share one they do not mix either, and no view stays."""
    assert delta.spark is not None
    DeltaDeadLetters(delta.spark, str(tmp_path / "lake")).append(dead_letters(delta, [0]), progress(1, 1))
    shared = DeltaDeadLetters(delta.spark, str(tmp_path / "lake"))
    tables = [TableId("shop", f"t{number}") for number in range(3)]

    def keep(number: int) -> int:
        records = dead_letters(delta, list(range(100 * number, 100 * number + number + 1)))
        return shared.append(records, progress(1, 1, table=tables[number]))

    with ThreadPoolExecutor(len(tables)) as threads:
        assert list(threads.map(keep, range(len(tables)))) == [1, 2, 3]
    kept = delta.spark.sql(f"SELECT `table`, offset FROM {shared.location}").collect()
    assert sorted((row["table"], row["offset"]) for row in kept) == [
        ("shop.orders", 0), ("shop.t0", 0), ("shop.t1", 100), ("shop.t1", 101),
        ("shop.t2", 200), ("shop.t2", 201), ("shop.t2", 202),
    ]  # fmt: skip
    assert shared._session.catalog.listTables() == []


@dataclass(frozen=True)
class Kept:
    """The stores of one kind, opened anew each time."""

    spark: SparkSession
    letters: Callable[[], DeadLetters]
    events: Callable[[], RecordStore]


def lake(bed: Bed, folder: Path) -> Kept:
    spark, root = bed.spark, str(folder / "kept")
    assert spark is not None
    return Kept(spark, lambda: DeltaDeadLetters(spark, root), lambda: DeltaRecords(spark, root, DDL_EVENTS))


def database(bed: Bed, _folder: Path) -> Kept:
    spark, target = bed.spark, bed.target
    assert spark is not None
    assert isinstance(target, SqlTarget)
    place = target.connections.dialect, target.connections.endpoint, target.place_of
    return Kept(spark, lambda: SqlDeadLetters(*place, spark), lambda: SqlRecords(*place, DDL_EVENTS))


STORES = {"delta": lake, "postgres": database, "mysql": database}


@pytest.fixture(params=[pytest.param(name, marks=MARKS[name]) for name in STORES])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    """The stores of each kind of target that has its own."""
    return STORES[request.param](BEDS[request.param](request, tmp_path / "target"), tmp_path)


@FULL
def test_of_tables_that_keep_their_first_at_once_none_fails(delta: Bed, tmp_path: Path) -> None:
    """All of a topic's tables meet its first DDL in their first batch."""
    assert delta.spark is not None
    tables = [TableId("shop", f"t{number}") for number in range(4)]
    stores = [DeltaDeadLetters(delta.spark, str(tmp_path / "lake")) for _ in tables]
    ready = Barrier(len(tables))

    def keep(number: int) -> int:
        records = dead_letters(delta, [number])
        ready.wait()
        return stores[number].append(records, progress(1, 1, table=tables[number]))

    with ThreadPoolExecutor(len(tables)) as threads:
        assert list(threads.map(keep, range(len(tables)))) == [1, 1, 1, 1]


def mine(table: TableId = TABLE, **more: Any) -> Chosen:
    return Chosen("shop", str(table), **more)


def at(second: int) -> datetime:
    return datetime(2026, 11, 21, 12, 0, second, tzinfo=timezone.utc)


def timed_letters(bed: Kept, letters: list[tuple[int, int, str, datetime | None]]) -> Any:
    """Letters by partition, offset, error and time."""
    assert bed.spark is not None
    return bed.spark.createDataFrame(
        [
            ("t", "i", partition, o, b"k", b"\xff", 7, error, "why", time)
            for partition, o, error, time in letters
        ],
        LETTER,
    )


@quick_on("postgres", "delta")
def test_letters_are_counted_shown_and_forgotten(kept: Kept) -> None:
    letters = kept.letters()
    assert (letters.groups(Chosen("shop")), letters.rows(mine(), limit=9), letters.remove(mine())) == (
        (),
        (),
        0,
    )
    found = [(0, 5, "FramingError", at(5)), (0, 2, "FramingError", at(2)), (1, 2, "ChecksumError", None)]
    letters.append(timed_letters(kept, found), progress(1, 1))
    letters.append(timed_letters(kept, found[:1]), progress(1, 1, pipeline="other"))
    assert letters.groups(mine()) == (
        RecordGroup("shop.orders", "t", 0, "FramingError", 2, 2, 5, at(2), at(5), "i"),
        RecordGroup("shop.orders", "t", 1, "ChecksumError", 1, 2, 2, None, None, "i"),
    )
    (row,) = letters.rows(mine(partition=0, offset=5), limit=9)
    assert (row["key"], row["value"], row["time"], row["batch"]) == (b"k", b"\xff", at(5), 1)
    assert [row["offset"] for row in letters.rows(mine(), limit=2)] == [2, 5]
    # What has no time is older than nothing.
    assert letters.remove(mine(before=at(5))) == 1
    assert letters.remove(mine(kind="ChecksumError")) == 1
    assert [row["offset"] for row in letters.rows(mine(), limit=9)] == [5]
    assert letters.remove(mine()) == 1
    assert letters.groups(Chosen("other")) == (
        RecordGroup("shop.orders", "t", 0, "FramingError", 1, 5, 5, at(5), at(5), "i"),
    )


def test_settled_letters_go_and_the_others_say_why_they_stay(kept: Kept) -> None:
    letters = kept.letters()
    letters.append(dead_letters(kept, [1, 2, 3]), progress(1, 1))
    letters.append(dead_letters(kept, [1]), progress(1, 1, pipeline="other"))
    good = (None, None)
    outcomes = kept.spark.createDataFrame(
        [("t", "i", 0, o, *told) for o, told in ((1, good), (2, ("ChecksumError", "now this")), (9, good))],
        OUTCOME,
    )
    for expected in (2, 1):  # the second time the first letter is gone already
        assert letters.settle(outcomes, pipeline="shop", table=TABLE) == expected
    told = {row["offset"]: (row["error"], row["reason"]) for row in letters.rows(mine(), limit=9)}
    assert told == {2: ("ChecksumError", "now this"), 3: ("FramingError", "no magic byte")}
    assert len(letters.rows(Chosen("other"), limit=9)) == 1


def test_a_place_in_a_topic_that_was_made_again_is_another_record(kept: Kept) -> None:
    letters = kept.letters()
    letters.append(dead_letters(kept, [1, 2]), progress(1, 1))
    again = dead_letters(kept, [1], topic_id="j")
    assert letters.append(again, progress(1, 1)) == 1
    assert [(group.topic_id, group.count) for group in letters.groups(mine())] == [("i", 2), ("j", 1)]
    assert [row["offset"] for row in letters.frame(mine(topic_id="i")).collect()] in ([1, 2], [2, 1])
    outcomes = kept.spark.createDataFrame([("t", "j", 0, 1, None, None)], OUTCOME)
    assert letters.settle(outcomes, pipeline="shop", table=TABLE) == 1
    assert [(row["topic_id"], row["offset"]) for row in letters.rows(mine(), limit=9)] == [("i", 1), ("i", 2)]


@FULL
def test_a_lake_of_a_version_without_topic_ids_is_given_them(delta: Bed, tmp_path: Path) -> None:
    stores = lake(delta, tmp_path)
    letters = DeltaDeadLetters(stores.spark, str(tmp_path / "kept"))
    letters.append(dead_letters(delta, [1]), progress(1, 1))
    stores.spark.sql(f"ALTER TABLE {letters.location} DROP COLUMN topic_id")
    assert [group.topic_id for group in stores.letters().groups(mine())] == [None]
    assert stores.letters().append(dead_letters(delta, [2]), progress(1, 2)) == 1
    assert [row["topic_id"] for row in stores.letters().rows(mine(), limit=9)] == [None, "i"]


def test_ddl_events_are_kept_once_beside_them(kept: Kept) -> None:
    events = kept.events()
    frame = kept.spark.createDataFrame(
        [("t", "i", 0, 4, 9, "ALTER", "ALTER TABLE `o'ps` ADD c int", None, b"{}", at(4))],
        "topic string, topic_id string, partition int, offset bigint, commit_ts bigint, kind string, "
        "query string, key binary, value binary, time timestamp",
    )
    assert [events.append(frame, progress(epoch, 3)) for epoch in (1, 2)] == [1, 1]
    assert events.count(TABLE) == 1
    (row,) = events.rows(mine(), limit=9)
    assert (row["commit_ts"], row["kind"], row["query"]) == (9, "ALTER", "ALTER TABLE `o'ps` ADD c int")
    assert (row["key"], row["value"], row["time"], row["batch"]) == (None, b"{}", at(4), 3)
    assert [group.kind for group in events.groups(mine())] == ["ALTER"]


def test_letters_are_read_back_as_kafka_gave_them(kept: Kept) -> None:
    letters = kept.letters()
    records = [
        ("t", "i", 0, 7, None, b"\x00\xff", 7, "FramingError", "a\x00b", at(7)),
        ("t", "i", 1, 7, b"", None, 7, "E", "", None),
    ]
    frame = kept.spark.createDataFrame(records, LETTER)
    assert [letters.append(frame, progress(epoch, 1)) for epoch in (1, 2)] == [2, 2]
    assert letters.count(TABLE) == 2
    found = letters.frame(mine()).withColumn("timestamp", F.unix_millis("timestamp")).orderBy("partition")
    names = ("topic", "partition", "offset", "timestamp", "key", "value")
    assert [tuple(row[name] for name in names) for row in found.collect()] == [
        ("t", 0, 7, int(at(7).timestamp() * 1000), None, b"\x00\xff"),
        ("t", 1, 7, None, b"", None),
    ]
    assert letters.frame(mine(partition=1)).count() == 1


# Every byte, in no text's order; and texts of every plane, with what SQL, CSV and patterns have signs for.
BYTES = bytes(range(256)) * 25_000
TEXT = "\u0101\U0001f40b '\"`\\ %s %% {} \t\r\n; -- /* " * 5_000


def test_long_bytes_and_texts_are_kept_to_the_last(kept: Kept) -> None:
    letters = kept.letters()
    parts = [(bytes([o]) * o, BYTES[o:] if o else b"\\") for o in range(3)]
    rows = [("t", "i", 0, o, *part, 7, "E", TEXT, at(o)) for o, part in enumerate(parts)]
    assert letters.append(kept.spark.createDataFrame(rows, LETTER), progress(1, 1)) == 3
    found = letters.rows(mine(), limit=9)
    assert [(row["key"], row["value"]) for row in found] == parts
    assert {row["reason"] for row in found} == {TEXT}
    read = letters.frame(mine()).orderBy("offset").collect()
    assert [bytes(row["value"]) for row in read] == [value for _, value in parts]


def test_others_who_keep_and_forget_at_the_same_time_do_not_count(kept: Kept) -> None:
    """Two workers of one table, which meet the same records; others beside them, who forget theirs."""
    names = [f"t{number}" for number in range(3)]
    records = [(TABLE, 1), (TABLE, 1), *((TableId("shop", name), 2) for name in names)]

    def keep(turn: int) -> int:
        table, batch = records[turn]
        store = kept.letters()
        met = dead_letters(kept, list(range(50)))
        # Delta's conflicts are tried again, as workers do.
        done = RetryPolicy(60).call(lambda: store.append(met, progress(turn + 1, batch, table=table)))
        return done if table == TABLE or store.remove(mine(table)) == 50 else -1

    with ThreadPoolExecutor(len(records)) as threads:
        counts = list(threads.map(keep, range(len(records))))
    assert counts == [50] * len(records)
    letters = kept.letters()
    assert [(group.table, group.count) for group in letters.groups(Chosen("shop"))] == [("shop.orders", 50)]


def test_times_of_no_calendar_keep_nothing_back(kept: Kept) -> None:
    frame = dead_letters(kept, [1, 2]).withColumn(
        "time", F.expr("timestamp_micros(CASE offset WHEN 1 THEN 1700000000000000000 ELSE -1000 END)")
    )
    letters = kept.letters()
    assert letters.append(frame, progress(1, 1)) == 2
    assert letters.groups(mine(offset=2))[0].first_time == datetime(
        1969, 12, 31, 23, 59, 59, 999000, tzinfo=timezone.utc
    )
    assert letters.remove(mine()) == 2


@pytest.fixture(params=[pytest.param(name, marks=MARKS[name]) for name in ("postgres", "mysql")])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    """The databases, each in turn."""
    return BEDS[request.param](request, tmp_path / "target")


def executed(bed: Bed, *statements: str) -> list[tuple[Any, ...]]:
    """The rows of the last statement that a person sends."""
    assert isinstance(bed.target, SqlTarget)
    with bed.target.connections.transaction("test") as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


def test_a_table_of_another_version_is_given_what_it_lacks(server: Bed, tmp_path: Path) -> None:
    here = database(server, tmp_path)
    assert here.letters().append(dead_letters(here, [1]), progress(1, 1)) == 1
    executed(
        server,
        "ALTER TABLE shop._tidesink_dead_letters DROP COLUMN schema_id",
        "ALTER TABLE shop._tidesink_dead_letters DROP COLUMN topic_id",
        "ALTER TABLE shop._tidesink_dead_letters ADD COLUMN of_a_newer_one int",
    )
    assert [group.topic_id for group in here.letters().groups(mine())] == [None]
    assert here.letters().append(dead_letters(here, [1, 2]), progress(2, 2)) == 2
    assert [row["schema_id"] for row in here.letters().rows(mine(), limit=9)] == [None, 7]


def test_what_has_the_name_and_is_not_ours_is_left_alone(server: Bed, tmp_path: Path) -> None:
    here = database(server, tmp_path)
    word = "SCHEMA" if server.name == "postgres" else "DATABASE"
    executed(server, f"CREATE {word} shop", "CREATE TABLE shop._tidesink_dead_letters (mine int)")
    with pytest.raises(SchemaRefusedError, match=r"shop\._tidesink_dead_letters is there and is not"):
        here.letters().append(dead_letters(here, [1]), progress(1, 1))
    assert executed(server, "SELECT * FROM shop._tidesink_dead_letters") == []


def test_a_batch_that_is_cut_otherwise_finds_its_letters_kept(kept: Kept) -> None:
    """A worker that was killed between its letters and its commit reads on in other batches."""
    letters = kept.letters()
    assert letters.append(dead_letters(kept, [1, 2, 3, 4]), progress(1, 7)) == 4
    assert letters.append(dead_letters(kept, [1, 2]), progress(2, 7)) == 2
    assert letters.append(dead_letters(kept, [3, 4, 5]), progress(2, 8)) == 3
    assert letters.append(dead_letters(kept, []), progress(2, 9)) == 0
    assert [(row["offset"], row["batch"]) for row in letters.rows(mine(), limit=9)] == [
        (1, 7), (2, 7), (3, 7), (4, 7), (5, 8),
    ]  # fmt: skip


def test_a_pipeline_of_the_same_name_that_writes_to_other_schemas_has_its_own_letters(server: Bed) -> None:
    assert isinstance(server.target, SqlTarget)
    assert server.spark is not None
    connections = server.target.connections

    def letters(template: str) -> SqlDeadLetters:
        target = SqlTarget(connections, template)
        return SqlDeadLetters(connections.dialect, connections.endpoint, target.place_of, server.spark)

    other, here = letters("test_{schema}.{table}"), letters("{schema}.{table}")
    dotted = TableId("shop", "a.b")
    assert other.append(dead_letters(server, [1, 2]), progress(1, 1)) == 2
    assert here.append(dead_letters(server, [2, 3]), progress(1, 1)) == 2
    assert here.append(dead_letters(server, [5]), progress(1, 1, table=dotted)) == 1
    assert sorted(row["offset"] for row in here.frame(mine()).collect()) == [2, 3]
    assert [(group.table, group.count) for group in here.groups(Chosen("shop"))] == [
        ("shop.a.b", 1), ("shop.orders", 2),
    ]  # fmt: skip
    outcomes = server.spark.createDataFrame(
        [("t", "i", 0, offset, None, None) for offset in (1, 2, 3)],
        OUTCOME,
    )
    assert here.settle(outcomes, pipeline="shop", table=TABLE) == 2
    assert here.remove(Chosen("shop")) == 1
    assert here.rows(mine(), limit=9) == ()
    assert [row["offset"] for row in other.rows(mine(), limit=9)] == [1, 2]
    assert (here.count(TABLE), other.count(TABLE)) == (0, 2)


@pytest.mark.servers
def test_a_letter_that_is_too_long_for_mysql_says_so(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    bed = BEDS["mysql"](request, tmp_path / "target")
    here = database(bed, tmp_path)
    ((most,),) = executed(bed, "SELECT @@max_allowed_packet")
    frame = dead_letters(here, [1]).withColumn("value", F.expr(f"cast(repeat('x', {most}) as binary)"))
    with pytest.raises(TargetError, match=r"max_allowed_packet.*\(error 1153\)"):
        here.letters().append(frame, progress(1, 1))
    assert here.letters().rows(mine(), limit=9) == ()
