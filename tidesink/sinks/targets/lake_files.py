"""A batch as files of a lake's table, without MERGE: what tasks write, and which rows they replace.

``RowsTask`` writes the rows that a batch's payloads hold as Parquet files, and gives their keys.
``LocateTask`` finds the rows of a table that have one of these keys, and writes their positions. Neither
reads a row on the driver: keys travel as Arrow data, and what comes back is a line for each file
(``FILE_DDL``). A format's own part plans the files, and commits them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidesink.errors import AccountingError, TargetError
from tidesink.sinks.spark.errors import reported
from tidesink.sinks.spark.payloads import DELETE, UPSERT, unpack

# ``upserts``, ``deletes``: keys as Arrow IPC streams. ``found``: a bit for each of the batch's keys.
FILE_DDL: Final = "path string, size bigint, rows bigint, upserts binary, deletes binary, found binary"
_FILES: Final = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("upserts", pa.binary()),
        ("deletes", pa.binary()),
        ("found", pa.binary()),
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


class FileColumn(NamedTuple):
    """A column of a table's Parquet files; ``source`` is its name in the batch, whose key it may be of."""

    name: str
    source: str
    type: pa.DataType
    field_id: int
    required: bool
    key: bool

    @property
    def field(self) -> pa.Field:
        """As Arrow writes it."""
        return pa.field(self.name, self.type, not self.required, {_FIELD_ID: str(self.field_id).encode()})


class DataFile(NamedTuple):
    """A file with rows of a table; ``deletes`` are the files of positions that may name its rows."""

    path: str
    rows: int
    deletes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NewFiles:
    """Where tasks write Parquet files: ``location`` has ``ATTEMPT`` in its name."""

    location: str
    compression: str

    def write(self, table: pa.Table, part: str) -> WrittenFile:
        """Write a file; its line."""
        path = self.location.replace(ATTEMPT, f"{_attempt()}-{part}")
        local = local_path(path)
        local.parent.mkdir(parents=True, exist_ok=True)
        # Spark's own files have decimals as integers too, where they fit. One row group: Arrow says no range
        # of a row group with a text of more than 4 KiB, and Iceberg would take that of the others for the
        # file's, so that readers skip it.
        pq.write_table(
            table,
            local,
            row_group_size=table.num_rows,
            compression=self.compression,
            store_schema=False,
            store_decimal_as_integer=True,
        )
        return WrittenFile(path, local.stat().st_size, table.num_rows)


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
        keys = [stream_of(_columns_of(one["key"], needed)) for one in (upserts, deletes)]
        file = WrittenFile()
        if upserts.num_rows:
            file = self.files.write(_columns_of(upserts["after"], self.columns), f"rows-{number}")
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
    files: NewFiles
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
        flags, positions = np.zeros(wanted.num_rows, bool), [POSITIONS.empty_table()]
        for some in _at_once(files, self.rows_at_once):
            starts = np.cumsum([0, *(file.rows for file in some)])
            at = matched(pa.concat_tables([_key_columns(file, keys) for file in some]), wanted)
            at[_deleted(some, starts)] = -1
            rows = np.flatnonzero(at >= 0)
            flags[at[rows]] = True
            positions.append(_positions(some, starts, rows))
        found, whole = np.packbits(flags).tobytes(), pa.concat_tables(positions)
        if not whole.num_rows:
            return WrittenFile(found=found)
        return self.files.write(whole, f"positions-{number}")._replace(found=found)


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


def _key_columns(file: DataFile, keys: Sequence[FileColumn]) -> pa.Table:
    """The keys of a file's rows, in their order; columns are known by their field ids, as Iceberg does."""
    with pq.ParquetFile(local_path(file.path), memory_map=True) as parquet:
        names = {int(f.metadata[_FIELD_ID]): f.name for f in parquet.schema_arrow if _has_id(f)}
        missing = [column.source for column in keys if column.field_id not in names]
        if missing or parquet.metadata.num_rows != file.rows:
            what = f"has no column {missing[0]}" if missing else f"has {parquet.metadata.num_rows} rows"
            raise FileRefusedError(
                f"the file {file.path} {what}, which is not what the table says of it", url=file.path
            )
        found = parquet.read(columns=[names[column.field_id] for column in keys])
    arrays = [found[names[column.field_id]].cast(column.type) for column in keys]
    return pa.table(arrays, names=[column.name for column in keys])


def _has_id(field: pa.Field) -> bool:
    return field.metadata is not None and _FIELD_ID in field.metadata


def _deleted(files: Sequence[DataFile], starts: Places) -> Places:
    """The rows of the files, counted through them all, that positions of the table say are deleted.

    A file's positions are those of its own ``deletes``: others may name its path, and be older than it.
    """
    found = [np.empty(0, np.int64)]
    for one in dict.fromkeys(path for file in files for path in file.deletes):
        paths = pa.array([file.path if one in file.deletes else None for file in files], pa.string())
        table = pq.read_table(
            local_path(one), columns=["file_path", "pos"], read_dictionary=["file_path"], partitioning=None
        )
        for chunk in table.to_batches():
            names = chunk.column("file_path")
            file = _codes(pa.chunked_array([names.dictionary]), paths)[names.indices.to_numpy()]
            rows = starts[file] + chunk.column("pos").to_numpy()
            found.append(rows[file >= 0])
    return np.concatenate(found)


def _positions(files: Sequence[DataFile], starts: Places, rows: Places) -> pa.Table:
    """Rows, counted through the files, as the position of each in its file; sorted by both."""
    file = np.searchsorted(starts, rows, side="right") - 1
    paths = pa.array([one.path for one in files]).take(pa.array(file))
    return pa.table([paths, pa.array(rows - starts[file])], schema=POSITIONS)


def _line(file: WrittenFile) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([file._asdict()], schema=_FILES)
