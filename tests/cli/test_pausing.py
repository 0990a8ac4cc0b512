"""``tidesink pause`` and ``resume``: without a worker, by way of the state store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.controlled_shop import ADDED, ORDERS, Shop
from tests.unit.config.samples import FLAT_AVRO, changed
from tidesink.events import TableId
from tidesink.sinks.runtime.control import TableControl, read_controls
from tidesink.sinks.state.progress import TableStatus

MISSED = {"text": "deletes may be missing: and so on", "digest": "d1"}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_table_is_asked_to_rest_and_to_go_on(shop: Shop) -> None:
    shop.store.save_status(TableStatus("shop", ORDERS, "IDLE"))
    code, output = shop.run("pause", "SHOP.orders")
    assert (code, shop.asked().rests) == (0, True)
    assert "The next worker handles the request" in output
    assert "shop.orders: pause requested" in shop.run("status")[1]
    shown = json.loads(shop.run("status", "-o", "json")[1])
    assert shown["asked_to_rest"] == [{"schema": "shop", "name": "orders"}]
    assert shown["worker"] == {"alive": False, "seconds_since_turn": None, "failure": None}
    assert shop.run("resume", "shop.orders")[0] == 0
    assert shop.asked() == TableControl(resumed=1)


def test_a_pending_change_is_checked_again_and_not_decided(shop: Shop) -> None:
    shop.waits(ADDED)
    code, output = shop.run("resume", "shop.orders")
    assert (code, shop.asked().accepted) == (0, {})
    assert "add of column label: not decided" in output
    code, output = shop.run("resume", "shop.orders", "--accept")
    assert (code, shop.asked().accepted) == (2, {})
    assert "tidesink ddl approve" in output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pause", "shop.order"), "did you mean shop.orders?"),
        (("resume", "shop.orders", "--accept"), "shop.orders has nothing to accept"),
    ],
)
def test_what_means_nothing_is_an_error(shop: Shop, words: tuple[str, ...], said: str) -> None:
    shop.store.save_status(TableStatus("shop", ORDERS, "IDLE"))
    code, output = shop.run(*words)
    assert code == 2
    assert said in output


def test_without_a_state_store_nothing_is_made(shop: Shop, tmp_path: Path) -> None:
    shop.store.close()
    for file in tmp_path.glob("state.db*"):
        file.unlink()
    code, output = shop.run("pause", "shop.orders")
    assert code == 2
    assert "No worker has run yet" in output
    assert not (tmp_path / "state.db").exists()


def test_of_tables_that_differ_in_case_alone_the_one_that_is_spelt_so_is_asked(shop: Shop) -> None:
    both = TableId("shop", "Orders"), ORDERS
    for table in both:
        shop.store.save_status(TableStatus("shop", table, "IDLE"))
    for table in both:
        assert shop.run("pause", str(table))[0] == 0
        assert [one for one, control in read_controls(shop.store, "shop").items() if control.rests] == [table]
        assert shop.run("resume", str(table))[0] == 0


def test_the_workers_spelling_is_taken_and_not_the_configs(shop: Shop) -> None:
    settings = changed(FLAT_AVRO, state=str(shop.path.parent / "state.db"), tables=[{"name": "Shop.ORDERS"}])
    shop.path.write_text(yaml.safe_dump(settings))
    shop.store.save_status(TableStatus("shop", ORDERS, "IDLE"))
    assert shop.run("pause", "Shop.ORDERS")[0] == 0
    assert shop.asked().rests


def test_deletes_that_may_be_missing_are_accepted(shop: Shop) -> None:
    details = {"topic": "shop_orders", "missed-deletes": MISSED}
    shop.store.save_status(TableStatus("shop", ORDERS, "FAILING", details=details))
    code, said = shop.run("resume", "shop.orders")
    assert (code, shop.asked().accepted) == (0, {})
    assert "not accepted, so it stays paused: deletes may be missing" in said
    code, said = shop.run("resume", "shop.orders", "--accept")
    assert (code, shop.asked().accepted) == (0, {"d1": "apply"})
    assert "accepted: deletes may be missing" in said
