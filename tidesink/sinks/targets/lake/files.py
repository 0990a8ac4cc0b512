"""A batch as files of a lake's table, without MERGE: what tasks write, and which rows they replace.

``RowsTask`` writes the rows that a batch's payloads hold as Parquet files, and gives their keys.
``LocateTask`` finds the rows of a table that have one of these keys, and writes their positions. Neither
reads a row on the driver: keys travel as Arrow data, and what comes back is a line for each file
(``FILE_DDL``). A format's own part plans the files, and commits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidesink.errors import AccountingError, TargetError
from tidesink.sinks.spark.errors import reported
from tidesink.sinks.spark.payloads import DELETE, UPSERT, unpack
from tidesink.sinks.spark.session import in_session
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch
from tidesink.sinks.targets.lake.partitions import (
    MOST_PARTITIONS,
    Partition,
    Split,
    TooManyPartitionsError,
    unpartitioned,
)
from tidesink.sinks.targets.lake.storage import LOCAL, Storage
from tidesink.sinks.targets.lake.tables import SMALL_BATCH
from tidesink.typemap.arrow import arrow_of_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# ``upserts``, ``deletes``: keys as Arrow IPC streams. ``found``: a bit for each of the batch's keys.
# ``partition``: its values. ``details``: what else the format's commit says of the file.
FILE_DDL: Final = (
    "path string, size bigint, rows bigint, upserts binary, deletes binary, found binary, partition string, "
    "details string"
)
_FILES: Final = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("upserts", pa.binary()),
        ("deletes", pa.binary()),
        ("found", pa.binary()),
        ("partition", pa.string()),
        ("details", pa.string()),
    ]
)
# In the name of a new file: each attempt of a task writes files of its own.
ATTEMPT: Final = "ATTEMPT"
# A task writes what is as large as this in memory into one file.
_FILE_BYTES: Final = 256 << 20
_FIELD_ID: Final = b"PARQUET:field_id"
# The columns of a file of positions, with the field ids that Iceberg reserves for them.
POSITIONS: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={_FIELD_ID: b"2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={_FIELD_ID: b"2147483545"}),
    ]
)
Places = npt.NDArray[np.int64]
# The keys of a batch go to each task that locates them.
_MOST_KEYS: Final = 2_000_000
# A task that locates keys reads those of about so many rows.
_ROWS_A_TASK: Final = 500_000
# Names of what compresses Parquet files, with Arrow's.
CODECS: Final[Mapping[str, str]] = {
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


class FileRefusedError(TargetError):
    """A file of the table, its context's ``url``, cannot be looked into here: Spark may still read it.

    Without a ``url``: the files of the batch itself are left to Spark.
    """


class WrittenFile(NamedTuple):
    """A line about what a task wrote, as ``FILE_DDL`` has it; ``path`` is None where there was nothing."""

    path: str | None = None
    size: int | None = None
    rows: int = 0
    upserts: bytes | None = None
    deletes: bytes | None = None
    found: bytes | None = None
    partition: str = ""
    details: str | None = None


class FileColumn(NamedTuple):
    """A column of a table's Parquet files; ``source`` is its name in the batch, whose key it may be of.

    ``field_id``: None where the table has no field ids.
    """

    name: str
    source: str
    type: pa.DataType
    field_id: int | None
    required: bool
    key: bool

    @property
    def field(self) -> pa.Field:
        """As Arrow writes it."""
        number = None if self.field_id is None else {_FIELD_ID: str(self.field_id).encode()}
        return pa.field(self.name, self.type, not self.required, number)


class DataFile(NamedTuple):
    """A file with rows of a table; ``deletes`` say which are deleted, in the format\'s words."""

    path: str
    rows: int
    deletes: tuple[str, ...] = ()
    partition: Partition = Partition()


@dataclass(frozen=True)
class NewFiles:
    """Where tasks write Parquet files: ``location`` has ``ATTEMPT`` in its name; folders go before the name.

    ``describe`` gives the ``details`` of a file of rows, ``metadata`` is written into its footer.
    """

    location: str
    compression: str
    describe: Callable[[pa.Table], str] | None = None
    metadata: Mapping[str, str] | None = None
    storage: Storage = LOCAL

    def write(self, table: pa.Table, part: str, partition: Partition) -> WrittenFile:
        """Write a file; its line."""
        place, _, name = self.location.replace(ATTEMPT, f"{_attempt()}-{part}").rpartition("/")
        path = "/".join(filter(None, (place, partition.folder, name)))
        # Spark's own files have decimals as integers too, where they fit. One row group: Arrow says no range
        # of a row group with a text of more than 4 KiB, and Iceberg would take that of the others for the
        # file's, so that readers skip it. No dictionary of floats: Spark looks for 0.0 in it, and passes over
        # -0.0, which equals it.
        with self.storage.writing(path) as file:
            pq.write_table(
                table.replace_schema_metadata(self.metadata) if self.metadata else table,
                file,
                row_group_size=table.num_rows,
                use_dictionary=[one.name for one in table.schema if not pa.types.is_floating(one.type)],
                compression=self.compression,
                store_schema=False,
                store_decimal_as_integer=True,
            )
            size = file.tell()
        details = self.describe(table) if self.describe else None
        return WrittenFile(path, size, table.num_rows, partition=partition.values, details=details)


class MarkedRows(NamedTuple):
    """``rows`` of files to be marked as deleted, counted through the files, which begin at ``starts``."""

    files: Sequence[DataFile]
    starts: Places
    rows: Places

    def by_file(self) -> Iterator[tuple[DataFile, Places]]:
        """Each file that has such rows, with their positions in it."""
        ends = np.searchsorted(self.rows, self.starts)
        for at, file in enumerate(self.files):
            positions = self.rows[ends[at] : ends[at + 1]] - self.starts[at]
            if len(positions):
                yield file, positions


class Marks(Protocol):
    """How a format's files say which rows are deleted."""

    def column_name(self, column: FileColumn, schema: pa.Schema) -> str | None:
        """What a file of this schema calls a column; None where it has none."""

    def partition_value(self, column: FileColumn, file: DataFile) -> pa.Scalar | None:
        """What all rows of a file have in a column that the file leaves out; None where nothing says it."""

    def deleted(self, files: Sequence[DataFile], starts: Places) -> Places:
        """The rows of files that are deleted already, counted through them all."""

    def write(self, marked: Sequence[MarkedRows], part: str) -> Iterator[WrittenFile]:
        """Write which rows are deleted now; at least one is."""


@dataclass(frozen=True)
class RowsTask:
    """Writes the rows of payloads to upsert; for ``mapInArrow``, as ``LocateTask``."""

    columns: tuple[FileColumn, ...]
    files: NewFiles
    split: Split = unpartitioned

    @property
    def keys(self) -> tuple[FileColumn, ...]:
        """The key columns."""
        return tuple(column for column in self.columns if column.key)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A line for each file; one without a path where there are no rows, but keys to delete."""
        with reported():
            for one in self.written(batches):
                yield _line(one)

    def written(self, batches: Iterable[pa.RecordBatch]) -> Iterator[WrittenFile]:
        """The lines.

        Raises:
            TargetError: a row has no value in a column that takes no NULL, or as ``split`` says.
            FileRefusedError: rows are of too many partitions.
        """
        for number, rows in enumerate(_file_sized(unpack(batches))):
            yield from self._written(rows, number)

    def _written(self, rows: pa.Table, number: int) -> list[WrittenFile]:
        upserts, deletes = (rows.filter(pc.equal(rows["_op"], kind)) for kind in (UPSERT, DELETE))
        # A key is never null, whatever the table's columns take: it would be found by no batch.
        needed = tuple(one._replace(required=True) for one in self.keys)
        keys = [stream_of(_columns_of(one["key"], needed)) for one in (upserts, deletes)]
        files = [WrittenFile()]
        if upserts.num_rows:
            files = self._files(_columns_of(upserts["after"], self.columns), number)
        return [files[0]._replace(upserts=keys[0], deletes=keys[1]), *files[1:]]

    def _files(self, rows: pa.Table, number: int) -> list[WrittenFile]:
        try:
            return [
                self.files.write(part, f"rows-{number}-{at}", partition)
                for at, (partition, part) in enumerate(self.split(rows))
            ]
        except TooManyPartitionsError:
            raise FileRefusedError(
                f"the batch has rows of more than {MOST_PARTITIONS:,} partitions"
            ) from None


@dataclass(frozen=True)
class LocateTask:
    """Finds the rows of groups of files that have one of the batch's keys, and writes their positions.

    ``batch_keys``: as ``joined_keys`` gives them. A task is given the numbers of its groups. It holds the
    keys of ``rows_at_once`` rows, or of one file that has more.
    """

    groups: tuple[tuple[DataFile, ...], ...]
    batch_keys: bytes
    columns: tuple[FileColumn, ...]
    marks: Marks
    rows_at_once: int = 4_000_000
    storage: Storage = LOCAL

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A line for each file, of ``rows`` positions; one without a path for a group that has none."""
        with reported():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for one in self.located(number, _read_stream(self.batch_keys)):
                        yield _line(one)

    def located(self, number: int, wanted: pa.Table) -> Iterator[WrittenFile]:
        """The lines of a group: the first has the keys that were found.

        Raises:
            FileRefusedError: a file is not what the table says, or lacks a key column.
            AccountingError: the batch has a key twice.
        """
        files = sorted(self.groups[number], key=lambda file: file.path.encode())
        keys = [column for column in self.columns if column.key]
        flags, marked = np.zeros(wanted.num_rows, bool), list[MarkedRows]()
        for some in _at_once(files, self.rows_at_once):
            starts = np.cumsum([0, *(file.rows for file in some)])
            columns = self.storage.each(partial(self._key_columns, keys), some)
            at = matched(pa.concat_tables(columns), wanted)
            at[self.marks.deleted(some, starts)] = -1
            rows = np.flatnonzero(at >= 0)
            flags[at[rows]] = True
            if len(rows):
                marked.append(MarkedRows(some, starts, rows))
        found = np.packbits(flags).tobytes()
        for file in self.marks.write(marked, f"positions-{number}") if marked else [WrittenFile()]:
            yield file._replace(found=found)
            found = b""

    def _key_columns(self, keys: Sequence[FileColumn], file: DataFile) -> pa.Table:
        """The keys of a file's rows, in their order."""
        with (
            self.storage.reading(file.path) as source,
            pq.ParquetFile(source, pre_buffer=True, coerce_int96_timestamp_unit="us") as parquet,
        ):
            names = {column.source: self.marks.column_name(column, parquet.schema_arrow) for column in keys}
            same = {
                column.source: self.marks.partition_value(column, file)
                for column in keys
                if names[column.source] is None
            }
            missing = [name for name, value in same.items() if value is None]
            if missing or parquet.metadata.num_rows != file.rows:
                what = f"has no column {missing[0]}" if missing else f"has {parquet.metadata.num_rows} rows"
                raise FileRefusedError(
                    f"the file {file.path} {what}, which is not what the table says of it", url=file.path
                )
            found = parquet.read(columns=[*filter(None, names.values())])
        arrays = [
            pa.repeat(same[column.source], file.rows)
            if column.source in same
            else found[names[column.source]].cast(column.type)
            for column in keys
        ]
        return pa.table(arrays, names=[column.name for column in keys])


@dataclass(frozen=True)
class SmallBatchTask:
    """Writes the rows of a batch, and locates its keys, in one task: it gets all payloads."""

    rows: RowsTask
    locate: LocateTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The lines of both."""
        with reported():
            lines = [*self.rows.written(batches)]
            keys = joined_keys(lines)
            for number in range(len(self.locate.groups)):
                lines += self.locate.located(number, keys)
            for one in lines:
                yield _line(one)


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


def joined_keys(rows: Sequence[WrittenFile]) -> pa.Table:
    """The keys of a batch in one table, those to upsert first."""
    streams = (*(one.upserts for one in rows), *(one.deletes for one in rows))
    return pa.concat_tables([_read_stream(data) for data in streams if data is not None])


class Found(NamedTuple):
    """How many of a batch's keys, to upsert and to delete, the table has."""

    upserts: int
    deletes: int


def found_keys(lines: Sequence[WrittenFile], *, upserts: int, keys: int, table: str) -> Found:
    """What tasks found of so many keys, of which the first ``upserts`` are to upsert.

    Raises:
        AccountingError: the table has several rows of one key.
    """
    whole = np.zeros(keys, bool)
    for one in lines:
        whole |= np.unpackbits(np.frombuffer(one.found or b"", np.uint8), count=keys).astype(bool)
    found, positions = int(whole.sum()), sum(one.rows for one in lines)
    if found != positions:
        raise AccountingError(
            f"the table has {positions} rows of {found} keys of the batch: another program wrote rows of "
            "keys that were there already. Remove the rows that are too many; nothing was written",
            table=table,
        )
    return Found(int(whole[:upserts].sum()), int(whole[upserts:].sum()))


def matched(rows: pa.Table, keys: pa.Table) -> Places:
    """For each row the number of the key that it has, -1 for none; both have the same columns.

    Columns are compared one after the other: what two columns have together becomes one number.
    """
    at, of = np.zeros(rows.num_rows, np.int64), np.zeros(keys.num_rows, np.int64)
    known = of[:1]
    for name in keys.column_names:
        values = pc.unique(keys[name])
        theirs, own = _codes(rows[name], values), _codes(keys[name], values)
        if keys.num_columns == 1 and len(values) == keys.num_rows:
            return theirs
        known, of = np.unique(of * len(values) + own, return_inverse=True)
        both = np.where((at >= 0) & (theirs >= 0), at * len(values) + theirs, -1)
        place = np.minimum(np.searchsorted(known, both), max(0, len(known) - 1))
        at = np.where(known[place] == both, place, -1) if len(known) else np.full(rows.num_rows, -1)
    if len(known) != keys.num_rows:
        raise AccountingError("a batch has one key twice; nothing was written")
    number = np.empty(len(known), np.int64)
    number[of] = np.arange(len(known))
    return np.where(at >= 0, number[at], -1) if len(known) else at


def _codes(values: pa.ChunkedArray, distinct: pa.Array) -> Places:
    found: Places = pc.fill_null(pc.index_in(values, value_set=distinct), -1).to_numpy()
    return found.astype(np.int64)


def _attempt() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return "0" if context is None else f"{context.partitionId()}-{context.taskAttemptId()}"


def _file_sized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    rows, size = list[pa.RecordBatch](), 0
    for batch in batches:
        rows.append(batch.select(["_op", "key", "after"]))
        size += rows[-1].nbytes
        if size >= _FILE_BYTES:
            yield pa.Table.from_batches(rows)
            rows, size = [], 0
    if rows:
        yield pa.Table.from_batches(rows)


def _at_once(files: Iterable[DataFile], rows: int) -> Iterator[list[DataFile]]:
    """Files in their order, as many at once as have so many rows, or one with more."""
    some = list[DataFile]()
    for file in files:
        if some and sum(one.rows for one in some) + file.rows > rows:
            yield some
            some = []
        some.append(file)
    if some:
        yield some


def _columns_of(rows: pa.ChunkedArray, columns: Sequence[FileColumn]) -> pa.Table:
    arrays = [pc.struct_field(rows, [column.source]).cast(column.type) for column in columns]
    for column, values in zip(columns, arrays, strict=True):
        if column.required and values.null_count:
            raise TargetError(
                f"a row has no value in the column {column.source}, which takes no NULL; nothing was written"
            )
    return pa.table(arrays, schema=pa.schema([column.field for column in columns]))


def stream_of(keys: pa.Table) -> bytes:
    """Keys as an Arrow IPC stream."""
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(out, keys.schema, options=options) as writer:
        writer.write_table(keys)
    whole: bytes = out.getvalue().to_pybytes()
    return whole


def _read_stream(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()


@dataclass(frozen=True)
class PositionFiles:
    """Iceberg's marks: files of positions; columns are known by field id."""

    files: NewFiles

    def column_name(self, column: FileColumn, schema: pa.Schema) -> str | None:
        """By its field id."""
        number = str(column.field_id).encode()
        return next((f.name for f in schema if (f.metadata or {}).get(_FIELD_ID) == number), None)

    def deleted(self, files: Sequence[DataFile], starts: Places) -> Places:
        """As ``Marks`` says.

        A file's positions are those of its own ``deletes``: others may name its path, and be older than it.
        """
        deletes = dict.fromkeys(path for file in files for path in file.deletes)
        found = self.files.storage.each(partial(self._deleted_by, files, starts), [*deletes])
        return np.concatenate([np.empty(0, np.int64), *found])

    def _deleted_by(self, files: Sequence[DataFile], starts: Places, deletes: str) -> Places:
        """The rows that one file of positions deletes."""
        paths = pa.array([one.path if deletes in one.deletes else None for one in files], pa.string())
        found = [np.empty(0, np.int64)]
        with (
            self.files.storage.reading(deletes) as source,
            pq.ParquetFile(source, pre_buffer=True, read_dictionary=["file_path"]) as parquet,
        ):
            for chunk in parquet.read(columns=["file_path", "pos"]).to_batches():
                names = chunk.column("file_path")
                file = _codes(pa.chunked_array([names.dictionary]), paths)[names.indices.to_numpy()]
                rows = starts[file] + chunk.column("pos").to_numpy()
                found.append(rows[file >= 0])
        return np.concatenate(found)

    def partition_value(self, column: FileColumn, file: DataFile) -> pa.Scalar | None:  # noqa: ARG002  (other formats' files leave such columns out)
        """Iceberg's files have all columns."""
        return None

    def write(self, marked: Sequence[MarkedRows], part: str) -> Iterator[WrittenFile]:
        """A file of positions for each partition, sorted by file and position."""
        positions = dict[Partition, list[pa.Table]]()
        for file, at in (one for some in marked for one in some.by_file()):
            table = pa.table([pa.array([file.path] * len(at)), pa.array(at)], schema=POSITIONS)
            positions.setdefault(file.partition, []).append(table)
        for number, (partition, tables) in enumerate(positions.items()):
            yield self.files.write(pa.concat_tables(tables), f"{part}-{number}", partition)


def _line(file: WrittenFile) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([file._asdict()], schema=_FILES)


# What the driver does for every format.


def written(
    batch: ReducedBatch, files: Sequence[DataFile], rows: RowsTask, marks: Marks, *, session: SparkSession
) -> list[WrittenFile]:
    """Write the rows of a batch to upsert, and mark those in ``files`` that it replaces and deletes."""
    assert batch.payloads is not None  # noqa: S101  (``batch_reason``)
    payloads = in_session(batch.payloads, session)
    cores = session.sparkContext.defaultParallelism
    groups = groups_of(files, most=2 * cores, rows=_ROWS_A_TASK)
    locate = LocateTask(groups, b"", rows.columns, marks, storage=rows.files.storage)
    if batch.upserts + batch.deletes <= SMALL_BATCH and len(groups) <= cores:
        return _run(payloads.coalesce(1), SmallBatchTask(rows, locate))
    lines = _run(payloads.coalesce(cores), rows)
    if not groups:
        return lines
    numbered = session.range(0, len(groups), 1, len(groups))
    return lines + _run(numbered, replace(locate, batch_keys=stream_of(joined_keys(lines))))


def _run(frame: DataFrame, task: RowsTask | LocateTask | SmallBatchTask) -> list[WrittenFile]:
    return [WrittenFile(*line) for line in frame.mapInArrow(task, FILE_DDL).collect()]


def counted(batch: ReducedBatch, lines: Sequence[WrittenFile]) -> tuple[ApplyResult, Found]:
    """What a batch does, without a version, by what tasks wrote and found.

    Raises:
        AccountingError: that is not what the batch has, or a key has several rows.
    """
    name = str(batch.shape.source)
    rows, positions = ([one for one in lines if (one.found is None) is kind] for kind in (True, False))
    count = sum(one.rows for one in rows)
    keys = joined_keys(rows).num_rows if rows else 0
    if (count, keys) != (batch.upserts, batch.upserts + batch.deletes):
        raise AccountingError(
            f"{count} rows were written to files, of {keys} keys, and the batch has {batch.upserts} "
            f"upserts and {batch.deletes} deletes; nothing is visible",
            table=name,
        )
    found = found_keys(positions, upserts=batch.upserts, keys=keys, table=name)
    inserted, absent = batch.upserts - found.upserts, batch.deletes - found.deletes
    return ApplyResult(inserted, found.upserts, found.deletes, absent, ""), found


# Where a batch goes. Each gives the reason for a MERGE.


def batch_reason(batch: ReducedBatch) -> str | None:
    """Why a batch is merged by MERGE, whatever the table; None where it need not be."""
    if batch.payloads is None:
        return "several ranges had events of one key, which were reduced once more"
    reasons = {
        "the batch empties the table": batch.truncates,
        f"mode: {batch.mode}": batch.mode != "upsert",
        "sequence_by: source": batch.sequenced,
        "deletes: soft": batch.delete_mode != "hard",
        "the source left out values that stay as they are": batch.keeps,
        "several sources share the table": batch.shape.shard is not None,
        f"the batch has more than {_MOST_KEYS:,} keys": batch.upserts + batch.deletes > _MOST_KEYS,
    }
    return next((text for text, holds in reasons.items() if holds), None)


def columns_reason(batch: ReducedBatch, present: Mapping[str, str]) -> str | None:
    """Why the table's columns, by name with their types, make it so."""
    wanted = {column.name.lower(): column for column in batch.shape.columns}
    beside = [name for name in present if name.lower() not in wanted]
    if beside or len(present) != len(wanted):
        return f"the table has other columns than the batch: {', '.join(beside) or 'some are missing'}"
    for name, ddl in present.items():
        column = wanted[name.lower()]
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
