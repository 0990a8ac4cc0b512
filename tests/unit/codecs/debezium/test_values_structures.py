"""Arrays, maps, structs, vectors and geometries, and the placeholder in every type that can take it."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pytest

from tests.unit.codecs.debezium.samples import (
    CONNECT,
    DATA,
    MODES,
    TIME,
    b64,
    decimal,
    read,
    schema,
    value_of_definition,
)
from tidesink.codecs.base import UNAVAILABLE_PLACEHOLDER
from tidesink.codecs.debezium.connect_schema import ConnectField, ConnectSchema
from tidesink.codecs.debezium.readers import inferred_value
from tidesink.codecs.options import DebeziumModes
from tidesink.errors import DecodeError, SchemaMismatchError, ValueOutOfRangeError
from tidesink.events import Column, ColumnType

TEXT = schema("string")
PLACEHOLDER = "__debezium_unavailable_value"
OWN = "__custom_placeholder"


def _array(items: ConnectSchema) -> ConnectSchema:
    return schema("array", items=items)


def _map(keys: ConnectSchema, values: ConnectSchema, name: str | None = None) -> ConnectSchema:
    return schema("map", name, keys=keys, values=values)


def _struct(name: str | None = None, **fields: ConnectSchema) -> ConnectSchema:
    return schema("struct", name, fields=tuple(ConnectField(key, one, key) for key, one in fields.items()))


VARIABLE = _struct(DATA + "VariableScaleDecimal", scale=schema("int32"), value=schema("bytes"))
HSTORE = _map(TEXT, TEXT)
SPARSE = _struct(
    DATA + "SparseVector", dimensions=schema("int16"), vector=_map(schema("int16"), schema("float64"))
)
GEOMETRY = _struct(DATA + "geometry.Geometry", wkb=schema("bytes"), srid=schema("int32"))
POINT = _struct(DATA + "geometry.Point", x=schema("float64"), y=schema("float64"))


@pytest.mark.parametrize(
    ("one", "raw", "expected"),
    [
        (_array(schema("int32")), [1, None, 3], "[1,null,3]"),
        (_array(TEXT), ["a", "b,c", None, 'q"x', "", "日"], '["a","b,c",null,"q\\"x","","日"]'),
        (_array(decimal(10, 2)), [b64(b"n"), b"\xff\x38"], "[1.10,-2.00]"),
        (_array(decimal(38, 38)), [b"\x01"], "[0." + "0" * 37 + "1]"),
        (_array(VARIABLE), [{"scale": 1, "value": b"\xf1"}], "[-1.5]"),
        (_array(schema("boolean")), [True, False, None], "[true,false,null]"),
        (
            _array(schema("int64", TIME + "MicroTimestamp")),
            [1704067200000001],
            '["2024-01-01 00:00:00.000001"]',
        ),
        (
            _array(schema("string", TIME + "ZonedTimestamp")),
            ["2023-12-31T22:00:00.000000Z"],
            '["2023-12-31 22:00:00+00:00"]',
        ),
        (_array(schema("string", DATA + "Json")), ['{"a": 1}'], '["{\\"a\\": 1}"]'),
        (_array(schema("bytes")), [b"\x00\xff"], '["AP8="]'),
        (_array(schema("float64")), [1.5, "NaN", "-Infinity"], '[1.5,"NaN","-Infinity"]'),
        (_array(_array(schema("int32"))), [[1, 2], None, [3]], "[[1,2],null,[3]]"),
        (_array(schema("int32")), [], "[]"),
        (HSTORE, {"n": None, "k": "v"}, '{"k":"v","n":null}'),
        (
            _map(schema("int16"), TEXT),
            [{"key": 2, "value": "b"}, {"key": 1, "value": "a"}],
            '{"1":"a","2":"b"}',
        ),
        (_map(schema("int16"), TEXT), [[2, "b"], [1, "a"]], '{"1":"a","2":"b"}'),
        (_struct(b=schema("int32"), a=_array(TEXT)), {"b": 1, "a": ["x"]}, '{"a":["x"],"b":1}'),
        (_struct(b=schema("int32")), {}, '{"b":null}'),
        (schema("array", DATA + "DoubleVector", items=schema("float64")), [1.0, 2.5], "[1.0,2.5]"),
        (schema("array", DATA + "FloatVector", items=schema("float32")), [Decimal("1.5")], "[1.5]"),
        (
            SPARSE,
            {"dimensions": 5, "vector": [[3, 0.5], [1, 1.0]]},
            '{"dimensions":5,"vector":{"1":1.0,"3":0.5}}',
        ),
        (_struct(p=POINT), {"p": {"x": 1.0, "y": 2.0}}, '{"p":"AQEAAAAAAAAAAADwPwAAAAAAAABA"}'),
    ],
)
def test_structures_are_json_text(one: ConnectSchema, raw: Any, expected: str) -> None:
    assert read(one, raw) == expected


@pytest.mark.parametrize(
    ("one", "raw"),
    [
        (_array(schema("int32")), [1, "2"]),
        (_array(schema("int32")), "12"),
        (HSTORE, [{"key": 1}]),
        (HSTORE, [[1, 2, 3]]),
        (_struct(a=TEXT), [1]),
    ],
)
def test_structures_of_another_shape_are_refused(one: ConnectSchema, raw: Any) -> None:
    with pytest.raises(SchemaMismatchError):
        read(one, raw)


def test_depth_is_limited() -> None:
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]
    with pytest.raises(ValueOutOfRangeError, match="32 levels"):
        inferred_value(deep, modes=MODES)


WKB = struct.pack("<BIdd", 1, 1, 1.5, -2.0)
EWKB = struct.pack("<BIidd", 1, 0x20000001, 4326, 1.5, -2.0)
EWKB_BIG = struct.pack(">BIidd", 0, 0x20000001, 4326, 1.5, -2.0)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"wkb": WKB, "srid": None}, WKB),
        ({"wkb": b64(WKB), "srid": 4326}, EWKB),
        ({"wkb": struct.pack(">BIdd", 0, 1, 1.5, -2.0), "srid": 4326}, EWKB_BIG),
        ({"wkb": EWKB, "srid": 4326}, EWKB),
        ({"x": 1.5, "y": Decimal("-2.0"), "wkb": None, "srid": None}, WKB),
        ({"x": 1.5, "y": -2, "srid": 4326}, EWKB),
    ],
)
def test_geometries_are_ewkb(raw: Any, expected: bytes) -> None:
    assert read(GEOMETRY, raw) == expected
    assert value_of_definition(Column("g", ColumnType("geometry")), raw, modes=MODES) == expected


@pytest.mark.parametrize(
    "raw",
    [{"wkb": "AQ==", "srid": 1}, {"wkb": WKB, "srid": "4326"}, {"x": 1.0}, {"wkb": 1}, {"srid": 1 << 40}],
)
def test_what_is_no_geometry_is_refused(raw: Any) -> None:
    with pytest.raises(DecodeError):
        read(GEOMETRY, raw)


BYTES = PLACEHOLDER.encode()
NOWHERE = -99999999.0
TOASTED: list[tuple[ConnectSchema, Any]] = [
    (TEXT, PLACEHOLDER),
    (schema("string", DATA + "Json"), PLACEHOLDER),
    (schema("string", DATA + "Xml"), PLACEHOLDER),
    (schema("string", TIME + "ZonedTimestamp"), PLACEHOLDER),
    (schema("bytes"), BYTES),
    (schema("bytes"), "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
    (_array(TEXT), [PLACEHOLDER]),
    (_array(schema("bytes")), [b64(BYTES)]),
    (_array(schema("bytes")), [BYTES]),
    (_array(schema("int32")), list(BYTES)),
    (_array(schema("int64")), list(BYTES)),
    (_array(schema("float64")), [Decimal(f"{byte}.0") for byte in BYTES]),
    (_array(schema("boolean")), [True] * len(BYTES)),
    (_array(decimal(10, 2)), [b64(bytes([byte])) for byte in BYTES]),
    (_array(decimal(10, 2)), [bytes([byte]) for byte in BYTES]),
    (_array(decimal(10, 2)), [Decimal(byte).scaleb(-2) for byte in BYTES]),
    (_array(VARIABLE), [{"scale": 0, "value": b64(bytes([byte]))} for byte in BYTES]),
    (HSTORE, {PLACEHOLDER: PLACEHOLDER}),
    (
        GEOMETRY,
        {"wkb": b64(bytes.fromhex("0101000020E6100000000000FC83D797C1000000FC83D797C1")), "srid": 4326},
    ),
    (
        schema("struct", DATA + "geometry.Geography"),
        {"wkb": bytes.fromhex("0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640"), "srid": 4326},
    ),
    (POINT, {"x": NOWHERE, "y": NOWHERE, "wkb": struct.pack("<BIdd", 1, 1, NOWHERE, NOWHERE), "srid": None}),
]


@pytest.mark.parametrize(("one", "raw"), TOASTED)
def test_the_placeholder_is_no_value(one: ConnectSchema, raw: Any) -> None:
    assert read(one, raw) is UNAVAILABLE_PLACEHOLDER


def test_an_array_of_uuids_has_the_uuid_of_the_placeholders_bytes() -> None:
    """Java's UUID.nameUUIDFromBytes of the text, as Debezium computes it."""
    ids = _array(schema("string", DATA + "Uuid"))
    assert read(ids, ["12a5e3e6-91b7-3d40-a3de-e2c4b1a4d6a8"]) == '["12a5e3e6-91b7-3d40-a3de-e2c4b1a4d6a8"]'
    # Of "hello" Java gives 5d41402a-bc4b-3a76-b971-9d911017c592.
    hello = DebeziumModes(unavailable_value_placeholder="hello")
    assert read(ids, ["5d41402a-bc4b-3a76-b971-9d911017c592"], hello) is UNAVAILABLE_PLACEHOLDER


@pytest.mark.parametrize(
    ("mode", "raw"),
    [
        ("hex", OWN.encode().hex()),
        ("base64", b64(OWN.encode())),
        ("base64-url-safe", b64(OWN.encode())),
        ("bytes", OWN),
    ],
)
def test_a_placeholder_of_ones_own_in_each_binary_mode(mode: Any, raw: str) -> None:
    modes = DebeziumModes(unavailable_value_placeholder=OWN, binary_handling_mode=mode)
    assert read(TEXT, raw, modes) is UNAVAILABLE_PLACEHOLDER
    assert read(TEXT, PLACEHOLDER, modes) == PLACEHOLDER
    definition = Column("c", ColumnType("blob"))
    encoded = b64(OWN.encode()) if mode == "bytes" else raw
    assert value_of_definition(definition, encoded, modes=modes) is UNAVAILABLE_PLACEHOLDER


def test_the_placeholder_in_plain_json() -> None:
    array, text = Column("a", ColumnType("array")), Column("t", ColumnType("json"))
    assert value_of_definition(array, [PLACEHOLDER], modes=MODES) is UNAVAILABLE_PLACEHOLDER
    assert value_of_definition(array, list(BYTES), modes=MODES) is UNAVAILABLE_PLACEHOLDER
    assert value_of_definition(text, PLACEHOLDER, modes=MODES) is UNAVAILABLE_PLACEHOLDER
    assert (
        value_of_definition(Column("h", ColumnType("map")), {PLACEHOLDER: PLACEHOLDER}, modes=MODES)
        is UNAVAILABLE_PLACEHOLDER
    )
    for raw in (PLACEHOLDER, [PLACEHOLDER], {PLACEHOLDER: PLACEHOLDER}):
        assert inferred_value(raw, modes=MODES) is UNAVAILABLE_PLACEHOLDER
    decimals = Column("d", ColumnType("decimal", precision=10, scale=2))
    with pytest.raises(ValueOutOfRangeError):
        value_of_definition(decimals, b64(BYTES), modes=DebeziumModes(decimal_handling_mode="string"))


def test_what_only_looks_like_the_placeholder_is_a_value() -> None:
    assert read(TEXT, PLACEHOLDER + " ") == PLACEHOLDER + " "
    assert read(_array(TEXT), [PLACEHOLDER, PLACEHOLDER]) == f'["{PLACEHOLDER}","{PLACEHOLDER}"]'
    assert read(TEXT, b64(BYTES)) == b64(BYTES)
    assert read(_array(schema("int32")), list(BYTES[:-1])) == str(list(BYTES[:-1])).replace(" ", "")
    assert read(schema("bytes", CONNECT + "Decimal", parameters={"scale": 0}), b"\x01") == 1
