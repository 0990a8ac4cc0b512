"""Compression told by the bytes, and its bounds."""

from __future__ import annotations

import random
from typing import Any, Final

import cramjam
import pytest

from tests.unit.canal_messages import message_of, row_bytes
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.compression import Compression, compressed, compression_of, decompressed
from tidesink.errors import DecodeError, FramingError
from tidesink.events import ChangeEvent, DdlEvent, TableId, WatermarkEvent

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
    with pytest.raises(FramingError, match="more than 3000000 bytes: raise max-decompressed-bytes"):
        decompressed(value, most=len(text) - 1)


@pytest.mark.slow
def test_an_lz4_bomb_is_refused_before_it_is_made() -> None:
    bomb = compressed(b"{" + bytes(300_000_000), "lz4")
    assert len(bomb) < 2_000_000
    with pytest.raises(FramingError, match="more than"):
        decompressed(bomb)


def test_a_snappy_length_that_its_bytes_cannot_mean_is_refused_before_room_is_made() -> None:
    with pytest.raises(FramingError, match="its length is not one's"):
        decompressed(b"\xff\xff\xff\xff\x0f" + b"\x04{}")


def test_several_frames_are_one_value_and_other_bytes_after_them_are_none() -> None:
    frame = compressed(b'{"a":1', "lz4")
    assert decompressed(frame + compressed(b"}", "lz4")) == b'{"a":1}'
    with pytest.raises(FramingError, match="other bytes after"):
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
    options = CodecOptions(enable_tidb_extension=True, large_message_handle_compression=kind)
    codec = CanalJsonCodec(options=options, clock=lambda: 0)
    plain = CanalJsonCodec(options=CodecOptions(enable_tidb_extension=True), clock=lambda: 0)
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
    with pytest.raises(FramingError, match="far more objects"):
        CanalJsonCodec().decode(message_of(value))


def test_a_value_of_long_texts_is_parsed() -> None:
    text = '{"a": [1, 2, "\\\\"]},' * 1_000_000
    value = compressed(row_bytes({"a": text}), "lz4")
    (event,) = CanalJsonCodec().decode(message_of(value))
    assert isinstance(event, ChangeEvent)
    assert (event.after or {})["a"] == text
