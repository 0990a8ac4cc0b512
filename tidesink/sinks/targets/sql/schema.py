"""The columns of a SQL target table: creates the table, and adds, widens, renames and drops its columns.

Columns are changed under the lock on the table's ledger row. The table's view and its side table of gathered
changes change with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tidesink.errors import SchemaRefusedError, StaleProgressError
from tidesink.events import fold_name
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN, EvolveResult, SchemaGap
from tidesink.sinks.targets.sharing import others_columns
from tidesink.sinks.targets.sql.columns import (
    SqlEvolution,
    check_natives,
    check_sql_shape,
    default_literals,
    natives_of,
    plan_columns,
    wanted_type,
)
from tidesink.sinks.targets.sql.cuts import Gathering
from tidesink.sinks.targets.sql.hold import SqlHold
from tidesink.sinks.targets.sql.ledger import SqlEntry
from tidesink.sinks.targets.sql.merge import missing_columns
from tidesink.sinks.targets.sql.shard import SqlShard
from tidesink.sinks.targets.sql.view import SqlView
from tidesink.typemap.native_sql import Native, reading_type
from tidesink.typemap.render_sql import OF_SPARK
from tidesink.typemap.target_schema import TargetSchema

_SOFT_DELETE_COMMENT: Final = "true: the row was deleted at the source"


class SqlSchema:
    """The columns of a target table, as they were last read."""

    def __init__(
        self,
        hold: SqlHold,
        shape: TargetSchema,
        gathering: Gathering,
        *,
        shard: SqlShard | None,
        view: SqlView | None,
        soft: bool,
    ) -> None:
        """Read the columns of the target table, and create it if missing.

        ``shape``: the source's columns and key.
        ``shard``: set if several source tables share the table.
        ``view``: the view of the table's current rows; None for no view.
        ``soft``: True under ``deletes: soft``.
        """
        self._hold = hold
        self._dialect = hold.dialect
        self._place = hold.place
        self._shape = shape
        self._gathering = gathering
        self._shard = shard
        self._view = view
        self._created = False
        self._changing = False
        self._present = self._open(soft=soft)
        self._keys = frozenset(fold_name(self._dialect.quote(key)) for key in shape.keys)

    @property
    def present(self) -> Mapping[str, str]:
        """The table's columns when they were last read: type by name."""
        return self._present

    @property
    def is_known(self) -> bool:
        """False from an interrupted column change until ``evolve`` completes it and reads the columns."""
        return not self._changing

    def read(self) -> None:
        """Read the table's columns again."""
        with self._hold.transaction(writes=False) as cursor:
            self._present = self._dialect.tables.present(cursor, self._place)

    def check_rows(self, cursor: Any, entry: SqlEntry) -> None:
        """Check that the table was not dropped while its ledger row ``entry`` still has its progress.

        Raises:
            StaleProgressError: it was dropped.
        """
        if not self._present and (entry.progress is not None or self._hold.ledger.loaded(cursor)):
            place = self._place
            raise StaleProgressError(
                f"{place.shown} was dropped, but the ledger still has its progress. To continue would "
                f"lose all earlier rows. Restore the table, or delete its rows from {place.own_ledger} "
                f"(table_name {place.name!r}) and let the worker load it again from the start of its "
                "topic.",
                table=self._hold.table,
            )

    def claim(self, cursor: Any) -> None:
        """Check that the table stores every row as it is written, and complete a column change that a killed
        worker did not finish. Then read the columns again. The ledger row is locked.

        Raises:
            SchemaRefusedError: the database would change, hide, lose or mix up rows of the table.
        """
        self._dialect.tables.check_keys(cursor, self._place, self._keys)
        # Not quoted, because quoting raises for names that the database does not allow. Adding a column
        # checks its name.
        columns = frozenset(fold_name(column.name) for column in self._shape.columns)
        self._dialect.tables.check_kept(cursor, self._place, columns, _folded_keys(self._shape))
        check_natives(self._present, self._shape, self._dialect.database, self.mend)
        # The ledger row is locked, so no other worker changes the columns at the same time.
        self._complete(cursor)
        self._present = self._dialect.tables.present(cursor, self._place)

    def evolve(self, shape: TargetSchema) -> EvolveResult:
        """Add and widen columns so that the table can store ``shape``. Existing rows get new columns'
        defaults.
        """
        check_sql_shape(shape, self._dialect.limits, self._dialect.quote)
        if self._changing:  # the last column change was interrupted: complete it and read the columns again
            with self._altering() as (cursor, _):
                self._complete(cursor)
        needed = self._planned(shape).needed or bool(self._shard and self._shard.new(shape))
        needed = needed or self._gathering.lacks(shape)
        created, self._created = self._created, False
        if needed:
            return self._grown(shape, created=created)
        with self._hold.transaction(writes=False) as cursor:
            self._hold.held(cursor, lock=False)
        return EvolveResult(created)

    def gap(self, shape: TargetSchema) -> SchemaGap:
        """Return the difference between the table's columns and those of ``shape``.

        Uses the columns of the table that were last read.
        """
        plan = self._planned(shape)
        widened = {name: (self._present[name], column_type) for name, column_type in plan.widened.items()}
        held = {
            name: reading_type(shape.find(name), column_type, self._dialect.database)
            for name, column_type in self._present.items()
        }
        return SchemaGap(tuple(self._present), tuple(c.name for c, _ in plan.added), widened, held)

    def rename(self, old: str, new: str) -> None:
        """Rename a column in the table, its view and its side table of gathered changes."""
        quote = self._dialect.quote
        self._altered(
            lambda location, present: (
                [f"ALTER TABLE {location} RENAME COLUMN {quote(old)} TO {quote(new)}"]
                if old in present
                else []
            )
        )

    def drop(self, names: Sequence[str]) -> None:
        """Drop columns of the table. The database raises an error if another view or an index uses one of
        them.
        """
        quote = self._dialect.quote
        self._altered(
            lambda location, present: [
                f"ALTER TABLE {location} DROP COLUMN {quote(name)}" for name in names if name in present
            ]
        )

    def add_positions(self) -> None:
        """Add the columns of ``sequence_by: source`` for positions and deletion marks, if missing."""
        if not missing_columns(self._present, self._dialect):
            return
        with self._altering() as (cursor, _):
            missing = missing_columns(self._present, self._dialect)
            added = (
                self._dialect.tables.alter(self._place.location, missing, {}, frozenset()) if missing else []
            )
            self._alter(cursor, added, widens=False)

    def natives(self, shape: TargetSchema) -> dict[int, Native]:
        """Return how columns with types that the user chose store the values, by their index in ``shape``."""
        return natives_of(self._present, shape, self._dialect.database)

    def mend(self, name: str, wanted: str) -> list[str]:
        """Return the statements that change the type of the column ``name`` to ``wanted``, for the user to
        run.
        """
        named = {
            fold_name(column_name): (column_name, column_type)
            for column_name, column_type in self._present.items()
        }
        own, column_type = named[fold_name(name)]
        return self._dialect.tables.retyped(
            self._place.location, own, column_type, wanted, _folded_keys(self._shape)
        )

    def _open(self, *, soft: bool) -> dict[str, str]:
        tables = self._dialect.tables
        with self._hold.transaction() as cursor:
            self._gathering.prepare(cursor)
            tables.prepare_schema(cursor, self._place)
            present = tables.present(cursor, self._place)
            if not present:
                if self._hold.ledger.loaded(cursor):
                    return present
                self._gathering.exclude(cursor)  # the last cut does not include the new table
                self._create(cursor, soft=soft)
                present = tables.present(cursor, self._place)
            elif soft and SOFT_DELETE_COLUMN not in present:
                mark = {SOFT_DELETE_COLUMN: (OF_SPARK[self._dialect.database]["boolean"], None)}
                for statement in tables.alter(self._place.location, mark, {}, frozenset()):
                    cursor.execute(statement)
                present = tables.present(cursor, self._place)
            for statement in self._view.statements(cursor, present) if self._view else ():
                cursor.execute(statement)
            return present

    def _create(self, cursor: Any, *, soft: bool) -> None:
        """Create the table, after checking that the database can store the columns and key."""
        shape, database, length = self._shape, self._dialect.database, self._dialect.key_length
        check_sql_shape(shape, self._dialect.limits, self._dialect.quote)
        columns = [
            (c.name, wanted_type(c, shape, database, key_length=length), c.key, c.comment)
            for c in shape.columns
        ]
        if soft:
            columns.append((SOFT_DELETE_COLUMN, OF_SPARK[database]["boolean"], False, _SOFT_DELETE_COMMENT))
        self._dialect.tables.create(cursor, self._place, columns)
        self._created = True

    def _complete(self, cursor: Any) -> None:
        """Complete a column change that a killed worker did not finish."""
        self._hold.change(cursor, self._dialect.tables.left_undone(cursor, self._place))

    def _grown(self, shape: TargetSchema, *, created: bool) -> EvolveResult:
        """Add and widen the columns that ``shape`` needs.

        Locks the ledger row first, and then plans the changes again.
        """
        with self._altering() as (cursor, entry):
            self._gathering.grow(cursor, shape)  # the side table first, so an interrupted change is repeated
            plan = self._plan(shape)
            new = self._shard.new(shape) if self._shard else plan.added
            defaults, warnings = default_literals(new, shape)
            # In a shared table, only the rows of this shard get the defaults of its source table.
            statements = self._growing(plan, shape, {} if self._shard else defaults)
            self._alter(cursor, statements, widens=bool(plan.widened))
            if self._shard:
                self._shard.fill(cursor, entry, shape, defaults=defaults, present=self._present)
        names = tuple(column.name for column, _ in plan.added)
        return EvolveResult(created, names, tuple(plan.widened), tuple(defaults), warnings)

    def _growing(self, plan: SqlEvolution, shape: TargetSchema, defaults: Mapping[str, str]) -> list[str]:
        """Return the statements that carry out a plan of column changes; ``defaults``: default texts by
        column.
        """
        literal = self._dialect.values.literal
        added = {
            column.name: (
                column_type,
                literal(defaults[column.name], column_type) if column.name in defaults else None,
            )
            for column, column_type in plan.added
        }
        return self._dialect.tables.alter(self._place.location, added, plan.widened, _folded_keys(shape))

    def _planned(self, shape: TargetSchema) -> SqlEvolution:
        """Plan the column changes that ``shape`` needs, from the cached columns.

        If a shared table seems to need a change, its columns are read again, because other shards may have
        changed them.
        """
        plan = self._plan(shape)
        if self._shard and plan.needed:
            self.read()
            plan = self._plan(shape)
        return plan

    def _plan(self, shape: TargetSchema) -> SqlEvolution:
        try:
            return plan_columns(self._present, shape, self._dialect.database, self.mend)
        except SchemaRefusedError as exc:
            raise self._shard.refused(exc) if self._shard else exc from None

    def _altered(self, statements: Callable[[str, Mapping[str, str]], list[str]]) -> None:
        """Alter the columns of the table, of its view, and of the side table of gathered changes.

        ``statements``: takes a table's quoted name and its current columns, and returns the ALTER statements.
        """
        with self._hold.transaction(writes=False) as cursor:
            self._hold.held(cursor, lock=False)
            self._present = self._dialect.tables.present(cursor, self._place)
        if not statements(self._place.location, self._present):
            return
        if self._place.shard:
            raise others_columns(self._place.shown, self._place.shard, table=self._place.source)
        with self._altering() as (cursor, _):
            self._gathering.alter(cursor, statements)
            self._alter(cursor, statements(self._place.location, self._present), widens=True)

    @contextmanager
    def _altering(self) -> Iterator[tuple[Any, SqlEntry]]:
        """Lock the ledger row while columns are changed, and yield the transaction's cursor and the row."""
        with self._hold.turn() as (cursor, entry):
            self._changing = True
            self._present = self._dialect.tables.present(cursor, self._place)
            yield cursor, entry
        self._changing = False

    def _alter(self, cursor: Any, statements: list[str], *, widens: bool) -> None:
        """Run statements that change the table's columns, and create its view again if needed.

        ``widens``: True if the statements change existing columns, which the view may prevent.
        """
        before, after = self._view.in_the_way(cursor) if self._view and widens else ([], [])
        self._hold.change(cursor, [*before, *statements])
        self._present = self._dialect.tables.present(cursor, self._place)
        shown = self._view.statements(cursor, self._present) if self._view else []
        rights = [again.statement for again in after if again.column in (None, *self._present)]
        self._hold.change(cursor, [*shown, *rights])


def _folded_keys(shape: TargetSchema) -> frozenset[str]:
    """Return the names of the key columns in lower case."""
    return frozenset(fold_name(key) for key in shape.keys)
