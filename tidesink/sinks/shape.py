"""A table's shape at the target, under the sinks' own name.

The classes stand in ``typemap.shape``, since the codecs' column expressions cast into a shape and may
not import the sinks.
"""

from tidesink.typemap.target_schema import (
    ShapeColumn,
    Shard,
    TableShape,
    columns_ddl,
    key_change,
    merge_shape,
    quoted,
    shape_of,
    wider_ddl,
    without,
)

__all__ = [
    "ShapeColumn",
    "Shard",
    "TableShape",
    "columns_ddl",
    "key_change",
    "merge_shape",
    "quoted",
    "shape_of",
    "wider_ddl",
    "without",
]
