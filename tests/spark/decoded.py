"""Decoded frames as Python values: every column of ``after`` as the target would store it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.sinks.batch.decoded_frame import Decode
from tidesink.typemap.target_schema import ShapeColumn

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
Values = dict[str, Any]


@dataclass(frozen=True)
class Decoded:
    """One row of a decoded frame; ``key``, ``old_key``, ``after`` and ``before`` by column name."""

    topic: str
    partition: int
    offset: int
    index: int
    kind: str
    commit_ts: int | None
    error: str | None
    reason: str | None
    zero_dates: tuple[str, ...]
    key: Values | None
    old_key: Values | None
    after: Values | None
    raw: Values
    before: Values | None = None


def collect(decoded: DataFrame, plan: Decode) -> list[Decoded]:
    """The rows of a decoded frame, by position."""
    shape = plan.shape
    rows = decoded.select(
        *(name for name in decoded.columns if name.startswith("_")),
        *_columns("key", shape.key_columns),
        *_columns("old_key", shape.key_columns),
        *_columns("after", shape.columns),
        *(_columns("before", shape.columns) if "before" in decoded.columns else ()),
    ).collect()
    found = [_row(row.asDict(), plan) for row in rows]
    return sorted(found, key=lambda row: (row.topic, row.partition, row.offset, row.index))


def _columns(struct: str, columns: tuple[ShapeColumn, ...]) -> list[Column]:
    there = F.col(struct).isNotNull().alias(f"{struct}?")
    return [there, *(_plain(struct, column) for column in columns)]


def _plain(struct: str, column: ShapeColumn) -> Column:
    value = F.col(struct).getField(column.name)
    # PySpark gives an instant in this process's own zone, where some hours come twice.
    plain = F.unix_micros(value) if column.spark == "timestamp" else value
    return plain.alias(f"{struct}.{column.name}")


def _row(row: Values, plan: Decode) -> Decoded:
    shape = plan.shape
    return Decoded(
        row["_topic"],
        row["_partition"],
        row["_offset"],
        row["_index"],
        row["_kind"],
        row["_commit_ts"],
        row["_error"],
        row["_reason"],
        tuple(row["_zero_dates"] or ()),
        _struct(row, "key", shape.key_columns),
        _struct(row, "old_key", shape.key_columns),
        _struct(row, "after", shape.columns),
        row,
        _struct(row, "before", shape.columns),
    )


def _struct(row: Values, struct: str, columns: tuple[ShapeColumn, ...]) -> Values | None:
    if not row.get(f"{struct}?"):
        return None
    return {column.name: _value(row[f"{struct}.{column.name}"], column) for column in columns}


def _value(value: Any, column: ShapeColumn) -> Any:
    if value is None:
        return None
    if column.spark == "timestamp":
        return _EPOCH + timedelta(microseconds=value)
    return bytes(value) if isinstance(value, bytearray) else value
