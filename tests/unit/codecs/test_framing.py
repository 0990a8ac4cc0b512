"""What is said of records that another converter framed: which framing, and what to set; in every codec."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tests.spark.debezium_versions import TABLE, Version, Versions
from tests.spark.decoded import decode_here
from tests.unit.config.samples import FLAT_AVRO, right
from tests.unit.sinks.batch.test_range_tasks import WANTED, run, summary
from tests.worker_contexts import worker_context
from tidesink.codecs import open_codec
from tidesink.codecs.framing import in_headers
from tidesink.errors import ConfigError, DecodeError, FramingError
from tidesink.events import ChangeEvent, Message, TableId
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.debezium_avro import DebeziumAvroDecoder, debezium_avro_plan
from tidesink.sinks.decode.flat_avro import FlatAvroDecoder, flat_avro_plan
from tidesink.sinks.decode.open import open_decoding
from tidesink.sinks.decode.plans import (
    DecodePlan,
    RegisteredSchemas,
    SubjectSchemas,
    schema_id_of,
    schema_ids,
)
from tidesink.sinks.decode.schema_source import Decoding, Missed
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange, PartitionOffsets, TopicOffsets
from tidesink.sinks.laws.counts import (
    BadRecord,
    BadRow,
    BatchSummary,
    EventCounts,
    TopicPartition,
    UnplannedRecord,
    UnplannedSchemas,
)
from tidesink.sinks.worker.open_table import decoding_parts

AVRO: Final = ("flat-avro", "debezium-avro")
JSON: Final = ("canal-json", "debezium-json")
# An envelope of an insert, bare: the branches of before and of after, then the row.
INSERT: Final = bytes.fromhex("00020202066162630002")
DELETE: Final = bytes.fromhex("02020206616263000264")
LONG_ID: Final = bytes.fromhex("000000000000000003") + INSERT
_GUID: Final = b"\1" + bytes(range(16))
_NUMBER: Final = (13).to_bytes(8, "big")
IN_HEADERS: Final = {
    "apicurio.{part}.globalId": (_NUMBER, "apicurio.registry.headers.enabled to false"),
    "apicurio.{part}.contentId": (_NUMBER, "apicurio.registry.headers.enabled to false"),
    "apicurio.{part}.artifactId": (b"app.shop.t-value", "apicurio.registry.use-id to contentId"),
    "__{part}_schema_id": (_GUID, "serializers.schema.id.PrefixSchemaIdSerializer"),
}


def _codec(protocol: str) -> Any:
    return open_codec(protocol, registry=MemorySchemaRegistry())


def _reason(protocol: str, value: bytes, *headers: tuple[str, bytes | None]) -> str:
    message = Message("app.shop.t", 0, 7, value, value, headers=headers)
    with pytest.raises(DecodeError) as caught:
        _codec(protocol).decode(message)
    assert isinstance(caught.value, FramingError), caught.value
    assert caught.value.context["offset"] == 7
    return caught.value.message


@pytest.mark.parametrize("protocol", AVRO)
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (LONG_ID, "a schema id of eight bytes (3), which Apicurio's converter"),
        (b"\0\0\0\0\0\0\0\0\x0d", "a schema id of eight bytes (13)"),
        (b"\0\0\0\0\0", "a Confluent header needs 5 bytes and a schema id of at least 1"),
        (b"\xc3\x01" + bytes(9), "single-object encoding"),
        (b"Obj\x01\x04", "an Avro container file"),
        (b'{"op":"c"}', "looks like JSON: is the protocol canal-json or debezium-json?"),
        (b'\xef\xbb\xbf {"op":"c"}', "looks like JSON"),
        (b'"text"', "looks like JSON"),
        (b":)\n\x05\xfa", "Smile"),
        (b"\xd9\xd9\xf7\xa1", "CBOR"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"\x28\xb5\x2f\xfd\x04", "zstd"),
        (b"<row/>", "XML"),
        (b"\x07\x02\x02", "It may be Avro without a header"),
    ],
)
def test_avro_that_is_none_under_a_confluent_header(protocol: str, data: bytes, words: str) -> None:
    assert words in _reason(protocol, data)


@pytest.mark.parametrize("protocol", AVRO)
@pytest.mark.parametrize("name", IN_HEADERS)
@pytest.mark.parametrize("data", [INSERT, DELETE, LONG_ID, b"\2", b"\0" * 5], ids=lambda one: one.hex())
def test_an_id_in_a_header_is_named_whatever_the_bytes_begin_with(
    protocol: str, name: str, data: bytes
) -> None:
    """An insert begins with 00, as the magic byte, a delete with 02: both are named alike."""
    value, remedy = IN_HEADERS[name]
    for part in ("key", "value"):
        header = name.format(part=part)
        reason = _reason(protocol, data, ("trace", b"x"), (header, value))
        assert reason.startswith(f"The {part} has its schema id in the record header {header}, as ")
        assert remedy in reason
        assert f"{part}.converter" in reason


def test_other_headers_say_nothing() -> None:
    assert in_headers([("apicurio.value.encoding", b"BINARY"), ("__op", b"d")], "value") is None
    assert in_headers([("apicurio.value.globalId", None)], "value") is None
    assert in_headers([("apicurio.key.globalId", _NUMBER)], "value") is None


@pytest.mark.parametrize("protocol", AVRO)
def test_a_record_under_confluents_header_is_read_whatever_its_headers(protocol: str) -> None:
    """A mirror or a transform may carry headers on from another topic."""
    if protocol == "debezium-avro":
        topic = Versions(Version({"a": ["null", "string"]}))
        topic.send(100, {"a": "x"})
        texts, (message,) = {**topic.texts, **topic.key_texts}, topic.messages
        headers = (("apicurio.value.globalId", _NUMBER),)
        codec = open_codec(protocol, registry=MemorySchemaRegistry(texts))
        (event,) = codec.decode(Message("t", 0, 0, message.key, message.value, headers=headers))
        assert isinstance(event, ChangeEvent)
        assert event.after == {"id": 0, "a": "x"}


@pytest.mark.parametrize("protocol", JSON)
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\0\0\0\0\x05" + b'{"before":null}', "JsonSchemaConverter"),
        (b"\0\0\0\0\x05\x02\x02", "begins like a Confluent header"),
        (b"\0\0\0\xff\x05\xff\x02", "begins like a Confluent header"),
        (b"\3\0" + bytes(16) + b"{}", "AWS Glue"),
        (b"Obj\x01\x04", "an Avro container file"),
        (b"\xc3\x01" + bytes(9), "single-object encoding"),
        (b":)\n\x05\xfa", "Smile"),
        (b"\xd9\xd9\xf7\xa1", "CBOR"),
        (b"<row/>", "XML"),
    ],
)
def test_json_that_is_none(protocol: str, data: bytes, words: str) -> None:
    assert words in _reason(protocol, data)


def _schemas(plan: DecodePlan) -> RegisteredSchemas:
    assert isinstance(plan.decoder, FlatAvroDecoder | DebeziumAvroDecoder)
    return plan.decoder.schemas


def _plan(protocol: str) -> DecodePlan:
    topic = Versions(Version({"a": ["null", "string"]}))
    if protocol == "debezium-avro":
        return debezium_avro_plan(
            TABLE, SubjectSchemas(topic.key_texts, topic.texts, unknown={0x02020206: "unknown"})
        )
    field = {"name": "id", "type": {"type": "int", "connect.parameters": {"tidb_type": "INT"}}}
    text = json.dumps({"type": "record", "name": "t", "namespace": "default.lab", "fields": [field]})
    return flat_avro_plan(TABLE, SubjectSchemas({1: text}, {2: text}, unknown={0x02020206: "unknown"}))


@pytest.mark.parametrize("protocol", AVRO)
def test_a_task_that_fetches_headers_names_all_records_alike(protocol: str) -> None:
    values = [INSERT, DELETE, LONG_ID, None]
    headers = [
        [
            {"key": "apicurio.value.globalId", "value": _NUMBER},
            {"key": "apicurio.key.globalId", "value": _NUMBER},
        ]
    ]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    count = len(values)
    records = pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["t"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "key": pa.array([b"\2", b"\0\2\2\2\6", b"\2", b"\2"], pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(headers * count, kind),
        }
    )
    found = decode_here(_plan(protocol), records)
    rows = found if protocol == "flat-avro" else found[:3]  # a null value is a tombstone of Debezium's
    assert [(one.kind, one.error) for one in rows] == [("bad", "FramingError")] * len(rows)
    assert {str(one.reason)[:60] for one in rows} == {
        "The value has its schema id in the record header apicurio.va"
    }


def test_an_id_of_zero_is_none() -> None:
    """So a record under an id of eight bytes is no reason to ask the registry."""
    data = base64.b64decode("AAAAAAAAAAADAAICAgZhYmM=")
    assert schema_id_of(data) is None
    assert schema_ids(pa.array([data, b"\0\0\0\0\1"], pa.binary())).tolist() == [-1, 1]


@pytest.mark.parametrize("protocol", AVRO)
def test_a_worker_fetches_headers_once_records_are_not_confluents(tmp_path: Path, protocol: str) -> None:
    """And refuses a topic that has no others, before it asks the registry for ids that are none."""
    config = right(FLAT_AVRO)
    config = config.model_copy(update={"source": config.source.model_copy(update={"protocol": protocol})})
    registry = MemorySchemaRegistry()
    headers = (("apicurio.value.globalId", _NUMBER),)
    bare = as_records([Message("shop_orders", 0, 0, b"\2", INSERT, headers=headers)])
    source = KafkaSource(lambda _: iter([bare]))
    around = replace(worker_context(config, cast("Any", None), tmp_path, registry=registry), source=source)
    found = TopicOffsets("shop_orders", "an id", {0: PartitionOffsets(0, 1)})

    def opened() -> Decoding:
        return open_decoding(decoding_parts(around), "shop_orders", TableId("shop", "orders"))

    with pytest.raises(ConfigError, match=r"headers\.enabled to false"):
        opened().prepare(found)
    texts = _schemas(_plan(protocol))
    for part, side in (("key", texts.keys), ("value", texts.values)):
        registry.register(f"shop_orders-{part}", *side.texts.values())
    decoding = opened()
    decoding.prepare(found)
    assert not decoding.columns().decoder.uses_headers
    odd = UnplannedRecord(TopicPartition("shop_orders", 0), 0)
    unplanned = UnplannedSchemas(value_ids=(0x02020206,), records=(odd,))
    met = BatchSummary(EventCounts(unplanned=1), unplanned=unplanned)
    assert decoding.learn(Missed(met, (OffsetRange("shop_orders", 0, 0, 1),), found))
    plan = decoding.columns()
    assert plan.decoder.uses_headers
    (wanted,) = RangeTask.of([OffsetRange("shop_orders", 0, 0, 1)], "an id", plan).ranges
    assert isinstance(wanted, FetchRange)
    assert wanted.headers
    (row,) = decode_here(plan, bare)
    assert (row.kind, row.error) == ("bad", "FramingError")


@pytest.mark.parametrize("protocol", AVRO)
def test_bad_records_in_every_batch_are_looked_at_once_for_headers(tmp_path: Path, protocol: str) -> None:
    """Records of a known schema are not looked at, others once for each schema id in their bytes."""
    config = right(FLAT_AVRO)
    config = config.model_copy(update={"source": config.source.model_copy(update={"protocol": protocol})})
    registry = MemorySchemaRegistry()
    texts = _schemas(_plan(protocol))
    for part, side in (("key", texts.keys), ("value", texts.values)):
        registry.register(f"shop_orders-{part}", *side.texts.values())
    known = registry.schema_by_version("shop_orders-value", 1).id
    asked: list[tuple[int, int, int]] = []

    def fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        asked.append((wanted.partition, wanted.start, wanted.end))
        yield as_records([Message("shop_orders", wanted.partition, wanted.start, b"\2", INSERT)])

    around = worker_context(config, cast("Any", None), tmp_path, registry=registry)
    around = replace(around, source=KafkaSource(fetch))
    found = TopicOffsets("shop_orders", "an id", {n: PartitionOffsets(0, 500) for n in (0, 1)})
    ranges = tuple(OffsetRange("shop_orders", n, 0, 500) for n in (0, 1))
    decoding = open_decoding(decoding_parts(around), "shop_orders", TableId("shop", "orders"))
    decoding.prepare(found)
    asked.clear()
    for records in (
        [(0, 7, known), (1, 9, None)],
        [(0, 300, known), (1, 11, None)],
        [(0, 310, 99), (1, 12, None)],
        [(0, 320, 99), (1, 400, None)],
    ):
        bad = tuple(
            BadRecord(TopicPartition("shop_orders", partition), offset, "DecodeError", "odd", schema_id)
            for partition, offset, schema_id in records
        )
        summary_of_bad = BatchSummary(EventCounts(bad=len(bad)), bad_records=bad)
        assert not decoding.learn(Missed(summary_of_bad, ranges, found))
    assert asked == [(1, 9, 10), (0, 310, 311)]
    asked.clear()
    # A bad row of the source database is in no record.
    of_database = BatchSummary(EventCounts(bad=1), bad_rows=(BadRow("DecodeError", "odd"),))
    assert not decoding.learn(Missed(of_database, (), found))
    assert asked == []
    new = UnplannedRecord(TopicPartition("shop_orders", 0), 330)
    text = json.loads(registry.schema_by_id(known))
    later = registry.register("shop_orders-value", json.dumps({**text, "doc": "later"}))
    unplanned = UnplannedSchemas(value_ids=(later,), records=(new,))
    met = BatchSummary(EventCounts(unplanned=1), unplanned=unplanned)
    assert decoding.learn(Missed(met, ranges, found))
    assert asked == [(0, 330, 331)]


@pytest.mark.parametrize("protocol", AVRO)
@pytest.mark.parametrize("odd", ["key", "value"])
def test_a_bad_record_has_no_schema_id_if_one_of_its_sides_has_none(protocol: str, odd: str) -> None:
    """One of a topic's two converters may put its ids into headers, and the other not."""
    plan = _plan(protocol)
    ids = {side: next(iter(getattr(_schemas(plan), f"{side}s").texts)) for side in ("key", "value")}
    framed = {side: b"\0" + one.to_bytes(4, "big") + b"\xff" for side, one in ids.items()}
    for sides, schema_id in ((framed, ids["value"]), (framed | {odd: b"\2\2"}, None)):
        records = as_records([Message("t", 0, 0, sides["key"], sides["value"])])
        _, payloads = run(RangeTask((WANTED,), plan), [records])
        assert [one.schema_id for one in summary(payloads).bad_records] == [schema_id]
