"""The old row of canal-json messages, and what happened to it, for tables in mode ``append``."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.columns_canal_json_row import RowColumns
from tidesink.codecs.columns_faults import STRINGS, null


def logged_before(rows: RowColumns) -> list[list[Column]]:
    """Steps that add ``before_image``, ``before_kept`` and ``row_change``.

    A delete's ``data`` is the row that was there; under ``delete-only-output-handle-key-columns`` it is the
    key alone, and then no row is known.
    """
    kind, old = F.col("message").getField("type"), F.col("old_row")
    keys = F.array(*(F.lit(column.name) for column in rows.shape.key_columns)).cast(STRINGS)
    whole = F.size(F.array_except("names", keys)) > 0
    updated = F.when(F.col("old_wire").isNotNull(), rows.image("old_wire"))
    return [
        [F.col("*"), F.when(old.isNotNull(), rows.old_wire(old)).alias("old_wire")],
        [
            F.col("*"),
            F.when((kind == "DELETE") & whole, F.col("image")).otherwise(updated).alias("before_image"),
            null(STRINGS).alias("before_kept"),
            F.lower(kind).alias("row_change"),
        ],
    ]
