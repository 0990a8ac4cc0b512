"""Writes a batch as files of a lake's table (Delta or Iceberg): the part that runs on the Spark driver.

It decides whether a batch is written as files or merged by Spark, runs the tasks, and checks their results.
A batch of a history is only written as files: it is refused if that is impossible.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, cast

import structlog

from tidesink.config.targets import S3_SCHEMES, scheme_of
from tidesink.errors import AccountingError, ConfigError, SchemaRefusedError, TargetError, TidesinkError
from tidesink.events import TableId, fold_name
from tidesink.sinks.laws.modes import own_columns
from tidesink.sinks.spark.errors import SPARK_ERRORS, task_error
from tidesink.sinks.spark.frames import SparkRows
from tidesink.sinks.targets.base import (
    SEQUENCE_COLUMN,
    SEQUENCE_DDL,
    SOFT_DELETE_COLUMN,
    ApplyResult,
    Limit,
    PreflightChecks,
    PreflightResult,
    ReducedBatch,
    RowFormat,
    StagedPart,
    StagedRowsRefusedError,
    TaskRows,
    nothing,
)
from tidesink.sinks.targets.lake.files import (
    FILE_DDL,
    MOST_STORED,
    DataFile,
    FileRefusedError,
    FileSink,
    KeysTask,
    LocateTask,
    Marks,
    RowsTask,
    SmallBatchTask,
    WrittenFile,
    found_keys,
    joined_keys,
    locating,
    stream_of,
)
from tidesink.sinks.targets.lake.rows import Mask, NotAsFilesError, TooManyStoredError
from tidesink.sinks.targets.lake.storage import StorageError
from tidesink.sinks.targets.lake.tables import SMALL_BATCH, arrow_batches_of_rows
from tidesink.sinks.targets.lake.versions import Counts, VersionRules
from tidesink.typemap.arrow import is_known_type
from tidesink.typemap.target_schema import TargetColumn, TargetSchema, wider_ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.config import Config
    from tidesink.config.targets import LakeSettings


# A batch with more keys is not written as files, because all keys are sent to each task that searches for
# stored rows.
_MOST_KEYS: Final = 2_000_000
# Number of stored rows that one task searches for the batch's keys.
_ROWS_A_TASK: Final = 500_000
# If the smallest offset range of a batch has fewer records, the batch is not written to files while it is
# reduced.
FEWEST_STAGED: Final = 50_000
# Arrow's name of each compression of Parquet files.
COMPRESSIONS: Final[Mapping[str, str]] = {
    "zstd": "zstd",
    "snappy": "snappy",
    "gzip": "gzip",
    "uncompressed": "none",
    "none": "none",
}
# Types in which equal values can have different bits (0.0 and -0.0).
_FLOATS: Final = ("float", "double")
_WIDER: Final = frozenset({("int", "bigint"), ("float", "double")})
# For key columns of these types, files outside the range of the batch's keys are skipped.
RANGES: Final = ("int", "bigint", "string")


@dataclass(frozen=True)
class FileLimits:
    """The limits of writing a batch as files.

    ``small_batch``: up to this number of rows, one task writes the batch and finds the stored rows.
    ``most_stored``: maximum number of bytes of stored values that a batch may need. A batch that needs more
        is merged by MERGE.
    ``most_spans``: the same for a batch of a history in several tasks, of which only the keys and times of
        stored versions pass through the driver.
    """

    small_batch: int = SMALL_BATCH
    most_stored: int = MOST_STORED
    most_spans: int = 8 * MOST_STORED


FILE_LIMITS: Final = FileLimits()


def written(
    batch: ReducedBatch,
    files: Sequence[DataFile],
    rows: RowsTask,
    marks: Marks,
    *,
    session: SparkSession,
    limits: FileLimits = FILE_LIMITS,
) -> tuple[list[WrittenFile], BatchCounts]:
    """Write the rows of a batch to new files, and mark the stored rows that it replaces or deletes.

    Returns the reports of the tasks (``WrittenFile``), and the row counts. Nothing is committed yet.

    ``files``: the table's files in which stored rows are searched for.
    ``rows``: the task that writes the rows.
    ``marks``: writes which rows of ``files`` are deleted.

    Raises:
        AccountingError: the written rows do not match the batch, or the table has several rows with the same
            key.
        NotAsFilesError: the batch needs too many values of stored rows.
    """
    try:
        lines = _written(batch, files, rows, marks, session, limits)
        return lines, counted(batch, lines)
    except TidesinkError as exc:
        exc.with_context(table=str(batch.shape.source))
        raise


def _written(
    batch: ReducedBatch,
    files: Sequence[DataFile],
    rows: RowsTask,
    marks: Marks,
    session: SparkSession,
    limits: FileLimits,
) -> list[WrittenFile]:
    """Run the Spark tasks that find stored rows and write the batch's rows. Returns the tasks' reports."""
    cores = session.sparkContext.defaultParallelism
    groups = groups_of(files, most=2 * cores, rows=_ROWS_A_TASK)
    locate = LocateTask(groups, b"", rows.columns, marks, most_stored=limits.most_stored)
    rows = replace(rows, most_stored=limits.most_stored)
    if batch.staged is not None:
        lines = [line for part in batch.staged for line in part.files]
        (batch.hooks.on_written or nothing)()
        if groups:
            locate = replace(locate, batch_keys=stream_of(joined_keys(lines)))
            lines += _located(session, locate)
        batch.hooks.on_located()
        return lines
    rows, given = replace(rows, packed=batch.payloads is not None), _rows_of(batch).in_session(session)
    versions = isinstance(rows.rules, VersionRules)
    with arrow_batches_of_rows(session) if not rows.packed else nullcontext():
        small = batch.upserts + batch.deletes <= limits.small_batch and len(groups) <= cores
        if small and batch.hooks.on_written is None:
            small_lines = _in_one_task(given, SmallBatchTask(rows, locate), may_be_split=versions)
            if small_lines is not None:
                batch.hooks.on_located()
                return small_lines
        if versions:
            rows = replace(rows, most_stored=limits.most_spans)
            locate = replace(locate, most_stored=limits.most_spans)
        on_written = batch.hooks.on_written or nothing
        compares = rows.rules.compares(groups)
        lines = _run(given, KeysTask(rows) if compares else rows, tasks=cores)
        if not compares:
            on_written()
        if groups:
            # Versions that end are written by these tasks, because their values would be too much for the
            # driver.
            ends, locate = rows if versions else None, locating(locate, rows.rules, lines)
            locate = replace(locate, batch_keys=stream_of(joined_keys(lines)), ends=ends)
            lines += _located(session, locate)
        batch.hooks.on_located()
        if not compares:
            return lines
        rows, line = rows.given(lines, ended=versions)
        lines = [*lines, line, *_run(given, rows, tasks=cores)]
        on_written()
        return lines


def _rows_of(batch: ReducedBatch) -> TaskRows:
    """Return the batch's payloads, or the rows of its frame if it has no payloads."""
    if batch.payloads is not None:
        return batch.payloads
    assert batch.frame is not None  # noqa: S101  (``batch_reason``)
    return SparkRows(batch.frame)


def _in_one_task(given: TaskRows, task: SmallBatchTask, *, may_be_split: bool) -> list[WrittenFile] | None:
    """Run a small batch in one task. Returns None if it must be split instead, because it needs more stored
    values than one task may hold.

    ``may_be_split``: True for a history. Several tasks write the versions that end where they find them.

    Raises:
        NotAsFilesError: for example, the batch needs too many stored values, and may not be split.
    """
    try:
        return _run(given, task, tasks=1)
    except TooManyStoredError:
        if may_be_split:
            return None
        raise
    except SPARK_ERRORS as exc:
        if may_be_split and isinstance(task_error(exc), TooManyStoredError):
            return None
        raise


def new_paths(batch: ReducedBatch, lines: Iterable[WrittenFile]) -> tuple[str, ...]:
    """Return the paths of the files that tasks wrote for this attempt to commit.

    Files that were staged earlier (``StagedPart``) are not included.
    """
    staged = {line.path for part in batch.staged or () for line in part.files}
    return tuple(file.path for file in lines if file.path is not None and file.path not in staged)


def paths_of(parts: Iterable[StagedPart]) -> tuple[str, ...]:
    """Return the paths of staged files, to which tasks wrote rows while they reduced records to rows.

    ``parts``: the results of these tasks.
    """
    return tuple(line.path for part in parts for line in part.files if line.path is not None)


def _run(rows: TaskRows, task: RowsTask | KeysTask | SmallBatchTask, *, tasks: int) -> list[WrittenFile]:
    return [WrittenFile(*line) for line in rows.run(task, FILE_DDL, tasks=tasks)]


def _located(session: SparkSession, task: LocateTask) -> list[WrittenFile]:
    """Search each group of files in a Spark task, and return the tasks' reports."""
    groups = SparkRows(session.range(0, len(task.groups), 1, len(task.groups)))
    return [WrittenFile(*line) for line in groups.run(task, FILE_DDL)]


class BatchCounts(NamedTuple):
    """The row counts of a batch that is written as files.

    ``result``: the batch's result, whose ``version`` is still empty.
    ``rows``: number of rows in new files.
    ``marked``: number of rows in existing files that are marked as deleted.
    ``versions``: the row counts of a history table; None for another table.
    """

    result: ApplyResult
    rows: int
    marked: int
    versions: Counts | None = None


def counted(batch: ReducedBatch, lines: Sequence[WrittenFile]) -> BatchCounts:
    """Compute a batch's row counts from the reports that its tasks returned.

    Raises:
        AccountingError: the reports do not match the batch, or the table has several rows with the same key.
    """
    keys, wanted = joined_keys(lines).num_rows, batch.upserts + batch.deletes
    if batch.how.mode == "history":
        versions = Counts(**json.loads(next(line.counts for line in lines if line.counts is not None)))
        counts = BatchCounts(versions.result(""), *versions.in_files, versions)
    elif batch.how.mode == "append":
        wanted, counts = 0, BatchCounts(ApplyResult(batch.upserts, 0, 0, 0, ""), batch.upserts, 0)
    else:
        counts = _counted_rows(batch, keys, *found_keys(lines))
    rows = sum(line.rows for line in lines if line.found is None)
    if (rows, keys) != (counts.rows, wanted):
        raise AccountingError(
            f"{rows} rows of {keys} keys were written to files, but the batch has {batch.upserts} upserts "
            f"and {batch.deletes} deletes. {counts.marked} of them replace a stored row, and "
            f"{counts.result.stale} have a newer stored row. Nothing was committed. Report this with the log."
        )
    return counts


def _counted_rows(batch: ReducedBatch, keys: int, found: Mask, stale: Mask) -> BatchCounts:
    replaced, deleted = int(found[: batch.upserts].sum()), int(found[batch.upserts :].sum())
    if batch.sequenced:
        left, replaced = int(stale.sum()), replaced + deleted
        result = ApplyResult(keys - replaced - left, replaced, 0, 0, "", left)
        return BatchCounts(result, result.upserted, replaced)
    result = ApplyResult(batch.upserts - replaced, replaced, deleted, batch.deletes - deleted, "")
    marks = deleted if batch.how.delete_mode == "soft" else 0
    return BatchCounts(result, batch.upserts + marks, replaced + deleted)


# The decision between files and MERGE. Each function returns the reason for a MERGE, or None. A history is
# refused for such a reason.


class FilePlan(Protocol):
    """A plan, made by the code of Delta or Iceberg, for writing a batch as files."""

    @property
    def rows(self) -> RowsTask:
        """The task that writes the batch's rows."""

    @property
    def files(self) -> Sequence[DataFile]:
        """The table's data files that may have rows which the batch replaces or deletes."""


Plan = TypeVar("Plan", bound=FilePlan)
Done = TypeVar("Done")


def planned_as_staged(batch: ReducedBatch, plan: Plan | str, sink: FileSink | None) -> Plan | str:
    """Return the plan of a batch, or a reason for a MERGE if staged files of the batch no longer fit the
    table.

    ``plan``: the batch's plan, or the reason for a MERGE. This reason is returned unchanged.
    ``sink``: the sink that wrote the staged files.
    """
    if batch.staged is None or isinstance(plan, str):
        return plan
    if sink is None or not plan.rows.is_like(sink.rows):
        return "the table's columns or properties changed after the rows were written to files"
    return plan


class FilesOrMerge:
    """Writes a table's batches as files if possible. Logs the reason for a MERGE when the reason changes.

    ``fewest``: least number of records per offset range for which the tasks that reduce a batch also write
        files.
    ``forget``: removes staged files, which these tasks wrote.
    ``reason``: why the last batch was merged by Spark; None if it was written as files.
    """

    def __init__(
        self,
        table: TableId,
        log: structlog.stdlib.BoundLogger,
        *,
        fewest: int,
        forget: Callable[[Sequence[StagedPart]], None],
    ) -> None:
        self._table, self._log, self._fewest, self._forget = table, log, fewest, forget
        self.reason: str | None = None
        # The table's files that Python cannot read, with the reason. A batch that needs such a file is merged
        # by Spark.
        self._refused: dict[str, str] = {}

    def write(self, batch: ReducedBatch, plan: Plan | str, write: Callable[[Plan], Done]) -> Done | str:
        """Write a batch as files, or return the reason why it was not written and needs a MERGE.

        ``plan``: the batch's plan for files, or the reason why it needs a MERGE.
        ``write``: writes the files of a plan and returns the result, which this function returns.

        Raises:
            StagedRowsRefusedError: the batch needs a MERGE, but its rows are already staged in files.
            TargetError: the batch needs a MERGE, but belongs to a history.
            StorageError: Python cannot access a file of a history now.
        """
        merges = batch.how.mode != "history"
        done = plan if isinstance(plan, str) else self._tried(plan, write, merges=merges)
        if not isinstance(done, str):
            self.reason = None
            return done
        if not merges:
            check_as_files(done, self._table)
        way = "inserted by Spark" if batch.how.mode == "append" else "merged by MERGE"
        if done != self.reason:
            self._log.info(f"batches are {way}", table=str(self._table), reason=done)
            self.reason = done
        batch.hooks.on_left(f"{way}: {done}")
        if batch.staged is not None:
            self._forget(batch.staged)
            raise StagedRowsRefusedError(
                f"The staged rows cannot be committed as files: {done}. The batch is written again by Spark.",
                table=str(self._table),
            )
        return done

    def stages(self, rows: RowFormat, *, soft: bool) -> bool:
        """Return True if the tasks that reduce the next batch should write its rows to files.

        Returns False if the rows depend on stored rows, if the last batch needed a MERGE, or if an offset
        range has so few records that its file would be small.
        """
        depends = rows.sequenced or rows.keeps or rows.mode == "history" or soft
        return not depends and self.reason is None and rows.fewest >= self._fewest

    def _tried(self, plan: Plan, write: Callable[[Plan], Done], *, merges: bool) -> Done | str:
        refused = (self._refused[file.path] for file in plan.files if file.path in self._refused)
        reason = next(refused, None)
        if reason is not None:
            return reason
        try:
            return write(plan)
        except FileRefusedError as exc:
            self._refused[str(exc.context["url"])] = exc.message
            return exc.message
        except NotAsFilesError as exc:
            return exc.message
        except StorageError as exc:
            if not merges:
                raise
            return plan.rows.files.storage.leave(exc)


def check_as_files(reason: str | None, table: TableId) -> None:
    """Check that a history can be written as files.

    ``reason``: why it cannot; None if it can.

    Raises:
        TargetError: it cannot. The message has the reason and the ways out.
    """
    if reason is not None:
        raise TargetError(f"This history cannot be written: {reason}. {_AS_FILES}", table=str(table))


def batch_reason(batch: ReducedBatch) -> str | None:
    """Return the reason why a batch needs a MERGE whatever its table is like; None if there is no such
    reason.
    """
    # In the source's order and in a history, several ranges may have events of one key. Then the batch has
    # only a frame, which reduces them again.
    framed = batch.make_frame is not None and (batch.sequenced or batch.how.mode == "history")
    reasons = {
        "the batch has no payloads": batch.payloads is None and batch.staged is None and not framed,
        "the source omitted values, and sequence_by is source": batch.sequenced and batch.keeps,
        f"the batch has more than {_MOST_KEYS:,} keys": batch.how.mode != "append"
        and batch.upserts + batch.deletes > _MOST_KEYS,
    }
    return next((text for text, holds in reasons.items() if holds), None)


def columns_reason(batch: ReducedBatch, present: Mapping[str, str]) -> str | None:
    """Return the reason why the table's columns require a MERGE for a batch; None if they do not.

    ``present``: the table's columns: Spark type by name.
    """
    wanted = {fold_name(column.name): column for column in batch.shape.columns}
    own = {SEQUENCE_COLUMN: SEQUENCE_DDL} if batch.sequenced else {}
    if batch.how.history is not None:
        own |= {column.name: column.spark for column in own_columns(batch.how.history)}
    # The deletion mark still exists if the table had soft deletes earlier.
    if batch.sequenced or batch.how.delete_mode == "soft" or SOFT_DELETE_COLUMN in present:
        own[SOFT_DELETE_COLUMN] = "boolean"
    unlike = next((name for name, ddl in own.items() if present.get(name) != ddl), None)
    if unlike is not None:
        return f"the table has no column {unlike} {own[unlike]}"
    beside = [name for name in present if fold_name(name) not in wanted and name not in own]
    missing = len(present) != len(wanted) + len(own) + len(beside)
    # New versions of a history have NULL in the other columns, and stored versions keep their values.
    beside = [name for name in beside if batch.how.history is None or not is_known_type(present[name])]
    if beside or missing:
        return f"the table has other columns than the batch: {', '.join(beside) or 'some are missing'}"
    for name, column in ((name, wanted[fold_name(name)]) for name in present if fold_name(name) in wanted):
        ddl = present[name]
        is_text = batch.how.history is not None and _is_decimal_as_text(column, ddl)
        if not (is_text or _is_widened(column, ddl)):
            return f"the column {name} is {ddl}, but the batch has {column.spark}"
    return float_key(batch.shape, present)


def float_key(shape: TargetSchema, present: Mapping[str, str]) -> str | None:
    """Return the reason why a float in a table's key requires a MERGE; None if the key has no float.

    ``present``: the table's columns: Spark type by name.
    """
    keys = {fold_name(column.name) for column in shape.key_columns}
    floats = (name for name, ddl in present.items() if fold_name(name) in keys and ddl in _FLOATS)
    return next((f"the key column {name} is {present[name]}" for name in floats), None)


def _is_widened(column: TargetColumn, wide: str) -> bool:
    """Return True if Arrow can convert all values of a batch's column to the Spark type ``wide``."""
    narrow = column.spark
    if narrow == wide or (narrow, wide) in _WIDER:
        return True
    if not wide.startswith("decimal") or (column.key and narrow in RANGES):
        # Files are skipped by the range of such keys, but statistics of decimals are read as floats.
        return False
    return wider_ddl(wide, narrow) == wide


def _is_decimal_as_text(column: TargetColumn, ddl: str) -> bool:
    """Return True if the table has text in a column in which the batch has decimals.

    The column was made while the precision of the decimals was unknown, and it stays text.
    """
    return ddl == "string" and column.spark.startswith("decimal") and not column.key


_AS_FILES: Final = (
    "In a lake, a history is only written as files, never by MERGE. Change this (if the batch is too large, "
    "set a smaller batch.max-records), or set another `mode` or target for the table. The page of the target "
    "lists what files need."
)
_MERGED: Final = (
    "{} are merged by Spark's MERGE, which takes several times as long as writing files. An existing "
    "table may have other reasons for a MERGE. The log, `status` and `plan` show them after its first batch."
)


class LakePreflight(PreflightChecks):
    """Checks, before the first run, whether the configured tables can be stored in Delta or Iceberg.

    ``check``: raises SchemaRefusedError for a target schema that the format cannot store.
    ``properties``: table properties with the values under which batches can be written as files.
    """

    def __init__(
        self, check: Callable[[TargetSchema], None], properties: Mapping[str, tuple[str, ...]]
    ) -> None:
        self._check, self._properties = check, properties

    def column_type(self, settings: Any, column: TargetColumn) -> str:  # noqa: ARG002
        """Return the Spark type that a column has in the lake's table."""
        return column.spark

    def foresee(self, config: Config, shape: TargetSchema) -> PreflightResult:
        """Check that the format can store the table, and return which batches will need a MERGE, as limits to
        show.

        Raises:
            SchemaRefusedError, ConfigError: the format cannot store the table, or the table is a history
                that cannot be written as files.
        """
        self._check(shape)
        settings = cast("LakeSettings", config.target)
        if config.table_config(shape.source).mode != "history":
            return PreflightResult(tuple(self._merged(settings, shape)))
        self.check_new_history(shape, settings.table_properties)
        location = self.location(settings)
        if scheme_of(location) not in ("", "file", *S3_SCHEMES):
            raise ConfigError(
                f"This history cannot be written: only Spark, not Python, can open {location}. {_AS_FILES}",
                table=str(shape.source),
            )
        return PreflightResult()

    def location(self, settings: Any) -> str:  # noqa: ARG002
        """Return the path or URL of the lake; an empty string if only its catalog has it."""
        return ""

    def check_new_history(self, shape: TargetSchema, properties: Mapping[str, str]) -> None:
        """Check that the batches of a new history can be written as files.

        ``properties``: the configured properties of new tables.

        Raises:
            SchemaRefusedError: a key column is a float.
            ConfigError: a property excludes it.
        """
        for column in shape.key_columns:
            if column.spark in _FLOATS:
                raise SchemaRefusedError(
                    f"This history cannot be written: the key column {column.name} is {column.spark}. "
                    f"{_AS_FILES}",
                    table=str(shape.source),
                    column=column.name,
                )
        for name, value in self._unfit(properties):
            raise ConfigError(
                f"This history cannot be written: new tables get the property {name}: {value}. {_AS_FILES}",
                table=str(shape.source),
                key="target.table-properties",
            )

    def omission_limits(self, config: Config, shape: TargetSchema) -> tuple[Limit, ...]:
        """Return the batches with omitted values that will need a MERGE, as limits to show."""
        if config.table_config(shape.source).sequence_by != "source":
            return ()
        what = "batches with `sequence_by: source` in which the source omitted values"
        return (Limit("merge", _MERGED.format(what)),)

    def _unfit(self, properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yield the properties under which batches cannot be written as files."""
        for name, value in properties.items():
            if value.lower() not in self._properties.get(name, (value.lower(),)):
                yield name, value

    def _merged(self, settings: LakeSettings, shape: TargetSchema) -> Iterator[Limit]:
        floats = tuple(column.name for column in shape.key_columns if column.spark in _FLOATS)
        if floats:
            yield Limit("merge", _MERGED.format("batches of a table with a float in its key"), floats)
        for name, value in self._unfit(settings.table_properties):
            what = f"batches of tables with the property {name}: {value}"
            yield Limit("merge", _MERGED.format(what))


def groups_of(files: Sequence[DataFile], *, most: int, rows: int) -> tuple[tuple[DataFile, ...], ...]:
    """Divide data files into groups with about equal numbers of rows, one group for each task.

    ``most``: maximum number of groups.
    ``rows``: fewest rows of a group. There are fewer groups than ``most`` if necessary.
    """
    total = sum(file.rows for file in files)
    count = max(1, min(most, len(files), total // rows)) if files else 0
    groups: list[list[DataFile]] = [[] for _ in range(count)]
    sizes = [0] * count
    for file in sorted(files, key=lambda data_file: -data_file.rows):
        least = sizes.index(min(sizes))
        groups[least].append(file)
        sizes[least] += file.rows
    return tuple(tuple(group) for group in groups)
