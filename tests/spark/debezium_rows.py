"""Decoded Debezium records against what the Python codec reads of the same bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from decimal import Decimal

from tests.spark.decoded import Decoded, Values
from tests.spark.python_rows import stored
from tidesink.codecs.base import Codec
from tidesink.errors import DecodeError
from tidesink.events import ChangeEvent, DdlEvent, Message, Op
from tidesink.sinks.decode.plans import DecodePlan


def place(message: Message) -> tuple[str, int, int]:
    """Where a record stands in Kafka."""
    return message.topic, message.partition, message.offset


def differences(codec: Codec, message: Message, row: Decoded, plan: DecodePlan) -> list[str]:
    """Each member of a decoded record that is not what the codec reads; in words."""
    assert (row.topic, row.partition, row.offset) == place(message)
    found: Values = {"kind": row.kind, "error": row.error, "commit_ts": row.commit_ts}
    found |= {f"key.{name}": value for name, value in (row.key or {}).items()}
    found |= {f"after.{name}": value for name, value in (row.after or {}).items()}
    found["kept"] = tuple(row.raw.get("_kept") or ())
    found["position"] = row.raw["_position"]
    expected = {name: held(name, value, plan) for name, value in _expected(codec, message, row, plan).items()}
    return [
        f"{place(message)} {name}: {found.get(name)!r}, expected {value!r} ({row.reason})"
        for name, value in expected.items()
        if shown(found.get(name)) != shown(value)
    ]


def all_differences(
    codec: Codec, messages: Iterable[Message], rows: Iterable[Decoded], plan: DecodePlan
) -> list[str]:
    """The differences of every record, both in the order of their places."""
    return [
        line
        for message, row in zip(messages, rows, strict=True)
        for line in differences(codec, message, row, plan)
    ]


def held(name: str, value: object, plan: DecodePlan) -> object:
    """A value as the target's column holds it: plain JSON's numbers are 64-bit floats until then."""
    column = plan.shape.by_name.get(name.partition(".")[2].lower())
    if column is not None and column.spark == "float" and isinstance(value, float):
        return struct.unpack("<f", struct.pack("<f", value))[0]
    if column is not None and column.spark == "string" and isinstance(value, int):
        return str(value)  # nothing tells the type of a column that no definition has: it is text
    return value


def shown(value: object) -> str:
    """NaN is itself here; of a decimal the digits behind the point are its column's."""
    return f"{value.normalize():f}" if isinstance(value, Decimal) else repr(value)


def _expected(codec: Codec, message: Message, row: Decoded, plan: DecodePlan) -> Values:
    try:
        events = codec.decode(message)
    except DecodeError as error:
        return {"kind": "bad", "error": type(error).__name__}
    if not events or not isinstance(events[0], ChangeEvent):
        ddl = bool(events) and isinstance(events[0], DdlEvent)
        return {"kind": "ddl" if ddl else "message", "error": None}
    event = events[0]
    if event.op is Op.TRUNCATE:
        return {"kind": "truncate", "error": None, "position": event.position.source_text}
    if event.key is None:  # its key is the config's
        image = event.after or event.before or {}
        event = event._replace(key={name: image[name] for name in plan.shape.keys})
    kept = (event.extension or {}).get("unavailable", ())
    try:
        return {**stored(event, plan.shape), "kept": kept, "position": event.position.source_text}
    except DecodeError as error:  # a day or a time that no target can store
        return {"kind": "bad", "error": type(error).__name__}
