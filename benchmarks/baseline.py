"""What a careful user writes by hand: ``foreachBatch``, ``from_avro``, a window, MERGE.

It has the same Delta options, partitions and memory as the worker, idempotent commits, and reads
with the one schema it was given: no schema change, no check of the bytes. Its session is what Delta's
and Spark's own pages tell a user to set up.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.kafka_connector import kafka_connector_jars
from tidesink.sinks.spark.jvm import spark_connector_jars
from tidesink.sinks.spark.session import local_cores, spark_java_environment

COLUMNS = ("id", "amount", "total", "name", "note", "ratio", "price", "at", "digest", "flag")
COLUMNS_DDL = (
    "id BIGINT, amount INT, total BIGINT, name STRING, note STRING, ratio DOUBLE, price DECIMAL(20,4), "
    "at TIMESTAMP_NTZ, digest BINARY, flag INT"
)
TABLE_PROPERTIES = (
    "'delta.enableDeletionVectors'='true','delta.columnMapping.mode'='name','delta.enableTypeWidening'='true'"
)


def plain_session(more: Mapping[str, str] | None = None, *, target: str | None = None) -> SparkSession:
    """A session with the worker's cores, memory, partitions and jars, and none of its other settings.

    ``more`` are settings of a ``target`` that is not Delta.
    """
    os.environ.update(spark_java_environment())
    settings: dict[str, bool | float | int | str | None] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.shuffle.partitions": str(2 * local_cores("local[*]")),
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "2g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.jars": ",".join(map(str, [*spark_connector_jars(targets=[target]), *kafka_connector_jars()])),
        **(more or {}),
    }
    session = SparkSession.builder.master("local[*]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


class Lap(NamedTuple):
    """One batch: its events and its seconds."""

    events: int
    seconds: float


def _lap(progress: StreamingQueryProgress) -> Lap:
    """A batch by the query's own report; the rows there count twice where a MERGE reads them twice."""
    # As text: PySpark's objects give offsets as Python's words for them.
    report = json.loads(progress.json)
    (source,) = report["sources"]
    start, end = (
        sum(sum(parts.values()) for parts in (source[name] or {}).values())
        for name in ("startOffset", "endOffset")
    )
    return Lap(end - start, report["durationMs"]["triggerExecution"] / 1000)


@dataclass(frozen=True)
class BaselineJob:
    """One hand-written job: where it reads, where it writes, and the two schemas it knows."""

    brokers: str
    topic: str
    table: Path
    checkpoint: Path
    key_schema: str
    value_schema: str
    max_records: int

    @property
    def location(self) -> str:
        """The target table in SQL."""
        return f"delta.`{self.table}`"

    def create(self, spark: SparkSession) -> None:
        """Make the empty target table."""
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.location} ({COLUMNS_DDL}) "
            f"USING delta TBLPROPERTIES ({TABLE_PROPERTIES})"
        )

    def run(self, spark: SparkSession) -> list[Lap]:
        """Read all that is there, in batches; the query's own start is the first one's."""
        started = time.perf_counter()
        first, *others = self.steady(spark, self.max_records)
        whole = time.perf_counter() - started
        return [first._replace(seconds=whole - sum(lap.seconds for lap in others)), *others]

    def steady(self, spark: SparkSession, batch: int) -> list[Lap]:
        """Read what came since in batches of so many records."""
        return [_lap(progress) for progress in self._drain(spark, batch).recentProgress]

    def _drain(self, spark: SparkSession, max_records: int) -> StreamingQuery:
        stream = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.brokers)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", max_records)
            .load()
        )
        query = (
            stream.writeStream.foreachBatch(self._merge)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    def _merge(self, batch: DataFrame, batch_id: int) -> None:
        spark = batch.sparkSession
        spark.conf.set("spark.databricks.delta.write.txnAppId", "baseline")
        spark.conf.set("spark.databricks.delta.write.txnVersion", str(batch_id))
        latest = Window.partitionBy("key_id").orderBy(F.col("partition").desc(), F.col("offset").desc())
        key = from_avro(F.expr("substring(key, 6)"), self.key_schema)
        value = from_avro(F.expr("substring(value, 6)"), self.value_schema)
        rows = (
            batch.select(key["id"].alias("key_id"), value.alias("row"), "partition", "offset")
            .withColumn("rank", F.row_number().over(latest))
            .where("rank = 1")
            .selectExpr("key_id", "row.*", "row is null as deleted")
            .withColumn("at", F.expr("cast(at as timestamp_ntz)"))
        )
        rows.createOrReplaceTempView("changes")
        spark.sql(
            f"MERGE INTO {self.location} t USING changes s ON t.id = s.key_id "
            "WHEN MATCHED AND s.deleted THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{c} = s.{c}' for c in COLUMNS)} "
            f"WHEN NOT MATCHED AND NOT s.deleted THEN INSERT ({', '.join(COLUMNS)}) "
            f"VALUES ({', '.join(f's.{c}' for c in COLUMNS)})"
        )
