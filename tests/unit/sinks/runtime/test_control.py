"""What people ask of tables: kept in the state store, heeded once, right when several ask at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.unit.config.samples import CANAL_JSON, changed, right
from tests.unit.sinks.worker.bed import worker_context
from tidesink.errors import AccountingError, StateStoreError
from tidesink.events import TableId
from tidesink.sinks.kafka.offsets import PartitionOffsets, TopicOffsets
from tidesink.sinks.runtime.control import (
    BROKEN,
    MOST_DECISIONS,
    NOTHING_ASKED,
    Decision,
    Pauses,
    Requests,
    TableControl,
    change_control,
    read_controls,
    read_decisions,
    store_decisions,
)
from tidesink.sinks.schema_changes.decisions import Pending, SchemaChange
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.table_task import TableTask

ORDERS, ITEMS = TableId("shop", "orders"), TableId("a.b", 'c"d')
CHANGE = SchemaChange("add", "label", after="varchar(9)")


def test_what_is_asked_outlives_the_process(tmp_path: Path) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))
    assert Requests(store, "shop").of(ORDERS) == NOTHING_ASKED
    change_control(store, "shop", ORDERS, TableControl.pause)
    change_control(store, "shop", ITEMS, lambda asked: asked.resume({"d1": "ignore"}))
    store.close()
    found = read_controls(SqlStateStore(str(tmp_path / "state.db")), "shop")
    assert found == {ORDERS: TableControl(rests=True), ITEMS: TableControl(False, 1, {"d1": "ignore"})}
    assert read_controls(SqlStateStore(str(tmp_path / "state.db")), "other") == {}


def test_nothing_is_lost_when_several_ask_at_a_time(tmp_path: Path) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))

    def ask() -> None:
        for _ in range(5):
            change_control(store, "shop", ORDERS, lambda asked: asked.resume({}))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_controls(store, "shop")[ORDERS].resumed == 15


def test_a_store_that_is_silent_leaves_the_last_word(tmp_path: Path) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))
    change_control(store, "shop", ORDERS, TableControl.pause)
    requests = Requests(store, "shop")
    requests.look()
    (tmp_path / "state.db").unlink()
    (tmp_path / "state.db").mkdir()
    store.close()
    requests.look()
    assert requests.of(ORDERS).rests


def test_a_table_rests_and_goes_on_once() -> None:
    pauses = Pauses(ORDERS)
    assert pauses.apply_control(NOTHING_ASKED, waits=False) is None
    assert pauses.apply_control(TableControl(rests=True), waits=False) == "rest"
    assert pauses.apply_control(TableControl(rests=True), waits=True) is None
    assert "tidesink resume shop.orders" in pauses.reason
    assert pauses.details() == {"rests": True}
    assert pauses.apply_control(TableControl(resumed=1), waits=True) == "go on"
    assert pauses.apply_control(TableControl(resumed=1), waits=False) is None


def test_a_waiting_table_looks_again_when_it_is_told_to() -> None:
    pauses = Pauses(ORDERS)
    # A worker that starts looks by itself: what was asked before is no news.
    assert pauses.apply_control(TableControl(resumed=3), waits=True) is None
    assert pauses.apply_control(TableControl(resumed=4, accepted={"d": "apply"}), waits=True) == "go on"
    assert pauses.accepted == {"d": "apply"}
    assert pauses.apply_control(TableControl(resumed=5), waits=False) is None


@pytest.mark.parametrize("rests", [True, False])
def test_a_new_worker_tries_a_paused_table_again_unless_a_user_paused_it(
    tmp_path: Path, *, rests: bool
) -> None:
    """So a change of the config needs a restart, and a resume only after a pause."""
    store = SqlStateStore(str(tmp_path / "state.db"))
    table_task, asked = _table_task(store, "1s"), TableControl(rests=rests)
    offsets = TopicOffsets("shop", "id", {0: PartitionOffsets(0, 5)})
    table_task.status.pause((Pending(CHANGE, ("apply",)),))
    table_task.apply_control(asked)
    assert not table_task.has_work(offsets)
    status = store.status_of("shop", ORDERS)
    assert status is not None
    assert status.state == "PAUSED"
    later = _table_task(store, "1s")
    later.apply_control(asked)
    assert (later.state, later.has_work(offsets)) == (("PAUSED", False) if rests else ("IDLE", True))
    later.apply_control(asked.resume({}))
    assert (later.state, later.has_work(offsets)) == ("IDLE", True)


def test_what_is_decided_of_a_change_does_not_end_a_rest() -> None:
    resting = TableControl(rests=True).decide({"d": "ignore"})
    assert resting == TableControl(rests=True, resumed=1, accepted={"d": "ignore"})


def test_a_decision_is_known_once_it_was_asked_for_and_the_newest_are_kept(tmp_path: Path) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))
    shown = Pending(CHANGE, ("apply", "ignore")).as_json()
    store_decisions(store, "shop", [Decision(ORDERS, "apply", 1.0, shown)])
    assert read_decisions(store, "shop") == ()
    change_control(store, "shop", ORDERS, lambda control: control.decide({CHANGE.digest: "apply"}))
    assert read_decisions(store, "shop") == (Decision(ORDERS, "apply", 1.0, shown),)
    others = [Decision(ORDERS, "apply", 2.0, {**shown, "digest": str(n)}) for n in range(MOST_DECISIONS)]
    store_decisions(store, "shop", others)
    assert read_decisions(store, "shop") == ()
    store.close()


def test_a_pending_change_is_shown_with_the_way_on() -> None:
    pauses = Pauses(ORDERS)
    pauses.wait_for((Pending(CHANGE, ("apply", "ignore")),))
    pauses.state_is("PAUSED")
    assert "`tidesink ddl approve shop.orders` or `tidesink ddl reject shop.orders`" in pauses.reason
    (shown,) = pauses.details()["pending"]
    assert shown["kind"] == "add"
    assert shown["digest"] == CHANGE.digest
    pauses.state_is("RUNNING")
    assert pauses.details() == {}


def test_of_several_pending_changes_each_is_named_by_its_digest() -> None:
    pauses = Pauses(ORDERS)
    other = CHANGE._replace(column="other")
    pauses.wait_for((Pending(CHANGE, ("apply",)), Pending(other, ("ignore",))))
    assert f"Run `tidesink ddl approve {CHANGE.short_digest}`. A schema change" in pauses.reason
    assert pauses.reason.endswith(f"Run `tidesink ddl reject {other.short_digest}`.")


LAW: Final = AccountingError("1 events are missing")


class _SilentStore(SqlStateStore):
    """Does not answer so many saves of a status; keeps those that it took."""

    def __init__(self, url: str, silent: int) -> None:
        super().__init__(url)
        self.silent = silent
        self.taken: list[TableStatus] = []

    def save_status(self, status: TableStatus) -> bool:
        if self.silent:
            self.silent -= 1
            raise StateStoreError("no answer")
        self.taken.append(status)
        return super().save_status(status)


def _table_task(store: SqlStateStore, patience: str) -> TableTask:
    target = {"type": "http", "url": "http://127.0.0.1:1/x"}
    config = right(changed(CANAL_JSON, target=target, retry={"for": patience}))
    return TableTask(worker_context(config, store=store), "app", ORDERS)


def _is_refused(store: SqlStateStore) -> bool:
    """Whether another worker, which knows what the store does, refuses the table."""
    status = store.status_of("shop", ORDERS)
    try:
        Pauses(ORDERS).check_law(status, "")
    except AccountingError as exc:
        return exc.message == LAW.message
    return False


def test_a_broken_law_is_in_the_save_that_says_failing(tmp_path: Path) -> None:
    store = _SilentStore(str(tmp_path / "state.db"), silent=1)
    _table_task(store, "1h").fail(LAW)
    assert [(one.state, BROKEN in one.details) for one in store.taken] == [("FAILING", True)]
    assert _is_refused(store)
    store.close()


Turn = Callable[[TableTask], None]
LOOKED: Final[Turn] = lambda task: task.apply_control(NOTHING_ASKED)  # noqa: E731
ENDED: Final[Turn] = lambda task: task.rest()  # noqa: E731


@pytest.mark.parametrize("turn", [LOOKED, ENDED])
def test_a_broken_law_that_the_store_did_not_take_is_saved_once_it_answers(
    tmp_path: Path, turn: Turn
) -> None:
    store = _SilentStore(str(tmp_path / "state.db"), silent=2)
    task = _table_task(store, "0s")
    task.fail(LAW)
    found = TopicOffsets("app", "id", {0: PartitionOffsets(0, 9)})
    assert (task.state, task.has_work(found), store.taken) == ("FAILING", False, [])
    turn(task)
    assert (store.silent, _is_refused(store)) == (0, False)
    turn(task)
    assert _is_refused(store)
    turn(task)
    assert [(one.state, BROKEN in one.details) for one in store.taken] == [("FAILING", True)]
    store.close()


def test_a_broken_law_that_the_store_does_not_know_holds_until_it_is_accepted() -> None:
    pauses = Pauses(ORDERS)
    pauses.break_law(LAW, (0, 0, 0))
    with pytest.raises(AccountingError, match=LAW.message):
        pauses.check_law(None, "")
    pauses.accepted = {pauses.details()[BROKEN]["digest"]: "apply"}
    pauses.check_law(None, "")
    assert not pauses.is_law_broken
