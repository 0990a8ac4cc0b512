"""ALTER TABLE on a TableDefinition: what it does to columns and unique keys.

A producer that restarts sends statements again: what is done already is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tidesink.events import Column, TableId
from tidesink.typemap.ddl_create import (
    TableDefinition,
    add_constraint,
    append_column,
    read_table_name,
    starts_constraint,
    with_own_keys,
)
from tidesink.typemap.sql_column import ColumnDefinition, read_column, with_origin_default
from tidesink.typemap.sql_default import default_as, default_text
from tidesink.typemap.sql_reader import SqlReader


@dataclass(frozen=True)
class Altered:
    """A definition after one ALTER, and the name it moved to, if it did."""

    definition: TableDefinition
    renamed_to: TableId | None = None


def alter(definition: TableDefinition, sql: SqlReader) -> Altered:
    """The table after one part of an ALTER TABLE; parts about neither columns nor keys change nothing.

    Raises:
        ConfigError: a column that is not there, or a part not to be read.
    """
    verb = sql.take()
    if verb.says("RENAME") and not sql.peek().says("COLUMN", "INDEX", "KEY"):
        sql.skip_any("TO", "AS", "=")
        return Altered(definition, read_table_name(sql, definition.table.schema))
    change = _VERBS.get(verb.text.upper())
    return Altered(definition if change is None else change(definition, sql))


def _add(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    if starts_constraint(sql):
        return add_constraint(definition, sql)
    if sql.peek().says("PARTITION"):
        return definition
    sql.skip("COLUMN")
    sql.skip("IF", "NOT", "EXISTS")
    if not sql.sees("("):
        return _add_column(definition, sql)
    inside = SqlReader(sql.group())
    while not inside.done:
        if starts_constraint(inside):
            definition = add_constraint(definition, inside)
        else:
            definition = _add_column(definition, inside)
        inside.skip(",")
    return definition


def _add_column(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    found = read_column(sql, charset=definition.charset)
    if any(c.name.casefold() == found.column.name.casefold() for c in definition.columns):
        return definition
    found = replace(found, column=with_origin_default(found.column))
    return append_column(definition, found, at=_place(definition, found))


def _place(definition: TableDefinition, found: ColumnDefinition) -> int | None:
    if found.place == "FIRST":
        return 0
    return definition.place_of(found.after) + 1 if found.after is not None else None


def _drop(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    if sql.skip("PRIMARY", "KEY"):
        return replace(definition, primary_key=())
    if sql.skip_any("INDEX", "KEY") or sql.skip("CONSTRAINT"):
        sql.skip("IF", "EXISTS")
        return drop_index(definition, sql.name())
    if sql.peek().says("FOREIGN", "CHECK", "PARTITION"):
        return definition
    sql.skip("COLUMN")
    sql.skip("IF", "EXISTS")
    name = sql.name()
    return _without(definition, name) if _has(definition, name) else definition


def drop_index(definition: TableDefinition, name: str) -> TableDefinition:
    """The definition without the unique index of this name, if it is one."""
    kept = tuple(unique for unique in definition.uniques if unique.name.casefold() != name.casefold())
    return replace(definition, uniques=kept)


def _has(definition: TableDefinition, name: str) -> bool:
    return any(column.name.casefold() == name.casefold() for column in definition.columns)


def _without(definition: TableDefinition, name: str) -> TableDefinition:
    at = definition.place_of(name)
    columns = definition.columns[:at] + definition.columns[at + 1 :]
    uniques = tuple(u for u in definition.uniques if name.casefold() not in (c.casefold() for c in u.columns))
    # A column that is gone is gone under the names it had before, too.
    its = (old.casefold() for old, new in definition.renamed if new.casefold() == name.casefold())
    dropped = tuple(dict.fromkeys((*definition.dropped, name.casefold(), *its)))
    renamed = tuple(pair for pair in definition.renamed if pair[1].casefold() != name.casefold())
    return replace(definition, columns=columns, uniques=uniques, dropped=dropped, renamed=renamed)


def _modify(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    sql.skip("COLUMN")
    sql.skip("IF", "EXISTS")
    found = read_column(sql, charset=definition.charset)
    return _redefine(definition, found.column.name, found)


def _change(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    sql.skip("COLUMN")
    sql.skip("IF", "EXISTS")
    old = sql.name()
    found = read_column(sql, charset=definition.charset)
    return _redefine(definition, old if _has(definition, old) else found.column.name, found)


def _redefine(definition: TableDefinition, old: str, found: ColumnDefinition) -> TableDefinition:
    at = definition.place_of(old)
    before = definition.columns[at]
    column = _with_defaults_as(before, found.column).redefined_by(found.column)
    rest = replace(definition, columns=definition.columns[:at] + definition.columns[at + 1 :])
    place = at if found.place is None else _place(rest, found)
    columns = list(rest.columns)
    columns.insert(at if place is None else place, column)
    changed = replace(definition, columns=tuple(columns))
    return with_own_keys(_renamed_in_keys(changed, before.name, column.name), found)


def _with_defaults_as(column: Column, new: Column) -> Column:
    return replace(
        column,
        default=default_as(column.default, column.type, new.type),
        origin_default=default_as(column.origin_default, column.type, new.type),
    )


def _rename(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    if not sql.skip("COLUMN"):
        return _rename_index(definition, sql)
    old = sql.name()
    sql.need("TO")
    new = sql.name()
    if _has(definition, new) and not _has(definition, old):
        return definition
    return _renamed(definition, definition.place_of(old), new)


def _rename_index(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    sql.take()
    old = sql.name()
    sql.need("TO")
    new = sql.name()
    uniques = tuple(
        replace(u, name=new) if u.name.casefold() == old.casefold() else u for u in definition.uniques
    )
    return replace(definition, uniques=uniques)


def _renamed(definition: TableDefinition, at: int, name: str) -> TableDefinition:
    old = definition.columns[at]
    changed = _with_column(definition, at, replace(old, name=name))
    return _renamed_in_keys(changed, old.name, name)


def _with_column(definition: TableDefinition, at: int, column: Column) -> TableDefinition:
    columns = (*definition.columns[:at], column, *definition.columns[at + 1 :])
    return replace(definition, columns=columns)


def _renamed_in_keys(definition: TableDefinition, old: str, new: str) -> TableDefinition:
    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new if name.casefold() == old.casefold() else name for name in names)

    return replace(
        definition,
        renamed=_renames(definition.renamed, old, new),
        primary_key=renamed(definition.primary_key),
        uniques=tuple(replace(u, columns=renamed(u.columns)) for u in definition.uniques),
    )


def _renames(known: tuple[tuple[str, str], ...], old: str, new: str) -> tuple[tuple[str, str], ...]:
    """The names that were, newest first; a column that was renamed twice has had both."""
    followed = tuple((was, new if now.casefold() == old.casefold() else now) for was, now in known)
    if old.casefold() == new.casefold():
        return followed
    # One that has its old name again never had another. A name that is taken again keeps its pair.
    return ((old, new), *((was, now) for was, now in followed if was.casefold() != now.casefold()))


def _alter_column(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    if sql.peek().says("INDEX", "CHECK", "CONSTRAINT"):
        return definition
    sql.skip("COLUMN")
    at = definition.place_of(sql.name())
    column = definition.columns[at]
    if sql.skip("DROP", "DEFAULT"):
        return _with_column(definition, at, column.redefined_by(replace(column, default=None)))
    sql.need("SET", "DEFAULT")
    rest = []
    while not sql.done:
        rest.append(sql.take())
    changed = replace(column, default=default_text(rest, column.type))
    return _with_column(definition, at, column.redefined_by(changed))


_VERBS: dict[str, Callable[[TableDefinition, SqlReader], TableDefinition]] = {
    "ADD": _add,
    "DROP": _drop,
    "MODIFY": _modify,
    "CHANGE": _change,
    "RENAME": _rename,
    "ALTER": _alter_column,
}
