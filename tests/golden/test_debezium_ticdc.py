"""TiCDC's own ``debezium`` and ``debezium-avro`` (new architecture) against what TiDB held.

The producer does not write all that TiDB holds. What it writes instead is stated in ``_as_written``, each
difference with its reason; nothing else may differ.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from datetime import date, datetime
from functools import cache
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest

from tests.golden.exclusions import UNREADABLE
from tests.golden.large_messages import plain
from tests.golden.vectors import POSITION, Record, VectorFolder, change_of
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec, EncodedRecord
from tidesink.codecs.compression import compression_of
from tidesink.codecs.debezium.codec import DebeziumAvroCodec, DebeziumJsonCodec
from tidesink.codecs.options import DebeziumOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import EncodeError, SchemaMismatchError
from tidesink.events import ChangeEvent, Column, ColumnType, DdlEvent, Op, Row, TableSchema, WatermarkEvent
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.typemap.table import row_of

_CALENDAR: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)(.*)")
_SOMETHING: Final = object()


@cache
def _registry(folder: VectorFolder) -> MemorySchemaRegistry:
    return MemorySchemaRegistry(folder.schemas)


def _codec(record: Record, folder: VectorFolder, definitions: TableDefinitions | None = None) -> Codec:
    return open_codec(
        record.raw["codec"],
        registry=_registry(folder),
        definitions=definitions,
        options=DebeziumOptions(time_zone=record.time_zone),
    )


def _definitions(schema: TableSchema, *, is_json: bool) -> TableDefinitions:
    """The table as a person declares it: a DECIMAL of the JSON form as DOUBLE, for it is no more."""
    columns = tuple(
        replace(one, type=ColumnType("double")) if is_json and one.type.name == "decimal" else one
        for one in schema.columns
    )
    return TableDefinitions([replace(schema, columns=columns)])


def _as_written(value: Any, column: Column, zone: str, *, is_json: bool) -> Any:
    """What TiCDC (b813e76) writes for what TiDB holds."""
    reader = row_of(column.type).reader
    if value is None:
        # A fault: NULL in a column with a default is written as the default, or as zero.
        return None if column.default is None else _SOMETHING
    if reader in ("date", "datetime", "timestamp"):
        return _moment(str(value), column, reader, zone)
    # A loss: a DECIMAL is a double in JSON.
    return float(value) if reader == "decimal" and is_json else value


def _moment(text: str, column: Column, reader: str, zone: str) -> str | None:
    found = _CALENDAR.fullmatch(text)
    assert found is not None
    year, month, day = (int(part) for part in found.groups()[:3])
    if not _is_day(year, month, day):
        # A loss: a date that no calendar has is null, or 1970 where the column is NOT NULL.
        if reader == "timestamp":  # a zero one is the epoch in UTC, shown in the changefeed's zone
            epoch = datetime.fromtimestamp(0, ZoneInfo(zone)).replace(tzinfo=None)
            return f"{epoch}{found[4][len(' 00:00:00') :]}"
        return None if column.nullable else f"1970-01-01{found[4]}"
    # A fault: years before 100 are taken for ones of two digits.
    adjusted = year + (2000 if year < 70 else 1900 if year < 100 else 0)
    return f"{adjusted:04}-{month:02}-{day:02}{found[4]}"


def _is_day(year: int, month: int, day: int) -> bool:
    try:
        return bool(date(year, month, day))
    except ValueError:
        return False


def _compare(
    found: Row | None, expected: Row | None, schema: TableSchema, zone: str, *, is_json: bool
) -> None:
    if expected is None or found is None:
        assert found == expected
        return
    # A virtual column's value is in no record, though its schema lists it.
    stored = {name: value for name, value in expected.items() if not schema.by_name[name].virtual}
    assert list(found) == list(stored)
    for name, value in stored.items():
        column = schema.by_name[name]
        written = _as_written(value, column, zone, is_json=is_json)
        mine = found[name]
        if written is _SOMETHING:
            continue
        if column.type.name == "float" and mine is not None:
            mine = struct.unpack("<f", struct.pack("<f", mine))[0]
        assert mine == written, (name, value)


def _check(record: Record, folder: VectorFolder) -> None:
    if record.message.value is None:
        assert record.raw["error"]
        return
    assert record.event is not None
    expected = change_of(record.event, producer="classic")
    assert expected.schema is not None
    if any(one.matches(record.name) for one in UNREADABLE):
        with pytest.raises(SchemaMismatchError):
            _codec(record, folder).decode(record.message)
        return
    is_json = record.raw["codec"] == "debezium"
    definitions = _definitions(expected.schema, is_json=is_json)
    (event,) = _codec(record, folder, definitions).decode(record.message)
    assert isinstance(event, ChangeEvent)
    assert (event.op, event.table, event.commit_ts) == (expected.op, expected.table, expected.commit_ts)
    assert event.position.source == (expected.commit_ts,)
    zone = record.time_zone
    _compare(event.key, expected.key, expected.schema, zone, is_json=is_json)
    _compare(event.after, expected.after, expected.schema, zone, is_json=is_json)
    before = expected.before
    if record.config["debezium-output-old-value"] or event.op is Op.DELETE:
        _compare(event.before, before, expected.schema, zone, is_json=is_json)
    else:
        assert event.before is None


@pytest.mark.golden("debezium", "rows")
def test_json_rows_are_what_tidb_held(record: Record, folder: VectorFolder) -> None:
    _check(record, folder)


@pytest.mark.golden("debezium-avro", "rows")
def test_avro_rows_are_what_tidb_held(record: Record, folder: VectorFolder) -> None:
    _check(record, folder)


def _check_undefined(record: Record, folder: VectorFolder) -> None:
    """Without any definition each record is still read, and the exact numbers are the same."""
    if record.message.value is None or any(one.matches(record.name) for one in UNREADABLE):
        return
    assert record.event is not None
    expected = change_of(record.event, producer="classic")
    (event,) = _codec(record, folder).decode(record.message)
    assert isinstance(event, ChangeEvent)
    assert expected.schema is not None
    for name, value in (expected.after or {}).items():
        column = expected.schema.by_name[name]
        if isinstance(value, int) and row_of(column.type).reader == "integer":
            assert event.after is not None
            assert event.after[name] == value


@pytest.mark.golden("debezium", "rows")
def test_json_rows_are_read_without_a_definition(record: Record, folder: VectorFolder) -> None:
    _check_undefined(record, folder)


@pytest.mark.golden("debezium-avro", "rows")
def test_avro_rows_are_read_without_a_definition(record: Record, folder: VectorFolder) -> None:
    _check_undefined(record, folder)


def _check_control(record: Record, folder: VectorFolder) -> None:
    if record.message.value is None:
        assert record.raw["note"]
        return
    (event,) = _codec(record, folder).decode(record.message)
    assert not isinstance(event, ChangeEvent)
    if record.raw["op"] == "watermark":
        assert isinstance(event, WatermarkEvent)
        # A fault: what a long cannot hold is written as its smallest value.
        held = record.raw["codec"] == "debezium" or record.raw["commit_ts"] < 2**63
        assert event.commit_ts == (record.raw["commit_ts"] if held else 2**63)
        return
    assert isinstance(event, DdlEvent)
    assert event.query == record.raw["ddl_query"]
    assert event.commit_ts == record.raw["commit_ts"]
    schema, _, name = (record.raw.get("target_table") or record.raw["table"]).partition(".")
    assert event.table.schema == schema
    assert event.table.name in (name, "")


@pytest.mark.golden("debezium", "control")
def test_json_ddl_and_watermarks(record: Record, folder: VectorFolder) -> None:
    _check_control(record, folder)


@pytest.mark.golden("debezium-avro", "control")
def test_avro_ddl_and_watermarks(record: Record, folder: VectorFolder) -> None:
    _check_control(record, folder)


_CLOCK: Final = re.compile(rb'("cluster_id":"[^"]*"\},"ts_ms":)\d+')


def _defaulted(event: ChangeEvent) -> bool:
    """Whether a row has NULL in a column with a default: the producer writes the default, we write null."""
    assert event.schema is not None
    rows = [row for row in (event.before, event.after) if row is not None]
    return any(
        row[column.name] is None and column.default is not None
        for row in rows
        for column in event.schema.columns
        if not column.virtual
    )


@pytest.mark.golden("debezium", "rows")
def test_json_rows_are_the_producers_bytes(record: Record) -> None:
    if record.message.value is None:
        assert record.raw["error"]
        return
    assert record.event is not None
    event = change_of(record.event, producer="classic")
    extension = {"source": {"start_ts": record.event["start_ts"]}}
    codec = DebeziumJsonCodec(options=record.options_of(DebeziumOptions), clock=lambda: 0)
    encoded = codec.encode(event._replace(extension=extension), topic="t")
    assert encoded is not None
    if _defaulted(event):
        assert encoded.value != record.message.value
        return
    _assert_same(encoded, record)


def _assert_same(encoded: EncodedRecord, record: Record) -> None:
    """Equal but for the producer's clock, and compressed alike, if not by the same choices."""
    for mine, theirs in zip(encoded, (record.message.key, record.message.value), strict=True):
        assert mine is not None
        assert theirs is not None
        assert (
            compression_of(mine)
            == compression_of(theirs)
            == record.options_of(DebeziumOptions).large_message_handle_compression
        )
        assert plain(mine) == _CLOCK.sub(rb"\g<1>0", plain(theirs))


def _watermark(record: Record, options: DebeziumOptions) -> EncodedRecord | None:
    codec = DebeziumJsonCodec(options=options, clock=lambda: 0)
    return codec.encode(WatermarkEvent(record.raw["commit_ts"], POSITION), topic="t")


@pytest.mark.golden("debezium", "control")
def test_json_watermarks_are_the_producers_bytes(record: Record) -> None:
    if record.raw["op"] != "watermark":
        return
    encoded = _watermark(record, record.options_of(DebeziumOptions))
    if record.message.value is None:
        assert encoded is None
        return
    assert encoded is not None
    _assert_same(encoded, record)


def _ts_ms(record: Record, folder: VectorFolder) -> int:
    """The producer's clock, which stands inside the bytes."""
    (event,) = _codec(record, folder).decode(record.message)
    assert isinstance(event, ChangeEvent)
    found = (event.extension or {})["ts_ms"]
    assert isinstance(found, int)
    return found


@pytest.mark.golden("debezium-avro", "rows")
def test_avro_rows_are_the_producers_bytes(record: Record, folder: VectorFolder) -> None:
    if any(one.matches(record.name) for one in UNREADABLE):
        return
    assert record.event is not None
    event = change_of(record.event, producer="classic")
    options, registry = record.options_of(DebeziumOptions), MemorySchemaRegistry()
    if record.message.value is None:
        # What the format cannot hold, we refuse too. A DATE's panic, and a renamed table's old name, are
        # faults of the producer that we do not have.
        if re.search("overflows avro long|ought to be valid Avro", record.raw["error"]):
            with pytest.raises(EncodeError):
                DebeziumAvroCodec(registry=registry, options=options).encode(event, topic="t")
        return
    clock = _ts_ms(record, folder)
    codec = DebeziumAvroCodec(registry=registry, options=options, clock=lambda: clock)
    encoded = codec.encode(event, topic="t")
    assert encoded is not None
    for part, mine, theirs in (
        ("key", encoded.key, record.message.key),
        ("value", encoded.value, record.message.value),
    ):
        assert mine is not None
        assert theirs is not None
        schema_id = record.raw[f"{part}_schema_id"]
        written = json.loads(registry.schema_by_id(int.from_bytes(mine[1:5], "big")))
        assert written == json.loads(folder.schemas[schema_id])
        if not _defaulted(event):
            assert mine[5:] == theirs[5:]
