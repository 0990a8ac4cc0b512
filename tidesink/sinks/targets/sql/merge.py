"""Merges a batch's staged rows into a target table: the parts that all SQL databases share.

For ``mode: history``, one query in the batch's transaction computes the changes. It converts the stored
versions of the batch's keys back to events, and combines them with the staged events in a temporary table,
the timeline. The timeline has one row per key and commit_ts ("moment"), with the operation to carry out
there. Three statements carry out the operations, and their row counts must match the timeline.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import AccountingError, SchemaRefusedError, TargetError, TransientTargetError
from tidesink.events import LOGICAL_BITS, folding
from tidesink.sinks.laws.modes import FROM_COLUMN, READ_COLUMN, TO_COLUMN, HistoryNames
from tidesink.sinks.spark.errors import NOT_STORED
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SOFT_DELETE_COLUMN, ReducedBatch
from tidesink.sinks.targets.sql.columns import Mend
from tidesink.sinks.targets.sql.dialect import Counts, Merge, MergeColumn
from tidesink.sinks.targets.sql.load import place_of, staged_name
from tidesink.sinks.targets.sql.location import SEQUENCE_TYPES, Place
from tidesink.typemap.native_sql import Native
from tidesink.typemap.render_sql import OF_SPARK, Database
from tidesink.typemap.target_schema import TargetSchema

if TYPE_CHECKING:
    from tidesink.sinks.targets.sql.dialect import Dialect


def merge_of(
    batch: ReducedBatch,
    place: Place,
    present: Mapping[str, str],
    *,
    attempts: tuple[int, ...],
    stage: str,
    beside: Iterable[str] = (),
    natives: Mapping[int, Native] = MappingProxyType({}),
) -> Merge:
    """Return the parameters of merging a staged batch into its target table.

    ``present``: the target's columns: type by name.
    ``attempts``: ids of the task attempts whose staged rows make up the batch.
    ``stage``: the staging table that has the rows.
    ``beside``: target columns that the batch does not have. With ``sequence_by: source``, a delete sets them
        to NULL.
    ``natives``: target columns with types that the user chose, by index in ``batch.shape`` (``natives_of``).
    """
    fold = folding(present, (column.name for column in batch.shape.columns))
    spelt = {fold(name): place.quote(name) for name in present}
    cast = {index for index, fit in natives.items() if fit.kept is not None}
    columns = tuple(
        MergeColumn(
            spelt[fold(column.name)], native_name(index) if index in cast else staged_name(index), column.key
        )
        for index, column in enumerate(batch.shape.columns)
    )
    value_columns = tuple((index, column) for index, column in enumerate(columns) if not column.key)
    return Merge(
        place.location,
        stage,
        columns,
        attempts,
        batch.upserts,
        batch.deletes,
        batch.how.delete_mode == "soft",
        place.quote(SOFT_DELETE_COLUMN) if SOFT_DELETE_COLUMN in present else None,
        place,
        value_columns if batch.keeps else (),
        place.quote(SEQUENCE_COLUMN) if batch.sequenced else None,
        tuple(
            columns[index]
            for index, column in enumerate(batch.shape.columns)
            if column.name in batch.how.on_delete
        ),
        tuple(map(place.quote, beside)),
    )


def native_name(at: int) -> str:
    """Return the name of the staging column that holds the values of the column ``staged_name(at)`` after
    ``cast_staged`` has cast them to the target's type.
    """
    return f"n{at}"


_BEFORE_CASTS: Final = "tidesink_casts"


def cast_staged(
    cursor: Any,
    dialect: Dialect,
    merge: Merge,
    shape: TargetSchema,
    natives: Mapping[int, Native],
    mend: Mend,
) -> None:
    """Cast staged values to the types that the user chose for target columns, and check the results.

    ``natives``: the columns with such types, by index in ``shape``.
    ``mend``: returns the statements that change a column's type, for the message.

    Raises:
        TargetError: a value is not a value of its column's type, or the type would cut, round, pad or rewrite
            it.
    """
    casts = {index: fit for index, fit in natives.items() if fit.kept is not None}
    if not casts:
        return
    cursor.execute(f"SAVEPOINT {_BEFORE_CASTS}")
    changed = _changed_by_casts(cursor, dialect, merge, casts)
    if changed is None:  # some cast failed: cast each column separately to find it
        changed = [
            index
            for index, fit in casts.items()
            if _changed_by_casts(cursor, dialect, merge, {index: fit}) != []
        ]
    if changed:
        types = {shape.columns[index].name: casts[index] for index in changed}
        detail = ", ".join(f"the column {name} is {fit.found}" for name, fit in types.items())
        ways = "; ".join(way for name, fit in types.items() for way in mend(name, fit.wanted))
        raise TargetError(
            f"A value does not fit into {merge.place.shown}, where {detail}: it is not a value of that type, "
            "or the type would change it. Nothing was written. Correct the row at the source, or change the "
            f"column's type: {ways}",
            table=str(merge.place.source),
            column=next(iter(types)),
        )


def _changed_by_casts(
    cursor: Any, dialect: Dialect, merge: Merge, casts: Mapping[int, Native]
) -> list[int] | None:
    """Cast staged columns, and return the indexes of the columns in which the cast changed a value.

    Returns None if a cast failed.
    """
    sets = ", ".join(
        f"{native_name(index)} = {fit.cast_of(f's.{staged_name(index)}')}" for index, fit in casts.items()
    )
    same = (
        (f"s.{staged_name(index)}", fit.same_as(f"s.{staged_name(index)}", f"s.{native_name(index)}"))
        for index, fit in casts.items()
    )
    asked = ", ".join(
        f"MAX(CASE WHEN {value} IS NULL OR ({unchanged}) THEN 0 ELSE 1 END)" for value, unchanged in same
    )
    try:
        cursor.execute(f"UPDATE {merge.stage} AS s SET {sets} WHERE {merge.counted}")
        cursor.execute(f"SELECT {asked} FROM {merge.stage} s WHERE {merge.counted}")
        row = cursor.fetchone()
    except dialect.driver.errors as exc:
        fault = dialect.driver.fault_of(exc)
        if fault is None or type(dialect.driver.error_of(fault, table=merge.place.shown)) is not TargetError:
            raise
        cursor.execute(f"ROLLBACK TO SAVEPOINT {_BEFORE_CASTS}")
        return None
    return [index for index, changed in zip(casts, row, strict=True) if changed]


def append_staged(cursor: Any, database: Database, merge: Merge) -> Counts:
    """Insert the staged rows of a change log (``mode: append``). None of their keys is in the target yet."""
    names = ", ".join(column.target for column in merge.columns)
    values = ", ".join(f"s.{column.staged}" for column in merge.columns)
    keys = ", ".join(f"s.{column.staged}" for column in merge.keys)
    cursor.execute(
        f"INSERT INTO {merge.target} ({names}) {_WORDS[database].overriding}"
        f"SELECT {values} FROM {merge.stage} s "
        f"WHERE {merge.rows(deletes=False)} ORDER BY {keys}"
    )
    return Counts(inserted=int(cursor.rowcount))


def check_staged(cursor: Any, merge: Merge) -> None:
    """Check that the staging table still has all rows of the batch.

    The database may have lost rows after the tasks committed them. Postgres empties an UNLOGGED table when it
    recovers from a crash, and a promoted standby has none of its rows. An Aria table is not replicated, and
    may lose its last rows in a crash.

    Raises:
        TransientTargetError: rows are missing. When the batch is tried again, they are staged again.
        AccountingError: the total is right, but the numbers of upserts and deletes are not.
    """
    cursor.execute(
        f"SELECT s.t_delete, COUNT(*) FROM {merge.stage} s WHERE {merge.counted} GROUP BY s.t_delete"
    )
    counts = {kind: int(rows) for kind, rows in cursor.fetchall()}
    upserts, deletes = counts.get(0, 0), counts.get(1, 0)
    if (upserts, deletes) == (merge.upserts, merge.deletes):
        return
    message = (
        f"The staging table has {upserts} upserts and {deletes} deletes, but the batch has {merge.upserts} "
        f"and {merge.deletes}"
    )
    if sum(counts.values()) == merge.upserts + merge.deletes:
        raise AccountingError(message, table=str(merge.place.source))
    raise TransientTargetError(
        f"{message}. The database lost rows after they were staged, for example in a restart or a failover. "
        "Nothing was written. The batch is tried again.",
        table=str(merge.place.source),
    )


def not_stored(cursor: Any, merge: Merge, shape: TargetSchema) -> tuple[str, dict[str, Any]] | None:
    """Find a staged row that omits values although the target has no row with its key to take them from.

    Returns the error's message, and topic, partition and offset of the record. Returns None if no such staged
    row exists.
    """
    key = merge.keys[0].target
    absent = f"t.{key} IS NULL OR s.t_after_delete = 1"
    if merge.mark:
        absent += f" OR t.{merge.mark}"
    cursor.execute(
        f"SELECT s.t_place, s.t_kept FROM {merge.stage} s LEFT JOIN {merge.target} t ON {merge.on} "
        f"WHERE {merge.rows(deletes=False)} AND s.t_kept IS NOT NULL AND ({absent}) LIMIT 1"
    )
    row = cursor.fetchone()
    if row is None:
        return None
    source_place, omitted = row
    names = [shape.columns[int(index)].name for index in omitted.strip(",").split(",")]
    return NOT_STORED.format(columns=", ".join(names)), place_of(source_place)


def fill_kept(cursor: Any, database: Database, merge: Merge) -> None:
    """Fill in the values that staged rows omit with the values of the stored rows that have the same key.

    Stored rows that are marked as deleted are not used.
    """
    # A single %, because the statement is executed without parameters.
    values = {
        column.staged: f"CASE WHEN s.t_kept LIKE '%,{at},%' THEN t.{column.target} ELSE s.{column.staged} END"
        for at, column in merge.kept
    }
    where = f"{merge.rows(deletes=False)} AND s.t_kept IS NOT NULL AND s.t_after_delete = 0"
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


def missing_columns(present: Mapping[str, str], dialect: Dialect) -> dict[str, tuple[str, str | None]]:
    """Return the columns that ``sequence_by: source`` needs and the table lacks.

    They are returned as type and default by name. The default is always None, so existing rows get NULL. A
    row whose position is NULL counts as older than every change.
    """
    wanted = {
        SEQUENCE_COLUMN: SEQUENCE_TYPES[dialect.database],
        SOFT_DELETE_COLUMN: OF_SPARK[dialect.database]["boolean"],
    }
    return {name: (column_type, None) for name, column_type in wanted.items() if name not in present}


def check_room_for_deletes(cursor: Any, dialect: Dialect, place: Place, shape: TargetSchema) -> None:
    """Check that a table can store tombstones, which have a key and NULL in all other columns.

    Raises:
        SchemaRefusedError: a column is NOT NULL. The message has the statement that changes it.
    """
    required = dialect.tables.required(cursor, place)
    fold = folding(required, (column.name for column in shape.columns))
    values = {fold(column.name) for column in shape.columns if not column.key}
    named = {name: column_type for name, column_type in required.items() if fold(name) in values}
    if named:
        raise SchemaRefusedError(
            f"The columns {', '.join(named)} of {place.shown} are NOT NULL. Under `sequence_by: source` a "
            "deleted row stays with its key and without other values until `tombstone-retention` has passed. "
            f"Change the columns, and start again: {dialect.tables.optional(place, named)}",
            table=str(place.source),
            column=next(iter(named)),
        )


def newer(merge: Merge, stored: str) -> str:
    """Return an SQL condition that a staged row is newer than its stored row, or that the latter has no
    position.

    ``stored``: the table or alias of the stored row.
    """
    column = f"{stored}.{merge.sequence}"
    return f"({column} IS NULL OR s.t_seq > {column})"


def check_left_alone(merge: Merge, counts: Counts) -> Counts:
    """Check that the merge skipped as many rows as were counted as not newer, and return ``counts``.

    Raises:
        AccountingError: the numbers differ. So a row was lost, or an older row overwrote a newer row.
    """
    left = merge.upserts + merge.deletes - counts.inserted - counts.updated
    if left != counts.stale:
        raise AccountingError(
            f"The merge skipped {left} rows, but {counts.stale} were not newer than the stored rows. "
            "Nothing was written. Report this with the log.",
            table=str(merge.place.source),
        )
    return counts


# Operations of the timeline: nothing, begin a version, end a version, insert the marker of a delete, remove a
# row.
_NOTHING, _BEGIN, _END, _MARK, _FORGET = range(5)
# Kinds of events, in ascending order. If a key has several events at one moment, the greatest kind counts.
_NONE, _READ, _DELETE, _WRITE = range(-1, 3)
_OWN: Final = "_tidesink_timeline"
# From this many rows on, a nested loop over the index is slower than reading the whole table.
_MANY_ROWS: Final = 20_000
_COUNTED: Final = (
    f"SUM(CASE WHEN op = {_BEGIN} THEN 1 ELSE 0 END)",
    f"SUM(CASE WHEN op IN ({_BEGIN}, {_MARK}) AND yields = 1 THEN 1 ELSE 0 END)",
    f"SUM(CASE WHEN op = {_END} THEN 1 ELSE 0 END)",
    f"SUM(CASE WHEN op = {_MARK} THEN 1 ELSE 0 END)",
    f"SUM(CASE WHEN op = {_FORGET} THEN 1 ELSE 0 END)",
    f"SUM(CASE WHEN sent = {_DELETE} AND held < sent AND was = 1 THEN 1 ELSE 0 END)",
    f"SUM(CASE WHEN sent = {_DELETE} AND held < sent AND was = 0 THEN 1 ELSE 0 END)",
    f"SUM(CASE WHEN sent > {_NONE} AND (held >= sent OR counts = 0) THEN 1 ELSE 0 END)",
)


@dataclass(frozen=True)
class _Words:
    """SQL templates for merging histories in one DBMS. Placeholders stand for numbers, tables, conditions."""

    number: str
    join: str
    instant: str
    make: str
    update: str
    delete: str
    overriding: str


_WORDS: Final[Mapping[Database, _Words]] = MappingProxyType(
    {
        "postgres": _Words(
            "bigint",
            "JOIN",
            f"TIMESTAMPTZ '1970-01-01 00:00:00+00' + ({{}} >> {LOGICAL_BITS}) * INTERVAL '1 millisecond'",
            "CREATE TEMPORARY TABLE {own} ON COMMIT DROP AS {query}",
            "UPDATE {target} AS t SET {sets} FROM {own} x WHERE {where}",
            "DELETE FROM {target} AS t USING {own} x WHERE {where}",
            "OVERRIDING SYSTEM VALUE ",
        ),
        "mysql": _Words(
            "signed",
            "STRAIGHT_JOIN",
            "TIMESTAMP'1970-01-01 00:00:00.000000' + INTERVAL "
            f"(CAST({{}} >> {LOGICAL_BITS} AS signed) * 1000) MICROSECOND",
            "CREATE TEMPORARY TABLE {own} (PRIMARY KEY ({key})) ENGINE=InnoDB AS {query}",
            "UPDATE {own} x STRAIGHT_JOIN {target} t ON {where} SET {sets}",
            "DELETE t FROM {own} x STRAIGHT_JOIN {target} t ON {where}",
            "",
        ),
    }
)


def delete_joined(cursor: Any, database: Database, target: str, other: str, where: str) -> int:
    """Delete the rows of ``target`` (alias ``t``) that match a row of ``other`` (alias ``x``).

    Returns the number of deleted rows. ``where``: the SQL condition of a match.
    """
    cursor.execute(_WORDS[database].delete.format(target=target, own=other, where=where))
    return int(cursor.rowcount)


def instant_of(database: Database, commit_ts: str) -> str:
    """Return SQL for the timestamp of a TSO (``commit_ts``), given the SQL expression of its number."""
    return _WORDS[database].instant.format(commit_ts)


def merged_versions(cursor: Any, database: Database, merge: Merge, batch: ReducedBatch) -> Counts:
    """Merge a staged batch of events into a history table, and return the row counts.

    Raises:
        AccountingError: the numbers of changed rows differ from the operations in the timeline.
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
            f"The merge deleted {done[0]} rows, updated {done[1]} and inserted {done[2]}. But the computed "
            f"history has {begun} versions that begin and {marked} delete markers ({replaced} of both "
            "replace a "
            f"row), {ended} versions that end, and {forgotten} rows to remove. Of the batch's "
            f"{merge.upserts} "
            f"upserts and {merge.deletes} deletes, {stale} were applied by an earlier batch or have no "
            "effect. These numbers do not match. Nothing was written. Report this with the log.",
            table=str(batch.shape.table),
        )
    return Counts(begun, 0, ends, stale, absent)


class _Versions:
    """The statements that merge one batch into a history table."""

    def __init__(self, cursor: Any, database: Database, merge: Merge, batch: ReducedBatch) -> None:
        self._cursor = cursor
        self._database = database
        self._words = _WORDS[database]
        self._merge = merge
        self._batch = batch
        quote = merge.place.quote
        self._own = quote(_OWN)
        self._start, self._end, self._read = map(quote, (FROM_COLUMN, TO_COLUMN, READ_COLUMN))
        names = batch.how.history or HistoryNames()
        self._times = (quote(names.valid_from), quote(names.valid_to), quote(names.current))
        self._keys = [f"k{index}" for index in range(len(merge.keys))]

    def prepare(self) -> None:
        """Compute the timeline of the batch's keys (see the module's docstring) into a temporary table."""
        if self._database == "postgres":
            if self._merge.upserts + self._merge.deletes > _MANY_ROWS:
                self._cursor.execute("SET LOCAL enable_nestloop TO off")
        else:
            # A DELETE with aliases and a temporary table need a current database.
            self._cursor.execute(f"USE {self._merge.place.quote(self._merge.place.schema)}")
            # A failed transaction leaves the temporary table behind.
            self._cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {self._own}")
        key = ", ".join((*self._keys, "moment"))
        self._cursor.execute(self._words.make.format(own=self._own, key=key, query=self._timeline()))

    def counts(self) -> tuple[int, ...]:
        """Count the timeline's operations by kind, and the staged events by outcome.

        Returns the numbers in the order of ``_COUNTED``.
        """
        self._cursor.execute(f"SELECT {', '.join(_COUNTED)} FROM {self._own}")
        return tuple(int(number or 0) for number in self._cursor.fetchone())

    def deleted(self) -> int:
        """Delete the history's rows that the batch removes or replaces. Returns their number.

        Two kinds of rows are removed. One is the marker of a delete that now ends a version. The other is a
        row that a snapshot read, if its key now has an earlier event.
        """
        replaced = f"x.op IN ({_BEGIN}, {_MARK}) AND x.yields = 1"
        where = f"{self._same()} AND (x.op = {_FORGET} OR ({replaced}))"
        return delete_joined(self._cursor, self._database, self._merge.target, self._own, where)

    def updated(self) -> int:
        """Set the end of stored versions that the batch ends, or whose end it moves. Returns their number."""
        to, current = self._times[1:]
        values = {self._end: "x.ends_at", to: self._instant("x.ends_at"), current: "(x.ends_at IS NULL)"}
        alias = "" if self._database == "postgres" else "t."
        sets = ", ".join(f"{alias}{name} = {value}" for name, value in values.items())
        where = f"{self._same()} AND x.op = {_END}"
        self._cursor.execute(
            self._words.update.format(target=self._merge.target, own=self._own, where=where, sets=sets)
        )
        return int(self._cursor.rowcount)

    def inserted(self) -> int:
        """Insert new versions and delete markers into the history. Returns their number."""
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
            self._read: f"(x.kind = {_READ})",
        }
        same = [f"s.{c.staged} = x.{name}" for c, name in zip(merge.keys, self._keys, strict=True)]
        written = " AND ".join([*same, "s.t_at = x.moment", merge.rows(deletes=False)])
        self._cursor.execute(
            f"INSERT INTO {merge.target} ({', '.join(values)}) {self._words.overriding}"
            f"SELECT {', '.join(values.values())} FROM {self._own} x LEFT JOIN {merge.stage} s ON {written} "
            f"WHERE x.op IN ({_BEGIN}, {_MARK})"
        )
        return int(self._cursor.rowcount)

    def drop(self) -> None:
        """Drop the timeline's table, except in Postgres, where the commit drops it."""
        if self._database == "mysql":
            self._cursor.execute(f"DROP TEMPORARY TABLE {self._own}")

    def _same(self) -> str:
        pairs = zip(self._merge.keys, self._keys, strict=True)
        same = [f"t.{column.target} = x.{name}" for column, name in pairs]
        return " AND ".join([*same, f"t.{self._start} = x.moment"])

    def _instant(self, number: str) -> str:
        return instant_of(self._database, number)

    def _timeline(self) -> str:
        """Return the query of the timeline, which has one row per key and moment. Its columns:

        ``sent``, ``held``: kinds of the staged event and of the stored event at the moment.
        ``kind``: the greater of ``sent`` and ``held``.
        ``counts``: 0 for a snapshot's read whose key has an earlier event. Other moments ignore such a read.
        ``yields``: 1 if the stored row is a delete marker or a snapshot's read, which other rows replace.
        ``was``: 1 if a version is valid until the moment.
        ``ends_at``: the moment at which the row's version ends, or NULL if it is current. A delete marker
            ends at its own moment.
        ``op``: the operation to carry out.
        """
        keys, merge = ", ".join(self._keys), self._merge
        pairs = list(zip(merge.keys, self._keys, strict=True))
        staged = ", ".join(f"s.{column.staged} AS {name}" for column, name in pairs)
        kind = f"CASE s.t_delete WHEN 1 THEN {_DELETE} ELSE {_WRITE} END"
        sent = str(_READ) if self._batch.how.reads else kind
        is_mark = "(till IS NOT NULL AND till = moment)"
        held = f"CASE WHEN {is_mark} THEN {_DELETE} WHEN from_read THEN {_READ} ELSE {_WRITE} END"
        none = f"CAST(NULL AS {self._words.number})"
        window = f"OVER (PARTITION BY {keys}, counts ORDER BY moment)"
        return (
            f"WITH touched AS (SELECT DISTINCT {staged} FROM {merge.stage} s WHERE {merge.counted}), "
            f"spans AS ({self._spans(pairs)}), "
            f"events AS (SELECT {staged}, s.t_at AS moment, {sent} AS sent, {_NONE} AS held, "
            f"0 AS yields, {none} AS till FROM {merge.stage} s WHERE {merge.counted} "
            f"UNION ALL SELECT {keys}, moment, {_NONE}, {held}, "
            f"CASE WHEN {is_mark} OR from_read THEN 1 ELSE 0 END, "
            f"CASE WHEN {is_mark} THEN NULL ELSE till END FROM spans "
            f"UNION ALL SELECT {keys}, till, {_NONE}, {_DELETE}, 0, {none} FROM spans "
            "WHERE till IS NOT NULL AND till <> moment), "
            f"moments AS (SELECT {keys}, moment, MAX(sent) AS sent, MAX(held) AS held, "
            f"GREATEST(MAX(sent), MAX(held)) AS kind, MAX(yields) AS yields, MAX(till) AS till "
            f"FROM events GROUP BY {keys}, moment), "
            f"said AS (SELECT {keys}, moment, sent, held, kind, yields, till, "
            f"CASE WHEN kind = {_DELETE} THEN 0 ELSE 1 END AS writes, "
            f"CASE WHEN kind = {_READ} AND LAG(moment) OVER (PARTITION BY {keys} ORDER BY moment) "
            "IS NOT NULL THEN 0 ELSE 1 END AS counts FROM moments), "
            f"ordered AS (SELECT {keys}, moment, sent, held, kind, yields, till, writes, counts, "
            f"LEAD(moment) {window} AS next_moment, COALESCE(LAG(writes) {window}, 0) AS was FROM said) "
            f"SELECT {keys}, moment, sent, held, kind, yields, counts, was, "
            "CASE WHEN writes = 1 THEN next_moment ELSE moment END AS ends_at, "
            f"CASE WHEN counts = 0 AND held = {_READ} THEN {_FORGET} "
            f"WHEN counts = 0 THEN {_NOTHING} "
            f"WHEN writes = 1 AND held < kind THEN {_BEGIN} "
            f"WHEN writes = 1 AND COALESCE(till, -1) <> COALESCE(next_moment, -1) THEN {_END} "
            f"WHEN writes = 0 AND yields = 1 AND was = 1 THEN {_FORGET} "
            f"WHEN writes = 0 AND was = 0 AND (yields = 0 OR held = {_READ}) THEN {_MARK} "
            f"ELSE {_NOTHING} END AS op FROM ordered"
        )

    def _spans(self, pairs: Sequence[tuple[MergeColumn, str]]) -> str:
        """Return the query of the stored rows of the batch's keys that the batch can affect.

        For a batch of rows that a snapshot read, this is the first stored row of each key. For a batch of
        events, these are the rows that have no end, or end at or after the batch's first event.
        """
        named = ", ".join(f"x.{name}" for _, name in pairs)
        same = " AND ".join(f"t.{column.target} = x.{name}" for column, name in pairs)
        joined = f"x {self._words.join} {self._merge.target} t ON {same}"
        if self._batch.how.reads:
            first = f"SELECT {named}, MIN(t.{self._start}) AS moment FROM touched {joined} GROUP BY {named}"
            rows = f"({first}) {joined} AND t.{self._start} = x.moment"
        else:
            since = int(self._batch.since or 0)
            rows = f"touched {joined} WHERE t.{self._end} IS NULL OR t.{self._end} >= {since}"
        return (
            f"SELECT {named}, t.{self._start} AS moment, t.{self._end} AS till, "
            f"COALESCE(t.{self._read}, FALSE) AS from_read FROM {rows}"
        )
