"""What a table's mode and route make of its columns: upsert, append (a change log), history, shards.

Append: one row is one image of one event (``batch.change_log``).

History: every version of a row is a row. A key's events are ordered by (commit_ts, a delete before a
write). Of several at one commit_ts one counts: a write before a delete, since TiCDC splits an update into a
delete and an insert of one commit_ts, and of equal ones the first in Kafka, since the others are that one
sent again. A write begins a version that holds until the key's next event. A delete that ends no version
leaves a mark, a row without duration. So the table is a function of the *set* of events, however they were
cut into batches, in whatever order and however often they came.

A row that a snapshot read begins a version, too: at the moment P of the read, marked in ``READ_COLUMN``,
since its true beginning is not known. Of the reads of a key the least P counts, and only where no event of
the key is at or before it. What is left out then is never missed, so that the table is a function of the set
of events and reads. An event at or before P takes the read's version away. At one commit_ts a read ranks
before a delete, and that before a write.

``targets.lake`` has the same law on arrays (``versions``) and on frames (``merge``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from tidesink.config.models import LONGEST_SHARD, Destination
from tidesink.errors import SchemaRefusedError
from tidesink.events import ColumnType, Op, fold_name
from tidesink.typemap.target_schema import ShapeColumn, Shard, TableShape, default_name, without

if TYPE_CHECKING:
    from tidesink.config import TableConfig


def names_of(settings: TableConfig) -> HistoryNames | None:
    """The columns of time of a history; None in another mode."""
    if settings.mode != "history":
        return None
    return HistoryNames(settings.history.valid_from, settings.history.valid_to, settings.history.current)


def kept_shape(shape: TableShape, settings: TableConfig) -> TableShape:
    """The shape of what the target keeps of a table.

    Raises:
        SchemaRefusedError: a column has the name of one that the mode adds.
    """
    names = names_of(settings)
    return row_shape(shape, settings) if names is None else history_shape(shape, names)


def first_shape(shape: TableShape, settings: TableConfig) -> TableShape:
    """``kept_shape`` of a table that is made now.

    A column that may be one left out, under an unknown new name, is not in it: it is checked as one
    that comes later.

    Raises: as ``kept_shape``.
    """
    doubted = (c.name for c in shape.columns if settings.layout.doubts(c))
    return kept_shape(without(shape, doubted), settings)


def row_shape(shape: TableShape, settings: TableConfig) -> TableShape:
    """The shape of a batch's rows, which a history's target makes versions of.

    Raises: as ``kept_shape``.
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
# The log's word for each of the wire's, of the image that is the row after the event.
WORDS: Final = {
    Op.INSERT.value: "insert",
    Op.UPDATE.value: POSTIMAGE,
    Op.DELETE.value: "delete",
    Op.UPSERT.value: "upsert",
    Op.TRUNCATE.value: "truncate",
}
# An event has two places among the rows of its record.
IMAGES_AN_EVENT: Final = 2

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


# The exact commit_ts of a version's two ends: the first is inside, the last outside, null for none yet.
FROM_COLUMN: Final = "_tidesink_from_ts"
TO_COLUMN: Final = "_tidesink_to_ts"
# True: the version's begin is the moment at which a snapshot read the row. Null, in rows that were written
# before there were such: false.
READ_COLUMN: Final = "_tidesink_from_read"


class HistoryNames(NamedTuple):
    """The columns that say when a version held, as readers are to see them."""

    valid_from: str = "valid_from"
    valid_to: str = "valid_to"
    current: str = "current"

    @property
    def own(self) -> tuple[str, ...]:
        """All columns that a history adds to its table's."""
        return (*self, FROM_COLUMN, TO_COLUMN, READ_COLUMN)


def history_shape(shape: TableShape, names: HistoryNames) -> TableShape:
    """The shape of a table's history: its columns stand behind the key, which a version's begin completes.

    There they are among the first columns, whose least and greatest values lakes remember of each file.

    Raises:
        SchemaRefusedError: the source has a column of one of the names, or the table no key.
    """
    if not shape.keys:
        raise SchemaRefusedError(
            "the table has no key, and a version must be of a row: set keys in the config to columns that "
            "name one",
            table=str(shape.table),
        )
    clashing = [name for name in names.own if fold_name(name) in shape.by_name]
    if clashing:
        raise SchemaRefusedError(
            f"the source has a column {', '.join(clashing)}, a name that the history gives a column of its "
            "own: name that one otherwise under history in the config",
            table=str(shape.table),
        )
    last = max(at for at, column in enumerate(shape.columns) if column.key) + 1
    columns = (*shape.columns[:last], *own_columns(names), *shape.columns[last:])
    return replace(shape, columns=columns, keys=tuple(column.name for column in columns if column.key))


def own_columns(names: HistoryNames) -> tuple[ShapeColumn, ...]:
    """The columns that a history adds to its table's."""
    instant, number, mark = ColumnType("timestamp", fsp=3), ColumnType("bigint"), ColumnType("boolean")
    return (
        ShapeColumn(FROM_COLUMN, number, "bigint", "commit_ts with which the version begins", key=True),
        ShapeColumn(TO_COLUMN, number, "bigint", "commit_ts with which it ended"),
        ShapeColumn(names.valid_from, instant, "timestamp", "when the version begins"),
        ShapeColumn(names.valid_to, instant, "timestamp", "when it ended"),
        ShapeColumn(names.current, mark, "boolean", "true: the row as it is now"),
        ShapeColumn(READ_COLUMN, mark, "boolean", "true: begins with a snapshot's read of the row"),
    )


_SHARD_TYPE = ColumnType("varchar", length=LONGEST_SHARD, sql=f"varchar({LONGEST_SHARD})")


def routed_shape(shape: TableShape, destination: Destination) -> TableShape:
    """The shape at the target: its name there, and the shard column at the end of the columns and the key.

    Raises:
        SchemaRefusedError: the source has a column of that name.
    """
    named = replace(shape, table=destination.table, origin=shape.source)
    if destination.shard is None:
        return named
    if fold_name(destination.shard.column) in shape.by_name:
        raise SchemaRefusedError(
            f"the source has a column {destination.shard.column}, the name that its route gives the shard "
            "column: give shard-column another",
            table=str(shape.source),
            column=destination.shard.column,
        )
    # Last in the key: what prunes files and pages is the range of the key's first column.
    keys = (*shape.keys, destination.shard.column) if shape.keys else ()
    return replace(
        named, columns=(*shape.columns, shard_column(destination.shard)), keys=keys, shard=destination.shard
    )


def shard_column(shard: Shard) -> ShapeColumn:
    """The column that says which source table a row is of."""
    return ShapeColumn(shard.column, _SHARD_TYPE, "string", key=True)
