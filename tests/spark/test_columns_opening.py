"""``tidesink.codecs.columns``: decoding in a Spark job of one's own."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.full import FULL
from tests.sessions import raw_frame
from tidesink.codecs import columns, open_codec
from tidesink.codecs.base import CodecOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError
from tidesink.events import ChangeEvent, Message, Op, Position, TableId
from tidesink.schema_registry.memory import MemorySchemaRegistry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = TableId("shop", "orders")
TOPIC = "shop_orders"
DEFINITION = "CREATE TABLE orders (id BIGINT UNSIGNED PRIMARY KEY, price DECIMAL(10,2), note VARCHAR(20))"


def _events() -> list[ChangeEvent]:
    definitions = TableDefinitions()
    definitions.declare(DEFINITION, TABLE.schema)
    schema = definitions.get(TABLE)
    row: dict[str, Any] = {"id": 2**64 - 1, "price": Decimal("0.10"), "note": None}
    key = {"id": 2**64 - 1}

    def event(offset: int, op: Op, **images: Any) -> ChangeEvent:
        at = Position(TOPIC, 0, offset)
        return ChangeEvent(op, TABLE, key, images.get("before"), images.get("after"), 1 << 40, at, schema)

    return [event(0, Op.INSERT, after=row), event(1, Op.DELETE, before=row)]


def _decoded(spark: SparkSession, protocol: str, **parts: Any) -> list[Any]:
    registry = MemorySchemaRegistry()
    options = CodecOptions(avro_bigint_unsigned_handling_mode="string")
    codec = open_codec(protocol, options=options, registry=registry, table_of_topic=lambda _: TABLE)
    messages = []
    for event in _events():
        record = codec.encode(event, topic=TOPIC)
        assert record is not None
        messages.append(Message(TOPIC, 0, event.position.offset, record.key, record.value))
    parts["registry"] = registry
    plan = columns(protocol, table="shop.orders", topic=TOPIC, **parts)
    return plan.decode(raw_frame(spark, messages)).orderBy("_offset").collect()


@pytest.mark.parametrize(
    ("protocol", "parts"),
    [
        ("flat-avro", {}),
        pytest.param("avro", {}, marks=FULL),
        pytest.param("debezium-avro", {"definition": DEFINITION}, marks=FULL),
    ],
)
def test_a_frame_of_records_becomes_a_frame_of_events(
    spark: SparkSession, protocol: str, parts: dict[str, Any]
) -> None:
    inserted, deleted = _decoded(spark, protocol, **parts)
    assert (inserted["_kind"], deleted["_kind"]) == ("upsert", "delete")
    assert int(inserted["key"]["id"]) == int(deleted["key"]["id"]) == 2**64 - 1
    assert str(inserted["after"]["price"]) == "0.10"
    assert inserted["after"]["note"] is None


@pytest.mark.parametrize(
    ("protocol", "parts", "said"),
    [
        ("flat-avro", {"table": TABLE}, "give registry= and topic="),
        ("debezium-json", {"table": TABLE}, "give definition= the table's CREATE TABLE"),
        ("debezium-json", {"table": TABLE, "definition": "CREATE TABLE t (id INT)"}, "not of shop.orders"),
        ("debezium-json", {"table": "orders", "definition": DEFINITION}, "must be schema.name"),
        ("canal-jsn", {"table": TABLE}, "did you mean 'canal-json'"),
    ],
)
def test_what_is_missing_is_said(
    spark: SparkSession, protocol: str, parts: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        columns(protocol, **parts)
