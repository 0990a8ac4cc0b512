"""The rows of a reduced batch as the messages of a log have them: the values that the source had.

Used inside a task, on Arrow batches of the frame: the columns of a batch are turned one by one, and only
then stand together as rows, which is what our codecs and JSON take.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa

from tidesink.events import ColumnType, Row, Value
from tidesink.sinks.targets.base import PLACE_COLUMNS, ReducedBatch, ReducedOp
from tidesink.typemap.table import row_of
from tidesink.typemap.target_schema import ShapeColumn, TableShape

COMMIT_TS = "_commit_ts"
_NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)
ToSource = Callable[[Any], Value]


class MessageRow(NamedTuple):
    """One row to send. ``after`` is None for a delete, and has no ``kept`` columns.

    ``place`` is the topic, partition and offset of the event it came from, where the frame says them.
    """

    op: ReducedOp
    key: Row
    after: Row | None
    commit_ts: int | None
    kept: tuple[str, ...]
    place: tuple[str, int, int] | None


def message_columns(batch: ReducedBatch, present: Sequence[str]) -> list[str]:
    """What of a frame's columns is sent to the tasks."""
    more = ["_kept"] if batch.keeps else []
    return ["_op", "key", "after", *more, *(name for name in (COMMIT_TS, *PLACE_COLUMNS) if name in present)]


class MessageRows:
    """Reads the rows of Arrow batches. ``time_zone``: in which TIMESTAMP texts are written."""

    def __init__(self, shape: TableShape, time_zone: str) -> None:
        zone = ZoneInfo(time_zone)
        self._readers = {column.name: _to_source(column, zone) for column in shape.columns}

    def read(self, batch: pa.RecordBatch) -> Iterator[MessageRow]:
        """The rows of one batch of a frame of ``message_columns``."""
        names = batch.schema.names
        count = batch.num_rows
        kept = _listed(batch, "_kept", names) or [None] * count
        commit_ts = _listed(batch, COMMIT_TS, names) or [None] * count
        places = zip(*(_listed(batch, name, names) or () for name in PLACE_COLUMNS), strict=False)
        known: list[Any] = list(places) or [None] * count
        keys, afters = self._rows(batch.column("key")), self._rows(batch.column("after"))
        for at, op in enumerate(batch.column("_op").to_pylist()):
            after, left_out = afters[at], tuple(kept[at] or ())
            if after is not None and left_out:
                after = {name: value for name, value in after.items() if name not in left_out}
            key = keys[at] or {}
            yield MessageRow(op, key, None if op == "delete" else after, commit_ts[at], left_out, known[at])

    def _rows(self, structs: pa.StructArray) -> list[dict[str, Value] | None]:
        names = [structs.type.field(at).name for at in range(structs.type.num_fields)]
        columns = [self._values(structs.field(at), name) for at, name in enumerate(names)]
        there = structs.is_valid().to_pylist()
        rows = zip(*columns, strict=True)
        return [
            dict(zip(names, row, strict=True)) if ok else None for row, ok in zip(rows, there, strict=True)
        ]

    def _values(self, values: pa.Array, name: str) -> list[Value]:
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp("us"))  # of an instant: its UTC clock
        found: list[Value] = values.to_pylist()
        read = self._readers[name]
        return found if read is None else [None if value is None else read(value) for value in found]


def _listed(batch: pa.RecordBatch, name: str, names: Sequence[str]) -> list[Any] | None:
    return batch.column(name).to_pylist() if name in names else None


def _to_source(column: ShapeColumn, zone: ZoneInfo) -> ToSource | None:
    """What turns a target's value back into the source's; None where it is that already."""
    reader = row_of(column.type).reader
    if reader in ("integer", "unsigned64", "bit") and column.spark.startswith("decimal"):
        return int
    if reader == "decimal":
        return Decimal if column.spark == "string" else None
    if reader in ("enum", "set") and column.type.members is None:
        return _number_or_label
    if column.spark == "date":
        return date.isoformat
    if column.spark == "timestamp_ntz":
        return lambda value: _clock(value, column.type)
    if column.spark == "timestamp":
        offset = "+00:00" if reader == "instant" else ""
        own = ZoneInfo("UTC") if offset else zone
        return lambda value: _clock(_in_zone(value, own), column.type) + offset
    return None


def _number_or_label(text: str) -> Value:
    """Of an ENUM or SET whose members nothing tells, canal-json has the numbers."""
    return int(text) if _NUMBER.fullmatch(text) else text


def _in_zone(value: datetime, zone: ZoneInfo) -> datetime:
    return value.replace(tzinfo=timezone.utc).astimezone(zone).replace(tzinfo=None)


def _clock(value: datetime, column_type: ColumnType) -> str:
    """A moment's text: as many digits of a second as the type has, or as few as tell it."""
    text = value.isoformat(sep=" ", timespec="microseconds")
    whole, _, fraction = text.partition(".")
    if column_type.fsp is not None:
        fraction = fraction.ljust(6, "0")[: column_type.fsp] if _fits(fraction, column_type.fsp) else fraction
        return f"{whole}.{fraction}" if fraction else whole
    return f"{whole}.{fraction}" if fraction.strip("0") else whole


def _fits(fraction: str, fsp: int) -> bool:
    return not fraction[fsp:].strip("0")
