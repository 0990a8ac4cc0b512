"""A history in an Iceberg table: what a batch changes, staged on our branch, and held to its snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidesink.errors import AccountingError
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch
from tidesink.sinks.targets.delta_session import partitions_for
from tidesink.sinks.targets.iceberg_merge import grown_by
from tidesink.sinks.targets.lake_history import compared, insert_statement, merge_statement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.sinks.history_spark import Counts

_VIEW: Final = "_tidesink_versions"


@dataclass(frozen=True)
class Versions:
    """The branch that batches are staged on, the table's columns, and what runs a statement there."""

    session: SparkSession
    branch: str
    present: Mapping[str, str]
    stage: Callable[[str], tuple[int, Mapping[str, int]]]

    def staged(self, batch: ReducedBatch, head: int, *, empty: bool) -> tuple[int, ApplyResult]:
        """The snapshot with a batch of versions, and what it did. ``empty``: the table has no rows.

        Raises:
            AccountingError: the snapshot's numbers are not those that were to be.
        """
        with (
            partitions_for(self.session, batch.upserts + batch.deletes),
            compared(self.session, self.branch, batch, self.present, empty=empty) as (found, counts),
        ):
            if not any(counts.rows):
                return head, _result(counts, version=str(head))
            found.where("_op IS NOT NULL").createOrReplaceTempView(_VIEW)
            try:
                statement = insert_statement if empty else merge_statement
                snapshot, summary = self.stage(statement(self.branch, _VIEW, batch, self.present))
            finally:
                self.session.catalog.dropTempView(_VIEW)
        _check(summary, counts, batch)
        return snapshot, _result(counts, version=str(snapshot))


def _check(summary: Mapping[str, int], counts: Counts, batch: ReducedBatch) -> None:
    """Hold the snapshot's numbers to those that were to be.

    Where files are not rewritten, every row added was inserted or is an updated one.
    """
    added, dropped = summary.get("added-records", 0), summary.get("deleted-records", 0)
    inserted, updated, deleted = counts.rows
    if grown_by(summary) != inserted - deleted or (not dropped and added != inserted + updated):
        raise AccountingError(
            f"the snapshot says {added} rows added, {dropped} thrown away, {grown_by(summary)} more than "
            f"before, and {inserted} were to be inserted, {updated} updated and {deleted} deleted",
            table=str(batch.shape.table),
        )


def _result(counts: Counts, *, version: str) -> ApplyResult:
    return ApplyResult(counts.begun, 0, counts.ends, counts.absent, version, counts.stale)
