"""The keys of a resync: those that a report names, and the document that a worker finds them in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.config.samples import CANAL_JSON, changed, right
from tidesink.errors import ConfigError
from tidesink.events import ColumnType, TableId
from tidesink.sinks.snapshots.asked_keys import (
    MOST_CHARACTERS,
    MOST_KEYS,
    AskedKeys,
    forget_keys,
    given_keys,
    load_keys,
    read_report,
    store_keys,
)
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.source_database.base import StoredTable

PIPELINE = "shop"
ORDERS, OTHERS = TableId("shop", "orders"), TableId("shop", "others")


def _report(folder: Path, *lines: Any) -> Path:
    path = folder / "report.jsonl"
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines))
    return path


def _line(key: dict[str, Any], table: TableId = ORDERS, **more: Any) -> dict[str, Any]:
    return {"table": table._asdict(), "kind": "different", "key": key, "columns": ["x"], **more}


def test_a_report_names_keys_by_table(tmp_path: Path) -> None:
    path = _report(
        tmp_path,
        _line({"a": "2", "b": "x"}),
        _line({"b": "y", "a": "1"}, values={"x": {"source": None, "target": "1"}}),
        _line({"a": "2", "b": "x"}),
        _line({"a": None, "b": "x"}),
        _line({"id": "7"}, OTHERS),
    )
    found = read_report(path, [ORDERS, TableId("shop", "more")])
    assert found == {ORDERS: (AskedKeys(("a", "b"), (("1", "y"), ("2", "x"))), 1)}
    asked = found[ORDERS].asked
    assert asked.behind(None) == asked.keys
    assert asked.behind(("1", "y")) == (("2", "x"),)
    assert [*asked.in_order_of(("b", "a"))] == [("y", "1"), ("x", "2")]
    assert read_report(_report(tmp_path), [ORDERS]) == {}


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "1", '{"table": {"schema": "shop"}, "key": {"a": "1"}}', _line({}), _line({"a": 1})],
)
def test_what_is_no_report_is_refused(tmp_path: Path, line: Any) -> None:
    path = _report(tmp_path, _line({"a": "1"}), line)
    with pytest.raises(ConfigError, match=r"Line 2 of .* is not a line of a report"):
        read_report(path, [ORDERS])


def test_a_report_that_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_report(tmp_path / "none", [ORDERS])
    with pytest.raises(ConfigError, match="has other key columns of"):
        read_report(_report(tmp_path, _line({"a": "1"}), _line({"b": "1"})), [ORDERS])
    full = [_line({"a": str(number)}) for number in range(MOST_KEYS)]
    assert len(read_report(_report(tmp_path, *full), [ORDERS])[ORDERS].asked.keys) == MOST_KEYS
    # Those of other tables do not count.
    assert read_report(_report(tmp_path, *full, _line({"a": "x"})), [OTHERS]) == {}
    for more in ([*full, _line({"a": "x"})], [_line({"a": "x" * (MOST_CHARACTERS + 1)})]):
        with pytest.raises(
            ConfigError, match=r"Repair the whole table instead: `tidesink resync shop\.orders`"
        ):
            read_report(_report(tmp_path, *more), [ORDERS])


def test_keys_are_stored_under_a_name_of_their_own(tmp_path: Path) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))
    one, other = AskedKeys(("a",), (("1",),)), AskedKeys(("a",), (("2",),))
    name = store_keys(store, PIPELINE, ORDERS, one)
    assert store_keys(store, PIPELINE, ORDERS, one) == name
    others = (
        store_keys(store, PIPELINE, ORDERS, other),
        store_keys(store, PIPELINE, OTHERS, one),
        store_keys(store, "another", ORDERS, one),
    )
    assert len({name, *others}) == 4
    assert load_keys(store, name) == one
    forget_keys(store, name)
    assert load_keys(store, name) is None


def test_keys_are_given_by_the_names_of_the_source() -> None:
    config = right(
        changed(
            CANAL_JSON,
            tables=[{"name": "shop.orders", "rename": {"Region": "area"}}],
            routes=[{"match": "shop.(.*)", "to": "all.$1", "shard-column": "origin"}],
        )
    )
    integer, text = ColumnType("bigint", sql="bigint"), ColumnType("varchar", length=20, sql="varchar(20)")
    stored = StoredTable({"Region": text, "id": integer, "note": text}, ("Region", "id"), 0, 0)
    given = ["region=a,b = c, id=-17", "ID=4,Region=", "id=4,region="]
    found = given_keys(config, ORDERS, stored, given)
    assert found == AskedKeys(
        ("area", "id", "origin"), (("", "4", "shop.orders"), ("a,b = c", "-17", "shop.orders"))
    )
    for wrong, said in (
        ("id=4", "has no value for Region"),
        ("regin=a,id=4", "'regin=a' is not a key column with a value"),
        ("note=a,id=4", "is not a key column"),
        ("region,id=4", "'region' is not a key column with a value"),
        ("id=4,region=a,id=5", "'id=5' is not a key column"),
        ("region=a,id=4x", "id is an integer column, but '4x' is not an integer"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)) as caught:
            given_keys(config, ORDERS, stored, [wrong])
        assert "--key 'Region=…,id=…'" in str(caught.value)


def test_a_row_without_a_key_is_named_by_its_row_id() -> None:
    """Every row has the id of the table, which is added."""
    integer = ColumnType("bigint", sql="bigint")
    stored = StoredTable(
        {"note": integer},
        ("_tidb_rowid",),
        0,
        0,
        row_key={"_tidb_rowid": integer, "_tidb_table_id": integer},
        constants={"_tidb_table_id": "104"},
    )
    found = given_keys(right(CANAL_JSON), ORDERS, stored, ["_tidb_rowid=5"])
    assert found == AskedKeys(("_tidb_rowid", "_tidb_table_id"), (("5", "104"),))


def test_a_key_of_columns_has_no_id_of_the_table() -> None:
    """TiDB has one for each table that no primary key clusters, which a unique key may name as well."""
    integer = ColumnType("bigint", sql="bigint")
    ids = {"_tidb_rowid": integer, "_tidb_table_id": integer}
    stored = StoredTable({"u": integer}, ("u",), 0, 0, row_key=ids, constants={"_tidb_table_id": "104"})
    assert given_keys(right(CANAL_JSON), ORDERS, stored, ["u=5"]) == AskedKeys(("u",), (("5",),))
