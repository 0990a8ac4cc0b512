"""The columns of a table in mode ``append``: the source's, and before them what tells each change apart.

One row is one image of one event, as Delta's change data feed has them: ``insert``, ``delete``,
``update_preimage`` and ``update_postimage``, ``upsert`` where the wire does not tell an insert from an update
(flat-avro without the TiDB extension, a connector's snapshot), ``truncate``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidesink.errors import SchemaRefusedError
from tidesink.events import ColumnType, Op
from tidesink.sinks.shape import ShapeColumn, TableShape
from tidesink.typemap.target_schema import default_name

OP: Final = default_name("op")
COMMIT_TS: Final = default_name("commit_ts")
PARTITION: Final = default_name("partition")
OFFSET: Final = default_name("offset")
INDEX: Final = "_tidesink_index"
UNAVAILABLE: Final = "_tidesink_unavailable"

PREIMAGE: Final = "update_preimage"
POSTIMAGE: Final = "update_postimage"
# The log's word for each of the wire's, of the image that is the row after the event.
WORDS: Final = {
    Op.INSERT.value: "insert",
    Op.UPDATE.value: POSTIMAGE,
    Op.DELETE.value: "delete",
    Op.UPSERT.value: "upsert",
    Op.TRUNCATE.value: "truncate",
}
# Rows of one record are numbered in the order they took effect; an event has two places.
IMAGES_AN_EVENT: Final = 2


def log_shape(shape: TableShape) -> TableShape:
    """The shape of a table's change log: a row is named by its place in the topic, never by the source's key.

    A log's own shape is given back as it is.

    Raises:
        SchemaRefusedError: the source, or the table's metadata, has a column with one of the names.
    """
    if shape.columns[: len(_OWN)] == _OWN:
        return shape
    taken = [column.name for column in _OWN if column.name in shape.by_name]
    if taken:
        raise SchemaRefusedError(
            f"the table has a column {', '.join(taken)}, a name that tidesink gives a column of its own in a "
            "log: rename it, or name it otherwise under metadata",
            table=str(shape.table),
        )
    columns = tuple(replace(column, key=False) for column in shape.columns)
    keys = tuple(column.name for column in _OWN if column.key)
    return replace(shape, columns=(*_OWN, *columns), keys=keys)


# First, since Delta and Iceberg keep statistics of a table's first columns alone.
_OWN: Final = (
    ShapeColumn(PARTITION, ColumnType("int", sql="partition of the topic"), "int", key=True),
    ShapeColumn(OFFSET, ColumnType("bigint", sql="offset of the record"), "bigint", key=True),
    ShapeColumn(INDEX, ColumnType("int", sql="which row of the record, in order"), "int", key=True),
    ShapeColumn(OP, ColumnType("varchar", length=16, sql="what the row is, as insert or delete"), "string"),
    ShapeColumn(COMMIT_TS, ColumnType("bigint", sql="commit_ts at the source"), "bigint"),
    ShapeColumn(
        UNAVAILABLE, ColumnType("text", sql="JSON: the columns whose value was not sent, null here"), "string"
    ),
)
