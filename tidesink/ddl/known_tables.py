"""The current definitions of tables, with the history of their columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tidesink.ddl.history import Key, StoredHistory, TypeHistory, table_key
from tidesink.ddl.statements import TableDefinition
from tidesink.events import TableId, TableSchema


class KnownTables:
    """Holds table definitions by table name. Case is ignored.

    ``history``: the types and names that each column had over time.
    ``version``: number that grows with every change.
    ``timed``: True if some column had another type earlier.
    """

    def __init__(self) -> None:
        self.history = TypeHistory()
        self.version = 0
        self.timed = False
        self._tables: dict[Key, TableDefinition] = {}
        self._schemas: dict[Key, TableSchema] = {}

    def __iter__(self) -> Iterator[TableId]:
        return iter([definition.table for definition in self._tables.values()])

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def definitions(self) -> list[TableDefinition]:
        """The definitions of all tables."""
        return list(self._tables.values())

    def named(self, table: TableId) -> TableDefinition | None:
        """Returns the definition of exactly this schema and name, or None."""
        return self._tables.get(table_key(table))

    def find(self, table: TableId) -> TableDefinition | None:
        """Returns a table's definition, or that of its name without a schema, or None."""
        definition = self.named(table)
        if definition is None and table.schema:
            bare = self.named(TableId("", table.name))
            return None if bare is None else replace(bare, table=table)
        return definition

    def schema(self, table: TableId) -> TableSchema | None:
        """Returns the columns and keys of a table, or None if no statement defined the table."""
        key = table_key(table)
        schema = self._schemas.get(key)
        if schema is None:
            definition = self.find(table)
            schema = None if definition is None else definition.schema()
            if schema is not None:
                self._schemas[key] = schema
        return schema

    def set(self, definition: TableDefinition, parted: Iterable[str], since: int | None) -> None:
        """Stores a table's new definition, unless a newer statement on the table was already applied.

        ``parted``: folded old names of the columns that the statement dropped or renamed. ``since``: TSO at
        which it was committed, or None.
        """
        table = definition.table
        if self.history.note(table, parted, since):
            self.keep(self.history.timed(definition, self.find(table), since))

    def keep(self, definition: TableDefinition) -> None:
        """Stores a table's definition. Records nothing in the history."""
        self._tables[table_key(definition.table)] = definition
        self._schemas.clear()
        self.timed = self.timed or any(column.earlier for column in definition.columns)
        self.version += 1

    def remove(self, table: TableId, since: int | None) -> TableDefinition | None:
        """Removes a table's definition, unless a newer statement on the table was already applied.

        Returns the removed definition, or None. ``since``: TSO at which the statement was committed, or None.
        """
        removed = self.named(table)
        if not self.history.note(table, removed.names if removed else (), since):
            return None
        self._schemas.clear()
        self.version += 1
        return self._tables.pop(table_key(table), None)

    def restore(self, definitions: Iterable[TableDefinition], history: StoredHistory) -> None:
        """Adds stored definitions, and replaces the history by a stored one."""
        for definition in definitions:
            self.keep(definition)
        self.history.restore(history)
        self.timed = self.history.has_changes
