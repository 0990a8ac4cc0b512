"""Any bytes at all into the flat-avro decoder: an event that can be shown, or a DecodeError, and soon.

``TIDESINK_FUZZ_INPUTS`` sets how many damaged messages the long run takes (default 20000).
"""

from __future__ import annotations

import json
import os
import random
import time
import tracemalloc
from functools import cache
from typing import Final

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden.vectors import find_folders
from tests.unit.codecs.flat_avro.cases import LooseRegistry
from tests.vectors import SUBSET
from tidesink.cli.json_lines import event_json
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.options import FlatAvroOptions
from tidesink.errors import DecodeError, SchemaNotFoundError
from tidesink.events import Message
from tidesink.schema_registry.client import MemorySchemaRegistry

INPUTS: Final = int(os.environ.get("TIDESINK_FUZZ_INPUTS", "20000"))
# What one message may take, at the very most: a slow machine is no hang.
MOST_SECONDS: Final = 5.0
MOST_BYTES: Final = 32 << 20
MOST_TEXT: Final = 4000
_VARINTS: Final = (
    b"\xff" * 9 + b"\x01",
    b"\xfe\xff\xff\xff\x0f",
    b"\x80" * 30,
    b"\xff" * 300,
    b"\x01",
    b"\x00",
)
_Pair = tuple[bytes | None, bytes | None]


@cache
def _corpus() -> tuple[FlatAvroCodec, tuple[_Pair, ...], dict[int, str]]:
    """A codec that knows real schemas and asks for checksums, real messages, and the schemas' texts by id."""
    texts: dict[int, str] = {}
    pairs: dict[_Pair, None] = {}
    for folder in find_folders(SUBSET):
        if folder.name.startswith("avro"):
            texts |= folder.schemas
            for record in (*folder.rows("avro"), *folder.control("avro")):
                pairs[record.message.key, record.message.value] = None
    options = FlatAvroOptions(checksum="reject", time_zone="America/New_York")
    codec = FlatAvroCodec(registry=MemorySchemaRegistry(texts), options=options)
    return codec, tuple(pairs), texts


def _survives(codec: FlatAvroCodec, key: bytes | None, value: bytes | None) -> bool:
    """Whether it is an event; fails for all that is neither that nor a DecodeError."""
    started = time.thread_time()  # of this thread's own work: what else the machine does is not counted
    events, reported = None, ""
    try:
        events = codec.decode(Message("t", 0, 0, key, value))
    except (DecodeError, SchemaNotFoundError) as error:
        reported = str(error)
    finally:
        assert time.thread_time() - started < MOST_SECONDS
    if events is None:
        assert reported.startswith("t[0]@0")
        assert len(reported) < MOST_TEXT
        return False
    assert len(events) == 1
    orjson.dumps(event_json(events[0]))
    return True


def _headed() -> st.SearchStrategy[bytes]:
    """Bytes behind a header that the codec knows, or behind the byte of a control event."""
    _, pairs, _ = _corpus()
    heads = sorted({part[:5] for pair in pairs for part in pair if part} | {b"\x01", b"\x02", b"\x03"})
    return st.builds(bytes.__add__, st.sampled_from(heads), st.binary(max_size=200))


@pytest.mark.slow
@settings(max_examples=800, deadline=None)
@given(data=st.data())
def test_any_bytes_are_an_event_or_a_decode_error(data: st.DataObject) -> None:
    parts = st.none() | st.binary(max_size=64) | _headed()
    _survives(_corpus()[0], data.draw(parts), data.draw(parts))


def _damaged(dice: random.Random, data: bytes) -> bytes:
    """A real message with a few of its bytes changed, moved, doubled or cut, or with a length that lies."""
    found = bytearray(data)
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(found) + 1)
        harm = dice.randrange(6)
        if harm == 0 and at < len(found):
            found[at] = dice.randrange(256)
        elif harm == 1 and at < len(found):
            found[at] ^= 1 << dice.randrange(8)
        elif harm == 2:
            del found[at : at + dice.randrange(1, 9)]
        elif harm == 3:
            found[at:at] = dice.choice(_VARINTS)
        elif harm == 4:
            found[at:at] = found[at : at + dice.randrange(1, 33)]
        else:
            del found[at:]
    return bytes(found)


def test_damaged_messages_are_events_or_decode_errors() -> None:
    codec, pairs, _ = _corpus()
    dice = random.Random(20260821)
    read = 0
    for _ in range(INPUTS):
        key, value = dice.choice(pairs)
        if value is None or (key is not None and dice.random() < 0.2):
            key = _damaged(dice, key or b"")
        else:
            value = _damaged(dice, value)
        read += _survives(codec, key, value)
    assert 0 < read < INPUTS


def test_damaged_schemas_are_read_or_refused() -> None:
    _, pairs, texts = _corpus()
    dice = random.Random(7)
    payloads = [value for _, value in pairs if value and value[0] == 0]
    read = 0
    for _ in range(max(300, INPUTS // 10)):
        payload = dice.choice(payloads)
        written = texts[int.from_bytes(payload[1:5], "big")]
        text = _damaged(dice, written.encode()).decode("utf-8", "replace")
        codec = FlatAvroCodec(registry=LooseRegistry({1: text}), options=FlatAvroOptions(checksum="reject"))
        read += _survives(codec, None, b"\0\0\0\0\x01" + payload[5:])
    assert read > 0


_COLUMN: Final = {"type": "string", "connect.parameters": {"tidb_type": "TEXT"}}
_ENDLESS: Final = {"type": "array", "items": {"type": "null"}}


def _record(field: object, name: str = "c") -> str:
    fields = [{"name": name, "type": field}]
    return json.dumps({"type": "record", "name": "t", "namespace": "a.b", "fields": fields})


def _nested(depth: int) -> str:
    inner = '{"type":"record","name":"r","fields":[{"name":"_ticdc_before","type":["null",'
    return inner * depth + '"int"' + "]}]}" * depth


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        # A block of 2^60 items that take no bytes, as an array, a map, and behind extension and before names.
        (_record(_ENDLESS), b"\x80\x80\x80\x80\x80\x80\x80\x80\x20\x00"),
        (_record({"type": "map", "values": "null"}), b"\x80\x80\x80\x80\x80\x80\x80\x80\x20\x00"),
        (_record(_ENDLESS, "_tidb_op"), b"\x80\x80\x80\x80\x80\x80\x80\x80\x20\x00"),
        (_record(["null", _ENDLESS], "_ticdc_before"), b"\x02\x80\x80\x80\x80\x80\x80\x80\x80\x20\x00"),
        (_record({**_ENDLESS, "connect.parameters": {"tidb_type": "TEXT"}}), b"\x80" * 8 + b"\x20\x00"),
        (_record({**_COLUMN, "type": "fixed", "size": 2**40}), b"\x00"),
        (_record(_COLUMN), b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" + b"x" * 100),
        (_nested(50), b"\x02" * 50),
        (_nested(20_000), b"\x02" * 20_000),
        (
            _record(
                {
                    "type": "bytes",
                    "logicalType": "decimal",
                    "precision": 9999,
                    "scale": 9999,
                    **{"connect.parameters": {"tidb_type": "DECIMAL"}},
                }
            ),
            b"\x80\x80\x80\x10" + b"\x7f" * (1 << 24),
        ),
    ],
)
def test_what_would_take_all_memory_is_refused_at_once(schema: str, payload: bytes) -> None:
    codec = FlatAvroCodec(registry=LooseRegistry({1: schema}))
    data = b"\0\0\0\0\x01" + payload
    tracemalloc.start()
    try:
        assert not _survives(codec, None, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES + 4 * len(data)
