"""One shard of a target table that several source tables share: its rows and its ledger row."""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidesink.errors import SchemaRefusedError
from tidesink.events import fold_name, folding
from tidesink.sinks.targets.sharing import also_of, known_after, new_columns
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.ledger import SqlEntry, SqlLedger
from tidesink.sinks.targets.sql.location import Place
from tidesink.typemap.target_schema import TargetColumn, TargetSchema


class SqlShard:
    """The rows and the ledger row of one shard (``place.shard``) of a shared table."""

    def __init__(self, connections: Connections, place: Place, ledger: SqlLedger) -> None:
        self._connections = connections
        self._dialect = connections.dialect
        self._place = place
        self._ledger = ledger

    def rows(self, present: Mapping[str, str]) -> str:
        """Return an SQL condition that selects the shard's rows; ``present``: the table's column types by
        name.
        """
        assert self._place.shard is not None  # noqa: S101  (a shard's place has it)
        column, value = self._place.shard
        name, column_type = next(both for both in present.items() if fold_name(both[0]) == fold_name(column))
        return f"{self._dialect.quote(name)} = {self._dialect.values.literal(value, column_type)}"

    def new(self, shape: TargetSchema) -> tuple[tuple[TargetColumn, str], ...]:
        """Return the columns of ``shape`` that the shard's rows do not have yet, although the table may have
        them.
        """
        with self._connections.transaction(str(self._place.source), writes=False) as cursor:
            entry = self._ledger.read(cursor)
        return tuple((column, "") for column in new_columns(shape, entry.known if entry else None))

    def fill(
        self,
        cursor: Any,
        entry: SqlEntry,
        shape: TargetSchema,
        *,
        defaults: Mapping[str, str],
        present: Mapping[str, str],
    ) -> None:
        """Write defaults into the shard's rows, and record in the ledger that the rows have the columns of
        ``shape``.

        ``defaults``: default texts by column name.
        ``present``: the table's columns: type by name.
        """
        fold = folding(present, (column.name for column in shape.columns))
        given = {fold(name): text for name, text in defaults.items()}
        sets = [
            f"{self._dialect.quote(name)} = {self._dialect.values.literal(given[fold(name)], column_type)}"
            for name, column_type in present.items()
            if fold(name) in given
        ]
        if sets:
            cursor.execute(f"UPDATE {self._place.location} SET {', '.join(sets)} WHERE {self.rows(present)}")
        self._ledger.write(cursor, replace(entry, known=known_after(entry.known, shape)))

    def written(self, entry: SqlEntry, shape: TargetSchema) -> SqlEntry:
        """Return the shard's ledger row ``entry`` with the columns of ``shape`` added to those it lists."""
        return replace(entry, known=known_after(entry.known or (), shape))

    def refused(self, error: SchemaRefusedError) -> SchemaRefusedError:
        """Return an error like ``error`` whose message also names the table's other shards.

        ``error``: reports a column change that the table cannot make.
        """
        with self._connections.transaction(str(self._place.source), writes=False) as cursor:
            others = self._ledger.others(cursor)
        return also_of(error, self._place.shown, others) if others else error
