"""Writes a batch as files of a lake's table, without MERGE: new rows, and the positions of replaced rows.

``RowsTask`` writes the rows of a batch's payloads as Parquet files, and returns their keys. ``LocateTask``
finds the table's rows that have one of these keys, and writes their positions. If new rows depend on stored
ones (``lake.rows``, ``lake.versions``), the order differs: ``KeysTask`` returns the keys, ``LocateTask`` also
returns the stored values, and ``RowsTask`` comes last. ``FileSink`` writes rows before they are payloads, in
the tasks that reduce them. Only keys and stored values pass through the driver, as Arrow data; every task
returns one line per file (``FILE_DDL``). Each table format plans and commits the files with its own code.
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
from tidesink.sinks.spark.errors import reported
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
from tidesink.sinks.targets.modes import FROM_COLUMN, READ_COLUMN, TO_COLUMN

# ``upserts``, ``deletes``: keys as Arrow IPC streams. ``found``, ``stale``: one bit for each of the batch's
# keys: its stored row is replaced, or is newer. ``stored``: values as an Arrow IPC stream. ``partition``: the
# file's partition values. ``details``: what the format's commit also needs to know about the file; for keys,
# the columns that rows omit. ``counts``: the outcome of a history's events, as JSON (``versions.Counts``).
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
# Placeholder in the name of a new file. Each attempt of a task replaces it, so that it writes its own files.
ATTEMPT: Final = "ATTEMPT"
# A task writes rows of this size in memory to one file.
_FILE_BYTES: Final = 256 << 20
# Most bytes of stored values that a batch may need. They pass through the driver.
_MOST_STORED: Final = 64 << 20
# Columns with the ends of a stored version.
_SPAN: Final = (FROM_COLUMN, TO_COLUMN, READ_COLUMN)
# Number of rows of a file that are read at once for their stored values.
_READ_ROWS: Final = 65_536


class FileRefusedError(NotAsFilesError):
    """A file of the table (``url`` in the context) cannot be read here. Spark may still be able to."""


class WrittenFile(NamedTuple):
    """A task's line about a written file, as in ``FILE_DDL``. ``path`` is None if nothing was written."""

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
    """A file with rows of a table. ``deletes``: its deleted rows, in the format's own form."""

    path: str
    rows: int
    deletes: tuple[str, ...] = ()
    partition: Partition = Partition()


@dataclass(frozen=True)
class NewFiles:
    """Location and settings of the Parquet files that tasks write.

    ``location``: path with ``ATTEMPT`` in the file name. Partition folders are inserted before the name.
    ``describe``: returns the ``details`` of a file of rows.
    ``metadata``: key-value pairs for the file's footer.
    """

    location: str
    compression: str
    describe: Callable[[pa.Table], str] | None = None
    metadata: Mapping[str, str] | None = None
    storage: Storage = LOCAL

    def path(self, part: str, folder: str = "") -> str:
        """Return the path of a part of the files of this attempt of a task."""
        place, _, name = self.location.rpartition("/")
        name = name.replace(ATTEMPT, f"{_attempt()}-{part}")
        return "/".join(filter(None, (place, folder, name)))

    def renamed(self, word: str) -> NewFiles:
        """Return new files in the same folder, with a word added to their names."""
        place, slash, name = self.location.rpartition("/")
        return replace(self, location=f"{place}{slash}{name.replace(ATTEMPT, f'{word}-{ATTEMPT}')}")

    def write(self, table: pa.Table, part: str, partition: Partition) -> WrittenFile:
        """Write a file and return its line."""
        path = self.path(part, partition.folder)
        # Decimals are stored as integers where they fit, as Spark does. One row group: Arrow writes no range
        # for a row group with a text of more than 4 KiB, and Iceberg would use the range of the other row
        # groups for the whole file, so readers would skip it. No dictionary for floats: Spark looks for 0.0
        # in it and misses -0.0, which is equal.
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
    """``rows`` of files to mark as deleted, numbered through all files. Each file begins at ``starts``."""

    files: Sequence[DataFile]
    starts: Places
    rows: Places

    def by_file(self) -> Iterator[tuple[DataFile, Places]]:
        """Yield each file that has such rows, with their positions in it."""
        ends = np.searchsorted(self.rows, self.starts)
        for at, file in enumerate(self.files):
            positions = self.rows[ends[at] : ends[at + 1]] - self.starts[at]
            if len(positions):
                yield file, positions


class Marks(Protocol):
    """A table format's record of deleted rows in its files."""

    @property
    def storage(self) -> Storage:
        """The storage that opens the table's files."""

    def column_name(self, column: FileColumn, schema: pa.Schema) -> str | None:
        """Return the name of a column in a file with this schema; None if the file does not have it."""

    def partition_value(self, column: FileColumn, file: DataFile) -> pa.Scalar | None:
        """Return the value that all rows of a file have in a column it does not store; None if unknown."""

    def deleted(self, files: Sequence[DataFile], starts: Places) -> Places:
        """Return the files' rows that are deleted already, numbered through all files."""

    def write(self, marked: Sequence[MarkedRows], part: str) -> Iterator[WrittenFile]:
        """Write which rows are deleted now. There is at least one."""


@dataclass(frozen=True)
class RowsTask:
    """Writes the rows of payloads to files. For ``mapInArrow``, like the tasks below.

    ``packed``: True if the input is payloads, False if it is plain rows.
    ``stored``: the table's values for the batch's keys, as ``rules.written`` expects them, as Arrow IPC
        streams. None if the rules need no stored values; the task then returns the keys.
    """

    columns: tuple[FileColumn, ...]
    files: NewFiles
    rules: RowRules | VersionRules
    split: Split = unpartitioned
    packed: bool = True
    stored: tuple[bytes, bytes] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a line for each file; one without a path if there are no rows, but keys to delete."""
        with reported():
            for one in self.written(batches):
                yield _line(one)

    def written(self, batches: Iterable[pa.RecordBatch]) -> Iterator[WrittenFile]:
        """Yield the lines.

        Raises:
            TargetError: a row has no value in a NOT NULL column, or ``split`` refuses it.
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
        """Write rows to files. Each call of a task has its own ``number``.

        Raises:
            NotAsFilesError: the rows belong to too many partitions.
        """
        try:
            return [
                self.files.write(part, f"rows-{number}-{at}", partition)
                for at, (partition, part) in enumerate(self.split(rows))
            ]
        except TooManyPartitionsError:
            raise NotAsFilesError(f"the batch has rows of more than {MOST_PARTITIONS:,} partitions") from None

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield the batch's rows in tables of one file each."""
        return _file_sized(unpack(batches) if self.packed else batches, self.rules.fields)

    def ended(self, versions: pa.Table, number: int) -> list[WrittenFile]:
        """Write a history's stored versions that end. Each call of a task has its own ``number``."""
        assert isinstance(self.rules, VersionRules)  # noqa: S101  (``LocateTask.ends``)
        return self.write(self.rules.changed(self.columns, versions), number)

    def is_like(self, other: RowsTask) -> bool:
        """Return True if both write the same files, apart from names, for rows that need no stored values."""
        mine, theirs = (
            (one.columns, one.split, one.files.compression, one.files.describe, one.files.metadata)
            for one in (self, other)
        )
        return mine == theirs

    def given(self, lines: Sequence[WrittenFile], *, ended: bool = False) -> tuple[RowsTask, WrittenFile]:
        """Return this task with the values found for the batch's keys, and a line with the counts.

        ``ended``: the versions of a history that end are written elsewhere (``LocateTask.ends``).

        Raises:
            AccountingError: the table has several rows of one key, or of one version.
            NotAsFilesError: there are too many stored values, or versions overlap.
        """
        keys, names = joined_keys(lines), [column.name for column in self.columns if column.key]
        rows = [_read_stream(one.stored) for one in lines if one.stored is not None]
        _check_stored(sum(one.nbytes for one in rows))
        if isinstance(self.rules, VersionRules):
            changed = changes(keys, rows, names, ended=ended)
            line = WrittenFile(counts=json.dumps(changed.counts._asdict()))
            return replace(self, stored=(stream_of(changed.written), stream_of(changed.again))), line
        stale = keys.select(names).filter(pa.array(found_keys(lines).stale))
        whole = pa.concat_tables(rows) if rows else stale.schema.empty_table()
        return replace(self, stored=(stream_of(stale), stream_of(whole))), WrittenFile()


@dataclass(frozen=True)
class FileSink:
    """Writes a range's rows as files, in the task that reduces them: a ``RowSink``.

    The ``files`` of its result are lines. Its input is plain rows, not payloads.
    """

    rows: RowsTask

    def __call__(self, rows: Iterable[pa.RecordBatch]) -> StagedPart:
        """Write the rows and return the result."""
        # A task may get several ranges, one after the other.
        task = replace(self.rows, files=self.rows.files.renamed(uuid4().hex), packed=False)
        try:
            lines = tuple(task.written(rows))
        except (NotAsFilesError, StorageError) as exc:  # Spark may still be able to write the batch
            return StagedPart(0, 0, exc.message)
        except OSError as exc:  # the later tasks over the payloads report the details
            return StagedPart(0, 0, type(exc).__name__)
        return StagedPart(0, sum(one.rows for one in lines), files=lines)


@dataclass(frozen=True)
class KeysTask:
    """Returns the keys of a batch whose rows depend on stored ones, and the columns that the rows omit."""

    rows: RowsTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a line for the rows of each file."""
        with reported():
            for one in self.keys(batches):
                yield _line(one)

    def keys(self, batches: Iterable[pa.RecordBatch]) -> Iterator[WrittenFile]:
        """Yield the lines.

        Raises:
            TargetError: a key has no value.
        """
        rules = self.rows.rules
        for rows in self.rows.rows(batches):
            upserts, deletes = map(stream_of, rules.keys(rows, self.rows.columns))
            yield WrittenFile(upserts=upserts, deletes=deletes, details=json.dumps(rules.omitted(rows)))


@dataclass(frozen=True)
class LocateTask:
    """Finds the rows of groups of files that have one of the batch's keys, and writes their positions.

    Its input is the numbers of its groups.

    ``batch_keys``: the result of ``joined_keys``.
    ``rows_at_once``: the task holds the keys of this many stored rows in memory, or of one file that has
        more.
    ``stored``: columns whose values it returns for rows that need them.
    ``ends``: writes the versions of a history that end. Their values are then not returned.
    """

    groups: tuple[tuple[DataFile, ...], ...]
    batch_keys: bytes
    columns: tuple[FileColumn, ...]
    marks: Marks
    rows_at_once: int = 4_000_000
    stored: tuple[FileColumn, ...] = ()
    ends: RowsTask | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a line for each file of ``rows`` positions, or a line without a path for an empty group."""
        with reported():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for one in self.located(number, _read_stream(self.batch_keys)):
                        yield _line(one)

    def located(self, number: int, wanted: pa.Table) -> Iterator[WrittenFile]:
        """Yield the lines of a group. The first has the keys that were found.

        Raises:
            FileRefusedError: a file does not match the table's metadata, or lacks a key column.
            NotAsFilesError: there are too many stored values.
            AccountingError: the batch has a key twice.
        """
        files = sorted(filter(_has_rows, self.groups[number]), key=lambda file: file.path.encode())
        keys = [column for column in self.columns if column.key]
        names = [column.name for column in keys]
        events = Events(wanted, names) if COMMIT_TS in wanted.column_names else None
        spans = [one for one in self.columns if events and one.source in _SPAN]
        marked, stored = list[MarkedRows](), _Stored(events.keys if events else wanted.select(names))
        found, stale = (np.zeros(stored.keys.num_rows, bool) for _ in range(2))
        for some in _at_once(files, self.rows_at_once):
            starts = np.cumsum([0, *(file.rows for file in some)])
            columns = self.marks.storage.each(partial(self._read, [*keys, *spans]), some)
            whole = pa.concat_tables(columns)
            at = matched(whole.select(names), stored.keys)
            at[self.marks.deleted(some, starts)] = -1
            here = MarkedRows(some, starts, np.flatnonzero(at >= 0))
            if events:
                here = self._changed(here, at, events, whole, stored)
            if SEQUENCE_COLUMN in wanted.column_names and len(here.rows):
                newer_here = self._is_newer(here, wanted[SEQUENCE_COLUMN].take(pa.array(at[here.rows])))
                stale[at[here.rows[~newer_here]]] = True
                here = here._replace(rows=here.rows[newer_here])
            found[at[here.rows]] = True
            if NEEDS_STORED in wanted.column_names:
                needed = here.rows[wanted[NEEDS_STORED].to_numpy()[at[here.rows]]]
                for rows, values in self._values(here._replace(rows=needed)):
                    stored.add(_beside(stored.keys.take(pa.array(at[rows])), values))
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
        """Return the versions of the batch's keys that change. ``stored`` gets all that are next to an event.

        ``at``: the key's number for each row of ``whole``.
        """
        names = {column.source: column.name for column in self.columns}
        keys = at[rows.rows]
        found = Spans.of(whole.take(pa.array(rows.rows)), *(names[source] for source in _SPAN))
        near, by, goes = events.changing(keys, found)
        changed = by != NO_MOMENT
        spans = partial(spans_of, stored.keys.take(pa.array(keys)), found, by)
        stored.add(spans((near & ~changed) | goes))
        values = [part for _, part in self._values(rows._replace(rows=rows.rows[changed & ~goes]))]
        rows, table = rows._replace(rows=rows.rows[changed]), spans(changed & ~goes)
        full = _beside(table, pa.concat_tables(values)) if values else table
        found, by = found.filtered(changed & ~goes), by[changed & ~goes]
        version = ~found.mark
        if self.ends and version.any():
            stored.add(table.filter(pa.array(version)))
            stored.ended.append(spans_of(full, found._replace(end=by), by, version))
            full = full.filter(pa.array(~version))
        stored.add(full)
        return rows

    def _is_newer(self, rows: MarkedRows, ours: pa.ChunkedArray) -> Mask:
        """Return which of the batch's positions are newer than those of these stored rows."""
        column = next(one for one in self.columns if one.source == SEQUENCE_COLUMN)
        tables = self.marks.storage.each(partial(self._read_rows, (column,)), [*rows.by_file()])
        stored = pa.concat_tables(tables)[column.name]
        return newer(ours.combine_chunks(), stored.combine_chunks())

    def _values(self, marked: MarkedRows) -> Iterator[tuple[Places, pa.Table]]:
        """Yield the stored values of rows, file by file, with the rows' numbers."""
        first = 0
        for file, positions in marked.by_file():
            yield marked.rows[first : first + len(positions)], self._read(self.stored, file, positions)
            first += len(positions)

    def _read_rows(self, columns: Sequence[FileColumn], rows: tuple[DataFile, Places]) -> pa.Table:
        return self._read(columns, *rows)

    def _read(self, columns: Sequence[FileColumn], file: DataFile, rows: Places | None = None) -> pa.Table:
        """Read columns of all rows of a file, or of the rows at these positions. A missing column is NULL.

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
            missing = [one.source for one in columns if one.key and same.get(one.name, one) is None]
            if missing or parquet.metadata.num_rows != file.rows:
                what = f"has no column {missing[0]}" if missing else f"has {parquet.metadata.num_rows} rows"
                raise FileRefusedError(
                    f"the file {file.path} {what}, which does not match the table's metadata", url=file.path
                )
            there = [name for name in names if name is not None]
            found = _rows_of(parquet, there, rows) if there else pa.table({})
        count = file.rows if rows is None else len(rows)
        arrays = [
            _repeated(same[column.name], column.type, count) if name is None else column.cast(found[name])
            for column, name in zip(columns, names, strict=True)
        ]
        return pa.table(arrays, names=[column.name for column in columns])


def _repeated(value: pa.Scalar | None, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if value is None else pa.repeat(value, count)


def _rows_of(parquet: pq.ParquetFile, names: Sequence[str], rows: Places | None) -> pa.Table:
    """Read columns of all rows, or of the rows at these positions. The latter reads the file in parts."""
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
    """Return rows with more columns."""
    for name in values.column_names:
        rows = rows.append_column(name, values[name])
    return rows


class _Stored:
    """Stored values of rows that need them, with their keys. ``ended``: versions that end."""

    def __init__(self, keys: pa.Table) -> None:
        self.keys = keys
        self.ended, self._parts, self._size = list[pa.Table](), list[pa.Table](), 0

    def add(self, part: pa.Table) -> None:
        """Add rows' values with their keys."""
        self._parts.append(part)
        self._size += part.nbytes
        _check_stored(self._size)

    def stream(self) -> bytes | None:
        """Return the values as an Arrow IPC stream; None if there are no values."""
        whole = [one for one in self._parts if one.num_rows]
        return stream_of(pa.concat_tables(whole, promote_options="default")) if whole else None


@dataclass(frozen=True)
class SmallBatchTask:
    """Writes the rows of a small batch and locates its keys, in one task that gets all payloads."""

    rows: RowsTask
    locate: LocateTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the lines of both steps."""
        with reported():
            for one in self._lines([*batches]):
                yield _line(one._replace(stored=None))

    def _lines(self, batches: Sequence[pa.RecordBatch]) -> list[WrittenFile]:
        compares = self.rows.rules.compares(self.locate.groups)
        lines = [*(KeysTask(self.rows).keys(batches) if compares else self.rows.written(batches))]
        keys, locate = joined_keys(lines), locating(self.locate, self.rows.rules, lines)
        lines += [one for number in range(len(locate.groups)) for one in locate.located(number, keys)]
        if not compares:
            return lines
        rows, line = self.rows.given(lines)
        return [*lines, line, *rows.written(batches)]


def joined_keys(rows: Sequence[WrittenFile]) -> pa.Table:
    """Return the keys of a batch in one table. Keys to upsert come first."""
    streams = (*(one.upserts for one in rows), *(one.deletes for one in rows))
    tables = [_read_stream(data) for data in streams if data is not None]
    return pa.concat_tables(tables) if tables else pa.table({})


class FoundKeys(NamedTuple):
    """Flags for each of a batch's keys, upserts first: its stored row is replaced, or is newer."""

    found: Mask
    stale: Mask


def found_keys(lines: Sequence[WrittenFile]) -> FoundKeys:
    """Combine the keys that tasks found in the table.

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
            f"The table has {positions + stale.sum()} rows for {(found | stale).sum()} keys of the batch: "
            "another program wrote rows with keys that existed already. Remove the duplicate rows. Nothing "
            "was written."
        )
    return FoundKeys(found, stale)


def _any_of(flags: Sequence[bytes | None], count: int) -> Mask:
    """Return for each of ``count`` keys whether one of the bit strings has its bit set."""
    whole = np.zeros(count, bool)
    for bits in flags:
        whole |= np.unpackbits(np.frombuffer(bits or b"", np.uint8), count=count).astype(bool)
    return whole


def locating(task: LocateTask, rules: RowRules | VersionRules, lines: Sequence[WrittenFile]) -> LocateTask:
    """Return the task with the columns whose stored values the batch needs, given the lines with its keys."""
    omitted = {name for one in lines for name in json.loads(one.details or "[]")} if rules.keeps else set()
    return replace(task, stored=rules.stored_columns(task.columns, omitted))


def _attempt() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return "0" if context is None else f"{context.partitionId()}-{context.taskAttemptId()}"


def _file_sized(batches: Iterable[pa.RecordBatch], fields: list[str]) -> Iterator[pa.Table]:
    rows, size = list[pa.RecordBatch](), 0
    for batch in batches:
        # Payloads also contain bad records, and events that are not rows.
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
    """Yield files in order, in groups of at most ``rows`` rows, or a single file that has more."""
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
    """Return a table as an Arrow IPC stream."""
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
