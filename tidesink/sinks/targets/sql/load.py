"""The rows of a batch on their way into a staging table: from Spark's executors straight to the database.

Each task writes its rows with the id of its attempt. The driver gets one line a task, of the attempt that
Spark took as the task's: rows of a task that was tried again or ran twice are identified by it, and are
never merged. Nothing of the rows passes the driver.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.errors import AccountingError, TargetError, TransientTargetError
from tidesink.sinks.batch.records import DELETE, ROW_KINDS
from tidesink.sinks.batch.tasks import unpack
from tidesink.sinks.targets.base import PLACE_COLUMNS, ReducedBatch
from tidesink.sinks.targets.sql.location import Endpoint, packed_hex
from tidesink.typemap.render_sql import Database
from tidesink.typemap.target_schema import ShapeColumn, TableShape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# Rows that one task may bring on its own: each connects, and takes some milliseconds for it.
SMALL_BATCH: Final = 20_000
ATTEMPT: Final = "t_attempt"
IS_DELETE: Final = "t_delete"
KEPT: Final = "t_kept"
AFTER_DELETE: Final = "t_after_delete"
FROM: Final = "t_place"
SEQUENCE: Final = "t_seq"
AT: Final = "t_at"
# The primary key that InnoDB's staging tables have (``sql.mysql``).
ROW: Final = "t_row"
# What comes of each row before the shape's columns, and how; the batch says which.
MARKS: Final[Mapping[str, Kind]] = MappingProxyType(
    {IS_DELETE: "plain", SEQUENCE: "plain", AT: "plain", KEPT: "text", AFTER_DELETE: "plain", FROM: "text"}
)
# All that a staging table may have beside the shape's columns: so many fewer there are to be had.
STAGED_BESIDES: Final[Mapping[Database, tuple[str, ...]]] = MappingProxyType(
    {"postgres": (ATTEMPT, *MARKS), "mysql": (ROW, ATTEMPT, *MARKS)}
)

Load = Callable[[Endpoint, str, Iterator[memoryview]], int]


class Failure(NamedTuple):
    """Why a task could not load its rows: the database's code, and a column's position where it is one's."""

    code: str
    column: int | None = None


class StagedColumn(NamedTuple):
    """One column of the staging table."""

    name: str
    kind: Kind
    column: ShapeColumn | None = None

    @property
    def hex(self) -> bool:
        """Whether it comes as hex digits."""
        return self.name == SEQUENCE or (self.column is not None and self.column.spark == "binary")


def staged_columns(batch: ReducedBatch) -> tuple[StagedColumn, ...]:
    """What a staging table has of each row besides the attempt: the marks of the batch, then the shape."""
    shape = batch.shape
    asked = {IS_DELETE: True, SEQUENCE: batch.sequenced, AT: batch.mode == "history"}
    asked |= dict.fromkeys((KEPT, AFTER_DELETE, FROM), batch.keeps)
    marks = [StagedColumn(name, kind) for name, kind in MARKS.items() if asked[name]]
    values = [StagedColumn(f"c{at}", _kind(column), column) for at, column in enumerate(shape.columns)]
    return (*marks, *values)


def _kind(column: ShapeColumn) -> Kind:
    if column.spark == "timestamp":
        return "micros"
    return "text" if column.spark == "string" else "plain"


def staged_frame(batch: ReducedBatch, columns: Sequence[StagedColumn], *, hex_prefix: str) -> DataFrame:
    """A batch's frame as ``columns``, of types that become words in Arrow."""
    from pyspark.sql import functions as F  # noqa: N812

    frame = batch.frame
    if frame is None:
        raise TargetError("a SQL target takes a frame, and the batch has rows", table=str(batch.shape.table))
    marks: dict[str, Callable[[], Column]] = {
        IS_DELETE: lambda: (F.col("_op") == "delete").cast("int"),
        KEPT: lambda: _kept_positions(batch.shape),
        AFTER_DELETE: lambda: F.coalesce(F.col("_after_delete"), F.lit(False)).cast("int"),
        FROM: lambda: F.to_json(F.struct(*PLACE_COLUMNS, "_kept")),
        AT: lambda: F.col("_commit_ts"),
        SEQUENCE: lambda: F.concat(F.lit(hex_prefix), packed_hex(F.col("_seq"))),
    }
    values = [
        (marks[one.name]() if one.column is None else _value(one.column, hex_prefix)).alias(one.name)
        for one in columns
    ]
    if batch.upserts + batch.deletes <= SMALL_BATCH:
        frame = frame.coalesce(1)
    return frame.select(*values)


@dataclass(frozen=True)
class PayloadRows:
    """The rows of packed payloads as ``columns``: as ``staged_frame``, without a way through the JVM."""

    columns: tuple[StagedColumn, ...]
    hex_prefix: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Unpack and project one task's payloads."""
        for rows in unpack(batches):
            applied = rows.filter(pc.is_in(rows.column("_op"), pa.array(ROW_KINDS)))
            arrays = [self._array(one, applied) for one in self.columns]
            yield pa.RecordBatch.from_arrays(arrays, [one.name for one in self.columns])

    def _array(self, one: StagedColumn, rows: pa.RecordBatch) -> pa.Array:
        if one.column is None:
            marks = {IS_DELETE: lambda: pc.equal(rows.column("_op"), DELETE).cast(pa.int32())}
            return marks[one.name]()
        values = pc.struct_field(rows.column("key" if one.column.key else "after"), [one.column.name])
        if one.column.spark == "binary":
            return hex_digits(values, self.hex_prefix)
        if one.column.spark == "timestamp":
            return values.cast(pa.timestamp("us"))
        return values.cast(pa.int32()) if one.column.spark == "boolean" else values


def takes_payloads(batch: ReducedBatch) -> bool:
    """Whether a batch's payloads can be staged as they are."""
    return batch.payloads is not None and not (batch.keeps or batch.sequenced or batch.mode != "upsert")


def hex_digits(values: pa.Array, prefix: str) -> pa.Array:
    """Bytes as hexadecimal digits behind a prefix, whole columns at a time."""
    whole = values if values.offset == 0 else pa.concat_arrays([values])
    _, offsets, data = whole.cast(pa.large_binary()).buffers()
    digits = pa.py_buffer(binascii.hexlify(data) if data is not None else b"")
    ends = np.frombuffer(offsets, np.int64)[: len(whole) + 1] * 2
    kind, missing = pa.large_string(), pc.is_null(whole)
    texts = pa.Array.from_buffers(kind, len(whole), [None, pa.py_buffer(ends), digits])
    if prefix:
        texts = pc.binary_join_element_wise(pa.scalar(prefix, kind), texts, pa.scalar("", kind))
    return pc.if_else(missing, pa.scalar(None, kind), texts)


def _kept_positions(shape: TableShape) -> Column:
    """The positions of the columns left out, as ``,0,3,``; null where there is none."""
    from pyspark.sql import functions as F  # noqa: N812

    names = F.array(*(F.lit(column.name) for column in shape.columns))
    places = F.transform("_kept", lambda name: F.concat(F.array_position(names, name) - 1, F.lit(",")))
    omitted = F.size("_kept") > 0
    return F.when(omitted, F.concat(F.lit(","), F.array_join(places, "")))


def _value(column: ShapeColumn, hex_prefix: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    value = F.col("key" if column.key else "after").getField(column.name)
    if column.spark == "binary":
        return F.concat(F.lit(hex_prefix), F.hex(value)) if hex_prefix else F.hex(value)
    if column.spark == "timestamp":
        return F.unix_micros(value)
    return value.cast("int") if column.spark == "boolean" else value


@dataclass(frozen=True)
class Loader:
    """What a task runs: its rows as CSV into the staging table, and one line about it.

    ``rows``: what makes rows of the batches that it gets, where those are payloads.
    """

    endpoint: Endpoint
    statement: str
    kinds: tuple[Kind, ...]
    load: Load
    code_of: Callable[[BaseException], str | None]
    nul_refused: bool
    rows: PayloadRows | None = None

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Load one task's record batches."""
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.taskAttemptId() if context else 0
        lines = CsvLines(attempt, self.kinds, nul_refused=self.nul_refused)
        taken = iter(batches) if self.rows is None else self.rows(iter(batches))
        rows, code = self._loaded(lines, taken)
        said = {"attempt": [attempt], "rows": [rows], "code": [code], "nul": [lines.nul_column]}
        schema = pa.schema(
            [("attempt", pa.int64()), ("rows", pa.int64()), ("code", pa.string()), ("nul", pa.int32())]
        )
        yield pa.RecordBatch.from_pydict(said, schema)

    def _loaded(self, lines: CsvLines, batches: Iterator[Any]) -> tuple[int, str | None]:
        """How many rows the database took, and the code of what went wrong, None where all is in."""
        chunks = lines.chunks(batches)
        first = next(chunks, None)
        if first is None:
            return 0, None
        try:
            return self.load(self.endpoint, self.statement, _again(first, chunks)), None
        except Exception as exc:
            code = self.code_of(exc)
            if code is None:
                raise
            for _ in batches:  # Spark waits for its batches to be taken
                pass
            return 0, code


def _again(first: memoryview, rest: Iterator[memoryview]) -> Iterator[memoryview]:
    yield first
    yield from rest


class Staged(NamedTuple):
    """What is in the staging table: the attempts whose rows count, or why it is not all there."""

    attempts: tuple[int, ...]
    failure: Failure | None = None


def stage_rows(frame: DataFrame, loader: Loader, batch: ReducedBatch) -> Staged:
    """Run the tasks of a batch.

    Raises:
        TidesinkError: reading the rows failed in a task.
        AccountingError: more or fewer rows came than the batch has.
        TransientTargetError: Spark could not run them.
    """
    from tidesink.sinks.spark.errors import SPARK_ERRORS, raised_task_errors

    table = str(batch.shape.table)
    try:
        with raised_task_errors(table=table):
            reported = frame.mapInArrow(loader, "attempt bigint, rows bigint, code string, nul int").collect()
    except SPARK_ERRORS as exc:
        raise TransientTargetError(
            f"Spark could not bring the rows to the database ({type(exc).__name__}), and nothing was merged",
            table=table,
        ) from exc
    for row in reported:
        if row["code"] is not None or row["nul"] is not None:
            return Staged((), Failure(row["code"] or "", row["nul"]))
    rows = sum(row["rows"] for row in reported)
    if rows != batch.upserts + batch.deletes:
        raise AccountingError(
            f"{rows} rows were brought to the database, of {batch.upserts} upserts and {batch.deletes} "
            "deletes",
            table=table,
        )
    return Staged(tuple(row["attempt"] for row in reported if row["rows"]))


# How a column is written: in quotes, as its number or hex digits, or as the time of its microseconds.
Kind = Literal["text", "plain", "micros"]
NULL: Final = "NULL"


class CsvLines:
    """The lines of one task; each begins with the task's attempt. ``rows`` counts those written.

    ``nul_column`` is the position of a text column with a U+0000 in it, where ``nul_refused`` and one was
    met: no more is written then.
    """

    def __init__(self, attempt: int, kinds: tuple[Kind, ...], *, nul_refused: bool) -> None:
        self.rows = 0
        self.nul_column: int | None = None
        self._attempt = attempt
        self._kinds = kinds
        self._nul_refused = nul_refused

    def chunks(self, batches: Iterable[Any]) -> Iterator[memoryview]:
        """The lines of record batches, whose columns are those of ``kinds``."""
        for batch in batches:
            if batch.num_rows == 0 or self.nul_column is not None:
                continue  # the rest is read all the same: Spark waits for its batches to be taken
            columns = [batch.column(at) for at in range(batch.num_columns)]
            if self._nul_refused:
                self.nul_column = self._first_nul(columns)
                if self.nul_column is not None:
                    continue
            self.rows += batch.num_rows
            yield _lines(f"\n{self._attempt}", columns, self._kinds, first=self.rows == batch.num_rows)
        if self.rows:
            yield memoryview(b"\n")

    def _first_nul(self, columns: list[Any]) -> int | None:
        import pyarrow.compute as pc

        for at, (column, kind) in enumerate(zip(columns, self._kinds, strict=True)):
            if kind == "text" and pc.any(pc.match_substring(column, "\0")).as_py():
                return at
        return None


def _lines(attempt: str, columns: list[Any], kinds: tuple[Kind, ...], *, first: bool) -> memoryview:
    """Lines that begin with their line end; the first line of all begins without."""
    import pyarrow as pa
    import pyarrow.compute as pc

    large = pa.large_string()
    words = [_words(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    joined = pc.binary_join_element_wise(
        pa.scalar(attempt, large),
        *words,
        pa.scalar(",", large),
        null_handling="replace",
        null_replacement=NULL,
    )
    _, offsets, data = joined.buffers()
    ends = memoryview(offsets).cast("q")
    text = memoryview(data)[ends[joined.offset] : ends[joined.offset + len(joined)]]
    return text[1:] if first else text


def _words(column: Any, kind: Kind) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    large = pa.large_string()
    if kind == "micros":
        column = column.cast(pa.timestamp("us"))
    if pa.types.is_float32(column.type):
        column = column.cast(pa.float64())  # the shortest digits of the greatest float are beyond its range
    if kind != "text":
        return column.cast(pa.string()).cast(large)
    escaped = pc.replace_substring(column.cast(large), pattern='"', replacement='""')
    empty, quote = pa.scalar("", large), pa.scalar('"', large)
    return pc.binary_join_element_wise(empty, escaped, empty, quote)
