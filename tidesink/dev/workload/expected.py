"""What every table must hold after the workload: written beside the topics, read by the check.

One JSON file: ``{"tables": {"shop.orders": {"columns": {name: type text}, "key": [names], "rows":
[[value text or null, ...]]}}}``. Values are text: binary as hex, decimals padded to their scale,
floats as Python's repr, dates and times as MySQL's text (TIMESTAMP in UTC).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from tidesink.dev.workload.changes import ShopTables
from tidesink.events import ColumnType, TableId, Value


@dataclass(frozen=True)
class ExpectedTable:
    """One table's final state; ``rows`` are value texts in column order."""

    table: TableId
    columns: dict[str, str]
    key: tuple[str, ...]
    rows: list[list[str | None]]


def value_text(value: Value) -> str | None:
    """A value as the expected-state file holds it."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    return repr(value) if isinstance(value, float) else str(value)


def save_expected(path: Path, tables: ShopTables) -> None:
    """Write the final state of all tables."""
    document = {str(table): _table(tables, table) for table in tables.rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"tables": document}, ensure_ascii=False), encoding="utf-8")


def _table(tables: ShopTables, table: TableId) -> dict[str, object]:
    schema = tables.schema(table)
    names = [column.name for column in schema.columns]
    return {
        "columns": {column.name: _type_text(column.type) for column in schema.columns},
        "key": [column.name for column in schema.handle_columns],
        "rows": [[value_text(row[name]) for name in names] for row in tables.rows[table].values()],
    }


def _type_text(column_type: ColumnType) -> str:
    return column_type.sql or column_type.name


def load_expected(path: Path) -> list[ExpectedTable]:
    """The final states in a file that ``save_expected`` wrote."""
    document = json.loads(path.read_text(encoding="utf-8"))["tables"]
    return [
        ExpectedTable(TableId(*name.split(".", 1)), table["columns"], tuple(table["key"]), table["rows"])
        for name, table in document.items()
    ]
