"""What a worker writes to its own branch of an Iceberg table, which nobody reads yet, and what that did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from tidesink.errors import TargetError, TransientTargetError
from tidesink.events import TableId
from tidesink.sinks.sessions_spark import in_session
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch
from tidesink.sinks.targets.delta_merge import (
    append_statement,
    merge_statement,
    stale_statement,
    truncate_statement,
)
from tidesink.sinks.targets.delta_session import partitions_for
from tidesink.sinks.targets.iceberg_errors import staging_error
from tidesink.sinks.targets.iceberg_history import Versions
from tidesink.sinks.targets.iceberg_holder import Holder
from tidesink.sinks.targets.iceberg_merge import (
    counts_beside,
    found_statement,
    living_statement,
    result_of,
    sequenced_result,
)
from tidesink.sinks.targets.iceberg_table import JvmTable, TableState, numbers
from tidesink.sinks.targets.identifier import quote_identifier
from tidesink.sinks.targets.spark_errors import SPARK_ERRORS
from tidesink.sinks.threads_spark import start_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VIEW: Final = "_tidesink_batch"


class Staged(NamedTuple):
    """A snapshot of the branch, and the numbers of its summary; none where it is the one before."""

    snapshot: int
    summary: Mapping[str, int]


class Staging:
    """Writes to the branch of one table's holder."""

    def __init__(self, session: SparkSession, table: JvmTable, holder: Holder, name: TableId) -> None:
        self._session, self._table, self._holder, self._name = session, table, holder, name

    @property
    def branch(self) -> str:
        """The branch's quoted name in SQL."""
        return f"{self._table.location}.{quote_identifier(f'branch_{self._holder.held.branch}')}"

    def run(self, statement: str, head: int) -> Staged:
        """Run a statement on the branch, whose newest snapshot is ``head``.

        Raises:
            StaleProgressError: another worker holds the table.
            TransientTargetError: somebody else wrote to the branch.
            TidesinkError: as ``staging_error`` says of what Spark raised.
        """
        try:
            self._session.sql(statement)
        except SPARK_ERRORS as exc:
            self._holder.current()  # a worker that lost the table hears of that first
            raise staging_error(exc, table=str(self._name)) from exc
        state = self._table.state()
        staged = state.snapshot(state.branch_head(self._holder.held.branch))
        number = None if staged is None else int(staged.snapshotId())
        if number == head:
            return Staged(head, {})
        if number is None or staged.parentId() != head:
            self._holder.current()
            raise TransientTargetError(
                f"somebody else wrote to the branch {self._holder.held.branch}; nothing was written",
                table=str(self._name),
            )
        return Staged(number, numbers(staged))

    def batch(
        self, batch: ReducedBatch, state: TableState, present: Mapping[str, str]
    ) -> tuple[int, ApplyResult]:
        """The snapshot that has a batch, and what it did; ``present`` are the table's columns by name.

        Raises: as ``run``; AccountingError where the numbers do not fit the batch.
        """
        head = cast(int, state.head)
        # A table without files has nothing to match.
        first_load = state.totals().get("total-data-files") == 0
        if batch.mode == "history" and not batch.empty:
            versions = Versions(self._session, self.branch, present, lambda sql: self.run(sql, head))
            return versions.staged(batch, head, empty=first_load)
        writes = batch.upserts or (batch.sequenced and batch.deletes)
        if batch.empty or (first_load and not writes):
            return head, ApplyResult(0, 0, 0, batch.deletes, str(head))
        if batch.truncates:
            return self._emptied(batch, head)
        if batch.frame is None:
            raise TargetError(
                "the Iceberg target takes a frame, and the batch has rows", table=str(self._name)
            )
        in_session(batch.frame, self._session).createOrReplaceTempView(_VIEW)
        with partitions_for(self._session, batch.upserts + batch.deletes):
            if first_load or batch.mode == "append":
                return self._appended(batch, head, present, first_load=first_load)
            beside = batch.beside(lambda: self._table.nullable(state))
            return self._merged(batch, head, present, beside)

    def close(self) -> None:
        """Drop the batch's view."""
        # An error here means that the JVM is gone, and the view with it.
        with suppress(*SPARK_ERRORS):
            self._session.catalog.dropTempView(_VIEW)

    def _appended(
        self, batch: ReducedBatch, head: int, present: Mapping[str, str], *, first_load: bool
    ) -> tuple[int, ApplyResult]:
        snapshot, summary = self.run(append_statement(self.branch, _VIEW, batch, present), head)
        if batch.sequenced:
            return snapshot, self._sequenced(summary, batch, head, present, snapshot=snapshot)
        found = 0 if first_load else None
        return snapshot, result_of(summary, batch, found=found, version=str(snapshot))

    def _merged(
        self, batch: ReducedBatch, head: int, present: Mapping[str, str], beside: Iterable[str]
    ) -> tuple[int, ApplyResult]:
        merge = merge_statement(self.branch, _VIEW, batch, present, beside=beside)
        if batch.sequenced:
            snapshot, summary = self.run(merge, head)
            return snapshot, self._sequenced(summary, batch, head, present, snapshot=snapshot)
        if not counts_beside(batch):
            snapshot, summary = self.run(merge, head)
            return snapshot, result_of(summary, batch, found=None, version=str(snapshot))
        with self._beside(found_statement(self._at(head), _VIEW, batch, present)) as counting:
            snapshot, summary = self.run(merge, head)
        return snapshot, result_of(summary, batch, found=counting.result(), version=str(snapshot))

    @contextmanager
    def _beside(self, statement: str) -> Iterator[Future[int]]:
        """A count made beside a statement: both are mostly Spark's planning. It has ended at the end."""
        counting = start_thread(self._session, lambda: self._count(statement), name=f"count {self._name}")
        try:
            yield counting
        finally:
            wait((counting,))

    def _sequenced(
        self,
        summary: Mapping[str, int],
        batch: ReducedBatch,
        head: int,
        present: Mapping[str, str],
        *,
        snapshot: int,
    ) -> ApplyResult:
        stale = stale_statement(self._at(head), _VIEW, batch, present)
        return sequenced_result(summary, batch, stale=lambda: self._count(stale), version=str(snapshot))

    def _emptied(self, batch: ReducedBatch, head: int) -> tuple[int, ApplyResult]:
        living = self._count(living_statement(self.branch, batch))
        snapshot, _ = self.run(truncate_statement(self.branch, batch), head)
        return snapshot, ApplyResult(0, 0, living, 0, str(snapshot))

    def _at(self, snapshot: int) -> str:
        return f"{self._table.location} VERSION AS OF {snapshot}"

    def _count(self, statement: str) -> int:
        try:
            return int(self._session.sql(statement).collect()[0][0])
        except SPARK_ERRORS as exc:
            raise staging_error(exc, table=str(self._name)) from exc
