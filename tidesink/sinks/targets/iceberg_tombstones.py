"""Forgetting the deletes an Iceberg table in the source's order still has marked.

The horizon is a table property. It is raised by the commit of the metadata that makes the deletion of the
rows visible, so that neither is there without the other.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by identifier.py
from __future__ import annotations

from typing import Final

from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SOFT_DELETE_COLUMN
from tidesink.sinks.targets.iceberg_table import TableState
from tidesink.sinks.targets.identifier import quote_identifier, quote_path

PROPERTY: Final = "tidesink.horizon"
_MARKED: Final = quote_identifier(SOFT_DELETE_COLUMN)
_COMMIT_TS: Final = f"{quote_path(SEQUENCE_COLUMN, 'source')}[0]"


def horizon_of(state: TableState) -> int | None:
    """The commit_ts up to which the table's deletes may be forgotten."""
    text = state.property(PROPERTY)
    return int(text) if text else None


def raised(state: TableState, horizon: int) -> int:
    """The horizon, which never goes back."""
    return max(horizon, horizon_of(state) or 0)


def statement(location: str, horizon: int) -> str:
    """The DELETE of what is marked up to a horizon."""
    return f"DELETE FROM {location} WHERE {_MARKED} AND {_COMMIT_TS} <= {horizon}"


def kept(location: str) -> str:
    """Counts what is still marked, and says the oldest commit_ts of it."""
    return f"SELECT count(*) AS kept, min({_COMMIT_TS}) AS oldest FROM {location} WHERE {_MARKED}"
