"""Decodes many flat-avro records at once into Arrow tables: the columnar step of the flat-avro codec.

Records are grouped by topic and by the Confluent headers of key and value. All records of a group have the
same pair of schemas, so they share one decode plan of the row codec, with its table and columns. Watermarks
and delete markers are decoded here, too (``flat_avro.codec`` describes them).

These records are left to the row codec, which decodes one record at a time: DDL events, messages with AWS
Glue headers, rows whose checksum must be checked, and records whose bytes or values may not be valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.avro_columns import CHUNK_RECORDS, AvroDecoder, Mask, RecordBytes
from tidesink.codecs.batch import (
    MARKS,
    NAMES_TYPE,
    SOURCE_TYPE,
    ChangeTable,
    ColumnarResult,
    Indices,
    Records,
    RowTypes,
    ValueOptions,
    name_lists,
    op_array,
    op_code,
)
from tidesink.codecs.flat_avro.payloads import OPS, DecodePlan
from tidesink.codecs.flat_avro.schema import BEFORE, COMMIT_TS, EXTENSION, OP, AvroColumn, WriterRecord
from tidesink.codecs.framing import HEADER_SIZE
from tidesink.errors import DecodeError, RegistryError
from tidesink.events import ColumnType, Message, Op, Position, WatermarkEvent
from tidesink.typemap.arrow import ColumnResult, from_text, from_value
from tidesink.typemap.table import TimePolicies, row_of

PlanOf = Callable[[Message], DecodePlan]
Heads = npt.NDArray[np.uint64]

# Codes that replace the number of a Confluent header. The five bytes of a header are a smaller number.
_NULL: Final = 1 << 40
_MARKER: Final = 2 << 40
_WATERMARK: Final = 3 << 40
_OTHER: Final = 4 << 40
_HEAD_BITS: Final = np.uint64((1 << 40) - 1)
_CONTROL_SIZE: Final = 9


@dataclass(frozen=True)
class FlatAvroColumns:
    """Decodes many flat-avro records at once into Arrow tables (the codec's columnar step).

    ``plan_of``: function that returns the row codec's decode plan (readers, table and schema) for a message's
    topic and Confluent headers. ``options``: options for converting values.
    """

    plan_of: PlanOf
    options: ValueOptions
    _groups: dict[tuple[str, int, int], _GroupDecoder | None] = field(default_factory=dict, repr=False)

    def __call__(self, records: Records) -> ColumnarResult:
        """Decodes the records of a batch, except for those that may not be valid.

        The result's ``left`` has the indices of those records, which the row codec must decode.
        """
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
        """Returns the decoder of a group of records, or None if the row codec must decode the group.

        If the registry does not return a schema, the result is None, and the row codec raises the error. The
        result is then not cached, so that the next batch requests the schema again.
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
    """The records of one topic that have the same Confluent header in their keys and in their values.

    ``key`` and ``value``: the header as a number, or the code of a null or a delete marker, which have no
    header. ``rows``: ascending indices of the records.
    """

    topic: str
    key: int
    value: int
    rows: Indices

    @property
    def message(self) -> Message:
        """A message that has only the group's topic and headers, to look up the decode plan."""
        return Message(self.topic, 0, 0, _header(self.key), _header(self.value))


def _header(head: int) -> bytes | None:
    # A delete marker replaces the value, so only the key's schema describes the row.
    return None if head in (_NULL, _MARKER) else head.to_bytes(8, "little")[:HEADER_SIZE]


class _Batch:
    """The records of a batch with the Confluent headers of their keys and values, as numbers.

    Keys and values without a Confluent header have a code instead of a number: one code each for nulls,
    delete markers, watermarks and all other bytes.
    """

    def __init__(self, records: Records) -> None:
        self.records = records
        self.keys, self.values = (RecordBytes.of(column) for column in (records.key, records.value))
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
        marker = whole & (kind == 3) & (keys < _NULL) & (self.commit_ts(others) >= 0)
        self._value_heads[others[marker]] = _MARKER
        self._value_heads[others[whole & (kind == 2) & (keys == _NULL)]] = _WATERMARK

    def commit_ts(self, rows: Indices) -> npt.NDArray[np.int64]:
        """Returns the commit_ts in the values of watermarks and delete markers; negative from 2^63 on."""
        values = self.values.take(rows)
        words = RecordBytes(values.data, np.minimum(values.start + 1, values.end), values.end).words()
        times: npt.NDArray[np.int64] = words.byteswap().view(np.int64)
        return times

    @cached_property
    def left(self) -> Mask:
        """Mask of the records that the row codec must decode.

        Their key or value begins with other bytes than a Confluent header, or both the key and the row are
        missing.
        """
        keys, values = self._key_heads, self._value_heads
        nothing = (keys == _NULL) & ((values == _NULL) | (values == _MARKER))
        mask: Mask = (keys == _OTHER) | (values == _OTHER) | nothing
        return mask

    def watermarks(self) -> list[tuple[int, WatermarkEvent]]:
        """Returns the watermarks, each with the index of its record in the batch's input."""
        rows = np.flatnonzero(self._value_heads == _WATERMARK)
        if not len(rows):
            return []
        times = self.commit_ts(rows).view(np.uint64).tolist()
        messages = self.records.take(rows)
        return [
            (record, WatermarkEvent(ts, Position(message.topic, message.partition, message.offset, 0, (ts,))))
            for (record, message), ts in zip(messages, times, strict=True)
        ]

    def groups(self) -> Iterator[_Group]:
        """Yields the records that are row changes, in groups with the same topic and the same headers."""
        rows = np.flatnonzero(~self.left & (self._value_heads != _WATERMARK))
        if not len(rows):
            return
        topics = self.records.topic.indices.to_numpy(zero_copy_only=False)
        columns = (topics, self._key_heads, self._value_heads)
        for group in _split(rows, columns):
            first = int(group[0])
            topic = self.records.topic[first].as_py()
            yield _Group(topic, int(self._key_heads[first]), int(self._value_heads[first]), group)


def _heads(parts: RecordBytes, array: pa.Array) -> Heads:
    heads: Heads = parts.words() & _HEAD_BITS
    framed = (heads & np.uint64(0xFF) == 0) & (parts.end - parts.start >= HEADER_SIZE)
    if not framed.all():
        heads = np.where(framed, heads, np.uint64(_OTHER))
    if array.null_count:
        heads[array.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return heads


def _split(rows: Indices, columns: Sequence[npt.NDArray[Any]]) -> Iterator[Indices]:
    """Groups rows with the same values in all columns. Yields the ascending row indices of each group."""
    codes = np.zeros(len(rows), np.int64)
    count = 1
    for column in columns:
        values = column if len(rows) == len(column) else column[rows]
        if (values == values[0]).all():
            continue
        encoded = pc.dictionary_encode(pa.array(values))
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        # The codes are encoded again, so that they stay small.
        again = pc.dictionary_encode(pa.array(codes))
        codes, count = again.indices.to_numpy().astype(np.int64), len(again.dictionary)
    if count == 1:
        yield rows
        return
    order = np.argsort(codes.astype(np.int16) if count < 1 << 15 else codes, kind="stable")
    yield from np.split(rows[order], np.flatnonzero(np.diff(codes[order])) + 1)


# One group


def _group_decoder(plan: DecodePlan, options: ValueOptions) -> _GroupDecoder | None:
    """Returns a decoder for the records of a decode plan, or None if the row codec must decode them."""
    if plan.sums is not None:
        return None
    types = RowTypes(plan.schema, None if plan.key is None else plan.key.record.column_names, options)
    columns = {column.name: (column.type, types.policies_of(column)) for column in plan.schema.columns}
    readers = (plan.key, plan.value)
    key, value = (
        None
        if reader is None
        else _Part.of(reader.record, columns, options, summed=plan.time_sums is not None)
        for reader in readers
    )
    if (plan.key and not key) or (plan.value and not value):
        return None
    return _GroupDecoder(plan, types, key, value)


class _Image(NamedTuple):
    """The converted columns of one row image (key, before or after).

    ``arrays``: the columns' values. ``marks``: for each mark in ``MARKS`` (such as ``zero_dates``) the masks
    of the values with this mark, by column name.
    """

    arrays: list[pa.Array]
    marks: Mapping[str, Mapping[str, Mask]]


_NO_IMAGE: Final = _Image([], {mark: {} for mark in MARKS})


class _Half(NamedTuple):
    """The decoded keys or values of a group's records.

    ``row``: columns of the row (or of the key). ``before``: columns of the row before the change, with a mask
    of the records that have it; None if no record has it. ``extension``: fields of the TiDB extension by
    name.
    """

    row: _Image = _NO_IMAGE
    before: tuple[_Image, Mask] | None = None
    extension: Mapping[str, pa.Array] = {}


@dataclass(frozen=True)
class _GroupDecoder:
    """Decodes the records of one decode plan.

    ``key`` and ``value``: decoders of the keys and the values, or None if they are null in these records.
    """

    plan: DecodePlan
    types: RowTypes
    key: _Part | None
    value: _Part | None

    def decode(self, batch: _Batch, group: _Group) -> tuple[ChangeTable, Indices]:
        """Returns the row changes of a group, and the indices of records that the row codec must decode."""
        chunks, left = [], []
        for begin in range(0, len(group.rows), CHUNK_RECORDS):
            rows = group.rows[begin : begin + CHUNK_RECORDS]
            unproven = np.zeros(len(rows), np.bool_)
            table = self._chunk(batch, rows, unproven, group.value == _MARKER)
            if unproven.any():
                left.append(rows[unproven])
                table = table.filter(pa.array(~unproven))
            chunks.append(table)
        combined = pa.Table.from_batches(chunks, self.types.table)
        table = ChangeTable(self.plan.table, self.plan.schema, self.plan.schema_id, combined)
        return table, np.concatenate(left) if left else np.empty(0, np.int64)

    def _chunk(self, batch: _Batch, rows: Indices, left: Mask, marked: bool) -> pa.RecordBatch:
        count = len(rows)
        key = _Half() if self.key is None else self.key.decode(_some(batch.keys, rows), left)
        half = key if self.value is None else self.value.decode(_some(batch.values, rows), left)
        # A record without a value is a delete, and contains only the key of the row.
        op = Op.DELETE if self.value is None else Op.UPSERT
        ops = _ops(half.extension[OP], left) if OP in half.extension else np.full(count, op_code(op), np.int8)
        commit_ts = pa.array(batch.commit_ts(rows)) if marked else half.extension.get(COMMIT_TS)
        columns = {
            **batch.records.places(rows),
            "op": op_array(ops),
            "commit_ts": pa.nulls(count, pa.int64()) if commit_ts is None else commit_ts,
            "source": _sources(commit_ts, count),
            "key": pa.nulls(count, self.types.key)
            if self.key is None
            else _struct(self.types.key, key.row, count),
            **self._images(half, ops == op_code(Op.DELETE)),
            "unavailable": pa.nulls(count, NAMES_TYPE),
            "unavailable_before": pa.nulls(count, NAMES_TYPE),
        }
        schema = self.types.table
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _images(self, half: _Half, deleted: Mask) -> dict[str, pa.Array]:
        """Returns the columns ``before``, ``after``, ``zero_dates`` and ``ambiguous_times`` of row changes.

        ``deleted``: mask of the deletes.
        """
        kind, count, row = self.types.row, len(deleted), half.row
        image, present = half.before or (_NO_IMAGE, np.zeros(count, np.bool_))
        before = _struct(kind, image, count, present)
        if not deleted.any():
            lists = {name: name_lists(marked, count) for name, marked in row.marks.items()}
            return {"before": before, "after": _struct(kind, row, count), **lists}
        # A delete contains the old row at the top level. It may also contain it as the nested old row.
        outside = deleted & ~present
        if not present.any():
            before = _struct(kind, row, count, outside)
        elif outside.any():
            before = pc.if_else(pa.array(outside), _struct(kind, row, count), before)
        lists = {}
        for mark, marked in row.marks.items():
            masks = {name: rows & ~(deleted & present) for name, rows in marked.items()}
            for name, rows in image.marks[mark].items():
                masks[name] = masks.get(name, False) | (rows & deleted & present)
            lists[mark] = name_lists(masks, count)
        return {"before": before, "after": _struct(kind, row, count, ~deleted), **lists}


def _some(parts: RecordBytes, rows: Indices) -> RecordBytes:
    begin, end = int(rows[0]), int(rows[-1]) + 1
    # Consecutive rows are sliced, which copies nothing.
    return parts.slice(begin, end) if end - begin == len(rows) else parts.take(rows)


def _struct(kind: pa.StructType, image: _Image, count: int, present: Mask | None = None) -> pa.StructArray:
    if present is not None and not present.any():
        return pa.nulls(count, kind)
    validity = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(kind, count, [validity], children=image.arrays)


def _ops(values: pa.Array, left: Mask) -> npt.NDArray[np.int8]:
    """Converts the texts in the field ``_tidb_op`` to operation codes, which are indices in ``batch.OPS``.

    Records with an unknown operation are marked in ``left``, so that the row codec decodes them.
    """
    # A null replaces a text that is not UTF-8. Its record is already marked as left to the row codec.
    encoded = values.fill_null("").dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    left |= np.array([text not in OPS for text in texts], np.bool_)[indices]
    ops: npt.NDArray[np.int8] = np.array([op_code(OPS.get(text, Op.UPSERT)) for text in texts], np.int8)[
        indices
    ]
    return ops


def _sources(commit_ts: pa.Array | None, count: int) -> pa.Array:
    """Returns the column ``source`` of row changes: for each row a list with only its commit_ts, or null."""
    if commit_ts is None:
        return pa.nulls(count, SOURCE_TYPE)
    numbers = commit_ts.cast(SOURCE_TYPE.value_type)
    return pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), numbers)


# Converts a column's decoded values for the target, and marks the records whose values may not be valid.
_Step = Callable[[pa.Array, Mask], ColumnResult]


def _step(column: AvroColumn, policies: TimePolicies, zone: tzinfo, *, summed: bool) -> _Step:
    """Returns a function that converts all decoded values of a column to values for the target.

    For single values, ``payloads.from_wire`` does the same. ``summed``: True if rows have a checksum that may
    show which of two moments an ambiguous local time means. Then rows with such a time are left to the row
    codec, which uses the checksum.
    """
    reader, is_text = row_of(column.type).reader, column.avro == "string"
    convert = from_text if is_text and reader in ("decimal", "unsigned64") else from_value

    def read(wire: pa.Array, left: Mask) -> ColumnResult:
        if reader == "unsigned64" and not is_text:
            wire = wire.view(pa.uint64())  # values above 2^63-1 are negative longs in Avro
        elif reader == "bit":
            wire, unproven = _bits(wire, column.type)
            left |= unproven
        converted = convert(wire, column.type, time_zone=zone, **policies)
        if converted.unproven is not None:
            left |= converted.unproven
        if summed and converted.ambiguous_times is not None:
            left |= converted.ambiguous_times
        return converted

    return read


@dataclass(frozen=True)
class _Part:
    """Decodes one part of each record: its key or its value.

    ``decoder``: decoder of the Avro bytes. ``row``: for each column of the row, the function that converts
    its values. ``before``: the same for the row before the change; None if the schema does not have it.
    """

    decoder: AvroDecoder
    row: Mapping[str, _Step]
    before: Mapping[str, _Step] | None

    @classmethod
    def of(
        cls,
        record: WriterRecord,
        columns: Mapping[str, tuple[ColumnType, TimePolicies]],
        options: ValueOptions,
        *,
        summed: bool,
    ) -> _Part | None:
        """Returns a decoder for the records of a schema, or None if the row codec must decode them.

        ``columns``: type and time policies of each column of the table, by name. ``summed``: True if a row's
        checksum may show which of two moments an ambiguous local time means.
        """
        both = (record.columns, record.before or ())
        if any(columns.get(column.name, (None,))[0] != column.type for image in both for column in image):
            return None
        if not _is_ordinary(record):
            return None
        row, before = (
            {
                column.name: _step(column, columns[column.name][1], options.zone, summed=summed)
                for column in image
            }
            for image in both
        )
        decoder = AvroDecoder(_decimal_schema(record))
        return cls(decoder, row, before if record.before is not None else None)

    def decode(self, parts: RecordBytes, left: Mask) -> _Half:
        """Decodes the keys or values of records, after their Confluent headers.

        Records that may not be valid are marked in ``left``, so that the row codec decodes them.
        """
        decoded = self.decoder.decode(RecordBytes(parts.data, parts.start + HEADER_SIZE, parts.end))
        if decoded.unproven is not None:
            left |= decoded.unproven
        fields = _members(decoded.record)
        extension = _members(fields[EXTENSION]) if EXTENSION in fields else {}
        before = None
        if self.before is not None and fields[BEFORE].null_count < len(parts):
            present = fields[BEFORE].is_valid().to_numpy(zero_copy_only=False)
            before = _read(self.before, _members(fields[BEFORE]), left), present
        return _Half(_read(self.row, fields, left), before, extension)


def _read(steps: Mapping[str, _Step], fields: Mapping[str, pa.Array], left: Mask) -> _Image:
    columns = {name: step(fields[name], left) for name, step in steps.items()}
    marks = {
        mark: {name: mask for name, column in columns.items() if (mask := getattr(column, mark)) is not None}
        for mark in MARKS
    }
    return _Image([column.values for column in columns.values()], marks)


def _members(record: pa.StructArray) -> dict[str, pa.Array]:
    return {field.name: record.field(index) for index, field in enumerate(record.type)}


def _bits(values: pa.Array, column_type: ColumnType) -> tuple[pa.Array, Mask]:
    """Converts the big-endian bytes of BIT values to unsigned 64-bit numbers.

    Returns the numbers, and a mask of the values with more bits than the column type has.
    """
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


def _is_ordinary(record: WriterRecord) -> bool:
    """Returns True if a schema has the form that TiCDC normally writes.

    In this form the fields of the TiDB extension have TiCDC's types, and the row before the change has the
    same columns as the row. The row codec decodes the records of other schemas.
    """
    extension = [field["type"]["fields"] for field in record.bare["fields"] if field["name"] == EXTENSION]
    types = {field["name"]: field["type"] for fields in extension for field in fields}
    same = record.before is None or tuple(column.name for column in record.before) == record.column_names
    return same and types.get(OP, "string") == "string" and types.get(COMMIT_TS, "long") == "long"


def _decimal_schema(record: WriterRecord) -> dict[str, Any]:
    """Returns the Avro schema for decoding, in which decimals in bytes have the logical type ``decimal``."""

    def typed(fields: Sequence[Mapping[str, Any]], columns: Sequence[AvroColumn]) -> list[dict[str, Any]]:
        by_name = {column.name: column for column in columns}
        return [
            {"name": field["name"], "type": _with_decimal(by_name[field["name"]])}
            if field["name"] in by_name
            else dict(field)
            for field in fields
        ]

    fields = typed(record.bare["fields"], record.columns)
    for avro_field in fields:
        if avro_field["name"] == BEFORE and record.before is not None:
            null, inner = avro_field["type"]
            avro_field["type"] = [null, {**inner, "fields": typed(inner["fields"], record.before)}]
    return {**record.bare, "fields": fields}


def _with_decimal(column: AvroColumn) -> object:
    if column.avro != "bytes" or row_of(column.type).reader != "decimal":
        return column.bare
    digits = {"precision": column.type.precision or 65, "scale": column.type.scale or 0}
    decimal = {"type": "bytes", "logicalType": "decimal", **digits}
    if column.null_first is None:
        return decimal
    return ["null", decimal] if column.null_first else [decimal, "null"]
