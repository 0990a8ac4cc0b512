"""``unavailable.value.placeholder``: what stands for a value the connector could not have.

PostgreSQL sends a value kept out of line (TOAST) only where it changed, Oracle a LOB only where a
statement set it. Debezium then writes the placeholder in the column's own type (3.5 and its main branch,
``UnchangedToastedPlaceholder``): text as it is, bytes its UTF-8, an hstore map from it to itself, an array
of text or bytes with it alone, an array of UUIDs the UUID of its bytes, any other array its bytes as
numbers, a geometry a point nobody has. With binary.handling.mode base64 it writes null, which nothing
tells from a real null.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import uuid
from decimal import Decimal
from typing import Final

from tidesink.codecs.connect_schema import ConnectSchema
from tidesink.codecs.debezium_values_decimals import scale_of
from tidesink.codecs.debezium_values_modes import DebeziumModes

_GEOMETRY: Final = bytes.fromhex("0101000020E6100000000000FC83D797C1000000FC83D797C1")
_GEOGRAPHY: Final = bytes.fromhex("0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640")
_NOWHERE: Final = -99_999_999.0
_POINT: Final = struct.pack("<BIdd", 1, 1, _NOWHERE, _NOWHERE)
_SRID: Final = 4326


def placeholders(schema: ConnectSchema, modes: DebeziumModes) -> tuple[object, ...]:
    """The values of a schema, as the wire has them, that stand for an unavailable one."""
    text = modes.placeholder
    if text is None:
        return ()
    if schema.type == "string":
        return (text, *_encoded(text, modes))
    if schema.type == "bytes":
        return _bytes(text.encode())
    if schema.type == "array":
        return _arrays(schema.items, text)
    if schema.type == "map":
        return {text: text}, [[text, text]], [{"key": text, "value": text}]
    return _geometries() if schema.type == "struct" else ()


def _bytes(data: bytes) -> tuple[object, object]:
    """Bytes as Avro has them and as JSON has them."""
    return data, base64.b64encode(data).decode("ascii")


def _encoded(text: str, modes: DebeziumModes) -> tuple[str, ...]:
    data = text.encode()
    if modes.binary_handling_mode == "hex":
        return (data.hex(),)
    if modes.binary_handling_mode in ("base64", "base64-url-safe"):
        return base64.b64encode(data).decode("ascii"), base64.urlsafe_b64encode(data).decode("ascii")
    return ()


def _arrays(items: ConnectSchema | None, text: str) -> tuple[object, ...]:
    """What an array of these items holds; of unknown items (plain JSON) any of it."""
    kind, data = None if items is None else items.type, text.encode()
    found: list[object] = []
    if kind in (None, "string"):
        found += [[text], [str(_uuid(data))]]
    if kind in (None, "bytes"):
        found += [[one] for one in _bytes(data)]
        found += [list(forms) for forms in zip(*(_bytes(bytes([byte])) for byte in data), strict=True)]
        scale = (scale_of(items) or 0) if items is not None else 0
        found.append([Decimal(byte).scaleb(-scale) for byte in data])
    if kind in (None, "int16", "int32", "int64", "float32", "float64"):
        found.append(list(data))
    if kind == "boolean":
        found.append([True] * len(data))
    if kind in (None, "struct"):
        forms = zip(*(_bytes(bytes([byte])) for byte in data), strict=True)
        found += [[{"scale": 0, "value": value} for value in form] for form in forms]
    return tuple(found)


def _uuid(data: bytes) -> uuid.UUID:
    """Java's ``UUID.nameUUIDFromBytes``: version 3 of the bytes alone."""
    return uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3)


def _geometries() -> tuple[object, ...]:
    areas = [{"wkb": wkb, "srid": _SRID} for data in (_GEOMETRY, _GEOGRAPHY) for wkb in _bytes(data)]
    points = [{"x": _NOWHERE, "y": _NOWHERE, "wkb": wkb, "srid": None} for wkb in _bytes(_POINT)]
    return (*areas, *points)
