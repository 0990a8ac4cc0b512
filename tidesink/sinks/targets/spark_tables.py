"""Statements in Spark's SQL that Delta and Iceberg tables have in common: made, and with deletes marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from tidesink.sinks.shape import ShapeColumn, TableShape
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN
from tidesink.sinks.targets.identifier import quote_identifier, quote_text

SOFT_DELETE_COMMENT: Final = "true: the row was deleted at the source"
SEQUENCE_COMMENT: Final = "position of the change at the source that the row is of"


def create_statement(
    location: str,
    shape: TableShape,
    *,
    provider: Literal["delta", "iceberg"],
    properties: Mapping[str, str],
    soft_deletes: bool,
) -> str:
    """The CREATE TABLE of a shape; ``location`` is the quoted table."""
    columns = [column_words(column) for column in shape.columns]
    if soft_deletes:
        columns.append(soft_delete_column())
    listed = ", ".join(f"{quote_text(k)} = {quote_text(v)}" for k, v in properties.items())
    comment = quote_text(f"{shape.table}, kept by tidesink")
    return (
        f"CREATE TABLE IF NOT EXISTS {location} ({', '.join(columns)}) USING {provider} "
        f"COMMENT {comment} TBLPROPERTIES ({listed})"
    )


def soft_delete_statement(location: str) -> str:
    """Adds the column that marks deleted rows; NULL in old rows reads as not deleted."""
    return f"ALTER TABLE {location} ADD COLUMNS ({soft_delete_column()})"


def soft_delete_column() -> str:
    """The column that marks deleted rows, as a statement spells it."""
    return f"{quote_identifier(SOFT_DELETE_COLUMN)} boolean COMMENT {quote_text(SOFT_DELETE_COMMENT)}"


def column_words(column: ShapeColumn) -> str:
    """A column as a statement spells it."""
    # A key is never null: a row without one would be inserted again by every batch.
    null = " NOT NULL" if column.key else ""
    return f"{quote_identifier(column.name)} {column.spark}{null} COMMENT {quote_text(column.comment)}"


def literal(text: str, ddl: str) -> str:
    """A SQL expression of Spark type ``ddl`` from a value's literal text."""
    if ddl == "binary":
        return f"unhex({quote_text(text)})"
    return quote_text(text) if ddl == "string" else f"CAST({quote_text(text)} AS {ddl})"
