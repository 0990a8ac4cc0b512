"""A batch into an Iceberg table without MERGE: new files, positions of the rows they replace, one snapshot.

``FileWriter.plan`` says which batches of which tables are merged instead, and why
(docs/adr/0030-lakes-without-merge.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidesink.errors import AccountingError
from tidesink.events import TableId
from tidesink.sinks.spark.errors import SPARK_ERRORS
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, ApplyResult, ReducedBatch
from tidesink.sinks.targets.iceberg.jvm import JvmTable, TableState, numbers, reading_error, staging_error
from tidesink.sinks.targets.iceberg.partitions import PartitionField, SplitBySpec, is_known
from tidesink.sinks.targets.lake.batches import (
    COMPRESSIONS,
    RANGES,
    BatchCounts,
    batch_reason,
    columns_reason,
    written,
)
from tidesink.sinks.targets.lake.files import (
    ATTEMPT,
    DataFile,
    FileRefusedError,
    MarkedRows,
    NewFiles,
    RowsTask,
    WrittenFile,
)
from tidesink.sinks.targets.lake.rows import (
    FIELD_ID,
    FileColumn,
    Partition,
    Places,
    Split,
    codes,
    sequence_type,
    unpartitioned,
)
from tidesink.sinks.targets.lake.storage import Storage, hadoop_storage, iceberg_storage
from tidesink.sinks.targets.lake.versions import rules_of
from tidesink.sinks.targets.modes import TO_COLUMN
from tidesink.typemap.arrow import arrow_of_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Properties of a table, and their values under which a batch is written as files.
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
# How Iceberg opens files: by Hadoop, by its own client of S3, by one of them for each scheme.
_HADOOP: Final = "org.apache.iceberg.hadoop.HadoopFileIO"
_S3: Final = "org.apache.iceberg.aws.s3.S3FileIO"
_RESOLVING: Final = "org.apache.iceberg.io.ResolvingFileIO"
# Iceberg's types that Spark, which has none of them, calls string and binary.
_OTHERS: Final = ("uuid", "fixed")
# Iceberg's JSON, in which partitions come from tasks, has no NaN.
_UNFIT_PARTITIONS: Final = ("float", "double")
# The fields of partition specs by the specs' numbers, as the metadata have them.
Specs = Mapping[int, Sequence[Mapping[str, Any]]]
# A column's name that its files have too.
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The columns of a file of positions, with the field ids that Iceberg reserves for them.
POSITIONS: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID: b"2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: b"2147483545"}),
    ]
)


class OldPartition(NamedTuple):
    """A partition of a table's files: Java's spec, which need not be the current one, and values."""

    spec: Any
    values: Any
    folder: str


class FilePlan(NamedTuple):
    """How a batch is written on a state of the table: what its tasks write and mark, and the table's files.

    ``partitions``: those of the files, by their ``values``.
    """

    state: TableState
    rows: RowsTask
    marks: PositionFiles
    files: tuple[DataFile, ...]
    partitions: Mapping[str, OldPartition]


class Staged(NamedTuple):
    """A snapshot that no table has yet, None where the table stays as it is; what it does; its files."""

    snapshot: Any
    result: ApplyResult
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class PositionFiles:
    """Iceberg's marks: files of positions; columns are known by field id.

    ``partitioned``: by the number of a partition spec, the field id of a column that its partitions have as
    it is. A file that another program took over need not have it.
    """

    files: NewFiles
    partitioned: frozenset[tuple[int, int]] = frozenset()

    @property
    def storage(self) -> Storage:
        """That of new files: a file elsewhere is not looked into."""
        return self.files.storage

    def column_name(self, column: FileColumn, schema: pa.Schema) -> str | None:
        """By its field id."""
        number = str(column.field_id).encode()
        return next((f.name for f in schema if (f.metadata or {}).get(FIELD_ID) == number), None)

    def deleted(self, files: Sequence[DataFile], starts: Places) -> Places:
        """As ``Marks`` says.

        A file's positions are those of its own ``deletes``: others may name its path, and be older than it.
        """
        deletes = dict.fromkeys(path for file in files for path in file.deletes)
        found = self.storage.each(partial(self._deleted_by, files, starts), [*deletes])
        return np.concatenate([np.empty(0, np.int64), *found])

    def _deleted_by(self, files: Sequence[DataFile], starts: Places, deletes: str) -> Places:
        """The rows that one file of positions deletes."""
        paths = pa.array([one.path if deletes in one.deletes else None for one in files], pa.string())
        found = [np.empty(0, np.int64)]
        with (
            self.storage.reading(deletes) as source,
            pq.ParquetFile(source, pre_buffer=True, read_dictionary=["file_path"]) as parquet,
        ):
            for chunk in parquet.read(columns=["file_path", "pos"]).to_batches():
                names = chunk.column("file_path")
                file = codes(pa.chunked_array([names.dictionary]), paths)[names.indices.to_numpy()]
                rows = starts[file] + chunk.column("pos").to_numpy()
                found.append(rows[file >= 0])
        return np.concatenate(found)

    def partition_value(self, column: FileColumn, file: DataFile) -> pa.Scalar | None:
        """None: a column that a file lacks came later.

        Raises:
            FileRefusedError: its value may be that of the partition.
        """
        spec = json.loads(file.partition.values or "[0]")[0]
        if (spec, column.field_id) in self.partitioned and not column.key:
            raise FileRefusedError(f"the file {file.path} has no column {column.source}", url=file.path)
        return None

    def write(self, marked: Sequence[MarkedRows], part: str) -> Iterator[WrittenFile]:
        """A file of positions for each partition, sorted by file and position."""
        positions = dict[Partition, list[pa.Table]]()
        for file, at in (one for some in marked for one in some.by_file()):
            table = pa.table([pa.array([file.path] * len(at)), pa.array(at)], schema=POSITIONS)
            positions.setdefault(file.partition, []).append(table)
        for number, (partition, tables) in enumerate(positions.items()):
            yield self.files.write(pa.concat_tables(tables), f"{part}-{number}", partition)


@dataclass(frozen=True)
class FileWriter:
    """Writes batches of one table as files."""

    session: SparkSession
    table: JvmTable
    name: TableId

    def plan(self, batch: ReducedBatch, progress: Progress, state: TableState) -> FilePlan | str:
        """How a batch is written on what readers see at ``state``, or why it is merged by MERGE."""
        present = self.table.columns(state)
        reason = batch_reason(batch) or columns_reason(batch, present) or _of_metadata(state)
        if reason is not None:
            return reason
        try:
            specs, current = self._specs(state), int(state.metadata.defaultSpecId())
            reason = _of_partitions(state, specs, current)
            if reason is not None:
                return reason
            storage = self._storage(state)
            found = storage if isinstance(storage, str) else self._data_files(batch, state, storage)
        except SPARK_ERRORS as exc:
            raise reading_error(exc, table=str(self.name)) from exc
        if isinstance(storage, str) or isinstance(found, str):
            return str(found)
        columns = self._columns(batch, state, present)
        files, split = _new_files(state, progress, storage), _split(columns, specs[current])
        rows = RowsTask(columns, files, rules_of(batch), split)
        return FilePlan(state, rows, PositionFiles(files, _identities(specs)), *found)

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

    def _storage(self, state: TableState) -> Storage | str:
        """Where the table has its new files, as Iceberg's own ``FileIO`` opens it."""
        place, io = str(state.table.locationProvider().newDataLocation("none")), state.table.io()
        kind = str(io.getClass().getName())
        if kind == _RESOLVING:
            kind = str(io.ioClass(place).getName())
        if kind == _HADOOP:
            storage = hadoop_storage(place, io.getConf(), self.session._jvm)
        elif kind == _S3 and io.credentials().isEmpty():
            storage = iceberg_storage(place, {str(k): str(v) for k, v in dict(io.properties()).items()})
        else:
            return f"only Spark reads and writes files by {kind}: {place}"
        if isinstance(storage, str):
            return storage
        return storage.reason_unreachable(str(state.table.location())) or storage

    def _data_files(
        self, batch: ReducedBatch, state: TableState, storage: Storage
    ) -> tuple[tuple[DataFile, ...], dict[str, OldPartition]] | str:
        """The files that may have rows of the batch's keys, and the partitions that they are of.

        The reason where a file is not ours to read.
        """
        found, partitions = list[DataFile](), dict[str, OldPartition]()
        if batch.mode == "append" or state.totals().get("total-data-files") == 0:
            return (), partitions
        for scanned in self._scan(batch, state):
            task = json.loads(self.table.java.ScanTaskParser.toJson(scanned))
            data, deletes = task["data-file"], task.get("delete-files", [])
            for file in (data, *deletes):
                content, form = _words(file["content"]), _words(file["file-format"])
                if content not in ("data", "position-deletes") or form != "parquet":
                    return f"the table has a file of {content} in format {form}"
                if not storage.holds(file["file-path"]):
                    return f"the table has a file in another place: {file['file-path']}"
            paths = tuple(one["file-path"] for one in deletes)
            values = json.dumps([data["spec-id"], data.get("partition")])
            if values not in partitions:
                spec, partition = state.metadata.spec(data["spec-id"]), scanned.file().partition()
                partitions[values] = OldPartition(spec, partition, str(spec.partitionToPath(partition)))
            partition = Partition(partitions[values].folder, values)
            found.append(DataFile(data["file-path"], data["record-count"], paths, partition))
        return tuple(found), partitions

    def _scan(self, batch: ReducedBatch, state: TableState) -> Iterator[Any]:
        """The files of what readers see that may have a key in the batch's range: Java's scan tasks."""
        scan = state.table.newScan().useSnapshot(state.head).caseSensitive(False)
        types = {column.name: column.spark for column in batch.shape.key_columns}
        expressions = self.table.java.expressions.Expressions
        for name, (least, greatest) in batch.key_range.items():
            if types.get(name) in RANGES and least is not None:
                scan = scan.filter(expressions.greaterThanOrEqual(name, least))
                scan = scan.filter(expressions.lessThanOrEqual(name, greatest))
        if batch.mode == "history" and batch.since is not None:  # what ended before stays as it is
            later = expressions.greaterThanOrEqual(TO_COLUMN, batch.since)
            scan = scan.filter(getattr(expressions, "or")(expressions.isNull(TO_COLUMN), later))
        tasks = scan.planFiles()
        try:
            found = tasks.iterator()
            while found.hasNext():
                yield found.next()
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

    def _specs(self, state: TableState) -> Specs:
        parser = self.table.java.PartitionSpecParser
        return {
            int(spec.specId()): json.loads(parser.toJson(spec))["fields"] for spec in state.metadata.specs()
        }

    def _in_files(self, name: str) -> str:
        """A column's name in Iceberg's files, which are Avro's names."""
        return (
            name if _PLAIN.fullmatch(name) else self.table.java.avro.AvroSchemaUtil.makeCompatibleName(name)
        )

    def _stage(self, batch: ReducedBatch, plan: FilePlan) -> Staged | None:
        lines, counts = written(batch, plan.files, plan.rows, plan.marks, session=self.session)
        files = [one for one in lines if one.path is not None]
        if not files:
            return Staged(None, replace(counts.result, version=str(plan.state.head)))
        snapshot = self._snapshot(plan, files)
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

    def _snapshot(self, plan: FilePlan, files: list[WrittenFile]) -> Any:
        """The snapshot of new files on the newest metadata; its manifests are written, and nothing has it."""
        state, java = plan.state, self.table.java
        change, metrics = state.table.newRowDelta(), java.MetricsConfig
        spec, partitions = state.metadata.spec(), dict[str, Any]()
        for one in files:
            if one.found is not None:
                old = plan.partitions[one.partition]
                builder = java.FileMetadata.deleteFileBuilder(old.spec).ofPositionDeletes()
                builder = builder.withPartition(old.values)
                change.addDeletes(self._file(builder, state, one, metrics.forPositionDelete(state.table)))
                continue
            builder = java.DataFiles.builder(spec)
            if one.partition:
                if one.partition not in partitions:
                    values = java.SingleValueParser.fromJson(spec.partitionType(), one.partition)
                    partitions[one.partition] = values
                builder = builder.withPartition(partitions[one.partition])
            change.addRows(self._file(builder, state, one, metrics.forTable(state.table)))
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
    if not metadata.sortOrder().isUnsorted():
        return "the table has a sort order"
    for name, wanted in FILE_PROPERTIES.items():
        said = state.property(name)
        said = _DEFAULTS[name] if said is None else said
        if said.lower() not in wanted:
            return f"the table's property {name} is {said}"
    for field in metadata.schema().columns():
        kind = str(field.type())
        if kind.startswith(_OTHERS):
            return f"the column {field.name()} is {kind}"
    if _codec(state) is None:
        return f"the table's files are compressed by {state.property('write.parquet.compression-codec')}"
    return None


def _of_partitions(state: TableState, specs: Specs, current: int) -> str | None:
    schema = state.metadata.schema()
    for fields in specs.values():
        for field in fields:
            if schema.findType(field["source-id"]) is None:
                return f"the partition field {field['name']} is of a column that is gone"
    for field in specs[current]:
        if schema.asStruct().field(field["source-id"]) is None:
            return f"the partition field {field['name']} is of a field within a column"
        if not is_known(field["transform"]):
            return f"the partition field {field['name']} has the transform {field['transform']}"
        kind = str(schema.findType(field["source-id"]))
        if kind in _UNFIT_PARTITIONS:
            return f"the partition field {field['name']} is of a {kind} column"
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
    """What Iceberg calls a kind of file, whose spelling its versions change."""
    return text.lower().replace("_", "-")


def _codec(state: TableState) -> str | None:
    """What compresses new files, in Arrow's words; None where it is none of ours."""
    return COMPRESSIONS.get((state.property("write.parquet.compression-codec") or "zstd").lower())


def _new_files(state: TableState, progress: Progress, storage: Storage) -> NewFiles:
    name = f"{progress.epoch}-{progress.batch}-{uuid4().hex}-{ATTEMPT}.parquet"
    place = str(state.table.locationProvider().newDataLocation(name))
    return NewFiles(place, _codec(state) or "zstd", storage=storage)
