"""How a batch is merged in MySQL and MariaDB.

``ON DUPLICATE KEY UPDATE`` changes *another* row where a row's value in some other unique column is that
row's (MySQL's manual warns of it), so it is used only where the key is the one unique index there is: the
look at the table holds off whoever would add one until the commit. Everywhere else rows that are there
are updated by their key, and those missing inserted.
"""

# ruff: noqa: S608  every name in a statement is quoted by identifier.py, every number is one of ours
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidesink.errors import AccountingError
from tidesink.sinks.targets.mysql_errors import code_of
from tidesink.sinks.targets.sql_dialect import Counts, Merge

_DUPLICATE: Final = "1062"
_COMPUTED: Final = ("VIRTUAL", "STORED GENERATED", "PERSISTENT")
_SWAPPED: Final = "`_tidesink_swapped`"


def merged(cursor: Any, merge: Merge, *, only_key: bool) -> Counts:
    """Deletes, then upserts. ``only_key``: the key is the table's one unique index."""
    deleted = _deleted(cursor, merge) if merge.deletes else 0
    if not merge.upserts:
        return Counts(deleted=deleted)
    if only_key:
        updated = _found(cursor, merge)
        cursor.execute(_insert(merge, missing=False) + _on_duplicate(merge))
        check_upserted(merge, int(cursor.rowcount), updated)
        return Counts(merge.upserts - updated, updated, deleted)
    where = merge.rows(deletes=False)
    updated = updated_rows(cursor, merge, where, lambda alias: _sets(merge, alias))
    cursor.execute(_insert(merge, missing=True))
    return Counts(int(cursor.rowcount), updated, deleted)


def check_upserted(merge: Merge, counted: int, updated: int) -> None:
    """Hold what INSERT … ON DUPLICATE KEY UPDATE counts to the rows it was given.

    A row that did not change counts 1, as a new one does (``CLIENT.FOUND_ROWS``); one that changed 2, and 3
    in a table of MariaDB's that keeps its versions.

    Raises:
        AccountingError: fewer than there are rows, or more than ``updated`` of them can count.
    """
    if merge.upserts <= counted <= merge.upserts + 2 * updated:
        return
    raise AccountingError(
        f"the merge counts {counted} for {merge.upserts} upserts, of which {updated} rows were there before",
        table=str(merge.place.source),
    )


def _deleted(cursor: Any, merge: Merge) -> int:
    rows = f"{merge.stage} s STRAIGHT_JOIN {merge.target} t ON {merge.on}"
    where = merge.rows(deletes=True)
    if merge.soft:
        sets = [f"t.{merge.mark} = 1", *(f"t.{one.target} = s.{one.staged}" for one in merge.on_delete)]
        cursor.execute(f"UPDATE {rows} SET {', '.join(sets)} WHERE {where}")
    else:
        cursor.execute(f"DELETE t FROM {rows} WHERE {where}")
    return int(cursor.rowcount)


def _found(cursor: Any, merge: Merge) -> int:
    """How many of the rows are there already."""
    cursor.execute(f"SELECT EXISTS (SELECT 1 FROM {merge.target})")
    if not cursor.fetchone()[0]:
        return 0
    cursor.execute(
        f"SELECT COUNT(*) FROM {merge.stage} s STRAIGHT_JOIN {merge.target} t ON {merge.on} "
        f"WHERE {merge.rows(deletes=False)}"
    )
    return int(cursor.fetchone()[0])


def _sets(merge: Merge, alias: str) -> str:
    sets = [f"{alias}.{column.target} = s.{column.staged}" for column in merge.values]
    if merge.mark:
        sets.append(f"{alias}.{merge.mark} = 0")
    first = merge.keys[0]
    return ", ".join(sets) or f"{alias}.{first.target} = s.{first.staged}"


def _insert(merge: Merge, *, missing: bool) -> str:
    names = [column.target for column in merge.columns]
    values = [f"s.{column.staged}" for column in merge.columns]
    if merge.mark:
        names, values = [*names, merge.mark], [*values, "0"]
    absent = f"LEFT JOIN {merge.target} t ON {merge.on} " if missing else ""
    where = f" AND t.{merge.keys[0].target} IS NULL" if missing else ""
    return (
        f"INSERT INTO {merge.target} ({', '.join(names)}) SELECT {', '.join(values)} FROM {merge.stage} s "
        f"{absent}WHERE {merge.rows(deletes=False)}{where}"
    )


def _on_duplicate(merge: Merge) -> str:
    keys = ", ".join(f"s.{column.staged}" for column in merge.keys)
    return f" ORDER BY {keys} ON DUPLICATE KEY UPDATE {_sets(merge, merge.target)}"


def updated_rows(cursor: Any, merge: Merge, where: str, sets: Callable[[str], str]) -> int:
    """Update the rows that are there; where they swap values of a unique column, by way of a copy.

    ``where`` says which of the staged rows ``s`` with the stored ones ``t``; ``sets`` are the assignments to
    an alias.
    """
    rows = f"{merge.stage} s STRAIGHT_JOIN {merge.target} t ON {merge.on}"
    try:
        cursor.execute(f"UPDATE {rows} SET {sets('t')} WHERE {where}")
    except cursor.connection.Error as exc:
        if code_of(exc) != _DUPLICATE or _referenced(cursor, merge):
            raise
        # InnoDB has undone the statement alone: the transaction goes on.
        return _swapped(cursor, merge, where, sets)
    return int(cursor.rowcount)


def _referenced(cursor: Any, merge: Merge) -> bool:
    """Whether rows of other tables hang on this table's, which would go with a deleted row."""
    cursor.execute(
        "SELECT COUNT(*) FROM information_schema.REFERENTIAL_CONSTRAINTS "
        "WHERE UNIQUE_CONSTRAINT_SCHEMA = %s AND REFERENCED_TABLE_NAME = %s",
        (merge.place.schema, merge.place.name),
    )
    return bool(cursor.fetchone()[0])


def is_computed(extra: str) -> bool:
    """Whether a column takes no value, by what SHOW COLUMNS says last of it.

    MySQL 8's DEFAULT_GENERATED is a default that is an expression: such a column has values of its own.
    """
    said = extra.upper()
    return any(words in said for words in _COMPUTED)


def _swapped(cursor: Any, merge: Merge, where: str, sets: Callable[[str], str]) -> int:
    """Uniqueness is looked at row by row: take the rows out as they are, change them, and put them back."""
    cursor.execute(f"SHOW COLUMNS FROM {merge.target}")
    stored = [merge.place.quote(name) for name, *_, extra in cursor.fetchall() if not is_computed(extra)]
    names = ", ".join(stored)
    keys = ", ".join(column.target for column in merge.keys)
    # A temporary table is made and dropped without a commit. Servers may ask for a primary key of it.
    cursor.execute(
        f"CREATE TEMPORARY TABLE {_SWAPPED} (PRIMARY KEY ({keys})) ENGINE=InnoDB AS SELECT "
        + ", ".join(f"t.{name}" for name in stored)
        + f" FROM {merge.stage} s STRAIGHT_JOIN {merge.target} t ON {merge.on} WHERE {where}"
    )
    on = " AND ".join(f"o.{column.target} = s.{column.staged}" for column in merge.keys)
    cursor.execute(
        f"UPDATE {merge.stage} s JOIN {_SWAPPED} o ON {on} SET {sets('o')} WHERE {merge.counted}"
        + ("" if merge.sequence else " AND s.t_delete = 0")
    )
    cursor.execute(
        f"DELETE t FROM {merge.stage} s STRAIGHT_JOIN {merge.target} t ON {merge.on} WHERE {where}"
    )
    cursor.execute(f"INSERT INTO {merge.target} ({names}) SELECT {names} FROM {_SWAPPED}")
    rows = int(cursor.rowcount)
    cursor.execute(f"DROP TEMPORARY TABLE {_SWAPPED}")
    return rows
