"""Decodes a batch of Kafka records into Arrow tables.

There are two ways to decode a record. A codec's *columnar step* decodes many records at once; it checks every
value, and leaves each record that it cannot decode with certainty to the row path. The *row path* decodes one
record at a time (``Codec.decode``) and converts one value at a time (``typemap.values``). Only the row path
reports records that cannot be decoded. ``decode_in_columns`` runs both and restores the order of the input.
The result is the same as if all records had used the row path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from functools import cached_property
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.errors import DecodeError, SchemaMismatchError, ValueOutOfRangeError
from tidesink.events import (
    UNAVAILABLE,
    UNAVAILABLE_BEFORE,
    ChangeEvent,
    Column,
    DdlEvent,
    Event,
    Message,
    MessageEvent,
    Op,
    Position,
    Row,
    SchemaIds,
    TableId,
    TableSchema,
    WatermarkEvent,
    folding,
)
from tidesink.typemap.arrow import PythonResult, arrow_type, from_python
from tidesink.typemap.table import KEY_POLICIES, AmbiguousTime, TimePolicies, ZeroDate

ControlEvent = DdlEvent | WatermarkEvent | MessageEvent
Decode = Callable[[Message], tuple[Event, ...]]
# Returns a warning about a row change that is decoded nevertheless, or None.
Warn = Callable[[ChangeEvent], str | None]
Indices = npt.NDArray[np.int64]

OP_TYPE: Final = pa.dictionary(pa.int8(), pa.string())
TOPIC_TYPE: Final = pa.dictionary(pa.int32(), pa.string())
NAMES_TYPE: Final = pa.list_(pa.string())
# Columns of ``ChangeTable.rows`` that list the columns of a row whose value was chosen by a policy. A
# converted column has attributes of these names.
MARKS: Final = ("zero_dates", "ambiguous_times")
# SQL Server's and Db2's LSNs have 80 bits.
SOURCE_TYPE: Final = pa.list_(pa.decimal128(38, 0))
_MOST: Final = 2**63 - 1
_MOST_SOURCE: Final = 10**38 - 1
# The values of ``op``, in the order of their dictionary.
OPS: Final = tuple(op.value for op in Op)
_OP_CODES: Final = {op: code for code, op in enumerate(Op)}
_HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Fault(NamedTuple):
    """A record that cannot be decoded, with its error.

    ``record``: index of the record in the batch's input.
    """

    record: int
    error: DecodeError


@dataclass(frozen=True)
class RowWarning:
    """A warning about a row change that was decoded nevertheless, for example because of its checksum.

    ``record``: index of the record in the batch's input. ``index``: index of the row change in its record.
    ``text``: the reason for the warning, as text for users.
    """

    record: int
    index: int
    text: str


@dataclass(frozen=True)
class ChangeTable:
    """The row changes of one table that were written with one schema, in the order of the input.

    ``rows`` has one row per change:

    ======================  =========================  ==================================================
    column                  type                       meaning
    ======================  =========================  ==================================================
    ``record``              int64                      index of the Kafka record in the input
    ``index``               int32                      index of the event in its record
    ``op``                  dictionary<int8, string>   insert, update, delete, upsert, truncate
    ``topic``               dictionary<int32, string>
    ``partition``           int32
    ``offset``              int64
    ``commit_ts``           int64                      TiDB TSO; null if the record has none
    ``source``              list<decimal128(38, 0)>    ``Position.source``, or null
    ``key``                 struct                     the key columns; null if the row has no key
    ``before``              struct                     the row before the change, if the record has it
    ``after``               struct                     the row after the change; null for a delete
    ``unavailable``         list<string>               columns of ``after`` that the source did not send
    ``unavailable_before``  list<string>               columns of ``before`` that the source did not send
    ``zero_dates``          list<string>               columns whose invalid date was replaced by null
    ``ambiguous_times``     list<string>               columns whose local time occurs twice (see below)
    ======================  =========================  ==================================================

    The members of ``before`` and ``after`` are the columns of ``schema`` in its order. A column that a row
    does not have is null. Types are those of ``typemap.arrow.arrow_type``. A local time that occurs twice,
    because clocks are set back, was converted according to the policy ``ValueOptions.ambiguous_time``.
    """

    table: TableId
    schema: TableSchema
    schema_id: SchemaIds | None
    rows: pa.Table

    def flat(self) -> pa.Table:
        """Returns the row changes as a table without structs, for Polars, pandas or DuckDB.

        The table has the source table's columns and ``_op``, ``_commit_ts``, ``_topic``, ``_partition`` and
        ``_offset``. A column's value comes from the row after the change. A delete has no such row, so its
        values come from the row before the change, or from the key.
        """
        deleted = pc.equal(self.rows["op"].cast(pa.string()), Op.DELETE.value)
        columns = {
            f"_{name}": self.rows[name] for name in ("op", "commit_ts", "topic", "partition", "offset")
        }
        for column in self.schema.columns:
            images = [_member(self.rows[image], column.name) for image in ("before", "key")]
            present = [image for image in images if image is not None]
            after = _member(self.rows["after"], column.name)
            columns[column.name] = pc.if_else(deleted, pc.coalesce(*present), after) if present else after
        return pa.table(columns)


@dataclass(frozen=True)
class DecodedBatch:
    """The decoded contents of a batch of Kafka records.

    ``tables``: row changes, one entry per table and schema. ``events``: DDL events, watermarks and Debezium's
    transaction and message events, in the order of the input. ``event_records``: for each of ``events``, the
    index of its record in the input. ``faults``: records that cannot be decoded. ``records``: number of
    records in the input. ``row_by_row_records``: number of records that the columnar step left to the row
    path. ``warnings``: warnings about row changes in ``tables``, in the order of the input.
    """

    tables: tuple[ChangeTable, ...]
    events: tuple[ControlEvent, ...]
    faults: tuple[Fault, ...]
    records: int
    row_by_row_records: int
    event_records: tuple[int, ...] = ()
    warnings: tuple[RowWarning, ...] = ()


@dataclass(frozen=True)
class ValueOptions:
    """Options for converting values for a target.

    ``zero_date``: policy for invalid dates such as 0000-00-00. ``time_zone``: time zone in which TIMESTAMP
    values are written as text. ``ambiguous_time``: policy for local times that occur twice because clocks are
    set back. ``keys``: the target's key columns in lower case; None means that each record's own key is used.
    In a key column an invalid date or an ambiguous time is an error, whatever the policy is.
    """

    zero_date: ZeroDate = "null"
    time_zone: str = "UTC"
    keys: frozenset[str] | None = None
    ambiguous_time: AmbiguousTime = "first"

    @cached_property
    def zone(self) -> tzinfo:
        """The time zone ``time_zone``, in which TIMESTAMP values are written, as a ``tzinfo``."""
        return ZoneInfo(self.time_zone)


@dataclass(frozen=True)
class Records:
    """Kafka records as Arrow arrays, one array element per record.

    ``start``: index of the first of these records in the batch's input.
    """

    topic: pa.Array
    partition: pa.Array
    offset: pa.Array
    key: pa.Array
    value: pa.Array
    timestamp: pa.Array | None = None
    headers: pa.Array | None = None
    start: int = 0

    def __len__(self) -> int:
        return len(self.offset)

    def slice(self, start: int, length: int | None = None) -> Records:
        """Returns ``length`` records from index ``start`` on, without copying them.

        If ``length`` is None, returns all records from ``start`` on.
        """
        fields = ("topic", "partition", "offset", "key", "value", "timestamp", "headers")
        arrays = {name: getattr(self, name) for name in fields}
        cut = {name: array and array.slice(start, length) for name, array in arrays.items()}
        return replace(self, **cut, start=self.start + start)

    def take(self, indices: Indices) -> Iterator[tuple[int, Message]]:
        """Yields the records at these indices as messages, each with its index in the batch's input."""
        where = pa.array(indices)
        columns = [
            _python(array, where)
            for array in (self.topic, self.partition, self.offset, self.key, self.value, self.timestamp)
        ]
        headers = _python(self.headers, where)
        for index, *fields, own in zip(indices.tolist(), *columns, headers, strict=True):
            topic, partition, offset, key, value, timestamp = fields
            pairs = tuple((header["key"], header["value"]) for header in own or ())
            yield self.start + index, Message(topic, partition, offset, key, value, timestamp, pairs)

    def places(self, rows: Indices) -> dict[str, pa.Array]:
        """Returns the columns ``record``, ``index``, ``topic``, ``partition`` and ``offset`` of row changes.

        They are columns of ``ChangeTable.rows`` and show which record each row change comes from. ``rows``:
        ascending indices of the row changes' records among these records.
        """
        count = len(rows)
        names = ("topic", "partition", "offset")
        if count and int(rows[-1]) - int(rows[0]) + 1 == count:
            columns = {name: getattr(self, name).slice(int(rows[0]), count) for name in names}
        else:
            columns = {name: getattr(self, name).take(pa.array(rows)) for name in names}
        return {
            "record": pa.array(rows + self.start),
            "index": pa.array(np.zeros(count, np.int32)),
            **columns,
        }


@dataclass(frozen=True)
class ColumnarResult:
    """The result of a columnar step, which may decode only a first part of the records passed to it.

    ``consumed``: number of records that the step processed. It is smaller than the number of records passed
    if a DDL event may change how the records after it are decoded. ``tables`` and ``events``: contents of the
    decoded records; their record indices refer to the batch's input. ``left``: ascending indices of processed
    records that the step did not decode, so the row path must decode them; they refer to the records passed.
    """

    consumed: int
    tables: Sequence[ChangeTable] = ()
    events: Sequence[tuple[int, ControlEvent]] = ()
    left: Indices = field(default_factory=lambda: np.empty(0, np.int64))


Columnar = Callable[[Records], ColumnarResult]


def decode_in_columns(
    records: pa.RecordBatch | pa.Table,
    *,
    columnar: Columnar | None,
    decode: Decode,
    options: ValueOptions,
    warn: Warn | None = None,
) -> DecodedBatch:
    """Decodes records with a codec's columnar step, and with ``decode`` the records that the step leaves.

    ``records``: Kafka records with the columns that ``Codec.decode_batch`` describes. ``columnar``: the
    columnar step; None to decode all records with ``decode``. ``decode``: function that decodes one record to
    its events. If it cannot decode a record, no error is raised: the record is in the result's ``faults``.
    ``warn``: function that returns the warning about a row change that ``decode`` returned, or None.

    Raises:
        SchemaMismatchError: ``records`` lacks a column, or a column does not have the required type.
        RegistryError: The schema registry does not have, or does not return, a record's schema.
        SourceUnavailableError: The claim-check storage or the upstream database does not answer.
    """
    result = _Found()
    for part in _parts(records):
        rest = part
        while len(rest):
            done = columnar(rest) if columnar is not None else _nothing_proven(rest)
            result.tables += done.tables
            result.events += done.events
            result.left += len(done.left)
            _read_rows(rest, done.left, decode, options, warn, result)
            rest = rest.slice(done.consumed)
    return result.batch(len(records))


def rows_from_events(
    records: pa.RecordBatch | pa.Table, decode: Decode, options: ValueOptions, warn: Warn | None = None
) -> DecodedBatch:
    """Decodes Kafka records one at a time. A codec's columnar step must return the same result.

    The arguments are those of ``decode_in_columns``.

    Raises:
        SchemaMismatchError: ``records`` lacks a column, or a column does not have the required type.
        RegistryError: The schema registry does not have, or does not return, a record's schema.
        SourceUnavailableError: The claim-check storage or the upstream database does not answer.
    """
    return decode_in_columns(records, columnar=None, decode=decode, options=options, warn=warn)


def _nothing_proven(records: Records) -> ColumnarResult:
    return ColumnarResult(len(records), left=np.arange(len(records), dtype=np.int64))


def _member(images: pa.ChunkedArray, name: str) -> pa.ChunkedArray | None:
    if images.type.get_field_index(name) < 0:
        return None
    return pc.struct_field(images, [name])


def _python(array: pa.Array | None, where: pa.Array) -> list[Any]:
    return [None] * len(where) if array is None else array.take(where).to_pylist()


# The input


def messages(records: pa.RecordBatch) -> Iterator[Message]:
    """Yields the rows of a record batch as Kafka records.

    The record batch has the columns that ``Codec.decode_batch`` describes.
    """
    return (message for _, message in _records(records, 0).take(np.arange(len(records))))


def _parts(records: pa.RecordBatch | pa.Table) -> Iterator[Records]:
    start = 0
    batches = [records] if isinstance(records, pa.RecordBatch) else records.to_batches()
    for batch in batches:
        yield _records(batch, start)
        start += len(batch)


def _records(batch: pa.RecordBatch, start: int) -> Records:
    count = len(batch)
    columns: dict[str, pa.Array] = dict(zip(batch.schema.names, batch.columns, strict=True))
    return Records(
        topic=_column(columns, "topic", TOPIC_TYPE, lambda: [""] * count),
        partition=_column(columns, "partition", pa.int32(), lambda: [0] * count),
        offset=_column(columns, "offset", pa.int64(), lambda: range(start, start + count)),
        key=_bytes(columns, "key", count),
        value=_bytes(columns, "value", count),
        timestamp=_timestamps(columns.get("timestamp")),
        headers=_column(columns, "headers", _HEADERS_TYPE, None) if "headers" in columns else None,
        start=start,
    )


def _column(
    columns: Mapping[str, pa.Array], name: str, kind: pa.DataType, default: Callable[[], Any] | None
) -> pa.Array:
    column = columns.get(name)
    if column is None and default is not None:
        return pa.array(list(default())).cast(kind)
    try:
        return column if column.type == kind else column.cast(kind)  # type: ignore[union-attr]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(
            f"Column {name!r} of the records has the type {column.type}, but it must be {kind}."  # type: ignore[union-attr]
        ) from error


def _bytes(columns: Mapping[str, pa.Array], name: str, count: int) -> pa.Array:
    column = columns.get(name)
    if column is None and name == "key":
        return pa.nulls(count, pa.binary())
    if column is None:
        raise SchemaMismatchError(
            f"The records have no column {name!r}. Pass the columns key and value with Kafka's bytes."
        )
    if column.type in (pa.binary(), pa.large_binary()):
        return column
    return _column(columns, name, pa.binary(), None)


def _timestamps(times: pa.Array | None) -> pa.Array | None:
    if times is None or pa.types.is_integer(times.type):
        return times
    return times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64())


# The row path


def _read_rows(
    records: Records,
    indices: Indices,
    decode: Decode,
    options: ValueOptions,
    warn: Warn | None,
    result: _Found,
) -> None:
    """Decodes the records at ``indices`` one by one, and adds their row changes and events to ``result``."""
    groups: dict[Any, _RowGroup] = {}
    control: list[tuple[int, ControlEvent]] = []
    warnings: list[RowWarning] = []
    for record, message in records.take(indices):
        try:
            events = decode(message)
        except DecodeError as error:
            result.faults.append(Fault(record, _placed(error, message)))
            continue
        for event in events:
            if not isinstance(event, ChangeEvent):
                control.append((record, event))
                continue
            key = None if event.key is None else tuple(event.key)
            name = (event.table, id(event.schema), event.schema_id, key)
            if name not in groups:
                # The group holds the schema, so that its id is not reused.
                groups[name] = _RowGroup(event, options)
            groups[name].add(record, event)
            if warn is not None and (text := warn(event)) is not None:
                warnings.append(RowWarning(record, event.position.index, text))
    # By record: the index and the error of its first event with a value that does not fit its column.
    refused: dict[int, tuple[int, DecodeError]] = {}
    for record, index, wrong in (failure for group in groups.values() for failure in group.errors()):
        if record not in refused or index < refused[record][0]:
            refused[record] = (index, wrong)
    result.faults += [Fault(record, wrong) for record, (_, wrong) in refused.items()]
    # If one event of a record is not valid, the whole record is a fault, and none of its events is returned.
    result.events += [(record, event) for record, event in control if record not in refused]
    result.warnings += [warning for warning in warnings if warning.record not in refused]
    tables = (group.table(refused) for group in groups.values())
    result.tables += [table for table in tables if table is not None]


def _placed(error: DecodeError, position: Message | Position) -> DecodeError:
    error.with_context(topic=position.topic, partition=position.partition, offset=position.offset)
    return error


# The images of a row change, in the order in which they are searched for a value that does not fit.
_IMAGES: Final = ("key", "before", "after")


class _RowGroup:
    """Collects row changes with the same table, schema and key columns, and converts them to Arrow."""

    def __init__(self, event: ChangeEvent, options: ValueOptions) -> None:
        self._schema = event.schema or TableSchema(event.table, ())
        self._types = RowTypes(self._schema, None if event.key is None else tuple(event.key), options)
        self._options = options
        self._events: list[ChangeEvent] = []
        self._records: list[int] = []

    def add(self, record: int, event: ChangeEvent) -> None:
        """Adds a row change. ``record``: index of its record in the input."""
        self._records.append(record)
        self._events.append(event)

    def errors(self) -> Iterator[tuple[int, int, DecodeError]]:
        """Yields the errors of row changes that cannot be converted to Arrow.

        A row change has an error if a value does not fit its column's type, if a column is not in the schema,
        or if its position has a number that is too large.

        Each error comes with the index of the record in the batch's input, and the index of the event in the
        record.
        """
        for index, error in sorted(self._column_errors(), key=lambda pair: pair[0]):
            event = self._events[index]
            yield self._records[index], event.position.index, _placed(error, event.position)

    def _column_errors(self) -> Iterator[tuple[int, DecodeError]]:
        for index, event in enumerate(self._events):
            unknown = [name for image in _IMAGES for name in self._unknown(getattr(event, image))]
            if unknown:
                reason = "The row has a column that is not in the event's schema. Add it to the schema."
                yield index, SchemaMismatchError(reason, table=str(event.table), column=unknown[0])
            if (wrong := _unfit_position(event)) is not None:
                yield index, ValueOutOfRangeError(wrong, table=str(event.table))
        for (_, name), column in self._columns.items():
            for index, error in column.errors.items():
                yield index, error.with_context(table=str(self._schema.table), column=name)  # type: ignore[misc]

    def _unknown(self, row: Row | None) -> list[str]:
        columns = self._schema.by_name
        return [] if row is None else [name for name in row if name not in columns]

    @cached_property
    def _columns(self) -> dict[tuple[str, str], PythonResult]:
        """The converted values of each column, by row image (key, before or after) and column name."""
        columns = {}
        for image in _IMAGES:
            kind = self._types.key if image == "key" else self._types.row
            rows = [getattr(event, image) for event in self._events]
            for member in kind:
                column = self._schema.by_name[member.name]
                columns[image, member.name] = from_python(
                    [None if row is None else row.get(member.name) for row in rows],
                    column.type,
                    **self._types.policies_of(column),
                    time_zone=self._options.zone,
                )
        return columns

    def table(self, faults: Mapping[int, object]) -> ChangeTable | None:
        """Returns the row changes as a change table, without those of the records in ``faults``.

        Returns None if no row change remains.
        """
        events, first = self._events, self._events[0]
        columns = {
            "record": pa.array(self._records, pa.int64()),
            "index": pa.array([event.position.index for event in events], pa.int32()),
            "op": op_array([_OP_CODES[event.op] for event in events]),
            "topic": pa.array([event.position.topic for event in events], pa.string()).cast(TOPIC_TYPE),
            "partition": pa.array([event.position.partition for event in events], pa.int32()),
            "offset": pa.array([event.position.offset for event in events], pa.int64()),
            "commit_ts": pa.array([_fitting(event.commit_ts) for event in events], pa.int64()),
            "source": pa.array([_source(event) for event in events], SOURCE_TYPE),
            "key": self._structs("key", self._types.key),
            "before": self._structs("before", self._types.row),
            "after": self._structs("after", self._types.row),
            "unavailable": _name_lists(events, UNAVAILABLE),
            "unavailable_before": _name_lists(events, UNAVAILABLE_BEFORE),
            **{name: pa.array(self._marked(name), NAMES_TYPE) for name in MARKS},
        }
        rows = pa.table(columns, schema=self._types.table)
        if faults:
            rows = rows.filter(pa.array([record not in faults for record in self._records], pa.bool_()))
        return ChangeTable(first.table, self._schema, first.schema_id, rows) if len(rows) else None

    def _structs(self, image: str, kind: pa.StructType) -> pa.StructArray:
        # Built from columns, because pyarrow's conversion of dicts looks up every column name in each row.
        nulls = [getattr(event, image) is None for event in self._events]
        if not kind.num_fields:
            return pa.array([None if null else {} for null in nulls], kind)
        arrays = [self._columns[image, member.name].values for member in kind]
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=pa.array(nulls, pa.bool_()))

    def _marked(self, marks: str) -> list[list[str] | None]:
        """Returns, for each row change, the names of the columns whose value is marked, or None.

        ``marks``: name of the mark, for example ``zero_dates`` for invalid dates that became null. The values
        are those of the row after the change. For a delete they are those of the row before the change.
        """
        marked: list[list[str]] = [[] for _ in self._events]
        for (image, name), column in self._columns.items():
            flags: npt.NDArray[np.bool_] | None = getattr(column, marks)
            if image == "key" or flags is None:
                continue
            for index in np.flatnonzero(flags).tolist():
                if (self._events[index].after is None) == (image == "before"):
                    marked[index].append(name)
        return [names or None for names in marked]


class RowTypes:
    """The Arrow types of the rows of one schema.

    ``keys``: key columns of the rows, or None if they have no key. ``row``, ``key`` and ``table``: types of a
    row, of its key, and of ``ChangeTable.rows``.
    """

    def __init__(self, schema: TableSchema, keys: tuple[str, ...] | None, options: ValueOptions) -> None:
        named = options.keys
        self._fold = folding(column.name for column in schema.columns)
        self._keys = frozenset(map(self._fold, keys or ())) if named is None else named
        self._options = options
        types = {column.name: self._type(column) for column in schema.columns}
        self.row = pa.struct(list(types.items()))
        self.key = pa.struct([(name, types[name]) for name in keys or () if name in types])
        self.table = rows_schema(self.key, self.row)

    def policies_of(self, column: Column) -> TimePolicies:
        """Returns a column's policies for invalid dates and ambiguous times. Both are errors in keys."""
        if self._fold(column.name) in self._keys:
            return KEY_POLICIES
        return TimePolicies(zero_date=self._options.zero_date, ambiguous_time=self._options.ambiguous_time)

    def _type(self, column: Column) -> pa.DataType:
        return arrow_type(column.type, zero_date=self.policies_of(column)["zero_date"])


def rows_schema(key: pa.StructType, row: pa.StructType) -> pa.Schema:
    """Returns the Arrow schema of ``ChangeTable.rows``. ``key`` and ``row``: struct types of key and row."""
    return pa.schema(
        [
            ("record", pa.int64()),
            ("index", pa.int32()),
            ("op", OP_TYPE),
            ("topic", TOPIC_TYPE),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("commit_ts", pa.int64()),
            ("source", SOURCE_TYPE),
            ("key", key),
            ("before", row),
            ("after", row),
            ("unavailable", NAMES_TYPE),
            ("unavailable_before", NAMES_TYPE),
            *((name, NAMES_TYPE) for name in MARKS),
        ]
    )


def op_array(codes: Sequence[int] | npt.NDArray[np.int8]) -> pa.DictionaryArray:
    """Returns the Arrow column ``op`` of row changes.

    ``codes``: for each row change the index of its operation in ``OPS``.
    """
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(OPS, pa.string()))


def op_code(op: Op) -> int:
    """Returns the code of an operation in the Arrow column ``op``, which is its index in ``OPS``."""
    return _OP_CODES[op]


def source_lists(numbers: Sequence[npt.NDArray[np.int64]], valid: npt.NDArray[np.bool_]) -> pa.Array:
    """Returns the Arrow column ``source`` of row changes: each row's position in the source database's log.

    ``numbers``: the numbers of which a position consists (``Position.source``), as one array per number with
    an element for each row. ``valid``: mask of the rows that have a position; the result is null for the
    other rows.
    """
    values = np.stack(numbers, axis=1)[valid].reshape(-1)
    offsets = np.zeros(len(valid) + 1, np.int32)
    np.cumsum(valid * len(numbers), out=offsets[1:])
    validity = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers: list[pa.Buffer | None] = [validity, pa.py_buffer(offsets)]
    children = [pa.array(values).cast(SOURCE_TYPE.value_type)]
    return pa.Array.from_buffers(SOURCE_TYPE, len(valid), buffers, children=children)


def name_lists(masks: Mapping[str, npt.NDArray[np.bool_]], count: int) -> pa.Array:
    """Returns, for each of ``count`` rows, the list of the column names that are marked in the row.

    ``masks``: for each column name the mask of the rows in which it is marked. If no column is marked in a
    row, the row's list is null.
    """
    if not masks:
        return pa.nulls(count, NAMES_TYPE)
    flags = np.array(list(masks.values())).T
    sizes = flags.sum(axis=1)
    places = pa.array(np.append(0, np.cumsum(sizes)), pa.int32())
    names = pa.array(list(masks), pa.string()).take(pa.array(np.nonzero(flags)[1]))
    return pa.ListArray.from_arrays(places, names, mask=pa.array(sizes == 0))


def _fitting(number: int | None) -> int | None:
    """Returns the number if it fits into 64 bits, else None. A record with a larger number is a fault."""
    return None if number is None or abs(number) > _MOST else number


def _unfit_position(event: ChangeEvent) -> str | None:
    """Returns the error text if an event's commit_ts or source position is too large for Arrow, else None."""
    if abs(event.commit_ts or 0) > _MOST:
        return "The event's commit_ts does not fit into 64 bits. Check the program that wrote the record."
    if any(abs(number) > _MOST_SOURCE for number in event.position.source or ()):
        return "The event's source position has a number of more than 38 digits. Check what wrote the record."
    return None


def _source(event: ChangeEvent) -> list[int | None] | None:
    if event.position.source is None:
        return None
    return [number if abs(number) <= _MOST_SOURCE else None for number in event.position.source]


def _name_lists(events: Iterable[ChangeEvent], member: str) -> pa.Array:
    """Returns, for each event, the column names that a member of its extension lists, or null."""
    lists: list[Any] = [(event.extension or {}).get(member) for event in events]
    return pa.array([list(names) if names else None for names in lists], NAMES_TYPE)


# The results of both paths


class _Found:
    """Collects the contents of a batch while its records are decoded."""

    def __init__(self) -> None:
        self.tables: list[ChangeTable] = []
        self.events: list[tuple[int, ControlEvent]] = []
        self.faults: list[Fault] = []
        self.warnings: list[RowWarning] = []
        self.left = 0

    def batch(self, records: int) -> DecodedBatch:
        self.events.sort(key=lambda pair: pair[0])  # stable, so a record's events keep their order
        self.faults.sort(key=lambda fault: fault.record)
        return DecodedBatch(
            tuple(merged(self.tables)),
            tuple(event for _, event in self.events),
            tuple(self.faults),
            records,
            self.left,
            tuple(record for record, _ in self.events),
            tuple(self.warnings),
        )


def merged(tables: Iterable[ChangeTable]) -> list[ChangeTable]:
    """Merges the change tables that have the same table, schema, schema ids and Arrow types.

    Returns one change table for each such combination, in the order of its first record.

    The rows are in the order of the batch's input. Change tables without rows are not returned.
    """
    # Grouped by name first, because a topic may have thousands of tables and comparing schemas is slow.
    named: dict[tuple[TableId, SchemaIds | None], list[list[ChangeTable]]] = {}
    for table in tables:
        if not len(table.rows):
            continue
        groups = named.setdefault((table.table, table.schema_id), [])
        same = next((group for group in groups if _fits(group[0], table)), None)
        if same is None:
            groups.append([table])
        else:
            same.append(table)
    joined = [_joined(group) for groups in named.values() for group in groups]
    return sorted(joined, key=lambda table: table.rows["record"][0].as_py())


def _fits(table: ChangeTable, other: ChangeTable) -> bool:
    if not table.rows.schema.equals(other.rows.schema):
        return False
    return table.schema is other.schema or table.schema == other.schema


def _joined(group: Sequence[ChangeTable]) -> ChangeTable:
    first = group[0]
    if len(group) == 1:
        return first
    rows = pa.concat_tables([table.rows for table in group]).unify_dictionaries().combine_chunks()
    order = np.lexsort((rows["index"].to_numpy(), rows["record"].to_numpy()))
    if (np.diff(order) == 1).all():
        return replace(first, rows=rows)
    return replace(first, rows=rows.take(pa.array(order)))
