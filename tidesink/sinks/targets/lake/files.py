"""A batch as files of a lake's table, without MERGE: what tasks write, and which rows they replace.

``RowsTask`` writes the rows that a batch's payloads hold as Parquet files, and gives their keys.
``LocateTask`` finds the rows of a table that have one of these keys, and writes their positions. Where rows
depend on stored ones (``lake.rows``, ``lake.versions``), ``KeysTask`` gives the keys, ``LocateTask`` the
stored values as well, and ``RowsTask`` comes last. ``FileSink`` writes the rows before they are payloads, in
the tasks that reduce them. None of them reads a row on the driver but these: keys and
stored values travel as Arrow data, and what comes back is a line for each file (``FILE_DDL``). A format's own
part plans the files, and commits them.
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

# ``upserts``, ``deletes``: keys as Arrow IPC streams. ``found``, ``stale``: a bit for each of the batch's
# keys, whether its stored row is replaced, or newer. ``stored``: values as an Arrow IPC stream.
# ``partition``: its values. ``details``: what else the format's commit says of the file; of keys, the columns
# that rows leave out. ``counts``: what becomes of a history's events, as JSON (``versions.Counts``).
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
# In the name of a new file: each attempt of a task writes files of its own.
ATTEMPT: Final = "ATTEMPT"
# A task writes what is as large as this in memory into one file.
_FILE_BYTES: Final = 256 << 20
# Stored values that a batch needs pass the driver, up to so many bytes.
_MOST_STORED: Final = 64 << 20
# What a stored version says of its ends.
_SPAN: Final = (FROM_COLUMN, TO_COLUMN, READ_COLUMN)
# As many rows of a file are read at once for their stored values.
_READ_ROWS: Final = 65_536


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
    partition: str = ""
    details: str | None = None
    counts: str | None = None


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

    def path(self, part: str, folder: str = "") -> str:
        """Where this attempt of a task writes a part of its files."""
        place, _, name = self.location.rpartition("/")
        name = name.replace(ATTEMPT, f"{_attempt()}-{part}")
        return "/".join(filter(None, (place, folder, name)))

    def renamed(self, word: str) -> NewFiles:
        """The same in the same place, with a word in their names."""
        place, slash, name = self.location.rpartition("/")
        return replace(self, location=f"{place}{slash}{name.replace(ATTEMPT, f'{word}-{ATTEMPT}')}")

    def write(self, table: pa.Table, part: str, partition: Partition) -> WrittenFile:
        """Write a file; its line."""
        path = self.path(part, partition.folder)
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

    @property
    def storage(self) -> Storage:
        """What opens the table's files."""

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
    """Writes the rows that payloads become in files; for ``mapInArrow``, as the tasks after it.

    ``packed``: it is given payloads; else the rows as they are.
    ``stored``: what the table has of the batch's keys, as ``rules.written`` takes it, as Arrow IPC streams;
    None where it has nothing, or where the rules ask for nothing. The keys are then given.
    """

    columns: tuple[FileColumn, ...]
    files: NewFiles
    rules: RowRules | VersionRules
    split: Split = unpartitioned
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
            TargetError: a row has no value in a column that takes no NULL, or as ``split`` says.
            ValueNotStoredError: a row leaves out a value that the table does not have.
            NotAsFilesError: rows are of too many partitions.
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
        """Write rows to files; a task has a ``number`` once. Raises NotAsFilesError as ``written``."""
        try:
            return [
                self.files.write(part, f"rows-{number}-{at}", partition)
                for at, (partition, part) in enumerate(self.split(rows))
            ]
        except TooManyPartitionsError:
            raise NotAsFilesError(f"the batch has rows of more than {MOST_PARTITIONS:,} partitions") from None

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """The batch's rows, as many at once as one file has."""
        return _file_sized(unpack(batches) if self.packed else batches, self.rules.fields)

    def ended(self, versions: pa.Table, number: int) -> list[WrittenFile]:
        """Write stored versions of a history as they end; ``number`` as for ``write``."""
        assert isinstance(self.rules, VersionRules)  # noqa: S101  (``LocateTask.ends``)
        return self.write(self.rules.changed(self.columns, versions), number)

    def is_like(self, other: RowsTask) -> bool:
        """Whether both write the same files for rows that depend on no stored ones, but for their names."""
        mine, theirs = (
            (one.columns, one.split, one.files.compression, one.files.describe, one.files.metadata)
            for one in (self, other)
        )
        return mine == theirs

    def given(self, lines: Sequence[WrittenFile], *, ended: bool = False) -> tuple[RowsTask, WrittenFile]:
        """The same with what was found of the batch's keys, and a line about what is made of it.

        ``ended``: the versions of a history that end are written (``LocateTask.ends``).

        Raises:
            AccountingError: the table has several rows of one key, or of one version.
            NotAsFilesError: the stored values are too many, or versions overlap.
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
    """Writes the rows of a range as files, in the task that reduces them: a ``RowSink``.

    The ``files`` of what it answers are lines. Its rows are no payloads.
    """

    rows: RowsTask

    def __call__(self, rows: Iterable[pa.RecordBatch]) -> StagedPart:
        """What became of the rows."""
        # A task may be given several ranges, one after the other.
        task = replace(self.rows, files=self.rows.files.renamed(uuid4().hex), packed=False)
        try:
            lines = tuple(task.written(rows))
        except (NotAsFilesError, StorageError) as exc:  # Spark may take the batch still
            return StagedPart(0, 0, exc.message)
        except OSError as exc:  # the tasks that are given payloads say more
            return StagedPart(0, 0, type(exc).__name__)
        return StagedPart(0, sum(one.rows for one in lines), files=lines)


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
            yield WrittenFile(upserts=upserts, deletes=deletes, details=json.dumps(rules.omitted(rows)))


@dataclass(frozen=True)
class LocateTask:
    """Finds the rows of groups of files that have one of the batch's keys, and writes their positions.

    ``batch_keys``: as ``joined_keys`` gives them. A task is given the numbers of its groups. It holds the
    keys of ``rows_at_once`` rows, or of one file that has more. ``stored``: the columns whose values it gives
    of the rows that need them. ``ends``: what writes the versions of a history that end; their values are
    then not given.
    """

    groups: tuple[tuple[DataFile, ...], ...]
    batch_keys: bytes
    columns: tuple[FileColumn, ...]
    marks: Marks
    rows_at_once: int = 4_000_000
    stored: tuple[FileColumn, ...] = ()
    ends: RowsTask | None = None

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
            NotAsFilesError: the stored values are too many.
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
        """Of versions of the batch's keys those that change; ``stored`` gets all that are next to an event.

        ``at``: the number of the key of each row of ``whole``.
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
        """Whether the batch's positions are newer than those of these rows."""
        column = next(one for one in self.columns if one.source == SEQUENCE_COLUMN)
        tables = self.marks.storage.each(partial(self._read_rows, (column,)), [*rows.by_file()])
        stored = pa.concat_tables(tables)[column.name]
        return newer(ours.combine_chunks(), stored.combine_chunks())

    def _values(self, marked: MarkedRows) -> Iterator[tuple[Places, pa.Table]]:
        """The stored values of rows, file by file, with the rows' numbers."""
        first = 0
        for file, positions in marked.by_file():
            yield marked.rows[first : first + len(positions)], self._read(self.stored, file, positions)
            first += len(positions)

    def _read_rows(self, columns: Sequence[FileColumn], rows: tuple[DataFile, Places]) -> pa.Table:
        return self._read(columns, *rows)

    def _read(self, columns: Sequence[FileColumn], file: DataFile, rows: Places | None = None) -> pa.Table:
        """Columns of all rows of a file, or of those at these positions; one that it does not have is NULL.

        Raises:
            FileRefusedError: it is not what the table says, or lacks a key column.
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
                    f"the file {file.path} {what}, which is not what the table says of it", url=file.path
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
    """Columns of all rows, or of those at these positions; then only a part of the file is held at once."""
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
    """Rows with more columns."""
    for name in values.column_names:
        rows = rows.append_column(name, values[name])
    return rows


class _Stored:
    """Stored values of rows that need them, with their keys; ``ended``: versions that end."""

    def __init__(self, keys: pa.Table) -> None:
        self.keys = keys
        self.ended, self._parts, self._size = list[pa.Table](), list[pa.Table](), 0

    def add(self, part: pa.Table) -> None:
        """Values of rows, with their keys."""
        self._parts.append(part)
        self._size += part.nbytes
        _check_stored(self._size)

    def stream(self) -> bytes | None:
        """As an Arrow IPC stream; None where there are none."""
        whole = [one for one in self._parts if one.num_rows]
        return stream_of(pa.concat_tables(whole, promote_options="default")) if whole else None


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
        compares = self.rows.rules.compares(self.locate.groups)
        lines = [*(KeysTask(self.rows).keys(batches) if compares else self.rows.written(batches))]
        keys, locate = joined_keys(lines), locating(self.locate, self.rows.rules, lines)
        lines += [one for number in range(len(locate.groups)) for one in locate.located(number, keys)]
        if not compares:
            return lines
        rows, line = self.rows.given(lines)
        return [*lines, line, *rows.written(batches)]


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


def locating(task: LocateTask, rules: RowRules | VersionRules, lines: Sequence[WrittenFile]) -> LocateTask:
    """The task with the columns whose stored values a batch needs, whose keys tasks gave."""
    omitted = {name for one in lines for name in json.loads(one.details or "[]")} if rules.keeps else set()
    return replace(task, stored=rules.stored_columns(task.columns, omitted))


def _attempt() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return "0" if context is None else f"{context.partitionId()}-{context.taskAttemptId()}"


def _file_sized(batches: Iterable[pa.RecordBatch], fields: list[str]) -> Iterator[pa.Table]:
    rows, size = list[pa.RecordBatch](), 0
    for batch in batches:
        # Bad records and events that are no row travel in payloads as well.
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


def _line(file: WrittenFile) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([file._asdict()], schema=_FILES)
