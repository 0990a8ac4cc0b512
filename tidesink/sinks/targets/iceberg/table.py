"""The Iceberg target.

A batch's new snapshot is published together with its progress in one metadata commit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from tidesink.config.targets import IcebergSettings
from tidesink.errors import SchemaRefusedError, TidesinkError, TransientTargetError
from tidesink.events import TableId
from tidesink.sinks.spark.errors import translating
from tidesink.sinks.state.progress import Progress, check_held
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
from tidesink.sinks.targets.column_changes import Evolution, default_texts, gap_of, plan_evolution
from tidesink.sinks.targets.cuts import NAME as CUTS
from tidesink.sinks.targets.cuts import TableVersion, check_named
from tidesink.sinks.targets.iceberg import merge, schema
from tidesink.sinks.targets.iceberg import schema as iceberg_schema
from tidesink.sinks.targets.iceberg.files import FILE_PROPERTIES, FilePlan, FileWriter
from tidesink.sinks.targets.iceberg.jvm import JvmTable, TableState, reading_error
from tidesink.sinks.targets.iceberg.ledger import ATTEMPTS, Holder, IcebergLedger
from tidesink.sinks.targets.iceberg.merge import Staging, add_order, grown_by
from tidesink.sinks.targets.iceberg.schema import Maintenance, fill_statement, open_session, try_catalog
from tidesink.sinks.targets.iceberg.tags import CutTags
from tidesink.sinks.targets.lake.batches import (
    FEWEST_STAGED,
    FilesOrMerge,
    check_as_files,
    paths_of,
    planned_as_staged,
)
from tidesink.sinks.targets.lake.cuts import CutLog
from tidesink.sinks.targets.lake.files import FileSink
from tidesink.sinks.targets.lake.merge import rows_that_live
from tidesink.sinks.targets.lake.tables import long_names_refused, table_names, try_path_of
from tidesink.sinks.targets.modes import is_history
from tidesink.sinks.targets.sharing import Turns, also_of, holds, known_after, new_columns, quote_path
from tidesink.typemap.target_schema import Shard, TargetColumn, TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import Config
    from tidesink.sinks.state.progress import StateStore


_log = structlog.get_logger("tidesink.iceberg")
# Stands for the table of cuts in the template of table names, which determines its namespace.
_CUTS_TABLE: Final = TableId("tidesink", "cuts")


class IcebergColumns(ABC):
    """The part of ``IcebergTable`` that changes columns.

    ``_present``: the columns as they were last read: Spark type by name.
    """

    _name: TableId
    _table: JvmTable
    _holder: Holder
    _present: dict[str, str]

    @abstractmethod
    def _translating(self, translate: Callable[..., TidesinkError]) -> AbstractContextManager[None]:
        """Return a context manager that converts errors of Java calls inside the block with ``translate``."""

    @abstractmethod
    def _plan(self, shape: TargetSchema) -> Evolution:
        """Plan which columns must be added or widened so that the table can store rows of ``shape``."""

    def gap(self, shape: TargetSchema) -> SchemaGap:
        """Compare the table's columns, as they were last read, with those of ``shape``, and return the
        difference.
        """
        with self._translating(reading_error):
            plan = self._plan(shape)
            schema.check_promotions(plan.widened, self._present, table=self._name)
        return gap_of(self._present, plan)

    def rename_column(self, old: str, new: str) -> None:
        """Rename a column. No file is rewritten, because files refer to columns by field id."""
        self._alter(lambda present: new not in present, lambda update: update.renameColumn(old, new))

    def drop_columns(self, names: Sequence[str]) -> None:
        """Drop columns from the current schema. Older snapshots keep them."""
        for name in names:
            self._alter(lambda present, n=name: n in present, lambda update, n=name: update.deleteColumn(n))  # type: ignore[misc]

    def _alter(self, needed: Callable[[Mapping[str, str]], bool], change: Callable[[Any], object]) -> None:
        """Commit a schema change.

        ``needed``: returns True if the current columns need the change.
        ``change``: makes the change on Java's schema update.
        """
        with self._translating(reading_error):
            for _ in range(ATTEMPTS):
                state = self._holder.current()
                self._present = self._table.columns(state)
                if not needed(self._present):
                    return
                update = state.table.updateSchema()
                change(update)
                self._holder.put_schema(state, update.apply(), {})
        raise TransientTargetError(
            "Other writers keep committing to the table, so the commit failed. It is tried again.",
            table=str(self._name),
        )


CAPABILITIES: Final = Capabilities(
    name="iceberg",
    exactly_once=True,
    features=IcebergSettings.features,
    rescales=False,
)
PREFLIGHT: Final = iceberg_schema.IcebergPreflight(
    iceberg_schema.check, {**FILE_PROPERTIES, "format-version": ("2", "3")}
)


def open_target(config: Config, spark: SparkSession, _store: StateStore) -> IcebergTarget:
    """Return the Iceberg target that a config describes.

    Raises:
        ConfigError: the warehouse is a local path that cannot be written to.
    """
    settings = cast("IcebergSettings", config.target)
    properties = settings.catalog_values()
    if (path := iceberg_schema.warehouse_path(properties)) is not None:
        try_path_of(spark, path, setting=iceberg_schema.WAREHOUSE)
    return IcebergTarget(
        spark,
        settings.catalog,
        template=settings.table,
        properties=properties,
        table_properties=settings.table_properties,
    )


def place_of(settings: IcebergSettings, table: TableId) -> str:
    """Return the catalog and name of a source table's target table, for display."""
    return ".".join((settings.catalog, *table_names(settings.table, table)))


def try_target(settings: IcebergSettings) -> str:
    """Check the catalog without starting Spark, and return the result as text for display.

    Raises:
        ConfigError: the catalog's warehouse cannot be used.
    """
    return try_catalog(settings.catalog, settings.catalog_values())


@dataclass(frozen=True)
class IcebergTarget:
    """An Iceberg catalog in which tables are written.

    ``catalog``: the catalog's name in Spark.
    ``template``: template of the target tables' names, with ``{schema}`` and ``{table}`` of the source table.
    ``properties``: the catalog's properties (type, uri, warehouse, …); if empty, Spark's settings define the
        catalog.
    ``table_properties``: additional properties of new tables.
    ``fewest_staged``: the tasks that reduce a batch also write its rows to files if each offset range of the
        batch has at least this many records.
    ``file_writer``: makes the object that writes the batches of a table as files.
    """

    spark: SparkSession
    catalog: str
    template: str = "{schema}.{table}"
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    table_properties: Mapping[str, str] = field(default_factory=dict)
    fewest_staged: int = FEWEST_STAGED
    file_writer: Callable[[SparkSession, JvmTable, TableId], FileWriter] = FileWriter

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of an Iceberg target."""
        return CAPABILITIES

    def location_of(self, table: TableId) -> str:
        """Return the quoted name of a source table's target table, with its catalog."""
        return f"{self.catalog}.{quote_path(*table_names(self.template, table))}"

    def open_table(
        self, shape: TargetSchema, *, pipeline: str, delete_mode: DeleteMode = "hard"
    ) -> IcebergTable:
        """Open a target table for rows with the columns and key of ``shape``, and create it if missing."""
        session = open_session(self.spark, self.catalog, self.properties)
        location = self.location_of(shape.table)
        with long_names_refused(table_names(self.template, shape.table), shape.table):
            return IcebergTable(
                session,
                location,
                shape,
                pipeline=pipeline,
                delete_mode=delete_mode,
                target=self,
            )

    def cut_log(self, pipeline: str) -> CutLog:
        """Return the log in which a pipeline's cuts (all tables as of one commit_ts) are published.

        The log is a table in the namespace that the template gives for a source schema ``tidesink``.
        """
        session = open_session(self.spark, self.catalog, self.properties)
        spaces = table_names(self.template, _CUTS_TABLE)[:-1]
        location = f"{self.catalog}.{quote_path(*spaces, CUTS)}"
        table = JvmTable(session, location)
        packing = Maintenance(session, table)

        def maintain() -> None:
            state = table.state()
            packing.run_if_due(state.totals, state.snapshot_count())

        return CutLog(
            session,
            location,
            "iceberg",
            pipeline,
            namespace=f"{self.catalog}.{quote_path(*spaces)}" if spaces else "",
            exists=lambda: table.exists,
            maintain=maintain,
            translate=reading_error,
        )

    def reader(self, shape: TargetSchema, *, pipeline: str, session: SparkSession) -> IcebergReader | None:
        """Return a reader of the target table whose columns and key ``shape`` describes; None if the table
        does not exist.
        """
        own = open_session(session, self.catalog, self.properties)
        table_reader = IcebergReader(own, self.location_of(shape.table), shape, pipeline=pipeline)
        return table_reader if table_reader.exists else None


class IcebergReader(TableReader):
    """Reads the rows of one Iceberg table, in the snapshot that its readers see."""

    def __init__(self, session: SparkSession, location: str, shape: TargetSchema, *, pipeline: str) -> None:
        self.session = session
        self._shape = shape
        self._table = JvmTable(session, location)
        self._ledger = IcebergLedger(shape.source, pipeline, location, shape.keys, shape.shard)

    @property
    def exists(self) -> bool:
        """True if the table exists."""
        with translating(reading_error, self._shape.source):
            return self._table.exists

    def columns(self) -> Mapping[str, str]:
        """Return the table's current columns: Spark type by name."""
        with translating(reading_error, self._shape.source):
            return self._table.columns(self._table.state())

    def committed(self) -> Progress | None:
        """Return the progress that the table's ledger property records; None if no batch was ever applied."""
        with translating(reading_error, self._shape.source):
            entry = self._ledger.entry(self._table.state())
        return entry.progress if entry else None

    def rows(self, columns: Sequence[TargetColumn]) -> DataFrame:
        """Return the current rows of the snapshot that readers see, with ``columns`` in this order."""
        with translating(reading_error, self._shape.source):
            return rows_that_live(self.session.table(self._table.location), columns, self._shape.shard)


class IcebergTable(IcebergColumns):
    """An open Iceberg table. It is used by one worker thread."""

    def __init__(
        self,
        session: SparkSession,
        location: str,
        shape: TargetSchema,
        *,
        pipeline: str,
        delete_mode: DeleteMode,
        target: IcebergTarget,
    ) -> None:
        """Open the table, and create it if it is missing."""
        check_shape(shape)
        self.location = location
        self._session = session
        self._name = shape.source
        self._table = JvmTable(session, location)
        self._ledger = IcebergLedger(shape.source, pipeline, location, shape.keys, shape.shard)
        self._turns = Turns(location, shape.shard)
        self._holder = Holder(self._table, self._ledger, shape.source)
        self._shard = shard_of(shape, self._table, self._ledger, self._holder)
        self._staging = Staging(session, self._table, self._holder, shape.source)
        self._files = target.file_writer(session, self._table, shape.source)
        self._files_or_merge = FilesOrMerge(
            shape.source, _log, fewest=target.fewest_staged, forget=self.forget_staged
        )
        self._soft = delete_mode == "soft"
        self._sink: FileSink | None = None
        self._maintenance = Maintenance(session, self._table)
        self._tags = CutTags(self._table, pipeline, shape.source)
        self._evolving = False
        with self._turns.mine(), self._translating(reading_error):
            if is_history(shape) and not self._table.exists:
                PREFLIGHT.check_new_history(shape, target.table_properties)
            self._created = iceberg_schema.open_table(
                session,
                self._table,
                shape,
                soft_deletes=delete_mode == "soft",
                properties=target.table_properties,
            )
            state = self._table.state()
            self._present = self._table.columns(state)
            if is_history(shape):
                check_as_files(self._files.obstacle(shape, state), self._name)

    def claim(self) -> Claim:
        """Claim the table with the next epoch, which fences older workers. Returns the epoch and the applied
        progress.
        """
        with self._turns.mine(), self._translating(reading_error):
            entry = self._holder.claim()
            self._fill_pending()
            self._present = self._table.columns(self._table.state())
            self._evolving = False
        return Claim(entry.epoch, entry.progress)

    def committed(self) -> Progress | None:
        """Return the progress that the table's ledger property records; None if no batch was ever applied."""
        with self._translating(reading_error):
            entry = self._ledger.entry(self._table.state())
        return entry.progress if entry else None

    def version_of(self, progress: Progress) -> TableVersion:
        """Return the snapshot that readers see, after checking that the ledger records ``progress``."""
        with self._translating(reading_error):
            state = self._table.state()
            entry = self._ledger.entry(state)
        check_named(entry, progress)
        return TableVersion(self.location, cast(int, state.head))

    def keep_version(self, version: int, commit_ts: int, *, keep: float) -> None:
        """Put a tag on the snapshot to which a cut (all tables as of one commit_ts) refers, so that it does
        not expire.
        """
        with self._translating(reading_error):
            self._tags.keep(version, commit_ts, seconds=keep)

    def evolve(self, shape: TargetSchema) -> EvolveResult:
        """Add and widen columns so that the table can store ``shape``. In existing rows, new columns get
        their defaults.
        """
        iceberg_schema.check(shape, self._present)
        with self._turns.mine(), self._translating(reading_error):
            created, self._created = self._created, False
            grows = self._shard is not None and bool(self._shard.new_columns(shape))
            if not (self._plan(shape).needed or grows or self._evolving):
                return EvolveResult(created=created)
            self._evolving = (
                True  # reset at the end, so that an interrupted change is completed by the next call
            )
            result = self._evolve(shape)
            if self._shard:
                filled, warnings = self._shard.fill(shape, self._staging.branch, self._staging.run)
            else:
                filled, warnings = self._fill_pending(), ()
            self._plan(shape)  # for a shared table, this reads the columns again
            self._evolving = False
        return replace(result, created=created, backfilled=filled, warnings=(*result.warnings, *warnings))

    def _plan(self, shape: TargetSchema) -> Evolution:
        if self._shard and not holds(self._present, shape):
            self._present = self._shard.present(shape)
        return plan_evolution(self._present, shape)

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        """Write a batch, and publish it with its progress in one commit. Returns the row counts."""
        with self._turns.mine(), self._translating(reading_error):
            state, done = self._looked_at(progress)
            if done is None and self._take_order(batch):
                state = self._holder.current()
            for _ in range(ATTEMPTS):
                if done is not None:
                    return done
                done = self._attempt(batch, progress, state)
                state = None
            if done is None:
                # No commit succeeded, so no snapshot contains the staged files.
                self.forget_staged(batch.staged or ())
                raise TransientTargetError(
                    "Other writers kept committing while the batch was written. Nothing of the batch was "
                    "published, "
                    "and it is tried again.",
                    table=str(self._name),
                )
        return done

    def row_sink(self, rows: RowFormat) -> RowSink | None:
        """Return what lets the Spark tasks of the next batch write their rows straight to data files.

        Returns None if the rows depend on stored rows, if a task would write too few rows for a file of its
        own, or if the batch needs a MERGE.
        """
        self._sink = None
        if self._files_or_merge.stages(rows, soft=self._soft):
            with self._translating(reading_error):
                self._sink = self._files.sink(rows, self._table.state(), self._holder.held.epoch)
        return self._sink

    def forget_staged(self, parts: Sequence[StagedPart] = ()) -> None:
        """Remove the files that tasks wrote for a batch that will not be applied."""
        paths = paths_of(parts)
        if paths:
            with self._translating(reading_error):
                self._files.discard(paths, self._table.state())

    def horizon(self) -> int | None:
        """Return the commit_ts up to which tombstones (rows that record deletes) may have been removed; None
        if none were.
        """
        with self._translating(reading_error):
            return merge.horizon_of(self._table.state())

    def collect(self, horizon: int) -> Collected:
        """Remove the tombstones (rows that record deletes) up to the commit_ts ``horizon``, and record it in
        the same commit.
        """
        with self._translating(reading_error):
            for _ in range(ATTEMPTS):
                state = self._holder.staging()
                head, now = cast(int, state.head), merge.raised(state, horizon)
                snapshot, summary = self._staging.run(merge.statement(self._staging.branch, now), head)
                remaining, oldest = self._session.sql(merge.kept(self._staging.branch)).collect()[0]
                entry = replace(self._holder.held, snapshot=snapshot)
                properties = {merge.PROPERTY: str(now)}
                if self._holder.publish(entry, on=head, saying=properties):
                    return Collected(now, -grown_by(summary), remaining, oldest)
        raise TransientTargetError(
            "Other writers keep committing to the table, so the commit failed. It is tried again.",
            table=str(self._name),
        )

    def close(self) -> None:
        """Drop the temporary view of the last batch. The Spark session ends when no other object refers to
        it.
        """
        self._staging.close()

    def _looked_at(self, progress: Progress) -> tuple[TableState | None, ApplyResult | None]:
        """Return the table's current state, and the batch's result if the batch is already applied (None
        otherwise).

        Raises:
            StaleProgressError: this worker does not hold the batch's epoch, or a later batch is applied.
        """
        hold = self._holder.held.hold
        check_held(hold, hold, table=self._name, batch=progress.epoch)
        state = self._holder.current()
        held = self._holder.held
        return state, held.done(progress)

    def _attempt(
        self, batch: ReducedBatch, progress: Progress, state: TableState | None
    ) -> ApplyResult | None:
        """Try once to write and publish a batch. Returns None if another writer committed in between.

        ``state``: the table's state, if it was read just before; None to read it again.
        """
        if batch.empty or batch.truncates:
            return self._merged(batch, progress)
        plan = self._files.plan(batch, progress, state or self._holder.current())
        plan = planned_as_staged(batch, plan, self._sink)
        done = self._files_or_merge.write(batch, plan, partial(self._written, batch, progress))
        return self._merged(batch, progress) if isinstance(done, str) else done

    def _written(self, batch: ReducedBatch, progress: Progress, plan: FilePlan) -> ApplyResult | None:
        """Write a batch as files, and publish their snapshot. Returns None if another writer committed in
        between.
        """
        staged = self._files.stage(batch, plan)
        if staged is None:
            return None
        head = plan.state.head
        snapshot = head if staged.snapshot is None else int(staged.snapshot.snapshotId())
        held = self._holder.held
        entry = self._ledger.batch(
            held, progress, staged.result, snapshot=cast(int, snapshot), shape=batch.shape
        )
        batch.hooks.on_staged()
        if not self._holder.publish(entry, on=head, at=plan.state, adding=staged.snapshot):
            self._files.discard(staged.paths, plan.state)
            return None
        self._maintenance.run_if_due(staged.numbers, plan.state.snapshot_count() + 1)
        return staged.result

    def _merged(self, batch: ReducedBatch, progress: Progress) -> ApplyResult | None:
        """Merge a batch on the staging branch, and publish it. Returns None if another writer committed in
        between.
        """
        state = self._holder.staging()
        snapshot, result = self._staging.batch(batch, state, self._present)
        entry = self._ledger.batch(self._holder.held, progress, result, snapshot=snapshot, shape=batch.shape)
        batch.hooks.on_staged()
        if not self._holder.publish(entry, on=state.head):
            return None
        state = self._table.state()
        self._maintenance.run_if_due(state.totals, state.snapshot_count())
        return result

    def _take_order(self, batch: ReducedBatch) -> bool:
        """Check that the batch has the table's order (the source's or Kafka's), and add missing columns for
        the source's order.

        Returns True if columns were added.

        Raises:
            SchemaRefusedError: the table is ordered by the source, but the batch is in Kafka's order.
        """
        check_order(batch, self._present, table=self._name)
        if batch.how.mode == "history" and not batch.empty:
            check_versions(batch)
        if not batch.sequenced or SEQUENCE_COLUMN in self._present:
            return False
        self._present = add_order(self._table, self._holder, self._name)
        return True

    def _evolve(self, shape: TargetSchema) -> EvolveResult:
        """Widen and add the columns that ``shape`` needs.

        Defaults of new columns are only recorded here, and written into existing rows later.
        """
        for _ in range(ATTEMPTS):
            state = self._holder.current()
            present = self._table.columns(state)
            plan = plan_evolution(present, shape)
            iceberg_schema.check_promotions(plan.widened, present, table=self._name)
            schema, properties, warnings = iceberg_schema.evolution(self._table, state, plan, shape)
            if not plan.needed or self._holder.put_schema(state, schema, properties):
                added = tuple(column.name for column in plan.added)
                return EvolveResult(False, added, tuple(plan.widened), (), warnings)
        raise TransientTargetError(
            "Other writers keep committing to the table, so the commit failed. It is tried again.",
            table=str(self._name),
        )

    def _fill_pending(self) -> tuple[str, ...]:
        """Write the recorded defaults of new columns into existing rows.

        Returns the names of these columns.
        """
        for _ in range(ATTEMPTS):
            state = self._holder.staging()
            self._present = self._table.columns(state)
            pending = iceberg_schema.pending_defaults(state)
            if not pending:
                return ()
            head = cast(int, state.head)
            statement = iceberg_schema.fill_statement(self._staging.branch, pending, self._present)
            snapshot = self._staging.run(statement, head)[0] if statement else head
            entry = replace(self._holder.held, snapshot=snapshot)
            if self._holder.publish(entry, on=head, forgetting=(iceberg_schema.BACKFILL,)):
                return tuple(name for name in pending if name in self._present)
        raise TransientTargetError(
            "Other writers keep committing to the table, so the commit failed. It is tried again.",
            table=str(self._name),
        )

    def _translating(self, translate: Callable[..., TidesinkError]) -> AbstractContextManager[None]:
        return translating(translate, self._name)


# Runs a statement on the staging branch whose newest snapshot is given. Returns the id of the new snapshot
# and the numbers in its summary.
Stage = Callable[[str, int], tuple[int, Mapping[str, int]]]
_Filled = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class IcebergShard:
    """The rows of one source table in an open Iceberg table that several source tables share."""

    shard: Shard
    table: JvmTable
    ledger: IcebergLedger
    holder: Holder

    def present(self, shape: TargetSchema) -> dict[str, str]:
        """Read the table's columns again, because other shards may have changed them. Returns Spark types by
        column name.

        Raises:
            SchemaRefusedError: a column's type cannot hold this shard's values. The message names the other
                shards.
        """
        state = self.table.state()
        present = self.table.columns(state)
        try:
            plan_evolution(present, shape)
        except SchemaRefusedError as exc:
            others = self.ledger.shards(state)
            raise also_of(exc, self.ledger.location, others) if others else exc from None
        return present

    def new_columns(self, shape: TargetSchema) -> tuple[TargetColumn, ...]:
        """Return the columns of ``shape`` that the shard's rows do not have yet."""
        return new_columns(shape, self.holder.held.known)

    def fill(self, shape: TargetSchema, branch: str, stage: Stage) -> _Filled:
        """Write the defaults of new columns into the shard's rows. Returns the columns' names, and warnings.

        ``branch``: the quoted name of the staging branch.
        ``stage``: runs a statement on the staging branch.

        Raises:
            TransientTargetError: other writers kept committing.
        """
        defaults, warnings = default_texts(self.new_columns(shape), shape)
        if not defaults:
            return (), warnings
        for _ in range(ATTEMPTS):
            state = self.holder.staging()
            statement = fill_statement(branch, defaults, self.table.columns(state), self.shard)
            head, held = cast(int, state.head), self.holder.held
            snapshot = stage(statement, head)[0] if statement else head
            entry = replace(held, snapshot=snapshot, known=known_after(held.known, shape))
            if self.holder.publish(entry, on=head):
                return tuple(defaults), warnings
        raise TransientTargetError(
            "Other writers keep committing to the table, so the commit failed. It is tried again.",
            table=str(self.ledger.table),
        )


def shard_of(
    shape: TargetSchema, table: JvmTable, ledger: IcebergLedger, holder: Holder
) -> IcebergShard | None:
    """Return the shard of a source table; None if its target table is not shared."""
    return IcebergShard(shape.shard, table, ledger, holder) if shape.shard else None
