"""Writes a batch as files of a lake's table (Delta or Iceberg), without MERGE: the Spark tasks.

``RowsTask`` writes the batch's rows as Parquet files, and returns their keys. ``LocateTask`` then finds the
table's rows that have one of these keys, and writes their positions, which marks them as deleted. If the rows
to write depend on stored rows (``lake.rows``, ``lake.versions``), the order differs: ``KeysTask`` returns the
keys, ``LocateTask`` also returns the stored values, and ``RowsTask`` comes last. ``FileSink`` writes rows
earlier, in the tasks that reduce records to rows.

Each task returns a report (``WrittenFile``) on each written file. Only these reports, which also contain keys
and stored values, pass through the driver. Then the code of Delta or Iceberg commits the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple, Protocol
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidesink.errors import AccountingError
from tidesink.sinks.laws.modes import FROM_COLUMN, READ_COLUMN, TO_COLUMN
from tidesink.sinks.spark.attempts import task_attempt
from tidesink.sinks.spark.payloads import ROW_KINDS, unpack
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, StagedPart
from tidesink.sinks.targets.lake.rows import (
    MOST_PARTITIONS,
    NEEDS_STORED,
    FileColumn,
    Mask,
    NotAsFilesError,
    Partition,
    Places,
    RowRules,
    Split,
    TooManyPartitionsError,
    TooManyStoredError,
    matched,
    newer,
    unpartitioned,
)
from tidesink.sinks.targets.lake.storage import LOCAL, Storage, StorageError
from tidesink.sinks.targets.lake.versions import (
    COMMIT_TS,
    NO_MOMENT,
    Events,
    Spans,
    VersionRules,
    changes,
    spans_of,
)

# Columns of a report (``WrittenFile``). ``upserts``, ``deletes``: keys as Arrow IPC streams. ``found``,
# ``stale``: bit strings with one bit for each key of the batch: its stored row is replaced, or is at least as
# new. ``stored``: stored values as an Arrow IPC stream. ``partition``: the file's partition values.
# ``details``: further data for the format's commit; in reports with keys, the columns that rows omit.
# ``counts``: the counts of a history table, as JSON (``versions.Counts``).
FILE_DDL: Final = (
    "path string, size bigint, rows bigint, upserts binary, deletes binary, found binary, stale binary, "
    "stored binary, partition string, details string, counts string"
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
        ("partition", pa.string()),
        ("details", pa.string()),
        ("counts", pa.string()),
    ]
)
# Placeholder in the name of a new file. Each task attempt replaces it by its own id, so that names are
# unique.
ATTEMPT: Final = "ATTEMPT"
# Size in memory of the rows that a task writes to one file.
_FILE_BYTES: Final = 256 << 20
# A batch that needs more bytes of stored values is not written as files, because they pass through the
# driver.
MOST_STORED: Final = 64 << 20
# Columns of a stored version that are read to find out if it changes.
_SPAN: Final = (FROM_COLUMN, TO_COLUMN, READ_COLUMN)
# Number of rows that are read at once from a file when only some of its rows are needed.
_READ_ROWS: Final = 65_536


class FileRefusedError(NotAsFilesError):
    """Python cannot read a file of the table, but Spark may be able to. The error's context has the file's
    ``url``.
    """


class WrittenFile(NamedTuple):
    """A task's report on a written file. Its fields are the columns of ``FILE_DDL``.

    ``path`` is None in a report that only has keys, stored values or counts.
    """

    path: str | None = None
    size: int | None = None
    rows: int = 0
    upserts: bytes | None = None
    deletes: bytes | None = None
    found: bytes | None = None
    stale: bytes | None = None
    stored: bytes | None = None
    partition: str = ""
    details: str | None = None
    counts: str | None = None


class DataFile(NamedTuple):
    """An existing data file of a table.

    ``rows``: number of its rows, including deleted ones.
    ``deletes``: its position deletes or deletion vectors, as texts in the form of Delta or Iceberg.
    """

    path: str
    rows: int
    deletes: tuple[str, ...] = ()
    partition: Partition = Partition()


@dataclass(frozen=True)
class NewFiles:
    """Location and settings of the Parquet files that tasks write.

    ``location``: path with ``ATTEMPT`` in the file name. Partition folders are inserted before the name.
    ``compression``: Arrow's name of the compression.
    ``describe``: returns the ``details`` of the report on a file with these rows.
    ``metadata``: key-value pairs for the file's footer.
    """

    location: str
    compression: str
    describe: Callable[[pa.Table], str] | None = None
    metadata: Mapping[str, str] | None = None
    storage: Storage = LOCAL

    def path(self, part: str, folder: str = "") -> str:
        """Return the path of a new file of this task attempt.

        ``part``: a name that is unique within the task attempt.
        ``folder``: the folder of the file's partition.
        """
        parent, _, name = self.location.rpartition("/")
        name = name.replace(ATTEMPT, f"{_attempt()}-{part}")
        return "/".join(filter(None, (parent, folder, name)))

    def renamed(self, word: str) -> NewFiles:
        """Return a copy of these settings in which all file names contain an additional word."""
        parent, slash, name = self.location.rpartition("/")
        return replace(self, location=f"{parent}{slash}{name.replace(ATTEMPT, f'{word}-{ATTEMPT}')}")

    def write(self, table: pa.Table, part: str, partition: Partition) -> WrittenFile:
        """Write a table's rows to a new Parquet file, and return the report on the file."""
        path = self.path(part, partition.folder)
        # Short decimals are stored as integers, as Spark does. Each file has one row group: Arrow writes no
        # value range for a row group with a text of more than 4 KiB, and Iceberg would use the range of the
        # other row groups for the whole file, so readers would skip it wrongly. Floats have no dictionary,
        # because Spark searches it for 0.0 and would not find the equal -0.0.
        with self.storage.writing(path) as file:
            pq.write_table(
                table.replace_schema_metadata(self.metadata) if self.metadata else table,
                file,
                row_group_size=table.num_rows,
                use_dictionary=[field.name for field in table.schema if not pa.types.is_floating(field.type)],
                compression=self.compression,
                store_schema=False,
                store_decimal_as_integer=True,
            )
            size = file.tell()
        details = self.describe(table) if self.describe else None
        return WrittenFile(path, size, table.num_rows, partition=partition.values, details=details)


class MarkedRows(NamedTuple):
    """Rows of data files that are to be marked as deleted. The rows of all files are numbered consecutively.

    ``starts``: number of each file's first row.
    ``rows``: the numbers of the rows to mark.
    """

    files: Sequence[DataFile]
    starts: Places
    rows: Places

    def by_file(self) -> Iterator[tuple[DataFile, Places]]:
        """Yield each file that has rows to mark, and the positions of these rows in the file."""
        ends = np.searchsorted(self.rows, self.starts)
        for index, file in enumerate(self.files):
            positions = self.rows[ends[index] : ends[index + 1]] - self.starts[index]
            if len(positions):
                yield file, positions


class Marks(Protocol):
    """Reads and writes which rows of data files are deleted, in the form of Delta or Iceberg."""

    @property
    def storage(self) -> Storage:
        """The storage with which the table's files are opened."""

    def column_name(self, column: FileColumn, schema: pa.Schema) -> str | None:
        """Return a column's name in a file with this schema; None if the file does not have the column."""

    def partition_value(self, column: FileColumn, file: DataFile) -> pa.Scalar | None:
        """Return the value that all rows of a file have in a partition column that the file does not store.

        Returns None for a column that is not a partition column.
        """

    def deleted(self, files: Sequence[DataFile], starts: Places) -> Places:
        """Return the row numbers of the rows in ``files`` that are already deleted.

        The rows of all files are numbered consecutively, as in ``MarkedRows``.

        ``starts``: number of each file's first row.
        """

    def write(self, marked: Sequence[MarkedRows], part: str) -> Iterator[WrittenFile]:
        """Write position deletes or deletion vectors for the marked rows, and yield the reports on the files.

        ``marked``: the rows to mark; at least one row.
        ``part``: a name that is unique within the task attempt.
        """


@dataclass(frozen=True)
class RowsTask:
    """The task that writes a batch's rows to files. Like the tasks below, it runs on ``TaskRows``.

    ``columns``: the columns of the files.
    ``rules``: determine which rows are written.
    ``split``: splits the rows by partition.
    ``packed``: True if the input is payloads (Arrow IPC streams), False if it is rows.
    ``stored``: the two tables that ``rules.written`` expects, as Arrow IPC streams. None if the rows do not
        depend on stored rows. In this case, the task also returns the batch's keys.
    ``most_stored``: maximum number of bytes of stored values that a batch may need.
    """

    columns: tuple[FileColumn, ...]
    files: NewFiles
    rules: RowRules | VersionRules
    split: Split = unpartitioned
    packed: bool = True
    stored: tuple[bytes, bytes] | None = None
    most_stored: int = MOST_STORED

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write rows to files, and yield the reports (``WrittenFile``) as record batches."""
        for line in self.written(batches):
            yield _line(line)

    def written(self, batches: Iterable[pa.RecordBatch]) -> Iterator[WrittenFile]:
        """Write the rows, and yield a report on each file.

        If there are only deletes, the report has their keys but no path.

        Raises:
            TargetError: a row has no value in a NOT NULL column, or a partition value that the format cannot
                store.
            ValueNotStoredError: a row omits a value that the table does not have.
            NotAsFilesError: the rows belong to too many partitions.
        """
        stored = None if self.stored is None else (_read_stream(self.stored[0]), _read_stream(self.stored[1]))
        for number, rows in enumerate(self.rows(batches)):
            table = self.rules.written(rows, self.columns, stored)
            files = self.write(table, number) if table.num_rows else [WrittenFile()]
            if stored is None and not self.rules.appends:
                upserts, deletes = map(stream_of, self.rules.keys(rows, self.columns))
                files[0] = files[0]._replace(upserts=upserts, deletes=deletes)
            yield from files

    def write(self, rows: pa.Table, number: int) -> list[WrittenFile]:
        """Write rows to one file per partition, and return the reports on the files.

        ``number``: a different number for each call in a task.

        Raises:
            NotAsFilesError: the rows belong to too many partitions.
        """
        try:
            return [
                self.files.write(part, f"rows-{number}-{index}", partition)
                for index, (partition, part) in enumerate(self.split(rows))
            ]
        except TooManyPartitionsError:
            raise NotAsFilesError(f"the batch has rows of more than {MOST_PARTITIONS:,} partitions") from None

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield the batch's rows as Arrow tables that are small enough for one file each."""
        return _file_sized(unpack(batches) if self.packed else batches, self.rules.fields)

    def ended(self, versions: pa.Table, number: int) -> list[WrittenFile]:
        """Write stored versions of a history table again with their new ends, and return the reports on the
        files.

        ``number``: a different number for each call in a task.
        """
        assert isinstance(self.rules, VersionRules)  # noqa: S101  (``LocateTask.ends``)
        return self.write(self.rules.changed(self.columns, versions), number)

    def is_like(self, other: RowsTask) -> bool:
        """Return True if this task and ``other`` would write the same files, apart from their names and
        stored values.
        """
        mine, theirs = (
            (task.columns, task.split, task.files.compression, task.files.describe, task.files.metadata)
            for task in (self, other)
        )
        return mine == theirs

    def given(self, lines: Sequence[WrittenFile], *, ended: bool = False) -> tuple[RowsTask, WrittenFile]:
        """Return a copy of this task that has the stored rows that were found, and a report with the row
        counts of a history table (empty for another table).

        ``lines``: the reports of the tasks that returned keys and stored values.
        ``ended``: True if ``LocateTask`` has written the versions of a history table that end.

        Raises:
            AccountingError: the table has several rows of one key, or of one version.
            NotAsFilesError: there are too many stored values, or versions of one key overlap.
        """
        keys, names = joined_keys(lines), [column.name for column in self.columns if column.key]
        rows = [_read_stream(file.stored) for file in lines if file.stored is not None]
        _check_stored(sum(table.nbytes for table in rows), self.most_stored)
        if isinstance(self.rules, VersionRules):
            changed = changes(keys, rows, names, ended=ended)
            line = WrittenFile(counts=json.dumps(changed.counts._asdict()))
            return replace(self, stored=(stream_of(changed.written), stream_of(changed.again))), line
        stale = keys.select(names).filter(pa.array(found_keys(lines).stale))
        whole = pa.concat_tables(rows) if rows else stale.schema.empty_table()
        return replace(self, stored=(stream_of(stale), stream_of(whole))), WrittenFile()


@dataclass(frozen=True)
class FileSink:
    """The ``RowSink`` of Delta and Iceberg: a task that reduces an offset range's records to rows writes
    these to files.

    The ``files`` of the returned ``StagedPart`` are reports (``WrittenFile``).
    """

    rows: RowsTask

    def __call__(self, rows: Iterable[pa.RecordBatch]) -> StagedPart:
        """Write rows to files, and return a ``StagedPart`` with the reports on them, or with the reason of a
        failure.
        """
        # A task may reduce several ranges one after the other, so each gets its own file names.
        task = replace(self.rows, files=self.rows.files.renamed(uuid4().hex), packed=False)
        try:
            lines = tuple(task.written(rows))
        except (NotAsFilesError, StorageError) as exc:  # Spark may still be able to write the batch
            return StagedPart(0, 0, exc.message)
        except OSError as exc:  # the later tasks over the payloads report the details
            return StagedPart(0, 0, type(exc).__name__)
        return StagedPart(0, sum(line.rows for line in lines), files=lines)


@dataclass(frozen=True)
class KeysTask:
    """The Spark task that returns a batch's keys, and the columns that its rows omit.

    It is used if the rows to write depend on stored rows.
    """

    rows: RowsTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield reports (``WrittenFile``) with the batch's keys, as record batches."""
        for line in self.keys(batches):
            yield _line(line)

    def keys(self, batches: Iterable[pa.RecordBatch]) -> Iterator[WrittenFile]:
        """Yield reports with the batch's keys, and in ``details`` the names of the omitted columns as JSON.

        Raises:
            TargetError: a key column has no value.
        """
        rules = self.rows.rules
        for rows in self.rows.rows(batches):
            upserts, deletes = map(stream_of, rules.keys(rows, self.rows.columns))
            yield WrittenFile(upserts=upserts, deletes=deletes, details=json.dumps(rules.omitted(rows)))


@dataclass(frozen=True)
class LocateTask:
    """The Spark task that finds stored rows with one of the batch's keys, and marks them as deleted.

    The table's files are divided into groups. The input of a task is the numbers of the groups that it
    searches.

    ``batch_keys``: the batch's keys (``joined_keys``) as an Arrow IPC stream.
    ``columns``: the columns of the table's files.
    ``marks``: writes the positions of the found rows.
    ``rows_at_once``: number of stored rows whose keys a task holds in memory at the same time. A file with
        more rows is read by itself.
    ``stored``: columns whose stored values are returned for the rows that need them.
    ``ends``: for a history table, the task that writes the versions that end. Their values are then not
        returned.
    ``most_stored``: maximum number of bytes of stored values that a group of files may need.
    """

    groups: tuple[tuple[DataFile, ...], ...]
    batch_keys: bytes
    columns: tuple[FileColumn, ...]
    marks: Marks
    rows_at_once: int = 4_000_000
    stored: tuple[FileColumn, ...] = ()
    ends: RowsTask | None = None
    most_stored: int = MOST_STORED

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Search groups of files for the batch's keys, and yield the reports (``WrittenFile``) as record
        batches.
        """
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for line in self.located(number, _read_stream(self.batch_keys)):
                    yield _line(line)

    def located(self, number: int, wanted: pa.Table) -> Iterator[WrittenFile]:
        """Search a group of files, and yield a report on each written file, or one without a path if no file
        is written.

        The first report has the flags of the keys that were found, and the stored values.

        ``number``: the number of the group.
        ``wanted``: the batch's keys.

        Raises:
            FileRefusedError: a file does not match the table's metadata, or lacks a key column.
            NotAsFilesError: there are too many stored values.
            AccountingError: the batch has a key twice.
        """
        files = sorted(filter(_has_rows, self.groups[number]), key=lambda file: file.path.encode())
        keys = [column for column in self.columns if column.key]
        names = [column.name for column in keys]
        events = Events(wanted, names) if COMMIT_TS in wanted.column_names else None
        spans = [field for field in self.columns if events and field.source in _SPAN]
        marked = list[MarkedRows]()
        stored = _Stored(events.keys if events else wanted.select(names), self.most_stored)
        found, stale = (np.zeros(stored.keys.num_rows, bool) for _ in range(2))
        for some in _at_once(files, self.rows_at_once):
            starts = np.cumsum([0, *(file.rows for file in some)])
            columns = self.marks.storage.each(partial(self._read, [*keys, *spans]), some)
            whole = pa.concat_tables(columns)
            indexes = matched(whole.select(names), stored.keys)
            indexes[self.marks.deleted(some, starts)] = -1
            here = MarkedRows(some, starts, np.flatnonzero(indexes >= 0))
            if events:
                here = self._changed(here, indexes, events, whole, stored)
            if SEQUENCE_COLUMN in wanted.column_names and len(here.rows):
                newer_here = self._is_newer(here, wanted[SEQUENCE_COLUMN].take(pa.array(indexes[here.rows])))
                stale[indexes[here.rows[~newer_here]]] = True
                here = here._replace(rows=here.rows[newer_here])
            found[indexes[here.rows]] = True
            if NEEDS_STORED in wanted.column_names:
                needed = here.rows[wanted[NEEDS_STORED].to_numpy()[indexes[here.rows]]]
                for rows, values in self._values(here._replace(rows=needed)):
                    stored.add(_beside(stored.keys.take(pa.array(indexes[rows])), values))
            if len(here.rows):
                marked.append(here)
        bits = [np.packbits(flags).tobytes() for flags in (found, stale)]
        more = WrittenFile(found=bits[0], stale=bits[1], stored=stored.stream())
        for file in self.marks.write(marked, f"positions-{number}") if marked else [WrittenFile()]:
            yield file._replace(found=more.found, stale=more.stale, stored=more.stored)
            more = WrittenFile(found=b"")
        if self.ends and stored.ended:
            yield from self.ends.ended(pa.concat_tables(stored.ended), number)

    def _changed(
        self, rows: MarkedRows, at: Places, events: Events, whole: pa.Table, stored: _Stored
    ) -> MarkedRows:
        """Return the stored versions of a history table that the batch changes, as rows to mark as deleted.

        Also adds the versions that the function ``versions.changes`` needs to ``stored``.

        ``rows``: the stored versions with one of the batch's keys.
        ``at``: the index of the key for each row of ``whole``; -1 for a key that is not in the batch.
        ``whole``: key and span columns of all rows of the files.
        """
        names = {column.source: column.name for column in self.columns}
        keys = at[rows.rows]
        stored_spans = Spans.of(whole.take(pa.array(rows.rows)), *(names[source] for source in _SPAN))
        near, by, goes = events.changing(keys, stored_spans)
        changed = by != NO_MOMENT
        spans = partial(spans_of, stored.keys.take(pa.array(keys)), stored_spans, by)
        stored.add(spans((near & ~changed) | goes))
        values = [part for _, part in self._values(rows._replace(rows=rows.rows[changed & ~goes]))]
        rows, table = rows._replace(rows=rows.rows[changed]), spans(changed & ~goes)
        full = _beside(table, pa.concat_tables(values)) if values else table
        stored_spans, by = stored_spans.filtered(changed & ~goes), by[changed & ~goes]
        version = ~stored_spans.mark
        if self.ends and version.any():
            stored.add(table.filter(pa.array(version)))
            stored.ended.append(spans_of(full, stored_spans._replace(end=by), by, version))
            full = full.filter(pa.array(~version))
        stored.add(full)
        return rows

    def _is_newer(self, rows: MarkedRows, ours: pa.ChunkedArray) -> Mask:
        """Return a mask of the stored rows ``rows`` that is True where the batch's row of the same key is
        newer.

        ``ours``: the source positions of the batch's rows with these keys.
        """
        column = next(candidate for candidate in self.columns if candidate.source == SEQUENCE_COLUMN)
        tables = self.marks.storage.each(partial(self._read_rows, (column,)), [*rows.by_file()])
        stored = pa.concat_tables(tables)[column.name]
        return newer(ours.combine_chunks(), stored.combine_chunks())

    def _values(self, marked: MarkedRows) -> Iterator[tuple[Places, pa.Table]]:
        """Yield, for each file with rows in ``marked``, the numbers of these rows and their stored values."""
        first = 0
        for file, positions in marked.by_file():
            yield marked.rows[first : first + len(positions)], self._read(self.stored, file, positions)
            first += len(positions)

    def _read_rows(self, columns: Sequence[FileColumn], rows: tuple[DataFile, Places]) -> pa.Table:
        return self._read(columns, *rows)

    def _read(self, columns: Sequence[FileColumn], file: DataFile, rows: Places | None = None) -> pa.Table:
        """Read columns of a file. A column that the file does not have gets its partition's value, or NULL.

        ``rows``: positions of the rows to read; None for all rows.

        Raises:
            FileRefusedError: the file does not match the table's metadata, or lacks a key column.
        """
        with (
            self.marks.storage.reading(file.path) as source,
            pq.ParquetFile(source, pre_buffer=True, coerce_int96_timestamp_unit="us") as parquet,
        ):
            names = [self.marks.column_name(column, parquet.schema_arrow) for column in columns]
            same = {
                column.name: self.marks.partition_value(column, file)
                for column, name in zip(columns, names, strict=True)
                if name is None
            }
            missing = [field.source for field in columns if field.key and same.get(field.name, field) is None]
            if missing or parquet.metadata.num_rows != file.rows:
                what = f"has no column {missing[0]}" if missing else f"has {parquet.metadata.num_rows} rows"
                raise FileRefusedError(
                    f"the file {file.path} {what}, which does not match the table's metadata", url=file.path
                )
            there = [name for name in names if name is not None]
            table = _rows_of(parquet, there, rows) if there else pa.table({})
        count = file.rows if rows is None else len(rows)
        arrays = [
            _repeated(same[column.name], column.type, count) if name is None else column.cast(table[name])
            for column, name in zip(columns, names, strict=True)
        ]
        return pa.table(arrays, names=[column.name for column in columns])


def _repeated(value: pa.Scalar | None, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if value is None else pa.repeat(value, count)


def _rows_of(parquet: pq.ParquetFile, names: Sequence[str], rows: Places | None) -> pa.Table:
    """Read columns of a Parquet file at the row positions ``rows``; of all rows if it is None."""
    if rows is None:
        return parquet.read(columns=names)
    parts, first = list[pa.RecordBatch](), 0
    for part in parquet.iter_batches(_READ_ROWS, columns=names):
        low, high = np.searchsorted(rows, [first, first + part.num_rows])
        if high > low:
            parts.append(part.take(pa.array(rows[low:high] - first)))
        first += part.num_rows
    return pa.Table.from_batches(parts)


def _beside(rows: pa.Table, values: pa.Table) -> pa.Table:
    """Return the Arrow table ``rows`` with the columns of the Arrow table ``values`` added."""
    for name in values.column_names:
        rows = rows.append_column(name, values[name])
    return rows


class _Stored:
    """Collects the stored rows and values that a batch needs from a group of data files.

    ``keys``: the batch's keys.
    ``most``: maximum number of bytes of these values.
    ``ended``: versions of a history table that end. The task that finds them also writes them.
    """

    def __init__(self, keys: pa.Table, most: int) -> None:
        self.keys, self._most = keys, most
        self.ended, self._parts, self._size = list[pa.Table](), list[pa.Table](), 0

    def add(self, part: pa.Table) -> None:
        """Add stored rows with their keys and the values that the batch needs.

        Raises:
            NotAsFilesError: the batch needs too many stored values.
        """
        self._parts.append(part)
        self._size += part.nbytes
        _check_stored(self._size, self._most)

    def stream(self) -> bytes | None:
        """Return the collected stored values as an Arrow IPC stream; None if there are no values."""
        whole = [part for part in self._parts if part.num_rows]
        return stream_of(pa.concat_tables(whole, promote_options="default")) if whole else None


@dataclass(frozen=True)
class SmallBatchTask:
    """The Spark task that writes all rows of a small batch and also finds the stored rows."""

    rows: RowsTask
    locate: LocateTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the batch's rows to files, and yield the reports (``WrittenFile``) as record batches."""
        for line in self._lines([*batches]):
            yield _line(line._replace(stored=None))

    def _lines(self, batches: Sequence[pa.RecordBatch]) -> list[WrittenFile]:
        compares = self.rows.rules.compares(self.locate.groups)
        lines = [*(KeysTask(self.rows).keys(batches) if compares else self.rows.written(batches))]
        keys, locate = joined_keys(lines), locating(self.locate, self.rows.rules, lines)
        lines += [file for number in range(len(locate.groups)) for file in locate.located(number, keys)]
        if not compares:
            return lines
        rows, line = self.rows.given(lines)
        return [*lines, line, *rows.written(batches)]


def joined_keys(rows: Sequence[WrittenFile]) -> pa.Table:
    """Return all keys of a batch in one table, from the reports of its tasks. Keys to upsert come first."""
    streams = (*(line.upserts for line in rows), *(line.deletes for line in rows))
    tables = [_read_stream(data) for data in streams if data is not None]
    return pa.concat_tables(tables) if tables else pa.table({})


class FoundKeys(NamedTuple):
    """Two masks over a batch's keys, in the order of ``joined_keys``.

    ``found``: True if a stored row of the key is replaced or deleted.
    ``stale``: True if the stored row of the key is at least as new as the batch's row.
    """

    found: Mask
    stale: Mask


def found_keys(lines: Sequence[WrittenFile]) -> FoundKeys:
    """Combine the tasks' flags into one mask of the keys with a stored row that is replaced or deleted, and
    one of the keys with a stored row that is at least as new.

    Raises:
        AccountingError: the table has several rows of one key.
    """
    keys = joined_keys(lines).num_rows
    located = [line for line in lines if line.found is not None]
    found = _any_of([line.found for line in located], keys)
    stale = _any_of([line.stale for line in located], keys)
    positions = sum(line.rows for line in located)
    if found.sum() != positions or (found & stale).any():
        raise AccountingError(
            f"The table has {positions + stale.sum()} rows for {(found | stale).sum()} keys of the batch: "
            "another program wrote rows with keys that existed already. Nothing was committed. Remove the "
            "duplicate rows."
        )
    return FoundKeys(found, stale)


def _any_of(flags: Sequence[bytes | None], count: int) -> Mask:
    """Return a mask of ``count`` keys that is True where at least one of the bit strings has a 1."""
    whole = np.zeros(count, bool)
    for bits in flags:
        whole |= np.unpackbits(np.frombuffer(bits or b"", np.uint8), count=count).astype(bool)
    return whole


def locating(task: LocateTask, rules: RowRules | VersionRules, lines: Sequence[WrittenFile]) -> LocateTask:
    """Return a copy of ``task`` that also returns the stored values of columns which the batch's rows omit.

    ``lines``: the reports of the tasks that returned the batch's keys (``KeysTask``).
    """
    omitted = {name for line in lines for name in json.loads(line.details or "[]")} if rules.keeps else set()
    return replace(task, stored=rules.stored_columns(task.columns, omitted))


def _attempt() -> str:
    number, attempt = task_attempt()
    return f"{number}-{attempt}" if attempt >= 0 else f"local-{-attempt}"


def _file_sized(batches: Iterable[pa.RecordBatch], fields: list[str]) -> Iterator[pa.Table]:
    rows, size = list[pa.RecordBatch](), 0
    for batch in batches:
        # Payloads also contain bad records, and events that are not row changes.
        of_rows, own = pc.is_in(batch["_op"], pa.array(ROW_KINDS)), batch.select(fields)
        rows.append(own if pc.all(of_rows).as_py() else own.filter(of_rows))
        size += rows[-1].nbytes
        if size >= _FILE_BYTES:
            yield pa.Table.from_batches(rows)
            rows, size = [], 0
    if rows:
        yield pa.Table.from_batches(rows)


def _has_rows(file: DataFile) -> bool:
    return file.rows > 0


def _at_once(files: Iterable[DataFile], rows: int) -> Iterator[list[DataFile]]:
    """Yield lists of files, in order, that together have at most ``rows`` rows per list.

    A file with more rows is in a list of its own.
    """
    some = list[DataFile]()
    for file in files:
        if some and sum(member.rows for member in some) + file.rows > rows:
            yield some
            some = []
        some.append(file)
    if some:
        yield some


def _check_stored(size: int, most: int) -> None:
    if size > most:
        raise TooManyStoredError(f"the batch needs more than {most >> 20} MiB of stored values")


def stream_of(keys: pa.Table) -> bytes:
    """Convert an Arrow table to an Arrow IPC stream."""
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(out, keys.schema, options=options) as writer:
        writer.write_table(keys)
    whole: bytes = out.getvalue().to_pybytes()
    return whole


def _read_stream(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()


def _line(file: WrittenFile) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([file._asdict()], schema=_FILES)
