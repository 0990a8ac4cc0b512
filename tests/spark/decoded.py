"""Decoded frames as Python values: every column of ``after`` as the target would store it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tests.sessions import raw_table
from tidesink.events import Message
from tidesink.sinks.batch.counts import BatchSummary
from tidesink.sinks.batch.decoded_frame import Decode, DecodePlan, DecodeTask
from tidesink.sinks.batch.records import NO_RULES, ROW_KINDS, EventRules
from tidesink.sinks.batch.summaries import joined_summaries
from tidesink.sinks.batch.tasks import RangeTask, unpack
from tidesink.sinks.kafka.fetch import FetchRange
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


def decode_here(plan: DecodePlan, messages: Sequence[Message]) -> list[Decoded]:
    """The rows of the decoded frame, from the very task that Spark runs, in this process.

    ``tests/contracts/test_targets_codecs.py`` shows that Spark takes what the task gives.
    """
    pickle = CloudPickleSerializer()  # a task has its plan so
    task = pickle.loads(pickle.dumps(DecodeTask(plan)))
    table = pa.Table.from_batches(list(task(raw_table(messages).to_batches()))).combine_chunks()
    values = {name: table[name].to_pylist() for name in table.column_names if name.startswith("_")}
    for struct in ("key", "old_key", "after", "before"):
        if struct in table.column_names:
            values |= _flat(struct, table[struct].combine_chunks())
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return sorted(
        (_row(row, plan) for row in rows), key=lambda row: (row.topic, row.partition, row.offset, row.index)
    )


def _flat(struct: str, column: pa.ChunkedArray | pa.StructArray) -> dict[str, list[Any]]:
    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    fields = {f"{struct}.{one.name}": array.field(one.name) for one in array.type}
    plain = {
        name: field.cast(pa.int64()) if getattr(field.type, "tz", None) else field
        for name, field in fields.items()
    }
    return {f"{struct}?": array.is_valid().to_pylist()} | {
        name: field.to_pylist() for name, field in plain.items()
    }


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


class ReducedHere(NamedTuple):
    """A range as a task packs it: its rows in the columns of the reduced frame, and what was counted."""

    rows: list[dict[str, Any]]
    summary: BatchSummary

    @property
    def to_apply(self) -> list[dict[str, Any]]:
        """Upserts and deletes."""
        return [row for row in self.rows if row["_op"] in ROW_KINDS]


def reduced_here(plan: DecodePlan, messages: Sequence[Message], rules: EventRules = NO_RULES) -> ReducedHere:
    """What the very task that Spark runs makes of messages, in this process; each partition by itself."""
    topic = messages[0].topic
    places = sorted({message.partition for message in messages})
    ranges = tuple(FetchRange(topic, place, 0, 1 << 40) for place in places)
    parts = [[message for message in messages if message.partition == place] for place in places]

    def fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        yield from raw_table(parts[places.index(wanted.partition)]).to_batches()

    pickle = CloudPickleSerializer()  # a task has its plan so
    task = pickle.loads(pickle.dumps(RangeTask(ranges, fetch, plan.with_rules(rules))))
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(ranges)))})
    packed = pa.Table.from_batches(list(task([numbers])))
    rows = [
        row for one in unpack(packed.select(["payload", "error"]).to_batches()) for row in one.to_pylist()
    ]
    heads = packed["summary"].to_pylist()
    summaries = [pickle.loads(head) for head in heads if head is not None]
    return ReducedHere(rows, joined_summaries(summaries))
