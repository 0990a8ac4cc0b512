"""Writes a batch as files of a lake's table, on the driver: the decision, the tasks, and their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, cast

import structlog

from tidesink.codecs.open import CODECS
from tidesink.errors import AccountingError, TidesinkError
from tidesink.events import TableId, fold_name
from tidesink.sinks.spark.session import in_session
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
    check_versions,
    nothing,
)
from tidesink.sinks.targets.lake.files import (
    FILE_DDL,
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
from tidesink.sinks.targets.lake.rows import Mask, NotAsFilesError
from tidesink.sinks.targets.lake.storage import StorageError
from tidesink.sinks.targets.lake.tables import SMALL_BATCH, arrow_batches_of_rows
from tidesink.sinks.targets.lake.versions import Counts, VersionRules
from tidesink.sinks.targets.modes import own_columns
from tidesink.typemap.arrow import arrow_of_spark
from tidesink.typemap.target_schema import ShapeColumn, TableShape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import Config
    from tidesink.config.targets import LakeSettings


# Most keys of a batch. All of them are sent to each task that locates them.
_MOST_KEYS: Final = 2_000_000
# A task that locates keys reads those of about this many rows.
_ROWS_A_TASK: Final = 500_000
# A range with fewer records than this is not written to files of its own.
FEWEST_STAGED: Final = 50_000
# Compression of Parquet files -> Arrow's name for it.
COMPRESSIONS: Final[Mapping[str, str]] = {
    "zstd": "zstd",
    "snappy": "snappy",
    "gzip": "gzip",
    "uncompressed": "none",
    "none": "none",
}
# Types whose values can be equal with different bits.
_FLOATS: Final = ("float", "double")
_WIDER: Final = frozenset({("int", "bigint"), ("float", "double")})
# Key columns of these types skip files by the range of a batch's keys.
RANGES: Final = ("int", "bigint", "string")


def written(
    batch: ReducedBatch, files: Sequence[DataFile], rows: RowsTask, marks: Marks, *, session: SparkSession
) -> tuple[list[WrittenFile], BatchCounts]:
    """Write the rows of a batch to new files, and mark the rows in ``files`` that it replaces and deletes.

    Raises:
        AccountingError: the written rows do not match the batch, or the table has several rows of a key.
        NotAsFilesError: the batch needs too many stored values.
    """
    try:
        lines = _written(batch, files, rows, marks, session)
        return lines, counted(batch, lines)
    except TidesinkError as exc:
        exc.with_context(table=str(batch.shape.source))
        raise


def _written(
    batch: ReducedBatch, files: Sequence[DataFile], rows: RowsTask, marks: Marks, session: SparkSession
) -> list[WrittenFile]:
    cores = session.sparkContext.defaultParallelism
    groups = groups_of(files, most=2 * cores, rows=_ROWS_A_TASK)
    locate = LocateTask(groups, b"", rows.columns, marks)
    if batch.staged is not None:
        lines = [line for part in batch.staged for line in part.files]
        (batch.on_written or nothing)()
        if groups:
            locate = replace(locate, batch_keys=stream_of(joined_keys(lines)))
            lines += _run(session.range(0, len(groups), 1, len(groups)), locate)
        batch.on_located()
        return lines
    rows, frame = replace(rows, packed=batch.payloads is not None), batch.payloads or batch.frame
    assert frame is not None  # noqa: S101  (``batch_reason``)
    given = in_session(frame, session)
    with arrow_batches_of_rows(session) if not rows.packed else nullcontext():
        small = batch.upserts + batch.deletes <= SMALL_BATCH and len(groups) <= cores
        if small and batch.on_written is None:
            lines = _run(given.coalesce(1), SmallBatchTask(rows, locate))
            batch.on_located()
            return lines
        on_written = batch.on_written or nothing
        compares, versions = rows.rules.compares(groups), isinstance(rows.rules, VersionRules)
        lines = _run(given.coalesce(cores), KeysTask(rows) if compares else rows)
        if not compares:
            on_written()
        if groups:
            # The values of all versions that end would be too much for the driver.
            ends, locate = rows if versions else None, locating(locate, rows.rules, lines)
            locate = replace(locate, batch_keys=stream_of(joined_keys(lines)), ends=ends)
            lines += _run(session.range(0, len(groups), 1, len(groups)), locate)
        batch.on_located()
        if not compares:
            return lines
        rows, line = rows.given(lines, ended=versions)
        lines = [*lines, line, *_run(given.coalesce(cores), rows)]
        on_written()
        return lines


def new_paths(batch: ReducedBatch, lines: Iterable[WrittenFile]) -> tuple[str, ...]:
    """Return the files written for an attempt to commit a batch, without its staged files."""
    staged = {line.path for part in batch.staged or () for line in part.files}
    return tuple(one.path for one in lines if one.path is not None and one.path not in staged)


def paths_of(parts: Iterable[StagedPart]) -> tuple[str, ...]:
    """Return the files of staged rows."""
    return tuple(line.path for part in parts for line in part.files if line.path is not None)


def _run(frame: DataFrame, task: RowsTask | KeysTask | LocateTask | SmallBatchTask) -> list[WrittenFile]:
    return [WrittenFile(*line) for line in frame.mapInArrow(task, FILE_DDL).collect()]


class BatchCounts(NamedTuple):
    """A batch's result without a version, the rows in its files, and the rows that it marks as deleted.

    ``versions``: the counts of a history.
    """

    result: ApplyResult
    rows: int
    marked: int
    versions: Counts | None = None


def counted(batch: ReducedBatch, lines: Sequence[WrittenFile]) -> BatchCounts:
    """Return a batch's counts from the lines of its tasks.

    Raises:
        AccountingError: the lines do not match the batch, or a key has several rows.
    """
    keys, wanted = joined_keys(lines).num_rows, batch.upserts + batch.deletes
    if batch.mode == "history":
        versions = Counts(**json.loads(next(one.counts for one in lines if one.counts is not None)))
        counts = BatchCounts(versions.result(""), *versions.in_files, versions)
    elif batch.mode == "append":
        wanted, counts = 0, BatchCounts(ApplyResult(batch.upserts, 0, 0, 0, ""), batch.upserts, 0)
    else:
        counts = _counted_rows(batch, keys, *found_keys(lines))
    rows = sum(one.rows for one in lines if one.found is None)
    if (rows, keys) != (counts.rows, wanted):
        raise AccountingError(
            f"{rows} rows of {keys} keys were written to files, but the batch has {batch.upserts} upserts "
            f"and {batch.deletes} deletes. {counts.marked} of them replace a stored row, and "
            f"{counts.result.stale} have a newer stored row. Nothing is visible."
        )
    return counts


def _counted_rows(batch: ReducedBatch, keys: int, found: Mask, stale: Mask) -> BatchCounts:
    replaced, deleted = int(found[: batch.upserts].sum()), int(found[batch.upserts :].sum())
    if batch.sequenced:
        left, replaced = int(stale.sum()), replaced + deleted
        result = ApplyResult(keys - replaced - left, replaced, 0, 0, "", left)
        return BatchCounts(result, result.upserted, replaced)
    result = ApplyResult(batch.upserts - replaced, replaced, deleted, batch.deletes - deleted, "")
    marks = deleted if batch.delete_mode == "soft" else 0
    return BatchCounts(result, batch.upserts + marks, replaced + deleted)


# The decision between files and MERGE. Each function returns the reason for a MERGE.


class FilePlan(Protocol):
    """A format's plan for a batch that can be written as files."""

    @property
    def rows(self) -> RowsTask:
        """The task that writes the rows."""

    @property
    def files(self) -> Sequence[DataFile]:
        """The table's files in which the batch may replace rows."""


Plan = TypeVar("Plan", bound=FilePlan)
Done = TypeVar("Done")


def planned_as_staged(batch: ReducedBatch, plan: Plan | str, sink: FileSink | None) -> Plan | str:
    """Return the plan of a batch; a reason if its rows are staged in files that would be different now."""
    if batch.staged is None or isinstance(plan, str):
        return plan
    if sink is None or not plan.rows.is_like(sink.rows):
        return "the table's columns or properties changed meanwhile"
    return plan


class FilesOrMerge:
    """Decides whether a table's batches are written as files or by Spark. Logs the reason when it changes.

    ``reason``: why the last batch was left to Spark; None if it was written as files.
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
        # Files of the table that were refused. Trying again would write the batch's rows for nothing.
        self._refused: dict[str, str] = {}

    def write(self, batch: ReducedBatch, plan: Plan | str, write: Callable[[Plan], Done]) -> Done | str:
        """Write a batch as planned and return the result; or, as text, the reason for a MERGE.

        ``plan``: may already be such a reason.

        Raises:
            StagedRowsRefusedError: the rows are in files already.
        """
        done = plan if isinstance(plan, str) else self._tried(plan, write)
        if not isinstance(done, str):
            self.reason = None
            return done
        how = "inserted by Spark" if batch.mode == "append" else "merged by MERGE"
        if done != self.reason:
            self._log.info(f"batches are {how}", table=str(self._table), reason=done)
            self.reason = done
        if not batch.truncates:
            batch.on_left(f"{how}: {done}")
        if batch.staged is not None:
            self._forget(batch.staged)
            raise StagedRowsRefusedError(
                f"The rows that were written cannot be committed as files: {done}.", table=str(self._table)
            )
        return done

    def stages(self, rows: RowFormat, *, soft: bool) -> bool:
        """Return True if the next batch's rows should be written while they are read.

        Not if the written rows depend on stored ones, or if a range has so few rows that its file would be
        small.
        """
        depends = rows.sequenced or rows.keeps or rows.mode == "history" or soft
        return not depends and self.reason is None and rows.fewest >= self._fewest

    def _tried(self, plan: Plan, write: Callable[[Plan], Done]) -> Done | str:
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
            return plan.rows.files.storage.leave(exc)


def batch_reason(batch: ReducedBatch) -> str | None:
    """Return why a batch needs a MERGE in any table; None if it does not.

    Raises:
        TargetError: a history cannot apply such a batch.
    """
    if batch.mode == "history":
        check_versions(batch)
    reasons = {
        # In these orders, several ranges may have events of one key, and the frame reduces them once more.
        "the batch has no payloads": batch.payloads is None
        and batch.staged is None
        and not ((batch.sequenced or batch.mode == "history") and batch.frame),
        "the batch empties the table": batch.truncates,
        "sequence_by: source, and the source omitted values": batch.sequenced and batch.keeps,
        f"the batch has more than {_MOST_KEYS:,} keys": batch.mode != "append"
        and batch.upserts + batch.deletes > _MOST_KEYS,
    }
    return next((text for text, holds in reasons.items() if holds), None)


def columns_reason(batch: ReducedBatch, present: Mapping[str, str]) -> str | None:
    """Return why the table's columns need a MERGE; None if they do not. ``present``: types by name."""
    wanted = {fold_name(column.name): column for column in batch.shape.columns}
    own = {SEQUENCE_COLUMN: SEQUENCE_DDL} if batch.sequenced else {}
    if batch.history is not None:
        own |= {column.name: column.spark for column in own_columns(batch.history)}
    # The mark also exists after a change back to hard deletes.
    if batch.sequenced or batch.delete_mode == "soft" or SOFT_DELETE_COLUMN in present:
        own[SOFT_DELETE_COLUMN] = "boolean"
    unlike = next((name for name, ddl in own.items() if present.get(name) != ddl), None)
    if unlike is not None:
        return f"the table has no column {unlike} {own[unlike]}"
    beside = [name for name in present if fold_name(name) not in wanted and name not in own]
    if beside or len(present) != len(wanted) + len(own):
        return f"the table has other columns than the batch: {', '.join(beside) or 'some are missing'}"
    for name, column in ((name, wanted[fold_name(name)]) for name in present if name not in own):
        ddl = present[name]
        if not _is_widened(column.spark, ddl):
            return f"the column {name} is {ddl}, but the batch has {column.spark}"
        if column.key and ddl in _FLOATS:
            return f"the key column {name} is {ddl}"
    return None


def _is_widened(narrow: str, wide: str) -> bool:
    """Return True if every value of a type is also a value of the other, as Arrow converts it."""
    if narrow == wide or (narrow, wide) in _WIDER:
        return True
    if not (narrow.startswith("decimal") and wide.startswith("decimal")):
        return False
    old, new = arrow_of_spark(narrow), arrow_of_spark(wide)
    return bool(old.scale == new.scale and old.precision <= new.precision)


_MERGED: Final = (
    "{} are merged by Spark's MERGE, which takes several times as long as writing files. An existing "
    "table may have more reasons; the log, status and plan show them after its first batch."
)


class LakePreflight(PreflightChecks):
    """Checks of a lake's tables before the first run.

    ``check``: refuses a shape that no table can have.
    ``properties``: table properties, and the values that allow batches to be written as files.
    """

    def __init__(
        self, check: Callable[[TableShape], None], properties: Mapping[str, tuple[str, ...]]
    ) -> None:
        self._check, self._properties = check, properties

    def column_type(self, settings: Any, column: ShapeColumn) -> str:  # noqa: ARG002
        """Return the Spark type."""
        return column.spark

    def foresee(self, config: Config, shape: TableShape) -> PreflightResult:
        """Return which batches need MERGE, according to the config and the source's table."""
        self._check(shape)
        return PreflightResult(tuple(self._merged(config, shape)))

    def _merged(self, config: Config, shape: TableShape) -> Iterator[Limit]:
        settings = config.table_config(shape.source)
        if settings.sequence_by == "source" and CODECS[config.source.protocol].leaves_out:
            what = "batches in the source's order with values that the source omitted"
            yield Limit("merge", _MERGED.format(what))
        floats = tuple(column.name for column in shape.key_columns if column.spark in _FLOATS)
        if floats:
            yield Limit("merge", _MERGED.format("batches of a table with a float in its key"), floats)
        for name, value in cast("LakeSettings", config.target).table_properties.items():
            if value.lower() not in self._properties.get(name, (value.lower(),)):
                what = f"batches of tables with the property {name}: {value}"
                yield Limit("merge", _MERGED.format(what))


def groups_of(files: Sequence[DataFile], *, most: int, rows: int) -> tuple[tuple[DataFile, ...], ...]:
    """Divide files into ``most`` groups of about equal rows, or fewer if a group had less than ``rows``."""
    total = sum(file.rows for file in files)
    count = max(1, min(most, len(files), total // rows)) if files else 0
    groups: list[list[DataFile]] = [[] for _ in range(count)]
    sizes = [0] * count
    for file in sorted(files, key=lambda one: -one.rows):
        least = sizes.index(min(sizes))
        groups[least].append(file)
        sizes[least] += file.rows
    return tuple(tuple(group) for group in groups)
