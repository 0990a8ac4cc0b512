"""flat-avro decoding: images, names, types and control events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.codecs.flat_avro.cases import (
    ALL_NULL,
    EVERY_TYPE,
    EVERY_VALUE,
    SHOP,
    TOPIC,
    TSO,
    change,
    codec_with,
    message_of,
    only_change,
    table,
)
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.events import DdlEvent, Message, Op, Position, SchemaIds, TableId, WatermarkEvent
from tidesink.schema_registry.client import MemorySchemaRegistry

PRODUCERS = ("classic", "new")
MODES = [("precise", "long"), ("string", "string")]


@pytest.mark.parametrize("row", [EVERY_VALUE, ALL_NULL], ids=["values", "nulls"])
@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_every_type_comes_back_from_both_producers(row: Any, modes: Any, producer: Any) -> None:
    registry = MemorySchemaRegistry()
    writer = codec_with(
        registry,
        producer=producer,
        avro_decimal_handling_mode=modes[0],
        avro_bigint_unsigned_handling_mode=modes[1],
    )
    # The reader is told neither the producer nor the modes.
    found = only_change(codec_with(registry), message_of(writer, change(after=row)))
    assert found.after == row
    assert {name: type(value) for name, value in row.items()} == {
        name: type(value) for name, value in (found.after or {}).items()
    }
    assert found.key == {"id": row["id"]}
    assert (found.op, found.before, found.commit_ts, found.extension) == (Op.UPSERT, None, None, None)


def test_the_extension_tells_op_and_commit_ts_and_is_no_column() -> None:
    codec = codec_with(enable_tidb_extension=True)
    found = only_change(codec, message_of(codec, change(Op.UPDATE, before=EVERY_VALUE)))
    assert (found.op, found.commit_ts, found.before) == (Op.UPDATE, TSO, None)
    assert found.position == (TOPIC, 3, 42, 0, (TSO,))
    assert found.extension == {
        "_tidb_op": "u",
        "_tidb_commit_ts": TSO,
        "_tidb_commit_physical_time": TSO >> 18,
    }
    assert set(found.after or {}) == set(EVERY_VALUE)


def test_a_tombstone_is_a_delete_with_the_key_columns_alone() -> None:
    codec = codec_with(enable_tidb_extension=True)
    message = message_of(codec, change(Op.DELETE, None, before=EVERY_VALUE))
    assert message.value is None
    found = only_change(codec, message)
    assert (found.op, found.key, found.before) == (Op.DELETE, {"id": 2**64 - 1}, {"id": 2**64 - 1})
    assert (found.after, found.commit_ts) == (None, None)
    assert found.schema_id is not None
    assert found.schema_id.value is None


@pytest.mark.parametrize("extension", [False, True])
def test_before_values_hold_the_old_row_whole(extension: bool) -> None:
    codec = codec_with(producer="new", avro_include_before_value=True, enable_tidb_extension=extension)
    old = {**ALL_NULL, "id": 5}
    update = only_change(codec, message_of(codec, change(Op.UPDATE, before=old)))
    assert (update.op, update.before, update.after) == (Op.UPDATE, old, EVERY_VALUE)
    # The key changed (output-raw-change-event): the record's key is the new one, the old one is in before.
    assert update.key == {"id": 2**64 - 1}
    delete = only_change(codec, message_of(codec, change(Op.DELETE, None, before=old)))
    assert (delete.op, delete.before, delete.after, delete.key) == (Op.DELETE, old, None, {"id": 5})
    insert = only_change(codec, message_of(codec, change()))
    assert (insert.op, insert.before, insert.after) == (Op.INSERT, None, EVERY_VALUE)


def test_a_table_with_a_unique_key_only_has_rows_without_key_at_the_new_producer() -> None:
    schema = table("create table u (a int not null unique, b int)")
    codec = codec_with(producer="new", avro_include_before_value=True)
    row = {"a": 1, "b": 2}
    insert = message_of(codec, change(Op.INSERT, row, schema=schema))
    delete = message_of(codec, change(Op.DELETE, None, before=row, schema=schema))
    assert insert.key is delete.key is None
    assert only_change(codec, insert).key is None
    assert (only_change(codec, delete).op, only_change(codec, delete).before) == (Op.DELETE, row)


def test_the_topic_rule_names_the_table_and_the_record_does_without_one() -> None:
    registry = MemorySchemaRegistry()
    message = message_of(
        codec_with(registry),
        change(schema=table("create table `库`.`a-b` (id int primary key)"), after={"id": 1}),
    )
    assert only_change(codec_with(registry), message).table == TableId("_", "a_b")
    ruled = FlatAvroCodec(registry=registry, table_of_topic=lambda _topic: TableId("库", "a-b"))
    found = only_change(ruled, message)
    assert found.table == TableId("库", "a-b")
    assert found.schema is not None
    assert found.schema.table == TableId("库", "a-b")


def test_the_table_schema_says_what_the_writer_knew() -> None:
    codec = codec_with()
    schema = table(
        "create table d (id bigint unsigned not null default 18446744073709551615 primary key, "
        "b varbinary(9) default x'ff00', f float default 3.14, bits bit(9) default b'100000001', "
        "de decimal(8,3) default 1.5, e enum('a','b') not null default 'b')"
    )
    row = {"id": 1, "b": None, "f": None, "bits": 3, "de": None, "e": "a"}
    found = only_change(codec, message_of(codec, change(after=row, schema=schema))).schema
    assert found is not None
    by_name = found.by_name
    assert [column.name for column in found.handle_columns] == ["id"]
    assert by_name["id"].default == "18446744073709551615"
    assert by_name["f"].default == "3.14"
    assert by_name["bits"].default == "\x01\x01"
    assert (by_name["bits"].type.length, by_name["bits"].nullable) == (9, True)
    assert by_name["b"].default == "ï¿½\x00"  # the producer damaged the byte ff: EF BF BD
    assert (by_name["de"].type.precision, by_name["de"].type.scale, by_name["de"].default) == (8, 3, None)
    assert (by_name["e"].type.members, by_name["e"].nullable) == (("a", "b"), False)


def test_a_user_column_may_have_an_extensions_name() -> None:
    codec = codec_with()
    schema = table("create table r (id int primary key, _tidb_op varchar(9), _ticdc_before int)")
    row = {"id": 1, "_tidb_op": "mine", "_ticdc_before": 2}
    found = only_change(codec, message_of(codec, change(after=row, schema=schema)))
    assert (found.after, found.op, found.extension) == (row, Op.UPSERT, None)


def test_ddl_and_watermark_events_come_with_a_null_key() -> None:
    codec = codec_with()
    ddl = {"query": "DROP TABLE `a`", "type": 4, "schema": "shop", "table": "a", "commitTs": TSO}
    (found,) = codec.decode(Message(TOPIC, 0, 5, None, b"\x01" + json.dumps(ddl).encode()))
    assert isinstance(found, DdlEvent)
    assert (found.table, found.kind, found.commit_ts) == (TableId("shop", "a"), "4", TSO)
    (mark,) = codec.decode(Message(TOPIC, 0, 6, None, b"\x02" + b"\xff" * 8))
    assert mark == WatermarkEvent(2**64 - 1, Position(TOPIC, 0, 6, 0, (2**64 - 1,)))


def test_a_ten_megabyte_value_decodes() -> None:
    codec = codec_with(max_message_bytes=2**30)
    schema = table("create table t (id int primary key, s longtext)")
    row = {"id": 1, "s": "x" * 10_000_000}
    found = only_change(codec, message_of(codec, change(after=row, schema=schema)))
    assert found.after == row


def test_schema_ids_and_schema_of_name_the_writers_schemas() -> None:
    codec = codec_with()
    message = message_of(codec, change())
    found = only_change(codec, message)
    assert isinstance(found.schema_id, SchemaIds)
    assert found.schema_id.value is not None
    schema = codec.schema_of(found.schema_id.value, keys=("id",))
    assert schema == found.schema
    assert schema.table == SHOP
    assert [column.name for column in schema.columns] == [column.name for column in EVERY_TYPE.columns]


def test_one_schema_object_serves_every_row_of_a_pair_of_ids() -> None:
    codec = codec_with()
    message = message_of(codec, change())
    assert only_change(codec, message).schema is only_change(codec, message).schema
