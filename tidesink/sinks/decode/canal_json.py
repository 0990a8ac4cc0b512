"""Builds decode plans of canal-json tables from the table's known columns.

The messages of canal-json have only the names of types, such as ``decimal``. So the decode plan decides the
columns' types and the key. DDL in a message does not change them, and a row that contradicts them is a bad
record (``DefinedShapes``). The messages are TiCDC's (tiflow c7b2588, new architecture b813e76).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import ChangeTable, DecodedBatch, ValueOptions, rows_from_events
from tidesink.codecs.canal_json.codec import CanalJsonCodec, keyed_by_row
from tidesink.codecs.canal_json.scan import TableNames, stamped_es
from tidesink.codecs.canal_json.schema import DefinedShapes
from tidesink.codecs.large_messages import LargeMessages
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import LAST_MS, LOGICAL, reads_same
from tidesink.errors import DecodeError, FramingError
from tidesink.events import (
    LOGICAL_BITS,
    ChangeEvent,
    Column,
    Event,
    Message,
    Op,
    TableId,
    TableSchema,
    fold_name,
)
from tidesink.sinks.decode.plans import DEFAULT_SETTINGS, DecodePlan, PlanSettings
from tidesink.sinks.decode.records import TableDecoder, TableRecords
from tidesink.sinks.decode.target_rows import DroppedNow, TargetRows
from tidesink.typemap.table import AmbiguousTime, ZeroDate
from tidesink.typemap.target_schema import (
    ROW_KEY_COLUMNS,
    TargetColumn,
    TargetSchema,
    is_row_keyed,
    merge_schemas,
    row_keyed,
    shape_of,
    shown_columns,
    unread_columns,
)


@dataclass(frozen=True)
class CanalJsonDecoder(TableDecoder):
    """Decodes the canal-json records of one table.

    Attributes:
        schema: The columns that rows may have, with the types in which their values are read. A renamed
            column is also listed under its old name.
        keys: Names of the columns that identify a row.
        own_keys: True if the key is the one of the source table. A row with another key is then a bad record.
        by_row_key: True if TiDB's row keys identify rows. A row without a row key is then a bad record.
        options: Options of the codec, such as the storage of rows that were too large for Kafka (claim
            check).
        topic: Finds the table that a record belongs to. If None, the topic has only one table, and a record
            of another table is a bad record.
        unread: Names of columns whose values are not converted, because the target does not have the columns.
    """

    table: TableId
    schema: TableSchema
    keys: tuple[str, ...]
    own_keys: bool
    time_zone: str
    zero_date: ZeroDate
    options: CanalJsonOptions = CanalJsonOptions()  # noqa: RUF009  (it is frozen)
    by_row_key: bool = False
    topic: TableNames | None = None
    ambiguous_time: AmbiguousTime = "first"
    unread: frozenset[str] = frozenset()

    @property
    def uses_timestamps(self) -> bool:
        """True, because DDL events are stored together with the Kafka timestamps of their records."""
        return True

    def table_records(self, records: pa.RecordBatch) -> TableRecords | None:
        """Returns which records name this table, or None if the topic has only this table."""
        if self.topic is None:
            return None
        named = self.topic.of(records)
        return TableRecords(named.own(self.table), int(named.unlisted.sum()), int(named.ddl.sum()))

    def decode_batch(self, records: pa.RecordBatch) -> DecodedBatch:
        """Returns the events of the records, and the records that cannot be decoded.

        Raises:
            SourceUnavailableError: The claim-check storage or the upstream TiDB does not answer.
            ConfigError: The claim-check storage or the upstream TiDB cannot be opened with this
                configuration.
        """
        if self.by_row_key:
            return rows_from_events(records, self.decode, self.values)
        return super().decode_batch(records)

    def decode(self, message: Message) -> tuple[Event, ...]:
        """Decode one record with the row codec (the decoder of single records), and return its events.

        Raises:
            DecodeError: The record cannot be decoded.
            SourceUnavailableError: The claim-check storage or the upstream TiDB does not answer.
            ConfigError: The claim-check storage or the upstream TiDB cannot be opened with this
                configuration.
        """
        events = super().decode(message)
        if not self.by_row_key:
            return events
        return tuple(self._named(event) if isinstance(event, ChangeEvent) else event for event in events)

    def decode_new_rows(self, records: pa.RecordBatch, keys: Sequence[str]) -> DecodedBatch:
        """Decode records one by one with the row codec, without values of old rows.

        An update's old row keeps only its key columns (``keys``). So an invalid value in an old row is no
        error.
        """
        named = {fold_name(name) for name in keys}

        def decode(message: Message) -> tuple[Event, ...]:
            return self.decode(replace(message, value=_with_old_keys(message.value, named)))

        return rows_from_events(records, decode, self.values)

    def old_rows(self, changes: ChangeTable) -> tuple[pa.StructArray, pa.ListArray | None]:
        """Returns the rows before the changes. For a delete whose record has only the key, it is null."""
        before, _ = super().old_rows(changes)
        whole = changes.rows["before"].combine_chunks()
        if before.null_count == whole.null_count:
            return whole, None
        deleted = pc.equal(changes.rows["op"].combine_chunks().dictionary_decode(), Op.DELETE.value)
        return pc.if_else(deleted, before, whole), None

    def moments(self, changes: ChangeTable, records: pa.RecordBatch) -> pa.Array:
        """Returns the commit time of each change as a TSO.

        If the record has no TSO (it is without the TiDB extension), it is the last TSO of the commit's
        millisecond.
        """
        commit_times = super().moments(changes, records)
        if not commit_times.null_count:
            return commit_times
        lacking = commit_times.is_null()
        rows = changes.rows.select(["record", "index"]).filter(lacking)
        return pc.replace_with_mask(commit_times, lacking, _moments(self._es(rows, records)))

    def _es(self, rows: pa.Table, records: pa.RecordBatch) -> pa.Array:
        """Returns the member ``es`` (commit time in ms since 1970) of the message of each row."""
        record = rows["record"].combine_chunks()
        stamped = stamped_es(records.column("value").take(record))
        # A record may hold several messages. The first ``es`` belongs to the first message.
        first = pc.equal(rows["index"].combine_chunks(), 0)
        times = pc.if_else(first, stamped, pa.scalar(None, pa.int64()))
        if not times.null_count:
            return times
        odd = times.is_null()
        places = rows.filter(odd).to_pylist()
        others = [self._odd_es(records.slice(row["record"], 1), row["index"]) for row in places]
        return pc.replace_with_mask(times, odd, pa.array(others, pa.int64()))

    def _odd_es(self, record: pa.RecordBatch, index: int) -> int | None:
        """Decode a record to get ``es`` of the event ``index`` in it.

        Used for records that are compressed or do not have TiCDC's usual form.
        """
        topic, partition, offset, value = (
            record.column(name)[0].as_py() for name in ("topic", "partition", "offset", "value")
        )
        try:
            event = self.decode(Message(topic, partition, offset, None, value))[index]
        except DecodeError:  # only the old row's value can be bad, because the new row was decoded
            return None
        es = (event.extension or {}).get("es") if isinstance(event, ChangeEvent) else None
        return es if type(es) is int and 0 < es <= LAST_MS else None

    @property
    def values(self) -> ValueOptions:
        """The policies for impossible dates and ambiguous times, and the time zone."""
        return ValueOptions(self.zero_date, self.time_zone, ambiguous_time=self.ambiguous_time)

    def _named(self, event: ChangeEvent) -> ChangeEvent:
        """Returns the event with TiDB's row key as its key."""
        assert event.schema is not None  # noqa: S101  (canal-json's events have one)
        cached = self._row_keyed.get(id(event.schema))
        if cached is None or cached[0] is not event.schema:
            own = (Column(column.name, column.type, handle=True) for column in ROW_KEY_COLUMNS)
            columns = (*own, *event.schema.columns)
            # The original schema is stored with it, so that the schema's id() is not reused.
            cached = self._row_keyed[id(event.schema)] = event.schema, replace(event.schema, columns=columns)
        return keyed_by_row(event)._replace(schema=cached[1])

    @cached_property
    def _row_keyed(self) -> dict[int, tuple[TableSchema, TableSchema]]:
        return {}

    @cached_property
    def _codec(self) -> CanalJsonCodec:
        definitions = TableDefinitions([self.schema])
        keys = () if self.by_row_key else self.keys
        return CanalJsonCodec(
            options=replace(self.options, time_zone=self.time_zone),
            definitions=definitions,
            shapes=DefinedShapes(
                definitions,
                {self.table: keys},
                own_keys=self.own_keys,
                binary_text=self.options.binary_text,
                unread=self.unread,
            ),
            large=_large_messages(self.options),
        )


def _moments(es: pa.Array) -> pa.Array:
    """Returns the last TSO of each millisecond in ``es``; null if the value is null or not a valid time."""
    sound = pc.and_(pc.greater(es, 0), pc.less_equal(es, LAST_MS))
    times = pc.if_else(sound, es, pa.scalar(None, pa.int64()))
    return pc.bit_wise_or(pc.shift_left(times, LOGICAL_BITS), LOGICAL)


@lru_cache(maxsize=8)
def _large_messages(options: CanalJsonOptions) -> LargeMessages:
    # The connections of LargeMessages stay open as long as the executor's Python process.
    return (_PlainMessages if options.large_message_handle_compression == "none" else LargeMessages)(options)


class _PlainMessages(LargeMessages):
    """Reads large messages of a topic whose messages are not compressed, according to the config.

    A compressed message is an error then, because tables and DDL are searched in the uncompressed bytes.
    """

    def plain(self, value: bytes) -> None:
        """Check that a value is not compressed.

        Raises:
            FramingError: The value is compressed.
        """
        if super().plain(value) is not None:
            raise FramingError(
                "The value is compressed. Set source.large-message-handle-compression to the changefeed's "
                "setting."
            )


def _with_old_keys(value: bytes | None, keys: Collection[str]) -> bytes | None:
    """Remove all columns except ``keys`` from the old rows in a message.

    A value that is not a message with old rows is returned unchanged.
    """
    try:
        parsed: Any = orjson.loads(value or b"")
        old = [{name: row[name] for name in row if fold_name(name) in keys} for row in parsed["old"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return value
    return orjson.dumps({**parsed, "old": old})


def canal_json_plan(
    schema: TableSchema,
    settings: PlanSettings = DEFAULT_SETTINGS,
    *,
    options: CanalJsonOptions | None = None,
    by_row_key: bool = False,
    renamed: Mapping[str, str] | None = None,
) -> DecodePlan:
    """Build the decode plan of a table with the columns of ``schema``.

    Args:
        schema: The table's current columns. A column of ``settings.base`` that is not among them was dropped.
        settings: The settings of the plan. Without ``settings.keys``, the key of ``schema`` is used.
        options: Options of the codec.
        by_row_key: True if TiDB's row keys identify the rows of a table without a key.
        renamed: New names of renamed columns, by old name.

    Raises:
        ConfigError: ``settings.keys`` has a column that the table does not have.
        SchemaRefusedError: No type holds the values of a column's type and of its type in ``settings.base``,
            or the key differs from the one there.
    """
    shape = shape_of(
        schema,
        keys=settings.keys,
        zero_date=settings.zero_date,
        time_zone=settings.time_zone,
        ambiguous_time=settings.ambiguous_time,
    )
    current = frozenset(fold_name(column.name) for column in shape.columns)
    if by_row_key and not shape.keys:
        shape = row_keyed(shape)
    base, left_out = settings.base, settings.left_out
    whole = shape if base is None else merge_schemas(base, shape, left_out=left_out)
    source = shown_columns(whole)
    dropped, called = frozenset(source.by_name) - current, renamed or {}
    unread = unread_columns(whole, left_out)
    decoder = CanalJsonDecoder(
        source.table,
        TableSchema(source.table, tuple(_columns(source, called))),
        whole.keys,
        own_keys=settings.keys is None,
        time_zone=whole.time_zone,
        zero_date=whole.zero_date,
        options=options or CanalJsonOptions(),
        by_row_key=is_row_keyed(whole),
        ambiguous_time=whole.ambiguous_time,
        unread=unread,
    )
    rows = TargetRows(whole, DroppedNow(dropped), called, unread=unread)
    return DecodePlan(rows, decoder, gone=dropped, logs=settings.logs)


def _columns(shape: TargetSchema, renamed: Mapping[str, str]) -> Iterator[Column]:
    """Yields the columns that rows may have: those of the schema, then renamed ones under their old names."""
    for column in shape.columns:
        yield _column(column)
    for old, new in renamed.items():
        renamed_column = shape.by_name.get(fold_name(new))
        if renamed_column is not None and fold_name(old) not in shape.by_name:
            yield replace(_column(renamed_column), name=old)


def _column(column: TargetColumn) -> Column:
    """Returns a column of the target as a column that rows may have.

    It has earlier types only if values of some earlier type are read differently.
    """
    types = [was.type for was in column.earlier]
    earlier = tuple(
        was._replace(type=column.type) if reads_same(column.type, was.type) else was for was in column.earlier
    )
    apart = not all(reads_same(column.type, was) for was in types)
    return Column(
        column.name,
        column.type,
        default=column.default,
        handle=column.key,
        earlier=earlier if apart else (),
    )
