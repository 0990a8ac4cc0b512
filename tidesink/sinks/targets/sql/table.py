"""An open table in a SQL database.

The executors load a batch's rows into a staging table. One transaction then merges them into the target table
and records the progress. It first locks the table's ledger row and checks the epoch, so a worker whose epoch
is outdated writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from tidesink.errors import SchemaRefusedError, StaleProgressError, TransientTargetError, ValueNotStoredError
from tidesink.events import fold_name, folding
from tidesink.sinks.state.progress import Progress, check_held
from tidesink.sinks.targets.base import (
    SOFT_DELETE_COLUMN,
    ApplyResult,
    Claim,
    Collected,
    DeleteMode,
    EvolveResult,
    ReducedBatch,
    RowFormat,
    RowSink,
    SchemaGap,
    StagedPart,
    check_order,
    check_shape,
    check_versions,
)
from tidesink.sinks.targets.cuts import TableVersion, check_named
from tidesink.sinks.targets.sharing import Turns, others_columns
from tidesink.sinks.targets.sql.columns import (
    SqlEvolution,
    check_natives,
    check_sql_shape,
    default_literals,
    natives_of,
    plan_columns,
    wanted_type,
)
from tidesink.sinks.targets.sql.cuts import ExcludedTables, Gathered
from tidesink.sinks.targets.sql.dialect import Connections, Counts, Merge
from tidesink.sinks.targets.sql.ledger import SqlEntry, SqlLedger, SqlTombstones
from tidesink.sinks.targets.sql.load import StagedColumn, staged_columns
from tidesink.sinks.targets.sql.location import Place
from tidesink.sinks.targets.sql.merge import (
    append_staged,
    cast_staged,
    check_room_for_deletes,
    check_staged,
    fill_kept,
    merge_of,
    merged_versions,
    missing_columns,
    native_name,
    not_stored,
)
from tidesink.sinks.targets.sql.shard import SqlShard
from tidesink.sinks.targets.sql.staging import drop_staging, loader_into, make_staging, staged
from tidesink.sinks.targets.sql.view import SqlView
from tidesink.typemap.native_sql import Native, reading_type
from tidesink.typemap.render_sql import OF_SPARK
from tidesink.typemap.target_schema import TargetSchema

_Staging = tuple[tuple[StagedColumn, ...], tuple[str, ...], tuple[tuple[str, str], ...]]
_SOFT_DELETE_COMMENT: Final = "true: the row was deleted at the source"


class SqlTable:
    """A target table in a SQL database, and optionally its view. It is used by one worker thread."""

    def __init__(
        self,
        connections: Connections,
        place: Place,
        shape: TargetSchema,
        *,
        delete_mode: DeleteMode,
        view: str | None = None,
        excluded: ExcludedTables,
        gathers: bool = False,
    ) -> None:
        """Open the target table, and create it if missing.

        ``view``: name of the view of the table's current rows; None for no view.
        ``excluded``: the list of tables that the pipeline's last cut does not include.
        ``gathers``: True if the pipeline has cuts. Changes are then gathered until the next cut.
        """
        check_shape(shape)
        self.place = place
        self._view = SqlView(connections.dialect, place, view) if view else None
        self._connections = connections
        self._dialect = connections.dialect
        self._table = str(shape.source)
        self._ledger = SqlLedger(self._dialect, place, excluded.pipeline, shape.keys)
        self._shard = SqlShard(connections, place, self._ledger) if place.shard else None
        self._turns = Turns(f"{connections.endpoint.shown} {place.location}", place.shard)
        self._epoch: int | None = None
        self._created = False
        self._changing = False
        # The columns and types of the staging table, if it exists; and again, if no batch has used it yet.
        self._staging: _Staging | None = None
        self._unused: _Staging | None = None
        self._ordered: TargetSchema | None = None
        # The side table of changes gathered for the next cut, and the source's current columns and key.
        self._gathered, self._gathers = Gathered(self._dialect, place), gathers
        self._excluded = excluded
        self._shape = shape
        self._present = self._open(shape, soft=delete_mode == "soft")
        self._keys = frozenset(fold_name(self._dialect.quote(key)) for key in shape.keys)
        # Not quoted, because quoting raises for names that the database does not allow. Adding a column
        # checks its name.
        self._columns = frozenset(fold_name(column.name) for column in shape.columns)

    def claim(self) -> Claim:
        """Check the table, and commit the next epoch in its ledger row.

        Workers with an older epoch can then no longer write.
        """
        with self._transaction() as cursor:
            self._ledger.check_sharing(cursor)
            self._ledger.add_row(cursor)
            entry = self._ledger.claimed(self._read(cursor, lock=True))
            self._check_rows(entry, cursor)
            entry = self._ledger.identified(cursor, entry)
            self._dialect.tables.check_keys(cursor, self.place, self._keys)
            keys = frozenset(fold_name(key) for key in self._shape.keys)
            self._dialect.tables.check_kept(cursor, self.place, self._columns, keys)
            check_natives(self._present, self._shape, self._dialect.database, self._mend)
            # The ledger row is locked, so no other worker changes the columns at the same time.
            self._change(cursor, self._dialect.tables.left_undone(cursor, self.place))
            self._prepare_gathered(cursor, entry)
            self._ledger.write(cursor, entry)
        self._epoch = entry.epoch
        self._staging = self._unused = None  # the staging table of an earlier epoch is dropped below
        with self._transaction(writes=False) as cursor:
            self._present = self._dialect.tables.present(cursor, self.place)
        # If a fenced worker's tasks still write to a staging table, dropping it fails. The next claim drops
        # it.
        with suppress(TransientTargetError), self._transaction() as cursor:
            for name in self._dialect.staging.tables(cursor, self.place):
                cursor.execute(f"DROP TABLE IF EXISTS {self.place.beside(name)}")
        return Claim(entry.epoch, entry.progress)

    def committed(self) -> Progress | None:
        """Return the progress that the ledger records; None if no batch was ever applied."""
        with self._transaction(writes=False) as cursor:
            entry = self._ledger.read(cursor)
            if entry is not None:
                self._check_rows(entry, cursor)
        return entry.progress if entry else None

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        """Merge a batch into the table and record its progress, in one transaction.

        Returns the row counts.
        """
        with self._transaction(writes=False) as cursor:
            entry = self._held(cursor, self._claimed_epoch(), lock=False, batch=progress.epoch)
            done = entry.done(progress)
        if done is not None:
            return done
        if batch.how.mode == "history":
            check_versions(batch)
        self._take_order(batch)
        try:
            return self._commit(batch, progress, self._staged(batch))
        finally:
            if batch.staged is None or any(part.rows for part in batch.staged):
                self.forget_staged()
            else:  # the staging table is still empty, so the next batch uses it without DDL
                self._unused = self._staging

    def version_of(self, progress: Progress) -> TableVersion:
        """Return the table's location and version. The version is the number of commits in the ledger."""
        with self._transaction(writes=False) as cursor:
            entry = self._ledger.read(cursor)
        check_named(entry.progress if entry else None, progress)
        return TableVersion(self.place.shown, entry.commits if entry else 0)

    def lock_for_cut(self, cursor: Any, version: int) -> None:
        """Lock the table's ledger row, in the transaction that publishes a cut.

        ``version``: the number of commits that the ledger row must have.

        Raises:
            StaleProgressError: another worker holds the table, or the ledger row has another number of
                commits.
        """
        entry = self._held(cursor, self._claimed_epoch())
        if entry.commits != version:
            raise StaleProgressError(
                f"{self.place.shown} was written by another worker while a cut was published. "
                "Run only one worker per table.",
                table=self._table,
            )

    def merge_gathered(self, cursor: Any) -> None:
        """Merge the gathered changes into the target table, in the transaction that publishes a cut.

        The transaction must already have locked the ledger row (``lock_for_cut``).
        """
        self._gathered.merge(cursor, self._shape, self._present)

    def row_sink(self, rows: RowFormat) -> RowSink | None:
        """Return what lets the Spark tasks of a batch load their rows straight into a staging table.

        Returns None while the table's columns are unknown, because a column change was interrupted.
        """
        if self._changing:  # the columns are unknown until ``evolve`` has read them
            return None
        self._make_staging(rows)
        return loader_into(self._connections, self.place.staging(self._claimed_epoch()), rows)

    def forget_staged(self, parts: Sequence[StagedPart] = ()) -> None:  # noqa: ARG002  (all are in one table)
        """Drop the table's staging table, whether or not its batch was applied."""
        if self._staging is not None:
            drop_staging(self._connections, self.place.staging(self._claimed_epoch()), self._table)
        self._staging = self._unused = None

    def evolve(self, shape: TargetSchema) -> EvolveResult:
        """Add and widen columns so that the table can store ``shape``. Existing rows get new columns'
        defaults.
        """
        check_sql_shape(shape, self._dialect.limits, self._dialect.quote)
        if self._changing:  # the last column change was interrupted: complete it and read the columns again
            with self._altering() as (cursor, _):
                self._change(cursor, self._dialect.tables.left_undone(cursor, self.place))
        needed = self._planned(shape).needed or bool(self._shard and self._shard.new(shape))
        needed = needed or (self._gathers and self._gathered.lacks(shape))
        created, self._created = self._created, False
        if needed:
            return self._grown(shape, created=created)
        with self._transaction(writes=False) as cursor:
            self._held(cursor, self._claimed_epoch(), lock=False)
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

    def rename_column(self, old: str, new: str) -> None:
        """Rename a column in the table, its view and its side table of gathered changes."""
        quote = self._dialect.quote
        self._altered(
            lambda location, present: (
                [f"ALTER TABLE {location} RENAME COLUMN {quote(old)} TO {quote(new)}"]
                if old in present
                else []
            )
        )

    def drop_columns(self, names: Sequence[str]) -> None:
        """Drop columns of the table. The database raises an error if another view or an index uses one of
        them.
        """
        quote = self._dialect.quote
        self._altered(
            lambda location, present: [
                f"ALTER TABLE {location} DROP COLUMN {quote(name)}" for name in names if name in present
            ]
        )

    def horizon(self) -> int | None:
        """Return the commit_ts up to which tombstones may be missing, from the ledger; None if none were
        removed.
        """
        with self._transaction(writes=False) as cursor:
            entry = self._ledger.read(cursor)
        return entry.horizon if entry else None

    def collect(self, horizon: int) -> Collected:
        """Remove the tombstones of deletes up to the commit_ts ``horizon``."""
        epoch = self._claimed_epoch()
        tombstones = SqlTombstones(
            self._dialect,
            self.place,
            self._ledger,
            transaction=self._transaction,
            held=lambda cursor: self._held(cursor, epoch),
        )
        fold = folding(self._present)
        there = {fold(name): name for name in self._present}
        return tombstones.collect(horizon, [there.get(fold(key), key) for key in self._ledger.keys])

    def close(self) -> None:
        """Drop the staging table, and close the idle connections of the target's pool."""
        self.forget_staged()
        self._connections.close()

    def _open(self, shape: TargetSchema, *, soft: bool) -> dict[str, str]:
        location = self.place.location
        with self._transaction() as cursor:
            if self._gathers:
                self._excluded.prepare(cursor)
            self._dialect.tables.prepare_schema(cursor, self.place)
            present = self._dialect.tables.present(cursor, self.place)
            if not present:
                if self._ledger.loaded(cursor):
                    return present
                if self._gathers:  # the last cut does not include the new table
                    self._excluded.add(cursor, [self.place.source])
                self._make(cursor, shape, soft=soft)
            elif soft and SOFT_DELETE_COLUMN not in present:
                mark = {SOFT_DELETE_COLUMN: (OF_SPARK[self._dialect.database]["boolean"], None)}
                for statement in self._dialect.tables.alter(location, mark, {}, frozenset()):
                    cursor.execute(statement)
            present = self._dialect.tables.present(cursor, self.place)
            for statement in self._view.statements(cursor, present) if self._view else ():
                cursor.execute(statement)
            return present

    def _make(self, cursor: Any, shape: TargetSchema, *, soft: bool) -> None:
        """Create the table, after checking that the database can store the columns and key of ``shape``."""
        check_sql_shape(shape, self._dialect.limits, self._dialect.quote)
        database = self._dialect.database
        length = self._dialect.key_length
        columns = [
            (c.name, wanted_type(c, shape, database, key_length=length), c.key, c.comment)
            for c in shape.columns
        ]
        if soft:
            columns.append((SOFT_DELETE_COLUMN, OF_SPARK[database]["boolean"], False, _SOFT_DELETE_COMMENT))
        self._dialect.tables.create(cursor, self.place, columns)
        self._created = True

    def _grown(self, shape: TargetSchema, *, created: bool) -> EvolveResult:
        """Add and widen the columns that ``shape`` needs.

        Locks the ledger row first, and then plans the changes again.
        """
        with self._altering() as (cursor, entry):
            if self._gathers:  # the side table first, so an interrupted change is repeated
                self._change(cursor, self._gathered.growing(cursor, shape))
                self._gathered.look(cursor)
            plan = self._plan(self._present, shape)
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
        added = {
            column.name: (column_type, self._literal(defaults.get(column.name), column_type))
            for column, column_type in plan.added
        }
        keys = frozenset(fold_name(key) for key in shape.keys)
        return self._dialect.tables.alter(self.place.location, added, plan.widened, keys)

    def _planned(self, shape: TargetSchema) -> SqlEvolution:
        """Plan the column changes that ``shape`` needs, from the cached columns.

        If a shared table seems to need a change, its columns are read again, because other shards may have
        changed them.
        """
        plan = self._plan(self._present, shape)
        if self._shard and plan.needed:
            with self._transaction(writes=False) as cursor:
                self._present = self._dialect.tables.present(cursor, self.place)
            plan = self._plan(self._present, shape)
        return plan

    def _plan(self, present: Mapping[str, str], shape: TargetSchema) -> SqlEvolution:
        try:
            return plan_columns(present, shape, self._dialect.database, self._mend)
        except SchemaRefusedError as exc:
            raise self._shard.refused(exc) if self._shard else exc from None

    def _mend(self, name: str, wanted: str) -> list[str]:
        """Return the statements that change the type of the column ``name`` to ``wanted``, for the user to
        run.
        """
        keys = frozenset(fold_name(key) for key in self._shape.keys)
        named = {
            fold_name(column_name): (column_name, column_type)
            for column_name, column_type in self._present.items()
        }
        own, column_type = named[fold_name(name)]
        return self._dialect.tables.retyped(self.place.location, own, column_type, wanted, keys)

    def _altered(self, statements: Callable[[str, Mapping[str, str]], list[str]]) -> None:
        """Alter the columns of the table, of its view, and of the side table of gathered changes.

        ``statements``: takes a table's quoted name and its current columns, and returns the ALTER statements.
        """
        with self._transaction(writes=False) as cursor:
            self._held(cursor, self._claimed_epoch(), lock=False)
            self._present = self._dialect.tables.present(cursor, self.place)
        if not statements(self.place.location, self._present):
            return
        if self.place.shard:
            raise others_columns(self.place.shown, self.place.shard, table=self.place.source)
        with self._altering() as (cursor, _):
            if self._gathers:
                gathered = self._gathered
                self._change(cursor, statements(gathered.place.location, gathered.present))
                gathered.look(cursor)
            self._alter(cursor, statements(self.place.location, self._present), widens=True)

    @contextmanager
    def _altering(self) -> Iterator[tuple[Any, SqlEntry]]:
        """Lock the ledger row while columns are changed, and yield the transaction's cursor and the row."""
        with self._turns.mine(), self._transaction() as cursor:
            entry = self._held(cursor, self._claimed_epoch())
            self._changing = True
            self._present = self._dialect.tables.present(cursor, self.place)
            yield cursor, entry
        self._changing = False

    def _alter(self, cursor: Any, statements: list[str], *, widens: bool) -> None:
        """Run statements that change the table's columns, and create its view again if needed.

        ``widens``: True if the statements change existing columns, which the view may prevent.
        """
        before, after = self._view.in_the_way(cursor) if self._view and widens else ([], [])
        self._change(cursor, [*before, *statements])
        self._present = self._dialect.tables.present(cursor, self.place)
        shown = self._view.statements(cursor, self._present) if self._view else []
        rights = [again.statement for again in after if again.column in (None, *self._present)]
        self._change(cursor, [*shown, *rights])

    def _change(self, cursor: Any, statements: list[str]) -> None:
        """Run DDL statements. The caller's lock on the ledger row keeps other workers out meanwhile."""
        if not statements:
            return
        with self._changer(cursor) as changing:
            for statement in statements:
                changing.execute(statement)

    @contextmanager
    def _changer(self, cursor: Any) -> Iterator[Any]:
        """Yield a cursor for DDL while ``cursor`` holds the lock on the ledger row.

        In MySQL, DDL would commit that transaction and release the lock, so a second connection is used.
        """
        if not self._dialect.tables.ddl_commits:
            yield cursor
            return
        with self._connections.kept_awake(cursor), self._transaction() as changing:
            yield changing

    def _literal(self, text: str | None, column_type: str) -> str | None:
        return None if text is None else self._dialect.values.literal(text, column_type)

    def _check_rows(self, entry: SqlEntry, cursor: Any) -> None:
        if not self._present and (entry.progress is not None or self._ledger.loaded(cursor)):
            raise StaleProgressError(
                f"{self.place.shown} was dropped, but the ledger still has its progress. To continue would "
                f"lose all earlier rows. Restore the table, or delete its rows from {self.place.own_ledger} "
                f"(table_name {self.place.name!r}) and let the worker load it again from the start of its "
                "topic.",
                table=self._table,
            )

    def _take_order(self, batch: ReducedBatch) -> None:
        """Check that the table can apply the batch's order, and add columns for ``sequence_by: source``.

        These columns store the position of each row and mark deleted rows.

        Raises:
            SchemaRefusedError: the table was written with ``sequence_by: source`` and the batch is in Kafka's
                order, or a column that tombstones set to NULL is NOT NULL.
        """
        check_order(batch, self._present, table=self.place.source)
        if not batch.sequenced or batch.shape == self._ordered:
            return
        with self._transaction(writes=False) as cursor:
            check_room_for_deletes(cursor, self._dialect, self.place, batch.shape)
        if missing_columns(self._present, self._dialect):
            with self._altering() as (cursor, _):
                missing = missing_columns(self._present, self._dialect)
                added = (
                    self._dialect.tables.alter(self.place.location, missing, {}, frozenset())
                    if missing
                    else []
                )
                self._alter(cursor, added, widens=False)
        self._ordered = batch.shape

    def _staged(self, batch: ReducedBatch) -> tuple[int, ...] | None:
        """Load the batch's rows into the staging table, if they are not there yet.

        Returns the ids of the task attempts whose rows make up the batch; None if the batch has no rows.
        """
        if batch.empty or batch.truncates:
            return None
        if batch.staged is None:
            self._make_staging(batch.row_format)
        return staged(self._connections, self.place.staging(self._claimed_epoch()), batch)

    def _make_staging(self, rows: RowFormat) -> None:
        """Create an empty staging table, or use the existing one if it is empty and has the same columns."""
        wanted = staged_columns(rows), tuple(self._staging_types(rows.shape)), self._native_types(rows.shape)
        unused, self._unused = self._unused, None
        if unused != wanted:
            self._staging = wanted
            make_staging(self._connections, self.place.staging(self._claimed_epoch()), *wanted, self._table)

    def _staging_types(self, shape: TargetSchema) -> list[str]:
        """Return the types of the staging columns for the columns of ``shape``, in order.

        Raises:
            SchemaRefusedError: the target lacks a column of ``shape``.
        """
        fold = folding(self._present, (column.name for column in shape.columns))
        types = {fold(name): column_type for name, column_type in self._present.items()}
        missing = [column.name for column in shape.columns if fold(column.name) not in types]
        if missing:
            raise SchemaRefusedError(
                f"The target has no column {', '.join(missing)}. Call `evolve` before `apply`.",
                table=self._table,
            )
        natives = self._natives(shape)
        return [
            natives[index].staged if index in natives else types[fold(column.name)]
            for index, column in enumerate(shape.columns)
        ]

    def _native_types(self, shape: TargetSchema) -> tuple[tuple[str, str], ...]:
        """Return names and types of the additional staging columns, which ``cast_staged`` fills with values
        that are cast to native types.
        """
        natives = self._natives(shape).items()
        return tuple((native_name(index), fit.kept) for index, fit in natives if fit.kept is not None)

    def _commit(
        self, batch: ReducedBatch, progress: Progress, attempts: tuple[int, ...] | None
    ) -> ApplyResult:
        batch.hooks.on_staged()
        with self._turns.mine(), self._transaction() as cursor:
            entry = self._held(cursor, progress.epoch)
            done = entry.done(progress)
            if done is not None:
                return done
            entry = self._ledger.identified(cursor, entry)
            counts = self._merged(cursor, batch, attempts)
            reported = batch.truncates or batch.sequenced or batch.how.mode == "history"
            absent = counts.absent if reported else batch.deletes - counts.deleted
            version = entry.commits + 1
            result = ApplyResult(*counts[:3], absent, str(version), counts.stale)
            entry = replace(entry, progress=progress, result=result, commits=version)
            self._ledger.write(cursor, self._shard.written(entry, batch.shape) if self._shard else entry)
        return result

    def _merged(self, cursor: Any, batch: ReducedBatch, attempts: tuple[int, ...] | None) -> Counts:
        has_mark = SOFT_DELETE_COLUMN in self._present
        mark = self._dialect.quote(SOFT_DELETE_COLUMN) if has_mark else None
        if self._gathers and not batch.how.outside:
            return self._taken_in(cursor, batch, attempts)
        if self._gathers:
            # Cuts do not include this table now. Record this for readers, and merge what was gathered for it.
            self._excluded.add(cursor, [self.place.source])
            self._shape = batch.shape
            self._gathered.merge(cursor, batch.shape, self._present)
        if batch.truncates:
            soft = mark if batch.how.delete_mode == "soft" else None
            only = self._shard.rows(self._present) if self._shard else "true"
            return Counts(deleted=self._dialect.rows.truncate(cursor, self.place.location, soft, only=only))
        if not attempts:
            return Counts()
        merge = self._merge_of(cursor, batch, attempts)
        self._check_staged(cursor, batch, merge)
        if batch.how.mode == "history":
            return merged_versions(cursor, self._dialect.database, merge, batch)
        if batch.how.mode == "append":
            return append_staged(cursor, self._dialect.database, merge)
        if merge.kept:
            omitted = None if batch.how.lenient else not_stored(cursor, merge, batch.shape)
            if omitted is not None:
                message, context = omitted
                raise ValueNotStoredError(message, **context, table=self._table)
            fill_kept(cursor, self._dialect.database, merge)
        return self._dialect.rows.merge(cursor, merge)

    def _taken_in(self, cursor: Any, batch: ReducedBatch, attempts: tuple[int, ...] | None) -> Counts:
        """Write a batch to the side table of gathered changes, for the next cut. Returns the row counts."""
        self._shape = batch.shape
        if batch.truncates:
            return self._gathered.add_emptying(cursor, batch.shape.keys)
        if not attempts:
            return Counts()
        merge = self._merge_of(cursor, batch, attempts)
        self._check_staged(cursor, batch, merge)
        return self._gathered.add(cursor, merge)

    def _check_staged(self, cursor: Any, batch: ReducedBatch, merge: Merge) -> None:
        """Check the number of staged rows, and cast values of columns whose type the user chose."""
        check_staged(cursor, merge)
        cast_staged(cursor, self._dialect, merge, batch.shape, self._natives(batch.shape), self._mend)

    def _natives(self, shape: TargetSchema) -> dict[int, Native]:
        return natives_of(self._present, shape, self._dialect.database)

    def _merge_of(self, cursor: Any, batch: ReducedBatch, attempts: tuple[int, ...]) -> Merge:
        beside = batch.beside(lambda: self._dialect.tables.nullable(cursor, self.place))
        epoch = self._epoch or 0
        return merge_of(
            batch,
            self.place,
            self._present,
            attempts=attempts,
            epoch=epoch,
            beside=beside,
            natives=self._natives(batch.shape),
        )

    def _prepare_gathered(self, cursor: Any, entry: SqlEntry) -> None:
        """Prepare the side table of gathered changes, when the table is claimed and its ledger row is locked.

        With cuts, create the side table if missing. The last cut then does not include the table. Without
        cuts, merge the changes that an earlier worker with cuts gathered. If no batch was ever applied to the
        table, the side table's rows belong to a dropped table of the same name, and are deleted.
        """
        if self._gathers:
            with self._changer(cursor) as changing:
                if entry.progress is None or not self._gathered.look(changing):
                    self._excluded.add(changing, [self.place.source])
                self._gathered.prepare(changing, self._shape, self._present, empty=entry.progress is None)
        elif self._gathered.look(cursor):
            if self._excluded.is_there(cursor):  # cuts do not include the table from now on
                self._excluded.add(cursor, [self.place.source])
            if entry.progress is None:
                self._gathered.discard(cursor)
            else:
                self._gathered.merge(cursor, self._shape, self._present)

    def _claimed_epoch(self) -> int:
        if self._epoch is None:
            raise StaleProgressError(
                "The table must be claimed before a batch is applied. Call `claim` first.", table=self._table
            )
        return self._epoch

    def _read(self, cursor: Any, *, lock: bool) -> SqlEntry:
        entry = self._ledger.read(cursor, lock=lock)
        if entry is None:
            raise StaleProgressError(
                f"The row of {self.place.shown} was deleted from {self.place.own_ledger}. Start the worker "
                "again.",
                table=self._table,
            )
        return entry

    def _held(self, cursor: Any, epoch: int, *, lock: bool = True, batch: int | None = None) -> SqlEntry:
        """Return the ledger row, after checking that it has this worker's epoch.

        Raises:
            StaleProgressError: another worker claimed the table, or the batch is from another epoch.
        """
        entry = self._read(cursor, lock=lock)
        check_held(entry.hold, (epoch,), table=self.place.source, batch=batch)
        return entry

    @contextmanager
    def _transaction(self, *, writes: bool = True) -> Iterator[Any]:
        with self._connections.transaction(self._table, writes=writes) as cursor:
            yield cursor
