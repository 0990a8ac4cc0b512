"""Debezium's records one by one: what captures of two databases do not hold, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tidesink.codecs import open_codec
from tidesink.codecs.options import DebeziumModes, DebeziumOptions
from tidesink.errors import (
    ConfigError,
    DecodeError,
    EncodeError,
    FramingError,
    SchemaMismatchError,
    SchemaNotFoundError,
    ValueOutOfRangeError,
)
from tidesink.events import (
    ChangeEvent,
    DdlEvent,
    Event,
    Message,
    MessageEvent,
    Op,
    Position,
    TableId,
    WatermarkEvent,
)
from tidesink.schema_registry import MemorySchemaRegistry

MYSQL = {
    "connector": "mysql",
    "db": "shop",
    "table": "orders",
    "snapshot": "false",
    "file": "b.000001",
    "pos": 4,
    "row": 0,
}
POSTGRES = {"connector": "postgresql", "db": "app", "schema": "public", "table": "t", "lsn": 9}


def _message(value: Any, key: Any = None, *, topic: str = "app.shop.orders", **headers: str) -> Message:
    raw_key, raw_value = (None if one is None else json.dumps(one).encode() for one in (key, value))
    encoded = tuple((name, text.encode()) for name, text in headers.items())
    return Message(topic, 0, 7, raw_key, raw_value, headers=encoded)


def _decode(message: Message, **modes: Any) -> Event:
    codec = open_codec("debezium-json", options=DebeziumOptions(debezium=DebeziumModes(**modes)))
    (event,) = codec.decode(message)
    return event


def _change(message: Message, **modes: Any) -> ChangeEvent:
    event = _decode(message, **modes)
    assert isinstance(event, ChangeEvent)
    return event


def _envelope(op: str, source: Mapping[str, Any] = MYSQL, **images: Any) -> dict[str, Any]:
    return {"before": None, "after": None, **images, "source": source, "op": op, "ts_ms": 5}


@pytest.mark.parametrize("protocol", ["debezium", "debezium-json", "Debezium-JSON"])
def test_names(protocol: str) -> None:
    assert open_codec(protocol).name == "debezium-json"


def test_avro_needs_a_registry() -> None:
    with pytest.raises(ConfigError, match="registry"):
        open_codec("debezium-avro")


@pytest.mark.parametrize(
    ("op", "meant"),
    [("c", Op.INSERT), ("r", Op.UPSERT), ("u", Op.UPDATE)],
)
def test_ops(op: str, meant: Op) -> None:
    event = _change(_message(_envelope(op, after={"id": 1, "a": "x"}), {"id": 1}))
    assert (event.op, event.table) == (meant, TableId("shop", "orders"))
    assert (event.key, event.before, event.after) == ({"id": 1}, None, {"id": 1, "a": "x"})
    assert event.commit_ts is None
    assert event.position.source == (1, 4, 0)
    assert event.extension is not None
    assert event.extension["ts_ms"] == 5
    assert event.extension["op"] == op


def test_a_wrapped_payload_without_a_schema() -> None:
    """As TiCDC writes it with debezium-disable-schema."""
    wrapped = {"payload": _envelope("c", after={"id": 1})}
    assert _change(_message(wrapped, {"payload": {"id": 1}})).after == {"id": 1}


def test_a_tombstone_after_a_delete_says_nothing_new() -> None:
    codec = open_codec("debezium-json")
    delete = _message(_envelope("d", before={"id": 1, "a": "x"}), {"id": 1})
    (event,) = codec.decode(delete)
    assert isinstance(event, ChangeEvent)
    assert event.before == {"id": 1, "a": "x"}
    assert codec.decode(_message(None, {"id": 1})) == ()


def test_truncate_has_no_key_and_no_rows() -> None:
    event = _change(_message(_envelope("t")))
    assert (event.op, event.key, event.before, event.after) == (Op.TRUNCATE, None, None, None)


@pytest.mark.law("L4")
def test_the_halves_of_a_changed_key_name_each_other() -> None:
    headers = {"__debezium.newkey": '{"id":2}'}
    event = _change(_message(_envelope("d", before={"id": 1}), {"id": 1}, **headers))
    assert (event.extension or {})["newkey"] == '{"id":2}'


def test_unavailable_values_are_absent() -> None:
    after = {
        "id": 1,
        "big": "__debezium_unavailable_value",
        "bytes": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
    }
    event = _change(_message(_envelope("u", POSTGRES, after=after), {"id": 1}))
    assert event.after == {"id": 1}
    assert (event.extension or {})["unavailable"] == ("big", "bytes")


def test_the_placeholder_is_the_connectors() -> None:
    after = {"id": 1, "big": "__mine", "other": "__debezium_unavailable_value"}
    event = _change(
        _message(_envelope("u", POSTGRES, after=after), {"id": 1}), unavailable_value_placeholder="__mine"
    )
    assert event.after == {"id": 1, "other": "__debezium_unavailable_value"}


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ({"id": 1, "a": None, "b": None}, {"id": 1}),
        ({"id": 1, "a": "", "b": None, "n_def": "1.500"}, {"id": 1}),
        ({"id": 1, "a": "x", "b": 2}, {"id": 1, "a": "x", "b": 2}),
    ],
)
def test_deletes_of_postgres(before: dict[str, Any], kept: dict[str, Any]) -> None:
    assert _change(_message(_envelope("d", POSTGRES, before=before), {"id": 1})).before == kept


def test_a_deleted_row_of_another_database_may_hold_nulls() -> None:
    before = {"id": 1, "a": None}
    assert _change(_message(_envelope("d", before=before), {"id": 1})).before == before


def test_mongodb_documents() -> None:
    source = {"connector": "mongodb", "db": "inventory", "collection": "customers", "ts_ms": 3000, "ord": 2}
    document = '{"_id": {"$numberLong": "1004"}}'
    event = _change(_message(_envelope("c", source, after=document), {"id": "1004"}))
    assert event.table == TableId("inventory", "customers")
    assert event.after == {"id": "1004", "document": document}
    assert event.position.source == (3, 2)
    patch = {**_envelope("u", source), "updateDescription": {"updatedFields": "{}"}}
    event = _change(_message(patch, {"id": "1004"}))
    assert event.after == {"id": "1004"}
    assert (event.extension or {})["unavailable"] == ("document",)


def test_transactions_heartbeats_and_notifications() -> None:
    begin = {"status": "BEGIN", "id": "1:2", "event_count": None, "data_collections": None, "ts_ms": 1}
    event = _decode(_message(begin, {"id": "1:2"}))
    assert isinstance(event, MessageEvent)
    assert (event.kind, event.extension) == ("transaction", begin)
    event = _decode(_message({"ts_ms": 1}, {"serverName": "app"}, topic="__debezium-heartbeat.app"))
    assert isinstance(event, MessageEvent)
    assert event.kind == "heartbeat"
    event = _decode(_message({"id": "x", "aggregate_type": "Initial Snapshot", "type": "STARTED"}))
    assert isinstance(event, MessageEvent)
    assert event.kind == "notification"


@pytest.mark.parametrize(
    ("mode", "content"), [("bytes", "aGk="), ("base64-url-safe", "aGk="), ("hex", "6869")]
)
def test_logical_messages(mode: str, content: str) -> None:
    message = {**_envelope("m", POSTGRES), "message": {"prefix": "p", "content": content}}
    event = _decode(_message(message, {"prefix": "p"}), binary_handling_mode=mode)
    assert isinstance(event, MessageEvent)
    assert (event.kind, event.prefix, event.content) == ("logical", "p", b"hi")


def test_a_message_of_ticdc_is_a_watermark() -> None:
    source = {"connector": "TiCDC", "db": "", "table": "", "commit_ts": 7}
    event = _decode(_message(_envelope("m", source), {}))
    assert event == WatermarkEvent(7, event.position)


def test_schema_changes() -> None:
    value: dict[str, Any] = {
        "source": MYSQL,
        "ts_ms": 1,
        "databaseName": "shop",
        "schemaName": None,
        "ddl": "ALTER TABLE orders ADD a INT",
        "tableChanges": [{"type": "ALTER", "id": '"shop"."orders"', "table": {}}],
    }
    event = _decode(_message(value, {"databaseName": "shop"}, topic="app"))
    assert isinstance(event, DdlEvent)
    assert (event.table, event.kind) == (TableId("shop", "orders"), "ALTER")
    assert event.query == value["ddl"]


def test_a_schema_change_without_a_statement() -> None:
    """SQL Server tells the columns alone."""
    source = {"connector": "sqlserver", "db": "app", "schema": "dbo", "table": "t"}
    value: dict[str, Any] = {
        "source": source,
        "databaseName": "app",
        "schemaName": "dbo",
        "ddl": None,
        "tableChanges": [],
    }
    event = _decode(_message(value))
    assert isinstance(event, DdlEvent)
    assert (event.table, event.query, event.kind) == (TableId("dbo", "t"), "", "QUERY")
    assert (event.extension or {})["tableChanges"] == []


def test_ddl_gives_types_to_plain_rows() -> None:
    codec = open_codec("debezium-json")
    ddl = "CREATE TABLE orders (id BIGINT UNSIGNED PRIMARY KEY, d DATE, n DECIMAL(10,2))"
    codec.decode(_message({"source": MYSQL, "databaseName": "shop", "ddl": ddl, "tableChanges": []}))
    row = {"id": -1, "d": 19782, "n": "BAM="}
    (event,) = codec.decode(_message(_envelope("c", after=row), {"id": -1}))
    assert isinstance(event, ChangeEvent)
    assert event.key == {"id": 2**64 - 1}
    assert {name: str(value) for name, value in (event.after or {}).items()} == {
        "id": str(2**64 - 1),
        "d": "2024-02-29",
        "n": "10.27",
    }


def test_unread_ddl_is_kept_with_its_reason() -> None:
    codec: Any = open_codec("debezium-json")
    ddl = "CREATE TABLE t (a SDO_GEOMETRY)"
    codec.decode(_message({"source": MYSQL, "databaseName": "shop", "ddl": ddl, "tableChanges": []}))
    assert list(codec.unread_ddl) == [ddl]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"id": 0, "isDdl": False, "mysqlType": {}, "data": [], "type": "INSERT"}, "canal-json"),
        ({"specversion": "1.0", "datacontenttype": "application/json"}, "CloudEvent"),
        ({"id": 1, "a": 2}, "debezium-unwrapped"),
        ([1, 2], "neither an envelope nor a row"),
        ("text", "neither an envelope nor a row"),
        (_envelope("x", after={}), "op is 'x'"),
        (_envelope("c"), "must have a new row"),
        (_envelope("c", {"connector": "mysql"}, after={}), "names no table"),
        (_envelope("c", after=5), "is not a row"),
        (_envelope("m", POSTGRES), "message"),
        ({"source": MYSQL, "ddl": 5}, "ddl"),
    ],
)
def test_refused_values_say_what_they_are(value: Any, words: str) -> None:
    with pytest.raises(SchemaMismatchError, match=words) as caught:
        _decode(_message(value, {"id": 1}))
    assert caught.value.context["topic"] == "app.shop.orders"
    assert caught.value.context["offset"] == 7


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", FramingError, "debezium-json"),
        (b"{", FramingError, "not JSON"),
        (b"\x00\x00\x00\x00\x05abc", FramingError, "not JSON"),
        (b"\x00\x00\x00\xff\x05abc", FramingError, "debezium-avro"),
        (b"\xff\xfe", FramingError, "not UTF-8"),
        (b'{"a": NaN}', SchemaMismatchError, "NaN"),
        (b'{"a": 1e999999999}', ValueOutOfRangeError, "1e999999999"),
        (b'{"a": -9e40023372036854775808}', ValueOutOfRangeError, "e40023372036854775808"),
        (b"[" * 200_000, SchemaMismatchError, "nested"),
        (b'{"schema":{"type":"struct"},"payload":{}}', SchemaMismatchError, "fields"),
        (b'{"a": ' + b"9" * 5000 + b"}", FramingError, "not JSON"),
    ],
)
def test_refused_bytes(data: bytes, error: type[DecodeError], words: str) -> None:
    with pytest.raises(error, match=words):
        open_codec("debezium-json").decode(Message("t", 0, 0, None, data))


def test_avro_refuses_what_it_cannot_read() -> None:
    codec = open_codec("debezium-avro", registry=MemorySchemaRegistry({1: '{"type": "record"}', 2: "5"}))
    with pytest.raises(FramingError, match="JSON"):
        codec.decode(Message("t", 0, 0, None, b'{"a": 1}'))
    with pytest.raises(SchemaNotFoundError):
        codec.decode(Message("t", 0, 0, None, b"\0\0\0\0\x09a"))
    for schema_id in (1, 2):
        with pytest.raises(SchemaMismatchError):
            codec.decode(Message("t", 0, 0, None, b"\0\0\0\0" + bytes([schema_id]) + b"a"))


def test_avro_refuses_arrays_that_cost_nothing() -> None:
    """Five bytes could else claim an array of billions."""
    fields = [{"name": "a", "type": {"type": "array", "items": "null"}}]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    codec = open_codec("debezium-avro", registry=MemorySchemaRegistry({1: schema}))
    with pytest.raises(SchemaMismatchError, match="stored in no bytes"):
        codec.decode(Message("t", 0, 0, None, b"\0\0\0\0\x01\xfe\xff\xff\xff\xff\x0f\0"))


def test_what_is_not_written_is_refused_by_name() -> None:
    event = _decode(_message(_envelope("c", after={"id": 1}), {"id": 1}))
    with pytest.raises(EncodeError, match="commit_ts"):
        open_codec("debezium-json").encode(event, topic="t")
    with pytest.raises(EncodeError, match="truncate"):
        open_codec("debezium-json").encode(_decode(_message(_envelope("t"))), topic="t")
    avro = open_codec("debezium-avro", registry=MemorySchemaRegistry())
    with pytest.raises(EncodeError, match="commit_ts"):
        avro.encode(event, topic="t")
    heartbeat = _decode(_message({"ts_ms": 5}))
    for codec in (open_codec("debezium-json"), avro):
        with pytest.raises(EncodeError, match="a Debezium connector"):
            codec.encode(heartbeat, topic="t")


def test_ddl_of_others_is_refused_by_name() -> None:
    """TiCDC's ``tableChanges`` are the whole table as TiDB sees it, which nobody else tells."""
    sending = DebeziumOptions(enable_tidb_extension=True, avro_enable_watermark=True)
    ddl = {"source": MYSQL, "databaseName": "shop", "ddl": "DROP TABLE t", "tableChanges": []}
    event = _decode(_message(ddl))
    assert isinstance(event, DdlEvent)
    bare = event._replace(commit_ts=5, extension=None)
    codecs = (
        open_codec("debezium-json"),
        open_codec("debezium-avro", registry=MemorySchemaRegistry(), options=sending),
    )
    for codec in codecs:
        with pytest.raises(EncodeError, match="Debezium connector"):
            codec.encode(event._replace(commit_ts=5), topic="t")
        with pytest.raises(EncodeError, match="tableChanges"):
            codec.encode(bare, topic="t")
        with pytest.raises(EncodeError, match="commit_ts"):
            codec.encode(bare._replace(commit_ts=None, extension={"tableChanges": []}), topic="t")
    with pytest.raises(EncodeError, match="do not match the Avro schema"):
        codecs[1].encode(bare._replace(extension={"tableChanges": [{"id": 1}]}), topic="t")


def test_avro_control_messages_are_sent_with_both_options_alone() -> None:
    position = Position("t", 0, 0)
    ddl = DdlEvent(TableId("shop", "t"), "DROP TABLE t", "DROP", 5, position, {"tableChanges": []})
    for extension, watermark in ((True, False), (False, True)):
        options = DebeziumOptions(enable_tidb_extension=extension, avro_enable_watermark=watermark)
        codec = open_codec("debezium-avro", registry=MemorySchemaRegistry(), options=options)
        assert codec.encode(WatermarkEvent(1, position), topic="t") is None
        assert codec.encode(ddl, topic="t") is None


def test_rows_of_one_shape_share_their_schema() -> None:
    """Caches by identity depend on it."""
    codec = open_codec("debezium-json")
    first, second = (
        codec.decode(_message(_envelope("c", after={"id": one, "a": "x"}), {"id": one}))[0] for one in (1, 2)
    )
    assert isinstance(first, ChangeEvent)
    assert isinstance(second, ChangeEvent)
    assert first.schema is second.schema
