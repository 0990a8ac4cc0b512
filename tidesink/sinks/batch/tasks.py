"""The work of a Spark task on one input: fetch, decode, reduce, and pack the rows as Arrow IPC.

An input is a range of Kafka offsets (``FetchRange``), rows of the source database (``source_rows.RowInput``),
or a share of some keys (``source_rows.KeyShare``).

The task runs in a Python worker and does not use Spark itself. It fetches the records with librdkafka and
decodes them with the codec's ``decode_batch``. Then it reduces the changes to one row per key (for a change
log: one row per image of an event), and converts the rows into the target's columns.

The results are rows of ``PACKED_DDL``: counts for the driver, and payloads. A payload is an Arrow IPC stream
of rows in the columns of ``reduced_schema``. Rows to apply do not pass through the driver. If the target can
stage rows (``RangeTask.sink``), the task sends them to the target, and payloads contain only other events.
With a row filter the task has two halves, and Spark evaluates the filter between them (``decode.filtering``).

Under ``sequence_by: kafka`` all events of a key are in one partition, so each range is reduced on its own.
``mixed_hashes`` detects keys in two partitions.
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
from tidesink.sinks.batch.summaries import range_summary, truncated
from tidesink.sinks.decode.bounded import up_to_bound
from tidesink.sinks.decode.filtering import Verdicts, decoded_chunk, verdicts_of
from tidesink.sinks.decode.plans import DecodePlan
from tidesink.sinks.decode.records import (
    COUNTED_KINDS,
    UNPLANNED,
    DecodedRecords,
    Input,
    OtherRecord,
    decoded_records,
)
from tidesink.sinks.decode.target_rows import event_words, key_type, row_type
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange
from tidesink.sinks.laws.counts import TopicPartition
from tidesink.sinks.laws.modes import INDEX
from tidesink.sinks.laws.reduce import (
    WARNING,
    Order,
    ReducedTable,
    Reduction,
    key_hashes,
    name_lists,
    reduce_tables,
)
from tidesink.sinks.spark.payloads import DELETE, UPSERT, ipc_stream
from tidesink.sinks.targets.base import RowSink

# Fetches the records of a range, as ``sinks.kafka.fetch`` does. Pickled and sent to the tasks.
Fetch = Callable[[FetchRange], Iterator[pa.RecordBatch]]
# Returns result rows for an input (``Input``) and its records. Pickled and sent to the tasks. All inputs of a
# batch have one type.
Work = Callable[[Any, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
PACKED_DDL: Final = (
    "topic string, partition int, records bigint, bytes bigint, decoded bigint, row_by_row_records bigint, "
    "unlisted bigint, ddl bigint, hashes binary, summary binary, staged binary, payload binary, error binary"
)
# Columns with counts of a whole range. They are 0 in all rows of the range after the first.
_COUNTS: Final = ("records", "bytes", "decoded", "row_by_row_records", "unlisted", "ddl")
# The maximum size of a payload.
_PAYLOAD_ROWS: Final = 50_000
_PAYLOAD_BYTES: Final = 8 << 20
# The maximum size of a decoded range. A range is decoded as a whole, and an Arrow text array holds less than
# 2 GiB.
MOST_BYTES: Final = 1 << 30
_PACKED: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("decoded", pa.int64()),
        ("row_by_row_records", pa.int64()),
        ("unlisted", pa.int64()),
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
    """Returns the columns of the reduced frame, which has the results of all tasks of a batch.

    The frame's rows are rows to apply, bad records and truncates. The winning event of a key is
    the event whose change is applied, which is the last one.

    ================  ========  ========================================================================
    column            type      meaning
    ================  ========  ========================================================================
    ``_op``           string    one of ``records.KINDS``: ``upsert``, ``delete``, ``bad``, ...
    ``key``           struct    the key, null for records that are not rows
    ``after``         struct    the row to write, only for ``upsert``; for a marked delete its metadata
                                columns, if the table has any
    ``_topic``        string    the topic of the winning event
    ``_partition``    int       the partition of the winning event
    ``_offset``       bigint    the offset of the winning event
    ``_commit_ts``    bigint    the commit_ts of the winning event
    ``_half``         boolean   true for the row of an update that is not counted as its event: the delete of
                                the old key, or in a change log the preimage
    ``_zero_dates``   array     names of columns with an impossible date, which was set to null
    ``_ambiguous_times`` array  names of columns whose local time occurs twice, so that a policy chose one
    ``_detail``       struct    for bad records: error, reason, and the registry ids of their schemas (key_id,
                                value_id); for a row with a warning: the reason
    ``_kept``         array     only if the plan ``keeps_values``: columns of ``after`` whose value the source
                                did not send, so that the stored value is kept; null without such columns
    ``_after_delete`` boolean   only if the plan ``keeps_values``: true if the batch deletes the key before
                                it writes this row, so that the target must not keep stored values
    ``_seq``          struct    only in the source's order: the position of the winning event, as in
                                ``targets.base.SEQUENCE_DDL``
    ================  ========  ========================================================================

    Keys are compared as exact values, and text byte by byte, whatever the source's collation. If 'a' and 'A'
    are the same key at the source, it never sends them as two rows.
    """
    shape = plan.packed_shape
    kept_columns = (("_kept", NAMES_TYPE), ("_after_delete", pa.bool_()))
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
            *(kept_columns if plan.keeps_values and not plan.logs else ()),
            *([("_seq", _SEQUENCE)] if plan.rules.sequenced else ()),
        ]
    )


class RangeTooLargeError(ConfigError):
    """A decoded input is larger than the limit, because its records are larger than earlier records."""

    @classmethod
    def of(cls, wanted: Input, most_bytes: int) -> RangeTooLargeError:
        """Returns the error for an input whose decoded records have more than ``most_bytes`` bytes."""
        most = f"more than {most_bytes >> 20} MiB"
        if wanted.place is None:
            return cls(
                f"The rows of {wanted.label} have {most}, which is more than a task may hold in memory. "
                "Lower source.database.chunk-rows, the number of rows in a range."
            )
        topic, partition = wanted.place
        return cls(
            f"A batch has {most} of one partition. Lower batch.max-bytes.", topic=topic, partition=partition
        )


class Restriction(Protocol):
    """Selects those events and rows of a batch that are applied, for example in a replay of dead letters."""

    def of(self, decoded: DecodedRecords, plan: DecodePlan) -> DecodedRecords:
        """Returns the decoded records with only the selected events. The counts of records do not change."""

    def rows(self, reduction: Reduction) -> Reduction:
        """Removes rows that are not selected from a reduction, and returns it."""


@dataclass(frozen=True)
class RangeTask:
    """Decodes, reduces and packs the records of inputs.

    Attributes:
        ranges: The inputs.
        plan: The decode plan.
        most_bytes: The maximum size of a range's events in memory after decoding, in bytes.
        only: Selects the events that are used. None: all events.
        sink: Stages the rows to apply in the target, or None. With a sink, payloads do not contain these
            rows, and the column ``staged`` has the sink's result.
        was_read: True if the table has read the ranges before, under the same bound (``laws.bound``), as in a
            replay. Then all of their records are decoded, also those after a watermark at the bound.
    """

    ranges: tuple[Input, ...]
    plan: DecodePlan
    most_bytes: int = MOST_BYTES
    only: Restriction | None = None
    sink: RowSink | None = None
    was_read: bool = False

    @classmethod
    def of(
        cls, ranges: Iterable[OffsetRange], topic_id: str, plan: DecodePlan, sink: RowSink | None = None
    ) -> RangeTask:
        """Returns the task of a batch that reads Kafka.

        It fetches timestamps and headers only if the plan's decoder uses them.

        ``topic_id``: Kafka's id of the topic, which must be the same after the read.
        """
        used = plan.decoder.uses_timestamps, plan.decoder.uses_headers
        wanted = (FetchRange(*part, topic_id, *used) for part in ranges if part.records)
        return cls(tuple(wanted), plan, sink=sink)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows in the payloads."""
        return reduced_schema(self.plan)

    def chunks(self, wanted: Input, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the chunks of decoded records of a range, for a plan with a filter. This is the first half
        of the task.

        A chunk has the decoded records and the rows on which Spark evaluates the filter.
        """
        plan = self.plan
        assert plan.row_filter is not None  # noqa: S101  (only called with a filter)
        # A range without records is also a chunk, because it is counted.
        decoded = chain([DecodedRecords()], self._kept(wanted, self._decoded(records)))
        for chunk in _with_error(wanted, decoded):
            yield decoded_chunk(wanted, chunk, plan.row_filter, plan.rows)

    def filtered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the payloads of chunks and Spark's verdicts on their rows.

        This is the second half of the task.
        """
        for wanted, chunks in groupby(verdicts_of(batches), attrgetter("wanted")):
            yield from self._payloads(wanted, map(self._applied, chunks))

    def _applied(self, verdicts: Verdicts) -> DecodedRecords:
        """Returns the decoded records of a chunk after applying the filter.

        Raises:
            TidesinkError: Decoding the chunk failed with this error.
        """
        assert self.plan.row_filter is not None  # noqa: S101  (only called with a filter)
        if isinstance(verdicts.chunk, TidesinkError):
            raise verdicts.chunk
        return self.plan.row_filter.applied(verdicts.chunk, verdicts.said, self.plan.rows)

    def packed(self, wanted: Input, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the payloads of a range, for a plan without a filter.

        If the task fails with a ``TidesinkError``, the error is returned in the column ``error``, so that it
        keeps its class.
        """
        yield from self._payloads(wanted, self._decoded(records))

    def _payloads(self, wanted: Input, decoded: Iterable[DecodedRecords]) -> Iterator[pa.RecordBatch]:
        try:
            whole = DecodedRecords()
            for more in self._kept(wanted, decoded):
                whole.add(more)
            yield from _pack(wanted, whole, self)
        except TidesinkError as error:
            yield _packed_row(wanted, error=pickle.dumps(error))
        except Exception as error:
            raise _failed(wanted) from error

    def _kept(self, wanted: Input, decoded: Iterable[DecodedRecords]) -> Iterator[DecodedRecords]:
        size = 0
        for more in map(self._restricted, decoded):
            # The size in memory: a record with a schema is much larger than its row, compressed ones smaller.
            size += more.nbytes
            if size > self.most_bytes:
                raise RangeTooLargeError.of(wanted, self.most_bytes)
            yield more

    def _restricted(self, decoded: DecodedRecords) -> DecodedRecords:
        return decoded if self.only is None else self.only.of(decoded, self.plan)

    def _decoded(self, records: Iterable[pa.RecordBatch]) -> Iterator[DecodedRecords]:
        """Yields the decoded records of a range, one batch at a time."""
        plan = self.plan

        def decode(batch: pa.RecordBatch) -> DecodedRecords:
            return decoded_records(batch, plan.decoder, plan.rows, logs=plan.logs, rules=plan.rules)

        yield from up_to_bound(records, decode, None if self.was_read else plan.rules.bound)


def mixed_hashes(hashes: Sequence[tuple[tuple[str, int], bytes]]) -> npt.NDArray[np.uint64]:
    """Returns the hashes of keys that occur in more than one topic-partition, sorted.

    ``hashes``: topic and partition with the bytes of their hashes (``key_hashes``).
    """
    places = list(dict.fromkeys(topic_partition for topic_partition, _ in hashes))
    if len(places) < 2:
        return np.empty(0, np.uint64)
    distinct_hashes = [
        _distinct(
            np.concatenate(
                [np.frombuffer(data, np.uint64) for other, data in hashes if other == topic_partition]
            )
        )
        for topic_partition in places
    ]
    whole = np.sort(np.concatenate(distinct_hashes))
    return _distinct(whole[1:][whole[1:] == whole[:-1]])


def _distinct(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns the distinct hashes, sorted. This is ten times faster than ``np.unique`` of numpy 2.3."""
    whole = np.sort(hashes)
    first = np.ones(len(whole), np.bool_)
    np.not_equal(whole[1:], whole[:-1], out=first[1:])
    return whole[first]


def _with_error(wanted: Input, decoded: Iterable[DecodedRecords]) -> Iterator[DecodedRecords | TidesinkError]:
    """Yields the decoded records of a range. If decoding fails with a ``TidesinkError``, yields the error as
    the last element.
    """
    try:
        yield from decoded
    except TidesinkError as error:
        yield error
    except Exception as error:
        raise _failed(wanted) from error


def _failed(wanted: Input) -> RuntimeError:
    return RuntimeError(f"A task failed at {wanted.label}.")


# Packing


def _pack(wanted: Input, decoded: DecodedRecords, task: RangeTask) -> Iterator[pa.RecordBatch]:
    """Yields the task's result rows (``PACKED_DDL``) for a range, at least one. The first one has the
    range's counts.
    """
    joined = joined_tables(decoded.tables)
    task = replace(task, plan=replace(task.plan, rows=task.plan.rows.in_range(joined)))
    plan = task.plan
    schema = reduced_schema(plan)
    # In a change log, a truncate is a row.
    truncates = [] if plan.logs else truncated(joined)
    reduction, parts = _logged(joined, plan, schema) if plan.logs else _reduced(joined, task, schema)
    # Void row changes count as superseded by the DDL that emptied the table.
    reduction = replace(reduction, events=reduction.events + decoded.void)
    place = None if wanted.place is None else TopicPartition(*wanted.place)
    dated = plan.decoder.dated
    summary = range_summary(place, decoded, truncates, reduction, parts, plan.packed_shape, dated=dated)
    # Unplanned records are not packed: the batch is decoded again. The driver only needs what the summary has
    # about them.
    others = [record for record in decoded.others if record.kind not in (*COUNTED_KINDS, UNPLANNED)]
    staged = None
    if task.sink is not None:
        rows = (batch for part in parts for batch in part.to_batches(max_chunksize=_PAYLOAD_ROWS))
        staged, parts = pickle.dumps(task.sink(rows)), []
    lines = [_line(record) for record in (*others, *truncates)]
    if lines:
        parts.append(pa.Table.from_pylist(lines, schema=schema))
    hashes = key_hashes(reduction.tables).tobytes()
    counts: dict[str, Any] = {
        "records": decoded.records,
        "bytes": decoded.bytes,
        "decoded": decoded.nbytes,
        "row_by_row_records": decoded.row_by_row_records,
        "unlisted": decoded.unlisted,
        "ddl": decoded.ddl,
        "hashes": hashes,
        "summary": pickle.dumps(summary),
        "staged": staged,
    }
    for part in parts:
        step = max(1, min(_PAYLOAD_ROWS, _PAYLOAD_BYTES * part.num_rows // max(1, part.nbytes)))
        for start in range(0, part.num_rows, step):
            yield _packed_row(wanted, payload=ipc_stream(part.slice(start, step).combine_chunks()), **counts)
            counts = dict.fromkeys(_COUNTS, 0)
    if not parts:
        yield _packed_row(wanted, **counts)


def _packed_row(wanted: Input, **values: Any) -> pa.RecordBatch:
    topic, partition = wanted.numbering
    row = {"topic": topic, "partition": partition, **values}
    return pa.RecordBatch.from_pylist([{name: row.get(name) for name in _PACKED.names}], schema=_PACKED)


def joined_tables(tables: Sequence[ChangeTable]) -> list[ChangeTable]:
    """Joins the tables that have the same writer schema. Their rows stay in the order of the tables."""
    groups: list[list[ChangeTable]] = []
    for table in tables:
        same = next((group for group in groups if _is_same(group[0], table)), None)
        if same is None:
            groups.append([table])
        else:
            same.append(table)
    return [
        replace(group[0], rows=pa.concat_tables([table.rows for table in group]).unify_dictionaries())
        for group in groups
    ]


def _is_same(changes: ChangeTable, other: ChangeTable) -> bool:
    same = changes.schema_id == other.schema_id and changes.table == other.table
    return same and changes.rows.schema.equals(other.rows.schema)


def _reduced(
    tables: Sequence[ChangeTable], task: RangeTask, schema: pa.Schema
) -> tuple[Reduction, list[pa.Table]]:
    """Reduces row changes to one row per key.

    Returns the reduction, and its rows in the columns of the reduced frame (``reduced_schema``).
    """
    plan, only = task.plan, task.only
    rows = plan.rows
    if plan.ignores_nulls:
        tables = joined_tables([_without_nulls(table, plan) for table in tables])
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
    return reduction, [_reduced_rows(table, plan, schema) for table in reduction.tables]


def _without_nulls(changes: ChangeTable, plan: DecodePlan) -> ChangeTable:
    """Returns the changes with each null value marked as not sent, so that the stored value is kept."""
    after = plan.rows.source_row(changes, changes.rows["after"].combine_chunks())
    names = [*plan.rows.value_sources.values()]
    flags = np.zeros((len(after), len(names)), np.bool_)
    for number, name in enumerate(names):
        flags[:, number] = pc.struct_field(after, [name]).is_null().to_numpy(zero_copy_only=False)
    flags[after.is_null().to_numpy(zero_copy_only=False)] = False
    columns = {"after": after, "unavailable": name_lists(flags, names)}
    rows = changes.rows
    for name, column in columns.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return replace(changes, rows=rows)


def _logged(
    tables: Sequence[ChangeTable], plan: DecodePlan, schema: pa.Schema
) -> tuple[Reduction, list[pa.Table]]:
    """Returns changes as rows of a change log in Kafka's order, one row per image of an event, and their
    counts.
    """
    parts = [_log_rows(table, plan, schema) for table in tables]
    rows = pa.concat_tables(parts) if parts else schema.empty_table()
    if len(parts) > 1:
        numbers = pc.struct_field(rows["key"].combine_chunks(), [INDEX]).to_numpy()
        rows = rows.take(np.lexsort((numbers, rows["_offset"].to_numpy())))
    halves = int(pc.sum(rows["_half"]).as_py() or 0)
    events = sum(table.rows.num_rows for table in tables)
    reduction = Reduction((), events=events, upserts=rows.num_rows, deletes=0, halves=halves)
    return reduction, [rows] if rows.num_rows else []


def _log_rows(table: ChangeTable, plan: DecodePlan, schema: pa.Schema) -> pa.Table:
    logged_rows = log_rows(table, plan.rows, plan.decoder, keeps_values=plan.keeps_values)
    event = table.rows.take(logged_rows.events)
    rows = {
        "_op": pa.repeat(pa.scalar(UPSERT), len(logged_rows.old)),
        "key": logged_rows.key,
        "after": logged_rows.after,
        **_origin(event),
        "_half": logged_rows.old,
        **{f"_{mark}": lists for mark, lists in logged_rows.marks.items()},
        "_detail": _warnings(event),
    }
    return pa.table(rows, schema=schema)


def _origin(rows: pa.Table) -> dict[str, Any]:
    """Returns the topic, partition, offset and commit_ts of each row's event, as columns."""
    names = ("partition", "offset", "commit_ts")
    return {"_topic": rows["topic"].cast(pa.string()), **{f"_{name}": rows[name] for name in names}}


def _warnings(rows: pa.Table) -> pa.Array:
    """Returns the column ``_detail`` of rows to apply, which has a row's warning or null."""
    if WARNING not in rows.column_names:
        return pa.nulls(rows.num_rows, _DETAIL)
    reasons = rows[WARNING].combine_chunks()
    others = {field.name: pa.nulls(len(reasons), field.type) for field in _DETAIL}
    arrays = [reasons if name == "reason" else column for name, column in others.items()]
    return pa.StructArray.from_arrays(arrays, fields=list(_DETAIL), mask=reasons.is_null())


def _reduced_rows(table: ReducedTable, plan: DecodePlan, schema: pa.Schema) -> pa.Table:
    """Converts the rows to apply of one writer schema to rows of the reduced frame (``reduced_schema``)."""
    rows, deleted = plan.rows, table.rows["deleted"].combine_chunks()
    words = event_words(table.rows["op"].combine_chunks().dictionary_decode(), deleted)
    columns = {
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
        columns["_kept"] = rows.names(table.rows["unavailable"].combine_chunks())
        columns["_after_delete"] = table.rows["after_delete"].combine_chunks()
    if plan.rules.sequenced:
        columns["_seq"] = _sequence(table.rows, deleted)
    return pa.table(columns, schema=schema)


def _sequence(rows: pa.Table, deleted: pa.Array) -> pa.StructArray:
    """Returns, for each row, the position of its event in the source's order, in the columns of
    ``targets.base.SEQUENCE_DDL``.
    """
    moments = rows["commit_ts"].combine_chunks().cast(pa.int64())
    offsets = pa.array(np.arange(len(moments) + 1), pa.int32())
    columns = [rows[name].combine_chunks() for name in ("partition", "offset", "index")]
    members = [pa.ListArray.from_arrays(offsets, moments), pc.invert(deleted), *columns]
    members = [member.cast(kind.type) for member, kind in zip(members, _SEQUENCE, strict=True)]
    return pa.StructArray.from_arrays(members, fields=list(_SEQUENCE))


def _marked(table: ReducedTable, mark: str, deleted: pa.Array) -> pa.Array:
    """Returns, for each row, the writer schema's names of the columns whose values carry ``mark``, such as an
    impossible date. Null for a delete.
    """
    lists = table.rows[mark].combine_chunks()
    return pc.if_else(deleted, pa.scalar(None, lists.type), lists)


def _line(record: OtherRecord) -> dict[str, Any]:
    """Converts an event that is not a row to apply, such as a bad record, to a row of the reduced frame
    (``reduced_schema``).
    """
    return {
        "_op": record.kind,
        "_topic": record.topic,
        "_partition": record.partition,
        "_offset": record.offset,
        "_commit_ts": record.commit_ts,
        "_half": False,
        "_detail": {name: getattr(record, name) for name in _DETAIL.names},
    }
