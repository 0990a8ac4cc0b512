"""A batch as files of a lake's table, without MERGE: what tasks write, and which rows they replace.

``RowsTask`` writes the rows that a batch's payloads hold as Parquet files, and gives their keys.
``LocateTask`` finds the rows of a table that have one of these keys, and writes their positions. Where rows
depend on stored ones (``lake.rows``), ``KeysTask`` gives the keys, ``LocateTask`` the stored values as well,
and ``RowsTask`` comes last. None of them reads a row on the driver but these: keys and stored values travel
as Arrow data, and what comes back is a line for each file (``FILE_DDL``). A format's own part plans the
files, and commits them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidesink.errors import AccountingError, TargetError, TidesinkError
from tidesink.sinks.spark.errors import reported
from tidesink.sinks.spark.payloads import ROW_KINDS, unpack
from tidesink.sinks.spark.session import in_session
from tidesink.sinks.targets.base import (
    SEQUENCE_COLUMN,
    SEQUENCE_DDL,
    SOFT_DELETE_COLUMN,
    ApplyResult,
    ReducedBatch,
)
from tidesink.sinks.targets.lake.rows import (
    FIELD_ID,
    NEEDS_STORED,
    FileColumn,
    Mask,
    Places,
    RowRules,
    StoredRows,
    codes,
    matched,
    newer,
)
from tidesink.sinks.targets.lake.tables import SMALL_BATCH, arrow_batches_of_rows
from tidesink.typemap.arrow import arrow_of_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# ``upserts``, ``deletes``: keys as Arrow IPC streams. ``found``, ``stale``: a bit for each of the batch's
# keys, whether its stored row is replaced, or newer. ``stored``: values as an Arrow IPC stream. ``details``:
# what else the format's commit says of the file; of keys, the columns that rows leave out.
FILE_DDL: Final = (
    "path string, size bigint, rows bigint, upserts binary, deletes binary, found binary, stale binary, "
    "stored binary, details string"
)
_FILES: Final = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("upserts", pa.binary()),
        ("deletes", pa.binary()),
        ("found", pa.binary()),
        ("stale", pa.binary()),
        ("stored", pa.binary()),
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
# Stored values that a batch needs pass the driver, up to so many bytes.
_MOST_STORED: Final = 64 << 20
# As many rows of a file are read at once for their stored values.
_READ_ROWS: Final = 65_536
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


class NotAsFilesError(TargetError):
    """A batch cannot be written as files: MERGE may still take it. The message is the reason."""


class FileRefusedError(NotAsFilesError):
    """A file of the table, its context's ``url``, cannot be looked into here: Spark may still read it."""


class WrittenFile(NamedTuple):
    """A line about what a task wrote, as ``FILE_DDL`` has it; ``path`` is None where there was nothing."""

    path: str | None = None
    size: int | None = None
    rows: int = 0
    upserts: bytes | None = None
    deletes: bytes | None = None
    found: bytes | None = None
    stale: bytes | None = None
    stored: bytes | None = None
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
    """Writes the rows that payloads become in files; for ``mapInArrow``, as the tasks after it.

    ``packed``: it is given payloads; else the rows as they are.
    ``stored``: what the table has of the batch's keys (``StoredRows`` as Arrow IPC streams); None where it
    has nothing, or where the rules ask for nothing. The keys are then given.
    """

    columns: tuple[FileColumn, ...]
    files: NewFiles
    rules: RowRules
    packed: bool = True
    stored: tuple[bytes, bytes] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A line for each file; one without a path where there are no rows, but keys to delete."""
        with reported():
            for one in self.written(batches):
                yield _line(one)

    def written(self, batches: Iterable[pa.RecordBatch]) -> Iterator[WrittenFile]:
        """The lines.

        Raises:
            TargetError: a row has no value in a column that takes no NULL.
            ValueNotStoredError: a row leaves out a value that the table does not have.
        """
        stored = None if self.stored is None else StoredRows(*map(_read_stream, self.stored))
        for number, rows in enumerate(self.rows(batches)):
            table, file = self.rules.written(rows, self.columns, stored), WrittenFile()
            if table.num_rows:
                file = self.files.write(table, f"rows-{number}")
            if stored is None:
                upserts, deletes = map(stream_of, self.rules.keys(rows, self.columns))
                file = file._replace(upserts=upserts, deletes=deletes)
            yield file

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """The batch's rows, as many at once as one file has."""
        return _file_sized(unpack(batches) if self.packed else batches, self.rules.fields)

    def given(self, lines: Sequence[WrittenFile]) -> RowsTask:
        """The same with what was found of the batch's keys.

        Raises:
            AccountingError: the table has several rows of one key.
            NotAsFilesError: the stored values are too many.
        """
        keys, found = joined_keys(lines), found_keys(lines)
        rows = [_read_stream(one.stored) for one in lines if one.stored is not None]
        _check_stored(sum(one.nbytes for one in rows))
        keys = keys.select([column.name for column in self.columns if column.key])
        stale = keys.filter(pa.array(found.stale))
        whole = pa.concat_tables(rows) if rows else keys.schema.empty_table()
        return replace(self, stored=(stream_of(stale), stream_of(whole)))


@dataclass(frozen=True)
class KeysTask:
    """Gives the keys of a batch whose rows depend on stored ones, and the columns that they leave out."""

    rows: RowsTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A line for as many rows as one file has."""
        with reported():
            for one in self.keys(batches):
                yield _line(one)

    def keys(self, batches: Iterable[pa.RecordBatch]) -> Iterator[WrittenFile]:
        """The lines.

        Raises:
            TargetError: a key has no value.
        """
        rules = self.rows.rules
        for rows in self.rows.rows(batches):
            upserts, deletes = map(stream_of, rules.keys(rows, self.rows.columns))
            yield WrittenFile(upserts=upserts, deletes=deletes, details=json.dumps(rules.left_out(rows)))


@dataclass(frozen=True)
class LocateTask:
    """Finds the rows of groups of files that have one of the batch's keys, and writes their positions.

    ``batch_keys``: as ``joined_keys`` gives them. A task is given the numbers of its groups. It holds the
    keys of ``rows_at_once`` rows, or of one file that has more. ``stored``: the columns whose values it gives
    of the rows that need them.
    """

    groups: tuple[tuple[DataFile, ...], ...]
    batch_keys: bytes
    columns: tuple[FileColumn, ...]
    marks: Marks
    rows_at_once: int = 4_000_000
    stored: tuple[FileColumn, ...] = ()

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
            NotAsFilesError: the stored values are too many.
            AccountingError: the batch has a key twice.
        """
        files = sorted(filter(_has_rows, self.groups[number]), key=lambda file: file.path.encode())
        keys = [column for column in self.columns if column.key]
        names = [column.name for column in keys]
        found, stale = (np.zeros(wanted.num_rows, bool) for _ in range(2))
        marked, stored = list[MarkedRows](), _Stored(wanted.select(names))
        for some in _at_once(files, self.rows_at_once):
            starts = np.cumsum([0, *(file.rows for file in some)])
            read = (self._read(file, keys) for file in some)
            at = matched(pa.concat_tables(one for tables in read for one in tables), stored.keys)
            at[self.marks.deleted(some, starts)] = -1
            here = MarkedRows(some, starts, np.flatnonzero(at >= 0))
            if SEQUENCE_COLUMN in wanted.column_names and len(here.rows):
                old = self._is_newer(here, wanted[SEQUENCE_COLUMN].take(pa.array(at[here.rows])))
                stale[at[here.rows[~old]]] = True
                here = here._replace(rows=here.rows[old])
            found[at[here.rows]] = True
            if NEEDS_STORED in wanted.column_names:
                needed = here.rows[wanted[NEEDS_STORED].to_numpy()[at[here.rows]]]
                for rows, values in self._values(here._replace(rows=needed), self.stored):
                    stored.add(at[rows], values)
            if len(here.rows):
                marked.append(here)
        written = self.marks.write(marked, f"positions-{number}") if marked else WrittenFile()
        bits = [np.packbits(flags).tobytes() for flags in (found, stale)]
        return written._replace(found=bits[0], stale=bits[1], stored=stored.stream())

    def _is_newer(self, rows: MarkedRows, ours: pa.ChunkedArray) -> Mask:
        """Whether the batch's positions are newer than those of these rows."""
        column = next(one for one in self.columns if one.source == SEQUENCE_COLUMN)
        stored = pa.concat_tables([values for _, values in self._values(rows, (column,))])
        return newer(ours.combine_chunks(), stored[column.name].combine_chunks())

    def _values(self, marked: MarkedRows, columns: Sequence[FileColumn]) -> Iterator[tuple[Places, pa.Table]]:
        """The values that rows have in columns, in their order, with the rows' numbers."""
        starts = dict(zip(marked.files, marked.starts, strict=False))
        for file, positions in marked.by_file():
            first = 0
            for part in self._read(file, columns):
                low, high = np.searchsorted(positions, [first, first + part.num_rows])
                if high > low:
                    here = positions[low:high]
                    yield starts[file] + here, part.take(pa.array(here - first))
                first += part.num_rows

    def _read(self, file: DataFile, columns: Sequence[FileColumn]) -> Iterator[pa.Table]:
        """A file's columns, in parts; one that it does not have is NULL.

        Raises:
            FileRefusedError: it is not what the table says, or lacks a key column.
        """
        with pq.ParquetFile(
            local_path(file.path), memory_map=True, coerce_int96_timestamp_unit="us"
        ) as parquet:
            names = [self.marks.column_name(column, parquet.schema_arrow) for column in columns]
            missing = [one.source for one, name in zip(columns, names, strict=True) if one.key and not name]
            if missing or parquet.metadata.num_rows != file.rows:
                what = f"has no column {missing[0]}" if missing else f"has {parquet.metadata.num_rows} rows"
                raise FileRefusedError(
                    f"the file {file.path} {what}, which is not what the table says of it", url=file.path
                )
            for part in parquet.iter_batches(_READ_ROWS, columns=[name for name in names if name]):
                yield pa.table(
                    [
                        column.cast(part.column(name)) if name else pa.nulls(len(part), column.type)
                        for name, column in zip(names, columns, strict=True)
                    ],
                    names=[column.name for column in columns],
                )


class _Stored:
    """Stored values of rows that need them, with their keys."""

    def __init__(self, keys: pa.Table) -> None:
        self.keys = keys
        self._parts, self._size = list[pa.Table](), 0

    def add(self, numbers: Places, values: pa.Table) -> None:
        """Values of the rows whose keys have these numbers."""
        part = self.keys.take(pa.array(numbers))
        for name in values.column_names:
            part = part.append_column(name, values[name])
        self._parts.append(part)
        self._size += part.nbytes
        _check_stored(self._size)

    def stream(self) -> bytes | None:
        """As an Arrow IPC stream; None where there are none."""
        return stream_of(pa.concat_tables(self._parts)) if self._parts else None


@dataclass(frozen=True)
class SmallBatchTask:
    """Writes the rows of a batch, and locates its keys, in one task: it gets all payloads."""

    rows: RowsTask
    locate: LocateTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The lines of both."""
        with reported():
            for one in self._lines([*batches]):
                yield _line(one._replace(stored=None))

    def _lines(self, batches: Sequence[pa.RecordBatch]) -> list[WrittenFile]:
        compares = self.rows.rules.compares and bool(self.locate.groups)
        lines = [*(KeysTask(self.rows).keys(batches) if compares else self.rows.written(batches))]
        keys, locate = joined_keys(lines), locating(self.locate, self.rows.rules, lines)
        lines += [locate.located(number, keys) for number in range(len(locate.groups))]
        return [*lines, *self.rows.given(lines).written(batches)] if compares else lines


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
    tables = [_read_stream(data) for data in streams if data is not None]
    return pa.concat_tables(tables) if tables else pa.table({})


class FoundKeys(NamedTuple):
    """Of each of a batch's keys, those to upsert first, whether its stored row is replaced, or newer."""

    found: Mask
    stale: Mask


def found_keys(lines: Sequence[WrittenFile]) -> FoundKeys:
    """What tasks found of the keys that tasks gave.

    Raises:
        AccountingError: the table has several rows of one key.
    """
    keys = joined_keys(lines).num_rows
    located = [one for one in lines if one.found is not None]
    found = _any_of([one.found for one in located], keys)
    stale = _any_of([one.stale for one in located], keys)
    positions = sum(one.rows for one in located)
    if found.sum() != positions or (found & stale).any():
        raise AccountingError(
            f"the table has {positions + stale.sum()} rows of {(found | stale).sum()} keys of the batch: "
            "another program wrote rows of keys that were there already. Remove the rows that are too many; "
            "nothing was written"
        )
    return FoundKeys(found, stale)


def _any_of(flags: Sequence[bytes | None], count: int) -> Mask:
    """Whether some of these bits are set, for each of so many keys."""
    whole = np.zeros(count, bool)
    for bits in flags:
        whole |= np.unpackbits(np.frombuffer(bits or b"", np.uint8), count=count).astype(bool)
    return whole


def locating(task: LocateTask, rules: RowRules, lines: Sequence[WrittenFile]) -> LocateTask:
    """The task with the columns whose stored values a batch needs, whose keys tasks gave."""
    left_out = {name for one in lines for name in json.loads(one.details or "[]")} if rules.keeps else set()
    return replace(task, stored=rules.stored_columns(task.columns, left_out))


def _attempt() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return "0" if context is None else f"{context.partitionId()}-{context.taskAttemptId()}"


def _file_sized(batches: Iterable[pa.RecordBatch], fields: list[str]) -> Iterator[pa.Table]:
    rows, size = list[pa.RecordBatch](), 0
    for batch in batches:
        # Bad records and events that are no row travel in payloads as well.
        rows.append(batch.select(fields).filter(pc.is_in(batch["_op"], pa.array(ROW_KINDS))))
        size += rows[-1].nbytes
        if size >= _FILE_BYTES:
            yield pa.Table.from_batches(rows)
            rows, size = [], 0
    if rows:
        yield pa.Table.from_batches(rows)


def _has_rows(file: DataFile) -> bool:
    return file.rows > 0


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


def _check_stored(size: int) -> None:
    if size > _MOST_STORED:
        raise NotAsFilesError(f"the batch needs more than {_MOST_STORED >> 20} MiB of stored values")


def stream_of(keys: pa.Table) -> bytes:
    """A table as an Arrow IPC stream."""
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
    rows, frame = replace(rows, packed=batch.payloads is not None), batch.payloads or batch.frame
    assert frame is not None  # noqa: S101  (``batch_reason``)
    given = in_session(frame, session)
    cores = session.sparkContext.defaultParallelism
    groups = groups_of(files, most=2 * cores, rows=_ROWS_A_TASK)
    locate = LocateTask(groups, b"", rows.columns, marks)
    with arrow_batches_of_rows(session) if not rows.packed else nullcontext():
        if batch.upserts + batch.deletes <= SMALL_BATCH and len(groups) <= cores:
            return _run(given.coalesce(1), SmallBatchTask(rows, locate))
        compares = rows.rules.compares and bool(groups)
        lines = _run(given.coalesce(cores), KeysTask(rows) if compares else rows)
        if groups:
            locate = replace(locating(locate, rows.rules, lines), batch_keys=stream_of(joined_keys(lines)))
            lines += _run(session.range(0, len(groups), 1, len(groups)), locate)
        return lines + _run(given.coalesce(cores), rows.given(lines)) if compares else lines


def _run(frame: DataFrame, task: RowsTask | KeysTask | LocateTask | SmallBatchTask) -> list[WrittenFile]:
    return [WrittenFile(*line) for line in frame.mapInArrow(task, FILE_DDL).collect()]


class BatchCounts(NamedTuple):
    """What a batch does, without a version; the rows that its files have, and the rows that it marks."""

    result: ApplyResult
    rows: int
    marked: int


def counted(batch: ReducedBatch, lines: Sequence[WrittenFile]) -> BatchCounts:
    """What a batch does by what tasks wrote and found.

    Raises:
        AccountingError: that is not what the batch has, or a key has several rows.
    """
    keys = joined_keys(lines).num_rows
    found, stale = found_keys(lines)
    replaced, deleted = int(found[: batch.upserts].sum()), int(found[batch.upserts :].sum())
    if batch.sequenced:
        left, replaced = int(stale.sum()), replaced + deleted
        result = ApplyResult(keys - replaced - left, replaced, 0, 0, "", left)
        counts = BatchCounts(result, result.upserted, replaced)
    else:
        result = ApplyResult(batch.upserts - replaced, replaced, deleted, batch.deletes - deleted, "")
        marks = deleted if batch.delete_mode == "soft" else 0
        counts = BatchCounts(result, batch.upserts + marks, replaced + deleted)
    rows = sum(one.rows for one in lines if one.found is None)
    if (rows, keys) != (counts.rows, batch.upserts + batch.deletes):
        raise AccountingError(
            f"{rows} rows were written to files, of {keys} keys, and the batch has {batch.upserts} upserts "
            f"and {batch.deletes} deletes, for {counts.marked} of which there was a row to replace, and for "
            f"{result.stale} a newer one; nothing is visible"
        )
    return counts


# Where a batch goes. Each gives the reason for a MERGE.


def batch_reason(batch: ReducedBatch) -> str | None:
    """Why a batch is merged by MERGE, whatever the table; None where it need not be."""
    reasons = {
        # In the source's order several ranges may have events of one key, which are reduced once more.
        "the batch has no payloads": batch.payloads is None and not (batch.sequenced and batch.frame),
        "the batch empties the table": batch.truncates,
        f"mode: {batch.mode}": batch.mode != "upsert",
        "sequence_by: source, and the source left out values": batch.sequenced and batch.keeps,
        f"the batch has more than {_MOST_KEYS:,} keys": batch.upserts + batch.deletes > _MOST_KEYS,
    }
    return next((text for text, holds in reasons.items() if holds), None)


def columns_reason(batch: ReducedBatch, present: Mapping[str, str]) -> str | None:
    """Why the table's columns, by name with their types, make it so."""
    wanted = {column.name.lower(): column for column in batch.shape.columns}
    own = {SEQUENCE_COLUMN: SEQUENCE_DDL} if batch.sequenced else {}
    # Also after a change back to hard deletes, the mark is there.
    if batch.sequenced or batch.delete_mode == "soft" or SOFT_DELETE_COLUMN in present:
        own[SOFT_DELETE_COLUMN] = "boolean"
    unlike = next((name for name, ddl in own.items() if present.get(name) != ddl), None)
    if unlike is not None:
        return f"the table has no column {unlike} {own[unlike]}"
    beside = [name for name in present if name.lower() not in wanted and name not in own]
    if beside or len(present) != len(wanted) + len(own):
        return f"the table has other columns than the batch: {', '.join(beside) or 'some are missing'}"
    for name, column in ((name, wanted[name.lower()]) for name in present if name not in own):
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
