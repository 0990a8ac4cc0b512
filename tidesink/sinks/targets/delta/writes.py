"""Writes to a Delta table other than a plain merge: emptying, histories, shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from tidesink.errors import AccountingError, ProgressError, SchemaRefusedError
from tidesink.events import fold_name
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch
from tidesink.sinks.targets.column_changes import Evolution, default_texts, plan_evolution
from tidesink.sinks.targets.delta import schema
from tidesink.sinks.targets.delta.ledger import APPLICATION, Entry, Ledger, application_of
from tidesink.sinks.targets.delta.log import DeltaLog, user_metadata
from tidesink.sinks.targets.lake import merge as lake_merge
from tidesink.sinks.targets.lake.merge import living_rows, rows_of, stale_statement, truncate_statement
from tidesink.sinks.targets.lake.tables import literal, partitions_for, transaction
from tidesink.sinks.targets.lake.versions import Counts
from tidesink.sinks.targets.sharing import also_of, known_after, new_columns, quote_identifier
from tidesink.typemap.target_schema import Shard, TableShape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    """Empty a table or a shard. If no row is current, write a marker: Delta would commit no progress."""
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
    """Count a merge's skipped rows in another way: in the previous version, they must not be newer.

    Raises:
        AccountingError: the merge skipped rows that are newer than the stored rows.
    """
    before = f"{location} VERSION AS OF {int(result.version) - 1}"
    (found,) = session.sql(stale_statement(before, view, batch, present)).collect()
    if found["stale"] != result.stale:
        raise AccountingError(
            f"The merge skipped {result.stale} rows, but {found['stale']} were not newer than the stored "
            "rows.",
            table=str(batch.shape.source),
        )


_VIEW: Final = "_tidesink_versions"


def commit_versions(
    session: SparkSession,
    log: DeltaLog,
    location: str,
    *,
    batch: ReducedBatch,
    present: Mapping[str, str],
    progress: Progress,
    text: Callable[[Mapping[str, int]], str],
) -> None:
    """Merge a batch of versions. ``text``: returns the commit's metadata, which includes the counts."""
    # A table without files has nothing to compare with.
    empty = log.file_count() == 0
    with (
        partitions_for(session, batch.upserts + batch.deletes),
        lake_merge.compared(session, location, batch, present, empty=empty) as (found, counts),
    ):
        words = text(counts._asdict())
        if not any(counts.rows):
            log.commit_marker(APPLICATION, progress.txn_version, words)
            return
        found.where("_op IS NOT NULL").createOrReplaceTempView(_VIEW)
        statement = lake_merge.insert_statement if empty else lake_merge.history_merge_statement
        sql = statement(location, _VIEW, batch, present)
        try:
            with transaction(session, APPLICATION, progress.txn_version), user_metadata(session, words):
                session.sql(sql)
        finally:
            session.catalog.dropTempView(_VIEW)


def result_of(entry: Entry, batch: ReducedBatch) -> ApplyResult:
    """Return the result of our commit to a history.

    Raises:
        AccountingError: the commit's own metrics differ from the expected counts.
        ProgressError: the commit has no counts, so it is not a history's commit.
    """
    commit = entry.commit
    if entry.counts is None:
        if batch.empty:
            return ApplyResult(0, 0, 0, 0, str(commit.version))
        raise ProgressError(
            f"Version {commit.version} has no counts of a history. Remove the table, and let the worker load "
            "it again.",
            table=str(batch.shape.table),
        )
    rows = {
        "WRITE": ("numOutputRows", "", ""),
        "MERGE": ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"),
    }.get(commit.operation, ("", "", ""))
    inserted, updated, deleted = (commit.metrics.get(name, 0) for name in rows)
    counts = Counts(**entry.counts)
    return lake_merge.history_result(counts, (inserted, updated, deleted), batch, version=str(commit.version))


class DeltaShard:
    """One shard of an open table."""

    def __init__(self, shard: Shard, session: SparkSession, log: DeltaLog, ledger: Ledger) -> None:
        self._shard = shard
        self._session, self._log, self._ledger = session, log, ledger
        self._known: tuple[str, ...] | None = None

    def claimed(self, entry: Entry, present: Iterable[str]) -> None:
        """Remember which columns the rows have. If the commit was cleaned up, assume those of the table."""
        known = tuple(map(fold_name, present)) if entry.known is None else entry.known
        self._known = known if entry.progress else None

    def written(self, shape: TableShape) -> tuple[str, ...]:
        """Return the columns of the rows after a batch of a shape. They never become fewer."""
        self._known = known_after(self._known or (), shape) or ()
        return self._known

    def plan(self, shape: TableShape, present: Mapping[str, str]) -> Evolution:
        """Plan the column changes that a shape needs.

        Raises:
            SchemaRefusedError: a column cannot hold the values of all shards; names the other shards.
        """
        try:
            return plan_evolution(present, shape)
        except SchemaRefusedError as exc:
            others = self._ledger.shards()
            raise also_of(exc, self._ledger.path, others) if others else exc from None

    def grows(self, shape: TableShape) -> bool:
        """Return True if the rows lack columns of a shape, even if the table has them."""
        return bool(new_columns(shape, self._known))

    def grow(
        self, location: str, shape: TableShape, plan: Evolution, *, epoch: int
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Apply a plan, and fill defaults of new columns into our rows. Returns them, and warnings."""
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
