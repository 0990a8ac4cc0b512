"""Spark's own Kafka source and Avro reader, which the hand-written jobs read with and tidesink does not."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tidesink.sinks.spark.jvm import (
    IN_SPARK,
    Coordinate,
    JarSet,
    drop_shipped,
    fetch,
    minor_version,
    spark_version,
)

_GROUP: Final = "org.apache.spark"
_CONNECTORS: Final = {"4.0": "4.0.0", "4.1": "4.1.1"}
# The connector needs it on the class path and no more; not every mirror has its newest version.
_TOKEN_PROVIDER: Final = Coordinate(_GROUP, "spark-token-provider-kafka-0-10_2.13", "4.0.0")


def kafka_connector_jars() -> list[Path]:
    """The jars of both for the installed Spark, fetched when not yet here."""
    spark = minor_version(spark_version())
    connector = Coordinate(_GROUP, "spark-sql-kafka-0-10_2.13", _CONNECTORS[spark])
    avro = Coordinate(_GROUP, "spark-avro_2.13", _CONNECTORS[spark])
    jars = JarSet(f"spark-{spark}-kafka", (connector, avro), pinned=(_TOKEN_PROVIDER,), excluded=IN_SPARK)
    return sorted(fetch(jars, finish=drop_shipped).glob("*.jar"))
