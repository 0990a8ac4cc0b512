"""``FlatAvroCodec.decode_batch``: what is read in columns, and what is left to the row codec."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.cli.samples import KEY, VALUE
from tests.decoded_batches import as_records, assert_same, faults_of
from tests.unit.codecs.flat_avro.cases import (
    ALL_NULL,
    EVERY_VALUE,
    TOPIC,
    TSO,
    change,
    codec_with,
    message_of,
    table,
)
from tests.unit.codecs.flat_avro.test_glue import KEY_ID, SOURCE, VALUE_ID, framed
from tidesink.codecs.avro_columns import CHUNK_RECORDS
from tidesink.codecs.batch import DecodedBatch, ValueOptions, rows_from_events
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.flat_avro.payloads import BIT_WIDTH
from tidesink.codecs.options import FlatAvroOptions
from tidesink.errors import SchemaNotFoundError
from tidesink.events import Message, Op, Row, SchemaIds, TableId, WatermarkEvent
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.typemap.table import ZeroDate

SMALL = table("create table t (id int primary key, day date, b bit(9))")
MARKING: dict[str, Any] = {"producer": "new", "enable_tidb_extension": True, "avro_enable_watermark": True}


def numbered(messages: Iterable[Message]) -> list[Message]:
    return [replace(message, offset=at) for at, message in enumerate(messages)]


def checked(codec: FlatAvroCodec, messages: Iterable[Message], zero_date: ZeroDate = "null") -> DecodedBatch:
    """The batch of the messages, which is as the row path has it."""
    batch = as_records(numbered(messages))
    found = codec.decode_batch(batch, zero_date=zero_date)
    options = ValueOptions(zero_date, codec._options.time_zone)
    assert_same(found, rows_from_events(batch, codec.decode, options))
    return found


@pytest.mark.parametrize("zero_date", ["null", "text"])
@pytest.mark.parametrize("producer", ["classic", "new"])
@pytest.mark.parametrize("mode", ["precise", "string"])
def test_every_type_is_read_in_columns(producer: Any, mode: Any, zero_date: ZeroDate) -> None:
    modes = {"avro_decimal_handling_mode": mode}
    if mode == "string":
        modes["avro_bigint_unsigned_handling_mode"] = mode
    codec = codec_with(producer=producer, **modes)
    messages = [message_of(codec, change(after=row)) for row in (EVERY_VALUE, ALL_NULL, EVERY_VALUE)]
    found = checked(codec, messages, zero_date)
    assert found.row_by_row_records == 0
    assert [len(one.rows) for one in found.tables] == [3]


def test_updates_and_deletes_with_the_row_before() -> None:
    codec = codec_with(producer="new", avro_include_before_value=True, enable_tidb_extension=True)
    row, old = ({"id": 1, "day": day, "b": 3} for day in ("2024-02-29", "0000-00-00"))
    changes = [
        change(Op.INSERT, row, schema=SMALL),
        change(Op.UPDATE, row, before=old, schema=SMALL),
        change(Op.DELETE, None, before=old, schema=SMALL),
    ]
    found = checked(codec, [message_of(codec, one) for one in changes])
    assert found.row_by_row_records == 0
    (rows,) = (one.rows for one in found.tables)
    assert rows["op"].to_pylist() == ["insert", "update", "delete"]
    assert rows["source"].to_pylist() == [[TSO]] * 3
    assert rows["zero_dates"].to_pylist() == [None, None, ["day"]]
    assert rows["after"].to_pylist()[2] is None
    assert rows["before"].to_pylist()[0] is None


def test_a_delete_may_hold_its_row_outside_the_row_before() -> None:
    """Its ``_tidb_op`` says so; the row before is then null."""
    codec = codec_with(enable_tidb_extension=True)
    row = {"id": 1, "day": "0000-00-00", "b": 3}
    inserted = message_of(codec, change(Op.INSERT, row, schema=SMALL))
    value = inserted.value or b""
    deleted = replace(inserted, value=value.replace(b"\x02c", b"\x02d"))
    unknown = replace(inserted, value=value.replace(b"\x02c", b"\x02x"))
    found = checked(codec, [inserted, deleted, unknown])
    assert found.row_by_row_records == len(found.faults) == 1
    assert found.tables[0].rows["zero_dates"].to_pylist() == [["day"], ["day"]]


def test_a_delete_without_a_row_before_has_the_row_outside() -> None:
    codec = codec_with(producer="new", avro_include_before_value=True, enable_tidb_extension=True)
    good, zero = ({"id": 1, "day": day, "b": 3} for day in ("2024-02-29", "0000-00-00"))
    updated = message_of(codec, change(Op.UPDATE, zero, before=good, schema=SMALL))
    inserted = message_of(codec, change(Op.INSERT, zero, schema=SMALL))
    deletes = [
        replace(one, value=(one.value or b"").replace(b"\x02" + op, b"\x02d"))
        for one, op in ((updated, b"u"), (inserted, b"c"))
    ]
    found = checked(codec, [*deletes, inserted])
    assert found.row_by_row_records == 0
    (rows,) = (one.rows for one in found.tables)
    assert rows["op"].to_pylist() == ["delete", "delete", "insert"]
    assert [str(row["day"]) if row else row for row in rows["before"].to_pylist()] == [
        "2024-02-29",
        "None",
        None,
    ]
    assert rows["zero_dates"].to_pylist() == [None, ["day"], ["day"]]


def test_a_zero_date_in_the_key_is_an_error() -> None:
    schema = table("create table t (day date primary key, other date)")
    codec = codec_with()
    rows: list[Row] = [{"day": "2024-01-01", "other": "0000-00-00"}, {"day": "0000-00-00", "other": None}]
    found = checked(codec, [message_of(codec, change(after=row, schema=schema)) for row in rows])
    assert [fault.record for fault in found.faults] == [1]
    assert found.tables[0].rows["zero_dates"].to_pylist() == [["other"]]


def test_bits_are_read_in_either_width() -> None:
    registry = MemorySchemaRegistry()
    messages = []
    for producer in ("classic", "new"):
        codec = codec_with(registry, producer=producer)
        for bits in (0, 1, 0x1FF):
            row = {"id": bits, "day": None, "b": bits}
            messages.append(message_of(codec, change(after=row, schema=SMALL)))
    beyond = replace(messages[2], value=(messages[2].value or b"")[:-1] + b"\xff")
    wide = replace(messages[2], value=(messages[2].value or b"")[:-2] + b"\x03\xff")
    empty = replace(messages[2], value=(messages[2].value or b"")[:-3] + b"\x00")
    found = checked(codec, [*messages, empty, beyond, wide])
    assert found.row_by_row_records == 1
    assert [row["b"] for row in found.tables[0].rows["after"].to_pylist()][:7] == [
        0,
        1,
        0x1FF,
        0,
        1,
        0x1FF,
        0,
    ]


def test_a_column_may_be_called_as_the_mark_of_full_width_bits() -> None:
    schema = table(f"create table t (id int primary key, `{BIT_WIDTH}` int, b bit(16))")
    codec = codec_with(producer="new")
    found = checked(codec, [message_of(codec, change(after={"id": 1, BIT_WIDTH: 5, "b": 1}, schema=schema))])
    assert found.row_by_row_records == 0
    assert found.tables[0].rows["after"].to_pylist() == [{"id": 1, BIT_WIDTH: 5, "b": 1}]


def test_tables_topics_and_schemas_have_groups_of_their_own() -> None:
    codec = FlatAvroCodec(
        registry=MemorySchemaRegistry(),
        table_of_topic=lambda topic: TableId("from", topic) if topic != TOPIC else None,
    )
    wider = table("create table t (id int primary key, day date, b bit(9), more int)")
    keyless = table("create table k (id int)")
    events = [
        change(after={"id": 1, "day": None, "b": None}, schema=SMALL),
        change(after={"id": 2, "day": None, "b": None, "more": 4}, schema=wider),
        change(after={"id": 3}, schema=keyless),
        change(Op.DELETE, None, before={"id": 1, "day": None, "b": None}, schema=SMALL),
    ]
    messages = [message_of(codec, event, topic) for topic in (TOPIC, "other") for event in events] * 3
    found = checked(codec, messages)
    assert found.row_by_row_records == 0
    assert sorted((str(one.table), len(one.rows)) for one in found.tables) == sorted(
        [("shop.t", 3)] * 3 + [("shop.k", 3), ("from.other", 3)] + [("from.other", 3)] * 3
    )


def test_many_records_are_read_chunk_by_chunk() -> None:
    codec = codec_with(enable_tidb_extension=True)
    kinds = [
        message_of(codec, change(after={"id": 1, "day": day, "b": None}, schema=SMALL))
        for day in ("2024-01-01", "0000-00-00", "no day")
    ]
    gone = message_of(codec, change(Op.DELETE, None, before={"id": 1, "day": None, "b": None}, schema=SMALL))
    cut = replace(kinds[0], value=(kinds[0].value or b"")[:-1])
    messages = [kinds[0], kinds[1], gone] * (CHUNK_RECORDS // 2)
    messages[CHUNK_RECORDS + 5 : CHUNK_RECORDS + 5] = [kinds[2], cut, cut]
    found = checked(codec, messages)
    assert len(found.faults) == found.row_by_row_records == 3


def test_watermarks_and_delete_markers_are_read_in_columns() -> None:
    codec = codec_with(**MARKING)
    position = change().position
    watermarks = [WatermarkEvent(ts, position) for ts in (1, TSO)]
    encoded = [codec.encode(one, topic=TOPIC) for one in watermarks]
    messages = [Message(TOPIC, 1, 0, one.key, one.value) for one in encoded if one]
    messages.append(Message(TOPIC, 1, 0, None, b"\x02" + b"\xff" * 8))
    messages.append(message_of(codec, change(Op.DELETE, None, before=EVERY_VALUE)))
    messages.append(message_of(codec, change()))
    found = checked(codec, messages)
    assert found.row_by_row_records == 0
    marks = [event for event in found.events if isinstance(event, WatermarkEvent)]
    assert len(marks) == len(found.events)
    assert [mark.commit_ts for mark in marks] == [1, TSO, 2**64 - 1]
    assert found.tables[0].rows["commit_ts"].to_pylist() == [TSO]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (None, b"\x03" + bytes(8)),
        (b"x", b"\x03" + bytes(8)),
        (b"\x00\x00\x00\x00\x01\x00", b"\x03" + b"\x80" * 8),
        (b"\x00\x00\x00\x00\x01\x00", b"\x02" + bytes(8)),
        (None, b"\x02" + bytes(7)),
        (None, b"\x01{}"),
        (None, b""),
        (b"", b""),
        (b"\x00\x00\x00\x00", b"\x00\x00\x00\x00"),
        (None, b"{}"),
        (b"\x00\x00\x00\x00\x02\x00", b"\x00\x00\x00\x00\x01\x00"),
    ],
)
def test_the_row_codec_says_what_is_wrong_with_a_record(key: bytes | None, value: bytes | None) -> None:
    codec = codec_with(enable_tidb_extension=True)
    good = message_of(codec, change(after={"id": 1, "day": None, "b": None}, schema=SMALL))
    found = checked(codec, [good, Message(TOPIC, 0, 0, key, value), good])
    assert [record for record, *_ in faults_of(found)] == [1]
    assert found.row_by_row_records == 1


def test_an_id_that_no_registry_has_ends_the_batch() -> None:
    codec = codec_with()
    good = message_of(codec, change(after={"id": 1, "day": None, "b": None}, schema=SMALL))
    strange = replace(good, value=b"\x00\x00\x00\x27\x0f" + (good.value or b"")[5:])
    with pytest.raises(SchemaNotFoundError):
        codec.decode_batch(as_records([good, strange]))


def test_checksums_that_are_asked_for_are_left_to_the_row_codec() -> None:
    registry = MemorySchemaRegistry()
    writer = codec_with(registry, enable_tidb_extension=True, row_checksum=True)
    message = message_of(writer, change(extension={"_tidb_row_level_checksum": "1"}))
    reader = FlatAvroCodec(registry=registry, options=FlatAvroOptions(checksum="reject"))
    found = checked(reader, [message])
    assert found.row_by_row_records == 1
    assert checked(codec_with(registry), [message]).row_by_row_records == 0


def test_glue_frames_are_left_to_the_row_codec() -> None:
    codec = FlatAvroCodec(registry=MemorySchemaRegistry(), glue=SOURCE)
    found = checked(codec, [Message("t", 0, 0, framed(KEY, KEY_ID), framed(VALUE, VALUE_ID))])
    assert found.row_by_row_records == 1
    assert [one.schema_id for one in found.tables] == [SchemaIds(None, None)]


def _column(name: str, tidb_type: str, avro: str) -> dict[str, Any]:
    return {"name": name, "type": {"type": avro, "connect.parameters": {"tidb_type": tidb_type}}}


def _schema(*fields: dict[str, Any], name: str = "t") -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": "default.shop", "fields": list(fields)}


@pytest.mark.parametrize(
    ("key", "value", "payload"),
    [
        # The key's column has another type in the value, or is not there.
        (_column("id", "INT", "int"), [_column("id", "BIGINT", "long")], b"\x02"),
        (_column("id", "INT", "int"), [_column("id", "TEXT", "string")], b"\x02a"),
        (_column("id", "INT", "int"), [_column("other", "INT", "int")], b"\x02"),
        # The row before has other columns than the row.
        (
            _column("id", "INT", "int"),
            [
                _column("id", "INT", "int"),
                _column("more", "TEXT", "string"),
                {
                    "name": "_ticdc_before",
                    "type": ["null", _schema(_column("more", "TEXT", "string"), name="t_before")],
                },
            ],
            b"\x02\x02a\x02\x02b",
        ),
        # The extension has other types than TiCDC's.
        (
            _column("id", "INT", "int"),
            [_column("id", "INT", "int"), {"name": "_tidb_op", "type": "int"}],
            b"\x02\x02",
        ),
        (
            _column("id", "INT", "int"),
            [_column("id", "INT", "int"), {"name": "_tidb_commit_ts", "type": "int"}],
            b"\x02\x06",
        ),
    ],
)
def test_schemas_that_ticdc_does_not_write_are_left(key: Any, value: Any, payload: bytes) -> None:
    texts = {1: json.dumps(_schema(key)), 2: json.dumps(_schema(*value))}
    codec = FlatAvroCodec(registry=MemorySchemaRegistry(texts))
    message = Message("t", 0, 0, b"\x00\x00\x00\x00\x01\x02", b"\x00\x00\x00\x00\x02" + payload)
    found = checked(codec, [message, message])
    assert found.row_by_row_records == 2


def test_a_key_without_columns_is_a_key() -> None:
    schema = {"type": "record", "name": "t", "namespace": "default.shop", "fields": []}
    codec = FlatAvroCodec(registry=MemorySchemaRegistry({1: json.dumps(schema)}))
    head = b"\x00\x00\x00\x00\x01"
    found = checked(
        codec,
        [
            Message("t", 0, 0, head, None),
            Message("t", 0, 0, head, head),
            Message("t", 0, 0, head, head + b"x"),
        ],
    )
    assert [one.rows["key"].to_pylist() for one in found.tables] == [[{}], [{}]]
    assert found.row_by_row_records == len(found.faults) == 1


def test_an_empty_batch_has_nothing() -> None:
    found = codec_with().decode_batch(
        pa.table({"key": pa.nulls(0, pa.binary()), "value": pa.nulls(0, pa.binary())})
    )
    assert (found.tables, found.events, found.faults, found.records) == ((), (), (), 0)
