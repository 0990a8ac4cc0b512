"""debezium-json, many records at a time: JSON with the schema beside each payload.

The text around a payload is the same in each record of a writer's schema, so it is compared as bytes and
its schema read once. Payloads are decoded by msgspec into structs that are made for that schema, with no
member unknown and each value of its type. msgspec refuses what JSON does not allow, record by record;
what it refuses, and records without a schema, are left to the row codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, Optional, Union

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidesink.codecs.batch import ColumnarResult, Indices, Records, ValueOptions
from tidesink.codecs.connect_schema import ConnectField, ConnectSchema
from tidesink.codecs.debezium_columns import Changes, EnvelopeTables, Envelopes, Image, IsFlattened, Wire
from tidesink.codecs.debezium_json import Wrapping, json_number, wrapping_of
from tidesink.codecs.debezium_source import POSITION_MEMBERS, TABLE_MEMBERS
from tidesink.codecs.debezium_values_scalars import INTEGER_BITS
from tidesink.errors import DecodeError

_NULL, _LEFT = -1, -2
_MOST_TEXTS: Final = 256
_MOST_ROOM: Final = 1 << 25
# Bytes of records that are looked at together: so many stay in the processor's cache.
_STRETCH: Final = 1 << 19
_ERRORS: Final = (msgspec.MsgspecError, ValueError, RecursionError, DecodeError)
_ARRAYS: Final[dict[str, pa.DataType]] = {
    **dict.fromkeys(INTEGER_BITS, pa.int64()),
    **dict.fromkeys(("float32", "float64"), pa.float64()),
    **dict.fromkeys(("string", "bytes"), pa.string()),
    "boolean": pa.bool_(),
}
# Records that are decoded together: their objects stay in the processor's cache.
_TOGETHER: Final = 1024
_SOURCE_MEMBERS: Final = frozenset({*TABLE_MEMBERS, *POSITION_MEMBERS})


class _Part:
    """The keys or the values of records: their payloads, and the texts of schemas around them."""

    def __init__(self) -> None:
        self._texts: list[Wrapping] = []

    def split(self, column: pa.Array) -> _Split:
        """The payload of each record, and which wrapping it has."""
        texts = self._texts
        if len(texts) > _MOST_TEXTS or sum(len(one.head) + len(one.tail) for one in texts) > _MOST_ROOM:
            texts = self._texts = []
        codes: list[int] = []
        payloads: list[bytes] = []
        known, code = (texts[0], 0) if texts else (_NONE, _LEFT)
        for data, start, end in _stretches(column):
            head, tail = known.head, known.tail
            body, foot = start + len(head), end - len(tail)
            if body > foot or not data.startswith(head, start, end) or not data.endswith(tail, start, end):
                found = self._found(data[start:end])
                if found == _LEFT:
                    codes.append(_LEFT)
                    payloads.append(b"")
                    continue
                code, known = found, texts[found]
                body, foot = start + len(known.head), end - len(known.tail)
            codes.append(code)
            payloads.append(data[body:foot])
        return _split(column, codes, payloads, texts)

    def _found(self, data: bytes) -> int:
        for at, one in enumerate(self._texts):
            whole = len(data) >= len(one.head) + len(one.tail)
            if whole and data.startswith(one.head) and data.endswith(one.tail):
                return at
        try:
            found = wrapping_of(data)
        except _ERRORS:
            return _LEFT
        if found is None:
            return _LEFT
        self._texts.append(found)
        return len(self._texts) - 1


_NONE: Final = Wrapping(b"\0", b"", ConnectSchema("struct", None, None, {}, optional=False, default=None))


class _Split(NamedTuple):
    """A column of records: by record which of ``texts`` its payload has around it, and that payload."""

    codes: npt.NDArray[np.int32]
    payloads: list[bytes]
    texts: Sequence[Wrapping]


def _split(column: pa.Array, codes: list[int], payloads: list[bytes], texts: list[Wrapping]) -> _Split:
    """With the records whose value is null, which were passed over."""
    found = np.array(codes, np.int32)
    if not column.null_count:
        return _Split(found, payloads, texts)
    present = column.is_valid().to_numpy(zero_copy_only=False)
    whole = np.full(len(column), _NULL, np.int32)
    whole[present] = found
    each = iter(payloads)
    return _Split(whole, [next(each) if one else b"" for one in present.tolist()], texts)


def _stretches(column: pa.Array) -> Iterator[tuple[bytes, int, int]]:
    """Each value that is not null: bytes that hold it, and where it starts and ends in them."""
    wide = pa.types.is_large_binary(column.type)
    kind: Any = np.int64 if wide else np.int32
    buffers = column.buffers()
    count = len(column)
    if not count or column.null_count == count:
        return
    offsets = np.frombuffer(buffers[1], kind, count + 1, column.offset * kind().itemsize)
    present = column.is_valid().to_numpy(zero_copy_only=False)
    starts, ends = offsets[:-1][present].tolist(), offsets[1:][present].tolist()
    data = memoryview(buffers[2]) if buffers[2] is not None else memoryview(b"")
    held, base, limit = b"", 0, -1
    for start, end in zip(starts, ends, strict=True):
        if end > limit:
            base, limit = start, max(end, min(start + _STRETCH, len(data)))
            held = bytes(data[base:limit])
        yield held, start - base, end - base


# Payloads by structs


@dataclass(frozen=True)
class _Struct:
    """A struct made for a Connect struct; ``attributes`` are its own names of the wire's members."""

    made: type[msgspec.Struct]
    attributes: dict[str, str]
    kinds: dict[str, ConnectSchema]
    complete: bool

    def nulls(self, wire: str, count: int) -> Wire:
        """A member of rows that are not there."""
        kind = self.kinds[wire].type
        return pa.nulls(count, _ARRAYS[kind]) if kind in _ARRAYS else [None] * count

    def column(self, rows: Sequence[Any], wire: str) -> Wire:
        """One member of all rows."""
        values = list(map(attrgetter(self.attributes[wire]), rows))
        array = _ARRAYS.get(self.kinds[wire].type)
        if array is None:
            return values
        try:
            return pa.array(values, array)
        except pa.ArrowException:
            return values  # floats among which is text: NaN and the infinities


def _integer(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(1 << (bits - 1)), le=(1 << (bits - 1)) - 1)]


_TYPES: Final[dict[str, Any]] = {
    **{name: _integer(bits) for name, bits in INTEGER_BITS.items()},
    "float32": Union[float, str],
    "float64": Union[float, str],
    "boolean": bool,
    # Bytes are base64.
    "string": str,
    "bytes": str,
}


def _type(schema: ConnectSchema) -> Any:
    """The values of a schema as msgspec checks them, with null; of rare ones only that it is JSON."""
    known = _TYPES.get(schema.type)
    return Any if known is None else Optional[known]


def _struct(fields: Sequence[ConnectField], *, complete: bool = False, flat: bool = False) -> _Struct | None:
    """The struct of these members. ``complete``: all are there; ``flat``: none is nested, or there is none."""
    named = {one.wire: one.schema for one in fields}
    if flat and any(schema.type not in _TYPES for schema in named.values()):
        return None
    attributes = {wire: f"c{at}" for at, wire in enumerate(named)}
    members: list[Any] = [
        (attributes[wire], _type(schema)) if complete else (attributes[wire], _type(schema), None)
        for wire, schema in named.items()
    ]
    rename = {own: wire for wire, own in attributes.items()}
    made = msgspec.defstruct("Row", members, rename=rename, forbid_unknown_fields=True, gc=False)
    return _Struct(made, attributes, named, complete)


class _Envelope(NamedTuple):
    """How the payloads of one writer's schema are decoded."""

    decode: Callable[[bytes], Any]
    source: _Struct
    before: _Struct
    after: _Struct


_SPECIAL: Final = frozenset({"op", "source", "before", "after"})


def _envelope(schema: ConnectSchema) -> _Envelope | None:
    """How a schema's payloads are decoded; None where they are no envelopes, or carry nested extras."""
    parts = [schema.field(name) for name in ("source", "before", "after")]
    if schema.type != "struct" or any(part is None or part.type != "struct" for part in parts):
        return None
    source = _struct(parts[0].fields, flat=True)  # type: ignore[union-attr]
    before, after = (_struct(part.fields) for part in parts[1:])  # type: ignore[union-attr]
    extras = [(one.wire, _extra(one.schema)) for one in schema.fields if one.wire not in _SPECIAL]
    if source is None or before is None or after is None or any(kind is None for _, kind in extras):
        return None
    if before.kinds == after.kinds:
        before = after
    members: list[Any] = [
        ("op", str),
        ("source", source.made),
        ("before", Optional[before.made], None),
        ("after", Optional[after.made], None),
        *((f"x{at}", kind, None) for at, (_, kind) in enumerate(extras)),
    ]
    rename = {f"x{at}": wire for at, (wire, _) in enumerate(extras)}
    made = msgspec.defstruct("Envelope", members, rename=rename, forbid_unknown_fields=True, gc=False)
    decoder = msgspec.json.Decoder(made, float_hook=json_number)
    return _Envelope(decoder.decode, source, before, after)


def _extra(schema: ConnectSchema) -> Any:
    """The type of an envelope's further member; None where it is nested deeper than the transaction."""
    if schema.type in _TYPES:
        return _type(schema)
    inner = _struct(schema.fields, flat=True) if schema.type == "struct" else None
    return None if inner is None else Optional[inner.made]


class _Key(NamedTuple):
    decode: Callable[[bytes], Any]
    row: _Struct


def _key(schema: ConnectSchema) -> _Key | None:
    row = _struct(schema.fields, complete=True) if schema.type == "struct" else None
    if row is None:
        return None
    return _Key(msgspec.json.Decoder(row.made, float_hook=json_number).decode, row)


def _decoded(decode: Callable[[bytes], Any], payloads: Sequence[bytes]) -> list[Any]:
    """All payloads decoded; None for each that cannot be."""
    try:
        return list(map(decode, payloads))
    except _ERRORS:
        return [_tried(decode, payload) for payload in payloads]


def _tried(decode: Callable[[bytes], Any], payload: bytes) -> Any:
    try:
        return decode(payload)
    except _ERRORS:
        return None


class _Columns:
    """The columns of one struct, put together from the rows of stretches."""

    def __init__(self, struct: _Struct, wires: Iterable[str]) -> None:
        self._struct, self._empty = struct, None if struct.complete else struct.made()
        self._parts: dict[str, list[Wire]] = {wire: [] for wire in wires}
        self._present: list[npt.NDArray[np.bool_]] = []

    def add(self, rows: list[Any]) -> None:
        """The rows of a stretch; None for those that are not there."""
        present = np.array([row is not None for row in rows], np.bool_)
        absent = len(rows) - int(present.sum())
        self._present.append(present)
        if absent == len(rows):
            for wire, parts in self._parts.items():
                parts.append(self._struct.nulls(wire, absent))
            return
        if absent:
            rows = [self._empty if row is None else row for row in rows]
        for wire, parts in self._parts.items():
            parts.append(self._struct.column(rows, wire))

    def member(self, wire: str) -> Wire:
        """One column of all rows."""
        parts = self._parts[wire]
        if len(parts) == 1:
            return parts[0]
        if any(isinstance(part, list) for part in parts):
            return [one for part in parts for one in (part if isinstance(part, list) else part.to_pylist())]
        return pa.concat_arrays(parts)

    def image(self) -> Image:
        """The rows with their columns."""
        return Image(np.concatenate(self._present), self.member)


@dataclass
class _Decoders:
    """The decoders of the schemas met."""

    envelopes: dict[int, tuple[ConnectSchema, _Envelope | None]] = field(default_factory=dict)
    keys: dict[int, tuple[ConnectSchema, _Key | None]] = field(default_factory=dict)

    def envelope(self, schema: ConnectSchema) -> _Envelope | None:
        """The decoder of values."""
        return _kept(self.envelopes, schema, _envelope)

    def key(self, schema: ConnectSchema) -> _Key | None:
        """The decoder of keys."""
        return _kept(self.keys, schema, _key)


def _kept(known: dict[int, Any], schema: ConnectSchema, make: Callable[[ConnectSchema], Any]) -> Any:
    found = known.get(id(schema))
    if found is None:
        if len(known) > 2 * _MOST_TEXTS:
            known.clear()
        try:
            made = make(schema)
        except (ValueError, TypeError):  # a name that msgspec does not take
            made = None
        # With the schema, so that its id stays its own.
        found = known[id(schema)] = (schema, made)
    return found[1]


class JsonColumns:
    """The columnar step of debezium-json; keeps what it knows of each schema."""

    def __init__(self, tables: EnvelopeTables, is_flattened: IsFlattened) -> None:
        self._tables, self._is_flattened = tables, is_flattened
        self._keys, self._values = _Part(), _Part()
        self._decoders = _Decoders()

    def read(self, records: Records, options: ValueOptions) -> ColumnarResult:
        """The row changes of the records that have a schema beside their payload."""
        values, keys = self._values.split(records.value), self._keys.split(records.key)
        unknown, found = [_no_envelope(values, keys)], Changes()
        for envelopes, rest in self._envelopes(values, keys):
            unknown.append(rest)
            if envelopes is not None:
                self._tables.read(records, envelopes, options, found)
        return found.result(records, np.concatenate(unknown), self._is_flattened)

    def _envelopes(self, values: _Split, keys: _Split) -> Iterator[tuple[Envelopes | None, Indices]]:
        """The envelopes of each pair of schemas, with the records that are left."""
        usable = (values.codes >= 0) & (keys.codes >= _NULL)
        pairs = set(zip(values.codes[usable].tolist(), keys.codes[usable].tolist(), strict=True))
        for value, key in sorted(pairs):
            where = np.flatnonzero((values.codes == value) & (keys.codes == key))
            schema, key_schema = values.texts[value].schema, None if key < 0 else keys.texts[key].schema
            envelope = self._decoders.envelope(schema)
            reader = None if key_schema is None else self._decoders.key(key_schema)
            if envelope is None or (key_schema is not None and reader is None):
                yield None, where
                continue
            reading = _Reading(envelope, reader)
            for start in range(0, len(where), _TOGETHER):
                reading.add(where[start : start + _TOGETHER], values, keys)
            yield reading.done(schema, key_schema)


def _no_envelope(values: _Split, keys: _Split) -> Indices:
    """Records of which a half is in none of the two usual forms."""
    return np.flatnonzero((values.codes == _LEFT) | ((values.codes >= 0) & (keys.codes == _LEFT)))


class _Reading:
    """Payloads of one pair of schemas, decoded stretch by stretch."""

    def __init__(self, envelope: _Envelope, key: _Key | None) -> None:
        self._envelope, self._key = envelope, key
        members = _SOURCE_MEMBERS & envelope.source.attributes.keys()
        self._source = _Columns(envelope.source, members)
        self._before, self._after = (_Columns(one, one.attributes) for one in envelope[2:])
        self._keys = None if key is None else _Columns(key.row, key.row.attributes)
        self._members = frozenset(members)
        self._ops: list[str] = []
        self._where: list[Indices] = []
        self._rest: list[Indices] = []

    def add(self, where: Indices, values: _Split, keys: _Split) -> None:
        """Decode the records at ``where``."""
        places = where.tolist()
        found = _decoded(self._envelope.decode, [values.payloads[at] for at in places])
        rows = found
        if self._key is not None:
            rows = _decoded(self._key.decode, [keys.payloads[at] for at in places])
        good = [at for at in range(len(found)) if found[at] is not None and rows[at] is not None]
        if len(good) < len(found):
            kept = np.zeros(len(where), np.bool_)
            kept[good] = True
            self._rest.append(where[~kept])
            where, found, rows = where[kept], [found[at] for at in good], [rows[at] for at in good]
        if not found:
            return
        self._where.append(where)
        self._ops += [one.op for one in found]
        self._source.add([one.source for one in found])
        self._before.add([one.before for one in found])
        self._after.add([one.after for one in found])
        if self._keys is not None:
            self._keys.add(rows)

    def done(
        self, schema: ConnectSchema, key_schema: ConnectSchema | None
    ) -> tuple[Envelopes | None, Indices]:
        """What was decoded, and the records that were not."""
        rest = np.concatenate(self._rest) if self._rest else np.empty(0, np.int64)
        if not self._where:
            return None, rest
        made = Envelopes(
            where=np.concatenate(self._where),
            schema=schema,
            key_schema=key_schema,
            ids=None,
            ops=self._ops,
            source=self._source.member,
            source_names=self._members,
            before=self._before.image(),
            after=self._after.image(),
            key=None if self._keys is None else self._keys.image(),
        )
        return made, rest
