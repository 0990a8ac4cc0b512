"""Rows of the source, read in tasks that try again: of whole ranges, and by keys that the target names.

A key comes as the texts of the target's values (``spark.digests``). Of each column it is made the text that
canal-json has of the stored value, and that a parameter of the query. Where the way back is not exact (a
time that was cut, bytes as text) there is none, and ``key_columns`` says so. The database may find more rows
than were asked for, as its collations compare: they are rows like others, of other keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from tidesink.errors import ConfigError
from tidesink.events import ColumnType
from tidesink.sinks.batch.context import RetryPolicy, WorkerContext
from tidesink.sinks.batch.record_frames import over_ranges
from tidesink.sinks.batch.source_rows import SourceDecoder, SourceRows
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.spark.errors import Reporting, raised_task_errors
from tidesink.sinks.targets.base import ReadableTarget
from tidesink.typemap.table import Reader, row_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.batch.decoders import DecodePlan
    from tidesink.sinks.batch.tasks import Work
    from tidesink.sinks.targets.base import TableReader
    from tidesink.source_database.base import StoredTable
    from tidesink.typemap.target_schema import TableShape

# Keys of one query: few enough for a database to look each up by its index.
_KEYS_A_QUERY: Final = 500
_UINT64: Final = 1 << 64
# The keys of a part, by the rows of a batch of rows: a key takes much less than a row.
_KEYS_FOR_A_ROW: Final = 5
# Each part reads all keys of the target, so that there are not more.
MOST_PARTS: Final = 100
_NOT_READABLE: Final = "its target gives no rows back, so that nothing tells which of them the source has not"


@dataclass(frozen=True)
class PatientRows:
    """Reads ranges of the source, so many at a time, and each again for ``seconds`` where it is cut off."""

    rows: SourceRows
    connections: int
    seconds: float

    def __call__(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        """The rows of a range, whole."""
        yield from RetryPolicy(self.seconds).call(lambda: [*self.rows(wanted)])

    def over(self, session: SparkSession, ranges: Sequence[FetchRange], work: Work, ddl: str) -> DataFrame:
        """As ``RecordReader``."""
        return over_ranges(session, ranges, self, work, ddl, most_tasks=self.connections)


class KeyColumn(NamedTuple):
    """A column of the target's key: which of the key's texts it is, and the source's column.

    ``spark`` is its type at the target.
    """

    at: int
    name: str
    stored: ColumnType
    spark: str


def key_columns(plan: DecodePlan, key: Sequence[str]) -> tuple[KeyColumn, ...] | None:
    """The columns by which the source finds a key of the target; None where it cannot be asked so.

    ``plan`` has a ``SourceDecoder``, ``key`` are the columns of the source's own key, which an index serves.
    """
    decoder, shape = plan.decoder, plan.shape
    assert isinstance(decoder, SourceDecoder)  # noqa: S101  (``source_plan`` makes it)
    read = {one.recorded.name: one for one in decoder.columns}
    found = []
    for at, column in enumerate(shape.key_columns):
        if shape.shard is not None and column.name == shape.shard.column:
            continue
        own = (plan.rows.sources or {}).get(column.name, column.name)
        one = read.get(own)
        if one is None or (row_of(one.stored.type).reader, column.spark.partition("(")[0]) not in _TEXTS:
            return None
        if row_of(one.stored.type).reader in _CUT and decoder.inner.recorded_value(
            one.stored, one.recorded.type
        ):
            return None
        found.append(KeyColumn(at, one.stored.name, one.stored.type, column.spark))
    return tuple(found) if {*key} <= {one.name for one in found} else None


# Of these a record may have less than the database.
_CUT: Final = frozenset[Reader]({"date", "datetime", "time"})


def _whole(text: str, stored: ColumnType) -> str:
    number = int(Decimal(text))
    return str(number + _UINT64 if number < 0 and row_of(stored).reader == "unsigned64" else number)


def _flag(text: str, _stored: ColumnType) -> str:
    return str(int(text == "true"))


def _decimal(text: str, _stored: ColumnType) -> str:
    return format(Decimal(text), "f")


def _float(text: str, _stored: ColumnType) -> str:
    return repr(float(text))


def _same(text: str, _stored: ColumnType) -> str:
    return text


def _bytes(text: str, _stored: ColumnType) -> str:
    return bytes.fromhex(text).decode("latin-1")


def _member(text: str, stored: ColumnType) -> str:
    members = stored.members or ()
    return str(members.index(text) + 1 if text in members else 0)


def _members(text: str, stored: ColumnType) -> str:
    chosen = {*text.split(",")} if text else set()
    return str(sum(1 << at for at, one in enumerate(stored.members or ()) if one in chosen))


_NUMBERS: Final = ("int", "bigint", "decimal", "string")
# By what reads the stored value, and the target's type: the text that canal-json has of it.
_TEXTS: Final[Mapping[tuple[Reader, str], Callable[[str, ColumnType], str]]] = {
    **{(reader, spark): _whole for reader in ("integer", "unsigned64", "bit") for spark in _NUMBERS},
    ("integer", "boolean"): _flag,
    ("bit", "boolean"): _flag,
    ("decimal", "decimal"): _decimal,
    ("decimal", "string"): _decimal,
    ("float32", "float"): _float,
    ("float64", "double"): _float,
    ("text", "string"): _same,
    ("binary", "binary"): _bytes,
    ("date", "date"): _same,
    ("datetime", "timestamp_ntz"): _same,
    ("timestamp", "timestamp"): _same,
    ("time", "string"): _same,
    ("enum", "string"): _member,
    ("set", "string"): _members,
}


@dataclass(frozen=True)
class KeyedRows:
    """Reads the rows of keys; as ``RecordReader``, whatever ranges it is asked for.

    ``wanted`` has the column ``key``: the texts of the target's values, of times in UTC.
    """

    rows: SourceRows
    columns: tuple[KeyColumn, ...]
    connections: int
    seconds: float
    wanted: DataFrame = field(repr=False)

    def over(self, session: SparkSession, ranges: Sequence[FetchRange], work: Work, ddl: str) -> DataFrame:  # noqa: ARG002
        """What ``work`` makes of the rows."""
        task = KeyedTask(self.rows, self.columns, self.seconds, ranges[0], work)
        return self.wanted.select("key").repartition(self.connections).mapInArrow(Reporting(task), ddl)


@dataclass(frozen=True)
class KeyedTask:
    """What a task runs: a query for each some keys."""

    rows: SourceRows
    columns: tuple[KeyColumn, ...]
    seconds: float
    wanted: FetchRange
    work: Work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the work makes of the rows of the keys."""
        for batch in batches:
            for start in range(0, batch.num_rows, _KEYS_A_QUERY):
                keys = batch.column(0).slice(start, _KEYS_A_QUERY).to_pylist()
                yield from self.work(self.wanted, self._read(keys))

    def _read(self, keys: Sequence[Sequence[str]]) -> Iterator[pa.RecordBatch]:
        names = [one.name for one in self.columns]
        texts = [tuple(_text(key[one.at], one) for one in self.columns) for key in keys]
        read = RetryPolicy(self.seconds).call(lambda: [*self.rows.of_keys(self.wanted, names, texts)])
        yield from read


def _text(text: str, column: KeyColumn) -> str:
    """A value of the target as canal-json has the source's."""
    reader = row_of(column.stored).reader
    return _TEXTS[reader, column.spark.partition("(")[0]](text, column.stored)


@contextmanager
def open_target_reader(
    context: WorkerContext, shape: TableShape, session: SparkSession
) -> Iterator[TableReader]:
    """What reads the table of ``shape`` at the target.

    Raises:
        ConfigError: the target has no such table, or gives no rows back.
        TransientTargetError: it does not answer.
    """
    target = context.target
    found = (
        target.reader(shape, pipeline=context.config.pipeline, session=session)
        if isinstance(target, ReadableTarget)
        else None
    )
    if found is None:
        raise ConfigError(f"the table cannot have a resync: {_NOT_READABLE}", table=str(shape.source))
    try:
        found.session.conf.set("spark.sql.session.timeZone", "UTC")  # of the texts of keys
        yield found
    finally:
        found.close()


def parts_of(context: WorkerContext, plan: DecodePlan, stored: StoredTable, *, rows: int) -> int:
    """In how many parts the target's keys are looked up, by how many there are; ``rows``: of a batch of rows.

    One where the source cannot be asked for a key: then a part reads all its rows. ``plan`` has a
    ``SourceDecoder``.

    Raises: as ``open_target_reader``.
    """
    if key_columns(plan, stored.key) is None:
        return 1
    session, table = context.spark.newSession(), str(plan.shape.source)
    with raised_task_errors(table=table), open_target_reader(context, plan.shape, session) as reader:
        count = reader.rows(plan.shape.key_columns).count()
    return max(1, min(MOST_PARTS, -(-count // (rows * _KEYS_FOR_A_ROW))))
