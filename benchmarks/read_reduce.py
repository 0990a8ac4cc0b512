"""Reading and reducing alone, cold: the worker's tasks beside Spark's own Kafka source.

``python -m benchmarks.read_reduce ours|baseline SETTINGS.json`` prints one JSON object, ``{"seconds": …}``:
of one topic's events, from a session that was just started to one row a key. Each side runs in a process of
its own. ``baseline`` is Spark's Kafka source, ``from_avro`` and ``max_by``.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.baseline import plain_session
from benchmarks.events import TABLE
from tidesink.schema_registry import open_registry
from tidesink.sinks.batch.source import KafkaSource, reduced_ranges
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.flat_avro import flat_avro_plan
from tidesink.sinks.decode.plans import SubjectSchemas
from tidesink.sinks.kafka.fetch import FetchRange, KafkaFetch
from tidesink.sinks.kafka.offsets import KafkaOffsets
from tidesink.sinks.spark.session import build_session

if TYPE_CHECKING:
    from tidesink.schema_registry import SchemaRegistry


def ours(settings: dict[str, Any]) -> float:
    """The worker's tasks: what they packed is stored, and counted."""
    spark = build_session()
    properties = {"bootstrap.servers": settings["brokers"]}
    topic, registry = settings["topic"], open_registry(settings["registry"])
    started = time.perf_counter()
    key, value = (_schema(registry, f"{topic}-{part}") for part in ("key", "value"))
    plan = flat_avro_plan(TABLE, SubjectSchemas(key, value))
    found = KafkaOffsets(properties).lookup([topic])[topic]
    ranges = tuple(FetchRange(topic, n, at.earliest, at.latest) for n, at in found.partitions.items())
    reduced = reduced_ranges(spark, RangeTask(ranges, plan), KafkaSource(KafkaFetch(properties)))
    seconds = time.perf_counter() - started
    assert reduced.summary.counts.read == settings["events"]
    spark.stop()
    return seconds


def baseline(settings: dict[str, Any]) -> float:
    """Spark's own reader and decoder, and the newest event of each key."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.avro.functions import from_avro

    spark = plain_session()
    topic, registry = settings["topic"], open_registry(settings["registry"])
    schemas = {part: registry.latest(f"{topic}-{part}").schema_text for part in ("key", "value")}
    started = time.perf_counter()
    options = {"kafka.bootstrap.servers": settings["brokers"], "subscribe": topic}
    raw = spark.read.format("kafka").options(**options).load()
    read = (from_avro(F.expr(f"substring({part}, 6)"), schemas[part]).alias(part) for part in schemas)
    newest = raw.select("offset", *read).groupBy("key").agg(F.max_by("value", "offset").alias("value"))
    reduced = newest.persist()
    assert reduced.count() > 0
    seconds = time.perf_counter() - started
    spark.stop()
    return seconds


def _schema(registry: SchemaRegistry, subject: str) -> dict[int, str]:
    found = registry.latest(subject)
    return {found.id: found.schema_text}


if __name__ == "__main__":
    side = {"ours": ours, "baseline": baseline}[sys.argv[1]]
    print(json.dumps({"seconds": side(json.loads(sys.argv[2]))}))
