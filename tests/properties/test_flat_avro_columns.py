"""``FlatAvroCodec.decode_batch`` against the row path: any tables, changes and options, any damage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoded_batches import as_records, assert_same, with_part
from tests.properties.row_changes import TOPIC, changes, harmed, tables
from tidesink.codecs.batch import DecodedBatch, ValueOptions, rows_from_events
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.options import FlatAvroOptions
from tidesink.errors import RegistryError
from tidesink.events import (
    ChangeEvent,
    Column,
    DdlEvent,
    Message,
    Position,
    TableId,
    TableSchema,
    WatermarkEvent,
)
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.typemap.mysql_types import parse_sql_type
from tidesink.typemap.table import ZeroDate

_CLASSIC: Final = st.builds(
    FlatAvroOptions,
    enable_tidb_extension=st.booleans(),
    avro_decimal_handling_mode=st.sampled_from(["precise", "string"]),
    avro_bigint_unsigned_handling_mode=st.sampled_from(["long", "string"]),
    avro_enable_watermark=st.booleans(),
    time_zone=st.sampled_from(["UTC", "Asia/Shanghai", "America/New_York"]),
)
_OPTIONS: Final = st.one_of(
    _CLASSIC,
    st.builds(replace, _CLASSIC, producer=st.just("new"), avro_include_before_value=st.booleans()),
)
_ZERO_DATES: Final = st.sampled_from(["null", "text", "error"])


@st.composite
def _streams(draw: st.DrawFn) -> tuple[FlatAvroCodec, list[Message]]:
    """The messages of a table: its columns change in the middle, and control events stand between."""
    options = draw(_OPTIONS)
    codec = FlatAvroCodec(registry=MemorySchemaRegistry(), options=options)
    made = draw(tables())
    events: list[Any] = draw(changes(made))
    if draw(st.booleans()):
        events[len(events) // 2 :] = [_widened(one) for one in events[len(events) // 2 :]]
    if draw(st.booleans()):
        events = [_keyless(one) for one in events]
    for at in draw(st.lists(st.integers(0, len(events)), max_size=3)):
        events.insert(at, _control(at))
    return codec, list(_messages(codec, events))


def _widened(event: ChangeEvent) -> ChangeEvent:
    """The event after ``alter table … add column``."""
    assert event.schema is not None
    added = Column("added", parse_sql_type("datetime(6)"))
    schema = TableSchema(event.schema.table, (*event.schema.columns, added))
    images = [row and {**row, "added": "2024-02-29 01:02:03.000004"} for row in (event.before, event.after)]
    return event._replace(schema=schema, before=images[0], after=images[1])


def _keyless(event: ChangeEvent) -> ChangeEvent:
    assert event.schema is not None
    columns = tuple(replace(one, handle=False, primary_key=False) for one in event.schema.columns)
    return event._replace(schema=TableSchema(event.schema.table, columns), key=None)


def _control(at: int) -> DdlEvent | WatermarkEvent:
    position = Position(TOPIC, 0, at)
    if at % 2:
        return WatermarkEvent(470_000_000_000_000_000 + at, position)
    return DdlEvent(TableId("shop", "t"), "drop table t", "4", 470_000_000_000_000_000 + at, position)


def _messages(codec: FlatAvroCodec, events: list[Any]) -> Iterator[Message]:
    for at, event in enumerate(events):
        record = codec.encode(event, topic=TOPIC)
        if record is not None:
            yield Message(TOPIC, at % 3, at, record.key, record.value)


def _outcome(decode: Any) -> DecodedBatch | str:
    try:
        found: DecodedBatch = decode()
    except RegistryError as error:
        return f"{type(error).__name__}: {error}"
    return found


def _check(
    codec: FlatAvroCodec, batch: pa.RecordBatch | pa.Table, zero_date: ZeroDate
) -> DecodedBatch | None:
    found = _outcome(lambda: codec.decode_batch(batch, zero_date=zero_date))
    options = ValueOptions(zero_date, codec._options.time_zone)
    reference = _outcome(lambda: rows_from_events(batch, codec.decode, options))
    if isinstance(found, str) or isinstance(reference, str):
        assert found == reference
        return None
    assert_same(found, reference)
    return found


@given(_streams(), _ZERO_DATES)
@settings(max_examples=80)
def test_a_batch_is_as_its_records_one_by_one(
    stream: tuple[FlatAvroCodec, list[Message]], zero_date: ZeroDate
) -> None:
    codec, messages = stream
    found = _check(codec, as_records(messages), zero_date)
    assert found is not None
    left = found.row_by_row_records - len(found.faults)
    assert left <= sum(isinstance(event, DdlEvent) for event in found.events)


@given(_streams(), _ZERO_DATES, st.data())
@settings(max_examples=60)
def test_damaged_records_are_the_faults_that_the_row_codec_names(
    stream: tuple[FlatAvroCodec, list[Message]], zero_date: ZeroDate, data: st.DataObject
) -> None:
    codec, messages = stream
    _check(codec, as_records(data.draw(harmed(messages))), zero_date)


@given(_streams(), st.data())
@settings(max_examples=15)
def test_a_record_damaged_at_any_byte_is_as_the_row_codec_has_it(
    stream: tuple[FlatAvroCodec, list[Message]], data: st.DataObject
) -> None:
    codec, messages = stream
    if not messages:
        return
    one, beside = data.draw(st.sampled_from(messages)), messages[0]
    part = data.draw(st.sampled_from(["key", "value"]))
    whole = getattr(one, part) or b""
    damaged = [with_part(one, part, bad) for bad in _damaged(whole)]
    _check(codec, as_records(each for bad in damaged for each in (bad, beside)), "null")


def _damaged(whole: bytes) -> Iterator[bytes]:
    """Every byte after the schema's id changed, and every prefix."""
    for at in (one for one in range(len(whole)) if one == 0 or one >= 5):
        for byte in {0, 1, 2, 0x7F, 0x80, 0xFF, whole[at] ^ 1, whole[at] ^ 0x10}:
            yield whole[:at] + bytes([byte]) + whole[at + 1 :]
    yield from (whole[:size] for size in range(len(whole)))
    yield whole + b"\x00"


@given(_streams(), st.data())
@settings(max_examples=15)
def test_neither_slices_nor_chunks_change_what_is_decoded(
    stream: tuple[FlatAvroCodec, list[Message]], data: st.DataObject
) -> None:
    codec, messages = stream
    batch = as_records(messages)
    begin = data.draw(st.integers(0, len(messages)))
    large = batch.slice(begin).cast(
        pa.schema(
            [
                one.with_type(pa.large_binary()) if one.name in ("key", "value") else one
                for one in batch.schema
            ]
        )
    )
    whole = pa.Table.from_batches([batch.slice(0, begin), batch.slice(begin)])
    for one in (batch.slice(begin), large, whole):
        _check(codec, one, "null")
