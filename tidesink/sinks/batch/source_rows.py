"""Rows of the source database's table as the input of a batch: a task reads and decodes a range of the key.

The input of a task is a range or a set of keys (``RowInput``), or its share of the keys in a frame
(``KeyShare``). The rows become records with numbers (``numbered_records``): the number of the input in the
column ``partition``, and the number of the row in the column ``offset``. They are not a location in Kafka. A
change log stores both (``log_offset``).

The database returns the values as texts (``source_database.mysql``), in the form that canal-json has. They
are converted into a ``ChangeTable`` with the types and values that the table's Kafka records have. So all
later steps are the same as for Kafka records: projection, filter, packing, staging.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone, tzinfo
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.base import Codec
from tidesink.codecs.batch import (
    MARKS,
    NAMES_TYPE,
    SOURCE_TYPE,
    ChangeTable,
    DecodedBatch,
    Fault,
    RowTypes,
    ValueOptions,
    name_lists,
    op_array,
    op_code,
)
from tidesink.errors import ConfigError, DecodeError, SourceUnavailableError, ValueOutOfRangeError
from tidesink.events import Column, Op, TableId, TableSchema, Value
from tidesink.schema_registry.naming import sanitize_name
from tidesink.sinks.batch.record_frames import over_ranges
from tidesink.sinks.decode.plans import DecodePlan
from tidesink.sinks.decode.records import DecodedRecords, Input, TableDecoder
from tidesink.sinks.decode.target_rows import DroppedNow
from tidesink.sinks.laws.reduce import Reduction
from tidesink.source_database.base import (
    KeyTexts,
    SourceDialect,
    StoredTable,
    column_of,
    rows_between,
    table_of,
)
from tidesink.source_database.database import (
    OPTION,
    begin_at_position,
    begin_session,
    dialect_of,
    is_of_value,
    open_database,
    translated,
)
from tidesink.source_database.key_bounds import Bound, within
from tidesink.typemap.arrow import ColumnResult, from_python, from_text, from_value
from tidesink.typemap.table import TimePolicies, row_of
from tidesink.typemap.target_schema import is_row_keyed
from tidesink.typemap.values import Convert, text_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from sqlalchemy import ColumnElement, Connection, Engine

    from tidesink.events import ColumnType
    from tidesink.sinks.batch.tasks import Work

# The number of rows that are decoded at once. It is small, because texts need much more memory than rows.
_ROWS_A_PART: Final = 20_000
_UTC: Final = ZoneInfo("UTC")
_ROW: Final = "row"
_NO_ROW_KEY: Final = (
    "Rows of the table are identified by TiDB's row keys, but source.database does not have row keys for "
    "this table. The database is not TiDB, or the table is partitioned, or clustered by a primary key. If it "
    "is not TiDB, set source.database to the TiDB cluster of the changefeed."
)
# Returns the SQL condition for the rows to read, in the database's dialect.
Condition = Callable[["SourceRows", SourceDialect], "ColumnElement[bool]"]


def log_offset(batch: int) -> int:
    """Returns the offset that the first row of each range has in a change log (``mode: append``).

    ``batch``: the number of the batch. The offset is negative, so every change of a row from Kafka comes
    after the row. Rows of later batches come after rows of earlier batches. A range has room for 2^32 rows.
    """
    return (batch << 32) - 2**63


@dataclass(frozen=True)
class KeyRange:
    """Rows whose keys are greater than ``after``, and less than or equal to ``up_to``.

    ``after``, ``up_to``: texts of the key columns, or None for no limit. ``where``: additional bounds of key
    columns, as given by a person. ``rows``: the number of rows when the range was chosen, or None if they
    were not counted, as in the last range of a table.
    """

    after: KeyTexts | None = None
    up_to: KeyTexts | None = None
    where: tuple[Bound, ...] = ()
    rows: int | None = None


@dataclass(frozen=True)
class KeySet:
    """Rows with certain keys.

    ``columns``: the key columns. ``keys``: the values of these columns as canal-json's texts. ``up_to``: the
    last of the keys, for the table's progress, or None if no more keys are to be read after these.
    """

    columns: tuple[str, ...]
    keys: tuple[KeyTexts, ...]
    up_to: KeyTexts | None = None


@dataclass(frozen=True)
class RowInput:
    """Rows of the source database that one task reads.

    Attributes:
        topic: The table's topic, which the records have in their column ``topic``.
        number: The number of the input in its batch.
        keys: The keys of the rows.
        records: The number of rows that is expected at most.
        first: The number of the first row.
    """

    topic: str
    number: int
    keys: KeyRange | KeySet
    records: int
    first: int = 0
    place: ClassVar[None] = None

    @property
    def numbering(self) -> tuple[str, int]:
        """The columns ``topic`` and ``partition`` of the records."""
        return self.topic, self.number

    @property
    def label(self) -> str:
        """The input as errors name it."""
        if isinstance(self.keys, KeySet):
            return "the requested keys"
        return f"range {self.number + 1} of the table's key"


@dataclass(frozen=True)
class KeyShare:
    """Keys in a frame of Spark, of which each task gets its share.

    Attributes:
        topic: The table's topic, which the records have in their column ``topic``.
        number: The number of the share.
        records: 1, because the number of keys is unknown.
    """

    topic: str
    number: int = 0
    records: ClassVar[int] = 1
    place: ClassVar[None] = None

    @property
    def numbering(self) -> tuple[str, int]:
        """The columns ``topic`` and ``partition`` of the records."""
        return self.topic, self.number

    @property
    def label(self) -> str:
        """The input as errors name it."""
        return f"share {self.number + 1} of the keys"


def key_ranges(
    connection: Connection,
    table: TableId,
    stored: StoredTable,
    *,
    after: KeyTexts | None,
    rows: int,
    most: int,
    where: tuple[Bound, ...] = (),
) -> tuple[KeyRange, ...]:
    """Returns the next ranges of a table. The last range of the table has no end.

    The query reads the key's index from ``after`` on, so ranges have the same number of rows however the keys
    are distributed.

    Args:
        connection: A session of the database.
        table: The table.
        stored: The table's columns and key in the database.
        after: The key after which the first range begins, or None for the beginning of the table.
        rows: The number of rows in a range.
        most: The maximum number of ranges.
        where: Additional bounds of key columns, as given by a person.
    """
    ranges: list[KeyRange] = []
    with translated(OPTION):
        while len(ranges) < most and (not ranges or ranges[-1].up_to is not None):
            start = ranges[-1].up_to if ranges else after
            part = KeyRange(start, where=where)
            end = _key_after(connection, table, stored, part, rows)
            ranges.append(replace(part, up_to=end, rows=None if end is None else rows))
    return tuple(ranges)


def _key_after(
    connection: Connection, table: TableId, stored: StoredTable, part: KeyRange, rows: int
) -> KeyTexts | None:
    """Returns the last key of the range of ``rows`` rows that begins after ``part.after``.

    Returns None if no rows follow the range.
    """
    import sqlalchemy as sa

    dialect, types = dialect_of(connection), stored.key_types
    # The texts get other names than the columns. Otherwise ORDER BY would sort by the texts.
    texts = (
        dialect.selected(name, types[name]).label(f"k{number}") for number, name in enumerate(stored.key)
    )
    query = sa.select(*texts).select_from(table_of(table))
    query = rows_between(query, stored.key, types, dialect, after=part.after)
    if part.where:
        query = query.where(within(part.where, types, dialect))
    query = query.order_by(*map(column_of, stored.key)).offset(rows - 1).limit(2)
    key_rows = connection.execute(query).all()
    # If no row follows this key, the range is the last one.
    if len(key_rows) < 2:
        return None
    return tuple(
        dialect.text_of(value, types[name]) for name, value in zip(stored.key, key_rows[0], strict=True)
    )


@dataclass(frozen=True)
class SourceRows:
    """Reads ranges of a table's key from the source database.

    The object is pickled and sent to Spark tasks, including the URL and its secrets.

    Attributes:
        url: The URL of the database.
        schema: The columns to read.
        key: The columns by which ranges are chosen.
        key_types: The types of these columns.
        at_once: The maximum number of ranges that are read at once, or None.
        since: The smallest position (commit_ts) at which a transaction may read. Rows get the position of
            the transaction that reads them as commit_ts. None: rows get no commit_ts.
        constants: Columns of TiDB's row key that have the same value in all rows, such as the table's id,
            with this value as text (``StoredTable``). The values are looked up again for each range.
        as_of: The commit_ts of the state to read, or None to read the current state.
        rows_per_second: The maximum number of rows per second when reading one range, or None.
        replica: True if the database may be a replica.
    """

    url: str = field(repr=False)
    schema: TableSchema
    key: tuple[str, ...]
    key_types: dict[str, ColumnType]
    at_once: int | None = None
    since: int | None = None
    constants: Mapping[str, str] = field(default_factory=dict)
    as_of: int | None = None
    rows_per_second: float | None = None
    replica: bool = False

    def __call__(self, wanted: RowInput) -> Iterator[pa.RecordBatch]:
        """Yields the rows of an input as records that have a row in place of key and value.

        Raises:
            SourceUnavailableError: The database does not answer, or reads a state older than ``since``.
            ConfigError: The database rejects the user, or cannot report the position at which it reads.
        """
        if isinstance(wanted.keys, KeySet):
            yield from self._of_set(wanted, wanted.keys.columns, wanted.keys.keys)
        else:
            yield from self._rows(wanted, wanted.keys, wanted.first)

    def _of_set(
        self, wanted: RowInput, columns: Sequence[str], keys: Sequence[KeyTexts]
    ) -> Iterator[pa.RecordBatch]:
        """Yields the source's rows that have one of the keys. Skips keys that the types of their columns
        cannot hold.
        """
        if not keys:
            return
        try:
            # If a key is invalid, the database raises an error before it returns a row. So split the keys.
            yield from [*self.of_keys(wanted, columns, keys, wanted.first)]
        except ValueOutOfRangeError:
            half = len(keys) // 2
            for part in (keys[:half], keys[half:]) if half else ():
                for batch in self._of_set(wanted, columns, part):
                    yield batch
                    wanted = replace(wanted, first=wanted.first + batch.num_rows)

    def of_keys(
        self, wanted: Input, columns: Sequence[str], keys: Sequence[KeyTexts], first: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows with these keys, as records.

        Because of its collations, the database may return additional rows. ``columns``: the columns of the
        keys. ``keys``: their values as canal-json's texts. ``first``: the number of the first row.

        Raises:
            SourceUnavailableError: The database does not answer.
            ConfigError: The database rejects the user, or cannot report the position at which it reads.
            ValueOutOfRangeError: A text is not a valid value of its column.
        """
        try:
            yield from self._rows(
                wanted,
                KeyRange(rows=len(keys)),
                first,
                lambda rows, dialect: rows._among(columns, keys, dialect),
            )
        except SourceUnavailableError as error:
            if is_of_value(error.__cause__):
                raise ValueOutOfRangeError("A key has a value that the column's type cannot hold.") from error
            raise

    def _among(
        self, columns: Sequence[str], keys: Sequence[KeyTexts], dialect: SourceDialect
    ) -> ColumnElement[bool]:
        """Returns an SQL condition that selects the rows with the given keys.

        It is written so that the database can use an index.
        """
        import sqlalchemy as sa

        types = {column.name: column.type for column in self.schema.columns}
        there = [
            dialect.compared(name, types[name])
            if name not in self.constants
            else sa.literal(dialect.parameter_of(self.constants[name], types[name]))
            for name in columns
        ]
        values = [
            [
                dialect.parameter_of(dialect.key_text(text, types[name]), types[name])
                for name, text in zip(columns, key, strict=True)
            ]
            for key in keys
        ]
        if len(there) == 1:
            return there[0].in_([value for (value,) in values])
        # Some versions of MySQL use no index for ``(a, b) IN ((1, 2))``.
        rows = (
            sa.and_(*(column == parameter for column, parameter in zip(there, value, strict=True)))
            for value in values
        )
        return sa.or_(*rows)

    def _rows(
        self, wanted: Input, part: KeyRange, first: int, condition: Condition | None = None
    ) -> Iterator[pa.RecordBatch]:
        start, engine = first, open_database(self.url)
        try:
            with translated(OPTION), engine.connect() as connection:
                dialect = dialect_of(connection)
                connection.execution_options(**dialect.RANGE_OPTIONS)
                begin_session(connection, as_of=self.as_of, replica=self.replica)
                now = replace(self, constants=self._constants(connection, dialect))
                query = now._query(part, dialect)
                if condition is not None:
                    query = query.where(condition(now, dialect))
                types = [column.type for column in self.schema.columns]
                # The position is read before the rows, so that the rows contain every change up to it.
                position = None if self.since is None else begin_at_position(connection, since=self.since)
                is_one_state = self.since is not None or self.as_of is not None
                if not (is_one_state or now.constants):
                    dialect.begin_snapshot(connection)
                    is_one_state = True
                began = time.monotonic()
                for columns in dialect.column_batches(connection, query, types, _ROWS_A_PART):
                    rows = self._structs(columns)
                    yield numbered_records(wanted, start, rows, commit_ts=position)
                    start += len(columns[0])
                    self._hold_back(start - first, began)
                count, rows_read = None, start - first
                # Counting the rows needs a second scan of the range. It is skipped if the expected number of
                # rows was read. A table without a key is read outside a transaction and not counted, so that
                # a TRUNCATE need not wait for the read. ``_confirm`` detects the TRUNCATE.
                if is_one_state and (part.rows is None or rows_read < part.rows):
                    count = dialect.counted_rows(connection, self.schema.table, query)
            self._check_count(rows_read, count)
            now._confirm(engine)
        finally:
            engine.dispose()

    def _hold_back(self, rows: int, began: float) -> None:
        """Sleeps until the limit ``rows_per_second`` allows the number of rows that were read.

        ``began``: when reading the range began, by ``time.monotonic``.
        """
        if self.rows_per_second is not None:
            time.sleep(max(0.0, began + rows / self.rows_per_second - time.monotonic()))

    def _check_count(self, rows: int, count: int | None) -> None:
        """Checks that the read returned as many rows as the database counted in the same transaction.

        Raises:
            SourceUnavailableError: The numbers differ.
        """
        if count is not None and count != rows:
            raise SourceUnavailableError(
                f"{OPTION} returned {rows} rows of a range that has {count} rows. Something between the "
                "worker and the database drops rows, such as a row limit in a proxy. Set source.database to "
                "the database's own address, not to the proxy's.",
                table=str(self.schema.table),
            )

    def _constants(self, connection: Connection, dialect: SourceDialect) -> Mapping[str, str]:
        """Returns the current values of the columns in ``constants``.

        They can change while ranges are read: a TRUNCATE changes the table's id.

        Raises:
            SourceUnavailableError: The table no longer has TiDB row ids.
        """
        if not any(column.name in self.constants for column in self.schema.columns):
            return self.constants
        constants = dialect.row_key_constants(connection, self.schema.table)
        if constants.keys() != self.constants.keys():
            raise SourceUnavailableError(
                "The table had TiDB row ids when reading began, and no longer has row ids. It was created "
                "again, or partitioned, in the meantime. A worker reads the rows again. If a command failed "
                "with this error, run it again.",
                table=str(self.schema.table),
            )
        return constants

    def _confirm(self, engine: Engine) -> None:
        """Checks that the table's id in TiDB is the same after the read.

        A TRUNCATE during the read changes it.

        Raises:
            SourceUnavailableError: The id changed.
        """
        if not any(column.name in self.constants for column in self.schema.columns):
            return
        with translated(OPTION), engine.connect() as connection:
            begin_session(connection, as_of=self.as_of, replica=self.replica)
            constants = self._constants(connection, dialect_of(connection))
        if constants != self.constants:
            raise SourceUnavailableError(
                "The table's id in TiDB changed while its rows were read, because the table was truncated. A "
                "worker reads the rows again. If a command failed with this error, run it again.",
                table=str(self.schema.table),
            )

    def over(self, session: SparkSession, ranges: Sequence[RowInput], work: Work, ddl: str) -> DataFrame:
        """Returns a lazy frame with the results of ``work`` on each input. An input's task reads its rows."""
        return over_ranges(session, ranges, self, work, ddl, most_tasks=self.at_once)

    def _query(self, part: KeyRange, dialect: SourceDialect) -> Any:
        import sqlalchemy as sa

        columns = (
            sa.literal(self.constants[column.name])
            if column.name in self.constants
            else dialect.selected(column.name, column.type)
            for column in self.schema.columns
        )
        query = sa.select(*columns).select_from(table_of(self.schema.table))
        query = rows_between(query, self.key, self.key_types, dialect, after=part.after, up_to=part.up_to)
        return query.where(within(part.where, self.key_types, dialect)) if part.where else query

    def _structs(self, columns: Sequence[pa.Array]) -> pa.StructArray:
        return pa.StructArray.from_arrays(columns, names=[column.name for column in self.schema.columns])


def numbered_records(
    wanted: Input, start: int, rows: pa.Array, *, commit_ts: int | None = None
) -> pa.RecordBatch:
    """Converts rows, for example of the source database, to records with a row in place of key and value.

    The records have consecutive offsets. Only a ``NumberedDecoder`` can decode them (``rows_of``).

    ``start``: the offset of the first record. ``commit_ts``: the commit_ts of all rows, or None.
    """
    count, (topic, number) = len(rows), wanted.numbering
    return pa.record_batch(
        {
            "topic": pa.repeat(pa.scalar(topic), count),
            "partition": pa.repeat(pa.scalar(number, pa.int32()), count),
            "offset": pa.array(np.arange(start, start + count)),
            "key": pa.nulls(count, pa.binary()),
            "value": pa.nulls(count, pa.binary()),
            "commit_ts": pa.repeat(pa.scalar(commit_ts, pa.int64()), count),
            _ROW: rows,
        }
    )


def rows_of(records: pa.RecordBatch) -> pa.Array:
    """Returns the source rows in records that ``numbered_records`` made."""
    return records.column(_ROW)


def changes_of(
    records: pa.RecordBatch,
    op: Op,
    *,
    key: pa.Array,
    row: pa.DataType,
    after: pa.Array | None = None,
    marks: Mapping[str, pa.Array] = MappingProxyType({}),
) -> dict[str, pa.Array]:
    """Returns the columns of a ``ChangeTable`` with one change per record of ``numbered_records``.

    ``op``: the operation of all changes. ``row``: the Arrow type of a whole row. ``after``: the new rows, or
    None for deletes. ``marks``: for each kind of marked value (such as impossible dates), the names of the
    columns with such a value in each row.
    """
    count = records.num_rows
    return {
        "record": pa.array(np.arange(count)),
        "index": pa.array(np.zeros(count, np.int32)),
        "op": op_array(np.full(count, op_code(op), np.int8)),
        "topic": records.column("topic").dictionary_encode(),
        "partition": records.column("partition"),
        "offset": records.column("offset"),
        "commit_ts": records.column("commit_ts"),
        "source": pa.nulls(count, SOURCE_TYPE),
        "key": key,
        "before": pa.nulls(count, row),
        "after": pa.nulls(count, row) if after is None else after,
        "unavailable": pa.nulls(count, NAMES_TYPE),
        "unavailable_before": pa.nulls(count, NAMES_TYPE),
        **{mark: marks.get(mark, pa.nulls(count, NAMES_TYPE)) for mark in MARKS},
    }


class MatchingRows:
    """Selects the rows that match the table's filter, when rows are read from the source database under
    ``mode: history``.

    In other modes a row that does not match the filter deletes the target's row with its key. Under ``mode:
    history``, a row that was read from the database must not delete anything.
    """

    def of(self, decoded: DecodedRecords, _plan: DecodePlan) -> DecodedRecords:
        """Returns the decoded records unchanged, because rows that do not match the filter are removed after
        the reduction.
        """
        return decoded

    def rows(self, reduction: Reduction) -> Reduction:
        """Returns the rows to write. Rows that do not match count as superseded."""
        tables = [
            replace(table, rows=table.rows.filter(pc.invert(table.rows["deleted"])))
            for table in reduction.tables
        ]
        return replace(reduction, tables=tuple(table for table in tables if table.rows.num_rows), deletes=0)


class ReadColumn(NamedTuple):
    """A column of the source table to read.

    ``stored``: the column in the database. ``recorded``: the same column in Kafka records.
    """

    stored: Column
    recorded: Column


@dataclass(frozen=True)
class NumberedDecoder(TableDecoder):
    """Decodes records that ``numbered_records`` made. ``inner``: the decoder of the table's Kafka records."""

    inner: TableDecoder

    @property
    def table(self) -> TableId:  # type: ignore[override]  # a property here
        """The table at the source."""
        return self.inner.table

    @property
    def _codec(self) -> Codec:
        return self.inner._codec

    @property
    def values(self) -> ValueOptions:
        """Settings for the conversion of values, as for the table's Kafka records."""
        return self.inner.values


@dataclass(frozen=True)
class SourceDecoder(NumberedDecoder):
    """Decodes rows that ``SourceRows`` reads into changes with the values that Kafka records would have."""

    columns: tuple[ReadColumn, ...]
    keys: tuple[str, ...]

    @property
    def stored(self) -> TableSchema:
        """The columns to read, with their types in the source database."""
        return TableSchema(self.table, tuple(column.stored for column in self.columns))

    def decode_batch(self, records: pa.RecordBatch) -> DecodedBatch:
        """Decodes rows of the source database into changes, one upsert per row."""
        count = records.num_rows
        schema = self._schema
        types = RowTypes(schema, self.keys, self.values)
        results = {
            reader.column.recorded.name: reader.read(rows_of(records)) for reader in self._readers(types)
        }
        faults = tuple(self._faults(records, results, types))
        marks = {
            mark: name_lists(
                {n: m for n, result in results.items() if (m := getattr(result, mark)) is not None}, count
            )
            for mark in MARKS
        }
        key, after = _struct(results, types.key, count), _struct(results, types.row, count)
        columns = changes_of(records, Op.UPSERT, key=key, row=types.row, after=after, marks=marks)
        rows = pa.table(columns, schema=types.table)
        if faults:
            bad = np.ones(count, np.bool_)
            bad[[fault.record for fault in faults]] = False
            rows = rows.filter(pa.array(bad))
        tables = (ChangeTable(self.table, schema, None, rows),) if len(rows) else ()
        return DecodedBatch(tables, (), faults, count, 0)

    def decode_new_rows(self, records: pa.RecordBatch, _keys: Sequence[str]) -> DecodedBatch:
        """Returns the result of ``decode_batch``, because these changes have no old rows."""
        return self.decode_batch(records)

    @cached_property
    def _schema(self) -> TableSchema:
        """The columns to read, with their types in the table's Kafka records."""
        return TableSchema(self.table, tuple(column.recorded for column in self.columns))

    def _readers(self, types: RowTypes) -> Iterator[_ColumnReader]:
        for column in self.columns:
            convert = self.inner.recorded_value(column.stored, column.recorded.type)
            policies = types.policies_of(column.recorded)
            if row_of(column.recorded.type).reader == "timestamp" and policies["zero_date"] == "text":
                convert = partial(_in_zone, convert, self.values.zone)
            yield _ColumnReader(column, convert, policies)

    def _faults(
        self, records: pa.RecordBatch, results: dict[str, ColumnResult], types: RowTypes
    ) -> Iterator[Fault]:
        """Yields the first error of each row with a value that does not fit its column's type."""
        first: dict[int, DecodeError] = {}
        for reader in self._readers(types):
            unproven = results[reader.column.recorded.name].unproven
            if unproven is None:
                continue
            where = np.flatnonzero(unproven)
            values = reader.of(rows_of(records)).take(pa.array(where)).to_pylist()
            for record, value in zip(where.tolist(), values, strict=True):
                if (error := reader.refusal(value)) is not None:
                    named = error.with_context(table=str(self.table), column=reader.column.recorded.name)
                    first.setdefault(record, named)  # type: ignore[arg-type]
        yield from (Fault(record, error) for record, error in sorted(first.items()))


class _ColumnReader(NamedTuple):
    """Converts the values of a column.

    ``convert``: converts one value, or None if no conversion is needed.
    """

    column: ReadColumn
    convert: Convert | None
    policies: TimePolicies

    def of(self, rows: pa.StructArray) -> pa.Array:
        """Returns a column's values as the source database returned them."""
        return rows.field(self.column.stored.name)

    def read(self, rows: pa.StructArray) -> ColumnResult:
        """Returns a column's values in the form that Kafka records of the table have."""
        selected_values = self.of(rows)
        if self.convert is None:
            read = from_text if pa.types.is_string(selected_values.type) else from_value
            return read(selected_values, self.column.recorded.type, **self.policies, time_zone=_UTC)
        encoded = selected_values.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        refused = np.zeros(len(distinct) + 1, np.bool_)
        values = list[Value]()
        for index, value in enumerate(distinct):
            try:
                values.append(self._value(value))
            except DecodeError:
                values.append(None)
                refused[index] = True
        result = from_python(values, self.column.recorded.type, **self.policies, time_zone=_UTC)
        refused[list(result.errors)] = True
        codes = encoded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)
        zero = None if result.zero_dates is None else np.append(result.zero_dates, False)[codes]
        unproven = refused[codes] if refused.any() else None
        return ColumnResult(result.values.take(encoded.indices), unproven, zero, None)

    def refusal(self, value: Any) -> DecodeError | None:
        """Returns the error for a value that cannot be converted, or None."""
        kind = self.column.recorded.type
        try:
            if self.convert is not None:
                read = self._value(value)
            else:
                read = text_reader(kind)(value) if isinstance(value, str) else value
        except DecodeError as error:
            return error
        return from_python([read], kind, **self.policies, time_zone=_UTC).errors.get(0)

    def _value(self, value: Any) -> Value:
        assert self.convert is not None  # noqa: S101  (checked by the caller)
        return self.convert(text_reader(self.column.stored.type)(value) if isinstance(value, str) else value)


def _in_zone(convert: Convert | None, zone: tzinfo, value: Value) -> Value:
    """Converts a TIMESTAMP, which the target stores as text, to the time zone of the changefeed."""
    converted = value if convert is None else convert(value)
    if not isinstance(converted, str) or converted.startswith("0000-00-00"):
        return converted
    whole, point, fraction = converted.partition(".")
    local = datetime.fromisoformat(whole).replace(tzinfo=timezone.utc).astimezone(zone).replace(tzinfo=None)
    return f"{local}{point}{fraction}"


def _struct(results: dict[str, ColumnResult], kind: pa.StructType, count: int) -> pa.Array:
    if not kind.num_fields:
        return pa.nulls(count, kind)
    return pa.StructArray.from_arrays(
        [results[struct_field.name].values for struct_field in kind], fields=list(kind)
    )


class ColumnGap(NamedTuple):
    """The differences between a table's columns in the database and in its Kafka records, by name.

    ``lost``: columns that only the records have. ``new``: columns that only the database has. Virtual and
    generated columns are not included, because TiCDC may list such columns without sending values.
    """

    lost: tuple[str, ...] = ()
    new: tuple[str, ...] = ()


def source_plan(plan: DecodePlan, stored: StoredTable) -> tuple[DecodePlan, ColumnGap]:
    """Returns the plan for reading a table's rows from the database, and the differences of the columns.

    The rows get the columns that the table's Kafka records have. Columns whose values are not needed
    (``TargetRows.unread``) are not read. The plan's decoder is a ``SourceDecoder``.

    Raises:
        ConfigError: It is not known how Kafka records represent the values of a column. Or rows are
            identified by TiDB's row keys, and the database does not have row keys for this table.
    """
    decoder, shape, handle = plan.decoder, plan.rows.shape, {*map(plan.rows.shape.fold, plan.rows.keys)}
    recorded = decoder.recorded_columns
    virtual = stored.virtual if recorded.virtual else {}
    generated = stored.generated if recorded.generated else {}
    row_key = stored.row_key if is_row_keyed(shape) else {}
    if is_row_keyed(shape) and not row_key:
        raise ConfigError(_NO_ROW_KEY, table=str(shape.source))
    types = {**row_key, **stored.types, **virtual, **generated}
    # If the newest records do not have a generated column, later changes will not have it. So it is NULL.
    unsent = _gone(plan)
    called = {
        name: own
        for name, own in _called(plan, types).items()
        if name not in generated or shape.fold(own) not in unsent
    }
    columns = tuple(
        ReadColumn(
            Column(name, types[name], nullable=name not in stored.required),
            Column(own, shape.by_name[shape.fold(own)].type, handle=shape.fold(own) in handle),
        )
        for name, own in called.items()
        if own not in plan.rows.unread
    )
    for column in columns:
        decoder.recorded_value(column.stored, column.recorded.type)
    stored_names, dropped_columns = (
        {*called.values(), *_called(plan, {**stored.virtual, **stored.generated}).values()},
        _gone(plan),
    )
    held = {*plan.rows.keys, *plan.rows.value_sources.values()} - stored_names
    lost = (c.name for c in shape.columns if c.name in held and shape.fold(c.name) not in dropped_columns)
    gap = ColumnGap(tuple(lost), tuple(name for name in stored.types if name not in called))
    # A lost column is NULL and does not have its default, as in rows written after the column was dropped.
    rows = replace(plan.rows, dropped=DroppedNow(dropped_columns | {shape.fold(name) for name in gap.lost}))
    return replace(plan, rows=rows, decoder=SourceDecoder(decoder, columns, plan.rows.keys)), gap


def _called(plan: DecodePlan, names: Iterable[str]) -> dict[str, str]:
    """Maps the names of columns in the database to their names in Kafka records. These differ if a name has
    characters that Avro does not allow.
    """
    there = [*names]
    own_names = {name: own for own, name in plan.rows.written(there).items()}
    fold = plan.rows.shape.fold
    open_names = {fold(c.name): c.name for c in plan.rows.shape.columns if c.name not in own_names.values()}
    for name in there:
        own = open_names.pop(fold(sanitize_name(name)), None) if name not in own_names else None
        if own is not None:
            own_names[name] = own
    return {name: own_names[name] for name in there if name in own_names}


def _gone(plan: DecodePlan) -> frozenset[str]:
    """Returns the names of columns, in lower case, that the table's decode plan has and the source has
    dropped.
    """
    sources = plan.rows.sources
    if sources is None:
        return plan.gone
    here, there = plan.rows.shape.fold, plan.shape.fold
    return frozenset(here(own) for name, own in sources.items() if there(name) in plan.gone)
