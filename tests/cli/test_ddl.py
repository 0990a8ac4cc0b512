"""``tidesink ddl``: changes that wait, shown and decided without a worker, by way of the state store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.controlled_shop import ADDED, ORDERS, Shop
from tidesink.config.fields import ChangePolicy
from tidesink.events import TableId
from tidesink.sinks.runtime.control import TableControl
from tidesink.sinks.schema_changes.decisions import Pending, PolicyChoices, SchemaChange
from tidesink.sinks.state.progress import Progress, StoredDdl, store_ddl

ITEMS = TableId("shop", "items")
RETYPED = Pending(SchemaChange("type", "price", "int", "string"), reason="no type holds both")
DROPPED = Pending(SchemaChange("drop", "note", "int", at=str(5000 << 18)), ("ignore", "apply"))
TRUNCATED = Pending(
    SchemaChange("truncate", "", "2026-11-26 12:00:00.000 UTC", "TRUNCATE TABLE orders", "7/ab"),
    ("apply", "ignore"),
    "if it is ignored, rows stay",
)
DIGEST = TRUNCATED.change.digest


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def _listed(shop: Shop, *words: str) -> list[dict[str, Any]]:
    code, output = shop.run("ddl", "list", *words, "-o", "json")
    assert code == 0, output
    changes: list[dict[str, Any]] = json.loads(output)["changes"]
    return changes


def test_what_waits_is_listed_with_what_is_possible(shop: Shop) -> None:
    shop.waits(TRUNCATED)
    shop.waits(ADDED, DROPPED, RETYPED, table=ITEMS)
    code, output = shop.run("ddl", "list")
    lines = [line.split() for line in output.splitlines()]
    assert code == 0
    assert lines[0] == ["table", "state", "kind", "time", "decided", "digest", "possible", "change"]
    assert lines[4][:6] == ["shop.orders", "waits", "truncate", "2026-11-26", "12:00:00.000", "UTC"]
    assert [DIGEST[:8], "approve,", "reject", "TRUNCATE", "TABLE", "orders"] == lines[4][6:]
    assert lines[1][-2:] == ["label:", "varchar(9)"]
    assert lines[2][2:6] == ["drop", "1970-01-01", "00:00:05.000", "UTC"]
    assert lines[3][-4:] == ["price:", "int", "->", "string"]
    assert [(one["table"]["name"], one["kind"]) for one in _listed(shop, "shop.orders")] == [
        ("orders", "truncate")
    ]


def test_a_change_is_shown_whole_with_the_commands_that_decide_it(shop: Shop) -> None:
    shop.waits(TRUNCATED)
    for named in ("shop.orders", DIGEST, DIGEST[:8].upper()):
        code, output = shop.run("ddl", "show", named)
        assert code == 0, output
        assert output.splitlines() == [
            "shop.orders: truncate, waits",
            "  committed: 2026-11-26 12:00:00.000 UTC",
            "  statement: TRUNCATE TABLE orders",
            "  reason: if it is ignored, rows stay",
            f"  digest: {DIGEST}",
            f"  tidesink ddl approve --config {shop.path} {DIGEST[:8]}",
            f"  tidesink ddl reject --config {shop.path} {DIGEST[:8]}",
        ]
    assert shop.run("ddl", "show", "0123456789abcdef")[0] == 1


@pytest.mark.parametrize(
    ("verb", "policy", "state"), [("approve", "apply", "approved"), ("reject", "ignore", "rejected")]
)
def test_a_decision_is_heeded_and_stays_known(shop: Shop, verb: str, policy: Any, state: str) -> None:
    shop.waits(TRUNCATED)
    code, output = shop.run("ddl", verb, DIGEST[:8])
    assert (code, shop.asked().accepted, shop.asked().resumed) == (0, {DIGEST: policy}, 1)
    assert f"shop.orders: truncate (TRUNCATE TABLE orders): {state}" in output
    assert "The next worker handles the request" in output
    (still,) = _listed(shop)
    assert (still["state"], still["waits"], still["digest"]) == (state, True, DIGEST)
    shop.waits()
    (known,) = _listed(shop)
    assert (known["state"], known["waits"], known["statement"]) == (state, False, "TRUNCATE TABLE orders")
    assert known["decided"] is not None
    assert f"truncate, {state} at 2" in shop.run("ddl", "show", "shop.orders")[1]
    # What is over is not decided again.
    assert shop.run("ddl", verb, DIGEST[:8])[0] == 2


def test_what_policies_did_by_themselves_is_listed(shop: Shop) -> None:
    """Behind what waits and what people decided; there is nothing to decide of it."""
    shop.waits(DROPPED)
    shop.waits(table=ITEMS)
    chosen: dict[str, tuple[SchemaChange, ChangePolicy]] = {
        TRUNCATED.change.digest: (TRUNCATED.change, "apply"),
        ADDED.change.digest: (ADDED.change, "ignore"),
    }
    PolicyChoices(shop.store).keep(chosen, Progress(ITEMS, "shop", 1, 7, {}))
    code, output = shop.run("ddl", "list")
    lines = output.splitlines()
    assert code == 0
    assert [" ".join(line.split()[:4]) for line in lines[1:]] == [
        "shop.orders waits drop 1970-01-01",
        "shop.items applied by policy",
        "shop.items ignored by policy",
    ]
    assert "TRUNCATE TABLE orders" in lines[2]
    applied, ignored = _listed(shop, "shop.items")
    assert (applied["state"], applied["waits"], applied["accepts"]) == ("applied by policy", False, [])
    assert (ignored["column"], applied["statement"]) == ("label", "TRUNCATE TABLE orders")
    assert applied["decided"] is not None
    code, output = shop.run("ddl", "show", DIGEST[:8])
    assert (code, "truncate, applied by policy at 2" in output) == (0, True)
    assert shop.run("ddl", "reject", DIGEST[:8])[0] == 2


def test_one_of_several_changes_or_all_of_a_table_are_decided(shop: Shop) -> None:
    shop.waits(ADDED, DROPPED)
    assert shop.run("ddl", "reject", DROPPED.change.short_digest)[0] == 0
    assert shop.asked().accepted == {DROPPED.change.digest: "ignore"}
    assert shop.run("ddl", "approve", "SHOP.orders")[0] == 0
    assert shop.asked().accepted == {ADDED.change.digest: "apply", DROPPED.change.digest: "apply"}


def test_all_waiting_changes_of_a_kind_are_decided(shop: Shop) -> None:
    shop.waits(ADDED, RETYPED)
    shop.waits(ADDED, table=ITEMS)
    code, output = shop.run("ddl", "approve", "--all-of", "add", "-o", "json")
    assert (code, len(json.loads(output)["changes"])) == (0, 2)
    assert [shop.asked(table).accepted for table in (ORDERS, ITEMS)] == [{ADDED.change.digest: "apply"}] * 2


def test_a_decision_leaves_a_table_paused_that_a_person_paused(shop: Shop) -> None:
    shop.waits(ADDED)
    shop.run("pause", "shop.orders")
    code, output = shop.run("ddl", "approve", "shop.orders")
    assert (code, shop.asked().rests) == (0, True)
    assert f"Run `tidesink resume --config {shop.path} shop.orders` to continue" in output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("shop.orders",), "price: cannot be approved: no type holds both"),
        (("--all-of", "type"), "no type holds both"),
        (("--all-of", "ad"), "there is no such kind (did you mean add?)"),
        (("--all-of", "widen"), "No schema change of kind widen waits"),
        ((), "Give either tables (schema.table) and digests, or --all-of KIND"),
        (("shop.items", "--all-of", "add"), "Give either"),
        (("shop.item",), "did you mean shop.items?"),
        (("shop.items",), "No schema change of shop.items waits"),
        (("abcd1234",), "No schema change of abcd1234 waits"),
    ],
)
def test_what_cannot_be_decided_is_refused_and_nothing_is_asked(
    shop: Shop, words: tuple[str, ...], said: str
) -> None:
    shop.waits(ADDED, RETYPED)
    shop.waits(table=ITEMS)
    code, output = shop.run("ddl", "approve", *words)
    assert (code, shop.asked()) == (2, TableControl())
    assert said in output.replace("\n", " ")


def test_a_change_that_several_tables_have_is_decided_by_their_names(shop: Shop) -> None:
    shop.waits(ADDED)
    shop.waits(ADDED, table=ITEMS)
    code, output = shop.run("ddl", "reject", ADDED.change.short_digest)
    assert (code, shop.asked()) == (2, TableControl())
    assert "waits in several tables (shop.items, shop.orders). Give the tables' names" in output
    assert shop.run("ddl", "reject", "shop.items", "shop.orders")[0] == 0


def test_digests_that_begin_alike_are_not_guessed(shop: Shop) -> None:
    columns = (ADDED._replace(change=ADDED.change._replace(column=f"c{n}")) for n in range(2000))
    starts: dict[str, Pending] = {}
    for one in columns:
        other = starts.setdefault(one.change.digest[:4], one)
        if other is not one:
            break
    shop.waits(one, other)
    code, output = shop.run("ddl", "approve", one.change.digest[:4])
    assert (code, shop.asked()) == (2, TableControl())
    assert "Give more of its digits" in output
    assert shop.run("ddl", "approve", one.change.digest)[0] == 0


def test_ddl_events_are_listed_beside_changes(shop: Shop) -> None:
    shop.waits(ADDED)
    event = StoredDdl("orders", "id", 0, 3, 5000 << 18, "TRUNCATE", "TRUNCATE TABLE orders", None)
    store_ddl(shop.store, Progress(ORDERS, "shop", 1, 1), [event])
    code, output = shop.run("ddl", "list", "shop.orders")
    assert code == 0
    assert "1970-01-01 00:00:05.000  TRUNCATE  orders[0]@3  TRUNCATE TABLE orders" in output
    assert "label: varchar(9)" in output
    shop.waits(table=ITEMS)
    assert "no schema changes and no DDL events of shop.items" in shop.run("ddl", "list", "shop.items")[1]
