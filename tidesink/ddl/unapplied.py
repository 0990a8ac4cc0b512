"""What DDL does to rows that are there already, and this version does not do at the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from tidesink.ddl.catalog import producer_tokens, statements
from tidesink.ddl.statements import read_table_name, starts_constraint
from tidesink.events import TableId
from tidesink.typemap.mysql_types import SqlReader, split_by_comma


class Unapplied(NamedTuple):
    """What a statement means for the target of a table; one without a name is every table of its schema."""

    table: TableId
    effect: str


def unapplied(query: str, default_schema: str = "") -> tuple[Unapplied, ...]:
    """What of DDL text the target does not follow.

    Raises:
        ConfigError: text that is no SQL, or a statement about a table that cannot be read.
    """
    found: list[Unapplied] = []
    for statement in statements(producer_tokens(query)):
        read = _STATEMENTS.get(statement[0].text.upper())
        if read is not None:
            found += read(SqlReader(statement), default_schema)
    return tuple(found)


def altered_tables(query: str, default_schema: str = "") -> tuple[TableId, ...]:
    """The tables whose columns or keys an ALTER TABLE changes.

    Raises:
        ConfigError: as ``unapplied``.
    """
    return _altered(query, default_schema, lambda table, part: [table] if _changes_columns(part) else ())


def moved_tables(query: str, default_schema: str = "") -> tuple[TableId, ...]:
    """The tables whose rows an ALTER TABLE puts under other table ids: other partitions', or another table's.

    Raises:
        ConfigError: as ``unapplied``.
    """
    return _altered(query, default_schema, _moved_by)


def _altered(
    query: str, default_schema: str, asked: Callable[[TableId, SqlReader], Iterable[TableId]]
) -> tuple[TableId, ...]:
    found: list[TableId] = []
    for statement in statements(producer_tokens(query)):
        sql = SqlReader(statement)
        if sql.skip("ALTER", "TABLE"):
            table = read_table_name(sql, default_schema)
            for part in _parts(sql):
                found += asked(table, part)
    return tuple(dict.fromkeys(found))


def _moved_by(table: TableId, part: SqlReader) -> Iterable[TableId]:
    other = _exchanged_with(table, part)
    if other is not None:
        return table, other
    return [table] if _moves_rows(part) else ()


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


def _parts(sql: SqlReader) -> list[SqlReader]:
    rest = []
    while not sql.done:
        rest.append(sql.take())
    return [SqlReader(part) for part in split_by_comma(rest) if part]


def _changes_columns(part: SqlReader) -> bool:
    verb = part.take()
    if verb.says("RENAME"):
        return part.sees("COLUMN")
    if not verb.says("ADD", "DROP", "MODIFY", "CHANGE", "ALTER"):
        return False
    keys = part.sees("PRIMARY") or part.sees("UNIQUE")
    return keys or not (starts_constraint(part) or part.peek().says("PARTITION"))


def _truncate(sql: SqlReader, default_schema: str) -> Iterator[Unapplied]:
    sql.take()
    sql.skip("TABLE")
    yield Unapplied(
        read_table_name(sql, default_schema), "rows that TRUNCATE removed at the source stay in the target"
    )


_DROPPED: Final = (
    "rows that DROP removed at the source stay in the target, also when a table of this name is made again"
)


def _drop(sql: SqlReader, default_schema: str) -> Iterator[Unapplied]:
    sql.take()
    if sql.skip_any("DATABASE", "SCHEMA"):
        sql.skip("IF", "EXISTS")
        yield Unapplied(TableId(sql.name(), ""), _DROPPED)
    elif sql.skip("TABLE"):
        sql.skip("IF", "EXISTS")
        for part in _parts(sql):
            yield Unapplied(read_table_name(part, default_schema), _DROPPED)


def _rename(sql: SqlReader, default_schema: str) -> Iterator[Unapplied]:
    sql.take()
    if sql.skip("TABLE"):
        for pair in _parts(sql):
            old = read_table_name(pair, default_schema)
            pair.need("TO")
            yield from _moved(old, read_table_name(pair, default_schema))


def _moved(old: TableId, new: TableId) -> Iterator[Unapplied]:
    yield Unapplied(old, f"the table is {new} at the source now; its rows stay in the target of {old}")
    yield Unapplied(
        new, f"the table was {old} at the source; rows from before are not in the target of {new}"
    )


def _alter(sql: SqlReader, default_schema: str) -> Iterator[Unapplied]:
    if sql.skip("ALTER", "TABLE"):
        table = read_table_name(sql, default_schema)
        for part in _parts(sql):
            yield from _part(table, part)


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
    if old.casefold() != new.casefold():
        yield Unapplied(
            table,
            f"column {old} is {new} now; where the target still has {old}, old rows have their values in it",
        )


_STATEMENTS: Final[dict[str, Callable[[SqlReader, str], Iterator[Unapplied]]]] = {
    "TRUNCATE": _truncate,
    "DROP": _drop,
    "RENAME": _rename,
    "ALTER": _alter,
}
