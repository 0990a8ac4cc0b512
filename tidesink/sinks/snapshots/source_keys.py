"""Reads rows of the source database in Spark tasks, by ranges of the key or by keys of the target table.

``tidesink diff`` and resyncs read keys from the target, and look up their rows in the source. The values of a
target key are given as texts (``spark.digests``). Each one is converted back to the source's value, in
canal-json's text form, and becomes a parameter of the query. For some columns this conversion is not exact,
for example if the records in Kafka have truncated times. Then ``key_columns`` returns None, and all rows of
the source must be read.

A query may return more rows than requested, because the database's collation treats several keys as equal.
These are ordinary rows with other keys. Two queries may return the same row; ``digests.once`` removes the
duplicates.
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
from tidesink.sinks.batch.record_frames import over_ranges
from tidesink.sinks.batch.source import RecordReader
from tidesink.sinks.batch.source_rows import (
    KeyRange,
    KeyShare,
    ReadColumn,
    RowInput,
    SourceDecoder,
    SourceRows,
)
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.runtime.context import RetryPolicy, WorkerContext
from tidesink.sinks.spark.errors import Reporting, raised_task_errors
from tidesink.sinks.targets.base import ReadableTarget
from tidesink.source_database.key_bounds import from_lists
from tidesink.typemap.table import row_of
from tidesink.typemap.target_schema import wider_ddl
from tidesink.typemap.values import unchanged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.batch.tasks import Work
    from tidesink.sinks.decode.plans import DecodePlan
    from tidesink.sinks.spark.digests import ComparedColumn, Limit
    from tidesink.sinks.targets.base import TableReader
    from tidesink.source_database.base import KeyTexts, StoredTable
    from tidesink.source_database.key_bounds import Bound
    from tidesink.typemap.target_schema import TargetColumn, TargetSchema

# Number of keys per query, low enough that a database looks up each key in its index.
KEYS_A_QUERY: Final = 500
_UINT64: Final = 1 << 64
# A part of a resync's second phase has this many times more keys than a part of the first phase has rows,
# because a key is much smaller than a row.
_KEYS_FOR_A_ROW: Final = 5
# Maximum number of parts in the second phase. Each part scans all keys of the target.
MOST_PARTS: Final = 100
_NOT_READABLE: Final = (
    "The target cannot return its stored rows, so rows that exist only in the target cannot be found."
)


@dataclass(frozen=True)
class PatientRows:
    """Reads rows of the source database by key ranges, and retries a failed range for up to ``seconds``.

    ``connections``: maximum number of ranges that are read in parallel.
    """

    rows: SourceRows
    connections: int
    seconds: float

    def __call__(self, wanted: RowInput) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range after all of them were read, so that a retry yields no row twice."""
        yield from RetryPolicy(self.seconds).call(lambda: [*self.rows(wanted)])

    def over(self, session: SparkSession, ranges: Sequence[RowInput], work: Work, ddl: str) -> DataFrame:
        """Return a frame with the results of ``work`` on the ranges' rows. ``ddl``: the frame's schema."""
        return over_ranges(session, ranges, self, work, ddl, most_tasks=self.connections)


# Converts the text of a value in the target to canal-json's text of the value in the source.
WayBack = Callable[[str, ColumnType], str]


class KeyColumn(NamedTuple):
    """A column of the target's key, and the source's column by which it is looked up.

    ``at``: index of the column in the target's key. ``name``, ``stored``: name and type of the column in the
    source. ``back``: converts a value of the target's column to a value of the source's column.
    """

    at: int
    name: str
    stored: ColumnType
    back: WayBack


def key_columns(
    plan: DecodePlan, key: Sequence[str], types: Mapping[str, str]
) -> tuple[KeyColumn, ...] | None:
    """Return the columns by which rows of the source can be looked up for keys of the target.

    None if the source cannot be queried by such keys, because values of the key cannot be converted back
    exactly, or the key lacks columns of the source's key, whose index the query needs.

    Args:
        plan: The decode plan of the source's rows, from ``source_plan``.
        key: Names of the columns of the source's key, which have an index.
        types: The Spark types in which the target's key columns are compared, by name.
    """
    decoder, shape = plan.decoder, plan.shape
    assert isinstance(decoder, SourceDecoder)  # noqa: S101  (``source_plan`` makes it)
    read = {source_column.recorded.name: source_column for source_column in decoder.columns}
    columns = []
    for index, column in enumerate(shape.key_columns):
        if shape.shard is not None and column.name == shape.shard.column:
            continue
        source_column = read.get((plan.rows.sources or {}).get(column.name, column.name))
        back = (
            None
            if source_column is None
            else _way_back(source_column, decoder, types[column.name].partition("(")[0])
        )
        if source_column is None or back is None:
            return None
        columns.append(KeyColumn(index, source_column.stored.name, source_column.stored.type, back))
    return tuple(columns) if {*key} <= {key_column.name for key_column in columns} else None


# Pairs of a source type and a target type whose values sort alike, so that a key range has the same rows on
# both sides.
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
    """Convert the bounds of ``--where``, which name columns of the source, to bounds of the target's columns.

    Args:
        plan: The decode plan of the source's rows, from ``source_plan``.
        bounds: Bounds of columns of the source's key.
        types: The Spark types in which the target's key columns are compared, by name.

    Raises:
        ConfigError: a column is not in the target's key, or its values sort differently in target and source.
    """
    from tidesink.sinks.spark.digests import Limit

    decoder, shape = plan.decoder, plan.shape
    assert isinstance(decoder, SourceDecoder)  # noqa: S101  (``source_plan`` makes it)
    read = {source_column.recorded.name: source_column for source_column in decoder.columns}
    columns = {
        source_column.stored.name: (column.name, source_column)
        for column in shape.key_columns
        if (source_column := read.get((plan.rows.sources or {}).get(column.name, column.name))) is not None
    }
    limits = []
    for bound in bounds:
        name, source_column = columns.get(bound.column, ("", None))
        kind = types.get(name, "")
        exact = (
            source_column is not None
            and _way_back(source_column, decoder, kind.partition("(")[0]) is not None
        )
        if source_column is None or not (exact and is_ranged(source_column.stored.type, kind, bound.text)):
            raise ConfigError(
                "--where needs a key column that the target stores in a type that sorts like the source's. "
                f"In the target, {bound.column} is {kind or 'not in the key'}. Leave --where out.",
                table=str(shape.source),
            )
        limits.append(Limit(name, bound))
    return tuple(limits)


def limits_at_target(plan: DecodePlan, where: Iterable[tuple[str, str, str]]) -> tuple[Limit, ...] | None:
    """Convert the stored bounds of a limited resync to bounds of the target's key columns.

    Unlike ``limits_of``, does not need the table's definition in the source. Returns None if the target's key
    no longer has the columns of the bounds.
    """
    from tidesink.sinks.spark.digests import Limit

    sources = plan.rows.sources or {}
    names = {sources.get(column.name, column.name): column.name for column in plan.shape.key_columns}
    limits = []
    for bound in from_lists(where):
        alike = [name for name in names if _spelt(name) == _spelt(bound.column)]
        spelled = [bound.column] if bound.column in names else alike
        if len(spelled) != 1:
            return None
        limits.append(Limit(names[spelled[0]], bound))
    return tuple(limits)


def _spelt(name: str) -> str:
    """Return a normalized column name: the same for a column's name in the database and its name in Avro.

    Avro names allow fewer characters, so the two names can differ.
    """
    return fold_name(sanitize_name(name))


def is_ranged(source: ColumnType, kind: str, text: str) -> bool:
    """Return True if Spark and the source database agree on which values are above the bound ``text``.

    ``source``: the column's type in the source. ``kind``: the Spark type in which its values are compared.
    """
    return (_sort(source), kind.partition("(")[0]) in _RANGED and _fits(text, kind)


def _fits(text: str, kind: str) -> bool:
    """Return False if Spark cannot compare the number in ``text`` exactly with the decimal type ``kind``."""
    if not kind.startswith("decimal("):
        return True
    scale = int(kind.rstrip(")").partition(",")[2])
    return len(text.lstrip("-").partition(".")[0]) + scale <= _MOST_PRECISION


def _way_back(column: ReadColumn, decoder: SourceDecoder, spark: str) -> WayBack | None:
    stored = column.stored.type
    convert = decoder.inner.recorded_value(column.stored, column.recorded.type)
    if convert is None and row_of(stored).reader in ("enum", "set"):
        return _whole if spark == "string" else None  # records have only the member's number
    sort = _sort(stored)
    # Otherwise the records have less information than the database: truncated times, arrays as JSON.
    if convert not in (None, unchanged) and sort not in _CONVERTED:
        return None
    return _WAYS_BACK.get((sort, spark))


def _sort(stored: ColumnType) -> str:
    """Return the kind of a source column's type, which is a key of ``_WAYS_BACK`` and ``_RANGED``.

    It is the name of the function that reads values of the type. Types that share this function, but whose
    values are converted back in different ways, have kinds of their own.
    """
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
    return str(sum(1 << index for index, member in enumerate(stored.members or ()) if member in chosen))


_PLAIN_TEXTS: Final = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "uuid"})
# Kinds whose values have another text in records than in the database, without a loss.
_CONVERTED: Final = frozenset({"integer", "unsigned64", "bit", "one bit", "decimal", "numeric"})
_WHOLE: Final = ("integer", "unsigned64", "bit", "one bit")
_NUMBERS: Final = ("int", "bigint", "decimal", "string")
# All exact conversions, by the kind of the source type and the target's Spark type. If a pair is missing, the
# source cannot be queried by key, and all its rows are read.
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
    """Reads the rows of the source that have given keys of the target.

    Attributes:
        rows: Reads the source.
        columns: The columns by which the source is queried.
        connections: Maximum number of queries in parallel.
        seconds: Seconds for which a failed query is retried.
        wanted: A frame with the keys. Its column ``key`` is an array of the values as texts, with times in
            UTC.
    """

    rows: SourceRows
    columns: tuple[KeyColumn, ...]
    connections: int
    seconds: float
    wanted: DataFrame = field(repr=False)

    def over(self, session: SparkSession, ranges: Sequence[KeyShare], work: Work, ddl: str) -> DataFrame:  # noqa: ARG002
        """Return a frame with the results of ``work`` on the keys' rows. ``ddl``: the frame's schema."""
        task = KeyedTask(self.rows, self.columns, self.seconds, ranges[0], work)
        return self.wanted.select("key").repartition(self.connections).mapInArrow(Reporting(task), ddl)


@dataclass(frozen=True)
class KeyedTask:
    """A Spark task that reads the source's rows for its share of the target's keys.

    One query reads the rows of up to ``KEYS_A_QUERY`` keys. Raises ValueOutOfRangeError if the source's
    column cannot contain a value of a key.
    """

    rows: SourceRows
    columns: tuple[KeyColumn, ...]
    seconds: float
    wanted: KeyShare
    work: Work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results of ``work`` on the rows of the keys in ``batches``."""
        for batch in batches:
            for start in range(0, batch.num_rows, KEYS_A_QUERY):
                keys = batch.column(0).slice(start, KEYS_A_QUERY).to_pylist()
                yield from self.work(self.wanted, self._read(keys))

    def _read(self, keys: Sequence[Sequence[str | None]]) -> Iterator[pa.RecordBatch]:
        names = [column.name for column in self.columns]
        texts = [tuple(_text(key[column.at], column) for column in self.columns) for key in keys]
        read = RetryPolicy(self.seconds).call(lambda: [*self.rows.of_keys(self.wanted, names, texts)])
        yield from read


def _text(text: str | None, column: KeyColumn) -> str:
    """Convert the text of a value in the target to the source's value, in canal-json's text form.

    Raises:
        ValueOutOfRangeError: the source's column cannot hold the value, or the value is NULL. (The target
            stores NULL for a date that does not exist.)
    """
    try:
        if text is not None:
            return column.back(text, column.stored)
    except (ValueError, ArithmeticError):
        pass
    raise ValueOutOfRangeError(
        "A key of the target cannot be looked up in the source, because the source's columns cannot hold a "
        "value of the key."
    )


def askable(keys: Iterable[KeyTexts], columns: Sequence[KeyColumn]) -> Iterator[KeyTexts]:
    """Convert keys of the target to keys of the source, in canal-json's text form.

    Skips keys that the source's columns cannot hold.
    """
    for key in keys:
        with suppress(ValueOutOfRangeError):
            yield tuple(_text(key[column.at], column) for column in columns)


class WantedKeys(NamedTuple):
    """Keys of the target to look up in the source.

    ``columns``: the columns by which the source is queried. ``keys``: a frame with the keys. Its column
    ``key`` is an array of the values as texts.
    """

    columns: tuple[KeyColumn, ...]
    keys: DataFrame


def source_task(
    config: Config,
    plan: DecodePlan,
    stored: StoredTable,
    topic: str,
    wanted: WantedKeys | Callable[[], tuple[KeyRange, ...]],
    *,
    since: int | None = None,
    as_of: int | None = None,
) -> tuple[RangeTask, RecordReader]:
    """Return a Spark task that decodes rows of the source database, and the reader of these rows.

    The reader retries failed queries.

    Args:
        config: The pipeline's config.
        plan: The decode plan of the source's rows, from ``source_plan``.
        stored: The table's definition in the source.
        topic: Name of the table's topic.
        wanted: The keys whose rows are read, or a function that returns the key ranges to read.
        since: Lowest position (commit_ts) that the rows may have, or None if rows need no position.
        as_of: The commit_ts as of which rows are read, or None for the current rows.
    """
    settings, seconds = config.source.database, config.retry.for_
    assert settings is not None  # noqa: S101  (the database was open)
    assert isinstance(plan.decoder, SourceDecoder)  # noqa: S101  (``source_plan`` makes it)
    url = settings.url.get_secret_value()
    rows = SourceRows(
        url,
        plan.decoder.stored,
        stored.key,
        stored.key_types,
        since=since,
        constants=stored.constants,
        as_of=as_of,
        rows_per_second=settings.range_rows_per_second,
        replica=settings.replica,
    )
    if isinstance(wanted, WantedKeys):
        keyed = KeyedRows(rows, wanted.columns, settings.connections, seconds, wanted.keys)
        return RangeTask((KeyShare(topic),), plan), keyed
    inputs = (RowInput(topic, number, keys, settings.chunk_rows) for number, keys in enumerate(wanted()))
    return RangeTask(tuple(inputs), plan), PatientRows(rows, settings.connections, seconds)


@contextmanager
def open_target_reader(
    context: WorkerContext, shape: TargetSchema, *, missing: ConfigError
) -> Iterator[TableReader]:
    """Open a reader of the rows that a table has in the target, in a Spark session of its own.

    ``shape``: the table's schema in the target. ``missing``: the error to raise if the target has no such
    table, or cannot return its rows.

    Raises:
        ConfigError: the target has no such table, or cannot return its rows (``missing`` is raised).
        TransientTargetError: the target does not answer.
    """
    target, session = context.target, context.spark.new_session()
    reader = (
        target.reader(shape, pipeline=context.config.pipeline, session=session)
        if isinstance(target, ReadableTarget)
        else None
    )
    if reader is None:
        raise missing
    try:
        reader.session.conf.set("spark.sql.session.timeZone", "UTC")  # digests convert key values to text
        yield reader
    finally:
        reader.close()


def no_resync(table: TableId) -> ConfigError:
    """Return the error for a resync of a table whose rows cannot be read from the target."""
    return ConfigError(f"A resync of the table is not possible. {_NOT_READABLE}", table=str(table))


def compared_columns(reader: TableReader, columns: Sequence[TargetColumn]) -> tuple[ComparedColumn, ...]:
    """Return columns of the target with the Spark types in which values of source and target are compared."""
    from tidesink.sinks.spark.digests import ComparedColumn

    held = (struct_field.dataType.simpleString() for struct_field in reader.rows(columns).schema.fields)
    return tuple(
        # A type that is narrower than the column's could truncate a value, so that it seems equal.
        ComparedColumn(
            column.name, wider_ddl(kind, column.spark) or kind, column.key, reader.spelling(column.name)
        )
        for column, kind in zip(columns, held, strict=True)
    )


def key_types(columns: Sequence[ComparedColumn]) -> dict[str, str]:
    """Return the Spark types in which the key columns are compared, by name."""
    return {column.name: column.type for column in columns if column.key}


@contextmanager
def _target_of(context: WorkerContext, plan: DecodePlan) -> Iterator[TableReader]:
    """Open a reader of the rows in the target, of the table that ``plan`` decodes, for a resync.

    Raises:
        ConfigError: the target has no such table, or cannot return its rows.
        TransientTargetError: the target does not answer.
    """
    table = plan.shape.source
    with (
        raised_task_errors(table=str(table)),
        open_target_reader(context, plan.shape, missing=no_resync(table)) as reader,
    ):
        yield reader


def columns_of_keys(
    context: WorkerContext, plan: DecodePlan, stored: StoredTable
) -> tuple[KeyColumn, ...] | None:
    """Look up the types of the target's key columns, and return the result of ``key_columns`` for them.

    These are the columns by which rows of the source can be looked up for keys of the target. ``plan``: the
    decode plan of the source's rows, from ``source_plan``. ``stored``: the table's definition in the source.

    Raises:
        ConfigError: the target has no such table, or cannot return its rows.
        TransientTargetError: the target does not answer.
    """
    with _target_of(context, plan) as reader:
        return key_columns(plan, stored.key, key_types(compared_columns(reader, plan.shape.key_columns)))


def check_limits(context: WorkerContext, plan: DecodePlan, bounds: Sequence[Bound]) -> None:
    """Check that the bounds of ``--where`` select the same rows in the target as in the source.

    Raises:
        ConfigError: a bound selects other rows in the target, or the target has no such table or cannot
            return its rows.
        TransientTargetError: the target does not answer.
    """
    with _target_of(context, plan) as reader:
        limits_of(plan, bounds, key_types(compared_columns(reader, plan.shape.key_columns)))


def parts_of(
    context: WorkerContext, plan: DecodePlan, stored: StoredTable, *, rows: int, where: Sequence[Bound] = ()
) -> int:
    """Return the number of parts of a resync's second phase, which looks up the target's keys in the source.

    It is 1 if the source cannot be queried by keys of the target, because each part would then read all rows
    of the source.

    Args:
        context: The worker's context.
        plan: The decode plan of the source's rows, from ``source_plan``.
        stored: The table's definition in the source.
        rows: Number of rows in a part of the first phase.
        where: Bounds of the source's key that limit the resync.

    Raises:
        ConfigError: a bound selects other rows in the target, or the target has no such table or cannot
            return its rows.
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
