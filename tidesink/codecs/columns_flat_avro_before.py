"""The old row of flat-avro records, and what happened to it, for tables in mode ``append``.

A record has it where new TiCDC writes ``avro-include-before-value``; what happened is in ``_tidb_op``, which
is there with the TiDB extension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.columns_avro_record import BeforeColumns, Images, RecordColumns
from tidesink.codecs.columns_faults import STRINGS, null
from tidesink.typemap.target_schema import TableShape

_CHANGES: Final = {"c": "insert", "u": "update", "d": "delete"}


def logged_before(records: Sequence[RecordColumns], shape: TableShape) -> list[Column]:
    """A step that adds ``before_image``, ``before_kept`` and ``row_change``."""
    before = Images(BeforeColumns.of(records)).struct(shape.ddl)
    deleted = F.col("op") == "d"
    bare = F.col("value_bytes").isNull() | F.col("marked")
    said = F.coalesce(*(F.when(F.col("op") == op, F.lit(change)) for op, change in _CHANGES.items()))
    told = F.when(bare, F.lit("delete")).otherwise(F.coalesce(said, F.lit("upsert")))
    return [
        F.col("*"),
        # A delete's record repeats the old row outside.
        F.when(deleted, F.coalesce(before, F.col("image"))).otherwise(before).alias("before_image"),
        null(STRINGS).alias("before_kept"),
        told.alias("row_change"),
    ]
