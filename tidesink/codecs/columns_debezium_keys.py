"""The key of a Debezium row, and the first of its values that could not be read, however it was written.

The frame has: key_bytes, op, image, record_key, before_key; for ``old_key`` row_key too, and before_image for
``value_fault`` of plans that log.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.columns_debezium_before import before_fault
from tidesink.codecs.columns_debezium_faults import is_delete
from tidesink.codecs.columns_debezium_record import Images, RecordColumns
from tidesink.codecs.columns_faults import first_fault
from tidesink.typemap.target_schema import TableShape


def row_key(shape: TableShape, *, own_key: bool) -> Column:
    """The key by the new row; of a delete by the record's key or, where that is not the table's, the old row.

    ``own_key``: the table's key is the key record's.
    """
    image = F.col("image")
    fields = (image.getField(column.name).alias(column.name) for column in shape.key_columns)
    image_key = F.when(image.isNotNull(), F.struct(*fields))
    gone = F.when(F.col("key_bytes").isNotNull(), F.col("record_key")).otherwise(F.col("before_key"))
    if not own_key:
        gone = F.coalesce(F.col("before_key"), F.col("record_key"))
    return F.when(is_delete(), gone).otherwise(image_key)


def old_key() -> Column:
    """The key before an update that changed it, else null."""
    changed = ~is_delete() & ~F.col("before_key").eqNullSafe(F.col("row_key"))
    return F.when(changed, F.col("before_key"))


def value_fault(keys: Sequence[RecordColumns], values: Sequence[RecordColumns], *, logs: bool) -> Column:
    """The first value of the key, the new row and, where it is asked for, the old row that is no value."""
    bad = first_fault([*Images(keys).faults("record_key"), *Images(values).faults("image")])
    return F.coalesce(bad, before_fault(values)) if logs else bad
