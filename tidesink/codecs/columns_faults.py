"""What is wrong with a record, as a column; and the decoded frame's own columns, the same in each codec."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.columns_base import BAD, DDL, DELETE, UPSERT
from tidesink.errors import TidesinkError, UnnamedRowError
from tidesink.typemap.target_schema import TableShape

_FAULT: Final = "struct<kind: string, error: string, reason: string>"
STRINGS: Final = "array<string>"
# Between the names of columns, which have none of it.
BETWEEN: Final = "\x01"
# Debezium's and flat-avro's letters, canal-json's words. ``r``, a row as a snapshot found it, tells neither.
WIRE_OPS: Final = {"c": "insert", "u": "update", "INSERT": "insert", "UPDATE": "update"}


def fault(kind: str | None, error: type[TidesinkError] | None = None, reason: str | Column = "") -> Column:
    """A record that is no row to apply: the kind it is instead and, for a bad one, why. None: no fault."""
    if kind is None:
        return F.lit(None).cast(_FAULT)
    why = F.lit(reason) if isinstance(reason, str) else reason
    name = F.lit(error.__name__ if error else None).cast("string")
    return F.struct(F.lit(kind).alias("kind"), name.alias("error"), why.alias("reason"))


def first_fault(faults: Iterable[tuple[Column, Column]]) -> Column:
    """The fault of the first condition that holds, else null. One CASE, so that the rest is not looked at."""
    chosen: Column | None = None
    for condition, found in faults:
        chosen = F.when(condition, found) if chosen is None else chosen.when(condition, found)
    return fault(None) if chosen is None else chosen


def any_of(conditions: Iterable[Column]) -> Column:
    """Whether one of the conditions holds; never null.

    For as many as a table has columns: Spark takes a chain of a thousand ORs apart anew at each of them.
    """
    return F.coalesce(
        F.lit(None).cast("boolean"), *(F.when(one, F.lit(True)) for one in conditions)
    ).isNotNull()


def names_where(found: Sequence[tuple[Column, str]]) -> Column:
    """The names whose condition holds; null where none does."""
    if not found:
        return null(STRINGS)
    # Functions over arrays have no generated code, and would slow down every row's whole stage.
    names = F.concat_ws(BETWEEN, *(F.when(condition, F.lit(name)) for condition, name in found))
    return F.when(any_of(condition for condition, _ in found), F.split(names, BETWEEN))


def any_null(struct: str, names: Sequence[str]) -> Column:
    """True where one of a struct's fields, or the struct, is null; of no fields none is."""
    return any_of(F.col(struct).getField(name).isNull() for name in names)


def null(ddl: str) -> Column:
    """A null of a type."""
    return F.lit(None).cast(ddl)


def raw_columns() -> list[Column]:
    """Where a record of a raw frame is, and its bytes: what each plan begins with."""
    return [
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("key").alias("key_bytes"),
        F.col("value").alias("value_bytes"),
    ]


def output_columns(
    shape: TableShape,
    *,
    key_id: Column | None = None,
    value_id: Column | None = None,
    fields: Column | None = None,
    warning: Column | None = None,
    keeps: Column | None = None,
    said: Column | None = None,
) -> list[Column]:
    """The decoded frame (``columns_base``), of a frame whose records are read and judged.

    That frame has: _topic, _partition, _offset, key_bytes, value_bytes, event_ts, control_ts, image, fault,
    row_index, row_kind, row_key, row_old_key, row_zero_dates.
    ``warning`` is about a row that is applied, ``keeps`` its ``_kept``. ``said``: what the wire says happened
    to a row, in its own word (``WIRE_OPS``).
    """
    wrong, is_row = F.col("fault"), F.col("fault").isNull()
    kind = F.coalesce(wrong.getField("kind"), F.col("row_kind"))
    kept = wrong.getField("kind").isin(BAD, DDL)
    upserts = is_row & (F.col("row_kind") == UPSERT)
    key_ddl, ddl = f"struct<{shape.key_ddl}>", f"struct<{shape.ddl}>"
    return [
        F.col("_topic"),
        F.col("_partition"),
        F.col("_offset"),
        F.col("row_index").cast("int").alias("_index"),
        kind.alias("_kind"),
        F.coalesce(F.col("event_ts"), F.col("control_ts")).alias("_commit_ts"),
        wrong.getField("error").alias("_error"),
        F.when(is_row, null("string") if warning is None else warning)
        .otherwise(wrong.getField("reason"))
        .alias("_reason"),
        F.when(upserts, F.col("row_zero_dates")).cast(STRINGS).alias("_zero_dates"),
        F.when(~is_row, null("bigint") if key_id is None else key_id).alias("_schema_key_id"),
        F.when(~is_row, null("bigint") if value_id is None else value_id).alias("_schema_value_id"),
        F.when(~is_row, null(STRINGS) if fields is None else fields).alias("_fields"),
        F.when(kept, F.col("key_bytes")).alias("_key"),
        F.when(kept, F.col("value_bytes")).alias("_value"),
        F.when(is_row, F.col("row_key")).cast(key_ddl).alias("key"),
        F.when(is_row, F.col("row_old_key")).cast(key_ddl).alias("old_key"),
        F.when(upserts, F.col("image")).cast(ddl).alias("after"),
        F.when(upserts, null("string") if said is None else _wire_op(said)).alias("_wire_op"),
        *(() if keeps is None else (F.when(upserts, keeps).cast(STRINGS).alias("_kept"),)),
    ]


def log_columns(shape: TableShape) -> list[Column]:
    """What a plan that ``logs`` selects besides.

    The judged frame then has row_change, before_image and before_kept besides.
    """
    is_row = F.col("fault").isNull()
    return [
        F.when(is_row, F.col("row_change")).alias("_change"),
        F.when(is_row, F.col("before_image")).cast(f"struct<{shape.ddl}>").alias("before"),
        F.when(is_row, F.col("before_kept")).cast(STRINGS).alias("_before_kept"),
    ]


def unnamed_delete(gone: Column, shape: TableShape) -> list[tuple[Column, Column]]:
    """A delete from a table without a key that does not have the row: nothing says which one it is of.

    ``gone``: whether the record is a delete.
    """
    if shape.keys:
        return []
    reason = (
        "a delete from a table without a key, and without the row that was deleted: have the producer write "
        "it (TiCDC: canal-json, or avro-include-before-value; Debezium: REPLICA IDENTITY FULL)"
    )
    lost = F.coalesce(gone, F.lit(False)) & F.col("before_image").isNull()
    return [(lost, fault(BAD, UnnamedRowError, reason))]


def _wire_op(said: Column) -> Column:
    return F.coalesce(*(F.when(said == word, F.lit(op)) for word, op in WIRE_OPS.items()))


def deletes(condition: Column) -> Column:
    """The kind of a row by whether it is a delete."""
    return F.when(condition, DELETE).otherwise(UPSERT)
