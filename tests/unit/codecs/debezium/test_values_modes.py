"""What a connector's handling modes and a table definition make of Debezium's values."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from tests.unit.codecs.debezium.samples import (
    CONNECT,
    DATA,
    MODES,
    TIME,
    decimal,
    own_column,
    read,
    read_as,
    schema,
    value_of_definition,
)
from tidesink.codecs.debezium.readers import (
    definition_reader,
    infer_column,
    inferred_value,
)
from tidesink.codecs.options import DebeziumModes
from tidesink.errors import DecodeError, SchemaMismatchError, ValueOutOfRangeError
from tidesink.events import Column, ColumnType
from tidesink.typemap.mysql_types import parse_sql_type

UNSIGNED = ColumnType("bigint unsigned")
LONG = schema("int64")


def _defined(sql: str, raw: object, **modes: Any) -> Any:
    return value_of_definition(Column("c", parse_sql_type(sql)), raw, modes=DebeziumModes(**modes))


def test_an_unsigned_bigint_is_repaired_where_it_is_known_to_be_one() -> None:
    assert read(LONG, -1) == -1
    assert read_as(UNSIGNED, LONG, -1) == 2**64 - 1
    assert read_as(UNSIGNED, LONG, -(1 << 63)) == 1 << 63
    assert read_as(UNSIGNED, LONG, (1 << 63) - 1) == (1 << 63) - 1
    assert read_as(UNSIGNED, decimal(20, 0), "AP//////////") == 2**64 - 1
    assert read_as(UNSIGNED, schema("string"), "18446744073709551615") == 2**64 - 1
    assert _defined("bigint unsigned", -1) == 2**64 - 1
    precise = {"bigint_unsigned_handling_mode": "precise"}
    assert _defined("bigint unsigned", "AP//////////", **precise) == 2**64 - 1
    assert _defined("bigint unsigned", 2**64 - 1, decimal_format="numeric", **precise) == 2**64 - 1
    text = {"bigint_unsigned_handling_mode": "string"}
    assert _defined("bigint unsigned", "18446744073709551615", **text) == 2**64 - 1


@pytest.mark.parametrize("word", ["tidb_type", "__debezium.source.column.type"])
def test_the_sources_own_type_tells_it_too(word: str) -> None:
    one = schema("int64", parameters={word: "BIGINT UNSIGNED"})
    assert own_column(one).type == UNSIGNED
    assert read(one, -1) == 2**64 - 1
    assert own_column(schema("int64", parameters={word: "geometry"})).type == ColumnType("bigint")


def test_a_propagated_decimal_and_binary_are_read_from_text() -> None:
    reported = {"__debezium.source.column.length": 10, "__debezium.source.column.scale": 2}
    one = schema("string", parameters={"__debezium.source.column.type": "DECIMAL", **reported})
    assert read(one, "1.5") == Decimal("1.50")
    assert own_column(one).type == ColumnType("decimal", precision=10, scale=2)
    binary = schema("string", parameters={"__debezium.source.column.type": "VARBINARY"})
    assert read(binary, "00ff", DebeziumModes(binary_handling_mode="hex")) == b"\x00\xff"


@pytest.mark.parametrize(
    ("mode", "text"),
    [("base64", "+/8="), ("base64-url-safe", "-_8="), ("base64-url-safe", "-_8"), ("hex", "fbff")],
    ids=["standard", "url-safe", "unpadded", "hex"],
)
def test_binary_handling_modes(mode: Any, text: str) -> None:
    modes = DebeziumModes(binary_handling_mode=mode)
    assert read(schema("string"), text, modes) == text
    assert read_as(ColumnType("varbinary"), schema("string"), text, modes) == b"\xfb\xff"
    assert _defined("varbinary(4)", text, binary_handling_mode=mode) == b"\xfb\xff"
    with pytest.raises(ValueOutOfRangeError, match=f"binary.handling.mode {mode}"):
        read_as(ColumnType("varbinary"), schema("string"), "?", modes)


def test_bytes_are_base64_in_json_and_bytes_in_avro() -> None:
    assert _defined("varbinary(4)", "+/8=") == b"\xfb\xff"
    assert read_as(ColumnType("binary"), schema("bytes"), b"\xfb\xff") == b"\xfb\xff"


TEN_TWO = ColumnType("decimal", precision=10, scale=2)


def test_decimal_handling_modes() -> None:
    assert read_as(TEN_TWO, schema("string"), "-12345678.90") == Decimal("-12345678.90")
    assert format(read_as(ColumnType("decimal"), schema("string"), "1E+30"), "f") == "1" + "0" * 30
    assert read_as(TEN_TWO, schema("float64"), Decimal("-1.23456789E7")) == Decimal("-12345678.90")
    assert _defined("decimal(10,2)", "tmn9Lg==") == Decimal("-12345678.90")
    assert _defined("decimal(10,2)", "-12345678.90", decimal_handling_mode="string") == Decimal(
        "-12345678.90"
    )
    assert _defined("decimal(10,2)", Decimal("9.999999999E7"), decimal_handling_mode="double") == Decimal(
        "99999999.99"
    )
    wide = Decimal("123456789012345678901234567890.12")
    assert _defined("decimal(38,2)", wide, decimal_format="numeric") == wide
    free = Column("c", ColumnType("decimal"))
    assert value_of_definition(free, wide, modes=DebeziumModes(decimal_format="numeric")) == wide
    assert value_of_definition(free, "1.50", modes=DebeziumModes(decimal_handling_mode="string")) == Decimal(
        "1.50"
    )
    with pytest.raises(ValueOutOfRangeError, match="or define the column as DOUBLE"):
        value_of_definition(free, wide, modes=DebeziumModes(decimal_handling_mode="double"))
    with pytest.raises(ValueOutOfRangeError):
        read_as(TEN_TWO, schema("string"), "NAN")


@pytest.mark.parametrize(
    ("sql", "raw"),
    [
        ("decimal(18,9)", "123456789.12345679"),
        ("decimal(20,0)", "-1.0E20"),
        ("decimal(18,4)", "1.2345678901234568E13"),
        ("decimal(38,0)", "1E15"),
    ],
)
@pytest.mark.parametrize("mode", ["double", "precise"])
def test_a_double_that_may_stand_for_another_decimal_is_refused(sql: str, raw: str, mode: str) -> None:
    """Also where no mode is said: TiCDC writes decimals as doubles, and mode precise writes text."""
    with pytest.raises(ValueOutOfRangeError, match=r"decimal.handling.mode"):
        _defined(sql, Decimal(raw), decimal_handling_mode=mode)


# MariaDB's row 2 and PostgreSQL's row 1 of the captures, and what each mode makes of them.
PLAIN: list[tuple[str, Any, dict[str, str], Any]] = [
    ("datetime", 253402300799000, {}, "9999-12-31 23:59:59"),
    ("datetime(3)", 1709210096789, {}, "2024-02-29 12:34:56.789"),
    ("datetime(6)", 1709210096123456, {}, "2024-02-29 12:34:56.123456"),
    ("datetime(6)", 1709210096123, {"time_precision_mode": "connect"}, "2024-02-29 12:34:56.123000"),
    ("datetime(3)", 1709210096789000, {"time_precision_mode": "microseconds"}, "2024-02-29 12:34:56.789"),
    (
        "datetime(6)",
        1709210096123456000,
        {"time_precision_mode": "nanoseconds"},
        "2024-02-29 12:34:56.123456",
    ),
    (
        "datetime(6)",
        "2024-02-29T12:34:56.1Z",
        {"time_precision_mode": "isostring"},
        "2024-02-29 12:34:56.100000",
    ),
    ("local datetime", 1709210096123456, {"time_precision_mode": "adaptive"}, "2024-02-29 12:34:56.123456"),
    ("local datetime(3)", 1709210096789, {"time_precision_mode": "adaptive"}, "2024-02-29 12:34:56.789"),
    (
        "local datetime(7)",
        1709210096123456700,
        {"time_precision_mode": "adaptive"},
        "2024-02-29 12:34:56.1234567",
    ),
    ("local datetime", 9223372036825200000, {}, "infinity"),
    ("time", 3723000000, {}, "01:02:03"),
    ("time(3)", 45296789000, {}, "12:34:56.789"),
    ("time(3)", 45296789, {"time_precision_mode": "connect"}, "12:34:56.789"),
    ("time(3)", 45296789, {"time_precision_mode": "adaptive"}, "12:34:56.789"),
    ("time(6)", -3723000004, {}, "-01:02:03.000004"),
    ("time(6)", "00:00:00.000001Z", {"time_precision_mode": "isostring"}, "00:00:00.000001"),
    ("local time", 86400000000, {"time_precision_mode": "adaptive"}, "24:00:00"),
    ("date", 2932896, {}, "9999-12-31"),
    ("date", "9999-12-31Z", {"time_precision_mode": "isostring"}, "9999-12-31"),
    ("local date", -2147472692, {}, "infinity"),
    ("local date", "-5877611-06-22Z", {"time_precision_mode": "isostring"}, "-infinity"),
    (
        "local datetime",
        "-290308-12-21T19:59:27.600Z",
        {"time_precision_mode": "isostring"},
        "-infinity",
    ),
    ("timestamptz", "+294247-01-10T04:00:25.200Z", {"time_precision_mode": "isostring"}, "infinity"),
    ("timestamp(6)", "2024-02-29T12:34:56.123456Z", {}, "2024-02-29 12:34:56.123456"),
    ("timestamp", "2038-01-19T03:14:07Z", {"time_precision_mode": "isostring"}, "2038-01-19 03:14:07"),
    ("timestamptz", "2024-03-31T01:30:00.000000Z", {}, "2024-03-31 01:30:00+00:00"),
    ("year", 2155, {}, 2155),
    ("tinyint(1)", 1, {}, 1),
    ("bit(1)", True, {}, 1),
    ("bit(13)", "VRU=", {}, 0x1555),
    ("float", Decimal("123.45670318603516"), {}, 123.45670318603516),
    ("double", "-Infinity", {}, float("-inf")),
    ("enum('a','b')", "b", {}, "b"),
    ("set('a','b')", "a,b", {}, "a,b"),
    ("json", '{"upd": 1.0}', {}, '{"upd": 1.0}'),
    ("uuid", "550e8400-e29b-41d4-a716-446655440000", {}, "550e8400-e29b-41d4-a716-446655440000"),
    ("hstore", {"z": "1", "a": None}, {"hstore_handling_mode": "map"}, '{"a":null,"z":"1"}'),
    ("hstore", '{"z":"1"}', {}, '{"z":"1"}'),
    ("array", [1, None, Decimal("1.10"), "x"], {}, '[1,null,1.10,"x"]'),
    ("interval", "P0Y-1M0DT0H0M0S", {"interval_handling_mode": "string"}, "P0Y-1M0DT0H0M0S"),
    ("interval", 37091106789000, {}, "PT37091106.789S"),
    ("interval", -2629800000000, {}, "PT-2629800S"),
    ("interval", 0, {}, "PT0S"),
    ("interval", -1, {}, "PT-0.000001S"),
    ("interval", -(1 << 63), {}, "PT-9223372036854.775808S"),
    ("bigint", -2629800000000, {}, -2629800000000),
    ("microseconds", -2629800000000, {}, -2629800000000),
    ("text", "NaN", {}, "NaN"),
]


@pytest.mark.parametrize(("sql", "raw", "modes", "expected"), PLAIN)
def test_plain_json_by_definition(sql: str, raw: Any, modes: dict[str, str], expected: Any) -> None:
    assert _defined(sql, raw, **modes) == expected
    assert _defined(sql, None, **modes) is None


def test_an_interval_column_takes_a_count_with_its_schema_too() -> None:
    counted = schema("int64", TIME + "MicroDuration")
    assert read_as(ColumnType("interval"), counted, -2629800000001) == "PT-2629800.000001S"
    assert read_as(ColumnType("bigint"), counted, -2629800000001) == -2629800000001
    for raw in (1 << 63, True, 1.5):
        with pytest.raises(DecodeError, match="column=c"):
            _defined("interval", raw)


def test_a_reader_takes_each_kind_of_json_a_column_has() -> None:
    """A boolean column defined as tinyint: a connector's converters may send either."""
    reader = definition_reader(Column("c", ColumnType("tinyint")), modes=MODES)
    assert [reader(raw) for raw in (1, True, None, 0, False)] == [1, 1, None, 0, 0]
    boolean = definition_reader(Column("c", ColumnType("boolean")), modes=MODES)
    assert [boolean(raw) for raw in (1, True, None, 0)] == [True, True, None, False]
    with pytest.raises(ValueOutOfRangeError):
        boolean(2)


@pytest.mark.parametrize(
    ("sql", "raw"),
    [
        ("int", {"a": 1}),
        ("int", Decimal("1.5")),
        ("int", "one"),
        ("tinyint", 128),
        ("int unsigned", -1),
        ("varchar(5)", 1),
        ("varchar(5)", True),
        ("bit(4)", "EA=="),
        ("date", -735160),  # 44 BC
        ("date", "yesterday"),
        ("datetime(3)", "2024-02-29T12:34:56.7891Z"),
        ("time", 90_000_000_000_000),
        ("json", [object()]),
        ("double", "one"),
        ("decimal(10,2)", "?"),
        ("decimal(10,2)", True),
    ],
)
def test_a_value_that_the_defined_type_cannot_hold_is_refused(sql: str, raw: Any) -> None:
    with pytest.raises(DecodeError, match="column=c"):
        _defined(sql, raw)


def test_a_timestamp_column_is_text_in_its_own_zone() -> None:
    """As TiCDC writes it: the zone is the table's. An hour that comes twice names no instant."""
    helsinki = {"time_zone": "Europe/Helsinki"}
    assert _defined("timestamp(1)", "2024-02-29T10:34:56.1Z", **helsinki) == "2024-02-29 12:34:56.1"
    assert _defined("timestamp", "2024-10-27T00:30:00Z", **helsinki) == "2024-10-27 03:30:00"
    with pytest.raises(ValueOutOfRangeError, match="occurs twice"):
        _defined("timestamp", "2024-10-27T01:30:00Z", **helsinki)


def test_a_column_is_inferred_from_its_json() -> None:
    found = {
        raw: infer_column("c", raw).type.name for raw in (True, 7, 2**64 - 1, Decimal("1.10"), "x", None)
    }
    assert found == {
        True: "boolean",
        7: "bigint",
        2**64 - 1: "decimal",
        Decimal("1.10"): "decimal",
        "x": "text",
        None: "text",
    }
    assert infer_column("c", [1]).type.name == infer_column("c", {}).type.name == "json"
    raw = json.loads('{"b": [1.10, null], "a": "é"}', parse_float=Decimal)
    assert inferred_value(raw, modes=MODES) == '{"a":"é","b":[1.10,null]}'
    assert [inferred_value(one, modes=MODES) for one in (1, Decimal("1.10"), True, None, "x")] == [
        1,
        Decimal("1.10"),
        True,
        None,
        "x",
    ]
    for beyond in (2**63, -(2**63) - 1):
        assert isinstance(inferred_value(beyond, modes=MODES), Decimal)
    assert isinstance(inferred_value(2**63 - 1, modes=MODES), int)
    with pytest.raises(SchemaMismatchError, match="Decimal"):
        inferred_value(1.5, modes=MODES)


def test_instants_and_dates_are_read_into_definitions_of_mysql() -> None:
    assert read_as(ColumnType("date"), schema("int32", TIME + "Date"), 0) == "1970-01-01"
    assert read_as(ColumnType("datetime", fsp=3), schema("int64", CONNECT + "Timestamp"), 0) == (
        "1970-01-01 00:00:00.000"
    )
    assert read_as(ColumnType("json"), schema("string", DATA + "Json"), "[]") == "[]"
