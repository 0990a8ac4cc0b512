"""Writes to a Delta table by Spark's statements, defaults in shards, and the row counts of a commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tidesink.errors import AccountingError, ProgressError, TargetError
from tidesink.events import fold_name
from tidesink.sinks.spark.errors import SPARK_ERRORS
from tidesink.sinks.spark.session import in_session
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch
from tidesink.sinks.targets.column_changes import Evolution, default_texts
from tidesink.sinks.targets.delta import schema
from tidesink.sinks.targets.delta.ledger import DeltaEntry, Ledger, application_of
from tidesink.sinks.targets.delta.log import Commit, DeltaLog, user_metadata
from tidesink.sinks.targets.lake.merge import (
    append_statement,
    living_rows,
    merge_statement,
    rows_of,
    stale_statement,
    truncate_statement,
)
from tidesink.sinks.targets.lake.tables import literal, partitions_for, source_of, transaction
from tidesink.sinks.targets.lake.versions import Counts
from tidesink.sinks.targets.sharing import known_after, new_columns, quote_identifier
from tidesink.typemap.target_schema import Shard, TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.sinks.state.progress import Progress


_VIEW: Final = "_tidesink_batch"
# Metrics of a commit: the numbers of rows that were inserted, updated and deleted.
_CHANGED: Final = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")


class Statements:
    """Writes batches to a Delta table by Spark's statements, each with the progress in its commit."""

    def __init__(self, session: SparkSession, ledger: Ledger, location: str) -> None:
        self._session, self._ledger, self._log, self._location = session, ledger, ledger.log, location

    def run(self, batch: ReducedBatch, progress: Progress, text: str, present: Mapping[str, str]) -> None:
        """Run the statement that commits a batch, or commit only its progress if no row changes.

        ``text``: the commit's user metadata.
        ``present``: the table's columns: Spark type by name.
        """
        # In a table without files, no row can match. Other workers cannot add files, because this one holds
        # the table.
        first_load = self._log.file_count() == 0
        has_rows = batch.upserts or (batch.sequenced and batch.deletes)
        application, version = self._ledger.application, progress.txn_version
        # For a table without current rows, Delta would make no commit of a TRUNCATE.
        nothing = batch.empty or (first_load and not has_rows)
        if nothing or (batch.truncates and self._has_no_living_rows(batch)):
            self._log.commit_marker(application, version, text)
            return
        with transaction(self._session, application, version), user_metadata(self._session, text):
            if batch.truncates:
                self._session.sql(truncate_statement(self._location, batch))
                return
            self._show(batch)
            sql = self._statement(batch, present, appends=first_load or batch.how.mode == "append")
            rows = batch.upserts + batch.deletes
            with partitions_for(self._session, rows), source_of(self._session, batch):
                self._session.sql(sql)

    def check_partitions(self, batch: ReducedBatch) -> None:
        """Check that Delta will not read texts in partition columns of the batch back as NULL.

        Raises:
            TargetError: a partition column has such a text.
        """
        schema.check_partitions(self._partitioned_by, batch)

    def check_stale(self, batch: ReducedBatch, present: Mapping[str, str], result: ApplyResult) -> None:
        """Check that a MERGE skipped exactly the batch's rows that were not newer than the stored rows before
        it.

        ``present``: the table's columns: Spark type by name.
        ``result``: the result of the MERGE, with the number of skipped rows.

        Raises:
            AccountingError: the number of skipped rows differs from the number of rows that were not newer.
        """
        self._show(batch)
        before = f"{self._location} VERSION AS OF {int(result.version) - 1}"
        (row,) = self._session.sql(stale_statement(before, _VIEW, batch, present)).collect()
        if row["stale"] != result.stale:
            raise AccountingError(
                f"The merge skipped {result.stale} rows, but {row['stale']} were not newer than the stored "
                "rows. Compare the table with `tidesink diff`, and report this with the log.",
                table=str(batch.shape.source),
            )

    def close(self) -> None:
        """Drop the temporary view of the last batch's rows."""
        # An error here means that the JVM has ended, and the view with it.
        with suppress(*SPARK_ERRORS):
            self._session.catalog.dropTempView(_VIEW)

    @cached_property
    def _partitioned_by(self) -> frozenset[str]:
        """The names of the partition columns in lower case. They never change while the table exists."""
        return frozenset(fold_name(name) for name in self._log.partition_columns())

    def _has_no_living_rows(self, batch: ReducedBatch) -> bool:
        return self._session.table(self._location).where(living_rows(batch)).isEmpty()

    def _statement(self, batch: ReducedBatch, present: Mapping[str, str], *, appends: bool) -> str:
        """Return the SQL statement that writes a batch: an INSERT if ``appends``, else a MERGE."""
        if appends:
            return append_statement(self._location, _VIEW, batch, present)
        beside = batch.beside(lambda: schema.nullable_columns(self._log))
        return merge_statement(self._location, _VIEW, batch, present, beside=beside)

    def _show(self, batch: ReducedBatch) -> None:
        if batch.frame is None:
            raise TargetError(
                "The Delta target needs a batch with a Spark frame, but this batch has Python rows. Pass a "
                "ReducedBatch whose `frame` is set.",
                table=str(self._ledger.table),
            )
        in_session(batch.frame, self._session).createOrReplaceTempView(_VIEW)


def result_of(entry: DeltaEntry, batch: ReducedBatch) -> ApplyResult:
    """Return the row counts of a committed batch.

    ``entry``: the ledger entry in the commit.

    Raises:
        AccountingError: the commit's metrics do not fit the batch, or the counts in a history's entry.
        ProgressError: the table is a history table, but the entry has no counts, so the commit was not made
            for a history table.
    """
    if batch.how.mode == "history":
        return _history_result(entry, batch)
    return _merge_result(entry.commit, batch)


def _merge_result(commit: Commit, batch: ReducedBatch) -> ApplyResult:
    """Return a batch's row counts from the metrics of its commit.

    Delta counts soft deletes as updates. So the number of rows marked as deleted is the number of inserted
    and updated rows minus the number of upserts.

    Raises:
        AccountingError: the metrics are impossible for a batch of this size.
    """
    if commit.operation == "WRITE":
        inserted = commit.metrics.get("numOutputRows", 0)
        absent = 0 if batch.sequenced else batch.deletes
        return ApplyResult(inserted, 0, 0, absent, str(commit.version))
    if batch.truncates:
        deleted = commit.metrics.get("numDeletedRows", commit.metrics.get("numUpdatedRows", 0))
        return ApplyResult(0, 0, deleted, 0, str(commit.version))
    if commit.operation != "MERGE":
        return ApplyResult(0, 0, 0, batch.deletes, str(commit.version))
    inserted = commit.metrics.get("numTargetRowsInserted", 0)
    updated = commit.metrics.get("numTargetRowsUpdated", 0)
    if batch.sequenced:
        left = batch.upserts + batch.deletes - inserted - updated
        return ApplyResult(inserted, updated, 0, 0, str(commit.version), stale=left)
    deleted = commit.metrics.get("numTargetRowsDeleted", 0)
    if batch.how.delete_mode == "soft":
        deleted = inserted + updated - batch.upserts
        updated -= deleted
    if not 0 <= deleted <= batch.deletes or updated < 0:
        raise AccountingError(
            f"The merge reports {inserted} rows inserted, {updated} updated and {deleted} deleted, for "
            f"{batch.upserts} upserts and {batch.deletes} deletes. Compare the table with `tidesink diff`, "
            "and report this with the log.",
            table=str(batch.shape.table),
        )
    return ApplyResult(inserted, updated, deleted, batch.deletes - deleted, str(commit.version))


def _history_result(entry: DeltaEntry, batch: ReducedBatch) -> ApplyResult:
    """Return the row counts of a batch that was committed to a history table.

    Raises:
        AccountingError: the commit's metrics differ from the expected counts.
        ProgressError: the ledger entry has no counts, so the commit was not made for a history table.
    """
    version = str(entry.commit.version)
    if entry.counts is None:
        if batch.empty:
            return ApplyResult(0, 0, 0, 0, version)
        raise ProgressError(
            f"Version {version} was not written in mode `history`: its metadata has no row counts. "
            "Remove the table, and let the worker load it again from the start of its topic.",
            table=str(batch.shape.table),
        )
    rows, counts = tuple(entry.commit.metrics.get(name, 0) for name in _CHANGED), Counts(**entry.counts)
    if counts.rows != rows:
        raise AccountingError(
            f"The commit reports {rows[0]} rows inserted, {rows[1]} updated and {rows[2]} deleted. Expected "
            f"were {counts.rows}, for {batch.upserts} upserts and {batch.deletes} deletes. Compare the table "
            "with `tidesink diff`, and report this with the log.",
            table=str(batch.shape.table),
        )
    return counts.result(version)


class DeltaShard:
    """The rows of one source table in an open Delta table that several source tables share."""

    def __init__(self, shard: Shard, session: SparkSession, log: DeltaLog, ledger: Ledger) -> None:
        self._shard = shard
        self._session, self._log, self._ledger = session, log, ledger
        self._known: tuple[str, ...] | None = None

    def claimed(self, entry: DeltaEntry, present: Iterable[str]) -> None:
        """Read from the ledger which columns the shard's rows have. Called when the table is claimed.

        ``entry``: the ledger entry of the claim. If it does not record the columns, because Delta has removed
            the commit that did, all columns of the table are assumed.
        ``present``: the table's columns.
        """
        columns = tuple(map(fold_name, present)) if entry.known is None else entry.known
        self._known = columns if entry.progress else None

    def written(self, shape: TargetSchema) -> tuple[str, ...]:
        """Record that a batch with the columns of ``shape`` is written, and return the columns of the shard's
        rows.
        """
        self._known = known_after(self._known or (), shape) or ()
        return self._known

    def grows(self, shape: TargetSchema) -> bool:
        """Return True if the shard's rows lack a column of ``shape``, whether or not the shared
        table has it.
        """
        return bool(new_columns(shape, self._known))

    def grow(
        self, location: str, shape: TargetSchema, plan: Evolution, *, epoch: int
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Change the table's columns as planned, and write defaults of new columns into the shard's rows.

        Returns the names of the columns with defaults, and warnings.
        """
        schema.widen_columns(self._session, self._log, location, plan)
        schema.add_columns(self._session, self._log, location, plan)
        defaults, warnings = default_texts(new_columns(shape, self._known), shape)
        if defaults and self._log.file_count():
            application = application_of(schema.BACKFILL_APPLICATION, self._shard)
            with transaction(self._session, application, self._log.next_version(epoch)):
                self._session.sql(self._fill_statement(location, defaults))
        self._known = known_after(self._known, shape)
        return tuple(defaults), warnings

    def _fill_statement(self, location: str, defaults: Mapping[str, str]) -> str:
        given = {fold_name(name): text for name, text in defaults.items()}
        sets = ", ".join(
            f"{quote_identifier(name)} = {literal(given[fold_name(name)], ddl)}"
            for name, ddl in schema.present_columns(self._log).items()
            if fold_name(name) in given
        )
        return f"UPDATE {location} SET {sets} WHERE {rows_of(self._shard)}"  # noqa: S608  (all is quoted)
