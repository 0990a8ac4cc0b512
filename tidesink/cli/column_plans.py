"""What ``plan`` says of one column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tidesink.config import Config
from tidesink.sinks.foretelling import column_type
from tidesink.typemap.render import CALENDAR_READERS, type_words
from tidesink.typemap.table import row_of
from tidesink.typemap.target_schema import WHY_OF, ShapeColumn, TableShape

_TEXTS: Final = frozenset({"string", "text", "longtext"})


class ColumnPlan(NamedTuple):
    """One column: its type in the source's words and in the target's; ``note`` says what is not the same."""

    name: str
    source_type: str
    target_type: str
    key: bool
    note: str


def column_plan(
    config: Config, column: ShapeColumn, shape: TableShape, sources: Mapping[str, str], told: str
) -> ColumnPlan:
    """The plan of a column of ``shape``; ``sources`` are the source's names of those that it has."""
    was = sources.get(column.name, column.name)  # what a mode adds is not the source's
    there = column_type(config, column)
    notes = (told, f"{was} at the source" if was != column.name else "", _note(column, shape, there))
    note = "; ".join(note for note in notes if note)
    return ColumnPlan(column.name, type_words(column.type), there, column.key, note)


def reason_there(config: Config, column: ShapeColumn) -> str | None:
    """Why a column is not of the nearest type at the target; None where it is."""
    return _reason(column, column_type(config, column))


def _reason(column: ShapeColumn, there: str) -> str | None:
    """Some targets have a type for numbers that are text to Spark."""
    return column.reason if row_of(column.type).reader != "decimal" or there in _TEXTS else None


def _note(column: ShapeColumn, shape: TableShape, there: str) -> str:
    if shape.shard is not None and column.name == shape.shard.column:
        return f"always {shape.shard.value}, by the route"
    if column.hidden:
        return WHY_OF[column.name]
    row = row_of(column.type)
    reason = _reason(column, there)
    if reason:
        return reason
    if row.reader in CALENDAR_READERS:
        policy = "error" if column.key else shape.zero_date
        zone = f"; read in {shape.time_zone}" if row.reader == "timestamp" else ""
        return f"days no calendar has: {policy}{zone}"
    if row.reader in ("enum", "set"):
        return "" if column.type.members is not None else row.lost
    return row.lost if row.reader == "time" and there in _TEXTS else ""
