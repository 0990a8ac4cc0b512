"""The law of ``reduce`` on a decoded frame: one row a key, in one pass, nothing on the driver.

The reduced frame has, for each key, what is to be done with it, and beside those rows the records that
are no rows: each bad record, each DDL and each unplanned message by itself, watermarks and messages
one a topic-partition.

====================  ================  ==========================================================
column                type              meaning
====================  ================  ==========================================================
``_op``               string            one of ``records.KINDS``: ``upsert``, ``delete``, ...
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
``_detail``           struct            what is no row: error, reason, key_id, value_id, fields, key, value;
                                        of a row to apply with a warning: the reason
``_kept``             array<string>     with ``kept_columns`` alone: columns of ``after`` whose value the
                                        source did not send, so that what is stored stays; null for none
``_after_delete``     boolean           with ``kept_columns`` alone: the batch deletes the key before
                                        this row, so that nothing stored is the row's
``_unmatched``        bigint            under a filter alone: events among them whose row does not satisfy it
``_position``         string            where the decoded frame has it and it is asked for: of the event that
                                        stays
``_seq``              struct            in the source's order alone: the position of the event that stays,
                                        as ``targets.base.SEQUENCE_DDL`` says
====================  ================  ==========================================================

Keys are compared as Spark compares values, text byte by byte, whatever collation the source has: a
source that holds 'a' and 'A' for one key never sends them as two rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.sinks.batch.change_log import (
    COMMIT_TS,
    IMAGES_AN_EVENT,
    INDEX,
    OFFSET,
    OP,
    PARTITION,
    PREIMAGE,
    UNAVAILABLE,
    WORDS,
    log_shape,
)
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
from tidesink.sinks.batch.decoded_frame import POSITION
from tidesink.sinks.batch.records import (
    BAD,
    COUNTED_KINDS,
    DDL,
    DELETE,
    FILTERED_KINDS,
    ROW_KINDS,
    TRUNCATE,
    UNPLANNED,
    UPSERT,
    WATERMARK,
)
from tidesink.typemap.target_schema import ShapeColumn, TableShape

if TYPE_CHECKING:
    from tidesink.config import TableConfig
    from tidesink.events import SequenceBy
    from tidesink.sinks.batch.decoded_frame import Decode


# What is kept of the event that stays.
_OF_THE_EVENT: Final = (
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
_WHOLE: Final = "whole"
_DELETE_HALF: Final = "delete half"
_INSERT_HALF: Final = "insert half"


def reduce_frame(  # noqa: PLR0913  (all that a reduction rests on)
    decoded: DataFrame,
    shape: TableShape,
    sequence_by: SequenceBy = "kafka",
    *,
    changes_keys: bool = True,
    kept_columns: Collection[str] | None = None,
    versions: bool = False,
    filters: bool = False,
    positions: bool = False,
) -> DataFrame:
    """The reduced frame of a decoded one; lazy.

    ``changes_keys``: whether a record may stand for several rows: for an update that comes with its old
    key, or because it holds several events (a plan's ``changes_keys``). False spares the step, and the
    offset alone is the order. ``kept_columns``: what ``_kept`` may name (a plan's ``kept_columns``), None
    where the frame has none.
    Order by ``source`` needs a ``_commit_ts`` in every row event (``EventRules``), and no kept values.
    ``versions``: a key has a row for each commit_ts, as ``history`` says, whatever ``sequence_by``; it needs
    one in every row event too (``EventRules``). ``filters``: whether the frame has ``_unmatched``;
    ``positions``: ``_position``.
    """
    rows = _halves(decoded) if changes_keys else decoded.withColumn("part", F.lit(_WHOLE))
    keys = [column.name for column in shape.key_columns]
    key_names = [f"key_{number}" for number in range(len(keys))]
    reported = (*_OF_THE_EVENT, POSITION) if positions else _OF_THE_EVENT
    output = [*_output(keys, key_names, reported), *([F.col("_unmatched")] if filters else [])]
    unmatched = [F.count_if("_unmatched").alias("_unmatched")] if filters else []
    more = [*([_own_unmatched()] if filters else []), *([F.col(POSITION)] if positions else [])]
    if versions:
        grouped = _prepared(rows, keys, more=more).groupBy(
            "group_hash", *key_names, _moment().alias("moment")
        )
        return grouped.agg(*_aggregates(_first_write(), reported), *unmatched).select(*output)
    order = _order(sequence_by, changes_keys=changes_keys)
    kept = [] if kept_columns is None else [F.col("_kept")]
    groups = _prepared(rows, keys, more=[*kept, *more]).groupBy("group_hash", *key_names)
    aggregates = [*_aggregates(order, reported), *unmatched]
    if sequence_by == "source":
        greatest = F.max(order).alias("greatest")
        return groups.agg(*aggregates, greatest).select(*output, _sequence(F.col("greatest")))
    if kept_columns is None:
        return groups.agg(*aggregates).select(*output)
    names = [column.name for column in shape.columns]
    may_lack = [name for name in names if name in kept_columns and name not in keys]
    if not may_lack:
        nothing = (null(STRINGS).alias("_kept"), F.lit(False).alias("_after_delete"))
        return groups.agg(*aggregates).select(*output, *nothing)
    values = AvailableValues(names, may_lack, order)
    completed = values.completed(groups.agg(*aggregates, *values.aggregates()))
    return completed.select(*output, "_kept", "_after_delete")


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


def _own_unmatched() -> Column:
    """Whether an event is one that its filter took out, counted once, and no bad record since."""
    counted = F.col("_kind").isin(*ROW_KINDS) & (F.col("part") != _DELETE_HALF)
    return (F.col("_unmatched") & counted).alias("_unmatched")


def _prepared(rows: DataFrame, keys: list[str], *, more: Sequence[Column]) -> DataFrame:
    """What is grouped by, and what the group keeps.

    The hash comes first, so that sorting compares one number; rows whose hashes meet are still known
    apart by their keys. What is no row has no key and a hash of its own place: of one topic-partition
    no two offsets have the same hash, since hashing one bigint loses nothing.
    """
    is_row = F.col("_kind").isin(*ROW_KINDS)
    half = F.col("part") == _DELETE_HALF
    key_columns = [F.col("key").getField(name) for name in keys]
    place = F.xxhash64("_topic", "_partition")
    own = F.when(F.col("_kind").isin(*COUNTED_KINDS), F.lit(-1)).otherwise(F.col("_offset"))
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
        half.alias("_half"),
        "_zero_dates",
        "after",
        *more,
        F.when(~is_row | (F.col("_reason").isNotNull() & ~half), detail_of()).alias("_detail"),
    )


def detail_of() -> Column:
    """What a decoded frame says of a record that is no row, or of a row with a warning."""
    return F.struct(
        F.col("_error").alias("error"),
        F.col("_reason").alias("reason"),
        F.col("_schema_key_id").alias("key_id"),
        F.col("_schema_value_id").alias("value_id"),
        F.col("_fields").alias("fields"),
        F.col("_key").alias("key"),
        F.col("_value").alias("value"),
    )


def _aggregates(order: Column, reported: Sequence[str]) -> list[Column]:
    whole = F.when(~F.col("_half"), 1).otherwise(0)
    message = F.when(~F.col("_half") & (F.col("_index") == 0), 1).otherwise(0)
    return [
        F.max_by(F.struct(*reported), order).alias("kept"),
        F.sum(whole).alias("events"),
        F.sum(message).alias("messages"),
        F.max("_offset").alias("max_offset"),
        F.max("_commit_ts").alias("max_commit_ts"),
        F.min("place").alias("first_place"),
        F.max("place").alias("last_place"),
    ]


def _order(sequence_by: SequenceBy, *, changes_keys: bool) -> Column:
    if sequence_by == "kafka" and not changes_keys:
        return F.col("_offset")  # one partition, or the batch is refused; a number is quicker to compare
    writes = (F.col("_op") == UPSERT).alias("writes")
    kafka = (F.col("_partition"), F.col("_offset"), F.col("_index"))
    return F.struct(*kafka, writes) if sequence_by == "kafka" else F.struct("_commit_ts", writes, *kafka)


def _moment() -> Column:
    """What tells a key's versions apart."""
    return F.when(F.col("_op").isin(*ROW_KINDS), F.col("_commit_ts"))


def _first_write() -> Column:
    """Of events of one commit_ts a write stays, and of equal ones the first."""
    first = (-F.col(name) for name in ("_partition", "_offset", "_index"))
    return F.struct(F.col("_op") == UPSERT, *first)


def _sequence(order: Column) -> Column:
    members = {
        "source": F.array(order.getField("_commit_ts")),
        **{name: order.getField(f"_{name}") for name in ("partition", "offset", "index")},
    }
    source, *kafka = (member.alias(name) for name, member in members.items())
    return F.struct(source, order.getField("writes").alias("writes"), *kafka).alias("_seq")


def _output(keys: list[str], key_names: list[str], reported: Sequence[str]) -> list[Column]:
    kept = F.col("kept")
    is_row = kept.getField("_op").isin(*ROW_KINDS)
    key = F.struct(*(F.col(name).alias(key) for name, key in zip(key_names, keys, strict=True)))
    own_event = F.when(is_row & ~kept.getField("_half"), 1).otherwise(0)
    return [
        F.when(is_row, key).alias("key"),
        *(kept.getField(name).alias(name) for name in reported),
        F.col("events").alias("_events"),
        F.when(is_row, F.col("events") - own_event).otherwise(0).alias("_superseded"),
        F.col("messages").alias("_messages"),
        F.col("max_offset").alias("_max_offset"),
        F.col("max_commit_ts").alias("_max_commit_ts"),
        (is_row & (F.col("first_place") != F.col("last_place"))).alias("_mixed"),
    ]


STRINGS: Final = "array<string>"
_LAST_DELETE: Final = "last_delete"


def null(ddl: str) -> Column:
    """A null of a type."""
    return F.lit(None).cast(ddl)


class AvailableValues(NamedTuple):
    """A table's columns, those among them that may be left out, and what a key's events are ordered by."""

    columns: Sequence[str]
    names: Sequence[str]
    order: Column

    def aggregates(self) -> Iterator[Column]:
        """For each column the latest value that was sent, and its place in the order."""
        deleted = F.col("_op") == DELETE
        yield F.max_by(F.col("_kept"), self.order).alias("omitted")
        yield F.max(F.when(deleted, self.order)).alias(_LAST_DELETE)
        for number, name in enumerate(self.names):
            sent = ~deleted & ~F.coalesce(F.array_contains("_kept", name), F.lit(False))
            value = F.struct(F.col("after").getField(name).alias("value"), self.order.alias("at"))
            yield F.max_by(value, F.when(sent, self.order)).alias(_reported(number))

    def completed(self, grouped: DataFrame) -> DataFrame:
        """The groups, their row with what is known, and the names of what is still left out."""
        after = F.col("kept").getField("after")
        reported = {name: self._is_available(number, name) for number, name in enumerate(self.names)}
        row = F.struct(*(self._value(name, after, reported).alias(name) for name in self.columns))
        left = F.array_compact(
            F.array(*(F.when(_is_omitted(name) & ~answer, F.lit(name)) for name, answer in reported.items()))
        )
        kept = F.when(after.isNotNull() & (F.size(left) > 0), left)
        return grouped.withColumns(
            {
                "kept": F.col("kept").withField("after", F.when(after.isNotNull(), row)),
                "_kept": kept,
                "_after_delete": kept.isNotNull() & F.col(_LAST_DELETE).isNotNull(),
            }
        )

    def _value(self, name: str, after: Column, reported: Mapping[str, Column]) -> Column:
        own = after.getField(name)
        if name not in reported:
            return own
        return F.when(reported[name], F.col(_reported(self.names.index(name))).getField("value")).otherwise(
            own
        )

    def _is_available(self, number: int, name: str) -> Column:
        at = F.col(_reported(number)).getField("at")
        since_delete = F.col(_LAST_DELETE).isNull() | (at > F.col(_LAST_DELETE))
        return _is_omitted(name) & at.isNotNull() & since_delete


def _is_omitted(name: str) -> Column:
    return F.coalesce(F.array_contains("omitted", name), F.lit(False))


def _reported(number: int) -> str:
    return f"reported_{number}"


# A log's rows are not shuffled: as many files as the topic has partitions would be many small ones.
_ROWS_A_FILE: Final = 100_000


def staged_frame(decoded: DataFrame, columns: Decode, settings: TableConfig) -> DataFrame:
    """The rows to apply and the counts of the rest, as ``batch.frame_reduction`` lays them out; lazy."""
    positions = "position" in settings.metadata_columns and POSITION in decoded.columns
    if settings.mode == "append":
        return append_frame(
            decoded,
            columns.shape,
            keeps_values=columns.keeps_values,
            metadata=settings.metadata_columns.values(),
            positions=positions,
        )
    return reduce_frame(
        decoded,
        columns.shape,
        settings.sequence_by,
        changes_keys=columns.changes_keys,
        kept_columns=columns.kept_columns if columns.keeps_values else None,
        versions=settings.mode == "history",
        filters=settings.layout.row_filter is not None,
        positions=positions,
    )


def rows_to_write(staged: DataFrame, rows: int, settings: TableConfig) -> DataFrame:
    """The rows of a staged frame that the target takes, in as few parts as are worth a file each."""
    found = rows_to_apply(staged)
    return found.coalesce(1 + rows // _ROWS_A_FILE) if settings.mode == "append" else found


_BEFORE: Final = "before"
_AFTER: Final = "after"


def append_frame(
    decoded: DataFrame,
    shape: TableShape,
    *,
    keeps_values: bool = False,
    metadata: Collection[str] = (),
    positions: bool = False,
) -> DataFrame:
    """The rows of a decoded frame, of a plan that ``logs``; lazy.

    ``shape`` is the plan's, and so is ``keeps_values``: whether the frame has ``_kept``. ``metadata``: names
    of columns of the shape that are no values of the source's. ``positions``: whether it has ``_position``.
    """
    known = F.col("before").isNotNull() | F.col("old_key").isNotNull()
    both = (F.col("_change") == "update") & known
    images = F.when(both, F.array(F.lit(_BEFORE), F.lit(_AFTER))).otherwise(F.array(F.lit(_AFTER)))
    rows = decoded.withColumn("image", F.explode(images))
    is_row = F.col("_kind").isin(*ROW_KINDS, TRUNCATE)
    old = F.col("image") == _BEFORE
    names = [column.name for column in log_shape(shape).key_columns]
    place = (F.col("_partition"), F.col("_offset"), _row_number(old))
    key = F.struct(*(value.alias(name) for name, value in zip(names, place, strict=True)))
    counted = F.when(old, 0).otherwise(1)
    return rows.select(
        F.when(is_row, F.lit(UPSERT)).otherwise(F.col("_kind")).alias("_op"),
        F.when(is_row, key).alias("key"),
        F.when(is_row, _log_row(shape, old, metadata, keeps_values=keeps_values)).alias("after"),
        "_topic",
        "_partition",
        "_offset",
        "_commit_ts",
        old.alias("_half"),
        counted.cast("bigint").alias("_events"),
        F.lit(0).cast("bigint").alias("_superseded"),
        F.when(F.col("_index") == 0, counted).otherwise(0).cast("bigint").alias("_messages"),
        F.col("_offset").alias("_max_offset"),
        F.col("_commit_ts").alias("_max_commit_ts"),
        F.lit(False).alias("_mixed"),
        F.when(~old, F.col("_zero_dates")).alias("_zero_dates"),
        F.when(~is_row | (F.col("_reason").isNotNull() & ~old), detail_of()).alias("_detail"),
        *((POSITION,) if positions else ()),
    )


def _row_number(old: Column) -> Column:
    """A record's rows in the order they took effect; an update with its old row takes both places."""
    first = F.col("_index") * IMAGES_AN_EVENT
    updates = F.col("_change") == "update"
    return F.when(~old & updates, first + 1).otherwise(first).cast("int")


def _log_row(shape: TableShape, old: Column, metadata: Collection[str], *, keeps_values: bool) -> Column:
    kept = F.col("_kept") if keeps_values else null(STRINGS)
    sent = [column.name for column in shape.columns if not column.key and column.name not in metadata]
    own = {
        OP: F.when(old, F.lit(PREIMAGE)).otherwise(_word()),
        COMMIT_TS: F.col("_commit_ts"),
        PARTITION: F.col("_partition"),
        OFFSET: F.col("_offset"),
        INDEX: _row_number(old),
        UNAVAILABLE: F.to_json(_unavailable(sent, old, kept)),
    }
    values = [
        own[column.name] if column.name in own else _value(column, shape, old)
        for column in log_shape(shape).columns
    ]
    names = [column.name for column in log_shape(shape).columns]
    return F.struct(*(value.alias(name) for name, value in zip(names, values, strict=True)))


def _word() -> Column:
    """What the row is; a truncate has no ``_change``."""
    said = F.coalesce("_change", "_kind")
    return F.coalesce(*(F.when(said == theirs, F.lit(ours)) for theirs, ours in WORDS.items()))


def _value(column: ShapeColumn, shape: TableShape, old: Column) -> Column:
    """A column of the image; of a row known by its key alone, the key's columns."""
    image = F.when(_shows_old(old), F.col("before").getField(column.name)).otherwise(
        F.col("after").getField(column.name)
    )
    if column.name not in {one.name for one in shape.key_columns}:
        return image
    key = F.when(old, F.col("old_key").getField(column.name)).otherwise(F.col("key").getField(column.name))
    return F.when(_key_alone(old), key).otherwise(image)


def _shows_old(old: Column) -> Column:
    return old | (F.col("_change") == "delete")


def _key_alone(old: Column) -> Column:
    """Whether nothing but the key is known of the row; a truncate has not even that."""
    return F.coalesce(_shows_old(old) & F.col("before").isNull(), F.lit(False))


def _unavailable(names: Sequence[str], old: Column, kept: Column) -> Column:
    """The names of the columns whose value the source did not send; null where it sent all.

    ``names`` are those that the key alone does not tell.
    """
    others = [F.lit(name) for name in names]
    left = F.when(_shows_old(old), F.col("_before_kept")).otherwise(kept)
    return F.when(_key_alone(old), F.array(*others)).otherwise(left) if others else left


# Mixed keys shown in an error, of each topic-partition.
_SHOWN_KEYS: Final = 3


def summarise(reduced: DataFrame, shape: TableShape) -> BatchSummary:
    """What a reduced frame holds."""
    names = reduced.columns
    unmatched = F.sum("_unmatched") if "_unmatched" in names else F.lit(0)
    aggregates = [*_count_aggregates(shape, keeps_values="_kept" in names), unmatched.alias("unmatched")]
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


def _count_aggregates(shape: TableShape, *, keeps_values: bool) -> list[Column]:
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
