"""Compression told by the bytes, and its bounds."""

from __future__ import annotations

import random
import re
from typing import Any, Final

import cramjam
import pyarrow as pa
import pytest

from tests.decoded_batches import as_records, assert_same
from tests.unit.codecs.canal_json.messages import message_of, row_bytes
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec
from tidesink.codecs.batch import ValueOptions, rows_from_events
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.compression import Compression, compressed, compression_of, decompressed
from tidesink.codecs.debezium.codec import DebeziumJsonCodec
from tidesink.codecs.debezium.formats import JsonParser
from tidesink.codecs.options import CanalJsonOptions, DebeziumOptions
from tidesink.ddl.catalog import TableDefinitions, parse_create_table
from tidesink.errors import DecodeError, FramingError
from tidesink.events import (
    ChangeEvent,
    DdlEvent,
    Event,
    Message,
    Op,
    Position,
    Row,
    TableId,
    WatermarkEvent,
)
from tidesink.schema_registry import MemorySchemaRegistry

KINDS: Final[tuple[Compression, ...]] = ("lz4", "snappy")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 60, 61, 257, 70_000, 5_000_000])
def test_every_size_comes_back(kind: Compression, size: int) -> None:
    text = b"{" + bytes(random.Random(size).choices(b'{}"abc01', k=min(size, 70_000))) * (size // 70_000 or 1)
    value = compressed(text, kind)
    assert compression_of(value) == kind
    assert decompressed(value) == text


@pytest.mark.parametrize("value", [b"", b"{", b"[1]", b'{"id":0}', b" {}", b"no json", b"\x00", b"\xff" * 9])
def test_what_is_not_compressed_is_left_alone(value: bytes) -> None:
    assert compression_of(value) == "none"
    assert decompressed(value) is None


def test_a_message_that_begins_like_json_is_plain_whatever_follows() -> None:
    # The only snappy block that begins so is of 123 bytes, fewer than any message has.
    block = bytes(cramjam.snappy.compress_raw(b"{" + b"a" * 122))
    assert block[:1] == b"{"
    assert len(row_bytes({"a": "x"})) > 123


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_than_the_limit_is_taken_in(kind: Compression) -> None:
    text = b"{" + b" " * 3_000_000
    value = compressed(text, kind)
    assert decompressed(value, most=len(text)) == text
    with pytest.raises(FramingError, match=r"more than 3000000 bytes\. Raise max-decompressed-bytes"):
        decompressed(value, most=len(text) - 1)


@pytest.mark.slow
def test_an_lz4_bomb_is_refused_before_it_is_made() -> None:
    bomb = compressed(b"{" + bytes(300_000_000), "lz4")
    assert len(bomb) < 2_000_000
    with pytest.raises(FramingError, match="more than"):
        decompressed(bomb)


def test_a_snappy_length_that_its_bytes_cannot_mean_is_refused_before_room_is_made() -> None:
    with pytest.raises(FramingError, match="no block of its size"):
        decompressed(b"\xff\xff\xff\xff\x0f" + b"\x04{}")


def test_several_frames_are_one_value_and_other_bytes_after_them_are_none() -> None:
    frame = compressed(b'{"a":1', "lz4")
    assert decompressed(frame + compressed(b"}", "lz4")) == b'{"a":1}'
    with pytest.raises(FramingError, match="other bytes follow it"):
        decompressed(frame + b"rest of it")


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_an_error_and_nothing_else(kind: Compression) -> None:
    chance = random.Random(7)
    whole = compressed(row_bytes({"a": "x" * 500, "b": "1"}), kind)
    codec = CanalJsonCodec()
    refused = 0
    for _ in range(3_000):
        value = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 5))):
            value[chance.randrange(len(value))] = chance.randrange(256)
        try:
            codec.decode(
                message_of(bytes(value[: chance.choice((len(value), chance.randrange(len(value)))) or 1]))
            )
        except DecodeError:
            refused += 1
    assert refused > 1_000


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_message_is_compressed(kind: Compression) -> None:
    """TiCDC compresses rows, DDL and watermarks alike, also where large-message-handle-option is none."""
    options = CanalJsonOptions(enable_tidb_extension=True, large_message_handle_compression=kind)
    codec = CanalJsonCodec(options=options, clock=lambda: 0)
    plain = CanalJsonCodec(options=CanalJsonOptions(enable_tidb_extension=True), clock=lambda: 0)
    (row,) = plain.decode(message_of(row_bytes({"id": "1"}, _tidb={"commitTs": 5 << 18})))
    assert isinstance(row, ChangeEvent)
    events: tuple[Any, ...] = (
        row,
        DdlEvent(TableId("s", "t"), "DROP TABLE `s`.`t`", "ERASE", 6 << 18, row.position),
        WatermarkEvent(7 << 18, row.position),
    )
    for event in events:
        sent, expected = (one.encode(event, topic="t") for one in (codec, plain))
        assert sent is not None
        assert expected is not None
        assert sent.value is not None
        assert compression_of(sent.value) == kind
        assert decompressed(sent.value) == expected.value
        assert [type(found) for found in CanalJsonCodec().decode(message_of(sent.value))] == [type(event)]


def test_what_is_compressed_twice_is_refused() -> None:
    value = compressed(compressed(row_bytes({"id": "1"}), "lz4"), "lz4")
    with pytest.raises(FramingError):
        CanalJsonCodec().decode(message_of(value))


@pytest.mark.slow
@pytest.mark.parametrize("piece", [b"{},", b'"",', b"[[", b"1,", b'{"a":', b"\n", b"nul"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_of_nothing_but_structure_is_not_parsed(kind: Compression, piece: bytes) -> None:
    value = compressed(b'{"data":[' + piece * (30_000_000 // len(piece)), kind)
    with pytest.raises(FramingError, match="far more JSON objects"):
        CanalJsonCodec().decode(message_of(value))


def test_a_value_of_long_texts_is_parsed() -> None:
    text = '{"a": [1, 2, "\\\\"]},' * 1_000_000
    value = compressed(row_bytes({"a": text}), "lz4")
    (event,) = CanalJsonCodec().decode(message_of(value))
    assert isinstance(event, ChangeEvent)
    assert (event.after or {})["a"] == text


# TiCDC's debezium


_T: Final = TableDefinitions(
    [parse_create_table("create table s.t(id int primary key, a varchar(99), b blob)")]
)


def _debezium(kind: Compression = "none", **options: Any) -> Codec:
    given = DebeziumOptions(enable_tidb_extension=True, large_message_handle_compression=kind, **options)
    return open_codec("debezium", options=given, definitions=_T)


def _debezium_events() -> tuple[Event, ...]:
    schema = parse_create_table("create table s.t(id int primary key, a varchar(99), b blob)")
    position = Position("t", 0, 0)
    row: Row = {"id": 1, "a": "x" * 90, "b": b"\x00\xff"}
    key = {"id": 1}
    return (
        ChangeEvent(Op.INSERT, schema.table, key, None, row, 5 << 18, position, schema),
        ChangeEvent(Op.DELETE, schema.table, key, row, None, 6 << 18, position, schema),
        DdlEvent(schema.table, "DROP TABLE t", "DROP", 6 << 18, position, {"tableChanges": []}),
        WatermarkEvent(7 << 18, position),
    )


def _same_but_clock(sent: bytes | None, expected: bytes | None) -> bool:
    texts = (re.sub(rb'"ts_ms":[0-9]+', b"", opened or b"") for opened in (sent, expected))
    return len(set(texts)) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bare", [False, True])
def test_debezium_compresses_key_and_value_of_every_message(kind: Compression, bare: bool) -> None:
    packing = _debezium(kind, debezium_disable_schema=bare)
    plain = _debezium(debezium_disable_schema=bare)
    for event in _debezium_events():
        sent, expected = (one.encode(event, topic="t") for one in (packing, plain))
        assert sent is not None
        assert expected is not None
        for mine, theirs in zip(sent, expected, strict=True):
            assert mine is not None
            assert compression_of(mine) == kind
            assert _same_but_clock(decompressed(mine), theirs)
        found, meant = (_debezium().decode(Message("t", 0, 0, *one)) for one in (sent, expected))
        assert [_comparable(one) for one in found] == [_comparable(one) for one in meant]


def _comparable(event: Event) -> object:
    return event._replace(extension=None) if isinstance(event, ChangeEvent | DdlEvent) else event


@pytest.mark.parametrize("size", [*range(100, 140), 8000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_half_of_any_length_is_opened(kind: Compression, size: int) -> None:
    """A snappy block of 123 bytes begins with ``{``, as JSON does."""
    text = b'{"payload":{"id":"' + b"k" * (size - 21) + b'"}}'
    assert len(text) == size
    for one in (text, bytes(random.Random(size).choices(b"abcdefgh", k=size - 21))):
        half = text if one is text else text[:18] + one + text[-3:]
        found = JsonParser().read(Message("t", 0, 0, compressed(half, kind), None), "key")
        assert found == JsonParser().read(Message("t", 0, 0, half, None), "key")


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_compressed_records_is_read_in_columns(kind: Compression) -> None:
    """Compressed halves beside plain and damaged ones; what is damaged, and a null beside it, is not."""
    whole: list[tuple[bytes | None, bytes | None]] = []
    for event in _debezium_events()[:2]:
        for codec in (_debezium(kind), _debezium()):
            record = codec.encode(event, topic="t")
            assert record is not None
            whole.append((record.key, record.value))
    damaged = [(key, (value or b"")[:-9]) for key, value in whole[:1]]
    mixed = [(whole[0][0], whole[1][1]), (whole[1][0], whole[0][1])]
    pairs = [*whole, *damaged, *mixed, (None, None)]
    messages = [Message("t", 0, at, key, value) for at, (key, value) in enumerate(pairs)]
    for binary in (pa.binary(), pa.large_binary()):
        records = as_records(messages)
        halves = {name: records[name].cast(binary) for name in ("key", "value")}
        records = pa.record_batch({name: records[name] for name in records.schema.names} | halves)
        found = _debezium().decode_batch(records)
        assert_same(found, rows_from_events(records, _debezium().decode, ValueOptions()))
        assert (found.row_by_row_records, len(found.faults)) == (2, 1)


def test_a_debezium_record_stands_for_no_more_than_the_limit() -> None:
    event = _debezium_events()[0]
    sent = _debezium("lz4").encode(event, topic="t")
    assert sent is not None
    small = _debezium(max_decompressed_bytes=300)
    with pytest.raises(FramingError, match="Raise max-decompressed-bytes"):
        small.decode(Message("t", 0, 0, *sent))
    assert [one.error.message for one in small.decode_batch(as_records([Message("t", 0, 0, *sent)])).faults]


def test_opened_records_of_a_batch_are_bounded() -> None:
    sent = _debezium("snappy").encode(_debezium_events()[0], topic="t")
    assert sent is not None
    records = as_records(Message("t", 0, at, *sent) for at in range(20))
    codec = DebeziumJsonCodec(
        options=DebeziumOptions(enable_tidb_extension=True), definitions=_T, most_opened=10_000
    )
    found = codec.decode_batch(records)
    assert_same(found, rows_from_events(records, _debezium().decode, ValueOptions()))
    assert found.row_by_row_records == 0


def test_debezium_avro_is_never_compressed() -> None:
    options = DebeziumOptions(large_message_handle_compression="lz4")
    codec = open_codec("debezium-avro", registry=MemorySchemaRegistry(), options=options)
    sent = codec.encode(_debezium_events()[0], topic="t")
    assert sent is not None
    assert [half[:1] for half in sent if half is not None] == [b"\0", b"\0"]
