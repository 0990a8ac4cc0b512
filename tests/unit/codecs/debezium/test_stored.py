"""What a record of Debezium's has of a value in the database, where no capture shows it."""

from __future__ import annotations

import struct
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import pytest

from tidesink.codecs.debezium.connect_schema import ConnectSchema
from tidesink.codecs.debezium.inference import InferredColumn
from tidesink.codecs.debezium.stored import recorded_value
from tidesink.codecs.debezium.values import wire_reader, wire_type
from tidesink.codecs.options import BinaryHandling, DebeziumModes
from tidesink.errors import ConfigError, ValueOutOfRangeError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.decode.debezium_json import JsonWriter, Writers, debezium_json_plan
from tidesink.typemap.mysql_types import parse_sql_type

MODES: Final = DebeziumModes()
CONNECT_TIME: Final = ConnectSchema("int32", "org.apache.kafka.connect.data.Time")
MILLI: Final = ConnectSchema("int64", "io.debezium.time.Timestamp")
ZONED: Final = ConnectSchema("string", "io.debezium.time.ZonedTimestamp")
CONNECT_MOMENT: Final = ConnectSchema("int64", "org.apache.kafka.connect.data.Timestamp")


def _recorded(
    sql: str, column_type: ColumnType, value: Any, modes: DebeziumModes = MODES, *, ticdc: bool = False
) -> Any:
    stored = Column("c", parse_sql_type(sql), nullable="not null" not in sql)
    convert = recorded_value(stored, column_type, modes, is_ticdc=ticdc)
    return value if convert is None else convert(value)


@pytest.mark.parametrize(
    ("sql", "schema", "text", "wire"),
    [
        # time.precision.mode connect: the schema says so, and its numbers have no more digits.
        ("time(6)", CONNECT_TIME, "12:34:56.789999", 45_296_789),
        ("datetime(6)", CONNECT_MOMENT, "2024-02-29 12:34:56.123999", 1_709_210_096_123),
        ("datetime(6)", CONNECT_MOMENT, "1969-12-31 23:59:59.999999", -1),
        ("time(6)", ConnectSchema("int64", "io.debezium.time.MicroTime"), "-01:02:03.000004", -3_723_000_004),
        ("datetime", MILLI, "0069-01-01 00:00:00", 3_124_224_000_000),
        ("date", ConnectSchema("int32", "io.debezium.time.Date"), "0070-01-02", 1),
        ("decimal(5,2)", ConnectSchema("float64"), Decimal("1.10"), 1.1),
        ("decimal(5,2)", ConnectSchema("string"), Decimal("1.10"), "1.10"),
        ("bigint unsigned", ConnectSchema("int64"), 2**64 - 1, -1),
        ("bigint unsigned", ConnectSchema("string"), 2**64 - 1, "18446744073709551615"),
        ("bit(1)", ConnectSchema("boolean"), 1, True),
        ("timestamp(3)", ZONED, "2024-02-29 00:00:00.120", "2024-02-29T00:00:00.12Z"),
    ],
)  # fmt: skip
def test_a_value_is_what_its_record_decodes_to(sql: str, schema: ConnectSchema, text: Any, wire: Any) -> None:
    assert _recorded(sql, wire_type(schema), text) == wire_reader(schema)(wire)


@pytest.mark.parametrize("text", ["-00:00:00.000001", "24:00:00", "838:59:59"])
def test_a_time_that_is_none_of_a_day_is_null_where_the_mode_says_so(text: str) -> None:
    local, own = ColumnType("local time"), ColumnType("time", fsp=6)
    for modes in (
        replace(MODES, time_precision_mode="connect"),
        replace(MODES, time_precision_mode="isostring"),
    ):
        assert _recorded("time(6)", local, text, modes) is None
        assert _recorded("time(6)", own, text, modes) is None
        assert _recorded("time(6)", local, text, modes, ticdc=True) is not None
    assert _recorded("time(6)", wire_type(CONNECT_TIME), text) is None
    assert _recorded("time(6)", local, text) is not None


@pytest.mark.parametrize(
    ("sql", "name", "empty"),
    [
        ("date", "local date", "1970-01-01"),
        ("datetime", "local datetime", "1970-01-01 00:00:00"),
        ("timestamp", "instant", "1970-01-01 00:00:00+00:00"),
    ],
)
def test_a_date_that_no_calendar_has(sql: str, name: str, empty: str) -> None:
    zero = "0000-00-00" if sql == "date" else "0000-00-00 00:00:00"
    nullable, required = (Column("c", parse_sql_type(sql), nullable=one) for one in (True, False))
    for ticdc in (False, True):
        found = recorded_value(required, ColumnType(name), MODES, is_ticdc=ticdc)
        assert found is not None
        assert found(zero) == empty
        found = recorded_value(nullable, ColumnType(name), MODES, is_ticdc=ticdc)
        assert found is not None
        assert found(zero) == (empty if ticdc and sql == "timestamp" else None)


def test_json_of_mysql_has_no_spaces() -> None:
    text = '{"a": [1, 2.0, "x, \\": y"], "b c": {"d": null}}'
    assert _recorded("json", ColumnType("json"), text) == '{"a":[1,2.0,"x, \\": y"],"b c":{"d":null}}'
    assert _recorded("json", ColumnType("json"), text, ticdc=True) == text
    assert _recorded("longtext", ColumnType("text"), text) == text


def test_a_geometry_has_its_srid() -> None:
    wkb = struct.pack("<BIdd", 1, 1, 1.0, 2.0)
    assert _recorded("point", ColumnType("geometry"), struct.pack("<I", 0) + wkb) == wkb
    with_srid = struct.pack("<BIIdd", 1, 0x2000_0001, 4326, 1.0, 2.0)
    assert _recorded("point", ColumnType("geometry"), struct.pack("<I", 4326) + wkb) == with_srid


def test_binary_that_is_text_needs_its_mode() -> None:
    with pytest.raises(ConfigError, match="binary-handling-mode"):
        _recorded("blob", ColumnType("text"), b"\xff\xfe")
    spelt: dict[BinaryHandling, str] = {"base64": "//4=", "base64-url-safe": "__4=", "hex": "fffe"}
    for mode, text in spelt.items():
        modes = replace(MODES, binary_handling_mode=mode)
        assert _recorded("blob", ColumnType("text"), b"\xff\xfe", modes) == text
    assert _recorded("blob", ColumnType("text"), b"\xff\xfe", ticdc=True) == "//4="


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize(
    ("mode", "text"), [("base64", "//4="), ("base64-url-safe", "__4="), ("hex", "fffe"), ("bytes", "//4=")]
)
def test_bytes_in_an_array_of_postgres_are_spelt_as_in_a_column(mode: Any, text: str, bare: bool) -> None:
    stored, modes = Column("c", ColumnType("array", sql="bytea[]")), replace(MODES, binary_handling_mode=mode)
    convert = recorded_value(stored, ColumnType("array"), modes, is_ticdc=False, bare=bare)
    assert convert is not None
    assert convert('{"\\\\xfffe",NULL}') == f'["{text}",null]'


def test_instants_in_a_bare_array_of_postgres_have_four_digits_of_a_year() -> None:
    stored = Column("c", ColumnType("array", sql="timestamp(3) with time zone[]"))
    convert = recorded_value(stored, ColumnType("array"), MODES, is_ticdc=False, bare=True)
    assert convert is not None
    assert convert('{"0001-01-01 00:00:00.5+00",infinity}') == '["0001-01-01T00:00:00.500Z","infinity"]'
    for text in ("0044-03-15 10:00:00+00 BC", "20000-01-01 00:00:00+00"):
        with pytest.raises(ValueOutOfRangeError, match=r"is not a valid timestamp\(3\) with time zone"):
            convert(f'{{"{text}"}}')


def test_json_without_types_needs_a_definition() -> None:
    table = TableId("shop", "orders")
    writer = JsonWriter((InferredColumn(Column("id", ColumnType("text")), True),), ("id",), bare=True)
    stored, kind = Column("id", ColumnType("bigint")), ColumnType("text")
    plan = debezium_json_plan(table, Writers().with_new([writer]))
    with pytest.raises(ConfigError, match="definition"):
        plan.decoder.recorded_value(stored, kind)
    definition = TableSchema(table, (stored,))
    plan = debezium_json_plan(table, Writers().with_new([writer]), definition=definition)
    assert plan.decoder.recorded_value(stored, stored.type) is None
