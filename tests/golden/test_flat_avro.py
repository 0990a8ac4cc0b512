"""flat-avro against the producer's own bytes: what TiDB held, and the same bytes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from tests.golden.exclusions import EXCLUSIONS
from tests.golden.vectors import (
    POSITION,
    Json,
    Record,
    VectorFolder,
    Workload,
    after_of,
    before_of,
    change_of,
    schema_of,
    table_of,
)
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.options import FlatAvroOptions
from tidesink.errors import EncodeError, UnnamedRowError
from tidesink.events import (
    ChangeEvent,
    Column,
    DdlEvent,
    Message,
    Op,
    TableId,
    TableSchema,
    Value,
    WatermarkEvent,
)
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.schema_registry.naming import sanitize_name, sanitize_namespace
from tidesink.typemap.table import row_of

Image = dict[str, Value] | None


class FixedIds(MemorySchemaRegistry):
    """A registry that gives the ids the producer was given, and remembers what was registered."""

    def __init__(self, ids: dict[str, int]) -> None:
        super().__init__()
        self.ids = ids
        self.registered: dict[str, str] = {}

    def register(self, subject: str, schema_text: str) -> int:
        self.registered[subject] = schema_text
        return self.ids.get(subject, 0)


@cache
def _known(folder: VectorFolder) -> MemorySchemaRegistry:
    return MemorySchemaRegistry(folder.schemas)


def _registry(record: Record) -> FixedIds:
    parts = [part for part in ("key", "value") if record.raw.get(f"{part}_schema_id") is not None]
    ids = {record.raw[f"{part}_subject"]: record.raw[f"{part}_schema_id"] for part in parts}
    return FixedIds(ids)


def _event_of(record: Record) -> Json:
    assert record.event is not None
    return record.event


def _names(row: Image, columns: tuple[Column, ...]) -> Image:
    """The row as flat-avro carries it: Avro names, and the columns the producer writes."""
    return None if row is None else {sanitize_name(column.name): row[column.name] for column in columns}


def _carried(schema: TableSchema, options: FlatAvroOptions) -> tuple[Column, ...]:
    return tuple(column for column in schema.columns if options.producer == "new" or not column.virtual)


def _expected(record: Record) -> dict[str, Any]:
    """Op, key, before, after and commit_ts that the record must decode to, by the rules of the producer."""
    event, options = _event_of(record), record.options_of(FlatAvroOptions)
    schema = schema_of(event)
    columns = _carried(schema, options)
    with_before = options.avro_include_before_value
    before, after = (_names(image(event, schema), columns) for image in (before_of, after_of))
    keys = schema.primary_key if options.producer == "new" else schema.handle_columns
    key = _names({**(before_of(event, schema) or {}), **(after_of(event, schema) or {})}, keys)
    op = Op(event["op"])
    bare = op is Op.DELETE and not with_before
    marked = bare and record.message.value is not None
    if not (bare or with_before or options.enable_tidb_extension):
        op = Op.UPSERT
    return {
        "op": op,
        "key": key or None,
        "before": key if bare else before if with_before else None,
        "after": after,
        "commit_ts": event["commit_ts"] if options.enable_tidb_extension and (marked or not bare) else None,
    }


def _check_types(found: ChangeEvent, record: Record) -> None:
    """The writer's types say what flat-avro can say of TiDB's."""
    assert found.schema is not None
    held = {sanitize_name(column.name): column for column in schema_of(_event_of(record)).columns}
    for column in found.schema.columns:
        theirs = held[column.name]
        row = row_of(theirs.type)
        assert row_of(column.type).tidb_type == row.tidb_type
        assert column.nullable == theirs.nullable
        assert column.handle == (column.name in (found.key or {}))
        if row.reader == "bit":
            assert column.type.length == theirs.type.length
        if row.reader in ("integer", "unsigned64", "date", "datetime", "timestamp", "time"):
            assert column.default == theirs.default or int(column.default or 0) == int(theirs.default or 0)
        if row.reader in ("enum", "set") and not any("\\" in one for one in theirs.type.members or ()):
            assert column.type.members == theirs.type.members


@pytest.mark.law("L6")
@pytest.mark.golden("avro", "rows")
def test_a_row_decodes_to_what_tidb_held(record: Record, folder: VectorFolder) -> None:
    if record.raw.get("error"):
        pytest.skip("no bytes: the producer refused this event")
    codec = FlatAvroCodec(registry=_known(folder))
    message = record.message
    if _unnamed(message):
        with pytest.raises(UnnamedRowError, match="avro-include-before-value=true"):
            codec.decode(message)
        return
    (found,) = codec.decode(message)
    assert isinstance(found, ChangeEvent)
    expected = _expected(record)
    assert {name: getattr(found, name) for name in expected} == expected
    assert _types(found.after) == _types(expected["after"])
    assert found.schema is not None
    assert found.after is None or list(found.after) == [column.name for column in found.schema.columns]
    assert found.table.name == _written_name(record, folder)
    _check_types(found, record)
    _check_checksum(found, record)


def _written_name(record: Record, folder: VectorFolder) -> str:
    """The table's name in the record's schema: after RENAME TABLE under a fixed topic still the old one.

    A loss of the producer: its cache of schemas goes by subject and table version, which a rename keeps.
    """
    event = _event_of(record)
    name = sanitize_name(table_of(event).name)
    if any("rename" in statement.lower() for statement in (*event["ddl"], *event.get("dml", ()))):
        ids = (record.raw.get(f"{part}_schema_id") for part in ("value", "key"))
        written = next((one for one in ids if one is not None), None)
        name = name if written is None else str(json.loads(folder.schemas[written])["name"])
    return name


def _unnamed(message: Message) -> bool:
    """A delete that says no row: null/null, and a marker without a key."""
    return message.key is None and (message.value is None or message.value[:1] == b"\x03")


def _types(row: Mapping[str, Value] | None) -> dict[str, type]:
    return {name: type(value) for name, value in (row or {}).items()}


def _checksum_fields(record: Record) -> dict[str, object] | None:
    """The extension's checksum fields of an event, as the producer fills them."""
    event = _event_of(record)
    checksum = event.get("checksum")
    if not (
        record.options_of(FlatAvroOptions).row_checksum
        and record.options_of(FlatAvroOptions).enable_tidb_extension
    ):
        return None
    if checksum is None:  # a row of before the switch
        return {
            "_tidb_row_level_checksum": "",
            "_tidb_corrupted": False,
            "_tidb_checksum_version": 0,
        }
    value = checksum["current"]
    if event["op"] == "delete" and record.producer == "new":
        value = checksum["previous"] or value
    return {
        "_tidb_row_level_checksum": str(value),
        "_tidb_corrupted": checksum["corrupted"],
        "_tidb_checksum_version": checksum["version"],
    }


def _check_checksum(found: ChangeEvent, record: Record) -> None:
    expected = _checksum_fields(record)
    if expected and found.extension:
        assert {name: found.extension[name] for name in expected} == expected


@pytest.mark.golden("avro", "rows")
def test_an_event_encodes_to_the_producers_bytes(record: Record, folder: VectorFolder) -> None:
    registry = _registry(record)
    codec = FlatAvroCodec(registry=registry, options=record.options_of(FlatAvroOptions))
    event = change_of(_event_of(record), producer=record.producer, extension=_checksum_fields(record))
    if not record.raw.get("error"):
        name = _written_name(record, folder)
        if name != sanitize_name(event.table.name):
            event = event._replace(table=event.table._replace(name=name))
    if record.raw.get("error"):
        with pytest.raises(EncodeError):
            codec.encode(event, topic=record.message.topic)
        return
    encoded = codec.encode(event, topic=record.message.topic)
    assert encoded is not None
    for part in ("key", "value"):
        schema_id = record.raw.get(f"{part}_schema_id")
        if schema_id is not None:
            subject = record.raw[f"{part}_subject"]
            assert _ordered(registry.registered[subject]) == _ordered(folder.schemas[schema_id])
    assert (encoded.key, encoded.value) == (record.message.key, record.message.value)
    assert record.raw["message_length"] == len(encoded.key or b"") + len(encoded.value or b"") + 36


def _ordered(text: str) -> object:
    """JSON as nested pairs, so that the order of members counts."""
    return json.loads(text, object_pairs_hook=list)


@pytest.mark.golden("avro", "rows")
def test_a_decoded_row_encodes_back_under_its_own_ids(record: Record, folder: VectorFolder) -> None:
    message = record.message
    if record.raw.get("error") or _unnamed(message):
        pytest.skip("no bytes to come back to")
    codec = FlatAvroCodec(registry=_known(folder))  # no options: which TiCDC wrote is in the bytes
    (found,) = codec.decode(message)
    assert isinstance(found, ChangeEvent)
    bare = found._replace(schema=None)
    assert codec.encode_with_ids(bare) == (message.key, message.value)


@pytest.mark.golden("avro", "control")
def test_a_control_event_decodes_and_encodes_back(record: Record, folder: VectorFolder) -> None:
    codec = FlatAvroCodec(registry=_known(folder), options=record.options_of(FlatAvroOptions))
    raw, message = record.raw, record.message
    if message.value is None:
        assert codec.encode(WatermarkEvent(raw["commit_ts"], POSITION), topic="golden") is None
        return
    (found,) = codec.decode(message)
    reported = _reported(raw)
    assert type(found) is type(reported)
    assert found.commit_ts == reported.commit_ts
    if isinstance(reported, DdlEvent) and isinstance(found, DdlEvent):
        assert (found.table, found.query, found.kind) == (reported.table, reported.query, reported.kind)
    for event in (found, reported):
        assert codec.encode(event, topic="golden") == (None, message.value)


def _reported(raw: Json) -> DdlEvent | WatermarkEvent:
    """The control event that TiCDC was given."""
    if raw["op"] == "watermark":
        return WatermarkEvent(raw["commit_ts"], POSITION)
    schema, _, name = (raw.get("target_table") or raw["table"]).partition(".")
    return DdlEvent(
        TableId(schema, name), raw["ddl_query"], str(raw["ddl_type_id"]), raw["commit_ts"], POSITION
    )


@pytest.mark.golden_workload("avro")
def test_a_whole_changefeed_comes_back_byte_for_byte(workload: Workload) -> None:
    codec = FlatAvroCodec(
        registry=MemorySchemaRegistry(workload.schemas), options=workload.options_of(FlatAvroOptions)
    )
    count = 0
    for message in workload.messages():
        (event,) = codec.decode(message)
        assert isinstance(event, ChangeEvent)
        assert codec.encode_with_ids(event) == (message.key, message.value)
        count += 1
    assert count > 0


def test_every_exclusion_leaves_something_out(golden_names: list[str]) -> None:
    unused = [one.pattern for one in EXCLUSIONS if not any(one.matches(name) for name in golden_names)]
    assert unused == []


def test_the_namespace_has_both_parts_sanitised() -> None:
    assert sanitize_namespace("9team", "库-1") == "_9team.__1"
