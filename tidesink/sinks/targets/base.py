"""What a target promises: ``Target``, ``TargetTable``, capabilities, and refusals before a run."""

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

# The column that marks a row as deleted, under ``deletes: soft`` and under ``sequence_by: source``.
SOFT_DELETE_COLUMN = "_tidesink_deleted"
# Under ``sequence_by: source`` the position of the change a row is of, a deleted one's too; its members
# are compared in this order. Null: the row was written before the table was ordered so.
SEQUENCE_COLUMN: Final = "_tidesink_seq"
SEQUENCE_DDL: Final = "struct<source:array<bigint>,writes:boolean,partition:int,offset:bigint,index:int>"

# Columns at a target that are not the source's.
OWN_COLUMNS: Final = (SOFT_DELETE_COLUMN, SEQUENCE_COLUMN)


@dataclass(frozen=True)
class Capabilities:
    """What a target can do; the contract tests assert the stated refusal of what it cannot.

    Every target adds columns, and lets an integer or decimal column grow.

    ``exactly_once``: progress and data become visible in one commit. ``features``: its settings'
    (``TargetFeature``).
    ``rescales``: a decimal column can take more digits behind the point, and an integer one become decimal.
    ``nul_in_text``: a text can hold U+0000.
    ``rereads``: a batch's frame is read several times and must not come from Spark's cache. ``packed``: of a
    batch with payloads the frame is not looked at.
    ``caveats``: what a kind of change needs that not every server or table has. ``tidesink plan`` says before
    the run what is not there (``sinks.preflight``).
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
    """A row's place in the source's order; ``writes`` is false for a delete, which comes first."""

    source: tuple[int, ...]
    writes: bool
    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # the field hides tuple.index, which nobody wants here


class ReducedRow(NamedTuple):
    """One key of a reduced batch, for targets that take rows. ``after`` is None for a delete.

    Values are what ``typemap.values.target_reader`` gives: dates and timestamps, not their text. The
    target keeps its values of ``kept`` columns; ``after_delete``: its row was deleted, so they are stale.
    ``sequence`` is given where the batch is ``sequenced``, ``commit_ts`` where its mode is ``history``.
    """

    op: ReducedOp
    key: Mapping[str, Any]
    after: Mapping[str, Any] | None
    kept: tuple[str, ...] = ()
    after_delete: bool = False
    sequence: RowSequence | None = None
    commit_ts: int | None = None


def nothing(*_said: str) -> None:
    """What most batches do at their steps."""


@dataclass(frozen=True)
class RowFormat:
    """What the rows of a batch are like, which is known before they are read; in ``ReducedBatch``'s words.

    ``keeps``: rows may leave out values, whether some row does or not. ``fewest``: about how many records the
    shortest of the batch's ranges has, each of which is brought by itself.
    """

    shape: TableShape
    mode: TableMode = "upsert"
    sequenced: bool = False
    keeps: bool = False
    fewest: int = 0


class StagedPart(NamedTuple):
    """The rows that one attempt of a task brought to the target.

    ``failure``: why they are not all there, in the target's own words; None: they are. ``files``: those that
    have them, likewise.
    """

    attempt: int
    rows: int
    failure: Any = None
    files: tuple[Any, ...] = ()


class StagedRowsRefusedError(TargetError):
    """A batch's rows are at the target in a form in which they cannot be committed: nothing of it was."""


class RowSink(Protocol):
    """Brings the rows of a task to the target, in the task; travels there by pickle.

    The rows have the columns of ``ReducedBatch.frame``, and are read to their end.
    """

    def __call__(self, rows: Iterable[pa.RecordBatch]) -> StagedPart:
        """What became of the rows; may be called several times in one attempt of a task."""


@dataclass(frozen=True)
class ReducedBatch:
    """At most one row a key, ready to be merged.

    ``frame`` has the columns ``_op`` ('upsert' or 'delete'), ``key`` (a struct of the key columns) and
    ``after`` (a struct of the shape's columns, null for a delete). Targets of messages also pass on
    ``_commit_ts`` and ``PLACE_COLUMNS`` of the event a row came from, where they are there. It
    is read more than once: whoever makes it persists it. ``rows`` are the same for targets without
    Spark; exactly one of the two is given, and neither where the rows are ``staged``.
    ``upserts`` and ``deletes`` count the rows of each kind, ``key_range`` holds the least and the
    greatest value of key columns, None where they are not known (nothing is pruned then).
    ``truncates``: the batch is one event that empties the table; it has no rows.
    ``keeps``: the frame has ``_kept`` and ``_after_delete`` besides, and some row has columns in ``_kept``
    whose value the target must keep; ``PLACE_COLUMNS`` then say where it came from.
    ``lenient``: where there is no row whose values could be kept, they are written as NULL.
    ``mode``: what the table holds; what is said above is of ``upsert``. Under ``append`` the rows are those
    of ``batch.change_log``: upserts alone, of keys that are never there yet, to be inserted only.
    ``sequenced``: the frame has ``_seq`` (``SEQUENCE_DDL``). A row that is not newer than what is stored
    leaves it alone; a delete leaves the key, its position and ``SOFT_DELETE_COLUMN``.
    ``history``: with mode ``history``, the names of the columns of time. The batch then has a row for each
    key and ``_commit_ts``, none before ``since``; ``shape`` is the source's, and the target was opened with
    ``history_shape`` of it. What becomes of the rows is said in ``targets.modes``.
    ``reads``: with mode ``history``, the rows are what a snapshot read at their ``_commit_ts``; there are no
    deletes, and ``since`` is None: of each key the first stored row matters, however old.
    ``on_delete``: under ``deletes: soft`` the columns that a delete writes too. Its ``after`` is then not
    null, and has these columns alone.
    ``payloads``: the same rows as Arrow IPC streams (``batch.tasks``), for targets whose tasks take them as
    they are; None where several ranges had events of one key. They may have columns beside those of the
    shape, of which a target takes no note. Where they are given, a target that is ``Capabilities.packed`` is
    given no frame.
    ``staged``: the tasks that reduced the rows brought them to the target (``StagingTable``), each part by an
    attempt that counts.
    ``checkpointed``: the frame comes from blocks that Spark never makes again (``Capabilities.rereads``):
    each read of it has the same rows, or fails.
    ``outside``: cuts leave the table out, so that a database merges the batch at once (``targets.cuts``).
    ``on_staged`` is called when all that comes before the commit is done: rows are staged, messages were
    acknowledged, and nothing says so yet. If it raises, there is no commit.
    ``on_written``, ``on_located``: called where a lake takes the batch as files, when files have its rows and
    when the rows that it replaces are marked. With ``on_written`` a small batch takes these steps one by one.
    ``on_left``: called where a lake does not write the batch as files, with what Spark does instead, and why.
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
        """What the rows are like."""
        return RowFormat(self.shape, self.mode, self.sequenced, self.keeps)

    @property
    def empty(self) -> bool:
        """True when there is progress to commit and no row."""
        return self.upserts == 0 and self.deletes == 0 and not self.truncates

    def beside(self, nullable: Callable[[], Iterable[str]]) -> tuple[str, ...]:
        """Columns of the target that the shape has not, and that a delete in the source's order empties too.

        They were the source's, or the config's, once: what is deleted leaves no values of those either.
        ``nullable`` looks up the target's columns that can be set to NULL; what cannot stays as it is.
        """
        if not (self.sequenced and self.deletes and self.delete_mode == "hard"):
            return ()
        names = tuple(nullable())
        fold = folding(names, (column.name for column in self.shape.columns))
        kept = {fold(column.name) for column in self.shape.columns} | {SOFT_DELETE_COLUMN, SEQUENCE_COLUMN}
        return tuple(name for name in names if fold(name) not in kept)


@dataclass(frozen=True)
class Claim:
    """A worker's hold on a table, and what the target holds (None: nothing was ever applied)."""

    epoch: int
    progress: Progress | None


@dataclass(frozen=True)
class ApplyResult:
    """What one commit did, in rows, from the target's own numbers.

    ``upserted`` were inserted or updated, ``deleted`` were there and are gone (or marked), ``absent``
    are deletes whose row was not there. ``version`` is the target's own name of the commit.
    Of a history, ``inserted`` are versions begun, ``deleted`` the deletes that ended one, ``absent`` those
    that ended none, and ``stale`` the events that were known.
    Of a ``sequenced`` batch, rows that mark a delete count as inserted or updated, and ``stale`` are those
    left alone since what is stored is newer.
    """

    inserted: int
    updated: int
    deleted: int
    absent: int
    version: str
    stale: int = 0

    @property
    def upserted(self) -> int:
        """Rows inserted or updated."""
        return self.inserted + self.updated

    @property
    def applied(self) -> int:
        """Keys whose last change is now in the target: the delete of an absent row is applied too."""
        return self.upserted + self.deleted + self.absent


@dataclass(frozen=True)
class EvolveResult:
    """What ``evolve`` changed: column names, and warnings for a person to read."""

    created: bool = False
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    backfilled: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """True when the target's schema is not what it was."""
        return self.created or bool(self.added or self.widened or self.backfilled)


class SchemaGap(NamedTuple):
    """What a target's columns lack for a shape: columns, and types as (present, wanted) by column.

    ``columns`` are all that the target has; types are in the target's own words, in ``held`` as Spark's.
    """

    columns: tuple[str, ...]
    added: tuple[str, ...] = ()
    widened: Mapping[str, tuple[str, str]] = {}
    held: Mapping[str, str] = {}


# Where a reduced row came from.
PLACE_COLUMNS: Final = ("_topic", "_partition", "_offset")


def check_order(batch: ReducedBatch, columns: Mapping[str, str], *, table: TableId) -> None:
    """Refuse to go back to Kafka's order where rows keep their position: marked deletes would stay as rows.

    Raises:
        SchemaRefusedError: ``columns``, the target's own, say that the table is ordered by the source.
    """
    if SEQUENCE_COLUMN in columns and not batch.sequenced:
        raise SchemaRefusedError(
            "the table is ordered by the source (it has the column "
            f"{SEQUENCE_COLUMN}), and the config says sequence_by: kafka. Set sequence_by: source again, or "
            f"{LOAD_AGAIN}",
            table=str(table),
        )


def check_versions(batch: ReducedBatch) -> None:
    """Refuse what has no place in a history: no source that has commit timestamps sends it.

    Raises:
        TargetError: the batch empties the table, leaves out values, or does not name its columns of time.
    """
    wrong = "empties the table" if batch.truncates else "leaves out values" if batch.keeps else None
    if wrong is not None or batch.history is None:
        raise TargetError(
            f"a history takes no batch that {wrong or 'does not name its columns of time'}",
            table=str(batch.shape.table),
        )


class TargetTable(Protocol):
    """One open table. Used by one thread at a time.

    A table that derives from it neither renames nor drops columns and holds nothing open, unless it says so.
    """

    def claim(self) -> Claim:
        """Take the table's next epoch by a commit, then say what is applied.

        Raises:
            StaleProgressError: the table was restored or replaced behind its progress, or belongs to
                another pipeline or another source table.
            SchemaRefusedError: the rows were written under another key.
            ProgressError: progress was there and can no longer be read with certainty.
            TransientTargetError: others kept committing; try again.
        """

    def committed(self) -> Progress | None:
        """The progress the target holds now; None where nothing was ever applied.

        Raises: as ``claim``.
        """

    def gap(self, shape: TableShape) -> SchemaGap:
        """What ``evolve`` would do; nothing is changed, and the target need not be asked.

        Raises:
            SchemaRefusedError: as ``evolve``.
        """

    def evolve(self, shape: TableShape) -> EvolveResult:
        """Make the target's columns take ``shape``, additively; old rows get new columns' defaults.

        Raises:
            SchemaRefusedError: the change is not additive; names the column and both types.
        """

    def rename_column(self, old: str, new: str) -> None:
        """Give a column another name; what has that name already is left as it is.

        Raises:
            SchemaRefusedError: the target cannot.
            StaleProgressError: another worker holds the table now.
        """
        raise SchemaRefusedError(f"this target does not rename a column to {new}", column=old)

    def drop_columns(self, names: Sequence[str]) -> None:
        """Drop columns with their values; those that are not there are no error.

        Raises: as ``rename_column``.
        """
        raise SchemaRefusedError("this target does not drop columns", column=", ".join(names))

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        """Merge a batch and commit ``progress`` with it. ``progress.epoch`` must be the claimed one.

        Raises:
            StaleProgressError: another worker holds the table now; nothing was written.
            TransientTargetError: nothing was written; the same batch may be tried again.
            ValueNotStoredError: a row leaves out values the target does not have; nothing was written.
            CommitUnknownError: ask ``committed()`` before anything else.
            TargetError: nothing was written, and the same batch would fail again.
        """

    def close(self) -> None:
        """Give back what the table holds open. Never fails."""
        return


class Collected(NamedTuple):
    """What ``collect`` did: deleted rows forgotten, those still kept, and the oldest commit_ts of these."""

    horizon: int
    removed: int
    kept: int
    oldest: int | None


@runtime_checkable
class SequencedTable(TargetTable, Protocol):
    """A table whose rows keep their position, deleted ones too until they are collected."""

    def horizon(self) -> int | None:
        """The commit_ts up to which deletes may be forgotten; None where none ever was."""

    def collect(self, horizon: int) -> Collected:
        """Forget deletes up to a commit_ts. The horizon is raised first, so that a crash loses nothing.

        Raises: as ``apply``.
        """


@runtime_checkable
class StagingTable(TargetTable, Protocol):
    """A table that takes a batch's rows in the tasks that reduce them.

    They are staged before anybody knows what becomes of the batch, and forgotten where it is not applied.
    """

    def row_sink(self, rows: RowFormat) -> RowSink | None:
        """What takes the rows of the next batch.

        None: rows cannot be staged before the table's columns are changed, or should not be.

        Raises:
            TransientTargetError: the target does not answer.
        """

    def forget_staged(self, parts: Sequence[StagedPart] = ()) -> None:
        """Forget the rows of the sink, whose batch is not applied; nothing where there are none.

        ``parts``: what it said of them, where it was heard.
        """


class Target(Protocol):
    """A place that keeps tables."""

    @property
    def capabilities(self) -> Capabilities:
        """What this target can do."""

    def open_table(
        self, shape: TableShape, *, pipeline: str, delete_mode: DeleteMode = "hard"
    ) -> TargetTable:
        """The table of ``shape``, created when missing.

        Raises:
            SchemaRefusedError: a table is there and cannot take the shape.
            TransientTargetError: the target does not answer.
        """


class TableReader(Protocol):
    """Reads one table that is there, and changes nothing of it. Used by one thread at a time.

    ``session`` is the one that its frames belong to. A reader that derives from it holds nothing open, unless
    it says so.
    """

    session: SparkSession

    def columns(self) -> Mapping[str, str]:
        """The columns now, as Spark's types by name."""

    def committed(self) -> Progress | None:
        """The progress that the target holds now; None where nothing was ever applied.

        Raises: as ``TargetTable.committed``.
        """

    def rows(self, columns: Sequence[ShapeColumn]) -> DataFrame:
        """The rows of the source's table that live now, with the values of these columns, in their order.

        A deleted row that is kept does not live. The frame is lazy.
        """

    def compared_rows(self, columns: Sequence[ShapeColumn]) -> DataFrame:
        """As ``rows``, perhaps with a column behind them: ``ODD`` of ``spark.digests``."""
        return self.rows(columns)

    def spelling(self, name: str) -> Spelling | None:  # noqa: ARG002
        """How the target changes the spelling of a column's texts; None: it keeps them as they are."""
        return None

    def close(self) -> None:
        """Give back what the reader holds open. Never fails."""
        return


@runtime_checkable
class ReadableTarget(Target, Protocol):
    """A target whose rows can be read back."""

    def reader(self, shape: TableShape, *, pipeline: str, session: SparkSession) -> TableReader | None:
        """What reads the table of ``shape``; None where there is no such table.

        Raises:
            SchemaRefusedError: the target has no such name.
            TransientTargetError: the target does not answer.
        """


class TargetModule(Protocol):
    """The names in a target's module. Nothing but ``open_target`` and ``try_target`` asks the target."""

    CAPABILITIES: Capabilities
    PREFLIGHT: PreflightChecks

    def open_target(self, config: Config, spark: SparkSession, store: StateStore) -> Target:
        """The target of a config.

        Raises:
            ConfigError: it cannot be opened as configured.
        """

    def place_of(self, settings: TargetSettings, table: TableId) -> str:
        """Where a table is kept, for people to read; asks nothing of the target.

        Raises:
            SchemaRefusedError: the target has no such name.
        """

    def try_target(self, settings: TargetSettings) -> str:
        """What became of reaching the target, without leaving anything there.

        Raises:
            TidesinkError: it cannot be used, with the reason and what to do.
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
    """One thing that a target cannot do, and that a table may meet.

    ``kind`` is for programs (``docs/cli.md``). ``text`` is the same for every table, so that it is said once;
    ``columns``: those of the table that it is about, where it is not about the table as a whole.
    """

    kind: LimitKind
    text: str
    columns: tuple[str, ...] = ()


class PreflightResult(NamedTuple):
    """``warnings`` are of this table: the target refuses it unless somebody does something first."""

    limits: tuple[Limit, ...] = ()
    warnings: tuple[str, ...] = ()


class PreflightChecks(ABC):
    """What a kind of target says of its tables."""

    @abstractmethod
    def column_type(self, settings: Any, column: ShapeColumn) -> str:
        """A column's type in the target's own words; ``settings`` are the target's."""

    @abstractmethod
    def foresee(self, config: Config, shape: TableShape) -> PreflightResult:
        """What may become of a table, beside what the capabilities say.

        Raises:
            SchemaRefusedError: there can be no such table, whatever is there already.
            ConfigError: the pipeline cannot have it there.
        """

    def missing_grants(self, config: Config, tables: Iterable[TableId]) -> tuple[str, ...]:  # noqa: ARG002
        """The statements that give the target's user what it lacks for source tables. Asks the target.

        Raises:
            TidesinkError: the target does not answer.
        """
        return ()


class Reserved(NamedTuple):
    """Column names, in lower case, that a kind of table cannot have; ``keeper`` is who has them."""

    keeper: str
    names: frozenset[str]


def check_shape(shape: TableShape, reserved: Reserved | None = None) -> None:
    """Refuse a shape whose rows cannot be merged into a table.

    Raises:
        SchemaRefusedError: it has no key, or a column with a reserved name or one of ours.
    """
    check_key(shape)
    kept = [column.name for column in shape.columns if reserved and fold_name(column.name) in reserved.names]
    if reserved and kept:
        raise SchemaRefusedError(
            f"{reserved.keeper} keeps the name {', '.join(kept)} for itself and cannot merge into a table "
            "with such a column: rename it at the source",
            table=str(shape.table),
        )
    own = [name for name in OWN_COLUMNS if name in shape.by_name]
    if own:
        raise SchemaRefusedError(
            f"the source has a column {own[0]}, a name that tidesink gives a column of its own: rename it",
            table=str(shape.table),
        )


def check_key(shape: TableShape) -> None:
    """Refuse a shape without a key.

    Raises:
        SchemaRefusedError: it has none.
    """
    if not shape.keys:
        raise SchemaRefusedError(
            "the table has no key to merge rows by: set keys in the config to columns that name a row, "
            "or mode: append to keep its changes; new TiCDC's canal-json can name rows by TiDB's row keys "
            "(output-row-key)",
            table=str(shape.table),
        )
