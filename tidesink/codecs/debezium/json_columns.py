"""Decodes debezium-json, many records at a time, if each record contains a schema.

The text around the payload is the same in all records of one schema. So this text is compared as bytes, and
the schema in it is parsed only once. msgspec decodes the payloads into structs that are generated for that
schema; it accepts no members that the schema does not have, and no values of another type. These records are
left to the row codec, which decodes one record at a time: records without a schema, and records that msgspec
does not accept, such as invalid JSON. Compressed keys and values are decompressed first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.base import ByIdentity
from tidesink.codecs.batch import ColumnarResult, Indices, Records, ValueOptions
from tidesink.codecs.compression import decompressed
from tidesink.codecs.debezium.columns import Changes, Envelopes, EnvelopeTables, Image, IsFlattened, Wire
from tidesink.codecs.debezium.connect_schema import ConnectField, ConnectSchema, ConnectType
from tidesink.codecs.debezium.envelope import position_members, table_members
from tidesink.codecs.debezium.formats import JSON_START, Wrapping, json_number, wrapping_of
from tidesink.codecs.debezium.scalars import INTEGER_BITS
from tidesink.errors import ConfigError, DecodeError
from tidesink.typemap.arrow import NOT_HELD

T = TypeVar("T")

_NULL, _LEFT = -1, -2
_MOST_TEXTS: Final = 256
_MOST_ROOM: Final = 1 << 25
_ERRORS: Final = (msgspec.MsgspecError, ValueError, RecursionError, DecodeError)
_ARRAYS: Final[dict[str, pa.DataType]] = {
    **dict.fromkeys(INTEGER_BITS, pa.int64()),
    **dict.fromkeys(("float32", "float64"), pa.float64()),
    **dict.fromkeys(("string", "bytes"), pa.string()),
    "boolean": pa.bool_(),
}
# Number of records decoded together: their objects stay in the processor's cache.
_TOGETHER: Final = 512
_NO_RECORDS: Final[Indices] = np.empty(0, np.int64)


class _Part:
    """Finds the payloads in the keys, or in the values, of records.

    The JSON text around a payload contains the schema and is the same in many records, so it is cached.
    """

    def __init__(self) -> None:
        self._texts: list[Wrapping] = []

    def split(self, column: pa.Array) -> _Split:
        """Finds each record's payload, and the cached text around it that contains the schema."""
        if len(self._texts) > _MOST_TEXTS or sum(map(_size, self._texts)) > _MOST_ROOM:
            self._texts = []
        result = _Split.of(column, self._texts)
        waiting = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        for code in range(len(self._texts)):
            if len(waiting):
                waiting = result.match(code, waiting)
        while len(waiting) and len(self._texts) <= _MOST_TEXTS:
            first, waiting = int(waiting[0]), waiting[1:]
            text = _wrapping(column[first].as_py())
            if text is not None:
                self._texts.append(text)
                waiting = result.match(len(self._texts) - 1, np.concatenate([[first], waiting]))
        return result


def _size(text: Wrapping) -> int:
    return len(text.head) + len(text.tail)


def _wrapping(data: bytes) -> Wrapping | None:
    try:
        return wrapping_of(data)
    except _ERRORS:
        return None


@dataclass
class _Split:
    """The position of each record's payload in a column of keys or values.

    ``texts`` holds the texts that surround payloads. ``codes`` holds, per record, the index in ``texts`` of
    the text around its payload; the code is negative for a null, and for a record without such a text.
    """

    column: pa.Array
    texts: list[Wrapping]
    codes: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    data: memoryview

    @classmethod
    def of(cls, column: pa.Array, texts: list[Wrapping]) -> _Split:
        """Creates the object for a column of keys or values; ``match`` then finds the payloads in it."""
        kind: Any = np.int64 if pa.types.is_large_binary(column.type) else np.int32
        _, offsets, data = column.buffers()
        count, size = len(column), kind().itemsize
        bounds = np.zeros(1, kind)
        if count and offsets is not None:
            bounds = np.frombuffer(offsets, kind, count + 1, column.offset * size)
        codes = np.full(count, _LEFT, np.int32)
        codes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
        view = memoryview(b"") if data is None else memoryview(data)
        return cls(column, texts, codes, bounds, bounds[:-1].copy(), bounds[1:].copy(), view)

    def match(self, code: int, waiting: Indices) -> Indices:
        """Finds the payloads of those ``waiting`` records whose payload is surrounded by ``texts[code]``.

        ``waiting`` holds indices of records. Returns the indices of the other records.
        """
        head, tail = self.texts[code].head, self.texts[code].tail
        starts, ends = self.offsets[:-1] + len(head), self.offsets[1:] - len(tail)
        fits = (starts <= ends)[waiting]
        # Split each record into three pieces, which are compared without a copy.
        cuts = np.empty(3 * len(self.codes) + 1, self.offsets.dtype)
        cuts[0::3] = self.offsets
        cuts[1::3] = np.minimum(starts, self.offsets[1:])
        cuts[2::3] = np.maximum(ends, cuts[1::3])
        kind = self.column.type
        buffers = [None, pa.py_buffer(cuts), self.column.buffers()[2] or pa.py_buffer(b"")]
        pieces = pa.Array.from_buffers(kind, len(cuts) - 1, buffers)
        same = (_same(pieces, head)[0::3] & _same(pieces, tail)[2::3])[waiting] & fits
        matched = waiting[same]
        self.codes[matched] = code
        self.starts[matched], self.ends[matched] = starts[matched], ends[matched]
        return waiting[~same]

    def payloads(self, where: Indices) -> list[memoryview]:
        """Returns the payloads of the records at the indices ``where``, as views of the column's bytes.

        ``match`` must have found these payloads.
        """
        data = self.data
        pairs = zip(self.starts[where].tolist(), self.ends[where].tolist(), strict=True)
        return [data[start:end] for start, end in pairs]


def _same(pieces: pa.Array, text: bytes) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = pc.equal(pieces, pa.scalar(text, pieces.type)).to_numpy(
        zero_copy_only=False
    )
    return mask


# Payloads as structs


@dataclass(frozen=True)
class _Struct:
    """A msgspec struct class, generated for the Connect schema of a struct.

    ``attributes`` maps the names of the members in a record to the names of the class's attributes;
    ``kinds`` maps the same names to the members' schemas.
    """

    made: type[msgspec.Struct]
    attributes: dict[str, str]
    kinds: dict[str, ConnectSchema]

    def column(self, rows: Sequence[Any], wire: str) -> Wire:
        """Returns the values of one member in all rows, as an array, or as a list if their types differ."""
        values = list(map(attrgetter(self.attributes[wire]), rows))
        array = _ARRAYS.get(self.kinds[wire].type)
        if array is None:
            return values
        try:
            return pa.array(values, array)
        except NOT_HELD:
            return values  # floats mixed with text: NaN and the infinities


def _integer(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(1 << (bits - 1)), le=(1 << (bits - 1)) - 1)]


_TYPES: Final[dict[str, Any]] = {
    **{name: _integer(bits) for name, bits in INTEGER_BITS.items()},
    "float32": float | str,
    "float64": float | str,
    "boolean": bool,
    # Bytes are base64.
    "string": str,
    "bytes": str,
}


def _type(schema: ConnectSchema) -> Any:
    """Returns the msgspec type for the values of a Connect schema, including null.

    The type of arrays, maps and structs accepts any JSON.
    """
    kind = _TYPES.get(schema.type)
    return Any if kind is None else kind | None


def _struct(fields: Sequence[ConnectField], *, complete: bool = False, flat: bool = False) -> _Struct | None:
    """Returns a msgspec struct class with a member for each of the fields.

    ``complete``: if True, all members are required. ``flat``: if True, returns None if a field is an array,
    map or struct.
    """
    named = {field.wire: field.schema for field in fields}
    if flat and any(schema.type not in _TYPES for schema in named.values()):
        return None
    attributes = {wire: f"c{index}" for index, wire in enumerate(named)}
    members: list[Any] = [
        (attributes[wire], _type(schema)) if complete else (attributes[wire], _type(schema), None)
        for wire, schema in named.items()
    ]
    rename = {own: wire for wire, own in attributes.items()}
    made = msgspec.defstruct("Row", members, rename=rename, forbid_unknown_fields=True, gc=False)
    return _Struct(made, attributes, named)


class _Envelope(NamedTuple):
    """The function that decodes the payloads of one schema, and the struct classes of a payload's members."""

    decode: Callable[[Any], Any]
    source: _Struct
    before: _Struct
    after: _Struct


def _unsaid(name: str, kind: ConnectType) -> ConnectField:
    return ConnectField(name, ConnectSchema(kind, optional=True), name)


# Members that TiCDC (b813e76) writes into the source block but not into its schema, without the TiDB
# extension.
_UNSAID: Final = (
    _unsaid("commit_ts", "int64"),
    _unsaid("start_ts", "int64"),
    _unsaid("cluster_id", "string"),
)
_SPECIAL: Final = frozenset({"op", "source", "before", "after"})


def _envelope(schema: ConnectSchema) -> _Envelope | None:
    """Returns the decoder of a schema's payloads.

    Returns None if the schema is not an envelope's, or if one of the additional members is nested too deeply.
    """
    parts = [schema.field(name) for name in ("source", "before", "after")]
    if schema.type != "struct" or any(part is None or part.type != "struct" for part in parts):
        return None
    source = _struct((*_UNSAID, *parts[0].fields), flat=True)  # type: ignore[union-attr]
    before, after = (_struct(part.fields) for part in parts[1:])  # type: ignore[union-attr]
    extras = [(field.wire, _extra(field.schema)) for field in schema.fields if field.wire not in _SPECIAL]
    if source is None or before is None or after is None or any(kind is None for _, kind in extras):
        return None
    if before.kinds == after.kinds:
        before = after
    members: list[Any] = [
        ("op", str),
        ("source", source.made),
        ("before", before.made | None, None),
        ("after", after.made | None, None),
        *((f"x{index}", kind, None) for index, (_, kind) in enumerate(extras)),
    ]
    rename = {f"x{index}": wire for index, (wire, _) in enumerate(extras)}
    made = msgspec.defstruct("Envelope", members, rename=rename, forbid_unknown_fields=True, gc=False)
    decoder = msgspec.json.Decoder(made, float_hook=json_number)
    return _Envelope(decoder.decode, source, before, after)


def _extra(schema: ConnectSchema) -> Any:
    """Returns the msgspec type of an additional member of an envelope, such as ``transaction``.

    Returns None if the member is nested deeper than a struct of plain values.
    """
    if schema.type in _TYPES:
        return _type(schema)
    inner = _struct(schema.fields, flat=True) if schema.type == "struct" else None
    return None if inner is None else inner.made | None


class _Key(NamedTuple):
    decode: Callable[[Any], Any]
    row: _Struct


def _key(schema: ConnectSchema) -> _Key | None:
    row = _struct(schema.fields, complete=True) if schema.type == "struct" else None
    if row is None:
        return None
    return _Key(msgspec.json.Decoder(row.made, float_hook=json_number).decode, row)


def _made(make: Callable[[ConnectSchema], T | None], schema: ConnectSchema) -> T | None:
    try:
        return make(schema)
    except (ValueError, TypeError):  # a name that msgspec does not accept
        return None


def _decoded(decode: Callable[[Any], Any], payloads: Sequence[memoryview]) -> list[Any]:
    """Decodes all payloads. The result has None for each payload that cannot be decoded."""
    try:
        return list(map(decode, payloads))
    except _ERRORS:
        return [_tried(decode, payload) for payload in payloads]


def _tried(decode: Callable[[Any], Any], payload: memoryview) -> Any:
    try:
        return decode(payload)
    except _ERRORS:
        return None


class _Columns:
    """Converts the rows of one struct to columns; rows are added in groups."""

    def __init__(self, struct: _Struct, wires: Iterable[str]) -> None:
        self._struct = struct
        self._parts: dict[str, list[Wire]] = {wire: [] for wire in wires}
        self._present: list[npt.NDArray[np.bool_]] = []

    def add(self, rows: Sequence[Any]) -> None:
        """Adds a group of rows, one item per record; None for a record without a row."""
        present = np.array([row is not None for row in rows], np.bool_)
        self._present.append(present)
        if not present.all():
            rows = [row for row in rows if row is not None]
        if rows:
            for wire, parts in self._parts.items():
                parts.append(self._struct.column(rows, wire))

    def member(self, wire: str) -> Wire:
        """Returns the values of the member ``wire`` in all rows that were added."""
        parts = self._parts[wire]
        if len(parts) < 2:
            return parts[0] if parts else []
        if any(isinstance(part, list) for part in parts):
            return [
                value for part in parts for value in (part if isinstance(part, list) else part.to_pylist())
            ]
        return pa.concat_arrays(parts)

    def image(self) -> Image:
        """Returns all rows that were added, as columns with a mask of the records that have a row."""
        return Image(np.concatenate(self._present), self.member)


def _opened(records: Records, most: int, most_together: int) -> Records:
    """Returns the records with decompressed keys and values.

    Stops once the decompressed records are larger than ``most_together`` bytes, and then returns only the
    first records. A key or value that cannot be decompressed is left unchanged; decoding it later raises the
    error.
    """
    starts = [pc.starts_with(half, JSON_START) for half in (records.key, records.value)]
    if all(pc.all(mask, min_count=0).as_py() for mask in starts):
        return records
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    size = 0
    for key, value in zip(records.key, records.value, strict=True):
        if size > most_together:
            break
        keys.append(_opened_half(key.as_py(), most))
        values.append(_opened_half(value.as_py(), most))
        size += len(keys[-1] or b"") + len(values[-1] or b"")
    kind = pa.large_binary()
    first = records.slice(0, len(values))
    return replace(first, key=pa.array(keys, kind), value=pa.array(values, kind))


def _opened_half(data: bytes | None, most: int) -> bytes | None:
    if data is None or data.startswith(JSON_START):
        return data
    try:
        return decompressed(data, most=most) or data
    except (DecodeError, ConfigError):
        return data


class JsonColumns:
    """Columnar decoder of debezium-json; caches the decoder of each schema.

    ``most``: maximum number of bytes of a decompressed key or value. ``most_together``: decompression of a
    batch stops once the decompressed records have this many bytes.
    """

    def __init__(
        self, tables: EnvelopeTables, is_flattened: IsFlattened, *, most: int, most_together: int
    ) -> None:
        self._tables, self._is_flattened = tables, is_flattened
        self._most, self._most_together = most, most_together
        self._keys, self._values = _Part(), _Part()
        self._value_readers = ByIdentity(partial(_made, _envelope), 2 * _MOST_TEXTS)
        self._key_readers = ByIdentity(partial(_made, _key), 2 * _MOST_TEXTS)

    def read(self, records: Records, options: ValueOptions) -> ColumnarResult:
        """Decodes the records that contain a schema and are envelopes of row changes.

        The result lists the indices of all other records, which the row codec decodes one by one. If the
        decompressed records are larger than ``most_together`` bytes, only the first records are read; the
        result contains their number.
        """
        records = _opened(records, self._most, self._most_together)
        values, keys = self._values.split(records.value), self._keys.split(records.key)
        unknown, changes = [_no_envelope(values, keys)], Changes()
        for envelopes, rest in self._envelopes(values, keys):
            unknown.append(rest)
            if envelopes is not None:
                self._tables.read(records, envelopes, options, changes)
        return changes.result(records, np.concatenate(unknown), self._is_flattened)

    def _envelopes(self, values: _Split, keys: _Split) -> Iterator[tuple[Envelopes | None, Indices]]:
        """Groups the records by their key schema and value schema, and decodes each group.

        Yields, for each group, the decoded envelopes, and the indices of the records that were not decoded.
        The row codec decodes those records one by one.
        """
        usable = (values.codes >= 0) & (keys.codes >= _NULL)
        pairs = set(zip(values.codes[usable].tolist(), keys.codes[usable].tolist(), strict=True))
        for value, key in sorted(pairs):
            where = np.flatnonzero((values.codes == value) & (keys.codes == key))
            schema, key_schema = values.texts[value].schema, None if key < 0 else keys.texts[key].schema
            envelope = self._value_readers.get(schema)
            reader = key_schema and self._key_readers.get(key_schema)
            if envelope is None or (key_schema is not None and reader is None):
                yield None, where
                continue
            reading = _Reading(envelope, reader)
            for start in range(0, len(where), _TOGETHER):
                reading.add(where[start : start + _TOGETHER], values, keys)
            yield reading.envelopes(schema, key_schema), np.concatenate([_NO_RECORDS, *reading.left])


def _no_envelope(values: _Split, keys: _Split) -> Indices:
    """Returns the indices of the records whose key or value is not a payload with a schema around it.

    Records with a null value are not included.
    """
    return np.flatnonzero((values.codes == _LEFT) | ((values.codes >= 0) & (keys.codes == _LEFT)))


class _Reading:
    """Decodes the envelopes of records that have the same key schema and the same value schema.

    Only envelopes from the connector of the first decoded envelope are kept. The indices of records from
    other connectors, and of records that cannot be decoded, are added to ``left``.
    """

    def __init__(self, envelope: _Envelope, key: _Key | None) -> None:
        self._envelope, self._key_decoder = envelope, key
        attribute = envelope.source.attributes.get("connector")
        self._connector_of = attrgetter(attribute) if attribute else lambda _source: None
        self._connector: str | None = None
        self._before = _Columns(envelope.before, envelope.before.attributes)
        self._after = _Columns(envelope.after, envelope.after.attributes)
        self._key = None if key is None else _Columns(key.row, key.row.attributes)
        self._ops: list[str] = []
        self._where: list[Indices] = []
        self.left: list[Indices] = []

    def add(self, where: Indices, values: _Split, keys: _Split) -> None:
        """Decodes the records at the indices ``where``."""
        envelopes = _decoded(self._envelope.decode, values.payloads(where))
        rows = envelopes
        if self._key_decoder is not None:
            rows = _decoded(self._key_decoder.decode, keys.payloads(where))
        good = [
            index
            for index, envelope in enumerate(envelopes)
            if envelope is not None and rows[index] is not None
        ]
        connectors = [self._connector_of(envelopes[index].source) or "" for index in good]
        if good and self._connector is None:
            self._begin(connectors[0])
        if any(connector != self._connector for connector in connectors):
            good = [
                index
                for index, connector in zip(good, connectors, strict=True)
                if connector == self._connector
            ]
        if len(good) < len(envelopes):
            mask = np.zeros(len(where), np.bool_)
            mask[good] = True
            self.left.append(where[~mask])
            where, envelopes, rows = (
                where[mask],
                [envelopes[index] for index in good],
                [rows[index] for index in good],
            )
        if good:
            self._take(where, envelopes, rows)

    def _begin(self, connector: str) -> None:
        wanted = (*table_members(connector), *position_members(connector))
        self._connector = connector
        self._members = frozenset(wanted) & self._envelope.source.attributes.keys()
        self._source = _Columns(self._envelope.source, self._members)

    def _take(self, where: Indices, envelopes: Sequence[Any], keys: Sequence[Any]) -> None:
        self._where.append(where)
        self._ops += [envelope.op for envelope in envelopes]
        self._source.add([envelope.source for envelope in envelopes])
        self._before.add([envelope.before for envelope in envelopes])
        self._after.add([envelope.after for envelope in envelopes])
        if self._key is not None:
            self._key.add(keys)

    def envelopes(self, schema: ConnectSchema, key_schema: ConnectSchema | None) -> Envelopes | None:
        """Returns all envelopes that were decoded, or None if no record could be decoded."""
        if self._connector is None:
            return None
        return Envelopes(
            where=np.concatenate(self._where),
            connector=self._connector,
            schema=schema,
            key_schema=key_schema,
            ids=None,
            ops=self._ops,
            source=self._source.member,
            source_names=self._members,
            before=self._before.image(),
            after=self._after.image(),
            key=None if self._key is None else self._key.image(),
        )
