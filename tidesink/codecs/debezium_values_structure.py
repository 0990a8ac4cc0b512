"""Arrays, maps, structs and geometries of Debezium: to JSON text and to EWKB.

JSON text is written one way, so that equal values are equal text: keys sorted, no spaces, decimals with
all their digits, binary as base64, NaN and the infinities as text, as Debezium has them.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final

from tidesink.errors import SchemaMismatchError, ValueOutOfRangeError, shown

Structure = object

_NON_FINITE: Final = {math.inf: '"Infinity"', -math.inf: '"-Infinity"'}
_WKB_LITTLE: Final = 1
_WKB_POINT: Final = 1
# PostGIS sets this bit of the geometry's type where an SRID follows it (EWKB).
_HAS_SRID: Final = 0x2000_0000
_WKB_HEADER: Final = 5
MOST_LEVELS: Final = 32


def json_text(value: Structure) -> str:
    """JSON text of nested lists, mappings and values.

    Raises:
        ValueOutOfRangeError: nested deeper than 32 levels.
    """
    return _json(value, 0)


def _json(value: Structure, level: int) -> str:
    if level > MOST_LEVELS:
        raise ValueOutOfRangeError(f"a value is nested deeper than {MOST_LEVELS} levels")
    if isinstance(value, Mapping):
        members = sorted((str(key), one) for key, one in value.items())
        return "{" + ",".join(f"{_quoted(key)}:{_json(one, level + 1)}" for key, one in members) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_json(one, level + 1) for one in value) + "]"
    return _scalar(value)


def _scalar(value: object) -> str:
    if value is None or isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bytes):
        return _quoted(base64.b64encode(value).decode("ascii"))
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else _quoted(str(value))
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, int):
        return str(value)
    raise SchemaMismatchError(f"{shown(value)} is nothing that an array, a map or a struct of Connect holds")


def _float(value: float) -> str:
    if math.isnan(value):
        return '"NaN"'
    return _NON_FINITE.get(value) or repr(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def ewkb(raw: Mapping[str, object], read_bytes: Callable[[object], bytes]) -> bytes:
    """A geometry's WKB with its SRID in it (EWKB), plain WKB where it has none.

    Debezium's struct has ``wkb`` and ``srid``, of a point ``x`` and ``y`` besides. What has an SRID in its
    bytes already, as PostGIS writes it, stays as it is.

    Raises:
        DecodeError: the struct holds no geometry.
    """
    wkb, srid = raw.get("wkb"), raw.get("srid")
    data = _point(raw) if wkb is None else read_bytes(wkb)
    if srid is None:
        return data
    if not isinstance(srid, int) or not -(1 << 31) <= srid < 1 << 31:
        raise SchemaMismatchError(f"the SRID {shown(srid)} of a geometry is no 32-bit integer")
    if len(data) < _WKB_HEADER or data[0] not in (0, 1):
        raise ValueOutOfRangeError(f"{shown(data)} is no geometry in WKB")
    order = "<" if data[0] == _WKB_LITTLE else ">"
    (kind,) = struct.unpack_from(f"{order}I", data, 1)
    if kind & _HAS_SRID:
        return data
    return data[:1] + struct.pack(f"{order}Ii", kind | _HAS_SRID, srid) + data[_WKB_HEADER:]


def _point(raw: Mapping[str, object]) -> bytes:
    x, y = raw.get("x"), raw.get("y")
    if not isinstance(x, float | int | Decimal) or not isinstance(y, float | int | Decimal):
        raise SchemaMismatchError(f"{shown(dict(raw))} is no geometry: it has neither wkb nor x and y")
    return struct.pack("<BIdd", _WKB_LITTLE, _WKB_POINT, x, y)
