"""Rows without the columns that a policy leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  (PySpark's own name for it)

from tidesink.sinks.schema_policy import Judgement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def leaving_out(frame: DataFrame, judged: Judgement) -> DataFrame:
    """The rows of a reduced frame with the columns that the target gets."""
    if not judged.left_out:
        return frame
    after = F.col("after")
    given = [after.getField(column.name).alias(column.name) for column in judged.given.columns]
    changed = {"after": F.when(after.isNotNull(), F.struct(*given))}
    if "_kept" in frame.columns:
        left_out = F.array(*(F.lit(name) for name in judged.left_out))
        changed["_kept"] = F.array_except("_kept", left_out)
    return frame.withColumns(changed)
