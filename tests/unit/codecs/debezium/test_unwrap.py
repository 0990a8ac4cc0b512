"""Rows flattened by ExtractNewRecordState: told by their fields, headers or schema, and their tombstones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.codecs.flat_avro.cases import only_change
from tidesink.codecs import open_codec
from tidesink.codecs.options import DebeziumOptions
from tidesink.errors import SchemaMismatchError
from tidesink.events import Message, Op, TableId
from tidesink.schema_registry import MemorySchemaRegistry


def _message(value: Any, key: Any, *, topic: str = "app.shop.orders", **headers: str) -> Message:
    raw_key, raw_value = (None if one is None else json.dumps(one).encode() for one in (key, value))
    encoded = tuple((name, text.encode()) for name, text in headers.items())
    return Message(topic, 0, 1, raw_key, raw_value, headers=encoded)


def test_added_fields_are_no_columns() -> None:
    row = {"id": 1, "a": "x", "__op": "u", "__table": "orders", "__source_ts_ms": 5, "__deleted": "false"}
    event = only_change(open_codec("debezium-json"), _message(row, {"id": 1}))
    assert (event.op, event.table) == (Op.UPDATE, TableId("shop", "orders"))
    assert (event.key, event.before, event.after) == ({"id": 1}, None, {"id": 1, "a": "x"})
    assert event.schema is not None
    assert [column.name for column in event.schema.columns] == ["id", "a"]
    assert event.extension == {name: value for name, value in row.items() if name.startswith("__")}


def test_a_column_of_that_look_staysonly_change() -> None:
    event = only_change(open_codec("debezium-json"), _message({"id": 1, "__mine": 2, "__op": "c"}, {"id": 1}))
    assert event.after == {"id": 1, "__mine": 2}


@pytest.mark.parametrize(
    ("row", "headers", "op"),
    [
        ({"id": 1, "__op": "c"}, {}, Op.INSERT),
        ({"id": 1, "__op": "r"}, {}, Op.UPSERT),
        ({"id": 1, "__deleted": "false"}, {}, Op.UPSERT),
        ({"id": 1}, {"__op": "u"}, Op.UPDATE),
        ({"id": 1, "__deleted": "true"}, {}, Op.DELETE),
        ({"id": 1, "__deleted": True, "__op": "d"}, {}, Op.DELETE),
    ],
)
def test_what_happened(row: dict[str, Any], headers: dict[str, str], op: Op) -> None:
    event = only_change(open_codec("debezium-json"), _message(row, {"id": 1}, **headers))
    assert event.op is op
    assert (event.after is None) is (op is Op.DELETE)
    assert (event.before is None) is (op is not Op.DELETE)


def test_positions_where_they_were_added() -> None:
    codec = open_codec("debezium-json")
    row = {"id": 1, "__op": "u", "__lsn": 77}
    assert only_change(codec, _message(row, {"id": 1})).position.source == (77,)
    row = {"id": 1, "__op": "u", "__source_file": "b.000002", "__source_pos": 4, "__source_row": 1}
    assert only_change(codec, _message(row, {"id": 1})).position.source == (2, 4, 1)
    row = {"id": 1, "__op": "r", "__lsn": 77}
    assert only_change(codec, _message(row, {"id": 1})).position.source is None


@pytest.mark.parametrize(
    ("topic", "added", "headers", "table"),
    [
        ("app.shop.orders", {}, {}, TableId("shop", "orders")),
        ("app.shop.a.b", {}, {}, TableId("shop", "a.b")),
        ("app.shop.a.b", {"__table": "a.b"}, {}, TableId("shop", "a.b")),
        (
            "renamed",
            {"__table": "orders", "__db": "shop", "__connector": "mysql"},
            {},
            TableId("shop", "orders"),
        ),
        ("renamed", {"__table": "orders"}, {}, TableId("", "orders")),
        ("renamed", {}, {}, TableId("", "renamed")),
        (
            "app.db1.dbo.t",
            {},
            {"__debezium.context.connectorName": '"sqlserver"'},
            TableId("dbo", "t"),
        ),
    ],
)
def test_tables(topic: str, added: dict[str, str], headers: dict[str, str], table: TableId) -> None:
    message = _message({"id": 1, "__op": "c", **added}, {"id": 1}, topic=topic, **headers)
    assert only_change(open_codec("debezium-json"), message).table == table


def test_a_schema_of_a_row_tells_it() -> None:
    schema = {
        "type": "struct",
        "name": "app.shop.orders.Value",
        "optional": False,
        "fields": [{"type": "int64", "optional": False, "field": "id"}],
    }
    message = _message({"schema": schema, "payload": {"id": 2**60}}, {"id": 2**60}, topic="renamed")
    event = only_change(open_codec("debezium-json"), message)
    assert (event.op, event.table, event.after) == (Op.UPSERT, TableId("shop", "orders"), {"id": 2**60})


def test_a_tombstone_alone_is_a_delete() -> None:
    lone = _message(None, {"id": 1})
    assert open_codec("debezium-json").decode(lone) == ()
    declared = open_codec("debezium-json", options=DebeziumOptions(debezium_unwrapped=True))
    event = only_change(declared, lone)
    assert (event.op, event.table) == (Op.DELETE, TableId("shop", "orders"))
    assert (event.key, event.before, event.after) == ({"id": 1}, {"id": 1}, None)


def test_a_tombstone_is_told_by_its_header_or_by_rows_before() -> None:
    assert only_change(open_codec("debezium-json"), _message(None, {"id": 1}, __op="d")).op is Op.DELETE
    codec = open_codec("debezium-json")
    codec.decode(_message({"id": 1, "__op": "c"}, {"id": 1}))
    assert only_change(codec, _message(None, {"id": 1})).op is Op.DELETE
    assert codec.decode(_message(None, {"id": 1}, topic="app.shop.others")) == ()


def test_a_tombstone_without_a_key_deletes_nothing_and_says_so() -> None:
    codec = open_codec("debezium-json", options=DebeziumOptions(debezium_unwrapped=True))
    with pytest.raises(SchemaMismatchError, match=r"message\.key\.columns"):
        codec.decode(_message(None, None))


def test_untold_rows_need_the_option() -> None:
    row = _message({"id": 1, "a": 2}, {"id": 1})
    with pytest.raises(SchemaMismatchError, match="debezium-unwrapped"):
        open_codec("debezium-json").decode(row)
    declared = open_codec("debezium-json", options=DebeziumOptions(debezium_unwrapped=True))
    assert only_change(declared, row).after == {"id": 1, "a": 2}


def test_an_unknown_op_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="__op"):
        open_codec("debezium-json").decode(_message({"id": 1, "__op": "z"}, {"id": 1}))


def test_avro_rows_are_told_by_their_schema() -> None:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "a", "type": ["null", "string"], "default": None},
        {"name": "__deleted", "type": ["null", "string"], "default": None},
    ]
    name = {"name": "Value", "namespace": "app.shop.orders", "connect.name": "app.shop.orders.Value"}
    key = {"type": "record", "name": "Key", "namespace": "app.shop.orders", "fields": fields[:1]}
    schemas = {1: json.dumps(key), 2: json.dumps({"type": "record", **name, "fields": fields})}
    codec = open_codec("debezium-avro", registry=MemorySchemaRegistry(schemas))
    head = b"\0\0\0\0"
    row = Message("app.shop.orders", 0, 0, head + b"\x01\x02", head + b"\x02\x02\x02\x02x\x02\x0afalse")
    event = only_change(codec, row)
    assert (event.op, event.table) == (Op.UPSERT, TableId("shop", "orders"))
    assert (event.key, event.after) == ({"id": 1}, {"id": 1, "a": "x"})
    tombstone = Message("app.shop.orders", 0, 1, head + b"\x01\x02", None)
    assert only_change(codec, tombstone).op is Op.DELETE
