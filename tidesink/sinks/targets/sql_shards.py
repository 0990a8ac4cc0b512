"""A source table's part in a SQL table that several share: its rows, and the columns that they have."""

# ruff: noqa: S608  every name and text in a statement is quoted by identifier.py
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidesink.errors import SchemaRefusedError
from tidesink.sinks.shape import ShapeColumn, TableShape
from tidesink.sinks.targets.shards import also_of, known_after, new_columns
from tidesink.sinks.targets.sql_connections import Connections
from tidesink.sinks.targets.sql_ledger import Entry, SqlLedger
from tidesink.sinks.targets.sql_place import Place


class SqlShard:
    """One shard of an open table; ``place.shard`` says which."""

    def __init__(self, connections: Connections, place: Place, ledger: SqlLedger) -> None:
        self._connections = connections
        self._dialect = connections.dialect
        self._place = place
        self._ledger = ledger

    def rows(self, present: Mapping[str, str]) -> str:
        """The condition for the shard's rows; ``present`` are the table's columns with their types."""
        assert self._place.shard is not None  # noqa: S101  (a shard's place has it)
        column, value = self._place.shard
        name, found = next(both for both in present.items() if both[0].lower() == column.lower())
        return f"{self._dialect.quote(name)} = {self._dialect.literal(value, found)}"

    def new(self, shape: TableShape) -> tuple[tuple[ShapeColumn, str], ...]:
        """The columns that the shard's rows have no value for yet, whether the table has them or not."""
        with self._connections.transaction(str(self._place.source), writes=False) as cursor:
            entry = self._ledger.read(cursor)
        return tuple((column, "") for column in new_columns(shape, entry.known if entry else None))

    def fill(
        self,
        cursor: Any,
        entry: Entry,
        shape: TableShape,
        *,
        defaults: Mapping[str, str],
        present: Mapping[str, str],
    ) -> None:
        """Give the shard's rows the literal texts ``defaults``, and write down that they have the columns."""
        given = {name.lower(): text for name, text in defaults.items()}
        sets = [
            f"{self._dialect.quote(name)} = {self._dialect.literal(given[name.lower()], found)}"
            for name, found in present.items()
            if name.lower() in given
        ]
        if sets:
            cursor.execute(f"UPDATE {self._place.location} SET {', '.join(sets)} WHERE {self.rows(present)}")
        self._ledger.write(cursor, replace(entry, known=known_after(entry.known, shape)))

    def written(self, entry: Entry, shape: TableShape) -> Entry:
        """The shard's entry after rows of a shape were written."""
        return replace(entry, known=known_after(entry.known or (), shape))

    def refused(self, error: SchemaRefusedError) -> SchemaRefusedError:
        """The error of a change that the table cannot take, with the other shards."""
        with self._connections.transaction(str(self._place.source), writes=False) as cursor:
            others = self._ledger.others(cursor)
        return also_of(error, self._place.shown, others) if others else error
