"""The data source's options, its offsets, and how rows of several writers' schemas become one schema's."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pytest

from tidesink.codecs.batch import ChangeTable, DecodedBatch, RowTypes, ValueOptions, op_array
from tidesink.codecs.options import DebeziumOptions
from tidesink.errors import ConfigError, SchemaMismatchError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.kafka.offsets import PartitionOffsets, TopicOffsets
from tidesink.sinks.spark.data_source import (
    ReadOptions,
    RowColumns,
    RowProjection,
    arrow_schema,
    parse_offsets,
    spark_schema,
)

GIVEN: Final = {
    "kafka.bootstrap.servers": "h:9092",
    "topic": "t",
    "protocol": "avro",
    "schema-registry": "http://r",
}
FOUND: Final = TopicOffsets("t", "id", {0: PartitionOffsets(5, 9), 1: PartitionOffsets(0, 3)})
ID: Final = Column("id", ColumnType("bigint", sql="bigint"), nullable=False, handle=True)
NAME: Final = Column("name", ColumnType("varchar", length=40, sql="varchar(40)"))
SMALL: Final = Column("n", ColumnType("int", sql="int"))
LARGE: Final = Column("n", ColumnType("bigint", sql="bigint"))
TABLE: Final = TableId("shop", "orders")


def test_options_are_the_sources_settings() -> None:
    more = {
        "kafka.sasl.mechanism": "PLAIN",
        "enable-tidb-extension": "true",
        "table": "shop.orders",
        "debezium.decimal-handling-mode": "string",
        "zero-date": "text",
        "ambiguous-time": "second",
    }
    found = ReadOptions.of({**GIVEN, **more})
    assert found.settings.enable_tidb_extension
    assert found.settings.options_of(DebeziumOptions).debezium.decimal_handling_mode == "string"
    assert found.protocol == "flat-avro"
    assert found.kafka == {"bootstrap.servers": "h:9092", "sasl.mechanism": "PLAIN"}
    assert (found.table, found.start, found.end) == (TABLE, "earliest", "latest")
    assert found.values == ValueOptions("text", found.settings.time_zone, ambiguous_time="second")
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301 - our own


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"topic": ""}, "topic is required"),
        ({"protocol": ""}, "protocol is required"),
        ({"kafka.group.id": "g"}, "group.id cannot be set"),
        ({"kafka.sasl.jaas.config": "secret"}, "sasl.jaas.config"),
        ({"subscribe": "t"}, "Use topic"),
        ({"extra-columns": "maybe"}, "error, ignore"),
        ({"enable-tidb-extension": "secret"}, "enable-tidb-extension"),
        ({"unheard-of": "secret"}, "unheard-of"),
    ],
)
def test_a_wrong_option_is_named_and_its_value_is_not(more: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ReadOptions.of({**GIVEN, **more})
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_ends_have_no_effect_on_a_stream() -> None:
    with pytest.raises(ConfigError, match="no effect"):
        ReadOptions.of({**GIVEN, "endingOffsets": "latest"}, streaming=True)
    assert ReadOptions.of(GIVEN, streaming=True).start == "latest"


def test_offsets_are_written_as_in_sparks_kafka_source() -> None:
    assert parse_offsets("earliest", FOUND, option="x") == {0: 5, 1: 0}
    assert parse_offsets("latest", FOUND, option="x") == {0: 9, 1: 3}
    assert parse_offsets(json.dumps({"t": {"0": 7, "1": -1}}), FOUND, option="x") == {0: 7, 1: 3}
    assert parse_offsets(json.dumps({"t": {"0": -2, "1": 0}}), FOUND, option="x") == {0: 5, 1: 0}
    for wrong in ("first", "{}", json.dumps({"t": {"0": 7}}), json.dumps({"t": {"0": 1, "1": 1, "2": 1}})):
        with pytest.raises(ConfigError):
            parse_offsets(wrong, FOUND, option="x")


def _table(columns: tuple[Column, ...], rows: Mapping[int, Mapping[str, Any]]) -> ChangeTable:
    schema = TableSchema(TABLE, columns)
    types = RowTypes(schema, ("id",), ValueOptions()).table
    count = len(rows)
    given = {
        "record": list(rows),
        "index": [0] * count,
        "op": op_array([0] * count),
        "topic": pa.array(["t"] * count).dictionary_encode(),
        "partition": [0] * count,
        "offset": list(rows),
        "key": [{"id": row["id"]} for row in rows.values()],
        "after": list(rows.values()),
    }
    arrays = [given.get(one.name, [None] * count) for one in types]
    columns_ = [
        found.cast(one.type) if isinstance(found, pa.Array) else pa.array(found, one.type)
        for found, one in zip(arrays, types, strict=True)
    ]
    return ChangeTable(TABLE, schema, None, pa.table(columns_, schema=types))


def _place(record: int) -> dict[str, Any]:
    return {"topic": "t", "partition": 0, "offset": record}


def _rows(projection: RowProjection, *tables: ChangeTable) -> list[dict[str, Any]]:
    batch = DecodedBatch(tables, (), (), sum(len(one.rows) for one in tables), 0)
    return [row for found in projection.rows(batch, _place) for row in found.to_pylist()]


def test_rows_of_two_writers_fit_one_schema_in_the_order_of_their_records() -> None:
    wanted = RowColumns(TABLE, (ID, NAME, LARGE), ("id",)).arrow(ValueOptions())
    assert arrow_schema(spark_schema(wanted)) == wanted
    old = _table((ID, NAME), {0: {"id": 1, "name": "a"}, 2: {"id": 3, "name": "c"}})
    new = _table((ID, SMALL), {1: {"id": 2, "n": 7}})
    found = _rows(RowProjection(wanted, table=TABLE), old, new)
    assert [row["offset"] for row in found] == [0, 1, 2]
    assert [row["after"] for row in found] == [
        {"id": 1, "name": "a", "n": None},
        {"id": 2, "name": None, "n": 7},
        {"id": 3, "name": "c", "n": None},
    ]
    assert [row["before"] for row in found] == [None] * 3


def test_what_does_not_fit_is_an_error_with_its_place() -> None:
    wanted = RowColumns(TABLE, (ID, SMALL), ("id",)).arrow(ValueOptions())
    with pytest.raises(SchemaMismatchError, match="name") as caught:
        _rows(RowProjection(wanted, table=TABLE), _table((ID, NAME), {4: {"id": 1, "name": "a"}}))
    assert caught.value.context["offset"] == 4
    with pytest.raises(SchemaMismatchError, match="Column n is int64"):
        _rows(RowProjection(wanted, table=TABLE), _table((ID, LARGE), {0: {"id": 1, "n": 2**40}}))
    text = Column("n", ColumnType("varchar", length=4, sql="varchar(4)"))
    with pytest.raises(SchemaMismatchError, match="Column n is string"):
        _rows(RowProjection(wanted, table=TABLE), _table((ID, text), {0: {"id": 1, "n": "7"}}))


def test_a_second_table_is_an_error_unless_one_is_named() -> None:
    wanted = RowColumns(TABLE, (ID,), ("id",)).arrow(ValueOptions())
    mine, other = (_table((ID,), {n: {"id": n}}) for n in (0, 1))
    other = ChangeTable(TableId("shop", "others"), other.schema, None, other.rows)
    assert [row["offset"] for row in _rows(RowProjection(wanted, table=TABLE), mine, other)] == [0]
    with pytest.raises(ConfigError, match=r"The topic has tables shop\.orders and shop\.others"):
        _rows(RowProjection(wanted, table=None), mine, other)
