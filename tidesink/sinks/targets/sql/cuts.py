"""Cuts in a database: one transaction merges the changes of all tables up to a commit_ts (ADR 36).

Between two cuts, each table's batches are gathered in a side table, which has every key's last change since
the previous cut. A batch's gathered rows and its progress are committed together, so the progress in the
ledger includes gathered changes. Readers of the target tables see the source as of the last cut, and never
half of a transaction.

A table whose rows are newer than the cut, because its snapshot is still running, is excluded from it. The
changes gathered for it are merged, and from then on each of its batches is merged into the target table
directly. The first such transaction adds a row to ``_tidesink_excluded``, which stays until a cut includes
the table again.

The transaction of a cut locks each table's ledger row, in the order of table names. It checks that this
worker still holds each table, and that no batch was applied to the table since the cut was planned. Then it
merges the gathered
changes, deletes them from the side tables, and records the cut.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from tidesink.errors import TargetError
from tidesink.events import LOGICAL_BITS, TableId, fold_name, folding
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN, ReducedBatch, TargetTable
from tidesink.sinks.targets.cuts import NAME, CutTable
from tidesink.sinks.targets.sql.columns import default_literals, plan_columns
from tidesink.sinks.targets.sql.dialect import Connections, Counts, Merge, MergeColumn
from tidesink.sinks.targets.sql.hold import SqlHold
from tidesink.sinks.targets.sql.load import ATTEMPT, IS_DELETE
from tidesink.sinks.targets.sql.location import Place
from tidesink.sinks.targets.sql.merge import delete_joined, instant_of
from tidesink.typemap.render_sql import OF_SPARK, Database, plain_type
from tidesink.typemap.target_schema import TargetSchema

if TYPE_CHECKING:
    from tidesink.sinks.targets.sql.dialect import Dialect


class GatheringTable(Protocol):
    """A target table whose changes are gathered in a side table until the next cut."""

    def lock_for_cut(self, cursor: Any, version: int) -> None:
        """Lock the table's ledger row, in the transaction that publishes a cut.

        ``version``: the number of commits that the ledger row must have.

        Raises:
            StaleProgressError: another worker holds the table, or the ledger row has another number of
                commits.
        """

    def merge_gathered(self, cursor: Any) -> None:
        """Merge the gathered changes into the target table, in the transaction that publishes a cut.

        The transaction must already have locked the ledger row (``lock_for_cut``).
        """


class Gathered:
    """The side table of a target table: the last change of each key since the previous cut.

    It has the target's column names, and the column ``SOFT_DELETE_COLUMN``, which is true if the key was
    deleted.
    """

    def __init__(self, dialect: Dialect, place: Place) -> None:
        self._dialect = dialect
        self._target = place
        self.place = replace(place, name=place.gathered)
        self._mark = dialect.quote(SOFT_DELETE_COLUMN)
        self._present: dict[str, str] = {}

    def prepare(self, cursor: Any, shape: TargetSchema, present: Mapping[str, str], *, empty: bool) -> None:
        """Create the side table if missing, with the target's columns that are in ``shape``.

        ``present``: the target's columns: type by name.
        ``empty``: drop an existing side table first.
        """
        if empty:
            cursor.execute(f"DROP TABLE IF EXISTS {self.place.location}")
        if not self.look(cursor):
            fold = folding(present, (column.name for column in shape.columns))
            keys = {fold(column.name): column.key for column in shape.columns}
            columns = [
                (name, plain_type(column_type), keys[fold(name)], "")
                for name, column_type in present.items()
                if fold(name) in keys
            ]
            mark = OF_SPARK[self._dialect.database]["boolean"]
            self._dialect.tables.create(
                cursor, self.place, [*columns, (SOFT_DELETE_COLUMN, mark, False, "the key is deleted")]
            )
            self.look(cursor)

    def look(self, cursor: Any) -> bool:
        """Read and cache the side table's columns. Returns True if the side table exists."""
        self._present = self._dialect.tables.present(cursor, self.place)
        return bool(self._present)

    @property
    def present(self) -> Mapping[str, str]:
        """The columns of the side table when ``look`` last read them: type by name."""
        return self._present

    def lacks(self, shape: TargetSchema) -> bool:
        """Return True if the side table's columns must change before it can store rows of ``shape``."""
        return plan_columns(self._present, shape, self._dialect.database).needed

    def growing(self, cursor: Any, shape: TargetSchema) -> list[str]:
        """Return the statements that add and widen the side table's columns so that it can store rows of
        ``shape``.

        Changes that are already in the side table get the default of a new column, as the target's rows do.
        """
        self.look(cursor)
        plan = plan_columns(self._present, shape, self._dialect.database)
        defaults, _ = default_literals(plan.added, shape)
        added = {
            column.name: (
                column_type,
                self._dialect.values.literal(defaults[column.name], column_type)
                if column.name in defaults
                else None,
            )
            for column, column_type in plan.added
        }
        keys = frozenset(fold_name(key) for key in shape.keys)
        return self._dialect.tables.alter(self.place.location, added, plan.widened, keys)

    def add(self, cursor: Any, merge: Merge) -> Counts:
        """Copy a staged batch into the side table, and return the row counts.

        Each row replaces the change of its key that was gathered before.

        Raises:
            TargetError: rows omit values. They could only be read from the target table, which does not have
                the gathered changes yet.
        """
        if merge.kept:
            raise TargetError(
                "A row omits unchanged values. With `cuts`, they cannot be read from the target, because the "
                "latest changes are not merged there yet. Configure the changefeed or connector to send "
                "whole rows, or remove `cuts` from the config.",
                table=str(self._target.source),
            )
        self._choose_database(cursor)
        same = " AND ".join(f"t.{column.target} = x.{column.staged}" for column in merge.keys)
        counted = merge.counted.replace("s.", "x.", 1)
        where = f"{same} AND {counted}"
        delete_joined(cursor, self._dialect.database, self.place.location, merge.stage, where)
        values = {column.target: f"s.{column.staged}" for column in merge.columns}
        values[self._mark] = f"s.{IS_DELETE} = 1"
        cursor.execute(
            f"INSERT INTO {self.place.location} ({', '.join(values)}) SELECT {', '.join(values.values())} "
            f"FROM {merge.stage} s WHERE {merge.counted}"
        )
        return Counts(inserted=merge.upserts, deleted=merge.deletes)

    def discard(self, cursor: Any) -> None:
        """Delete all changes that are gathered in the side table."""
        cursor.execute(f"DELETE FROM {self.place.location}")

    def add_emptying(self, cursor: Any, keys: Iterable[str]) -> Counts:
        """Gather a TRUNCATE: replace the side table's rows by a delete of every key in the target table."""
        names = ", ".join(self._spelt(keys))
        self.discard(cursor)
        cursor.execute(
            f"INSERT INTO {self.place.location} ({names}, {self._mark}) "
            f"SELECT {names}, true FROM {self._target.location}"
        )
        return Counts(deleted=int(cursor.rowcount))

    def lacks_row(self, keys: Iterable[str]) -> str:
        """Return an SQL condition: true for a target row (alias ``t``) that no gathered change replaces.

        The side table holds the changes that are gathered for the next cut, one row per key.
        """
        same = " AND ".join(f"g.{name} = t.{name}" for name in self._spelt(keys))
        return f"NOT EXISTS (SELECT 1 FROM {self.place.location} g WHERE {same})"

    def living(self, columns: Iterable[str]) -> str:
        """Return the SQL query of the side table's rows that are not deletes. It selects ``columns`` as text.

        A column that the side table does not have yet is selected as NULL.
        """
        asked = tuple(columns)
        fold = folding(self._present, asked)
        own = {fold(name): (self._dialect.quote(name), kind) for name, kind in self._present.items()}
        selected = (own.get(fold(name)) for name in asked)
        texts = ", ".join(
            "NULL" if column is None else self._dialect.values.text_of(*column) for column in selected
        )
        return f"SELECT {texts} FROM {self.place.location} WHERE {self._mark} IS NOT TRUE"

    def _spelt(self, names: Iterable[str]) -> list[str]:
        """Return column names quoted, in the spelling that the side table and the target table use."""
        fold = folding(self._present)
        own = {fold(name): name for name in self._present}
        return [self._dialect.quote(own.get(fold(name), name)) for name in names]

    def merge(self, cursor: Any, shape: TargetSchema, present: Mapping[str, str]) -> None:
        """Merge the gathered changes into the target table, and delete them from the side table.

        ``shape``: the source's current columns and key. Only these columns are written.
        ``present``: the target's columns: type by name.
        """
        cursor.execute(f"SELECT {self._mark}, COUNT(*) FROM {self.place.location} GROUP BY {self._mark}")
        counts = {bool(deleted): int(rows) for deleted, rows in cursor.fetchall()}
        if not counts:
            return
        self._dialect.rows.merge(cursor, self._merge(shape, present, counts))
        self.discard(cursor)

    def _merge(self, shape: TargetSchema, present: Mapping[str, str], counts: Mapping[bool, int]) -> Merge:
        quote = self._dialect.quote
        fold = folding(present, self._present, (column.name for column in shape.columns))
        stored = {fold(name): quote(name) for name in present}
        own = {fold(name): quote(name) for name in self._present}
        shared = [
            shape_column
            for shape_column in shape.columns
            if fold(shape_column.name) in stored.keys() & own.keys()
        ]
        columns = tuple(
            MergeColumn(stored[fold(shape_column.name)], f"c{index}", shape_column.key)
            for index, shape_column in enumerate(shared)
        )
        values = {f"c{index}": own[fold(shape_column.name)] for index, shape_column in enumerate(shared)}
        values |= {ATTEMPT: "0", IS_DELETE: f"CASE WHEN {self._mark} THEN 1 ELSE 0 END"}
        named = ", ".join(f"{value} AS {name}" for name, value in values.items())
        return Merge(
            self._target.location,
            f"(SELECT {named} FROM {self.place.location})",
            columns,
            (0,),
            counts.get(False, 0),
            counts.get(True, 0),
            soft=False,
            mark=quote(SOFT_DELETE_COLUMN) if SOFT_DELETE_COLUMN in present else None,
            place=self._target,
        )

    def _choose_database(self, cursor: Any) -> None:
        if self._dialect.database == "mysql":  # a DELETE with aliases needs a current database
            cursor.execute(f"USE {self._dialect.quote(self.place.schema)}")


_EXCLUDED: Final = "_tidesink_excluded"
_TEXT: Final[Mapping[Database, str]] = {"postgres": "text", "mysql": "varchar(255)"}


class ExcludedTables:
    """The table ``_tidesink_excluded``: it lists the source tables that a pipeline's last cut does not
    include.

    A source table's row is committed together with its first change that is not part of the cut, or with the
    cut itself. So a reader always sees the cut, the tables as of the cut, and the list of all other tables.
    """

    def __init__(self, dialect: Dialect, place: Place, pipeline: str) -> None:
        self.place = replace(place, name=_EXCLUDED)
        self._dialect = dialect
        self.pipeline = pipeline

    def prepare(self, cursor: Any) -> None:
        """Create the table ``_tidesink_excluded`` if it is missing."""
        text = _TEXT[self._dialect.database]
        self._dialect.tables.prepare_schema(cursor, self.place)
        if not self.is_there(cursor):
            columns = [
                ("pipeline", text, True, "the pipeline's name in the config"),
                ("source_schema", text, True, "schema of the source table"),
                ("source_table", text, True, "source table that the last cut does not include"),
            ]
            self._dialect.tables.create(cursor, self.place, columns)

    def is_there(self, cursor: Any) -> bool:
        """Return True if the table ``_tidesink_excluded`` exists."""
        return bool(self._dialect.tables.present(cursor, self.place))

    def add(self, cursor: Any, tables: Iterable[TableId]) -> None:
        """Add a row for each source table in ``tables``: the last cut does not include them."""
        into = f"{self._location} (pipeline, source_schema, source_table) VALUES (%s, %s, %s)"
        for table in sorted(tables):
            cursor.execute(self._dialect.rows.insert_missing.format(into), (self.pipeline, *table))

    def remove(self, cursor: Any, tables: Iterable[TableId]) -> None:
        """Remove the rows of source tables that the cut of this transaction includes."""
        where = "WHERE pipeline = %s AND source_schema = %s AND source_table = %s"
        for table in sorted(tables):
            cursor.execute(f"DELETE FROM {self._location} {where}", (self.pipeline, *table))

    @property
    def _location(self) -> str:
        return self.place.location.replace("%", "%%")


class Gathering:
    """Gathers the changes of a table for the next cut, if the pipeline has cuts.

    If it does not, changes that an earlier worker with cuts gathered are merged when the table is claimed.
    """

    def __init__(
        self, hold: SqlHold, excluded: ExcludedTables, shape: TargetSchema, *, gathers: bool
    ) -> None:
        """Create the gathering of a table that is not claimed yet.

        ``excluded``: the list of tables that the pipeline's last cut does not include.
        ``shape``: the source's columns and key when the table is opened.
        ``gathers``: True if the pipeline has cuts.
        """
        self._hold = hold
        self._excluded = excluded
        self._gathers = gathers
        self._side = Gathered(hold.dialect, hold.place)
        # The source's columns and key as of the last batch. Merging the gathered changes writes only these
        # columns.
        self._shape = shape

    def prepare(self, cursor: Any) -> None:
        """Create the list of excluded tables if the pipeline has cuts and the list is missing."""
        if self._gathers:
            self._excluded.prepare(cursor)

    def exclude(self, cursor: Any) -> None:
        """Record that the last cut does not include the table, if the pipeline has cuts."""
        if self._gathers:
            self._excluded.add(cursor, [self._hold.place.source])

    def claim(self, cursor: Any, present: Mapping[str, str], *, loaded: bool) -> None:
        """Prepare the side table, when the table is claimed and its ledger row is locked.

        With cuts, create the side table if missing. The last cut then does not include the table. Without
        cuts, merge the changes that an earlier worker with cuts gathered. If no batch was ever applied to the
        table, the side table's rows belong to a dropped table of the same name, and are deleted.

        ``present``: the target's columns: type by name.
        ``loaded``: True if a batch was ever applied to the table.
        """
        table = self._hold.place.source
        if self._gathers:
            with self._hold.changer(cursor) as changing:
                if not loaded or not self._side.look(changing):
                    self._excluded.add(changing, [table])
                self._side.prepare(changing, self._shape, present, empty=not loaded)
        elif self._side.look(cursor):
            if self._excluded.is_there(cursor):  # cuts do not include the table from now on
                self._excluded.add(cursor, [table])
            if loaded:
                self.merge(cursor, present)
            else:
                self._side.discard(cursor)

    def lacks(self, shape: TargetSchema) -> bool:
        """Return True if the side table is used, and its columns must change before it can store rows of
        ``shape``.
        """
        return self._gathers and self._side.lacks(shape)

    def grow(self, cursor: Any, shape: TargetSchema) -> None:
        """Add and widen the columns of the side table, if used, so that it can store rows of ``shape``."""
        if self._gathers:
            self._hold.change(cursor, self._side.growing(cursor, shape))
            self._side.look(cursor)

    def alter(self, cursor: Any, statements: Callable[[str, Mapping[str, str]], list[str]]) -> None:
        """Alter the columns of the side table, if used.

        ``statements``: takes a table's quoted name and its columns, and returns the ALTER statements.
        """
        if self._gathers:
            self._hold.change(cursor, statements(self._side.place.location, self._side.present))
            self._side.look(cursor)

    def takes(self, batch: ReducedBatch) -> bool:
        """Return True if a batch's changes are gathered, and not merged into the target table directly."""
        return self._gathers and not batch.how.outside

    def add(self, cursor: Any, batch: ReducedBatch, merge: Merge | None) -> Counts:
        """Write a batch to the side table, and return the row counts.

        ``merge``: the parameters of merging the staged rows; None if the batch has no rows.
        """
        self._shape = batch.shape
        if batch.truncates:
            return self._side.add_emptying(cursor, batch.shape.keys)
        return Counts() if merge is None else self._side.add(cursor, merge)

    def leave(self, cursor: Any, shape: TargetSchema, present: Mapping[str, str]) -> None:
        """Merge what was gathered, before a batch is merged into the target table directly.

        Cuts do not include the table now, which is recorded for readers. Does nothing if the pipeline has no
        cuts.

        ``shape``: the columns and key of the batch.
        ``present``: the target's columns: type by name.
        """
        if self._gathers:
            self.exclude(cursor)
            self._shape = shape
            self.merge(cursor, present)

    def merge(self, cursor: Any, present: Mapping[str, str]) -> None:
        """Merge the gathered changes into the target table, and delete them from the side table.

        ``present``: the target's columns: type by name.
        """
        self._side.merge(cursor, self._shape, present)


class SqlCuts:
    """Publishes the cuts of one pipeline in a database.

    Only the last cut is recorded, in a row of a table.
    """

    def __init__(self, connections: Connections, place: Place, excluded: ExcludedTables) -> None:
        self.place = replace(place, name=NAME)
        self._connections = connections
        self._dialect = connections.dialect
        self._pipeline = excluded.pipeline
        self._excluded = excluded
        self._prepared = False

    def last(self) -> int | None:
        """Return the commit_ts of the last cut; None if there is no cut.

        Raises:
            TargetError: the table of cuts cannot be read.
        """
        with self._connections.transaction(self.place.shown, writes=False) as cursor:
            if not self._dialect.tables.present(cursor, self.place):
                return None
            where = "WHERE pipeline = %s"
            cursor.execute(f"SELECT commit_ts FROM {self._location} {where}", (self._pipeline,))
            row = cursor.fetchone()
        return None if row is None else int(row[0])

    def publish(
        self,
        commit_ts: int,
        tables: Mapping[CutTable, TargetTable],
        *,
        time: datetime,
        without: Collection[TableId],
        keep: float,  # noqa: ARG002  (a database has only the last cut)
    ) -> None:
        """Merge the gathered changes of all tables and record the cut, in one transaction.

        Raises:
            StaleProgressError: another worker holds one of the tables now.
            TargetError: the database cannot store a row of a table or the cut; nothing was merged.
        """
        self._prepare()
        sorted_tables = sorted(tables.items(), key=lambda item: item[0].place)
        with self._connections.transaction(self.place.shown) as cursor:
            # Lock in the order of table names, so that two workers cannot deadlock.
            for cut_table, table in sorted_tables:
                with self._connections.translated(str(cut_table.table)):
                    cast("GatheringTable", table).lock_for_cut(cursor, cut_table.version)
            # Write the excluded tables before any target table, in the same order as the batch of an excluded
            # table.
            self._excluded.add(cursor, without)
            self._excluded.remove(cursor, (cut_table.table for cut_table, _ in sorted_tables))
            for cut_table, table in sorted_tables:
                with self._connections.translated(str(cut_table.table)):
                    cast("GatheringTable", table).merge_gathered(cursor)
            self._write(cursor, commit_ts, time)

    @property
    def _location(self) -> str:
        return self.place.location.replace("%", "%%")

    def _prepare(self) -> None:
        if self._prepared:
            return
        bigint, moment = (OF_SPARK[self._dialect.database][name] for name in ("bigint", "timestamp"))
        columns = [
            ("pipeline", _TEXT[self._dialect.database], True, "the pipeline's name in the config"),
            ("commit_ts", bigint, False, "the cut shows changes up to this TiDB TSO or log position"),
            ("time", moment, False, "the source's time at commit_ts, in UTC"),
            ("published", moment, False, "the time at which the cut was published"),
        ]
        with self._connections.transaction(self.place.shown) as cursor:
            self._excluded.prepare(cursor)
            if not self._dialect.tables.present(cursor, self.place):
                self._dialect.tables.create(cursor, self.place, columns)
        self._prepared = True

    def _write(self, cursor: Any, commit_ts: int, time: datetime) -> None:
        moment = instant_of(self._dialect.database, str(round(time.timestamp() * 1000) << LOGICAL_BITS))
        cursor.execute(
            f"UPDATE {self._location} SET commit_ts = {commit_ts}, time = {moment}, "
            "published = CURRENT_TIMESTAMP(6) WHERE pipeline = %s",
            (self._pipeline,),
        )
        if not cursor.rowcount:
            cursor.execute(
                f"INSERT INTO {self._location} (pipeline, commit_ts, time, published) "
                f"VALUES (%s, {commit_ts}, {moment}, CURRENT_TIMESTAMP(6))",
                (self._pipeline,),
            )
