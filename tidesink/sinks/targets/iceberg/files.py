"""A batch into an Iceberg table without MERGE: new files, positions of the rows they replace, one snapshot.

``FileWriter.plan`` says which batches of which tables are merged instead, and why
(docs/adr/0030-lakes-without-merge.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from tidesink.errors import AccountingError
from tidesink.events import TableId
from tidesink.sinks.spark.errors import SPARK_ERRORS
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, ApplyResult, ReducedBatch
from tidesink.sinks.targets.iceberg.jvm import JvmTable, TableState, numbers, reading_error, staging_error
from tidesink.sinks.targets.lake.files import (
    ATTEMPT,
    CODECS,
    RANGES,
    BatchCounts,
    DataFile,
    NewFiles,
    PositionFiles,
    RowsTask,
    WrittenFile,
    batch_reason,
    columns_reason,
    is_local,
    written,
)
from tidesink.sinks.targets.lake.rows import FileColumn, RowRules, sequence_type
from tidesink.typemap.arrow import arrow_of_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


# Properties of a table, and the only value under which a batch is written as files.
_PROPERTIES: Final[Mapping[str, tuple[str, str]]] = {
    "write.merge.mode": ("copy-on-write", "merge-on-read"),
    "write.update.mode": ("copy-on-write", "merge-on-read"),
    "write.delete.mode": ("copy-on-write", "merge-on-read"),
    "write.format.default": ("parquet", "parquet"),
    "write.wap.enabled": ("false", "false"),
    "encryption.key-id": ("", ""),
}
# Iceberg's types that Spark, which has none of them, calls string and binary.
_OTHERS: Final = ("uuid", "fixed")
# A column's name that its files have too.
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class FilePlan(NamedTuple):
    """How a batch is written on a state of the table: its columns, and files, new and old."""

    state: TableState
    columns: tuple[FileColumn, ...]
    new: NewFiles
    files: tuple[DataFile, ...]


class Staged(NamedTuple):
    """A snapshot that no table has yet, None where the table stays as it is; what it does; its files."""

    snapshot: Any
    result: ApplyResult
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileWriter:
    """Writes batches of one table as files."""

    session: SparkSession
    table: JvmTable
    name: TableId

    def plan(self, batch: ReducedBatch, state: TableState) -> FilePlan | str:
        """How a batch is written on what readers see at ``state``, or why it is merged by MERGE."""
        present = self.table.columns(state)
        reason = batch_reason(batch) or columns_reason(batch, present) or self._of_table(state)
        if reason is not None:
            return reason
        try:
            files = self._data_files(batch, state)
        except SPARK_ERRORS as exc:
            raise reading_error(exc, table=str(self.name)) from exc
        if isinstance(files, str):
            return files
        return FilePlan(state, self._columns(batch, state, present), _new_files(state), files)

    def stage(self, batch: ReducedBatch, plan: FilePlan) -> Staged | None:
        """Write a batch; None where others committed since the plan was made.

        Raises:
            AccountingError: what was written is not what the batch has, or a key has several rows.
            NotAsFilesError: a file of the table can be read by Spark alone, or stored values are too many.
            TidesinkError: as ``staging_error`` says of what Spark raised.
        """
        try:
            return self._stage(batch, plan)
        except SPARK_ERRORS as exc:
            raise staging_error(exc, table=str(self.name)) from exc

    def discard(self, staged: Staged, state: TableState) -> None:
        """Remove the files of a snapshot that came into no table; what cannot be removed stays, unseen."""
        with suppress(*SPARK_ERRORS):
            for path in staged.paths:
                state.table.io().deleteFile(path)

    def _of_table(self, state: TableState) -> str | None:
        place = str(state.table.locationProvider().newDataLocation("none"))
        if not self._is_local(place):
            return f"the table's files are not on a local disk: {place.rpartition('/')[0]}"
        return _of_metadata(state)

    def _is_local(self, place: str) -> bool:
        return is_local(place) and (place.startswith("file:") or self._on_disk)

    @cached_property
    def _on_disk(self) -> bool:
        """Whether Hadoop has places that name no file system on the machine's disk."""
        java: Any = self.session
        usual = java._jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(java._jsc.hadoopConfiguration())
        return str(usual.getScheme()) == "file"

    def _data_files(self, batch: ReducedBatch, state: TableState) -> tuple[DataFile, ...] | str:
        """The files that may have rows of the batch's keys; the reason where one is not ours to read."""
        if state.totals().get("total-data-files") == 0:
            return ()
        found = []
        for task in self._scan(batch, state):
            data, deletes = task["data-file"], task.get("delete-files", [])
            for file in (data, *deletes):
                content, form = _words(file["content"]), _words(file["file-format"])
                if content not in ("data", "position-deletes") or form != "parquet":
                    return f"the table has a file of {content} in format {form}"
                if not self._is_local(file["file-path"]):
                    return f"the table has a file that is not on a local disk: {file['file-path']}"
            paths = tuple(one["file-path"] for one in deletes)
            found.append(DataFile(data["file-path"], data["record-count"], paths))
        return tuple(found)

    def _scan(self, batch: ReducedBatch, state: TableState) -> Iterator[dict[str, Any]]:
        """The files of what readers see that may have a key in the batch's range, as Iceberg says them."""
        scan = state.table.newScan().useSnapshot(state.head).caseSensitive(False)
        types = {column.name: column.spark for column in batch.shape.key_columns}
        expressions = self.table.java.expressions.Expressions
        for name, (least, greatest) in batch.key_range.items():
            if types.get(name) in RANGES and least is not None:
                scan = scan.filter(expressions.greaterThanOrEqual(name, least))
                scan = scan.filter(expressions.lessThanOrEqual(name, greatest))
        tasks = scan.planFiles()
        try:
            found = tasks.iterator()
            while found.hasNext():
                yield json.loads(self.table.java.ScanTaskParser.toJson(found.next()))
        finally:
            tasks.close()

    def _columns(
        self, batch: ReducedBatch, state: TableState, present: Mapping[str, str]
    ) -> tuple[FileColumn, ...]:
        """The table's columns, in its order, each with its field id and its name in Iceberg's files."""
        found = []
        for field in state.metadata.schema().columns():
            name = str(field.name())
            column = batch.shape.by_name.get(name.lower())
            kind = _sequence_type(field) if name == SEQUENCE_COLUMN else arrow_of_spark(present[name])
            number, needed = int(field.fieldId()), bool(field.isRequired())
            source, key = (column.name, column.key) if column else (name, False)
            found.append(FileColumn(self._in_files(name), source, kind, number, needed, key))
        return tuple(found)

    def _in_files(self, name: str) -> str:
        """A column's name in Iceberg's files, which are Avro's names."""
        return (
            name if _PLAIN.fullmatch(name) else self.table.java.avro.AvroSchemaUtil.makeCompatibleName(name)
        )

    def _stage(self, batch: ReducedBatch, plan: FilePlan) -> Staged | None:
        rows = RowsTask(plan.columns, plan.new, RowRules.of(batch))
        lines, counts = written(batch, plan.files, rows, PositionFiles(plan.new), session=self.session)
        files = [one for one in lines if one.path is not None]
        if not files:
            return Staged(None, replace(counts.result, version=str(plan.state.head)))
        snapshot = self._snapshot(plan.state, files)
        staged = Staged(
            snapshot,
            replace(counts.result, version=str(snapshot.snapshotId())),
            tuple(str(one.path) for one in files),
        )
        if snapshot.parentId() != plan.state.head:
            self.discard(staged, plan.state)
            return None
        self._check(numbers(snapshot), counts)
        return staged

    def _snapshot(self, state: TableState, files: list[WrittenFile]) -> Any:
        """The snapshot of new files on the newest metadata; its manifests are written, and nothing has it."""
        change, java = state.table.newRowDelta(), self.table.java
        metrics, spec = java.MetricsConfig, state.table.spec()
        for one in files:
            if one.found is None:
                builder = java.DataFiles.builder(spec)
                change.addRows(self._file(builder, state, one, metrics.forTable(state.table)))
            else:
                builder = java.FileMetadata.deleteFileBuilder(spec).ofPositionDeletes()
                change.addDeletes(self._file(builder, state, one, metrics.forPositionDelete(state.table)))
        return change.apply()

    def _file(self, builder: Any, state: TableState, file: WrittenFile, metrics: Any) -> Any:
        java = self.table.java
        found = java.parquet.ParquetUtil.fileMetrics(state.table.io().newInputFile(file.path), metrics)
        sized = builder.withPath(file.path).withFileSizeInBytes(file.size)
        return sized.withFormat(java.FileFormat.PARQUET).withMetrics(found).build()

    def _check(self, summary: Mapping[str, int], counts: BatchCounts) -> None:
        """Hold the snapshot's own numbers to what was written and found."""
        added, marked = summary.get("added-records", 0), summary.get("added-position-deletes", 0)
        if (added, marked) != (counts.rows, counts.marked):
            raise AccountingError(
                f"the snapshot says {added} rows added and {marked} marked as deleted, of {counts.rows} to "
                f"write, and {counts.marked} that were there; nothing is visible",
                table=str(self.name),
            )


def _sequence_type(field: Any) -> pa.DataType:
    """The Arrow type of the positions of rows, with the numbers that their members have in files."""
    members = list(field.type().asStructType().fields())
    names = [(str(member.name()), int(member.fieldId())) for member in members]
    return sequence_type(names, int(members[0].type().asListType().elementId()))


# Where a batch goes. Each gives the reason for a MERGE.


def _of_metadata(state: TableState) -> str | None:
    metadata = state.metadata
    version = int(metadata.formatVersion())
    if version != 2:
        return f"the table has format version {version}"
    if any(not spec.isUnpartitioned() for spec in metadata.specs()):
        return "the table is partitioned"
    if not metadata.sortOrder().isUnsorted():
        return "the table has a sort order"
    for name, (default, wanted) in _PROPERTIES.items():
        value = state.property(name)
        if (default if value is None else value).lower() != wanted:
            return f"the table's property {name} is {value or default}"
    for field in metadata.schema().columns():
        kind = str(field.type())
        if kind.startswith(_OTHERS):
            return f"the column {field.name()} is {kind}"
    if _codec(state) is None:
        return f"the table's files are compressed by {state.property('write.parquet.compression-codec')}"
    return None


def _words(text: str) -> str:
    """What Iceberg calls a kind of file, whose spelling its versions change."""
    return text.lower().replace("_", "-")


def _codec(state: TableState) -> str | None:
    """What compresses new files, in Arrow's words; None where it is none of ours."""
    return CODECS.get((state.property("write.parquet.compression-codec") or "zstd").lower())


def _new_files(state: TableState) -> NewFiles:
    name = f"{uuid4().hex}-{ATTEMPT}.parquet"
    return NewFiles(str(state.table.locationProvider().newDataLocation(name)), _codec(state) or "zstd")
