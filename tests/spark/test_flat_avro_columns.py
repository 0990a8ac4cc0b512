"""flat-avro on the Spark path: schemas that change, records that cannot be read, and their messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.full import FULL
from tests.golden.vectors import find_folders
from tests.spark.decoded import Decoded, decode_here, reduced_here
from tests.unit.codecs.flat_avro.cases import ALL_NULL, EVERY_TYPE, EVERY_VALUE, TOPIC, change, codec_with
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.options import ChecksumMode
from tidesink.ddl.catalog import parse_create_table
from tidesink.errors import ConfigError, DecodeError, SchemaRefusedError
from tidesink.events import ChangeEvent, Message, Op, TableId, TableSchema
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.sinks.decode.flat_avro import flat_avro_plan
from tidesink.sinks.decode.plans import DEFAULT_SETTINGS, DecodePlan, PlanSettings, SubjectSchemas
from tidesink.sinks.laws.counts import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

Rows = dict[str, Any]


class Topic:
    """Messages of one table through our own encoder, and the plan over the schemas it registered."""

    def __init__(self, **options: Any) -> None:
        self.registry = MemorySchemaRegistry()
        self.codec: FlatAvroCodec = codec_with(self.registry, **options)
        self.messages: list[Message] = []
        self.table = TableId("shop", "orders")

    def send(self, event: ChangeEvent, *, partition: int = 0) -> Message:
        record = self.codec.encode(event, topic=TOPIC)
        assert record is not None
        message = Message(TOPIC, partition, len(self.messages), record.key, record.value)
        self.messages.append(message)
        return message

    def put(self, key: bytes | None, value: bytes | None) -> Message:
        message = Message(TOPIC, 0, len(self.messages), key, value)
        self.messages.append(message)
        return message

    def texts(self, part: str) -> dict[int, str]:
        subject = f"{TOPIC}-{part}"
        known = self.registry.versions(subject) if subject in self.registry.subjects() else ()
        found = [self.registry.schema_by_version(subject, version) for version in known]
        return {schema.id: schema.schema_text for schema in found}

    def plan(
        self,
        settings: PlanSettings = DEFAULT_SETTINGS,
        *,
        checksum: ChecksumMode = "off",
        **schemas: Any,
    ) -> DecodePlan:
        known = SubjectSchemas(self.texts("key"), self.texts("value"))
        return flat_avro_plan(self.table, replace(known, **schemas), settings, checksum=checksum)

    def rows(self, plan: DecodePlan | None = None) -> list[Decoded]:
        plan = plan or self.plan()
        return decode_here(plan, self.messages)


def table(columns: str) -> TableSchema:
    return parse_create_table(f"create table shop.orders (id int primary key, {columns})")


@FULL
def test_a_column_added_with_a_default_fills_rows_written_before_it(spark: SparkSession) -> None:
    topic = Topic()
    topic.send(change(after={"id": 1, "v": 1}, schema=table("v int")))
    added = (
        "v int, e enum('a','b') default 'b', n bigint unsigned default 18446744073709551615, "
        "b bit(9) default b'101', x varbinary(4) default 'xy', t timestamp default '2026-01-01 08:00:00', "
        "w timestamp default current_timestamp, f float default 0.1"
    )
    new = {"id": 2, "v": 2, "e": "a", "n": 1, "b": 1, "x": b"", "t": None, "w": None, "f": None}
    topic.send(change(after=new, schema=table(added)))
    rows = topic.rows(topic.plan(PlanSettings(time_zone="Asia/Shanghai")))
    before = rows[0].after
    assert before is not None
    assert (before["e"], before["n"], before["b"]) == ("b", Decimal(2**64 - 1), 5)
    assert before["x"] == b"xy"
    assert before["t"].isoformat() == "2026-01-01T00:00:00+00:00"
    assert before["w"] is None
    assert before["f"] == pytest.approx(0.1)


@FULL
def test_a_dropped_column_is_null_in_later_rows_and_stays_in_the_shape(spark: SparkSession) -> None:
    topic = Topic()
    topic.send(change(after={"id": 1, "v": 1, "d": "x"}, schema=table("v int, d varchar(9) default 'dd'")))
    topic.send(change(after={"id": 2, "v": 2}, schema=table("v int")))
    assert [row.after for row in topic.rows()] == [
        {"id": 1, "v": 1, "d": "x"},
        {"id": 2, "v": 2, "d": None},
    ]


@FULL
def test_a_widened_column_takes_rows_of_both_widths(spark: SparkSession) -> None:
    topic = Topic()
    old, new = table("v int, d decimal(6,2), f float"), table("v bigint, d decimal(10,4), f double")
    topic.send(change(after={"id": 1, "v": -1, "d": Decimal("1.25"), "f": 0.5}, schema=old))
    topic.send(change(after={"id": 2, "v": 2**40, "d": Decimal("-1.2345"), "f": 0.1}, schema=new))
    plan = topic.plan()
    assert plan.shape.ddl == "`id` int, `v` bigint, `d` decimal(10,4), `f` double"
    assert [row.after for row in topic.rows(plan)] == [
        {"id": 1, "v": -1, "d": Decimal("1.2500"), "f": 0.5},
        {"id": 2, "v": 2**40, "d": Decimal("-1.2345"), "f": 0.1},
    ]


@FULL
def test_a_change_of_modes_in_mid_stream_keeps_the_target_types(spark: SparkSession) -> None:
    schema = table("d decimal(6,2), n bigint unsigned")
    row = {"d": Decimal("-1.20"), "n": 2**64 - 1}
    topic = Topic()
    topic.send(change(after={"id": 1, **row}, schema=schema))
    first = topic.plan().shape
    topic.codec = codec_with(
        topic.registry,
        avro_decimal_handling_mode="string",
        avro_bigint_unsigned_handling_mode="string",
    )
    topic.send(change(after={"id": 2, **row}, schema=schema))
    rows = topic.rows(topic.plan(PlanSettings(base=first)))
    assert [found.after for found in rows] == [
        {"id": 1, "d": Decimal("-1.20"), "n": Decimal(2**64 - 1)},
        {"id": 2, "d": Decimal("-1.20"), "n": Decimal(2**64 - 1)},
    ]


def test_types_that_cannot_be_one_are_refused_by_name() -> None:
    topic = Topic()
    topic.send(change(after={"id": 1, "v": 1}, schema=table("v int")))
    topic.send(change(after={"id": 2, "v": "x"}, schema=table("v varchar(9)")))
    with pytest.raises(SchemaRefusedError, match=r"Column 'v' is int .* a newer schema has string"):
        topic.plan()


def test_a_table_without_a_key_record_needs_keys() -> None:
    topic = Topic()
    topic.send(change(after={"id": 1, "v": 1}, schema=table("v int")))
    with pytest.raises(ConfigError, match="tables: keys"):
        topic.plan(keys={})
    with pytest.raises(ConfigError, match=r"no column ident; its columns are id, v"):
        topic.plan(PlanSettings(keys=("ident",)), keys={})


@FULL
def test_a_row_without_key_record_is_named_by_the_keys_of_the_config(spark: SparkSession) -> None:
    topic = Topic()
    message = topic.send(change(after={"id": 7, "v": 1}, schema=table("v int")))
    topic.messages = [Message(TOPIC, 0, 0, None, message.value)]
    (row,) = topic.rows(topic.plan(PlanSettings(keys=("v",)), keys={}))
    assert (row.kind, row.key) == ("upsert", {"v": 1})


HARMS: dict[str, Callable[[bytes, bytes], tuple[bytes | None, bytes | None]]] = {
    "truncated value": lambda key, value: (key, value[:-3]),
    "truncated key": lambda key, value: (key[:-1], value),
    "trailing bytes": lambda key, value: (key, value + b"\0"),
    "trailing bytes of the key": lambda key, value: (key + b"\0\0", value),
    "wrong magic byte": lambda key, value: (key, b"\x07" + value[1:]),
    "json": lambda key, _: (key, b'{"id": 1}'),
    "empty key": lambda _, value: (b"", value),
    "empty value": lambda key, _: (key, b""),
    "header alone": lambda key, value: (key, value[:5]),
    "four bytes": lambda key, value: (key, value[:4]),
    "null and null": lambda *_: (None, None),
    "short delete marker": lambda key, _: (key, b"\x03" + bytes(7)),
    "long delete marker": lambda key, _: (key, b"\x03" + bytes(9)),
    "delete marker of no moment": lambda key, _: (key, b"\x03" + b"\xff" * 8),
    "delete marker with half a key": lambda key, _: (key[:-1], b"\x03" + bytes(8)),
    "delete marker without key": lambda *_: (None, b"\x03" + bytes(8)),
    "short watermark": lambda *_: (None, b"\x02" + bytes(7)),
    "watermark with a key": lambda key, _: (key, b"\x02" + bytes(8)),
    "ddl that is no json": lambda *_: (None, b"\x01{"),
    "ddl without members": lambda *_: (None, b'\x01{"query": "x"}'),
    "glue header": lambda key, _: (key, b"\x03\x00" + bytes(17)),
    "compressed, glue header": lambda key, _: (key, b"\x03\x05" + bytes(17)),
    "glue header of the key": lambda _, value: (b"\x03\x00" + bytes(17), value),
    "invalid utf-8": lambda key, value: (key, value.replace(b"TEXT", b"TE\xed\xa0")),
    "length beyond the end": lambda key, value: (
        key,
        value.replace(b"\x08TEXT", b"\xfe\xff\xff\xff\x0fTEXT"),
    ),
}


def test_what_cannot_be_read_is_bad_and_named_as_the_python_codec_names_it(spark: SparkSession) -> None:
    schema = table("s varchar(20), v int")
    topic = Topic()
    good = topic.send(change(after={"id": 1, "s": "TEXT", "v": 1}, schema=schema))
    topic.messages = []
    assert good.key is not None
    assert good.value is not None
    for harm in HARMS.values():
        topic.put(*harm(good.key, good.value))
    rows = topic.rows()
    for name, message, row in zip(HARMS, topic.messages, rows, strict=True):
        with pytest.raises(DecodeError) as refused:
            topic.codec.decode(message)
        assert (name, row.kind, row.error) == (name, "bad", type(refused.value).__name__)
        assert row.reason
        assert ("AWS Glue" in row.reason) == ("glue" in name)
        assert ("Configure the changefeed with a schema-registry URL" in row.reason) == ("glue" in name)
        assert (row.raw["_key"], row.raw["_value"]) == (message.key, message.value)
        assert row.after is None


BAD_VALUES: dict[str, tuple[Rows, str]] = {
    "zero date": ({"dt": "0000-00-00"}, "column 'dt': '0000-00-00' is not a valid calendar date"),
    "a day February has not": ({"dt": "2023-02-29"}, "Set zero-date: null or text for this table"),
    "no date at all": ({"dt": "next week"}, "column 'dt'"),
    "no time": ({"tm": "839:00:00"}, "column 'tm': '839:00:00' is not a valid time"),
}


@FULL
@pytest.mark.parametrize("name", BAD_VALUES)
def test_a_value_that_is_none_of_its_type_is_bad_with_its_column(spark: SparkSession, name: str) -> None:
    values, reason = BAD_VALUES[name]
    topic = Topic()
    topic.send(change(after={**EVERY_VALUE, "dt": "2026-01-01", **values}, schema=EVERY_TYPE))
    (row,) = topic.rows(topic.plan(PlanSettings(zero_date="error")))
    assert (row.kind, row.error) == ("bad", "ValueOutOfRangeError")
    assert row.reason is not None
    assert reason in row.reason


@FULL
def test_a_date_no_calendar_has_is_null_and_counted_or_kept_as_text(spark: SparkSession) -> None:
    topic = Topic()
    topic.send(change(after=EVERY_VALUE, schema=EVERY_TYPE))
    topic.send(change(after=ALL_NULL, schema=EVERY_TYPE))
    nulled, empty = topic.rows()
    assert nulled.after is not None
    assert (nulled.after["dt"], nulled.zero_dates, empty.zero_dates) == (None, ("dt",), ())
    kept = topic.rows(topic.plan(PlanSettings(zero_date="text")))[0].after
    assert kept is not None
    assert kept["dt"] == "0000-00-00"


@FULL
def test_a_date_no_calendar_has_in_a_key_is_always_bad(spark: SparkSession) -> None:
    schema = parse_create_table("create table shop.orders (d date primary key, v int)")
    topic = Topic()
    topic.send(change(after={"d": "0000-00-00", "v": 1}, schema=schema))
    topic.send(change(Op.DELETE, None, before={"d": "0000-00-00", "v": 1}, schema=schema))
    assert [(row.kind, row.error) for row in topic.rows()] == [("bad", "ValueOutOfRangeError")] * 2


@FULL
def test_unknown_ids_are_unplanned_and_unreadable_schemas_bad(spark: SparkSession) -> None:
    topic = Topic()
    good = topic.send(change(after={"id": 1, "v": 1}, schema=table("v int")))
    assert good.key is not None
    assert good.value is not None
    topic.put(good.key, b"\0" + (77).to_bytes(4, "big") + good.value[5:])
    topic.put(b"\0" + (78).to_bytes(4, "big") + good.key[5:], None)
    topic.put(good.key, b"\0" + (2**32 - 2).to_bytes(4, "big") + good.value[5:])
    values = {**topic.texts("value"), 2**32 - 2: json.dumps({"type": "string"})}
    plan = topic.plan(values=values)
    rows = topic.rows(plan)
    assert [row.kind for row in rows] == ["upsert", "unplanned", "unplanned", "bad"]
    assert rows[3].error == "SchemaMismatchError"
    summary = reduced_here(plan, topic.messages).summary
    counts = summary.counts
    assert 77 in summary.unplanned.value_ids
    assert 78 in summary.unplanned.key_ids
    assert (counts.read, counts.unplanned, counts.bad, counts.upserts) == (4, 2, 1, 1)


@FULL
def test_watermarks_ddl_and_bad_records_survive_the_reduction(spark: SparkSession) -> None:
    topic = Topic()
    schema = table("v int")
    for at in range(3):
        topic.send(change(after={"id": 1, "v": at}, schema=schema))
    topic.put(None, b"\x02" + (500).to_bytes(8, "big"))
    topic.put(None, b"\x02" + (600).to_bytes(8, "big"))
    topic.put(None, b'\x01{"query":"x","type":3,"schema":"s","table":"t","commitTs":550}')
    topic.put(b"bad", b"worse")
    topic.put(b"bad", b"worse")
    topic.send(change(Op.DELETE, None, before={"id": 2, "v": 0}, schema=schema))
    plan = topic.plan()
    rows, summary = reduced_here(plan, topic.messages)
    counts = summary.counts
    assert (counts.read, counts.messages, counts.filtered, counts.bad) == (9, 9, 3, 2)
    assert (counts.upserts, counts.deletes, counts.superseded, counts.applied) == (1, 1, 2, 2)
    assert summary.places[TopicPartition(TOPIC, 0)].watermark == 600
    assert [(bad.offset, bad.error) for bad in summary.bad_records] == [(6, "FramingError")]
    assert [row["_offset"] for row in rows if row["_op"] == "bad"] == [6, 7]


@FULL
@pytest.mark.parametrize("folder", ["ticdc", "ticdc-new"])
def test_the_producers_ddl_and_watermarks(spark: SparkSession, vectors: Path, folder: str) -> None:
    found = {one.name: one for one in find_folders(vectors)}
    records = (
        [one for one in found[folder].control("avro") if one.raw["value_b64"]] if folder in found else []
    )
    if not records:
        pytest.skip("the vectors have no control records of this producer")
    plan = flat_avro_plan(
        TableId("s", "t"), SubjectSchemas({}, {1: _ANY_SCHEMA}), PlanSettings(keys=("id",), zero_date="null")
    )
    rows = decode_here(plan, [record.message for record in records])
    # 2^64-1 is no moment: a watermark of it says nothing.
    expected = [
        (one.raw["op"], None if one.raw["commit_ts"] >= 2**63 else one.raw["commit_ts"]) for one in records
    ]
    assert [(row.kind, row.commit_ts) for row in rows] == expected


_ANY_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "t",
        "fields": [{"name": "id", "type": {"type": "int", "connect.parameters": {"tidb_type": "INT"}}}],
    }
)


@FULL
def test_a_key_record_of_another_key_is_bad_unless_the_config_names_the_key(spark: SparkSession) -> None:
    columns = "id int, tenant int not null default 0, v int"
    topic = Topic()
    for keys in ("id", "id, tenant"):
        schema = parse_create_table(f"create table shop.orders ({columns}, primary key ({keys}))")
        topic.send(change(after={"id": 2, "tenant": 1, "v": 1}, schema=schema))
        topic.send(change(Op.DELETE, None, before={"id": 2, "tenant": 1, "v": 1}, schema=schema))
    rows = topic.rows()
    assert [(row.kind, row.error) for row in rows] == [
        ("upsert", None),
        ("delete", None),
        ("bad", "SchemaMismatchError"),
        ("bad", "SchemaMismatchError"),
    ]
    assert rows[3].reason is not None
    assert "(id, tenant), but the table's key is (id)" in rows[3].reason
    # A key record without one of the key's columns names no row, whatever the column's default is.
    named = topic.rows(topic.plan(PlanSettings(keys=("id", "tenant"))))
    assert [(row.kind, row.error) for row in named] == [
        ("upsert", None),
        ("bad", "UnnamedRowError"),
        ("upsert", None),
        ("delete", None),
    ]
    assert named[3].key == {"id": 2, "tenant": 1}


@FULL
def test_a_schema_learnt_after_a_newer_one_still_says_what_older_rows_have(spark: SparkSession) -> None:
    topic = Topic()
    topic.send(
        change(after={"id": 1}, schema=parse_create_table("create table shop.orders (id int primary key)"))
    )
    topic.send(change(after={"id": 2, "n": 1}, schema=table("n int default 5")))
    topic.send(change(after={"id": 3, "n": 2}, schema=table("n int default 9")))
    texts = topic.texts("value")
    first, _, third = sorted(texts)
    newest = topic.plan(values={first: texts[first], third: texts[third]})
    assert newest.shape.by_name["n"].default == "9"
    plan = topic.plan(PlanSettings(base=newest.shape))
    assert plan.shape.by_name["n"].default == "5"
    assert [row.after for row in topic.rows(plan)] == [
        {"id": 1, "n": 5},
        {"id": 2, "n": 1},
        {"id": 3, "n": 2},
    ]
