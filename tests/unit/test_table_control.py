"""What people ask of tables: kept in the state store, heeded once, right when several ask at a time."""

from __future__ import annotations

import threading
from pathlib import Path

from tidesink.events import TableId
from tidesink.sinks.batch.schema_changes import Pending, SchemaChange
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.control import (
    NOTHING_ASKED,
    Pauses,
    Requests,
    TableControl,
    change_control,
    read_controls,
)

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


def test_a_pending_change_is_shown_with_the_way_on() -> None:
    pauses = Pauses(ORDERS)
    pauses.wait_for((Pending(CHANGE, ("apply", "ignore")),))
    pauses.state_is("PAUSED")
    assert "resume shop.orders --accept or tidesink resume shop.orders --accept --ignore" in pauses.reason
    (shown,) = pauses.details()["pending"]
    assert shown["kind"] == "add"
    assert shown["digest"] == CHANGE.digest
    pauses.state_is("RUNNING")
    assert pauses.details() == {}
