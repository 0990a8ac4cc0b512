"""What databases share of ``sequence_by: source``: its columns, and the count of what was left alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidesink.errors import AccountingError, SchemaRefusedError
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SOFT_DELETE_COLUMN
from tidesink.sinks.targets.sql_sequence import SEQUENCE_TYPES
from tidesink.typemap.render_sql import OF_SPARK

if TYPE_CHECKING:
    from tidesink.sinks.targets.sql_dialect import Counts, Dialect, Merge
    from tidesink.sinks.targets.sql_place import Place


def missing_columns(present: Mapping[str, str], dialect: Dialect) -> dict[str, tuple[str, str | None]]:
    """The columns of the order that a table lacks; NULL in its rows: older than every change that comes."""
    wanted = {
        SEQUENCE_COLUMN: SEQUENCE_TYPES[dialect.database],
        SOFT_DELETE_COLUMN: OF_SPARK[dialect.database]["boolean"],
    }
    return {name: (found, None) for name, found in wanted.items() if name not in present}


def check_room_for_deletes(cursor: Any, dialect: Dialect, place: Place, shape: TableShape) -> None:
    """Refuse a table that a deleted row, which has its key and no other value, cannot stay in.

    Raises:
        SchemaRefusedError: a column takes no NULL; says how to change it.
    """
    values = {column.name.lower() for column in shape.columns if not column.key}
    named = {name: found for name, found in dialect.required(cursor, place).items() if name.lower() in values}
    if named:
        raise SchemaRefusedError(
            f"the columns {', '.join(named)} of {place.shown} take no NULL, and under sequence_by: source a "
            "deleted row stays as its key, without other values, until tombstone-retention has passed. "
            f"Change them, and start again: {dialect.optional(place, named)}",
            table=str(place.source),
            column=next(iter(named)),
        )


def newer(merge: Merge, stored: str) -> str:
    """The condition that a staged row is newer than the stored one; ``stored`` is the table or its alias."""
    column = f"{stored}.{merge.sequence}"
    return f"({column} IS NULL OR s.t_seq > {column})"


def check_left_alone(merge: Merge, counts: Counts) -> Counts:
    """The counts, where what the merge left alone is what was counted as not newer before it.

    Raises:
        AccountingError: it is not: a row was lost, or an older one taken.
    """
    left = merge.upserts + merge.deletes - counts.inserted - counts.updated
    if left != counts.stale:
        raise AccountingError(
            f"the merge left {left} rows alone, and {counts.stale} were not newer than what is stored",
            table=str(merge.place.source),
        )
    return counts
