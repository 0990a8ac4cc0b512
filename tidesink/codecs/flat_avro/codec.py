"""The flat-avro codec: TiCDC's ``avro`` protocol, of classic TiCDC and of the new architecture.

A record's key and value are each a Confluent header and one Avro record. The value of a delete has one of
three forms (tiflow c7b2588, ticdc b813e76):

- null
- a delete marker: byte 03 and the commit_ts as uint64 big-endian. The new architecture writes it with
  ``avro-enable-watermark``, unless values contain the row before the change.
- an Avro record whose ``_tidb_op`` is ``d``, with ``avro-include-before-value``

With ``avro-enable-watermark`` there are also DDL events (byte 01, then JSON) and watermarks (byte 02, then
the commit_ts as uint64 big-endian). Their key is null.

With the AWS Glue Schema Registry, another header replaces the Confluent header: byte 03, a compression byte
(00 none, 05 zlib), and the 16 bytes of the schema version's UUID. The Avro payload follows, compressed or not
(AWS Glue Schema Registry serializers; TiCDC tiflow c7b2588 writes it uncompressed).
"""

from __future__ import annotations

import json
import logging
import re
import struct
import threading
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn
from uuid import UUID

from tidesink.codecs.base import (
    ByIdentity,
    Codec,
    CodecParts,
    EncodedRecord,
    TableOfTopic,
    header,
    schema_id_of,
)
from tidesink.codecs.flat_avro.payloads import (
    BIT_WIDTH,
    FULL,
    DecodePlan,
    RecordReader,
    RecordWriter,
    key_row,
)
from tidesink.codecs.flat_avro.schema import (
    WriterRecord,
    includes_before,
    key_record,
    parse_record,
    schema_text,
    value_record,
)
from tidesink.codecs.framing import GLUE_SIZE, HEADER_SIZE, ids_in_headers, is_glue, not_confluent
from tidesink.codecs.options import FlatAvroOptions
from tidesink.codecs.row_checksum import CHECKSUM, RowSums
from tidesink.errors import (
    ChecksumError,
    DecodeError,
    EncodeError,
    FramingError,
    RegistryError,
    RegistryUnavailableError,
    SchemaMismatchError,
    TidesinkError,
    UnnamedRowError,
    shown,
)
from tidesink.events import (
    ChangeEvent,
    Column,
    DdlEvent,
    Event,
    Message,
    MessageEvent,
    Op,
    Position,
    SchemaIds,
    TableId,
    TableSchema,
    WatermarkEvent,
)
from tidesink.schema_registry.base import SchemaRegistry, SchemaSource
from tidesink.schema_registry.naming import SubjectPart, subject

if TYPE_CHECKING:
    from tidesink.codecs.batch import Columnar, ValueOptions
    from tidesink.codecs.flat_avro.columns import FlatAvroColumns


# TiCDC adds this number of bytes, which Kafka stores with a record, before it compares the size with
# max-message-bytes.
_RECORD_OVERHEAD: Final = 36
_MOST_WRITERS: Final = 4096
_log = logging.getLogger(__name__)


class FlatAvroCodec(Codec):
    """Decodes and encodes flat-avro records. Threads may share an instance.

    ``registry``: schema registry of the topics. ``table_of_topic``: function that returns the table of a
    topic, or None. If it returns None or is not given, the table's names come from the Avro schema, in which
    TiCDC replaced special characters. ``glue``: source of the schemas of messages with an AWS Glue header.
    With the option ``checksum="warn"``, rows that do not match their checksum are logged by this module's
    logger.
    """

    name = "flat-avro"
    _options: FlatAvroOptions

    def __init__(
        self,
        *,
        registry: SchemaRegistry,
        options: FlatAvroOptions | None = None,
        table_of_topic: TableOfTopic | None = None,
        glue: SchemaSource | None = None,
    ) -> None:
        self._registry = registry
        self._options = options or FlatAvroOptions()
        self._table_of_topic = table_of_topic
        self._records: dict[int, WriterRecord] = {}
        self._glue = GlueFrames(glue, self._records)
        self._plans: dict[Any, DecodePlan] = {}
        self._columns: dict[ValueOptions, FlatAvroColumns] = {}
        self._writers = ByIdentity(self._new_writer, _MOST_WRITERS)
        self._id_writers: dict[tuple[int, bool], RecordWriter] = {}

    def decode(self, message: Message) -> tuple[Event, ...]:
        """Returns a tuple with the only event of one Kafka record.

        Raises:
            DecodeError: The record cannot be decoded. The error's context has topic, partition and offset.
            RegistryError: The schema registry does not have, or does not return, the record's schema.
        """
        plan = self._plans.get(_heads(message))
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
            error.with_context(topic=message.topic, partition=message.partition, offset=message.offset)
            elsewhere = ids_in_headers(message.headers)
            if elsewhere is None or isinstance(error, RegistryUnavailableError):
                raise
            raise FramingError(
                elsewhere, topic=message.topic, partition=message.partition, offset=message.offset
            ) from error

    def columnar(self, options: ValueOptions) -> Columnar:
        """Returns the codec's columnar step: a function that decodes many records at once.

        It is an argument of ``codecs.batch.decode_in_columns``.
        """
        from tidesink.codecs.flat_avro.columns import FlatAvroColumns

        decoder = self._columns.get(options)
        if decoder is None:
            decoder = self._columns[options] = FlatAvroColumns(self._plan_of, options)
        return decoder

    def encode(self, event: Event, *, topic: str) -> EncodedRecord | None:
        """Returns the Kafka record of an event. Registers the event's schemas under the topic's subjects.

        For DDL events and watermarks, returns None unless the options ``enable-tidb-extension`` and
        ``avro-enable-watermark`` are on.

        Raises:
            EncodeError: flat-avro cannot represent this event.
            IncompatibleSchemaError: The registry rejects the table's schema as incompatible. The error text
                names the field.
            RegistryError: The schema cannot be registered.
        """
        if not isinstance(event, ChangeEvent):
            return self._encode_control(event)
        try:
            key = _key(self._writer(event, topic, "key"), event)
            return self._checked(EncodedRecord(key, self._value(event, topic)))
        except TidesinkError as error:
            raise error.with_context(table=str(event.table), topic=topic) from error

    def encode_with_ids(self, event: ChangeEvent) -> EncodedRecord:
        """Returns the Kafka record of an event with exactly the schemas in ``event.schema_id``.

        No schema is registered. For a decoded event this returns the bytes that ``decode`` read. The event's
        columns must be named as in the Avro schema. BIT values are written with the column's full width if
        the event's extension or the schema shows this width, or if the option ``producer`` is ``new``. A
        delete without a value schema is written as a delete marker if the event has a commit_ts, and as a
        null value if it does not.

        Raises:
            EncodeError: The event has no schema ids, or it does not fit the schemas.
            RegistryError: The registry does not have a schema with this id, or does not answer.
        """
        if event.schema_id is None or event.schema_id == (None, None):
            raise EncodeError(
                "The event has no schema ids. Pass a decoded event, or use `encode`, which registers "
                "schemas.",
                table=str(event.table),
            )
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
        """Returns the table schema that a registered Avro schema describes.

        ``schema_id``: id of the Avro schema in the registry. ``keys``: names of the key columns. The table
        and its columns are named as in the Avro schema.

        Raises:
            SchemaMismatchError: TiCDC does not write such a schema.
            RegistryError: The registry does not have the schema, or does not answer.
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
        # The schema ids of ``GlueFrames`` are not ids of a registry, so the event does not get them.
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
        if value is None or CHECKSUM not in value.record.extension:
            return None
        record = value.record
        return RowSums(record.table_schema(record.table, ()).columns, self._options.time_zone)

    def _plan_of(self, message: Message) -> DecodePlan:
        return self._plans.get(_heads(message)) or self._plan(message)

    def _plan(self, message: Message) -> DecodePlan:
        key = None if message.key is None else schema_id_of(message.key, "key")
        value = None if message.value is None else schema_id_of(message.value, "value")
        key_reader, value_reader = self._reader("key", key), self._reader("value", value)
        if key_reader and (key_reader.record.extension or key_reader.record.before is not None):
            raise SchemaMismatchError(
                "The key's schema id refers to the schema of a value. Check what wrote the record.",
                schema_id=key,
            )
        # decode_control has already raised an error for a record without key and value.
        record = self._record(next(schema_id for schema_id in (value, key) if schema_id is not None))
        named = self._table_of_topic(message.topic) if self._table_of_topic else None
        table = record.table if named is None else named
        keys = key_reader.record.column_names if key_reader else ()
        schema = record.table_schema(table, keys)
        ids, sums = SchemaIds(key, value), self._sums(value_reader)
        asked = None if self._options.checksum == "off" else sums
        time_sums = sums if sums and sums.has_local_times else None
        plan = DecodePlan(key_reader, value_reader, table, schema, ids, asked, time_sums)
        self._plans[_heads(message)] = plan
        return plan

    def _reader(self, part: str, schema_id: int | None) -> RecordReader | None:
        return None if schema_id is None else RecordReader(part, self._record(schema_id))

    def _encode_control(self, event: Event) -> EncodedRecord | None:
        if isinstance(event, MessageEvent):
            raise EncodeError("flat-avro has no message for Debezium's transaction and message events.")
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
            raise EncodeError("flat-avro has no message for a truncate, which removes all rows.")
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
                f"The message has {size} bytes, but max-message-bytes is {self._options.max_message_bytes}. "
                "flat-avro cannot split a message or store it outside of Kafka, so raise max-message-bytes, "
                "and the topic's max.message.bytes."
            )
        return record

    def _writer(self, event: ChangeEvent, topic: str, part: SubjectPart) -> RecordWriter | None:
        schema = event.schema
        if schema is None:
            raise EncodeError(
                "The event has no table schema, from which its Avro schemas are built. Set the event's "
                "schema."
            )
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
        sums = RowSums(built.summed, self._options.time_zone) if built.summed else None
        return RecordWriter(schema_id, record, built.columns, full_width_bit=full_width, sums=sums)

    def _id_writer(self, schema_id: int, wide: bool) -> RecordWriter:
        writer = self._id_writers.get((schema_id, wide))
        if writer is None:
            record = self._record(schema_id)
            columns = tuple(
                _without_labels(column) for column in record.table_schema(record.table, ()).columns
            )
            full_width = wide or record.before is not None
            writer = RecordWriter(schema_id, record, columns, full_width_bit=full_width)
            self._id_writers[schema_id, wide] = writer
        return writer


def _heads(message: Message) -> tuple[str, bytes | None, bytes | None]:
    """Returns a message's topic and the Confluent headers of key and value, which select its decode plan."""
    key, value = message.key, message.value
    return message.topic, key and key[:HEADER_SIZE], value and value[:HEADER_SIZE]


def _without_labels(column: Column) -> Column:
    # The labels in `allowed` cannot be split with certainty, so written labels are not checked against them.
    return replace(column, type=replace(column.type, members=None))


def _key(writer: RecordWriter | None, event: ChangeEvent) -> bytes | None:
    return None if writer is None else writer.write_row(key_row(event, writer.rows.names))


# Control records, delete markers and AWS Glue frames

_DDL: Final = 1
_WATERMARK: Final = 2
_DELETE_MARKER: Final = 3
_UINT64: Final = struct.Struct(">BQ")
_UINT64_END: Final = 1 << 64
_TS_END: Final = 1 << 63
_NUMBER_END: Final = 10**18
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_REMEDY: Final = "Set avro-include-before-value=true in the changefeed's sink URI"


class DeleteMarker(NamedTuple):
    """The marker that TiCDC writes as the value of a delete. The record's key identifies the deleted row."""

    commit_ts: int


def decode_control(message: Message) -> DdlEvent | WatermarkEvent | DeleteMarker | None:
    """Returns the DDL event, watermark or delete marker in a record, or None if the record is a row change.

    Raises:
        FramingError: The value starts like a DDL event or watermark, but the record has a key.
        SchemaMismatchError: A DDL event, watermark or delete marker does not have TiCDC's form.
        UnnamedRowError: The record is a delete, but it has no key that identifies the row.
    """
    key, value = message.key, message.value
    if value is None:
        if key is None:
            _refuse_unnamed("key and value are null")
        return None
    kind = value[0] if value else None
    if kind == _DELETE_MARKER and not is_glue(value):
        return _marker(key, value)
    if kind not in (_DDL, _WATERMARK):
        return None
    if key is not None:
        raise FramingError(
            f"The value starts with {kind:02x} like a DDL event or watermark, but the key is not null. Is "
            "the topic flat-avro?"
        )
    return _ddl(message, value) if kind == _DDL else _watermark(message, value)


def _refuse_unnamed(how: str) -> NoReturn:
    raise UnnamedRowError(
        f"The delete does not identify a row: {how}. New-architecture TiCDC writes such deletes for a table "
        f"without a primary key, so the delete cannot be applied. {_REMEDY}."
    )


def _marker(key: bytes | None, value: bytes) -> DeleteMarker:
    if key is None:
        _refuse_unnamed("the key is null and the value is a delete marker")
    if len(value) != _UINT64.size:
        raise SchemaMismatchError(
            f"The value starts with 03 like a delete marker, but it has {len(value)} bytes instead of 9. Is "
            "the topic flat-avro?"
        )
    (_, commit_ts) = _UINT64.unpack(value)
    if commit_ts >= _TS_END:
        raise SchemaMismatchError(
            f"The delete marker has commit_ts {commit_ts}, but TiDB's timestamps are below 2^63."
        )
    return DeleteMarker(commit_ts)


def _watermark(message: Message, value: bytes) -> WatermarkEvent:
    if len(value) != _UINT64.size:
        raise SchemaMismatchError(f"The watermark has {len(value)} bytes instead of {_UINT64.size}.")
    (_, commit_ts) = _UINT64.unpack(value)
    position = Position(message.topic, message.partition, message.offset, 0, (commit_ts,))
    return WatermarkEvent(commit_ts, position)


def _ddl(message: Message, value: bytes) -> DdlEvent:
    try:
        members: Any = json.loads(value[1:])
    except (ValueError, RecursionError) as error:
        raise SchemaMismatchError(f"The DDL event is not JSON: {error!s:.120}.") from error
    if not isinstance(members, dict):
        raise SchemaMismatchError("The DDL event is not a JSON object. Is the topic flat-avro?")
    query, schema, table = (_member(members, name, str) for name in ("query", "schema", "table"))
    kind, commit_ts = (_member(members, name, int) for name in ("type", "commitTs"))
    return DdlEvent(
        table=TableId(schema, table),
        query=query,
        kind=str(kind),
        commit_ts=commit_ts,
        position=Position(message.topic, message.partition, message.offset, 0, (commit_ts,)),
        extension={"type": kind},
    )


def _member(members: dict[str, Any], name: str, kind: type) -> Any:
    value = members.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise SchemaMismatchError(
            f"The DDL event has {name}={shown(value, 40)}, but a value of type {kind.__name__} was expected."
        )
    if isinstance(value, int) and abs(value) >= _NUMBER_END:
        raise SchemaMismatchError(f"The member {name} of the DDL event has more than 18 digits.")
    if isinstance(value, str) and _SURROGATE.search(value):
        raise SchemaMismatchError(f"The member {name} of the DDL event is not valid Unicode text.")
    return value


def encode_watermark(event: WatermarkEvent) -> bytes:
    """Returns the record value of a watermark.

    Raises:
        EncodeError: The commit_ts is not an unsigned 64-bit number.
    """
    return _with_ts(_WATERMARK, event.commit_ts)


def encode_delete_marker(commit_ts: int | None) -> bytes:
    """Returns a delete marker, which is the record value of a delete.

    Raises:
        EncodeError: The commit_ts is None, or not an unsigned 64-bit number.
    """
    return _with_ts(_DELETE_MARKER, commit_ts)


def _with_ts(kind: int, commit_ts: int | None) -> bytes:
    if commit_ts is None or not 0 <= commit_ts < _UINT64_END:
        raise EncodeError(f"commit_ts {commit_ts} is not an unsigned 64-bit number.")
    return _UINT64.pack(kind, commit_ts)


def encode_ddl(event: DdlEvent) -> bytes:
    """Returns the record value of a DDL event.

    Raises:
        EncodeError: Neither ``extension["type"]`` nor ``kind`` is the number of TiDB's DDL action.
    """
    number = (event.extension or {}).get("type", event.kind)
    if not isinstance(number, int) and not str(number).isdecimal():
        raise EncodeError(
            f"flat-avro needs the number of TiDB's DDL action, but the DDL event has {shown(number, 40)}. "
            "Set extension['type'] to the number."
        )
    members = {
        "query": event.query,
        "type": int(str(number)),
        "schema": event.table.schema,
        "table": event.table.name,
        "commitTs": event.commit_ts,
    }
    return bytes([_DDL]) + schema_text(members).encode()


# Maximum size of a decompressed payload in bytes: far above Kafka's limits, far below a worker's memory.
MOST_BYTES: Final = 64 * 2**20
_ZLIB: Final = 5
# Schema ids of Confluent's registry are positive int32 numbers, so no registry uses this id or higher ids.
_FIRST_ID: Final = 1 << 31


def is_glue_framed(message: Message) -> bool:
    """Returns True if the message's key or value has an AWS Glue header."""
    return is_glue(message.key or b"") or is_glue(message.value or b"")


class GlueFrames:
    """Replaces AWS Glue headers by Confluent headers, so that the codec can decode the messages.

    The schema ids in these headers are assigned here, above the range that Confluent registries use.
    ``source``: source of the Glue schemas, or None. ``records``: dict to which the parsed schemas are added
    under the assigned ids. Threads may share an instance.
    """

    def __init__(self, source: SchemaSource | None, records: dict[int, WriterRecord]) -> None:
        self._source = source
        self._records = records
        self._ids: dict[UUID, int] = {}
        self._lock = threading.Lock()

    def translated(self, message: Message) -> Message:
        """Returns the message with Confluent headers and decompressed payloads.

        Raises:
            FramingError: No source of Glue schemas is configured, or only one of key and value has a Glue
                header.
            SchemaMismatchError: A payload cannot be decompressed, or TiCDC does not write such a schema.
            RegistryError: The source does not have the schema.
        """
        return replace(message, key=self._part(message.key, "key"), value=self._part(message.value, "value"))

    def _part(self, data: bytes | None, part: str) -> bytes | None:
        if data is None:
            return None
        if not is_glue(data):
            raise FramingError(
                f"Only one of key and value has an AWS Glue header. The {part} {not_confluent(data)}"
            )
        payload = data[GLUE_SIZE:]
        plain = _inflated(payload, part) if data[1] == _ZLIB else payload
        return header(self._id(UUID(bytes=data[2:GLUE_SIZE]))) + plain

    def _id(self, uuid: UUID) -> int:
        assigned = self._ids.get(uuid)
        if assigned is not None:
            return assigned
        if self._source is None:
            raise FramingError(
                f"The message has an AWS Glue schema registry header (schema version {uuid}), but no source "
                'of Glue schemas is configured. Add --schemas FILE, a file with lines {"id": "<uuid>", '
                '"schema": …}.'
            )
        try:
            record = parse_record(self._source.schema_by_uuid(uuid))
        except DecodeError as error:
            raise error.with_context(schema_id=str(uuid)) from error
        with self._lock:
            schema_id = self._ids.get(uuid, _FIRST_ID + len(self._ids))
            self._records[schema_id] = record
            return self._ids.setdefault(uuid, schema_id)


def _inflated(payload: bytes, part: str) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(payload, MOST_BYTES)
    except zlib.error as error:
        raise SchemaMismatchError(f"The {part}'s payload is not a zlib stream: {error}.") from error
    if stream.unconsumed_tail:
        raise SchemaMismatchError(f"The {part}'s payload decompresses to more than {MOST_BYTES} bytes.")
    if not stream.eof or stream.unused_data:
        raise SchemaMismatchError(
            f"The {part}'s payload is not exactly one zlib stream: it is cut off, or other bytes follow it."
        )
    return plain


def open_flat_avro(parts: CodecParts) -> Codec:
    """Returns a new codec for ``CODECS``.

    Raises:
        ConfigError: The parts have no schema registry.
    """
    return FlatAvroCodec(
        registry=parts.required_registry("flat-avro"),
        options=FlatAvroOptions.of(parts.options),
        table_of_topic=parts.table_of_topic,
        glue=parts.glue,
    )
