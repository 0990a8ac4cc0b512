"""The steps of an open Delta table's life: claims, commits of files and of statements, and tombstones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidesink.errors import (
    CommitUnknownError,
    StaleProgressError,
    TidesinkError,
    TransientTargetError,
)
from tidesink.events import TableId
from tidesink.sinks.spark.errors import SPARK_ERRORS, summary, translating
from tidesink.sinks.state.progress import Progress, check_follows
from tidesink.sinks.targets.base import ApplyResult, Collected, ReducedBatch, RowFormat
from tidesink.sinks.targets.delta import ledger as delta_ledger
from tidesink.sinks.targets.delta import log as delta_log
from tidesink.sinks.targets.delta import schema
from tidesink.sinks.targets.delta.columns import DeltaColumns
from tidesink.sinks.targets.delta.files import FilePlan, FileWriter, Staged
from tidesink.sinks.targets.delta.ledger import DeltaEntry, Ledger
from tidesink.sinks.targets.delta.schema import Compaction
from tidesink.sinks.targets.delta.writes import Statements, result_of
from tidesink.sinks.targets.lake.files import FileSink
from tidesink.typemap.target_schema import TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DeltaFormat:
    """The steps of a table's life in Delta (``lake.table.TableFormat``)."""

    def __init__(
        self, session: SparkSession, ledger: Ledger, *, columns: DeltaColumns, files: FileWriter
    ) -> None:
        self.columns: Final = columns
        self.files: Final = files
        self._session, self._ledger = session, ledger
        self._log, self._hold, self._shard = ledger.log, columns.hold, columns.shard
        self._statements = Statements(session, ledger, columns.location)
        self._compaction = Compaction(session, ledger.log, columns.location)

    @property
    def place(self) -> str:
        """The table's path."""
        return self._ledger.path

    @property
    def _table(self) -> TableId:
        return self._ledger.table

    @property
    def _location(self) -> str:
        return self.columns.location

    def reading_error(self, exc: BaseException, *, table: str) -> TidesinkError:
        """Return the error to raise for Spark's exception in a step that only reads."""
        return delta_log.reading_error(exc, table=table)

    def commit_error(self, exc: BaseException, *, table: str) -> TidesinkError:
        """Return the error to raise for Spark's exception in a step that may commit."""
        return delta_log.translated(exc, table=table)

    def claim(self) -> DeltaEntry:
        """Claim the table with the next epoch, and write pending defaults of new columns."""
        entry = self._hold.claim()
        self.columns.fill_pending()
        if self._shard:
            self._shard.claimed(entry, self.columns.present())
        return entry

    def entry(self) -> tuple[int, DeltaEntry | None]:
        """Return the latest version, and the ledger's entry in it."""
        version = self._log.latest()
        return version, self._ledger.newest(version)

    def shards(self) -> tuple[str, ...]:
        """Return the names of the other shards that ever claimed the table."""
        return self._ledger.shards()

    def obstacle(self, shape: TargetSchema) -> str | None:
        """Return the reason why no batch of a history can be written as files; None if there is none."""
        return self.files.obstacle(shape)

    def done(self, batch: ReducedBatch, progress: Progress) -> ApplyResult | None:
        """Return the result of a batch that is committed already; None for the next batch.

        Raises:
            StaleProgressError: another worker claimed the table, the table was restored or replaced, or the
                batch is not the next one.
        """
        entry = self._hold.done(progress)
        if entry is not None:
            return self._result(batch, entry, counted=False)
        check_follows(progress, self._hold.held.progress)
        return None

    def add_order(self, present: Mapping[str, str]) -> None:
        """Add the columns for the source's order, if missing."""
        self._session.sql(schema.sequence_statement(self._location, present))

    def plan(self, batch: ReducedBatch, progress: Progress) -> FilePlan | str:
        """Return the plan for writing a batch as files, or the reason why it needs a MERGE."""
        return self.files.plan(batch, progress)

    def commit_files(self, batch: ReducedBatch, progress: Progress, plan: FilePlan) -> ApplyResult | None:
        """Write a batch as files and commit it. Returns None if another writer committed in between."""
        staged = self.files.stage(batch, plan)
        text = self._entry_text(batch, progress, staged.counts)
        batch.hooks.on_staged()
        try:
            self.files.commit(
                plan,
                staged,
                application=self._ledger.application,
                version=progress.txn_version,
                words=text,
            )
        except SPARK_ERRORS as exc:
            if not self._is_committed(exc, progress, staged):
                return None
        return self._committed(batch, progress, counted=True)

    def commit_statement(
        self, batch: ReducedBatch, progress: Progress, present: Mapping[str, str]
    ) -> ApplyResult:
        """Commit a batch by Spark's statement, or only its progress."""
        self._statements.check_partitions(batch)
        text = self._entry_text(batch, progress)
        batch.hooks.on_staged()
        try:
            self._statements.run(batch, progress, text, present)
        except SPARK_ERRORS as exc:
            if not self._hold.landed(progress):
                raise self.commit_error(exc, table=str(self._table)) from exc
        return self._committed(batch, progress, counted=False)

    def sink(self, rows: RowFormat) -> FileSink | None:
        """Return the sink with which tasks write the next batch's rows to files; None if it needs a MERGE."""
        return self.files.sink(rows, self._hold.held.epoch)

    def discard(self, paths: Sequence[str]) -> None:
        """Remove files that no commit refers to."""
        self.files.discard(paths)

    def horizon(self) -> int | None:
        """Return the commit_ts up to which tombstones may have been removed; None if none were."""
        return delta_ledger.horizon_of(self._log)

    def collect(self, horizon: int) -> Collected:
        """Record a new horizon, then remove the tombstones up to this commit_ts."""
        self._hold.check()
        epoch = self._hold.held.epoch
        return delta_ledger.collect(self._session, self._log, self._location, horizon=horizon, epoch=epoch)

    def close(self) -> None:
        """Drop the temporary view of the last batch's rows."""
        self._statements.close()

    def _entry_text(
        self, batch: ReducedBatch, progress: Progress, counts: Mapping[str, int] | None = None
    ) -> str:
        columns = self._shard.written(batch.shape) if self._shard else None
        return self._ledger.batch_text(progress, counts=counts, known=columns, seen=self._hold.seen)

    def _is_committed(self, exc: BaseException, progress: Progress, staged: Staged) -> bool:
        """Return True if a batch's files are committed although Spark raised an error. If another writer
        committed in between, return False and remove them.

        Raises:
            CommitUnknownError: the log cannot be read now.
            TidesinkError: the commit failed for another reason.
        """
        landed = self._hold.landed(progress)
        if landed:
            return True
        error = self.commit_error(exc, table=str(self._table))
        if not isinstance(error, TransientTargetError):
            raise error from exc
        if landed is None:  # if the client sent the commit twice, it got a conflict with itself
            raise CommitUnknownError(
                "The commit may have happened, but the log cannot be read now "
                f"({summary(exc)}). The worker reads the progress at the target to find out.",
                table=str(self._table),
            ) from exc
        self.files.discard(staged.paths)
        return False

    def _committed(self, batch: ReducedBatch, progress: Progress, *, counted: bool) -> ApplyResult:
        """Return the result of a batch that was just committed. ``counted``: as in ``_result``.

        Raises:
            StaleProgressError: Delta skipped the commit.
        """
        with translating(self.commit_error, self._table):
            entry = self._hold.done(progress)
        if entry is None:
            raise StaleProgressError(
                f"Delta skipped epoch {progress.epoch} batch {progress.batch}, because a later batch is "
                "already applied. Run only one worker per table, and start this worker again. It then "
                "continues from the committed progress.",
                table=str(self._table),
            )
        return self._result(batch, entry, counted=counted)

    def _result(self, batch: ReducedBatch, entry: DeltaEntry, *, counted: bool) -> ApplyResult:
        """Return the row counts of a committed batch, and compact the table if that is due.

        ``counted``: True if the rows that were skipped as not newer were already compared with the stored
            rows. After a MERGE, they still have to be checked.
        """
        self._compaction.run_if_due()
        result = result_of(entry, batch)
        if batch.sequenced and result.stale and not counted:
            self._statements.check_stale(batch, self.columns.present(), result)
        return result
