"""The law of ``reduce`` on a decoded frame: one row a key, in one pass, nothing on the driver.

The reduced frame has, for each key, what is to be done with it, and beside those rows the records that
are no rows: each bad record, each DDL and each unplanned message by itself, watermarks one a
topic-partition.

====================  ================  ==========================================================
column                type              meaning
====================  ================  ==========================================================
``_op``               string            a kind of ``columns_base``: ``upsert``, ``delete``, ...
``key``               struct            the key, null for what is no row
``after``             struct            the row to write, for ``upsert`` alone
``_topic``            string
``_partition``        int
``_offset``           bigint            of the event that stays
``_commit_ts``        bigint            of the event that stays
``_half``             boolean           the delete half of a key change: no event of its own
``_events``           bigint            row events of this key, the one that stays included
``_superseded``       bigint            row events that a later one of their key replaced
``_messages``         bigint            Kafka records among them
``_max_offset``       bigint            the largest offset among them
``_max_commit_ts``    bigint            the largest commit_ts among them
``_mixed``            boolean           the key came in two topic-partitions
``_zero_dates``       array<string>     columns whose date no calendar has was made null
``_detail``           struct            what is no row: error, reason, key_id, value_id, fields, key, value
====================  ================  ==========================================================

Keys are compared as Spark compares values, text byte by byte, whatever collation the source has: a
source that holds 'a' and 'A' for one key never sends them as two rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.columns_base import (
    BAD,
    DELETE,
    FILTERED_KINDS,
    ROW_KINDS,
    UNPLANNED,
    UPSERT,
    WATERMARK,
)
from tidesink.sinks.reduce import SequenceBy
from tidesink.sinks.summary import BadRecord, BatchSummary, Place, PlaceSummary
from tidesink.typemap.shape import TableShape
from tidesink.typemap.table import row_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CALENDAR: Final = frozenset({"date", "datetime", "timestamp"})
_WHOLE: Final = "whole"
_DELETE_HALF: Final = "delete half"
_INSERT_HALF: Final = "insert half"


def reduce_frame(
    decoded: DataFrame,
    shape: TableShape,
    sequence_by: SequenceBy = "kafka",
    *,
    changes_keys: bool = True,
) -> DataFrame:
    """The reduced frame of a decoded one; lazy.

    ``changes_keys``: whether an update may come with its old key, which stands for two rows (a plan's
    ``changes_keys``); False spares a step. Order by ``source`` needs a ``_commit_ts`` in every row event.
    """
    rows = _halves(decoded) if changes_keys else decoded.withColumn("part", F.lit(_WHOLE))
    keys = [column.name for column in shape.key_columns]
    prepared = _prepared(rows, keys)
    key_names = [f"key_{number}" for number in range(len(keys))]
    grouped = prepared.groupBy("group_hash", *key_names).agg(*_aggregates(sequence_by))
    return grouped.select(*_output(keys, key_names))


def rows_to_apply(reduced: DataFrame) -> DataFrame:
    """The rows of a reduced frame that a merge takes: upserts and deletes."""
    return reduced.where(F.col("_op").isin(*ROW_KINDS))


def _halves(decoded: DataFrame) -> DataFrame:
    """A key change as two rows: its old key is deleted, its new one written."""
    parts = F.when(F.col("old_key").isNull(), F.array(F.lit(_WHOLE))).otherwise(
        F.array(F.lit(_DELETE_HALF), F.lit(_INSERT_HALF))
    )
    exploded = decoded.withColumn("part", F.explode(parts))
    half = F.col("part") == _DELETE_HALF
    return exploded.withColumns(
        {
            "key": F.when(half, F.col("old_key")).otherwise(F.col("key")),
            "_kind": F.when(half, DELETE).otherwise(F.col("_kind")),
            "after": F.when(~half, F.col("after")),
            "_zero_dates": F.when(~half, F.col("_zero_dates")),
        }
    )


def _prepared(rows: DataFrame, keys: list[str]) -> DataFrame:
    """What is grouped by, and what the group keeps.

    The hash comes first, so that sorting compares one number; rows whose hashes meet are still told
    apart by their keys. What is no row has no key and a hash of its own place: of one topic-partition
    no two offsets have the same hash, since hashing one bigint loses nothing.
    """
    is_row = F.col("_kind").isin(*ROW_KINDS)
    key_columns = [F.col("key").getField(name) for name in keys]
    place = F.xxhash64("_topic", "_partition")
    own = F.when(F.col("_kind") == WATERMARK, F.lit(-1)).otherwise(F.col("_offset"))
    detail = F.struct(
        F.col("_error").alias("error"),
        F.col("_reason").alias("reason"),
        F.col("_schema_key_id").alias("key_id"),
        F.col("_schema_value_id").alias("value_id"),
        F.col("_fields").alias("fields"),
        F.col("_key").alias("key"),
        F.col("_value").alias("value"),
    )
    other = F.xxhash64("_topic", "_partition", "_kind", "_index", own)
    return rows.select(
        F.when(is_row, F.xxhash64(*key_columns)).otherwise(other).alias("group_hash"),
        *(column.alias(f"key_{number}") for number, column in enumerate(key_columns)),
        place.alias("place"),
        "_topic",
        "_partition",
        "_offset",
        "_index",
        "_commit_ts",
        F.col("_kind").alias("_op"),
        (F.col("part") == _DELETE_HALF).alias("_half"),
        "_zero_dates",
        "after",
        F.when(~is_row, detail).alias("_detail"),
    )


def _aggregates(sequence_by: SequenceBy) -> list[Column]:
    kept = F.struct(
        "_op", "after", "_topic", "_partition", "_offset", "_commit_ts", "_half", "_zero_dates", "_detail"
    )
    whole = F.when(~F.col("_half"), 1).otherwise(0)
    message = F.when(~F.col("_half") & (F.col("_index") == 0), 1).otherwise(0)
    return [
        F.max_by(kept, _order(sequence_by)).alias("kept"),
        F.sum(whole).alias("events"),
        F.sum(message).alias("messages"),
        F.max("_offset").alias("max_offset"),
        F.max("_commit_ts").alias("max_commit_ts"),
        F.min("place").alias("first_place"),
        F.max("place").alias("last_place"),
    ]


def _order(sequence_by: SequenceBy) -> Column:
    writes = (F.col("_op") == UPSERT).cast("int")
    kafka = (F.col("_partition"), F.col("_offset"), F.col("_index"), writes)
    return F.struct(*kafka) if sequence_by == "kafka" else F.struct(F.col("_commit_ts"), writes, *kafka[:3])


def _output(keys: list[str], key_names: list[str]) -> list[Column]:
    kept = F.col("kept")
    is_row = kept.getField("_op").isin(*ROW_KINDS)
    key = F.struct(*(F.col(name).alias(key) for name, key in zip(key_names, keys, strict=True)))
    own_event = F.when(is_row & ~kept.getField("_half"), 1).otherwise(0)
    named = (
        "_op",
        "after",
        "_topic",
        "_partition",
        "_offset",
        "_commit_ts",
        "_half",
        "_zero_dates",
        "_detail",
    )
    return [
        F.when(is_row, key).alias("key"),
        *(kept.getField(name).alias(name) for name in named),
        F.col("events").alias("_events"),
        F.when(is_row, F.col("events") - own_event).otherwise(0).alias("_superseded"),
        F.col("messages").alias("_messages"),
        F.col("max_offset").alias("_max_offset"),
        F.col("max_commit_ts").alias("_max_commit_ts"),
        (is_row & (F.col("first_place") != F.col("last_place"))).alias("_mixed"),
    ]


def summarize(reduced: DataFrame, shape: TableShape) -> BatchSummary:
    """The numbers of a reduced frame: one small query, so persist the frame before.

    The driver gets a row for each topic-partition and kind, and a sample of keys where a key came in two
    topic-partitions.
    """
    nullable = tuple(c.name for c in shape.columns if not c.key and row_of(c.type).reader in _CALENDAR)
    first_key = shape.key_columns[0].name
    rows = reduced.groupBy("_topic", "_partition", "_op").agg(*_totals(first_key, nullable)).collect()
    return _summary([row.asDict() for row in rows], nullable)


def _totals(first_key: str, nullable: tuple[str, ...]) -> list[Column]:
    detail, half = F.col("_detail"), F.when(F.col("_half"), 1).otherwise(0)
    key = F.col("key").getField(first_key)
    bad = F.struct(F.col("_offset"), detail.getField("error"), detail.getField("reason"))
    mixed = F.when(F.col("_mixed"), F.to_json(F.col("key")))
    zeros = [
        F.count_if(F.coalesce(F.array_contains("_zero_dates", name), F.lit(False))).alias(f"zero_{number}")
        for number, name in enumerate(nullable)
    ]
    return [
        F.count(F.lit(1)).alias("rows"),
        F.sum("_events").alias("events"),
        F.sum("_superseded").alias("superseded"),
        F.sum("_messages").alias("messages"),
        F.sum(half).alias("halves"),
        F.max("_max_offset").alias("max_offset"),
        F.max("_max_commit_ts").alias("max_commit_ts"),
        F.min(key).alias("min_key"),
        F.max(key).alias("max_key"),
        F.min(F.when(F.col("_op") == BAD, bad)).alias("bad"),
        F.collect_set(detail.getField("key_id")).alias("key_ids"),
        F.collect_set(detail.getField("value_id")).alias("value_ids"),
        F.array_distinct(F.flatten(F.collect_set(detail.getField("fields")))).alias("fields"),
        F.min(mixed).alias("first_mixed"),
        F.max(mixed).alias("last_mixed"),
        *zeros,
    ]


def _summary(rows: list[dict[str, Any]], nullable: tuple[str, ...]) -> BatchSummary:
    changed = [row for row in rows if row["_op"] in ROW_KINDS]
    unplanned = [row for row in rows if row["_op"] == UNPLANNED]
    mixed = {row[name] for row in changed for name in ("first_mixed", "last_mixed")} - {None}
    return BatchSummary(
        messages=_sum(rows, "messages"),
        read=_sum(rows, "events"),
        upserts=_sum([row for row in changed if row["_op"] == UPSERT], "rows"),
        deletes=_sum([row for row in changed if row["_op"] == DELETE], "rows"),
        split_halves=_sum(changed, "halves"),
        superseded=_sum(changed, "superseded"),
        filtered=_sum([row for row in rows if row["_op"] in FILTERED_KINDS], "events"),
        bad=_sum([row for row in rows if row["_op"] == BAD], "events"),
        unplanned=_sum(unplanned, "events"),
        max_commit_ts=_most(changed, "max_commit_ts"),
        key_range=_key_range(changed),
        places=_places(rows),
        zero_dates=_zero_dates(changed, nullable),
        bad_records=tuple(sorted(_bad_record(row) for row in rows if row["_op"] == BAD)),
        unplanned_key_ids=_united(unplanned, "key_ids"),
        unplanned_value_ids=_united(unplanned, "value_ids"),
        unplanned_columns=_united(unplanned, "fields"),
        mixed_keys=tuple(sorted(mixed)),
    )


def _sum(rows: list[dict[str, Any]], name: str) -> int:
    return sum(int(row[name]) for row in rows)


def _most(rows: list[dict[str, Any]], name: str) -> int | None:
    return max((row[name] for row in rows if row[name] is not None), default=None)


def _united(rows: list[dict[str, Any]], name: str) -> tuple[Any, ...]:
    return tuple(sorted({value for row in rows for value in row[name] or ()}))


def _key_range(changed: list[dict[str, Any]]) -> tuple[object, object] | None:
    if not changed:
        return None
    return min(row["min_key"] for row in changed), max(row["max_key"] for row in changed)


def _zero_dates(changed: list[dict[str, Any]], nullable: tuple[str, ...]) -> dict[str, int]:
    counts = {name: _sum(changed, f"zero_{number}") for number, name in enumerate(nullable)}
    return {name: count for name, count in counts.items() if count}


def _place(row: dict[str, Any]) -> Place:
    return Place(row["_topic"], row["_partition"])


def _bad_record(row: dict[str, Any]) -> BadRecord:
    offset, error, reason = row["bad"]
    return BadRecord(_place(row), offset, error, reason)


def _places(rows: list[dict[str, Any]]) -> dict[Place, PlaceSummary]:
    by_place: dict[Place, list[dict[str, Any]]] = {}
    for row in rows:
        by_place.setdefault(_place(row), []).append(row)
    return {
        place: PlaceSummary(
            messages=_sum(own, "messages"),
            max_offset=_most(own, "max_offset") or 0,
            max_commit_ts=_most([row for row in own if row["_op"] in ROW_KINDS], "max_commit_ts"),
            watermark=_most([row for row in own if row["_op"] == WATERMARK], "max_commit_ts"),
        )
        for place, own in by_place.items()
    }
