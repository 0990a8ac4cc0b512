"""A batch as files of a lake's table, without MERGE: what tasks write, and which rows they replace.

``RowsTask`` writes the rows that a batch's payloads hold as Parquet files, and gives their keys.
``LocateTask`` finds the rows of a table that have one of these keys, and writes their positions. Neither
reads a row on the driver: keys travel as Arrow data, and what comes back is a line for each file
(``FILE_DDL``). A format's own part plans the files, and commits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidesink.errors import AccountingError, TargetError
from tidesink.sinks.spark.errors import reported
from tidesink.sinks.spark.payloads import DELETE, UPSERT, unpack
from tidesink.sinks.spark.session import in_session
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch
from tidesink.sinks.targets.lake.rows import FIELD_ID, FileColumn, Places, codes, columns_of, matched
from tidesink.sinks.targets.lake.tables import SMALL_BATCH
from tidesink.typemap.arrow import arrow_of_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# ``upserts``, ``deletes``: keys as Arrow IPC streams. ``found``: a bit for each of the batch's keys.
# ``details``: what else the format's commit says of the file.
FILE_DDL: Final = (
    "path string, size bigint, rows bigint, upserts binary, deletes binary, found binary, details string"
)
_FILES: Final = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("upserts", pa.binary()),
        ("deletes", pa.binary()),
        ("found", pa.binary()),
        ("details", pa.string()),
    ]
)
# In the name of a new file: each attempt of a task writes files of its own.
ATTEMPT: Final = "ATTEMPT"
# A task writes what is as large as this in memory into one file.
_FILE_BYTES: Final = 256 << 20
# The columns of a file of positions, with the field ids that Iceberg reserves for them.
POSITIONS: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID: b"2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: b"2147483545"}),
    ]
)
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
    """A file of the table, its context's ``url``, cannot be looked into here: Spark may still read it."""


class WrittenFile(NamedTuple):
    """A line about what a task wrote, as ``FILE_DDL`` has it; ``path`` is None where there was nothing."""

    path: str | None = None
    size: int | None = None
    rows: int = 0
    upserts: bytes | None = None
    deletes: bytes | None = None
    found: bytes | None = None
    details: str | None = None


class DataFile(NamedTuple):
    """A file with rows of a table; ``deletes`` say which are deleted, in the format\'s words."""

    path: str
    rows: int
    deletes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NewFiles:
    """Where tasks write Parquet files: ``location`` has ``ATTEMPT`` in its name.

    ``describe`` gives the ``details`` of a file of rows, ``metadata`` is written into its footer.
    """

    location: str
    compression: str
    describe: Callable[[pa.Table], str] | None = None
    metadata: Mapping[str, str] | None = None

    def write(self, table: pa.Table, part: str) -> WrittenFile:
        """Write a file; its line."""
        path = self.location.replace(ATTEMPT, f"{_attempt()}-{part}")
        local = local_path(path)
        local.parent.mkdir(parents=True, exist_ok=True)
        # Spark's own files have decimals as integers too, where they fit. One row group: Arrow says no range
        # of a row group with a text of more than 4 KiB, and Iceberg would take that of the others for the
        # file's, so that readers skip it. No dictionary of floats: Spark looks for 0.0 in it, and passes over
        # -0.0, which equals it.
        pq.write_table(
            table.replace_schema_metadata(self.metadata) if self.metadata else table,
            local,
            row_group_size=table.num_rows,
            use_dictionary=[one.name for one in table.schema if not pa.types.is_floating(one.type)],
            compression=self.compression,
            store_schema=False,
            store_decimal_as_integer=True,
        )
        details = self.describe(table) if self.describe else None
        return WrittenFile(path, local.stat().st_size, table.num_rows, details=details)


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

    def deleted(self, files: Sequence[DataFile], starts: Places) -> Places:
        """The rows of files that are deleted already, counted through them all."""

    def write(self, marked: Sequence[MarkedRows], part: str) -> WrittenFile:
        """Write which rows are deleted now; at least one is."""


def local_path(location: str) -> Path:
    """A file of this machine's file system, from what a table calls it. Hadoop's paths are not encoded."""
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def is_local(location: str) -> bool:
    """Whether a location is in the file system of the machine."""
    return location.startswith(("/", "file:/"))


@dataclass(frozen=True)
class RowsTask:
    """Writes the rows of payloads to upsert; for ``mapInArrow``, as ``LocateTask``."""

    columns: tuple[FileColumn, ...]
    files: NewFiles

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
            TargetError: a row has no value in a column that takes no NULL.
        """
        for number, rows in enumerate(_file_sized(unpack(batches))):
            yield self._written(rows, number)

    def _written(self, rows: pa.Table, number: int) -> WrittenFile:
        upserts, deletes = (rows.filter(pc.equal(rows["_op"], kind)) for kind in (UPSERT, DELETE))
        # A key is never null, whatever the table's columns take: it would be found by no batch.
        needed = tuple(one._replace(required=True) for one in self.keys)
        keys = [stream_of(columns_of(one["key"], needed)) for one in (upserts, deletes)]
        file = WrittenFile()
        if upserts.num_rows:
            file = self.files.write(columns_of(upserts["after"], self.columns), f"rows-{number}")
        return file._replace(upserts=keys[0], deletes=keys[1])


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

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A line for each group: ``rows`` positions, no path where there are none."""
        with reported():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield _line(self.located(number, _read_stream(self.batch_keys)))

    def located(self, number: int, wanted: pa.Table) -> WrittenFile:
        """The line of a group.

        Raises:
            FileRefusedError: a file is not what the table says, or lacks a key column.
            AccountingError: the batch has a key twice.
        """
        files = sorted(self.groups[number], key=lambda file: file.path.encode())
        keys = [column for column in self.columns if column.key]
        flags, marked = np.zeros(wanted.num_rows, bool), list[MarkedRows]()
        for some in _at_once(files, self.rows_at_once):
            starts = np.cumsum([0, *(file.rows for file in some)])
            at = matched(pa.concat_tables([self._key_columns(file, keys) for file in some]), wanted)
            at[self.marks.deleted(some, starts)] = -1
            rows = np.flatnonzero(at >= 0)
            flags[at[rows]] = True
            if len(rows):
                marked.append(MarkedRows(some, starts, rows))
        found = np.packbits(flags).tobytes()
        written = self.marks.write(marked, f"positions-{number}") if marked else WrittenFile()
        return written._replace(found=found)

    def _key_columns(self, file: DataFile, keys: Sequence[FileColumn]) -> pa.Table:
        """The keys of a file's rows, in their order."""
        with pq.ParquetFile(
            local_path(file.path), memory_map=True, coerce_int96_timestamp_unit="us"
        ) as parquet:
            names = {column.source: self.marks.column_name(column, parquet.schema_arrow) for column in keys}
            missing = [name for name, there in names.items() if there is None]
            if missing or parquet.metadata.num_rows != file.rows:
                what = f"has no column {missing[0]}" if missing else f"has {parquet.metadata.num_rows} rows"
                raise FileRefusedError(
                    f"the file {file.path} {what}, which is not what the table says of it", url=file.path
                )
            found = parquet.read(columns=[*names.values()])
        arrays = [found[names[column.source]].cast(column.type) for column in keys]
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
            lines += [self.locate.located(number, keys) for number in range(len(self.locate.groups))]
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
        return next((f.name for f in schema if (f.metadata or {}).get(FIELD_ID) == number), None)

    def deleted(self, files: Sequence[DataFile], starts: Places) -> Places:
        """As ``Marks`` says.

        A file's positions are those of its own ``deletes``: others may name its path, and be older than it.
        """
        found = [np.empty(0, np.int64)]
        for one in dict.fromkeys(path for file in files for path in file.deletes):
            paths = pa.array([f.path if one in f.deletes else None for f in files], pa.string())
            table = pq.read_table(
                local_path(one),
                columns=["file_path", "pos"],
                read_dictionary=["file_path"],
                partitioning=None,
            )
            for chunk in table.to_batches():
                names = chunk.column("file_path")
                file = codes(pa.chunked_array([names.dictionary]), paths)[names.indices.to_numpy()]
                rows = starts[file] + chunk.column("pos").to_numpy()
                found.append(rows[file >= 0])
        return np.concatenate(found)

    def write(self, marked: Sequence[MarkedRows], part: str) -> WrittenFile:
        """One file of positions, sorted by file and position."""
        whole = pa.concat_tables(
            pa.table([pa.array([file.path] * len(at)), pa.array(at)], schema=POSITIONS)
            for some in marked
            for file, at in some.by_file()
        )
        return self.files.write(whole, part)


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
    locate = LocateTask(groups, b"", rows.columns, marks)
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
