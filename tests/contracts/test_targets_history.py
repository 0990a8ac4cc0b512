"""What targets that keep every version of a row promise (``mode: history``)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.contracts.conftest import BED_NAMES, MARKS, opened_bed
from tests.contracts.targets_bed import (
    AMOUNT,
    ID,
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
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch, ReducedRow, TargetTable
from tidesink.sinks.targets.delta import files as delta_files
from tidesink.sinks.targets.iceberg import files as iceberg_files
from tidesink.sinks.targets.modes import FROM_COLUMN, TO_COLUMN, HistoryNames, history_shape
from tidesink.typemap.target_schema import TableShape

pytestmark = [quick_on("memory", "postgres"), needs("history")]

# The lakes where MERGE has to take each batch.
MERGED = {"delta, merged": "delta", "iceberg, merged": "iceberg"}

SHAPE = shape()
NAMES = HistoryNames()
# A commit of each second: what readers see is the time, what is compared the whole number.
_SECOND = 1000 << 18


@pytest.fixture(
    params=[
        *(pytest.param(name, marks=MARKS.get(name, [])) for name in BED_NAMES),
        *(pytest.param(name, marks=pytest.mark.spark) for name in MERGED),
    ]
)
def bed(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    """Every target in turn, and the lakes once more by MERGE."""
    for writer in (delta_files.FileWriter, iceberg_files.FileWriter):
        monkeypatch.setattr(writer, "plan", planned(writer.plan, merging=request.param in MERGED))
    return opened_bed(request, MERGED.get(request.param, request.param), tmp_path)


def planned(plan: Callable[..., Any], *, merging: bool) -> Callable[..., Any]:
    def found(*given: Any) -> Any:
        reason = "a test says so" if merging else plan(*given)
        assert merging or not isinstance(reason, str), reason
        return reason

    return found


class Event(NamedTuple):
    """A write (with a name) or a delete of one key at one second."""

    at: int
    key: int
    name: str | None = None


def batch_of(
    bed: Bed, events: Sequence[Event], of: TableShape = SHAPE, names: HistoryNames = NAMES, **more: Any
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
        frame=frame_of(bed.spark, of, rows) if bed.spark else None,
        payloads=payloads_of(bed.spark, of, rows) if bed.spark and bed.packs else None,
        rows=None if bed.spark else rows,
        key_range=key_range(of, rows),
        mode="history",
        history=names,
        since=min((event.at * _SECOND for event in events), default=None),
    )


def held(bed: Bed, of: TableShape = SHAPE, names: HistoryNames = NAMES) -> tuple[TargetTable, int]:
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


@quick_on("memory", "delta", "iceberg", "postgres", "mysql")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=FULL)])
def test_any_order_and_any_cut_end_in_the_same_versions(bed: Bed, seed: int) -> None:
    chosen = random.Random(seed)
    events = {(at, chosen.randrange(4)): chosen.random() < 0.35 for at in range(1, 26)}
    arriving = [Event(at, key, None if gone else f"n{at}") for (at, key), gone in events.items()]
    arriving += chosen.sample(arriving, 8)
    expected = []
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
    for what, words in (({"truncates": True}, "empties the table"), ({"keeps": True}, "leaves out values")):
        batch = ReducedBatch(**{**vars(batch_of(bed, [Event(10, 1, "a")])), **what})
        with pytest.raises(TargetError, match=words):
            table.apply(batch, progress(epoch, 1))
    assert bed.rows() == []


@pytest.mark.spark
def test_numbers_of_a_commit_that_are_not_those_of_the_batch_stop_the_table() -> None:
    from tidesink.sinks.targets.lake.merge import history_result
    from tidesink.sinks.targets.lake.versions import Counts

    batch = ReducedBatch(SHAPE, 2, 1, mode="history", history=NAMES)
    counts = Counts(begun=2, replaced=1, ended=1, marked=1, ends=0, absent=1)
    assert did(history_result(counts, (2, 2, 0), batch, version="1")) == (2, 0, 1, 0)
    with pytest.raises(AccountingError, match="1 rows inserted"):
        history_result(counts, (1, 2, 0), batch, version="1")
