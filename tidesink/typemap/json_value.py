"""A row's values as JSON: those of ``tidesink decode -o json``, wherever rows are shown or sent as JSON.

Integers are exact (unsigned 64-bit too); FLOAT is the shortest number that names its 32 bits, and what
no JSON number is (Postgres) the text NaN, Infinity or -Infinity; DECIMAL is text at its scale; binary is
``{"base64": …}``; dates, times, JSON and VECTOR are the source's text.
"""

from __future__ import annotations

import math
from base64 import b64encode
from decimal import Decimal
from typing import Any

from tidesink.change import ColumnType, Value
from tidesink.typemap.parse import shortest_float32


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
