"""Columnar Avro: types, edges of the encoding, and where records lie. Random ones: ``tests/properties``."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidesink.codecs.avro_columns import CHUNK_RECORDS, AvroColumns, AvroDecoder, RecordBytes
from tidesink.errors import SchemaMismatchError


def record(*types: Any) -> dict[str, Any]:
    """A record's schema with fields ``f0``, ``f1`` …"""
    fields = [{"name": f"f{at}", "type": one} for at, one in enumerate(types)]
    return {"type": "record", "name": "R", "namespace": "n", "fields": fields}


def decoded(schema: Any, *records: bytes) -> AvroColumns:
    found = AvroDecoder(schema).decode(RecordBytes.of(pa.array(records, pa.binary())))
    assert found.record.type == AvroDecoder(schema).type
    return found


def values(schema: Any, *records: bytes) -> list[Any]:
    """The first field of records all of which are proven."""
    found = decoded(schema, *records)
    assert found.unproven is None
    listed: list[Any] = found.record.field(0).to_pylist()
    return listed


def unproven(schema: Any, *records: bytes) -> list[bool]:
    found = decoded(schema, *records).unproven
    return [False] * len(records) if found is None else found.tolist()


def decimal(precision: int, scale: int = 0) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def sized(data: bytes) -> bytes:
    """Bytes of less than 64 as Avro writes them."""
    return bytes([2 * len(data)]) + data


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x00", 0),
        (b"\x01", -1),
        (b"\x80\x01", 64),
        (b"\x80\x00", 0),  # longer than needed, as no producer writes it; fastavro reads it
        (b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", 2**63 - 1),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", -(2**63)),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f", -(2**55)),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", -(2**62)),
    ],
)
def test_a_long_is_a_varint_of_up_to_ten_bytes(data: bytes, value: int) -> None:
    assert values(record("long"), data) == [value]
    assert values(record(["null", "long"]), b"\x02" + data, b"\x00") == [value, None]


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",  # a 65th bit
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x81\x00",  # eleven bytes
        b"\x80",
        b"",
        b"\x00\x00",
    ],
)
def test_no_other_varint_is_proven(data: bytes) -> None:
    assert unproven(record("long"), b"\x02", data, b"\x04") == [False, True, False]


def test_an_int_has_32_bits() -> None:
    most, more = b"\xfe\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x10"
    assert unproven(record("int"), most, more) == [False, True]
    assert values(record("int"), most, b"\xff\xff\xff\xff\x0f") == [2**31 - 1, -(2**31)]


@pytest.mark.parametrize("at_start", [b"", b"\x02"])
def test_a_value_never_reaches_into_the_next_record(at_start: bytes) -> None:
    kinds: list[tuple[Any, bytes]] = [
        ("double", b"\x00" * 7),
        ("float", b"\x00" * 3),
        ("string", b"\x04a"),
        ("boolean", b""),
        (decimal(9), b"\x04\x01"),
        ({"type": "fixed", "name": "F", "size": 3}, b"ab"),
    ]
    for kind, cut in kinds:
        schema = record(["null", kind] if at_start else kind, "string")
        assert unproven(schema, at_start + cut, b"\x01" * 20)[0]


def test_a_length_leads_nowhere_outside_its_record() -> None:
    far, negative = b"\xfe\xff\xff\xff\x0f", b"\x01"
    schema = record("string", "bytes", "int")
    good = sized(b"a") + sized(b"b") + b"\x04"
    for bad in (far, negative, b"\x06"):
        records = [good, bad + sized(b"b") + b"\x04", good, sized(b"a") + bad + b"\x04", good]
        assert unproven(schema, *records) == [False, True, False, True, False]


def test_branches_booleans_and_symbols_have_their_numbers() -> None:
    assert unproven(record(["null", "int"]), b"\x00", b"\x02\x00", b"\x04") == [False, False, True]
    assert values(record(["int", "null"]), b"\x00\x02", b"\x02") == [1, None]
    assert unproven(record("boolean"), b"\x00", b"\x01", b"\x02") == [False, False, True]
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    assert values(record(enum), b"\x00", b"\x02") == ["A", "B"]
    assert unproven(record(enum), b"\x02", b"\x04", b"\x01") == [False, True, True]


def test_text_that_is_no_utf8_leaves_its_own_record_alone() -> None:
    texts = [b"a", b"\xff", "ü".encode(), b"\xed\xa0\x80", b""]
    found = decoded(record("string"), *map(sized, texts))
    assert found.unproven is not None
    assert found.unproven.tolist() == [False, True, False, True, False]
    assert found.record.field(0).to_pylist() == ["a", None, "ü", None, ""]


@pytest.mark.parametrize("precision", [1, 9, 18, 19, 38, 39, 65, 76])
def test_decimals_have_the_digits_of_their_precision(precision: int) -> None:
    width = 16 if precision <= 38 else 32
    inside = [0, 1, -1, 10**precision - 1, 1 - 10**precision]
    data = [sized(one.to_bytes(size, "big", signed=True)) for one in inside for size in (width, _least(one))]
    expected = [Decimal((one < 0, _digits(one), -1)) for one in inside for _ in range(2)]
    assert values(record(decimal(precision, 1)), *data) == expected
    outside = [10**precision, -(10**precision)]
    beyond = [sized(one.to_bytes(_least(one), "big", signed=True)) for one in outside]
    assert unproven(record(decimal(precision)), *beyond) == [True, True]
    assert unproven(record(decimal(precision)), b"\x00", sized(bytes(width + 1)), sized(b"\x01")) == [
        True,
        True,
        False,
    ]


def _least(number: int) -> int:
    return (number if number >= 0 else ~number).bit_length() // 8 + 1


def _digits(number: int) -> tuple[int, ...]:
    return tuple(int(digit) for digit in str(abs(number)))


def test_a_decimal_of_more_digits_than_arrow_has_is_left() -> None:
    assert unproven(record(["null", decimal(77)]), b"\x00", b"\x02" + sized(b"\x01")) == [False, True]


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "int"},
        {"type": "map", "values": "int"},
        ["int", "string"],
        ["null", "int", "string"],
        ["null"],
        "null",
        "unknown",
        {"type": "enum", "name": "E", "symbols": []},
        {"type": "fixed", "name": "F"},
    ],
)
def test_what_has_no_columns_is_left(kind: Any) -> None:
    assert unproven(record("int", kind), b"\x00\x00") == [True]


def test_a_record_without_a_value_there_is_proven() -> None:
    schema = record(["null", {"type": "map", "values": "int"}], "int")
    assert unproven(schema, b"\x00\x00", b"\x02\x00\x00") == [False, True]


def test_names_stand_for_types_but_not_within_themselves() -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
    schema = record(inner, "Inner", ["null", "n.Inner"])
    assert decoded(schema, b"\x02\x04\x02\x06").record.to_pylist() == [
        {"f0": {"x": 1}, "f1": {"x": 2}, "f2": {"x": 3}}
    ]
    nested = record("int", ["null", "R"])
    assert unproven(nested, b"\x02\x00", b"\x02\x02\x02\x00") == [False, True]


def test_children_are_null_where_their_record_is() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "string"}]}
    found = decoded(record(["null", inner], "int"), b"\x00\x00", b"\x02\x02a\x02")
    assert found.record.to_pylist() == [{"f0": None, "f1": 0}, {"f0": {"x": "a"}, "f1": 1}]
    assert found.record.field(0).field(0).to_pylist() == [None, "a"]


def test_only_records_have_a_decoder() -> None:
    with pytest.raises(SchemaMismatchError, match="not an Avro record"):
        AvroDecoder("string")


def test_records_are_found_in_slices_of_any_binary_array() -> None:
    for kind in (pa.binary(), pa.large_binary()):
        array = pa.array([b"xx\x02", b"xx\x04", None, b"xx\x06", b"x"], kind)
        parts = RecordBytes.of(array.slice(1, 4), skip=2)
        assert len(parts) == 4
        taken = parts.take(np.array([0, 2]))
        assert AvroDecoder(record("int")).decode(taken).record.field(0).to_pylist() == [2, 3]
        # Shorter than what is skipped, and so none.
        assert AvroDecoder(record("int")).decode(parts.slice(3, 4)).unproven is not None


def test_no_records_are_decoded_too() -> None:
    for array in (pa.array([], pa.binary()), pa.array([b"\x02"]).slice(1), pa.nulls(0, pa.large_binary())):
        found = AvroDecoder(record("int", "string", decimal(5))).decode(RecordBytes.of(array))
        assert (len(found.record), found.unproven) == (0, None)


def test_words_are_the_first_bytes_of_each_record() -> None:
    many = [number.to_bytes(9, "little") for number in range(CHUNK_RECORDS + 2)]
    words = RecordBytes.of(pa.array(many)).words()
    assert words.tolist() == list(range(CHUNK_RECORDS + 2))
    assert RecordBytes.of(pa.array([b"\x01"])).words().tolist() == [1]


def test_a_long_value_is_copied_whole() -> None:
    text = "ü" * 3_000_000
    size = 2 * len(text.encode())
    varint = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21])
    assert values(record("string"), varint + text.encode(), b"\x02a") == [text, "a"]


def test_records_far_apart_are_not_looked_at_together() -> None:
    data = np.zeros((1 << 30) + 100, np.uint8)  # never written to, so that it takes no memory
    start = np.array([0, 5, 1 << 30])
    found = AvroDecoder(record("int", "string")).decode(RecordBytes(data, start, start + 2))
    assert found.record.to_pylist() == [{"f0": 0, "f1": ""}] * 3
    assert found.unproven is None
    longer = AvroDecoder(record("int")).decode(RecordBytes(data, start[:1], start[2:] + 50))
    assert longer.unproven is not None
    assert longer.unproven.all()
