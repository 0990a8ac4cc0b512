"""What a table's mode makes of its shape at the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidesink.sinks.change_log import log_shape
from tidesink.sinks.history import HistoryNames, history_shape
from tidesink.sinks.shape import TableShape, without

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

    A column that may be one left out, under a new name nobody told of, is not in it: it is judged as one
    that comes later.

    Raises: as ``kept_shape``.
    """
    doubted = (c.name for c in shape.columns if not c.key and settings.layout.doubts(c))
    return kept_shape(without(shape, doubted), settings)


def row_shape(shape: TableShape, settings: TableConfig) -> TableShape:
    """The shape of a batch's rows, which a history's target makes versions of.

    Raises: as ``kept_shape``.
    """
    return log_shape(shape) if settings.mode == "append" else shape
