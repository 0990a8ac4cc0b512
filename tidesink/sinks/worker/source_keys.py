"""Rows of the source, read in tasks that try again: of whole ranges, and by keys that the target names.

A key comes as the texts of the target's values (``spark.digests``). Of each column it is made the text that
canal-json has of the stored value, and that a parameter of the query. Where the way back is not exact (a
time that was cut, bytes as text) there is none, and ``key_columns`` says so. The database may find more rows
than were asked for, as its collations compare: they are rows like others, of other keys. It may find one
row for several keys, in queries of their own: the digests of a row are counted once (``digests.once``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from tidesink.config import Config
from tidesink.errors import ConfigError, ValueOutOfRangeError
from tidesink.events import ColumnType, TableId, fold_name
from tidesink.schema_registry.naming import sanitize_name
from tidesink.sinks.batch.context import RetryPolicy, WorkerContext
from tidesink.sinks.batch.record_frames import over_ranges
from tidesink.sinks.batch.source import RecordReader
from tidesink.sinks.batch.source_rows import KeyRange, ReadColumn, SourceDecoder, SourceRows
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange
from tidesink.sinks.spark.errors import Reporting, raised_task_errors
from tidesink.sinks.targets.base import ReadableTarget
from tidesink.source_database.key_bounds import from_lists
from tidesink.typemap.table import row_of
from tidesink.typemap.target_schema import wider_ddl
from tidesink.typemap.values import unchanged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.batch.decoders import DecodePlan
    from tidesink.sinks.batch.tasks import Work
    from tidesink.sinks.spark.digests import ComparedColumn, Limit
    from tidesink.sinks.targets.base import TableReader
    from tidesink.source_database.base import KeyTexts, StoredTable
    from tidesink.source_database.key_bounds import Bound
    from tidesink.typemap.target_schema import ShapeColumn, TableShape

# Keys of one query: few enough for a database to look each up by its index.
KEYS_A_QUERY: Final = 500
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


# What makes canal-json's text of a value from the target's.
WayBack = Callable[[str, ColumnType], str]


class KeyColumn(NamedTuple):
    """A column of the target's key: which of the key's texts it is, the source's column, and the way back."""

    at: int
    name: str
    stored: ColumnType
    back: WayBack


def key_columns(
    plan: DecodePlan, key: Sequence[str], types: Mapping[str, str]
) -> tuple[KeyColumn, ...] | None:
    """The columns by which the source finds a key of the target; None where it cannot be asked so.

    ``plan`` has a ``SourceDecoder``, ``key`` are the columns of the source's own key, which an index serves,
    ``types`` Spark's types that the columns of the target's key are compared in, by name.
    """
    decoder, shape = plan.decoder, plan.shape
    assert isinstance(decoder, SourceDecoder)  # noqa: S101  (``source_plan`` makes it)
    read = {one.recorded.name: one for one in decoder.columns}
    found = []
    for at, column in enumerate(shape.key_columns):
        if shape.shard is not None and column.name == shape.shard.column:
            continue
        one = read.get((plan.rows.sources or {}).get(column.name, column.name))
        back = None if one is None else _way_back(one, decoder, types[column.name].partition("(")[0])
        if one is None or back is None:
            return None
        found.append(KeyColumn(at, one.stored.name, one.stored.type, back))
    return tuple(found) if {*key} <= {one.name for one in found} else None


# A range of the key is one of these: of what is stored, and what the target has of it.
_RANGED: Final = frozenset(
    {
        *(("integer", spark) for spark in ("int", "bigint", "decimal")),
        ("unsigned64", "decimal"),
        ("decimal", "decimal"),
        ("numeric", "decimal"),
        ("date", "date"),
        ("datetime", "timestamp_ntz"),
        ("timestamp", "timestamp"),
        ("time", "string"),
        ("local_date", "date"),
        ("local_datetime", "timestamp_ntz"),
        ("instant", "timestamp"),
    }
)
_MOST_PRECISION: Final = 38


def limits_of(plan: DecodePlan, bounds: Sequence[Bound], types: Mapping[str, str]) -> tuple[Limit, ...]:
    """Bounds of the source's key as those of the target's, which compares their values as it does.

    ``plan`` and ``types`` are as for ``key_columns``.

    Raises:
        ConfigError: it does not.
    """
    from tidesink.sinks.spark.digests import Limit

    decoder, shape = plan.decoder, plan.shape
    assert isinstance(decoder, SourceDecoder)  # noqa: S101  (``source_plan`` makes it)
    read = {one.recorded.name: one for one in decoder.columns}
    columns = {
        one.stored.name: (column.name, one)
        for column in shape.key_columns
        if (one := read.get((plan.rows.sources or {}).get(column.name, column.name))) is not None
    }
    found = []
    for bound in bounds:
        name, one = columns.get(bound.column, ("", None))
        kind = types.get(name, "")
        exact = one is not None and _way_back(one, decoder, kind.partition("(")[0]) is not None
        if one is None or not (exact and is_ranged(one.stored.type, kind, bound.text)):
            raise ConfigError(
                "--where needs a column that the target's key holds as the source does, so that both sides "
                f"sort it alike. {bound.column} is {kind or 'not in the key'} there: leave --where out",
                table=str(shape.source),
            )
        found.append(Limit(name, bound))
    return tuple(found)


def limits_at_target(plan: DecodePlan, where: Iterable[tuple[str, str, str]]) -> tuple[Limit, ...] | None:
    """Return bounds that ``limits_of`` accepted, on the target's key columns, without asking the source.

    None if the key no longer has their columns.
    """
    from tidesink.sinks.spark.digests import Limit

    sources = plan.rows.sources or {}
    names = {sources.get(one.name, one.name): one.name for one in plan.shape.key_columns}
    found = []
    for bound in from_lists(where):
        alike = [name for name in names if _spelt(name) == _spelt(bound.column)]
        spelled = [bound.column] if bound.column in names else alike
        if len(spelled) != 1:
            return None
        found.append(Limit(names[spelled[0]], bound))
    return tuple(found)


def _spelt(name: str) -> str:
    """A column's name by which the database's and that of a record are one: Avro has fewer letters."""
    return fold_name(sanitize_name(name))


def is_ranged(source: ColumnType, kind: str, text: str) -> bool:
    """Whether Spark compares values of a type, that has the source's, with a bound as the source does."""
    return (_sort(source), kind.partition("(")[0]) in _RANGED and _fits(text, kind)


def _fits(text: str, kind: str) -> bool:
    """Whether Spark compares a number with those of a decimal type exactly."""
    if not kind.startswith("decimal("):
        return True
    scale = int(kind.rstrip(")").partition(",")[2])
    return len(text.lstrip("-").partition(".")[0]) + scale <= _MOST_PRECISION


def _way_back(column: ReadColumn, decoder: SourceDecoder, spark: str) -> WayBack | None:
    stored = column.stored.type
    convert = decoder.inner.recorded_value(column.stored, column.recorded.type)
    if convert is None and row_of(stored).reader in ("enum", "set"):
        return _whole if spark == "string" else None  # no members are known: the number is all there is
    sort = _sort(stored)
    # Other records have less than the database: a time that is cut, bytes as text, an array as JSON.
    if convert not in (None, unchanged) and sort not in _CONVERTED:
        return None
    return _WAYS_BACK.get((sort, spark))


def _sort(stored: ColumnType) -> str:
    """By what a stored value is read; a word of its own where types of one reader differ in the way back."""
    reader, sql = row_of(stored).reader, stored.sql or ""
    if reader == "bit":
        return "varbit" if sql.startswith("bit varying") else "bit" if (stored.length or 1) > 1 else "one bit"
    if stored.name == "other binary":
        return "binary" if sql == "bytea" else stored.name
    if stored.name == "other text":
        return "numeric" if sql == "money" or sql.startswith("numeric") else "text"
    return stored.name if reader == "text" and stored.name not in _PLAIN_TEXTS else reader


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


_PLAIN_TEXTS: Final = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "uuid"})
# What a record has otherwise than the database, and no less of it.
_CONVERTED: Final = frozenset({"integer", "unsigned64", "bit", "one bit", "decimal", "numeric"})
_WHOLE: Final = ("integer", "unsigned64", "bit", "one bit")
_NUMBERS: Final = ("int", "bigint", "decimal", "string")
# All ways back that are exact. Where there is none of a sort and a type of the target, all rows are read.
_WAYS_BACK: Final[Mapping[tuple[str, str], WayBack]] = {
    **{(sort, spark): _whole for sort in _WHOLE for spark in _NUMBERS},
    ("one bit", "boolean"): _flag,
    ("boolean", "boolean"): _same,
    **{(sort, spark): _decimal for sort in ("decimal", "numeric") for spark in ("decimal", "string")},
    ("float32", "float"): _float,
    ("float64", "double"): _float,
    ("text", "string"): _same,
    ("binary", "binary"): _bytes,
    ("date", "date"): _same,
    ("datetime", "timestamp_ntz"): _same,
    ("timestamp", "timestamp"): _same,
    ("time", "string"): _same,
    ("local_date", "date"): _same,
    ("local_datetime", "timestamp_ntz"): _same,
    ("instant", "timestamp"): _same,
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
    """What a task runs: a query for each some keys.

    It raises ValueOutOfRangeError where the source cannot be asked for a key.
    """

    rows: SourceRows
    columns: tuple[KeyColumn, ...]
    seconds: float
    wanted: FetchRange
    work: Work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the work makes of the rows of the keys."""
        for batch in batches:
            for start in range(0, batch.num_rows, KEYS_A_QUERY):
                keys = batch.column(0).slice(start, KEYS_A_QUERY).to_pylist()
                yield from self.work(self.wanted, self._read(keys))

    def _read(self, keys: Sequence[Sequence[str | None]]) -> Iterator[pa.RecordBatch]:
        names = [one.name for one in self.columns]
        texts = [tuple(_text(key[one.at], one) for one in self.columns) for key in keys]
        read = RetryPolicy(self.seconds).call(lambda: [*self.rows.of_keys(self.wanted, names, texts)])
        yield from read


def _text(text: str | None, column: KeyColumn) -> str:
    """A value of the target as canal-json has the source's.

    Raises:
        ValueOutOfRangeError: it is none of the column's, or the NULL of a date that no calendar has.
    """
    try:
        if text is not None:
            return column.back(text, column.stored)
    except (ValueError, ArithmeticError):
        pass
    raise ValueOutOfRangeError("a key at the target is none that the source can be asked for")


def askable(keys: Iterable[KeyTexts], columns: Sequence[KeyColumn]) -> Iterator[KeyTexts]:
    """Canal-json's texts of keys of the target, without those that are none of the source's columns."""
    for key in keys:
        with suppress(ValueOutOfRangeError):
            yield tuple(_text(key[one.at], one) for one in columns)


class WantedKeys(NamedTuple):
    """Keys that the target names, as ``KeyedRows`` has them, and the columns by which the source is asked."""

    columns: tuple[KeyColumn, ...]
    keys: DataFrame


def source_task(  # noqa: PLR0913  (what a task is of, and as of when)
    config: Config,
    plan: DecodePlan,
    stored: StoredTable,
    topic: str,
    *,
    wanted: WantedKeys | None,
    ranges: Callable[[], tuple[KeyRange, ...]],
    since: int | None = None,
    as_of: int | None = None,
) -> tuple[RangeTask, RecordReader]:
    """The task over the source's rows of some keys, or of all ``ranges``, and its reader, which tries again.

    ``plan`` has a ``SourceDecoder``; ``since`` and ``as_of``: as of ``SourceRows``.
    """
    settings, seconds = config.source.database, config.retry.for_
    assert settings is not None  # noqa: S101  (the database was open)
    assert isinstance(plan.decoder, SourceDecoder)  # noqa: S101  (``source_plan`` makes it)
    read = (KeyRange(),) if wanted is not None else ranges()
    url = settings.url.get_secret_value()
    rows = SourceRows(
        url,
        plan.decoder.stored,
        stored.key,
        stored.key_types,
        read,
        since=since,
        constants=stored.constants,
        as_of=as_of,
        rows_per_second=settings.range_rows_per_second,
        replica=settings.replica,
    )
    reader: RecordReader = PatientRows(rows, settings.connections, seconds)
    if wanted is not None:
        reader = KeyedRows(rows, wanted.columns, settings.connections, seconds, wanted.keys)
    offsets = [OffsetRange(topic, number, 0, settings.chunk_rows) for number in range(len(read))]
    return RangeTask.of(offsets, "", plan), reader


@contextmanager
def open_target_reader(
    context: WorkerContext, shape: TableShape, *, missing: ConfigError
) -> Iterator[TableReader]:
    """What reads the table of ``shape`` at the target, in a session of its own.

    Raises:
        ConfigError: ``missing``, where the target has no such table, or gives no rows back.
        TransientTargetError: it does not answer.
    """
    target, session = context.target, context.spark.newSession()
    found = (
        target.reader(shape, pipeline=context.config.pipeline, session=session)
        if isinstance(target, ReadableTarget)
        else None
    )
    if found is None:
        raise missing
    try:
        found.session.conf.set("spark.sql.session.timeZone", "UTC")  # of the texts of keys
        yield found
    finally:
        found.close()


def no_resync(table: TableId) -> ConfigError:
    """What to say of a table whose rows at the target cannot be asked for."""
    return ConfigError(f"the table cannot have a resync: {_NOT_READABLE}", table=str(table))


def compared_columns(reader: TableReader, columns: Sequence[ShapeColumn]) -> tuple[ComparedColumn, ...]:
    """Columns of a table at the target as they are compared with the source's."""
    from tidesink.sinks.spark.digests import ComparedColumn

    held = (one.dataType.simpleString() for one in reader.rows(columns).schema.fields)
    return tuple(
        # In a narrower type than its own a value could be cut, and seem equal.
        ComparedColumn(one.name, wider_ddl(kind, one.spark) or kind, one.key, reader.spelling(one.name))
        for one, kind in zip(columns, held, strict=True)
    )


def key_types(columns: Sequence[ComparedColumn]) -> dict[str, str]:
    """The types of those that are the key's, by name."""
    return {one.name: one.type for one in columns if one.key}


@contextmanager
def _target_of(context: WorkerContext, plan: DecodePlan) -> Iterator[TableReader]:
    """The reader of a plan's table at the target, for a resync. Raises: as ``open_target_reader``."""
    table = plan.shape.source
    with (
        raised_task_errors(table=str(table)),
        open_target_reader(context, plan.shape, missing=no_resync(table)) as reader,
    ):
        yield reader


def columns_of_keys(
    context: WorkerContext, plan: DecodePlan, stored: StoredTable
) -> tuple[KeyColumn, ...] | None:
    """As ``key_columns``, by the types that the target has; ``plan`` has a ``SourceDecoder``.

    Raises: as ``open_target_reader``.
    """
    with _target_of(context, plan) as reader:
        return key_columns(plan, stored.key, key_types(compared_columns(reader, plan.shape.key_columns)))


def check_limits(context: WorkerContext, plan: DecodePlan, bounds: Sequence[Bound]) -> None:
    """Refuse bounds that the target may compare otherwise.

    Raises: as ``limits_of``, and ``open_target_reader``.
    """
    with _target_of(context, plan) as reader:
        limits_of(plan, bounds, key_types(compared_columns(reader, plan.shape.key_columns)))


def parts_of(
    context: WorkerContext, plan: DecodePlan, stored: StoredTable, *, rows: int, where: Sequence[Bound] = ()
) -> int:
    """In how many parts the target's keys are looked up, by how many there are; ``rows``: of a batch of rows.

    One where the source cannot be asked for a key: then a part reads all its rows. ``plan`` has a
    ``SourceDecoder``.

    Raises: as ``open_target_reader``.
    """
    with _target_of(context, plan) as reader:
        from tidesink.sinks.spark.digests import within

        key = plan.shape.key_columns
        columns = compared_columns(reader, key)
        if key_columns(plan, stored.key, key_types(columns)) is None:
            return 1
        limits = limits_of(plan, where, key_types(columns))
        count = within(reader.rows(key), columns, limits).count()
    return max(1, min(MOST_PARTS, -(-count // (rows * _KEYS_FOR_A_ROW))))
