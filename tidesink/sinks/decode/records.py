"""Decoding and validation of one table's Kafka records: row changes that fit the target, and other events.

A ``TableDecoder`` decodes the records of a protocol. This module then checks the row changes:

- A change that does not identify a row, or with a value that does not fit its column, becomes a bad record.
- A change with a column that the decode plan does not have is *unplanned*. The driver looks up the schema
  with which the change was written, and decodes the batch again with a new plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.base import Codec
from tidesink.codecs.batch import (
    ChangeTable,
    ControlEvent,
    DecodedBatch,
    RowWarning,
    ValueOptions,
    Warn,
    decode_in_columns,
    rows_from_events,
)
from tidesink.errors import (
    HorizonError,
    SchemaMismatchError,
    TidesinkError,
    UnnamedRowError,
    UnsupportedMessageError,
    ValueOutOfRangeError,
    bad_reason,
)
from tidesink.events import (
    ChangeEvent,
    Column,
    ColumnType,
    DdlEvent,
    Event,
    Message,
    Op,
    TableId,
    WatermarkEvent,
    fold_name,
)
from tidesink.sinks.decode.target_rows import TargetRows
from tidesink.sinks.kafka.fetch import last_record
from tidesink.sinks.laws.counts import DdlStatement, latest, least
from tidesink.sinks.laws.reduce import WARNING, named_rows
from tidesink.sinks.spark.payloads import DELETE, UPSERT
from tidesink.sinks.state.progress import MOST_QUERY, LastRecord
from tidesink.typemap.table import row_of
from tidesink.typemap.values import Convert, unchanged

Flags = npt.NDArray[np.bool_]

# Kinds of decoded events.
DDL: Final = "ddl"
WATERMARK: Final = "watermark"
BAD: Final = "bad"
UNPLANNED: Final = "unplanned"
# A record without a row change or DDL: a heartbeat, the end of a transaction, a Kafka tombstone.
MESSAGE: Final = "message"
TRUNCATE: Final = "truncate"

KINDS: Final = (UPSERT, DELETE, DDL, WATERMARK, BAD, UNPLANNED, MESSAGE, TRUNCATE)
FILTERED_KINDS: Final = (DDL, WATERMARK, MESSAGE)
# Events that are not rows of the reduced frame. They are counted, and the summary has the statements of DDL.
COUNTED_KINDS: Final = (DDL, WATERMARK, MESSAGE)

UNNAMED_DELETE: Final = (
    "The table has no key, and the delete event lacks the deleted row. Have the producer write the row "
    "(TiCDC: canal-json, or avro-include-before-value; Debezium: REPLICA IDENTITY FULL)."
)
_SCATTERED_TRUNCATE: Final = (
    "The table was truncated, but its topic has several partitions. For rows in other partitions it is "
    "not known whether they are older than the truncate. Have the connector skip truncates "
    "(skipped.operations: t, its default) or write the table to one partition. To continue, load the table "
    "again."
)
_UNDATED: Final = (
    "mode: history needs a commit_ts in every row event, but this event does not have one. Set "
    "enable-tidb-extension=true in the changefeed's sink URI, or load the table again in another mode. "
    "flat-avro deletes of classic TiCDC have no commit_ts even with this parameter."
)
_UNPLACED: Final = (
    "sequence_by: source needs the source's position in every row event, but this event has no commit_ts. "
    "Set enable-tidb-extension=true in the changefeed's sink URI, or set sequence_by: kafka and load the "
    "table again. flat-avro deletes of classic TiCDC have no commit_ts even with this parameter. Debezium "
    "messages have a commit_ts only if TiCDC wrote them."
)
_UNCUT: Final = (
    "cuts need a commit_ts in every row event, but this event does not have one. So it is not known whether "
    "the event belongs to a cut. For TiCDC, set enable-tidb-extension=true in the changefeed's sink URI. If "
    "the event is a flat-avro delete of classic TiCDC, use canal-json instead, because such deletes never "
    "have a commit_ts. For a Debezium connector for MySQL, MariaDB or Postgres, send the source field. If "
    "the connector flattens rows, its setting add.fields does that. Or remove cuts from the config."
)
_INCOMPLETE: Final = (
    "The row omits values that did not change. sequence_by: source needs whole rows, because the event with "
    "the omitted values may arrive later than this event. Set REPLICA IDENTITY FULL on the source table, or "
    "set sequence_by: kafka. If the column's real value only looks like Debezium's placeholder for an "
    "omitted value, set another source.debezium.unavailable-value-placeholder, and the same one at the "
    "connector."
)
_BEYOND: Final = (
    "The change is older than the horizon (commit_ts {horizon}). The target has removed its tombstones of "
    "deletes up to the horizon, so it is not known whether the row was deleted after this change. Compare "
    "the row with the source. To keep tombstones longer, raise tombstone-retention."
)
# The frame's integers are signed, so larger numbers do not fit. TiDB's timestamps are far below 2^63.
_END_OF_LONGS: Final = 1 << 63


class Input(Protocol):
    """One input of a batch. One task reads and reduces it as a whole."""

    @property
    def records(self) -> int:
        """The number of records, or the greatest number that is expected."""

    @property
    def place(self) -> tuple[str, int] | None:
        """The topic and the partition that the records are from. None if they are not from Kafka."""

    @property
    def numbering(self) -> tuple[str, int]:
        """The columns ``topic`` and ``partition`` of the records. No other input of the batch has them."""

    @property
    def label(self) -> str:
        """The input as errors name it, without values of rows."""


@dataclass(frozen=True)
class OtherRecord:
    """An event that is not a row to apply.

    Attributes:
        kind: The kind of the event, one of ``KINDS``.
        topic: The record's topic.
        partition: The record's partition.
        offset: The record's offset.
        index: The position of the event among the events of its record, from 0.
        commit_ts: The commit_ts of a DDL event or a watermark.
        error: For a bad record, the name of the error class.
        reason: Why a record is bad or unplanned.
        fields: For an unplanned record, what the decode plan does not have: the names of new columns, or the
            text of the schema with which the record was written.
        key_id: The registry id of the key's schema.
        value_id: The registry id of the value's schema.
        key: The bytes of the key. Only bad records have them.
        value: The bytes of the value. Only bad records have them.
        statement: The statement of a DDL event.
    """

    kind: str
    topic: str
    partition: int
    offset: int
    index: int = 0
    commit_ts: int | None = None
    error: str | None = None
    reason: str | None = None
    fields: tuple[str, ...] | None = None
    key_id: int | None = None
    value_id: int | None = None
    key: bytes | None = None
    value: bytes | None = None
    statement: DdlStatement | None = None

    @property
    def nbytes(self) -> int:
        """The size of the bytes and texts that the record has of its message."""
        query = "" if self.statement is None else self.statement.query
        return len(self.key or b"") + len(self.value or b"") + len(query)


@dataclass(frozen=True)
class EventRules:
    """Conditions that each event of a table must meet. They follow from the table's config and progress.

    An event that violates a condition becomes a bad record.

    Attributes:
        sequenced: True under ``sequence_by: source``. A row event must have a commit_ts and all values.
        versions: True under ``mode: history``. A row event must have a commit_ts.
        horizon: The commit_ts up to which the target has removed its tombstones (marks of deleted rows), or
            None. A row event with a commit_ts up to the horizon is bad.
        truncates: True if truncates are allowed. False if the topic has several partitions, because it is not
            known which rows of the other partitions are older than the truncate.
        emptied: The commit_ts at which DDL emptied the table, or None. A row event with a commit_ts up to
            this one is void: it is not applied and not checked.
        bound: The commit_ts up to which rows are applied (``laws.bound``), or None. A row event with a
            greater commit_ts waits, and is not checked. If there is a bound, a row event without a commit_ts
            is bad.
    """

    sequenced: bool = False
    versions: bool = False
    horizon: int | None = None
    truncates: bool = True
    emptied: int | None = None
    bound: int | None = None

    def wrong(self, changes: ChangeTable) -> Iterator[tuple[int, TidesinkError]]:
        """Yields the index and the error of each change that violates one of these conditions.

        If a change has several errors, the caller uses the last one.
        """
        empties, moments = _is(changes, Op.TRUNCATE.value), changes.rows["commit_ts"].combine_chunks()
        if not self.truncates:
            yield from _each(empties, UnsupportedMessageError(_SCATTERED_TRUNCATE))
        rows = pc.invert(empties)
        if self.horizon is not None:
            beyond = pc.fill_null(pc.less_equal(moments, self.horizon), False)
            yield from _each(pc.and_(rows, beyond), HorizonError(_BEYOND.format(horizon=self.horizon)))
        if self.versions or self.sequenced or self.bound is not None:
            reason = _UNDATED if self.versions else _UNPLACED if self.sequenced else _UNCUT
            yield from _each(pc.and_(rows, pc.is_null(moments)), UnsupportedMessageError(reason))
        if self.sequenced:
            unsent = pc.list_value_length(changes.rows["unavailable"].combine_chunks())
            partial = pc.greater(pc.fill_null(unsent, 0), 0)
            yield from _each(pc.and_(rows, partial), UnsupportedMessageError(_INCOMPLETE))


NO_RULES: Final = EventRules()


@dataclass(frozen=True)
class Unplanned:
    """A record that cannot be decoded with the current decode plan.

    ``record``: the record's index in its batch. ``reason``: what the plan does not have. ``fault``: the error
    if a new plan would not help, for example because the schema registry does not know the schema; else None.
    """

    record: int
    reason: str
    fault: TidesinkError | None = None


@dataclass(frozen=True)
class TableRecords:
    """The records of one table in a batch of a topic with several tables.

    Attributes:
        own: One flag per record: True if it belongs to this table. Other records are skipped and are not
            counted as read.
        unlisted: The number of records with rows of tables that the pipeline does not know yet.
        ddl: The number of DDL events of all tables. DDL of another table may affect this table.
    """

    own: Flags
    unlisted: int
    ddl: int


class RecordedColumns(NamedTuple):
    """The columns of the source table that a table's records contain.

    Attributes:
        drops: How a dropped column is noticed: by its DDL event, or by a row without the column. If the
            table's rows do not change, no such row arrives. None if the decode plan cannot learn of a
            dropped column.
        generated: True if records contain the values of generated Postgres columns that their schema lists.
        virtual: True if records contain the values of virtual columns that their schema lists.
    """

    drops: Literal["ddl", "rows"] | None = "ddl"
    generated: bool = False
    virtual: bool = False


class TableDecoder(ABC):
    """Decodes the records of one table. The object is pickled and sent to Spark tasks.

    Methods that are not abstract have defaults that fit most protocols.
    """

    # The table at the source.
    table: TableId

    def __getstate__(self) -> dict[str, object]:
        # Codecs and caches are private attributes. They are not pickled; each process makes its own.
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    @property
    @abstractmethod
    def _codec(self) -> Codec:
        """The codec of the protocol, which decodes records. Subclasses define it as a ``cached_property``."""

    @property
    @abstractmethod
    def values(self) -> ValueOptions:
        """Settings for the conversion of values, such as time zone and policies for impossible dates."""

    def decode_batch(self, records: pa.RecordBatch) -> DecodedBatch:
        """Returns the events of a batch of records, decoded in columns where possible."""
        step = self._codec.columnar(self.values)
        return decode_in_columns(
            records, columnar=step, decode=self.decode, options=self.values, warn=self.warn
        )

    def decode(self, message: Message) -> tuple[Event, ...]:
        """Returns the events of one record, decoded by the slower row codec.

        Raises:
            DecodeError: The record cannot be decoded.
        """
        return self._codec.decode(message)

    def decode_new_rows(self, records: pa.RecordBatch, keys: Sequence[str]) -> DecodedBatch:
        """Returns the events of a batch of records, decoded by the row codec, without values of old rows.

        An update's old row keeps only its key columns (``keys``). So an invalid value in an old row is no
        error.
        """
        named = {fold_name(name) for name in keys}

        def decode(message: Message) -> tuple[Event, ...]:
            return tuple(_with_old_key(event, named) for event in self.decode(message))

        return rows_from_events(records, decode, self.values, self.warn)

    @property
    def dated(self) -> bool:
        """True if a commit_ts is a TiDB timestamp. False if it is a position in a connector's log."""
        return True

    @property
    def old_keys(self) -> bool:
        """True if the old row of an update contains the old key. False if the protocol sends a key change as
        two records.
        """
        return True

    @property
    def columnar_events(self) -> tuple[type, ...]:
        """The classes of control events (DDL, watermarks) that the columnar decoder decodes itself."""
        return ()

    @property
    def warn(self) -> Warn | None:
        """Function that returns the warning about a row change that ``decode`` returned, or None.

        None if the decoder never warns. The change is applied nevertheless. The warnings are in the result of
        ``decode_batch``.
        """
        return None

    @property
    def uses_timestamps(self) -> bool:
        """True if the decoder uses Kafka's timestamps. They make fetching about 10 percent slower."""
        return False

    @property
    def uses_headers(self) -> bool:
        """True if the decoder needs the Kafka headers of records, so that tasks must fetch them."""
        return False

    def table_records(self, _records: pa.RecordBatch) -> TableRecords | None:
        """Returns which records belong to this table, or None if the topic has only this table."""
        return None

    def unplanned(self, _records: pa.RecordBatch) -> Sequence[Unplanned]:
        """Returns the records whose writer schema is missing in the decode plan, or cannot be used."""
        return ()

    def lacking(self, changes: ChangeTable, rows: TargetRows, _records: pa.RecordBatch) -> tuple[str, ...]:
        """Returns the columns of these changes that the decode plan (``rows``) does not have.

        All changes have the same writer schema. Some protocols return the schema's text in place of columns.
        ``_records``: the batch of records that the changes were decoded from.
        """
        return tuple(rows.new_columns(c.name for c in changes.schema.columns if not c.virtual))

    def holds(self, changes: ChangeTable) -> bool:
        """Returns True if the changes belong to this decoder's table."""
        return changes.table == self.table

    def wrong(self, _changes: ChangeTable) -> Iterator[tuple[int, TidesinkError]]:
        """Yields the index and the error of each change that breaks a rule of the protocol."""
        return iter(())

    def other_table(self, changes: ChangeTable) -> TidesinkError:
        """Returns the error for changes of a table other than this decoder's table."""
        return SchemaMismatchError(
            f"The change belongs to table {changes.table}, but this topic is read as table {self.table}. "
            "Check the topic of this table under tables."
        )

    def moments(self, changes: ChangeTable, _records: pa.RecordBatch) -> pa.Array:
        """Returns the commit time of each change as a TiDB TSO (int64), or null if it is not known."""
        return changes.rows["commit_ts"].combine_chunks()

    def unnamed(self, keys: Sequence[str]) -> UnnamedRowError:
        """Returns the error for a change without a value in one of the key columns ``keys``."""
        return UnnamedRowError(
            f"A key column ({', '.join(keys)}) is null or missing in the record, so the change does not "
            "identify a row. Set keys (under tables) to columns that the key of every record has."
        )

    def recorded_value(self, stored: Column, column_type: ColumnType) -> Convert | None:
        """Returns a function that converts a column's value in the source database into its value in records.

        None means that both have the same value. A TIMESTAMP is in UTC on both sides.

        Args:
            stored: The column in the database. Its values have canal-json's form.
            column_type: The column's type in the records.

        Raises:
            ConfigError: It is not known how the records represent values of this column.
        """
        labelled = row_of(stored.type).parameter == "allowed" and column_type.members is not None
        # The members of an ENUM or SET in the database may differ from the members in the records.
        return unchanged if labelled else None

    @property
    def recorded_columns(self) -> RecordedColumns:
        """The columns of the source table that records contain, and how a dropped column is noticed."""
        return RecordedColumns()

    def refusal(self, _changes: ChangeTable, _rows: TargetRows) -> TidesinkError | None:
        """Returns an error if rows with this writer schema can never be rows of the table, else None."""
        return None

    def schema_id(self, _part: bytes | None) -> int | None:
        """Returns the registry id in the header of a key or a value, or None without such a header."""
        return None

    def old_rows(self, changes: ChangeTable) -> tuple[pa.StructArray, pa.ListArray | None]:
        """Returns the old row of each change, and the names of the columns that the source did not send.

        The names are None if every old row is whole. A change log (``mode: append``) uses the old rows. An
        old row is null if the record does not contain it or contains only its key.
        """
        before = changes.rows["before"].combine_chunks()
        keys = {member.name for member in changes.rows.schema.field("key").type}
        if keys and keys.issuperset(column.name for column in changes.schema.columns):
            return pa.nulls(len(before), before.type), None
        return before, None


def _with_old_key(event: Event, keys: Collection[str]) -> Event:
    """Removes all columns except ``keys`` from an update's old row, and returns the event."""
    if not isinstance(event, ChangeEvent) or event.op is Op.DELETE or event.before is None:
        return event
    return event._replace(
        before={name: value for name, value in event.before.items() if fold_name(name) in keys}
    )


@dataclass
class DecodedRecords:
    """The events of some records of one table.

    The bound is the commit_ts up to which a batch applies rows (``laws.bound``), if there is one.

    Attributes:
        tables: Row changes that fit the target, and truncates.
        others: Events that are not rows to apply.
        silent: Records without events (Kafka tombstones): their topic, partition and offset.
        records: The number of records of this table.
        bytes: The size of their keys and values in bytes.
        row_by_row_records: The number of records that the slower row codec decoded.
        unlisted: The number of rows of tables that the pipeline does not know. No other count includes them.
        ddl: The number of DDL events of any table.
        void: The number of row changes that are skipped, because DDL emptied the table after them.
        void_records: The number of records whose first event is a void row change.
        waiting_records: The number of records whose first event is a row above the bound. These rows wait
            until the bound is raised.
        waits: The first offset with a row above the bound, or None.
        passed: The offset of the watermark at the bound at which reading ended, or None.
        last: Offset and leader epoch of the last record that was read, of any table, or None.
    """

    tables: list[ChangeTable] = field(default_factory=list)
    others: list[OtherRecord] = field(default_factory=list)
    silent: list[pa.RecordBatch] = field(default_factory=list)
    records: int = 0
    bytes: int = 0
    row_by_row_records: int = 0
    unlisted: int = 0
    ddl: int = 0
    void: int = 0
    void_records: int = 0
    waiting_records: int = 0
    waits: int | None = None
    passed: int | None = None
    last: LastRecord | None = None

    @property
    def nbytes(self) -> int:
        """The memory in bytes that row changes, bad records and DDL events use."""
        rows = sum(int(table.rows.nbytes) for table in self.tables)
        return rows + sum(record.nbytes for record in self.others)

    def add(self, other: DecodedRecords) -> None:
        """Add the events and counts of records that come later in the range."""
        self.tables += other.tables
        self.others += other.others
        self.silent += other.silent
        self.records += other.records
        self.bytes += other.bytes
        self.row_by_row_records += other.row_by_row_records
        self.unlisted += other.unlisted
        self.ddl += other.ddl
        self.void += other.void
        self.void_records += other.void_records
        self.waiting_records += other.waiting_records
        self.waits = least([self.waits, other.waits])
        self.passed = self.passed if other.passed is None else other.passed
        self.last = latest(self.last, other.last)


def decoded_records(
    records: pa.RecordBatch,
    decoder: TableDecoder,
    rows: TargetRows,
    *,
    logs: bool = False,
    rules: EventRules = NO_RULES,
) -> DecodedRecords:
    """Decodes and validates a batch of records.

    ``logs``: True for a change log, which keeps every change, so that the table needs no key. ``rules``: the
    conditions that each event must meet.

    Raises:
        SourceUnavailableError: A part of a record that is stored elsewhere (claim check, upstream database)
            is not available now.
        ConfigError: The config does not allow tidesink to fetch such a part.
    """
    whole = DecodedRecords(last=last_record(records))
    shared = decoder.table_records(records)
    if shared is not None:
        whole.unlisted, whole.ddl = shared.unlisted, shared.ddl
        if not shared.own.all():
            records = records.filter(pa.array(shared.own))
    whole.records, whole.bytes = records.num_rows, record_bytes(records)
    places = _Places(records, decoder)
    planned = np.ones(records.num_rows, np.bool_)
    for unplanned in decoder.unplanned(records):
        planned[unplanned.record] = False
        whole.others.append(places.unplanned(unplanned))
    if not planned.all():
        records = records.filter(pa.array(planned))
        places = _Places(records, decoder)
    _decode(records, decoder, _Validation(decoder, rows, places, logs=logs, rules=rules), whole)
    return whole


def _decode(
    records: pa.RecordBatch, decoder: TableDecoder, validation: _Validation, whole: DecodedRecords
) -> None:
    decoded = decoder.decode_batch(records)
    whole.row_by_row_records = _row_by_row_records(decoded, decoder)
    _take(records, decoded, validation, whole)
    # Decode these records again without old rows: the invalid value may be in an old row, and only a change
    # log needs old rows.
    again = [fault.record for fault in decoded.faults if validation.may_be_old(fault.error)]
    faults = (fault for fault in decoded.faults if not validation.may_be_old(fault.error))
    whole.others += [validation.places.bad(fault.record, 0, fault.error) for fault in faults]
    if again:
        some = records.take(pa.array(again))
        decoded_again = decoder.decode_new_rows(some, validation.rows.keys)
        inner = _Validation(
            decoder, validation.rows, _Places(some, decoder), logs=False, rules=validation.rules
        )
        _take(some, decoded_again, inner, whole)
        whole.others += [inner.places.bad(fault.record, 0, fault.error) for fault in decoded_again.faults]


def _row_by_row_records(decoded: DecodedBatch, decoder: TableDecoder) -> int:
    """Returns the number of records with rows that the slower row codec had to decode.

    Control events that the columnar decoder never decodes are not counted.
    """
    events = zip(decoded.event_records, decoded.events, strict=True)
    control = {record for record, event in events if not isinstance(event, decoder.columnar_events)}
    return max(0, decoded.row_by_row_records - len(control))


def _take(
    records: pa.RecordBatch, decoded: DecodedBatch, validation: _Validation, whole: DecodedRecords
) -> None:
    """Validates the decoded events, and adds them to ``whole``. The caller adds the decoding errors."""
    silent = np.ones(records.num_rows, np.bool_)
    for table in decoded.tables:
        silent[table.rows["record"].to_numpy()] = False
        first, void, waits = table.rows["index"].to_numpy() == 0, *validation.void_and_waiting(table, records)
        whole.void += int(void.sum())
        whole.void_records += int(first[void].sum())
        if waits.any():
            whole.waiting_records += int(first[waits].sum())
            whole.waits = least([whole.waits, int(table.rows["offset"].to_numpy()[waits].min())])
        left = void | waits
        if left.all():
            continue
        living = replace(table, rows=table.rows.filter(pa.array(~left))) if left.any() else table
        sound, bad = validation.of(living, records)
        whole.others += bad
        if sound is not None:
            whole.tables.append(validation.with_warnings(sound, decoded.warnings))
    silent[[fault.record for fault in decoded.faults]] = False
    for record, event in zip(decoded.event_records, decoded.events, strict=True):
        silent[record] = False
        whole.others.append(validation.places.control(record, event))
    if silent.any():
        whole.silent.append(records.select(["topic", "partition", "offset"]).filter(pa.array(silent)))


class _Places:
    """Creates an ``OtherRecord`` object for a record, which is given by its index in a batch."""

    def __init__(self, records: pa.RecordBatch, decoder: TableDecoder) -> None:
        self._records = records
        self._decoder = decoder

    def bad(self, record: int, index: int, error: TidesinkError) -> OtherRecord:
        """Describes a bad record: it cannot be decoded, or its row cannot be applied."""
        return self._with_bytes(record, index, BAD, error=type(error).__name__, reason=bad_reason(error))

    def unplanned(self, unplanned_record: Unplanned) -> OtherRecord:
        """Describes a record that the current decode plan cannot decode.

        It is *unplanned* if a later plan may decode it, and otherwise a bad record.
        """
        if unplanned_record.fault is not None:
            return self._with_bytes(
                unplanned_record.record,
                0,
                BAD,
                error=type(unplanned_record.fault).__name__,
                reason=unplanned_record.fault.message,
            )
        key, value = self._bytes(unplanned_record.record)
        return self._at(
            unplanned_record.record,
            UNPLANNED,
            reason=unplanned_record.reason,
            key_id=self._decoder.schema_id(key),
            value_id=self._decoder.schema_id(value),
        )

    def lacking(self, record: int, index: int, fields: tuple[str, ...]) -> OtherRecord:
        """Describes a record whose row has columns that the decode plan does not have (``fields``)."""
        return self._at(
            record, UNPLANNED, index=index, reason="the row has a column that is new", fields=fields
        )

    def control(self, record: int, event: ControlEvent) -> OtherRecord:
        """Describes a record with a DDL event, a watermark or another message without rows."""
        index = event.position.index
        if isinstance(event, DdlEvent):
            query, time = event.query[:MOST_QUERY], self._time(record)
            statement = DdlStatement(event.commit_ts, event.kind, query, time)
            moment = _signed(event.commit_ts)
            return self._at(record, DDL, index=index, commit_ts=moment, statement=statement)
        if isinstance(event, WatermarkEvent):
            return self._at(record, WATERMARK, index=index, commit_ts=_signed(event.commit_ts))
        return self._at(record, MESSAGE, index=index)

    def _with_bytes(self, record: int, index: int, kind: str, **members: Any) -> OtherRecord:
        key, value = self._bytes(record)
        ids = {"key_id": self._decoder.schema_id(key), "value_id": self._decoder.schema_id(value)}
        return self._at(record, kind, index=index, key=key, value=value, **ids, **members)

    def _time(self, record: int) -> int | None:
        """Returns Kafka's timestamp of a record in ms since 1970, or None if timestamps were not fetched."""
        has_timestamps = "timestamp" in self._records.schema.names
        return self._records.column("timestamp")[record].as_py() if has_timestamps else None

    def _bytes(self, record: int) -> tuple[bytes | None, bytes | None]:
        key, value = (self._records.column(name)[record].as_py() for name in ("key", "value"))
        return key, value

    def _at(self, record: int, kind: str, **members: Any) -> OtherRecord:
        topic, partition, offset = (
            self._records.column(name)[record].as_py() for name in ("topic", "partition", "offset")
        )
        return OtherRecord(kind, topic, partition, offset, **members)


def _signed(moment: int | None) -> int | None:
    return moment if moment is not None and moment < _END_OF_LONGS else None


class _Validation:
    """Checks that row changes belong to this table, identify a row, and fit the target's columns."""

    def __init__(
        self, decoder: TableDecoder, rows: TargetRows, places: _Places, *, logs: bool, rules: EventRules
    ) -> None:
        self._decoder, self._logs = decoder, logs
        self.rows, self.places, self.rules = rows, places, rules

    def may_be_old(self, error: TidesinkError) -> bool:
        """Returns True if the record is to be decoded again without old rows, because the invalid value that
        caused ``error`` may be in an old row. Only a change log needs old rows.
        """
        return isinstance(error, ValueOutOfRangeError) and not self._logs

    def void_and_waiting(self, changes: ChangeTable, records: pa.RecordBatch) -> tuple[Flags, Flags]:
        """Returns two masks over the changes: changes that are void, and changes that wait.

        A change is void if DDL emptied the table after it. A change waits if its commit_ts is above the
        bound.
        """
        void = waits = np.zeros(changes.rows.num_rows, np.bool_)
        if not self._decoder.holds(changes):
            return void, waits
        if self.rules.emptied is not None:
            before = pc.less_equal(self._decoder.moments(changes, records), self.rules.emptied)
            void = pc.fill_null(before, False).to_numpy(zero_copy_only=False)
        if self.rules.bound is not None:
            above = pc.greater(changes.rows["commit_ts"].combine_chunks(), self.rules.bound)
            waits = pc.fill_null(above, False).to_numpy(zero_copy_only=False)
        return void, waits & ~void

    def of(
        self, changes: ChangeTable, records: pa.RecordBatch
    ) -> tuple[ChangeTable | None, list[OtherRecord]]:
        """Checks changes that were decoded from ``records``.

        Returns the valid changes, or None if all are invalid, and a bad or unplanned record for each of the
        others.
        """
        error = self._refusal(changes)
        if error is not None:
            return None, [self.places.bad(*record_event, error) for record_event in _places(changes)]
        lacking = self._decoder.lacking(changes, self.rows, records)
        if lacking:
            return None, [self.places.lacking(*record_event, lacking) for record_event in _places(changes)]
        wrong = dict(self._wrong(changes))
        if not wrong:
            return changes, []
        sound = np.ones(changes.rows.num_rows, np.bool_)
        sound[list(wrong)] = False
        places = list(_places(changes))
        bad = [self.places.bad(*places[index], error) for index, error in sorted(wrong.items(), key=_first)]
        rows = changes.rows.filter(pa.array(sound))
        return (replace(changes, rows=rows) if rows.num_rows else None), bad

    def with_warnings(self, changes: ChangeTable, warnings: Sequence[RowWarning]) -> ChangeTable:
        """Adds a column with the warnings about the changes, if the decoder may warn, and returns them."""
        if self._decoder.warn is None:
            return changes
        if warnings:
            texts = {(warning.record, warning.index): warning.text for warning in warnings}
            column = pa.array(map(texts.get, _places(changes)), pa.string())
        else:
            column = pa.nulls(changes.rows.num_rows, pa.string())
        return replace(changes, rows=changes.rows.append_column(WARNING, column))

    def _refusal(self, changes: ChangeTable) -> TidesinkError | None:
        if self._decoder.holds(changes):
            return self._decoder.refusal(changes, self.rows)
        return self._decoder.other_table(changes)

    def _wrong(self, changes: ChangeTable) -> Iterator[tuple[int, TidesinkError]]:
        """Yields the index and the error of each invalid change.

        If a change has several errors, the caller uses the last one.
        """
        yield from self.rules.wrong(changes)
        yield from self._decoder.wrong(changes)
        if self.rows.keys:
            unnamed = self._decoder.unnamed(self.rows.keys)
            for index in np.flatnonzero(~named_rows(changes, self.rows.keys)).tolist():
                yield index, unnamed
        elif self._logs:
            lost = pc.and_(_is(changes, DELETE), pc.is_null(changes.rows["before"]))
            for index in np.flatnonzero(lost.to_numpy(zero_copy_only=False)).tolist():
                yield index, UnnamedRowError(UNNAMED_DELETE)
        yield from self.rows.unfit(changes, before=self._logs).items()


def _each(flags: pa.Array, error: TidesinkError) -> Iterator[tuple[int, TidesinkError]]:
    for index in np.flatnonzero(flags.to_numpy(zero_copy_only=False)).tolist():
        yield index, error


def _first(indexed_error: tuple[int, TidesinkError]) -> int:
    return indexed_error[0]


def _is(changes: ChangeTable, op: str) -> Any:
    return pc.equal(changes.rows["op"].combine_chunks().dictionary_decode(), op)


def _places(changes: ChangeTable) -> Iterator[tuple[int, int]]:
    """Yields each change's record (its index in the batch), and the position of the event in the record."""
    return zip(changes.rows["record"].to_pylist(), changes.rows["index"].to_pylist(), strict=True)


def record_bytes(records: pa.RecordBatch) -> int:
    """Returns the total size of the records' keys and values in bytes."""
    lengths = (pc.binary_length(records.column(name)) for name in ("key", "value"))
    return sum(int(pc.sum(column_lengths).as_py() or 0) for column_lengths in lengths)
