"""Applies batches to a SQL target table.

The executors load a batch's rows into a staging table. One transaction then merges them into the target table
and records the progress.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from tidesink.errors import SchemaRefusedError, TransientTargetError, ValueNotStoredError
from tidesink.events import folding
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import (
    SOFT_DELETE_COLUMN,
    ApplyResult,
    ReducedBatch,
    RowFormat,
    RowsHere,
    RowSink,
    check_order,
    check_versions,
    nothing,
)
from tidesink.sinks.targets.sql.cuts import Gathering
from tidesink.sinks.targets.sql.dialect import Counts, Merge, TemporaryStaging
from tidesink.sinks.targets.sql.hold import SqlHold
from tidesink.sinks.targets.sql.load import StagedColumn, staged_columns
from tidesink.sinks.targets.sql.merge import (
    append_staged,
    cast_staged,
    check_room_for_deletes,
    check_staged,
    fill_kept,
    merge_of,
    merged_versions,
    native_name,
    not_stored,
)
from tidesink.sinks.targets.sql.schema import SqlSchema
from tidesink.sinks.targets.sql.shard import SqlShard
from tidesink.sinks.targets.sql.staging import (
    drop_staging,
    loader_into,
    make_staging,
    rows_to_load,
    staged,
    staging_types,
)
from tidesink.typemap.target_schema import TargetSchema

_Staging = tuple[tuple[StagedColumn, ...], tuple[str, ...], tuple[tuple[str, str], ...]]


class StagedRowsOf(NamedTuple):
    """The rows of a batch in a staging table.

    Attributes:
        stage: The quoted name of the staging table.
        attempts: The ids of the task attempts whose rows make up the batch; None if the batch has no rows.
        load: Loads the rows into the staging table, in the transaction that merges them. Does nothing if they
            are there already.
    """

    stage: str
    attempts: tuple[int, ...] | None = None
    load: Callable[[Any], object] = nothing


class SqlBatches:
    """Stages and merges the batches of a target table, one after the other."""

    def __init__(
        self, hold: SqlHold, schema: SqlSchema, gathering: Gathering, shard: SqlShard | None
    ) -> None:
        """Create the part of a table that is not claimed yet.

        ``shard``: set if several source tables share the target table.
        """
        self._hold = hold
        self._schema = schema
        self._gathering = gathering
        self._shard = shard
        # The columns and types of the staging table, if it exists; and again, if no batch has used it yet.
        self._staging: _Staging | None = None
        self._unused: _Staging | None = None
        # For batches whose rows are in this process; None if they need a staging table of their own too.
        self._temporary: TemporaryStaging | None = None
        self._ordered: TargetSchema | None = None

    def claim(self) -> None:
        """Drop the staging tables of earlier epochs."""
        self._staging = self._unused = None
        temporary = self._hold.dialect.temporary
        if temporary is not None:
            with self._hold.transaction(writes=False) as cursor:
                self._temporary = temporary if temporary.is_allowed(cursor) else None
        # If a fenced worker's tasks still write to a staging table, dropping it fails. The next claim drops
        # it.
        with suppress(TransientTargetError), self._hold.transaction() as cursor:
            for name in self._hold.dialect.staging.tables(cursor, self._hold.place):
                cursor.execute(f"DROP TABLE IF EXISTS {self._hold.place.beside(name)}")

    def row_sink(self, rows: RowFormat) -> RowSink | None:
        """Return what lets the Spark tasks of a batch load their rows straight into a staging table.

        Returns None while the table's columns are unknown, because a column change was interrupted.
        """
        if not self._schema.is_known:
            return None
        self._make_staging(rows)
        return loader_into(self._hold.connections, self._hold.stage, rows)

    def forget_staged(self) -> None:
        """Drop the table's staging table, whether or not its batch was applied."""
        if self._staging is not None:
            drop_staging(self._hold.connections, self._hold.stage, self._hold.table)
        self._staging = self._unused = None

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        """Merge a batch into the table and record its progress, in one transaction.

        Returns the row counts.
        """
        rows = batch.payloads
        if batch.staged is None and isinstance(rows, RowsHere) and self._temporary is not None:
            self._check(batch)
            return self._commit(batch, progress, self._loaded_by(self._temporary, batch, rows))
        with self._hold.transaction(writes=False) as cursor:
            done = self._hold.held(cursor, lock=False, batch=progress.epoch).done(progress)
        if done is not None:
            return done
        self._check(batch)
        try:
            return self._commit(batch, progress, StagedRowsOf(self._hold.stage, self._staged(batch)))
        finally:
            if batch.staged is None or any(part.rows for part in batch.staged):
                self.forget_staged()
            else:  # the staging table is still empty, so the next batch uses it without DDL
                self._unused = self._staging

    @property
    def loads_here(self) -> bool:
        """True if the transaction that merges a batch can also load its rows from this process."""
        return self._temporary is not None

    def _check(self, batch: ReducedBatch) -> None:
        if batch.how.mode == "history":
            check_versions(batch)
        self._take_order(batch)

    def _loaded_by(self, temporary: TemporaryStaging, batch: ReducedBatch, rows: RowsHere) -> StagedRowsOf:
        if batch.empty or batch.truncates:
            return StagedRowsOf(temporary.name)
        wanted, database = self._wanted(batch.row_format), self._hold.dialect.database
        made = rows_to_load(self._hold.connections, temporary.name, batch, rows)
        columns = staging_types(database, *wanted)

        def load(cursor: Any) -> None:
            temporary.load(cursor, columns, made.statement, made.chunks)

        return StagedRowsOf(temporary.name, made.attempts, load)

    def _take_order(self, batch: ReducedBatch) -> None:
        """Check that the table can apply the batch's order, and add columns for ``sequence_by: source``.

        These columns store the position of each row and mark deleted rows.

        Raises:
            SchemaRefusedError: the table was written with ``sequence_by: source`` and the batch is in Kafka's
                order, or a column that tombstones set to NULL is NOT NULL.
        """
        place = self._hold.place
        check_order(batch, self._schema.present, table=place.source)
        if not batch.sequenced or batch.shape == self._ordered:
            return
        with self._hold.transaction(writes=False) as cursor:
            check_room_for_deletes(cursor, self._hold.dialect, place, batch.shape)
        self._schema.add_positions()
        self._ordered = batch.shape

    def _staged(self, batch: ReducedBatch) -> tuple[int, ...] | None:
        """Load the batch's rows into the staging table, if they are not there yet.

        Returns the ids of the task attempts whose rows make up the batch; None if the batch has no rows.
        """
        if batch.empty or batch.truncates:
            return None
        if batch.staged is None:
            self._make_staging(batch.row_format)
        return staged(self._hold.connections, self._hold.stage, batch)

    def _make_staging(self, rows: RowFormat) -> None:
        """Create an empty staging table, or use the existing one if it is empty and has the same columns."""
        wanted = self._wanted(rows)
        unused, self._unused = self._unused, None
        if unused != wanted:
            self._staging = wanted
            make_staging(self._hold.connections, self._hold.stage, *wanted, self._hold.table)

    def _wanted(self, rows: RowFormat) -> _Staging:
        return staged_columns(rows), tuple(self._staging_types(rows.shape)), self._native_types(rows.shape)

    def _staging_types(self, shape: TargetSchema) -> list[str]:
        """Return the types of the staging columns for the columns of ``shape``, in order.

        Raises:
            SchemaRefusedError: the target lacks a column of ``shape``.
        """
        present = self._schema.present
        fold = folding(present, (column.name for column in shape.columns))
        types = {fold(name): column_type for name, column_type in present.items()}
        missing = [column.name for column in shape.columns if fold(column.name) not in types]
        if missing:
            raise SchemaRefusedError(
                f"The target has no column {', '.join(missing)}. Call `evolve` before `apply`.",
                table=self._hold.table,
            )
        natives = self._schema.natives(shape)
        return [
            natives[index].staged if index in natives else types[fold(column.name)]
            for index, column in enumerate(shape.columns)
        ]

    def _native_types(self, shape: TargetSchema) -> tuple[tuple[str, str], ...]:
        """Return names and types of the additional staging columns, which ``cast_staged`` fills with values
        that are cast to native types.
        """
        natives = self._schema.natives(shape).items()
        return tuple((native_name(index), fit.kept) for index, fit in natives if fit.kept is not None)

    def _commit(self, batch: ReducedBatch, progress: Progress, rows: StagedRowsOf) -> ApplyResult:
        batch.hooks.on_staged()
        with self._hold.turn() as (cursor, held):
            done = held.done(progress)
            if done is not None:
                return done
            entry = self._hold.ledger.identified(cursor, held)
            if rows.attempts:
                rows.load(cursor)
            counts = self._merged(cursor, batch, rows)
            reported = batch.truncates or batch.sequenced or batch.how.mode == "history"
            absent = counts.absent if reported else batch.deletes - counts.deleted
            version = entry.commits + 1
            result = ApplyResult(*counts[:3], absent, str(version), counts.stale)
            written = replace(entry, progress=progress, result=result, commits=version)
            if self._shard:
                written = self._shard.written(written, batch.shape)
            self._hold.ledger.write(cursor, written)
        return result

    def _merged(self, cursor: Any, batch: ReducedBatch, rows: StagedRowsOf) -> Counts:
        """Merge a batch into the target table, or gather it for the next cut. Returns the row counts."""
        dialect = self._hold.dialect
        if self._gathering.takes(batch):
            return self._gathering.add(cursor, batch, self._checked(cursor, batch, rows))
        self._gathering.leave(cursor, batch.shape, self._schema.present)
        if batch.truncates:
            return self._emptied(cursor, batch)
        merge = self._checked(cursor, batch, rows)
        if merge is None:
            return Counts()
        if batch.how.mode == "history":
            return merged_versions(cursor, dialect.database, merge, batch)
        if batch.how.mode == "append":
            return append_staged(cursor, dialect.database, merge)
        if merge.kept:
            omitted = None if batch.how.lenient else not_stored(cursor, merge, batch.shape)
            if omitted is not None:
                message, context = omitted
                raise ValueNotStoredError(message, **context, table=self._hold.table)
            fill_kept(cursor, dialect.database, merge)
        return dialect.rows.merge(cursor, merge)

    def _emptied(self, cursor: Any, batch: ReducedBatch) -> Counts:
        """Delete all rows of the table or shard for a TRUNCATE, or mark them. Returns the row counts."""
        dialect, present = self._hold.dialect, self._schema.present
        soft = batch.how.delete_mode == "soft" and SOFT_DELETE_COLUMN in present
        mark = dialect.quote(SOFT_DELETE_COLUMN) if soft else None
        only = self._shard.rows(present) if self._shard else "true"
        return Counts(deleted=dialect.rows.truncate(cursor, self._hold.place.location, mark, only=only))

    def _checked(self, cursor: Any, batch: ReducedBatch, rows: StagedRowsOf) -> Merge | None:
        """Return the parameters of merging the staged rows; None if the batch has no rows.

        Checks the number of staged rows, and casts values of columns whose type the user chose.
        """
        if not rows.attempts:
            return None
        dialect, place = self._hold.dialect, self._hold.place
        natives = self._schema.natives(batch.shape)
        merge = merge_of(
            batch,
            place,
            self._schema.present,
            attempts=rows.attempts,
            stage=rows.stage,
            beside=batch.beside(lambda: dialect.tables.nullable(cursor, place)),
            natives=natives,
        )
        check_staged(cursor, merge)
        cast_staged(cursor, dialect, merge, batch.shape, natives, self._schema.mend)
        return merge
