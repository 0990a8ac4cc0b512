"""What DDL does to rows that are there already, statement by statement; the columns are ``ddl.catalog``'s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tidesink.ddl.statements import (
    producer_statements,
    read_alter,
    read_dropped,
    read_renamed,
    read_table_name,
    starts_constraint,
)
from tidesink.events import TableId
from tidesink.typemap.mysql_types import SqlReader


class Unapplied(NamedTuple):
    """What a statement means for the target of a table; one without a name is every table of its schema."""

    table: TableId
    effect: str


def unapplied(query: str, default_schema: str = "") -> tuple[Unapplied, ...]:
    """What of DDL text the target does not follow.

    Raises:
        ConfigError: text that is no SQL, or a statement about a table that cannot be read.
    """
    return tuple(one for sql in producer_statements(query) for one in _unapplied(sql, default_schema))


def _unapplied(sql: SqlReader, default_schema: str) -> Iterator[Unapplied]:
    if sql.skip("TRUNCATE"):
        sql.skip("TABLE")
        table = read_table_name(sql, default_schema)
        yield Unapplied(table, "rows that TRUNCATE removed at the source stay in the target")
    elif sql.skip("DROP", "DATABASE") or sql.skip("DROP", "SCHEMA"):
        sql.skip("IF", "EXISTS")
        yield Unapplied(TableId(sql.name(), ""), _DROPPED)
    elif sql.skip("DROP", "TABLE"):
        yield from (Unapplied(table, _DROPPED) for table in read_dropped(sql, default_schema))
    elif sql.skip("RENAME", "TABLE"):
        for old, new in read_renamed(sql, default_schema):
            yield from _moved(old, new)
    else:
        for table, part in _altered(sql, default_schema):
            yield from _part(table, part)


def _altered(sql: SqlReader, default_schema: str) -> Iterator[tuple[TableId, SqlReader]]:
    """The table of an ALTER TABLE with each part."""
    table, parts = read_alter(sql, default_schema) or (None, ())
    if table is not None:
        yield from ((table, part) for part in parts)


def altered_tables(query: str, default_schema: str = "") -> tuple[TableId, ...]:
    """The tables whose columns or keys an ALTER TABLE changes.

    Raises:
        ConfigError: as ``unapplied``.
    """
    found = (one for sql in producer_statements(query) for one in _altered(sql, default_schema))
    return tuple(dict.fromkeys(table for table, part in found if _changes_columns(part)))


def moved_tables(query: str, default_schema: str = "") -> tuple[TableId, ...]:
    """The tables whose rows an ALTER TABLE puts under other table ids: other partitions', or another table's.

    Raises:
        ConfigError: as ``unapplied``.
    """
    found: list[TableId] = []
    for sql in producer_statements(query):
        for table, part in _altered(sql, default_schema):
            other = _exchanged_with(table, part)
            if other is not None:
                found += (table, other)
            elif _moves_rows(part):
                found.append(table)
    return tuple(dict.fromkeys(found))


def _exchanged_with(table: TableId, part: SqlReader) -> TableId | None:
    """The table that gets a partition of this one for its own rows."""
    if not part.skip("EXCHANGE", "PARTITION"):
        return None
    part.name()
    part.need("WITH", "TABLE")
    return read_table_name(part, table.schema)


def _moves_rows(part: SqlReader) -> bool:
    """Whether TiDB copies rows; a partition that is added to ranges or lists has none yet."""
    if part.skip("PARTITION", "BY") or part.skip("REMOVE", "PARTITIONING"):
        return True
    if part.skip("ADD", "PARTITION"):
        part.skip("IF", "NOT", "EXISTS")
        part.skip_any("NO_WRITE_TO_BINLOG", "LOCAL")
        return part.skip("PARTITIONS")
    return part.skip("REORGANIZE", "PARTITION") or part.skip("COALESCE", "PARTITION")


def _changes_columns(part: SqlReader) -> bool:
    verb = part.take()
    if verb.says("RENAME"):
        return part.sees("COLUMN")
    if not verb.says("ADD", "DROP", "MODIFY", "CHANGE", "ALTER"):
        return False
    keys = part.sees("PRIMARY") or part.sees("UNIQUE")
    return keys or not (starts_constraint(part) or part.peek().says("PARTITION"))


_DROPPED: Final = (
    "rows that DROP removed at the source stay in the target, also when a table of this name is made again"
)


def _moved(old: TableId, new: TableId) -> Iterator[Unapplied]:
    yield Unapplied(old, f"the table is {new} at the source now; its rows stay in the target of {old}")
    yield Unapplied(
        new, f"the table was {old} at the source; rows from before are not in the target of {new}"
    )


def _exchanged(one: TableId, other: TableId) -> Iterator[Unapplied]:
    for table, given_to in ((one, other), (other, one)):
        yield Unapplied(
            table,
            f"rows that {table} gave to {given_to} at the source stay in the target of {table}, and those "
            "that it got for them are not there",
        )


def _part(table: TableId, part: SqlReader) -> Iterator[Unapplied]:
    other = _exchanged_with(table, part)
    if other is not None:
        yield from _exchanged(table, other)
        return
    verb = part.take()
    if verb.says("TRUNCATE", "DROP") and part.sees("PARTITION"):
        yield Unapplied(table, "rows that it took out of the table at the source stay in the target")
    elif verb.says("CHANGE"):
        part.skip("COLUMN")
        part.skip("IF", "EXISTS")
        yield from _renamed(table, part.name(), part.name())
    elif verb.says("RENAME") and part.skip("COLUMN"):
        old = part.name()
        part.need("TO")
        yield from _renamed(table, old, part.name())
    elif verb.says("RENAME") and not part.peek().says("INDEX", "KEY"):
        part.skip_any("TO", "AS", "=")
        yield from _moved(table, read_table_name(part, table.schema))


def _renamed(table: TableId, old: str, new: str) -> Iterator[Unapplied]:
    if old.lower() != new.lower():
        yield Unapplied(
            table,
            f"column {old} is {new} now; where the target still has {old}, old rows have their values in it",
        )
