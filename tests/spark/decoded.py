"""What tasks make of messages, as Python values: every column as the target would store it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer

from tests.sessions import raw_table
from tidesink.codecs.base import Codec
from tidesink.codecs.batch import ChangeTable, DecodedBatch, ValueOptions, rows_from_events
from tidesink.events import ChangeEvent, Event, Message, Op, TableId, TableSchema
from tidesink.sinks.batch.change_log import change_keys
from tidesink.sinks.batch.source import KafkaSource, RangeFrame, reduced_ranges
from tidesink.sinks.batch.summaries import joined_summaries
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.plans import DecodePlan
from tidesink.sinks.decode.records import (
    MESSAGE,
    NO_RULES,
    TRUNCATE,
    DecodedRecords,
    EventRules,
    TableDecoder,
    decoded_records,
)
from tidesink.sinks.decode.target_rows import source_texts
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.laws.counts import BatchSummary
from tidesink.sinks.laws.reduce import WARNING
from tidesink.sinks.spark.payloads import DELETE, ROW_KINDS, UPSERT, unpack
from tidesink.typemap.target_schema import TargetColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
Values = dict[str, Any]


@dataclass(frozen=True)
class Decoded:
    """One decoded event; ``key``, ``old_key``, ``after`` and ``before`` by column name."""

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


def decode_here(plan: DecodePlan, messages: Sequence[Message] | pa.RecordBatch) -> list[Decoded]:
    """What a task decodes, before it reduces: the events of the messages, by their place in Kafka."""
    batches = [messages] if isinstance(messages, pa.RecordBatch) else raw_table(messages).to_batches()
    pickle: Any = CloudPickleSerializer()  # a task has its plan so
    plan = pickle.loads(pickle.dumps(plan))
    rows = [
        row
        for batch in batches
        for row in _rows(
            decoded_records(batch, plan.decoder, plan.rows, logs=plan.logs, rules=plan.rules), plan
        )
    ]
    return sorted(
        (_row(row, plan) for row in rows), key=lambda row: (row.topic, row.partition, row.offset, row.index)
    )


def _rows(found: DecodedRecords, plan: DecodePlan) -> Iterator[Values]:
    for table in found.tables:
        yield from _changes(table, plan)
    for one in found.others:
        yield _NOTHING | {name: getattr(one, member) for name, member in _OF_OTHERS.items()}
    for silent in found.silent:
        for place in silent.to_pylist():
            at = {f"_{name}": value for name, value in place.items()}
            yield _NOTHING | at | {"_kind": MESSAGE, "_index": 0}


_OF_OTHERS: Final = {
    "_topic": "topic",
    "_partition": "partition",
    "_offset": "offset",
    "_index": "index",
    "_kind": "kind",
    "_commit_ts": "commit_ts",
    "_error": "error",
    "_reason": "reason",
    "_schema_key_id": "key_id",
    "_schema_value_id": "value_id",
    "_fields": "fields",
    "_key": "key",
    "_value": "value",
}
_NOTHING: Final = dict.fromkeys(
    (*_OF_OTHERS, "_zero_dates", "_wire_op", "_kept", "_change", "_before_kept", "_position")
)
_KINDS: Final = {Op.DELETE.value: DELETE, Op.TRUNCATE.value: TRUNCATE}


def _changes(table: ChangeTable, plan: DecodePlan) -> Iterator[Values]:
    """Row changes and truncates."""
    whole, rows, count = table.rows, plan.rows, table.rows.num_rows
    key, old_key = change_keys(table, rows, old_keys=plan.decoder.old_keys)
    before, before_kept = plan.decoder.old_rows(table) if plan.logs else (None, None)
    columns = {
        **{f"_{name}": whole[name] for name in ("topic", "partition", "offset", "index", "commit_ts")},
        "_op": whole["op"],
        "_reason": whole[WARNING] if WARNING in whole.column_names else pa.nulls(count),
        "_zero_dates": rows.names(whole["zero_dates"].combine_chunks()),
        "_kept": rows.names(whole["unavailable"].combine_chunks()) if plan.keeps_values else pa.nulls(count),
        "_before_kept": pa.nulls(count) if before_kept is None else rows.names(before_kept),
        "_position": source_texts(whole["source"].combine_chunks()),
        **_flat("key", key),
        **_flat("old_key", old_key),
        **_flat("after", rows.row(table, whole["after"].combine_chunks())),
        **({} if before is None else _flat("before", rows.row(table, before))),
    }
    for row in zip(
        *(column if isinstance(column, list) else column.to_pylist() for column in columns.values()),
        strict=True,
    ):
        found = dict(zip(columns, row, strict=True))
        op = found.pop("_op")
        written = op not in _KINDS
        change = None if op == Op.TRUNCATE.value else op
        own = {
            "_kind": _KINDS.get(op, UPSERT),
            "_change": change,
            "_wire_op": op if op in _WIRE_OPS else None,
        }
        yield _NOTHING | found | own | ({} if written else {"_zero_dates": None, "_kept": None})


_WIRE_OPS: Final = (Op.INSERT.value, Op.UPDATE.value)


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


def _row(row: Values, plan: DecodePlan) -> Decoded:
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


def _struct(row: Values, struct: str, columns: tuple[TargetColumn, ...]) -> Values | None:
    if not row.get(f"{struct}?"):
        return None
    return {column.name: _value(row[f"{struct}.{column.name}"], column) for column in columns}


def _value(value: Any, column: TargetColumn) -> Any:
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
    pickle: Any = CloudPickleSerializer()  # a task has its plan so
    task = pickle.loads(pickle.dumps(RangeTask(_ranges(messages), replace(plan, rules=rules))))
    packed = pa.Table.from_batches(
        [one for wanted in task.ranges for one in task.packed(wanted, _part(messages, wanted))]
    )
    rows = [
        row for one in unpack(packed.select(["payload", "error"]).to_batches()) for row in one.to_pylist()
    ]
    heads = packed["summary"].to_pylist()
    summaries = [pickle.loads(head) for head in heads if head is not None]
    return ReducedHere(rows, joined_summaries(summaries))


def reduced_in_spark(
    spark: SparkSession, plan: DecodePlan, messages: Sequence[Message], rules: EventRules = NO_RULES
) -> RangeFrame:
    """The same by Spark, with what it does over several partitions and for a filter."""
    task = RangeTask(_ranges(messages), replace(plan, rules=rules))
    return reduced_ranges(spark, task, KafkaSource(partial(_part, messages)))


def _ranges(messages: Sequence[Message]) -> tuple[FetchRange, ...]:
    """A range for each partition."""
    topic = messages[0].topic if messages else "t"
    places = sorted({message.partition for message in messages}) or [0]
    return tuple(FetchRange(topic, place, 0, 1 << 40) for place in places)


def _part(messages: Sequence[Message], wanted: FetchRange) -> Iterator[pa.RecordBatch]:
    """The records of a range."""
    part = [one for one in messages if one.partition == wanted.partition]
    yield from raw_table(part).to_batches(max_chunksize=5)


@dataclass(frozen=True)
class GivenEvents(TableDecoder):
    """Decodes messages (``messages_of``) to the events that it was made with."""

    events: Sequence[ChangeEvent]
    schema: TableSchema

    @property
    def table(self) -> TableId:  # type: ignore[override]  # a field of the worker's decoders
        return self.schema.table

    @property
    def values(self) -> ValueOptions:
        return ValueOptions()

    @property
    def _codec(self) -> Codec:
        raise NotImplementedError

    def decode(self, message: Message) -> tuple[Event, ...]:
        return (self.events[int(message.value or b"")]._replace(schema=self.schema),)

    def decode_batch(self, records: pa.RecordBatch) -> DecodedBatch:
        return rows_from_events(records, self.decode, self.values)


def messages_of(events: Sequence[ChangeEvent]) -> list[Message]:
    """A message for each event, at its place."""
    return [
        Message("t", event.position.partition, event.position.offset, b"k", str(at).encode())
        for at, event in enumerate(events)
    ]
