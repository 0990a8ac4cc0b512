"""Metadata columns: what is known of the event that a stored row comes from, put into the rows of a batch.

The reduced frame knows it of the event that stays, so that nothing but the wire's word for what happened
travels inside the rows. A delete has no row: under ``deletes: soft`` it writes these columns alone. In a
change log what happened is said in the log's own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.sinks.batch.decoded_frame import POSITION
from tidesink.sinks.batch.records import DELETE, UPSERT
from tidesink.sinks.change_log import OP
from tidesink.sinks.told_values_spark import null
from tidesink.typemap.target_schema import MetadataKind, ShapeColumn, TableShape, metadata_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidesink.config import TableConfig


def unstamped(names: Mapping[MetadataKind, str]) -> list[Column]:
    """The places of the metadata columns in a decoded row, with what only its event tells."""
    places = {column.name: null(column.spark) for column in metadata_columns(names)}
    if "op" in names:
        places[names["op"]] = F.coalesce("_wire_op", F.lit(UPSERT))
    return [place.alias(name) for name, place in places.items()]


def on_delete(settings: TableConfig, shape: TableShape) -> tuple[str, ...]:
    """The columns of ``shape`` that a delete of the table writes (``ReducedBatch.on_delete``)."""
    names = settings.metadata_columns.values() if settings.deletes == "soft" else ()
    return tuple(name for name in names if name.lower() in shape.by_name)


def stamped(rows: DataFrame, shape: TableShape, settings: TableConfig, batch: int) -> DataFrame:
    """The rows of a reduced frame with the metadata asked for; ``batch`` is the batch's number."""
    names = settings.metadata_columns
    if not names:
        return rows
    told = {name: _value(kind, settings, batch) for kind, name in names.items() if kind != "position"}
    if "position" in names:
        told[names["position"]] = _position(rows)
    fields = (_field(column, told).alias(column.name) for column in shape.columns)
    upserts = F.col("_op") == UPSERT
    written = upserts | (F.col("_op") == DELETE) if settings.deletes == "soft" else upserts
    return rows.withColumn("after", F.when(written, F.struct(*fields)))


def _field(column: ShapeColumn, told: Mapping[str, Column]) -> Column:
    if column.name in told:
        return told[column.name].cast(column.spark)
    return F.col("after").getField(column.name)


def _position(rows: DataFrame) -> Column:
    # TiCDC's place in TiDB's log is the commit_ts: frames of its own codecs have that alone.
    return F.col(POSITION if POSITION in rows.columns else "_commit_ts")


def _value(kind: MetadataKind, settings: TableConfig, batch: int) -> Column:
    fixed = {"database": settings.table.schema, "table": settings.table.name, "batch": batch}
    if kind in fixed:
        return F.lit(fixed[kind])
    if kind == "op":
        said = F.col("after").getField(OP if settings.mode == "append" else settings.metadata_columns[kind])
        return F.when(F.col("_op") == DELETE, F.lit(DELETE)).otherwise(said)
    return F.col(f"_{kind}")
