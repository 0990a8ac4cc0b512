"""What each stage of a batch costs on Spark: Kafka read only, + decode, + reduce.

``python -m benchmarks.spark_stages SETTINGS.json`` prints one JSON object of events a second:
``{"plain read", "read", "decode", "reduce", "rounds"}``: ``plain read`` is Spark's reader as it comes,
``read`` the same with the worker's client options, which the stages after it have too. Every stage reads
the whole topic anew and writes nowhere; the stages take turns, so that what else runs on the machine
meets all of them, and the best of each counts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.events import TABLE
from tidesink.codecs.columns_flat_avro import flat_avro_columns
from tidesink.schema_registry import open_registry
from tidesink.sinks.reduce_spark import reduce_frame
from tidesink.sinks.session import build_session
from tidesink.sinks.source import READER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.codecs.columns_base import DecodeColumns

# The first round is the compilers'.
WARM_UP = 1
ROUNDS = 4


def stages(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The best rate of each stage."""
    registry = open_registry(settings["registry"])
    key, value = (registry.latest(f"{settings['topic']}-{part}") for part in ("key", "value"))
    plan = flat_avro_columns(
        TABLE, key_schemas={key.id: key.schema_text}, value_schemas={value.id: value.schema_text}
    )
    session = build_session()
    try:
        raw = _raw(session, settings["brokers"], settings["topic"], READER)
        plain = _raw(session, settings["brokers"], settings["topic"], {})
        return measure(plain, raw, plan, settings["events"])
    finally:
        session.stop()


def measure(plain: DataFrame, raw: DataFrame, plan: DecodeColumns, events: int) -> dict[str, Any]:
    """The best rate of each stage over one raw frame, and of reading by a plain one."""
    steps: dict[str, Callable[[], DataFrame]] = {
        "plain read": lambda: plain,
        "read": lambda: raw,
        "decode": lambda: plan.decode(raw),
        "reduce": lambda: reduce_frame(plan.decode(raw), plan.shape, changes_keys=plan.changes_keys),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(WARM_UP + ROUNDS):
        for name, frame in steps.items():
            seconds[name].append(_run(frame))
    rates = {name: events / min(taken[WARM_UP:]) for name, taken in seconds.items()}
    return {**rates, "rounds": seconds}


def _run(frame: Callable[[], DataFrame]) -> float:
    """Seconds to make a frame and go through all of it, planning included."""
    started = time.perf_counter()
    frame().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def _raw(session: SparkSession, brokers: str, topic: str, reader: Mapping[str, str]) -> DataFrame:
    options = {
        **reader,
        "kafka.bootstrap.servers": brokers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
    }
    return session.read.format("kafka").options(**options).load().drop("timestampType")


if __name__ == "__main__":
    print(json.dumps(stages(json.loads(sys.argv[1]))))
