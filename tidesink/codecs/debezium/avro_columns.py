"""Decodes debezium-avro, many records at a time: all records of one schema are decoded together.

A record with a Confluent header is decoded with the schema that its header names, without logical types,
because the Connect schema determines what a value means. Some records are left to the row codec, which
decodes one record at a time: records that are not envelopes, records whose schema is not available, and
records that ``codecs.avro_columns`` cannot decode with certainty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.avro_columns import CHUNK_RECORDS, AvroDecoder, RecordBytes
from tidesink.codecs.batch import ColumnarResult, Indices, Records, ValueOptions
from tidesink.codecs.debezium.columns import Changes, Envelopes, EnvelopeTables, Image, IsFlattened
from tidesink.codecs.debezium.connect_schema import ConnectSchema
from tidesink.codecs.debezium.formats import AvroParser
from tidesink.codecs.framing import HEADER_SIZE
from tidesink.errors import DecodeError, RegistryError
from tidesink.events import SchemaIds

_NULL, _LEFT = -1, -2
_MOST_WRITERS: Final = 4096
_ID_BYTES: Final = tuple(zip(range(1, HEADER_SIZE), (24, 16, 8, 0), strict=True))


class _Halves(NamedTuple):
    """The keys or the values of many records: their schema ids, and the bytes after each Confluent header."""

    ids: npt.NDArray[np.int64]
    records: RecordBytes

    @classmethod
    def of(cls, column: pa.Array) -> _Halves:
        """Splits a column of keys or values into schema ids and bytes.

        The id is ``_NULL`` for a null, and ``_LEFT`` for bytes without a Confluent header.
        """
        whole = RecordBytes.of(column)
        ids = np.full(len(column), _LEFT, np.int64)
        framed = np.flatnonzero(whole.end - whole.start >= HEADER_SIZE)
        framed = framed[whole.data[whole.start[framed]] == 0]
        start = whole.start[framed]
        schema_ids = np.zeros(len(framed), np.int64)
        for offset, shift in _ID_BYTES:
            schema_ids |= whole.data[start + offset].astype(np.int64) << shift
        ids[framed] = schema_ids
        ids[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
        return cls(ids, RecordBytes(whole.data, whole.start + HEADER_SIZE, whole.end))


class _Reader(NamedTuple):
    decoder: AvroDecoder
    schema: ConnectSchema


class AvroEnvelopes:
    """Columnar decoder of debezium-avro; caches the decoder of each schema."""

    def __init__(self, tables: EnvelopeTables, parser: AvroParser, is_flattened: IsFlattened) -> None:
        self._tables, self._parser, self._is_flattened = tables, parser, is_flattened
        self._readers: dict[int, _Reader | None] = {}

    def read(self, records: Records, options: ValueOptions) -> ColumnarResult:
        """Decodes the records that are envelopes of row changes, grouped by their schemas.

        The result lists the indices of all other records, which the row codec decodes one by one.
        """
        values, keys = _Halves.of(records.value), _Halves.of(records.key)
        usable = (values.ids >= 0) & (keys.ids >= _NULL)
        unknown, changes = [np.flatnonzero(~usable & (values.ids != _NULL))], Changes()
        for value, key in _pairs(values.ids[usable], keys.ids[usable]):
            where = np.flatnonzero(usable & (values.ids == value) & (keys.ids == key))
            for envelopes, rest in self._of_schemas(where, values, keys, value, key):
                unknown.append(rest)
                if envelopes is not None:
                    self._tables.read(records, envelopes, options, changes)
        return changes.result(records, np.concatenate(unknown), self._is_flattened)

    def _of_schemas(
        self, where: Indices, values: _Halves, keys: _Halves, value: int, key: int
    ) -> Iterator[tuple[Envelopes | None, Indices]]:
        """Decodes the records whose value has the schema id ``value`` and whose key has the id ``key``.

        Yields, for each chunk of these records, the decoded envelopes, and the indices of the records that
        were not decoded. The row codec decodes those records one by one.
        """
        reader, key_reader = self._reader(value), None if key == _NULL else self._reader(key)
        if reader is None or not _is_envelope(reader.decoder.type) or (key != _NULL and key_reader is None):
            yield None, where
            return
        ids = SchemaIds(None if key == _NULL else key, value)
        for start in range(0, len(where), CHUNK_RECORDS):
            some = where[start : start + CHUNK_RECORDS]
            yield from _decoded(some, values, keys, (reader, key_reader), ids)

    def _reader(self, schema_id: int) -> _Reader | None:
        if schema_id in self._readers:
            return self._readers[schema_id]
        if len(self._readers) >= _MOST_WRITERS:
            self._readers.clear()
        try:
            writer = self._parser.writer(schema_id)
            reader = _Reader(AvroDecoder(writer.bare), writer.schema)
        except RegistryError:
            return None  # it may be available the next time
        except DecodeError:
            reader = None
        self._readers[schema_id] = reader
        return reader


def _pairs(values: npt.NDArray[np.int64], keys: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Returns each distinct pair of a record's value schema id and key schema id once."""
    if len(values) and (values == values[0]).all() and (keys == keys[0]).all():
        return [(int(values[0]), int(keys[0]))]
    return sorted(set(zip(values.tolist(), keys.tolist(), strict=True)))


def _is_envelope(kind: pa.StructType) -> bool:
    """Returns True if records of this type are envelopes of row changes.

    Such a record has an op, a source block, an old row and a new row, and no DDL statement.
    """
    fields = {field.name: field.type for field in kind}
    structs = (fields.get(name, pa.null()) for name in ("source", "before", "after"))
    return "ddl" not in fields and fields.get("op") == pa.string() and all(map(pa.types.is_struct, structs))


def _decoded(
    where: Indices,
    values: _Halves,
    keys: _Halves,
    readers: tuple[_Reader, _Reader | None],
    ids: SchemaIds,
) -> Iterator[tuple[Envelopes | None, Indices]]:
    reader, key_reader = readers
    decoded = reader.decoder.decode(values.records.take(where))
    record, bad = decoded.record, decoded.unproven
    op, source = _field(record, "op"), _field(record, "source")
    empty = pc.or_(op.is_null(), source.is_null()).to_numpy(zero_copy_only=False)
    bad = empty if bad is None else bad | empty
    key: pa.StructArray | None = None
    if key_reader is not None:
        key, bad_keys = key_reader.decoder.decode(keys.records.take(where))
        bad = bad if bad_keys is None else bad | bad_keys
    if bad.any():
        good = pa.array(np.flatnonzero(~bad))
        yield None, where[bad]
        where, record, key = where[~bad], record.take(good), key and key.take(good)
    if len(where):
        schemas = (reader.schema, None if key_reader is None else key_reader.schema)
        yield from ((envelopes, where[:0]) for envelopes in _by_connector(where, record, key, schemas, ids))


def _by_connector(
    where: Indices,
    record: pa.StructArray,
    key: pa.StructArray | None,
    schemas: tuple[ConnectSchema, ConnectSchema | None],
    ids: SchemaIds,
) -> Iterator[Envelopes]:
    source = _field(record, "source")
    names = frozenset(field.name for field in source.type)
    connectors = _field(source, "connector") if "connector" in names else pa.nulls(len(where), pa.string())
    distinct = connectors.unique().to_pylist()
    for value in distinct:
        connector = value if isinstance(value, str) else ""
        made = Envelopes(
            where=where,
            connector=connector,
            schema=schemas[0],
            key_schema=schemas[1],
            ids=ids,
            ops=_field(record, "op"),
            source=partial(_field, source),
            source_names=names,
            before=_image(_field(record, "before")),
            after=_image(_field(record, "after")),
            key=None if key is None else _image(key),
        )
        if len(distinct) > 1:
            same = connectors.is_null() if value is None else pc.equal(connectors, value).fill_null(False)
            made = made.take(np.flatnonzero(same.to_numpy(zero_copy_only=False)))
        yield made


def _field(record: pa.StructArray, name: str) -> pa.Array:
    return record.field(name)


def _image(rows: pa.StructArray) -> Image:
    present = rows.is_valid().to_numpy(zero_copy_only=False)
    member: Callable[[str], Any] = partial(_field, rows)
    return Image(present, member, whole=True)
