"""The part of a merge that is the same in every database: what goes where, and values that are kept."""

# ruff: noqa: S608  every name in a statement is quoted by identifier.py, every number is one of ours
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tidesink.errors import AccountingError, TransientTargetError
from tidesink.sinks.targets.base import NOT_STORED, SEQUENCE_COLUMN, ReducedBatch
from tidesink.sinks.targets.sql_dialect import Counts, Merge, MergeColumn
from tidesink.sinks.targets.sql_place import Place
from tidesink.typemap.render_sql import Database


def merge_of(
    batch: ReducedBatch,
    place: Place,
    present: Mapping[str, str],
    *,
    attempts: tuple[int, ...],
    mark: str | None,
    epoch: int,
    beside: Iterable[str] = (),
) -> Merge:
    """The merge of a staged batch into a table whose columns are ``present``; ``beside``: see ``Merge``."""
    spelt = {name.lower(): place.quote(name) for name in present}
    columns = tuple(
        MergeColumn(spelt[column.name.lower()], f"c{at}", column.key)
        for at, column in enumerate(batch.shape.columns)
    )
    kept = tuple((at, column) for at, column in enumerate(columns) if not column.key)
    return Merge(
        place.location,
        place.staging(epoch),
        columns,
        attempts,
        batch.upserts,
        batch.deletes,
        batch.delete_mode == "soft",
        mark,
        place,
        kept if batch.keeps else (),
        place.quote(SEQUENCE_COLUMN) if batch.sequenced else None,
        tuple(columns[at] for at, column in enumerate(batch.shape.columns) if column.name in batch.on_delete),
        tuple(map(place.quote, beside)),
    )


def append_staged(cursor: Any, merge: Merge) -> Counts:
    """Insert a staged batch of a change log, whose rows are never there yet."""
    names = ", ".join(column.target for column in merge.columns)
    values = ", ".join(f"s.{column.staged}" for column in merge.columns)
    keys = ", ".join(f"s.{column.staged}" for column in merge.keys)
    cursor.execute(
        f"INSERT INTO {merge.target} ({names}) SELECT {values} FROM {merge.stage} s "
        f"WHERE {merge.rows(deletes=False)} ORDER BY {keys}"
    )
    return Counts(inserted=int(cursor.rowcount))


def check_staged(cursor: Any, merge: Merge) -> None:
    """Count the rows that are to be merged: since the tasks' commits a database may have lost some.

    Postgres empties an UNLOGGED table when it recovers from a crash, and a standby that takes over has none
    of its rows; a table of Aria is not replicated, and a crash may cost its end.

    Raises:
        TransientTargetError: rows are missing; the next try stages them anew.
        AccountingError: all are there, and are not the upserts and deletes that the batch was said to have.
    """
    cursor.execute(
        f"SELECT s.t_delete, COUNT(*) FROM {merge.stage} s WHERE {merge.counted} GROUP BY s.t_delete"
    )
    found = {kind: int(rows) for kind, rows in cursor.fetchall()}
    upserts, deletes = found.get(0, 0), found.get(1, 0)
    if (upserts, deletes) == (merge.upserts, merge.deletes):
        return
    told = (
        f"{upserts} upserts and {deletes} deletes are in the staging table, of {merge.upserts} and "
        f"{merge.deletes} that the batch has"
    )
    if sum(found.values()) == merge.upserts + merge.deletes:
        raise AccountingError(told, table=str(merge.place.source))
    raise TransientTargetError(
        f"{told}: the database lost rows since they were staged (did it restart, or fail over?), and nothing "
        "was written",
        table=str(merge.place.source),
    )


def not_stored(cursor: Any, merge: Merge) -> tuple[str, dict[str, Any]] | None:
    """Why a row that leaves out values cannot be written, and where it came from; None where all can."""
    key = merge.keys[0].target
    gone = f"t.{key} IS NULL OR s.t_anew = 1"
    if merge.mark:
        gone += f" OR t.{merge.mark}"
    cursor.execute(
        f"SELECT s.t_place FROM {merge.stage} s LEFT JOIN {merge.target} t ON {merge.on} "
        f"WHERE {merge.rows(deletes=False)} AND s.t_kept IS NOT NULL AND ({gone}) LIMIT 1"
    )
    row = cursor.fetchone()
    if row is None:
        return None
    told = json.loads(row[0])
    message = NOT_STORED.format(columns=", ".join(told.pop("_kept")))
    return message, {name.removeprefix("_"): value for name, value in told.items()}


def fill_kept(cursor: Any, database: Database, merge: Merge) -> None:
    """Give rows in the staging table the stored values of what they leave out, where their row lives."""
    # One % alone: the statement goes without parameters.
    values = {
        column.staged: f"CASE WHEN s.t_kept LIKE '%,{at},%' THEN t.{column.target} ELSE s.{column.staged} END"
        for at, column in merge.kept
    }
    where = f"{merge.rows(deletes=False)} AND s.t_kept IS NOT NULL AND s.t_anew = 0"
    if merge.mark:
        where += f" AND t.{merge.mark} IS NOT TRUE"
    if database == "postgres":
        sets = ", ".join(f"{name} = {value}" for name, value in values.items())
        cursor.execute(
            f"UPDATE {merge.stage} AS s SET {sets} FROM {merge.target} AS t WHERE {merge.on} AND {where}"
        )
        return
    sets = ", ".join(f"s.{name} = {value}" for name, value in values.items())
    cursor.execute(f"UPDATE {merge.stage} s JOIN {merge.target} t ON {merge.on} SET {sets} WHERE {where}")
