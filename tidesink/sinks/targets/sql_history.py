"""A history in a SQL database: what a batch changes is computed by one query, in the batch's transaction.

The law is ``sinks.history``'s. The stored rows of the batch's keys give their events back; with the staged
ones they make a timeline, kept in a temporary table: a row for each key and moment, and what is to be
done there. Four statements carry it out, and their own counts must be those of the timeline.
"""

# ruff: noqa: S608  every name in a statement is quoted by identifier.py, every number is one of ours
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from tidesink.errors import AccountingError
from tidesink.sinks.history import FROM_COLUMN, LOGICAL_BITS, TO_COLUMN, HistoryNames
from tidesink.sinks.targets.base import ReducedBatch
from tidesink.sinks.targets.sql_dialect import Counts, Merge
from tidesink.typemap.render_sql import Database

# What is to be done at a moment of the timeline.
_NOTHING, _BEGIN, _END, _MARK, _FORGET = range(5)
_OWN: Final = "_tidesink_timeline"
# From this many rows on a loop over the index is slower than to read the table.
_MANY_ROWS: Final = 20_000
_COUNTED: Final = (
    f"SUM(CASE WHEN op = {_BEGIN} THEN 1 ELSE 0 END)",
    f"SUM(CASE WHEN op = {_BEGIN} AND mark = 1 THEN 1 ELSE 0 END)",
    f"SUM(CASE WHEN op = {_END} THEN 1 ELSE 0 END)",
    f"SUM(CASE WHEN op = {_MARK} THEN 1 ELSE 0 END)",
    f"SUM(CASE WHEN op = {_FORGET} THEN 1 ELSE 0 END)",
    "SUM(CASE WHEN sent = 0 AND held IS NULL AND was = 1 THEN 1 ELSE 0 END)",
    "SUM(CASE WHEN sent = 0 AND held IS NULL AND was = 0 THEN 1 ELSE 0 END)",
    "SUM(CASE WHEN held >= sent THEN 1 ELSE 0 END)",
)


@dataclass(frozen=True)
class _Words:
    """What a database says in its own way; ``{}`` stands for a number, a table or a condition."""

    number: str
    join: str
    instant: str
    make: str
    update: str
    delete: str


_WORDS: Final[Mapping[Database, _Words]] = MappingProxyType(
    {
        "postgres": _Words(
            "bigint",
            "JOIN",
            f"TIMESTAMPTZ '1970-01-01 00:00:00+00' + ({{}} >> {LOGICAL_BITS}) * INTERVAL '1 millisecond'",
            "CREATE TEMPORARY TABLE {own} ON COMMIT DROP AS {query}",
            "UPDATE {target} AS t SET {sets} FROM {own} x WHERE {where}",
            "DELETE FROM {target} AS t USING {own} x WHERE {where}",
        ),
        "mysql": _Words(
            "signed",
            "STRAIGHT_JOIN",
            "TIMESTAMP'1970-01-01 00:00:00.000000' + INTERVAL "
            f"(CAST({{}} >> {LOGICAL_BITS} AS signed) * 1000) MICROSECOND",
            "CREATE TEMPORARY TABLE {own} (PRIMARY KEY ({key})) ENGINE=InnoDB AS {query}",
            "UPDATE {own} x STRAIGHT_JOIN {target} t ON {where} SET {sets}",
            "DELETE t FROM {own} x STRAIGHT_JOIN {target} t ON {where}",
        ),
    }
)


def merged_versions(cursor: Any, database: Database, merge: Merge, batch: ReducedBatch) -> Counts:
    """Put a staged batch of versions into the table.

    Raises:
        AccountingError: the statements changed other rows than the timeline says.
    """
    versions = _Versions(cursor, database, merge, batch)
    versions.prepare()
    begun, replaced, ended, marked, forgotten, ends, absent, stale = versions.counts()
    done = (versions.deleted(), versions.updated(), versions.inserted())
    versions.drop()
    if done != (replaced + forgotten, ended, begun + marked) or (
        begun + ends + absent + stale != merge.upserts + merge.deletes
    ):
        raise AccountingError(
            f"{done[0]} rows were deleted, {done[1]} updated and {done[2]} inserted for {begun} versions "
            f"that begin ({replaced} in a mark's place), {ended} that end, {marked} marks and {forgotten} "
            f"fewer; {stale} of {merge.upserts} writes and {merge.deletes} deletes were known",
            table=str(batch.shape.table),
        )
    return Counts(begun, 0, ends, stale, absent)


class _Versions:
    """The statements of one batch."""

    def __init__(self, cursor: Any, database: Database, merge: Merge, batch: ReducedBatch) -> None:
        self._cursor = cursor
        self._database = database
        self._words = _WORDS[database]
        self._merge = merge
        self._batch = batch
        quote = merge.place.quote
        self._own = quote(_OWN)
        self._start, self._end = quote(FROM_COLUMN), quote(TO_COLUMN)
        names = batch.history or HistoryNames()
        self._times = (quote(names.valid_from), quote(names.valid_to), quote(names.current))
        self._keys = [f"k{at}" for at in range(len(merge.keys))]

    def prepare(self) -> None:
        """Make the timeline."""
        if self._database == "postgres":
            if self._merge.upserts + self._merge.deletes > _MANY_ROWS:
                self._cursor.execute("SET LOCAL enable_nestloop TO off")
        else:
            # A DELETE with aliases and a temporary table want a database chosen.
            self._cursor.execute(f"USE {self._merge.place.quote(self._merge.place.schema)}")
            # A transaction that failed leaves it behind.
            self._cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {self._own}")
        key = ", ".join((*self._keys, "moment"))
        self._cursor.execute(self._words.make.format(own=self._own, key=key, query=self._timeline()))

    def counts(self) -> tuple[int, ...]:
        """What the timeline says is to be done, and what became of the events."""
        self._cursor.execute(f"SELECT {', '.join(_COUNTED)} FROM {self._own}")
        return tuple(int(found or 0) for found in self._cursor.fetchone())

    def deleted(self) -> int:
        """Remove marks: of deletes that end a version, and those whose moment is written now."""
        where = f"{self._same()} AND (x.op = {_FORGET} OR (x.op = {_BEGIN} AND x.mark = 1))"
        return self._run(self._words.delete, where)

    def updated(self) -> int:
        """End stored versions."""
        to, current = self._times[1:]
        values = {self._end: "x.ends_at", to: self._instant("x.ends_at"), current: "(x.ends_at IS NULL)"}
        alias = "" if self._database == "postgres" else "t."
        sets = ", ".join(f"{alias}{name} = {value}" for name, value in values.items())
        return self._run(self._words.update, f"{self._same()} AND x.op = {_END}", sets)

    def inserted(self) -> int:
        """Write versions and marks, which have a key and no other value."""
        merge = self._merge
        keys = dict(zip((column.target for column in merge.keys), self._keys, strict=True))
        values = {c.target: f"x.{keys[c.target]}" if c.key else f"s.{c.staged}" for c in merge.columns}
        start, to, current = self._times
        values |= {
            self._start: "x.moment",
            self._end: "x.ends_at",
            start: self._instant("x.moment"),
            to: self._instant("x.ends_at"),
            current: "(x.ends_at IS NULL)",
        }
        same = [f"s.{c.staged} = x.{name}" for c, name in zip(merge.keys, self._keys, strict=True)]
        written = " AND ".join([*same, "s.t_at = x.moment", merge.rows(deletes=False)])
        self._cursor.execute(
            f"INSERT INTO {merge.target} ({', '.join(values)}) SELECT {', '.join(values.values())} "
            f"FROM {self._own} x LEFT JOIN {merge.stage} s ON {written} "
            f"WHERE x.op IN ({_BEGIN}, {_MARK})"
        )
        return int(self._cursor.rowcount)

    def drop(self) -> None:
        """Drop the timeline where the commit does not."""
        if self._database == "mysql":
            self._cursor.execute(f"DROP TEMPORARY TABLE {self._own}")

    def _run(self, statement: str, where: str, sets: str = "") -> int:
        self._cursor.execute(
            statement.format(target=self._merge.target, own=self._own, where=where, sets=sets)
        )
        return int(self._cursor.rowcount)

    def _same(self) -> str:
        pairs = zip(self._merge.keys, self._keys, strict=True)
        same = [f"t.{column.target} = x.{name}" for column, name in pairs]
        return " AND ".join([*same, f"t.{self._start} = x.moment"])

    def _instant(self, number: str) -> str:
        return self._words.instant.format(number)

    def _timeline(self) -> str:
        """A row for each key and moment: what is stored, what was sent, and what is to be done."""
        keys, merge, none = ", ".join(self._keys), self._merge, f"CAST(NULL AS {self._words.number})"
        named = [f"{c.staged} AS {name}" for c, name in zip(merge.keys, self._keys, strict=True)]
        staged = ", ".join(f"s.{name}" for name in named)
        pairs = list(zip(merge.keys, self._keys, strict=True))
        same = " AND ".join(f"t.{column.target} = x.{name}" for column, name in pairs)
        since = f"(t.{self._end} IS NULL OR t.{self._end} >= {int(self._batch.since or 0)})"
        window = f"OVER (PARTITION BY {keys} ORDER BY moment)"
        is_mark = "(till IS NOT NULL AND till = moment)"
        return (
            f"WITH touched AS (SELECT DISTINCT {staged} FROM {merge.stage} s WHERE {merge.counted}), "
            f"spans AS (SELECT {', '.join(f'x.{name}' for name in self._keys)}, "
            f"t.{self._start} AS moment, t.{self._end} AS till "
            f"FROM touched x {self._words.join} {merge.target} t ON {same} WHERE {since}), "
            f"events AS (SELECT {staged}, s.t_at AS moment, 1 - s.t_delete AS sent, {none} AS held, "
            f"0 AS mark, {none} AS till FROM {merge.stage} s WHERE {merge.counted} "
            f"UNION ALL SELECT {keys}, moment, {none}, CASE WHEN {is_mark} THEN 0 ELSE 1 END, "
            f"CASE WHEN {is_mark} THEN 1 ELSE 0 END, CASE WHEN {is_mark} THEN NULL ELSE till END FROM spans "
            f"UNION ALL SELECT {keys}, till, {none}, 0, 0, {none} FROM spans "
            "WHERE till IS NOT NULL AND till <> moment), "
            f"moments AS (SELECT {keys}, moment, MAX(sent) AS sent, MAX(held) AS held, "
            f"MAX(mark) AS mark, MAX(till) AS till FROM events GROUP BY {keys}, moment), "
            f"said AS (SELECT {keys}, moment, sent, held, mark, till, "
            "GREATEST(COALESCE(held, 0), COALESCE(sent, 0)) AS writes FROM moments), "
            f"ordered AS (SELECT {keys}, moment, sent, held, mark, till, writes, "
            f"LEAD(moment) {window} AS next_moment, COALESCE(LAG(writes) {window}, 0) AS was FROM said) "
            f"SELECT {keys}, moment, sent, held, mark, was, "
            "CASE WHEN writes = 1 THEN next_moment ELSE moment END AS ends_at, "
            f"CASE WHEN writes = 1 AND COALESCE(held, 0) = 0 THEN {_BEGIN} "
            f"WHEN writes = 1 AND COALESCE(till, -1) <> COALESCE(next_moment, -1) THEN {_END} "
            f"WHEN writes = 0 AND mark = 1 AND was = 1 THEN {_FORGET} "
            f"WHEN writes = 0 AND mark = 0 AND was = 0 THEN {_MARK} ELSE {_NOTHING} END AS op FROM ordered"
        )
