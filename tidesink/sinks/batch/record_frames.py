"""Spark tasks that fetch ranges of Kafka records, and records that Spark stores for several tables.

Inside a task, Kafka records are Arrow batches. Spark only gets the rows that the work on a range returns.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np
import pyarrow as pa

from tidesink.codecs.canal_json.scan import TableNames
from tidesink.codecs.compression import decompressed
from tidesink.errors import FramingError, TidesinkError
from tidesink.events import TableId
from tidesink.sinks.batch.tasks import RangeTooLargeError, Work
from tidesink.sinks.decode.records import Input, record_bytes
from tidesink.sinks.kafka.fetch import FetchRange, last_record
from tidesink.sinks.spark.errors import Reporting
from tidesink.sinks.spark.payloads import ipc_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.kafka.offsets import OffsetRange


Part = TypeVar("Part", bound=Input)

# The minimum number of records per task. With fewer, another task costs more time than it saves.
_RECORDS_A_TASK: Final = 50_000
# For a batch with at most this number of records, one task is faster than several tasks.
_SMALL_BATCH: Final = 10_000
# The maximum size of a batch of decompressed values. A single larger value is a batch of its own.
_OPENED_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class FetchedRanges(Generic[Part]):
    """Reads inputs and runs ``work`` on each. Spark passes the indices of the inputs to each task."""

    ranges: tuple[Part, ...]
    fetch: Callable[[Part], Iterator[pa.RecordBatch]]
    work: Work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the results of ``work`` on the ranges whose indices are in the batches."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                wanted = self.ranges[number]
                yield from self.work(wanted, self.fetch(wanted))


def over_ranges(
    session: SparkSession,
    ranges: Sequence[Part],
    fetch: Callable[[Part], Iterator[pa.RecordBatch]],
    work: Work,
    ddl: str,
    *,
    most_tasks: int | None = None,
) -> DataFrame:
    """Returns a lazy frame with the results of ``work`` on each input, in the columns of ``ddl``.

    ``fetch`` reads an input. Each input is a Spark task. If the inputs have few records in total, one task
    processes all of them. There are at most ``most_tasks`` tasks. Use ``spark.errors.task_error`` to get a
    task's ``TidesinkError`` back from Spark's exception.
    """
    count = len(ranges)
    tasks = count if sum(part.records for part in ranges) > _SMALL_BATCH else 1
    tasks = min(tasks, most_tasks or tasks)
    numbers = session.range(0, count, 1, max(1, tasks))
    return numbers.mapInArrow(Reporting(FetchedRanges(tuple(ranges), fetch, work)), ddl)


ANSWER_DDL: Final = "answer binary"


@dataclass(frozen=True)
class Question:
    """Calls ``ask`` with the records of a range and returns the pickled answer.

    ``opens_up_to``: compressed values are decompressed first, if they then have at most this number of bytes.
    None: values are not decompressed.
    """

    ask: Callable[[Iterator[pa.RecordBatch]], Any]
    opens_up_to: int | None = None

    def __call__(self, _wanted: FetchRange, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields one row with the pickled answer."""
        answer = pickle.dumps(self.ask(opened(records, self.opens_up_to)))
        yield pa.record_batch({"answer": pa.array([answer], pa.binary())})


def split_ranges(ranges: Sequence[OffsetRange], cores: int) -> tuple[FetchRange, ...]:
    """Returns the given ranges without the empty ones. Large ranges are split, so that all cores are used."""
    records = sum(part.records for part in ranges)
    tasks = max(1, min(cores, records // _RECORDS_A_TASK))
    return tuple(piece for part in ranges for piece in _pieces(part, -(-records // tasks)))


def _pieces(part: OffsetRange, most: int) -> Iterator[FetchRange]:
    """Splits a range into parts of about the same size, each with at most ``most`` offsets."""
    count = -(-part.records // most) if part.records > 0 else 0
    for number in range(count):
        start, end = (part.start + part.records * piece // count for piece in (number, number + 1))
        yield FetchRange(part.topic, part.partition, start, end)


def _opened_batches(most: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from opened_values(batch, most)


def opened(records: Iterable[pa.RecordBatch], most: int | None) -> Iterator[pa.RecordBatch]:
    """Returns the records with decompressed values (``opened_values``). If ``most`` is None, values stay
    compressed.
    """
    return iter(records) if most is None else _opened_batches(most, records)


def opened_values(
    batch: pa.RecordBatch, most: int, *, batch_bytes: int = _OPENED_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yields the records with decompressed values, in one or several batches.

    A value stays as it is if it is not compressed or is damaged, or if it would have more than ``most``
    bytes. The values of a batch have at most ``batch_bytes`` bytes, unless it is a single value.

    Raises:
        ConfigError: A value is compressed, and the ``large-messages`` extra is not installed.
    """
    column_index = batch.schema.get_field_index("value")
    values: list[bytes | None] = []
    start = size = 0
    for value in batch.column(column_index).to_pylist():
        opened = None if value is None else _opened(value, most)
        if values and size + len(opened or b"") > batch_bytes:
            yield _with_values(batch.slice(start, len(values)), column_index, values)
            start, size, values = start + len(values), 0, []
        values.append(opened)
        size += len(opened or b"")
    yield _with_values(batch.slice(start), column_index, values)


def _opened(value: bytes, most: int) -> bytes:
    try:
        opened = decompressed(value, most=most)
    except FramingError:
        return value  # the codec reports the fault
    return value if opened is None else opened


def _with_values(batch: pa.RecordBatch, column_index: int, values: list[bytes | None]) -> pa.RecordBatch:
    return batch.set_column(column_index, batch.schema.field(column_index), pa.array(values, pa.binary()))


# Records that are read once for several tables


KEPT_DDL: Final = (
    "partition int, named string, records bigint, bytes bigint, unlisted bigint, ddl bigint, "
    "watermarks bigint, last_offset bigint, last_epoch int, payload binary, error binary"
)
_KEPT: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("named", pa.string()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("unlisted", pa.int64()),
        ("ddl", pa.int64()),
        ("watermarks", pa.int64()),
        ("last_offset", pa.int64()),
        ("last_epoch", pa.int32()),
        ("payload", pa.binary()),
        ("error", pa.binary()),
    ]
)
# Separates the database's name from the table's name. No name contains it.
_BETWEEN: Final = "\x00"


@dataclass(frozen=True)
class SplitByTable:
    """Groups the records of a range by the table that they name. Records that name no table form one group.

    Each result row (``KEPT_DDL``) is one group. Its column ``payload`` has the records, not decoded and in
    the order of their offsets. Other columns:

    - ``unlisted``, ``ddl`` and ``watermarks``: the number of rows of tables that the pipeline does not know,
      of DDL events, and of watermarks among the records.
    - ``last_offset`` and ``last_epoch``: offset and leader epoch of the last record of the fetched batch,
      whatever its table.
    - ``error``: a pickled ``TidesinkError``, in a row without records. Pickled, the error keeps its class.

    ``most_bytes``: the maximum size of a range in bytes.
    """

    names: TableNames
    most_bytes: int

    def __call__(self, wanted: FetchRange, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of an offset range in groups, one per table and fetched batch.

        If the range cannot be read, the last row has the error.
        """
        size = 0
        try:
            for batch in records:
                size += record_bytes(batch)
                if size > self.most_bytes:
                    raise RangeTooLargeError.of(wanted, self.most_bytes)
                yield from self._split(wanted, batch)
        except TidesinkError as error:
            yield _kept_row(partition=wanted.partition, error=pickle.dumps(error))

    def _split(self, wanted: FetchRange, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        table_names = self.names.of(batch)
        order = np.argsort(table_names.codes, kind="stable")
        codes, starts = np.unique(table_names.codes[order], return_index=True)
        ends = [*starts[1:].tolist(), len(order)]
        last = last_record(batch)
        for code, start, end in zip(codes.tolist(), starts.tolist(), ends, strict=True):
            mine = order[start:end]
            part = batch if len(mine) == len(batch) else batch.take(pa.array(mine))
            yield _kept_row(
                partition=wanted.partition,
                named=None if code < 0 else full_name(table_names.tables[code]),
                records=len(mine),
                bytes=record_bytes(part),
                unlisted=int(table_names.unlisted[mine].sum()),
                ddl=int(table_names.ddl[mine].sum()),
                watermarks=int(table_names.watermarks[mine].sum()),
                last_offset=None if last is None else last.offset,
                last_epoch=None if last is None else last.epoch,
                payload=ipc_stream(part),
            )


def _kept_row(**values: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{name: values.get(name) for name in _KEPT.names}], schema=_KEPT)


@dataclass(frozen=True)
class StoredRanges:
    """Runs ``work`` on ranges whose records are stored as payloads.

    The payloads are rows of ``partition``, ``payload`` and ``error``. A range without payloads is skipped.
    """

    ranges: tuple[FetchRange, ...]
    work: Work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the results of ``work`` on the ranges that have payloads."""
        wanted = {part.partition: part for part in self.ranges}
        rows = (row for batch in batches for row in zip(*batch.columns, strict=True))
        for partition, payloads in groupby(rows, lambda row: row[0].as_py()):
            yield from self.work(wanted[partition], _records_in(payloads))


def records_in(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields the records in payloads, which are rows of ``partition``, ``payload`` and ``error``.

    Raises:
        TidesinkError: A row has this error.
    """
    return _records_in(zip(*rows.columns, strict=True))


def _records_in(payloads: Iterable[tuple[Any, Any, Any]]) -> Iterator[pa.RecordBatch]:
    for _, payload, error in payloads:
        if error.is_valid:
            # Spark had lost the payload and ran the task that makes it again, which failed this time.
            raise pickle.loads(error.as_py())  # noqa: S301  (our own task wrote it)
        with pa.ipc.open_stream(payload.as_buffer()) as stream:
            yield from stream


def full_name(table: TableId) -> str:
    """Returns the text that identifies a table in the result rows of ``SplitByTable``."""
    return _BETWEEN.join(table)


def table_of(name: str) -> TableId:
    """Returns the table that is identified by ``name``, a result of ``full_name``."""
    return TableId(*name.split(_BETWEEN))
