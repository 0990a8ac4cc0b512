"""Kafka's records as a Spark frame: each task reads a range with librdkafka and gives Arrow batches.

The frame has the columns of ``RECORD_DDL``, as Spark's own Kafka source names them. It is lazy: whatever
runs it reads Kafka, and a task that runs again reads the same offsets again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.compression import decompressed
from tidesink.errors import FramingError
from tidesink.sinks.kafka.fetch import HEADERS, FetchRange
from tidesink.sinks.spark.task_errors import Reporting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.batch.tasks import Fetch
    from tidesink.sinks.ranges import OffsetRange

RECORD_DDL: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary"
)
_HEADERS_DDL: Final = "headers array<struct<key: string, value: binary>>"
_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        # The zone of every session (``session.FIXED``).
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
# One task reads so many records at least: a short range is not worth a second task.
_RECORDS_A_TASK: Final = 50_000
# A batch of opened values ends before it is larger, but for one value that is larger alone.
_OPENED_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class RecordTask:
    """Reads ranges; a task is given the numbers of its ranges.

    ``opens_up_to``: values may be compressed, and are opened, up to so many bytes each. None: they are not.
    """

    ranges: tuple[FetchRange, ...]
    fetch: Fetch
    opens_up_to: int | None = None
    headers: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The records of the ranges whose numbers the batches hold."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._records(self.ranges[number])

    def _records(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        for batch in self.fetch(wanted):
            records = _as_spark(batch, headers=self.headers)
            yield from [records] if self.opens_up_to is None else opened_values(records, self.opens_up_to)


def _as_spark(batch: pa.RecordBatch, *, headers: bool) -> pa.RecordBatch:
    """A batch of ``fetch`` with the columns' types as Spark takes them."""
    schema = _SCHEMA if headers else pa.schema(list(_SCHEMA)[:-1])
    stamps = pc.cast(batch.column("timestamp"), pa.timestamp("ms", tz="UTC"))
    columns = [
        stamps.cast(field.type) if field.name == "timestamp" else batch.column(field.name).cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def record_frame(
    session: SparkSession,
    ranges: Sequence[OffsetRange],
    fetch: Fetch,
    *,
    opens_up_to: int | None = None,
    headers: bool = False,
) -> DataFrame:
    """The records of the ranges; lazy, and empty where no range has an offset.

    An error of ``fetch`` comes back by ``task_errors.task_error``.
    """
    parts = split_ranges(ranges, session.sparkContext.defaultParallelism)
    task = RecordTask(parts, fetch, opens_up_to, headers)
    numbers = session.range(0, len(parts), 1, max(1, len(parts)))
    columns = f"{RECORD_DDL}, {_HEADERS_DDL}" if headers else RECORD_DDL
    return numbers.mapInArrow(Reporting(task), columns)


def split_ranges(ranges: Sequence[OffsetRange], cores: int) -> tuple[FetchRange, ...]:
    """The ranges that have an offset, large ones in several parts: enough to keep the cores busy."""
    records = sum(part.records for part in ranges)
    tasks = max(1, min(cores, records // _RECORDS_A_TASK))
    return tuple(piece for part in ranges for piece in _pieces(part, -(-records // tasks)))


def _pieces(part: OffsetRange, most: int) -> Iterator[FetchRange]:
    """One range in parts of about the same size, none with more than ``most`` offsets."""
    count = -(-part.records // most) if part.records > 0 else 0
    for number in range(count):
        start, end = (part.start + part.records * at // count for at in (number, number + 1))
        yield FetchRange(part.topic, part.partition, start, end)


def opened_frame(frame: DataFrame, opens_up_to: int) -> DataFrame:
    """A frame of records with its column ``value`` opened."""
    return frame.mapInArrow(Reporting(partial(_opened_batches, opens_up_to)), frame.schema)


def _opened_batches(most: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from opened_values(batch, most)


def opened_values(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """The records with each value as it was before it was compressed, in one batch or several.

    A value that is not compressed, is damaged, or stands for more than ``most`` bytes, stays as it is.

    Raises:
        ConfigError: a value is compressed, and the ``large-messages`` extra is not installed.
    """
    place = batch.schema.get_field_index("value")
    found: list[bytes | None] = []
    start = size = 0
    for value in batch.column(place).to_pylist():
        opened = None if value is None else _opened(value, most)
        if found and size + len(opened or b"") > _OPENED_BYTES:
            yield _with_values(batch.slice(start, len(found)), place, found)
            start, size, found = start + len(found), 0, []
        found.append(opened)
        size += len(opened or b"")
    yield _with_values(batch.slice(start), place, found)


def _opened(value: bytes, most: int) -> bytes:
    try:
        opened = decompressed(value, most=most)
    except FramingError:
        return value  # the codec says what is wrong with it
    return value if opened is None else opened


def _with_values(batch: pa.RecordBatch, place: int, values: list[bytes | None]) -> pa.RecordBatch:
    return batch.set_column(place, batch.schema.field(place), pa.array(values, pa.binary()))
