"""Columns of values as Arrow arrays: what ``typemap.parse`` does, a column at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from tidesink.change import ColumnType
from tidesink.typemap.render import ZeroDate, spark_type

_DECIMAL: Final = re.compile(r"decimal\(([0-9]+),([0-9]+)\)")
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", "UTC"),
}


def arrow_type(column_type: ColumnType, *, zero_date: ZeroDate = "null", key: bool = False) -> pa.DataType:
    """The Arrow type that holds every value of a column exactly; the twin of ``render.spark_type``.

    In a key column (``key``) a date no calendar has is always an error, so that ``zero_date: text`` changes
    nothing there.
    """
    ddl = spark_type(column_type, zero_date="error" if key else zero_date).ddl
    digits = _DECIMAL.fullmatch(ddl)
    return pa.decimal128(int(digits[1]), int(digits[2])) if digits else _TYPES[ddl]
