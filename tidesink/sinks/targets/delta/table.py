"""The Delta target. A batch's rows and its progress are written in one commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, cast

import structlog

from tidesink.config.targets import DeltaSettings
from tidesink.errors import (
    CommitUnknownError,
    ConfigError,
    StaleProgressError,
    TargetError,
    TidesinkError,
    TransientTargetError,
)
from tidesink.events import TableId, fold_name
from tidesink.sinks.spark.errors import SPARK_ERRORS, summary, translating
from tidesink.sinks.spark.session import in_session
from tidesink.sinks.state.progress import Progress, check_follows
from tidesink.sinks.targets.base import (
    SEQUENCE_COLUMN,
    ApplyResult,
    Capabilities,
    Claim,
    Collected,
    DeleteMode,
    EvolveResult,
    ReducedBatch,
    RowFormat,
    RowSink,
    SchemaGap,
    StagedPart,
    TableReader,
    check_order,
    check_shape,
    check_versions,
)
from tidesink.sinks.targets.column_changes import Evolution, gap_of, plan_evolution
from tidesink.sinks.targets.cuts import NAME as CUTS
from tidesink.sinks.targets.cuts import TableVersion, check_named
from tidesink.sinks.targets.delta import ledger, schema
from tidesink.sinks.targets.delta.files import FILE_PROPERTIES, FilePlan, FileWriter
from tidesink.sinks.targets.delta.ledger import DeltaEntry, Ledger, ProgressHistory
from tidesink.sinks.targets.delta.log import DeltaLog, reading_error, translated, user_metadata
from tidesink.sinks.targets.delta.schema import Compaction
from tidesink.sinks.targets.delta.writes import DeltaShard, check_stale, empty_table, result_of
from tidesink.sinks.targets.lake.batches import (
    FEWEST_STAGED,
    FilesOrMerge,
    check_as_files,
    paths_of,
    planned_as_staged,
)
from tidesink.sinks.targets.lake.cuts import CutLog
from tidesink.sinks.targets.lake.files import FileSink
from tidesink.sinks.targets.lake.merge import append_statement, merge_statement, rows_that_live
from tidesink.sinks.targets.lake.tables import (
    long_names_refused,
    open_session,
    partitions_for,
    source_of,
    table_path,
    transaction,
    try_path,
    try_path_of,
)
from tidesink.sinks.targets.modes import is_history
from tidesink.sinks.targets.sharing import Turns, holds, quote_identifier
from tidesink.typemap.target_schema import TargetColumn, TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import Config
    from tidesink.sinks.state.progress import StateStore


_log = structlog.get_logger("tidesink.delta")
# Number of attempts to write a batch as files if other writers commit in between.
_ATTEMPTS: Final = 5


class DeltaColumns(ABC):
    """The part of ``DeltaTable`` that changes columns.

    ``_present``: the columns as they were last read: Spark type by name.
    """

    location: str
    _session: SparkSession
    _log: DeltaLog
    _present: dict[str, str]

    @abstractmethod
    def _changing(self) -> AbstractContextManager[None]:
        """Return a context manager for a schema change. It first checks that this worker still holds the
        table.
        """

    @abstractmethod
    def _plan(self, shape: TargetSchema) -> Evolution:
        """Plan which columns must be added or widened so that the table can store rows of ``shape``."""

    def _statement(self, view: str, batch: ReducedBatch, *, appends: bool) -> str:
        """Return the SQL statement that writes a batch: an INSERT if ``appends``, else a MERGE."""
        if appends:
            return append_statement(self.location, view, batch, self._present)
        beside = batch.beside(lambda: schema.nullable_columns(self._log))
        return merge_statement(self.location, view, batch, self._present, beside=beside)

    @cached_property
    def _partitioned_by(self) -> frozenset[str]:
        """The names of the partition columns in lower case. They never change while the table exists."""
        return frozenset(fold_name(name) for name in self._log.partition_columns())

    def gap(self, shape: TargetSchema) -> SchemaGap:
        """Compare the table's columns, as they were last read, with those of ``shape``, and return the
        difference.
        """
        plan = self._plan(shape)  # for a shared table, this may read the columns again
        return gap_of(self._present, plan)

    def rename_column(self, old: str, new: str) -> None:
        """Rename a column. No file is rewritten, because column mapping is enabled if necessary."""
        self._alter(rename_statement(self.location, self._present, old, new))

    def drop_columns(self, names: Sequence[str]) -> None:
        """Drop columns and their values from the current version. Older versions of the table keep them."""
        self._alter(drop_statement(self.location, self._present, names))

    def _alter(self, statement: str | None) -> None:
        with self._changing():
            if statement is not None:
                schema.give_features(self._session, self._log, self.location, ["columnMapping"])
                self._session.sql(statement)
            self._present = schema.present_columns(self._log)


def rename_statement(location: str, present: Mapping[str, str], old: str, new: str) -> str | None:
    """Return the statement that renames a column; None if it is renamed already."""
    if new in present and old not in present:
        return None
    return f"ALTER TABLE {location} RENAME COLUMN {quote_identifier(old)} TO {quote_identifier(new)}"


def drop_statement(location: str, present: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Return the statement that drops columns; None if none of them exists."""
    there = ", ".join(quote_identifier(name) for name in names if name in present)
    return f"ALTER TABLE {location} DROP COLUMNS ({there})" if there else None


CAPABILITIES: Final = Capabilities(
    name="delta",
    exactly_once=True,
    features=DeltaSettings.features,
    rereads=True,
    caveats=schema.CAVEATS,
)
PREFLIGHT: Final = schema.DeltaPreflight(schema.check, FILE_PROPERTIES)
_VIEW: Final = "_tidesink_batch"


def open_target(config: Config, spark: SparkSession, store: StateStore) -> DeltaTarget:
    """Return the Delta target that a config describes. It also records each batch's progress in the state
    store.

    Raises:
        ConfigError: the path is local and cannot be written to.
    """
    settings = cast("DeltaSettings", config.target)
    try_path_of(spark, settings.path)
    return DeltaTarget(
        spark,
        settings.path,
        template=settings.table,
        history=store,
        catalog_table=settings.catalog_table,
        properties=settings.table_properties,
    )


def place_of(settings: DeltaSettings, table: TableId) -> str:
    """Return the path of a source table's target table, for display."""
    return table_path(settings.path, settings.table, table)


def try_target(settings: DeltaSettings) -> str:
    """Check that the lake's path can be listed and written to, and return the result as text for display.

    Raises:
        ConfigError: the path cannot be listed or written to.
    """
    return try_path(settings.path)


@dataclass(frozen=True)
class DeltaTarget:
    """A folder in which Delta tables are written.

    ``root``: the folder's path.
    ``template``: template of the tables' paths in the folder, with ``{schema}`` and ``{table}`` of the source
        table.
    ``history``: the state store's record of the progress after each batch, for commits that Delta has removed
        from a log.
    ``settings``: Spark settings of the tables' sessions.
    ``catalog_table``: template of the name under which each table is registered in Spark's catalog; None to
        register no table.
    ``properties``: additional properties of new tables.
    ``fewest_staged``: the tasks that reduce a batch also write its rows to files if each offset range of the
        batch has at least this many records.
    ``file_writer``: makes the object that writes the batches of a table as files.
    """

    spark: SparkSession
    root: str
    template: str = "{schema}/{table}"
    history: ProgressHistory | None = None
    settings: Mapping[str, str] | None = None
    catalog_table: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    fewest_staged: int = FEWEST_STAGED
    file_writer: Callable[[SparkSession, DeltaLog, TableId], FileWriter] = FileWriter

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of a Delta target."""
        return CAPABILITIES

    def path_of(self, table: TableId) -> str:
        """Return the path of a source table's target table.

        Raises:
            ConfigError: the template does not contain ``{table}``.
        """
        if "{table}" not in self.template:
            raise ConfigError(f"target.table {self.template!r} must contain {{table}}.")
        return table_path(self.root, self.template, table)

    def open_table(
        self, shape: TargetSchema, *, pipeline: str, delete_mode: DeleteMode = "hard"
    ) -> DeltaTable:
        """Open a target table for rows with the columns and key of ``shape``, and create it if missing."""
        session, path = open_session(self.spark, self.settings), self.path_of(shape.table)
        with long_names_refused(path.split("/"), shape.table):
            table = DeltaTable(
                session,
                path,
                shape,
                pipeline=pipeline,
                delete_mode=delete_mode,
                target=self,
            )
        if self.catalog_table is not None:
            schema.register(session, path, self.catalog_table, shape.table)
        return table

    def cut_log(self, pipeline: str) -> CutLog:
        """Return the log in which a pipeline's cuts (all tables as of one commit_ts) are published.

        The log is a table in the folder ``root``.
        """
        session, path = open_session(self.spark, self.settings), f"{self.root.rstrip('/')}/{CUTS}"
        location, log = f"delta.{quote_identifier(path)}", DeltaLog(session, path)
        packing = Compaction(session, log, location)
        return CutLog(
            session,
            location,
            "delta",
            pipeline,
            exists=lambda: log.exists,
            maintain=packing.run_if_due,
            translate=translated,
        )

    def reader(self, shape: TargetSchema, *, pipeline: str, session: SparkSession) -> DeltaReader | None:
        """Return a reader of the target table whose columns and key ``shape`` describes; None if the table
        does not exist.
        """
        path = self.path_of(shape.table)
        own = open_session(session, self.settings)
        table_reader = DeltaReader(own, path, shape, pipeline=pipeline, history=self.history)
        return table_reader if table_reader.exists else None


class DeltaReader(TableReader):
    """Reads the rows of one Delta table, in its latest version."""

    def __init__(
        self,
        session: SparkSession,
        path: str,
        shape: TargetSchema,
        *,
        pipeline: str,
        history: ProgressHistory | None,
    ) -> None:
        self.session = session
        self._path = path
        self._shape = shape
        self._log = DeltaLog(session, path)
        self._ledger = Ledger(self._log, shape.source, pipeline, path, history, shape.keys, shape.shard)

    @property
    def exists(self) -> bool:
        """True if the table exists."""
        with translating(reading_error, self._shape.source):
            return self._log.exists

    def columns(self) -> Mapping[str, str]:
        """Return the table's current columns: Spark type by name."""
        with translating(reading_error, self._shape.source):
            return schema.present_columns(self._log)

    def committed(self) -> Progress | None:
        """Return the progress in the user metadata of the table's commits; None if no batch was
        ever applied.
        """
        with translating(reading_error, self._shape.source):
            return self._ledger.committed()

    def rows(self, columns: Sequence[TargetColumn]) -> DataFrame:
        """Return the current rows of the latest version, with ``columns`` in this order."""
        with translating(reading_error, self._shape.source):
            frame = self.session.read.format("delta").load(self._path)
            return rows_that_live(frame, columns, self._shape.shard)


class DeltaTable(DeltaColumns):
    """An open Delta table. It is used by one worker thread."""

    def __init__(
        self,
        session: SparkSession,
        path: str,
        shape: TargetSchema,
        *,
        pipeline: str,
        delete_mode: DeleteMode,
        target: DeltaTarget,
    ) -> None:
        """Open the table, and create it if it is missing."""
        check_shape(shape)
        self.path = path
        self.location = f"delta.{quote_identifier(path)}"
        self._session = session
        self._table = shape.source
        self._history = history = target.history
        self._log = DeltaLog(session, path)
        self._ledger = Ledger(self._log, shape.source, pipeline, path, history, shape.keys, shape.shard)
        self._shard = DeltaShard(shape.shard, session, self._log, self._ledger) if shape.shard else None
        self._turns = Turns(path, shape.shard)
        self._compaction = Compaction(session, self._log, self.location)
        self._files = target.file_writer(session, self._log, shape.source)
        self._files_or_merge = FilesOrMerge(
            shape.source, _log, fewest=target.fewest_staged, forget=self.forget_staged
        )
        self._soft = delete_mode == "soft"
        self._sink: FileSink | None = None
        self._held: DeltaEntry | None = None
        self._seen = -1
        self._evolving = False
        with self._turns.mine(), self._translating(reading_error):
            if is_history(shape) and not self._log.exists:
                PREFLIGHT.check_new_history(shape, target.properties)
            self._created = schema.open_table(
                session,
                self._log,
                self.location,
                shape=shape,
                soft_deletes=delete_mode == "soft",
                properties=target.properties,
            )
            self._present = schema.present_columns(self._log)
        if is_history(shape):
            check_as_files(self._files.obstacle(shape), self._table)

    def claim(self) -> Claim:
        """Claim the table with the next epoch, which fences older workers. Returns the epoch and the applied
        progress.
        """
        with self._turns.mine(), self._translating(translated):
            entry = self._ledger.claim()
            self._held, self._seen = entry, entry.commit.version
            schema.fill_pending(self._session, self._log, self.location, epoch=entry.epoch)
            self._present = schema.present_columns(self._log)
            self._evolving = False
        if self._shard:
            self._shard.claimed(entry, self._present)
        return Claim(entry.epoch, entry.progress)

    def committed(self) -> Progress | None:
        """Return the progress in the user metadata of the table's commits; None if no batch was
        ever applied.
        """
        with self._translating(reading_error):
            return self._ledger.committed()

    def version_of(self, progress: Progress) -> TableVersion:
        """Return the table's latest version, after checking that its ledger records ``progress``."""
        with self._translating(reading_error):
            version = self._log.latest()
            entry = self._ledger.newest(version)
        check_named(entry, progress)
        return TableVersion(self.path, version)

    def evolve(self, shape: TargetSchema) -> EvolveResult:
        """Add and widen columns so that the table can store ``shape``. In existing rows, new columns get
        their defaults.
        """
        schema.check(shape, self._present)
        if self._evolving:  # the last column change was interrupted, so the columns are unknown
            with self._translating(reading_error):
                self._present = schema.present_columns(self._log)
        plan = self._plan(shape)
        created, self._created = self._created, False
        grows = self._shard is not None and self._shard.grows(shape)
        if not (plan.needed or grows or self._evolving):
            return EvolveResult(created=created)
        with self._turns.mine(), self._translating(translated):
            epoch = self._holding().epoch
            self._entries_of(epoch)
            self._evolving = True
            if self._shard:
                plan = self._plan(shape)
                filled, warnings = self._shard.grow(self.location, shape, plan, epoch=epoch)
            else:
                warnings = schema.evolve_table(
                    self._session, self._log, self.location, shape=shape, plan=plan, epoch=epoch
                )
                filled = schema.fill_pending(self._session, self._log, self.location, epoch=epoch)
            self._present = schema.present_columns(self._log)
            self._evolving = False
        added = tuple(column.name for column in plan.added)
        return EvolveResult(created, added, tuple(plan.widened), filled, warnings)

    def _plan(self, shape: TargetSchema) -> Evolution:
        """Plan which columns must be added or widened so that the table can store rows of ``shape``.

        If a shared table seems to need a change, its columns are read again, because other shards may have
        changed them.
        """
        if self._shard is None or holds(self._present, shape):
            return plan_evolution(self._present, shape)
        with self._translating(reading_error):
            self._present = schema.present_columns(self._log)
            return self._shard.plan(shape, self._present)

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        """Write a batch and its progress in one commit, and return the row counts that the commit reports."""
        with self._turns.mine():
            return self._applied(batch, progress)

    def _applied(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        stale_known = False
        with self._translating(reading_error):
            done = self._own_commit(progress)
        if done is None:
            check_follows(progress, self._holding().progress)
            stale_known = self._write(batch, progress)
            with self._translating(translated):
                done = self._own_commit(progress)
        if done is None:
            raise StaleProgressError(
                f"Delta skipped epoch {progress.epoch} batch {progress.batch}, because a later batch is "
                "already applied. Run only one worker per table, and start this worker again. It then "
                "continues from the committed progress.",
                table=str(self._table),
            )
        self._compaction.run_if_due()
        result = result_of(done, batch)
        if batch.sequenced and result.stale and not stale_known:
            with self._translating(reading_error):
                self._show(batch)
                check_stale(
                    self._session, self.location, _VIEW, batch=batch, present=self._present, result=result
                )
        return result

    def row_sink(self, rows: RowFormat) -> RowSink | None:
        """Return what lets the Spark tasks of the next batch write their rows straight to data files.

        Returns None if the rows depend on stored rows, if a task would write too few rows for a file of its
        own, or if the batch needs a MERGE.
        """
        self._sink = None
        if self._files_or_merge.stages(rows, soft=self._soft):
            self._sink = self._files.sink(rows, self._holding().epoch)
        return self._sink

    def forget_staged(self, parts: Sequence[StagedPart] = ()) -> None:
        """Remove the files that tasks wrote for a batch that will not be applied."""
        self._files.discard(paths_of(parts))

    def horizon(self) -> int | None:
        """Return the commit_ts up to which tombstones (rows that record deletes) may have been removed; None
        if none were.
        """
        with self._translating(reading_error):
            return ledger.horizon_of(self._log)

    def collect(self, horizon: int) -> Collected:
        """Remove the tombstones (rows that record deletes) up to the commit_ts ``horizon``."""
        with self._translating(translated):
            epoch = self._holding().epoch
            self._entries_of(epoch)
            return ledger.collect(self._session, self._log, self.location, horizon=horizon, epoch=epoch)

    def close(self) -> None:
        """Drop the temporary view of the last batch. The Spark session ends when no other object refers to
        it.
        """
        # An error here means that the JVM has ended, and the view with it.
        with suppress(*SPARK_ERRORS):
            self._session.catalog.dropTempView(_VIEW)

    def _write(self, batch: ReducedBatch, progress: Progress) -> bool:
        """Write and commit a batch, as files or with a MERGE.

        Returns True if the batch was written as files. In this case, the rows that were skipped as not newer
        have been checked against the stored rows. After a MERGE, they still have to be checked.
        """
        check_order(batch, self._present, table=self._table)
        if batch.how.mode == "history" and not batch.empty:
            check_versions(batch)
        if batch.sequenced and SEQUENCE_COLUMN not in self._present:
            with self._translating(translated):
                self._session.sql(schema.sequence_statement(self.location, self._present))
                self._present = schema.present_columns(self._log)
        if self._history:
            self._history.record_progress(progress)
        if not batch.empty and self._write_files(batch, progress):
            return True
        with self._translating(reading_error):
            schema.check_partitions(self._partitioned_by, batch)
        text = self._entry_text(batch, progress)
        batch.hooks.on_staged()
        try:
            self._commit(batch, progress, text)
        except SPARK_ERRORS as exc:
            if not self._landed(progress):
                raise translated(exc, table=str(self._table)) from exc
        return False

    def _entry_text(
        self, batch: ReducedBatch, progress: Progress, counts: Mapping[str, int] | None = None
    ) -> str:
        columns = self._shard.written(batch.shape) if self._shard else None
        return self._ledger.batch_text(progress, counts=counts, known=columns, seen=self._seen)

    def _write_files(self, batch: ReducedBatch, progress: Progress) -> bool:
        """Write and commit a batch as files. Returns False if it needs a MERGE."""
        for _ in range(_ATTEMPTS):
            plan = planned_as_staged(batch, self._files.plan(batch, progress), self._sink)
            done = self._files_or_merge.write(batch, plan, partial(self._committed_files, batch, progress))
            if isinstance(done, str):
                return False
            if done:
                return True
        # No commit succeeded, so no version contains the staged files.
        self.forget_staged(batch.staged or ())
        raise TransientTargetError(
            "Other writers kept committing while the batch was written. Nothing of the batch was "
            "committed, and it is "
            "tried again.",
            table=str(self._table),
        )

    def _committed_files(self, batch: ReducedBatch, progress: Progress, plan: FilePlan) -> bool:
        """Try once to write and commit a batch as files. Returns False if another writer committed in
        between.
        """
        staged = self._files.stage(batch, plan)
        text = self._entry_text(batch, progress, staged.counts)
        batch.hooks.on_staged()
        version = progress.txn_version
        try:
            self._files.commit(
                plan, staged, application=self._ledger.application, version=version, words=text
            )
        except SPARK_ERRORS as exc:
            landed = self._landed(progress)
            if landed:
                return True
            error = translated(exc, table=str(self._table))
            if not isinstance(error, TransientTargetError):
                raise error from exc
            if landed is None:  # if the client sent the commit twice, it got a conflict with itself
                raise CommitUnknownError(
                    "The commit may have happened, but the log cannot be read now "
                    f"({summary(exc)}). The worker reads the progress at the target to find out.",
                    table=str(self._table),
                ) from exc
            self._files.discard(staged.paths)
            return False
        return True

    def _commit(self, batch: ReducedBatch, progress: Progress, text: str) -> None:
        # In a table without files, no row can match. Other workers cannot add files, because this one holds
        # the table.
        first_load = self._log.file_count() == 0
        has_rows = batch.upserts or (batch.sequenced and batch.deletes)
        if batch.empty or (first_load and not has_rows):
            self._log.commit_marker(self._ledger.application, progress.txn_version, text)
            return
        if batch.truncates:
            empty_table(
                self._session,
                self._log,
                self.location,
                batch=batch,
                application=self._ledger.application,
                version=progress.txn_version,
                text=text,
            )
            return
        self._show(batch)
        sql = self._statement(_VIEW, batch, appends=first_load or batch.how.mode == "append")
        with (
            partitions_for(self._session, batch.upserts + batch.deletes),
            source_of(self._session, batch),
            transaction(self._session, self._ledger.application, progress.txn_version),
            user_metadata(self._session, text),
        ):
            self._session.sql(sql)

    def _show(self, batch: ReducedBatch) -> None:
        if batch.frame is None:
            raise TargetError(
                "The Delta target needs a batch with a Spark frame, but this batch has Python rows. Pass a "
                "ReducedBatch whose `frame` is set.",
                table=str(self._table),
            )
        in_session(batch.frame, self._session).createOrReplaceTempView(_VIEW)

    def _landed(self, progress: Progress) -> bool | None:
        """Return whether a batch's commit is in the log although Spark raised an error; None if the log
        cannot be read.
        """
        try:
            return self._own_commit(progress) is not None
        except SPARK_ERRORS:
            return None

    def _own_commit(self, progress: Progress) -> DeltaEntry | None:
        """Return the ledger entry of a batch if the batch is committed; None otherwise.

        Raises:
            StaleProgressError: another worker claimed the table, the table was restored or replaced, or
                another batch was committed under this batch number.
        """
        held = self._holding()
        if progress.epoch != held.epoch:
            raise StaleProgressError(
                f"This worker holds epoch {held.epoch}, but the batch has epoch {progress.epoch}.",
                table=str(self._table),
            )
        entries = [*self._entries_of(held.epoch), held]
        done = next((e for e in entries if (e.kind, e.batch) == ("batch", progress.batch)), None)
        if done and done.progress and done.progress != progress:
            raise StaleProgressError(
                f"Epoch {progress.epoch} batch {progress.batch} is committed at version "
                f"{done.commit.version} with other progress than this batch's. Start again from the "
                "committed progress.",
                table=str(self._table),
            )
        return done

    def _entries_of(self, epoch: int) -> list[DeltaEntry]:
        """Return the ledger's entries that were committed since the last call, newest first.

        Raises:
            StaleProgressError: another worker claimed the table, or the table was restored or replaced.
        """
        latest, entries = self._ledger.since(self._seen)
        for entry in entries:
            if entry.epoch != epoch:
                raise self._ledger.lost_to(entry)
        self._seen = latest
        if entries:
            self._held = entries[0]
        return entries

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._turns.mine(), self._translating(translated):
            self._entries_of(self._holding().epoch)
            yield

    def _holding(self) -> DeltaEntry:
        if self._held is None:
            raise StaleProgressError(
                "The table must be claimed before a batch is applied. Call `claim` first.",
                table=str(self._table),
            )
        return self._held

    def _translating(self, translate: Callable[..., TidesinkError]) -> AbstractContextManager[None]:
        return translating(translate, self._table)
