"""Connect schemas out of Avro and JSON: the same schema, whichever way it came."""

from __future__ import annotations

from typing import Any

import fastavro
import pytest

from tidesink.codecs.debezium.connect_schema import (
    ConnectField,
    ConnectSchema,
    connect_schema_of_avro,
    connect_schema_of_json,
)
from tidesink.codecs.debezium.values import column_of
from tidesink.errors import SchemaMismatchError
from tidesink.events import ColumnType

DECIMAL = "org.apache.kafka.connect.data.Decimal"


def _schema(kind: Any, name: str | None = None, **more: Any) -> ConnectSchema:
    parts: dict[str, Any] = {"parameters": {}} | more
    return ConnectSchema(kind, name, **parts)


# A Connect schema, as Avro (Apicurio 2.6.13 as-confluent, Confluent's AvroData) and as JSON write it.
ALIKE = [
    (_schema("int32"), "int", {"type": "int32", "optional": False}),
    (_schema("int64", optional=True), ["null", "long"], {"type": "int64", "optional": True}),
    (
        _schema("int16", optional=True),
        ["null", {"type": "int", "connect.type": "int16"}],
        {"type": "int16", "optional": True},
    ),
    (_schema("int8"), {"type": "int", "connect.type": "int8"}, {"type": "int8"}),
    (_schema("float32"), "float", {"type": "float", "optional": False}),
    (_schema("float64"), "double", {"type": "double"}),
    (_schema("boolean"), "boolean", {"type": "boolean"}),
    (
        _schema("int32", "io.debezium.time.Date", default=18321),
        {
            "type": "int",
            "connect.version": 1,
            "connect.default": 18321,
            "connect.name": "io.debezium.time.Date",
        },
        {"type": "int32", "name": "io.debezium.time.Date", "version": 1, "default": 18321},
    ),
    (
        _schema("array", optional=True, items=_schema("string", optional=True)),
        ["null", {"type": "array", "items": ["null", "string"]}],
        {"type": "array", "optional": True, "items": {"type": "string", "optional": True}},
    ),
    (
        _schema("map", keys=_schema("string"), values=_schema("string", optional=True)),
        {"type": "map", "values": ["null", "string"]},
        {"type": "map", "keys": {"type": "string"}, "values": {"type": "string", "optional": True}},
    ),
    (
        _schema("map", keys=_schema("int16"), values=_schema("float64")),
        {
            "type": "array",
            "items": {
                "type": "record",
                "name": "MapEntry",
                "namespace": "io.confluent.connect.avro",
                "connect.internal.type": "MapEntry",
                "fields": [
                    {"name": "key", "type": {"type": "int", "connect.type": "int16"}},
                    {"name": "value", "type": "double"},
                ],
            },
        },
        {"type": "map", "keys": {"type": "int16"}, "values": {"type": "double"}},
    ),
]


@pytest.mark.parametrize(("expected", "avro", "plain"), ALIKE)
def test_both_ways_give_one_schema(expected: ConnectSchema, avro: Any, plain: dict[str, Any]) -> None:
    assert connect_schema_of_avro(avro) == expected
    assert connect_schema_of_json(plain) == expected


def test_a_decimal_has_its_precision_and_scale() -> None:
    avro = {
        "type": "bytes",
        "scale": 3,
        "precision": 6,
        "connect.version": 1,
        "connect.parameters": {"scale": "3", "connect.decimal.precision": "6"},
        "connect.default": "\u0005Ü",
        "connect.name": DECIMAL,
        "logicalType": "decimal",
    }
    found = connect_schema_of_avro(avro)
    assert found.parameters == {"scale": "3", "connect.decimal.precision": "6"}
    assert found.default == b"\x05\xdc"
    bare = connect_schema_of_avro({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})
    assert (bare.name, bare.parameters) == (DECIMAL, {"scale": "2", "connect.decimal.precision": "9"})


def test_a_decimal_without_precision_does_not_take_avros() -> None:
    """AvroData writes precision 64 for a PostgreSQL money, which has none in Connect."""
    money = {"type": "bytes", "scale": 2, "precision": 64, "logicalType": "decimal", "connect.name": DECIMAL}
    found = connect_schema_of_avro({**money, "connect.parameters": {"scale": "2"}})
    assert found.parameters == {"scale": "2"}


_AVRO_DATA = "io.confluent.connect.avro"


def _anonymous(name: str, *kinds: Any) -> dict[str, Any]:
    fields = [{"name": f"f{at}", "type": kind} for at, kind in enumerate(kinds)]
    return {"type": "record", "name": name, "namespace": _AVRO_DATA, "fields": fields}


@pytest.mark.parametrize("name", ["ConnectDefault", "ConnectDefault2", "ConnectDefault17", "Union"])
def test_a_name_that_avro_data_made_up_is_no_name(name: str) -> None:
    bare = _schema("struct", fields=(ConnectField("f0", _schema("string"), "f0"),))
    assert connect_schema_of_avro(_anonymous(name, "string")) == bare
    spelt = {"type": "record", "name": f"{_AVRO_DATA}.{name}", "fields": [{"name": "f0", "type": "string"}]}
    assert connect_schema_of_avro(spelt) == bare
    plain = {"type": "struct", "name": f"{_AVRO_DATA}.{name}"}
    assert connect_schema_of_json({**plain, "fields": [{"field": "f0", "type": "string"}]}) == bare
    assert column_of(ConnectField("c", bare, "c")).type == ColumnType("struct")


def test_so_is_that_of_an_enum_and_of_a_struct_in_a_struct() -> None:
    symbols = {"type": "enum", "name": "e", "symbols": ["a"], "connect.name": f"{_AVRO_DATA}.Enum"}
    assert connect_schema_of_avro(symbols).name is None
    inner = connect_schema_of_avro(_anonymous("ConnectDefault", _anonymous("ConnectDefault2", symbols)))
    assert [one.schema.name for one in inner.fields] == [None]
    listed = {"type": "array", "items": "int", "connect.name": f"{_AVRO_DATA}.ConnectDefault"}
    assert connect_schema_of_avro(listed).name is None
    kept = {**_anonymous("Money", "string"), "namespace": "io.confluent.connect"}
    assert connect_schema_of_avro(kept).name == "io.confluent.connect.Money"


@pytest.mark.parametrize("name", [None, "labels"])
def test_the_entries_of_a_map_may_be_named_twice(name: str | None) -> None:
    entry = {
        "type": "record",
        "name": name or "MapEntry",
        "namespace": _AVRO_DATA,
        "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "string"}],
        **({"connect.internal.type": "MapEntry"} if name else {}),
    }
    first, second = ({"type": "array", "items": one} for one in (entry, f"{_AVRO_DATA}.{name or 'MapEntry'}"))
    found = connect_schema_of_avro(_anonymous("ConnectDefault", first, second))
    assert [one.schema.type for one in found.fields] == ["map", "map"]


def test_a_named_type_is_read_once_and_named_twice() -> None:
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}]}
    envelope = {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.orders",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
        ],
    }
    found = connect_schema_of_avro(envelope)
    assert found == connect_schema_of_avro(fastavro.parse_schema(envelope))
    assert found.name == "shop.orders.Envelope"
    assert found.field("before") == found.field("after")
    assert found.field("after") is not None
    assert found.field("nothing") is None


def test_a_field_has_the_columns_own_name_where_the_schema_tells_it() -> None:
    fields = [
        {
            "name": "col_with_space",
            "connect.field": "col with space",
            "tidb_type": "bigint unsigned",
            "type": "long",
        },
        {
            "name": "_1st",
            "type": {"type": "int", "connect.parameters": {"__debezium.source.column.name": "1st"}},
        },
        {"name": "plain", "type": "int"},
    ]
    found = connect_schema_of_avro({"type": "record", "name": "Row", "fields": fields}).fields
    assert [(field.name, field.wire) for field in found] == [
        ("col with space", "col_with_space"),
        ("1st", "_1st"),
        ("plain", "plain"),
    ]
    assert found[0].schema.parameters["tidb_type"] == "bigint unsigned"


def test_tidbs_type_in_json_is_a_parameter() -> None:
    found = connect_schema_of_json({"type": "int64", "tidb_type": "bigint unsigned", "parameters": {"a": 1}})
    assert found.parameters == {"a": "1", "tidb_type": "bigint unsigned"}


def _nested_json(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "decimal"},
        {"type": ["null", "string"]},
        {},
        {"type": "struct"},
        {"type": "struct", "fields": [{"type": "string"}]},
        {"type": "array"},
        {"type": "map", "keys": {"type": "string"}},
        {"type": "string", "parameters": "length"},
        _nested_json(100_000),
    ],
)
def test_what_is_no_schema_in_json_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaMismatchError):
        connect_schema_of_json(schema)


@pytest.mark.parametrize(
    "schema",
    [
        None,
        "Value",
        ["int", "string"],
        ["null"],
        {"type": "record", "name": "R", "fields": {}},
        {"type": "record", "name": "R", "fields": [{"type": "int"}]},
        {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]},
        {"type": "array"},
        {"type": "int", "connect.type": "int128"},
        {"type": "bytes", "connect.default": "日"},
    ],
)
def test_what_is_no_schema_in_avro_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaMismatchError):
        connect_schema_of_avro(schema)


def _avro_record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"type": "int", **one} for one in fields]}


@pytest.mark.parametrize(
    "schema",
    [
        _avro_record({"name": "a_b"}, {"name": "a_b"}),
        _avro_record({"name": "a_b", "connect.field": "a-b"}, {"name": "a_b", "connect.field": "a_b"}),
        _avro_record({"name": "a_b", "connect.field": "a-b"}, {"name": "other", "connect.field": "a-b"}),
        {"type": "array", "items": _avro_record({"name": "a_b"}, {"name": "a_b"})},
    ],
    ids=str,
)
def test_two_fields_of_one_name_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(
        SchemaMismatchError, match=r"contains the field '(a_b|a-b)' twice.*Rename one of them"
    ):
        connect_schema_of_avro(schema)


def test_columns_that_avro_makes_one_field_are_named() -> None:
    fields = ({"name": "a_b", "connect.field": "a-b"}, {"name": "a_b", "connect.field": "a_b"})
    with pytest.raises(SchemaMismatchError, match="'a_b' twice, for the columns a-b and a_b"):
        connect_schema_of_avro(_avro_record(*fields))
    kept = connect_schema_of_avro(_avro_record({"name": "a", "connect.field": "a"}, {"name": "A"}))
    assert [one.name for one in kept.fields] == ["a", "A"]
