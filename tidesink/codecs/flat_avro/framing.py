"""What flat-avro topics carry besides plain records: markers, DDL, watermarks, and Glue's header.

With ``avro-enable-watermark`` a record with a null key starts with 01 (DDL, JSON) or 02 (watermark, uint64
big-endian); the new architecture then writes a delete's value as 03 and its commit_ts, uint64 big-endian,
unless values carry the row before (tiflow c7b2588 and ticdc b813e76).

An AWS Glue header takes the place of Confluent's: byte 03, a compression byte (00 none, 05 zlib), the 16
bytes of the schema version's UUID, then the Avro payload, compressed or not (AWS Glue Schema Registry
serializers; TiCDC tiflow c7b2588 writes it uncompressed).
"""

from __future__ import annotations

import json
import re
import struct
import threading
import zlib
from dataclasses import replace
from typing import Any, Final, NamedTuple, NoReturn
from uuid import UUID

from tidesink.codecs.base import GLUE_SIZE, header, is_glue, what_else
from tidesink.codecs.flat_avro.record import WriterRecord, parse_record
from tidesink.codecs.flat_avro.schema import schema_text
from tidesink.errors import (
    DecodeError,
    EncodeError,
    FramingError,
    SchemaMismatchError,
    UnnamedRowError,
    shown,
)
from tidesink.events import DdlEvent, Message, Position, TableId, WatermarkEvent
from tidesink.schema_registry.base import SchemaSource

_DDL: Final = 1
_WATERMARK: Final = 2
_DELETE_MARKER: Final = 3
_UINT64: Final = struct.Struct(">BQ")
_UINT64_END: Final = 1 << 64
_TS_END: Final = 1 << 63
_NUMBER_END: Final = 10**18
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_REMEDY: Final = "set avro-include-before-value=true in the changefeed's sink URI"


class DeleteMarker(NamedTuple):
    """The value of a delete whose row the record's key names."""

    commit_ts: int


def decode_control(message: Message) -> DdlEvent | WatermarkEvent | DeleteMarker | None:
    """The DDL or watermark of a record, or the marker in place of its value; None where it is a row's.

    Raises:
        FramingError: the record starts like a control event and is none.
        SchemaMismatchError: a control event or a marker of another shape than TiCDC's.
        UnnamedRowError: a delete that does not say which row.
    """
    key, value = message.key, message.value
    if value is None:
        if key is None:
            _refuse_unnamed("key and value are null")
        return None
    kind = value[0] if value else None
    if kind == _DELETE_MARKER and not is_glue(value):
        return _marker(key, value)
    if kind not in (_DDL, _WATERMARK):
        return None
    if key is not None:
        raise FramingError(
            f"the value starts with {kind:02x}, a control event's byte, and the key is not null"
        )
    return _ddl(message, value) if kind == _DDL else _watermark(message, value)


def _refuse_unnamed(how: str) -> NoReturn:
    raise UnnamedRowError(
        f"a delete names no row: {how}. New-architecture TiCDC writes this for a table without primary key, "
        f"so the delete is lost: {_REMEDY}"
    )


def _marker(key: bytes | None, value: bytes) -> DeleteMarker:
    if key is None:
        _refuse_unnamed("the key is null and the value is a delete marker")
    if len(value) != _UINT64.size:
        raise SchemaMismatchError(
            f"the value starts with 03 as a delete marker, which has 9 bytes, and has {len(value)}"
        )
    (_, commit_ts) = _UINT64.unpack(value)
    if commit_ts >= _TS_END:
        raise SchemaMismatchError(f"a delete marker has commit_ts {commit_ts}: TiDB's are below 2^63")
    return DeleteMarker(commit_ts)


def _watermark(message: Message, value: bytes) -> WatermarkEvent:
    if len(value) != _UINT64.size:
        raise SchemaMismatchError(f"a watermark has {_UINT64.size} bytes, not {len(value)}")
    (_, commit_ts) = _UINT64.unpack(value)
    position = Position(message.topic, message.partition, message.offset, 0, (commit_ts,))
    return WatermarkEvent(commit_ts, position)


def _ddl(message: Message, value: bytes) -> DdlEvent:
    try:
        found: Any = json.loads(value[1:])
    except (ValueError, RecursionError) as error:
        raise SchemaMismatchError(f"a DDL event is no JSON: {error!s:.120}") from error
    if not isinstance(found, dict):
        raise SchemaMismatchError("a DDL event is no JSON object")
    query, schema, table = (_member(found, name, str) for name in ("query", "schema", "table"))
    kind, commit_ts = (_member(found, name, int) for name in ("type", "commitTs"))
    return DdlEvent(
        table=TableId(schema, table),
        query=query,
        kind=str(kind),
        commit_ts=commit_ts,
        position=Position(message.topic, message.partition, message.offset, 0, (commit_ts,)),
        extension={"type": kind},
    )


def _member(found: dict[str, Any], name: str, kind: type) -> Any:
    value = found.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise SchemaMismatchError(f"a DDL event has {name}={shown(value, 40)}, not a {kind.__name__}")
    if isinstance(value, int) and abs(value) >= _NUMBER_END:
        raise SchemaMismatchError(f"a DDL event has a {name} of more than 18 digits")
    if isinstance(value, str) and _SURROGATE.search(value):
        raise SchemaMismatchError(f"a DDL event has a {name} that is no Unicode text")
    return value


def encode_watermark(event: WatermarkEvent) -> bytes:
    """The value of a watermark's record."""
    return _with_ts(_WATERMARK, event.commit_ts)


def encode_delete_marker(commit_ts: int | None) -> bytes:
    """The value of a delete marker's record."""
    return _with_ts(_DELETE_MARKER, commit_ts)


def _with_ts(kind: int, commit_ts: int | None) -> bytes:
    if commit_ts is None or not 0 <= commit_ts < _UINT64_END:
        raise EncodeError(f"commit_ts {commit_ts} is no unsigned 64-bit number")
    return _UINT64.pack(kind, commit_ts)


def encode_ddl(event: DdlEvent) -> bytes:
    """The value of a DDL event's record.

    Raises:
        EncodeError: TiDB's number of the action is neither in ``extension["type"]`` nor in ``kind``.
    """
    number = (event.extension or {}).get("type", event.kind)
    if not isinstance(number, int) and not str(number).isdecimal():
        raise EncodeError(
            f"a DDL event in flat-avro needs TiDB's number of its action, not {shown(number, 40)}"
        )
    members = {
        "query": event.query,
        "type": int(str(number)),
        "schema": event.table.schema,
        "table": event.table.name,
        "commitTs": event.commit_ts,
    }
    return bytes([_DDL]) + schema_text(members).encode()


# What a compressed payload may come to: far above Kafka's own limits, far below a worker's memory.
MOST_BYTES: Final = 64 * 2**20
_ZLIB: Final = 5
# Confluent's ids are positive int32: from here on, no registry has one.
_FIRST_ID: Final = 1 << 31


def is_glue_framed(message: Message) -> bool:
    """Whether key or value has a Glue header."""
    return is_glue(message.key or b"") or is_glue(message.value or b"")


class GlueFrames:
    """Turns Glue-framed messages into Confluent-framed ones, under ids that no registry gives.

    ``records`` gets the schema behind each such id. Threads may share one.
    """

    def __init__(self, source: SchemaSource | None, records: dict[int, WriterRecord]) -> None:
        self._source = source
        self._records = records
        self._ids: dict[UUID, int] = {}
        self._lock = threading.Lock()

    def translated(self, message: Message) -> Message:
        """The same message under Confluent headers, payloads inflated.

        Raises:
            FramingError: no source is given, or only one part of the message is framed by Glue.
            SchemaMismatchError: a payload that does not inflate, or a schema that TiCDC does not write.
            RegistryError: the schema cannot be had.
        """
        return replace(message, key=self._part(message.key, "key"), value=self._part(message.value, "value"))

    def _part(self, data: bytes | None, part: str) -> bytes | None:
        if data is None:
            return None
        if not is_glue(data):
            raise FramingError(f"one part has an AWS Glue header, and the {part} {what_else(data)}")
        payload = data[GLUE_SIZE:]
        plain = _inflated(payload, part) if data[1] == _ZLIB else payload
        return header(self._id(UUID(bytes=data[2:GLUE_SIZE]))) + plain

    def _id(self, uuid: UUID) -> int:
        known = self._ids.get(uuid)
        if known is not None:
            return known
        if self._source is None:
            raise FramingError(_refusal(uuid))
        try:
            record = parse_record(self._source.schema_by_uuid(uuid))
        except DecodeError as error:
            raise error.with_context(schema_id=str(uuid)) from error
        with self._lock:
            schema_id = self._ids.get(uuid, _FIRST_ID + len(self._ids))
            self._records[schema_id] = record
            return self._ids.setdefault(uuid, schema_id)


def _refusal(uuid: UUID) -> str:
    return (
        f"the message has an AWS Glue schema registry header (schema version {uuid}) and no source of Glue "
        'schemas is given: give --schemas FILE with lines {"id": "<uuid>", "schema": …}'
    )


def _inflated(payload: bytes, part: str) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(payload, MOST_BYTES)
    except zlib.error as error:
        raise SchemaMismatchError(f"the {part}'s payload is no zlib stream: {error}") from error
    if stream.unconsumed_tail:
        raise SchemaMismatchError(f"the {part}'s payload inflates to more than {MOST_BYTES} bytes")
    if not stream.eof or stream.unused_data:
        raise SchemaMismatchError(f"the {part}'s payload is no whole zlib stream: it is cut, or more follows")
    return plain
