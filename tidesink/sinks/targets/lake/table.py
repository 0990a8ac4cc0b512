"""An open table in a lake. Delta and Iceberg share its life, and each implements the steps.

A batch is applied in these steps, each a method of ``TableFormat`` or its parts:

1. ``done``: a batch that is committed already is only reported.
2. ``plan``, ``commit_files``: its rows and marks are written as files and committed, if the table allows it.
3. ``commit_statement``: otherwise Spark writes it by a statement, such as a MERGE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from tidesink.errors import SchemaRefusedError, TidesinkError, TransientTargetError
from tidesink.sinks.laws.modes import is_history
from tidesink.sinks.spark.errors import translating
from tidesink.sinks.targets.base import (
    SEQUENCE_COLUMN,
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
    check_order,
    check_shape,
    check_versions,
)
from tidesink.sinks.targets.column_changes import Evolution, gap_of, plan_evolution
from tidesink.sinks.targets.cuts import TableVersion, check_named
from tidesink.sinks.targets.lake.batches import (
    FilePlan,
    FilesOrMerge,
    check_as_files,
    paths_of,
    planned_as_staged,
)
from tidesink.sinks.targets.sharing import Turns, also_of, holds

if TYPE_CHECKING:
    import structlog

    from tidesink.sinks.state.progress import Progress
    from tidesink.sinks.targets.lake.files import FileSink
    from tidesink.sinks.targets.lake.ledger import LakeEntry
    from tidesink.typemap.target_schema import TargetSchema


# Number of attempts to write a batch if other writers commit in between.
_ATTEMPTS: Final = 5
Plan = TypeVar("Plan", bound=FilePlan)


class ColumnsFormat(Protocol):
    """Reads and changes a table's columns, as Delta or Iceberg implements it."""

    def open(self, shape: TargetSchema, *, soft_deletes: bool) -> bool:
        """Create the table if it is missing, and add the soft-delete column if needed.

        Returns True if the table was created.

        Raises:
            SchemaRefusedError, ConfigError: the format cannot store such a table.
        """

    def present(self) -> dict[str, str]:
        """Read and return the table's columns: Spark type by name."""

    def check(self, shape: TargetSchema, present: Iterable[str]) -> None:
        """Check that the table can have the columns of ``shape`` in addition to ``present``.

        Raises:
            SchemaRefusedError: it cannot.
        """

    def check_types(self, plan: Evolution, present: Mapping[str, str]) -> None:
        """Check that the format can make the type changes of a plan.

        Raises:
            SchemaRefusedError: it cannot.
        """

    def grows(self, shape: TargetSchema) -> bool:
        """Return True if the rows of a shard lack a column of ``shape`` that the shared table may have."""

    def evolve(self, shape: TargetSchema, plan: Evolution) -> EvolveResult:
        """Change columns as planned, and write defaults into existing rows. Does not set ``created``."""

    def rename(self, old: str, new: str) -> None:
        """Rename a column, if it is not renamed already."""

    def drop(self, names: Sequence[str]) -> None:
        """Drop those of the columns that exist."""


class TableFormat(Protocol[Plan]):
    """The steps of a table's life, as Delta or Iceberg implements them."""

    @property
    def place(self) -> str:
        """The table's path or name, for messages."""

    @property
    def columns(self) -> ColumnsFormat:
        """The reader and writer of its columns."""

    def reading_error(self, exc: BaseException, *, table: str) -> TidesinkError:
        """Return the error to raise for Spark's exception in a step that only reads."""

    def commit_error(self, exc: BaseException, *, table: str) -> TidesinkError:
        """Return the error to raise for Spark's exception in a step that may commit."""

    def claim(self) -> LakeEntry:
        """Commit the next epoch with the applied progress, and complete an interrupted change of columns."""

    def entry(self) -> tuple[int, LakeEntry | None]:
        """Return the version that readers see, and the ledger's entry in it."""

    def shards(self) -> tuple[str, ...]:
        """Return the names of the other shards of a shared table."""

    def obstacle(self, shape: TargetSchema) -> str | None:
        """Return the reason why no batch of a history can be written as files; None if there is none."""

    def done(self, batch: ReducedBatch, progress: Progress) -> ApplyResult | None:
        """Return the result of a batch that is committed already; None for the next batch.

        Raises:
            StaleProgressError: another worker claimed the table, it was restored or replaced, or the batch is
                not the next one.
        """

    def add_order(self, present: Mapping[str, str]) -> None:
        """Add the columns for the source's order (`sequence_by: source`)."""

    def plan(self, batch: ReducedBatch, progress: Progress) -> Plan | str:
        """Return the plan for writing a batch as files, or the reason why it needs a MERGE."""

    def commit_files(self, batch: ReducedBatch, progress: Progress, plan: Plan) -> ApplyResult | None:
        """Write a batch as files and commit it. Returns None if another writer committed in between."""

    def commit_statement(
        self, batch: ReducedBatch, progress: Progress, present: Mapping[str, str]
    ) -> ApplyResult | None:
        """Commit a batch by Spark's statement, or only its progress. Returns None if another writer committed
        in between.
        """

    def sink(self, rows: RowFormat) -> FileSink | None:
        """Return the sink with which tasks write the next batch's rows to files; None if it needs a MERGE."""

    def discard(self, paths: Sequence[str]) -> None:
        """Remove files that no version contains."""

    def horizon(self) -> int | None:
        """Return the commit_ts up to which tombstones may be missing; None if none were removed."""

    def collect(self, horizon: int) -> Collected:
        """Remove the tombstones up to a commit_ts, and record it."""

    def close(self) -> None:
        """Drop the temporary view of the last batch in the Spark session."""


class LakeTable:
    """An open table in a lake. It is used by one worker thread.

    ``table_format``: the steps, as Delta or Iceberg implements them.
    ``fewest_staged``: fewest records of an offset range for which tasks write a batch's rows to files while
        they reduce it.
    """

    def __init__(
        self,
        table_format: TableFormat[Any],
        shape: TargetSchema,
        *,
        delete_mode: DeleteMode,
        fewest_staged: int,
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        check_shape(shape)
        self.format = table_format
        self._table = shape.source
        self._turns = Turns(table_format.place, shape.shard)
        self._files_or_merge = FilesOrMerge(
            shape.source, log, fewest=fewest_staged, forget=self.forget_staged
        )
        self._soft = delete_mode == "soft"
        self._sink: FileSink | None = None
        # True after a column change was interrupted, so that the columns are unknown.
        self._evolving = False
        with self._turns.mine(), self._translating(table_format.reading_error):
            self._created = table_format.columns.open(shape, soft_deletes=self._soft)
            # The columns as they were last read: Spark type by name.
            self._present = table_format.columns.present()
            if is_history(shape):
                check_as_files(table_format.obstacle(shape), shape.source)

    def claim(self) -> Claim:
        """Claim the table with the next epoch, which fences older workers. Returns the epoch and the applied
        progress.
        """
        with self._turns.mine(), self._translating(self.format.commit_error):
            entry = self.format.claim()
            self._present = self.format.columns.present()
            self._evolving = False
        return Claim(entry.epoch, entry.progress)

    def committed(self) -> Progress | None:
        """Return the progress in the table's ledger; None if no batch was ever applied."""
        with self._translating(self.format.reading_error):
            entry = self.format.entry()[1]
        return entry.progress if entry else None

    def version_of(self, progress: Progress) -> TableVersion:
        """Return the version that readers see, after checking that the ledger records ``progress``."""
        with self._translating(self.format.reading_error):
            version, entry = self.format.entry()
        check_named(entry, progress)
        return TableVersion(self.format.place, version)

    def gap(self, shape: TargetSchema) -> SchemaGap:
        """Compare the table's columns, as they were last read, with those of ``shape``, and return the
        difference.
        """
        plan = self._plan(shape)  # for a shared table, this may read the columns again
        self.format.columns.check_types(plan, self._present)
        return gap_of(self._present, plan)

    def evolve(self, shape: TargetSchema) -> EvolveResult:
        """Add and widen columns so that the table can store ``shape``. In existing rows, new columns get
        their defaults.
        """
        columns = self.format.columns
        columns.check(shape, self._present)
        if self._evolving:
            with self._translating(self.format.reading_error):
                self._present = columns.present()
        needed = self._plan(shape).needed
        created, self._created = self._created, False
        if not (needed or columns.grows(shape) or self._evolving):
            return EvolveResult(created=created)
        with self._turns.mine(), self._translating(self.format.commit_error):
            plan = self._plan(shape)
            self._evolving = True
            result = columns.evolve(shape, plan)
            self._present = columns.present()
            self._evolving = False
        return replace(result, created=created)

    def rename_column(self, old: str, new: str) -> None:
        """Rename a column. No file is rewritten."""
        with self._turns.mine(), self._translating(self.format.commit_error):
            self.format.columns.rename(old, new)
            self._present = self.format.columns.present()

    def drop_columns(self, names: Sequence[str]) -> None:
        """Drop columns and their values from the current version. Older versions of the table keep them."""
        with self._turns.mine(), self._translating(self.format.commit_error):
            self.format.columns.drop(names)
            self._present = self.format.columns.present()

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        """Write a batch and its progress in one commit, and return the row counts that the commit reports."""
        with self._turns.mine():
            with self._translating(self.format.reading_error):
                done = self.format.done(batch, progress)
            if done is not None:
                return done
            self._prepare(batch)
            return self._write(batch, progress)

    def row_sink(self, rows: RowFormat) -> RowSink | None:
        """Return what lets the Spark tasks of the next batch write their rows straight to data files.

        Returns None if the rows depend on stored rows, if a task would write too few rows for a file of its
        own, or if the batch needs a MERGE.
        """
        self._sink = None
        if self._files_or_merge.stages(rows, soft=self._soft):
            with self._translating(self.format.reading_error):
                self._sink = self.format.sink(rows)
        return self._sink

    def forget_staged(self, parts: Sequence[StagedPart] = ()) -> None:
        """Remove the files that tasks wrote for a batch that will not be applied."""
        paths = paths_of(parts)
        if paths:
            with self._translating(self.format.reading_error):
                self.format.discard(paths)

    def horizon(self) -> int | None:
        """Return the commit_ts up to which tombstones (rows that record deletes) may have been removed; None
        if none were.
        """
        with self._translating(self.format.reading_error):
            return self.format.horizon()

    def collect(self, horizon: int) -> Collected:
        """Remove the tombstones (rows that record deletes) up to the commit_ts ``horizon``."""
        with self._translating(self.format.commit_error):
            return self.format.collect(horizon)

    def close(self) -> None:
        """Drop the temporary view of the last batch. The Spark session ends when no other object refers to
        it.
        """
        self.format.close()

    def _write(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        """Write and commit a batch. Tries again if another writer committed in between."""
        for _ in range(_ATTEMPTS):
            result = self._attempt(batch, progress)
            if result is not None:
                return result
        # No commit succeeded, so no version contains the staged files.
        self.forget_staged(batch.staged or ())
        raise TransientTargetError(
            "Other writers kept committing while the batch was written. Nothing of the batch was committed, "
            "and it is tried again.",
            table=str(self._table),
        )

    def _prepare(self, batch: ReducedBatch) -> None:
        """Check that the batch has the table's order (the source's or Kafka's) and fits a history, and add
        missing columns for the source's order.

        Raises:
            SchemaRefusedError: the table is ordered by the source, but the batch is in Kafka's order.
            TargetError: a history cannot apply the batch.
        """
        check_order(batch, self._present, table=self._table)
        if batch.how.mode == "history" and not batch.empty:
            check_versions(batch)
        if batch.sequenced and SEQUENCE_COLUMN not in self._present:
            with self._translating(self.format.commit_error):
                self.format.add_order(self._present)
                self._present = self.format.columns.present()

    def _attempt(self, batch: ReducedBatch, progress: Progress) -> ApplyResult | None:
        """Try once to write and commit a batch. Returns None if another writer committed in between."""
        table_format = self.format
        if not (batch.empty or batch.truncates):
            with self._translating(table_format.reading_error):
                plan = planned_as_staged(batch, table_format.plan(batch, progress), self._sink)
                write = partial(table_format.commit_files, batch, progress)
                done = self._files_or_merge.write(batch, plan, write)
            if not isinstance(done, str):
                return done
        with self._translating(table_format.reading_error):
            return table_format.commit_statement(batch, progress, self._present)

    def _plan(self, shape: TargetSchema) -> Evolution:
        """Plan which columns must be added or widened so that the table can store rows of ``shape``.

        If a shared table seems to need a change, its columns are read again, because other shards may have
        changed them.

        Raises:
            SchemaRefusedError: a column's type cannot hold the table's values. For a shared table, the
                message names the other shards.
        """
        if shape.shard is None or holds(self._present, shape):
            return plan_evolution(self._present, shape)
        with self._translating(self.format.reading_error):
            self._present = self.format.columns.present()
            try:
                return plan_evolution(self._present, shape)
            except SchemaRefusedError as exc:
                others = self.format.shards()
                raise also_of(exc, self.format.place, others) if others else exc from None

    def _translating(self, translate: Callable[..., TidesinkError]) -> AbstractContextManager[None]:
        return translating(translate, self._table)
