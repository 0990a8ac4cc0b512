"""DuckDB as a reader of lakes. Its extensions come from their packages: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import duckdb
from duckdb_extensions import import_extension

_NEEDS: dict[str, tuple[str, ...]] = {"delta": ("delta",), "iceberg": ("avro", "iceberg")}


def by_duckdb(kind: str, place: str) -> list[dict[str, Any]]:
    """The rows of a table, by id: of Delta's at a path, of Iceberg's that a metadata file describes."""
    with duckdb.connect() as connection:
        for extension in _NEEDS[kind]:
            import_extension(extension)
            connection.load_extension(extension)
        found = connection.table_function(f"{kind}_scan", [place]).order("id")
        return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
