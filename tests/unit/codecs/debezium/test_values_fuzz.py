"""Whatever stands on the wire, a reader gives a value, UNAVAILABLE or a DecodeError that names the column."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timezone
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.codecs.debezium.samples import MODES, value_of_definition
from tidesink.codecs.base import UNAVAILABLE_PLACEHOLDER
from tidesink.codecs.debezium.connect_schema import (
    ConnectField,
    ConnectSchema,
    connect_schema_of_avro,
    connect_schema_of_json,
)
from tidesink.codecs.debezium.readers import inferred_value, reader_of
from tidesink.codecs.debezium.values import column_of
from tidesink.codecs.options import DebeziumModes
from tidesink.errors import DecodeError, ValueOutOfRangeError
from tidesink.events import Column, ColumnType
from tidesink.typemap.table import OTHER_TYPES, PLAIN_TYPES, SEMANTIC_TYPES, TYPES, row_of
from tidesink.typemap.values import target_reader, text_reader

SOME: Any = st.sampled_from(
    [
        "",
        "NaN",
        "infinity",
        "2024-02-29T10:34:56.1Z",
        "-0044-03-15Z",
        "12:34:56Z",
        "AP8=",
        "1.10",
        "1E400",
        -2147472692,
        9223372036825200000,
        Decimal("1E400"),
        Decimal("-Infinity"),
        Decimal("0.1"),
        {"scale": 3, "value": "AP8="},
        {"x": 1.0, "y": Decimal(2), "wkb": None, "srid": 4326},
        {"wkb": b"\x01\x01\x00\x00\x00", "srid": 1 << 31},
    ]
)
LEAF: Any = (
    SOME | st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.decimals()
)
RAW: Any = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = [(one.name, wire) for one in SEMANTIC_TYPES for wire in one.wire] + [
    (None, wire) for wire in PLAIN_TYPES
]
PARAMETERS = st.dictionaries(
    st.sampled_from(["scale", "length", "connect.decimal.precision", "allowed", "tidb_type"]),
    st.sampled_from(
        ["-1", "0", "2", "9", "64", "100", "2147483647", "bigint unsigned", "varbinary", "decimal"]
    ),
)


@st.composite
def schemas(draw: Any, depth: int = 2) -> ConnectSchema:
    """A schema of any type, with parameters that may be nonsense."""
    name, wire = draw(st.sampled_from(NAMES))
    inner = schemas(depth - 1) if depth else st.none()
    fields = [ConnectField(key, draw(inner), key) for key in "ab"] if wire == "struct" and depth else []
    items, keys, values = (draw(inner) if wire in kinds else None for kinds in ("array", "map", "map"))
    return ConnectSchema(wire, name, draw(PARAMETERS), True, draw(RAW), tuple(fields), items, keys, values)


MODE = st.builds(
    DebeziumModes,
    decimal_handling_mode=st.sampled_from(["precise", "string", "double"]),
    bigint_unsigned_handling_mode=st.sampled_from(["long", "precise", "string"]),
    binary_handling_mode=st.sampled_from(["bytes", "base64", "base64-url-safe", "hex"]),
    time_precision_mode=st.sampled_from(["adaptive", "connect", "isostring", "microseconds", "nanoseconds"]),
    decimal_format=st.sampled_from(["base64", "numeric"]),
)
COLUMNS = st.builds(
    lambda row, precision, scale, fsp: Column(
        "c", ColumnType(row.name, precision=precision, scale=scale, length=precision, fsp=fsp)
    ),
    st.sampled_from([*TYPES, *OTHER_TYPES]),
    st.sampled_from([None, 1, 20, 38, 64]),
    st.sampled_from([None, 0, 1]),
    st.sampled_from([None, 0, 3, 6, 9]),
)


def _is_value(found: object) -> bool:
    return (
        found is UNAVAILABLE_PLACEHOLDER
        or found is None
        or isinstance(found, int | float | Decimal | str | bytes)
    )


@settings(max_examples=400, deadline=None)
@given(schemas(), RAW, MODE)
def test_a_schemas_own_column(one: ConnectSchema, raw: Any, modes: DebeziumModes) -> None:
    try:
        column = column_of(ConnectField("c", one, "c"))
        found = reader_of(one, column=column, modes=modes)(raw)
    except DecodeError:
        return
    assert _is_value(found)
    if isinstance(found, str):
        _fits_its_target(found, column)


def _fits_its_target(text: str, column: Column) -> None:
    """What was read as a column's text is text of the column's type, for every target too."""
    reader = row_of(column.type).reader
    if reader in ("enum", "set"):
        return  # labels: only canal-json has numbers as text for them
    text_reader(column.type)(text)
    # What a timestamp cannot hold may be refused: nanoseconds, and the edge of the last year in another zone.
    refused = (ValueOutOfRangeError,) if reader in ("instant", "local_datetime") else ()
    with suppress(*refused):
        target_reader(column.type, time_zone=timezone.utc, zero_date="null")(text)


@settings(max_examples=400, deadline=None)
@given(COLUMNS, RAW, schemas(), MODE)
def test_a_defined_column(column: Column, raw: Any, one: ConnectSchema, modes: DebeziumModes) -> None:
    reads: tuple[Callable[[], object], ...] = (
        lambda: value_of_definition(column, raw, modes=modes),
        lambda: reader_of(one, column=column, modes=modes)(raw),
    )
    for read in reads:
        try:
            assert _is_value(read())
        except DecodeError:
            continue


@settings(max_examples=200, deadline=None)
@given(RAW)
def test_no_definition_and_no_schema(raw: Any) -> None:
    reads: tuple[Callable[[], object], ...] = (
        lambda: inferred_value(raw, modes=MODES),
        lambda: _read_as_schema(raw),
    )
    for read in reads:
        try:
            assert _is_value(read())
        except DecodeError:
            continue


def _read_as_schema(raw: Any) -> None:
    connect_schema_of_avro(raw)
    connect_schema_of_json(raw)
