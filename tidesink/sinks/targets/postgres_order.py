"""How a batch in the source's order is merged in Postgres: what is not newer leaves the stored row alone."""

# ruff: noqa: S608  every name in a statement is quoted by identifier.py, every number is one of ours
from __future__ import annotations

from typing import Any

from tidesink.sinks.targets.postgres_merge import is_partitioned, prepare
from tidesink.sinks.targets.sql_dialect import Counts, Merge, MergeColumn
from tidesink.sinks.targets.sql_order import check_left_alone


def merged_in_order(cursor: Any, merge: Merge) -> Counts:
    """Upserts and deletes in one statement; its own counts are held to a count made before it."""
    prepare(cursor, merge)
    stale = _not_newer(cursor, merge)
    upsert = _upsert(merge)
    if is_partitioned(cursor, merge):
        cursor.execute(
            f"SELECT count(*) FROM {merge.stage} s JOIN {merge.target} t ON {merge.on} WHERE {merge.counted}"
        )
        updated = cursor.fetchone()[0] - stale
        cursor.execute(upsert)
        inserted = cursor.rowcount - updated
    else:
        # A row that was there has the lock of this transaction on its old version, a new one has none.
        cursor.execute(
            f"WITH merged AS ({upsert} RETURNING xmax = 0 AS is_new) "
            "SELECT count(*) FILTER (WHERE is_new), count(*) FILTER (WHERE NOT is_new) FROM merged"
        )
        inserted, updated = cursor.fetchone()
    return check_left_alone(merge, Counts(inserted, updated, stale=stale))


def _not_newer(cursor: Any, merge: Merge) -> int:
    """How many rows are not newer than what is stored: one look into the key's index for each."""
    cursor.execute(f"SELECT EXISTS (SELECT 1 FROM {merge.target})")
    if not cursor.fetchone()[0]:
        return 0
    # Statistics of a table that grew since would have it read as a whole for every row.
    cursor.execute("SET LOCAL enable_seqscan TO off")
    cursor.execute(
        f"SELECT count(*) FROM {merge.stage} s WHERE {merge.counted} "
        f"AND s.t_seq <= (SELECT t.{merge.sequence} FROM {merge.target} t WHERE {merge.on})"
    )
    (found,) = cursor.fetchone()
    cursor.execute("SET LOCAL enable_seqscan TO DEFAULT")
    return int(found)


def _upsert(merge: Merge) -> str:
    names = [*(column.target for column in merge.columns), merge.mark, merge.sequence]
    values = [*(f"s.{column.staged}" for column in merge.columns), "s.t_delete = 1", "s.t_seq"]
    sets = [f"{column.target} = {_written(merge, column)}" for column in merge.values]
    sets += [f"{name} = CASE WHEN EXCLUDED.{merge.mark} THEN NULL ELSE t.{name} END" for name in merge.beside]
    sets += [f"{name} = EXCLUDED.{name}" for name in (merge.mark, merge.sequence)]
    keys = ", ".join(column.target for column in merge.keys)
    return (
        f"INSERT INTO {merge.target} AS t ({', '.join(map(str, names))}) "
        f"SELECT {', '.join(values)} FROM {merge.stage} s "
        f"WHERE {merge.counted} ORDER BY {', '.join(f's.{c.staged}' for c in merge.keys)} "
        f"ON CONFLICT ({keys}) DO UPDATE SET {', '.join(sets)} "
        f"WHERE t.{merge.sequence} IS NULL OR EXCLUDED.{merge.sequence} > t.{merge.sequence}"
    )


def _written(merge: Merge, column: MergeColumn) -> str:
    """A delete that is soft leaves the values but those it tells, another leaves none."""
    stays = merge.soft and column not in merge.on_delete
    value = f"EXCLUDED.{column.target}"
    return f"CASE WHEN EXCLUDED.{merge.mark} THEN t.{column.target} ELSE {value} END" if stays else value
