"""The flat-avro codec: TiCDC's ``avro`` protocol, of classic TiCDC and of the new architecture.

Bytes: a Confluent header and one Avro record for the key, one for the value. A delete is a null value, a
marker (03 and the commit_ts), or, with ``avro-include-before-value``, a record whose ``_tidb_op`` is ``d``
(tiflow c7b2588, ticdc b813e76). The bytes themselves show which of the two producers wrote them.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tidesink.codecs.base import (
    HEADER_SIZE,
    BatchDecoder,
    ByIdentity,
    CodecOptions,
    EncodedRecord,
    TableOfTopic,
    schema_id_of,
)
from tidesink.codecs.flat_avro.decode import BIT_WIDTH, FULL, DecodePlan, RecordReader
from tidesink.codecs.flat_avro.encode import RecordWriter, key_row
from tidesink.codecs.flat_avro.framing import (
    DeleteMarker,
    GlueFrames,
    decode_control,
    encode_ddl,
    encode_delete_marker,
    encode_watermark,
    is_glue_framed,
)
from tidesink.codecs.flat_avro.record import WriterRecord, parse_record
from tidesink.codecs.flat_avro.schema import includes_before, key_record, value_record
from tidesink.codecs.row_checksum import CHECKSUM, RowSums
from tidesink.errors import (
    ChecksumError,
    DecodeError,
    EncodeError,
    RegistryError,
    SchemaMismatchError,
    TidesinkError,
)
from tidesink.events import (
    ChangeEvent,
    Column,
    DdlEvent,
    Event,
    Message,
    MessageEvent,
    Op,
    SchemaIds,
    TableId,
    TableSchema,
)
from tidesink.schema_registry.base import SchemaRegistry, SchemaSource
from tidesink.schema_registry.naming import SubjectPart, subject

if TYPE_CHECKING:
    from tidesink.codecs.batch import Columnar, ValueOptions
    from tidesink.codecs.flat_avro.columns import FlatAvroColumns


# Kafka's own bytes around a record, as TiCDC counts them against max-message-bytes.
_RECORD_OVERHEAD: Final = 36
_MOST_WRITERS: Final = 4096
_log = logging.getLogger(__name__)


class FlatAvroCodec(BatchDecoder):
    """Decodes and encodes flat-avro; one instance may be shared by threads.

    ``table_of_topic`` says which table a topic carries; without it, or where it gives None, the table has
    the record's own names, which are sanitised. ``glue`` gives the schemas of messages that AWS Glue frames
    in Confluent's place. With ``checksum="warn"`` in the options, rows that are not what
    their checksum says are logged by the logger of this module's name.
    """

    name: Final = "flat-avro"

    def __init__(
        self,
        *,
        registry: SchemaRegistry,
        options: CodecOptions | None = None,
        table_of_topic: TableOfTopic | None = None,
        glue: SchemaSource | None = None,
    ) -> None:
        self._registry = registry
        self._options = options or CodecOptions()
        self._table_of_topic = table_of_topic
        self._records: dict[int, WriterRecord] = {}
        self._glue = GlueFrames(glue, self._records)
        self._plans: dict[Any, DecodePlan] = {}
        self._columns: dict[ValueOptions, FlatAvroColumns] = {}
        self._writers = ByIdentity(self._new_writer, _MOST_WRITERS)
        self._id_writers: dict[tuple[int, bool], RecordWriter] = {}

    def decode(self, message: Message) -> tuple[Event, ...]:
        """The one event of a Kafka record.

        Raises:
            DecodeError: this record cannot be decoded; context has topic, partition and offset.
            RegistryError: the writer's schema cannot be had.
        """
        key, value = message.key, message.value
        plan = self._plans.get((message.topic, key and key[:HEADER_SIZE], value and value[:HEADER_SIZE]))
        try:
            if plan is None:
                if is_glue_framed(message):
                    return self._decode_glue(message)
                control = decode_control(message)
                if isinstance(control, DeleteMarker):
                    return (self._marked_delete(message, control),)
                if control is not None:
                    return (control,)
                plan = self._plan(message)
            return (plan.read(message) if plan.sums is None else self._summed(message, plan.sums, plan),)
        except (DecodeError, RegistryError) as error:
            raise _placed(error, message) from error

    def columnar(self, options: ValueOptions) -> Columnar:
        """The columnar step, for ``codecs.batch.decode_in_columns``."""
        from tidesink.codecs.flat_avro.columns import FlatAvroColumns

        known = self._columns.get(options)
        if known is None:
            known = self._columns[options] = FlatAvroColumns(self._plan_of, options)
        return known

    def encode(self, event: Event, *, topic: str) -> EncodedRecord | None:
        """The Kafka record of an event, its schemas registered under the topic's subjects.

        DDL and watermarks are sent only with ``enable-tidb-extension`` and ``avro-enable-watermark``.

        Raises:
            EncodeError: flat-avro cannot write this event.
            IncompatibleSchemaError: the registry refuses the table's schema; names the field.
            RegistryError: the schema cannot be registered.
        """
        if not isinstance(event, ChangeEvent):
            return self._encode_control(event)
        try:
            key = _key(self._writer(event, topic, "key"), event)
            return self._checked(EncodedRecord(key, self._value(event, topic)))
        except TidesinkError as error:
            raise error.with_context(table=str(event.table), topic=topic) from error

    def encode_with_ids(self, event: ChangeEvent) -> EncodedRecord:
        """The Kafka record of an event under the very schemas ``event.schema_id`` names; registers nothing.

        The exact inverse of ``decode``, for rows under the schema's own (sanitised) column names. BIT is
        written in full width where the event or the schema shows it, or ``producer`` says so. A delete
        without a value's schema is a marker where it has a commit_ts, which only a marker carries.

        Raises:
            EncodeError: the event has no schema ids, or does not fit them.
            RegistryError: an id is unknown, or the registry does not answer.
        """
        if event.schema_id is None or event.schema_id == (None, None):
            raise EncodeError("the event has no schema ids", table=str(event.table))
        key_id, value_id = event.schema_id
        wide = self._options.producer == "new" or (event.extension or {}).get(BIT_WIDTH) == FULL
        try:
            key = None if key_id is None else _key(self._id_writer(key_id, wide), event)
            value = None if value_id is None else self._id_writer(value_id, wide).write_event(event)
            if value_id is None and event.commit_ts is not None:
                value = encode_delete_marker(event.commit_ts)
        except TidesinkError as error:
            raise error.with_context(table=str(event.table)) from error
        return EncodedRecord(key, value)

    def schema_of(self, schema_id: int, *, keys: tuple[str, ...] = ()) -> TableSchema:
        """The columns of a registered schema as a table's, under its own names; ``keys`` are the key's.

        Raises:
            SchemaMismatchError: the schema is none of flat-avro.
            RegistryError: the id is unknown, or the registry does not answer.
        """
        record = self._record(schema_id)
        return record.table_schema(record.table, keys)

    def _record(self, schema_id: int) -> WriterRecord:
        record = self._records.get(schema_id)
        if record is None:
            text = self._registry.schema_by_id(schema_id)
            try:
                record = self._records[schema_id] = parse_record(text)
            except DecodeError as error:
                raise error.with_context(schema_id=schema_id) from error
        return record

    def _decode_glue(self, message: Message) -> tuple[Event, ...]:
        # Ids that no registry gave are nothing to show.
        (event,) = self.decode(self._glue.translated(message))
        shown = event._replace(schema_id=SchemaIds(None, None)) if isinstance(event, ChangeEvent) else event
        return (shown,)

    def _marked_delete(self, message: Message, marker: DeleteMarker) -> ChangeEvent:
        bare = replace(message, value=None)
        event = self._plan_of(bare).read(bare)
        position = event.position._replace(source=(marker.commit_ts,))
        return event._replace(commit_ts=marker.commit_ts, position=position)

    def _summed(self, message: Message, sums: RowSums, plan: DecodePlan) -> ChangeEvent:
        event = plan.read(message)
        row = event.after if event.after is not None else event.before
        fault = sums.fault(row or {}, event.extension or {})
        if fault is not None and self._options.checksum == "reject":
            raise ChecksumError(fault, table=str(event.table))
        if fault is not None:
            _log.warning("%s[%s]@%s: %s", message.topic, message.partition, message.offset, fault)
        return event

    def _sums(self, value: RecordReader | None) -> RowSums | None:
        if self._options.checksum == "off" or value is None or CHECKSUM not in value.record.extension:
            return None
        record = value.record
        return RowSums(record.table_schema(record.table, ()).columns, self._options.time_zone)

    def _plan_of(self, message: Message) -> DecodePlan:
        heads = (message.key and message.key[:HEADER_SIZE], message.value and message.value[:HEADER_SIZE])
        return self._plans.get((message.topic, *heads)) or self._plan(message)

    def _plan(self, message: Message) -> DecodePlan:
        key = None if message.key is None else schema_id_of(message.key, "key")
        value = None if message.value is None else schema_id_of(message.value, "value")
        key_reader, value_reader = self._reader("key", key), self._reader("value", value)
        if key_reader and (key_reader.record.extension or key_reader.record.before is not None):
            raise SchemaMismatchError("the key's schema id is that of a value's schema", schema_id=key)
        # decode_control has refused a record with neither.
        record = self._record(next(one for one in (value, key) if one is not None))
        named = self._table_of_topic(message.topic) if self._table_of_topic else None
        table = record.table if named is None else named
        keys = key_reader.record.column_names if key_reader else ()
        schema = record.table_schema(table, keys)
        ids, sums = SchemaIds(key, value), self._sums(value_reader)
        plan = DecodePlan(key_reader, value_reader, table, schema, ids, sums)
        heads = (message.key and message.key[:HEADER_SIZE], message.value and message.value[:HEADER_SIZE])
        self._plans[message.topic, heads[0], heads[1]] = plan
        return plan

    def _reader(self, part: str, schema_id: int | None) -> RecordReader | None:
        return None if schema_id is None else RecordReader(part, self._record(schema_id))

    def _encode_control(self, event: Event) -> EncodedRecord | None:
        if isinstance(event, MessageEvent):
            raise EncodeError("flat-avro has no message for Debezium's transactions and messages")
        if not self._sends_control:
            return None
        if isinstance(event, DdlEvent):
            return EncodedRecord(None, encode_ddl(event))
        return EncodedRecord(None, encode_watermark(event))  # type: ignore[arg-type]

    @property
    def _sends_control(self) -> bool:
        return self._options.enable_tidb_extension and self._options.avro_enable_watermark

    def _value(self, event: ChangeEvent, topic: str) -> bytes | None:
        if event.op is Op.TRUNCATE:
            raise EncodeError("flat-avro has no message for a truncate")
        if event.op is not Op.DELETE or includes_before(self._options):
            writer = self._writer(event, topic, "value")
            return None if writer is None else writer.write_event(event)
        if self._sends_control and self._options.producer == "new":
            return encode_delete_marker(event.commit_ts)
        return None

    def _checked(self, record: EncodedRecord) -> EncodedRecord:
        size = len(record.key or b"") + len(record.value or b"") + _RECORD_OVERHEAD
        if size > self._options.max_message_bytes:
            raise EncodeError(
                f"the message has {size} bytes and max-message-bytes is {self._options.max_message_bytes}: "
                "flat-avro cannot split or move it, so raise the limit here and at the topic"
            )
        return record

    def _writer(self, event: ChangeEvent, topic: str, part: SubjectPart) -> RecordWriter | None:
        schema = event.schema
        if schema is None:
            raise EncodeError("the event has no schema, from which its Avro schemas are built")
        return self._writers.get(schema, event.table, topic, part)

    def _new_writer(
        self, schema: TableSchema, table: TableId, topic: str, part: SubjectPart
    ) -> RecordWriter | None:
        build = key_record if part == "key" else value_record
        built = build(schema, table, self._options)
        if built is None:
            return None
        text = built.text
        record = parse_record(text)
        schema_id = self._registry.register(subject(topic, part), text)
        full_width = self._options.producer == "new"
        writer = RecordWriter.of(schema_id, record, columns=built.columns, full_width_bit=full_width)
        return (
            replace(writer, sums=RowSums(built.summed, self._options.time_zone)) if built.summed else writer
        )

    def _id_writer(self, schema_id: int, wide: bool) -> RecordWriter:
        writer = self._id_writers.get((schema_id, wide))
        if writer is None:
            record = self._record(schema_id)
            columns = tuple(_without_labels(one) for one in record.table_schema(record.table, ()).columns)
            full_width = wide or record.before is not None
            writer = RecordWriter.of(schema_id, record, columns=columns, full_width_bit=full_width)
            self._id_writers[schema_id, wide] = writer
        return writer


def _without_labels(column: Column) -> Column:
    # `allowed` cannot be split back with certainty, so it is no ground to refuse a label.
    return replace(column, type=replace(column.type, members=None))


def _key(writer: RecordWriter | None, event: ChangeEvent) -> bytes | None:
    return None if writer is None else writer.write_row(key_row(event, writer.rows.names))


def _placed(error: TidesinkError, message: Message) -> TidesinkError:
    return error.with_context(topic=message.topic, partition=message.partition, offset=message.offset)
