"""Merges batches with Spark's MERGE on the staging branch of an Iceberg table, and counts changed rows."""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from tidesink.errors import AccountingError, TargetError, TransientTargetError
from tidesink.events import TableId
from tidesink.sinks.spark.engine import SparkEngine
from tidesink.sinks.spark.errors import SPARK_ERRORS
from tidesink.sinks.spark.session import in_session
from tidesink.sinks.targets.base import (
    SEQUENCE_COLUMN,
    SEQUENCE_DDL,
    SOFT_DELETE_COLUMN,
    ApplyResult,
    ReducedBatch,
)
from tidesink.sinks.targets.iceberg.jvm import JvmTable, TableState, staging_error
from tidesink.sinks.targets.iceberg.ledger import ATTEMPTS, Holder
from tidesink.sinks.targets.lake.merge import (
    SOURCE,
    TARGET,
    append_statement,
    living_rows,
    merge_statement,
    same_key,
    stale_statement,
    truncate_statement,
)
from tidesink.sinks.targets.lake.tables import SEQUENCE_COMMENT, SOFT_DELETE_COMMENT, partitions_for
from tidesink.sinks.targets.sharing import quote_identifier, quote_path, quote_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_VIEW: Final = "_tidesink_batch"


class Staged(NamedTuple):
    """The outcome of a statement that writes to the staging branch.

    ``snapshot``: id of the branch's newest snapshot after the statement.
    ``summary``: the numbers in this snapshot's summary; empty if the statement created no snapshot.
    """

    snapshot: int
    summary: Mapping[str, int]


class Staging:
    """Writes batches of one table to its staging branch with Spark SQL."""

    def __init__(self, session: SparkSession, table: JvmTable, holder: Holder, name: TableId) -> None:
        self._session, self._table, self._holder, self._name = session, table, holder, name

    @property
    def branch(self) -> str:
        """The quoted name of the staging branch in SQL."""
        return f"{self._table.location}.{quote_identifier(f'branch_{self._holder.held.branch}')}"

    def run(self, statement: str, head: int) -> Staged:
        """Run a statement that writes to the staging branch. Returns the branch's newest snapshot after the
        statement.

        ``head``: id of the branch's newest snapshot before the statement.

        Raises:
            StaleProgressError: another worker holds the table.
            TransientTargetError: another program wrote to the branch.
            TidesinkError: the statement failed; Spark's error is converted by ``staging_error``.
        """
        try:
            self._session.sql(statement)
        except SPARK_ERRORS as exc:
            self._holder.current()  # if another worker holds the table, this raises the more useful error
            raise staging_error(exc, table=str(self._name)) from exc
        state = self._table.state()
        staged = state.snapshot(state.branch_head(self._holder.held.branch))
        number = None if staged is None else int(staged.snapshotId())
        if number == head:
            return Staged(head, {})
        if number is None or staged.parentId() != head:
            self._holder.current()
            raise TransientTargetError(
                f"Another program wrote to the branch {self._holder.held.branch}. Nothing was published. "
                "The batch "
                "is tried again.",
                table=str(self._name),
            )
        return Staged(number, self._numbers(state, staged))

    def _numbers(self, state: TableState, snapshot: Any) -> Mapping[str, int]:
        """Return the numbers in a snapshot's summary, corrected so that each deleted row counts once.

        After an upgrade to format 3, the first deletion vector of a data file also contains the rows that
        older position delete files delete. A position delete file stays in the table if it has rows of
        several data files, so its rows would count twice.
        """
        numbers = state.numbers(snapshot)
        if state.version != 3 or not numbers.get("added-dvs"):
            return numbers
        snapshot_id, io = int(snapshot.snapshotId()), state.table.io()
        if not self._count(position_files_statement(self._table.location, snapshot_id)):
            return numbers
        vectors, before = (
            {str(file.referencedDataFile()) for file in files if file.contentOffset() is not None}
            for files in (snapshot.addedDeleteFiles(io), snapshot.removedDeleteFiles(io))
        )
        if vectors <= before:
            return numbers
        twice = self._count(positions_statement(self._table.location, snapshot_id, sorted(vectors - before)))
        return {**numbers, _MARKED_NOW: numbers[_MARKED_NOW] - twice}

    def batch(
        self, batch: ReducedBatch, state: TableState, present: Mapping[str, str]
    ) -> tuple[int, ApplyResult]:
        """Merge a batch on the staging branch. Returns the id of the new snapshot, and the batch's result.

        ``state``: the table's state. In it, the staging branch must already be at the snapshot that readers
            see.
        ``present``: the table's columns: Spark type by name.

        Raises:
            StaleProgressError: another worker holds the table.
            TransientTargetError: another program wrote to the branch.
            AccountingError: the numbers of changed rows do not match the batch.
        """
        head = cast(int, state.head)
        # In a table without files, nothing can match.
        first_load = state.totals.get("total-data-files") == 0
        writes = batch.upserts or (batch.sequenced and batch.deletes)
        if batch.empty or (first_load and not writes):
            return head, ApplyResult(0, 0, 0, batch.deletes, str(head))
        if batch.truncates:
            return self._emptied(batch, head)
        if batch.frame is None:
            raise TargetError(
                "The Iceberg target needs a batch with a Spark frame, but this batch has Python rows. Pass a "
                "ReducedBatch whose `frame` is set.",
                table=str(self._name),
            )
        in_session(batch.frame, self._session).createOrReplaceTempView(_VIEW)
        with partitions_for(self._session, batch.upserts + batch.deletes):
            if first_load or batch.how.mode == "append":
                return self._appended(batch, head, present, first_load=first_load)
            beside = batch.beside(lambda: self._table.nullable(state))
            hidden = state.totals.get("total-position-deletes", 0) > 0
            return self._merged(batch, head, present, beside, hidden=hidden)

    def close(self) -> None:
        """Drop the temporary view of the last batch's rows."""
        # An error here means that the JVM has ended, and the view with it.
        with suppress(*SPARK_ERRORS):
            self._session.catalog.dropTempView(_VIEW)

    def _appended(
        self, batch: ReducedBatch, head: int, present: Mapping[str, str], *, first_load: bool
    ) -> tuple[int, ApplyResult]:
        snapshot, summary = self.run(append_statement(self.branch, _VIEW, batch, present), head)
        if batch.sequenced:
            return snapshot, self._sequenced(summary, batch, head, present, snapshot=snapshot)
        deleted = 0 if first_load else None
        return snapshot, result_of(summary, batch, found=deleted, version=str(snapshot))

    def _merged(
        self,
        batch: ReducedBatch,
        head: int,
        present: Mapping[str, str],
        beside: Iterable[str],
        *,
        hidden: bool,
    ) -> tuple[int, ApplyResult]:
        """Merge a batch into a table that has rows. Returns the id of the new snapshot, and the batch's
        result.

        ``hidden``: True if the table has position deletes. If the MERGE rewrites a file, the summary counts
            the file's already deleted rows as deleted again.
        """
        merge = merge_statement(self.branch, _VIEW, batch, present, beside=beside)
        if batch.sequenced:
            snapshot, summary = self.run(merge, head)
            return snapshot, self._sequenced(summary, batch, head, present, snapshot=snapshot)
        if not counts_beside(batch):
            snapshot, summary = self.run(merge, head)
            if hidden and summary.get("deleted-records"):
                return snapshot, self._counted(batch, head, present, version=str(snapshot))
            return snapshot, result_of(summary, batch, found=None, version=str(snapshot))
        with self._beside(found_statement(self._at(head), _VIEW, batch, present)) as counting:
            snapshot, summary = self.run(merge, head)
        if hidden and summary.get("deleted-records"):
            return snapshot, self._counted(batch, head, present, version=str(snapshot))
        return snapshot, result_of(summary, batch, found=counting.result(), version=str(snapshot))

    def _counted(
        self, batch: ReducedBatch, head: int, present: Mapping[str, str], *, version: str
    ) -> ApplyResult:
        """Return the row counts of a MERGE, counted by queries on the snapshot before it.

        This is needed if the MERGE rewrote files with deleted rows, because its summary then does not show
        how many rows changed.
        """
        updated, deleted = (
            self._count(found_statement(self._at(head), _VIEW, batch, present, op=op))
            for op in ("upsert", "delete")
        )
        return ApplyResult(batch.upserts - updated, updated, deleted, batch.deletes - deleted, version)

    @contextmanager
    def _beside(self, statement: str) -> Iterator[Future[int]]:
        """Run a counting query in another thread while the block runs, and yield the query's future result.

        Both the query and the block mostly wait for Spark's planning, so this saves time.
        """
        counting = SparkEngine.of(self._session).thread(
            lambda: self._count(statement), name=f"count {self._name}"
        )
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


_COUNTED: Final = "_found"
# Key in a snapshot's summary: number of rows that its new delete files delete.
_MARKED_NOW: Final = "added-position-deletes"


def counts_beside(batch: ReducedBatch) -> bool:
    """Return True if a separate query must count a batch's deleted rows.

    This is so if a snapshot's summary does not separate the batch's deleted rows from its updated rows.
    """
    return batch.deletes > 0 and (batch.upserts > 0 or batch.how.delete_mode == "soft")


def found_statement(
    location: str, view: str, batch: ReducedBatch, present: Mapping[str, str], *, op: str = "delete"
) -> str:
    """Return the query that counts the stored rows whose keys a batch deletes or upserts.

    ``location``: the table's quoted name, with a clause that selects the snapshot before the merge.
    ``op``: the operation, ``delete`` or ``upsert``.
    """
    return (
        f"SELECT count(*) AS {_COUNTED} FROM {location} AS {quote_identifier(TARGET)} "
        f"JOIN {quote_identifier(view)} AS {quote_identifier(SOURCE)} "
        f"ON {' AND '.join(same_key(batch, present))} WHERE {quote_path(SOURCE, '_op')} = {quote_text(op)}"
    )


def position_files_statement(location: str, snapshot: int) -> str:
    """Return the query that counts the position delete files of a snapshot."""
    files = f"{location}.delete_files VERSION AS OF {snapshot}"
    return f"SELECT count(*) AS {_COUNTED} FROM {files} WHERE file_format <> 'PUFFIN'"


def positions_statement(location: str, snapshot: int, files: Sequence[str]) -> str:
    """Return the query that counts how many rows of some data files are deleted by position delete files.

    ``snapshot``: id of the snapshot with the position delete files.
    ``files``: paths of the data files.
    """
    positions = f"{location}.position_deletes VERSION AS OF {snapshot}"
    return (
        f"SELECT count(DISTINCT file_path, pos) AS {_COUNTED} FROM {positions} WHERE file_path IN "
        f"({', '.join(map(quote_text, files))}) AND delete_file_path NOT LIKE '%.puffin'"
    )


def living_statement(location: str, batch: ReducedBatch) -> str:
    """Return the query that counts the current rows of the table, or of the batch's shard."""
    return f"SELECT count(*) AS {_COUNTED} FROM {location} WHERE {living_rows(batch)}"


def sequenced_result(
    summary: Mapping[str, int], batch: ReducedBatch, *, stale: Callable[[], int], version: str
) -> ApplyResult:
    """Return the row counts of a batch that was merged in the source's order (`sequence_by: source`).

    ``summary``: the numbers in the snapshot's summary.
    ``stale``: function that counts the batch's rows that were not newer than the stored rows of the previous
        snapshot. It is called only if the summary does not show that all rows changed.

    Raises:
        AccountingError: the numbers in the summary contradict the number that ``stale`` returns.
    """
    added, dropped = summary.get("added-records", 0), summary.get("deleted-records", 0)
    inserted = grown_by(summary)
    rows = batch.upserts + batch.deletes
    left = stale() if dropped or added != rows else 0
    updated = rows - left - inserted
    if min(inserted, updated) < 0 or (not dropped and added != rows - left):
        raise AccountingError(
            f"The snapshot reports {added} rows added and {dropped} removed, for {rows} rows of the batch, "
            f"of which {left} were not newer than the stored rows. Nothing was published. Report this with "
            "the log.",
            table=str(batch.shape.table),
        )
    return ApplyResult(inserted, updated, 0, 0, version, left)


def grown_by(summary: Mapping[str, int]) -> int:
    """Return how many more rows a snapshot has than its parent; negative for fewer rows.

    ``summary``: the numbers in the snapshot's summary.
    """
    marked = summary.get("added-position-deletes", 0) - summary.get("removed-position-deletes", 0)
    return summary.get("added-records", 0) - summary.get("deleted-records", 0) - marked


def result_of(
    summary: Mapping[str, int], batch: ReducedBatch, *, found: int | None, version: str
) -> ApplyResult:
    """Return the row counts of a batch that was merged in Kafka's order.

    ``summary``: the numbers in the snapshot's summary: rows added, rows removed because their files were
        rewritten, and rows deleted by new position deletes.
    ``found``: number of the batch's deletes that had a stored row; None to compute it from the summary.
    ``version``: the snapshot's id.

    Raises:
        AccountingError: the numbers are impossible for a batch of this size.
    """
    added, dropped = summary.get("added-records", 0), summary.get("deleted-records", 0)
    marked = summary.get("added-position-deletes", 0) - summary.get("removed-position-deletes", 0)
    grown = grown_by(summary)
    soft = batch.how.delete_mode == "soft"
    if found is None:
        found = -grown if batch.deletes else 0
    inserted = grown if soft else grown + found
    updated = batch.upserts - inserted
    written = batch.upserts + (found if soft else 0)
    wrong = min(inserted, updated, found) < 0 or found > batch.deletes
    if wrong or (not dropped and added != written):
        raise AccountingError(
            f"The snapshot reports {added} rows added, {dropped} removed and {marked} marked as deleted, for "
            f"{batch.upserts} upserts and {batch.deletes} deletes, of which {found} had a stored row. "
            "Nothing was published. Report this with the log.",
            table=str(batch.shape.table),
        )
    return ApplyResult(inserted, updated, found, batch.deletes - found, version)


_ORDER_COLUMNS: Final = (
    (SEQUENCE_COLUMN, SEQUENCE_DDL, SEQUENCE_COMMENT),
    (SOFT_DELETE_COLUMN, "boolean", SOFT_DELETE_COMMENT),
)


def add_order(table: JvmTable, holder: Holder, name: TableId) -> None:
    """Add the columns for the source's order (`sequence_by: source`), if missing.

    Raises:
        StaleProgressError: another worker holds the table.
        TransientTargetError: other writers kept committing.
    """
    for _ in range(ATTEMPTS):
        state = holder.current()
        schema = _with_order(table, state)
        if schema is None or holder.put_schema(state, schema, {}):
            return
    raise TransientTargetError(
        "Other writers keep committing to the table, so the commit failed. It is tried again.",
        table=str(name),
    )


def _with_order(table: JvmTable, state: TableState) -> Any:
    """Return Java's table schema with the columns for the source's order added; None if the table has them.

    Existing rows get NULL in these columns, which counts as older than every change.
    """
    present = table.columns(state)
    missing = [column for column in _ORDER_COLUMNS if column[0] not in present]
    if not missing:
        return None
    update = state.table.updateSchema()
    for name, ddl, comment in missing:
        update.addColumn(None, name, table.type_of(ddl), comment)
    return update.apply()


PROPERTY: Final = "tidesink.horizon"
_MARKED: Final = quote_identifier(SOFT_DELETE_COLUMN)
_COMMIT_TS: Final = f"{quote_path(SEQUENCE_COLUMN, 'source')}[0]"


def horizon_of(state: TableState) -> int | None:
    """Return the horizon: the commit_ts up to which tombstones (rows that record deletes) may have been
    removed; None if none were removed.
    """
    text = state.property(PROPERTY)
    return int(text) if text else None


def raised(state: TableState, horizon: int) -> int:
    """Return the greater of ``horizon`` and the table's recorded horizon, so that the horizon never moves
    back.
    """
    return max(horizon, horizon_of(state) or 0)


def statement(location: str, horizon: int) -> str:
    """Return the DELETE statement that removes the tombstones (rows that record deletes) up to the commit_ts
    ``horizon``.
    """
    return f"DELETE FROM {location} WHERE {_MARKED} AND {_COMMIT_TS} <= {horizon}"


def kept(location: str) -> str:
    """Return the query for the number of tombstones (rows that record deletes) in a table and for their
    oldest commit_ts.
    """
    return f"SELECT count(*) AS kept, min({_COMMIT_TS}) AS oldest FROM {location} WHERE {_MARKED}"
