"""Debezium's semantic types: values of real captures, and the ends of each type's range."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.unit.codecs.debezium.samples import (
    CONNECT,
    DATA,
    TIME,
    b64,
    decimal,
    own_column,
    read,
    schema,
)
from tidesink.codecs.debezium.connect_schema import ConnectSchema
from tidesink.errors import DecodeError, SchemaMismatchError, ValueOutOfRangeError
from tidesink.events import ColumnType
from tidesink.typemap.table import PLAIN_TYPES, SEMANTIC_TYPES, find_row, semantic_type, spark_type
from tidesink.typemap.values import text_reader

DATE = schema("int32", TIME + "Date")
TIMESTAMP = schema("int64", TIME + "Timestamp")
MICRO = schema("int64", TIME + "MicroTimestamp")
NANO = schema("int64", TIME + "NanoTimestamp")
ZONED = schema("string", TIME + "ZonedTimestamp")
MICRO_TIME = schema("int64", TIME + "MicroTime")
BITS = schema("bytes", DATA + "Bits", parameters={"length": 13})
ISO_DATE = schema("string", TIME + "IsoDate")
ISO_TIMESTAMP = schema("string", TIME + "IsoTimestamp")

TIMES: list[tuple[ConnectSchema, Any, str]] = [
    (DATE, 0, "1970-01-01"),
    (DATE, -354285, "1000-01-01"),
    (DATE, 2932896, "9999-12-31"),
    (DATE, 2932897, "10000-01-01"),
    (DATE, -719162, "0001-01-01"),
    (DATE, -719163, "0001-12-31 BC"),
    (DATE, -735160, "0044-03-15 BC"),
    (DATE, 2145042905, "5874897-12-31"),  # PostgreSQL's last day
    (DATE, -2147472692, "infinity"),
    (DATE, -2147472691, "-infinity"),
    (DATE, 2146033979, "infinity"),  # Debezium after 3.5
    (schema("int32", CONNECT + "Date"), 18321, "2020-02-29"),
    (TIMESTAMP, -1, "1969-12-31 23:59:59.999"),
    (TIMESTAMP, -30610224000000, "1000-01-01 00:00:00"),
    (TIMESTAMP, 1711852200100, "2024-03-31 02:30:00.1"),
    (TIMESTAMP, 253402300799000, "9999-12-31 23:59:59"),
    (TIMESTAMP, -62135769600000, "0001-12-30 00:00:00 BC"),
    (TIMESTAMP, 9223372036825200, "infinity"),
    (TIMESTAMP, -9223372036832400, "-infinity"),
    (schema("int64", CONNECT + "Timestamp"), 1709210096789, "2024-02-29 12:34:56.789"),
    (MICRO, 253402300799999999, "9999-12-31 23:59:59.999999"),
    (TIMESTAMP, 315507352780800000, "10000000-01-01 00:00:00"),
    (MICRO, (1 << 63) - 1, "294247-01-10 04:00:54.775807"),
    (MICRO, 9223372036825200000, "infinity"),
    (MICRO, -9223372036832400000, "-infinity"),
    (NANO, 1709210096789123456, "2024-02-29 12:34:56.789123456"),
    (NANO, 1 - (1 << 63), "1677-09-21 00:12:43.145224193"),
    (NANO, -(1 << 63), "-infinity"),
    (NANO, (1 << 63) - 1, "infinity"),
    (NANO, (1 << 63) - 2, "2262-04-11 23:47:16.854775806"),
    (schema("int32", TIME + "Time"), 86400000, "24:00:00"),
    (schema("int32", CONNECT + "Time"), 45296789, "12:34:56.789"),
    (MICRO_TIME, -3020399000000, "-838:59:59"),
    (MICRO_TIME, -1000, "-00:00:00.001"),
    (MICRO_TIME, 86399999999, "23:59:59.999999"),
    (schema("int64", TIME + "NanoTime"), 1, "00:00:00.000000001"),
    (ZONED, "2024-02-29T10:34:56.123456Z", "2024-02-29 10:34:56.123456+00:00"),
    (ZONED, "2024-03-01T10:00:00.000000Z", "2024-03-01 10:00:00+00:00"),
    (ZONED, "2024-03-01T10:00:00Z", "2024-03-01 10:00:00+00:00"),
    (ZONED, "2018-03-27T11:22:33.1234567+02:00", "2018-03-27 11:22:33.1234567+02:00"),
    (ZONED, "0000-12-30T00:00:00.000000Z", "0001-12-30 00:00:00+00:00 BC"),
    (ZONED, "-4712-01-01T00:00Z", "4713-01-01 00:00:00+00:00 BC"),
    (ZONED, "+294276-12-31T23:59:59.999999Z", "294276-12-31 23:59:59.999999+00:00"),
    (ZONED, "infinity", "infinity"),
    (ZONED, "-infinity", "-infinity"),
    (schema("string", TIME + "ZonedTime"), "07:04:56.789Z", "07:04:56.789Z"),
    (schema("string", TIME + "IsoDate"), "2024-02-29Z", "2024-02-29"),
    (schema("string", TIME + "IsoTime"), "00:00:00.000001Z", "00:00:00.000001"),
    (schema("string", TIME + "IsoTime"), "12:34Z", "12:34:00"),
    (schema("string", TIME + "IsoTimestamp"), "2024-03-31T02:30:00.1Z", "2024-03-31 02:30:00.1"),
    # PostgreSQL's infinities under isostring, and days and moments beside them.
    (ISO_DATE, "-5877611-06-21Z", "infinity"),
    (ISO_DATE, "+5877611-06-21Z", "infinity"),
    (ISO_DATE, "-5877611-06-22Z", "-infinity"),
    (ISO_DATE, "+5874897-12-31Z", "5874897-12-31"),
    (ISO_DATE, "+294247-01-10Z", "294247-01-10"),
    (ISO_DATE, "-0043-03-15Z", "0044-03-15 BC"),
    (ISO_DATE, "-4712-01-01Z", "4713-01-01 BC"),
    (ISO_TIMESTAMP, "+294247-01-10T04:00:25.200Z", "infinity"),
    (ISO_TIMESTAMP, "+294247-01-10T04:00:25.2Z", "infinity"),
    (ISO_TIMESTAMP, "-290308-12-21T19:59:27.600Z", "-infinity"),
    (ISO_TIMESTAMP, "+294247-01-10T04:00:25.201Z", "294247-01-10 04:00:25.201"),
    (ISO_TIMESTAMP, "+294276-12-31T23:59:59.999999Z", "294276-12-31 23:59:59.999999"),
    (ISO_TIMESTAMP, "-4712-01-01T00:00:00Z", "4713-01-01 00:00:00 BC"),
    (ZONED, "+294247-01-10T04:00:25.200Z", "infinity"),
    (ZONED, "-290308-12-21T19:59:27.600Z", "-infinity"),
    (ZONED, "+292278994-08-16T23:00:00Z", "infinity"),
    (ZONED, "-292275055-05-16T23:00:00Z", "-infinity"),
    (ZONED, "+294247-01-10T04:00:25.2+02:00", "294247-01-10 04:00:25.2+02:00"),
    (schema("string", TIME + "Interval"), "P1Y2M3DT4H5M6.789S", "P1Y2M3DT4H5M6.789S"),
]


@pytest.mark.parametrize(("one", "raw", "expected"), TIMES)
def test_dates_and_times_are_exact_text(one: ConnectSchema, raw: Any, expected: str) -> None:
    assert read(one, raw) == expected
    assert text_reader(own_column(one).type)(expected) == expected
    assert read(one, None) is None


@pytest.mark.parametrize(
    ("one", "raw"),
    [
        (ZONED, "2024-02-29"),
        (ZONED, "2024-02-29T10:34:56"),
        (ZONED, "yesterday"),
        (ZONED, "2024-02-29T10:34:56.1234567890Z"),
        (schema("string", TIME + "IsoDate"), "2024-02-29T00:00:00Z"),
        (schema("string", TIME + "IsoTimestamp"), "2024-02-29Z"),
        (schema("string", TIME + "IsoTime"), "1:00"),
        (schema("string", TIME + "IsoTime"), "-infinity"),
    ],
)
def test_text_that_is_no_time_is_refused(one: ConnectSchema, raw: str) -> None:
    with pytest.raises(ValueOutOfRangeError, match="column=c"):
        read(one, raw)


DECIMALS: list[tuple[ConnectSchema, Any, str]] = [
    (decimal(10, 2), "tmn9Lg==", "-12345678.90"),
    (decimal(10, 2), b"\xb6i\xfd.", "-12345678.90"),
    (decimal(20, 0), "AP//////////", "18446744073709551615"),
    (decimal(38, 10), "AQ==", "0.0000000001"),
    (decimal(38, 10), Decimal("0E-10"), "0.0000000000"),
    (decimal(5, 0), -99999, "-99999"),
    (decimal(12, 2), Decimal("0.1"), "0.10"),
    (decimal(None, 2), Decimal("1.000"), "1.00"),
    (decimal(5, -2), b"\x0c", "1200"),
    (
        decimal(65, 30),
        "/wzp2OOAPG91dBC5sca6EIXayfYAAAAAAAAAAQ==",
        "-99999999999999999999999999999999999.999999999999999999999999999999",
    ),
]


@pytest.mark.parametrize(("one", "raw", "expected"), DECIMALS, ids=range(len(DECIMALS)))
def test_decimals_keep_their_digits_and_scale(one: ConnectSchema, raw: Any, expected: str) -> None:
    found = read(one, raw)
    assert isinstance(found, Decimal)
    assert format(found, "f") == expected


def test_a_decimal_beyond_its_precision_is_refused() -> None:
    with pytest.raises(ValueOutOfRangeError):
        read(decimal(2, 0), b"\x64")
    with pytest.raises(ValueOutOfRangeError):
        read(decimal(10, 2), Decimal("0.001"))
    with pytest.raises(ValueOutOfRangeError):
        read(decimal(10, 2), Decimal("NaN"))


VARIABLE = schema("struct", DATA + "VariableScaleDecimal")


@pytest.mark.parametrize(
    ("scale", "value", "expected"),
    [
        (9, bytes.fromhex("5ce0e9a56015fec5aadfa328ae398115"), "123456789012345678901234567890.123456789"),
        (20, "AQ==", "0.00000000000000000001"),
        (1, b"\xf1", "-1.5"),
        (-3, b"\x05", "5000"),
        (0, (10**131071).to_bytes(54_432, "big", signed=True), "1" + "0" * 131071),
    ],
)
def test_a_numeric_without_scale_keeps_every_digit(scale: int, value: Any, expected: str) -> None:
    assert format(read(VARIABLE, {"scale": scale, "value": value}), "f") == expected
    assert spark_type(own_column(VARIABLE).type).ddl == "string"


@pytest.mark.parametrize(
    "raw",
    [
        {"scale": 1_000_000_000, "value": b"\x01"},
        {"scale": 0, "value": b"\x01" * 70_000},
        {"scale": "0", "value": b"\x01"},
        {"value": b"\x01"},
        {"scale": 0, "value": "?"},
        "1.5",
    ],
)
def test_a_numeric_no_database_has_is_refused(raw: Any) -> None:
    with pytest.raises(DecodeError):
        read(VARIABLE, raw)


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        ("float32", Decimal("3.4E38"), 3.3999999521443642e38),
        ("float32", Decimal("0.1"), 0.10000000149011612),
        ("float64", Decimal("2.5E300"), 2.5e300),
        ("float64", "-Infinity", -math.inf),
        ("float32", "Infinity", math.inf),
        ("float64", 7, 7.0),
    ],
)
def test_floats(kind: Any, raw: Any, expected: float) -> None:
    assert read(schema(kind), raw) == expected


def test_not_a_number_is_one() -> None:
    assert math.isnan(read(schema("float64"), "NaN"))
    assert math.isnan(read(schema("float32"), math.nan))
    with pytest.raises(ValueOutOfRangeError):
        read(schema("float32"), Decimal("1e39"))
    with pytest.raises(SchemaMismatchError):
        read(schema("float64"), "1.5")


@pytest.mark.parametrize(
    ("one", "raw", "expected"),
    [
        (BITS, "VRU=", 0x1555),
        (BITS, b"\x55\x15", 0x1555),
        (BITS, "", 0),
        (schema("bytes", DATA + "Bits", parameters={"length": 64}), b"\xff" * 8, 2**64 - 1),
        (
            schema("bytes", DATA + "Bits", parameters={"length": 65}),
            b"\x01" + b"\x00" * 8,
            b"\x01" + b"\x00" * 8,
        ),
        (schema("boolean"), True, True),
        (schema("int32", TIME + "Year"), 2155, 2155),
        (schema("int64", TIME + "MicroDuration"), -2629800000000, -2629800000000),
        (schema("int8"), -128, -128),
        (schema("int64"), -(1 << 63), -(1 << 63)),
        (schema("bytes"), "AP8Q", b"\x00\xff\x10"),
        (schema("string", DATA + "Json"), '{"a": 1,  "a": 2}', '{"a": 1,  "a": 2}'),
        (schema("string", DATA + "Enum"), "", ""),
        (schema("string", DATA + "Ltree"), "Top.Science", "Top.Science"),
    ],
)
def test_other_values(one: ConnectSchema, raw: Any, expected: Any) -> None:
    assert read(one, raw) == expected


@pytest.mark.law("L6")
@pytest.mark.parametrize(
    ("one", "raw"),
    [
        (schema("int8"), 128),
        (schema("int32"), 1 << 31),
        (BITS, b"\xff\xff"),
        (schema("bytes"), "?"),
        (schema("struct", DATA + "geometry.Geometry"), {"wkb": b"\x02abcd", "srid": 1}),
    ],
)
def test_values_beyond_their_type_are_refused(one: ConnectSchema, raw: Any) -> None:
    with pytest.raises(ValueOutOfRangeError, match="column=c"):
        read(one, raw)


@pytest.mark.parametrize(
    ("one", "raw"),
    [
        (schema("int32"), True),
        (schema("int32"), "1"),
        (schema("int32"), Decimal(1)),
        (schema("boolean"), 1),
        (schema("string"), 1),
        (schema("bytes"), [1]),
        (DATE, "2024-02-29"),
        (schema("array"), {"a": 1}),
        (schema("map"), "a"),
        (schema("struct"), [1]),
        (schema("struct", DATA + "geometry.Point"), {"x": "1", "y": 2.0, "wkb": None, "srid": None}),
        (schema("struct", DATA + "geometry.Point"), "POINT(1 2)"),
    ],
)
def test_values_of_another_kind_are_refused(one: ConnectSchema, raw: Any) -> None:
    with pytest.raises(SchemaMismatchError):
        read(one, raw)


def test_members_of_enum_and_set_are_the_schemas() -> None:
    allowed = {"allowed": r'small,medium,large\, "x"'}
    found = own_column(schema("string", DATA + "Enum", parameters=allowed, default="small"))
    assert found.type == ColumnType("enum", members=("small", "medium", 'large, "x"'))
    assert found.default == "small"
    assert own_column(schema("string", DATA + "EnumSet")).type == ColumnType("set")


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (schema("int32", default=42), "42"),
        (decimal(6, 3), None),
        (schema("bytes", CONNECT + "Decimal", parameters={"scale": 3}, default="Bdw="), "1.500"),
        (schema("bytes", CONNECT + "Decimal", parameters={"scale": 3}, default=b"\x05\xdc"), "1.500"),
        (schema("int32", TIME + "Date", default=18321), "2020-02-29"),
        (schema("string", TIME + "ZonedTimestamp", default="1970-01-01T00:00:00Z"), "CURRENT_TIMESTAMP"),
        (schema("int64", TIME + "Timestamp", default=0), "CURRENT_TIMESTAMP"),
        (
            schema("string", TIME + "ZonedTimestamp", default="2020-01-01T00:00:01Z"),
            "2020-01-01 00:00:01+00:00",
        ),
        (schema("boolean", default=False), "false"),
        (schema("bytes", default=b64(b"\x00\xff")), "\x00\xff"),
        (schema("bytes", DATA + "Bits", parameters={"length": 13}, default=b"\x55\x15"), "\x15\x55"),
        (schema("int32", default="forty-two"), None),
    ],
)
def test_defaults(one: ConnectSchema, expected: str | None) -> None:
    assert own_column(one).default == expected


def test_every_semantic_type_has_a_row_and_is_found() -> None:
    for one in SEMANTIC_TYPES:
        assert find_row(one.type) is not None, one.name
        assert all(semantic_type(one.name, wire) is one for wire in one.wire)
    assert all(find_row(name) is not None for name in PLAIN_TYPES.values())
    assert semantic_type(TIME + "Date", "string") is None


def test_the_page_names_schemas_that_are_read() -> None:
    page = (Path(__file__).parents[4] / "docs" / "debezium-values.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]+\|[^|]+\| (\w+) \| `?([\w.]*)`? \|", page, re.MULTILINE)
    assert len(rows) > 60
    assert [(wire, name) for wire, name in rows if name and semantic_type(name, wire) is None] == []
