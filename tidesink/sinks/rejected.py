"""The undecodable records of a reduced batch, as dead letters are kept.

The reduced frame says where they are and what is wrong; their bytes and Kafka's time come from Kafka
itself, read once more where there are any, so that good batches carry neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  (PySpark's own name for it)

from tidesink.codecs.columns_base import BAD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def rejected_records(reduced: DataFrame, raw: DataFrame) -> DataFrame:
    """Topic, partition, offset, key, value, schema_id, error, reason and time of each bad record."""
    bad = reduced.where(F.col("_op") == BAD).select(
        F.col("_topic").alias("topic"),
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
        F.col("_detail.value_id").cast("int").alias("schema_id"),
        F.col("_detail.error").alias("error"),
        F.col("_detail.reason").alias("reason"),
    )
    found = raw.join(F.broadcast(bad), ["topic", "partition", "offset"])
    names = ("topic", "partition", "offset", "key", "value", "schema_id", "error", "reason")
    return found.select(*names, F.col("timestamp").alias("time"))
