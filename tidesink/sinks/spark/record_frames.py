"""Records of Kafka as Spark frames, and what can be asked of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.compression import Compression, compression_of, decompressed
from tidesink.errors import FramingError
from tidesink.events import Message, TableId
from tidesink.sinks.batch.records import DDL
from tidesink.sinks.kafka.fetch import HEADERS, FetchRange
from tidesink.sinks.spark.errors import Reporting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.batch.tasks import Fetch
    from tidesink.sinks.kafka.offsets import OffsetRange


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
        for batch in self.fetch(wanted._replace(headers=self.headers)):
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


_DDL_MARK: Final = b'"isDdl":true'
# Between a database's and a table's name; no name holds it.
_BETWEEN: Final = "\x00"


def schema_heads(raw: DataFrame) -> list[Any]:
    """The distinct first five bytes of keys and values, as hexadecimal text."""
    heads = [F.hex(F.substring(part, 1, 5)).alias(part) for part in ("key", "value")]
    return raw.select(*heads).distinct().collect()


def with_values(raw: DataFrame) -> Iterator[Message]:
    """The records with a value, partition after partition, as they are asked for."""
    names = ("topic", "partition", "offset", "key", "value")
    moment = F.unix_millis("timestamp").alias("timestamp")
    for row in raw.where(F.col("value").isNotNull()).select(*names, moment).toLocalIterator():
        key = None if row["key"] is None else bytes(row["key"])
        place = (row["topic"], row["partition"], row["offset"])
        yield Message(*place, key, bytes(row["value"]), row["timestamp"])


def marked_ddl(raw: DataFrame) -> list[bytes]:
    """The values that may be canal-json DDL events, in the order of their offsets.

    A cheap test in the JVM: a row that has these bytes in a value is among them.
    """
    marked = raw.where(F.contains("value", F.lit(bytearray(_DDL_MARK)))).select("offset", "value")
    return [bytes(row["value"]) for row in sorted(marked.collect(), key=lambda row: int(row["offset"]))]


def named_tables(raw: DataFrame) -> list[TableId]:
    """The tables that canal-json rows among the records name."""
    database, name, is_ddl = (_member(part) for part in ("database", "table", "isDdl"))
    named = raw.where(is_ddl == "false").select(database.alias("schema"), name.alias("name"))
    rows = named.where("name <> ''").distinct().collect()
    return sorted(TableId(row["schema"] or "", row["name"]) for row in rows)


def compression_in(raw: DataFrame) -> Compression:
    """How one of the values is compressed that do not begin as JSON does; ``none`` where there is none."""
    odd = raw.where(~F.startswith("value", F.lit(bytearray(b"{")))).select("value").limit(1).collect()
    return compression_of(bytes(odd[0]["value"])) if odd else "none"


def is_row() -> Column:
    """Whether a canal-json record is of a row, and not of a DDL event or a watermark."""
    return F.coalesce((_member("isDdl") == "false") & (_member("type") != "TIDB_WATERMARK"), F.lit(False))


def full_name(table: TableId) -> str:
    """A table as ``named_table`` names it."""
    return _BETWEEN.join(table)


def named_table() -> Column:
    """The full name of the table a record says it is of; null for what names none, or cannot be read."""
    database, named = _member("database"), _member("table")
    return F.when(named != "", F.concat(F.coalesce(database, F.lit("")), F.lit(_BETWEEN), named))


def foreign_to(*tables: TableId) -> Column:
    """Whether a record says it is of none of these tables; false for what names no table, or cannot be read.

    TiCDC's messages begin with id, database and table, so that most of the first table's are known by
    their first bytes.
    """
    schema, name = (json.dumps(part, ensure_ascii=False) for part in tables[0])
    start = f'{{"id":0,"database":{schema},"table":{name},'.encode()
    other = ~named_table().isin(*(full_name(table) for table in tables))
    mine = F.startswith(F.col("value"), F.lit(bytearray(start)))
    return F.when(mine, F.lit(False)).otherwise(F.coalesce(other, F.lit(False)))


def row_forms(raw: DataFrame, table: TableId) -> list[Any]:
    """The forms of a table's canal-json rows: ``names`` in order, and JSON texts of ``types`` and ``keys``.

    Of each form the newest row's words are taken.
    """
    mine = raw.where(~foreign_to(table) & (_member("isDdl") == "false"))
    rows = mine.select(
        F.json_object_keys(_member("data[0]")).alias("names"),
        F.struct(_member("mysqlType").alias("types"), _member("pkNames").alias("keys")).alias("words"),
        "offset",
    )
    forms = rows.where("names is not null").groupBy("names").agg(F.max_by("words", "offset").alias("words"))
    return forms.select("names", "words.types", "words.keys").collect()


def last_ddl_offset(reduced: DataFrame, partition: int) -> int | None:
    """The greatest offset of a DDL event of one partition in a reduced frame."""
    here = reduced.where((F.col("_op") == DDL) & (F.col("_partition") == partition))
    found: int | None = here.agg(F.max("_offset").alias("last")).collect()[0]["last"]
    return found


def _member(name: str) -> Column:
    """A member of a canal-json message, as text; null where the value is no JSON object that has it."""
    return F.get_json_object(F.col("value").cast("string"), f"$.{name}")
