"""flat-avro decoding: images, names, and every kind of bad input with its message."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import pytest

from tests.unit.flat_avro_cases import (
    ALL_NULL,
    EVERY_TYPE,
    EVERY_VALUE,
    SHOP,
    TOPIC,
    TSO,
    change,
    codec_with,
    message_of,
    only_change,
    table,
)
from tidesink.change import DdlEvent, Message, Op, SchemaIds, TableId, WatermarkEvent
from tidesink.codecs.flat_avro import FlatAvroCodec
from tidesink.errors import (
    DecodeError,
    FramingError,
    SchemaMismatchError,
    SchemaNotFoundError,
    UnnamedRowError,
    UnsupportedMessageError,
    ValueOutOfRangeError,
)
from tidesink.schema_registry.memory import MemorySchemaRegistry

PRODUCERS = ("classic", "new")
MODES = [("precise", "long"), ("string", "string")]


@pytest.mark.parametrize("row", [EVERY_VALUE, ALL_NULL], ids=["values", "nulls"])
@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_every_type_comes_back_from_both_producers(row: Any, modes: Any, producer: Any) -> None:
    registry = MemorySchemaRegistry()
    writer = codec_with(
        registry,
        producer=producer,
        avro_decimal_handling_mode=modes[0],
        avro_bigint_unsigned_handling_mode=modes[1],
    )
    # The reader is told neither the producer nor the modes.
    found = only_change(codec_with(registry), message_of(writer, change(after=row)))
    assert found.after == row
    assert {name: type(value) for name, value in row.items()} == {
        name: type(value) for name, value in (found.after or {}).items()
    }
    assert found.key == {"id": row["id"]}
    assert (found.op, found.before, found.commit_ts, found.extension) == (Op.UPSERT, None, None, None)


def test_the_extension_tells_op_and_commit_ts_and_is_no_column() -> None:
    codec = codec_with(enable_tidb_extension=True)
    found = only_change(codec, message_of(codec, change(Op.UPDATE, before=EVERY_VALUE)))
    assert (found.op, found.commit_ts, found.before) == (Op.UPDATE, TSO, None)
    assert found.position == (TOPIC, 3, 42, 0, (TSO,))
    assert found.extension == {
        "_tidb_op": "u",
        "_tidb_commit_ts": TSO,
        "_tidb_commit_physical_time": TSO >> 18,
    }
    assert set(found.after or {}) == set(EVERY_VALUE)


def test_a_tombstone_is_a_delete_with_the_key_columns_alone() -> None:
    codec = codec_with(enable_tidb_extension=True)
    message = message_of(codec, change(Op.DELETE, None, before=EVERY_VALUE))
    assert message.value is None
    found = only_change(codec, message)
    assert (found.op, found.key, found.before) == (Op.DELETE, {"id": 2**64 - 1}, {"id": 2**64 - 1})
    assert (found.after, found.commit_ts) == (None, None)
    assert found.schema_id is not None
    assert found.schema_id.value is None


@pytest.mark.parametrize("extension", [False, True])
def test_before_values_hold_the_old_row_whole(extension: bool) -> None:
    codec = codec_with(producer="new", avro_include_before_value=True, enable_tidb_extension=extension)
    old = {**ALL_NULL, "id": 5}
    update = only_change(codec, message_of(codec, change(Op.UPDATE, before=old)))
    assert (update.op, update.before, update.after) == (Op.UPDATE, old, EVERY_VALUE)
    # The key changed (output-raw-change-event): the record's key is the new one, the old one is in before.
    assert update.key == {"id": 2**64 - 1}
    delete = only_change(codec, message_of(codec, change(Op.DELETE, None, before=old)))
    assert (delete.op, delete.before, delete.after, delete.key) == (Op.DELETE, old, None, {"id": 5})
    insert = only_change(codec, message_of(codec, change()))
    assert (insert.op, insert.before, insert.after) == (Op.INSERT, None, EVERY_VALUE)


def test_a_table_with_a_unique_key_only_has_rows_without_key_at_the_new_producer() -> None:
    schema = table("create table u (a int not null unique, b int)")
    codec = codec_with(producer="new", avro_include_before_value=True)
    row = {"a": 1, "b": 2}
    insert = message_of(codec, change(Op.INSERT, row, schema=schema))
    delete = message_of(codec, change(Op.DELETE, None, before=row, schema=schema))
    assert insert.key is delete.key is None
    assert only_change(codec, insert).key is None
    assert (only_change(codec, delete).op, only_change(codec, delete).before) == (Op.DELETE, row)


def test_the_topic_rule_names_the_table_and_the_record_does_without_one() -> None:
    registry = MemorySchemaRegistry()
    message = message_of(
        codec_with(registry),
        change(schema=table("create table `库`.`a-b` (id int primary key)"), after={"id": 1}),
    )
    assert only_change(codec_with(registry), message).table == TableId("_", "a_b")
    ruled = FlatAvroCodec(registry=registry, table_of_topic=lambda _topic: TableId("库", "a-b"))
    found = only_change(ruled, message)
    assert found.table == TableId("库", "a-b")
    assert found.schema is not None
    assert found.schema.table == TableId("库", "a-b")


def test_the_table_schema_says_what_the_writer_knew() -> None:
    codec = codec_with()
    schema = table(
        "create table d (id bigint unsigned not null default 18446744073709551615 primary key, "
        "b varbinary(9) default x'ff00', f float default 3.14, bits bit(9) default b'100000001', "
        "de decimal(8,3) default 1.5, e enum('a','b') not null default 'b')"
    )
    row = {"id": 1, "b": None, "f": None, "bits": 3, "de": None, "e": "a"}
    found = only_change(codec, message_of(codec, change(after=row, schema=schema))).schema
    assert found is not None
    by_name = found.by_name
    assert [column.name for column in found.handle_columns] == ["id"]
    assert by_name["id"].default == "18446744073709551615"
    assert by_name["f"].default == "3.14"
    assert by_name["bits"].default == "\x01\x01"
    assert (by_name["bits"].type.length, by_name["bits"].nullable) == (9, True)
    assert by_name["b"].default == "ï¿½\x00"  # the producer damaged the byte ff: EF BF BD
    assert (by_name["de"].type.precision, by_name["de"].type.scale, by_name["de"].default) == (8, 3, None)
    assert (by_name["e"].type.members, by_name["e"].nullable) == (("a", "b"), False)


def _good() -> tuple[FlatAvroCodec, Message]:
    codec = codec_with()
    return codec, message_of(codec, change())


def _bad(error: type[DecodeError], key: bytes | None, value: bytes | None, match: str) -> None:
    codec, _ = _good()
    with pytest.raises(error, match=match) as caught:
        codec.decode(Message(TOPIC, 3, 42, key, value))
    assert str(caught.value).startswith(f"{TOPIC}[3]@42")


@pytest.mark.parametrize(
    ("key", "match"),
    [
        (b"", "the key is empty"),
        (b"\x00\x00\x01", "the key has 3 bytes: the Confluent header alone has 5"),
        (b"\x07\x00\x00\x00\x01\x02", "the key starts with 07 00 00 00 01 02, not with the magic byte 00"),
        (b'{"id": 1}', "looks like JSON: is the protocol canal-json"),
        (b"\x03\x00" + uuid.UUID(int=7).bytes + b"\x02", "AWS Glue"),
    ],
)
def test_a_header_of_another_kind_is_refused(key: bytes, match: str) -> None:
    _, message = _good()
    _bad(FramingError, key, message.value, match)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (b"", "the value is empty"),
        (b"\x00", "the value has 1 bytes"),
        (b"\x05\x00\x00\x00\x01", "the value starts with 05"),
        (b"\x03\x05" + uuid.UUID(int=7).bytes + b"\x02", "AWS Glue"),
        (b"\x01{}", "a control event's byte, and the key is not null"),
        (b"\x02" + bytes(8), "a control event's byte, and the key is not null"),
    ],
)
def test_a_value_of_another_kind_is_refused(value: bytes, match: str) -> None:
    _, message = _good()
    _bad(FramingError, message.key, value, match)


def test_a_delete_marker_is_refused_and_never_skipped() -> None:
    codec = codec_with(producer="new", enable_tidb_extension=True, avro_enable_watermark=True)
    marker = message_of(codec, change(Op.DELETE, None, before=EVERY_VALUE))
    assert marker.value == b"\x03" + TSO.to_bytes(8, "big")
    _bad(UnsupportedMessageError, marker.key, marker.value, "delete marker .* avro-include-before-value=true")
    _bad(UnnamedRowError, None, marker.value, "names no row")


def test_a_delete_without_key_names_the_option_that_mends_it() -> None:
    schema = table("create table u (a int not null unique)")
    encoded = codec_with(producer="new").encode(
        change(Op.DELETE, None, before={"a": 1}, schema=schema), topic=TOPIC
    )
    assert encoded == (None, None)
    _bad(UnnamedRowError, None, None, "avro-include-before-value=true")


def test_an_unknown_schema_id_is_the_registrys_word() -> None:
    codec, message = _good()
    with pytest.raises(SchemaNotFoundError) as caught:
        codec.decode(Message(TOPIC, 0, 0, b"\x00\x7f\xff\xff\xff\x02", message.value))
    assert caught.value.context["schema_id"] == 0x7FFFFFFF


def test_bytes_that_end_early_or_go_on_are_refused_at_every_length() -> None:
    codec, message = _good()
    assert message.key is not None
    assert message.value is not None
    for size in range(5, len(message.value)):
        with pytest.raises(SchemaMismatchError, match=r"cut short|no UTF-8|goes on"):
            codec.decode(Message(TOPIC, 0, 0, message.key, message.value[:size]))
    for extra in (b"\x00", b"\x00" * 1000):
        _bad(SchemaMismatchError, message.key, message.value + extra, f"goes on for {len(extra)} bytes")
        _bad(SchemaMismatchError, message.key + extra, message.value, "the key goes on")


def _text_table() -> tuple[FlatAvroCodec, Message]:
    codec = codec_with()
    schema = table("create table t (id int primary key, s varchar(9) not null)")
    return codec, message_of(codec, change(after={"id": 1, "s": "ab"}, schema=schema))


@pytest.mark.parametrize(
    ("tail", "match"),
    [
        (b"\x02\x04\xff\xfe", "no UTF-8"),
        (b"\x02\x80\x80\x80\x80\x10ab", "cut short"),  # 2 GiB announced
        (b"\x02\xfe\xff\xff\xff\xff\xff\xff\xff\x7fab", "cut short"),  # 2^62 announced
        (b"\x02\x01ab", "cut short|goes on"),  # a negative length
        (b"\x02" + b"\xff" * 3, "cut short"),  # a number without end
        (b"\xff" * 100_000, "cut short|goes on"),
    ],
)
def test_hostile_lengths_are_refused_at_once(tail: bytes, match: str) -> None:
    codec, message = _text_table()
    assert message.value is not None
    with pytest.raises(SchemaMismatchError, match=match):
        codec.decode(Message(TOPIC, 0, 0, message.key, message.value[:5] + tail))


def test_any_damage_is_a_decode_error_or_another_row_and_nothing_else() -> None:
    codec, message = _good()
    assert message.value is not None
    dice = random.Random(7)
    refused = 0
    for _ in range(3000):
        damaged = bytearray(message.value)
        for _ in range(dice.randrange(1, 4)):
            damaged[dice.randrange(5, len(damaged))] = dice.randrange(256)
        try:
            codec.decode(Message(TOPIC, 0, 0, message.key, bytes(damaged)))
        except DecodeError:
            refused += 1
    assert refused > 1000


@pytest.mark.parametrize(
    ("column", "avro", "value", "match"),
    [
        (
            "de",
            {
                "type": "bytes",
                "logicalType": "decimal",
                "precision": 4,
                "scale": 2,
                "connect.parameters": {"tidb_type": "DECIMAL"},
            },
            b"\x04\x27\x10",
            r"decimal\(4,2\)",
        ),
        (
            "b",
            {"type": "bytes", "connect.parameters": {"tidb_type": "BIT", "length": "3"}},
            b"\x02\x08",
            r"more bits than bit\(3\)",
        ),
        (
            "b",
            {"type": "bytes", "connect.parameters": {"tidb_type": "BIT", "length": "64"}},
            b"\x12" + b"\x01" * 9,
            "more bits",
        ),
        ("u", {"type": "string", "connect.parameters": {"tidb_type": "BIGINT UNSIGNED"}}, b"\x04-1", "'-1'"),
        ("d", {"type": "string", "connect.parameters": {"tidb_type": "DECIMAL"}}, b"\x061e9", "'1e9'"),
    ],
)
def test_a_value_outside_its_type_names_the_column(column: str, avro: Any, value: bytes, match: str) -> None:
    schema = {
        "type": "record",
        "name": "t",
        "namespace": "default.shop",
        "fields": [{"name": column, "type": avro}],
    }
    codec = FlatAvroCodec(registry=MemorySchemaRegistry({1: json.dumps(schema)}))
    with pytest.raises(ValueOutOfRangeError, match=match) as caught:
        codec.decode(Message(TOPIC, 0, 0, None, b"\x00\x00\x00\x00\x01" + value))
    assert caught.value.context["column"] == column


_INT = {"type": "int", "connect.parameters": {"tidb_type": "INT"}}
_TWICE = json.dumps({"type": "record", "name": "t", "fields": 2 * [{"name": "c", "type": _INT}]})
_ITSELF = {"type": "record", "name": "t", "fields": [{"name": "c", "type": _INT}]}
_BEFORE_ITSELF = json.dumps(
    {"type": "record", "name": "t", "fields": [{"name": "_ticdc_before", "type": ["null", _ITSELF]}]}
)
_EXTENSION_FIRST = json.dumps(
    {
        "type": "record",
        "name": "t",
        "fields": [{"name": "_tidb_op", "type": "string"}, {"name": "c", "type": _INT}],
    }
)


def _field(avro: object) -> str:
    return json.dumps(
        {"type": "record", "name": "t", "namespace": "a.b", "fields": [{"name": "c", "type": avro}]}
    )


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("not json", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('"string"', "no Avro record"),
        ('{"type": "record", "name": "t", "fields": [{"name": "c"}]}', "without name or type"),
        (_field("int"), "has no connect.parameters"),
        (_field({"type": "array", "items": "int"}), "has no connect.parameters"),
        (_field(["null", "int", "string"]), "no column of flat-avro"),
        (_field({"type": "int", "connect.parameters": {"tidb_type": "MONEY"}}), "tidb_type 'MONEY'"),
        (
            _field({"type": "bytes", "connect.parameters": {"tidb_type": "BIT", "length": "9" * 400}}),
            "no length",
        ),
        (_field({"type": "bytes", "connect.parameters": {"tidb_type": "DECIMAL"}}), "no precision"),
        (_TWICE, "'c' twice"),
        (_BEFORE_ITSELF, "no Avro: redefined named type"),
        (_field("t").replace('"c"', '"_tidb_self"'), "has no connect.parameters"),
        (_EXTENSION_FIRST, "an extension field stands before a column"),
    ],
)
def test_a_schema_tidb_did_not_write_is_refused_with_its_id(text: str, match: str) -> None:
    codec = FlatAvroCodec(registry=_Texts({9: text}))
    with pytest.raises(SchemaMismatchError, match=match) as caught:
        codec.decode(Message(TOPIC, 0, 0, None, b"\x00\x00\x00\x00\x09\x00"))
    assert caught.value.context["schema_id"] == 9


class _Texts(MemorySchemaRegistry):
    """A registry that holds texts no registry would take."""

    def __init__(self, texts: dict[int, str]) -> None:
        super().__init__()
        self._raw = texts

    def schema_by_id(self, schema_id: int) -> str:
        return self._raw[schema_id]


def test_a_user_column_may_have_an_extensions_name() -> None:
    codec = codec_with()
    schema = table("create table r (id int primary key, _tidb_op varchar(9), _ticdc_before int)")
    row = {"id": 1, "_tidb_op": "mine", "_ticdc_before": 2}
    found = only_change(codec, message_of(codec, change(after=row, schema=schema)))
    assert (found.after, found.op, found.extension) == (row, Op.UPSERT, None)


def test_ddl_and_watermark_events_come_with_a_null_key() -> None:
    codec, _ = _good()
    ddl = {"query": "DROP TABLE `a`", "type": 4, "schema": "shop", "table": "a", "commitTs": TSO}
    (found,) = codec.decode(Message(TOPIC, 0, 5, None, b"\x01" + json.dumps(ddl).encode()))
    assert isinstance(found, DdlEvent)
    assert (found.table, found.kind, found.commit_ts) == (TableId("shop", "a"), "4", TSO)
    (mark,) = codec.decode(Message(TOPIC, 0, 6, None, b"\x02" + b"\xff" * 8))
    assert mark == WatermarkEvent(2**64 - 1, (TOPIC, 0, 6, 0, (2**64 - 1,)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (b"\x01", "no JSON"),
        (b"\x01[]", "no JSON object"),
        (b"\x01{}", "query=None"),
        (b'\x01{"query": "x", "schema": "s", "table": "t", "type": true, "commitTs": 1}', "type=True"),
        (b"\x01" + b"[" * 100_000, "no JSON"),
        (b"\x01\xff", "no JSON"),
        (b"\x02\x00", "a watermark has 9 bytes, not 2"),
    ],
)
def test_a_control_event_of_another_shape_is_refused(value: bytes, match: str) -> None:
    _bad(SchemaMismatchError, None, value, match)


def test_a_ten_megabyte_value_decodes() -> None:
    codec = codec_with(max_message_bytes=2**30)
    schema = table("create table t (id int primary key, s longtext)")
    row = {"id": 1, "s": "x" * 10_000_000}
    found = only_change(codec, message_of(codec, change(after=row, schema=schema)))
    assert found.after == row


def test_schema_ids_and_schema_of_name_the_writers_schemas() -> None:
    codec, message = _good()
    found = only_change(codec, message)
    assert isinstance(found.schema_id, SchemaIds)
    assert found.schema_id.value is not None
    schema = codec.schema_of(found.schema_id.value, keys=("id",))
    assert schema == found.schema
    assert schema.table == SHOP
    assert [column.name for column in schema.columns] == [column.name for column in EVERY_TYPE.columns]


def test_one_schema_object_serves_every_row_of_a_pair_of_ids() -> None:
    codec, message = _good()
    assert only_change(codec, message).schema is only_change(codec, message).schema
