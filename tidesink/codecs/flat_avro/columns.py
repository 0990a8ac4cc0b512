"""Flat-avro records to Arrow tables: the columnar step of ``FlatAvroCodec.decode_batch``.

Records are grouped by topic and by the five bytes of both Confluent headers. Each group has one pair of
schemas, so one plan of the row codec holds for it: table, columns and types are the plan's. Watermarks and
delete markers (value 02 or 03 and eight bytes, ``flat_avro.codec``) are read here too. DDL, AWS Glue's
frames, rows with a checksum that is asked for, and whatever is not proven are left to the row codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.avro_columns import CHUNK_RECORDS, AvroDecoder, Mask, RecordBytes
from tidesink.codecs.base import HEADER_SIZE
from tidesink.codecs.batch import (
    NAMES_TYPE,
    SOURCE_TYPE,
    ChangeTable,
    ColumnarResult,
    Indices,
    Records,
    RowTypes,
    ValueOptions,
    op_array,
    op_code,
)
from tidesink.codecs.flat_avro.payloads import DecodePlan
from tidesink.codecs.flat_avro.schema import BEFORE, COMMIT_TS, EXTENSION, OP, AvroColumn, WriterRecord
from tidesink.errors import DecodeError, RegistryError
from tidesink.events import Column, ColumnType, Message, Op, Position, WatermarkEvent
from tidesink.typemap.arrow import ColumnResult, from_text, from_value
from tidesink.typemap.table import row_of

PlanOf = Callable[[Message], DecodePlan]
Heads = npt.NDArray[np.uint64]

# What stands in a head's place: a Confluent header's five bytes are below them.
_NULL: Final = 1 << 40
_MARKER: Final = 2 << 40
_WATERMARK: Final = 3 << 40
_OTHER: Final = 4 << 40
_HEAD_BITS: Final = np.uint64((1 << 40) - 1)
_CONTROL_SIZE: Final = 9
_OPS: Final = {"c": Op.INSERT, "u": Op.UPDATE, "d": Op.DELETE, "": Op.UPSERT}


@dataclass(frozen=True)
class FlatAvroColumns:
    """The columnar step of one codec. ``plan_of`` gives the row codec's plan for a record's headers."""

    plan_of: PlanOf
    options: ValueOptions
    _groups: dict[tuple[str, int, int], _GroupDecoder | None] = field(default_factory=dict, repr=False)

    def __call__(self, records: Records) -> ColumnarResult:
        """Decode what can be proven; the rest is ``left``."""
        batch = _Batch(records)
        left, tables = [np.flatnonzero(batch.left)], []
        for group in batch.groups():
            decoder = self._decoder(group)
            if decoder is None:
                left.append(group.rows)
                continue
            table, unproven = decoder.decode(batch, group)
            tables.append(table)
            left.append(unproven)
        return ColumnarResult(len(records), tables, batch.watermarks(), np.sort(np.concatenate(left)))

    def _decoder(self, group: _Group) -> _GroupDecoder | None:
        """The group's decoder; None where its records are left to the row codec.

        A schema that cannot be had is not remembered: the row codec says why, and the next batch asks again.
        """
        name = (group.topic, group.key, group.value)
        if name not in self._groups:
            try:
                plan = self.plan_of(group.message)
            except (DecodeError, RegistryError):
                return None
            self._groups[name] = _group_decoder(plan, self.options)
        return self._groups[name]


# Grouping


class _Group(NamedTuple):
    """The records of one topic under one pair of headers; ``rows`` are ascending indices."""

    topic: str
    key: int
    value: int
    rows: Indices

    @property
    def message(self) -> Message:
        """A record that has the group's headers and nothing else."""
        return Message(self.topic, 0, 0, _header(self.key), _header(self.value))


def _header(head: int) -> bytes | None:
    # A delete marker stands where a value would: the key's schema alone says what the row is.
    return None if head in (_NULL, _MARKER) else head.to_bytes(8, "little")[:HEADER_SIZE]


class _Batch:
    """Records with their heads: the first five bytes as a number, or what stands in their place."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.keys, self.values = (RecordBytes.of(one) for one in (records.key, records.value))
        self._key_heads = _heads(self.keys, records.key)
        self._value_heads = _heads(self.values, records.value)
        self._mark_control()

    def __len__(self) -> int:
        return len(self.records)

    def _mark_control(self) -> None:
        others = np.flatnonzero(self._value_heads == _OTHER)
        if not len(others):
            return
        values = self.values.take(others)
        kind = values.words() & np.uint64(0xFF)
        whole = values.end - values.start == _CONTROL_SIZE
        keys = self._key_heads[others]
        marker = whole & (kind == 3) & (keys < _NULL) & (self._commit_ts(others) >= 0)
        self._value_heads[others[marker]] = _MARKER
        self._value_heads[others[whole & (kind == 2) & (keys == _NULL)]] = _WATERMARK

    def _commit_ts(self, rows: Indices) -> npt.NDArray[np.int64]:
        """The commit_ts after the first byte of control records; negative where it is 2^63 or more."""
        values = self.values.take(rows)
        words = RecordBytes(values.data, np.minimum(values.start + 1, values.end), values.end).words()
        times: npt.NDArray[np.int64] = words.byteswap().view(np.int64)
        return times

    @cached_property
    def left(self) -> Mask:
        """Records that are left to the row codec for how they begin."""
        keys, values = self._key_heads, self._value_heads
        nothing = (keys == _NULL) & ((values == _NULL) | (values == _MARKER))
        found: Mask = (keys == _OTHER) | (values == _OTHER) | nothing
        return found

    def watermarks(self) -> list[tuple[int, WatermarkEvent]]:
        """The watermarks with the indices of their records in the input."""
        rows = np.flatnonzero(self._value_heads == _WATERMARK)
        if not len(rows):
            return []
        times = self._commit_ts(rows).view(np.uint64).tolist()
        messages = self.records.take(rows)
        return [
            (record, WatermarkEvent(ts, Position(one.topic, one.partition, one.offset, 0, (ts,))))
            for (record, one), ts in zip(messages, times, strict=True)
        ]

    def marker_times(self, rows: Indices) -> npt.NDArray[np.int64]:
        """The commit_ts of delete markers."""
        return self._commit_ts(rows)

    def groups(self) -> Iterator[_Group]:
        """The records that are rows, by topic and heads."""
        rows = np.flatnonzero(~self.left & (self._value_heads != _WATERMARK))
        if not len(rows):
            return
        topics = self.records.topic.indices.to_numpy(zero_copy_only=False)
        columns = (topics, self._key_heads, self._value_heads)
        for one in _split(rows, columns):
            first = int(one[0])
            topic = self.records.topic[first].as_py()
            yield _Group(topic, int(self._key_heads[first]), int(self._value_heads[first]), one)


def _heads(parts: RecordBytes, array: pa.Array) -> Heads:
    heads: Heads = parts.words() & _HEAD_BITS
    framed = (heads & np.uint64(0xFF) == 0) & (parts.end - parts.start >= HEADER_SIZE)
    if not framed.all():
        heads = np.where(framed, heads, np.uint64(_OTHER))
    if array.null_count:
        heads[array.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return heads


def _split(rows: Indices, columns: Sequence[npt.NDArray[Any]]) -> Iterator[Indices]:
    """The rows by the values of all columns, each part ascending."""
    codes = np.zeros(len(rows), np.int64)
    count = 1
    for column in columns:
        values = column if len(rows) == len(column) else column[rows]
        if (values == values[0]).all():
            continue
        found = pc.dictionary_encode(pa.array(values))
        codes = codes * len(found.dictionary) + found.indices.to_numpy()
        # Numbered again, so that the codes stay small.
        again = pc.dictionary_encode(pa.array(codes))
        codes, count = again.indices.to_numpy().astype(np.int64), len(again.dictionary)
    if count == 1:
        yield rows
        return
    order = np.argsort(codes.astype(np.int16) if count < 1 << 15 else codes, kind="stable")
    yield from np.split(rows[order], np.flatnonzero(np.diff(codes[order])) + 1)


# One group


def _group_decoder(plan: DecodePlan, options: ValueOptions) -> _GroupDecoder | None:
    """The decoder of a plan's records; None where the row codec must see each of them."""
    if plan.sums is not None:
        return None
    keys = None if plan.key is None else plan.key.record.column_names
    types = RowTypes(plan.schema, keys, options)
    images = _Images(types, plan.schema.by_name, options)
    key = None if plan.key is None else _Part.of(plan.key.record, images)
    value = None if plan.value is None else _Part.of(plan.value.record, images)
    parts = [part for part, reader in ((key, plan.key), (value, plan.value)) if reader is not None]
    if any(part is None for part in parts):
        return None
    return _GroupDecoder(plan, types, key, value)


class _Rows(NamedTuple):
    """What the records of a chunk say: one entry a record."""

    ops: npt.NDArray[np.int8]
    commit_ts: pa.Array | None
    before: pa.Array
    after: pa.Array
    zero_dates: pa.Array


@dataclass(frozen=True)
class _GroupDecoder:
    """Decodes the records of one plan."""

    plan: DecodePlan
    types: RowTypes
    key: _Part | None
    value: _Part | None

    def decode(self, batch: _Batch, group: _Group) -> tuple[ChangeTable, Indices]:
        """The row changes of a group, and its records that are not proven."""
        chunks, left = [], []
        for begin in range(0, len(group.rows), CHUNK_RECORDS):
            rows = group.rows[begin : begin + CHUNK_RECORDS]
            table, unproven = self._chunk(batch, rows, group.value == _MARKER)
            if unproven is not None:
                left.append(rows[unproven])
                table = table.filter(pa.array(~unproven))
            chunks.append(table)
        found = pa.Table.from_batches(chunks, self.types.table)
        table = ChangeTable(self.plan.table, self.plan.schema, self.plan.schema_id, found)
        return table, np.concatenate(left) if left else np.empty(0, np.int64)

    def _chunk(self, batch: _Batch, rows: Indices, marked: bool) -> tuple[pa.RecordBatch, Mask | None]:
        proof = _Proof()
        key = None if self.key is None else self.key.decode(_some(batch.keys, rows), proof)
        if self.value is not None:
            found = self._rows(self.value.decode(_some(batch.values, rows), proof), proof)
        else:
            found = self._deletes(key or _no_half(len(rows)))
        if marked:
            found = found._replace(commit_ts=pa.array(batch.marker_times(rows)))
        columns = {
            **_places(batch.records, rows),
            **self._columns(found, len(rows)),
            "key": self._keys(key, len(rows)),
        }
        schema = self.types.table
        table = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        return table, proof.left

    def _columns(self, found: _Rows, count: int) -> dict[str, pa.Array]:
        return {
            "op": op_array(found.ops),
            "commit_ts": pa.nulls(count, pa.int64()) if found.commit_ts is None else found.commit_ts,
            "source": _sources(found.commit_ts, count),
            "before": found.before,
            "after": found.after,
            "unavailable": pa.nulls(count, NAMES_TYPE),
            "unavailable_before": pa.nulls(count, NAMES_TYPE),
            "zero_dates": found.zero_dates,
        }

    def _keys(self, key: _Half | None, count: int) -> pa.StructArray:
        if key is None:
            return pa.nulls(count, self.types.key)
        return _struct(self.types.key, key.row.arrays, count)

    def _deletes(self, key: _Half) -> _Rows:
        """Deletes whose value is null or a marker: the key is all that is known of the row."""
        ops = np.full(key.records, op_code(Op.DELETE), np.int8)
        row = _struct(self.types.row, key.row.arrays, key.records)
        return _Rows(
            ops, None, row, pa.nulls(key.records, self.types.row), _names(key.row.zero_dates, key.records)
        )

    def _rows(self, half: _Half, proof: _Proof) -> _Rows:
        count = half.records
        ops, unknown = _ops(half.extension.get(OP), count)
        proof.leave(unknown)
        deleted = ops == op_code(Op.DELETE)
        if not deleted.any():
            after = _struct(self.types.row, half.row.arrays, count)
            zero_dates = _names(half.row.zero_dates, count)
            return _Rows(ops, half.extension.get(COMMIT_TS), self._before(half, count), after, zero_dates)
        after = _struct(self.types.row, half.row.arrays, count, ~deleted)
        return _Rows(
            ops,
            half.extension.get(COMMIT_TS),
            self._before_or_row(half, deleted),
            after,
            _names(_zero_dates_of(half, deleted), count),
        )

    def _before(self, half: _Half, count: int) -> pa.Array:
        if half.before is None:
            return pa.nulls(count, self.types.row)
        image, present = half.before
        return _struct(self.types.row, image.arrays, count, present)

    def _before_or_row(self, half: _Half, deleted: Mask) -> pa.Array:
        """The row before; of deletes that leave it out, the row that their record holds outside."""
        if half.before is None:
            return _struct(self.types.row, half.row.arrays, half.records, deleted)
        outside = deleted & ~half.before[1]
        before = self._before(half, len(deleted))
        if not outside.any():
            return before
        return pc.if_else(pa.array(outside), _struct(self.types.row, half.row.arrays, half.records), before)


def _zero_dates_of(half: _Half, deleted: Mask) -> dict[str, Mask]:
    """The zero dates of each record's row: of a delete those of the row before, where it has one."""
    image, present = half.before or (_Image([], {}), np.zeros(len(deleted), bool))
    of_before = deleted & present
    found = {name: rows & ~of_before for name, rows in half.row.zero_dates.items()}
    for name, rows in image.zero_dates.items():
        found[name] = found.get(name, False) | (rows & of_before)
    return found


def _some(parts: RecordBytes, rows: Indices) -> RecordBytes:
    begin, end = int(rows[0]), int(rows[-1]) + 1
    # Rows without a gap are a slice, which copies nothing.
    return parts.slice(begin, end) if end - begin == len(rows) else parts.take(rows)


def _places(records: Records, rows: Indices) -> dict[str, pa.Array]:
    begin, end = int(rows[0]), int(rows[-1]) + 1
    kept = {"topic": records.topic, "partition": records.partition, "offset": records.offset}
    if end - begin == len(rows):
        found = {name: array.slice(begin, len(rows)) for name, array in kept.items()}
    else:
        where = pa.array(rows)
        found = {name: array.take(where) for name, array in kept.items()}
    indices = {"record": pa.array(rows + records.start), "index": pa.array(np.zeros(len(rows), np.int32))}
    return {**indices, **found}


def _struct(
    kind: pa.StructType, arrays: Sequence[pa.Array], count: int, present: Mask | None = None
) -> pa.StructArray:
    validity = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(kind, count, [validity], children=list(arrays))


def _ops(values: pa.Array | None, count: int) -> tuple[npt.NDArray[np.int8], Mask | None]:
    """The ops of ``_tidb_op``'s texts, and which are none."""
    if values is None:
        return np.full(count, op_code(Op.UPSERT), np.int8), None
    # A null is a text that is no UTF-8, whose record is not proven.
    found = values.fill_null("").dictionary_encode()
    texts = found.dictionary.to_pylist()
    codes = np.array([op_code(_OPS.get(text, Op.UPSERT)) for text in texts], np.int8)
    indices = found.indices.to_numpy(zero_copy_only=False)
    unknown = np.array([text not in _OPS for text in texts])
    return codes[indices], unknown[indices] if unknown.any() else None


def _sources(commit_ts: pa.Array | None, count: int) -> pa.Array:
    """``Position.source``: the commit_ts alone."""
    if commit_ts is None:
        return pa.nulls(count, SOURCE_TYPE)
    numbers = commit_ts.cast(SOURCE_TYPE.value_type)
    return pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), numbers)


def _names(masks: Mapping[str, Mask], count: int) -> pa.Array:
    """For each record the names whose mask has it; null where none has."""
    if not any(mask.any() for mask in masks.values()):
        return pa.nulls(count, NAMES_TYPE)
    found: list[list[str] | None] = [None] * count
    for name, mask in masks.items():
        for row in np.flatnonzero(mask).tolist():
            found[row] = [*(found[row] or ()), name]
    return pa.array(found, NAMES_TYPE)


class _Image(NamedTuple):
    """The typed columns of one image."""

    arrays: list[pa.Array]
    zero_dates: dict[str, Mask]


@dataclass(frozen=True)
class _Images:
    """Types the columns of a key, a row or the row before."""

    types: RowTypes
    columns: Mapping[str, Column]
    options: ValueOptions

    def covers(self, columns: Sequence[AvroColumn]) -> bool:
        """Whether the table's schema has these columns with these types."""
        return all(one.name in self.columns and self.columns[one.name].type == one.type for one in columns)

    def typed(self, columns: Sequence[AvroColumn], arrays: Sequence[pa.Array], proof: _Proof) -> _Image:
        """The columns' values as the target's types have them."""
        typed, zero_dates = [], {}
        for column, array in zip(columns, arrays, strict=True):
            found = self._column(column, array, proof)
            typed.append(found.values)
            if found.zero_dates is not None:
                zero_dates[column.name] = found.zero_dates
        return _Image(typed, zero_dates)

    def _column(self, column: AvroColumn, array: pa.Array, proof: _Proof) -> ColumnResult:
        values, unproven, convert = _from_wire(column, array)
        proof.leave(unproven)
        found = convert(
            values,
            column.type,
            zero_date=self.types.zero_date_of(self.columns[column.name]),
            time_zone=self.options.zone,
        )
        proof.leave(found.unproven)
        return found


class _Proof:
    """Collects which records of a chunk are not proven."""

    def __init__(self) -> None:
        self._unproven: Mask | None = None

    def leave(self, rows: Mask | None) -> None:
        """Leave these to the row codec."""
        if rows is not None:
            self._unproven = rows if self._unproven is None else self._unproven | rows

    @property
    def left(self) -> Mask | None:
        """The records that are not proven; None where all are."""
        return None if self._unproven is None or not self._unproven.any() else self._unproven


def _from_wire(
    column: AvroColumn, values: pa.Array
) -> tuple[pa.Array, Mask | None, Callable[..., ColumnResult]]:
    """The column's values in ``tidesink.events``'s form, which are not proven, and what types them.

    The twin of ``payloads.from_wire``; decimals in bytes were read by the Avro decoder.
    """
    reader = row_of(column.type).reader
    if column.avro == "string":
        return values, None, from_text if reader in ("decimal", "unsigned64") else from_value
    if reader == "unsigned64":
        # Above 2^63-1 the long on the wire is negative.
        return values.view(pa.uint64()), None, from_value
    if reader == "bit":
        return *_bits(values, column.type), from_value
    return values, None, from_value


def _bits(values: pa.Array, column_type: ColumnType) -> tuple[pa.Array, Mask | None]:
    """BIT's big-endian bytes, shortest or full width, as numbers."""
    parts = RecordBytes.of(values)
    size = parts.end - parts.start
    numbers = parts.words().byteswap() >> (64 - 8 * np.clip(size, 1, 8)).astype(np.uint64)
    numbers[size == 0] = 0
    unproven = size > 8
    length = column_type.length or 64
    if length < 64:
        unproven |= numbers >> np.uint64(length) != 0
    validity = values.is_valid().buffers()[1] if values.null_count else None
    return pa.Array.from_buffers(pa.uint64(), len(values), [validity, pa.py_buffer(numbers)]), unproven


@dataclass(frozen=True)
class _Part:
    """Decodes one half of a record, the key or the value."""

    record: WriterRecord
    decoder: AvroDecoder
    images: _Images

    @classmethod
    def of(cls, record: WriterRecord, images: _Images) -> _Part | None:
        """None where the row codec must see each record of the schema."""
        same = images.covers(record.columns) and images.covers(record.before or ())
        if not same or not _is_ordinary(record):
            return None
        return cls(record, AvroDecoder(_decimal_schema(record)), images)

    def decode(self, parts: RecordBytes, proof: _Proof) -> _Half:
        """The typed columns of records whose headers are skipped here."""
        found = self.decoder.decode(RecordBytes(parts.data, parts.start + HEADER_SIZE, parts.end))
        proof.leave(found.unproven)
        fields = {one.name: found.record.field(index) for index, one in enumerate(found.record.type)}
        row = self._typed(self.record.columns, fields, proof)
        before = None
        if self.record.before is not None:
            before = self._before(fields[BEFORE], proof)
        return _Half(len(parts), row, before, _members(fields.get(EXTENSION)))

    def _typed(self, columns: Sequence[AvroColumn], fields: Mapping[str, pa.Array], proof: _Proof) -> _Image:
        return self.images.typed(columns, [fields[one.name] for one in columns], proof)

    def _before(self, before: pa.StructArray, proof: _Proof) -> tuple[_Image, Mask] | None:
        """The row before and where there is one; None where no record has one."""
        if before.null_count == len(before):
            return None
        fields = {one.name: before.field(index) for index, one in enumerate(before.type)}
        present = before.is_valid().to_numpy(zero_copy_only=False)
        return self._typed(self.record.before or (), fields, proof), present


class _Half(NamedTuple):
    """What was decoded of keys or values: the row, the row before and where there is one, the extension."""

    records: int
    row: _Image
    before: tuple[_Image, Mask] | None
    extension: dict[str, pa.Array]


def _no_half(records: int) -> _Half:
    """The key of records that have none."""
    return _Half(records, _Image([], {}), None, {})


def _members(record: pa.StructArray | None) -> dict[str, pa.Array]:
    if record is None:
        return {}
    return {one.name: record.field(index) for index, one in enumerate(record.type)}


def _is_ordinary(record: WriterRecord) -> bool:
    """Whether the extension has the types that TiCDC writes, and the row before the row's own columns."""
    extension = [one["type"]["fields"] for one in record.bare["fields"] if one["name"] == EXTENSION]
    types = {one["name"]: one["type"] for fields in extension for one in fields}
    same = record.before is None or tuple(one.name for one in record.before) == record.column_names
    return same and types.get(OP, "string") == "string" and types.get(COMMIT_TS, "long") == "long"


def _decimal_schema(record: WriterRecord) -> dict[str, Any]:
    """The bare schema, with the logical type where a column is a decimal in bytes."""

    def typed(fields: Sequence[Mapping[str, Any]], columns: Sequence[AvroColumn]) -> list[dict[str, Any]]:
        by_name = {column.name: column for column in columns}
        return [
            {"name": one["name"], "type": _with_decimal(by_name[one["name"]])}
            if one["name"] in by_name
            else dict(one)
            for one in fields
        ]

    fields = typed(record.bare["fields"], record.columns)
    for one in fields:
        if one["name"] == BEFORE and record.before is not None:
            null, inner = one["type"]
            one["type"] = [null, {**inner, "fields": typed(inner["fields"], record.before)}]
    return {**record.bare, "fields": fields}


def _with_decimal(column: AvroColumn) -> object:
    if column.avro != "bytes" or row_of(column.type).reader != "decimal":
        return column.bare
    digits = {"precision": column.type.precision or 65, "scale": column.type.scale or 0}
    decimal = {"type": "bytes", "logicalType": "decimal", **digits}
    if column.null_first is None:
        return decimal
    return ["null", decimal] if column.null_first else [decimal, "null"]
