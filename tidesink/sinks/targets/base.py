"""The interfaces that every target implements: ``Target``, ``TargetTable``, and the checks before a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

from tidesink.errors import LOAD_AGAIN, SchemaRefusedError, TargetError
from tidesink.events import TableId, fold_name, folding
from tidesink.sinks.state.progress import Progress
from tidesink.typemap.render_sql import Spelling
from tidesink.typemap.target_schema import TargetSchema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import Config, TargetSettings
    from tidesink.config.fields import ChangeKind
    from tidesink.config.targets import TargetFeature
    from tidesink.sinks.laws.modes import HistoryNames
    from tidesink.sinks.spark.engine import SparkEngine
    from tidesink.sinks.state.progress import StateStore
    from tidesink.typemap.target_schema import TargetColumn


DeleteMode = Literal["hard", "soft"]
ReducedOp = Literal["upsert", "delete"]
TableMode = Literal["upsert", "append", "history"]

# Marks a row as deleted, under ``deletes: soft`` and under ``sequence_by: source``.
SOFT_DELETE_COLUMN = "_tidesink_deleted"
# Under ``sequence_by: source``: position of the change that last wrote or deleted the row. Positions are
# compared field by field, in this order. Null: the row was written before the table was ordered by source.
SEQUENCE_COLUMN: Final = "_tidesink_seq"
SEQUENCE_DDL: Final = "struct<source:array<bigint>,writes:boolean,partition:int,offset:bigint,index:int>"

# Columns that tidesink adds at a target.
OWN_COLUMNS: Final = (SOFT_DELETE_COLUMN, SEQUENCE_COLUMN)


@dataclass(frozen=True)
class Capabilities:
    """The abilities of a target. Contract tests check that it raises an error for a change it cannot make.

    Every target can add columns and widen integer and decimal columns.

    ``exactly_once``: a batch's rows and its progress become visible in one commit.
    ``features``: the target settings it supports (``TargetFeature``).
    ``rescales``: a decimal column can get more fraction digits, and an integer column can become decimal.
    ``nul_in_text``: text columns can store U+0000.
    ``rereads``: the target reads a batch's frame several times and needs the same rows each time. The frame
        must not come from Spark's cache, which Spark may recompute.
    ``packed``: for a batch with ``payloads`` (Arrow IPC streams), the target reads only these, not the frame.
    ``caveats``: per kind of change, a requirement that some servers or tables do not meet. ``tidesink plan``
        reports unmet requirements before the run (``sinks.preflight``).
    """

    name: str
    exactly_once: bool
    features: frozenset[TargetFeature]
    rescales: bool = True
    nul_in_text: bool = True
    rereads: bool = False
    packed: bool = False
    caveats: Mapping[ChangeKind, str] = field(default_factory=dict)


class RowSequence(NamedTuple):
    """The position of a row's last event in the source's order. Positions are compared field by field.

    ``source``: the numbers that the source gives the event, such as a commit_ts or an LSN.
    ``writes``: False for a delete, which sorts before a write at the same source position.
    ``partition``, ``offset``, ``index``: the record in Kafka, and the event's index in the record.
    """

    source: tuple[int, ...]
    writes: bool
    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # the field hides tuple.index, which nobody wants here


class ReducedRow(NamedTuple):
    """One key of a reduced batch, for targets that read rows instead of a frame.

    Values have the Python types that ``typemap.values.target_reader`` returns: dates and timestamps, not
    text.

    ``after``: the row's column values; None for a delete.
    ``kept``: columns that the event omits. The target keeps their stored values.
    ``after_delete``: the batch also deletes the stored row before this event, so its values must not be kept.
    ``sequence``: the row's position, if the batch is ``sequenced``; else None.
    ``commit_ts``: the commit_ts of the row's event, if the batch's mode is ``history``; else None.
    """

    op: ReducedOp
    key: Mapping[str, Any]
    after: Mapping[str, Any] | None
    kept: tuple[str, ...] = ()
    after_delete: bool = False
    sequence: RowSequence | None = None
    commit_ts: int | None = None


def nothing(*_said: str) -> None:
    """Do nothing. This is the default of the callbacks of ``ApplyHooks``."""


@dataclass(frozen=True)
class ApplyOptions:
    """How a target applies a batch: the settings of the table, and what the worker decided for the batch.

    ``mode``: the table's mode. Under ``upsert`` the rows are merged by key. Under ``append`` the rows come
        from ``batch.change_log``: all of them are upserts with new keys, so they are only inserted. Under
        ``history`` each row begins or ends a version; ``laws.modes`` describes the rules.
    ``delete_mode``: whether a delete removes the stored row (``hard``) or marks it as deleted (``soft``).
    ``on_delete``: under ``deletes: soft``, the columns that a delete updates in addition to the deletion
        mark. The ``after`` of a delete then has only these columns and is not null.
    ``history``: names of the validity columns, with mode ``history``; else None.
    ``reads``: with mode ``history``, the rows were read by a snapshot at their ``_commit_ts``. The batch has
        no deletes, and its ``since`` is None, because a key's first stored row matters however old it is.
    ``lenient``: True to write omitted values as NULL if the target does not have them, instead of raising an
        error.
    ``outside``: True if cuts exclude the table now (``targets.cuts``). A database then merges the batch at
        once, instead of gathering it for the next cut.
    """

    mode: TableMode = "upsert"
    delete_mode: DeleteMode = "hard"
    on_delete: tuple[str, ...] = ()
    history: HistoryNames | None = None
    reads: bool = False
    lenient: bool = False
    outside: bool = False


@dataclass(frozen=True)
class ApplyHooks:
    """Callbacks by which a target reports its steps while it applies a batch.

    ``on_staged``: called right before the commit. Rows are then staged or messages acknowledged, but no
        progress is recorded. If the callback raises, nothing is committed.
    ``on_written``: called if a lake writes the batch as files, when all rows are in the files. If it is set,
        a lake also runs the steps of a small batch one after the other instead of in one Spark job.
    ``on_located``: called if a lake writes the batch as files, when the replaced rows are marked as deleted.
    ``on_left``: called if a lake does not write the batch as files. Its argument names the Spark statement
        that the lake runs instead, and the reason.
    """

    on_staged: Callable[[], None] = nothing
    on_written: Callable[[], None] | None = None
    on_located: Callable[[], None] = nothing
    on_left: Callable[[str], None] = nothing


@dataclass(frozen=True)
class RowFormat:
    """Properties of a batch's rows that are known before the rows are read.

    ``shape`` and ``sequenced`` have the same meaning as in ``ReducedBatch``, and ``mode`` as in
    ``ApplyOptions``.

    ``keeps``: True if rows may omit column values.
    ``fewest``: approximate number of records in the batch's smallest offset range. One task stages the rows
        of one range.
    """

    shape: TargetSchema
    mode: TableMode = "upsert"
    sequenced: bool = False
    keeps: bool = False
    fewest: int = 0


class StagedPart(NamedTuple):
    """The rows that one attempt of a Spark task staged: it wrote them to the target before the commit.

    ``attempt``: Spark's id of the attempt.
    ``rows``: number of staged rows.
    ``failure``: an object of the target that describes why rows are missing; None if all rows are staged.
    ``files``: objects of the target that describe the files with the rows.
    """

    attempt: int
    rows: int
    failure: Any = None
    files: tuple[Any, ...] = ()


class StagedRowsRefusedError(TargetError):
    """The target cannot commit a batch from its staged rows. Nothing of the batch was committed."""


class RowSink(Protocol):
    """Writes a task's rows to the target. It is pickled and runs inside the Spark task.

    The rows have the columns of ``ReducedBatch.frame``. The sink reads the iterator to its end.
    """

    def __call__(self, rows: Iterable[pa.RecordBatch]) -> StagedPart:
        """Stage rows, and return their number and files. A task attempt may call this several times."""


class TaskRows(Protocol):
    """Rows that tasks produced. More tasks run where these rows are: in Spark, or in this process."""

    def run(
        self,
        task: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]],
        ddl: str,
        *,
        tasks: int | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a task on the rows, and return the rows that it yields, as tuples.

        ``task``: maps record batches of these rows to record batches with the columns of ``ddl``. It reads
            its input to the end. It is pickled if it runs in another process.
        ``tasks``: the maximum number of parts into which the rows are divided, each with a task of its own.
            None: as they are divided now.

        Raises:
            TidesinkError: the task failed, in this process. If it runs in Spark, Spark's exception is raised.
        """

    def in_session(self, session: SparkSession) -> TaskRows:
        """Return the same rows. If they are in Spark, tasks then run with the settings of ``session``."""


@runtime_checkable
class RowsHere(TaskRows, Protocol):
    """Rows in this process. ``batches``: the record batches that ``run`` passes to a task."""

    batches: Sequence[pa.RecordBatch]


@dataclass(frozen=True)
class ReducedBatch:
    """A batch reduced to at most one row per key, ready to be merged into the target.

    Either ``make_frame`` or ``rows`` is set. Neither is set if the rows are in ``payloads`` or already
    ``staged``.

    ``shape``: columns and key of the rows. Under ``mode: history`` they are those of the source table; the
        target was opened with ``history_shape`` of it.
    ``upserts``, ``deletes``: number of rows of each kind.
    ``make_frame``: returns ``frame``: columns ``_op`` ('upsert' or 'delete'), ``key`` (a struct of the key
        columns) and ``after`` (a struct of the columns in ``shape``, null for a delete). Message targets also
        send ``_commit_ts`` and ``PLACE_COLUMNS`` of the row's event, if the frame has them. Under ``mode:
        history`` the frame has one row per key and ``_commit_ts``. Targets read the frame more than once, so
        its creator persists it.
    ``checkpointed``: the frame comes from blocks that Spark never recomputes (``Capabilities.rereads``). Each
        read returns the same rows, or fails.
    ``rows``: the batch's rows as Python objects, for targets without Spark.
    ``payloads``: the rows as Arrow IPC streams (``batch.tasks``), for targets whose tasks read them directly.
        Their columns are ``payload`` and ``error`` (``spark.payloads.unpack``). None if several offset ranges
        had events of one key. Targets ignore columns of the payloads that the shape does not have. If set, a
        target with ``Capabilities.packed`` gets no frame.
    ``staged``: results of the tasks that reduced the rows and also wrote them to the target
        (``StagingTable``). If a task had several attempts, its part comes from the attempt whose result Spark
        returned.
    ``key_range``: least and greatest value per key column, to skip files without these keys. A bound of None
        is unknown, and then no file is skipped.
    ``keeps``: True if some rows omit values. The frame then has more columns: ``_kept`` lists the columns of
        a row whose stored values the target must keep. ``_after_delete`` is true if the row was deleted
        earlier in the batch. ``PLACE_COLUMNS`` are topic, partition and offset of the row's record.
    ``sequenced``: the table is ordered by the source. The frame then has ``_seq`` (``SEQUENCE_DDL``), the
        row's position. The target skips a row whose position is not newer than the stored row's. A delete
        leaves a row with the key, the position and ``SOFT_DELETE_COLUMN``.
    ``since``: under ``mode: history``, the least commit_ts of the rows: stored versions that ended before it
        do not matter. None if all stored versions may matter.
    ``truncates``: the batch is a single TRUNCATE event, which empties the table. It has no rows.
    ``how``: how the target applies the rows.
    ``hooks``: callbacks by which the target reports its steps.
    """

    shape: TargetSchema
    upserts: int
    deletes: int
    make_frame: Callable[[], DataFrame] | None = field(default=None, compare=False)
    checkpointed: bool = False
    rows: Sequence[ReducedRow] | None = None
    payloads: TaskRows | None = None
    staged: tuple[StagedPart, ...] | None = None
    key_range: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    keeps: bool = False
    sequenced: bool = False
    since: int | None = None
    truncates: bool = False
    how: ApplyOptions = ApplyOptions()
    hooks: ApplyHooks = field(default=ApplyHooks(), compare=False)

    @cached_property
    def frame(self) -> DataFrame | None:
        """The rows as a Spark frame, which is made when a target asks for it first; None if there is none."""
        return None if self.make_frame is None else self.make_frame()

    @property
    def row_format(self) -> RowFormat:
        """The properties of the batch's rows that a writer must know before it reads them."""
        return RowFormat(self.shape, self.how.mode, self.sequenced, self.keeps)

    @property
    def empty(self) -> bool:
        """True if the batch only commits progress, because it has no rows and no TRUNCATE."""
        return self.upserts == 0 and self.deletes == 0 and not self.truncates

    def beside(self, nullable: Callable[[], Iterable[str]]) -> tuple[str, ...]:
        """Return the target columns that the batch's shape does not have and that a delete must set to NULL.

        Such columns store values of columns that the source or the config no longer has. The result is empty
        except for hard deletes with ``sequence_by: source``, which keep the row as a tombstone.

        ``nullable``: returns the target's columns that accept NULL. Only these are returned.
        """
        if not (self.sequenced and self.deletes and self.how.delete_mode == "hard"):
            return ()
        names = tuple(nullable())
        fold = folding(names, (column.name for column in self.shape.columns))
        written_names = {fold(column.name) for column in self.shape.columns} | {
            SOFT_DELETE_COLUMN,
            SEQUENCE_COLUMN,
        }
        return tuple(name for name in names if fold(name) not in written_names)


@dataclass(frozen=True)
class Claim:
    """The result of claiming a table.

    ``epoch``: the worker's epoch. Workers with a lower epoch can no longer commit to the table.
    ``progress``: the progress that the target has recorded; None if no batch was ever applied.
    """

    epoch: int
    progress: Progress | None


@dataclass(frozen=True)
class ApplyResult:
    """Row counts of one commit, as the target counted them.

    ``inserted``, ``updated``: rows written. In a history, ``inserted`` counts the versions that begin.
    ``deleted``: rows that existed and were removed or marked as deleted. In a history, deletes that ended a
        version.
    ``absent``: deletes whose row did not exist. In a history, deletes that ended no version.
    ``version``: the target's name of the commit, such as a snapshot id.
    ``stale``: rows of a ``sequenced`` batch that were skipped because the stored row is newer; in a history,
        events that an earlier batch applied already.

    In a ``sequenced`` batch, deletes are written as marked rows and count as inserted or updated.
    """

    inserted: int
    updated: int
    deleted: int
    absent: int
    version: str
    stale: int = 0

    @property
    def upserted(self) -> int:
        """Number of rows inserted or updated."""
        return self.inserted + self.updated

    @property
    def applied(self) -> int:
        """Number of the batch's keys whose change was applied, including deletes of absent rows."""
        return self.upserted + self.deleted + self.absent


@dataclass(frozen=True)
class EvolveResult:
    """The column changes that ``TargetTable.evolve`` made, as column names by kind, and warnings for the
    user.

    ``created``: the table was created.
    ``backfilled``: columns whose default was written into existing rows.
    """

    created: bool = False
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    backfilled: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """True if ``evolve`` changed the target's columns or created the table."""
        return self.created or bool(self.added or self.widened or self.backfilled)


class SchemaGap(NamedTuple):
    """The difference between the columns that a target table has and those that it should have (a
    ``TargetSchema``).

    ``columns``: all columns of the target.
    ``added``: columns that the target lacks.
    ``widened``: current and wanted type of each column to widen, in the target's own type names.
    ``held``: current Spark type of each column of the target.
    """

    columns: tuple[str, ...]
    added: tuple[str, ...] = ()
    widened: Mapping[str, tuple[str, str]] = {}
    held: Mapping[str, str] = {}


# Topic, partition and offset of the record that a reduced row came from.
PLACE_COLUMNS: Final = ("_topic", "_partition", "_offset")


def check_order(batch: ReducedBatch, columns: Mapping[str, str], *, table: TableId) -> None:
    """Check that a batch without positions is not merged into a table that stores positions.

    A table with ``sequence_by: source`` stores them. It also keeps deleted rows with a mark, which the merge
    would treat as current rows.

    ``columns``: the target's columns and their types.

    Raises:
        SchemaRefusedError: the target has the column ``_tidesink_seq``, but the batch is not ``sequenced``.
    """
    if SEQUENCE_COLUMN in columns and not batch.sequenced:
        raise SchemaRefusedError(
            f"The table is ordered by the source (it has the column {SEQUENCE_COLUMN}), but the config sets "
            f"`sequence_by: kafka`. Set `sequence_by: source` again, or {LOAD_AGAIN}.",
            table=str(table),
        )


def check_versions(batch: ReducedBatch) -> None:
    """Check that a table with ``mode: history`` can apply a batch.

    No batch of a source with commit timestamps fails this check.

    Raises:
        TargetError: the batch empties the table, omits values, or does not name its validity columns.
    """
    wrong = "empties the table" if batch.truncates else "omits values" if batch.keeps else None
    if wrong is not None or batch.how.history is None:
        raise TargetError(
            f"A history table cannot apply a batch that {wrong or 'does not name its validity columns'}.",
            table=str(batch.shape.table),
        )


class TargetTable(Protocol):
    """An open table of a target. It is used by one thread at a time.

    ``rename_column``, ``drop_columns`` and ``close`` have defaults for targets that cannot rename or drop
    columns, or have nothing to close.
    """

    def claim(self) -> Claim:
        """Commit the table's next epoch, and return it with the applied progress.

        Workers with an older epoch can then no longer write.

        Raises:
            StaleProgressError: the table was restored or replaced by hand, or belongs to another pipeline or
                another source table.
            SchemaRefusedError: the stored rows were written under another key.
            ProgressError: the table has progress, but it can no longer be read with certainty.
            TransientTargetError: commits of other writers prevented the claim; try again.
        """

    def committed(self) -> Progress | None:
        """Return the progress that the target has now; None if no batch was ever applied.

        A batch that is being applied does not count. So the ledger is read outside the batch's transaction,
        which may be open: ``hooks.on_staged`` may call this method.

        Raises:
            StaleProgressError, SchemaRefusedError, ProgressError, TransientTargetError: for the same reasons
                as ``claim``.
        """

    def gap(self, shape: TargetSchema) -> SchemaGap:
        """Return the column changes that ``evolve`` would make for ``shape``. May use cached columns of the
        target.

        Raises:
            SchemaRefusedError: a column cannot be widened to its type in ``shape``. The message names the
                column and both types.
        """

    def evolve(self, shape: TargetSchema) -> EvolveResult:
        """Add and widen the target's columns so that it can store ``shape``.

        Existing rows get the default of each new column.

        Raises:
            SchemaRefusedError: a column cannot be widened to its type in ``shape``. The message names the
                column and both types.
        """

    def rename_column(self, old: str, new: str) -> None:
        """Rename a column. Does nothing if a column ``new`` exists already.

        Raises:
            SchemaRefusedError: the target cannot rename columns.
            StaleProgressError: another worker holds the table now.
        """
        raise SchemaRefusedError(
            f"This target cannot rename a column to {new}. Set `rename` under `schema-changes` to `ignore`.",
            column=old,
        )

    def drop_columns(self, names: Sequence[str]) -> None:
        """Drop columns with their values. Missing columns are not an error.

        Raises:
            SchemaRefusedError: the target cannot drop columns.
            StaleProgressError: another worker holds the table now.
        """
        raise SchemaRefusedError(
            "This target cannot drop columns. Set `drop` under `schema-changes` to `ignore`.",
            column=", ".join(names),
        )

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        """Merge a batch into the table and commit ``progress`` with it. Returns the row counts.

        ``progress.epoch`` must be the epoch that ``claim`` returned.

        Raises:
            StaleProgressError: another worker holds the table now; nothing was written.
            TransientTargetError: nothing was written; the same batch may be tried again.
            ValueNotStoredError: a row omits values that the target does not have; nothing was written.
            CommitUnknownError: the commit may or may not have happened. Call ``committed`` to find out.
            TargetError: nothing was written, and the same batch would fail again.
        """

    def close(self) -> None:
        """Release the table's resources. Never fails."""
        return


class Collected(NamedTuple):
    """The result of ``SequencedTable.collect``.

    ``horizon``: commit_ts up to which tombstones are removed.
    ``removed``: number of tombstones removed by this call.
    ``kept``: number of tombstones still in the table.
    ``oldest``: commit_ts of the oldest tombstone still in the table, or None.
    """

    horizon: int
    removed: int
    kept: int
    oldest: int | None


@runtime_checkable
class SequencedTable(TargetTable, Protocol):
    """A target table whose rows store their position in the source's order (``sequence_by: source``).

    A deleted row stays as a tombstone with its key and position until ``collect`` removes it.
    """

    def horizon(self) -> int | None:
        """Return the commit_ts up to which tombstones may be missing; None if none were ever removed."""

    def collect(self, horizon: int) -> Collected:
        """Remove the tombstones of deletes up to the commit_ts ``horizon``.

        The new horizon is recorded first, so a crash never leaves tombstones missing above the recorded one.

        Raises:
            StaleProgressError, TransientTargetError, CommitUnknownError, TargetError: for the same reasons as
                ``apply``.
        """


@runtime_checkable
class StagingTable(TargetTable, Protocol):
    """A table to which the Spark tasks that reduce a batch can write its rows directly.

    The rows are staged before the batch is committed. They are removed if the batch is not applied.
    """

    def row_sink(self, rows: RowFormat) -> RowSink | None:
        """Return the sink for the next batch's rows.

        Returns None if the rows cannot be staged, or if the table's columns must change first.

        Raises:
            TransientTargetError: the target does not answer.
        """

    def forget_staged(self, parts: Sequence[StagedPart] = ()) -> None:
        """Remove the staged rows, if any, of a batch that is not applied.

        ``parts``: the results that Spark returned from the tasks that staged rows.
        """


@runtime_checkable
class LoadingTable(TargetTable, Protocol):
    """A table that can load rows of this process in the transaction that commits them."""

    def loads_here(self) -> bool:
        """Return True if ``apply`` loads a batch with ``RowsHere``. Tasks need not stage such rows."""


class Target(Protocol):
    """A system that stores tables, such as a lake, a database or a message broker."""

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of this target, such as dropping a column."""

    def open_table(
        self, shape: TargetSchema, *, pipeline: str, delete_mode: DeleteMode = "hard"
    ) -> TargetTable:
        """Open the target table for rows with the columns and key of ``shape``, and create it if missing.

        Raises:
            SchemaRefusedError: the existing table cannot store the shape.
            TransientTargetError: the target does not answer.
        """

    def close(self) -> None:
        """Close the idle connections of this process to the target, because the worker ends. Never fails."""
        return


class TableReader(Protocol):
    """Reads an existing table without changing it. It is used by one thread at a time.

    ``session``: the Spark session in which the returned frames are created.
    """

    session: SparkSession

    def columns(self) -> Mapping[str, str]:
        """Return the table's current columns: Spark type by name."""

    def committed(self) -> Progress | None:
        """Return the progress that the target has now; None if no batch was ever applied.

        Raises:
            StaleProgressError, SchemaRefusedError, ProgressError, TransientTargetError: for the same reasons
                as ``TargetTable.claim``.
        """

    def rows(self, columns: Sequence[TargetColumn]) -> DataFrame:
        """Return the source table's current rows at the target as a lazy frame with ``columns``, in order.

        The frame has no tombstones and no soft-deleted rows.
        """

    def compared_rows(self, columns: Sequence[TargetColumn]) -> DataFrame:
        """Return the frame of ``rows`` in the form that ``tidesink diff`` compares with the source.

        It may have one more column at the end, ``spark.digests.ODD``: the texts of values that do not fit
        their column's Spark type.
        """
        return self.rows(columns)

    def spelling(self, name: str) -> Spelling | None:  # noqa: ARG002
        """Return how the target changes the texts of a column: ``digits`` (zeros at the end of a fraction),
        ``json`` (spaces and the order of members), or None for no change.
        """
        return None

    def close(self) -> None:
        """Release the reader's resources. Never fails."""
        return


@runtime_checkable
class ReadableTarget(Target, Protocol):
    """A target whose stored rows can be read, for example to compare them with the source."""

    def reader(self, shape: TargetSchema, *, pipeline: str, session: SparkSession) -> TableReader | None:
        """Return a reader of the target table whose columns and key ``shape`` describes; None if it does not
        exist.

        Raises:
            SchemaRefusedError: the target does not allow a table of this name.
            TransientTargetError: the target does not answer.
        """


class TargetModule(Protocol):
    """The interface of a target's module: the functions and constants that it must define.

    Only ``open_target`` and ``try_target`` connect to the target.
    """

    CAPABILITIES: Capabilities
    PREFLIGHT: PreflightChecks

    def open_target(self, config: Config, spark: SparkEngine, store: StateStore) -> Target:
        """Open the target that the config describes.

        Raises:
            ConfigError: the target cannot be opened as configured.
        """

    def place_of(self, settings: TargetSettings, table: TableId) -> str:
        """Return a table's location for display, from the settings only.

        Raises:
            SchemaRefusedError: the target does not allow a table of this name.
        """

    def try_target(self, settings: TargetSettings) -> str:
        """Connect to the target and return a text about it for display. Changes nothing there.

        Raises:
            TidesinkError: the target cannot be used. The message names the reason and the next step.
        """


LimitKind = Literal[
    "exactly-once",
    "keeps-rows",
    "merge",
    "readers",
    "nul-in-text",
    "row-length",
    "key-length",
    "truncate",
    "left-out-values",
    "rescale",
    "shared",
    "drop",
    "rename",
    "widen",
    "type",
    "key",
]


class Limit(NamedTuple):
    """A limit of the target that may affect a table.

    ``kind``: the stable name of the limit in JSON output (``docs/cli.md``).
    ``text``: the explanation for the user. It does not name the table, so that it is printed only once.
    ``columns``: the table's affected columns; empty if the limit affects the whole table.
    """

    kind: LimitKind
    text: str
    columns: tuple[str, ...] = ()


class PreflightResult(NamedTuple):
    """The result of the checks of one table.

    ``limits``: limits of the target that may affect the table.
    ``warnings``: problems that the user must solve before the target accepts the table.
    """

    limits: tuple[Limit, ...] = ()
    warnings: tuple[str, ...] = ()


class PreflightChecks(ABC):
    """Checks of a target type's tables, for ``tidesink plan`` and before a table is first written."""

    @abstractmethod
    def column_type(self, settings: Any, column: TargetColumn) -> str:
        """Return a column's type as the target names it; ``settings`` are the target's settings."""

    @abstractmethod
    def foresee(self, config: Config, shape: TargetSchema) -> PreflightResult:
        """Return a table's limits and warnings at the target, except those that follow from its
        ``Capabilities`` and those of ``omission_limits``.

        Raises:
            SchemaRefusedError: the target can never store such a table.
            ConfigError: the pipeline cannot store this table there.
        """

    def omission_limits(self, config: Config, shape: TargetSchema) -> tuple[Limit, ...]:  # noqa: ARG002
        """Return the further limits of a table if the source may omit values that did not change."""
        return ()

    def missing_grants(self, config: Config, tables: Iterable[TableId]) -> tuple[str, ...] | None:  # noqa: ARG002
        """Return the SQL statements that grant the target's user its missing privileges for source tables.

        Connects to the target. A target without privileges returns None.

        Raises:
            TidesinkError: the target does not answer.
        """
        return None


class Reserved(NamedTuple):
    """Column names, in lower case, that a table format does not allow; ``keeper`` is the format's name."""

    keeper: str
    names: frozenset[str]


def check_shape(shape: TargetSchema, reserved: Reserved | None = None) -> None:
    """Check that rows with the columns and key of ``shape`` can be merged into a table.

    Raises:
        SchemaRefusedError: ``shape`` has no key, or a column with a name that the format or tidesink
            reserves.
    """
    check_key(shape)
    clashing = [
        column.name for column in shape.columns if reserved and fold_name(column.name) in reserved.names
    ]
    if reserved and clashing:
        raise SchemaRefusedError(
            f"{reserved.keeper} reserves the column name {', '.join(clashing)} and cannot merge into a table "
            "with such a column. Rename the column at the source.",
            table=str(shape.table),
        )
    own = [name for name in OWN_COLUMNS if name in shape.by_name]
    if own:
        raise SchemaRefusedError(
            f"The source has a column {own[0]}, but tidesink adds a column of that name. Rename the source's "
            "column.",
            table=str(shape.table),
        )


def check_key(shape: TargetSchema) -> None:
    """Check that a table has a key to merge rows by.

    Raises:
        SchemaRefusedError: ``shape`` has no key.
    """
    if not shape.keys:
        raise SchemaRefusedError(
            "The table has no key to merge rows by. Set `keys` in the config to columns that identify a row, "
            "or set `mode: append` to keep every change. Recent versions of TiCDC can add TiDB's row keys to "
            "canal-json (`output-row-key`).",
            table=str(shape.table),
        )
