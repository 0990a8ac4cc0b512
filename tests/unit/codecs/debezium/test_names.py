"""Semantic names and forms that are not read: refused by name, or read by type with the name kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.codecs.debezium.samples import (
    CONNECT,
    DATA,
    TIME,
    own_column,
    read,
    read_as,
    schema,
    value_of_definition,
)
from tidesink.codecs.debezium.codec import DebeziumJsonCodec
from tidesink.codecs.debezium.connect_schema import ConnectField, ConnectSchema, connect_schema_of_avro
from tidesink.codecs.debezium.envelope import Rows
from tidesink.codecs.options import DebeziumModes, DebeziumOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import DecodeError, SchemaMismatchError, ValueOutOfRangeError
from tidesink.events import ChangeEvent, Column, ColumnType, Message, TableId, TableSchema

Json = dict[str, Any]
MODES = DebeziumModes()


def _struct(name: str | None, **fields: ConnectSchema) -> ConnectSchema:
    return schema("struct", name, fields=tuple(ConnectField(key, one, key) for key, one in fields.items()))


_CLOCK: Json = {"hour": 12, "minute": 34, "second": 56, "picoseconds": 0, "precision": None}
_DAY: Json = {"year": 2024, "month": 2, "day": 29}
_INFINITE: Json = {"specialValue": "POSITIVE_INFINITY", "precision": 6}
_SPAN: Json = {"years": 0, "months": 0, "days": 0, "hours": 0, "minutes": 0, "seconds": 0, "picoseconds": 0}


def _time(name: str, **parameters: object) -> ConnectSchema:
    return schema("struct", TIME + name, parameters=parameters)


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("StructuredDate", {**_DAY, "specialValue": None}, "2024-02-29"),
        ("StructuredDate", {"year": 0, "month": 0, "day": 0}, "0000-00-00"),
        ("StructuredDate", {"year": 2024, "month": 0, "day": 0}, "2024-00-00"),
        ("StructuredDate", {"year": 0, "month": 3, "day": 1}, "0001-03-01 BC"),
        ("StructuredDate", {"year": -43, "month": 3, "day": 15}, "0044-03-15 BC"),
        ("StructuredDate", {"year": 12024, "month": 3, "day": 15}, "12024-03-15"),
        ("StructuredDate", {"specialValue": "NEGATIVE_INFINITY"}, "-infinity"),
        ("StructuredTimestamp", {**_DAY, **_CLOCK}, "2024-02-29 12:34:56"),
        (
            "StructuredTimestamp",
            {**_DAY, **_CLOCK, "picoseconds": 500_000_000_000},
            "2024-02-29 12:34:56.5",
        ),
        ("StructuredTimestamp", {**_DAY, **_CLOCK, "picoseconds": 1}, "2024-02-29 12:34:56.000000000001"),
        ("StructuredTimestamp", _INFINITE, "infinity"),
        (
            "StructuredTimestampPrecision6SourceColumn7473",
            {**_DAY, **_CLOCK},
            "2024-02-29 12:34:56",
        ),
        (
            "StructuredZonedTimestamp",
            {**_DAY, **_CLOCK, "offsetSeconds": 0, "zoneId": "Z"},
            "2024-02-29 12:34:56+00:00",
        ),
        (
            "StructuredZonedTimestamp",
            {**_DAY, **_CLOCK, "offsetSeconds": -19_800},
            "2024-02-29 12:34:56-05:30",
        ),
        ("StructuredTime", {**_CLOCK, "hour": 24, "minute": 0, "second": 0}, "24:00:00"),
        ("StructuredTime", {"hour": 1, "minute": 2, "second": 3, "nanos": 40_000_000}, "01:02:03.04"),
        ("StructuredZonedTime", {**_CLOCK, "offsetSeconds": 7_200}, "12:34:56+02:00"),
        ("StructuredZonedTime", {**_CLOCK, "offsetSeconds": 0}, "12:34:56Z"),
        ("StructuredDuration", {**_SPAN, "months": -1}, "P0Y-1M0DT0H0M0S"),
        (
            "StructuredDuration",
            {**_SPAN, "years": 1, "seconds": -6, "picoseconds": -789_000_000_000},
            "P1Y0M0DT0H0M-6.789S",
        ),
        ("StructuredDuration", {"specialValue": "NEGATIVE_INFINITY"}, "-infinity"),
        ("StructuredDuration", {**_SPAN, **_INFINITE}, "infinity"),
    ],
)
def test_structured_times_are_exact_text(name: str, raw: Json, expected: str) -> None:
    assert read(_time(name), raw) == expected
    assert read(schema("array", items=_time(name)), [raw]) == json.dumps([expected])


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("StructuredDate", {"year": 2024, "month": 13, "day": 1}),
        ("StructuredDate", {"year": 2024, "month": 2}),
        ("StructuredDate", {"specialValue": "SOMETIME"}),
        ("StructuredTimestamp", {**_DAY, **_CLOCK, "hour": 24}),
        ("StructuredTimestamp", {**_DAY, **_CLOCK, "picoseconds": 10**12}),
        ("StructuredTime", {**_CLOCK, "hour": 24}),
        ("StructuredTime", "12:34:56"),
        ("StructuredZonedTime", _CLOCK),
        ("StructuredDuration", {**_SPAN, "seconds": None}),
    ],
)
def test_what_is_no_structured_time_is_refused(name: str, raw: Any) -> None:
    with pytest.raises(DecodeError):
        read(_time(name), raw)


def test_the_types_of_structured_times() -> None:
    fine = {"io.debezium.time.precision": 9}
    assert own_column(_time("StructuredDate")).type == ColumnType("local date")
    assert own_column(_time("StructuredTimestamp", **fine)).type == ColumnType("local datetime", fsp=12)
    assert own_column(_time("StructuredZonedTimestamp")).type == ColumnType("instant")
    elapsed = _time("StructuredDuration", **{"io.debezium.time.duration.kind": "elapsed-time"})
    assert own_column(elapsed).type == ColumnType("local time")
    minus = {**_SPAN, "hours": -838, "minutes": -59, "seconds": -58, "picoseconds": -500_000_000_000}
    assert read(elapsed, minus) == "-838:59:58.5"
    with pytest.raises(ValueOutOfRangeError, match="specialValue"):
        read(elapsed, _INFINITE)


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        ("date", {**_DAY, "specialValue": None}, "2024-02-29"),
        ("date", {"year": 0, "month": 0, "day": 0, "specialValue": None}, "0000-00-00"),
        ("datetime", {**_DAY, **_CLOCK, "specialValue": None}, "2024-02-29 12:34:56"),
        ("time", {**_SPAN, "hours": -100, "precision": 0}, "-100:00:00"),
        ("interval", {**_SPAN, "days": 3, "precision": 6}, "P0Y0M3DT0H0M0S"),
        # Without nulls, or in the form that has no precision.
        ("date", _DAY, "2024-02-29"),
        ("local date", {"specialValue": "NEGATIVE_INFINITY"}, "-infinity"),
        ("instant", _INFINITE, "infinity"),
        ("datetime", {**_DAY, "hour": 1, "minute": 2, "second": 3, "nanos": 0}, "2024-02-29 01:02:03"),
        ("time", {"hour": 1, "minute": 2, "second": 3, "picoseconds": 0}, "01:02:03"),
        ("interval", _SPAN, "P0Y0M0DT0H0M0S"),
        ("interval", {"specialValue": "POSITIVE_INFINITY"}, "infinity"),
        ("array", [_DAY, {"specialValue": "POSITIVE_INFINITY"}, None], '["2024-02-29","infinity",null]'),
        ("array", [[_DAY]], '[["2024-02-29"]]'),
        # An object is what the definition says.
        ("json", _DAY, '{"day":29,"month":2,"year":2024}'),
        ("map", {"year": "2024", "month": "2"}, '{"month":"2","year":"2024"}'),
    ],
)
def test_a_definition_types_structured_times_without_a_schema(kind: str, raw: Json, expected: str) -> None:
    assert value_of_definition(Column("c", ColumnType(kind)), raw, modes=MODES) == expected


@pytest.mark.law("L6")
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("int64", TIME + "FutureTimestamp"),
        ("int64", TIME + "Date"),  # known, and not in this Connect type
        ("struct", TIME + "StructuredWeek"),
        ("string", DATA + "Future"),
        ("bytes", CONNECT + "Fixed"),
        ("string", "io.confluent.connect.Money"),
        ("struct", "io.debezium.connector.oracle.Sdo"),
    ],
)
def test_names_of_debezium_that_are_not_known_are_refused(kind: str, name: str) -> None:
    for one in (
        schema(kind, name),
        schema("array", items=schema(kind, name)),
        _struct("own", a=schema(kind, name)),
    ):
        with pytest.raises(SchemaMismatchError, match=name) as found:
            own_column(one)
        assert "define the table under tables" in str(found.value)
        assert found.value.context["column"] == "c"


def test_a_definition_types_a_column_whose_name_is_not_known() -> None:
    one = schema("int64", TIME + "FutureTimestamp")
    assert read_as(ColumnType("bigint"), one, 5) == 5
    with pytest.raises(SchemaMismatchError):
        read_as(ColumnType("datetime"), one, 5)


def test_names_of_others_are_read_by_type_and_kept() -> None:
    isbn = schema("string", "com.example.Isbn")
    assert own_column(isbn).type == ColumnType("text", named="com.example.Isbn")
    inside = schema("array", items=schema("int32", "com.example.Cents"))
    assert own_column(inside).type == ColumnType("array", named="com.example.Cents")
    avro = connect_schema_of_avro({"type": "long", "logicalType": "timestamp-micros"})
    assert own_column(avro).type == ColumnType("bigint", named="timestamp-micros")


def test_shapes_without_wkb_are_json_text() -> None:
    point = _struct(DATA + "geometry.Point", x=schema("float64"), y=schema("float64"))
    circle = _struct(DATA + "geometry.Circle", center=point, radius=schema("float64"))
    found = read(circle, {"center": {"x": 1.0, "y": 2.0}, "radius": 3.0})
    assert json.loads(found) == {"center": "AQEAAAAAAAAAAADwPwAAAAAAAABA", "radius": 3.0}
    line = _struct(DATA + "geometry.Line", **{name: schema("float64") for name in "abc"})
    assert read(line, {"a": -1.0, "b": 0.5, "c": 0.0}) == '{"a":-1.0,"b":0.5,"c":0.0}'


_TABLE = TableId("public", "t")


def _message(row: Json, *, key: Json | None = None, connector: str = "yugabytedb") -> Message:
    source = {"connector": connector, "schema": "public", "db": "shop", "table": "t"}
    value = {"before": None, "after": row, "source": source, "op": "u"}
    half = json.dumps(key or {"id": 1}).encode()
    return Message("app.public.t", 0, 0, half, json.dumps(value).encode())


def _cell(value: object) -> Json:
    return {"value": value, "set": True}


@pytest.mark.parametrize(
    "message",
    [
        _message({"id": _cell(1), "name": None}, key={"id": _cell(1)}),
        _message({"id": 1, "name": _cell(None)}),
        _message({"id": 1, "name": _cell("x") | {"deletion_ts": None}}, connector="cassandra"),
    ],
)
def test_cells_of_value_and_set_are_refused(message: Message) -> None:
    columns = (Column("id", ColumnType("int")), Column("name", ColumnType("text")))
    defined = TableDefinitions([TableSchema(_TABLE, columns)])
    for definitions in (None, defined):
        with pytest.raises(SchemaMismatchError, match="objects of the members value and set") as found:
            DebeziumJsonCodec(definitions=definitions).decode(message)
        assert "YBExtractNewRecordState" in str(found.value)


def test_an_object_of_value_and_set_that_is_no_cell_is_a_value() -> None:
    (event,) = DebeziumJsonCodec().decode(_message({"id": 1, "tags": {"value": "a", "set": "b"}}))
    assert isinstance(event, ChangeEvent)
    assert event.after == {"id": 1, "tags": '{"set":"b","value":"a"}'}


def test_cells_with_a_schema_are_refused() -> None:
    cell = _struct("name", value=schema("string"), set=schema("boolean"))
    with pytest.raises(SchemaMismatchError, match="objects of the members value and set"):
        own_column(cell)


@pytest.mark.parametrize("kind", ["text", "int", "json", "struct"])
def test_so_are_they_where_a_definition_types_the_column(kind: str) -> None:
    cell = _struct("name", value=schema("string"), set=schema("boolean"))
    rows = Rows(MODES, TableDefinitions([TableSchema(_TABLE, (Column("c", ColumnType(kind)),))]))
    with pytest.raises(SchemaMismatchError, match="YBExtractNewRecordState") as found:
        rows.read({"c": _cell("a")}, _struct("row", c=cell), _TABLE)
    assert found.value.context["column"] == "c"


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ({**_DAY, "specialValue": None}, "StructuredDate"),
        (_DAY, "StructuredDate"),
        ({"year": 2024, "month": 2}, "StructuredDate"),
        ({"specialValue": "POSITIVE_INFINITY"}, "StructuredDate"),
        (_INFINITE, "StructuredTimestamp"),
        ({**_DAY, "hour": 1, "minute": 2, "second": 3, "nanos": 0}, "StructuredTimestamp"),
        ({**_DAY, "hour": 1, "offsetSeconds": 0}, "StructuredZonedTimestamp"),
        ({"hour": 1, "minute": 2, "second": 3, "picoseconds": 0}, "StructuredTime"),
        ({"seconds": 1, "nanos": 0}, "StructuredDuration"),
        (_SPAN, "StructuredDuration"),
        ([_DAY, None], "StructuredDate"),
        ([[{"specialValue": "NEGATIVE_INFINITY"}, _DAY]], "StructuredDate"),
        ({**_CLOCK, "offsetSeconds": 0}, "StructuredZonedTime"),
        ({**_SPAN, "precision": 6}, "StructuredDuration"),
    ],
)
def test_structured_times_that_nothing_types_are_refused(raw: Json, name: str) -> None:
    with pytest.raises(SchemaMismatchError, match=name):
        DebeziumJsonCodec(options=DebeziumOptions()).decode(_message({"id": 1, "at": raw}, connector="mysql"))


def test_each_object_of_a_defined_column_is_read_by_its_own_members() -> None:
    columns = (Column("id", ColumnType("int")), Column("at", ColumnType("instant")))
    codec = DebeziumJsonCodec(definitions=TableDefinitions([TableSchema(_TABLE, columns)]))
    moment = {**_DAY, **_CLOCK, "offsetSeconds": 0}
    found = [codec.decode(_message({"id": 1, "at": raw}))[0] for raw in (_INFINITE, moment)]
    assert [one.after for one in found if isinstance(one, ChangeEvent)] == [
        {"id": 1, "at": "infinity"},
        {"id": 1, "at": "2024-02-29 12:34:56+00:00"},
    ]


@pytest.mark.parametrize("raw", [{"year": "2024", "month": "2"}, {"day": 1}, {"year": 1, "month": 2, "n": 3}])
def test_objects_with_other_members_are_no_structured_times(raw: Json) -> None:
    (event,) = DebeziumJsonCodec().decode(_message({"id": 1, "at": raw}))
    assert isinstance(event, ChangeEvent)
    assert event.after == {"id": 1, "at": json.dumps(raw, sort_keys=True, separators=(",", ":"))}


@pytest.mark.parametrize("kind", ["varchar", "char", "text", "enum", "uuid", "interval", "int", "date"])
def test_an_object_is_no_value_of_a_scalar_column(kind: str) -> None:
    with pytest.raises(SchemaMismatchError, match="object"):
        value_of_definition(Column("c", ColumnType(kind)), {"any": 1}, modes=MODES)
