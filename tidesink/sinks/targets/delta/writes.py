"""Writes to a Delta table other than merges by key (TRUNCATE events, shards), and a commit's row counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from tidesink.errors import AccountingError, ProgressError, SchemaRefusedError
from tidesink.events import fold_name
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch
from tidesink.sinks.targets.column_changes import Evolution, default_texts, plan_evolution
from tidesink.sinks.targets.delta import schema
from tidesink.sinks.targets.delta.ledger import DeltaEntry, Ledger, application_of
from tidesink.sinks.targets.delta.log import Commit, DeltaLog, user_metadata
from tidesink.sinks.targets.lake.merge import living_rows, rows_of, stale_statement, truncate_statement
from tidesink.sinks.targets.lake.tables import literal, transaction
from tidesink.sinks.targets.lake.versions import Counts
from tidesink.sinks.targets.sharing import also_of, known_after, new_columns, quote_identifier
from tidesink.typemap.target_schema import Shard, TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Metrics of a commit: the numbers of rows that were inserted, updated and deleted.
_CHANGED: Final = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")


def empty_table(
    session: SparkSession,
    log: DeltaLog,
    location: str,
    *,
    batch: ReducedBatch,
    application: str,
    version: int,
    text: str,
) -> None:
    """Apply a TRUNCATE event to a table or a shard, in a commit with the progress.

    For a table without current rows, Delta would make no commit. In this case, only the progress is
    committed.

    ``application``, ``version``: the transaction version to commit.
    ``text``: the commit's user metadata.
    """
    if session.table(location).where(living_rows(batch)).isEmpty():
        log.commit_marker(application, version, text)
        return
    with transaction(session, application, version), user_metadata(session, text):
        session.sql(truncate_statement(location, batch))


def check_stale(
    session: SparkSession,
    location: str,
    view: str,
    *,
    batch: ReducedBatch,
    present: Mapping[str, str],
    result: ApplyResult,
) -> None:
    """Check that a MERGE skipped exactly the batch's rows that were not newer than the stored rows before it.

    ``view``: the view of the batch's rows.
    ``present``: the table's columns: Spark type by name.
    ``result``: the result of the MERGE, with the number of skipped rows.

    Raises:
        AccountingError: the number of skipped rows differs from the number of rows that were not newer.
    """
    before = f"{location} VERSION AS OF {int(result.version) - 1}"
    (row,) = session.sql(stale_statement(before, view, batch, present)).collect()
    if row["stale"] != result.stale:
        raise AccountingError(
            f"The merge skipped {result.stale} rows, but {row['stale']} were not newer than the stored rows. "
            "Compare the table with `tidesink diff`, and report this with the log.",
            table=str(batch.shape.source),
        )


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

    def plan(self, shape: TargetSchema, present: Mapping[str, str]) -> Evolution:
        """Plan the column changes that the table needs to store rows of ``shape``.

        Raises:
            SchemaRefusedError: a column's type cannot hold this shard's values. The message names the other
                shards.
        """
        try:
            return plan_evolution(present, shape)
        except SchemaRefusedError as exc:
            others = self._ledger.shards()
            raise also_of(exc, self._ledger.path, others) if others else exc from None

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
