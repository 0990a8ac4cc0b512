"""How a batch in the source's order is merged in MySQL and MariaDB.

As in ``mysql_merge``, ``ON DUPLICATE KEY UPDATE`` is used only where the key is the one unique index.
"""

# ruff: noqa: S608  every name in a statement is quoted by identifier.py, every number is one of ours
from __future__ import annotations

from typing import Any

from tidesink.sinks.targets.mysql_merge import updated_rows
from tidesink.sinks.targets.sql_dialect import Counts, Merge, MergeColumn
from tidesink.sinks.targets.sql_order import check_left_alone, newer


def merged_in_order(cursor: Any, merge: Merge, *, only_key: bool) -> Counts:
    """Upserts and deletes at once; the statements' own counts are held to a count made before them."""
    found, stale = _found(cursor, merge)
    rows = merge.upserts + merge.deletes
    if only_key:
        cursor.execute(_insert(merge) + _on_duplicate(merge))
        # It counts 2 for a row that changed, as one that is newer always does, and 1 for any other.
        counts = Counts(rows - found, int(cursor.rowcount) - rows, stale=stale)
    else:
        where = f"{merge.counted} AND {newer(merge, 't')}"
        updated = updated_rows(cursor, merge, where, lambda alias: ", ".join(_sets(merge, alias).values()))
        cursor.execute(_insert(merge, missing=True))
        counts = Counts(int(cursor.rowcount), updated, stale=stale)
    return check_left_alone(merge, counts)


def _found(cursor: Any, merge: Merge) -> tuple[int, int]:
    """How many of the rows are there already, and how many are not newer than what is there."""
    cursor.execute(
        f"SELECT COUNT(*), COALESCE(SUM(s.t_seq <= t.{merge.sequence}), 0) "
        f"FROM {merge.stage} s STRAIGHT_JOIN {merge.target} t ON {merge.on} WHERE {merge.counted}"
    )
    found, stale = cursor.fetchone()
    return int(found), int(stale)


def _insert(merge: Merge, *, missing: bool = False) -> str:
    names = [*(column.target for column in merge.columns), merge.mark, merge.sequence]
    values = [*(f"s.{column.staged}" for column in merge.columns), "s.t_delete", "s.t_seq"]
    absent = f"LEFT JOIN {merge.target} t ON {merge.on} " if missing else ""
    where = f" AND t.{merge.keys[0].target} IS NULL" if missing else ""
    return (
        f"INSERT INTO {merge.target} ({', '.join(map(str, names))}) SELECT {', '.join(values)} "
        f"FROM {merge.stage} s {absent}WHERE {merge.counted}{where}"
    )


def _values(merge: Merge, alias: str) -> dict[str, str]:
    """What each column of a row that is there becomes; the position is the last."""
    values = {column.target: _written(merge, column, alias) for column in merge.values}
    values |= {name: f"IF(s.t_delete = 1, NULL, {alias}.{name})" for name in merge.beside}
    return {**values, str(merge.mark): "s.t_delete", str(merge.sequence): "s.t_seq"}


def _sets(merge: Merge, alias: str) -> dict[str, str]:
    return {name: f"{alias}.{name} = {value}" for name, value in _values(merge, alias).items()}


def _written(merge: Merge, column: MergeColumn, alias: str) -> str:
    """A delete that is soft leaves the values but those it tells, another leaves none."""
    stays = merge.soft and column not in merge.on_delete
    value = f"s.{column.staged}"
    return f"IF(s.t_delete = 1, {alias}.{column.target}, {value})" if stays else value


def _on_duplicate(merge: Merge) -> str:
    """Assignments are made from left to right, and those after see them: the position comes last."""
    keys = ", ".join(f"s.{column.staged}" for column in merge.keys)
    is_newer, target = newer(merge, merge.target), merge.target
    sets = [
        f"{target}.{name} = IF({is_newer}, {value}, {target}.{name})"
        for name, value in _values(merge, target).items()
    ]
    return f" ORDER BY {keys} ON DUPLICATE KEY UPDATE {', '.join(sets)}"
