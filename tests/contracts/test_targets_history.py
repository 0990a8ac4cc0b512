"""What targets that keep every version of a row promise (``mode: history``)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.columns import ID
from tests.contracts.targets_bed import (
    AMOUNT,
    NAME,
    Bed,
    frame_of,
    key_range,
    payloads_of,
    progress,
    shape,
)
from tests.full import FULL, needs, quick_on
from tests.history_law import instant_of
from tidesink.errors import AccountingError, SchemaRefusedError, TargetError
from tidesink.events import Column, ColumnType
from tidesink.sinks.laws.modes import FROM_COLUMN, READ_COLUMN, TO_COLUMN, HistoryNames, history_shape
from tidesink.sinks.targets.base import ApplyOptions, ApplyResult, ReducedBatch, ReducedRow, TargetTable
from tidesink.typemap.target_schema import TargetSchema, without

pytestmark = [quick_on("memory", "postgres"), needs("history")]

SHAPE = shape()
NAMES = HistoryNames()
# A commit of each second: what readers see is the time, what is compared the whole number.
_SECOND = 1000 << 18


class Event(NamedTuple):
    """A write (with a name) or a delete of one key at one second."""

    at: int
    key: int
    name: str | None = None


def batch_of(
    bed: Bed, events: Sequence[Event], of: TargetSchema = SHAPE, names: HistoryNames = NAMES, **more: Any
) -> ReducedBatch:
    rows = [
        ReducedRow(
            "delete" if event.name is None else "upsert",
            {of.keys[0]: event.key},
            None
            if event.name is None
            else {of.keys[0]: event.key, of.columns[1].name: event.name, "amount": event.at, **more},
            commit_ts=event.at * _SECOND,
        )
        for event in events
    ]
    upserts = sum(event.name is not None for event in events)
    return ReducedBatch(
        of,
        upserts,
        len(events) - upserts,
        make_frame=partial(frame_of, bed.spark, of, rows) if bed.spark else None,
        payloads=payloads_of(bed.spark, of, rows) if bed.spark and bed.packs else None,
        rows=None if bed.spark else rows,
        key_range=key_range(of, rows),
        since=min((event.at * _SECOND for event in events), default=None),
        how=ApplyOptions(mode="history", history=names),
    )


def part_of(bed: Bed, reads: Sequence[Event]) -> ReducedBatch:
    """Rows as a snapshot read them, of one key one a moment."""
    batch = batch_of(bed, reads)
    return replace(batch, since=None, how=replace(batch.how, reads=True))


def held(bed: Bed, of: TargetSchema = SHAPE, names: HistoryNames = NAMES) -> tuple[TargetTable, int]:
    table = bed.target.open_table(history_shape(of, names), pipeline="shop")
    epoch = table.claim().epoch
    table.evolve(history_shape(of, names))
    return table, epoch


def versions(bed: Bed) -> list[tuple[Any, ...]]:
    """Key, begin and end in seconds, and the name; the columns of time are held to the numbers."""
    found = []
    for row in bed.rows():
        start, end = row[FROM_COLUMN], row[TO_COLUMN]
        assert row["valid_from"] == instant_of(start)
        assert row["valid_to"] == (None if end is None else instant_of(end))
        assert row["current"] is (end is None)
        found.append((row["id"], start // _SECOND, None if end is None else end // _SECOND, row["name"]))
    return sorted(found)


def begun_by_reads(bed: Bed) -> list[tuple[int, int]]:
    """Key and begin, in seconds, of the versions that begin with a read."""
    return sorted((row["id"], row[FROM_COLUMN] // _SECOND) for row in bed.rows() if row[READ_COLUMN])


def did(result: ApplyResult) -> tuple[int, int, int, int]:
    assert result.updated == 0
    return result.inserted, result.deleted, result.absent, result.stale


def test_a_version_holds_until_the_next_event_of_its_key(bed: Bed) -> None:
    table, epoch = held(bed)
    first = [Event(10, 1, "a"), Event(20, 1, "b"), Event(10, 2, "x"), Event(15, 2), Event(10, 3)]
    assert did(table.apply(batch_of(bed, first), progress(epoch, 1))) == (3, 1, 1, 0)
    expected = [(1, 10, 20, "a"), (1, 20, None, "b"), (2, 10, 15, "x"), (3, 10, 10, None)]
    assert versions(bed) == expected
    second = [Event(30, 1), Event(30, 2, "y"), Event(20, 3, "z"), Event(20, 4, "w"), Event(20, 1, "b")]
    assert did(table.apply(batch_of(bed, second), progress(epoch, 2))) == (3, 1, 0, 1)
    assert versions(bed) == [
        (1, 10, 20, "a"), (1, 20, 30, "b"), (2, 10, 15, "x"), (2, 30, None, "y"),
        (3, 10, 10, None), (3, 20, None, "z"), (4, 20, None, "w"),
    ]  # fmt: skip


def test_events_that_come_late_cut_the_versions_they_fall_into(bed: Bed) -> None:
    table, epoch = held(bed)
    table.apply(batch_of(bed, [Event(10, 1, "a"), Event(40, 1)]), progress(epoch, 1))
    late = [Event(20, 1), Event(20, 2)]
    assert did(table.apply(batch_of(bed, late), progress(epoch, 2))) == (0, 1, 1, 0)
    assert versions(bed) == [(1, 10, 20, "a"), (1, 40, 40, None), (2, 20, 20, None)]
    later = [Event(30, 1, "c"), Event(20, 2, "at once"), Event(20, 1)]
    assert did(table.apply(batch_of(bed, later), progress(epoch, 3))) == (2, 0, 0, 1)
    assert versions(bed) == [(1, 10, 20, "a"), (1, 30, 40, "c"), (2, 20, None, "at once")]


def test_a_batch_whose_events_are_all_known_is_committed_and_changes_nothing(bed: Bed) -> None:
    table, epoch = held(bed)
    events = [Event(10, 1, "a"), Event(20, 1), Event(20, 2)]
    table.apply(batch_of(bed, events), progress(epoch, 1))
    before = versions(bed)
    assert did(table.apply(batch_of(bed, events), progress(epoch, 2))) == (0, 0, 0, 3)
    assert versions(bed) == before
    assert table.committed() == progress(epoch, 2)
    table.apply(batch_of(bed, []), progress(epoch, 3))
    assert table.committed() == progress(epoch, 3)


def test_a_batch_delivered_again_answers_the_same(bed: Bed) -> None:
    table, epoch = held(bed)
    first, second = [Event(10, 1, "a")], [Event(20, 1, "b"), Event(10, 1, "a"), Event(20, 2)]
    table.apply(batch_of(bed, first), progress(epoch, 1))
    result = table.apply(batch_of(bed, second), progress(epoch, 2))
    assert table.apply(batch_of(bed, second), progress(epoch, 2)) == result
    assert did(result) == (1, 0, 1, 1)


# On every target with reads among the events: test_reads_and_events_in_any_order_end_in_the_same_versions.
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=FULL)])
def test_any_order_and_any_cut_end_in_the_same_versions(bed: Bed, seed: int) -> None:
    chosen = random.Random(seed)
    events = {(at, chosen.randrange(4)): chosen.random() < 0.35 for at in range(1, 26)}
    arriving = [Event(at, key, None if gone else f"n{at}") for (at, key), gone in events.items()]
    arriving += chosen.sample(arriving, 8)
    expected: list[tuple[int, int, int | None, str | None]] = []
    for key in range(4):
        ordered = sorted({event for event in arriving if event.key == key})
        before = None
        for event, after in zip(ordered, [*ordered[1:], None], strict=True):
            if event.name is not None:
                expected.append((key, event.at, after.at if after else None, event.name))
            elif before is None or before.name is None:
                expected.append((key, event.at, event.at, None))
            before = event
    chosen.shuffle(arriving)
    table, epoch = held(bed)
    for number, start in enumerate(range(0, len(arriving), 11), 1):
        part = list(dict.fromkeys(arriving[start : start + 11]))
        result = table.apply(batch_of(bed, part), progress(epoch, number))
        assert result.applied + result.stale == len(part)
    assert versions(bed) == sorted(expected)


def test_a_read_begins_a_version_where_no_event_of_its_key_is_at_or_before_it(bed: Bed) -> None:
    table, epoch = held(bed)
    known = [
        Event(10, 1, "a"),
        Event(20, 1),
        Event(40, 2, "b"),
        Event(40, 3),
        Event(50, 3),
        Event(30, 4, "c"),
    ]
    table.apply(batch_of(bed, known), progress(epoch, 1))
    reads = [Event(30, key, f"r{key}") for key in range(1, 6)]
    # Of 1 what came between was not sent yet, and 4 was written at the very moment.
    assert did(table.apply(part_of(bed, reads), progress(epoch, 2))) == (3, 0, 0, 2)
    expected = [
        (1, 10, 20, "a"), (2, 30, 40, "r2"), (2, 40, None, "b"), (3, 30, 40, "r3"), (3, 50, 50, None),
        (4, 30, None, "c"), (5, 30, None, "r5"),
    ]  # fmt: skip
    assert versions(bed) == expected
    assert begun_by_reads(bed) == [(2, 30), (3, 30), (5, 30)]
    # The part again, and a later one: what is known is not read again.
    again = [*reads, *(Event(60, key, "later") for key in range(1, 6))]
    assert did(table.apply(part_of(bed, again), progress(epoch, 3))) == (0, 0, 0, 10)
    assert versions(bed) == expected
    # Of two reads the earlier one begins the version.
    assert did(table.apply(part_of(bed, [Event(25, 5, "r0")]), progress(epoch, 4))) == (1, 0, 0, 0)
    assert versions(bed) == [*expected[:-1], (5, 25, None, "r0")]
    assert begun_by_reads(bed) == [(2, 30), (3, 30), (5, 25)]


def test_an_event_at_or_before_a_read_takes_its_version_away_whenever_it_comes(bed: Bed) -> None:
    table, epoch = held(bed)
    table.apply(part_of(bed, [Event(30, key, f"r{key}") for key in range(1, 8)]), progress(epoch, 1))
    behind = [Event(40, 1, "a"), *(Event(40, key) for key in (2, 3, 4))]
    assert did(table.apply(batch_of(bed, behind), progress(epoch, 2))) == (1, 3, 0, 0)
    assert versions(bed)[:3] == [(1, 30, 40, "r1"), (1, 40, None, "a"), (2, 30, 40, "r2")]
    late = [
        Event(20, 1, "w"), Event(20, 2, "w"), Event(20, 3), Event(30, 4), Event(30, 5, "w"),
        Event(20, 6, "w"), Event(30, 6), Event(30, 7),
    ]  # fmt: skip
    assert did(table.apply(batch_of(bed, late), progress(epoch, 3))) == (4, 1, 3, 0)
    assert versions(bed) == [
        (1, 20, 40, "w"), (1, 40, None, "a"), (2, 20, 40, "w"), (3, 20, 20, None), (3, 40, 40, None),
        (4, 30, 30, None), (4, 40, 40, None), (5, 30, None, "w"), (6, 20, 30, "w"), (7, 30, 30, None),
    ]  # fmt: skip
    assert begun_by_reads(bed) == []


@quick_on("memory", "delta", "iceberg", "postgres", "mysql")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=FULL)])
def test_reads_and_events_in_any_order_end_in_the_same_versions(bed: Bed, seed: int) -> None:
    chosen = random.Random(seed)
    # A snapshot reads each key twice; of one key all events come first, of another one its read does.
    reads = [Event(chosen.randrange(1, 30), key, f"r{key}") for key in (*range(8), *range(8))]
    reads = [*{(one.key, one.at): one for one in reads}.values()]
    events = {(at, chosen.randrange(8)): chosen.random() < 0.4 for at in range(1, 31)}
    arriving = [*reads, *(Event(at, key, None if gone else f"n{at}") for (at, key), gone in events.items())]
    expected: list[tuple[int, int, int | None, str | None]] = []
    marked = []
    for key in range(8):
        ordered = sorted((at, gone) for (at, of), gone in events.items() if of == key)
        first = min(one.at for one in reads if one.key == key)
        counts = not ordered or first < ordered[0][0]
        every = [
            *([(first, f"r{key}")] if counts else []),
            *((at, None if gone else f"n{at}") for at, gone in ordered),
        ]
        marked += [(key, first)] if counts else []
        before = None
        for (at, name), after in zip(every, [*every[1:], None], strict=True):
            if name is not None:
                expected.append((key, at, after[0] if after else None, name))
            elif before is None:
                expected.append((key, at, at, None))
            before = name
    arriving += chosen.sample(arriving, 8)
    chosen.shuffle(arriving)
    table, epoch = held(bed)
    number = 0
    for start in range(0, len(arriving), 14):
        part = list(dict.fromkeys(arriving[start : start + 14]))
        for rows, batch in (
            ([one for one in part if (one.name or "n")[0] == "n"], batch_of),
            ([one for one in part if (one.name or "n")[0] == "r"], part_of),
        ):
            number += 1
            result = table.apply(batch(bed, rows), progress(epoch, number))
            assert result.applied + result.stale == len(rows)
    assert versions(bed) == sorted(expected)
    assert begun_by_reads(bed) == sorted(marked)


def test_a_history_from_before_there_were_reads_gets_their_column(bed: Bed) -> None:
    before = without(history_shape(SHAPE, NAMES), [READ_COLUMN])
    table = bed.target.open_table(before, pipeline="shop")
    epoch = table.claim().epoch
    table.evolve(before)
    table, epoch = held(bed)
    table.apply(batch_of(bed, [Event(10, 1, "a")]), progress(epoch, 1))
    table.apply(part_of(bed, [Event(20, 1, "r"), Event(20, 2, "r")]), progress(epoch, 2))
    table.apply(batch_of(bed, [Event(30, 1), Event(30, 2, "b")]), progress(epoch, 3))
    assert versions(bed) == [(1, 10, 30, "a"), (2, 20, 30, "r"), (2, 30, None, "b")]
    assert begun_by_reads(bed) == [(2, 20)]


def test_a_column_that_comes_later_has_its_default_in_every_version(bed: Bed) -> None:
    table, epoch = held(bed)
    table.apply(batch_of(bed, [Event(10, 1, "a"), Event(20, 1, "b")]), progress(epoch, 1))
    wider = shape(ID, NAME, AMOUNT, Column("note", ColumnType("varchar", length=9), default="new"))
    table.evolve(history_shape(wider, NAMES))
    table.apply(batch_of(bed, [Event(30, 1, "c")], wider, note="said"), progress(epoch, 2))
    notes = {row["name"]: row["note"] for row in bed.rows()}
    assert notes == {"a": "new", "b": "new", "c": "said"}


def test_columns_may_have_other_names_and_names_need_quotes(bed: Bed) -> None:
    names = HistoryNames("seit `\"'", "bis %s", "jetzt")
    key = Column("select", ColumnType("bigint"), nullable=False, handle=True, primary_key=True)
    of = shape(key, Column("o'ne", ColumnType("varchar", length=20)), AMOUNT)
    table, epoch = held(bed, of, names)
    for number, event in enumerate([Event(10, 1, "a"), Event(20, 1, "b")], 1):
        table.apply(batch_of(bed, [event], of, names), progress(epoch, number))
    rows = bed.rows(by=FROM_COLUMN)
    assert [(row["select"], row["jetzt"], row["o'ne"]) for row in rows] == [(1, False, "a"), (1, True, "b")]
    assert rows[0]["bis %s"] == rows[1]["seit `\"'"] == instant_of(20 * _SECOND)


def test_a_table_does_not_change_between_rows_and_versions(bed: Bed) -> None:
    table, epoch = held(bed)
    table.apply(batch_of(bed, [Event(10, 1, "a")]), progress(epoch, 1))
    with pytest.raises(SchemaRefusedError, match=FROM_COLUMN):
        bed.reopen().open_table(SHAPE, pipeline="shop").claim()


def test_what_has_no_place_in_a_history_is_refused(bed: Bed) -> None:
    table, epoch = held(bed)
    fine = batch_of(bed, [Event(10, 1, "a")])
    emptying, omitting = replace(fine, truncates=True), replace(fine, keeps=True)
    for batch, words in ((emptying, "empties the table"), (omitting, "omits values")):
        with pytest.raises(TargetError, match=words):
            table.apply(batch, progress(epoch, 1))
    assert bed.rows() == []


@pytest.mark.spark
def test_numbers_of_a_commit_that_are_not_those_of_the_batch_stop_the_table() -> None:
    from tidesink.sinks.targets.delta.ledger import DeltaEntry
    from tidesink.sinks.targets.delta.log import Commit
    from tidesink.sinks.targets.delta.writes import result_of
    from tidesink.sinks.targets.lake.versions import Counts

    def entry(inserted: int, updated: int) -> DeltaEntry:
        metrics = {"numTargetRowsInserted": inserted, "numTargetRowsUpdated": updated}
        return DeltaEntry("shop", ("id",), counts=counts, commit=Commit(1, "MERGE", metrics=metrics))

    batch = ReducedBatch(SHAPE, 2, 1, how=ApplyOptions(mode="history", history=NAMES))
    counts = Counts(begun=2, replaced=1, ended=1, marked=1, ends=0, absent=1)._asdict()
    assert did(result_of(entry(2, 2), batch)) == (2, 0, 1, 0)
    with pytest.raises(AccountingError, match="1 rows inserted"):
        result_of(entry(1, 2), batch)
