"""DDL and watermark events in flat-avro topics, delete markers, and the messages that are none.

With ``avro-enable-watermark`` a record with a null key starts with 01 (DDL, JSON) or 02 (watermark, uint64
big-endian); the new architecture then writes a delete's value as 03 and its commit_ts, uint64 big-endian,
unless values carry the row before (tiflow c7b2588 and ticdc b813e76).
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any, Final, NamedTuple, NoReturn

from tidesink.codecs.flat_avro_schema import schema_text
from tidesink.codecs.wire import is_glue
from tidesink.errors import EncodeError, FramingError, SchemaMismatchError, UnnamedRowError, shown
from tidesink.events import DdlEvent, Message, Position, TableId, WatermarkEvent

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
