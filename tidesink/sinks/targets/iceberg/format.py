"""The steps of an open Iceberg table's life: claims, commits of files and of statements, and tombstones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from tidesink.errors import TidesinkError
from tidesink.events import TableId
from tidesink.sinks.state.progress import Progress, check_held
from tidesink.sinks.targets.base import ApplyResult, Collected, ReducedBatch, RowFormat
from tidesink.sinks.targets.iceberg import jvm, merge
from tidesink.sinks.targets.iceberg.columns import IcebergColumns, crowded
from tidesink.sinks.targets.iceberg.files import FilePlan, FileWriter
from tidesink.sinks.targets.iceberg.jvm import JvmTable, TableState
from tidesink.sinks.targets.iceberg.ledger import ATTEMPTS, IcebergEntry, IcebergLedger
from tidesink.sinks.targets.iceberg.merge import grown_by
from tidesink.sinks.targets.iceberg.schema import Maintenance
from tidesink.sinks.targets.lake.files import FileSink
from tidesink.typemap.target_schema import TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class IcebergFormat:
    """The steps of a table's life in Iceberg (``lake.table.TableFormat``)."""

    def __init__(
        self,
        session: SparkSession,
        table: JvmTable,
        ledger: IcebergLedger,
        *,
        columns: IcebergColumns,
        files: FileWriter,
    ) -> None:
        self.columns: Final = columns
        self.files: Final = files
        self._session, self._table, self._ledger = session, table, ledger
        self._holder, self._staging = columns.holder, columns.staging
        self._maintenance = Maintenance(session, table)
        # The state that ``done`` read, for the plan of the same batch.
        self._state: TableState | None = None

    @property
    def place(self) -> str:
        """The table's quoted name with its catalog."""
        return self._table.location

    @property
    def _name(self) -> TableId:
        return self._ledger.table

    def reading_error(self, exc: BaseException, *, table: str) -> TidesinkError:
        """Return the error to raise for Spark's exception in a step that only reads."""
        return jvm.reading_error(exc, table=table)

    def commit_error(self, exc: BaseException, *, table: str) -> TidesinkError:
        """Return the error to raise for Spark's exception around commits, which convert their own errors."""
        return jvm.reading_error(exc, table=table)

    def claim(self) -> IcebergEntry:
        """Claim the table with the next epoch, and write pending defaults of new columns."""
        entry = self._holder.claim()
        self.columns.fill_pending()
        return entry

    def entry(self) -> tuple[int, IcebergEntry | None]:
        """Return the snapshot that readers see, and the entry in the ledger property."""
        state = self._table.state()
        return cast(int, state.head), self._ledger.entry(state)

    def shards(self) -> tuple[str, ...]:
        """Return the names of the other shards that share the table."""
        return self._ledger.shards(self._table.state())

    def obstacle(self, shape: TargetSchema) -> str | None:
        """Return the reason why no batch of a history can be written as files; None if there is none."""
        return self.files.obstacle(shape, self._table.state())

    def done(self, _batch: ReducedBatch, progress: Progress) -> ApplyResult | None:
        """Return the result of a batch that is applied already; None for the next batch.

        Raises:
            StaleProgressError: this worker does not hold the batch's epoch, or a later batch is applied.
        """
        hold = self._holder.held.hold
        check_held(hold, hold, table=self._name, batch=progress.epoch)
        self._state = self._holder.current()
        return self._holder.held.done(progress)

    def add_order(self, _present: Mapping[str, str]) -> None:
        """Add the columns for the source's order, if missing."""
        merge.add_order(self._table, self._holder, self._name)
        self._state = None

    def plan(self, batch: ReducedBatch, progress: Progress) -> FilePlan | str:
        """Return the plan for writing a batch as files, or the reason why it needs a MERGE."""
        state, self._state = self._state or self._holder.current(), None
        return self.files.plan(batch, progress, state)

    def commit_files(self, batch: ReducedBatch, progress: Progress, plan: FilePlan) -> ApplyResult | None:
        """Write a batch as files, and publish their snapshot. Returns None if another writer committed in
        between.
        """
        staged = self.files.stage(batch, plan)
        if staged is None:
            return None
        head = plan.state.head
        snapshot = head if staged.snapshot is None else int(staged.snapshot.snapshotId())
        held = self._holder.held
        entry = self._ledger.batch(
            held, progress, staged.result, snapshot=cast(int, snapshot), shape=batch.shape
        )
        batch.hooks.on_staged()
        if not self._holder.publish(entry, on=head, at=plan.state, adding=staged.snapshot):
            self.files.discard(staged.paths, plan.state)
            return None
        self._maintenance.run_if_due(staged.numbers, plan.state.snapshot_count() + 1)
        return staged.result

    def commit_statement(
        self, batch: ReducedBatch, progress: Progress, present: Mapping[str, str]
    ) -> ApplyResult | None:
        """Merge a batch on the staging branch, and publish it. Returns None if another writer committed in
        between.
        """
        state = self._holder.staging()
        snapshot, result = self._staging.batch(batch, state, present)
        entry = self._ledger.batch(self._holder.held, progress, result, snapshot=snapshot, shape=batch.shape)
        batch.hooks.on_staged()
        if not self._holder.publish(entry, on=state.head):
            return None
        state = self._table.state()
        self._maintenance.run_if_due(state.totals, state.snapshot_count())
        return result

    def sink(self, rows: RowFormat) -> FileSink | None:
        """Return the sink with which tasks write the next batch's rows to files; None if it needs a MERGE."""
        return self.files.sink(rows, self._table.state(), self._holder.held.epoch)

    def discard(self, paths: Sequence[str]) -> None:
        """Remove files that no snapshot contains."""
        self.files.discard(paths, self._table.state())

    def horizon(self) -> int | None:
        """Return the commit_ts up to which tombstones may have been removed; None if none were."""
        return merge.horizon_of(self._table.state())

    def collect(self, horizon: int) -> Collected:
        """Remove the tombstones up to the commit_ts ``horizon``, and record it in the same commit.

        Raises:
            TransientTargetError: other writers kept committing.
        """
        for _ in range(ATTEMPTS):
            state = self._holder.staging()
            head, now = cast(int, state.head), merge.raised(state, horizon)
            snapshot, summary = self._staging.run(merge.statement(self._staging.branch, now), head)
            remaining, oldest = self._session.sql(merge.kept(self._staging.branch)).collect()[0]
            entry = replace(self._holder.held, snapshot=snapshot)
            if self._holder.publish(entry, on=head, saying={merge.PROPERTY: str(now)}):
                return Collected(now, -grown_by(summary), remaining, oldest)
        raise crowded(self._name)

    def close(self) -> None:
        """Drop the temporary view of the last batch's rows."""
        self._staging.close()
