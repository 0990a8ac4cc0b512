"""What each stage of a batch costs on Spark, per codec: Kafka read only, + decode, + reduce.

``python -m benchmarks.spark_stages SETTINGS.json`` prints one JSON object: for each protocol the events a
second of ``plain read``, ``read``, ``decode`` and ``reduce``, and what they are of each other.
``plain read`` is Spark's own Kafka source, ``read`` the worker's, which the stages after it have too. Every
stage reads the whole topic anew and writes nowhere; the stages take turns, so that what else runs on the
machine meets all of them, and medians count.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.events import DDL, SCHEMA, TABLE
from benchmarks.kafka_connector import kafka_connector_jars
from benchmarks.turns import Turn, rates, ratio, take_turns
from tidesink.codecs import columns
from tidesink.codecs.columns_debezium_json_heads import heads_in
from tidesink.codecs.columns_debezium_json_plan import debezium_json_columns
from tidesink.codecs.columns_opening import COLUMNS
from tidesink.schema_registry import open_registry
from tidesink.sinks.ivy import spark_connector_jars
from tidesink.sinks.kafka.fetch import KafkaFetch
from tidesink.sinks.offsets import KafkaOffsets
from tidesink.sinks.plans.canal_json import canal_json_plan
from tidesink.sinks.ranges import OffsetRange
from tidesink.sinks.reduce_spark import reduce_frame
from tidesink.sinks.session import build_session
from tidesink.sinks.source import KafkaSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.batch.decoded_frame import Decode

# The first rounds are the compilers'.
WARM_UP = 2
ROUNDS = 5
# Reducing is the same work behind every decoder, so it is measured behind one.
_REDUCED = ("flat-avro",)
_BASES = ("plain read", "read")


def stages(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of each protocol that has a topic in the settings and column expressions."""
    session = build_session(jars=[*spark_connector_jars(), *kafka_connector_jars()])
    try:
        return {
            protocol: measure(session, settings, protocol, topic["name"], topic["events"])
            for protocol, topic in settings["topics"].items()
            if protocol in COLUMNS
        }
    finally:
        session.stop()


def measure(
    session: SparkSession, settings: Mapping[str, Any], protocol: str, topic: str, events: int
) -> dict[str, float]:
    """The rates of the stages over one topic."""
    plain = _connector(session, settings["brokers"], topic)
    raw = _raw(session, settings["brokers"], topic)
    plan = _plan(settings["registry"], protocol, topic, raw)
    steps: dict[str, Callable[[], DataFrame]] = {
        "plain read": lambda: plain,
        "read": lambda: raw,
        "decode": lambda: plan.decode(raw),
    }
    if protocol in _REDUCED:
        steps["reduce"] = lambda: reduce_frame(plan.decode(raw), plan.shape, changes_keys=plan.changes_keys)
    turns = {name: _through(frame) for name, frame in steps.items()}
    seconds = take_turns(turns, rounds=ROUNDS, warm_up=WARM_UP)
    compared = [
        (stage, base)
        for stage, bases in (("read", _BASES[:1]), ("decode", _BASES), ("reduce", _BASES))
        for base in bases
        if stage in steps
    ]
    return {**rates(seconds, events), **{f"{a} of {b}": ratio(seconds, a, b) for a, b in compared}}


def _plan(registry: str, protocol: str, topic: str, raw: DataFrame) -> Decode:
    """The plan a worker makes of a topic whose messages are all in order."""
    if protocol == "canal-json":
        return canal_json_plan(SCHEMA)
    if protocol == "debezium-json":
        heads = heads_in(raw)
        return debezium_json_columns(TABLE, key_heads=heads.key, value_heads=heads.value, judges=False)
    return columns(protocol, table=TABLE, topic=topic, registry=open_registry(registry), definition=DDL)


def _through(frame: Callable[[], DataFrame]) -> Turn:
    """A turn that makes a frame and goes through all of it, planning included."""
    return lambda: frame().write.format("noop").mode("overwrite").save()


def _raw(session: SparkSession, brokers: str, topic: str) -> DataFrame:
    properties = {"bootstrap.servers": brokers}
    found = KafkaOffsets(properties).lookup([topic])[topic].partitions
    ranges = [OffsetRange(topic, number, *at) for number, at in found.items()]
    return KafkaSource(KafkaFetch(properties)).frame(session, ranges)


def _connector(session: SparkSession, brokers: str, topic: str) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": brokers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
    }
    return session.read.format("kafka").options(**options).load().drop("timestampType")


if __name__ == "__main__":
    print(json.dumps(stages(json.loads(sys.argv[1]))))
