"""canal-json against TiCDC's own messages, in both directions."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.golden.large_messages import HeldFiles, is_cut_down, large_of, named, plain
from tests.golden.vectors import POSITION, Record, Workload, change_of, schema_of, unbase64
from tidesink.codecs.canal_json.codec import CanalJsonCodec, row_key_of
from tidesink.codecs.large_messages import ClaimCheck, LargeMessages
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import EncodeError, SchemaMismatchError
from tidesink.events import ChangeEvent, DdlEvent, Op, TableId, WatermarkEvent
from tidesink.typemap.target_schema import RowKey

# The order inside mysqlType is random at the producer, and ts is its wall clock.
_RANDOM = re.compile(rb'"mysqlType":\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
_CLOCK = re.compile(rb'"ts":\d+')
# Where column types come from: a definition in the config, the topic's own DDL, the message alone.
_SOURCES = ("definition", "ddl", "message")


def _expected(record: Record) -> list[ChangeEvent]:
    """What TiDB held: one change, or each of a transaction."""
    event = record.event
    assert event is not None
    rows = [{**event, **row} for row in event.get("rows", [event])]
    return [
        change_of(row, producer="classic", extension=_row_key(row))._replace(
            position=POSITION._replace(index=index)
        )
        for index, row in enumerate(rows)
    ]


def _row_key(row: dict[str, Any]) -> dict[str, object] | None:
    key = row.get("row_key_hex")
    return {"_tidb": {"rowkey": base64.b64encode(bytes.fromhex(key)).decode()}} if key else None


def _on_the_wire(event: ChangeEvent, record: Record) -> ChangeEvent:
    """The event as the record's options let it be read."""
    assert event.schema is not None
    options = record.options_of(CanalJsonOptions)
    stored = {column.name for column in event.schema.columns if not column.virtual}
    kept = stored
    if event.op is Op.DELETE and (options.delete_only_output_handle_key_columns or is_cut_down(record)):
        kept = {column.name for column in event.schema.handle_columns}
    row = event.after or event.before or {}
    primary = {column.name: row[column.name] for column in event.schema.primary_key}
    return event._replace(
        key=primary or None,
        before=None if event.before is None else {n: v for n, v in event.before.items() if n in kept},
        after=None if event.after is None else {n: v for n, v in event.after.items() if n in kept},
        commit_ts=event.commit_ts if options.enable_tidb_extension else None,
    )


def _without_labels(event: ChangeEvent) -> ChangeEvent:
    """The event where nothing tells the members of ENUM and SET: their numbers."""
    assert event.schema is not None
    members = {c.name: c.type for c in event.schema.columns if c.type.members is not None}

    def plain(row: Any) -> Any:
        if row is None:
            return None
        return {n: _number(v, members[n]) if n in members and v is not None else v for n, v in row.items()}

    return event._replace(before=plain(event.before), after=plain(event.after), key=plain(event.key))


def _number(label: Any, column_type: Any) -> int:
    if column_type.name == "enum":
        return 1 + column_type.members.index(label) if label in column_type.members else 0
    return sum(1 << column_type.members.index(one) for one in label.split(",") if one)


def _compared(event: ChangeEvent) -> tuple[object, ...]:
    return event.op, event.table, event.key, event.before, event.after, event.commit_ts, event.position.index


def _column_order(event: ChangeEvent) -> list[str]:
    return list(event.after or event.before or {})


@pytest.mark.golden("canal-json", "rows")
def test_decodes_to_what_tidb_held(record: Record) -> None:
    if record.message.value is None:
        assert record.raw["error"]
        return
    wire = [_on_the_wire(event, record) for event in _expected(record)]
    for source in _SOURCES:
        expected = wire
        if source == "message" and not record.options_of(CanalJsonOptions).content_compatible:
            expected = [_without_labels(event) for event in wire]
        codec = CanalJsonCodec(definitions=_definitions(record, source), large=large_of(record))
        events = codec.decode(record.message)
        found = [event for event in events if isinstance(event, ChangeEvent)]
        assert [_compared(event) for event in found] == [_compared(event) for event in expected], source
        assert [_column_order(event) for event in found] == [_column_order(event) for event in expected]


def _definitions(record: Record, source: str) -> TableDefinitions:
    assert record.event is not None
    definitions = TableDefinitions()
    if source == "definition":
        definitions.put(schema_of(_with_columns(record.event)))
    if source == "ddl":
        for statement in record.event["ddl"]:
            definitions.apply(statement, "test")
    return definitions


def _with_columns(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, **event["rows"][0]} if "rows" in event else event


@pytest.mark.golden("canal-json", "rows")
def test_row_key_and_types_travel_in_the_extension(record: Record) -> None:
    for event in _read(record):
        extension = event.extension or {}
        types = extension["mysqlType"]
        assert isinstance(types, Mapping)
        assert set(types) == set(_column_order(event))
        if (
            record.options_of(CanalJsonOptions).output_row_key
            and record.options_of(CanalJsonOptions).enable_tidb_extension
        ):
            assert record.event is not None
            assert extension["_tidb"] == (_row_key(record.event) or {})["_tidb"]
            key = bytes.fromhex(record.event["row_key_hex"])
            if len(key) != _ROW_ID_KEY:
                with pytest.raises(SchemaMismatchError):
                    row_key_of(event)
                continue
            assert row_key_of(event) == _in_tikv(key)


# 't', table id, '_r', row id. A clustered key that is no integer stands there encoded, in other lengths.
_ROW_ID_KEY = 19


def _in_tikv(key: bytes) -> RowKey:
    """A row's key as TiKV has it."""
    table_id, row_id = (int.from_bytes(part, "big") - (1 << 63) for part in (key[1:9], key[11:]))
    return RowKey(row_id, table_id)


@pytest.mark.golden("canal-json", "rows")
def test_encodes_to_the_producers_bytes(record: Record) -> None:
    files = HeldFiles(record)
    codec = _writer(record, files)
    if "error" in record.raw:
        with pytest.raises(EncodeError):
            list(_encoded(codec, _expected(record)))
        return
    _same(_joined(record, _encoded(codec, _expected(record))), record.message.value or b"")
    _same_file(files, record)


def _writer(record: Record, files: HeldFiles) -> CanalJsonCodec:
    files.files.clear()
    claims = ClaimCheck(files, raw_value=record.options_of(CanalJsonOptions).claim_check_raw_value)
    large = LargeMessages(record.options_of(CanalJsonOptions), claims=claims)
    return CanalJsonCodec(options=record.options_of(CanalJsonOptions), clock=lambda: 0, large=large)


def _same_file(files: HeldFiles, record: Record) -> None:
    """What is too large lies in a file of the producer's form."""
    expected = unbase64(record.raw.get("claim_check_b64"))
    assert len(files.files) == (expected is not None)
    for found in files.files.values():
        _same(*(_file_value(data, record) for data in (found, expected or b"")))


def _file_value(data: bytes, record: Record) -> bytes:
    return (
        data
        if record.options_of(CanalJsonOptions).claim_check_raw_value
        else unbase64(json.loads(data)["value"]) or b""
    )


def _read(record: Record) -> list[ChangeEvent]:
    if record.message.value is None:
        return []
    codec = CanalJsonCodec(large=large_of(record))
    return [event for event in codec.decode(record.message) if isinstance(event, ChangeEvent)]


@pytest.mark.golden("canal-json", "rows")
def test_what_was_decoded_is_encoded_again(record: Record) -> None:
    """Decoding without any definition keeps all that encoding needs: the two are inverse."""
    files = HeldFiles(record)
    codec = _writer(record, files)
    again = [event._replace(schema=None, schema_id=None) for event in _read(record)]
    _same(_joined(record, _encoded(codec, again)), record.message.value or b"")
    if record.message.value is not None:
        _same_file(files, record)


def _encoded(codec: CanalJsonCodec, events: list[ChangeEvent]) -> Iterator[bytes]:
    for event in events:
        encoded = codec.encode(event, topic="golden")
        assert encoded is not None
        assert encoded.key is None
        assert encoded.value is not None
        yield encoded.value


def _joined(record: Record, values: Iterator[bytes]) -> bytes:
    terminator = record.config.get("terminator", "").encode()
    return b"".join(value + terminator for value in values)


def _same(found: bytes, expected: bytes) -> None:
    """Equal bytes but for what is random, and there equal as JSON; compressed, or not, as the other."""
    assert (plain(found) == found) == (plain(expected) == expected)
    found, expected = (named(plain(value)) for value in (found, expected))
    assert _fixed(found) == _fixed(expected)
    for mine, theirs in zip(_objects(found), _objects(expected), strict=True):
        assert {**mine, "ts": 0} == {**theirs, "ts": 0}


def _fixed(value: bytes) -> bytes:
    return _CLOCK.sub(b'"ts":0', _RANDOM.sub(b'"mysqlType":{}', value))


def _objects(value: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in value.splitlines() if line]


@pytest.mark.golden("canal-json", "control")
def test_ddl_and_watermarks_both_ways(record: Record) -> None:
    value = record.message.value
    event = _control_event(record)
    encoded = CanalJsonCodec(options=record.options_of(CanalJsonOptions), clock=lambda: 0).encode(
        event, topic="golden"
    )
    if value is None:
        assert encoded is None
        return
    (found,) = CanalJsonCodec().decode(record.message)
    assert encoded is not None
    _same(encoded.value or b"", value)
    assert type(found) is type(event)
    assert not isinstance(found, ChangeEvent)
    if isinstance(found, DdlEvent):
        assert isinstance(event, DdlEvent)
        assert (found.query, found.kind, found.table) == (event.query, event.kind, event.table)
        assert found.commit_ts == (
            event.commit_ts if record.options_of(CanalJsonOptions).enable_tidb_extension else None
        )
    else:
        assert found.commit_ts == event.commit_ts


def _control_event(record: Record) -> DdlEvent | WatermarkEvent:
    raw = record.raw
    if raw["op"] == "watermark":
        return WatermarkEvent(raw["commit_ts"], POSITION)
    sent = json.loads(plain(record.message.value or b"{}"))
    table = TableId(sent.get("database", "db"), sent.get("table", ""))
    return DdlEvent(table, raw["ddl_query"], sent.get("type", "QUERY"), raw["commit_ts"], POSITION)


@pytest.mark.golden("canal-json", "control")
def test_ddl_names_its_table(record: Record) -> None:
    if record.raw["op"] == "watermark" or record.message.value is None:
        return
    (event,) = CanalJsonCodec().decode(record.message)
    assert isinstance(event, DdlEvent)
    routed = record.raw["case"].startswith("route_")
    assert routed or str(event.table) == record.raw["table"]


@pytest.mark.golden_workload("canal-json")
def test_a_whole_changefeed_is_read_and_written_again(workload: Workload) -> None:
    reader = CanalJsonCodec()
    writer = CanalJsonCodec(options=replace(workload.options_of(CanalJsonOptions)), clock=lambda: 0)
    seen = 0
    for message in workload.messages():
        for event in reader.decode(message):
            encoded = writer.encode(event, topic=message.topic)
            assert encoded is not None
            _same(encoded.value or b"", message.value or b"")
            seen += 1
    assert seen > 1000
    assert not reader.unread_ddl


@pytest.mark.golden_workload("canal-json")
def test_a_changefeeds_own_ddl_types_every_column(workload: Workload) -> None:
    codec = CanalJsonCodec()
    for message in workload.messages():
        for event in codec.decode(message):
            if isinstance(event, ChangeEvent):
                assert "mysqlType" not in (event.extension or {})
                assert event.schema is not None
                labels = [c.name for c in event.schema.columns if c.type.name in ("enum", "set")]
                row = event.after or event.before or {}
                assert all(isinstance(row[name], str | None) for name in labels if name in row)


@pytest.mark.golden("canal-json", "rows")
def test_ddl_of_the_case_gives_the_columns_tidb_had(record: Record) -> None:
    """The definitions built from statements equal what TiDB knew: types, nullability, defaults, keys."""
    assert record.event is not None
    event = _with_columns(record.event)
    definitions = TableDefinitions()
    for statement in event["ddl"]:
        definitions.apply(statement, "test")
    schema, _, name = event["table"].partition(".")
    found = definitions.get(TableId(schema, name))
    expected = schema_of(event)
    assert found is not None
    # Classic TiCDC does not know virtual columns.
    columns = [c for c in found.columns if not c.virtual or record.producer == "new"]
    if any("column-selector" in name for name in record.config):
        columns = [c for c in columns if c.name in expected.by_name]
    for mine, theirs in zip(columns, expected.columns, strict=True):
        # The wire never says with which default a column was added.
        now = replace(mine, default=None, origin_default=None, redefaulted=False)
        assert replace(now, type=theirs.type) == replace(theirs, default=None)
        assert mine.type.sql == theirs.type.sql
        assert _damaged(mine.default) == _damaged(theirs.default)


def _damaged(default: str | None) -> str | None:
    # TiDB keeps binary defaults as UTF-8 text, which bytes that are none do not survive.
    if default is None or max(map(ord, default), default=0) > 255:
        return default
    return default.encode("latin-1").decode("utf-8", "replace")
