"""TiCDC's ``debezium`` and ``debezium-avro`` as they are written: what the captured records do not show."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec, EncodedRecord
from tidesink.codecs.debezium.formats import AvroParser
from tidesink.codecs.options import DebeziumOptions
from tidesink.ddl.catalog import TableDefinitions, parse_create_table
from tidesink.errors import EncodeError
from tidesink.events import ChangeEvent, Message, Op, Position, TableSchema, Value
from tidesink.schema_registry import MemorySchemaRegistry

_AT = Position("t", 0, 0)


def _table(columns: str) -> TableSchema:
    return parse_create_table(f"create table s.t(id int primary key, {columns})")


def _insert(schema: TableSchema, **row: Value) -> ChangeEvent:
    key: dict[str, Value] = {column.name: row[column.name] for column in schema.handle_columns}
    return ChangeEvent(Op.INSERT, schema.table, key, None, row, 5 << 18, _AT, schema)


def _encoded(codec: Codec, event: ChangeEvent) -> EncodedRecord:
    record = codec.encode(event, topic="t")
    assert record is not None
    return record


def _after(registry: MemorySchemaRegistry, record: EncodedRecord) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Avro types of a row's columns, and its values as they stand in the record."""
    parser = AvroParser(registry)
    parsed = parser.read(Message("t", 0, 0, record.key, record.value), "value")
    assert parsed is not None
    schema = json.loads(registry.schema_by_id(parsed.schema_id or 0))
    fields = next(one for one in schema["fields"] if one["name"] == "before")["type"][1]["fields"]
    return {one["name"]: one["type"][1] for one in fields}, parsed.payload["after"]


@pytest.mark.parametrize(
    ("sql", "connect"),
    [
        ("float(10,3)", "double"),
        ("float(7,0) unsigned", "double"),
        ("FLOAT ( 10 , 3 )", "double"),
        ("float", "float"),
        ("float(10)", "float"),
        ("float(30)", "double"),
        ("double(10,3)", "double"),
    ],
)
def test_a_float_with_digits_is_a_double_of_a_32_bit_number(sql: str, connect: str) -> None:
    schema = _table(f"f {sql}")
    narrow = struct.unpack("<f", struct.pack("<f", 1.1))[0]
    is_double = "double" in sql or sql == "float(30)"
    for given in (1.1, narrow):
        text = _encoded(open_codec("debezium-json"), _insert(schema, id=1, f=given))
        message = json.loads(text.value or b"", parse_float=str)
        assert message["payload"]["after"]["f"] == (str(given) if is_double else "1.1")
        image = next(one for one in message["schema"]["fields"] if one["field"] == "after")
        assert next(one for one in image["fields"] if one["field"] == "f")["type"] == connect
        registry = MemorySchemaRegistry()
        avro = open_codec("debezium-avro", registry=registry)
        types, row = _after(registry, _encoded(avro, _insert(schema, id=1, f=given)))
        assert (types["f"], row["f"]) == (connect, given if is_double else narrow)


@pytest.mark.parametrize("protocol", ["debezium-json", "debezium-avro"])
@pytest.mark.parametrize("sql", ["float", "float(10,3)", "double"])
def test_a_whole_number_is_a_float_too(protocol: str, sql: str) -> None:
    schema, registry = _table(f"f {sql}"), MemorySchemaRegistry()
    codec = open_codec(protocol, registry=registry, definitions=TableDefinitions([schema]))
    record = _encoded(codec, _insert(schema, id=1, f=7))
    (again,) = codec.decode(Message("t", 0, 0, record.key, record.value))
    assert isinstance(again, ChangeEvent)
    assert again.after == {"id": 1, "f": 7.0}


@pytest.mark.parametrize("sql", ["float", "double"])
@pytest.mark.parametrize("value", ["7", b"7", 10**400])
def test_what_is_no_float_is_refused(sql: str, value: Value) -> None:
    codec = open_codec("debezium-avro", registry=MemorySchemaRegistry())
    with pytest.raises(EncodeError, match=f"is not a valid {sql}") as refused:
        codec.encode(_insert(_table(f"f {sql}"), id=1, f=value), topic="t")
    assert refused.value.context["column"] == "f"


def test_a_float_with_digits_comes_back() -> None:
    schema = _table("f float(10,3), g float")
    event = _insert(schema, id=1, f=16777216.0, g=-0.5)
    registry, definitions = MemorySchemaRegistry(), TableDefinitions([schema])
    for protocol in ("debezium-json", "debezium-avro"):
        codec = open_codec(protocol, registry=registry, definitions=definitions)
        record = _encoded(codec, event)
        (again,) = codec.decode(Message("t", 0, 0, record.key, record.value))
        assert isinstance(again, ChangeEvent)
        assert again.after == event.after


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("value", [1.1, 16777216.0, 3.4028234663852886e38, 1e-7])
def test_a_float_with_digits_that_nobody_defined_is_sent_on_as_it_came(value: float, extended: bool) -> None:
    """It is a double, as the record says: its number and its type stay, however often it is written again."""
    registry, options = MemorySchemaRegistry(), DebeziumOptions(enable_tidb_extension=extended)
    for protocol in ("debezium-json", "debezium-avro"):
        codec = open_codec(protocol, registry=registry, options=options)
        record = _encoded(codec, _insert(_table("f float(10,3)"), id=1, f=value))
        (event,) = codec.decode(Message("t", 0, 0, record.key, record.value))
        assert isinstance(event, ChangeEvent)
        assert event.schema is not None
        assert [column.type.name for column in event.schema.columns] == ["int", "double"]
        again = _encoded(codec, event)
        if protocol == "debezium-avro":
            assert _after(registry, again) == _after(registry, record)
            continue
        sent, resent = (_after_in_json(one) for one in (record, again))
        assert resent == sent
        assert sent[0] == ("f", "double")


def _after_in_json(record: EncodedRecord) -> tuple[tuple[str, str], dict[str, Any]]:
    """The last column's name and type, and the row with its floats as their texts."""
    message = json.loads(record.value or b"", parse_float=str)
    image = next(one for one in message["schema"]["fields"] if one["field"] == "after")
    last = image["fields"][-1]
    return (last["field"], last["type"]), message["payload"]["after"]


@pytest.mark.parametrize("protocol", ["debezium-json", "debezium-avro"])
@pytest.mark.parametrize("sql", ["float", "float(10,3)"])
def test_a_number_beyond_32_bits_is_refused(protocol: str, sql: str) -> None:
    codec = open_codec(protocol, registry=MemorySchemaRegistry())
    with pytest.raises(EncodeError, match="is not a valid float") as refused:
        codec.encode(_insert(_table(f"f {sql}"), id=1, f=1e39), topic="t")
    assert refused.value.context["column"] == "f"


@pytest.mark.parametrize(
    ("columns", "first", "second"),
    [
        ("id int primary key, `a-b` int, `a+b` int", "a-b", "a+b"),
        ("id int primary key, `a b` int, a_b int", "a b", "a_b"),
        ("`1k` int, `_1k` int, v int, primary key (`1k`, `_1k`)", "1k", "_1k"),
    ],
)
@pytest.mark.parametrize("op", [Op.INSERT, Op.DELETE])
def test_two_columns_of_one_avro_name_are_refused(columns: str, first: str, second: str, op: Op) -> None:
    """TiCDC refuses them too; a record has one value for a name, so one of the two would be lost."""
    schema = parse_create_table(f"create table s.t({columns})")
    insert = _insert(schema, **dict.fromkeys(schema.by_name, 1))
    event = insert if op is Op.INSERT else insert._replace(op=op, before=insert.after, after=None)
    registry = _Registry()
    for _ in range(2):
        with pytest.raises(EncodeError) as refused:
            open_codec("debezium-avro", registry=registry).encode(event, topic="t")
        assert all(repr(name) in refused.value.message for name in (first, second))
    assert registry.registered == []
    again = open_codec("debezium-json", definitions=TableDefinitions([schema]))
    record = _encoded(again, event)
    (found,) = again.decode(Message("t", 0, 0, record.key, record.value))
    assert isinstance(found, ChangeEvent)
    assert (found.before, found.after) == (event.before, event.after)


class _Registry(MemorySchemaRegistry):
    def __init__(self) -> None:
        super().__init__()
        self.registered: list[str] = []

    def register(self, subject: str, schema_text: str) -> int:
        self.registered.append(subject)
        return super().register(subject, schema_text)
