"""What the state store knows of a target that was brought back from a backup."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contracts.targets_bed import TABLE, progress
from tidesink.errors import ConfigError, StaleProgressError
from tidesink.events import TableId
from tidesink.sinks.runtime.control import PLACE, accept_restored, check_not_restored
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.state.sql_store import SqlStateStore


@pytest.fixture
def store(tmp_path: Path) -> SqlStateStore:
    return SqlStateStore(str(tmp_path / "state.db"))


def _saw(store: SqlStateStore, batch: int, *, epoch: int = 1) -> None:
    status = TableStatus("shop", TABLE, "IDLE", epoch=epoch, batch=batch, details={PLACE: "here"})
    assert store.save_status(status)


def _refused(store: SqlStateStore, batch: int) -> None:
    with pytest.raises(StaleProgressError, match="restored from a backup") as raised:
        check_not_restored(store, progress(3, batch), "here")
    assert f"is at batch {batch}" in str(raised.value)
    assert raised.value.remedy == "stop"


def test_what_was_committed_is_there(store: SqlStateStore) -> None:
    check_not_restored(store, progress(1, 4), "here")
    _saw(store, 4)
    # A worker that died between the commit and its report has committed more than was seen.
    for batch in (4, 5):
        check_not_restored(store, progress(2, batch), "here")


def test_a_target_that_holds_less_is_refused_until_a_person_says_so(store: SqlStateStore) -> None:
    _saw(store, 4)
    _refused(store, 3)
    assert accept_restored(store, "shop", TABLE) == 4
    check_not_restored(store, progress(3, 3), "here")
    # Killed before it said where it stands: it is the same going back.
    check_not_restored(store, progress(4, 3), "here")
    _saw(store, 3, epoch=4)
    _refused(store, 2)


def test_a_word_that_was_used_is_not_there_for_the_next_time(store: SqlStateStore) -> None:
    _saw(store, 4)
    _refused(store, 3)
    accept_restored(store, "shop", TABLE)
    check_not_restored(store, progress(3, 3), "here")
    # The worker came as far as before, and then the same backup was brought back again.
    _saw(store, 4, epoch=3)
    _refused(store, 3)


def test_what_was_not_found_brought_back_cannot_be_accepted(store: SqlStateStore) -> None:
    _saw(store, 4)
    with pytest.raises(ConfigError, match="nothing to accept"):
        accept_restored(store, "shop", TABLE)
    check_not_restored(store, progress(3, 4), "here")
    _refused(store, 3)


def test_a_word_is_for_one_going_back(store: SqlStateStore) -> None:
    _saw(store, 4)
    _refused(store, 3)
    accept_restored(store, "shop", TABLE)
    check_not_restored(store, progress(3, 3), "here")
    _saw(store, 4, epoch=3)
    check_not_restored(store, progress(4, 4), "here")
    _refused(store, 3)


def test_a_word_is_not_used_by_a_worker_that_lost_the_table(store: SqlStateStore) -> None:
    _saw(store, 4, epoch=7)
    _refused(store, 3)
    accept_restored(store, "shop", TABLE)
    with pytest.raises(StaleProgressError, match="Another worker holds the table"):
        check_not_restored(store, progress(5, 3), "here")
    # The backup's epochs are earlier too: they were seen to begin again.
    check_not_restored(store, progress(5, 3), "here", life=1)
    status = store.status_of("shop", TABLE)
    assert status is not None
    assert status.rank == (1, 5, 3)


def test_a_table_that_was_emptied_or_moved_is_none_from_a_backup(store: SqlStateStore) -> None:
    _saw(store, 4)
    check_not_restored(store, None, "here")
    check_not_restored(store, progress(1, 1), "there")
    store.save_status(TableStatus("shop", TABLE, "IDLE", epoch=1, batch=9))
    check_not_restored(store, progress(1, 1), "here")


def test_a_table_that_nobody_worked_on_is_said(store: SqlStateStore) -> None:
    with pytest.raises(ConfigError, match="has worked on"):
        accept_restored(store, "shop", TableId("shop", "none"))
