"""A history in a Delta table: one commit a batch, with the counts of its events beside the progress.

Asked again about a batch that is committed, the target answers with those counts: what the batch changed
cannot be computed anew once it is in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from tidesink.errors import ProgressError
from tidesink.sinks.progress import Progress
from tidesink.sinks.targets import lake_history
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch
from tidesink.sinks.targets.delta_ledger import APPLICATION, Entry
from tidesink.sinks.targets.delta_log import DeltaLog, user_metadata
from tidesink.sinks.targets.delta_session import partitions_for, transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.sinks.history_spark import Counts

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
    """Merge a batch of versions; ``text`` gives the commit's words, with the counts in them."""
    # A table without files has nothing to compare with.
    empty = log.file_count() == 0
    with (
        partitions_for(session, batch.upserts + batch.deletes),
        lake_history.compared(session, location, batch, present, empty=empty) as (found, counts),
    ):
        words = text(counts._asdict())
        if not any(counts.rows):
            log.commit_marker(APPLICATION, progress.txn_version, words)
            return
        found.where("_op IS NOT NULL").createOrReplaceTempView(_VIEW)
        statement = lake_history.insert_statement if empty else lake_history.merge_statement
        sql = statement(location, _VIEW, batch, present)
        try:
            with transaction(session, APPLICATION, progress.txn_version), user_metadata(session, words):
                session.sql(sql)
        finally:
            session.catalog.dropTempView(_VIEW)


def result_of(entry: Entry, batch: ReducedBatch) -> ApplyResult:
    """What a commit of ours did to a history.

    Raises:
        AccountingError: its own metrics say otherwise than the counts it was made with.
        ProgressError: it carries no counts, and is no commit of a history.
    """
    commit = entry.commit
    if entry.counts is None:
        if batch.empty:
            return ApplyResult(0, 0, 0, 0, str(commit.version))
        raise ProgressError(
            f"version {commit.version} carries no counts of a history: remove the table, and let the worker "
            "load it again",
            table=str(batch.shape.table),
        )
    rows = {
        "WRITE": ("numOutputRows", "", ""),
        "MERGE": ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"),
    }.get(commit.operation, ("", "", ""))
    inserted, updated, deleted = (commit.metrics.get(name, 0) for name in rows)
    counts = _counts(entry.counts)
    return lake_history.result_of(counts, (inserted, updated, deleted), batch, version=str(commit.version))


def _counts(told: Mapping[str, int]) -> Counts:
    from tidesink.sinks.history_spark import Counts

    return Counts(**told)
