"""An open table in a SQL database.

The executors load a batch's rows into a staging table. One transaction then merges them into the target table
and records the progress. It first locks the table's ledger row and checks the epoch, so a worker whose epoch
is outdated writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidesink.errors import StaleProgressError
from tidesink.events import folding
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import (
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
    check_shape,
)
from tidesink.sinks.targets.cuts import TableVersion, check_named
from tidesink.sinks.targets.sql.batches import SqlBatches
from tidesink.sinks.targets.sql.cuts import ExcludedTables, Gathering
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.hold import SqlHold
from tidesink.sinks.targets.sql.ledger import SqlLedger, SqlTombstones
from tidesink.sinks.targets.sql.location import Place
from tidesink.sinks.targets.sql.schema import SqlSchema
from tidesink.sinks.targets.sql.shard import SqlShard
from tidesink.sinks.targets.sql.view import SqlView
from tidesink.typemap.target_schema import TargetSchema


class SqlTable:
    """A target table in a SQL database, and optionally its view. It is used by one worker thread.

    Each part of it owns its state: ``SqlHold`` the claim, ``SqlSchema`` the columns, ``Gathering`` the
    changes for the next cut, and ``SqlBatches`` the staging table.
    """

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
        self._connections = connections
        self._ledger = SqlLedger(connections.dialect, place, excluded.pipeline, shape.keys)
        self._hold = SqlHold(connections, place, self._ledger)
        self._gathering = Gathering(self._hold, excluded, shape, gathers=gathers)
        shard = SqlShard(connections, place, self._ledger) if place.shard else None
        self._schema = SqlSchema(
            self._hold,
            shape,
            self._gathering,
            shard=shard,
            view=SqlView(connections.dialect, place, view) if view else None,
            soft=delete_mode == "soft",
        )
        self._batches = SqlBatches(self._hold, self._schema, self._gathering, shard)

    def claim(self) -> Claim:
        """Check the table, and commit the next epoch in its ledger row.

        Workers with an older epoch can then no longer write.
        """
        with self._hold.transaction() as cursor:
            entry = self._hold.claimed(cursor)
            self._schema.check_rows(cursor, entry)
            entry = self._ledger.identified(cursor, entry)
            self._schema.claim(cursor)
            self._gathering.claim(cursor, self._schema.present, loaded=entry.progress is not None)
            self._ledger.write(cursor, entry)
            staging = self._hold.dialect.staging.tables(cursor, self.place)
        was_claimed = self._hold.is_claimed
        self._hold.take(entry.epoch)
        if staging or was_claimed:
            # Dropping a staging table waits for its lock, so it has a transaction of its own.
            self._batches.claim()
        return Claim(entry.epoch, entry.progress)

    def committed(self) -> Progress | None:
        """Return the progress that the ledger records; None if no batch was ever applied."""
        with self._hold.transaction(writes=False) as cursor:
            entry = self._ledger.read(cursor)
            if entry is not None:
                self._schema.check_rows(cursor, entry)
        return entry.progress if entry else None

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        """Merge a batch into the table and record its progress, in one transaction.

        Returns the row counts.
        """
        return self._batches.apply(batch, progress)

    def version_of(self, progress: Progress) -> TableVersion:
        """Return the table's location and version. The version is the number of commits in the ledger."""
        entry = self._hold.entry()
        check_named(entry.progress if entry else None, progress)
        return TableVersion(self.place.shown, entry.commits if entry else 0)

    def lock_for_cut(self, cursor: Any, version: int) -> None:
        """Lock the table's ledger row, in the transaction that publishes a cut.

        ``version``: the number of commits that the ledger row must have.

        Raises:
            StaleProgressError: another worker holds the table, or the ledger row has another number of
                commits.
        """
        entry = self._hold.held(cursor)
        if entry.commits != version:
            raise StaleProgressError(
                f"{self.place.shown} was written by another worker while a cut was published. "
                "Run only one worker per table.",
                table=self._hold.table,
            )

    def merge_gathered(self, cursor: Any) -> None:
        """Merge the gathered changes into the target table, in the transaction that publishes a cut.

        The transaction must already have locked the ledger row (``lock_for_cut``).
        """
        self._gathering.merge(cursor, self._schema.present)

    def row_sink(self, rows: RowFormat) -> RowSink | None:
        """Return what lets the Spark tasks of a batch load their rows straight into a staging table.

        Returns None while the table's columns are unknown, because a column change was interrupted.
        """
        return self._batches.row_sink(rows)

    def loads_here(self) -> bool:
        """Return True if ``apply`` loads rows of this process in the transaction that commits them."""
        return self._batches.loads_here

    def forget_staged(self, parts: Sequence[StagedPart] = ()) -> None:  # noqa: ARG002  (all are in one table)
        """Drop the table's staging table, whether or not its batch was applied."""
        self._batches.forget_staged()

    def evolve(self, shape: TargetSchema) -> EvolveResult:
        """Add and widen columns so that the table can store ``shape``. Existing rows get new columns'
        defaults.
        """
        return self._schema.evolve(shape)

    def gap(self, shape: TargetSchema) -> SchemaGap:
        """Return the difference between the table's columns and those of ``shape``.

        Uses the columns of the table that were last read.
        """
        return self._schema.gap(shape)

    def rename_column(self, old: str, new: str) -> None:
        """Rename a column in the table, its view and its side table of gathered changes."""
        self._schema.rename(old, new)

    def drop_columns(self, names: Sequence[str]) -> None:
        """Drop columns of the table. The database raises an error if another view or an index uses one of
        them.
        """
        self._schema.drop(names)

    def horizon(self) -> int | None:
        """Return the commit_ts up to which tombstones may be missing, from the ledger; None if none were
        removed.
        """
        entry = self._hold.entry()
        return entry.horizon if entry else None

    def collect(self, horizon: int) -> Collected:
        """Remove the tombstones of deletes up to the commit_ts ``horizon``."""
        tombstones = SqlTombstones(
            self._hold.dialect,
            self.place,
            self._ledger,
            transaction=self._hold.transaction,
            held=self._hold.held,
        )
        fold = folding(self._schema.present)
        there = {fold(name): name for name in self._schema.present}
        return tombstones.collect(horizon, [there.get(fold(key), key) for key in self._ledger.keys])

    def close(self) -> None:
        """Drop the staging table, and close the idle connections of the target's pool."""
        self._batches.forget_staged()
        self._connections.close()
