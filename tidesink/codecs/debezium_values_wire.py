"""One value between its Connect form and ours, by schema alone: a reader for each form.

A reader takes what fastavro gives with logical types left out (or with them), or what a JSON parser
gives that reads numbers with a fraction as Decimal. Bytes are base64 in JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from functools import partial
from typing import Final

from tidesink.codecs import debezium_values_time as times
from tidesink.codecs.connect_schema import ConnectSchema
from tidesink.codecs.debezium_values_decimals import bits, unscaled, variable_scale
from tidesink.codecs.debezium_values_scalars import (
    INTEGER_BITS,
    boolean,
    bytes_reader,
    checked_text,
    floating,
    integer,
    mismatch,
)
from tidesink.codecs.debezium_values_structure import ewkb, json_text
from tidesink.events import Value
from tidesink.typemap.debezium_types import Form, semantic_type

WireReader = Callable[[object], Value]
# A value inside an array, a map or a struct may be one itself.
Nested = Callable[[object], object]

_MS: Final = 1_000
_US: Final = 1_000_000
_NS: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND: Final = timedelta(microseconds=1)


def wire_reader(schema: ConnectSchema) -> WireReader:
    """A reader of one schema's values, null excepted.

    The reader raises DecodeError: SchemaMismatchError where a value is not of the schema's type,
    ValueOutOfRangeError where it is none of the semantic type's values.
    """
    semantic = semantic_type(schema.name, schema.type)
    if semantic is None or semantic.form == "plain":
        return _PLAIN[schema.type](schema)
    return _FORMS[semantic.form](schema)


def _structure(schema: ConnectSchema) -> WireReader:
    nested = nested_reader(schema)
    return lambda raw: json_text(nested(raw))


def nested_reader(schema: ConnectSchema) -> Nested:
    """A reader that keeps arrays, maps and structs as lists and mappings, for what is inside another."""
    semantic = semantic_type(schema.name, schema.type)
    if semantic is not None and semantic.form != "structure":
        return wire_reader(schema)
    kind = _NESTED.get(schema.type)
    return wire_reader(schema) if kind is None else kind(schema)


def _optional(schema: ConnectSchema | None) -> Nested:
    # Debezium sends null inside of what it says is required: a two-dimensional array's rows.
    read = nested_reader(schema) if schema is not None else _as_is
    return lambda raw: None if raw is None else read(raw)


def _as_is(raw: object) -> object:
    return raw


def _array(schema: ConnectSchema) -> Nested:
    read = _optional(schema.items)

    def items(raw: object) -> object:
        if not isinstance(raw, list):
            raise mismatch(raw, schema)
        return [read(one) for one in raw]

    return items


def _map(schema: ConnectSchema) -> Nested:
    read_key, read = _optional(schema.keys), _optional(schema.values)

    def entries(raw: object) -> object:
        return {str(read_key(key)): read(one) for key, one in _entries(raw, schema)}

    return entries


def _entries(raw: object, schema: ConnectSchema) -> list[tuple[object, object]]:
    """A map's entries: an object, or an array of entries where its keys are not text.

    Avro's are records of key and value (AvroData), JSON's arrays of two (JsonConverter).
    """
    if isinstance(raw, Mapping):
        return list(raw.items())
    if not isinstance(raw, list):
        raise mismatch(raw, schema)
    found: list[tuple[object, object]] = []
    for one in raw:
        if isinstance(one, Mapping) and set(one) == {"key", "value"}:
            found.append((one["key"], one["value"]))
        elif isinstance(one, list) and len(one) == 2:
            found.append((one[0], one[1]))
        else:
            raise mismatch(raw, schema)
    return found


def _struct(schema: ConnectSchema) -> Nested:
    readers = [(field.name, field.wire, _optional(field.schema)) for field in schema.fields]

    def members(raw: object) -> object:
        if not isinstance(raw, Mapping):
            raise mismatch(raw, schema)
        return {name: read(raw.get(wire)) for name, wire, read in readers}

    return members


_NESTED: Final[dict[str, Callable[[ConnectSchema], Nested]]] = {
    "array": _array,
    "map": _map,
    "struct": _struct,
}


def _counted(schema: ConnectSchema, text: Callable[[int], str]) -> WireReader:
    read = integer(schema)
    return lambda raw: text(read(raw if type(raw) is int else _units(raw, schema)))


def _units(raw: object, schema: ConnectSchema) -> object:
    """The number behind a Python date or time, which fastavro gives for a logical type."""
    if isinstance(raw, datetime):
        return (raw - _EPOCH) // _MICROSECOND // _MS
    if isinstance(raw, date):
        return (raw - _EPOCH.date()).days
    if isinstance(raw, time):
        return (datetime.combine(_EPOCH, raw, timezone.utc) - _EPOCH) // _MICROSECOND // _MS
    raise mismatch(raw, schema)


def _days(schema: ConnectSchema) -> WireReader:
    return _counted(schema, times.date_text)


def _time(per_second: int, schema: ConnectSchema) -> WireReader:
    return _counted(schema, lambda units: times.time_text(units, per_second))


def _timestamp(per_second: int, schema: ConnectSchema) -> WireReader:
    return _counted(schema, lambda units: times.timestamp_text(units, per_second))


def _iso(kind: str, schema: ConnectSchema, *, zoned: bool = False, timed: bool = True) -> WireReader:
    read, checked = times.iso_reader(kind, zoned=zoned, timed=timed), checked_text(schema)
    return lambda raw: read(checked(raw))


def _iso_time(schema: ConnectSchema) -> WireReader:
    checked = checked_text(schema)
    return lambda raw: times.iso_time_text(checked(raw))


def _geometry(schema: ConnectSchema) -> WireReader:
    read = bytes_reader(replace(schema, name="geometry"))

    def geometry(raw: object) -> bytes:
        if not isinstance(raw, Mapping):
            raise mismatch(raw, schema)
        return ewkb(raw, read)

    return geometry


_PLAIN: Final[dict[str, Callable[[ConnectSchema], WireReader]]] = {
    **dict.fromkeys(INTEGER_BITS, integer),
    "float32": floating,
    "float64": floating,
    "boolean": boolean,
    "string": checked_text,
    "bytes": bytes_reader,
    "array": _structure,
    "map": _structure,
    "struct": _structure,
}

_FORMS: Final[dict[Form, Callable[[ConnectSchema], WireReader]]] = {
    "days": _days,
    "time_ms": partial(_time, _MS),
    "time_us": partial(_time, _US),
    "time_ns": partial(_time, _NS),
    "timestamp_ms": partial(_timestamp, _MS),
    "timestamp_us": partial(_timestamp, _US),
    "timestamp_ns": partial(_timestamp, _NS),
    "iso_date": partial(_iso, "date", timed=False),
    "iso_time": _iso_time,
    "iso_timestamp": partial(_iso, "date and time"),
    "zoned_timestamp": partial(_iso, "date and time with an offset", zoned=True),
    "unscaled": unscaled,
    "variable_scale": variable_scale,
    "bits": bits,
    "geometry": _geometry,
    "structure": _structure,
}
