"""Rows of the source, read in tasks that retry: whole ranges, or the rows of the target's keys.

A key arrives as the texts of the target's values (``spark.digests``). Each key value is converted to
canal-json's text of the stored value, then to a query parameter. If the conversion back is not exact (a
truncated time, bytes as text), ``key_columns`` returns None. The database may find more rows than requested,
because of its collations: they are ordinary rows of other keys. Queries for several keys may find the same
row: its digest is counted once (``digests.once``).
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

# Keys per query: few enough for a database to look up each by its index.
KEYS_A_QUERY: Final = 500
_UINT64: Final = 1 << 64
# Keys per part, for each row of a batch of rows: a key is much smaller than a row.
_KEYS_FOR_A_ROW: Final = 5
# Each part scans all keys of the target, which limits the number of parts.
MOST_PARTS: Final = 100
_NOT_READABLE: Final = "Its target cannot return its rows, so rows that the source lacks cannot be found."


@dataclass(frozen=True)
class PatientRows:
    """Reads ranges of the source, a limited number in parallel, and retries each for ``seconds``."""

    rows: SourceRows
    connections: int
    seconds: float

    def __call__(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        """Return the rows of a range, complete."""
        yield from RetryPolicy(self.seconds).call(lambda: [*self.rows(wanted)])

    def over(self, session: SparkSession, ranges: Sequence[FetchRange], work: Work, ddl: str) -> DataFrame:
        """Return the result of ``work`` for the rows of ``ranges``."""
        return over_ranges(session, ranges, self, work, ddl, most_tasks=self.connections)


# Converts a text of the target's value to canal-json's text.
WayBack = Callable[[str, ColumnType], str]


class KeyColumn(NamedTuple):
    """A column of the target's key: its index in the key, the source's column, and the conversion back."""

    at: int
    name: str
    stored: ColumnType
    back: WayBack


def key_columns(
    plan: DecodePlan, key: Sequence[str], types: Mapping[str, str]
) -> tuple[KeyColumn, ...] | None:
    """Return the columns by which the source finds a key of the target; None if it cannot be queried so.

    ``plan``: has a ``SourceDecoder``. ``key``: columns of the source's own key, which has an index.
    ``types``: Spark's types in which the target's key columns are compared, by name.
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


# Pairs of a stored type and a target type that compare alike, so that a range of the key is the same in both.
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
    """Return bounds of the source's key as bounds of the target's key.

    ``plan`` and ``types``: see ``key_columns``.

    Raises:
        ConfigError: the target does not compare the values as the source does.
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
                "--where needs a column that the target's key stores as the source does, so that both sides "
                f"sort it alike. {bound.column} is {kind or 'not in the key'} there. Leave --where out.",
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
    """Return the spelling that a database column and its name in records share: Avro allows fewer letters."""
    return fold_name(sanitize_name(name))


def is_ranged(source: ColumnType, kind: str, text: str) -> bool:
    """Return True if Spark compares values of a target type with a bound as the source does."""
    return (_sort(source), kind.partition("(")[0]) in _RANGED and _fits(text, kind)


def _fits(text: str, kind: str) -> bool:
    """Return True if Spark compares a number exactly with values of a decimal type."""
    if not kind.startswith("decimal("):
        return True
    scale = int(kind.rstrip(")").partition(",")[2])
    return len(text.lstrip("-").partition(".")[0]) + scale <= _MOST_PRECISION


def _way_back(column: ReadColumn, decoder: SourceDecoder, spark: str) -> WayBack | None:
    stored = column.stored.type
    convert = decoder.inner.recorded_value(column.stored, column.recorded.type)
    if convert is None and row_of(stored).reader in ("enum", "set"):
        return _whole if spark == "string" else None  # members are unknown: records have only the number
    sort = _sort(stored)
    # Other records have less information than the database: truncated times, bytes as text, arrays as JSON.
    if convert not in (None, unchanged) and sort not in _CONVERTED:
        return None
    return _WAYS_BACK.get((sort, spark))


def _sort(stored: ColumnType) -> str:
    """Return the kind of a stored value; its own kind where types of one reader convert back differently."""
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
# Kinds whose values records spell differently from the database, without a loss.
_CONVERTED: Final = frozenset({"integer", "unsigned64", "bit", "one bit", "decimal", "numeric"})
_WHOLE: Final = ("integer", "unsigned64", "bit", "one bit")
_NUMBERS: Final = ("int", "bigint", "decimal", "string")
# All conversions that are exact. If a kind and a target type have no conversion, all rows are read.
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
    """Reads the rows of keys; a ``RecordReader`` that ignores the requested ranges.

    ``wanted``: a frame with the column ``key``, the texts of the target's values; times are in UTC.
    """

    rows: SourceRows
    columns: tuple[KeyColumn, ...]
    connections: int
    seconds: float
    wanted: DataFrame = field(repr=False)

    def over(self, session: SparkSession, ranges: Sequence[FetchRange], work: Work, ddl: str) -> DataFrame:  # noqa: ARG002
        """Return the result of ``work`` for the rows."""
        task = KeyedTask(self.rows, self.columns, self.seconds, ranges[0], work)
        return self.wanted.select("key").repartition(self.connections).mapInArrow(Reporting(task), ddl)


@dataclass(frozen=True)
class KeyedTask:
    """The code of a Spark task: one query for a number of keys.

    It raises ValueOutOfRangeError if the source cannot be queried by a key.
    """

    rows: SourceRows
    columns: tuple[KeyColumn, ...]
    seconds: float
    wanted: FetchRange
    work: Work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the result of the work for the rows of the keys."""
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
    """Return canal-json's text of a value of the target.

    Raises:
        ValueOutOfRangeError: the column cannot hold the value, or it is the NULL of an impossible date.
    """
    try:
        if text is not None:
            return column.back(text, column.stored)
    except (ValueError, ArithmeticError):
        pass
    raise ValueOutOfRangeError("The source cannot be queried by a key of the target.")


def askable(keys: Iterable[KeyTexts], columns: Sequence[KeyColumn]) -> Iterator[KeyTexts]:
    """Yield canal-json's texts of keys of the target, without keys that the source's columns cannot hold."""
    for key in keys:
        with suppress(ValueOutOfRangeError):
            yield tuple(_text(key[one.at], one) for one in columns)


class WantedKeys(NamedTuple):
    """Keys of the target, in the form of ``KeyedRows``, and the columns by which the source is queried."""

    columns: tuple[KeyColumn, ...]
    keys: DataFrame


def source_task(  # noqa: PLR0913  (the task's input, and its point in time)
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
    """Return the task over the source's rows, of some keys or of all ``ranges``, and a reader that retries.

    ``plan``: has a ``SourceDecoder``. ``since``, ``as_of``: see ``SourceRows``.
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
    """Open a reader of the table of ``shape`` at the target, in a Spark session of its own.

    Raises:
        ConfigError: ``missing``, if the target has no such table, or cannot return its rows.
        TransientTargetError: the target does not answer.
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
        found.session.conf.set("spark.sql.session.timeZone", "UTC")  # digests convert key values to text
        yield found
    finally:
        found.close()


def no_resync(table: TableId) -> ConfigError:
    """Return the error for a table whose rows at the target cannot be read."""
    return ConfigError(f"The table cannot have a resync. {_NOT_READABLE}", table=str(table))


def compared_columns(reader: TableReader, columns: Sequence[ShapeColumn]) -> tuple[ComparedColumn, ...]:
    """Return columns of a table at the target, with the types in which they are compared to the source."""
    from tidesink.sinks.spark.digests import ComparedColumn

    held = (one.dataType.simpleString() for one in reader.rows(columns).schema.fields)
    return tuple(
        # A narrower type than the column's own could truncate a value, which would then seem equal.
        ComparedColumn(one.name, wider_ddl(kind, one.spark) or kind, one.key, reader.spelling(one.name))
        for one, kind in zip(columns, held, strict=True)
    )


def key_types(columns: Sequence[ComparedColumn]) -> dict[str, str]:
    """Return the types of the key columns, by name."""
    return {one.name: one.type for one in columns if one.key}


@contextmanager
def _target_of(context: WorkerContext, plan: DecodePlan) -> Iterator[TableReader]:
    """Open the reader of a plan's table at the target, for a resync."""
    table = plan.shape.source
    with (
        raised_task_errors(table=str(table)),
        open_target_reader(context, plan.shape, missing=no_resync(table)) as reader,
    ):
        yield reader


def columns_of_keys(
    context: WorkerContext, plan: DecodePlan, stored: StoredTable
) -> tuple[KeyColumn, ...] | None:
    """Return ``key_columns`` with the types that the target has. ``plan``: has a ``SourceDecoder``.

    Raises:
        ConfigError: the target has no such table, or cannot return its rows.
        TransientTargetError: the target does not answer.
    """
    with _target_of(context, plan) as reader:
        return key_columns(plan, stored.key, key_types(compared_columns(reader, plan.shape.key_columns)))


def check_limits(context: WorkerContext, plan: DecodePlan, bounds: Sequence[Bound]) -> None:
    """Refuse bounds that the target may compare differently.

    Raises:
        ConfigError: the target compares a bound differently, has no such table, or cannot return its rows.
        TransientTargetError: the target does not answer.
    """
    with _target_of(context, plan) as reader:
        limits_of(plan, bounds, key_types(compared_columns(reader, plan.shape.key_columns)))


def parts_of(
    context: WorkerContext, plan: DecodePlan, stored: StoredTable, *, rows: int, where: Sequence[Bound] = ()
) -> int:
    """Return the number of parts in which the target's keys are looked up; ``rows``: rows of a batch.

    It is 1 if the source cannot be queried by key, since a part then reads all its rows. ``plan``: has a
    ``SourceDecoder``.

    Raises:
        ConfigError: the target compares a bound differently, has no such table, or cannot return its rows.
        TransientTargetError: the target does not answer.
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
