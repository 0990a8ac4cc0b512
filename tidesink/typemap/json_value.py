"""A row's values as JSON: those of ``tidesink decode -o json``, wherever rows are shown or sent as JSON.

Integers are exact (unsigned 64-bit too); FLOAT is the shortest number that names its 32 bits, and what
no JSON number is (Postgres) the text NaN, Infinity or -Infinity; DECIMAL is text at its scale; binary is
``{"base64": …}``; dates, times, JSON and VECTOR are the source's text.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from tidesink.events import ColumnType, Value
from tidesink.typemap.parse import shortest_float32
from tidesink.typemap.table import Reader, row_of

# How a value is read -> what it is in JSON; the others are texts.
_TYPES: Final[Mapping[Reader, str]] = MappingProxyType(
    {
        "integer": "number",
        "unsigned64": "number",
        "bit": "number",
        "float32": "number",
        "float64": "number",
        "boolean": "boolean",
        "binary": '{"base64": string}',
    }
)


def json_type(column_type: ColumnType) -> str:
    """What ``json_value`` makes of a type's values; of an ENUM or SET without members labels or numbers."""
    row = row_of(column_type)
    if row.parameter == "allowed" and column_type.members is None:
        return "string or number"
    return _TYPES.get(row.reader, "string")


def json_value(value: Value, column_type: ColumnType | None = None) -> Any:
    """A value as orjson and json write it; ``column_type`` tells a FLOAT from a DOUBLE."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode("ascii")}
    if isinstance(value, Decimal):
        return format(value, "f")
    if not math.isfinite(value):
        # Postgres stores them. JSON has no such numbers; these are the texts that Kafka Connect writes.
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return shortest_float32(value) if column_type is not None and column_type.name == "float" else value
