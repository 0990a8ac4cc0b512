"""Loads a batch's rows from Spark's executors into a staging table in the database.

The rows are loaded by the tasks that reduce the batch, or by tasks that unpack its payloads. Each task
attempt writes its rows with its attempt id. Spark returns one result per task to the driver, from the attempt
that succeeded. Rows of the task's other attempts (failed or speculative) have other ids and are never merged.
No row passes through the driver.
"""

from __future__ import annotations

import binascii
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.errors import AccountingError, TargetError, TransientTargetError
from tidesink.sinks.spark.attempts import task_attempt
from tidesink.sinks.spark.errors import SPARK_ERRORS, raised_task_errors
from tidesink.sinks.spark.frames import SparkRows
from tidesink.sinks.spark.payloads import DELETE, ROW_KINDS, unpack
from tidesink.sinks.targets.base import PLACE_COLUMNS, ReducedBatch, RowFormat, StagedPart
from tidesink.sinks.targets.sql.faults import Fault
from tidesink.sinks.targets.sql.idle import TRUSTED_SECONDS, IdleConnections, discard
from tidesink.sinks.targets.sql.location import Endpoint, packed_positions
from tidesink.typemap.render_sql import Database
from tidesink.typemap.target_schema import TargetColumn, TargetSchema

# Batches up to this many rows are loaded by a single task, because each connection costs some milliseconds.
SMALL_BATCH: Final = 20_000
# Number of rows that a read fetches at once.
ROWS_AT_ONCE: Final = 10_000
ATTEMPT: Final = "t_attempt"
IS_DELETE: Final = "t_delete"
KEPT: Final = "t_kept"
AFTER_DELETE: Final = "t_after_delete"
FROM: Final = "t_place"
SEQUENCE: Final = "t_seq"
AT: Final = "t_at"
# The primary key that InnoDB's staging tables have (``sql.mysql``).
ROW: Final = "t_row"
# Staging columns between the attempt id and the shape's columns, with True if their values are quoted in CSV.
# A batch uses only those that its rows need.
MARKS: Final[Mapping[str, bool]] = MappingProxyType(
    {IS_DELETE: False, SEQUENCE: False, AT: False, KEPT: True, AFTER_DELETE: False, FROM: True}
)
# All columns that a staging table may have in addition to the shape's. They count towards the limit of
# columns.
STAGED_BESIDES: Final[Mapping[Database, tuple[str, ...]]] = MappingProxyType(
    {"postgres": (ATTEMPT, *MARKS), "mysql": (ROW, ATTEMPT, *MARKS)}
)

Load = Callable[[Endpoint, str, Iterator[memoryview]], int]
# Runs a query and yields its rows in chunks.
Read = Callable[[Endpoint, str], Iterator[Sequence[Sequence[Any]]]]
# The idle connections of this process's tasks. A process of Spark runs one task at a time, but a worker runs
# tasks of several tables.
_KEPT: Final = dict[Endpoint, IdleConnections]()


@contextmanager
def kept_connection(
    endpoint: Endpoint,
    connect: Callable[[Endpoint], Any],
    alive: Callable[[Any], bool],
    *,
    trusted: float = TRUSTED_SECONDS,
) -> Iterator[Any]:
    """Yield a connection for a task. It is reused by later tasks that run in the same Python process.

    If the block raises, the connection is closed, which rolls back its transaction. ``trusted``: a connection
    that was idle for less than this number of seconds is not asked whether it still answers.
    """
    idle = _KEPT.setdefault(endpoint, IdleConnections())
    connection = idle.take(alive, trusted=trusted)
    if connection is None:
        connection = _connected(endpoint, connect)
    try:
        yield connection
    except BaseException:
        discard(connection)
        raise
    idle.give_back(connection)


def _connected(endpoint: Endpoint, connect: Callable[[Endpoint], Any]) -> Any:
    try:
        return connect(endpoint)
    except BaseException:
        close_kept()  # the server may have no room for more connections
        raise


def close_kept() -> None:
    """Close the idle connections of this process's tasks, because no more tasks run."""
    for idle in [*_KEPT.values()]:
        idle.close()


class Failure(NamedTuple):
    """The reason why a task could not load its rows.

    ``fault``: the database's error.
    ``column``: index of the staging column with a text that contains U+0000. None if ``fault`` is the reason.
    """

    fault: Fault
    column: int | None = None


class StagedColumn(NamedTuple):
    """One column of a staging table.

    ``quoted``: True if its values are quoted in CSV, because they are texts.
    ``column``: the target column whose values it holds; None for one of tidesink's own columns.
    """

    name: str
    quoted: bool
    column: TargetColumn | None = None

    @property
    def hex(self) -> bool:
        """True if the column's values are loaded as hex digits, because they are bytes."""
        return self.name == SEQUENCE or (self.column is not None and self.column.spark == "binary")


def staged_name(at: int) -> str:
    """Return the name of the staging column for the target schema's column at the index ``at``."""
    return f"c{at}"


def staged_columns(rows: RowFormat) -> tuple[StagedColumn, ...]:
    """Return a staging table's columns, except the attempt id: tidesink's own, then the source's columns."""
    asked = {IS_DELETE: True, SEQUENCE: rows.sequenced, AT: rows.mode == "history"}
    asked |= dict.fromkeys((KEPT, AFTER_DELETE, FROM), rows.keeps)
    marks = [StagedColumn(name, quoted) for name, quoted in MARKS.items() if asked[name]]
    values = [
        StagedColumn(staged_name(index), column.spark == "string", column)
        for index, column in enumerate(rows.shape.columns)
    ]
    return (*marks, *values)


# Columns of the reduced frame from which each of tidesink's own staging columns is computed.
_MADE_OF: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {KEPT: ("_kept",), AFTER_DELETE: ("_after_delete",), FROM: PLACE_COLUMNS}
    | {AT: ("_commit_ts",), SEQUENCE: ("_seq",)}
)


@dataclass(frozen=True)
class StagedRows:
    """Converts a reduced batch's rows to rows of the staging table. It is pickled and sent to the tasks."""

    shape: TargetSchema
    columns: tuple[StagedColumn, ...]
    hex_prefix: str

    @property
    def sources(self) -> list[str]:
        """Names of the columns of a reduced batch's frame that the conversion reads."""
        return [
            "_op",
            "key",
            "after",
            *(name for column in self.columns for name in _MADE_OF.get(column.name, ())),
        ]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a reduced batch's rows to a record batch with the staging table's columns."""
        arrays = [self._array(column, rows) for column in self.columns]
        return pa.RecordBatch.from_arrays(arrays, [column.name for column in self.columns])

    def _array(self, staged: StagedColumn, rows: pa.RecordBatch) -> pa.Array:
        if staged.column is None:
            return self._mark(staged.name, rows)
        values = pc.struct_field(rows.column("key" if staged.column.key else "after"), [staged.column.name])
        if staged.column.spark == "binary":
            return hex_digits(values, self.hex_prefix)
        if staged.column.spark == "timestamp":
            return values.cast(pa.timestamp("us"))
        return values.cast(pa.int32()) if staged.column.spark == "boolean" else values

    def _mark(self, name: str, rows: pa.RecordBatch) -> pa.Array:
        if name == IS_DELETE:
            return pc.equal(rows.column("_op"), DELETE).cast(pa.int32())
        if name == FROM:
            leaves_out = pc.greater(pc.list_value_length(rows.column("_kept")), 0)
            topic, *numbers = (rows.column(field).cast(pa.string()) for field in PLACE_COLUMNS)
            return pc.binary_join_element_wise(pc.if_else(leaves_out, topic, None), *numbers, " ")
        (values,) = (rows.column(field) for field in _MADE_OF[name])
        if name == KEPT:
            return _kept_positions(values, self.shape)
        if name == AFTER_DELETE:
            return pc.fill_null(values, False).cast(pa.int32())
        return hex_digits(packed_positions(values), self.hex_prefix) if name == SEQUENCE else values


def place_of(text: str) -> dict[str, Any]:
    """Parse a value of the staging column ``FROM`` into topic, partition and offset, for use in an error."""
    topic, partition, offset = text.split(" ")
    return {"topic": topic, "partition": int(partition), "offset": int(offset)}


def _kept_positions(omitted: pa.ListArray, shape: TargetSchema) -> pa.Array:
    """Return each row's omitted columns as their indexes in ``shape``, like ``,0,3,``; null if none is
    omitted.
    """
    names = pa.array([column.name for column in shape.columns])
    positions = pc.index_in(pc.list_flatten(omitted), names)
    there = positions.is_valid()
    rows = np.asarray(pc.list_parent_indices(omitted).filter(there), np.int64)
    counts = np.bincount(rows, minlength=len(omitted))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, positions.filter(there).cast(pa.string()))
    texts = pc.binary_join_element_wise("", pc.binary_join(lists, ","), "", ",")
    return pc.if_else(pa.array(counts > 0), texts, pa.scalar(None, pa.string()))


def hex_digits(values: pa.Array, prefix: str) -> pa.Array:
    """Convert a column of bytes to a column of hex digits, each value with a prefix."""
    whole = values if values.offset == 0 else pa.concat_arrays([values])
    _, offsets, data = whole.cast(pa.large_binary()).buffers()
    digits = pa.py_buffer(binascii.hexlify(data) if data is not None else b"")
    ends = np.frombuffer(offsets, np.int64)[: len(whole) + 1] * 2
    kind, missing = pa.large_string(), pc.is_null(whole)
    texts = pa.Array.from_buffers(kind, len(whole), [None, pa.py_buffer(ends), digits])
    if prefix:
        texts = pc.binary_join_element_wise(pa.scalar(prefix, kind), texts, pa.scalar("", kind))
    return pc.if_else(missing, pa.scalar(None, kind), texts)


@dataclass(frozen=True)
class Loader:
    """The ``RowSink`` of a SQL target: loads a task's rows as CSV into the staging table."""

    endpoint: Endpoint
    statement: str
    load: Load
    fault_of: Callable[[BaseException], Fault | None]
    nul_refused: bool
    rows: StagedRows

    def __call__(self, rows: Iterable[pa.RecordBatch]) -> StagedPart:
        """Load the rows under the id of this task attempt, and return their number or the failure."""
        attempt = task_attempt().attempt
        quoted = tuple(column.quoted for column in self.rows.columns)
        lines = CsvLines(attempt, quoted, nul_refused=self.nul_refused)
        count, fault = self._loaded(lines, map(self.rows, rows))
        if fault is None and lines.nul_column is None:
            return StagedPart(attempt, count)
        return StagedPart(attempt, 0, Failure(fault or Fault(""), lines.nul_column))

    def from_frame(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Load a frame's rows, and yield the pickled ``StagedPart`` as a record batch, for ``mapInArrow``."""
        yield pa.record_batch({"part": pa.array([pickle.dumps(self(batches))], pa.binary())})

    def from_payloads(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Load the rows of payloads (Arrow IPC streams, ``batch.tasks``), and yield the pickled
        ``StagedPart``.
        """
        yield from self.from_frame(_rows_to_apply(batches))

    def lines_here(self, batches: Iterable[pa.RecordBatch]) -> tuple[list[memoryview], StagedPart]:
        """Return the CSV lines of payloads that are in this process, and what their load would report."""
        quoted = tuple(column.quoted for column in self.rows.columns)
        lines = CsvLines(0, quoted, nul_refused=self.nul_refused)
        chunks = [*lines.chunks(map(self.rows, _rows_to_apply(batches)))]
        failure = None if lines.nul_column is None else Failure(Fault(""), lines.nul_column)
        return chunks, StagedPart(0, lines.rows if failure is None else 0, failure)

    def _loaded(self, lines: CsvLines, batches: Iterator[pa.RecordBatch]) -> tuple[int, Fault | None]:
        """Load CSV lines into the staging table. Returns the number of rows, and the database's error or
        None.
        """
        chunks = lines.chunks(batches)
        first = next(chunks, None)
        if first is None:
            return 0, None
        try:
            return self.load(self.endpoint, self.statement, chain([first], chunks)), None
        except Exception as exc:
            fault = self.fault_of(exc)
            if fault is None:
                raise
            for _ in batches:  # Spark waits until its batches are read
                pass
            return 0, fault


def _rows_to_apply(payloads: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    kinds = pa.array(ROW_KINDS)
    return (rows.filter(pc.is_in(rows.column("_op"), kinds)) for rows in unpack(payloads))


_PART_DDL: Final = "part binary"


def stage_rows(loader: Loader, batch: ReducedBatch) -> tuple[StagedPart, ...]:
    """Load a batch's rows with separate Spark tasks, if the tasks that reduced the batch did not load them.

    Raises:
        TidesinkError: a task could not read the batch's rows.
        TransientTargetError: Spark could not run the tasks.
    """
    table = str(batch.shape.table)
    if batch.payloads is None and batch.make_frame is None:
        raise TargetError(
            "A SQL target needs a batch with a Spark frame, but this batch has Python rows. Report this with "
            "the log.",
            table=table,
        )
    try:
        with raised_task_errors(table=table):
            rows = _loaded(loader, batch)
    except SPARK_ERRORS as exc:
        raise TransientTargetError(
            f"Spark could not load the rows into the database ({type(exc).__name__}). Nothing was merged. "
            "The batch is tried again.",
            table=table,
        ) from exc
    return tuple(pickle.loads(part) for (part,) in rows)  # noqa: S301  (our own task wrote it)


def _loaded(loader: Loader, batch: ReducedBatch) -> list[tuple[Any, ...]]:
    """Run the tasks that load the batch's rows, from its payloads if it has any, else from its frame.

    A small batch is loaded by one task.
    """
    tasks = 1 if batch.upserts + batch.deletes <= SMALL_BATCH else None
    if batch.payloads is not None:
        return batch.payloads.run(loader.from_payloads, _PART_DDL, tasks=tasks)
    assert batch.frame is not None  # noqa: S101  (a batch has one of the two)
    return SparkRows(batch.frame.select(loader.rows.sources)).run(loader.from_frame, _PART_DDL, tasks=tasks)


def counted_attempts(batch: ReducedBatch, parts: Iterable[StagedPart]) -> tuple[int, ...]:
    """Return the ids of the task attempts whose staged rows make up the batch.

    Raises:
        AccountingError: the number of staged rows differs from the number of the batch's rows.
    """
    rows = sum(part.rows for part in parts)
    if rows != batch.upserts + batch.deletes:
        raise AccountingError(
            f"{rows} rows were loaded into the database, but the batch has {batch.upserts} upserts and "
            f"{batch.deletes} deletes. Nothing was merged. Report this with the log.",
            table=str(batch.shape.table),
        )
    return tuple(dict.fromkeys(part.attempt for part in parts if part.rows))


NULL: Final = "NULL"


class CsvLines:
    """Formats the rows of one task as CSV lines. Each line begins with the id of the task attempt.

    ``quoted``: for each column, True if its values are written in quotes.
    ``nul_refused``: stop at the first text that contains U+0000.
    ``rows``: number of rows written until now.
    ``nul_column``: index of the column in which such a text was found; None if there is none.
    """

    def __init__(self, attempt: int, quoted: tuple[bool, ...], *, nul_refused: bool) -> None:
        self.rows = 0
        self.nul_column: int | None = None
        self._attempt = attempt
        self._quoted = quoted
        self._nul_refused = nul_refused

    def chunks(self, batches: Iterable[Any]) -> Iterator[memoryview]:
        """Yield the CSV lines of record batches, as one chunk of bytes per record batch."""
        for batch in batches:
            if batch.num_rows == 0 or self.nul_column is not None:
                continue  # the rest is read anyway, because Spark waits until its batches are read
            columns = [batch.column(index) for index in range(batch.num_columns)]
            if self._nul_refused:
                self.nul_column = self._first_nul(columns)
                if self.nul_column is not None:
                    continue
            self.rows += batch.num_rows
            yield _lines(f"\n{self._attempt}", columns, self._quoted, first=self.rows == batch.num_rows)
        if self.rows:
            yield memoryview(b"\n")

    def _first_nul(self, columns: list[Any]) -> int | None:
        for index, (column, quoted) in enumerate(zip(columns, self._quoted, strict=True)):
            if quoted and pc.any(pc.match_substring(column, "\0")).as_py():
                return index
        return None


_LARGE: Final = pa.large_string()


def _lines(attempt: str, columns: list[Any], quoted: tuple[bool, ...], *, first: bool) -> memoryview:
    """Return the CSV lines of a record batch. Each begins with a line end, except the first line of
    the task.
    """
    words = [_words(column, in_quotes) for column, in_quotes in zip(columns, quoted, strict=True)]
    joined = pc.binary_join_element_wise(
        pa.scalar(attempt, _LARGE),
        *words,
        pa.scalar(",", _LARGE),
        null_handling="replace",
        null_replacement=NULL,
    )
    _, offsets, data = joined.buffers()
    ends = memoryview(offsets).cast("q")
    text = memoryview(data)[ends[joined.offset] : ends[joined.offset + len(joined)]]
    return text[1:] if first else text


def _words(column: pa.Array, quoted: bool) -> pa.Array:
    if pa.types.is_float32(column.type):
        column = column.cast(
            pa.float64()
        )  # the shortest text of the greatest float32 would be read as a number out of its range
    if not quoted:
        return column.cast(pa.string()).cast(_LARGE)
    escaped = pc.replace_substring(column.cast(_LARGE), pattern='"', replacement='""')
    empty, quote = pa.scalar("", _LARGE), pa.scalar('"', _LARGE)
    return pc.binary_join_element_wise(empty, escaped, empty, quote)
