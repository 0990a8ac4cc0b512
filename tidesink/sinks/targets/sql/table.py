"""One table in a SQL database: rows staged by the executors, then merged with their progress at once.

Every transaction of ours locks the table's row in the ledger first and looks at the epoch: who lost the
table writes nothing.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import SchemaRefusedError, StaleProgressError, TransientTargetError, ValueNotStoredError
from tidesink.events import fold_name, folding
from tidesink.sinks.state.progress import Progress, check_held, done_before
from tidesink.sinks.targets.base import (
    SEQUENCE_COLUMN,
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
from tidesink.sinks.targets.modes import FROM_COLUMN, OP, READ_COLUMN, TO_COLUMN
from tidesink.sinks.targets.sharing import Turns, also_of, known_after, new_columns, others_columns
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
from tidesink.sinks.targets.sql.ledger import Entry, SqlLedger, SqlTombstones
from tidesink.sinks.targets.sql.load import StagedColumn, staged_columns
from tidesink.sinks.targets.sql.location import Place
from tidesink.sinks.targets.sql.merge import (
    append_staged,
    cast_staged,
    check_room_for_deletes,
    check_staged,
    drop_staging,
    fill_kept,
    loader_into,
    make_staging,
    merge_of,
    merged_versions,
    missing_columns,
    native_name,
    not_stored,
    staged,
)
from tidesink.typemap.native_sql import Native, reading_type
from tidesink.typemap.render_sql import OF_SPARK
from tidesink.typemap.target_schema import ShapeColumn, TableShape

if TYPE_CHECKING:
    from tidesink.sinks.targets.sql.dialect import Dialect, ForView


_Staging = tuple[tuple[StagedColumn, ...], tuple[str, ...], tuple[tuple[str, str], ...]]
_SOFT_DELETE_COMMENT: Final = "true: the row was deleted at the source"


class SqlTable:
    """One table of a SQL database, open for one worker thread."""

    def __init__(
        self,
        connections: Connections,
        place: Place,
        shape: TableShape,
        *,
        delete_mode: DeleteMode,
        view: str | None = None,
        excluded: ExcludedTables,
        gathers: bool = False,
    ) -> None:
        """``gathers``: changes wait for the cut. ``excluded``: where the pipeline says of a table if not."""
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
        # The columns of the staging table that is there, with their types; and of it where nobody used it.
        self._staging: _Staging | None = None
        self._unused: _Staging | None = None
        self._ordered: TableShape | None = None
        # What comes with the next cut, and the shape that its rows have.
        self._gathered, self._gathers = Gathered(self._dialect, place), gathers
        self._excluded = excluded
        self._shape = shape
        self._present = self._open(shape, soft=delete_mode == "soft")
        self._keys = frozenset(fold_name(self._dialect.quote(key)) for key in shape.keys)
        # Not quoted: one that the database takes in no table is no matter until it is added.
        self._columns = frozenset(fold_name(column.name) for column in shape.columns)

    def claim(self) -> Claim:
        """Take the next epoch by a commit; older holders are refused from here on."""
        with self._transaction() as cursor:
            self._ledger.check_sharing(cursor)
            self._ledger.add_row(cursor)
            entry = self._ledger.claimed(self._read(cursor, lock=True))
            self._check_rows(entry, cursor)
            entry = self._ledger.identified(cursor, entry)
            self._dialect.check_keys(cursor, self.place, self._keys)
            keys = frozenset(fold_name(key) for key in self._shape.keys)
            self._dialect.check_kept(cursor, self.place, self._columns, keys)
            check_natives(self._present, self._shape, self._dialect.database, self._mend)
            # With the ledger's row locked: nobody else changes the columns now.
            self._change(cursor, self._dialect.left_undone(cursor, self.place))
            self._prepare_gathered(cursor, entry)
            self._ledger.write(cursor, entry)
        self._epoch = entry.epoch
        self._staging = self._unused = None  # those of an epoch before go with all others below
        with self._transaction(writes=False) as cursor:
            self._present = self._dialect.present(cursor, self.place)
        # An older holder's tasks may still write to its own: then the next claim finds it.
        with suppress(TransientTargetError), self._transaction() as cursor:
            for name in self._dialect.staging_tables(cursor, self.place):
                cursor.execute(f"DROP TABLE IF EXISTS {self.place.beside(name)}")
        return Claim(entry.epoch, entry.progress)

    def committed(self) -> Progress | None:
        """What the ledger says is applied."""
        with self._transaction(writes=False) as cursor:
            entry = self._ledger.read(cursor)
            if entry is not None:
                self._check_rows(entry, cursor)
        return entry.progress if entry else None

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        """Merge a batch and its progress in one transaction."""
        with self._transaction(writes=False) as cursor:
            entry = self._held(cursor, self._claimed_epoch(), lock=False, batch=progress.epoch)
            done = done_before(progress, entry.progress, entry.result)
        if done is not None:
            return done
        if batch.mode == "history":
            check_versions(batch)
        self._take_order(batch)
        try:
            return self._commit(batch, progress, self._staged(batch))
        finally:
            if batch.staged is None or any(part.rows for part in batch.staged):
                self.forget_staged()
            else:  # the next batch may use it: of a batch without a row the database sees no DDL
                self._unused = self._staging

    def version_of(self, progress: Progress) -> TableVersion:
        """The number of commits, as ``VersionedTable`` says."""
        with self._transaction(writes=False) as cursor:
            entry = self._ledger.read(cursor)
        check_named(entry.progress if entry else None, progress)
        return TableVersion(self.place.shown, entry.commits if entry else 0)

    def lock_for_cut(self, cursor: Any, version: int) -> None:
        """Lock the ledger's row until the cut, in its transaction.

        Raises:
            StaleProgressError: the table is another worker's, or was written since it was ``version``.
        """
        entry = self._held(cursor, self._claimed_epoch())
        if entry.commits != version:
            raise StaleProgressError(
                f"{self.place.shown} was written while the cut was made: run one worker a table",
                table=self._table,
            )

    def merge_gathered(self, cursor: Any) -> None:
        """Merge what was gathered, in the transaction of the cut, which has the ledger's row."""
        self._gathered.merge(cursor, self._shape, self._present)

    def row_sink(self, rows: RowFormat) -> RowSink | None:
        """Takes rows into the staging table, in the tasks that reduce them."""
        if self._changing:  # the columns are only known once ``evolve`` has looked at them
            return None
        self._make_staging(rows)
        return loader_into(self._connections, self.place.staging(self._claimed_epoch()), rows)

    def forget_staged(self, parts: Sequence[StagedPart] = ()) -> None:  # noqa: ARG002  (all are in one table)
        """Drop the staging table, whatever became of its batch."""
        if self._staging is not None:
            drop_staging(self._connections, self.place.staging(self._claimed_epoch()), self._table)
        self._staging = self._unused = None

    def evolve(self, shape: TableShape) -> EvolveResult:
        """Add columns with their defaults for rows already there; widen types."""
        check_sql_shape(shape, self._dialect.limits, self._dialect.quote)
        if self._changing:  # the last one was cut off: what it did is only in the table
            with self._altering() as (cursor, _):
                self._change(cursor, self._dialect.left_undone(cursor, self.place))
        needed = self._planned(shape).needed or bool(self._shard and self._shard.new(shape))
        needed = needed or (self._gathers and self._gathered.lacks(shape))
        created, self._created = self._created, False
        if needed:
            return self._grown(shape, created=created)
        with self._transaction(writes=False) as cursor:
            self._held(cursor, self._claimed_epoch(), lock=False)
        return EvolveResult(created)

    def gap(self, shape: TableShape) -> SchemaGap:
        """What the columns lack, as they were when they were last looked at."""
        plan = self._planned(shape)
        widened = {name: (self._present[name], found) for name, found in plan.widened.items()}
        held = {
            name: reading_type(shape.find(name), found, self._dialect.database)
            for name, found in self._present.items()
        }
        return SchemaGap(tuple(self._present), tuple(c.name for c, _ in plan.added), widened, held)

    def rename_column(self, old: str, new: str) -> None:
        """Rename a column."""
        quote = self._dialect.quote
        self._altered(
            lambda location, present: (
                [f"ALTER TABLE {location} RENAME COLUMN {quote(old)} TO {quote(new)}"]
                if old in present
                else []
            )
        )

    def drop_columns(self, names: Sequence[str]) -> None:
        """Drop columns; one that a view or an index of others needs is an error of the database."""
        quote = self._dialect.quote
        self._altered(
            lambda location, present: [
                f"ALTER TABLE {location} DROP COLUMN {quote(name)}" for name in names if name in present
            ]
        )

    def horizon(self) -> int | None:
        """The commit_ts up to which deletes may be forgotten, as the ledger has it."""
        with self._transaction(writes=False) as cursor:
            entry = self._ledger.read(cursor)
        return entry.horizon if entry else None

    def collect(self, horizon: int) -> Collected:
        """Forget deletes up to a commit_ts."""
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
        """Close the target's connections that nobody uses; another table opens what it needs."""
        self.forget_staged()
        self._connections.close()

    def _open(self, shape: TableShape, *, soft: bool) -> dict[str, str]:
        location = self.place.location
        with self._transaction() as cursor:
            if self._gathers:
                self._excluded.prepare(cursor)
            self._dialect.prepare_schema(cursor, self.place)
            present = self._dialect.present(cursor, self.place)
            if not present:
                if self._ledger.loaded(cursor):
                    return present
                if self._gathers:  # the last cut has no such table
                    self._excluded.add(cursor, [self.place.source])
                self._make(cursor, shape, soft=soft)
            elif soft and SOFT_DELETE_COLUMN not in present:
                mark = {SOFT_DELETE_COLUMN: (OF_SPARK[self._dialect.database]["boolean"], None)}
                for statement in self._dialect.alter(location, mark, {}, frozenset()):
                    cursor.execute(statement)
            present = self._dialect.present(cursor, self.place)
            for statement in self._view.statements(cursor, present) if self._view else ():
                cursor.execute(statement)
            return present

    def _make(self, cursor: Any, shape: TableShape, *, soft: bool) -> None:
        """Make the table; of one that is there a shape may have columns that are never added to it."""
        check_sql_shape(shape, self._dialect.limits, self._dialect.quote)
        database = self._dialect.database
        length = self._dialect.key_length
        columns = [
            (c.name, wanted_type(c, shape, database, key_length=length), c.key, c.comment)
            for c in shape.columns
        ]
        if soft:
            columns.append((SOFT_DELETE_COLUMN, OF_SPARK[database]["boolean"], False, _SOFT_DELETE_COMMENT))
        self._dialect.create(cursor, self.place, columns)
        self._created = True

    def _grown(self, shape: TableShape, *, created: bool) -> EvolveResult:
        """Bring the table to a shape, whatever others have done to it since it was planned."""
        with self._altering() as (cursor, entry):
            if self._gathers:  # before the table: what is cut off between them is gone on with
                self._change(cursor, self._gathered.growing(cursor, shape))
                self._gathered.look(cursor)
            plan = self._plan(self._present, shape)
            new = self._shard.new(shape) if self._shard else plan.added
            defaults, warnings = default_literals(new, shape)
            # Of a shared table only our own rows get our defaults.
            statements = self._growing(plan, shape, {} if self._shard else defaults)
            self._alter(cursor, statements, widens=bool(plan.widened))
            if self._shard:
                self._shard.fill(cursor, entry, shape, defaults=defaults, present=self._present)
        names = tuple(column.name for column, _ in plan.added)
        return EvolveResult(created, names, tuple(plan.widened), tuple(defaults), warnings)

    def _growing(self, plan: SqlEvolution, shape: TableShape, defaults: Mapping[str, str]) -> list[str]:
        """The statements of a plan; ``defaults`` are literal texts."""
        added = {
            column.name: (found, self._literal(defaults.get(column.name), found))
            for column, found in plan.added
        }
        keys = frozenset(fold_name(key) for key in shape.keys)
        return self._dialect.alter(self.place.location, added, plan.widened, keys)

    def _planned(self, shape: TableShape) -> SqlEvolution:
        """What the columns lack; of a shared table they are looked up where they seem to lack something."""
        plan = self._plan(self._present, shape)
        if self._shard and plan.needed:
            with self._transaction(writes=False) as cursor:
                self._present = self._dialect.present(cursor, self.place)
            plan = self._plan(self._present, shape)
        return plan

    def _plan(self, present: Mapping[str, str], shape: TableShape) -> SqlEvolution:
        try:
            return plan_columns(present, shape, self._dialect.database, self._mend)
        except SchemaRefusedError as exc:
            raise self._shard.refused(exc) if self._shard else exc from None

    def _mend(self, name: str, wanted: str) -> list[str]:
        """The statements that give a column a type that holds the source's values."""
        keys = frozenset(fold_name(key) for key in self._shape.keys)
        named = {fold_name(one): (one, found) for one, found in self._present.items()}
        own, found = named[fold_name(name)]
        return self._dialect.retyped(self.place.location, own, found, wanted, keys)

    def _altered(self, statements: Callable[[str, Mapping[str, str]], list[str]]) -> None:
        """Change the schema as it is now, by a table's quoted name and its columns.

        The view of the table must not hold it up.
        """
        with self._transaction(writes=False) as cursor:
            self._held(cursor, self._claimed_epoch(), lock=False)
            self._present = self._dialect.present(cursor, self.place)
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
    def _altering(self) -> Iterator[tuple[Any, Entry]]:
        """A transaction with the ledger's row locked, where it is still ours, and the columns as they are."""
        with self._turns.mine(), self._transaction() as cursor:
            entry = self._held(cursor, self._claimed_epoch())
            self._changing = True
            self._present = self._dialect.present(cursor, self.place)
            yield cursor, entry
        self._changing = False

    def _alter(self, cursor: Any, statements: list[str], *, widens: bool) -> None:
        """Change the table's columns, and its view with them."""
        before, after = self._view.in_the_way(cursor) if self._view and widens else ([], [])
        self._change(cursor, [*before, *statements])
        self._present = self._dialect.present(cursor, self.place)
        shown = self._view.statements(cursor, self._present) if self._view else []
        rights = [again.statement for again in after if again.column in (None, *self._present)]
        self._change(cursor, [*shown, *rights])

    def _change(self, cursor: Any, statements: list[str]) -> None:
        """Change the schema, with the ledger's row locked; on another connection where DDL commits."""
        if not statements:
            return
        with self._changer(cursor) as changing:
            for statement in statements:
                changing.execute(statement)

    @contextmanager
    def _changer(self, cursor: Any) -> Iterator[Any]:
        """A cursor for changes of the schema, while another one has the ledger's row locked."""
        if not self._dialect.ddl_commits:
            yield cursor
            return
        with self._connections.kept_awake(cursor), self._transaction() as changing:
            yield changing

    def _literal(self, text: str | None, found: str) -> str | None:
        return None if text is None else self._dialect.literal(text, found)

    def _check_rows(self, entry: Entry, cursor: Any) -> None:
        if not self._present and (entry.progress is not None or self._ledger.loaded(cursor)):
            raise StaleProgressError(
                f"{self.place.shown} was dropped behind its progress: going on would leave a gap. Bring it "
                f"back, or delete its rows from {self.place.own_ledger} (table_name {self.place.name!r}) and "
                "let the worker load it again from the start of its topic",
                table=self._table,
            )

    def _take_order(self, batch: ReducedBatch) -> None:
        """Give the table the columns of the order its rows come in, once; refuse the way back."""
        check_order(batch, self._present, table=self.place.source)
        if not batch.sequenced or batch.shape == self._ordered:
            return
        with self._transaction(writes=False) as cursor:
            check_room_for_deletes(cursor, self._dialect, self.place, batch.shape)
        if missing_columns(self._present, self._dialect):
            with self._altering() as (cursor, _):
                missing = missing_columns(self._present, self._dialect)
                added = self._dialect.alter(self.place.location, missing, {}, frozenset()) if missing else []
                self._alter(cursor, added, widens=False)
        self._ordered = batch.shape

    def _staged(self, batch: ReducedBatch) -> tuple[int, ...] | None:
        """The attempts that count, once the batch's rows are staged; None where it has none."""
        if batch.empty or batch.truncates:
            return None
        if batch.staged is None:
            self._make_staging(batch.row_format)
        return staged(self._connections, self.place.staging(self._claimed_epoch()), batch)

    def _make_staging(self, rows: RowFormat) -> None:
        """Make the staging table again, empty; one of the same columns that nobody used stays."""
        wanted = staged_columns(rows), tuple(self._staging_types(rows.shape)), self._native_types(rows.shape)
        unused, self._unused = self._unused, None
        if unused != wanted:
            self._staging = wanted
            make_staging(self._connections, self.place.staging(self._claimed_epoch()), *wanted, self._table)

    def _staging_types(self, shape: TableShape) -> list[str]:
        """The types of the shape's columns at the target.

        Raises:
            SchemaRefusedError: the target lacks one.
        """
        fold = folding(self._present, (column.name for column in shape.columns))
        known = {fold(name): found for name, found in self._present.items()}
        missing = [column.name for column in shape.columns if fold(column.name) not in known]
        if missing:
            raise SchemaRefusedError(
                f"the target has no column {', '.join(missing)}: evolve it before the batch is applied",
                table=self._table,
            )
        natives = self._natives(shape)
        return [
            natives[at].staged if at in natives else known[fold(column.name)]
            for at, column in enumerate(shape.columns)
        ]

    def _native_types(self, shape: TableShape) -> tuple[tuple[str, str], ...]:
        """The columns of a staging table that are filled by a cast, with their types."""
        found = self._natives(shape).items()
        return tuple((native_name(at), fit.kept) for at, fit in found if fit.kept is not None)

    def _commit(
        self, batch: ReducedBatch, progress: Progress, attempts: tuple[int, ...] | None
    ) -> ApplyResult:
        batch.on_staged()
        with self._turns.mine(), self._transaction() as cursor:
            entry = self._held(cursor, progress.epoch)
            done = done_before(progress, entry.progress, entry.result)
            if done is not None:
                return done
            entry = self._ledger.identified(cursor, entry)
            counts = self._merged(cursor, batch, attempts)
            reported = batch.truncates or batch.sequenced or batch.mode == "history"
            absent = counts.absent if reported else batch.deletes - counts.deleted
            version = entry.commits + 1
            result = ApplyResult(*counts[:3], absent, str(version), counts.stale)
            entry = replace(entry, progress=progress, result=result, commits=version)
            self._ledger.write(cursor, self._shard.written(entry, batch.shape) if self._shard else entry)
        return result

    def _merged(self, cursor: Any, batch: ReducedBatch, attempts: tuple[int, ...] | None) -> Counts:
        has_mark = SOFT_DELETE_COLUMN in self._present
        mark = self._dialect.quote(SOFT_DELETE_COLUMN) if has_mark else None
        if self._gathers and not batch.outside:
            return self._taken_in(cursor, batch, attempts)
        if self._gathers:
            # What was gathered comes before the batch. Readers find its name, until a cut has the table.
            self._excluded.add(cursor, [self.place.source])
            self._shape = batch.shape
            self._gathered.merge(cursor, batch.shape, self._present)
        if batch.truncates:
            soft = mark if batch.delete_mode == "soft" else None
            only = self._shard.rows(self._present) if self._shard else "true"
            return Counts(deleted=self._dialect.truncate(cursor, self.place.location, soft, only=only))
        if not attempts:
            return Counts()
        merge = self._merge_of(cursor, batch, attempts)
        self._check_staged(cursor, batch, merge)
        if batch.mode == "history":
            return merged_versions(cursor, self._dialect.database, merge, batch)
        if batch.mode == "append":
            return append_staged(cursor, self._dialect.database, merge)
        if merge.kept:
            omitted = None if batch.lenient else not_stored(cursor, merge, batch.shape)
            if omitted is not None:
                message, place = omitted
                raise ValueNotStoredError(message, **place, table=self._table)
            fill_kept(cursor, self._dialect.database, merge)
        return self._dialect.merge(cursor, merge)

    def _taken_in(self, cursor: Any, batch: ReducedBatch, attempts: tuple[int, ...] | None) -> Counts:
        """Have a batch gathered."""
        self._shape = batch.shape
        if batch.truncates:
            return self._gathered.add_emptying(cursor, batch.shape.keys)
        if not attempts:
            return Counts()
        merge = self._merge_of(cursor, batch, attempts)
        self._check_staged(cursor, batch, merge)
        return self._gathered.add(cursor, merge)

    def _check_staged(self, cursor: Any, batch: ReducedBatch, merge: Merge) -> None:
        """Count the staged rows, and cast their values to the target's native types."""
        check_staged(cursor, merge)
        cast_staged(cursor, self._dialect, merge, batch.shape, self._natives(batch.shape), self._mend)

    def _natives(self, shape: TableShape) -> dict[int, Native]:
        return natives_of(self._present, shape, self._dialect.database)

    def _merge_of(self, cursor: Any, batch: ReducedBatch, attempts: tuple[int, ...]) -> Merge:
        beside = batch.beside(lambda: self._dialect.nullable(cursor, self.place))
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

    def _prepare_gathered(self, cursor: Any, entry: Entry) -> None:
        """Have a place for what is gathered; without cuts, merge what a worker with cuts left there.

        The ledger's row is locked. Where nothing is applied, what stands there is of another table that had
        the name, and is thrown away. Where there is no place yet, the last cut has not got the table.
        """
        if self._gathers:
            with self._changer(cursor) as changing:
                if entry.progress is None or not self._gathered.look(changing):
                    self._excluded.add(changing, [self.place.source])
                self._gathered.prepare(changing, self._shape, self._present, empty=entry.progress is None)
        elif self._gathered.look(cursor):
            if self._excluded.is_there(cursor):  # from here on the table is as of no cut
                self._excluded.add(cursor, [self.place.source])
            if entry.progress is None:
                self._gathered.discard(cursor)
            else:
                self._gathered.merge(cursor, self._shape, self._present)

    def _claimed_epoch(self) -> int:
        if self._epoch is None:
            raise StaleProgressError("claim the table before writing to it", table=self._table)
        return self._epoch

    def _read(self, cursor: Any, *, lock: bool) -> Entry:
        entry = self._ledger.read(cursor, lock=lock)
        if entry is None:
            raise StaleProgressError(
                f"the row of {self.place.shown} was deleted from {self.place.own_ledger}: start the worker "
                "again",
                table=self._table,
            )
        return entry

    def _held(self, cursor: Any, epoch: int, *, lock: bool = True, batch: int | None = None) -> Entry:
        """The ledger's row, which must be of our epoch, as ``check_held`` says."""
        entry = self._read(cursor, lock=lock)
        check_held((entry.epoch,), (epoch,), table=self.place.source, batch=batch)
        return entry

    @contextmanager
    def _transaction(self, *, writes: bool = True) -> Iterator[Any]:
        with self._connections.transaction(self._table, writes=writes) as cursor:
            yield cursor


_OWN: Final = frozenset({SEQUENCE_COLUMN, SOFT_DELETE_COLUMN, FROM_COLUMN, TO_COLUMN, READ_COLUMN})
# What is said of our columns by a row that lives. A version that ended has an end, a delete's mark too.
_LIVING: Final = MappingProxyType({SOFT_DELETE_COLUMN: "IS NOT TRUE", TO_COLUMN: "IS NULL"})
_MARK: Final = "_tidesink_view_"


@dataclass(frozen=True)
class SqlView:
    """The view ``name`` of one table, beside it."""

    dialect: Dialect
    place: Place
    name: str

    def statements(self, cursor: Any, present: Mapping[str, str]) -> list[str]:
        """What makes the view fit the table's columns; empty where it does, so that readers are not held up.

        A log of changes (``mode: append``) has no view: its rows are neither living nor deleted.

        Raises:
            SchemaRefusedError: a table has the view's name, or a view that is not ours.
        """
        if OP in present:
            return []
        text = self.dialect.view_text(cursor, self.place, self.name)
        if text is not None and _MARK not in text:
            raise SchemaRefusedError(
                f"{self.place.schema}.{self.name} is a table, or a view that tidesink did not make (or whose "
                f"definition this user may not see), and target.view gives its name to the view of "
                f"{self.place.shown}: set target.view to another name, or drop what stands there",
                table=str(self.place.source),
            )
        alias = _MARK + sha256(living_query(self.place, present).encode()).hexdigest()[:16]
        if text is not None and alias in text:
            return []
        query = living_query(self.place, present, alias)
        return self.dialect.view_statements(self.place.beside(self.name), query)

    def in_the_way(self, cursor: Any) -> tuple[list[str], list[ForView]]:
        """What is to be done before and after a change of types, where our view holds it up."""
        text = self.dialect.view_text(cursor, self.place, self.name)
        if text is None or _MARK not in text:
            return [], []
        return self.dialect.view_in_the_way(cursor, self.place.beside(self.name))


def living_query(place: Place, columns: Mapping[str, str], alias: str = "") -> str:
    """The living rows of a table with these columns, in a database's SQL; ``alias`` is the table's in it.

    Of a table that keeps every version of a row these are the current versions.
    """
    named = ", ".join(place.quote(name) for name in columns if name not in _OWN)
    living = [f"{place.quote(name)} {said}" for name, said in _LIVING.items() if name in columns]
    where = f" WHERE {' AND '.join(living)}" if living else ""
    return f"SELECT {named} FROM {place.location}{alias and f' AS {place.quote(alias)}'}{where}"


class SqlShard:
    """One shard of an open table; ``place.shard`` says which."""

    def __init__(self, connections: Connections, place: Place, ledger: SqlLedger) -> None:
        self._connections = connections
        self._dialect = connections.dialect
        self._place = place
        self._ledger = ledger

    def rows(self, present: Mapping[str, str]) -> str:
        """The condition for the shard's rows; ``present`` are the table's columns with their types."""
        assert self._place.shard is not None  # noqa: S101  (a shard's place has it)
        column, value = self._place.shard
        name, found = next(both for both in present.items() if fold_name(both[0]) == fold_name(column))
        return f"{self._dialect.quote(name)} = {self._dialect.literal(value, found)}"

    def new(self, shape: TableShape) -> tuple[tuple[ShapeColumn, str], ...]:
        """The columns that the shard's rows have no value for yet, whether the table has them or not."""
        with self._connections.transaction(str(self._place.source), writes=False) as cursor:
            entry = self._ledger.read(cursor)
        return tuple((column, "") for column in new_columns(shape, entry.known if entry else None))

    def fill(
        self,
        cursor: Any,
        entry: Entry,
        shape: TableShape,
        *,
        defaults: Mapping[str, str],
        present: Mapping[str, str],
    ) -> None:
        """Give the shard's rows the literal texts ``defaults``, and write down that they have the columns."""
        fold = folding(present, (column.name for column in shape.columns))
        given = {fold(name): text for name, text in defaults.items()}
        sets = [
            f"{self._dialect.quote(name)} = {self._dialect.literal(given[fold(name)], found)}"
            for name, found in present.items()
            if fold(name) in given
        ]
        if sets:
            cursor.execute(f"UPDATE {self._place.location} SET {', '.join(sets)} WHERE {self.rows(present)}")
        self._ledger.write(cursor, replace(entry, known=known_after(entry.known, shape)))

    def written(self, entry: Entry, shape: TableShape) -> Entry:
        """The shard's entry after rows of a shape were written."""
        return replace(entry, known=known_after(entry.known or (), shape))

    def refused(self, error: SchemaRefusedError) -> SchemaRefusedError:
        """The error of a change that the table cannot take, with the other shards."""
        with self._connections.transaction(str(self._place.source), writes=False) as cursor:
            others = self._ledger.others(cursor)
        return also_of(error, self._place.shown, others) if others else error
