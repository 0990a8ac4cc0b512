"""debezium-avro records that are no rows: TiCDC's watermarks, and what has no Confluent header."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.decoded_batches import as_records
from tests.full import FULL
from tests.golden.vectors import Record, VectorFolder, find_folders
from tests.spark.debezium_versions import TABLE, Version, Versions
from tests.spark.decoded import decode_here, reduced_here
from tests.unit.config.samples import FLAT_AVRO, right
from tests.worker_contexts import worker_context
from tidesink.codecs import open_codec
from tidesink.errors import ConfigError, DecodeError, SchemaMismatchError
from tidesink.events import ChangeEvent, Message, TableId, WatermarkEvent
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.decode.debezium_avro import debezium_avro_plan, names_no_row, read_value_schema
from tidesink.sinks.decode.open import open_decoding
from tidesink.sinks.decode.plans import SubjectSchemas
from tidesink.sinks.kafka.offsets import PartitionOffsets, TopicOffsets
from tidesink.sinks.laws.counts import TopicPartition
from tidesink.sinks.worker.open_table import decoding_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = FULL


def _with_watermarks(vectors: Path) -> tuple[VectorFolder, list[Record]]:
    """A row of TiCDC's (b813e76), and the watermarks among its control records."""
    folder = {one.name: one for one in find_folders(vectors)}.get("ticdc-new")
    if folder is None:
        pytest.skip("the clone's own vectors have no watermarks of debezium-avro")
    row = next(one for one in folder.rows("debezium-avro") if one.message.key and one.message.value)
    control = [one for one in folder.control("debezium-avro") if one.raw["value_b64"]]
    return folder, [row, *(one for one in control if one.raw["op"] == "watermark")]


def test_watermarks_of_ticdc_say_what_the_python_codec_reads(vectors: Path, spark: SparkSession) -> None:
    folder, records = _with_watermarks(vectors)
    codec = open_codec("debezium-avro", registry=MemorySchemaRegistry(folder.schemas))
    messages = [
        replace(one.message, topic="t", partition=0, offset=place) for place, one in enumerate(records)
    ]
    events = [event for one in messages for event in codec.decode(one)]
    row, *watermarks = events
    assert isinstance(row, ChangeEvent)
    plan = debezium_avro_plan(
        row.table,
        SubjectSchemas(
            {one.raw["key_schema_id"]: folder.schemas[one.raw["key_schema_id"]] for one in records},
            {one.raw["value_schema_id"]: folder.schemas[one.raw["value_schema_id"]] for one in records},
        ),
    )
    reported = [one.commit_ts for one in watermarks if isinstance(one, WatermarkEvent)]
    assert len(reported) == len(watermarks) > 3
    # A frame's numbers are signed: one beyond them says nothing.
    signed = [moment if moment < 2**63 else None for moment in reported]
    found = [(one.kind, one.commit_ts) for one in decode_here(plan, messages)]
    assert found == [("upsert", row.commit_ts), *(("watermark", moment) for moment in signed)]
    summary = reduced_here(plan, messages).summary
    assert summary.places[TopicPartition("t", 0)].watermark == max(moment for moment in signed if moment)
    counts = summary.counts
    assert (counts.filtered, counts.upserts, counts.bad) == (len(watermarks), 1, 0)


def test_a_watermarks_schema_may_come_beside_any_tables_own(vectors: Path) -> None:
    folder, (row, watermark, *_) = _with_watermarks(vectors)
    assert names_no_row(folder.schemas[watermark.raw["value_schema_id"]])
    assert names_no_row(folder.schemas[watermark.raw["key_schema_id"]])
    assert not names_no_row(folder.schemas[row.raw["value_schema_id"]])


@pytest.mark.parametrize("compression", [b"\0", b"\5"], ids=["plain", "zlib"])
def test_records_under_a_glue_header_are_bad_with_the_framing_and_the_remedy(
    spark: SparkSession, compression: bytes
) -> None:
    topic = Versions(Version({"a": ["null", "int"]}))
    topic.send(100, {"a": 1})
    (good,) = topic.messages
    glue = b"\3" + compression + bytes(16)
    messages = [replace(good, key=glue + b"x"), replace(good, offset=1, value=glue + b"x")]
    codec = open_codec("debezium-avro", registry=MemorySchemaRegistry({**topic.key_texts, **topic.texts}))
    plan = debezium_avro_plan(TABLE, SubjectSchemas(topic.key_texts, topic.texts))
    rows = decode_here(plan, messages)
    for part, message, row in zip(("key", "value"), messages, rows, strict=True):
        with pytest.raises(DecodeError, match="AWS Glue") as refused:
            codec.decode(message)
        assert (row.kind, row.error) == ("bad", type(refused.value).__name__)
        assert str(row.reason).startswith(f"The {part} has an AWS Glue schema registry header, but workers")
        assert "AvroConverter instead of AWS's" in str(row.reason)


@pytest.mark.parametrize(
    ("protocol", "remedy"),
    [("flat-avro", "tidesink decode and open_codec"), ("debezium-avro", "AvroConverter instead of AWS's")],
)
def test_a_topic_all_under_glue_headers_is_refused_with_the_remedy(
    spark: SparkSession, tmp_path: Path, protocol: str, remedy: str
) -> None:
    config = right(FLAT_AVRO)
    config = config.model_copy(update={"source": config.source.model_copy(update={"protocol": protocol})})
    glue = b"\3\0" + bytes(16) + b"payload"
    held = KafkaSource(lambda _: iter([as_records([Message("shop_orders", 0, 0, glue, glue)])]))
    around = replace(worker_context(config, spark, tmp_path, registry=MemorySchemaRegistry()), source=held)
    found = TopicOffsets("shop_orders", "an id", {0: PartitionOffsets(0, 1)})
    decoding = open_decoding(decoding_parts(around), "shop_orders", TableId("shop", "orders"))
    with pytest.raises(ConfigError, match="have an AWS Glue schema registry header") as refused:
        decoding.prepare(found)
    assert remedy in refused.value.message


def test_flattened_rows_are_refused_with_what_to_do(spark: SparkSession) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "__op", "type": "string"}]
    flattened = json.dumps({"type": "record", "name": "Value", "namespace": "app.lab.t", "fields": fields})
    with pytest.raises(SchemaMismatchError, match="Remove the transform from the connector"):
        read_value_schema(flattened)
    topic = Versions(Version({"a": ["null", "int"]}))
    topic.send(100, {"a": 1})
    plan = debezium_avro_plan(TABLE, SubjectSchemas(topic.key_texts, {**topic.texts, 300: flattened}))
    messages = [replace(topic.messages[0], value=b"\0" + (300).to_bytes(4, "big") + b"\2\2c")]
    (row,) = decode_here(plan, messages)
    assert (row.kind, row.error) == ("bad", "SchemaMismatchError")
    assert "ExtractNewRecordState" in str(row.reason)
