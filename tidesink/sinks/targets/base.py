"""The contract of a target: ``Target``, ``TargetTable``, their capabilities, and checks before a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

from tidesink.errors import LOAD_AGAIN, SchemaRefusedError, TargetError
from tidesink.events import TableId, fold_name, folding
from tidesink.sinks.state.progress import Progress
from tidesink.typemap.render_sql import Spelling
from tidesink.typemap.target_schema import TableShape

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import Config, TargetSettings
    from tidesink.config.fields import ChangeKind
    from tidesink.config.targets import TargetFeature
    from tidesink.sinks.state.progress import StateStore
    from tidesink.sinks.targets.modes import HistoryNames
    from tidesink.typemap.target_schema import ShapeColumn


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
    """The abilities of a target. The contract tests check that it refuses everything else.

    Every target can add columns and widen integer and decimal columns.

    ``exactly_once``: progress and data become visible in one commit.
    ``features``: the target settings it supports (``TargetFeature``).
    ``rescales``: a decimal column can get more fraction digits, and an integer column can become decimal.
    ``nul_in_text``: text columns can store U+0000.
    ``rereads``: the target reads a batch's frame several times, so the frame must not come from Spark's
        cache.
    ``packed``: the target does not read the frame of a batch that has payloads.
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
    """A row's position in the source's order. ``writes`` is False for a delete, which sorts first."""

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
    ``kept``: columns whose stored value the target keeps.
    ``after_delete``: the stored values belong to a row that was deleted.
    ``sequence``: set if the batch is ``sequenced``.
    ``commit_ts``: set if the batch's mode is ``history``.
    """

    op: ReducedOp
    key: Mapping[str, Any]
    after: Mapping[str, Any] | None
    kept: tuple[str, ...] = ()
    after_delete: bool = False
    sequence: RowSequence | None = None
    commit_ts: int | None = None


def nothing(*_said: str) -> None:
    """Do nothing: the default of a batch's hooks."""


@dataclass(frozen=True)
class RowFormat:
    """Properties of a batch's rows that are known before the rows are read. ``ReducedBatch`` explains them.

    ``keeps``: True if rows may omit values.
    ``fewest``: approximate number of records in the batch's smallest range. Each range is staged separately.
    """

    shape: TableShape
    mode: TableMode = "upsert"
    sequenced: bool = False
    keeps: bool = False
    fewest: int = 0


class StagedPart(NamedTuple):
    """The rows that one attempt of a task staged at the target.

    ``failure``: why some rows are missing, in the target's own form; None if all rows are staged.
    ``files``: the files that hold the rows, in the target's own form.
    """

    attempt: int
    rows: int
    failure: Any = None
    files: tuple[Any, ...] = ()


class StagedRowsRefusedError(TargetError):
    """The staged rows of a batch cannot be committed in this form. Nothing of the batch was committed."""


class RowSink(Protocol):
    """Writes a task's rows to the target, inside the task. It is pickled to get there.

    The rows have the columns of ``ReducedBatch.frame``. All of them are read.
    """

    def __call__(self, rows: Iterable[pa.RecordBatch]) -> StagedPart:
        """Stage the rows and return the result. One attempt of a task may call this several times."""


@dataclass(frozen=True)
class ReducedBatch:
    """At most one row per key, ready to be merged.

    Exactly one of ``frame`` and ``rows`` is set, or neither if the rows are ``staged``.

    ``frame``: columns ``_op`` ('upsert' or 'delete'), ``key`` (a struct of the key columns) and ``after`` (a
        struct of the shape's columns, null for a delete). Message targets also pass on ``_commit_ts`` and
        ``PLACE_COLUMNS`` of the row's event, if the frame has them. Targets read the frame more than once, so
        its creator persists it.
    ``rows``: the same rows, for targets without Spark.
    ``upserts``, ``deletes``: number of rows of each kind.
    ``key_range``: least and greatest value per key column; None if unknown, and then nothing is pruned.
    ``truncates``: the batch is a single event that empties the table. It has no rows.
    ``keeps``: the frame also has ``_kept`` and ``_after_delete``. At least one row lists columns in ``_kept``
        whose stored value the target must keep. ``PLACE_COLUMNS`` are then present.
    ``lenient``: if there is no stored row to keep values from, write them as NULL instead of failing.
    ``mode``: what the table holds. The other descriptions are about ``upsert``. Under ``append`` the rows
        come from ``batch.change_log``: only upserts, whose keys are never in the target yet, so they are only
        inserted.
    ``sequenced``: the frame has ``_seq`` (``SEQUENCE_DDL``). A row that is not newer than the stored row
        changes nothing. A delete leaves a row with the key, the position and ``SOFT_DELETE_COLUMN``.
    ``history``: names of the validity columns, with mode ``history``. The batch then has one row per key and
        ``_commit_ts``, and no row older than ``since``. ``shape`` is the source's shape; the target was
        opened with ``history_shape`` of it. ``targets.modes`` describes how the rows are applied.
    ``reads``: with mode ``history``, the rows were read by a snapshot at their ``_commit_ts``. There are no
        deletes, and ``since`` is None, because a key's first stored row matters however old it is.
    ``on_delete``: under ``deletes: soft``, the columns that a delete writes too. Its ``after`` then has only
        these columns and is not null.
    ``payloads``: the same rows as Arrow IPC streams (``batch.tasks``), for targets whose tasks read them
        directly; None if several ranges had events of one key. They may have more columns than the shape,
        which targets ignore. If set, a target that is ``Capabilities.packed`` gets no frame.
    ``staged``: the tasks that reduced the rows also wrote them to the target (``StagingTable``). Each part
        comes from the attempt that counts.
    ``checkpointed``: the frame comes from blocks that Spark never recomputes (``Capabilities.rereads``). Each
        read returns the same rows, or fails.
    ``outside``: cuts leave this table out, so a database merges the batch at once (``targets.cuts``).
    ``on_staged``: called right before the commit: rows are staged or messages acknowledged, and no progress
        is recorded yet. If it raises, there is no commit.
    ``on_written``: called if a lake writes the batch as files, once the files hold the rows. If it is set, a
        small batch does these steps one by one.
    ``on_located``: called if a lake writes the batch as files, once the replaced rows are marked as deleted.
    ``on_left``: called if a lake does not write the batch as files, with what Spark does instead, and why.
    """

    shape: TableShape
    upserts: int
    deletes: int
    frame: DataFrame | None = None
    rows: Sequence[ReducedRow] | None = None
    key_range: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    delete_mode: DeleteMode = "hard"
    keeps: bool = False
    truncates: bool = False
    sequenced: bool = False
    mode: TableMode = "upsert"
    history: HistoryNames | None = None
    since: int | None = None
    reads: bool = False
    on_delete: tuple[str, ...] = ()
    lenient: bool = False
    payloads: DataFrame | None = None
    staged: tuple[StagedPart, ...] | None = None
    checkpointed: bool = False
    outside: bool = False
    on_staged: Callable[[], None] = field(default=nothing, compare=False)
    on_written: Callable[[], None] | None = field(default=None, compare=False)
    on_located: Callable[[], None] = field(default=nothing, compare=False)
    on_left: Callable[[str], None] = field(default=nothing, compare=False)

    @property
    def row_format(self) -> RowFormat:
        """Return the properties of the rows."""
        return RowFormat(self.shape, self.mode, self.sequenced, self.keeps)

    @property
    def empty(self) -> bool:
        """True if the batch has progress to commit but no row."""
        return self.upserts == 0 and self.deletes == 0 and not self.truncates

    def beside(self, nullable: Callable[[], Iterable[str]]) -> tuple[str, ...]:
        """Return target columns that are not in the shape and that a delete in source order must empty too.

        They belonged to the source or the config earlier, and a deleted row keeps no values of them.
        ``nullable`` looks up the target's columns that accept NULL; the other columns keep their values.
        """
        if not (self.sequenced and self.deletes and self.delete_mode == "hard"):
            return ()
        names = tuple(nullable())
        fold = folding(names, (column.name for column in self.shape.columns))
        kept = {fold(column.name) for column in self.shape.columns} | {SOFT_DELETE_COLUMN, SEQUENCE_COLUMN}
        return tuple(name for name in names if fold(name) not in kept)


@dataclass(frozen=True)
class Claim:
    """A worker's hold on a table, and the progress that the target has (None: nothing was ever applied)."""

    epoch: int
    progress: Progress | None


@dataclass(frozen=True)
class ApplyResult:
    """The outcome of one commit as numbers of rows, counted by the target.

    ``inserted``, ``updated``: rows written. In a history, ``inserted`` counts the versions that begin.
    ``deleted``: rows that existed and were removed or marked. In a history, deletes that ended a version.
    ``absent``: deletes whose row did not exist. In a history, deletes that ended no version.
    ``version``: the target's own name of the commit.
    ``stale``: rows of a ``sequenced`` batch that were skipped because the stored row is newer; in a history,
        events that were applied earlier.

    In a ``sequenced`` batch, rows that mark a delete count as inserted or updated.
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
        """Number of keys whose last change is now in the target, including deletes of absent rows."""
        return self.upserted + self.deleted + self.absent


@dataclass(frozen=True)
class EvolveResult:
    """The column names that ``evolve`` changed, and warnings for the user."""

    created: bool = False
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    backfilled: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """True if the target's schema changed."""
        return self.created or bool(self.added or self.widened or self.backfilled)


class SchemaGap(NamedTuple):
    """The difference between a target's columns and a shape.

    ``columns``: all columns of the target.
    ``added``: columns that the target lacks.
    ``widened``: present and wanted type per column, in the target's own type names.
    ``held``: present type per column, as Spark types.
    """

    columns: tuple[str, ...]
    added: tuple[str, ...] = ()
    widened: Mapping[str, tuple[str, str]] = {}
    held: Mapping[str, str] = {}


# Topic, partition and offset of the record that a reduced row came from.
PLACE_COLUMNS: Final = ("_topic", "_partition", "_offset")


def check_order(batch: ReducedBatch, columns: Mapping[str, str], *, table: TableId) -> None:
    """Refuse Kafka's order for a table ordered by the source: its marked deletes would count as rows.

    Raises:
        SchemaRefusedError: ``columns``, the target's own, show that the table is ordered by the source.
    """
    if SEQUENCE_COLUMN in columns and not batch.sequenced:
        raise SchemaRefusedError(
            f"The table is ordered by the source (it has the column {SEQUENCE_COLUMN}), but the config sets "
            f"`sequence_by: kafka`. Set `sequence_by: source` again, or {LOAD_AGAIN}.",
            table=str(table),
        )


def check_versions(batch: ReducedBatch) -> None:
    """Refuse a batch that a history cannot apply. No source with commit timestamps sends such a batch.

    Raises:
        TargetError: the batch empties the table, omits values, or does not name its validity columns.
    """
    wrong = "empties the table" if batch.truncates else "omits values" if batch.keeps else None
    if wrong is not None or batch.history is None:
        raise TargetError(
            f"A history table cannot apply a batch that {wrong or 'does not name its validity columns'}.",
            table=str(batch.shape.table),
        )


class TargetTable(Protocol):
    """One open table. Used by one thread at a time.

    The defaults here refuse to rename and drop columns, and ``close`` has nothing to close.
    """

    def claim(self) -> Claim:
        """Take the table's next epoch with a commit, then return what is applied.

        Raises:
            StaleProgressError: the table was restored or replaced by hand, or belongs to another pipeline or
                another source table.
            SchemaRefusedError: the rows were written under another key.
            ProgressError: progress exists but can no longer be read with certainty.
            TransientTargetError: other writers kept committing; try again.
        """

    def committed(self) -> Progress | None:
        """Return the progress that the target has now; None if nothing was ever applied.

        Raises:
            StaleProgressError, SchemaRefusedError, ProgressError, TransientTargetError: see ``claim``.
        """

    def gap(self, shape: TableShape) -> SchemaGap:
        """Return what ``evolve`` would do. Changes nothing, and may answer without asking the target.

        Raises:
            SchemaRefusedError: the change is not additive; names the column and both types.
        """

    def evolve(self, shape: TableShape) -> EvolveResult:
        """Add and widen columns so that the target can store ``shape``. Old rows get new columns' defaults.

        Raises:
            SchemaRefusedError: the change is not additive; names the column and both types.
        """

    def rename_column(self, old: str, new: str) -> None:
        """Rename a column. Does nothing if a column ``new`` exists already.

        Raises:
            SchemaRefusedError: the target cannot rename columns.
            StaleProgressError: another worker holds the table now.
        """
        raise SchemaRefusedError(f"This target cannot rename a column to {new}.", column=old)

    def drop_columns(self, names: Sequence[str]) -> None:
        """Drop columns with their values. Missing columns are not an error.

        Raises:
            SchemaRefusedError: the target cannot drop columns.
            StaleProgressError: another worker holds the table now.
        """
        raise SchemaRefusedError("This target cannot drop columns.", column=", ".join(names))

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        """Merge a batch and commit ``progress`` with it. ``progress.epoch`` must be the claimed one.

        Raises:
            StaleProgressError: another worker holds the table now; nothing was written.
            TransientTargetError: nothing was written; the same batch may be tried again.
            ValueNotStoredError: a row omits values that the target does not have; nothing was written.
            CommitUnknownError: ask ``committed()`` before anything else.
            TargetError: nothing was written, and the same batch would fail again.
        """

    def close(self) -> None:
        """Release the table's resources. Never fails."""
        return


class Collected(NamedTuple):
    """The outcome of ``collect``: deletes removed, deletes kept, and the oldest kept delete's commit_ts."""

    horizon: int
    removed: int
    kept: int
    oldest: int | None


@runtime_checkable
class SequencedTable(TargetTable, Protocol):
    """A table whose rows keep their position. Deleted rows keep it too, until they are collected."""

    def horizon(self) -> int | None:
        """Return the commit_ts up to which deletes may be forgotten; None if none ever were."""

    def collect(self, horizon: int) -> Collected:
        """Forget deletes up to a commit_ts. The horizon is raised first, so a crash loses nothing.

        Raises:
            StaleProgressError, TransientTargetError, CommitUnknownError, TargetError: see ``apply``.
        """


@runtime_checkable
class StagingTable(TargetTable, Protocol):
    """A table that can receive a batch's rows inside the tasks that reduce them.

    Rows are staged before the batch's outcome is known, and removed if the batch is not applied.
    """

    def row_sink(self, rows: RowFormat) -> RowSink | None:
        """Return the sink for the next batch's rows.

        None: the rows cannot or should not be staged before the table's columns have changed.

        Raises:
            TransientTargetError: the target does not answer.
        """

    def forget_staged(self, parts: Sequence[StagedPart] = ()) -> None:
        """Remove the staged rows of a batch that is not applied. Does nothing if there are none.

        ``parts``: the results that the sink returned, if they arrived.
        """


class Target(Protocol):
    """A system that stores tables."""

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of this target."""

    def open_table(
        self, shape: TableShape, *, pipeline: str, delete_mode: DeleteMode = "hard"
    ) -> TargetTable:
        """Open the table of ``shape``, and create it if missing.

        Raises:
            SchemaRefusedError: the existing table cannot store the shape.
            TransientTargetError: the target does not answer.
        """


class TableReader(Protocol):
    """Reads one existing table and changes nothing in it. Used by one thread at a time.

    ``session``: the Spark session of the returned frames. By default ``close`` has nothing to close.
    """

    session: SparkSession

    def columns(self) -> Mapping[str, str]:
        """Return the current columns as Spark types by name."""

    def committed(self) -> Progress | None:
        """Return the progress that the target has now; None if nothing was ever applied.

        Raises:
            StaleProgressError, SchemaRefusedError, ProgressError, TransientTargetError: see
                ``TargetTable.claim``.
        """

    def rows(self, columns: Sequence[ShapeColumn]) -> DataFrame:
        """Return the current rows of the source's table as a lazy frame of these columns, in their order.

        Rows that only mark a delete are left out.
        """

    def compared_rows(self, columns: Sequence[ShapeColumn]) -> DataFrame:
        """Return ``rows``, possibly with one more column at the end: ``ODD`` of ``spark.digests``."""
        return self.rows(columns)

    def spelling(self, name: str) -> Spelling | None:  # noqa: ARG002
        """Return how the target changes the text values of a column; None if it stores them unchanged."""
        return None

    def close(self) -> None:
        """Release the reader's resources. Never fails."""
        return


@runtime_checkable
class ReadableTarget(Target, Protocol):
    """A target whose rows can be read back."""

    def reader(self, shape: TableShape, *, pipeline: str, session: SparkSession) -> TableReader | None:
        """Return a reader of the table of ``shape``; None if the table does not exist.

        Raises:
            SchemaRefusedError: the target does not allow a table of this name.
            TransientTargetError: the target does not answer.
        """


class TargetModule(Protocol):
    """The names in a target's module. Only ``open_target`` and ``try_target`` connect to the target."""

    CAPABILITIES: Capabilities
    PREFLIGHT: PreflightChecks

    def open_target(self, config: Config, spark: SparkSession, store: StateStore) -> Target:
        """Open the target of a config.

        Raises:
            ConfigError: it cannot be opened as configured.
        """

    def place_of(self, settings: TargetSettings, table: TableId) -> str:
        """Return a table's location for display. Does not ask the target.

        Raises:
            SchemaRefusedError: the target does not allow a table of this name.
        """

    def try_target(self, settings: TargetSettings) -> str:
        """Connect to the target and return the result as text. Leaves no trace there.

        Raises:
            TidesinkError: the target cannot be used; names the reason and the next step.
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
    """Something that a target cannot do, and that a table may run into.

    ``kind``: for programs (``docs/cli.md``).
    ``text``: the same for every table, so that it is printed once.
    ``columns``: the table's affected columns; empty if the limit is about the whole table.
    """

    kind: LimitKind
    text: str
    columns: tuple[str, ...] = ()


class PreflightResult(NamedTuple):
    """Limits and warnings of one table. A warning: the target refuses the table until somebody acts."""

    limits: tuple[Limit, ...] = ()
    warnings: tuple[str, ...] = ()


class PreflightChecks(ABC):
    """Checks that a kind of target runs on its tables before the first run."""

    @abstractmethod
    def column_type(self, settings: Any, column: ShapeColumn) -> str:
        """Return a column's type in the target's own words; ``settings`` are the target's."""

    @abstractmethod
    def foresee(self, config: Config, shape: TableShape) -> PreflightResult:
        """Return what may happen to a table, apart from what the capabilities state.

        Raises:
            SchemaRefusedError: the target can never store such a table.
            ConfigError: the pipeline cannot store this table there.
        """

    def missing_grants(self, config: Config, tables: Iterable[TableId]) -> tuple[str, ...]:  # noqa: ARG002
        """Return the statements that grant what the target's user lacks for source tables. Asks the target.

        Raises:
            TidesinkError: the target does not answer.
        """
        return ()


class Reserved(NamedTuple):
    """Column names, in lower case, that a kind of table cannot have; ``keeper`` reserves them."""

    keeper: str
    names: frozenset[str]


def check_shape(shape: TableShape, reserved: Reserved | None = None) -> None:
    """Refuse a shape whose rows cannot be merged into a table.

    Raises:
        SchemaRefusedError: it has no key, a column with a reserved name, or one of tidesink's own columns.
    """
    check_key(shape)
    kept = [column.name for column in shape.columns if reserved and fold_name(column.name) in reserved.names]
    if reserved and kept:
        raise SchemaRefusedError(
            f"{reserved.keeper} reserves the column name {', '.join(kept)} and cannot merge into a table "
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


def check_key(shape: TableShape) -> None:
    """Refuse a shape without a key.

    Raises:
        SchemaRefusedError: the shape has no key.
    """
    if not shape.keys:
        raise SchemaRefusedError(
            "The table has no key to merge rows by. Set `keys` in the config to columns that identify a row, "
            "or set `mode: append` to keep every change. Recent versions of TiCDC can add TiDB's row keys to "
            "canal-json (`output-row-key`).",
            table=str(shape.table),
        )
