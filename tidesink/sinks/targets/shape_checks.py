"""What targets refuse of a shape before they look at any table."""

from __future__ import annotations

from typing import NamedTuple

from tidesink.errors import SchemaRefusedError
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets.base import OWN_COLUMNS


class Reserved(NamedTuple):
    """Column names, in lower case, that a kind of table cannot have; ``keeper`` is who has them."""

    keeper: str
    names: frozenset[str]


def check_shape(shape: TableShape, reserved: Reserved | None = None) -> None:
    """Refuse a shape whose rows cannot be merged into a table.

    Raises:
        SchemaRefusedError: it has no key, or a column with a reserved name or one of ours.
    """
    check_key(shape)
    kept = [column.name for column in shape.columns if reserved and column.name.lower() in reserved.names]
    if reserved and kept:
        raise SchemaRefusedError(
            f"{reserved.keeper} keeps the name {', '.join(kept)} for itself and cannot merge into a table "
            "with such a column: rename it at the source",
            table=str(shape.table),
        )
    own = [name for name in OWN_COLUMNS if name in shape.by_name]
    if own:
        raise SchemaRefusedError(
            f"the source has a column {own[0]}, a name that tidesink gives a column of its own: rename it",
            table=str(shape.table),
        )


def check_key(shape: TableShape) -> None:
    """Refuse a shape without a key.

    Raises:
        SchemaRefusedError: it has none.
    """
    if not shape.keys:
        raise SchemaRefusedError(
            "the table has no key to merge rows by: set keys in the config to columns that name a row, "
            "or mode: append to keep its changes; new TiCDC's canal-json can name rows by TiDB's row keys "
            "(output-row-key)",
            table=str(shape.table),
        )
