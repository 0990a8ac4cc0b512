"""Plans of canal-json tables: from the table's columns as they are known, since messages have bare types.

The bytes are TiCDC's (tiflow c7b2588, new architecture b813e76). Types and keys are the plan's: DDL in a
message changes none of them, and a row that contradicts them is a bad record (``DefinedShapes``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.batch import ChangeTable, DecodedBatch, ValueOptions, rows_from_events
from tidesink.codecs.canal_json.codec import CanalJsonCodec, keyed_by_row
from tidesink.codecs.canal_json.scan import NamedRecords, TableNames, stamped_es
from tidesink.codecs.canal_json.schema import DefinedShapes
from tidesink.codecs.large_messages import LargeMessages
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
from tidesink.sinks.batch.decoders import DecodePlan
from tidesink.sinks.batch.records import Flags, TableDecoder
from tidesink.sinks.batch.target_rows import DroppedNow, TargetRows
from tidesink.typemap.table import AmbiguousTime, ZeroDate
from tidesink.typemap.target_schema import (
    ROW_KEY_COLUMNS,
    LeftOut,
    ShapeColumn,
    TableShape,
    is_row_keyed,
    merge_shape,
    needs_all,
    row_keyed,
    shape_of,
    shown_columns,
    unread_columns,
)


@dataclass(frozen=True)
class CanalJsonDecoder(TableDecoder):
    """Decodes the canal-json records of one table.

    ``schema`` has its columns as rows are read, also under the names they had before. ``keys`` name its rows;
    ``own_keys``: they are the source's and not the config's, so that a row which names another key is bad.
    ``by_row_key``: rows are named by TiDB's row keys, and one without it is bad. ``options`` say where rows
    lie that were too large. ``topic``: tells the table's records from others'; None: a record that names
    another table is bad. ``unread``: as in ``TargetRows``: their texts are not read by a type.
    """

    table: TableId
    schema: TableSchema
    keys: tuple[str, ...]
    own_keys: bool
    time_zone: str
    zero_date: ZeroDate
    options: CodecOptions = CodecOptions()  # noqa: RUF009  (it is frozen)
    by_row_key: bool = False
    topic: TableNames | None = None
    ambiguous_time: AmbiguousTime = "first"
    unread: frozenset[str] = frozenset()

    @property
    def uses_timestamps(self) -> bool:
        """As ``TableDecoder``: DDL events are common, and each is kept with Kafka's time."""
        return True

    def usable(self, records: pa.RecordBatch) -> Flags | None:
        """The records that name this table, or none."""
        found = self._named_by(records)
        return None if found is None else found.own(self.table)

    def strangers(self, records: pa.RecordBatch) -> int:
        """How many of the records are rows of tables that nobody knows yet."""
        found = self._named_by(records)
        return 0 if found is None else int(found.strangers.sum())

    def ddl(self, records: pa.RecordBatch) -> int:
        """How many of the records are DDL events, of whatever table."""
        found = self._named_by(records)
        return 0 if found is None else int(found.ddl.sum())

    def decode_batch(self, records: pa.RecordBatch) -> DecodedBatch:
        """The records' events.

        Raises:
            SourceUnavailableError: claim-check storage or the upstream do not answer.
            ConfigError: one of them cannot be opened as it is configured.
        """
        if self.by_row_key:
            return rows_from_events(records, self.decode, self.values)
        return super().decode_batch(records)

    def decode(self, message: Message) -> tuple[Event, ...]:
        """The events of one record, by the row codec.

        Raises: as ``decode_batch``, and
            DecodeError: it cannot be decoded.
        """
        events = super().decode(message)
        if not self.by_row_key:
            return events
        return tuple(self._named(event) if isinstance(event, ChangeEvent) else event for event in events)

    def decode_new_rows(self, records: pa.RecordBatch, keys: Sequence[str]) -> DecodedBatch:
        """The same by the row codec alone, of an update's old row nothing but the columns of ``keys``."""
        named = {fold_name(name) for name in keys}

        def decode(message: Message) -> tuple[Event, ...]:
            return self.decode(replace(message, value=_with_old_keys(message.value, named)))

        return rows_from_events(records, decode, self.values)

    def old_rows(self, changes: ChangeTable) -> tuple[pa.StructArray, pa.ListArray | None]:
        """The rows before the changes; a delete's is unknown where its record has the key alone."""
        before, _ = super().old_rows(changes)
        whole = changes.rows["before"].combine_chunks()
        if before.null_count == whole.null_count:
            return whole, None
        deleted = pc.equal(changes.rows["op"].combine_chunks().dictionary_decode(), Op.DELETE.value)
        return pc.if_else(deleted, before, whole), None

    def moments(self, changes: ChangeTable, records: pa.RecordBatch) -> pa.Array:
        """When each of the changes was committed: without the TiDB extension the end of its millisecond."""
        known = super().moments(changes, records)
        if not known.null_count:
            return known
        lacking = known.is_null()
        rows = changes.rows.select(["record", "index"]).filter(lacking)
        return pc.replace_with_mask(known, lacking, _moments(self._es(rows, records)))

    def _es(self, rows: pa.Table, records: pa.RecordBatch) -> pa.Array:
        """The member ``es`` of the records that rows are of."""
        record = rows["record"].combine_chunks()
        stamped = stamped_es(records.column("value").take(record))
        # A record may hold several messages, of which the first has the first stamp.
        first = pc.equal(rows["index"].combine_chunks(), 0)
        found = pc.if_else(first, stamped, pa.scalar(None, pa.int64()))
        if not found.null_count:
            return found
        odd = found.is_null()
        places = rows.filter(odd).to_pylist()
        others = [self._odd_es(records.slice(one["record"], 1), one["index"]) for one in places]
        return pc.replace_with_mask(found, odd, pa.array(others, pa.int64()))

    def _odd_es(self, record: pa.RecordBatch, index: int) -> int | None:
        """The same of an event in a record that is not written as TiCDC does, or is compressed."""
        topic, partition, offset, value = (
            record.column(name)[0].as_py() for name in ("topic", "partition", "offset", "value")
        )
        try:
            event = self.decode(Message(topic, partition, offset, None, value))[index]
        except DecodeError:  # of an old row's value alone, or it would be no row
            return None
        es = (event.extension or {}).get("es") if isinstance(event, ChangeEvent) else None
        return es if type(es) is int and 0 < es <= LAST_MS else None

    @property
    def values(self) -> ValueOptions:
        """The policies for times, and the zone."""
        return ValueOptions(self.zero_date, self.time_zone, ambiguous_time=self.ambiguous_time)

    def _named_by(self, records: pa.RecordBatch) -> NamedRecords | None:
        if self.topic is None:
            return None
        # Both questions are asked of the same records.
        if not self._last or self._last[0][0] is not records:
            self._last[:] = [(records, self.topic.of(records))]
        return self._last[0][1]

    @cached_property
    def _last(self) -> list[tuple[pa.RecordBatch, NamedRecords]]:
        return []

    def _named(self, event: ChangeEvent) -> ChangeEvent:
        """The event under its row key."""
        assert event.schema is not None  # noqa: S101  (canal-json's events have one)
        found = self._row_keyed.get(id(event.schema))
        if found is None or found[0] is not event.schema:
            own = (Column(one.name, one.type, handle=True) for one in ROW_KEY_COLUMNS)
            columns = (*own, *event.schema.columns)
            # With the schema it is made of, so that its id stays its own.
            found = self._row_keyed[id(event.schema)] = event.schema, replace(event.schema, columns=columns)
        return keyed_by_row(event)._replace(schema=found[1])

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
    """``row_moment`` of rows by their ``es``; null where it is null or no time."""
    sound = pc.and_(pc.greater(es, 0), pc.less_equal(es, LAST_MS))
    known = pc.if_else(sound, es, pa.scalar(None, pa.int64()))
    return pc.bit_wise_or(pc.shift_left(known, LOGICAL_BITS), LOGICAL)


@lru_cache(maxsize=8)
def _large_messages(options: CodecOptions) -> LargeMessages:
    # Stays with its connections while the executor's Python process lives.
    return (_PlainMessages if options.large_message_handle_compression == "none" else LargeMessages)(options)


class _PlainMessages(LargeMessages):
    """For topics that are not said to be compressed: Spark looks for tables and DDL in plain values."""

    def plain(self, value: bytes) -> None:
        """Nothing, for a value that is not compressed.

        Raises:
            FramingError: it is.
        """
        if super().plain(value) is not None:
            raise FramingError(
                "the value is compressed: set source.large-message-handle-compression as the changefeed has "
                "it"
            )


def _with_old_keys(value: bytes | None, keys: Collection[str]) -> bytes | None:
    """A message whose old rows have nothing but their keys; what is no plain JSON object stays as it is."""
    try:
        parsed: Any = orjson.loads(value or b"")
        old = [{name: one[name] for name in one if fold_name(name) in keys} for one in parsed["old"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return value
    return orjson.dumps({**parsed, "old": old})


def canal_json_plan(  # noqa: PLR0913  (all that a plan rests on)
    schema: TableSchema,
    *,
    base: TableShape | None = None,
    keys: tuple[str, ...] | None = None,
    zero_date: ZeroDate = "null",
    ambiguous_time: AmbiguousTime = "first",
    time_zone: str = "UTC",
    options: CodecOptions | None = None,
    logs: bool = False,
    by_row_key: bool = False,
    renamed: Mapping[str, str] | None = None,
    left_out: LeftOut = needs_all,
) -> DecodePlan:
    """A plan for a table from its columns as they are now.

    ``base`` is the shape the target has; it is only added to: a column of it that ``schema`` lacks was
    dropped. ``keys`` override the schema's handle key. ``options`` say how messages are read. ``logs``: see
    ``DecodePlan``; a table needs no key then. ``by_row_key``: a table without one is under its rows' row
    keys. ``renamed``: see ``TargetRows``. ``left_out``: see ``merge_shape``.

    Raises:
        ConfigError: ``keys`` names a column the table does not have.
        SchemaRefusedError: a column's type cannot be one with the base shape's, or the keys are others.
    """
    shape = shape_of(
        schema, keys=keys, zero_date=zero_date, time_zone=time_zone, ambiguous_time=ambiguous_time
    )
    current = frozenset(fold_name(column.name) for column in shape.columns)
    if by_row_key and not shape.keys:
        shape = row_keyed(shape)
    whole = shape if base is None else merge_shape(base, shape, left_out=left_out)
    source = shown_columns(whole)
    gone, called = frozenset(source.by_name) - current, renamed or {}
    unread = unread_columns(whole, left_out)
    decoder = CanalJsonDecoder(
        source.table,
        TableSchema(source.table, tuple(_columns(source, called))),
        whole.keys,
        own_keys=keys is None,
        time_zone=whole.time_zone,
        zero_date=whole.zero_date,
        options=options or CodecOptions(),
        by_row_key=is_row_keyed(whole),
        ambiguous_time=whole.ambiguous_time,
        unread=unread,
    )
    rows = TargetRows(whole, DroppedNow(gone), called, unread=unread)
    return DecodePlan(rows, decoder, gone=gone, logs=logs)


def _columns(shape: TableShape, renamed: Mapping[str, str]) -> Iterator[Column]:
    """The columns as rows are read: those of the shape, and each under the names it had before."""
    for column in shape.columns:
        yield _column(column)
    for old, new in renamed.items():
        found = shape.by_name.get(fold_name(new))
        if found is not None and fold_name(old) not in shape.by_name:
            yield replace(_column(found), name=old)


def _column(column: ShapeColumn) -> Column:
    """A column as rows are read; types of before that read as the present one are read as it."""
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
