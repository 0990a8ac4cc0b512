"""``decode_batch`` of Debezium's records, held to the row path: any stream of rows, any damage."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.decoded_batches import as_records, assert_same, with_part
from tests.properties.debezium_streams import (
    KEY_AVRO,
    KINDS,
    Record,
    Version,
    avro_message,
    avro_schema,
    declared,
    json_message,
    records,
    sources,
    versions,
)
from tidesink.codecs.batch import DecodedBatch, ValueOptions, rows_from_events
from tidesink.codecs.debezium.codec import DebeziumAvroCodec, DebeziumCodec, DebeziumJsonCodec
from tidesink.codecs.options import DebeziumOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import Message
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.typemap.table import ZeroDate

_MANY: Final = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@st.composite
def _streams(draw: st.DrawFn) -> tuple[list[Record], TableDefinitions]:
    some = draw(st.lists(versions(), min_size=1, max_size=2))
    blocks = draw(st.lists(sources(), min_size=1, max_size=2))
    found = [
        draw(records(draw(st.sampled_from(some)), draw(st.sampled_from(blocks))))
        for _ in range(draw(st.integers(1, 8)))
    ]
    return found, declared(draw, some)


def _with_tombstones(messages: list[Message], draw: Any) -> list[Message]:
    """With a null value after some records; one says by its header that it is a flattened delete."""
    found: list[Message] = []
    for one in messages:
        found.append(one)
        kind = draw(st.sampled_from([0, 0, 0, 1, 2]))
        if kind:
            headers = (("__op", b"d"),) if kind == 2 else (("a", b"b"),)
            found.append(replace(one, value=None, headers=headers))
    return found


def _held(
    codec: DebeziumCodec, other: DebeziumCodec, messages: list[Message], zero: ZeroDate
) -> DecodedBatch:
    batch = as_records(messages)
    found = codec.decode_batch(batch, zero_date=zero)
    assert_same(found, rows_from_events(batch, other.decode, ValueOptions(zero)))
    return found


_ZERO_DATES: Final = st.sampled_from(["null", "error", "text"])


@_MANY
@given(_streams(), _ZERO_DATES, st.data())
def test_json_streams(
    stream: tuple[list[Record], TableDefinitions], zero: ZeroDate, data: st.DataObject
) -> None:
    found, definitions = stream
    messages = [json_message(one, at) for at, one in enumerate(found)]
    codec, other = (DebeziumJsonCodec(definitions=definitions) for _ in range(2))
    _held(codec, other, _with_tombstones(messages, data.draw), zero)


@_MANY
@given(_streams(), _ZERO_DATES, st.data())
def test_avro_streams(
    stream: tuple[list[Record], TableDefinitions], zero: ZeroDate, data: st.DataObject
) -> None:
    found, definitions = stream
    ids = {version: at + 2 for at, version in enumerate(dict.fromkeys(one.version for one in found))}
    texts = {at: avro_schema(version) for version, at in ids.items()}
    registry = MemorySchemaRegistry(
        {1: json.dumps(KEY_AVRO), **{at: json.dumps(one) for at, one in texts.items()}}
    )
    schemas = {at: fastavro.parse_schema(one) for at, one in texts.items()}
    key = fastavro.parse_schema(KEY_AVRO)
    messages = [
        avro_message(one, at, schemas[ids[one.version]], ids[one.version], key)
        for at, one in enumerate(found)
    ]
    codec, other = (DebeziumAvroCodec(registry=registry, definitions=definitions) for _ in range(2))
    _held(codec, other, _with_tombstones(messages, data.draw), zero)


_WHOLE: Final = Version((("a", "int32"), ("b", "text"), ("c", "decimal"), ("d", "float64")), (None,) * 4)
_SOURCE: Final = {"connector": "postgresql", "db": "x", "schema": "lab", "table": "t", "lsn": 7}
_ROW: Final = _WHOLE.row(1, [5, "aé", b"\x01\x02", 1.5])


def _record(form: int) -> Record:
    return Record(_WHOLE, "u", 1, _ROW, _ROW, _SOURCE, form)


def _damaged(data: bytes) -> list[bytes]:
    """With each byte replaced by others, left out, or doubled; cut off there; and with more behind."""
    found: list[bytes] = []
    for at, byte in enumerate(data):
        others = (byte ^ 1, (0x22, 0x20, 0x30, 0x7D, 0xFF, 0x2C)[at % 6])
        found += [data[:at] + bytes([one]) + data[at + 1 :] for one in others]
        found.append(data[:at] if at % 2 else data[:at] + data[at + 1 :])
    return [*found, data + b" ", data + b"{}", b"", b" " + data]


def _has_one_type(message: Message) -> bool:
    """Whether both images have the same types: with others the row path has no table for them."""
    try:
        rows_from_events(as_records([message]), DebeziumJsonCodec().decode, ValueOptions())
    except (pa.ArrowException, TypeError):
        return False
    return True


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize("part", ["key", "value"])
def test_json_damaged_at_every_position(form: int, part: str) -> None:
    good = json_message(_record(form), 0)
    whole = getattr(good, part)
    # The text of the schema is long: of it every ninth position.
    start = 0 if form else whole.index(b'"payload"')
    end = whole.index(b'"schema"') if form else len(whole)
    damaged = [with_part(good, part, one) for one in _damaged(whole)]
    payload = [one for at, one in enumerate(damaged) if start <= at // 3 < end]
    schema = [one for at, one in enumerate(damaged) if not start <= at // 3 < end and at % 27 < 3]
    messages = [good, *payload, *(one for one in schema if _has_one_type(one)), good]
    _held(DebeziumJsonCodec(), DebeziumJsonCodec(), messages, "null")


@pytest.mark.parametrize("part", ["key", "value"])
def test_avro_damaged_at_every_position(part: str) -> None:
    text = avro_schema(_WHOLE)
    # The id of an envelope damaged in one bit is that of the key, or of none.
    registry = MemorySchemaRegistry({1: json.dumps(KEY_AVRO), 2: json.dumps(text)})
    schema, key = fastavro.parse_schema(text), fastavro.parse_schema(KEY_AVRO)
    good = avro_message(_record(0), 0, schema, 2, key)
    whole = getattr(good, part)
    damaged = [one for one in _damaged(whole) if one[1:5] == whole[1:5] or len(one) < 5]
    messages = [good, *(with_part(good, part, one) for one in damaged), good]
    codec, other = (DebeziumAvroCodec(registry=registry) for _ in range(2))
    _held(codec, other, messages, "null")


def test_ordinary_values_are_read_in_columns() -> None:
    """Of every kind one usual value: nothing is left to the row codec."""
    usual: dict[str, Any] = {
        "float32": 0.5,
        "text": "a",
        "boolean": True,
        "instant": "2024-01-31T12:34:56.789Z",
        "iso": "2024-01-31",
        "enum": "a",
    }
    version = Version(tuple((name, name) for name in KINDS), (None,) * len(KINDS))
    values = [
        usual.get(name, b"\x01" if kind.schema["type"] == "bytes" else 1) for name, kind in KINDS.items()
    ]
    row = version.row(1, values)
    messages = [json_message(Record(version, op, 1, row, row, _SOURCE, 0), 0) for op in "u"]
    assert _held(DebeziumJsonCodec(), DebeziumJsonCodec(), messages, "null").row_by_row_records == 0


def test_a_flattened_topic_keeps_its_deletes() -> None:
    """A null value after a flattened row is a delete, also where both are in one batch."""
    good = json_message(_record(0), 0)
    row = b'{"schema":null,"payload":{"id":1,"__op":"c"}}'
    messages = [
        good,
        replace(good, value=row),
        replace(good, value=None),
        replace(good, topic="o", value=None),
    ]
    found = _held(DebeziumJsonCodec(), DebeziumJsonCodec(), messages, "null")
    assert found.row_by_row_records == 2


def test_the_unwrapped_option_makes_null_values_deletes() -> None:
    good = json_message(_record(0), 0)
    options = DebeziumOptions(debezium_unwrapped=True)
    codec, other = (DebeziumJsonCodec(options=options) for _ in range(2))
    _held(codec, other, [good, replace(good, value=None)], "null")
