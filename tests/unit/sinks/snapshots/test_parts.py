"""When the next part of a table's snapshot can be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.config.samples import FLAT_AVRO, changed
from tests.unit.sinks.worker.bed import worker_context
from tidesink.config import Config
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.batch.source_rows import ColumnGap, KeyRange, KeyShare
from tidesink.sinks.batch.tasks import RangeTooLargeError
from tidesink.sinks.decode.records import RecordedColumns
from tidesink.sinks.jobs.base import Attempt, Inputs
from tidesink.sinks.runtime.control import SnapshotControl, change_control
from tidesink.sinks.snapshots.parts import (
    PartJob,
    Snapshot,
    SnapshotPart,
    SnapshotRefusedError,
    SourceDatabase,
    next_rounds,
)
from tidesink.sinks.state.progress import Progress, SnapshotProgress, Sweep
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.source_database.base import StoredTable
from tidesink.typemap.mysql_types import parse_sql_type

ORDERS = TableId("shop", "orders")


def _snapshot(setting: str, asked: SnapshotControl = SnapshotControl()) -> Snapshot:  # noqa: B008  (frozen)
    config = Config.model_validate(changed(FLAT_AVRO))
    settings = config.table_config(ORDERS).model_copy(update={"snapshot": setting})
    # Of a worker's parts no test here wants another than the config.
    found = Snapshot(cast(Any, SimpleNamespace(config=config)), settings)
    found.asked = asked
    return found


def _progress(batch: int = 0, snapshot: SnapshotProgress | None = None) -> Progress:
    return Progress(ORDERS, "shop", 1, batch, snapshot=snapshot)


HALF = SnapshotProgress(("id",), ("5",), 5)
WHERE = (("id", ">=", "5"),)
DONE = SnapshotProgress(("id",), ("9",), 9, done=True)


@pytest.mark.parametrize(
    ("setting", "asked", "progress", "due"),
    [
        ("never", SnapshotControl(), _progress(), False),
        ("initial", SnapshotControl(), _progress(), True),
        # Of a table that had changes before there was the setting a person has to ask for one.
        ("initial", SnapshotControl(), _progress(3), False),
        ("initial", SnapshotControl(), _progress(3, HALF), True),
        # One that was begun is ended, whatever the config says by now.
        ("never", SnapshotControl(), _progress(3, HALF), True),
        ("initial", SnapshotControl(), _progress(3, DONE), False),
        ("never", SnapshotControl(7), _progress(3), True),
        ("never", SnapshotControl(7), _progress(3, DONE), True),
        ("never", SnapshotControl(7), _progress(3, SnapshotProgress(("id",), done=True, number=7)), False),
        ("initial", SnapshotControl(rests=True), _progress(), False),
        ("initial", SnapshotControl(cancelled=0), _progress(), False),
        ("never", SnapshotControl(7, cancelled=7), _progress(3, HALF), False),
        ("never", SnapshotControl(8, cancelled=7), _progress(3, HALF), True),
        # One of some keys ends with them: the state store was lost, or another one was asked for.
        ("never", SnapshotControl(7, keys="k"), _progress(3, replace(HALF, number=7, keys="k")), True),
        ("never", SnapshotControl(), _progress(3, replace(HALF, number=7, keys="k")), False),
        ("never", SnapshotControl(8), _progress(3, replace(HALF, number=7, keys="k")), True),
        # Bounds are in the progress.
        ("never", SnapshotControl(), _progress(3, replace(HALF, number=7, where=WHERE)), True),
        # The state store was lost: what the target knows counts.
        ("never", SnapshotControl(), _progress(3, SnapshotProgress(("id",), ("5",), 5, number=7)), True),
    ],
)
def test_due(setting: str, asked: SnapshotControl, progress: Progress, due: bool) -> None:
    assert _snapshot(setting, asked).is_due(progress) is due


def test_one_that_is_refused_on_its_way_is_over() -> None:
    """One that was not begun leaves what was asked for before, and what the config asks for."""
    midway = SnapshotProgress(("id",), ("5",), 5, number=7)
    asked = SnapshotControl(7).refused(7, 0, begun=True)
    assert not _snapshot("never", asked).is_under_way(_progress(3, midway))
    asked = SnapshotControl(7).refused(7, 0, begun=False)
    assert _snapshot("initial", asked).is_under_way(_progress())
    assert SnapshotControl(8).refused(7, 0, begun=True) == SnapshotControl(8)


def test_one_whose_number_is_behind_that_of_the_last_is_told_and_can_be_asked_for_again(
    tmp_path: Path,
) -> None:
    """The state store was lost, and the clock of the machine that asked is behind."""
    config = Config.model_validate(changed(FLAT_AVRO))
    store = SqlStateStore(str(tmp_path / "state.db"))
    progress = _progress(3, replace(DONE, number=1_700_000_000))

    def ask(change: Callable[[SnapshotControl], SnapshotControl]) -> Snapshot:
        found = Snapshot(worker_context(config, store=store), config.table_config(ORDERS))
        asks = lambda asked: replace(asked, snapshot=change(asked.snapshot))  # noqa: E731
        found.asked = change_control(store, "shop", ORDERS, asks).snapshot
        return found

    found = ask(lambda asked: asked.start(1_600_000_000, deletes=True))
    assert found.is_outrun(progress)
    assert not found.is_due(progress)
    text = found.tell_outrun(progress)
    assert "did not begin. Its number (1600000000) is not above the last one's (1700000000)" in text
    assert "Run the command again" in text
    assert not found.is_outrun(progress)
    assert not found.is_due(progress)
    # The clock is still behind.
    again = ask(lambda asked: asked.start(1_600_000_001, deletes=True))
    assert again.is_due(progress)
    assert again.repairs(progress)
    assert not again.is_outrun(progress)
    # What was cancelled, or never asked for, is not told of.
    assert not _snapshot("never", SnapshotControl(5, cancelled=5)).is_outrun(progress)
    assert not _snapshot("never").is_outrun(progress)
    assert not _snapshot("never", SnapshotControl(5)).is_outrun(_progress(3))


def test_the_number_that_the_status_shows_is_passed() -> None:
    """A worker has seen the target since the store was lost."""
    found = _snapshot("never").details(_progress(3, replace(HALF, number=900)))["snapshot"]["number"]
    running = _progress(3, replace(HALF, number=900))
    asked = SnapshotControl().start(5, last=found)
    assert _snapshot("never", asked).is_due(running)
    assert asked.started == 901
    asked = SnapshotControl().cancel(last=found)
    assert not _snapshot("never", asked).is_under_way(running)
    # Nor is one that was cancelled so in the way of the next.
    assert asked.start(5).started == 901


@pytest.mark.parametrize(
    ("ranges", "seconds", "rounds"),
    [(2, 5.0, 1), (2, 9.0, 1), (2, 1.0, 5), (1, 0.5, 10), (6, 5.0, 3), (6, 15.0, 1), (5, 1.0, 15)],
)
def test_the_next_part_is_to_take_five_seconds(ranges: int, seconds: float, rounds: int) -> None:
    """By how long the last one took, of whose ranges two were read at once."""
    assert next_rounds(ranges, at_once=2, seconds=seconds) == rounds


def test_a_part_has_no_more_rows_than_a_batch_has_records() -> None:
    """But for the ranges that are read at once."""
    stored = StoredTable({}, ("id",), 1_000, 100_000)
    for records, most in ((1_000, 10), (450, 4), (10, 2)):
        database = SourceDatabase(cast(Any, None), 100, 1 << 20, 2, records)
        assert database.most_ranges(stored, rounds=5) == most


def test_keys_are_looked_up_behind_all_rows() -> None:
    """The phases of one that deletes, one part after the other."""
    stored, before = StoredTable({}, ("id",), 0, 0), SnapshotProgress(("id",), sweep=Sweep())
    found = SnapshotPart(stored, (KeyRange(up_to=("5",)),), before).after(5)
    assert found == SnapshotProgress(("id",), ("5",), 5, sweep=Sweep())
    found = SnapshotPart(stored, (KeyRange(("5",)),), found, sweep_parts=2).after(3)
    assert found == SnapshotProgress(("id",), None, 8, sweep=Sweep(2))
    part = SnapshotPart(stored, (), found)
    assert part.sweeps
    found = part.after(4)
    assert found == SnapshotProgress(("id",), None, 8, sweep=Sweep(2, 1, 4))
    found = SnapshotPart(stored, (), found).after(0)
    assert found == SnapshotProgress(("id",), None, 8, done=True, sweep=Sweep(2, 2, 4))


def test_changes_go_first_where_a_row_does_not_fit() -> None:
    found = _snapshot("initial")
    assert not found.waits({0: 5}, {0: 9})
    part = SnapshotPart(StoredTable({}, ("id",), 0, 0), (KeyRange(),), HALF)
    found.row_does_not_fit(part, {0: 5})
    assert found.details(_progress(3, HALF))["snapshot"]["state"] == "waiting"
    # Up to where the topic ended then, and not to where it ends by now: changes that never end hold up none.
    assert found.waits({0: 5}, {0: 9, 1: 1})
    assert found.waits({0: 9}, {0: 20, 1: 1})
    assert not found.waits({0: 9, 1: 1}, {0: 20, 1: 1})


@pytest.mark.parametrize(
    ("asked", "snapshot", "state"),
    [
        (SnapshotControl(), HALF, "running"),
        (SnapshotControl(), DONE, "done"),
        (SnapshotControl(rests=True), HALF, "paused"),
        (SnapshotControl(cancelled=0), HALF, "cancelled"),
        (SnapshotControl(3), DONE, "running"),
    ],
)
def test_shown(asked: SnapshotControl, snapshot: SnapshotProgress, state: str) -> None:
    shown = _snapshot("initial", asked).details(_progress(3, snapshot))
    assert shown == {"snapshot": {"state": state, "number": 0, "rows": snapshot.rows, "estimate": None}}
    deletes = {"parts": 2, "done": 1, "deletes": 4}
    swept = _snapshot("never").details(_progress(3, replace(snapshot, sweep=Sweep(**deletes))))
    assert swept["snapshot"]["deletes"] == deletes
    assert _snapshot("never").details(_progress(3)) == {}
    assert _snapshot("never").details(None) == {}


def test_cuts_leave_a_table_out_until_they_are_as_late_as_its_rows() -> None:
    snapshot, seen = _snapshot("never"), replace(DONE, seen=20)
    assert snapshot.is_outside(_progress(9, HALF), 30)
    assert [snapshot.is_outside(_progress(9, seen), bound) for bound in (None, 19, 20)] == [True, True, False]
    assert not snapshot.is_outside(_progress(9, DONE), None)
    snapshot.is_outside(_progress(9, HALF), 30)
    # A table that is closed is as it was known last.
    assert snapshot.is_outside(None, 30)


def test_the_range_of_a_snapshot_is_shown() -> None:
    bounds = (("id", ">=", "100"), ("id", "<", "200"))
    going = _progress(3, replace(HALF, where=bounds))
    assert _snapshot("never").details(going)["snapshot"]["where"] == "id >= '100' and id < '200'"
    # One that was asked for since, and has not begun.
    asked = SnapshotControl(3, where=bounds[:1])
    assert _snapshot("never", asked).details(_progress(3, DONE))["snapshot"]["where"] == "id >= '100'"
    assert "where" not in _snapshot("never", SnapshotControl(3)).details(going)["snapshot"]


def test_a_range_that_the_key_cannot_have_by_now_is_refused() -> None:
    """No later try mends it, and the changes of the table would wait with it."""
    stored = StoredTable({"id": parse_sql_type("tinyint")}, ("id",), 0, 0)
    asked = SnapshotProgress(("id",), number=7, where=(("id", "<", "300"),))
    with pytest.raises(SnapshotRefusedError, match="'300' cannot be compared"):
        _snapshot("never")._bounds(asked, cast(Any, None), stored)


@pytest.mark.parametrize("settings", [{"mode": "history"}, {"sequence_by": "source"}, {}])
def test_one_that_is_asked_for_is_refused_where_the_database_has_no_positions(
    settings: dict[str, str],
) -> None:
    """No later try mends it, and the changes of the table would wait with it."""

    def position(*, since: int) -> int:
        raise ConfigError(f"no timestamp from {since} on")

    database = cast(Any, SimpleNamespace(position=position))
    config = Config.model_validate(changed(FLAT_AVRO))
    found = Snapshot(
        cast(Any, SimpleNamespace(config=config)), config.table_config(ORDERS).model_copy(update=settings)
    )
    # The config's own is no request, which could be taken back.
    found._check_positions(database, _progress())
    found.asked = SnapshotControl(7)
    if not settings:
        found._check_positions(database, _progress(3, DONE))
        return
    with pytest.raises(SnapshotRefusedError, match="no timestamp"):
        found._check_positions(database, _progress(3, DONE))
    found._check_positions(database, _progress(4, replace(HALF, number=7)))


@pytest.mark.parametrize(
    ("progress", "order", "again"),
    [
        (replace(HALF, order="a"), "a", False),
        (replace(HALF, order="a"), "b", True),
        # Keys that were asked for have an order of their own, and keys of the target come by their hashes.
        (replace(HALF, order="a", keys="k"), "b", False),
        (replace(HALF, order="a", sweep=Sweep(4, 1)), "b", False),
        (replace(HALF, order="a", sweep=Sweep()), "b", True),
        (replace(HALF, order="a", key=("other",)), "a", True),
    ],
)
def test_rows_are_read_again_in_another_order(progress: SnapshotProgress, order: str, again: bool) -> None:
    found = _snapshot("never")._before(progress, StoredTable({}, ("id",), 0, 0, order=order))
    assert (found.key, found.order) == (("id",), order)
    assert (found.after, found.rows) == ((None, 0) if again else (("5",), 5))


@pytest.mark.parametrize(
    ("gap", "rows_tell", "goes_on"),
    [
        # A row that shows the drop may never come: the database is believed once the topic is read.
        (ColumnGap(lost=("d",)), True, True),
        # DDL comes for certain.
        (ColumnGap(lost=("d",)), False, False),
        # Perhaps one column under another name, whose values only a later row brings.
        (ColumnGap(lost=("d",), new=("e",)), True, False),
        (ColumnGap(new=("e",)), True, True),
        (ColumnGap(new=("e",)), False, True),
    ],
)
def test_columns_that_the_database_alone_knows_of_are_waited_for(
    gap: ColumnGap, rows_tell: bool, goes_on: bool
) -> None:
    recorded = RecordedColumns("rows" if rows_tell else "ddl")
    decoder = cast(Any, SimpleNamespace(recorded_columns=recorded))
    found = _snapshot("never", SnapshotControl(7))
    assert found._is_ahead(gap, decoder, {0: 5})
    assert found.waits({0: 5}, {0: 9})
    assert found.waits({0: 8}, {0: 20})
    assert not found.waits({0: 9}, {0: 20})
    assert found._is_ahead(gap, decoder, {0: 9}) is not goes_on
    if not goes_on:
        assert found.waits({0: 9}, {0: 9})
        assert not found.waits({0: 10}, {0: 10})
        reason = found.details(_progress(3))["snapshot"]["reason"]
        assert all(name in reason for name in (*gap.lost, *gap.new))


class _Large:
    """A part whose rows are looked up before the tasks run, and are more than a task may hold."""

    def inputs(self, _part: SnapshotPart, _attempt: Attempt) -> Inputs:
        raise RangeTooLargeError.of(KeyShare("app"), 1 << 20)


def test_a_look_up_of_too_many_bytes_names_the_setting_of_snapshots() -> None:
    """A sweep looks up the keys of its part in the source. Smaller batches of changes would not help."""
    settings = Config.model_validate(changed(FLAT_AVRO)).table_config(ORDERS)
    attempt: Any = SimpleNamespace(services=SimpleNamespace(settings=settings))
    job = PartJob(cast(Any, None), cast(Any, None), _Large())
    with pytest.raises(ConfigError, match=r"Lower source\.database\.chunk-rows") as caught:
        job.inputs(attempt)
    assert caught.value.context["table"] == "shop.orders"
