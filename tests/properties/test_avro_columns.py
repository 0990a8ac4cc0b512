"""Columnar Avro against fastavro: random schemas and values, and their bytes damaged everywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidesink.codecs.avro_columns import AvroColumns, AvroDecoder, RecordBytes

Json = dict[str, Any]
_HEAD = b"\x00\x00\x00\x00\x07"
_INT32, _INT64 = 1 << 31, 1 << 63
_EDGES = [0, 1, -1, 63, -64, 64, 8191, -8193, 2**20, 2**27, -(2**34), 2**41, 2**48, -(2**55), 2**55, 2**62]


def _decimals(draw: st.DrawFn) -> Json:
    precision = draw(st.one_of(st.integers(1, 40), st.integers(1, 76)))
    return {
        "type": "bytes",
        "logicalType": "decimal",
        "precision": precision,
        "scale": draw(st.integers(0, precision)),
    }


@st.composite
def _types(draw: st.DrawFn, depth: int = 2) -> Any:
    kinds = ["int", "long", "float", "double", "boolean", "bytes", "string", "fixed", "enum", "decimal"]
    kind = draw(st.sampled_from([*kinds, "union", "union", *(["record"] if depth else [])]))
    if kind == "union":
        inner = draw(_types(depth=depth).filter(lambda found: not isinstance(found, list)))
        return draw(st.permutations(["null", inner]))
    if kind == "fixed":
        return {"type": "fixed", "size": draw(st.integers(1, 9))}
    if kind == "enum":
        return {"type": "enum", "symbols": [f"S{n}" for n in range(draw(st.integers(1, 70)))]}
    if kind == "decimal":
        return _decimals(draw)
    return draw(_records(depth=depth - 1)) if kind == "record" else kind


@st.composite
def _records(draw: st.DrawFn, depth: int = 2) -> Json:
    types = draw(st.lists(_types(depth=depth), min_size=1, max_size=5))
    fields = [{"name": f"f{index}", "type": one} for index, one in enumerate(types)]
    return {"type": "record", "fields": fields}


def _named(schema: Any, name: str = "r") -> Any:
    """The schema with a name for each type that must have one."""
    if isinstance(schema, list):
        return [_named(one, name) for one in schema]
    if not isinstance(schema, dict) or "logicalType" in schema:
        return schema
    fields = [
        {**one, "type": _named(one["type"], f"{name}_{one['name']}")} for one in schema.get("fields", ())
    ]
    return {**schema, "name": name, **({"fields": fields} if fields else {})}


def _values(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, list):
        (inner,) = (one for one in kind if one != "null")
        return st.none() | _values(inner)
    shape = kind if isinstance(kind, dict) else {}
    name = shape.get("type", kind)
    if shape.get("logicalType") == "decimal":
        return _unscaled(shape["precision"])
    if name == "record":
        return st.fixed_dictionaries({one["name"]: _values(one["type"]) for one in shape["fields"]})
    if name == "fixed":
        return st.binary(min_size=shape["size"], max_size=shape["size"])
    if name == "enum":
        return st.sampled_from(shape["symbols"])
    return _PLAIN[name]


_PLAIN = {
    "int": st.integers(-_INT32, _INT32 - 1) | st.sampled_from([n for n in _EDGES if abs(n) < _INT32]),
    "long": st.integers(-_INT64, _INT64 - 1) | st.sampled_from([*_EDGES, -_INT64, _INT64 - 1]),
    "float": st.floats(width=32),
    "double": st.floats(),
    "boolean": st.booleans(),
    "bytes": st.binary(max_size=40),
    "string": st.text(max_size=20) | st.text("ab", min_size=60, max_size=70),
}


@st.composite
def _unscaled(draw: st.DrawFn, precision: int) -> bytes:
    """A decimal's bytes: the fewest, or with leading bytes of the sign as far as the Arrow type has room."""
    limit = 10**precision - 1
    value = draw(st.integers(-limit, limit) | st.sampled_from([0, limit, -limit]))
    least = (value if value >= 0 else ~value).bit_length() // 8 + 1
    most = 16 if precision <= 38 else 32
    return value.to_bytes(draw(st.sampled_from([least, least, most])), "big", signed=True)


def _bare(schema: Any) -> Any:
    """The schema that writes decimals as the bytes they are."""
    if isinstance(schema, list):
        return [_bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "logicalType" in schema:
        return schema["type"]
    fields = [{**one, "type": _bare(one["type"])} for one in schema.get("fields", ())]
    return {**schema, "fields": fields} if fields else schema


def _written(schema: Json, rows: list[Json]) -> list[bytes]:
    bare, written = fastavro.parse_schema(_bare(schema)), []
    for row in rows:
        out = BytesIO()
        fastavro.schemaless_writer(out, bare, row)
        written.append(out.getvalue())
    return written


class _Oracle:
    """What fastavro reads of a record that ends where it must; ``None`` where it refuses it."""

    def __init__(self, schema: Json) -> None:
        self._schema = fastavro.parse_schema(json.loads(json.dumps(schema)))

    def read(self, data: bytes) -> Any:
        stream = BytesIO(data)
        try:
            found = fastavro.schemaless_reader(stream, self._schema, None)
        except (EOFError, IndexError, ValueError, OverflowError, TypeError, MemoryError, ArithmeticError):
            return None
        return found if stream.tell() == len(data) else None


@st.composite
def _streams(draw: st.DrawFn, most: int) -> tuple[Json, list[Json]]:
    schema = _named(draw(_records()))
    return schema, draw(st.lists(_values(schema), min_size=1, max_size=most))


def _decoded(schema: Json, records: list[bytes], large: bool = False) -> AvroColumns:
    kind = pa.large_binary() if large else pa.binary()
    array = pa.array([b"before", *(_HEAD + one for one in records), b"after"], kind)
    found = AvroDecoder(schema).decode(RecordBytes.of(array.slice(1, len(records)), len(_HEAD)))
    found.record.validate(full=found.unproven is None)
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return type(one) is type(other) and bool(one == other)


@given(_streams(12), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_undamaged_record_is_proven_and_as_fastavro_reads_it(
    stream: tuple[Json, list[Json]], large: bool
) -> None:
    schema, rows = stream
    records = _written(schema, rows)
    found = _decoded(schema, records, large)
    oracle = _Oracle(schema)
    assert found.unproven is None
    for record, value in zip(records, found.record.to_pylist(), strict=True):
        assert _same(oracle.read(record), value)


def _damaged(record: bytes, following: bytes) -> Iterator[bytes]:
    """Every byte changed in some ways, every prefix, and too many bytes."""
    for at, byte in enumerate(record):
        for other in {0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF, byte ^ 1, byte ^ 0x80, (byte + 2) & 0xFF} - {byte}:
            yield record[:at] + bytes([other]) + record[at + 1 :]
        yield record[:at] + b"\x80" * 10 + record[at:]
        yield record[:at] + b"\xff" * 9 + b"\x03" + record[at:]
    yield from (record[:size] for size in range(len(record)))
    yield record + following[:1] + b"\x00"


@given(_streams(2))
@settings(max_examples=40, deadline=None)
def test_a_damaged_record_is_proven_only_as_fastavro_reads_it(stream: tuple[Json, list[Json]]) -> None:
    schema, rows = stream
    whole = _written(schema, rows)
    records = [one for bad in _damaged(whole[0], whole[-1]) for one in (bad, whole[-1])]
    found = _decoded(schema, records)
    unproven = np.zeros(len(records), bool) if found.unproven is None else found.unproven
    assert not unproven[1::2].any()  # what is beside a damaged record is read as ever
    oracle = _Oracle(schema)
    for record, value, left in zip(records, found.record.to_pylist(), unproven, strict=True):
        read = oracle.read(record)
        assert left or (read is not None and _same(read, value))


@given(_streams(3), st.data())
@settings(max_examples=40, deadline=None)
def test_records_taken_out_of_a_buffer_are_read_alone(
    stream: tuple[Json, list[Json]], data: st.DataObject
) -> None:
    schema, rows = stream
    records = [one for one in _written(schema, rows) for _ in range(3)]
    rows_taken = np.array(data.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records))))
    taken = RecordBytes.of(pa.array(records, pa.binary())).take(rows_taken)
    found = AvroDecoder(schema).decode(taken)
    oracle = _Oracle(schema)
    expected = [oracle.read(one) for one, here in zip(records, rows_taken, strict=True) if here]
    assert found.unproven is None
    assert len(expected) == len(found.record)
    for one, other in zip(expected, found.record.to_pylist(), strict=True):
        assert _same(one, other)
