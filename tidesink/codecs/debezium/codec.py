"""Decodes and encodes the change events of Debezium, and of TiCDC's ``debezium`` protocols, in JSON and Avro.

Sources: Debezium 3.5.0.Final with Kafka Connect 4.3 (captured events; heartbeats and notifications from its
documentation); TiCDC new architecture (b813e76). A Kafka record contains one event or no event:

- An envelope is a row change. A delete is an envelope with ``op`` d. Debezium sends a tombstone (a record
  with a null value, for Kafka's log compaction) after that envelope; this tombstone is not an event.
- A row flattened by ExtractNewRecordState is a row change too. In a topic of flattened rows a tombstone may
  be the only sign that a row was deleted, so it is decoded as a delete. After a row with ``__deleted`` it
  repeats that row's delete. A tombstone belongs to flattened rows if it has the header ``__op``, if the codec
  has decoded flattened rows of the same topic, or if ``debezium_unwrapped`` is set.
- Transaction boundaries, heartbeats, logical messages and notifications are decoded as message events; schema
  changes as DDL events. TiCDC writes watermarks as messages (``op`` m) with a ``commit_ts``.
"""

from __future__ import annotations

import time
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from tidesink.codecs.base import Codec, CodecParts, EncodedRecord, kept
from tidesink.codecs.debezium.connect_schema import ConnectSchema
from tidesink.codecs.debezium.encode import AvroWriter, JsonWriter, TicdcWriter
from tidesink.codecs.debezium.envelope import (
    OPS,
    POSTGRES,
    TICDC,
    Change,
    RowRead,
    Rows,
    change_event,
    check_shapes,
    commit_ts_of_source,
    connector_of,
    envelope_event,
    is_envelope,
    is_snapshot,
    moves_row,
    read_key,
    table_of_source,
    with_old_columns,
)
from tidesink.codecs.debezium.formats import AvroParser, JsonParser, Parsed, Parser
from tidesink.codecs.debezium.unwrapped import (
    flattened,
    flattened_table,
    is_added,
    is_flattened,
    marked_delete,
    source_of_headers,
)
from tidesink.codecs.framing import ids_in_headers
from tidesink.codecs.options import BinaryHandling, DebeziumOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import (
    ConfigError,
    DecodeError,
    EncodeError,
    FramingError,
    RegistryError,
    RegistryUnavailableError,
    SchemaMismatchError,
    TidesinkError,
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
    TableId,
    WatermarkEvent,
)
from tidesink.schema_registry.base import SchemaRegistry

if TYPE_CHECKING:
    from tidesink.codecs.batch import Columnar, ValueOptions
    from tidesink.codecs.debezium.columns import Columns, EnvelopeTables


_MOST_TOPICS: Final = 65536
_MOST_UNREAD: Final = 1000


class DebeziumCodec(Codec):
    """Decodes Debezium's records; the base class of the JSON codec and the Avro codec.

    A column's type comes from ``definitions`` or from the record's schema. If neither has a type, it comes
    from DDL events that this codec decoded earlier. ``unread_ddl`` maps the text of a DDL statement that
    could not be parsed to the reason; it holds the first 1000 such statements.
    """

    name: str = "debezium"
    _options: DebeziumOptions
    _writer: TicdcWriter

    def __init__(
        self,
        parser: Parser,
        *,
        options: DebeziumOptions | None = None,
        definitions: TableDefinitions | None = None,
    ) -> None:
        self._options = options or DebeziumOptions()
        self._parser = parser
        declared = definitions if definitions is not None else TableDefinitions()
        self.unread_ddl: dict[str, str] = {}
        self._rows = Rows(self._options.debezium, declared)
        ticdc = replace(self._options.debezium.of_ticdc(), time_zone=self._options.time_zone)
        self._ticdc_rows = Rows(ticdc, declared, self._rows.learned)
        self._flattened_topics: set[str] = set()

    def decode(self, message: Message) -> tuple[Event, ...]:
        """Decodes one Kafka record. Returns a tuple with its event, or an empty tuple if it has no event.

        Raises:
            DecodeError: this record cannot be decoded; context has topic, partition and offset.
            RegistryError: the writer's schema is not available.
        """
        return self._decoded(message, None)

    def decode_new_row(self, message: Message, keys: Collection[str]) -> tuple[Event, ...]:
        """Decodes one Kafka record, but reads only the columns in ``keys`` from an update's old row.

        ``keys`` holds column names in lower case. New rows and the old rows of deletes are read whole.
        Returns a tuple with the record's event, or an empty tuple.

        Raises:
            DecodeError: this record cannot be decoded; context has topic, partition and offset.
            RegistryError: the writer's schema is not available.
        """
        return self._decoded(message, keys)

    def table_of(self, message: Message) -> TableId | None:
        """Returns the table that an envelope's source block names; None for records that are not envelopes.

        Also returns None for a record that cannot be parsed.
        """
        try:
            value = self._parser.read(message, "value")
        except (DecodeError, RegistryError):
            return None
        payload = None if value is None else value.payload
        if not isinstance(payload, dict) or payload.get("op") not in OPS or not is_envelope(payload):
            return None
        table = table_of_source(payload["source"])
        return table if table.name else None

    def columns_of(
        self, schema: ConnectSchema, table: TableId, *, is_ticdc: bool = False
    ) -> tuple[Column, ...]:
        """Returns the columns of a table, derived from the Connect schema of its rows (a struct).

        ``is_ticdc``: True if TiCDC wrote the rows, False for a Debezium connector.

        Raises:
            DecodeError: a column has a type that neither Debezium nor TiCDC writes.
        """
        rows = self._ticdc_rows if is_ticdc else self._rows
        return rows.shape(schema, table).columns

    def _decoded(self, message: Message, keys: Collection[str] | None) -> tuple[Event, ...]:
        try:
            event = self._event(message, keys)
        except (DecodeError, RegistryError) as error:
            raise _placed(error, message) from error
        return () if event is None else (event,)

    def columnar(self, options: ValueOptions) -> Columnar | None:
        """Returns a function that decodes many records at once; None if the codec has no such function.

        ``codecs.batch.decode_in_columns`` calls it with the records of a batch.
        """
        step = self._columns
        return None if step is None else lambda records: step.read(records, options)

    @cached_property
    def _columns(self) -> Columns | None:
        """Decoder of many records at once; None if the codec has no such decoder."""
        return None

    @cached_property
    def _tables(self) -> EnvelopeTables:
        from tidesink.codecs.debezium.columns import EnvelopeTables

        return EnvelopeTables(self._rows, self._ticdc_rows)

    def encode(self, event: Event, *, topic: str) -> EncodedRecord | None:
        """Encodes a row change, a DDL event or a watermark as TiCDC writes it, and returns the record.

        The Avro codec also registers the record's schemas. Returns None for a watermark if the TiDB extension
        is off. The Avro codec returns None for DDL events and watermarks unless both
        ``enable_tidb_extension`` and ``avro_enable_watermark`` are set.

        Raises:
            EncodeError: TiCDC's protocol cannot represent the event, or the event is incomplete; context has
                the topic.
            RegistryError: the schemas cannot be registered.
        """
        try:
            if isinstance(event, ChangeEvent):
                return self._writer.row(event, topic)
            if isinstance(event, WatermarkEvent):
                return self._writer.watermark(event)
            if isinstance(event, DdlEvent):
                return self._writer.ddl(event)
        except EncodeError as error:
            table = str(event.table) if isinstance(event, ChangeEvent | DdlEvent) else None
            raise error.with_context(topic=topic, table=table) from error
        raise EncodeError(
            f"TiCDC's protocol has no message of the kind {event.kind}, which only a Debezium "
            "connector sends, so this event cannot be written. Remove it from the input.",
            topic=topic,
        )

    def _is_flattened(self, topic: str) -> bool:
        return self._options.debezium_unwrapped or topic in self._flattened_topics

    def _event(self, message: Message, keys: Collection[str] | None) -> Event | None:
        value = self._parser.read(message, "value")
        if value is None or value.payload is None:
            return self._tombstone(message)
        payload = value.payload
        if not isinstance(payload, dict):
            raise SchemaMismatchError(f"The value is not a JSON object. {refusal(payload)}")
        binary = self._options.debezium.binary_handling_mode
        position = Position(message.topic, message.partition, message.offset)
        control = control_event(payload, position, binary=binary)
        if isinstance(control, DdlEvent):
            self._learn(control)
        if control is not None:
            return control
        if is_envelope(payload):
            rows = self._ticdc_rows if connector_of(payload["source"]) == TICDC else self._rows
            if keys is not None:
                value = with_old_columns(value, keys)
            return envelope_event(message, value, self._parser.read(message, "key"), rows)
        return self._flattened(message, value, payload)

    def _flattened(self, message: Message, value: Parsed, payload: Mapping[str, Any]) -> ChangeEvent:
        if not self._is_flattened(message.topic) and not is_flattened(message, payload, value.schema):
            raise SchemaMismatchError(refusal(payload))
        row = flattened(message, payload, value.schema)
        if len(self._flattened_topics) < _MOST_TOPICS:
            self._flattened_topics.add(message.topic)
        keyed = read_key(self._parser.read(message, "key"), row.table, self._rows)
        read = self._rows.read(row.columns, row.schema, row.table, skipped=is_added)
        deleted = row.op is Op.DELETE
        # Without a field or a header that shows the operation, a row may be an update, and from any
        # connector.
        updated = row.op is Op.UPDATE or (row.op is Op.INSERT and moves_row(message))
        lacks_op = row.op is Op.UPSERT and not is_snapshot(row.source)
        if (updated or lacks_op) and connector_of(row.source) in (POSTGRES, ""):
            check_shapes(row.columns, None, row.schema, self._rows.definitions.get(row.table))
        change = Change(
            op=row.op,
            table=row.table,
            keyed=keyed,
            source=row.source,
            before=read if deleted else None,
            after=None if deleted else read,
            extension=kept(dict(row.added), "added fields"),
            raw_before=row.columns if deleted else None,
            row_schema=row.schema,
            schema_id=value.schema_id,
        )
        return change_event(message, change, self._rows)

    def _tombstone(self, message: Message) -> ChangeEvent | None:
        if not self._is_flattened(message.topic) and not marked_delete(message):
            return None
        key = self._parser.read(message, "key")
        source = source_of_headers(message)
        table = flattened_table(message, source, None if key is None else key.schema)
        keyed = read_key(key, table, self._rows)
        if keyed.row is None:
            raise SchemaMismatchError(
                "The record has neither value nor key, so it does not show which row was deleted. Add a "
                "primary key to the source table, or set message.key.columns at the connector."
            )
        read = RowRead(keyed.row, keyed.read.columns)
        change = Change(Op.DELETE, table, keyed, source, before=read, after=None, extension={})
        return change_event(message, change, self._rows)

    def _learn(self, event: DdlEvent) -> None:
        try:
            self._rows.learned.apply(event.query, event.table.schema, about=event.table)
        except ConfigError as error:
            if len(self.unread_ddl) < _MOST_UNREAD:
                self.unread_ddl[event.query] = error.message


# Decompression of a batch stops once the decompressed records have this many bytes.
_MOST_OPENED: Final = 1 << 26


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class DebeziumJsonCodec(DebeziumCodec):
    """The codec ``debezium-json``: records in JSON, with or without a schema in each record.

    Events are encoded in TiCDC's format. ``clock`` returns the milliseconds since 1970 that are written as
    ``ts_ms``. ``most_opened``: up to this number of bytes, compressed records are decompressed and decoded
    together.
    """

    name = "debezium-json"

    def __init__(
        self,
        *,
        options: DebeziumOptions | None = None,
        definitions: TableDefinitions | None = None,
        clock: Callable[[], int] = _now_ms,
        most_opened: int = _MOST_OPENED,
    ) -> None:
        parser = JsonParser((options or DebeziumOptions()).max_decompressed_bytes)
        super().__init__(parser, options=options, definitions=definitions)
        self._most_opened = most_opened
        self._writer = JsonWriter(self._options, clock)

    @cached_property
    def _columns(self) -> Columns:
        from tidesink.codecs.debezium.json_columns import JsonColumns

        most = self._options.max_decompressed_bytes
        return JsonColumns(self._tables, self._is_flattened, most=most, most_together=self._most_opened)


class DebeziumAvroCodec(DebeziumCodec):
    """The codec ``debezium-avro``: Avro records with Confluent headers and schemas in the schema registry.

    Events are encoded in TiCDC's format. ``clock`` returns the milliseconds since 1970 that are written as
    ``ts_ms``.
    """

    name = "debezium-avro"

    def __init__(
        self,
        *,
        registry: SchemaRegistry,
        options: DebeziumOptions | None = None,
        definitions: TableDefinitions | None = None,
        clock: Callable[[], int] = _now_ms,
    ) -> None:
        self._avro = AvroParser(registry)
        super().__init__(self._avro, options=options, definitions=definitions)
        self._writer = AvroWriter(registry, self._options, clock)

    def _decoded(self, message: Message, keys: Collection[str] | None) -> tuple[Event, ...]:
        try:
            return super()._decoded(message, keys)
        except (DecodeError, RegistryError) as error:
            elsewhere = ids_in_headers(message.headers)
            if elsewhere is None or isinstance(error, RegistryUnavailableError):
                raise
            raise _placed(FramingError(elsewhere), message) from error

    @cached_property
    def _columns(self) -> Columns:
        from tidesink.codecs.debezium.avro_columns import AvroEnvelopes

        return AvroEnvelopes(self._tables, self._avro, self._is_flattened)


def _placed(error: TidesinkError, message: Message) -> TidesinkError:
    return error.with_context(topic=message.topic, partition=message.partition, offset=message.offset)


Payload = Mapping[str, Any]

MESSAGE_OP: Final = "m"
_TRANSACTION: Final = frozenset({"status", "id", "event_count", "data_collections", "ts_ms"})
_BOUNDARIES: Final = ("BEGIN", "END")
_HEARTBEAT: Final = frozenset({"ts_ms"})
_NOTIFICATION: Final = frozenset({"id", "aggregate_type", "type"})
_DDL: Final = frozenset({"ddl", "source"})


def control_event(payload: Payload, position: Position, *, binary: BinaryHandling) -> Event | None:
    """Returns the event of a record that is not a row change; None for a record that may be a row change.

    Such events are DDL, watermarks, transaction boundaries, heartbeats, logical messages and notifications.
    ``binary`` is the encoding of a logical message's content if the content is text.

    Raises:
        SchemaMismatchError: the record is one of these events, but a member is missing or has the wrong type.
    """
    if payload.keys() >= _DDL and isinstance(payload["source"], Mapping):
        return _ddl(payload, payload["source"], position)
    if payload.get("op") == MESSAGE_OP and isinstance(payload.get("source"), Mapping):
        return _message(payload, payload["source"], position, binary)
    kind = _kind(payload)
    return None if kind is None else MessageEvent(kind, None, None, position, kept(dict(payload), kind))


def _kind(payload: Payload) -> str | None:
    names = payload.keys()
    if names <= _TRANSACTION and {"status", "id"} <= names and payload["status"] in _BOUNDARIES:
        return "transaction"
    if names == _HEARTBEAT and isinstance(payload["ts_ms"], int):
        return "heartbeat"
    if names >= _NOTIFICATION and names <= _NOTIFICATION | {"additional_data", "timestamp"}:
        return "notification"
    return None


def _ddl(payload: Payload, source: Payload, position: Position) -> DdlEvent:
    query = payload["ddl"]
    if not isinstance(query, str | None):
        raise SchemaMismatchError(
            f"The member ddl of a schema change event is {shown(query)}, but text was expected."
        )
    changes = payload.get("tableChanges")
    extension = kept({"source": dict(source), "ts_ms": payload.get("ts_ms")}, "source")
    if query is None or connector_of(source) == TICDC:
        # SQL Server and Db2 report the columns without a statement; TiCDC's are needed to write the event
        # again.
        extension["tableChanges"] = kept(changes, "tableChanges")
    return DdlEvent(
        table=_ddl_table(payload, source),
        query=query or "",
        kind=_ddl_kind(changes),
        commit_ts=commit_ts_of_source(source),
        position=position,
        extension=extension,
    )


def _ddl_table(payload: Payload, source: Payload) -> TableId:
    schema, name = table_of_source(source)
    reported = (payload.get("schemaName"), payload.get("databaseName"), schema)
    return TableId(next((part for part in reported if isinstance(part, str) and part), ""), name)


def _ddl_kind(changes: object) -> str:
    """Returns the ``type`` of the first entry in ``tableChanges`` (CREATE, ALTER or DROP).

    Returns QUERY if there is no entry, or if it has no type.
    """
    first = changes[0] if isinstance(changes, list) and changes else None
    kind = first.get("type") if isinstance(first, Mapping) else None
    return kind if isinstance(kind, str) and kind else "QUERY"


def _message(payload: Payload, source: Payload, position: Position, binary: BinaryHandling) -> Event:
    if connector_of(source) == TICDC:
        commit_ts = commit_ts_of_source(source)
        if commit_ts is None:
            raise SchemaMismatchError(
                "TiCDC's watermark has no source.commit_ts, so its timestamp is not known. TiCDC writes this "
                "member in every watermark, so check which program wrote the message to the topic."
            )
        return WatermarkEvent(commit_ts, position)
    message = payload.get("message")
    if not isinstance(message, Mapping):
        raise SchemaMismatchError(
            f"The member message of an event with op m is {shown(message)}, but an object was expected."
        )
    prefix = message.get("prefix")
    extension = kept({"source": dict(source), "ts_ms": payload.get("ts_ms")}, "source")
    return MessageEvent(
        "logical",
        prefix if isinstance(prefix, str) else None,
        _content(message.get("content"), binary),
        position,
        extension,
    )


_TEXT_FORMS: Final[Mapping[str, Callable[[str], bytes]]] = {
    "hex": bytes.fromhex,
    "base64-url-safe": urlsafe_b64decode,
}


def _content(content: object, binary: BinaryHandling) -> bytes | None:
    if content is None or isinstance(content, bytes):
        return content
    try:
        return _TEXT_FORMS.get(binary, _base64)(str(content))
    except ValueError as error:
        raise SchemaMismatchError(
            f"The content {shown(content)} of a logical message is not encoded as "
            f"binary-handling-mode {binary} requires. Set binary-handling-mode to the mode that the "
            "connector uses."
        ) from error


def _base64(text: str) -> bytes:
    return b64decode(text, validate=True)


_TELL_FLATTENED: Final = (
    "If ExtractNewRecordState flattened it, add op to transforms.unwrap.add.fields at the connector, or "
    "set unwrapped: true under source.debezium (on the command line: --debezium-unwrapped)."
)
# Members that only one other protocol's messages have together, and the remedy.
_OTHERS: Final = (
    (
        {"isDdl", "mysqlType", "data"},
        "It looks like canal-json: set the source's protocol to canal-json.",
    ),
    (
        {"specversion", "datacontenttype"},
        "It is a CloudEvent: set value.converter to org.apache.kafka.connect.json.JsonConverter or an Avro "
        "converter at the connector.",
    ),
    (
        {"xid", "commit", "data", "type"},
        "It looks like Maxwell's format, which tidesink does not read. Have the topic written by TiCDC or "
        "Debezium instead.",
    ),
    (
        {"commitTs", "type", "schemaVersion"},
        "It looks like TiCDC's simple protocol, which tidesink does not read. Set the protocol of the "
        "changefeed to canal-json or avro.",
    ),
)


def refusal(payload: object) -> str:
    """Returns an error message for a value that is not a Debezium event: the likely cause and the remedy."""
    if not isinstance(payload, Mapping):
        return (
            f"{shown(payload)} is not a Debezium event: neither an envelope nor a row. Set the source's "
            "protocol to the format that this topic contains."
        )
    for members, words in _OTHERS:
        if members <= payload.keys():
            return f"The value is not a Debezium event. {words}"
    names = ", ".join(shown(name, 40) for name in list(payload)[:6])
    return (
        f"The value with the members {names} has no op and source, so it is not a Debezium envelope. "
        f"{_TELL_FLATTENED}"
    )


def open_debezium_json(parts: CodecParts) -> Codec:
    """Returns a new codec for ``CODECS``."""
    options = DebeziumOptions.of(parts.options)
    return DebeziumJsonCodec(options=options, definitions=parts.definitions)


def open_debezium_avro(parts: CodecParts) -> Codec:
    """Returns a new codec for ``CODECS``.

    Raises:
        ConfigError: The parts have no schema registry.
    """
    registry, options = parts.required_registry("debezium-avro"), DebeziumOptions.of(parts.options)
    return DebeziumAvroCodec(registry=registry, options=options, definitions=parts.definitions)
