"""Target columns of each table mode and route: upsert, append (a change log), history, and shards.

Append: each row is one image (before or after) of one event (``batch.change_log``).

History: each row is one version of a source row. A key's events are ordered by commit_ts, and only one event
per key and commit_ts counts. A write wins over a delete at the same commit_ts, because TiCDC splits an update
into a delete and an insert with one commit_ts. Of several writes, or several deletes, the first in Kafka
wins, because the others are the same event sent again. A write begins a version that is valid until the key's
next event. A delete without a version to end leaves a marker, which is a row that ends when it begins. So the
table depends only on the *set* of events: how they are batched, ordered or repeated makes no difference.

A row read by a snapshot also begins a version, at the commit_ts P of the read. It is marked in
``READ_COLUMN`` because the version's true beginning is unknown. Only a key's read with the least P counts,
and only if no event of the key is at or before P. An event at or before P, also one that arrives later,
removes the read's version. At one commit_ts a read sorts before a delete, and a delete before a write. A read
that does not count is never needed later, so the table depends only on the set of events and reads.

``targets.lake.versions`` implements the same rules on arrays, ``targets.sql`` in SQL.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from tidesink.config.models import LONGEST_SHARD, Destination
from tidesink.errors import SchemaRefusedError
from tidesink.events import ColumnType, Op, fold_name
from tidesink.typemap.target_schema import Shard, TargetColumn, TargetSchema, default_name, without

if TYPE_CHECKING:
    from tidesink.config import TableConfig


def names_of(settings: TableConfig) -> HistoryNames | None:
    """Return the configured names of a history's validity columns; None if the mode is not ``history``."""
    if settings.mode != "history":
        return None
    return HistoryNames(settings.history.valid_from, settings.history.valid_to, settings.history.current)


def kept_shape(shape: TargetSchema, settings: TableConfig) -> TargetSchema:
    """Return the columns and key that the target table needs under the source table's mode.

    Raises:
        SchemaRefusedError: a source column has the name of a column that the mode adds.
    """
    names = names_of(settings)
    return row_shape(shape, settings) if names is None else history_shape(shape, names)


def first_shape(shape: TargetSchema, settings: TableConfig) -> TargetSchema:
    """Return the columns and key (``kept_shape``) with which a target table is created.

    A column that may be an excluded column with a new name is not among them. The worker checks such columns
    when it later adds them to the table.

    Raises:
        SchemaRefusedError: a source column has the name of a column that the mode adds.
    """
    excluded_among = (c.name for c in shape.columns if settings.projection.may_be_excluded(c))
    return kept_shape(without(shape, excluded_among), settings)


def row_shape(shape: TargetSchema, settings: TableConfig) -> TargetSchema:
    """Return the columns and key of a batch's rows under the table's mode.

    Under ``history`` they are those of the source table, and the target turns the rows into versions.

    Raises:
        SchemaRefusedError: a source column has the name of a column that a change log adds.
    """
    return log_shape(shape) if settings.mode == "append" else shape


# A change log

OP: Final = default_name("op")
COMMIT_TS: Final = default_name("commit_ts")
PARTITION: Final = default_name("partition")
OFFSET: Final = default_name("offset")
INDEX: Final = "_tidesink_index"
UNAVAILABLE: Final = "_tidesink_unavailable"

PREIMAGE: Final = "update_preimage"
POSTIMAGE: Final = "update_postimage"
# Values of the change log's column ``OP`` by the event's operation, for the row's image after the event.
WORDS: Final = {
    Op.INSERT.value: "insert",
    Op.UPDATE.value: POSTIMAGE,
    Op.DELETE.value: "delete",
    Op.UPSERT.value: "upsert",
    Op.TRUNCATE.value: "truncate",
}
# Each event reserves two index values in its record: the images before and after.
IMAGES_AN_EVENT: Final = 2

# These come first because Delta and Iceberg keep statistics of a table's first columns only.
_OWN: Final = (
    TargetColumn(PARTITION, ColumnType("int", sql="partition of the topic"), "int", key=True),
    TargetColumn(OFFSET, ColumnType("bigint", sql="offset of the record"), "bigint", key=True),
    TargetColumn(INDEX, ColumnType("int", sql="number of the row in its record"), "int", key=True),
    TargetColumn(OP, ColumnType("varchar", length=16, sql="operation, such as insert or delete"), "string"),
    TargetColumn(COMMIT_TS, ColumnType("bigint", sql="commit_ts at the source"), "bigint"),
    TargetColumn(
        UNAVAILABLE, ColumnType("text", sql="JSON list of columns that the source did not send"), "string"
    ),
)


def log_shape(shape: TargetSchema) -> TargetSchema:
    """Return the columns and key of a table's change log.

    The key is the row's position in the topic (partition, offset, index), not the source table's key. If
    ``shape`` already describes a change log, it is returned unchanged.

    Raises:
        SchemaRefusedError: the source table, or `metadata` in the config, has a column with one of the names
            that the change log adds.
    """
    if shape.columns[: len(_OWN)] == _OWN:
        return shape
    taken = [column.name for column in _OWN if column.name in shape.by_name]
    if taken:
        raise SchemaRefusedError(
            f"The table has a column {', '.join(taken)}, but tidesink adds a column of that name to a change "
            "log. Rename the source's column, or choose another name under `metadata`.",
            table=str(shape.table),
        )
    columns = tuple(replace(column, key=False) for column in shape.columns)
    keys = tuple(column.name for column in _OWN if column.key)
    return replace(shape, columns=(*_OWN, *columns), keys=keys)


# The exact commit_ts of a version's beginning (inclusive) and end (exclusive; null while it is current).
FROM_COLUMN: Final = "_tidesink_from_ts"
TO_COLUMN: Final = "_tidesink_to_ts"
# True if the version begins at the moment when a snapshot read the row. Null means false: rows that were
# written before tables had this column have null.
READ_COLUMN: Final = "_tidesink_from_read"


class HistoryNames(NamedTuple):
    """Names of the columns that show readers when a version was valid."""

    valid_from: str = "valid_from"
    valid_to: str = "valid_to"
    current: str = "current"

    @property
    def own(self) -> tuple[str, ...]:
        """Names of all columns that ``mode: history`` adds to the source's columns."""
        return (*self, FROM_COLUMN, TO_COLUMN, READ_COLUMN)


def history_shape(shape: TargetSchema, names: HistoryNames) -> TargetSchema:
    """Return the columns and key of a table's history.

    The history's own columns come right after the key, because lakes keep the least and greatest values per
    file only for a table's first columns. The commit_ts at which a version begins is part of the key.

    Raises:
        SchemaRefusedError: the source has a column of one of the names, or the table has no key.
    """
    if not shape.keys:
        raise SchemaRefusedError(
            "The table has no key, and a history needs one to match the versions of a row. Set `keys` in the "
            "config to columns that identify a row.",
            table=str(shape.table),
        )
    clashing = [name for name in names.own if fold_name(name) in shape.by_name]
    if clashing:
        raise SchemaRefusedError(
            f"The source has a column {', '.join(clashing)}, but the history adds a column of that name. "
            "Choose another name for the history's column under `history` in the config.",
            table=str(shape.table),
        )
    last = max(index for index, column in enumerate(shape.columns) if column.key) + 1
    columns = (*shape.columns[:last], *own_columns(names), *shape.columns[last:])
    return replace(shape, columns=columns, keys=tuple(column.name for column in columns if column.key))


def is_history(shape: TargetSchema) -> bool:
    """Return True if ``shape`` describes a table with ``mode: history`` (``history_shape``)."""
    return FROM_COLUMN in shape.by_name


def own_columns(names: HistoryNames) -> tuple[TargetColumn, ...]:
    """Return the columns that ``mode: history`` adds to the source's columns."""
    instant, number, mark = ColumnType("timestamp", fsp=3), ColumnType("bigint"), ColumnType("boolean")
    return (
        TargetColumn(FROM_COLUMN, number, "bigint", "commit_ts at which the version begins", key=True),
        TargetColumn(TO_COLUMN, number, "bigint", "commit_ts at which the version ended"),
        TargetColumn(names.valid_from, instant, "timestamp", "time at which the version begins"),
        TargetColumn(names.valid_to, instant, "timestamp", "time at which the version ended"),
        TargetColumn(names.current, mark, "boolean", "true: this is the current version of the row"),
        TargetColumn(READ_COLUMN, mark, "boolean", "true: the version begins with a snapshot's read"),
    )


_SHARD_TYPE = ColumnType("varchar", length=LONGEST_SHARD, sql=f"varchar({LONGEST_SHARD})")


def routed_shape(shape: TargetSchema, destination: Destination) -> TargetSchema:
    """Return a table's columns and key with the table name that its route sets for the target.

    If the target table is shared, the shard column is added as the last column and the last key column.

    Raises:
        SchemaRefusedError: the source has a column with the shard column's name.
    """
    named = replace(shape, table=destination.table, origin=shape.source)
    if destination.shard is None:
        return named
    if fold_name(destination.shard.column) in shape.by_name:
        raise SchemaRefusedError(
            f"The source has a column {destination.shard.column}, which is also the name of the route's "
            "shard column. Set `shard-column` to another name.",
            table=str(shape.source),
            column=destination.shard.column,
        )
    # Last in the key, because files and pages are pruned by the range of the key's first column.
    keys = (*shape.keys, destination.shard.column) if shape.keys else ()
    return replace(
        named, columns=(*shape.columns, shard_column(destination.shard)), keys=keys, shard=destination.shard
    )


def shard_column(shard: Shard) -> TargetColumn:
    """Return the shard column of a shared table, which names each row's source table."""
    return TargetColumn(shard.column, _SHARD_TYPE, "string", key=True)
