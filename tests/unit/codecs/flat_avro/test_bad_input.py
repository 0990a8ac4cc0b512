"""flat-avro against bad input: every kind of it, each with its error and message."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import pytest

from tests.unit.codecs.flat_avro.cases import TOPIC, TSO, LooseRegistry, change, codec_with, message_of, table
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.errors import (
    DecodeError,
    FramingError,
    SchemaMismatchError,
    SchemaNotFoundError,
    UnnamedRowError,
    ValueOutOfRangeError,
)
from tidesink.events import Message, Op
from tidesink.schema_registry.client import MemorySchemaRegistry


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
        (b"", "The key is empty"),
        (b"\x00\x00\x01", "The key has 3 bytes, but a Confluent header needs 5"),
        (b"\x07\x00\x00\x00\x01\x02", "The key starts with 07 00 00 00 01 02, not with the magic byte 00"),
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
        (b"", "The value is empty"),
        (b"\x00", "The value has 1 bytes"),
        (b"\x05\x00\x00\x00\x01", "The value starts with 05"),
        (b"\x03\x05" + uuid.UUID(int=7).bytes + b"\x02", "AWS Glue"),
        (b"\x01{}", "like a DDL event or watermark, but the key is not null"),
        (b"\x02" + bytes(8), "like a DDL event or watermark, but the key is not null"),
    ],
)
def test_a_value_of_another_kind_is_refused(value: bytes, match: str) -> None:
    _, message = _good()
    _bad(FramingError, message.key, value, match)


def test_a_delete_marker_of_another_shape_is_refused_and_never_skipped() -> None:
    _, message = _good()
    marker = b"\x03" + TSO.to_bytes(8, "big")
    _bad(UnnamedRowError, None, marker, "does not identify a row")
    _bad(SchemaMismatchError, message.key, marker[:-1], "a delete marker, but it has 8 bytes instead of 9")
    _bad(SchemaMismatchError, message.key, marker + b"\0", "has 10 bytes instead of 9")
    _bad(SchemaMismatchError, message.key, b"\x03" + b"\xff" * 8, "commit_ts 18446744073709551615")
    _bad(FramingError, b"\x07" + bytes(8), marker, "The key starts with 07")


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
    assert str(caught.value).startswith(f"{TOPIC}[0]@0")


def test_bytes_that_end_early_or_go_on_are_refused_at_every_length() -> None:
    codec, message = _good()
    assert message.key is not None
    assert message.value is not None
    for size in range(5, len(message.value)):
        with pytest.raises(SchemaMismatchError, match=r"cut short|not UTF-8|more bytes after"):
            codec.decode(Message(TOPIC, 0, 0, message.key, message.value[:size]))
    for extra in (b"\x00", b"\x00" * 1000):
        _bad(
            SchemaMismatchError,
            message.key,
            message.value + extra,
            f"has {len(extra)} more bytes after its record",
        )
        _bad(
            SchemaMismatchError,
            message.key + extra,
            message.value,
            f"The key has {len(extra)} more bytes after its record",
        )


def _text_table() -> tuple[FlatAvroCodec, Message]:
    codec = codec_with()
    schema = table("create table t (id int primary key, s varchar(9) not null)")
    return codec, message_of(codec, change(after={"id": 1, "s": "ab"}, schema=schema))


@pytest.mark.parametrize(
    ("tail", "match"),
    [
        (b"\x02\x04\xff\xfe", "not UTF-8"),
        (b"\x02\x80\x80\x80\x80\x10ab", "cut short"),  # 2 GiB announced
        (b"\x02\xfe\xff\xff\xff\xff\xff\xff\xff\x7fab", "cut short"),  # 2^62 announced
        (b"\x02\x01ab", "cut short|more bytes after"),  # a negative length
        (b"\x02" + b"\xff" * 3, "cut short"),  # a number without end
        (b"\xff" * 100_000, "cut short|more bytes after"),
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
        ("not json", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('"string"', "not an Avro record"),
        ('{"type": "record", "name": "t", "fields": [{"name": "c"}]}', "without a name or type"),
        (_field("int"), "has no connect.parameters"),
        (_field({"type": "array", "items": "int"}), "has no connect.parameters"),
        (_field(["null", "int", "string"]), "not a column type of flat-avro"),
        (_field({"type": "int", "connect.parameters": {"tidb_type": "MONEY"}}), "tidb_type 'MONEY'"),
        (
            _field({"type": "bytes", "connect.parameters": {"tidb_type": "BIT", "length": "9" * 400}}),
            "not a valid length",
        ),
        (_field({"type": "bytes", "connect.parameters": {"tidb_type": "DECIMAL"}}), "no precision"),
        (_TWICE, "'c' twice"),
        (_BEFORE_ITSELF, "not valid Avro: redefined named type"),
        (_field("t").replace('"c"', '"_tidb_self"'), "has no connect.parameters"),
        (_EXTENSION_FIRST, "a field of the TiDB extension before this column"),
    ],
)
def test_a_schema_tidb_did_not_write_is_refused_with_its_id(text: str, match: str) -> None:
    codec = FlatAvroCodec(registry=LooseRegistry({9: text}))
    with pytest.raises(SchemaMismatchError, match=match) as caught:
        codec.decode(Message(TOPIC, 0, 0, None, b"\x00\x00\x00\x00\x09\x00"))
    assert caught.value.context["schema_id"] == 9


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (b"\x01", "not JSON"),
        (b"\x01[]", "not a JSON object"),
        (b"\x01{}", "query=None"),
        (b'\x01{"query": "x", "schema": "s", "table": "t", "type": true, "commitTs": 1}', "type=True"),
        (b"\x01" + b"[" * 100_000, "not JSON"),
        (b"\x01\xff", "not JSON"),
        (b"\x02\x00", "The watermark has 2 bytes instead of 9"),
    ],
)
def test_a_control_event_of_another_shape_is_refused(value: bytes, match: str) -> None:
    _bad(SchemaMismatchError, None, value, match)
