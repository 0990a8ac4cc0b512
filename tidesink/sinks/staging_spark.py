"""What becomes of a decoded batch by the table's mode: one row a key, or every event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidesink.sinks.append_spark import append_frame
from tidesink.sinks.batch.decoded_frame import POSITION
from tidesink.sinks.reduce_spark import reduce_frame, rows_to_apply

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidesink.config import TableConfig
    from tidesink.sinks.batch.decoded_frame import Decode

# A log's rows are not shuffled: as many files as the topic has partitions would be many small ones.
_ROWS_A_FILE: Final = 100_000


def staged_frame(decoded: DataFrame, columns: Decode, settings: TableConfig) -> DataFrame:
    """The rows to apply and what is told of the rest, as ``reduce_spark`` lays them out; lazy."""
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
