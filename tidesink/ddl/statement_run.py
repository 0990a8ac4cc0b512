"""Applies DDL statements in MySQL's and TiDB's SQL to the definitions of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from tidesink.ddl.known_tables import KnownTables
from tidesink.ddl.statements import (
    AlterTable,
    TableDefinition,
    add_unique,
    alter,
    drop_index,
    read_alter,
    read_converted_partition,
    read_create_table,
    read_creation,
    read_dropped,
    read_index_columns,
    read_like,
    read_renamed,
    read_table_name,
    skip_definer,
)
from tidesink.events import TableId, fold_name
from tidesink.typemap.mysql_types import SqlReader


class StatementRun:
    """Applies the statements of one SQL text, one after the other.

    ``stated``: True if the text is the user's. Its unqualified names then belong to the default schema.
    """

    def __init__(
        self,
        known: KnownTables,
        default_schema: str,
        *,
        since: int | None = None,
        about: TableId | None = None,
        stated: bool = False,
    ) -> None:
        self._known = known
        self._schema = default_schema
        self._since = since
        # Table named by the DDL event that has the text.
        self._about = about
        self._stated = stated

    def apply(self, sql: Iterable[SqlReader]) -> tuple[TableId, ...]:
        """Applies statements, and returns the changed tables under their new names.

        Raises:
            ConfigError: A statement about a table cannot be parsed. That statement changes no table.
        """
        changed: list[TableId] = []
        for statement in sql:
            read = _STATEMENTS.get(statement.peek().text.upper())
            if read is not None:
                changed += read(self, statement)
        return tuple(dict.fromkeys(changed))

    def _create(self, sql: SqlReader) -> list[TableId]:
        creation = read_creation(sql)
        if creation is None:
            return self._create_other(sql)
        if creation.temporary and not self._stated:
            return []
        source = read_like(sql, self._schema)
        if source is None:
            created = read_create_table(sql, self._schema)
        else:
            old, new = source
            like = self._known.find(self._in_session(old))
            if like is None:
                # The columns of the new table are unknown, so an earlier definition of it is removed.
                return self._forgotten(new)
            created = replace(like, table=new, declared=False, dropped=(), renamed=())
        previous = self._known.find(created.table)
        if previous is not None and (previous.declared or (creation.if_absent and self._since is None)):
            # TiCDC sends a statement with its commit time, and only if it had an effect. MySQL's binary log
            # also has a CREATE TABLE IF NOT EXISTS that did nothing.
            return []
        self._set(created)
        return [created.table]

    def _in_session(self, table: TableId) -> TableId:
        """Adds the default schema to an unqualified table name in a user's statement.

        An unqualified name in the statement of a DDL event is returned unchanged, because the event does not
        report the session's database.
        """
        return TableId(self._schema, table.name) if self._stated and not table.schema else table

    def _forgotten(self, table: TableId) -> list[TableId]:
        definition = self._known.named(table)
        return [] if definition is None or definition.declared else self._removed([table])

    def _create_other(self, sql: SqlReader) -> list[TableId]:
        if sql.skip("CREATE", "OR", "REPLACE", "DATABASE") or sql.skip("CREATE", "OR", "REPLACE", "SCHEMA"):
            return self._drop_database(sql)
        return self._create_index(sql)

    def _drop_database(self, sql: SqlReader) -> list[TableId]:
        sql.skip("IF", "EXISTS")
        name = fold_name(sql.name())
        return self._removed(table for table in self._known if fold_name(table.schema) == name)

    def _create_index(self, sql: SqlReader) -> list[TableId]:
        skip_definer(sql)
        if not (sql.skip("CREATE", "UNIQUE", "INDEX") or sql.skip("CREATE", "UNIQUE", "KEY")):
            return []
        sql.skip("IF", "NOT", "EXISTS")
        name = sql.name()
        while not sql.skip("ON"):
            sql.take()
        table = read_table_name(sql, self._schema)
        columns = read_index_columns(sql.group())
        return self._change(table, lambda definition: add_unique(definition, name, columns))

    def _change(self, table: TableId, change: Callable[[TableDefinition], TableDefinition]) -> list[TableId]:
        definition = self._known.find(table)
        if definition is None:
            return []
        self._set(change(definition))
        return [definition.table]

    def _alter(self, sql: SqlReader) -> list[TableId]:
        read = read_alter(sql, self._schema, self._about)
        before = None if read is None else self._known.find(read.table)
        if read is None or before is None:
            return []
        self._convert(before, read)
        altered = alter(before, read)
        definition = altered.definition
        table = self._in_session(definition.table)
        if table != before.table:
            self._remove(before.table)
            definition = replace(definition, table=table, dropped=(), renamed=())
        if not table.schema and before.table.schema:
            # The table's new name is in the session's database, which is unknown.
            return [before.table]
        self._set(definition, altered.parted)
        return [definition.table]

    def _convert(self, table: TableDefinition, statement: AlterTable) -> None:
        """Applies MariaDB's CONVERT parts of an ALTER TABLE.

        CONVERT PARTITION turns a partition into a new table, which is added to the definitions. CONVERT TABLE
        turns another table into a partition, so that table is removed.
        """
        for part in (reader.copy() for reader in statement.parts):
            if part.sees("CONVERT", "PARTITION"):
                made = read_converted_partition(statement, part)
                if made.schema:
                    self._set(replace(table, table=made, declared=False, dropped=(), renamed=()))
            elif part.skip("CONVERT", "TABLE"):
                self._remove(read_table_name(part, statement.session_schema))

    def _drop(self, sql: SqlReader) -> list[TableId]:
        sql.take()
        if sql.skip_any("DATABASE", "SCHEMA"):
            return self._drop_database(sql)
        if sql.skip("INDEX"):
            sql.skip("IF", "EXISTS")
            name = sql.name()
            sql.need("ON")
            return self._change(read_table_name(sql, self._schema), lambda d: drop_index(d, name))
        if (sql.skip("TEMPORARY") and not self._stated) or not sql.skip("TABLE"):
            return []
        dropped = read_dropped(sql, self._schema)
        return self._removed(self._in_session(table) for table in dropped)

    def _removed(self, tables: Iterable[TableId]) -> list[TableId]:
        return [table for table in [*tables] if self._remove(table) is not None]

    def _rename(self, sql: SqlReader) -> list[TableId]:
        if not sql.skip("RENAME", "TABLE"):
            return []
        changed = []
        for old, new in read_renamed(sql, self._schema, self._about):
            moved = self._remove(self._in_session(old))
            table = self._in_session(new)
            if moved is not None and (table.schema or not moved.table.schema):
                self._set(replace(moved, table=table, dropped=(), renamed=()))
            if moved is not None:
                changed.append(table)
        return changed

    def _set(self, definition: TableDefinition, parted: Iterable[str] = ()) -> None:
        self._known.set(definition, parted, self._since)

    def _remove(self, table: TableId) -> TableDefinition | None:
        return self._known.remove(table, self._since)


_STATEMENTS: Final[dict[str, Callable[[StatementRun, SqlReader], list[TableId]]]] = {
    "CREATE": StatementRun._create,
    "ALTER": StatementRun._alter,
    "DROP": StatementRun._drop,
    "RENAME": StatementRun._rename,
}
