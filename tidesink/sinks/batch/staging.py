"""The rows of a decoded frame as the target's mode takes them: reduced, or every event as a row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.sinks.batch.decoded_frame import POSITION
from tidesink.sinks.batch.frame_reduction import STRINGS, detail_of, null, reduce_frame, rows_to_apply
from tidesink.sinks.batch.modes import (
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
from tidesink.sinks.batch.records import ROW_KINDS, TRUNCATE, UPSERT
from tidesink.typemap.target_schema import ShapeColumn, TableShape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidesink.config import TableConfig
    from tidesink.sinks.batch.decoded_frame import Decode


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
