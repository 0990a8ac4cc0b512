"""Writes batches to an Iceberg table as data files and position deletes, in one snapshot and without MERGE.

If Spark's MERGE must write a batch instead, ``FileWriter.plan`` returns the reason
(docs/adr/0030-lakes-without-merge.md). A history is refused for such a reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa

from tidesink.errors import AccountingError
from tidesink.events import TableId, fold_name
from tidesink.sinks.laws.modes import TO_COLUMN
from tidesink.sinks.spark.errors import SPARK_ERRORS, class_names
from tidesink.sinks.spark.java_names import java_names
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, ApplyOptions, ApplyResult, ReducedBatch, RowFormat
from tidesink.sinks.targets.iceberg.deletes import PositionFiles, Vector, VectorFiles
from tidesink.sinks.targets.iceberg.jvm import (
    INVALID,
    JvmTable,
    TableState,
    reading_error,
    staging_error,
)
from tidesink.sinks.targets.iceberg.partitions import PartitionField, SplitBySpec, is_known
from tidesink.sinks.targets.lake.batches import (
    COMPRESSIONS,
    FILE_LIMITS,
    RANGES,
    BatchCounts,
    FileLimits,
    batch_reason,
    columns_reason,
    float_key,
    new_paths,
    written,
)
from tidesink.sinks.targets.lake.files import (
    ATTEMPT,
    DataFile,
    FileSink,
    NewFiles,
    RowsTask,
    WrittenFile,
)
from tidesink.sinks.targets.lake.rows import (
    FileColumn,
    Partition,
    Split,
    sequence_type,
    unpartitioned,
)
from tidesink.sinks.targets.lake.storage import Storage, hadoop_storage, iceberg_storage, open_storage
from tidesink.sinks.targets.lake.versions import rules_of
from tidesink.typemap.arrow import arrow_of_spark
from tidesink.typemap.target_schema import TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Table properties with the values under which batches can be written as files.
FILE_PROPERTIES: Final[Mapping[str, tuple[str, ...]]] = {
    "write.merge.mode": ("merge-on-read",),
    "write.update.mode": ("merge-on-read",),
    "write.delete.mode": ("merge-on-read",),
    "write.format.default": ("parquet",),
    "write.wap.enabled": ("false",),
    "encryption.key-id": ("",),
}
_DEFAULTS: Final[Mapping[str, str]] = {
    "write.merge.mode": "copy-on-write",
    "write.update.mode": "copy-on-write",
    "write.delete.mode": "copy-on-write",
    "write.format.default": "parquet",
    "write.wap.enabled": "false",
    "encryption.key-id": "",
}
# Iceberg's classes that open files: with Hadoop, with its own S3 client, or with either depending on the
# scheme.
_HADOOP: Final = "org.apache.iceberg.hadoop.HadoopFileIO"
_S3: Final = "org.apache.iceberg.aws.s3.S3FileIO"
_RESOLVING: Final = "org.apache.iceberg.io.ResolvingFileIO"
# Iceberg types that Spark does not have. Spark reads them as string and binary.
_OTHERS: Final = ("uuid", "fixed")
# Types of partition columns that need a MERGE: tasks return partition values as JSON, which has no NaN.
_UNFIT_PARTITIONS: Final = ("float", "double")
# Fields of each partition spec by its id, from the table's metadata.
Specs = Mapping[int, Sequence[Mapping[str, Any]]]
# The table's columns, from its metadata.
Fields = Sequence[Mapping[str, Any]]
# Column names that Iceberg does not change in files.
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class OldPartition(NamedTuple):
    """A partition that has data files already.

    ``spec``: Java's partition spec of these files, which may be an earlier spec of the table.
    ``values``: Java's partition values.
    ``folder``: the folder of these files.
    """

    spec: Any
    values: Any
    folder: str


class FilePlan(NamedTuple):
    """The plan for writing a batch as data files and position deletes, without a MERGE.

    ``state``: the state of the table on which the plan is based.
    ``rows``: the task that writes the batch's rows.
    ``marks``: writes the marks of deleted stored rows.
    ``files``: the data files in which stored rows are searched for.
    ``partitions``: the partitions of ``files``, by their ``Partition.values``.
    ``vectors``: the existing deletion vectors as Iceberg's Java objects, by the path of the data file.
    """

    state: TableState
    rows: RowsTask
    marks: PositionFiles
    files: tuple[DataFile, ...]
    partitions: Mapping[str, OldPartition]
    vectors: Mapping[str, Any]


class _NewRows(NamedTuple):
    """The task that writes a batch's rows to files, and the fields of the table's partition specs."""

    rows: RowsTask
    specs: Specs


class Staged(NamedTuple):
    """A batch whose files are written but not published yet.

    ``snapshot``: Java's new snapshot; None if the batch does not change the table.
    ``result``: the batch's row counts.
    ``paths``: the files that were written for this snapshot.
    ``numbers``: the numbers in the snapshot's summary.
    """

    snapshot: Any
    result: ApplyResult
    paths: tuple[str, ...] = ()
    numbers: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class FileWriter:
    """Plans and writes batches of one Iceberg table as files."""

    session: SparkSession
    table: JvmTable
    name: TableId
    limits: FileLimits = FILE_LIMITS

    def plan(self, batch: ReducedBatch, progress: Progress, state: TableState) -> FilePlan | str:
        """Return the plan for writing a batch as files, or a string with the reason why the batch needs a
        MERGE.

        ``progress``: the progress after the batch. Its epoch and batch number become part of file names.
        ``state``: the table's current state.
        """
        new = batch_reason(batch) or self._new_rows(batch, state, f"{progress.epoch}-{progress.batch}")
        if isinstance(new, str):
            return new
        rows, specs = new
        try:
            old_files = self._data_files(batch, state, rows.files.storage)
        except SPARK_ERRORS as exc:
            raise reading_error(exc, table=str(self.name)) from exc
        if isinstance(old_files, str):
            return old_files
        marks = VectorFiles if state.version == 3 else PositionFiles
        return FilePlan(state, rows, marks(rows.files, _identities(specs)), *old_files)

    def obstacle(self, shape: TargetSchema, state: TableState) -> str | None:
        """Return the reason why no batch of a history can be written as files; None if there is none.

        ``shape``: columns and key of the table.
        ``state``: the table's current state.

        Raises:
            StorageError: it cannot be found out now.
        """
        reason = _of_metadata(state, self._fields(state)) or float_key(shape, self.table.columns(state))
        if reason is not None:
            return reason
        try:
            reason = _of_partitions(state, self._specs(state), int(state.metadata.defaultSpecId()))
            storage = reason or self._storage(state, merges=False)
        except SPARK_ERRORS as exc:
            raise reading_error(exc, table=str(self.name)) from exc
        return storage if isinstance(storage, str) else None

    def sink(self, rows: RowFormat, state: TableState, epoch: int) -> FileSink | None:
        """Return the sink with which Spark tasks write the next batch's rows to files; None if the batch
        needs a MERGE.

        ``rows``: the format of the batch's rows, which must not depend on stored rows.
        """
        batch = ReducedBatch(rows.shape, 0, 0, how=ApplyOptions(mode=rows.mode))
        new_rows = self._new_rows(batch, state, str(epoch))
        return None if isinstance(new_rows, str) else FileSink(new_rows.rows)

    def _new_rows(self, batch: ReducedBatch, state: TableState, words: str) -> _NewRows | str:
        """Return the task that writes a batch's rows, or a string with the reason why the batch needs a
        MERGE.

        ``words``: text that becomes part of the new files' names.
        """
        present, fields = self.table.columns(state), self._fields(state)
        reason = columns_reason(batch, present) or _of_metadata(state, fields)
        if reason is not None:
            return reason
        try:
            specs, current = self._specs(state), int(state.metadata.defaultSpecId())
            reason = _of_partitions(state, specs, current)
            if reason is not None:
                return reason
            storage = self._storage(state, merges=batch.how.mode != "history")
        except SPARK_ERRORS as exc:
            raise reading_error(exc, table=str(self.name)) from exc
        if isinstance(storage, str):
            return storage
        columns = self._columns(batch, fields, present)
        files, split = _new_files(state, words, storage), _split(columns, specs[current])
        return _NewRows(RowsTask(columns, files, rules_of(batch), split), specs)

    def stage(self, batch: ReducedBatch, plan: FilePlan) -> Staged | None:
        """Write a batch's files and create a snapshot of them, without publishing it.

        Returns None if another writer committed after the plan was made.

        Raises:
            AccountingError: the written rows do not match the batch, or the table has several rows with the
                same key.
            NotAsFilesError: only Spark can read a file of the table, or the batch needs too many values of
                stored rows.
            TidesinkError: a Spark task failed. ``staging_error`` converts Spark's error.
        """
        try:
            return self._stage(batch, plan)
        except SPARK_ERRORS as exc:
            raise staging_error(exc, table=str(self.name)) from exc

    def discard(self, paths: Iterable[str], state: TableState) -> None:
        """Remove files that no snapshot contains.

        Errors are ignored, because readers never see these files.
        """
        with suppress(*SPARK_ERRORS):
            for path in paths:
                state.table.io().deleteFile(path)

    def _storage(self, state: TableState, *, merges: bool) -> Storage | str:
        return open_storage(lambda: self._look_up(state), str(state.table.location()), merges=merges)

    def _look_up(self, state: TableState) -> Storage | str:
        """Return the storage with which Python opens the table's files, or a string with the reason why it
        cannot.

        Raises:
            StorageError: Hadoop does not return its settings.
        """
        location, io = str(state.table.locationProvider().newDataLocation("none")), state.table.io()
        kind = str(io.getClass().getName())
        if kind == _RESOLVING:
            kind = str(io.ioClass(location).getName())
        if kind == _HADOOP:
            return hadoop_storage(location, io.getConf, java_names(self.session))
        if kind == _S3 and io.credentials().isEmpty():
            return iceberg_storage(location, {str(k): str(v) for k, v in dict(io.properties()).items()})
        return f"only Spark, not Python, can open files with {kind}: {location}"

    def _data_files(
        self, batch: ReducedBatch, state: TableState, storage: Storage
    ) -> tuple[tuple[DataFile, ...], dict[str, OldPartition], dict[str, Any]] | str:
        """Return the data files that may contain the batch's keys, with their partitions and deletion
        vectors.

        Returns a string with the reason for a MERGE if Python cannot read one of the files.
        """
        files, partitions, vectors = list[DataFile](), dict[str, OldPartition](), dict[str, Any]()
        if batch.how.mode == "append" or state.totals.get("total-data-files") == 0:
            return (), partitions, vectors
        tasks = [(scanned, scanned.deletes()) for scanned in self._scan(batch, state)]
        parser = _Deletes(self.table.java.ContentFileParser.toJson, java_names(self.session))
        # Files with the longest lists of deletes first, because the other lists are parts of these
        # (``_Deletes``).
        for scanned, java_deletes in sorted(tasks, key=lambda task: -len(task[1])):
            spec = scanned.spec()
            data = parser.parsed(scanned.file(), spec)
            values = json.dumps([data["spec-id"], data.get("partition")])
            deletes = parser.of(java_deletes, spec, values)
            for file in (data, *deletes):
                content, form = _words(file["content"]), _words(file["file-format"])
                expected = "puffin" if "content-offset" in file else "parquet"
                if content not in ("data", "position-deletes") or form != expected:
                    return f"the table has a file of {content} in format {form}"
                if not storage.holds(file["file-path"]):
                    return f"the table has a file outside its own bucket or file system: {file['file-path']}"
            for number in (index for index, delete in enumerate(deletes) if "content-offset" in delete):
                vectors[data["file-path"]] = java_deletes[number]
            if values not in partitions:
                partition = scanned.file().partition()
                partitions[values] = OldPartition(spec, partition, str(spec.partitionToPath(partition)))
            partition = Partition(partitions[values].folder, values)
            texts = tuple(map(_deletes_text, deletes))
            files.append(DataFile(data["file-path"], data["record-count"], texts, partition))
        return tuple(files), partitions, vectors

    def _scan(self, batch: ReducedBatch, state: TableState) -> Iterator[Any]:
        """Yield Java's scan tasks of the data files that may contain a key in the batch's key range."""
        scan = state.table.newScan().useSnapshot(state.head).caseSensitive(False)
        types = {column.name: column.spark for column in batch.shape.key_columns}
        expressions = self.table.java.expressions.Expressions
        for name, (least, greatest) in batch.key_range.items():
            if types.get(name) in RANGES and least is not None:
                scan = scan.filter(expressions.greaterThanOrEqual(name, least))
                scan = scan.filter(expressions.lessThanOrEqual(name, greatest))
        # In a history, versions that ended before the batch do not change.
        if batch.how.mode == "history" and batch.since is not None:
            later = expressions.greaterThanOrEqual(TO_COLUMN, batch.since)
            scan = scan.filter(getattr(expressions, "or")(expressions.isNull(TO_COLUMN), later))
        tasks = scan.planFiles()
        try:
            iterator = tasks.iterator()
            while iterator.hasNext():
                yield iterator.next()
        finally:
            tasks.close()

    def _fields(self, state: TableState) -> Fields:
        fields: Fields = json.loads(self.table.java.SchemaParser.toJson(state.metadata.schema()))["fields"]
        return fields

    def _columns(
        self, batch: ReducedBatch, fields: Fields, present: Mapping[str, str]
    ) -> tuple[FileColumn, ...]:
        """Return the table's columns in table order, with their names and types in its data files."""
        columns = []
        for field in fields:
            name = field["name"]
            column = batch.shape.by_name.get(fold_name(name))
            kind = _sequence_type(field["type"]) if name == SEQUENCE_COLUMN else arrow_of_spark(present[name])
            source, key = (column.name, column.key) if column else (name, False)
            here = self._in_files(name)
            columns.append(FileColumn(here, source, kind, field["id"], field["required"], key))
        return tuple(columns)

    def _specs(self, state: TableState) -> Specs:
        parser = self.table.java.PartitionSpecParser
        return {
            number: json.loads(parser.toJson(state.metadata.spec(number)))["fields"]
            for number in state.spec_numbers()
        }

    def _in_files(self, name: str) -> str:
        """Return the name that a column has in data files. Iceberg changes names that Avro does not allow."""
        return (
            name if _PLAIN.fullmatch(name) else self.table.java.avro.AvroSchemaUtil.makeCompatibleName(name)
        )

    def _stage(self, batch: ReducedBatch, plan: FilePlan) -> Staged | None:
        lines, counts = written(
            batch, plan.files, plan.rows, plan.marks, session=self.session, limits=self.limits
        )
        files = [line for line in lines if line.path is not None]
        if not files:
            return Staged(None, replace(counts.result, version=str(plan.state.head)))
        staged = Staged(None, counts.result, new_paths(batch, files))
        try:
            snapshot = self._snapshot(plan, files)
        except SPARK_ERRORS as exc:
            if INVALID not in class_names(exc):
                raise
            snapshot = None  # another commit changed the deletion vector of one of the data files
        if snapshot is None or not self._is_on(plan.state, snapshot):
            self.discard(staged.paths, plan.state)
            return None
        summary = plan.state.numbers(snapshot)
        self._check(summary, counts, _taken_over(plan, files))
        result = replace(counts.result, version=str(snapshot.snapshotId()))
        return staged._replace(snapshot=snapshot, result=result, numbers=summary)

    def _is_on(self, state: TableState, snapshot: Any) -> bool:
        """Return True if a new snapshot still fits the table: its parent is the snapshot that readers see in
        ``state``, and the table's format version has not changed since.
        """
        now = state.table.operations().current()
        return snapshot.parentId() == state.head and int(now.formatVersion()) == state.version

    def _snapshot(self, plan: FilePlan, files: list[WrittenFile]) -> Any:
        """Create Java's snapshot of the new files, with its manifests, without committing it."""
        state, java = plan.state, self.table.java
        change, metrics = state.table.newRowDelta(), java.MetricsConfig
        spec, partitions = state.metadata.spec(), dict[str, Any]()
        for file in files:
            if file.found is not None:
                for deletes in self._deletes(plan, file):
                    change.addDeletes(deletes)
                continue
            builder = java.DataFiles.builder(spec)
            if file.partition:
                if file.partition not in partitions:
                    values = java.SingleValueParser.fromJson(spec.partitionType(), file.partition)
                    partitions[file.partition] = values
                builder = builder.withPartition(partitions[file.partition])
            change.addRows(self._file(builder, state, file, metrics.forTable(state.table)))
        replaced = {vector["file"] for file in files for vector in _vectors(file)} & plan.vectors.keys()
        for path in replaced:
            change.removeDeletes(plan.vectors[path])
        if isinstance(
            plan.marks, VectorFiles
        ):  # without this, any vector that the table ever had counts as a conflict
            change.validateFromSnapshot(state.head)
        return change.apply()

    def _deletes(self, plan: FilePlan, file: WrittenFile) -> Iterator[Any]:
        """Yield Java's ``DeleteFile`` objects for a file with marks of deleted rows that a task has written.

        There is one for a position delete file, and one for each deletion vector in a Puffin file.
        """
        java, state = self.table.java, plan.state
        if file.details is None:
            builder = _deletes_of(java, plan.partitions[file.partition])
            yield self._file(builder, state, file, java.MetricsConfig.forPositionDelete(state.table))
        old = {file.path: plan.partitions[file.partition.values] for file in plan.files}
        for vector in _vectors(file):
            builder = _deletes_of(java, old[vector["file"]]).withReferencedDataFile(vector["file"])
            builder = builder.withPath(file.path).withFileSizeInBytes(file.size)
            builder = builder.withFormat(java.FileFormat.PUFFIN).withRecordCount(vector["rows"])
            builder = builder.withContentOffset(vector["offset"]).withContentSizeInBytes(vector["length"])
            yield builder.build()

    def _file(self, builder: Any, state: TableState, file: WrittenFile, metrics: Any) -> Any:
        java = self.table.java
        file_metrics = java.parquet.ParquetUtil.fileMetrics(state.table.io().newInputFile(file.path), metrics)
        sized = builder.withPath(file.path).withFileSizeInBytes(file.size)
        return sized.withFormat(java.FileFormat.PARQUET).withMetrics(file_metrics).build()

    def _check(self, summary: Mapping[str, int], counts: BatchCounts, taken_over: int) -> None:
        """Check the numbers in a snapshot's summary against the rows that were written and deleted.

        ``taken_over``: number of rows that new deletion vectors copy from position delete files.

        Raises:
            AccountingError: the numbers differ.
        """
        added = summary.get("added-records", 0)
        marked = summary.get("added-position-deletes", 0) - summary.get("removed-position-deletes", 0)
        if (added, marked) != (counts.rows, counts.marked + taken_over):
            raise AccountingError(
                f"The snapshot reports {added} rows added and {marked} deleted. But {counts.rows} rows were "
                f"written, and {counts.marked} stored rows must be replaced or deleted. Nothing was "
                "published. Report this with the log.",
                table=str(self.name),
            )


class _Deletes:
    """Requests descriptions of data files' delete files from Java, as JSON, and caches them.

    They are requested one by one, because the socket to Java delays an answer of more than 8 KiB by 40 ms.
    The data files of a partition mostly share one list of delete files, or a part of it, so each delete file
    is requested only once.
    """

    def __init__(self, to_json: Callable[[Any, Any], str], jvm: Any) -> None:
        self._to_json, self._java = to_json, jvm.java.util.Collections
        self._longest: dict[str, tuple[Any, list[dict[str, Any]]]] = {}

    def parsed(self, file: Any, spec: Any) -> dict[str, Any]:
        """Return Iceberg's JSON description of a data file or delete file, parsed."""
        document: dict[str, Any] = json.loads(self._to_json(file, spec))
        return document

    def of(self, deletes: Any, spec: Any, partition: str) -> list[dict[str, Any]]:
        """Return Iceberg's JSON descriptions of a data file's delete files, parsed.

        ``deletes``: Java's list of the delete files.
        ``spec``: Java's partition spec of the data file.
        ``partition``: identifies the data file's partition.
        """
        count = len(deletes)
        longest, documents = self._longest.get(partition, (None, []))
        start = int(self._java.indexOfSubList(longest, deletes)) if 0 < count <= len(documents) else -1
        if start < 0:
            start, documents = 0, [self.parsed(deletes[number], spec) for number in range(count)]
            self._longest.setdefault(partition, (deletes, documents))
        return documents[start : start + count]


def _deletes_text(file: Mapping[str, Any]) -> str:
    """Return the entry of ``DataFile.deletes`` for a position delete file or a deletion vector.

    ``file``: Iceberg's JSON description of it, parsed.
    """
    path, rows = str(file["file-path"]), file["record-count"]
    if "content-offset" not in file:
        return path
    return json.dumps(Vector(path, file["content-offset"], file["content-size-in-bytes"], rows))


def _deletes_of(java: Any, old: OldPartition) -> Any:
    """Return Java's builder of a delete file that applies to the data files of the partition ``old``."""
    return java.FileMetadata.deleteFileBuilder(old.spec).ofPositionDeletes().withPartition(old.values)


def _vectors(file: WrittenFile) -> list[dict[str, Any]]:
    """Return the descriptions of the deletion vectors in a file that a task wrote; empty if it is not a
    Puffin file.
    """
    vectors: list[dict[str, Any]] = json.loads(file.details or "[]")
    return vectors


def _taken_over(plan: FilePlan, files: Sequence[WrittenFile]) -> int:
    """Return the number of rows that new deletion vectors copy from position delete files that stay in the
    table.
    """
    vectors = (vector for file in files for vector in _vectors(file))
    return sum(entry["rows"] - entry["new"] for entry in vectors if entry["file"] not in plan.vectors)


def _sequence_type(kind: Mapping[str, Any]) -> pa.DataType:
    """Return the Arrow type of ``SEQUENCE_COLUMN`` in files; ``kind``: its type in Iceberg's JSON."""
    members = kind["fields"]
    names = [(member["name"], member["id"]) for member in members]
    return sequence_type(names, members[0]["type"]["element-id"])


# The decision between files and MERGE. Each function returns the reason for a MERGE, or None.


def _of_metadata(state: TableState, fields: Fields) -> str | None:
    if state.version not in (2, 3):
        return f"the table has format version {state.version}"
    if not state.metadata.sortOrder().isUnsorted():
        return "the table has a sort order"
    for name, wanted in FILE_PROPERTIES.items():
        setting = state.property(name)
        setting = _DEFAULTS[name] if setting is None else setting
        if setting.lower() not in wanted:
            return f"the table's property {name} is {setting}"
    for field in fields:
        if str(field["type"]).startswith(_OTHERS):
            return f"the column {field['name']} is {field['type']}"
        if "initial-default" in field:
            return f"the column {field['name']} has a default in old files"
    if _codec(state) is None:
        return f"the table's files are compressed by {state.property('write.parquet.compression-codec')}"
    return None


def _of_partitions(state: TableState, specs: Specs, current: int) -> str | None:
    schema = state.metadata.schema()
    for fields in specs.values():
        for field in fields:
            if schema.findType(field["source-id"]) is None:
                return f"the partition field {field['name']} is based on a column that was dropped"
    for field in specs[current]:
        if schema.asStruct().field(field["source-id"]) is None:
            return f"the partition field {field['name']} is based on a field within a column"
        if not is_known(field["transform"]):
            return f"the partition field {field['name']} has the transform {field['transform']}"
        kind = str(schema.findType(field["source-id"]))
        if kind in _UNFIT_PARTITIONS:
            return f"the partition field {field['name']} is based on a {kind} column"
    return None


def _identities(specs: Specs) -> frozenset[tuple[int, int]]:
    return frozenset(
        (number, field["source-id"])
        for number, fields in specs.items()
        for field in fields
        if field["transform"] == "identity"
    )


def _split(columns: Sequence[FileColumn], spec: Sequence[Mapping[str, Any]]) -> Split:
    names = {column.field_id: column.name for column in columns}
    fields = tuple(
        PartitionField(field["field-id"], field["name"], names[field["source-id"]], field["transform"])
        for field in spec
    )
    return SplitBySpec(fields) if fields else unpartitioned


def _words(text: str) -> str:
    """Normalize Iceberg's name of a file's content or format, which is spelled differently in versions of
    Iceberg.
    """
    return text.lower().replace("_", "-")


def _codec(state: TableState) -> str | None:
    """Return Arrow's name of the compression of new data files; None if tidesink does not support it."""
    return COMPRESSIONS.get((state.property("write.parquet.compression-codec") or "zstd").lower())


def _new_files(state: TableState, words: str, storage: Storage) -> NewFiles:
    name = f"{words}-{uuid4().hex}-{ATTEMPT}.parquet"
    location = str(state.table.locationProvider().newDataLocation(name))
    return NewFiles(location, _codec(state) or "zstd", storage=storage)
