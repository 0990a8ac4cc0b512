"""Tables, rows and messages that the flat-avro tests share."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tidesink.codecs.base import Codec
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.options import FlatAvroOptions
from tidesink.ddl.catalog import parse_create_table
from tidesink.events import ChangeEvent, Message, Op, Position, TableId, TableSchema
from tidesink.schema_registry.client import MemorySchemaRegistry

TOPIC = "shop_orders"
TSO = 470609003012161536
EVERY_TYPE = parse_create_table(
    "create table shop.orders (id bigint unsigned primary key, t tinyint, u int unsigned, y year, "
    "f float, d double, de decimal(10,2), big decimal(65,30), s varchar(20), b varbinary(20), "
    "b1 bit(1), b64 bit(64), e enum('red','a,b','it''s'), st set('x','y','z'), j json, dt date, "
    "ts timestamp(3), tm time(6), v vector(3))"
)
EVERY_VALUE: Mapping[str, Any] = {
    "id": 2**64 - 1,
    "t": -128,
    "u": 2**32 - 1,
    "y": 2026,
    "f": 1.5,
    "d": 0.1,
    "de": Decimal("-1.28"),
    "big": Decimal("-0.000000000000000000000000000001"),
    "s": "中😀",
    "b": b"\x00\xff",
    "b1": 1,
    "b64": 2**64 - 1,
    "e": "a,b",
    "st": "x,z",
    "j": '{"k": 1}',
    "dt": "0000-00-00",
    "ts": "2026-01-01 00:00:00.123",
    "tm": "-838:59:59.000000",
    "v": "[1,-2.5]",
}
ALL_NULL: Mapping[str, Any] = dict.fromkeys(EVERY_VALUE) | {"id": 0}


def codec_with(registry: MemorySchemaRegistry | None = None, **options: Any) -> FlatAvroCodec:
    """A codec over a registry of its own, or over the one given."""
    return FlatAvroCodec(registry=registry or MemorySchemaRegistry(), options=FlatAvroOptions(**options))


def change(
    op: Op = Op.INSERT,
    after: Mapping[str, Any] | None = EVERY_VALUE,
    *,
    before: Mapping[str, Any] | None = None,
    schema: TableSchema = EVERY_TYPE,
    extension: Mapping[str, object] | None = None,
) -> ChangeEvent:
    """A row change of a table."""
    row = after if after is not None else before or {}
    keys = {column.name: row[column.name] for column in schema.handle_columns} or None
    position = Position(TOPIC, 0, 0)
    return ChangeEvent(
        op, schema.table, keys, before, after, TSO, position, schema=schema, extension=extension
    )


def message_of(codec: FlatAvroCodec, event: ChangeEvent, topic: str = TOPIC) -> Message:
    """The Kafka record of an event."""
    encoded = codec.encode(event, topic=topic)
    assert encoded is not None
    return Message(topic, 3, 42, encoded.key, encoded.value)


def only_change(codec: Codec, message: Message) -> ChangeEvent:
    """The one row change of a record."""
    (event,) = codec.decode(message)
    assert isinstance(event, ChangeEvent)
    return event


def table(ddl: str) -> TableSchema:
    """A table from its statement; the database is ``shop``."""
    return parse_create_table(ddl, default_schema="shop")


SHOP = TableId("shop", "orders")


class LooseRegistry(MemorySchemaRegistry):
    """A registry that holds texts no registry would take."""

    def __init__(self, texts: dict[int, str]) -> None:
        super().__init__()
        self._raw = texts

    def schema_by_id(self, schema_id: int) -> str:
        """The text under an id, as it is."""
        return self._raw[schema_id]
