"""Writes batches to a Delta table as data files and deletion vectors, in one commit and without MERGE.

If Spark's MERGE must write a batch instead, ``FileWriter.plan`` returns the reason
(docs/adr/0030-lakes-without-merge.md). A history is refused for such a reason.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

from tidesink.errors import AccountingError
from tidesink.events import TableId, fold_name
from tidesink.sinks.laws.modes import TO_COLUMN
from tidesink.sinks.spark.errors import SPARK_ERRORS
from tidesink.sinks.spark.java_names import java_names, scala_object
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, ApplyOptions, ReducedBatch, RowFormat
from tidesink.sinks.targets.delta.file_format import (
    SplitByColumns,
    Statistics,
    Vectors,
    partition_value,
    vector_path,
)
from tidesink.sinks.targets.delta.log import (
    DeltaLog,
    java_sequence,
    reading_error,
    staging_error,
    stored_version,
    user_metadata,
)
from tidesink.sinks.targets.delta.schema import GENERATED, columns_of
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
from tidesink.sinks.targets.lake.storage import Storage, hadoop_storage, is_local, local_path, open_storage
from tidesink.sinks.targets.lake.versions import rules_of
from tidesink.typemap.arrow import arrow_of_spark
from tidesink.typemap.target_schema import TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Writer features of tables whose batches can be written as files. Other features need Delta's own writer.
_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "inCommitTimestamp",
        "invariants",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
# Table properties with the values under which batches can be written as files.
FILE_PROPERTIES: Final[Mapping[str, tuple[str, ...]]] = {
    "delta.enableDeletionVectors": ("true",),
    "delta.appendOnly": ("false",),
    "delta.enableChangeDataFeed": ("false",),
    "delta.columnMapping.mode": ("none", "name"),
}
_DEFAULTS: Final = {"delta.columnMapping.mode": "none"}
_CONSTRAINTS: Final = "delta.constraints."
# Metadata keys of columns whose values Delta or Spark checks or computes when a row is written.
_CHECKED: Final = (*GENERATED, "delta.invariants", "__CHAR_VARCHAR_TYPE_STRING")
# Types of partition columns that need a MERGE, because their texts in the log are not exact.
_UNFIT_PARTITIONS: Final = ("float", "double", "binary")
_COMPRESSION: Final = "spark.sql.parquet.compression.codec"
# The operation metrics of a MERGE.
_METRICS: Final = (
    "numSourceRows",
    "operationNumSourceRows",
    "numTargetRowsInserted",
    "numTargetRowsUpdated",
    "numTargetRowsDeleted",
    "numTargetRowsCopied",
    "numOutputRows",
)
# If a commit's checksum does not list the files, a Spark job reads them, and all pass through the driver. A
# table with more files needs a MERGE then.
_MOST_FILES: Final = 20_000


class FilePlan(NamedTuple):
    """The plan for writing a batch as data files and deletion vectors, without a MERGE.

    ``transaction``: Delta's transaction (Java) in which the plan was made.
    ``rows``: the task that writes the batch's rows.
    ``files``: the data files in which stored rows are searched for.
    ``entries``: the log's entries (Java) of these files, by path.
    """

    transaction: Any
    rows: RowsTask
    files: tuple[DataFile, ...]
    entries: Mapping[str, Any]


class _NewRows(NamedTuple):
    """The task that writes a batch's rows, and the table's partition columns."""

    rows: RowsTask
    partitioned_by: tuple[FileColumn, ...]


class Staged(NamedTuple):
    """A batch whose files are written but not committed yet.

    ``actions``: Delta's actions (Java) to commit.
    ``metrics``: the operation metrics to record in the commit.
    ``paths``: the files that were written for this commit.
    ``counts``: for a history table, the batch's row counts (``lake.versions.Counts``); None for another
        table.
    """

    actions: tuple[Any, ...]
    metrics: Mapping[str, int]
    paths: tuple[str, ...]
    counts: Mapping[str, int] | None = None


@dataclass(frozen=True)
class FileWriter:
    """Plans, writes and commits batches of one Delta table as files."""

    session: SparkSession
    log: DeltaLog
    name: TableId
    limits: FileLimits = FILE_LIMITS

    def plan(self, batch: ReducedBatch, progress: Progress) -> FilePlan | str:
        """Return the plan for writing a batch as files, or a string with the reason why the batch needs a
        MERGE.

        ``progress``: the progress after the batch. Its epoch and batch number become part of file names.
        """
        reason = batch_reason(batch)
        if reason is not None:
            return reason
        try:
            with self.log.active():
                return self._plan(batch, progress)
        except SPARK_ERRORS as exc:
            raise reading_error(exc, table=str(self.name)) from exc

    def obstacle(self, shape: TargetSchema) -> str | None:
        """Return the reason why no batch of a history can be written as files; None if there is none.

        ``shape``: columns and key of the table.

        Raises:
            StorageError: it cannot be found out now.
        """
        try:
            with self.log.active():
                storage = self._storage(merges=False)
                if isinstance(storage, str):
                    return storage
                transaction = self.log.java().startTransaction()
                fields, present = _fields(transaction)
                return self._form_reason(transaction, fields, present) or float_key(shape, present)
        except SPARK_ERRORS as exc:
            raise reading_error(exc, table=str(self.name)) from exc

    def sink(self, rows: RowFormat, epoch: int) -> FileSink | None:
        """Return the sink with which Spark tasks write the next batch's rows to files; None if the batch
        needs a MERGE.

        ``rows``: the format of the batch's rows, which must not depend on stored rows.
        """
        batch = ReducedBatch(rows.shape, 0, 0, how=ApplyOptions(mode=rows.mode))
        try:
            with self.log.active():
                new_rows = self._new_rows(batch, self.log.java().startTransaction(), str(epoch))
        except SPARK_ERRORS as exc:
            raise reading_error(exc, table=str(self.name)) from exc
        return None if isinstance(new_rows, str) else FileSink(new_rows.rows)

    def stage(self, batch: ReducedBatch, plan: FilePlan) -> Staged:
        """Write a batch's files, without committing them.

        Raises:
            AccountingError: the written rows do not match the batch, or the table has several rows with the
                same key.
            NotAsFilesError: a file does not match the table's log, or the batch needs too many values of
                stored rows.
            TidesinkError: a Spark task failed. ``staging_error`` converts Spark's error.
        """
        try:
            marks = Vectors(self._root, plan.rows.files.storage)
            lines, counts = written(
                batch, plan.files, plan.rows, marks, session=self.session, limits=self.limits
            )
            return self._staged(batch, plan, lines, counts)
        except SPARK_ERRORS as exc:
            raise staging_error(exc, table=str(self.name)) from exc

    def commit(self, plan: FilePlan, staged: Staged, *, application: str, version: int, words: str) -> None:
        """Commit a batch's files together with a transaction version and user metadata.

        Does nothing if the application's last transaction version is not below ``version``. Raises Delta's
        own exceptions, such as a conflict if another writer changed rows, or committed under the same
        application name, after the plan was made.

        ``application``: the name under which Delta stores the transaction version.
        ``words``: the text of the user metadata.
        """
        transaction = plan.transaction
        with self.log.active(), user_metadata(self.session, words):
            if stored_version(transaction, application) >= version:
                return
            transaction.registerSQLMetrics(self._java_session, self._metrics(staged))
            actions = java_sequence(self._jvm, staged.actions).appendedAll(
                self.log.transactions({application: version})
            )
            transaction.commit(actions, self._operation)

    def discard(self, paths: Iterable[str]) -> None:
        """Remove files that no commit refers to.

        Errors are ignored, because readers never see these files.
        """
        for path in paths:
            with suppress(*SPARK_ERRORS):
                # The file system of the table's folder, because a local path has no scheme and Hadoop's
                # default file system may be another one.
                files = self.log.java().dataPath().getFileSystem(self._hadoop)
                files.delete(self._jvm.org.apache.hadoop.fs.Path(path), False)

    @property
    def _jvm(self) -> Any:
        return java_names(self.session)

    @property
    def _delta(self) -> Any:
        return self._jvm.org.apache.spark.sql.delta

    @property
    def _java_session(self) -> Any:
        session: Any = self.session
        return session._jsparkSession

    @cached_property
    def _location(self) -> str:
        return str(self.log.java().dataPath())

    @cached_property
    def _root(self) -> str:
        path = self._location
        return str(local_path(path)) if is_local(path) else path

    @property
    def _hadoop(self) -> Any:
        """Hadoop's ``Configuration`` (Java), with the settings with which Delta opens the table's files."""
        return self.log.java().newDeltaHadoopConf()

    @cached_property
    def _operation(self) -> Any:
        """The operation (Java) that the commit records. It is a MERGE, so that Delta detects the conflicts of
        a MERGE.
        """
        none = scala_object(self._jvm.scala, "None")
        return getattr(self._delta, "DeltaOperations$Merge")(*[none] * 4, *[java_sequence(self._jvm, [])] * 3)

    def _plan(self, batch: ReducedBatch, progress: Progress) -> FilePlan | str:
        transaction = self.log.java().startTransaction()
        new = self._new_rows(batch, transaction, f"{progress.epoch}-{progress.batch}")
        if isinstance(new, str):
            return new
        rows, parts = new
        old_files = self._old_files(batch, transaction, rows.columns, parts, rows.files.storage)
        return old_files if isinstance(old_files, str) else FilePlan(transaction, rows, *old_files)

    def _new_rows(self, batch: ReducedBatch, transaction: Any, words: str) -> _NewRows | str:
        """Return the task that writes a batch's rows, or a string with the reason why the batch needs a
        MERGE.

        ``words``: text that becomes part of the new files' names.
        """
        storage = self._storage(merges=batch.how.mode != "history")
        if isinstance(storage, str):
            return storage
        fields, present = _fields(transaction)
        reason = columns_reason(batch, present) or self._form_reason(transaction, fields, present)
        if reason is not None:
            return reason
        columns = _columns(batch, fields, present)
        by_name = dict(zip(fields, columns, strict=True))
        parts = tuple(by_name[name] for name in _partition_columns(transaction))
        counted_names = set(map(str, transaction.snapshot().statCollectionLogicalSchema().fieldNames()))
        with_statistics = (column.name for name, column in by_name.items() if name in counted_names)
        new = NewFiles(
            f"{self._root}/part-{words}-{uuid4().hex}-{ATTEMPT}.parquet",
            str(self._codec),
            Statistics(frozenset(with_statistics)),
            # Without this entry in the footer, Spark 3 reads old dates as dates of the Julian calendar.
            {"org.apache.spark.version": self.session.version},
            storage,
        )
        named = all(name == column.name for name, column in by_name.items())
        split: Split = SplitByColumns(parts, named) if parts else unpartitioned
        return _NewRows(RowsTask(columns, new, rules_of(batch), split), parts)

    def _storage(self, *, merges: bool) -> Storage | str:
        def look_up() -> Storage | str:
            return hadoop_storage(self._location, lambda: self._hadoop, self._jvm)

        return open_storage(look_up, self._root, merges=merges)

    @property
    def _codec(self) -> str | None:
        """Arrow's name of the compression of new data files; None if tidesink does not support it."""
        return COMPRESSIONS.get(str(self.session.conf.get(_COMPRESSION, "snappy")).lower())

    def _form_reason(
        self, transaction: Any, fields: Mapping[str, Any], present: Mapping[str, str]
    ) -> str | None:
        """Return the reason why the table or its compression requires a MERGE; None if there is none."""
        reason = _table_reason(transaction, fields, present)
        if reason is None and self._codec is None:
            return f"files are compressed by {self.session.conf.get(_COMPRESSION)}"
        return reason

    def _old_files(
        self,
        batch: ReducedBatch,
        transaction: Any,
        columns: Sequence[FileColumn],
        parts: Sequence[FileColumn],
        storage: Storage,
    ) -> tuple[tuple[DataFile, ...], dict[str, Any]] | str:
        """Return the data files that may contain the batch's keys, and the log entries of these files by
        path.

        Returns a string with the reason for a MERGE if Python tasks cannot search one of the files. After
        this call, the transaction conflicts with each commit of another writer that adds or removes files.
        """
        if batch.how.mode == "append":
            return (), {}
        transaction.readWholeTable()
        # A history is written as files however many it has.
        most = None if batch.how.mode == "history" else _MOST_FILES
        entries = self._entries(transaction.snapshot(), most=most)
        if isinstance(entries, str):
            return entries
        names = {column.source: column.name for column in columns}
        types = {column.name: column.spark for column in batch.shape.key_columns}
        keys = [column for column in parts if column.key]
        ranges = {
            names[name]: limits
            for name, limits in batch.key_range.items()
            if types.get(name) in RANGES and limits[0] is not None
        }
        mapper = self._delta.util.JsonUtils.mapper()
        files, entries_by_path = list[DataFile](), dict[str, Any]()
        for index, entry in enumerate(json.loads(mapper.writeValueAsString(entries))):
            statistics, vector = json.loads(entry.get("stats") or "{}"), entry.get("deletionVector")
            values = entry["partitionValues"]
            key_values = {key.name: partition_value(values.get(key.name), key.type) for key in keys}
            if any(value is None for value in key_values.values()):
                return f"the partition value of the file {entry['path']} is a timestamp without a time zone"
            same = {
                name: value.as_py()
                for name, value in key_values.items()
                if value is not None and name in ranges
            }
            ended = _ended_before(statistics, names.get(TO_COLUMN), batch.since)
            if ended or not _may_have(statistics, same, ranges):
                continue
            path = unquote(entry["path"])
            path = path if is_local(path) or "://" in path else f"{self._root}/{path}"
            for file_path in filter(None, [path, vector and vector_path(self._root, vector)]):
                if not storage.holds(file_path):
                    return f"the table has a file outside its own bucket or file system: {file_path}"
            if "numRecords" not in statistics:
                return f"the table has a file without statistics: {path}"
            deletes = (json.dumps(vector),) if vector else ()
            partition = Partition(values=json.dumps(values))
            files.append(DataFile(path, statistics["numRecords"], deletes, partition))
            entries_by_path[path] = entries.apply(index)
        return tuple(files), entries_by_path

    def _entries(self, snapshot: Any, *, most: int | None) -> Any:
        """Return the log entries (Java) of all data files in a snapshot, from its checksum or with a Spark
        job.

        Returns a string with the reason for a MERGE if the table has too many files for the Spark job.

        ``most``: maximum number of files for the Spark job; None for no limit.
        """
        checksum = snapshot.checksumOpt()
        if checksum.isDefined():
            number, files = int(checksum.get().numFiles()), checksum.get().allFiles()
            if files.isDefined() and int(files.get().size()) == number:
                return files.get()
            if most is not None and number > most:
                return f"the table has {number:,} files"
        return java_sequence(self._jvm, snapshot.allFiles().collectAsList())

    def _staged(
        self, batch: ReducedBatch, plan: FilePlan, lines: Sequence[WrittenFile], counts: BatchCounts
    ) -> Staged:
        """Return the actions and metrics of the commit that adds the written files to the table.

        Raises:
            AccountingError: the numbers of rows in the files and vectors do not match the batch.
        """
        actions, now, added, hidden = list[Any](), int(time.time() * 1000), 0, 0
        for line in (file for file in lines if file.path is not None and file.found is None):
            statistics = str(line.details)
            entry: dict[str, Any] = {
                "path": self._in_log(str(line.path)),
                "partitionValues": json.loads(line.partition or "{}"),
                "size": line.size,
                "modificationTime": now,
                "dataChange": True,
                "stats": statistics,
            }
            actions.append(self._delta.actions.Action.fromJson(json.dumps({"add": entry})))
            added += json.loads(statistics)["numRecords"]
        for line in (file for file in lines if file.path is not None and file.found is not None):
            details = json.loads(str(line.details))
            for vector in details["vectors"]:
                old = plan.entries[vector["file"]]
                hidden += vector["rows"] - int(old.numDeletedRecords())
                actions += self._marked(old, details["uuid"], vector)
        if (added, hidden) != (counts.rows, counts.marked):
            raise AccountingError(
                f"The commit would add {added} rows and delete {hidden}. But {counts.rows} rows were "
                f"written, and {counts.marked} stored rows must be replaced or deleted. Nothing was "
                "committed. Report this with the log.",
                table=str(self.name),
            )
        versions = None if counts.versions is None else counts.versions._asdict()
        return Staged(tuple(actions), _metrics(batch, counts), new_paths(batch, lines), versions)

    def _in_log(self, path: str) -> str:
        """Return a file's path as it is stored in the table's log: a URI, encoded by Hadoop."""
        return str(self._jvm.org.apache.hadoop.fs.Path(path.removeprefix(f"{self._root}/")).toUri())

    def _marked(self, old: Any, number: str, vector: Mapping[str, Any]) -> list[Any]:
        """Return the actions (Java) that replace a data file's deletion vector.

        If the new vector deletes all rows of the file, the action removes the file instead.

        ``old``: the log's entry of the data file.
        ``number``: the UUID in the name of the file with the new vector.
        ``vector``: the new vector's place in this file, its size and its number of rows.
        """
        if vector["rows"] == int(old.numPhysicalRecords().get()):
            return [old.remove()]
        jvm = self._jvm
        java, none = jvm.java.util.UUID.fromString(number), scala_object(jvm.scala, "None")
        descriptor = self._delta.actions.DeletionVectorDescriptor.onDiskWithRelativePath(
            java, "", vector["size"], vector["rows"], jvm.scala.Some(vector["offset"]), none
        )
        both = old.removeRows(descriptor, True, True)
        return [both._1(), both._2()]

    def _metrics(self, staged: Staged) -> Any:
        """Return the commit's operation metrics as a Scala map of Spark metrics, as Delta expects them."""
        metrics, scala = self._java_metrics
        for name, number in staged.metrics.items():
            metrics[name].set(number)
        return scala

    @cached_property
    def _java_metrics(self) -> tuple[Mapping[str, Any], Any]:
        """Spark's metrics (Java) of a commit by name, and the same as a Scala map.

        Delta reads their values while it commits, so each commit of the table can use them.
        """
        jvm, context = self._jvm, self._java_session.sparkContext()
        create = jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric
        metrics, by_name = {name: create(context, name) for name in _METRICS}, jvm.java.util.HashMap()
        for name, metric in metrics.items():
            by_name.put(name, metric)
        scala = jvm.scala.jdk.javaapi.CollectionConverters.asScala(by_name)
        return metrics, scala.toMap(scala_object(jvm.scala, "$less$colon$less").refl())


def _metrics(batch: ReducedBatch, counts: BatchCounts) -> dict[str, int]:
    """Return a batch's operation metrics, as a MERGE would report them. Soft deletes count as updates."""
    result, source = counts.result, batch.upserts + batch.deletes
    marked = result.deleted if batch.how.delete_mode == "soft" else 0
    inserted, updated, deleted = result.inserted, result.updated + marked, result.deleted - marked
    if counts.versions is not None:
        inserted, updated, deleted = counts.versions.rows
    numbers = source, source, inserted, updated, deleted, 0, counts.rows
    return dict(zip(_METRICS, numbers, strict=True))


def _columns(
    batch: ReducedBatch, fields: Mapping[str, Any], present: Mapping[str, str]
) -> tuple[FileColumn, ...]:
    """Return the table's columns in table order, with their names and types in its data files."""
    columns = []
    for name, field in fields.items():
        column, (physical, number) = batch.shape.by_name.get(fold_name(name)), _in_files(field)
        if name == SEQUENCE_COLUMN:
            kind = sequence_type([_in_files(member) for member in field["type"]["fields"]])
        else:
            kind = arrow_of_spark(present[name])
        source, key = (column.name, column.key) if column else (name, False)
        columns.append(FileColumn(physical, source, kind, number, not field["nullable"], key))
    return tuple(columns)


def _in_files(field: Mapping[str, Any]) -> tuple[str, int | None]:
    """Return the name and the field id that a column has in data files. The id is None without column
    mapping.
    """
    metadata = field["metadata"]
    return metadata.get("delta.columnMapping.physicalName", field["name"]), metadata.get(
        "delta.columnMapping.id"
    )


def _may_have(
    statistics: Mapping[str, Any], same: Mapping[str, Any], ranges: Mapping[str, tuple[Any, Any]]
) -> bool:
    """Return True if a data file, judged by its statistics, may contain keys in the ranges ``ranges``.

    ``statistics``: the file's statistics from the log.
    ``same``: by partition column, the value that all rows of the file have.
    ``ranges``: by key column, the least and the greatest value in the batch.
    """
    for name, (least, greatest) in ranges.items():
        bounds = (statistics.get(side, {}) for side in ("minValues", "maxValues"))
        low, high = (bound.get(name, same.get(name)) for bound in bounds)
        if (low is not None and low > greatest) or (high is not None and high < least):
            return False
    return True


def _ended_before(statistics: Mapping[str, Any], column: str | None, since: int | None) -> bool:
    """Return True if all row versions in a data file of a history table ended before the commit_ts ``since``.

    ``statistics``: the file's statistics from the log.
    ``column``: physical name of the column with the commit_ts at which a version ended.
    """
    last, running = (statistics.get(side, {}).get(column) for side in ("maxValues", "nullCount"))
    return since is not None and last is not None and running == 0 and bool(last < since)


def _fields(transaction: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the table's columns by name: their fields in Spark's JSON, and their Spark types."""
    text = str(transaction.metadata().schema().json())
    return {field["name"]: field for field in json.loads(text)["fields"]}, columns_of(text)


def _partition_columns(transaction: Any) -> list[str]:
    columns = transaction.metadata().partitionColumns()
    return [str(columns.apply(index)) for index in range(int(columns.size()))]


def _table_reason(transaction: Any, fields: Mapping[str, Any], present: Mapping[str, str]) -> str | None:
    """Return the reason why the table's features, properties or columns require a MERGE; None if there is
    none.
    """
    protocol, metadata = transaction.protocol(), transaction.metadata()
    features = set(str(protocol.writerFeatureNames().mkString("\n")).splitlines())
    unknown = sorted(features - _FEATURES)
    if "deletionVectors" not in features:
        return "the table has no deletion vectors"
    if unknown:
        return f"the table has the feature {', '.join(unknown)}"
    for name in _partition_columns(transaction):
        if present[name] in _UNFIT_PARTITIONS:
            return f"the partition column {name} is {present[name]}"
    properties = metadata.configuration()
    for name, wanted in FILE_PROPERTIES.items():
        value = properties.get(name)
        setting = str(value.get()) if value.isDefined() else _DEFAULTS.get(name, "false")
        if setting.lower() not in wanted:
            return f"the table's property {name} is {setting}"
    names = str(properties.keySet().mkString("\n")).splitlines()
    if any(name.startswith(_CONSTRAINTS) for name in names):
        return "the table has a CHECK constraint"
    for name, field in fields.items():
        checked = next((key for key in field["metadata"] if key.startswith(_CHECKED)), None)
        if checked is not None:
            return f"the column {name} has {checked}"
    return None
