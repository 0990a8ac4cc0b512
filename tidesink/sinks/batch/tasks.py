"""What a Spark task does with one range of offsets: fetch, decode, reduce, and pack as Arrow IPC.

It runs in a Python worker and needs no Spark itself. The records are fetched with librdkafka, decoded by the
codec's ``decode_batch``, reduced to one row a key (or, of a log, made a row for each image), and put into the
columns of the target. What comes out is one row for each payload (``PACKED_DDL``): counts for the driver, and
rows in the columns of ``reduced_schema`` as an Arrow IPC stream. No row passes through the driver. Rows that
a target stages (``RangeTask.sink``) are brought there, and only what is no row is packed. Under a row filter
the task has two parts, and Spark stands between them (``batch.filtering``).

One key lives in one partition under ``sequence_by: kafka``, so that a range is reduced by itself;
``mixed_hashes`` finds the keys that came in two.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import MARKS, NAMES_TYPE, ChangeTable
from tidesink.errors import ConfigError, TidesinkError
from tidesink.sinks.batch.change_log import log_rows
from tidesink.sinks.batch.counts import Place
from tidesink.sinks.batch.cuts import up_to_bound
from tidesink.sinks.batch.decoders import DecodePlan
from tidesink.sinks.batch.filtering import Verdicts, decoded_chunk, verdicts_of
from tidesink.sinks.batch.records import (
    COUNTED_KINDS,
    UNPLANNED,
    DecodedRecords,
    OtherRecord,
    decoded_records,
)
from tidesink.sinks.batch.reduce import (
    WARNING,
    Order,
    ReducedTable,
    Reduction,
    key_hashes,
    name_lists,
    reduce_tables,
)
from tidesink.sinks.batch.summaries import range_summary, truncated
from tidesink.sinks.batch.target_rows import event_words, key_type, row_type
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange
from tidesink.sinks.spark.payloads import DELETE, UPSERT, ipc_stream
from tidesink.sinks.targets.base import RowSink
from tidesink.sinks.targets.modes import INDEX

# Gives the records of a range, as ``sinks.kafka.fetch`` does; travels to the tasks by pickle.
Fetch = Callable[[FetchRange], Iterator[pa.RecordBatch]]
# Makes rows of a range and its records; travels to the tasks by pickle.
Work = Callable[[FetchRange, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
PACKED_DDL: Final = (
    "topic string, partition int, records bigint, bytes bigint, decoded bigint, row_by_row_records bigint, "
    "strangers bigint, ddl bigint, hashes binary, summary binary, staged binary, payload binary, error binary"
)
# Columns of numbers, which are those of a range as a whole, in its first payload.
_COUNTS: Final = ("records", "bytes", "decoded", "row_by_row_records", "strangers", "ddl")
# A payload ends before either.
_PAYLOAD_ROWS: Final = 50_000
_PAYLOAD_BYTES: Final = 8 << 20
# A range is decoded as a whole, and an Arrow array of text holds less than 2 GiB.
MOST_BYTES: Final = 1 << 30
_PACKED: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("decoded", pa.int64()),
        ("row_by_row_records", pa.int64()),
        ("strangers", pa.int64()),
        ("ddl", pa.int64()),
        ("hashes", pa.binary()),
        ("summary", pa.binary()),
        ("staged", pa.binary()),
        ("payload", pa.binary()),
        ("error", pa.binary()),
    ]
)
_DETAIL: Final = pa.struct(
    [
        ("error", pa.string()),
        ("reason", pa.string()),
        ("key_id", pa.int64()),
        ("value_id", pa.int64()),
        ("fields", pa.list_(pa.string())),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("time", pa.int64()),
    ]
)
_SEQUENCE: Final = pa.struct(
    [
        ("source", pa.list_(pa.int64())),
        ("writes", pa.bool_()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("index", pa.int32()),
    ]
)


def reduced_schema(plan: DecodePlan) -> pa.Schema:
    """The columns of a plan's reduced frame: rows to apply, bad records, DDL events, and truncates.

    ================  ========  ========================================================================
    column            type      meaning
    ================  ========  ========================================================================
    ``_op``           string    one of ``records.KINDS``: ``upsert``, ``delete``, ``bad``, ...
    ``key``           struct    the key, null for what is no row
    ``after``         struct    the row to write, for ``upsert`` alone; of a delete that is marked its
                                metadata columns, where the table has any
    ``_topic``        string    where the event that stays is from, as the next two say
    ``_partition``    int
    ``_offset``       bigint
    ``_commit_ts``    bigint    of the event that stays
    ``_half``         boolean   an update's other row: the delete of a key before it, or in a log the row
                                before it; its event is counted with the row that the update wrote
    ``_zero_dates``   array     names of columns whose date no calendar has, made null
    ``_ambiguous_times`` array  names of columns whose local time comes twice, so that a policy chose
    ``_detail``       struct    of what is no row: error, reason, key_id, value_id, fields, key, value, and
                                Kafka's time where the task read it; of a row with a warning: the reason
    ``_kept``         array     of a plan that ``keeps_values``: columns of ``after`` whose value the source
                                did not send, so that what is stored stays; null for none
    ``_after_delete`` boolean   likewise: the batch deletes the key before this row, so that nothing stored is
                                the row's
    ``_seq``          struct    in the source's order: the position of the event that stays, as
                                ``targets.base.SEQUENCE_DDL`` says
    ================  ========  ========================================================================

    Keys are compared as exact values, text byte by byte, whatever collation the source has: a source that
    holds 'a' and 'A' for one key never sends them as two rows.
    """
    shape = plan.packed_shape
    kept = (("_kept", NAMES_TYPE), ("_after_delete", pa.bool_()))
    return pa.schema(
        [
            ("_op", pa.string()),
            ("key", key_type(shape)),
            ("after", row_type(shape)),
            ("_topic", pa.string()),
            ("_partition", pa.int32()),
            ("_offset", pa.int64()),
            ("_commit_ts", pa.int64()),
            ("_half", pa.bool_()),
            *((f"_{mark}", NAMES_TYPE) for mark in MARKS),
            ("_detail", _DETAIL),
            *(kept if plan.keeps_values and not plan.logs else ()),
            *([("_seq", _SEQUENCE)] if plan.rules.sequenced else ()),
        ]
    )


class RangeTooLargeError(ConfigError):
    """A range holds more than a task decodes as a whole: its records are heavier than those before it."""

    @classmethod
    def of(cls, wanted: FetchRange, most_bytes: int) -> RangeTooLargeError:
        """The error of a range."""
        return cls(
            f"A batch of one partition has more than {most_bytes >> 20} MiB. Lower batch.max-bytes.",
            topic=wanted.topic,
            partition=wanted.partition,
        )


class Restriction(Protocol):
    """Keeps a part of the records."""

    def of(self, found: DecodedRecords, plan: DecodePlan) -> DecodedRecords:
        """What is kept; the counts of records stay."""

    def rows(self, reduction: Reduction) -> Reduction:
        """What is kept of the rows that these records make."""


@dataclass(frozen=True)
class RangeTask:
    """Decode, reduce and pack ranges, each with the records that it is given.

    ``only``: what is kept of the records; None: all. ``most_bytes``: of what is kept of one range, decoded.
    ``sink``: takes the rows to apply, which are then in no payload, and its answer is in the column
    ``staged``. ``was_read``: the ranges were read under the bound before, so that no watermark ends them.
    """

    ranges: tuple[FetchRange, ...]
    plan: DecodePlan
    most_bytes: int = MOST_BYTES
    only: Restriction | None = None
    sink: RowSink | None = None
    was_read: bool = False

    @classmethod
    def of(
        cls, ranges: Iterable[OffsetRange], topic_id: str, plan: DecodePlan, sink: RowSink | None = None
    ) -> RangeTask:
        """The task of a batch, whose fetches read what the plan's decoder uses of a record.

        ``topic_id``: Kafka must still say it after a read.
        """
        used = plan.decoder.uses_timestamps, plan.decoder.uses_headers
        wanted = (FetchRange(*one, topic_id, *used) for one in ranges if one.records)
        return cls(tuple(wanted), plan, sink=sink)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows in the payloads."""
        return reduced_schema(self.plan)

    def chunks(self, wanted: FetchRange, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What a range holds as rows for the plan's filter, before ``filtered``."""
        plan = self.plan
        assert plan.row_filter is not None  # noqa: S101  (asked for where there is one)
        # A range without a record is a chunk too: it is counted.
        found = chain([DecodedRecords()], self._kept(wanted, self._decoded(records)))
        for chunk in _with_error(wanted, found):
            yield decoded_chunk(wanted, chunk, plan.row_filter, plan.rows)

    def filtered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The payloads of the chunks, by what Spark says of their rows."""
        for wanted, chunks in groupby(verdicts_of(batches), attrgetter("wanted")):
            yield from self._payloads(wanted, map(self._applied, chunks))

    def _applied(self, verdicts: Verdicts) -> DecodedRecords:
        """A chunk with the filter applied; raises the error that it is."""
        assert self.plan.row_filter is not None  # noqa: S101  (asked for where there is one)
        if isinstance(verdicts.chunk, TidesinkError):
            raise verdicts.chunk
        return self.plan.row_filter.applied(verdicts.chunk, verdicts.said, self.plan.rows)

    def packed(self, wanted: FetchRange, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The payloads of one range. An error of ours is one payload with it, so that it keeps its class."""
        yield from self._payloads(wanted, self._decoded(records))

    def _payloads(self, wanted: FetchRange, found: Iterable[DecodedRecords]) -> Iterator[pa.RecordBatch]:
        try:
            whole = DecodedRecords()
            for more in self._kept(wanted, found):
                whole.add(more)
            yield from _pack(wanted, whole, self)
        except TidesinkError as error:
            yield _packed_row(wanted, error=pickle.dumps(error))
        except Exception as error:
            raise _failed(wanted) from error

    def _kept(self, wanted: FetchRange, found: Iterable[DecodedRecords]) -> Iterator[DecodedRecords]:
        size = 0
        for more in map(self._restricted, found):
            # What stays in memory: a record with its schema is much more than its row, a compressed one less.
            size += more.nbytes
            if size > self.most_bytes:
                raise RangeTooLargeError.of(wanted, self.most_bytes)
            yield more

    def _restricted(self, found: DecodedRecords) -> DecodedRecords:
        return found if self.only is None else self.only.of(found, self.plan)

    def _decoded(self, records: Iterable[pa.RecordBatch]) -> Iterator[DecodedRecords]:
        """What the records of a range hold, batch by batch."""
        plan = self.plan

        def decode(batch: pa.RecordBatch) -> DecodedRecords:
            return decoded_records(batch, plan.decoder, plan.rows, logs=plan.logs, rules=plan.rules)

        yield from up_to_bound(records, decode, None if self.was_read else plan.rules.bound)


def mixed_hashes(hashes: Sequence[tuple[tuple[str, int], bytes]]) -> npt.NDArray[np.uint64]:
    """The hashes of keys that came in two topic-partitions."""
    places = list(dict.fromkeys(place for place, _ in hashes))
    if len(places) < 2:
        return np.empty(0, np.uint64)
    found = [
        _distinct(np.concatenate([np.frombuffer(data, np.uint64) for place, data in hashes if place == one]))
        for one in places
    ]
    whole = np.sort(np.concatenate(found))
    return _distinct(whole[1:][whole[1:] == whole[:-1]])


def _distinct(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Each hash once, sorted: ten times as fast as ``np.unique``, which hashes them from numpy 2.3 on."""
    whole = np.sort(hashes)
    first = np.ones(len(whole), np.bool_)
    np.not_equal(whole[1:], whole[:-1], out=first[1:])
    return whole[first]


def _with_error(
    wanted: FetchRange, found: Iterable[DecodedRecords]
) -> Iterator[DecodedRecords | TidesinkError]:
    """What was found, with an error of ours as the last."""
    try:
        yield from found
    except TidesinkError as error:
        yield error
    except Exception as error:
        raise _failed(wanted) from error


def _failed(wanted: FetchRange) -> RuntimeError:
    place = f"{wanted.topic}[{wanted.partition}] from offset {wanted.start} to {wanted.end}"
    return RuntimeError(f"A task failed at {place}.")


# Packing


def _pack(wanted: FetchRange, found: DecodedRecords, task: RangeTask) -> Iterator[pa.RecordBatch]:
    """The payloads of a range; the first has its counts, also where there is nothing else."""
    joined = joined_tables(found.tables)
    task = replace(task, plan=replace(task.plan, rows=task.plan.rows.in_range(joined)))
    plan = task.plan
    schema = reduced_schema(plan)
    # In a log an event that empties the table is a row.
    truncates = [] if plan.logs else truncated(joined)
    reduction, parts = _logged(joined, plan, schema) if plan.logs else _reduced(joined, task, schema)
    # What was emptied away behind them supersedes them.
    reduction = replace(reduction, events=reduction.events + found.void)
    place = Place(wanted.topic, wanted.partition)
    dated = plan.decoder.dated
    summary = range_summary(place, found, truncates, reduction, parts, plan.packed_shape, dated=dated)
    # What is unplanned is decoded again: the summary says all that is asked about it.
    others = [one for one in found.others if one.kind not in (*COUNTED_KINDS, UNPLANNED)]
    staged = None
    if task.sink is not None:
        rows = (batch for part in parts for batch in part.to_batches(max_chunksize=_PAYLOAD_ROWS))
        staged, parts = pickle.dumps(task.sink(rows)), []
    lines = [_line(one) for one in (*others, *truncates)]
    if lines:
        parts.append(pa.Table.from_pylist(lines, schema=schema))
    hashes = key_hashes(reduction.tables).tobytes()
    counts: dict[str, Any] = {
        "records": found.records,
        "bytes": found.bytes,
        "decoded": found.nbytes,
        "row_by_row_records": found.row_by_row_records,
        "strangers": found.strangers,
        "ddl": found.ddl,
        "hashes": hashes,
        "summary": pickle.dumps(summary),
        "staged": staged,
    }
    for part in parts:
        step = max(1, min(_PAYLOAD_ROWS, _PAYLOAD_BYTES * part.num_rows // max(1, part.nbytes)))
        for at in range(0, part.num_rows, step):
            yield _packed_row(wanted, payload=ipc_stream(part.slice(at, step).combine_chunks()), **counts)
            counts = dict.fromkeys(_COUNTS, 0)
    if not parts:
        yield _packed_row(wanted, **counts)


def _packed_row(wanted: FetchRange, **values: Any) -> pa.RecordBatch:
    row = {"topic": wanted.topic, "partition": wanted.partition, **values}
    return pa.RecordBatch.from_pylist([{name: row.get(name) for name in _PACKED.names}], schema=_PACKED)


def joined_tables(tables: Sequence[ChangeTable]) -> list[ChangeTable]:
    """One table for all of one writer's schema, whose rows stay in the order of the tables."""
    groups: list[list[ChangeTable]] = []
    for one in tables:
        same = next((group for group in groups if _is_same(group[0], one)), None)
        if same is None:
            groups.append([one])
        else:
            same.append(one)
    return [
        replace(group[0], rows=pa.concat_tables([one.rows for one in group]).unify_dictionaries())
        for group in groups
    ]


def _is_same(one: ChangeTable, other: ChangeTable) -> bool:
    same = one.schema_id == other.schema_id and one.table == other.table
    return same and one.rows.schema.equals(other.rows.schema)


def _reduced(
    tables: Sequence[ChangeTable], task: RangeTask, schema: pa.Schema
) -> tuple[Reduction, list[pa.Table]]:
    """One row a key."""
    plan, only = task.plan, task.only
    rows = plan.rows
    if plan.ignores_nulls:
        tables = joined_tables([_without_nulls(one, plan) for one in tables])
    order: Order = "commit_ts" if plan.rules.sequenced else "kafka"
    reduction = reduce_tables(
        tables,
        rows.keys,
        order=order,
        versions=plan.rules.versions,
        convert=rows.key_values,
        old_keys=plan.decoder.old_keys,
    )
    if only is not None:
        reduction = only.rows(reduction)
    return reduction, [_reduced_rows(one, plan, schema) for one in reduction.tables]


def _without_nulls(changes: ChangeTable, plan: DecodePlan) -> ChangeTable:
    """The changes in the shape's columns, of which those that are null count as not sent."""
    after = plan.rows.source_row(changes, changes.rows["after"].combine_chunks())
    names = [*plan.rows.value_sources.values()]
    flags = np.zeros((len(after), len(names)), np.bool_)
    for at, name in enumerate(names):
        flags[:, at] = pc.struct_field(after, [name]).is_null().to_numpy(zero_copy_only=False)
    flags[after.is_null().to_numpy(zero_copy_only=False)] = False
    found = {"after": after, "unavailable": name_lists(flags, names)}
    rows = changes.rows
    for name, column in found.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return replace(changes, rows=rows)


def _logged(
    tables: Sequence[ChangeTable], plan: DecodePlan, schema: pa.Schema
) -> tuple[Reduction, list[pa.Table]]:
    """Each image of each event, in Kafka's order."""
    parts = [_log_rows(one, plan, schema) for one in tables]
    rows = pa.concat_tables(parts) if parts else schema.empty_table()
    if len(parts) > 1:
        numbers = pc.struct_field(rows["key"].combine_chunks(), [INDEX]).to_numpy()
        rows = rows.take(np.lexsort((numbers, rows["_offset"].to_numpy())))
    halves = int(pc.sum(rows["_half"]).as_py() or 0)
    events = sum(one.rows.num_rows for one in tables)
    reduction = Reduction((), events=events, upserts=rows.num_rows, deletes=0, halves=halves)
    return reduction, [rows] if rows.num_rows else []


def _log_rows(table: ChangeTable, plan: DecodePlan, schema: pa.Schema) -> pa.Table:
    found = log_rows(table, plan.rows, plan.decoder, keeps_values=plan.keeps_values)
    event = table.rows.take(found.events)
    rows = {
        "_op": pa.repeat(pa.scalar(UPSERT), len(found.old)),
        "key": found.key,
        "after": found.after,
        **_origin(event),
        "_half": found.old,
        **{f"_{mark}": lists for mark, lists in found.marks.items()},
        "_detail": _warnings(event),
    }
    return pa.table(rows, schema=schema)


def _origin(rows: pa.Table) -> dict[str, Any]:
    """Where the events of rows come from."""
    names = ("partition", "offset", "commit_ts")
    return {"_topic": rows["topic"].cast(pa.string()), **{f"_{name}": rows[name] for name in names}}


def _warnings(rows: pa.Table) -> pa.Array:
    """What there is to say of rows that are applied: a warning, null where there is none."""
    if WARNING not in rows.column_names:
        return pa.nulls(rows.num_rows, _DETAIL)
    reasons = rows[WARNING].combine_chunks()
    others = {one.name: pa.nulls(len(reasons), one.type) for one in _DETAIL}
    arrays = [reasons if name == "reason" else column for name, column in others.items()]
    return pa.StructArray.from_arrays(arrays, fields=list(_DETAIL), mask=reasons.is_null())


def _reduced_rows(table: ReducedTable, plan: DecodePlan, schema: pa.Schema) -> pa.Table:
    """Rows to apply as the reduced frame has them, without any counts."""
    rows, deleted = plan.rows, table.rows["deleted"].combine_chunks()
    words = event_words(table.rows["op"].combine_chunks().dictionary_decode(), deleted)
    found = {
        "_op": pc.if_else(deleted, pa.scalar(DELETE), pa.scalar(UPSERT)),
        "key": rows.key(table.rows["key"].combine_chunks()),
        "after": rows.row(
            table.source,
            table.rows["row"].combine_chunks(),
            rows.metadata_columns(table.rows, words),
            offsets=table.rows["offset"],
        ),
        **_origin(table.rows),
        "_half": table.rows["half"],
        **{f"_{mark}": rows.names(_marked(table, mark, deleted)) for mark in MARKS},
        "_detail": _warnings(table.rows),
    }
    if plan.keeps_values:
        found["_kept"] = rows.names(table.rows["unavailable"].combine_chunks())
        found["_after_delete"] = table.rows["after_delete"].combine_chunks()
    if plan.rules.sequenced:
        found["_seq"] = _sequence(table.rows, deleted)
    return pa.table(found, schema=schema)


def _sequence(rows: pa.Table, deleted: pa.Array) -> pa.StructArray:
    """The positions of the events that stay, as ``targets.base.SEQUENCE_DDL`` says."""
    moments = rows["commit_ts"].combine_chunks().cast(pa.int64())
    offsets = pa.array(np.arange(len(moments) + 1), pa.int32())
    place = [rows[name].combine_chunks() for name in ("partition", "offset", "index")]
    members = [pa.ListArray.from_arrays(offsets, moments), pc.invert(deleted), *place]
    members = [one.cast(kind.type) for one, kind in zip(members, _SEQUENCE, strict=True)]
    return pa.StructArray.from_arrays(members, fields=list(_SEQUENCE))


def _marked(table: ReducedTable, mark: str, deleted: pa.Array) -> pa.Array:
    """The writer's names of columns that have one of ``MARKS``; of a delete none."""
    lists = table.rows[mark].combine_chunks()
    return pc.if_else(deleted, pa.scalar(None, lists.type), lists)


def _line(one: OtherRecord) -> dict[str, Any]:
    """A record as a row of the reduced frame."""
    return {
        "_op": one.kind,
        "_topic": one.topic,
        "_partition": one.partition,
        "_offset": one.offset,
        "_commit_ts": one.commit_ts,
        "_half": False,
        "_detail": {name: getattr(one, name) for name in _DETAIL.names},
    }
