"""A batch as files of a lake's table, on the driver: whether it can be, the tasks that run, what they did."""

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


# The keys of a batch go to each task that locates them.
_MOST_KEYS: Final = 2_000_000
# A task that locates keys reads those of about so many rows.
_ROWS_A_TASK: Final = 500_000
# Records of a range whose rows are worth files of their own.
FEWEST_STAGED: Final = 50_000
# Names of what compresses Parquet files, with Arrow's.
COMPRESSIONS: Final[Mapping[str, str]] = {
    "zstd": "zstd",
    "snappy": "snappy",
    "gzip": "gzip",
    "uncompressed": "none",
    "none": "none",
}
# Types whose equality is not that of their bits.
_FLOATS: Final = ("float", "double")
_WIDER: Final = frozenset({("int", "bigint"), ("float", "double")})
# Key columns of these types leave out files by the range of a batch's keys.
RANGES: Final = ("int", "bigint", "string")


def written(
    batch: ReducedBatch, files: Sequence[DataFile], rows: RowsTask, marks: Marks, *, session: SparkSession
) -> tuple[list[WrittenFile], BatchCounts]:
    """Write what the rows of a batch become, and mark those in ``files`` that it replaces and deletes.

    Raises:
        AccountingError: what tasks wrote is not what the batch has, or the table has several rows of a key.
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
    """The files that were written for an attempt to commit a batch: not those that it came in."""
    staged = {line.path for part in batch.staged or () for line in part.files}
    return tuple(one.path for one in lines if one.path is not None and one.path not in staged)


def paths_of(parts: Iterable[StagedPart]) -> tuple[str, ...]:
    """The files that staged rows are in."""
    return tuple(line.path for part in parts for line in part.files if line.path is not None)


def _run(frame: DataFrame, task: RowsTask | KeysTask | LocateTask | SmallBatchTask) -> list[WrittenFile]:
    return [WrittenFile(*line) for line in frame.mapInArrow(task, FILE_DDL).collect()]


class BatchCounts(NamedTuple):
    """What a batch does, without a version; the rows that its files have, and the rows that it marks.

    ``versions``: of a history.
    """

    result: ApplyResult
    rows: int
    marked: int
    versions: Counts | None = None


def counted(batch: ReducedBatch, lines: Sequence[WrittenFile]) -> BatchCounts:
    """What a batch does by what tasks wrote and found.

    Raises:
        AccountingError: that is not what the batch has, or a key has several rows.
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
            f"{rows} rows were written to files, of {keys} keys, and the batch has {batch.upserts} upserts "
            f"and {batch.deletes} deletes, for {counts.marked} of which there was a row to replace, and for "
            f"{counts.result.stale} a newer one; nothing is visible"
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


# Where a batch goes. Each gives the reason for a MERGE.


class FilePlan(Protocol):
    """What a format plans for a batch that can be files: what its tasks write, and the table's files."""

    @property
    def rows(self) -> RowsTask:
        """What the tasks write."""

    @property
    def files(self) -> Sequence[DataFile]:
        """The table's, of which the batch may replace rows."""


Plan = TypeVar("Plan", bound=FilePlan)
Done = TypeVar("Done")


def planned_as_staged(batch: ReducedBatch, plan: Plan | str, sink: FileSink | None) -> Plan | str:
    """The plan of a batch; a reason where its rows are in files already, which would now be others."""
    if batch.staged is None or isinstance(plan, str):
        return plan
    if sink is None or not plan.rows.is_like(sink.rows):
        return "the table's columns or properties changed meanwhile"
    return plan


class FilesOrMerge:
    """Whether a table's batches are files or left to Spark; the log says why, once as long as it stays so.

    ``reason``: of the last batch, if it was left.
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
        # Files of the table that were refused: to try again would write the batch's rows for nothing.
        self._refused: dict[str, str] = {}

    def write(self, batch: ReducedBatch, plan: Plan | str, write: Callable[[Plan], Done]) -> Done | str:
        """What writing a batch as planned gave; as text, the reason for a MERGE. A plan can be one.

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
                f"the rows that were written cannot be committed as files: {done}", table=str(self._table)
            )
        return done

    def stages(self, rows: RowFormat, *, soft: bool) -> bool:
        """Whether the next batch's rows are written while they are read.

        Not where what is written depends on stored rows, nor where a range has so few rows that its file
        would be a small one.
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
    """Why a batch is merged by MERGE, whatever the table; None where it need not be.

    Raises:
        TargetError: a history takes no such batch.
    """
    if batch.mode == "history":
        check_versions(batch)
    reasons = {
        # In these orders several ranges may have events of one key, which are reduced once more.
        "the batch has no payloads": batch.payloads is None
        and batch.staged is None
        and not ((batch.sequenced or batch.mode == "history") and batch.frame),
        "the batch empties the table": batch.truncates,
        "sequence_by: source, and the source left out values": batch.sequenced and batch.keeps,
        f"the batch has more than {_MOST_KEYS:,} keys": batch.mode != "append"
        and batch.upserts + batch.deletes > _MOST_KEYS,
    }
    return next((text for text, holds in reasons.items() if holds), None)


def columns_reason(batch: ReducedBatch, present: Mapping[str, str]) -> str | None:
    """Why the table's columns, by name with their types, make it so."""
    wanted = {fold_name(column.name): column for column in batch.shape.columns}
    own = {SEQUENCE_COLUMN: SEQUENCE_DDL} if batch.sequenced else {}
    if batch.history is not None:
        own |= {column.name: column.spark for column in own_columns(batch.history)}
    # Also after a change back to hard deletes, the mark is there.
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
            return f"the column {name} is {ddl}, and the batch has {column.spark}"
        if column.key and ddl in _FLOATS:
            return f"the key column {name} is {ddl}"
    return None


def _is_widened(narrow: str, wide: str) -> bool:
    """Whether each value of a type is one of the other, as Arrow converts it."""
    if narrow == wide or (narrow, wide) in _WIDER:
        return True
    if not (narrow.startswith("decimal") and wide.startswith("decimal")):
        return False
    old, new = arrow_of_spark(narrow), arrow_of_spark(wide)
    return bool(old.scale == new.scale and old.precision <= new.precision)


_MERGED: Final = (
    "{} are merged by Spark's MERGE, which takes several times as long as files; a table that is there may "
    "have more reasons, which the log, status and plan say after its first batch"
)


class LakePreflight(PreflightChecks):
    """Of tables of a lake; ``check`` refuses a shape of which there can be none.

    ``properties``: of tables, and their values under which batches are written as files.
    """

    def __init__(
        self, check: Callable[[TableShape], None], properties: Mapping[str, tuple[str, ...]]
    ) -> None:
        self._check, self._properties = check, properties

    def column_type(self, settings: Any, column: ShapeColumn) -> str:  # noqa: ARG002
        """As Spark has it."""
        return column.spark

    def foresee(self, config: Config, shape: TableShape) -> PreflightResult:
        """Which batches MERGE takes, as far as the config and the source's table say it.

        Raises as ``PreflightChecks`` says.
        """
        self._check(shape)
        return PreflightResult(tuple(self._merged(config, shape)))

    def _merged(self, config: Config, shape: TableShape) -> Iterator[Limit]:
        settings = config.table_config(shape.source)
        if settings.sequence_by == "source" and CODECS[config.source.protocol].leaves_out:
            what = "batches in the source's order with values that the source left out"
            yield Limit("merge", _MERGED.format(what))
        floats = tuple(column.name for column in shape.key_columns if column.spark in _FLOATS)
        if floats:
            yield Limit("merge", _MERGED.format("batches of a table with a float in its key"), floats)
        for name, value in cast("LakeSettings", config.target).table_properties.items():
            if value.lower() not in self._properties.get(name, (value.lower(),)):
                what = f"batches of tables with the property {name}: {value}"
                yield Limit("merge", _MERGED.format(what))


def groups_of(files: Sequence[DataFile], *, most: int, rows: int) -> tuple[tuple[DataFile, ...], ...]:
    """Files in ``most`` groups of about as many rows each, or fewer where these have less than ``rows``."""
    total = sum(file.rows for file in files)
    count = max(1, min(most, len(files), total // rows)) if files else 0
    groups: list[list[DataFile]] = [[] for _ in range(count)]
    sizes = [0] * count
    for file in sorted(files, key=lambda one: -one.rows):
        least = sizes.index(min(sizes))
        groups[least].append(file)
        sizes[least] += file.rows
    return tuple(tuple(group) for group in groups)
