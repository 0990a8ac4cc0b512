"""One table in a SQL database: rows staged by the executors, then merged with their progress at once.

Every transaction of ours locks the table's row in the ledger first and looks at the epoch: who lost the
table writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from tidesink.errors import SchemaRefusedError, StaleProgressError, TransientTargetError, ValueNotStoredError
from tidesink.sinks.progress import Progress, check_follows
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets.base import (
    SOFT_DELETE_COLUMN,
    ApplyResult,
    Claim,
    Collected,
    DeleteMode,
    ReducedBatch,
    check_order,
    check_versions,
)
from tidesink.sinks.targets.shape_checks import check_shape
from tidesink.sinks.targets.shards import Turns
from tidesink.sinks.targets.sql_changed_columns import ChangedColumns
from tidesink.sinks.targets.sql_columns import wanted_type
from tidesink.sinks.targets.sql_connections import Connections
from tidesink.sinks.targets.sql_dialect import Counts
from tidesink.sinks.targets.sql_history import merged_versions
from tidesink.sinks.targets.sql_ledger import Entry, SqlLedger
from tidesink.sinks.targets.sql_limits import check_sql_shape
from tidesink.sinks.targets.sql_merge import append_staged, check_staged, fill_kept, merge_of, not_stored
from tidesink.sinks.targets.sql_order import check_room_for_deletes, missing_columns
from tidesink.sinks.targets.sql_place import Place
from tidesink.sinks.targets.sql_shards import SqlShard
from tidesink.sinks.targets.sql_staging import staged
from tidesink.sinks.targets.sql_tombstones import SqlTombstones
from tidesink.sinks.targets.sql_view import SqlView
from tidesink.typemap.render_sql import OF_SPARK

_SOFT_DELETE_COMMENT: Final = "true: the row was deleted at the source"


class SqlTable(ChangedColumns):
    """One table of a SQL database, open for one worker thread."""

    def __init__(
        self,
        connections: Connections,
        place: Place,
        shape: TableShape,
        *,
        pipeline: str,
        delete_mode: DeleteMode,
        view: str | None = None,
    ) -> None:
        check_shape(shape)
        self.place = place
        self._view = SqlView(connections.dialect, place, view) if view else None
        self._connections = connections
        self._dialect = connections.dialect
        self._table = str(shape.source)
        self._ledger = SqlLedger(self._dialect, place, pipeline, shape.keys)
        self._shard = SqlShard(connections, place, self._ledger) if place.shard else None
        self._turns = Turns(f"{connections.endpoint.shown} {place.location}", place.shard)
        self._epoch: int | None = None
        self._created = False
        self._changing = False
        self._ordered: TableShape | None = None
        self._present = self._open(shape, soft=delete_mode == "soft")
        self._keys = frozenset(self._dialect.quote(key).lower() for key in shape.keys)
        # Not quoted: one that the database takes in no table is no matter until it is added.
        self._columns = frozenset(column.name.lower() for column in shape.columns)

    def claim(self) -> Claim:
        """Take the next epoch by a commit; older holders are refused from here on."""
        with self._transaction() as cursor:
            self._ledger.check_sharing(cursor)
            self._ledger.add_row(cursor)
            entry = self._ledger.claimed(self._locked(cursor))
            self._check_rows(entry, cursor)
            entry = self._ledger.identified(cursor, entry)
            self._dialect.check_keys(cursor, self.place, self._keys)
            self._dialect.check_kept(cursor, self.place, self._columns)
            # With the ledger's row locked: nobody else changes the columns now.
            self._change(cursor, self._dialect.left_undone(cursor, self.place))
            self._ledger.write(cursor, entry)
        self._epoch = entry.epoch
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
        epoch = self._claimed_epoch()
        if progress.epoch != epoch:
            raise StaleProgressError(
                f"this worker holds epoch {epoch}, and the batch is of epoch {progress.epoch}",
                table=self._table,
            )
        with self._transaction(writes=False) as cursor:
            done = self._done(self._held(cursor, epoch, lock=False), progress)
        if done is not None:
            return done
        if batch.mode == "history":
            check_versions(batch)
        self._take_order(batch)
        if batch.empty or batch.truncates:
            return self._commit(batch, progress, None)
        with staged(
            self._connections, self.place.staging(epoch), batch, self._staging_types(batch.shape)
        ) as attempts:
            return self._commit(batch, progress, attempts)

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
        there = {name.lower(): name for name in self._present}
        return tombstones.collect(horizon, [there.get(key.lower(), key) for key in self._ledger.keys])

    def close(self) -> None:
        """Close the target's connections that nobody uses; another table opens what it needs."""
        self._connections.close()

    def _open(self, shape: TableShape, *, soft: bool) -> dict[str, str]:
        location = self.place.location
        with self._transaction() as cursor:
            self._dialect.prepare_schema(cursor, self.place)
            present = self._dialect.present(cursor, self.place)
            if not present:
                if self._ledger.loaded(cursor):
                    return present
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
        columns = [(c.name, wanted_type(c, shape, database), c.key, c.comment) for c in shape.columns]
        if soft:
            columns.append((SOFT_DELETE_COLUMN, OF_SPARK[database]["boolean"], False, _SOFT_DELETE_COMMENT))
        self._dialect.create(cursor, self.place, columns)
        self._created = True

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

    def _staging_types(self, shape: TableShape) -> list[str]:
        """The types of the shape's columns at the target.

        Raises:
            SchemaRefusedError: the target lacks one.
        """
        known = {name.lower(): found for name, found in self._present.items()}
        missing = [column.name for column in shape.columns if column.name.lower() not in known]
        if missing:
            raise SchemaRefusedError(
                f"the target has no column {', '.join(missing)}: evolve it before the batch is applied",
                table=self._table,
            )
        return [known[column.name.lower()] for column in shape.columns]

    def _commit(
        self, batch: ReducedBatch, progress: Progress, attempts: tuple[int, ...] | None
    ) -> ApplyResult:
        batch.on_staged()
        with self._turns.mine(), self._transaction() as cursor:
            entry = self._held(cursor, progress.epoch)
            done = self._done(entry, progress)
            if done is not None:
                return done
            entry = self._ledger.identified(cursor, entry)
            counts = self._merged(cursor, batch, attempts)
            told = batch.truncates or batch.sequenced or batch.mode == "history"
            absent = counts.absent if told else batch.deletes - counts.deleted
            version = entry.commits + 1
            result = ApplyResult(*counts[:3], absent, str(version), counts.stale)
            entry = replace(entry, progress=progress, result=result, commits=version)
            self._ledger.write(cursor, self._shard.written(entry, batch.shape) if self._shard else entry)
        return result

    def _merged(self, cursor: Any, batch: ReducedBatch, attempts: tuple[int, ...] | None) -> Counts:
        has_mark = SOFT_DELETE_COLUMN in self._present
        mark = self._dialect.quote(SOFT_DELETE_COLUMN) if has_mark else None
        if batch.truncates:
            soft = mark if batch.delete_mode == "soft" else None
            only = self._shard.rows(self._present) if self._shard else "true"
            return Counts(deleted=self._dialect.truncate(cursor, self.place.location, soft, only=only))
        if not attempts:
            return Counts()
        beside = batch.beside(lambda: self._dialect.nullable(cursor, self.place))
        epoch = self._epoch or 0
        merge = merge_of(
            batch, self.place, self._present, attempts=attempts, mark=mark, epoch=epoch, beside=beside
        )
        check_staged(cursor, merge)
        if batch.mode == "history":
            return merged_versions(cursor, self._dialect.database, merge, batch)
        if merge.sequence:
            return self._dialect.merge_in_order(cursor, merge)
        if batch.mode == "append":
            return append_staged(cursor, merge)
        if merge.kept:
            left_out = None if batch.lenient else not_stored(cursor, merge)
            if left_out is not None:
                message, place = left_out
                raise ValueNotStoredError(message, **place, table=self._table)
            fill_kept(cursor, self._dialect.database, merge)
        return self._dialect.merge(cursor, merge)

    def _claimed_epoch(self) -> int:
        if self._epoch is None:
            raise StaleProgressError("claim the table before writing to it", table=self._table)
        return self._epoch

    def _locked(self, cursor: Any) -> Entry:
        entry = self._ledger.read(cursor, lock=True)
        if entry is None:
            raise StaleProgressError(
                f"the row of {self.place.shown} was deleted from {self.place.own_ledger}: start the worker "
                "again",
                table=self._table,
            )
        return entry

    def _held(self, cursor: Any, epoch: int, *, lock: bool = True) -> Entry:
        """The ledger's row, which must be of our epoch."""
        entry = self._locked(cursor) if lock else self._ledger.read(cursor)
        if entry is None or entry.epoch != epoch:
            now = f"epoch {entry.epoch}" if entry else "no row in the ledger"
            raise StaleProgressError(
                f"another worker holds this table ({now}, and this worker's epoch is {epoch}). Run one "
                "worker a table; this one wrote nothing and must stop",
                table=self._table,
            )
        return entry

    def _done(self, entry: Entry, progress: Progress) -> ApplyResult | None:
        """What this very batch did, where it is applied already.

        Raises:
            StaleProgressError: as ``check_follows`` says.
        """
        if entry.progress == progress and entry.result is not None:
            return entry.result
        check_follows(progress, entry.progress)
        return None

    @contextmanager
    def _transaction(self, *, writes: bool = True) -> Iterator[Any]:
        with self._connections.transaction(self._table, writes=writes) as cursor:
            yield cursor
