"""flat-avro encoding: schemas as TiCDC builds them, registration, and what cannot be written."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from tests.unit.codecs.flat_avro.cases import (
    ALL_NULL,
    EVERY_VALUE,
    TOPIC,
    TSO,
    change,
    codec_with,
    message_of,
    only_change,
    table,
)
from tidesink.codecs import CODECS, open_codec
from tidesink.codecs.flat_avro.schema import key_record, value_record
from tidesink.codecs.options import FlatAvroOptions
from tidesink.errors import ConfigError, EncodeError, IncompatibleSchemaError, SchemaNotFoundError
from tidesink.events import DdlEvent, Op, Position, SchemaIds, TableId, WatermarkEvent
from tidesink.schema_registry.client import MemorySchemaRegistry


def _fields(ddl: str, **options: Any) -> list[dict[str, Any]]:
    schema = table(ddl)
    built = value_record(schema, schema.table, FlatAvroOptions(**options))
    fields: list[dict[str, Any]] = json.loads(built.text)["fields"]
    return fields


@pytest.mark.parametrize(
    ("column", "default"),
    [
        ("c tinyint default -7", -7),
        ("c bigint unsigned default 18446744073709551615", -1),
        ("c float default 3.14", 3.140000104904175),
        ("c double default 1e10", 10000000000),
        ("c double default 1.5", 1.5),
        ("c varchar(9) default '<&>'", "<&>"),
        ("c varbinary(9) default 'xyz'", "eHl6"),
        ("c varbinary(9) default x'ff00'", base64.b64encode(b"\xef\xbf\xbd\x00").decode()),
        ("c varbinary(9) default '中'", base64.b64encode("中".encode()).decode()),
        ("c bit(10) default b'1010101010'", "Aqo="),
        ("c enum('a','b') default 'b'", "b"),
        ("c set('x','y') default 'y,x'", "x,y"),
        ("c timestamp default current_timestamp", "CURRENT_TIMESTAMP"),
        ("c year default 2001", 2001),
    ],
)
def test_a_default_stands_in_the_schema_with_the_producers_quirks(column: str, default: object) -> None:
    nullable = _fields(f"create table d (id int primary key, {column})")[1]
    assert list(nullable) == ["default", "name", "type"]
    assert nullable["default"] == default
    assert type(nullable["default"]) is type(default)
    # With a default the branches flip, so that the first one is the default's.
    assert nullable["type"][1] == "null"
    required = _fields(f"create table d (id int primary key, {column} not null)")[1]
    assert required["default"] == default
    assert required["type"] == nullable["type"][0]


def test_a_precise_decimal_has_no_default() -> None:
    ddl = (
        "create table d (id int primary key, a decimal(5,2) default 1.5, b decimal(5,2) not null default 1.5)"
    )
    nullable, required = _fields(ddl)[1:]
    assert (nullable["default"], nullable["type"][0]) == (None, "null")
    assert "default" not in required
    as_text = _fields(ddl, avro_decimal_handling_mode="string")[1:]
    assert [field["default"] for field in as_text] == ["1.5", "1.5"]


def test_the_text_has_the_producers_order_and_escapes() -> None:
    schema = table("create table `t-1` (id int primary key, b bit(3) default b'1', e enum('a,b','<'))")
    text = value_record(schema, schema.table, FlatAvroOptions(namespace="9team")).text
    assert text == (
        '{"type":"record","name":"t_1","namespace":"_9team.shop","fields":['
        '{"name":"id","type":{"type":"int","connect.parameters":{"tidb_type":"INT"}}},'
        '{"default":"AQ==","name":"b","type":[{"type":"bytes","connect.parameters":'
        '{"length":"3","tidb_type":"BIT"}},"null"]},'
        '{"default":null,"name":"e","type":["null",{"type":"string","connect.parameters":'
        '{"allowed":"a\\\\,b,\\u003c","tidb_type":"ENUM"}}]}]}'
    )


def test_the_key_is_the_handle_key_at_the_classic_producer_and_the_primary_key_at_the_new_one() -> None:
    schema = table("create table k (v int, b int not null, a int not null, unique key (a, b))")
    classic = key_record(schema, schema.table, FlatAvroOptions())
    assert classic is not None
    assert [field["name"] for field in classic.schema["fields"]] == ["b", "a"]  # column order
    assert key_record(schema, schema.table, FlatAvroOptions(producer="new")) is None


def test_virtual_columns_are_left_out_or_null() -> None:
    ddl = "create table g (id int primary key, v int as (id + 1) virtual, s int as (id + 2) stored)"
    schema, row = table(ddl), {"id": 1, "s": 3}
    classic, new = codec_with(), codec_with(producer="new")
    assert only_change(classic, message_of(classic, change(after=row, schema=schema))).after == row
    found = only_change(new, message_of(new, change(after=row, schema=schema))).after
    assert found == {"id": 1, "v": None, "s": 3}
    forced = table("create table g (id int primary key, v int as (id + 1) virtual not null)")
    with pytest.raises(EncodeError, match="virtual column that is NOT NULL") as caught:
        new.encode(change(after=row, schema=forced), topic=TOPIC)
    assert caught.value.context["column"] == "v"


def test_bit_is_shortest_or_full_width_by_producer() -> None:
    schema = table("create table b (id int primary key, b bit(20) not null)")
    sizes = {}
    for producer in ("classic", "new"):
        value = message_of(
            codec_with(producer=producer), change(after={"id": 1, "b": 1}, schema=schema)
        ).value
        assert value is not None
        sizes[producer] = value[6:]
    assert sizes == {"classic": b"\x02\x01", "new": b"\x06\x00\x00\x01"}


@pytest.mark.parametrize("number", [0, 1, -1, 127, 128, -128, -129, 32767, 32768, -32768, -32769, 10**9])
def test_decimals_are_the_shortest_twos_complement(number: int) -> None:
    schema = table("create table d (id int primary key, d decimal(20,2) not null)")
    codec = codec_with()
    row = {"id": 1, "d": Decimal(number).scaleb(-2)}
    message = message_of(codec, change(after=row, schema=schema))
    assert message.value is not None
    raw = message.value[7:]
    assert int.from_bytes(raw, "big", signed=True) == number
    assert len(raw) == 1 or not -(2 ** (8 * len(raw) - 9)) <= number < 2 ** (8 * len(raw) - 9)
    assert only_change(codec, message).after == row


def test_checksum_fields_come_from_the_extension_and_sort_the_columns_by_id() -> None:
    schema = table("create table c (b int, id int primary key)")
    numbered = replace(
        schema, columns=tuple(replace(one, column_id=2 - at) for at, one in enumerate(schema.columns))
    )
    codec = codec_with(enable_tidb_extension=True, row_checksum=True)
    given = {"_tidb_row_level_checksum": "77", "_tidb_corrupted": True, "_tidb_checksum_version": 2}
    row = {"b": 1, "id": 2}
    found = only_change(codec, message_of(codec, change(after=row, schema=numbered, extension=given)))
    assert list(found.after or {}) == ["id", "b"]
    assert found.extension is not None
    assert given.items() <= found.extension.items()
    none = {"_tidb_row_level_checksum": ""}
    plain = only_change(codec, message_of(codec, change(after=row, schema=numbered, extension=none)))
    assert plain.extension is not None
    assert (plain.extension["_tidb_row_level_checksum"], plain.extension["_tidb_checksum_version"]) == ("", 0)


def test_a_schema_is_registered_once_under_the_sanitised_topic() -> None:
    registry = MemorySchemaRegistry()
    codec = codec_with(registry)
    for _ in range(3):
        message_of(codec, change(), topic="shop.orders")
    assert registry.subjects() == ["shop_orders-key", "shop_orders-value"]
    assert registry.versions("shop_orders-value") == [1]


def test_an_added_column_registers_a_new_version() -> None:
    registry = MemorySchemaRegistry()
    codec = codec_with(registry)
    for ddl in ("create table t (id int primary key)", "create table t (id int primary key, b int)"):
        message_of(codec, change(after={"id": 1, "b": 2}, schema=table(ddl)))
    assert registry.versions(f"{TOPIC}-key") == [1]
    assert registry.versions(f"{TOPIC}-value") == [1, 2]


def test_a_registrys_refusal_names_the_field() -> None:
    codec = codec_with(MemorySchemaRegistry(compatibility="BACKWARD"))
    message_of(
        codec, change(after={"id": 1, "b": 2}, schema=table("create table t (id int primary key, b int)"))
    )
    text = table("create table t (id int primary key, b varchar(9))")
    with pytest.raises(IncompatibleSchemaError, match=r"\bb\b") as caught:
        codec.encode(change(after={"id": 1, "b": "x"}, schema=text), topic=TOPIC)
    assert caught.value.context["subject"] == f"{TOPIC}-value"


@pytest.mark.parametrize(
    ("ddl", "row", "match"),
    [
        (
            "create table t (id int primary key, `a-b` int, `a+b` int)",
            {"id": 1},
            "'a-b' and 'a.b' both map",
        ),
        ("create table t (id int primary key, b int)", {"id": 1}, "does not have this column"),
        ("create table t (id int primary key, b int not null)", {"id": 1, "b": None}, "NOT NULL"),
        (
            "create table t (id int primary key, b enum('x','y'))",
            {"id": 1, "b": ""},
            "'' is not a valid enum",
        ),
        ("create table t (id int primary key, b enum('x','y'))", {"id": 1, "b": 1}, "must be its label"),
        (
            "create table t (id int primary key, b set('x','y'))",
            {"id": 1, "b": "x,z"},
            "'x,z' is not a valid set",
        ),
        ("create table t (id int primary key, b bit(3))", {"id": 1, "b": 8}, "8 is not a valid bit"),
        (
            "create table t (id int primary key, b decimal(4,2))",
            {"id": 1, "b": Decimal("100")},
            "not a valid decimal",
        ),
        (
            "create table t (id int primary key, b decimal(4,2))",
            {"id": 1, "b": Decimal("1.234")},
            "not a valid decimal",
        ),
        (
            "create table t (id int primary key, b decimal(4,2))",
            {"id": 1, "b": Decimal("NaN")},
            "not a valid decimal",
        ),
        ("create table t (id int primary key, b decimal(4,2))", {"id": 1, "b": 1.5}, "not a valid decimal"),
        ("create table t (id bigint unsigned primary key)", {"id": -1}, "not a valid bigint unsigned"),
        ("create table t (id int primary key)", {"id": 2**31}, "not a 32-bit integer"),
        ("create table t (id bigint primary key)", {"id": 2**63}, "not a 64-bit integer"),
        ("create table t (id bigint primary key)", {"id": 1.5}, "not a 64-bit integer"),
        ("create table t (id int primary key, b float)", {"id": 1, "b": 1e39}, "not a 32-bit float"),
        ("create table t (id int primary key, b int)", {"id": 1, "b": "x"}, "does not have the field's type"),
        (
            "create table t (id int primary key, b varchar(9))",
            {"id": 1, "b": "\ud800"},
            "does not have the field",
        ),
        (
            "create table t (id int primary key, b varchar(9) not null)",
            {"id": 1, "b": b"x"},
            "does not have the field",
        ),
    ],
)
def test_what_cannot_be_written_names_table_and_reason(ddl: str, row: dict[str, Any], match: str) -> None:
    with pytest.raises(EncodeError, match=match) as caught:
        codec_with().encode(change(after=row, schema=table(ddl)), topic=TOPIC)
    assert caught.value.context["table"] == "shop.t"
    assert "column" in caught.value.context


def test_a_column_named_like_the_extension_is_refused_with_it() -> None:
    schema = table("create table t (id int primary key, _tidb_op int)")
    with pytest.raises(EncodeError, match="'_tidb_op' and 'the extension'"):
        codec_with(enable_tidb_extension=True).encode(
            change(after={"id": 1, "_tidb_op": 1}, schema=schema), topic=TOPIC
        )


def test_a_commit_ts_that_is_none_is_refused_by_name() -> None:
    event = change()._replace(commit_ts=2**63)
    with pytest.raises(EncodeError, match=f"{2**63} does not fit the field's signed 64-bit number") as caught:
        codec_with(enable_tidb_extension=True).encode(event, topic=TOPIC)
    assert caught.value.context["column"] == "_tidb_commit_ts"
    assert "TiDB timestamp" in str(caught.value)


def test_a_message_above_the_limit_is_refused() -> None:
    event = change()
    size = (
        len((message_of(codec_with(), event).key or b"") + (message_of(codec_with(), event).value or b""))
        + 36
    )
    assert codec_with(max_message_bytes=size).encode(event, topic=TOPIC) is not None
    with pytest.raises(EncodeError, match=f"has {size} bytes, but max-message-bytes is {size - 1}"):
        codec_with(max_message_bytes=size - 1).encode(event, topic=TOPIC)


@pytest.mark.parametrize(
    ("event", "options", "match"),
    [
        (change(Op.TRUNCATE), {}, "truncate"),
        (change()._replace(schema=None), {}, "The event has no table schema"),
        (change()._replace(after=None), {}, "has no row"),
        (change(Op.UPSERT), {"enable_tidb_extension": True}, "an insert or an update"),
        (change()._replace(commit_ts=None), {"enable_tidb_extension": True}, "no commit_ts"),
        (
            change(Op.UPDATE, before={"id": 1}),
            {"avro_include_before_value": True, "producer": "new"},
            "does not have this column",
        ),
    ],
)
def test_an_event_that_lacks_something_is_refused(event: Any, options: Any, match: str) -> None:
    with pytest.raises(EncodeError, match=match):
        codec_with(**options).encode(event, topic=TOPIC)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("modes", [("precise", "long"), ("string", "string")])
def test_decoded_events_go_back_under_their_own_ids(before: bool, modes: Any) -> None:
    registry = MemorySchemaRegistry()
    options: dict[str, Any] = {
        "enable_tidb_extension": True,
        "avro_decimal_handling_mode": modes[0],
        "avro_bigint_unsigned_handling_mode": modes[1],
        **({"producer": "new", "avro_include_before_value": True} if before else {}),
    }
    writer, plain = codec_with(registry, **options), codec_with(registry)
    versions = len(registry.subjects())
    for event in (
        change(),
        change(Op.UPDATE, before={**ALL_NULL, "id": 3}),
        change(Op.DELETE, None, before=EVERY_VALUE),
    ):
        message = message_of(writer, event)
        found = only_change(plain, message)._replace(schema=None)
        assert plain.encode_with_ids(found) == (message.key, message.value)
    assert len(registry.subjects()) == versions + 2


def test_labels_the_schema_blurs_still_go_back_under_their_ids() -> None:
    # TiCDC's `allowed` does not escape a backslash, so `a\` before a comma cannot be split back.
    schema = table(r"create table t (id int primary key, e enum('a\\','b','it''''s'))")
    registry = MemorySchemaRegistry()
    codec = codec_with(registry)
    for label in ("a\\", "b", "it''s"):
        message = message_of(codec, change(after={"id": 1, "e": label}, schema=schema))
        found = only_change(codec, message)
        assert found.after == {"id": 1, "e": label}
        assert codec.encode_with_ids(found) == (message.key, message.value)


def test_ids_must_be_there_known_and_able_to_say_delete() -> None:
    registry = MemorySchemaRegistry()
    codec = codec_with(registry)
    found = only_change(codec, message_of(codec, change()))
    with pytest.raises(EncodeError, match="no schema ids"):
        codec.encode_with_ids(found._replace(schema_id=None))
    with pytest.raises(SchemaNotFoundError):
        codec.encode_with_ids(found._replace(schema_id=SchemaIds(None, 999)))
    with pytest.raises(EncodeError, match="has no field _tidb_op, so a delete cannot be written"):
        codec.encode_with_ids(found._replace(op=Op.DELETE, before=found.after, after=None))


def test_control_events_are_sent_only_when_the_producer_would() -> None:
    position = Position(TOPIC, 0, 0)
    mark = WatermarkEvent(TSO, position)
    ddl = DdlEvent(TableId("s", "t"), "ALTER TABLE `t` COMMENT = '<>'", "17", TSO, position)
    one_half: list[dict[str, Any]] = [{}, {"enable_tidb_extension": True}, {"avro_enable_watermark": True}]
    for options in one_half:
        assert codec_with(**options).encode(mark, topic=TOPIC) is None
        assert codec_with(**options).encode(ddl, topic=TOPIC) is None
    sends = codec_with(enable_tidb_extension=True, avro_enable_watermark=True)
    assert sends.encode(mark, topic=TOPIC) == (None, b"\x02" + TSO.to_bytes(8, "big"))
    encoded = sends.encode(ddl, topic=TOPIC)
    assert encoded is not None
    assert encoded.value is not None
    assert b"\\u003c\\u003e" in encoded.value
    with pytest.raises(EncodeError, match="number of TiDB's DDL action"):
        sends.encode(ddl._replace(kind="ALTER"), topic=TOPIC)
    with pytest.raises(EncodeError, match="not an unsigned 64-bit"):
        sends.encode(mark._replace(commit_ts=-1), topic=TOPIC)


def test_a_codec_is_opened_by_its_name() -> None:
    registry = MemorySchemaRegistry()
    assert open_codec("avro", registry=registry).name == "flat-avro"
    assert open_codec("Flat-Avro", registry=registry).name == "flat-avro"
    assert open_codec("canal-json").name == "canal-json"
    assert set(CODECS) >= {"flat-avro", "canal-json"}
    with pytest.raises(ConfigError, match="Did you mean 'canal-json'"):
        open_codec("canal-jsno")
    with pytest.raises(ConfigError, match="Supported are 'flat-avro'"):
        open_codec("xyz")
    with pytest.raises(ConfigError, match="needs a schema registry"):
        open_codec("flat-avro")
