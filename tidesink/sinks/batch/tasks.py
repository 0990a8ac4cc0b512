"""What a Spark task does with one range of offsets: fetch, decode, reduce, and pack as Arrow IPC.

It runs in a Python worker and needs no Spark itself. The records are fetched with librdkafka, decoded by the
codec's ``decode_batch``, reduced to one row a key, and put into the columns of the table's shape. What comes
out is one row for each payload (``PACKED_DDL``): counts for the driver, and the rows of the reduced frame
(``reduce_spark`` has its columns) as an Arrow IPC stream. No row passes through the driver.

One key lives in one partition under ``sequence_by: kafka``, so that a range is reduced by itself;
``mixed_hashes`` finds the keys that came in two.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import ChangeTable, ControlEvent, DecodedBatch
from tidesink.codecs.columns_base import DDL, DELETE, MESSAGE, UPSERT, WATERMARK
from tidesink.errors import ConfigError, TidesinkError, UnnamedRowError
from tidesink.events import DdlEvent, WatermarkEvent
from tidesink.sinks.batch.reduce import ReducedTable, Reduction, key_hashes, named_rows, reduce_tables
from tidesink.sinks.batch.target_rows import TargetRows
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.typemap.arrow import arrow_of_spark
from tidesink.typemap.target_schema import TableShape

# Gives the records of a range, as ``sinks.kafka.fetch`` does; travels to the tasks by pickle.
Fetch = Callable[[FetchRange], Iterator[pa.RecordBatch]]
PACKED_DDL: Final = (
    "topic string, partition int, records bigint, bytes bigint, row_codec_records bigint, hashes binary, "
    "payload binary, error binary"
)
# A payload ends before either.
_PAYLOAD_ROWS: Final = 50_000
_PAYLOAD_BYTES: Final = 8 << 20
# A range is decoded as a whole, and an Arrow array of text holds less than 2 GiB.
_MOST_BYTES: Final = 1 << 30
_PACKED: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("row_codec_records", pa.int64()),
        ("hashes", pa.binary()),
        ("payload", pa.binary()),
        ("error", pa.binary()),
    ]
)
_UNNAMED: Final = (
    "a key column ({}) is null or not in the record, so the change names no row: set keys to columns that "
    "every key record has"
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
    ]
)
_DETAIL_DDL: Final = (
    "struct<error: string, reason: string, key_id: bigint, value_id: bigint, fields: array<string>, "
    "key: binary, value: binary>"
)


class RecordDecoder(Protocol):
    """Decodes the records of one table's topic; travels to the tasks by pickle."""

    def split(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, list[OtherRecord]]:
        """The records whose schemas are known, and what becomes of the others."""

    def decode_batch(self, records: pa.RecordBatch) -> DecodedBatch:
        """The records' events."""

    def bad_record(self, records: pa.RecordBatch, at: int, error: TidesinkError) -> OtherRecord:
        """A record that cannot be decoded."""


@dataclass(frozen=True)
class OtherRecord:
    """A record that holds no row to apply, in the words of the decoded frame (``columns_base``)."""

    kind: str
    offset: int
    commit_ts: int | None = None
    error: str | None = None
    reason: str | None = None
    key_id: int | None = None
    value_id: int | None = None
    key: bytes | None = None
    value: bytes | None = None

    @property
    def detail(self) -> dict[str, Any]:
        """The member ``_detail`` of the reduced frame."""
        return {name: getattr(self, name, None) for name in _DETAIL.names}


class ReducedColumns:
    """The columns of the reduced frame for one shape."""

    def __init__(self, shape: TableShape) -> None:
        self.key = pa.struct([(one.name, arrow_of_spark(one.spark)) for one in shape.key_columns])
        self.row = pa.struct([(one.name, arrow_of_spark(one.spark)) for one in shape.columns])
        self._shape = shape

    @cached_property
    def schema(self) -> pa.Schema:
        """As Arrow."""
        return pa.schema(
            [
                ("_op", pa.string()),
                ("key", self.key),
                ("after", self.row),
                ("_topic", pa.string()),
                ("_partition", pa.int32()),
                ("_offset", pa.int64()),
                ("_commit_ts", pa.int64()),
                ("_half", pa.bool_()),
                ("_zero_dates", pa.list_(pa.string())),
                ("_detail", _DETAIL),
                ("_events", pa.int64()),
                ("_superseded", pa.int64()),
                ("_messages", pa.int64()),
                ("_max_offset", pa.int64()),
                ("_max_commit_ts", pa.int64()),
                ("_mixed", pa.bool_()),
            ]
        )

    @property
    def ddl(self) -> str:
        """As Spark DDL text."""
        return (
            f"_op string, key struct<{self._shape.key_ddl}>, after struct<{self._shape.ddl}>, _topic string, "
            "_partition int, _offset bigint, _commit_ts bigint, _half boolean, _zero_dates array<string>, "
            f"_detail {_DETAIL_DDL}, _events bigint, _superseded bigint, _messages bigint, "
            "_max_offset bigint, _max_commit_ts bigint, _mixed boolean"
        )


@dataclass(frozen=True)
class RangeTask:
    """Fetch, decode, reduce and pack ranges. A task is given the numbers of its ranges."""

    ranges: tuple[FetchRange, ...]
    fetch: Fetch
    decoder: RecordDecoder
    rows: TargetRows

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The payloads of the ranges whose numbers the batches hold."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                wanted = self.ranges[number]
                yield from self.packed(wanted, self.fetch(wanted))

    def packed(self, wanted: FetchRange, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The payloads of one range. An error of ours is one payload with it, so that it keeps its class."""
        try:
            found = _Found(wanted)
            for batch in records:
                found.add(batch, self.decoder, self.rows)
            yield from _pack(found, self.rows)
        except TidesinkError as error:
            yield _packed_row(wanted, error=pickle.dumps(error))
        except Exception as error:
            place = f"{wanted.topic}[{wanted.partition}] from offset {wanted.start} to {wanted.end}"
            raise RuntimeError(f"a task failed at {place}") from error


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of payloads, from the columns ``payload`` and ``error``.

    Raises:
        TidesinkError: a payload that is an error: a task that Spark ran again, for a payload that was lost,
            may fail where the first one did not.
    """
    for batch in batches:
        for payload, error in zip(batch.column(0), batch.column(1), strict=True):
            if error.is_valid:
                raise pickle.loads(error.as_py())  # noqa: S301  (our own task wrote it)
            if payload.is_valid:
                with pa.ipc.open_stream(payload.as_buffer()) as stream:
                    yield from stream


def mixed_hashes(hashes: Sequence[tuple[tuple[str, int], bytes]]) -> npt.NDArray[np.uint64]:
    """The hashes of keys that came in two topic-partitions."""
    places = list(dict.fromkeys(place for place, _ in hashes))
    found = [
        np.unique(np.concatenate([np.frombuffer(data, np.uint64) for place, data in hashes if place == one]))
        for one in places
    ]
    if len(found) < 2:
        return np.empty(0, np.uint64)
    whole, counts = np.unique(np.concatenate(found), return_counts=True)
    return whole[counts > 1]


class _Found:
    """What the batches of one range held."""

    def __init__(self, wanted: FetchRange) -> None:
        self.wanted = wanted
        self.tables: list[ChangeTable] = []
        self.others: list[OtherRecord] = []
        self.counted: dict[str, _Counted] = {}
        self.records = self.bytes = self.row_codec_records = 0

    def add(self, batch: pa.RecordBatch, decoder: RecordDecoder, rows: TargetRows) -> None:
        """Decode a batch of records.

        Raises:
            ConfigError: the range has more bytes than a task takes in.
        """
        self.records += batch.num_rows
        self.bytes += sum(_bytes(batch.column(name)) for name in ("key", "value"))
        if self.bytes > _MOST_BYTES:
            raise ConfigError(
                f"one batch has more than {_MOST_BYTES >> 20} MiB of one partition: lower batch.max-bytes",
                topic=self.wanted.topic,
                partition=self.wanted.partition,
            )
        known, others = decoder.split(batch)
        self.others += others
        decoded = decoder.decode_batch(known)
        self.row_codec_records += decoded.row_codec_records
        self.tables += [self._sound(one, known, decoder, rows) for one in decoded.tables]
        for fault in decoded.faults:
            self.others.append(decoder.bad_record(known, fault.record, fault.error))
        for event in decoded.events:
            self._control(event, known)

    def _sound(
        self, table: ChangeTable, known: pa.RecordBatch, decoder: RecordDecoder, rows: TargetRows
    ) -> ChangeTable:
        """The table without bad records: events that name no row, and values that the shape does not hold."""
        sound = named_rows(table, rows.keys)
        records = table.rows["record"].to_numpy()
        error = UnnamedRowError(_UNNAMED.format(", ".join(rows.keys)))
        for record in records[~sound].tolist():
            self.others.append(decoder.bad_record(known, record, error))
        for at, unfit in rows.unfit(table).items():
            if sound[at]:
                sound[at] = False
                self.others.append(decoder.bad_record(known, int(records[at]), unfit))
        return table if sound.all() else replace(table, rows=table.rows.filter(pa.array(sound)))

    def _control(self, event: ControlEvent, known: pa.RecordBatch) -> None:
        offset = event.position.offset
        if isinstance(event, DdlEvent):
            at = int(np.searchsorted(known.column("offset").to_numpy(), offset))
            key, value = (known.column(name)[at].as_py() for name in ("key", "value"))
            self.others.append(OtherRecord(DDL, offset, event.commit_ts, key=key, value=value))
            return
        kind = WATERMARK if isinstance(event, WatermarkEvent) else MESSAGE
        ts = event.commit_ts if isinstance(event, WatermarkEvent) else None
        # A frame's numbers are signed; TiDB's own are far below 2^63.
        ts = ts if ts is not None and ts < 1 << 63 else None
        self.counted.setdefault(kind, _Counted()).add(offset, ts)


@dataclass
class _Counted:
    """Control events of one kind, of which nothing but their number is asked for."""

    events: int = 0
    max_offset: int = -1
    max_commit_ts: int | None = None

    def add(self, offset: int, commit_ts: int | None) -> None:
        """Count one."""
        self.events += 1
        self.max_offset = max(self.max_offset, offset)
        if commit_ts is not None:
            self.max_commit_ts = max(self.max_commit_ts or 0, commit_ts)


def _bytes(column: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(column)).as_py() or 0)


# Packing


def _pack(found: _Found, rows: TargetRows) -> Iterator[pa.RecordBatch]:
    """The payloads of a range; the first has its counts, also where there is nothing else."""
    reduction = reduce_tables(joined_tables(found.tables), rows.keys, convert=rows.key_values)
    columns = ReducedColumns(rows.shape)
    parts = [_reduced_rows(one, rows, columns) for one in reduction.tables]
    if parts:
        parts[0] = _with_totals(parts[0], found, reduction)
    if found.others or found.counted:
        parts.append(_other_rows(found, columns))
    hashes = key_hashes(reduction.tables).tobytes()
    counts: dict[str, Any] = {
        "records": found.records,
        "bytes": found.bytes,
        "row_codec_records": found.row_codec_records,
        "hashes": hashes,
    }
    for part in parts:
        step = max(1, min(_PAYLOAD_ROWS, _PAYLOAD_BYTES * part.num_rows // max(1, part.nbytes)))
        for at in range(0, part.num_rows, step):
            yield _packed_row(found.wanted, payload=_stream(part.slice(at, step)), **counts)
            counts = {"records": 0, "bytes": 0, "row_codec_records": 0}
    if not parts:
        yield _packed_row(found.wanted, **counts)


def _packed_row(wanted: FetchRange, **values: Any) -> pa.RecordBatch:
    row = {"topic": wanted.topic, "partition": wanted.partition, **values}
    return pa.RecordBatch.from_pylist([{name: row.get(name) for name in _PACKED.names}], schema=_PACKED)


def _stream(rows: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    whole: bytes = out.getvalue().to_pybytes()
    return whole


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


def _reduced_rows(table: ReducedTable, rows: TargetRows, columns: ReducedColumns) -> pa.Table:
    """Rows to apply as the reduced frame has them, without any counts."""
    count = table.rows.num_rows
    deleted = table.rows["deleted"].combine_chunks()
    nothing, zeros = pa.nulls(count, _DETAIL), pa.array(np.zeros(count, np.int64))
    found = {
        "_op": pc.if_else(deleted, pa.scalar(DELETE), pa.scalar(UPSERT)),
        "key": rows.key(table.rows["key"].combine_chunks()),
        "after": rows.row(table.source, table.rows["row"].combine_chunks()),
        "_topic": table.rows["topic"].cast(pa.string()),
        "_partition": table.rows["partition"],
        "_offset": table.rows["offset"],
        "_commit_ts": table.rows["commit_ts"],
        "_half": table.rows["half"],
        "_zero_dates": _zero_dates(table, rows, deleted),
        "_detail": nothing,
        "_events": zeros,
        "_superseded": zeros,
        "_messages": zeros,
        "_max_offset": table.rows["offset"],
        "_max_commit_ts": table.rows["commit_ts"],
        "_mixed": pa.array(np.zeros(count, np.bool_)),
    }
    return pa.table(found, schema=columns.schema)


def _zero_dates(table: ReducedTable, rows: TargetRows, deleted: pa.Array) -> pa.Array:
    """The names of columns made null, as the shape has them; of a delete none."""
    lists = table.rows["zero_dates"].combine_chunks()
    kept = pc.if_else(deleted, pa.scalar(None, lists.type), lists)
    if kept.null_count == len(kept):
        return kept
    names = [one and [rows.shape.by_name[name.lower()].name for name in one] for one in kept.to_pylist()]
    return pa.array(names, lists.type)


def _with_totals(rows: pa.Table, found: _Found, reduction: Reduction) -> pa.Table:
    """The rows with the range's counts in the first one: they are only ever added up."""
    moments = [one.rows["commit_ts"] for one in found.tables]
    last = max((at for at in (pc.max(one).as_py() for one in moments) if at is not None), default=None)
    offsets = max(pc.max(one.rows["offset"]).as_py() for one in found.tables if one.rows.num_rows)
    messages = sum(int(pc.sum(pc.equal(one.rows["index"], 0)).as_py() or 0) for one in found.tables)
    totals = {
        "_events": reduction.events,
        "_superseded": reduction.superseded,
        "_messages": messages,
        "_max_offset": offsets,
        "_max_commit_ts": last,
    }
    for name, value in totals.items():
        column = rows[name].combine_chunks()
        first = pa.array([value], column.type)
        whole = pa.concat_arrays([first, column.slice(1)])
        rows = rows.set_column(rows.schema.get_field_index(name), name, whole)
    return rows


def _other_rows(found: _Found, columns: ReducedColumns) -> pa.Table:
    """The records that are no rows: each by itself, but watermarks and messages one a kind."""
    wanted = found.wanted
    place = {"_topic": wanted.topic, "_partition": wanted.partition, "_half": False, "_mixed": False}
    lines = [
        {
            **place,
            "_op": one.kind,
            "_offset": one.offset,
            "_commit_ts": one.commit_ts,
            "_detail": one.detail,
            "_events": 1,
            "_superseded": 0,
            "_messages": 1,
            "_max_offset": one.offset,
            "_max_commit_ts": one.commit_ts,
        }
        for one in found.others
    ]
    lines += [
        {
            **place,
            "_op": kind,
            "_offset": one.max_offset,
            "_commit_ts": one.max_commit_ts,
            "_events": one.events,
            "_superseded": 0,
            "_messages": one.events,
            "_max_offset": one.max_offset,
            "_max_commit_ts": one.max_commit_ts,
        }
        for kind, one in found.counted.items()
    ]
    return pa.Table.from_pylist(lines, schema=columns.schema)
