"""The summary of a reduced frame: one job, and as many rows on the driver as topic-partitions and ids.

The frame is persisted by the caller: this job computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.sinks.batch.counts import (
    SUMS,
    BadRecord,
    BatchSummary,
    Doubt,
    Place,
    PlaceSummary,
    Truncate,
    distinct,
    greatest,
    least,
)
from tidesink.sinks.batch.records import (
    BAD,
    DDL,
    DELETE,
    FILTERED_KINDS,
    ROW_KINDS,
    TRUNCATE,
    UNPLANNED,
    UPSERT,
    WATERMARK,
)
from tidesink.typemap.target_schema import TableShape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Mixed keys shown in an error, of each topic-partition.
_SHOWN_KEYS: Final = 3


def summarise(reduced: DataFrame, shape: TableShape) -> BatchSummary:
    """What a reduced frame holds."""
    names = reduced.columns
    unmatched = F.sum("_unmatched") if "_unmatched" in names else F.lit(0)
    aggregates = [*_aggregates(shape, keeps_values="_kept" in names), unmatched.alias("unmatched")]
    rows = reduced.groupBy("_topic", "_partition").agg(*aggregates).collect()
    return BatchSummary(
        **{name: sum(row[name] or 0 for row in rows) for name in SUMS},
        max_commit_ts=greatest(row["commit_ts"] for row in rows),
        min_commit_ts=least(row["least_commit_ts"] for row in rows),
        key_range=_key_range(rows),
        places=dict(_place(row) for row in rows),
        zero_dates=_zero_dates(rows),
        bad_records=tuple(_bad_record(row) for row in rows if row["first_bad"] is not None),
        truncates=tuple(_truncate(row) for row in rows if row["first_truncate"] is not None),
        doubts=tuple(_doubt(row) for row in rows if row["first_doubt"] is not None),
        unplanned_key_ids=distinct(one for row in rows for one in row["key_ids"]),
        unplanned_value_ids=distinct(one for row in rows for one in row["value_ids"]),
        unplanned_columns=distinct(one for row in rows for names in row["fields"] for one in names),
        mixed_keys=distinct(one for row in rows for one in row["mixed"])[:_SHOWN_KEYS],
    )


def _aggregates(shape: TableShape, *, keeps_values: bool) -> list[Column]:
    op, events = F.col("_op"), F.col("_events")
    is_row, unplanned = op.isin(*ROW_KINDS), op == UNPLANNED
    detail = F.col("_detail")
    bad = F.struct(
        "_offset", detail.getField("error").alias("error"), detail.getField("reason").alias("reason")
    )
    doubted = is_row & detail.getField("reason").isNotNull()
    doubt = F.struct("_offset", detail.getField("reason").alias("reason"))
    first_key = F.col("key").getField(shape.key_columns[0].name)
    return [
        F.sum("_messages").alias("messages"),
        F.sum("_events").alias("read"),
        F.count_if(op == UPSERT).alias("upserts"),
        F.count_if(op == DELETE).alias("deletes"),
        F.count_if(is_row & F.col("_half")).alias("split_halves"),
        F.sum("_superseded").alias("superseded"),
        F.sum(F.when(op.isin(*FILTERED_KINDS), events)).alias("filtered"),
        F.sum(F.when(op == DDL, events)).alias("ddl"),
        F.sum(F.when(op == WATERMARK, events)).alias("watermarks"),
        F.sum(F.when(op == BAD, events)).alias("bad"),
        F.sum(F.when(unplanned, events)).alias("unplanned"),
        F.max(F.when(is_row, F.col("_max_commit_ts"))).alias("commit_ts"),
        F.min(F.when(is_row, F.col("_commit_ts"))).alias("least_commit_ts"),
        F.max(F.when(op == WATERMARK, F.col("_max_commit_ts"))).alias("watermark"),
        F.max("_max_offset").alias("max_offset"),
        F.min(F.when(is_row, first_key)).alias("least_key"),
        F.max(F.when(is_row, first_key)).alias("greatest_key"),
        F.min_by(bad, F.when(op == BAD, F.col("_offset"))).alias("first_bad"),
        F.min(F.when(op == TRUNCATE, F.col("_offset"))).alias("first_truncate"),
        F.count_if(doubted).alias("doubted"),
        F.min_by(doubt, F.when(doubted, F.col("_offset"))).alias("first_doubt"),
        F.collect_set(F.when(unplanned, detail.getField("key_id"))).alias("key_ids"),
        F.collect_set(F.when(unplanned, detail.getField("value_id"))).alias("value_ids"),
        F.collect_set(F.when(unplanned, detail.getField("fields"))).alias("fields"),
        F.slice(F.collect_set(F.when(F.col("_mixed"), F.to_json("key"))), 1, _SHOWN_KEYS).alias("mixed"),
        (F.count_if(F.col("_kept").isNotNull()) if keeps_values else F.lit(0)).alias("omitted"),
        *_zero_counts(shape),
    ]


def _zero_counts(shape: TableShape) -> list[Column]:
    """One count a column which may hold a date no calendar has; the position is the column's in the shape."""
    return [
        F.count_if(F.array_contains("_zero_dates", column.name)).alias(f"zero:{column.name}")
        for column in shape.columns
        if shape.zero_date == "null" and column.spark in ("date", "timestamp", "timestamp_ntz")
    ]


def _zero_dates(rows: Sequence[Any]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        for name, count in row.asDict().items():
            if name.startswith("zero:") and count:
                column = name.removeprefix("zero:")
                counts[column] = counts.get(column, 0) + count
    return counts


def _place(row: Any) -> tuple[Place, PlaceSummary]:
    summary = PlaceSummary(
        messages=row["messages"],
        max_offset=row["max_offset"],
        max_commit_ts=row["commit_ts"],
        watermark=row["watermark"],
    )
    return Place(row["_topic"], row["_partition"]), summary


def _bad_record(row: Any) -> BadRecord:
    bad = row["first_bad"]
    return BadRecord(Place(row["_topic"], row["_partition"]), bad["_offset"], bad["error"], bad["reason"])


def _truncate(row: Any) -> Truncate:
    return Truncate(Place(row["_topic"], row["_partition"]), row["first_truncate"])


def _doubt(row: Any) -> Doubt:
    doubt = row["first_doubt"]
    return Doubt(Place(row["_topic"], row["_partition"]), doubt["_offset"], doubt["reason"])


def _key_range(rows: Sequence[Any]) -> tuple[object, object] | None:
    found = [row for row in rows if row["least_key"] is not None]
    if not found:
        return None
    return min(row["least_key"] for row in found), max(row["greatest_key"] for row in found)
